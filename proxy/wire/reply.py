"""Find signs in a stream of replies and replace them, without framing the replies.

Its tests: tests/test_signs.py.

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
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, Protocol, TypeAlias, TypeGuard

from proxy.wire.first_line import StrayReplyError
from proxy.wire.frames import frames
from proxy.wire.guard import Fronted, Guard, Repeated, Slot
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
"""What stands before the token: in Redis from 7.0 and in Valkey; in Redis 6.2; after a HELLO, everywhere; in a silent
sign, everywhere; and twice more for an ECHO that has been renamed (rename-command)."""

_LINE: Final = re.compile(
    rb"(?:-ERR (?:unknown command ['`](?:ECHO['`], with args beginning with: ['`])?|Syntax error in HELLO option ')"
    rb"|\$32\r\n)([0-9a-f]{32})"
)

_BEFORE_ALL: Final = (b"-ERR ", b"$32\r\n")
"""What each of them begins with."""

_LONG: Final = 4096
"""Chunks up to so many bytes are searched directly; longer ones by a plain search first."""

_REFUSAL_WORDS: Final = (b"-BUSY ", b"-LOADING ", b"-MASTERDOWN ", b"-NOAUTH ", b"-NOPERM ", b"-ERR Can't execute ")
_REFUSAL: Final = (
    r"-(?:BUSY \w+ is busy |LOADING \w+ is loading |MASTERDOWN Link with |NOAUTH Authentication required"
    r"|(?:NOPERM|ERR Can't execute) [^\r\n]*'echo')"
)
_REFUSED_SIGN: Final = re.compile(_REFUSAL.encode())
"""How servers refuse an ECHO with one argument, outside a transaction. The full text, because a client's script may
answer an error with the same code."""

_LONGEST_WORD: Final = max(map(len, _REFUSAL_WORDS))

_AT_ONCE: Final = 16 * 1024
"""How many bytes behind a line to look at first: mostly they show whether the line is a reply."""

MOST_HELD: Final = 16 * 1024 * 1024
"""How much to hold back, in bytes, while it is not clear whether a sign has been refused."""


_BYTES: Final = frozenset((bytes,))

_MOST_STEPS: Final = 20_000
"""How many steps to spend on finding out how refused signs stand among replies."""

_TOKENS_AT_ONCE: Final = 64

_LONGEST_SIGN: Final = 256
"""Longest beginning of a line, in bytes, up to the end of the token in it."""


_tokens: list[bytes] = []


def _token() -> bytes:
    """Return an unpredictable token. Several are made at once, because asking the system takes longest."""
    if not _tokens:
        text = secrets.token_hex(16 * _TOKENS_AT_ONCE).encode()
        _tokens.extend(text[begin : begin + 32] for begin in range(0, len(text), 32))
    return _tokens.pop()


class UnclearRepliesError(Exception):
    """A sign has been refused, and nobody can tell which of several errors is its own."""


CROWD: Final = 4096
"""With so many replies outstanding, take no more requests: what is remembered has to stay bounded."""


class Passage(Protocol):
    """What some of the replies pass through."""

    done: bool
    """Whether no more replies need pass through."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream; return those for the client, and those that came behind what passes through."""


Way: TypeAlias = Passage | Guard | Repeated | Fronted
"""What replies pass through."""


class ReplySubstitution:
    """The replies to replace on one connection.

    Attributes:
        outstanding: whether there are any.
        trailed: whether something has come behind the last of them, in the same chunk.
        silenced: whether the client has asked for no replies (CLIENT REPLY OFF), and no sign since has shown that it
            gets some: then those outstanding may never come.
        recalled: whether it has asked for replies since: then they may come as well.
        echoes: whether the server will probably answer an ECHO now: then signs are silent.
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
        self._opens: dict[bytes, Way] = {}  # token in front of some requests: what their replies pass through
        self._passage: Way | None = None
        self._waiting: deque[bytes | Slot] = deque()  # a reply that is asked for once more, and what is behind it
        self._waiting_size = 0  # bytes of that, without those of such replies
        self._slots: deque[Slot] = deque()  # such replies
        self._silent: set[bytes] = set()  # tokens of silent signs
        self._unheard: set[bytes] = set()  # tokens asked for while nothing was to be expected
        self._within: dict[bytes, int] = {}  # token in front of what is taken aside: how many replies that is
        self._awaited = 0  # how many replies are taken aside, behind the last sign
        self._is_held_back = False  # whether a silent sign may have been refused
        self._doubt: bytearray | None = None  # the held bytes, from the line that may be a refusal on
        self._doubt_searched = 0  # how much of it is known to have no sign
        self._doubt_framing: Replies
        self.silenced = self.recalled = False
        self.echoes = self.deaf = False

    @property
    def active(self) -> bool:
        """Whether the stream need pass through `receive`."""
        return self.outstanding or self._passage is not None

    @property
    def settled(self) -> int:
        """How many of the expected replies need not be waited for any more."""
        return self._settled

    @property
    def next_number(self) -> int:
        """The number of the next reply to be expected: compare with `settled`."""
        return self._settled + len(self._expected)

    @property
    def unheard(self) -> bool:
        """Whether nothing is to be expected of the server."""
        return self.silenced and not self.recalled

    @property
    def waiting(self) -> int:
        """How many bytes wait for a read that has been sent again."""
        return self._waiting_size + sum(slot.size for slot in self._slots) if self._slots else 0

    @property
    def crowded(self) -> bool:
        """Whether so many replies are outstanding that no more should be asked for."""
        return len(self._expected) >= CROWD and not self._is_first_unheard

    @property
    def _is_first_unheard(self) -> bool:
        """Whether the first of those outstanding was asked for in silence: that of one asked for before will come."""
        return self.silenced and bool(self._expected) and self._expected[0][0] in self._unheard

    def end_silence(self) -> None:
        """Note that an answer has shown that the client gets replies."""
        self.silenced = self.recalled = False
        self._unheard.clear()

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
            by_greeting: whether to ask by a HELLO with an unknown option. It changes nothing, and is answered before a
            login too, where some servers answer nothing else. Not in a transaction.
            found: is called when the answer comes; not when a later one shows that it never will.
            silent: whether to ask by an ECHO, which leaves no error at the server. Not in a transaction, and not where
                the client is to get anything.

        Returns:
            The request to send: if it is not silent, a command that the server does not know, and that spoils an open
            transaction.
        """
        while len(self._expected) >= CROWD and self._is_first_unheard:
            self._settle(1)
        token = _token()
        self._places[token] = self._settled + len(self._expected)
        self._expected.append((token, reply))
        if found is not None:
            self._found[token] = found
        self.outstanding = True
        if self.unheard:
            self._unheard.add(token)
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

    def open(
        self,
        passage: Way,
        *,
        found: Callable[[], None] | None = None,
        silent: bool | None = None,
    ) -> bytes:
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

    def enter(self, passage: Way) -> None:
        """As `open`, but without a sign in front: everything sent before has been answered, and no pushes can come."""
        self._passage = passage

    def _pass(self, data: bytes, passed: list[bytes | Slot]) -> None:
        """Pass bytes on, except for what is taken aside."""
        if not data:
            return
        if self._aside is not None:
            # The request may wait for long in the server: what comes unasked meanwhile is not to wait here.
            self._aside.extend(piece for piece, _ in self._framing.cut(data))
            passed += self._pushes
            self._pushes.clear()
            return
        passage = self._passage
        if passage is not None:
            if isinstance(passage, (Guard, Repeated, Fronted)):
                data = passage.pass_on(data, passed)
            else:
                kept, data = passage.receive(data)
                passed.append(kept)
            if passage.done:
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
        if self._doubt is not None:
            if self._stays_in_doubt(data):
                self._is_held_back = True
                return b""
            data = bytes(self._doubt)
            self._doubt = None
        stream = self._held + data
        self._held = b""
        passed: list[bytes | Slot] = []
        position = 0
        self._is_held_back = False
        while self._expected:
            line = self._find(stream, position)
            if line is None:
                keep = self._possible_begin(stream, position)
                if self._silent:
                    keep = min(keep, self._possible_refusal(stream, position))
                self._pass(stream[position:keep], passed)
                self._hold(stream[keep:])
                return self._in_order(passed)
            begin, end, token = line
            place = self._places[token] - self._settled
            if end < 0:
                keep = begin
                if self._silent and place:  # what has come in front of it tells of those, when the line is there
                    keep = min(begin, self._possible_refusal(stream, position))
                self._pass(stream[position:keep], passed)
                self._hold(stream[keep:])
                return self._in_order(passed)
            if place and self._silent:
                self._pass_with_refused(stream[position:begin], place, passed)
            else:
                self._pass(stream[position:begin], passed)
            self._arrive(token, passed)
            position = end
        self.trailed = position < len(stream)
        self._pass(stream[position:], passed)
        out = self._in_order(passed)
        self.outstanding = bool(self._waiting)
        return out

    def _in_order(self, passed: list[bytes | Slot]) -> bytes:
        """Return what the client can get of what has passed: nothing behind a reply that has still to come."""
        waiting, slots = self._waiting, self._slots
        if not waiting and _are_all_bytes(passed):
            return b"".join(passed)
        for part in passed:
            if isinstance(part, bytes):
                self._waiting_size += len(part)
            else:
                slots.append(part)
        waiting.extend(passed)
        out: list[bytes] = []
        while waiting:
            part = waiting[0]
            if isinstance(part, bytes):
                self._waiting_size -= len(part)
                out.append(part)
            else:
                out += part.take()
                if not part.done:
                    break
                slots.popleft()
            waiting.popleft()
        return b"".join(out)

    def _arrive(self, token: bytes, passed: list[bytes | Slot]) -> None:
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

    def _pass_with_refused(self, data: bytes, count: int, passed: list[bytes | Slot]) -> None:
        """Pass on what has come in front of a sign; so many before it have not come, and those that are silent have
        been refused.

        They stand among the errors of that kind. Which are which does not matter where all are the same and stand side
        by side; where the reply behind a sign has to be found, nothing else may follow them either.
        """
        tokens = [token for token, _ in islice(self._expected, count)]
        refused = [token for token in tokens if token in self._silent]
        unheard = self.silenced or len(refused) < count  # what follows CLIENT REPLY OFF is not answered
        first = _refusal(data, 0, whole=True) if refused else None
        if first is None:
            if refused and not unheard:
                raise UnclearRepliesError
            self._pass(data, passed)
            return
        # What stands in front of it may begin within a reply of which the rest has been passed on.
        self._pass(data[:first], passed)
        awaited: int | None = None  # replies that come before the first of them
        if self._aside is not None:
            awaited = max(0, self._awaited - len(frames(b"".join(self._aside))))
        parts = frames(data[first:])
        replies = [part for part in parts if part[:1] != b">"]
        lines = [place for place, part in enumerate(replies) if _REFUSED_SIGN.match(part)]
        if unheard and not lines:
            for part in parts:
                self._pass(part, passed)
            return
        places = self._places_of_refused(refused, replies, lines, awaited, loose=unheard)
        coming = iter(refused)
        token = next(coming, None)
        place, within = -1, awaited or 0
        for part in parts:
            pushed = part[:1] == b">"
            place += not pushed
            apart = self._passage is None and not within
            if (
                token is not None
                and not pushed
                and (place in places if places else apart and _REFUSED_SIGN.match(part))
            ):
                if self._passage is not None:
                    raise UnclearRepliesError
                self.deaf = self.deaf or part.startswith(b"-NOPERM")
                within = self._within.get(token, 0)
                self._arrive(token, passed)
                token = next(coming, None)
                continue
            within -= bool(within) and not pushed
            self._pass(part, passed)
        if token is not None:
            raise UnclearRepliesError

    def _places_of_refused(
        self, refused: list[bytes], replies: list[bytes], lines: list[int], awaited: int | None, *, loose: bool
    ) -> tuple[int, ...]:
        """Return where the refusals of silent signs stand among replies, of which some are such lines.

        Args:
            refused: the signs, in order.
            replies: the replies.
            lines: where those lines stand.
            awaited: how many replies come before the first sign; None: that is not known.
            loose: whether more requests may have been left without a reply.

        Returns:
            The places; none where any of those lines will do.

        Raises:
            UnclearRepliesError: there is more than one way, and it matters which.
        """
        leads = [token in self._opens or token in self._within for token in refused]
        end = len(replies) if any(leads) else lines[-1] + 1 if lines else 0
        if len(lines) <= len(refused) or len(set(replies[lines[0] : end])) == 1:
            return ()
        steps: list[int] = []
        within = [self._within.get(token) for token in refused]
        least = [int(token in self._opens) for token in refused]

        def ways(number: int, last: int, between: int | None, at_least: int) -> Iterator[tuple[int, ...]]:
            """How those from one on may stand behind a place, with so many replies between."""
            if number == len(refused):
                gap = len(replies) - last - 1
                if loose or (gap >= at_least if between is None else gap == between):
                    yield ()
                return
            for line in lines:
                steps.append(line)
                if len(steps) > _MOST_STEPS:
                    raise UnclearRepliesError
                gap = line - last - 1
                if gap >= at_least and (loose or between is None or gap == between):
                    for rest in ways(number + 1, line, within[number], least[number]):
                        yield (line, *rest)

        outcome: list[bytes | int] | None = None
        chosen: tuple[int, ...] = ()
        for places in ways(0, -1, awaited, 0):
            numbers = {place: number for number, place in enumerate(places)}
            got: list[bytes | int] = [
                numbers.get(place, reply)
                for place, reply in enumerate(replies)
                if place not in numbers or leads[numbers[place]]
            ]
            if outcome is None:
                outcome, chosen = got, places
            elif got != outcome:
                raise UnclearRepliesError
        if not chosen:
            raise UnclearRepliesError
        return chosen

    def _settle(self, count: int) -> bytes:
        """Note that so many tokens have been found, or will not come; return what is for the client after all."""
        passed = b""
        for _ in range(count):
            token, _reply = self._expected.popleft()
            del self._places[token]
            self._found.pop(token, None)
            if self._unheard:
                self._unheard.discard(token)
            if self._silent:
                self._silent.discard(token)
                self._awaited = self._within.pop(token, 0)
            if self._opens and isinstance(lost := self._opens.pop(token, None), (Guard, Repeated, Fronted)):
                lost.abandon()
            passed += self._hear(token)
        self._settled += count
        return passed

    def _find(self, stream: bytes | bytearray, position: int) -> tuple[int, int, bytes] | None:
        """Find the first line with a token of ours: where it begins and ends (-1: not yet), and the token."""
        size = len(stream)
        for begin in range(position, size, _LONG):
            end = min(size, begin + _LONG + _LONGEST_SIGN)
            # A plain search is ten times as fast where there is nothing to be found.
            if begin > position and all(stream.find(word, begin, end) < 0 for word in _BEFORE_ALL):
                continue
            for line in _LINE.finditer(stream, begin, end):
                if (token := bytes(line[1])) in self._places:
                    after = stream.find(b"\r\n", line.end())
                    return line.start(), after + 2 if after >= 0 else -1, token
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

    def _hold(self, data: bytes) -> None:
        """Hold back what may be the beginning of a sign, or refuse one."""
        if not self._is_held_back:
            self._held = data
            return
        if len(data) > MOST_HELD:
            raise UnclearRepliesError
        self._doubt, self._doubt_searched = bytearray(data), 0
        self._doubt_framing = Replies(long_texts=False)
        self._doubt_framing.cut(data)

    def _stays_in_doubt(self, data: bytes) -> bool:
        """Take more of what is held back; return whether it may still refuse a sign, and none has come behind it."""
        held = self._doubt
        assert held is not None
        held += data
        if self._find(held, self._doubt_searched) is not None:
            return False
        self._doubt_searched = max(0, len(held) - _LONGEST_SIGN)
        try:
            self._doubt_framing.cut(data)
        except StrayReplyError:
            return False
        if len(held) > MOST_HELD:
            raise UnclearRepliesError
        return True

    def _possible_refusal(self, stream: bytes, position: int) -> int:
        """Return where a line begins that may refuse a silent sign, or the end of the stream."""
        refusal = _refusal(stream, position)
        if refusal is not None:
            self._is_held_back = True
            return refusal
        begin = stream.rfind(b"-", max(position, len(stream) - _LONGEST_WORD))
        if begin >= 0 and any(word.startswith(stream[begin:]) for word in _REFUSAL_WORDS):
            return begin
        return len(stream)


def _are_all_bytes(parts: list[bytes | Slot]) -> TypeGuard[list[bytes]]:
    """Return whether none of them has still to come."""
    return set(map(type, parts)) <= _BYTES


def _refusal(stream: bytes, position: int, *, whole: bool = False) -> int | None:
    """Return where a line stands that may refuse a silent sign.

    A line within a string is none, which shows where what follows it is no reply.

    Args:
        stream: bytes from a server.
        position: from where to look.
        whole: whether they end with a reply.

    Raises:
        UnclearRepliesError: very many lines look so.
    """
    if not stream.startswith(b"-", position):
        position = stream.find(b"\n-", position) + 1  # a plain search is ten times as fast
        if not position:
            return None
    seen = 0
    while (refusal := _POSSIBLY_REFUSED.search(stream, position)) is not None:
        framing = Replies(long_texts=False)
        try:
            for begin in range(refusal.start(), len(stream), _AT_ONCE):
                framing.cut(stream[begin : begin + _AT_ONCE])
                seen += _AT_ONCE
        except StrayReplyError:
            seen += _AT_ONCE
        else:
            if framing.between or not whole:
                return refusal.start()
        if seen > 4 * MOST_HELD:
            raise UnclearRepliesError
        position = refusal.end()
    return None


class LoginEvidence:
    """Watches the replies of a server that wants a password for the first that only a logged-in client gets.

    Before that there are only error lines, and the line that answers RESET.
    """

    def __init__(self) -> None:
        self._line = b""  # the beginning of an incomplete line, as much of it as matters

    def receive(self, data: bytes) -> bool:
        """Take bytes of the stream; return whether they show that the client is logged in."""
        lines = (self._line + data).split(b"\r\n")
        if any(line and not _BEFORE_LOGIN.match(line) for line in lines[:-1]):
            return True
        # Of an error line that goes on, keep only what identifies it.
        self._line = lines[-1][:8] + (b"\r" if lines[-1][8:].endswith(b"\r") else b"")
        return bool(self._line) and not _BEFORE_LOGIN.match(self._line) and not b"+RESET".startswith(self._line)


_HEX: Final = re.compile(rb"[0-9a-f]*")
_MARKS: Final = re.compile(rb"[-$]")
_LONGEST_BEFORE: Final = max(map(len, _BEFORE))
_POSSIBLY_REFUSED: Final = re.compile(
    rf"(?<![^\n])(?:{_REFUSAL}|-(?:BUSY|LOADING|MASTERDOWN|NOAUTH|NOPERM|ERR Can't execute) [^\r\n]*\r?\Z)".encode()
)
_BEFORE_LOGIN: Final = re.compile(rb"-|\+RESET")
