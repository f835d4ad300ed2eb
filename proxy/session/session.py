"""One client's stream of requests, without I/O: bytes in; bytes for upstream, sometimes a question for the engine, out.

Every request becomes exactly one upstream request, in order, so replies need no parsing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from proxy.commands.table import BLIND, COMMANDS, JUDGED, MARKING, Command, Effect
from proxy.scripts.naming import Names
from proxy.session.alone import KEYS_AT_ONCE, MOST_KEYS, Alone
from proxy.session.known import Claims, KnownKeys
from proxy.session.plain import FREQUENT_REQUESTS, leased_check, plain_check
from proxy.session.question import Question
from proxy.session.rewrite import UNPACKED, Refusal, Rewriter
from proxy.session.rights import Rights
from proxy.session.streams import Stream, Streams
from proxy.session.transaction import Transaction
from proxy.wire.asides import Asides
from proxy.wire.asides import Kind as Whose
from proxy.wire.batch import BatchParser, is_disjoint, request_size
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import COUNT_LIMIT, Kind, Request, strict_integer

TAIL_LIMIT: Final = 16 * 1024
"""Bytes of an incomplete request that are kept to be parsed again with the next chunk; beyond, the reader resumes."""

LARGE: Final = 1024 * 1024
"""Bytes of a request that is sent on as it arrives behind which a sign is asked for: it may still wait to be sent, long
after its end has come."""

TURN: Final = 500
TURN_BYTES: Final = 256 * 1024
"""Requests, and bytes of them, that are judged before others get their turn."""

LOOKED_AHEAD: Final = 1 << 20
"""Bytes that are searched for first deadlines to be announced together with one that is about to be sent."""

STRANGERS_ARGUMENTS: Final = 10
STRANGERS_BYTES: Final = 16 * 1024
"""What servers read of a request before a login, where they want one: so many arguments, a string of so many bytes."""

_plain_names: set[bytes] = set()
"""Names, as clients spell them, of commands that need no look while they touch no known key. Shared by all sessions; at
most three spellings of each of the server's commands."""


class RequestTooLargeError(Exception):
    """A request that has to be read whole before it can be judged is larger than the limit."""


class OvertakenError(Exception):
    """A request must not be completed: a key has got deadlines since its head was judged."""


class RefusedAtItsHeadError(Exception):
    """A request of which nothing after its head must be sent on: the server refuses it there, and closes.

    Attributes:
        beginning: what has come of the request.
        reply: the line with which servers refuse it.
    """

    def __init__(self, what: str, beginning: bytes) -> None:
        super().__init__(what)
        self.beginning = beginning
        self.reply = f"-ERR Protocol error: {what}\r\n".encode()


class Ground:
    """What all sessions of a proxy stand on.

    Args:
        rewriter: what puts other requests in place of some.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
        request_limit: bytes of a request that may have to be held before it can be judged.
        guarded: whether to refuse requests that name the proxy's own keys.
        names: the names of those keys; where not given, nothing is done in the engine's place.
        refused: told the server's words, where it refuses to have members removed on a client's connection.

    Attributes:
        streams: the requests that are sent on while they arrive.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        known: KnownKeys,
        prefix: bytes,
        request_limit: int,
        *,
        guarded: bool = True,
        names: Names | None = None,
        refused: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.rewriter = rewriter
        self.known = known
        self.prefix = prefix
        self.request_limit = request_limit
        self.guarded = guarded
        self.names = names
        self.refused = refused
        self.batch = BatchParser()
        self.streams = Streams()
        self._plain = plain_check(_plain_names, known, prefix, self.batch)
        self._leased = leased_check(self._plain, known)

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """Returns whether a chunk that begins where a request does, outside of a transaction, can go as it came.

        It is another one when there come to be other proxies, or none any more.
        """
        return self._leased if self.known.shared else self._plain


class Session:
    """The state of one client connection.

    Args:
        ground: what all sessions stand on.
        rights: what the user may do; everything where not given.
        stranger: whether the server wants a login that the client has not shown yet; `login` ends it.

    Attributes:
        ordinary: whether the stream stands between two requests, outside of a transaction and with nothing held. Then
            what `ground.is_plain` accepts can go upstream without `receive`.
        question: what the engine is to do before the session can go on; None while it is not held up.
        replies: what the replies from upstream have to pass through while `replies.outstanding`.
        stranger: whether the client has still to log in, as far as is known.
        claims: the keys to which requests may give deadlines that have not been answered yet.
        unfinished: whether more of what has come can be judged at once, by `go_on`.
    """

    def __init__(self, ground: Ground, *, stranger: bool = False, rights: Rights | None = None) -> None:
        self.ordinary = not stranger
        self.question: Question | None = None
        self.replies = ReplySubstitution()
        self._rights = rights or Rights()
        self.stranger = stranger
        self.claims = Claims()
        self.unfinished = False
        self._wants_login = stranger
        self._subscribed = False  # a subscriber in RESP2 may greet no more
        self._has_quit = False  # nothing that follows will run
        self._adjoining = False  # the last request speaks of the next one: nothing may be put between
        self._skips = False  # the next request gets no reply
        self._queued_words: list[bytes] = []  # what the last CLIENT in the open transaction says of replies
        self._ground = ground
        self._known = ground.known
        self._rewriter = ground.rewriter
        self._prefix = ground.prefix
        self._batch = ground.batch
        self._reader = ground.rewriter.new_reader()
        self._exact = False  # whether the reader, not the batch parser, has the stream
        self._tail = b""
        self._out: list[bytes] = []
        self._transaction: Transaction | None = None
        self._asides: Asides | None = None  # takes replies out of those of the open transaction
        self._front: int | None = None  # where in `_out` their mark belongs, while it is not there
        self._ahead = b"", 0  # what has come behind the request that is being judged, where the reader has not got it
        self._pending: Request | None = None  # what is held up by the question
        self._underway: Stream | None = None  # what is sent on while it arrives
        self._late: list[bytes] = []  # keys that are looked at once more before its last byte goes
        self._adds_late = False  # whether it may add members to them, without a script that looks which are absent
        self._signed: list[Stream] = []  # those whose replies are to show that they have run
        self._alone = (
            None if ground.names is None else Alone(ground.names, lambda: ground.rewriter.removing, ground.refused)
        )
        self._unaided = False  # the engine has failed to answer for the request at hand
        self._coming: list[bytes] = []  # keys that what has come with it names

    @property
    def held(self) -> int:
        """Bytes of requests that have been received and not been sent on."""
        pending = len(self._pending.raw) if self._pending else 0
        queued = self._transaction.size if self._transaction is not None else 0
        return self._reader.held + len(self._tail) + pending + queued

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the requests tell."""
        return self._transaction is not None

    @property
    def waits_for_login(self) -> bool:
        """Whether the question is whether the client has logged in."""
        return self.question is not None and self.question.login

    def login(self) -> None:
        """Note that the server's replies have shown the client to be logged in."""
        self.stranger = False
        self._note_state()

    def receive(self, data: bytes, now: float) -> bytes:
        """Take bytes from the client.

        Args:
            data: the bytes.
            now: the server's clock, in Unix ms.

        Returns:
            The bytes to send upstream. Look at `question` afterwards.

        Raises:
            RequestTooLargeError: more would have to be held than `request_limit` allows.
            RefusedAtItsHeadError: it is to be refused before it is complete.
            OvertakenError: it must not be completed any more.
        """
        out = self._receive(data, now)
        self._note_state()
        return out

    def _note_state(self) -> None:
        apart = self._exact or self._tail or self.stranger or self._adjoining
        self.ordinary = not apart and self._transaction is None

    def _receive(self, data: bytes, now: float) -> bytes:
        self._known.look()
        if self._exact:
            self._reader.feed(data)
            if self.question is not None:
                return b""
            return self._read_exactly(now)
        if self._tail:
            data = self._tail + data
            self._tail = b""
        front = self._plain_front(data)
        if front == len(data):
            return data
        if front:
            self._out.append(data[:front])
        return self._parse(data[front:], now, progress=front > 0)

    def _plain_front(self, data: bytes) -> int:
        """Return how many bytes at the front are frequent requests that can go as they came."""
        known = self._known
        if self._transaction is not None or known.blind or self._adjoining or self._prefix in data:
            return 0
        if any(beginning in data for beginning in known.beginnings.found):
            return 0
        frequent = FREQUENT_REQUESTS.match(data)
        return frequent.end() if frequent else 0

    def _parse(self, data: bytes, now: float, *, progress: bool) -> bytes:
        parsed = self._batch.parse(data)
        if parsed is None:
            return self._switch_to_exact(data, now)
        requests, whole = parsed
        try:
            if self._is_plain(requests, data):
                end = len(data) if whole else sum(map(request_size, requests))
                self._out.append(data[:end])
                return self._keep(data[end:], now, progress=progress or end > 0)
            return self._judge_batch(requests, data, now)
        except TypeError:  # an array in the place of an argument
            return self._switch_to_exact(data, now)

    def resume(self, now: float, *, answered: bool = True) -> bytes:
        """Go on after the engine has dealt with `question`.

        Args:
            now: the server's clock, in Unix ms.
            answered: whether it has; otherwise what can be done on the client's own connection is done there.

        Returns:
            The bytes to send upstream. There may be another `question`.

        Raises:
            RequestTooLargeError: more would have to be held than `request_limit` allows.
            RefusedAtItsHeadError: it is to be refused before it is complete.
            OvertakenError: it must not be completed any more.
        """
        self._known.look()
        question, self.question = self.question, None
        pending, self._pending = self._pending, None
        if question is not None and question.login and self.stranger:
            if pending is None:
                many = self._reader.count > STRANGERS_ARGUMENTS
                what = "multibulk length" if many else "bulk length"
                beginning = self._reader.refused(at_count=many)
                raise RefusedAtItsHeadError(f"unauthenticated {what}", self._take_out() + beginning)
            self._turn_down(pending)
        elif pending is not None and pending.kind is Kind.BODY:
            self._out.append(pending.raw)
            if self._underway is not None:
                self._follow(self._underway, pending)
        elif pending is not None and question is not None and question.announce and self._unannounced(pending):
            self._fail_to_announce(pending, now)
        elif pending is not None and ((question is not None and question.again) or self._unannounced(pending)):
            self._judge(pending, now)
        elif pending is not None and not answered and not self._limited:
            self._unaided = True
            self._judge(pending, now)
        elif pending is not None:
            self._forward(pending, now, certain=question is not None and bool(question.unclear))
        out = self._read_exactly(now)
        self._note_state()
        return out

    def go_on(self, now: float) -> bytes:
        """Judge more of what has come, while `unfinished`; as `receive`."""
        self._known.look()
        out = self._read_exactly(now)
        self._note_state()
        return out

    def close(self) -> None:
        """Let go of what outlives requests: the client has gone."""
        self._end_transaction()
        for stream in (*self._signed, *((self._underway,) if self._underway is not None else ())):
            self._ground.streams.end(stream)
        self.replies = ReplySubstitution()  # those expected refer to this session

    def sign(self, found: Callable[[], None]) -> bytes | None:
        """Return a request that shows, by `found`, that all before it has been answered; None where none may stand."""
        if self._transaction is not None or self._is_in_part or not self._askable:
            return None
        return self._take_out() + self._expect(b"", found=found)

    def drain(self, last_words: bytes = b"") -> bytes | None:
        """Ask upstream for a sign that every request so far has been answered.

        Args:
            last_words: what the client is to get in its place, behind all replies.

        Returns:
            What to send; `replies.outstanding` turns false when the sign has come. None when a request has been sent
            in part, so that no other can be put behind it.
        """
        return None if self._is_in_part else self._take_out() + self._expect(last_words)

    @property
    def _is_in_part(self) -> bool:
        """Whether a request has been sent in part: of a head that is held up nothing has, of a last part the head."""
        if self._pending is not None:
            return self._pending.kind is Kind.BODY
        return self._reader.within

    def _expect(self, reply: bytes, *, found: Callable[[], None] | None = None) -> bytes:
        """Return the request in whose place the client gets a reply; `found` is called when that is to come."""
        self._mark_front()
        by_greeting = self.stranger and self._transaction is None and not self._subscribed
        return self.replies.expect(reply, by_greeting=by_greeting, found=found)

    def _is_plain(self, requests: list[list[bytes]], data: bytes) -> bool:
        """Return whether a chunk can go as it came. Raises TypeError where an element is an array."""
        if self._transaction is not None or not {request[0] for request in requests} <= _plain_names:
            return False
        known = self._known
        if known.blind or self._adjoining or self._prefix in data:
            return False
        return not known.deadlines or is_disjoint(known.deadlines.keys(), requests)

    def _judge_batch(self, requests: list[list[bytes]], data: bytes, now: float) -> bytes:
        position = 0
        # Checked before any is judged, for judging has effects, and cannot be done again by the reader.
        for request in requests:
            if set(map(type, request)) != {bytes}:
                raise TypeError
        self._coming = self._named(requests) if self._is_alone else []
        for number, arguments in enumerate(requests, 1):
            size = request_size(arguments)
            raw = data[position : position + size]
            header = 3 + len(str(len(arguments)))
            position += size
            self._ahead = data, position
            self._judge(Request(Kind.WHOLE, arguments, raw, len(arguments), header), now)
            if self.question is not None or (number == TURN and position < len(data)):
                if position < len(data):
                    self._reader.feed(data[position:])
                self._exact = True
                self.unfinished = self.question is None
                self._ahead = b"", 0
                return self._take_out()
        self._ahead = b"", 0
        return self._keep(data[position:], now, progress=position > 0)

    def _keep(self, tail: bytes, now: float, *, progress: bool) -> bytes:
        """Keep the beginning of a request for the next chunk; `progress`: whether there was a whole one before it."""
        if not tail or (progress and len(tail) <= TAIL_LIMIT and not self.stranger):
            self._tail = tail
            return self._take_out()
        # Not one request was complete, or this one is long: the reader goes on where it stopped, and sees at once where
        # the server would refuse to.
        return self._switch_to_exact(tail, now)

    def _switch_to_exact(self, data: bytes, now: float) -> bytes:
        self._exact = True
        self._reader.feed(data)
        return self._read_exactly(now)

    def _read_exactly(self, now: float) -> bytes:
        reader = self._reader
        left, read = TURN, reader.held
        self.unfinished = False
        if self._underway is not None and self._underway.is_cut:
            raise OvertakenError
        while self.question is None:
            if not left or read - reader.held > TURN_BYTES:
                self.unfinished = True
                return self._take_out()
            left -= 1
            request = reader.next_request()
            if request is None:
                if reader.unread:
                    self.unfinished = True
                    return self._take_out()
                if self.stranger and not reader.within and self._is_too_much_for_a_stranger():
                    self.question = Question(replied=True, login=True)
                elif reader.oversized:
                    self._pass_oversized(now)
                elif reader.held > TAIL_LIMIT:
                    self._stream(now)
                break
            self._judge(request, now)
            if self._underway is not None and self._pending is None:
                self._follow(self._underway, request)
        if not reader.held and not reader.within and not reader.broken and self.question is None:
            self._exact = False
            self._coming.clear()
        return self._take_out()

    def _take_out(self) -> bytes:
        if self._alone is not None:
            self._alone.sent()
        if self._front is not None and not (self._known.ever or self._known.blind):
            self._asides = self._front = None  # nothing to be taken out, in all likelihood
        self._mark_front()
        out = b"".join(self._out)
        self._out.clear()
        return out

    # Clients that have not logged in.

    def _is_too_much_for_a_stranger(self) -> bool:
        reader = self._reader
        return reader.count > STRANGERS_ARGUMENTS or reader.announced > STRANGERS_BYTES

    # Requests that are too long to be held.

    def _pass_oversized(self, now: float) -> None:
        """Send on what the server refuses for its size, so that it can say so; but newer ones take many arguments."""
        if self._is_streamed():
            self._pass_head(now)
        elif self._reader.count <= COUNT_LIMIT:
            beginning = self._reader.refused(at_count=False)
            raise RefusedAtItsHeadError("invalid bulk length", self._take_out() + beginning)
        elif not self._rewriter.takes_many_arguments:
            beginning = self._reader.refused(at_count=True)
            raise RefusedAtItsHeadError("invalid multibulk length", self._take_out() + beginning)
        elif self._reader.held > self._ground.request_limit:
            raise RequestTooLargeError

    def _is_streamed(self) -> bool:
        """Return whether what has come of a request is enough to judge it."""
        reader = self._reader
        return self._rewriter.is_judged_by_its_head(reader.arguments, reader.count)

    def _stream(self, now: float) -> None:
        """Send on what has come of a long request, if that is enough to judge it."""
        if self._is_streamed():
            self._pass_head(now)
        elif self._reader.held > self._ground.request_limit:
            raise RequestTooLargeError

    def _pass_head(self, now: float) -> None:
        head = self._reader.take_head()
        if head is not None:
            self._judge(head, now)

    def _follow(self, stream: Stream, part: Request) -> None:
        """Note what has been sent on of a request that still arrives, and its end."""
        stream.size += len(part.raw)
        if self._reader.within:
            return
        self._underway = None
        streams = self._ground.streams
        if (stream.is_awaited or stream.size >= LARGE) and self._askable and not self._reader.broken:

            def has_run() -> None:
                streams.end(stream)
                self._signed.remove(stream)

            self._signed.append(stream)
            self._out.append(self._expect(b"", found=has_run))
        else:
            streams.end(stream)

    def rest(self) -> bytes:
        """Return what the client has sent of a request that will not be completed: its stream has ended."""
        rest, self._tail = self._tail, b""
        return rest or self._reader.rest()

    # Judging one request.

    def _judge(self, request: Request, now: float) -> None:
        """Send a request on, refuse it, or ask the question that has to be answered before."""
        if self._has_quit or request.kind in (Kind.BODY, Kind.BROKEN):
            if request.kind is Kind.BODY and self._late and not self._reader.within:
                # It runs with its last byte: by then more may be due, and absent.
                keys, self._late = self._late, []
                due = self._known.to_ask_about(keys, now)
                absent = [(key, None) for key in keys if self._known.is_known(key)] if self._adds_late else []
                if due or absent:
                    self.question, self._pending = Question(due=tuple(due), absent=tuple(absent)), request
                    return
            self._out.append(request.raw)
            return
        if not request.arguments:
            if request.raw and self._rewriter.empty_counts:
                self._skips = self._adjoining = False
            self._out.append(request.raw)
            return
        if self._ground.guarded and request.kind is Kind.WHOLE:  # of a head it has been seen
            refusal = self._rewriter.reserved(request)
            if refusal is not None and not self.stranger:
                skips, self._skips, self._adjoining = self._skips, False, False
                self._note_reply(None, request)
                self._refuse(request, refusal, skips=skips)
                return
        # Most requests have none of these reasons to wait: to look is cheaper than to call.
        question = (
            (self._before_login(request, now) if self.stranger else None)
            or (self._doubt(request, now) if self._transaction is None else None)
            or (self._announcing(request) if self._known.shared else None)
            or (self._manage_alone(request, now) if self._known.blind or self._unaided else None)
            or self._question(request, now)
            or (self._before_reset(request) if self._wants_login else None)
        )
        if question is not None:
            self.question = question
            self._pending = request
            self._exact = True
            return
        self._forward(request, now)

    def _before_login(self, request: Request, now: float) -> Question | None:
        """Have it shown whether the client has logged in before anything is done for it."""
        if not self.stranger:
            return None
        command = self._command(request.arguments[0])
        if request.kind is Kind.HEAD:
            concerns = True  # others would wait for its end
        elif self._ground.guarded and self._rewriter.reserved(request) is not None:
            concerns = True
        elif command is None:
            self._has_quit = request.arguments[0].upper() == b"QUIT"  # its reply is no sign of a login
            concerns = False
        elif command.effect is Effect.CONNECTION or command.name.endswith(b"SUBSCRIBE"):
            concerns = True  # no sign could be put behind it, or not the one that a stranger needs
        elif command.effect is Effect.MULTI or _is_own(command, request):
            concerns = True
        else:
            concerns = self._rewriter.stands_in(command, request)
        if concerns or self._shows(request) or self._question(request, now) is not None:
            return Question(replied=True, again=True, login=True)
        return None

    def _turn_down(self, request: Request) -> None:
        """Have the server tell a client to log in; say it in its place where it does not know the command."""
        command = self._command(request.arguments[0])
        if command is not None and command.effect in (Effect.EXPIRE, Effect.LIFETIME) and request.kind is Kind.WHOLE:
            self._replace(request, self._expect(_NOT_LOGGED_IN))
        else:
            self._out.append(request.raw)

    def _before_reset(self, request: Request) -> Question | None:
        """Have everything answered before a client becomes a stranger again: no earlier reply is to speak for it."""
        is_reset = len(request.arguments) == 1 and request.arguments[0].upper() == b"RESET"
        return Question(replied=True) if is_reset and self._wants_login and self._askable else None

    def _doubt(self, request: Request, now: float) -> Question | None:
        """Ask what the user may do, if a script may be about to stand in for a request. Not within a transaction."""
        if self._transaction is not None or not self._askable or not self._rights.unsure(now):
            return None
        command = self._command(request.arguments[0])
        concerned = command is not None and (
            self._rewriter.stands_in(command, request)
            or (self._rights.by_state and _is_own(command, request))
            or (self._rights.unasked and request.kind is Kind.HEAD and command.effect in JUDGED | BLIND)
        )
        if not concerned and not self._shows(request):
            return None
        self._out.append(
            self._rights.ask(self.replies, now, self._rewriter.reading._replace(writes=self._rights.by_state))
        )
        return Question(replied=True, again=True)

    # What is done without the engine.

    @property
    def _is_alone(self) -> bool:
        """Whether nobody but the client's own connection can be relied upon to remove what is due."""
        return self._alone is not None and (self._known.blind or self._unaided)

    def _named(self, requests: Iterable[list[bytes]]) -> list[bytes]:
        """Return the keys that requests name, as many as one script looks at."""
        keys: dict[bytes, None] = {}
        for arguments in requests:
            if arguments:
                keys.update(dict.fromkeys(self._rewriter.named(self._command(arguments[0]), arguments)))
            if len(keys) >= KEYS_AT_ONCE:
                break
        return list(keys)[:KEYS_AT_ONCE]

    def _shows(self, request: Request) -> bool:
        """Return whether a request may look at collections while nobody else removes what is due there."""
        if not self._is_alone:
            return False
        command = self._command(request.arguments[0])
        if command is not None and command.effect is Effect.MULTI:
            return bool(self._coming)
        everywhere = command is not None and command.everywhere(request.arguments)
        return everywhere or bool(self._rewriter.named(command, request.arguments))

    def _manage_alone(self, request: Request, now: float) -> Question | None:
        """Put what the engine would do, were it there, before a request into the stream. Not within a transaction."""
        alone = self._alone
        if alone is None or not self._is_alone or self._transaction is not None or not self._askable:
            return None
        if self.stranger or self._limited or not self._shows(request):
            return None
        command = self._command(request.arguments[0])
        everywhere = command is not None and command.everywhere(request.arguments)
        keys = [*self._rewriter.named(command, request.arguments), *self._coming]
        if len(keys) > MOST_KEYS:
            return None
        absent = [] if command is None else self._absent(command, request)
        script = alone.ask(keys, absent, self.replies, now, everywhere=everywhere)
        if script is not None:
            self._out.append(script)
            return Question(replied=True, again=True)
        self._out.append(alone.front(keys, self.replies, now, everywhere=everywhere))
        return None

    def _announcing(self, request: Request) -> Question | None:
        """Have other proxies told of keys that may get first deadlines; of those behind in the pipeline too."""
        keys = self._unannounced(request)
        if not keys:
            return None
        ahead = self._known.unannounced(self._keys_ahead())
        return Question(announce=tuple(dict.fromkeys((*keys, *ahead))), again=True)

    def _unannounced(self, request: Request) -> list[bytes]:
        """Return the keys of a request that other proxies have to know before it goes."""
        if not self._known.shared or not request.arguments:
            return []
        command = self._command(request.arguments[0])
        if command is not None and command.effect is Effect.EXEC and self._transaction is not None:
            return self._known.unannounced(dict.fromkeys(self._transaction.marked))
        return self._known.unannounced(self._first_keys(request.arguments))

    def _first_keys(self, arguments: list[bytes]) -> list[bytes]:
        """Return the keys to which a request may give deadlines."""
        command = COMMANDS.get(arguments[0].upper())
        if command is None or command.effect not in MARKING:
            return []
        keys = command.keys(arguments) or []
        if command.effect is Effect.EXPIRE:
            return keys if len(arguments) > 3 else []
        # While it is blind it does not know of the source: to wait for others then would hold up every RENAME.
        return keys[-1:] if keys and keys[0] in self._known.deadlines else []

    def _keys_ahead(self) -> Iterator[bytes]:
        """Give the keys to which requests may give deadlines that have come, and have not been judged yet."""
        data, position = self._ahead
        parsed = self._batch.parse((data[position:] or self._reader.ahead)[:LOOKED_AHEAD])
        for arguments in parsed[0] if parsed else ():
            if set(map(type, arguments)) == {bytes}:
                yield from self._first_keys(arguments)

    def _fail_to_announce(self, request: Request, now: float) -> None:
        """Tell a client that a key cannot get its first deadline at present."""
        self._unaided = False
        if request.arguments[0].upper() == b"EXEC":
            self._forward(request, now)  # which spoils the transaction
        else:
            skips, self._skips, self._adjoining = self._skips, False, False
            self._refuse(request, _NOT_ANNOUNCED, skips=skips)

    def _question(self, request: Request, now: float) -> Question | None:
        """Return what has to be done before a request may go.

        In a transaction too, and again before its EXEC: the server may have refused the MULTI, by a rule of its own.
        """
        known = self._known
        if self._unaided:
            return None
        command = self._command(request.arguments[0])
        arriving = self._arriving(command, request, now) if self._ground.streams.keys else ()
        if self._is_alone and self._transaction is None and self._askable and not self._limited:
            return Question(arriving) if arriving else None  # the rest has been done
        if not known.deadlines and not known.blind:
            return Question(arriving) if arriving else None
        names: set[bytes] | list[bytes] = request.arguments
        everywhere = command is not None and command.everywhere(request.arguments)
        absent: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        if self._transaction is not None and command is not None and command.effect is Effect.EXEC:
            names = self._transaction.names
            everywhere = self._transaction.everywhere
            absent = [(key, None) for key in self._transaction.blind_keys]
        elif command is not None:
            absent = self._absent(command, request)
        everywhere = everywhere and known.any_due(now)
        due = () if known.deadlines.keys().isdisjoint(names) else tuple(dict.fromkeys(known.to_ask_about(names, now)))
        unclear, replied = self._limited_question(command, request)
        if absent and self._transaction is None and self._askable:
            replied = True  # what the client has sent before may remove what this brings back
        if not (arriving or due or everywhere or unclear or absent or replied):
            return None
        tentative = bool(absent) and self._limited
        return Question(arriving, due, everywhere, unclear, tuple(absent), replied, tentative)

    def _arriving(self, command: Command | None, request: Request, now: float) -> tuple[bytes, ...]:
        """Return the keys that a request may give deadlines while others send requests for them."""
        if command is None or command.effect not in MARKING:
            return ()
        keys = command.keys(request.arguments) or ()
        if command.effect is not Effect.EXPIRE and not any(map(self._known.is_known, keys)):
            return ()
        arriving = tuple(key for key in keys if self._ground.streams.of((key,), but=self))
        for key in arriving:
            self._known.mark(key, math.inf, now)  # what comes after those is judged
        return arriving

    def _limited_question(self, command: Command | None, request: Request) -> tuple[tuple[bytes, ...], bool]:
        """Return of which keys a request must not be taken to be known for no good reason, as its user may run no
        script; and whether members that requests before it remove have to be gone."""
        if command is None or not self._limited:
            return (), False
        unclear = [key for key in self._rewriter.unclear(command, request.arguments) if self._known.is_known(key)]
        opens = command.effect is Effect.MULTI
        return tuple(unclear), opens and self._transaction is None and self._askable

    def _absent(self, command: Command, request: Request) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Return in which known keys a request may add members without a script that looks which are absent."""
        arguments = request.arguments
        keys = self._blind_keys(command, request)
        members: tuple[bytes, ...] | None = None
        if keys and command.members is not None and request.kind is Kind.WHOLE:
            positions = command.members(arguments, request.count)
            if positions is not None:
                members = tuple(arguments[positions.start : positions.stop : positions.step])
        return [(key, members) for key in dict.fromkeys(keys) if self._known.is_known(key)]

    def _blind_keys(self, command: Command, request: Request) -> list[bytes]:
        """Return the keys to which a request may add members without such a script."""
        effect = command.effect
        if self._limited and effect is Effect.MOVE_MEMBER:
            return (command.keys(request.arguments) or [])[1:]
        if self._limited and effect is Effect.ADD:
            return command.keys(request.arguments) or []
        if effect in BLIND or (effect is Effect.ADD and request.count > UNPACKED):
            return command.keys(request.arguments) or []
        return []

    def _command(self, name: bytes) -> Command | None:
        upper = name.upper()
        command = COMMANDS.get(upper)
        if name in _plain_names:
            return command
        if (
            (command is None or not command.always)
            and name in (upper, upper.lower(), upper.title())  # as libraries and people spell them
            and self._rewriter.knows(upper)
        ):
            _plain_names.add(name)
        return command

    def _forward(self, request: Request, now: float, *, certain: bool = False) -> None:
        arguments = request.arguments
        command = self._command(arguments[0])
        askable = self._askable
        skips, self._skips, self._adjoining = self._skips, False, False
        self._unaided = False
        if self._alone is not None and command is not None and command.effect in _ELSEWHERE:
            self._alone.forget()
        self._rights.note(command.effect if command is not None else None)
        if self._transaction is not None:
            self._note_reply(command, request)
            blind = [] if command is None else self._blind_keys(command, request)
            self._transaction.queue(command, arguments, blind, reads=self._rewriter.reads(arguments[0]))
        if command is None:
            self._out.append(request.raw)
            self._late, self._adds_late = arguments[1:2] if request.kind is Kind.HEAD else [], False
            return
        if command.name == b"RESET" and request.count == 1:
            self.stranger = self._wants_login
            self.replies.silenced = self._subscribed = False
        elif command.name.endswith(b"SUBSCRIBE"):
            self._subscribed = self._rights.by_state = True
            if self._asides is not None:
                self._asides.shut = True  # a subscription to several is answered several times
        elif command.name == b"MONITOR":
            self._rights.by_state = True
        if command.effect is Effect.CONNECTION:
            self._out.append(request.raw)
            self._hush(arguments)
            return
        if command.effect is Effect.DATABASE:
            for argument in arguments[1:3]:
                self._known.visit(strict_integer(argument) or 0)
        if command.effect is Effect.EXEC and not self._rewriter.accepts(command, request.count):
            self._out.append(request.raw)
            self._queued_words = []
            self._end_transaction()  # servers drop a transaction whose EXEC they refuse
            return
        refused = self._rights.confinement and self._transaction is None
        if command.effect in _TRANSACTION and not refused and self._rewriter.accepts(command, request.count):
            self._bound_transaction(command.effect, now, askable=askable)
            self._out.append(request.raw)
            if command.effect is not Effect.MULTI:
                words, self._queued_words = self._queued_words, []
                self._heed(words if command.effect is Effect.EXEC else [], queued=True)
            return
        if self._rights.confinement and ((own := _is_own(command, request)) or command.effect is not Effect.EXPIRE):
            # The server runs none of these, and is to say so of the client's own command.
            self._replace(request, self._expect(self._rights.confined(command.name)) if own else request.raw)
            return
        instead = self._rewriter.rewrite(
            command, request, now, claims=self.claims, limited=self._limited, certain=certain
        )
        if instead is None:
            self._void_within_transaction(command, request)
            self._out.append(request.raw)
            if request.kind is Kind.HEAD and self._transaction is None and command.effect in JUDGED | BLIND:
                # In a transaction it is looked at once more before EXEC.
                trusted = not self._limited and not self._rights.unasked
                keys = command.keys(arguments) or []
                self._late, self._adds_late = keys if command.effect in BLIND else [], True
                self._underway = self._ground.streams.begin(self, keys, is_waited_for=trusted)
        elif isinstance(instead, Refusal):
            self._refuse(request, instead, skips=skips)
        else:
            if self._transaction is not None and (guard := self._rewriter.guard(command)) is not None:
                self._put_aside(guard)
            self._replace(request, instead)
            if self._transaction is not None:
                self._transaction.rewritten(command, arguments)

    def _refuse(self, request: Request, refusal: Refusal, *, skips: bool) -> None:
        """Have the client get an error in the place of a request's reply, if it gets one."""
        line = b"-%b\r\n" % refusal.message
        self._replace(request, self.replies.unheard() if skips else self._expect(line))

    def _hush(self, arguments: list[bytes]) -> None:
        """Note what a CLIENT that has gone says of the replies to come; in a transaction it says so at EXEC."""
        words = [word.upper() for word in arguments[1:]]
        if words[:1] not in ([b"REPLY"], [b"CACHING"]):
            return
        if self._transaction is not None:
            self._queued_words = words
        else:
            self._heed(words)

    def _heed(self, words: list[bytes], *, queued: bool = False) -> None:
        if words == [b"REPLY", b"OFF"]:
            # Should the server have refused it this will be answered.
            self.replies.silenced = True
            self._out.append(self.replies.expect(b"", found=self._not_silenced))
        elif words == [b"REPLY", b"ON"] and queued and self.replies.silenced:
            # The server may have dropped the transaction. If not this will be answered.
            self._out.append(self.replies.expect(b"", found=self._not_silenced))
        elif words == [b"REPLY", b"ON"]:
            self.replies.silenced = False
        elif words == [b"REPLY", b"SKIP"]:
            self._adjoining = self._skips = True
        elif words[:1] == [b"CACHING"]:
            self._adjoining = True

    def _not_silenced(self) -> None:
        self.replies.silenced = False

    @property
    def _limited(self) -> bool:
        """Whether the user may not run every script. In a transaction nobody can be asked any more."""
        return self._rights.limited or (self._transaction is not None and self._rights.unasked)

    @property
    def _askable(self) -> bool:
        """Whether a request of the proxy's own may be put into the stream now, and is answered."""
        return not self.replies.silenced and not self._adjoining

    def _replace(self, request: Request, instead: bytes) -> None:
        """Send something else in the place of a request; where the server may refuse how its lines end, likewise.

        Raises:
            RequestTooLargeError: the request is still arriving, and its rest has no place behind what replaces it.
        """
        if request.kind is Kind.HEAD and not instead.endswith(request.raw[request.header :]):
            raise RequestTooLargeError
        self._out.append(instead.replace(b"\r\n", b"\r?", 1) if request.odd else instead)

    def _bound_transaction(self, effect: Effect, now: float, *, askable: bool) -> None:
        """Begin or end a transaction, as the request that is about to go does.

        `askable`: whether a request of the proxy's own may stand in front of it.
        """
        if effect is Effect.MULTI:
            if self._transaction is None:
                self._transaction = Transaction(self._known, self.claims)
                if askable and not self.stranger and not self._limited:
                    self._asides = Asides()
                    self._asides.note(Whose.CLIENT)
                    self._front = len(self._out)
                    self._out.append(b"")
            return
        if effect is Effect.EXEC and self._transaction is not None:
            if self._transaction.is_overtaken or self._known.unannounced(self._transaction.marked):
                # It would run as if that key had no deadlines. Spoil it, by a request whose own reply nobody sees: EXEC
                # answers with EXECABORT.
                self._out.append(self.replies.expect(b""))
            self._transaction.run(now)
        self._end_transaction()

    def _end_transaction(self) -> None:
        if self._asides is not None:
            self._asides.close()
        self._transaction = self._asides = self._front = None

    # Requests of the proxy's own within a transaction, whose replies are taken out of the client's.

    def _note_reply(self, command: Command | None, request: Request) -> None:
        if self._asides is not None:
            runs = (
                command is not None and command.effect is Effect.EXEC and self._rewriter.accepts(command, request.count)
            )
            self._asides.note(Whose.EXEC if runs else Whose.CLIENT)

    def _void_within_transaction(self, command: Command, request: Request) -> None:
        """Void what is absent by then in the keys to which a request adds without looking: what is queued before it
        may remove members."""
        if self._asides is not None and self._transaction is not None and self._transaction.follows_writes:
            for key, members in self._absent(command, request):
                self._put_aside(self._rewriter.void(key, members))

    def _put_aside(self, own: bytes) -> None:
        """Put a request of the proxy's own in front of the client's that is about to be queued, where it can be."""
        if self._asides is None or self._asides.shut or self._queued_words or self._limited:
            return
        self._mark_front()
        self._asides.precede()
        self._out.append(own)

    def _mark_front(self) -> None:
        """Mark where the replies of the open transaction begin."""
        if self._front is not None and self._asides is not None:
            self._out[self._front] = self.replies.open(self._asides)
            self._front = None


def _is_own(command: Command, request: Request) -> bool:
    """Return whether a request is of a form that the server itself does not know."""
    effect = command.effect
    return (effect is Effect.EXPIRE and request.count > 3) or (effect is Effect.LIFETIME and request.count > 2)


_NOT_LOGGED_IN: Final = b"-NOAUTH Authentication required.\r\n"
"""The same words in all servers (`shared.noautherr`)."""

_ELSEWHERE: Final = frozenset((Effect.DATABASE, Effect.LOGIN, Effect.DISCARD, Effect.EXEC))
"""What may take a connection to another database, or give it another user."""
_NOT_ANNOUNCED: Final = Refusal(
    b"ERR expiremember-proxy: other proxies could not be told in time that this key gets its first deadline;"
    b" nothing has been changed, try again"
)

_TRANSACTION: Final = frozenset((Effect.MULTI, Effect.EXEC, Effect.DISCARD))
