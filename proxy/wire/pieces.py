"""The pieces of a client's stream of replies: bytes, replies that are still to come, and where a wish takes effect.

Its tests: tests/test_guard.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeAlias

SLOT_SIZE: Final = 600
"""About how many bytes of memory a slot takes, including its share of what is kept to send the read again."""


class Tally:
    """Counts the memory that a client's slots take.

    Attributes:
        size: about how many bytes.
    """

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Keeper(Protocol):
    """Decides whether replies have become late while they waited behind other replies."""

    def is_late(self) -> bool:
        """Return whether it is now too late to pass the replies on."""

    def repeat(self, place: int, slot: Slot) -> None:
        """Have a read sent again, because its reply is late; the new reply goes to the slot.

        `place`: the place of the late reply among the keeper's replies.
        """

    def passed(self) -> None:
        """Note that one of the replies no longer waits: it was passed on, or was late and is dropped."""


class Slot:
    """The place, in a client's stream, for a reply that the client gets later: it is still to come, or it waits.

    Args:
        tally: counts the memory that the client's slots take.

    Attributes:
        done: whether the reply is complete.
    """

    __slots__ = ("_begun", "_keeper", "_parts", "_place", "_size", "_stale", "_tally", "done")

    def __init__(self, tally: Tally) -> None:
        self._parts: list[bytes] = []
        self._begun = False  # whether the client has got some of the reply
        self._stale = False  # whether the reply that is arriving has become late
        self._keeper: Keeper | None = None
        self._place = 0
        self._tally = tally
        self._size = SLOT_SIZE  # what the tally has counted
        tally.size += SLOT_SIZE
        self.done = False

    def expect(self, keeper: Keeper, place: int = 0) -> None:
        """Note the beginning of a reply that can become late while it waits behind other replies.

        Args:
            keeper: decides about it.
            place: its place among the keeper's replies.
        """
        self._keeper, self._place = keeper, place

    def forget(self) -> None:
        """Drop the reference to the keeper, which is part of a reference cycle."""
        self._keeper = None

    def put(self, part: bytes) -> None:
        """Keep received bytes of the reply."""
        if not self._stale:
            self._parts.append(part)
            self._size += len(part)
            self._tally.size += len(part)

    def end(self) -> None:
        """Note that the reply has come completely."""
        if not self._stale:
            self.done = True
            return
        keeper = self._keeper
        assert keeper is not None  # without a keeper no reply becomes late
        self._stale = self.done = False
        self.forget()
        keeper.repeat(self._place, self)
        keeper.passed()

    def take(self) -> list[bytes]:
        """Return and clear the kept bytes, now that the client has got all earlier replies; return nothing of a late
        reply."""
        parts, self._parts, keeper = self._parts, [], self._keeper
        self._count(0 if self.done else SLOT_SIZE)
        if self._begun or not (parts or self.done):
            return parts
        if parts and keeper is not None and keeper.is_late():
            self._stale = True
            if self.done:
                self._count(SLOT_SIZE)
                self.end()
            return []
        self._begun = True
        if keeper is not None:
            keeper.passed()
            self.forget()
        return parts

    def _count(self, size: int) -> None:
        self._tally.size += size - self._size
        self._size = size


class Wish(Enum):
    """How a request changes which later replies the client wants."""

    ON = "the client wants all of them"
    OFF = "it wants none"
    SKIP = "it does not want the next one"
    HEARD = "the reply that SKIP concerned has come, or will not: SKIP is over"
    RAN = "it wants all of them if the last reply was to the EXEC of a transaction that has run"
    LISTENS = "no change, but the next reply is to a SUBSCRIBE: from then on messages may come"
    ANEW = "it wants all of them if the last reply was to a RESET"
    BEGINS = "no change, but the next reply is to a MULTI: if it is refused, the requests behind it run at once"


class Opening:
    """A MULTI after which requests may make the client want all replies again.

    Attributes:
        ends: the position, among the requests behind the MULTI, of the first CLIENT REPLY ON; -1 for none.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends = -1


class Heeded(NamedTuple):
    """The place in a client's stream from which a wish applies, if the server has permitted the wish.

    Attributes:
        wish: the wish.
        reply: the server's reply to the wish; empty if the server was not queried.
        subscribes: whether the client may be a subscriber in RESP2 from here on, so that an array may be a message.
        opening: the MULTI, if the wish is `BEGINS`.
    """

    wish: Wish
    reply: bytes
    subscribes: bool
    opening: Opening | None = None


Piece: TypeAlias = bytes | Slot | Heeded
