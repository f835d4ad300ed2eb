"""Find how far a chunk is nothing but array headers and bulk strings: all that hiredis may be shown.

Its tests: tests/test_hostile.py.

hiredis reads replies. Shown a map, a push or a status where a request should be, it would build, or refuse to build,
what no server takes for a request: a map with an unhashable key raises TypeError, `>300000000` makes a list of that
size. So bytes that a client chose reach it only where this has looked at every header.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.wire.pattern import ARGUMENT, at_once

_SMALL: Final = re.compile(at_once(rf"\*[1-9][0-9]?\r\n(?=\$)|{ARGUMENT}", "*").encode(), re.DOTALL)
"""Array headers, each with an argument behind it, and short arguments, in any order."""

_MANY: Final = re.compile(rb"\*([1-9][0-9]{2,3})\r\n(?=\$)")
_LONG: Final = re.compile(rb"\$([1-9][0-9]{2,8})\r\n")
_BEGUN: Final = re.compile(rb"\*(?:[1-9][0-9]{0,3}\r?)?|\$(?:[1-9][0-9]{0,7}\r?|0\r?)?|\*[1-9][0-9]{0,3}\r\n")
_HEADER: Final = re.compile(rb"\$(0|[1-9][0-9]{0,7})\r\n")

_LEAST: Final = 5
"""Bytes of a bulk string at least, the one behind the last header of all excepted."""


def framed_end(chunk: bytes) -> int:
    """Return where the run of array headers and whole bulk strings at the front of a chunk ends.

    hiredis makes a list of the announced size before it has seen an element, so large counts have to fit the chunk.

    Args:
        chunk: bytes that begin where a request does.
    """
    position, size, room = 0, len(chunk), len(chunk) // _LEAST
    while True:
        small = _SMALL.match(chunk, position)
        assert small is not None  # it matches nothing, too
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
    """Return whether the bytes behind `framed_end` are a header or bulk string that the chunk's end has cut."""
    if not rest or _BEGUN.fullmatch(rest):
        return True
    header = _HEADER.match(rest)
    return header is not None and header.end() + int(header[1]) + 2 > len(rest)
