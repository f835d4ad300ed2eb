"""Report the proxy's state to systemd: started, alive, stopping (sd_notify, without its library).

Its tests: tests/test_systemd.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, MutableMapping
from typing import Final

_STATUS_SECONDS: Final = 1.0
_WATCHDOG: Final = ("WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Notifies systemd over the socket of a `Type=notify` service; does nothing if there is no such socket.

    Args:
        environment: the process's environment. systemd's variables are removed, so that no child process uses them.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        every, pid = (environment.pop(name, "") for name in _WATCHDOG)
        # A name that begins with @ denotes an abstract socket.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        meant = pid in ("", str(os.getpid())) and every.isascii() and every.isdecimal()
        self._watchdog = int(every) / 1e6 if address and meant else 0.0
        self._status = ""

    def ready(self) -> None:
        """Report that startup is complete."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the process is about to exit."""
        self._send("STOPPING=1", "STATUS=draining")

    async def run(self, status: Callable[[], str], is_alive: Callable[[], bool] = lambda: True) -> None:
        """Send keep-alives at half the requested interval, and the status whenever it changes.

        Args:
            status: returns the status, as one line.
            is_alive: returns whether the rest of the proxy is alive; if not, no keep-alive is sent.
        """
        if not self._address:
            return
        every = min(_STATUS_SECONDS, self._watchdog / 2 or _STATUS_SECONDS)
        while True:
            words = ["WATCHDOG=1"] if self._watchdog and is_alive() else []
            if (now := status()) != self._status:
                self._status = now
                words.append(f"STATUS={now}")
            if words:
                self._send(*words)
            await asyncio.sleep(every)

    def _send(self, *words: str) -> None:
        if not self._address:
            return
        # A systemd that does not respond must not delay or end the proxy. systemd has its own timeouts.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto("\n".join(words).encode("utf-8", "backslashreplace"), self._address)
