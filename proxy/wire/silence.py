"""Drop replies that a client does not want (CLIENT REPLY OFF and SKIP), so that the server need never be silent.

Its tests: tests/test_silence.py.

The proxy sends CLIENT REPLY ON instead of the client's request: the server permits or refuses both on the same terms.
So every request is answered, and the replies show how far the server has got, whichever of them the client wants.
Pushes and messages to a subscriber are passed on, because servers send them in any case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import Final

from proxy.wire.first_line import StrayReplyError
from proxy.wire.pieces import Heeded, Opening, Piece, Wish
from proxy.wire.replies import RepliesAndPushes, whole_replies
from proxy.wire.request import encode

ON: Final = encode([b"CLIENT", b"REPLY", b"ON"])
"""Sent to the server instead of each CLIENT REPLY."""

_MUCH: Final = 16 * 1024
"""Maximum size, in bytes, of a chunk of arrays to process at once."""

_DONE: Final = b"+OK\r\n"
_RESET: Final = b"+RESET\r\n"
_OF_THE_LAST: Final = len(_RESET)
_ANSWERS: Final = (_DONE, b"-")
"""How the reply to a wish begins. Messages to a RESP2 subscriber, or lines of MONITOR, may precede it; these begin
differently."""

_BY_THE_LAST: Final = {
    Wish.RAN: (re.compile(rb"\*[0-9]").match, _DONE),
    Wish.ANEW: (re.compile(rb"\+RESET\r").match, _RESET),
}
"""Wishes that depend on the last reply → a test whether that reply fits, and what the client gets if it does."""

_ANSWERS_OR_MESSAGE: Final = (*_ANSWERS, b"*")

_NOT_OF_WISHES: Final = (b"-MASTERDOWN ", b"-LOADING ")
"""Errors with which a server may refuse an ECHO but never a CLIENT REPLY."""

_MESSAGE: Final = re.compile(rb"\*[34]\r\n\$[0-9]+\r\n(?:[ps]?(?:message|(?:un)?subscribe))\r\n")
"""Matches the beginning of a message, or of a confirmation of a subscription, to a RESP2 subscriber."""

_LONGEST_BEGINNING: Final = 32
"""Number of bytes that is enough to recognise a message to a RESP2 subscriber."""


class Wanted(Enum):
    """The replies that a client wants."""

    ALL = "all"
    NOT_NEXT = "all but the next one"
    NONE = "none"


class Silence:
    """Drops the replies that one client does not want.

    Attributes:
        wanted: the replies that the client wants, at the current place in its stream.
        unanswered: number of wishes that have been sent and have not taken effect yet.
    """

    __slots__ = (
        "_answered",
        "_begun",
        "_find",
        "_framing",
        "_last",
        "_opening",
        "_passes",
        "_subscribes",
        "unanswered",
        "wanted",
    )

    def __init__(self) -> None:
        self.wanted = Wanted.ALL
        self.unanswered = 0
        self._subscribes = False  # whether an array may be a message
        self._framing = RepliesAndPushes()
        self._find: Callable[[bytes], list[bytes]] = _nothing  # splits a chunk of whole replies
        self._begun = b""  # the beginning of a reply that may be a message
        self._last = b""  # the beginning of the last reply that was dropped
        self._passes: bool | None = None  # whether the current reply is a message; None while unknown
        self._opening: Opening | None = None  # the last MULTI, unless it is known to have been accepted
        self._answered = 0  # number of dropped replies, from MULTI's own on

    @property
    def suspected(self) -> bool:
        """Whether the client may not want some replies, now or once the sent wishes take effect."""
        return self.wanted is not _ALL or self.unanswered > 0

    def expect(
        self, wish: Wish, subscribes: Callable[[], bool], *, replies: int, opening: Opening | None = None
    ) -> WishReply:
        """Return the filter for the reply to a wish that is about to be sent; the arguments as in `WishReply`."""
        self.unanswered += 1
        return WishReply(self, wish, subscribes, replies, opening)

    def heed(self, heeded: Heeded) -> bytes:
        """Apply a wish: begin or end dropping replies; return the bytes for the client."""
        wish, reply, subscribes, self._opening = heeded
        self._answered = 0
        self.unanswered -= 1
        if wish is not Wish.ANEW or _BY_THE_LAST[wish][0](self._last):
            self._subscribes = subscribes
        if wish is Wish.HEARD:
            if self.wanted is Wanted.NOT_NEXT:
                self.wanted = _ALL
            return b""
        if wish in (Wish.LISTENS, Wish.BEGINS):
            return b""
        if wish in _BY_THE_LAST:
            fits, said = _BY_THE_LAST[wish]
            if self.wanted is not Wanted.NONE or not fits(self._last):
                return b""
            self.wanted = _ALL
            return said
        if reply != _DONE:
            return self.pass_on(reply)
        if wish is Wish.ON:
            self.wanted = _ALL
            return reply
        if self.wanted is _ALL:
            self._framing, self._begun, self._passes = RepliesAndPushes(), b"", None
            self._find = whole_replies(_MUCH)
        if self.wanted is not Wanted.NONE:
            self.wanted = Wanted.NONE if wish is Wish.OFF else Wanted.NOT_NEXT
        return b""

    def pass_on(self, data: bytes) -> bytes:
        """Take bytes of the stream; return those that the client wants."""
        out: list[bytes] = []
        framing = self._framing
        exactly = self._subscribes or self._opening is not None
        if self.wanted is Wanted.NONE and framing.between and not exactly and data:
            replies = self._find(data)
            if sum(map(len, replies)) == len(data):
                self._last = replies[-1][:_OF_THE_LAST]
                return b""
        try:
            while data and self.wanted is not _ALL:
                most = self._to_the_next_change()
                framing.pushes.clear()
                pieces = framing.cut(data, most)
                for number, (piece, ends) in enumerate(pieces):
                    out.append(piece if number in framing.pushes else self._sift(piece, ends=ends))
                data = framing.rest() if most < math.inf and pieces and pieces[-1][1] else b""
        except StrayReplyError:  # the server does not speak RESP any more, as after SYNC
            self._framing = RepliesAndPushes()
            data = b""
        return b"".join([*out, data])

    def _to_the_next_change(self) -> float:
        """Return after how many replies `wanted` may change; infinite if no change is known."""
        if self.wanted is Wanted.NOT_NEXT:
            return 1
        ends = -1 if self._opening is None else self._opening.ends
        return ends + 1 - self._answered if ends >= self._answered else math.inf

    def _sift(self, piece: bytes, *, ends: bool) -> bytes:
        """Take a piece of a reply; return the bytes that the client wants."""
        piece, self._begun = self._begun + piece, b""
        if self._passes is None:
            may_be = self._subscribes and piece[:1] == b"*"
            if may_be and not ends and len(piece) < _LONGEST_BEGINNING:
                self._begun = piece
                return b""
            self._passes = may_be and _MESSAGE.match(piece) is not None
            if not self._passes:
                self._last = piece[:_OF_THE_LAST]
        passes = self._passes
        if not ends:
            return piece if passes else b""
        self._passes = None
        if passes:
            return piece
        if self.wanted is Wanted.NOT_NEXT:
            self.wanted = _ALL
        return piece if self._opening is not None and self._reopens(self._opening) else b""

    def _reopens(self, opening: Opening) -> bool:
        """Note a whole reply behind a MULTI; return whether it answers a CLIENT REPLY ON that was not queued."""
        place, self._answered = self._answered, self._answered + 1
        refused = self._last.startswith(b"-")
        if place == 0 and not refused:
            self._opening = None
        if place == 0 or place != opening.ends or refused or self.wanted is not Wanted.NONE:
            return False
        self._opening, self.wanted = None, _ALL
        return True


class WishReply:
    """The filter for the reply to a wish.

    Args:
        silence: applies the wish.
        wish: the wish.
        subscribes: called when the replies have come; returns whether the client may be a RESP2 subscriber from then
            on.
        replies: number of replies: 0 if nothing is sent to the server; a second one answers a request of the proxy's
            own.
        opening: the MULTI that follows the wish, if any.

    Attributes:
        done: whether the replies have come.
    """

    __slots__ = (
        "_answers",
        "_framing",
        "_is_other",
        "_opening",
        "_replies",
        "_silence",
        "_subscribes",
        "_wish",
        "done",
    )

    def __init__(
        self,
        silence: Silence,
        wish: Wish,
        subscribes: Callable[[], bool],
        replies: int,
        opening: Opening | None = None,
    ) -> None:
        self.done = False
        self._silence = silence
        self._wish = wish
        self._subscribes = subscribes
        self._replies = replies
        self._opening = opening
        self._answers: list[bytes] = []
        self._is_other = False  # whether the current reply answers no request: a message, or a line of MONITOR
        self._framing = RepliesAndPushes()

    @property
    def asks(self) -> bool:
        """Whether the server is queried."""
        return self._replies > 0

    def abandon(self) -> None:
        """Note that the replies will not come."""
        self._silence.unanswered -= 1

    def pass_on(self, data: bytes, passed: list[Piece]) -> bytes:
        """Take bytes of the stream; return those after the replies.

        Args:
            data: the bytes.
            passed: gets the pieces for the client.
        """
        framing, answers = self._framing, self._answers
        while data and len(answers) < self._replies:
            framing.pushes.clear()
            whole = False
            for number, (piece, ends) in enumerate(framing.cut(data, 1)):
                if number in framing.pushes:
                    passed.append(piece)
                    continue
                whole = ends
                if self._is_other or not piece.startswith(_ANSWERS):
                    passed.append(piece)
                    self._is_other = not ends
                else:
                    answers.append(piece)
            if not whole:
                return b""
            data = framing.rest()
        if len(answers) == self._replies:
            passed.append(Heeded(self._wish, answers[0] if answers else b"", self._subscribes(), self._opening))
            self.done = True
        return data


def may_answer_wish(reply: bytes) -> bool:
    """Return whether a reply may be the first one after the sign that precedes a wish."""
    return reply.startswith(_ANSWERS_OR_MESSAGE) and not reply.startswith(_NOT_OF_WISHES)


def _nothing(_: bytes) -> list[bytes]:
    return []


_ALL = Wanted.ALL
