"""A proxy whose upstream is itself does not start, whatever lies between; and no error grows."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import StartProxy
from tests.relay import Relay
from tests.sentinels import NAME, Sentinel
from tests.servers import BINARIES, ROOT, free_port, proxy_environment, until
from tests.test_check import Report, fails
from tests.test_tls import Files, flags
from tests.test_tls import files as files  # a fixture

pytestmark = pytest.mark.start


def refuses(*arguments: str, env: dict[str, str] | None = None) -> str:
    """See that a proxy ends at once, with one line; return it."""
    line = [sys.executable, "-m", "proxy", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=proxy_environment(env), cwd=ROOT)
    assert done.returncode == 2, done.stderr
    told = [line for line in done.stderr.splitlines() if "primary found" not in line]
    assert len(told) == 1, done.stderr
    assert "leads back to this proxy itself: set it to the Redis or Valkey server" in done.stderr
    return done.stderr


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


NAMES = [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("localhost", "localhost"),
         ("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("0.0.0.0", "127.1.2.3"),
         ("0.0.0.0", socket.gethostname()),
         *([("[::1]", "[::1]"), ("[::]", "[::1]")] if has_ipv6() else [])]  # fmt: skip


@pytest.mark.parametrize(("listen", "name"), NAMES)
def test_by_any_name(listen: str, name: str) -> None:
    port = free_port()
    url = {"EXPIREMEMBER_UPSTREAM": f"redis://user:secret@{name}:{port}/3"}
    said = refuses("--listen", f"{listen}:{port}", env=url)
    assert f"upstream: redis://{name}:{port} leads back" in said
    assert "secret" not in said


def test_with_several_workers() -> None:
    port = free_port()
    refuses("--listen", f"127.0.0.1:{port}", "--workers", "3", "--upstream", f"redis://localhost:{port}")


def test_with_the_settings_of_the_image() -> None:
    """`docker run` of the image: all addresses, and the default upstream's port."""
    port = str(free_port())
    refuses(env={"EXPIREMEMBER_LISTEN": f"0.0.0.0:{port}", "EXPIREMEMBER_LOG_FORMAT": "json",
                 "EXPIREMEMBER_UPSTREAM": f"redis://127.0.0.1:{port}"})  # fmt: skip


def test_by_a_unix_socket_and_links_to_it(tmp_path: Path) -> None:
    listen = tmp_path / "proxy.sock"
    (tmp_path / "link.sock").symlink_to(listen)
    (tmp_path / "folder").symlink_to(tmp_path)
    for path in (listen, tmp_path / "link.sock", tmp_path / "folder" / "proxy.sock"):
        refuses("--listen", f"unix://{listen}", "--upstream", f"unix://{path}")
        assert not listen.exists()


def test_by_another_address_of_several() -> None:
    port = free_port()
    addresses = ["--listen", f"127.0.0.1:{free_port()}", "--listen", f"127.0.0.1:{port}"]
    refuses(*addresses, "--upstream", f"redis://127.0.0.1:{port}")


def test_by_tls(files: Files) -> None:
    port = free_port()
    server = flags(listen_tls_cert_file=files.server.file, listen_tls_key_file=files.server.key)
    refuses("--listen", f"tls://127.0.0.1:{port}", *server, "--upstream", f"rediss://127.0.0.1:{port}",
            *flags(tls_ca_file=files.authority.file))  # fmt: skip


def test_by_a_port_that_is_mapped() -> None:
    port = free_port()
    with Relay(("127.0.0.1", port)) as relay:
        refuses("--listen", f"127.0.0.1:{port}", "--upstream", relay.url)


def test_by_sentinels() -> None:
    """They say that the primary is where the proxy is."""
    port = free_port()
    sentinel = Sentinel(min(BINARIES), port)
    try:
        upstream = f"redis+sentinel://127.0.0.1:{sentinel.port}/{NAME}"
        refuses("--listen", f"0.0.0.0:{port}", "--upstream", upstream)
        report = Report("--listen", f"0.0.0.0:{port}", "--upstream", upstream)
        fails(report, "upstream", f"redis://127.0.0.1:{port} is the proxy's own listen address", "set upstream to")
    finally:
        sentinel.close()


@pytest.mark.parametrize("between", [1, 3])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_through_other_proxies(start_proxy: StartProxy, between: int, workers: str) -> None:
    """The one that closes the circle does not start; the others go on, and their errors do not grow."""
    ports = [free_port() for _ in range(between + 1)]
    others = [
        start_proxy(None, "--upstream", f"redis://127.0.0.1:{after}", "--listen", f"127.0.0.1:{port}",
                    "--workers", workers)
        for port, after in itertools.pairwise(ports)
    ]  # fmt: skip
    for _ in range(2):
        refuses("--listen", f"127.0.0.1:{ports[-1]}", "--upstream", f"redis://127.0.0.1:{ports[0]}")
    for other in others:
        with other.connect() as client:
            assert len(client.rest()) < 250
        other.stop()
        for line in other.log():
            assert len(str(line)) < 700, line


def test_a_name_of_another_is_sent_on(start_proxy: StartProxy) -> None:
    """What a proxy says to its upstream is an ordinary request to a server, and may be sent by anybody."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        upstream.close()
        proxy = start_proxy(None, "--upstream", f"redis://127.0.0.1:{port}")
        name = b"expiremember-proxy:" + b"a" * 32
        for _ in range(50):
            with proxy.connect() as client:
                client.send(b"*2\r\n$4\r\nPING\r\n$%d\r\n%b\r\n" % (len(name), name))
                assert client.rest().startswith(b"-ERR expiremember-proxy: upstream ")
        with socket.create_server(("127.0.0.1", port)) as again:
            until(lambda: any(sends(again, b"a" * 32) for _ in range(3)), what="the name, sent on")


def sends(listening: socket.socket, text: bytes) -> bool:
    listening.settimeout(5)
    client, _ = listening.accept()
    with client:
        client.settimeout(5)
        return text in client.recv(1 << 16)


def test_an_outage_behind_is_told_once(start_proxy: StartProxy) -> None:
    """Proxies in a row, the last without a server: each says that the next is a proxy, and no more."""
    ports = [free_port() for _ in range(4)]
    for port, after in zip(ports, [*ports[1:], free_port()], strict=True):
        start_proxy(None, "--listen", f"127.0.0.1:{port}", "--upstream", f"redis://127.0.0.1:{after}")
    first = start_proxy(None, "--upstream", f"redis://127.0.0.1:{ports[0]}")
    with first.connect() as client:
        line = client.rest().decode()
    assert line.count("unavailable") == 1
    assert "it is an expiremember-proxy itself; set upstream to the Redis or Valkey server behind it" in line
