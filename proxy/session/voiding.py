"""Void deadlines of absent members in many keys and databases, with script calls that each do bounded work.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.scripts.naming import Names

ROOM: Final = 1000
"""About how many members, and pairs of key and database, one call examines."""

_KEYS: Final = 128
_MEMBERS: Final = 500

Absent: TypeAlias = Sequence[tuple[bytes, tuple[bytes, ...] | None]]
"""Keys, each with the members to check; None for all that have deadlines."""


@dataclass(frozen=True, slots=True)
class Voiding:
    """One script call, to be repeated as long as it returns a place at which to continue.

    Attributes:
        keys: KEYS of the script.
        tentative: whether TTL must keep showing the deadlines.
        rest: the rest of ARGV: databases, members.
    """

    keys: list[bytes]
    tentative: bool
    rest: list[bytes]

    def arguments(self, place: Sequence[bytes | int]) -> list[bytes]:
        """Return the ARGV of a call that continues at the place that the last one returned; an empty place to begin."""
        where = [word if isinstance(word, bytes) else b"%d" % word for word in place or (1, 1, 0)]
        return [b"%d" % ROOM, b"%d" % self.tentative, *where, *self.rest]


def voidings(names: Names, absent: Absent, databases: Sequence[bytes], *, tentative: bool) -> Iterator[Voiding]:
    """Split the work into calls, usually one.

    Args:
        names: the names of the proxy's own keys.
        absent: the keys and members.
        databases: the numbers of the databases; empty for the connection's own.
        tentative: whether the server may refuse to add the members.
    """
    keys: list[bytes] = []
    lists: list[bytes] = []
    size, index = 0, b""

    def voiding() -> Voiding:
        return Voiding([index, *keys], tentative, [b"%d" % len(databases), *databases, *lists])

    for key, members in absent:
        if keys and names.index_for(key) != index:
            yield voiding()
            keys, lists, size = [], [], 0
        index = names.index_for(key)
        pages = [None] if members is None else [members[at : at + _MEMBERS] for at in range(0, len(members), _MEMBERS)]
        for page in pages:
            if keys and (len(keys) >= 2 * _KEYS or size + len(page or ()) > _MEMBERS):
                yield voiding()
                keys, lists, size = [], [], 0
            keys += [key, names.shadow(key)]
            lists += [b"-1"] if page is None else [b"%d" % len(page), *page]
            size += len(page or ())
    if keys:
        yield voiding()
