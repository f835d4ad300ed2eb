"""The keys from which the engine has just removed due members, so that several requests share one removal.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LASTING_MS: Final = 10.0
"""How long a removal counts, in ms. It must be short: another connection may set a short deadline meanwhile."""

AHEAD_MS: Final = 0.5
"""The engine waits for a deadline that is closer than this, in ms: a request sent now may run after the deadline."""


class Clearance:
    """Remembers for `LASTING_MS` which keys the engine has removed due members from.

    The key None stands for all keys of all databases. All times are by the server's clock, in Unix ms.
    """

    def __init__(self) -> None:
        # Key → when due members were last removed, and the earliest deadline left then.
        self._looked: dict[bytes | None, tuple[float, float]] = {}
        self._oldest = 0.0

    def note(self, keys: Iterable[bytes | None], since: float, earliest: float) -> None:
        """Note that the engine has removed due members from some keys.

        Args:
            keys: the keys; None for all.
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

    def holds(self, key: bytes | None, now: float, set_here: float) -> bool:
        """Return whether a key (None: every key) is known to have no due members, so that the engine need not look.

        `set_here`: the earliest deadline that connections of this proxy have set lately.
        """
        since, earliest = self._looked.get(key, (0.0, 0.0))
        return 0 <= now - since <= LASTING_MS and now + AHEAD_MS < min(earliest, set_here)
