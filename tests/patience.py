"""How long tests wait for what has to come: on a busy machine long, but a deliberate break has not to be waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_at_most: float | None = None


def patience(seconds: float) -> float:
    """Return how long to wait for something that may take so many seconds."""
    return seconds if _at_most is None else min(seconds, _at_most)


@contextmanager
def impatience(seconds: float) -> Iterator[None]:
    """Wait for nothing longer than so many seconds, in all threads."""
    global _at_most
    _at_most = seconds
    try:
        yield
    finally:
        _at_most = None
