"""Estimate the server's clock: every deadline is judged by it, so that several proxies agree.

Its tests: tests/test_clock.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

DRIFT: Final = 500e-6
"""How fast the server's clock and this machine's may drift apart: ms for each ms. Time services correct clocks by no
more. Faster drift looks like many small steps, each noticed with the next reply."""

_RESOLUTION_MS: Final = 0.001
"""The server reports its time in whole µs, rounded down."""


class ServerClock:
    """Bounds the present time of the server's clock.

    A reply with the server's time was made between two moments of this machine's monotonic clock. That gives bounds for
    the offset between the clocks, as far apart as the round trip took. Bounds widen with age, by `DRIFT`; those from
    all replies hold at once. If a new reply contradicts earlier ones, the server's clock has been stepped, and only the
    new bounds count. This machine's wall clock is not used.
    """

    def __init__(self) -> None:
        self._at = self.local()
        # Until the first reply, assume that the machines' wall clocks agree.
        self._low = self._high = time.time() * 1000 - self._at
        self._listeners: list[Callable[[float], None]] = []
        self._answered = False
        self._stepped = -math.inf  # when the last step was noticed

    def now(self) -> float:
        """Return the most likely server time, in Unix ms."""
        return self.local() + (self._low + self._high) / 2

    def latest(self) -> float:
        """Return the latest possible server time, in Unix ms."""
        local = self.local()
        return local + self._high + DRIFT * (local - self._at)

    def doubt(self) -> float:
        """Return how far the server's time can be before `latest`, in ms."""
        return self._high - self._low + 2 * DRIFT * (self.local() - self._at)

    def observe(self, sent: float, received: float, server: float) -> None:
        """Take a reply into account, as soon as it has arrived.

        Args:
            sent: `local` when the request was sent.
            received: `local` when the reply had arrived.
            server: the server's clock at some moment between, in Unix ms.
        """
        drift = DRIFT * (received - sent)
        low, high = server - received - drift, server + _RESOLUTION_MS - sent + drift
        widened = DRIFT * (received - self._at)
        earlier_low, earlier_high = self._low - widened, self._high + widened
        if self._answered and low <= earlier_high and earlier_low <= high:
            self._low, self._high = max(low, earlier_low), min(high, earlier_high)
        elif sent < self._stepped:
            # Sent before the step was noticed, so the reply may be from before the step: ignore it.
            return
        else:
            step = (low + high - earlier_low - earlier_high) / 2
            self._low, self._high = low, high
            if self._answered:
                self._stepped = received
                for listener in self._listeners:
                    listener(step)
            self._answered = True
        self._at = received

    def restart(self) -> None:
        """Forget all earlier replies: the upstream is now another server with its own clock."""
        self._answered = False
        self._stepped = self.local()  # replies to earlier requests are from the old server

    def on_step(self, listener: Callable[[float], None]) -> None:
        """Call a function, with the step in ms, whenever the server's clock has been stepped."""
        self._listeners.append(listener)

    @staticmethod
    def local() -> float:
        """Return this machine's monotonic clock, in ms."""
        return time.monotonic() * 1000
