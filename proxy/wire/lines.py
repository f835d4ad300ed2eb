"""Recognise, at the speed of C, the inline requests that people and health checks send: lines of plain words.

Its tests: tests/test_inline.py.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.wire.pattern import at_once

_LINE: Final = r"[A-Za-z][ !#-&(-\[\]-~]*+\r?\n"
"""A line whose only blanks are spaces, without quotes and backslashes: its arguments need no decoding."""

is_lines: Final = re.compile(at_once(_LINE, "+").encode()).fullmatch
"""Matches a chunk of only such lines."""

_LINES: Final = re.compile(at_once(_LINE, "+").encode()).match
_BEGUN: Final = re.compile(rb"[A-Za-z][ !#-&(-\[\]-~]*+\r?").fullmatch
_NAMES: Final = re.compile(rb"^[^ \r\n]++", re.MULTILINE).findall


def lines_end(chunk: bytes, most: int) -> int:
    """Return the end of the lines of plain words at the front of a chunk, within `most` bytes."""
    found = _LINES(chunk, 0, most)
    return found.end() if found else 0


def is_begun(rest: bytes) -> bool:
    """Return whether `rest` may be an incomplete inline request of plain words."""
    return _BEGUN(rest) is not None


def names(lines: bytes) -> set[bytes]:
    """Return the commands in lines of plain words, as the client spells them."""
    return set(_NAMES(lines))
