"""Looks after a client of which something waits for replies: it may end, and the server never come to that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

LOOK_SECONDS: Final = 1.0
"""How often to look whether the client has gone: its socket may not be read."""

FIRST_LOOK_SECONDS: Final = 0.02
"""How long to wait before looking again at a client that has ended; twice as long each time, up to `LOOK_SECONDS`."""


class Host(Protocol):
    """What looking after a client needs of its connection."""

    @property
    def awaits(self) -> bool:
        """Whether something of the client's waits for replies, which take as long as the server likes."""

    @property
    def ended(self) -> bool:
        """Whether the server has been told of the client's end."""

    @property
    def has_ended(self) -> bool:
        """Whether the client has ended its side, as far as is known without a look at its socket."""

    def has_gone(self) -> bool:
        """Return whether the client has ended its side."""

    @property
    def is_heard(self) -> bool:
        """Whether what the server says is read."""

    def heard(self) -> int:
        """Return a number that changes when the server says something."""

    def progress(self) -> int:
        """Return a number that changes when the server answers."""

    async def round_trip(self) -> None:
        """Wait until the server has answered the proxy. Raises ConnectionError or TimeoutError, bounded in time."""

    def note_silence(self, *, silent: bool) -> None:
        """Note whether the server has said nothing since the last look."""

    def vigil_ended(self) -> None:
        """Note that the client is looked after no more."""

    def give_up(self) -> None:
        """Tell the server of the end, whatever of the client's is still to be sent: the server does not come to it."""


class Vigil:
    """Looks after one client, whatever its state waits for, until it awaits nothing any more.

    Args:
        host: the client's connection.
        start: starts a task of it.
    """

    def __init__(self, host: Host, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._host = host
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = start(self._keep())

    def note_end(self) -> None:
        """Note that the client has ended: what others bring from now on is not to be that client's."""
        if not self._ended.done():
            self._ended.set_result(None)

    def end(self) -> None:
        """Look no more."""
        self._task.cancel()

    async def _keep(self) -> None:
        host = self._host
        looks = int(host.ended)  # which the server may heed by itself
        try:
            while host.awaits:
                heard = host.heard()
                if looks or not host.has_ended:
                    await self._rest(looks)
                    if host.awaits:
                        host.note_silence(silent=host.heard() == heard)
                if host.awaits and host.has_gone():
                    if await self._blocks():
                        host.give_up()
                        return
                    looks += 1
        finally:
            host.vigil_ended()

    async def _rest(self, looks: int) -> None:
        """Wait until the next look, of which there have been so many since the client ended."""
        if looks:
            await asyncio.sleep(min(LOOK_SECONDS, FIRST_LOOK_SECONDS * 2 ** min(looks, 10)))
        else:
            await asyncio.wait((self._ended,), timeout=LOOK_SECONDS)

    async def _blocks(self) -> bool:
        """Tell a server that is busy, or still sends replies, from one in which a request of this client blocks."""
        host = self._host
        before = host.progress()
        with suppress(OSError, TimeoutError):
            for _ in range(2):  # what came before the first question has been read when the second is answered
                await host.round_trip()
            return host.awaits and host.is_heard and host.progress() == before
        return False
