"""Clients that leave, and a proxy that is told to stop: what was sent before still runs, and nothing stays behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from proxy.commands.members import fields, zadd
from proxy.expiry.underway import SILENT_SECONDS
from proxy.wire.request import Blanks, RequestReader
from tests.admin import with_admin
from tests.certificates import Authority
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, held_count, request
from tests.servers import BINARIES, KIND, Proxy, Server, free_port, halt, until
from tests.test_ends import certificate, listening_by_tls, server_by_tls
from tests.test_flow import MEGABYTE
from tests.test_hostile import worst_answer
from tests.test_sharing import SHARING, shared
from tests.test_tls import KIND as TLS_KIND

pytestmark = pytest.mark.oldest_kind

COUNT = 2200
"""Short requests that are sent at once: no more than a server reads at once, 16 KB."""


BUSY = """
    local function now() local time = redis.call('time') return time[1] * 1000 + time[2] / 1000 end
    local ends = now() + ARGV[1]
    repeat until now() >= ends
"""
"""A script that takes so many ms."""

leaving = pytest.mark.parametrize("leave", [Raw.close, Raw.reset])


def a_known_hash(proxy: Proxy) -> None:
    """Make a hash of whose fields one has a deadline: a script that counts waits for the engine."""
    proxy.command("HSET", "known", "f", 1, "g", 2)
    assert proxy.command("EXPIREMEMBER", "known", "g", 10_000) == b":1\r\n"


def all_have_run(server: Server) -> bool:
    return server.command("GET", "x") == b"$4\r\n%d\r\n" % COUNT


@leaving
def test_what_waits_behind_unread_replies_runs(upstream: Server, proxy: Proxy, leave: Callable[[Raw], None]) -> None:
    a_known_hash(proxy)
    upstream.command("SET", "big", b"x" * (30 * MEGABYTE))
    client = proxy.connect()
    client.send(request("GET", "big") + held_count("known", "f", 1) + request("SET", "done", 1))
    assert client.line() == b"$%d\r\n" % (30 * MEGABYTE)
    time.sleep(0.3)  # until nothing is read any more
    leave(client)
    until(lambda: upstream.command("EXISTS", "done") == b":1\r\n")
    assert upstream.command("HGET", "known", "f") == b"$1\r\n2\r\n"


@pytest.mark.one_kind
def test_a_slow_reader_that_has_ended_its_requests_has_not_gone(upstream: Server, proxy: Proxy) -> None:
    """Nothing comes while it does not read: that is not the sign of a request that blocks."""
    a_known_hash(proxy)
    upstream.command("SET", "big", b"x" * (30 * MEGABYTE))
    with proxy.connect() as client:
        client.send(request("GET", "big") + held_count("known", "f", 1))
        client.end_of_requests()
        time.sleep(2.5)  # the proxy looks every second
        assert client.rest().endswith(b"\r\n:2\r\n")


@leaving
def test_all_that_was_read_runs(upstream: Server, proxy: Proxy, leave: Callable[[Raw], None]) -> None:
    """Requests that are judged in turns, as others are served between."""
    for _ in range(10):
        upstream.flush()
        a_known_hash(proxy)
        client = proxy.connect()
        client.command("PING")
        client.send(b"hset known f 5\n" + b"incr x\n" * COUNT)
        time.sleep(0.002)
        leave(client)
        until(lambda: all_have_run(upstream))


def test_all_that_was_read_runs_behind_tls(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    own = authority.sign("server", "IP:127.0.0.1")
    plain_port, tls_port = free_port(), free_port()
    files = ("--listen-tls-cert-file", str(own.file), "--listen-tls-key-file", str(own.key))
    listen = ("--listen", f"127.0.0.1:{plain_port}", "--listen", f"tls://127.0.0.1:{tls_port}")
    proxy = start_proxy(server, *listen, *files)
    context = ssl.create_default_context(cafile=str(authority.file))
    a_known_hash(proxy)
    for at_once in (False, True):
        for _ in range(5):
            server.command("DEL", "x")
            plain = socket.create_connection(("127.0.0.1", tls_port))
            client = context.wrap_socket(plain, server_hostname="127.0.0.1")
            if not at_once:  # else it has gone before the proxy has connected to the server
                client.sendall(b"PING\r\n")
                client.recv(10)
            client.sendall(b"hset known f 5\n" + b"incr x\n" * COUNT)
            client.close()
            until(lambda: all_have_run(server))
    proxy.stop()


@pytest.mark.parametrize("half_closed", [False, True], ids=["open", "half-closed"])
@pytest.mark.parametrize("held", [False, True], ids=["relaying", "held"])
def test_all_that_was_read_is_answered_before_the_end(
    server: Server, start_proxy: StartProxy, held: bool, half_closed: bool
) -> None:
    proxy = start_proxy(server)
    a_known_hash(proxy)
    with server.connect() as busy, proxy.connect() as client:
        client.command("PING")
        if held:
            busy.send_command("DEBUG", "SLEEP", "0.5")
            time.sleep(0.05)
        client.send((held_count("known", "f", 7) if held else request("HSET", "known", "f", 7)) + b"incr x\n" * COUNT)
        if half_closed:
            client.end_of_requests()
        time.sleep(0.1 if held else 0.003)
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert client.rest().count(b":") == COUNT + 1
        assert proxy.process.wait() == 0
        assert time.monotonic() - began < 5
    assert "stopped before" not in proxy.process.output
    assert all_have_run(server)


def test_a_long_reply_is_no_silence(server: Server, start_proxy: StartProxy) -> None:
    check_long_replies(server, start_proxy)


def check_long_replies(server: Server, start_proxy: StartProxy) -> None:
    """A client that gets messages has ended its side behind long replies that it does not want."""
    proxy = start_proxy(server)
    server.command("SET", "big", b"x" * (5 * MEGABYTE))
    for wait in (b"", *3 * [request("WAIT", 0, 0)]):  # the server is asked for one after the other
        with proxy.connect() as client:
            client.command("HELLO", 3)
            client.command("CLIENT", "TRACKING", "ON")
            client.send(request("CLIENT", "REPLY", "OFF") + wait + 30 * request("GET", "big"))
            client.send(request("CLIENT", "REPLY", "ON") + request("PING"))
            client.end_of_requests()
            assert client.rest() == b"+OK\r\n+PONG\r\n"


def check_left_unused(server: Server, start_proxy: StartProxy) -> None:
    """A server that hangs has nothing to read of clients that have sent nothing."""
    proxy, admin = with_admin(start_proxy, server)
    clients = [proxy.connect() for _ in range(5)]
    until(lambda: admin.metrics()["client_connections"] == 5)
    until(lambda: server.command("CLIENT", "LIST").count(b" cmd=NULL ") >= 5, what="connections to the server")
    assert server.process is not None
    halt(server.process.pid)
    try:
        for client in clients:
            client.reset()
        until(lambda: admin.metrics()["client_connections"] == 0, what="no clients")
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_who_has_sent_nothing_is_not_counted_behind_a_server_that_hangs(
    server: Server, start_proxy: StartProxy
) -> None:
    check_left_unused(server, start_proxy)


def check_behind_a_busy_script(
    server: Server, start_proxy: StartProxy, leave: Callable[[Raw], object], *rules: str
) -> None:
    """A client leaves behind its own slow script, and a request behind it that might block.

    A proxy whose user may not send PING hears NOPERM, as from any server that is not busy, until it asks for more.
    """
    server.command("ACL", "SETUSER", "control", "on", ">x", "~*", "&*", "+@all")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//control:x@"))
    server.command("ACL", "SETUSER", "control", *rules)
    with server.busy_after(50), proxy.connect() as client:
        client.send(request("SADD", "known", "m") + request("EXPIREMEMBER", "known", "m", 10_000))
        assert client.replies(2)[1] == b":1\r\n"
        client.send(request("RPUSH", "jobs", "job") + request("EVAL", BUSY, 0, 1000) + request("BLPOP", "jobs", 0))
        client.send(request("EVAL", "return redis.call('SADD', KEYS[1], 'late')", 1, "known") + request("INCR", "ran"))
        until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
        leave(client)
        until(lambda: server.command("GET", "ran") == b"$1\r\n1\r\n", 10, what="all has run")
        assert server.command("SISMEMBER", "known", "late") == b":1\r\n"


@pytest.mark.parametrize("leave", [Raw.end_of_requests, Raw.close])
@pytest.mark.parametrize("rule", ["+ping", "-ping"])
def test_what_waits_behind_a_busy_script_runs(
    server: Server, start_proxy: StartProxy, leave: Callable[[Raw], object], rule: str
) -> None:
    check_behind_a_busy_script(server, start_proxy, leave, rule)


def check_behind_an_unread_reply(server: Server, start_proxy: StartProxy) -> None:
    """A client closes with a reply unread, which resets the connection, and the proxy writes before it reads."""
    assert server.process is not None
    server.flush()
    held = psutil.Process(server.process.pid)
    for proxy in (start_proxy(server), start_proxy(server, *SHARING)):
        with proxy.connect() as known:
            known.command("SADD", "known", "m")
            assert known.command("EXPIREMEMBER", "known", "m", 10_000) == b":1\r\n"
        for key in ("known", "plain"):
            client = proxy.connect()
            for _ in range(3):
                assert client.command("INCR", "n").startswith(b":")
            client.send_command("PING")
            until(partial(select.select, [client.socket], [], [], 0.1), what="a reply")
            held.suspend()
            client.send_command("GET", "n")
            until(partial(waits_at, server), what="a request that the server has not read")
            halt(proxy.pid)
            try:
                held.resume()
                server.command("PING")
                client.send_command("SADD", key, "last")
                client.close()
            finally:
                os.kill(proxy.pid, signal.SIGCONT)
            until(partial(is_there, server, key, "last"), what=f"what was sent last, {key}")
            server.command("SREM", key, "last")


def waits_at(server: Server) -> bool:
    """Whether bytes have arrived that a server has not read (proc(5), /proc/net/tcp)."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{server.port:04X}") and int(row[4].partition(":")[2], 16) for row in rows)


def is_there(server: Server, key: str, member: str) -> bool:
    return server.command("SISMEMBER", key, member) == b":1\r\n"


def test_what_was_sent_before_a_reset_runs(server: Server, start_proxy: StartProxy) -> None:
    check_behind_an_unread_reply(server, start_proxy)


def test_what_was_sent_before_leaving_runs_before_the_end(server: Server, start_proxy: StartProxy) -> None:
    """The proxy is told to stop when the client has gone."""
    proxy = start_proxy(server)
    a_known_hash(proxy)
    with server.connect() as busy, proxy.connect() as client:
        client.command("PING")
        busy.send_command("DEBUG", "SLEEP", "0.5")
        time.sleep(0.05)
        client.send(held_count("known", "f", 1) + b"incr x\n" * COUNT)
        time.sleep(0.1)
        client.reset()
        time.sleep(0.05)
        proxy.stop()
    assert all_have_run(server)


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_who_has_left_gets_no_job(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """The server hears of a client's end before it hears of what others have sent since.

    (Redis 6.2, asked straight, gives the job away in one of five tries itself.)
    """
    server = start_server(kind)
    proxy = start_proxy(server)
    with proxy.connect() as pusher, server.connect() as straight:
        for _ in range(30):
            client = proxy.connect()
            client.send_command("BLPOP", "jobs", 0)
            until(lambda: b"blocked_clients:1\r" in straight.command("INFO", "clients"))
            client.close()
            pusher.command("RPUSH", "jobs", "job")
            assert straight.command("LPOP", "jobs") == b"$3\r\njob\r\n"
    proxy.stop()


class _Encrypted(Raw):
    """A connection by TLS."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.socket = context.wrap_socket(self.socket)
        self._file = self.socket.makefile("rb")


def check_no_job_is_lost(
    connect: Callable[[], Raw],
    pusher: Callable[[], Raw],
    straight: Callable[[], Raw],
    tries: int = 100,
    behind: bytes = b"",
    fresh: bool = False,
    split: bool = False,
    later: float = 0.0,
    front: bytes = b"",
    waits: bool = True,
    apart: bool = False,
    message: bytes = b"",
    at_most: int = 5,
    taken: int = 0,
) -> None:
    """A client blocks (if `fresh`, by its first bytes), sends some more and closes; at once another pushes a job.

    `split`: the request comes in two pieces, in the middle of its first key. `later`: how many seconds before the push.
    `front`: what it sends before.
    `waits`: whether it closes when it is blocked; else at once. `apart`: whether these do not go together. `message`:
    what it hears while it is blocked, on the channel `c`. `at_most`: how many jobs may be lost. `taken`: how many jobs
    it has taken before, one at a time.

    A server gives the job away itself where both come in one of its turns: on a busy machine it does, without a proxy,
    in up to 2 of 10 tries.
    """
    lost = 0
    with pusher() as push, straight() as server:
        assert push.command("PING") == b"+PONG\r\n"
        for number in range(tries):
            command = ("BRPOP", "jobs", 0) if number % 2 else ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0)
            server.command("XGROUP", "CREATE", "stream", "g", "$", "MKSTREAM")
            client = connect()
            blocking = request(*command, *(() if number % 2 else ("STREAMS", "stream", ">")))
            sent = blocking if apart else front + blocking + behind
            head = sent[:-20] if split else b""
            if not fresh:
                client.send(request("PING") + (front if apart else head))
                assert client.reply() == b"+PONG\r\n"
            for _ in range(taken):
                server.command("LPUSH", "done", "job")
                assert client.command("BRPOP", "done", 0) == b"*2\r\n$4\r\ndone\r\n$3\r\njob\r\n"
            client.send(sent[len(head) :])
            if waits:
                until(lambda: b"blocked_clients:1\r" in server.command("INFO", "clients"))
            if apart:
                client.send(behind)
            if message:
                server.command("PUBLISH", "c", message)
                heard = b""
                while message not in heard:
                    heard += client.some()
            client.close()
            time.sleep(later)
            push.command(*(("LPUSH", "jobs", "job") if number % 2 else ("XADD", "stream", "*", "a", "job")))
            until(lambda: b"blocked_clients:0\r" in server.command("INFO", "clients"))
            if number % 2:
                lost += server.command("LPOP", "jobs") != b"$3\r\njob\r\n"
            else:
                lost += not server.command("XPENDING", "stream", "g").startswith(b"*4\r\n:0\r\n")
                server.command("DEL", "stream")
    assert lost <= at_most, lost


@pytest.mark.one_kind
@pytest.mark.parametrize("pushed_by_tls", [False, True])
@pytest.mark.parametrize("by_tls", [False, True])
def test_who_has_left_by_tls_gets_no_job(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, by_tls: bool, pushed_by_tls: bool
) -> None:
    server = start_server(KIND)
    options, port = listening_by_tls(certificate(tmp_path))
    proxy = start_proxy(server, *options)

    def connect(*, tls: bool) -> Raw:
        return _Encrypted(port) if tls else proxy.connect()

    check_no_job_is_lost(partial(connect, tls=by_tls), partial(connect, tls=pushed_by_tls), server.connect)
    proxy.stop()


@pytest.mark.one_kind
@leaving
def test_nor_does_who_has_left_behind_a_request_that_is_too_large(
    upstream: Server, start_proxy: StartProxy, leave: Callable[[Raw], None]
) -> None:
    """The server will refuse that one, when the one in front has run."""
    client = start_proxy(upstream).connect()
    client.command("PING")
    client.send(request("BLPOP", "queue", 0) + b"*1\r\n$1000000000\r\n")
    until(lambda: b"blocked_clients:1" in upstream.command("INFO", "clients"))
    leave(client)
    until(lambda: b"blocked_clients:0" in upstream.command("INFO", "clients"), what="its end")
    assert upstream.command("RPUSH", "queue", "job") == b":1\r\n"
    assert upstream.command("LPOP", "queue") == b"$3\r\njob\r\n"


@pytest.mark.one_kind
@pytest.mark.parametrize("by_tls", [False, True])
def test_nor_does_who_has_left_within_a_request(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, by_tls: bool
) -> None:
    """The beginning of a request that comes to a server with the end is read before that, in a turn of its own."""
    server = start_server(KIND)
    options, port = listening_by_tls(certificate(tmp_path))
    proxy = start_proxy(server, *options)
    connect = partial(_Encrypted, port) if by_tls else proxy.connect
    check_no_job_is_lost(connect, proxy.connect, server.connect, behind=request("SET", "half", "value")[:-4])
    proxy.stop()


OFF, ON, SKIP = (request("CLIENT", "REPLY", word) for word in ("OFF", "ON", "SKIP"))
HEARS = request("HELLO", 3) + request("SUBSCRIBE", "c")
PART = request("SET", "half", "x" * 40_000)[:30_000]


@pytest.mark.one_kind
@pytest.mark.parametrize(
    ("front", "behind"),
    [(b"", SKIP), (b"", OFF), (OFF, b""), (SKIP, b""), (OFF, ON), (SKIP, request("PING")), (OFF, ON + PART)],
    ids=["SKIP behind", "OFF behind", "OFF", "SKIP", "OFF and ON", "SKIP and more", "OFF and ON, a part"],
)
def test_nor_does_who_has_left_in_silence(
    start_server: StartServer, start_proxy: StartProxy, front: bytes, behind: bytes
) -> None:
    """The server is told at once, although it drops what it has not sent: nothing that is wanted stands behind that."""
    check_who_has_left_in_silence(start_server(KIND), start_proxy, front, behind)


def check_who_has_left_in_silence(
    server: Server,
    start_proxy: StartProxy,
    front: bytes = b"",
    behind: bytes = b"",
    later: float = 0.0,
    waits: bool = True,
    apart: bool = False,
    message: bytes = b"",
    at_most: int = 3,
) -> None:
    proxy = start_proxy(server)
    check_no_job_is_lost(
        proxy.connect,
        proxy.connect,
        server.connect,
        10,
        behind,
        later=later,
        front=front,
        waits=waits,
        apart=apart,
        message=message,
        at_most=at_most,
    )
    proxy.stop()


@pytest.mark.one_kind
@pytest.mark.parametrize("message", [b"word", b"w" * 1_000_000], ids=["a short one", "one in parts"])
@pytest.mark.parametrize(("front", "behind"), [(OFF, b""), (SKIP, b""), (OFF, ON)], ids=["OFF", "SKIP", "OFF and ON"])
def test_nor_does_who_has_heard_a_message_meanwhile(
    start_server: StartServer, start_proxy: StartProxy, front: bytes, behind: bytes, message: bytes
) -> None:
    """A message is no reply: the server is still at the request that blocks."""
    check_who_has_left_in_silence(start_server(KIND), start_proxy, HEARS + front, behind, message=message)


@pytest.mark.one_kind
def test_nor_does_who_has_left_in_a_silence_that_began_behind(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """If the request did not block, large replies that are dropped could stand in front of one that is wanted: so the
    proxy asks whether it does, and that at once."""
    behind = SKIP + request("PING") * 2
    check_who_has_left_in_silence(start_server(KIND), start_proxy, behind=behind, later=0.012)


@pytest.mark.one_kind
@pytest.mark.parametrize("sent", [request("PING") + OFF, OFF + request("PING"), request("PING") + SKIP, OFF])
def test_who_leaves_in_silence_during_a_pause_is_gone(
    start_server: StartServer, start_proxy: StartProxy, sent: bytes
) -> None:
    check_who_leaves_during_a_pause(start_server(KIND), start_proxy, sent)


def check_who_leaves_during_a_pause(server: Server, start_proxy: StartProxy, sent: bytes = OFF) -> None:
    """See that it keeps no descriptor, though the server answers nobody."""
    proxy = start_proxy(server)
    with proxy.connect() as other:
        assert other.command("PING") == b"+PONG\r\n"
        process = psutil.Process(proxy.pid)
        before = process.num_fds()
        clients = [proxy.connect() for _ in range(5)]
        for client in clients:
            client.send(sent)
        until(lambda: b"client|reply:calls=5," in server.command("INFO", "commandstats"))
        assert server.command("CLIENT", "PAUSE", 20_000, "ALL") == b"+OK\r\n"
        for client in clients:
            client.close()
        until(lambda: process.num_fds() <= before, what="its descriptors")
        proxy.process.kill()


@pytest.mark.one_kind
@pytest.mark.parametrize("by_tls", [False, True])
def test_nor_does_who_has_left_with_requests_that_wait(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, by_tls: bool
) -> None:
    """A script on a key with deadlines waits for the reply to what is in front of it."""
    server = start_server(KIND)
    options, port = listening_by_tls(certificate(tmp_path))
    proxy = start_proxy(server, *options)
    with proxy.connect() as client:
        client.command("SADD", "known", "m")
        assert client.command("EXPIREMEMBER", "known", "m", 1000) == b":1\r\n"
    connect = partial(_Encrypted, port) if by_tls else proxy.connect
    behind = request("EVAL", "return 1", 1, "known")
    check_no_job_is_lost(connect, proxy.connect, server.connect, tries=16, behind=behind, later=0.25)
    proxy.stop()


@pytest.mark.one_kind
def test_nor_does_who_has_left_with_a_transaction_that_waits(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    check_who_has_left_with_a_transaction(start_server(KIND), start_proxy)


def check_who_has_left_with_a_transaction(server: Server, start_proxy: StartProxy) -> None:
    """Who may hear messages is asked about first, behind the request that blocks."""
    proxy = start_proxy(server)
    with proxy.connect() as client:
        client.command("SADD", "known", "m")
        assert client.command("EXPIREMEMBER", "known", "m", 1000) == b":1\r\n"
    check_no_job_is_lost(
        proxy.connect,
        proxy.connect,
        server.connect,
        tries=30,
        front=request("UNSUBSCRIBE"),
        apart=True,
        behind=request("MULTI"),
        later=0.012,
    )
    proxy.stop()


@pytest.mark.one_kind
@pytest.mark.parametrize("leave", [Raw.close, Raw.end_of_requests])
@pytest.mark.parametrize("waits", ["reads", "a script", "the end"])
def test_who_has_left_behind_a_request_that_blocks_is_gone(
    start_server: StartServer, start_proxy: StartProxy, leave: Callable[[Raw], None], waits: str
) -> None:
    """Whatever of it waits behind that for a reply: reads that may be sent once more, a request, or the proxy's end."""
    check_who_has_left_is_gone(start_server(KIND), start_proxy, leave, waits)


def check_who_has_left_is_gone(
    server: Server, start_proxy: StartProxy, leave: Callable[[Raw], None], waits: str
) -> None:
    proxy = start_proxy(server, "--max-clients", "10")
    behind = {"reads": request("SISMEMBER", "known", "m"), "a script": request("EVAL", "return 1", 1, "known")}
    clients = [proxy.connect() for _ in range(10)]
    clients[0].command("SADD", "known", "m")
    assert clients[0].command("EXPIREMEMBER", "known", "m", 1000) == b":1\r\n"
    for client in clients:
        client.send(request("PING") + request("BRPOP", "jobs", 0) + behind.get(waits, b""))
        assert client.reply() == b"+PONG\r\n"
    until(lambda: b"blocked_clients:10\r" in server.command("INFO", "clients"))
    if waits == "the end":
        proxy.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    began = time.monotonic()
    for client in clients:
        leave(client)
    until(lambda: b"blocked_clients:0\r" in server.command("INFO", "clients"))
    if waits != "the end":
        until(lambda: proxy.command("PING") == b"+PONG\r\n")
        proxy.stop()
    else:
        assert proxy.process.wait() == 0
    assert time.monotonic() - began < 3
    server.command("LPUSH", "jobs", "job")
    assert server.command("LLEN", "jobs") == b":1\r\n"
    for client in clients:
        if leave is not Raw.close:
            assert client.rest() == b""
            client.close()


class SlowWay:
    """Stands in front of a server, and keeps what comes behind the first 64 KB of a connection for a moment before it
    passes that on."""

    def __init__(self, port: int, moment: float) -> None:
        self._target, self._moment = ("127.0.0.1", port), moment
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._target)
                self._sockets += [near, far]
                for source, sink, moment in ((near, far, self._moment), (far, near, 0.0)):
                    threading.Thread(target=self._pass, args=(source, sink, moment), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, moment: float) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if moment and passed < 1 << 16 <= passed + len(data):
                    source.settimeout(moment)
                    with suppress(TimeoutError):
                        while more := source.recv(1 << 16):
                            data += more
                    source.settimeout(None)
                passed += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.mark.one_kind
@pytest.mark.parametrize("way", ["plain", "by TLS"])
def test_who_has_left_is_served_by_a_server_that_still_reads(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, way: str
) -> None:
    """That nothing is answered does not tell that a request blocks, where none of them can."""
    authority = Authority(tmp_path, "ca")
    own, port = authority.sign("server", "IP:127.0.0.1"), free_port()
    files = ("--tls-cert-file", str(own.file), "--tls-key-file", str(own.key), "--tls-ca-cert-file")
    server = start_server(TLS_KIND, "--tls-port", str(port), *files, str(authority.file), "--tls-auth-clients", "no")
    if way == "by TLS":
        check_a_slow_way(start_proxy, "rediss", port, "--tls-ca-file", str(authority.file))
    else:
        check_a_slow_way(start_proxy, "redis", port_of(server))


def port_of(server: Server) -> int:
    assert isinstance(server.address, tuple)
    return server.address[1]


def check_a_slow_way(start_proxy: StartProxy, scheme: str, port: int, *options: str) -> None:
    slow = SlowWay(port, 0.5)
    proxy = start_proxy(None, "--upstream", f"{scheme}://127.0.0.1:{slow.port}", *options)
    with proxy.connect() as client:
        client.command("SADD", "known", "m")
        assert client.command("EXPIREMEMBER", "known", "m", 1000) == b":1\r\n"
    script = request("EVAL", "return redis.call('SADD', KEYS[1], 'x')", 1, "known")
    pop = request("BLPOP", "jobs", 0)  # which has been answered, as far as the client knows
    for front in (request("PING"), pop):
        for behind, replies in ((script, b"+OK\r\n:1\r\n"), (request("PING"), b"+OK\r\n+PONG\r\n")):
            with proxy.connect() as client:
                client.command("SREM", "known", "x")
                client.command("LPUSH", "jobs", "job")
                client.send(front)
                client.reply()
                client.send(request("SET", "value", "x" * 200_000) + behind)
                client.end_of_requests()
                assert client.rest() == replies
    with proxy.connect() as client:
        client.command("SREM", "known", "x")
        assert client.command("CLIENT", "PAUSE", 2000, "WRITE") == b"+OK\r\n"
        client.send(request("SET", "value", "x") + script)
        client.end_of_requests()
        assert client.rest() == b"+OK\r\n:1\r\n"
    proxy.stop()
    slow.close()


@pytest.mark.one_kind
@pytest.mark.parametrize(
    "sent", ["fresh", "split", "behind others", "behind jobs", "behind a reply", "behind a front", "before a wrong one"]
)
def test_who_has_left_gets_no_job_of_a_server_by_tls(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, sent: str
) -> None:
    """TLS has no half close: the connection beneath has. What the server says to a script in front is no reply yet."""
    check_who_has_left_a_server_by_tls(*server_by_tls(start_server, certificate(tmp_path)), start_proxy, sent)


def check_who_has_left_a_server_by_tls(server: Server, port: int, start_proxy: StartProxy, sent: str) -> None:
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", "--no-tls-verify")
    if sent == "behind jobs":
        check_no_job_is_lost(proxy.connect, proxy.connect, server.connect, 30, taken=3, at_most=2)
    elif sent == "behind a reply":
        ended = request("BRPOP", "none", "0.002")
        check_no_job_is_lost(
            proxy.connect, proxy.connect, server.connect, 30, front=ended, apart=True, later=0.01, at_most=5
        )
    elif sent == "before a wrong one":  # which is refused at its head
        wrong = b"*1\r\n$99999999999\r\n"
        with proxy.connect() as client, server.connect() as admin:
            client.send(request("SET", "value", "x" * 300_000) + request("BRPOP", "jobs", 0) + wrong)
            assert client.reply() == b"+OK\r\n"
            until(lambda: b"blocked_clients:1\r" in admin.command("INFO", "clients"))
            client.close()
            until(lambda: b"blocked_clients:0\r" in admin.command("INFO", "clients"), 0.5)
    elif sent == "behind a front":
        assert proxy.command("SADD", "jobs", "m") == b":1\r\n"
        assert proxy.command("EXPIREMEMBER", "jobs", "m", 1000) == b":1\r\n"
        assert proxy.command("DEL", "jobs") == b":1\r\n"
        check_no_job_is_lost(proxy.connect, server.connect, server.connect, later=0.002)
    else:
        check_no_job_is_lost(proxy.connect, proxy.connect, server.connect, fresh=sent == "fresh", split=sent == "split")
    proxy.stop()


@pytest.mark.one_kind
@pytest.mark.parametrize(("way", "pause"), [("plain", 0), ("by TLS", 0), ("plain", 8)])
def test_a_reply_that_is_read_slowly_is_read_to_its_end(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path, way: str, pause: int
) -> None:
    """Also while the client sends on: what nobody reads would reset the connection, and take the rest along.

    A system makes room in large steps: of a client that reads 8 KB a second nothing may be taken for 8 s.
    """
    server = start_server(KIND)
    options, port = listening_by_tls(certificate(tmp_path), "--shutdown-timeout", "15")
    proxy = start_proxy(server, *options)
    whole = b"$2000000\r\n" + b"x" * 2_000_000 + b"\r\n"
    assert server.command("SET", "big", whole[10:-2]) == b"+OK\r\n"
    client = _Encrypted(port) if way == "by TLS" else proxy.connect()
    with client:
        assert client.command("PING") == b"+PONG\r\n"
        client.send(request("GET", "big"))
        assert select.select([client.socket], [], [], 10)[0], "no reply has begun"
        proxy.process.send_signal(signal.SIGTERM)
        got = b""
        client.socket.settimeout(10)
        for _ in range(pause * 2):
            client.send(request("PING"))
            time.sleep(0.5)
        while len(got) < len(whole):
            with suppress(OSError):
                client.send(request("PING"))
            part = client.socket.recv(20_000)
            if not part:
                break
            got += part
            time.sleep(0.025)
    whole_came = got[: len(whole)] == whole
    assert whole_came, len(got)
    assert proxy.process.wait() == 0, proxy.process.output


def test_what_clients_held_is_free_when_they_have_gone(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--held-limit", str(1 << 30))
    a_known_hash(proxy)
    process = psutil.Process(proxy.pid)
    before = process.memory_info().rss
    clients = [proxy.connect() for _ in range(4)]
    for client in clients:
        client.send(request("BLPOP", "queue", 0) + held_count("known", "f", 1))
    until(lambda: b"blocked_clients:4" in server.command("INFO", "clients"))
    for client in clients:
        for _ in range(60):
            client.send(b"x" * MEGABYTE)
    until(lambda: process.memory_info().rss - before > 200 * MEGABYTE)
    for client in clients:
        client.close()
    until(lambda: process.memory_info().rss - before < 20 * MEGABYTE)
    proxy.stop()


def test_questions_that_are_answered_at_once_hold_nobody_up(start_server: StartServer, start_proxy: StartProxy) -> None:
    """Strangers that want no replies: whether they have logged in cannot be waited for."""
    server = start_server(min(BINARIES), "--requirepass", "secret")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:secret@"))
    clients = [proxy.connect() for _ in range(4)]
    with worst_answer(proxy) as times:  # an error line is an answer too
        for client in clients:
            client.send(b"client reply off\n" + b"ttl a b\n" * 31_000)
        time.sleep(1.5)
    for client in clients:
        client.close()
    assert max(times) < 0.8
    proxy.stop()


def test_options_without_end_hold_nobody_up(upstream: Server, proxy: Proxy) -> None:
    for locate, words in ((zadd, [b"ZADD", b"k"]), (fields, [b"HGETDEL", b"k"])):
        arguments = words + [b"NX"] * 3_000_000 + [b"1", b"m"]
        began = time.process_time()
        assert locate(arguments, len(arguments)) is None
        assert time.process_time() - began < 0.1
    # So where the members stand is not known: all that are absent lose their deadlines, as some are about to be added.
    proxy.command("ZADD", "z", 1, "stays", 1, "goes")
    assert proxy.command("EXPIREMEMBER", "z", "goes", 1000) == b":1\r\n"
    assert proxy.command("EXPIREMEMBER", "z", "stays", 1000) == b":1\r\n"
    upstream.command("ZREM", "z", "goes")
    assert proxy.command("ZADD", "z", *["NX"] * 12_000, 1, "goes") == b":1\r\n"
    assert proxy.command("TTL", "z", "goes") == b":-1\r\n"
    assert proxy.command("TTL", "z", "stays") != b":-1\r\n"


def test_what_waits_is_not_copied_whenever_more_comes() -> None:
    reader = RequestReader()
    one = held_count("known", "f", 1)
    reader.feed(one)
    for _ in range(64):
        reader.feed(one * (MEGABYTE // 4 // len(one)))
    began = time.process_time()
    for _ in range(1000):
        assert reader.next_request() is not None
        reader.feed(one)
    assert time.process_time() - began < 0.3


def test_a_huge_request_that_waits_is_read_in_turns() -> None:
    """No call reads more than a bounded part of many small arguments."""
    reader = RequestReader()
    whole = request("DEL", *["k"] * 1_000_000)
    reader.feed(b"")
    for begin in range(0, len(whole), 100_000):
        reader.feed(whole[begin : begin + 100_000])
    calls, found = 1, reader.next_request()
    while found is None:
        assert reader.unread
        calls, found = calls + 1, reader.next_request()
    assert calls > 20
    assert found.raw == whole
    assert not reader.held


def test_lines_of_blanks_are_read_in_turns() -> None:
    reader = RequestReader(Blanks.INLINE)
    reader.feed(b" \n" * 10_000)
    assert reader.next_request() is not None
    assert reader.held > 19_800


def test_clients_that_leave_behind_their_pipelines_hold_nobody_up(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Each of theirs, too, is a long pipeline for the others, whose first deadlines wait for it."""
    proxy = start_proxy(start_server(min(BINARIES)))
    count, keys = 10, 50
    for number in range(count):
        with proxy.connect() as client:
            for place in range(keys):
                client.send(request("SADD", f"k{number}:{place}", "m"))
            client.send(b"".join(request("EXPIREMEMBER", f"k{number}:{place}", "m", 1000) for place in range(keys)))
    with proxy.connect() as client:
        for number in range(3):
            assert client.command("SADD", f"own{number}", "m") == b":1\r\n"
            began = time.monotonic()
            assert client.command("EXPIREMEMBER", f"own{number}", "m", 1000) == b":1\r\n"
            assert time.monotonic() - began < 2
        for number in range(count):
            for place in range(keys):
                key = f"k{number}:{place}"
                until(lambda key=key: about(client.command("TTL", key, "m"), 1000))  # type: ignore[misc]
    began = time.monotonic()
    proxy.stop()
    assert time.monotonic() - began < 5


def test_a_transaction_that_fills_up_holds_nobody_up(start_server: StartServer, start_proxy: StartProxy) -> None:
    proxy = start_proxy(start_server(min(BINARIES)))
    ended, fills = threading.Event(), threading.Event()

    def fill() -> None:
        with proxy.connect() as filling:
            filling.send(request("MULTI") + request("SADD", "set", "m") + request("EXPIREMEMBER", "set", "m", 1000))
            assert filling.replies(3) == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
            while not (ended.is_set() and fills.is_set()):
                assert filling.command("SET", "k", "x" * 5000) == b"+QUEUED\r\n"
                fills.set()
                ended.wait(0.01)
            assert filling.command("EXEC").count(b"+OK\r\n") > 0

    thread = threading.Thread(target=fill)
    with proxy.connect() as client:
        client.command("SADD", "before", "m")
        client.command("EXPIREMEMBER", "before", "m", 1000)
    thread.start()
    try:
        assert fills.wait(10)
        with proxy.connect() as client:
            for number in range(5):
                assert client.command("SADD", f"s{number}", "m") == b":1\r\n"
                began = time.monotonic()
                assert client.command("EXPIREMEMBER", f"s{number}", "m", 1000) == b":1\r\n"
                assert time.monotonic() - began < 2
    finally:
        ended.set()
        thread.join()
    proxy.stop()


def check_what_is_unfinished(server: Server, proxy: Proxy, unfinished: str) -> None:
    """The member is removed and added again before it gets its deadline, so that belongs to its new life."""
    slow = [request("EVAL", BUSY, 0, 60), request("SET", "padding", "x" * 17_000)] * 12
    again = [request("SREM", "set", "m"), request("SADD", "set", "m"), request("SET", "ran", "1")]
    value = request("SET", "large", "x" * 60_000)
    with proxy.connect() as client, proxy.connect() as other, server.connect() as beside:
        for key in ("before", "set"):
            assert client.command("SADD", key, "m") == b":1\r\n"
        if unfinished == "a transaction":
            assert client.command("EXPIREMEMBER", "before", "m", 1000) == b":1\r\n"
            queued = request("EXPIREMEMBER", "before", "n", 1000)
        else:
            queued = request("PING")
        rest = {"a value": value[:30_000], "a value behind others": value * 2 + value[:30_000]}
        ending = rest.get(unfinished, request("MULTI") + queued)
        client.send(b"".join([*slow, *again, ending]))
        assert other.command("PING") == b"+PONG\r\n"  # by now the proxy has sent all of it
        assert other.command("EXPIREMEMBER", "set", "m", 1000) == b":1\r\n"
        assert beside.command("EXISTS", "ran") == b":1\r\n"
        assert client.replies(27)[24:] == [b":1\r\n", b":1\r\n", b"+OK\r\n"]
        assert about(other.command("TTL", "set", "m"), 1000)


@pytest.mark.parametrize(
    "unfinished", ["a transaction", "the first transaction of all", "a value", "a value behind others"]
)
def test_what_was_sent_before_something_unfinished_is_waited_for(
    start_server: StartServer, start_proxy: StartProxy, unfinished: str
) -> None:
    server = start_server(min(BINARIES))
    proxy = start_proxy(server)
    check_what_is_unfinished(server, proxy, unfinished)
    proxy.stop()


def check_a_slow_upload(proxy: Proxy) -> None:
    with proxy.connect() as client, proxy.connect() as slow:
        assert client.command("SADD", "before", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "before", "m", 1000) == b":1\r\n"
        slow.send(b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$50000000\r\n")
        took = []
        for number in range(20):
            assert client.command("SADD", f"s{number}", "m") == b":1\r\n"
            slow.send(b"x" * 8000)
            assert client.command("PING") == b"+PONG\r\n"  # by now the proxy has sent it
            began = time.monotonic()
            assert client.command("EXPIREMEMBER", f"s{number}", "m", 1000) == b":1\r\n"
            took.append(time.monotonic() - began)
    # One may wait for the quarter of a second in which nothing comes back.
    assert sorted(took)[10] < 0.2


def test_a_slow_upload_holds_nobody_up(start_server: StartServer, start_proxy: StartProxy) -> None:
    proxy = start_proxy(start_server(min(BINARIES)))
    check_a_slow_upload(proxy)
    proxy.stop()


def test_first_deadlines_of_one_pipeline_wait_together(start_server: StartServer, start_proxy: StartProxy) -> None:
    """Beside a client that sends one long pipeline after the other, each of which takes a while."""
    server = start_server(min(BINARIES))
    proxy = start_proxy(server)
    server.command("SADD", "big", *range(1200))
    pipeline = request("SORT", "big", "BY", "nosort_*", "LIMIT", 0, 1) * 600
    ended = threading.Event()

    def load() -> None:
        with proxy.connect() as client:
            while not ended.is_set():
                client.send(pipeline)
                client.replies(600)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        with proxy.connect() as client:
            began = time.monotonic()
            client.send(b"".join(request("EXPIREMEMBER", f"k{number}", "m", 1000) for number in range(300)))
            assert client.replies(300) == [b":0\r\n"] * 300
            assert time.monotonic() - began < 5
    finally:
        ended.set()
        thread.join()
    proxy.stop()


def test_who_says_nothing_is_not_waited_for_again(start_server: StartServer, start_proxy: StartProxy) -> None:
    """A client that sends much and wants no replies: nothing shows what of it has run."""
    proxy = start_proxy(start_server(min(BINARIES)))
    ended = threading.Event()

    def insert() -> None:
        with proxy.connect() as silent:
            silent.send(request("CLIENT", "REPLY", "OFF"))
            while not ended.is_set():
                silent.send(b"".join(request("SADD", f"silent{number}", "m" * 100) for number in range(50)))
                ended.wait(0.01)

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        with proxy.connect() as client:
            took = []
            for number in range(20):
                began = time.monotonic()
                assert client.command("EXPIREMEMBER", f"k{number}", "m", 1000) == b":0\r\n"
                took.append(time.monotonic() - began)
        assert sorted(took)[10] < 0.2
    finally:
        ended.set()
        thread.join()
    proxy.stop()


def test_a_server_that_is_busy_with_somebody_else_does_not_end_the_wait(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """It says nothing to anybody then."""
    server = start_server(KIND)
    proxy = start_proxy(server)
    for key in ("a", "b", "c", "d", "e"):
        server.command("SADD", key, "m")
        with server.connect() as busy, proxy.connect() as ahead, proxy.connect() as client:
            assert ahead.command("PING") == client.command("PING") == b"+PONG\r\n"
            busy.send(request("DEBUG", "SLEEP", str(2 * SILENT_SECONDS)))
            ahead.send(request("SET", "pad", "x" * 2000) * 20 + request("SREM", key, "m"))
            client.send(request("EXPIREMEMBER", key, "m", 1000))
            assert ahead.replies(21)[-1] == b":1\r\n"
            assert client.reply() == b":0\r\n"
            assert busy.reply() == b"+OK\r\n"


def test_who_does_not_read_is_waited_for(start_server: StartServer, start_proxy: StartProxy) -> None:
    """What the server answers meanwhile cannot be seen."""
    server = start_server(KIND)
    server.command("SET", "big", "x" * 2_000_000)
    server.command("SADD", "set", "m")
    proxy = start_proxy(server)
    slow = request("EVAL", "local n = 0; for i = 1, 1e6 do n = n + i end", 0) + request("SET", "pad", "x" * 17_000)
    with proxy.connect() as ahead, proxy.connect() as client:
        assert ahead.command("PING") == client.command("PING") == b"+PONG\r\n"
        ahead.send(request("GET", "big") * 10 + slow * 40 + request("SREM", "set", "m"))
        assert client.command("EXPIREMEMBER", "set", "m", 1000) == b":0\r\n"
        assert ahead.replies(91)[-1] == b":1\r\n"


@pytest.mark.one_kind
def test_a_shared_push_comes_after_the_end_of_who_blocked(upstream: Server, start_proxy: StartProxy) -> None:
    check_a_shared_push(upstream, start_proxy(upstream, *SHARING))


def check_a_shared_push(server: Server, proxy: Proxy) -> None:
    """The server has something to read on the shared connection since before the client left."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(proxy.connect()) for _ in range(2))
        beside = stack.enter_context(server.connect())
        for turn in range(10):
            for client in (one, other):
                for _ in range(20):
                    assert client.command("SET", "k", turn) == b"+OK\r\n"
            with proxy.connect() as leaver:
                leaver.send(request("BRPOP", "jobs", 0))
                until(lambda: b"blocked_clients:1" in server.command("INFO", "clients"))
                beside.send(request("DEBUG", "SLEEP", "0.06"))
                time.sleep(0.01)
                one.send(request("SET", "k", turn))
                time.sleep(0.005)
            other.send(request("LPUSH", "jobs", turn))
            assert (beside.reply(), one.reply(), other.reply()) == (b"+OK\r\n", b"+OK\r\n", b":1\r\n")
            assert server.command("RPOP", "jobs") == b"$1\r\n%d\r\n" % turn


def test_who_half_closes_and_reads_nothing_keeps_nobody_from_sharing(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(KIND)
    check_unread_end(server, start_proxy(server, *SHARING))


def check_unread_end(server: Server, proxy: Proxy) -> None:
    server.command("SET", "big", b"x" * 20 * MEGABYTE)
    with proxy.connect() as one, proxy.connect() as leaver:
        leaver.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        leaver.send(request("GET", "big") * 3 + request("BRPOP", "jobs", 0))
        until(
            lambda: b"blocked_clients:1" in server.command("INFO", "clients"),
            what=lambda: f"{server.command('CLIENT', 'LIST')!r}: a wait",
        )
        leaver.end_of_requests()
        until(lambda: b"blocked_clients:0" in server.command("INFO", "clients"))

        def shares() -> bool:
            before = shared(proxy)
            return one.command("SET", "k", "x") == b"+OK\r\n" and shared(proxy) > before

        until(shares)


@pytest.mark.one_kind
def test_who_half_closes_gets_all_replies(upstream: Server, start_proxy: StartProxy) -> None:
    check_half_closed(upstream, start_proxy(upstream))


def check_half_closed(server: Server, proxy: Proxy) -> None:
    """Scripts of the proxy's own make the server read more, so that it reads the end before it has sent all."""
    server.command("SET", "big", b"x" * MEGABYTE)
    assert proxy.command("HSET", "known", "f", 1, "g", 2) == b":2\r\n"
    assert proxy.command("EXPIREMEMBER", "known", "g", 10_000) == b":1\r\n"
    count = held_count("known", "f", 1)
    for turn in range(30):
        with proxy.connect() as client:
            client.send(count + request("GET", "big") + count + count)
            client.end_of_requests()
            replies = client.rest()
        ahead, _, behind = replies.partition(b"x" * MEGABYTE + b"\r\n")
        assert ahead == b":%d\r\n$%d\r\n" % (3 * turn + 2, MEGABYTE)
        assert behind == b":%d\r\n:%d\r\n" % (3 * turn + 3, 3 * turn + 4)
