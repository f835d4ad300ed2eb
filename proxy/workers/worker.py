"""A worker: a proxy of its own that gets its sockets from the supervisor and reports to it.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from functools import partial
from typing import Final

import structlog
import uvloop
from redis.exceptions import RedisError

from proxy import logs
from proxy.admin.turns import Turns
from proxy.ending import end
from proxy.held_signals import release
from proxy.listen.binding import Listener
from proxy.listen.files import raise_file_limit
from proxy.listen.listener import client_limit
from proxy.loop import Loop
from proxy.notify import Notifier
from proxy.reporting import Reporting
from proxy.server import Place, Server
from proxy.settings import Settings, SettingsError
from proxy.signals import TO_STOP, Signals
from proxy.status.report import report_of
from proxy.upstream.endpoint import Upstream
from proxy.upstream.words import in_words
from proxy.workers.board import BEAT_SECONDS, Board
from proxy.workers.fellows import Fellows, SharedBudget
from proxy.workers.messages import (
    LONGEST,
    STARTING,
    Assignment,
    News,
    Order,
    pack_metrics,
    pack_news,
    unpack_order,
    unpack_settings,
)

log = structlog.get_logger("proxy.workers")

GRACE: Final = 5.0
"""Seconds beyond `shutdown_timeout` after which a worker that was told to stop ends itself."""

_CHANNEL: Final = 0
"""The descriptor of the socket to the supervisor: standard input."""

_TAKEN_SECONDS: Final = 2.0
"""How long to wait for the supervisor to receive the last news."""

_ALL: Final = object()


class WorkerReporting(Reporting):
    """Reports a worker's state to the supervisor.

    Args:
        worker: its number, counted from 1.
        writer: the stream to the supervisor.
    """

    def __init__(self, worker: int, writer: asyncio.StreamWriter) -> None:
        super().__init__(Notifier({}), worker)
        self._writer = writer
        self._obstacle: str | None = STARTING  # what the supervisor assumes before the first message
        self._turns = Turns()
        self._telling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def ready(self, listen: list[str], upstream: str, state: str) -> None:
        """Report that clients can be served."""
        self._look()
        self.tell(News.READY, state)

    def draining(self, *, relieved: bool = False) -> None:
        """Note that no more clients are accepted. The supervisor, which gave the order, need not be told."""
        self.readiness.leave() if relieved else self.readiness.drain()

    def stopped(self) -> None:
        """Do nothing: the supervisor sees the process end."""

    async def run(self) -> None:
        """Report every change of what prevents serving clients, until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(BEAT_SECONDS)

    def _look(self) -> None:
        if (obstacle := self.readiness.obstacle()) != self._obstacle:
            self._obstacle = obstacle
            self.tell(News.OBSTACLE, obstacle)

    def tell(self, news: News, what: object = None) -> None:
        """Send news to the supervisor, if it is still connected."""
        if not self._writer.is_closing():
            self._writer.write(pack_news(news, what))

    def tell_metrics(self) -> None:
        """Send the metrics. Collect them in short turns, as for the admin port, so that clients do not wait."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_metrics())

    async def _tell_metrics(self) -> None:
        steps = self.traffic.refresh()
        while await self._turns.run(partial(next, steps, _ALL)) is not _ALL:
            pass
        line = await self._turns.run(lambda: pack_news(News.METRICS, pack_metrics(self.metrics)))
        if not self._writer.is_closing():
            self._writer.write(line)

    def tell_look(self) -> None:
        """Query the server for the status page, and send the result."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._tell_look())

    async def _tell_look(self) -> None:
        try:
            self.tell(News.LOOK, await self.look_at_server())
        except (RedisError, OSError, TimeoutError) as error:
            self.tell(News.LOOK, in_words(error))

    async def close(self) -> None:
        """Wait briefly until the supervisor has received all news."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_TAKEN_SECONDS):
                await self._writer.wait_closed()


def run() -> int:
    """Run the worker whose assignment arrives on standard input.

    Returns:
        The exit status: 0 when told to stop, 2 if a setting cannot be used.
    """
    return uvloop.run(_serve(), loop_factory=Loop)


async def _serve() -> int:
    channel = socket.socket(fileno=os.dup(_CHANNEL))
    reader, writer = await asyncio.open_connection(sock=channel, limit=LONGEST)
    line = await reader.readline()
    if not line:
        return 1  # the supervisor has ended
    assignment = Assignment.unpack(line)
    settings = unpack_settings(assignment.settings)
    logs.configure(settings.log_level, settings.log_format)
    structlog.contextvars.bind_contextvars(worker=assignment.worker)
    _end_without_supervisor(settings.shutdown_timeout + GRACE)
    board = Board(assignment.board, assignment.workers)
    reporting = WorkerReporting(assignment.worker, writer)
    signals = Signals()
    _pass_signals_on(reporting, signals)
    tasks = [asyncio.create_task(_beat(board, assignment.worker - 1))]
    alone = asyncio.Event()
    if not assignment.patient:
        alone.set()
    tasks.append(asyncio.create_task(_obey(reader, reporting, signals, alone)))
    try:
        files = raise_file_limit()
        server = Server(
            settings,
            Upstream(settings, assignment.upstream),
            files,
            reporting,
            _place(assignment, settings, board, client_limit(settings.max_clients, files), alone),
        )
        await server.run(signals)
    except SettingsError as error:
        reporting.tell(News.UNUSABLE, str(error))
        return 2
    finally:
        await end(tasks)
        await reporting.close()
    return 0


def _place(assignment: Assignment, settings: Settings, board: Board, limit: int, alone: asyncio.Event) -> Place:
    own = assignment.worker - 1
    fellows = {number - 1: _adopt(descriptor) for number, descriptor in assignment.fellows.items()}
    return Place(
        worker=assignment.worker,
        workers=assignment.workers,
        listeners=[Listener(_adopt(descriptor), tls, name=name) for descriptor, tls, name in assignment.listeners],
        others=Fellows(board, own, _adopt(assignment.inbox), fellows, limit, settings.max_clients),
        held=SharedBudget(settings.held_limit, settings.request_limit, board, own),
        name=assignment.name,
        alone=alone,
    )


def _adopt(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def _pass_signals_on(reporting: WorkerReporting, signals: Signals) -> None:
    """Forward stop signals to the supervisor, so that they stop the whole proxy."""
    loop = asyncio.get_running_loop()
    for number in TO_STOP:
        loop.add_signal_handler(number, reporting.tell, News.STOP)
    loop.add_signal_handler(signal.SIGHUP, lambda: signals.reload())
    release()


async def _beat(board: Board, worker: int) -> None:
    while True:
        board.beat(worker)
        await asyncio.sleep(BEAT_SECONDS)


async def _obey(
    reader: asyncio.StreamReader, reporting: WorkerReporting, signals: Signals, alone: asyncio.Event
) -> None:
    """Carry out the supervisor's orders; stop when the supervisor has ended."""
    try:
        while line := await reader.readline():
            order = unpack_order(line)
            if order in (Order.STOP, Order.LEAVE):
                signals.relieved = order is Order.LEAVE
                signals.stop.set()
            elif order is Order.ALONE:
                alone.set()
            elif order is Order.RELOAD:
                signals.reload()
            elif order is Order.METRICS:
                reporting.tell_metrics()
            elif order is Order.REPORT:
                reporting.tell(News.REPORT, report_of(reporting.metrics).pack())
            else:
                reporting.tell_look()
    except OSError:
        pass  # the supervisor has ended
    if not signals.stop.is_set():
        log.error("supervisor exited")
        signals.stop.set()


def _end_without_supervisor(seconds: float) -> None:
    """Exit a number of seconds after the supervisor has ended, even if the event loop hangs."""
    watched = os.dup(_CHANNEL)

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, 0)  # poll always reports a hang-up
        poll.poll()
        time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
