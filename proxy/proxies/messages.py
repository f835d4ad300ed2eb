"""The messages between proxies, as payloads of PUBLISH.

Its tests: tests/test_proxies_protocol.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.wire.request import RequestReader, encode


class Kind(Enum):
    """The kind of a message."""

    JOIN = b"join"
    """The sender has lost trust. To regain it, the sender needs all outstanding prefixes."""
    WELCOME = b"welcome"
    """The sender has sent the joiner everything. From now on it waits for the joiner's acknowledgements."""
    ANNOUNCE = b"announce"
    """These keys are about to get deadlines. The receiver marks them and acknowledges."""
    ACKNOWLEDGE = b"acknowledge"
    """The sender has marked the keys of an announcement."""
    RECALL = b"recall"
    """These keys may get deadlines from requests that have already been sent."""
    LEAVE = b"leave"
    """The sender handles no more requests: do not wait for its acknowledgements."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        kind: the kind of the message.
        sender: the name of the proxy that sends it.
        number: the number of the announcement or join that the message belongs to.
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
"""Maximum size of a sender's name or a number, in bytes."""

_HEAD: Final = re.compile(rb"\*\d{1,4}\r\n")
"""The beginning of an array of fewer than 10,000 elements: a longer message is not from a proxy."""


def unpack(payload: bytes) -> Message:
    """Read a payload.

    Raises:
        ValueError: the payload is not a message.
    """
    if not _HEAD.match(payload):
        raise ValueError("not a message of a proxy")
    reader = RequestReader()  # not hiredis: the payload is untrusted
    reader.feed(payload)
    found = reader.next_request()
    if found is None or not found.header or len(found.arguments) < 3 or reader.held:
        raise ValueError("not a message of a proxy")
    kind, sender, number, *keys = found.arguments
    if kind not in _KINDS or len(sender) > _LONGEST or len(number) > _LONGEST or not number.isdigit():
        raise ValueError("not a message of a proxy")
    return Message(Kind(kind), sender, int(number), tuple(keys))
