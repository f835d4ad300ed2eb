"""Bound the admin port's share of the event loop, which belongs to Redis clients.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_OTHERS: Final = 19
"""After a piece of work the admin port leaves the loop to others for so many times as long: scrapes, and all else."""

_MOST_OWED: Final = 0.2
"""Seconds for which it is left to them after one piece at most."""

_TICK_SECONDS: Final = 0.002
"""What is owed to others is paid from so much on: the loop's timers count whole ms."""


class Turns:
    """Runs one piece of work at a time, and keeps what they take of the event loop within a share."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free = 0.0  # when the others have had their time, by the monotonic clock

    async def run(self, work: Callable[[], T]) -> T:
        """Wait until the others have had their time, then run a piece of work and return its result."""
        async with self._lock:
            if (owed := self._free - time.monotonic()) >= _TICK_SECONDS:
                await asyncio.sleep(owed)
            # CPU time: on a busy machine the wall clock would count what others do.
            began = time.thread_time()
            try:
                return work()
            finally:
                owed = min(_OTHERS * (time.thread_time() - began), _MOST_OWED)
                self._free = max(self._free, time.monotonic()) + owed
