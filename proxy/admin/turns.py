"""Limit the admin port's share of the event loop, which it shares with Redis clients.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_OTHERS: Final = 19
"""The admin port pauses this many times as long as a piece of work has taken."""

_MOST_OWED: Final = 0.2
"""Maximum pause after one piece of work, in seconds."""

_TICK_SECONDS: Final = 0.002
"""Shorter pauses are added up, because the loop's timers count whole ms."""


class Turns:
    """Runs one piece of work at a time, and pauses in between to limit its share of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free = 0.0  # when the pause ends, by the monotonic clock

    async def run(self, work: Callable[[], T]) -> T:
        """Wait for the end of the pause, then run a piece of work and return its result."""
        async with self._lock:
            if (owed := self._free - time.monotonic()) >= _TICK_SECONDS:
                await asyncio.sleep(owed)
            # CPU time: on a busy machine the wall clock would include other processes.
            began = time.thread_time()
            try:
                return work()
            finally:
                owed = min(_OTHERS * (time.thread_time() - began), _MOST_OWED)
                self._free = max(self._free, time.monotonic()) + owed
