"""Read the indexes: which keys have deadlines, when members are due, and which slots a cluster node has.

Its tests: tests/test_background.py.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from redis.exceptions import ClusterDownError

from proxy.coverage.coverage import Coverage
from proxy.coverage.order import SlotOrder
from proxy.expiry.caller import Call, Caller
from proxy.expiry.clock import ServerClock
from proxy.scripts.calls import all_in_arguments
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots
from proxy.upstream.nodes import myself

log = structlog.get_logger("proxy.cluster")

KEYS_AT_ONCE: Final = 128
"""Maximum number of keys that one script looks at."""

LEARNT_AT_ONCE: Final = 250
"""Maximum number of keys in one query. Clients wait while the query is encoded."""

PAGE: Final = 1000
"""Number of keys of an index to read at once."""

PAGE_OF_SLOT: Final = 100
"""Number of keys of each index to read at once in a cluster, where `SLOTS_AT_ONCE` indexes are read together."""

SLOTS_AT_ONCE: Final = 100
"""Number of slots whose indexes are read at once."""

PRESENT_AT_ONCE: Final = 1000
"""Number of indexes or shadows whose existence one query checks; this takes a cluster node about 1.6 ms."""

KEYS_OF_SLOT: Final = 1_000_000
"""Maximum number of keys to look for in a slot that is being moved."""

LEASE_MS: Final = 1000
"""How long the sweeper's lease lasts without renewal; then another proxy takes over."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in an index.

    Attributes:
        database: the number of the index's database.
        slot: the index's slot; None for the one index of a database.
        cursor: the deadline to begin at, in Unix ms.
        offset: how many keys with exactly that deadline have been read.
    """

    database: int
    slot: int | None
    cursor: float = -math.inf
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The due keys of one database.

    Attributes:
        database: the number of the database.
        earliest: the earliest deadline there, in Unix ms; infinite if there is none.
        due: keys with due members, not necessarily all, each with its earliest deadline; earliest first.
    """

    database: int
    earliest: float
    due: list[tuple[bytes, float]]


class Indexes:
    """Reads the indexes, and the slots of a cluster node.

    Args:
        caller: queries the server.
        home: the number of the database in which the sweeper's lease is.
        names: the names of the proxy's own keys, and which slots the server has.
        coverage: the covered keys, and the databases that may hold deadlines.
        clock: the server's clock, which this class updates.

    Attributes:
        misplaced: set when a cluster node has replied that it does not have a key.
        clustered: set if the server, when it was last reached, was a cluster node.
        renamed: set when the cluster node's id has changed.
        order: the earliest deadlines of a cluster node's slots.

    Every method raises `redis.exceptions.RedisError` if the server does not answer, or answers with an error.
    """

    def __init__(self, caller: Caller, home: int, names: Names, coverage: Coverage, clock: ServerClock) -> None:
        self._caller = caller
        self._home = home
        self._names = names
        self._coverage = coverage
        self._clock = clock
        self._name = secrets.token_hex(8)
        self._met: set[int] = set()  # the databases that existed at the last look
        self.order = SlotOrder()
        self.misplaced = asyncio.Event()
        self.clustered = asyncio.Event()
        self.renamed = asyncio.Event()
        self._slots_are_asked = asyncio.Lock()
        self._roles_asked = 0
        self._role_is_asked = asyncio.Lock()
        self._slots_are_learnt = asyncio.Lock()

    async def find_databases(self) -> None:
        """Find the databases that have keys."""
        self._coverage.databases.update(await self._caller.databases())

    async def has_rules(self) -> bool:
        """Return whether any database has rules for events, without running a script."""
        if self._names.slots is not None:
            return False  # not supported in a cluster: see docs/events.md
        return await self._caller.exist(sorted(self._coverage.databases), [self._names.events])

    async def has_traces(self) -> bool:
        """Return whether the server has traces of a proxy: a sweeper's lease or rules for events; in a cluster, an
        index."""
        slots = self._names.slots
        if slots is not None:
            return bool(slots.indexed)
        databases = sorted(self._coverage.databases)
        return bool(await self._caller.evaluate("traces", [self._names.lease, self._names.events], databases))

    async def glance(self) -> float:
        """Return the earliest deadline, in Unix ms, without running a script; infinite if there is none.

        Minus infinity means that `look` is needed: members are due, or an index cannot be read this way.
        """
        databases = sorted(self._coverage.databases)
        if self._names.slots is not None or not self._met.issuperset(databases):
            return -math.inf
        sent = self._clock.local()
        if databases == [self._home]:
            moment, earliest = await self._caller.glance(self._names.index)
        else:
            moment, found, spoilt = await self._caller.do_plainly("due", [self._names.index], [1, *databases])
            earliest = min((float(first) for _, first, _ in found if first), default=math.inf)
            if spoilt or len(found) < len(databases):
                earliest = -math.inf
        self.observe(sent, moment)
        return earliest if earliest > moment / 1000 else -math.inf

    async def look(self, *, for_sweep: bool = False) -> tuple[list[Look], float]:
        """Return, for each database, the due keys and the earliest deadline.

        Args:
            for_sweep: whether to take the sweeper's lease if anything is due.

        Returns:
            The looks, and for how many more ms another proxy has the lease (0 if none has it).
        """
        if self._names.slots is not None:
            return await self._look_at_slots_due(self._names.slots, for_sweep=for_sweep)
        databases = sorted(self._coverage.databases)
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
        # Forget databases that the server does not have: a client may have tried to select one.
        self._met = {look.database for look in looks}
        self._coverage.databases.difference_update(set(databases) - self._met)
        return looks, taken

    async def _take_lease(self) -> float:
        """Take or renew the sweeper's lease; return for how many more ms another proxy has it (0 if none does)."""
        call: Call = [self._names.lease], [self._home, self._name, LEASE_MS]
        [taken] = await self._caller.call("lease", [call])
        if isinstance(taken, Exception):  # the lease's slot has moved to another node
            self.misplaced.set()
            return 0.0
        return float(taken)

    async def _look_at_slots_due(self, slots: Slots, *, for_sweep: bool) -> tuple[list[Look], float]:
        """Find due keys by the slots' earliest deadlines: reading every index would block the server for 9 ms.

        On a replica nothing is due: the proxy of its primary removes members.
        """
        sent = self._clock.local()
        moment = await self._caller.time()
        self.observe(sent, moment)
        databases, order = sorted(self._coverage.databases), self.order
        if not slots.primary:
            return [Look(database, math.inf, []) for database in databases], 0.0
        await self.learn_slots(tuple(slots.changed))  # the tracker would read these later
        due = order.due(moment / 1000, SLOTS_AT_ONCE)
        taken = await self._take_lease() if due and for_sweep else 0.0
        looks: list[Look] = []
        for database in databases:
            keys: list[tuple[bytes, float]] = []
            for page, _ in await self.read([Place(database, number) for number in due]) if due else ():
                keys += [(key, deadline) for key, deadline in page if deadline <= moment / 1000]
            looks.append(Look(database, order.earliest, keys[:KEYS_AT_ONCE]))
        if due and not any(look.due for look in looks):
            await self.learn_slots(due)
        return looks, taken

    async def learn_slots(self, numbers: Collection[int]) -> None:
        """Read the earliest deadlines of some slots of a cluster node, after any read that is under way."""
        wanted, earliest = list(numbers), dict.fromkeys(numbers, math.inf)
        async with self._slots_are_learnt:
            for database in sorted(self._coverage.databases) if wanted else ():
                for begin in range(0, len(wanted), SLOTS_AT_ONCE):
                    places = [Place(database, number) for number in wanted[begin : begin + SLOTS_AT_ONCE]]
                    for place, (page, _) in zip(places, await self.read(places, size=1), strict=True):
                        if page and place.slot is not None:
                            earliest[place.slot] = min(earliest[place.slot], page[0][1])
            for number, deadline in earliest.items():
                self.order.put(number, deadline)

    async def have(self, keys: list[bytes]) -> set[bytes]:
        """Return which of some keys have, or may have, deadlines in any database."""
        found: set[bytes] = set()
        for begin in range(0, len(keys), LEARNT_AT_ONCE):
            page = keys[begin : begin + LEARNT_AT_ONCE]
            databases = sorted(self._coverage.databases)
            sent = self._clock.local()
            name, in_slots = "deadlines", self._names.slots is not None
            call: Call = [self._names.index], [len(databases), *databases, *page]
            if in_slots:
                name = "deadlines_of_slots"
                call = ([], [*all_in_arguments(self._names.triples(page)), *databases])
            [reply] = await self._caller.call(name, [call], undeclared=in_slots)
            if isinstance(reply, Exception):
                found.update(page)
                continue
            moment, deadlines = reply
            self.observe(sent, moment)
            found.update(key for key, deadline in zip(page, deadlines, strict=True) if deadline)
        return found

    async def places(self, numbers: Iterable[int] | None = None) -> list[Place]:
        """Return where the indexes of the known databases begin.

        Args:
            numbers: the slots of a cluster node; None for all of its own.
        """
        slots, databases = self._names.slots, sorted(self._coverage.databases)
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
        """Cover the keys whose shadows this node holds in slots that are being moved.

        A shadow may arrive before its slot and its index, or be left over from an earlier move.

        Args:
            anew: whether to survey all moving slots again, and not only new ones.
        """
        slots = self._names.slots
        if slots is None:
            return
        for number in sorted(slots.moving if anew else slots.moving - slots.surveyed):
            names = await self._caller.ask("CLUSTER", "GETKEYSINSLOT", str(number), str(KEYS_OF_SLOT))
            keys = [key for key in map(self._names.key, names) if key is not None]
            self._coverage.learn(keys)
            if number not in slots.coming:
                slots.had.add(number, keys)
            slots.surveyed.add(number)

    async def note_shadows(self, keys: Collection[bytes]) -> None:
        """Record which keys of departing slots have deadlines here: shadows may leave before their keys."""
        slots, left = self._names.slots, list(keys)
        if slots is None:
            return
        for database in sorted(self._coverage.databases):
            for begin in range(0, len(left), PRESENT_AT_ONCE):
                page = left[begin : begin + PRESENT_AT_ONCE]
                reply = await self._caller.evaluate("present", [], [database, *map(self._names.shadow, page)])
                for key, present in zip(page, reply, strict=False):
                    if present > 0:
                        slots.had.add(slot(key), (key,))

    async def read(
        self, places: Sequence[Place], *, size: int = 0
    ) -> list[tuple[list[tuple[bytes, float]], Place | None]]:
        """Read the next keys of some indexes (in a cluster up to `SLOTS_AT_ONCE`, otherwise one), earliest deadline
        first.

        Returns:
            For each index: keys with their earliest deadlines in Unix ms; the next position, None at the end.
        """
        size = size or (PAGE if self._names.slots is None else PAGE_OF_SLOT)
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
        """Query which slots a cluster node has. Process replies in the order in which the node sent them."""
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
        """Check whether a replica in a cluster has become a primary. Concurrent callers share the next reply."""
        asked = self._roles_asked
        async with self._role_is_asked:
            if self._roles_asked > asked:
                return
            self._roles_asked += 1
            if (await self._caller.greeting()).get(b"role") == b"master":
                await self.look_at_slots()

    def is_coming(self, key: bytes) -> bool:
        """Return whether a key's slot is being moved to the cluster node. Requests on the key then need ASKING."""
        slots = self._names.slots
        return slots is not None and slot(key) in slots.coming

    async def note_elsewhere(self, keys: Sequence[bytes]) -> None:
        """Note that a cluster node lacks some keys, or their shadows or index.

        If the node has a key's slot after all, and the slot is not being moved, the slot's index must be read again.
        """
        if not keys:
            return
        self.misplaced.set()
        await self.look_at_slots()
        slots = self._names.slots
        for key in keys:
            if slots is not None and (number := slot(key)) in slots.owned and number not in slots.moving:
                slots.unread.add(number)

    def observe(self, sent: float, moment: int) -> None:
        """Update the clock from the server's time in a script's reply.

        Args:
            sent: `ServerClock.local` when the script was called.
            moment: the server's time in the reply, in Unix µs.
        """
        self._clock.observe(sent, self._clock.local(), moment / 1000)
