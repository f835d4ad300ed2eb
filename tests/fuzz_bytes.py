"""Send the same odd bytes to a server and to the proxy in front of its twin, and compare what comes back.

`python -m tests.fuzz_bytes --streams 200000 --seed 1 --kind redis-7.0` runs it alone. A stream that fails is made as
short as possible and printed; put it into the corpus of `test_fuzz.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from operator import le
from types import TracebackType
from typing import Final, Self

import psutil

from proxy.wire.frames import frames
from tests.raw import Address, Raw, held_count, request
from tests.servers import BINARIES, KINDS, Proxy, Server, until

PASSWORD: Final = "a-secret"
FAR: Final = 4_000_000_000
"""A deadline, as a Unix time, that no run lives to see."""

PATIENCE: Final = 20.0
"""Seconds that anything may take before it counts as hanging."""

QUIET: Final = 0.03
"""Seconds without a reply after which none is expected any more."""

IMPATIENCE: Final = 0.5
"""The same while a stream that has failed is being made shorter."""

PAUSE: Final = 0.0003
"""Seconds between two pieces, so that they are mostly read one by one."""

MEMORY: Final = 30_000_000
"""Bytes by which the proxy may have grown in the end."""

BATCH: Final = 16
"""Streams after which the data is compared."""

RESERVED: Final = b"__expiremember__:fuzz"

FIELDS: Final = (b"d1", b"d2", b"d3", b"d4")
"""Fields of the hash `life`, each with a deadline, that stand before the field `keep`, which no stream touches."""

SETUP: Final = (
    (b"RESET",),
    (b"FLUSHALL",),
    (b"HSET", b"life", *(part for field in FIELDS for part in (field, b"0")), b"keep", b"0"),
    (b"SADD", b"set", b"a", b"b", b"c"),
    (b"ZADD", b"zset", b"1", b"a", b"2", b"b"),
    (b"RPUSH", b"list", b"a", b"b", b"a"),
    (b"SET", b"str", b"v"),
    (b"SADD", b"pset", b"a"),
    (b"HSET", b"phash", b"f", b"1"),
)
DEADLINES: Final = (
    *((b"life", field) for field in FIELDS),
    (b"set", b"a"),
    (b"set", b"b"),
    (b"zset", b"a"),
    (b"list", b"a"),
)
KEYS: Final = (b"life", b"set", b"set2", b"zset", b"list", b"str", b"pset", b"phash", b"n", b"x")


class End(Enum):
    """How a stream ends, after its last byte."""

    ECHO = "echo"
    """With requests that reset the connection and ask for a token; it may be used again.

    Not where a password is wanted: a client that has reset is a stranger, and closed when much is left for it to read.
    """
    WAIT = "wait"
    """With nothing, so that what the client sees while it waits is compared too; then with a half close."""
    HALF = "half"
    """With a half close: all replies are still read."""
    CLOSE = "close"
    """With a close, replies unread."""
    RESET = "reset"
    """With a TCP reset."""


@dataclass(frozen=True)
class Stream:
    """Bytes of one connection.

    Attributes:
        data: the bytes.
        cuts: the places at which they are cut into separate sends.
        end: what follows the last one.
        login: whether AUTH comes first.
    """

    data: bytes
    cuts: tuple[int, ...] = ()
    end: End = End.HALF
    login: bool = True

    def pieces(self) -> list[bytes]:
        """Return what is sent at once."""
        places = [0, *sorted({cut for cut in self.cuts if 0 < cut < len(self.data)}), len(self.data)]
        return [self.data[begin:end] for begin, end in pairwise(places)]

    def without(self, begin: int, end: int) -> Stream:
        """Return the stream without some of its bytes."""
        cuts = tuple(cut if cut <= begin else max(begin, cut - (end - begin)) for cut in self.cuts)
        return replace(self, data=self.data[:begin] + self.data[end:], cuts=cuts)

    def compared(self) -> bool:
        """Return whether replies and data are the same for sure, whatever the moment at which things happen."""
        return self.end not in (End.CLOSE, End.RESET)


class Difference(AssertionError):  # noqa: N818 - a finding, not an error of the program
    """What was not the same."""


# ---------------------------------------------------------------------------------------------------- generator

_MEMBERS = (b"a", b"b", b"c", b"z", b"d1", b"d2", b"")
_SEPARATORS = (b" ", b"  ", b"\t", b" \t ", b" \v ", b" \f")
_ENDINGS = (b"\r\n", b"\r\n", b"\n", b" \r\n", b"\r\r\n")
_TYPES = b"_#,(!=~%>|+-:*$"
_NUMBERS = [
    *b"0 -0 -1 -2 00 01 1 2 3 +1 10 11 1.0 1e3 0x1 16384 16385 1048576 1048577 300000000 536870912 536870913 "
    b"2147483647 2147483648 -2147483649 4294967296 9223372036854775807 9223372036854775808 -9223372036854775808 "
    b"-9223372036854775809 18446744073709551617 99999999999999999999 999999999999999999999999 ? inf nan".split(),
    *(b"", b" ", b" 1", b"1 ", b"-", b"1\0", b"\0", b"1\t", b"1\n", b"\xd9\xa3"),
]
_COMMANDS = [
    line.split()
    for line in b"""
    PING; ECHO MEMBER; GET str; SET str MEMBER; SET x v; SET set v; SET life v; SADD set MEMBER; SADD set a MEMBER
    SADD set MEMBER; SREM set MEMBER; SCARD set; SISMEMBER set MEMBER; HSET life FIELD MEMBER
    HSET life FIELD 1 d1 2; HDEL life FIELD; HDEL life FIELD d2; HGET life FIELD; HINCRBY life FIELD 1
    ZADD zset 3 MEMBER; ZREM zset MEMBER; ZSCORE zset MEMBER; ZINCRBY zset 1 a; RPUSH list MEMBER
    LREM list 0 MEMBER; LRANGE list 0 -1; LPOP list; DEL x; DEL set2; DEL zset; DEL set x; RENAME set set2
    RENAME set2 set; SMOVE set set2 MEMBER; COPY set set2; SADD pset MEMBER; HSET phash f MEMBER; HINCRBY phash n 2
    EVAL return(redis.call('hincrby',KEYS[1],ARGV[1],1)) 1 life FIELD
    INCR n; TYPE KEY; EXISTS KEY; TTL KEY; PERSIST set; MULTI; EXEC; DISCARD; DBSIZE; KEYS nothing*; EVAL return0 0
    SADD set 1 2 3 4 5 6; SADD set 1 2 3 4 5 6 7 8; SADD set; SADD str a; SADD set 1 2 3 4 5 6 7 8 9 10 11 12
    MGET str x; nosuch MEMBER; SUNIONSTORE set2 set; SPOP nothing; AUTH PASSWORD; AUTH wrong; SELECT 0; HSET life FIELD
    """.replace(b"\n", b";").split(b";")
    if line.split()
]
_TRESPASSES = [
    [RESERVED if word == b"R" else word for word in line.split()]
    for line in b"""
    SET R v; SADD R a; HSET R f v; ZADD R 1 a; LPUSH R a; RENAME set R; COPY set R; SUNIONSTORE R set; MSET x 1 R 2
    BITOP NOT R str; SMOVE set R a; SORT list ALPHA STORE R; INCR R; SETEX R 100 v; PFADD R a; GEOADD R 1 1 a
    XADD R * a b; APPEND R a; EVAL redis.call('set',KEYS[1],1) 1 R
    """.replace(b"\n", b";").split(b";")
    if line.split()
]
_MODES = [
    line.split()
    for line in b"""
    CLIENT REPLY OFF; CLIENT REPLY SKIP; CLIENT REPLY ON; HELLO 3; HELLO 2; SUBSCRIBE ch; UNSUBSCRIBE ch; QUIT
    RESET; quit now; POST /; Host: here; WATCH set; BLPOP x 0.01; PSUBSCRIBE c*; HELLO 3; CLIENT REPLY SKIP; HELLO 9
    """.replace(b"\n", b";").split(b";")
    if line.split()
]
_VALUES = (
    b"_\r\n", b"#t\r\n", b"#f\r\n", b",1.5\r\n", b",inf\r\n", b"(123\r\n", b"!3\r\nabc\r\n", b"=7\r\ntxt:abc\r\n",
    b"~1\r\n$1\r\na\r\n", b"%1\r\n$1\r\na\r\n$1\r\nb\r\n", b">1\r\n$1\r\na\r\n", b"|1\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"+a\r\n", b"-a\r\n", b"-ERR a\r\n", b":1\r\n", b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"*1\r\n+a\r\n",
    b"*1\r\n*1\r\n$1\r\na\r\n", b"$?\r\n;1\r\na\r\n;0\r\n", b"*?\r\n.\r\n", b"~?\r\n", b".\r\n", b"%1\r\n*0\r\n+a\r\n",
    b">300000000\r\n", b"%300000000\r\n", b"~-1\r\n", b"|-1\r\n", b"$a\r\n", b"=3\r\nabc\r\n", b"=-1\r\n", b"!-1\r\n",
)  # fmt: skip
_EMPTIES = (b"\r\n", b"\n", b"*0\r\n", b"*-1\r\n", b"*-7\r\n", b"*0\rx", b"*-9223372036854775808\r\n")
_BLANKS = (b"  \r\n", b" \n", b"\t\r\n", b"\v\r\n", b"\r\r\n", b" \f \n")
_ODD_LINES = (
    b"get 'unbalanced\r\n", b'get "a"b\r\n', b'get "a\r\n', b"'\r\n", b'"\r\n', b"''\r\n", b'""\r\n', b"a\0b\r\n",
    b"\0", b"\0\r\n", b"get str\0\r\n", b'"\\x67\\x65\\x74" str\r\n', b"'get' 'str'\r\n", b'get "s\\tr"\r\n',
    b"\xff\xfe\r\n", b"$1\r\n", b"*\r\n", b"**1\r\n", b"* 1\r\n", b"*1\n$4\nPING\n", b"*1", b"*1\r",
    b"*2\r\n$4\r\nECHO",
    b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01\x00\r\n", b"\\x41\r\n", b"echo \\\r\n", b"echo '\\''\r\n",
)  # fmt: skip


class Generator:
    """Streams, the same ones for the same seed.

    Args:
        seed: what makes them.
        password: whether the server wants one.
        reserved: whether all commands write to the reserved name.
    """

    def __init__(self, seed: int, *, password: bool, reserved: bool = False) -> None:
        self._random = random.Random(seed)
        self._password = password
        self._reserved = reserved

    def stream(self) -> Stream:
        """Return the next one."""
        rng = self._random
        atoms: list[bytes] = []
        complete = True
        for _ in range(rng.choice((1, 1, 2, 3, 4, 6, 9))):
            atom, whole = self._atom()
            atoms.append(atom)
            complete = complete and whole
        data = b"".join(atoms)
        chance = rng.random()
        if chance < 0.1:
            data, complete = self._mangled(data), False
        elif chance < 0.16:
            data, complete = data[: rng.randrange(len(data) + 1)], False
        if not data:
            data, complete = b"\r\n", True
        cuts: list[int] = []
        if rng.random() < 0.5:
            cuts = [rng.randrange(1, len(data) + 1) for _ in range(rng.choice((1, 1, 2, 3)))]
        end = rng.choices((End.HALF, End.WAIT, End.CLOSE, End.RESET), (20, 1, 1, 1))[0]
        if complete and not self._password and rng.random() < 0.9:
            end = End.ECHO
        return Stream(data, tuple(sorted(cuts)), end, not self._password or rng.random() < 0.6)

    def _atom(self) -> tuple[bytes, bool]:
        """Make a part of a stream; and tell whether it surely leaves the connection between two requests, open."""
        rng = self._random
        makers: tuple[tuple[int, Callable[[], tuple[bytes, bool]]], ...] = (
            (30, lambda: (self._array(self._command()), True)),
            (12, lambda: (self._line(self._command()), True)),
            (8, lambda: (self._oddly_framed(self._command()), True)),
            (4, lambda: (self._lives_anew(), True)),
            (3, lambda: (rng.choice(_EMPTIES), True)),
            (2, lambda: (rng.choice(_BLANKS), True)),
            (3, lambda: (b"".join(map(self._array, self._transaction())), True)),
            (9, lambda: (self._mistyped(self._command()), False)),
            (6, lambda: (self._miscounted(self._command()), False)),
            (4, lambda: (rng.choice(_VALUES), False)),
            (4, lambda: (b"*%d\r\n" % rng.choice((1, 2, 3)) + b"".join(rng.choices(_VALUES, k=3)), False)),
            (3, lambda: (rng.choice(_ODD_LINES), False)),
            (1, lambda: (self._array(self._mode()), False)),
            (1, lambda: (self._junk(), False)),
            (1, self._large),
        )
        weights = [weight for weight, _ in makers]
        return rng.choices([make for _, make in makers], weights)[0]()

    def _command(self) -> list[bytes]:
        rng = self._random
        member, field, key = rng.choice(_MEMBERS), rng.choice(FIELDS), rng.choice(KEYS)
        meant = {b"MEMBER": member, b"FIELD": field, b"KEY": key, b"PASSWORD": PASSWORD.encode()}
        command = [meant.get(word, word) for word in rng.choice(_TRESPASSES if self._reserved else _COMMANDS)]
        if rng.random() < 0.3:
            command[0] = rng.choice((command[0].lower(), command[0].capitalize()))
        return command

    def _mode(self) -> list[bytes]:
        mode = list(self._random.choice(_MODES))
        return [b"PING"] if self._password and mode == [b"RESET"] else mode  # as above

    def _transaction(self) -> list[list[bytes]]:
        return [[b"MULTI"], *(self._command() for _ in range(self._random.randrange(4))), [b"EXEC"]]

    def _lives_anew(self) -> bytes:
        """Remove a member that has a deadline, and add it again."""
        rng = self._random
        field = rng.choice(FIELDS)
        pair = rng.choice(
            (
                ([b"HDEL", b"life", field], [b"HSET", b"life", field, b"new"]),
                ([b"hdel", b"life", field, b"d1"], [b"HSETNX", b"life", field, b"new"]),
                ([b"HDEL", b"life", field], [b"HINCRBY", b"life", field, b"1"]),
            )
        )
        return b"".join(rng.choice((self._array, self._line, self._oddly_framed))(list(part)) for part in pair)

    def _array(self, command: Iterable[bytes]) -> bytes:
        return request(*command)

    def _line(self, command: list[bytes]) -> bytes:
        rng = self._random
        words = []
        for word in command:
            plain = bool(word) and not re.search(rb"[\s\"'\\\0]", word)
            style = rng.random()
            if style < 0.6 and plain:
                words.append(word)
            elif style < 0.8 and b"'" not in word and b"\\" not in word and b"\n" not in word and b"\0" not in word:
                words.append(b"'%b'" % word)
            else:
                words.append(
                    b'"%b"'
                    % b"".join(
                        b"\\x%02x" % byte if rng.random() < 0.5 or not chr(byte).isalnum() else bytes([byte])
                        for byte in word
                    )
                )
        if rng.random() < 0.05:
            # Joined to what is quoted, or with a byte that some servers leave out.
            place = rng.randrange(len(words))
            words[place] = rng.choice((b'""%b', b"%b''", b"\xff%b", b"%b\xff")) % words[place]
        line = rng.choice((b"", b"", b" ", b"\t "))
        for number, word in enumerate(words):
            line += (rng.choice(_SEPARATORS) if number else b"") + word
        return line + rng.choice(_ENDINGS)

    def _oddly_framed(self, command: list[bytes]) -> bytes:
        """An array of which some line ends are not CRLF: older servers do not look."""
        rng = self._random

        def after_header() -> bytes:
            return rng.choice((b"\r\n", b"\r\n", b"\rx", b"\r\r", b"\r*", b"\r$", b"\r\0"))

        def after_bulk() -> bytes:
            return rng.choice((b"\r\n", b"\r\n", b"xx", b"\n\r", b"\0\0", b"*1", b"$1"))

        return b"*%d%b" % (len(command), after_header()) + b"".join(
            b"$%d%b%b%b" % (len(word), after_header(), word, after_bulk()) for word in command
        )

    def _mistyped(self, command: list[bytes]) -> bytes:
        """An array with another type's byte, or a value of another type, in some place."""
        rng = self._random
        parts = [b"*%d\r\n" % len(command), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)]
        place = rng.randrange(len(parts))
        if rng.random() < 0.6:
            parts[place] = bytes([rng.choice(_TYPES)]) + parts[place][1:]
        else:
            parts[place] = rng.choice(_VALUES)
        return b"".join(parts)

    def _miscounted(self, command: list[bytes]) -> bytes:
        """An array of which one number is another one."""
        rng = self._random
        parts = [b"*%d\r\n" % len(command), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)]
        place = rng.randrange(len(parts))
        _, _, rest = parts[place].partition(b"\r\n")
        parts[place] = parts[place][:1] + rng.choice(_NUMBERS) + rng.choice((b"\r\n", b"\r\n", b"\n", b"\r")) + rest
        return b"".join(parts)

    def _large(self) -> tuple[bytes, bool]:
        rng = self._random
        size = rng.choice((999, 1000, 16_383, 16_384, 16_385, 32_768, 40_000, 70_000))
        key, chance = rng.choice((b"str", b"set", b"x")), rng.random()
        if chance < 0.6:
            return request(rng.choice((b"SADD", b"SET", b"ECHO2")), key, b"v" * size), True
        if chance < 0.8:
            line = b"SADD %b " % key
            return line + b"v" * (rng.choice((1000, 20_000, 65_534, 65_535)) - len(line)) + b"\n", True
        # What the server refuses for its size, far beyond what it may have read at once.
        return rng.choice((b"SADD set ", b"*", b"*2\r\n$")) + b"1" * 300_000 + rng.choice(
            (b"", b"\r\n", b"\r\nPING\r\n")
        ), False

    def _junk(self) -> bytes:
        rng = self._random
        return bytes(rng.choices(b"*$\r\n\r\n\r\n0123-'\" \t\0\\xPING_#,(!=~%>|+:", k=rng.randrange(1, 30)))

    def _mangled(self, data: bytes) -> bytes:
        rng = self._random
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(data) + 1)
            patch = rng.choice(
                (
                    b"",
                    b"",
                    bytes([rng.randrange(256)]),
                    bytes([rng.choice(_TYPES)]),
                    b"\r\n",
                    b"\r",
                    b"\n",
                    b"\0",
                    b"1",
                    b" ",
                )
            )
            data = data[:at] + patch + data[at + rng.choice((0, 0, 1, 1, 2, 5)) :]
        return data


# ---------------------------------------------------------------------------------------------------- comparer


class Lane:
    """A connection to one of the two sides, used again as long as it can be."""

    def __init__(self, address: Address, login: bytes) -> None:
        self._address = address
        self._login = login
        self._socket: socket.socket | None = None
        self._read = b""
        self.patience = PATIENCE

    def open(self, *, login: bool) -> None:
        """Have a connection, fresh in all but name."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self.patience)  # type: ignore[arg-type]
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if login and self._login:
            self._socket.sendall(self._login)
            wanted = b"+OK\r\n"
            got = b""
            while len(got) < len(wanted):
                part = self._receive()
                if not part:
                    raise Difference(f"closed instead of an answer to AUTH: {got!r}")
                got += part
            if got != wanted:
                raise Difference(f"AUTH: {got!r}")

    def send(self, data: bytes) -> None:
        """Send bytes. The other side may have closed already."""
        assert self._socket is not None
        try:
            with contextlib.suppress(ConnectionError):
                self._socket.sendall(data)
        except TimeoutError:
            raise Difference(f"takes no more bytes for {PATIENCE} s") from None

    def _receive(self) -> bytes:
        assert self._socket is not None
        try:
            return self._socket.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def until(self, wanted: bytes, patience: float | None = None) -> tuple[bytes, str]:
        """Read until some bytes or the close; return what came before it, and how it ended.

        What was read before the patience ended is read again by `until_close`.
        """
        assert self._socket is not None
        got, state = b"", "closed"
        self._socket.settimeout(patience or self.patience)
        try:
            while part := self._receive():
                got += part
                if got.endswith(wanted):
                    self._socket.settimeout(self.patience)
                    return got.removesuffix(wanted), "open"
        except TimeoutError:
            self._socket.settimeout(self.patience)
            self._read = got
            return got, "silent"
        self.drop()
        return got, state

    def peek(self, seconds: float) -> tuple[bytes, bool]:
        """Return what has come so far, after waiting for more for some time, and whether the other side has closed."""
        assert self._socket is not None
        self._socket.settimeout(seconds)
        closed = False
        with contextlib.suppress(TimeoutError):
            while part := self._receive():
                self._read += part
            closed = True
        self._socket.settimeout(self.patience)
        return self._read, closed

    def until_close(self) -> tuple[bytes, str]:
        """Half-close and read all."""
        assert self._socket is not None
        got, self._read = self._read, b""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        try:
            while part := self._receive():
                got += part
        except TimeoutError:
            self.drop()
            return got, "silent"
        self.drop()
        return got, "closed"

    def drop(self, *, reset: bool = False) -> None:
        """Close."""
        self._read = b""
        if self._socket is not None:
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._socket.close()
            self._socket = None


_IDENTITY: Final = re.compile(rb"(\$2\r\nid\r\n):[0-9]+\r\n")
_LIMIT: Final = b"-ERR expiremember-proxy: request larger than request_limit"
_MANY: Final = re.compile(rb"\*[0-9]{7}")
"""A count that Redis 6.2 refuses at once, and the proxy only later."""

_ABORTS: Final = re.compile(rb"post|host:", re.IGNORECASE)
_BLOCKS: Final = re.compile(rb"blpop", re.IGNORECASE)
"""What may make a client wait: servers drop one that ends its side meanwhile, with all that it has sent behind it."""

_SILENCES: Final = re.compile(rb"reply[\s$0-9\"']{1,12}(?:off|skip)\b", re.IGNORECASE)
"""What may have a server refuse the stream without a word: it closes then only if another reply waits to be sent."""

_LONG_LINE: Final = re.compile(rb"[^\n]{65537}")
_TOO_LONG: Final = b"-ERR Protocol error: too big inline request\r\n"
"""The proxy refuses every line over 64 KB; a server those of which it has not yet read the end when it looks."""

_LONG_HEADER: Final = re.compile(
    rb"-ERR Protocol error: (?:too big m?bulk count string|invalid (?:multi)?bulk length)\r\n\Z"
)
"""What a server says of a header over 64 KB: which of these depends on whether it has read its end when it looks."""

_WINDOW: Final = 16 * 1024
"""Bytes of replies beyond which a client may lose some that has more to send: a server that closes at an error while
more is coming resets the connection, and drops what the client's system has not taken yet."""

_LAST: Final = re.compile(rb"-ERR Protocol error: [^\r\n]*\r\n\Z")

_WRONG: Final = re.compile(rb"(?<=\n)-WRONGPASS [^\r\n]*\r\n")
"""The refusal of a password behind another reply: servers that give none to who has replies waiting leave it out when
they happen to read both requests at once."""

_OF_KEYS: Final = re.compile(rb"-ERR wrong number of arguments for '(?:ttl|pttl|persist)' command\r\n")
"""The answer of a server to what asks the proxy about a member."""

_OF_MEMBERS: Final = re.compile(
    rb":-?[0-9]+\r\n|-ERR Invalid arguments\r\n|-(?:WRONGTYPE|NOAUTH) [^\r\n]*\r\n|\+QUEUED\r\n"
)


class Excuse(Enum):
    """Why replies that are not the same are as they should be."""

    NONE = "there is no reason"
    REPLIES = "the same requests have run"
    DATA = "others may have run, or with another effect: the data may not be the same either"


def _without_identity(replies: bytes) -> bytes:
    return _IDENTITY.sub(rb"\1:0\r\n", replies)


def _about_members(theirs: bytes, ours: bytes) -> bool:
    """Return whether the replies are the same but for those that are about members, and what hangs on these."""
    other, own = frames(theirs), frames(ours)
    for one, another in zip(other, own, strict=False):
        if one == another:
            continue
        if not (_OF_KEYS.fullmatch(one) and _OF_MEMBERS.fullmatch(another)):
            return False
        if another == b"+QUEUED\r\n":
            return True  # the server drops the transaction that the proxy has run
    return len(other) == len(own) and other != own


_HUSHED_IN_MULTI = re.compile(rb"MULTI\b.*\bREPLY\s+(?:\$\d+\s+)?(?:OFF|SKIP)\b", re.DOTALL | re.IGNORECASE)


def excuse(stream: bytes, theirs: bytes, ours: bytes, *, spares_words: bool) -> Excuse:
    """Tell why the replies to a stream need not be the same.

    Args:
        stream: what was sent.
        theirs: the server's replies.
        ours: the replies through the proxy.
        spares_words: whether the server refuses a password without a word when other replies wait to be sent.
    """
    if _LIMIT in ours and theirs.startswith(ours.partition(_LIMIT)[0]):
        return Excuse.DATA  # what the proxy would have to hold is limited
    if (
        _LONG_LINE.search(stream)
        and _LONG_HEADER.search(ours)
        and _LONG_HEADER.sub(b"", ours) == _LONG_HEADER.sub(b"", theirs)
    ):
        return Excuse.REPLIES
    if ours.endswith(_TOO_LONG) and _LONG_LINE.search(stream) and theirs.startswith(ours[: -len(_TOO_LONG)]):
        return Excuse.DATA
    if ours.startswith(theirs) or theirs.startswith(ours):
        if _BLOCKS.search(stream):
            return Excuse.DATA
        if _ABORTS.search(stream):
            return Excuse.REPLIES  # the server drops those that it has not yet sent
        if min(len(ours), len(theirs)) >= _WINDOW and _LAST.search(max(ours, theirs, key=len)):
            return Excuse.REPLIES
    if spares_words and _WRONG.sub(b"", theirs) == _WRONG.sub(b"", ours):
        return Excuse.REPLIES
    if _about_members(theirs, ours) or _HUSHED_IN_MULTI.search(stream):
        return Excuse.DATA  # the latter is refused
    return Excuse.NONE


class Stand:
    """Two servers of a kind, one with the proxy in front, and a connection to each.

    Args:
        kind: which of the kinds of servers.
        password: whether the servers want one.
        ignore: an expression; differences that it matches do not count.

    Attributes:
        last: the stream that was sent last.
        excused: whether the data may differ since one that was sent: see `Excuse`.
    """

    def __init__(self, kind: str, *, password: bool, ignore: str = "(?!)") -> None:
        self.kind = kind
        self.ignore = ignore
        self.password = password
        self.excused = False
        options = ("--requirepass", PASSWORD) if password else ()
        self._login = request("AUTH", PASSWORD) if password else b""
        with ExitStack() as stack:
            self.straight = Server(kind, *options)
            stack.callback(self.straight.close)
            self.upstream = Server(kind, *options)
            stack.callback(self.upstream.close)
            address = f"127.0.0.1:{self.upstream.port}"
            self.proxy = Proxy("--upstream", f"redis://:{PASSWORD}@{address}" if password else f"redis://{address}")
            stack.callback(self.proxy.close)
            self.lanes = (Lane(self.straight.address, self._login), Lane(self.proxy.address, self._login))
            self._controls = [
                stack.enter_context(Raw(address, 20))
                for address in (self.straight.address, self.proxy.address, self.upstream.address)
            ]
            for control in self._controls:
                self._log_in(control)
            with Raw(self.straight.address) as client:
                client.send(b"GET a\r\nAUTH wrong\r\n")
                client.end_of_requests()
                self._spares_words = b"WRONGPASS" not in client.rest() and password
            self._stack = stack.pop_all()
        self._process = psutil.Process(self.proxy.pid)
        self._resting = [0, 0]
        self.prepare()
        self.run(Stream(held_count("life", "d1", 1), end=End.ECHO))  # asks the engine, which so is there
        for lane in self.lanes:
            lane.drop()
        self._resting = until(lambda: self._rested() or [], what="a server with no other clients")
        self._before = self._descriptors(), self._process.memory_info().rss

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self.lanes:
            lane.drop()
        self._stack.close()

    def _log_in(self, control: Raw) -> None:
        if self.password:
            assert control.command("AUTH", PASSWORD) == b"+OK\r\n"

    def _clients(self) -> list[int]:
        """Count the clients of both servers, without the proxy's own connections, which are more at times."""
        controls = self._controls[0], self._controls[2]
        return [control.command("CLIENT", "LIST").count(b" name= ") for control in controls]

    def _descriptors(self) -> int:
        """Count the proxy's descriptors, without its own connections, those that clients share among them."""
        return self._process.num_fds() - self._controls[2].command("CLIENT", "LIST").count(b" name=expiremember-proxy")

    def _rested(self) -> list[int] | None:
        """Return the counts when they stay the same for a while: before any stream."""
        first = self._clients()
        time.sleep(0.2)
        return first if self._clients() == first else None

    def settle(self) -> None:
        """Wait until the servers are done with all connections of the lanes: these have been dropped.

        Raises:
            Difference: they are not.
        """
        # Who comes later is served later: those that were dropped before they were accepted have been by then.
        try:
            for address in (self.straight.address, self.proxy.address):
                with Raw(address, PATIENCE) as client:
                    client.command("PING")
        except OSError as error:
            raise Difference(f"no more clients are served: {error!r}") from error
        try:
            until(lambda: all(map(le, self._clients(), self._resting)), timeout=PATIENCE)
        except AssertionError:
            left = self._controls[2].command("CLIENT", "LIST").decode(errors="replace")
            raise Difference(f"{self._clients()} clients of the servers, {self._resting} before: {left}") from None

    def prepare(self) -> None:
        """Give both sides the same data; on the one with the proxy some members get deadlines."""
        self.excused = False
        for number, control in enumerate(self._controls[:2]):
            setup = list(SETUP)
            if self.password:
                setup.insert(1, (b"AUTH", PASSWORD.encode()))
            if number:
                setup += [(b"EXPIREMEMBERAT", key, member, b"%d" % FAR) for key, member in DEADLINES]
            control.send(b"".join(request(*command) for command in setup))
            replies = control.replies(len(setup))
            assert not any(reply.startswith(b"-") for reply in replies), replies

    def data(self) -> None:
        """Compare the data of both sides, and the deadlines with the lives that their members have had.

        Raises:
            Difference: something is not the same.
        """
        straight, proxy, upstream = self._controls
        digests = [control.command("DEBUG", "DIGEST-VALUE", *KEYS) for control in (straight, upstream)]
        if digests[0] != digests[1]:
            kinds = [[control.command("TYPE", key) for key in KEYS] for control in (straight, upstream)]
            for key, one, other in zip(KEYS, *[digest.split(b"\r\n")[1:-1] for digest in digests], strict=True):
                if one != other:
                    raise Difference(
                        f"data of {key!r}: {self._shown(straight, key)!r}, proxied {self._shown(upstream, key)!r}"
                    )
            raise Difference(f"data: {kinds}")
        names = straight.command("DBSIZE"), proxy.command("DBSIZE")
        if names[0] != names[1]:
            raise Difference(f"DBSIZE: {names[0]!r}, proxied {names[1]!r}")
        if straight.command("TYPE", "life") == b"+hash\r\n":
            fields = straight.command("HKEYS", "life").split(b"\r\n")[2::2]
            if b"keep" in fields:
                for field in set(FIELDS) & set(fields):
                    anew = fields.index(field) > fields.index(b"keep")
                    left = proxy.command("TTL", "life", field)
                    if anew != (left == b":-1\r\n"):
                        raise Difference(f"{field!r} {'lives anew' if anew else 'lives on'}, and its TTL is {left!r}")

    @staticmethod
    def _shown(control: Raw, key: bytes) -> bytes:
        for command in (
            ("GET", key),
            ("HGETALL", key),
            ("SMEMBERS", key),
            ("LRANGE", key, 0, -1),
            ("ZRANGE", key, 0, -1),
        ):
            reply = control.command(*command)
            if not reply.startswith(b"-"):
                return reply
        return reply

    def run(self, stream: Stream) -> None:
        """Send a stream to both sides and compare what comes back.

        Raises:
            Difference: something is not the same, or hangs.
        """
        for lane in self.lanes:
            lane.open(login=stream.login)
        for number, piece in enumerate(stream.pieces()):
            if number:
                time.sleep(PAUSE)
            for lane in self.lanes:
                lane.send(piece)
        if not stream.compared():
            for lane in self.lanes:
                lane.drop(reset=stream.end is End.RESET)
            return
        token = secrets.token_hex(8).encode()
        straight, proxied = self.lanes
        if stream.end is End.ECHO:
            for lane in self.lanes:
                lane.send(b"\r\n" + request("RESET") + self._login + request("ECHO", token) + request("RESET"))
            wanted = (
                b"+RESET\r\n" + (b"+OK\r\n" if self._login else b"") + b"$%d\r\n%b\r\n+RESET\r\n" % (len(token), token)
            )
            expected = straight.until(wanted, 1.0)
            if expected[1] != "silent":
                self._compare(stream, expected, proxied.until(wanted))
                return
            # The stream has ended within a request after all.
        if stream.end is End.WAIT and not _MANY.search(stream.data):
            deadline = time.monotonic() + proxied.patience
            while True:
                seen = straight.peek(QUIET), proxied.peek(QUIET)
                theirs, ours = (_without_identity(replies) for replies, _ in seen)
                same = theirs == ours and (seen[0][1] == seen[1][1] or _SILENCES.search(stream.data) is not None)
                if same or self._excuse(stream, theirs, ours) is not Excuse.NONE:
                    break
                hopeless = not theirs.startswith(ours) and not ours.startswith(theirs)
                if hopeless or time.monotonic() > deadline:
                    raise Difference(f"while waiting: {seen[0]!r:.600}, proxied {seen[1]!r:.600}")
        if _BLOCKS.search(stream.data):
            self._unblocked()
        self._compare(stream, straight.until_close(), proxied.until_close())

    def _unblocked(self) -> None:
        """Wait, for a bounded time, until no client waits any more and the replies are the same."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            seen = [lane.peek(QUIET)[0] for lane in self.lanes]
            waiting = [control.command("INFO", "clients") for control in (self._controls[0], self._controls[2])]
            if seen[0] == seen[1] and all(b"blocked_clients:0\r" in words for words in waiting):
                break

    def _compare(self, stream: Stream, straight: tuple[bytes, str], proxied: tuple[bytes, str]) -> None:
        ours, theirs = _without_identity(proxied[0]), _without_identity(straight[0])
        same = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), -1)
        same = same if same >= 0 else min(len(ours), len(theirs))
        shown = f"…{theirs[max(0, same - 60) :]!r:.500}, proxied …{ours[max(0, same - 60) :]!r:.500}"
        if ours == theirs and straight[1] == proxied[1]:
            return
        reason = self._excuse(stream, theirs, ours)
        if reason is Excuse.DATA:
            self.excused = True
        elif reason is Excuse.NONE or straight[1] != proxied[1]:
            raise Difference(f"{straight[1]}, proxied {proxied[1]}: {shown}" if straight[1] != proxied[1] else shown)

    def _excuse(self, stream: Stream, theirs: bytes, ours: bytes) -> Excuse:
        if stream.cuts and self.straight.swallows_errors:  # pieces may come together at one, and apart at the other
            shorter, longer = sorted((ours, theirs), key=len)
            if longer.startswith(shorter + b"-ERR Protocol error: "):
                return Excuse.REPLIES
        return excuse(stream.data, theirs, ours, spares_words=self._spares_words)

    def check(self, streams: Sequence[Stream]) -> None:
        """Send streams, each from the data that the one before has left, and compare the data in the end.

        Raises:
            Difference: something is not the same, or hangs.
        """
        self.prepare()
        try:
            for stream in streams:
                self.last = stream
                self._run_unless_ignored(stream)
                if self.excused:
                    self._begin_anew()
            if all(stream.compared() for stream in streams):
                self.data()
            else:
                for lane in self.lanes:
                    lane.drop()
                self.settle()
        except (Difference, OSError) as error:
            for lane in self.lanes:
                lane.drop()
            with contextlib.suppress(Difference):
                self.settle()  # nothing is to run later, on the data of others
            raise error if isinstance(error, Difference) else Difference(repr(error)) from error

    def _run_unless_ignored(self, stream: Stream) -> None:
        try:
            self.run(stream)
        except Difference as error:
            if not re.search(self.ignore, str(error)):
                raise
            self._begin_anew()  # the data may differ too

    def _begin_anew(self) -> None:
        for lane in self.lanes:
            lane.drop()
        self.settle()
        self.prepare()

    def fails(self, streams: Sequence[Stream]) -> str:
        """Return what differs, or nothing."""
        try:
            self.check(streams)
        except Difference as error:
            return str(error)
        return ""

    def guards(self, streams: Sequence[Stream]) -> None:
        """Send streams to the proxy alone, and check that none has touched the reserved name.

        Raises:
            Difference: one has.
        """
        self.prepare()
        lane = self.lanes[1]
        for stream in streams:
            self.last = stream
            lane.open(login=stream.login)
            for piece in stream.pieces():
                lane.send(piece)
            if lane.until_close()[1] != "closed":
                raise Difference(f"hangs: {stream!r}")
            if self._controls[2].command("EXISTS", RESERVED) != b":0\r\n":
                self._controls[2].command("DEL", RESERVED)
                raise Difference(f"has written to {RESERVED!r}: {stream!r}")

    def at_rest(self) -> None:
        """Check that nothing is left of the streams.

        Raises:
            Difference: descriptors, connections or memory are left, or the log tells of an error.
        """
        for lane in self.lanes:
            lane.drop()
        descriptors, memory = self._before
        try:
            until(lambda: self._descriptors() <= descriptors, timeout=35)
        except AssertionError:
            raise Difference(f"{self._descriptors()} descriptors, {descriptors} before") from None
        used = self._process.memory_info().rss
        if used > memory + MEMORY:
            raise Difference(f"{used:,} bytes of memory, {memory:,} before")
        for word in ("Traceback", "never retrieved", "exception"):
            if word in self.proxy.process.output:
                raise Difference(f"{word!r} in the log:\n{self.proxy.process.output[-3000:]}")


def shortest(stream: Stream, fails: Callable[[Stream], bool], budget: float = 30) -> Stream:
    """Return a stream that fails as well and has no part that could be left out.

    Args:
        stream: one that fails.
        fails: whether a stream does.
        budget: seconds after which what has been found by then is returned.
    """
    deadline = time.monotonic() + budget
    for simpler in (replace(stream, cuts=()), replace(stream, end=End.HALF), replace(stream, cuts=(), end=End.HALF)):
        if simpler != stream and fails(simpler):
            stream = simpler
    size = max(1, len(stream.data) // 2)
    while size and time.monotonic() < deadline:
        begin = 0
        while begin < len(stream.data) and time.monotonic() < deadline:
            shorter = stream.without(begin, begin + size)
            if shorter.data and fails(shorter):
                stream = shorter
            else:
                begin += size
        size //= 2
    return stream


def fuzz(stand: Stand, count: int, seed: int, report: Callable[[str], None], most: int = 10) -> int:
    """Send streams until there are no more, or too many have failed.

    Args:
        stand: where to.
        count: how many.
        seed: what makes them.
        report: takes a line for each that has failed.
        most: how many may fail.

    Returns:
        How many have failed.
    """
    generator = Generator(seed, password=stand.password)
    failed = 0
    for begin in range(0, count, BATCH):
        streams = [generator.stream() for _ in range(min(BATCH, count - begin))]
        sure = [stream for stream in streams if stream.compared()]
        difference = stand.fails(sure)
        if difference:
            failed += 1
            report(_explained(stand, sure, difference))
        rude = [stream for stream in streams if not stream.compared()]
        difference = stand.fails(rude) if rude else ""
        if difference:
            failed += 1
            report(f"{stand.kind}: {difference}\n  one of {rude!r}")
        if failed >= most:
            break
    try:
        stand.at_rest()
    except Difference as error:
        failed += 1
        report(f"{stand.kind}: at the end of seed {seed}: {error}")
    return failed


def _explained(stand: Stand, streams: Sequence[Stream], difference: str) -> str:
    """Find the stream that fails by itself, made as short as possible, or else those after which one has failed."""
    name = f"{stand.kind}{' with password' * stand.password}"
    last = stand.last
    suspects = [stream for stream in streams if stream is last for _ in range(20)]
    for stream in (*suspects, *streams):
        if stand.fails([stream]):
            for lane in stand.lanes:
                lane.patience = IMPATIENCE
            short = shortest(stream, lambda one: bool(stand.fails([one])))
            for lane in stand.lanes:
                lane.patience = PATIENCE
            again = next(filter(None, (stand.fails([short]) for _ in range(20))), "not every time")
            return f"{name}: {short!r}\n  {again}\n  of {stream!r}: {difference}"
    needed = list(streams)
    if stand.fails(needed):
        for stream in streams:
            fewer = [other for other in needed if other is not stream]
            if stand.fails(fewer):
                needed = fewer
        return f"{name}: {needed!r}\n  {difference}"
    return f"{name}: not every time, {last!r} after {streams!r}\n  {difference}"


def main() -> None:
    """Run the fuzzer from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="how many, over all kinds (default: 10,000)")
    parser.add_argument("--seed", type=int, default=1, help="what makes them (default: 1)")
    parser.add_argument("--kind", action="append", choices=sorted(BINARIES), help="the kinds of servers (default: all)")
    parser.add_argument("--most", type=int, default=10, help="failures of a kind after which to stop (default: 10)")
    parser.add_argument("--ignore", default="(?!)", help="an expression: differences that it matches do not count")
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    failed = 0
    for number, (kind, password) in enumerate((kind, password) for kind in kinds for password in (False, True)):
        started = time.monotonic()
        share = options.streams * (3, 2)[password] // (5 * len(kinds))
        with Stand(kind, password=password, ignore=options.ignore) as stand:
            failures = fuzz(
                stand, share, options.seed * 1000 + number, lambda line: print(line, flush=True), options.most
            )
        failed += failures
        took = time.monotonic() - started
        print(f"{kind}{' with password' * password}: {share} streams, {failures} failed, {took:.0f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
