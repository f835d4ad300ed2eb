"""Read from servers in small steps. Errors have one line of text for people.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

from redis.exceptions import AskError, ClusterDownError, NoPermissionError, RedisError, ResponseError, TryAgainError

from proxy.events.command import show
from proxy.looking.walk import Words
from proxy.scripts.naming import Names, slot
from proxy.settings import Settings
from proxy.upstream.address import parse_upstream
from proxy.upstream.complaint import complaint, may_not_run
from proxy.upstream.endpoint import Upstream
from proxy.upstream.follower import followed
from proxy.upstream.nodes import Node, myself, primaries

_CLOSING_SECONDS: Final = 1.0

MOVING: Final = "slots of the cluster are being moved, or have no node; repeat the command when that is over"
"""Why a key cannot be read."""

_RIGHTS: Final = "docs/deadlines.md lists the rights"


class LookError(Exception):
    """The server could not be read; the text is one line for people."""


class Server:
    """A server, with a connection of its own.

    Args:
        upstream: the server's address and settings.
        connection: the connection.
        patience: seconds to wait for the replies of one step.
        node: the server's place in the cluster; None without a cluster.

    Attributes:
        node: as passed, or as set later.
        lacks: whether any of the requested keys was moving to another node.
    """

    def __init__(self, upstream: Upstream, connection: Any, patience: float, node: Node | None = None) -> None:
        self.node = node
        self.lacks = False
        self._upstream = upstream
        self._connection = connection
        self._patience = patience

    def __str__(self) -> str:
        """Return the server's address and the database."""
        return f"{self._upstream}, database {self._upstream.database}"

    async def ask(self, requests: Sequence[Words]) -> list[Any]:
        """Return the replies to requests that are sent together.

        A reply may be an error: the key has another type, or is moving to another node of the cluster.

        Raises:
            LookError: a reply is another error, or there is no reply.
        """
        replies = await self.ask_freely(requests)
        for request, reply in zip(requests, replies, strict=True):
            if type(reply) is AskError:
                self.lacks = True
            elif isinstance(reply, Exception) and not str(reply).startswith("WRONGTYPE"):
                raise LookError(self._refused(request, reply))
        return replies

    async def ask_freely(self, requests: Sequence[Words]) -> list[Any]:
        """Return the replies, including all errors, to requests that are sent together.

        Raises:
            LookError: there is no reply.
        """
        replies: list[Any] = []
        try:
            async with asyncio.timeout(self._patience):
                await self._connection.send_packed_command(self._connection.pack_commands(requests))
                for _ in requests:
                    try:
                        replies.append(await self._connection.read_response(timeout=math.inf))
                    except ResponseError as error:
                        replies.append(error)
        except (RedisError, OSError) as error:  # OSError includes TimeoutError
            raise LookError(complaint(self._upstream, error, rights=_RIGHTS)) from error
        return replies

    async def moment(self) -> float:
        """Return the server's time in Unix ms."""
        (reply,) = await self.ask([("TIME",)])
        return int(reply[0]) * 1000 + int(reply[1]) / 1000

    def _refused(self, request: Words, error: Exception) -> str:
        if isinstance(error, NoPermissionError):
            return f"{self._upstream}: {missing_right(self._upstream, request, error)}; {_RIGHTS}"
        if isinstance(error, AskError | TryAgainError | ClusterDownError):
            return f"{self._upstream}: {MOVING}"
        return complaint(self._upstream, error, rights=_RIGHTS)


def missing_right(upstream: Upstream, request: Words, error: Exception) -> str:
    """Return which permission the user lacks for a request, and the ACL SETUSER rule that grants it."""
    user = upstream.user.decode("utf-8", "replace") or "default"
    name = str(request[0]).lower()
    if " run the '" in str(error) or len(request) < 2:
        return may_not_run(upstream, f"{name}|{str(request[1]).lower()}" if name in ("cluster", "pubsub") else name)
    key = request[1] if isinstance(request[1], bytes) else str(request[1]).encode()
    return f"the user {user!a} may not read the key {show(key)}: it needs ~ or %R~ with a pattern for it"


class Servers:
    """The server, or all primaries of its cluster.

    Args:
        names: the names of the proxy's own keys.
        servers: the servers; in a cluster, those that have slots.
        clustered: whether the servers are a cluster.
    """

    def __init__(self, names: Names, servers: Sequence[Server], *, clustered: bool) -> None:
        self.names = names
        self.all = servers
        self.clustered = clustered

    def owner(self, key: bytes) -> Server:
        """Return the server that has a key.

        Raises:
            LookError: no server has the key.
        """
        if not self.clustered:
            return self.all[0]
        places = [server.node for server in self.all if server.node is not None]
        owner = _owner(places, key)[0]
        return next(server for server in self.all if server.node is owner)

    def index_of(self, key: bytes) -> bytes:
        """Return the name of the index that has a key's earliest deadline."""
        return self.names.index_of(slot(key) if self.clustered else None)


def _owner(nodes: Sequence[Node], key: bytes) -> list[Node]:
    number = slot(key)
    found = [node for node in nodes if number in node.slots]
    if not found:
        raise LookError(f"slot {number} of the cluster has no node: the key cannot be read")
    return found[:1]


@contextlib.asynccontextmanager
async def opened(settings: Settings, key: bytes | None = None) -> AsyncIterator[Servers]:
    """Connect to the server, or to all primaries of its cluster.

    Args:
        settings: the settings.
        key: the only key to read, so that only its primary has to be reachable; None to read all keys.

    Raises:
        LookError: a server cannot be reached, or another server has become the primary meanwhile.
        SettingsError: a setting cannot be used.
    """
    names = Names(settings.prefix.encode())
    async with contextlib.AsyncExitStack() as stack:
        first = await _reach(Upstream(settings, settings.upstream), settings, stack)
        (section,) = await first.ask([("INFO", "cluster")])
        if b"cluster_enabled:1" not in section:
            yield Servers(names, [first], clustered=False)
            return
        (reply,) = await first.ask([("CLUSTER", "NODES")])
        url = parse_upstream(settings.upstream)
        try:
            own, nodes = myself(reply), primaries(reply, by_name=url.tls)
        except ValueError as error:
            raise LookError(f"{first}: {error}") from None
        servers = []
        for node in nodes if key is None else _owner(nodes, key):
            if node.name == own.name:
                first.node = node
                servers.append(first)
                continue
            upstream = Upstream(settings, replace(url, address=node.address, path=None))
            server = await _reach(upstream, settings, stack)
            server.node = node
            servers.append(server)
        yield Servers(names, servers, clustered=True)


async def _reach(upstream: Upstream, settings: Settings, stack: contextlib.AsyncExitStack) -> Server:
    try:
        upstream = await upstream.itself()
        pool = upstream.control().connection_pool

        async def close() -> None:
            with contextlib.suppress(RedisError, OSError):  # OSError includes TimeoutError
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await pool.disconnect()

        stack.push_async_callback(close)
        await stack.enter_async_context(_followed(upstream))
        connection = await pool.get_connection()  # type: ignore[no-untyped-call]
    # A server that is not Redis may send text instead of a number.
    except (RedisError, OSError, ValueError, RuntimeError) as error:
        raise LookError(complaint(upstream, error, rights=_RIGHTS)) from error
    return Server(upstream, connection, settings.control_timeout)


@contextlib.asynccontextmanager
async def _followed(upstream: Upstream) -> AsyncIterator[None]:
    """Follow the primary if Sentinels are configured."""
    try:
        async with followed(upstream):
            yield
    except (RedisError, OSError) as error:
        raise LookError(complaint(upstream, error, rights=_RIGHTS)) from error
