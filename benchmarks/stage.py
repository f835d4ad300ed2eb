"""Starts what is measured, each server and relay on a free loopback port, and stops every one of them in the end."""

from __future__ import annotations

import csv
import ctypes
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import hiredis

PROJECT: Final = Path(__file__).resolve().parent.parent
HOST: Final = "127.0.0.1"
BATCH: Final = 500
"""Requests sent ahead of their replies at most: few enough for the sockets' buffers to hold both."""

_START_SECONDS: Final = 30.0
_RUN_SECONDS: Final = 120
_AT_A_TIME: Final = 4
"""Proxies that are started together: each needs half a second of a core, and has to be ready in time."""

_STOP_SECONDS: Final = 15.0
_READY: Final = re.compile(r"\bready\b")
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)
_given: Final[deque[int]] = deque(maxlen=100)


Request = tuple[str | bytes | int, ...]
"""The words of a command."""


class StageError(Exception):
    """Something that a measurement needs is missing, did not start, or answered with an error."""


def binary(*names: str) -> str:
    """Find the first of several programs that is installed.

    Raises:
        StageError: none of them is.
    """
    for name in names:
        if found := shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin"):
            return found
    raise StageError(f"{' or '.join(names)} not found: install it, or put its folder on PATH")


def server_binary() -> str:
    """Find the server that is measured."""
    return binary("redis-server", "valkey-server")


def server_version() -> str:
    """Return what the server that is measured says of itself: another one may stand first on PATH than is meant."""
    return subprocess.run([server_binary(), "--version"], capture_output=True, text=True, check=True).stdout.strip()


def generated_rate(port: int, *arguments: str | int) -> float:
    """Let the C client that makes traffic run; return its requests a second.

    Args:
        port: where to.
        arguments: what it sends, and how: one kind of request.

    Raises:
        StageError: it is not there, failed, or took too long.
    """
    command = [binary("redis-benchmark", "valkey-benchmark"), "-h", HOST, "-p", str(port), "--csv"]
    command += map(str, arguments)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise StageError(f"not done in {_RUN_SECONDS} s: {' '.join(command)}") from None
    rows = list(csv.reader(result.stdout.splitlines()))
    if result.returncode or len(rows) != 2:
        raise StageError(f"{' '.join(command)}: {result.stdout}{result.stderr}")
    return float(rows[1][1])


def waiting_rate(port: int, chunks: Sequence[bytes], replies: int, count: int) -> float:
    """Let clients send a chunk each, wait for its replies, and send it again; return the chunks a second.

    Args:
        port: where to.
        chunks: what each client sends: several requests.
        replies: how many lines the replies to a chunk have.
        count: how many chunks to send in all, about.

    Raises:
        StageError: a reply is an error, or does not come.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for chunk in chunks:
            client = stack.enter_context(socket.create_connection((HOST, port)))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(client, selectors.EVENT_READ, [chunk, b""])
        began = time.monotonic()
        for key in selector.get_map().values():
            cast(socket.socket, key.fileobj).sendall(key.data[0])
        waiting, sent = len(chunks), len(chunks)
        while waiting:
            if not (ready := selector.select(_RUN_SECONDS)):
                raise StageError(f"no reply within {_RUN_SECONDS} s")
            for key, _ in ready:
                client, chunk, said = cast(socket.socket, key.fileobj), key.data[0], key.data[1]
                said += client.recv(1 << 16)
                if said.count(b"\r\n") < replies and said:
                    key.data[1] = said
                    continue
                if b"-" in said or not said:
                    raise StageError(f"error reply: {said!r}")
                key.data[1] = b""
                if sent < count:
                    sent += 1
                    client.sendall(chunk)
                else:
                    waiting -= 1
        return sent / (time.monotonic() - began)


class ErrorReplyError(StageError):
    """A request was answered with an error."""


class Connection:
    """A blocking client on a plain socket, cheap enough not to be what is measured."""

    def __init__(self, port: int, timeout: float = 60.0) -> None:
        self._socket = socket.create_connection((HOST, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, packed: bytes) -> None:
        """Send requests that are packed already."""
        self._socket.sendall(packed)

    def reply(self) -> Any:
        """Wait for one reply.

        Raises:
            ErrorReplyError: it is an error.
            StageError: the connection has ended.
        """
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._receive())
        if isinstance(reply, hiredis.ReplyError):
            raise ErrorReplyError(f"error reply: {reply}")
        return reply

    def _receive(self) -> bytes:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise StageError(f"no reply within {self._socket.gettimeout()} s") from None
        if not data:
            raise StageError("connection closed by the other side")
        return data

    def call(self, *words: str | bytes | int) -> Any:
        """Send one request and wait for its reply."""
        self.send(pack(words))
        return self.reply()

    def pipeline(self, requests: Iterable[Request]) -> list[Any]:
        """Send requests in batches and return all replies."""
        replies: list[Any] = []
        for packed, count in batches(requests):
            self.send(packed)
            replies += [self.reply() for _ in range(count)]
        return replies

    def count_integers(self, packed: bytes, count: int) -> None:
        """Send requests that are answered by an integer each, and wait for as many, without parsing them.

        Raises:
            StageError: a reply is negative or not an integer.
        """
        self.send(packed)
        while count > 0:
            data = self._receive()
            if b"-" in data or b"$" in data:
                raise StageError(f"not the replies expected: {data[:100]!r}")
            count -= data.count(b"\n")

    def now_ms(self) -> float:
        """Return the server's own clock, in Unix ms."""
        return milliseconds(self.call("TIME"))


def milliseconds(reply: list[bytes]) -> float:
    """Convert the reply of TIME to Unix ms."""
    return int(reply[0]) * 1000 + int(reply[1]) / 1000


def pack(request: Request) -> bytes:
    """Encode a request."""
    packed: bytes = hiredis.pack_command(request)  # type: ignore[arg-type]  # declared as a tuple of one
    return packed


def batches(requests: Iterable[Request], size: int = BATCH) -> Iterator[tuple[bytes, int]]:
    """Pack requests for the wire: the bytes of each batch, and how many requests are in it."""
    packed = map(pack, requests)
    while batch := list(islice(packed, size)):
        yield b"".join(batch), len(batch)


@dataclass
class Service:
    """A running program.

    Attributes:
        name: what it is called in messages.
        port: where it listens.
        process: the running program.
        log: the file that has what it said.
        began: when it was started, by `time.perf_counter`.
        ready_seconds: how long it took to serve.
    """

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    began: float
    ready_seconds: float = 0.0

    def said(self) -> str:
        """Return what it has logged so far."""
        return self.log.read_text(errors="replace")

    def resident_bytes(self) -> int:
        """Return the memory that it has in RAM (Linux only)."""
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        if match is None:
            raise StageError(f"{self.name}: no resident size in /proc")
        return int(match[1]) * 1024

    def own_bytes(self) -> int:
        """Return the memory that it has in RAM and shares with no other process (Linux only)."""
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return sum(map(int, re.findall(r"Private_(?:Clean|Dirty):\s+(\d+) kB", rollup))) * 1024

    def cpu_seconds(self) -> float:
        """Return the processor time that all its threads have taken; 0 where the system does not tell (Linux does)."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        if not tasks.is_dir():
            return 0.0
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def stop(self) -> None:
        """Stop it, by force when it takes too long."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Stage:
    """A temporary folder and what runs in it. Use it in a `with`: whatever happens, it is empty afterwards."""

    proxy_command: tuple[str, ...] = (sys.executable, "-m", "proxy")

    def __enter__(self) -> Self:
        self._services: list[Service] = []
        self._folder = Path(tempfile.mkdtemp(prefix="expiremember-benchmark-"))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that __exit__ runs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*reversed(self._services))
        shutil.rmtree(self._folder, ignore_errors=True)

    def redis(self) -> Service:
        """Start a Redis (or Valkey) that keeps nothing on disk."""
        port = free_port()
        command = [server_binary(), "--bind", HOST, "--port", str(port)]
        command += ["--unixsocket", str(self._unix_socket(port))]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        return self._start("redis", port, command, _answers)

    def _unix_socket(self, port: int) -> Path:
        return self._folder / f"redis-{port}.sock"

    def haproxy(self, upstream: Service, threads: int) -> Service:
        """Start HAProxy in TCP mode; with 0 threads it has as many as it chooses, one a core."""
        port = free_port()
        path = self._folder / f"haproxy-{port}.cfg"
        path.write_text(
            "global\n"
            "  maxconn 4096\n" + (f"  nbthread {threads}\n" if threads else "") + "defaults\n"
            "  mode tcp\n"
            "  maxconn 4096\n"
            "  timeout connect 5s\n"
            "  timeout client 1h\n"
            "  timeout server 1h\n"
            "listen relay\n"
            f"  bind {HOST}:{port}\n"
            f"  server redis {HOST}:{upstream.port}\n"
        )
        return self._start("haproxy", port, [binary("haproxy"), "-db", "-f", str(path)], _answers)

    def nutcracker(self, upstream: Service) -> Service:
        """Start nutcracker (twemproxy) with one server, one connection to it, and its usual buffers."""
        port = free_port()
        path = self._folder / f"nutcracker-{port}.yml"
        path.write_text(
            "relay:\n"
            f"  listen: {HOST}:{port}\n"
            "  redis: true\n"
            "  preconnect: true\n"
            "  server_connections: 1\n"
            "  auto_eject_hosts: false\n"
            "  hash: fnv1a_64\n"
            "  distribution: ketama\n"
            "  servers:\n"
            f"    - {HOST}:{upstream.port}:1\n"
        )
        command = [binary("nutcracker"), "-c", str(path), "-s", str(free_port()), "-a", HOST]
        return self._start("nutcracker", port, command, _answers)

    def bare(self, upstream: Service) -> Service:
        """Start a relay on the proxy's event loop that looks at nothing."""
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.bare", str(port), str(upstream.port)]
        return self._start("bare relay", port, command, _answers)

    def proxy(self, upstream: Service, *flags: str, unix: bool = False) -> Service:
        """Start the proxy, with settings from these flags alone, and wait for its line that says ready.

        Args:
            upstream: the Redis.
            flags: the settings.
            unix: whether to reach Redis by its Unix socket, as a sidecar can, and not by TCP.
        """
        address = f"unix://{self._unix_socket(upstream.port)}" if unix else f"redis://{HOST}:{upstream.port}"
        return self._await(self._launch_proxy(address, flags), _says_ready)

    def proxies(self, upstream: Service, count: int, *flags: str) -> list[Service]:
        """Start several proxies in front of one Redis, a few at a time."""
        found: list[Service] = []
        while len(found) < count:
            some = min(_AT_A_TIME, count - len(found))
            launched = [self._launch_proxy(f"redis://{HOST}:{upstream.port}", flags) for _ in range(some)]
            found += [self._await(service, _says_ready) for service in launched]
        return found

    def _launch_proxy(self, address: str, flags: Sequence[str]) -> Service:
        port = free_port()
        command = [*self.proxy_command, "--listen", f"{HOST}:{port}", "--upstream", address, *flags]
        command += ["--log-format", "console"]
        return self._launch("proxy", port, command)

    def stop(self, *services: Service) -> None:
        """Stop some, all at the same time."""
        for service in services:
            service.process.terminate()
        for service in services:
            service.stop()
            self._services.remove(service)

    def _start(self, name: str, port: int, command: list[str], is_ready: Callable[[Service], bool]) -> Service:
        return self._await(self._launch(name, port, command), is_ready)

    def _launch(self, name: str, port: int, command: list[str]) -> Service:
        log = self._folder / f"{name}-{port}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EXPIREMEMBER_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,
            )
        service = Service(name, port, process, log, time.perf_counter())
        self._services.append(service)
        return service

    def _await(self, service: Service, is_ready: Callable[[Service], bool]) -> Service:
        while not is_ready(service):
            if service.process.poll() is not None:
                raise StageError(f"{service.name} ended with status {service.process.returncode}:\n{service.said()}")
            if time.perf_counter() - service.began > _START_SECONDS:
                raise StageError(f"{service.name} was not ready in {_START_SECONDS:.0f} s:\n{service.said()}")
            time.sleep(0.002)
        service.ready_seconds = time.perf_counter() - service.began
        return service


def _end_with_parent() -> None:
    """Have the system end this process when its parent ends, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on at present, and that was not returned lately."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in _given:
            _given.append(port)
            return port


def _answers(service: Service) -> bool:
    try:
        with Connection(service.port, timeout=1.0) as connection:
            connection.call("EXISTS", "ready")  # nutcracker knows no PING
    except (OSError, StageError):
        return False
    return True


def _says_ready(service: Service) -> bool:
    return _READY.search(service.said()) is not None
