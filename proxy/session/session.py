"""One client's stream of requests, without I/O: bytes in; bytes for upstream, sometimes a question for the engine, out.

Every request becomes exactly one upstream request, in order, so replies need no parsing.
"""

from __future__ import annotations

from typing import Final

from proxy.commands.table import COMMANDS, STREAMED, Command, Effect
from proxy.session.known import KnownKeys
from proxy.session.plain import FREQUENT_REQUESTS, plain_check
from proxy.session.question import Question
from proxy.session.rewrite import UNPACKED, Refusal, Rewriter
from proxy.wire.batch import BatchParser, is_disjoint, request_size
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import COUNT_LIMIT, Kind, Request, RequestReader, strict_integer

TAIL_LIMIT: Final = 16 * 1024
"""Bytes of an incomplete request that are kept to be parsed again with the next chunk; beyond, the reader resumes."""

PLAIN_NAMES_LIMIT: Final = 4096
"""Spellings of command names kept as plain: they are the client's words, so they are bounded."""

QUEUED_LIMIT: Final = 100_000
"""Arguments of a transaction that are remembered; beyond, whatever is due anywhere is removed before EXEC."""

_plain_names: set[bytes] = set()
"""Names, as clients spell them, of commands that need no look while they touch no known key. Shared by all sessions."""


class RequestTooLargeError(Exception):
    """A request that has to be read whole before it can be judged is larger than the limit."""


class Session:
    """The state of one client connection.

    Args:
        rewriter: what puts other requests in place of some.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
        request_limit: bytes of a request that may have to be held before it can be judged.
        guarded: whether to refuse requests that name the proxy's own keys.

    Attributes:
        ordinary: whether the stream stands between two requests, outside of a transaction and with nothing held.
        is_plain: while `ordinary`, tells whether a chunk can go upstream as it came, without `receive`.
        question: what the engine is to do before the session can go on; None while it is not held up.
        replies: what the replies from upstream have to pass through while `replies.outstanding`.
    """

    def __init__(
        self, rewriter: Rewriter, known: KnownKeys, prefix: bytes, request_limit: int, *, guarded: bool = True
    ) -> None:
        self.ordinary = True
        self.is_plain = plain_check(_plain_names, known, prefix)
        self.question: Question | None = None
        self.replies = ReplySubstitution()
        self._rewriter = rewriter
        self._known = known
        self._prefix = prefix
        self._request_limit = request_limit
        self._guarded = guarded
        self._batch = BatchParser()
        self._reader = RequestReader()
        self._exact = False  # whether the reader, not the batch parser, has the stream
        self._tail = b""
        self._out: list[bytes] = []
        self._queued: set[bytes] | None = None  # arguments of the open transaction
        self._queued_marks: list[bytes] = []
        self._queued_everywhere = False
        self._queued_blindly: set[bytes] = set()  # keys to which scripts in the transaction may add members
        self._queued_unjudged: set[bytes] = set()  # keys without deadlines when requests for them were queued
        self._pending: Request | None = None  # what is held up by the question

    @property
    def held(self) -> int:
        """Bytes of requests that have been received and not been sent on."""
        return self._reader.held + len(self._tail) + (len(self._pending.raw) if self._pending else 0)

    def receive(self, data: bytes, now: float) -> bytes:
        """Take bytes from the client.

        Args:
            data: the bytes.
            now: the server's clock, in Unix ms.

        Returns:
            The bytes to send upstream. Look at `question` afterwards.

        Raises:
            RequestTooLargeError: more would have to be held than `request_limit` allows.
        """
        out = self._receive(data, now)
        self._note_state()
        return out

    def _note_state(self) -> None:
        self.ordinary = not self._exact and not self._tail and self._queued is None

    def _receive(self, data: bytes, now: float) -> bytes:
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
        """Tell how many bytes at the front are frequent requests that can go as they came."""
        known = self._known
        if self._queued is not None or known.blind or self._prefix in data:
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
        except (TypeError, IndexError):
            return self._switch_to_exact(data, now)

    def resume(self, now: float) -> bytes:
        """Go on after the engine has dealt with `question`.

        Args:
            now: the server's clock, in Unix ms.

        Returns:
            The bytes to send upstream. There may be another `question`.
        """
        self.question = None
        pending, self._pending = self._pending, None
        if pending is not None:
            self._forward(pending, now)
        out = self._read_exactly(now)
        self._note_state()
        return out

    def drain(self, last_words: bytes = b"") -> bytes | None:
        """Ask upstream for a sign that every request so far has been answered.

        Args:
            last_words: what the client is to get in its place, behind all replies.

        Returns:
            What to send; `replies.outstanding` turns false when the sign has come. None when a request has been sent
            in part, so that no other can be put behind it.
        """
        return None if self._reader.within else self._take_out() + self.replies.expect(last_words)

    def _is_plain(self, requests: list[list[bytes]], data: bytes) -> bool:
        """Tell whether a chunk can go as it came. Raises TypeError or IndexError where elements are not bytes."""
        if self._queued is not None or not {request[0] for request in requests} <= _plain_names:
            return False
        known = self._known
        if known.blind or self._prefix in data:
            return False
        return not known.deadlines or is_disjoint(known.deadlines.keys(), requests)

    def _judge_batch(self, requests: list[list[bytes]], data: bytes, now: float) -> bytes:
        position = 0
        # Checked before any is judged, for judging has effects, and cannot be done again by the reader.
        for request in requests:
            if set(map(type, request)) != {bytes}:
                raise TypeError
        for arguments in requests:
            size = request_size(arguments)
            raw = data[position : position + size]
            header = 3 + len(str(len(arguments)))
            position += size
            self._judge(Request(Kind.WHOLE, arguments, raw, len(arguments), header), now)
            if self.question is not None:
                if position < len(data):
                    self._reader.feed(data[position:])
                return self._take_out()
        return self._keep(data[position:], now, progress=position > 0)

    def _keep(self, tail: bytes, now: float, *, progress: bool) -> bytes:
        """Keep the beginning of a request for the next chunk; `progress`: whether there was a whole one before it."""
        if not tail or (progress and len(tail) <= TAIL_LIMIT):
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
        while self.question is None:
            request = reader.next_request()
            if request is None:
                if reader.oversized:
                    self._pass_oversized(now)
                elif reader.held > TAIL_LIMIT:
                    self._stream(now)
                break
            self._judge(request, now)
        if not reader.held and not reader.within and not reader.broken and self.question is None:
            self._exact = False
        return self._take_out()

    def _take_out(self) -> bytes:
        out = b"".join(self._out)
        self._out.clear()
        return out

    def _pass_oversized(self, now: float) -> None:
        """Send on what the server refuses for its size, so that it can say so; but newer ones take many arguments."""
        known = self._known
        if self._reader.count > COUNT_LIMIT and (known.deadlines or known.blind) and not self._is_streamed():
            raise RequestTooLargeError
        self._pass_head(now)

    def _is_streamed(self) -> bool:
        """Tell whether what has come of a request is enough to judge it."""
        arguments = self._reader.arguments
        return (
            len(arguments) >= 2
            and arguments[0].upper() in STREAMED
            and not self._known.is_known(arguments[1])
            and not arguments[1].startswith(self._prefix)
        )

    def _stream(self, now: float) -> None:
        """Send on what has come of a long request, if that is enough to judge it."""
        if self._is_streamed():
            self._pass_head(now)
        elif self._reader.held > self._request_limit:
            raise RequestTooLargeError

    def _pass_head(self, now: float) -> None:
        head = self._reader.take_head()
        if head is not None:
            self._forward(head, now)

    def rest(self) -> bytes:
        """Return what the client has sent of a request that will not be completed: its stream has ended."""
        rest, self._tail = self._tail, b""
        return rest or self._reader.rest()

    def _judge(self, request: Request, now: float) -> None:
        """Send a request on, refuse it, or ask the question that has to be answered before."""
        if self._guarded and request.arguments:
            refusal = self._rewriter.reserved(request)
            if refusal is not None:
                self._out.append(self.replies.expect(b"-%b\r\n" % refusal.message))
                return
        if request.kind is Kind.WHOLE and request.arguments:
            question = self._question(request, now)
            if question is not None:
                self.question = question
                self._pending = request
                self._exact = True
                return
        self._forward(request, now)

    def _question(self, request: Request, now: float) -> Question | None:
        """Tell what has to be done before a request may go.

        In a transaction too, and again before its EXEC: the server may have refused the MULTI, by a rule of its own.
        """
        known = self._known
        if not known.deadlines and not known.blind:
            return None
        command = self._command(request.arguments[0])
        names: set[bytes] | list[bytes] = request.arguments
        everywhere = command is not None and command.everywhere(request.arguments)
        absent: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        if self._queued is not None and command is not None and command.effect is Effect.EXEC:
            names = self._queued
            everywhere = self._queued_everywhere or len(names) > QUEUED_LIMIT
            absent = [(key, None) for key in self._queued_blindly if known.is_known(key)]
        elif command is not None:
            absent = self._absent(command, request.arguments)
        everywhere = everywhere and known.any_due(now)
        due = () if known.deadlines.keys().isdisjoint(names) else tuple(dict.fromkeys(known.due(names, now)))
        question = Question(due, everywhere, tuple(absent))
        return None if question == _NOTHING else question

    def _absent(self, command: Command, arguments: list[bytes]) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Tell in which known keys a request may add members without a script that looks which are absent."""
        keys = self._blind_keys(command, arguments)
        members: tuple[bytes, ...] | None = None
        if keys and command.members is not None:
            positions = command.members(arguments)
            if positions is not None:
                members = tuple(arguments[positions.start : positions.stop : positions.step])
        return [(key, members) for key in dict.fromkeys(keys) if self._known.is_known(key)]

    @staticmethod
    def _blind_keys(command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys to which a request may add members without such a script."""
        effect = command.effect
        if effect in (Effect.SCRIPT, Effect.ARRIVE, Effect.COUNT) or (
            effect is Effect.ADD and len(arguments) > UNPACKED
        ):
            return command.keys(arguments) or []
        return []

    @staticmethod
    def _command(name: bytes) -> Command | None:
        if name in _plain_names:
            return COMMANDS.get(name.upper())
        command = COMMANDS.get(name.upper())
        if (command is None or not command.always) and len(_plain_names) < PLAIN_NAMES_LIMIT and len(name) < 64:
            _plain_names.add(name)
        return command

    def _forward(self, request: Request, now: float) -> None:
        arguments = request.arguments
        if not arguments:
            self._out.append(request.raw)
            return
        command = self._command(arguments[0])
        if self._queued is not None:
            self._queue(command, arguments)
        if command is None or request.kind is not Kind.WHOLE:
            self._out.append(request.raw)
            return
        if command.effect is Effect.DATABASE:
            for argument in arguments[1:3]:
                self._known.visit(strict_integer(argument) or 0)
        foreign = self._queued_unjudged.difference(self._queued_marks)
        if command.effect is Effect.EXEC and any(map(self._known.is_known, foreign)):
            # A key of a queued request has got its first deadline from elsewhere, and the request would run as if it
            # had none. Spoil the transaction, by a request whose own reply nobody sees: EXEC answers with EXECABORT.
            self._out.append(self.replies.expect(b""))
        if command.effect in _TRANSACTION and self._rewriter.accepts(command, request.count):
            self._transaction(command.effect, now)
            self._out.append(request.raw)
            return
        instead = self._rewriter.rewrite(command, request, now)
        if instead is None:
            self._out.append(request.raw)
        elif isinstance(instead, Refusal):
            self._out.append(self.replies.expect(b"-%b\r\n" % instead.message))
        else:
            self._out.append(instead)
            if self._queued is not None and command.effect in _MARKING:
                self._queued_marks += command.keys(arguments) or ()

    def _queue(self, command: Command | None, arguments: list[bytes]) -> None:
        """Remember what a transaction touches, for the question before EXEC."""
        queued = self._queued
        if queued is not None and len(queued) <= QUEUED_LIMIT:
            queued.update(arguments[1:])
        if command is None:
            return
        self._queued_everywhere = self._queued_everywhere or command.everywhere(arguments)
        blind = self._blind_keys(command, arguments)
        self._queued_blindly.update(blind)
        if not blind and command.effect in _JUDGED:
            # Goes as it came, as its keys have no deadlines. They may have when the transaction runs.
            self._queued_unjudged.update(key for key in command.keys(arguments) or () if not self._known.is_known(key))

    def _transaction(self, effect: Effect, now: float) -> None:
        if effect is Effect.MULTI:
            if self._queued is None:
                self._queued = set()
            return
        if effect is Effect.EXEC:
            # The marks were made when the requests were queued; they count from when these run.
            for key in self._queued_marks:
                self._known.mark(key, self._known.deadlines.get(key, now), now)
        self._queued = None
        self._queued_marks = []
        self._queued_everywhere = False
        self._queued_blindly = set()
        self._queued_unjudged = set()


_NOTHING: Final = Question()

_TRANSACTION: Final = frozenset((Effect.MULTI, Effect.EXEC, Effect.DISCARD))

_JUDGED: Final = frozenset((Effect.ADD, Effect.REPLACE, Effect.MOVE_MEMBER, Effect.RENAME, Effect.COPY, Effect.MOVE))
"""Effects that go wrong when a request that has them is forwarded as it came for a key that has deadlines."""

_MARKING: Final = frozenset((Effect.EXPIRE, Effect.RENAME, Effect.COPY, Effect.MOVE))
"""Effects by which a key may come to have deadlines."""
