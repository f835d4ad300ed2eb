"""Reads of covered keys over a shared connection: one question a batch; late ones are asked for once more."""

from __future__ import annotations

import math
from collections.abc import Callable

from proxy.relay.port import Port, drop
from proxy.wire.frames import frames
from proxy.wire.guard import earliest_of, may_be_late


class BatchGuard:
    """Reads of covered keys that go over a shared connection together, behind the question when the next deadline is.

    Args:
        now: gives the server's clock, in Unix ms, the latest that it may be.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._earliest = math.inf
        self._scores: list[bytes] = []

    def hear(self, piece: bytes) -> None:
        """Take a piece of the answer. It is looked at when a reply comes, which is behind it."""
        self._scores.append(piece)

    def _is_late(self, beginning: bytes) -> bool:
        if self._scores:
            for reply in frames(b"".join(self._scores)):
                self._earliest = min(self._earliest, earliest_of(reply))
            self._scores.clear()
        return self._now() >= self._earliest and may_be_late(beginning)

    def watch(self, port: Port) -> Port:
        """Return what stands for a client's port: it passes a reply on, unless that has come too late."""
        watched, request = Port(drop), port.request
        begun = late = False

        def deliver(piece: bytes) -> None:
            nonlocal begun, late
            if not begun:
                begun, late = True, self._is_late(piece)
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
                port.busy = False
                port.lost()

        watched.busy = True
        watched.request = request
        watched.deliver, watched.settled, watched.unsent, watched.lost = deliver, settled, port.give_back, lost
        watched.backlog, watched.broke = port.backlog, port.broke
        watched.retire = lambda: None if late else port.retire()
        return watched
