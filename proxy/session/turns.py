"""Limit how much of one connection is judged in one turn: the more connections wait, the less.

Its tests: tests/test_turns.py.
"""

from __future__ import annotations

from typing import Final

REQUESTS: Final = 300
RUNS: Final = 20
BYTES: Final = 256 * 1024
"""The limits of a turn while no other connection waits. A chunk read from a socket has at most `BYTES`."""

STRANGERS_BYTES: Final = 16 * 1024
"""The limit of a stranger's turn, in bytes: there may be many strangers, and inline requests take longest to parse."""

_FEWEST: Final = 16
_LEAST: Final = 8 * 1024
"""The lower bounds of the limits: switching to another connection takes as long as several requests."""


class Turns:
    """The limits of a turn, shared by all connections of a proxy.

    Attributes:
        waiting: how many connections have more to be judged, and wait for their next turn.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting = 0

    @property
    def requests(self) -> int:
        """How many requests a turn may have."""
        return max(_FEWEST, REQUESTS // (1 + self.waiting))

    @property
    def runs(self) -> int:
        """How many runs of requests, each sent as one call, a turn may have."""
        return max(1, RUNS // (1 + self.waiting))

    @property
    def bytes(self) -> int:
        """How many bytes a turn may have."""
        return max(_LEAST, BYTES // (1 + self.waiting))
