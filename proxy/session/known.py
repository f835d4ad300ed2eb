"""The keys that have members with deadlines, as far as the proxy has been told: what the hot path looks at."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable

from proxy.session.beginnings import Beginnings

HIGHEST_DATABASE = 1023
"""The highest number of a database that a client's word makes known. The server leaves it out if it has none such."""

ASK_MS = 3.0
"""How near a deadline has to be for the server to be asked whether it has passed: on a busy machine a request takes so
long from here to the server."""

AHEAD_MS = 0.5
"""A deadline so near counts as passed: a request sent now might run when it is."""

MARK_LIFETIME_MS = 10_000
"""How long a mark of our own outweighs an answer that the key has no deadlines: the answer may be older."""

MARKED_AT_ONCE = 64
"""Deadlines of one key's fresh marks that are kept, earliest first: later ones become known before they matter."""


class KnownKeys:
    """Key → earliest deadline of its members, over all databases, by the server's clock.

    A key that is known without need costs its requests a script that finds nothing to do; a key that should be known
    and is not would break the promise. So a key becomes known before the request that may give it deadlines is
    sent (`mark`), and is forgotten only on the server's word (`learn`), never while a mark is fresh.

    Attributes:
        deadlines: key → deadline in Unix ms; infinite where only a mark makes the key known. Always the
            same dictionary, to be read only.
        beginnings: what all these keys begin with.
        next_deadline: the earliest deadline of all when the sweeper last looked, in Unix ms.
        databases: the numbers of those that may hold deadlines.
        doubt: how far the clock that requests are judged by may be ahead of the server's, in ms.
        ever: whether any key has been known, so that the proxy's own keys may be in a database.
        blind: whether there may be keys with deadlines that are not known, so that every key counts as known.
    """

    def __init__(self) -> None:
        self.deadlines: dict[bytes, float] = {}
        self.beginnings = Beginnings()
        self.databases: set[int] = {0}
        self.blind = True
        self.doubt = 0.0
        self.ever = False
        self._marks: dict[bytes, tuple[float, list[float]]] = {}  # since when; the deadlines that may be set
        self._pins: Counter[bytes] = Counter()
        self.next_deadline = -math.inf
        self._horizon = math.inf
        self._wake: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.deadlines)

    def is_known(self, key: bytes) -> bool:
        """Tell whether a key may have members with deadlines."""
        return self.blind or key in self.deadlines

    def due(self, names: Iterable[bytes], now: float, ahead: float = ASK_MS) -> list[bytes]:
        """Return those of the names that are keys with a deadline that has passed, or may have.

        Args:
            names: the names.
            now: the clock, in Unix ms.
            ahead: how many ms before its deadline a key counts already.
        """
        deadlines, limit = self.deadlines, now + ahead
        return [name for name in names if name in deadlines and deadlines[name] <= limit]

    def visit(self, database: int) -> None:
        """Make a database known because a client goes there, or sends keys there."""
        if 0 <= database <= HIGHEST_DATABASE:
            self.databases.add(database)

    def any_due(self, now: float) -> bool:
        """Tell whether any key may have a deadline that has passed, or is about to, at `now` in Unix ms."""
        return min(self.next_deadline, self._horizon) <= now + ASK_MS

    def mark(self, key: bytes, deadline: float, now: float) -> None:
        """Make a key known because a request that is about to be sent may give it a deadline.

        Args:
            key: the key.
            deadline: the earliest that it may be, in Unix ms.
            now: the clock, in Unix ms.
        """
        _, coming = self._marks.pop(key, (now, []))
        insort(coming, deadline)
        del coming[MARKED_AT_ONCE:]
        self._marks[key] = now, coming  # last again: the marks stand in the order of their age
        self.ever = True
        deadline -= self.doubt
        known = self.deadlines.get(key)
        if known is None or deadline < known:
            self._put(key, deadline)

    def learn(self, key: bytes, deadline: float | None, moment: float = -math.inf) -> None:
        """Take over what the server says of a key.

        Args:
            key: the key.
            deadline: its earliest deadline in Unix ms, or None when it has none.
            moment: the server's clock when it said so. The request of a fresh mark may not have run by then, so its
                deadline counts too. One that had passed counts no more: whenever that request runs, its member goes.
        """
        mark = self._marks.get(key)
        if mark is not None:
            coming = mark[1]
            del coming[: bisect_right(coming, moment)]
            marked = coming[0] - self.doubt if coming else math.inf
            deadline = marked if deadline is None else min(deadline, marked)
        if deadline is not None:
            self.ever = True
            self._put(key, deadline)
        else:
            self.deadlines.pop(key, None)
            if not self.deadlines:
                self.beginnings.clear()

    def _put(self, key: bytes, deadline: float) -> None:
        self.deadlines[key] = deadline
        self.beginnings.add(key)
        if deadline < self._horizon:
            self._alarm(deadline)

    def stale_marks(self, now: float) -> list[bytes]:
        """End the marks that are old at `now` (Unix ms), and return their keys, which are to be asked about again."""
        old: list[bytes] = []
        for key, (since, _) in self._marks.items():
            if since > now - MARK_LIFETIME_MS:
                break
            old.append(key)
        for key in old:
            _, coming = self._marks.pop(key)
            if key in self._pins:
                self._marks[key] = now, coming
        return [key for key in old if key not in self._pins]

    def pin(self, keys: Iterable[bytes]) -> None:
        """Keep the marks of keys fresh while a request that made one is queued; `unpin` ends it."""
        self._pins.update(keys)

    def unpin(self, keys: Iterable[bytes]) -> None:
        """End what as many calls of `pin` have begun."""
        self._pins.subtract(keys)
        for key in keys:
            if self._pins[key] <= 0:
                del self._pins[key]

    def step(self, milliseconds: float) -> None:
        """Keep the marks' ages right when the server's clock has been stepped."""
        for key, (since, coming) in self._marks.items():
            self._marks[key] = since + milliseconds, coming

    def begin_watch(self) -> None:
        """Note the earliest deadline that becomes known from now on, without an alarm."""
        self.next_deadline = min(self.next_deadline, self._horizon)
        self._horizon = math.inf
        self._wake = None

    def end_watch(self, earliest: float, wake: Callable[[], None]) -> None:
        """Set the next deadline, and have `wake` called once when an earlier one becomes known.

        Args:
            earliest: the earliest deadline that the server told since `begin_watch`, in Unix ms.
            wake: the alarm.
        """
        self.next_deadline = self._horizon = min(earliest, self._horizon)
        self._wake = wake

    def _alarm(self, deadline: float) -> None:
        self._horizon = deadline
        if self._wake is not None:
            self._wake()
