"""Make the one reply to a call for many requests the replies to those requests, however the stream is cut.

Of an array all that has to go is the line in front of its elements; and a 0 that is one element too many, with which a
script says that it took long. An error, with which the call failed as a whole, is
each request's error. Push messages of RESP3 may come before either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SIZED: Final = b"$=!"
_CHILDREN: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}


class StrayReplyError(Exception):
    """A call for many requests was answered neither by an array of as many elements nor by an error."""


class Elements:
    """Passes on what follows a place in the stream at which the reply begins.

    Args:
        count: how many requests the call is for.
        took_long: is called if the script says so.

    Attributes:
        done: whether what is left of the stream need not pass through here: elements, if the reply is an array.
    """

    def __init__(self, count: int, took_long: Callable[[], None] = lambda: None) -> None:
        self.done = False
        self._count = count
        self._took_long = took_long
        self._opened = False  # whether only the element that is too many is still to come
        self._begun = b""  # a line that has not come whole
        self._pending = 0  # parts to come of a push message
        self._body = 0  # bytes to come of a string in it

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream.

        Returns:
            The bytes for the client; and what came behind those that are to pass through here.

        Raises:
            StrayReplyError: the reply is none that the call can have.
        """
        data, self._begun = self._begun + data, b""
        passed: list[bytes] = []
        position = 0
        while position < len(data):
            if self._body:
                piece = data[position : position + self._body]
                self._body -= len(piece)
                position += len(piece)
                passed.append(piece)
                continue
            end = data.find(b"\r\n", position) + 2
            if end < 2:
                self._begun = data[position:]
                break
            line = data[position:end]
            position = end
            if self._pending or line[:1] == b">":
                self._follow(line)
                passed.append(line)
                continue
            passed.append(self._open(line))
            if self.done:
                break
        return b"".join(passed), data[position:] if self.done else b""

    def _open(self, line: bytes) -> bytes:
        """Return what the client gets for a line with which the reply begins."""
        self.done = True
        if self._opened and line == b":0\r\n":
            return b""
        if self._opened:
            raise StrayReplyError(line[:100])
        if line == b"*%d\r\n" % self._count:
            return b""
        if line.startswith(b"-"):
            return line * self._count
        if line == b"*%d\r\n" % (self._count + 1):
            self.done, self._opened = False, True
            self._took_long()
            return b""
        raise StrayReplyError(line[:100])

    def _follow(self, line: bytes) -> None:
        """Count what is to come of a push message, of which a line has come."""
        mark, rest = line[:1], line[1:-2]
        self._pending = max(self._pending, 1) - 1
        if mark not in _SIZED and mark not in _CHILDREN:
            return
        count = int(rest) if rest.lstrip(b"-").isdigit() else 0
        if mark in _SIZED:
            self._body = count + 2 if count >= 0 else 0
        else:
            self._pending += _CHILDREN[mark] * max(count, 0) + (mark == b"|")
