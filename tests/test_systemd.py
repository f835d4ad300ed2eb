"""The proxy as a systemd service: what it tells the service manager, by a socket of the test's own, and its unit."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from proxy.addresses import DEFAULT_LISTEN
from proxy.notify import Notifier
from proxy.settings import Settings
from tests.conftest import StartProxy, StartServer
from tests.servers import BINARIES, ROOT, Proxy, Server, until

pytestmark = [pytest.mark.start, pytest.mark.oldest_kind]

UNIT = ROOT / "config" / "systemd" / "expiremember-proxy.service"
SOCKET = UNIT.with_suffix(".socket")
PROGRAM = "/opt/expiremember-proxy/bin/expiremember-proxy"


class Manager:
    """What listens to a service, as systemd does.

    Args:
        address: the socket's path, or its abstract name behind an @.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """Return every line so far."""
        while True:
            try:
                self.messages += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.messages

    def has_heard(self, line: str) -> bool:
        return line in self.heard()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening(address: str) -> Iterator[Manager]:
    manager = Manager(address)
    try:
        yield manager
    finally:
        manager.close()


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_manager_is_told_of_the_start_the_state_and_the_end(
    server: Server, start_proxy: StartProxy, tmp_path: Path, abstract: bool
) -> None:
    with listening(f"@expiremember-{os.getpid()}" if abstract else str(tmp_path / "notify")) as manager:
        proxy = start_proxy(server, env={"NOTIFY_SOCKET": manager.address})
        until(lambda: manager.has_heard("READY=1"))
        until(lambda: manager.has_heard("STATUS=ready"))
        assert proxy.command("PING") == b"+PONG\r\n"
        assert "STOPPING=1" not in manager.heard()
        assert "WATCHDOG=1" not in manager.heard()
        with proxy.connect() as client:
            client.send_command("BLPOP", "nothing", 1)
            until(lambda: b"blpop" in proxy.command("CLIENT", "LIST"))
            proxy.process.send_signal(signal.SIGTERM)
            until(lambda: manager.has_heard("STOPPING=1"))  # before the last reply
            assert not proxy.process.ended
            client.reply()
        assert proxy.process.wait() == 0
        assert manager.heard().count("READY=1") == 1


def test_the_manager_is_told_that_the_upstream_is_away(
    start_server: StartServer, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream = start_server(min(BINARIES))
    with listening(str(tmp_path / "notify")) as manager:
        start_proxy(upstream, env={"NOTIFY_SOCKET": manager.address})
        until(lambda: manager.has_heard("STATUS=ready"))
        assert upstream.process is not None
        upstream.process.kill()
        until(lambda: any(line.startswith("STATUS=not ready: upstream ") for line in manager.heard()))


def test_the_watchdog_hears_of_a_loop_that_runs_and_of_none_that_stands_still(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        proxy = start_proxy(server, env={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"})
        began = time.monotonic()
        until(lambda: manager.heard().count("WATCHDOG=1") >= 6)
        assert time.monotonic() - began >= 0.9
        process = psutil.Process(proxy.pid)
        process.suspend()
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        before = manager.heard().count("WATCHDOG=1")
        time.sleep(0.5)
        assert manager.heard().count("WATCHDOG=1") == before
        process.resume()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "20000"}, True),
        ({"WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, False),  # another process is meant
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
    ],
)
def test_the_watchdog_is_fed_where_this_process_is_meant(
    tmp_path: Path, environment: Mapping[str, str], told: bool
) -> None:
    import asyncio

    async def run(notifier: Notifier) -> None:
        task = asyncio.create_task(notifier.run(lambda: "fine"))
        await asyncio.sleep(0.1)
        task.cancel()

    with listening(str(tmp_path / "notify")) as manager:
        given = {"NOTIFY_SOCKET": manager.address, **environment, "PATH": "/bin"}
        asyncio.run(run(Notifier(given)))
        assert given == {"PATH": "/bin"}
        assert manager.has_heard("STATUS=fine")
        assert manager.has_heard("WATCHDOG=1") == told


def test_an_embedded_server_does_not_speak_for_the_proxy(start_proxy: StartProxy, tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "10000000"}
        proxy = start_proxy(None, "--embedded", env=env)
        until(lambda: manager.has_heard("READY=1"))
        children = psutil.Process(proxy.pid).children(recursive=True)
        assert children
        for child in children:
            assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(child.environ())
        proxy.stop()


@pytest.mark.parametrize("address", ["/nowhere/at/all", "@nobody-listens", "relative", "x" * 300])
def test_a_manager_that_does_not_listen_holds_nothing_up(server: Server, start_proxy: StartProxy, address: str) -> None:
    proxy = start_proxy(server, env={"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"})
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_a_manager_that_does_not_read_holds_nothing_up(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        proxy = start_proxy(server, env={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000"})
        until(lambda: proxy.command("PING") == b"+PONG\r\n")
        time.sleep(1)  # some hundred messages; the socket takes ten
        assert proxy.command("PING") == b"+PONG\r\n"
        proxy.stop()


# The unit.


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that there is."""
    text = UNIT.read_text(encoding="utf-8")
    assert text.count(f"ExecStart={PROGRAM}\n") == 1
    program = tmp_path / "expiremember-proxy"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace(f"ExecStart={PROGRAM}", f"ExecStart={program}"), encoding="utf-8")
    return unit


def analyze(*args: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd has it)")
    return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_nothing_wrong_with_the_socket(unit: Path) -> None:
    shutil.copy(SOCKET, unit.parent)
    done = analyze("verify", "--man=no", str(unit.parent / SOCKET.name))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    lines = [line for line in SOCKET.read_text(encoding="utf-8").splitlines() if line.startswith("ListenStream=")]
    assert lines == [f"ListenStream={address}" for address in DEFAULT_LISTEN]


def test_systemd_finds_the_unit_well_confined(unit: Path) -> None:
    """Of 10.0, where 10 is no confinement at all; what is left is the network and the system calls of any service."""
    done = analyze("security", "--offline=true", "--threshold=16", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout


def test_the_unit_and_the_settings_agree() -> None:
    lines = dict(line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line)
    assert lines["Type"] == "notify"
    assert float(lines["TimeoutStopSec"]) > Settings.model_fields["shutdown_timeout"].default
    assert int(lines["LimitNOFILE"]) > 2 * Settings.model_fields["max_clients"].default
    for name in ("EXPIREMEMBER_LISTEN", "EXPIREMEMBER_UPSTREAM_PASSWORD_FILE"):
        assert name in UNIT.read_text(encoding="utf-8")
        assert name.removeprefix("EXPIREMEMBER_").lower() in Settings.model_fields


def test_the_proxy_runs_with_no_more_than_the_unit_allows(server: Server, start_proxy: StartProxy) -> None:
    """Memory is never made executable, and no right is gained: as far as the kernel at hand can be asked."""
    proxy: Proxy = start_proxy(server)
    maps = Path(f"/proc/{proxy.pid}/maps").read_text()
    assert not [line for line in maps.splitlines() if line.split()[1].startswith("rwx")]
