"""Walk through a sorted set of any size in small steps, in order, even while it changes.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Words: TypeAlias = tuple[str | bytes | int, ...]
"""A request."""

Element: TypeAlias = tuple[float, bytes]
"""A score and its member. Tuples sort as servers sort the elements."""

FEW: Final = 100
"""Maximum number of elements with equal scores to read again in order to skip them. With more, the walk uses ranks."""

_MARGIN: Final = 16
"""Number of elements to read before the expected rank, because ranks may have shifted."""

MOST_ATTEMPTS: Final = 1000
"""Maximum number of consecutive replies without new elements."""


class RestlessError(Exception):
    """The sorted set changes faster than it can be read."""


class Walk:
    """A walk over the elements with a score above zero. The caller sends the requests.

    Args:
        name: the key of the sorted set.
        floor: the score to begin at; 0 for the first score above zero.

    Attributes:
        name: the key of the sorted set.
        last: the last element that was returned; None before the first.
        done: whether all elements have been returned.
    """

    __slots__ = (
        "_attempts", "_floor", "_high", "_low", "_rank", "_requested", "_start", "_ties", "done", "last", "name",
    )  # fmt: skip

    def __init__(self, name: bytes, floor: float = 0.0) -> None:
        self.name = name
        self.last: Element | None = None
        self.done = False
        self._floor = "(0" if floor <= 0 else repr(floor)
        self._ties = 0  # number of elements read that have the score of the last one; -1: read by rank from now on
        self._rank: int | None = None  # expected rank of the next element; None: search for it
        self._low = 0  # lower bound of the search
        self._high: int | None = None  # upper bound
        self._start = 0
        self._requested = 0
        self._attempts = 0

    def request(self, size: int) -> Words:
        """Return the next request; pass its reply to `take`.

        Args:
            size: about how many elements to return at most.
        """
        if self.last is None:
            self._requested = size
            return "ZRANGEBYSCORE", self.name, self._floor, "+inf", "WITHSCORES", "LIMIT", 0, size
        if 0 <= self._ties <= FEW:
            self._requested = size + self._ties
            return "ZRANGEBYSCORE", self.name, repr(self.last[0]), "+inf", "WITHSCORES", "LIMIT", 0, self._requested
        self._ties = -1
        if self._rank is None:
            self._start = (self._low + self._high) // 2 if self._high is not None else 2 * self._low + FEW
            self._requested = 1
        else:
            self._start = max(0, self._rank - _MARGIN)
            self._requested = self._rank - self._start + size
        return "ZRANGE", self.name, self._start, self._start + self._requested - 1, "WITHSCORES"

    def take(self, reply: Sequence[Any]) -> list[Element]:
        """Return the new elements in a reply. An empty result does not mean the end: see `done`.

        Raises:
            RestlessError: too many replies in a row had nothing new.
        """
        found = [(float(reply[at + 1]), reply[at]) for at in range(0, len(reply), 2)]
        new = self._by_score(found) if self._ties >= 0 else self._by_rank(found)
        self._attempts = 0 if new else self._attempts + 1
        if self._attempts > MOST_ATTEMPTS:
            raise RestlessError
        return new

    def _by_score(self, found: list[Element]) -> list[Element]:
        self.done = len(found) < self._requested
        if found:
            score = found[-1][0]
            self._ties = sum(1 for element in found if element[0] == score)
        return self._behind_last(found)

    def _by_rank(self, found: list[Element]) -> list[Element]:
        assert self.last is not None
        if self._rank is None:
            if found and found[0] <= self.last:
                self._low = self._start + 1
            else:
                self._high = self._start
            if self._low == self._high:
                self._rank, self._low, self._high = self._low, 0, None
            elif self._high is not None and self._low > self._high:  # the set has changed: search again
                self._low, self._high = 0, None
            return []
        if self._start and not (found and found[0] <= self.last):
            self._rank = None  # earlier elements were removed, so ranks have shifted: search again
            return []
        new = self._behind_last(found)
        self._rank = self._start + len(found)
        self.done = len(found) < self._requested
        return new

    def _behind_last(self, found: list[Element]) -> list[Element]:
        new = found if self.last is None else [element for element in found if element > self.last]
        if new:
            self.last = new[-1]
        return new
