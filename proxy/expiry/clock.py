"""Estimate the server's clock: every deadline is judged by that clock, so that several proxies agree.

Its tests: tests/test_clock.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

DRIFT: Final = 500e-6
"""Maximum assumed drift between the server's clock and this machine's, in ms per ms. Time services slew clocks no
faster than this. Faster drift looks like many small steps, each noticed with the next reply."""

_RESOLUTION_MS: Final = 0.001
"""The server reports its time in whole µs, rounded down."""


class ServerClock:
    """Bounds the current time of the server's clock.

    The server reads its clock after the request is sent and before the reply arrives. The proxy notes when it sends the
    request and when it gets the reply, by this machine's monotonic clock. So the offset between the two clocks is known
    to within the round-trip time. The bounds widen with age, by `DRIFT`; each reply narrows them. A reply that
    contradicts earlier ones shows that the server's clock has been stepped: then only the new bounds count. After the
    first reply, this machine's wall clock has no influence.
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
        """Return how far the server's time may lie before `latest`, in ms."""
        return self._high - self._low + 2 * DRIFT * (self.local() - self._at)

    def observe(self, sent: float, received: float, server: float) -> None:
        """Update the bounds from a reply. Call this as soon as the reply has arrived.

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
            # The request was sent before the step was noticed, so its reply may be older than the step: ignore it.
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
