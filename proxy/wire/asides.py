"""Remove replies to the proxy's own requests from a transaction's, and split a call's reply among client requests.

Its tests: tests/test_together.py.

After MULTI no reply can carry a token, so replies are counted, starting at a sign in front of MULTI. The stream may be
split anywhere. Only a short incomplete line and a reply that is being amended are held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from proxy.wire.first_line import StrayReplyError
from proxy.wire.leaves import LEAST, leaves_at_once

_QUEUED: Final = b"+QUEUED\r\n"
_SIZED: Final = b"$=!"
_CHILDREN: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}

LONGEST_LINE: Final = 64 * 1024
"""How much of an incomplete line to keep, in bytes: a script may return a status of any length."""


class Whose(Enum):
    """The owner of a queued request."""

    CLIENT = "the client's: it gets the reply"
    ASIDE = "the proxy's own: its reply is dropped; if it was refused, the client's next request gets the error"
    TOGETHER = "several of the client's, as one call: the proxy makes a reply to each from the reply to the call"
    AMENDED = "the client's: a function of the proxy amends the reply to it, which is an element of EXEC's reply"
    EXEC = "the client's EXEC: the elements of its reply that answer the proxy's own requests are dropped"


class Call(NamedTuple):
    """A call that replaces several requests of the client; its reply has the form that `Elements` describes.

    Attributes:
        requests: how many requests it replaces.
        took_long: called with the number of the key that took the script a long time, if the reply names one.
    """

    requests: int
    took_long: Callable[[int], None]


class Asides:
    """The replies of one transaction, from MULTI's to EXEC's.

    Attributes:
        any: whether any reply must be changed or left out.
        done: whether the following replies can bypass this object.
        shut: whether a request was sent whose number of replies is unknown; then no more replies can be taken out.
    """

    def __init__(self) -> None:
        self.any = False
        self.done = False
        self.shut = False
        self._closed = False  # whether no more requests will be noted
        self._coming: deque[Whose] = deque()
        self._queued = 0  # requests that the server has queued
        self._places: set[int] = set()  # positions of the proxy's own requests among the queued ones
        self._amending: deque[Callable[[bytes], bytes]] = deque()  # functions for requests not yet answered
        self._amended: dict[int, Callable[[bytes], bytes]] = {}  # functions for queued requests, by position
        self._together: deque[Call] = deque()  # calls not yet answered
        self._calls: dict[int, Call] = {}  # queued calls, by position
        self._opened: Call | None = None  # the call whose extra element is still to come
        self._amend_now: Callable[[bytes], bytes] = bytes
        self._whole: list[bytes] | None = None  # the received part of the element to amend
        self._refusal = b""  # the error that refused the proxy's own request; the client's next request gets it
        self._begun = b""  # an incomplete line
        self._long = False  # whether the beginning of a long line has been processed
        self._body = 0  # bytes still to come of a string
        self._pending = 0  # parts still to come of the current reply or element
        self._drop = False  # whether to drop the current reply or element
        self._elements = 0  # elements of EXEC's reply still to come
        self._place = 0  # position of the next element

    def note(self, kind: Whose) -> None:
        """Note that a client's request with one reply is put into the stream."""
        self._coming.append(kind)

    def precede(self) -> None:
        """Note that a request of the proxy's own is put in front of the last request noted."""
        self._coming.insert(len(self._coming) - 1, Whose.ASIDE)
        self.any = True

    def amend(self, amend: Callable[[bytes], bytes]) -> None:
        """Have a function amend the reply to the last request noted."""
        self._coming[-1] = Whose.AMENDED
        self._amending.append(amend)
        self.any = True

    def put_together(self, call: Call) -> None:
        """Note that one call is put into the stream instead of several client requests."""
        self._coming.append(Whose.TOGETHER)
        self._together.append(call)
        self.any = True

    def close(self) -> None:
        """Note that the transaction has ended with the last request noted."""
        self._closed = True
        self.done = self.done or not self.any

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream.

        Returns:
            The bytes for the client, and those after the last reply of the transaction.

        Raises:
            StrayReplyError: a call returned an impossible reply.
        """
        data, self._begun = self._begun + data, b""
        passed: list[bytes] = []
        position = singly = 0
        while position < len(data) and not self.done:
            if self._body:
                piece = data[position : position + self._body]
                self._body -= len(piece)
            elif (
                self._pending > LEAST
                and not (singly or self._long or self._opened)
                and (run := self._run(data, position))
            ):
                piece = run
            else:
                # If there was no run, one of the next few parts prevents it: take these one by one, without looking for
                # a run at each.
                singly = (singly or LEAST) - 1
                end = data.find(b"\r\n", position) + 2
                if end < 2 and not self._long and len(data) - position <= LONGEST_LINE:
                    self._begun = data[position:]
                    position = len(data)
                    break
                piece = data[position:end] if end >= 2 else data[position:].removesuffix(b"\r")
                position += len(piece)
                if not self._long:
                    self._take(piece, passed)
                else:
                    self._pass(piece, passed)
                if end < 2 and not self.done:
                    self._begun, self._long = data[position:], True
                    position = len(data)
                    break
                self._long = False
                self._end_part(passed)
                continue
            position += len(piece)
            self._pass(piece, passed)
            self._end_part(passed)
        return b"".join(passed), data[position:]

    def _run(self, data: bytes, position: int) -> bytes:
        """Return the parts that can be processed at once, excluding the last pending one."""
        run = leaves_at_once(data, position, self._pending)
        if run is None:
            return b""
        count, end = run
        self._pending -= count
        return data[position:end]

    def _pass(self, piece: bytes, passed: list[bytes]) -> None:
        """Pass on a part of a reply if the client gets it now."""
        if self._whole is not None:
            self._whole.append(piece)
        elif not self._drop:
            passed.append(piece)

    def _take(self, line: bytes, passed: list[bytes]) -> None:
        """Process a line, or the beginning of a long one. The line is a reply, or begins a reply or a part of one."""
        mark, rest = line[:1], line[1:-2]
        if self._opened is not None:
            self._opened.took_long(int(rest))
            self._opened = None
            return
        if not self._pending:
            self._pending = 1
            instead = self._begin(mark, line)
            if instead is not None:
                passed.append(instead)
                self._pending -= 1
                self._drop = self._pending == 0  # drop the rest of a long line
                return
        self._pending -= 1
        count = int(rest) if (mark in _SIZED or mark in _CHILDREN) and rest.lstrip(b"-").isdigit() else 0
        if mark in _SIZED:
            self._body = count + 2 if count >= 0 else 0
        elif mark in _CHILDREN:
            self._pending += _CHILDREN[mark] * max(count, 0) + (mark == b"|")
        self._pass(line, passed)

    def _end_part(self, passed: list[bytes]) -> None:
        if self._whole is not None and not (self._body or self._pending):
            passed.append(self._amend_now(b"".join(self._whole)))
            self._whole = None
        if self._closed and not (self._body or self._pending or self._elements or self._coming):
            self.done = True

    def _begin(self, mark: bytes, line: bytes) -> bytes | None:
        """Decide how to treat the reply or element that begins with a line.

        Returns:
            The bytes for the client instead of the line; None if the line is treated as usual.
        """
        self._drop = False
        if mark == b">":
            return None  # a push between two replies
        if self._elements:
            self._drop = self._place in self._places
            amend = self._amended.get(self._place)
            if amend is not None:
                self._whole, self._amend_now = [], amend
            call = self._calls.get(self._place)
            self._place += 1
            self._elements -= 1
            return None if call is None else self._spread(call, line)
        kind = self._coming.popleft() if self._coming else Whose.CLIENT
        if kind is Whose.EXEC:
            concerned = self._places | self._amended.keys() | self._calls.keys()
            if not concerned or line != b"*%d\r\n" % self._queued:
                self.done = True  # EXEC was refused, or failed because of a watched key
                return line
            self._elements = max(concerned) + 1  # the elements after these stay unchanged
            more = sum(call.requests - 1 for call in self._calls.values())
            return b"*%d\r\n" % (self._queued - len(self._places) + more)
        if kind is Whose.ASIDE:
            self._drop = True
            if line == _QUEUED:
                self._places.add(self._queued)
            elif mark == b"-" and not self._refusal:
                self._refusal = line.removesuffix(b"\r\n") + b"\r\n"
        if kind is Whose.AMENDED:
            amend = self._amending.popleft()
            if line != _QUEUED:
                self._whole, self._amend_now = [], amend  # the request was refused, or no transaction is open
            else:
                self._amended[self._queued] = amend
        call = self._together.popleft() if kind is Whose.TOGETHER else None
        if call is not None and line == _QUEUED:
            self._calls[self._queued] = call
        if call is not None and mark not in b"+-":  # no transaction is open, so the server has run the call
            self._refusal = b""
            return self._spread(call, line)
        refusal = b""
        if kind is not Whose.ASIDE:
            refusal, self._refusal = self._refusal, b""
        self._queued += line == _QUEUED
        refused = bool(refusal) and mark == b"+"
        if call is not None:  # a line for each request: QUEUED, or the error that it would have got
            return (refusal if refused else line) * call.requests
        return refusal if refused else None

    def _spread(self, call: Call, line: bytes) -> bytes:
        """Begin the reply to a call for several requests: return an error once for each, otherwise nothing yet."""
        if line[:1] == b"-":
            return line * call.requests
        size = int(line[1:]) if line[:1] == b"*" else 0
        if size not in (call.requests, call.requests + 1):
            raise StrayReplyError(line[:100])
        self._pending = 1 + call.requests
        if size > call.requests:
            self._opened = call
        return b""
