"""Cut a stream into replies exactly, without keeping long ones. The stream may come in any pieces.

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
"""How much of an incomplete line to keep, in bytes. Only texts can have longer lines: a script's status, or
MONITOR's."""

_TEXTS: Final = b"+-"

MOST_PARTS: Final = 32
"""Parts of an array, a set or a map that is taken whole; of more, several at a time."""

_SHORT: Final = rf"[-+:_#,(][^\r\n]*+\r\n|{ARGUMENT}|[$*]-1\r\n"
_HEAD: Final = f"{header_pattern('[*~]', MOST_PARTS)}|{header_pattern('%', MOST_PARTS // 2)}"
_HEADS: Final = frozenset(b"*~%")

_SIZED: Final = b"$=!"
_STAR: Final = 0x2A
_MINUS: Final = 0x2D
_CHILDREN: Final = {b"*": 1, b"~": 1, b"%": 2, b"|": 2}


@cache
def short_replies() -> Callable[[bytes], list[bytes]]:
    """Return a pattern for the short replies at the front of a chunk, which most traffic is made of.

    The chunk is nothing but those where their lengths add up to its own. Otherwise an empty one stands for the rest,
    which is not searched: that could take time by the square of its length.
    """
    return re.compile(rf"({_SHORT})|.+".encode(), re.DOTALL).findall


@cache
def short_arrays() -> Callable[[bytes], list[bytes]]:
    """Return what finds the replies of a chunk that is nothing but short ones, and arrays, sets and maps of few parts.

    Such an array may be a part itself. Of another chunk it returns none.
    """
    find = re.compile(rf"({_SHORT}|{_HEAD})|.+".encode(), re.DOTALL).findall

    def replies(data: bytes) -> list[bytes]:
        parts = find(data)
        if not parts[-1]:
            return []
        found: list[bytes] = []
        begin = end = 0  # of the array that is looked at, in parts
        for place in [number for number, part in enumerate(parts) if part[0] in _HEADS and part[1] != _MINUS]:
            head = parts[place]
            count = _CHILDREN[head[:1]] * int(head[1:])
            if place < end:
                end += count  # one within another
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
    """Return what cuts a chunk into replies, if it is nothing but whole ones of the frequent forms.

    Of another chunk it returns something whose lengths do not add up to the chunk's, or nothing.

    Args:
        much: bytes of a chunk with arrays in it from which on it is not looked at.
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
        between: whether the stream stands between two replies.
        left: how many bytes of a string are known to be still to come.

    Args:
        unasked: takes the push messages, in pieces.
        long_texts: whether texts may be longer than `LONGEST_LINE`; else what seems to be one is no reply.
    """

    def __init__(self, unasked: Callable[[bytes], object] = lambda _: None, *, long_texts: bool = True) -> None:
        self._take_unasked = unasked
        self._texts = _TEXTS if long_texts else b""
        self.between = True
        self.left = 0
        self._begun = b""  # a line that has not come whole
        self._pending = 0  # parts to come of the reply, or the push message, that has begun
        self._within_line = False  # one so long that its beginning has been passed on
        self._unasked = False  # whether it is a push message

    def cut(self, data: bytes, most: float = math.inf) -> list[tuple[bytes, bool]]:
        """Take bytes of the stream, and leave out the push messages between replies.

        Args:
            data: the bytes.
            most: how many replies to look for the end of; what comes behind them is left as it is (`rest`).

        Returns:
            Pieces of replies, in order, each with whether a reply ends with it.

        Raises:
            StrayReplyError: something else has come.
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

    def _put_unasked(self, piece: bytes, _pieces: list[tuple[bytes, bool]]) -> None:
        self._take_unasked(piece)

    def rest(self) -> bytes:
        """Return what has come behind the replies that were looked for."""
        rest, self._begun = self._begun, b""
        return rest

    def _take(self, line: bytes) -> None:
        """Take a line, which is a reply or begins one or a part of one."""
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


def _run(data: bytes, position: int, pending: int) -> tuple[int, int] | None:
    return leaves_at_once(data, position, pending) or parts_at_once(data, position, pending)
