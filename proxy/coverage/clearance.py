"""The keys from which the engine has just removed what is due: requests that come together need one look, not one
each.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LASTING_MS: Final = 10.0
"""How long a look counts. It must be short: another connection may set a short deadline meanwhile."""

AHEAD_MS: Final = 0.5
"""A deadline closer than this is waited for: a request that is sent now may run after it."""


class Clearance:
    """Key → when it was looked at, and the earliest deadline that was left. All times are the server's, in Unix ms."""

    def __init__(self) -> None:
        self._looked: dict[bytes, tuple[float, float]] = {}
        self._oldest = 0.0

    def note(self, keys: Iterable[bytes], since: float, earliest: float) -> None:
        """Note a look.

        Args:
            keys: the keys.
            since: when it began.
            earliest: the earliest deadline that it has left in them.
        """
        if not 0 <= since - self._oldest <= LASTING_MS:
            self._looked.clear()
            self._oldest = since
        self._looked.update(dict.fromkeys(keys, (since, earliest)))

    def forget(self) -> None:
        """Forget all looks."""
        self._looked.clear()

    def holds(self, key: bytes, now: float, set_here: float) -> bool:
        """Return whether a key need not be looked at, because nothing is due in it.

        `set_here`: the earliest deadline that connections of this proxy have set lately.
        """
        since, earliest = self._looked.get(key, (0.0, 0.0))
        return 0 <= now - since <= LASTING_MS and now + AHEAD_MS < min(earliest, set_here)
