"""Tell systemd the proxy's state: started, alive, stopping (sd_notify, without its library).

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
    """The socket that systemd gives a service of `Type=notify`; without one, everything here does nothing.

    Args:
        environment: the process's. The variables are removed from it, so that no child process speaks for this one.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        every, pid = (environment.pop(name, "") for name in _WATCHDOG)
        # A name that begins with @ is an abstract one: no file.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        meant = pid in ("", str(os.getpid())) and every.isascii() and every.isdecimal()
        self._watchdog = int(every) / 1e6 if address and meant else 0.0
        self._status = ""

    def ready(self) -> None:
        """Say that the start is over."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Say that it is about to end."""
        self._send("STOPPING=1", "STATUS=draining")

    async def run(self, status: Callable[[], str], is_alive: Callable[[], bool] = lambda: True) -> None:
        """Say that the event loop is alive, twice in the interval asked for, and tell the status when it changes.

        Args:
            status: returns it, on one line.
            is_alive: returns whether all else that has to be alive is.
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
        # A system that does not listen must not hold up the proxy, or end it: it has its own time limits.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto("\n".join(words).encode("utf-8", "backslashreplace"), self._address)
