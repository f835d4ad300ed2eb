"""Whether the next deadline of all keys of a database is far: then to ask for that one will do, whatever is read."""

from __future__ import annotations

import math
from typing import Final

_FAR_MS: Final = 100.0
"""How far ahead it has to be: a reply that comes later than that is asked for once more."""

_AGAIN_MS: Final = 50.0
"""How long to wait before the server is asked again, while it is not."""


class Outlook:
    """What the server has last said of it. It may have changed since: its answer to the next question tells."""

    __slots__ = ("_asked", "_far_until")

    def __init__(self) -> None:
        self._far_until = self._asked = -math.inf

    def is_far(self, now: float) -> bool:
        """Return whether the next deadline seems to be far, at a moment of the server's clock, in Unix ms."""
        return now < self._far_until

    def wants(self, now: float) -> bool:
        """Return whether the server should be asked beside other things, at such a moment; it is then."""
        if now < self._asked + _AGAIN_MS:
            return False
        self._asked = now
        return True

    def hear(self, earliest: float) -> None:
        """Take the server's answer: the earliest deadline in Unix ms; minus infinity, if it is no answer."""
        self._far_until = earliest - _FAR_MS
