"""What a transaction presumes of its keys: that some have no deadlines, or will have some.

Its tests: tests/test_presumed.py.

For a user who may not run every script, a store, RENAME, COPY or MOVE is queued unchanged if its keys have no deadlines
then. They may have some when the transaction runs: from its own requests, or from another client's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set


class Presumed:
    """The keys of one transaction.

    Attributes:
        given: keys to which queued requests may give deadlines.
        without: keys that had no deadlines when a request that needs a script on keys with deadlines was queued
            unchanged.
    """

    __slots__ = ("_sources", "given", "without")

    def __init__(self) -> None:
        self.given: set[bytes] = set()
        self.without: set[bytes] = set()
        self._sources: dict[bytes, set[bytes]] = {}  # key → keys moved or copied to it, with their deadlines

    def carry(self, keys: Collection[bytes], having: Set[bytes]) -> Collection[bytes]:
        """Note that a queued script moves or copies the first of some keys to the others, with its deadlines.

        `having`: the keys that have deadlines now. Returns the keys that may have some afterwards.
        """
        source, *targets = keys
        if source in self.given or source in having:
            return keys
        for target in targets:
            self._sources.setdefault(target, set()).update({source}, self._sources.get(source, ()))
        return ()

    def behind(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return the keys, and those whose deadlines queued scripts would carry to them."""
        return {source for key in keys for source in (key, *self._sources.get(key, ()))}

    def gives(self, keys: Iterable[bytes]) -> bool:
        """Return whether a queued request may give deadlines to any of some keys."""
        return not self.given.isdisjoint(keys)

    def is_wrong(self, having: Set[bytes] | None) -> bool:
        """Return whether a key that had no deadlines may have some now.

        `having`: the keys that have some; None if the server could not be asked.
        """
        return bool(self.without) and (having is None or not having.isdisjoint(self.without))
