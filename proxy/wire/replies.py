"""Split a stream into replies exactly, without buffering long ones. The stream may come in any pieces.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Final

from proxy.wire.first_line import StrayReplyError
from proxy.wire.leaves import LEAST, leaves_at_once, parts_at_once
from proxy.wire.pattern import ARGUMENT, header_pattern

LONGEST_LINE: Final = 64 * 1024
"""How much of an incomplete line to keep, in bytes. Only texts can have longer lines: a script's status, or MONITOR
output."""

_TEXTS: Final = b"+-"

MOST_PARTS: Final = 32
"""Maximum number of parts of an array, a set or a map that is processed whole; larger ones are split."""

_SHORT: Final = rf"[-+:_#,(][^\r\n]*+\r\n|{ARGUMENT}|[$*]-1\r\n"
_HEAD: Final = f"{header_pattern('[*~]', MOST_PARTS)}|{header_pattern('%', MOST_PARTS // 2)}"
_HEADS: Final = frozenset(b"*~%")

_SIZED: Final = b"$=!"
_STAR: Final = 0x2A
_MINUS: Final = 0x2D
_PUSH: Final = 0x3E
_CHILDREN: Final = {b"*": 1, b"~": 1, b"%": 2, b"|": 2}


@cache
def short_replies() -> Callable[[bytes], list[bytes]]:
    """Return a function that finds the short replies at the front of a chunk. Most replies are short.

    If the lengths found add up to the chunk's, all its replies are short. Otherwise an empty match stands for the rest,
    which is not searched: a search could take quadratic time.
    """
    return re.compile(rf"({_SHORT})|.+".encode(), re.DOTALL).findall


@cache
def short_arrays() -> Callable[[bytes], list[bytes]]:
    """Return a function that splits a chunk into replies if each is short, or an array, set or map of few parts.

    These may be nested. For any other chunk the function returns an empty list.
    """
    find = re.compile(rf"({_SHORT}|{_HEAD})|.+".encode(), re.DOTALL).findall
    of_integers = re.compile(rf"{header_pattern('[*]', MOST_PARTS)}(?::-?\d+\r\n)+".encode()).fullmatch

    def replies(data: bytes) -> list[bytes]:
        if of_integers(data) and int(data[1 : data.index(b"\r")]) == data.count(b":"):
            return [data]  # the usual reply to a joint call
        parts = find(data)
        if not parts[-1]:
            return []
        found: list[bytes] = []
        begin = end = 0  # the current array is parts[begin:end]
        for place in [number for number, part in enumerate(parts) if part[0] in _HEADS and part[1] != _MINUS]:
            head = parts[place]
            count = _CHILDREN[head[:1]] * int(head[1:])
            if place < end:
                end += count  # a nested array
                continue
            if end:
                found.append(b"".join(parts[begin:end]))
            found += parts[end:place]
            begin, end = place, place + 1 + count
        if end > len(parts):
            return []
        if end:
            found.append(b"".join(parts[begin:end]))
        return found + parts[end:]

    return replies


def whole_replies(much: int) -> Callable[[bytes], list[bytes]]:
    """Return a function that splits a chunk into replies if all are whole and of the frequent forms.

    For any other chunk it returns pieces whose lengths do not add up to the chunk's, or an empty list.

    Args:
        much: maximum size of a chunk with arrays, in bytes.
    """
    short, arrays = short_replies(), short_arrays()

    def find(data: bytes) -> list[bytes]:
        replies = short(data) if data[0] != _STAR else []
        if sum(map(len, replies)) == len(data):
            return replies
        return arrays(data) if len(data) < much else []

    return find


class Replies:
    """Follows the replies on one connection.

    Attributes:
        between: whether the stream is between two replies.
        left: how many bytes of a string are still to come.

    Args:
        unasked: gets the pushes, in pieces.
        long_texts: whether simple strings and errors may be longer than `LONGEST_LINE`; if not, a longer one raises
            `StrayReplyError`.
    """

    def __init__(self, unasked: Callable[[bytes], object] = lambda _: None, *, long_texts: bool = True) -> None:
        self._take_unasked = unasked
        self._texts = _TEXTS if long_texts else b""
        self.between = True
        self.left = 0
        self._begun = b""  # an incomplete line
        self._pending = 0  # parts of the current reply or push still to come
        self._within_line = False  # whether the beginning of a long line has been passed on
        self._unasked = False  # whether the current reply is a push
        self._around = 0  # parts still to come of the reply within which a push came, as may happen with EXEC's reply

    def cut(self, data: bytes, most: float = math.inf) -> list[tuple[bytes, bool]]:
        """Take bytes of the stream; leave out the pushes between replies.

        Args:
            data: the bytes.
            most: maximum number of replies to find; bytes after them are left alone (`rest`).

        Returns:
            Pieces of replies, in order; for each also whether it ends a reply.

        Raises:
            StrayReplyError: the bytes are not a reply.
        """
        data, self._begun = self._begun + data, b""
        pieces: list[tuple[bytes, bool]] = []
        begin = position = 0
        size = len(data)
        while position < size:
            if self.left:
                step = min(self.left, size - position)
                self.left -= step
                position += step
            elif self._within_line:
                end = data.find(b"\r\n", position) + 2
                if end < 2:
                    position = size - data.endswith(b"\r")
                    break
                position, self._within_line = end, False
            elif self._pending > LEAST and (run := _run(data, position, self._pending)) is not None:
                count, position = run
                self._pending -= count
            else:
                if self._pending and not self._unasked and data[position] == _PUSH:
                    if position > begin:
                        pieces.append((data[begin:position], False))
                    begin, self._around, self._pending = position, self._pending, 0
                end = data.find(b"\r\n", position) + 2
                if end < 2:
                    if size - position <= LONGEST_LINE:
                        break
                    if data[position : position + 1] not in self._texts:
                        raise StrayReplyError(data[position : position + 100])
                    self._take(data[position : position + 1] + b"\r\n")
                    self._within_line = True
                    continue
                self._take(data[position:end])
                position = end
            if not (self.left or self._pending or self._within_line):
                if self._unasked:
                    self._put_unasked(data[begin:position], pieces)
                    self._pending, self._around = self._around, 0
                else:
                    pieces.append((data[begin:position], True))
                    most -= 1
                self._unasked = False
                begin = position
                if not most:
                    break
        if position > begin and self._unasked:
            self._put_unasked(data[begin:position], pieces)
        elif position > begin:
            pieces.append((data[begin:position], False))
        self._begun = data[position:]
        self.between = not (self._begun or self.left or self._pending or self._within_line)
        return pieces

    @property
    def at_a_push(self) -> bool:
        """Whether the stream is between two replies or within a push."""
        return self.between or self._unasked or self._begun[:1] == b">"

    def _put_unasked(self, piece: bytes, _pieces: list[tuple[bytes, bool]]) -> None:
        self._take_unasked(piece)

    def rest(self) -> bytes:
        """Return and clear the bytes after the replies."""
        rest, self._begun = self._begun, b""
        return rest

    def _take(self, line: bytes) -> None:
        """Process a line. The line is a reply, or begins a reply or a part of one."""
        mark, rest = line[:1], line[1:-2]
        if mark == b">" and not self._pending:
            self._unasked, mark = True, b"*"
        if mark not in b"+-:$*_#,(=!~%|":
            raise StrayReplyError(line[:100])
        self._pending = max(self._pending, 1) - 1
        if mark not in _SIZED and mark not in _CHILDREN:
            return
        if not rest.lstrip(b"-").isdigit():
            raise StrayReplyError(line[:100])
        count = int(rest)
        if mark in _SIZED:
            self.left = count + 2 if count >= 0 else 0
        else:
            self._pending += _CHILDREN[mark] * max(count, 0) + (mark == b"|")


class RepliesAndPushes(Replies):
    """Keeps pushes in their places.

    Attributes:
        pushes: the positions of the pieces that belong to pushes. Clear the list before each `cut`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pushes: list[int] = []

    def _put_unasked(self, piece: bytes, pieces: list[tuple[bytes, bool]]) -> None:
        self.pushes.append(len(pieces))
        pieces.append((piece, False))


class PushesOnly:
    """Follows a stream, which begins between two replies, for as long as it contains nothing but pushes."""

    def __init__(self) -> None:
        self._replies = Replies()

    def receive(self, data: bytes) -> bool:
        """Return whether no byte of a reply has come yet."""
        try:
            return not self._replies.cut(data, 1) and self._replies.at_a_push
        except StrayReplyError:
            return False


def _run(data: bytes, position: int, pending: int) -> tuple[int, int] | None:
    return leaves_at_once(data, position, pending) or parts_at_once(data, position, pending)
