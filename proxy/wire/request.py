"""Split a client's stream into requests at exactly the boundaries that Redis uses.

Its tests: tests/test_wire.py.

The rules are those of the server's own reader (`networking.c`: multi bulk and inline requests), not of the protocol
specification: a proxy that saw other boundaries than the server would judge other requests than those that run.
If servers differ, the reader is as lenient as the most lenient one: a request that the server then rejects does no
harm.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import chain, repeat
from typing import Final

import hiredis

COUNT_LIMIT = 1024 * 1024
BULK_LIMIT = 512 * 1024 * 1024
"""Longest argument that servers accept by default (`proto-max-bulk-len`), in bytes."""

INLINE_LIMIT = 64 * 1024
"""Maximum number of bytes of a line (inline request, or a count) that Redis buffers (PROTO_INLINE_MAX_SIZE)."""

JOINED: Final = 256 * 1024
"""How many bytes to join to the buffer at a time, so that other clients do not wait."""

COPIED: Final = 64 * 1024
"""When more bytes of a request arrive, this limits how many earlier ones are copied; if more than this arrive, as many
as arrive may be copied."""

_STAR = 0x2A
BLANK_LINES: Final = 50
"""Number of lines of blanks to process at once."""

_SPACES = frozenset(b" \n\r\t\v\f")
_ENDS = frozenset(b" \n\r\t")  # these end an unquoted argument; any of `_SPACES` may separate arguments
_QUOTED = re.compile(rb"[\"'\v\f\xff]")
_ESCAPES = {0x6E: 0x0A, 0x72: 0x0D, 0x74: 0x09, 0x62: 0x08, 0x61: 0x07}
_HEX = frozenset(b"0123456789abcdefABCDEF")


class Blanks(Enum):
    """How a server treats a line of only blanks between two requests."""

    EMPTY = "empty"
    """Like an empty line: Redis."""
    NOTHING = "nothing"
    """Ignored, though an empty line ends a `CLIENT REPLY SKIP`: Valkey from 9."""
    INLINE = "inline"
    """Ignored, but the next request is read as inline even if it begins like an array: Valkey 8."""


class Quoting(Enum):
    """How a server splits an inline request into arguments."""

    PLAIN = "plain"
    """A closing quote ends the argument, and only a blank may follow: Redis, Valkey 8.0."""
    DROPPING = "dropping"
    """Like `PLAIN`, and bytes 0xff are dropped: Valkey 8.1."""
    JOINING = "joining"
    """Like `DROPPING`, and an argument may continue after a quoted part: Valkey from 9."""


class Kind(Enum):
    """Whether a `Request` is whole, or which part of one it is."""

    WHOLE = "whole"
    """A complete request."""
    HEAD = "head"
    """The beginning of a request that is still arriving: `arguments` are those that are complete."""
    BODY = "body"
    """Further bytes of a request whose head was taken."""
    BROKEN = "broken"
    """Bytes after which the server answers with a protocol error and closes: nothing after them is ever run."""


class Request:
    """A request, or a part of one.

    Attributes:
        kind: whether this is a whole request, or which part of one.
        arguments: its arguments, the command's name first. Empty for an empty request, a body and broken bytes.
        raw: the bytes that the client sent, except that a line of blanks, which servers read differently, is replaced.
        count: the total number of its arguments.
        header: how many bytes at the start of `raw` are the line with the count; 0 for an inline request.
        odd: whether a line does not end in CRLF; newer servers then close the connection.
    """

    __slots__ = ("arguments", "count", "header", "kind", "odd", "raw")

    def __init__(
        self, kind: Kind, arguments: list[bytes], raw: bytes, count: int, header: int, *, odd: bool = False
    ) -> None:
        self.kind = kind
        self.arguments = arguments
        self.raw = raw
        self.count = count
        self.header = header
        self.odd = odd

    def __repr__(self) -> str:
        return f"Request({self.kind.name}, {self.arguments!r:.80}, {len(self.raw)} bytes)"


ARGUMENT_SIZE: Final = 56
"""Memory overhead of a short argument, in bytes, including its place in the list."""


class RequestReader:
    """Splits a stream of bytes into requests, without I/O.

    Call `feed`, then `next_request` until it returns None. The reader holds at most one incomplete request and the
    bytes fed after it; `held` is their size. It also keeps bytes of returned requests, at most as many again.

    Args:
        blanks: how the server treats a line of blanks. The default is safe with all other servers too.
        strict: whether the server closes the connection if a line does not end in CRLF.
        quoting: how the server splits an inline request.

    Attributes:
        past_first: whether the stream's first request has been returned whole, or came before the bytes fed.
    """

    def __init__(
        self, blanks: Blanks = Blanks.EMPTY, *, strict: bool = False, quoting: Quoting = Quoting.PLAIN
    ) -> None:
        self.past_first = False
        self._blanks = blanks
        self._quoting = quoting
        self._strict = strict
        self._front: list[bytes] = []  # the processed part of a long incomplete request
        self._front_size = 0
        self._long: list[tuple[int, bytes]] = []  # long arguments in the buffer, which are not copied to the front
        self._buffer = b""
        self._position = 0  # beginning of the current request, or of its part after the front
        # Bytes fed but not yet joined to the buffer: joining them at each chunk would be quadratic.
        self._later: deque[bytes] = deque()
        self._later_size = 0
        self._need = 0  # number of buffered bytes needed to make progress
        # The current multi bulk request: its arguments so far, and where the next one begins.
        self._arguments: list[bytes] = []
        self._count = 0
        self._header = 0
        self._next = 0
        # A request whose head was taken: how many arguments, and bytes of the current one, are still to come.
        self._body_arguments = 0
        self._body_bytes = 0
        self._in_body = False
        self._broken = self._broken_within = False
        self._cut_off = False  # after an error, send nothing more: the server might take it for requests
        self._oversized = False
        self._odd = False
        self._announced = 0

    @property
    def announced(self) -> int:
        """Length, in bytes, of the current string in an incomplete request; 0 if its header has not come yet."""
        return self._announced

    @property
    def count(self) -> int:
        """Number of arguments that the current request announces; 0 between two requests."""
        return self._count

    @property
    def oversized(self) -> bool:
        """Whether a header in the incomplete request announces more than servers usually accept.

        Do not wait for the rest of such a request: the server may reject it at once.
        """
        return self._oversized

    @property
    def held(self) -> int:
        """Bytes fed and not yet returned in a request."""
        return self._front_size + len(self._buffer) - self._position + self._later_size

    @property
    def memory(self) -> int:
        """Approximate memory in bytes: the objects of short arguments take more than their bytes."""
        return self._front_size + len(self._buffer) + self._later_size + ARGUMENT_SIZE * len(self._arguments)

    def ahead(self, most: int) -> bytes:
        """Return bytes fed and not yet returned in a request, if they begin with a request.

        Args:
            most: maximum number of bytes.
        """
        if self._in_body:
            return b""
        if self._later_size and len(self._buffer) - self._position < most:
            self._join(JOINED)
        return self._buffer[self._position : self._position + most]

    def front(self, most: int) -> tuple[bytes, int]:
        """Return the bytes fed, and the position of the next request in them; no bytes and 0 if a request is
        incomplete.

        Args:
            most: maximum number of bytes wanted from there on.
        """
        if self._count or self._in_body or self._broken or self._front:
            return b"", 0
        if self._later_size and len(self._buffer) - self._position < most:
            self._join(JOINED)
        return self._buffer, self._position

    def skip(self, count: int) -> None:
        """Treat `count` bytes at the position of `front` as returned; they must be whole requests."""
        if count:
            self._position += count
            self.past_first = True
            self._shed()

    @property
    def within(self) -> bool:
        """Whether part of an incomplete request has been sent to the server, or is about to be."""
        return self._in_body

    @property
    def broken_within(self) -> bool:
        """Whether the protocol error is inside a request of which part has been sent."""
        return self._broken_within

    @property
    def broken(self) -> bool:
        """Whether the stream has come to a protocol error, after which the server runs nothing."""
        return self._broken

    @property
    def arguments(self) -> list[bytes]:
        """The complete arguments of the request that is still arriving."""
        return self._arguments

    def feed(self, data: bytes) -> None:
        """Add bytes of the stream."""
        if self._later or self._position < len(self._buffer):
            self._later.append(data)
            self._later_size += len(data)
        else:
            self._need = 0
            self._buffer = data
            self._position = 0

    def next_request(self) -> Request | None:
        """Return the next whole request, body or broken rest. None: feed more bytes or, if `unread`, call again."""
        request = self._next_request()
        if request is None and self.unread:
            # Join only now: earlier, waiting bytes would be copied again whenever more arrive.
            self._join(JOINED)
            request = self._next_request()
        if request is not None and not self._in_body:
            self.past_first = True
        if self._position:
            self._shed()
        return request

    def _shed(self) -> None:
        """Drop returned bytes once they are most of the buffer, so that each byte is copied about once."""
        position = self._position
        if 2 * position >= len(self._buffer):
            self._buffer = self._buffer[position:]
            self._need = max(0, self._need - position)
            self._move(position)

    def _move(self, by: int) -> None:
        """Adjust the stored positions after bytes were dropped from the front of the buffer."""
        self._next -= by
        self._position = 0
        if self._long:
            self._long = [(begin - by, argument) for begin, argument in self._long]

    @property
    def unread(self) -> bool:
        """Whether another call of `next_request` may find more in the bytes fed."""
        return self._later_size > 0 and self._need <= len(self._buffer) + self._later_size

    def _next_request(self) -> Request | None:
        if self._position == len(self._buffer) or self._need > len(self._buffer):
            return None
        if self._broken:
            rest = self._take(Kind.BROKEN, [], len(self._buffer))
            if self._cut_off:
                rest.raw = b""
            return rest
        if self._in_body:
            return self._body()
        if self._count or self._buffer[self._position] == _STAR:
            return self._multi_bulk()
        return self._inline()

    def take_head(self) -> Request | None:
        """Return the received part of an incomplete multi bulk request; its rest will be returned as bodies.

        Returns:
            The head, or None when there is no such request.
        """
        if not self._count or self._in_body:
            return None
        if self._later_size:
            self._join()
        front, begin, count, header = self._with_front(b""), self._position, self._count, self._header
        arguments, position = self._arguments, self._next
        self._position = position
        self._body_arguments = count - len(arguments)
        self._body_bytes = 0
        self._in_body = True
        self._end_request()
        passed = self._body()
        end = self._position if passed is not None else position
        head = Request(Kind.HEAD, arguments, front + self._buffer[begin:end], count, header)
        self._shed()
        return head

    def refused(self, *, at_count: bool) -> bytes:
        """Return the beginning of the incomplete request, up to a header, and drop the rest.

        Args:
            at_count: whether to end with the number of arguments; otherwise with the length of the incomplete argument.
        """
        if self._later_size:
            self._join()
        # Include the CR of the header and one byte more: a server needs these to see the error.
        line = self._buffer.find(b"\r", self._next)
        beginning = self._with_front(self._buffer[self._position : line + 2 if line >= 0 else self._next])
        if at_count:
            beginning = beginning[: self._header]
        self._buffer, self._position, self._next = b"", 0, 0
        self._end_request()
        return beginning

    def discard(self) -> None:
        """Forget everything held: nothing more will be read."""
        self._later.clear()
        self._front.clear()
        self._buffer, self._position = b"", 0
        self._later_size = self._front_size = 0
        self._end_request()

    def rest(self) -> bytes:
        """Return all that is held, unjudged, and forget it: the stream has ended."""
        if self._later_size:
            self._join()
        rest, self._buffer, self._position = self._with_front(self._buffer[self._position :]), b"", 0
        if self._blanks is Blanks.INLINE and not self._count and not self._in_body and not rest.startswith(b"*"):
            blanks, _, line = rest.rpartition(b"\n")  # only blank lines can precede an incomplete line
            rest = b" " + line if blanks else line
        self._end_request()
        return rest

    def _join(self, most: int | None = None) -> None:
        """Join waiting bytes to the buffer: all, or about `most`, but at least those needed to make progress."""
        if most is None:
            pieces, size = list(self._later), self._later_size
            self._later.clear()
        else:
            most = max(most, self._need - len(self._buffer))
            pieces, size = [], 0
            while self._later and size < most:
                pieces.append(self._later.popleft())
                size += len(pieces[-1])
        read = self._next - self._position if self._count else 0
        if read > max(COPIED, size):
            # Otherwise each byte of a client that sends single bytes would cost a copy of all earlier ones.
            self._bring_to_front()
        self._buffer = b"".join((self._buffer[self._position :], *pieces))
        self._later_size -= size
        self._need = 0
        self._move(self._position)

    def _bring_to_front(self) -> None:
        """Move the processed part of a request to the front, without copying its long arguments."""
        begin = self._position
        for start, argument in self._long:
            self._front += (self._buffer[begin:start], argument)
            begin = start + len(argument)
        self._front.append(self._buffer[begin : self._next])
        self._long.clear()
        self._front_size += self._next - self._position
        self._position = self._next

    def _with_front(self, rest: bytes) -> bytes:
        """Return the bytes of a request, or of its received part: its front, which is cleared, and the rest."""
        if not self._front:
            return rest
        whole = b"".join((*self._front, rest))
        self._front.clear()
        self._front_size = 0
        return whole

    def _take(self, kind: Kind, arguments: list[bytes], end: int, count: int = 0, header: int = 0) -> Request:
        raw = self._with_front(self._buffer[self._position : end])
        self._position = end
        return Request(kind, arguments, raw, count, header, odd=self._odd)

    def _break(self, raw: bytes | None = None) -> Request:
        """End the stream at a protocol error: return all bytes, or `raw` instead."""
        self._broken = True
        self._end_request()
        request = self._take(Kind.BROKEN, [], len(self._buffer))
        if raw is not None:
            request.raw = raw
        return request

    def _break_within(self) -> Request:
        """End the stream at a protocol error within an upload."""
        self._in_body, self._broken_within = False, True
        return self._break()

    def _break_at(self, end: int) -> Request:
        """End the stream at the position where the server ends it, and send nothing after that."""
        self._cut_off = True
        return self._break(self._with_front(self._buffer[self._position : end]))

    def _end_request(self) -> None:
        self._odd = False
        self._long.clear()
        self._arguments = []
        self._count = 0
        self._need = 0
        self._oversized = False
        self._announced = 0

    def _line_end(self, begin: int) -> int:
        """Find the carriage return of the line at `begin`: -1 if it has not come yet, -2 if it never will.

        The server searches as in a C string, and skips the byte after the carriage return without a check.
        """
        buffer = self._buffer
        end = buffer.find(b"\r", begin)
        stop = end if end >= 0 else len(buffer)
        if buffer.find(b"\0", begin, stop) >= 0 or stop - begin > INLINE_LIMIT:
            return -2
        if end < 0 or end + 1 >= len(buffer):
            return -1
        return end

    def _multi_bulk(self) -> Request | None:
        buffer = self._buffer
        if not self._count:
            begin = self._position
            end = self._line_end(begin)
            if end == -1:
                return None
            count = _integer(buffer[begin + 1 : end]) if end >= 0 else None
            if count is None or count > 0x7FFFFFFF:
                return self._break()
            if count <= 0:
                return self._take(Kind.WHOLE, [], end + 2, 0, end + 2 - begin)
            self._odd = buffer[end + 1] != 0x0A
            if self._odd and self._strict:
                return self._break_at(end + 2)
            self._count = count
            self._oversized = count > COUNT_LIMIT
            self._header = end + 2 - begin
            self._next = end + 2
            self._arguments = []
        arguments, count, size = self._arguments, self._count, len(buffer)
        position = self._next
        while len(arguments) < count:
            if position >= size:
                self._next = position
                return None
            if buffer[position] != 0x24:
                return self._break()
            end = self._line_end(position)
            if end == -1:
                self._next = position
                return None
            length = _integer(buffer[position + 1 : end]) if end >= 0 else None
            if length is None or length < 0:
                return self._break()
            if buffer[end + 1] != 0x0A:
                if self._strict:
                    return self._break_at(end + 2)
                self._odd = True
            after = end + 2 + length + 2
            if length > BULK_LIMIT:
                self._oversized = True
            if after > size:
                self._next = position
                self._need = after
                self._announced = length
                return None
            arguments.append(buffer[end + 2 : after - 2])
            if length > COPIED:
                self._long.append((end + 2, arguments[-1]))
            if not buffer.startswith(b"\r\n", after - 2):
                if self._strict:
                    return self._break_at(after)
                self._odd = True
            position = after
        request = self._take(Kind.WHOLE, arguments, position, count, self._header)
        self._end_request()
        return request

    def _body(self) -> Request | None:
        """Return the received bytes of a request whose head was taken."""
        buffer, size = self._buffer, len(self._buffer)
        position = self._position
        while True:
            step = min(self._body_bytes, size - position)
            position += step
            self._body_bytes -= step
            if self._body_bytes:
                break
            if not self._body_arguments:
                self._in_body = False
                break
            if position >= size:
                break
            if buffer[position] != 0x24:
                return self._break_within()
            end = self._line_end(position)
            if end == -1:
                break
            length = _integer(buffer[position + 1 : end]) if end >= 0 else None
            if length is None or length < 0:
                return self._break_within()
            position = end + 2
            self._body_bytes = length + 2
            self._body_arguments -= 1
        if position == self._position:
            return None
        return self._take(Kind.BODY, [], position)

    def _inline(self) -> Request | None:
        buffer, begin = self._buffer, self._position
        for _ in range(BLANK_LINES):
            end = buffer.find(b"\n", begin)
            stop = end if end >= 0 else len(buffer)
            # A star after a blank line: with a space before it, every server reads this as an inline request.
            mark = b" " if begin > self._position and buffer.startswith(b"*", begin) else b""
            if stop - begin > INLINE_LIMIT:
                # Servers reject so long a line only if they have not read its end yet, which depends on how their reads
                # are split. Here it is always rejected, and nothing after it is sent.
                self._cut_off = True
                return self._break(mark + buffer[begin : begin + INLINE_LIMIT + 1])
            if buffer.find(b"\0", begin, stop) >= 0:
                return self._break(mark + buffer[begin:])
            if end < 0:
                return None
            line = buffer[begin:end].removesuffix(b"\r")
            arguments = split_inline(line, self._quoting)
            if arguments is None:
                return self._break(mark + buffer[begin:])
            if arguments or not line or self._blanks is not Blanks.INLINE:
                break
            self._position, begin = begin, end + 1
            if begin == len(buffer):
                return None
        else:
            # After many blank lines return an empty request, so that other clients get their turn.
            return Request(Kind.WHOLE, [], b"", 0, 0)
        request = self._take(Kind.WHOLE, arguments, end + 1, len(arguments), 0)
        if arguments or not line:
            request.raw = mark + buffer[begin : end + 1]
        else:
            request.raw = b"\r\n" if self._blanks is Blanks.EMPTY else b""
        return request


def _integer(text: bytes) -> int | None:
    """Read a decimal integer as `string2ll` does: an optional minus, no leading zeros, no blanks; else None."""
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(text) > 20:
        return None
    if digits[0] == 0x30 and len(text) > 1:
        return None
    value = int(text)
    return value if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF else None


def strict_integer(text: bytes) -> int | None:
    """Read a 64-bit integer argument as Redis does.

    Args:
        text: the argument.

    Returns:
        The integer, or None if Redis would return "value is not an integer or out of range".
    """
    return _integer(text)


def split_inline(line: bytes, quoting: Quoting = Quoting.PLAIN) -> list[bytes] | None:
    r"""Split an inline request into arguments, as `sdssplitargs` does.

    Args:
        line: the line, without its end.
        quoting: how the server splits it.

    Returns:
        The arguments ("double quotes" with \n \r \t \b \a \xHH escapes, 'single quotes' with \'), or None when the
        quotes are not balanced.
    """
    if not _QUOTED.search(line):
        return line.split()
    dropped = -1 if quoting is Quoting.PLAIN else 0xFF
    behind = 2 if quoting is Quoting.JOINING else 1  # bytes needed after a backslash for an escape
    arguments: list[bytes] = []
    position, size = 0, len(line)
    while True:
        while position < size and line[position] in _SPACES:
            position += 1
        if position >= size:
            return arguments
        argument = bytearray()
        quote = 0
        while True:
            byte = line[position] if position < size else -1
            if quote:
                if byte < 0:
                    return None
                if byte == 0x5C and quote == 0x22 and position + behind < size:
                    escaped = line[position + 1 : position + 4]
                    if len(escaped) == 3 and escaped[0] == 0x78 and escaped[1] in _HEX and escaped[2] in _HEX:
                        argument.append(int(escaped[1:], 16))
                        position += 3
                    else:
                        if escaped[0] != dropped:
                            argument.append(_ESCAPES.get(escaped[0], escaped[0]))
                        position += 1
                elif byte == 0x5C and quote == 0x27 and position + behind < size and line[position + 1] == 0x27:
                    argument.append(0x27)
                    position += 1
                elif byte == quote:
                    quote = 0
                    if quoting is not Quoting.JOINING:
                        if position + 1 < size and line[position + 1] not in _SPACES:
                            return None
                        position += 1
                        break
                elif byte != dropped:
                    argument.append(byte)
            elif byte < 0 or byte in _ENDS:
                break
            elif byte in (0x22, 0x27):
                quote = byte
            elif byte != dropped:
                argument.append(byte)
            position += 1
        arguments.append(bytes(argument))


def bulk(data: bytes) -> bytes:
    """Encode one bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def second(request: bytes) -> bytes:
    """Return the first argument after the name, as a bulk string. The request has fewer than ten elements."""
    begin = request.index(b"$", len(b"*2\r\n$"))
    end = request.index(b"\r\n", begin) + 2
    return request[begin : end + int(request[begin + 1 : end]) + 2]


def packed(words: Sequence[bytes]) -> bytes:
    """Encode a short request at the speed of C."""
    return hiredis.pack_command(tuple(words))  # type: ignore[arg-type, no-any-return]  # declared as a tuple of one


def bulks(words: Sequence[bytes]) -> bytes:
    """Encode bulk strings at the speed of C."""
    request = packed(words)
    return request[request.index(b"\n") + 1 :]


def encode(arguments: list[bytes] | tuple[bytes, ...]) -> bytes:
    """Encode a request."""
    if sum(map(len, arguments)) > COPIED:  # this way each argument is copied once, not twice
        headers = (b"$%d\r\n" % len(argument) for argument in arguments)
        parts = chain.from_iterable(zip(headers, arguments, repeat(b"\r\n"), strict=False))
        return b"".join((b"*%d\r\n" % len(arguments), *parts))
    return b"*%d\r\n%b" % (len(arguments), b"".join(map(bulk, arguments)))
