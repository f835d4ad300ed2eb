"""Format numbers and times for people. The page's script uses the same rules.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

import time
from typing import Final

UNKNOWN: Final = "—"


def number(value: float | None) -> str:
    """Format a number, such as `12,345`. A fraction below ten gets one decimal."""
    if value is None:
        return UNKNOWN
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def duration(seconds: float | None) -> str:
    """Format a duration, such as `0.3 ms`."""
    if seconds is None:
        return UNKNOWN
    for factor, unit, limit in ((1000, "ms", 0.9995), (1, "s", 60), (1 / 60, "min", 3600), (1 / 3600, "h", 86400)):
        if seconds < limit:
            return f"{_short(seconds * factor)} {unit}"
    return f"{_short(seconds / 86400)} d"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def clock(moment: float) -> str:
    """Format a Unix time as the time of day, in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(moment)) + " UTC"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun, such as `2 keys`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
