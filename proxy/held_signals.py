"""Block signals while the program loads, until there are handlers for them.

Its tests: tests/test_lifecycle.py.

Otherwise SIGHUP would end the process, SIGINT would print a traceback, and SIGTERM would be lost in the first process
of a container.
"""

from __future__ import annotations

import signal
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Block the signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Unblock the signals and deliver pending ones. Harmless if they are not blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
