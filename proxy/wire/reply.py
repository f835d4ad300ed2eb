"""Find signs in a stream of replies and replace them, without framing the replies.

A sign is the server's answer to a fresh random token, so it stands exactly where the reply to that request belongs, and
its text stands nowhere else. A silent sign is asked for by ECHO, and leaves no error behind at the server. A loud one
is asked for by a command whose name is the token: that is answered in every state of a server and of a connection.

The server may refuse an ECHO, while a script keeps it busy, say. What looks like that is held back until the sign has
come after all, or a loud one behind it: then the refusal is found, and taken for the sign.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from proxy.wire.frames import frames
from proxy.wire.replies import Replies
from proxy.wire.request import encode

_BEFORE: Final = (
    b"-ERR unknown command '",
    b"-ERR unknown command `",
    b"-ERR Syntax error in HELLO option '",
    b"$32\r\n",
    b"-ERR unknown command 'ECHO', with args beginning with: '",
    b"-ERR unknown command `ECHO`, with args beginning with: `",
)
"""What stands before the token: in Redis from 7.0 and in Valkey; in Redis 6.2; behind a HELLO, everywhere; of a silent
sign, everywhere; of one where ECHO has another name (rename-command), likewise twice."""

_LINE: Final = re.compile(
    rb"(?:-ERR (?:unknown command ['`](?:ECHO['`], with args beginning with: ['`])?|Syntax error in HELLO option ')"
    rb"|\$32\r\n)([0-9a-f]{32})"
)

_REFUSAL_WORDS: Final = (b"-BUSY ", b"-LOADING ", b"-MASTERDOWN ", b"-NOAUTH ", b"-NOPERM ", b"-ERR Can't execute ")
_REFUSED_SIGN: Final = re.compile(
    rb"-(?:BUSY |LOADING |MASTERDOWN |NOAUTH |(?:NOPERM|ERR Can't execute) [^\r\n]*'echo')"
)
"""How servers refuse an ECHO that has one argument, outside of a transaction."""

_LONGEST_WORD: Final = max(map(len, _REFUSAL_WORDS))

MOST_HELD: Final = 16 * 1024 * 1024
"""Bytes that are held back at most while it is not clear whether a sign has been refused."""


class UnclearRepliesError(Exception):
    """A sign has been refused, and it cannot be told which of the errors that have come is its own."""


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
        echoes: whether the server is likely to answer an ECHO now: then signs are silent.
        deaf: whether the client's user has turned out to lack the right to ECHO.
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
        self._silent: set[bytes] = set()  # tokens of silent signs
        self._within: dict[bytes, int] = {}  # token in front of what is taken aside: how many replies that is
        self._awaited = 0  # how many replies are taken aside, behind the last sign
        self._is_held_back = False  # whether a silent sign may have been refused
        self.silenced = False
        self.echoes = self.deaf = False

    @property
    def active(self) -> bool:
        """Whether the stream need pass through `receive`."""
        return self.outstanding or self._passage is not None

    @property
    def settled(self) -> int:
        """How many have come, or will not come."""
        return self._settled

    @property
    def crowded(self) -> bool:
        """Whether so many replies are outstanding that no more should be asked for."""
        return len(self._expected) >= CROWD and not self.silenced

    @property
    def wants_probe(self) -> bool:
        """Whether a loud sign has to show if a silent one has been refused."""
        return self._is_held_back and bool(self._expected) and self._expected[-1][0] in self._silent

    def expect(
        self,
        reply: bytes,
        *,
        by_greeting: bool = False,
        found: Callable[[], None] | None = None,
        silent: bool = False,
    ) -> bytes:
        """Replace the answer to a request that is about to be sent.

        Args:
            reply: the bytes that the client is to get, may be empty.
            by_greeting: whether to ask by a HELLO with an option that there is not, which changes nothing and is
                answered before a login too: some servers tell strangers nothing. Not in a transaction.
            found: is called when the answer comes; not when a later one shows that it never will.
            silent: whether to ask by an ECHO, which leaves no error at the server. Not in a transaction, and not where
                the client is to get anything.

        Returns:
            The request to send: if it is not silent, a command that the server does not know, and that spoils an open
            transaction.
        """
        if self.silenced and len(self._expected) >= CROWD:
            self._settle(1)
        token = secrets.token_hex(16).encode()
        self._places[token] = self._settled + len(self._expected)
        self._expected.append((token, reply))
        if found is not None:
            self._found[token] = found
        self.outstanding = True
        if silent:
            self._silent.add(token)
            return encode([b"ECHO", token])
        return encode([b"HELLO", b"2", token] if by_greeting else [token])

    def enclose(self, request: bytes, hear: Callable[[bytes], bytes], *, replies: int = 1) -> bytes:
        """Have the reply to a request of the proxy's own taken out of the stream.

        Args:
            request: the request.
            hear: gets the bytes between the replies of the requests before and behind it, without push messages, and
                returns those of them that are for the client after all, such as what a RESP2 subscriber is told.
            replies: how many replies the request has.

        Returns:
            The requests to send.
        """
        before, behind = (self.expect(b"", silent=self.echoes) for _ in range(2))
        first, second = self._expected[-2][0], self._expected[-1][0]
        if self.echoes:
            self._within[first] = replies
        self._begins.add(first)
        self._hears[second] = hear
        return before + request + behind

    def open(self, passage: Passage, *, found: Callable[[], None] | None = None, silent: bool | None = None) -> bytes:
        """Have the replies to what is sent next pass through something, until it is done.

        Args:
            passage: what they pass through.
            found: is called when the first of them is to come next, as of `expect`.
            silent: as of `expect`; as `echoes`, where not given.

        Returns:
            The request to send in front of it.
        """
        request = self.expect(b"", found=found, silent=self.echoes if silent is None else silent)
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
            The bytes for the client. The beginning of a line that may be one of ours is held back, and what follows a
            line that may refuse one.

        Raises:
            UnclearRepliesError: one has been refused, and it is not clear which line says so.
        """
        stream = self._held + data
        self._held = b""
        passed: list[bytes] = []
        position = 0
        self._is_held_back = False
        while self._expected:
            line = self._find(stream, position)
            if line is None:
                keep = self._possible_begin(stream, position)
                if self._silent:
                    keep = min(keep, self._possible_refusal(stream, position))
                self._pass(stream[position:keep], passed)
                self._held = stream[keep:]
                return b"".join(passed)
            begin, end, token = line
            place = self._places[token] - self._settled
            if end < 0:
                keep = begin
                if self._silent and place:  # what has come in front of it tells of those, when the line is there
                    keep = min(begin, self._possible_refusal(stream, position))
                self._pass(stream[position:keep], passed)
                self._held = stream[keep:]
                return b"".join(passed)
            if place and self._silent:
                self._pass_with_refused(stream[position:begin], place, passed)
            else:
                self._pass(stream[position:begin], passed)
            self._arrive(token, passed)
            position = end
        self.outstanding = False
        self.trailed = position < len(stream)
        self._pass(stream[position:], passed)
        return b"".join(passed)

    def _arrive(self, token: bytes, passed: list[bytes]) -> None:
        """Put in place what the client is to get for a sign that has come."""
        place = self._places[token] - self._settled
        if (found := self._found.pop(token, None)) is not None:
            found()
        reply = self._expected[place][1]
        opens = self._opens.pop(token, None) if self._opens else None
        passed.append(self._settle(place + 1))
        self._pass(reply, passed)
        if opens is not None:
            self._passage = opens

    def _pass_with_refused(self, data: bytes, count: int, passed: list[bytes]) -> None:
        """Pass on what has come in front of a sign; so many before it have not come, and those that are silent have
        been refused.

        They stand among the errors of that kind. Which are which does not matter where all are the same and stand side
        by side; where the reply behind a sign has to be found, nothing else may follow them either.
        """
        tokens = [token for token, _ in islice(self._expected, count)]
        refused = [token for token in tokens if token in self._silent]
        unheard = self.silenced or len(refused) < count  # what follows CLIENT REPLY OFF is not answered
        first = _POSSIBLY_REFUSED.search(data) if refused else None
        if first is None:
            if refused and not unheard:
                raise UnclearRepliesError
            self._pass(data, passed)
            return
        # What stands in front of it may begin within a reply of which the rest has been passed on.
        self._pass(data[: first.start()], passed)
        within = 0  # replies that come before the next sign
        if self._aside is not None:
            within = max(0, self._awaited - len(frames(b"".join(self._aside))))
        parts = frames(data[first.start() :])
        lines = [place for place, part in enumerate(parts) if _REFUSED_SIGN.match(part)]
        if unheard and not lines:
            for part in parts:
                self._pass(part, passed)
            return
        if len(lines) > len(refused):
            leads = any(token in self._opens or token in self._within for token in refused)
            end = len(parts) if leads else lines[-1] + 1
            if len({part for part in parts[lines[0] : end] if part[:1] != b">"}) > 1:
                raise UnclearRepliesError
        coming = iter(refused)
        token = next(coming, None)
        for part in parts:
            if token is not None and not within and self._passage is None and _REFUSED_SIGN.match(part):
                self.deaf = self.deaf or part.startswith(b"-NOPERM")
                within = self._within.get(token, 0)
                self._arrive(token, passed)
                token = next(coming, None)
                continue
            within -= bool(within) and part[:1] != b">"
            self._pass(part, passed)
        if token is not None:
            raise UnclearRepliesError

    def _settle(self, count: int) -> bytes:
        """Note that so many tokens have been found, or will not come; return what is for the client after all."""
        passed = b""
        for _ in range(count):
            token, _reply = self._expected.popleft()
            del self._places[token]
            self._found.pop(token, None)
            if self._silent:
                self._silent.discard(token)
                self._awaited = self._within.pop(token, 0)
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
        for mark in _MARKS.finditer(stream, max(position, len(stream) - _LONGEST_BEFORE - 31)):
            begin = mark.start()
            tail = stream[begin:]
            for before in _BEFORE:
                head = tail[: len(before)]
                if before.startswith(head) and _HEX.fullmatch(tail, len(head)):
                    return begin
        return len(stream)

    def _possible_refusal(self, stream: bytes, position: int) -> int:
        """Return where a line begins that may refuse a silent sign, or the end of the stream."""
        refusal = _POSSIBLY_REFUSED.search(stream, position)
        if refusal is not None:
            self._is_held_back = True
            if len(stream) - refusal.start() > MOST_HELD:
                raise UnclearRepliesError
            return refusal.start()
        begin = stream.rfind(b"-", max(position, len(stream) - _LONGEST_WORD))
        if begin >= 0 and any(word.startswith(stream[begin:]) for word in _REFUSAL_WORDS):
            return begin
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
_MARKS: Final = re.compile(rb"[-$]")
_LONGEST_BEFORE: Final = max(map(len, _BEFORE))
_POSSIBLY_REFUSED: Final = re.compile(
    rb"(?<![^\n])-(?:BUSY |LOADING |MASTERDOWN |NOAUTH |(?:NOPERM|ERR Can't execute) (?:[^\r\n]*'echo'|[^\r\n]*\r?\Z))"
)
_REFUSAL: Final = re.compile(rb"-|\+RESET")
