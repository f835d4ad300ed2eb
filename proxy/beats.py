"""Common times at which a process's background tasks wake, so that an idle process wakes rarely.

Its tests: tests/test_silence.py.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

_BEAT_MS: Final = 250
_PHASE_MS: Final = random.randrange(_BEAT_MS)  # noqa: S311 (the proxies of one server should not all query it at once)


def until_beat(seconds: float) -> float:
    """Return the seconds until the last beat within `seconds`; return `seconds` if there is no beat.

    The result is in whole ms, the loop's resolution. Otherwise tasks of one beat would wake one after the other.
    """
    now = round(asyncio.get_running_loop().time() * 1000)
    last = (now + int(seconds * 1000) - _PHASE_MS) // _BEAT_MS * _BEAT_MS + _PHASE_MS
    return (last - now) / 1000 if last > now else seconds
