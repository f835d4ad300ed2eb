"""Names of what the proxy keeps in the user's Redis: shadows of keys, the index, the sweeper's lease, rules for events.

Its tests: tests/test_naming.py.

The shadow of a key hashes to the key's own cluster slot, as a script may only touch keys of one slot. A slot is given
by the key's hash tag, the text between its first `{` and the first `}` after it, where that is not empty, else by the
whole key (Redis cluster specification, "Hash tags"). So, with P for the prefix:

    key             shadow
    {user1}:cart    Pt:{user1}:cart     the key has a tag: whatever contains the key hashes like it
    cart            Pk:{cart}           the key itself can be a tag
    a}b             Ps:{1x9}a}b         neither: a short tag that hashes to the key's slot

The letter after the prefix keeps the three apart, so a shadow names exactly one key.

In front of a cluster node there is an index for each slot, P{tag}index, and the lease is in a slot of the node's own.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from functools import lru_cache

from proxy.scripts.slots import SLOTS, Slots


def hash_tag(key: bytes) -> bytes | None:
    """Return the part of a key that alone decides its slot, or None when that is the whole key."""
    begin = key.find(b"{")
    if begin < 0:
        return None
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if end > begin + 1 else None


def slot(key: bytes) -> int:
    """Compute the cluster slot of a key."""
    tag = hash_tag(key)
    return crc_hqx(key if tag is None else tag, 0) % SLOTS


@lru_cache(maxsize=1)
def _tags() -> tuple[bytes, ...]:
    """The shortest decimal number that hashes to each slot; made when the first key needs one, in some 50 ms."""
    tags: dict[int, bytes] = {}
    number = 0
    while len(tags) < SLOTS:
        tag = b"%d" % number
        tags.setdefault(crc_hqx(tag, 0) % SLOTS, tag)
        number += 1
    return tuple(tags[index] for index in range(SLOTS))


class Names:
    """The proxy's own keys under one prefix.

    Args:
        prefix: what they all begin with, without braces.

    Raises:
        ValueError: the prefix is empty or contains a brace.

    Attributes:
        slots: what is known of the slots of the cluster node that the proxy stands in front of; None for a server
            that is no such node.
        index: the one index of each database of a server that has no slots.
        owed: the set of notes about members that have expired and have to be told of still.
    """

    def __init__(self, prefix: bytes) -> None:
        if not prefix or b"{" in prefix or b"}" in prefix:
            raise ValueError("the prefix must not be empty and must not contain { or }")
        self.prefix = prefix
        self.slots: Slots | None = None
        self.events = prefix + b"events"  # the scripts know it by the index, whose last word it has in place of "index"
        self.owed = prefix + b"owed"  # the set of notes of what has to be told still (overdue.lua); named likewise
        self.index = prefix + b"index"
        self.covered = prefix + b"covered"  # the covered prefixes, beside the index
        self._lease = prefix + b"sweeper"
        self._tagged = prefix + b"t:"
        self._key = prefix + b"k:{"
        self._slot = prefix + b"s:{"
        self._in_slot = prefix + b"{"

    def shadow(self, key: bytes) -> bytes:
        """Return the name of a key's shadow."""
        if key and b"}" not in key:
            return b"%b%b}" % (self._key, key)
        if hash_tag(key) is not None:
            return self._tagged + key
        return b"%b%b}%b" % (self._slot, _tags()[slot(key)], key)

    def key(self, shadow: bytes) -> bytes | None:
        """Return the key that a name is the shadow of, or None when it is not the name of a shadow."""
        if shadow.startswith(self._key) and shadow.endswith(b"}"):
            return shadow[len(self._key) : -1]
        if shadow.startswith(self._tagged):
            return shadow[len(self._tagged) :]
        if shadow.startswith(self._slot):
            end = shadow.find(b"}", len(self._slot))
            return shadow[end + 1 :] if end >= 0 else None
        return None

    def index_for(self, key: bytes) -> bytes:
        """Return the name of the index that has a key's earliest deadline, for a script that may write it."""
        slots = self.slots
        if slots is None:
            return self.index
        number = slot(key)
        slots.indexed.add(number)
        return self.index_of(number)

    def index_of_key(self, key: bytes) -> bytes:
        """Return the name of the index that has a key's earliest deadline, for a script that only reads it."""
        return self.index if self.slots is None else self.index_of(slot(key))

    def index_of(self, number: int | None) -> bytes:
        """Return the name of the index of a slot; None: of a server that has no slots."""
        return self.index if number is None else b"%b%b}index" % (self._in_slot, _tags()[number])

    def slot_of(self, index: bytes) -> int | None:
        """Return the slot that a name is the index of, or None when it is no such name."""
        if index.startswith(self._in_slot) and index.endswith(b"}index"):
            return slot(index)
        return None

    def involved(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the index, then each key followed by its shadow; the keys are of one slot."""
        return [self.index_for(keys[0]), *(name for key in keys for name in (key, self.shadow(key)))]

    def triples(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return each key followed by its shadow and its index."""
        return [name for key in keys for name in (key, self.shadow(key), self.index_for(key))]

    @property
    def lease(self) -> bytes:
        """The name of the sweeper's lease."""
        slots = self.slots
        return self._lease if slots is None else b"%b%b}sweeper" % (self._in_slot, _tags()[slots.first])

    @property
    def written(self) -> bytes:
        """The name of a channel or key that is written to have something written; in a slot at rest, if possible."""
        slots = self.slots
        if slots is None:
            return self.prefix + b"wait"
        number = max(slots.owned - slots.moving, default=slots.first)  # who moves many begins with the first
        return b"%b%b}wait" % (self._in_slot, _tags()[number])

    def declared(self, keys: Iterable[bytes]) -> list[bytes] | None:
        """Return those of a script's keys that a cluster node is to see; None, at a server that has no slots: all.

        While a slot is moved, a node refuses a script where one of the proxy's own keys has gone already, or, before
        Redis 7.0, sends the client to the other node, which may not have the client's key.
        """
        if self.slots is None:
            return None
        return list(dict.fromkeys(key for key in keys if not key.startswith(self.prefix)))

    def of_one_slot(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that a script may be called for together with the first of them."""
        found = list(keys)
        if self.slots is None or len(found) < 2:
            return found
        number = slot(found[0])
        return [key for key in found if slot(key) == number]

    def is_moving(self, key: bytes) -> bool:
        """Return whether a key's slot is on its way to the cluster node or from it."""
        return self.slots is not None and slot(key) in self.slots.moving

    def by_slot(self, keys: Iterable[bytes]) -> list[list[bytes]]:
        """Return some keys in groups for each of which a script may be called."""
        found = list(keys)
        if self.slots is None or len(found) < 2:
            return [found] if found else []
        groups: dict[int, list[bytes]] = {}
        for key in found:
            groups.setdefault(slot(key), []).append(key)
        return list(groups.values())
