"""The known deadlines in order, for a proxy that has no one index to ask for what is due next."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Final

_SPARE: Final = 1024
"""Entries that are out of date before they are cleared away, at least."""


class DeadlineOrder:
    """Key → deadline, by deadline.

    Args:
        deadlines: the deadlines, in Unix ms. Whoever changes one there tells of it by `put`; those that are gone, or
            have changed since, are passed over.
    """

    def __init__(self, deadlines: Mapping[bytes, float]) -> None:
        self._deadlines = deadlines
        self._heap: list[tuple[float, bytes]] = []
        self._clear_away()

    def put(self, key: bytes, deadline: float) -> None:
        """Note a key's new deadline. O(log n); O(n) once in n calls."""
        heappush(self._heap, (deadline, key))
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE:
            self._clear_away()

    def due(self, moment: float, most: int) -> list[tuple[bytes, float]]:
        """Return, in order, keys whose deadlines have passed at a moment, with their deadlines; `most` of them."""
        found: list[tuple[float, bytes]] = []
        while len(found) < most and (first := self._first()) is not None and first[0] <= moment:
            entry = heappop(self._heap)
            if not found or entry != found[-1]:
                found.append(entry)
        for entry in found:
            heappush(self._heap, entry)
        return [(key, deadline) for deadline, key in found]

    @property
    def earliest(self) -> float:
        """The earliest deadline; infinite if there is none."""
        first = self._first()
        return float("inf") if first is None else first[0]

    def _first(self) -> tuple[float, bytes] | None:
        heap, deadlines = self._heap, self._deadlines
        while heap and deadlines.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def _clear_away(self) -> None:
        self._heap = [(deadline, key) for key, deadline in self._deadlines.items()]
        heapify(self._heap)
