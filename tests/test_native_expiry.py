"""The servers' own expiry of hash fields beside deadlines, and the other commands that only the newest servers have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import hiredis
import pytest

from proxy.commands import members
from proxy.commands.members import Locator
from tests.conftest import StartProxy, StartServer
from tests.model import parse
from tests.raw import request
from tests.servers import Proxy, Server, until
from tests.test_lives import (
    ADDERS,
    FAR,
    PREFIX,
    REMOVALS,
    Bench,
    Talk,
    check_lives,
    clock,
    is_far,
    is_void,
    only,
    wait_past,
)

pytestmark = pytest.mark.every_kind(redis=(8,), valkey=(9, 1))

Connect = Callable[[Server | Proxy], Talk]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda to: Talk(stack.enter_context(to.connect()))


@pytest.fixture
def client(proxy: Proxy, connect: Connect) -> Talk:
    """A client of the proxy."""
    return connect(proxy)


@pytest.fixture
def beside(upstream: Server, connect: Connect) -> Talk:
    """A client of the server behind it."""
    return connect(upstream)


def has(where: Talk, key: str, field: str = "7") -> bool:
    return bool(where("HEXISTS", key, field))


def expire_shortly(bench: Bench) -> None:
    bench.each({"hash": "HPEXPIRE {k} 1 FIELDS 1 7"})
    until(lambda: not any(has(bench.beside, key) for key in bench.keys), what="the end of the fields")


def in_multi(line: str) -> Callable[[Bench], None]:
    def remove(bench: Bench) -> None:
        bench.through("MULTI")
        bench.each({"hash": line})
        assert len(bench.through("EXEC")) == len(bench.keys)

    return remove


NATIVE_REMOVALS: dict[str, Callable[[Bench], None]] = {
    "HGETDEL": only("hash", "HGETDEL {k} FIELDS 1 7"),
    "HGETDEL of the last field": only("hash", "HGETDEL {k} FIELDS 2 1 7"),
    "HGETDEL in MULTI": in_multi("HGETDEL {k} FIELDS 1 7"),
    "HEXPIRE of zero": only("hash", "HEXPIRE {k} 0 FIELDS 1 7"),
    "HEXPIREAT in the past": only("hash", "HEXPIREAT {k} 1 FIELDS 2 1 7"),
    "HPEXPIREAT in the past, in MULTI": in_multi("HPEXPIREAT {k} 1 FIELDS 1 7"),
    "HPEXPIRE that passes": expire_shortly,
    "HGETEX in the past": only("hash", "HGETEX {k} PXAT 1 FIELDS 1 7"),
    "HSETEX in the past": only("hash", "HSETEX {k} PXAT 1 FIELDS 1 7 0"),
    **{way: REMOVALS[way] for way in ("by name", "by name beside the proxy", "script", "expiry of the key", "DEL")},
}

HASH_ADDERS = {
    "hash": ADDERS["hash"]
    + "|HSETEX {k} FIELDS 1 7 0|HSETEX {k} FNX FIELDS 1 7 0|HSETEX {k} EX 1000 FIELDS 2 2 7 7 0"
    + "|HSETEX {k} FNX PX 1000000 FIELDS 2 7 0 2 0|HSETEX {k} KEEPTTL fields 1 7 0"
}


@pytest.mark.parametrize("way", NATIVE_REMOVALS)
def test_a_field_that_comes_back_has_no_deadline(upstream: Server, proxy: Proxy, connect: Connect, way: str) -> None:
    check_lives(Bench(connect(proxy), connect(upstream), HASH_ADDERS), NATIVE_REMOVALS[way])


STAYING = [
    "HSETEX h FIELDS 1 7 0",
    "HSETEX h FXX KEEPTTL FIELDS 2 1 0 7 0",
    "HSETEX h EX 1000 FIELDS 2 7 0 2 0",
    "HSETEX h FNX FIELDS 2 7 0 2 0",
    "HEXPIRE h 1000 FIELDS 1 7",
    "HEXPIRE h 0 FIELDS 1 1",
    "HPERSIST h FIELDS 1 7",
    "HGETEX h PERSIST FIELDS 1 7",
    "HGETEX h EX 1000 FIELDS 1 7",
    "HGETDEL h FIELDS 1 1",
]


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("line", STAYING)
def test_a_field_that_stays_keeps_its_deadline(client: Talk, beside: Talk, line: str, queued: bool) -> None:
    client.say("HSET h 1 1 7 7")
    client.say("HEXPIRE h 10000 FIELDS 1 7")
    client.say(f"EXPIREMEMBER h 7 {FAR}")
    if queued:
        client("MULTI")
        client.say(line)
        reply = client("EXEC")[0]
    else:
        reply = client.say(line)
    assert not isinstance(reply, hiredis.ReplyError), reply
    assert is_far(client.say("TTL h 7"))
    client.say(f"PEXPIREMEMBERAT h 7 {clock(beside) + 20}")
    until(lambda: not has(beside, "h"), what="the end of the field")
    assert client.say("TTL h 7") in (-1, -2)


def meet(client: Talk, beside: Talk, ours_first: bool, ours_sooner: bool, later: int) -> int | None:
    """Let two expiries of a field meet, and bring it back after the sooner one.

    Args:
        client: goes through the proxy.
        beside: does not.
        ours_first: whether the deadline is set before the server's own expiry, or after.
        ours_sooner: whether the deadline passes before the server's own expiry, or after.
        later: in how many milliseconds the second of them passes.

    Returns:
        When that is, in Unix ms; None where all this has taken longer.
    """
    client.say("DEL h")
    client.say("HSET h 1 1 7 7")
    soon, late = (moments := clock(beside) + later // 5), moments + later
    ours, native = (soon, late) if ours_sooner else (late, soon)
    lines = [f"PEXPIREMEMBERAT h 7 {ours}", f"HPEXPIREAT h {native} FIELDS 1 7"]
    replies = [client.say(line) for line in (lines if ours_first else reversed(lines))]
    if clock(beside) >= soon:
        return None
    assert all(reply in (1, [1]) for reply in replies), replies
    until(lambda: not has(beside, "h"), what="the end of the field")
    assert clock(beside) >= soon
    assert client.say("HSET h 7 again") == 1
    return late if clock(beside) < late else None


@pytest.mark.parametrize("ours_first", [True, False], ids=["deadline first", "HPEXPIREAT first"])
@pytest.mark.parametrize("ours_sooner", [True, False], ids=["deadline sooner", "HPEXPIREAT sooner"])
def test_the_sooner_of_both_ends_a_field_and_the_later_is_void(
    client: Talk, beside: Talk, ours_first: bool, ours_sooner: bool
) -> None:
    later = 200
    while (late := meet(client, beside, ours_first, ours_sooner, later)) is None:
        assert later < 10_000, "too slow to tell"
        later *= 2
    client.say("SADD witness w stays")
    client.say(f"PEXPIREMEMBERAT witness w {late + 1}")
    until(lambda: beside.say("SCARD witness") == 1, what="the end of the witness")
    assert beside.say("HGET h 7") == b"again"
    assert client.say("HGET h 7") == b"again"
    assert client.say("PTTL h 7") == -1
    assert beside.say("HPTTL h FIELDS 1 7") == [-1]


def test_a_copy_and_a_new_name_have_both_expiries(client: Talk) -> None:
    client.say("HSET h 7 7")
    client.say("HEXPIRE h 10000 FIELDS 1 7")
    client.say(f"EXPIREMEMBER h 7 {FAR}")
    client.say("COPY h copy")
    client.say("RENAME h new")
    for key in ("copy", "new"):
        assert is_far(client.say(f"TTL {key} 7"))
        assert client.say(f"HTTL {key} FIELDS 1 7")[0] in range(9_000, 10_001)


ABSENT: dict[str, object] = {
    "HTTL {k} FIELDS 1 7": [-2],
    "HPTTL {k} FIELDS 1 7": [-2],
    "HEXPIRETIME {k} FIELDS 1 7": [-2],
    "HPEXPIRETIME {k} FIELDS 1 7": [-2],
    "HEXPIRE {k} 100 FIELDS 1 7": [-2],
    "HPEXPIREAT {k} 9999999999999 FIELDS 1 7": [-2],
    "HPERSIST {k} FIELDS 1 7": [-2],
    "HGETEX {k} FIELDS 1 7": [None],
    "HGETEX {k} EX 100 FIELDS 2 7 1": [None, b"1"],
    "HGETDEL {k} FIELDS 2 7 1": [None, b"1"],
    "HSETEX {k} FXX FIELDS 1 7 0": 0,
    "HSETEX {k} FNX FIELDS 1 7 0": 1,
}


@pytest.mark.parametrize("queued", [False, True])
def test_none_of_these_commands_sees_a_field_that_is_due(
    kind: str, lazy_pairs: Callable[[str], tuple[Server, Proxy]], connect: Connect, queued: bool
) -> None:
    server, proxy = lazy_pairs(kind)
    client, beside = connect(proxy), connect(server)
    keys = {f"h:{number}": line for number, line in enumerate(ABSENT)}
    milliseconds = 100
    while True:
        beside("FLUSHALL")
        for key in keys:
            client.say(f"HSET {key} 1 1 7 7")
        deadline = clock(beside) + milliseconds
        set_ = [client.say(f"PEXPIREMEMBERAT {key} 7 {deadline}") for key in keys]
        if clock(beside) < deadline:
            break
        milliseconds *= 2
        assert milliseconds < 10_000, "too slow to tell"
    assert set_ == [1] * len(keys)
    wait_past(beside, deadline)
    for key, line in keys.items():
        assert has(beside, key), "nobody has looked yet"
        if queued:
            client("MULTI")
            client.say(line.format(k=key))
            assert client("EXEC") == [ABSENT[line]], line
        else:
            assert client.say(line.format(k=key)) == ABSENT[line], line


@pytest.mark.parametrize("queued", [False, True])
def test_hgetdel_voids_the_deadlines_of_all_that_it_removes(client: Talk, beside: Talk, queued: bool) -> None:
    fields = ("2", "a", "b", "c")
    client("HSET", "h", *(word for field in fields for word in (field, "x")))
    for field in fields:
        client.say(f"EXPIREMEMBER h {field} {FAR}")
    if queued:
        client("MULTI")
        client.say("HGETDEL h FIELDS 2 a b")
        client.say("HINCRBY h a 1")
        client.say("HINCRBY h b 1")
        assert client("EXEC") == [[b"x", b"x"], 1, 1]
    else:
        assert client.say("HGETDEL h FIELDS 2 a b") == [b"x", b"x"]
        assert all(is_far(client.say(f"TTL h {field}")) for field in fields), "as of whatever is removed by name"
        beside.say("HSET h a 1 b 1")
    assert [client.say(f"TTL h {field}") for field in ("a", "b")] == [-1, -1]
    assert is_far(client.say("TTL h c"))
    assert is_far(client.say("TTL h 2"))


HSETEX_OPTIONS = ["", "FNX", "EX 100", "PX 100000", "EXAT 9999999999", "PXAT 9999999999999", "KEEPTTL", "fnx ex 100"]


@pytest.mark.parametrize("options", HSETEX_OPTIONS)
def test_hsetex_voids_the_deadlines_of_the_absent_fields_that_it_sets(client: Talk, beside: Talk, options: str) -> None:
    client.say("HSET h 2 x a x b x c x")
    for field in ("2", "a", "b", "c"):
        client.say(f"EXPIREMEMBER h {field} {FAR}")
    client.say("HDEL h 2")
    beside.say("HDEL h a b")
    assert client.say(f"HSETEX h {options} FIELDS 2 a c b 2") == 1
    assert [client.say(f"TTL h {field}") for field in ("a", "b")] == [-1, -1]
    assert is_far(client.say("TTL h c"))
    assert is_far(client.say("TTL h 2")), "neither the count nor a value is a field"


LOCATORS: dict[str, Locator] = {"HSETEX": members.fields_with_values, "HGETDEL": members.fields}
HSETEX_WORDS = "FIELDS fields EX PX EXAT PXAT KEEPTTL FNX FXX NX XX 1 2 3 01 a b c v 100 9999999999999 0"
HGETDEL_WORDS = "FIELDS fields 1 2 3 01 a b c v 0 FNX"


def random_words(name: str, choice: random.Random) -> list[str]:
    """Arguments of a command after its key: with a form that a server may take, and something wrong with many."""
    all_words = HSETEX_WORDS if name == "HSETEX" else HGETDEL_WORDS
    words = choice.choices(all_words.split(), k=choice.randint(2, 9))
    if choice.random() < 0.2:
        return words
    count = choice.randint(1, 3)
    fields = choice.choices("abcv12", k=count * (2 if name == "HSETEX" else 1))
    behind = words[: choice.choice((0, 0, 0, 1, 2))]
    return [*words[: choice.randint(0, 3)], "FIELDS", str(count), *fields, *behind]


@pytest.mark.parametrize("name", LOCATORS)
def test_every_form_that_the_server_takes_is_understood(upstream: Server, name: str) -> None:
    choice = random.Random(7)
    taken = 0
    fill = request("DEL", "h") + request("HSET", "h", "a", "x", "z", "x", "2", "x") + request("HKEYS", "h")
    with upstream.connect() as straight:
        for _ in range(3000):
            words = random_words(name, choice)
            straight.send(fill + request(name, "h", *words) + request("HKEYS", "h"))
            _, _, before, reply, after = map(parse, straight.replies(5))
            if isinstance(reply, hiredis.ReplyError):
                continue
            taken += 1
            arguments = [name.encode(), b"h", *(word.encode() for word in words)]
            positions = LOCATORS[name](arguments, len(arguments))
            assert positions is not None, words
            assert set(before) ^ set(after) <= {arguments[position] for position in positions}, words
    assert taken > 300


@pytest.mark.parametrize("line", ["FIELDS 1 f v EX 100", "FNX FIELDS 1 f v KEEPTTL", "FIELDS 1 x v FIELDS 1 f v"])
def test_options_behind_the_fields_hide_no_field(line: str) -> None:
    """As Redis takes them from 8.4 on."""
    arguments = [b"HSETEX", b"h", *line.encode().split()]
    positions = members.fields_with_values(arguments, len(arguments))
    assert positions is not None
    assert b"f" in [arguments[position] for position in positions]


ANSWERED_ALIKE = """
    HSETEX h FIELDS 1 7 0|HSETEX h FXX FIELDS 1 none 0|HSETEX h FNX EX 100 FIELDS 1 new 0|HGETDEL h FIELDS 2 7 none
    |HSETEX h FIELDS 2 7 0|HSETEX h FIELDS 0|HSETEX h FIELDS 1 7 0 1|HSETEX h FIELDS 1 7|HSETEX h EX 0 FIELDS 1 7 0
    |HSETEX h EX x FIELDS 1 7 0|HSETEX h EX 1 PX 1 FIELDS 1 7 0|HSETEX h WHAT FIELDS 1 7 0|HSETEX h 7 0|HSETEX h
    |HGETDEL h FIELDS 1 none|HGETDEL h FIELDS 2 7|HGETDEL h FIELDS 1 7 7|HGETDEL h FIELDS x 7|HGETDEL h 1 7|HGETDEL h
    |HGETEX h FIELDS 1 7|HGETEX h EX 100 PERSIST FIELDS 1 7|HEXPIRE h 100 FIELDS 2 7 none|HEXPIRE h x FIELDS 1 7
    |HEXPIRE h 100 XX FIELDS 1 7|HPERSIST h FIELDS 1 7|HTTL h FIELDS 2 7 none
"""


@pytest.mark.parametrize("protocol", [2, 3])
def test_answers_on_a_key_with_deadlines_are_the_servers_own(upstream: Server, proxy: Proxy, protocol: int) -> None:
    with upstream.connect() as straight, proxy.connect() as through:
        for connection in (straight, through):
            connection.command("HELLO", protocol)
        for line in ANSWERED_ALIKE.split("|"):
            answers = []
            for connection in (straight, through):
                upstream.flush()
                straight.command("HSET", "h", "7", "7", "1", "1")
                through.command("EXPIREMEMBER", "h", "1", FAR)
                answers.append(connection.command(*line.split()))
            assert answers[0] == answers[1], line


def test_what_the_servers_own_expiry_leaves_over_is_cleared(
    kind: str, start_server: StartServer, start_proxy: StartProxy, connect: Connect
) -> None:
    upstream = start_server(kind)
    idle = start_proxy(upstream, "--leftovers-rate", "0")
    client, beside = connect(idle), connect(upstream)
    client.say("HSET h 1 1 7 7")
    client.say(f"EXPIREMEMBER h 1 {FAR}")
    client.say(f"EXPIREMEMBER h 7 {FAR}")
    client.say("HPEXPIRE h 1 FIELDS 1 7")
    until(lambda: not has(beside, "h"), what="the end of the field")
    idle.stop()  # of several proxies one does it
    cleaner = connect(start_proxy(upstream, "--leftovers-rate", "100000"))
    until(partial(is_void, beside, PREFIX + b"k:{h}"), what="the end of the leftover")
    beside.say("HSET h 7 again")
    assert cleaner.say("TTL h 7") == -1
    assert is_far(cleaner.say("TTL h 1"))


@pytest.mark.every_kind(redis=(8,))
def test_a_vector_set_in_the_place_of_a_set_is_left_alone(client: Talk, beside: Talk) -> None:
    client.say("SADD k 7 1")
    client.say(f"EXPIREMEMBER k 1 {FAR}")
    client.say(f"PEXPIREMEMBERAT k 7 {(deadline := clock(beside) + 50)}")
    beside.say("DEL k")
    assert client.say("VADD k VALUES 2 1 2 7") == 1
    assert str(client.say("EXPIREMEMBER k 7 1")) == "ERR object type is unsupported"
    assert client.say("TTL k 7") == -1
    client.say("SADD witness w stays")
    client.say(f"PEXPIREMEMBERAT witness w {deadline + 1}")
    until(lambda: beside.say("SCARD witness") == 1, what="the end of the witness")
    assert client.say("VCARD k") == 1
    assert client.say("VREM k 7") == 1
    assert client.say("SADD k 7 1") == 2
    assert client.say("TTL k 7") == client.say("TTL k 1") == -1


@pytest.mark.every_kind(redis=(8, 4), valkey=(9, 1))
def test_msetex_over_collections_ends_their_deadlines(client: Talk, beside: Talk) -> None:
    for key in ("a", "b"):
        client.say(f"SADD {key} 7")
        client.say(f"EXPIREMEMBER {key} 7 {FAR}")
    assert client.say("MSETEX 2 a v b v EX 1000") == 1
    beside.say("DEL a b")
    beside.say("SADD a 7")
    beside.say("SADD b 7")
    assert client.say("TTL a 7") == client.say("TTL b 7") == -1
