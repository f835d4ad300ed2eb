"""Change the first line of the next reply. The stream may be split anywhere, and RESP3 pushes may precede the reply.

Its tests: tests/test_together.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

_SIZED: Final = b"$=!"
_CHILDREN: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}


class StrayReplyError(Exception):
    """A request got an impossible reply."""


class FirstLine(ABC):
    """Passes on a stream from the beginning of a reply, and changes that reply's first line.

    Attributes:
        done: whether the rest of the stream can bypass this object.
    """

    def __init__(self) -> None:
        self.done = False
        self._begun = b""  # an incomplete line
        self._pending = 0  # parts of a push still to come
        self._body = 0  # bytes still to come of a string in the push

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream.

        Returns:
            The bytes for the client, and those after the last byte that concerns this object.

        Raises:
            StrayReplyError: the reply is impossible.
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

    @abstractmethod
    def _open(self, line: bytes) -> bytes:
        """Return what the client gets for a line; set `done` if no later line matters."""

    def _follow(self, line: bytes) -> None:
        """Count the parts still to come of a push, given one of its lines."""
        mark, rest = line[:1], line[1:-2]
        self._pending = max(self._pending, 1) - 1
        if mark not in _SIZED and mark not in _CHILDREN:
            return
        count = int(rest) if rest.lstrip(b"-").isdigit() else 0
        if mark in _SIZED:
            self._body = count + 2 if count >= 0 else 0
        else:
            self._pending += _CHILDREN[mark] * max(count, 0) + (mark == b"|")
