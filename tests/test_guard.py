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
from proxy.wire.pieces import SLOT_SIZE, Slot, Tally
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
        self.under_way = self.late_ones = 0
        self.guards: list[tuple[Guard, range]] = []
        self.heard: list[float] = []
        self.due: dict[tuple[int, int], float] = {}  # request and attempt → when its reply becomes late
        self.got = b""
        self.began: list[float] = []  # when the client got the first byte of each reply

    def receive(self, piece: bytes) -> None:
        """Let some of what the server has said arrive."""
        self.got += self.replies.receive(piece) if piece else b""
        # Or what is sent meanwhile would not wait for reads that may have to be sent again.
        assert self.under_way >= self.late_ones >= bool(self.replies.waiting)
        # A reply to a repeated read that may be late again counts twice.
        assert SLOT_SIZE * self.late_ones <= 2 * self.tally.size
        assert self.late_ones or not self.tally.size
        left = len(self.got.replace(PUSH, b""))
        for request in range(len(self.forms)):
            if left > 0 and request == len(self.began):
                self.began.append(self.now)
            left -= len(self.text(request, 0))

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
        self.due.update({(first + place, 0): earliest for place, read in enumerate(reads) if read})

        def matters(place: int) -> Callable[[bytes], bool] | None:
            return may_be_late if reads[place] else None

        late = partial(self.late, first)
        asked = 0 if of_all else 2
        guard = Guard(asked, len(reads), matters, lambda: self.now, late, self.end, self, self.heard.append)
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

    def late(self, first: int, place: int, slot: Slot) -> None:
        self.again(first + place, 1, slot)

    @property
    def tally(self) -> Tally:
        return self.replies.tally

    @property
    def waits(self) -> bool:
        return self.late_ones > 0

    def join(self) -> None:
        self.under_way += 1
        self.late_ones += 1

    def leave(self) -> None:
        self.end_again()

    def again(self, request: int, attempt: int, slot: Slot) -> None:
        self.wanted.append((request, slot, attempt))
        self.under_way += 1
        self.late_ones += 1

    def end(self) -> None:
        self.under_way -= 1

    def end_again(self) -> None:
        self.under_way -= 1
        self.late_ones -= 1

    def repeat(self, earliest: float) -> None:
        """`earliest`: when the reply becomes late."""
        request, slot, attempt = self.wanted.popleft()
        self.due[request, attempt] = earliest
        self.attempts[request] = attempt
        again = partial(self.again, request, attempt + 1)
        repeated = Repeated(slot, may_be_late, lambda: self.now, again, self.end_again, self)
        repeated.earliest = earliest
        self.said += sign(token_of(self.replies.open(repeated))) + self.text(request, attempt)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_everything_comes_in_its_order_whatever_is_late(data: st.DataObject) -> None:
    talk = Conversation()
    draw = data.draw
    lates = 0

    def repeat() -> None:
        nonlocal lates
        while talk.wanted:
            late = draw(st.sampled_from((math.inf, -math.inf, talk.now + 2))) if lates < 5 else math.inf
            lates += late < math.inf
            talk.repeat(late)

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
                talk.receive(piece)
                repeat()
            case "clock":
                talk.now += draw(st.integers(0, 5))
    while talk.said:
        cut = draw(st.integers(1, min(len(talk.said), 40)))
        piece, talk.said = talk.said[:cut], talk.said[cut:]
        talk.receive(piece)
        repeat()
    pushes = talk.got.count(PUSH)
    assert talk.got.replace(PUSH, b"") == b"".join(
        talk.text(request, attempt) for request, attempt in enumerate(talk.attempts)
    )
    assert pushes <= 12
    assert not talk.replies.active
    assert not talk.replies.waiting
    assert not talk.under_way
    for guard, requests in talk.guards:
        if guard.earliest > talk.now:
            assert not any(talk.attempts[request] for request in requests)
    assert talk.under_way == talk.late_ones == 0
    for request, attempt in enumerate(talk.attempts):
        assert talk.began[request] < talk.due.get((request, attempt), math.inf), "late"


def test_a_reply_is_judged_when_its_first_byte_comes() -> None:
    talk = Conversation()
    talk.guarded([True, True, False], 10, FORMS[0])
    begun = len(talk.said) - len(talk.text(1, 0) + talk.text(2, 0)) + len(b"$3\r\n")
    got = talk.replies.receive(talk.said[:begun])
    assert got == talk.text(0, 0) + b"$3\r\n"
    talk.now = 10
    assert got + talk.replies.receive(talk.said[begun:]) == b"".join(talk.text(request, 0) for request in range(3))
    assert not talk.wanted


def test_what_waits_behind_a_late_reply_can_become_late() -> None:
    talk = Conversation()
    check_what_waits(talk)
    assert not talk.replies.active


def check_what_waits(talk: Conversation) -> None:
    talk.guarded([True], 1, FORMS[0])
    talk.guarded([True, False, True], 5, FORMS[0])
    talk.now = 2
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    talk.repeat(math.inf)
    talk.now = 5
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == talk.text(0, 1)
    assert [request for request, _, _ in talk.wanted] == [1]
    talk.repeat(math.inf)
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == talk.text(1, 1) + talk.text(2, 0)
    assert [request for request, _, _ in talk.wanted] == [3]
    talk.repeat(math.inf)
    assert talk.replies.receive(talk.said) == talk.text(3, 1)


@pytest.mark.parametrize("cut", range(30))
def test_a_repeated_reply_that_waits_can_become_late(cut: int) -> None:
    """Also if it has come only in part when the client could get it."""
    talk = Conversation()
    talk.guarded([True, True], 1, FORMS[0])
    talk.now = 2
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    talk.repeat(-math.inf)  # the first one is late again
    talk.repeat(5)
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    talk.now = 5
    talk.repeat(math.inf)
    said, talk.said = talk.said, b""
    cut = min(cut, len(said))
    assert talk.replies.receive(said[:cut]) + talk.replies.receive(said[cut:]) == talk.text(0, 2)
    talk.repeat(math.inf)
    assert talk.replies.receive(talk.said) == talk.text(1, 2)
    assert not talk.replies.active


@pytest.mark.parametrize("cut", range(30))
def test_a_reply_that_has_begun_when_it_becomes_late_is_dropped_to_its_end(cut: int) -> None:
    talk = Conversation()
    talk.guarded([True], 1, FORMS[0])
    talk.now = 2
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    talk.guarded([True], 5, FORMS[0])
    guarded, talk.said = talk.said, b""
    talk.repeat(math.inf)
    repeated, talk.said = talk.said, b""
    # Over one connection the second one's end comes before the first one's repetition.
    assert talk.replies.receive(guarded[: len(guarded) - cut % 6]) == b""
    talk.now = 5
    got = talk.replies.receive(guarded[len(guarded) - cut % 6 :] + repeated)
    assert got == talk.text(0, 1)
    talk.repeat(math.inf)
    assert talk.replies.receive(talk.said) == talk.text(1, 1)


def test_what_comes_behind_a_late_reply_waits_for_the_next() -> None:
    talk = Conversation()
    talk.guarded([True, False], 10, FORMS[0])
    talk.now = 10
    said, talk.said = talk.said, b""
    assert talk.replies.receive(said) == b""
    assert talk.replies.waiting == SLOT_SIZE + len(talk.text(1, 0))
    assert talk.replies.outstanding
    talk.repeat(math.inf)
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
    guard = Guard(1, 1, lambda _: may_be_late, lambda: 5.0, lambda *_: None, lambda: None, Conversation())
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
    guard = Guard(0, 2, lambda _: may_be_late, lambda: 5.0, lambda *_: None, lambda: None, Conversation())
    got.enter(guard)
    assert got.receive(b"*0\r\n" + replies) == replies
    assert guard.done
    assert not got.active
