"""Import modules with garbage collection off: there is no garbage, and looking for it takes a tenth of the time.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Turn garbage collection off while modules are imported."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
