"""A client that sends bytes and gives back bytes: a reply is exactly the server's own, whatever protocol it speaks."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.patience import patience

Address = tuple[str, int] | Path
"""Where a server listens: host and port, or the path of a Unix socket."""


def request(*args: str | bytes | int) -> bytes:
    """One request as a client library sends it, an array of bulk strings."""
    parts = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def held_count(key: str, field: str, by: int) -> bytes:
    """Return a request that does what HINCRBY does, by a script: on a key with deadlines it waits for the engine."""
    return request("EVAL", "return redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])", 1, key, field, by)


_begun = time.monotonic()


def a_test_begins() -> None:
    """Take note of it: no deadline that it asks for is older (see `about`)."""
    global _begun
    _begun = time.monotonic()


def about(reply: bytes | int | str, seconds: int) -> bool:
    """Whether a reply of TTL is what is left of so many seconds, set since the test began, however busy the machine."""
    if isinstance(reply, bytes) and not reply.startswith(b":"):
        return False
    left = int(reply[1:-2]) if isinstance(reply, bytes) else int(reply)
    return seconds - (time.monotonic() - _begun) - 1 <= left <= seconds


class Raw:
    """A blocking connection to a Redis, or to something that says it is one.

    Args:
        address: where to connect to.
        timeout: seconds that any one wait may take, if `patience` allows as many.
    """

    def __init__(self, address: Address, timeout: float = 20) -> None:
        timeout = patience(timeout)
        if isinstance(address, Path):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(str(address))
        else:
            self.socket = socket.create_connection(address, timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def send_command(self, *args: str | bytes | int) -> None:
        """Send one request without reading its reply."""
        self.send(request(*args))

    def command(self, *args: str | bytes | int) -> bytes:
        """Send one request and read one reply."""
        self.send_command(*args)
        return self.reply()

    def reply(self) -> bytes:
        """Read one reply, or one push message, whole; an attribute is read together with the reply that it describes.

        Raises:
            ConnectionError: the connection ended first.
        """
        parts = []
        pending = 1
        while pending:
            line = self.line()
            parts.append(line)
            pending -= 1
            kind = line[:1]
            if kind in b"$=!":
                size = int(line[1:])
                if size >= 0:
                    parts.append(self.exactly(size + 2))
            elif kind in b"*~>":
                pending += max(0, int(line[1:]))
            elif kind == b"%":
                pending += 2 * int(line[1:])
            elif kind == b"|":
                pending += 2 * int(line[1:]) + 1
            else:
                assert kind in b"+-:_#,(", f"not a reply: {line[:100]!r}"
        return b"".join(parts)

    def replies(self, count: int) -> list[bytes]:
        """Read several replies."""
        return [self.reply() for _ in range(count)]

    def line(self) -> bytes:
        """Read one line, with its end."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"the connection ended after {line[:100]!r}")
        return line

    def exactly(self, size: int) -> bytes:
        """Read this many bytes."""
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError(f"the connection ended after {len(data)} of {size} bytes")
        return data

    def rest(self) -> bytes:
        """Read all that comes until the other side closes; a reset counts as the end, what came before it is kept."""
        parts = []
        while part := self.some():
            parts.append(part)
        return b"".join(parts)

    def some(self) -> bytes:
        """Read what there is, but wait for something; nothing where the other side has closed or reset."""
        try:
            return self._file.read1(1 << 16)
        except ConnectionResetError:
            return b""

    def until_silent(self, seconds: float) -> bytes:
        """Read what comes until nothing does for a time, or the other side closes."""
        said = b""
        while not self.silent(seconds) and (part := self.some()):
            said += part
        return said

    def silent(self, seconds: float) -> bool:
        """Whether nothing comes for a time; of what has come before all must have been read."""
        return not select.select([self.socket], [], [], seconds)[0]

    def end_of_requests(self) -> None:
        """Close this side of the connection only: no more requests, replies are still read."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Drop the connection at once with a TCP reset, as a client does that is killed with data unread."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()
