"""Turn the one reply to a call into the replies to the requests that it did.

Its tests: tests/test_together.py.

From an array the header line is removed; and an extra element, a number, by which the script says which key took it
long. An error, by which the call failed as a whole, becomes each request's error.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.wire.first_line import FirstLine, StrayReplyError


class Elements(FirstLine):
    """Passes on the reply.

    Args:
        count: how many requests the call is for.
        took_long: is called with the number of a key if the script says so.

    Attributes:
        done: whether what is left of the stream need not pass through here: elements, if the reply is an array.
    """

    def __init__(self, count: int, took_long: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._count = count
        self._took_long = took_long
        self._opened = False  # whether only the extra element is still to come

    def _open(self, line: bytes) -> bytes:
        """Return what the client gets for a line with which the reply begins."""
        self.done = True
        if self._opened and line[:1] == b":":
            self._took_long(int(line[1:]))
            return b""
        if self._opened:
            raise StrayReplyError(line[:100])
        if line == b"*%d\r\n" % self._count:
            return b""
        if line.startswith(b"-"):
            return line * self._count
        if line == b"*%d\r\n" % (self._count + 1):
            self.done, self._opened = False, True
            return b""
        raise StrayReplyError(line[:100])
