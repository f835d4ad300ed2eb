"""A name that cannot be looked up holds nobody up: no probe, no check, and no end of the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy import names
from proxy.loop import Loop
from tests.servers import Process, free_port, proxy_environment

SILENT = "slow.example"


async def _give_up_a_lookup() -> None:
    loop = asyncio.get_running_loop()
    connecting = asyncio.ensure_future(loop.create_connection(asyncio.Protocol, "name.invalid", 6379))
    await asyncio.sleep(0)  # the lookup is under way
    connecting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await connecting
    for _ in range(5):  # the last of these ends behind the other
        with contextlib.suppress(socket.gaierror):
            await loop.create_connection(asyncio.Protocol, "name.invalid", 6379)
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)


def test_a_lookup_that_fails_too_late_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        uvloop.run(_give_up_a_lookup(), loop_factory=Loop)
    assert not caplog.records


def test_other_failures_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        uvloop.run(main(), loop_factory=Loop)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "name.invalid", "x" * 70, "::1"])
def test_what_is_found_is_what_the_system_finds(host: str) -> None:
    try:
        expected = socket.getaddrinfo(host, 1, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        expected = []

    async def twice() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        both = await asyncio.gather(loop.look_up(host, 1), loop.look_up(host, 1), return_exceptions=True)
        for found in (*both, await asyncio.to_thread(found_at_once, host)):
            assert isinstance(found, OSError) if not expected else found == expected

    uvloop.run(twice(), loop_factory=Loop)


def found_at_once(host: str) -> names.Found | OSError:
    try:
        return names.lookup(host, 1)
    except OSError as error:
        return error


@pytest.mark.measures
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, for a mount of its own")
def test_a_silent_name_server_holds_nobody_up(tmp_path: Path) -> None:
    """Each lookup takes minutes there: nothing here waits for one."""
    address = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.53"
    (tmp_path / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:30 attempts:5\n")
    there = ["unshare", "-m", "sh", "-c", f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"', "sh"]
    free = f"127.0.0.1:{free_port()}"
    slow = f"{SILENT}:{free_port()}"

    def run(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*there, sys.executable, "-m", "proxy", *arguments],
            env=proxy_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        began = time.monotonic()
        checks = [
            run("check", "--probe", "--listen", slow),
            run("check", "--upstream", f"redis://{SILENT}", "--connect-timeout", "1", "--listen", free),
            run("check", "--upstream", "redis://127.0.0.1:1", "--listen", slow),
        ]
        for settings, begun in (
            (("--listen", free, "--upstream", f"redis://{SILENT}", "--connect-timeout", "1"), '"ready"'),
            (("--listen", slow, "--admin", f"127.0.0.1:{free_port()}"), "admin port open"),
        ):
            proxy = Process(
                [*there, sys.executable, "-m", "proxy", *settings, "--log-format", "json"], proxy_environment()
            )
            try:
                proxy.line(lambda line, begun=begun: begun in line)  # type: ignore[misc]
                told = time.monotonic()
                assert proxy.end(signal.SIGTERM) == 0
                assert time.monotonic() - told < 3
            finally:
                proxy.kill()
        probed, upstream, listen = (check.communicate(timeout=90)[0] for check in checks)
        took = time.monotonic() - began
    assert [check.returncode for check in checks] == [1, 1, 1]
    assert "its name was not resolved in 4 s" in probed
    assert f"redis://{SILENT}:6379 cannot be used: no answer in time" in upstream
    assert len(upstream.splitlines()) == 2  # nothing of lookups that were given up
    assert f"{slow} cannot be listened on: its name was not resolved in 4 s" in listen
    assert took < 60


@pytest.mark.parametrize("turns", range(12))
def test_a_connection_that_is_given_up_in_its_handshake_leaves_no_error(turns: int) -> None:
    """A server ends it meanwhile. uvloop's own way logs errors that nobody retrieved."""
    told: list[dict[str, Any]] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            port = listening.getsockname()[1]
            opening = asyncio.create_task(asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context()))
            accepted, _ = await loop.sock_accept(listening)
            accepted.close()
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises((OSError, asyncio.CancelledError)):
                await opening
        del opening
        await asyncio.sleep(0.01)
        gc.collect()

    uvloop.run(play(), loop_factory=Loop)
    assert told == []
