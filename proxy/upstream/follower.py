"""Poll all Sentinels for the primary, at once if a Sentinel announces a switch, and move the upstream to it.

Its tests: tests/test_sentinel_trouble.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from proxy.ending import end
from proxy.upstream.address import Address
from proxy.upstream.endpoint import ListeningConnection, Upstream
from proxy.upstream.sentinel import (
    GRACE_SECONDS,
    PROMOTED,
    SWITCH,
    Council,
    SentinelError,
    questions,
    read_report,
)
from proxy.upstream.words import REACH, in_words, is_unreachable

log = structlog.get_logger("proxy.sentinel")

POLL_SECONDS: Final = 1.0
"""How often to query each Sentinel, in addition to its announcements."""

ANSWER_SECONDS: Final = 3.0
"""How long a Sentinel may take to connect, and to reply."""

_STEADY_SECONDS: Final = 3.0
"""After a Sentinel has answered for this long, the delay before reconnecting starts from the shortest again."""

_LONGEST_NAP: Final = 0.25
_FIRST_BACKOFF: Final = 0.05
_LAST_BACKOFF: Final = 2.0
_UNLIKE: Final = "its replies are not those of a Sentinel"
_PUSHED: Final = object()
_SUBSCRIBED: Final = object()


class Follower:
    """Follows the Sentinels.

    Args:
        upstream: the upstream, whose address names Sentinels.
        quiet: whether to log nothing.

    Attributes:
        all_asked: set when every Sentinel has answered or failed.
    """

    def __init__(self, upstream: Upstream, *, quiet: bool = False) -> None:
        self._upstream = upstream
        self._quiet = quiet
        self._sentinels = upstream.sentinels
        self._council = Council(self._sentinels)
        self._lines: list[_Line] = []
        self._complaints: dict[Address, str] = {}  # logged problems that persist
        self._at_odds = False
        self._graced = False
        self.all_asked = asyncio.Event()

    @property
    def answering(self) -> int:
        """How many Sentinels report a primary."""
        return len(self._council.reports)

    @property
    def reports(self) -> dict[Address, Address]:
        """The reports of the Sentinels that answer."""
        return {sentinel: report.address for sentinel, report in self._council.reports.items()}

    @property
    def failures(self) -> dict[Address, str]:
        """The problem of each Sentinel that does not report the primary, for people."""
        return self._council.failures

    async def run(self) -> None:
        """Follow the Sentinels until cancelled."""
        tasks = [asyncio.create_task(self._watch(sentinel)) for sentinel in self._sentinels]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a task ends only because of a bug
        finally:
            await end(tasks)

    def ask(self) -> None:
        """Query all Sentinels now: the primary may have changed."""
        for line in self._lines:
            line.ask()

    async def _watch(self, sentinel: Address) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            line = _Line(self, self._upstream, sentinel)
            try:
                await line.converse()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                self._failed(sentinel, error)
            if line.is_steady:
                backoff = _FIRST_BACKOFF
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = min(2 * backoff, _LAST_BACKOFF)

    def opened(self, line: _Line) -> None:
        """Note a connection that is ready for queries."""
        self._lines.append(line)

    def closed(self, line: _Line) -> None:
        """Note that a connection has ended."""
        self._lines.remove(line)

    def _failed(self, sentinel: Address, error: Exception) -> None:
        why, advice = explain(error, has_login=self._upstream.has_sentinel_login)
        if self._complaints.get(sentinel) != why and not self._quiet:
            self._complaints[sentinel] = why
            known = isinstance(error, RedisError | OSError | SentinelError)
            log.warning("sentinel cannot be used", sentinel=str(sentinel), state=why, advice=advice, exc_info=not known)
        self._council.fail(sentinel, why)
        self._decide()

    def told(self, sentinel: Address, about: Any, address: Any, asked: float) -> None:
        """Handle the replies to `questions`; `asked`: when the questions were sent, in seconds.

        Raises:
            SentinelError: the replies contain no address.
        """
        self._council.report(sentinel, read_report(about, address, self._upstream.primary_name), asked)
        if not self._graced:
            self._graced = True
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._decide)
        self._decide()

    def steady(self, sentinel: Address) -> None:
        """Note that a Sentinel has answered for a while."""
        if self._complaints.pop(sentinel, None) is not None:
            log.info("sentinel can be used again", sentinel=str(sentinel))

    def _decide(self) -> None:
        council, now = self._council, asyncio.get_running_loop().time()
        before = council.primary
        primary = council.decide(now)
        if council.all_asked:
            self.all_asked.set()
        if not self._quiet:
            self._say_whether_at_odds(council.are_at_odds(now))
        if primary is None:
            if council.all_asked and self._upstream.stay.address is None:
                # If any Sentinel has reported a primary, the Sentinels only disagree. Then the attempt is not over: the
                # council will decide soon.
                self._upstream.not_found(council.missing or "", tried=not council.reports)
        elif primary not in (before, self._upstream.stay.address):
            self._upstream.move(primary, council.reason)

    def _say_whether_at_odds(self, at_odds: bool) -> None:
        if at_odds == self._at_odds:
            return
        self._at_odds = at_odds
        if at_odds:
            advice = "take Sentinels of other deployments out of upstream; have all of them watch the same primary"
            log.warning("sentinels disagree", told=self._council.names, advice=advice)
        else:
            log.info("sentinels agree again", told=self._council.names)


class _Line:
    """The conversation with one Sentinel, on one connection.

    Args:
        follower: receives the Sentinel's reports.
        upstream: knows how to log in.
        sentinel: the Sentinel.

    Attributes:
        is_steady: whether the Sentinel has reported the primary for a while.
    """

    def __init__(self, follower: Follower, upstream: Upstream, sentinel: Address) -> None:
        self.is_steady = False
        self._follower = follower
        self._upstream = upstream
        self._sentinel = sentinel
        self._connection: ListeningConnection = upstream.sentinel_connection(sentinel, ANSWER_SECONDS, self._pushed)
        self._replies: list[Any] = []
        self._asked: float | None = None  # when the outstanding questions were sent
        self._again = False
        self._answered: float | None = None  # when the Sentinel first replied

    async def converse(self) -> None:
        """Query the Sentinel repeatedly, and receive its announcements.

        Raises:
            RedisError, OSError: the Sentinel cannot be reached, or refuses.
            SentinelError: it reports no primary.
        """
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.connect()  # type: ignore[no-untyped-call]
                await self._subscribe()
            self._follower.opened(self)
            try:
                self.ask()
                due = loop.time() + POLL_SECONDS
                while True:
                    await self._hear()
                    now = loop.time()
                    if self._asked is not None and now > self._asked + ANSWER_SECONDS:
                        raise TimeoutError
                    if now >= due:
                        self.ask()
                        due = now + POLL_SECONDS
            finally:
                self._follower.closed(self)
        finally:
            await connection.disconnect(nowait=True)

    async def _subscribe(self) -> None:
        """Subscribe; if the Sentinel does not permit that, rely on queries."""
        for channel in (SWITCH, PROMOTED):
            await self._connection.send_command("SUBSCRIBE", channel)
        answers = 0
        while answers < 2:
            response = await self._read()
            if isinstance(response, ResponseError):
                log.debug("sentinel refuses subscriptions", sentinel=str(self._sentinel), error=str(response))
            elif response is _PUSHED:
                continue
            elif response is not _SUBSCRIBED:
                raise SentinelError(_UNLIKE)
            answers += 1

    def ask(self) -> None:
        """Query the Sentinel now or, if queries are outstanding, after their replies."""
        if self._asked is not None:
            self._again = True
            return
        self._again = False
        self._asked = asyncio.get_running_loop().time()
        for words in questions(self._upstream.primary_name):
            self._connection.send_at_once(*words)

    async def _hear(self) -> None:
        """Handle the next reply or push, if one comes soon."""
        try:
            async with asyncio.timeout(_LONGEST_NAP):
                response = await self._read()
        except TimeoutError:
            return
        if response is _PUSHED or response is _SUBSCRIBED:
            return
        if self._asked is None:
            raise SentinelError(_UNLIKE)
        self._replies.append(response)
        if len(self._replies) < 2:
            return
        about, address = self._replies
        self._replies = []
        asked, self._asked = self._asked, None
        self._follower.told(self._sentinel, about, address, asked)
        now = asyncio.get_running_loop().time()
        if self._answered is None:
            self._answered = now
        if now >= self._answered + _STEADY_SECONDS:
            self.is_steady = True
            self._follower.steady(self._sentinel)
        if self._again:
            self.ask()

    async def _read(self) -> Any:
        """Return the next reply or push; for an error reply, return the exception instead of raising it.

        Raises:
            RedisError, OSError: the connection is lost.
            SentinelError: the reply cannot come from a Sentinel.
        """
        try:
            # No timeout: after one, redis-py would return None, which also stands for a nil reply.
            return await self._connection.read_response(push_request=True, timeout=math.inf, disconnect_on_error=False)
        except ResponseError as error:
            return error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise SentinelError(_UNLIKE) from error  # a push or a map that redis-py cannot parse

    async def _pushed(self, push: list[Any]) -> object:
        if push[0] == b"subscribe":
            return _SUBSCRIBED
        # The message is only a reason to query: it may be old, and contains no epoch.
        if push[0] == b"message" and push[1] == SWITCH:
            self._follower.ask()
        elif push[0] == b"message" and push[1] == PROMOTED:
            self.ask()
        return _PUSHED


@contextlib.asynccontextmanager
async def followed(upstream: Upstream) -> AsyncIterator[None]:
    """Find the primary. Work in the context fails once that server is no longer the primary.

    Does nothing if the upstream has no Sentinels.

    Args:
        upstream: the upstream.

    Raises:
        RedisError, OSError, TimeoutError: the Sentinels report no primary, or the server is not a primary.
        MovedError: another server became the primary meanwhile.
    """
    if not upstream.sentinels:
        yield
        return
    following = asyncio.create_task(Follower(upstream, quiet=True).run())
    try:
        await upstream.found()
        stay = upstream.stay
        connection = upstream.unnamed_connection()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            await upstream.greet(connection)
        finally:
            await connection.disconnect(nowait=True)
        yield
        stay.check()
    finally:
        await end([following])


def explain(error: Exception, *, has_login: bool) -> tuple[str, str]:
    """Return what is wrong with a Sentinel, and advice.

    Args:
        error: the error of the Sentinel or its connection.
        has_login: whether the proxy has credentials for Sentinels.
    """
    if isinstance(error, AuthenticationError):
        if not has_login:
            return "it requires a password, and the proxy has none for it", "set sentinel_password_file"
        advice = "check sentinel_user and sentinel_password_file, or sentinel_password"
        return f"it refuses the proxy's login ({in_words(error)})", advice
    if isinstance(error, SentinelError):
        return str(error), "check the addresses and the name in upstream"
    return in_words(error), REACH if is_unreachable(error) else "see docs/sentinel.md for the rights it needs"
