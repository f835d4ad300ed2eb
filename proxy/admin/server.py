"""The admin port's server, with limits on connections, time and its share of the event loop.

Its tests: tests/test_admin.py.

The admin port shares the event loop with Redis clients, so it uses at most a tenth of the time, whatever it receives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import socket
import time
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog

from proxy.admin.http import READ, BadRequestError, Conversation, Request, Response, State
from proxy.admin.pages import Answer, Pages
from proxy.admin.turns import Turns
from proxy.listen.given import Given
from proxy.listen.header import until_readable
from proxy.listen.sockets import SocketFile, bind, bind_path, clear_socket, why_not
from proxy.listen.succession import Succession
from proxy.logs import Seldom
from proxy.loop import look_up
from proxy.settings import SettingsError, parse_address

log = structlog.get_logger("proxy.admin")

MOST: Final = 16
"""Maximum number of connections. A further connection replaces the one that has waited longest for a request."""

MOST_SCRAPES: Final = 8
"""Maximum number of concurrent scrapes. The other connections are left to probes."""

YOUNG_SECONDS: Final = 0.02
"""How long a new connection may wait for its first request before it can be closed to make room."""

REQUEST_SECONDS: Final = 5.0
"""How long a request may take to arrive, and how long the peer may take to read the response."""

IDLE_SECONDS: Final = 75.0
"""How long an idle connection is kept: longer than the usual scrape interval."""

LINGER_SECONDS: Final = 1.0
"""How long a peer may take to read the last response. Once another process serves, this also limits the time to
prepare that response."""

LOOK_SECONDS: Final = 0.05
"""How long to wait for requests that were sent before another process took over: many iterations of the loop."""

_PREPARED: Final = object()
_BACKLOG: Final = 64
_PAUSE_SECONDS: Final = 0.2
"""How long to stop accepting after a failure."""


class AdminServer:
    """The server of the admin port.

    Args:
        address: where to listen, as in the settings.
        pages: answers requests.
    """

    def __init__(self, address: str, pages: Pages) -> None:
        self._address = address
        self._pages = pages
        # Scrapes have turns of their own, so that probes never wait for them.
        self._turns, self._scrapes = Turns(), Turns()
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._file: SocketFile | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], float] = {}  # connection → since when it has waited for a request
        self._scraping = 0  # number of scrapes being answered
        self._is_crowded = False  # whether a new connection waits for room
        self._say_failed = Seldom(log.error, "cannot accept connections on the admin port")
        self._say_internal = Seldom(log.error, "admin connection closed: internal error")

    async def open(self, succession: Succession) -> None:
        """Start to listen.

        Args:
            succession: gives the socket if another proxy had it, and hands it on later. The other proxy accepts
                connections on the socket until `alone` is set.

        Raises:
            SettingsError: the address cannot be listened on.
        """
        where = parse_address(self._address)
        given = succession.given
        there = given.admin.pop(self._address, None) if given is not None else None
        keeps_files = given is None or given.keeps_files
        marks = given.marks.pop(self._address, None) if given is not None and there is not None else None
        self._path = where if isinstance(where, Path) else None
        succession.offer.append(partial(self._offer, keeps_files))
        succession.at_release.append(self.release)
        try:
            if there is not None:
                self._listener = there
            elif isinstance(where, Path):
                await clear_socket(where)
                self._listener = bind_path(where)
            else:
                self._listener = bind(await look_up(where.host, where.port))
            if self._path is not None and (marks is not None or there is None):
                self._file = succession.file(self._path, marks)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            raise SettingsError(f"admin: cannot listen on {self._address}: {why_not(error)}") from None
        self._accepting = asyncio.get_running_loop().create_task(
            self._accept(None if there is None else succession.alone)
        )
        log.info("admin port open", address=self._name())

    def _name(self) -> str:
        assert self._listener is not None
        if self._path is not None:
            return f"unix://{self._path}"
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _offer(self, keeps_files: bool) -> Given:
        given = Given(keeps_files=keeps_files)
        if self._listener is not None:
            given.admin[self._address] = self._listener
            if self._file is not None and self._file.marks is not None:
                given.marks[self._address] = self._file.marks
        return given

    def release(self) -> None:
        """Leave the port to another process: stop accepting, but continue to serve open connections."""
        listener, self._listener = self._listener, None
        if self._accepting is not None and listener is not None:
            self._accepting.add_done_callback(lambda _: listener.close())  # once the loop no longer uses the socket
            self._accepting.cancel()

    def remove_path(self) -> None:
        """Remove the file of a Unix socket, and do nothing else: the process is about to end."""
        if self._file is not None:
            self._file.remove()

    async def close(self) -> None:
        """Stop listening, and close all connections. Harmless when not open.

        Requests that have been sent by now are still answered if another process has the port: they may be probes.
        """
        if self._listener is None and self._tasks:
            await self._see_off()
        tasks = [task for task in (self._accepting, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self.remove_path()

    async def _see_off(self) -> None:
        """Answer the requests that have been sent by now; do not wait for silent peers."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + LINGER_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        while loop.time() < give_up and (busy := [task for task in self._tasks if self._is_busy(task)]):
            # Look again now and then: a busy connection may become idle without ending.
            await asyncio.wait(busy, timeout=LOOK_SECONDS)

    def _is_busy(self, task: asyncio.Task[None]) -> bool:
        """Return whether a connection has a request that is being answered, or a response that is being read."""
        return not math.isfinite(self._waiting.get(task, -math.inf))

    # Connections.

    async def _accept(self, alone: asyncio.Event | None) -> None:
        listener = self._listener
        assert listener is not None
        if alone is not None:  # until then the other process serves the port
            await alone.wait()
        while True:
            # Make room before accepting: if this task ends meanwhile, another process can accept the connection.
            await until_readable(listener)
            await self._make_room()
            try:
                await self._turns.run(partial(self._begin, listener))
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                self._say_failed(error=error.strerror)
                await asyncio.sleep(_PAUSE_SECONDS)

    def _begin(self, listener: socket.socket) -> None:
        client, address = listener.accept()
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(client, _is_local(client, address)))
        self._tasks.add(task)
        self._waiting[task] = time.monotonic()
        task.add_done_callback(self._ended)

    async def _make_room(self) -> None:
        """While there are too many connections, close the one that has waited longest for a request."""
        while len(self._tasks) >= MOST:
            self._is_crowded = True
            longest = min(self._waiting, key=self._waiting.__getitem__, default=None)
            if longest is not None and self._waiting[longest] <= time.monotonic() - YOUNG_SECONDS:
                longest.cancel()
            # Wake up now and then: a busy connection may become idle, or a young connection old enough to close.
            await asyncio.wait(self._tasks, timeout=YOUNG_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        self._is_crowded = False

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say_internal(exc_info=error)

    async def _serve(self, client: socket.socket, is_local: bool) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client)
        except OSError:
            client.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await self._converse(reader, writer, is_local)
        finally:
            writer.close()
            loop.call_later(LINGER_SECONDS, transport.abort)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_local: bool) -> None:
        conversation, patience = Conversation(), REQUEST_SECONDS
        task = asyncio.current_task()
        assert task is not None
        while conversation.state is not State.OVER:
            request = await self._next_request(conversation, reader, patience, task)
            if request is None:
                break
            answer = await self._answer(conversation, request, is_local)
            if self._is_crowded or self._listener is None:
                conversation.close_after()  # others need the place of this connection, or the port is closing
            out = await self._turns.run(partial(conversation.respond, answer.response))
            if writer.is_closing():
                return
            writer.write(out)
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()
            if answer.then is not None:
                answer.then()
            self._waiting[task] = time.monotonic()
            patience = IDLE_SECONDS
        if writer.is_closing():
            return
        self._waiting[task] = -math.inf  # closed first when room is needed
        writer.write_eof()
        # Closing with unread input would reset the connection, and the peer would lose the response.
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(READ):
                pass

    async def _answer(self, conversation: Conversation, request: Request | BadRequestError, is_local: bool) -> Answer:
        if isinstance(request, BadRequestError):
            return Answer(request.response)
        try:
            if (steps := self._pages.preparation(request)) is None:
                return await self._turns.run(partial(self._pages.answer, request, is_local=is_local))
            if self._scraping >= MOST_SCRAPES:
                return Answer(Response(HTTPStatus.SERVICE_UNAVAILABLE, b"too many scrapes at once\n"))
            self._scraping += 1
            try:
                if (gathering := self._pages.gathering(request)) is not None:
                    await gathering
                while await self._scrapes.run(partial(next, steps, _PREPARED)) is not _PREPARED:
                    pass
                return await self._scrapes.run(partial(self._pages.answer, request, is_local=is_local))
            finally:
                self._scraping -= 1
        except Exception as error:  # noqa: BLE001 - answer this request with an error and go on serving
            self._say_internal(path=request.path, exc_info=error)
            conversation.close_after()
            return Answer(Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error\n"))

    async def _next_request(
        self,
        conversation: Conversation,
        reader: asyncio.StreamReader,
        patience: float,
        task: asyncio.Task[None],
    ) -> Request | BadRequestError | None:
        """Wait for a request and return it; return None if there will be no more requests."""
        loop = asyncio.get_running_loop()
        since = self._waiting[task]
        async with asyncio.timeout(patience) as limit:
            while True:
                self._waiting[task] = since
                data = await reader.read(READ)
                del self._waiting[task]  # a request is being handled: do not close this connection to make room
                limit.reschedule(min(limit.when() or 0.0, loop.time() + REQUEST_SECONDS))
                try:
                    request = await self._turns.run(partial(conversation.receive, data))
                except BadRequestError as error:
                    return error
                if request is not None or conversation.state is State.OVER:
                    return request


def _is_local(client: socket.socket, address: object) -> bool:
    if client.family == socket.AF_UNIX:
        return True
    return isinstance(address, tuple) and ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
