"""Run the proxy: from its settings to listening sockets, and through an orderly end.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
import uvloop
from redis.exceptions import ClusterDownError, ReadOnlyError

from proxy import __version__
from proxy.admin.port import admin_port
from proxy.commands.described import ServerCommands
from proxy.coverage.coverage import Coverage
from proxy.embedded.binaries import EmbeddedError
from proxy.embedded.choice import upstream_url
from proxy.embedded.first_steps import show_first_steps
from proxy.ending import end
from proxy.expiry.caller import Caller, Listing
from proxy.expiry.clock import ServerClock
from proxy.expiry.engine import Engine
from proxy.expiry.healing import Healing
from proxy.expiry.indexes import Indexes
from proxy.expiry.leftovers import Leftovers
from proxy.expiry.resharding import SlotWatch
from proxy.expiry.role import RoleWatch
from proxy.expiry.sweeper import Sweeper
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.expiry.underway import Underway
from proxy.expiry.users import UserWatch
from proxy.listen.binding import Listener, as_given, bind_all
from proxy.listen.files import enough_files
from proxy.listen.given import Given
from proxy.listen.listener import Listeners, client_limit
from proxy.listen.others import Others
from proxy.listen.sockets import MORE_FILES
from proxy.listen.succession import Succession
from proxy.logs import Seldom
from proxy.loop import Loop
from proxy.metrics import info
from proxy.metrics.delay import watch_delay
from proxy.notify import Notifier
from proxy.proxies.announcer import Proxies
from proxy.relay.budget import HeldBudget
from proxy.relay.client import ClientConnection
from proxy.relay.fence import Fence
from proxy.relay.heap import Heap
from proxy.relay.idle import IdleWatch
from proxy.relay.inspection import Doing, Inspection
from proxy.relay.lanes import Lanes
from proxy.relay.turns import TurnQueue
from proxy.reporting import Reporting
from proxy.scripts.naming import Names
from proxy.session.ground import Ground
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.rewrite import Rewriter
from proxy.session.rights import Rights, Users
from proxy.session.session import Session
from proxy.settings import Settings, SettingsError, misspelt
from proxy.signals import Signals
from proxy.tls import Beneath
from proxy.upstream.certificates import listening_certificate_date
from proxy.upstream.endpoint import Upstream
from proxy.upstream.follower import Follower
from proxy.upstream.login import LoginWatch
from proxy.upstream.stay import MovedError, Stay
from proxy.upstream.trail import Trail
from proxy.upstream.words import in_words

log = structlog.get_logger("proxy.server")

_MOVES: Final = 4
"""How often the upstream may change while a client connects. After that the client gets an error."""

_COVER_AGAIN_SECONDS: Final = 1.0
"""Interval for checking that all proxies know the prefixes in the `cover` setting."""

FIRST_SECONDS: Final = 2.0
"""How long a connected client may take for its first request while another process takes over."""

LAST_SECONDS: Final = 2.0
"""The proxy stops sending requests this long before the end of `shutdown_timeout`. The rest is for replies to running
requests, and for clients to read these replies (`FAREWELL_SECONDS`)."""

REFUSED: Final = "upstream refuses removals: clients may see expired members"


@dataclass(frozen=True, slots=True)
class Place:
    """A server's place among the workers of one proxy. By default there is only one worker.

    Attributes:
        worker: the number of this worker, from 1.
        workers: the number of workers.
        listeners: the listening sockets, if already bound.
        others: the other workers.
        held: limits the bytes that all workers buffer together.
        name: a random name sent to the upstream, by which the proxy detects that it is its own upstream.
        alone: set when no other proxy serves the clients; until then this one accepts no clients.
        succession: takes over from another proxy and hands over to the next; unused in workers.
    """

    worker: int = 1
    workers: int = 1
    listeners: list[Listener] | None = None
    others: Others | None = None
    held: HeldBudget | None = None
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    succession: Succession = field(default_factory=Succession)
    alone: asyncio.Event | None = None


class Server:
    """A running proxy, or one worker of it.

    Args:
        settings: the settings.
        upstream: the upstream server.
        files: how many files the process may have open.
        reporting: reports the proxy's state.
        place: the place among the workers of the proxy.
    """

    def __init__(
        self, settings: Settings, upstream: Upstream, files: int, reporting: Reporting, place: Place | None = None
    ) -> None:
        self._place = place = place or Place()
        self._settings = settings
        self._upstream = upstream
        self._reporting = reporting
        self.metrics = metrics = reporting.metrics
        metrics.constants["upstream"] = str(upstream)
        self.traffic = reporting.traffic
        self._started = time.monotonic()
        self._told = b""  # the proxy's section of INFO, cached for one iteration of the loop
        self._names = Names(settings.prefix.encode())
        self._coverage = Coverage()
        self._clock = ServerClock()
        self._control = upstream.control()
        self._commands = ServerCommands()
        self._caller = Caller(self._control, self._names, self._commands, upstream.database)
        self._indexes = Indexes(self._caller, upstream.database, self._names, self._coverage, self._clock)
        self._engine = Engine(
            self._caller, self._indexes, self._names, self._coverage, self._clock, settings.sweep_batch, metrics
        )
        self._trail = Trail(place.name)
        self._logins = LoginWatch(upstream.connect, self._trail.request, lambda: self._tracker.connected.is_set())
        self._trail.heard = lambda: self._logins.again("another proxy may stand in front of itself")
        self._users = Users()
        self._all_asked = [self._logins.asked]  # each is set when a fact that is needed to serve clients is known
        self.held = place.held or HeldBudget(settings.held_limit, settings.request_limit)
        self.held.on_freed = Beneath.on_freed = Heap().note_freeing
        self.ground = Ground(
            Rewriter(self._names, self._coverage, self._commands, metrics),
            self._coverage,
            self.held.largest,
            guarded=settings.reserved_names,
            refused=lambda words: self._say_refused(error=words.decode(errors="replace")),
            section=self._section,
            now=self._clock.latest,
        )
        self.queue = TurnQueue(self.ground.turns)
        self._underway = Underway(self.ground.streams, self.round_trip)
        self._inspection = Inspection(lambda: self._caller.clients())
        self.lanes: Lanes | None = None
        if settings.share:
            connect, after = self.connect_upstream, settings.share_after
            self.lanes = Lanes(self.ground, connect, upstream, self.traffic, metrics, after)
        self._coverage.on_covered = self._covered
        self._coverage.on_announced = self.ground.rewriter.marks.alarm.ring
        self.ground.rewriter.marks.alarm.on_first = self._say_first
        self._proxies = Proxies(
            self._coverage, self._names, settings.control_timeout, self._others_changed, self._until_run
        )
        self._caller.aside = self._proxies.ask
        self._tracker = Tracker(
            upstream,
            self._caller,
            self._indexes,
            self._engine,
            self._coverage,
            self.ground.rewriter.marks.alarm,
            self._names,
            self._clock,
            self._commands,
            self._proxies,
            metrics,
            self._trail,
        )
        self._sweeper = Sweeper(
            self._engine,
            self._indexes,
            self._coverage,
            self.ground.rewriter.marks.alarm,
            self._clock,
            self._tracker,
            metrics,
            enabled=settings.sweep,
        )
        upstream.on_move = self._move
        self._fence = Fence()
        self._moved_at = -math.inf
        self._serving: asyncio.Task[None] | None = None
        self._follower = Follower(upstream) if upstream.sentinels else None
        self._connections: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._finishing = self._relieved = False
        self._files = files
        self._limit = client_limit(settings.max_clients, files)
        self._listeners = Listeners(settings, self._limit, self._new_connection, metrics, place.others)
        self._say_refused = Seldom(log.warning, REFUSED)
        self._say_failed = Seldom(log.warning, "expired members could not be removed before a request")
        self._say_handshake = Seldom(log.warning, "upstream TLS handshake failed")
        self._say_no_files = Seldom(log.error, "cannot connect clients to the upstream: out of open files")

    def _section(self) -> bytes:
        """Return the proxy's section of INFO. Formatting takes 0.5 ms, so the result is cached for one iteration of
        the loop."""
        if not self._told:
            self._told = self._tell()
            asyncio.get_running_loop().call_soon(self._forget_told)
        return self._told

    def _forget_told(self) -> None:
        self._told = b""

    def _tell(self) -> bytes:
        facts: dict[str, str | int] = {
            "version": __version__,
            "process_id": os.getpid(),
            "worker": self._place.worker,
            "workers": self._place.workers,
            "uptime_in_seconds": int(time.monotonic() - self._started),
            "upstream": str(self._upstream),
            "upstream_state": self._upstream.state,
            "embedded": int(self._settings.embedded),
        }
        return info.section(self.metrics, facts)

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self, self._trail.read)

    # For clients' connections (relay.client.Surroundings).

    def new_session(self) -> Session:
        """Create a session for a new client."""
        stranger = self._logins.wanted
        return Session(self.ground, stranger=stranger, rights=Rights(self._names, self._users, stranger=stranger))

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """A function that returns whether a chunk of an ordinary session can be forwarded unchanged."""
        return self.ground.checks.is_plain

    def _covered(self, entries: list[bytes]) -> None:
        """Handle newly covered prefixes: send the requests judged so far, before another proxy gets an acknowledgement.

        Uploads to keys under these prefixes are cut off, because an acknowledgement must be quick.
        """
        if self.lanes is not None:
            self.lanes.flush()
        self.ground.streams.cut_all(entries)

    def _until_run(self) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that waits until the long pipelines of all clients have run; None if there are none."""
        pipelines = self.ground.streams.of_others(None)
        return self._underway.until_run(pipelines) if pipelines else None

    def _say_first(self) -> None:
        """Announce all covered prefixes again, because a client has set a deadline while this proxy knew of none.

        This wakes the sweepers of the other proxies, which remove the member even if this proxy ends.
        """
        if self._coverage.shared and self._coverage.entries:
            self._proxies.repeat(list(self._coverage.entries))

    def _others_changed(self) -> None:
        """Reconfigure all connections: the first other proxy has appeared, or the last one has left."""
        for connection in self._connections:
            connection.rebind()

    def orphan(self, pipeline: Pipeline) -> None:
        """Count a client's pipeline as run, because the server has closed the connection."""
        self.ground.streams.ran(pipeline)

    def now(self) -> float:
        """Return the latest possible time of the upstream server's clock, in Unix ms."""
        return self._clock.latest()

    async def connect_upstream(self, factory: Callable[[Fence], asyncio.Protocol]) -> None:
        """Connect to the upstream server, once its covered prefixes have been read.

        Args:
            factory: creates the protocol.

        Raises:
            OSError: the server cannot be reached.
            TimeoutError: the server did not answer in time.
        """
        for _ in range(_MOVES):
            if not (self._tracker.settled.is_set() and all(asked.is_set() for asked in self._all_asked)):
                await self._until_settled()
            fence = self._fence
            try:
                return await self._connect(partial(factory, fence))
            except MovedError:
                continue
        raise ConnectionError(self._upstream.state)

    async def _connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        try:
            await self._upstream.connect(factory)
        except OSError as error:  # OSError includes TimeoutError
            advice = self._upstream.advice(error)
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._say_no_files(error=error.strerror, clients=len(self._connections), advice=MORE_FILES)
            elif advice is not None:
                self._say_handshake(error=one_line(error), advice=advice)
            raise

    async def _until_settled(self) -> None:
        """Wait until a client can be served.

        Raises:
            ConnectionError: the server cannot be used.
            TimeoutError: it is not known in time whether the server can be used.
        """
        began, seconds = time.monotonic(), self._settings.connect_timeout
        async with asyncio.timeout(seconds):
            await self._tracker.tried.wait()
        # Clients expect a short wait during a failover, not an error.
        since = began if self._tracker.settled.is_set() else self._moved_at
        if (patience := since + seconds - time.monotonic()) > 0:
            await self._until_known(patience)
        if unknown := self._unknown:
            raise ConnectionError(unknown)

    @property
    def _unknown(self) -> str:
        """Why clients cannot be served; empty if they can."""
        if not self._tracker.settled.is_set():
            return self._upstream.state
        known = all(asked.is_set() for asked in self._all_asked)
        return "" if known else self._login_trouble or "no answer in time"

    @property
    def _login_trouble(self) -> str:
        """Why it is not known whether the server requires a login; empty if that is known, or no query has failed."""
        if self._logins.asked.is_set() or not self._logins.trouble:
            return ""
        return f"cannot find out whether the server requires a login: {self._logins.trouble}"

    async def _until_known(self, seconds: float) -> None:
        """Wait, for a limited time, until the covered prefixes and all other facts needed for clients are known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for known in (self._tracker.settled, *self._all_asked):
                    await known.wait()

    def _move(self, before: Stay, now: Stay) -> None:
        """Switch to another upstream server, or to the same server in another role."""
        closed = self._fence.close()
        self._fence = Fence()
        self._moved_at = time.monotonic()
        self._tracker.start_anew()
        self._users.forget()
        self._clock.restart()
        self._logins.restart()
        self.metrics.constants["upstream"] = str(self._upstream)
        if before.address is None and self._upstream.sentinels:
            log.info("primary found", upstream=str(self._upstream))
            return
        self.metrics.upstream_switches_total += 1
        log.warning(
            "upstream switched",
            before="a Unix socket" if before.address is None else str(before.address),
            upstream=str(self._upstream),
            reason=before.ended,
            connections=closed,
        )
        if self._follower is not None:
            self._follower.ask()
        if self._serving is not None:
            self._serving.cancel()
        self._serving = asyncio.get_running_loop().create_task(self._say_served(now))

    async def _say_served(self, stay: Stay) -> None:
        """Log when clients are served again, unless the upstream has changed again by then."""
        for known in (self._tracker.settled, *self._all_asked):
            await known.wait()
        if stay.ended is None:
            milliseconds = round(1000 * (time.monotonic() - self._moved_at))
            log.info("clients are served again", upstream=str(self._upstream), ms=milliseconds)

    def upstream_error(self, error: Exception) -> bytes:
        """Return the error line for a client when the upstream cannot be reached or does not answer.

        Empty if the upstream is a cluster node: clients of a cluster try other nodes when a connection closes, but not
        after an error.
        """
        self.metrics.client_connections_rejected_total["upstream"] += 1
        if self._names.slots is not None:
            return b""
        reason = in_words(error)
        text = f"-ERR expiremember-proxy: upstream {self._upstream} is unavailable: {reason}\r\n"
        return text.encode("utf-8", "replace")

    async def answer(self, question: Question) -> None:
        """Do what a session's question requires.

        Raises:
            ConnectionError: the upstream server failed or refused.
        """
        if question.covers:
            await self._cover(question)
        try:
            await self._engine.answer(question)
        except ReadOnlyError as error:
            self._say_refused(error=one_line(error))
            raise ConnectionError(str(error)) from error
        except ClusterDownError as error:  # the server returns this error to the client too
            raise ConnectionError(str(error)) from error
        except Exception as error:  # whatever it is, the client must get a reply
            self._say_failed(error=one_line(error), exc_info=not is_outage(error))
            raise ConnectionError(str(error)) from error

    async def _cover(self, question: Question) -> None:
        """Wait until requests that were sent unchecked have run, then have all proxies cover the prefixes of a
        question. `Coverage.unconfirmed` shows the result.

        The prefixes are first listed in the server, where proxies that start meanwhile read them.
        """
        await self._underway.until_arrived(question.covers, question.owner)
        await self._underway.until_run(question.behind)
        databases = {**dict.fromkeys(self._coverage.databases, Listing.BESIDE), self._upstream.database: Listing.HERE}
        try:
            # List all prefixes, not only new ones: if the server was emptied, the list is new and must be complete.
            await self._engine.list_covered(databases, dict.fromkeys((*question.covers, *self._coverage.entries)))
        except Exception as error:  # noqa: BLE001 (the client gets an error)
            self._say_failed(error=one_line(error), exc_info=not is_outage(error))
            return
        await self._proxies.announce(question.covers)

    async def _cover_beforehand(self) -> None:
        """Keep the prefixes in the `cover` setting covered, until cancelled."""
        prefixes = [prefix.encode() for prefix in self._settings.cover]
        while True:
            await self._tracker.settled.wait()
            if entries := self._coverage.want(prefixes):
                await self._cover(Question(covers=tuple(entries), behind=self.ground.streams.of_others(None)))
            await asyncio.sleep(_COVER_AGAIN_SECONDS)

    async def round_trip(self) -> None:
        """Wait until the server has answered a request of the proxy itself.

        Raises:
            ConnectionError: the server did not answer.
        """
        try:
            await self._caller.round_trip()
        except Exception as error:
            raise ConnectionError(str(error)) from error

    async def inspect(self, near: bytes | None) -> Doing:
        """Return what the server is doing for a connection, within a bounded time."""
        return await self._inspection.doing(near)

    def opened(self, connection: ClientConnection) -> None:
        """Record a new connection."""
        self._connections.add(connection)
        self._empty.clear()
        if self._finishing:  # accepted just before the proxy stopped accepting
            asyncio.get_running_loop().call_soon(self._see_off, connection)

    def _see_off(self, connection: ClientConnection) -> None:
        try:
            (connection.finish_after_first_request if self._relieved else connection.finish)()
        except Exception as error:  # noqa: BLE001 - an error for one client must not end the others
            connection.fail(error)

    def _cut_short(self, connection: ClientConnection) -> bool:
        try:
            return connection.cut_short()
        except Exception as error:  # noqa: BLE001 - as above
            connection.fail(error)
            return False

    def _see_all_off(self) -> None:
        """Stop waiting for clients' first requests."""
        self._relieved = False
        for connection in list(self._connections):
            self._see_off(connection)

    def closed(self, connection: ClientConnection) -> None:
        """Record that a connection has ended."""
        self._connections.discard(connection)
        self._listeners.left(connection)
        if not self._connections:
            self._empty.set()

    def _open_sockets(self) -> list[tuple[ClientConnection, socket.socket]]:
        """Return the connections with their sockets, except those in a TLS handshake, which has its own timeout."""
        clients = self._listeners.clients.items()
        return [(connection, client) for connection, client in clients if connection in self._connections]

    # Reporting.

    def _obstacle(self) -> str | None:
        """Return what prevents serving clients, or None."""
        if not self._tracker.connected.is_set():
            return f"upstream {self._upstream} is unavailable: {self._upstream.state}"
        if not (self._coverage.loaded and all(asked.is_set() for asked in self._all_asked)):
            return self._login_trouble or "covered prefixes are not loaded yet"
        return None

    def _read_gauges(self) -> None:
        metrics, coverage, alarm = self.metrics, self._coverage, self.ground.rewriter.marks.alarm
        metrics.upstream_up = float(self._tracker.connected.is_set())
        metrics.blind = float(coverage.blind)
        slots = self._names.slots
        metrics.cluster_slots = float(0 if slots is None else len(slots.owned))
        metrics.cluster_primary = float(slots is not None and slots.primary)
        metrics.sentinels_up = float(self._follower.answering if self._follower is not None else 0)
        metrics.client_connections = len(self._listeners.clients)
        metrics.held_bytes = self.held.total
        metrics.covered_prefixes = len(coverage)
        metrics.next_deadline_timestamp_seconds = (
            alarm.next_deadline / 1000 if math.isfinite(alarm.next_deadline) else 0.0
        )
        metrics.clock_offset_seconds = self._clock.now() / 1000 - time.time()

    def _server_look(self) -> Callable[[], Coroutine[Any, Any, dict[str, Any]]]:
        from proxy.status.look import ServerLook  # needed only with a status page

        return ServerLook(
            self._upstream,
            self._caller,
            self._names,
            self._coverage,
            self._tracker,
            self._proxies,
            with_names=self._settings.admin_names,
        ).look

    # Start and end.

    async def run(self, signals: Signals) -> None:
        """Serve until told to stop, then shut down gracefully.

        Raises:
            SettingsError: an address cannot be listened on, or a certificate cannot be used.
        """
        settings, reporting = self._settings, self._reporting
        # Do this first: while this process was stopped (SIGSTOP), its lease may have run out.
        signal.signal(signal.SIGCONT, lambda *_: self._coverage.look())
        signals.before_end.append(self._listeners.remove_paths)
        succession = self._place.succession
        keeps_files = succession.given is None or succession.given.keeps_files
        succession.offer.append(lambda: as_given(self._listeners.sockets, keeps_files=keeps_files))
        signals.reload = self._reload
        stopped = asyncio.create_task(signals.stop.wait())
        background: list[asyncio.Task[object]] = [stopped]
        tasks: list[asyncio.Task[None]] = []
        try:
            opening = asyncio.create_task(self._listeners.open(succession.file, self._place.listeners))
            background.append(opening)
            await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():  # a name is still being resolved
                reporting.stopped()
                return
            opening.result()
            alone = self._place.alone or succession.alone
            left = asyncio.create_task(alone.wait())
            background.append(left)
            if accepts := alone.is_set():
                self._listeners.accept()
            tasks += [asyncio.create_task(part.run()) for part in (self._tracker, self._sweeper, self._logins)]
            if self._follower is not None:
                tasks.append(asyncio.create_task(self._follower.run()))
            tasks.append(asyncio.create_task(RoleWatch(self._caller, self._tracker, self._upstream).run()))
            tasks.append(asyncio.create_task(SlotWatch(self._indexes, self._tracker, self._names).run()))
            if not self._upstream.has_a_user_of_its_own:
                watch = UserWatch(self._caller, self._tracker, self._users)
                self._all_asked.append(watch.asked)
                tasks.append(asyncio.create_task(watch.run()))
            if settings.leftovers_rate:
                leftovers = Leftovers(
                    self._engine,
                    self._coverage,
                    self._names,
                    self._tracker,
                    self._commands,
                    settings.leftovers_rate,
                    self.metrics,
                )
                tasks.append(asyncio.create_task(leftovers.run()))
                healing = Healing(self._engine, self._names, self._coverage, self._tracker)
                tasks.append(asyncio.create_task(healing.run()))
            if settings.cover:
                tasks.append(asyncio.create_task(self._cover_beforehand()))
            tasks.append(asyncio.create_task(self.traffic.run()))
            if self.lanes is not None:
                tasks.append(asyncio.create_task(self.lanes.run()))
            tasks.append(asyncio.create_task(watch_delay(self.metrics.event_loop_delay_seconds)))
            if settings.idle_timeout:
                tasks.append(asyncio.create_task(IdleWatch(settings.idle_timeout, self._open_sockets).run()))
            self.metrics.before_reading = self._read_gauges
            if settings.admin is not None and settings.admin_page:
                reporting.look = self._server_look()
            reporting.readiness.judge_by(self._obstacle)
            if self._place.worker == 1:  # other workers would repeat the warnings
                background.append(asyncio.create_task(self._warn()))
            tried = asyncio.create_task(self._try_upstream())
            background.append(tried)
            if not accepts:
                serving = asyncio.create_task(self._until_serving(tried))
                background.append(serving)
                await asyncio.wait([serving, left, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if accepts := left.done() and not signals.stop.is_set():
                    self._listeners.accept()  # no other process serves clients any more: accept them as at any start
                elif serving.done():
                    serving.result()
            await asyncio.wait([tried, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if tried.done():
                tried.result()
            if not signals.stop.is_set():
                await succession.begin(signals)
                background.append(asyncio.create_task(reporting.run()))
                reporting.ready(self._listeners.addresses, str(self._upstream), self._upstream.state)
                # In a worker: the supervisor relieves the other proxy once all workers are ready. Accept no clients
                # before that: they would be lost if the other proxy went on instead.
                await asyncio.wait([left, stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
                if left.done() and not accepts:
                    self._listeners.accept()
            # Most objects that exist now live until the end: exclude them from garbage collection.
            gc.collect()
            gc.freeze()
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            reporting.draining(relieved=signals.relieved)
            for task in done:
                task.result()  # these tasks run until cancelled: a task that has ended has failed
            succession.close()  # no other proxy may take over now, except one that has already received all sockets
            await self._finish(relieved=signals.relieved or succession.outlived)
            reporting.stopped()
        finally:
            succession.close()
            self._listeners.close()
            self._proxies.leave()
            await end([*tasks, *background, *([] if self._serving is None else [self._serving])])
            await self._control.aclose()

    async def _try_upstream(self) -> None:
        """Wait until the proxy has tried to reach the server.

        Raises:
            SettingsError: the upstream is this proxy itself.
        """
        met = asyncio.create_task(self._trail.met.wait())
        tried = asyncio.create_task(self._tracker.tried.wait())
        try:
            await asyncio.wait([met, tried], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([met, tried])
        if self._trail.met.is_set():
            advice = "set it to the Redis or Valkey server behind the proxy"
            raise SettingsError(f"upstream: {self._upstream} leads back to this proxy itself: {advice}")

    async def _until_serving(self, tried: asyncio.Task[None]) -> None:
        """Wait until this proxy is ready to replace the one that still serves the clients.

        Args:
            tried: done when the proxy has tried to reach the server.

        Raises:
            SettingsError: this proxy cannot serve the clients; the other one continues.
        """
        seconds = self._settings.connect_timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(tried)
                await self._until_known(seconds)
        if unknown := self._unknown:
            why = unknown if tried.done() else "it does not answer"
            advice = "the running proxy continues to serve"
            raise SettingsError(f"takeover: upstream {self._upstream} is unavailable: {why}; {advice}")

    async def _warn(self) -> None:
        """Warn once about limits that differ from the settings, and about data exposed to others."""
        settings = self._settings
        if self._limit * self._place.workers < settings.max_clients:
            # Do not warn about the default, even if a file states it: the operator may not need so many clients.
            default = type(settings).model_fields["max_clients"].default
            say = log.debug if settings.max_clients == default else log.warning
            say(
                "max_clients lowered: too few open files",
                max_clients=self._limit * self._place.workers,
                files=self._files,
                advice=MORE_FILES,
            )
        if self._upstream.uses_tls and not settings.tls_verify:
            advice = "others on the network can read and change the data: set tls_ca_file instead"
            log.warning("upstream certificate not verified", advice=advice)
        for name, meant in misspelt(os.environ).items():
            log.warning("unknown setting in the environment", variable=name, advice=f"did you mean {meant}?")
        self._warn_of_dates()
        await self._logins.asked.wait()
        exposed = self._listeners.exposed()
        if exposed and not self._logins.wanted:
            advice = "set a password in the server (requirepass or ACL), or listen on 127.0.0.1"
            log.warning(
                "other machines can use the server through the proxy without a password",
                listen=exposed,
                advice=advice,
            )

    def _reload(self) -> None:
        """Reload all certificates; they apply to new connections."""
        failed = False
        for reload in (self._listeners.reload_certificates, self._upstream.reload_certificates):
            try:
                reload()
            except SettingsError as error:
                failed = True
                log.error("certificates not reloaded: the old ones stay in use", error=str(error))
        if not failed:
            log.info("certificates reloaded")
        self._warn_of_dates()

    def _warn_of_dates(self) -> None:
        if (date := listening_certificate_date(self._settings)) is not None:
            advice = f"renew {self._settings.listen_tls_cert_file} and send SIGHUP, or set this machine's clock"
            log.warning("certificate shown to clients has expired or is not valid yet", certificate=date, advice=advice)

    async def _finish(self, *, relieved: bool) -> None:
        """Stop accepting clients, wait a limited time for running requests, and close.

        Args:
            relieved: whether another process continues to listen. If so, clients that have not sent anything yet get a
                moment to send their first request and receive its reply.
        """
        loop, seconds = asyncio.get_running_loop(), self._settings.shutdown_timeout
        give_up = loop.time() + seconds
        self._listeners.close(relieved=relieved)
        self._finishing, self._relieved = True, relieved
        made_by = loop.time()
        if relieved:
            made_by += min(FIRST_SECONDS, seconds)
            loop.call_at(made_by, self._see_all_off)
        clients = len(self._listeners.clients if relieved else self._connections)
        if not clients:
            return
        log.info(
            "stopping",
            connections=clients,
            timeout=seconds,
            advice="a second signal ends the proxy at once",
        )
        for connection in list(self._connections):
            self._see_off(connection)
        if not await self._have_left_by(give_up - min(LAST_SECONDS, seconds / 2), made_by):
            if dropped := sum(map(self._cut_short, list(self._connections))):
                log.warning("requests dropped: shutdown_timeout is nearly over", connections=dropped)
            if not await self._have_left_by(give_up, made_by):
                if unanswered := sum(not connection.is_answered for connection in self._connections):
                    log.warning("stopped before the server had answered", connections=unanswered)
                for connection in list(self._connections):
                    connection.abandon()
                await asyncio.sleep(0)

    async def _have_left_by(self, when: float, made_by: float) -> bool:
        """Wait until all connections have ended, at most until `when`; return whether they have.

        Args:
            when: a time on the loop's clock.
            made_by: a time on the loop's clock. Until then, also wait for clients whose PROXY header or TLS handshake
                is pending; not longer, because they may be silent.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(when):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(made_by):
                        await self._listeners.until_made()
                while self._connections:
                    await self._empty.wait()
                return True
        return False


async def _serve(settings: Settings, files: int, succession: Succession) -> None:
    reporting = Reporting(Notifier())
    reporting.on_ready = partial(show_first_steps, settings)
    signals = Signals()
    signals.listen()
    signals.before_end.append(succession.remove_path)
    try:
        succession.watch()
        async with (
            admin_port(settings, reporting, signals.stop, signals.before_end, succession),
            upstream_url(settings, signals.stop) as url,
        ):
            given = succession.given
            listeners = (await bind_all(settings, succession.file, given=given))[0] if given is not None else None
            place = Place(listeners=listeners, succession=succession)
            await Server(settings, Upstream(settings, url), files, reporting, place).run(signals)
    finally:
        succession.close()


def run(settings: Settings, given: Given | None = None) -> int:
    """Run the proxy until a signal ends it.

    Args:
        settings: the settings.
        given: sockets that systemd passed.

    Returns:
        The exit status: 0 after SIGTERM or SIGINT, 1 if the embedded server did not start or ended by itself. A second
        SIGTERM or SIGINT ends the process at once, with status 1, as in Redis.

    Raises:
        SettingsError: an address cannot be listened on, a certificate or the password file cannot be used, or there are
            too few open files.
        StoppedError: the process was told to stop before it had started.
    """
    enough_files(settings, given)  # sockets could not be taken over with too few files
    succession = Succession.of(settings, given)
    files = enough_files(settings, succession.given)
    try:
        uvloop.run(_serve(settings, files, succession), loop_factory=Loop)
    except EmbeddedError as error:
        log.error("stopped: embedded server failed", error=str(error))
        return 1
    return 0
