"""Keep the known keys current: read the index at start, then follow the server's own invalidation messages.

The server tells, on one RESP3 connection in broadcasting mode (`CLIENT TRACKING ON BCAST PREFIX`), the name of every
key under the reserved prefix that changes, whoever changes it. The name of a shadow contains the key.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from proxy.commands.described import ServerCommands
from proxy.ending import end
from proxy.expiry.caller import Caller
from proxy.expiry.clock import ServerClock
from proxy.expiry.indexes import SLOTS_AT_ONCE, Indexes, Place
from proxy.expiry.tasks import is_outage, one_line
from proxy.metrics.table import Metrics
from proxy.proxies.announcer import PUSHED, Proxies
from proxy.proxies.listening import listen
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots
from proxy.session.known import SETTLE_EVERY, KnownKeys, lease_clock
from proxy.upstream.endpoint import Upstream
from proxy.upstream.nodes import myself
from proxy.upstream.trail import Trail
from proxy.upstream.words import REACH, ProxyBehindError, is_unreachable

log = structlog.get_logger("proxy.tracker")

SOON_MS: Final = 60_000
"""Deadlines within this time are loaded before the first client is served; no other can pass before the rest is."""

_FIRST_BACKOFF: Final = 0.05
_LAST_BACKOFF: Final = 2.0
_STEADY_SECONDS: Final = 5.0
"""How long the server must have been followed for the next failure to count as the first."""

_REST_SECONDS: Final = 0.02
"""How long news waits that cannot be of an earlier deadline than is known: a client that pipelines makes a thousand a
second."""

_AROUND_SECONDS: Final = 2.0
"""How long a proxy that is the upstream, and serves nobody, has to send on this one's name: its own may be this one."""

_TICK_SECONDS: Final = 1.0
_DATABASES_SECONDS: Final = 0.02
"""How often the list of databases is asked for at most."""


class Tracker:
    """Follows the index.

    Args:
        upstream: the server.
        caller: asks the server.
        indexes: reads deadlines.
        known: what is kept current.
        names: the names of the proxy's own keys.
        clock: the server's clock.
        commands: the server's commands, read when it is reached.
        proxies: the protocol between proxies, which rides on the same connection.
        metrics: where to count.
        trail: tells whether the upstream is this very proxy.

    Attributes:
        settled: set when what is due soon is known for the first time, so that clients can be served; cleared when
            another server becomes the upstream.
        tried: set when the first attempt to reach the server has ended, well or not.
        connected: set while the server is followed.
        changes: how often it has been told that keys of the proxy's own may have changed.
    """

    def __init__(
        self,
        upstream: Upstream,
        caller: Caller,
        indexes: Indexes,
        known: KnownKeys,
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
        self.changes = 0
        self._upstream = upstream
        self._stay = upstream.stay
        self._caller = caller
        self._indexes = indexes
        self._known = known
        self._names = names
        self._clock = clock
        self._commands = commands
        self._proxies = proxies
        self._metrics = metrics
        self._trail = trail
        self._changed: set[bytes] = set()
        self._everything = False  # the server said that anything may have changed
        self._arrived: set[int] = set()  # slots whose indexes are to be read
        self._news = asyncio.Event()
        self._urgent = asyncio.Event()  # news that cannot wait
        self._unplaced = False  # whether something changed since the databases were last counted
        self._unseen: set[bytes] = set()  # known before, and not met in the index that is being read
        self._loaded = False
        self._complaints: set[str] = set()  # since it was reached: two may take turns for ever
        self._databases_read = -math.inf

    async def run(self) -> None:
        """Follow the server, whatever happens to it, until cancelled."""
        backoff = _FIRST_BACKOFF
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            stay = self._stay = self._upstream.stay
            try:
                await stay.hold(self._follow())
            except Exception as error:  # noqa: BLE001 (whatever the server answers, go on: until then all keys are known)
                if self.connected.is_set() and loop.time() - began > _STEADY_SECONDS:
                    backoff = _FIRST_BACKOFF
                if stay.ended is None and not await self._is_circle(error):
                    self._lost(error)
            finally:
                self.connected.clear()
                self._known.loaded = False
                self._proxies.end()
                if stay.ended is None:
                    self.tried.set()
            # Keep several proxies from coming back in the same instant.
            await stay.rest(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = _FIRST_BACKOFF if stay.ended is not None else min(backoff * 2, _LAST_BACKOFF)

    def start_anew(self) -> None:
        """Another server is the upstream, or the same one in another role: nothing is known of it yet."""
        self.settled.clear()
        self.connected.clear()
        self._known.loaded = False
        self._known.distrust()

    async def _is_circle(self, error: Exception) -> bool:
        """Return whether the first attempt has failed because the upstream is this very proxy, over others perhaps."""
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
        # redis-py hands a push to the handler for its kind, and gives what that returns.
        connection = self._upstream.listening_connection(self._invalidated, self._proxies.received)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await self._meet(connection, clustered=await self._upstream.greet(connection))
            await connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", self._names.prefix)
            await connection.read_response()
            self._changed.clear()
            self._everything = False
            await self._proxies.begin(connection)
            parts = (
                listen(connection, self._proxies),
                self._proxies.keep(),
                self._keep_current(),
                self._keep_settled(),
                self._until_renamed(),
            )
            tasks = [asyncio.create_task(part) for part in parts]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(tasks)
            for task in done:
                task.result()  # none ends but by an error
        finally:
            await connection.disconnect(nowait=True)

    async def _meet(self, connection: Any, *, clustered: bool) -> None:
        """See which slots the server has, if it is a node of a cluster."""
        if not clustered:
            self._names.slots = None
            return
        await connection.send_command("CLUSTER", "NODES")
        node = myself(await connection.read_response())
        slots = self._names.slots
        if slots is None or slots.node != node.name:
            slots = self._names.slots = Slots(node.name)
        slots.take(primary=node.primary, owned=node.slots, moving=node.moving)
        self._indexes.renamed.clear()
        self._known.keep_order()

    async def _until_renamed(self) -> None:
        """Begin anew when a cluster node has another id (CLUSTER RESET HARD): the name of the proxies' channel has it.

        Raises:
            RedisConnectionError: it has.
        """
        await self._indexes.renamed.wait()
        raise RedisConnectionError("the cluster node has another id now")

    def read_slots(self, numbers: Iterable[int]) -> None:
        """Read the indexes of slots of a cluster node, in which there may be deadlines of which nothing is known."""
        self._arrived.update(numbers)
        self._news.set()
        self._urgent.set()

    async def _invalidated(self, push: list[Any]) -> object:
        names = push[1]
        if names is None:
            self._everything = True
            self._news.set()
            self._urgent.set()
            return PUSHED
        self._known.ever = True
        self.changes += 1
        slots = self._names.slots
        for name in names:
            key = self._names.key(name)
            if key is None and slots is not None and (number := self._names.slot_of(name)) is not None:
                slots.indexed.add(number)
            if key is not None:
                self._changed.add(key)
                self._known.suspect(key)
                if slots is not None and (place := slot(key)) not in slots.owned:
                    # It is on its way here, and cannot be asked about before it is; something may be due in it then.
                    self._known.obscure(place, key)
                self._news.set()
                if self._known.is_urgent(key):
                    self._urgent.set()
        return PUSHED

    async def _keep_current(self) -> None:
        await self._load()
        while True:
            try:
                async with asyncio.timeout(_DATABASES_SECONDS if self._unplaced else _TICK_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                # A SWAPDB may have put an index where there was none; of all else the server tells.
                self._unplaced = self._unplaced or bool(self._known.deadlines)
            self._news.clear()
            if self._everything:
                self._everything = False
                await self._load()
            if self._arrived:
                arrived = sorted(self._arrived)
                self._arrived.clear()
                await self._read(await self._indexes.places(arrived))
                if not self._known.loaded and self._see():
                    self._say_loaded(len(self._known.deadlines), 0.0)
            self._clear_up()
            if self._changed:
                await self._learn_changed()
            if self._unplaced:
                await self._find_databases()
            await self._rest()

    async def _rest(self) -> None:
        """Wait for more news, unless some cannot wait."""
        self._urgent.clear()
        if self._everything or self._arrived or any(map(self._known.is_urgent, self._changed)):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                await self._urgent.wait()

    async def _keep_settled(self) -> None:
        """Settle claims and marks, whatever else there is to do: see which requests are still on their way."""
        known, announced = self._known, -math.inf
        while True:
            await asyncio.sleep(SETTLE_EVERY)
            if known.crowded:
                await self._caller.round_trip()  # nobody is turned away because the server answers nobody
            now = lease_clock()
            self._note_changed(known.stale_marks(now))
            self._note_changed(known.settle(now))
            while known.settling:
                await asyncio.sleep(0)
                self._note_changed(known.settle_more())
            if known.has_orphans(now):
                for _ in range(2):  # what had come before the first question has been read when the second is answered
                    await self._caller.round_trip()
                while known.has_orphans(now):
                    self._note_changed(known.bury(now))
                    await asyncio.sleep(0)
            if known.shared and now >= announced + _TICK_SECONDS:
                announced = now
                self._proxies.announce_again(known.to_announce_again(now))

    def _note_changed(self, keys: list[bytes]) -> None:
        if keys:
            self._changed.update(keys)
            self._news.set()

    async def _learn_changed(self) -> None:
        keys = list(self._changed)
        self._unseen -= self._changed
        self._changed.clear()
        await self._indexes.learn(keys)
        self._unplaced = True

    async def _find_databases(self) -> None:
        """See whether what changed is in a database that had no keys before; if so, read what is there."""
        now = asyncio.get_running_loop().time()
        if now - self._databases_read < _DATABASES_SECONDS:
            return
        self._databases_read = now
        self._unplaced = False
        before = set(self._known.databases)
        await self._indexes.find_databases()
        if self._known.databases - before:
            await self._load()

    async def _read_commands(self) -> None:
        self._commands.read_greeting(await self._caller.greeting())
        try:
            self._commands.read(await self._caller.commands())
        except ResponseError as error:
            log.warning("COMMAND refused", error=one_line(error), advice="give the proxy's user the right to +command")

    async def _load(self) -> None:
        """Read the index of every database, earliest deadlines first; then forget known keys that were not there.

        What a cluster node tells nothing of, because the cluster is down, is read as soon as it is up. Until then every
        key counts as known.
        """
        started = asyncio.get_running_loop().time()
        self._unseen = set(self._known.deadlines)
        if not self.connected.is_set():
            await self._read_commands()
            self.changes += 1  # of which nobody has told
        await self._indexes.find_databases()
        slots = self._names.slots
        if self.connected.is_set() and slots is None and not await self._indexes.has_any():
            for key in self._unseen - self._changed:  # (FLUSHALL)
                self._known.learn(key, None, -math.inf)
            self._unseen = set()
            self._see()
            return
        self.changes += 1
        await self._indexes.look()  # for the clock, and which databases there are
        if slots is not None:
            slots.indexed.clear()
        self._arrived.clear()
        await self._indexes.survey(anew=True)
        count = await self._read(await self._indexes.places(), soon=self._clock.now() + SOON_MS)
        self._known.ever = self._known.ever or await self._indexes.has_traces()
        unread = set() if slots is None else slots.unread | self._arrived
        for key in self._unseen - self._changed:
            if not unread or slot(key) not in unread:
                self._known.learn(key, None, -math.inf)
        self._unseen = set()
        self._open()
        if self._see():
            self._say_loaded(count, asyncio.get_running_loop().time() - started)
        else:
            log.info("the cluster is down: deadlines are loaded when it is up")

    def _say_loaded(self, count: int, seconds: float) -> None:
        say = log.debug if self._loaded else log.info
        self._loaded = True
        say("deadlines loaded", keys=count, databases=len(self._known.databases), ms=round(1000 * seconds))

    def _clear_up(self) -> None:
        """Treat keys like others again whose slots have come to the cluster node, and have been read, or stay there."""
        slots, known = self._names.slots, self._known
        if slots is None:
            return
        awaited = slots.moving | slots.unread | self._arrived
        for keys in (known.unclear, known.sent, known.parted):
            keys.keep(awaited)

    def _see(self) -> bool:
        """Count every key as known no longer, if all has been read; return whether it has."""
        slots = self._names.slots
        # Where a slot is on its way its index may be elsewhere: the slot has been surveyed.
        self._known.loaded = slots is None or (slots.owned - slots.moving).isdisjoint(slots.unread | self._arrived)
        self._known.see()
        return self._known.loaded

    async def _read(self, places: list[Place], *, soon: float = math.inf) -> int:
        """Read indexes to their ends, earliest deadlines first; let clients in when what is due until `soon` is known.

        Returns:
            How many keys there were.
        """
        at_once, count = 1 if self._names.slots is None else SLOTS_AT_ONCE, 0
        while places:
            further: list[Place] = []
            for begin in range(0, len(places), at_once):
                for page, place in await self._indexes.read(places[begin : begin + at_once]):
                    for key, deadline in page:
                        self._unseen.discard(key)
                        if key not in self._changed:
                            self._known.learn(key, min(deadline, self._known.deadlines.get(key, math.inf)), -math.inf)
                    count += len(page)
                    if place is not None:
                        further.append(place)
            if self._changed:
                await self._learn_changed()
            places = further
            if all(place.cursor > soon for place in places):
                self._open()
        return count

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
