"""Watch a client that waits for replies: it may disconnect although the server never gets to its requests.

Its tests: tests/test_vigil.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from proxy.relay.inspection import Doing
from proxy.relay.progress import Progress
from proxy.relay.state import Course

LOOK_SECONDS: Final = 1.0
"""How often to check whether the client has gone: the proxy may not be reading from it."""

FIRST_LOOK_SECONDS: Final = 0.02
"""How long to wait before a disconnected client is checked again; doubled each time, up to `LOOK_SECONDS`."""

PATIENT_SECONDS: Final = 30.0
"""How long a server that answers others may send nothing to a disconnected client if no request of the client blocks:
CLIENT PAUSE may be on."""

LONGEST_SECONDS: Final = 120.0
"""The same limit if the server keeps sending messages, but reports that it has nothing to do for the client."""

READ_AT_ONCE: Final = 16 * 1024
"""Minimum number of bytes that a server reads from a connection in each cycle of its event loop."""

MOST_UNREAD: Final = 8 * 1024 * 1024
"""Maximum number of unread bytes that a system buffers for a connection."""

LITTLE: Final = 256 * 1024
SLOW: Final = 128 * 1024
SLOWEST: Final = 8 * 1024 * 1024
"""The slowest rate, in bytes per second, at which a middlebox may deliver what it has buffered: the first `LITTLE`
bytes at `SLOW`, then all others at `SLOWEST`."""


class Host(Protocol):
    """The part of a client's connection that the vigil uses."""

    @property
    def awaits(self) -> bool:
        """Whether the client's requests, or its half close, wait for replies without a time limit."""

    def has_gone(self) -> bool:
        """Return whether the client has closed its side."""

    async def round_trip(self) -> None:
        """Wait until the server has answered the proxy. Raises ConnectionError or TimeoutError, in limited time."""

    async def doing(self) -> Doing:
        """Return what the server does for the client, in limited time."""

    def note_silence(self, *, silent: bool) -> None:
        """Record whether the server has been silent since the last check."""

    def vigil_ended(self) -> None:
        """Note that the vigil is over."""

    def give_up(self) -> None:
        """Close the server's side and drop unsent requests: the client has gone, and the server would not run them."""


class Vigil:
    """Watches one client until it no longer waits for a reply.

    Args:
        host: the client's connection.
        course: the connection's state.
        progress: estimates how far the server has got.
        start: starts a task of the connection.
    """

    def __init__(
        self,
        host: Host,
        course: Course,
        progress: Progress,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._host = host
        self._course = course
        self._progress = progress
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = start(self._keep())

    def note_end(self) -> None:
        """Note that the client has closed its side, and check at once."""
        if not self._ended.done():
            self._ended.set_result(None)

    def end(self) -> None:
        """Stop watching."""
        task, self._task = self._task, None  # breaks a reference cycle by way of the traceback
        if task is not None:
            task.cancel()

    async def _keep(self) -> None:
        host, course, progress = self._host, self._course, self._progress
        now = asyncio.get_running_loop().time
        rests_first = course.ended  # the last requests may have been sent just now: give the server a moment first
        looks = 0
        before, since = -1, 0.0  # the last value of `answered`, and since when to be patient
        last, quiet = -1, 0.0  # the last value of `heard`, and since when it has not changed
        stood = 0.0  # since when `answered` has not changed
        try:
            while host.awaits:
                heard = progress.heard()
                if looks or not course.has_left:
                    await self._rest(looks)
                    if host.awaits:
                        host.note_silence(silent=progress.heard() == heard)
                if not (host.awaits and host.has_gone()):
                    continue
                looks += 1
                if looks == 1:
                    if progress.may_block and await self._is_blocked():
                        host.give_up()
                        return
                    if rests_first:
                        continue
                if (answered := progress.answered()) != before:
                    before, since = answered, now()
                    stood = since
                if (heard := progress.heard()) != last:
                    last, quiet = heard, now()
                if progress.may_block or now() - since >= PATIENT_SECONDS:
                    if await self._is_idle() and await self._is_stuck(answered, stood, quiet):
                        host.give_up()
                        return
                    if not progress.may_block:
                        since = now()
        finally:
            host.vigil_ended()

    async def _is_blocked(self) -> bool:
        """Return whether the server reports that a request of the client blocks, and little has been sent behind it.

        If so, the server would drop the requests behind it when a direct client leaves. Until the server hears of the
        end, it may give this client an element that another should get.
        """
        host, progress = self._host, self._progress
        before = progress.answered()
        if not (progress.is_heard and progress.is_taken) or progress.behind() > READ_AT_ONCE:
            return False
        with suppress(OSError, TimeoutError):
            await host.round_trip()
            if host.awaits and progress.answered() == before and await host.doing() is Doing.BLOCKED:
                return host.awaits and progress.answered() == before and progress.is_taken
        return False

    async def _is_stuck(self, answered: int, since: float, quiet: float) -> bool:
        """Return whether a server that seems idle will do nothing more for the client.

        During a long reply, or after a lost packet, a busy server may look idle. So the proxy queries it. If the server
        does not report what it does for this client, the proxy assumes that the server is idle.

        Args:
            answered: the value of `Progress.answered` before the server seemed idle.
            since: since when `answered` has not changed, by the loop's clock.
            quiet: since when nothing at all has come from the server.
        """
        host, progress = self._host, self._progress
        doing = await host.doing()
        if not host.awaits or progress.answered() != answered or not progress.is_taken:
            return False
        if doing in (Doing.REPLYING, Doing.SILENT):
            return False
        if doing is Doing.NOTHING and not progress.unsigned:
            now = asyncio.get_running_loop().time()
            return now - quiet >= PATIENT_SECONDS or now - since >= LONGEST_SECONDS
        return True

    async def _rest(self, looks: int) -> None:
        """Wait until the next check; `looks`: the number of checks since the client closed its side."""
        if looks:
            await asyncio.sleep(min(LOOK_SECONDS, FIRST_LOOK_SECONDS * 2 ** min(looks - 1, 10)))
        else:
            await asyncio.wait((self._ended,), timeout=LOOK_SECONDS)

    async def _is_idle(self) -> bool:
        """Return whether a request of this client seems to block in the server: False if the server is busy or still
        reading.

        A server with a blocked client still answers others. In each cycle of its event loop it answers the proxy once,
        and reads part of what its system has received.
        """
        host, progress = self._host, self._progress
        if not (progress.is_heard and progress.is_taken):
            return False
        before, behind = progress.answered(), progress.behind()
        if progress.drops:
            await asyncio.sleep(min(min(behind, LITTLE) / SLOW + behind / SLOWEST, PATIENT_SECONDS))
        with suppress(OSError, TimeoutError):
            # When the second round trip ends, the server has read the bytes that arrived before the first.
            for _ in range(2 + min(behind, MOST_UNREAD) // READ_AT_ONCE):
                if not host.awaits or progress.answered() != before:
                    return False
                await host.round_trip()
            return host.awaits and progress.is_heard and progress.is_taken and progress.answered() == before
        return False
