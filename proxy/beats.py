"""Moments at which the background tasks of a process wake together: so one that has nothing to do wakes seldom."""

from __future__ import annotations

import asyncio
import random
from typing import Final

_BEAT_MS: Final = 250
_PHASE_MS: Final = random.randrange(_BEAT_MS)  # noqa: S311 (proxies of one server need not ask it all at once)


def until_beat(seconds: float) -> float:
    """Return how long it is until the last beat within a time; where there is none, that time.

    In whole ms, as the loop counts: else two would wake one after the other.
    """
    now = round(asyncio.get_running_loop().time() * 1000)
    last = (now + int(seconds * 1000) - _PHASE_MS) // _BEAT_MS * _BEAT_MS + _PHASE_MS
    return (last - now) / 1000 if last > now else seconds
