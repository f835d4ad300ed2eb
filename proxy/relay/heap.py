"""Return the memory of large requests to the system: the allocator might keep it forever.

Its tests: tests/test_memory.py.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

LARGE: Final = 8 * 1024 * 1024
"""Once this many bytes have been freed, trimming the heap is worth the time."""

_SOON: Final = 0.1
"""Seconds to wait before trimming, until the objects that held the bytes are gone."""


class Heap:
    """Returns free memory to the system, if the C library is GNU's: others keep little."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._is_due = False
        self._freed = 0  # bytes freed since the heap was last trimmed

    def note_freeing(self, size: int) -> None:
        """Count bytes that the caller is about to free; once they reach `LARGE`, trim the heap soon."""
        self._freed += size
        if self._freed >= LARGE and self._trim is not None and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_SOON, self._give_back)

    def _give_back(self) -> None:
        self._is_due = False
        self._freed = 0
        assert self._trim is not None
        self._trim(0)
