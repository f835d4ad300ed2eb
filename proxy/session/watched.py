"""The keys that one connection watches: a deadline that passes in one is a change its next transaction has to see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from proxy.session.rewrite import LONGEST_NAME
from proxy.session.transaction import NAME_SIZE, REMEMBERED


class Watched:
    """What the server remembers of the WATCH of a connection, as far as deadlines matter.

    Attributes:
        keys: the keys; also those that have no deadlines, as they may get some.
        everywhere: whether they are too many to be remembered: then what is due in any key is removed before EXEC.
        size: bytes, about, that they take.
    """

    __slots__ = ("_since", "everywhere", "keys", "size")

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.everywhere = False
        self.size = 0
        self._since = 0.0

    def __bool__(self) -> bool:
        return self.everywhere or bool(self.keys)

    def add(self, keys: Iterable[bytes], now: float) -> None:
        """Remember some more, at `now` by the server's clock; keys of longer names get no deadlines."""
        if self.everywhere:
            return
        if not self.keys:
            self.seen(now)
        new = {key for key in keys if len(key) <= LONGEST_NAME} - self.keys
        self.keys |= new
        self.size += NAME_SIZE * len(new) + sum(map(len, new))
        if len(self.keys) > REMEMBERED:
            self.clear()
            self.everywhere = True

    def seen(self, now: float) -> None:
        """Note that the server has been made to see what had passed in them by `now`."""
        self._since = now

    def has_passed(self, deadlines: Mapping[bytes, float], now: float) -> bool:
        """Return whether one of the keys' earliest deadlines has passed since the server has been made to see."""
        return any(self._since < deadlines.get(key, math.inf) <= now for key in self.keys)

    def clear(self) -> None:
        """Forget them: the server has."""
        if self:
            self.keys = set()
            self.everywhere = False
            self.size = 0
