"""The admin port of a real proxy: what probes, scrapes and drains are told, and that nothing sent to it does harm."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, cast

import psutil
import pytest
import uvloop

from proxy import __version__
from proxy.admin import server as admin_server
from proxy.admin.pages import Pages
from proxy.admin.turns import Turns
from proxy.listen.succession import Succession
from proxy.loop import Loop
from proxy.metrics.kinds import Kind
from proxy.metrics.table import DECLARATIONS, PREFIX, Metrics
from proxy.metrics.traffic import AT_ONCE, Traffic
from tests.admin import PROBE, Admin, admin_of, with_admin
from tests.certificates import Authority
from tests.conftest import StartProxy, StartServer
from tests.patience import patience
from tests.servers import Proxy, Server, free_port, proxy_environment, until

pytestmark = pytest.mark.oldest_kind


@pytest.fixture
def admin(server: Server, start_proxy: StartProxy) -> tuple[Proxy, Admin]:
    """A proxy with an admin port, and that."""
    return with_admin(start_proxy, server)


# What it tells.


def test_a_proxy_that_serves_is_alive_and_ready(admin: tuple[Proxy, Admin]) -> None:
    _, port = admin
    assert port.ask("/livez") == (200, "alive\n")
    assert until(lambda: port.ask("/readyz")[0] == 200)
    with port.conversation() as connection:
        for method, path, length in (("HEAD", "/readyz", 6), ("GET", "/livez", 6), ("HEAD", "/livez", 6)):
            connection.request(method, path)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Content-Length")) == (200, str(length))
            assert answer.getheader("Connection") is None
            answer.read()


def test_the_admin_port_can_be_a_unix_socket(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    proxy = start_proxy(server, "--admin", f"unix://{path}")
    assert admin_of(proxy).ask("/livez")[0] == 200
    proxy.process.kill()
    assert path.exists()
    again = start_proxy(server, "--admin", f"unix://{path}")
    port = admin_of(again)
    assert port.ask("/livez")[0] == 200
    assert port.ask("/drain", "POST")[0] == 202
    assert again.process.wait() == 0
    assert not path.exists()


def test_without_the_setting_there_is_no_port_and_nothing_is_imported_for_it() -> None:
    code = "import sys, proxy.server, proxy.reporting; sys.exit(bool({'h11', 'prometheus_client'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], env=proxy_environment(), check=True, timeout=60)


def take_away(upstream: Server) -> None:
    process, upstream.process = upstream.process, None
    assert process is not None
    process.kill()


def test_it_tells_the_truth_about_an_upstream_that_comes_and_goes(
    start_server: StartServer, start_proxy: StartProxy, server: Server
) -> None:
    upstream = start_server(server.kind)
    take_away(upstream)
    proxy, port = with_admin(start_proxy, upstream, "--control-timeout", "1")
    status, body = port.ask("/readyz")
    assert status == 503
    assert f"not ready: upstream {upstream.url} is unavailable: " in body
    assert port.ask("/livez")[0] == 200
    assert port.metrics()["upstream_up"] == 0
    assert port.metrics()["blind"] == 1
    with proxy.connect() as client:
        assert b"is unavailable" in client.rest()
    until(lambda: port.metrics()["client_connections_rejected_total{reason=upstream}"] == 1)
    for reconnects in (0, 1):
        upstream.start()
        until(lambda: port.ask("/readyz") == (200, "ready\n"))
        until(lambda: port.metrics()["blind"] == 0)
        told = port.metrics()
        assert (told["upstream_up"], told["control_reconnects_total"]) == (1, reconnects)
        take_away(upstream)
        until(lambda: port.ask("/readyz")[0] == 503)


def test_a_path_that_is_not_utf_8_is_told(start_proxy: StartProxy) -> None:
    """To probes, to scrapes and to systemd, which would end a proxy that has ceased to say that it lives."""
    path = os.fsdecode(b"/no/such/\xff.sock")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{folder}/notify")
        systemd.settimeout(20)
        more = {"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "1000000"}
        proxy = start_proxy(None, "--upstream", f"unix://{path}", "--admin", "127.0.0.1:0", env=more)
        port = admin_of(proxy)
        status, told = port.ask("/readyz")
        assert status == 503
        assert r"/no/such/\udcff.sock" in told
        assert port.metrics()["upstream_up"] == 0
        heard = b""
        while heard.count(b"WATCHDOG=1") < 3:
            heard += systemd.recv(4096)
        assert b"STATUS=not ready" in heard
    proxy.stop()


def test_it_listens_before_an_upstream_that_does_not_answer_is_reached(start_proxy: StartProxy) -> None:
    """As a startup probe needs it: the connection opens, and nothing comes."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        proxy, port = with_admin(start_proxy, None, "--upstream", url, "--control-timeout", "30", ready=False)
        assert port.ask("/livez")[0] == 200
        assert until(lambda: port.ask("/readyz")) == (
            503,
            f"not ready: upstream {url} is unavailable: not tried yet\n",
        )
        assert not any(line["event"] == "ready" for line in proxy.log())
        assert port.ask("/drain", "POST")[0] == 202
        assert proxy.process.wait() == 0


def test_it_listens_before_the_embedded_server_is_started(start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, None, "--embedded")
    events = [line["event"] for line in proxy.log()]
    assert events.index("admin port open") == 0
    until(lambda: port.ask("/readyz")[0] == 200)
    assert proxy.command("PING") == b"+PONG\r\n"
    assert port.ask("/drain", "POST")[0] == 202
    assert proxy.process.wait() == 0


def test_it_serves_beside_tls(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    certificate = Authority(tmp_path, "authority").sign("proxy", "IP:127.0.0.1")
    files = ("--listen-tls-cert-file", str(certificate.file), "--listen-tls-key-file", str(certificate.key))
    listen = f"tls://127.0.0.1:{free_port()}"
    proxy, port = with_admin(start_proxy, server, "--listen", listen, *files)
    until(lambda: port.ask("/readyz")[0] == 200)
    host, client_port = listen.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(client_port))) as client:
        client.sendall(b"*1\r\n$4\r\nPING\r\n" * 4)
    until(lambda: port.metrics()["client_connections_rejected_total{reason=tls_handshake}"] == 1)
    trust = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
    with (
        socket.create_connection((host, int(client_port))) as plain,
        trust.wrap_socket(plain, server_hostname=host) as client,
    ):
        client.sendall(b"*1\r\n$4\r\nPING\r\n")
        assert client.recv(100) == b"+PONG\r\n"
        assert port.metrics()["received_bytes_total{side=client}"] > 300  # the handshake counts, too
    proxy.stop()


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0", "text/plain;version=0.0.4"])
def test_every_metric_of_the_table_is_shown(server: Server, start_proxy: StartProxy, accept: str) -> None:
    _, port = with_admin(start_proxy, server)
    status, text = port.ask("/metrics", Accept=accept)
    assert status == 200
    assert text.endswith("# EOF\n") == ("openmetrics" in accept)
    for name, declaration in DECLARATIONS.items():
        family = PREFIX + (name.removesuffix("_total") if "openmetrics" in accept else name)
        assert f"# HELP {family} {declaration.help}\n" in text
        assert f"# TYPE {family} {declaration.kind.value}\n" in text
        sample = PREFIX + name + ("_count" if declaration.kind is Kind.HISTOGRAM else "")
        assert f"\n{sample} " in text or f"\n{sample}{{" in text


# What it counts.


@pytest.fixture
def lone(kind: str, start_server: StartServer) -> Server:
    """A server of every kind with no other proxy in front of it, which would do some of what is counted."""
    return start_server(kind)


def test_it_counts_what_the_proxy_does(lone: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, lone)
    until(lambda: port.ask("/readyz")[0] == 200)
    with proxy.connect() as client:
        client.command("SADD", "cart", "apple", "pear")
        began = time.time()
        client.command("EXPIREMEMBER", "cart", "apple", 100)
        client.command("EXPIREMEMBER", "cart")
        client.command("TTL", "cart", "apple")
        client.command("GET", "__expiremember__:index")
        client.command("SADD", "cart", "plum")
        client.command("PEXPIREMEMBER", "cart", "pear", 30)  # nobody asks for the key any more: the sweeper removes it
        until(lambda: port.metrics()["members_expired_total{trigger=sweep}"] == 1)
        # The server tells of what has been removed a moment later.
        until(lambda: port.metrics()["next_deadline_timestamp_seconds"] > began + 99)
        told = port.metrics()
        assert told["client_connections"] == told["client_connections_total"] == 1
        assert told["requests_rewritten_total{script=expire}"] == 2
        assert told["requests_rewritten_total{script=ttl}"] == 1
        assert told["requests_rewritten_total{script=add}"] == 1
        assert told["requests_refused_total{reason=arity}"] == 1
        assert told["requests_refused_total{reason=reserved_name}"] == 1
        assert told["covered_prefixes"] == 1
        assert began + 99 < told["next_deadline_timestamp_seconds"] < time.time() + 101
        assert told["sweeper_leader"] == 1
        assert told["removal_delay_seconds_count"] == 1
        assert 0 <= told["removal_delay_seconds_sum"] < 5
        assert told["sweep_duration_seconds_count"] >= 1
        assert 0 < told["sweep_duration_seconds_sum"] < 5
        assert abs(told["clock_offset_seconds"]) < 1
        assert told[f"build_info{{version={__version__}}}"] == 1
    until(lambda: port.metrics()["client_connections"] == 0)
    until(lambda: port.metrics()["event_loop_delay_seconds_count"] >= 2)


def test_it_counts_requests_that_wait_for_a_removal(lone: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, lone, "--no-sweep")
    with proxy.connect() as client:
        for key in ("cart", "basket"):
            client.command("SADD", key, "apple", "pear", "plum")
            client.command("PEXPIREMEMBER", key, "apple", 1)
            client.command("PEXPIREMEMBER", key, "pear", 1)
            until(lambda: port.metrics()["covered_prefixes"] >= 1)
            time.sleep(0.01)
            assert client.command("SMEMBERS", key) == b"*1\r\n$4\r\nplum\r\n"
        told = port.metrics()
    assert told["members_expired_total{trigger=request}"] == 4
    assert told["members_expired_total{trigger=sweep}"] == told["removal_delay_seconds_count"] == 0
    assert told["requests_held_total"] == told["request_hold_seconds_count"] >= 2
    assert 0 < told["request_hold_seconds_sum"] < 5


def test_it_counts_deadlines_of_members_that_went_unnoticed(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--leftovers-rate", "0")
    with proxy.connect() as client:
        client.command("SADD", "cart", "apple", "pear")
        client.command("EXPIREMEMBER", "cart", "apple", 50)
    proxy.stop()  # one of several makes the pass
    assert server.command("SREM", "cart", "apple") == b":1\r\n"
    _, port = with_admin(start_proxy, server)
    until(lambda: port.metrics()["deadlines_voided_total"] == 1, timeout=25)


def test_it_counts_bytes(server: Server, start_proxy: StartProxy) -> None:
    """The kernel does: of connections that are open and of those that were, the upstream's too."""
    proxy, port = with_admin(start_proxy, server)
    until(lambda: port.metrics()["blind"] == 0)  # else scripts go with each request
    size = 1_000_000  # and less than a hundredth of it for what the proxy asks about the client
    with proxy.connect() as client:
        client.command("SET", "long", b"x" * size)
        for _ in range(3):
            client.command("GET", "long")
        open_told = port.metrics()
    until(lambda: port.metrics()["client_connections"] == 0)
    for told in (open_told, until(port.metrics)):
        assert size < told["received_bytes_total{side=client}"] < size + 10_000
        assert size < told["sent_bytes_total{side=upstream}"] < size + 10_000
        assert 3 * size < told["sent_bytes_total{side=client}"] < 3 * size + 10_000
        assert 3 * size < told["received_bytes_total{side=upstream}"] < 3 * size + 10_000


def test_it_counts_clients_that_are_turned_away(server: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, server, "--max-clients", "1", "--request-limit", "65536")
    with proxy.connect() as client:
        client.command("PING")
        with proxy.connect() as other:
            assert b"max number of clients" in other.rest()
        client.send(b"*3\r\n$4\r\nEVAL\r\n$200000\r\n" + b"x" * 200_000)
        assert b"request_limit" in client.rest()
    told = port.metrics()
    assert told["client_connections_rejected_total{reason=max_clients}"] == 1
    assert told["requests_refused_total{reason=request_limit}"] == 1


def test_one_of_two_proxies_leads(server: Server, start_proxy: StartProxy) -> None:
    ports = []
    for _ in range(2):
        proxy, port = with_admin(start_proxy, server)
        ports.append(port)
    with proxy.connect() as client:
        for number in range(40):
            client.command("ZADD", "queue", 1, number)
            client.command("PEXPIREMEMBER", "queue", number, 40)

    def gone() -> float:
        told = [port.metrics() for port in ports]
        return sum(
            one[f"members_expired_total{{trigger={trigger}}}"] for one in told for trigger in ("sweep", "request")
        )

    until(lambda: server.command("EXISTS", "queue") == b":0\r\n")
    until(lambda: gone() > 0)
    assert gone() <= 40  # what a script removes that stands in for a request is not counted
    assert max(port.metrics()["sweeper_leader"] for port in ports) == 1


# Drain.


def test_a_drain_lets_requests_be_answered(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    until(lambda: port.ask("/readyz")[0] == 200)
    with proxy.connect() as client:
        client.send_command("BLPOP", "nothing", 1)
        until(lambda: b"blpop" in proxy.command("CLIENT", "LIST"))
        assert port.ask("/drain", "POST") == (202, "draining\n")
        assert port.ask("/readyz") == (503, "not ready: draining\n")
        assert port.ask("/livez")[0] == 200
        assert port.ask("/drain", "POST") == (202, "draining\n")  # again: it is no second signal
        assert port.metrics()["client_connections"] == 1
        assert client.reply() in (b"*-1\r\n", b"$-1\r\n")
        assert client.rest() == b""
    assert proxy.process.wait() == 0
    assert "drain requested" in proxy.process.output
    assert "Traceback" not in proxy.process.output


def test_only_this_machine_may_drain(server: Server, start_proxy: StartProxy) -> None:
    addresses = [
        address.address
        for found in psutil.net_if_addrs().values()
        for address in found
        if address.family is socket.AF_INET and not address.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has no address but the loopback one")
    proxy = start_proxy(server, "--admin", "0.0.0.0:0")
    number = admin_of(proxy).address[1]  # type: ignore[index]
    far, near = Admin((addresses[0], number)), Admin(("127.0.0.2", number))
    assert far.ask("/livez")[0] == 200
    assert far.ask("/drain", "POST")[0] == 403
    assert near.ask("/drain", "POST", Origin="http://elsewhere.example")[0] == 403
    assert near.ask("/livez")[0] == 200
    assert near.ask("/drain", "POST")[0] == 202
    assert proxy.process.wait() == 0


def test_an_address_that_cannot_be_listened_on_ends_it_with_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for address, says in (
        ("nowhere", "admin: 'nowhere' is not an address: use host:port (127.0.0.1:9121) or unix:///path"),
        ("tls://127.0.0.1:1", "admin: 'tls://127.0.0.1:1': the admin port does not support TLS"),
        ("127.0.0.1:99999", "admin: '127.0.0.1:99999': port 99999 is greater than 65535"),
        ("no-such-host.invalid:1", "admin: cannot listen on no-such-host.invalid:1"),
        (
            f"127.0.0.1:{server.port}",
            f"admin: cannot listen on 127.0.0.1:{server.port}: Address already in use; stop what",
        ),
        (f"unix://{tmp_path}/file", f"admin: cannot listen on unix://{tmp_path}/file"),
    ):
        command = [sys.executable, "-m", "proxy", "--upstream", server.url, "--admin", address, "--log-level", "error"]
        command += ["--listen", f"127.0.0.1:{free_port()}"]
        done = subprocess.run(command, env=proxy_environment(), capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
    assert (tmp_path / "file").exists()


# Hostile clients.


@contextmanager
def served(proxy: Proxy) -> Iterator[list[float]]:
    """Send requests to the proxy for the whole time; each must be answered. Gives how long each took, in seconds."""
    times: list[float] = []
    failures: list[BaseException] = []
    end = threading.Event()

    def ask() -> None:
        try:
            with proxy.connect() as client:
                while not end.is_set():
                    began = time.monotonic()
                    assert client.command("GET", "key") == b"$-1\r\n"
                    times.append(time.monotonic() - began)
                    time.sleep(0.002)
        except (AssertionError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield times
    finally:
        end.set()
        thread.join(20)
    assert not failures, failures
    assert len(times) > 10


def connections(proxy: Proxy, port: Admin) -> int:
    """How many connections to the admin port the proxy has open."""
    number = port.address[1]  # type: ignore[index]
    found = psutil.Process(proxy.pid).net_connections("tcp")
    return sum(1 for one in found if one.laddr.port == number and one.status != psutil.CONN_LISTEN)


def test_ten_thousand_connections_take_few_files_and_probes_are_answered(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    until(lambda: port.ask("/readyz")[0] == 200)
    assert isinstance(port.address, tuple)
    before = psutil.Process(proxy.pid).memory_info().rss
    answered: list[float] = []
    most = 0
    with served(proxy) as times:
        for number in range(10_000):
            with contextlib.suppress(OSError, TimeoutError):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(port.address)
                if number % 2:
                    connection.send(b"GET /metrics HTTP/1.1\r\nX: ")
            if number % 200 == 0:
                most = max(most, connections(proxy, port))
            if number % 1000 == 500:
                began = time.monotonic()
                assert port.ask("/livez")[0] == 200
                answered.append(time.monotonic() - began)
            connection.close()
    assert most <= admin_server.MOST + 1
    assert max(answered) < 10
    assert statistics.median(times) < 0.05
    assert psutil.Process(proxy.pid).memory_info().rss < before + 32 * 1024 * 1024
    until(lambda: connections(proxy, port) == 0, timeout=20)
    assert "Traceback" not in proxy.process.output


def test_peers_that_scrape_without_pause_leave_room_for_probes(admin: tuple[Proxy, Admin]) -> None:
    """More of them than there are connections at once, each with one at a time."""
    _, port = admin
    over = threading.Event()

    def scrape() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), port.connect() as peer:
                peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
                while peer.recv(1 << 16):
                    pass

    peers = [threading.Thread(target=scrape, daemon=True) for _ in range(2 * admin_server.MOST)]
    for peer in peers:
        peer.start()
    try:
        for _ in range(30):
            with port.connect() as probe:
                probe.sendall(PROBE)
                assert b" 200 " in probe.recv(4096)
    finally:
        over.set()
        for peer in peers:
            peer.join()


def test_peers_that_keep_their_connections_leave_room_for_probes(admin: tuple[Proxy, Admin]) -> None:
    """Each asks again as soon as it is answered, so none of them waits for a request for long."""
    _, port = admin
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), port.connect() as peer:
                while not over.is_set():
                    peer.sendall(PROBE)
                    if not peer.recv(4096):
                        break

    peers = [threading.Thread(target=ask, daemon=True) for _ in range(2 * admin_server.MOST)]
    for peer in peers:
        peer.start()
    try:
        for _ in range(20):
            began = time.monotonic()
            with port.connect() as probe:
                probe.sendall(PROBE)
                assert b" 200 " in probe.recv(4096)
            assert time.monotonic() - began < patience(5)
    finally:
        over.set()
        for peer in peers:
            peer.join()


def test_a_scraper_that_resets_its_connection_is_no_defect(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    for _ in range(300):
        with contextlib.suppress(OSError), port.connect() as peer:
            peer.sendall(PROBE.replace(b"livez", b"metrics"))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: connections(proxy, port) == 0, timeout=20)
    assert "internal error" not in proxy.process.output


def test_slow_senders_are_closed_and_make_room(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    slow = [port.connect() for _ in range(3 * admin_server.MOST)]
    try:
        for byte in PROBE[:20]:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]))
            assert port.ask("/livez")[0] == 200
        until(lambda: connections(proxy, port) <= admin_server.MOST)
        with served(proxy):
            # The rest never comes: all of them are closed when their time is over.
            until(lambda: connections(proxy, port) == 0, timeout=3 * admin_server.REQUEST_SECONDS)
    finally:
        for connection in slow:
            connection.close()


def test_a_client_that_reads_no_answer_is_closed(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    with port.connect() as deaf, served(proxy):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            for _ in range(2000):
                deaf.send(PROBE.replace(b"livez", b"metrics"))
                time.sleep(0.005)
        until(lambda: connections(proxy, port) == 0, timeout=20)


GARBAGE: dict[str, Callable[[], bytes]] = {
    "noise": lambda: os.urandom(200_000),
    "a head without end": lambda: b"GET /livez HTTP/1.1\r\nX: " + b"x" * 200_000,
    "headers without end": lambda: b"GET /livez HTTP/1.1\r\n" + b"x:y\r\n" * 40_000,
    "lines without end": lambda: b"\r\n" * 100_000,
    "a pipeline": lambda: PROBE * 20_000,
    "a body": lambda: b"POST /drain HTTP/1.1\r\nHost: here\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000,
    "a hidden request": lambda: (
        b"POST /drain HTTP/1.1\r\nHost: here\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"POST /drain HTTP/1.1\r\nHost: here\r\n\r\n"
    ),
    "Redis": lambda: b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" * 100,
}


def test_garbage_does_no_harm(server: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, server)
    before = psutil.Process(proxy.pid).memory_info().rss

    def send(make: Callable[[], bytes]) -> bytes:
        said = b""
        with port.connect() as connection, contextlib.suppress(ConnectionError):
            with contextlib.suppress(ConnectionError):
                connection.sendall(make())
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                said += part
        return said

    with served(proxy) as times, concurrent.futures.ThreadPoolExecutor(8) as pool:
        for said in pool.map(send, [make for _ in range(4) for make in GARBAGE.values()]):
            assert said.count(b"HTTP/1.1 ") <= 1
            assert b" 202 " not in said
        assert port.ask("/livez")[0] == 200
    assert statistics.median(times) < 0.05
    assert psutil.Process(proxy.pid).memory_info().rss < before + 32 * 1024 * 1024
    assert "Traceback" not in proxy.process.output
    proxy.stop()


@pytest.mark.parametrize("milliseconds", [0.05, 5])
def test_work_takes_a_tenth_of_the_time(milliseconds: float) -> None:
    """Also where each piece is shorter than the loop's timers can tell."""

    async def work() -> float:
        turns, spent, began = Turns(), 0.0, time.monotonic()

        def spin() -> float:
            at = time.thread_time()
            while time.thread_time() - at < milliseconds / 1000:
                pass
            return time.thread_time() - at

        async def one() -> None:
            nonlocal spent
            while time.monotonic() - began < 0.5:
                spent += await turns.run(spin)

        await asyncio.gather(*(one() for _ in range(5)))
        return spent / (time.monotonic() - began)

    assert uvloop.run(work()) < 0.15


@contextlib.asynccontextmanager
async def alone(pages: Pages) -> AsyncIterator[Callable[[str], Coroutine[None, None, bytes]]]:
    """Serve pages in this process; gives what sends a GET for a path and returns the answer."""
    address = f"127.0.0.1:{free_port()}"
    admin = admin_server.AdminServer(address, pages)
    await admin.open(Succession())

    async def get(path: str) -> bytes:
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(PROBE.replace(b"/livez", path.encode()).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await reader.read()
        writer.close()
        return answer

    try:
        yield get
    finally:
        await admin.close()


def test_a_probe_does_not_wait_for_a_scrape_while_clients_are_busy() -> None:
    """What others do of the loop's time between two pieces of a scrape is not the scrape's."""
    passes = 0

    def work() -> None:
        nonlocal passes
        time.sleep(0.01)
        passes += 1

    async def be_busy() -> None:
        while True:
            work()
            await asyncio.sleep(0)

    async def main() -> tuple[int, int]:
        pages = Pages(lambda: None, lambda: iter([None] * 15), lambda _: (b"", "text/plain"), lambda: None)
        async with alone(pages) as get:
            busy = asyncio.create_task(be_busy())
            scrape = asyncio.create_task(get("/metrics"))
            await asyncio.sleep(0.05)
            began = passes
            assert b"200" in await get("/livez")
            probed = passes - began
            assert b"200" in await scrape
            busy.cancel()
            return probed, passes

    probed, scraped = uvloop.run(main(), loop_factory=Loop)
    assert probed < 40
    assert scraped < 120


def test_scrapes_that_wait_for_others_leave_room_for_probes() -> None:
    """For a worker that does not answer, for example."""

    async def main() -> None:
        gathered, full, over = 0, asyncio.Event(), asyncio.Event()

        async def gather() -> None:
            nonlocal gathered
            gathered += 1
            if gathered == admin_server.MOST_SCRAPES:
                full.set()
            await over.wait()

        pages = Pages(lambda: None, lambda: iter([None]), lambda _: (b"", "text/plain"), lambda: None, gather)
        async with alone(pages) as get:
            scrapes = [asyncio.create_task(get("/metrics")) for _ in range(admin_server.MOST_SCRAPES)]
            await full.wait()
            assert b"503" in await get("/metrics")
            assert b"200" in await get("/livez")
            over.set()
            assert all(b"200" in answer for answer in await asyncio.gather(*scrapes))
        assert gathered == admin_server.MOST_SCRAPES

    uvloop.run(main(), loop_factory=Loop)


async def said_to(client: socket.socket) -> bytes:
    """Return what the admin port has sent to a client, up to its end."""
    loop, said = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionResetError):
        while more := await asyncio.wait_for(loop.sock_recv(client, 65536), patience(10)):
            said += more
    return said


def leaving(
    pages: Pages, check: Callable[[admin_server.AdminServer, Callable[[], socket.socket]], Coroutine[None, None, None]]
) -> None:
    """Check how an admin port is left to another process: gives the server and what connects to it."""

    async def main() -> None:
        port = free_port()
        admin = admin_server.AdminServer(f"127.0.0.1:{port}", pages)
        await admin.open(Succession())
        with contextlib.ExitStack() as stack:

            def connect() -> socket.socket:
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.setblocking(False)
                return client

            try:
                await check(admin, connect)
            finally:
                await admin.close()

    uvloop.run(main(), loop_factory=Loop)


async def kept_one(connect: Callable[[], socket.socket]) -> socket.socket:
    """Return a connection that is kept after a response: all that connected before have been accepted then."""
    client = connect()
    client.sendall(PROBE)
    assert b" 200 " in await asyncio.get_running_loop().sock_recv(client, 4096)
    return client


PLAIN = Pages(lambda: None, lambda: iter(()), lambda _: (b"", "text/plain"), lambda: None)


@pytest.mark.parametrize("kept", [False, True])
def test_who_has_asked_when_another_process_serves_is_answered(kept: bool) -> None:
    """Be its connection new, or kept after a response."""

    async def check(admin: admin_server.AdminServer, connect: Callable[[], socket.socket]) -> None:
        client = await kept_one(connect) if kept else connect()
        if not kept:
            await kept_one(connect)
        admin.release()
        client.sendall(PROBE)
        await admin.close()
        said = await said_to(client)
        assert b" 200 " in said
        assert b"Connection: close" in said

    leaving(PLAIN, check)


@pytest.mark.parametrize("ends", [True, False])
def test_a_response_under_way_when_another_process_serves_is_waited_for_so_long(ends: bool) -> None:
    async def gather() -> None:
        begun.set()
        await over.wait()

    async def check(admin: admin_server.AdminServer, connect: Callable[[], socket.socket]) -> None:
        client = await kept_one(connect)
        client.sendall(PROBE.replace(b"/livez", b"/metrics"))
        await begun.wait()
        admin.release()
        began = time.monotonic()
        closing = asyncio.create_task(admin.close())
        await asyncio.wait([closing], timeout=admin_server.LINGER_SECONDS / 2)
        assert not closing.done()
        if ends:
            over.set()
        assert (b" 200 " in await said_to(client)) is ends
        client.close()
        await closing
        assert time.monotonic() - began < patience(admin_server.LINGER_SECONDS + 1)

    begun, over = asyncio.Event(), asyncio.Event()
    leaving(Pages(lambda: None, lambda: iter([None]), lambda _: (b"", "text/plain"), lambda: None, gather), check)


def test_the_silent_hold_nobody_up_when_another_process_serves() -> None:
    async def check(admin: admin_server.AdminServer, connect: Callable[[], socket.socket]) -> None:
        clients = [connect(), connect()]
        clients[1].sendall(PROBE[:9])
        clients.append(await kept_one(connect))
        admin.release()
        began = time.monotonic()
        await admin.close()
        assert time.monotonic() - began < admin_server.LINGER_SECONDS / 2
        for client in clients:
            assert await said_to(client) == b""

    leaving(PLAIN, check)


def test_many_scrapes_at_once_look_at_the_connections_once() -> None:
    traffic = Traffic(Metrics({"version": "1"}))
    steps = traffic.refresh()
    with contextlib.ExitStack() as stack:
        for _ in range(3 * AT_ONCE):
            pair = socket.create_server(("127.0.0.1", 0))
            stack.callback(pair.close)
            traffic.opened("client", cast(asyncio.BaseTransport, _Transport(pair)))
        assert next(steps, 1) is None
        assert next(traffic.refresh(), 1) == 1
        assert len(list(steps)) == 2
        assert len(list(traffic.refresh())) == 3


class _Transport:
    """A transport of which only the socket is asked for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self._connection if name == "socket" else None

    def is_closing(self) -> bool:
        return False


def test_a_defect_is_told_to_who_asks_and_fills_no_log(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: str = "") -> NoReturn:
        raise ZeroDivisionError

    async def main(pages: Pages) -> None:
        async with alone(pages) as get:
            for _ in range(3):
                answer = await get("/metrics")
                assert answer.startswith(b"HTTP/1.1 500 "), answer
                assert b"Connection: close" in answer
            assert b"200" in await get("/livez")

    for pages in (
        Pages(lambda: None, lambda: iter(()), fail, lambda: None),
        Pages(lambda: None, lambda: map(fail, ("",)), lambda _: (b"", ""), lambda: None),
    ):
        uvloop.run(main(pages), loop_factory=Loop)
        # Where another test has set up logging in this process, it goes there.
        said = [*capfd.readouterr(), *(record.getMessage() for record in caplog.records)]
        caplog.clear()
        assert "".join(said).count("admin connection closed: internal error") == 1


def test_requests_with_nonsense_in_them_are_answered(admin: tuple[Proxy, Admin]) -> None:
    proxy, port = admin
    for version in ("x", "", "1..0", "9" * 4000, "1.2.3.4.5"):
        for kind in ("application/openmetrics-text", "text/plain"):
            assert port.ask("/metrics", Accept=f"{kind};version={version}")[0] == 200
    with port.connect() as connection:
        connection.sendall(PROBE.replace(b"GET", b"HEAD"))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"garbage\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in proxy.process.output


def test_scrapes_without_pause_leave_the_loop_to_redis_clients(server: Server, start_proxy: StartProxy) -> None:
    proxy, port = with_admin(start_proxy, server)
    until(lambda: port.ask("/readyz")[0] == 200)
    end = threading.Event()
    scraped: list[int] = []

    def scrape() -> None:
        with port.conversation() as connection:
            while not end.is_set():
                connection.request("GET", "/metrics")
                scraped.append(len(connection.getresponse().read()))

    process = psutil.Process(proxy.pid)
    threads = [threading.Thread(target=scrape, daemon=True) for _ in range(admin_server.MOST - 1)]
    for thread in threads:
        thread.start()
    until(lambda: len(scraped) > 20)
    began, spent = time.monotonic(), sum(process.cpu_times()[:2])
    time.sleep(2)
    share = (sum(process.cpu_times()[:2]) - spent) / (time.monotonic() - began)
    end.set()
    for thread in threads:
        thread.join(20)
    # A tenth, and what the loop itself and its timers take.
    assert share < 0.3
