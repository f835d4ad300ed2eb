"""One client's stream of requests, without I/O: bytes in; bytes for upstream, sometimes a question for the engine, out.

Every request becomes exactly one upstream request, in order, so replies need no parsing. The stream is cut into
requests, as cheaply as can be; each is judged: what it has to wait for, and then what goes in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Set
from functools import partial
from itertools import islice
from typing import Final

from proxy.commands.table import BLIND, JUDGED, Command, Effect, is_indifferent
from proxy.coverage.coverage import DATABASES
from proxy.session import additions, describe, strangers
from proxy.session.announcing import NOT_ANNOUNCED, Announcing, keys_expected
from proxy.session.errors import OvertakenError, RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.fronts import Fronts
from proxy.session.ground import BLOCKERS, PLAIN, Ground
from proxy.session.hearing import Hearing, speaks_of_next
from proxy.session.identity import WHO, Identity, who
from proxy.session.inquiry import Inquiry
from proxy.session.multi import Multi
from proxy.session.outgoing import Outgoing
from proxy.session.permits import TOGETHER
from proxy.session.pipeline import Pipeline
from proxy.session.plain import FREE, FREE_OF_BLIND, LARGEST, PURE
from proxy.session.question import Question
from proxy.session.reads import Late, Reads
from proxy.session.remaining import Remaining
from proxy.session.rewrite import LONGEST_NAME, Refusal, is_own
from proxy.session.rights import Rights, named_user, short_name
from proxy.session.standing import DEFAULT_USER, Login, Next, Standing, Subscriptions
from proxy.session.strangers import Strangers
from proxy.session.together import Together
from proxy.session.turns import REQUESTS, RUNS, STRANGERS_BYTES
from proxy.session.upload import Upload
from proxy.session.without_engine import WithoutEngine
from proxy.wire.batch import request_size
from proxy.wire.frames import frames
from proxy.wire.lines import is_begun
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import ARGUMENT_SIZE, COUNT_LIMIT, Kind, Request, encode, strict_integer
from proxy.wire.runs import LEAST

TAIL_LIMIT: Final = 16 * 1024
"""Bytes of an incomplete request that are kept to be parsed again with the next chunk; beyond, the reader resumes."""

_STAR: Final = 0x2A

_ELSEWHERE: Final = frozenset((Effect.DATABASE, Effect.LOGIN, Effect.DISCARD, Effect.EXEC))
"""What may take a connection to another database, or give it another user."""

_TRANSACTION: Final = frozenset((Effect.MULTI, Effect.EXEC, Effect.DISCARD))

_FREE: Final = Next.FREE
_JOINED: Final = Next.JOINED
_SKIPPED: Final = Next.SKIPPED
_OPEN: Final = Login.OPEN
_STRANGER: Final = Login.STRANGER


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
        quiet: whether what has been sent last are reads taken by `guard`.
        replies: what the replies from upstream have to pass through while `replies.outstanding`.
        pipeline: stands for the connection where others wait for what it has sent.
        blocker: changes with each request sent on that may keep what follows it from running.
        turns: how much is judged at once.
    """

    def __init__(self, ground: Ground, *, stranger: bool = False, rights: Rights | None = None) -> None:
        self.ordinary = self._is_between = not stranger
        self.question: Question | None = None
        self.quiet = False
        self.pipeline = Pipeline()
        self.turns = ground.turns
        self.blocker = -1  # the number of the first sign behind it
        self._stopped = False  # whether the reader may have more that can be judged at once
        self._waiting: deque[bytes] = deque()  # what has come, and has not got its turn
        self._waiting_size = 0
        self._ground = ground
        self._coverage = ground.coverage
        self._rewriter = ground.rewriter
        self._reader = ground.rewriter.new_reader()
        self._exact = False  # whether the reader, not the batch parser, has the stream
        self._tail = b""
        self._pending: Request | None = None  # what is held up by the question
        self._replied = False  # whether what was sent before it has been answered since it came
        self._expected: Set[bytes] = frozenset()  # keys to which the last bytes that came may give deadlines
        # None of these knows the session, which therefore goes with the last reference to it.
        self._standing = Standing(rights or Rights(), Login.STRANGER if stranger else Login.OPEN)
        self.replies = self._standing.replies
        self._out = Outgoing(ground.coverage, self._standing)
        self._hearing = Hearing(self._standing, self._out)
        self._multi = Multi(ground, self._standing, self._out, self._hearing, self.pipeline)
        self._upload = Upload(ground, self._standing, self._out)
        self._announcing = Announcing(ground, self._standing, self._reader, self.pipeline)
        self._without = WithoutEngine(ground, self._standing, self._out)
        self._fronts = Fronts(ground, self._standing, self._out, self._without)
        self._inquiry = Inquiry(ground, self._standing, self._without, self._announcing, self._out, self._fronts)
        self._reads = Reads(ground, self._standing, self._out, self._without)
        self._remaining = Remaining(ground.names, self._standing, ground.now)
        self._together = Together(ground, self._standing, self._out, self._reads)
        self._strangers = Strangers(ground, self._standing, self._out, self._without, self._inquiry)

    @property
    def stranger(self) -> bool:
        """Whether the client has still to log in, as far as is known."""
        return self._standing.login is _STRANGER

    @property
    def unfinished(self) -> bool:
        """Whether more of what has come can be judged at once, by `go_on`."""
        return self._stopped or bool(self._waiting)

    @property
    def held(self) -> int:
        """Bytes, about, that requests take which have been received and not been sent on."""
        request = self._pending
        pending = len(request.raw) + ARGUMENT_SIZE * len(request.arguments) if request else 0
        transaction = self._standing.transaction
        queued = self._standing.watched.size + (transaction.size if transaction is not None else 0)
        waiting = self._waiting_size + self.replies.waiting
        return self._reader.memory + len(self._tail) + waiting + pending + queued

    @property
    def hears_unasked(self) -> bool:
        """Whether the server may tell the client something that it has not asked for: messages, changes, commands."""
        standing = self._standing
        return standing.subscribed or standing.caches or standing.rights.by_state

    @property
    def may_block(self) -> bool:
        """Whether a request may keep what follows it from running: unless a sign behind it has been answered."""
        return self.blocker >= self.replies.settled or self._standing.is_link

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as far as the requests tell."""
        return self._standing.transaction is not None

    @property
    def answers(self) -> bool:
        """Whether the server would answer the next request."""
        return self._standing.answers

    @property
    def has_begun_transaction(self) -> Callable[[], bool] | None:
        """Returns whether all that was sent before the open transaction has been answered; None: see `sign`."""
        transaction = self._standing.transaction
        return transaction.has_begun if transaction is not None else None

    @property
    def waits_for_login(self) -> bool:
        """Whether the question is whether the client has logged in."""
        return self.question is not None and self.question.login

    def login(self) -> None:
        """Note that the server's replies have shown the client to be logged in."""
        if self.stranger:
            self._standing.login = Login.ADMITTED
            self._coverage.visit(self._strangers.visited)
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
        self._expect(data)
        self.quiet = False
        if not self._exact and (self._waiting or len(data) > self.turns.bytes):
            self._waiting.append(data)
            self._waiting_size += len(data)
            if len(self._waiting) > 1:
                return b""
            out = self._receive_slice(now)
        else:
            out = self._receive(data, now)
        self._note_state()
        return out

    def guard(self, data: bytes, now: float) -> bytes | None:
        """Take bytes while `ordinary`, if they are nothing but reads of the frequent form; return what to send."""
        self._coverage.look()
        out = self._reads.guard_at_once(data, now, quiet=self.quiet)
        if out is not None:
            self._note_state()
            self.quiet = True
        return out

    def keep(self, data: bytes) -> bytes:
        """Take bytes from the client that are to be judged later, by `go_on`. Nothing is to be sent for them yet."""
        self._expect(data)
        if self._exact:
            self._reader.feed(data)
            self._stopped = self.question is None
        else:
            self._waiting.append(data)
            self._waiting_size += len(data)
        self._note_state()
        return b""

    def _expect(self, data: bytes) -> None:
        if not self._reader.within and not self.stranger:
            expected = keys_expected(data, in_transaction=self.in_transaction, lacks=self._rewriter.lacks)
            self._expected = self._expected | expected if self._waiting else expected

    def _receive_slice(self, now: float) -> bytes:
        out = self._receive(self._next_slice(), now)
        if self._exact and self._waiting:  # the reader is to see what comes behind the request that it stands at
            self._reader.feed(b"".join(self._waiting))
            self._waiting.clear()
            self._waiting_size = 0
            self._stopped = self.question is None
        return out

    def _next_slice(self) -> bytes:
        """Return as much of what waits as a turn may have."""
        data, most = self._waiting.popleft(), self.turns.bytes
        if len(data) > most:
            self._waiting.appendleft(data[most:])
            data = data[:most]
        self._waiting_size -= len(data)
        return data

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
        self._coverage.look()
        question, self.question = self.question, None
        pending, self._pending = self._pending, None
        if question is not None and question.login and self.stranger:
            if pending is None:
                what, beginning = strangers.what_is_too_much(self._reader)
                raise self._refused_at_its_head(what, beginning)
            self._strangers.turn_down(pending)
        elif pending is not None and pending.kind in (Kind.BODY, Kind.BROKEN):
            self._out.append(pending.raw)
            self._follow(pending)
        elif pending is not None and question is not None:
            self._judge_again(pending, question, now, answered=answered)
        out = self._read_exactly(now)
        self._note_state()
        return out

    def go_on(self, now: float) -> bytes:
        """Judge more of what has come, while `unfinished`; as `receive`."""
        if self._stopped or not self._waiting:
            self._coverage.look()
            out = self._read_exactly(now)
        else:
            out = self._receive_slice(now)
        self._note_state()
        return out

    def close(self) -> None:
        """Let go of what outlives requests: the client has gone."""
        self._multi.end()
        self._upload.close()
        self.replies = self._standing.replies = ReplySubstitution()  # those expected refer to parts of this session

    def lengthen(self) -> None:
        """Note that a long chunk has been sent: others may have to wait until it has run. Nobody waits for a user who
        may do little: such a one could hold up all; nor for what is queued, which runs with its EXEC."""
        standing = self._standing
        if self.stranger or standing.limited or standing.rights.unasked:
            return
        if standing.transaction is not None:
            if standing.transaction.is_long:
                return
            standing.transaction.is_long = True  # this chunk may have begun before it
        self._ground.streams.lengthen(self.pipeline)

    def sign(self, found: Callable[[], None]) -> bytes | None:
        """Return a request that shows, by `found`, that all before it has been answered; None where none may stand."""
        if self.in_transaction or self._is_in_part or not self._standing.askable:
            return None
        return self._take_out() + self._out.expect(b"", found=found)

    @property
    def reads_under_way(self) -> bool:
        """Whether reads have been sent that may have to be sent once more."""
        return self._reads.under_way > 0

    def take_late(self) -> list[Late]:
        """Return the reads whose replies have come too late. What is due in their keys has to be removed first."""
        return self._reads.take_late()

    def read_again(self, late: list[Late], now: float) -> bytes:
        """Return what sends such reads once more; `now` in Unix ms."""
        self._reads.send_again(late, now)
        return self._take_out()

    def take_settled(self) -> bool:
        """Return whether the last of the reads under way has been answered since this was last asked."""
        if not self._reads.take_settled():
            return False
        self._note_state()
        return True

    def drain(self, last_words: bytes = b"") -> bytes | None:
        """Ask upstream for a sign that every request so far has been answered.

        Args:
            last_words: what the client is to get in its place, behind all replies.

        Returns:
            What to send; `replies.outstanding` turns false when the sign has come. None when a request has been sent
            in part, so that no other can be put behind it.
        """
        if self._is_in_part:
            return None
        out = self._take_out()
        if self._standing.next is _SKIPPED:
            out += self._out.expect(b"")  # of which the server tells nothing
        return out + self._out.expect(last_words, fails=bool(last_words))

    def probe(self) -> bytes | None:
        """Return the loud sign that shows whether a silent one has been refused; None where none may stand."""
        return None if self._is_in_part else self._take_out() + self.replies.expect(b"")

    def ask_who(self, hear: Callable[[Identity | None], None]) -> bytes | None:
        """Ask the server, behind all that has been sent, whose this connection is.

        Args:
            hear: gets the answer when all before it has been answered; None where others may not have the same.

        Returns:
            What to send. None where it cannot be asked now.
        """
        standing = self._standing
        if not self._is_between or not standing.askable or standing.caches or standing.unlike or standing.has_quit:
            return None

        def take(said: bytes) -> bytes:
            told, others = _apart(said)
            hear(who(told))
            return others

        return self._take_out() + standing.marked.enclose(WHO, take)

    @property
    def user(self) -> bytes:
        """As whom the client has last asked to be."""
        return self._standing.user

    def may_go_jointly(self, now: float) -> bool:
        """Return whether a request that comes next, and alone, may be done by a script for several clients."""
        return self._together.is_ordinary(now)

    def share(self) -> None:
        """Note that requests of the client's go over connections that are not its own."""
        self._standing.shares = True

    def share_no_more(self) -> None:
        """Note that the connection is in a state that the server does not tell of."""
        self._standing.unlike = True

    def rest(self) -> bytes:
        """Return what the client has sent of a request that will not be completed: its stream has ended."""
        rest, self._tail = self._tail, b""
        return (rest or self._reader.rest()) + b"".join(self._waiting)

    def discard(self) -> None:
        """Forget what has come and has not been sent: the client is turned away, and only replies matter."""
        self._reader.discard()
        self._waiting.clear()
        self._waiting_size = 0
        self._tail, self._pending, self._expected = b"", None, frozenset()

    @property
    def _is_in_part(self) -> bool:
        """Whether a request has been sent in part: of a head that is held up nothing has, of a last part the head."""
        if self._pending is not None:
            return self._pending.kind is Kind.BODY
        return self._reader.within

    def _note_state(self) -> None:
        standing = self._standing
        self._is_between = not (
            self._exact
            or self._tail
            or self._waiting
            or standing.transaction is not None
            or standing.login is _STRANGER
            or standing.next is not _FREE
            or standing.is_link
        )
        self.ordinary = self._is_between and not self._reads.under_way
        if self._expected and self.question is None and not self.unfinished:
            self._expected = frozenset()

    def _take_out(self) -> bytes:
        self.quiet = False
        self._without.sent()
        return self._out.take()

    # The stream is cut into requests.

    def _receive(self, data: bytes, now: float) -> bytes:
        self._coverage.look()
        if self._exact:
            self._reader.feed(data)
            if self.question is not None:
                return b""
            return self._read_exactly(now)
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if data[0] != _STAR and (end := self._lines_front(data)):
            return self._go_behind_lines(data, end, now)
        front = self._plain_front(data)
        if front == len(data):
            return data
        if front:
            self._out.append(data[:front])
        elif (front := self._reads.guard_front(data, now)) == len(data):
            return self._take_out()
        return self._go_through(data, front, now)

    def _go_behind_lines(self, data: bytes, end: int, now: float) -> bytes:
        """Send inline requests on as they came; let what follows them wait for its turn, if that is much."""
        self._out.append(data[:end])
        rest = data[end:]
        if not rest or (len(rest) <= TAIL_LIMIT and is_begun(rest)):
            self._tail = rest
        elif len(data) > self._most_of_lines:
            self._waiting.appendleft(rest)
            self._waiting_size += len(rest)
        else:
            return self._go_through(data, end, now)
        return self._take_out()

    def _go_through(self, data: bytes, position: int, now: float) -> bytes:
        """Send those requests on that can go together, and judge what follows them."""
        for _ in range(self.turns.runs):
            end = self._together.take(data, position, now)
            if end == position:
                break
            position = end
            if position == len(data):
                return self._take_out()
        else:
            self._reader.feed(data[position:])
            self._exact = self._stopped = True
            return self._take_out()
        return self._parse(data[position:], now, progress=position > 0)

    def _lines_front(self, data: bytes) -> int:
        """Return how many bytes at the front are inline requests that can go as they came."""
        standing = self._standing
        if standing.transaction is not None or self._coverage.blind or standing.next is not _FREE or self.stranger:
            return 0
        if self._reads.under_way:
            return 0
        return self._ground.lines.front(data, self._most_of_lines)

    @property
    def _most_of_lines(self) -> int:
        """Bytes of inline requests that are looked at in a turn."""
        return min(LARGEST, self.turns.bytes)

    def _plain_front(self, data: bytes) -> int:
        """Return how many bytes at the front are frequent requests that can go as they came."""
        coverage, standing = self._coverage, self._standing
        if standing.transaction is not None or coverage.blind or standing.next is not _FREE or self._reads.under_way:
            return 0
        if coverage.search(data):
            return 0
        frequent = self._ground.frequent.match(data)
        return frequent.end() if frequent else 0

    def _parse(self, data: bytes, now: float, *, progress: bool) -> bytes:
        parsed = self._ground.batch.parse(data)
        if parsed is None:
            return self._switch_to_exact(data, now)
        requests, whole = parsed
        try:
            if whole and requests[0][0] in PURE and self._guard(requests, data, now):
                return self._take_out()
            if self._is_plain(requests, data):
                end = len(data) if whole else sum(map(request_size, requests))
                self._out.append(data[:end])
                return self._keep(data[end:], now, progress=progress or end > 0)
            if requests and self._ground.prefix not in data:
                end = len(data) if whole else sum(map(request_size, requests))
                if self._guard(requests, data[:end], now) or self._fronts.take(requests, data[:end], now):
                    return self._keep(data[end:], now, progress=True)
            if len(requests) > LEAST and self._together.may_take(data, now):
                return self._switch_to_exact(data, now)
            return self._judge_batch(requests, data, now)
        except (TypeError, AttributeError):  # an array in the place of an argument
            return self._switch_to_exact(data, now)

    def _guard(self, requests: list[list[bytes]], data: bytes, now: float) -> bool:
        return self._ground.prefix not in data and self._reads.guard(requests, data, now)

    def _is_plain(self, requests: list[list[bytes]], data: bytes) -> bool:
        """Return whether a chunk can go as it came. Raises TypeError or AttributeError where an element is an array."""
        standing = self._standing
        used = {request[0] for request in requests}
        blocks = not used <= PLAIN
        if standing.transaction is not None or (blocks and not used - PLAIN <= BLOCKERS):
            return False
        if standing.next is not _FREE or self._ground.prefix in data:
            return False
        free = FREE_OF_BLIND if self._coverage.blind and not self._coverage.search(data) else FREE
        if not used <= free and self._coverage.touches(
            request for request in requests if request[0] not in free and not is_indifferent(request)
        ):
            return False
        if self._reads.under_way and not self._reads.lets_pass(requests):
            return False
        if blocks:
            self.blocker = self.replies.next_number
        return True

    def _judge_batch(self, requests: list[list[bytes]], data: bytes, now: float) -> bytes:
        position = 0
        # Checked before any is judged, for judging has effects, and cannot be done again by the reader.
        for request in requests:
            if set(map(type, request)) != {bytes}:
                raise TypeError
        self._without.look_ahead(requests)
        most = self.turns.requests
        for number, arguments in enumerate(requests, 1):
            size = request_size(arguments)
            raw = data[position : position + size]
            header = 3 + len(str(len(arguments)))
            position += size
            self._announcing.ahead = data, position
            self._judge(Request(Kind.WHOLE, arguments, raw, len(arguments), header), now)
            if self.question is not None or (number == most and position < len(data)):
                if position < len(data):
                    self._reader.feed(data[position:])
                self._exact = True
                self._stopped = self.question is None
                self._announcing.ahead = b"", 0
                return self._take_out()
        self._announcing.ahead = b"", 0
        self._without.coming.clear()
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
        reader, upload = self._reader, self._upload
        left, read = self.turns.requests, reader.held
        most = min(STRANGERS_BYTES, self.turns.bytes) if self.stranger else self.turns.bytes
        self._stopped = False
        if upload.stream is not None and upload.stream.is_cut:
            raise OvertakenError
        while self.question is None:
            if not left or read - reader.held > most:
                self._stopped = True
                return self._take_out()
            left -= 1
            if self._together.take_from(reader, now):
                left = max(0, left - REQUESTS // RUNS + 1)
                continue
            request = reader.next_request()
            if request is None:
                if reader.unread:
                    self._stopped = True
                    return self._take_out()
                self._look_at_unfinished(now)
                break
            self._judge(request, now)
            if upload.stream is not None and self._pending is None:
                self._follow(request)
        if not reader.held and not reader.within and not reader.broken and self.question is None:
            self._exact = False
            self._without.coming.clear()
        return self._take_out()

    # Requests that are still arriving.

    def _look_at_unfinished(self, now: float) -> None:
        """See to a request that has not come whole: that may be too much of it, or enough to judge it."""
        reader = self._reader
        if self.stranger and not reader.within and strangers.is_too_much(reader):
            self.question = Question(replied=True, login=True)
        elif not reader.oversized and reader.held <= TAIL_LIMIT:
            return
        elif self._reads.under_way:
            self.question = Question(replied=True)  # what is sent in part leaves no place for them
        elif self._rewriter.is_judged_by_its_head(reader.arguments, reader.count):
            head = reader.take_head()
            if head is not None:
                self._judge(head, now)
        elif reader.oversized and reader.count <= COUNT_LIMIT:
            # The server refuses it for its size, and is to say so itself; but newer ones take many arguments.
            beginning = reader.refused(at_count=False)
            raise self._refused_at_its_head("invalid bulk length", beginning)
        elif reader.oversized and not self._rewriter.takes_many_arguments:
            beginning = reader.refused(at_count=True)
            raise self._refused_at_its_head("invalid multibulk length", beginning)
        elif reader.held > self._ground.request_limit:
            raise RequestTooLargeError

    def _refused_at_its_head(self, what: str, beginning: bytes) -> RefusedAtItsHeadError:
        return RefusedAtItsHeadError(what, self._take_out() + beginning, answered=self._standing.answers)

    def _follow(self, part: Request) -> None:
        if self._upload.stream is not None:
            self._upload.follow(part, ended=not self._reader.within, broken=self._reader.broken)

    # Each request is judged: first what it has to wait for.

    def _judge(self, request: Request, now: float, *, replied: bool = False, having: Set[bytes] | None = None) -> None:
        """Send a request on, refuse it, or ask the question that has to be answered before.

        Args:
            request: the request.
            now: the server's clock, in Unix ms.
            replied: whether what the client had sent before it has been answered since it came.
            having: those of its keys that have deadlines, if that has been asked.
        """
        standing = self._standing
        if standing.has_quit or standing.is_link or request.kind in (Kind.BODY, Kind.BROKEN):
            if request.kind is Kind.BROKEN and self._reads.under_way and not replied:
                # The server closes there, and could not be asked again.
                self.question = Question(replied=True, again=True)
                self._pending, self._replied, self._exact = request, replied, True
                return
            self._pass(request, now)
            return
        if not request.arguments:
            if request.raw and self._rewriter.empty_counts:
                standing.next = _FREE
            self._out.append(request.raw)
            return
        stranger = standing.login is _STRANGER
        if not replied and standing.limited:
            standing.permits.begin()
        if self._ground.guarded and request.kind is Kind.WHOLE:  # of a head it has been seen
            refusal = self._rewriter.reserved(request)
            if refusal is not None and not stranger:
                self._out.note_queued()
                self._refuse(request, refusal)
                return
        command = self._ground.command(request.arguments[0])
        if len(request.raw) > LONGEST_NAME and request.kind is Kind.WHOLE and command is not None and not stranger:
            refusal = self._rewriter.too_long(command, request.arguments)
            if refusal is not None:
                self._out.note_queued()
                self._refuse(request, refusal)
                return
        without = self._without
        if not stranger and self._reads.guard_one(request, now):
            return
        # Most requests have none of these reasons to wait: to look is cheaper than to call.
        question = (
            (self._strangers.question(command, request, now) if stranger else None)
            or (self._behind_reads(command, request) if self._reads.under_way and not replied else None)
            or (self._doubt(command, request, now, replied=replied) if standing.transaction is None else None)
            or (self._permission(command, request) if standing.limited else None)
            or self._announcing.question(command, request)
            or (without.question(command, request, now) if without.unaided else None)
            or (self._time_left(command, request) if standing.limited else None)
            or (self._inquiry.question(command, request, now, replied=replied) if having is None else None)
            or (self._strangers.before_reset(request) if standing.login is not _OPEN else None)
        )
        if question is not None:
            self.question = question
            self._pending = request
            self._replied = replied
            self._exact = True
            return
        self._forward(command, request, now, having=having)
        if standing.permits.unclear and standing.transaction is None:
            self._exact = True
            self.question = Question(unclear=standing.permits.take_unclear(), replied=standing.askable, again=True)

    def _pass(self, part: Request, now: float) -> None:
        """Send on what has been judged by its head, or will not run."""
        if part.kind is Kind.BODY and not self._reader.within:
            self.question = self._upload.last_look()
        if self.question is None:
            self._out.append(part.raw)
        else:
            self._pending = part

    def _behind_reads(self, command: Command | None, request: Request) -> Question | None:
        """Wait for reads under way that a request may disturb."""
        return Question(replied=True, again=True) if self._reads.disturbs(command, request) else None

    def _doubt(self, command: Command | None, request: Request, now: float, *, replied: bool) -> Question | None:
        """Ask what the user may do, if a script may be about to stand in for a request. Not within a transaction.

        What was asked for the request that has been `replied` to counts, however long that took.
        """
        rights = self._standing.rights
        if not self._standing.askable or not rights.unsure(now) or (replied and not rights.unasked):
            return None
        concerned = command is not None and (
            self._rewriter.stands_in(command, request)
            or is_own(command, request)
            or (rights.unasked and request.kind is Kind.HEAD and command.effect in JUDGED | BLIND)
            or (rights.unasked and speaks_of_next(request.arguments))
            or (rights.unasked and command.effect is Effect.MULTI and self._first_may_be_set())
        )
        if not concerned and not self._without.shows(command, request):
            return None
        terms = self._rewriter.reading._replace(writes=rights.by_state)
        self._out.append(rights.ask(self._standing.marked, now, terms))
        return Question(replied=True, again=True)

    def _first_may_be_set(self) -> bool:
        """Return whether a first deadline set in the transaction that begins may concern others, who are told of it
        only where the user may set it: then that has to be asked before."""
        return self._coverage.shared or bool(self._expected)

    def _permission(self, command: Command | None, request: Request) -> Question | None:
        """Ask whether a user with few rights may give keys deadlines, before others have to do something about it.

        Where that cannot be asked, `_judge` sees afterwards whether the keys have got any.
        """
        standing = self._standing
        if standing.transaction is not None or standing.login is _STRANGER:
            return None
        if command is None or not standing.askable:
            return None
        keys: Collection[bytes]
        if command.effect is Effect.MULTI:
            keys = self._expected
        elif speaks_of_next(request.arguments):
            keys = list(islice(self._announcing.keys_ahead(), TOGETHER))
        else:
            keys = self._announcing.first_keys(request.arguments)
        asked = standing.permits.to_ask(keys, self._announcing.keys_ahead()) if keys else []
        asked = self._rewriter.of_one_slot(asked)
        if not asked:
            return None
        self._out.append(standing.permits.ask(standing.marked, asked, partial(self._rewriter.trial, asked)))
        return Question(replied=True, again=True)

    def _time_left(self, command: Command | None, request: Request) -> Question | None:
        """Ask what has to be known of a member before a user with few rights can be told its lifetime."""
        asked = self._remaining.question(command, request)
        if asked is None:
            return None
        look, question = asked
        self._out.append(look)
        return question

    def _judge_again(self, request: Request, question: Question, now: float, *, answered: bool) -> None:
        """Go on with a request for which a question has been dealt with, or could not be."""
        command = self._ground.command(request.arguments[0])
        replied = self._replied or question.replied
        if question.covers and self._announcing.unconfirmed(command, request):
            self._fail_to_announce(command, request, now)
        elif question.again or self._announcing.unconfirmed(command, request):
            self._judge(request, now, replied=replied)
        elif not answered and not self._standing.limited:
            self._without.unaided = True
            self._judge(request, now)
        else:
            self._forward(command, request, now, having=question.found if question.unclear else None)

    def _fail_to_announce(self, command: Command | None, request: Request, now: float) -> None:
        """Tell a client that a key cannot get its first deadline at present."""
        self._without.unaided = False
        if command is not None and command.effect is Effect.EXEC:
            self._forward(command, request, now)  # which spoils the transaction
        else:
            self._refuse(request, NOT_ANNOUNCED)

    # Then what goes in its place.

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        self._ground.metrics.requests_refused_total[refusal.reason] += 1
        skips, self._standing.next = self._standing.next is _SKIPPED, _FREE
        self._out.refuse(request, refusal, skips=skips)

    def _forward(
        self, command: Command | None, request: Request, now: float, *, having: Set[bytes] | None = None
    ) -> None:
        self._send_in_its_place(command, request, now, having=having)
        if self._standing.transaction is None and self._ground.may_block(request.arguments[0]):
            self.blocker = self.replies.next_number

    def _send_in_its_place(
        self, command: Command | None, request: Request, now: float, *, having: Set[bytes] | None
    ) -> None:
        standing, out, rewriter = self._standing, self._out, self._rewriter
        askable = standing.askable
        counts = command is not None and additions.counts(command, request) and out.amends
        effect = None if command is None else command.effect
        limited = standing.next is not _FREE and standing.limited  # nobody can be asked in between
        skips = standing.next is _SKIPPED
        if effect is not Effect.CONNECTION or standing.next is not _JOINED:  # CLIENT CACHING outlasts other CLIENT
            standing.next = _FREE
        self._without.unaided = False
        standing.rights.note(effect)
        if standing.transaction is not None:
            self._multi.queue(standing.transaction, command, request, self._expected)
            if self._coverage.ever or self._coverage.blind:
                ahead = self._announcing.requests_ahead
                self._multi.clear_front(standing.transaction, command, request, ahead)
        if command is None:
            out.append(request.raw)
            self._upload.begin_unnamed(request.arguments[1:2] if request.kind is Kind.HEAD else [])
            return
        self._note_change(command, request, now)
        if command.name == b"WAITAOF":
            standing.unlike = True  # who waits for the disk shares no more
        waits = effect is Effect.WAIT and standing.transaction is None and request.kind is Kind.WHOLE
        if waits and standing.shares and askable:
            # The server waits for what this connection wrote last: that is to be behind all that the client wrote.
            standing.shares = False
            both = rewriter.own_write(command.name) + request.raw
            out.replace(request, standing.marked.enclose(both, self._waited, replies=2))
            return
        if effect is Effect.CONNECTION:
            out.append(request.raw)
            self._hearing.hush(request.arguments)
            standing.is_link = rewriter.moves.opens_link(request.arguments)
            return
        if effect in _TRANSACTION and self._multi.send_bound(command, request, now, askable=askable):
            return
        confinement = standing.rights.confinement
        if confinement and ((own := is_own(command, request)) or effect is not Effect.EXPIRE):
            # The server runs none of these, and is to say so of the client's own command.
            out.replace(request, out.expect(standing.rights.confined(command.name), fails=True) if own else request.raw)
            return
        instead: bytes | Refusal | None
        sure = True
        if effect is Effect.DESCRIBE:
            instead = describe.instead(self._ground.descriptions, standing, out, request, askable=askable)
        elif (plainly := self._remaining.instead(command, request) if standing.limited else None) is not None:
            instead = plainly
        else:
            limited = limited or standing.limited
            sure = not limited or standing.permits.let(self._announcing.first_keys(request.arguments))
            instead = rewriter.rewrite(
                command,
                request,
                now,
                owner=self.pipeline,
                limited=limited,
                having=having,
                counts=counts,
                sure=sure,
                transaction=standing.transaction,
            )
        if instead is None and effect is Effect.IMPORT and self._bracket(command, request):
            return
        if instead is None:
            self._send_on(command, request)
        elif isinstance(instead, Refusal):
            self._ground.metrics.requests_refused_total[instead.reason] += 1
            out.refuse(request, instead, skips=skips)
        elif effect is Effect.COUNT:
            out.replace_count(request, instead)
        else:
            transaction = standing.transaction
            if transaction is not None and (guard := rewriter.guard(command, request.arguments)) is not None:
                out.put_aside(guard)
            out.replace(request, instead)
            if transaction is not None and sure:
                delay = rewriter.delay(command, request.arguments)
                if delay is not None:
                    transaction.rewritten(command, request.arguments, delay)

    def _bracket(self, command: Command, request: Request) -> bool:
        """Send a request on that replaces a value between two scripts; return whether it can be."""
        standing, out = self._standing, self._out
        queued = standing.transaction is not None
        if not (out.can_put_aside if queued else out.amends and not standing.watched):
            return False
        brackets = self._rewriter.brackets(command, request.arguments)
        if not brackets:
            return False
        front, behind = brackets
        if queued:
            out.put_aside(front)
            out.append(request.raw)
            out.put_aside(behind, follows=True)
        else:
            whole = b"".join((encode([b"MULTI"]), front, request.raw, behind, encode([b"EXEC"])))
            out.replace(request, standing.marked.enclose(whole, _of_bracketed, replies=5))
        return True

    def _waited(self, said: bytes) -> bytes:
        """Return the reply to WAIT or WAITAOF, in front of which something was written, and what came beside it.

        Where the server has refused to write that, it has waited for less than the client has written: so it says that
        nobody has all of it. Such a client shares no more.
        """
        parts = frames(said)
        replies = [part for part in parts if part[:1] != b">"]
        if len(replies) == 2 and replies[0][:1] == b"-":
            self._standing.unlike = self._standing.shares = True
            replies[1] = {b":": b":0\r\n", b"*": b"*2\r\n:0\r\n:0\r\n"}.get(replies[1][:1], replies[1])
        return b"".join([*(part for part in parts if part[:1] == b">"), *replies[1:]])

    def _note_change(self, command: Command, request: Request, now: float) -> None:
        """Note how a request that goes may change what the connection is."""
        standing, name = self._standing, command.name
        if command.effect in _ELSEWHERE:
            self._without.go_elsewhere()
        if command.effect is Effect.LOGIN:
            standing.rights.log_in(request.arguments)
            standing.replies.deaf = False
            if name == b"AUTH":
                standing.user = short_name(named_user(request.arguments) or DEFAULT_USER)
            elif name == b"HELLO":
                standing.user = short_name(named_user(request.arguments) or standing.user)
                if len(request.arguments) > 1:
                    standing.subscriptions.resp3 = request.arguments[1] == b"3"
                    standing.greeted_in_resp3 |= standing.subscriptions.resp3
            self._out.shut()  # Redis 8.0 and Valkey 8.0 leave a refused one's reply out of those of EXEC
        if command.effect is Effect.LOGIN or name == b"RESET":
            standing.permits.forget()
        if command.effect is Effect.DATABASE:
            if standing.transaction is None and standing.rights.by_database:
                standing.rights.forget()
                standing.permits.forget()
            visited = {strict_integer(argument) or 0 for argument in request.arguments[1:3]}
            if standing.login is _STRANGER:
                self._strangers.visited |= visited & DATABASES
            else:
                self._coverage.visit(visited)
        if name == b"RESET" and request.count == 1:
            self._strangers.reset()
            standing.watched.clear()
            standing.rights.reset()
            standing.user = DEFAULT_USER
            standing.replies.silenced = standing.subscribed = standing.caches = False
            standing.subscriptions = Subscriptions()
        elif name.endswith(b"SUBSCRIBE"):
            standing.subscribed = standing.rights.by_state = True
            standing.subscriptions.note(name, request.arguments[1:])
            self._out.shut()  # a subscription to several is answered several times
        elif command.effect is Effect.WATCH and standing.transaction is None:
            if name == b"WATCH":
                standing.watched.add(request.arguments[1:])
            elif request.count == 1:
                standing.watched.clear()
        elif name == b"MONITOR":
            standing.rights.by_state = standing.subscriptions.monitors = True

    def _send_on(self, command: Command, request: Request) -> None:
        """Send a request on as it came."""
        standing, out = self._standing, self._out
        transaction = standing.transaction
        if (
            transaction is not None
            and out.takes_asides
            and (transaction.follows_writes or command.effect is Effect.COUNT)
        ):
            # What is queued before it, or comes between, may remove members that it adds without looking.
            absent = additions.absent(self._coverage, command, request, limited=standing.limited)
            for key, members in absent:
                out.put_aside(self._rewriter.void(key, members))
        out.append(request.raw)
        if request.kind is Kind.HEAD and transaction is None and command.effect in JUDGED | BLIND:
            self._upload.begin(command, request)


def _of_bracketed(said: bytes) -> bytes:
    """Return the reply to the request in the middle of a transaction of three, and what came beside the replies.

    A user who may not run MULTI has run the three one after the other.
    """
    parts = frames(said)
    pushes = [part for part in parts if part[:1] == b">"]
    opened, *queued, run = [part for part in parts if part[:1] != b">"]
    if opened[:1] == b"-":
        return b"".join([*pushes, queued[1]])
    reply = next((part for part in (queued[1], *queued, run) if part[:1] == b"-"), None)
    return b"".join([*pushes, frames(run.partition(b"\r\n")[2])[1] if reply is None else reply])


def _apart(said: bytes) -> tuple[bytes, bytes]:
    """Return the reply to a request of the proxy's own, which is no array, and what a subscriber gets beside it."""
    parts = frames(said)
    own = [part for part in parts if part[:1] not in b">*"]
    return own[0] if own else b"", b"".join(part for part in parts if part[:1] in b">*")
