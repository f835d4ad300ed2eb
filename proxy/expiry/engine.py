"""The engine: what the proxy itself asks of Redis, over its own connections, to remove members that are due."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from proxy.expiry.clock import ServerClock
from proxy.logs import Seldom
from proxy.metrics.table import Metrics
from proxy.metrics.told import count_told
from proxy.scripts.calls import TELL, script
from proxy.scripts.naming import Names
from proxy.session.known import AHEAD_MS, KnownKeys
from proxy.session.question import Question
from proxy.session.voiding import Absent, voidings

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
"""Entries of the index that are read at once."""

TELLING_SECONDS: Final = 60.0
"""How long after rules for events have been met the scripts that can tell are sent at once."""

_NEARLY: Final = 0.0002
"""Seconds between two looks at a deadline that is about to pass."""

LEASE_MS: Final = 1000
"""How long the sweeper's lease lasts without renewal: another proxy takes over at the latest then."""


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
        self._looks = 0  # that have begun
        # Keys at which somebody looks: the number of the look, and its end, which tells whether it succeeded.
        self._busy: dict[bytes, tuple[int, asyncio.Future[bool]]] = {}

    async def _evaluate(self, name: str, keys: Iterable[bytes], arguments: Iterable[bytes | int | str]) -> Any:
        keys = list(keys)
        return await self._control.eval(script(name), len(keys), *keys, *arguments)  # type: ignore[arg-type]

    async def _remove(
        self, trigger: Literal["sweep", "request"], name: str, keys: list[bytes], arguments: list[bytes | int | str]
    ) -> Any:
        """Run a script that removes: in its short form for as long as nobody has to be told of what expires."""
        quiet = time.monotonic() >= self._telling_until
        try:
            return await self._control.eval(script(name, quiet=quiet), len(keys), *keys, *arguments)  # type: ignore[arg-type]
        except ResponseError as error:
            if not str(error).startswith(TELL):
                raise
            self._metrics.members_expired_total[trigger] += int(str(error).removeprefix(TELL))
        self._telling_until = time.monotonic() + TELLING_SECONDS
        return await self._evaluate(name, keys, arguments)

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
        """Wait until the server has answered a request on a connection of the proxy's own."""
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
        databases = sorted(self._known.databases)
        return bool(await self._evaluate("traces", [self._names.lease, self._names.events], databases))

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
        databases = sorted(self._known.databases)
        who = self._name if for_sweep else ""
        sent = self._clock.local()
        moment, taken, found = await self._evaluate(
            "due", [self._names.index, self._names.lease], [self._home, who, LEASE_MS, KEYS_AT_ONCE, *databases]
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
        pairs = [name for key, _ in due for name in (key, self._names.shadow(key))]
        sent = self._clock.local()
        with self._known.asking() as freed:
            moment, gone, left, members, told = await self._remove(
                trigger, "sweep", [self._names.index, *pairs], [database, self._batch]
            )
            self._observe(sent, moment)
            self._metrics.members_expired_total[trigger] += members
            self._count_told(told)
            alone = len(self._known.databases) == 1
            for (key, before), after in zip(due, left, strict=False):
                deadline = float(after) if after else None
                # Without members the index was wrong, which clients' scripts can make it: then nothing was late.
                if members and deadline != before and trigger == "sweep" and math.isfinite(before):
                    self._metrics.removal_delay_seconds.observe(moment / 1e6 - before / 1000)
                if alone:
                    self._known.learn(key, deadline, moment / 1000, freed=freed)
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
                moment, found = await self._evaluate(
                    "deadlines", [self._names.index], [len(databases), *databases, *page]
                )
                self._observe(sent, moment)
                for key, deadline in zip(page, found, strict=True):
                    self._known.learn(key, float(deadline) if deadline else None, moment / 1000, freed=freed)
                    if not deadline:
                        without.append(key)
        return without

    async def read_index(self, database: int, cursor: float, offset: int) -> list[tuple[bytes, float]]:
        """Read a page of a database's index, earliest first.

        Args:
            database: its number.
            cursor: the deadline to begin at, in Unix ms.
            offset: how many entries with that very deadline have been read already.

        Returns:
            Keys with their earliest deadlines in Unix ms; fewer than `PAGE` at the end.
        """
        flat = await self._evaluate("page", [self._names.index], [database, repr(cursor), offset, PAGE])
        return [(flat[place], float(flat[place + 1])) for place in range(0, len(flat), 2)]

    async def answer(self, question: Question) -> None:
        """Do what a session asks for; in whatever database the keys are."""
        if question.everywhere:
            await self._remove_everything_due()
        if question.due:
            await self._remove_due(question.due)
        if question.unclear:
            await self.learn(list(question.unclear))
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
        databases = sorted(self._known.databases)
        found: dict[bytes, float | None] = dict.fromkeys(keys)
        at_once = max(1, PAIRS_AT_ONCE // len(keys))
        since = math.inf
        with self._known.asking() as freed:
            for begin in range(0, len(databases), at_once):
                moment, left = await self._clear(keys, databases[begin : begin + at_once])
                since = min(since, moment)
                for key, deadline in zip(keys, left, strict=True):
                    if deadline:
                        found[key] = min(float(deadline), found[key] or math.inf)
            for key, earliest in found.items():
                self._known.learn(key, earliest, since, freed=freed)
        if self._known.due(keys, self._clock.latest(), AHEAD_MS):
            # By the server's own clock it is some µs until then.
            await asyncio.sleep(_NEARLY)

    async def _clear(self, keys: list[bytes], databases: list[int]) -> tuple[float, list[bytes]]:
        """Remove what is due in some keys of some databases; return when that was, in Unix ms, and what is earliest."""
        pairs = [name for key in keys for name in (key, self._names.shadow(key))]
        while True:
            sent = self._clock.local()
            moment, gone, left, _, members, told = await self._remove(
                "request", "clear", [self._names.index, *pairs], [self._batch, 0, *databases]
            )
            self._observe(sent, moment)
            self._metrics.members_expired_total["request"] += members
            self._count_told(told)
            if gone < self._batch:
                return moment / 1000, list(left)

    async def _void(self, absent: Absent, *, tentative: bool) -> None:
        databases = [b"%d" % database for database in sorted(self._known.databases)]
        for voiding in voidings(self._names, absent, databases, tentative=tentative):
            place: list[bytes | int] = await self._evaluate("void", voiding.keys, voiding.arguments(()))
            while place:
                place = await self._evaluate("void", voiding.keys, voiding.arguments(place))

    async def void_page(self, database: int, key: bytes, cursor: bytes) -> tuple[bytes, int, int]:
        """Void, in a part of a key's shadow, the deadlines of absent members.

        Args:
            database: the key's database.
            key: the key.
            cursor: where to go on; b"0" to begin.

        Returns:
            The next cursor (b"0": that was the end), how many deadlines were looked at, and how many voided.
        """
        names = [key, self._names.shadow(key), self._names.index]
        cursor, seen, voided = await self._evaluate("void_page", names, [database, cursor, MEMBERS_AT_ONCE])
        return cursor, int(seen), int(voided)
