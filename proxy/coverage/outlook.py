"""Whether the next deadline of a database is far away: then one query for that deadline is enough for all reads.

Its tests: tests/test_reads.py.
"""

from __future__ import annotations

import math
from typing import Final

_FAR_MS: Final = 100.0
"""How far away the next deadline must be, in ms, to count as far. A read whose reply takes longer is sent again."""

_AGAIN_MS: Final = 50.0
"""How long to wait before querying again if the next deadline is near, in ms."""


class Outlook:
    """The next deadline as the server last reported it. The report may be out of date."""

    __slots__ = ("_asked", "_far_until")

    def __init__(self) -> None:
        self._far_until = self._asked = -math.inf

    def is_far(self, now: float) -> bool:
        """Return whether the next deadline seems far away at a moment of the server's clock, in Unix ms."""
        return now < self._far_until

    def wants(self, now: float) -> bool:
        """Return whether to query the server now; if so, note that it is being queried."""
        if now < self._asked + _AGAIN_MS:
            return False
        self._asked = now
        return True

    def hear(self, earliest: float) -> None:
        """Note the server's reply: the earliest deadline in Unix ms; minus infinity if the reply is invalid."""
        self._far_until = earliest - _FAR_MS
