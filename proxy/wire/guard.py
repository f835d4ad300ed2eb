"""Handle replies to guarded reads: drop late ones as they arrive, and have the reads sent again.

Its tests: tests/test_guard.py.

In front of the reads goes a request for the next deadline of their keys. If a reply begins before that deadline, no
expired member can be in it, however long the server was busy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from proxy.wire.pattern import ARGUMENT
from proxy.wire.pieces import Piece, Slot
from proxy.wire.replies import RepliesAndPushes, short_arrays, short_replies
from proxy.wire.request import encode

_WRONG_TYPE: Final = b"-WRONGTYPE", b"-ERR The specified keys must contain string"
"""Errors that show that the key holds a collection (the second one is LCS's)."""

_replies_at_once: Final = short_replies()
_arrays_at_once: Final = short_arrays()

_SCORES: Final = re.compile(rb"(?:\$[0-9]+\r\n|,)([^\r\n]+)\r\n")
_NONE, _INFINITE = b"$-1\r\n", b"$3\r\ninf\r\n"


_FIRST: Final = re.compile(rf"\*0\r\n|(?:\*1\r\n)?\*2\r\n{ARGUMENT}(?:\$[0-9]+\r\n|,)[^\r\n]+\r\n".encode(), re.DOTALL)
"""Matches a whole reply to ZRANGE for one member with its score."""


@cache
def _scores_pattern(count: int) -> re.Pattern[bytes]:
    """Return a matcher for a whole reply to ZMSCORE with `count` members."""
    return re.compile(rb"\*%d\r\n(?:\$-1\r\n|\$[0-9]+\r\n[^\r\n]+\r\n|[,_][^\r\n]*\r\n){%d}" % (count, count))


def earliest_of(scores: bytes) -> float:
    """Return the earliest deadline in a reply to ZMSCORE, in Unix ms; minus infinity if it is not such a reply."""
    if scores[:1] != b"*":
        return -math.inf
    if scores.find(b"$") == scores.find(b"\n") + 1:  # RESP2
        return min(map(float, scores.replace(_NONE, _INFINITE).split(b"\r\n")[2::2]), default=math.inf)
    return min(map(float, _SCORES.findall(scores)), default=math.inf)


_OF_LINES: Final = re.compile(rb"[$*~%>=!|]").search
"""Finds the possible beginning of a reply of several lines."""


def _count_at_once(data: bytes) -> int:
    """Return the number of replies in a chunk of only whole short ones; else 0."""
    if data[:1] == b":" and data[-2:] == b"\r\n" and not _OF_LINES(data):
        return data.count(b"\r\n")  # each is a line
    replies = _replies_at_once(data)
    return len(replies if sum(map(len, replies)) == len(data) else _arrays_at_once(data))


@cache
def first_of(index: bytes) -> bytes:
    """Return the request for the earliest deadline in an index."""
    return encode([b"ZRANGE", index, b"0", b"0", b"WITHSCORES"])


def earliest_of_all(first: bytes) -> float:
    """Return the deadline in a reply to ZRANGE for one member with its score, in Unix ms; infinite if there is none."""
    if first[:1] != b"*":
        return -math.inf
    return math.inf if first == b"*0\r\n" else float(first[:-2].rpartition(b"\n")[2].lstrip(b","))


def may_be_late(beginning: bytes) -> bool:
    """Return whether a reply with this beginning may show a due member; an error may reveal that the key exists."""
    return beginning[:1] != b"-" or beginning.startswith(_WRONG_TYPE)


def is_wrong_type(beginning: bytes) -> bool:
    """Return whether the reply is the error for a key that holds a collection; the request has then changed nothing."""
    return beginning.startswith(_WRONG_TYPE)


def is_zero_or_wrong_type(beginning: bytes) -> bool:
    """Like `is_wrong_type`, for a request that returns 0 if the key exists."""
    return beginning == b":0\r\n" or is_wrong_type(beginning)


class Guard:
    """The replies to some requests sent together, after the reply with the earliest deadline.

    Args:
        asked: for how many keys the deadlines were requested; 0 if the earliest of all keys was.
        count: how many requests there are.
        matters: returns, for the number of a request, the function that decides by the beginning of a late reply
            whether that reply matters; None if no late reply does.
        now: returns the latest possible server time, in Unix ms.
        repeat: called with the number of a request to be sent again; returns the place for its reply.
        ended: called when all replies have come, or certainly will not.
        hear: gets the earliest deadline of all, if it was requested.

    Attributes:
        done: whether all replies have come.
        earliest: a reply that begins at or after this time, in Unix ms, is late.
    """

    def __init__(
        self,
        asked: int,
        count: int,
        matters: Callable[[int], Callable[[bytes], bool] | None],
        now: Callable[[], float],
        repeat: Callable[[int], Slot],
        ended: Callable[[], None],
        hear: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.done = False
        self.earliest = math.inf
        self._asked = asked
        self._hear = hear
        self._count = count
        self._matters = matters
        self._now = now
        self._repeat = repeat
        self._ended = ended
        self._framing = RepliesAndPushes()
        self._scores: list[bytes] | None = []
        self._place = 0
        self._begun = False  # whether the current reply has begun
        self._late = False  # whether the current reply is late

    def abandon(self) -> None:
        """Note that the replies will not come."""
        self._ended()

    def _told(self, answer: bytes) -> float:
        if self._asked:
            return earliest_of(answer)
        earliest = earliest_of_all(answer)
        self._hear(earliest)
        return earliest

    def _pass_at_once(self, data: bytes, now: float, passed: list[Piece]) -> bool:
        """Pass whole replies on if none of them is late; return whether that was done."""
        earliest = self.earliest
        if self._scores is not None:
            pattern = _scores_pattern(self._asked) if self._asked else _FIRST
            scores = None if self._scores else pattern.match(data)
            if scores is None:
                return False
            earliest, data = self._told(scores[0]), data[scores.end() :]
        if now >= earliest:
            return False
        count = _count_at_once(data)
        if not 0 < count <= self._count - self._place:
            return False
        self.earliest, self._scores = earliest, None
        passed.append(data)
        self._place += count
        if self._place == self._count:
            self.done = True
            self._ended()
        return True

    def pass_on(self, data: bytes, passed: list[Piece]) -> bytes:
        """Take bytes of the stream; return those after the last of the replies.

        Args:
            data: the bytes.
            passed: gets the pieces for the client.
        """
        framing, now = self._framing, self._now()
        if framing.between and self._pass_at_once(data, now, passed):
            return b""
        left = self._count - self._place + (self._scores is not None)
        framing.pushes.clear()
        pieces = framing.cut(data, left)
        for number, (piece, ends) in enumerate(pieces):
            if number in framing.pushes:
                passed.append(piece)
            elif self._scores is not None:
                self._scores.append(piece)
                if ends:
                    self.earliest = min(self.earliest, self._told(b"".join(self._scores)))
                    self._scores = None
            else:
                if not self._begun:
                    matters = self._matters(self._place) if now >= self.earliest else None
                    self._late = matters is not None and matters(piece)
                    if self._late:
                        passed.append(self._repeat(self._place))
                if not self._late:
                    passed.append(piece)
                self._begun = not ends
                self._place += ends
        if self._place < self._count:
            return b""
        self.done = True
        self._ended()
        return framing.rest()


class Repeated:
    """The reply to a read that was sent again, behind a script that removes due members from its keys.

    Args:
        slot: the place for the reply.
        matters: as in `Guard`.
        now: returns the latest possible server time, in Unix ms.
        repeat: called if the read must be sent again.
        ended: called when the reply has come, or certainly will not.

    Attributes:
        done: whether the reply has come.
        earliest: the reply is late if it begins at or after this time, in Unix ms.
    """

    def __init__(
        self,
        slot: Slot,
        matters: Callable[[bytes], bool],
        now: Callable[[], float],
        repeat: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.done = False
        self.earliest = math.inf
        self._slot = slot
        self._matters = matters
        self._now = now
        self._repeat = repeat
        self._ended = ended
        self._framing = RepliesAndPushes()
        self._begun = self._late = False

    def abandon(self) -> None:
        """Note that the reply will not come."""
        self._slot.done = True
        self._ended()

    def pass_on(self, data: bytes, passed: list[Piece]) -> bytes:
        """Take bytes of the stream; return those after the reply. `passed` gets only pushes."""
        framing = self._framing
        framing.pushes.clear()
        for number, (piece, ends) in enumerate(framing.cut(data, 1)):
            if number in framing.pushes:
                passed.append(piece)
                continue
            if not self._begun:
                self._begun = True
                self._late = self._now() >= self.earliest and self._matters(piece)
                if self._late:
                    self._repeat()
            if not self._late:
                self._slot.put(piece)
            self.done = ends
        if not self.done:
            return b""
        self._slot.done = not self._late
        self._ended()
        return framing.rest()


class Fronted:
    """The replies to some of the client's requests and to the proxy's own in front of them.

    Args:
        takers: for each request in turn, the function that takes its reply; None for a client's request.

    Attributes:
        done: whether all replies have come.
    """

    def __init__(self, takers: Sequence[Callable[[bytes], None] | None]) -> None:
        self.done = False
        self._takers = takers
        self._place = 0
        self._framing = RepliesAndPushes()
        self._own: list[bytes] = []

    def abandon(self) -> None:
        """Note that the replies will not come."""

    def pass_on(self, data: bytes, passed: list[Piece]) -> bytes:
        """Take bytes of the stream; return those after the last of the replies. `passed`: as in `Guard`."""
        framing, takers = self._framing, self._takers
        framing.pushes.clear()
        for number, (piece, ends) in enumerate(framing.cut(data, len(takers) - self._place)):
            take = takers[self._place]
            if number in framing.pushes:
                passed.append(piece)
                continue
            if take is None:
                passed.append(piece)
            else:
                self._own.append(piece)
                if ends:
                    take(b"".join(self._own))
                    self._own.clear()
            self._place += ends
        if self._place < len(takers):
            return b""
        self.done = True
        return framing.rest()
