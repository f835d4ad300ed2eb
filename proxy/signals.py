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
    """What signals have asked for. Handles none until `listen`.

    Attributes:
        stop: set by the first SIGTERM or SIGINT, and when the proxy has another reason to end.
        relieved: whether that is another process that has taken this one's place, so that others go on listening.
        before_end: functions to call when a second one ends the process at once.
        reload: called on SIGHUP.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.relieved = False
        self._signalled = False
        self.before_end: list[Callable[[], None]] = []
        self.reload: Callable[[], None] = lambda: None

    def listen(self) -> None:
        """Take the signals of the process."""
        loop = asyncio.get_running_loop()
        for number in TO_STOP:
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())
        release()

    def _end(self) -> None:
        # It may be stopping already: because of the admin port, or of a worker that got the same signal.
        if not self._signalled:
            self._signalled = True
            self.stop.set()
            return
        log.warning("stopped by a second signal")
        for work in self.before_end:
            work()
        # Nothing can hold this up. The kernel closes the connections; the guard of an embedded server ends it.
        os._exit(1)
