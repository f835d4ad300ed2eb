"""Block signals while there are no handlers for them: while the program loads, and while it exits.

Its tests: tests/test_lifecycle.py.

Unblocked, SIGHUP would end the process, SIGINT would print a traceback, SIGTERM would be lost in the first process of a
container, and each of them would replace the exit status.
"""

from __future__ import annotations

import signal
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Block the signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


class StoppedError(Exception):
    """The process was told to stop while signals were blocked."""


def check() -> None:
    """Check whether the process has been told to stop. Loops that wait while signals are blocked call this.

    Raises:
        StoppedError: the process has been told to stop.
    """
    if not signal.sigpending().isdisjoint((signal.SIGTERM, signal.SIGINT)):
        raise StoppedError


def release() -> None:
    """Unblock the signals and deliver pending ones. Harmless if they are not blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
