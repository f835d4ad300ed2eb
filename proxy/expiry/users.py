"""Watch whether the server has users who may not do everything: only then are clients asked what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from proxy.expiry.caller import Caller
from proxy.expiry.tracker import Tracker
from proxy.session.rights import Users

log = structlog.get_logger("proxy.users")

AGAIN_SECONDS: Final = 1.0
"""How soon a user who is made, or loses rights, is noticed."""


class UserWatch:
    """The background look at the server's users.

    Args:
        caller: asks the server.
        tracker: knows whether it is reachable.
        users: what is kept current.

    Attributes:
        asked: set when the server has been asked for the first time, well or not.
    """

    def __init__(self, caller: Caller, tracker: Tracker, users: Users) -> None:
        self.asked = asyncio.Event()
        self._caller = caller
        self._tracker = tracker
        self._users = users

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            if not self._tracker.connected.is_set():
                self._users.unlimited = False
                await self._tracker.connected.wait()
            try:
                lines = await self._caller.users()
                self._users.take(
                    frozenset(map(_name, lines)),
                    unlimited=all_unlimited(lines),
                    by_database=any(b"db=" in line for line in lines),
                )
            except Exception as error:  # noqa: BLE001 - whatever it is: then every client is asked
                self._users.unlimited = False
                log.debug("cannot list users", error=str(error))
            self.asked.set()
            await asyncio.sleep(AGAIN_SECONDS)


def all_unlimited(lines: Iterable[bytes]) -> bool:
    """Return whether every user may run every command on every key; one who is off may still have connections.

    Args:
        lines: the reply to ACL LIST.
    """
    return not any(map(_is_limited, lines))


def _name(line: bytes) -> bytes:
    return line.split(maxsplit=2)[1]  # user, name, on or off, …


def _is_limited(line: bytes) -> bool:
    words = line.split()
    return not {b"~*", b"+@all"}.issubset(words) or any(word.startswith(b"-") for word in words)
