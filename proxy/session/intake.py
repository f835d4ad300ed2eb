"""Split a client's stream into requests, as cheaply as possible, and have them judged.

Its tests: tests/test_session.py.

Chunks of frequent requests are recognised whole; others are parsed by a `BatchParser`; if a request is held or still
arriving, a `RequestReader` takes over.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from proxy.commands.table import is_indifferent
from proxy.session import strangers
from proxy.session.announcing import Announcing
from proxy.session.errors import OvertakenError, RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.fronts import Fronts
from proxy.session.ground import BLOCKERS, PLAIN, Ground
from proxy.session.judge import Judge
from proxy.session.outgoing import Outgoing
from proxy.session.plain import FREE, FREE_OF_BLIND, LARGEST, MULTI, PURE
from proxy.session.question import Question
from proxy.session.reads import Reads
from proxy.session.standing import Next, Standing
from proxy.session.together import Together
from proxy.session.turns import REQUESTS, RUNS, STRANGERS_BYTES
from proxy.session.upload import Upload
from proxy.session.without_engine import WithoutEngine
from proxy.wire.batch import request_size
from proxy.wire.lines import is_begun
from proxy.wire.request import ARGUMENT_SIZE, COUNT_LIMIT, Kind, Request, RequestReader
from proxy.wire.runs import LEAST

TAIL_LIMIT: Final = 16 * 1024
"""Maximum size, in bytes, of an incomplete request to parse again with the next chunk; the reader takes longer ones."""

_STAR: Final = 0x2A
_ARRAY: Final = b"\r\n*"

_FREE: Final = Next.FREE


class PendingChunks:
    """Received chunks that wait for their turn.

    Attributes:
        pieces: the chunks.
        size: their total size in bytes.
    """

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Append bytes."""
        self.pieces.append(data)
        self.size += len(data)

    def put_back(self, data: bytes) -> None:
        """Put bytes back in front."""
        self.pieces.appendleft(data)
        self.size += len(data)

    def take(self, most: int) -> bytes:
        """Remove and return up to `most` bytes of the first chunk."""
        data = self.pieces.popleft()
        self.size -= len(data)
        if len(data) > most:
            self.put_back(data[most:])
            data = data[:most]
        return data

    def take_all(self) -> bytes:
        """Remove and return all bytes."""
        data = b"".join(self.pieces)
        self.pieces.clear()
        self.size = 0
        return data


class Intake:
    """Receives the stream of one client.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        reader: reads requests one by one.
        judge: judges each request.
        reads: the guarded reads under way.
        fronts: puts scripts in front of requests.
        together: combines requests into script calls.
        upload: tracks requests that are forwarded while they arrive.
        announcing: searches the bytes after the request that is being judged.
        without: does the engine's work on the client's own connection.
    """

    __slots__ = (
        "_announcing",
        "_exact",
        "_fronts",
        "_ground",
        "_judge",
        "_out",
        "_reads",
        "_standing",
        "_stopped",
        "_tail",
        "_together",
        "_upload",
        "_waiting",
        "_without",
        "reader",
    )

    def __init__(
        self,
        ground: Ground,
        standing: Standing,
        out: Outgoing,
        reader: RequestReader,
        judge: Judge,
        reads: Reads,
        fronts: Fronts,
        together: Together,
        upload: Upload,
        announcing: Announcing,
        without: WithoutEngine,
    ) -> None:
        self._ground = ground
        self._standing = standing
        self._out = out
        self.reader = reader
        self._judge = judge
        self._reads = reads
        self._fronts = fronts
        self._together = together
        self._upload = upload
        self._announcing = announcing
        self._without = without
        self._stopped = False  # whether the reader may have requests that can be judged now
        self._waiting = PendingChunks()
        self._exact = False  # whether the reader, not the batch parser, has the stream
        self._tail = b""

    @property
    def is_empty(self) -> bool:
        """Whether the stream is between two requests and nothing is buffered."""
        return not (self._exact or self._tail or self._waiting.pieces)

    @property
    def unfinished(self) -> bool:
        """Whether there are received requests for `go_on` to judge."""
        return self._stopped or bool(self._waiting.pieces)

    @property
    def held(self) -> int:
        """About how many bytes of memory the received but unsent requests take."""
        request = self._judge.pending
        pending = len(request.raw) + ARGUMENT_SIZE * len(request.arguments) if request else 0
        return self.reader.memory + len(self._tail) + self._waiting.size + pending

    @property
    def is_in_part(self) -> bool:
        """Whether the server has received only part of a request: false while a head is held, true while a later part
        is held."""
        if self._judge.pending is not None:
            return self._judge.pending.kind is Kind.BODY
        return self.reader.within

    @property
    def has_begun(self) -> bool:
        """Whether only part of a request has come from the client."""
        pending = self._judge.pending
        waits = pending is not None and pending.kind is Kind.HEAD
        return waits or self.is_in_part or bool(self._tail) or self.reader.memory > 0

    @property
    def waits(self) -> bool:
        """Whether received bytes wait for their turn."""
        return bool(self._waiting.pieces)

    def take_out(self) -> bytes:
        """Return the collected bytes, which the caller sends now."""
        self._without.sent()
        return self._out.take()

    def receive(self, data: bytes, now: float) -> bytes:
        """See `Session.receive`."""
        if self._exact or not (self._waiting.pieces or len(data) > self._ground.turns.bytes):
            return self._receive(data, now)
        self._waiting.add(data)
        return self._receive_slice(now) if len(self._waiting.pieces) == 1 else b""

    def keep(self, data: bytes) -> None:
        """Keep bytes for `go_on` to judge later."""
        if self._exact:
            self.reader.feed(data)
            self._stopped = self._judge.question is None
        else:
            self._waiting.add(data)

    def go_on(self, now: float) -> bytes:
        """Judge more of the received bytes, while `unfinished`."""
        if self._stopped or not self._waiting.pieces:
            self._ground.coverage.look()
            return self.read_exactly(now)
        return self._receive_slice(now)

    def rest(self) -> bytes:
        """Remove and return the received bytes that are left: the stream has ended, perhaps within a request."""
        rest, self._tail = self._tail, b""
        return (rest or self.reader.rest()) + self._waiting.take_all()

    def discard(self) -> None:
        """Drop received bytes that have not been sent."""
        self.reader.discard()
        self._waiting.take_all()
        self._tail, self._judge.pending = b"", None

    # One turn's part of the received bytes.

    def _receive_slice(self, now: float) -> bytes:
        out = self._receive(self._waiting.take(self._ground.turns.bytes), now)
        if self._exact and self._waiting.pieces:  # the reader needs the bytes after its current request
            self.reader.feed(self._waiting.take_all())
            self._stopped = self._judge.question is None
        return out

    # Splitting the stream into requests.

    def _receive(self, data: bytes, now: float) -> bytes:
        self._ground.coverage.look()
        if self._exact:
            self.reader.feed(data)
            if self._judge.question is not None:
                return b""
            return self.read_exactly(now)
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if data[0] != _STAR and (end := self._lines_front(data)):
            return self._go_behind_lines(data, end, now)
        front = self._plain_front(data)
        if front == len(data):
            self.reader.past_first = True
            return data
        if front:
            self._out.append(data[:front])
        elif (front := self._reads.guard_front(data, now)) == len(data):
            self.reader.past_first = True
            return self.take_out()
        return self._go_through(data, front, now)

    def _go_behind_lines(self, data: bytes, end: int, now: float) -> bytes:
        """Forward inline requests unchanged; a long remainder waits for the next turn."""
        self._out.append(data[:end])
        self.reader.past_first = True
        rest = data[end:]
        if not rest or (len(rest) <= TAIL_LIMIT and is_begun(rest)):
            self._tail = rest
        elif len(data) > self._most_of_lines:
            self._waiting.put_back(rest)
        else:
            return self._go_through(data, end, now)
        return self.take_out()

    def _go_through(self, data: bytes, position: int, now: float) -> bytes:
        """Send the requests that can go together, and judge the rest."""
        for _ in range(self._ground.turns.runs):
            end = self._together.take(data, position, now)
            if end == position:
                break
            position = end
            if position == len(data):
                return self.take_out()
        else:
            self.reader.feed(data[position:])
            self.reader.past_first = self._exact = self._stopped = True
            return self.take_out()
        if position:
            self.reader.past_first = True
        return self._parse(data[position:], now, progress=position > 0)

    def _lines_front(self, data: bytes) -> int:
        """Return how many bytes at the front are inline requests that can be forwarded unchanged."""
        standing = self._standing
        if (
            standing.transaction is not None
            or self._ground.coverage.blind
            or standing.next is not _FREE
            or self._standing.is_stranger
        ):
            return 0
        if self._reads.under_way:
            return 0
        return self._ground.lines.front(data, self._most_of_lines)

    @property
    def _most_of_lines(self) -> int:
        """Maximum number of bytes of inline requests to check in a turn."""
        return min(LARGEST, self._ground.turns.bytes)

    def _plain_front(self, data: bytes) -> int:
        """Return how many bytes at the front are frequent requests that can be forwarded unchanged."""
        coverage, standing = self._ground.coverage, self._standing
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
        if requests:
            self.reader.past_first = True
        try:
            if whole and requests[0][0] in PURE and self._guard(requests, data, now):
                return self.take_out()
            if whole and requests[0][0] in MULTI and self._together.take_transaction(requests, data, now):
                return self.take_out()
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
        """Return whether a chunk can be forwarded unchanged; raise TypeError or AttributeError for an array in it."""
        standing = self._standing
        used = {request[0] for request in requests}
        blocks = not used <= PLAIN
        if standing.transaction is not None or (blocks and not used - PLAIN <= BLOCKERS):
            return False
        if standing.next is not _FREE or self._ground.prefix in data:
            return False
        free = FREE_OF_BLIND if self._ground.coverage.blind and not self._ground.coverage.search(data) else FREE
        if not used <= free and self._ground.coverage.touches(
            request for request in requests if request[0] not in free and not is_indifferent(request)
        ):
            return False
        if self._reads.under_way and not self._reads.lets_pass(requests):
            return False
        if blocks and standing.replies.silence.suspected:
            return False  # each blocking request needs a sign before it
        if blocks:
            places = [place for place, request in enumerate(requests, 1) if request[0] not in PLAIN]
            self._out.note_blocker(len(places), sum(map(request_size, requests[: places[-1]])))
        return True

    def _judge_batch(self, requests: list[list[bytes]], data: bytes, now: float) -> bytes:
        position = 0
        # Check all before judging any: judging has effects, so the reader could not judge a request again.
        for request in requests:
            if set(map(type, request)) != {bytes}:
                raise TypeError
        self._without.look_ahead(requests)
        most = self._ground.turns.requests
        for number, arguments in enumerate(requests, 1):
            size = request_size(arguments)
            raw = data[position : position + size]
            header = 3 + len(str(len(arguments)))
            position += size
            self._announcing.ahead = data, position
            self._judge.judge(Request(Kind.WHOLE, arguments, raw, len(arguments), header), now)
            if self._judge.question is not None or (number == most and position < len(data)):
                if position < len(data):
                    self.reader.feed(data[position:])
                self._exact = True
                self._stopped = self._judge.question is None
                self._announcing.ahead = b"", 0
                return self.take_out()
        self._announcing.ahead = b"", 0
        self._without.coming.clear()
        return self._keep(data[position:], now, progress=position > 0)

    def _keep(self, tail: bytes, now: float, *, progress: bool) -> bytes:
        """Keep the beginning of a request for the next chunk; `progress`: whether a complete request preceded it."""
        if not tail or (progress and len(tail) <= TAIL_LIMIT and not self._standing.is_stranger and _ARRAY not in tail):
            self._tail = tail
            return self.take_out()
        # Use the reader if no request was complete, the client is a stranger, or the tail is long or may contain an
        # array. It resumes where it stopped, and detects at once what the server would reject.
        return self._switch_to_exact(tail, now)

    def _switch_to_exact(self, data: bytes, now: float) -> bytes:
        self._exact = True
        self.reader.feed(data)
        return self.read_exactly(now)

    def read_exactly(self, now: float) -> bytes:
        """Judge requests one by one, until one has to wait or this turn is over."""
        reader, upload = self.reader, self._upload
        left, read = self._ground.turns.requests, reader.held
        most = (
            min(STRANGERS_BYTES, self._ground.turns.bytes) if self._standing.is_stranger else self._ground.turns.bytes
        )
        self._stopped = False
        if upload.stream is not None and upload.stream.is_cut:
            raise OvertakenError
        while self._judge.question is None:
            if not left or read - reader.held > most:
                self._stopped = True
                return self.take_out()
            left -= 1
            if self._together.take_from(reader, now) or self._reads.guard_from(reader, now):
                left = max(0, left - REQUESTS // RUNS + 1)
                continue
            request = reader.next_request()
            if request is None:
                if reader.unread:
                    self._stopped = True
                    return self.take_out()
                self._look_at_unfinished(now)
                break
            self._judge.judge(request, now)
            if upload.stream is not None and self._judge.pending is None:
                self.follow(request)
        if not reader.held and not reader.within and not reader.broken and self._judge.question is None:
            self._exact = False
            self._without.coming.clear()
        return self.take_out()

    # Requests that are still arriving.

    def _look_at_unfinished(self, now: float) -> None:
        """Handle an incomplete request: it may be too large already, or enough of it may have come to judge it."""
        reader = self.reader
        if self._standing.is_stranger and not reader.within and strangers.is_too_much(reader):
            self._judge.question = Question(replied=True, login=True)
        elif not reader.oversized and reader.held <= TAIL_LIMIT:
            return
        elif self._reads.under_way:
            self._judge.question = Question(replied=True)  # reads cannot be sent again in the middle of an upload
        elif self._ground.rewriter.heads.are_enough(reader.arguments, reader.count):
            head = reader.take_head()
            if head is not None:
                self._judge.judge(head, now)
        elif reader.oversized and reader.count <= COUNT_LIMIT:
            # An argument is too long, but their number is allowed: let the server reject the request.
            beginning = reader.refused(at_count=False)
            raise self.refused_at_its_head("invalid bulk length", beginning)
        elif reader.oversized and not self._ground.rewriter.takes_many_arguments:
            beginning = reader.refused(at_count=True)
            raise self.refused_at_its_head("invalid multibulk length", beginning)
        elif reader.held > self._ground.request_limit:
            raise RequestTooLargeError

    def refused_at_its_head(self, what: str, beginning: bytes) -> RefusedAtItsHeadError:
        """Return the error for a request that is rejected before it is complete; `what` names the invalid part."""
        self._out.sign_before_last(loud=True)
        return RefusedAtItsHeadError(what, self.take_out() + beginning)

    def follow(self, part: Request) -> None:
        """Note that another part of an upload has been sent."""
        if self._upload.stream is not None:
            self._upload.follow(part, ended=not self.reader.within, broken=self.reader.broken)
