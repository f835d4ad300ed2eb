"""Follow the server: read the covered prefixes on connect, and maintain the connection between proxies.

Its tests: tests/test_background.py.

On that connection the server also reports changes of the rules for events (`CLIENT TRACKING ON BCAST PREFIX`). A
cluster node reports changes of all the proxy's own keys, so a key that arrives with deadlines is covered at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from proxy.beats import until_beat
from proxy.commands.described import ServerCommands
from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage
from proxy.ending import end
from proxy.expiry.caller import COMPLETE, Caller, Listing
from proxy.expiry.clock import ServerClock
from proxy.expiry.engine import Engine
from proxy.expiry.indexes import SLOTS_AT_ONCE, Indexes, Place
from proxy.expiry.tasks import is_outage, one_line
from proxy.metrics.table import Metrics
from proxy.proxies.announcer import PUSHED, Proxies
from proxy.proxies.listening import listen
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots
from proxy.upstream.endpoint import Upstream
from proxy.upstream.nodes import myself
from proxy.upstream.trail import Trail
from proxy.upstream.words import REACH, ProxyBehindError, is_unreachable

log = structlog.get_logger("proxy.tracker")

_FIRST_BACKOFF: Final = 0.05
_LAST_BACKOFF: Final = 2.0
_STEADY_SECONDS: Final = 5.0
"""After the server has been followed for this long, the delay before reconnecting starts from the shortest again."""

_AROUND_SECONDS: Final = 2.0
"""How long to wait for this proxy's own name to come back, if the upstream is a proxy that does not serve clients yet.
The name's return shows that the upstream leads back to this proxy."""

_TICK_SECONDS: Final = 1.0
"""How often to check the lists of covered prefixes. The list beside an index may be lost (FLUSHDB), or never have been
written (by an older proxy)."""

_IDLE_TICK_SECONDS: Final = 5.0
"""How often to check while nothing has deadlines: a client that bypasses this proxy may set the first one."""

_REST_SECONDS: Final = 0.02
"""How long to collect changes of a cluster node's indexes before they are read."""


class Tracker:
    """Follows the server: reads the covered prefixes, and the server's messages about the proxy's own keys.

    Args:
        upstream: the server.
        caller: queries the server.
        indexes: reads deadlines.
        engine: writes the lists of covered prefixes in the server.
        coverage: the covered prefixes, which the tracker updates.
        alarm: knows whether anything has deadlines now.
        names: the names of the proxy's own keys.
        clock: the server's clock.
        commands: the server's commands, read when the server is reached.
        proxies: the protocol between proxies, which uses the same connection.
        metrics: counts reconnections.
        trail: knows whether the upstream leads back to this proxy.

    Attributes:
        settled: set when the covered prefixes are known and clients can be served; cleared when another server becomes
            the upstream.
        tried: set when the first attempt to reach the server has ended, successfully or not.
        connected: set while the server is followed.
    """

    def __init__(
        self,
        upstream: Upstream,
        caller: Caller,
        indexes: Indexes,
        engine: Engine,
        coverage: Coverage,
        alarm: Alarm,
        names: Names,
        clock: ServerClock,
        commands: ServerCommands,
        proxies: Proxies,
        metrics: Metrics,
        trail: Trail,
    ) -> None:
        self.settled = asyncio.Event()
        self.tried = asyncio.Event()
        self.connected = asyncio.Event()
        self._upstream = upstream
        self._stay = upstream.stay
        self._caller = caller
        self._indexes = indexes
        self._engine = engine
        self._coverage = coverage
        self._alarm = alarm
        self._names = names
        self._clock = clock
        self._commands = commands
        self._proxies = proxies
        self._metrics = metrics
        self._trail = trail
        self._arrived: set[int] = set()  # slots whose indexes must be read
        self._shadows: set[bytes] = set()  # keys of departing slots whose deadlines have changed
        self._news = asyncio.Event()
        self._loaded = False
        self._partial: set[int] = set()  # databases with incomplete lists, whose indexes were read instead
        self._complaints: set[str] = set()  # errors logged since the server was last reached: none is logged twice

    @property
    def is_first(self) -> bool:
        """Whether this proxy, of several, runs the background passes."""
        return self.connected.is_set() and self._proxies.is_first

    async def run(self) -> None:
        """Follow the server until cancelled; reconnect after failures."""
        backoff = _FIRST_BACKOFF
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            stay = self._stay = self._upstream.stay
            try:
                await stay.hold(self._follow())
            except Exception as error:  # noqa: BLE001 (keep trying: until it works, every key is covered)
                if self.connected.is_set() and loop.time() - began > _STEADY_SECONDS:
                    backoff = _FIRST_BACKOFF
                if stay.ended is None and not await self._is_circle(error):
                    self._lost(error)
            finally:
                self.connected.clear()
                self._coverage.loaded = False
                self._proxies.end()
                if stay.ended is None:
                    self.tried.set()
            # Keep several proxies from reconnecting at the same instant.
            await stay.rest(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = _FIRST_BACKOFF if stay.ended is not None else min(backoff * 2, _LAST_BACKOFF)

    def start_anew(self) -> None:
        """Forget everything: the upstream is another server, or has another role."""
        self.settled.clear()
        self.connected.clear()
        self._coverage.loaded = False
        self._coverage.distrust()

    async def _is_circle(self, error: Exception) -> bool:
        """Return whether the first attempt failed because the upstream leads back to this proxy."""
        if not self.tried.is_set() and isinstance(error, ProxyBehindError) and error.behind is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_AROUND_SECONDS):
                    await self._trail.met.wait()
        return self._trail.met.is_set()

    def _lost(self, error: Exception) -> None:
        state = self._upstream.explain(error) if is_outage(error) else one_line(error)
        if state not in self._complaints and state != self._upstream.state:
            self._complaints.add(state)
            advice = self._upstream.advice(error) or (REACH if is_unreachable(error) else None)
            log.warning(
                "no control connection to the upstream",
                upstream=str(self._upstream),
                state=state,
                exc_info=not is_outage(error),
                **({} if advice is None else {"advice": advice}),
            )
        self._upstream.state = state

    async def _follow(self) -> None:
        # redis-py passes a push to the handler for its kind and returns the handler's result.
        connection = self._upstream.listening_connection(self._invalidated, self._proxies.received)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await self._meet(connection, clustered=await self._upstream.greet(connection))
            await connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", *self._followed())
            await connection.read_response()
            await self._proxies.begin(connection)
            parts = (
                listen(connection, self._proxies),
                self._proxies.keep(),
                self._keep_current(),
                self._until_renamed(),
            )
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(tasks)
            for task in done:
                task.result()  # these tasks end only with an error
        finally:
            await connection.disconnect(nowait=True)

    async def _meet(self, connection: Any, *, clustered: bool) -> None:
        """Note whether the server is a cluster node and, if so, which slots it has."""
        self._commands.meet(clustered=clustered)
        if not clustered:
            self._indexes.clustered.clear()
            self._names.slots = None
            return
        await connection.send_command("CLUSTER", "NODES")
        node = myself(await connection.read_response())
        slots = self._names.slots
        if slots is None or slots.node != node.name:
            slots = self._names.slots = Slots(node.name)
        slots.take(primary=node.primary, owned=node.slots, moving=node.moving)
        self._indexes.renamed.clear()
        self._indexes.clustered.set()

    async def _until_renamed(self) -> None:
        """Reconnect when the cluster node's id has changed (CLUSTER RESET HARD): the channel's name contains the id.

        Raises:
            RedisConnectionError: the id has changed.
        """
        await self._indexes.renamed.wait()
        raise RedisConnectionError("the cluster node has another id now")

    def _followed(self) -> list[bytes]:
        """Return the prefixes of the keys whose changes the server reports."""
        words = [b"PREFIX", self._names.events]
        if self._names.slots is not None:
            words = [b"PREFIX", self._names.prefix]  # all of the proxy's keys: slots may arrive at any time
        return words

    def read_slots(self, numbers: Iterable[int]) -> None:
        """Have the indexes of some slots of a cluster node read: they may hold unknown deadlines."""
        self._arrived.update(numbers)
        self._news.set()

    async def _invalidated(self, push: list[Any]) -> object:
        slots = self._names.slots
        if push[1] is None and slots is not None:  # FLUSHALL: the push names no keys
            slots.changed |= slots.indexed
        for name in push[1] or ():
            if name.endswith(b"events"):
                self._note_rules(told=True)
            elif slots is not None and (number := self._names.slot_of(name)) is not None:
                slots.indexed.add(number)
                slots.changed.add(number)
            elif slots is not None and (key := self._names.key(name)) is not None:
                self._coverage.learn((key,))
                if slots.moving and slot(key) in slots.moving - slots.coming:
                    self._shadows.add(key)
        if (slots is not None and slots.changed) or self._shadows:
            self._news.set()
        return PUSHED

    async def _keep_current(self) -> None:
        await self._load()
        while True:
            with suppress(TimeoutError):
                seconds = _IDLE_TICK_SECONDS if self._alarm.is_idle else _TICK_SECONDS
                async with asyncio.timeout(until_beat(seconds)):
                    await self._news.wait()
            if self._news.is_set():
                self._news.clear()
                await self._read_arrived()
                shadows, self._shadows = self._shadows, set()
                if shadows:
                    await self._indexes.note_shadows(shadows)
                if changed := self._take_changed():
                    await self._learn_slots(changed)
                    await asyncio.sleep(_REST_SECONDS)
            else:
                # `Marks.expect` notes the slots whose indexes requests are about to change. If the server has reported
                # no change since, those requests were refused: forget the slots.
                self._take_changed()
                await self._indexes.find_databases()
                if await self._read_lists() and self._alarm.is_idle:
                    self._alarm.ring()  # a new index without an announcement: a client bypasses the proxies
            self._clear_up()

    def _take_changed(self) -> set[int]:
        """Return the slots of a cluster node whose indexes have changed since the last call."""
        slots = self._names.slots
        if slots is None:
            return set()
        changed, slots.changed = slots.changed, set()
        return changed

    async def _read_arrived(self) -> None:
        if not self._arrived:
            return
        arrived, self._arrived = sorted(self._arrived), set()
        await self._read(await self._indexes.places(arrived))
        await self._learn_slots(arrived)
        if not self._coverage.loaded and self._see():
            self._say_loaded(0.0)

    async def _learn_slots(self, numbers: Collection[int]) -> None:
        """Read the earliest deadlines of some slots of a cluster node, and have the sweeper wake for them."""
        slots = self._names.slots
        await self._indexes.learn_slots(numbers)
        if slots is not None and slots.primary:
            self._alarm.hear(self._indexes.order.earliest)

    async def _read_lists(self) -> bool:
        """Read the covered prefixes, and every index whose list is incomplete; complete the lists.

        Returns:
            Whether there is any index.
        """
        if self._names.slots is not None:
            return False
        databases = sorted(self._coverage.databases)
        lists = await self._caller.covered(databases, self._names.covered, self._names.index)
        self._coverage.databases.difference_update(set(databases) - lists.keys())
        for entries, _ in lists.values():
            self._coverage.add(entries)
        indexed = {database: set(entries) for database, (entries, is_indexed) in lists.items() if is_indexed}
        partial = [database for database, entries in indexed.items() if COMPLETE not in entries]
        await self._read([Place(database, None) for database in partial if database not in self._partial])
        self._partial = set(partial)
        own = set(self._coverage.entries)
        lacking = {database: Listing.BESIDE for database, entries in indexed.items() if not own <= entries}
        await self._engine.list_covered({**lacking, **dict.fromkeys(partial, Listing.WHOLE)}, own)
        return bool(indexed)

    async def _read_commands(self) -> None:
        self._commands.read_greeting(await self._caller.greeting())
        try:
            self._commands.read(await self._caller.commands())
        except ResponseError as error:
            log.warning(
                "server refuses the command COMMAND",
                error=one_line(error),
                advice="give the proxy's user the right to +command",
            )

    async def _load(self) -> None:
        """Read the covered prefixes.

        Every key stays covered until the prefixes can be read: while a cluster is down, its nodes answer nothing.
        """
        started = asyncio.get_running_loop().time()
        if not self.connected.is_set():
            await self._read_commands()
        await self._indexes.find_databases()
        slots = self._names.slots
        self._arrived.clear()
        self._partial.clear()
        if slots is None:
            await self._read_lists()
        else:
            slots.indexed.clear()
            self._indexes.order.clear()
            await self._indexes.survey(anew=True)
            await self._read(await self._indexes.places())
            await self._learn_slots(slots.indexed)
        self._note_rules(told=await self._indexes.has_rules())
        if await self._indexes.has_traces():
            self._coverage.ever = True
        await self._indexes.look()  # to learn the server's time
        self._open()
        if self._see():
            self._say_loaded(asyncio.get_running_loop().time() - started)
        else:
            log.info("cluster is down: covered prefixes will be loaded when it is up again")

    def _note_rules(self, *, told: bool) -> None:
        self._coverage.told = told
        self._commands.note_rules(told=told)

    def _say_loaded(self, seconds: float) -> None:
        say = log.debug if self._loaded else log.info
        self._loaded = True
        databases = len(self._coverage.databases)
        say("covered prefixes loaded", prefixes=len(self._coverage), databases=databases, ms=round(1000 * seconds))

    def _clear_up(self) -> None:
        """Forget the keys noted for slots that are not being moved and whose indexes have been read."""
        slots = self._names.slots
        if slots is not None:
            awaited = slots.unsettled | self._arrived
            slots.had.keep(awaited)
            slots.sent.keep(awaited)

    def _see(self) -> bool:
        """Stop being blind if everything has been read; return whether it has."""
        slots = self._names.slots
        # Ignore slots that are being moved: their index may be elsewhere. `Indexes.survey` has covered their keys.
        self._coverage.loaded = slots is None or (slots.owned - slots.moving).isdisjoint(slots.unread | self._arrived)
        self._coverage.see()
        return self._coverage.loaded

    async def _read(self, places: list[Place]) -> None:
        """Read whole indexes and cover their keys."""
        at_once = 1 if self._names.slots is None else SLOTS_AT_ONCE
        while places:
            further: list[Place] = []
            for begin in range(0, len(places), at_once):
                for page, place in await self._indexes.read(places[begin : begin + at_once]):
                    self._coverage.learn(key for key, _ in page)
                    if place is not None:
                        further.append(place)
            places = further

    def _open(self) -> None:
        if self.connected.is_set():
            return
        self._stay.check()
        if self.settled.is_set():
            self._metrics.control_reconnects_total += 1
            log.info("control connection to the upstream is back", upstream=str(self._upstream))
        self._upstream.state = "reachable"
        self._complaints.clear()
        self.connected.set()
        self.settled.set()
        self.tried.set()
