"""Keep the deadlines in a temporary file until it is known that the source was complete.

Its tests: tests/test_import_rdb.py.

The file has no name and goes with the process. It takes the bytes of the members and keys with deadlines, and some 20
for each; what else the source contains is not kept.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Final, Self

from proxy.keydb.rdb import Row

ROWS_AT_ONCE: Final = 250
"""How many deadlines of a batch: the server serves no other client meanwhile."""

KEYS_AT_ONCE: Final = 64
"""Keys of one batch: each costs more than a member does."""

BYTES_AT_ONCE: Final = 1 << 18
"""Bytes of the keys and members of one batch, about."""

_KEY: Final = struct.Struct("<cIqI")
_MEMBER: Final = struct.Struct("<cqI")
_SIZE: Final = struct.Struct("<I")


@dataclass(slots=True)
class OfKey:
    """Deadlines of one key.

    Attributes:
        key: the key.
        expires: when the whole key expires, in Unix ms; 0 for never.
        rows: member, deadline in Unix ms, and `Row.cut`.
    """

    key: bytes
    expires: int
    rows: list[tuple[bytes, int, bytes | None]] = field(default_factory=list)


@dataclass(slots=True)
class Batch:
    """Deadlines in one database that go to the server together.

    Attributes:
        database: its number.
        keys: the keys, each with some of its deadlines.
        size: how many deadlines.
    """

    database: int
    keys: list[OfKey] = field(default_factory=list)
    size: int = 0


class SpoolError(Exception):
    """There is no room for the deadlines; the text is one line for people."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise SpoolError(
            f"temporary file in {tempfile.gettempdir()}: {reason}: set TMPDIR to a folder with more space"
        ) from None


class Spool:
    """The deadlines, in the order in which they came.

    Raises:
        SpoolError: there can be no temporary file.

    Attributes:
        size: how many.
    """

    def __init__(self) -> None:
        self.size = 0
        with _writing():
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="expiremember-import-")  # noqa: SIM115
        self._last: tuple[int, bytes, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what is left to be written is not needed
            self._file.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Keep deadlines.

        Raises:
            SpoolError: there is no room for them.
        """
        with _writing():
            self._add(rows)

    def finish(self) -> None:
        """Keep what has been added: no more will be.

        Raises:
            SpoolError: there is no room for it.
        """
        with _writing():
            self._file.flush()

    def _add(self, rows: Iterable[Row]) -> None:
        write = self._file.write
        for database, key, member, deadline, expires, cut in rows:
            if self._last != (database, key, expires):
                self._last = (database, key, expires)
                write(_KEY.pack(b"K", database, expires, len(key)) + key)
            if cut is None:
                write(_MEMBER.pack(b"M", deadline, len(member)) + member)
            else:
                write(_MEMBER.pack(b"C", deadline, len(member)) + member + _SIZE.pack(len(cut)) + cut)
            self.size += 1

    def batches(self) -> Iterator[Batch]:
        """Give all of them, from the first on; not before `finish`."""
        self._file.seek(0)
        read = self._file.read
        batch: Batch | None = None
        of_key = OfKey(b"", 0)
        room, number = 0, 0
        while kind := read(1):
            if kind == b"K":
                _, database, expires, size = _KEY.unpack(kind + read(_KEY.size - 1))
                of_key = OfKey(read(size), expires)
                if batch is not None and database != number:
                    yield batch
                    batch = None
                number = database
                if batch is not None:
                    batch.keys.append(of_key)
                    room -= size
                continue
            _, deadline, size = _MEMBER.unpack(kind + read(_MEMBER.size - 1))
            member = read(size)
            cut = read(*_SIZE.unpack(read(_SIZE.size))) if kind == b"C" else None
            if batch is not None and (batch.size >= ROWS_AT_ONCE or room < size or len(batch.keys) > KEYS_AT_ONCE):
                if not of_key.rows:
                    batch.keys.pop()
                yield batch
                batch = None
            if batch is None:
                of_key = OfKey(of_key.key, of_key.expires)
                batch = Batch(number, [of_key])
                room = BYTES_AT_ONCE
            of_key.rows.append((member, deadline, cut))
            batch.size += 1
            room -= size
        if batch is not None:
            yield batch
