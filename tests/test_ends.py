"""Ends of connections at every instant, of clients and of the server: nothing stays behind, and nobody waits."""

from __future__ import annotations

import contextlib
import re
import resource
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from proxy.settings import Settings
from tests.certificates import Authority, Certificate
from tests.conftest import StartProxy, StartServer
from tests.raw import request
from tests.servers import Proxy, Server, free_port, halt, until
from tests.test_tls import KIND as TLS_KIND

pytestmark = pytest.mark.one_kind

MOST: Final = 60
"""Clients at once."""

NOW: Final = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER of 0: a reset."""


def certificate(folder: Path) -> Certificate:
    return Authority(folder, "ca").sign("server", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return certificate(tmp_path_factory.mktemp("certificates"))


def listening_by_tls(own: Certificate, *more: str) -> tuple[list[str], int]:
    """The options of a proxy that listens without and with TLS, and the port for TLS."""
    port = free_port()
    options = ["--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{port}"]
    return [*options, "--listen-tls-cert-file", str(own.file), "--listen-tls-key-file", str(own.key), *more], port


# How connections end.


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
    connection.close()


def close_half(connection: socket.socket) -> None:
    """End what is sent, and read to the end: the other side has to close too."""
    with contextlib.suppress(ConnectionResetError):
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    connection.close()


ENDS: Final = (close, reset, close_half)


class Handshake:
    """A client's part in a TLS handshake, as far as it goes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self._read, self._written = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._object = context.wrap_bio(self._read, self._written)

    def hello(self) -> bytes:
        """Return what the client sends first."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.do_handshake()
        return self._written.read()

    def finish(self) -> bytes:
        """Read what the other side sends, and return what the client sends then."""
        while True:
            came = self.socket.recv(1 << 16)
            assert came, "the other side ended within the handshake"
            self._read.write(came)
            with contextlib.suppress(ssl.SSLWantReadError):
                self._object.do_handshake()
                return self._written.read()

    def encrypt(self, data: bytes) -> bytes:
        self._object.write(data)
        return self._written.read()

    def end(self) -> bytes:
        """Return TLS's own word of the end."""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
            self._object.unwrap()
        return self._written.read()


def up_to(share: float, of: bytes) -> bytes:
    return of[: round(len(of) * share)]


def after_accept(_: Handshake) -> None:
    pass


def within_hello(client: Handshake) -> None:
    client.socket.sendall(up_to(0.5, client.hello()))


def after_hello(client: Handshake) -> None:
    client.socket.sendall(client.hello())


def after_answer(client: Handshake) -> None:
    after_hello(client)
    client.socket.recv(100)


def within_last_part(client: Handshake) -> None:
    after_hello(client)
    client.socket.sendall(up_to(0.5, client.finish()))


def after_last_part(client: Handshake) -> None:
    after_hello(client)
    client.socket.sendall(client.finish())


def within_a_record(client: Handshake) -> None:
    after_last_part(client)
    client.socket.sendall(up_to(0.5, client.encrypt(request("PING"))))


def with_a_request(client: Handshake) -> None:
    after_hello(client)
    client.socket.sendall(client.finish() + client.encrypt(request("PING")))


def with_a_word(client: Handshake) -> None:
    after_hello(client)
    client.socket.sendall(client.finish() + client.encrypt(request("PING")) + client.end())


def while_it_blocks(client: Handshake) -> None:
    after_hello(client)
    client.socket.sendall(client.finish() + client.encrypt(request("BLPOP", "nothing", 0)))


def without_tls(client: Handshake) -> None:
    client.socket.sendall(b"PING\r\n")


MOMENTS: Final[tuple[Callable[[Handshake], None], ...]] = (
    after_accept,
    within_hello,
    after_hello,
    after_answer,
    within_last_part,
    after_last_part,
    within_a_record,
    with_a_request,
    with_a_word,
    while_it_blocks,
    without_tls,
)


def open_files(proxy: Proxy) -> int:
    process = psutil.Process(proxy.pid)
    return sum(one.num_fds() for one in (process, *process.children(recursive=True)))


def counted(proxy: Proxy) -> int:
    """How many clients are connected, who asks not counted; as many as there can be, if that is refused."""
    said = proxy.command("INFO", "expiremember")
    if said.startswith(b"-ERR max number"):
        return MOST
    found = re.search(rb"\nclient_connections:(\d+)\r", said)
    assert found, said
    return int(found[1]) - 1


def quiet(proxy: Proxy) -> None:
    """Check that the log tells of no defect."""
    output = proxy.process.output
    for sign in ("Traceback", "never retrieved", "internal error", '"level": "error"'):
        assert sign not in output, output[-6000:]


def check_ends_of_clients(server: Server, start: Callable[..., Proxy], own: Certificate) -> None:
    """For the deliberate breaks too."""
    options, port = listening_by_tls(own, "--max-clients", str(MOST))
    proxy = start(server, *options)
    assert counted(proxy) == 0
    before = open_files(proxy)
    for moment in MOMENTS:
        for end in ENDS:
            for _ in range(8):
                client = Handshake(port)
                with client.socket:
                    moment(client)
                    end(client.socket)
    until(lambda: counted(proxy) == 0, what=lambda: f"{counted(proxy)} clients to be none")
    for _ in range(MOST + 10):
        socket.create_connection(("127.0.0.1", port)).close()
    until(lambda: counted(proxy) == 0, what=lambda: f"{counted(proxy)} clients to be none")
    until(lambda: open_files(proxy) <= before, what=lambda: f"{open_files(proxy)} open files to be {before}")
    quiet(proxy)
    proxy.stop()


def test_no_client_is_counted_that_has_ended(server: Server, start_proxy: StartProxy, own: Certificate) -> None:
    check_ends_of_clients(server, start_proxy, own)


def test_many_that_end_at_once_leave_nothing(server: Server, start_proxy: StartProxy, own: Certificate) -> None:
    """They end while handshakes wait for their turns, and while the proxy does something else."""
    options, port = listening_by_tls(own)
    proxy = start_proxy(server, *options)
    before = open_files(proxy)
    memory = []
    for _ in range(12):
        for end in (close, reset):
            clients = [Handshake(port) for _ in range(60)]
            for client in clients:
                client.socket.sendall(client.hello())
            for client in clients:
                end(client.socket)
            halt(proxy.process.pid)
            clients = [Handshake(port) for _ in range(40)]
            for number, client in enumerate(clients):
                client.socket.sendall(up_to(number / 20, client.hello()))
                end(client.socket)
            proxy.process.send_signal(signal.SIGCONT)
        until(lambda: counted(proxy) == 0)
        memory.append(psutil.Process(proxy.pid).memory_info().rss)
    until(lambda: open_files(proxy) <= before)
    assert memory[-1] - memory[0] < 40_000_000, memory  # 120 MB where what has ended is kept
    quiet(proxy)
    proxy.stop()


def test_workers_count_no_client_that_has_ended(server: Server, start_proxy: StartProxy, own: Certificate) -> None:
    options, port = listening_by_tls(own, "--workers", "2", "--max-clients", str(MOST))
    proxy = start_proxy(server, *options)
    for moment in (after_accept, after_hello, while_it_blocks):
        for end in ENDS:
            for _ in range(20):
                client = Handshake(port)
                with client.socket:
                    moment(client)
                    end(client.socket)
    plain = proxy.address
    assert isinstance(plain, tuple)
    for end in (close, reset):
        for _ in range(200):
            end(socket.create_connection(plain))

    def room() -> bool:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(proxy.connect()) for _ in range(MOST)]
            return all(client.command("PING") == b"+PONG\r\n" for client in clients)

    until(room, what="room for as many as before")
    quiet(proxy)
    proxy.stop()


# The server's side.


class Gate:
    """Stands in front of a server: passes connections on, or ends them after so many bytes.

    Attributes:
        limit: how many bytes, counted both ways, pass before a connection ends; None for all.
        end: how it ends.
    """

    def __init__(self, port: int) -> None:
        self.limit: int | None = None
        self.end: Callable[[socket.socket], None] = close
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(near, self.limit, self.end), daemon=True).start()

    def _serve(self, near: socket.socket, limit: int | None, end: Callable[[socket.socket], None]) -> None:
        """In one thread: a connection that another one reads just now does not end when it is closed."""
        passed = 0
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as far:
            while limit is None or passed < limit:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data:
                        near.close()
                        return
                    data = data if limit is None else data[: limit - passed]
                    passed += len(data)
                    (far if source is near else near).sendall(data)
        with contextlib.suppress(OSError):
            end(near)


def server_by_tls(start: Callable[..., Server], own: Certificate, *more: str) -> tuple[Server, int]:
    """A server that listens with TLS too, and the port for that."""
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(own.file), "--tls-key-file", str(own.key)]
    ca = ["--tls-ca-cert-file", str(own.file), "--tls-auth-clients", "no"]
    return start(TLS_KIND, *options, *ca, *more), port


@pytest.fixture
def gate(start_server: StartServer, own: Certificate) -> Iterator[Gate]:
    made = Gate(server_by_tls(start_server, own)[1])
    yield made
    made.close()


def test_nobody_waits_for_a_server_that_ends_the_handshake(gate: Gate, start_proxy: StartProxy) -> None:
    """At whatever byte of it, and behind it."""
    patience = Settings.model_fields["connect_timeout"].default
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{gate.port}", "--no-tls-verify")
    assert proxy.command("PING") == b"+PONG\r\n"
    before = open_files(proxy)
    for limit in (0, 1, 100, 400, 520, 600, 1000, 1400, 1500, 1600, 1700, 1800, 1900):
        for end in ENDS:
            gate.limit, gate.end = limit, end
            clients = [proxy.connect() for _ in range(8)]
            began = time.monotonic()
            for client in clients:
                client.send(request("PING"))
            for client in clients:
                said = client.rest()
                assert said in (b"", b"+PONG\r\n") or said.startswith(b"-ERR expiremember-proxy: upstream"), said
                client.close()
            assert time.monotonic() - began < patience / 2, (limit, end.__name__)
    gate.limit = None
    until(lambda: proxy.command("PING") == b"+PONG\r\n")
    until(lambda: counted(proxy) == 0)
    until(lambda: open_files(proxy) <= before, what=lambda: f"{open_files(proxy)} open files to be {before}")
    quiet(proxy)
    proxy.stop()


# Clients that end while the server refuses the proxy's own ECHO, by TLS: there a sign says that all was answered.


def test_nobody_is_kept_who_may_not_echo(start_server: StartServer, start_proxy: StartProxy, own: Certificate) -> None:
    check_ends_without_echo(*server_by_tls(start_server, own), start_proxy)


def check_ends_without_echo(server: Server, port: int, start_proxy: StartProxy) -> None:
    """For the deliberate breaks too."""
    rules = ["on", "nopass", "~*", "+@read", "+auth", "+ping"]
    assert server.command("ACL", "SETUSER", "reader", *rules) == b"+OK\r\n"
    options = ("--upstream", f"rediss://127.0.0.1:{port}", "--no-tls-verify", "--shutdown-timeout", "15")
    proxy = start_proxy(None, *options, "--max-clients", "5")
    for end in (close, reset, close_half):
        for _ in range(5):
            with proxy.connect() as client:
                assert client.command("AUTH", "reader", "any") == b"+OK\r\n"
                assert client.command("GET", "k") == b"$-1\r\n"
                began = time.monotonic()
                end(client.socket)
                assert time.monotonic() - began < 10
    until(lambda: proxy.command("PING") == b"+PONG\r\n", 10, what="room for a client")
    with proxy.connect() as client:
        assert client.command("AUTH", "reader", "any") == b"+OK\r\n"
        client.end_of_requests()
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 10
    quiet(proxy)


def test_nobody_is_kept_who_ended_while_the_server_was_busy(
    start_server: StartServer, start_proxy: StartProxy, own: Certificate
) -> None:
    server, port = server_by_tls(start_server, own, "--lua-time-limit", "30")
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", "--no-tls-verify")
    clients = [proxy.connect() for _ in range(10)]
    for client in clients:
        assert client.command("PING") == b"+PONG\r\n"
    with server.connect() as busy:
        busy.send(request("EVAL", "while true do end", 0))
        until(lambda: server.command("PING").startswith(b"-BUSY"))
        for client in clients[:5]:
            client.close()
        for client in clients[5:]:
            client.end_of_requests()
        time.sleep(0.5)  # what is refused now has to come while it is busy
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        assert busy.reply().startswith(b"-")
    until(lambda: counted(proxy) == 0, 10, what=lambda: f"{counted(proxy)} clients to be none")
    for client in clients[5:]:
        client.close()
    quiet(proxy)
    proxy.stop()


# The proxy's own end, and the server's, by TLS.


def idle_by_tls(port: int, count: int = 5) -> list[Handshake]:
    """Clients that have been answered, and read nothing more, as those in a connection pool."""
    clients = [Handshake(port) for _ in range(count)]
    for client in clients:
        client.socket.sendall(client.hello())
        client.socket.sendall(client.finish())
        client.socket.sendall(client.encrypt(b"PING\r\n"))
        assert client.socket.recv(1 << 16)
    return clients


def check_idle_clients_by_tls(server: Server, start: Callable[..., Proxy], own: Certificate) -> None:
    """For the deliberate breaks too."""
    options, port = listening_by_tls(own, "--shutdown-timeout", "15")
    proxy = start(server, *options)
    with contextlib.ExitStack() as stack:
        for client in idle_by_tls(port):
            stack.enter_context(client.socket)
        assert counted(proxy) == 5
        server.command("CLIENT", "KILL", "TYPE", "normal")
        until(lambda: counted(proxy) == 0, 12, what=lambda: f"{counted(proxy)} clients to be none")
        for client in idle_by_tls(port):
            stack.enter_context(client.socket)
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 12
    assert "stopped before" not in proxy.process.output, proxy.process.output
    quiet(proxy)


def test_clients_by_tls_that_do_not_read_hold_up_no_end(
    server: Server, start_proxy: StartProxy, own: Certificate
) -> None:
    """TLS waits for the other side's word of the end, for 30 s."""
    check_idle_clients_by_tls(server, start_proxy, own)


def test_a_reply_that_nobody_reads_holds_up_no_end(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    """On a Unix socket what has been sent counts as not taken until it is read."""
    place = tmp_path / "socket"
    proxy = start_proxy(server, "--listen", f"unix://{place}")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        for client in clients:
            client.connect(str(place))
            client.sendall(b"PING\r\n")
            assert select.select([client], [], [], 10)[0]
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 5
        assert "stopped before" not in proxy.process.output, proxy.process.output
        assert [client.recv(99) for client in clients] == [b"+PONG\r\n"] * 3


def test_who_comes_as_the_proxy_stops_holds_up_no_end(server: Server, start_proxy: StartProxy) -> None:
    check_who_comes_as_it_stops(server, start_proxy)


def check_who_comes_as_it_stops(server: Server, start_proxy: StartProxy) -> None:
    """A client may have been accepted whose connection the loop has not made yet."""
    for _ in range(3):
        proxy = start_proxy(server, "--shutdown-timeout", "15")
        clients: list[socket.socket] = []
        stop = threading.Event()

        def come(address: tuple[str, int], stop: threading.Event, clients: list[socket.socket]) -> None:
            with contextlib.suppress(OSError):
                while not stop.is_set() and len(clients) < 300:
                    clients.append(socket.create_connection(address, 5))
                    clients[-1].sendall(b"PING\r\n")

        assert isinstance(proxy.address, tuple)
        threads = [threading.Thread(target=come, args=(proxy.address, stop, clients)) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda clients=clients: len(clients) > 30)  # type: ignore[misc]
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        try:
            assert proxy.process.wait() == 0, proxy.process.output
            assert time.monotonic() - began < 12
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for client in clients:
                client.close()
        assert "stopped before" not in proxy.process.output, proxy.process.output


def test_who_is_accepted_by_tls_as_the_proxy_stops_is_closed(
    server: Server, start_proxy: StartProxy, own: Certificate
) -> None:
    check_who_is_accepted_as_it_stops(server, start_proxy, own)


def check_who_is_accepted_as_it_stops(server: Server, start_proxy: StartProxy, own: Certificate) -> None:
    """The loop may stop accepting in a turn in which it has accepted some of many, while it still serves another."""
    options, port = listening_by_tls(own, "--shutdown-timeout", "15")
    for _ in range(3):
        proxy = start_proxy(server, *options)
        with contextlib.ExitStack() as stack:
            blocked = stack.enter_context(proxy.connect())
            blocked.send(request("BRPOP", "none", 0))
            until(lambda: b"cmd=brpop" in server.command("CLIENT", "LIST"))
            halt(proxy.process.pid)
            comers = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 8)) for _ in range(400)]
            proxy.process.send_signal(signal.SIGTERM)
            proxy.process.send_signal(signal.SIGCONT)
            for comer in comers:
                with contextlib.suppress(ConnectionResetError):
                    assert comer.recv(1) == b""
        assert proxy.process.wait() == 0, proxy.process.output


def test_who_is_refused_replies_holds_up_no_end(server: Server, start_proxy: StartProxy) -> None:
    check_who_is_refused_replies(server, start_proxy)


def check_who_is_refused_replies(server: Server, start_proxy: StartProxy) -> None:
    """Behind CLIENT REPLY OFF the refusal of ON is not heard, nor is any sign."""
    server.command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-client")
    proxy = start_proxy(server, "--shutdown-timeout", "15")
    proxy.command("PING")
    with proxy.connect() as client:
        client.send(request("CLIENT", "REPLY", "OFF") + request("AUTH", "mute", "any"))
        until(lambda: b"user=mute" in server.command("CLIENT", "LIST"))
        client.send(request("CLIENT", "REPLY", "ON") + request("SET", "behind", 1))
        until(lambda: server.command("EXISTS", "behind") == b":1\r\n")
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 10
    assert "stopped before" not in proxy.process.output, proxy.process.output


def test_messages_keep_nobody_who_has_left(server: Server, start_proxy: StartProxy) -> None:
    check_messages(server, start_proxy)


def check_messages(server: Server, start_proxy: StartProxy) -> None:
    """What the server tells unasked is no answer to what the client has left behind."""
    proxy = start_proxy(server)
    proxy.command("SADD", "s", "m")
    until(lambda: counted(proxy) == 0, what="the end of the first client")
    client = proxy.connect()
    assert client.command("MONITOR") == b"+OK\r\n"
    client.send(request("WAIT", 9, 0) + request("EXPIREMEMBER", "s", "m", 100))
    until(lambda: b"cmd=wait" in server.command("CLIENT", "LIST"))
    client.close()
    until(lambda: counted(proxy) == 0, 12, what=lambda: f"{counted(proxy)} clients to be none")
    proxy.stop()


def check_half_close_without_files(proxy: Proxy) -> None:
    """The server hears of a half close though the proxy has as many files as it may."""
    with proxy.connect() as client:
        assert client.command("PING") == b"+PONG\r\n"
        limits = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        used = max(int(file.name) for file in Path(f"/proc/{proxy.pid}/fd").iterdir()) + 1
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (used, limits[1]))
        try:
            client.send(request("BLPOP", "nothing", 1))
            client.end_of_requests()
            assert client.rest() in (b"*-1\r\n", b"")  # a server takes that for an end, at once or after the reply
        finally:
            resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, limits)


def test_a_half_close_needs_no_file(server: Server, start_proxy: StartProxy) -> None:
    check_half_close_without_files(start_proxy(server))
