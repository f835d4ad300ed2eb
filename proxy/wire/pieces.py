"""The pieces of a client's stream of replies: bytes, replies that are still to come, and where a wish takes effect.

Its tests: tests/test_guard.py.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias


class Slot:
    """The place, in a client's stream, for the reply to a read that is sent again.

    Attributes:
        size: how many bytes of the reply have been received but not passed on.
        done: whether the reply is complete.
    """

    __slots__ = ("_parts", "done", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0
        self.done = False

    def put(self, part: bytes) -> None:
        """Keep received bytes of the reply."""
        self._parts.append(part)
        self.size += len(part)

    def take(self) -> list[bytes]:
        """Return and clear the kept bytes."""
        parts, self._parts, self.size = self._parts, [], 0
        return parts


class Wish(Enum):
    """What a request says about the replies to later ones."""

    ON = "the client wants all of them"
    OFF = "it wants none"
    SKIP = "it does not want the next one"
    HEARD = "the next one has come, or will not"
    RAN = "it wants all of them if the last reply was of a transaction that has run"
    LISTENS = "nothing, but the next one is to a SUBSCRIBE, so that messages may come"
    ANEW = "it wants all of them if the last reply was of a RESET"
    BEGINS = "nothing, but the next one is to a MULTI: if that is refused, what is to be queued runs at once"


class Opening:
    """A MULTI behind which the client may want all replies again.

    Attributes:
        ends: the position, among the requests behind the MULTI, of the first CLIENT REPLY ON; -1 for none.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends = -1


class Heeded(NamedTuple):
    """The place in a client's stream from which on a wish applies, if the server has permitted the wish.

    Attributes:
        wish: the wish.
        reply: the server's reply to the wish; empty if the server was not asked.
        subscribes: whether the client may be a subscriber in RESP2 from here on, so that an array may be a message.
        opening: the MULTI, if the wish is `BEGINS`.
    """

    wish: Wish
    reply: bytes
    subscribes: bool
    opening: Opening | None = None


Piece: TypeAlias = bytes | Slot | Heeded
