"""The I/O of the protocol between proxies, on the connection that receives the server's tracking messages.

Its tests: tests/test_proxies.py.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from proxy.beats import until_beat
from proxy.coverage.coverage import Coverage, lease_clock
from proxy.logs import Seldom
from proxy.proxies.messages import Message, unpack
from proxy.proxies.protocol import LEASE, MOST_OTHERS, Member
from proxy.scripts.naming import Names
from proxy.upstream.words import answers_ping

log = structlog.get_logger("proxy.proxies")

PUSHED: Final = object()
"""What handlers of pushes return: redis-py would take None for a timeout."""

_AHEAD_SECONDS: Final = 0.3
"""How much earlier than necessary a lease may be renewed, to save the process a wake-up."""

Answers: TypeAlias = list[Any]
"""The replies to some requests, in order; an error is an exception object."""


class _Entries:
    """The covered prefixes, with the methods that the protocol calls (`proxies.protocol.Keys`)."""

    def __init__(self, coverage: Coverage, under_way: Callable[[], Callable[[], bool] | None]) -> None:
        self._coverage = coverage
        self._under_way = under_way

    def mark_announced(self, keys: Iterable[bytes]) -> Callable[[], bool] | None:
        self._coverage.hear(list(keys))
        self._coverage.on_announced()
        return self._under_way()

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        del moment
        self._coverage.confirm(keys)

    def forget_announced(self) -> None:
        """Do nothing: every prefix is listed in the server before it is announced, and new proxies read that list."""

    def outstanding(self) -> list[bytes]:
        return list(self._coverage.entries)


class Proxies:
    """This proxy's connection to the other proxies of the server.

    Args:
        coverage: the covered prefixes.
        names: the names of the proxy's own keys; the names of the channels have the same prefix.
        patience: maximum time that the server may take to reply, in seconds.
        changed: called when the first other proxy appears, and when the last has gone.
        run: returns a coroutine that waits until the clients' long pipelines have run; None if there are none. Requests
            in these pipelines were not checked for a prefix that is covered only now.
    """

    def __init__(
        self,
        coverage: Coverage,
        names: Names,
        patience: float,
        changed: Callable[[], None],
        run: Callable[[], Coroutine[Any, Any, None] | None] = lambda: None,
    ) -> None:
        own = secrets.token_hex(8).encode()
        self._coverage = coverage
        self._changed = changed
        self._run = run
        self._patience = patience
        self._names = names
        self._everybody = b""
        self._channel = names.prefix + b"proxy:"
        self._connection: Any = None
        self._begun = False  # whether `received` and `answered` get the pushes and replies of this connection
        self._lost = lease_clock()  # since when there is no connection
        self._say_refused = Seldom(log.warning, "first deadline refused: other proxies did not acknowledge it")
        self._say_crowded = Seldom(log.warning, "too many proxies to wait for each")
        self._say_unreadable = Seldom(log.warning, "unreadable message on a proxy channel")
        # Unanswered requests: the function that takes the reply, or None for the protocol's own requests.
        self._pending: deque[Callable[[Any], None] | None] = deque()
        self._asking: set[asyncio.Future[Answers]] = set()
        self._planned = math.inf  # when the protocol's next step is due, by `lease_clock`
        self._sooner = asyncio.Event()
        self._refused = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._member = Member(own, _Entries(coverage, self._under_way), self)
        self._told = True  # the value of `Coverage.shared` when `changed` was last called
        self._distrust()

    # The connection (used by the tracker).

    async def begin(self, connection: Any) -> None:
        """Begin on a new connection that already receives the server's tracking messages and awaits no reply."""
        self._distrust()
        self._drop_requests()
        # A cluster delivers messages to all nodes, but only this node's proxies need them: the channel names the node.
        slots = self._names.slots
        self._everybody = self._names.prefix + b"proxies" + (b"" if slots is None else b":" + slots.node)
        self._connection = connection
        refusal = await self._subscribe(connection)
        if refusal is not None and not self._refused:
            advice = "give the proxy's user the rights in docs/security.md"
            log.warning("messages between proxies refused", error=str(refusal), advice=advice)
        self._refused = refusal is not None
        if self._refused:
            self._coverage.trusted_until = float("inf")
            self._coverage.shared = False
        else:
            self._member.connect(lease_clock())
        self._begun = True
        self._update()

    async def _subscribe(self, connection: Any) -> ResponseError | None:
        """Subscribe, and return an error if the user lacks a permission."""
        refusal = None
        own = self._channel + self._member.name
        for words in (("SUBSCRIBE", self._everybody, own), ("PUBSUB", "NUMSUB", own), ("PUBLISH", own, "")):
            await connection.send_command(*words)
            await connection.send_command("PING")
            while not answers_ping(reply := await self._reply(connection)):
                if isinstance(reply, ResponseError):
                    refusal = refusal or reply
        return refusal

    async def _reply(self, connection: Any) -> Any:
        """Return the next reply; an error is returned as an exception object."""
        try:
            return await connection.read_response()
        except ResponseError as error:
            return error

    def end(self) -> None:
        """Handle the loss of the connection."""
        if self._connection is not None:
            self._lost = lease_clock()
        self._connection, self._begun = None, False
        self._drop_requests()
        self._member.disconnect()
        self._distrust()

    def leave(self) -> None:
        """Notify the other proxies that this proxy handles no more requests."""
        if self._connection is not None and not self._refused:
            self._member.leave()

    async def keep(self) -> None:
        """Renew the lease until cancelled.

        Raises:
            TimeoutError: the server does not reply.
        """
        while True:
            now = lease_clock()
            if self._refused:
                if not self._pending:
                    self._request("PING")
                await asyncio.sleep(1)
                continue
            self._member.tick(now, ahead=_AHEAD_SECONDS)
            self._update()
            self._sooner.clear()
            self._planned = self._member.wake
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, until_beat(self._planned - now))):
                    await self._sooner.wait()
            self._planned = -math.inf

    @property
    def refused(self) -> bool:
        """Whether the server does not permit messages between proxies."""
        return self._refused

    @property
    def is_first(self) -> bool:
        """Whether this proxy, of several, runs the background passes."""
        return self._member.is_first

    @property
    def others(self) -> int | None:
        """How many other proxies there are; None if not known."""
        return None if self._refused or not self._begun else self._member.others

    @property
    def awaits(self) -> bool:
        """Whether a reply is outstanding."""
        return bool(self._pending)

    async def ask(self, *requests: tuple[bytes | str, ...]) -> Answers:
        """Send requests together and return their replies, without waiting for a connection from a pool.

        Raises:
            redis.exceptions.RedisError: the connection is lost.
        """
        if not self._begun:
            raise RedisConnectionError("no control connection")
        answers: Answers = []
        done: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()

        def take(answer: Any) -> None:
            answers.append(answer)
            if len(answers) == len(requests) and not done.done():
                done.set_result(answers)

        self._pending.extend([take] * len(requests))
        self._connection.send_together(requests)
        self._asking.add(done)
        try:
            return await done
        finally:
            self._asking.discard(done)

    def _drop_requests(self) -> None:
        """Fail all outstanding requests, because they will get no reply."""
        self._pending.clear()
        for done in self._asking:
            if not done.done():
                done.set_exception(RedisConnectionError("the control connection was lost"))

    def answered(self, answer: Any) -> None:
        """Handle a reply: a value or an error."""
        if not self._pending:
            return
        take = self._pending.popleft()
        if take is not None:
            take(answer)
            return
        if self._refused:
            return
        if isinstance(answer, ResponseError) and not answers_ping(answer):
            raise answer  # permissions were revoked: reconnect
        if isinstance(answer, list):
            answer = [channel.removeprefix(self._channel)
                      for channel, count in zip(answer[::2], answer[1::2], strict=True) if not count]  # fmt: skip
        self._member.answered(answer, lease_clock())
        self._update()

    async def received(self, push: list[Any]) -> object:
        """Handle a push from one of the channels."""
        if push[0] == b"message" and push[2]:
            self._take(push[2])
        return PUSHED

    def _take(self, payload: bytes) -> None:
        try:
            message = unpack(payload)
        except ValueError:
            self._say_unreadable(bytes=len(payload))
            return
        if not self._refused and self._member.connected:
            self._member.receive(message, lease_clock())
            if self._member.crowded:
                self._say_crowded(most=MOST_OTHERS)
            self._update()

    # Called by the protocol (proxies.protocol.Link).

    def publish(self, to: bytes | None, message: Message) -> None:
        """Publish a message to all proxies, or to one."""
        self._request("PUBLISH", self._everybody if to is None else self._channel + to, message.pack())

    def renew(self, others: list[bytes]) -> None:
        """Query which of these proxies have a connection."""
        if others:
            self._request("PUBSUB", "NUMSUB", *(self._channel + name for name in others))
        else:
            self._request("PING")

    def _request(self, *words: bytes | str) -> None:
        """Send a request at once, in the order of the calls."""
        self._pending.append(None)
        self._connection.send_at_once(*words)

    def _under_way(self) -> Callable[[], bool] | None:
        """Return a function that returns whether all requests sent so far have run; None if they already have."""
        waiting = self._run()
        if waiting is None:
            return None
        task = asyncio.get_running_loop().create_task(waiting)
        self._running.add(task)
        task.add_done_callback(self._ran)
        return task.done

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._connection is not None and not self._refused:
            self._member.tick(lease_clock())
            self._update()

    # Called by sessions and the tracker.

    async def announce(self, entries: Collection[bytes]) -> None:
        """Have other proxies cover prefixes. On timeout, give up: `Coverage.unconfirmed` then still has them."""
        patience = 2 * LEASE + self._patience
        if self._connection is None:
            patience += self._lost - lease_clock()  # counted from the start of the outage, not per request
        if patience <= 0:
            self._say_refused(prefixes=len(entries))
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(patience):
                number = self._member.announce(entries, lease_clock())
                self._waiting.append((number, done))
                self._update()
                await done
        except TimeoutError:
            self._say_refused(prefixes=len(entries))
        else:
            if self._refused:
                self._coverage.confirm(entries)

    def repeat(self, entries: Collection[bytes]) -> None:
        """Announce prefixes once more, without waiting."""
        if self._connection is not None and not self._refused:
            self._member.announce(entries, lease_clock())
            self._update()

    def _update(self) -> None:
        """Publish the protocol's state to the rest of the proxy, and plan its next step."""
        if self._member.wake < self._planned:
            self._sooner.set()
        while self._waiting and (self._waiting[0][0] <= self._member.completed or self._refused):
            _, done = self._waiting.popleft()
            if not done.done():
                done.set_result(None)
        coverage = self._coverage
        if not self._refused:
            coverage.trusted_until = self._member.trusted_until
            coverage.shared = self._member.has_others(lease_clock())
        coverage.see()
        self._note()

    def _distrust(self) -> None:
        if self._refused:
            self._coverage.see()  # `see` treats every key as covered until the prefixes are read
            return
        self._coverage.trusted_until = -float("inf")
        self._coverage.distrust()
        self._note()

    def _note(self) -> None:
        if self._coverage.shared != self._told:
            self._told = self._coverage.shared
            self._changed()
