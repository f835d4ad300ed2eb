"""Track the keys that one connection watches: a deadline that passes in one of them must make EXEC fail.

Its tests: tests/test_blind.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from proxy.session.rewrite import LONGEST_NAME
from proxy.session.transaction import NAME_SIZE, REMEMBERED
from proxy.wire.guard import earliest_of


class Watched:
    """The watched keys of one connection, as far as they concern deadlines.

    Attributes:
        keys: the keys, including those without deadlines, which may get some.
        begun: whether the client may watch any key.
        everywhere: whether there are too many keys to remember: then due members of every key are removed before EXEC.
        size: about how many bytes the keys take.
        earliest: their next deadline when the transaction began, in Unix ms, as far as is known.
    """

    __slots__ = ("begun", "earliest", "everywhere", "keys", "size")

    def __init__(self) -> None:
        self.begun = False
        self.keys: set[bytes] = set()
        self.everywhere = False
        self.size = 0
        self.earliest = math.inf

    def __bool__(self) -> bool:
        return self.everywhere or bool(self.keys)

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember more keys, except those with long names, which get no deadlines."""
        self.begun = True
        if self.everywhere:
            return
        new = {key for key in keys if len(key) <= LONGEST_NAME} - self.keys
        self.keys |= new
        self.size += NAME_SIZE * len(new) + sum(map(len, new))
        if len(self.keys) > REMEMBERED:
            self.clear()
            self.begun = self.everywhere = True

    def hear(self, scores: bytes) -> None:
        """Take the reply with the next deadlines."""
        self.earliest = earliest_of(scores)

    def clear(self) -> None:
        """Forget the keys, as the server has."""
        self.begun = False
        self.earliest = math.inf
        if self:
            self.keys = set()
            self.everywhere = False
            self.size = 0
