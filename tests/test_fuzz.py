"""Odd bytes, from anybody, at any cut: the proxy answers as the server does, and nothing is left of them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from proxy.commands.described import ServerCommands
from proxy.wire.request import RequestReader, encode
from tests.fuzz_bytes import RESERVED, End, Excuse, Generator, Stand, Stream, excuse, fuzz, shortest
from tests.servers import halt

pytestmark = pytest.mark.every_kind

COUNTED: Final = b"EVAL return(redis.call('hincrby',KEYS[1],ARGV[1],1)) 1 life d%d\r\n"
"""Waits for the engine, as the key is known."""

CORPUS: list[Stream] = [
    # hiredis knows types that no request has: one of them raised TypeError in it, another took all memory.
    Stream(b"*1\r\n%1\r\n*0\r\n+a\r\n", end=End.CLOSE),
    Stream(b"*1\r\n%1\r\n*0\r\n"),
    Stream(b"*3\r\n*1\r\n+\r\n%1\r\n*0\r\n"),
    Stream(b"*1\r\n>300000000\r\n"),
    Stream(b"*1\r\n>300000000\r\n", end=End.WAIT),
    Stream(b"*1\r\n%300000000\r\n"),
    Stream(b"%1\r\n*0\r\n+a\r\n", end=End.ECHO),
    # Valkey 8 reads what follows a line of blanks as an inline request.
    Stream(b" \nSADD set a\n", end=End.ECHO),
    Stream(b" \n*3\r\n$4\r\nHDEL\r\n$4\r\nlife\r\n$2\r\nd1\r\n"),
    Stream(b"\t\n*4\r*$4\r$Hdel$1$4\r\nlife\r\n$2\r*d1*1$2\r\n$4\r\n"),
    Stream(b"CLIENT REPLY SKIP\r\n \r\nPING\r\nPING\r\n", end=End.ECHO),
    Stream(b"CLIENT REPLY SKIP\r\n\t\n*3\r\n$4\r\nSADD\r\n$3\r\nset\r\n$1\r\na\r\nPING\r\n"),
    # Newer Valkeys refuse a line that does not end in CRLF.
    Stream(b"*3\rx$4\r\nSADD\r\n$3\r\nset\r\n$1\r\nz\r\n"),
    Stream(b"*1\rx$6\r\nDBSIZE\r\n"),
    Stream(b"*4\rx$4\r\nHDEL\r\n$4\rxlife\r\n$2\r\nd1xx$2\r\nd2\n\r" + b"HSET life d1 1 d2 2\n"),
    # A line that is too long is refused, and what ends it is not read.
    Stream(b"SADD set ".ljust(300_000, b"v") + b"\nPING\n"),
    Stream(b"SADD set ".ljust(65_537, b"v") + b"\nPING\n", cuts=(65_537,), end=End.RESET),
    # Of a string that the server refuses for its length, nothing but the head can be judged.
    Stream(b"*4\r\n$4\r\nZADD\r\n$4\r\nzset\r\n$954775807\r\n"),
    # Not even the server's error comes before the byte behind a carriage return.
    Stream(b"*2\r\n$4\r\nLPOP\r\nx\r"),
    # The client, or the server, has gone when the engine has answered.
    Stream(b"HINCRBY life d1 1\r\nHINCRBY life d2 1\r\n", end=End.RESET),
    Stream(COUNTED % 1 + COUNTED % 2, end=End.RESET),
    Stream(b"HINCRBY life d1 1\r\nQUIT\r\nHINCRBY life d2 1\r\n"),
    Stream(COUNTED % 1 + b"QUIT\r\n" + COUNTED % 2),
    Stream(b"QUIT\r\nHINCRBY life d1 1\r\nSADD set z\r\n", end=End.WAIT),
    Stream(b"QUIT\r\n" + COUNTED % 1 + b"SADD set z\r\n", end=End.WAIT),
    # Valkey 9 takes an argument that goes on behind a quoted part; Valkey from 8.1 leaves out bytes 0xff.
    Stream(b'""6\ndbsize\n'),
    Stream(b'get "a"b\r\nHDEL life d1\r\nHSET life d1 new\r\n'),
    Stream(b"HD\xffEL life d1\r\nHSET li\xfffe d\xff1 new\r\n"),
    # A server takes a line however long of which it has read the end; the proxy does not.
    Stream(b"SADD set ".ljust(70_000, b"v") + b"\nHDEL life d1\nHSET life d1 new\n"),
    Stream(b"*3\r\n=3\r\nSET\r\n$1\r\nx\r\n$70000\r\n" + b"v" * 70_000 + b"\r\nDEL zset\r\n"),
    # Some servers refuse a password without a word when another reply waits to be sent.
    Stream(b"GET a\r\nAUTH wrong\r\nGET a\r\n"),
    Stream(b"GET a\r\nAUTH wrong\r\nGET a\r\n", cuts=(7,)),
    # A server drops a client that ends its side while it waits; the proxy ends upstream only when its turn has come.
    Stream(b"BLPOP x 0.01\r\nHINCRBY life d4 1\r\nSADD set d2\r\n"),
    Stream(b"BLPOP x 0.01\r\n" + COUNTED % 4 + b"SADD set d2\r\n"),
    Stream(b"CLIENT REPLY SKIP\r\nHINCRBY life d1 1\r\nHINCRBY life d2 1\r\nPING\r\n", end=End.ECHO),
    Stream(b"HELLO 3\r\nCLIENT TRACKING ON OPTIN\r\nCLIENT CACHING YES\r\nHINCRBY life d1 1\r\nPING\r\n", end=End.ECHO),
    # A server says so when the byte behind the carriage return has come, whatever it is.
    Stream(b"*3\r\n$30000\rH", cuts=(12,)),
    # Of two that ask for no replies, or for replies again, one may have been refused without a word.
    Stream(b"CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nCLIENT REPLY ON\r\nHSET life d9 1\r\nRESET\r\nPING\r\n", end=End.ECHO),
    Stream(
        b"MULTI\r\nCLIENT REPLY OFF\r\nNOSUCH\r\nEXEC\r\nCLIENT REPLY OFF\r\nPING\r\nEVAL return 1 life\r\nRESET\r\n"
        b"PING\r\n",
        end=End.ECHO,
    ),
    Stream(
        b"SUBSCRIBE a\r\nUNSUBSCRIBE a\r\nCLIENT REPLY OFF\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\n"
        b"HINCRBY life d1 1\r\nPING\r\n",
        end=End.ECHO,
    ),
    # A server that has been told to be silent refuses without a word, and waits for the client's end.
    Stream(b"CLIENT REPLY OFF\r\n*1\r\n$4294967296\r\n"),
    Stream(b"CLIENT REPLY OFF\r\n*1\r\n$4294967296\r\n", end=End.WAIT),
    Stream(b"CLIENT REPLY SKIP\r\n*1\r\n$4294967296\r\nabc", cuts=(33,)),
    Stream(b"2\nCLIENT REPLY OFF\nHINCRBY life\n*\r$", end=End.WAIT),
    # With a member these ask the proxy.
    Stream(b"persist set a\r\nTTL set a x\r\nPING\r\n"),
    Stream(b"MULTI\r\nTTL set a\r\nDEL set\r\nEXEC\r\n"),
]
"""Streams that failed once, or would have."""

Stands = Callable[[str, bool], Stand]


@pytest.fixture(scope="module")
def stands() -> Iterator[Stands]:
    """Give the stand for a kind of server, with or without a password, which all tests of this module share."""
    started: dict[tuple[str, bool], Stand] = {}
    with ExitStack() as stack:

        def get(kind: str, password: bool) -> Stand:
            if (kind, password) not in started:
                started[kind, password] = stack.enter_context(Stand(kind, password=password))
            return started[kind, password]

        yield get


@pytest.fixture(params=[False, True], ids=["open", "password"])
def stand(kind: str, request: pytest.FixtureRequest, stands: Stands) -> Stand:
    """Two servers of every kind, one of them behind the proxy."""
    return stands(kind, request.param)


def test_streams_that_have_failed_once(stand: Stand) -> None:
    for login in (True, False) if stand.password else (True,):
        for stream in CORPUS:
            once = Stream(stream.data, stream.cuts, stream.end, login)
            stand.check([once])
            bytewise = Stream(stream.data[:60], tuple(range(60)), stream.end, login)
            stand.check([bytewise])
    stand.at_rest()


def test_any_bytes_get_the_replies_of_the_server(stand: Stand) -> None:
    reports: list[str] = []
    seed = int(os.environ.get("FUZZ_SEED", "7"))
    fuzz(stand, 300, seed, reports.append, most=1)
    assert not reports, "\n".join(reports)


def test_no_framing_gets_a_reserved_name_past_the_proxy(stand: Stand) -> None:
    generator = Generator(11, password=stand.password, reserved=True)
    stand.guards([generator.stream() for _ in range(100)])


@pytest.mark.parametrize(
    "line",
    [
        b'get "a"b\r\nSET %b v\r\n' % RESERVED,
        b'SET "%b"%b v\r\n' % (RESERVED[:9], RESERVED[9:]),
        b"SET %b\xff%b v\r\n" % (RESERVED[:9], RESERVED[9:]),
        b'SET "%b\\\xff%b" v\r\n' % (RESERVED[:9], RESERVED[9:]),
    ],
)
def test_no_quoting_gets_a_reserved_name_past_the_proxy(stand: Stand, line: bytes) -> None:
    stand.guards([Stream(line)])


_PIECES = (
    *(bytes([byte]) for byte in b"\"\"''\\ab1xn \t\v\f\r\xff\xff"),
    b'"a"',
    b"'b'",
    b'\\"',
    b"\\'",
    b"\\x41",
    b"\\xff",
)


def test_a_line_is_split_as_the_server_splits_it(kind: str, stands: Stands) -> None:
    server = stands(kind, False).straight
    rng = random.Random(23)
    refused = 0
    with server.connect() as control:
        words = control.command("HELLO").split(b"\r\n")[2::2]
        commands = ServerCommands()
        commands.read_greeting(dict(zip(words[::2], words[1::2], strict=False)))
        for _ in range(700):
            line = b"RPUSH split z " + b"".join(rng.choices(_PIECES, k=rng.randrange(1, 10))) + b"\n"
            reader = RequestReader(quoting=commands.quoting)
            reader.feed(line)
            read = reader.next_request()
            assert read is not None
            control.command("DEL", "split")
            with server.connect() as client:  # which the server closes if it refuses the line
                client.send(line)
                reply = client.reply()
            if reply.startswith(b"-"):
                refused += 1
                assert read.arguments == [], line
            else:
                members = read.arguments[2:]
                expected = b"*%d\r\n" % len(members) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in members)
                assert control.command("LRANGE", "split", 0, -1) == expected, line
    assert 0 < refused < 700


@pytest.mark.long
def test_two_hundred_thousand_streams(stand: Stand, request: pytest.FixtureRequest) -> None:
    kinds = sum(item.name.startswith("test_two_hundred") for item in request.session.items)
    reports: list[str] = []
    fuzz(stand, 200_000 // kinds, int(os.environ.get("FUZZ_SEED", "17")), reports.append)
    assert not reports, "\n".join(reports)


def test_a_stream_is_made_as_short_as_possible() -> None:
    stream = Stream(b"PING\r\nSADD set a\r\nPING\r\n", cuts=(3, 9, 12), end=End.ECHO)
    assert shortest(stream, lambda one: b"SADD" in one.data) == Stream(b"SADD", cuts=(), end=End.HALF)
    assert shortest(stream, lambda one: len(one.pieces()) > 1 and one.data.startswith(b"P")).data == b"P\n"


def test_what_was_dropped_has_run_before_the_data_is_made_anew(kind: str, stands: Stands) -> None:
    stand = stands(kind, False)
    stand.prepare()
    halt(stand.proxy.pid)
    later = threading.Timer(0.2, os.kill, (stand.proxy.pid, signal.SIGCONT))
    later.start()
    try:
        for lane in stand.lanes:
            lane.drop()
            lane.open(login=False)
            lane.send(encode([b"DEL", b"zset"]))
            lane.drop()
        stand.settle()
        stand.prepare()
        stand.data()
    finally:
        later.join()
    stand.at_rest()


_WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
_TOO_LONG = b"-ERR Protocol error: too big inline request\r\n"
_LARGE = b"$70000\r\n" + b"v" * 60_000
_LAST = b"-ERR Protocol error: invalid multibulk length\r\n"
_ARITY = b"-ERR wrong number of arguments for 'ttl' command\r\n"


@pytest.mark.parametrize(
    ("stream", "theirs", "ours", "reason"),
    [
        (b"PING\n", b"+PONG\r\n", b"", Excuse.NONE),
        (b"PING\n", b"", b"+PONG\r\n", Excuse.NONE),
        (b"GET a\nAUTH x\n", b"$-1\r\n" + _WRONG, b"$-1\r\n", Excuse.REPLIES),
        (b"GET a\nAUTH x\n", b"$-1\r\n", b"$-1\r\n" + _WRONG, Excuse.REPLIES),
        (b"AUTH x\nGET a\n", _WRONG + b"$-1\r\n", b"$-1\r\n", Excuse.NONE),
        (b"GET a\nAUTH x\n", b"$-1\r\n" + _WRONG, b":1\r\n", Excuse.NONE),
        (b"PING\n" + b"v" * 65_537 + b"\n", b"+PONG\r\n-ERR unknown\r\n", b"+PONG\r\n" + _TOO_LONG, Excuse.DATA),
        (b"PING\n" + b"v" * 65_537 + b"\n", b"+OK\r\n-ERR unknown\r\n", b"+PONG\r\n" + _TOO_LONG, Excuse.NONE),
        (b"PING\n" + b"v" * 65_537 + b"\n", b"+PONG\r\n" + _TOO_LONG, b"+PONG\r\n-ERR unknown\r\n", Excuse.NONE),
        (b"PING\n" + b"v" * 65_536 + b"\n", b"+PONG\r\n-ERR unknown\r\n", b"+PONG\r\n" + _TOO_LONG, Excuse.NONE),
        (b"TTL k m\nPING\n", _ARITY + b"+PONG\r\n", b":-2\r\n+PONG\r\n", Excuse.DATA),
        (b"TTL k m\nPING\n", _ARITY + b"+PONG\r\n", b"+QUEUED\r\n+QUEUED\r\n", Excuse.DATA),
        (b"TTL k m\nPING\n", _ARITY + b"+PONG\r\n", b":-2\r\n", Excuse.NONE),
        (b"TTL k m\nPING\n", _ARITY + b"+PONG\r\n", b":-2\r\n:1\r\n", Excuse.NONE),
        (b"TTL k m\nPING\n", _ARITY + b"+PONG\r\n", b"+PONG\r\n+PONG\r\n", Excuse.NONE),
        (b"TTL k\n", b":-2\r\n", _ARITY, Excuse.NONE),
        (b"GET str\n*x\r\n", _LARGE, _LARGE + _LAST, Excuse.REPLIES),
        (b"GET str\n*x\r\n", _LARGE + _LAST, _LARGE, Excuse.REPLIES),
        (b"GET str\nPING\n", _LARGE + b"+PONG\r\n", _LARGE, Excuse.NONE),
        (b"PING\n*x\r\n", b"+PONG\r\n" + _LAST, b"+PONG\r\n", Excuse.NONE),
        (b"BLPOP x 1\nPING\n", b"", b"*-1\r\n+PONG\r\n", Excuse.DATA),
        (b"BLPOP x 1\nPING\n", b"*-1\r\n+PONG\r\n", b"*-1\r\n$-1\r\n", Excuse.NONE),
    ],
)
def test_no_other_difference_is_excused(stream: bytes, theirs: bytes, ours: bytes, reason: Excuse) -> None:
    assert excuse(stream, theirs, ours, spares_words=True) is reason


def test_words_are_not_missed_where_the_server_does_not_spare_them() -> None:
    assert excuse(b"GET a\nAUTH x\n", b"$-1\r\n", b"$-1\r\n" + _WRONG, spares_words=False) is Excuse.NONE
