"""Track a transaction's assumptions about its keys: that some have no deadlines, and that others may get some.

Its tests: tests/test_presumed.py.

For a user who may not run every script, a store, RENAME, COPY or MOVE is queued unchanged if its keys have no deadlines
at that moment. They may have some when the transaction runs: set by its own requests or by another client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set


class Presumed:
    """The assumptions about the keys of one transaction.

    Attributes:
        given: keys to which queued requests may give deadlines.
        without: keys of requests that were queued unchanged because these keys had no deadlines at that moment.
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
        """Return the given keys, and the keys whose deadlines queued scripts would carry to them."""
        return {source for key in keys for source in (key, *self._sources.get(key, ()))}

    def gives(self, keys: Iterable[bytes]) -> bool:
        """Return whether a queued request may give deadlines to any of some keys."""
        return not self.given.isdisjoint(keys)

    def is_wrong(self, having: Set[bytes] | None) -> bool:
        """Return whether a key in `without` may have deadlines now.

        `having`: the keys that have deadlines; None if the server could not be queried.
        """
        return bool(self.without) and (having is None or not having.isdisjoint(self.without))
