"""Import modules with garbage collection off: imports leave no garbage, and collecting takes a tenth of their time.

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
