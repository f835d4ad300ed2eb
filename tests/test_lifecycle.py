"""The proxy as a program: its command line and settings, its start and its end, and upstream servers that go away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast

import psutil
import pytest
import uvloop

from proxy import __version__
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.budget import HeldBudget, Holding
from proxy.relay.farewell import FAREWELL_SECONDS, Farewell
from proxy.relay.fence import Fence
from proxy.relay.upstream import ReadPause, UpstreamConnection
from proxy.settings import Settings
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, request
from tests.servers import BINARIES, KIND, Process, Proxy, Server, free_port, halt, proxy_environment, until
from tests.test_flow import open_connections

pytestmark = [pytest.mark.start, pytest.mark.oldest_kind]


def run(*args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the proxy's command line to its end."""
    command = [sys.executable, "-m", "proxy", *args]
    return subprocess.run(
        command, env=proxy_environment(env), cwd=cwd, capture_output=True, text=True, timeout=20, check=False
    )


def answers(address: tuple[str, int] | Path) -> bool:
    """Whether something listens there that answers a PING."""
    try:
        with Raw(address) as client:
            return client.command("PING") == b"+PONG\r\n"
    except OSError:
        return False


# The command line


def test_help_names_every_setting() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "EXPIREMEMBER" in done.stdout
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in done.stdout
    assert "--config FILE" in done.stdout


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--no-such-flag"], "--no-such-flag"),
        (["stray"], "stray"),
        (["--listen"], "--listen"),
        (["--listen", "nowhere"], "nowhere"),
        (["--listen", "127.0.0.1:99999"], "99999"),
        (["--listen", "unix://relative"], "unix"),
        (["--upstream", "http://127.0.0.1:1"], "upstream"),
        (["--upstream", "redis://127.0.0.1:notaport"], "upstream"),
        (["--upstream", "redis://127.0.0.1/notanumber"], "upstream"),
        (["--upstream", ""], "upstream"),
        (["--log-level", "loud"], "log_level"),
        (["--log-format", "xml"], "log_format"),
        (["--connect-timeout", "soon"], "connect_timeout"),
        (["--connect-timeout", "-1"], "connect_timeout"),
        (["--prefix", ""], "prefix"),
        (["--prefix", "with{brace"], "prefix"),
        (["--embedded", "--upstream", "redis://127.0.0.1:1"], "embedded"),
        (["--embedded-dir", "data"], "embedded"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--config", "."], "configuration file"),
        (["--tls-cert-file", "cert.pem"], "tls_key_file"),
        (["--upstream", "rediss://127.0.0.1:1", "--tls-ca-file", "missing.pem"], "missing.pem"),
        (["--listen", "unix:///proc/nowhere/socket"], "/proc/nowhere/socket"),
    ],
    ids=lambda value: "-".join(value) or None if isinstance(value, list) else "",
)
def test_a_bad_setting_ends_it_with_one_line(tmp_path: Path, args: list[str], says: str) -> None:
    done = run(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen = nonsense", "proxy.toml"),
        ('no_such_setting = "x"', "no_such_setting"),
        ("sweep_batch = 0", "sweep_batch"),
        ("[section]\nlisten = []", "section"),
        ('listen = ["nowhere"]', "nowhere"),
        ("listen = []", "listen"),
    ],
)
def test_a_bad_configuration_file_ends_it_with_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "proxy.toml").write_text(text)
    done = run("--config", "proxy.toml", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_environment_variable_ends_it_with_one_line() -> None:
    done = run(env={"EXPIREMEMBER_SWEEP_BATCH": "many"})
    assert done.returncode == 2
    assert "sweep_batch" in done.stderr.lower()
    assert done.stderr.count("\n") == 1


def test_an_address_in_use_ends_it_with_one_line(server: Server) -> None:
    done = run("--listen", f"127.0.0.1:{server.port}", "--upstream", server.url, "--log-level", "error")
    assert done.returncode == 2
    assert f"127.0.0.1:{server.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_flags_over_environment_over_file(server: Server, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    config = tmp_path / "proxy.toml"
    config.write_text(
        f'listen = ["127.0.0.1:{ports[0]}"]\nupstream = "{server.url}"\nlog_format = "json"\nlog_level = "debug"\n'
    )
    for args, env, port in (
        ([], {}, ports[0]),
        ([], {"EXPIREMEMBER_LISTEN": f"127.0.0.1:{ports[1]}"}, ports[1]),
        (["--listen", f"127.0.0.1:{ports[2]}"], {"EXPIREMEMBER_LISTEN": f"127.0.0.1:{ports[1]}"}, ports[2]),
    ):
        command = [sys.executable, "-m", "proxy", "--config", str(config), *args]
        process = Process(command, proxy_environment(env))
        try:
            ready = json.loads(process.line(lambda line: '"ready"' in line))
            assert ready["listen"] == [f"127.0.0.1:{port}"]
            assert [number for number in ports if answers(("127.0.0.1", number))] == [port]
            assert process.end() == 0
        finally:
            process.kill()


def test_the_environment_alone_configures_it(server: Server) -> None:
    """As in a container."""
    port, other = free_port(), free_port()
    env = {
        "EXPIREMEMBER_LISTEN": f"127.0.0.1:{port},127.0.0.1:{other}",
        "EXPIREMEMBER_UPSTREAM": server.url,
        "EXPIREMEMBER_LOG_FORMAT": "json",
        "EXPIREMEMBER_SWEEP": "false",
    }
    process = Process([sys.executable, "-m", "proxy"], proxy_environment(env))
    try:
        process.line(lambda line: '"ready"' in line)
        assert answers(("127.0.0.1", port))
        assert answers(("127.0.0.1", other))
        assert process.end() == 0
    finally:
        process.kill()


def test_the_log_goes_to_standard_error_in_either_format(server: Server) -> None:
    for style in ("console", "json"):
        command = [sys.executable, "-m", "proxy", "--listen", f"127.0.0.1:{free_port()}", "--upstream", server.url]
        with subprocess.Popen(
            [*command, "--log-format", style, "--log-level", "debug"],
            env=proxy_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stderr is not None
                lines: list[str] = []
                while not lines or not re.search(r"\bready\b", lines[-1]):
                    lines.append(process.stderr.readline())
                assert command[4] in lines[-1]
                process.terminate()
                out, err = process.communicate(timeout=10)
            finally:
                process.kill()
        assert out == ""
        assert process.returncode == 0
        lines += err.splitlines()
        if style == "json":
            assert all({"event", "level", "timestamp"} <= json.loads(line).keys() for line in lines)


# Addresses


def test_listens_on_several_addresses_and_a_unix_socket(server: Server, short: Path, start_proxy: StartProxy) -> None:
    path = short / "proxy.sock"
    port = free_port()
    proxy = start_proxy(server, "--listen", f"127.0.0.1:{port}", "--listen", f"unix://{path}")
    assert proxy.command("SADD", "s", "m") == b":1\r\n"
    with Raw(path) as client:
        assert client.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
    assert about(proxy.command("TTL", "s", "m"), 100)
    proxy.stop()
    assert not path.exists()


def test_replaces_the_socket_of_a_killed_proxy_but_no_living_one(
    server: Server, short: Path, start_proxy: StartProxy
) -> None:
    path = short / "proxy.sock"
    first = start_proxy(server, "--listen", f"unix://{path}")
    first.close()
    assert path.exists()
    second = start_proxy(server, "--listen", f"unix://{path}")
    assert second.command("PING") == b"+PONG\r\n"
    done = run("--listen", f"unix://{path}", "--upstream", server.url)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert second.command("PING") == b"+PONG\r\n"


def test_does_not_replace_a_file(server: Server, short: Path) -> None:
    path = short / "file"
    path.write_text("precious")
    assert run("--listen", f"unix://{path}", "--upstream", server.url).returncode == 2
    assert path.read_text() == "precious"


def test_upstream_on_a_unix_socket(start_server: StartServer, start_proxy: StartProxy, short: Path) -> None:
    path = short / "redis.sock"
    start_server(min(BINARIES), "--unixsocket", str(path))
    proxy = start_proxy(None, "--upstream", f"unix://{path}")
    assert proxy.command("SADD", "s", "m") == b":1\r\n"
    assert proxy.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
    assert about(proxy.command("TTL", "s", "m"), 100)
    proxy.stop()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a Unix socket's."""
    with tempfile.TemporaryDirectory(prefix="em-") as folder:
        yield Path(folder)


# Users


def test_clients_log_in_as_themselves(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """The proxy's own credentials are for its own connections; every answer is the server's own."""
    server = start_server(kind, "--requirepass", "main:secret/ä")
    with server.connect() as admin:
        assert admin.command("AUTH", "main:secret/ä") == b"+OK\r\n"
        for user in (("proxy", "on", ">pr%xy@:/", "~*", "&*", "+@all"), ("alice", "on", ">pw", "~a:*", "&*", "+@all")):
            assert admin.command("ACL", "SETUSER", *user) == b"+OK\r\n"
        assert admin.command("ACL", "SETUSER", "alice", "-@dangerous", "+eval") == b"+OK\r\n"
    proxy = start_proxy(None, "--upstream", f"redis://proxy:pr%25xy%40%3A%2F@127.0.0.1:{server.port}/0")

    def talk(client: Raw) -> list[bytes]:
        with client:
            return [
                client.command(*line)
                for line in (
                    ("GET", "k"),
                    ("AUTH", "alice", "wrong"),
                    ("HELLO", 2, "AUTH", "alice", "wrong"),
                    ("HELLO", 3),
                    ("AUTH", "alice", "pw"),
                    ("ACL", "WHOAMI"),
                    ("SET", "a:k", "v"),
                    ("SADD", "a:s", "m"),
                    ("GET", "b:k"),
                    ("SADD", "b:s", "m"),
                    ("CONFIG", "GET", "port"),
                    ("MULTI",),
                    ("GET", "b:k"),
                    ("EXEC",),
                    ("AUTH", "main:secret/ä"),
                    ("ACL", "WHOAMI"),
                    ("AUTH", "nosuch", "x"),
                    ("DEL", "a:k", "a:s"),
                )
            ]

    straight = talk(server.connect())
    assert talk(proxy.connect()) == straight
    assert straight[0].startswith(b"-NOAUTH")
    with proxy.connect() as client:
        # A request of 11 arguments, or a string of 16 KB, is refused before a login; the connection is closed.
        client.send(request(*["ECHO"] * 11))
        assert client.rest().startswith(b"-ERR Protocol error: unauthenticated multibulk length")
    with proxy.connect() as client:
        client.send(request("ECHO", "x" * 16385))
        assert client.rest().startswith(b"-ERR Protocol error: unauthenticated bulk length")
    with proxy.connect() as client:
        assert client.command("EXPIREMEMBER", "a:s", "m", 100).startswith(b"-NOAUTH")
        assert client.command("AUTH", "main:secret/ä") == b"+OK\r\n"
        assert client.command("SADD", "a:s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "a:s", "m", 100) == b":1\r\n"
        assert about(client.command("TTL", "a:s", "m"), 100)
    proxy.stop()


def test_wrong_credentials_are_named(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(min(BINARIES), "--requirepass", "secret")
    proxy = start_proxy(None, "--upstream", f"redis://:wrong@127.0.0.1:{server.port}")
    with proxy.connect() as client:
        line = client.line()
        assert line.startswith(b"-ERR")
        assert b"invalid" in line.lower() or b"password" in line.lower()
        assert b"wrong@" not in line
        assert client.rest() == b""
    assert "wrong@" not in proxy.process.output
    proxy.stop()


# An upstream that is not there


def test_a_client_is_told_that_the_upstream_is_down(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(min(BINARIES))
    server.stop()
    proxy = start_proxy(server)
    for greeting in (b"", b"PING\r\n", request("SET", "k", b"x" * 1_000_000)):
        with proxy.connect() as client:
            client.send(greeting)
            told = client.rest()
            assert told.startswith(b"-ERR ")
            assert told.count(b"\r\n") == 1
            assert b"is unavailable: connection refused" in told
            assert f"127.0.0.1:{server.port}".encode() in told
    server.start()
    until(lambda: answers(proxy.address), timeout=5, what="the proxy's return to the upstream")
    proxy.stop()


def test_ends_in_order_while_the_upstream_is_down(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(min(BINARIES))
    proxy = start_proxy(server)
    server.stop(signal.SIGKILL)
    until(lambda: not answers(proxy.address))
    proxy.stop()


def test_a_client_is_closed_when_the_upstream_goes(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server)
    with proxy.connect() as idle, proxy.connect() as waiting:
        assert idle.command("PING") == b"+PONG\r\n"
        waiting.send(request("PING") + request("BLPOP", "nope", 0))
        assert waiting.reply() == b"+PONG\r\n"
        server.stop(signal.SIGKILL)
        assert idle.rest() == b""
        assert waiting.rest() == b""
    server.start()
    until(lambda: answers(proxy.address))
    proxy.stop()


_SLOW = """
import time
from proxy.cli import main
from proxy.relay.client import ClientConnection
attach = ClientConnection.attach
def slow(self, upstream):
    attached = attach(self, upstream)
    time.sleep(0.5)
    return attached
ClientConnection.attach = slow
main()
"""
"""The proxy, in which the time to connect is always over when the connection has just come."""


def test_a_client_is_served_when_the_connection_comes_as_the_time_is_over(server: Server) -> None:
    port = free_port()
    options = ["--upstream", server.url, "--listen", f"127.0.0.1:{port}", "--connect-timeout", "0.3"]
    process = Process([sys.executable, "-c", _SLOW, *options], proxy_environment())
    try:
        process.line(lambda line: "ready" in line)
        with Raw(("127.0.0.1", port)) as client:
            assert [client.command("PING") for _ in range(3)] == [b"+PONG\r\n"] * 3
        assert "Traceback" not in process.output
    finally:
        process.kill()


class _Client:
    """The client's side, as far as a server's connection needs one."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.who: dict[str, str] = {}

    def attach(self, upstream: UpstreamConnection) -> bool:
        return True

    def set_clogged(self, clogged: bool) -> None: ...

    def logged_in(self) -> None: ...

    def replies_passed(self) -> None: ...

    def upstream_lost(self, refusal: Exception | None) -> None:
        self.lost.set()


def test_all_that_the_server_said_is_delivered_when_it_resets_the_connection() -> None:
    said = b"v" * 150_000

    async def main() -> bytes:
        delivered: list[bytes] = []
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = _Client()
            near = socket.socket()
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            near.connect(listener.getsockname())
            _, upstream = await loop.create_connection(
                lambda: UpstreamConnection(client, delivered.append, Traffic(Metrics()), Fence()), sock=near
            )
            upstream.pause(ReadPause.FULL)
            far, _ = listener.accept()
            far.sendall(said)
            until(lambda: len(near.recv(len(said), socket.MSG_PEEK)) == len(said))
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            upstream.write(b"PING\r\n")
            await asyncio.wait_for(client.lost.wait(), 10)
        return b"".join(delivered)

    assert uvloop.run(main()) == said


def test_deadlines_outlive_a_restart_of_the_server(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--appendonly", "yes")
    proxy = start_proxy(server)
    with proxy.connect() as client:
        assert client.command("SADD", "s", "soon", "late", "never") == b":3\r\n"
        assert client.command("EXPIREMEMBER", "s", "soon", 700, "ms") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "late", 1000) == b":1\r\n"
        assert client.command("SELECT", 3) == b"+OK\r\n"
        assert client.command("HSET", "h", "f", "v", "g", "w") == b":2\r\n"
        assert client.command("EXPIREMEMBER", "h", "f", 700, "ms") == b":1\r\n"
    server.stop()
    server.start()
    until(lambda: answers(proxy.address))
    assert about(proxy.command("TTL", "s", "late"), 1000)
    # Seen straight, so that it is the sweeper that does it, and no reader.
    until(lambda: server.command("SISMEMBER", "s", "soon") == b":0\r\n")
    until(lambda: hash_length(server, 3) == b":1\r\n")
    assert proxy.command("SCARD", "s") == b":2\r\n"
    proxy.stop()


def hash_length(server: Server, database: int) -> bytes:
    with server.connect() as client:
        assert client.command("SELECT", database) == b"+OK\r\n"
        return client.command("HLEN", "h")


def test_a_deadline_that_passed_without_a_proxy(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """Nobody reads an expired member, not even the first client of a proxy that has just started."""
    upstream = start_server(kind)
    first = start_proxy(upstream)
    with first.connect() as client:
        assert client.command("SADD", "s", "gone", "stays") == b":2\r\n"
        assert client.command("PEXPIREMEMBER", "s", "gone", 400) == b":1\r\n"
        deadline = milliseconds(upstream) + 400
    first.close()
    until(lambda: milliseconds(upstream) > deadline)
    assert upstream.command("SISMEMBER", "s", "gone") == b":1\r\n", "the first proxy was to be gone by then"
    second = start_proxy(upstream, "--no-sweep")
    assert second.command("SMEMBERS", "s") == b"*1\r\n$5\r\nstays\r\n"
    second.stop()


def milliseconds(server: Server) -> int:
    """The server's clock, in Unix ms."""
    _, _, seconds, _, microseconds, _ = server.command("TIME").split(b"\r\n")
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_another_proxy_takes_over_the_sweeping(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    upstream = start_server(kind)
    first, second = start_proxy(upstream), start_proxy(upstream)
    for number in range(20):
        assert first.command("SADD", "s", f"m{number}") == b":1\r\n"
        assert first.command("EXPIREMEMBER", "s", f"m{number}", 10 + 100 * number, "ms") == b":1\r\n"
    until(lambda: upstream.command("SCARD", "s") != b":20\r\n")
    first.close()
    until(lambda: upstream.command("EXISTS", "s") == b":0\r\n")
    assert second.command("EXISTS", "s") == b":0\r\n"
    second.stop()


# The end


@pytest.mark.one_kind
def test_running_requests_are_answered_before_the_end(upstream: Server, start_proxy: StartProxy) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        proxy = start_proxy(upstream)
        with proxy.connect() as busy, proxy.connect() as idle:
            assert idle.command("PING") == b"+PONG\r\n"
            busy.send(request("BLPOP", "queue", 0) + request("SADD", "s", "m"))
            until(lambda: b"cmd=blpop" in upstream.command("CLIENT", "LIST"))
            proxy.process.send_signal(number)
            assert idle.rest() == b""
            until(lambda proxy=proxy: not accepts(proxy))  # type: ignore[misc]
            assert upstream.command("RPUSH", "queue", "x") == b":1\r\n"
            assert busy.rest() == b"*2\r\n$5\r\nqueue\r\n$1\r\nx\r\n:1\r\n"
            assert proxy.process.wait() == 0, proxy.process.output
        assert "stopped before" not in proxy.process.output, proxy.process.output
        assert "stopped" in proxy.process.output, proxy.process.output
        assert upstream.command("DEL", "s") == b":1\r\n"


@pytest.mark.one_kind
@pytest.mark.parametrize("last", [b"", request("QUIT"), b"*1\r\n$-5\r\n"], ids=["", "QUIT", "protocol error"])
@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_who_wants_no_replies_does_not_delay_the_end(
    upstream: Server, start_proxy: StartProxy, mode: str, last: bytes
) -> None:
    proxy = start_proxy(upstream, "--shutdown-timeout", "60")
    with proxy.connect() as client:
        client.send(request("SET", "before", "1") + request("CLIENT", "REPLY", mode))
        assert client.reply() == b"+OK\r\n"
        if mode == "OFF":
            client.send(request("SET", "after", "1"))
            until(lambda: upstream.command("EXISTS", "after") == b":1\r\n")
        else:
            until(lambda: b"cmd=client" in upstream.command("CLIENT", "LIST", "TYPE", "normal"))
        client.send(last)
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert client.rest() == b""
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 20
    assert "stopped before" not in proxy.process.output, proxy.process.output


SKIP: Final = request("CLIENT", "REPLY", "SKIP")
UNSIGNED: Final = {
    "a part of a value": request("SET", "long", "v" * 100_000)[:50_000],
    "OFF": request("CLIENT", "REPLY", "OFF"),
    "CACHING": request("CLIENT", "CACHING", "YES"),
    "ASKING": request("ASKING"),
    "SKIP": SKIP,
    "SKIP, QUIT": SKIP + request("QUIT"),
    "a protocol error": b"*1\r\n$-5\r\n",
    "SKIP, a protocol error": SKIP + b"*1\r\n$-5\r\n",
    "a request that is too large": b"*1\r\n$1000000000\r\n",
    "a line with a NUL": b"\x16\x03\x01\x00\xa5" * 40,
    "a value that is none": request("SET", "long", "v" * 100_000)[:50_000] + b"v" * 51_000 + b"X",
}
"""What no sign can stand behind."""


@pytest.mark.one_kind
@pytest.mark.parametrize("behind", UNSIGNED)
def test_what_stands_in_front_of_something_without_a_sign_is_answered_before_the_end(
    upstream: Server, start_proxy: StartProxy, behind: str
) -> None:
    check_what_is_owed(upstream, start_proxy(upstream, "--no-share", "--shutdown-timeout", "60"), behind)


@pytest.mark.one_kind
@pytest.mark.parametrize("behind", ["OFF", "a protocol error", "a line with a NUL", "a request that is too large"])
def test_so_it_is_where_users_may_differ(start_server: StartServer, start_proxy: StartProxy, behind: str) -> None:
    server = start_server(KIND)
    server.command("ACL", "SETUSER", "few", "on", "nopass", "~*", "+@all", "-eval")
    check_what_is_owed(server, start_proxy(server, "--no-share", "--shutdown-timeout", "60"), behind)


def check_what_is_owed(upstream: Server, proxy: Proxy, behind: str) -> None:
    """See that a client gets it before the proxy ends, which does not wait for more."""
    with proxy.connect() as client, upstream.connect() as straight:
        client.command("PING")
        straight.command("CLIENT", "PAUSE", 60_000, "WRITE")
        client.send(request("SET", "owed", 1))
        until(lambda: b"blocked_clients:1" in straight.command("INFO", "clients"))
        client.send(UNSIGNED[behind])
        until(lambda: re.search(rb"flags=b\S* .*qbuf=[1-9]", straight.command("CLIENT", "LIST")), what="what is behind")
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: not accepts(proxy))
        straight.command("CLIENT", "UNPAUSE")
        assert client.rest().startswith(b"+OK\r\n")
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 20
        assert straight.command("GET", "owed") == b"$1\r\n1\r\n"
    assert "stopped before" not in proxy.process.output, proxy.process.output


@pytest.mark.one_kind
def test_a_request_that_is_held_up_is_answered_before_the_end(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream, "--no-sweep")
    with proxy.connect() as client, upstream.connect() as straight:
        client.command("SADD", "s", "m", "n")
        assert client.command("PEXPIREMEMBER", "s", "m", 1) == b":1\r\n"
        straight.command("CLIENT", "PAUSE", 60_000, "WRITE")
        client.send(request("PING") + request("SCARD", "s") + request("GET", "x"))
        assert client.reply() == b"+PONG\r\n"  # from here on the proxy waits for the member to be removed
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: not accepts(proxy))
        straight.command("CLIENT", "UNPAUSE")
        assert client.rest() == b":1\r\n$-1\r\n"
        assert proxy.process.wait() == 0, proxy.process.output
    assert "Traceback" not in proxy.process.output, proxy.process.output


@pytest.mark.one_kind
def test_what_has_run_at_the_end_is_answered(server: Server, start_proxy: StartProxy) -> None:
    check_streams(server, start_proxy)


def check_streams(server: Server, start_proxy: StartProxy) -> None:
    """Clients that never pause have sent far more by then than the server can answer in time."""
    proxy = start_proxy(server, "--shutdown-timeout", "4")
    proxy.command("SADD", "covered:s", "m")
    assert proxy.command("EXPIREMEMBER", "covered:s", "m", 1000) == b":1\r\n"
    replies: dict[str, bytes] = {}

    def read(client: Raw, key: str) -> None:
        replies[key] = client.rest()

    def stream(key: str) -> None:
        with proxy.connect() as client:
            reader = threading.Thread(target=read, args=(client, key))
            reader.start()
            with suppress(OSError):
                while True:
                    client.send(request("INCR", key) * 50)
            reader.join()

    keys = [f"covered:{number}" for number in range(4)]
    threads = [threading.Thread(target=stream, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    until(lambda: all(server.command("EXISTS", key) == b":1\r\n" for key in keys))
    until(lambda: held(proxy) > 2_000_000, what="a backlog")
    proxy.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert proxy.process.wait() == 0, proxy.process.output
    for key in keys:
        ran = server.command("GET", key).split(b"\r\n")[1]
        assert replies[key].endswith(b":%b\r\n" % ran), f"{ran!r} have run"
    assert "requests dropped" in proxy.process.output, proxy.process.output
    assert "stopped before" not in proxy.process.output, proxy.process.output


@pytest.mark.one_kind
def test_who_has_got_every_reply_is_not_warned_of(upstream: Server, start_proxy: StartProxy) -> None:
    check_who_has_got_every_reply(upstream, start_proxy)


def check_who_has_got_every_reply(upstream: Server, start_proxy: StartProxy) -> None:
    """The reply comes shortly before the time is up, and the client does not close; beside it one gets no reply."""
    for name, warns in (("none", False), ("other", True)):
        proxy = start_proxy(upstream, "--shutdown-timeout", "2")
        with proxy.connect() as client, proxy.connect() as other, upstream.connect() as straight:
            client.send(request("BLPOP", "queue", 0))
            if warns:
                other.send(request("BLPOP", name, 0))
            until(lambda n=1 + warns: b"blocked_clients:%d" % n in straight.command("INFO", "clients"))  # type: ignore[misc]
            began = time.monotonic()
            proxy.process.send_signal(signal.SIGTERM)
            time.sleep(1.4)  # the case: less than a second, which a client has to read its last words, is left
            straight.command("RPUSH", "queue", "job")
            assert client.rest().endswith(b"job\r\n")
            assert proxy.process.wait() == 0, proxy.process.output
            assert 1.9 < time.monotonic() - began < 4
        told = [line["connections"] for line in proxy.log() if str(line["event"]).startswith("stopped before")]
        assert told == [1] * warns, proxy.process.output


@pytest.mark.one_kind
def test_who_has_sent_nothing_waits_for_no_server(server: Server, start_proxy: StartProxy) -> None:
    check_who_has_sent_nothing(server, start_proxy)


@pytest.mark.one_kind
def test_who_has_sent_nothing_waits_for_no_server_that_hangs(server: Server, start_proxy: StartProxy) -> None:
    assert server.process is not None
    pid = server.process.pid
    try:
        check_who_has_sent_nothing(server, start_proxy, lambda: halt(pid))
    finally:
        os.kill(pid, signal.SIGCONT)


def check_who_has_sent_nothing(
    server: Server, start_proxy: StartProxy, hang: Callable[[], object] | None = None
) -> None:
    """The server answers nothing; it need not say that a client that has sent nothing has all its replies."""
    proxy = start_proxy(server, "--shutdown-timeout", "20")
    with proxy.connect() as client, proxy.connect() as ended:
        until(lambda: open_connections(server, proxy) == 4)
        if hang is not None:
            hang()
        else:
            server.command("CLIENT", "PAUSE", 60_000, "ALL")
        ended.end_of_requests()
        time.sleep(0.1)
        began = time.monotonic()
        proxy.process.send_signal(signal.SIGTERM)
        assert client.rest() == b""
        client.close()
        assert proxy.process.wait() == 0, proxy.process.output
        assert time.monotonic() - began < 10
    assert "stopped before" not in proxy.process.output, proxy.process.output


def held(proxy: Proxy) -> int:
    """How many bytes of requests the proxy holds."""
    said = proxy.command("INFO", "expiremember")
    found = re.search(rb"held_bytes:([0-9]+)", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.one_kind
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_at_the_very_end_changes_nothing(server: Server, start_proxy: StartProxy, workers: str) -> None:
    check_a_late_signal(server, start_proxy, workers)


def check_a_late_signal(server: Server, start_proxy: StartProxy, workers: str) -> None:
    """A deploy script may send one as another proxy takes over."""
    for _ in range(3):
        proxy = start_proxy(server, "--workers", workers)
        status = Path(f"/proc/{proxy.process.pid}/status")
        proxy.process.send_signal(signal.SIGTERM)
        while catches(status):
            pass
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait() == 0, proxy.process.output


@pytest.mark.one_kind
def test_a_signal_after_a_failure_changes_nothing(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "proxy", "--listen", address, "--upstream", server.url]
        with subprocess.Popen(command, env=proxy_environment(), stderr=subprocess.PIPE) as process:
            status = Path(f"/proc/{process.pid}/status")
            while not catches(status) and process.poll() is None:
                pass
            while catches(status):
                pass
            process.terminate()
            assert process.wait(20) == 2


def catches(status: Path) -> bool:
    """Whether a process has a handler for SIGTERM; `status`: its file under /proc."""
    with suppress(OSError):  # it has ended
        found = re.search(r"^SigCgt:\s+([0-9a-f]+)$", status.read_text(), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) & 1 << (signal.SIGTERM - 1))
    return False


def accepts(proxy: Proxy) -> bool:
    assert not isinstance(proxy.address, Path)
    try:
        with socket.create_connection(proxy.address):
            return True
    except OSError:
        return False


def test_a_request_that_never_ends_does_not_hold_up_the_end(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--shutdown-timeout", "0.5")
    with proxy.connect() as blocked, proxy.connect() as half, proxy.connect() as subscriber:
        blocked.send(request("PING") + request("BLPOP", "nope", 0))
        half.send(request("PING") + request("SET", "k", "v")[:-4])
        subscriber.send(request("SUBSCRIBE", "news"))
        blocked.reply()
        half.reply()
        subscriber.reply()
        assert proxy.process.end(timeout=5) == 0
        for client in (blocked, half, subscriber):
            assert client.rest() == b""
    assert server.command("EXISTS", "k") == b":0\r\n"


@contextmanager
def flushing(server: Server) -> Iterator[None]:
    """Empty the server again and again, so that the proxy has always something to learn from it."""
    enough = threading.Event()

    def flush() -> None:
        with server.connect() as client:
            while not enough.is_set():
                client.command("FLUSHALL")

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_ends_at_once_in_the_middle_of_its_own_requests(server: Server, start_proxy: StartProxy) -> None:
    with flushing(server):
        for _ in range(5):
            proxy = start_proxy(server)
            assert proxy.process.end(timeout=5) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(server: Server, start_proxy: StartProxy, short: Path, number: int) -> None:
    path = short / "proxy.sock"
    proxy = start_proxy(server, "--shutdown-timeout", "3600", "--listen", f"unix://{path}")
    with proxy.connect() as client:
        client.send(request("PING") + request("BLPOP", "nope", 0))
        client.reply()
        proxy.process.send_signal(signal.SIGTERM)
        proxy.process.line(lambda line: "stopping" in line)
        proxy.process.send_signal(number)
        assert proxy.process.wait(timeout=5) == 1
        assert client.rest() == b""
    assert "Traceback" not in proxy.process.output
    assert "stopped by a second signal" in proxy.process.output
    assert not path.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_end_of_one_proxy_leaves_the_socket_of_the_next(
    server: Server, start_proxy: StartProxy, short: Path, workers: str
) -> None:
    """It has removed its own already, and another has been started meanwhile; or somebody else has removed it."""
    path = short / "proxy.sock"
    for is_removed in (False, True):
        old = start_proxy(server, "--workers", workers, "--shutdown-timeout", "3600", "--listen", f"unix://{path}")
        with old.connect() as client:
            client.send(request("PING") + request("BLPOP", "nope", 0))
            client.reply()
            if is_removed:
                path.unlink()
            else:
                old.process.send_signal(signal.SIGTERM)
                until(lambda: not path.exists())
            new = start_proxy(server, "--listen", f"unix://{path}")
            old.process.send_signal(signal.SIGTERM)
            if is_removed:
                old.process.line(lambda line: "stopping" in line)
                old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(timeout=10) == 1
        assert new.command("PING") == b"+PONG\r\n"
        new.stop()
        assert not path.exists()


def holds_signals(pid: int) -> bool:
    """Whether a process has begun so far that SIGTERM does not just end it."""
    masks = re.findall(r"^Sig(?:Blk|Cgt):\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text("utf-8"), re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_it_is_loaded_counts_once_it_has_begun(
    server: Server, start_proxy: StartProxy, number: int
) -> None:
    for milliseconds in (0, 100, 250, 400):
        proxy = start_proxy(server, ready=False)
        until(lambda: holds_signals(proxy.pid))  # noqa: B023
        time.sleep(milliseconds / 1000)
        proxy.process.send_signal(number)
        if number == signal.SIGHUP:
            proxy.process.line(lambda line: '"ready"' in line)
            assert proxy.process.end() == 0
        else:
            assert proxy.process.wait(timeout=20) == 0
        assert "Traceback" not in proxy.process.output


def test_a_second_signal_leaves_no_embedded_server(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded", "--shutdown-timeout", "3600")
    pid = embedded_pid(proxy)
    with proxy.connect() as client:
        client.send(request("PING") + request("BLPOP", "nope", 0))
        client.reply()
        proxy.process.send_signal(signal.SIGTERM)
        proxy.process.line(lambda line: "stopping" in line)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(timeout=5) == 1
    until(lambda: gone(pid))


def test_a_hangup_ends_nothing(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server)
    proxy.process.send_signal(signal.SIGHUP)
    proxy.process.line(lambda line: "reloaded" in line)
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


# Embedded


def embedded_pid(proxy: Proxy) -> int:
    found = re.search(rb"process_id:(\d+)", proxy.command("INFO", "server"))
    assert found is not None
    return int(found[1])


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits for its parent to take notice of it has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_embedded(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded")
    assert "data is lost on exit" in proxy.process.output
    with proxy.connect() as client:
        assert client.command("SADD", "s", "a", "b") == b":2\r\n"
        assert client.command("EXPIREMEMBER", "s", "b", 100) == b":1\r\n"
        assert about(client.command("TTL", "s", "b"), 100)
        assert client.command("EXPIREMEMBER", "s", "a", 1) == b":1\r\n"
        until(lambda: client.command("SMEMBERS", "s") == b"*1\r\n$1\r\nb\r\n")
    pid = embedded_pid(proxy)
    proxy.stop()
    assert gone(pid)


def test_killed_embedded_proxy_takes_its_server_along(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded")
    pid = embedded_pid(proxy)
    assert not gone(pid)
    proxy.process.send_signal(signal.SIGKILL)
    until(lambda: gone(pid))


def test_embedded_server_that_ends_ends_the_proxy(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded")
    psutil.Process(embedded_pid(proxy)).kill()
    assert proxy.process.wait() == 1
    assert "Traceback" not in proxy.process.output
    assert "embedded server exited" in proxy.process.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_embedded_dir_keeps_data_and_deadlines(start_proxy: StartProxy, tmp_path: Path, number: int) -> None:
    folder = tmp_path / "data"
    proxy = start_proxy(None, "--embedded", "--embedded-dir", str(folder))
    with proxy.connect() as client:
        assert client.command("SADD", "s", "soon", "late", "never") == b":3\r\n"
        assert client.command("EXPIREMEMBER", "s", "soon", 300, "ms") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "late", 1000) == b":1\r\n"
    proxy.process.end(number)
    proxy = start_proxy(None, "--embedded", "--embedded-dir", str(folder))
    with proxy.connect() as client:
        until(lambda: client.command("SISMEMBER", "s", "soon") == b":0\r\n")
        assert client.command("SCARD", "s") == b":2\r\n"
        assert about(client.command("TTL", "s", "late"), 1000)
    proxy.stop()


def test_embedded_server_that_cannot_start_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--embedded", "--embedded-dir", str(tmp_path / "file"), "--listen", f"127.0.0.1:{free_port()}")
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert str(tmp_path / "file") in done.stderr


@pytest.mark.every_kind
def test_a_proxy_in_front_of_a_proxy_is_told_the_server_behind(upstream: Server, start_proxy: StartProxy) -> None:
    inner = start_proxy(upstream)
    host, port = inner.address  # type: ignore[misc]
    outer = start_proxy(None, "--upstream", f"redis://{host}:{port}")
    said = f"it is an expiremember-proxy itself; set upstream to {upstream.url}"
    (warning,) = (line for line in outer.log() if line["level"] == "warning")
    assert warning["event"] == "no control connection to the upstream"
    assert (warning["state"], warning["advice"]) == (said, f"set upstream to {upstream.url}")
    with outer.connect() as client:
        assert client.rest().endswith(f"is unavailable: {said}\r\n".encode())
    outer.stop()


@pytest.mark.parametrize(("taken", "ends"), [(2 * 1024, True), (4 * 1024, False)])
def test_last_words_wait_for_who_reads_on(monkeypatch: pytest.MonkeyPatch, taken: int, ends: bool) -> None:
    """So many bytes per second; 64 KB in half a minute is the least."""
    left = 40 * 1024 * 1024
    works: list[Callable[[], None]] = []
    closed = []

    class Transport:
        def get_write_buffer_size(self) -> int:
            return left

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            pass

        def close(self) -> None:
            closed.append(left)

        def abort(self) -> None:
            raise AssertionError

    class Uncounted(Holding):
        def account(self, *_: object, **__: object) -> bool:
            return True

    monkeypatch.setattr("proxy.relay.farewell.undelivered", lambda _: left)
    transport = cast(asyncio.Transport, Transport())
    Farewell(transport, lambda _, work: works.append(work), Uncounted(HeldBudget(1, 1))).say(b"", ended=False)
    for _ in range(100):
        if closed:
            break
        left -= int(taken * FAREWELL_SECONDS)
        works.pop()()
    assert bool(closed) is ends
