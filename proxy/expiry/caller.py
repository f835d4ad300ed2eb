"""Call scripts and query the server over the proxy's own connections; in a cluster, one call for each slot.

Its tests: tests/test_silence.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import Any, Final, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from proxy.commands.described import ServerCommands
from proxy.expiry.plainly import PLAINLY
from proxy.scripts.calls import control_script
from proxy.scripts.naming import Names

ELSEWHERE: Final = -1
"""A script's result for a key that a cluster node does not have or cannot serve."""

Call: TypeAlias = tuple[list[bytes], list[bytes | int | str]]
"""KEYS and ARGV of a script."""


Aside: TypeAlias = Callable[..., Awaitable[list[Any]]]
"""Sends small requests and returns their replies. Errors are returned, not raised."""

_CHANGE: Final = re.compile(
    rb"^(?:rdb_(?:changes_since_last_save|last_save_time|saves)|(?:expired|evicted)_(?:keys|subkeys|fields)"
    rb"|role|master_replid|slave_repl_offset):\S+",
    re.MULTILINE,
)
"""Fields of INFO that change with the data: writes since the last snapshot, snapshots, keys and fields that expired or
were evicted, and a replica's source."""

_DATABASE: Final = re.compile(rb"^db(\d+):", re.MULTILINE)

COMPLETE: Final = b"*"
"""A mark in a list of covered prefixes. It says that the prefixes cover all keys in that database's index, so no proxy
has to read the index."""


class Listing(Enum):
    """When to list covered prefixes in a database. The values are arguments of the script `cover`."""

    BESIDE = "beside"
    """If the database has an index."""
    HERE = "here"
    """Always."""
    WHOLE = "whole"
    """Always, and mark the list as covering all keys in the index."""


MOST_COVERED: Final = 1_000
"""Maximum number of covered prefixes to read from one list. There are fewer unless the list is damaged."""


class Caller:
    """Calls scripts and queries the server over the proxy's own connections.

    Args:
        control: the pool of control connections.
        names: the names of the proxy's own keys.
        commands: the server's commands.
        home: the database that control connections use.

    Attributes:
        aside: sends requests over the connection between proxies, at half the cost of a control connection. Use it
            only for small replies: the server disconnects a subscriber that is slow to read large ones.

    Every method raises `redis.exceptions.RedisError` if the server does not answer, or answers with an error.
    """

    def __init__(self, control: Redis, names: Names, commands: ServerCommands, home: int) -> None:
        self._control = control
        self._names = names
        self._commands = commands
        self._home = home
        self.aside: Aside = self._ask_in_turn

    async def evaluate(self, name: str, keys: Iterable[bytes], arguments: Iterable[bytes | int | str]) -> Any:
        """Run a script and return its reply. In a cluster, all keys must be in one slot of this node."""
        [reply] = await self.call(name, [(list(keys), list(arguments))])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def call(
        self,
        name: str,
        calls: Sequence[Call],
        *,
        asking: bool = False,
        quiet: bool = False,
        undeclared: bool = False,
    ) -> list[Any]:
        """Call a script once per slot.

        Args:
            name: the script.
            calls: KEYS and ARGV for each slot.
            asking: whether to send ASKING before each call, because the slots are being moved to the node.
            quiet: whether to call the script's short form, which sends no events.
            undeclared: whether ARGV begins with all keys (`all_in_arguments`).

        Returns:
            The replies. If a cluster node does not have all keys of a slot, its error is the reply for that slot.
        """
        slots, declares = self._names.slots, self._commands.declares_terms
        text = control_script(name, declares=declares, quiet=quiet, undeclared=undeclared)
        if slots is None:
            [(keys, arguments)] = calls
            if not declares and name in PLAINLY:
                return [await self.do_plainly(name, keys, arguments)]
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
            raise replies[0]  # the proxy's user lacks permission
        replies = replies[1::2] if asking else replies[-len(calls) :]
        for reply in replies:
            if isinstance(reply, Exception) and not is_elsewhere(reply):
                raise reply
        return replies

    async def do_plainly(self, name: str, keys: list[bytes], arguments: list[bytes | int | str]) -> Any:
        """Return what a script in `PLAINLY` would return, using plain commands."""
        asks, take = PLAINLY[name](keys, arguments)
        return take(await self._ask_together(asks))

    async def glance(self, index: bytes) -> tuple[int, float]:
        """Return the server's clock, in Unix µs, and the earliest deadline in the control connections' database, in ms.

        Infinity means that there is no deadline; minus infinity, that the index has the wrong type. No script runs.
        """
        time, first = await self.aside(("TIME",), ("ZRANGE", index, "0", "0", "WITHSCORES"))
        if isinstance(first, Exception) and not str(first).startswith("WRONGTYPE"):
            raise first
        if isinstance(first, Exception):
            earliest = -math.inf
        else:
            earliest = float((first[0] if isinstance(first[0], list) else first)[1]) if first else math.inf
        return _micros(time), earliest

    async def commands(self) -> list[list[Any]]:
        """Return the server's reply to COMMAND, unchanged."""
        rows: list[list[Any]] = await self.ask("COMMAND")
        return rows

    async def users(self) -> list[bytes]:
        """Return the server's users with their permissions, one line each."""
        lines: list[bytes] = await self.ask("ACL", "LIST")
        return lines

    async def greeting(self) -> dict[bytes, Any]:
        """Return the server's reply to HELLO: its name, version and more."""
        words = await self.ask("HELLO")
        return words if isinstance(words, dict) else dict(zip(words[::2], words[1::2], strict=True))

    async def round_trip(self) -> None:
        """Wait until the server has replied to a request on a control connection.

        Raises:
            TimeoutError: the server is running a script (BUSY), and runs no other requests meanwhile.
        """
        try:
            await self.ask("PING")
        except ResponseError as error:
            if str(error).startswith("BUSY"):
                raise TimeoutError(str(error)) from error

    async def clients(self) -> bytes:
        """Return the server's clients, one line each (CLIENT LIST)."""
        reply: bytes = await self.ask("CLIENT", "LIST")
        return reply

    async def ask(self, *words: str) -> Any:
        """Send a command and return the reply unchanged, without redis-py's conversion."""
        connection = await self._control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            await connection.send_command(*words)
            return await connection.read_response()
        finally:
            await self._control.connection_pool.release(connection)

    async def _ask_in_turn(self, *requests: tuple[bytes | int | str, ...]) -> list[Any]:
        return await self._ask_together(requests)

    async def exist(self, databases: list[int], names: Sequence[bytes]) -> bool:
        """Return whether any of some keys exists in any of some databases, without running a script."""
        asks, take = PLAINLY["traces"](list(names), [*databases])
        return bool(take(await self._ask_together(asks)))

    async def _ask_together(self, asks: Iterable[tuple[bytes | int | str, ...]]) -> list[Any]:
        """Send commands, which may select other databases, and return the replies. Errors are returned, not raised."""
        commands = [*asks, ("SELECT", self._home)]
        connection = await self._control.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        replies: list[Any] = []
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            while len(replies) < len(commands):
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
        finally:
            if len(replies) < len(commands) or isinstance(replies[-1], ResponseError):
                await connection.disconnect()
            await self._control.connection_pool.release(connection)
        return replies[:-1]

    async def covered(self, databases: list[int], name: bytes, index: bytes) -> dict[int, tuple[list[bytes], bool]]:
        """Read the lists of covered prefixes without running a script.

        Args:
            databases: the numbers of the databases.
            name: the name of the list.
            index: the name of the index.

        Returns:
            For each existing database: the prefixes, `MOST_COVERED` at most, and whether there is an index.
        """
        reading: list[tuple[bytes | int | str, ...]] = [("ZRANGE", name, "0", str(MOST_COVERED - 1)), ("EXISTS", index)]
        if databases == [self._home]:
            replies = [None, *await self.aside(*reading)]
        else:
            asks = ((("SELECT", database), *reading) for database in databases)
            replies = await self._ask_together(chain.from_iterable(asks))
        found = {}
        for place, database in enumerate(databases):
            selected, entries, indexed = replies[3 * place : 3 * place + 3]
            if isinstance(selected, ResponseError):
                continue
            if isinstance(indexed, ResponseError):
                raise indexed
            if isinstance(entries, ResponseError):
                if not str(entries).startswith("WRONGTYPE"):
                    raise entries
                entries = []
            found[database] = list(entries), bool(indexed)
        return found

    async def databases(self) -> set[int]:
        """Return the numbers of the databases that have keys."""
        [keyspace] = await self.aside(("INFO", "keyspace"))
        return set(map(int, _DATABASE.findall(_told(keyspace))))

    async def changes(self) -> object:
        """Return a value that differs after any change of the data."""
        sections = await self.aside(("INFO", "persistence"), ("INFO", "stats"), ("INFO", "replication"))
        return [_CHANGE.findall(_told(section)) for section in sections]

    async def time(self) -> int:
        """Return the server's clock, in Unix µs."""
        [time] = await self.aside(("TIME",))
        return _micros(time)


def _told(answer: Any) -> Any:
    """Return a reply, or raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def _micros(time: Any) -> int:
    seconds, micros = _told(time)
    return 1_000_000 * int(seconds) + int(micros)


def is_elsewhere(error: Exception) -> bool:
    """Return whether an error says that a cluster node does not have all keys of a request."""
    return isinstance(error, MovedError | AskError | TryAgainError)
