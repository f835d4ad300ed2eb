"""Run a Redis or Valkey server as a child that never outlives the proxy.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import structlog

from proxy.embedded.binaries import EmbeddedError, find_servers, identify
from proxy.embedded.folder import DataFolder

GUARD = Path(__file__).with_name("guard.py")

SOCKET_PATH_LIMIT = 103
"""Maximum size of a Unix socket's path on every system, in bytes (Linux takes 107)."""

START_TIMEOUT = 30.0
"""Seconds that a starting server may stay silent. A server that loads its data is not silent: it answers LOADING."""

GRACE = 10.0
"""Seconds that a server has to exit after SIGTERM, before SIGKILL."""

_OUTPUT_SECONDS = 1.0
"""Seconds after the guard's end in which the server's output must end, because the server has exited too."""

POLL = 0.02
"""Seconds between two polls."""

_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that no server sends itself when it cannot read its data, unlike SIGABRT."""

LINE_LIMIT = 2048
LAST_LINES = 15

log = structlog.get_logger("proxy.embedded")


class _EndedFromOutsideError(EmbeddedError):
    """The server was ended by a signal from outside, or did not answer: that says nothing about the data."""


class EmbeddedServer:
    """An embedded Redis or Valkey, reachable only through a Unix socket and stopped with the proxy.

    Args:
        directory: the folder for its data, created if missing, with the append-only file on; None to keep data in
            memory only.
        binaries: candidate servers, in order of preference; `find_servers` by default. The first one that reads all
            data in the folder is run.
    """

    def __init__(self, directory: Path | None = None, binaries: Sequence[Path] | None = None) -> None:
        self._data = None if directory is None else DataFolder(directory)
        self._binaries = binaries
        self._process: ServerProcess | None = None

    @property
    def socket(self) -> Path:
        """The path of the server's Unix socket, which accepts connections once `start` has returned."""
        return self._started.socket

    @property
    def url(self) -> str:
        """The server's address, such as ``unix:///tmp/expiremember-x/redis.sock``."""
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            EmbeddedError: the server cannot be started, exited at once or did not answer in time, or no server here
                reads the data; nothing is left running, and the data is unchanged.
            ServerBinaryNotFound: there is no server to start.
        """
        binaries = find_servers() if self._binaries is None else self._binaries
        try:
            if self._data is None:
                self._process = ServerProcess(binaries[0])
                await self._process.start()
                log.info("embedded server started in memory: data is lost on exit", binary=str(binaries[0]))
            else:
                await self._start_on(self._data, binaries)
        except OSError as error:
            raise EmbeddedError(f"the embedded server cannot be started: {error}") from error

    async def _start_on(self, data: DataFolder, binaries: Sequence[Path]) -> None:
        async with data.locked() as lock:
            binary = await _reader_of(data, binaries)
            data.note_layout()
            self._process = ServerProcess(binary, inherit=lock)
            try:
                await self._process.start(data.path)
            except BaseException:
                data.take_back()
                raise
        log.info("embedded server started", binary=str(binary), directory=str(data.path))
        if data.is_converted:
            log.warning(
                "the data was converted: servers before Redis 7 can no longer find it",
                directory=str(data.path),
                advice="keep using this server or a newer one",
            )

    async def wait(self) -> int:
        """Wait until the server has exited, by `stop` or by itself.

        Returns:
            Its exit status; 128 plus the signal's number if a signal ended it.
        """
        return await self._started.wait()

    async def stop(self) -> None:
        """Stop the server, gracefully if possible, and remove its socket. Harmless if it is not running."""
        if self._process is not None:
            await self._process.stop()

    @property
    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the embedded server has not been started")
        return self._process


async def _reader_of(data: DataFolder, binaries: Sequence[Path]) -> Path:
    """Return the first server that reads everything in the folder, without changing the folder.

    Raises:
        EmbeddedError: no server reads everything.
    """
    parts = data.parts()
    if not parts:
        return binaries[0]
    refusals: list[str] = []
    for binary in binaries:
        refusal = await _refusal(data, parts, binary)
        if refusal is not None:
            refusals.append(refusal)
            continue
        if refusals:
            log.warning(
                "the preferred server cannot read the data: another one was started",
                directory=str(data.path),
                written_by=data.writer(),
                binary=str(binary),
                passed_over=refusals,
                advice="keep this server installed, or start with another folder",
            )
        return binary
    writer = data.writer()
    wrote = f", which {writer} wrote" if writer else ""
    raise EmbeddedError(
        f"no server here reads the data in {data.path}{wrote}; it is unchanged. Install the server that wrote it, or"
        f" use another folder. Tried: {'; '.join(refusals)} (--log-level debug shows what they said)"
    )


async def _refusal(data: DataFolder, parts: list[str], binary: Path) -> str | None:
    """Try a server on a miniature copy of the folder.

    Returns:
        Why the server does not read the folder; None if it does.
    """
    trial = ServerProcess(binary)
    try:
        miniature = trial.folder / "data"
        data.copy_in_miniature(miniature)
        await trial.start(miniature)
        overlooked = [part for part in parts if await _ask(trial.socket, f"EXISTS {part}") != b":1\r\n"]
        if not overlooked:
            return None
        reason = f"would overlook {', '.join(overlooked)}"
    except _EndedFromOutsideError:
        raise
    except EmbeddedError:
        # Do not quote the server's output: it may advise to repair a file that another server can read.
        reason = "refuses its format"
    finally:
        await trial.stop()
    try:
        return f"{identify(binary).label} ({binary}) {reason}"
    except EmbeddedError as error:
        return str(error)


class ServerProcess:
    """A server's process, run by the guard on a Unix socket in a private folder, with its output logged.

    Args:
        binary: the server.
        inherit: a descriptor that the server inherits and keeps open.

    Raises:
        OSError: the private folder cannot be created.

    Attributes:
        folder: the private folder, which is removed when the process exits, for whatever reason.
    """

    def __init__(self, binary: Path, inherit: int | None = None) -> None:
        self._binary = binary
        self._inherit = inherit
        self.folder = _socket_folder()
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self._lifeline = -1
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def socket(self) -> Path:
        """The path of its Unix socket."""
        return self.folder / "redis.sock"

    async def start(self, directory: Path | None = None) -> None:
        """Start the server and wait until it answers.

        Args:
            directory: the folder for its data, with the append-only file on; None to keep data in memory only.

        Raises:
            EmbeddedError: the server cannot be started, exited at once or did not answer in time; nothing is left
                running.
        """
        options = ["--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        options += ["--save", "", "--daemonize", "no", "--logfile", "", "--dir", str(directory or self.folder)]
        options += ["--appendonly", "yes" if directory else "no"]
        try:
            await self._spawn([str(self._binary), *options])
            await self._until_ready()
        except OSError as error:
            await self.stop()
            raise EmbeddedError(f"the embedded server {self._binary} cannot be started: {error}") from error
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> int:
        """Wait until the server has exited.

        Returns:
            Its exit status; 128 plus the signal's number if a signal ended it.
        """
        if self._process is None:
            raise RuntimeError("the embedded server has not been started")
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the server, gracefully if possible, and remove its socket. Harmless if it is not running."""
        self._drop_lifeline()
        if self._process is not None:
            try:
                # The guard sends the signals, and needs slightly longer than the grace period.
                await asyncio.wait_for(self._process.wait(), GRACE + 2)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
            await self._end_abandoned(self._process.pid)
        # The guard has removed the folder, unless the guard never ran or was killed.
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _end_abandoned(self, guard: int) -> None:
        """End a server whose guard was killed, as by the system when memory is short. `guard`: its process id."""
        patience = _OUTPUT_SECONDS
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await self._output_has_ended(patience):
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard, number)  # the server is in the guard's process group
            patience = GRACE
        await self._output_has_ended(_OUTPUT_SECONDS)

    async def _output_has_ended(self, seconds: float) -> bool:
        """Wait until nothing can write output for the proxy; return whether that came in time."""
        return self._drain is None or bool((await asyncio.wait({self._drain}, timeout=seconds))[0])

    async def _spawn(self, command: list[str]) -> None:
        """Run the server under the guard, with its output logged."""
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", str(GUARD), str(GRACE), str(self.folder)),
                *command,
                stdin=lifeline,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                # Ctrl-C must not reach the server: the proxy stops it after its clients have gone.
                start_new_session=True,
                pass_fds=() if self._inherit is None else (self._inherit,),
            )
        finally:
            os.close(lifeline)
        assert self._process.stdout is not None
        self._drain = asyncio.create_task(self._drain_output(self._process.stdout))

    async def _drain_output(self, stream: asyncio.StreamReader) -> None:
        """Log the server's output line by line, and keep the last lines for an error message."""
        rest = b""
        while chunk := await stream.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_LIMIT:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line[:LINE_LIMIT].decode(errors="replace").strip()
                if text:
                    self._last_lines.append(text)
                    log.debug("embedded server output", line=text)

    async def _until_ready(self) -> None:
        """Wait until the server answers a PING."""
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        answers = asyncio.create_task(_answers(self.socket))
        try:
            await asyncio.wait({ended, answers}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await self._output_has_ended(_OUTPUT_SECONDS)
                status = ended.result()
                # 0: it was told to stop. Negative: the guard was killed.
                from_outside = status == 0 or {status - 128, -status} & _FROM_OUTSIDE
                failure = _EndedFromOutsideError if from_outside else EmbeddedError
                raise failure(f"the embedded server ended at once, status {status}{self._said()}")
            if not answers.result():
                told = f"the embedded server did not answer in {START_TIMEOUT:.0f} s{self._said()}"
                raise _EndedFromOutsideError(told)
        finally:
            ended.cancel()
            answers.cancel()
            await asyncio.gather(ended, answers, return_exceptions=True)

    def _said(self) -> str:
        """Return the server's last lines, to append to an error message."""
        return f"; it said: {' / '.join(self._last_lines)}" if self._last_lines else "; it printed nothing"

    def _drop_lifeline(self) -> None:
        """Close the guard's standard input, so that it ends the server."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _socket_folder() -> Path:
    """Make a private folder whose path is short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix="expiremember-"))
    if len(os.fsencode(folder / "redis.sock")) <= SOCKET_PATH_LIMIT:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="expiremember-", dir="/tmp"))


async def _answers(socket: Path) -> bool:
    """Send PING until the server answers.

    Returns:
        Whether the server answered; False if it was silent for too long.
    """
    clock = asyncio.get_running_loop().time
    patience = clock() + START_TIMEOUT
    while clock() < patience:
        reply = await _ask(socket, "PING")
        if reply.startswith(b"+PONG"):
            return True
        if reply.startswith(b"-LOADING"):
            patience = clock() + START_TIMEOUT
        await asyncio.sleep(POLL)
    return False


async def _ask(socket: Path, request: str) -> bytes:
    """Send one request over a new connection.

    Returns:
        The reply's first line; empty if there was no reply.
    """
    try:
        async with asyncio.timeout(START_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                writer.write(f"{request}\r\n".encode())
                return await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
