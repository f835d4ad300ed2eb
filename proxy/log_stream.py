"""A non-blocking stream for standard error: lines that cannot be written at once are dropped and counted.

Its tests: tests/test_log_stream.py.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from functools import partial
from typing import Final, TextIO

AT_ONCE: Final = 4096
"""Writes of up to this many bytes to a pipe are atomic (PIPE_BUF)."""


class Patient:
    """Writes lines to a stream whose reader may have stalled, and drops those for which there is no room.

    An ordinary write to a full pipe would block.

    Args:
        stream: the stream.

    Attributes:
        lost: number of lines dropped since the last line written.
        on_room: called with `lost` when writing succeeds again.
    """

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0
        self.on_room: Callable[[int], None] = lambda _: None
        self._stream = stream
        self._cut = b""  # a newline if the last line was written only in part
        self._send, self._release = _sender(stream)

    def write(self, text: str) -> None:
        """Write a line, or drop it if there is no room."""
        if self._send is None:
            self._stream.write(text)
            return
        data = self._cut + text.encode("utf-8", "backslashreplace")
        place = 0
        try:
            while place < len(data):
                place += self._send(data[place : place + AT_ONCE])
        except BlockingIOError:
            self.lost += 1
            self._cut = self._cut if place == 0 else b"\n"
            return
        self._cut = b""
        if self.lost:
            lost, self.lost = self.lost, 0
            self.on_room(lost)

    def close(self) -> None:
        """Stop writing. The stream itself stays open."""
        self._release()

    def flush(self) -> None:
        """Flush buffered output."""
        if self._send is None:
            self._stream.flush()


def _sender(stream: TextIO) -> tuple[Callable[[bytes], int] | None, Callable[[], object]]:
    """Return a function that writes without blocking, and a function to call at the end.

    The first function is None if writes never block, or if blocking cannot be avoided.

    Other processes share the open file and its blocking mode. So the file is opened again, for this process only.
    """
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            connection = socket.socket(fileno=os.dup(descriptor))
            return (lambda data: connection.send(data, socket.MSG_DONTWAIT)), connection.close
        if stat.S_ISFIFO(mode):
            own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            return (lambda data: os.write(own, data)), partial(os.close, own)
    except (OSError, ValueError):
        pass  # there is no /proc, or the pipe belongs to another user
    return None, lambda: None
