"""Guarded reads over a shared connection: one request for the next deadline per batch; late reads are sent again.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Protocol

from proxy.relay.port import Port, drop
from proxy.wire.frames import frames
from proxy.wire.guard import earliest_of, earliest_of_all, may_be_late


class Line(Protocol):
    """The part of a shared connection that the guard uses."""

    def has_come(self, count: int) -> bool:
        """Return whether the next `count` replies have arrived completely."""

    def watch(self, count: int, replacement: Callable[[Port], Port]) -> None:
        """Replace each of the next `count` ports by what `replacement` returns for it."""


class BatchGuard:
    """Guards the reads of covered keys in a batch: a request for the next deadline is sent in front of the batch.

    Usually all replies arrive together with the deadline, and none is late. Then no reply is processed separately.

    Args:
        guarded: the ports whose requests read covered keys.
        count: the number of requests in the batch.
        line: the shared connection.
        now: returns the latest time that the server's clock can show, in Unix ms.
    """

    def __init__(self, guarded: Collection[Port], count: int, line: Line, now: Callable[[], float]) -> None:
        self._guarded = guarded
        self._count = count
        self._line = line
        self._now = now
        self._earliest = math.inf
        self._answers: list[bytes] = []

    def ask(self, questions: int) -> list[Port]:
        """Return the ports for the deadline requests in front of the batch; `questions`: how many there are."""
        asked = [Port(self._answers.append) for _ in range(questions)]
        asked[-1].settled = lambda: self._answered(min(map(earliest_of, frames(b"".join(self._answers)))))
        return asked

    def ask_first(self, hear: Callable[[float], None]) -> Port:
        """Return the port for the request for the database's next deadline; `hear` gets that deadline."""

        def settled() -> None:
            earliest = earliest_of_all(b"".join(self._answers))
            hear(earliest)
            self._answered(earliest)

        asked = Port(self._answers.append)
        asked.settled = settled
        return asked

    def _answered(self, earliest: float) -> None:
        self._earliest = earliest
        if not self._line.has_come(self._count) or self._now() >= earliest:
            self._line.watch(self._count, self._watch)

    def _watch(self, port: Port) -> Port:
        """Return a replacement for a client's port. A late reply is dropped, and its request given back."""
        if port not in self._guarded:
            return port
        watched, request = Port(drop), port.request
        begun = late = False

        def deliver(piece: bytes) -> None:
            nonlocal begun, late
            if not begun:
                begun, late = True, self._now() >= self._earliest and may_be_late(piece)
                if late:
                    port.give_back(request)
            if not late:
                port.deliver(piece)

        def settled() -> None:
            if not late:
                port.busy = False
                if port.settled is not None:
                    port.settled()

        def lost() -> None:
            if not late:
                port.lose()

        watched.busy = True
        watched.request = request
        watched.deliver, watched.settled, watched.returned, watched.lost = deliver, settled, port.give_back, lost
        watched.backlog, watched.broke = port.backlog, port.broke
        watched.retire = lambda: None if late else port.retire()
        return watched
