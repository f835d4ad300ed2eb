"""Reads whose replies come too late: asked for once more, and everything in its order, however replies are cut."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.guard import Guard, Repeated, earliest_of, earliest_of_all, may_be_late
from proxy.wire.pieces import Slot
from proxy.wire.reply import ReplySubstitution


def token_of(sent: bytes) -> bytes:
    (token,) = re.findall(rb"[0-9a-f]{32}", sent)
    return bytes(token)


def sign(token: bytes) -> bytes:
    return b"$32\r\n%b\r\n" % token


FORMS = b"$%d\r\n%b\r\n", b"*1\r\n$%d\r\n%b\r\n", b"*2\r\n$%d\r\n%b\r\n$-1\r\n", b"~1\r\n$%d\r\n%b\r\n"
PUSH = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"


class Conversation:
    """A client that sends chunks, guarded and plain ones, and a server that answers them in order."""

    def __init__(self) -> None:
        self.replies = ReplySubstitution()
        self.replies.echoes = True
        self.now = 0.0
        self.said = b""  # of the server, not received yet
        self.wanted: deque[tuple[int, Slot, int]] = deque()
        self.attempts: list[int] = []  # of each request
        self.forms: list[bytes] = []
        self.under_way = 0
        self.guards: list[tuple[Guard, range]] = []
        self.heard: list[float] = []

    def text(self, request: int, attempt: int) -> bytes:
        word = b"%d.%d" % (request, attempt)
        return self.forms[request] % (len(word), word)

    def plain(self, form: bytes) -> None:
        self.forms.append(form)
        self.attempts.append(0)
        self.said += self.text(len(self.forms) - 1, 0)

    def guarded(self, reads: list[bool], earliest: float, form: bytes, *, of_all: bool = False) -> None:
        """`of_all`: whether the server is asked for the earliest deadline of all, not of two keys."""
        first = len(self.forms)

        def matters(place: int) -> Callable[[bytes], bool] | None:
            return may_be_late if reads[place] else None

        late = partial(self.late, first)
        guard = Guard(0 if of_all else 2, len(reads), matters, lambda: self.now, late, self.end, self.heard.append)
        self.guards.append((guard, range(first, first + len(reads))))
        self.under_way += 1
        if of_all and not self.said and not self.replies.active:  # all has been answered
            self.replies.enter(guard)
        else:
            self.said += sign(token_of(self.replies.open(guard)))
        key = b"$3\r\nk\r\n\r\n" if of_all else b"$-1\r\n"
        self.said += b"*2\r\n%b$%d\r\n%d\r\n" % (key, len(str(int(earliest))), earliest)
        for _ in reads:
            self.plain(form)

    def late(self, first: int, place: int) -> Slot:
        slot = Slot()
        self.again(first + place, slot, 1)
        return slot

    def again(self, request: int, slot: Slot, attempt: int) -> None:
        self.wanted.append((request, slot, attempt))
        self.under_way += 1

    def end(self) -> None:
        self.under_way -= 1

    def repeat(self, late: bool) -> None:
        request, slot, attempt = self.wanted.popleft()
        self.attempts[request] = attempt
        repeated = Repeated(
            slot, may_be_late, lambda: self.now, partial(self.again, request, slot, attempt + 1), self.end
        )
        repeated.earliest = -math.inf if late else math.inf
        self.said += sign(token_of(self.replies.open(repeated))) + self.text(request, attempt)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_everything_comes_in_its_order_whatever_is_late(data: st.DataObject) -> None:
    talk = Conversation()
    got = b""
    draw = data.draw
    lates = 0
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(("guarded", "guarded", "plain", "sign", "push", "reply", "clock"))):
            case "guarded":
                reads = draw(st.lists(st.booleans(), min_size=1, max_size=4))
                talk.guarded(reads, draw(st.integers(-2, 12)), draw(st.sampled_from(FORMS)), of_all=draw(st.booleans()))
            case "plain":
                talk.plain(draw(st.sampled_from(FORMS)))
            case "sign":
                talk.said += sign(token_of(talk.replies.expect(b"", silent=True)))
            case "push":
                talk.said += PUSH
            case "reply":
                cut = draw(st.integers(0, len(talk.said)))
                piece, talk.said = talk.said[:cut], talk.said[cut:]
                got += talk.replies.receive(piece) if piece else b""
                while talk.wanted:
                    again = lates < 5 and draw(st.booleans())
                    lates += again
                    talk.repeat(again)
            case "clock":
                talk.now += draw(st.integers(0, 5))
    while talk.said:
        cut = draw(st.integers(1, min(len(talk.said), 40)))
        piece, talk.said = talk.said[:cut], talk.said[cut:]
        got += talk.replies.receive(piece)
        while talk.wanted:
            again = lates < 5 and draw(st.booleans())
            lates += again
            talk.repeat(again)
    pushes = got.count(PUSH)
    assert got.replace(PUSH, b"") == b"".join(
        talk.text(request, attempt) for request, attempt in enumerate(talk.attempts)
    )
    assert pushes <= 12
    assert not talk.replies.active
    assert not talk.replies.waiting
    assert not talk.under_way
    for guard, requests in talk.guards:
        if guard.earliest > talk.now:
            assert not any(talk.attempts[request] for request in requests)


def test_a_reply_is_judged_when_its_first_byte_comes() -> None:
    talk = Conversation()
    talk.guarded([True, True, False], 10, FORMS[0])
    begun = len(talk.said) - len(talk.text(1, 0) + talk.text(2, 0)) + len(b"$3\r\n")
    got = talk.replies.receive(talk.said[:begun])
    assert got == talk.text(0, 0) + b"$3\r\n"
    talk.now = 10
    assert got + talk.replies.receive(talk.said[begun:]) == b"".join(talk.text(request, 0) for request in range(3))
    assert not talk.wanted


def test_what_comes_behind_a_late_reply_waits_for_the_next() -> None:
    talk = Conversation()
    talk.guarded([True, False], 10, FORMS[0])
    talk.now = 10
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    assert talk.replies.waiting == len(talk.text(1, 0))
    assert talk.replies.outstanding
    talk.repeat(late=False)
    assert talk.replies.receive(talk.said) == talk.text(0, 1) + talk.text(1, 0)


def test_what_follows_is_not_framed() -> None:
    """A script may answer with a line of any length."""
    talk = Conversation()
    talk.guarded([True], 10, FORMS[0])
    long = b"+" + b"x" * 200_000 + b"\r\n"
    assert talk.replies.receive(talk.said + long) == talk.text(0, 0) + long


def test_an_error_is_never_late() -> None:
    replies = ReplySubstitution()
    replies.echoes = True
    guard = Guard(1, 1, lambda _: may_be_late, lambda: 5.0, lambda _: Slot(), lambda: None)
    said = sign(token_of(replies.open(guard))) + b"-NOPERM no\r\n-ERR no\r\n"
    assert replies.receive(said) == b"-ERR no\r\n"


@pytest.mark.parametrize(
    ("scores", "earliest"),
    [
        (b"*2\r\n$13\r\n1764090000000\r\n$13\r\n1764080000000\r\n", 1764080000000),
        (b"*2\r\n,1764090000000\r\n_\r\n", 1764090000000),
        (b"*2\r\n$-1\r\n$-1\r\n", math.inf),
        (b"*1\r\n$8\r\n1.76e+12\r\n", 1.76e12),
        (b"-NOPERM this user has no permissions\r\n", -math.inf),
    ],
)
def test_the_earliest_deadline_is_understood(scores: bytes, earliest: float) -> None:
    assert earliest_of(scores) == earliest


@pytest.mark.parametrize(
    ("first", "earliest"),
    [
        (b"*2\r\n$1\r\nk\r\n$13\r\n1764090000000\r\n", 1764090000000),
        (b"*1\r\n*2\r\n$3\r\n,\r\n\r\n,1.76e+12\r\n", 1.76e12),
        (b"*0\r\n", math.inf),
        (b"-NOPERM this user has no permissions\r\n", -math.inf),
    ],
)
def test_the_earliest_deadline_of_all_is_understood(first: bytes, earliest: float) -> None:
    assert earliest_of_all(first) == earliest


def test_what_the_server_says_of_all_is_passed_on() -> None:
    talk = Conversation()
    talk.guarded([True], 10, FORMS[0], of_all=True)
    assert talk.replies.receive(talk.said[:10]) == b""
    assert talk.replies.receive(talk.said[10:]) == talk.text(0, 0)
    assert talk.heard == [10]


@pytest.mark.parametrize(
    "replies",
    [b":1\r\n:0\r\n", b"$2\r\n:1\r\n$0\r\n\r\n", b":1\r\n$-1\r\n", b":1\r\n*1\r\n:2\r\n", b":1\r\n~1\r\n:2\r\n"],
)
def test_replies_that_come_at_once_are_counted(replies: bytes) -> None:
    got = ReplySubstitution()
    guard = Guard(0, 2, lambda _: may_be_late, lambda: 5.0, lambda _: Slot(), lambda: None)
    got.enter(guard)
    assert got.receive(b"*0\r\n" + replies) == replies
    assert guard.done
    assert not got.active
