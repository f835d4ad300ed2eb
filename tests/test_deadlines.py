"""`expiremember-proxy deadlines` and `explain`: all that is there, in order, in small steps, without a write."""

from __future__ import annotations

import asyncio
import csv
import gc
import io
import json
import math
import os
import pty
import re
import select
import statistics
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from proxy.check.needed import rules
from proxy.cli import command
from proxy.events.rules import Rule
from proxy.looking import command as looking
from proxy.looking import merge, reading
from proxy.looking.command import matcher
from proxy.looking.member import COMPARED, Facts, outlook
from proxy.looking.merge import ELEMENTS, KEYS, Deadline, Soonest, SpoiltError, TooManyError
from proxy.looking.shown import FORMATS, date, span, spelled, when
from proxy.looking.walk import FEW, MOST_ATTEMPTS, RestlessError, Walk, Words
from proxy.scripts.naming import Names
from proxy.settings import load
from proxy.upstream.nodes import primaries
from tests.cluster import Cluster, slot_of
from tests.conftest import Start, StartProxy, StartServer
from tests.pages import page
from tests.relay import Relay
from tests.sentinels import Watched
from tests.servers import KIND, ROOT, Proxy, Server, free_port, proxy_environment, until
from tests.test_cluster import AWKWARD
from tests.test_docs import at, folder, port_of, shell
from tests.test_events import talk, want
from tests.test_lives import Talk
from tests.test_tls import Files, files, flags, tls_server

__all__ = ["files", "folder", "talk"]  # fixtures

NAMES = Names(b"__expiremember__:")
Connect = Callable[..., Talk]
FAR = 4_000_000_000_000


def run(*arguments: str | bytes) -> tuple[int, str, str]:
    """Run it in this process; return its status, its output, and what it complains of."""
    variables: dict[str, str | None] = dict.fromkeys(
        one for one in os.environ if one.upper().startswith("EXPIREMEMBER_")
    )
    words = [os.fsdecode(one) for one in arguments]
    if "--upstream" in words:  # where passwords belong that others are not to see
        place = words.index("--upstream")
        variables["EXPIREMEMBER_UPSTREAM"] = words[place + 1]
        del words[place : place + 2]
    ended = CliRunner().invoke(command(), words, env=variables)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.stdout_bytes.decode(), ended.stderr


def listed(to: Server | str, *arguments: str | bytes) -> list[tuple[int, bytes, bytes]]:
    """What it lists: deadline, key and member."""
    url = to if isinstance(to, str) else to.url
    status, said, complained = run("deadlines", *arguments, "--format", "json", "--upstream", url)
    assert (status, complained) == (0, "")
    assert said.isascii()
    return [(one["deadline_ms"], name(one, "key"), name(one, "member")) for one in json.loads(said)]


def name(one: dict[str, str], label: str) -> bytes:
    if label in one:
        assert f"{label}_base64" not in one
        return one[label].encode()
    return b64decode(one[f"{label}_base64"])


def explained(to: Server | str, key: str | bytes, member: str | bytes) -> tuple[int, dict[str, str], str]:
    """What it explains: its status, the rows, and the sentence."""
    url = to if isinstance(to, str) else to.url
    status, said, complained = run("explain", key, member, "--upstream", url)
    assert complained == ""
    rows, _, sentence = said.rstrip("\n").rpartition("\n\n")
    cells = [re.split(r"  +", row, maxsplit=1) for row in rows.splitlines()]
    return status, {cell[0]: cell[1] for cell in cells}, sentence


# The order, without a server.


class Store:
    """What a server holds, as far as it is asked.

    Args:
        change: called in front of each step.
    """

    def __init__(self, change: Callable[[], None] = lambda: None) -> None:
        self.sorted: dict[bytes, dict[bytes, float]] = {}
        self.kinds: dict[bytes, bytes] = {}
        self.members: dict[bytes, set[bytes]] = {}
        self.steps = 0
        self.change = change

    def put(self, key: bytes, member: bytes, score: float, index: bytes = NAMES.index) -> None:
        shadow = self.sorted.setdefault(NAMES.shadow(key), {})
        shadow[member] = score
        self.sorted.setdefault(index, {})[key] = min(map(abs, shadow.values()))
        self.kinds.setdefault(key, b"set")
        self.members.setdefault(key, set()).add(member)

    def drop(self, key: bytes, member: bytes, index: bytes = NAMES.index) -> None:
        shadow = self.sorted[NAMES.shadow(key)]
        shadow.pop(member, None)
        self.members[key].discard(member)
        if shadow:
            self.sorted[index][key] = min(map(abs, shadow.values()))
        else:
            self.sorted[index].pop(key, None)

    async def ask(self, requests: Sequence[Words]) -> list[Any]:
        return self.answer(requests)

    def answer(self, requests: Sequence[Words]) -> list[Any]:
        self.change()
        self.steps += 1
        replies = [getattr(self, str(words[0]).lower())(*words[1:]) for words in requests]
        assert len(requests) <= ELEMENTS + 1
        assert sum(len(reply) // 2 for reply in replies if isinstance(reply, list)) <= ELEMENTS + 2 * FEW
        return replies

    def _flat(self, key: bytes) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.sorted.get(key, {}).items())

    def zrange(self, key: bytes, first: int, last: int, _: str) -> list[Any]:
        return [part for score, member in self._flat(key)[first : last + 1] for part in (member, repr(score).encode())]

    def zrangebyscore(self, key: bytes, first: str, _: str, __: str, ___: str, offset: int, count: int) -> list[Any]:
        low, flat = float(first.lstrip("(")), self._flat(key)
        beyond = [one for one in flat if (one[0] > low if first.startswith("(") else one[0] >= low)]
        return [part for score, member in beyond[offset:][:count] for part in (member, repr(score).encode())]

    def type(self, key: bytes) -> bytes:
        return self.kinds.get(key, b"none")

    def smismember(self, key: bytes, *members: bytes) -> list[int]:
        return [int(member in self.members.get(key, ())) for member in members]


def gathered(soonest: Soonest) -> list[Deadline]:
    async def gather() -> list[Deadline]:
        return [one async for one in soonest.deadlines()]

    return asyncio.run(gather())


def some_rows(size: int, keys: int, changes: Random) -> dict[tuple[bytes, bytes], float]:
    """Deadlines of some keys, void ones among them; Hypothesis alone would make few of many."""
    rows = {}
    for _ in range(size):
        score = changes.choice([changes.randint(1, 30), changes.randint(1, 60) / 2, -changes.randint(1, 20)])
        rows[b"k%d" % changes.randrange(keys), b"m%d" % changes.randrange(60)] = float(score)
    return rows


CHANGES = st.integers(0, 1 << 32).map(Random)
"""What happens between two steps: too much of it to draw each."""

ROWS = st.builds(some_rows, st.integers(0, 400), st.integers(1, 200), CHANGES)


def stored(rows: dict[tuple[bytes, bytes], float], indexes: int, absent: set[int]) -> tuple[list[Store], set[Deadline]]:
    """Stores with these deadlines, keys spread over indexes of two servers, and those that count."""
    stores = [Store(), Store()]
    real = set()
    for place, ((key, member), score) in enumerate(rows.items()):
        number = int(key[1:]) % indexes
        store = stores[number % 2]
        store.put(key, member, score, NAMES.index_of(number))
        if place in absent:
            store.members[key].discard(member)
        elif score > 0:
            real.add(Deadline(score, key, member))
    return stores, real


def over(stores: list[Store], indexes: int, **wanted: Any) -> Soonest:
    soonest = Soonest(NAMES.shadow, **wanted)
    for number in range(indexes):
        soonest.add_index(stores[number % 2], NAMES.index_of(number))
    return soonest


@given(ROWS, st.integers(1, 7), st.sets(st.integers(0, 250)), st.integers(0, 40), st.sampled_from([math.inf, 12, 13.5]))
def test_the_order_is_that_of_a_sorted_list(
    rows: dict[tuple[bytes, bytes], float], indexes: int, absent: set[int], most: int, until_: float
) -> None:
    stores, real = stored(rows, indexes, absent)
    expected = [one for one in sorted(real) if one.score <= until_]
    found = gathered(over(stores, indexes, most=most, until=until_))
    assert found == (expected[:most] if most else expected)


@given(ROWS, st.integers(1, 3), CHANGES)
def test_what_stays_is_listed_once_and_in_order_whatever_changes(
    rows: dict[tuple[bytes, bytes], float], indexes: int, changes: Random
) -> None:
    """Others move, remove and add deadlines between any two steps; none that is a key's first by then."""
    stores, real = stored(rows, indexes, set())
    restless = [one for one in sorted(real) if int(one.member[1:]) % 3 == 0]

    def change() -> None:
        for one in changes.sample(restless, min(len(restless), changes.randrange(4))):
            number = int(one.key[1:]) % indexes
            store, index = stores[number % 2], NAMES.index_of(number)
            if changes.random() < 0.5:
                store.drop(one.key, one.member, index)
            else:
                first = math.ceil(store.sorted[index].get(one.key, 1))
                store.put(one.key, one.member, changes.randint(first, first + 20), index)

    for store in stores:
        store.change = change
    found = gathered(over(stores, indexes))
    assert found == sorted(set(found))
    quiet = real - set(restless)
    assert [one for one in found if one in quiet] == sorted(quiet)


@given(st.integers(0, 3 * FEW), st.integers(0, 2 * FEW), st.integers(1, 30), CHANGES)
def test_a_walk_meets_every_element_that_stays(spread: int, same: int, size: int, changes: Random) -> None:
    """Also among hundreds of the same score, while others come and go."""
    held = {b"s%03d" % number: float(changes.randint(1, 4)) for number in range(spread)}
    held |= {b"t%03d" % number: 2.0 for number in range(same)}
    held |= {b"u%03d" % number: -5.0 for number in range(5)}
    staying = {one: score for one, score in held.items() if score > 0 and int(one[1:]) % 2}
    leaving = [one for one in held if one not in staying]
    store, walk = Store(), Walk(b"z")
    met: list[tuple[float, bytes]] = []
    store.sorted[b"z"] = held
    while not walk.done:
        for one in changes.sample(leaving, min(len(leaving), changes.choice([0, 0, 1, 20]))):
            if held.pop(one, None) is None:
                held[one] = changes.choice([-1.0, 1.0, 2.0, 4.0])
        (reply,) = store.answer([walk.request(size)])
        met += walk.take(reply)
    assert met == sorted(set(met))
    assert {one: score for score, one in met}.items() >= staying.items()


def test_a_sorted_set_that_never_rests_is_given_up() -> None:
    walk = Walk(b"z")
    walk.request(1)
    walk.take([b"a", b"1"])

    def go_on() -> None:
        for _ in range(2 * MOST_ATTEMPTS):
            walk.request(1)
            walk.take([b"a", b"1"] * 2)

    with pytest.raises(RestlessError):
        go_on()


def test_the_first_ones_take_few_steps_and_little_memory() -> None:
    store = Store()
    for number in range(3000):
        store.put(b"k%d" % number, b"m", number + 1)
        store.sorted[NAMES.shadow(b"k%d" % number)][b"later"] = 1_000_000 + number
        store.members[b"k%d" % number].add(b"later")
    soonest = over([store, store], 1, most=20)
    soonest._indexes.clear()
    soonest.add_index(store, NAMES.index)
    found = gathered(soonest)
    assert [one.score for one in found] == list(range(1, 21))
    assert store.steps < 10
    # The index promises much: void deadlines that would pass soon.
    for number in range(3000):
        store.sorted[NAMES.shadow(b"k%d" % number)][b"m"] = -number - 1
    soonest = Soonest(NAMES.shadow, most=20)
    soonest.add_index(store, NAMES.index)
    largest = 0

    def change() -> None:
        nonlocal largest
        largest = max(largest, len(soonest._open))

    store.change = change
    assert [one.score for one in gathered(soonest)] == [1_000_000 + number for number in range(20)]
    assert largest <= 2 * KEYS + 40


def test_what_cannot_be_remembered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MOST_OPEN", 300)
    store = Store()
    for number in range(1000):
        store.put(b"k%d" % number, b"void", -1)
        store.put(b"k%d" % number, b"m", 1000)
    soonest = Soonest(NAMES.shadow)
    soonest.add_index(store, NAMES.index)
    with pytest.raises(TooManyError):
        gathered(soonest)


def test_something_else_in_the_place_of_an_index_is_said() -> None:
    class Spoilt(Store):
        def zrangebyscore(self, *words: Any) -> Any:
            return ResponseError("WRONGTYPE Operation against a key")

    soonest = Soonest(NAMES.shadow)
    soonest.add_index(Spoilt(), NAMES.index)
    with pytest.raises(SpoiltError):
        gathered(soonest)


@given(
    st.lists(st.sampled_from([b"a", b"b", b"*", b"?", b"[ab]", b"\\*", b"[^a]"]), max_size=5).map(b"".join),
    st.lists(st.sampled_from([b"a", b"b", b"*", b"?"]), max_size=4).map(b"".join),
)
def test_patterns_are_those_of_keys(pattern: bytes, key: bytes) -> None:
    from proxy.session.globs import matches

    assert matcher(pattern)(key) == matches(pattern, key)


# What is listed.

KINDS_OF_KEYS = {
    "set": ("SADD", "{}", "a", "b", "c"),
    "hash": ("HSET", "{}", "a", 1, "b", 2, "c", 3),
    "zset": ("ZADD", "{}", 1, "a", 2, "b", 3, "c"),
    "list": ("RPUSH", "{}", "a", "b", "c"),
}


def test_deadlines_of_all_types_are_listed_soonest_first(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client, beside = talk(proxy, 3), talk(upstream, 3)
    expected = []
    for place, (kind, words) in enumerate(KINDS_OF_KEYS.items()):
        client(*(str(word).format(kind) for word in words))
        for number, member in enumerate("abc"):
            assert client("PEXPIREMEMBERAT", kind, member, FAR + 10 * number - place) == 1
            expected.append((FAR + 10 * number - place, kind.encode(), member.encode()))
    at = f"{upstream.url}/3"
    assert listed(at) == sorted(expected)
    assert listed(at, "--next", "5") == sorted(expected)[:5]
    assert listed(at, "[hs]*", "--next", "0") == [row for row in sorted(expected) if row[1] in (b"hash", b"set")]
    beside("SADD", NAMES.owed, "note")  # of the proxy's own
    beside("ZADD", NAMES.shadow(NAMES.owed), FAR, "note")
    beside("ZADD", NAMES.index, FAR, NAMES.owed)
    assert listed(at) == sorted(expected)
    assert listed(at, "--key", "zset") == [row for row in sorted(expected) if row[1] == b"zset"]
    assert listed(at, "--key", "none") == listed(at, "none*") == listed(at, "--within", "1d") == []
    assert listed(upstream) == []
    for removed in ("SREM set a", "HDEL hash a", "ZREM zset a", "LREM list 0 a"):
        client(*removed.split())  # by its name
    beside("SREM", "set", "b")
    beside("DEL", "list")  # past the proxy
    assert listed(at) == [
        row for row in sorted(expected) if row[2] != b"a" and row[1:] != (b"set", b"b") and row[1] != b"list"
    ]


@pytest.mark.one_kind
def test_a_part_of_a_millisecond_is_rounded_up_and_old_ones_are_overdue(upstream: Server, talk: Connect) -> None:
    beside = talk(upstream)
    beside("SADD", "lone", "m", "n", "o")
    # (No proxy knows of these: nothing is covered.)
    for member, score in (("m", f"{FAR - 1}.5"), ("n", "1000"), ("o", str(1 << 53))):
        beside("ZADD", NAMES.shadow(b"lone"), score, member)
    rows = listed(upstream, "--key", "lone")
    assert rows == [(1000, b"lone", b"n"), (FAR, b"lone", b"m"), (1 << 53, b"lone", b"o")]
    status, said, _ = run("deadlines", "--key", "lone", "--upstream", upstream.url)
    assert status == 0
    assert re.fullmatch(
        r"deadline \(UTC\) +in +key +member\n"
        r"1970-01-01 00:00:01\.000 +overdue \d+ days +lone +n\n"
        r"2096-10-02 07:06:40\.000 +\d+ days +lone +m\n"
        r"9007199254740992 ms +\d+ days +lone +o\n",
        said,
    ), said  # fmt: skip


def test_nothing_is_written_and_no_reply_is_large(start_server: StartServer, talk: Connect) -> None:
    server = start_server(KIND)
    beside = talk(server)
    made(beside, keys=3000, members=2)
    beside("RPUSH", "list", *range(50_000))
    for number in range(300):
        beside("ZADD", NAMES.shadow(b"list"), FAR + number, 49_999 - number)
    beside("ZADD", NAMES.index, FAR, "list")
    server.command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "&*", "+@all", "-@write", "-@scripting")
    url = server.url.replace("//", "//reader:pw@")
    beside("CONFIG", "RESETSTAT")
    rows = listed(url, "--next", "0")
    assert len(rows) == 6000 + 300
    assert rows == sorted(rows)
    assert explained(url, "list", "7")[0] == 0
    stats = beside("INFO", "commandstats").decode()
    slow = {one: float(took) for one, took in re.findall(r"cmdstat_(\S+?):.*usec_per_call=([\d.]+)", stats)}
    assert slow.pop("lpos", 0) < 20_000, slow
    assert all(took < 1000 for took in slow.values()), slow


def made(beside: Talk, keys: int, members: int, *, same: bool = False) -> None:
    """Store deadlines as the proxy does."""
    script = """
    for i = 1, ARGV[1] do
      local key, first = 'made:' .. i, 1e15
      for m = 1, ARGV[2] do
        local at = ARGV[3] + (ARGV[4] == '1' and 0 or (i * 7919 + m * 104729) % 1000000007)
        redis.call('sadd', key, m)
        redis.call('zadd', KEYS[1] .. 'k:{' .. key .. '}', at, m)
        first = math.min(first, at)
      end
      redis.call('zadd', KEYS[1] .. 'index', string.format('%.17g', first), key)
    end"""
    beside("EVAL", script, 1, NAMES.prefix, keys, members, FAR, int(same))


@pytest.mark.measures
@pytest.mark.parametrize("same", [False, True])
def test_nobody_waits_while_100000_deadlines_are_read(
    same: bool, start_server: StartServer, talk: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step takes the server 20 ms of CPU, so no PING waits as long for it; nor does one, but where all wait."""
    server = start_server(KIND)
    made(talk(server), keys=100_000 if same else 2000, members=1 if same else 50, same=same)
    assert server.process is not None
    spent, step = Path(f"/proc/{server.process.pid}/schedstat"), reading.Server.ask_freely
    took: list[float] = []

    async def ask_freely(self: reading.Server, requests: Sequence[Words]) -> list[Any]:
        before = int(spent.read_text().split()[0])
        replies = await step(self, requests)
        took.append((int(spent.read_text().split()[0]) - before) / 1e6)
        return replies

    waits: list[float] = []
    over = threading.Event()

    def ask() -> None:
        """Measure from the sending of a request to its moment at the server; the clock is the same."""
        client = Talk(server.connect())
        while not over.is_set():
            sent = time.time()
            seconds, micros = client("TIME")
            waits.append(1000 * (int(seconds) + int(micros) / 1e6 - sent))
            time.sleep(0.001)
        client.raw.close()

    asking = threading.Thread(target=ask)
    wanted = ("deadlines", "--next", "2000" if same else "0", "--format", "csv", "--upstream", server.url)
    with monkeypatch.context() as patch:
        patch.setattr(reading.Server, "ask_freely", ask_freely)
        _, said, _ = run(*wanted)
    rows = [int(line.split(",")[0]) for line in said.splitlines()[1:]]
    assert len(rows) == (2000 if same else 100_000)
    assert rows == sorted(rows)
    assert len(took) >= len(rows) / ELEMENTS
    assert max(took) < 20, sorted(took)[-10:]
    asking.start()
    try:
        subprocess.run(
            [sys.executable, "-m", "proxy", *wanted[:2], "10000" if not same else "2000", *wanted[3:]],
            cwd=ROOT, env=proxy_environment(), capture_output=True, check=True, timeout=120,
        )  # fmt: skip
    finally:
        over.set()
        asking.join()
    assert len(waits) > 100
    assert statistics.quantiles(waits, n=100)[-1] < 20, sorted(waits)[-10:]


# How it is shown.

HOSTILE = (
    b"\x1b[31mred", b"\x1b]0;title\x07", b"\r\nline", b"\xff\xfe", b"\xc2\x9b31m", "\u202egnp".encode(), b"",
    b" blank ", b"=1+1", b"+1", b"-1", b"@sum", b"'quoted", b"a,b\"c", b"back\\slash", b"\\xff", "ключ".encode(),
    b"x" * 200, b"\x00", *AWKWARD,
)  # fmt: skip


@pytest.fixture
def hostile(upstream: Server, talk: Connect) -> set[tuple[int, bytes, bytes]]:
    beside, found = talk(upstream), set()
    for number, one in enumerate(dict.fromkeys(HOSTILE)):
        key = b"key" + one if number % 2 else one
        beside("SADD", key, one)
        beside("ZADD", NAMES.shadow(key), FAR + number, one)
        beside("ZADD", NAMES.index, FAR + number, key)
        found.add((FAR + number, key, one))
    return found


@pytest.mark.one_kind
def test_names_of_any_bytes_come_through(upstream: Server, hostile: set[tuple[int, bytes, bytes]]) -> None:
    assert set(listed(upstream, "--next", "0")) == hostile
    _, said, _ = run("deadlines", "--next", "0", "--format", "csv", "--upstream", upstream.url)
    assert said.startswith("\ufeffdeadline_ms,deadline,seconds_left,key,member,unsure\r\n")
    rows = list(csv.reader(io.StringIO(said.removeprefix("\ufeff"), newline="")))[1:]
    assert {(int(row[0]), unspelled(row[3]), unspelled(row[4])) for row in rows} == hostile
    for row in rows:
        assert row.pop() == ""
        assert all(cell.isprintable() and not cell.startswith(("=", "+", "-", "@")) for cell in row[3:])
        assert datetime.strptime(row[1], "%Y-%m-%d %H:%M:%S.%f").year == 2096  # noqa: DTZ007 - as spreadsheets read it


def unspelled(cell: str) -> bytes:
    """Read a name of a cell as docs/deadlines.md says."""
    text = cell.removeprefix("'")
    for parts in [re.split(r"(\\\\|\\n|\\r|\\t|\\x[0-9a-f]{2})", text)]:
        special = {"\\\\": b"\\", "\\n": b"\n", "\\r": b"\r", "\\t": b"\t"}
        return b"".join(
            special.get(part) or (bytes.fromhex(part[2:]) if part.startswith("\\x") else part.encode())
            for part in parts
        )
    raise AssertionError


@given(st.binary(), st.binary())
def test_two_names_are_never_spelled_alike(one: bytes, other: bytes) -> None:
    assert unspelled(spelled(one)) == one
    assert (spelled(one) == spelled(other)) == (one == other)


@pytest.mark.one_kind
@pytest.mark.parametrize("form", FORMATS)
def test_a_terminal_gets_nothing_to_obey(form: str, upstream: Server, hostile: set[tuple[int, bytes, bytes]]) -> None:
    status, drawn = in_terminal("deadlines", "--next", "0", "--format", form, "--upstream", upstream.url)
    assert status == 0
    assert len(harmless(drawn)) >= len(hostile)


@pytest.mark.one_kind
def test_a_terminal_gets_nothing_to_obey_of_one_member(upstream: Server, talk: Connect) -> None:
    key = member = HOSTILE[0]
    beside = talk(upstream)
    beside("SADD", key, member)
    for pattern, stream in ((b"*", b"\x1b[5m"), (b"[^\x07]*", b"plain")):
        want(beside, Rule(pattern, stream))
    status, drawn = in_terminal("explain", key, member, "--upstream", upstream.url)
    assert status == 0
    assert len(harmless(drawn)) == 10
    status, drawn = in_terminal("deadlines", "--upstream", "redis://127.0.0.1:1\x1b[31m")
    assert status == 2
    harmless(drawn)


def harmless(drawn: bytes) -> list[str]:
    """The lines that a terminal got, which are nothing but text."""
    text = drawn.decode().replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\ufeff", "")
    assert all(character.isprintable() or character == "\n" for character in text), text
    return text.splitlines()


def in_terminal(*arguments: str | bytes) -> tuple[int, bytes]:
    """Run it in a pseudo-terminal; return its status and all that was drawn."""
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "proxy", *arguments], cwd=ROOT, env=proxy_environment(), stdin=far, stdout=far,
        stderr=far, close_fds=True,
    )  # fmt: skip
    os.close(far)
    drawn = b""
    try:
        while select.select([near], [], [], 60)[0]:
            try:
                data = os.read(near, 1 << 16)
            except OSError:  # nobody has it open any more
                break
            drawn += data
        return process.wait(10), drawn
    finally:
        process.kill()
        process.wait()
        os.close(near)


@pytest.mark.one_kind
def test_a_long_search_shows_how_far_it_has_come(
    upstream: Server, talk: Connect, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    made(talk(upstream), keys=2000, members=1)
    for setting in ("_QUIET_SECONDS", "_OFTEN_SECONDS"):
        monkeypatch.setattr(looking, setting, 0.0)
    settings = load({"upstream": upstream.url}, None)
    near, far = pty.openpty()
    with os.fdopen(far, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert looking.list_deadlines(settings, looking.Wanted(pattern=b"nothing*")) == 0
        terminal.flush()
        drawn = ""
        while select.select([near], [], [], 0.1)[0]:
            drawn += os.read(near, 1 << 16).decode()
    os.close(near)
    assert re.match(r"\rlooking for deadlines.*\rlooked at [\d,]+ of 2,000 keys", drawn), drawn
    assert re.search(r"\r +\r$", drawn), drawn
    assert capsysbinary.readouterr().out == b"no deadlines\n"
    # Nobody who reads it elsewhere is to see that.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", nowhere)
        assert not looking._Progress(str)._wanted


def test_times_in_words() -> None:
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    spans = {0: "0 ms", 999: "999 ms", 1499: "1 s", 119_400: "119 s", 179_900: "3 min", 90 * minute: "90 min"}
    spans |= {2 * hour: "2 h", 47 * hour: "47 h", 48 * hour: "2 days", 400 * day: "400 days"}
    assert {ms: span(ms) for ms in spans} == spans
    assert (when(2000, 1000), when(1000, 2000)) == ("in 1 s", "overdue 1 s")
    assert date(1) == "1970-01-01 00:00:00.001"
    assert date(1 << 53) is None


@pytest.mark.one_kind
def test_whoever_reads_the_first_lines_only_ends_it_in_order(upstream: Server, talk: Connect) -> None:
    made(talk(upstream), keys=3000, members=1)
    line = f"{sys.executable} -m proxy deadlines --next 0 --upstream {upstream.url} | head -2"
    done = shell(f"set +o pipefail; {line}", ROOT)
    assert done.stdout.count("\n") == 2
    assert done.stderr == ""


# Why a member is there.

REMOVED = "Something removed it before its deadline, which is void now: if the field is added again, it stays."


def test_a_member_with_a_deadline_is_explained(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client, beside = talk(proxy), talk(upstream)
    client("HSET", "looked:7", "apple", 1, "pear", 2, "plum", 3, "fig", 4)
    client("EXPIREMEMBER", "looked:7", "apple", 180)
    client("EXPIREMEMBER", "looked:7", "plum", 180)
    client("EXPIREMEMBER", "looked:7", "fig", 180)
    status, rows, sentence = explained(upstream, "looked:7", "apple")
    assert status == 0
    assert rows["key"] == "there: a hash"
    assert rows["member"] == "there"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC, in 3 min", rows["deadline"])
    assert rows["set by"].startswith("EXPIREMEMBER ")
    prefix = rows["covered"].removeprefix("by the prefix ")
    assert "looked:".startswith(prefix)  # of many there come wider ones
    assert (rows["key's TTL"], rows["events"]) == ("none", "no rule")
    assert int(rows["proxies"]) >= 1
    assert re.fullmatch(r"It expires in 3 min \(.* UTC\): a proxy removes it then\.", sentence)
    status, rows, sentence = explained(upstream, "looked:7", "pear")
    assert (status, rows["deadline"], rows.get("set by")) == (0, "none", None)
    assert client("SEXPIRE", "looked:set", 180, "MEMBERS", 1, "fig") == [-2]
    client("SADD", "looked:set", "fig")
    assert client("SEXPIRE", "looked:set", 180, "MEMBERS", 1, "fig") == [1]
    assert explained(upstream, "looked:set", "fig")[1]["set by"].startswith("HEXPIRE or its like")
    assert sentence.startswith("It stays until something removes it: the field has no deadline")
    want(beside, Rule(b"looked:*", b"expired"))
    assert "An entry then goes to expired." in explained(upstream, "looked:7", "apple")[2]
    status, rows, sentence = explained(upstream, "looked:7", "none")
    assert (status, rows["member"], rows["events"]) == (1, "not there", "looked:* (stream expired)")
    assert "If it expired, the stream expired has an entry" in sentence
    # Removed by its name; what is void is shown until it is freed.
    client("HDEL", "looked:7", "apple")
    status, rows, sentence = explained(upstream, "looked:7", "apple")
    assert status == 1
    assert sentence == REMOVED
    assert "void" in rows["deadline"]
    beside("HSET", "looked:7", "apple", 5)
    status, rows, sentence = explained(upstream, "looked:7", "apple")
    assert status == 0
    assert "the deadline that is stored is void" in sentence
    beside("HDEL", "looked:7", "plum")
    status, rows, sentence = explained(upstream, "looked:7", "plum")
    assert status == 1
    assert sentence == REMOVED
    # The key's own TTL comes first.
    beside("EXPIRE", "looked:7", 60)
    assert re.match(
        r"The key expires as a whole in 60 s \(.*\), and the field with it, before its deadline",
        explained(upstream, "looked:7", "fig")[2],
    )
    status, rows, sentence = explained(upstream, "nothing", "m")
    assert (status, rows["key"]) == (1, "not there")
    assert sentence.startswith("There is no such key")
    beside("SET", "text", "t")
    status, rows, sentence = explained(upstream, "text", "m")
    assert (status, rows["key"]) == (1, "there: a string")


@pytest.mark.every_kind(redis=(8,), valkey=(9,))
def test_a_native_lifetime_is_explained(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client = talk(proxy)
    client("HSET", "cart:7", "apple", 1)
    client("EXPIREMEMBER", "cart:7", "apple", 5000)
    client("HPEXPIRE", "cart:7", 90_000, "FIELDS", 1, "apple")
    status, rows, sentence = explained(upstream, "cart:7", "apple")
    assert status == 0
    assert rows["field TTL"].endswith("in 90 s")
    assert re.match(r"The server itself removes the field in 90 s \(.*\), before its deadline\.", sentence)


def test_lifetimes_of_the_server_itself_are_told_of(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client = talk(proxy)
    client("HSET", "cart", "apple", 1)
    client("HEXPIRE", "cart", 100, "FIELDS", 1, "apple")
    client("SADD", "set", "m")
    is_native = client("TTL", "cart", "apple") == -1
    for only in (["--key", "cart"], ["cart"]):
        status, said, _ = run("deadlines", *only, "--upstream", upstream.url)
        assert (status, "HTTL cart FIELDS" in said, "no deadlines" in said) == (0, is_native, is_native)
    upstream.command("ACL", "SETUSER", "own", "on", ">pw", *rules("__expiremember__:"), "-hpttl")
    url = upstream.url.replace("//", "//own:pw@")
    assert ("HTTL cart" in run("deadlines", "cart", "--upstream", url)[1]) is is_native
    for others in (["c*"], ["set"], ["none"], ["cart", "--format", "csv"], ["cart", "--format", "json"]):
        assert "HTTL" not in run("deadlines", *others, "--upstream", upstream.url)[1], others


@pytest.mark.one_kind
def test_what_is_overdue_is_explained(start_server: StartServer, talk: Connect) -> None:
    server = start_server(KIND)
    beside = talk(server)
    made(beside, keys=1, members=1)
    assert explained(server, "made:1", "1")[2].endswith(
        "no proxy is connected to the server, so it stays until one is."
    )
    beside("ZADD", NAMES.shadow(b"made:1"), 1000, 1)
    status, rows, sentence = explained(server, "made:1", "1")
    assert (status, rows["proxies"], rows["covered"]) == (0, "0", "by the deadlines that it has: no prefix is listed")
    assert re.fullmatch(
        r"Its deadline passed \d+ days ago, and it stays: no proxy is connected to the server to remove it\.", sentence
    )


@pytest.mark.one_kind
def test_elements_of_long_lists_are_found_from_both_ends(start_server: StartServer, talk: Connect) -> None:
    server = start_server(KIND)
    beside = talk(server)
    beside("EVAL", "for i = 1, 500 do redis.call('rpush', KEYS[1], unpack(cjson.decode(ARGV[1]))) end", 1, "long",
           json.dumps(["x"] * 1000))  # fmt: skip
    beside("LPUSH", "long", "first")
    beside("RPUSH", "long", "last")
    assert beside("LLEN", "long") > COMPARED
    for element, expected in (("first", 0), ("last", 0), ("none", 2)):
        status, rows, sentence = explained(server, "long", element)
        assert status == expected
    assert rows["member"] == "not found; the list has more than 400,000 elements"
    assert sentence == "The list is too long to say whether the element is there."
    for number, element in enumerate(("first", "last", "none")):
        beside("ZADD", NAMES.shadow(b"long"), FAR + number, element)
    status, said, _ = run("deadlines", "--key", "long", "--upstream", server.url)
    assert [line.split(maxsplit=5)[-1].split() for line in said.splitlines()[1:]] == [
        ["first"], ["last", "unsure"], ["none", "unsure"],
    ]  # fmt: skip
    _, said, _ = run("deadlines", "--key", "long", "--format", "json", "--upstream", server.url)
    assert [one.get("unsure", False) for one in json.loads(said)] == [False, True, True]


def test_every_case_has_one_sentence() -> None:
    for kind in (b"none", b"string", b"set", b"hash", b"zset", b"list"):
        for there in (True, False, None):
            for score in (None, 10.0, 99.5, 500.0, -99.25):
                for key_left in (None, 5.0):
                    for proxies in (None, 0, 2):
                        facts = Facts(100.0, kind, there, score, key_left=key_left, proxies=proxies)
                        said = outlook(facts)
                        assert re.fullmatch(r"[A-Z][^\n]+\.", said), (facts, said)


# Where the server is, and what stands in the way.


@pytest.mark.one_kind
def test_the_address_of_a_proxy_means_the_server_behind_it(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client = talk(proxy, 3)
    client("SADD", "cart:1", "a")
    client("PEXPIREMEMBERAT", "cart:1", "a", FAR)
    url = f"redis://127.0.0.1:{port_of(proxy)}/3"
    assert listed(url) == [(FAR, b"cart:1", b"a")]
    status, rows, _ = explained(url, "cart:1", "a")
    assert status == 0
    assert rows["server"] == f"{upstream.url} (behind {url[:-2]}), database 3"


@pytest.mark.one_kind
def test_the_login_and_tls_are_those_of_the_proxy(
    files: Files, start_server: StartServer, talk: Connect, tmp_path: Path
) -> None:
    server, port = tls_server(start_server, files, files.server)
    made(talk(server), keys=1, members=1)
    server.command("CONFIG", "SET", "requirepass", "the-right-one")
    (tmp_path / "password").write_text("the-right-one\n")
    at = ["--upstream", f"rediss://127.0.0.1:{port}", *flags(upstream_password_file=tmp_path / "password")]
    trusting = [*at, *flags(tls_ca_file=files.authority.file)]
    assert run("deadlines", *trusting)[:2][0] == 0
    assert run("explain", "made:1", "1", *trusting)[0] == 0
    status, _, complained = run("deadlines", *at)
    assert status == 2
    assert "certificate" in complained
    (tmp_path / "password").write_text("the-wrong-one\n")
    for arguments in (["deadlines"], ["explain", "made:1", "1"]):
        status, _, complained = run(*arguments, *trusting)
        assert status == 2
        assert "check the password in" in complained
        assert "the-wrong-one" not in complained


@pytest.mark.one_kind
def test_no_connection_is_left_open_though_the_server_is_slow_to_end_it(
    files: Files, start_server: StartServer, tmp_path: Path
) -> None:
    """By TLS the server has a last word, for which nobody waits."""
    server, port = tls_server(start_server, files, files.server)
    server.command("CONFIG", "SET", "requirepass", "the-right-one")

    def late(chunk: bytes) -> bytes:
        time.sleep(0.05)
        return chunk

    with Relay(("127.0.0.1", port)) as relay:
        relay.answers = late
        for password, trusted, status in (
            ("the-right-one", {}, 2),
            ("the-wrong-one", {"tls_ca_file": files.authority.file}, 2),
            ("the-right-one", {"tls_ca_file": files.authority.file}, 0),
        ):
            (tmp_path / "password").write_text(f"{password}\n")
            options = flags(upstream_password_file=tmp_path / "password", **trusted)
            assert run("deadlines", "--upstream", relay.url.replace("redis", "rediss"), *options)[0] == status
            gc.collect()  # what is left open is warned of, and that fails


def test_nobody_listens() -> None:
    for arguments in (["deadlines"], ["explain", "k", "m"]):
        status, said, complained = run(*arguments, "--upstream", f"redis://127.0.0.1:{free_port()}")
        assert (status, said) == (2, "")
        assert re.fullmatch(
            rf"expiremember-proxy: {arguments[0]}: redis://127.0.0.1:\d+: .+ the server runs\n", complained
        ), complained


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["deadlines", "--within", "5"], "90s"), (["deadlines", "--within", "1w"], "90s"),
        (["deadlines", "a", "--key", "b"], "not both"), (["deadlines", "--next", "-1"], "next"),
        (["deadlines", "--format", "xml"], "format"), (["deadlines", "x" * 2000], "1024"),
        (["explain", "k"], "MEMBER"), (["explain"], "KEY"), (["deadlines", "a", "b"], "unexpected"),
    ],
)  # fmt: skip
def test_bad_usage_ends_with_status_2(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from proxy import cli

    monkeypatch.setattr(sys, "argv", ["expiremember-proxy", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


@pytest.mark.one_kind
def test_the_rights_of_the_proxys_own_user_are_enough(upstream: Server, talk: Connect) -> None:
    made(talk(upstream), keys=1, members=1)
    upstream.command("ACL", "SETUSER", "own", "on", ">pw", "resetchannels", *rules("__expiremember__:"))
    url = upstream.url.replace("//", "//own:pw@")
    assert listed(url) == [(FAR + 112648, b"made:1", b"1")]
    assert explained(url, "made:1", "1")[0] == 0


@pytest.mark.one_kind
def test_each_right_of_the_page_is_needed(upstream: Server, talk: Connect) -> None:
    beside = talk(upstream)
    for words in KINDS_OF_KEYS.values():
        kind = next(kind for kind, others in KINDS_OF_KEYS.items() if others is words)
        beside(*(str(word).format(f"app:{kind}") for word in words))
        beside("ZADD", NAMES.shadow(f"app:{kind}".encode()), FAR, "a")
        beside("ZADD", NAMES.index, FAR, f"app:{kind}")
    (block,) = [block for block in page("docs/deadlines.md").blocks if "%R~" in block.text]
    granted = block.text.split()
    url = upstream.url.replace("//", "//looker:pw@")

    def tried(rights: list[str]) -> tuple[set[int], str]:
        assert upstream.command("ACL", "SETUSER", "looker", "reset", "on", ">pw", *rights) == b"+OK\r\n"
        ended = [run("deadlines", "app:*", "--upstream", url)]
        ended.append(run("explain", "app:set", "a", "--upstream", url))
        said = "".join(complained for _, _, complained in ended) + ended[1][1]
        return {status for status, _, _ in ended}, said

    assert tried(granted)[0] == {0}
    for right in granted:
        if right == "-@all":
            continue
        statuses, said = tried([one for one in granted if one != right])
        if right == "+pubsub|numsub":
            assert (statuses, "proxies    not known" in said) == ({0}, True), said
            continue
        assert 2 in statuses, right
        if right.startswith("+"):
            assert f"it needs {right}; docs/deadlines.md" in said, (right, said)
        else:
            assert "may not read the key" in said, (right, said)
        assert "Traceback" not in said
        assert all(line.startswith("expiremember-proxy: ") for line in said.splitlines() if "looker" in line), said


def test_the_commands_of_the_page_do_what_it_says(folder: Path, server: Server, start: Start) -> None:
    proxy = start()
    block, *_ = page("docs/deadlines.md").blocks
    done = shell(at(block.text, port_of(proxy), server.port), folder)
    assert done.returncode == 0, done.stderr
    _, shown, *_ = page("docs/deadlines.md").blocks
    said = re.sub(r"^(?:[0-9]\n)+", "", done.stdout)
    assert alike(said) == alike(at(shown.text, port_of(proxy), server.port))


def alike(text: str) -> list[str]:
    """The lines of a text, without what is different each time."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "DATE", text)
    text = re.sub(r"(proxies +)\d+", r"\g<1>N", text)
    return [re.sub(" {2,}", "  ", line) for line in text.splitlines() if line]


# A cluster, and behind Sentinels.


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(KIND, stack, primaries=3, replicas=0)


def test_the_deadlines_of_all_primaries_are_merged(cluster: Cluster) -> None:
    cluster.until_whole().flush()
    expected = []
    with ExitStack() as stack:
        clients = {node.identity: stack.enter_context(node.through()) for node in cluster.nodes}
        for number in range(120):
            key = b"k%d" % number if number >= len(AWKWARD) else AWKWARD[number]
            client = clients[cluster.owner_of(key).identity]
            assert client.command("SADD", key, "m", "n") == b":2\r\n"
            for member, far in ((b"m", (number * 37) % 120), (b"n", 1000 + number)):
                assert client.command("PEXPIREMEMBERAT", key, member, FAR + far) == b":1\r\n"
                expected.append((FAR + far, key, member))
    first = cluster.nodes[0]
    for url in (f"redis://127.0.0.1:{first.announced_port}", cluster.nodes[1].url):
        assert listed(url, "--next", "0") == sorted(expected)
    assert listed(first.url, "--next", "30") == sorted(expected)[:30]
    status, drawn = in_terminal("deadlines", "--next", "30", "--upstream", first.url)
    assert (status, len(harmless(drawn.rpartition(b" \r")[2]))) == (0, 31)
    assert listed(first.url, "k1?", "--next", "0") == [row for row in sorted(expected) if re.fullmatch(rb"k1.", row[1])]
    for _, key, member in expected[:4]:
        assert listed(first.url, "--key", key)[0][1] == key
        status, rows, sentence = explained(first.url, key, member)
        assert status == 0
        assert rows["proxies"] == "1"
        assert rows["covered"] == "by the deadlines that it has"
        assert sentence.startswith("It expires in ")


def test_a_slot_that_is_on_its_way_is_told_of(cluster: Cluster) -> None:
    cluster.until_whole().flush()
    source, target = cluster.primaries[:2]
    key = next(f"k{number}" for number in range(1000) if cluster.owner_of(f"k{number}") is source)
    for one in (key, f"{{{key}}}b"):
        assert source.through_command("SADD", one, "m") == b":1\r\n"
        assert source.through_command("PEXPIREMEMBERAT", one, "m", FAR) == b":1\r\n"
    cluster.begin_move(slot_of(key), source, target)
    cluster.move([key.encode()], source, target)
    try:
        status, _, complained = run("deadlines", "--upstream", source.url)
        assert status == 2
        assert "slots of the cluster are being moved" in complained
        assert complained.count("\n") == 1
        status, _, complained = run("explain", key, "m", "--upstream", source.url)
        assert status == 2
        assert "slots of the cluster are being moved" in complained
    finally:
        cluster.move_keys(slot_of(key), source, target)
        cluster.end_move(slot_of(key), source, target)
    until(lambda: len(listed(source.url)) == 2, what="both deadlines at the other node")


def test_a_primary_that_is_down_is_named(cluster: Cluster) -> None:
    cluster.until_whole()
    node = cluster.nodes[2]
    node.kill_proxy()
    try:
        status, _, complained = run("deadlines", "--upstream", cluster.nodes[0].url)
        assert status == 2
        assert f"redis://127.0.0.1:{node.announced_port}: connection refused" in complained
        by_owner = {cluster.owner_of(key).identity: key for key in (f"down{number}" for number in range(100))}
        for one in cluster.nodes:
            key, url = by_owner[one.identity], cluster.nodes[0].url
            lists, _, _ = run("deadlines", "--upstream", url, "--key", key)
            explains, _, complained = run("explain", "--upstream", url, key, "m")
            assert (lists, explains) == ((2, 2) if one is node else (0, 1)), complained
    finally:
        node.start_proxy()


def test_primaries_are_read_from_what_a_node_tells() -> None:
    reply = b"".join((
        b"a 10.0.0.1:1@2,one.example myself,master - 0 0 1 connected 0-99 [7->-b]\n",
        b"b 10.0.0.2:1@2,two.example,shard-id=x master - 0 0 1 connected 100-199 5\n",
        b"c 10.0.0.3:1@2 slave b 0 0 1 connected\n",
        b"d 10.0.0.4:1@2 master,fail - 0 0 1 disconnected\n",
    ))  # fmt: skip
    found = primaries(reply)
    assert [(node.name, str(node.address), len(node.slots)) for node in found] == [
        (b"a", "10.0.0.1:1", 100), (b"b", "10.0.0.2:1", 101),
    ]  # fmt: skip
    assert [str(node.address) for node in primaries(reply, by_name=True)] == ["one.example:1", "two.example:1"]


def test_sentinels_tell_where_the_server_is(start_proxy: StartProxy) -> None:
    with ExitStack() as stack:
        watched = Watched(KIND, stack, replicas=1)
        watched.until_whole()
        proxy = start_proxy(None, "--upstream", watched.url)
        with proxy.connect() as client:
            client.command("SADD", "cart:1", "a")
            assert client.command("PEXPIREMEMBERAT", "cart:1", "a", FAR) == b":1\r\n"
        assert listed(watched.url) == [(FAR, b"cart:1", b"a")]
        status, drawn = in_terminal("explain", "cart:1", "a", "--upstream", watched.url)
        assert status == 0
        assert harmless(drawn)[-1].startswith("It expires in ")
    status, _, complained = run("deadlines", "--upstream", f"redis+sentinel://127.0.0.1:{free_port()}/mymaster")
    assert status == 2
    assert "no Sentinel names the primary" in complained
