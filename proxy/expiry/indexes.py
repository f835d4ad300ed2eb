"""Reads the indexes: which keys have deadlines, when something is due, and which slots a cluster node has."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from redis.exceptions import ClusterDownError

from proxy.expiry.caller import ELSEWHERE, Call, Caller
from proxy.expiry.clock import ServerClock
from proxy.scripts.calls import all_in_arguments
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots
from proxy.session.known import KnownKeys
from proxy.session.order import DeadlineOrder
from proxy.upstream.nodes import myself

log = structlog.get_logger("proxy.cluster")

KEYS_AT_ONCE: Final = 128
"""Keys that one script looks at, at most."""

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

LEASE_MS: Final = 1000
"""How long the sweeper's lease lasts without renewal: another proxy takes over at the latest then."""


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


class Indexes:
    """Reads what is where, and makes it known.

    Args:
        caller: asks the server.
        home: the number of the database in which the sweeper's lease is.
        names: the names of the proxy's own keys, and which slots the server has.
        known: the keys with deadlines; kept current with what is read.
        clock: the server's clock; kept current likewise.

    Attributes:
        misplaced: set when a cluster node has said of a key that it is not there.
        renamed: set when a cluster node has another id than it had.

    Every method raises `redis.exceptions.RedisError` when the server does not answer, or with an error.
    """

    def __init__(self, caller: Caller, home: int, names: Names, known: KnownKeys, clock: ServerClock) -> None:
        self._caller = caller
        self._home = home
        self._names = names
        self._known = known
        self._clock = clock
        self._name = secrets.token_hex(8)
        self.misplaced = asyncio.Event()
        self.renamed = asyncio.Event()
        self._slots_are_asked = asyncio.Lock()
        self._roles_asked = 0
        self._role_is_asked = asyncio.Lock()

    async def find_databases(self) -> None:
        """Find the databases that have keys at all."""
        self._known.databases.update(await self._caller.databases())

    async def has_any(self) -> bool:
        """Return whether any database has an index, or keys of the proxy's own that need none. No script runs."""
        names = [self._names.index, self._names.lease, self._names.events]
        return await self._caller.exist(sorted(self._known.databases), names)

    async def has_traces(self) -> bool:
        """Return whether any database has keys of the proxy's own that need no deadline."""
        slots = self._names.slots
        if slots is not None:
            return bool(slots.indexed)
        databases = sorted(self._known.databases)
        return bool(await self._caller.evaluate("traces", [self._names.lease, self._names.events], databases))

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
        sent = self._clock.local()
        moment, found, spoilt = await self._caller.evaluate("due", [self._names.index], [KEYS_AT_ONCE, *databases])
        self.observe(sent, moment)
        if spoilt:
            await self._caller.evaluate("mend", [self._names.index], spoilt)
        taken = await self._take_lease() if for_sweep and any(due for _, _, due in found) else 0.0
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
        return looks, taken

    async def _take_lease(self) -> float:
        """Take or keep the sweeper's lease; return for how many ms another proxy has it still."""
        call: Call = [self._names.lease], [self._home, self._name, LEASE_MS]
        [taken] = await self._caller.call("lease", [call])
        if isinstance(taken, Exception):  # the slot has gone
            self.misplaced.set()
            return 0.0
        return float(taken)

    async def _look_at_known(self, slots: Slots, order: DeadlineOrder, *, for_sweep: bool) -> tuple[list[Look], float]:
        """See what is due as far as is known: to look at an index for each slot would hold a server up for 9 ms.

        At a replica nothing is: its primary's proxy removes it.
        """
        sent = self._clock.local()
        moment = await self._caller.time()
        self.observe(sent, moment)
        if not slots.primary:
            return [Look(database, math.inf, []) for database in sorted(self._known.databases)], 0.0
        due = order.due(moment / 1000, KEYS_AT_ONCE)
        taken = await self._take_lease() if due and for_sweep else 0.0
        return [Look(database, order.earliest, due) for database in sorted(self._known.databases)], taken

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
                name, in_slots = "deadlines", self._names.slots is not None
                call: Call = [self._names.index], [len(databases), *databases, *page]
                if in_slots:
                    name = "deadlines_of_slots"
                    call = ([], [*all_in_arguments(self._names.triples(page)), *databases])
                try:
                    [(moment, found)] = await self._caller.call(name, [call], undeclared=in_slots)
                except ClusterDownError:
                    self._put_off(page)
                    continue
                self.observe(sent, moment)
                elsewhere: list[bytes] = []
                for key, deadline in zip(page, found, strict=True):
                    if deadline == ELSEWHERE:
                        elsewhere.append(key)
                    else:
                        self._known.learn(key, float(deadline) if deadline else None, moment / 1000, freed=freed)
                    if not deadline or deadline == ELSEWHERE:
                        without.append(key)
                await self.note_elsewhere(elsewhere)
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
                reply = await self._caller.evaluate("present", [], [database, *names])
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
            names = await self._caller.ask("CLUSTER", "GETKEYSINSLOT", str(number), str(KEYS_OF_SLOT))
            comes = number in slots.coming
            for key in map(self._names.key, names):
                if key is not None and comes:
                    self._known.obscure(number, key)
                elif key is not None:
                    self._known.mark(key, math.inf, 0.0)
            if comes:
                slots.surveyed.add(number)

    async def read(self, places: Sequence[Place]) -> list[tuple[list[tuple[bytes, float]], Place | None]]:
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
            replies = await self._caller.call("page", calls)
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

    async def look_at_slots(self) -> None:
        """Ask a cluster node which slots it has. Its answers are taken in the order in which they were given."""
        async with self._slots_are_asked:
            node, slots = myself(await self._caller.ask("CLUSTER", "NODES")), self._names.slots
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

    async def look_at_role(self) -> None:
        """See whether a replica of a cluster's has become a primary; all who ask meanwhile share the next answer."""
        asked = self._roles_asked
        async with self._role_is_asked:
            if self._roles_asked > asked:
                return
            self._roles_asked += 1
            if (await self._caller.greeting()).get(b"role") == b"master":
                await self.look_at_slots()

    def is_coming(self, key: bytes) -> bool:
        """Return whether a key's slot is being moved to the cluster node, which has to be asked for it by ASKING."""
        slots = self._names.slots
        return slots is not None and slot(key) in slots.coming

    async def note_elsewhere(self, keys: Sequence[bytes]) -> None:
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

    def observe(self, sent: float, moment: int) -> None:
        """Take the server's clock as a script told it.

        Args:
            sent: when the script was called, by the local clock, in Unix ms.
            moment: what the server's clock showed meanwhile, in Unix µs.
        """
        self._clock.observe(sent, self._clock.local(), moment / 1000)
        self._known.doubt = self._clock.doubt()
