"""The PROXY protocol: every header that there can be, HAProxy in front, and ends at every byte of a header."""

from __future__ import annotations

import contextlib
import json
import random
import re
import select
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from proxy.addresses import UNLISTED
from proxy.cli import command
from proxy.wire.proxied import LONGEST, LONGEST_LINE, ProxyHeader, ProxyHeaderError, read
from tests.admin import Admin, admin_of
from tests.conftest import StartProxy
from tests.pages import page
from tests.patience import patience
from tests.raw import Raw, request
from tests.servers import Process, Proxy, Server, free_port, until
from tests.test_ends import ENDS, Handshake, open_files, quiet
from tests.test_tls import Files, context, flags

pytestmark = pytest.mark.one_kind

PING: Final = request("PING")
PONG: Final = b"+PONG\r\n"
BALANCER: Final = "127.0.0.1"
STRANGER: Final = "127.0.0.9"
CLIENT: Final = "127.0.0.5"

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
INET: Final = IPv4Address("192.0.2.7").packed + IPv4Address("192.0.2.1").packed + struct.pack("!HH", 56324, 6379)
INET6: Final = IPv6Address("2001:db8::7").packed + IPv6Address("::1").packed + struct.pack("!HH", 1, 65535)


def binary(command: int, family: int, body: bytes = b"", *, length: int | None = None) -> bytes:
    """A header of version 2."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if length is None else length) + body


def unix(path: bytes) -> bytes:
    return path.ljust(108, b"\0") + b"/run/proxy.sock".ljust(108, b"\0")


TLV: Final = b"\x03\x00\x04\x01\x02\x03\x04" + b"\x05\x00\x03abc"

LINE: Final = b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 6379\r\n"
LOCAL: Final = binary(0x20, 0x00)
WHOLE: Final = (LINE, binary(0x21, 0x11, INET))
LONGEST_REAL: Final = b"PROXY UNKNOWN " + b"f" * (LONGEST_LINE - 16) + b"\r\n"

GOOD: Final[dict[bytes, str | None]] = {
    LINE: "192.0.2.7:56324",
    b"PROXY TCP6 2001:db8::7 ::1 1 65535\r\n": "[2001:db8::7]:1",
    b"PROXY TCP6 ::ffff:192.0.2.7 ::1 0 0\r\n": "192.0.2.7:0",
    b"PROXY UNKNOWN\r\n": None,
    b"PROXY UNKNOWN whatever this is\r\n": None,
    LONGEST_REAL: None,
    binary(0x21, 0x11, INET): "192.0.2.7:56324",
    binary(0x21, 0x11, INET + TLV): "192.0.2.7:56324",
    binary(0x21, 0x21, INET6): "[2001:db8::7]:1",
    binary(0x21, 0x21, INET6 + b"\x04\x0f\xbc" + bytes(LONGEST - 16 - 36 - 3)): "[2001:db8::7]:1",
    binary(0x21, 0x31, unix(b"/run/a b.sock")): "unix:/run/a\\x20b.sock",
    binary(0x21, 0x31, unix(b"\0abstract\n") + TLV): "unix:\\x00abstract\\x0a",
    binary(0x21, 0x31, unix(b"")): None,
    binary(0x21, 0x00): None,
    binary(0x21, 0x00, TLV): None,
    binary(0x20, 0x00): None,
    binary(0x20, 0x11, INET): None,
    binary(0x20, 0xFF, TLV): None,
}

BAD: Final[dict[bytes, str]] = {
    b"*1\r\n$4\r\nPING\r\n": "does not begin with",
    b"PING\r\n": "does not begin with",
    b"\x16\x03\x01\x02\x00": "does not begin with",
    b"PROXY\r\n": "does not begin with",
    b"proxy TCP4": "does not begin with",
    b"\r\n\r\n\0\r\nQUIT ": "does not begin with",
    b"PROXY " + b"x" * 101: "more than 107 bytes",
    LONGEST_REAL[:-2] + b"ff\r\n": "more than 107 bytes",
    b"PROXY \r\n": "none of TCP4",
    b"PROXY UNKNOWNX\r\n": "none of TCP4",
    b"PROXY TCP5 1.2.3.4 1.2.3.4 1 1\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 1 \r\n": "none of TCP4",
    b"PROXY TCP4  1.2.3.4 1.2.3.4 1 1\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 1\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \xb2\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.4\n 1.2.3.4 1 1\r\n": "none of TCP4",
    b"PROXY TCP4 1.2.3.256 1.2.3.4 1 1\r\n": "an invalid TCP",
    b"PROXY TCP4 01.2.3.4 1.2.3.4 1 1\r\n": "an invalid TCP",
    b"PROXY TCP4 ::1 ::1 1 1\r\n": "an invalid TCP",
    b"PROXY TCP6 1.2.3.4 1.2.3.4 1 1\r\n": "an invalid TCP",
    b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n": "an invalid TCP",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 1\r\n": "an invalid port",
    b"PROXY TCP4 1.2.3.4 1.2.3.4 1 00\r\n": "an invalid port",
    binary(0x11, 0x11, INET): "version and command 0x11",
    binary(0x22, 0x11, INET): "version and command 0x22",
    binary(0x21, 0x10, INET): "family and transport 0x10",
    binary(0x21, 0x12, INET): "family and transport 0x12",
    binary(0x21, 0x41, INET): "family and transport 0x41",
    binary(0x21, 0x11, INET[:-1]): "11 bytes of addresses: 12",
    binary(0x21, 0x21, INET): "12 bytes of addresses: 36",
    binary(0x21, 0x31, INET6): "36 bytes of addresses: 216",
    binary(0x21, 0x11, length=LONGEST - 15): "4097 bytes, more than 4096",
    binary(0x20, 0x00, length=0xFFFF): "65551 bytes, more than 4096",
}


# The parser.


@pytest.mark.parametrize("header", GOOD, ids=lambda header: repr(header[:40]))
def test_a_header_is_read_at_every_cut_and_no_further(header: bytes) -> None:
    whole = ProxyHeader(len(header), GOOD[header])
    for end in range(1, len(header)):
        assert read(header[:end]) is None
    for more in (b"", b"\r\n", PING, header, b"\0" * 5000):
        assert read(header + more) == whole


@pytest.mark.parametrize("header", BAD, ids=lambda header: repr(header[:40]))
def test_what_is_no_header_is_named(header: bytes) -> None:
    with pytest.raises(ProxyHeaderError, match=re.escape(BAD[header])):
        read(header)


_ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))
_PORTS = st.integers(0, 65535)


@settings(max_examples=300)
@given(_ADDRESSES, _PORTS, st.binary(max_size=60))
def test_the_address_comes_out_that_went_in(source: IPv4Address | IPv6Address, port: int, tlvs: bytes) -> None:
    version = source.version
    ports = struct.pack("!HH", port, 1)
    mapped = getattr(source, "ipv4_mapped", None)
    shown = f"{mapped or source}:{port}" if version == 4 or mapped else f"[{source}]:{port}"
    line = f"PROXY TCP{version} {source} {source} {port} 1\r\n".encode()
    assert read(line) == ProxyHeader(len(line), shown)
    header = binary(0x21, 0x11 if version == 4 else 0x21, source.packed * 2 + ports + tlvs)
    assert read(header + b"more") == ProxyHeader(len(header), shown)


def fed(data: bytes, steps: tuple[int, ...]) -> tuple[ProxyHeader | str | None, int]:
    """Feed bytes in pieces; return what comes of it, and how many had to be there for that."""
    end = 0
    while end < len(data):
        end = min(len(data), end + steps[end % len(steps)])
        try:
            header = read(data[:end])
        except ProxyHeaderError as error:
            return str(error), end
        if header is not None:
            return header, end
    return None, end


def hostile(chance: random.Random) -> bytes:
    """A header, good or bad, of which some bytes are missing, others, or too many."""
    good = chance.choice(_KNOWN)
    at = chance.randrange(chance.choice((20, 60, len(good))))
    return good[:at] + chance.randbytes(chance.choice((0, 1, 2, 20))) + good[at + chance.randrange(24) :]


_KNOWN: Final = [*GOOD, *BAD]


@settings(max_examples=10_000, database=None, phases=[Phase.generate])
@given(st.integers(0, 1 << 64))
def test_ten_thousand_hostile_headers(seed: int) -> None:
    """However they come in pieces, the same comes of them, in bounded time and memory."""
    chance = random.Random(seed)
    data = hostile(chance)
    steps = chance.randint(1, 40) if len(data) < 400 else chance.randint(40, 900), chance.randint(30, 400)
    outcome, _ = fed(data, (len(data) or 1,))
    slowly, needed = fed(data, steps)
    assert type(slowly) is type(outcome)
    if isinstance(outcome, ProxyHeader):
        assert slowly == outcome
        assert outcome.size <= min(LONGEST, len(data))
        assert read(data[: outcome.size]) == outcome
        assert read(data[: outcome.size - 1]) is None
        assert outcome.source is None or outcome.source.isprintable()
    elif outcome is None:
        assert needed == len(data) < LONGEST
    else:
        assert needed <= LONGEST + max(steps)


# Proxies.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


class Place(NamedTuple):
    """A proxy that wants headers, its ports without and with TLS, its Unix socket, and its admin port."""

    proxy: Proxy
    plain: int
    tls: int
    unix: Path
    admin: Admin

    def counted(self) -> int:
        """How many clients are connected, at all workers."""
        metrics = self.admin.metrics()
        return int(sum(value for name, value in metrics.items() if re.fullmatch(r"client_connections(\{.*)?", name)))

    def rejected(self, reason: str) -> float:
        return self.admin.metrics()[f"client_connections_rejected_total{{reason={reason}}}"]


def place(start: Callable[..., Proxy], server: Server, files: Files, folder: Path, *more: str) -> Place:
    plain, tls = free_port(), free_port()
    options = ["--listen", f"unix://{folder}/proxy.sock", "--listen", f"127.0.0.1:{plain}"]
    options += ["--listen", f"tls://127.0.0.1:{tls}", "--admin", "127.0.0.1:0"]
    options += flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=files.server.key)
    proxy = start(server, *options, "--listen-proxy-protocol", f"10.0.0.0/8,{BALANCER}", *more)
    return Place(proxy, plain, tls, folder / "proxy.sock", admin_of(proxy))


@pytest.fixture
def here(server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path) -> Place:
    return place(start_proxy, server, files, tmp_path)


def connect(port: int, source: str = BALANCER) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), patience(20), (source, 0))


def answer(connection: socket.socket) -> bytes:
    """What comes until the other side closes, or a line has ended."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while not said.endswith(b"\r\n") and (piece := connection.recv(4096)):
            said += piece
    return said


def check_every_cut(here: Place) -> None:
    """For the deliberate breaks too: the header in two parts, then a request; each is answered once."""
    for header in (LINE, binary(0x21, 0x11, INET + TLV), LOCAL):
        with ExitStack() as stack:
            clients = [(stack.enter_context(connect(here.plain)), cut) for cut in range(1, len(header) + 1)]
            for connection, cut in clients:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(header[:cut])
            until(lambda: here.counted() == len(clients), what="all to be counted")  # noqa: B023 - at once
            for connection, cut in clients:
                connection.sendall(header[cut:] + PING)
            for connection, _ in clients:
                assert answer(connection) == PONG
        until(lambda: here.counted() == 0)


def test_a_header_may_be_cut_anywhere(here: Place) -> None:
    check_every_cut(here)
    quiet(here.proxy)
    here.proxy.stop()


def test_tls_begins_behind_the_header(here: Place) -> None:
    """Also where both come in one piece, and where the header comes byte by byte."""
    for header in (LINE, binary(0x21, 0x21, INET6 + TLV)):
        for size in (1, 10, len(header)):
            client = Handshake(here.tls)
            with client.socket:
                client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                data = header + client.hello()
                for begin in range(0, len(header), size):
                    client.socket.sendall(data[begin : begin + size] if begin + size < len(header) else data[begin:])
                client.socket.sendall(client.finish() + client.encrypt(PING))
                assert client.socket.recv(4096)
    until(lambda: here.counted() == 0)
    assert here.rejected("tls_handshake") == here.rejected("proxy_header") == 0
    quiet(here.proxy)


def check_ends(here: Place, *, every: int = 1) -> None:
    """For the deliberate breaks too: ends at every byte, however they end, leave nothing behind."""
    assert here.counted() == 0
    before = open_files(here.proxy)
    for port in (here.plain, here.tls):
        for header in WHOLE:
            for end in ENDS:
                for cut in range(0, len(header) + 1, every):
                    with connect(port) as connection:
                        connection.sendall(header[:cut])
                        end(connection)
    until(lambda: here.counted() == 0, what=lambda: f"{here.counted()} clients to be none")
    until(lambda: open_files(here.proxy) <= before)


def test_ends_at_every_byte_leave_nothing(here: Place) -> None:
    check_ends(here)
    # Who only looks whether somebody listens is no failure.
    cuts = 2 * sum(len(header) - 1 for header in WHOLE) * len(ENDS)
    assert here.rejected("proxy_header") <= cuts
    assert here.rejected("proxy_header") >= cuts / 3
    quiet(here.proxy)
    here.proxy.stop()


def test_who_looks_whether_somebody_listens_is_no_failure(here: Place) -> None:
    for end in ENDS:
        for port in (here.plain, here.tls):
            with connect(port) as connection:
                end(connection)
    until(lambda: here.counted() == 0)
    assert here.rejected("proxy_header") == 0
    assert {line["level"] for line in here.proxy.log()} == {"info"}


def test_workers_count_clients_once(server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path) -> None:
    here = place(start_proxy, server, files, tmp_path, "--workers", "2")
    check_every_cut(here)
    check_ends(here, every=5)
    quiet(here.proxy)
    here.proxy.stop()


def check_stalls(here: Place) -> None:
    """For the deliberate breaks too: of a proxy that waits a second for a header."""
    began = time.monotonic()
    starts = [(port, header[:cut]) for port in (here.plain, here.tls) for header in WHOLE for cut in range(len(header))]
    with ExitStack() as stack:
        stalled = [stack.enter_context(connect(port)) for port, _ in starts]
        for connection, (_, start) in zip(stalled, starts, strict=True):
            connection.sendall(start)
        # One that sends a byte now and then has no more time than the others.
        drop = stack.enter_context(connect(here.plain))
        for byte in b"PROXY UN":
            with contextlib.suppress(OSError):
                drop.sendall(bytes([byte]))
            select.select([drop], [], [], 0.2)
        for connection in (*stalled, drop):
            assert answer(connection) == b""
    assert 1 <= time.monotonic() - began < 10
    assert here.counted() == 0
    assert here.rejected("proxy_header") == len(stalled) + 1
    (line,) = [line for line in here.proxy.log() if line["event"].startswith("client refused")]
    assert line["error"] == "a PROXY header took longer than 1 s (0 bytes arrived)"
    assert line["peer"].startswith("127.0.0.1:")
    quiet(here.proxy)


def test_who_stalls_is_closed_in_time(server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path) -> None:
    here = place(start_proxy, server, files, tmp_path, "--listen-tls-timeout", "1")
    check_stalls(here)
    here.proxy.stop()


def check_the_name_in_the_log(here: Place) -> None:
    """For the deliberate breaks too: of a proxy that takes no request larger than 64 KB."""
    for header, client in ((LINE, "192.0.2.7:56324"), (binary(0x21, 0x21, INET6), "[2001:db8::7]:1"), (LOCAL, None)):
        with connect(here.plain) as connection:
            connection.sendall(header + TOO_LARGE)
            assert b"request larger than" in connection.recv(4096)
            host, port = connection.getsockname()
        said = log_of(here, "client dropped: request larger than request_limit")[-1].get("client")
        assert said == (client or f"{host}:{port}")


def test_the_log_names_the_client(server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path) -> None:
    here = place(start_proxy, server, files, tmp_path, "--request-limit", "65536")
    check_the_name_in_the_log(here)
    here.proxy.stop()


def test_who_stalls_counts_and_gives_its_place_back(
    server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path
) -> None:
    here = place(start_proxy, server, files, tmp_path, "--max-clients", "3")
    stalled = [connect(here.plain) for _ in range(3)]
    until(lambda: here.proxy.command("PING").startswith(b"-ERR max"), what="no room")
    with connect(here.plain) as late:
        late.sendall(LINE + PING)
        assert answer(late) == b"-ERR max number of clients reached\r\n"
    for connection in stalled:
        connection.sendall(LINE[:10])
        connection.close()
    until(lambda: here.counted() == 0, what="room")
    with connect(here.plain) as late:
        late.sendall(LINE + PING)
        assert answer(late) == PONG
    here.proxy.stop()


def test_a_stop_waits_for_no_header(here: Place) -> None:
    stalled = [connect(port) for port in (here.plain, here.tls) for _ in range(20)]
    for number, connection in enumerate(stalled):
        connection.sendall(LINE[:number])
    served = connect(here.plain)
    served.sendall(LINE + request("BLPOP", "nothing", 1))
    until(lambda: here.counted() == 41, what="all to be counted")
    began = time.monotonic()
    here.proxy.stop()
    assert time.monotonic() - began < 8
    assert served.recv(100) == b"*-1\r\n"
    for connection in (*stalled, served):
        assert answer(connection) == b""
        connection.close()
    quiet(here.proxy)


def check_unlisted(here: Place) -> None:
    """For the deliberate breaks too."""
    for data in (PING, LINE + PING, b""):
        with connect(here.plain, STRANGER) as connection:
            connection.sendall(data)
            assert answer(connection) == UNLISTED
        with connect(here.tls, STRANGER) as connection:
            connection.sendall(data)
            assert answer(connection) == b""


def test_others_are_refused(here: Place) -> None:
    check_unlisted(here)
    assert here.counted() == 0
    assert here.rejected("proxy_network") == 6
    (line,) = [line for line in here.proxy.log() if line["level"] == "warning"]
    assert line["event"] == "clients refused: not in listen_proxy_protocol"
    assert line["peer"].startswith(f"{STRANGER}:")
    assert here.proxy.command("PING") == PONG  # at the Unix socket
    here.proxy.stop()


def test_some_hundred_hostile_headers(here: Place) -> None:
    chance = random.Random("hostile headers")
    before = open_files(here.proxy)
    for number in range(400):
        data = hostile(chance)
        try:
            found = read(data)
        except ProxyHeaderError:
            found = None
        with connect(here.tls if number % 4 == 0 else here.plain) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            said = answer(connection)
            if found is None or number % 4 == 0:
                assert said == b"" or (said[0] == 0x15 and found is not None), (data, said)
    until(lambda: here.counted() == 0)
    until(lambda: open_files(here.proxy) <= before)
    quiet(here.proxy)
    here.proxy.stop()


def test_a_check_sends_a_header_where_one_is_wanted(here: Place) -> None:
    addresses = ["--listen", f"127.0.0.1:{here.plain}", "--listen", f"tls://127.0.0.1:{here.tls}"]
    networks = ["--listen-proxy-protocol", "127.0.0.0/8"]
    done = CliRunner().invoke(command(), ["check", "--probe", *addresses[:2], *networks])
    assert (done.exit_code, done.output) == (0, f"127.0.0.1:{here.plain}: answers\n")
    done = CliRunner().invoke(command(), ["check", *addresses[:2], *networks])
    assert f"127.0.0.1:{here.plain} is where the proxy is running (version" in done.output
    before = here.rejected("proxy_header")
    done = CliRunner().invoke(command(), ["check", "--probe", *addresses[:2]])
    assert done.exit_code == 1
    assert here.rejected("proxy_header") == before + 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen-proxy-protocol", "10.0.0.1/8"], "'10.0.0.1/8' is not a network such as 10.0.0.0/8"),
        (["--listen-proxy-protocol", "balancer"], "'balancer' is not a network"),
        (["--listen-proxy-protocol", "::1", "--listen", "unix:///x"], "needs a host:port or tls:// address"),
    ],
)
def test_networks_that_are_none(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    proxy = Proxy(*options, ready=False)
    assert proxy.process.wait() == 2
    assert said in proxy.process.output


# HAProxy.


class Balancer:
    """An HAProxy that runs until it is closed."""

    def __init__(self, folder: Path, text: str) -> None:
        path = folder / "haproxy.cfg"
        path.write_text(text)
        program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if program is None:
            pytest.skip("haproxy is not installed")
        self.process = Process([program, "-db", "-f", str(path)])


DEFAULTS: Final = "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"
SENDS: Final = ("send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id")


@contextlib.contextmanager
def balancers(folder: Path, ports: dict[tuple[str, int], int]) -> Iterator[None]:
    """Run HAProxy with a listener for each way to send the header, and port of the proxy."""
    text = DEFAULTS
    for number, ((sends, to), port) in enumerate(ports.items()):
        check = "check inter 200ms" if number % 2 == 0 else ""  # to TLS it would be a handshake that has failed
        text += f"listen at{port}\n  bind 127.0.0.1:{port}\n  server proxy 127.0.0.1:{to} {sends} {check}\n"
    balancer = Balancer(folder, text)
    try:
        first = next(iter(ports.values()))  # all are open, or none; to TLS a look would be a handshake that has failed
        until(lambda: is_open(first), what="HAProxy")
        yield
    finally:
        balancer.process.kill()


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), connect(port):
        return True
    return False


def log_of(place: Place, event: str) -> list[dict[str, Any]]:
    return [line for line in place.proxy.log() if line["event"] == event]


TOO_LARGE: Final = b"*4\r\n$12\r\nEXPIREMEMBER\r\n$1\r\nk\r\n$1000000\r\n" + b"x" * 100_000


def test_haproxy_in_front(server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path) -> None:
    """Of each way to send the header, over TCP and TLS: requests are answered, and the log names the real client."""
    here = place(start_proxy, server, files, tmp_path, "--request-limit", "65536")
    ports = {(sends, to): free_port() for sends in SENDS for to in (here.plain, here.tls)}
    with balancers(tmp_path, ports):
        for number, ((_, to), port) in enumerate(ports.items(), 1):
            plain = connect(port, CLIENT)
            host, own = plain.getsockname()
            with context(files).wrap_socket(plain, server_hostname=BALANCER) if to == here.tls else plain as client:
                client.sendall(PING)
                assert answer(client) == PONG
                client.sendall(TOO_LARGE)
                assert b"request larger than" in client.recv(4096)
            lines = log_of(here, "client dropped: request larger than request_limit")
            assert len(lines) == number
            assert (host, lines[-1]["client"]) == (CLIENT, f"{CLIENT}:{own}")
        # HAProxy's own checks have come meanwhile, without a client's address or without a byte.
        assert here.rejected("proxy_header") == here.rejected("proxy_network") == 0
        with connect(ports[SENDS[1], here.tls], CLIENT) as wrong:
            own = wrong.getsockname()[1]
            wrong.sendall(b"no TLS at all\r\n" * 10)
            answer(wrong)
        until(
            lambda: any(f"{CLIENT}:{own}" == line.get("client") for line in log_of(here, "client TLS handshake failed"))
        )
    until(lambda: here.counted() == 0)
    quiet(here.proxy)
    here.proxy.stop()


def test_haproxy_as_the_page_configures_it(
    server: Server, start_proxy: StartProxy, files: Files, tmp_path: Path
) -> None:
    (block,) = [block for block in page("docs/operations.md").blocks if block.language == "haproxy"]
    here, front = place(start_proxy, server, files, tmp_path), free_port()
    text = block.text.replace(":6379", f":{front}").replace(":6380", f":{here.plain}").replace("2s", "500ms")
    balancer = Balancer(tmp_path, text)
    try:
        until(lambda: is_open(front), what="HAProxy")

        def serves() -> bool:
            with contextlib.suppress(ConnectionError), Raw(("127.0.0.1", front)) as client:
                return client.command("PING") == PONG
            return False

        until(serves)
        began = here.admin.metrics()["client_connections_total"]
        until(lambda: here.admin.metrics()["client_connections_total"] > began + 1, what="checks of HAProxy's own")
        assert serves()
        assert here.rejected("proxy_header") == 0
    finally:
        balancer.process.kill()
    assert "DOWN" not in balancer.process.output, balancer.process.output
    assert json.dumps(here.proxy.log()).count("warning") == 0
