"""Note which keys are about to get deadlines, for the sweeper and the rest of the transaction.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage
from proxy.scripts.naming import Names, slot
from proxy.session.pipeline import Pipeline
from proxy.session.transaction import Transaction


class Marks:
    """Notifies the sweeper of new deadlines, and covers keys to which a transaction is about to give deadlines.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys; keys that a transaction may give deadlines are added.

    Attributes:
        alarm: wakes the sweeper.
    """

    def __init__(self, names: Names, coverage: Coverage) -> None:
        self._names = names
        self._coverage = coverage
        self.alarm = Alarm()

    def expect(self, keys: Iterable[bytes], deadline: float) -> None:
        """Note that keys get deadlines. The sweeper wakes at the earliest of them: `deadline`, in Unix ms."""
        self.alarm.set(deadline)
        if self._names.slots is not None:
            self._names.slots.changed.update(map(slot, keys))

    def cover(self, key: bytes, owner: Pipeline | None, transaction: Transaction | None) -> None:
        """Cover a key, as if it had deadlines, for the rest of an open transaction. EXEC waits for the announcement."""
        if transaction is not None:
            self._coverage.begin((key,), owner.mark if owner is not None else self, queued=True)
