"""Parse the arguments of EXPIREMEMBER and related commands, with KeyDB's errors in KeyDB's order.

Its tests: tests/test_transcripts.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from proxy.wire.request import strict_integer

EXACT: Final = 1 << 53
"""Doubles, such as a sorted set's scores, represent all integers up to this one exactly."""

_CONDITIONS: Final = frozenset((b"NX", b"XX", b"GT", b"LT"))
UNITS: Final = {b"s": 1000, b"ms": 1}
"""Units that EXPIREMEMBER accepts after the delay, in ms."""

_RELATIVE: Final = frozenset((b"EXPIREMEMBER", b"PEXPIREMEMBER"))

NOT_AN_INTEGER: Final = b"ERR value is not an integer or out of range"
_TOO_MANY: Final = b"ERR Invalid number of arguments"
_NO_UNIT: Final = b"ERR Invalid unit arg"
NX_ALONE: Final = b"ERR NX and XX, GT or LT options at the same time are not compatible"
GT_OR_LT: Final = b"ERR GT and LT options at the same time are not compatible"


class LifetimeError(Exception):
    """The arguments are invalid for the command.

    Attributes:
        message: the error, without the leading minus and the line end.
    """

    def __init__(self, message: bytes) -> None:
        super().__init__(message)
        self.message = message


class ArityError(LifetimeError):
    """The number of arguments is wrong; servers check that first.

    Args:
        name: the command.
    """

    def __init__(self, name: bytes) -> None:
        super().__init__(b"ERR wrong number of arguments for '%b' command" % name.lower())


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The lifetime that a request sets.

    Attributes:
        milliseconds: the time, from now or since 1970.
        is_relative: whether the time counts from now.
        condition: the given options of NX, XX, GT and LT, XX first.
    """

    milliseconds: int
    is_relative: bool
    condition: bytes

    def deadline(self, now: float) -> float:
        """Return the deadline, in Unix ms like `now`."""
        return now + self.milliseconds if self.is_relative else self.milliseconds


def read_lifetime(name: bytes, arguments: list[bytes]) -> Lifetime:
    """Parse the arguments of a request.

    Checks are in KeyDB's order: arity, a time that is no integer, too many arguments, an unknown unit. The script
    checks key, type and member later.

    Args:
        name: the command, in upper case.
        arguments: the request's arguments, including the name.

    Raises:
        ArityError: there are too few or too many arguments.
        LifetimeError: the arguments are invalid in another way.
    """
    if len(arguments) < 4:
        raise ArityError(name)
    takes_unit = name == b"EXPIREMEMBER"
    options = [option.upper() for option in arguments[4:]]
    has_unit = takes_unit and bool(options) and options[0] not in _CONDITIONS
    conditions = options[has_unit:]
    proper = _CONDITIONS.issuperset(conditions)
    if not takes_unit and not proper:
        raise ArityError(name)
    number = strict_integer(arguments[3])
    if number is None:
        raise LifetimeError(NOT_AN_INTEGER)
    if not proper:
        raise LifetimeError(_TOO_MANY)
    if has_unit:
        unit = UNITS.get(options[0].lower(), 0)
    else:
        unit = 1 if name.startswith(b"P") else 1000
    if not unit:
        raise LifetimeError(_NO_UNIT)
    chosen = set(conditions)
    if b"NX" in chosen and len(chosen) > 1:
        raise LifetimeError(NX_ALONE)
    if {b"GT", b"LT"} <= chosen:
        raise LifetimeError(GT_OR_LT)
    milliseconds = number * unit
    if not -EXACT <= milliseconds <= EXACT:
        raise LifetimeError(b"ERR invalid expire time in '%b' command" % name.lower())
    return Lifetime(milliseconds, name in _RELATIVE, b"".join(sorted(chosen, reverse=True)))


def deadline_of(name: bytes, arguments: list[bytes], now: float) -> float:
    """Return the deadline that a request sets, in Unix ms like `now`.

    Return -inf for a delay of zero or less, which removes the member, and +inf if the request is invalid.
    """
    try:
        lifetime = read_lifetime(name, arguments)
    except LifetimeError:
        return math.inf
    if lifetime.is_relative and lifetime.milliseconds <= 0:
        return -math.inf
    return lifetime.deadline(now)
