"""Names of what the proxy keeps in the user's Redis: shadows of keys, the index, the sweeper's lease, rules for events.

The shadow of a key hashes to the key's own cluster slot, as a script may only touch keys of one slot. A slot is given
by the key's hash tag, the text between its first `{` and the first `}` after it, where that is not empty, else by the
whole key (Redis cluster specification, "Hash tags"). So, with P for the prefix:

    key             shadow
    {user1}:cart    Pt:{user1}:cart     the key has a tag: whatever contains the key hashes like it
    cart            Pk:{cart}           the key itself can be a tag
    a}b             Ps:{1x9}a}b         neither: a short tag that hashes to the key's slot

The letter after the prefix keeps the three apart, so a shadow names exactly one key.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache

SLOTS = 16384


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
    """

    def __init__(self, prefix: bytes) -> None:
        if not prefix or b"{" in prefix or b"}" in prefix:
            raise ValueError("the prefix must not be empty and must not contain { or }")
        self.prefix = prefix
        self.index = prefix + b"index"
        self.lease = prefix + b"sweeper"
        self.events = prefix + b"events"  # the scripts know it by the index, whose last word it has in place of "index"
        self._tagged = prefix + b"t:"
        self._key = prefix + b"k:{"
        self._slot = prefix + b"s:{"

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
