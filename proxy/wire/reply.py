"""Finds an error line in a stream of replies and puts another reply in its place, without framing the replies.

The line is the server's answer to a command whose name is a fresh random token, so it stands exactly where the reply to
that request belongs, and its text stands nowhere else.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Final

from proxy.wire.request import encode

_BEFORE: Final = (b"-ERR unknown command '", b"-ERR unknown command `")
"""What stands before the name: Redis from 7.0 and Valkey, Redis 6.2."""


class ReplySubstitution:
    """The replies that are to be put in place on one connection.

    `outstanding` is true while there are any: only then need the stream pass through `receive`.
    """

    def __init__(self) -> None:
        self.outstanding = False
        self._expected: deque[tuple[bytes, bytes]] = deque()
        self._held = b""

    def expect(self, reply: bytes) -> bytes:
        """Have a reply put in place of the answer to a request that is to be sent now.

        Args:
            reply: the bytes that the client is to get, may be empty.

        Returns:
            The request to send: a command that the server does not know, and that spoils an open transaction.
        """
        token = secrets.token_hex(16).encode()
        self._expected.append((token, reply))
        self.outstanding = True
        return encode([token])

    def receive(self, data: bytes) -> bytes:
        """Pass bytes of the stream on, with replies put in place.

        A token that is found settles those expected before it as well: under CLIENT REPLY OFF their lines never come.

        Returns:
            The bytes for the client. The beginning of a line that may be one of ours is held back.
        """
        stream = self._held + data
        self._held = b""
        passed: list[bytes] = []
        position = 0
        while self._expected:
            found = self._find(stream, position)
            if found is None:
                keep = self._possible_begin(stream, position)
                passed.append(stream[position:keep])
                self._held = stream[keep:]
                return b"".join(passed)
            begin, end, place = found
            if end < 0:
                passed.append(stream[position:begin])
                self._held = stream[begin:]
                return b"".join(passed)
            passed += (stream[position:begin], self._expected[place][1])
            for _ in range(place + 1):
                self._expected.popleft()
            position = end
        self.outstanding = False
        passed.append(stream[position:])
        return b"".join(passed)

    def _find(self, stream: bytes, position: int) -> tuple[int, int, int] | None:
        """Find the first line of ours: where it begins and ends (-1: not yet), and which one expected it is."""
        if not any(before in stream for before in _BEFORE):
            return None
        for place, (token, _) in enumerate(self._expected):
            at = stream.find(token, position)
            if at < 0:
                continue
            begin = at - len(_BEFORE[0])
            if begin >= position and stream.startswith(_BEFORE, begin):
                end = stream.find(b"\r\n", at)
                return begin, end + 2 if end >= 0 else -1, place
        return None

    def _possible_begin(self, stream: bytes, position: int) -> int:
        """Return where a line of ours may begin whose token is not yet complete, or the end of the stream."""
        token = self._expected[0][0]
        length = len(_BEFORE[0]) + len(token)
        begin = stream.find(b"-", max(position, len(stream) - length + 1))
        while begin >= 0:
            tail = stream[begin:]
            head = tail[: len(_BEFORE[0])]
            if any(before.startswith(head) for before in _BEFORE) and any(
                expected.startswith(tail[len(_BEFORE[0]) :]) for expected, _ in self._expected
            ):
                return begin
            begin = stream.find(b"-", begin + 1)
        return len(stream)
