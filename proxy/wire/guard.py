"""Handle replies to guarded reads: drop late ones as they arrive, and have the reads sent again.

Its tests: tests/test_guard.py.

A request for the next deadline of the reads' keys is sent in front of them. If a reply begins before that deadline, no
expired member can be in it, however long the server was busy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol

from proxy.wire.pattern import ARGUMENT
from proxy.wire.pieces import Piece, Slot, Tally
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
    """Return the earliest deadline in a reply to ZMSCORE, in Unix ms; minus infinity for any other reply."""
    if scores[:1] != b"*":
        return -math.inf
    if scores.find(b"$") == scores.find(b"\n") + 1:  # RESP2
        return min(map(float, scores.replace(_NONE, _INFINITE).split(b"\r\n")[2::2]), default=math.inf)
    return min(map(float, _SCORES.findall(scores)), default=math.inf)


_OF_LINES: Final = re.compile(rb"[$*~%>=!|]").search
"""Finds the possible beginning of a reply of several lines."""


def _count_at_once(data: bytes) -> int:
    """Return the number of replies in a chunk if all are whole and short; else 0."""
    if data[:1] == b":" and data[-2:] == b"\r\n" and not _OF_LINES(data):
        return data.count(b"\r\n")  # each reply is a line
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


class Line(Protocol):
    """The client's replies that wait behind one that is still to come. While they wait they can become late."""

    @property
    def tally(self) -> Tally:
        """Counts the memory that they take."""

    @property
    def waits(self) -> bool:
        """Whether a reply that comes now waits."""

    def join(self) -> None:
        """Note that a reply waits."""

    def leave(self) -> None:
        """Note that it waits no more."""


class Guard:
    """Checks the replies to reads that were sent together, behind a request for the earliest deadline of their keys.

    Args:
        asked: number of keys whose deadlines were requested; 0 if the earliest deadline of all keys was requested.
        count: how many requests there are.
        matters: called with the number of a request; returns a function that decides, by the beginning of a late reply,
            whether its lateness matters; None if it never matters.
        now: returns the latest possible server time, in Unix ms.
        repeat: called with the number of a request to be sent again, and the place for its reply.
        ended: called when all replies have come, or certainly will not.
        line: the replies that wait.
        hear: gets the earliest deadline of all keys, if it was requested.

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
        repeat: Callable[[int, Slot], None],
        ended: Callable[[], None],
        line: Line,
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
        self._line = line
        self._slot: Slot | None = None  # the place of the current reply, if the reply waits

    def abandon(self) -> None:
        """Note that the replies will not come."""
        if self._slot is not None:
            self._slot.done = True
        self._ended()

    def _told(self, answer: bytes) -> float:
        if self._asked:
            return earliest_of(answer)
        earliest = earliest_of_all(answer)
        self._hear(earliest)
        return earliest

    def _pass_at_once(self, data: bytes, now: float, passed: list[Piece]) -> bool:
        """Pass whole replies on, unless one may be late; return whether they were passed on."""
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
        framing, now, waits = self._framing, self._now(), self._line.waits
        if framing.between and not waits and self._pass_at_once(data, now, passed):
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
                    self._late = False
                    if now >= self.earliest or (waits and self.earliest < math.inf):
                        waits = self._begin(piece, passed, late=now >= self.earliest) or waits
                if self._slot is not None:
                    self._slot.put(piece)
                elif not self._late:
                    passed.append(piece)
                self._begun = not ends
                if ends and self._slot is not None:
                    self._slot.end()
                    self._slot = None
                self._place += ends
        if self._place < self._count:
            return b""
        self.done = True
        self._ended()
        return framing.rest()

    def _begin(self, piece: bytes, passed: list[Piece], *, late: bool) -> bool:
        """Give the current reply a slot if it is late or may become late while it waits; return whether it has one."""
        matters = self._matters(self._place)
        if matters is None or not matters(piece):
            return False
        slot = Slot(self._line.tally)
        passed.append(slot)
        self._late = late
        if late:
            self._repeat(self._place, slot)
        else:
            self._line.join()
            slot.expect(self, self._place)
            self._slot = slot
        return True

    # As `Keeper`.

    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self._now() >= self.earliest

    def repeat(self, place: int, slot: Slot) -> None:
        """Have the read with this number sent again."""
        self._repeat(place, slot)

    def passed(self) -> None:
        """Note that a reply does not wait any more."""
        self._line.leave()


class Repeated:
    """Checks the reply to a read that was sent again, behind a script that removes due members from its keys.

    Args:
        slot: the place for the reply.
        matters: as in `Guard`.
        now: returns the latest possible server time, in Unix ms.
        repeat: called with the slot if the read must be sent again.
        ended: called when the reply has come, or certainly will not.
        line: the replies that wait.

    Attributes:
        done: whether the reply has come.
        earliest: the reply is late if it begins at or after this time, in Unix ms.
    """

    def __init__(
        self,
        slot: Slot,
        matters: Callable[[bytes], bool],
        now: Callable[[], float],
        repeat: Callable[[Slot], None],
        ended: Callable[[], None],
        line: Line,
    ) -> None:
        self.done = False
        self.earliest = math.inf
        self._slot = slot
        self._matters = matters
        self._now = now
        self._repeat = repeat
        self._ended = ended
        self._framing = RepliesAndPushes()
        self._line = line
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
                self._begin(piece)
            if not self._late:
                self._slot.put(piece)
            self.done = ends
        if not self.done:
            return b""
        if not self._late:
            self._slot.end()
        self._ended()
        return framing.rest()

    def _begin(self, piece: bytes) -> None:
        matters = self._matters(piece)
        self._late = matters and self.is_late()
        if self._late:
            self._repeat(self._slot)
        elif matters:
            self._line.join()
            self._slot.expect(self)

    # As `Keeper`.

    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self._now() >= self.earliest

    def repeat(self, _place: int, slot: Slot) -> None:
        """Have the read sent once more."""
        self._repeat(slot)

    def passed(self) -> None:
        """Note that the reply does not wait any more."""
        self._line.leave()


class Fronted:
    """Separates replies to the proxy's own requests from the replies to the client's requests behind them.

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
