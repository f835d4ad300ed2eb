"""Find an error line in a stream of replies and replace it, without framing the replies.

The line is the server's answer to a command whose name is a fresh random token, so it stands exactly where the reply to
that request belongs, and its text stands nowhere else.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from proxy.wire.replies import Replies
from proxy.wire.request import encode

_BEFORE: Final = (b"-ERR unknown command '", b"-ERR unknown command `", b"-ERR Syntax error in HELLO option '")
"""What stands before the token: in Redis from 7.0 and in Valkey; in Redis 6.2; behind a HELLO, everywhere."""


_LINE: Final = re.compile(rb"-ERR (?:unknown command ['`]|Syntax error in HELLO option ')([0-9a-f]{32})")

CROWD: Final = 4096
"""Replies outstanding from which on no more requests should be taken, so that what is remembered stays bounded."""


class Passage(Protocol):
    """What some of the replies pass through."""

    done: bool
    """Whether no more replies need pass through."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream; return those for the client, and those that came behind what passes through."""


class ReplySubstitution:
    """The replies to replace on one connection.

    Attributes:
        outstanding: whether there are any.
        trailed: whether something has come behind the last of them, in the same chunk.
        silenced: whether the client has asked for no replies (CLIENT REPLY OFF): then those outstanding may never come.
    """

    def __init__(self) -> None:
        self.outstanding = self.trailed = False
        self._expected: deque[tuple[bytes, bytes]] = deque()
        self._places: dict[bytes, int] = {}  # token -> its number; the first expected one has the number `_settled`
        self._settled = 0
        self._held = b""
        self._begins: set[bytes] = set()  # tokens in front of what is not for the client
        self._hears: dict[bytes, Callable[[bytes], bytes]] = {}  # token behind it: who takes it
        self._aside: list[bytes] | None = None
        self._framing: Replies  # of what is taken aside
        self._pushes: list[bytes] = []  # that came in between
        self._found: dict[bytes, Callable[[], None]] = {}  # token: whom to call when its line has come
        self._opens: dict[bytes, Passage] = {}  # token in front of some requests: what their replies pass through
        self._passage: Passage | None = None
        self.silenced = False

    @property
    def active(self) -> bool:
        """Whether the stream need pass through `receive`."""
        return self.outstanding or self._passage is not None

    @property
    def crowded(self) -> bool:
        """Whether so many replies are outstanding that no more should be asked for."""
        return len(self._expected) >= CROWD and not self.silenced

    def expect(self, reply: bytes, *, by_greeting: bool = False, found: Callable[[], None] | None = None) -> bytes:
        """Replace the answer to a request that is about to be sent.

        Args:
            reply: the bytes that the client is to get, may be empty.
            by_greeting: whether to ask by a HELLO with an option that there is not, which changes nothing and is
                answered before a login too: some servers tell strangers nothing. Not in a transaction.
            found: is called when the answer comes; not when a later one shows that it never will.

        Returns:
            The request to send: a command that the server does not know, and that spoils an open transaction.
        """
        if self.silenced and len(self._expected) >= CROWD:
            self._settle(1)
        token = secrets.token_hex(16).encode()
        self._places[token] = self._settled + len(self._expected)
        self._expected.append((token, reply))
        if found is not None:
            self._found[token] = found
        self.outstanding = True
        return encode([b"HELLO", b"2", token] if by_greeting else [token])

    def enclose(self, request: bytes, hear: Callable[[bytes], bytes]) -> bytes:
        """Have the reply to a request of the proxy's own taken out of the stream.

        Args:
            request: the request.
            hear: gets the bytes between the replies of the requests before and behind it, without push messages, and
                returns those of them that are for the client after all, such as what a RESP2 subscriber is told.

        Returns:
            The requests to send.
        """
        before, behind = self.expect(b""), self.expect(b"")
        first, second = self._expected[-2][0], self._expected[-1][0]
        self._begins.add(first)
        self._hears[second] = hear
        return before + request + behind

    def open(self, passage: Passage, *, found: Callable[[], None] | None = None) -> bytes:
        """Have the replies to what is sent next pass through something, until it is done.

        Args:
            passage: what they pass through.
            found: is called when the first of them is to come next, as of `expect`.

        Returns:
            The request to send in front of it.
        """
        request = self.expect(b"", found=found)
        self._opens[self._expected[-1][0]] = passage
        return request

    def _pass(self, data: bytes, passed: list[bytes]) -> None:
        """Pass bytes on, except for what is taken aside."""
        if not data:
            return
        if self._aside is not None:
            # The request may wait for long in the server: what comes unasked meanwhile is not to wait here.
            self._aside.extend(piece for piece, _ in self._framing.cut(data))
            passed += self._pushes
            self._pushes.clear()
            return
        if self._passage is not None:
            kept, data = self._passage.receive(data)
            passed.append(kept)
            if self._passage.done:
                self._passage = None
        passed.append(data)

    def _hear(self, token: bytes) -> bytes:
        """Begin or end taking bytes out of the stream, if the token says so; return those that are for the client."""
        if token in self._begins:
            self._begins.remove(token)
            self._aside = []
            self._framing = Replies(self._pushes.append)
        hear = self._hears.pop(token, None)
        if hear is None:
            return b""
        said, self._aside = b"".join(self._aside or ()), None
        return hear(said)

    def receive(self, data: bytes) -> bytes:
        """Pass bytes of the stream on, with replies replaced.

        A token that is found settles those expected before it as well: under CLIENT REPLY OFF their lines never come.

        Returns:
            The bytes for the client. The beginning of a line that may be one of ours is held back.
        """
        stream = self._held + data
        self._held = b""
        passed: list[bytes] = []
        position = 0
        while self._expected:
            line = self._find(stream, position)
            if line is None:
                keep = self._possible_begin(stream, position)
                self._pass(stream[position:keep], passed)
                self._held = stream[keep:]
                return b"".join(passed)
            begin, end, token = line
            if end < 0:
                self._pass(stream[position:begin], passed)
                self._held = stream[begin:]
                return b"".join(passed)
            self._pass(stream[position:begin], passed)
            place = self._places[token] - self._settled
            if (found := self._found.pop(token, None)) is not None:
                found()
            reply = self._expected[place][1]
            opens = self._opens.pop(token, None) if self._opens else None
            passed.append(self._settle(place + 1))
            self._pass(reply, passed)
            if opens is not None:
                self._passage = opens
            position = end
        self.outstanding = False
        self.trailed = position < len(stream)
        self._pass(stream[position:], passed)
        return b"".join(passed)

    def _settle(self, count: int) -> bytes:
        """Note that so many tokens have been found, or will not come; return what is for the client after all."""
        passed = b""
        for _ in range(count):
            token, _reply = self._expected.popleft()
            del self._places[token]
            self._found.pop(token, None)
            if self._opens:
                self._opens.pop(token, None)
            passed += self._hear(token)
        self._settled += count
        return passed

    def _find(self, stream: bytes, position: int) -> tuple[int, int, bytes] | None:
        """Find the first line of ours: where it begins and ends (-1: not yet), and its token."""
        for line in _LINE.finditer(stream, position):
            if line[1] in self._places:
                end = stream.find(b"\r\n", line.end())
                return line.start(), end + 2 if end >= 0 else -1, line[1]
        return None

    def _possible_begin(self, stream: bytes, position: int) -> int:
        """Return where a line of ours may begin whose token is not yet complete, or the end of the stream."""
        begin = stream.find(b"-", max(position, len(stream) - len(_BEFORE[-1]) - 31))
        while begin >= 0:
            tail = stream[begin:]
            for before in _BEFORE:
                head = tail[: len(before)]
                if before.startswith(head) and _HEX.fullmatch(tail, len(head)):
                    return begin
            begin = stream.find(b"-", begin + 1)
        return len(stream)


class LoginEvidence:
    """Watches the replies of a server that wants a password for the first that only a logged-in client gets.

    Before that there are only error lines, and the line that answers RESET.
    """

    def __init__(self) -> None:
        self._line = b""  # the beginning of an incomplete line, as much of it as matters

    def receive(self, data: bytes) -> bool:
        """Take bytes of the stream; return whether they show that the client is logged in."""
        lines = (self._line + data).split(b"\r\n")
        if any(line and not _REFUSAL.match(line) for line in lines[:-1]):
            return True
        # Of an error line that goes on, keep only what identifies it.
        self._line = lines[-1][:8] + (b"\r" if lines[-1][8:].endswith(b"\r") else b"")
        return bool(self._line) and not _REFUSAL.match(self._line) and not b"+RESET".startswith(self._line)


_HEX: Final = re.compile(rb"[0-9a-f]*")
_REFUSAL: Final = re.compile(rb"-|\+RESET")
