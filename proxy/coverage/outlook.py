"""Whether the next deadline of a database is far away. Then asking for that one is enough, whatever is read.

Its tests: tests/test_reads.py.
"""

from __future__ import annotations

import math
from typing import Final

_FAR_MS: Final = 100.0
"""How far away it has to be. A read whose reply takes longer is sent again."""

_AGAIN_MS: Final = 50.0
"""How long to wait, if it is not, before the server is asked again."""


class Outlook:
    """What the server last said about the next deadline. It may have changed; the answer to the next question tells."""

    __slots__ = ("_asked", "_far_until")

    def __init__(self) -> None:
        self._far_until = self._asked = -math.inf

    def is_far(self, now: float) -> bool:
        """Return whether the next deadline seems to be far, at a moment of the server's clock, in Unix ms."""
        return now < self._far_until

    def wants(self, now: float) -> bool:
        """Return whether to ask the server now, and note that it is asked."""
        if now < self._asked + _AGAIN_MS:
            return False
        self._asked = now
        return True

    def hear(self, earliest: float) -> None:
        """Take the server's answer: the earliest deadline in Unix ms; minus infinity, if it is no answer."""
        self._far_until = earliest - _FAR_MS
