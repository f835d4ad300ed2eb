"""Give memory back to the system that large requests took: else the allocator may keep it for ever."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

LARGE: Final = 8 * 1024 * 1024
"""Bytes that have to become free for that to be worth the time."""

_SOON: Final = 0.1
"""Seconds after which what held them has gone, too."""


class Heap:
    """What the process has from the system.

    Only the C library of GNU keeps so much, and has a call for it; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._is_due = False
        self._freed = 0  # since it was last done

    def freed(self, size: int) -> None:
        """Note that so many bytes are about to become free."""
        self._freed += size
        if self._freed >= LARGE and self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_SOON, self._give_back)

    def _give_back(self) -> None:
        self._is_due = False
        self._freed = 0
        assert self._trim is not None
        self._trim(0)
