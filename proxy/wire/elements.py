"""Turn the reply to a call into replies to the requests that the call replaces.

Its tests: tests/test_together.py.

The header line of an array is dropped, and so is an extra first element: the number of a key that took the script a
long time. An error of the whole call becomes each request's error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from proxy.wire.first_line import FirstLine, StrayReplyError

_OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
_BUSY: Final = b"-BUSY "
_OUT_OF_MEMORY: Final = b"-OOM "
_DIGITS: Final = re.compile(rb"\+-?[0-9]+\r").match
_ABORTED_BY: Final = b"-EXECABORT Transaction discarded because of: "
_ABORTED: Final = b"-EXECABORT Transaction discarded because of previous errors.\r\n"


def of_transaction(count: int, replies: bytes, *, refused: bool, free: Collection[int] = ()) -> bytes:
    """Return the replies to a transaction.

    Args:
        count: how many requests it has.
        replies: the replies to these requests, or the beginning of those replies.
        refused: whether the server would have refused to queue the requests.
        free: the positions of the requests that take no memory.
    """
    if refused and replies.startswith(_BUSY):  # then EXEC itself is refused
        return _OK + replies + _ABORTED_BY + replies[1 : replies.index(b"\n") + 1]
    if refused and free and replies.startswith(_OUT_OF_MEMORY):
        line = replies[: replies.index(b"\n") + 1]
        replies = b"".join([_QUEUED if place in free else line for place in range(count)])
    if refused:
        return _OK + replies + _ABORTED
    return _OK + _QUEUED * count + b"*%d\r\n" % count + replies


def as_counter(reply: bytes) -> bytes:
    """Return a status of digits as the integer for which it stands, and any other reply unchanged."""
    return b":" + reply[1:] if _DIGITS(reply) else reply


class Elements(FirstLine):
    """Passes on the reply to one call, as replies to the client's requests.

    Args:
        count: how many requests the call replaces.
        took_long: called with the number of the key that took the script a long time, if the reply names one.
        transaction: whether MULTI and EXEC around these requests are replaced too.
        free: as in `of_transaction`.
        counts: whether there may be counters among the replies, as statuses; see `as_counter`.

    Attributes:
        done: whether the rest of the stream can bypass this object, including the elements of an array.
    """

    def __init__(
        self,
        count: int,
        took_long: Callable[[int], None] = lambda _: None,
        *,
        transaction: bool = False,
        free: Collection[int] = (),
        counts: bool = False,
    ) -> None:
        super().__init__()
        self._count = count
        self._took_long = took_long
        self._transaction = transaction
        self._free = free
        self._counts = counts
        self._parts = 0  # parts of the array's elements that are still to come, if there may be counters among them
        self._opened = False  # whether only the extra element is still to come

    def _open(self, line: bytes) -> bytes:
        """Return what the client gets for the first line of the reply, or of one of its elements."""
        if self._parts:
            return self._count_part(line)
        self.done = True
        if self._opened and line[:1] == b":":
            self._took_long(int(line[1:]))
            self._opened = False
            self._expect_parts()
            return b""
        if self._opened:
            raise StrayReplyError(line[:100])
        if line.startswith(b"-"):
            line *= self._count
            return of_transaction(self._count, line, refused=True, free=self._free) if self._transaction else line
        if line == b"*%d\r\n" % (self._count + 1):
            self.done, self._opened = False, True
        elif line != b"*%d\r\n" % self._count:
            raise StrayReplyError(line[:100])
        if not self._opened:
            self._expect_parts()
        return of_transaction(self._count, b"", refused=False) if self._transaction else b""

    def _expect_parts(self) -> None:
        if self._counts:
            self.done, self._parts = False, self._count

    def _count_part(self, line: bytes) -> bytes:
        self._follow(line)
        self._parts += self._pending - 1
        self._pending = 0
        self.done = not self._parts  # the rest of the last part can bypass this object
        return as_counter(line)
