"""What the command line does when standard output or standard error is full, closed, or cannot show a character."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from proxy.cli import command
from tests.conftest import StartProxy
from tests.keydb_files import closed, entry, strings
from tests.raw import Raw
from tests.servers import ROOT, Process, Proxy, Server, free_port, proxy_environment, until

FAR = 4_102_444_800_000
FULL = "expiremember-proxy: cannot write to standard output: no space left on device\n"
CLOSED = "expiremember-proxy: cannot write to standard output: it is closed\n"

COMMANDS = [
    "--help",
    "--version",
    "check --upstream {url}",
    "check --probe --listen {proxy}",
    "check --probe --listen {proxy} --log-level debug",
    "import --rdb {file} --upstream {url}",
    "events list --upstream {url}",
    "events set {rule} --stream told…ü --upstream {url}",
    "events tail told…ü --upstream {url}",
    "events remove {rule} --upstream {url}",
    "deadlines --upstream {url}",
    "deadlines --format json --upstream {url}",
    "deadlines --format csv --upstream {url}",
    "explain k…ü m…ü --upstream {url}",
    "top --once {admin}",
    "top --once --json {admin}",
]
"""Every subcommand, in each of its ways to print."""


class Stage:
    """What the subcommands look at: names with characters that not every output can show.

    Args:
        server: the server.
        proxy: a proxy in front of it, with an admin port.
        admin: the address of that.
        folder: for files.
        home: where the package is.
    """

    def __init__(self, server: Server, proxy: Proxy, admin: str, folder: Path, home: Path = ROOT) -> None:
        self._server = server
        self._home = home
        self._file = folder / "dump…ü.rdb"
        self._file.write_bytes(closed(b"\xfe\x00" + entry(b"k", 2, strings([b"m"]), [(b"m", FAR)])))
        assert not isinstance(proxy.address, Path)
        self._proxy = f"127.0.0.1:{proxy.address[1]}"
        self._admin = admin
        with proxy.connect() as client:
            client.command("SADD", "k…ü", "m…ü")
            assert client.command("EXPIREMEMBER", "k…ü", "m…ü", 1000) == b":1\r\n"
        fields = ("key", "ü" * 100, "member", "…", "deadline", "5")
        with server.connect() as client:
            client.command("SADD", "k", "m")
            assert client.command("XADD", "told…ü", "*", *fields).startswith(b"$")

    def run(
        self, line: str, shell: str = "", stdout: int = subprocess.PIPE, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a subcommand.

        Args:
            line: its arguments.
            shell: what the shell does with its streams.
            stdout: its output.
            env: further variables.
        """
        if line.startswith(("events remove", "events list")):
            self.run("events set {rule} --stream told…ü --upstream {url}")
        words = [
            word.format(url=self._server.url, proxy=self._proxy, file=self._file, rule="ü…*", admin=self._admin)
            for word in line.split()
        ]
        done = subprocess.run(
            ["bash", "-c", f'exec "$0" -m proxy "$@" {shell}', sys.executable, *words],
            env=proxy_environment(env), stdout=stdout, stderr=subprocess.PIPE, cwd=self._home, timeout=60, check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr + (done.stdout or b""), done
        return done


def staged(server: Server, start_proxy: StartProxy, folder: Path, home: Path = ROOT) -> Stage:
    admin = f"127.0.0.1:{free_port()}"
    return Stage(server, start_proxy(server, "--admin", admin), admin, folder, home)


@pytest.fixture
def stage(server: Server, start_proxy: StartProxy, tmp_path: Path) -> Stage:
    return staged(server, start_proxy, tmp_path)


def test_every_subcommand_is_run() -> None:
    def names(one: click.Command, before: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        if not isinstance(one, click.Group):
            return {before}
        return {found for name, sub in one.commands.items() for found in names(sub, (*before, name))}

    words = {tuple(line.split()) for line in COMMANDS}
    assert all(any(line[: len(name)] == name for line in words) for name in names(command()))


def check_streams(stage: Stage, line: str) -> None:
    whole = stage.run(line)
    assert (whole.returncode, whole.stderr) == (0, b"")
    # What cannot be written is said in one line; a reader that has gone ends it silently, as it ends other programs.
    for shell, said in ((">/dev/full", FULL), (">&-", CLOSED)):
        done = stage.run(line, shell)
        assert (done.returncode, done.stderr.decode()) == (2, said)
    read, write = os.pipe()
    os.close(read)
    done = stage.run(line, stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
    # It needs no standard error.
    for shell in ("<&- 2>&-", "2>/dev/full"):
        done = stage.run(line, shell)
        assert done.returncode == 0
        assert done.stdout.count(b"\n") == whole.stdout.count(b"\n") > 0
    # A character that the output lacks is spelled.
    for encoding in ("latin-1:strict", "ascii:strict"):
        done = stage.run(line, env={"PYTHONIOENCODING": encoding})
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_a_subcommand_and_its_streams(stage: Stage, line: str) -> None:
    check_streams(stage, line)


@pytest.mark.parametrize(
    ("line", "status"), [("--nonsense", 2), ("explain none none --upstream {url}", 1), ("top 127.0.0.1:1 --once", 1)]
)
def test_a_status_needs_no_standard_error(stage: Stage, line: str, status: int) -> None:
    for shell in ("", "2>&-", "2>/dev/full"):
        assert stage.run(line, shell).returncode == status


def check_a_silent_proxy(server: Server, workers: str, streams: str, home: Path = ROOT) -> None:
    """Without standard error it runs without a log; no connection is taken for a stream."""
    port = free_port()
    words = ["-m", "proxy", "--listen", f"127.0.0.1:{port}", "--upstream", server.url, "--workers", workers]
    env = proxy_environment({"PYTHONPATH": str(home)})
    process = Process(["bash", "-c", f'exec "$0" "$@" {streams}', sys.executable, *words], env, home)

    def answer() -> bytes:
        with contextlib.suppress(ConnectionError), Raw(("127.0.0.1", port)) as client:
            return client.command("PING")
        return b""

    try:
        assert until(answer, 20, "an answer") == b"+PONG\r\n"
        assert Path(f"/proc/{process.pid}/fd/2").readlink() == Path(os.devnull)
        assert process.end() == 0
    finally:
        process.kill()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-"])
def test_a_proxy_runs_without_streams(server: Server, workers: str, streams: str) -> None:
    check_a_silent_proxy(server, workers, streams)
