"""Find the replies to signs in a stream and replace them, without framing the other replies.

Its tests: tests/test_signs.py.

The reply to a sign holds a fresh random token. This text occurs nowhere else, so it marks the sign's exact place among
the replies. A silent sign is an ECHO, and causes no error in the server's statistics. A loud sign is a command whose
name is the token: it gets a reply in every state of server and connection.

The server may refuse an ECHO, for example while a script keeps it busy. An error that looks like such a refusal is held
back until the token comes, or that of a later loud sign. Then the refusal is identified, and treated as the reply to
the silent sign.
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
from proxy.wire.guard import Fronted, Guard, Repeated
from proxy.wire.pieces import Heeded, Piece, Slot, Tally
from proxy.wire.replies import PushesOnly, Replies, RepliesAndPushes
from proxy.wire.request import encode
from proxy.wire.silence import Silence, WishReply, may_answer_wish

_BEFORE: Final = (
    b"-ERR unknown command '",
    b"-ERR unknown command `",
    b"-ERR Syntax error in HELLO option '",
    b"$32\r\n",
    b"-ERR unknown command 'ECHO', with args beginning with: '",
    b"-ERR unknown command `ECHO`, with args beginning with: `",
)
"""The texts before the token: for an unknown command in Redis from 7.0 and Valkey, and in Redis 6.2; for a HELLO; for a
silent sign; and two for a renamed ECHO (rename-command)."""

_LINE: Final = re.compile(
    rb"(?:-ERR (?:unknown command ['`](?:ECHO['`], with args beginning with: ['`])?|Syntax error in HELLO option ')"
    rb"|\$32\r\n)([0-9a-f]{32})"
)

_BEFORE_ALL: Final = (b"-ERR ", b"$32\r\n")
"""How a line with a token begins."""

_LONG: Final = 4096
"""Maximum size of chunks to search with the pattern directly; longer ones get a plain search first."""

_NOAUTH: Final = b"-NOAUTH "
_REFUSAL_WORDS: Final = (b"-BUSY ", b"-LOADING ", b"-MASTERDOWN ", _NOAUTH, b"-NOPERM ", b"-ERR Can't execute ")
_REFUSAL: Final = (
    r"-(?:BUSY \w+ is busy |LOADING \w+ is loading |MASTERDOWN Link with |NOAUTH Authentication required"
    r"|(?:NOPERM|ERR Can't execute) [^\r\n]*'echo')"
)
_REFUSED_SIGN: Final = re.compile(_REFUSAL.encode())
"""How servers refuse an ECHO with one argument, outside a transaction. The pattern has the full text: a client's script
may return an error with the same code."""

_LONGEST_WORD: Final = max(map(len, _REFUSAL_WORDS))

_AT_ONCE: Final = 16 * 1024
"""How many bytes from a line on to look at first: usually they show whether the line is a reply."""

MOST_HELD: Final = 16 * 1024 * 1024
"""How much to hold back, in bytes, while a sign may have been refused."""


_BYTES: Final = frozenset((bytes,))

_MOST_STEPS: Final = 20_000
"""Maximum number of steps to locate refused signs among replies."""

_TOKENS_AT_ONCE: Final = 64

_LONGEST_SIGN: Final = 256
"""Maximum length of a line up to the end of its token, in bytes."""


_tokens: list[bytes] = []


def _token() -> bytes:
    """Return an unpredictable token. Several are made at once, because the system call is slow."""
    if not _tokens:
        text = secrets.token_hex(16 * _TOKENS_AT_ONCE).encode()
        _tokens.extend(text[begin : begin + 32] for begin in range(0, len(text), 32))
    return _tokens.pop()


class UnclearRepliesError(Exception):
    """A sign has been refused, and it is not clear which of several errors is the refusal."""


CROWD: Final = 4096
"""While this many replies are outstanding, no more requests are taken, to limit memory."""

_SIGN_SIZE: Final = 1024
"""About how many bytes an outstanding reply takes here, with its token and its filter: 890 to 1,020 were measured."""

_FEW: Final = 64
"""Maximum number of outstanding replies whose memory is not worth counting."""


class Passage(Protocol):
    """A filter for some of the replies."""

    done: bool
    """Whether the following replies can bypass the filter."""

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes of the stream; return those for the client, and those after the filter's replies."""


Way: TypeAlias = Passage | Guard | Repeated | Fronted | WishReply
"""A filter for replies on their way to the client."""

_IN_PIECES: Final = (Guard, Repeated, Fronted, WishReply)
"""Filters whose `pass_on` may yield slots and wishes besides bytes."""


class ReplySubstitution:
    """The replies to replace on one connection.

    Attributes:
        outstanding: whether any of these replies is still to come.
        trailed: whether bytes have come after the last replaced reply, in the same chunk.
        comes_last: the number of the last sign that has come, while only pushes have come after it; otherwise -1.
        tally: counts the memory that the client's slots take.
        silence: drops the replies that the client does not want.
        echoes: whether the server will probably reply to an ECHO now: then signs are silent.
        hides_commands: whether the server may hide, before a login, that it does not know a command.
        greets: whether a HELLO may be the only sign that the server answers, because the client may have to log in.
        deaf: whether the client's user has turned out to lack permission for ECHO.
    """

    def __init__(self) -> None:
        self.outstanding = self.trailed = False
        self.comes_last = -1
        self._behind: PushesOnly | None = None  # the replies after the sign with the number `comes_last`
        self._expected: deque[tuple[bytes, bytes]] = deque()
        self._places: dict[bytes, int] = {}  # token -> its number; the first expected one has the number `_settled`
        self._settled = 0
        self._held = b""
        self._begins: set[bytes] = set()  # tokens in front of replies taken aside
        self._hears: dict[bytes, Callable[[bytes], bytes]] = {}  # token behind replies taken aside → receiver
        self._aside: list[bytes] | None = None
        self._framing: Replies  # the framing of the replies taken aside
        self._pushes: list[bytes] = []  # pushes that came among the replies taken aside
        self._found: dict[bytes, Callable[[], None]] = {}  # token → whom to call when its line has come
        self._opens: dict[bytes, Way] = {}  # token in front of requests → filter for their replies
        self._passage: Way | None = None
        self._waiting: deque[Piece] = deque()  # the reply to a repeated read, and the bytes after it
        self._waiting_size = 0  # size of the bytes in `_waiting`
        self._slots: deque[Slot] = deque()  # the slots in `_waiting`
        self._silent: set[bytes] = set()  # tokens of silent signs
        self._within: dict[bytes, int] = {}  # token in front of replies taken aside → their number
        self._awaited = 0  # number of replies to take aside after the last sign that has come
        self._is_held_back = False  # whether a silent sign may have been refused
        self._doubt: bytearray | None = None  # the bytes held back, beginning with a line that may refuse a sign
        self._doubt_searched = 0  # how many bytes of `_doubt` are known to contain no sign
        self._doubt_framing: Replies
        self.tally = Tally()
        self.silence = Silence()
        self.hides_commands = True
        self.echoes = self.greets = self.deaf = False

    @property
    def active(self) -> bool:
        """Whether the stream must pass through `receive`."""
        return self.outstanding or self._passage is not None or self.silence.suspected

    @property
    def settled(self) -> int:
        """How many of the expected replies have come, or never will."""
        return self._settled

    @property
    def next_number(self) -> int:
        """The number of the next expected reply: compare with `settled`."""
        return self._settled + len(self._expected)

    @property
    def waiting(self) -> int:
        """How many bytes wait for the reply to a read that was sent again, or to a sign that may have been refused."""
        return self._waiting_size + self.tally.size + len(self._doubt or b"")

    @property
    def memory(self) -> int:
        """About how many bytes the outstanding replies take; zero if they are few."""
        count = len(self._expected)
        return _SIGN_SIZE * count if count > _FEW else 0

    @property
    def crowded(self) -> bool:
        """Whether too many replies are outstanding to send more requests."""
        return len(self._expected) >= CROWD

    @property
    def wants_probe(self) -> bool:
        """Whether to send a loud sign now: a silent one may have been refused, and no loud one follows."""
        return self._is_held_back and bool(self._expected) and self._expected[-1][0] in self._silent

    @property
    def may_want_login(self) -> bool:
        """Whether the server may want a login. Then the loud sign that `wants_probe` asks for must be a HELLO."""
        return _NOAUTH in (self._doubt or b"")

    def expect(
        self,
        reply: bytes,
        *,
        by_greeting: bool | None = None,
        found: Callable[[], None] | None = None,
        silent: bool = False,
    ) -> bytes:
        """Replace the reply to a request that is about to be sent.

        Args:
            reply: the bytes for the client, may be empty.
            by_greeting: whether to send a HELLO with an unknown option; `greets` by default. Such a HELLO changes
                nothing, and is answered even before a login, when some servers answer nothing else. Not in a
                transaction.
            found: called when the reply comes, but not if a later sign shows that the reply will not come.
            silent: whether to send an ECHO, which causes no error at the server. Not in a transaction, and only if
                `reply` is empty.

        Returns:
            The request to send. A loud sign is a HELLO, or a command that the server does not know; such a command
            aborts an open transaction.
        """
        token = _token()
        self._places[token] = self._settled + len(self._expected)
        self._expected.append((token, reply))
        if found is not None:
            self._found[token] = found
        self.outstanding = True
        if silent:
            self._silent.add(token)
            return encode([b"ECHO", token])
        by_greeting = self.greets if by_greeting is None else by_greeting
        return encode([b"HELLO", b"2", token] if by_greeting else [token])

    def enclose(self, request: bytes, hear: Callable[[bytes], bytes], *, replies: int = 1) -> bytes:
        """Take the reply to a request of the proxy's own out of the stream.

        Args:
            request: the request.
            hear: gets the bytes between the replies to the two signs around the request, without pushes. Returns those
                that are for the client after all, such as messages to a RESP2 subscriber.
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
        by_greeting: bool | None = None,
    ) -> bytes:
        """Pass the replies to the next requests through a filter until it is done.

        Args:
            passage: the filter.
            found: called when the first of these replies is next, as in `expect`.
            silent: as in `expect`; `echoes` by default.
            by_greeting: as in `expect`.

        Returns:
            The request to send in front of the others.
        """
        silent = self.echoes if silent is None else silent
        request = self.expect(b"", by_greeting=by_greeting, found=found, silent=silent)
        self._opens[self._expected[-1][0]] = passage
        return request

    def enter(self, passage: Way) -> None:
        """Like `open`, but without a sign in front: all earlier requests have been answered, and no pushes can come."""
        self._passage = passage

    def _pass(self, data: bytes, passed: list[Piece]) -> None:
        """Pass bytes on, except for those taken aside."""
        if not data:
            return
        if self._aside is not None:
            # The proxy's request may wait long in the server: do not delay pushes meanwhile.
            self._aside.extend(piece for piece, _ in self._framing.cut(data))
            passed += self._pushes
            self._pushes.clear()
            return
        passage = self._passage
        if passage is not None:
            if isinstance(passage, _IN_PIECES):
                data = passage.pass_on(data, passed)
            else:
                kept, data = passage.receive(data)
                passed.append(kept)
            if passage.done:
                self._passage = None
        passed.append(data)

    def _hear(self, token: bytes) -> bytes:
        """Begin, or end, taking bytes out of the stream if the token marks such a place; return the bytes for the
        client."""
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

        A token settles all earlier tokens as well. Those may never come: the client may have silenced a server that has
        renamed CLIENT.

        Returns:
            The bytes for the client. The beginning of a line that may hold a token is held back. So is a line that may
            refuse a sign, with all that follows it.

        Raises:
            UnclearRepliesError: a sign has been refused, and it is not clear by which line.
        """
        if self.comes_last >= 0:
            self._note_behind(data)
        if self._doubt is not None:
            if self._stays_in_doubt(data):
                self._is_held_back = True
                return b""
            data = bytes(self._doubt)
            self._doubt = None
        stream = self._held + data
        self._held = b""
        passed: list[Piece] = []
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
                if self._silent and place:  # errors for refused signs may come before this line: hold them back too
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
            if end == len(stream) or stream[end] == _PUSH:
                self.comes_last, self._behind = self._settled - 1, None
                self._note_behind(stream[end:])
        self.trailed = position < len(stream)
        self._pass(stream[position:], passed)
        out = self._in_order(passed)
        self.outstanding = bool(self._waiting)
        return out

    def _note_behind(self, data: bytes) -> None:
        """Note bytes behind the sign with the number `comes_last`."""
        if data and self._behind is None:
            self._behind = PushesOnly() if data[0] == _PUSH else None
        if data and (self._behind is None or not self._behind.receive(data)):
            self.comes_last, self._behind = -1, None

    def close(self) -> None:
        """Drop what refers to the reads under way: the client has gone."""
        for slot in self._slots:
            slot.forget()

    def end(self) -> bytes:
        """Return the held bytes that are for the client: the server has closed, so no more tokens will come.

        Only whole replies count: a cut one may answer a sign, or another request of the proxy's own.
        """
        held, self._held, self._doubt = bytes(self._doubt or b""), b"", None
        passed: list[Piece] = []
        try:
            pieces = RepliesAndPushes().cut(held)
            while pieces and not pieces[-1][1]:
                pieces.pop()
            whole = b"".join(piece for piece, _ in pieces)
            self._pass_with_refused(whole, len(self._expected), passed, ended=True)
        except (StrayReplyError, UnclearRepliesError):
            return b""
        return self._in_order(passed)

    def _in_order(self, passed: list[Piece]) -> bytes:
        """Return the bytes that the client can get now: none behind a reply that is incomplete."""
        waiting, slots, silence = self._waiting, self._slots, self.silence
        if not waiting and _are_all_bytes(passed):
            return silence.pass_on(b"".join(passed))
        for part in passed:
            if isinstance(part, bytes):
                self._waiting_size += len(part)
            elif isinstance(part, Slot):
                slots.append(part)
        waiting.extend(passed)
        out: list[bytes] = []
        while waiting:
            part = waiting[0]
            if isinstance(part, bytes):
                self._waiting_size -= len(part)
                out.append(silence.pass_on(part))
            elif isinstance(part, Heeded):
                out.append(silence.heed(part))
            else:
                out += map(silence.pass_on, part.take())
                if not part.done:
                    break
                slots.popleft()
            waiting.popleft()
        return b"".join(out)

    def _arrive(self, token: bytes, passed: list[Piece]) -> None:
        """Insert the bytes that the client gets for a sign that has come."""
        place = self._places[token] - self._settled
        if (found := self._found.pop(token, None)) is not None:
            found()
        reply = self._expected[place][1]
        opens = self._opens.pop(token, None) if self._opens else None
        passed.append(self._settle(place + 1))
        self._pass(reply, passed)
        if isinstance(opens, WishReply):
            opens.pass_on(b"", passed)
        if opens is not None and not (isinstance(opens, WishReply) and opens.done):
            self._passage = opens

    def _pass_with_refused(self, data: bytes, count: int, passed: list[Piece], *, ended: bool = False) -> None:
        """Pass on the bytes before a sign. `count` earlier signs have not come: the server has refused the silent ones.

        If the stream has `ended`, no sign follows, and the last requests may be unanswered.

        Some of the errors that look like refusals are refusals. It does not matter which, if all these errors are equal
        and adjacent. If the reply after a sign is needed, no other reply may follow these errors either.
        """
        tokens = [token for token, _ in islice(self._expected, count)]
        refused = [token for token in tokens if token in self._silent]
        unheard = ended or len(refused) < count  # not all requests have got replies
        first = _refusal(data, 0, whole=True) if refused else None
        if first is None:
            if refused and not unheard:
                raise UnclearRepliesError
            self._pass(data, passed)
            return
        # The bytes before the error may begin within a reply, so they cannot be split into frames.
        self._pass(data[:first], passed)
        awaited: int | None = None  # replies before the first refused sign
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
        if token is not None and not ended:
            raise UnclearRepliesError

    def _places_of_refused(
        self, refused: list[bytes], replies: list[bytes], lines: list[int], awaited: int | None, *, loose: bool
    ) -> tuple[int, ...]:
        """Return which of the replies are the refusals of silent signs, by their positions.

        Args:
            refused: the signs, in order.
            replies: the replies.
            lines: the positions of the replies that look like refusals.
            awaited: how many replies come before the first sign; None if unknown.
            loose: whether more requests may have had no reply.

        Returns:
            The positions; an empty tuple if it does not matter which lines are taken.

        Raises:
            UnclearRepliesError: several assignments are possible, and it matters which.
        """
        leads = [token in self._opens or token in self._within for token in refused]
        end = len(replies) if any(leads) else lines[-1] + 1 if lines else 0
        if len(lines) <= len(refused) or len(set(replies[lines[0] : end])) == 1:
            return ()
        steps: list[int] = []
        within = [self._within.get(token) for token in refused]
        least = [int(token in self._opens) for token in refused]
        wishes = [isinstance(way := self._opens.get(token), WishReply) and way.asks for token in refused]

        def ways(number: int, last: int, between: int | None, at_least: int) -> Iterator[tuple[int, ...]]:
            """Yield each assignment of the remaining refused signs, from `number` on, to lines after `last`."""
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
                if wishes[number] and line + 1 < len(replies) and not may_answer_wish(replies[line + 1]):
                    continue
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
        """Remove the first `count` expected tokens, found or not; return bytes taken aside that are for the client."""
        passed = b""
        for _ in range(count):
            token, _reply = self._expected.popleft()
            del self._places[token]
            self._found.pop(token, None)
            if self._silent:
                self._silent.discard(token)
                self._awaited = self._within.pop(token, 0)
            if self._opens and isinstance(lost := self._opens.pop(token, None), _IN_PIECES):
                lost.abandon()
            passed += self._hear(token)
        self._settled += count
        return passed

    def end_of_sign(self, number: int, stream: bytes) -> int:
        """Return where the line of a sign ends in bytes that `receive` has not taken yet; -1 if it is not in them.

        `number`: the number of the sign. A later sign counts too: it shows that no earlier one is still to come.
        """
        end = 0
        while end >= 0 and (line := self._find(stream, end)) is not None:
            _, end, token = line
            if self._places[token] >= number:
                return end
        return -1

    def _find(self, stream: bytes | bytearray, position: int) -> tuple[int, int, bytes] | None:
        """Find the first line with an expected token: its start and end (-1: incomplete), and the token."""
        size = len(stream)
        for begin in range(position, size, _LONG):
            end = min(size, begin + _LONG + _LONGEST_SIGN)
            # A plain search is ten times as fast if there is nothing to find.
            if begin > position and all(stream.find(word, begin, end) < 0 for word in _BEFORE_ALL):
                continue
            for line in _LINE.finditer(stream, begin, end):
                if (token := bytes(line[1])) in self._places:
                    after = stream.find(b"\r\n", line.end())
                    return line.start(), after + 2 if after >= 0 else -1, token
        return None

    def _possible_begin(self, stream: bytes, position: int) -> int:
        """Return the position of the first line that may become one of our tokens; the length of the stream if there is
        none."""
        for mark in _MARKS.finditer(stream, max(position, len(stream) - _LONGEST_BEFORE - 31)):
            begin = mark.start()
            tail = stream[begin:]
            for before in _BEFORE:
                head = tail[: len(before)]
                if before.startswith(head) and _HEX.fullmatch(tail, len(head)):
                    return begin
        return len(stream)

    def _hold(self, data: bytes) -> None:
        """Hold back bytes that may begin a line with a token, or refuse a sign."""
        if not self._is_held_back:
            self._held = data
            return
        if len(data) > MOST_HELD:
            raise UnclearRepliesError
        self._doubt, self._doubt_searched = bytearray(data), 0
        self._doubt_framing = Replies(long_texts=False)
        self._doubt_framing.cut(data)

    def _stays_in_doubt(self, data: bytes) -> bool:
        """Add to the held bytes; return whether they may still refuse a sign and no sign has come after them."""
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
        """Return the position of the first line that is, or may become, an error in reply to a silent sign.

        Without such a line return the length of the stream.
        """
        refusal = _refusal(stream, position)
        if refusal is not None:
            self._is_held_back = True
            return refusal
        begin = stream.rfind(b"-", max(position, len(stream) - _LONGEST_WORD))
        if begin >= 0 and any(word.startswith(stream[begin:]) for word in _REFUSAL_WORDS):
            return begin
        return len(stream)


def _are_all_bytes(parts: list[Piece]) -> TypeGuard[list[bytes]]:
    """Return whether all pieces are bytes: then none is still to come."""
    return set(map(type, parts)) <= _BYTES


def _refusal(stream: bytes, position: int, *, whole: bool = False) -> int | None:
    """Return the position of a line that may refuse a silent sign.

    A line within a string does not count. It is recognised by the bytes that follow, which do not parse as a reply.

    Args:
        stream: bytes from a server.
        position: where to start.
        whole: whether these bytes end with a whole reply.

    Raises:
        UnclearRepliesError: too many lines look like a refusal.
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
    """Finds the first reply that only a logged-in client gets, from a server that requires a password.

    Before that reply there are only error lines and the reply to RESET.

    Args:
        replies: knows the signs in the stream.
        since: the number of the sign behind the last RESET: no reply before that sign's proves anything. -1 for none.

    Attributes:
        since: as the argument.
    """

    def __init__(self, replies: ReplySubstitution, since: int) -> None:
        self._replies = replies
        self.since = since
        self._waits = since >= 0
        self._line = b""  # the kept part of an incomplete line; before the sign has come, the last bytes received

    def receive(self, data: bytes) -> bool:
        """Take bytes of the stream, before the signs in them are taken; return whether they prove that the client is
        logged in."""
        if self._waits:
            data = self._line + data
            end = self._replies.end_of_sign(self.since, data)
            if end < 0:
                self._line = data[-_LONGEST_SIGN:]
                return False
            data, self._line, self._waits = data[end:], b"", False
        lines = (self._line + data).split(b"\r\n")
        if any(line and not _BEFORE_LOGIN.match(line) for line in lines[:-1]):
            return True
        # Of an incomplete error line keep only what identifies it.
        self._line = lines[-1][:8] + (b"\r" if lines[-1][8:].endswith(b"\r") else b"")
        return bool(self._line) and not _BEFORE_LOGIN.match(self._line) and not b"+RESET".startswith(self._line)


_HEX: Final = re.compile(rb"[0-9a-f]*")
_MARKS: Final = re.compile(rb"[-$]")
_PUSH: Final = 0x3E
_LONGEST_BEFORE: Final = max(map(len, _BEFORE))
_POSSIBLY_REFUSED: Final = re.compile(
    rf"(?<![^\n])(?:{_REFUSAL}|-(?:BUSY|LOADING|MASTERDOWN|NOAUTH|NOPERM|ERR Can't execute) [^\r\n]*\r?\Z)".encode()
)
_BEFORE_LOGIN: Final = re.compile(rb"-|\+RESET")
