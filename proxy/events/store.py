"""Read and write a server's rules for events, and read streams. Errors have one line of text for people.

Its tests: tests/test_events_command.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.exceptions import RedisError, ResponseError

from proxy.events.rules import MOST, Rule, decode, key_part
from proxy.scripts.calls import script
from proxy.scripts.naming import Names
from proxy.upstream.complaint import complaint
from proxy.upstream.endpoint import Upstream
from proxy.upstream.follower import followed

Fields = dict[bytes, bytes]
"""The fields of an entry."""

_CLOSING_SECONDS: Final = 1.0
_BLOCK_MS: Final = 500
_RIGHTS: Final = "docs/security.md lists the rights of the proxy's own user; tail needs +xrevrange +xread too"


class StoreError(Exception):
    """The request failed; the text is one line for people."""


class NoneSuchError(StoreError):
    """There is no such rule, or no such stream."""


@dataclass(frozen=True, slots=True)
class Target:
    """The stream or list that a rule writes to.

    Attributes:
        size: the number of entries or elements; None if not known.
        is_one: whether the key has the right type or does not exist yet.
    """

    size: int | None = None
    is_one: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that is stored.

    Attributes:
        database: the database with the rule.
        rule: the rule; None if it cannot be decoded.
        stream: the stream of the rule.
        list: the list of the rule.
    """

    database: int
    rule: Rule | None
    stream: Target
    list: Target


class Store:
    """The rules and streams of a server, over a connection of its own.

    Args:
        upstream: the server.
        names: the names of the proxy's own keys there.
        connection: the connection.

    Every method raises `StoreError` if the server fails or refuses.
    """

    def __init__(self, upstream: Upstream, names: Names, connection: Any) -> None:
        self._upstream = upstream
        self._names = names
        self._connection = connection

    async def put(self, rule: Rule) -> bool:
        """Set a rule; return whether it replaces a rule for the pattern."""
        for name, noun in ((rule.stream, "stream"), (rule.list, "list")):
            kind = (await self._type(name)).decode() if name else "none"
            if kind not in (noun, "none"):
                shown = name.decode(errors="replace")
                raise StoreError(f"{self._upstream}: {shown} is a {kind} already; give the {noun} another name")
        had = await self._replace(rule.database, rule.encode(), rule.pattern)
        if had == -1:
            raise StoreError(f"{self._upstream}: database {rule.database} has {MOST} rules already; remove one first")
        return had > 0

    async def remove(self, database: int, pattern: bytes) -> bool:
        """Remove the rule for a pattern; return whether there was such a rule."""
        return await self._replace(database, b"", pattern) > 0

    async def _replace(self, database: int, rule: bytes, pattern: bytes) -> int:
        had = await self._ask(
            "EVAL", script("rule"), 1, self._names.events, database, rule, key_part(pattern), MOST
        )  # fmt: skip
        if had == -2:
            raise StoreError(f"{self._upstream}: there is no database {database}")
        with self._reading():
            return int(had)

    async def rules(self) -> list[Found]:
        """Return the rules of all databases."""
        info = await self._ask("INFO", "keyspace")
        with self._reading():
            lines = [line for line in info.decode().splitlines() if line.startswith("db")]
            databases = [int(line[2 : line.index(":")]) for line in lines]
        found = []
        for database in databases:
            await self._ask("SELECT", database)
            if await self._type(self._names.events) != b"zset":
                continue
            entries = await self._ask("ZRANGEBYSCORE", self._names.events, "-inf", "+inf")
            with self._reading():
                in_order = sorted(map(decode, entries), key=lambda rule: rule.pattern if rule is not None else b"")
            found += [await self._look(database, rule) for rule in in_order]
        return found

    async def _look(self, database: int, rule: Rule | None) -> Found:
        stream, list_ = (b"", b"") if rule is None else (rule.stream, rule.list)
        return Found(
            database, rule, await self._target(stream, b"stream", "XLEN"), await self._target(list_, b"list", "LLEN")
        )

    async def _target(self, name: bytes, wanted: bytes, ask: str) -> Target:
        if not name:
            return Target()
        kind = await self._type(name)
        if kind != wanted:
            return Target(0) if kind == b"none" else Target(is_one=False)
        try:
            size = await self._say(ask, name)
        except ResponseError:  # the user may not run the command
            return Target()
        with self._reading():
            return Target(int(size))

    async def is_there(self, key: bytes) -> bool:
        """Return whether a key exists."""
        return await self._type(key) != b"none"

    async def last(self, stream: bytes, count: int) -> list[tuple[bytes, Fields]]:
        """Return the last entries of a stream, the oldest first."""
        rows = await self._ask("XREVRANGE", stream, "+", "-", "COUNT", count)
        with self._reading():
            return [(number, _fields(flat)) for number, flat in reversed(rows)]

    async def after(self, stream: bytes, number: bytes) -> list[tuple[bytes, Fields]]:
        """Return the entries of a stream after the entry with this ID; wait a moment if there are none."""
        reply = await self._ask("XREAD", "COUNT", 1000, "BLOCK", _BLOCK_MS, "STREAMS", stream, number)
        with self._reading():
            return [(number, _fields(flat)) for number, flat in reply[0][1]] if reply else []

    async def _type(self, key: bytes) -> bytes:
        """Return the type of a key, as TYPE names it."""
        kind = await self._ask("TYPE", key)
        with self._reading():
            kind.decode()
        return cast(bytes, kind)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn an error in reading a reply into a `StoreError`: what answers is no Redis or Valkey."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoreError(f"{self._upstream}: unexpected reply; is it a Redis or Valkey server?") from error

    async def _ask(self, *words: str | bytes | int) -> Any:
        try:
            return await self._say(*words)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreError(complaint(self._upstream, error, rights=_RIGHTS)) from error

    async def _say(self, *words: str | bytes | int) -> Any:
        await self._connection.send_command(*words)
        return await self._connection.read_response()


def _fields(flat: list[bytes]) -> Fields:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextlib.asynccontextmanager
async def opened(upstream: Upstream, names: Names) -> AsyncIterator[Store]:
    """Connect to the server.

    Raises:
        StoreError: the server cannot be reached, or another one has become the primary meanwhile.
    """
    control = None
    try:
        upstream = await upstream.itself()
        control = upstream.control()
        async with followed(upstream):
            connection = await control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            if await upstream.is_cluster_node(connection):
                raise StoreError(f"{upstream}: it is a cluster node, and there are no events in a cluster yet")
            yield Store(upstream, names, connection)
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreError(complaint(upstream, error, rights=_RIGHTS)) from error
    finally:
        if control is not None:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await control.connection_pool.disconnect()
