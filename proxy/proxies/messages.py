"""What proxies tell each other, as the payload of published messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import hiredis

from proxy.wire.request import encode


class Kind(Enum):
    """What a message says."""

    JOIN = b"join"
    """The sender does not trust what it knows, and wants to again: tell it what it has to know."""
    WELCOME = b"welcome"
    """Everything that the sender of the join has to know has been told; it is waited for from now on."""
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
        keys: the keys that it names.
    """

    kind: Kind
    sender: bytes
    number: int = 0
    keys: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        """Return the payload."""
        return encode([self.kind.value, self.sender, b"%d" % self.number, *self.keys])


def unpack(payload: bytes) -> Message:
    """Read a payload.

    Raises:
        ValueError: it is none.
    """
    reader = hiredis.Reader()
    reader.feed(payload)
    try:
        words = reader.gets()
    except hiredis.ProtocolError as error:
        raise ValueError(str(error)) from error
    if not isinstance(words, list) or len(words) < 3 or set(map(type, words)) != {bytes}:
        raise ValueError("not a message of a proxy")
    return Message(Kind(words[0]), words[1], int(words[2]), tuple(words[3:]))
