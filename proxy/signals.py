"""Handle signals: stop, stop at once, reload certificates.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

import structlog

from proxy.held_signals import release

log = structlog.get_logger("proxy.server")

TO_STOP: Final = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """What signals have asked for. `listen` installs the handlers.

    Attributes:
        stop: set by the first SIGTERM or SIGINT, or when the proxy stops for another reason.
        relieved: whether the proxy stops because another process took over and continues to listen.
        before_end: functions to call when a second signal ends the process at once.
        reload: called on SIGHUP.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.relieved = False
        self._signalled = False
        self.before_end: list[Callable[[], None]] = []
        self.reload: Callable[[], None] = lambda: None

    def listen(self) -> None:
        """Install the signal handlers."""
        loop = asyncio.get_running_loop()
        for number in TO_STOP:
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())
        release()

    def _end(self) -> None:
        # Not `stop.is_set()`: the proxy may be stopping already, by the admin port or because a worker got this signal.
        if not self._signalled:
            self._signalled = True
            self.stop.set()
            return
        log.warning("stopped by a second signal")
        for work in self.before_end:
            work()
        # Nothing can delay `os._exit`. The kernel closes the connections; a guard process stops an embedded server.
        os._exit(1)
