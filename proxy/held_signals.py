"""Hold signals that come while the program loads, until it can handle them.

Its tests: tests/test_lifecycle.py.

Otherwise SIGHUP would end it, SIGINT would print a traceback, and SIGTERM would be lost in the first process of a
container.
"""

from __future__ import annotations

import signal
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Hold signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Deliver held signals and stop holding. Harmless if none are held."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
