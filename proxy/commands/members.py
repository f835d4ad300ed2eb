"""Find the members among the arguments of a command that adds or removes them.

Its tests: tests/test_native_expiry.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

Arguments: TypeAlias = list[bytes]
Positions: TypeAlias = range | None
"""Positions of the members among the arguments (0 is the command's name). None if the request is malformed, so that the
server should reply, or if finding them would take too long."""
Locator: TypeAlias = Callable[[Arguments, int], Positions]
"""A function of the arguments and their total number. Arguments that have not arrived yet are missing; the function
raises IndexError if it needs one of them."""

MOST_OPTIONS: Final = 10_000
"""Maximum number of arguments to examine before the members: no request that a script can replace has more."""

_ZADD_OPTIONS = frozenset((b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"))
_GEOADD_OPTIONS = frozenset((b"NX", b"XX", b"CH"))
_HSETEX_VALUED = frozenset((b"EX", b"PX", b"EXAT", b"PXAT"))


def every(first: int, step: int = 1) -> Locator:
    """Locate members from `first` to the end, each followed by `step - 1` other arguments."""

    def locate(_: Arguments, size: int) -> Positions:
        if size < first + step or (size - first) % step:
            return None
        return range(first, size, step)

    return locate


def one(position: int, size: int) -> Locator:
    """Locate the single member at `position`, if the request has exactly `size` arguments."""

    def locate(_: Arguments, count: int) -> Positions:
        return range(position, position + 1) if count == size else None

    return locate


def _after_options(options: frozenset[bytes], step: int) -> Locator:
    def locate(arguments: Arguments, size: int) -> Positions:
        first = 2
        while first < size and arguments[first].upper() in options:
            if first == MOST_OPTIONS:
                return None
            first += 1
        if size < first + step or (size - first) % step:
            return None
        return range(first + step - 1, size, step)

    return locate


zadd = _after_options(_ZADD_OPTIONS, 2)
"""ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member …"""

geoadd = _after_options(_GEOADD_OPTIONS, 3)
"""GEOADD key [NX|XX] [CH] longitude latitude member …"""


def _fields(step: int) -> Locator:
    def locate(arguments: Arguments, size: int) -> Positions:
        position = 2
        while position < size and (option := arguments[position].upper()) != b"FIELDS":
            if position >= MOST_OPTIONS:
                return None
            position += 2 if option in _HSETEX_VALUED else 1
        first = position + 2
        if first >= size:
            return None
        if (size - first) % step or arguments[position + 1] != b"%d" % ((size - first) // step):
            # From 8.4 on Redis accepts options after the fields too. It does no harm to treat these as fields.
            return range(first, size)
        return range(first, size, step)

    return locate


fields = _fields(1)
"""HGETDEL key FIELDS count field …"""

fields_with_values = _fields(2)
"""HSETEX key [FNX|FXX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] FIELDS count field value …"""
