"""The engine: removes due members and voids deadlines over control connections, for requests and the sweeper.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import structlog
from redis.exceptions import ResponseError

from proxy.coverage.clearance import AHEAD_MS
from proxy.coverage.coverage import Coverage
from proxy.expiry.caller import ELSEWHERE, Call, Caller, Listing
from proxy.expiry.clock import ServerClock
from proxy.expiry.indexes import KEYS_AT_ONCE, Indexes
from proxy.expiry.tasks import one_line
from proxy.logs import Seldom
from proxy.metrics.table import Metrics
from proxy.metrics.told import count_told
from proxy.scripts.calls import TELL, all_in_arguments
from proxy.scripts.naming import Names, slot
from proxy.session.question import Arrival, Question
from proxy.session.voiding import Absent, voidings

log = structlog.get_logger("proxy.engine")

SWEPT_AT_ONCE: Final = 32
"""Maximum number of keys that one script of the sweeper clears. The server's other clients wait meanwhile."""

MEMBERS_AT_ONCE: Final = 500
"""About how many members or deadlines one script looks at."""

PAIRS_AT_ONCE: Final = 2_000
"""Maximum number of pairs of key and database that one script looks at."""

WEEDED_AT_ONCE: Final = 1_000
"""Number of list elements that one script looks at, if many are due."""

WEEDED_ANEW: Final = 20
"""How often to go through a list again from the start because others have changed it. After that, the next call goes on
where the last one ended, and elements may be skipped."""

_WEEDED: Final = -2
"""The position that the script `weed` returns when nothing is left to do."""

TELLING_SECONDS: Final = 60.0
"""After a rule has matched, call the long form of scripts, which can send events, for this long."""

VOID_MS: Final = 60_000
"""Minimum time, in ms, for which `TTL` shows a void deadline, as in KeyDB, before the background pass frees it."""

LEFTOVERS_AT_ONCE: Final = 100
"""Number of keys of an index to read at once for the background pass."""

_NEARLY: Final = 0.0002
"""Seconds between two checks of a deadline that is about to pass."""


class Engine:
    """Removes due members, voids deadlines, and keeps the index correct.

    Args:
        caller: calls the scripts.
        indexes: reads the indexes.
        names: the names of the proxy's own keys.
        coverage: the covered keys.
        clock: the server's clock, which the engine updates.
        batch: maximum number of members that one script removes.
        metrics: counts removals.

    Every method raises `redis.exceptions.RedisError` if the server does not answer, or answers with an error.
    """

    def __init__(
        self,
        caller: Caller,
        indexes: Indexes,
        names: Names,
        coverage: Coverage,
        clock: ServerClock,
        batch: int,
        metrics: Metrics,
    ) -> None:
        self._caller = caller
        self._indexes = indexes
        self._names = names
        self._coverage = coverage
        self._clock = clock
        self._batch = batch
        self._metrics = metrics
        self._say_lost = Seldom(log.warning, "events about expired members lost")
        self._telling_until = -math.inf

    async def answer(self, question: Question) -> None:
        """Do what a request needs before it may be sent, in all databases. A replica in a cluster removes nothing."""
        slots = self._names.slots
        if slots is not None and not slots.primary:
            await self._indexes.look_at_role()
        if slots is not None and not slots.primary:
            if question.unclear:
                question.found.update(await self._indexes.have(list(question.unclear)))
            return
        if question.everywhere:
            await self._remove_everything_due()
        if question.due:
            await self._remove_due(question.due)
        if question.unclear:
            question.found.update(await self._indexes.have(list(question.unclear)))
            self._coverage.learn(question.found)  # other clients may have set deadlines without announcing them
        if question.leftover:
            await self._drop_leftovers(question.leftover)
        if question.arrivals:
            await self._make_way(question.arrivals)
        if question.absent:
            await self._void(question.absent, tentative=question.tentative)

    async def _remove_everything_due(self) -> None:
        while True:
            since = self._clock.latest()
            looks, _ = await self._indexes.look()
            if not any(look.due for look in looks):
                earliest = min((look.earliest for look in looks), default=math.inf)
                if earliest > self._clock.latest() + AHEAD_MS:
                    self._coverage.cleared.note([None], since, earliest)
                    return
                await asyncio.sleep(_NEARLY)
            for look in looks:
                if look.due:
                    await self.sweep(look.database, look.due, trigger="request")

    async def _remove_due(self, keys: tuple[bytes, ...]) -> None:
        """Remove due members from some keys."""
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            for group in self._names.by_slot(keys[begin : begin + KEYS_AT_ONCE]):
                await self._remove_due_of_slot(group)

    async def _remove_due_of_slot(self, keys: list[bytes]) -> None:
        while True:
            since = self._clock.latest()
            next_one = await self._cleared(keys)
            if next_one is None:
                break
            if next_one > self._clock.latest() + AHEAD_MS:
                self._coverage.cleared.note(keys, since, next_one)
                return
            await asyncio.sleep(_NEARLY)  # the deadline may be some µs away by the server's clock
        await self._indexes.note_elsewhere(keys)
        slots, number = self._names.slots, slot(keys[0])
        if slots is not None and number in slots.owned and number not in slots.moving:
            await self._cleared(keys)  # the slot has become the node's own meanwhile
        else:
            await self._clear_on_its_way(keys)

    async def _cleared(self, keys: list[bytes]) -> float | None:
        """Remove due members from some keys of one slot; return the earliest deadline left, in Unix ms.

        None if a cluster node does not have the keys.
        """
        databases, earliest = sorted(self._coverage.databases), math.inf
        at_once = max(1, PAIRS_AT_ONCE // len(keys))
        for begin in range(0, len(databases), at_once):
            left = await self._clear(keys, databases[begin : begin + at_once])
            if left is None:
                return None
            earliest = min([earliest, *(float(deadline) for deadline in left if deadline)])
        return earliest

    async def _clear(self, keys: list[bytes], databases: list[int]) -> list[bytes] | None:
        """Remove due members from some keys of some databases; return the earliest deadline of each key.

        None if a cluster node does not have the keys.
        """
        while True:
            sent = self._clock.local()
            reply = await self._remove("request", "clear", (self._names.involved(keys), [self._batch, 0, *databases]))
            if isinstance(reply, Exception):
                return None
            moment, gone, left, _, members, told, heavy = reply
            self._indexes.observe(sent, moment)
            self._metrics.members_expired_total["request"] += members
            self._count_told(told)
            for key, database in zip(heavy[::2], heavy[1::2], strict=True):
                await self._weed("request", int(database), key)
            if gone < self._batch and not heavy:
                return list(left)

    async def _clear_on_its_way(self, keys: list[bytes]) -> None:
        """Remove due members from keys of a slot that is being moved, if key and shadow are at this node.

        The index is not changed: it may be at the other node, and is read again after the move.
        """
        slots = self._names.slots
        if slots is None or slot(keys[0]) not in slots.moving:
            return
        databases = sorted(self._coverage.databases)
        calls: list[Call] = [
            (
                [key, self._names.shadow(key)],
                [*all_in_arguments(self._names.involved([key])), self._batch, 0, *databases],
            )
            for key in keys
        ]
        asking = self._indexes.is_coming(keys[0])
        for reply in await self._caller.call("clear", calls, asking=asking, undeclared=True):
            if not isinstance(reply, Exception):
                self._metrics.members_expired_total["request"] += reply[4]

    async def _drop_leftovers(self, keys: Sequence[bytes]) -> None:
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            names = self._names.triples(keys[begin : begin + KEYS_AT_ONCE])
            await self._caller.call("leftovers", [([], [*all_in_arguments(names)])], undeclared=True)

    async def _make_way(self, arrivals: Sequence[Arrival]) -> None:
        for begin in range(0, len(arrivals), KEYS_AT_ONCE):
            page = arrivals[begin : begin + KEYS_AT_ONCE]
            names = all_in_arguments(self._names.triples(arrival.key for arrival in page))
            call: Call = [], [*names, *(int(arrival.replaces) for arrival in page)]
            await self._caller.call("arrive", [call], asking=True, undeclared=True)

    async def _void(self, absent: Absent, *, tentative: bool) -> None:
        databases = [b"%d" % database for database in sorted(self._coverage.databases)]
        in_slots = self._names.slots is not None
        for voiding in voidings(self._names, absent, databases, tentative=tentative):
            place: list[bytes | int] | None = None
            keys = voiding.keys[1::2]
            while place is None or place:
                call: Call = voiding.keys, [*voiding.arguments(place or ())]
                if in_slots:  # the index may be at another node and is not needed
                    call = keys, [*all_in_arguments(voiding.keys), *voiding.arguments(place or ())]
                asking = self._indexes.is_coming(keys[0])
                [reply] = await self._caller.call("void", [call], asking=asking, undeclared=in_slots)
                if isinstance(reply, Exception):
                    self._indexes.misplaced.set()
                    break
                place = reply

    async def sweep(
        self, database: int, due: list[tuple[bytes, float]], *, trigger: Literal["sweep", "request"] = "sweep"
    ) -> int:
        """Remove due members from some keys of one database, at most a batch.

        Args:
            database: the number of the database.
            due: the keys, `SWEPT_AT_ONCE` at most, with their earliest deadlines.
            trigger: the cause, for the metrics.

        Returns:
            How many members and deadlines were removed; fewer than a batch if no due members are left.
        """
        keys = [key for key, _ in due]
        name, in_slots = "sweep", self._names.slots is not None
        call: Call = self._names.involved(keys), [database, self._batch]
        if in_slots:
            name, call = "sweep_slots", ([], [*all_in_arguments(self._names.triples(keys)), database, self._batch])
        sent = self._clock.local()
        moment, gone, left, members, told, heavy = await self._remove(trigger, name, call, undeclared=in_slots)
        self._indexes.observe(sent, moment)
        self._metrics.members_expired_total[trigger] += members
        self._count_told(told)
        for key in heavy:
            members += await self._weed(trigger, database, key)
        elsewhere: list[bytes] = []
        for (key, deadline), after in zip(due, left, strict=False):
            if after == ELSEWHERE:
                elsewhere.append(key)
                continue
            earliest = float(after) if after else None
            # If no member was removed, none was late: the index was wrong. Clients' scripts can cause that.
            if members and earliest != deadline and trigger == "sweep" and math.isfinite(deadline):
                self._metrics.removal_delay_seconds.observe(moment / 1e6 - deadline / 1000)
        await self._indexes.note_elsewhere(elsewhere)
        if in_slots:
            await self._indexes.learn_slots({slot(key) for key in keys})
        return int(gone)

    async def _weed(self, trigger: Literal["sweep", "request"], database: int, key: bytes) -> int:
        """Remove due elements from a list that has many, a part at a time, so that no other client waits long.

        Returns:
            How many members were removed.
        """
        place: list[int | bytes] = [0, 0, b""]
        members = begun = 0
        while place[1] != _WEEDED:
            if begun > WEEDED_ANEW:
                place[2] = b""
            began = asyncio.get_running_loop().time()
            sent = self._clock.local()
            call: Call = self._names.triples([key]), [database, WEEDED_AT_ONCE, *place]
            [reply] = await self._caller.call("weed", [call])
            if isinstance(reply, Exception):
                self._indexes.misplaced.set()
                break
            moment, *after, gone = reply
            begun += after[0] != place[0]
            place = after
            self._indexes.observe(sent, moment)
            members += gone
            self._metrics.members_expired_total[trigger] += gone
            if trigger == "sweep":  # leave the server to others for as long as this call took
                await asyncio.sleep(asyncio.get_running_loop().time() - began)
        return members

    async def _remove(
        self, trigger: Literal["sweep", "request"], name: str, call: Call, *, undeclared: bool = False
    ) -> Any:
        """Run a script that removes members. Use its short form while no rule for events has matched lately.

        Args:
            trigger: the cause, for the metrics.
            name: the script.
            call: KEYS and ARGV of the script.
            undeclared: whether ARGV begins with all keys (`all_in_arguments`).

        Returns:
            The reply, or an error as returned by `Caller.call`.
        """
        quiet = time.monotonic() >= self._telling_until
        [reply] = await self._caller.call(name, [call], quiet=quiet, undeclared=undeclared)
        if not (isinstance(reply, bytes) and reply.startswith(TELL)):
            return reply
        self._metrics.members_expired_total[trigger] += int(reply.removeprefix(TELL))
        self._telling_until = time.monotonic() + TELLING_SECONDS
        return (await self._caller.call(name, [call], undeclared=undeclared))[0]

    def _count_told(self, told: list[int | bytes]) -> None:
        """Count the events that a script has sent; warn of events that the server refused."""
        error = count_told(self._metrics, told)
        if error:
            self._say_lost(
                error=error.decode(errors="replace"),
                entries=told[2],
                messages=told[3],
                elements=told[6],
                advice="a rule's stream has to be a stream, its list a list, and the proxy's user needs +xadd +rpush",
            )

    async def changes(self) -> object:
        """Return a value that differs after any change of the data or of the set of databases or slots."""
        slots = self._names.slots
        places = sorted(self._coverage.databases) if slots is None else (sorted(slots.indexed), slots.primary)
        return await self._caller.changes(), places

    async def void_pages(
        self, database: int, pages: Sequence[tuple[bytes, bytes]], *, own: bool
    ) -> list[tuple[bytes, int, int, int]]:
        """Void the deadlines of absent members in some keys: for each key, in one part of its shadow.

        Args:
            database: the keys' database.
            pages: the keys, all of one slot, each with its cursor; b"0" to begin. (For a list the cursor also records
                which members have been found.)
            own: whether the server has its own commands for TTLs of fields. If so, deadlines that were set by the
                proxy's versions of those commands become native TTLs.

        Returns:
            For each key: the next cursor (b"0" at the end), how many deadlines were checked (a higher number if the
            work was expensive, for the rate limit), how many were voided, and how many were void before. Keys that
            were not reached within `MEMBERS_AT_ONCE` checks are missing.
        """
        keys, cursors = zip(*pages, strict=True)
        call: Call = self._names.involved(keys), [database, MEMBERS_AT_ONCE, VOID_MS, "own" if own else "", *cursors]
        [reply] = await self._caller.call("void_pages", [call])
        if isinstance(reply, Exception):
            self._indexes.misplaced.set()
            return [(b"0", 1, 0, 0)] * len(pages)
        return [(cursor, int(seen), int(voided), int(aged)) for cursor, seen, voided, aged in reply]

    async def heal(self, database: int, keys: list[bytes]) -> list[bytes]:
        """Correct the index from the shadows of some keys, `KEYS_AT_ONCE` at most.

        Returns:
            The keys for which the index was wrong.
        """
        calls: list[Call] = [(self._names.involved(group), [database]) for group in self._names.by_slot(keys)]
        healed: list[bytes] = []
        for reply in await self._caller.call("heal", calls):
            if not isinstance(reply, Exception):
                healed += reply
        self._coverage.learn(healed)
        return healed

    async def list_covered(self, databases: Mapping[int, Listing], entries: Collection[bytes]) -> None:
        """Write the covered prefixes to the server, for proxies that start later.

        The tracker lists them later if the server refuses the write.
        """
        if self._names.slots is not None or not databases:
            return
        words = [word for database, listing in databases.items() for word in (database, listing.value)]
        call: Call = [self._names.covered, self._names.index], [len(databases), *words, *entries]
        try:
            await self._caller.call("cover", [call])
        except ResponseError as error:
            log.debug("covered prefixes not listed", error=one_line(error))

    async def page_of_index(self, database: int, cursor: bytes, number: int | None) -> tuple[bytes, list[bytes]]:
        """Return the next cursor (b"" at the end) and some keys of the index of a database or slot."""
        found = await self.own_names(database, b"", cursor, number, b"", LEFTOVERS_AT_ONCE)
        return found[1], found[3]

    async def own_names(
        self, database: int, names: bytes, entries: bytes, number: int | None, pattern: bytes, step: int
    ) -> tuple[bytes, bytes, list[bytes], list[bytes]]:
        """Scan, one step at a time, for names of the proxy's own keys, and for keys in an index.

        Args:
            database: the number of the database.
            names: the cursor among all names; b"" to leave them out.
            entries: the cursor in the index; b"" to leave it out.
            number: the slot of the index; None for the one index of a database.
            pattern: the pattern of the names.
            step: how many names to look at.

        Returns:
            The two next cursors, each b"" at the end; the names; the keys.
        """
        arguments: list[bytes | int | str] = [database, names, entries, pattern, step]
        [reply] = await self._caller.call("own_names", [([self._names.index_of(number)], arguments)])
        if isinstance(reply, Exception):
            return b"", b"", [], []
        further, others, found, keys = reply
        return further, others, found, keys
