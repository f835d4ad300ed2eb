"""The engine: what the proxy itself asks of Redis, over its own connections, to remove members that are due."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import structlog
from redis.asyncio import Redis
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from proxy.expiry.clock import ServerClock
from proxy.logs import Seldom
from proxy.metrics.table import Metrics
from proxy.metrics.told import count_told
from proxy.scripts.calls import TELL, all_in_arguments, script
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots
from proxy.session.known import AHEAD_MS, KnownKeys
from proxy.session.order import DeadlineOrder
from proxy.session.question import Arrival, Question
from proxy.session.voiding import Absent, voidings
from proxy.upstream.nodes import myself

log = structlog.get_logger("proxy.engine")

KEYS_AT_ONCE: Final = 128
"""Keys that one script looks at, at most."""

SWEPT_AT_ONCE: Final = 32
"""Keys that one script of the sweeper clears: others wait for it, and for the proxy to take in its result."""

MEMBERS_AT_ONCE: Final = 500
"""Members, or deadlines, that one script looks at, about."""

PAIRS_AT_ONCE: Final = 2_000
"""Pairs of a key and a database that one script looks at, at most."""

LEARNT_AT_ONCE: Final = 250
"""Keys whose deadlines are asked for at once: clients wait while the question is encoded."""

PAGE: Final = 1000
"""Entries of an index that are read at once."""

PAGE_OF_SLOT: Final = 100
"""The same where there is one for each slot, of which as many are read at once as `SLOTS_AT_ONCE`."""

SLOTS_AT_ONCE: Final = 100
"""Slots whose indexes are read at once."""

PRESENT_AT_ONCE: Final = 1000
"""Slots of which a cluster node is asked at once whether they have an index, in some 1.6 ms."""

KEYS_OF_SLOT: Final = 1_000_000
"""Keys that are looked for at most in a slot that is on its way to a cluster node."""

ELSEWHERE: Final = -1
"""What a script answers for a key that a cluster node does not have, or tells nothing of."""

TELLING_SECONDS: Final = 60.0
"""How long after rules for events have been met the scripts that can tell are sent at once."""

_NEARLY: Final = 0.0002
"""Seconds between two looks at a deadline that is about to pass."""

LEASE_MS: Final = 1000
"""How long the sweeper's lease lasts without renewal: another proxy takes over at the latest then."""


Call: TypeAlias = tuple[list[bytes], list[bytes | int | str]]
"""KEYS and ARGV of a script."""


@dataclass(frozen=True, slots=True)
class Place:
    """An index, and where to go on reading it.

    Attributes:
        database: the number of its database.
        slot: its slot; None for the one index of a database.
        cursor: the deadline to begin at, in Unix ms.
        offset: how many entries with that very deadline have been read already.
    """

    database: int
    slot: int | None
    cursor: float = -math.inf
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What is due in one database.

    Attributes:
        database: its number.
        earliest: its earliest deadline, in Unix ms; infinite when there is none.
        due: keys with members that are due, each with its earliest deadline; in that order, not necessarily all.
    """

    database: int
    earliest: float
    due: list[tuple[bytes, float]]


class Engine:
    """Calls the scripts.

    Args:
        control: the connection of the proxy's own.
        home: the number of the database in which the sweeper's lease is.
        names: the names of the proxy's own keys.
        known: the keys with deadlines; kept current with what the scripts report.
        clock: the server's clock; kept current likewise.
        batch: members that one script removes at most.
        metrics: where to count what is removed.

    Attributes:
        misplaced: set when a cluster node has said of a key that it is not there.
        renamed: set when a cluster node has another id than it had.

    Every method raises `redis.exceptions.RedisError` when the server does not answer, or with an error.
    """

    def __init__(
        self,
        control: Redis,
        home: int,
        names: Names,
        known: KnownKeys,
        clock: ServerClock,
        batch: int,
        metrics: Metrics,
    ) -> None:
        self._control = control
        self._home = home
        self._names = names
        self._known = known
        self._clock = clock
        self._batch = batch
        self._metrics = metrics
        self._name = secrets.token_hex(8)
        self._say_lost = Seldom(log.warning, "events about expired members lost")
        self._telling_until = -math.inf
        self.misplaced = asyncio.Event()
        self.renamed = asyncio.Event()
        self._slots_are_asked = asyncio.Lock()
        self._roles_asked = 0
        self._role_is_asked = asyncio.Lock()
        self._looks = 0  # that have begun
        # Keys at which somebody looks: the number of the look, and its end, which tells whether it succeeded.
        self._busy: dict[bytes, tuple[int, asyncio.Future[bool]]] = {}

    async def _evaluate(self, name: str, keys: Iterable[bytes], arguments: Iterable[bytes | int | str]) -> Any:
        [reply] = await self._call(script(name), [(list(keys), list(arguments))])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def _call(self, text: bytes, calls: Sequence[Call], *, asking: bool = False) -> list[Any]:
        """Call a script, once for each slot concerned.

        Args:
            text: the script.
            calls: KEYS and ARGV.
            asking: whether the slots are on their way to the node.

        Returns:
            The replies. Where a cluster node has not all keys of a slot, the error that says so stands for its reply.
        """
        slots = self._names.slots
        if slots is None:
            [(keys, arguments)] = calls
            return [await self._control.eval(text, len(keys), *keys, *arguments)]  # type: ignore[arg-type]
        pipeline = self._control.pipeline(transaction=False)
        if not slots.primary:
            pipeline.execute_command("READONLY")
        for keys, arguments in calls:
            if asking:
                pipeline.execute_command("ASKING")
            pipeline.eval(text, len(keys), *keys, *arguments)  # type: ignore[arg-type]
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        if not slots.primary and isinstance(replies[0], Exception):
            raise replies[0]  # the proxy's user may not read here
        replies = replies[1::2] if asking else replies[-len(calls) :]
        for reply in replies:
            if isinstance(reply, Exception) and not is_elsewhere(reply):
                raise reply
        return replies

    async def _remove(
        self, trigger: Literal["sweep", "request"], name: str, call: Call, *, undeclared: bool = False
    ) -> Any:
        """Run a script that removes, in its short form while nobody has to be told of what goes.

        Args:
            trigger: what makes it necessary.
            name: the script.
            call: its KEYS and ARGV.
            undeclared: whether ARGV has all of KEYS, behind their number.

        Returns:
            The reply, or an error as of `_call`.
        """
        quiet = time.monotonic() >= self._telling_until
        try:
            return (await self._call(script(name, quiet=quiet, undeclared=undeclared), [call]))[0]
        except ResponseError as error:
            if not str(error).startswith(TELL):
                raise
            self._metrics.members_expired_total[trigger] += int(str(error).removeprefix(TELL))
        self._telling_until = time.monotonic() + TELLING_SECONDS
        return (await self._call(script(name, undeclared=undeclared), [call]))[0]

    def _involved(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the index, then each key followed by its shadow; the keys are of one slot."""
        return [self._names.index_for(keys[0]), *(name for key in keys for name in (key, self._names.shadow(key)))]

    def _triples(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return each key followed by its shadow and its index."""
        names = self._names
        return [name for key in keys for name in (key, names.shadow(key), names.index_for(key))]

    def _is_coming(self, key: bytes) -> bool:
        """Return whether a key's slot is being moved to the cluster node, which has to be asked for it by ASKING."""
        slots = self._names.slots
        return slots is not None and slot(key) in slots.coming

    async def _note_elsewhere(self, keys: Sequence[bytes]) -> None:
        """Note that a cluster node does not have some keys, or not all that belongs to them.

        Such a key is forgotten, unless its slot is the node's, or on its way: then it may have deadlines of which
        nothing is known, until the slot's index has been read. In a slot that goes only those that had some.
        """
        if not keys:
            return
        self.misplaced.set()
        await self.look_at_slots()
        slots, moment = self._names.slots, self._clock.now()
        for key in keys:
            had = self._known.has_had(key)
            self._known.learn(key, None, moment)
            if slots is None or not slots.expects(number := slot(key)):
                continue
            if number in slots.coming:  # it is read when its move has ended
                self._known.obscure(number, key)
            elif number not in slots.moving:
                self._known.mark(key, math.inf, moment)
                slots.unread.add(number)
            elif had:
                self._known.mark(key, math.inf, moment)
                self._known.parted.add(number, (key,))

    def _observe(self, sent: float, moment: int) -> None:
        self._clock.observe(sent, self._clock.local(), moment / 1000)
        self._known.doubt = self._clock.doubt()

    async def commands(self) -> list[list[Any]]:
        """Read what the server says of its commands, as it says it."""
        rows: list[list[Any]] = await self._ask("COMMAND")
        return rows

    async def users(self) -> list[bytes]:
        """Read the server's users with their rights, a line each."""
        lines: list[bytes] = await self._ask("ACL", "LIST")
        return lines

    async def round_trip(self) -> None:
        """Wait until the server has answered a request on a connection of the proxy's own, whatever it says."""
        with suppress(ResponseError):
            await self._ask("PING")

    async def greeting(self) -> dict[bytes, Any]:
        """Read what the server says of itself: its name, its version and more."""
        words = await self._ask("HELLO")
        return words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))

    async def _ask(self, *words: str) -> Any:
        """Return the reply to a command as it comes, of which redis-py would make something else."""
        connection = await self._control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await self._control.connection_pool.release(connection)

    async def has_traces(self) -> bool:
        """Return whether any database has keys of the proxy's own that need no deadline."""
        slots = self._names.slots
        if slots is not None:
            return bool(slots.indexed)
        databases = sorted(self._known.databases)
        return bool(await self._evaluate("traces", [self._names.lease, self._names.events], databases))

    async def _look_at_role(self) -> None:
        """See whether a replica of a cluster's has become a primary; all who ask meanwhile share the next answer."""
        asked = self._roles_asked
        async with self._role_is_asked:
            if self._roles_asked > asked:
                return
            self._roles_asked += 1
            if (await self.greeting()).get(b"role") == b"master":
                await self.look_at_slots()

    async def look_at_slots(self) -> None:
        """Ask a cluster node which slots it has. Its answers are taken in the order in which they were given."""
        async with self._slots_are_asked:
            node, slots = myself(await self._ask("CLUSTER", "NODES")), self._names.slots
        if slots is None:
            return
        if node.name != slots.node:
            self.renamed.set()
        before, owned = slots.primary, slots.owned
        slots.unread |= slots.take(primary=node.primary, owned=node.slots, moving=node.moving)
        await self.survey()
        if before != slots.primary:
            log.info("role in the cluster changed", role="primary" if slots.primary else "replica")
        if owned != slots.owned:
            log.debug("slots changed", slots=len(slots.owned))

    def _count_told(self, told: list[int | bytes]) -> None:
        """Count the events that a script has told, and warn of those that the server refused."""
        error = count_told(self._metrics, told)
        if error:
            self._say_lost(
                error=error.decode(errors="replace"),
                entries=told[2],
                messages=told[3],
                advice="see that the stream of the rule is a stream, and that the proxy's user may write to it",
            )

    async def find_databases(self) -> None:
        """Find the databases that have keys at all."""
        keyspace = await self._control.info("keyspace")
        self._known.databases.update(int(name[2:]) for name in keyspace if name.startswith("db"))

    async def look(self, *, for_sweep: bool = False) -> tuple[list[Look], float]:
        """Ask, for each database, what is due and when something will be.

        Args:
            for_sweep: whether to take the sweeper's lease if anything is due.

        Returns:
            What is due, and for how many ms another proxy has the lease still (0: it does not).
        """
        if self._names.slots is not None and self._known.order is not None:
            return await self._look_at_known(self._names.slots, self._known.order, for_sweep=for_sweep)
        databases = sorted(self._known.databases)
        who = self._name if for_sweep else ""
        sent = self._clock.local()
        moment, taken, found = await self._evaluate(
            "due",
            [self._names.index, self._names.lease],
            [self._home, who, LEASE_MS, KEYS_AT_ONCE, *databases],
        )
        self._observe(sent, moment)
        looks = [
            Look(
                int(database),
                float(first) if first else math.inf,
                list(zip(due[::2], map(float, due[1::2]), strict=True)),
            )
            for database, first, due in found
        ]
        # A client may have tried to go to a database that there is not.
        self._known.databases.difference_update(set(databases) - {look.database for look in looks})
        return looks, float(taken)

    async def _look_at_known(self, slots: Slots, order: DeadlineOrder, *, for_sweep: bool) -> tuple[list[Look], float]:
        """See what is due as far as is known: to look at an index for each slot would hold a server up for 9 ms.

        At a replica nothing is: its primary's proxy removes it.
        """
        sent = self._clock.local()
        seconds, micros = await self._control.time()
        self._observe(sent, 1_000_000 * seconds + micros)
        if not slots.primary:
            return [Look(database, math.inf, []) for database in sorted(self._known.databases)], 0.0
        due, taken = order.due(1000 * seconds + micros / 1000, KEYS_AT_ONCE), 0.0
        if due and for_sweep:
            [taken] = await self._call(script("lease"), [([self._names.lease], [self._home, self._name, LEASE_MS])])
            if isinstance(taken, Exception):  # the slot has gone
                self.misplaced.set()
                taken = 0.0
        return [Look(database, order.earliest, due) for database in sorted(self._known.databases)], float(taken)

    async def sweep(
        self, database: int, due: list[tuple[bytes, float]], *, trigger: Literal["sweep", "request"] = "sweep"
    ) -> int:
        """Remove what is due in some keys of one database, a batch at most.

        Args:
            database: its number.
            due: the keys, `SWEPT_AT_ONCE` at most, with their earliest deadlines.
            trigger: what makes it necessary.

        Returns:
            How many members and deadlines went; fewer than a batch when nothing that is due is left.
        """
        keys = [key for key, _ in due]
        name, in_slots = "sweep", self._names.slots is not None
        call: Call = self._involved(keys), [database, self._batch]
        if in_slots:
            name, call = "sweep_slots", ([], [*all_in_arguments(self._triples(keys)), database, self._batch])
        sent = self._clock.local()
        with self._known.asking() as freed:
            moment, gone, left, members, told = await self._remove(trigger, name, call, undeclared=in_slots)
            self._observe(sent, moment)
            self._metrics.members_expired_total[trigger] += members
            self._count_told(told)
            alone = len(self._known.databases) == 1
            for (key, deadline), after in zip(due, left, strict=False):
                if after == ELSEWHERE:
                    continue
                earliest = float(after) if after else None
                # Without members the index was wrong, which clients' scripts can make it: then nothing was late.
                if members and earliest != deadline and trigger == "sweep" and math.isfinite(deadline):
                    self._metrics.removal_delay_seconds.observe(moment / 1e6 - deadline / 1000)
                if alone:
                    self._known.learn(key, earliest, moment / 1000, freed=freed)
            await self._note_elsewhere([key for key, after in zip(keys, left, strict=False) if after == ELSEWHERE])
            if not alone and in_slots:
                await self.learn(keys)
        return int(gone)

    async def learn(self, keys: list[bytes]) -> list[bytes]:
        """Read the earliest deadlines of some keys, and make them known.

        Returns:
            The keys that have none.
        """
        without: list[bytes] = []
        for begin in range(0, len(keys), LEARNT_AT_ONCE):
            page = keys[begin : begin + LEARNT_AT_ONCE]
            databases = sorted(self._known.databases)
            sent = self._clock.local()
            with self._known.asking() as freed:
                text = script("deadlines")
                call: Call = [self._names.index], [len(databases), *databases, *page]
                if self._names.slots is not None:
                    text = script("deadlines_of_slots", undeclared=True)
                    call = ([], [*all_in_arguments(self._triples(page)), *databases])
                try:
                    [(moment, found)] = await self._call(text, [call])
                except ClusterDownError:
                    self._put_off(page)
                    continue
                self._observe(sent, moment)
                elsewhere: list[bytes] = []
                for key, deadline in zip(page, found, strict=True):
                    if deadline == ELSEWHERE:
                        elsewhere.append(key)
                    else:
                        self._known.learn(key, float(deadline) if deadline else None, moment / 1000, freed=freed)
                    if not deadline or deadline == ELSEWHERE:
                        without.append(key)
                await self._note_elsewhere(elsewhere)
        return without

    def _put_off(self, keys: Iterable[bytes]) -> None:
        """Leave what is known of keys as it is while the cluster is down, and have their slots read afterwards."""
        slots = self._names.slots
        for key in keys:
            self._known.mark(key, math.inf, 0.0)
            if slots is not None:
                slots.unread.add(slot(key))

    async def places(self, numbers: Iterable[int] | None = None) -> list[Place]:
        """Return where the indexes of the known databases begin.

        Args:
            numbers: of a cluster node, the slots to look at; None for all of its own.
        """
        slots, databases = self._names.slots, sorted(self._known.databases)
        if slots is None:
            return [Place(database, None) for database in databases]
        found: list[Place] = []
        wanted = sorted(slots.owned if numbers is None else numbers)
        for database in databases:
            for begin in range(0, len(wanted), PRESENT_AT_ONCE):
                page = wanted[begin : begin + PRESENT_AT_ONCE]
                names = [self._names.index_of(number) for number in page]
                reply = await self._evaluate("present", [], [database, *names])
                for number, present in zip(page, reply, strict=False):
                    if present > 0:
                        found.append(Place(database, number))
                        slots.indexed.add(number)
                    elif present < 0 and slots.expects(number):
                        slots.unread.add(number)
        return found

    async def survey(self, *, anew: bool = False) -> None:
        """Make known the keys with shadows in slots that are on their way to a cluster node: they come before the slot
        and its index, or have been left there by an earlier move.

        Args:
            anew: whether nothing is known of any slot. Then likewise in those that go, whose index may have gone.
        """
        slots = self._names.slots
        if slots is None:
            return
        for number in sorted(slots.moving if anew else slots.coming - slots.surveyed):
            names = await self._ask("CLUSTER", "GETKEYSINSLOT", str(number), str(KEYS_OF_SLOT))
            comes = number in slots.coming
            for key in map(self._names.key, names):
                if key is not None and comes:
                    self._known.obscure(number, key)
                elif key is not None:
                    self._known.mark(key, math.inf, 0.0)
            if comes:
                slots.surveyed.add(number)

    async def read_indexes(self, places: Sequence[Place]) -> list[tuple[list[tuple[bytes, float]], Place | None]]:
        """Read on in some indexes, `SLOTS_AT_ONCE` of a cluster node or one of another server, earliest deadline first.

        Returns:
            For each the keys with their earliest deadlines in Unix ms, and where to go on; None at the end.
        """
        size = PAGE if self._names.slots is None else PAGE_OF_SLOT
        calls: list[Call] = [
            ([self._names.index_of(place.slot)], [place.database, repr(place.cursor), place.offset, size])
            for place in places
        ]
        pages: list[tuple[list[tuple[bytes, float]], Place | None]] = []
        try:
            replies = await self._call(script("page"), calls)
        except ClusterDownError as error:
            replies = [error] * len(calls)
        for place, flat in zip(places, replies, strict=True):
            if isinstance(flat, Exception):
                if self._names.slots is not None and place.slot is not None:
                    self._names.slots.unread.add(place.slot)
                pages.append(([], None))
                continue
            page = [(flat[at], float(flat[at + 1])) for at in range(0, len(flat), 2)]
            further = None
            if len(page) >= size:
                last = page[-1][1]
                ties = sum(1 for _, deadline in page if deadline == last)
                further = Place(place.database, place.slot, last, ties + place.offset * (last == place.cursor))
            pages.append((page, further))
        return pages

    async def answer(self, question: Question) -> None:
        """Do what a session asks for; in whatever database the keys are. A replica of a cluster's removes nothing."""
        slots = self._names.slots
        if slots is not None and not slots.primary:
            await self._look_at_role()
        if slots is not None and not slots.primary:
            if question.unclear:
                await self.learn(list(question.unclear))
            return
        if question.everywhere:
            await self._remove_everything_due()
        if question.due:
            await self._remove_due(question.due)
        if question.unclear:
            await self.learn(list(question.unclear))
        if question.leftover:
            await self._drop_leftovers(question.leftover)
        if question.arrivals:
            await self._make_way(question.arrivals)
        if question.absent:
            await self._void(question.absent, tentative=question.tentative)

    async def _remove_everything_due(self) -> None:
        while True:
            looks, _ = await self.look()
            if not any(look.due for look in looks):
                if min((look.earliest for look in looks), default=math.inf) > self._clock.latest() + AHEAD_MS:
                    return
                await asyncio.sleep(_NEARLY)
            for look in looks:
                if look.due:
                    await self.sweep(look.database, look.due, trigger="request")

    async def _remove_due(self, keys: tuple[bytes, ...]) -> None:
        """Remove what is due in some keys; requests for the same key at the same time share the work.

        But where other proxies' clients may have set deadlines of which no word has come, a look that had begun before
        this request came says nothing.
        """
        came, unseen, due = self._looks, set(keys), list(keys)
        while due:
            free = [key for key in due if key not in self._busy]
            if free:
                await self._look_at(free)
                unseen.difference_update(free)
            else:
                busy = {key: self._busy[key] for key in due}
                await asyncio.wait([done for _, done in busy.values()])
                unseen.difference_update(key for key, (begun, done) in busy.items() if begun > came and done.result())
            now = self._clock.latest()
            due = self._known.due(keys, now, AHEAD_MS)
            due += set(self._known.to_ask_about(unseen, now)).difference(due)

    async def _look_at(self, keys: list[bytes]) -> None:
        """Remove what is due in some keys at which nobody looks at present."""
        self._looks += 1
        done, succeeded = asyncio.get_running_loop().create_future(), False
        self._busy.update(dict.fromkeys(keys, (self._looks, done)))
        try:
            for begin in range(0, len(keys), KEYS_AT_ONCE):
                await self._remove_due_page(keys[begin : begin + KEYS_AT_ONCE])
            succeeded = True
        finally:
            for key in keys:
                del self._busy[key]
            done.set_result(succeeded)

    async def _remove_due_page(self, keys: list[bytes]) -> None:
        for group in self._names.by_slot(keys):
            await self._remove_due_of_slot(group)
        if self._known.due(keys, self._clock.latest(), AHEAD_MS):
            # By the server's own clock it is some µs until then.
            await asyncio.sleep(_NEARLY)

    async def _remove_due_of_slot(self, keys: list[bytes]) -> None:
        if await self._cleared(keys):
            return
        await self._note_elsewhere(keys)
        slots, number = self._names.slots, slot(keys[0])
        if slots is not None and number in slots.owned and number not in slots.moving:
            await self._cleared(keys)  # it has become the node's own meanwhile
        else:
            await self._clear_on_its_way(keys)

    async def _cleared(self, keys: list[bytes]) -> bool:
        """Remove what is due in some keys of one slot; return False where a cluster node does not have them."""
        databases = sorted(self._known.databases)
        found: dict[bytes, float | None] = dict.fromkeys(keys)
        at_once = max(1, PAIRS_AT_ONCE // len(keys))
        since = math.inf
        with self._known.asking() as freed:
            for begin in range(0, len(databases), at_once):
                cleared = await self._clear(keys, databases[begin : begin + at_once])
                if cleared is None:
                    return False
                moment, left = cleared
                since = min(since, moment)
                for key, deadline in zip(keys, left, strict=True):
                    if deadline:
                        found[key] = min(float(deadline), found[key] or math.inf)
            for key, earliest in found.items():
                self._known.learn(key, earliest, since, freed=freed)
        return True

    async def _clear(self, keys: list[bytes], databases: list[int]) -> tuple[float, list[bytes]] | None:
        """Remove what is due in some keys of some databases; return when that was, in Unix ms, and what is earliest.

        None where a cluster node does not have them.
        """
        while True:
            sent = self._clock.local()
            reply = await self._remove("request", "clear", (self._involved(keys), [self._batch, 0, *databases]))
            if isinstance(reply, Exception):
                return None
            moment, gone, left, _, members, told = reply
            self._observe(sent, moment)
            self._metrics.members_expired_total["request"] += members
            self._count_told(told)
            if gone < self._batch:
                return moment / 1000, list(left)

    async def _clear_on_its_way(self, keys: list[bytes]) -> None:
        """Remove what is due in keys of a slot that is being moved, where key and shadow are at this node.

        The index may be at the other one, and need not be changed here: the slot is read when it has come to rest.
        """
        slots = self._names.slots
        if slots is None or slot(keys[0]) not in slots.moving:
            return
        databases = sorted(self._known.databases)
        calls: list[Call] = [
            (
                [key, self._names.shadow(key)],
                [*all_in_arguments(self._involved([key])), self._batch, 0, *databases],
            )
            for key in keys
        ]
        for reply in await self._call(script("clear", undeclared=True), calls, asking=self._is_coming(keys[0])):
            if not isinstance(reply, Exception):
                self._metrics.members_expired_total["request"] += reply[4]

    async def _drop_leftovers(self, keys: Sequence[bytes]) -> None:
        text = script("leftovers", undeclared=True)
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            names = self._triples(keys[begin : begin + KEYS_AT_ONCE])
            await self._call(text, [([], [*all_in_arguments(names)])])

    async def _make_way(self, arrivals: Sequence[Arrival]) -> None:
        text = script("arrive", undeclared=True)
        for begin in range(0, len(arrivals), KEYS_AT_ONCE):
            page = arrivals[begin : begin + KEYS_AT_ONCE]
            names = all_in_arguments(self._triples(arrival.key for arrival in page))
            await self._call(text, [([], [*names, *(int(arrival.replaces) for arrival in page)])], asking=True)

    async def _void(self, absent: Absent, *, tentative: bool) -> None:
        databases = [b"%d" % database for database in sorted(self._known.databases)]
        in_slots = self._names.slots is not None
        text = script("void", undeclared=in_slots)
        for voiding in voidings(self._names, absent, databases, tentative=tentative):
            place: list[bytes | int] | None = None
            keys = voiding.keys[1::2]
            while place is None or place:
                call: Call = voiding.keys, [*voiding.arguments(place or ())]
                if in_slots:  # the index may be at another node, and is not needed
                    call = keys, [*all_in_arguments(voiding.keys), *voiding.arguments(place or ())]
                [reply] = await self._call(text, [call], asking=self._is_coming(keys[0]))
                if isinstance(reply, Exception):
                    self.misplaced.set()
                    break
                place = reply

    async def void_page(self, database: int, key: bytes, cursor: bytes) -> tuple[bytes, int, int]:
        """Void, in a part of a key's shadow, the deadlines of absent members.

        Args:
            database: the key's database.
            key: the key.
            cursor: where to go on; b"0" to begin.

        Returns:
            The next cursor (b"0": that was the end), how many deadlines were looked at, and how many voided.
        """
        names = [key, self._names.shadow(key), self._names.index_for(key)]
        [reply] = await self._call(script("void_page"), [(names, [database, cursor, MEMBERS_AT_ONCE])])
        if isinstance(reply, Exception):
            self.misplaced.set()
            return b"0", 1, 0
        cursor, seen, voided = reply
        return cursor, int(seen), int(voided)

    async def heal(self, database: int, keys: list[bytes]) -> list[bytes]:
        """Make the indexes true to the shadows of some keys, `KEYS_AT_ONCE` at most; return those that were wrong."""
        calls: list[Call] = [(self._involved(group), [database]) for group in self._names.by_slot(keys)]
        healed: list[bytes] = []
        for reply in await self._call(script("heal"), calls):
            if not isinstance(reply, Exception):
                healed += reply
        if healed:
            await self.learn(healed)
        return healed

    async def own_names(
        self, database: int, names: bytes, entries: bytes, number: int | None, pattern: bytes, step: int
    ) -> tuple[bytes, bytes, list[bytes], list[bytes]]:
        """Find names of the proxy's own keys, and keys in an index, a step at a time.

        Args:
            database: its number.
            names: the cursor among all names; b"" when it has come round.
            entries: that in the index.
            number: the slot of the index; None for the one index of a database.
            pattern: the pattern of the names.
            step: how many to look at.

        Returns:
            The two cursors; the names; the keys.
        """
        arguments: list[bytes | int | str] = [database, names, entries, pattern, step]
        [reply] = await self._call(script("own_names"), [([self._names.index_of(number)], arguments)])
        if isinstance(reply, Exception):
            return b"", b"", [], []
        further, others, found, keys = reply
        return further, others, found, keys


def is_elsewhere(error: Exception) -> bool:
    """Return whether a cluster node says that it does not have a key, or not all keys of a request."""
    return isinstance(error, MovedError | AskError | TryAgainError)
