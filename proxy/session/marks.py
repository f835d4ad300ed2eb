"""Notes which keys are about to get deadlines, so that whatever else depends on it is in time."""

from __future__ import annotations

from collections.abc import Iterable

from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage
from proxy.scripts.naming import Names, slot
from proxy.session.pipeline import Pipeline
from proxy.session.transaction import Transaction


class Marks:
    """Tells the sweeper of deadlines, and a transaction of keys that get some.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys; those that a transaction may give deadlines are covered here.

    Attributes:
        alarm: wakes the sweeper.
    """

    def __init__(self, names: Names, coverage: Coverage) -> None:
        self._names = names
        self._coverage = coverage
        self.alarm = Alarm()

    def expect(self, keys: Iterable[bytes], deadline: float) -> None:
        """Note that keys get deadlines, the earliest in Unix ms: the sweeper has to look then."""
        self.alarm.set(deadline)
        if self._names.slots is not None:
            self._names.slots.changed.update(map(slot, keys))

    def cover(self, key: bytes, owner: Pipeline | None, transaction: Transaction | None) -> None:
        """Have what follows in a transaction judged as if a key had deadlines; others are told before EXEC."""
        if transaction is not None:
            self._coverage.begin((key,), owner.mark if owner is not None else self, queued=True)
