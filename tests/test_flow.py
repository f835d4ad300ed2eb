"""Much at once: long pipelines cut anywhere, huge values, slow readers, and clients that leave in the middle."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import psutil
import pytest

from proxy.relay.ending import PATIENCE_SECONDS
from tests.beside import Beside
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, request
from tests.servers import Proxy, Server, halt, until

MEGABYTE = 1 << 20
MEMORY_LIMIT = 150 * MEGABYTE
"""What the proxy may need besides, however much passes through it."""


class Peak(Beside):
    """Watches how much memory a process takes while something goes on: `bytes`, above what it took before.

    It tells little of a process that has needed much before and may have kept it: give it one of the test's own.
    """

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._process = psutil.Process(pid)
        self._before = self._process.memory_info().rss
        self.bytes = 0

    def look(self) -> None:
        self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def work(self) -> None:
        while not self.end.wait(0.005):
            self.look()
        self.look()


def send_all(client: Raw, pieces: Iterator[bytes]) -> threading.Thread:
    """Send pieces in a thread of their own, so that the caller can read meanwhile."""

    def send() -> None:
        for piece in pieces:
            client.send(piece)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def cut(data: bytes, sizes: Callable[[], int]) -> Iterator[bytes]:
    """Cut bytes into pieces."""
    position = 0
    while position < len(data):
        end = position + sizes()
        yield data[position:end]
        position = end


def many_requests(count: int, seed: int) -> bytes:
    """Requests of many kinds on a few keys, of which some will have deadlines."""
    chance = random.Random(seed)
    keys = ["plain", "set", "hash", "zset", "list"]
    pool: list[Callable[[], bytes]] = [
        lambda: request("SET", "plain", chance.randbytes(chance.randrange(300))),
        lambda: request("GET", "plain"),
        lambda: request("INCR", "counter"),
        lambda: request("SADD", "set", *(chance.choice("abcd") for _ in range(chance.randint(1, 4)))),
        lambda: request("SREM", "set", chance.choice("abcd")),
        lambda: request("SISMEMBER", "set", chance.choice("abcd")),
        lambda: request("SCARD", "set"),
        lambda: request("HSET", "hash", chance.choice("abcd"), chance.randbytes(chance.randrange(50))),
        lambda: request("HDEL", "hash", chance.choice("abcd")),
        lambda: request("HGETALL", "hash"),
        lambda: request("HINCRBY", "hash", "number", 1),
        lambda: request("ZADD", "zset", chance.randint(0, 9), chance.choice("abcd")),
        lambda: request("ZINCRBY", "zset", "0.5", chance.choice("abcd")),
        lambda: request("ZRANGE", "zset", 0, -1, "WITHSCORES"),
        lambda: request("RPUSH", "list", "x"),
        lambda: request("LPOP", "list"),
        lambda: request("ECHO", b"\r\n*1\r\n$4\r\nPING\r\n"),
        lambda: request("MULTI") + request("SADD", "set", "m") + request("HSET", "hash", "m", 1) + request("EXEC"),
        lambda: request("NOSUCH", "x"),
        lambda: request("SADD", "plain", "x"),
        lambda: request("HSET", "hash", "f"),
        lambda: b"PING\r\n",
        lambda: b'SADD set "a" b\r\n',
        lambda: request("TTL", chance.choice(keys)),
        lambda: request("DEL", chance.choice(["plain", "list"])),
        lambda: request("EVAL", "return {KEYS[1], redis.call('SCARD', KEYS[1])}", 1, "set"),
    ]
    return b"".join(chance.choice(pool)() for _ in range(count))


@pytest.mark.parametrize("deadlines", [False, True], ids=["plain", "deadlines"])
@pytest.mark.parametrize("largest", [7, 3000, 100_000], ids=lambda size: f"up-to-{size}-bytes")
@pytest.mark.one_kind
def test_a_long_pipeline_cut_anywhere(upstream: Server, proxy: Proxy, largest: int, deadlines: bool) -> None:
    data = many_requests(1000 if largest < 10 else 10_000, seed=largest)

    def replies(client: Raw) -> bytes:
        chance = random.Random(largest)
        sender = send_all(client, cut(data + request("ECHO", "--end--"), lambda: chance.randint(1, largest)))
        got = bytearray()
        while not got.endswith(b"--end--\r\n"):
            part = client.some()
            assert part, bytes(got[-500:])
            got += part
        sender.join(20)
        return bytes(got)

    prepare = (
        request("SADD", "set", "a", "b")
        + request("HSET", "hash", "a", 1, "b", 2)
        + request("ZADD", "zset", 1, "a", 2, "b")
    )
    with upstream.connect() as straight:
        straight.send(prepare)
        straight.replies(3)
        wanted = replies(straight)
    upstream.flush()
    with proxy.connect() as through:
        through.send(prepare)
        through.replies(3)
        if deadlines:
            for key in ("set", "hash", "zset"):
                assert through.command("EXPIREMEMBER", key, "a", 10000) == b":1\r\n"
        got = replies(through)
    if got != wanted:
        at = next(place for place, (one, other) in enumerate(zip(wanted, got, strict=False)) if one != other)
        raise AssertionError(
            f"at byte {at}: straight {wanted[at - 200 : at + 100]!r}, got {got[at - 200 : at + 100]!r}"
        )


@pytest.mark.parametrize("size", [0, 1, 100, 16_383, 16_384, 16_385, 65_536, 1_000_003, 20 * MEGABYTE])
@pytest.mark.one_kind
def test_values_of_any_size(proxy: Proxy, size: int) -> None:
    value = (random.Random(size).randbytes(min(size, MEGABYTE)) * (size // MEGABYTE + 1))[:size]
    with proxy.connect(60) as client:
        assert client.command("SADD", "known", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "known", "m", 1000) == b":1\r\n"
        for head, answer in (
            (("SET", "string"), b"+OK\r\n"),
            (("MSET", "small", "x", "string"), b"+OK\r\n"),
            (("HSET", "hash", "f"), b":1\r\n"),
            (("RPUSH", "list"), b":1\r\n"),
            (("SADD", "set"), b":1\r\n"),
            (("SADD", "known"), b":1\r\n"),
            (("ZADD", "zset", 1), b":1\r\n"),
        ):
            assert client.command(*head, value) == answer, head
        bulk = b"$%d\r\n%b\r\n" % (size, value)
        for question in (
            ("GET", "string"),
            ("HGET", "hash", "f"),
            ("LINDEX", "list", 0),
            ("ECHO", value),
            ("EVAL", "return ARGV[1]", 0, value),
        ):
            assert client.command(*question) == bulk, question
        assert client.command("STRLEN", "string") == b":%d\r\n" % size
        for key in ("set", "known"):
            assert client.command("SISMEMBER", key, value) == b":1\r\n"
        assert client.command("EXPIREMEMBER", "known", value, 1000) == b":1\r\n"
        assert about(client.command("TTL", "known", value), 1000)
        assert client.command("SREM", "known", value) == b":1\r\n"
        assert client.command("SADD", "known", value) == b":1\r\n"
        assert client.command("TTL", "known", value) == b":-1\r\n"


@pytest.mark.one_kind
def test_a_value_of_256_megabytes_passes_in_little_memory(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream)
    block = random.Random(256).randbytes(MEGABYTE)
    size = 256 * MEGABYTE
    checksum = 0
    for _ in range(256):
        checksum = zlib.crc32(block, checksum)
    with proxy.connect(60) as client:
        assert client.command("PING") == b"+PONG\r\n"
        with Peak(proxy.pid) as peak:
            client.send(b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n" % size)
            for _ in range(256):
                client.send(block)
            client.send(b"\r\n" + request("STRLEN", "big"))
            assert client.replies(2) == [b"+OK\r\n", b":%d\r\n" % size]
        assert peak.bytes < MEMORY_LIMIT
        with Peak(proxy.pid) as peak:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.send_command("GET", "big")
            assert client.line() == b"$%d\r\n" % size
            received = 0
            for _ in range(size // (1 << 15)):
                received = zlib.crc32(client.exactly(1 << 15), received)
            assert client.exactly(2) == b"\r\n"
        assert received == checksum
        assert peak.bytes < MEMORY_LIMIT
    upstream.flush()


def check_a_late_reader_makes_the_server_wait(upstream: Server, proxy: Proxy) -> None:
    """Replies nobody reads pile up at the server, as without a proxy, and all come in the end."""
    value = random.Random(1).randbytes(100_000)
    count = 2000
    with proxy.connect(60) as client:
        assert client.command("SET", "k", value) == b"+OK\r\n"
        assert upstream.command("CONFIG", "RESETSTAT") == b"+OK\r\n"
        with Peak(proxy.pid) as peak:
            # What earlier tests have left unread may still run; none of them calls this.
            client.send(request("GETRANGE", "k", 0, -1) * count)
            until(lambda: calls(upstream) == count, 40, lambda: f"{count} calls, {calls(upstream)} so far,")
            assert settled(partial(unsent, upstream)) > 100 * MEGABYTE
            reply = b"$%d\r\n%b\r\n" % (len(value), value)
            for _ in range(count):
                assert client.exactly(len(reply)) == reply
        assert peak.bytes < MEMORY_LIMIT
        assert client.command("PING") == b"+PONG\r\n"


def calls(server: Server) -> int:
    """How many GETRANGE the server has run since its statistics were reset."""
    found = re.search(rb"cmdstat_getrange:calls=(\d+)", server.command("INFO", "commandstats"))
    return int(found[1]) if found else 0


def unsent(server: Server) -> int:
    """Bytes of replies that the server keeps as its clients do not take them."""
    return sum(map(int, re.findall(rb" omem=(\d+)", server.command("CLIENT", "LIST"))))


def settled(measure: Callable[[], int]) -> int:
    """Wait until nothing has changed for a third of a second, and return what is measured then."""
    found = [measure()]

    def is_settled() -> bool:
        time.sleep(0.03)
        found.append(measure())
        return len(set(found[-10:])) == 1 and len(found) > 10

    until(is_settled, 30, "an end of the changes")
    return found[-1]


@pytest.mark.one_kind
def test_a_late_reader_makes_the_server_wait(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    # A proxy that joins others is blind for a moment: it sends requests of its own then, whose replies it awaits.
    server = start_server(kind)
    check_a_late_reader_makes_the_server_wait(server, start_proxy(server))


def test_ten_thousand_short_replies_read_late(upstream: Server, proxy: Proxy) -> None:
    with proxy.connect() as client:
        assert upstream.command("CONFIG", "RESETSTAT") == b"+OK\r\n"
        client.send(request("ECHO", "x") * 10_000)  # not PING, which the proxy sends too
        until(lambda: b"cmdstat_echo:calls=10000," in upstream.command("INFO", "commandstats"))
        assert client.exactly(70_000) == b"$1\r\nx\r\n" * 10_000


def test_a_server_that_does_not_read_makes_the_client_wait(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server, "--control-timeout", "60")
    assert server.process is not None
    data = request("SET", "k", b"x" * MEGABYTE)
    with proxy.connect(60) as client:
        assert client.command("PING") == b"+PONG\r\n"
        halt(server.process.pid)
        try:
            with Peak(proxy.pid) as peak:
                client.socket.setblocking(False)
                sent = 0
                # What nothing takes for a quarter of a second is held back by the proxy, not only slow.
                while select.select([], [client.socket], [], 0.25)[1] and sent < 400 * MEGABYTE:
                    sent += client.socket.send(data[sent % len(data) :])
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert sent < 100 * MEGABYTE
        assert peak.bytes < MEMORY_LIMIT
        client.socket.settimeout(60)
        whole, part = divmod(sent, len(data))
        client.send(data[part:])
        assert set(client.replies(whole + 1)) == {b"+OK\r\n"}


LOOKED_FOR: Final = {
    "HINCRBY": request("HIncrBy", "h", "f" * 1000, 1) * 5,  # so spelled each goes by itself
    "runs": request("TTL", "h", "f" * 1000) * 4 + request("PING"),
}
"""Five requests whose replies have to be looked for."""


@pytest.mark.parametrize("which", LOOKED_FOR)
@pytest.mark.one_kind
def test_a_client_may_send_all_before_it_reads(upstream: Server, proxy: Proxy, which: str) -> None:
    """On a key with deadlines; each reply has to be looked for, or those of a few requests together."""
    upstream.flush()
    upstream.command("SET", "large", b"x" * (20 * MEGABYTE))
    with proxy.connect() as client:
        client.command("HSET", "h", "f" * 1000, 0)
        client.command("EXPIREMEMBER", "h", "f" * 1000, 1000)
        client.send(request("GET", "large") + LOOKED_FOR[which] * 6_000)
        assert len(client.reply()) > 20 * MEGABYTE
        assert client.replies(30_000)[-1] == (b":30000\r\n" if which == "HINCRBY" else b"+PONG\r\n")


@pytest.mark.parametrize("which", LOOKED_FOR)
@pytest.mark.one_kind
def test_clients_that_go_while_their_requests_wait_are_noticed(upstream: Server, proxy: Proxy, which: str) -> None:
    """Behind a request that blocks; with a reset, as a process that dies with unread replies sends."""
    upstream.flush()

    def connections() -> int:
        return upstream.command("CLIENT", "LIST").count(b"cmd=blpop")

    with proxy.connect() as other:
        other.command("HSET", "h", "f" * 1000, 0)
        other.command("EXPIREMEMBER", "h", "f" * 1000, 1000)
        clients = [proxy.connect() for _ in range(3)]
        for client in clients:
            client.send(request("BLPOP", "nothing", 0) + LOOKED_FOR[which] * 6_000)
        until(lambda: connections() == 3, what="three that block")
        for client in clients:
            client.reset()
        until(lambda: connections() == 0, 20, "none that blocks")


def test_a_client_that_leaves_in_the_middle_of_a_request(upstream: Server, proxy: Proxy) -> None:
    """Nothing half is done, nothing is left open, and the next client is not concerned."""
    whole = request("SET", "k", b"x" * 50_000)
    for size in (1, 5, 20, 30, 10_000, len(whole) - 1):
        for leave in (Raw.close, Raw.reset):
            client = proxy.connect()
            client.send(request("SET", f"before-{size}", "v") + whole[:size])
            until(lambda size=size: upstream.command("EXISTS", f"before-{size}") == b":1\r\n")  # type: ignore[misc]
            leave(client)
            assert upstream.command("DEL", f"before-{size}") == b":1\r\n"
    until(lambda: open_connections(upstream, proxy) == 0)
    assert proxy.command("EXISTS", "k") == b":0\r\n"


def test_clients_that_leave_without_reading(upstream: Server, proxy: Proxy) -> None:
    assert upstream.command("SET", "k", b"x" * MEGABYTE) == b"+OK\r\n"
    for leave in (Raw.close, Raw.reset):
        for _ in range(10):
            client = proxy.connect()
            client.send(request("GET", "k") * 50 + request("BLPOP", "nope", 0))
            assert client.line() == b"$%d\r\n" % MEGABYTE
            leave(client)
    until(lambda: open_connections(upstream, proxy) == 0)
    assert proxy.command("PING") == b"+PONG\r\n"


def open_connections(upstream: Server, proxy: Proxy) -> int:
    """How many connections of clients there are, on the proxy's side and on the server's, but for its own."""
    accepted = sum(
        bool(connection.raddr and connection.laddr[:2] == proxy.address)
        for connection in psutil.Process(proxy.pid).net_connections("tcp")
    )
    clients = upstream.command("CLIENT", "LIST").splitlines()[1:-1]
    relayed = [line for line in clients if line and b"name=expiremember-proxy" not in line]
    return accepted + len(relayed) - 1  # the one that asks


def test_many_clients_get_each_their_own_replies(upstream: Server, proxy: Proxy) -> None:
    clients = [proxy.connect() for _ in range(200)]
    try:
        for round_ in range(10):
            for number, client in enumerate(clients):
                client.send(request("ECHO", f"{number}-{round_}") + request("INCR", f"counter-{number}"))
            for number, client in enumerate(clients):
                word = f"{number}-{round_}".encode()
                assert client.replies(2) == [b"$%d\r\n%b\r\n" % (len(word), word), b":%d\r\n" % (round_ + 1)]
    finally:
        for client in clients:
            client.close()
    assert upstream.command("DBSIZE") == b":200\r\n"


@pytest.mark.parametrize("header", [b"*2147483647\r\n", b"*2147483648\r\n", b"*1048576\r\n"])
def test_a_header_that_promises_too_much_costs_nothing(lean_proxy: Proxy, header: bytes) -> None:
    """A dozen bytes from anybody must not keep the proxy from serving the others."""
    proxy = lean_proxy
    process = psutil.Process(proxy.pid)
    with proxy.connect() as liar, proxy.connect() as other, Peak(proxy.pid) as peak:
        before = process.cpu_times().user
        for piece in (header, b"$4\r\n", b"PI", b"NG\r\n"):
            with suppress(OSError):  # some servers close at once
                liar.send(piece)
            assert other.command("PING") == b"+PONG\r\n"
        assert process.cpu_times().user - before < 0.3
    assert peak.bytes < 10 * MEGABYTE


def test_a_request_beyond_the_limit_is_refused(upstream: Server, start_proxy: StartProxy) -> None:
    """What has to be read whole to be judged is bounded; what can be judged by its beginning is not."""
    proxy = start_proxy(upstream, "--request-limit", "65536")
    value = os.urandom(MEGABYTE)
    with proxy.connect() as client:
        assert client.command("SET", "k", value) == b"+OK\r\n"
        client.send(request("MSET", "a", value)[:200_000])
        assert client.line().startswith(b"-ERR expiremember-proxy: request larger than request_limit")
        assert client.rest() == b""
    assert upstream.command("EXISTS", "a") == b":0\r\n"


@pytest.mark.one_kind
def test_a_client_that_is_turned_away_gets_its_replies_first(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream, "--request-limit", "65536")
    with proxy.connect() as client:
        client.command("SADD", "s", "m")
        client.command("EXPIREMEMBER", "s", "m", 100)
        client.send(request("INCR", "n") + request("BLPOP", "queue", 0))
        assert client.reply() == b":1\r\n"
        until(lambda: b"cmd=blpop" in upstream.command("CLIENT", "LIST"))
        client.send(request("INCR", "n") + b"*5\r\n$4\r\nMSET\r\n$1\r\ns\r\n$200000\r\n" + b"x" * 100_000)
        client.end_of_requests()
        upstream.command("RPUSH", "queue", "x")
        rest = client.rest()
        assert rest.startswith(b"*2\r\n$5\r\nqueue\r\n$1\r\nx\r\n:2\r\n-ERR expiremember-proxy: request larger"), rest
    assert upstream.command("GET", "n") == b"$1\r\n2\r\n"
    assert "Traceback" not in proxy.process.output, proxy.process.output


def check_who_is_turned_away_in_silence(server: Server, proxy: Proxy) -> None:
    """Where the server answers nothing more, a client gets what is owed from before, then the error, at once."""
    large = b"*5\r\n$4\r\nMSET\r\n$1\r\ns\r\n$200000\r\n" + b"x" * 100_000
    with proxy.connect() as client:
        client.command("SADD", "s", "m")
        client.command("EXPIREMEMBER", "s", "m", 100)
        client.send(request("CLIENT", "REPLY", "OFF") + request("INCR", "n"))
        began = time.monotonic()
        client.send(large)
        assert client.line().startswith(b"-ERR expiremember-proxy: request larger")
        assert client.rest() == b""
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
    with proxy.connect() as client:
        client.send(request("BLPOP", "queue", 0) + request("CLIENT", "REPLY", "OFF") + request("INCR", "n") + large)
        until(lambda: b"cmd=blpop" in server.command("CLIENT", "LIST"))
        server.command("RPUSH", "queue", "x")
        rest = client.rest()
        assert rest.startswith(b"*2\r\n$5\r\nqueue\r\n$1\r\nx\r\n-ERR expiremember-proxy: request larger"), rest
    assert server.command("GET", "n") == b"$1\r\n2\r\n"


@pytest.mark.one_kind
def test_who_is_turned_away_in_silence_is_told_at_once(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream, "--request-limit", "65536")
    check_who_is_turned_away_in_silence(upstream, proxy)
    assert "Traceback" not in proxy.process.output, proxy.process.output


@pytest.mark.one_kind
def test_a_client_that_is_turned_away_is_told_so_though_its_replies_do_not_come(
    upstream: Server, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(upstream, "--request-limit", "65536")
    with proxy.connect() as client:
        client.command("SADD", "s", "m")
        client.command("EXPIREMEMBER", "s", "m", 100)
        client.send(request("BLPOP", "queue", 0) + b"*5\r\n$4\r\nMSET\r\n$1\r\ns\r\n$200000\r\n" + b"x" * 100_000)
        assert client.line().startswith(b"-ERR expiremember-proxy: request larger")
        upstream.command("RPUSH", "queue", "x")  # too late: its reply would stand behind the last words
        assert client.rest() == b""
    until(lambda: b"cmd=blpop" not in upstream.command("CLIENT", "LIST"))
    assert "Traceback" not in proxy.process.output, proxy.process.output
