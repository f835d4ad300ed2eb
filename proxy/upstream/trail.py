"""Find out whether the upstream leads back to this proxy, through any names, port mappings and other proxies.

Its tests: tests/test_circles.py.

Each proxy sends a random name to its upstream, in a request that a server treats as an ordinary PING. A proxy that
cannot serve clients yet looks for such names in clients' first bytes and forwards them; so does every proxy in a
circle. A proxy that receives its own name is its own upstream.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

from proxy.wire.request import encode

_MARK: Final = b"expiremember-proxy:"
_NAMES: Final = re.compile(rb"\*2\r\n\$4\r\nPING\r\n\$\d{2,3}\r\n%b([0-9a-f]{32}(?:,[0-9a-f]{32})*)\r\n" % _MARK)

_MOST: Final = 8
"""How many other proxies' names to forward: circles are smaller, and anyone may send names."""

_SECONDS: Final = 5.0
"""How long to forward a name: a proxy in a circle sends its own name every second."""


class Trail:
    """The names that are sent to the upstream.

    Args:
        name: this proxy's name, shared by its workers: 32 hexadecimal digits.

    Attributes:
        met: set when the proxy's own name has come back.
        heard: called when another proxy's name has arrived and must be forwarded.
    """

    def __init__(self, name: str) -> None:
        self.met = asyncio.Event()
        self.heard: Callable[[], None] = lambda: None
        self._name = name.encode()
        self._others: dict[bytes, float] = {}

    def request(self) -> bytes:
        """Return the request to send to the upstream."""
        self._forget()
        return encode((b"PING", _MARK + b",".join((self._name, *self._others))))

    def read(self, early: bytes) -> None:
        """Look for names in the first bytes of a client that cannot be served yet."""
        found = _NAMES.fullmatch(early)
        if found is None:
            return
        names = found[1].split(b",")
        if self._name in names:
            self.met.set()
            return
        self._forget()
        fresh = [name for name in names if name not in self._others][: max(0, _MOST - len(self._others))]
        now = time.monotonic()
        self._others.update(dict.fromkeys([*fresh, *(name for name in names if name in self._others)], now))
        if fresh:
            self.heard()

    def _forget(self) -> None:
        horizon = time.monotonic() - _SECONDS
        self._others = {name: moment for name, moment in self._others.items() if moment > horizon}
