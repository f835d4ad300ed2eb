"""Store the deadlines in a temporary file until the source is known to be complete.

Its tests: tests/test_import_rdb.py.

The file has no name and disappears with the process. It holds the keys and members with deadlines, plus some 20 bytes
for each, and nothing else from the source.
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
"""Maximum number of deadlines per batch. While the server runs a batch, it serves no other client."""

KEYS_AT_ONCE: Final = 64
"""Maximum number of keys per batch: a key costs the server more than a member."""

BYTES_AT_ONCE: Final = 1 << 18
"""Approximate limit for the bytes of keys and members per batch."""

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
    """Deadlines of one database that are sent to the server together.

    Attributes:
        database: the number of the database.
        keys: the keys, each with some of its deadlines.
        size: the number of deadlines.
    """

    database: int
    keys: list[OfKey] = field(default_factory=list)
    size: int = 0


class SpoolError(Exception):
    """There is no space for the deadlines; the text is one line for users."""


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
    """Stores the deadlines, in the order in which they arrive.

    Raises:
        SpoolError: no temporary file can be created.

    Attributes:
        size: the number of deadlines.
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
        with contextlib.suppress(OSError):  # unwritten data is not needed any more
            self._file.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Store deadlines.

        Raises:
            SpoolError: there is no space for them.
        """
        with _writing():
            self._add(rows)

    def finish(self) -> None:
        """Write out all deadlines. No more may be added.

        Raises:
            SpoolError: there is no space for them.
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
        """Yield all deadlines from the beginning. Call this only after `finish`."""
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
