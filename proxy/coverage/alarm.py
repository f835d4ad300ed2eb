"""The earliest deadline that this proxy knows; it wakes the sweeper.

Its tests: tests/test_coverage.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

LASTING_SECONDS: Final = 5.0
"""How long to remember a deadline that a request is about to set: a query of the server may overtake the request."""

_TOGETHER_SECONDS: Final = 0.5
"""Of the deadlines set within this time only the earliest is remembered."""


class Alarm:
    """The earliest known deadline.

    Attributes:
        next_deadline: the earliest known deadline, in Unix ms; minus infinity before the server has been queried.
        is_idle: whether the sweeper last found no deadline, and none has been set here or announced since.
        on_first: called when a deadline is set while idle, because other proxies may be idle too.
    """

    def __init__(self) -> None:
        self.next_deadline = -math.inf
        self.is_idle = False
        self.on_first: Callable[[], None] = lambda: None
        self._set: list[list[float]] = []  # pairs: when deadlines were set (time.monotonic), and the earliest of them
        self._rung = -math.inf  # when another proxy last announced deadlines
        self._wake: Callable[[], None] | None = None

    def set(self, deadline: float) -> None:
        """Note a deadline, in Unix ms, that a request is about to set."""
        moment = time.monotonic()
        if self._set and moment < self._set[-1][0] + _TOGETHER_SECONDS:
            self._set[-1][1] = min(self._set[-1][1], deadline)
        else:
            self._set.append([moment, deadline])
        if self.is_idle:
            self.is_idle = False
            self.on_first()
        if deadline < self.next_deadline:
            self.next_deadline = deadline
            if self._wake is not None:
                self._wake()

    @property
    def set_lately(self) -> float:
        """The earliest deadline that was set a moment ago, in Unix ms; infinite if none was."""
        return min((deadline for _, deadline in self._set[-2:]), default=math.inf)

    def ring(self) -> None:
        """Wake the sweeper: clients of other proxies may set deadlines from now on."""
        self._rung = time.monotonic()
        self.is_idle = False
        if self._wake is not None:
            self._wake()

    def hear(self, deadline: float) -> None:
        """Note the earliest deadline that the server reports, in Unix ms; infinite if there is none."""
        if deadline < self.next_deadline:
            self.next_deadline, self.is_idle = deadline, False
            if self._wake is not None:
                self._wake()

    def begin_watch(self) -> None:
        """Stop waking the sweeper until `end_watch`."""
        self._wake = None

    def end_watch(self, earliest: float, now: float, wake: Callable[[], None]) -> None:
        """Set the next deadline, and have `wake` called when an earlier one is set.

        Args:
            earliest: the earliest deadline that the server has reported since `begin_watch`, in Unix ms.
            now: the server's clock at that report, in Unix ms; deadlines noted by `set` that are earlier are ignored.
            wake: wakes the sweeper.
        """
        since = time.monotonic() - LASTING_SECONDS
        self._set = [one for one in self._set if one[0] > since]
        self.next_deadline = min([earliest, *(deadline for _, deadline in self._set if deadline > now)])
        self.is_idle = self.next_deadline == math.inf and not self._set and self._rung <= since
        self._wake = wake
