"""Odd bytes, from anybody, at any cut: the proxy answers as the server does, and nothing is left of them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from proxy.commands.described import ServerCommands
from proxy.wire.request import RequestReader
from tests.fuzz_bytes import RESERVED, End, Generator, Stand, Stream, fuzz, shortest

pytestmark = pytest.mark.every_kind

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
    Stream(b"HINCRBY life d1 1\r\nQUIT\r\nHINCRBY life d2 1\r\n"),
    Stream(b"QUIT\r\nHINCRBY life d1 1\r\nSADD set z\r\n", end=End.WAIT),
    # Valkey 9 takes an argument that goes on behind a quoted part; Valkey from 8.1 leaves out bytes 0xff.
    Stream(b'""6\ndbsize\n'),
    Stream(b'get "a"b\r\nHDEL life d1\r\nHSET life d1 new\r\n'),
    Stream(b"HD\xffEL life d1\r\nHSET li\xfffe d\xff1 new\r\n"),
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
    for login in (True, False):
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
            request = reader.next_request()
            assert request is not None
            control.command("DEL", "split")
            with server.connect() as client:  # which the server closes if it refuses the line
                client.send(line)
                reply = client.reply()
            if reply.startswith(b"-"):
                refused += 1
                assert request.arguments == [], line
            else:
                members = request.arguments[2:]
                expected = b"*%d\r\n" % len(members) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in members)
                assert control.command("LRANGE", "split", 0, -1) == expected, line
    assert 0 < refused < 700


@pytest.mark.long
def test_two_hundred_thousand_streams(stand: Stand, request: pytest.FixtureRequest) -> None:
    kinds = sum(item.name.startswith("test_two_hundred") for item in request.session.items)
    reports: list[str] = []
    fuzz(stand, 200_000 // kinds, 17, reports.append)
    assert not reports, "\n".join(reports)


def test_a_stream_is_made_as_short_as_possible() -> None:
    stream = Stream(b"PING\r\nSADD set a\r\nPING\r\n", cuts=(3, 9, 12), end=End.ECHO)
    assert shortest(stream, lambda one: b"SADD" in one.data) == Stream(b"SADD", cuts=(), end=End.HALF)
    assert shortest(stream, lambda one: len(one.pieces()) > 1 and one.data.startswith(b"P")).data == b"P\n"
