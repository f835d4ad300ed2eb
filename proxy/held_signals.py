"""Signals that come while the program is loaded: they wait until it can take them.

Else SIGHUP would end it, SIGINT print a traceback, and SIGTERM be lost where it is the first process of a container.
"""

from __future__ import annotations

import signal
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold() -> None:
    """Let signals wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Take those that have waited, and those to come. Harmless where none are held."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
