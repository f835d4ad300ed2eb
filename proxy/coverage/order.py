"""The slots of a cluster node, ordered by earliest deadline. Each slot has its own index.

Its tests: tests/test_slot_order.py.
"""

from __future__ import annotations

import heapq
import math


class SlotOrder:
    """Keeps the earliest deadline of each slot's index, in Unix ms, and finds the slots whose deadline has passed."""

    def __init__(self) -> None:
        self._deadlines: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def put(self, number: int, deadline: float) -> None:
        """Note the earliest deadline of a slot; infinite if it has none."""
        if deadline == math.inf:
            self._deadlines.pop(number, None)
        elif self._deadlines.get(number) != deadline:
            self._deadlines[number] = deadline
            heapq.heappush(self._heap, (deadline, number))

    def clear(self) -> None:
        """Forget all."""
        self._deadlines.clear()
        self._heap.clear()

    @property
    def earliest(self) -> float:
        """The earliest deadline of all; infinite if there is none."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else math.inf

    def due(self, moment: float, most: int) -> list[int]:
        """Return at most `most` slots whose earliest deadline has passed at a moment, in Unix ms."""
        found = sorted((deadline, number) for number, deadline in self._deadlines.items() if deadline <= moment)
        return [number for _, number in found[:most]]

    def _drop_stale(self) -> None:
        heap, deadlines = self._heap, self._deadlines
        while heap and deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
