"""Names of the proxy's own keys in the user's Redis: shadows, the index, the sweeper's lease, rules for events.

Its tests: tests/test_naming.py.

The shadow of a key hashes to the key's cluster slot, because a script may only touch keys of one slot. The slot depends
on the hash tag: the text between the key's first `{` and the next `}`. A key without a tag, or with an empty one,
counts as a whole (Redis cluster specification, "Hash tags"). So, with P for the prefix:

    key             shadow
    {user1}:cart    Pt:{user1}:cart     the key has a tag: a name that contains the key hashes like it
    cart            Pk:{cart}           the key itself can be a tag
    a}b             Ps:{1x9}a}b         neither: a short tag that hashes to the key's slot

The letter after the prefix distinguishes the three forms, so a shadow names exactly one key.

On a cluster node each slot has its own index, P{tag}index, and the lease is in one of the node's slots.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from functools import lru_cache

from proxy.scripts.slots import SLOTS, Slots


def hash_tag(key: bytes) -> bytes | None:
    """Return the part of a key that determines its slot; None if that is the whole key."""
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
    """Return the shortest decimal number that hashes to each slot; computed on first use, in some 50 ms."""
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
        prefix: the beginning of all names, without braces.

    Raises:
        ValueError: the prefix is empty or contains a brace.

    Attributes:
        slots: the slots of the proxy's cluster node; None for a server that is not a cluster node.
        index: the name of the index, in each database of a server without slots.
        owed: the name of a hash with a note for each removed member whose events are still to be sent.
    """

    def __init__(self, prefix: bytes) -> None:
        if not prefix or b"{" in prefix or b"}" in prefix:
            raise ValueError("the prefix must not be empty and must not contain { or }")
        self.prefix = prefix
        self.slots: Slots | None = None
        self.events = prefix + b"events"  # scripts derive this name from the index's
        self.owed = prefix + b"owed"  # scripts derive this name from the index's
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

    def with_shadows(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return keys, each followed by its shadow."""
        names = [b""] * (2 * len(keys))
        names[::2] = keys
        if b"}" in b"".join(keys) or b"" in keys:
            names[1::2] = map(self.shadow, keys)
        else:
            beginning = self._key
            names[1::2] = [beginning + key + b"}" for key in keys]
        return names

    def key(self, shadow: bytes) -> bytes | None:
        """Return the key to which the name of a shadow belongs; None if the name is not a shadow's."""
        if shadow.startswith(self._key) and shadow.endswith(b"}"):
            return shadow[len(self._key) : -1]
        if shadow.startswith(self._tagged):
            return shadow[len(self._tagged) :]
        if shadow.startswith(self._slot):
            end = shadow.find(b"}", len(self._slot))
            return shadow[end + 1 :] if end >= 0 else None
        return None

    def index_for(self, key: bytes) -> bytes:
        """Return the name of the index with a key's earliest deadline, for a script that may write to it."""
        slots = self.slots
        if slots is None:
            return self.index
        number = slot(key)
        slots.indexed.add(number)
        return self.index_of(number)

    def index_of_key(self, key: bytes) -> bytes:
        """Return the name of the index with a key's earliest deadline, for a script that only reads it."""
        return self.index if self.slots is None else self.index_of(slot(key))

    def index_of(self, number: int | None) -> bytes:
        """Return the name of a slot's index; None for a server without slots."""
        return self.index if number is None else b"%b%b}index" % (self._in_slot, _tags()[number])

    def slot_of(self, index: bytes) -> int | None:
        """Return the slot to which the name of an index belongs; None if the name is not an index's."""
        if index.startswith(self._in_slot) and index.endswith(b"}index"):
            return slot(index)
        return None

    def involved(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the index, then each key followed by its shadow. All keys must be in one slot."""
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
        """The name of a key or channel for a write that changes nothing; if possible in a slot that is not moving."""
        slots = self.slots
        if slots is None:
            return self.prefix + b"wait"
        number = max(slots.owned - slots.moving, default=slots.first)  # the highest: moves start with the lowest
        return b"%b%b}wait" % (self._in_slot, _tags()[number])

    def declared(self, keys: Iterable[bytes]) -> list[bytes] | None:
        """Return the keys that a script declares to a cluster node: the clients'. None (all) without slots.

        While a slot is moved, the proxy's own keys may be at the other node already. A node would refuse a script that
        declares them; before Redis 7.0 it would redirect the client, to a node that may not have the client's key.
        """
        if self.slots is None:
            return None
        return list(dict.fromkeys(key for key in keys if not key.startswith(self.prefix)))

    def of_one_slot(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the keys that may share a script call with the first key."""
        found = list(keys)
        if self.slots is None or len(found) < 2:
            return found
        number = slot(found[0])
        return [key for key in found if slot(key) == number]

    def is_moving(self, key: bytes) -> bool:
        """Return whether a key's slot is on its way to the cluster node or from it."""
        return self.slots is not None and slot(key) in self.slots.moving

    def by_slot(self, keys: Iterable[bytes]) -> list[list[bytes]]:
        """Return some keys in groups that may share a script call."""
        found = list(keys)
        if self.slots is None or len(found) < 2:
            return [found] if found else []
        groups: dict[int, list[bytes]] = {}
        for key in found:
            groups.setdefault(slot(key), []).append(key)
        return list(groups.values())
