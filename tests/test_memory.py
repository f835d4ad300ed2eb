"""What has been answered takes no memory any more, whatever it was; what is buffered is counted, wherever it stands."""

from __future__ import annotations

import re
import secrets
import signal
import ssl
import time
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import RequestReader, encode
from tests.admin import Admin, with_admin
from tests.certificates import Authority
from tests.conftest import StartProxy
from tests.raw import Raw, request
from tests.servers import Proxy, Server, halt, until
from tests.test_ends import Handshake, certificate, listening_by_tls
from tests.test_tls import flags, tls_server

MEGABYTE: Final = 1 << 20
CLIENTS = 60
BIG = b"x" * (2 * MEGABYTE)

pytestmark = [pytest.mark.one_kind, pytest.mark.measures]


def _said(client: Raw, *args: str | bytes | int, by: bytes = b"") -> None:
    said = client.command(*args)
    assert said[:1] in (by or b"+:*$"), said[:200]


def _in_multi(client: Raw) -> None:
    for arguments in (("MULTI",), ("MSET", "a", BIG, "b", BIG), ("CLIENT", "REPLY", BIG), ("SET", BIG, "1")):
        client.command(*arguments)
    _said(client, "DISCARD")


def _queued_words(client: Raw) -> None:
    _said(client, "MULTI")
    _said(client, "CLIENT", "REPLY", BIG)


def _expire(client: Raw) -> None:
    _said(client, "SADD", "set", BIG)
    _said(client, "EXPIREMEMBER", "set", BIG, 1000)


def _rewritten(client: Raw) -> None:
    _said(client, "SADD", "known", "member")
    _said(client, "EXPIREMEMBER", "known", "member", 1000)
    _said(client, "SADD", "known", BIG, BIG + b"1")


def _behind_it(client: Raw) -> None:
    client.send(request("MSET", "a", BIG, "b", BIG) + b"*2\r\n$3\r\nGET\r\n$1\r\n")
    assert client.reply() == b"+OK\r\n"


def _script(client: Raw) -> None:
    _said(client, "SADD", "known", "member")
    _said(client, "EXPIREMEMBER", "known", "member", 1000)
    _said(client, "EVAL", "return redis.call('SADD', KEYS[1], ARGV[1])", 1, "known", BIG)


def _queued(client: Raw) -> None:
    for arguments in (("MULTI",), ("SET", "a", BIG), ("SADD", "known", BIG), ("EXPIREMEMBER", "known", BIG, 1000)):
        client.command(*arguments)
    _said(client, "EXEC")


def _long_names(client: Raw) -> None:
    """Under a covered prefix: of each the proxy looks what is due."""
    _said(client, "SADD", "cov:s", "member")
    _said(client, "EXPIREMEMBER", "cov:s", "member", 1000)
    name = b"cov:" + secrets.token_hex(8).encode() + BIG
    for arguments in (("SUNIONSTORE", "x", name), ("EVAL", "return 1", 1, name), ("DEL", name), ("WATCH", name)):
        _said(client, *arguments)
    _said(client, "UNWATCH")


def _many_names(client: Raw) -> None:
    _said(client, "SADD", "cov:s", "member")
    _said(client, "EXPIREMEMBER", "cov:s", "member", 1000)
    for _ in range(200):
        _said(client, "EVAL", "return 1", 1, b"cov:" + secrets.token_hex(500).encode())


def _cut_off(client: Raw) -> None:
    client.send(request("MSET", "a", BIG, "b", BIG)[: 3 * MEGABYTE])
    client.end_of_requests()
    client.rest()


def _pushes(client: Raw) -> None:
    _said(client, "HELLO", 3, by=b"%")
    _said(client, "SUBSCRIBE", "news", by=b">")
    client.send_command("PUBLISH", "news", BIG)
    client.replies(2)
    _said(client, "UNSUBSCRIBE", by=b">")


def _inline(client: Raw) -> None:
    client.send(b"SET a " + b"x" * 60_000 + b"\r\n")
    assert client.reply() == b"+OK\r\n"


SHAPES: dict[str, Callable[[Raw], None]] = {
    "whole": lambda client: _said(client, "MSET", "a", BIG, "b", BIG),
    "streamed": lambda client: _said(client, "SET", "a", BIG + BIG),
    "rewritten": _rewritten,
    "of a huge member": _expire,
    "refused": lambda client: _said(client, "PEXPIREMEMBER", "set", "member", BIG, by=b"-"),
    "a name": lambda client: _said(client, "AUTH", BIG, "password", by=b"-"),
    "in MULTI": _in_multi,
    "words in MULTI": _queued_words,
    "run in MULTI": _queued,
    "by a script": _script,
    "begun behind it": _behind_it,
    "long names": _long_names,
    "many names": _many_names,
    "cut off": _cut_off,
    "inline": _inline,
    "a big reply": lambda client: _said(client, "MGET", *["big"] * 4),
    "pushes": _pushes,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_has_been_answered_is_not_kept(server: Server, start_proxy: StartProxy, shape: str) -> None:
    check_nothing_is_kept(server, start_proxy, shape)


def check_nothing_is_kept(server: Server, start_proxy: StartProxy, shape: str) -> None:
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    proxy, admin = with_admin(start_proxy, server)
    _check_nothing_is_kept(proxy, admin, SHAPES[shape], 200_000)


def _check_nothing_is_kept(
    proxy: Proxy, admin: Admin, ask: Callable[[Raw], None], each: int, connect: Callable[[], Raw] | None = None
) -> None:
    """Have clients ask one after another, and see that none of them keeps more than so many bytes."""
    process = psutil.Process(proxy.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context((connect or proxy.connect)()) for _ in range(CLIENTS + 5)]
        for client in clients:
            _said(client, "PING")
        for client in clients[CLIENTS:]:  # what the allocator keeps for the next one is not a client's
            ask(client)
        before = process.memory_info().rss
        for client in clients[:CLIENTS]:
            ask(client)
        until(
            lambda: process.memory_info().rss - before < CLIENTS * each,
            what=lambda: f"the memory of {(process.memory_info().rss - before) / CLIENTS} bytes for each client",
        )
        until(lambda: admin.metrics()["held_bytes"] < CLIENTS * 4096, what="the end of what is counted")


@pytest.mark.parametrize("shape", ["whole", "a big reply"])
def test_tls_keeps_little(
    start_server: Callable[..., Server], start_proxy: StartProxy, tmp_path: Path, shape: str
) -> None:
    """OpenSSL's buffers never shrink: what passes through them goes in pieces."""

    class Files:
        authority = Authority(tmp_path, "authority")
        server = authority.sign("server", "IP:127.0.0.1")

    server, port = tls_server(start_server, Files, Files.server)  # type: ignore[arg-type]
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    options = ["--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=Files.authority.file)]
    proxy, admin = with_admin(start_proxy, None, *options)
    _check_nothing_is_kept(proxy, admin, SHAPES[shape], 300_000)


GIVES_NOTHING_BACK: Final = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 * MEGABYTE)}
"""For an environment: what a program has freed, the allocator keeps unless it is told otherwise."""


class _Encrypted(Raw):
    """A connection by TLS."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket = context.wrap_socket(self.socket)
        self._file = self.socket.makefile("rb")


@pytest.mark.parametrize("shape", ["whole", "of a huge member", "a big reply", "pushes"])
def test_clients_by_tls_keep_little(server: Server, start_proxy: StartProxy, tmp_path: Path, shape: str) -> None:
    """The same for clients."""
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    options, port = listening_by_tls(certificate(tmp_path))
    proxy, admin = with_admin(start_proxy, server, *options)
    _check_nothing_is_kept(proxy, admin, SHAPES[shape], 300_000, lambda: _Encrypted(port))


def test_clients_by_tls_keep_little_of_what_was_freed_before_them(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    check_buffers_of_tls(server, start_proxy, tmp_path)


def check_buffers_of_tls(server: Server, start_proxy: StartProxy, folder: Path) -> None:
    """The loop's buffer for a new client comes from memory that large replies to earlier clients have used."""
    server.command("SET", "big", b"v" * 1_000_000)
    options, port = listening_by_tls(certificate(folder))
    process = psutil.Process(start_proxy(server, *options).pid)
    with ExitStack() as stack:

        def come() -> None:
            client = stack.enter_context(_Encrypted(port))
            client.send_command("GET", "big")
            assert len(client.reply()) > 1_000_000

        for _ in range(5):
            come()
        before = process.memory_info().rss
        for _ in range(CLIENTS):
            come()
        until(
            lambda: process.memory_info().rss - before < CLIENTS * 200_000,
            what=lambda: f"the memory of {(process.memory_info().rss - before) / CLIENTS} bytes for each client",
        )


@pytest.mark.one_kind
def test_closed_connections_by_tls_keep_nothing(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    check_closed_tls(server, start_proxy, tmp_path)


def check_closed_tls(server: Server, start_proxy: StartProxy, folder: Path) -> None:
    """Replies left unread until all clients reset their connections; the allocator gives nothing back by itself."""
    server.command("SET", "big", b"v" * 1_000_000)
    options, port = listening_by_tls(certificate(folder))
    process = psutil.Process(start_proxy(server, *options, env=GIVES_NOTHING_BACK).pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        clients = [stack.enter_context(_Encrypted(port)) for _ in range(150)]
        for client in clients:
            client.send_command("GET", "big")
        until(lambda: process.memory_info().rss - before > 10 * MEGABYTE)
        for client in clients:
            client.reset()
    until(lambda: process.memory_info().rss - before < 5 * MEGABYTE)


@pytest.mark.one_kind
def test_handshakes_that_come_to_nothing_keep_nothing(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    check_handshakes(server, start_proxy, tmp_path)


def check_handshakes(server: Server, start_proxy: StartProxy, folder: Path) -> None:
    """Clients that end within their first message."""
    options, port = listening_by_tls(certificate(folder))
    process = psutil.Process(start_proxy(server, *options, env=GIVES_NOTHING_BACK).pid)
    before = process.memory_info().rss
    with ExitStack() as stack:
        for _ in range(300):
            client = Handshake(port)
            stack.callback(client.socket.close)
            client.socket.sendall(client.hello()[:100])
        until(lambda: process.memory_info().rss - before > 10 * MEGABYTE)
    until(lambda: process.memory_info().rss - before < 5 * MEGABYTE)


def test_a_client_by_tls_that_reads_nothing_holds_the_server_up(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """What it has asked for stays at the server, as without TLS."""
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    options, port = listening_by_tls(certificate(tmp_path))
    proxy = start_proxy(server, *options)
    process = psutil.Process(proxy.pid)
    with _Encrypted(port) as client:
        _said(client, "CLIENT", "SETNAME", "slow")
        before = process.memory_info().rss
        client.send(request("GET", "big") * 100)

        def unread() -> int:
            found = re.search(rb"name=slow .* omem=(\d+)", server.command("CLIENT", "LIST"))
            return int(found[1]) if found else 0

        def stays() -> bool:
            size = unread()
            time.sleep(0.5)  # part of the condition
            return unread() == size

        until(stays, 30, "nothing that moves any more")
        assert unread() > 150 * MEGABYTE
        assert process.memory_info().rss - before < 24 * MEGABYTE


def test_a_server_by_tls_that_reads_nothing_holds_clients_up(
    start_server: Callable[..., Server], start_proxy: StartProxy, tmp_path: Path
) -> None:
    class Files:
        authority = Authority(tmp_path, "authority")
        server = authority.sign("server", "IP:127.0.0.1")

    server, port = tls_server(start_server, Files, Files.server)  # type: ignore[arg-type]
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=Files.authority.file))
    process = psutil.Process(proxy.pid)
    with proxy.connect() as client:
        _said(client, "PING")
        before = process.memory_info().rss
        assert server.process is not None
        halt(server.process.pid)
        try:
            client.socket.settimeout(1)
            taken = 0
            with suppress(TimeoutError):
                client.socket.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$268435456\r\n")
                while taken < 256 * MEGABYTE:
                    taken += client.socket.send(BIG)
            assert taken < 64 * MEGABYTE
            assert process.memory_info().rss - before < 24 * MEGABYTE
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_clients_that_go_in_the_middle_leave_nothing(server: Server, start_proxy: StartProxy) -> None:
    """However far their request has come, in whatever way they end; until then what is held is counted."""
    proxy, admin = with_admin(start_proxy, server)
    process = psutil.Process(proxy.pid)
    _said_alone(proxy)
    before = process.memory_info().rss
    whole = request("MSET", "a", BIG, "b", BIG)
    for leave in (Raw.close, Raw.reset, Raw.end_of_requests):
        with ExitStack() as stack:
            clients = [stack.enter_context(proxy.connect()) for _ in range(20)]
            sizes = [(number + 1) * len(whole) // 21 for number in range(20)]
            for client, size in zip(clients, sizes, strict=True):
                client.send(whole[:size])
            until(lambda sizes=sizes: admin.metrics()["held_bytes"] > 0.95 * sum(sizes))  # type: ignore[misc]
            assert admin.metrics()["held_bytes"] < 1.05 * sum(sizes)
            for client in clients:
                leave(client)
            until(lambda: admin.metrics()["held_bytes"] == 0)
    until(lambda: process.memory_info().rss - before < 12 * MEGABYTE)
    proxy.stop()


@pytest.mark.one_kind
def test_what_was_left_unread_is_given_back(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    check_unread(server, start_proxy, tmp_path)


def check_unread(server: Server, start_proxy: StartProxy, folder: Path) -> None:
    """Replies that clients took late; by a Unix socket, where the system buffers little, and with an allocator that by
    itself gives nothing back."""
    proxy = start_proxy(server, "--listen", f"unix://{folder / 's'}", env=GIVES_NOTHING_BACK)
    process = psutil.Process(proxy.pid)
    server.command("SET", "big", b"x" * (2 * MEGABYTE))
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(folder / "s")) for _ in range(200)]
        for client in clients:
            client.command("PING")
        before = process.memory_info().rss
        for client in clients:
            client.send(request("GET", "big"))
        until(lambda: process.memory_info().rss - before > 25 * MEGABYTE)
        for client in clients:
            client.reply()
        until(lambda: process.memory_info().rss - before < 12 * MEGABYTE)
    proxy.stop()


LEFT_WITH: Final = {
    "nothing": b"",
    "a queued request": request("MULTI") + request("SADD", "covered:1", "x"),
    "a transaction": request("MULTI") + request("SADD", "covered:1", "x") + request("EXEC"),
    "a watched key": request("WATCH", "covered:1") + request("MULTI"),
    "reads": request("SCARD", "covered:1") * 80,
    "deadlines": request("EXPIREMEMBER", "covered:1", "m", 9) * 80,
    "a blocking command": request("BLPOP", "none", 0),
    "a blocking move": request("BLMOVE", "covered:2", "covered:3", "LEFT", "LEFT", 0)
    + request("SADD", "covered:1", "y"),
    "a subscription": request("SUBSCRIBE", "c") + request("PING"),
    "no reply": request("CLIENT", "REPLY", "SKIP") + request("BLPOP", "none", 0),
    "half a request": request("MSET", "a", "b" * 9000)[:5000],
    "MONITOR": request("MONITOR"),
}
"""What clients have sent when they leave."""


@pytest.mark.one_kind
def test_clients_that_have_left_leave_nothing(server: Server, start_proxy: StartProxy) -> None:
    """What is noted of a client anywhere has to go with it, in whatever state it leaves."""
    proxy, admin = with_admin(start_proxy, server)
    process = psutil.Process(proxy.pid)
    with proxy.connect() as client:
        client.command("SADD", "covered:1", "m")
        assert client.command("EXPIREMEMBER", "covered:1", "m", 1000) == b":1\r\n"
    grown = {}
    for what, sent in LEFT_WITH.items():
        for _ in range(2):  # the allocator keeps what the first round has taken
            before = process.memory_info().rss
            for number in range(500):
                client = proxy.connect()
                client.send(sent)
                (client.close if number % 4 else client.reset)()
            until(lambda: admin.metrics()["client_connections"] == 0)
        grown[what] = process.memory_info().rss - before
    # A client that stays noted keeps 5 to 11 KB.
    assert {what: size for what, size in grown.items() if size > 1.5 * MEGABYTE} == {}
    proxy.stop()


def _said_alone(proxy: Proxy) -> None:
    with proxy.connect() as client:
        _said(client, "PING")


@pytest.mark.parametrize(
    "arguments",
    [("MSET", "a", BIG, "b", BIG), ("EXPIREMEMBER", "set", BIG + BIG, 1000), ("MSET", *[b"x" * 100_000] * 40)],
    ids=["two", "one", "many"],
)
def test_a_request_takes_little_more_than_twice_its_size(arguments: tuple[str | bytes | int, ...]) -> None:
    """Once as it came, and once in its arguments; what has been read of it before is kept once only."""
    data = request(*arguments)
    reader = RequestReader()
    tracemalloc.start()
    try:
        for begin in range(0, len(data), 65_536):
            reader.feed(data[begin : begin + 65_536])
            whole = reader.next_request()
        while whole is None and reader.unread:
            whole = reader.next_request()
        assert whole is not None
        assert whole.raw == data
        assert tracemalloc.get_traced_memory()[1] < 2.7 * len(data)
        assert encode(whole.arguments) == data
        assert tracemalloc.get_traced_memory()[1] < 3.2 * len(data)
    finally:
        tracemalloc.stop()


def test_what_the_server_has_not_taken_is_counted(server: Server, start_proxy: StartProxy) -> None:
    proxy, admin = with_admin(start_proxy, server, "--held-limit", str(32 * MEGABYTE))
    with proxy.connect() as first, proxy.connect() as second:
        for client in (first, second):
            _said(client, "PING")
        assert server.process is not None
        halt(server.process.pid)
        try:
            first.send_command("MSET", "a", b"x" * (12 * MEGABYTE), "b", b"x" * (12 * MEGABYTE))
            until(lambda: admin.metrics()["held_bytes"] > 12 * MEGABYTE)
            with suppress(ConnectionError):
                second.send_command("MSET", "a", b"x" * (24 * MEGABYTE), "b", b"x")
            until(lambda: admin.metrics()["requests_refused_total{reason=held_limit}"] == 1)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert first.reply() == b"+OK\r\n"
        assert second.rest().startswith(b"-ERR expiremember-proxy: ")
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def _ask_late(client: Raw, count: int) -> None:
    """Send a read whose reply is late, and so many large ones behind it."""
    client.send(request("SADD", "known", "goes") + request("PEXPIREMEMBER", "known", "goes", 3))
    assert client.replies(2)[1] == b":1\r\n"
    time.sleep(0.01)
    client.send(request("SISMEMBER", "known", "goes") + request("GET", "big") * count)


def test_what_waited_behind_a_late_reply_counts_no_more(server: Server, start_proxy: StartProxy) -> None:
    check_what_waited(server, start_proxy)


def check_what_waited(server: Server, start_proxy: StartProxy) -> None:
    proxy, admin = with_admin(start_proxy, server, "--no-sweep")
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    with proxy.connect() as client:
        _ask_late(client, 4)
        replies = client.replies(5)
        assert replies[0] == b":0\r\n"
        assert set(map(len, replies[1:])) == {len(BIG) + 12}
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_what_is_given_out_at_once_counts_until_it_is_read(server: Server, start_proxy: StartProxy) -> None:
    check_what_is_given_out(server, start_proxy)


def check_what_is_given_out(server: Server, start_proxy: StartProxy) -> None:
    """What waited for a late reply goes to the client in one piece, however slowly it reads."""
    proxy, admin = with_admin(start_proxy, server, "--no-sweep")
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    with proxy.connect() as client:
        _ask_late(client, 30)
        assert client.reply() == b":0\r\n"  # so all has been given out
        for _ in range(10):
            time.sleep(0.05)
            assert admin.metrics()["held_bytes"] > 15 * len(BIG)
        assert len(client.replies(30)) == 30
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_what_is_given_out_counts_after_the_last_words(server: Server, start_proxy: StartProxy) -> None:
    check_what_is_given_out_at_last(server, start_proxy)


def check_what_is_given_out_at_last(server: Server, start_proxy: StartProxy) -> None:
    """A client with unread replies is turned away."""
    proxy, admin = with_admin(start_proxy, server, "--no-sweep", "--request-limit", str(MEGABYTE))
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    with proxy.connect() as client:
        _ask_late(client, 30)
        assert client.reply() == b":0\r\n"
        client.send(request("EXPIREMEMBER", "known", b"x" * 2 * MEGABYTE, 60))
        until(lambda: server.command("CLIENT", "LIST").count(b" name= ") == 1, what="the last words, after 5 s")
        time.sleep(0.3)  # it is counted every 0.1 s
        assert admin.metrics()["held_bytes"] > 15 * len(BIG)
        assert len(client.replies(30)) == 30
        assert b"request_limit" in client.rest()
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_who_waits_for_too_much_is_turned_away_at_once(server: Server, start_proxy: StartProxy) -> None:
    check_who_waits_for_too_much(server, start_proxy)


def check_who_waits_for_too_much(server: Server, start_proxy: StartProxy) -> None:
    """The reply that the others wait for comes behind all of them."""
    limit = 8 * MEGABYTE
    proxy, admin = with_admin(start_proxy, server, "--no-sweep", "--held-limit", str(limit))
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    process = psutil.Process(proxy.pid)
    with proxy.connect() as client:
        client.command("PING")
        before = process.memory_info().rss
        _ask_late(client, 150)
        peaks = [before]
        while admin.metrics()["requests_refused_total{reason=held_limit}"] == 0:
            peaks.append(process.memory_info().rss)
            assert peaks[-1] - before < 4 * limit
        assert client.rest().startswith(b"-ERR expiremember-proxy: unfinished requests of one client exceed held_limit")
        until(lambda: admin.metrics()["held_bytes"] == 0)
        assert max(*peaks, process.memory_info().rss) - before < 4 * limit
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_replies_in_doubt_count_as_held(server: Server, start_proxy: StartProxy) -> None:
    check_replies_in_doubt(server, start_proxy)


def check_replies_in_doubt(server: Server, start_proxy: StartProxy) -> None:
    """Messages to a subscriber come behind an error that may be a refused sign, while a request blocks the next one."""
    server.command("ACL", "SETUSER", "silent", "on", "nopass", "~*", "&*", "+@all", "-echo")
    proxy, admin = with_admin(start_proxy, server, "--held-limit", str(4 * MEGABYTE))
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    with proxy.connect() as client:
        client.command("HELLO", 3)
        client.command("SUBSCRIBE", "a")
        client.command("AUTH", "silent", "any")
        client.send(request("ECHO", "hi") + request("BLPOP", "nothing", 0) + request("EXPIREMEMBER", "s", "m", 1000))
        until(lambda: b"blocked_clients:1" in server.command("INFO", "clients"))
        server.command("PUBLISH", "a", b"x" * MEGABYTE)
        until(lambda: admin.metrics()["held_bytes"] > MEGABYTE, what="bytes held in doubt")
        for _ in range(8):
            server.command("PUBLISH", "a", b"x" * MEGABYTE)
        until(lambda: admin.metrics()["requests_refused_total{reason=held_limit}"] == 1)
        assert client.rest().endswith(b"exceed held_limit: raise it\r\n")
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


@pytest.mark.parametrize("piece", ["CLIENT REPLY SKIP", "EXISTS s t"])
def test_outstanding_replies_count_as_held(server: Server, start_proxy: StartProxy, piece: str) -> None:
    check_outstanding_replies(server, start_proxy, piece)


def check_outstanding_replies(server: Server, start_proxy: StartProxy, piece: str = "EXISTS s t") -> None:
    """Small requests behind one that blocks: the proxy keeps more for each than it sent on."""
    proxy, admin = with_admin(start_proxy, server, "--held-limit", str(4 * MEGABYTE))
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    requests = request("BLPOP", "queue", 0) + request(*piece.split()) * 2000
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(4)]
        clients[0].send(requests)
        until(lambda: admin.metrics()["held_bytes"] > 1.5 * MEGABYTE, what="the replies that the first one awaits")
        for client in clients[1:]:
            with suppress(ConnectionError):
                client.send(requests)
        until(lambda: admin.metrics()["requests_refused_total{reason=held_limit}"] > 0, what="one too many")
        assert admin.metrics()["held_bytes"] < 6 * MEGABYTE
        server.command("RPUSH", "queue", *range(10))
        assert clients[0].reply().startswith(b"*2\r\n")
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_reads_under_way_count_as_held(server: Server, start_proxy: StartProxy) -> None:
    check_reads_under_way(server, start_proxy)


READ = request("SISMEMBER", "s", "m" * 15_000)


def _with_a_deadline(proxy: Proxy) -> int:
    """Give a set a deadline; return how much memory the proxy takes."""
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    return int(psutil.Process(proxy.pid).memory_info().rss)


def check_reads_under_way(server: Server, start_proxy: StartProxy) -> None:
    """What may be sent once more is kept until it has been answered, with the names in it; and no longer."""
    proxy, admin = with_admin(start_proxy, server, "--held-limit", str(16 * MEGABYTE))
    server.command("SET", "big", b"x" * (40 * MEGABYTE))
    before, process = _with_a_deadline(proxy), psutil.Process(proxy.pid)
    with proxy.connect() as client:
        client.send(request("BLPOP", "queue", 0))
        for _ in range(100):
            client.send(READ * 8)
        sent = 800 * len(READ)
        until(lambda: admin.metrics()["held_bytes"] > 0.95 * sent, what="reads that count")
        assert admin.metrics()["held_bytes"] < 1.2 * sent
        assert process.memory_info().rss - before < 1.5 * sent
        client.send(request("GET", "big") + READ * 80)
        until(lambda: admin.metrics()["held_bytes"] > 0.95 * (sent + 80 * len(READ)))
        server.command("RPUSH", "queue", 1)
        # The first ones are answered; the reply in front of the others is not read.
        until(lambda: admin.metrics()["held_bytes"] < 160 * len(READ), what="the end of those that were answered")
        assert admin.metrics()["held_bytes"] > 75 * len(READ)
        assert client.replies(801)[1:] == [b":0\r\n"] * 800
        assert client.replies(81)[1:] == [b":0\r\n"] * 80
        until(lambda: admin.metrics()["held_bytes"] == 0)
        client.send(request("BLPOP", "queue", 0))
        with suppress(ConnectionError):
            for _ in range(200):
                client.send(READ * 8)
        until(lambda: admin.metrics()["requests_refused_total{reason=held_limit}"] == 1)
    until(lambda: admin.metrics()["held_bytes"] == 0)
    until(lambda: process.memory_info().rss - before < 6 * MEGABYTE, what="memory given back")
    proxy.stop()


def test_reads_under_way_are_bounded(server: Server, start_proxy: StartProxy) -> None:
    check_reads_are_bounded(server, start_proxy)


def check_reads_are_bounded(server: Server, start_proxy: StartProxy) -> None:
    """Beyond that a client's reads wait, as writes do, and at last the client."""
    proxy, admin = with_admin(start_proxy, server)
    before, process = _with_a_deadline(proxy), psutil.Process(proxy.pid)
    with proxy.connect() as client:
        client.send(request("BLPOP", "queue", 0))
        client.socket.settimeout(2)
        data, sent = READ * 8, 0
        with suppress(TimeoutError):
            while sent < 200 * MEGABYTE:
                sent += client.socket.send(data[sent % len(data) :])
        assert 90 * MEGABYTE < sent < 150 * MEGABYTE
        assert admin.metrics()["held_bytes"] < 110 * MEGABYTE
        assert process.memory_info().rss - before < 140 * MEGABYTE
        client.socket.settimeout(30)
        server.command("RPUSH", "queue", 1)
        count = sent // len(READ)
        assert client.replies(1 + count)[1:] == [b":0\r\n"] * count
        client.send(READ[sent % len(READ) :])
        assert client.reply() == b":0\r\n"
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_what_waits_is_not_searched_letter_by_letter() -> None:
    """While a sign is awaited, of which the server might say that it refuses it."""
    replies = ReplySubstitution()
    replies.expect(b"", silent=True)
    chunk = b"x" * 65_536
    assert replies.receive(b"$40000000\r\n")
    began = time.process_time()
    for _ in range(200):
        assert replies.receive(chunk) == chunk
    took, began = time.process_time() - began, time.process_time()
    for _ in range(200):
        assert re.search(rb"(?<![^\n])(?:-BUSY |-NOPERM )", chunk) is None
    assert took < (time.process_time() - began) / 2


def test_messages_do_not_wait_for_a_request_of_the_proxys_own(server: Server, start_proxy: StartProxy) -> None:
    """Of a client that shares, `WAIT` has a write in front, and both replies are taken out of the stream."""
    proxy = start_proxy(server)
    with proxy.connect() as client, server.connect() as other:
        _said(client, "HELLO", 3, by=b"%")
        for _ in range(200):
            _said(client, "SET", "k", "v")
        _said(client, "SUBSCRIBE", "news", by=b">")
        client.send_command("WAIT", 1, 0)
        until(lambda: b"blocked_clients:1\r" in server.command("INFO", "clients"))
        for number in range(3):
            assert other.command("PUBLISH", "news", f"message {number}") == b":1\r\n"
            assert b"message %d" % number in client.reply()
        unblocked = b":%d\r\n"
        for line in server.command("CLIENT", "LIST").splitlines():
            if b"cmd=wait" in line:
                assert other.command("CLIENT", "UNBLOCK", line.split()[0].removeprefix(b"id=")) == unblocked % 1
        assert client.reply() == b":0\r\n"
        assert client.command("PING") == b"+PONG\r\n"
    proxy.stop()
