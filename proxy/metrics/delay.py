"""Measure how late the event loop runs timers. Requests wait about as long.

Its tests: tests/test_metrics.py.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from proxy.metrics.kinds import Histogram

EVERY_SECONDS: Final = 1.0


async def watch_delay(histogram: Histogram) -> None:
    """Set a timer each second and record its delay, until cancelled."""
    while True:
        due = time.monotonic() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        histogram.observe(max(0.0, time.monotonic() - due))
