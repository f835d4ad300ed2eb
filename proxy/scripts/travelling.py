"""Keys of cluster slots on their way, grouped by slot, so that a slot's keys can be dropped together.

Its tests: tests/test_cluster_details.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


class Travelling:
    """A set of keys, grouped by slot."""

    __slots__ = ("_keys", "_slots")

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._slots: dict[int, set[bytes]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, number: int, keys: Iterable[bytes]) -> None:
        """Add keys of a slot."""
        found = set(keys)
        self._keys |= found
        self._slots.setdefault(number, set()).update(found)

    def keep(self, numbers: Set[int]) -> None:
        """Drop all keys except those of some slots."""
        for number in self._slots.keys() - numbers:
            self._keys -= self._slots.pop(number)
