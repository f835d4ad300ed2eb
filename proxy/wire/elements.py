"""Turn the reply to a call into the replies to the requests that it replaces.

Its tests: tests/test_together.py.

An array loses its header line, and an extra element: the number of a key that took the script long. An error of the
whole call becomes each request's error.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.wire.first_line import FirstLine, StrayReplyError


class Elements(FirstLine):
    """Passes on the reply to one call, as replies to the client's requests.

    Args:
        count: how many requests the call replaces.
        took_long: called with the number of a key if the reply names one.

    Attributes:
        done: whether the rest of the stream can bypass this object, including the elements of an array.
    """

    def __init__(self, count: int, took_long: Callable[[int], None] = lambda _: None) -> None:
        super().__init__()
        self._count = count
        self._took_long = took_long
        self._opened = False  # whether only the extra element is still to come

    def _open(self, line: bytes) -> bytes:
        """Return the bytes for the client for the reply's first line."""
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
