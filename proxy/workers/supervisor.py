"""The process that the user starts with `--workers`: binds the sockets, starts the workers, and acts as one proxy.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import uvloop

from proxy.admin.port import admin_port
from proxy.embedded.binaries import EmbeddedError
from proxy.embedded.choice import upstream_url
from proxy.embedded.first_steps import show_first_steps
from proxy.ending import end
from proxy.listen.binding import Listener, as_given, bind_all, shown
from proxy.listen.files import enough_files
from proxy.listen.given import Given
from proxy.listen.succession import Succession
from proxy.loop import Loop
from proxy.notify import Notifier
from proxy.settings import Settings, SettingsError
from proxy.signals import Signals
from proxy.upstream.certificates import listening_context
from proxy.upstream.endpoint import Upstream
from proxy.workers.board import Board
from proxy.workers.fellows import inbox
from proxy.workers.messages import Assignment, Order, pack_settings
from proxy.workers.overview import HUNG_SECONDS, Overview
from proxy.workers.process import WorkerProcess

log = structlog.get_logger("proxy.workers")

START_SECONDS: Final = 60.0
"""Time limit for a worker to start."""

GRACE: Final = 5.0
"""Seconds beyond `shutdown_timeout` after which workers are killed."""

_KILLED_SECONDS: Final = 5.0
"""How long to wait for a killed worker to end."""

_LOOK_SECONDS: Final = 0.5
_BY_SIGNAL: Final = (-signal.SIGTERM, -signal.SIGINT)


class Supervisor:
    """Runs the workers of a proxy, and watches them.

    Args:
        settings: the settings.
        signals: the signals that the process gets.
        workers: the workers, not yet started.
        board: the numbers that the workers share.
        overview: reports the state of all workers.
        succession: takes over from a previous proxy, and hands over to the next.
    """

    def __init__(
        self,
        settings: Settings,
        signals: Signals,
        workers: Sequence[WorkerProcess],
        board: Board,
        overview: Overview,
        succession: Succession,
    ) -> None:
        self._settings = settings
        self._signals = signals
        self._workers = workers
        self._board = board
        self._overview = overview
        self._succession = succession
        self._running: dict[asyncio.Task[int], WorkerProcess] = {}
        self._dropped: set[WorkerProcess] = set()  # those ended before they had begun
        self._draining = False
        self._failed = False
        self._unusable: str | None = None

    async def run(self, upstream: Upstream, url: str, listeners: list[list[Listener]], shared: int) -> bool:
        """Start the workers, and wait until all have ended.

        Args:
            upstream: the upstream server.
            url: its address.
            listeners: for each worker, its listening sockets; closed here once the workers have them.
            shared: the descriptor of the shared memory of `board`; closed here too.

        Returns:
            Whether all workers ended without failure.

        Raises:
            SettingsError: a worker cannot use a setting.
        """
        addresses = [
            shown(address, listener)
            for address, listener in zip(dict.fromkeys(self._settings.listen), listeners[0], strict=False)
        ]
        kept = self._offer(listeners)

        def remove_paths() -> None:
            for listener in listeners[0]:
                if listener.file is not None:
                    listener.file.remove()

        self._signals.before_end.append(remove_paths)
        stopped = asyncio.create_task(self._signals.stop.wait())
        background: list[asyncio.Task[object]] = [stopped]
        try:
            await self._start(url, listeners, shared)
            watching = asyncio.create_task(self._watch())
            ready = asyncio.create_task(self._all_ready())
            background += [watching, ready, asyncio.create_task(self._tell_alone())]
            await self._until(stopped, watching, ready)
            if ready.done() and not self._draining and not stopped.done():
                background.append(asyncio.create_task(self._overview.run()))
                await self._succession.begin(self._signals)
                self._overview.ready(addresses, str(upstream), self._upstream_state())
                await self._until(stopped, watching)
        finally:
            self._draining = True
            self._overview.draining(relieved=self._signals.relieved)
            self._succession.close()
            for one in kept:
                one.close()
            remove_paths()
            await self._drain()
            await end(background)
        if self._unusable is not None:
            raise SettingsError(self._unusable)
        return not self._failed

    def _offer(self, listeners: list[list[Listener]]) -> list[socket.socket]:
        """Prepare to offer the sockets to a proxy that replaces this one; return duplicates to keep open for that."""
        succession, given = self._succession, self._succession.given
        if not succession.wanted:
            return []
        keeps_files = given is None or given.keeps_files
        kept = [replace(one, socket=one.socket.dup()) for some in listeners for one in some]
        succession.offer.append(lambda: as_given(kept, keeps_files=keeps_files))
        return [one.socket for one in kept]

    async def _start(self, url: str, listeners: list[list[Listener]], shared: int) -> None:
        count = len(self._workers)
        inboxes = [inbox() for _ in range(count)]
        name = secrets.token_hex(16)
        try:
            for place, worker in enumerate(self._workers):
                fellows = {other + 1: inboxes[other][1].fileno() for other in range(count) if other != place}
                own = [(listener.socket.fileno(), listener.tls, listener.name) for listener in listeners[place]]
                mine = inboxes[place][0].fileno()
                assignment = Assignment(
                    worker.number, count, pack_settings(self._settings), url, own, shared, mine, fellows, name,
                    not self._succession.alone.is_set(),
                )  # fmt: skip
                descriptors = [shared, mine, *fellows.values(), *(descriptor for descriptor, _, _ in own)]
                await worker.start(assignment, descriptors)
                self._running[asyncio.create_task(worker.run())] = worker
        except OSError as error:
            self._fail()
            log.error("worker could not be started", error=error.strerror or str(error))
        finally:
            # Close the sockets that only the workers need: left open, they could hold clients of an ended worker.
            for pair in inboxes:
                pair[0].close()
                pair[1].close()
            for listener in (one for some in listeners for one in some):
                listener.socket.close()
            os.close(shared)

    def _upstream_state(self) -> str:
        states = [worker.upstream_state for worker in self._workers]
        return next((state for state in states if state != states[0]), states[0])

    async def _tell_alone(self) -> None:
        """Let the workers accept clients once no other proxy serves them."""
        await self._succession.alone.wait()
        for worker in self._workers:
            worker.tell(Order.ALONE)

    async def _all_ready(self) -> None:
        for worker in self._workers:
            await worker.ready.wait()

    async def _until(self, *tasks: asyncio.Task[object]) -> None:
        """Wait until one of the tasks is done, or a worker has ended."""
        if self._failed:
            return
        await asyncio.wait([*tasks, *self._running], return_when=asyncio.FIRST_COMPLETED)
        self._see_ended()

    def _see_ended(self) -> None:
        for task in [task for task in self._running if task.done()]:
            self._ended(self._running.pop(task), task.result())

    def _ended(self, worker: WorkerProcess, status: int) -> None:
        if self._unusable is not None:
            return  # the unusable setting has been reported
        if worker.unusable is not None:
            self._unusable = worker.unusable
            for other in self._running.values():
                other.kill()  # no worker has served a client yet
        elif self._draining and (status == 0 or worker in self._dropped or not self._has_begun(worker)):
            return
        elif status in _BY_SIGNAL and not self._has_begun(worker):
            self._signals.stop.set()  # a signal for the whole proxy ended the worker too early to be handled
        elif not (status == 0 and self._signals.stop.is_set()):
            self._fail()
            log.error("worker exited", worker=worker.number, status=status)
        self._draining = True

    def _has_begun(self, worker: WorkerProcess) -> bool:
        return self._board.has_begun(worker.number - 1)

    def _fail(self) -> None:
        self._failed = True
        self._draining = True

    async def _watch(self) -> None:
        """Watch for workers that do not start or that hang; return if a worker does not start."""
        began = asyncio.get_running_loop().time()
        silent: set[int] = set()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if asyncio.get_running_loop().time() - began > START_SECONDS:
                for place, worker in enumerate(self._workers):
                    if not self._board.has_begun(place):
                        self._fail()
                        log.error("worker did not start in time", worker=worker.number, seconds=START_SECONDS)
                        worker.kill()
                        return
            hung = {worker.number for worker in self._overview.silent()}
            for number in hung - silent:
                log.error("worker does not answer", worker=number, seconds=HUNG_SECONDS)
            for number in silent - hung:
                log.info("worker answers again", worker=number)
            silent = hung

    async def _drain(self) -> None:
        """Stop all workers, and kill those that do not end in time."""
        order = Order.LEAVE if self._signals.relieved or self._succession.outlived else Order.STOP
        for worker in self._running.values():
            if self._has_begun(worker):
                worker.tell(order)
            else:  # it could obey only once it has loaded, and has served nobody
                self._dropped.add(worker)
                worker.kill()
        for patience in (self._settings.shutdown_timeout + GRACE, _KILLED_SECONDS):
            if self._running:
                await asyncio.wait(self._running, timeout=patience)
                self._see_ended()
            for worker in self._running.values():
                self._fail()
                log.error("worker killed: it did not stop in time", worker=worker.number)
                worker.kill()


async def _serve(settings: Settings, succession: Succession) -> bool:
    try:
        succession.watch()
        return await _supervise(settings, succession)
    finally:
        succession.close()


async def _supervise(settings: Settings, succession: Succession) -> bool:
    signals = Signals()
    signals.listen()
    signals.before_end.append(succession.remove_path)
    shared = Board.make(settings.workers)
    board = Board(shared, settings.workers)
    workers = [WorkerProcess(number, signals.stop.set) for number in range(1, settings.workers + 1)]
    overview = Overview(Notifier(), workers, board)
    overview.on_ready = partial(show_first_steps, settings)

    def tell_to_reload() -> None:
        for worker in workers:
            worker.tell(Order.RELOAD)

    def kill() -> None:
        for worker in workers:
            worker.kill()

    signals.reload = tell_to_reload
    signals.before_end.append(kill)
    async with (
        admin_port(settings, overview, signals.stop, signals.before_end, succession),
        upstream_url(settings, signals.stop) as url,
    ):
        # Check settings before starting anything.
        upstream = Upstream(settings, url)
        if settings.listen_tls_cert_file is not None:
            listening_context(settings)
        listeners = await _bind(settings, signals, succession)
        if listeners is None:
            overview.stopped()
            return True
        supervisor = Supervisor(settings, signals, workers, board, overview, succession)
        fine = await supervisor.run(upstream, url, listeners, shared)
        if fine:
            overview.stopped()
        return fine


async def _bind(settings: Settings, signals: Signals, succession: Succession) -> list[list[Listener]] | None:
    """Bind all sockets; return None if the process is told to stop while a name is being resolved."""
    binding = asyncio.create_task(bind_all(settings, succession.file, settings.workers, succession.given))
    stopped = asyncio.create_task(signals.stop.wait())
    await asyncio.wait([binding, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not binding.done():
        await end([binding, stopped])
        return None
    await end([stopped])
    return binding.result()


def run(settings: Settings, given: Given | None = None) -> int:
    """Run the proxy with several workers until a signal ends it.

    Args:
        settings: the settings.
        given: sockets that systemd passed.

    Returns:
        The exit status: 0 after SIGTERM or SIGINT, 1 if a worker or the embedded server did not start or ended by
        itself. A second SIGTERM or SIGINT ends all processes at once, with status 1.

    Raises:
        SettingsError: the proxy cannot listen on an address, or cannot use a certificate or the password file, or may
            open too few files.
        StoppedError: the process was told to stop before it had started.
    """
    enough_files(settings, given)  # with too few files the sockets could not be taken over
    succession = Succession.of(settings, given)
    enough_files(settings, succession.given)
    try:
        fine = uvloop.run(_serve(settings, succession), loop_factory=Loop)
    except EmbeddedError as error:
        log.error("stopped: embedded server failed", error=str(error))
        return 1
    if not fine:
        log.error("stopped: a worker failed")
    return 0 if fine else 1
