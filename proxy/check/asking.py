"""Query an upstream server for the facts that matter to a proxy, without changing anything.

Its tests: tests/test_check.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import statistics
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from proxy import __version__
from proxy.check.findings import Facts, Finding, Level, fields, is_cluster_node, judge, judge_sentinels
from proxy.check.listening import exposed, own_address, ports
from proxy.check.needed import CLUSTERED, TRIALS, trials
from proxy.coverage.coverage import Coverage
from proxy.ending import end
from proxy.settings import Settings
from proxy.upstream.endpoint import Upstream
from proxy.upstream.follower import ANSWER_SECONDS, Follower
from proxy.upstream.login import LoginWatch
from proxy.upstream.nodes import myself
from proxy.upstream.refusals import UnknownCommandError
from proxy.upstream.words import CLIENT_NAME, REACH, ProxyBehindError, in_words, is_proxys, is_unreachable

PINGS: Final = 5

_STEPS: Final = 3
"""Time limit for all answers together, as a multiple of `control_timeout`."""

_REFUSED_COMMAND: Final = re.compile(r" run the '([^'|]+)")
_OF_ONE_COMMAND: Final = (NoPermissionError, UnknownCommandError)
"""Errors that concern one command only: the finding on rights reports them."""

_GREETING_SECONDS: Final = 1.0
_LONGEST_LINE: Final = 300

_PLAIN: Final = "check that it is a Redis or Valkey, and whether it speaks TLS there (rediss://)"


async def check_upstream(settings: Settings) -> list[Finding]:
    """Query the upstream server, and return the findings.

    Raises:
        SettingsError: a certificate or the password file cannot be used.
    """
    upstream = Upstream(settings, settings.upstream)
    facts = Facts(str(upstream), version=__version__, exposed=exposed(settings), ports=ports(settings))
    connection = upstream.unnamed_connection()
    try:
        await _ask_sentinels(upstream, facts)
        async with asyncio.timeout(settings.connect_timeout + _STEPS * settings.control_timeout):
            await connection.connect()  # type: ignore[no-untyped-call]
            await _gather(_Asker(connection), facts, upstream.database, settings.prefix.encode())
            if facts.exposed:
                with contextlib.suppress(OSError):  # without an answer, report nothing about logins
                    facts.wants_login = await LoginWatch(upstream.connect).ask()
        findings = list(judge(facts))
    # MemoryError and ValueError: a server that is not Redis may announce arrays of any size, or send invalid numbers.
    except (OSError, RedisError, TimeoutError, RuntimeError, MemoryError, ValueError) as error:
        sentinels = list(judge_sentinels(facts))
        if sentinels and not facts.primary:
            return sentinels  # without a primary nothing else can be checked
        silent = upstream.uses_tls or isinstance(error, AuthenticationError) or facts.primary == ""
        greeting = b"" if silent else await _greeting(upstream)
        own = own_address(settings, upstream.stay.address) if is_unreachable(error) else None
        return [*sentinels, _unreachable(upstream, error, greeting, own)]
    finally:
        await connection.disconnect(nowait=True)
    return [Finding(Level.OK, "upstream", f"{facts.address} answers"), *findings]


async def _ask_sentinels(upstream: Upstream, facts: Facts) -> None:
    """Query all Sentinels for the primary's address, if the upstream names Sentinels.

    Raises:
        RedisError: no Sentinel knows the primary.
    """
    if not upstream.sentinels:
        return
    follower = Follower(upstream, quiet=True)
    following = asyncio.create_task(follower.run())
    facts.primary = ""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS + 1):
                await follower.all_asked.wait()
        await upstream.found()
    finally:
        for sentinel in upstream.sentinels:
            told = follower.reports.get(sentinel)
            failure = None if told is not None else follower.failures.get(sentinel, "no answer in time")
            facts.sentinels[str(sentinel)] = (None if told is None else str(told), failure)
        await end([following])
    facts.primary = str(upstream.stay.address)
    facts.address = str(upstream)


class _Asker:
    """Pipelines requests on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, requests: Sequence[Sequence[bytes]]) -> list[Any]:
        """Return the replies; an error is returned as an exception object."""
        await self._connection.send_packed_command(self._connection.pack_commands(requests))
        replies: list[Any] = []
        for _ in requests:
            try:
                replies.append(await self._connection.read_response())
            except (ResponseError, AuthenticationError, NoPermissionError, ProxyBehindError) as error:
                replies.append(error)
        return replies


async def _gather(asker: _Asker, facts: Facts, database: int, prefix: bytes) -> None:
    (first,) = await asker.ask([(b"PING",)])
    if isinstance(first, Exception) and not isinstance(first, _OF_ONE_COMMAND):
        raise first
    trips, ahead = [], []
    for _ in range(PINGS):
        began, wall = time.perf_counter(), time.time()
        (moment,) = await asker.ask([(b"TIME",)])
        took = time.perf_counter() - began
        trips.append(1000 * took)
        if isinstance(moment, list):
            ahead.append(int(moment[0]) + int(moment[1]) / 1e6 - (wall + took / 2))
    facts.round_trip_ms = statistics.median(trips)
    facts.ahead = statistics.median(ahead) if ahead else None
    info, section, save, command, clients, selected = await asker.ask([
        (b"INFO", ), (b"INFO", b"expiremember"), (b"CONFIG", b"GET", b"save"), (b"COMMAND", b"INFO", b"EXPIREMEMBER"),
        (b"CLIENT", b"LIST", b"TYPE", b"pubsub"), (b"SELECT", b"%d" % database),
    ])  # fmt: skip
    if isinstance(selected, Exception) and not isinstance(selected, _OF_ONE_COMMAND):
        raise selected
    facts.info = fields(_text(info))
    facts.section = fields(_text(section))
    facts.save = _text(save[1]) if isinstance(save, list) and len(save) == 2 else None
    facts.has_command = isinstance(command, list) and any(command)
    facts.proxies = _proxies(_text(clients))
    if is_cluster_node(facts.info):
        (nodes,) = await asker.ask([(b"CLUSTER", b"NODES")])
        facts.node = myself(nodes) if isinstance(nodes, bytes) else None
    else:
        (listed,) = await asker.ask([(b"ZRANGE", prefix + b"covered", b"0", b"-1")])
        entries = listed if isinstance(listed, list) else []
        coverage = Coverage()
        coverage.add([entry for entry in entries if isinstance(entry, bytes)])
        facts.covered = [ascii(entry[1:].decode("utf-8", "replace"))[1:-1] for entry in coverage.entries]
    await _try_rights(asker, facts, prefix)


async def _try_rights(asker: _Asker, facts: Facts, prefix: bytes) -> None:
    """Try everything the proxy's user needs, on a key that does not exist and a channel without subscribers."""
    token = secrets.token_hex(8).encode()
    requests = trials(token, prefix, clustered=is_cluster_node(facts.info))
    replies = await asker.ask([request for _, request in requests])
    refused, unknown = set(), set()
    for (name, _), reply in zip(requests, replies, strict=True):
        if isinstance(reply, UnknownCommandError):
            unknown.add(reply.command.lower())
        if not isinstance(reply, NoPermissionError):
            continue
        # The wording of errors differs between versions; only those about a command contain "run".
        if of_command := _REFUSED_COMMAND.search(str(reply)):
            if of_command[1] == name:  # otherwise EVAL was refused, and the command itself not tried
                refused.add(name)
        elif name in ("publish", "subscribe"):
            facts.channels_refused = True
        else:
            facts.keys_refused = True
    facts.unknown = [name for name in TRIALS if name in unknown]
    facts.refused = [name for name in (*TRIALS, *CLUSTERED) if name in refused]


def _text(reply: Any) -> str:
    return reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""


def _proxies(clients: str) -> list[str]:
    """Return the versions of the proxies among the server's subscribers, from CLIENT LIST."""
    found = [dict(word.partition("=")[::2] for word in line.split()) for line in clients.splitlines()]
    ours = [client for client in found if client.get("name") == CLIENT_NAME]
    return [client.get("lib-ver", "") if client.get("lib-name") == CLIENT_NAME else "" for client in ours]


async def _greeting(upstream: Upstream) -> bytes:
    """Return the error with which the server rejects new connections; usually empty."""
    said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    listener = _Listener(said)
    try:
        async with asyncio.timeout(_GREETING_SECONDS):
            await upstream.connect(lambda: listener)
            return await said
    except (OSError, TimeoutError):
        return b""
    finally:
        listener.close()


class _Listener(asyncio.Protocol):
    """Reads the first line from a server, without sending anything."""

    def __init__(self, said: asyncio.Future[bytes]) -> None:
        self._said = said
        self._line = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._line += data
        if b"\n" in self._line or len(self._line) > _LONGEST_LINE:
            self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell()

    def _tell(self) -> None:
        if not self._said.done():
            self._said.set_result(self._line.partition(b"\r\n")[0][:_LONGEST_LINE])
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


def _unreachable(upstream: Upstream, error: Exception, greeting: bytes, own: str | None) -> Finding:
    """Explain why the server could not be queried.

    Args:
        upstream: the server.
        error: what went wrong.
        greeting: the line that the server sends to a client before its first request; usually empty.
        own: the proxy's listen address to which the upstream's address leads; None if there is none.
    """
    if is_proxys(greeting.removeprefix(b"-ERR ").decode("utf-8", "replace")):
        error, greeting = ProxyBehindError(None), b""
    if isinstance(error, ProxyBehindError):
        return Finding(Level.FAILURE, "upstream", f"{upstream} cannot be used: {error}")
    if own is not None:
        return Finding(
            Level.FAILURE,
            "upstream",
            f"{upstream} is the proxy's own listen address ({own}); set upstream to the Redis or Valkey server",
        )
    if greeting.startswith(b"-"):
        answer = greeting[1:].decode("utf-8", "replace")
        return Finding(Level.FAILURE, "upstream", f"{upstream} rejects clients: {answer}")
    raw, words = str(error), in_words(error)[:_LONGEST_LINE]
    if isinstance(error, AuthenticationError):
        return Finding(Level.FAILURE, "login", f"{upstream}: {upstream.explain(error)}; {upstream.advice(error)}")
    advice = upstream.advice(error)
    if isinstance(error, BusyLoadingError):
        return Finding(Level.FAILURE, "loading", f"{upstream} is still loading its data; try again when it is done")
    if advice is None:
        unlike = isinstance(error, InvalidResponse) or "connecting to" not in raw
        advice = _PLAIN if unlike and not upstream.uses_tls else REACH
    if isinstance(error, ResponseError) and not isinstance(error, InvalidResponse):
        return Finding(Level.FAILURE, "upstream", f"{upstream} answers: {words}")
    return Finding(Level.FAILURE, "upstream", f"{upstream} cannot be used: {words}; {advice}")
