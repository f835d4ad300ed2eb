"""Match the server's glob patterns: against a name, and against all names that begin in a given way.

Its tests: tests/test_command.py.
"""

from __future__ import annotations

from typing import Final

_STAR: Final = 0x2A
_QUERY: Final = 0x3F
_OPEN: Final = 0x5B
_CLOSE: Final = 0x5D
_BACKSLASH: Final = 0x5C
_DASH: Final = 0x2D

LONGEST: Final = 256
"""Maximum size, in bytes, of a pattern that is matched byte by byte: any user may send one."""


def may_match_beginning(pattern: bytes, beginning: bytes) -> bool:
    """Return whether a pattern of KEYS or SCAN may match a name that begins with the given bytes.

    Follows the server's `stringmatchlen` byte by byte, up to the first `*`. False is always right; True may be wrong if
    the pattern is longer than `LONGEST`, a class does not end, or the part after a `*` matches no such name.

    Args:
        pattern: the pattern.
        beginning: the beginning of the names.
    """
    if len(pattern) > LONGEST:
        return True
    position = 0
    for byte in beginning:
        if position == len(pattern):
            return False  # matches shorter names only
        sign = pattern[position]
        if sign == _STAR:
            return True
        if sign == _OPEN:
            end, matches = _class(pattern, position + 1, byte)
            if end is None:
                return True
            position = end
        elif sign == _QUERY:
            matches = True
        else:
            if sign == _BACKSLASH and position + 1 < len(pattern):
                position += 1
            matches = pattern[position] == byte
        if not matches:
            return False
        position += 1
    return True


def matches(pattern: bytes, name: bytes) -> bool:
    """Return whether a pattern matches a name, as the server's `stringmatchlen` does.

    Takes at most as many steps as the product of their lengths.

    Args:
        pattern: the pattern.
        name: the name.
    """
    places = _passing_stars(pattern, {0})
    for byte in name:
        further = set()
        for position in places:
            if position == len(pattern):
                continue
            sign = pattern[position]
            if sign == _STAR:
                further.add(position)
                continue
            if sign == _OPEN:
                end, fits = _class(pattern, position + 1, byte)
                position = len(pattern) - 1 if end is None else end
            else:
                if sign == _BACKSLASH and position + 1 < len(pattern):
                    position += 1
                fits = pattern[position] == byte or sign == _QUERY
            if fits:
                further.add(position + 1)
        if not further:
            return False
        places = _passing_stars(pattern, further)
    return len(pattern) in places


def _passing_stars(pattern: bytes, places: set[int]) -> set[int]:
    """Return the given positions in a pattern, and the positions that follow when stars there match nothing."""
    passed = set(places)
    for position in places:
        while position < len(pattern) and pattern[position] == _STAR and position + 1 not in passed:
            position += 1
            passed.add(position)
    return passed


def _class(pattern: bytes, position: int, byte: int) -> tuple[int | None, bool]:
    """Read a class after its opening bracket: return its end (None if unclosed), and whether it contains the byte."""
    negated = pattern[position : position + 1] == b"^"
    position += negated
    found = False
    size = len(pattern)
    while position < size:
        sign = pattern[position]
        if sign == _BACKSLASH and position + 1 < size:
            position += 1
            found = found or pattern[position] == byte
        elif sign == _CLOSE:
            return position, found != negated
        elif position + 2 < size and pattern[position + 1] == _DASH:
            low, high = sorted((sign, pattern[position + 2]))
            found = found or low <= byte <= high
            position += 2
        else:
            found = found or sign == byte
        position += 1
    return None, found != negated
