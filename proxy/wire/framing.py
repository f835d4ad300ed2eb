"""Find the part at the front of a chunk that has only array headers and bulk strings: hiredis must get nothing else.

Its tests: tests/test_hostile.py.

hiredis reads replies. If a client sends a map, a push or a status instead of a request, hiredis can do harm: it raises
TypeError for a map with an unhashable key, and makes a list of 300 million elements for `>300000000`. So a client's
bytes reach hiredis only after every header has been checked here.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.wire.pattern import ARGUMENT, at_once

_SMALL: Final = re.compile(at_once(rf"\*[1-9][0-9]?\r\n(?=\$)|{ARGUMENT}", "*").encode(), re.DOTALL)
"""Array headers, each followed by an argument, and short arguments, in any order."""

_MANY: Final = re.compile(rb"\*([1-9][0-9]{2,3})\r\n(?=\$)")
_LONG: Final = re.compile(rb"\$([1-9][0-9]{2,8})\r\n")
_BEGUN: Final = re.compile(rb"\*(?:[1-9][0-9]{0,3}\r?)?|\$(?:[1-9][0-9]{0,7}\r?|0\r?)?|\*[1-9][0-9]{0,3}\r\n")
_HEADER: Final = re.compile(rb"\$(0|[1-9][0-9]{0,7})\r\n")

_LEAST: Final = 5
"""Lower bound for the size of a bulk string, in bytes: it limits how many bulk strings a chunk can hold. Only the last
array header of a chunk may announce more than that."""


def framed_end(chunk: bytes) -> int:
    """Return the end of the run of array headers and whole bulk strings at the front of a chunk.

    hiredis allocates a list of the announced size before it has seen an element. So large counts must fit the chunk.

    Args:
        chunk: bytes that begin with a request.
    """
    position, size, room = 0, len(chunk), len(chunk) // _LEAST
    while True:
        small = _SMALL.match(chunk, position)
        assert small is not None  # it also matches the empty string
        position = small.end()
        if position == size:
            return position
        if many := _MANY.match(chunk, position):
            if room < 0:
                return position
            room -= int(many[1])
            position = many.end()
            continue
        long = _LONG.match(chunk, position)
        if long is None:
            return position
        after = long.end() + int(long[1]) + 2
        if after > size or chunk[after - 2 : after] != b"\r\n":
            return position
        position = after


def is_beginning(rest: bytes) -> bool:
    """Return whether the bytes after `framed_end` are a header or bulk string that is cut by the chunk's end."""
    if not rest or _BEGUN.fullmatch(rest):
        return True
    header = _HEADER.match(rest)
    return header is not None and header.end() + int(header[1]) + 2 > len(rest)
