"""The protocol between proxies, without I/O: every proxy knows a prefix before a first deadline is set under it.

Its tests: tests/test_proxies_protocol.py.

A "key" here is a covered prefix, or one whole name. Each proxy has one connection to the server. On this connection it
sends requests and receives, in order, replies, the server's tracking messages and the messages of other proxies. So a
reply proves that everything published earlier has been received.

- A proxy trusts its knowledge for one lease after it *sent* a request that was answered. Without trust it is blind: it
  treats every key as covered. Each proxy measures its lease with its own monotonic clock only.
- A proxy announces a key before it sends a request that may give the key its first deadline. The others mark the key
  and acknowledge. The request is sent when the announcer has trust, and each other proxy has either acknowledged or
  certainly lost its lease.
- A proxy that has lost trust joins: it publishes a message, and trusts again when each other proxy has either
  welcomed it or certainly lost its lease. Before the welcome, the others send it the keys that may still get deadlines
  without an announcement. On a new connection a full lease must pass, too: another proxy may believe that it is alone,
  because it has not noticed yet that its own connection was cut.
- After a proxy has been silent for two leases, the others stop waiting for it until it joins again. Its trust ends in
  the first lease, unless it receives the announcement. The second lease is for a request that it sent earlier, whose
  reply has prolonged its trust.

The protocol assumes that the last bytes of a dying proxy reach the server before its lease runs out. It also assumes
that a proxy is alone if it starts and finds no other proxy connected.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.proxies.messages import Kind, Message

LEASE: Final = 2.0
"""Seconds for which a proxy trusts its knowledge without a reply from the server."""

MOST_OTHERS: Final = 512
"""Maximum number of proxies to wait for by name: any user who may PUBLISH can invent names. For further proxies, each
announcement waits a full lease, because it is not known whether they have acknowledged."""

_NOBODY: Final = b""
"""The name that stands for all proxies not known by name."""

DRIFT: Final = 0.01
"""Fraction of a lease that is kept in reserve, because clocks run at different rates."""

_FOR_OTHERS: Final = 0.25
"""How long, as a fraction of a lease, an acknowledgement waits for requests that this proxy's clients sent before."""

_APART: Final = 0.05
"""How long, as a fraction of a lease, to wait between two rounds of welcoming newcomers."""

AT_ONCE: Final = 5_000
"""Maximum number of keys in one message."""

BYTES_AT_ONCE: Final = 1 << 20
"""Approximate limit on a message's keys, in bytes: the server drops subscribers whose output buffer grows too large."""


def _pages(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield keys in batches that fit in one message."""
    page: list[bytes] = []
    room = BYTES_AT_ONCE
    for key in keys:
        page.append(key)
        room -= len(key)
        if len(page) >= AT_ONCE or room <= 0:
            yield page
            page, room = [], BYTES_AT_ONCE
    if page:
        yield page


@dataclass(slots=True)
class _Flight:
    """An announcement that has been published.

    Attributes:
        number: the number of the announcement.
        keys: the announced keys.
        sent: when the announcement was published.
        awaited: proxy that has yet to acknowledge → until when to wait; None until the server has replied.
        early: the proxies that have acknowledged, even before the server's reply.
    """

    number: int
    keys: tuple[bytes, ...]
    sent: float
    awaited: dict[bytes, float] | None = None
    early: set[bytes] = field(default_factory=set)


class Link(Protocol):
    """The connection to the server. Each request is answered in order (`Member.answered`)."""

    def publish(self, to: bytes | None, message: Message) -> None:
        """Publish a message to all proxies, or to the proxy named `to`. The reply is the number of receivers."""

    def renew(self, others: list[bytes]) -> None:
        """Query which of these proxies are connected. The reply lists those that are not."""


class Keys(Protocol):
    """The keys that the proxy knows, by their names in messages."""

    def mark_announced(self, keys: Iterable[bytes]) -> Callable[[], bool] | None:
        """Mark keys as known, because another proxy is about to give them deadlines.

        Returns:
            A function that returns whether all requests sent earlier have run; None if they have.
        """

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        """Record that all others know these keys, by an announcement published at that moment."""

    def forget_announced(self) -> None:
        """Announce every key again from now on, because others may have joined without learning the keys."""

    def outstanding(self) -> list[bytes]:
        """Return the keys that may get deadlines from requests already sent, or sent later without announcement."""


class Member:
    """One proxy's side of the protocol.

    Args:
        name: unique among all proxies.
        keys: the keys that the proxy knows.
        link: the connection to the server.
        lease: for how long a reply gives trust, in seconds.

    Attributes:
        completed: the number of the last announcement that every other proxy knows.
        connected: whether the proxy has a connection.
        crowded: whether there are more proxies than can be waited for by name.
    """

    def __init__(self, name: bytes, keys: Keys, link: Link, lease: float = LEASE) -> None:
        self.name = name
        self.completed = 0
        self.connected = False
        self.crowded = False
        self._keys = keys
        self._link = link
        self._lease = lease
        self._own_lease = lease * (1 - DRIFT)
        self._requests: deque[tuple[str, float]] = deque()
        self._sent = -math.inf  # when the last renewal was sent
        self._until = -math.inf  # the end of this proxy's own lease
        self._proven = -math.inf  # when the latest answered request was sent
        self._trusts = False
        self._ever = False  # whether `_trusts` has ever been true
        self._join = 0
        self._joiners: dict[bytes, int] = {}  # proxies to welcome → the number of their join
        self._welcomed = -math.inf
        self._welcomes: dict[bytes, float] | None = None  # awaited welcomes; None until JOIN is answered
        self._not_before = math.inf  # the earliest time at which to trust again
        self._others: dict[bytes, float] = {}  # other proxy → until when to wait for it
        self._flight: _Flight | None = None
        self._batches: deque[tuple[int, dict[bytes, None]]] = deque()
        # Announcements to acknowledge: sender, number, whether earlier requests have run, until when to wait for them.
        self._unacknowledged: list[tuple[bytes, int, Callable[[], bool], float]] = []
        self._last_bytes = 0  # size of the keys in the last batch
        self._last_number = 0

    # State.

    @property
    def trusted_until(self) -> float:
        """When trust ends; in the past if it has ended."""
        return self._until if self._trusts else -math.inf

    def has_others(self, now: float) -> bool:
        """Return whether another proxy may rely on announcements of first deadlines."""
        return bool(self._others) or now >= self.trusted_until

    @property
    def others(self) -> int:
        """How many other proxies this proxy knows, `MOST_OTHERS` at most."""
        return len(self._others)

    @property
    def is_first(self) -> bool:
        """Whether this proxy's name sorts before the names of all others that it knows. The first proxy does the work
        that only one needs to do."""
        return all(self.name < other for other in self._others)

    @property
    def wake(self) -> float:
        """When `tick` has to be called next, at the latest."""
        times = [self._sent + self._lease / 3]
        if self._sent < (since := self._trusts_from()):
            times.append(since)
        if self._trusts:
            times.append(self._until)
        if self._joiners:
            times.append(self._welcomed + self._lease * _APART)
        if self._flight is not None and self._flight.awaited:
            times += self._flight.awaited.values()
        if self._flight is not None and self.crowded:
            times.append(self._flight.sent + self._lease)
        times += [until for *_, until in self._unacknowledged]
        return min(times)

    # Events.

    def connect(self, now: float) -> None:
        """Begin on a new connection that already receives the server's tracking messages and the others' messages."""
        self.connected = True
        self._requests.clear()
        self._proven = self._until = -math.inf
        self._not_before = math.inf
        self._recall(None, now)  # what the others know may be out of date
        self._rejoin(now)
        if self._flight is not None:
            self._publish_flight(now)

    def disconnect(self) -> None:
        """Handle the loss of the connection."""
        self.connected = False
        self._trusts = False
        self._welcomes = None
        self._unacknowledged.clear()
        self._joiners.clear()  # on the next connection `_recall` sends all keys to everyone
        self._keys.forget_announced()
        if self._flight is not None:
            self._flight.awaited = None

    def leave(self) -> None:
        """Notify all others that this proxy handles no more requests."""
        if self.connected:
            self._trusts = False
            self._publish("leave", None, Message(Kind.LEAVE, self.name), -math.inf)

    def announce(self, keys: Iterable[bytes], now: float) -> int:
        """Announce keys, in batches, one after the other.

        Returns:
            A number. The keys are announced once `completed` has reached this number.
        """
        self.tick(now)
        for key in keys:
            if not self._batches or len(self._batches[-1][1]) >= AT_ONCE or self._last_bytes >= BYTES_AT_ONCE:
                self._last_number += 1
                self._last_bytes = 0
                self._batches.append((self._last_number, {}))
            self._batches[-1][1][key] = None
            self._last_bytes += len(key)
        number = self._last_number
        self._advance(now)
        return number

    def tick(self, now: float, ahead: float = 0.0) -> None:
        """Take the steps that are due; renew the lease if the renewal is due within `ahead` seconds."""
        if not self.connected:
            return
        self._see_lapse(now)
        self._welcome(now)
        self._acknowledge(now)
        if now + ahead >= self._sent + self._lease / 3 or self._sent < self._trusts_from() <= now:
            self._renew(now)
        self._advance(now)

    def answered(self, answer: object, now: float) -> None:
        """Handle the reply to the earliest outstanding request."""
        kind, sent = self._requests.popleft()
        self._see_lapse(now)
        self._prolong(sent, now)
        if kind == "join" and self._requests_of_join() == 0:
            self._joined(answer, now)
        elif kind == "announce" and self._flight is not None and self._flight.awaited is None:
            self._published(now)
        elif kind == "renew":
            self._miss(answer, now)
        self._advance(now)

    def receive(self, message: Message, now: float) -> None:
        """Handle a published message."""
        sender = message.sender
        if sender == self.name:
            return
        self._see_lapse(now)
        if message.kind is Kind.LEAVE:
            self._forget(sender)
        elif sender in self._others or len(self._others) < MOST_OTHERS:
            self._others[sender] = math.inf
        else:
            self.crowded = True
        if message.kind is Kind.ANNOUNCE:
            self._take(message, now)
        elif message.kind is Kind.RECALL:
            self._keys.mark_announced(message.keys)
        elif message.kind is Kind.ACKNOWLEDGE:
            self._take_acknowledgement(message)
        elif message.kind is Kind.JOIN:
            self._joiners[sender] = message.number
            self._welcome(now)
        elif message.kind is Kind.WELCOME and message.number == self._join and self._welcomes is not None:
            self._welcomes.pop(sender, None)
        self._advance(now)

    # This proxy's lease.

    def _prolong(self, sent: float, now: float) -> None:
        self._proven = max(self._proven, sent)
        self._until = max(self._until, self._lease_begins(sent, now) + self._own_lease)

    def _lease_begins(self, sent: float, now: float) -> float:
        del now  # not `now`: the others may have begun to count down long before the reply arrives
        return sent

    def _see_lapse(self, now: float) -> None:
        """Join again if this proxy's lease has run out: others may no longer wait for it."""
        if (self._trusts or self._welcomes is not None) and now >= self._until:
            self._rejoin(now)

    def _renew(self, now: float) -> None:
        self._sent = now
        self._requests.append(("renew", now))
        self._link.renew(list(self._others))

    # Joining.

    def _rejoin(self, now: float) -> None:
        self._trusts = False
        self._keys.forget_announced()
        self._join += 1
        self._welcomes = None
        self._publish("join", None, Message(Kind.JOIN, self.name, self._join), now)
        self._sent = now

    def _requests_of_join(self) -> int:
        return sum(1 for kind, _ in self._requests if kind == "join")

    def _joined(self, receivers: object, now: float) -> None:
        """Note that the join has reached every connected proxy, so that all of them know this proxy."""
        self._welcomes = dict.fromkeys(self._others, now + self._lease)
        if self.crowded:
            self._welcomes[_NOBODY] = now + self._lease
        if self._not_before == math.inf:
            alone = not self._ever and not self._others and receivers == 1
            self._not_before = -math.inf if alone else now + self._lease

    def _trusts_from(self) -> float:
        """Return the earliest time at which to send a request so that its reply restores trust."""
        if self._trusts or self._welcomes is None or not self.connected:
            return math.inf
        return max((self._not_before, *self._welcomes.values()))

    def _try_to_trust(self, now: float) -> None:
        if self._proven >= self._trusts_from() and now < self._until:
            self._trusts = self._ever = True

    def _welcome(self, now: float) -> None:
        """Send all outstanding keys to newcomers. A newcomer has no trust until it has the keys.

        There may be many keys, so newcomers in quick succession are served together.
        """
        if not self._joiners or now < self._welcomed + self._lease * _APART:
            return
        self._welcomed = now
        joiners, self._joiners = self._joiners, {}
        self._recall(None if len(joiners) > 1 else next(iter(joiners)), now)
        flight = self._flight
        for sender, number in joiners.items():
            if flight is not None:
                self._tell(sender, Message(Kind.ANNOUNCE, self.name, flight.number, flight.keys), now)
                if flight.awaited is not None and sender in self._others:
                    flight.awaited[sender] = now + self._lease
            self._tell(sender, Message(Kind.WELCOME, self.name, number), now)

    def _recall(self, to: bytes | None, now: float) -> None:
        for keys in _pages(self._keys.outstanding()):
            self._publish("tell", to, Message(Kind.RECALL, self.name, 0, tuple(keys)), now)

    # Others.

    def _miss(self, missing: object, now: float) -> None:
        """Wait at most one more lease for the proxies that the reply to `renew` lists as missing."""
        if isinstance(missing, list):
            for name in missing:
                if name in self._others:
                    self._others[name] = min(self._others[name], now + self._lease)

    def _forget(self, name: bytes) -> None:
        self._others.pop(name, None)
        if self._flight is not None and self._flight.awaited is not None:
            self._flight.awaited.pop(name, None)
        if self._welcomes is not None:
            self._welcomes.pop(name, None)

    # Announcing.

    def _advance(self, now: float) -> None:
        """Regain trust if possible, drop expired proxies, finish the current announcement and start the next."""
        self._try_to_trust(now)
        for name in [name for name, until in self._others.items() if until <= now]:
            del self._others[name]
        if self.crowded and self.connected and len(self._others) <= MOST_OTHERS // 2:
            self.crowded = False
            self._rejoin(now)  # this proxy may not know all others: learn again which there are
        while self.connected:
            flight = self._flight
            if flight is not None:
                if flight.awaited is None or not self._is_known_to_all(flight, now):
                    return
                self._complete(flight, now)
            if not self._batches:
                return
            number, keys = self._batches.popleft()
            self._flight = _Flight(number, tuple(keys), now)
            self._publish_flight(now)

    def _publish_flight(self, now: float) -> None:
        flight = self._flight
        assert flight is not None
        flight.sent = now
        flight.awaited = None
        self._publish("announce", None, Message(Kind.ANNOUNCE, self.name, flight.number, flight.keys), now)

    def _published(self, now: float) -> None:
        """Note that the announcement has reached every connected proxy; wait a lease for acknowledgements."""
        flight = self._flight
        assert flight is not None
        flight.awaited = {
            name: min(now + self._lease, until) for name, until in self._others.items() if name not in flight.early
        }

    def _is_known_to_all(self, flight: _Flight, now: float) -> bool:
        # Without trust, this proxy may have missed the join of another, which did not receive the announcement.
        assert flight.awaited is not None
        known = not self.crowded or now >= flight.sent + self._lease
        return known and now < self.trusted_until and all(until <= now for until in flight.awaited.values())

    def _complete(self, flight: _Flight, now: float) -> None:
        for name, until in (flight.awaited or {}).items():
            if name in self._others:
                self._others[name] = min(self._others[name], until + self._lease)
        self.completed = flight.number
        self._flight = None
        self._keys.note_announced(flight.keys, flight.sent)

    def _take(self, message: Message, now: float) -> None:
        """Acknowledge an announcement once earlier requests have run, or after `_FOR_OTHERS` of a lease."""
        has_run = self._keys.mark_announced(message.keys)
        if has_run is None:
            self._tell(message.sender, Message(Kind.ACKNOWLEDGE, self.name, message.number), now)
        else:
            until = now + self._lease * _FOR_OTHERS
            self._unacknowledged.append((message.sender, message.number, has_run, until))

    def _acknowledge(self, now: float) -> None:
        waiting, self._unacknowledged = self._unacknowledged, []
        for sender, number, has_run, until in waiting:
            if has_run() or now >= until:
                self._tell(sender, Message(Kind.ACKNOWLEDGE, self.name, number), now)
            else:
                self._unacknowledged.append((sender, number, has_run, until))

    def _take_acknowledgement(self, message: Message) -> None:
        flight = self._flight
        if flight is None or flight.number != message.number or message.sender not in self._others:
            return
        flight.early.add(message.sender)
        if flight.awaited is not None:
            flight.awaited.pop(message.sender, None)

    # Requests.

    def _tell(self, to: bytes, message: Message, now: float) -> None:
        self._publish("tell", to, message, now)

    def _publish(self, kind: str, to: bytes | None, message: Message, now: float) -> None:
        self._requests.append((kind, now))
        self._link.publish(to, message)
