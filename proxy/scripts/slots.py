"""The slots of the proxy's cluster node, as reported by the node.

Its tests: tests/test_cluster_details.py.
"""

from __future__ import annotations

from typing import Final

from proxy.scripts.travelling import Travelling

SLOTS: Final = 16384
"""How many slots a cluster has."""


class Slots:
    """A cluster node's slots.

    Attributes:
        node: the node's id.
        primary: whether the node is a primary.
        owned: the node's slots; for a replica, the slots of its primary.
        moving: the slots on their way to or from the node.
        coming: the slots on their way to the node.
        surveyed: the moving slots for which it is known which keys had deadlines when the move began.
        first: the lowest slot of the node; 0 if it has none.
        indexed: the slots in which there may be an index.
        changed: the slots whose index has changed, or is about to change, and has not been read since.
        unread: the slots whose index must be read again, because the index or some keys could not be read.
        had: the keys of departing slots that have had deadlines here since the beginning of the move.
        sent: the keys that clients have sent to another node (MIGRATE), or have tried to send.
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
        self._sent_before: set[int] = set()  # slots of keys sent between the node's last two reports
        self._sent_since: set[int] = set()  # slots of keys sent since the last report

    def take(self, *, primary: bool, owned: frozenset[int], moving: frozenset[int]) -> frozenset[int]:
        """Store the node's report.

        Returns:
            The slots whose deadlines have to be read: slots that have arrived or whose move has ended; all slots if the
            node has become a primary.
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
        """The slots that are or may be on their way, or have to be read."""
        return self.moving | self.unread | self._sent_before | self._sent_since

    def expects(self, number: int) -> bool:
        """Return whether keys of a slot may be at the node."""
        return number in self.owned or number in self.moving
