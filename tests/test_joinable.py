"""Requests on members are read together as each is read alone, and nothing but one whole request is read as one."""

from __future__ import annotations

from typing import Final

import redis
from hypothesis import event, given, settings
from hypothesis import strategies as st

from proxy.commands.described import ServerCommands
from proxy.commands.dialects import TOGETHER
from proxy.commands.table import BATCHED
from proxy.coverage.coverage import Coverage
from proxy.relay.joint import read
from proxy.relay.port import Port
from proxy.scripts.naming import Names
from proxy.session.joinable import Columns, Joinable
from proxy.session.operations import MOST_ARGUMENTS, Operation, Operations
from proxy.session.plain import Shared, share_check
from proxy.session.rewrite import Rewriter
from proxy.wire.batch import BatchParser
from proxy.wire.request import RequestReader, bulks
from tests.raw import request
from tests.servers import Server

NAMES: Final = Names(b"__expiremember__:")


def covering(*keys: bytes) -> Coverage:
    coverage = Coverage()
    coverage.loaded = True
    coverage.see()
    coverage.learn(keys)
    coverage.confirm(list(coverage.entries))
    return coverage


COVERAGE: Final = covering(b"c:1", b"c:2", b"c:3", b"c:4", b"c:long")
SERVER: Final = ServerCommands()
SERVER.declares_terms = True
JOINABLE: Final = Joinable(Rewriter(NAMES, COVERAGE, SERVER), COVERAGE, BatchParser())
JOINABLE.long_lists.add(b"c:long")
CHECK: Final = share_check(COVERAGE, NAMES.prefix, BatchParser())

KEYS: Final = b"c:1", b"c:2", b"c:3"
FORMS: Final = (
    (b"SADD", b"m"), (b"sadd", b"m", b"7"), (b"HSET", b"m", b"100"), (b"ZADD", b"1.5", b"m"), (b"SREM", b"m"),
    (b"EXPIREMEMBER", b"m", b"100"), (b"EXPIREMEMBER", b"m", b"7", b"ms"), (b"pexpiremember", b"m", b"7"),
    (b"TTL", b"m"), (b"PERSIST", b"m"), (b"HEXPIRE", b"100", b"FIELDS", b"1", b"m"),
)  # fmt: skip
ODD: Final = st.sampled_from(
    [
        b"-1",
        b"09",
        b"7",
        b"us",
        b"NX",
        b"m\r\n$1\r\nx",
        b"x" * 300,
        b"\r",
        b"",
        b"c:1",
        b"other",
        b"c:long",
        NAMES.index,
    ]
)


@st.composite
def members_requests(draw: st.DrawFn, form: tuple[bytes, ...]) -> bytes:
    """A request of a form, or one that is nearly like it."""
    words = [form[0], draw(st.sampled_from(KEYS)), *form[1:]]
    if draw(st.integers(0, 9)) == 0:
        words[draw(st.integers(0, len(words) - 1))] = draw(ODD)
    return request(*words)


whole = st.sampled_from(FORMS).flatmap(members_requests)
several_alike = st.sampled_from(FORMS).flatmap(lambda form: st.lists(members_requests(form), min_size=4, max_size=9))


def cut_anywhere(data: st.DataObject, chunks: list[bytes]) -> list[bytes]:
    """Some chunks in the place of which others came: part of a request, two in one, or a wrong length."""
    place = data.draw(st.integers(0, len(chunks) - 1))
    chunk = chunks[place]
    at = data.draw(st.integers(1, len(chunk)))
    odd = data.draw(
        st.sampled_from([chunk[:at], chunk + chunk, chunk[:at] + b"x" + chunk[at:], chunk[:at] + chunk[at + 1 :]])
    )
    return [*chunks[:place], odd, *chunks[place + 1 :]]


def taken(chunk: bytes) -> bool:
    """Whether a chunk may become part of a joint call."""
    return CHECK(chunk) >= Shared.JOINT_WRITES


def columns_of(operation: Operation) -> Columns:
    form, key, words, delay = operation
    return Columns(form, [key], bulks(words), len(words), delay)


@settings(max_examples=300)
@given(chunks=several_alike, data=st.data())
def test_together_they_ask_for_what_each_does(chunks: list[bytes], data: st.DataObject) -> None:
    if data.draw(st.integers(0, 3)) == 0:
        chunks = cut_anywhere(data, chunks)
    chunks = [chunk for chunk in chunks if taken(chunk)]
    found = JOINABLE.several(chunks) if chunks else None
    event(f"read: {found is not None}")
    if found is None:
        return
    each = [JOINABLE.one(chunk) for chunk in chunks]
    assert None not in each
    columns = [columns_of(one) for one in each if one is not None]
    delays = [one.delay for one in columns if one.delay]
    assert found == Columns(
        columns[0].form,
        [one.keys[0] for one in columns],
        b"".join(one.tail for one in columns),
        sum(one.size for one in columns),
        min(delays, default=0),
    )


@settings(max_examples=300)
@given(chunk=st.one_of(whole, whole, whole, st.lists(whole, min_size=2, max_size=2).map(b"".join)), data=st.data())
def test_what_is_read_is_one_whole_request(chunk: bytes, data: st.DataObject) -> None:
    if data.draw(st.integers(0, 3)) == 0:
        (chunk,) = cut_anywhere(data, [chunk])
    operation = JOINABLE.one(chunk) if taken(chunk) else None
    event(f"read: {operation is not None}")
    if operation is None:
        return
    reader = RequestReader()
    reader.feed(chunk)
    one = reader.next_request()
    assert one is not None
    assert reader.next_request() is None
    assert one.raw == chunk
    assert one.arguments[1] == operation.key
    assert operation.form.of_own or operation.key.startswith(b"c:")
    assert not operation.key.startswith(NAMES.prefix)


def test_reads_go_where_reads_do(upstream: Server) -> None:
    described = ServerCommands()
    with redis.Redis.from_url(upstream.url, protocol=2) as client:
        client.response_callbacks.clear()
        described.read(client.execute_command("COMMAND"))
    for name in BATCHED | TOGETHER:
        for size in range(3, MOST_ARGUMENTS + 1):
            form = Operations(described).form(name, size)
            found = CHECK(request(name, "c:1", *["1"] * (size - 2)))
            if form is not None:
                assert found is (Shared.JOINT_WRITES if form.terms.writes else Shared.JOINT_READS)


def test_most_are_read_at_once() -> None:
    chunks = [request("EXPIREMEMBER", f"c:{number % 4 + 1}", "m", 100 + number) for number in range(32)]
    found = JOINABLE.several(chunks)
    assert found is not None
    assert found.delay == 100_000
    assert JOINABLE.several([*chunks, request("EXPIREMEMBER", "unknown", "m", 1)]) is None
    assert JOINABLE.several([request("SADD", "c:1", "m")] * 4) is not None
    assert JOINABLE.several([request("SADD", "other", "m")] * 4) is None


@settings(max_examples=300)
@given(chunks=st.lists(whole, min_size=1, max_size=5), in_transaction=st.booleans(), data=st.data())
def test_a_few_do_what_each_does(chunks: list[bytes], in_transaction: bool, data: st.DataObject) -> None:
    if in_transaction:
        names = data.draw(st.sampled_from([("MULTI", "EXEC"), ("multi", "exec")]))
        chunks = [request(names[0]), *chunks, request(names[1])]
    if data.draw(st.integers(0, 3)) == 0:
        chunks = cut_anywhere(data, chunks)
    chunk = b"".join(chunks)
    found = JOINABLE.few(chunk) if taken(chunk) else None
    event(f"read: {found is not None}, transaction: {in_transaction}")
    if found is None:
        return
    reader = RequestReader()
    reader.feed(chunk)
    requests = []
    while (one := reader.next_request()) is not None:
        requests.append(one)
    assert b"".join([one.raw for one in requests]) == chunk
    if found.is_transaction:
        assert requests[0].raw.upper() == request("MULTI")
        assert requests.pop().raw.upper() == request("EXEC")
        del requests[0]
        assert any(one.form.terms.takes_memory for one in found.operations)
    assert found.operations == [Operations(SERVER).read(one.arguments) for one in requests]
    needing = [one.form.of_own or one.key.startswith(b"c:") for one in found.operations]
    assert any(needing)
    assert all(needs or not one.form.names_members for one, needs in zip(found.operations, needing, strict=True))
    kinds = {one.form.reads for one in found.operations}
    assert found.operations[0].form.reads <= (kinds == {True})


def test_no_request_is_made_of_the_bytes_of_two_clients() -> None:
    """A part of a request that another client's bytes would complete."""
    part = request("SADD", "c:1", "**", "SADD").split(b"**")[0]
    rest = b"*4\r\n$4\r\nSADD\r\n" + request("SADD", "c:1", "x", "y")
    chunks = [request("SADD", "c:1", "m", "n"), request("SADD", "c:1", "m", "n"), part, rest]
    assert JOINABLE.several(chunks) is not None  # so they must not come here
    ports = [Port(lambda _: None) for _ in chunks]
    for port, chunk in zip(ports, chunks, strict=True):
        port.request = chunk
        assert taken(chunk) or chunk == part
    parts, refused = read(JOINABLE, ports)
    assert refused == [ports[3], ports[2]]
    assert [part.ports for part in parts] == [[ports[0]], [ports[1]]]
