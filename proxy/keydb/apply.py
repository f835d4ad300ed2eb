"""Import the deadlines in batches, one script call each, or only report what an import would do.

Its tests: tests/test_import.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError

from proxy.expiry.caller import Listing
from proxy.keydb.joining import Membership, NotToldError
from proxy.keydb.spool import Batch, Spool
from proxy.scripts.calls import script
from proxy.scripts.naming import Names
from proxy.upstream.complaint import complaint
from proxy.upstream.endpoint import Upstream
from proxy.upstream.follower import followed
from proxy.upstream.stay import MovedError
from proxy.upstream.words import in_words, is_unreachable

TOLD_AT_ONCE: Final = 32
"""Maximum number of batches to announce to other proxies together."""

BYTES_AT_ONCE: Final = 1 << 20
"""Approximate limit for the bytes of keys and members in memory at a time."""

NAMED: Final = 10
"""Maximum number of keys to name for each outcome that needs attention."""

NAMED_MEMBERS: Final = 3
"""Maximum number of members to name for each of these keys."""


_CLOSING_SECONDS: Final = 1.0


class Outcome(Enum):
    """The outcome for one deadline. The values are those in the script's replies."""

    SET = "s"
    """Set. When comparing: the member has exactly this deadline."""
    REMOVED = "r"
    """The deadline had passed and the member still existed; it was removed."""
    PASSED = "p"
    """The deadline had passed, or the key had expired, and the member was gone."""
    NO_KEY = "k"
    """The key does not exist."""
    NO_MEMBER = "m"
    """The member does not exist."""
    OTHER_TYPE = "t"
    """The key is not a set, hash or sorted set."""
    AMBIGUOUS = "a"
    """The deadline may belong to either of two members."""
    DIFFERS = "d"
    """When comparing: the member has another deadline, or none."""
    NO_DATABASE = "n"
    """The database does not exist."""


GOOD: Final = frozenset({Outcome.SET, Outcome.REMOVED, Outcome.PASSED})
"""The outcomes that leave no deadline missing."""


class Mode(Enum):
    """How to process the deadlines. The values are arguments of the script."""

    SET = "set"
    LOOK = "look"
    """Only report what an import would do."""
    COMPARE = "compare"
    """Compare with the deadlines on the server."""


class ApplyError(Exception):
    """The import could not finish; the text is one line for users."""


@dataclass
class Named:
    """A key that the summary names for an outcome.

    Attributes:
        count: how many deadlines of the key had this outcome.
        members: the first `NAMED_MEMBERS` members, each with another member that the deadline may belong to, or None.
    """

    count: int = 0
    members: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass
class Tally:
    """Counts the outcomes of the deadlines.

    Attributes:
        counts: number of deadlines for each outcome.
        names: the first `NAMED` keys of each bad outcome, by database and name.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    names: dict[Outcome, dict[tuple[int, bytes], Named]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of deadlines processed."""
        return self.counts.total()

    @property
    def is_good(self) -> bool:
        """Whether no deadline is missing."""
        return not any(count for outcome, count in self.counts.items() if outcome not in GOOD)

    def add(self, batch: Batch, letters: str) -> None:
        """Record the script's reply for a batch."""
        for outcome, count in Counter(letters).items():
            self.counts[Outcome(outcome)] += count
        if all(Outcome(letter) in GOOD for letter in set(letters)):
            return
        members = ((of_key.key, row[0], row[2]) for of_key in batch.keys for row in of_key.rows)
        for letter, (key, member, cut) in zip(letters, members, strict=True):
            if (bad := Outcome(letter)) in GOOD:
                continue
            names, place = self.names.setdefault(bad, {}), (batch.database, key)
            if place not in names and len(names) == NAMED:
                continue
            named = names.setdefault(place, Named())
            named.count += 1
            if len(named.members) < NAMED_MEMBERS:
                named.members.append((member, cut if bad is Outcome.AMBIGUOUS else None))


class Importer:
    """Imports deadlines into a server.

    Args:
        upstream: the server.
        names: the names of the proxy's own keys there.
        patience: seconds that the server may take to answer.

    Every method raises `ApplyError`, with advice, if the server fails or refuses.
    """

    def __init__(self, upstream: Upstream, names: Names, patience: float) -> None:
        self._upstream = upstream
        self._names = names
        self._patience = patience

    async def reach(self) -> None:
        """Check that the server answers. If the server is a proxy, switch to the server behind that proxy."""
        try:
            self._upstream = await self._upstream.itself()
        except (RedisError, OSError, TimeoutError) as error:
            raise ApplyError(self._say(error)) from error
        async with self._control() as control:
            connection = await control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            clustered = await self._upstream.is_cluster_node(connection)
            await control.connection_pool.release(connection)
            if clustered:
                raise ApplyError(
                    f"{self._upstream} is a cluster node, and deadlines cannot be imported into a cluster yet"
                )

    async def run(self, spool: Spool, mode: Mode, tally: Tally, step: Callable[[int], None]) -> None:
        """Process all deadlines.

        Args:
            spool: the deadlines.
            mode: how to process them.
            tally: records the outcomes.
            step: called with the number of deadlines just processed.
        """
        async with self._control() as control, contextlib.AsyncExitStack() as stack:
            connection = await control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            stack.push_async_callback(control.connection_pool.release, connection)
            membership = None
            if mode is Mode.SET:
                membership = await stack.enter_async_context(Membership(self._upstream, self._names, self._patience))
            for batches in _several(spool.batches()):
                if membership is not None:
                    await self._list(connection, batches, membership)
                for batch in batches:
                    await self._apply(connection, batch, mode, tally, membership)
                    step(batch.size)

    async def _list(self, connection: Any, batches: list[Batch], membership: Membership) -> None:
        """Write the covered prefixes to the server, for proxies that start later."""
        names = self._names
        for batch in batches:
            entries = membership.begin(batch.database, [of_key.key for of_key in batch.keys])
            if entries:
                keys, words = (names.covered, names.index), (1, batch.database, Listing.HERE.value, *entries)
                await connection.send_command("EVAL", script("cover"), len(keys), *keys, *words)
                await connection.read_response()

    async def _apply(
        self, connection: Any, batch: Batch, mode: Mode, tally: Tally, membership: Membership | None
    ) -> None:
        keys = [of_key.key for of_key in batch.keys]
        request = connection.pack_command(*self._request(batch, mode))
        while membership is not None and not membership.may_begin(keys):
            await membership.tell()
        await connection.send_packed_command(request)
        letters = (await connection.read_response()).decode()
        if not letters:
            letters = Outcome.NO_DATABASE.value * batch.size
        if len(letters) != batch.size:
            raise ApplyError(f"{self._upstream}: unexpected reply to a script")
        tally.add(batch, letters)

    def _request(self, batch: Batch, mode: Mode) -> Iterable[bytes | int | str]:
        names = list(chain.from_iterable((of_key.key, self._names.shadow(of_key.key)) for of_key in batch.keys))
        yield from (
            "EVAL",
            script("import"),
            1 + len(names),
            self._names.index,
            *names,
            batch.database,
            mode.value,
        )
        for of_key in batch.keys:
            yield from (of_key.expires, len(of_key.rows))
            for member, deadline, cut in of_key.rows:
                yield from (member, deadline, b"" if cut is None else b"=" + cut)

    @contextlib.asynccontextmanager
    async def _control(self) -> AsyncIterator[Redis]:
        """Yield a redis-py client of the server; raise its errors as `ApplyError`, with one line of text."""
        control = self._upstream.control()
        try:
            async with followed(self._upstream):
                yield control
        except NotToldError:
            raise ApplyError(
                f"other proxies in front of {self._upstream} did not acknowledge the keys:"
                " check that they all run, then repeat the import"
            ) from None
        except (RedisError, OSError, TimeoutError) as error:
            raise ApplyError(self._say(error)) from error
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await control.connection_pool.disconnect()

    def _say(self, error: Exception) -> str:
        moved = isinstance(error, MovedError | ReadOnlyError) or is_unreachable(error)
        if self._upstream.sentinels and self._upstream.stay.address is not None and moved:
            return f"{self._upstream}: {in_words(error)}; if there was a failover, repeat the import"
        return complaint(self._upstream, error, rights=_RIGHTS, advice=_ADVICE.get(type(error)))


_RIGHTS: Final = "docs/security.md lists the rights of the proxy's own user"
_ADVICE: Final[Mapping[type[Exception], str]] = {
    ReadOnlyError: "it is still a replica: run REPLICAOF NO ONE there first",
    OutOfMemoryError: "it is out of memory: raise its maxmemory, then repeat the import",
}


def _several(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Yield batches in groups, or one at a time if their keys or members are huge."""
    some: list[Batch] = []
    room = BYTES_AT_ONCE
    for batch in batches:
        some.append(batch)
        room -= sum(len(of_key.key) + sum(len(row[0]) for row in of_key.rows) for of_key in batch.keys)
        if len(some) == TOLD_AT_ONCE or room <= 0:
            yield some
            some, room = [], BYTES_AT_ONCE
    if some:
        yield some
