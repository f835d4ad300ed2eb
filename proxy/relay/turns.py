"""Give connections that have more to be judged their turns one after another, and look at the sockets in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.session.turns import Turns

_SECONDS: Final = 0.01
"""How long turns are given before the sockets are looked at: about so long does a client wait that sends little."""


class TurnQueue:
    """Those that wait for their turn.

    Args:
        turns: is told how many they are.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._queue: deque[Callable[[], None]] = deque()
        self._runs = False

    @property
    def is_busy(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queue)

    def join(self, work: Callable[[], None]) -> None:
        """Have something done when those before it have had their turns."""
        self._queue.append(work)
        self._turns.waiting += 1
        if not self._runs:
            self._runs = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        queue, turns, end = self._queue, self._turns, time.monotonic() + _SECONDS
        try:
            for _ in range(len(queue)):  # nobody gets two turns
                turns.waiting -= 1
                queue.popleft()()
                if time.monotonic() >= end:
                    break
        finally:
            self._runs = bool(queue)
            if queue:
                asyncio.get_running_loop().call_soon(self._run)
