"""Inline requests, which people and health checks send: as fast as others, and judged as others are."""

from __future__ import annotations

import random

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.lines import is_begun, is_lines, lines_end, names
from proxy.wire.request import Kind, Quoting, RequestReader
from tests.conftest import StartProxy
from tests.raw import Raw, request
from tests.servers import Server

pytestmark = pytest.mark.one_kind


def _said(client: Raw, *args: str | bytes | int) -> None:
    assert client.command(*args)[:1] in b"+:*$"


@given(
    st.lists(st.text("aB _*1\"'\\\t\r\v\0\xe9", max_size=6).map(str.encode), min_size=1, max_size=4),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_lines_of_plain_words_are_read_as_servers_read_them(lines: list[bytes], end: bytes) -> None:
    chunk = b"".join(line + end for line in lines)
    if not is_lines(chunk):
        return
    for quoting in Quoting:
        reader = RequestReader(quoting=quoting)
        reader.feed(chunk)
        requests = [reader.next_request() for _ in range(chunk.count(b"\n"))]
        assert all(one is not None and one.kind is Kind.WHOLE and one.arguments for one in requests)
        arguments = [one.arguments for one in requests if one is not None]
        assert [word for one in arguments for word in one] == chunk.split()
        assert {one[0] for one in arguments} == names(chunk)
        assert reader.held == 0


def test_what_has_quotes_is_no_plain_word() -> None:
    for line in (
        b'GET "a"\n',
        b"GET 'a'\n",
        b"GET a\\x41\n",
        b"GET \xff\n",
        b"GET a\tb\n",
        b" GET a\n",
        b"*1\r\n",
        b"\n",
    ):
        assert not is_lines(line), line
        assert lines_end(b"PING\r\n" + line, 100) == 6
        assert not is_begun(line)
    assert is_begun(b"PING\r")
    assert lines_end(b"PING\r\nGET a", 100) == 6
    assert lines_end(b"PING\n" * 100, 12) == 10, "no more than may be looked at"


def test_inline_requests_cost_no_more_than_others(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server)
    process = psutil.Process(proxy.pid)

    def cost(ping: bytes, depth: int) -> float:
        with proxy.connect() as client:
            before = sum(process.cpu_times()[:2])
            for _ in range(16_000 // depth):
                client.send(ping * depth)
                client.exactly(7 * depth)
            return sum(process.cpu_times()[:2]) - before

    for depth in (1, 16):
        ratios = sorted(cost(b"PING\r\n", depth) / max(cost(request("PING"), depth), 0.01) for _ in range(5))
        assert ratios[2] < 2, (depth, ratios)
    proxy.stop()


@pytest.mark.parametrize("cut", [1, 65_536])
def test_however_a_long_pipeline_of_lines_is_cut(server: Server, start_proxy: StartProxy, cut: int) -> None:
    """Where a chunk ends within a line the rest of that goes behind its beginning."""
    proxy = start_proxy(server)
    lines = [b"SET a %d\r\n" % number if number % 2 else b"GET a\n" for number in range(20_000)]
    data = b"".join(lines)
    with proxy.connect() as client:
        client.command("PING")
        client.send(b"SET a 0\r\n")
        assert client.reply() == b"+OK\r\n"
        for begin in range(0, len(data), max(cut, 997)):
            client.send(data[begin : begin + max(cut, 997)])
        replies = client.replies(len(lines))
    assert replies[2::2] == [b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(1, 19_999, 2)]
    proxy.stop()


LINES = [
    b"PING\r\n",
    b"ping\n",
    b"GET a\r\n",
    b"get  a \t\n",
    b"SET a 1\r\n",
    b"INCR a\n",
    b"ECHO a\rb\r\n",
    b"ECHO a\vb\r\n",
    b'ECHO "a b\\x41"\r\n',
    b"ECHO 'a\\'b'\n",
    b"\r\n",
    b"ECHO \xc3\xa9\xfe\r\n",
    b"NOSUCH a\r\n",
    b"SADD known m\r\n",
    b"SCARD known\n",
    b"SISMEMBER known gone\r\n",
    b"TTL known m\r\n",
    b"EXPIREMEMBER known m 1000\r\n",
    b"MULTI\r\nINCR a\nEXEC\r\n",
    b"ECHO " + b"y" * 5_000 + b"\r\n",
    request("GET", "a"),
    request("PING"),
    request("SADD", "known", "m"),
    request("ECHO", b"PING\r\n"),
]


@pytest.mark.parametrize("seed", range(4))
def test_inline_requests_among_others(server: Server, start_proxy: StartProxy, seed: int) -> None:
    """However they are mixed and cut, they are answered as by a server that knows the commands."""
    proxy = start_proxy(server)
    chance = random.Random(seed)
    with proxy.connect() as client, proxy.connect() as reference:
        for one in (client, reference):
            _said(one, "SADD", "known", "m", "gone")
        _said(client, "EXPIREMEMBER", "known", "gone", -1)
        _said(client, "EXPIREMEMBER", "known", "m", 1000)
        for _ in range(60):
            lines = [chance.choice(LINES) for _ in range(chance.randint(1, 40))]
            data = b"".join(lines)
            said = []
            for one, size in ((reference, 1), (client, len(data))):
                _said(one, "SET", "a", 1)
                _said(one, "PERSIST", "known", "m")
                if size == 1:
                    pieces = lines  # each is judged by itself
                else:
                    ends = sorted(chance.sample(range(len(data)), min(len(data), chance.randint(0, 3))))
                    pieces = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]
                for piece in pieces:
                    one.send(piece)
                one.send_command("ECHO", "--end--")
                got = b""
                while not got.endswith(b"--end--\r\n"):
                    got += one.some()
                said.append(got)
            assert said[0] == said[1], lines
    proxy.stop()


def test_an_inline_request_on_a_key_with_deadlines_is_judged(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server)
    with proxy.connect() as client:
        for _ in range(3):  # once its name is known as one that needs no look, too
            client.send(b"SADD set m\r\nEXPIREMEMBER set m 1 ms\r\nBLPOP none 0.05\r\nSISMEMBER set m\r\nSCARD set\n")
            assert client.replies(5)[-2:] == [b":0\r\n", b":0\r\n"]
        for _ in range(2):  # these, too
            client.send(b"SREM other x\nSADD other y\nGET z\n")
            client.replies(3)
        client.send(b"SADD set m\r\n")
        assert client.reply() == b":1\r\n"
        client.send(b"EXPIREMEMBER set m 1000\r\n")
        client.reply()
        client.send(b"SREM set m\n")
        client.send(b"SADD set m\n")
        assert client.replies(2) == [b":1\r\n", b":1\r\n"]
        assert client.command("TTL", "set", "m") == b":-1\r\n", "its old deadline is void"
        client.send(b"GET __expiremember__:x\r\n")
        assert client.reply().startswith(b"-")
    proxy.stop()


@pytest.mark.parametrize("line", [b'HSET "\\x5f\\x5fexpiremember__:x" f v\r\n', b"HSET '__expiremember__:x' f v\n"])
def test_quotes_hide_no_reserved_name(server: Server, start_proxy: StartProxy, line: bytes) -> None:
    proxy = start_proxy(server)
    with proxy.connect() as client:
        client.send(b"HSET h f v\r\n" * 3)  # its name is known then as one that needs no look
        client.replies(3)
        for front in (b"", b"HSET h f v\r\n"):
            client.send(front + line + b"HSET h f v\n")
            replies = client.replies(2 + bool(front))
            assert replies[-2].startswith(b"-"), replies
            assert replies[-1] == b":0\r\n"
    assert b"x" not in server.command("KEYS", "__expiremember__:x")
    proxy.stop()
