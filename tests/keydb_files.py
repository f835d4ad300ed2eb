"""RDB files as KeyDB writes them: the recorded ones, others made from parts, and a server's with deadlines put in."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import anycrc

from proxy.keydb.rdb import Reader, Row
from tests.raw import Address, request
from tests.servers import free_port

FOLDER = Path(__file__).parent / "data" / "keydb"
RECORDED = ("cron", "none", "passed", "types", "large")
LOADABLE = ("none", "passed", "types", "large")
"""Those that other servers load: they know no KEYDB.CRON."""

HEAD = b"REDIS0009"
_CRC = anycrc.Model("CRC64-REDIS")

Deadline = tuple[int, bytes, bytes, int]
"""Database, key, member, Unix ms."""


@cache
def recorded(name: str) -> bytes:
    """A file that a KeyDB has written."""
    return gzip.decompress((FOLDER / f"{name}.rdb.gz").read_bytes())


@cache
def recorded_deadlines(name: str) -> frozenset[Deadline]:
    """The deadlines that had been set in that KeyDB."""
    rows = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return frozenset(
        (database, bytes.fromhex(key), bytes.fromhex(member), when) for database, key, member, when in rows
    )


def read(data: bytes, cuts: Iterable[int] = ()) -> list[Row]:
    """Read a file in pieces."""
    reader = Reader()
    rows: list[Row] = []
    begin = 0
    for end in (*cuts, len(data)):
        rows += reader.feed(data[begin:end])
        begin = end
    reader.finish()
    return rows


def plain(rows: Iterable[Row]) -> list[Deadline]:
    return [(row.database, row.key, row.member, row.deadline) for row in rows]


# Parts of files.


def size(number: int, form: int = 0) -> bytes:
    """A length, in the shortest form or a longer one (1, 2, 3)."""
    if number < 1 << 6 and form < 1:
        return bytes([number])
    if number < 1 << 14 and form < 2:
        return bytes([0x40 | number >> 8, number & 255])
    if number < 1 << 32 and form < 3:
        return b"\x80" + number.to_bytes(4, "big")
    return b"\x81" + number.to_bytes(8, "big")


def string(text: bytes, form: int = 0) -> bytes:
    """A string: as it is (forms 0 to 3), as an integer where it is one (4), or compressed (5)."""
    if form == 4 and text.removeprefix(b"-").isdigit() and text == b"%d" % (number := int(text)):
        for code, width in enumerate((1, 2, 4)):
            if -(1 << 8 * width - 1) <= number < 1 << 8 * width - 1:
                return bytes([0xC0 | code]) + number.to_bytes(width, "little", signed=True)
    if form == 5 and text:
        packed = compressed(text)
        return b"\xc3" + size(len(packed)) + size(len(text)) + packed
    return size(len(text), form if form < 4 else 0) + text


def compressed(text: bytes) -> bytes:
    """LZF, if not a good one: what is like the byte before becomes a reference, all else stays."""
    made, at = b"", 0
    while at < len(text):
        run = 0
        while at and run < 264 and at + run < len(text) and text[at + run] == text[at - 1]:
            run += 1
        if run >= 9:
            made += bytes([7 << 5, run - 9, 0])
        elif run >= 3:
            made += bytes([run - 2 << 5, 0])
        else:
            run = 1
            made += bytes([0, text[at]])
        at += run
    return made


def deadlines(pairs: Iterable[tuple[bytes, int]], form: int = 0) -> bytes:
    """What KeyDB writes after a value for its members."""
    return b"".join(
        b"\xfa\x13keydb-subexpire-key%b\xfa\x14keydb-subexpire-when%b"
        % (string(member.partition(b"\0")[0], form), string(b"%d" % when, 4 if form else 0))
        for member, when in pairs
    )


def entry(key: bytes, kind: int, value: bytes, pairs: Iterable[tuple[bytes, int]] = ()) -> bytes:
    """A key with its value, and the deadlines of its members."""
    return bytes([kind]) + string(key) + value + deadlines(pairs)


def strings(members: Iterable[bytes], form: int = 0) -> bytes:
    """A set or a list as a value."""
    given = list(members)
    return size(len(given)) + b"".join(string(member, form) for member in given)


def closed(data: bytes, *, checksum: bool = True) -> bytes:
    """A file of these parts: with its head, its end and its checksum."""
    body = HEAD + data + b"\xff"
    return summed(body + bytes(8)) if checksum else body + bytes(8)


def summed(data: bytes) -> bytes:
    """A file with the right checksum in place of the one that it has."""
    checksum: int = _CRC.calc(data[:-8])
    return data[:-8] + checksum.to_bytes(8, "little")


# A server's own file, with deadlines put in.


class _Ends(Reader):
    """Notes where values end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[int, int, bytes | None]] = []

    def _deadlines(
        self, database: int, key: bytes | None, key_expires: int, *, of_job: bool
    ) -> Generator[None, None, None]:
        self.ends.append((self.offset, database, key))
        yield from super()._deadlines(database, key, key_expires, of_job=of_job)


def spliced(data: bytes, wanted: Iterable[Deadline]) -> bytes:
    """A file in which members have these deadlines, as if a KeyDB had written it."""
    by_key: dict[tuple[int, bytes | None], list[tuple[bytes, int]]] = {}
    for database, key, member, when in wanted:
        by_key.setdefault((database, key), []).append((member, when))
    ends = _Ends()
    ends.feed(data)
    ends.finish()
    made, before = b"", 0
    for offset, database, ended in ends.ends:
        made += data[before:offset] + deadlines(by_key.pop((database, ended), ()))
        before = offset
    assert not by_key, "not every key is there"
    return summed(made + data[before:])


@dataclass
class Manner:
    """How a relay sends the file.

    Attributes:
        by_mark: whether it ends with a mark, instead of telling its size beforehand.
        signs: how many empty lines come first.
        only: how many bytes of the file to send, and then nothing.
        silent: whether to stay connected after that.
        answer: what to say instead.
    """

    by_mark: bool = False
    signs: int = 0
    only: int | None = None
    silent: bool = False
    answer: bytes = b""


class SyncRelay:
    """Stands in front of a server, as a KeyDB that has its data, and in which members have deadlines.

    Args:
        server: the address of the server, of a version that writes RDB files as KeyDB does.
        wanted: the deadlines.
        manner: how to send the file.

    Attributes:
        seen: the names of the commands that have come.
    """

    def __init__(self, server: Address, wanted: Iterable[Deadline], manner: Manner | None = None) -> None:
        self._server = server
        self._wanted = list(wanted)
        self._manner = manner or Manner()
        self.seen: list[bytes] = []
        self.port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for opened in self._open:
            opened.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            try:
                self._relay(client)
            except (OSError, ValueError):
                client.close()

    def _relay(self, client: socket.socket) -> None:
        assert not isinstance(self._server, Path)
        with socket.create_connection(self._server, 20) as server, server.makefile("rb") as replies:
            requests = client.makefile("rb")
            while True:
                count = int(requests.readline()[1:])
                words = [requests.read(int(requests.readline()[1:]) + 2)[:-2] for _ in range(count)]
                self.seen.append(words[0])
                if words[1:2] == [b"capa"]:
                    client.sendall(b"+OK\r\n")  # so that the server tells the size
                    continue
                server.sendall(request(*words))
                if words[0] == b"SYNC" and not self._manner.answer:
                    break
                client.sendall(self._manner.answer if words[0] == b"SYNC" else replies.readline())
            line = b"\n"
            while line == b"\n":
                line = replies.readline()
            if not line.startswith(b"$"):
                client.sendall(line)
                return
            data = spliced(replies.read(int(line[1:])), self._wanted)
        self._send(client, data)

    def _send(self, client: socket.socket, data: bytes) -> None:
        manner = self._manner
        mark = b"0123456789abcdef0123456789abcdef01234567"
        client.sendall(b"\n" * manner.signs)
        client.sendall(b"$EOF:" + mark + b"\r\n" if manner.by_mark else b"$%d\r\n" % len(data))
        sent = data[: manner.only]
        for begin in range(0, len(sent), 30_011):
            client.sendall(sent[begin : begin + 30_011])
        if manner.by_mark and manner.only is None:
            client.sendall(mark + b"*1\r\n$4\r\nPING\r\n")
        if not manner.silent:
            client.shutdown(socket.SHUT_WR)
