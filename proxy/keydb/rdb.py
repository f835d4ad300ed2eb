"""Parse member deadlines from KeyDB's RDB format as bytes arrive, and skip everything else. No I/O.

Its tests: tests/test_import_rdb.py.

After a value KeyDB writes two auxiliary fields for each member with a deadline: `keydb-subexpire-key`, the member, and
`keydb-subexpire-when`, the deadline in Unix ms as text. Values are skipped without buffering them, whatever size they
claim to have; at most `LARGEST` bytes of a key or a member are buffered.

In these fields KeyDB cuts a member off at its first NUL byte. So the reader collects members with NUL bytes from the
values (`Cut`). A deadline that could belong to several of them is left out, unless all have the same deadline.

The last eight bytes are a checksum of everything before: do not act on what was read until `Reader.finish` returns.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import anycrc

from proxy.keydb import lzf, ziplist

LARGEST: Final = 1 << 20
"""Longest key or member, in bytes; deadlines of longer ones are counted and left out."""

OLDEST: Final = 5
"""The first version of the format with a checksum."""

NEWEST: Final = 9
"""The version that KeyDB writes."""

LATEST_DEADLINE: Final = 1 << 53
"""The latest deadline that the proxy can store exactly, in Unix ms. Deadlines beyond ± this are left out."""

CUT_AT_MOST: Final = 1 << 26
"""Approximate limit in bytes for a collection's members with NUL bytes; beyond, all its deadlines are left out."""

_ENTRY: Final = 300

HIGHEST_DATABASE: Final = (1 << 31) - 1
NAMED: Final = 10
"""Maximum number of names to keep of things that are otherwise only counted."""

_BEGINNING: Final = 64
"""Maximum number of bytes of a name that is kept only to be shown."""

_CANDIDATES: Final = 4
"""Maximum number of candidates to name for an ambiguous deadline."""

_MEMBER: Final = b"keydb-subexpire-key"
_WHEN: Final = b"keydb-subexpire-when"
_MEMBER_FIELD: Final = b"\xfa%c%b" % (len(_MEMBER), _MEMBER)
_WHEN_FIELD: Final = b"\xfa%c%b" % (len(_WHEN), _WHEN)
_SHORT: Final = 64
"""Lengths below this are encoded in one byte."""
_LONGEST_SHORT_ROW: Final = len(_MEMBER_FIELD) + len(_WHEN_FIELD) + 2 * _SHORT

_INTEGERS: Final = {0xC0: 2, 0xC1: 3, 0xC2: 5}
"""First byte → size, for strings encoded as integers."""

_MODULE_AUX: Final = 0xF7
_IDLE: Final = 0xF8
_FREQUENCY: Final = 0xF9
_AUX: Final = 0xFA
_SIZES: Final = 0xFB
_EXPIRES_MS: Final = 0xFC
_EXPIRES: Final = 0xFD
_DATABASE: Final = 0xFE
_END: Final = 0xFF
_LZF: Final = 3
_CRON: Final = 64
_DIGITS: Final = 19

_Need: TypeAlias = Generator[None, None, None]

_CRC: Final = anycrc.Model("CRC64-REDIS")


class DamagedError(Exception):
    """The bytes are not a complete RDB file from KeyDB; the text is one line, with the offset."""


class Row(NamedTuple):
    """The deadline of one member.

    Attributes:
        database: the number of the database.
        key: the key.
        member: the member.
        deadline: the member's deadline, in Unix ms.
        key_expires: when the whole key expires, in Unix ms; 0 for never.
        cut: the part of the member that the file has, if KeyDB cut the member off at a NUL byte, and the deadline may
            belong to a member with exactly that name instead; else None.
    """

    database: int
    key: bytes
    member: bytes
    deadline: int
    key_expires: int = 0
    cut: bytes | None = None


@dataclass
class Ambiguity:
    """Deadlines of one key that cannot be assigned to members. All names may be shortened.

    Attributes:
        database: the number of the database.
        key: the key.
        begin: the member as the file has it: the beginning that all candidates share.
        deadlines: the number of deadlines.
        same: whether all deadlines are the same.
        members: some of the members with this beginning, without `begin` itself.
        candidates: the number of members with this beginning.
    """

    database: int
    key: bytes
    begin: bytes
    deadlines: int
    same: bool
    members: list[bytes]
    candidates: int


@dataclass
class Findings:
    """The contents of a file.

    Attributes:
        version: the version of the format.
        checked: whether there was a checksum (KeyDB can be configured to write none).
        keys: number of keys.
        with_deadlines: number of keys with members that have deadlines.
        rows: number of deadlines returned.
        too_large: deadlines left out because the key or the member is longer than `LARGEST`.
        out_of_range: deadlines left out because the proxy cannot store them.
        ambiguous: deadlines left out because KeyDB cut their members off, and several members have that beginning.
        ambiguities: the first `NAMED` groups of these, one for each beginning.
        untold: deadlines left out because the collection has too many members with NUL bytes to buffer.
        untold_of: the keys of the first `NAMED` of these.
        cron_jobs: number of KEYDB.CRON jobs skipped.
        cron_names: the keys of the first `NAMED` of these.
        modules: number of module values skipped.
    """

    version: int = 0
    checked: bool = False
    keys: int = 0
    with_deadlines: int = 0
    rows: int = 0
    too_large: int = 0
    out_of_range: int = 0
    ambiguous: int = 0
    ambiguities: list[Ambiguity] = field(default_factory=list)
    untold: int = 0
    untold_of: list[tuple[int, bytes]] = field(default_factory=list)
    cron_jobs: int = 0
    cron_names: list[bytes] = field(default_factory=list)
    modules: int = 0


class Cut:
    """The members of one collection that contain a NUL byte, by the bytes before their first NUL byte."""

    def __init__(self) -> None:
        self._whole: dict[bytes, list[bytes]] = {}
        self._room = CUT_AT_MOST
        self.unknown = False
        """Whether there were too many members to collect. If so, any member may contain a NUL byte."""

    def __bool__(self) -> bool:
        """Whether any member may contain a NUL byte."""
        return self.unknown or bool(self._whole)

    def add(self, member: bytes) -> None:
        """Record a member if it contains a NUL byte. For a member too long to buffer, pass its beginning."""
        begin, nul, _ = member.partition(b"\0")
        if nul and not self.unknown:
            self._room -= len(begin) + len(member) + _ENTRY
            if self._room < 0:
                self.forget()
            else:
                self._whole.setdefault(begin, []).append(member)

    def forget(self) -> None:
        """Give up collecting: any member may contain a NUL byte."""
        self._whole.clear()
        self.unknown = True

    def whole(self, begin: bytes) -> list[bytes]:
        """Return the members with `begin` before their first NUL byte, each cut to at most `LARGEST` + 1 bytes."""
        return self._whole.get(begin, [])


class _CutOff:
    """The deadlines of members that KeyDB cut off at a NUL byte and that have the same beginning."""

    def __init__(self, deadline: int) -> None:
        self.deadline = deadline
        self.count = 0
        self.same = True

    def add(self, deadline: int) -> None:
        self.count += 1
        self.same = self.same and deadline == self.deadline


class Reader:
    """Parses one file.

    Attributes:
        found: the contents of the file as far as it has been parsed.
        offset: number of bytes parsed.
    """

    def __init__(self) -> None:
        self.found = Findings()
        self._bytes = bytearray()
        self._at = 0  # position in `_bytes`
        self._before = 0  # bytes of the file before `_bytes`
        self._crc = 0  # checksum of the bytes before `_bytes`
        self._rows: list[Row] = []
        self._done = False
        self._broken: DamagedError | None = None
        self._cut = Cut()  # members of the last value that contain NUL bytes
        self._run = self._file()

    @property
    def offset(self) -> int:
        """Number of bytes parsed."""
        return self._before + self._at

    def feed(self, data: bytes) -> list[Row]:
        """Parse the next bytes of the file.

        Returns:
            The deadlines completed by these bytes.

        Raises:
            DamagedError: the bytes are invalid. All later calls raise it again.
        """
        if self._broken is not None:
            raise self._broken
        try:
            self._advance(data)
        except DamagedError as error:
            self._broken = error
            raise
        rows, self._rows = self._rows, []
        return rows

    def finish(self) -> Findings:
        """Check that the file is complete and its checksum correct, and return what it contains.

        Raises:
            DamagedError: the file is incomplete or damaged.
        """
        if self._broken is not None:
            raise self._broken
        if not self._done:
            size = self._before + len(self._bytes)
            raise DamagedError(f"offset {size}: the file ends here, in the middle of the data")
        return self.found

    def _advance(self, data: bytes) -> None:
        self._settle()
        if self._done:
            if data:
                raise self._damaged("data after the end: if this is an append-only file, use an RDB file (BGSAVE)")
            return
        self._bytes += data
        try:
            next(self._run)
        except StopIteration:
            self._done = True
            self._settle()
            self._advance(bytes(self._bytes))

    def _settle(self) -> None:
        """Drop the bytes that were parsed, after adding them to the checksum."""
        if self._at:
            with memoryview(self._bytes)[: self._at] as understood:
                self._crc = _CRC.calc(understood, self._crc)
            del self._bytes[: self._at]
            self._before += self._at
            self._at = 0

    def _damaged(self, reason: str, begin: int | None = None) -> DamagedError:
        return DamagedError(f"offset {self.offset if begin is None else begin}: {reason}")

    # The grammar of the format. Each rule yields when it needs more bytes.

    def _file(self) -> _Need:
        magic = yield from self._take(9)
        if not magic.startswith(b"REDIS") or not magic[5:].isdigit():
            raise self._damaged("not an RDB file", 0)
        version = self.found.version = int(magic[5:])
        if not OLDEST <= version <= NEWEST:
            raise self._damaged(f"RDB version {version}, but KeyDB writes {NEWEST}: the file is not from KeyDB", 5)
        yield from self._records()
        self._settle()
        expected = self._crc
        begin = self.offset
        told = int.from_bytes((yield from self._take(8)), "little")
        self.found.checked = told != 0
        if told and told != expected:
            raise self._damaged(f"checksum mismatch: {told:016x} in the file, {expected:016x} of its data", begin)

    def _records(self) -> _Need:
        found = self.found
        database = next_expires = 0
        while True:
            begin = self.offset
            (kind,) = yield from self._take(1)
            if kind < _MODULE_AUX:
                found.keys += 1
                key = yield from self._text()
                yield from self._value(kind, begin)
                if kind == _CRON:
                    self._note_job(key)
                yield from self._deadlines(database, key, next_expires, of_job=kind == _CRON)
                next_expires = 0
            elif kind == _END:
                return
            elif kind == _DATABASE:
                database = yield from self._count()
                if database > HIGHEST_DATABASE:
                    raise self._damaged(f"database number {database} is out of range", begin)
            elif kind == _EXPIRES_MS:
                next_expires = int.from_bytes((yield from self._take(8)), "little", signed=True)
            elif kind == _EXPIRES:
                next_expires = 1000 * int.from_bytes((yield from self._take(4)), "little", signed=True)
            elif kind == _SIZES:
                yield from self._count()
                yield from self._count()
            elif kind == _IDLE:
                yield from self._count()
            elif kind == _FREQUENCY:
                yield from self._skip(1)
            elif kind == _MODULE_AUX:
                yield from self._count()
                yield from self._module_parts()
            else:
                name = yield from self._text()
                if name is not None and name.lower() in (_MEMBER, _WHEN):
                    raise self._damaged("member deadline without a key", begin)
                yield from self._skip_string()

    def _deadlines(self, database: int, key: bytes | None, key_expires: int, *, of_job: bool) -> _Need:
        """Parse the fields after a value: they hold the deadlines of the value's members."""
        count = 0
        cut_off: dict[bytes, _CutOff] = {}
        while True:
            if key is not None and not self._cut and not of_job:
                count += self._short_rows(database, key, key_expires)
            begin = self.offset
            if not (yield from self._comes(_MEMBER_FIELD)):
                break
            member = yield from self._text()
            if not (yield from self._comes(_WHEN_FIELD)):
                raise self._damaged("member without a deadline", begin)
            deadline = yield from self._deadline()
            if of_job:
                continue  # for a KEYDB.CRON job the time is that of its next run, not a deadline
            count += 1
            if key is None or member is None:
                self.found.too_large += 1
                continue
            if self._cut.unknown:
                self._leave_out(database, key)
            elif self._cut.whole(member):
                cut_off.setdefault(member, _CutOff(deadline)).add(deadline)
            else:
                self._add(Row(database, key, member, deadline, key_expires))
        self.found.with_deadlines += count > 0
        for member, of_member in cut_off.items():
            assert key is not None
            self._assign(database, key, key_expires, member, of_member)

    def _assign(self, database: int, key: bytes, key_expires: int, begin: bytes, cut_off: _CutOff) -> None:
        """Add deadlines of members with the same beginning if it is certain whose they are; else only count them.

        That is certain if all members with this beginning have the same deadline. `begin` itself may be a member, too.
        """
        members = self._cut.whole(begin)
        with_begin = cut_off.count == len(members) + 1
        held = [member for member in members if len(member) <= LARGEST]
        if not cut_off.same or not (with_begin or (cut_off.count == len(members) == len(held))):
            self.found.ambiguous += cut_off.count
            if len(self.found.ambiguities) < NAMED:
                named = [member[:_BEGINNING] for member in members[:_CANDIDATES]]
                self.found.ambiguities.append(
                    Ambiguity(
                        database, key[:_BEGINNING], begin[:_BEGINNING], cut_off.count, cut_off.same, named, len(members)
                    )
                )
            return
        if with_begin:
            self._add(Row(database, key, begin, cut_off.deadline, key_expires))
        for member in held:
            self._add(Row(database, key, member, cut_off.deadline, key_expires, None if with_begin else begin))
        self.found.too_large += len(members) - len(held)

    def _leave_out(self, database: int, key: bytes) -> None:
        """Count a deadline that cannot be assigned to a member."""
        found = self.found
        found.untold += 1
        name = (database, key[:_BEGINNING])
        if len(found.untold_of) < NAMED and found.untold_of[-1:] != [name]:
            found.untold_of.append(name)

    def _short_rows(self, database: int, key: bytes, key_expires: int) -> int:
        """Parse deadlines of short members that are fully buffered, as nearly all are, without a call for each part."""
        data, at = self._bytes, self._at
        last = len(data) - _LONGEST_SHORT_ROW
        count = 0
        while at <= last and data.startswith(_MEMBER_FIELD, at):
            begin = at + len(_MEMBER_FIELD)
            middle = begin + 1 + data[begin]
            if data[begin] >= _SHORT or not data.startswith(_WHEN_FIELD, middle):
                break
            size = middle + len(_WHEN_FIELD)
            end = size + 1 + data[size]
            digits = bytes(data[size + 1 : end])
            if data[size] > _DIGITS or not digits.isdigit():
                break
            self._add(Row(database, key, bytes(data[begin + 1 : middle]), int(digits), key_expires))
            at = end
            count += 1
        self._at = at
        return count

    def _deadline(self) -> Generator[None, None, int]:
        begin = self.offset
        text = yield from self._text()
        digits = (text or b"").removeprefix(b"-")
        if text is None or not digits.isdigit() or len(digits) > _DIGITS:
            raise self._damaged("deadline is not a number", begin)
        return int(text)

    def _add(self, row: Row) -> None:
        if abs(row.deadline) > LATEST_DEADLINE:
            self.found.out_of_range += 1
        else:
            self.found.rows += 1
            self._rows.append(row)

    def _note_job(self, key: bytes | None) -> None:
        self.found.cron_jobs += 1
        if len(self.found.cron_names) < NAMED and key is not None:
            self.found.cron_names.append(key)

    def _value(self, kind: int, begin: int) -> _Need:
        """Skip a value of type `kind`, but collect its members with NUL bytes."""
        self._cut = Cut()
        if kind in (12, 13):
            yield from self._packed()
        elif kind == 0 or 9 <= kind <= 11:
            yield from self._skip_string()
        elif kind in (1, 14):
            yield from self._skip_strings((yield from self._count()))
        elif kind == 2:
            yield from self._skip_members((yield from self._count()))
        elif kind == 4:
            yield from self._skip_members(2 * (yield from self._count()), every=2)
        elif kind == 3:
            for _ in range((yield from self._count())):
                yield from self._skip_member()
                (size,) = yield from self._take(1)
                yield from self._skip(size if size < 253 else 0)
        elif kind == 5:
            yield from self._skip_members((yield from self._count()), behind=8)
        elif kind == 15:
            yield from self._stream()
        elif kind == 7:
            self.found.modules += 1
            yield from self._count()
            yield from self._module_parts()
        elif kind == _CRON:
            yield from self._skip_string()
            yield from self._skip(16)
            yield from self._skip_strings((yield from self._count()))
            yield from self._skip_strings((yield from self._count()))
        elif kind == 6:
            raise self._damaged("module value in an old format without a size: delete the key in KeyDB first", begin)
        else:
            raise self._damaged(f"value of type {kind}, which KeyDB does not write", begin)

    def _stream(self) -> _Need:
        yield from self._skip_strings(2 * (yield from self._count()))
        for _ in range(3):
            yield from self._count()
        for _ in range((yield from self._count())):
            yield from self._skip_string()
            yield from self._count()
            yield from self._count()
            for _ in range((yield from self._count())):
                yield from self._skip(24)
                yield from self._count()
            for _ in range((yield from self._count())):
                yield from self._skip_string()
                yield from self._skip(8)
                yield from self._skip(16 * (yield from self._count()))

    def _module_parts(self) -> _Need:
        while True:
            begin = self.offset
            part = yield from self._count()
            if part == 0:
                return
            if part in (1, 2):
                yield from self._count()
            elif part in (3, 4):
                yield from self._skip(4 if part == 3 else 8)
            elif part == 5:
                yield from self._skip_string()
            else:
                raise self._damaged(f"module value with a part of unknown type {part}", begin)

    def _packed(self) -> _Need:
        """Skip a small hash or sorted set, in which every other string is a member."""
        begin = self.offset
        packed = yield from self._text()
        # Unpack the value only if deadlines follow.
        if packed is None:
            self._cut.forget()
        elif (yield from self._aux_comes()):
            try:
                for member in ziplist.members(packed):
                    self._cut.add(member)
            except ValueError as error:
                raise self._damaged(str(error), begin) from None

    def _aux_comes(self) -> Generator[None, None, bool]:
        while len(self._bytes) == self._at:
            yield
        return self._bytes[self._at] == _AUX

    def _skip_members(self, count: int, *, every: int = 1, behind: int = 0) -> _Need:
        """Skip strings, but collect members with NUL bytes. Loops over buffered strings without a call for each.

        Args:
            count: number of strings.
            every: number of strings for each member; the first of them is the member.
            behind: number of other bytes after each string.
        """
        data, cut = self._bytes, self._cut
        while count:
            at, end = self._at, len(data) - 1
            while count and at < end:
                first = data[at]
                if first < 0x40:
                    begin, after = at + 1, at + 1 + first
                elif first < 0x80:
                    begin = at + 2
                    after = begin + (first & 63) * 256 + data[at + 1]
                elif first in _INTEGERS:
                    begin = after = at + _INTEGERS[first]
                else:
                    break
                if after + behind > end:
                    break
                if not count % every and data.find(0, begin, after) >= 0:
                    cut.add(bytes(data[begin:after]))
                at = after + behind
                count -= 1
            self._at = at
            if count:
                if count % every:
                    yield from self._skip_string()
                else:
                    yield from self._skip_member()
                yield from self._skip(behind)
                count -= 1

    def _skip_member(self) -> _Need:
        begin = self.offset
        size, encoding = yield from self._length()
        # Keep LARGEST + 1 bytes of a longer member: its deadline is left out, and no shorter member may get it.
        if encoding is None and size > LARGEST:
            member = yield from self._take(LARGEST + 1)
            yield from self._skip(size - LARGEST - 1)
        elif encoding == _LZF:
            packed = yield from self._count()
            size = yield from self._count()
            there = min(packed, 2 * LARGEST + 2)
            whole = there == packed and size <= LARGEST
            member = self._decompressed((yield from self._take(there)), min(size, LARGEST + 1), begin, whole=whole)
            yield from self._skip(packed - there)
        else:
            found = yield from self._text_of(size, encoding, begin)
            assert found is not None
            member = found
        self._cut.add(member)

    def _skip_strings(self, count: int) -> _Need:
        """Skip strings. Loops over buffered strings without a call for each."""
        data = self._bytes
        while count:
            at, end = self._at, len(data) - 1
            while count and at < end:
                first = data[at]
                if first < 0x40:
                    after = at + 1 + first
                elif first < 0x80:
                    after = at + 2 + (first & 63) * 256 + data[at + 1]
                elif first in _INTEGERS:
                    after = at + _INTEGERS[first]
                else:
                    break
                if after > end:
                    break
                at = after
                count -= 1
            self._at = at
            if count:
                yield from self._skip_string()
                count -= 1

    def _skip_string(self) -> _Need:
        size, encoding = yield from self._length()
        if encoding is None:
            yield from self._skip(size)
        elif encoding == _LZF:
            packed = yield from self._count()
            yield from self._count()
            yield from self._skip(packed)
        else:
            yield from self._skip(1 << encoding)

    def _text(self) -> Generator[None, None, bytes | None]:
        """Parse a string; skip it and return None if it is longer than `LARGEST`."""
        begin = self.offset
        size, encoding = yield from self._length()
        return (yield from self._text_of(size, encoding, begin))

    def _text_of(self, size: int, encoding: int | None, begin: int) -> Generator[None, None, bytes | None]:
        if encoding is None:
            if size > LARGEST:
                yield from self._skip(size)
                return None
            return (yield from self._take(size))
        if encoding != _LZF:
            return b"%d" % int.from_bytes((yield from self._take(1 << encoding)), "little", signed=True)
        packed = yield from self._count()
        size = yield from self._count()
        if packed > LARGEST or size > LARGEST:
            yield from self._skip(packed)
            return None
        return self._decompressed((yield from self._take(packed)), size, begin)

    def _decompressed(self, packed: bytes, size: int, begin: int, *, whole: bool = True) -> bytes:
        try:
            return lzf.decompress(packed, size, whole=whole)
        except ValueError as error:
            raise self._damaged(f"invalid compressed string: {error}", begin) from None

    def _count(self) -> Generator[None, None, int]:
        """Parse a number, such as the number of parts that follow."""
        begin = self.offset
        number, encoding = yield from self._length()
        if encoding is not None:
            raise self._damaged("string where a number is expected", begin)
        return number

    def _length(self) -> Generator[None, None, tuple[int, int | None]]:
        """Parse a length, or the encoding of a string that has no length."""
        begin = self.offset
        (first,) = yield from self._take(1)
        if first < 0x40:
            return first, None
        if first < 0x80:
            (second,) = yield from self._take(1)
            return (first & 63) << 8 | second, None
        if first == 0x80:
            return int.from_bytes((yield from self._take(4)), "big"), None
        if first == 0x81:
            return int.from_bytes((yield from self._take(8)), "big"), None
        if first >= 0xC0 and first & 63 <= _LZF:
            return 0, first & 63
        raise self._damaged(f"invalid length, first byte {first:#x}", begin)

    def _comes(self, wanted: bytes) -> Generator[None, None, bool]:
        """Return whether these bytes come next; if so, skip them."""
        while True:
            there = bytes(self._bytes[self._at : self._at + len(wanted)])
            if not wanted.startswith(there):
                return False
            if len(there) == len(wanted):
                self._at += len(wanted)
                return True
            yield

    def _take(self, size: int) -> Generator[None, None, bytes]:
        while len(self._bytes) - self._at < size:
            yield
        self._at += size
        return bytes(self._bytes[self._at - size : self._at])

    def _skip(self, size: int) -> _Need:
        while (there := len(self._bytes) - self._at) < size:
            self._at += there
            size -= there
            yield
        self._at += size
