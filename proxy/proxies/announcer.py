"""The shell of the protocol between proxies: it rides on the connection of the server's tracking messages."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from typing import Any, Final

import structlog
from redis.exceptions import ResponseError

from proxy.logs import Seldom
from proxy.proxies.messages import Message, name, named, unpack
from proxy.proxies.protocol import LEASE, MOST_OTHERS, Member
from proxy.scripts.naming import Names
from proxy.session.known import BEAT_SECONDS, KnownKeys, lease_clock
from proxy.upstream.words import answers_ping

log = structlog.get_logger("proxy.proxies")

PUSHED: Final = object()
"""What a handler of push messages returns: None would look like a silence."""

_LONGEST_NAP: Final = 0.2
"""Seconds between two looks at what is due: clocks of loops stand still while a machine is suspended."""


class _Named:
    """The keys that this proxy knows, for the protocol (proxies.protocol.Keys)."""

    def __init__(self, known: KnownKeys) -> None:
        self._known = known

    def mark_announced(self, keys: Iterable[bytes]) -> None:
        self._known.mark_announced(*named(keys))

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        self._known.note_announced(named(keys)[0], moment)

    def forget_announced(self) -> None:
        self._known.forget_announced()

    def outstanding(self) -> list[bytes]:
        stirred = self._known.stirred()
        return [name(key, near=key in stirred) for key in self._known.outstanding()]


class Proxies:
    """This proxy's part among several in front of one server.

    Args:
        known: the keys that this proxy knows.
        names: the channels begin like the names of the proxy's own keys.
        patience: seconds that the server may take to answer.
        changed: called when the first other proxy appears, and when the last has gone.
    """

    def __init__(self, known: KnownKeys, names: Names, patience: float, changed: Callable[[], None]) -> None:
        own = secrets.token_hex(8).encode()
        self._known = known
        known.on_standstill = self._ask
        self._changed = changed
        self._patience = patience
        self._names = names
        self._everybody = b""
        self._channel = names.prefix + b"proxy:"
        self._connection: Any = None
        self._lost = lease_clock()  # since when there is none
        self._say_refused = Seldom(log.warning, "first deadline refused: other proxies did not acknowledge it")
        self._say_late = Seldom(log.warning, "near deadline not announced: other proxies did not acknowledge it")
        self._say_crowded = Seldom(log.warning, "too many proxies to wait for each")
        self._say_unreadable = Seldom(log.warning, "unreadable message on a proxy channel")
        self._pending = 0  # requests that have no answer yet
        self._refused = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._member = Member(own, _Named(known), self)
        self._told = True  # whether there may be others, as `changed` has been told
        self._distrust()

    # The connection (used by the tracker).

    async def begin(self, connection: Any) -> None:
        """Begin on a new connection, on which the server's tracking messages come already; nothing is outstanding."""
        self._distrust()
        self._pending = 0
        # A cluster's messages go to all nodes: only those proxies talk that stand in front of the same one.
        slots = self._names.slots
        self._everybody = self._names.prefix + b"proxies" + (b"" if slots is None else b":" + slots.node)
        self._connection = connection
        refusal = await self._subscribe(connection)
        if refusal is not None and not self._refused:
            advice = "give the proxy's user the rights in docs/security.md"
            log.warning("publishing refused", error=str(refusal), advice=advice)
        self._refused = refusal is not None
        if self._refused:
            self._known.trusted_until = self._known.steady_until = float("inf")
            self._known.heard(float("inf"))
            self._known.shared = self._known.cut_off = False
            self._update()
            return
        self._member.connect(lease_clock())
        self._update()

    async def _subscribe(self, connection: Any) -> ResponseError | None:
        """Subscribe, and see whether all that is needed is allowed."""
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
        """Return what comes next; an error reply as the exception that it is."""
        try:
            return await connection.read_response()
        except ResponseError as error:
            return error

    def end(self) -> None:
        """The connection is lost."""
        if self._connection is not None:
            self._lost = lease_clock()
        self._connection = None
        self._pending = 0
        self._member.disconnect()
        self._distrust()

    def leave(self) -> None:
        """Tell the others that this proxy handles no more requests."""
        if self._connection is not None and not self._refused:
            self._member.leave()

    async def keep(self) -> None:
        """Keep the lease until cancelled.

        Raises:
            TimeoutError: the server does not answer.
        """
        while True:
            now = lease_clock()
            if self._refused:
                if not self._pending:
                    self._request("PING")
                await asyncio.sleep(1)
                continue
            self._known.beat(now)
            self._member.tick(now)
            self._update()
            nap = BEAT_SECONDS if self._known.shared else _LONGEST_NAP
            await asyncio.sleep(max(0.001, min(self._member.wake - now, nap)))

    @property
    def refused(self) -> bool:
        """Whether the server allows no messages between proxies."""
        return self._refused

    @property
    def awaits(self) -> bool:
        """Whether a request has no answer yet."""
        return self._pending > 0

    def answered(self, answer: Any) -> None:
        """Take an answer: a value, or the error that the server answered with."""
        if not self._pending:
            return
        self._pending -= 1
        if self._refused:
            return
        if isinstance(answer, ResponseError) and not answers_ping(answer):
            raise answer  # the rights have been taken away: start again
        if isinstance(answer, list):
            answer = [channel.removeprefix(self._channel)
                      for channel, count in zip(answer[::2], answer[1::2], strict=True) if not count]  # fmt: skip
        self._member.answered(answer, lease_clock())
        self._update()

    async def received(self, push: list[Any]) -> object:
        """Take a push of one of the channels."""
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

    # What the protocol wants to be done (proxies.protocol.Link).

    def publish(self, to: bytes | None, message: Message) -> None:
        """Publish a message to all proxies, or to one."""
        self._request("PUBLISH", self._everybody if to is None else self._channel + to, message.pack())

    def renew(self, others: list[bytes]) -> None:
        """Ask which of these proxies have a connection."""
        if others:
            self._request("PUBSUB", "NUMSUB", *(self._channel + name for name in others))
        else:
            self._request("PING")

    def _request(self, *words: bytes | str) -> None:
        """Send a request at once, in the order of the calls."""
        self._pending += 1
        self._connection.send_at_once(*words)

    # What sessions and the tracker want to be done.

    async def announce(self, keys: Collection[bytes], near: Set[bytes] = frozenset(), *, first: bool = True) -> None:
        """Have other proxies know keys, or give up after a time: `KnownKeys.unannounced` tells.

        Args:
            keys: the keys.
            near: those that get a deadline which may pass before the server tells of it.
            first: whether what waits for it is refused where others do not acknowledge it.
        """
        say = self._say_refused if first else self._say_late
        patience = 2 * LEASE + self._patience
        if self._connection is None:
            patience += self._lost - lease_clock()  # an outage is waited for once, not by each request
        if patience <= 0:
            say(keys=len(keys))
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(patience):
                names = [name(key, near=key in near) for key in keys]
                number = self._member.announce(names, lease_clock())
                self._waiting.append((number, done))
                self._update()
                await done
        except TimeoutError:
            say(keys=len(keys))

    def announce_again(self, keys: list[bytes]) -> None:
        """Have other proxies go on knowing keys."""
        if keys and self._connection is not None and not self._refused:
            self._member.announce(map(name, keys), lease_clock())
            self._update()

    def _update(self) -> None:
        """Let the rest of the proxy see where the protocol stands."""
        while self._waiting and (self._waiting[0][0] <= self._member.completed or self._refused):
            _, done = self._waiting.popleft()
            if not done.done():
                done.set_result(None)
        known = self._known
        if not self._refused:
            known.trusted_until = self._member.trusted_until
            known.shared = self._member.has_others(lease_clock())
            known.cut_off = False
            known.heard(self._member.proven)
        known.see()
        self._note()

    def _ask(self, moment: float) -> None:
        """Ask something, as this process has stood still until now: the answer comes behind all news."""
        if not self._refused:
            self._member.ask(moment)

    def _distrust(self) -> None:
        if self._refused:
            self._known.see()  # as the index has not been read
            return
        self._known.trusted_until = -float("inf")
        self._known.steady_until = float("inf")
        self._known.cut_off = True
        self._known.distrust()
        self._note()

    def _note(self) -> None:
        if self._known.shared != self._told:
            self._told = self._known.shared
            self._changed()
