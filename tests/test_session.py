"""The sans-I/O session: the same bytes go upstream however the stream is cut, and what is forwarded is untouched."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.commands.described import ServerCommands
from proxy.commands.table import COMMANDS
from proxy.relay.signs import Signs
from proxy.scripts.calls import script
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import SLOTS, Slots
from proxy.session.announcing import EXPECTED_AT_MOST, keys_expected
from proxy.session.claims import Claims, Sender
from proxy.session.errors import RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.ground import Ground
from proxy.session.known import STIRRED_SECONDS, KnownKeys, lease_clock
from proxy.session.question import Question
from proxy.session.rewrite import Rewriter
from proxy.session.rights import TRUST_MS, Rights, Users
from proxy.session.session import Session
from proxy.session.transaction import MARK_SIZE, NAME_SIZE, REMEMBERED
from proxy.wire.request import ARGUMENT_SIZE, Kind, RequestReader, encode
from tests.streams import cuts, streams

NOW = 1_700_000_000_000.0
NAMES = Names(b"__expiremember__:")


class Driver:
    """Plays the shell's part: feeds a session, answers its questions, keeps what it sends."""

    def __init__(self, *, blind: bool = False, request_limit: int = 1 << 30, **deadlines: float) -> None:
        self.known = KnownKeys()
        self.known.blind = blind
        self.known.next_deadline = float("inf")
        for key, deadline in deadlines.items():
            self.known.learn(key.encode(), deadline, 0)
        self.ground = Ground(Rewriter(NAMES, self.known, ServerCommands()), self.known, NAMES.prefix, request_limit)
        self.session = Session(self.ground)
        self.sent = b""
        self.questions: list[Question] = []

    def feed(self, *pieces: bytes) -> bytes:
        for piece in pieces:
            if self.session.ordinary and self.ground.is_plain(piece):
                self.sent += piece
            else:
                self.sent += self.session.receive(piece, NOW)
            while self.session.question is not None or self.session.unfinished:
                if self.session.question is None:
                    self.sent += self.session.go_on(NOW)
                    continue
                self.questions.append(self.session.question)
                for key in self.session.question.due:
                    self.known.learn(key, None, NOW)
                self.sent += self.session.resume(NOW)
        return self.sent


# hiredis takes a status in an array for a bulk string; the server closes there, so what is sent behind it never runs.
run_streams = streams.filter(lambda stream: b"+ok" not in stream)


def unmarked(sent: bytes) -> bytes:
    """Without the marks in front of transactions: whether there is one depends on whether EXEC has come as well."""
    return re.sub(
        rb"\*2\r\n\$4\r\nECHO\r\n\$32\r\n[0-9a-f]{32}\r\n(?=(?:\*\d+\r\n\$5\r\n)?[Mm][Uu][Ll][Tt][Ii])", b"", sent
    )


def without_tokens(sent: bytes) -> bytes:
    return re.sub(rb"\*(?:1|2\r\n\$4\r\nECHO)\r\n\$32\r\n[0-9a-f]{32}\r\n", b"<token>", unmarked(sent))


@settings(max_examples=300)
@given(st.data(), st.booleans())
def test_any_cut_sends_the_same_bytes(data: st.DataObject, blind: bool) -> None:
    stream = data.draw(run_streams)
    whole = Driver(blind=blind, k1=NOW + 5, k2=NOW - 5)
    whole.feed(stream)
    cut = Driver(blind=blind, k1=NOW + 5, k2=NOW - 5)
    cut.feed(*data.draw(cuts(stream)))
    assert without_tokens(cut.sent) == without_tokens(whole.sent)
    assert cut.questions == whole.questions
    assert cut.known.deadlines == whole.known.deadlines


# The proxy refuses the second: in its place goes a token, like the mark in front of the first.
REFUSED_AMID = encode([b"MULTI", b"k1"]) + encode([b"EXPIREMEMBER", b"k1"]) + encode([b"MULTI", b"k1"])


@given(run_streams)
@example(REFUSED_AMID)
def test_one_request_goes_upstream_for_each_that_comes(stream: bytes) -> None:
    driver = Driver(k1=NOW + 5_000, k2=NOW - 5)
    sent = driver.feed(stream)

    def count(requests: bytes) -> int:
        reader = RequestReader()
        reader.feed(requests)
        found = 0
        while (request := reader.next_request()) is not None:
            found += request.kind is Kind.WHOLE
        return found

    # What stands in front of MULTI is a mark, or what has been put in the place of a request.
    assert count(unmarked(sent)) <= count(stream) <= count(sent)
    if b"MULTI" not in stream.upper():
        assert count(sent) == count(stream)


@given(st.data())
def test_what_touches_no_known_key_is_forwarded_as_it_came(data: st.DataObject) -> None:
    requests = data.draw(
        st.lists(
            st.sampled_from(
                [
                    encode([b"SET", b"other", b"v"]),
                    encode([b"hset", b"other", b"f", b"v"]),
                    encode([b"TTL", b"k1"]),
                    encode([b"NOSUCH", b"x" * 70_000]),
                    encode([b"SET", b"other", b"x" * 70_000]),
                    b"GET other\r\n",
                ]
            ),
            min_size=1,
        )
    )
    stream = b"".join(requests)
    assert Driver(k1=NOW + 5).feed(*data.draw(cuts(stream))) == stream


def test_a_known_key_is_seen_by_the_next_request_of_the_same_pipeline() -> None:
    driver = Driver()
    expire = encode([b"EXPIREMEMBER", b"k", b"m", b"10"])
    add = encode([b"SADD", b"k", b"m"])
    assert driver.feed(add) == add
    sent = Driver().feed(expire + add)
    assert sent.count(b"EVAL") == 2
    assert add not in sent


def test_a_request_for_a_key_that_is_due_waits_and_so_does_what_follows() -> None:
    driver = Driver(due=NOW - 1)
    first, second, third = encode([b"PING"]), encode([b"SMEMBERS", b"due"]), encode([b"GET", b"x"])
    assert driver.session.receive(first + second + third, NOW) == first
    assert driver.session.question == Question(due=(b"due",))
    assert driver.session.receive(third, NOW) == b""
    assert driver.session.held == len(second + third + third) + 2 * ARGUMENT_SIZE  # of the one that waits
    driver.known.learn(b"due", None, NOW)
    assert driver.session.resume(NOW) == second + third + third
    assert driver.session.question is None


def test_a_transaction_waits_for_what_is_due_at_its_end() -> None:
    driver = Driver(later=NOW + 5_000)
    queued = encode([b"MULTI"]) + encode([b"SCARD", b"later"])
    assert unmarked(driver.session.receive(queued, NOW)) == queued
    assert driver.session.question is None
    assert driver.session.receive(encode([b"EXEC"]), NOW + 5_010) == b""
    assert driver.session.question == Question(due=(b"later",))


@pytest.mark.parametrize(("said", "clears"), [("", 1), ("TRACKING ON", 0), ("TRACKING OFF", 1), ("REPLY OFF", 0)])
def test_what_is_due_soon_is_cleared_in_front_of_a_transactions_requests(said: str, clears: int) -> None:
    """Not for a client that caches: the server would tell it of the proxy's own keys."""
    driver = Driver(soon=NOW + 900, later=NOW + 5_000)
    if said:
        driver.feed(encode([b"CLIENT", *said.encode().split()]))
    driver.feed(*(encode(line.split()) for line in (b"MULTI", b"SCARD later", b"SCARD soon", b"SCARD soon", b"EXEC")))
    assert driver.sent.count(b"EVAL") == clears
    for line in (b"MULTI", b"SADD soon m", b"PERSIST soon m", b"EXPIREMEMBER soon m 9", b"SADD later m", b"EXEC"):
        driver.feed(encode(line.split()))
    assert driver.sent.count(b"cleared\r\n") == 3 * clears


def test_a_request_that_arrives_in_parts_is_not_judged_by_a_deadline_to_come() -> None:
    driver = Driver()
    add = encode([b"ZADD", b"k", b"1" * 40_000, b"m"])
    stream = encode([b"MULTI"]) + encode([b"EXPIREMEMBER", b"k"])
    driver.feed(stream + add[:39_000], add[39_000:])
    assert driver.sent.endswith(add[-39_000:])


def test_a_transaction_that_is_dropped_does_not_wait() -> None:
    driver = Driver(later=NOW + 5_000)
    stream = encode([b"MULTI"]) + encode([b"SCARD", b"later"])
    assert unmarked(driver.session.receive(stream, NOW)) == stream
    stream = encode([b"DISCARD"]) + encode([b"EXEC"])
    assert unmarked(driver.session.receive(stream, NOW + 5_010)) == stream


def test_a_request_waits_in_a_transaction_too_for_the_server_may_have_refused_the_multi() -> None:
    driver = Driver(due=NOW - 1)
    multi, read = encode([b"MULTI"]), encode([b"SCARD", b"due"])
    assert unmarked(driver.session.receive(multi + read, NOW)) == multi
    assert driver.session.question == Question(due=(b"due",))


@pytest.mark.parametrize("empty", [b"*0\r\n", b"*-1\r\n", b">0\r\n"])
def test_an_empty_array_of_the_clients_own_hides_nothing(empty: bytes) -> None:
    driver = Driver(k1=NOW + 5000)
    get, add = encode([b"Get", b"x"]), encode([b"Sadd", b"k1", b"m"])
    driver.feed(get)
    driver.feed(encode([b"Sadd", b"x", b"m"]))
    before = len(driver.sent)
    driver.feed(get + empty + add)
    if empty != b">0\r\n":  # where the server takes an inline request, so does the proxy
        assert driver.sent[before:].count(b"EVAL") == 1
    for _ in range(3):
        before = len(driver.sent)
        driver.feed(get)
        driver.feed(add)
        assert driver.sent[before:].count(b"EVAL") == 1


def test_a_request_that_is_too_large_for_most_servers_is_not_let_through_unjudged() -> None:
    start = b"*1048580\r\n$6\r\nEXISTS\r\n$2\r\nk1\r\n"
    assert Driver().feed(start) == b""  # a reserved name may stand at its end
    assert Driver(k1=NOW + 5).feed(start) == b""
    long = b"*2\r\n$4\r\nECHO\r\n$536870913\r\n" + b"x" * 20_000
    with pytest.raises(RefusedAtItsHeadError) as refused:  # the server says itself what it does not take
        Driver(k1=NOW + 5).feed(long)
    assert refused.value.beginning == long[:-20_000]  # and whatever it thinks of that, nothing that could run follows


def test_while_blind_every_key_counts_as_known() -> None:
    add = encode([b"SADD", b"k", b"m"])
    sent = Driver(blind=True).feed(add)
    assert sent.startswith(b"*10\r\n$4\r\nEVAL\r\n")
    assert sent.endswith(add[4:])


def test_a_huge_value_streams_through_without_being_held() -> None:
    driver = Driver(k1=NOW + 5)
    stream = encode([b"SET", b"big", b"v" * 10_000_000])
    most = 0
    for begin in range(0, len(stream), 65_536):
        driver.feed(stream[begin : begin + 65_536])
        most = max(most, driver.session.held)
    assert driver.sent == stream
    assert most <= 65_536


def test_what_must_be_read_whole_is_bounded() -> None:
    driver = Driver(request_limit=100_000, k1=NOW + 5)
    stream = encode([b"MSET", b"k1", b"v" * 200_000])
    with pytest.raises(RequestTooLargeError):
        driver.feed(stream[:65_536], stream[65_536:131_072], stream[131_072:])


def test_draining_asks_for_a_sign_behind_the_last_whole_request() -> None:
    driver = Driver()
    assert re.fullmatch(rb"\*2\r\n\$4\r\nECHO\r\n\$32\r\n[0-9a-f]{32}\r\n", driver.session.drain() or b"")
    within = Driver()
    within.feed(encode([b"SET", b"big", b"v" * 100_000])[:50_000])
    assert within.session.drain() is None


def test_a_transaction_is_spoilt_when_a_queued_key_gets_its_first_deadline_from_elsewhere() -> None:
    driver = Driver()
    driver.feed(encode([b"MULTI"]) + encode([b"SREM", b"k", b"m"]) + encode([b"SADD", b"k", b"m"]))
    driver.known.mark(b"k", NOW + 1000, NOW)
    before = len(driver.sent)
    sent = driver.feed(encode([b"EXEC"]))[before:]
    assert without_tokens(sent) == b"<token>" + encode([b"EXEC"])


def test_a_transaction_that_sets_the_first_deadline_itself_runs() -> None:
    driver = Driver()
    stream = encode([b"MULTI"]) + encode([b"SADD", b"k", b"m"]) + encode([b"EXPIREMEMBER", b"k", b"m", b"9"])
    driver.feed(stream + encode([b"EXEC"]))
    assert b"<token>" not in without_tokens(driver.sent)
    assert driver.sent.endswith(encode([b"EXEC"]))


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        ([b"SORT", b"l", b"BY", b"store", b"ASC"], None),
        ([b"SORT", b"l", b"LIMIT", b"0", b"1", b"STORE", b"d"], [b"d"]),
        ([b"SORT", b"l", b"GET", b"STORE", b"STORE", b"d"], [b"d"]),
        ([b"GEORADIUS", b"g", b"1", b"2", b"3", b"m", b"COUNT", b"1", b"STOREDIST", b"d"], [b"d"]),
    ],
)
def test_the_target_of_a_sort_is_not_taken_from_a_pattern(arguments: list[bytes], target: list[bytes] | None) -> None:
    assert COMMANDS[arguments[0]].keys(arguments) == target


def test_every_sort_by_pattern_waits_for_what_is_due_anywhere() -> None:
    driver = Driver(due=NOW - 1)
    driver.known.next_deadline = NOW - 1
    sort = encode([b"SORT", b"l", b"BY", b"w:*"])
    for _ in range(2):
        assert driver.feed(encode([b"SORT", b"l"]) + sort).endswith(sort)
    assert driver.questions == [Question(everywhere=True)] * 2


def test_what_looks_everywhere_is_always_looked_at() -> None:
    for command in COMMANDS.values():
        if command.everywhere([command.name, b"k", b"BY", b"*"]):
            assert command.always


def test_a_sign_is_asked_for_in_the_way_that_strangers_are_answered() -> None:
    driver = Driver()
    session = Session(driver.ground, stranger=True)
    assert (session.sign(lambda: None) or b"").startswith(b"*3\r\n$5\r\nHELLO\r\n")


def test_what_other_proxies_are_told_on_is_reserved() -> None:
    for name in ("PUBLISH", "spublish"):
        sent = Driver().feed(encode([name.encode(), NAMES.prefix + b"proxies", b"x"]))
        assert sent.startswith(b"*1\r\n$32\r\n")  # a token, in whose place the refusal comes


def test_what_a_transaction_marks_counts_as_held() -> None:
    driver = Driver()
    driver.feed(encode([b"MULTI"]))
    before = driver.session.held
    driver.feed(b"".join(encode([b"EXPIREMEMBER", b"k%d" % number, b"m", b"9"]) for number in range(100)))
    assert driver.session.held >= before + 100 * MARK_SIZE
    driver.feed(encode([b"EXEC"]))
    assert driver.session.held == before


def test_what_a_transaction_remembers_counts_as_held_and_leaves_out_values() -> None:
    driver = Driver()
    driver.feed(encode([b"MULTI"]))
    before = driver.session.held
    driver.feed(b"".join(encode([b"SET", b"k%d" % number, b"v" * 10_000]) for number in range(100)))
    assert before + 100 * len(b"k00") < driver.session.held < before + 100 * 1000


def test_what_is_due_after_a_wait_is_removed_too() -> None:
    """A request that waits for the replies to earlier ones is looked at again: more may be due by then."""
    driver, script_of_h = Driver(), encode([b"EVAL", b"return 1", b"1", b"h"])
    driver.known.learn(b"h", NOW + 1000, NOW)
    driver.session.receive(encode([b"BLPOP", b"nokey", b"0"]) + script_of_h, NOW)
    question = driver.session.question
    assert question is not None
    assert question.replied
    assert not question.due
    driver.session.resume(NOW + 1001)
    question = driver.session.question
    assert question is not None
    assert (question.replied, question.due, [key for key, _ in question.absent]) == (False, (b"h",), [b"h"])
    assert driver.session.resume(NOW + 1002) == script_of_h


def test_hincrby_goes_as_one_request_that_nobody_waits_for() -> None:
    """Between two steps another client could remove the member."""
    driver = Driver(h=NOW + 1_000_000)
    sent = driver.feed(encode([b"HINCRBY", b"h", b"f", b"1"]))
    assert driver.questions == []
    assert without_tokens(sent).startswith(b"<token>*")
    assert script("count") in sent
    assert sent.endswith(encode([b"HINCRBY", b"h", b"f", b"1"]).removeprefix(b"*4\r\n"))


def test_a_request_does_not_wait_for_the_same_again() -> None:
    """However long it takes until the others have been told, and until what others have sent has run."""
    driver, questions = Driver(), 0
    known, session = driver.known, driver.session
    known.shared = True
    driver.ground.streams.lengthen(Claims())
    session.receive(encode([b"PEXPIREMEMBER", b"k", b"m", b"50"]), NOW)
    while session.question is not None:
        questions += 1
        assert questions < 5
        known.note_announced(session.question.announce, lease_clock())
        session.resume(NOW)
        known.stale_marks(lease_clock() + STIRRED_SECONDS)
    assert questions == 2


def test_what_a_user_may_do_is_asked_once_for_a_request() -> None:
    """Though the server takes longer to say so than its word is trusted."""
    driver = Driver(s=NOW + 1_000_000)
    session = Session(driver.ground, rights=Rights(NAMES, Users()))
    held = []
    for later, go_on in ((0, session.receive), (2, None), (4, session.receive)):
        now = NOW + later * TRUST_MS
        if go_on is None:
            session.resume(now)
        else:
            go_on(encode([b"SADD", b"s", b"m"]), now)
        held.append(session.question is not None)
    assert held == [True, False, True]


def test_others_are_told_once_more_of_near_deadlines_if_some_were_told_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who acknowledged at once asks about the key no more when the last has, or is waited for no longer."""
    driver, late = Driver(k=NOW + 1_000_000), 0.0
    for room in ("session", "known"):
        monkeypatch.setattr(f"proxy.session.{room}.lease_clock", lambda: lease_clock() + late)
    known, session = driver.known, driver.session
    known.shared = True
    session.receive(encode([b"PEXPIREMEMBER", b"k", b"m", b"50"]), NOW)
    for _ in range(2):
        assert session.question is not None
        assert session.question.near == {b"k"}
        known.note_announced(session.question.announce, lease_clock())
        late += 2 * STIRRED_SECONDS
        session.resume(NOW)
    assert session.question is None


def test_what_others_have_to_finish_is_waited_for_behind_own_replies_too() -> None:
    """A client that logs in and sets a first deadline in one piece waits for its login first."""
    driver = Driver()
    driver.ground.streams.lengthen(Claims())
    driver.session = session = Session(driver.ground, stranger=True)
    session.receive(encode([b"EXPIREMEMBER", b"k", b"m", b"1000"]), NOW)
    assert session.question is not None
    assert session.question.login
    session.login()
    session.resume(NOW)
    assert session.question is not None
    assert session.question.behind


def test_nothing_is_known_or_claimed_for_a_stranger() -> None:
    driver = Driver(source=NOW + 1_000_000)
    streams = driver.ground.streams
    streams.lengthen(Claims())
    driver.session = session = Session(driver.ground, stranger=True)
    pipeline = [encode([b"RENAME", b"source", b"x", b"extra"])]
    pipeline += [encode([b"SELECT", b"%d" % number]) for number in range(5_000)]
    pipeline += [encode([b"EXPIREMEMBER", b"k%d" % number, b"m", b"1000"]) for number in range(100)]
    session.receive(b"".join(pipeline), NOW)
    session.close()
    assert list(driver.known.deadlines) == [b"source"]
    assert not driver.known.claimed
    assert driver.known.databases == {0}
    assert not streams.awaited


def test_a_stranger_who_had_logged_in_has_gone_where_it_said() -> None:
    driver = Driver()
    driver.session = session = Session(driver.ground, stranger=True)
    session.receive(encode([b"SELECT", b"3"]) + encode([b"EXPIREMEMBER", b"k", b"m", b"1000"]), NOW)
    session.login()
    session.resume(NOW)
    assert driver.known.databases == {0, 3}


def test_a_pipeline_of_deadlines_and_renames_is_announced_at_once() -> None:
    driver, questions = Driver(), 0
    known, session = driver.known, driver.session
    known.shared = True
    pairs = [
        encode([b"PEXPIREMEMBER", b"a%d" % number, b"m", b"90"]) + encode([b"RENAME", b"a%d" % number, b"b%d" % number])
        for number in range(200)
    ]
    session.receive(b"".join(pairs), NOW)
    while session.question is not None or session.unfinished:
        if session.question is None:
            session.go_on(NOW)
            continue
        questions += 1
        known.note_announced(session.question.announce, lease_clock())
        session.resume(NOW)
    assert questions <= 3


def test_a_short_delay_in_a_transaction_counts_from_its_exec() -> None:
    """However long it is open: the deadline that was possible before has passed by then, and said nothing."""
    driver = Driver(k=NOW + 1_000_000)
    driver.feed(encode([b"MULTI"]) + encode([b"PEXPIREMEMBER", b"k", b"m", b"1"]))
    driver.known.learn(b"k", NOW + 1_000_000, NOW + 10)
    driver.sent += driver.session.receive(encode([b"RENAME", b"k", b"to"]) + encode([b"EXEC"]), NOW + 20)
    assert driver.session.question is None
    assert driver.known.deadlines[b"k"] == NOW + 21
    assert driver.known.deadlines[b"to"] == NOW + 21


def test_a_short_delay_in_a_transaction_that_was_open_for_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a later deadline of the same key is still to come."""
    driver, late = Driver(k=NOW + 1_000_000), 0.0
    for room in ("session", "known"):
        monkeypatch.setattr(f"proxy.session.{room}.lease_clock", lambda: lease_clock() + late)
    driver.known.shared = True
    driver.known.note_announced([b"k"], lease_clock())
    driver.feed(encode([b"EXPIREMEMBER", b"k", b"far", b"1000"]))
    driver.feed(encode([b"MULTI"]) + encode([b"PEXPIREMEMBER", b"k", b"m", b"1"]))
    late = 1.3
    driver.known.learn(b"k", NOW + 1_000_000, NOW + 1_300)
    driver.session.receive(encode([b"EXEC"]), NOW + 1_300)
    assert driver.session.question is not None
    assert driver.session.question.near == {b"k"}


def test_only_first_deadlines_of_others_end_what_is_arriving() -> None:
    known = KnownKeys()
    ended: list[list[bytes]] = []
    known.on_announced = ended.append
    known.mark_announced([b"k"], {b"k"})
    known.mark_announced([b"k"], {b"k"})
    known.mark_announced([b"k", b"other"])
    assert ended == [[b"k"], [], [b"k", b"other"]]


@pytest.mark.parametrize("refused", [True, False])
def test_claims_end_where_no_reply_can_show_it(refused: bool) -> None:
    """A client that is refused without a word may stay for as long as it likes."""
    driver = Driver()
    client = SimpleNamespace(sends=not refused, ended=False, refused=refused, send_out=lambda _: None)
    driver.session.replies.silenced = not refused
    signs = Signs(driver.session, cast(Any, SimpleNamespace(closing=False)), cast(Any, client))
    passed = asyncio.run(promised(signs))
    assert passed is not None


def test_no_sign_is_put_in_front_of_a_request_that_waits() -> None:
    """Its keys may be claimed: they would be forgotten before it has gone."""
    driver = Driver(s=NOW + 1_000_000)
    sent: list[bytes] = []
    client = SimpleNamespace(sends=True, ended=False, refused=False, send_out=sent.append)
    signs = Signs(driver.session, cast(Any, SimpleNamespace(closing=False)), cast(Any, client))
    assert driver.session.receive(encode([b"EVAL", b"return 1", b"1", b"s"]), NOW) == b""
    assert driver.session.question is not None
    passed = asyncio.run(promised(signs))
    assert passed is not None
    assert sent == []
    assert asyncio.run(promised(signs, again=True)) is None
    gone = without_tokens(driver.session.resume(NOW))
    if driver.session.question is not None:
        gone += without_tokens(driver.session.resume(NOW))
    assert gone == b"<token>" + encode([b"EVAL", b"return 1", b"1", b"s"])
    assert not passed()


def test_a_promised_sign_stands_in_front_of_no_login() -> None:
    """Valkey 8.0 says nothing of one that it refuses, if it reads it together with a command that it does not know."""
    driver = Driver()
    driver.session.promise_sign(lambda: None)
    login, lifetime = encode([b"AUTH", b"wrong"]), encode([b"TTL", b"k", b"m"])
    assert driver.session.receive(login, NOW) == login
    assert driver.session.has_promised
    assert without_tokens(driver.session.receive(lifetime, NOW)).startswith(b"<token>*")
    assert not driver.session.has_promised


async def promised(signs: Signs, *, again: bool = False) -> Callable[[], bool] | None:
    return signs.insist() if again else signs.promise()


def test_a_claim_outlives_the_transaction_that_it_waits_in() -> None:
    """However long that is open: no sign can be put behind what is queued, and nothing else ends a claim."""
    driver = Driver()
    claims, passed = driver.session.claims, []

    class Signing(Sender):
        def promise(self) -> Callable[[], bool] | None:
            return None if driver.session.sign(lambda: passed.append(True)) is None else lambda: bool(passed)

    claims.sender = Signing()
    driver.feed(encode([b"MULTI"]) + encode([b"PEXPIREMEMBER", b"k", b"m", b"2000"]))
    later = lease_clock() + 1000
    assert driver.known.settle(later) == []
    assert driver.known.stale_marks(later) == []
    driver.known.learn(b"k", None, NOW + 1_000_000)  # the server has not run it, and knows of no deadline
    before = len(driver.sent)
    driver.feed(encode([b"SADD", b"k", b"m"]))
    assert b"EVAL" in driver.sent[before:]
    driver.feed(encode([b"EXEC"]))
    assert driver.known.settle(later) == []  # a sign has been asked for
    passed.append(True)
    assert driver.known.settle(later) == [b"k"]


def test_keys_that_a_transaction_will_expire_are_found_and_bounded() -> None:
    expire, at = [b"EXPIREMEMBER", b"k", b"m", b"10"], [b"pexpirememberat", b"l" * 1024, b"m", b"10"]
    data = encode([b"MULTI"]) + encode(expire) + encode(at)
    assert keys_expected(data, in_transaction=False) == {b"k", b"l" * 1024}
    assert keys_expected(encode(expire), in_transaction=True) == {b"k"}
    assert not keys_expected(encode(expire), in_transaction=False)
    hostile = b"x\r\nMULTI\r\n" + b"".join(b"EXPIREMEMBER\r\n$%d\r\n" % (10 ** (n % 9)) for n in range(50_000))
    assert sum(map(len, keys_expected(hostile, in_transaction=True))) <= EXPECTED_AT_MOST * 1024


@pytest.mark.parametrize("end", ["EXEC", "DISCARD", "RESET", "QUIT", "EXEC x", ""])
def test_nothing_is_watched_when_a_transaction_has_ended(end: str) -> None:
    driver = Driver()
    lines = (b"MULTI", b"SADD a m", b"HSET b m 1", b"EXPIREMEMBER a m 9", b"EXPIREMEMBER b m 9", b"SADD a n")
    driver.feed(*(encode(line.split()) for line in lines))
    assert driver.known.watched == {b"a", b"b"}
    if end:
        driver.feed(encode(end.encode().split()))
    if end in ("", "RESET", "QUIT"):
        driver.session.close()
    assert not driver.known.watched


def test_who_watches_a_key_is_told_once_and_not_of_its_own() -> None:
    known, told, own = KnownKeys(), list[int](), Claims()
    for number in range(3):
        known.watch(b"k", Claims(), partial(told.append, number))
    known.watch(b"k", own, partial(told.append, 3))
    for _ in range(3):
        known.mark(b"k", NOW + 1_000, NOW, own)
    assert told == [0, 1, 2]
    assert known.watched == {b"k"}
    known.mark_announced([b"k"])
    assert told == [0, 1, 2, 3]
    assert not known.watched


def test_more_keys_are_watched_than_are_remembered() -> None:
    """What is due in any key is removed then before EXEC; what they take is counted, and given back."""
    driver = Driver(k=NOW - 1)
    watch = [b"WATCH", *(b"%d" % number for number in range(REMEMBERED))]
    driver.feed(encode(watch))
    assert driver.session.held > REMEMBERED * NAME_SIZE
    transaction = encode([b"MULTI"]) + encode([b"EXEC"])
    driver.feed(transaction)
    assert driver.session.held < NAME_SIZE
    assert not any(question.everywhere for question in driver.questions)
    driver.feed(encode(watch), encode([b"WATCH", b"k2"]))
    assert driver.session.held < NAME_SIZE
    driver.feed(transaction)
    assert driver.questions[-1].everywhere
    asked = len(driver.questions)
    driver.feed(transaction)
    assert len(driver.questions) == asked


def test_a_key_that_is_gone_takes_no_deadlines_along_while_the_proxy_is_blind() -> None:
    """The engine drops what it has left, before a MIGRATE that names it goes to the node."""
    names = Names(b"__expiremember__:")
    slots = names.slots = Slots(b"node")
    slots.take(primary=True, owned=frozenset(range(SLOTS)), moving=frozenset({slot(b"k")}))
    driver = Driver(blind=True)
    rewriter = Rewriter(names, driver.known, ServerCommands())
    driver.ground = Ground(rewriter, driver.known, names.prefix, 1 << 30, names=names)
    driver.session = Session(driver.ground)
    driver.feed(encode([b"MIGRATE", b"127.0.0.1", b"7000", b"k", b"0", b"5000"]))
    assert [question.leftover for question in driver.questions if question.leftover] == [(b"k",)]
    assert b"KEYS" in driver.sent
    assert b"k:{k}" in driver.sent
