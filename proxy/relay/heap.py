"""Give memory of large requests back to the system: the allocator might keep it for ever.

Its tests: tests/test_memory.py.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

LARGE: Final = 8 * 1024 * 1024
"""Bytes that must have become free before it is worth the time."""

_SOON: Final = 0.1
"""Seconds to wait, until the objects that held them have gone too."""


class Heap:
    """Returns free memory to the system. Does nothing except with GNU's C library, which alone keeps so much."""

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
