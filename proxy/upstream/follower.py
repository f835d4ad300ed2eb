"""Asks all Sentinels where the primary is, hears of a switch from any of them, and moves the upstream there."""

from __future__ import annotations

import asyncio
import math
import random
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
    read_switch,
)
from proxy.upstream.words import REACH, in_words, is_unreachable

log = structlog.get_logger("proxy.sentinel")

POLL_SECONDS: Final = 1.0
"""How often each Sentinel is asked, beside what it announces."""

ANSWER_SECONDS: Final = 3.0
"""How long a Sentinel may take to connect, and to answer."""

_LONGEST_NAP: Final = 0.25
_FIRST_BACKOFF: Final = 0.05
_LAST_BACKOFF: Final = 2.0
_PUSHED: Final = object()


class Follower:
    """Follows the Sentinels.

    Args:
        upstream: the upstream, whose address names Sentinels.
        quiet: whether to log nothing: what is found out is told otherwise.

    Attributes:
        all_asked: set when every Sentinel has answered or failed.
    """

    def __init__(self, upstream: Upstream, *, quiet: bool = False) -> None:
        self._upstream = upstream
        self._quiet = quiet
        self._sentinels = upstream.sentinels
        self._council = Council(self._sentinels)
        self._lines: list[_Line] = []
        self._graced = False
        self.all_asked = asyncio.Event()

    @property
    def answering(self) -> int:
        """How many Sentinels tell where the primary is."""
        return len(self._council.reports)

    @property
    def reports(self) -> dict[Address, Address]:
        """Where the primary is by each Sentinel that tells it."""
        return {sentinel: report.address for sentinel, report in self._council.reports.items()}

    @property
    def failures(self) -> dict[Address, str]:
        """What is wrong with the others, in words for people."""
        return self._council.failures

    async def run(self) -> None:
        """Follow until cancelled, whatever the Sentinels do."""
        tasks = [asyncio.create_task(self._watch(sentinel)) for sentinel in self._sentinels]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # none ends but by a defect
        finally:
            await end(tasks)

    def ask(self) -> None:
        """Ask all Sentinels at once: something has shown that the primary may be another."""
        for line in self._lines:
            line.ask()

    async def _watch(self, sentinel: Address) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            line = _Line(self, self._upstream, sentinel)
            try:
                await line.converse()
            except Exception as error:  # noqa: BLE001 - whatever it answers: the next attempt may succeed
                self._failed(sentinel, error)
            if line.answered:
                backoff = _FIRST_BACKOFF
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = min(2 * backoff, _LAST_BACKOFF)

    def opened(self, line: _Line) -> None:
        """Note a conversation that can be asked things."""
        self._lines.append(line)

    def closed(self, line: _Line) -> None:
        """Note its end."""
        self._lines.remove(line)

    def _failed(self, sentinel: Address, error: Exception) -> None:
        why, advice = explain(error, has_login=self._upstream.has_sentinel_login)
        if self._council.failures.get(sentinel) != why and not self._quiet:
            known = isinstance(error, RedisError | OSError | SentinelError)
            log.warning("sentinel cannot be used", sentinel=str(sentinel), state=why, advice=advice, exc_info=not known)
        self._council.fail(sentinel, why)
        self._decide("the Sentinels name another primary")

    def told(self, sentinel: Address, about: Any, address: Any) -> None:
        """Take the replies to `questions`.

        Raises:
            SentinelError: they tell no address.
        """
        report = read_report(about, address, self._upstream.primary_name)
        again = sentinel in self._council.failures
        now = asyncio.get_running_loop().time()
        self._council.report(sentinel, report, now)
        if again and not self._quiet:
            log.info("sentinel can be used again", sentinel=str(sentinel))
        if not self._graced:
            self._graced = True
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._decide, "found by the Sentinels")
        self._decide("the Sentinels name another primary")

    def announced(self, sentinel: Address, message: bytes) -> None:
        """Take a message of `SWITCH`."""
        switch = read_switch(message, self._upstream.primary_name)
        if switch is not None:
            self._council.announce(sentinel, *switch)
            self._decide(f"{SWITCH.decode()} from {sentinel}")
            self.ask()

    def _decide(self, why: str) -> None:
        before = self._council.primary
        primary = self._council.decide(asyncio.get_running_loop().time())
        if self._council.all_asked:
            self.all_asked.set()
        if primary is None:
            if self._council.all_asked:
                self._upstream.not_found(self._council.missing or "")
        elif primary != before:
            self._upstream.move(primary, why)


class _Line:
    """A conversation with one Sentinel, on one connection.

    Args:
        follower: takes what it says.
        upstream: knows how to log in.
        sentinel: the Sentinel.

    Attributes:
        answered: whether it has told where the primary is.
    """

    def __init__(self, follower: Follower, upstream: Upstream, sentinel: Address) -> None:
        self.answered = False
        self._follower = follower
        self._upstream = upstream
        self._sentinel = sentinel
        self._connection: ListeningConnection = upstream.sentinel_connection(sentinel, ANSWER_SECONDS, self._pushed)
        self._replies: list[Any] = []
        self._asked: float | None = None  # when the answers that are awaited were asked for
        self._again = False

    async def converse(self) -> None:
        """Ask again and again, and listen.

        Raises:
            RedisError, OSError: the Sentinel cannot be reached, or refuses.
            SentinelError: it tells no primary.
        """
        connection, loop = self._connection, asyncio.get_running_loop()
        try:
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
        """Subscribe; a Sentinel that does not allow that is only asked."""
        for channel in (SWITCH, PROMOTED):
            await self._connection.send_command("SUBSCRIBE", channel)
        await self._connection.send_command("PING")
        response = None
        while response != b"PONG":
            try:
                response = await self._connection.read_response()
            except ResponseError as error:
                log.debug("sentinel refuses subscriptions", sentinel=str(self._sentinel), error=str(error))

    def ask(self) -> None:
        """Ask at once, or when the questions that are open have been answered."""
        if self._asked is not None:
            self._again = True
            return
        self._again = False
        self._asked = asyncio.get_running_loop().time()
        for words in questions(self._upstream.primary_name):
            self._connection.send_at_once(*words)

    async def _hear(self) -> None:
        """Take what comes next, if anything comes soon."""
        try:
            # Not its own timeout: nothing in time would look like a reply that is nil.
            async with asyncio.timeout(_LONGEST_NAP):
                response = await self._connection.read_response(
                    push_request=True, timeout=math.inf, disconnect_on_error=False
                )
        except TimeoutError:
            return
        except ResponseError as error:
            response = error
        if response is _PUSHED:
            return
        self._replies.append(response)
        if len(self._replies) < 2:
            return
        about, address = self._replies
        self._replies = []
        self._asked = None
        self._follower.told(self._sentinel, about, address)
        self.answered = True
        if self._again:
            self.ask()

    async def _pushed(self, push: list[Any]) -> object:
        if push[0] == b"message" and push[1] == SWITCH:
            self._follower.announced(self._sentinel, push[2])
        elif push[0] == b"message" and push[1] == PROMOTED:
            self.ask()
        return _PUSHED


async def find_primary(upstream: Upstream) -> None:
    """Find out once where the primary is. Nothing is to be done where Sentinels need not be asked.

    Args:
        upstream: the upstream, which is there afterwards.

    Raises:
        RedisError, OSError, TimeoutError: the Sentinels do not tell it, or what they tell is none.
    """
    if not upstream.sentinels or upstream.stay.address is not None:
        return
    following = asyncio.create_task(Follower(upstream, quiet=True).run())
    try:
        await upstream.found()
    finally:
        await end([following])
    connection = upstream.unnamed_connection()
    try:
        await connection.connect()  # type: ignore[no-untyped-call]
        await upstream.greet(connection)
    finally:
        await connection.disconnect(nowait=True)


def explain(error: Exception, *, has_login: bool) -> tuple[str, str]:
    """Return what is wrong with a Sentinel, and what the operator can do.

    Args:
        error: what it failed with.
        has_login: whether the proxy has something to log in with.
    """
    if isinstance(error, AuthenticationError):
        if not has_login:
            return "it requires a password, and the proxy has none for it", "set sentinel_password_file"
        advice = "check sentinel_user and sentinel_password_file, or sentinel_password"
        return f"it refuses the proxy's login ({in_words(error)})", advice
    if isinstance(error, SentinelError):
        return str(error), "check the addresses and the name in upstream"
    return in_words(error), REACH if is_unreachable(error) else "see docs/sentinel.md for the rights it needs"
