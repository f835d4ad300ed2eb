"""The slots of the cluster node that the proxy stands in front of, as far as the node has told.

Its tests: tests/test_cluster_details.py.
"""

from __future__ import annotations

from typing import Final

from proxy.scripts.travelling import Travelling

SLOTS: Final = 16384
"""How many slots a cluster has."""


class Slots:
    """What the node has said of itself.

    Attributes:
        node: its id.
        primary: whether it is a primary.
        owned: its slots; those of its primary, if it is a replica.
        moving: those that are on their way to it or from it.
        coming: those that are on their way to it.
        surveyed: those of the moving ones of which the keys with deadlines that were there when that began are known.
        first: the least of its slots; 0 where it has none.
        indexed: the slots in which there may be an index.
        changed: those whose index has changed, or is about to, and has not been read since.
        unread: those whose index could not be read, or of which keys could not be asked about, and is to be read.
        had: the keys of slots that go of which there are deadlines here, or were when that began, or since.
        sent: those that have been sent to another node, or should have been.
    """

    def __init__(self, node: bytes) -> None:
        self.node = node
        self.primary = False
        self.owned: frozenset[int] = frozenset()
        self.moving: frozenset[int] = frozenset()
        self.coming: frozenset[int] = frozenset()
        self.surveyed: set[int] = set()
        self.first = 0
        self.indexed: set[int] = set()
        self.changed: set[int] = set()
        self.unread: set[int] = set()
        self.had = Travelling()
        self.sent = Travelling()
        self._sent_before: set[int] = set()  # since the answer before the last one of the node's
        self._sent_since: set[int] = set()  # since the last one

    def take(self, *, primary: bool, owned: frozenset[int], moving: frozenset[int]) -> frozenset[int]:
        """Take over what the node says.

        Returns:
            The slots whose deadlines have to be read: they have come to it, a move of theirs has ended, or it has
            become a primary, which removes what is due.
        """
        changed = (owned - self.owned) | ((self.moving - moving) & owned)
        if primary and not self.primary:
            changed = owned
        self.primary, self.owned, self.moving = primary, owned, moving
        self.coming = moving - owned
        self.surveyed &= moving
        self._sent_before, self._sent_since = self._sent_since, set()
        self.first = min(owned, default=0)
        return changed

    def send(self, number: int, key: bytes) -> None:
        """Note that a key of a slot is sent to another node."""
        self.sent.add(number, (key,))
        self._sent_since.add(number)

    @property
    def unsettled(self) -> frozenset[int]:
        """The slots that are on their way, or may be, or have to be read."""
        return self.moving | self.unread | self._sent_before | self._sent_since

    def expects(self, number: int) -> bool:
        """Return whether keys of a slot may be at the node."""
        return number in self.owned or number in self.moving
