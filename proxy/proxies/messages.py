"""What proxies tell each other, as the payload of published messages.

Its tests: tests/test_proxies_protocol.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.wire.request import RequestReader, encode


class Kind(Enum):
    """What a message says."""

    JOIN = b"join"
    """The sender does not trust what it knows, and wants to again: tell it what it has to know."""
    WELCOME = b"welcome"
    """The joiner has been told all that it has to know; from now on others wait for its acknowledgements."""
    ANNOUNCE = b"announce"
    """These keys are about to get deadlines: mark them, and acknowledge."""
    ACKNOWLEDGE = b"acknowledge"
    """The keys of an announcement are marked."""
    RECALL = b"recall"
    """These keys may get deadlines by requests that are on their way already."""
    LEAVE = b"leave"
    """The sender judges no more requests: do not wait for it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        kind: what it says.
        sender: the name of the proxy that sends it.
        number: which announcement, or which join of its receiver's or sender's, it speaks of.
        keys: the covered prefixes, as `Coverage.entries` has them.
    """

    kind: Kind
    sender: bytes
    number: int = 0
    keys: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        """Return the payload."""
        return encode([self.kind.value, self.sender, b"%d" % self.number, *self.keys])


_KINDS: Final = frozenset(kind.value for kind in Kind)
_LONGEST: Final = 32
"""Bytes of a sender's name, and of a number."""

_HEAD: Final = re.compile(rb"\*\d{1,4}\r\n")
"""An array of fewer than 10,000 elements: what would take long to read is none of ours."""


def unpack(payload: bytes) -> Message:
    """Read a payload.

    Raises:
        ValueError: it is none.
    """
    if not _HEAD.match(payload):
        raise ValueError("not a message of a proxy")
    reader = RequestReader()  # not hiredis: anybody may have published this
    reader.feed(payload)
    found = reader.next_request()
    if found is None or not found.header or len(found.arguments) < 3 or reader.held:
        raise ValueError("not a message of a proxy")
    kind, sender, number, *keys = found.arguments
    if kind not in _KINDS or len(sender) > _LONGEST or len(number) > _LONGEST or not number.isdigit():
        raise ValueError("not a message of a proxy")
    return Message(Kind(kind), sender, int(number), tuple(keys))
