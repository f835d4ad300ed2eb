"""The keys from which the engine has just removed due members, so that simultaneous requests share one removal.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LASTING_MS: Final = 10.0
"""How long a removal counts. It must be short: another connection may set a short deadline meanwhile."""

AHEAD_MS: Final = 0.5
"""Wait for a deadline closer than this: a request that is sent now may run after it."""


class Clearance:
    """Key → time of the last removal, and earliest deadline left then. All times are by the server's clock, in Unix
    ms."""

    def __init__(self) -> None:
        self._looked: dict[bytes, tuple[float, float]] = {}
        self._oldest = 0.0

    def note(self, keys: Iterable[bytes], since: float, earliest: float) -> None:
        """Note that the engine has removed due members from some keys.

        Args:
            keys: the keys.
            since: when the removal began.
            earliest: the earliest deadline left in them.
        """
        if not 0 <= since - self._oldest <= LASTING_MS:
            self._looked.clear()
            self._oldest = since
        self._looked.update(dict.fromkeys(keys, (since, earliest)))

    def forget(self) -> None:
        """Forget all keys."""
        self._looked.clear()

    def holds(self, key: bytes, now: float, set_here: float) -> bool:
        """Return whether a key has no due members, so that the engine need not look for any.

        `set_here`: the earliest deadline that connections of this proxy have set lately.
        """
        since, earliest = self._looked.get(key, (0.0, 0.0))
        return 0 <= now - since <= LASTING_MS and now + AHEAD_MS < min(earliest, set_here)
