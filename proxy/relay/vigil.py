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

PATIENT_SECONDS: Final = 30.0
"""How long a server may say nothing to a client that has ended, and of which no request can block, while it answers
others: it may let nobody write (CLIENT PAUSE)."""

READ_AT_ONCE: Final = 16 * 1024
"""Bytes that a server reads of a connection in each of its turns, at least."""

MOST_UNREAD: Final = 8 * 1024 * 1024
"""Bytes that a system keeps of a connection which nobody has read, at most."""

LITTLE: Final = 256 * 1024
SLOW: Final = 128 * 1024
SLOWEST: Final = 8 * 1024 * 1024
"""Bytes a second that something on the way may pass on slowly of what it has taken; of more than `LITTLE` so many."""


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

    @property
    def may_block(self) -> bool:
        """Whether a request may keep what follows it from running, or nothing tells that all has run."""

    @property
    def is_taken(self) -> bool:
        """Whether all has been sent, as far as this system knows."""

    def behind(self) -> int:
        """Return how many bytes have been sent since the request that may block, or in all."""

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
        host, now = self._host, asyncio.get_running_loop().time
        looks = int(host.ended)  # which the server may heed by itself
        before, since = -1, 0.0  # since when it has answered nothing
        try:
            while host.awaits:
                heard = host.heard()
                if looks or not host.has_ended:
                    await self._rest(looks)
                    if host.awaits:
                        host.note_silence(silent=host.heard() == heard)
                if not (host.awaits and host.has_gone()):
                    continue
                looks += 1
                if (progress := host.progress()) != before:
                    before, since = progress, now()
                if host.may_block or now() - since >= PATIENT_SECONDS:
                    if await self._is_idle():
                        host.give_up()
                        return
                    since = now()
        finally:
            host.vigil_ended()

    async def _rest(self, looks: int) -> None:
        """Wait until the next look, of which there have been so many since the client ended."""
        if looks:
            await asyncio.sleep(min(LOOK_SECONDS, FIRST_LOOK_SECONDS * 2 ** min(looks - 1, 10)))
        else:
            await asyncio.wait((self._ended,), timeout=LOOK_SECONDS)

    async def _is_idle(self) -> bool:
        """Tell a server in which a request of this client blocks from one that is busy, or has still to read.

        It answers others meanwhile, once in each of its turns, in which it reads a part of what its system has got.
        """
        host = self._host
        if not (host.is_heard and host.is_taken):
            return False
        before, behind = host.progress(), host.behind()
        await asyncio.sleep(min(min(behind, LITTLE) / SLOW + behind / SLOWEST, PATIENT_SECONDS))
        with suppress(OSError, TimeoutError):
            # What came before the first question has been read when the second is answered.
            for _ in range(2 + min(behind, MOST_UNREAD) // READ_AT_ONCE):
                if not host.awaits or host.progress() != before:
                    return False
                await host.round_trip()
            return host.awaits and host.is_heard and host.is_taken and host.progress() == before
        return False
