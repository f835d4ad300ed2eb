"""Read RDB data from a file, from standard input, or from a KeyDB, as its replicas do.

Its tests: tests/test_import.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import IO, Final, TypeVar, cast

from redis.exceptions import RedisError, ResponseError

from proxy.upstream.complaint import complaint
from proxy.upstream.endpoint import Upstream
from proxy.upstream.refusals import shown
from proxy.upstream.words import in_words
from proxy.wire.request import encode

T = TypeVar("T")

CHUNK: Final = 1 << 18
"""Maximum number of bytes per read."""

SILENCE_SECONDS: Final = 60.0
"""How long a server may send nothing; by default, replicas wait as long. A server sends an empty line every 10 s while
it writes the file."""

_LINE: Final = 4096
_EMPTY_LINES: Final = 100_000
"""Maximum number of empty lines to accept before the file: as many as a server sends in eleven days."""

_MARK_SIZE: Final = 40


class SourceError(Exception):
    """The source cannot be read; the text is one line for users."""


class FileSource:
    """Reads an RDB file, or standard input.

    Args:
        path: the file; None for standard input.

    Raises:
        SourceError: the file cannot be opened.

    Attributes:
        size: the size in bytes; None if unknown.
    """

    def __init__(self, path: Path | None) -> None:
        self._name = "standard input" if path is None else str(path)
        self.size: int | None = None
        try:
            if path is None and sys.stdin is None:  # closed by the parent process
                raise SourceError("standard input is closed")
            self._file: IO[bytes] = sys.stdin.buffer if path is None else path.open("rb")
            about = os.fstat(self._file.fileno())
        except OSError as error:
            raise SourceError(f"{self._name}: cannot be read: {error.strerror or error}") from None
        if path is None and sys.stdin.isatty():
            raise SourceError("standard input is a terminal: give a file, or pipe one in")
        if stat.S_ISREG(about.st_mode):
            self.size = about.st_size

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes as they are read.

        Raises:
            SourceError: the file cannot be read.
        """
        try:
            with self._file as file:
                while chunk := os.read(file.fileno(), CHUNK):
                    yield chunk
        except OSError as error:
            raise SourceError(f"{self._name}: cannot be read: {error.strerror or error}") from None


class ServerSource:
    """Requests an RDB file from a KeyDB with SYNC, as its replicas do.

    Args:
        server: how to reach the KeyDB.

    Attributes:
        size: the size of the file in bytes; None if unknown, or not known yet.
    """

    def __init__(self, server: Upstream) -> None:
        self._server = server
        self.size: int | None = None
        self._reader: asyncio.StreamReader
        self._sent: tuple[str, ...] = ()  # the credentials of the last login

    def __str__(self) -> str:
        """The address, without credentials."""
        return str(self._server)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they arrive.

        Raises:
            SourceError: the server cannot be reached, refuses, or stops sending.
        """
        self._reader = asyncio.StreamReader(limit=CHUNK)
        protocol = _Stream(self._reader)
        try:
            await self._server.connect(lambda: protocol)
        except OSError as error:  # OSError includes TimeoutError
            raise SourceError(complaint(self._server, error, rights="")) from error
        try:
            assert protocol.transport is not None
            async for chunk in self._receive(protocol.transport):
                yield chunk
        except TimeoutError as error:
            raise self._failed(error, f"no data for {SILENCE_SECONDS:.0f} s") from error
        except (OSError, EOFError, RedisError) as error:
            raise self._failed(error, "the server closed the connection") from error
        finally:
            if protocol.transport is not None:
                protocol.transport.abort()

    def _failed(self, error: Exception, otherwise: str) -> SourceError:
        known = not isinstance(error, EOFError) and str(error)
        advice = self._server.advice(error)
        return SourceError(
            f"{self._server}: {in_words(error) if known else otherwise}" + ("" if advice is None else f"; {advice}")
        )

    async def _receive(self, transport: asyncio.WriteTransport) -> AsyncIterator[bytes]:
        login = self._sent = self._server.login
        if login:
            await self._ask(transport, "AUTH", *login, must=True)
        # A server that does not know this option sends the file in another format. That is supported, too.
        await self._ask(transport, "REPLCONF", "capa", "eof")
        await self._ask(transport, "REPLCONF", "rdb-only", "1")
        transport.write(_request("SYNC"))
        for _ in range(_EMPTY_LINES):  # the server sends empty lines while it is still writing the file
            if head := await self._line():
                break
        else:
            raise SourceError(f"{self._server}: it sends nothing but empty lines: is it a KeyDB?")
        self._refused(head, "SYNC")
        if mark := re.fullmatch(rb"\$EOF:([!-~]{%d})" % _MARK_SIZE, head):
            async for chunk in self._until(mark[1]):
                yield chunk
            return
        size = re.fullmatch(rb"\$([0-9]{1,18})", head)
        if size is None:
            raise SourceError(f"{self._server}: unexpected reply to SYNC: is it a KeyDB? {head[:80]!r}")
        self.size = int(size[1])
        left = self.size
        while left:
            chunk = await self._some(min(left, CHUNK))
            left -= len(chunk)
            yield chunk

    async def _until(self, mark: bytes) -> AsyncIterator[bytes]:
        """Yield the bytes before the end mark of a file whose size the server did not announce."""
        held = b""
        while True:
            held += await self._some(CHUNK)
            end = held.find(mark)
            if end >= 0:
                yield held[:end]
                return
            sure = max(0, len(held) - len(mark) + 1)
            if sure:
                yield held[:sure]
                held = held[sure:]

    async def _ask(self, transport: asyncio.WriteTransport, *words: str, must: bool = False) -> None:
        transport.write(_request(*words))
        answer = await self._line()
        if must or answer.startswith(b"-NOAUTH"):
            self._refused(answer, words[0])

    def _refused(self, answer: bytes, name: str) -> None:
        if not answer.startswith(b"-"):
            return
        said = ResponseError(answer[1:].decode(errors="replace").removeprefix("ERR "))
        text = "".join(letter if letter.isprintable() else "?" for letter in str(shown(said, self._sent[-1:])))
        advice = ""
        if name == "AUTH" or text.startswith(("NOAUTH", "WRONGPASS")):
            advice = ": check user and password in --from, or --from-password-file"
        elif text.startswith("NOPERM"):
            advice = ": its user needs +sync, or +psync, and +replconf"
        raise SourceError(f"{self._server}: {name} refused: {text}{advice}")

    async def _line(self) -> bytes:
        try:
            line = await _in_time(self._reader.readuntil(b"\n"))
        except asyncio.LimitOverrunError:
            line = b""
        if not line or len(line) > _LINE:
            raise SourceError(f"{self._server}: unexpected reply: is it a KeyDB?")
        return line.strip()

    async def _some(self, size: int) -> bytes:
        chunk = await _in_time(self._reader.read(size))
        if not chunk:
            raise EOFError
        return chunk


class _Stream(asyncio.StreamReaderProtocol):
    """Feeds a stream reader, and keeps the transport for writing."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        super().connection_made(transport)


async def _in_time(coming: Awaitable[T]) -> T:
    async with asyncio.timeout(SILENCE_SECONDS):
        return await coming


def _request(*words: str) -> bytes:
    return encode([word.encode() for word in words])
