"""The bytes: requests are read at the boundaries at which Redis reads them, whatever the cuts; replies put in place."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.session.plain import frequent_reads
from proxy.wire.batch import BatchParser, request_size, requests_size
from proxy.wire.pattern import LONGEST, MOST, requests_pattern
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import (
    COPIED,
    INLINE_LIMIT,
    Blanks,
    Kind,
    Quoting,
    RequestReader,
    encode,
    split_inline,
    strict_integer,
)
from tests.servers import ROOT
from tests.streams import commands, cuts, streams


def read(pieces: list[bytes], blanks: Blanks = Blanks.EMPTY) -> tuple[list[tuple[Kind, list[bytes], bytes]], int]:
    reader = RequestReader(blanks)
    requests = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next_request()) is not None:
            requests.append((request.kind, request.arguments, request.raw))
    return requests, reader.held


@pytest.fixture(params=[COPIED, 10], ids=["copied", "front kept"])
def copied(request: pytest.FixtureRequest) -> Iterator[int]:
    """Beyond how many bytes what has been read of a request is not copied again: as it is, and of nearly every one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.wire.request.COPIED", request.param)
        yield request.param


@pytest.mark.usefixtures("copied")
@given(st.sampled_from(Blanks), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_gives_the_same_requests(blanks: Blanks, data: st.DataObject) -> None:
    stream = data.draw(streams)
    whole, held = read([stream], blanks)
    cut, held_of_cut = read(data.draw(cuts(stream)), blanks)

    def judged(requests: list[tuple[Kind, list[bytes], bytes]]) -> list[tuple[list[bytes], bytes]]:
        return [(arguments, raw) for kind, arguments, raw in requests if kind is Kind.WHOLE]

    def rest(requests: list[tuple[Kind, list[bytes], bytes]]) -> bytes:
        return b"".join(raw for kind, _, raw in requests if kind is Kind.BROKEN)

    assert judged(cut) == judged(whole)
    assert held_of_cut == held
    assert rest(cut) == rest(whole)


@given(st.lists(commands, min_size=1, max_size=30))
def test_what_is_encoded_is_read_back(requests: list[list[bytes]]) -> None:
    stream = b"".join(map(encode, requests))
    assert [arguments for _, arguments, _ in read([stream])[0]] == requests


@given(st.lists(commands, min_size=1, max_size=400))
def test_the_batch_parser_reads_what_the_reader_reads(requests: list[list[bytes]]) -> None:
    stream = b"".join(map(encode, requests)) + b"*2\r\n$3\r\nGE"
    parsed = BatchParser().parse(stream)
    if parsed is None:
        assert re.search(rb"[~|]", stream)  # what looks like another RESP type is left to the reader
        return
    assert parsed == (requests, False)
    assert sum(map(request_size, requests)) == len(stream) - 10


@given(streams)
def test_the_batch_parser_takes_nothing_that_the_reader_reads_otherwise(stream: bytes) -> None:
    parsed = BatchParser().parse(stream)
    if parsed is None:
        return
    for ours, (kind, arguments, raw) in zip(parsed[0], read([stream])[0], strict=False):
        if kind is Kind.BROKEN:
            assert set(map(type, ours)) != {bytes} or b"+ok" in raw  # the server closes here
            return
        assert ours == arguments
        assert request_size(ours) == len(raw)


PATTERN = requests_pattern([b"GET", b"get", b"HSET", b"ZADD"])

frequent = st.lists(
    st.builds(
        lambda name, arguments: [name, *arguments],
        st.sampled_from([b"GET", b"get", b"HSET", b"ZADD"]),
        st.lists(st.binary(max_size=20) | st.integers(0, LONGEST).map(bytes), min_size=1, max_size=MOST - 1),
    ),
    min_size=1,
    max_size=20,
)


@given(frequent)
def test_the_pattern_matches_frequent_requests(requests: list[list[bytes]]) -> None:
    stream = b"".join(map(encode, requests))
    assert PATTERN.fullmatch(stream)
    whole = PATTERN.match(stream + stream[:-1])
    assert whole
    assert whole.end() == len(stream) + sum(len(encode(request)) for request in requests[:-1])


@pytest.mark.parametrize(
    "request_",
    [
        encode([b"GET"]),
        encode([b"GETS", b"a"]),
        encode([b"Get", b"a"]),
        encode([b"GET", bytes(LONGEST + 1)]),
        encode([b"GET", *[b"a"] * MOST]),
        b"GET a\r\n",
        b"*2\r\n$3\r\nGET\r\n$01\r\na\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\naa\r\n",
        b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r",
        b"*2\r\n$3\r\nGET\r\n$1\r\nabc",
        b"*02\r\n$3\r\nGET\r\n$1\r\na\r\n",
        b"*2\n$3\nGET\n$1\na\n",
        b"",
    ],
)
def test_the_pattern_leaves_what_is_unusual(request_: bytes) -> None:
    assert not PATTERN.fullmatch(request_)
    assert not PATTERN.fullmatch(encode([b"GET", b"a"]) + request_ + encode([b"GET", b"a"])) or not request_


@settings(max_examples=500)
@given(frequent, st.data())
def test_the_pattern_frames_as_the_reader_does(requests: list[list[bytes]], data: st.DataObject) -> None:
    stream = b"".join(map(encode, requests))
    for _ in range(data.draw(st.integers(0, 3))):  # bytes changed, dropped or doubled
        at = data.draw(st.integers(0, len(stream)))
        end = min(len(stream), at + data.draw(st.integers(0, 3)))
        stream = stream[:at] + data.draw(st.sampled_from([b"", b"0", b"9", b"\r\n", b"$1\r\n", b"x"])) + stream[end:]
    whole = PATTERN.match(stream)
    framed = stream[: whole.end()] if whole else b""
    found, held = read([framed])
    assert {kind for kind, _, _ in found} <= {Kind.WHOLE}
    assert b"".join(raw for _, _, raw in found) == framed
    assert held == 0
    assert all(arguments[0] in (b"GET", b"get", b"HSET", b"ZADD") for _, arguments, _ in found)


@given(frequent, st.binary(min_size=1, max_size=1))
def test_the_pattern_ends_where_an_argument_begins_with_a_certain_byte(
    requests: list[list[bytes]], never: bytes
) -> None:
    pattern = requests_pattern([b"GET", b"get", b"HSET", b"ZADD"], never)
    fit = list(takewhile(lambda request: not any(word.startswith(never) for word in request[1:]), requests))
    whole = pattern.match(b"".join(map(encode, requests)))
    assert (whole.group() if whole else b"") == b"".join(map(encode, fit))


COMPILED = """
import importlib, pkgutil, re, re._parser
import proxy
from proxy.wire import pattern

pattern.POSSESSIVE = False
compiled, patterns = re.compile, []
re.compile = lambda text, flags=0: patterns.append((text, flags)) or compiled(text, flags)
for module in pkgutil.walk_packages(proxy.__path__, "proxy."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

def possessive(parsed):
    for name, value in parsed:
        if str(name) == "POSSESSIVE_REPEAT" and (len(value[2]) > 1 or str(value[2][0][0]) in ("SUBPATTERN", "BRANCH")):
            yield value
        for part in value if isinstance(value, (tuple, list)) else [value]:
            for each in part if isinstance(part, list) else [part]:
                if isinstance(each, re._parser.SubPattern):
                    yield from possessive(each)

for text, flags in patterns:
    assert not list(possessive(re._parser.parse(text, int(flags)))), text[:200]
assert len(patterns) > 20
"""


def test_nothing_is_left_to_what_old_pythons_have_wrong() -> None:
    """A possessive repetition of a group (python/cpython issue 106052): there, `at_once` says it otherwise."""
    done = subprocess.run([sys.executable, "-c", COMPILED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.usefixtures("copied")
def test_a_long_request_can_be_passed_on_before_it_is_complete() -> None:
    stream = encode([b"SET", b"key", b"v" * 100_000, b"EX", b"10"]) + encode([b"PING"])
    reader = RequestReader()
    reader.feed(stream[:50_000])
    assert reader.next_request() is None
    head = reader.take_head()
    assert head is not None
    assert (head.kind, head.arguments, head.count) == (Kind.HEAD, [b"SET", b"key"], 5)
    assert reader.within
    raw = head.raw
    requests = []
    for begin in range(50_000, len(stream), 7):
        reader.feed(stream[begin : begin + 7])
        while (request := reader.next_request()) is not None:
            requests.append(request)
    assert raw + b"".join(request.raw for request in requests) == stream
    assert requests[-1].arguments == [b"PING"]
    assert {request.kind for request in requests[:-1]} == {Kind.BODY}
    assert not reader.within


@pytest.mark.usefixtures("copied")
def test_a_head_is_what_has_come_of_a_request_whose_front_is_kept() -> None:
    stream = encode([b"MSET", *(b"%d" % number for number in range(100_000))]).replace(b"*100001", b"*100002")
    reader = RequestReader()
    held = b""
    for begin in range(0, len(stream), 1000):
        reader.feed(stream[begin : begin + 1000])
        held += stream[begin : begin + 1000]
        assert reader.next_request() is None
        assert reader.held == len(held)
    head = reader.take_head()
    assert head is not None
    assert (head.raw, reader.held) == (held, 0)


@pytest.mark.parametrize(
    ("end", "unread"),
    [(b"", b""), (b"$x\r\n", b""), (b"$1\rx", b"a\r\n")],
    ids=["cut off", "broken", "broken at a line's end"],
)
def test_nothing_of_a_kept_front_is_lost(end: bytes, unread: bytes) -> None:
    wanted = encode([b"MSET", *(b"%d" % number for number in range(50_000))]).replace(b"*50001", b"*50002") + end
    stream = wanted + unread
    reader = RequestReader(strict=True)
    found = b""
    for begin in range(0, len(stream), 1000):
        reader.feed(stream[begin : begin + 1000])
        while (broken := reader.next_request()) is not None:
            found += broken.raw
    assert found + reader.rest() == wanted


def test_a_client_that_sends_byte_by_byte_costs_no_copies_of_what_came_before() -> None:
    """Copied at each byte this would be 200 GB."""
    stream = encode([b"MSET", *(b"%d" % number for number in range(2_000_000))])
    reader = RequestReader()
    reader.feed(stream[: 20 << 20])
    assert reader.next_request() is None
    began = time.process_time()
    for place in range(20 << 20, (20 << 20) + 10_000):
        reader.feed(stream[place : place + 1])
        assert reader.next_request() is None
    assert time.process_time() - began < 2


def test_a_long_request_that_breaks_is_passed_on_as_broken() -> None:
    reader = RequestReader()
    reader.feed(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n")
    assert reader.next_request() is None
    assert reader.take_head() is not None
    reader.feed(b":5\r\nSET")
    broken = reader.next_request()
    assert broken is not None
    assert broken.kind is Kind.BROKEN
    assert reader.broken


PING = encode([b"PING"])


@pytest.mark.parametrize(
    ("blanks", "stream", "requests"),
    [
        # What is sent on instead of the blanks leaves no server in doubt how to read what follows.
        (Blanks.EMPTY, b" \n" + PING, [([], b"\r\n"), ([b"PING"], PING)]),
        (Blanks.NOTHING, b" \n" + PING, [([], b""), ([b"PING"], PING)]),
        (Blanks.INLINE, b" \n*1\r\nPING\r\n", [([b"*1"], b" *1\r\n"), ([b"PING"], b"PING\r\n")]),
        (Blanks.INLINE, b" \n\t\r\n\v\n*1 a\n" + PING, [([b"*1", b"a"], b" *1 a\n"), ([b"PING"], PING)]),
        (Blanks.INLINE, b"\r\r\nPING\n" + PING, [([b"PING"], b"PING\n"), ([b"PING"], PING)]),
        (Blanks.INLINE, b" \n\r\n" + PING, [([], b"\r\n"), ([b"PING"], PING)]),
        (Blanks.INLINE, b' \n*"a\r\nPING\r\n', [([], b' *"a\r\nPING\r\n')]),
        (Blanks.INLINE, b" \n*1\0\r\nPING\r\n", [([], b" *1\0\r\nPING\r\n")]),
    ],
)
def test_a_line_of_blanks_is_read_as_the_server_reads_it(
    blanks: Blanks, stream: bytes, requests: list[tuple[list[bytes], bytes]]
) -> None:
    read_at_once, held = read([stream], blanks)
    assert [(arguments, raw) for _, arguments, raw in read_at_once] == requests
    assert not held
    bytewise, _ = read([stream[at : at + 1] for at in range(len(stream))], blanks)
    assert [arguments for _, arguments, _ in bytewise if arguments] == [each for each, _ in requests if each]
    assert b"".join(raw for _, _, raw in bytewise) == b"".join(raw for _, raw in requests)


def test_blanks_without_end_are_not_kept() -> None:
    reader = RequestReader(Blanks.INLINE)
    for _ in range(1000):
        reader.feed(b" \n")
        assert reader.next_request() is None
        assert 0 < reader.held < 4
    reader.feed(b"*1\r.$4\r.PING..")
    assert reader.next_request() is None
    assert reader.rest() == b" *1\r.$4\r.PING.."  # what is not complete as a line must not be so as an array


@pytest.mark.parametrize("blanks", Blanks)
@pytest.mark.parametrize(
    ("stream", "rest"), [(PING, b""), (b"*1\r\nx", b""), (b"GE", b"GE"), (b"*1\r\n$4\r", b"*1\r\n$4\r")]
)
def test_the_rest_is_what_has_not_been_sent_on(blanks: Blanks, stream: bytes, rest: bytes) -> None:
    reader = RequestReader(blanks)
    reader.feed(stream)
    while reader.next_request():
        pass
    assert reader.rest() == rest


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\nPING\r\n"])
def test_nothing_follows_a_line_that_is_too_long(end: bytes) -> None:
    line = b"SADD k ".ljust(INLINE_LIMIT + 1, b"v")
    for pieces in ([line + end], [line, end, end], [line[:100], line[100:] + end]):
        requests, held = read([piece for piece in pieces if piece])
        assert {kind for kind, _, _ in requests} == {Kind.BROKEN}
        assert b"".join(raw for _, _, raw in requests) == line
        assert not held
    shorter = line[:-1] + b"\r"
    assert read([shorter[:-1], b"\n"])[0] == [(Kind.WHOLE, shorter[:-1].split(), shorter[:-1] + b"\n")]


@pytest.mark.parametrize(
    ("stream", "odd"),
    [
        (b"*1\r\n$4\r\nPING\r\n", False),
        (b"*1\rx$4\r\nPING\r\n", True),
        (b"*1\r\n$4\rxPING\r\n", True),
        (b"*1\r\n$4\r\nPINGx\n", True),
        (b"*1\r\n$4\r\nPING\r\r", True),
        (b"PING\n", False),
    ],
)
def test_line_ends_that_newer_servers_refuse_are_told(stream: bytes, odd: bool) -> None:
    reader = RequestReader()
    for at in range(len(stream)):
        reader.feed(stream[at : at + 1])
        request = reader.next_request()
        assert (request is None) == (at < len(stream) - 1)
    assert request is not None
    assert request.odd is odd
    reader.feed(PING)
    following = reader.next_request()
    assert following is not None
    assert not following.odd


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        (b"", []),
        (b"  PING  ", [b"PING"]),
        (b"set k 'a b'", [b"set", b"k", b"a b"]),
        (rb'set "\x41\n\t\\\"" x', [b"set", b'A\n\t\\"', b"x"]),
        (rb"set 'it\'s' \x41", [b"set", b"it's", rb"\x41"]),
        (b"a\vb c", [b"a\vb", b"c"]),
        (b'a"b"', [b"ab"]),
        (b'a "b"c', None),
        (b"a 'b", None),
        (b'a "b', None),
        (b'a ""', [b"a", b""]),
    ],
)
def test_inline_requests_are_split_as_redis_does(line: bytes, arguments: list[bytes] | None) -> None:
    assert split_inline(line) == arguments


@pytest.mark.parametrize(
    ("line", "dropping", "joining"),
    [
        (b'a "b"c', None, [b"a", b"bc"]),
        (b"""a 'b'"c" 'd'""", None, [b"a", b"bc", b"d"]),
        (b'a "b"\vc', [b"a", b"b", b"c"], [b"a", b"b\vc"]),
        (b'a "b', None, None),
        (b'a "b\\"', None, [b"a", b"b\\"]),
        (b"a 'b\\'", None, [b"a", b"b\\"]),
        (b'a "b\\" "', [b"a", b'b" '], [b"a", b'b" ']),
        (b"a\xffb \xff", [b"ab", b""], [b"ab", b""]),
        (b"\"\xff\\\xff\\xff\\\\\" '\xff'", [b"\xff\\", b""], [b"\xff\\", b""]),
    ],
)
def test_inline_requests_are_split_as_newer_valkeys_do(
    line: bytes, dropping: list[bytes] | None, joining: list[bytes] | None
) -> None:
    assert split_inline(line, Quoting.DROPPING) == dropping
    assert split_inline(line, Quoting.JOINING) == joining


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0", 0),
        (b"-1", -1),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"9223372036854775808", None),
        (b"", None),
        (b"-", None),
        (b"+1", None),
        (b"01", None),
        (b"-0", None),
        (b" 1", None),
        (b"1.0", None),
        ("٣".encode(), None),
    ],
)
def test_integers_are_read_as_redis_does(text: bytes, value: int | None) -> None:
    assert strict_integer(text) == value


def line_for(request: bytes, quote: bytes) -> bytes:
    """What a server answers to an unknown command."""
    name = request.split(b"\r\n")[2]
    closing = b"`" if quote == b"`" else b"'"
    return b"-ERR unknown command " + quote + name + closing + b", with args beginning with: \r\n"


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([b"+OK\r\n", b"-ERR unknown command 'GRT'\r\n", b"$3\r\n-ER\r\n", b"$-1\r\n", None])),
    st.sampled_from([b"'", b"`"]),
    st.data(),
)
def test_replies_are_put_in_place_at_any_cut(parts: list[bytes | None], quote: bytes, data: st.DataObject) -> None:
    substitution = ReplySubstitution()
    stream, wanted = b"", b""
    for number, part in enumerate(parts):
        if part is None:
            reply = b"-ERR number %d\r\n" % number
            stream += line_for(substitution.expect(reply), quote)
            wanted += reply
        else:
            stream += part
            wanted += part
    passed = b"".join(substitution.receive(piece) for piece in data.draw(cuts(stream or b"x")) if stream)
    assert passed == wanted
    assert not stream or not substitution.outstanding


def test_a_reply_that_never_comes_is_settled_by_a_later_one() -> None:
    substitution = ReplySubstitution()
    substitution.expect(b"-ERR swallowed by a CLIENT REPLY OFF under another name\r\n")
    later = substitution.expect(b"-ERR seen\r\n")
    assert substitution.receive(b"+OK\r\n" + line_for(later, b"'") + b":1\r\n") == b"+OK\r\n-ERR seen\r\n:1\r\n"
    assert not substitution.outstanding


@given(
    st.lists(st.one_of(st.lists(st.binary(max_size=120), min_size=1, max_size=12), st.just([b"x"] * 105)), max_size=4)
)
def test_requests_are_as_long_as_they_were(requests: list[list[bytes]]) -> None:
    assert requests_size(requests) == len(b"".join(map(encode, requests)))


@pytest.mark.parametrize("argument", [b"*x", b"*", b"a\r\n*x", b"\r"])
def test_no_argument_of_a_read_looks_like_the_beginning_of_the_next(argument: bytes) -> None:
    reads = frequent_reads(b"_")
    ordinary = encode([b"HGET", b"k", b"x*"])
    assert reads.fullmatch(ordinary * 2)
    assert (ordinary * 2).count(b"\r\n*") + 1 == 2
    for request in ([b"HGET", b"k", argument], [b"SMEMBERS", argument]):
        assert not reads.fullmatch(encode(request))
