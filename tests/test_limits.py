"""Too many clients, too few files, peers that fall silent: each is noticed, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import uvloop

from proxy.listen import files
from proxy.listen.given import Given
from proxy.listen.listener import RESERVED_FILES, client_limit
from proxy.settings import Settings, SettingsError, load
from proxy.upstream import tcp
from proxy.upstream.endpoint import Upstream
from tests.conftest import StartProxy, StartServer
from tests.namespaces import FAR, Cable, cable
from tests.raw import Raw, request
from tests.servers import BINARIES, ROOT, Process, Proxy, Server, free_port, proxy_environment, until

pytestmark = [pytest.mark.start, pytest.mark.oldest_kind]


# How many


def test_client_limit() -> None:
    assert client_limit(10_000, sys.maxsize) == 10_000
    assert client_limit(10_000, 1024) == (1024 - RESERVED_FILES) // 2
    assert client_limit(0, 1024) == (1024 - RESERVED_FILES) // 2
    assert client_limit(5, 10) == 1


def test_max_clients(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--max-clients", "3")
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(3)]
        for client in clients:
            assert client.command("PING") == b"+PONG\r\n"
        for greeting in (b"", request("PING"), request("SET", "k", b"x" * 1_000_000)) * 20:
            with proxy.connect(timeout=5) as refused:
                try:
                    refused.send(greeting)
                except ConnectionError:
                    continue  # it is not read, and the proxy keeps only so many that it has refused
                assert refused.rest() == b"-ERR max number of clients reached\r\n"
        assert len([line for line in proxy.log() if line["event"] == "clients refused: max_clients reached"]) == 1
        clients.pop().close()
        until(lambda: lets_in(proxy))
        for client in clients:
            assert client.command("PING") == b"+PONG\r\n"
    assert server.command("EXISTS", "k") == b":0\r\n"
    proxy.stop()


def lets_in(proxy: Proxy) -> bool:
    """Whether a client is served, not refused."""
    try:
        return proxy.command("PING") == b"+PONG\r\n"
    except ConnectionError:
        return False


def test_clients_that_have_gone_do_not_count(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--max-clients", "5")
    for _ in range(100):
        with proxy.connect() as client:
            client.send(request("PING"))
            client.reset()
    until(lambda: lets_in(proxy))
    proxy.stop()


def test_a_low_limit_on_files_lowers_the_number_of_clients(server: Server, start_proxy: StartProxy) -> None:
    shell = f"ulimit -n 256; exec {sys.executable} -m proxy --log-format json --max-clients 500"
    port = free_port()
    process = Process(["sh", "-c", f"{shell} --listen 127.0.0.1:{port} --upstream {server.url}"], proxy_environment())
    try:
        process.line(lambda line: '"ready"' in line)
        assert "max_clients lowered" in process.output
        told = []
        with ExitStack() as stack:
            for _ in range(client_limit(500, 256) + 5):
                client = stack.enter_context(Raw(("127.0.0.1", port), timeout=5))
                client.send_command("PING")
                told.append(client.line())
        assert told == [b"+PONG\r\n"] * client_limit(500, 256) + [b"-ERR max number of clients reached\r\n"] * 5
        assert process.end() == 0
    finally:
        process.kill()


@pytest.mark.one_kind
@pytest.mark.parametrize("workers", [1, 8])
def test_too_few_files_are_said_in_one_line(server: Server, tmp_path: Path, workers: int) -> None:
    """And as many as it names are enough, with two proxies at work."""

    def started(files: int) -> Process:
        addresses = [f"unix://{tmp_path / name}" for name in "abc"] + [f"127.0.0.1:{port}"]
        more = " ".join(f"--listen {address}" for address in addresses)
        words = f"{more} --takeover {tmp_path / 'takeover'} --workers {workers} --upstream {server.url}"
        return Process(["sh", "-c", f"ulimit -n {files}; exec {sys.executable} -m proxy {words}"], proxy_environment())

    port = free_port()
    processes = [started(12)]
    try:
        assert processes[0].wait() == 2
        told = processes[0].output.strip()
        assert told.startswith("expiremember-proxy: too few open files to start")
        assert "\n" not in told
        enough = int(told.split()[-1])
        for _ in range(2):
            processes.append(started(enough))
            processes[-1].line(lambda line: "ready" in line)
            with Raw(tmp_path / "a", timeout=20) as client:
                assert client.command("PING") == b"+PONG\r\n"
        assert processes[1].wait() == 0
        assert processes[2].end() == 0
        assert not [one.output for one in processes if "Traceback" in one.output]
    finally:
        for one in processes:
            one.kill()


@pytest.mark.one_kind
@pytest.mark.parametrize(
    "given", [(), ("--config", str(ROOT / "config" / "proxy.toml"))], ids=["none", "every default"]
)
def test_the_default_number_of_clients_is_lowered_silently(server: Server, given: tuple[str, ...]) -> None:
    """Whoever has not chosen a number need not be told of another, and a file with every default chooses nothing."""
    shell = f'ulimit -n 256; exec {sys.executable} -m proxy "$@" --log-format json --listen 127.0.0.1:{free_port()}'
    process = Process(["sh", "-c", shell, "sh", *given, "--upstream", server.url], proxy_environment())
    try:
        process.line(lambda line: '"ready"' in line)
        assert "max_clients" not in process.output
        assert process.end() == 0
    finally:
        process.kill()


def test_running_out_of_files_ends_and_accepting_resumes(server: Server, start_proxy: StartProxy) -> None:
    """The limit is taken away while it runs, as another process may take the system's last file."""
    proxy = start_proxy(server)
    process = psutil.Process(proxy.pid)
    with proxy.connect() as early, ExitStack() as stack:
        assert early.command("PING") == b"+PONG\r\n"
        process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds() + 8, 20_000))
        clients = [stack.enter_context(proxy.connect()) for _ in range(40)]
        proxy.process.line(lambda line: "cannot accept clients" in line)
        assert early.command("PING") == b"+PONG\r\n"
        before = sum(process.cpu_times()[:2])
        time.sleep(1)  # what is measured is how much it does when there is nothing that it can do
        assert sum(process.cpu_times()[:2]) - before < 0.3
        failures = [line for line in proxy.log() if line["event"].startswith("cannot accept clients")]
        assert len(failures) == 1
        assert "ulimit -n" in failures[0]["advice"]
        process.rlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
        # Those that waited are served now; the first few were told that there was no file left for the upstream.
        told = []
        for client in clients:
            client.send_command("PING")
            told.append(client.line())
        assert told[-20:] == [b"+PONG\r\n"] * 20
        assert all(line == b"+PONG\r\n" or line.startswith(b"-ERR expiremember-proxy: ") for line in told)
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


# Silence


def test_idle_clients_are_closed(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    path = Path(f"/tmp/em-idle-{os.getpid()}.sock")
    proxy = start_proxy(
        server, "--idle-timeout", "1", "--listen", f"127.0.0.1:{free_port()}", "--listen", f"unix://{path}"
    )
    with proxy.connect() as idle, proxy.connect() as busy, proxy.connect() as listener, Raw(path) as local:
        assert local.command("PING") == b"+PONG\r\n"
        assert idle.command("PING") == b"+PONG\r\n"
        listener.send_command("SUBSCRIBE", "news")
        listener.reply()
        began = time.monotonic()
        idle.socket.setblocking(False)
        while True:
            assert busy.command("PUBLISH", "news", "x") == b":1\r\n"  # hearing something counts too
            try:
                if idle.socket.recv(1) == b"":
                    break
            except BlockingIOError:
                pass
            except ConnectionResetError:
                break
            assert time.monotonic() - began < 10
            time.sleep(0.05)
        assert time.monotonic() - began > 0.9
        assert busy.command("PING") == b"+PONG\r\n"
        assert local.command("PING") == b"+PONG\r\n", "a Unix socket is not watched"
        assert listener.reply().endswith(b"x\r\n")
    proxy.process.line(lambda line: "idle clients dropped" in line)
    proxy.stop()


def test_keepalive_as_redis_derives_it() -> None:
    assert tcp.options(60) == {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 20, socket.TCP_KEEPCNT: 3}
    assert tcp.options(1) == {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 3}
    assert tcp.options(0, 1.5) == {socket.TCP_USER_TIMEOUT: 1500}
    with socket.socket() as connection:
        tcp.configure(connection, 60, 5)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
        tcp.configure(connection, 0)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


@pytest.fixture
def wire() -> Iterator[Cable]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with cable() as made:
        yield made


@pytest.fixture
def path() -> Iterator[Path]:
    """A Unix socket: the same in every network namespace."""
    path = Path(f"/tmp/em-{os.getpid()}-{free_port()}.sock")
    yield path
    path.unlink(missing_ok=True)


def start(cable: Cable, namespace: str, command: list[str], env: dict[str, str] | None = None) -> Process:
    return Process(cable.command(namespace, *command), env)


@pytest.mark.parametrize("waiting", [False, True], ids=["idle", "with a request under way"])
def test_a_server_that_vanishes_is_noticed(wire: Cable, path: Path, waiting: bool) -> None:
    binary = str(BINARIES[min(BINARIES)].path)
    server = start(wire, wire.far, [binary, "--bind", FAR, "--port", "6379", "--protected-mode", "no", "--save", ""])
    command = [sys.executable, "-m", "proxy", "--listen", f"unix://{path}", "--upstream", f"redis://{FAR}:6379"]
    command += ["--tcp-keepalive", "1", "--tcp-user-timeout", "2", "--control-timeout", "1", "--connect-timeout", "1"]
    try:
        server.line(lambda line: "eady to accept" in line)
        proxy = start(wire, wire.near, command, proxy_environment())
        try:
            proxy.line(lambda line: "ready" in line and "reachable" in line)
            with Raw(path, timeout=20) as client:
                assert client.command("PING") == b"+PONG\r\n"
                wire.cut()
                began = time.monotonic()
                if waiting:
                    client.send_command("PING")
                assert client.rest() == b""
                assert time.monotonic() - began < 15
            proxy.line(lambda line: "no control connection" in line)
            with Raw(path, timeout=20) as client:
                assert client.rest().startswith(b"-ERR expiremember-proxy: upstream ")
        finally:
            proxy.kill()
    finally:
        server.kill()


def test_a_connection_that_uvloop_has_closed_is_lost_in_redis_pys_words(server: Server) -> None:
    """What a control connection comes to that keepalive has given up while redis-py waited for something else."""

    async def main() -> None:
        upstream = Upstream(load({"upstream": server.url}, None), server.url)

        async def ignore(push: list[Any]) -> None:
            pass

        connection = upstream.listening_connection(ignore, ignore)
        await connection.connect()  # type: ignore[no-untyped-call]
        assert connection._writer is not None
        connection._writer.transport.abort()
        await connection._writer.wait_closed()
        await asyncio.sleep(0)  # uvloop closes behind the protocol's last call
        with pytest.raises(redis.ConnectionError):
            await connection.send_command("PING", check_health=False)

    uvloop.run(main())


@pytest.mark.parametrize("workers", [1, 2])
def test_sockets_that_are_inherited_are_counted(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of more workers, and those that are no longer wanted."""
    settings = Settings(listen=["127.0.0.1:1", "127.0.0.1:2"], workers=workers)
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in range(24)]
        given = Given({"127.0.0.1:1": made[:8], "127.0.0.1:2": made[8:16], "127.0.0.1:3": made[16:]})
        for limit, fits in ((200, True), (60, False)):
            monkeypatch.setattr(files, "raise_file_limit", lambda limit=limit: limit)
            files.enough_files(settings)
            with nullcontext() if fits else pytest.raises(SettingsError, match="too few open files to start"):
                files.enough_files(settings, given)


def test_a_client_that_vanishes_is_noticed(wire: Cable, start_server: StartServer, path: Path) -> None:
    server = start_server(min(BINARIES), "--unixsocket", str(path))
    listen = f"{FAR}:6380"
    command = [sys.executable, "-m", "proxy", "--listen", listen, "--upstream", f"unix://{path}"]
    proxy = start(wire, wire.far, [*command, "--tcp-keepalive", "1"], proxy_environment())
    try:
        proxy.line(lambda line: "ready" in line)
        # The server has no password, and other machines reach the proxy.
        proxy.line(lambda line: "other machines can use the server through the proxy without a password" in line)
        with wire.within(wire.near, lambda: Raw((FAR, 6380))) as client:
            assert client.command("CLIENT", "SETNAME", "vanishes") == b"+OK\r\n"
            assert b"name=vanishes" in server.command("CLIENT", "LIST")
            wire.cut()
            until(lambda: b"name=vanishes" not in server.command("CLIENT", "LIST"), timeout=15)
    finally:
        proxy.kill()
