"""The few beginnings that all known keys share, when they do: a chunk with none of them in it names no known key."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

MOST: Final = 4
"""Beginnings at most: each is looked for in every chunk."""

SHORTEST: Final = 3
"""Bytes of a beginning at least, unless it is a whole key: a shorter one would be found in most chunks."""


class Beginnings:
    """Beginnings of keys, found by looking at keys one by one: names in a database mostly say first what they are.

    Attributes:
        found: every key added begins with one of these. One empty beginning, which is in everything, once there would
            have to be more than `MOST`.
    """

    def __init__(self) -> None:
        self.found: tuple[bytes, ...] = ()

    def add(self, key: bytes) -> None:
        """Have a key begin with one of the beginnings."""
        if key.startswith(self.found):
            return
        shared = [_shared(beginning, key) for beginning in self.found]
        longest = max(shared, key=len, default=b"")
        if len(longest) >= SHORTEST:
            self.found = tuple(longest if one is longest else old for old, one in zip(self.found, shared, strict=True))
        elif len(self.found) < MOST:
            self.found = (*self.found, key)
        else:
            self.found = (b"",)

    def clear(self) -> None:
        """Start again: there are no keys left."""
        self.found = ()


def _shared(one: bytes, other: bytes) -> bytes:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)]
