"""What a transaction presumes of its keys: that some have no deadlines, or will have some.

Its tests: tests/test_presumed.py.

For a user who may not run every script, a store, RENAME, COPY or MOVE is queued unchanged if its keys have no deadlines
then. They may have some when the transaction runs: by its own requests, or by another client's.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


class Presumed:
    """The keys of one transaction.

    Attributes:
        given: keys to which queued requests may give deadlines.
        without: keys that had no deadlines when a request that needs a script otherwise was queued unchanged.
    """

    __slots__ = ("given", "without")

    def __init__(self) -> None:
        self.given: set[bytes] = set()
        self.without: set[bytes] = set()

    def gives(self, keys: Iterable[bytes]) -> bool:
        """Return whether a queued request may give deadlines to any of some keys."""
        return not self.given.isdisjoint(keys)

    def is_wrong(self, having: Set[bytes] | None) -> bool:
        """Return whether a key that had no deadlines may have some now.

        `having`: the keys that have some; None if the server could not be asked.
        """
        return bool(self.without) and (having is None or not having.isdisjoint(self.without))
