"""The protocol between proxies: all that can happen to a few is gone through, and every step left out is found."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

import pytest

from proxy.proxies.messages import Kind, Message, unpack
from proxy.proxies.protocol import AT_ONCE, MOST_OTHERS, Member
from proxy.wire.request import encode
from tests.interleavings import Bounds, World, explore

BOUNDS = {
    "the announcer is slow": Bounds(ticks=3, prompt=(1,)),
    "the other is slow": Bounds(ticks=3, prompt=(0,)),
    "the other dies": Bounds(ticks=4, prompt=(0, 1), crashes=(1,)),
    "the other is cut": Bounds(ticks=3, prompt=(0, 1), cuts=(1,)),
    "the announcer is cut": Bounds(ticks=3, prompt=(0, 1), cuts=(0,)),
    "the announcer dies": Bounds(ticks=3, prompt=(0, 1), started=1, crashes=(0,)),
    "the other joins": Bounds(ticks=4, prompt=(0, 1), started=1),
    "the other joins an emptied server": Bounds(ticks=3, prompt=(0, 1), started=1, flushes=True),
    "the announcer joins": Bounds(ticks=3, prompt=(0, 1), started=1, deadlines=(1,)),
    "three, quiet": Bounds(proxies=3, started=3, ticks=1, prompt=(0, 1, 2)),
}

LONG = {
    "both are slow": Bounds(ticks=2),
    "the other is slow, with a longer lease": Bounds(lease=3, ticks=4, prompt=(0,)),
    "one joins, and the announcer is slow": Bounds(ticks=3, prompt=(1,), started=1),
    "one joins, and is slow": Bounds(ticks=3, prompt=(0,), started=1),
    "both give deadlines": Bounds(ticks=2, prompt=(0, 1), deadlines=(0, 1)),
    "the other is slow and cut": Bounds(ticks=3, prompt=(0,), cuts=(1,)),
    "three, one joins": Bounds(proxies=3, started=2, ticks=2, prompt=(0, 1, 2)),
    "three, one dies": Bounds(proxies=3, started=3, ticks=2, prompt=(0, 1, 2), crashes=(2,)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_whoever_trusts_what_it_knows_knows_the_key(name: str) -> None:
    found = explore(BOUNDS[name])
    assert found.states > 100
    assert found.violation is None, "\n".join(found.violation)


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_the_same_in_larger_bounds(name: str) -> None:
    found = explore(LONG[name])
    assert found.violation is None, "\n".join(found.violation)


class Silent:
    """Keys of which none is known, and a link on which nothing comes."""

    def publish(self, to: bytes | None, message: Message) -> None: ...

    def renew(self, others: list[bytes]) -> None:
        assert len(others) <= MOST_OTHERS

    def mark_announced(self, keys: Iterable[bytes]) -> None: ...

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None: ...

    def forget_announced(self) -> None: ...

    def outstanding(self) -> list[bytes]:
        return []


def test_made_up_proxies_cost_little() -> None:
    """Who may publish may make up any number of them."""
    silent = Silent()
    member = Member(b"this", silent, silent)
    member.connect(0.0)
    began = time.process_time()
    for number in range(20_000):
        member.receive(Message(Kind.JOIN, b"%d" % number, 1), 0.1)
    member.tick(1.0)
    assert time.process_time() - began < 5


def test_those_who_join_together_are_told_together() -> None:
    """Each was told of all keys by itself: 300 made-up ones took 7 s of the loop."""

    class Busy(Silent):
        def __init__(self) -> None:
            self.said: list[tuple[bytes | None, Message]] = []

        def publish(self, to: bytes | None, message: Message) -> None:
            self.said.append((to, message))

        def outstanding(self) -> list[bytes]:
            return [b"=k"]

    busy = Busy()
    member = Member(b"this", busy, busy)
    member.connect(0.0)
    busy.said.clear()
    for number in range(300):
        member.receive(Message(Kind.JOIN, b"%d" % number, number), 0.1)
    assert [(to, message.kind) for to, message in busy.said] == [(b"0", Kind.RECALL), (b"0", Kind.WELCOME)]
    busy.said.clear()
    member.tick(member.wake)
    told = [(to, message.kind) for to, message in busy.said if message.kind is not Kind.JOIN]
    assert told == [(None, Kind.RECALL), *((b"%d" % number, Kind.WELCOME) for number in range(1, 300))]


class Street:
    """Members whose messages and answers arrive at once, in order, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.members: dict[bytes, Member] = {}
        self._coming: deque[Callable[[], None]] = deque()

    def join(self, name: bytes) -> Member:
        street = self

        class House(Silent):
            def publish(self, to: bytes | None, message: Message) -> None:
                for other in [other for other in street.members.values() if to in (None, other.name)]:
                    street._coming.append(lambda other=other: other.receive(message, street.now))  # type: ignore[misc]
                street._coming.append(lambda: street.members[name].answered(len(street.members), street.now))

            def renew(self, others: list[bytes]) -> None:
                missing = [other for other in others if other not in street.members]
                street._coming.append(lambda: street.members[name].answered(missing, street.now))

        house = House()
        self.members[name] = Member(name, house, house)
        self.members[name].connect(self.now)
        return self.members[name]

    def go_on(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for member in self.members.values():
                member.tick(self.now)
            while self._coming:
                self._coming.popleft()()
            self.now += 0.05


@pytest.mark.parametrize("made_up", [10, MOST_OTHERS - 1, MOST_OTHERS, 2 * MOST_OTHERS])
def test_those_who_come_while_there_are_too_many_are_heard_of(made_up: int) -> None:
    street = Street()
    first = street.join(b"first")
    street.go_on(5)
    for number in range(made_up):
        first.receive(Message(Kind.JOIN, b"%d" % number, 1), street.now)
    second = street.join(b"second")
    street.go_on(0.1)
    for member in (first, second):
        assert member.has_others(street.now)
    announced = first.announce([b"=key"], street.now)
    street.go_on(4.5)
    assert first.completed == announced
    street.go_on(20)
    for member in (first, second):
        assert not member.crowded
        assert member.has_others(street.now)
        assert member.trusted_until > street.now


@pytest.mark.parametrize(
    "words",
    [(b"x" * 10_000_000, b"a", b"1"), (b"join", b"a" * 33, b"1"), (b"join", b"a", b"9" * 5000), (b"join", b"a", b"-1")],
)
def test_a_message_that_no_proxy_sends_is_none(words: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match=r"^not a message of a proxy$"):
        unpack(encode(list(words)))


class AcknowledgesFirst(Member):
    """Acknowledges before it marks."""

    def _take(self, message: Message, now: float) -> None:
        self._tell(message.sender, Message(Kind.ACKNOWLEDGE, self.name, message.number), now)
        self._later = message.keys

    def tick(self, now: float, ahead: float = 0.0) -> None:
        self._keys.mark_announced(getattr(self, "_later", ()))
        super().tick(now, ahead)


class WaitsForNobody(Member):
    """Takes an announcement for known to all as soon as it has been published."""

    def _published(self, now: float) -> None:
        super()._published(now)
        assert self._flight is not None
        self._flight.awaited = {}


class IsImpatient(Member):
    """Waits for less than a lease."""

    def _published(self, now: float) -> None:
        super()._published(now)
        assert self._flight is not None
        self._flight.awaited = dict.fromkeys(self._flight.awaited or (), now + self._lease / 2)


class CountsFromTheAnswer(Member):
    """Counts its lease from when the answer came."""

    def _lease_begins(self, sent: float, now: float) -> float:
        return now


class NeverLapses(Member):
    """Does not look at the clock where requests are judged, but only when a timer comes."""

    @property
    def trusted_until(self) -> float:
        return math.inf if self._trusts else -math.inf


class TrustsAtOnce(Member):
    """Trusts what it knows as soon as it has joined."""

    def _joined(self, receivers: object, now: float) -> None:
        super()._joined(receivers, now)
        self._welcomes, self._not_before = {}, -math.inf


class DoesNotWaitForALease(Member):
    """Waits for welcomes, but not for a lease, on a new connection."""

    def _joined(self, receivers: object, now: float) -> None:
        super()._joined(receivers, now)
        self._not_before = -math.inf


class TellsNewcomersNothing(Member):
    """Welcomes without a word of what it has announced, or sent."""

    def _recall(self, to: bytes | None, now: float) -> None:
        pass


class ListsLast(World):
    """Announces before the server has it listed."""

    steps = ("announce", "list")


class RenewsElsewhere(World):
    """Renewals are answered on another connection than that of the messages."""

    renewals_aside = True


BREAKS: dict[type[Member] | type[World], str] = {
    AcknowledgesFirst: "the other is slow",
    WaitsForNobody: "the other is slow",
    IsImpatient: "the other is slow",
    CountsFromTheAnswer: "the other is slow, with a longer lease",
    NeverLapses: "the other is slow",
    TrustsAtOnce: "the other joins an emptied server",
    DoesNotWaitForALease: "the other joins an emptied server",
    TellsNewcomersNothing: "the other joins an emptied server",
    ListsLast: "the announcer dies",
    RenewsElsewhere: "the other is slow",
}


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_every_step_left_out_is_found(broken: type[Member] | type[World]) -> None:
    bounds = {**BOUNDS, **LONG}[BREAKS[broken]]
    found = explore(bounds, world=broken) if issubclass(broken, World) else explore(bounds, broken)
    assert found.violation is not None


def test_messages_are_read_as_they_were_written() -> None:
    message = Message(Kind.ANNOUNCE, b"one", 7, (b"a\r\nb", b"", b"\xff"))
    assert unpack(message.pack()) == message
    longest = Message(Kind.ANNOUNCE, b"one", 7, tuple(b"=%d" % number for number in range(AT_ONCE)))
    assert unpack(longest.pack()) == longest


@pytest.mark.parametrize(
    "payload", [b"", b"hello", b"*1\r\n$1\r\na\r\n", b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\n1\r\n", b"*3\r\n:1"]
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unpack(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"%1\r\n*0\r\n+a\r\n", b"*400000000\r\n", b"*3\r\n$4\r\njoin\r\n$1\r\na\r\n$1\r\nx\r\n", b"join a 1\r\n",
     b"*3\r\n$4\r\nnone\r\n$1\r\na\r\n$1\r\n1\r\n", b"*3\r\n$4\r\njoin\r\n$1\r\na\r\n$1\r\n1\r\nmore", b"x" * 100_000,
     b"*1000000000\r\n" + b"$0\r\n\r\n" * 1_000_000, Message(Kind.ANNOUNCE, b"one", 7, (b"=",) * 300_000).pack()],
)  # fmt: skip
def test_what_others_publish_is_no_message(payload: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 - whichever part of it is wrong
        unpack(payload)
    assert time.process_time() - began < 0.1
