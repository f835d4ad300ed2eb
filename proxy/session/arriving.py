"""Track the keys that another cluster node sends over one connection.

Its tests: tests/test_cluster_moves.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.session.question import Arrival

MOST_REMEMBERED: Final = 100_000
"""How many arriving keys to remember for one connection: more than one MIGRATE sends."""


class Arriving:
    """Tracks the keys whose arrival has been prepared, and those whose shadows arrived first."""

    __slots__ = ("_awaited", "_made", "_unmade")

    def __init__(self) -> None:
        self._awaited: set[bytes] = set()  # keys that were prepared for and have not arrived yet
        self._made: set[bytes] = set()  # keys that were prepared for, whose shadows have not arrived yet
        self._unmade: set[bytes] = set()  # keys that were not prepared for, and whose shadows alone have arrived

    def come_with(self, shadow_of: bytes) -> None:
        """Note that a key's shadow is arriving."""
        if shadow_of in self._made:
            self._made.discard(shadow_of)
        else:
            self._unmade.add(shadow_of)

    def to_make_way_for(self, arrival: Arrival, ahead: Iterable[Arrival]) -> tuple[Arrival, ...]:
        """Return the arrivals to prepare for before a key is forwarded, each once.

        A key whose shadow arrived first is left out: the shadow belongs to it. This happens if the other node's proxy
        is bypassed.

        Args:
            arrival: the arriving key.
            ahead: the arrivals received after it.
        """
        key = arrival.key
        if len(self._made) + len(self._unmade) > MOST_REMEMBERED:
            self._made, self._unmade = set(), set()
        if key in self._awaited or key in self._unmade:
            self._awaited.discard(key)
            self._unmade.discard(key)
            return ()
        found = {key: arrival}
        for further in ahead:
            if further.key not in self._unmade:
                found.setdefault(further.key, further)
        self._awaited = found.keys() - {key}
        self._made |= found.keys()
        return tuple(found.values())
