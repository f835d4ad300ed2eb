"""The sans-I/O session: the same bytes go upstream however the stream is cut, and what is forwarded is untouched."""

from __future__ import annotations

import gc
import re
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.commands.described import ServerCommands
from proxy.commands.table import COMMANDS
from proxy.coverage.coverage import Coverage
from proxy.scripts.calls import Variant, script
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import SLOTS, Slots
from proxy.session.announcing import EXPECTED_AT_MOST, keys_expected
from proxy.session.errors import RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.ground import Ground
from proxy.session.intake import TAIL_LIMIT
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.reads import Reads
from proxy.session.rewrite import Rewriter
from proxy.session.rights import TRUST_MS, Rights, Users
from proxy.session.session import Session
from proxy.session.transaction import MARK_SIZE, NAME_SIZE, REMEMBERED
from proxy.wire.request import Kind, RequestReader, encode
from tests.streams import cuts, streams

NOW = 1_700_000_000_000.0
NAMES = Names(b"__expiremember__:")


PROXYS_OWN = {
    "clear": b"*7\r\n:0\r\n:0\r\n*0\r\n:0\r\n:0\r\n*7\r\n:0\r\n:0\r\n:0\r\n:0\r\n$0\r\n\r\n:0\r\n:0\r\n*0\r\n",
    "near": b"*2\r\n:0\r\n*0\r\n",
    "void": b"*0\r\n",
    "front": b"*3\r\n:0\r\n:0\r\n:0\r\n",
}
"""What scripts answer where there are no deadlines."""


class Upstream:
    """Answers requests as a server that holds nothing."""

    def __init__(self) -> None:
        self._reader = RequestReader()
        self._queued: list[bytes] | None = None
        self._spoilt = False

    def answer(self, sent: bytes) -> bytes:
        """Return the replies to what has come whole."""
        self._reader.feed(sent)
        replies = b""
        while (request := self._reader.next_request()) is not None:
            if request.arguments and request.kind is Kind.WHOLE:
                reply = self._reply(request.arguments)
                replies += reply
        return replies

    def _reply(self, arguments: list[bytes]) -> bytes:
        name = arguments[0].upper()
        if re.fullmatch(rb"[0-9A-F]{32}", name):
            self._spoilt = True
            return b"-ERR unknown command '%b', with args beginning with: \r\n" % arguments[0]
        queued = self._queued
        if name == b"EXEC" and queued is not None:
            self._queued = None
            return b"-EXECABORT\r\n" if self._spoilt else b"*%d\r\n%b" % (len(queued), b"".join(queued))
        if name in (b"DISCARD", b"RESET"):
            self._queued = None
        elif queued is not None:
            queued.append(self._result(name, arguments))
            return b"+QUEUED\r\n"
        elif name == b"MULTI" and len(arguments) == 1:
            self._queued, self._spoilt = [], False
        return self._result(name, arguments)

    def _result(self, name: bytes, arguments: list[bytes]) -> bytes:
        if name == b"HELLO" and arguments[2:] and re.fullmatch(rb"[0-9a-f]{32}", arguments[2]):
            return b"-ERR Syntax error in HELLO option '%b'\r\n" % arguments[2]
        if name == b"ECHO" and len(arguments) == 2:
            return b"$%d\r\n%b\r\n" % (len(arguments[1]), arguments[1])
        if name == b"ZMSCORE" and arguments[1:2] == [NAMES.index]:
            return b"*%d\r\n" % (len(arguments) - 2) + b"$-1\r\n" * (len(arguments) - 2)
        if name == b"ZRANGE" and arguments[1:2] == [NAMES.index]:
            return b"*0\r\n"
        if is_front(arguments):
            return PROXYS_OWN["front"]
        if name == b"EVAL":
            if count := size_of_batch(arguments):  # it does for so many requests
                return b"*%d\r\n" % count + b":0\r\n" * count
            return next((reply for own, reply in PROXYS_OWN.items() if script(own) in arguments[1]), b":0\r\n")
        return b"+OK\r\n"


def size_of_batch(arguments: list[bytes]) -> int:
    """How many requests a call of a script does for; 0 where it stands in for one."""
    forms = [place for place, word in enumerate(arguments) if re.fullmatch(rb"(?:[aAerpt] \S+( \d+){4} ?)+", word)]
    return sum(arguments[forms[0] - 1][2::3]) if forms else 0


def is_front(arguments: list[bytes]) -> bool:
    """Whether a request of the proxy's own sees to what is due in front of one of the client's."""
    text = script("front")
    return arguments[1:2] in ([text], [sha1(text).hexdigest().encode()])


def is_of_proxy(arguments: list[bytes]) -> bool:
    """Whether a request comes beside those of the client, and not in the place of one."""
    sign = arguments[:1] == [b"ECHO"] and re.fullmatch(rb"[0-9a-f]{32}", arguments[-1]) is not None
    asked = arguments[:2] in ([b"ZMSCORE", NAMES.index], [b"ZRANGE", NAMES.index])
    beside = arguments[1:2] in ([script(name)] for name in ("clear_front", "clear", "near", "void"))
    return sign or asked or is_front(arguments) or beside


def without_signs(sent: bytes) -> bytes:
    """Leave out signs that are not to leave an error at the server."""
    return re.sub(rb"\*2\r\n\$4\r\nECHO\r\n\$32\r\n[0-9a-f]{32}\r\n", b"", sent)


class Driver:
    """Plays the shell's part: feeds a session, answers its questions, keeps what it sends, has it answered."""

    def __init__(self, *covered: str, blind: bool = False, limit: int = 1 << 30) -> None:
        self.coverage = Coverage()
        self.coverage.loaded = True
        self.coverage.see()
        self.coverage.learn(key.encode() for key in covered)
        self.coverage.confirm(self.coverage.entries)
        self.coverage.blind = blind
        rewriter = Rewriter(NAMES, self.coverage, ServerCommands())
        self.ground = Ground(rewriter, self.coverage, limit, now=lambda: NOW)
        self.session = Session(self.ground)
        self.sent = self.replies = b""
        self.questions: list[Question] = []
        self.upstream = Upstream()

    def feed(self, *pieces: bytes) -> bytes:
        session = self.session
        for piece in pieces:
            if session.ordinary and self.ground.checks.is_plain(piece):
                self._send(piece)
            else:
                self._send(session.receive(piece, NOW))
            while session.question is not None or session.unfinished:
                if session.question is None:
                    self._send(session.go_on(NOW))
                    continue
                self.questions.append(session.question)
                self.coverage.confirm(session.question.covers)
                self._send(session.resume(NOW))
        return self.sent

    def _send(self, data: bytes) -> None:
        self.sent += data
        replies = self.upstream.answer(data)
        if replies:
            self.replies += self.session.replies.receive(replies) if self.session.replies.active else replies
            self.session.take_settled()

    @property
    def asked(self) -> list[Question]:
        """The questions that are for the engine, or for other proxies."""
        wait = Question(replied=True, again=True)
        return [replace(one, owner=None) for one in self.questions if replace(one, again=True) != wait]


def test_how_much_was_sent_up_to_a_request_that_may_block_is_known() -> None:
    """Up to the last of a piece, whether the piece is forwarded unchanged or judged one by one."""
    ahead, pop, adder = (
        encode([b"RPUSH", b"l", b"x" * 500]),
        encode([b"BLPOP", b"q", b"0"]),
        encode([b"SADD", b"k", b"m"]),
    )
    for behind in (b"", adder):
        driver = Driver("k")
        driver.feed(ahead + pop + ahead + pop + behind)
        assert driver.session.blocker.ahead == len(ahead + pop + ahead + pop)
        driver.feed(pop)
        assert driver.session.blocker.ahead == len(pop)


@pytest.mark.parametrize("protocol", [b"2", b"3"])
@pytest.mark.parametrize("behind", [b"*-5x\r\n", b"*1\r\n$1000000000\r\n"])
def test_what_a_subscriber_is_owed_is_known(protocol: bytes, behind: bytes) -> None:
    class Silent(Upstream):
        def answer(self, sent: bytes) -> bytes:
            return b"" if sent else sent

    driver = Driver()
    driver.upstream = Silent()
    driver.feed(encode([b"HELLO", protocol]) + encode([b"SUBSCRIBE", b"channel"]))
    assert not driver.session.owes
    with suppress(RefusedAtItsHeadError):
        driver.feed(behind)
    assert driver.session.owes


def check_late_replies(*arguments: bytes) -> None:
    """Replies of scripts of the proxy's own that come after their time must not be asked for again and again."""
    driver, now = Driver("k1", blind=True), NOW
    driver._send(driver.session.receive(encode(list(arguments)), now))
    for _ in range(5):
        if driver.session.question is None:
            break
        now += 10_000
        driver._send(driver.session.resume(now))
    assert driver.session.question is None


@pytest.mark.parametrize("words", ["EVAL x 1 k1", "DBSIZE", "SUNION k1 k2", "HINCRBY k1 f 1"])
def test_however_late_replies_are_requests_go_on(words: str) -> None:
    check_late_replies(*words.encode().split())


# hiredis takes a status in an array for a bulk string; the server closes there, so what is sent behind it never runs.
# A long SET on a key with deadlines goes in a script's call if its options are not known yet: see below.
LONG_SET = re.compile(rb"\r\nplain\r\n\$[0-9]{5}\r\n").search
run_streams = streams.filter(lambda stream: b"+ok" not in stream and LONG_SET(stream) is None)


def of_clients(sent: bytes) -> bytes:
    """What goes in the place of the client's requests: of what the proxy adds, one may do for several of them."""
    reader = RequestReader()
    reader.feed(sent)
    left = b""
    while (request := reader.next_request()) is not None:
        whole = request.kind is Kind.WHOLE
        left += b"" if whole and is_of_proxy(request.arguments) else long_set(request.arguments) or request.raw
    return left + reader.rest()


def long_set(arguments: list[bytes]) -> bytes | None:
    """The client's SET in a script's call, where it is too long to be waited for: its options were not known yet."""
    words = arguments[arguments.index(b"SET") :] if arguments[:1] == [b"EVAL"] and b"SET" in arguments else []
    request = encode(words) if words else b""
    return request if len(request) > TAIL_LIMIT else None


@pytest.mark.parametrize("cut", [10, 17_000, 65_000, 69_990])
def test_a_long_set_on_a_key_with_deadlines_is_the_same_wherever_it_is_cut(cut: int) -> None:
    stream = encode([b"SET", b"k1", b"v" * 70_000])
    driver = Driver("k1")
    driver.feed(stream[:cut], stream[cut:])
    assert of_clients(driver.sent) == stream


def without_tokens(sent: bytes) -> bytes:
    return re.sub(rb"\*1\r\n\$32\r\n[0-9a-f]{32}\r\n", b"<token>", of_clients(sent))


@settings(max_examples=300)
@given(st.data(), st.booleans())
def test_any_cut_sends_the_same_bytes(data: st.DataObject, blind: bool) -> None:
    stream = data.draw(run_streams)
    whole = Driver("k1", "k2", blind=blind)
    whole.feed(stream)
    cut = Driver("k1", "k2", blind=blind)
    cut.feed(*data.draw(cuts(stream)))
    alike = without_tokens(without_signs(cut.sent)) == without_tokens(without_signs(whole.sent))
    assert alike, stream[:2000]  # to tell the difference of long texts would take for ever
    assert cut.asked == whole.asked
    assert cut.coverage.entries.keys() == whole.coverage.entries.keys()


# The proxy refuses the second: in its place goes a token, like the mark in front of the first.
REFUSED_AMID = encode([b"MULTI", b"k1"]) + encode([b"EXPIREMEMBER", b"k1"]) + encode([b"MULTI", b"k1"])


@given(run_streams)
@example(REFUSED_AMID)
def test_one_request_goes_upstream_for_each_that_comes(stream: bytes) -> None:
    driver = Driver("k1", "k2")
    sent = driver.feed(stream)

    def count(requests: bytes) -> int:
        reader = RequestReader()
        reader.feed(requests)
        found = 0
        while (request := reader.next_request()) is not None:
            found += request.kind is Kind.WHOLE
        return found

    assert count(of_clients(sent)) == count(stream)


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
    sent = Driver("k1").feed(*data.draw(cuts(stream)))
    untouched = of_clients(sent) == stream
    assert untouched, stream[:2000]


def test_a_known_key_is_seen_by_the_next_request_of_the_same_pipeline() -> None:
    driver = Driver()
    expire = encode([b"EXPIREMEMBER", b"k", b"m", b"10"])
    add = encode([b"SADD", b"k", b"m"])
    assert driver.feed(add) == add
    sent = Driver().feed(expire + add)
    assert sent.count(b"EVAL") == 2
    assert add not in sent


@pytest.mark.parametrize(("said", "clears"), [("", 1), ("TRACKING ON", 0), ("TRACKING OFF", 1), ("REPLY OFF", 1)])
def test_what_is_due_soon_is_cleared_in_front_of_a_transactions_requests(said: str, clears: int) -> None:
    """Not for a client that caches: the server would tell it of the proxy's own keys."""
    driver = Driver("soon")
    if said:
        driver.feed(encode([b"CLIENT", *said.encode().split()]))
    driver.feed(*(encode(line.split()) for line in (b"MULTI", b"SCARD other", b"SCARD soon", b"SCARD soon", b"EXEC")))
    assert driver.sent.count(b"EVAL") == clears
    for line in (b"MULTI", b"SADD soon m", b"PERSIST soon m", b"EXPIREMEMBER soon m 9", b"SADD other m", b"EXEC"):
        driver.feed(encode(line.split()))
    assert len(re.findall(rb"\nlocal \w+=50\n", driver.sent)) == 3 * clears  # `grace`


@pytest.mark.parametrize(("before", "looked_at"), [(98, False), (99, True)])
def test_a_target_that_had_no_room_to_be_cleared_is_looked_at_before_exec(before: int, looked_at: bool) -> None:
    """A transaction removes due members in front of the requests on a hundred keys; the source is one of them."""
    check_target(before, looked_at=looked_at)


def check_target(before: int, *, looked_at: bool) -> None:
    driver = Driver("soon:1")
    names = ["soon:source", *(f"soon:{number}" for number in range(before)), "soon:target"]
    for line in ("MULTI", *(f"SMEMBERS {name}" for name in names), "RENAME soon:source soon:target", "EXEC"):
        driver.feed(encode(line.encode().split()))
    due = {key for question in driver.questions for key in question.due}
    assert (b"soon:target" in due) == looked_at


def test_a_request_that_arrives_in_parts_is_not_judged_by_a_deadline_to_come() -> None:
    driver = Driver()
    add = encode([b"ZADD", b"k", b"1" * 40_000, b"m"])
    stream = encode([b"MULTI"]) + encode([b"EXPIREMEMBER", b"k"])
    driver.feed(stream + add[:39_000], add[39_000:])
    assert driver.sent.endswith(add[-39_000:])


def test_a_transaction_that_is_dropped_does_not_wait() -> None:
    driver = Driver("later")
    stream = b"".join(encode(words) for words in ([b"MULTI"], [b"SCARD", b"later"], [b"DISCARD"], [b"EXEC"]))
    assert of_clients(driver.feed(stream)) == stream
    assert not driver.questions


@pytest.mark.parametrize("empty", [b"*0\r\n", b"*-1\r\n", b">0\r\n"])
def test_an_empty_array_of_the_clients_own_hides_nothing(empty: bytes) -> None:
    driver = Driver("k1")
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
    assert Driver("k1").feed(start) == b""
    long = b"*2\r\n$4\r\nECHO\r\n$536870913\r\n" + b"x" * 20_000
    with pytest.raises(RefusedAtItsHeadError) as refused:  # the server says itself what it does not take
        Driver("k1").feed(long)
    # Whatever it thinks of that, nothing that could run follows.
    assert without_signs(refused.value.beginning) == long[:-20_000]


def test_while_blind_every_key_counts_as_known() -> None:
    add = encode([b"SADD", b"k", b"m"])
    sent = Driver(blind=True).feed(add)
    assert sent.startswith(b"*10\r\n$4\r\nEVAL\r\n")
    assert sent.endswith(add[4:])


def test_a_huge_value_streams_through_without_being_held() -> None:
    driver = Driver("k1")
    stream = encode([b"SET", b"big", b"v" * 10_000_000])
    most = 0
    for begin in range(0, len(stream), 65_536):
        driver.feed(stream[begin : begin + 65_536])
        most = max(most, driver.session.held)
    assert without_signs(driver.sent) == stream
    assert most <= 65_536


def test_what_must_be_read_whole_is_bounded() -> None:
    driver = Driver("k1", limit=100_000)
    stream = encode([b"MSET", b"k1", b"v" * 200_000])
    with pytest.raises(RequestTooLargeError):
        driver.feed(stream[:65_536], stream[65_536:131_072], stream[131_072:])


@pytest.mark.parametrize("rest", [b"", b"1", b"1\r\n", b"1\r\n$", b"1\r\n$4\r\nQUIT\r\n"])
def test_a_protocol_error_behind_a_request_is_shown_to_the_server_at_once(rest: bytes) -> None:
    """Where a string should begin, an array does: the server closes there, and waits for nothing."""
    sent = encode([b"SET", b"a", b"b"]) + b"*3\r\n$4\r\nSADD\r\n*" + rest
    assert without_signs(Driver().feed(sent)) == sent


def test_draining_asks_for_a_sign_behind_the_last_whole_request() -> None:
    driver = Driver()
    assert re.fullmatch(rb"\*2\r\n\$4\r\nECHO\r\n\$32\r\n[0-9a-f]{32}\r\n", driver.session.drain() or b"")
    within = Driver()
    within.feed(encode([b"SET", b"big", b"v" * 100_000])[:50_000])
    assert within.session.drain() is None


def test_a_transaction_is_spoilt_when_a_queued_key_gets_its_first_deadline_from_elsewhere() -> None:
    driver = Driver()
    driver.feed(encode([b"MULTI"]) + encode([b"SREM", b"k", b"m"]) + encode([b"SADD", b"k", b"m"]))
    driver.coverage.add([b"=k"])
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
    driver = Driver("due")
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


def test_hincrby_goes_as_one_request_that_nobody_waits_for() -> None:
    """Between two steps another client could remove the member."""
    driver = Driver("h")
    sent = driver.feed(encode([b"HINCRBY", b"h", b"f", b"1"]))
    assert driver.questions == []
    assert sent.startswith(b"*2\r\n$4\r\nECHO\r\n")
    assert script("count", Variant(lists=False)) in sent
    assert sent.endswith(encode([b"HINCRBY", b"h", b"f", b"1"]).removeprefix(b"*4\r\n"))


def test_what_a_user_may_do_is_asked_once_for_a_request() -> None:
    """Though the server takes longer to say so than its word is trusted."""
    driver = Driver("s")
    session = Session(driver.ground, rights=Rights(NAMES, Users()))
    held = []
    for later, go_on in ((0, session.receive), (2, None), (4, session.receive)):
        now = NOW + later * TRUST_MS
        if go_on is None:
            session.resume(now)
        else:
            go_on(encode([b"SADD", b"s", b"m"]), now)
        held.append(session.question is not None and session.question.replied)
        if go_on is None:
            session.resume(now)  # the engine has seen to what is due
    assert held == [True, False, True]


def test_what_others_have_to_finish_is_waited_for_behind_own_replies_too() -> None:
    """A client that logs in and sets a first deadline in one piece waits for its login first."""
    driver = Driver()
    driver.ground.streams.lengthen(Pipeline())
    driver.session = session = Session(driver.ground, stranger=True)
    session.receive(encode([b"EXPIREMEMBER", b"k", b"m", b"1000"]), NOW)
    assert session.question is not None
    assert session.question.login
    session.login()
    session.resume(NOW)
    assert session.question is not None
    assert session.question.behind


def test_nothing_is_known_or_claimed_for_a_stranger() -> None:
    driver = Driver("source")
    streams = driver.ground.streams
    streams.lengthen(Pipeline())
    driver.session = session = Session(driver.ground, stranger=True)
    pipeline = [encode([b"RENAME", b"source", b"x", b"extra"])]
    pipeline += [encode([b"SELECT", b"%d" % number]) for number in range(5_000)]
    pipeline += [encode([b"EXPIREMEMBER", b"k%d" % number, b"m", b"1000"]) for number in range(100)]
    session.receive(b"".join(pipeline), NOW)
    session.close()
    assert list(driver.coverage.entries) == [b"=source"]
    assert driver.coverage.databases == {0}


def test_a_stranger_who_had_logged_in_has_gone_where_it_said() -> None:
    driver = Driver()
    driver.session = session = Session(driver.ground, stranger=True)
    session.receive(encode([b"SELECT", b"3"]) + encode([b"EXPIREMEMBER", b"k", b"m", b"1000"]), NOW)
    session.login()
    session.resume(NOW)
    assert driver.coverage.databases == {0, 3}


def test_keys_that_a_transaction_will_expire_are_found_and_bounded() -> None:
    expire, at = [b"EXPIREMEMBER", b"k", b"m", b"10"], [b"pexpirememberat", b"l" * 1024, b"m", b"10"]
    data = encode([b"MULTI"]) + encode(expire) + encode(at)
    assert keys_expected(data, in_transaction=False) == {b"k", b"l" * 1024}
    assert keys_expected(encode(expire), in_transaction=True) == {b"k"}
    assert not keys_expected(encode(expire), in_transaction=False)
    hostile = b"x\r\nMULTI\r\n" + b"".join(b"EXPIREMEMBER\r\n$%d\r\n" % (10 ** (n % 9)) for n in range(50_000))
    assert sum(map(len, keys_expected(hostile, in_transaction=True))) <= EXPECTED_AT_MOST * 1024


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("HGETEX k FIELDS 1 a", False), ("HGETEX k PERSIST FIELDS 1 a", False), ("hgetex k EX 10 FIELDS 1 a", True),
        ("HSETEX k KEEPTTL FIELDS 1 a 1", False), ("HSETEX k FIELDS 1 a 1 pxat 10", True), ("HGETEX k", False),
        ("SADDEX k MEMBERS 1 10", False), ("SADDEX k 10 a", True), ("saddex k keepttl 10 a", True),
        ("SADDEX k MEMBERS 1 a EXAT 1", True), ("HEXPIRE k x FIELDS 1 a", True),
    ],
)  # fmt: skip
def test_only_what_comes_with_a_time_is_found(line: str, counts: bool) -> None:
    """Of words that need not set a deadline."""
    data = encode([b"MULTI"]) + encode([b"SET", b"x", b"EXPIRE"]) + encode(line.encode().split())
    assert keys_expected(data, in_transaction=False) == ({b"k"} if counts else frozenset())


def test_more_keys_are_watched_than_are_remembered() -> None:
    """What is due in any key is removed then before EXEC; what they take is counted, and given back."""
    driver = Driver("k")
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
    rewriter = Rewriter(names, driver.coverage, ServerCommands())
    driver.ground = Ground(rewriter, driver.coverage, 1 << 30)
    driver.session = Session(driver.ground)
    driver.feed(encode([b"MIGRATE", b"127.0.0.1", b"7000", b"k", b"0", b"5000"]))
    assert [question.leftover for question in driver.questions if question.leftover] == [(b"k",)]
    assert b"KEYS" in driver.sent
    assert b"k:{k}" in driver.sent


def check_nothing_is_left_of_a_session() -> None:
    """Without the garbage collector nothing is kept of a client that ends with a guarded read under way."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("proxy.session.ground.PLAIN", {b"HGET"})
        patched.setattr("proxy.session.reads.PLAIN", {b"HGET"})
        driver = Driver("k")
        gc.collect()
        gc.disable()
        try:
            driver.session.receive(encode([b"HGET", b"k", b"f"]) * 30, NOW)
            assert driver.session.reads.under_way == 1
            session = driver.session
            session.close()
            driver.session = Session(driver.ground)
            del session
            left = sum(type(thing) is Reads for thing in gc.get_objects())
        finally:
            gc.enable()
    assert left == 1


def test_nothing_is_left_of_a_session() -> None:
    check_nothing_is_left_of_a_session()
