"""The words of other servers for lifetimes of members: what a newer server answers itself, the proxy answers in front
of an older one; and what is the same for every type and every word."""

from __future__ import annotations

import itertools
import random
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from proxy.commands.dialects import LATEST, MOST_ELEMENTS, WORDS, Deed
from tests.conftest import Start, StartProxy, installed
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import BINARIES, Proxy, Server, until

PAIRS = [("redis-8.10", "redis-7.0"), ("valkey-9.1", "valkey-8.0")]
"""A server that has the words itself, and an older one of the same house behind the proxy."""

FILL = {
    "hash": "HSET {k} a 1 b 2 c 3",
    "set": "SADD {k} a b c",
    "zset": "ZADD {k} 1 a 2 b 3 c",
    "list": "RPUSH {k} a b c",
}
LETTER = {"hash": "H", "set": "S", "zset": "Z", "list": "L"}
SHOWS = {"hash": "HKEYS k", "set": "SMEMBERS k", "zset": "ZRANGE k 0 -1", "list": "LRANGE k 0 -1"}


class Two:
    """Clients of both, whose replies have to agree.

    Args:
        newer: of the server that has the words itself.
        older: of the proxy in front of the other.
    """

    def __init__(self, newer: Raw, older: Raw) -> None:
        self.newer = newer
        self.older = older

    def say(self, *lines: str) -> list[bytes]:
        """Send lines together to both, and return the replies of the newer one."""
        return self.send([line.split() for line in lines])

    def say_all(self, lines: list[str]) -> None:
        """Send lines to both, many at a time."""
        for begin in range(0, len(lines), 200):
            self.say(*lines[begin : begin + 200])

    def send(self, requests: list[list[str]]) -> list[bytes]:
        data = b"".join(request(*words) for words in requests)
        self.newer.send(data)
        self.older.send(data)
        theirs, ours = self.newer.replies(len(requests)), self.older.replies(len(requests))
        for words, one, other in zip(requests, theirs, ours, strict=True):
            assert agree(words, one, other), f"{words}: {one!r} there, {other!r} here"
        return theirs

    def wait_past(self, milliseconds: int) -> None:
        """Wait until a moment has passed at both."""
        for client in (self.newer, self.older):
            until(lambda client=client: clock(client) > milliseconds)  # type: ignore[misc]

    def wait_until_reclaimed(self, key: str) -> None:
        """Wait until what has expired in a hash counts no more, for writes, where a server has that only then."""
        until(lambda: self.newer.command("HLEN", key) == self.older.command("HLEN", key))


def clock(client: Raw) -> int:
    seconds, micros = parse(client.command("TIME"))
    return int(seconds) * 1000 + int(micros) // 1000


def agree(words: list[str], one: bytes, other: bytes) -> bool:
    """Whether two replies are the same, times apart that count from a moment that is not the same for both."""
    if one == other:
        return True
    if words[0].upper() == "HGETALL":
        return pairs(one) == pairs(other)
    first, second = one.split(b"\r\n"), other.split(b"\r\n")
    return len(first) == len(second) and all(itertools.starmap(_near, zip(first, second, strict=True)))


def pairs(reply: bytes) -> object:
    value = parse(reply)
    return sorted(zip(value[::2], value[1::2], strict=True)) if isinstance(value, list) else value


def _near(one: bytes, other: bytes) -> bool:
    if one == other:
        return True
    if not (one.startswith(b":") and other.startswith(b":")):
        return False
    first, second = int(one[1:]), int(other[1:])
    # Seconds, or milliseconds.
    return min(first, second) > 100 and abs(first - second) <= (5 if max(first, second) < 100_000 else 5_000)


@pytest.fixture(scope="module")
def houses() -> Iterator[dict[str, tuple[Server, Proxy]]]:
    """The newer server of each house, and the proxy in front of the older one."""
    found = {}
    with ExitStack() as stack:
        for newer, older in PAIRS:
            if not {newer, older} <= BINARIES.keys():
                continue
            servers = [Server(kind) for kind in (newer, older)]
            for server in servers:
                stack.callback(server.close)
            proxy = Proxy("--upstream", servers[1].url)
            stack.callback(proxy.close)
            found[newer] = servers[0], proxy
        yield found


@pytest.fixture(params=[(newer, protocol) for newer, _ in PAIRS for protocol in (2, 3)], ids=lambda p: f"{p[0]}-{p[1]}")
def two(request: pytest.FixtureRequest, houses: dict[str, tuple[Server, Proxy]]) -> Iterator[Two]:
    newer, protocol = request.param
    server, proxy = houses[installed(newer)]
    with server.connect() as straight, proxy.connect() as through:
        two = Two(straight, through)
        for client in (straight, through):
            client.command("HELLO", protocol)
            client.command("FLUSHALL")
        two.say("SET s 1", "HSET h a 1 b 2 c 3")
        yield two


SETTING = ("HEXPIRE", "HPEXPIRE", "HEXPIREAT", "HPEXPIREAT")
READING = ("HTTL", "HPTTL", "HEXPIRETIME", "HPEXPIRETIME")


def test_errors_and_their_order(two: Two) -> None:
    ends = (
        "FIELDS 1 a", "FIELDS 1", "FIELDS", "FIELDS 0 a", "FIELDS -1 a", "FIELDS x a", "FIELDS 2 a", "FIELDS 1 a b",
        "FIELDS 01 a", "FIELDS 1.0 a", "FIELDS 3000000000 a", "FIELDS 99999999999999999999 a", "MEMBERS 1 a", "a b c",
        "FIELDS 1 a FIELDS 1 b", "FIELDS 1 a FIELDS", "FIELDS FIELDS 1 a", "FIELDS 9223372036854775807 a",
        "fields 2 a zz", "FIELDS 2 a a", "FIELDS 2 a NX", "FIELDS 1 a NX", "FIELDS 1 a FOO", "FIELDS 1 a NX XX", "",
    )  # fmt: skip
    fronts = ("", "NX", "XX", "nx nx", "NX XX", "XX GT", "gt LT", "XX LT XX", "FOO", "NX FOO", "GT NX NX NX")
    # A time that has not passed, whatever the word.
    times = ("9999999999", "x", "-1", "99999999999999999999", "9223372036854775808", "010", "+1", "1.5", "")
    lines: list[str] = []
    for key, word in itertools.product(("h", "s", "none"), SETTING):
        lines += [f"{word} {key} {number} {end}" for number, end in itertools.product(times, ends)]
        for front, end in itertools.product(fronts, ends):
            lines += f"{word} {key} 9999999999 {front} {end}", f"HPERSIST {key} FIELDS 1 a"
    for key, word, end in itertools.product(("h", "s", "none"), (*READING, "HPERSIST"), ends):
        lines += f"{word} {key} {end}", f"{word} {key} FOO {end}"
    two.say_all(lines)
    for word in (*SETTING, *READING, "HPERSIST"):
        two.say(word, word.lower(), f"{word} h", f"{word.title()} h 1 FIELDS 1 a")
    for odd in ("o\r\np", "o\0p", "\0", "é", "o\r\n", "\no\n\r\n", "\r\n", "o\n\0p"):
        two.send([["HEXPIRE", "h", "10", odd, "FIELDS", "1", "a"], ["HSETEX", "h", odd, "FIELDS", "1", "a", "1"]])


def test_errors_of_those_that_write_or_read(two: Two) -> None:
    times = ("", "EX 9999999", "PX 1 EX 1", "EX x", "EX -1", "EX", "EX 99999999999999999999", "PX 9223372036854775808",
             "KEEPTTL", "KEEPTTL KEEPTTL", "PERSIST", "PERSIST EX 5", "EX 5 KEEPTTL", "EX 5 EX 6", "exat 4000000000",
             "PXAT 4000000000000", "FOO", "EX 5 FOO")  # fmt: skip
    conditions = ("", "FNX", "FXX", "fnx FNX", "FXX FNX", "NX", "XX", "NX XX", "FNX XX", "FXX KEEPTTL")
    ends = ("FIELDS 1 a 1", "FIELDS 1 a", "FIELDS 1", "FIELDS", "", "FIELDS 0 a 1", "FIELDS x a 1", "FIELDS -1 a 1",
            "FIELDS 2 a 1", "FIELDS 2 a 1 b 2", "fields 2 a 1 a 2", "FIELDS 1 a 1 FNX", "FIELDS 1 a 1 EX 9999999",
            "FIELDS 1 a 1 EX", "FIELDS 1 a 1 FIELDS 1 b 2", "a 1 b 2", "FIELDS 3000000000 a 1", "FIELDS 01 a 1",
            "FIELDS 2 a b", "FIELDS 1 a 1 KEEPTTL", "FIELDS 1 a PERSIST", "FIELDS 1 a EX 9999999",
            "FIELDS 2 a 1 KEEPTTL")  # fmt: skip
    lines: list[str] = []
    for key, end in itertools.product(("h", "s", "none"), ends):
        for option in (*times, *conditions):
            lines += f"HSETEX {key} {option} {end}", f"HGETEX {key} {option} {end}", "DEL none"
        lines += f"HGETDEL {key} {end}", f"HGETDEL {key} FOO {end}", "HSET h a 1"
    two.say_all(lines)


def test_fields_that_are_written_read_or_taken_with_lifetimes(two: Two) -> None:
    lines: list[str] = []
    for before, condition, term in itertools.product(
        ("DEL h", "HSET h a 1", "HPEXPIREAT h 4000000000001 FIELDS 2 a b"),
        ("", "FNX", "FXX"),
        ("", "PXAT 4000000000123", "EXAT 4000000000", "PX 0", "EX 0", "PXAT 1", "KEEPTTL", "PX 1000000", "EX 1000"),
    ):
        for fields in ("1 a 5", "2 a 5 zz 6", "3 a 5 b 6 a 7"):
            lines += "DEL h", "HSET h a 1 b 2 c 3", before, f"HSETEX h {condition} {term} FIELDS {fields}"
            lines += "HPEXPIRETIME h FIELDS 4 a b c zz", "HGETALL h", "EXISTS h", "HLEN h"
    for before, term in itertools.product(
        ("DEL h", "HSET h a 1", "HPEXPIREAT h 4000000000001 FIELDS 2 a b"),
        ("", "PXAT 4000000000123", "EXAT 4000000000", "PX 0", "EX 0", "PXAT 1", "PERSIST", "PX 1000000", "EX 1000"),
    ):
        for fields in ("1 a", "2 a zz", "3 a b a", "4 a a b c"):
            for line in (f"HGETEX h {term} FIELDS {fields}", f"HGETDEL h FIELDS {fields}"):
                lines += "DEL h", "HSET h a 1 b 2 c 3", before, "MULTI", line, "EXEC"
                lines += "HPEXPIRETIME h FIELDS 4 a b c zz", "HGETALL h", "EXISTS h", "HLEN h"
    two.say_all(lines)


def test_times_to_their_bounds(two: Two) -> None:
    is_valkey = b"valkey" in two.newer.command("HELLO")
    for number in (0, 1, LATEST, LATEST - 1, LATEST // 1000, 1 << 45, 1 << 50, 1900000000000, 1900000000001,
                   1900000000499, 1900000000500, 1900000000999, 9223372036854775, 9223372036854776):  # fmt: skip
        for word in ("HEXPIREAT", "HPEXPIREAT"):
            if is_valkey and number * (1000 if word == "HEXPIREAT" else 1) > 1 << 52:
                continue  # later than the proxy can store (docs/semantics.md)
            two.say("HSET h a 1", f"{word} h {number} FIELDS 2 a zz", "HEXPIRETIME h FIELDS 1 a", "HGETALL h",
                    "HPEXPIRETIME h FIELDS 2 a b")  # fmt: skip
    for number in (0, LATEST, LATEST // 1000 + 1, 1 << 45, *(() if is_valkey else (1 << 53,))):
        two.say("HSET h a 1", f"HPEXPIRE h {number} FIELDS 2 a zz", "HPEXPIRETIME h FIELDS 1 a")
    for number in (0, 100, 1 << 33):
        two.say("HSET h a 1", f"HEXPIRE h {number} FIELDS 2 a zz", "HEXPIRETIME h FIELDS 1 a", "HTTL h FIELDS 1 a")
    # How a rest is rounded, away from where a reply depends on the moment.
    for rest in (300, 700):
        two.say("HSET h a 1", f"HPEXPIRE h {10_000 + rest} FIELDS 1 a")
        one, other = two.newer.command("HTTL", "h", "FIELDS", 1, "a"), two.older.command("HTTL", "h", "FIELDS", 1, "a")
        assert one[:4] == other[:4] == b"*1\r\n"


def test_conditions(two: Two) -> None:
    for condition, before, now in itertools.product(
        ("", "NX", "XX", "GT", "LT"), ("", "4000000000000", "4000000000001"), ("4000000000000", "0", "1")
    ):
        two.say("DEL h", "HSET h a 1 b 2")
        if before:
            two.say(f"HPEXPIREAT h {before} FIELDS 1 a")
        two.say(
            f"HPEXPIREAT h {now} {condition} FIELDS 4 a b a zz", "HPEXPIRETIME h FIELDS 2 a b", "HGETALL h", "EXISTS h"
        )


def test_what_writes_over_a_field_drops_its_deadline(two: Two) -> None:
    for line in ("HSET h a 5", "HMSET h a 5", "HSET h b 7 a 6", "HSETNX h a 8", "HINCRBY h a 1", "HINCRBYFLOAT h a 1",
                 "HDEL h a", "DEL h", "SET h 5", "HSET h a", "LPUSH h a", "HGET h a", "RENAME h g",
                 "COPY h g"):  # fmt: skip
        for queued in (False, True):
            two.say("DEL h g", "HSET h a 1 b 2", "HPEXPIREAT h 4000000000123 FIELDS 2 a b")
            two.say("MULTI", line, "EXEC") if queued else two.say(line)
            for key in ("h", "g"):
                two.say(f"HPEXPIRETIME {key} FIELDS 3 a b zz", f"HGETALL {key}", f"HPERSIST {key} FIELDS 3 a a b")


def test_near_deadlines(two: Two) -> None:
    for ahead in (1, 5, 20):
        two.say("DEL h", "HSET h a 1 b 2 c 3")
        moment = max(map(clock, (two.newer, two.older))) + ahead
        two.send([["HPEXPIREAT", "h", str(moment), "FIELDS", "2", "a", "b"]]) if ahead > 10 else (
            [client.command("HPEXPIREAT", "h", moment, "FIELDS", 2, "a", "b") for client in (two.newer, two.older)]
        )
        two.wait_past(moment)
        two.say("HPTTL h FIELDS 3 a b c", "HGETALL h")
        two.wait_until_reclaimed("h")
        two.say("HEXPIRE h 100 FIELDS 2 a c", "HPERSIST h FIELDS 2 b c")
        two.say("HSET h a 1", "HTTL h FIELDS 1 a")
        moment = clock(two.older) + 30
        two.say(f"HPEXPIREAT h {moment} FIELDS 2 a c")
        two.wait_past(moment)
        two.say("HTTL h FIELDS 2 a c", "HGETALL h", "HMGET h a b c")
        two.wait_until_reclaimed("h")
        two.say("EXISTS h", "HPERSIST h FIELDS 1 a")


WRONG_TIMES = ("x", "", "-1", "1.5", "+1", "010", "99999999999999999999", "9223372036854775808")
WRONG_ENDS = ("FIELDS 2 a", "FIELDS 1 a b", "FIELDS 0 a", "FIELDS x a", "FIELDS 1", "FIELDS", "a b c", "MEMBERS 1 a",
              "FIELDS -1 a", "FIELDS 1 a FOO", "FIELDS 1 a NX", "FIELDS 1 a 1", "FIELDS 1 a FIELDS 1 b",
              "FIELDS 3000000000 a", "FIELDS 2 a 1 b", "")  # fmt: skip


def wrong(chosen: random.Random, key: str, *, valkey: bool) -> str:
    """Make a request in which something is wrong, or may be."""
    # A Valkey has no bound for times; the proxy has one (docs/semantics.md).
    times = ("9999999999", *WRONG_TIMES, *(() if valkey else (str(LATEST + 1), "9223372036854775807")))
    condition, end = chosen.choice(("", "", "NX", "XX GT", "NX XX", "GT LT", "FOO")), chosen.choice(WRONG_ENDS)
    term = f"{chosen.choice(('EX', 'PX', 'EXAT', 'PXAT', 'KEEPTTL', 'PERSIST', 'FNX', 'EX 9999999 PX'))}"
    return chosen.choice((
        f"{chosen.choice(SETTING)} {key} {chosen.choice(times)} {condition} {end}",
        f"{chosen.choice(SETTING)} {key} {chosen.choice(times)} FIELDS 1 a",
        f"{chosen.choice((*READING, 'HPERSIST', 'HGETDEL'))} {key} {end}",
        f"HSETEX {key} {term} {chosen.choice(times)} {chosen.choice(WRONG_ENDS)}",
        f"HSETEX {key} {chosen.choice(('NX', 'XX', 'NX FNX', 'NX XX', 'FXX XX'))} FIELDS 1 a 5",
        f"HGETEX {key} {term} {chosen.choice(times)} {end}", f"HGETEX {key} {term} FIELDS 1 a",
    ))  # fmt: skip


def program(chosen: random.Random, length: int, *, valkey: bool) -> Iterator[str]:
    """Make requests about a few fields of a few keys, most of them as they should be."""
    for _ in range(length):
        key, count = chosen.choice(("h", "h", "g", "s")), chosen.randint(1, 3)
        fields = " ".join(chosen.choices("abcdz", k=count))
        counted = f"FIELDS {count + (chosen.random() < 0.03)} {fields}"
        roll = chosen.random()
        if roll < 0.08:
            yield wrong(chosen, key, valkey=valkey)
        elif roll < 0.35:
            word = chosen.choice(SETTING)
            unit = 1 if word.startswith("HP") else 1000
            times = [2_000_000_000_000, 2_100_000_000_000, 0, 1] if word.endswith("AT") else [200_000, 90_000_000, 0]
            # Two moments from now on may be one, or not.
            conditions = ("", "", "NX", "XX", "GT", "LT") if word.endswith("AT") else ("", "", "NX", "XX")
            condition = chosen.choice(conditions)
            yield f"{word} {key} {chosen.choice(times) // unit} {condition} {counted}"
        elif roll < 0.55:
            yield f"{chosen.choice(READING)} {key} {counted}"
        elif roll < 0.62:
            yield f"HPERSIST {key} {counted}"
        elif roll < 0.8:
            term = chosen.choice(("", "EX 2000", "PX 90000000", "PXAT 2000000000001", "EXAT 1", "PX 0", "KEEPTTL"))
            yield chosen.choice((
                f"HSETEX {key} {chosen.choice(('', '', 'FNX', 'FXX'))} {term} FIELDS 2 {chosen.choice('abcd')} 1 c 2",
                f"HGETEX {key} {term.replace('KEEPTTL', 'PERSIST')} {counted}", f"HGETDEL {key} {counted}",
            ))  # fmt: skip
        else:
            field = chosen.choice("abcd")
            yield chosen.choice((
                f"HSET {key} {field} 1", f"HSET {key} a 1 b 2 c 3 d 4", f"HMSET {key} {field} 5",
                f"HDEL {key} {fields}", f"HINCRBY {key} {field} 2", f"HINCRBYFLOAT {key} {field} 0.5",
                f"HSETNX {key} {field} 3", f"HSET {key} {field} 4 {field}",
                f"DEL {key}", f"HMGET {key} a b c d", f"HLEN {key}", "RENAME h g", "COPY g h", "COPY h g REPLACE",
                "RENAMENX g h", "SET s 1", f"HEXISTS {key} {field}", f"TYPE {key}",
                f"PERSIST {key}", f"EXPIRE {key} 100000",
            ))  # fmt: skip


NEAR_MS = 25


def let_pass(two: Two, chosen: random.Random) -> int:
    """Set deadlines that pass soon, and look at what is left; return how many requests that took.

    Until a server has reclaimed what has expired it still counts it for some commands: the next wait for that. A
    machine that is too busy to tell which server had which moment begins anew.
    """
    key, fields = chosen.choice("hg"), chosen.sample("abcd", k=2)
    moment = max(map(clock, (two.newer, two.older))) + NEAR_MS
    named = f"FIELDS 2 {' '.join(fields)}"
    lines = [
        chosen.choice((
            f"HPEXPIREAT {key} {moment} {chosen.choice(('', 'NX', 'XX', 'LT', 'GT'))} {named}",
            f"HPEXPIRE {key} {NEAR_MS} {chosen.choice(('', 'NX', 'XX'))} {named}",
            f"HSETEX {key} {chosen.choice((f'PXAT {moment}', f'PX {NEAR_MS}'))} FIELDS 2 {fields[0]} 7 {fields[1]} 8",
            f"HGETEX {key} {chosen.choice((f'PXAT {moment}', f'PX {NEAR_MS}'))} {named}",
        )),
        chosen.choice((f"HSET {key} {fields[0]} 9", f"HPERSIST {key} FIELDS 1 {fields[1]}", f"HMGET {key} a b c d")),
    ]  # fmt: skip
    clients = two.newer, two.older
    replies = [[client.command(*line.split()) for line in lines] for client in clients]
    if max(map(clock, clients)) >= moment:
        for client in clients:
            client.command("DEL", "h", "g")
        return len(lines)
    assert replies[0] == replies[1], lines
    two.wait_past(moment + NEAR_MS)
    looks = [f"HPTTL {key} FIELDS 4 a b c d", f"HMGET {key} a b c d", f"HEXPIRETIME {key} {named}"]
    two.say("MULTI", *looks, "EXEC") if chosen.random() < 0.5 else two.say(*looks, f"HGETALL {key}")
    two.wait_until_reclaimed(key)
    return len(lines) + len(looks)


def run(two: Two, seed: int, length: int) -> int:
    """Run a random program; return how many requests that were."""
    chosen = random.Random(seed)
    lines = list(program(chosen, length, valkey=b"valkey" in two.newer.command("HELLO")))
    while lines:
        size = chosen.choice((1, 1, 1, 5, 20))
        some, lines = lines[:size], lines[size:]
        two.say("MULTI", *some, "EXEC") if size == 5 else two.say(*some)
        if chosen.random() < 0.02:
            length += let_pass(two, chosen)
    return length


def test_random_programs(two: Two) -> None:
    assert sum(run(two, seed, 300) for seed in range(4)) >= 1200


@pytest.mark.long
def test_long_random_programs(two: Two) -> None:
    """In both protocols 100,000 requests for each house."""
    assert sum(run(two, 1000 + seed, 500) for seed in range(100)) >= 50_000


# The same for every type.


@pytest.fixture(params=FILL)
def type_(request: pytest.FixtureRequest, upstream: Server) -> str:
    """A type for which the proxy has words; a server may have those for hashes itself."""
    own = request.param == "hash" and parse(upstream.command("COMMAND", "INFO", "HTTL"))[0] is not None
    return "set" if own else str(request.param)


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Raw]:
    with proxy.connect() as client:
        yield client


def say(client: Raw, line: str) -> object:
    return parse(client.command(*line.split()))


def test_each_word_for_each_type(client: Raw, type_: str) -> None:
    letter, noun = LETTER[type_], "FIELDS" if type_ == "hash" else "MEMBERS"
    client.command(*FILL[type_].format(k="k").split())
    assert say(client, f"{letter}EXPIRE k 1000 {noun} 3 a b zz") == [1, 1, -2]
    assert say(client, f"{letter}EXPIRE none 1000 {noun} 2 a b") == [-2, -2]
    left = say(client, f"{letter}TTL k {noun} 3 a c zz")
    assert isinstance(left, list)
    assert 990 < left[0] <= 1000
    assert left[1:] == [-1, -2]
    assert say(client, f"{letter}PEXPIREAT k 4000000000001 XX {noun} 2 a c") == [1, 0]
    assert say(client, f"{letter}PEXPIRETIME k {noun} 2 a c") == [4000000000001, -1]
    assert say(client, f"{letter}EXPIRETIME k {noun} 1 a") in ([4000000001], [4000000000])  # Valkey's fields
    assert say(client, f"{letter}PERSIST k {noun} 4 a c zz a") == [1, -1, -2, -1]
    assert say(client, f"{letter}EXPIRE k 0 {noun} 2 a a") == [2, -2]
    assert say(client, SHOWS[type_]) in ([b"b", b"c"], [b"c", b"b"])
    assert say(client, f"{letter}PEXPIREAT k 1 {noun} 2 b c") == [2, 2]
    assert say(client, "EXISTS k") == 0
    client.command("SET", "k", 1)
    for word in (f"{letter}EXPIRE k 1", f"{letter}TTL k", f"{letter}PERSIST k"):
        assert str(say(client, f"{word} {noun} 1 a")).startswith("WRONGTYPE")


def test_a_deadline_is_the_same_whatever_word_set_it(client: Raw, type_: str) -> None:
    letter, noun = LETTER[type_], "FIELDS" if type_ == "hash" else "MEMBERS"
    client.command(*FILL[type_].format(k="k").split())
    assert say(client, "PEXPIREMEMBERAT k a 4000000000001") == 1
    assert say(client, f"{letter}PEXPIRETIME k {noun} 1 a") == [4000000000001]
    assert say(client, f"{letter}PEXPIREAT k 4000000000001 GT {noun} 1 a") == [0]
    assert say(client, f"{letter}PEXPIREAT k 4000000000002 GT {noun} 1 a") == [1]
    assert say(client, "PEXPIREMEMBERAT k a 4000000000002 GT") == 0
    assert say(client, f"{letter}PEXPIREAT k 4000000000000 LT {noun} 1 a") == [1]
    assert say(client, "PEXPIREMEMBERAT k a 4000000000000 LT") == 0
    assert say(client, f"{letter}EXPIRE k 1000 {noun} 1 b") == [1]
    assert say(client, "TTL k b") in (999, 1000)
    assert say(client, "PERSIST k b") == 1
    assert say(client, f"{letter}TTL k {noun} 1 b") == [-1]


def test_members_expire_on_time_and_are_told_of(client: Raw, type_: str, upstream: Server) -> None:
    letter, noun = LETTER[type_], "FIELDS" if type_ == "hash" else "MEMBERS"
    client.command(*FILL[type_].format(k="k").split())
    moment = clock(client) + 400
    assert say(client, f"{letter}PEXPIREAT k {moment} {noun} 2 a b") == [1, 1]
    while clock(client) < moment:
        time.sleep(0.001)
    assert say(client, SHOWS[type_]) == [b"c"]
    assert say(client, f"{letter}TTL k {noun} 2 a c") == [-2, -1]
    until(lambda: upstream.command("EXISTS", "__expiremember__:k:{k}") == b":0\r\n")


def test_only_the_deadlines_of_a_dialect_end_when_a_member_is_written_over(client: Raw, type_: str) -> None:
    letter, noun = LETTER[type_], "FIELDS" if type_ == "hash" else "MEMBERS"
    over = {
        "hash": ["HSET k a 5", "HMSET k b 2 a 5"],
        "zset": ["ZADD k 5 a", "ZADD k XX CH 7 b 6 a"],
        "set": [],
        "list": [],
    }
    keep = {"hash": ["HSETNX k a 5", "HINCRBY k a 1"], "zset": ["ZADD k NX 5 a", "ZINCRBY k 1 a"], "set": ["SADD k a"],
            "list": ["LSET k 0 a"]}  # fmt: skip
    client.command(*FILL[type_].format(k="k").split())
    for way, line in itertools.product(("alone", "as one call", "queued as one"), (*over[type_], *keep[type_])):
        for set_, stays in (
            (f"{letter}EXPIRE k 1000 {noun} 1 a", line in keep[type_]),
            ("EXPIREMEMBER k a 1000", True),
        ):
            assert say(client, set_) in (1, [1])
            said = request(*line.split()) * (1 if way == "alone" else 3)
            around = (request("MULTI"), request("EXEC")) if way == "queued as one" else (b"", b"")
            client.send(around[0] + said + around[1])
            client.replies({"alone": 1, "as one call": 3, "queued as one": 5}[way])
            assert (say(client, f"{letter}TTL k {noun} 1 a") != [-1]) is stays, (line, set_, way)
            say(client, f"{letter}PERSIST k {noun} 1 a")


@pytest.mark.one_kind
def test_a_first_deadline_is_announced_to_other_proxies(upstream: Server, start_proxy: StartProxy) -> None:
    one, other = start_proxy(upstream), start_proxy(upstream)
    with one.connect() as here, other.connect() as there:
        for number, letter in enumerate("HSZL"):
            key, noun = f"new{letter}:{number}", "FIELDS" if letter == "H" else "MEMBERS"
            type_ = next(name for name, its in LETTER.items() if its == letter)
            there.command(*FILL[type_].format(k=key).split())
            assert say(here, f"{letter}EXPIRE {key} 1000 {noun} 2 a b") == [1, 1]
            moment = clock(here) + 500
            assert say(here, f"{letter}PEXPIREAT {key} {moment} {noun} 2 a b") == [1, 1]
            # Removed and added again through the other: it begins a new life.
            for line in {"H": ["HDEL {k} a", "HSET {k} a 1"], "S": ["SREM {k} a", "SADD {k} a"],
                         "Z": ["ZREM {k} a", "ZADD {k} 1 a"],
                         "L": ["LREM {k} 0 a", "RPUSH {k} a"]}[letter]:  # fmt: skip
                there.command(*line.format(k=key).split())
            until(lambda client=there, moment=moment: clock(client) > moment)  # type: ignore[misc]
            assert say(there, f"{letter}TTL {key} {noun} 3 a b c") == [-1, -2, -1]


SET_NONE = (
    "HGETEX {k} FIELDS 1 a", "HGETEX {k} PERSIST FIELDS 1 a", "HGETDEL {k} FIELDS 1 zz",
    "HSETEX {k} FIELDS 1 a 1", "HSETEX {k} KEEPTTL FIELDS 1 a 1", "HGETEX {k} EX x FIELDS 1 a",
    "HEXPIRE {k} x FIELDS 1 a", "SADDEX s{k} MEMBERS 1 a", "SADDEX s{k} KEEPTTL MEMBERS 1 a",
)  # fmt: skip
"""Requests of words that set deadlines, but set none; keys of sets have names of their own."""


@pytest.mark.one_kind
def test_a_request_that_sets_no_deadline_covers_nothing(upstream: Server, proxy: Proxy) -> None:
    with proxy.connect() as client:
        assert say(client, "HSETEX timed EX 1000 FIELDS 1 a 1") == 1
        before = upstream.command("ZRANGE", "__expiremember__:covered", 0, -1)
        for number, line in enumerate(SET_NONE):
            words = line.format(k=f"none{number}:").split()
            alone = client.command(*words)
            client.send(request("MULTI") + request("HSET", words[1][1:] + "h", "b", 1) + request(*words))
            client.replies(3)
            assert client.command("EXEC") == b"*2\r\n:1\r\n" + alone
        # Nor is what stands in front of it in a transaction judged as if it did.
        scripts = replaced(client)
        client.send(
            request("MULTI") + request("HSET", "plain:1", "a", 1) + request("HGETEX", "plain:1", "FIELDS", 1, "a")
        )
        client.replies(3)
        assert parse(client.command("EXEC")) == [1, [b"1"]]
        assert replaced(client) == scripts + 1
        assert upstream.command("ZRANGE", "__expiremember__:covered", 0, -1) == before
        assert say(client, "HSETEX last:1 KEEPTTL EX 10 FIELDS 1 a 1 b") != 1
        for name in ("k" * 70_000, "timed"):
            assert parse(client.command("HSETEX", name, "FIELDS", 1, "a", 2)) == 1
            assert parse(client.command("HGETEX", name, "PERSIST", "FIELDS", 2, "a", "b")) == [b"2", None]
        refused = client.command("HGETEX", "k" * 70_000, "EX", 10, "FIELDS", 1, "a")
        assert b"may have a name of" in refused
        # What sets one is looked for in the same request behind others of a transaction.
        client.send(request("MULTI") + request("HGETEX", "fresh:1", "FIELDS", 1, "a"))
        client.send(request("HSETEX", "fresh:1", "FIELDS", 1, "a", 1, "EX", 1000) + request("HSET", "fresh:1", "a", 2))
        client.send(request("HSETEX", "fresh:1", "KEEPTTL", "FIELDS", 1, "b", 1) + request("EXEC"))
        assert parse(client.replies(6)[-1]) == [[None], 1, 0, 1]
        assert say(client, "HTTL fresh:1 FIELDS 2 a b") == [-1, -1]
        assert upstream.command("ZRANGE", "__expiremember__:covered", 0, -1) != before


def check_only_due_members(client: Raw) -> None:
    """A key of another type that has nothing but due members is none, for one member and for several."""
    for place, words in enumerate(("HEXPIRE {} 100 FIELDS 1 f", "HEXPIRE {} 100 FIELDS 2 f g")):
        key, moment = f"due{place}", clock(client) + 300
        client.command("SADD", key, "a", "b")
        for member in "ab":
            assert say(client, f"PEXPIREMEMBERAT {key} {member} {moment}") == 1
        assert str(say(client, words.format(key))).startswith("WRONGTYPE")
        while clock(client) < moment:
            time.sleep(0.001)
        assert say(client, words.format(key)) == [-2] * (place + 1)


@pytest.mark.one_kind
def test_a_key_of_another_type_with_only_due_members(server: Server, start_proxy: StartProxy) -> None:
    with start_proxy(server, "--no-sweep").connect() as client:
        check_only_due_members(client)


def check_words(client: Raw) -> None:
    """What breaks of the scripts change, in front of a server that lacks all of the words."""
    client.command("SADD", "k", "a", "b", "c")
    assert say(client, "SPEXPIREAT k 4000000000001 MEMBERS 2 a b") == [1, 1]
    assert say(client, "SPEXPIREAT k 4000000000001 GT MEMBERS 2 a c") == [0, 0]
    assert say(client, "SPEXPIREAT k 4000000000000 NX MEMBERS 2 a c") == [0, 1]
    assert say(client, "SPEXPIRETIME k MEMBERS 4 a b c zz") == [4000000000001, 4000000000001, 4000000000000, -2]
    assert say(client, "PEXPIREMEMBERTIME k a") == 4000000000001
    assert say(client, "SPERSIST k MEMBERS 2 a a") == [1, -1]
    assert say(client, "STTL k MEMBERS 1 a") == [-1]
    assert say(client, "EXPIREMEMBERSCAN k 0") == [b"0", [b"c", b"4000000000000", b"b", b"4000000000001"]]
    assert say(client, "SEXPIRE k 0 MEMBERS 2 a a") == [2, -2]
    for count in (1, 20):  # alone, and as one call
        assert say(client, "HSETEX h PXAT 4000000000001 FIELDS 2 a 1 b 2") == 1
        client.send(request("HSET", "h", "a", 5) * count)
        client.replies(count)
        assert say(client, "HPEXPIRETIME h FIELDS 2 a b") == [-1, 4000000000001]
    assert say(client, "HSETEX h KEEPTTL FIELDS 1 b 3") == 1
    assert say(client, "HPEXPIRETIME h FIELDS 1 b") == [4000000000001]
    assert say(client, "HSETEX h FNX FIELDS 2 b 3 c 4") == 0
    assert say(client, "HSETEX h FIELDS 1 b 3") == 1
    assert say(client, "HGETEX h PXAT 4000000000002 FIELDS 2 b zz") == [b"3", None]
    assert say(client, "HPEXPIRETIME h FIELDS 1 b") == [4000000000002]
    assert say(client, "HGETDEL h FIELDS 3 a b b") == [b"5", b"3", None]
    assert say(client, "EXISTS h") == 0


@pytest.mark.one_kind
def test_all_words_in_short(proxy: Proxy) -> None:
    with proxy.connect() as client:
        check_words(client)


def check_the_index(client: Raw, straight: Raw, seed: int) -> None:
    """Whatever deadlines words change, the index has the earliest one of each key."""
    chosen = random.Random(seed)
    for kind in "SHZL":
        key, noun = f"index:{kind}", "FIELDS" if kind == "H" else "MEMBERS"
        for step in range(150):
            some = [chosen.choice("abcde") for _ in range(chosen.choice((1, 1, 2, 3)))]
            when = f"{4_000_000_000_000 + chosen.randrange(6)}" if chosen.random() < 0.95 else "0"
            condition = chosen.choice(("", "", "", "NX", "XX", "GT", "LT"))
            if step % 10 == 0:
                for member in "abcdef":
                    say(client, FILL_ONE[kind].format(key=key, member=member))
            say(client, f"{kind}PEXPIREAT {key} {when} {condition} {noun} {len(some)} {' '.join(some)}")
            if chosen.random() < 0.2:
                say(client, f"{kind}PERSIST {key} {noun} {len(some)} {' '.join(some)}")
            shadow = say(straight, f"ZRANGE __expiremember__:k:{{{key}}} 0 -1 WITHSCORES")
            assert isinstance(shadow, list)
            index = say(straight, f"ZSCORE __expiremember__:index {key}")
            found = None if index is None else float(index)  # type: ignore[arg-type]
            assert found == min((abs(float(score)) for score in shadow[1::2]), default=None), (kind, step)


FILL_ONE = {
    "S": "SADD {key} {member}", "H": "HSETNX {key} {member} 1", "Z": "ZADD {key} NX 1 {member}",
    "L": "RPUSH {key} {member}",
}  # fmt: skip


@pytest.mark.one_kind
def test_the_index_has_the_earliest_deadline(upstream: Server, proxy: Proxy) -> None:
    with proxy.connect() as client, upstream.connect() as straight:
        check_the_index(client, straight, 1)


@pytest.mark.one_kind
def test_in_a_transaction(proxy: Proxy) -> None:
    with proxy.connect() as client:
        lines = ["MULTI", "SADD k a b c", "SREM k a", "SADD k a", "SEXPIRE k 100 MEMBERS 2 a zz", "STTL k MEMBERS 1 b",
                 "SREM k b", "SADD k b", "SPERSIST k MEMBERS 2 a b", "SEXPIRE k x MEMBERS 1 a", "EXEC"]  # fmt: skip
        client.send(b"".join(request(*line.split()) for line in lines))
        replies = client.replies(len(lines))
        assert replies[1:-1] == [b"+QUEUED\r\n"] * 9
        *values, error = parse(replies[-1])
        assert values == [3, 1, 1, [1, -2], [-1], 1, 1, [1, -1]]
        assert str(error) == "ERR value is not an integer or out of range"
        client.command("MULTI")
        assert client.command("SEXPIRE", "k", 1).startswith(b"-ERR wrong number of arguments for 'sexpire'")
        assert client.command("EXEC").startswith(b"-EXECABORT")


@pytest.mark.one_kind
def test_bounds_and_long_requests(proxy: Proxy) -> None:
    names = [f"m{number}" for number in range(1234)]
    with proxy.connect() as client:
        client.command("SADD", "k", *names)
        assert parse(client.command("SEXPIRE", "k", 100, "MEMBERS", 1236, *names, "zz", "m7")) == [1] * 1234 + [-2, 1]
        assert set(parse(client.command("STTL", "k", "MEMBERS", 1234, *names))) <= {99, 100}
        assert parse(client.command("SPERSIST", "k", "MEMBERS", 1234, *names)) == [1] * 1234
        assert parse(client.command("SEXPIRE", "k", 0, "MEMBERS", 1234, *names)) == [2] * 1234
        client.command("RPUSH", "l", *names)
        many = names[: MOST_ELEMENTS + 1]
        assert client.command("LEXPIRE", "l", 0, "MEMBERS", len(many), *many).startswith(b"-ERR expiremember-proxy")
        assert client.command("EXISTS", "k") == b":0\r\n"


def replaced(client: Raw) -> int:
    """Count the requests that scripts have stood in for."""
    found = re.search(rb"requests_rewritten_total:(\S+)", client.command("INFO", "expiremember"))
    assert found is not None
    return sum(int(number) for number in re.findall(rb"=(\d+)", found[1]))


@pytest.mark.every_version
def test_a_server_that_has_a_word_answers_itself(upstream: Server, proxy: Proxy) -> None:
    known: list[list[str | bytes | int]] = []
    lacked: list[list[str | bytes | int]] = []
    words = [word for word in WORDS.values() if word.noun and word.deed in (Deed.SET, Deed.READ, Deed.DROP)]
    with upstream.connect() as straight, proxy.connect() as through:
        rows = parse(straight.command("COMMAND", "INFO", *(word.name for word in words)))
        for word, row in zip(words, rows, strict=True):
            given = [1] if word.deed is Deed.SET else []
            (lacked if row is None else known).append([word.name, "never:covered", *given, word.noun, 1, "m"])
        before = replaced(through)
        for line in known:
            assert straight.command(*line) == through.command(*line) == b"*1\r\n:-2\r\n"
        assert replaced(through) == before
        for line in lacked:
            assert through.command(*line) == b"*1\r\n:-2\r\n"
        assert replaced(through) == before + len(lacked)


@pytest.mark.one_kind
@pytest.mark.parametrize("newer", ["redis-8.0", "valkey-9.1"])
def test_a_server_that_has_some_words_for_a_type_answers_all(newer: str, start_proxy: StartProxy) -> None:
    """As Redis 7.4: whatever the proxy kept beside, the server's own words would not know."""
    names = ("HSETEX", "HGETEX", "HGETDEL", "HPEXPIREAT")
    hidden = [word for name in names for word in ("--rename-command", name, "")]
    server = Server(installed(newer), *hidden)
    try:
        with start_proxy(server).connect() as client:
            assert client.command("HSETEX", "h", "EX", 1000, "FIELDS", 1, "a", 1).startswith(b"-ERR unknown command")
            client.command("HSET", "h", "a", 1)
            assert client.command("HEXPIRE", "h", 1000, "FIELDS", 1, "a") == b"*1\r\n:1\r\n"
            assert client.command("HGETEX", "h", "PERSIST", "FIELDS", 1, "a").startswith(b"-ERR unknown command")
            # Nor is it needed for what was set before an upgrade.
            client.command("HSET", "k", "a", 1, "b", 1)
            client.command("EXPIREMEMBER", "k", "b", 1000)
            server.command("ZADD", "__expiremember__:k:{k}", "4000000000000.5", "a")
            assert client.command("HEXPIRE", "k", 1000, "FIELDS", 1, "a") == b"*1\r\n:1\r\n"
            client.command("SADD", "s", "a")
            assert client.command("SEXPIRE", "s", 1000, "MEMBERS", 1, "a") == b"*1\r\n:1\r\n"
    finally:
        server.close()


def test_reserved_names_are_refused(proxy: Proxy) -> None:
    with proxy.connect() as client:
        for line in ("SEXPIRE {} 1 MEMBERS 1 a", "HTTL {} FIELDS 1 a", "ZPERSIST {} MEMBERS 1 a"):
            assert b"are reserved" in client.command(*line.format("__expiremember__:k:{k}").split())
        # A member may have any name.
        assert parse(client.command("STTL", "k", "MEMBERS", 1, "__expiremember__:k:{k}")) == [-2]


# Dragonfly's words, and the proxy's own.


def test_fieldexpire_and_fieldttl(client: Raw, type_: str) -> None:
    client.command(*FILL[type_].format(k="k").split())
    if type_ in ("hash", "set"):
        assert say(client, "FIELDEXPIRE k 1000 a b zz") == [1, 1, -2]
        assert say(client, "FIELDTTL k a") in (999, 1000)
        assert say(client, "FIELDTTL k c") == -1
        assert say(client, "FIELDTTL k zz") == -3
        assert say(client, "FIELDEXPIRE k 0 a") == [1]
        assert say(client, "FIELDTTL k a") == -3
    else:
        for line in ("FIELDEXPIRE k 1000 a", "FIELDTTL k a"):
            assert str(say(client, line)).startswith("WRONGTYPE")
    assert say(client, "FIELDEXPIRE none 1000 a b") == [-2, -2]
    assert say(client, "FIELDTTL none a") == -2
    for number in ("-1", "x", "4294967296", "1.5"):
        assert client.command("FIELDEXPIRE", "k", number, "a") == b"-ERR value is not an integer or out of range\r\n"
    for line in ("FIELDEXPIRE k 1", "FIELDTTL k", "FIELDTTL k a b"):
        assert f"wrong number of arguments for '{line.split()[0].lower()}'" in str(say(client, line))


def test_expiremembertime(client: Raw, type_: str) -> None:
    client.command(*FILL[type_].format(k="k").split())
    for moment, seconds in ((4000000000499, 4000000000), (4000000000500, 4000000001)):
        assert say(client, f"PEXPIREMEMBERAT k a {moment}") == 1
        assert say(client, "PEXPIREMEMBERTIME k a") == moment
        assert say(client, "EXPIREMEMBERTIME k a") == seconds
    assert say(client, "EXPIREMEMBERTIME k b") == -1
    assert say(client, "EXPIREMEMBERTIME k zz") == say(client, "PEXPIREMEMBERTIME none a") == -2
    client.command("SET", "k", 1)
    assert say(client, "EXPIREMEMBERTIME none a") == -2
    assert str(say(client, "EXPIREMEMBERTIME k a")) == "ERR object type is unsupported"


def test_expirememberscan(client: Raw, type_: str) -> None:
    client.command(*FILL[type_].format(k="k").split())
    letter, noun = LETTER[type_], "FIELDS" if type_ == "hash" else "MEMBERS"
    assert say(client, "EXPIREMEMBERSCAN k 0") == say(client, "EXPIREMEMBERSCAN none 0") == [b"0", []]
    assert say(client, "PEXPIREMEMBERAT k a 4000000000001") == 1
    assert say(client, f"{letter}PEXPIREAT k 4000000000002 {noun} 1 b") == [1]
    assert say(client, "EXPIREMEMBERSCAN k 0") == [b"0", [b"a", b"4000000000001", b"b", b"4000000000002"]]
    assert say(client, "EXPIREMEMBERSCAN k 0 match b* COUNT 5") == [b"0", [b"b", b"4000000000002"]]
    client.command(*{"hash": "HDEL k a", "set": "SREM k a", "zset": "ZREM k a", "list": "LREM k 0 a"}[type_].split())
    assert say(client, "EXPIREMEMBERSCAN k 0") == [b"0", [b"b", b"4000000000002"]]
    for end, error in (("x", "ERR invalid cursor"), ("-1", "ERR invalid cursor"), ("0 COUNT 0", "ERR syntax error"),
                       ("0 COUNT", "ERR syntax error"), ("0 NO x", "ERR syntax error"),
                       ("0 COUNT x", "ERR value is not an integer or out of range")):  # fmt: skip
        assert str(say(client, f"EXPIREMEMBERSCAN k {end}")) == error
    assert "wrong number of arguments" in str(say(client, "EXPIREMEMBERSCAN k"))
    client.command("SET", "k", 1)
    assert str(say(client, "EXPIREMEMBERSCAN k 0")) == "ERR object type is unsupported"


@pytest.mark.one_kind
def test_all_of_many_deadlines_are_listed(proxy: Proxy) -> None:
    names = [b"m%d" % number for number in range(1500)]
    with proxy.connect() as client:
        client.command("SADD", "k", *names)
        assert parse(client.command("SPEXPIREAT", "k", 4000000000001, "MEMBERS", 1500, *names)) == [1] * 1500
        cursor, found = b"0", []
        while True:
            cursor, some = parse(client.command("EXPIREMEMBERSCAN", "k", cursor, "COUNT", 100))
            found += some[::2]
            assert set(some[1::2]) <= {b"4000000000001"}  # none at times: as with SCAN, what is left can be nothing
            if cursor == b"0":
                break
        assert sorted(found) == sorted(names)


@pytest.mark.parametrize(("length", "deadlines"), [(100_000, 2_000), (150_000, 1_000), (150_000, 100)])
def test_a_scan_of_a_long_list_reads_it_once(server: Server, start: Start, length: int, deadlines: int) -> None:
    """For a COUNT of many, and one of few. Of a longer one few members come, even where ZSCAN gives all deadlines."""
    names = [b"%d" % number for number in range(length)]
    with start().connect() as client, server.connect() as beside:
        for first in range(0, length, 50_000):
            client.command("RPUSH", "l", *names[first : first + 50_000])
        entries = (word for name in names[-deadlines:] for word in (b"4000000000000", name))
        assert client.command("EXPIREMEMBERAT", "l", names[-1], 4000000000) == b":1\r\n"
        beside.command("ZADD", b"__expiremember__:k:{l}", *entries)
        client.command("RPOP", "l")
        for count in (10_000, 5):
            found: set[bytes] = set()
            cursor, calls = b"0", 0
            while calls == 0 or (cursor != b"0" and calls < 40):
                beside.command("CONFIG", "RESETSTAT")
                cursor, some = parse(client.command("EXPIREMEMBERSCAN", "l", cursor, "COUNT", count))
                found.update(some[::2])
                text = beside.command("INFO", "commandstats")
                pages, searches = (
                    int(hit[1]) if (hit := re.search(rb"cmdstat_%b:calls=(\d+)" % name, text)) else 0
                    for name in (b"lrange", b"lpos")
                )
                assert pages * 1_000 <= length + 2_000
                assert searches <= 24
                assert (pages <= 1) if length > 100_000 else (searches == 0 or count == 5)
                calls += 1
            assert found <= set(names[-deadlines:-1])
            if cursor == b"0":
                assert found == set(names[-deadlines:-1])
            if length > 100_000:
                assert 4 <= len(found) / calls <= 25


def test_saddex_of_redis(proxy: Proxy) -> None:
    with proxy.connect() as client:
        assert say(client, "SADDEX k MEMBERS 1 a") == 1
        assert say(client, "SADDEX k MNX PXAT 4000000000001 MEMBERS 2 a b") == 0
        assert say(client, "SADDEX k MXX PXAT 4000000000001 MEMBERS 2 a b") == 0
        assert say(client, "SCARD k") == 1
        assert say(client, "SPEXPIRETIME k MEMBERS 1 a") == [-1]
        assert say(client, "SADDEX k MXX PXAT 4000000000001 MEMBERS 1 a") == 1
        assert say(client, "SADDEX k KEEPTTL MEMBERS 2 a b") == 1
        assert say(client, "SADD k a") == 0
        assert say(client, "SPEXPIRETIME k MEMBERS 2 a b") == [4000000000001, -1]
        assert say(client, "SADDEX k MEMBERS 1 a EXAT 4000000000") == 1
        assert say(client, "SPEXPIRETIME k MEMBERS 2 a b") == [4000000000000, -1]
        assert say(client, "SADDEX k MEMBERS 1 a") == 1
        assert say(client, "SPEXPIRETIME k MEMBERS 2 a b") == [-1, -1]
        assert say(client, "SADDEX k PX 0 MEMBERS 3 a b c") == 1
        assert say(client, "EXISTS k") == 0
        only_one = "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified"
        for line, error in (
            ("MEMBERS 2 a", "ERR wrong number of arguments"), ("FOO MEMBERS 1 a", "ERR unknown argument: FOO"),
            ("EX x MEMBERS 1 a", "ERR value is not an integer or out of range"),
            ("MNX MXX MEMBERS 1 a", "ERR Only one of MXX or MNX arguments can be specified"),
            ("EX 1 KEEPTTL MEMBERS 1 a", only_one),
        ):  # fmt: skip
            assert str(say(client, f"SADDEX k {line}")) == error
        client.command("SET", "s", 1)
        assert str(say(client, "SADDEX s MEMBERS 1 a")).startswith("WRONGTYPE")


def test_saddex_of_dragonfly(proxy: Proxy) -> None:
    with proxy.connect() as client:
        assert say(client, "SADDEX k 1000 a b a") == 2
        assert say(client, "FIELDTTL k a") in (999, 1000)
        assert say(client, "SADDEX k 2000 a c") == 1
        assert say(client, "FIELDTTL k a") in (1999, 2000)
        assert say(client, "SADDEX k KEEPTTL 3000 a MEMBERS") == 1
        assert say(client, "FIELDTTL k a") in (1999, 2000)
        assert say(client, "FIELDTTL k MEMBERS") in (2999, 3000)
        for number in ("0", "-1", "4294967296"):
            reply = client.command("SADDEX", "k", number, "a")
            assert reply == b"-ERR value is not an integer or out of range\r\n"
        assert "wrong number of arguments for 'saddex'" in str(say(client, "SADDEX k 5"))
        # What went away and comes back begins anew.
        assert say(client, "SREM k a") == 1
        assert say(client, "SADDEX k MNX KEEPTTL MEMBERS 1 a") == 1
        assert say(client, "FIELDTTL k a") == -1


def check_own_words(client: Raw, *, has: bool) -> None:
    """What a server has itself goes to it as it came, also in a transaction; `has`: whether it has HEXPIRE."""
    before = replaced(client)
    lines = ["MULTI", "HSET as:it:came a 1", "HEXPIRE as:it:came 100 FIELDS 1 a", "EXEC"]
    client.send(b"".join(request(*line.split()) for line in lines))
    assert client.replies(4)[-1] == b"*2\r\n:1\r\n*1\r\n:1\r\n"
    assert say(client, "HSET as:it:came a 2") == 0
    assert say(client, "HTTL as:it:came FIELDS 1 a") == [-1]
    assert (replaced(client) == before) is has


@pytest.mark.every_kind
def test_a_transaction_with_words_that_the_server_has_goes_as_it_came(upstream: Server, proxy: Proxy) -> None:
    with proxy.connect() as client:
        check_own_words(client, has=parse(upstream.command("COMMAND", "INFO", "HEXPIRE"))[0] is not None)
