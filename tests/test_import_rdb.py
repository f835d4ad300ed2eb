"""KeyDB's RDB format: which deadlines are read from it, and what is refused, however the bytes come."""

from __future__ import annotations

import contextlib
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.keydb import lzf, rdb
from proxy.keydb.rdb import LARGEST, DamagedError, Reader, Row
from proxy.keydb.spool import BYTES_AT_ONCE, KEYS_AT_ONCE, ROWS_AT_ONCE, Spool
from tests.conftest import StartServer
from tests.keydb_files import (
    HEAD,
    RECORDED,
    Deadline,
    closed,
    deadlines,
    entry,
    plain,
    read,
    recorded,
    recorded_deadlines,
    size,
    spliced,
    string,
    strings,
    summed,
)

FAR = 4_102_444_800_000


def refusal(data: bytes) -> str:
    """How a file is refused, with the offset."""
    with pytest.raises(DamagedError) as caught:
        read(data)
    found = re.match(r"offset (\d+): .", str(caught.value))
    assert found is not None
    assert int(found[1]) <= len(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What a KeyDB has written.


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_file_gives_the_deadlines_that_were_set(name: str) -> None:
    data = recorded(name)
    rows = plain(read(data))
    assert len(rows) == len(set(rows))
    assert set(rows) == recorded_deadlines(name)


@pytest.mark.parametrize("name", RECORDED)
def test_cut_anywhere_it_is_refused_and_in_any_pieces_it_is_read(name: str) -> None:
    data = recorded(name)
    reader = Reader()
    rows: list[Row] = []
    for end in range(len(data)):
        try:
            reader.finish()
        except DamagedError as error:
            assert str(error) == f"offset {end}: the file ends here, in the middle of the data"  # noqa: PT017
        else:
            pytest.fail(f"{end} bytes were taken for the whole")
        rows += reader.feed(data[end : end + 1])
    assert set(plain(rows)) == recorded_deadlines(name)
    assert reader.finish().rows == len(rows)


@pytest.mark.parametrize("name", RECORDED)
def test_a_byte_flipped_is_noticed(name: str, request: pytest.FixtureRequest) -> None:
    data = recorded(name)
    step = 1 if request.config.getoption("--long") or len(data) < 10_000 else 61
    for place in range(0, min(4096, len(data)), step):
        for flip in (0xFF, 1 << place % 8)[: 2 if step == 1 else 1]:
            damaged = bytearray(data)
            damaged[place] ^= flip
            refusal(bytes(damaged))


def test_bytes_after_the_end_are_refused() -> None:
    assert "append-only" in refusal(recorded("passed") + b"*1\r\n$4\r\nPING\r\n")
    reader = Reader()
    reader.feed(recorded("none"))
    with pytest.raises(DamagedError, match="offset 114"):
        reader.feed(b"x")
    with pytest.raises(DamagedError, match="offset 114"):
        reader.finish()


def test_a_file_without_checksum_is_read_and_says_so() -> None:
    reader = Reader()
    assert reader.feed(closed(entry(b"s", 2, strings([b"a"]), [(b"a", FAR)]), checksum=False))
    assert not reader.finish().checked


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"not a file of KeyDB's", "offset 0: not an RDB file"),
        (b"REDIS00x9", "not an RDB file"),
        (b"REDIS0011" + recorded("none")[9:], "version 11"),
        (b"REDIS0004" + recorded("none")[9:], "version 4"),
        (closed(b"\x06\x01m\x05"), "offset 9: module value"),
        (closed(b"\x10\x01k\x00"), "type 16"),
        (closed(b"\x08\x01k\x00"), "type 8"),
        (closed(b"\x00\xbf"), "invalid length, first byte 0xbf"),
        (closed(b"\x00\xc4"), "invalid length, first byte 0xc4"),
        (closed(b"\x02\x01s\xc0\x05"), "string where a number is expected"),
        (closed(b"\xfe\x81" + b"\xff" * 8), "database number 18446744073709551615 is out of range"),
        (closed(deadlines([(b"m", FAR)])), "deadline without a key"),
        (closed(entry(b"s", 2, strings([b"a"])) + string(b"keydb-subexpire-key")), "invalid length|ends here|type"),
        (closed(entry(b"s", 2, strings([b"a"])) + deadlines([(b"a", 1)])[:22] + b"\x00"), "member without a deadline"),
        (closed(entry(b"s", 2, strings([b"a"])) + deadlines([(b"a", 1)])[:-1] + b"x"), "is not a number"),
        (closed(entry(b"s", 2, b"\x01\xc3\x02\x05\x00a")), "invalid compressed string"),
        (closed(entry(b"h", 13, string(bytes(10) + b"\x00\x44"), [(b"a", 1)])), "invalid packed hash"),
        (closed(b"\x07\x01m\x05\x09"), "unknown type 9"),
        (recorded("none")[:-1] + b"\x00", "checksum mismatch"),
    ],
)  # fmt: skip
def test_what_keydb_does_not_write_is_refused(data: bytes, said: str) -> None:
    assert re.search(said, refusal(data))


# What it never holds.


def _fed(reader: Reader, *chunks: bytes) -> tuple[list[Row], int]:
    """Feed chunks; return the rows, and the memory that it took at most."""
    rows: list[Row] = []
    tracemalloc.start()
    try:
        for chunk in chunks:
            rows += reader.feed(chunk)
        return rows, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("claimed", [1 << 29, 1 << 40, (1 << 63) + 5, (1 << 64) - 1])
@pytest.mark.parametrize(
    "what", ["value", "element", "member", "key", "compressed", "compressed member", "text of a field"]
)
def test_whatever_a_string_claims_it_is_not_held(claimed: int, what: str) -> None:
    head = {
        "value": b"\x00\x01k" + size(claimed),
        "element": b"\x01\x01l\x02\x01a" + size(claimed),
        "member": b"\x02\x01s\x02\x01a" + size(claimed),
        "key": b"\x02" + size(claimed),
        "compressed member": b"\x02\x01s\x01\xc3" + size(claimed) + size(claimed),
        "compressed": b"\x02\x01s\x01\xc3" + size(claimed) + size(7),
        "text of a field": b"\xfa\x03lua" + size(claimed),
    }[what]
    reader = Reader()
    chunk = bytes(1 << 18)
    _, taken = _fed(reader, HEAD, head, *[chunk] * 64)
    assert taken < (8 if "compressed" in what else 4) * LARGEST
    with pytest.raises(DamagedError, match=f"offset {9 + len(head) + (64 << 18)}"):
        reader.finish()


def test_half_a_gigabyte_is_skipped_and_what_follows_is_read() -> None:
    chunk, count = bytes(1 << 18), 1 << 11
    begin = HEAD + b"\x00\x01k" + size(count << 18)
    end = entry(b"s", 2, strings([b"a"]), [(b"a", FAR)]) + b"\xff" + bytes(8)
    rows, taken = _fed(Reader(), begin, *[chunk] * count, end)
    assert plain(rows) == [(0, b"s", b"a", FAR)]
    assert taken < 2 * LARGEST


def test_keys_and_members_too_large_to_be_held_are_counted() -> None:
    large = bytes([65]) * (LARGEST + 1)
    fits = large[:-1]
    data = closed(
        entry(large, 2, strings([b"a", b"b"]), [(b"a", FAR), (b"b", FAR)])
        + entry(b"s", 2, strings([large, fits, b"a"]), [(large, FAR), (fits, FAR), (b"a", FAR)])
        + entry(b"t", 2, strings([large]), [(large, FAR)]).replace(string(large), string(large, 5))
    )
    reader = Reader()
    assert plain(reader.feed(data)) == [(0, b"s", fits, FAR), (0, b"s", b"a", FAR)]
    found = reader.finish()
    assert (found.too_large, found.rows, found.keys, found.with_deadlines) == (4, 2, 3, 3)


def test_deadlines_out_of_range_are_counted() -> None:
    pairs = [(b"a", 1 << 53), (b"b", (1 << 53) + 1), (b"c", -(1 << 53)), (b"d", -(1 << 53) - 1), (b"e", 10**18)]
    reader = Reader()
    rows = reader.feed(closed(entry(b"s", 2, strings(b"abcde"[at : at + 1] for at in range(5)), pairs)))
    assert [row.member for row in rows] == [b"a", b"c"]
    assert reader.finish().out_of_range == 3


# Members that KeyDB cuts off.


def zip_of(*entries: bytes) -> bytes:
    """A ziplist, as the value of a hash or a sorted set."""
    body, before = b"", 0
    for item in entries:
        head = size(len(item)) if len(item) < 1 << 14 else b"\x80" + len(item).to_bytes(4, "big")
        part = (bytes([before]) if before < 254 else b"\xfe" + struct.pack("<I", before)) + head + item
        body, before = body + part, len(part)
    return string(struct.pack("<IIH", 11 + len(body), 0, len(entries)) + body + b"\xff")


_HOLDERS: dict[str, Callable[[list[bytes]], tuple[int, bytes]]] = {
    "set": lambda members: (2, strings(members)),
    "set, compressed": lambda members: (2, strings(members, 5)),
    "hash": lambda members: (4, size(len(members)) + b"".join(string(one) + string(b"v\0") for one in members)),
    "sorted set": lambda members: (5, size(len(members)) + b"".join(string(one) + bytes(8) for one in members)),
    "sorted set of old": lambda members: (3, size(len(members)) + b"".join(string(one) + b"\x011" for one in members)),
    "small hash": lambda members: (13, zip_of(*(part for one in members for part in (one, b"v\0v")))),
    "small sorted set": lambda members: (12, zip_of(*(part for one in members for part in (one, b"1.5")))),
}


@pytest.mark.parametrize("holder", _HOLDERS)
def test_a_member_that_was_cut_off_is_found_again(holder: str) -> None:
    def rows(*members: bytes, of: bytes) -> tuple[list[tuple[bytes, bytes | None]], int]:
        reader = Reader()
        kind, value = _HOLDERS[holder](list(members))
        got = reader.feed(closed(entry(b"k", kind, value, [(of, FAR)])))
        return [(row.member, row.cut) for row in got], reader.finish().ambiguous

    filler = b"x" * 300
    assert rows(b"b", b"a\0b", filler, of=b"a\0b") == ([(b"a\0b", b"a")], 0)
    assert rows(b"\0", b"a", of=b"\0") == ([(b"\0", b"")], 0)
    assert rows(b"b", b"a\0b", of=b"b") == ([(b"b", None)], 0)
    assert rows(b"a\0b", b"a\0c", of=b"a\0c") == ([], 1)
    # The server has to be asked whether this one is there too: the file cannot be gone through again.
    assert rows(b"a\0b", b"a", of=b"a") == ([(b"a\0b", b"a")], 0)


@pytest.mark.parametrize(
    ("members", "whens", "told"),
    [
        # As many deadlines as members, and all the same: they are theirs, unless the server has `a` too.
        ("a\0b a\0c", [FAR, FAR], {"a\0b": "a", "a\0c": "a"}),
        ("a\0b a\0c a", [FAR, FAR, FAR], {"a\0b": None, "a\0c": None, "a": None}),
        ("a\0b a", [FAR, FAR], {"a\0b": None, "a": None}),
        ("a\0b a\0c", [FAR, FAR + 1], {}),
        ("a\0b a\0c", [FAR], {}),
        ("a\0b a", [FAR, FAR + 1], {}),
        ("a\0b a\0c a", [FAR, FAR, FAR + 1], {}),
        ("a\0b", [FAR, FAR, FAR], {}),
    ],
)
def test_members_that_begin_alike_are_told_apart_where_all_have_the_same_deadline(
    members: str, whens: list[int], told: dict[str, str | None]
) -> None:
    given = [member.encode() for member in members.split(" ")]
    reader = Reader()
    pairs = [(b"b", 5), *((b"a", when) for when in whens), (b"c", 6)]
    rows = reader.feed(closed(entry(b"k", 2, strings([*given, b"b", b"c", b"d\0"]), pairs)))
    of_others = {b"b": (5, None), b"c": (6, None)}
    assert {row.member: (row.deadline, row.cut) for row in rows} == of_others | {
        member.encode(): (FAR, None if cut is None else cut.encode()) for member, cut in told.items()
    }
    found = reader.finish()
    assert (found.rows, found.ambiguous) == (len(rows), 0 if told else len(whens))
    if told:
        assert not found.ambiguities
    else:
        (left_out,) = found.ambiguities
        assert (left_out.database, left_out.key, left_out.begin) == (0, b"k", b"a")
        assert (left_out.deadlines, left_out.same) == (len(whens), len(set(whens)) == 1)
        assert left_out.members == [member for member in given if b"\0" in member]


@pytest.mark.parametrize("form", [0, 5], ids=["plain", "compressed"])
def test_a_member_too_large_to_be_held_may_begin_like_another(form: int) -> None:
    large = b"a\0" + bytes([65]) * LARGEST
    value = strings([b"b", large], form)

    def read_with(*pairs: tuple[bytes, int]) -> tuple[list[Deadline], int, int]:
        reader = Reader()
        rows = reader.feed(closed(entry(b"s", 2, value, [*pairs, (b"b", FAR)])))
        found = reader.finish()
        assert found.untold == 0
        return plain(rows), found.ambiguous, found.too_large

    assert read_with((large, FAR)) == ([(0, b"s", b"b", FAR)], 1, 0)
    assert read_with((large, FAR), (b"a", FAR + 1)) == ([(0, b"s", b"b", FAR)], 2, 0)
    assert set(read_with((large, FAR), (b"a", FAR))[0]) == {(0, b"s", b"a", FAR), (0, b"s", b"b", FAR)}
    assert read_with((large, FAR), (b"a", FAR))[1:] == (0, 1)


@pytest.mark.parametrize("form", [0, 5], ids=["plain", "compressed"])
def test_a_member_of_the_largest_size_is_found_again(form: int) -> None:
    large = b"a\0" + bytes([65]) * (LARGEST - 2)
    reader = Reader()
    rows = reader.feed(closed(entry(b"s", 2, strings([large], form), [(large, FAR)])))
    assert plain(rows) == [(0, b"s", large, FAR)]


def test_more_members_with_nul_bytes_than_are_held_are_counted_with_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rdb, "CUT_AT_MOST", 5000)
    reader = Reader()
    many = strings(b"%d\0" % number for number in range(50))
    data = entry(b"s", 2, many, [(b"x", FAR), (b"y", FAR)]) + entry(b"t", 2, many, [(b"x", FAR)])
    assert reader.feed(closed(data + entry(b"u", 2, strings([b"x"]), [(b"x", FAR)])))[0].key == b"u"
    found = reader.finish()
    assert (found.untold, found.untold_of, found.ambiguous) == (3, [(0, b"s"), (0, b"t")], 0)


# Anything that KeyDB could write.

_text = st.binary(max_size=80) | st.integers(-(2**31), 2**31 - 1).map(lambda number: b"%d" % number)
_forms = st.integers(0, 5)
_strings = st.tuples(_text, _forms).map(lambda pair: string(*pair))
_sizes = st.integers(0, 2**64 - 1).map(size)


def _some(parts: st.SearchStrategy[bytes], of: int = 1) -> st.SearchStrategy[bytes]:
    """A number of parts in front of them; the number may be a multiple of what is told."""
    return st.lists(parts, max_size=5).map(lambda given: size(len(given) // of) + b"".join(given))


def _pairs(first: st.SearchStrategy[bytes], second: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(first, second).map(b"".join)


_raw = st.binary
_groups = st.tuples(
    _strings, _sizes, _sizes,
    _some(_pairs(_raw(min_size=24, max_size=24), _sizes)),
    _some(st.tuples(_strings, _raw(min_size=8, max_size=8), _some(_raw(min_size=16, max_size=16))).map(b"".join)),
).map(b"".join)  # fmt: skip
_module_part = st.one_of(
    _sizes.map(lambda number: b"\x01" + number),
    _sizes.map(lambda number: b"\x02" + number),
    _raw(min_size=4, max_size=4).map(lambda raw: b"\x03" + raw),
    _raw(min_size=8, max_size=8).map(lambda raw: b"\x04" + raw),
    _strings.map(lambda text: b"\x05" + text),
)
_module = st.tuples(_sizes, st.lists(_module_part, max_size=4).map(b"".join)).map(
    lambda pair: pair[0] + pair[1] + b"\0"
)
_old_score = st.sampled_from([b"\xfd", b"\xfe", b"\xff", b"\x011", b"\x043.25"])
_zips = st.lists(_text, max_size=4).map(lambda given: zip_of(*(part for one in given for part in (one, b"1"))))
_stream = st.tuples(_some(_pairs(_strings, _strings)), _sizes, _sizes, _sizes, _some(_groups)).map(b"".join)
_job = st.tuples(_strings, _raw(min_size=16, max_size=16), _some(_strings), _some(_strings)).map(b"".join)
_values = st.one_of(
    st.tuples(st.just(0), _strings),
    st.tuples(st.just(1), _some(_strings)),
    st.tuples(st.just(2), _some(_strings)),
    st.tuples(st.just(3), _some(_pairs(_strings, _old_score))),
    st.tuples(st.just(4), _some(_pairs(_strings, _strings))),
    st.tuples(st.just(5), _some(_pairs(_strings, _raw(min_size=8, max_size=8)))),
    st.tuples(st.just(7), _module),
    st.tuples(st.sampled_from([9, 10, 11]), _strings),
    st.tuples(st.sampled_from([12, 13]), _zips),
    st.tuples(st.just(14), _some(_strings)),
    st.tuples(st.just(15), _stream),
    st.tuples(st.just(64), _job),
)  # fmt: skip
_between = st.one_of(
    st.just(b""),
    st.tuples(_strings, _strings).map(lambda pair: b"\xfa" + pair[0] + pair[1]),
    _pairs(_sizes, _sizes).map(lambda pair: b"\xfb" + pair),
    _sizes.map(lambda number: b"\xf8" + number),
    _raw(min_size=1, max_size=1).map(lambda raw: b"\xf9" + raw),
    _module.map(lambda module: b"\xf7" + module),
)
_member = st.tuples(st.binary(max_size=80).map(lambda text: text.replace(b"\0", b"")), _forms)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[Row]]:
    """Parts of a file, and the deadlines in it."""
    data, wanted, database = b"", [], 0
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            database = draw(st.integers(0, 2**31 - 1))
            data += b"\xfe" + size(database)
        data += draw(_between)
        expires = draw(st.just(0) | st.integers(-(2**40), 2**44))
        if expires:
            data += b"\xfc" + expires.to_bytes(8, "little", signed=True)
        kind, value = draw(_values)
        key = draw(_text)
        data += bytes([kind]) + string(key, draw(_forms)) + value
        names = draw(st.lists(_member, max_size=3))
        if kind != 64 and b"\0" in value:
            names = []  # what becomes of them is not told so easily
        for member, form in names:
            when = draw(st.integers(-(2**53), 2**53))
            data += deadlines([(member, when)], form)
            if kind != 64:
                wanted.append(Row(database, key, member, when, expires))
    return closed(data), wanted


@given(files(), st.randoms(use_true_random=False))
def test_a_file_of_any_parts_gives_its_deadlines_however_it_is_cut(
    file: tuple[bytes, list[Row]], chance: random.Random
) -> None:
    data, wanted = file
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(8)))
    assert read(data, cuts) == wanted
    assert read(data, range(1, len(data))) == wanted


@given(files(), st.integers(0), st.integers(1, 255))
def test_a_damaged_file_of_any_parts_is_refused(file: tuple[bytes, list[Row]], place: int, flip: int) -> None:
    damaged = bytearray(file[0])
    damaged[place % len(damaged)] ^= flip
    refusal(bytes(damaged))
    refusal(file[0][: place % len(damaged)])


@given(files(), st.integers(0), st.binary(max_size=8))
def test_nonsense_with_a_right_checksum_is_read_or_refused(
    file: tuple[bytes, list[Row]], place: int, nonsense: bytes
) -> None:
    data = bytearray(file[0])
    begin = 9 + place % (len(data) - 17 + 1)
    data[begin : begin + len(nonsense)] = nonsense
    with contextlib.suppress(DamagedError):
        read(summed(bytes(data)))


@given(st.binary(max_size=300), st.integers(0, 400))
def test_compressed_text_is_what_it_was_or_refused(packed: bytes, length: int) -> None:
    with contextlib.suppress(ValueError):
        whole = lzf.decompress(packed, length)
        assert len(whole) == length
        for size in (0, length // 3, length // 2):
            assert lzf.decompress(packed[: 2 * size], size, whole=False) == whole[:size]


# What other servers write in the same version of the format.


def test_all_that_redis_6_has_is_skipped(start_server: StartServer) -> None:
    server = start_server("redis-6.2")
    with server.connect() as client:
        for database in (0, 7):
            client.command("SELECT", database)
            for count in (3, 700):
                for number in range(count):
                    text = b"%d" % number + b"abc" * (number % 40)
                    client.command("RPUSH", f"list:{count}", text)
                    client.command("SADD", f"set:{count}", text)
                    client.command("SADD", f"ints:{count}", number)
                    client.command("ZADD", f"zset:{count}", f"{number / 7}", text)
                    client.command("HSET", f"hash:{count}", text, b"\0" * number)
                    client.command("XADD", f"stream:{count}", "*", "field", text)
            client.command("XGROUP", "CREATE", "stream:700", "group", 0)
            client.command("XREADGROUP", "GROUP", "group", "one", "COUNT", 50, "STREAMS", "stream:700", ">")
            client.command("SET", "text", b"compressed " * 1000, "PX", 10**9)
        assert client.command("SAVE") == b"+OK\r\n"
    data = (Path(server.folder.name) / "dump.rdb").read_bytes()
    assert read(data) == []
    wanted: list[Deadline] = [
        (database, key, member, FAR + database)
        for database in (0, 7)
        for key, member in ((b"set:3", b"0"), (b"hash:700", b"1abc"), (b"zset:700", b"2abcabc"), (b"ints:3", b"2"))
    ]
    assert sorted(plain(read(spliced(data, wanted)))) == sorted(wanted)


# What is kept until the checksum is known to be right.


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.binary(max_size=4), st.binary(max_size=9), st.integers(-(2**53), 2**53),
            st.sampled_from([0, -5, FAR]), st.none() | st.binary(max_size=3),
        ).map(lambda row: Row(*row)),
        max_size=600,
    ),
    st.booleans(),
)  # fmt: skip
def test_deadlines_come_back_in_their_order_and_in_bounded_batches(rows: list[Row], large: bool) -> None:
    if large:
        rows = [row._replace(member=row.member + bytes(BYTES_AT_ONCE // 3)) for row in rows[:10]]
    with Spool() as spool:
        spool.add(rows)
        spool.finish()
        assert spool.size == len(rows)
        back = []
        for batch in spool.batches():
            assert 0 < batch.size == sum(len(of_key.rows) for of_key in batch.keys) <= ROWS_AT_ONCE
            assert all(of_key.rows for of_key in batch.keys)
            assert len(batch.keys) <= KEYS_AT_ONCE
            assert sum(len(row[0]) for of_key in batch.keys for row in of_key.rows[1:]) <= 2 * BYTES_AT_ONCE
            back += [
                Row(batch.database, of_key.key, member, when, of_key.expires, cut)
                for of_key in batch.keys
                for member, when, cut in of_key.rows
            ]
    assert back == rows
