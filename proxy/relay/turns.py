"""Let connections with requests left to judge take turns, and serve sockets in between.

Its tests: tests/test_turns.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.session.turns import Turns

_SECONDS: Final = 0.01
"""How long turns run before sockets are served. A client with few requests waits about that long."""


class TurnQueue:
    """The queue of connections that wait for their turn.

    Args:
        turns: gets the length of the queue.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._queue: deque[Callable[[], None]] = deque()
        self._answered: deque[Callable[[], None]] = deque()
        self._lanes = self._answered, self._queue  # the queue of this turn, and that of the next
        self._runs = False

    @property
    def is_busy(self) -> bool:
        """Whether any connection waits."""
        return bool(self._queue or self._answered)

    def join(self, work: Callable[[], None], *, answered: bool = False) -> None:
        """Call a function after those in front have had their turns.

        `answered`: whether the function continues a request whose question the engine has just answered. Every second
        turn is for such requests, so that the answer does not become outdated.
        """
        (self._answered if answered else self._queue).append(work)
        self._turns.waiting += 1
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        turns, end = self._turns, time.monotonic() + _SECONDS
        first, second = self._lanes
        try:
            for _ in range(len(first) + len(second)):  # one turn for each client that waits now
                turns.waiting -= 1
                work = (first or second).popleft()
                self._lanes = first, second = second, first
                work()
                if time.monotonic() >= end:
                    break
        finally:
            self._runs = self.is_busy
            if self._runs:
                asyncio.get_running_loop().call_soon(self._run)
