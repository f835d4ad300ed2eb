"""A deadline belongs to one life of a member: every way to remove one, every way to add one, every way to look."""

from __future__ import annotations

import itertools
import random
import re
import signal
import string
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import hiredis
import pytest

from proxy.scripts.calls import Variant, script
from tests.conftest import StartProxy, StartServer
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until

pytestmark = pytest.mark.every_kind

FAR = 100_000
PREFIX = b"__expiremember__:"

Words = tuple[str | bytes | int, ...]


class Talk:
    """A connection that gives replies as Python values.

    Args:
        raw: the connection.
    """

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def __call__(self, *words: str | bytes | int) -> Any:
        return parse(self.raw.command(*words))

    def say(self, line: str) -> Any:
        """Send a request written as words between blanks."""
        return self(*line.split())


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Connects: ``talk(server or proxy, database=0, protocol=2)``."""
    with ExitStack() as stack:

        def connect(to: Server | Proxy, database: int = 0, protocol: int = 2) -> Talk:
            client = Talk(stack.enter_context(to.connect()))
            if protocol == 3:
                client("HELLO", 3)
            if database:
                client("SELECT", database)
            return client

        yield connect


@pytest.fixture
def lazy_upstream(kind: str, lazy_pairs: Callable[[str], tuple[Server, Proxy]]) -> Server:
    """A server of every kind, empty, where nobody sweeps."""
    server = lazy_pairs(kind)[0]
    server.flush()
    return server


@pytest.fixture
def lazy_proxy(lazy_upstream: Server, lazy_pairs: Callable[[str], tuple[Server, Proxy]]) -> Proxy:
    """The proxy, without a sweeper, in front of `lazy_upstream`."""
    return lazy_pairs(lazy_upstream.kind)[1]


def clock(server: Talk) -> int:
    """The server's own clock, in Unix ms."""
    seconds, micros = server("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def holds(where: Talk, kind: str, key: str) -> bool:
    """Whether a collection has the member 7."""
    reply = where.say(HOLDS[kind].format(k=key))
    return bool(reply) if kind in ("hash", "set") else reply is not None


def is_far(seconds: object) -> bool:
    """Whether a lifetime is what is left of `FAR` seconds."""
    return isinstance(seconds, int) and FAR - 60 <= seconds <= FAR


def wait_past(server: Talk, moment: int) -> None:
    until(lambda: clock(server) > moment, 30, "the deadline")


# Each collection holds the member 7, which is to go and to come back, and 1, which stays. List: 7 first; sorted set:
# 7 has the lowest score.

FILL = {
    "hash": "HSET {k} 7 7 1 1",
    "set": "SADD {k} 7 1",
    "zset": "ZADD {k} 1 7 2 1",
    "list": "RPUSH {k} 7 1",
}
HOLDS = {"hash": "HEXISTS {k} 7", "set": "SISMEMBER {k} 7", "zset": "ZSCORE {k} 7", "list": "LPOS {k} 7"}

ADD_SCRIPT = {"hash": "HSET {k} 7 0", "set": "SADD {k} 7", "zset": "ZADD {k} 0 7", "list": "RPUSH {k} 7"}
REMOVE = {"hash": "HDEL {k} 7", "set": "SREM {k} 7", "zset": "ZREM {k} 7", "list": "LREM {k} 0 7"}

# {o} is another key; what stands before a semicolon prepares.
ADDERS = {
    "hash": "HSET {k} 7 0|HMSET {k} 2 2 7 0|HSETNX {k} 7 0|HINCRBY {k} 7 1|HINCRBYFLOAT {k} 7 1.5|script|RESTORE",
    "set": "SADD {k} 7|SADD {k} 2 7 1|SADD {o} 7; SMOVE {o} {k} 7|SADD {o} 7; SUNIONSTORE {k} {o}|script|RESTORE"
    "|SADD {o} 7; SINTERSTORE {k} {o}|SADD {o} 7; SDIFFSTORE {k} {o}|SADD {o} 7; RENAME {o} {k}"
    "|SADD {o} 7; COPY {o} {k} REPLACE",
    "zset": "ZADD {k} 3 7|ZADD {k} NX CH 3 7|ZADD {k} INCR 3 7|ZADD {k} GT 2 2 3 7|ZINCRBY {k} 1 7|GEOADD {k} 1 2 7"
    "|ZADD {o} 3 7; ZUNIONSTORE {k} 1 {o}|ZADD {o} 3 7; ZINTERSTORE {k} 1 {o}|ZADD {o} 3 7; ZRANGESTORE {k} {o} 0 -1"
    "|ZADD {o} 3 7; ZDIFFSTORE {k} 1 {o}|GEOADD {o} 1 2 7; GEOSEARCHSTORE {k} {o} FROMMEMBER 7 BYRADIUS 1 m"
    "|GEOADD {o} 1 2 7; GEORADIUS {o} 1 2 9 m STORE {k}|script|RESTORE",
    "list": "LPUSH {k} 7|RPUSH {k} 2 7|RPUSH {k} 1; LPUSHX {k} 7|RPUSH {k} 1; RPUSHX {k} 7"
    "|RPUSH {k} 1; LINSERT {k} BEFORE 1 7|RPUSH {k} 1; LSET {k} -1 7|RPUSH {o} 7; LMOVE {o} {k} LEFT RIGHT"
    "|RPUSH {o} 7; RPOPLPUSH {o} {k}|RPUSH {o} 7; BLMOVE {o} {k} LEFT RIGHT 0|RPUSH {o} 7; BRPOPLPUSH {o} {k} 0"
    "|RPUSH {o} 7; SORT {o} STORE {k}|script|RESTORE",
}


@dataclass
class Bench:
    """What a test of removals works with.

    Attributes:
        through: the proxy.
        beside: the server.
        adders: the ways to add to each type.
        keys: each key with its type and the way to add to it.
        deadline: of their members, in Unix ms.
    """

    through: Talk
    beside: Talk
    adders: dict[str, str] = field(default_factory=lambda: ADDERS)
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    deadline: int = 0

    def each(self, by_type: dict[str, str], to: Talk | None = None) -> None:
        """Send each key the requests for its type."""
        for key, (kind, _) in self.keys.items():
            for line in by_type.get(kind, "").split(";"):
                if line:
                    reply = (to or self.through).say(line.format(k=key, o=f"o:{key}"))
                    assert not isinstance(reply, hiredis.ReplyError), (line, reply)

    def all(self, *lines: str) -> None:
        """Send each key the same requests."""
        self.each(dict.fromkeys(FILL, ";".join(lines)))

    def scripts(self, by_type: dict[str, str]) -> None:
        for key, (kind, _) in self.keys.items():
            self.through("EVAL", in_script(by_type[kind]), 1, key)

    def gone(self) -> None:
        """Wait until the keys are."""
        until(lambda: self.beside("EXISTS", *self.keys) == 0, what="the end of the keys")


def in_script(line: str) -> str:
    words = ",".join("KEYS[1]" if word == "{k}" else f"'{word}'" for word in line.split())
    return f"return redis.call({words})"


def all_types(line: str) -> Callable[[Bench], None]:
    return lambda bench: bench.all(*line.split(";"))


def only(kind: str, *lines: str) -> Callable[[Bench], None]:
    return lambda bench: bench.each({kind: ";".join(lines)})


def _restore_over(bench: Bench) -> None:
    for key, (kind, _) in bench.keys.items():
        bench.through.say(FILL[kind].format(k="spare"))
        bench.through.say(REMOVE[kind].format(k="spare"))
        bench.through("RESTORE", key, 0, bench.through("DUMP", "spare"), "REPLACE")
        bench.through("DEL", "spare")


def _expire_keys(bench: Bench) -> None:
    bench.all("PEXPIRE {k} 5")
    bench.gone()


def _flush(command: str) -> Callable[[Bench], None]:
    return lambda bench: bench.through(command)


def _swap(bench: Bench) -> None:
    bench.through("SWAPDB", 0, 4)


def _in_transaction(bench: Bench) -> None:
    bench.through("MULTI")
    bench.each(REMOVE)
    removed = bench.through("EXEC")
    assert all(removed) or clock(bench.beside) >= bench.deadline


OVER = {
    "hash": "HSET {o} 1 1;",
    "set": "SADD {o} 1;",
    "zset": "ZADD {o} 1 1;",
    "list": "RPUSH {o} 1;",
}


def _over(command: str) -> Callable[[Bench], None]:
    return lambda bench: bench.each({kind: prepare + command for kind, prepare in OVER.items()})


REMOVALS: dict[str, Callable[[Bench], None]] = {
    "by name": lambda bench: bench.each(REMOVE),
    "by name in MULTI": _in_transaction,
    "by name beside the proxy": lambda bench: bench.each(REMOVE, bench.beside),
    "DEL beside the proxy": lambda bench: bench.each(dict.fromkeys(FILL, "DEL {k}"), bench.beside),
    "script": lambda bench: bench.scripts(REMOVE),
    "a deadline in the past": all_types("PEXPIREMEMBERAT {k} 7 1"),
    "SPOP": only("set", "SPOP {k} 2"),
    "SPOP in MULTI": lambda bench: (bench.through("MULTI"), only("set", "SPOP {k} 2")(bench), bench.through("EXEC"))[0],
    "SMOVE": only("set", "SMOVE {k} {o}m 7"),
    "ZPOPMIN": only("zset", "ZPOPMIN {k}"),
    "ZPOPMAX": only("zset", "ZPOPMAX {k} 2"),
    "BZPOPMIN": only("zset", "BZPOPMIN {k} 1"),
    "BZPOPMAX": only("zset", "BZPOPMAX {k} 1", "BZPOPMAX {k} 1"),
    "ZMPOP": only("zset", "ZMPOP 1 {k} MIN"),
    "BZMPOP": only("zset", "BZMPOP 1 1 {k} MIN"),
    "ZREMRANGEBYSCORE": only("zset", "ZREMRANGEBYSCORE {k} 1 1"),
    "ZREMRANGEBYRANK": only("zset", "ZREMRANGEBYRANK {k} 0 0"),
    "ZREMRANGEBYLEX": only("zset", "ZREMRANGEBYLEX {k} - +"),
    "LPOP": only("list", "LPOP {k}"),
    "RPOP": only("list", "RPOP {k} 2"),
    "BLPOP": only("list", "BLPOP {k} 1"),
    "BRPOP": only("list", "BRPOP {k} 1", "BRPOP {k} 1"),
    "LMPOP": only("list", "LMPOP 1 {k} LEFT"),
    "BLMPOP": only("list", "BLMPOP 1 1 {k} LEFT"),
    "LTRIM": only("list", "LTRIM {k} 1 -1"),
    "LSET": only("list", "LSET {k} 0 2"),
    "LMOVE": only("list", "LMOVE {k} {o}m LEFT RIGHT"),
    "RPOPLPUSH": only("list", "RPOPLPUSH {k} {o}m", "RPOPLPUSH {k} {o}m"),
    "BLMOVE": only("list", "BLMOVE {k} {o}m LEFT RIGHT 1"),
    "DEL": all_types("DEL {k}"),
    "UNLINK": all_types("UNLINK x {k}"),
    "RENAME away": all_types("RENAME {k} {o}m"),
    "MOVE away": all_types("MOVE {k} 5"),
    "expiry of the key": _expire_keys,
    "EXPIRE in the past": all_types("EXPIRE {k} -1"),
    "SET": all_types("SET {k} v;DEL {k}"),
    "SET, then expiry": all_types("SET {k} v PXAT 1"),
    "SETEX": all_types("SETEX {k} 100 v;UNLINK {k}"),
    "MSET": all_types("MSET a v {k} v;GETDEL {k}"),
    "BITOP": all_types("SET a v;BITOP NOT {k} a;DEL {k}"),
    "RENAME over": _over("RENAME {o} {k}"),
    "COPY over": _over("COPY {o} {k} REPLACE"),
    "SUNIONSTORE over": _over("SUNIONSTORE {k} nothing"),
    "ZUNIONSTORE over": _over("ZUNIONSTORE {k} 1 nothing"),
    "SORT STORE over": _over("SORT nothing STORE {k}"),
    "RESTORE REPLACE": _restore_over,
    "FLUSHDB": _flush("FLUSHDB"),
    "FLUSHALL": _flush("FLUSHALL"),
    "SWAPDB": _swap,
}

SINCE_7 = {"ZMPOP", "BZMPOP", "LMPOP", "BLMPOP"}


def bring_back(bench: Bench) -> None:
    """Add the member to each key by the key's way."""
    for key, (kind, way) in bench.keys.items():
        if way == "script":
            bench.through("EVAL", in_script(ADD_SCRIPT[kind]), 1, key)
        elif way == "RESTORE":
            bench.through.say(ADD_SCRIPT[kind].format(k="spare"))
            bench.through("RESTORE", key, 0, bench.through("DUMP", "spare"), "REPLACE")
            bench.through("DEL", "spare")
        else:
            for line in way.split("; "):
                reply = bench.through.say(line.format(k=key, o=f"fresh:{key}"))
                assert not isinstance(reply, hiredis.ReplyError), (line, reply)


def live_again(bench: Bench, remove: Callable[[Bench], None], milliseconds: int) -> int | None:
    """Set deadlines, remove, and add again; return the deadline, or None where that has taken too long."""
    bench.keys = {
        f"{kind}:{number}": (kind, way)
        for kind, ways in bench.adders.items()
        for number, way in enumerate(ways.split("|"))
    }
    bench.each(FILL)
    deadline = bench.deadline = clock(bench.beside) + milliseconds
    bench.all(f"PEXPIREMEMBERAT {{k}} 7 {deadline}")
    remove(bench)
    # Where the way does nothing to this type, there is nothing to see.
    bench.keys = {key: (kind, way) for key, (kind, way) in bench.keys.items() if not holds(bench.beside, kind, key)}
    bring_back(bench)
    return deadline if clock(bench.beside) < deadline else None


def check_lives(bench: Bench, remove: Callable[[Bench], None]) -> None:
    milliseconds = 250
    while (deadline := live_again(bench, remove, milliseconds)) is None:
        assert milliseconds < 8000, "too slow to tell"
        milliseconds *= 2
        bench.beside("FLUSHALL")
    assert bench.keys, "nothing was removed"
    bench.through("SADD", "witness", "w", "stays")
    bench.through("PEXPIREMEMBERAT", "witness", "w", deadline + 1)
    wait_past(bench.beside, deadline + 1)
    # First in the server: it is the sweeper that has to remove it.
    until(lambda: bench.beside("SCARD", "witness") == 1, what="the end of the witness")
    assert bench.through("SISMEMBER", "witness", "w") == 0
    wrong = {}
    for key, (kind, way) in bench.keys.items():
        seen = holds(bench.through, kind, key), holds(bench.beside, kind, key), bench.through("PTTL", key, "7")
        if seen != (True, True, -1):
            wrong[f"{kind}: {way}"] = seen
    assert not wrong


@pytest.mark.parametrize("way", REMOVALS)
def test_a_member_that_comes_back_has_no_deadline(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], way: str
) -> None:
    if way in SINCE_7 and upstream.version < (7,):
        assert isinstance(talk(proxy)(way), hiredis.ReplyError)
        return
    check_lives(Bench(talk(proxy, protocol=3), talk(upstream)), REMOVALS[way])


def test_a_member_of_an_evicted_key_has_no_deadline(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind, "--maxmemory", "6mb", "--maxmemory-policy", "volatile-ttl")
    bench = Bench(talk(start_proxy(server)), talk(server))

    def evict(bench: Bench) -> None:
        bench.all("EXPIRE {k} 1000")
        fillers = 0
        while bench.beside("EXISTS", *bench.keys):
            reply = bench.beside("SET", f"filler:{fillers}", "x" * 20_000, "EX", 10_000)
            assert reply == b"OK", reply
            fillers += 1
        for number in range(fillers):
            bench.beside("DEL", f"filler:{number}")

    check_lives(bench, evict)
    assert int(bench.beside("INFO", "stats").split(b"evicted_keys:")[1].split()[0]) >= len(bench.keys)


_numbers = itertools.count()
_LETTERS = str.maketrans("0123456789", "abcdefghij")


def new_key() -> str:
    """A name that no test has used yet; others of its kind may be covered."""
    return f"new:{next(_numbers)}"


def first_of_its_kind() -> str:
    """A name that nothing covers, at a server with few kinds: a deadline of it is a first one to all proxies."""
    return f"{next(_numbers)}".translate(_LETTERS) + ":1"


def is_aborted(reply: object) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("EXECABORT")


TRANSACTIONS = {
    "remove and add": "SREM {k} 7;SADD {k} 7",
    "store": "SADD {o} 7;SUNIONSTORE {k} {o}",
    "delete and add": "DEL {k};SADD {k} 7",
    "move away and back": "SMOVE {k} {o} 7;SMOVE {o} {k} 7",
    "pop and add": "SPOP {k} 2;SADD {k} 7",
}


@pytest.mark.parametrize("queued_first", [True, False])
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_transaction_that_removes_and_adds(
    proxy: Proxy, talk: Callable[..., Talk], name: str, queued_first: bool
) -> None:
    """Whether the deadline was set before the requests were queued, or after, by another client."""
    client, other = talk(proxy), talk(proxy)
    k, o = new_key(), new_key()
    client.say(f"SADD {k} 7 1")
    if not queued_first:
        other.say(f"EXPIREMEMBER {k} 7 {FAR}")
    client("MULTI")
    for line in TRANSACTIONS[name].split(";"):
        assert client.say(line.format(k=k, o=o)) == b"QUEUED"
    if queued_first:
        other.say(f"EXPIREMEMBER {k} 7 {FAR}")
    replies = client("EXEC")
    if queued_first and is_aborted(replies):
        # Nothing has happened: the client is to try again.
        assert is_far(client.say(f"TTL {k} 7"))
        return
    assert not any(isinstance(reply, hiredis.ReplyError) for reply in replies), replies
    assert client.say(f"SISMEMBER {k} 7") == 1
    assert client.say(f"PTTL {k} 7") == -1


@pytest.mark.parametrize("request_", ["RENAME {k} {n}", "RENAMENX {k} {n}", "COPY {k} {n}", "MOVE {k} 3"])
def test_a_transaction_takes_along_the_deadlines_that_there_are_when_it_runs(
    proxy: Proxy, talk: Callable[..., Talk], request_: str
) -> None:
    client, other = talk(proxy), talk(proxy)
    k, n = new_key(), new_key()
    client.say(f"SADD {k} 7 1")
    client("MULTI")
    client.say(request_.format(k=k, n=n))
    other.say(f"EXPIREMEMBER {k} 7 {FAR}")
    reply = client("EXEC")
    if is_aborted(reply):
        assert is_far(client.say(f"TTL {k} 7"))
        return
    assert reply in ([b"OK"], [1])
    if request_.startswith("MOVE"):
        assert is_far(talk(proxy, 3).say(f"TTL {k} 7"))
    else:
        assert is_far(client.say(f"TTL {n} 7"))


# Requests that touch a key {k} whose member 7 is due, and with it the key; or, where member 1 stays, {m}. {o} is
# another.

SEEN: dict[str, list[tuple[str, object]]] = {
    "set": [
        ("EXISTS {k}", 0), ("TYPE {k}", b"none"), ("SCARD {k}", 0), ("SCARD {m}", 1), ("SMEMBERS {m}", [b"1"]),
        ("SISMEMBER {m} 7", 0), ("SMISMEMBER {m} 7 1", [0, 1]), ("SRANDMEMBER {m} 9", [b"1"]), ("SPOP {m} 9", [b"1"]),
        ("SUNION {m} {o}", [b"1"]), ("SINTER {m} {m}", [b"1"]), ("SDIFF {m} {o}", [b"1"]), ("SUNIONSTORE {o} {k}", 0),
        ("SINTERSTORE {o} {m} {m}", 1), ("SSCAN {m} 0", [b"0", [b"1"]]), ("SADD {m} 7", 1), ("SREM {m} 7", 0),
        ("SMOVE {k} {o} 7", 0), ("RENAME {k} {o}", "ERR no such key"), ("RENAMENX {k} {o}", "ERR no such key"),
        ("COPY {k} {o}", 0), ("MOVE {k} 5", 0), ("DEL {k}", 0), ("UNLINK {k}", 0), ("EXPIRE {k} 9", 0),
        ("PEXPIRE {k} 9", 0), ("PERSIST {k}", 0), ("TTL {k}", -2), ("DUMP {k}", None), ("TOUCH {k}", 0),
        ("SETNX {k} v", 1), ("SET {k} v NX", b"OK"), ("GETSET {k} v", None), ("APPEND {k} v", 1), ("INCR {k}", 1),
        ("MSETNX {k} v", 1), ("GET {k}", None), ("STRLEN {k}", 0), ("MGET {k} {o}", [None, None]), ("GETDEL {k}", None),
        ("EXPIREMEMBER {k} 7 9", 0), ("TTL {k} 7", -2), ("TTL {m} 7", -1), ("PTTL {k} 7", -2), ("PERSIST {k} 7", 0),
        ("PERSIST {m} 7", 0), ("EXPIREMEMBER {m} 7 9", 0), ("EXISTS {o} {k} {m}", 1), ("SORT {m}", [b"1"]),
        ("SORT {k} STORE {o}", 0), ("ZUNIONSTORE {o} 1 {m}", 1), ("LPUSH {k} 7", 1), ("PFADD {k} 7", 1),
        ("EVAL return(redis.call('exists',KEYS[1])) 1 {k}", 0), ("EVAL return(redis.call('scard',KEYS[1])) 1 {m}", 1),
        ("MEMORY USAGE {k}", None), ("SETRANGE {k} 0 v", 1), ("BITCOUNT {k}", 0), ("LCS {k} {o}", b""),
        ("SORT_RO {m}", [b"1"]), ("SINTERCARD 1 {m}", 1), ("EVAL_RO return(redis.call('scard',KEYS[1])) 1 {m}", 1),
    ],
    "hash": [
        ("HGET {m} 7", None), ("HGETALL {m}", [b"1", b"1"]), ("HLEN {m}", 1), ("HKEYS {m}", [b"1"]),
        ("HVALS {m}", [b"1"]), ("HMGET {m} 7 1", [None, b"1"]), ("HEXISTS {m} 7", 0), ("HSTRLEN {m} 7", 0),
        ("HRANDFIELD {m} 5", [b"1"]), ("HSCAN {m} 0", [b"0", [b"1", b"1"]]), ("HSETNX {m} 7 0", 1), ("HSET {m} 7 0", 1),
        ("HINCRBY {m} 7 1", 1), ("HINCRBYFLOAT {m} 7 1.5", b"1.5"), ("HDEL {m} 7", 0), ("HDEL {k} 7", 0),
        ("HLEN {k}", 0), ("TYPE {k}", b"none"), ("HMSET {k} 7 0", b"OK"),
    ],
    "zset": [
        ("ZCARD {m}", 1), ("ZRANGE {m} 0 -1", [b"1"]), ("ZRANGE {m} 0 -1 REV", [b"1"]), ("ZSCORE {m} 7", None),
        ("ZRANGEBYSCORE {m} -inf +inf", [b"1"]), ("ZRANK {m} 1", 0), ("ZRANK {m} 7", None), ("ZCOUNT {m} -inf +inf", 1),
        ("ZPOPMIN {m}", [b"1", b"2"]), ("ZRANDMEMBER {m} 5", [b"1"]), ("ZUNION 1 {m}", [b"1"]),
        ("ZMSCORE {m} 7", [None]),
        ("ZUNIONSTORE {o} 1 {m}", 1), ("ZRANGESTORE {o} {m} 0 -1", 1), ("ZADD {m} XX CH 5 7", 0),
        ("ZADD {m} NX 5 7", 1),
        ("ZADD {m} XX INCR 5 7", None), ("ZINCRBY {m} 1 7", b"1"), ("ZREM {m} 7", 0), ("ZDIFF 2 {m} {o}", [b"1"]),
        ("ZREMRANGEBYRANK {m} 0 0", 1), ("GEOPOS {m} 7", [None]), ("BZPOPMIN {k} 0.01", None), ("ZLEXCOUNT {m} - +", 1),
        ("ZINTERSTORE {o} 1 {k}", 0), ("ZMPOP 1 {k} MIN", None), ("ZINTERCARD 1 {m}", 1),
    ],
    "list": [
        ("LLEN {m}", 1), ("LRANGE {m} 0 -1", [b"1"]), ("LINDEX {m} 0", b"1"), ("LPOP {m}", b"1"), ("RPOP {k}", None),
        ("LPOS {m} 7", None), ("LPUSHX {k} 2", 0), ("RPUSHX {k} 2", 0), ("LINSERT {m} BEFORE 7 2", -1),
        ("LINSERT {k} BEFORE 7 2", 0), ("LSET {k} 0 2", "ERR no such key"), ("LSET {m} 1 2", "ERR index out of range"),
        ("LREM {m} 0 7", 0), ("LMOVE {k} {o} LEFT LEFT", None), ("LMOVE {m} {o} LEFT LEFT", b"1"),
        ("RPOPLPUSH {k} {o}", None), ("BLPOP {k} 0.01", None), ("BLMOVE {m} {o} LEFT LEFT 0", b"1"),
        ("SORT {m}", [b"1"]),
        ("SORT {m} BY nosort GET #", [b"1"]), ("SORT {m} STORE {o}", 1), ("LTRIM {k} 0 -1", b"OK"), ("LPUSH {k} 7", 1),
        ("LMPOP 1 {k} LEFT", None),
    ],
}  # fmt: skip
NOT_IN_6 = ("LCS", "SORT_RO", "SINTERCARD", "EVAL_RO", "ZMPOP", "LMPOP", "ZINTERCARD")


def put_due(client: Talk, beside: Talk) -> list[tuple[str, object]]:
    """Fill a key for each request, with a member that will be due; return the requests when it is."""
    requests = []
    old = "valkey" not in str(beside("INFO", "server")) and b"redis_version:6" in beside("INFO", "server")
    for kind, cases in SEEN.items():
        for number, (line, wanted) in enumerate(cases):
            if old and line.startswith(NOT_IN_6):
                continue
            k, m, o = (f"{letter}:{kind}:{number}" for letter in "kmo")
            for key in (k, m):
                client.say(FILL[kind].format(k=key))
            client.say({"hash": f"HDEL {k} 1", "set": f"SREM {k} 1", "zset": f"ZREM {k} 1", "list": f"RPOP {k}"}[kind])
            requests.append((line.format(k=k, m=m, o=o), wanted))
    keys = [
        f"{letter}:{kind}:{number}" for kind, cases in SEEN.items() for number in range(len(cases)) for letter in "km"
    ]
    for kind in SEEN:  # else a queued RENAME covers these, which spoils what others have queued
        client.say(FILL[kind].format(k=f"o:{kind}:covered"))
        client.say(f"EXPIREMEMBER o:{kind}:covered 7 {FAR}")
    deadline = clock(beside) + 400
    client.raw.send(b"".join(request("PEXPIREMEMBERAT", key, 7, deadline) for key in keys))
    client.raw.replies(len(keys))
    assert clock(beside) < deadline, "too slow to tell"
    assert client("SCARD", "m:set:0") == 2
    return requests


def agrees(got: object, wanted: object) -> bool:
    if isinstance(wanted, str):
        return isinstance(got, hiredis.ReplyError) and str(got).startswith(wanted)
    return got == wanted


def due_by(beside: Talk) -> int:
    """The latest deadline in the selected database."""
    return int(beside("ZREVRANGEBYSCORE", PREFIX + b"index", clock(beside) + 60_000, 0, "WITHSCORES", "LIMIT", 0, 1)[1])


@pytest.mark.parametrize("database", [0, 3])
def test_no_request_sees_a_member_that_is_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], database: int
) -> None:
    client, beside = talk(lazy_proxy, database), talk(lazy_upstream, database)
    requests = put_due(client, beside)
    wait_past(beside, due_by(beside))
    assert beside("SCARD", "m:set:1") == 2, "somebody sweeps, so that nothing is to be seen here"
    wrong = [(line, got) for line, wanted in requests if not agrees(got := client.say(line), wanted)]
    assert not wrong


@pytest.mark.parametrize("line", ["MOVE {k} 3", "COPY {k} {k} DB 3"])
def test_no_key_of_another_database_is_there_that_is_all_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], line: str
) -> None:
    client, elsewhere, beside = talk(lazy_proxy), talk(lazy_proxy, 3), talk(lazy_upstream)
    key = f"elsewhere:{line.split()[0]}"
    assert client("SADD", key, "a") == elsewhere("SADD", key, "b") == 1
    assert elsewhere("PEXPIREMEMBER", key, "b", 5) == 1
    wait_past(beside, clock(beside) + 5)
    assert client.say(line.format(k=key)) == 1
    assert elsewhere("SMEMBERS", key) == [b"a"]


def test_no_source_is_there_that_is_all_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    client("SADD", "source:1", "a")
    client("SET", "source:2", "\x01")
    assert client("PEXPIREMEMBER", "source:1", "a", 5) == 1
    wait_past(beside, clock(beside) + 5)
    assert client("BITOP", "OR", "source:3", "source:1", "source:2") == 1
    assert client("PFMERGE", "source:4", "source:1") == b"OK"


@pytest.mark.parametrize("line", ["PERSIST {k}", "EXPIRE {k} 100", "PEXPIREAT {k} 1", "EXPIRE {k} 0"])
def test_what_answers_otherwise_the_second_time_is_sent_once(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], line: str
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    key = f"once:{line.split()[0]}"
    assert client("SADD", key, "due", "stays") == 2
    client("EXPIRE", key, 1000)
    assert client("PEXPIREMEMBER", key, "due", 5) == 1
    wait_past(beside, clock(beside) + 5)
    assert client.say(line.format(k=key)) == 1


@pytest.mark.parametrize("caching", [False, True])
def test_no_transaction_sees_a_member_that_is_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], caching: bool
) -> None:
    """Queued before the deadline, run after it; with caching nothing is put in front of its requests."""
    proxy, beside = lazy_proxy, talk(lazy_upstream)
    client = talk(proxy)
    queued = []
    requests = put_due(client, beside)
    for line, wanted in requests:
        client = talk(proxy)
        if caching:
            client.say("CLIENT TRACKING ON")
        client("MULTI")
        assert client.say(line) == b"QUEUED", line
        queued.append((client, line, wanted))
    wait_past(beside, due_by(beside))
    wrong = []
    for client, line, wanted in queued:
        got = client("EXEC")
        if not agrees(got[0], wanted):
            wrong.append((line, got))
    assert not wrong


def test_a_watched_key_shows_nothing_that_is_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    for when in ("before", "after"):
        client.say("SADD k 7 1")
        deadline = clock(beside) + 300
        client.say(f"PEXPIREMEMBERAT k 7 {deadline}")
        if when == "before":
            client("WATCH", "k")
        wait_past(beside, deadline)
        if when == "after":
            client("WATCH", "k")
        client("MULTI")
        client("SMEMBERS", "k")
        # The removal is a change of the watched key.
        assert client("EXEC") == (None if when == "before" else [[b"1"]])


def watch_and_look(client: Talk, beside: Talk, key: str, kind: str = "set", milliseconds: int = 30) -> int:
    """Watch a key whose member 7 is seen, and will be due; return when, in Unix ms."""
    while True:
        client("DEL", key)
        client.say(FILL[kind].format(k=key))
        deadline = clock(beside) + milliseconds
        assert client.say(f"PEXPIREMEMBERAT {key} 7 {deadline}") == 1
        client("WATCH", key)
        if holds(client, kind, key):
            return deadline
        client("UNWATCH")
        milliseconds *= 2  # the machine is busy


def sell(client: Talk) -> Any:
    """Run a transaction that names another key than those that are watched."""
    client.raw.send(b"".join((request("MULTI"), request("INCR", "sold"), request("EXEC"))))
    return parse(client.raw.replies(3)[2])


@pytest.mark.parametrize("kind_of_value", FILL)
def test_a_deadline_that_passes_in_a_watched_key_is_a_change(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], kind_of_value: str
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    for number in range(12):
        client("WATCH", f"other{number}")
        deadline = watch_and_look(client, beside, f"k{number}", kind_of_value)
        wait_past(beside, deadline - 1 + number % 6)
        assert sell(client) is None
        assert sell(client) == [1]  # nothing is watched any more
        beside("DEL", "sold")


def test_what_happens_to_a_watched_deadline_before_it_passes(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, other, beside = talk(lazy_proxy), talk(lazy_proxy), talk(lazy_upstream)
    changes: list[tuple[str, bool]] = [
        ("PEXPIREMEMBER k 7 100000", True), ("PERSIST k 7", True), ("PEXPIREMEMBER k 1 1", False),
        ("PEXPIREMEMBER k 7 1", False), ("SREM k 7", False), ("SADD k 9", False),
    ]  # fmt: skip
    for by, (line, runs) in itertools.product((client, other), changes):
        milliseconds = 30
        while True:
            deadline = watch_and_look(client, beside, "k", milliseconds=milliseconds)
            by.say(line)
            if clock(beside) < deadline:
                break
            client("UNWATCH")
            milliseconds *= 2  # the machine is busy
        wait_past(beside, deadline)
        assert sell(client) == ([1] if runs else None), line
        beside("DEL", "sold")


def test_what_ends_a_watch_ends_it_for_deadlines(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    lines = {
        "UNWATCH": True, "MULTI; DISCARD": True, "MULTI; EXEC": True, "MULTI; NOSUCH; EXEC": True, "RESET": True,
        "EXEC": False, "DISCARD": False, "UNWATCH k": False, "WATCH": False, "WATCH z": False, "WATCH k": False,
        "WATCH z; SELECT 1": False,
    }  # fmt: skip
    for line, ends in lines.items():
        deadline = watch_and_look(client, beside, "k")
        for part in line.split("; "):
            client.say(part)
        wait_past(beside, deadline)
        assert sell(client) == ([1] if ends else None), line
        client("SELECT", 0)
        beside("DEL", "sold", "k")


def fill_due(client: Talk, beside: Talk, count: int, milliseconds: int) -> tuple[list[bytes], int]:
    """Fill the list l: two thirds of it are due at one moment; return what is to stay, and that moment in Unix ms.

    Some elements stand in it three times, far from each other; some have a deadline that is far.
    """
    elements = [b"%d" % number for number in (*range(count), 7, 8, 9, *range(count // 10))]
    for begin in range(0, len(elements), 1000):
        client("RPUSH", "l", *elements[begin : begin + 1000])
    client("PEXPIRE", "l", 1_000_000)
    deadline = clock(beside) + milliseconds
    due = [element for element in dict.fromkeys(elements) if int(element) % 3]
    for begin in range(0, len(due), 500):
        scores: list[bytes | int] = []
        for one in due[begin : begin + 500]:
            scores += [deadline, one]
        beside("ZADD", PREFIX + b"k:{l}", *scores)
    beside("ZADD", PREFIX + b"index", deadline, "l")
    client("PEXPIREMEMBER", "l", "9", 900_000)
    return [element for element in elements if int(element) % 3 == 0], deadline


def check_many_elements_of_a_list(server: Server, proxy: Proxy, connect: Callable[..., Talk]) -> None:
    client, beside = connect(proxy), connect(server)
    wanted, deadline = fill_due(client, beside, 12_000, 3_000)
    wait_past(beside, deadline)
    beside("CONFIG", "RESETSTAT")
    assert client("LRANGE", "l", 0, -1) == wanted
    assert 0 < client("PTTL", "l") <= 1_000_000
    assert beside("ZRANGE", PREFIX + b"k:{l}", 0, -1) == [b"9"]
    assert client("PTTL", "l", "9") > 0
    # One walk, not one for each element.
    calls = re.search(rb"cmdstat_lrem:calls=(\d+)", beside("INFO", "commandstats"))
    assert calls
    assert int(calls[1]) < 100


@pytest.mark.few_kinds
def test_many_elements_of_a_list_are_due_at_once(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    check_many_elements_of_a_list(lazy_upstream, lazy_proxy, talk)


@pytest.mark.parametrize("heeded", [True, False], ids=["begins anew", "goes on"])
def test_a_list_that_changes_meanwhile_keeps_nothing_that_is_due(
    lazy_upstream: Server, talk: Callable[..., Talk], heeded: bool
) -> None:
    check_a_list_that_changes(talk(lazy_upstream), script("weed"), heeded=heeded)


def check_a_list_that_changes(beside: Talk, weed: bytes, *, heeded: bool) -> None:
    """Others pop elements in front of the walk, so that what it comes to looks as what it has left."""
    beside("RPUSH", "l", *(element for number in range(2_000) for element in (f"d{number}", "a")))
    keys = [b"l", PREFIX + b"k:{l}", PREFIX + b"index"]
    beside("ZADD", keys[1], *(word for number in range(2_000) for word in (1_000, f"d{number}")), 9 * 10**15, "other")
    beside("ZADD", keys[2], 1_000, "l")
    place: list[bytes | int] = [0, 0, b""]
    calls = 0
    while place[1] != -2:
        _, *place, _ = beside("EVAL", weed, 3, *keys, 0, 500, *(place if heeded or not calls else [*place[:2], ""]))
        calls += 1
        if calls < 30 and calls % 3 == 1:
            beside("LPOP", "l")
            beside("LPOP", "l")
            beside("RPUSH", "l", "a", "a")
    assert set(beside("LRANGE", "l", 0, -1)) == {b"a"}
    assert beside("ZRANGE", keys[1], 0, -1) == [b"other"]


def check_few_elements_of_a_long_list(server: Server, proxy: Proxy, connect: Callable[..., Talk]) -> None:
    """Each takes a walk through the list, so few of them go in one script: others come between."""
    client, beside = connect(proxy), connect(server)
    client("RPUSH", "l", *range(20_000))
    deadline = clock(beside) + 1_000
    due = [word for number in range(19_900, 19_960) for word in (deadline, number)]
    beside("ZADD", PREFIX + b"k:{l}", *due)
    beside("ZADD", PREFIX + b"index", deadline, "l")
    client("PEXPIREMEMBER", "l", "9", 900_000)  # of which the proxy knows then
    wait_past(beside, deadline)
    beside("CONFIG", "RESETSTAT")
    assert client("LLEN", "l") == 19_940
    calls = dict(re.findall(rb"cmdstat_(eval|lrem):calls=(\d+)", beside("INFO", "commandstats")))
    assert int(calls[b"lrem"]) == 60
    assert int(calls[b"eval"]) >= 6


def test_few_elements_of_a_long_list_go_a_few_at_a_time(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    check_few_elements_of_a_long_list(lazy_upstream, lazy_proxy, talk)


def test_many_elements_of_a_list_go_by_the_sweeper(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, beside = talk(proxy), talk(upstream)
    wanted, _ = fill_due(client, beside, 6_000, 10)
    until(lambda: beside("ZCARD", PREFIX + b"k:{l}") == 1, 30, "the sweeper")
    assert beside("LRANGE", "l", 0, -1) == wanted


@pytest.mark.parametrize("line", ["DBSIZE", "KEYS *", "SCAN 0 COUNT 1000", "RANDOMKEY", "SORT l BY w:*->7 GET w:*->7"])
@pytest.mark.parametrize("transaction", [False, True])
def test_requests_that_name_no_key_see_nothing_that_is_due(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk], line: str, transaction: bool
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    for key in range(30):
        client("HSET", f"w:{key}", "7", "7")
    client("RPUSH", "l", "3")
    deadline = clock(beside) + 100
    for key in range(30):
        client("PEXPIREMEMBERAT", f"w:{key}", "7", deadline)
    if transaction:
        client("MULTI")
        client.say(line)
    wait_past(beside, deadline)
    reply = client("EXEC")[0] if transaction else client.say(line)
    assert reply in (1, [b"l"], [b"0", [b"l"]], b"l", [None])


def iterate(client: Talk, *options: str | int) -> list[bytes]:
    """All keys that a whole SCAN tells."""
    cursor, keys = b"0", []
    for _ in range(100_000):
        cursor, page = client("SCAN", cursor, *options)
        keys += page
        if cursor == b"0":
            return keys
    raise AssertionError("SCAN does not come to an end")


NAMES = ["plain", "{tag}x", "a}b", "", "{}", "ends{", "{a}{b}", "\x00\xff", "x" * 200]


def test_the_proxys_own_keys_do_not_show(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, beside = talk(proxy), talk(upstream)
    names = [*NAMES, *(f"more:{number}" for number in range(100))]
    for name in names:
        client("ZADD", name, 1, "7", 2, "1")
        client("EXPIREMEMBER", name, "7", FAR)
    client.say("SADD brief 7 1")
    client.say("PEXPIREMEMBER brief 7 1")
    until(lambda: beside("SCARD", "brief") == 1, what="a sweep, which takes the lease")
    client("DEL", "brief")
    wanted = sorted(name.encode() for name in names)
    assert len(beside("KEYS", PREFIX + b"*")) >= len(names) + 1
    assert sorted(client("KEYS", "*")) == wanted
    assert client("KEYS", PREFIX + b"*") == []
    assert client("DBSIZE") == len(names)
    for count in (1, 2, 10, 100, 1000):
        assert sorted(set(iterate(client, "COUNT", count))) == wanted
    assert sorted(set(iterate(client, "TYPE", "zset"))) == wanted
    assert iterate(client, "TYPE", "string") == []
    assert sorted(set(iterate(client, "MATCH", "more:*", "COUNT", 7))) == sorted(
        wanted[wanted.index(b"more:0") :][:100]
    )
    assert iterate(client, "MATCH", (PREFIX + b"*").decode()) == []
    drawn = {client("RANDOMKEY") for _ in range(200)}
    assert len(drawn) > 1
    assert drawn <= set(wanted)


def test_the_lease_does_not_show_either_when_no_key_has_deadlines_any_more(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    upstream = start_server(kind)
    one, other, beside = talk(start_proxy(upstream)), talk(start_proxy(upstream)), talk(upstream)
    one.say("SADD stays 1")
    one.say("SADD k 7")
    one.say("PEXPIREMEMBER k 7 20")
    until(lambda: beside("EXISTS", "k") == 0, what="a sweep")
    assert beside("EXISTS", PREFIX + b"sweeper") == 1
    for client in (one, other):
        assert client("KEYS", "*") == [b"stays"]
        assert client("DBSIZE") == 1
        assert iterate(client) == [b"stays"]
        assert {client("RANDOMKEY") for _ in range(20)} == {b"stays"}


@pytest.mark.few_kinds
def test_a_lease_that_has_run_out_does_not_count(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    client, beside = talk(start_proxy(server)), talk(server)
    beside.say("DEBUG SET-ACTIVE-EXPIRE 0")
    client.say("SADD stays 7 1")
    client.say("PEXPIREMEMBER stays 7 1")
    until(lambda: beside("SCARD", "stays") == 1, what="a sweep")
    moment = clock(beside) + 1500
    client("SADD", "other", "7")
    client("EXPIREMEMBER", "other", "7", FAR)
    wait_past(beside, moment)
    assert client("DBSIZE") == 2


NAMING = [
    "GET {p}", "SET {p} v", "ZADD {p} 1 7", "DEL k {p}", "RENAME k {p}", "COPY k {p}", "SUNIONSTORE {p} k",
    "SORT k STORE {p}", "EXPIREMEMBER {p} 7 9", "EVAL return(1) 1 {p}", "OBJECT ENCODING {p}", "EXISTS k {p}",
    "EXPIRE {p} 1", "TTL {p} 7", "MSET k v {p} v", "BLPOP k {p} 1", "WATCH {p}", "MOVE {p} 1",
]  # fmt: skip


@pytest.mark.parametrize("which", ["index", "sweeper", "k:{k}", "anything"])
def test_a_request_that_names_the_proxys_own_keys_is_refused(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], which: str
) -> None:
    client, beside = talk(proxy), talk(upstream)
    client.say("SADD k 7 1")
    client.say(f"EXPIREMEMBER k 7 {FAR}")

    def there() -> tuple[set[bytes], list[bytes]]:
        """What there is, but the list of what is covered: where a test before has emptied the server it comes later."""
        keys = set(beside("KEYS", "*")) - {PREFIX + b"covered"}
        return keys, beside("ZRANGE", PREFIX + b"k:{k}", 0, -1, "WITHSCORES")

    before = there()
    for line in NAMING:
        reply = client.say(line.format(p=PREFIX.decode() + which))
        assert isinstance(reply, hiredis.ReplyError), line
        assert "reserved" in str(reply), (line, reply)
    assert there() == before
    client("MULTI")
    assert isinstance(client("GET", PREFIX + which.encode()), hiredis.ReplyError)
    assert "EXECABORT" in str(client("EXEC"))


def test_the_proxys_own_keys_are_refused_within_a_pipeline(upstream: Server, proxy: Proxy) -> None:
    """Anywhere among requests that go as they came."""
    with proxy.connect() as client:
        for size in (3, 40, 4_000):
            for place in range(0, size, max(1, size // 7)):
                pipeline = [request("SET", f"key:{number}", "_") for number in range(size)]
                pipeline.insert(place, request("SET", PREFIX + b"probe", "v"))
                client.send(b"".join(pipeline))
                replies = client.replies(size + 1)
                assert b"reserved" in replies.pop(place)
                assert set(replies) == {b"+OK\r\n"}
    assert upstream.command("EXISTS", PREFIX + b"probe") == b":0\r\n"
    upstream.flush()


def test_a_member_may_have_a_name_like_the_proxys_own_keys(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, member = talk(proxy), PREFIX + b"member"
    assert client("SADD", "k", member) == 1
    assert client("EXPIREMEMBER", "k", member, FAR) == 1
    assert is_far(client("TTL", "k", member))
    assert client("PERSIST", "k", member) == 1


@pytest.mark.few_kinds
def test_the_proxys_own_keys_can_be_named_for_maintenance(
    upstream: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    client = talk(start_proxy(upstream, "--no-reserved-names"))
    client.say("SADD k 7 1")
    client.say(f"EXPIREMEMBER k 7 {FAR}")
    assert client("ZRANGE", PREFIX + b"k:{k}", 0, -1) == [b"7"]
    assert client("ZRANGE", PREFIX + b"index", 0, -1) == [b"k"]


def knows(stranger: Talk, key: str) -> bool:
    """Whether a proxy knows that a key has deadlines: it puts a script in the place of a store, which a user without
    any permission can tell by the refusal, and nothing else can."""
    reply = stranger("SUNIONSTORE", key, key)
    assert isinstance(reply, hiredis.ReplyError)
    assert "NOPERM" in str(reply)
    return "sunionstore" not in str(reply)


def as_stranger(server: Talk, client: Talk) -> Talk:
    """Log a client in as a user without permissions."""
    server.say("ACL SETUSER stranger on nopass")
    assert client.say("AUTH stranger any") == b"OK"
    return client


def asks_for_rights(server: Server, proxy: Proxy) -> bool:
    """Whether the proxy asks what who sets a deadline may do; it sees once a second whether any user has few rights."""
    seen = b""
    with server.connect() as watcher, proxy.connect() as client:
        watcher.command("MONITOR")
        client.command("EXPIREMEMBER", "who may", "y", 9)
        while b'"who may"' not in seen:
            seen += watcher.reply()
    return b" sismember smismember " in seen  # what the scripts run: it stands in nothing but that question


def test_a_proxy_learns_of_anothers_deadlines(
    upstream: Server, proxy: Proxy, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    second = start_proxy(upstream, "--no-sweep")
    one, other, beside = talk(proxy), talk(second), talk(upstream)
    one.say("SADD met 1")
    assert one.say(f"EXPIREMEMBER met 1 {FAR}") == 1  # who has just begun may have to wait for 2 s
    deadline = clock(beside) + 500
    one.say("SADD heard:k 7 1")
    one.say(f"PEXPIREMEMBERAT heard:k 7 {deadline}")
    one.say("HSET heard:h 7 7 1 1")
    one.say(f"PEXPIREMEMBERAT heard:h 7 {deadline}")
    beside.say("SREM heard:k 7")
    assert other.say("SADD heard:k 7") == 1
    assert clock(beside) < deadline, "too slow to tell"
    wait_past(beside, deadline)
    assert other.say("HLEN heard:h") == 1
    assert sorted(other.say("SMEMBERS heard:k")) == [b"1", b"7"]
    assert one.say("PTTL heard:k 7") == other.say("PTTL heard:k 7") == -1


@pytest.mark.few_kinds
def test_flushing_another_database_lets_no_proxy_forget(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    """While a proxy reads the index again, which takes long with many keys, it may not judge by half of it."""
    upstream = start_server(kind)
    filler, beside, elsewhere = talk(upstream), talk(upstream), talk(upstream, 9)
    for begin in range(0, 100_000, 1000):
        filler("ZADD", PREFIX + b"index", *(word for key in range(begin, begin + 1000) for word in (10**13 - 1, key)))
    first, second = start_proxy(upstream, "--leftovers-rate", "0"), start_proxy(upstream, "--leftovers-rate", "0")
    one, other = talk(first), talk(second)
    one.say("HSET h 7 7 1 1")
    one("PEXPIREMEMBERAT", "h", "7", 10**13)
    stranger = as_stranger(beside, talk(second))
    until(lambda: knows(stranger, "h"), what="the news")
    beside.say("HDEL h 7")
    elsewhere("SET", "x", "x")
    elsewhere("FLUSHDB")
    end = clock(beside) + 100
    while clock(beside) < end:
        other.say("HSET h 7 0")
        assert one.say("PTTL h 7") == -1
        one("PEXPIREMEMBERAT", "h", "7", 10**13)
        beside.say("HDEL h 7")


@pytest.mark.few_kinds
def test_another_proxy_sweeps_when_the_one_with_the_lease_is_killed(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    upstream = start_server(kind)
    beside = talk(upstream)
    first = start_proxy(upstream)
    begin = clock(beside)
    deadlines = {b"%d" % number: begin + 500 + number * 20 for number in range(400)}
    filler = talk(first)
    filler("SADD", "k", "stays", *deadlines)
    for member, deadline in deadlines.items():
        filler.raw.send_command("PEXPIREMEMBERAT", "k", member, deadline)
    filler.raw.replies(len(deadlines))
    until(lambda: beside("SCARD", "k") < 400, what="a sweep")
    lease = beside("GET", PREFIX + b"sweeper")
    start_proxy(upstream)
    wait_past(beside, clock(beside) + 200)
    assert beside("GET", PREFIX + b"sweeper") == lease, "the second proxy took the lease of a living one"
    first.process.send_signal(signal.SIGKILL)
    killed = clock(beside)
    overdue = 0
    while (moment := clock(beside)) < killed + 2600:
        left = [deadlines[member] for member in beside("SMEMBERS", "k") if member != b"stays"]
        overdue = max(overdue, moment - min(left))
        if moment > killed + 2000:
            assert min(left) > moment - 200
    assert overdue < 2000
    assert beside("GET", PREFIX + b"sweeper") != lease


def add_ten_thousand_again(client: Talk, beside: Talk, lifetime: int) -> bool:
    """Check that deadlines of absent members are void, and no others; gives False if one passed meanwhile."""
    members = [f"m{number}" for number in range(10_000)]
    client("DEL", "k")
    assert client("SADD", "k", *members) == 10_000
    client("EXPIREMEMBER", "k", "m1", FAR)
    deadline = clock(beside) + lifetime
    for member in ("m0", "m9999", "m5000"):
        client("PEXPIREMEMBERAT", "k", member, deadline)
    beside("SREM", "k", "m0", "m9999")
    added = client("SADD", "k", *members)
    if clock(beside) >= deadline:
        return False
    assert added == 2
    wait_past(beside, deadline)
    assert client("SISMEMBER", "k", "m5000") == 0
    assert client("SCARD", "k") == 9_999
    assert [client("TTL", "k", member) for member in ("m0", "m9999")] == [-1, -1]
    assert is_far(client("TTL", "k", "m1"))
    return True


def test_ten_thousand_members_at_once(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, beside = talk(proxy), talk(upstream)
    assert any(add_ten_thousand_again(client, beside, lifetime) for lifetime in (300, 2_000, 10_000)), "too slow"
    members = [f"m{number}" for number in range(10_000)]
    assert client("SREM", "k", *members) == 9_999
    assert client("RPUSH", "k", *members) == 10_000
    assert client("TTL", "k", "m1") == -1


@pytest.mark.parametrize("store", ["SUNIONSTORE k", "SDIFFSTORE k", "ZUNIONSTORE k 5000"])
def test_a_store_of_five_thousand_keys(proxy: Proxy, talk: Callable[..., Talk], store: str) -> None:
    client = talk(proxy)
    client.say("SADD o 7 1")
    client.say("SADD k 7 1")
    client.say(f"EXPIREMEMBER k 7 {FAR}")
    assert client(*store.split(), "o", *(f"n{number}" for number in range(4_999))) == 2
    assert client.say("TTL k 7") == -1


@pytest.mark.parametrize("protocol", [2, 3])
def test_counting_near_the_end_of_the_integers(proxy: Proxy, talk: Callable[..., Talk], protocol: int) -> None:
    client = talk(proxy, protocol=protocol)
    top = (1 << 63) - 1
    client("HSET", "h", "7", top - 1, "1", "1")
    client.say(f"EXPIREMEMBER h 7 {FAR}")
    assert client.say("HINCRBY h 7 1") == top
    assert "overflow" in str(client.say("HINCRBY h 7 1"))
    assert client.say("HINCRBY h 7 -3") == top - 3
    assert is_far(client.say("TTL h 7"))
    client.say("HDEL h 7")
    assert client("HINCRBY", "h", "7", -top) == -top
    assert client.say("TTL h 7") == -1


CARRYING = {"RENAME {k} {n}": 0, "RENAMENX {k} {n}": 0, "COPY {k} {n}": 0, "COPY {k} {n} DB 3": 3, "MOVE {n} 3": 3}


@pytest.mark.parametrize("line", CARRYING)
def test_deadlines_go_along_with_their_key(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], line: str
) -> None:
    client, there, beside = talk(proxy), talk(proxy, CARRYING[line]), talk(upstream, CARRYING[line])
    key = "n" if line.startswith("MOVE") else "k"
    deadline = clock(beside) + 200
    client.say(f"SADD {key} 7 8 1")
    client.say(f"EXPIREMEMBER {key} 7 {FAR}")
    client.say(f"PEXPIREMEMBERAT {key} 8 {deadline}")
    assert client.say(line.format(k="k", n="n")) in (1, b"OK")
    assert is_far(there.say("TTL n 7"))
    wait_past(beside, deadline)
    assert sorted(there.say("SMEMBERS n")) == [b"1", b"7"]
    if key == "n":
        client.say("SADD n 7")
        assert client.say("TTL n 7") == -1


@pytest.mark.parametrize(
    ("present", "condition", "wanted"),
    [
        (0, "NX", 1), (0, "XX", 0), (0, "GT", 0), (0, "LT", 1), (0, "XX GT", 0), (0, "XX LT", 0),
        (5, "NX", 0), (5, "XX", 1), (5, "GT", 1), (5, "LT", 0), (5, "XX GT", 1), (5, "LT XX", 0),
        (9, "GT", 0), (9, "LT", 0), (9, "XX", 1), (10, "GT", 0), (10, "LT", 1), (10, "XX LT", 1), (10, "GT XX", 0),
    ],
)  # fmt: skip
def test_a_deadline_with_a_condition(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], present: int, condition: str, wanted: int
) -> None:
    """Of a member whose deadline is `present` (0: none), to 9."""
    client = talk(proxy)
    moment = clock(talk(upstream)) // 1000 + FAR
    client.say("SADD k 7 1")
    if present:
        client.say(f"EXPIREMEMBERAT k 7 {moment + present}")
    assert client.say(f"PEXPIREMEMBERAT k 7 {(moment + 9) * 1000} {condition}") == wanted
    left = client.say("TTL k 7")
    assert left == -1 if not (present or wanted) else abs(left - FAR - (9 if wanted else present)) <= 1


def test_all_in_one_pipeline(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    """The proxy knows of the deadline before anybody has told it."""
    client, key = talk(proxy), new_key()
    lines = f"SADD {key} 7 1|EXPIREMEMBER {key} 7 {FAR}|SPOP {key} 2|SADD {key} 7|PTTL {key} 7".split("|")
    client.raw.send(b"".join(request(*line.split()) for line in lines))
    assert client.raw.replies(5)[-1] == b":-1\r\n"


def test_what_is_removed_by_name_leaves_nothing_behind(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(proxy), talk(upstream)
    for number, line in enumerate(("SREM {k} 7 1", "DEL {k}", "UNLINK x {k}", "SET {k} v XX")):
        client.say(f"SADD k{number} 7 1")
        client.say(f"EXPIREMEMBER k{number} 7 {FAR}")
        client.say(line.format(k=f"k{number}"))
        assert beside("EXISTS", PREFIX + b"k:{k%d}" % number) == 0, line
    assert beside("ZRANGE", PREFIX + b"index", 0, -1) == []


def is_void(server: Talk, shadow: bytes) -> bool:
    return float(server("ZSCORE", shadow, "7")) < 0


@pytest.mark.few_kinds
def test_deadlines_that_are_left_over_are_cleared(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    upstream = start_server(kind)
    beside = talk(upstream)
    idle = start_proxy(upstream, "--leftovers-rate", "0")
    client = talk(idle)
    for type_, line in FILL.items():
        client.say(line.format(k=type_))
        client.say(f"EXPIREMEMBER {type_} 7 {FAR}")
        client.say(f"EXPIREMEMBER {type_} 1 {FAR}")
        beside.say(REMOVE[type_].format(k=type_))
    client.say("SADD whole 7")
    client.say(f"EXPIREMEMBER whole 7 {FAR}")
    beside.say("DEL whole")
    idle.stop()  # of several proxies one does it
    cleaner = start_proxy(upstream, "--leftovers-rate", "100000")
    until(lambda: beside("EXISTS", PREFIX + b"k:{whole}") == 0, what="the end of the leftover")
    for type_, line in ADD_SCRIPT.items():
        shadow = PREFIX + b"k:{%s}" % type_.encode()
        until(partial(is_void, beside, shadow), what="the end of the leftover")
        beside.say(line.format(k=type_))
        assert talk(cleaner).say(f"TTL {type_} 7") == -1
        assert is_far(talk(cleaner).say(f"TTL {type_} 1"))


def check_void_ones_are_freed(server: Server, proxy: Proxy, connect: Callable[..., Talk]) -> None:
    client, beside = connect(proxy), connect(server)
    client.say("SADD s 7 8 9 1")
    far = clock(beside) + 1000 * FAR
    for member, deadline in {"7": far, "8": 1 << 52, "9": far + 1, "1": far + 2}.items():
        assert client("PEXPIREMEMBERAT", "s", member, deadline) == 1
    client.say("SREM s 7 8 9")
    shadow = PREFIX + b"k:{s}"
    look: list[str | bytes | int] = ["EVAL", script("void_page"), 3, "s", shadow, PREFIX + b"index", 0, 0, 100, 60_000]
    for _ in range(2):
        before = float(beside("ZSCORE", PREFIX + b"index", "s"))
        assert beside(*look)[2] == 0
        assert beside("ZSCORE", shadow, "8") is None  # in its score there is no room for more
        left = clock(beside)
        for member, deadline in (("7", far), ("9", far + 1), ("1", far + 2)):
            told = client("PTTL", "s", member)
            assert deadline - clock(beside) <= told <= deadline - left
        assert before <= float(beside("ZSCORE", PREFIX + b"index", "s")) < far + 1
        assert beside("EVAL", script("heal"), 3, PREFIX + b"index", "s", shadow, 0) == []
    # They were met a minute ago.
    seconds = int(clock(beside)) // 20_000
    for member, steps in (("7", 4), ("9", 1)):
        noted = (seconds - steps) % 63 + 1
        beside("ZADD", shadow, b"%d.%06d" % (-far - (member == "9"), noted * 15_625), member)
    beside(*look)
    assert client("TTL", "s", "7") == client("TTL", "s", "8") == -1
    assert is_far(client("TTL", "s", "9"))
    assert is_far(client("TTL", "s", "1"))
    assert float(beside("ZSCORE", PREFIX + b"index", "s")) >= far + 1
    # What comes and goes again is void anew.
    client.say("SADD s 9")
    assert client("TTL", "s", "9") == -1


def check_the_pass_frees(server: Server, cleaner: Proxy, connect: Callable[..., Talk]) -> None:
    """What it has met a minute ago."""
    client, beside = connect(cleaner), connect(server)
    client.say("SADD s 7 9 1")
    far = clock(beside) + 1000 * FAR
    for member in ("7", "9"):
        client("PEXPIREMEMBERAT", "s", member, far)
    client.say("SREM s 7 9")
    noted = (clock(beside) // 20_000 - 5) % 63 + 1
    beside("ZADD", PREFIX + b"k:{s}", b"%d.%06d" % (-far, noted * 15_625), "7")
    until(lambda: beside("ZSCORE", PREFIX + b"k:{s}", "7") is None, 25, "the pass")
    assert client("TTL", "s", "7") == -1
    assert is_far(client("TTL", "s", "9"))


@pytest.mark.few_kinds
def test_the_background_pass_frees_void_deadlines(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    upstream = start_server(kind)
    check_the_pass_frees(upstream, start_proxy(upstream, "--leftovers-rate", "100000"), talk)


def test_void_deadlines_are_freed_when_ttl_has_told_them_for_a_minute(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    check_void_ones_are_freed(lazy_upstream, lazy_proxy, talk)


def test_a_removed_member_tells_no_deadline_of_an_earlier_life(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client = talk(proxy)
    client.say("HSET h 7 7 1 1")
    client.say(f"EXPIREMEMBER h 7 {FAR}")
    client.say("HDEL h 7")
    assert is_far(client.say("TTL h 7"))
    for life in ("HINCRBY h 7 1", "EVAL redis.call('HSET',KEYS[1],'7','0') 1 h"):
        client.say(f"EXPIREMEMBER h 7 {FAR}")
        client.say("HDEL h 7")
        client.say(life)
        client.say("HDEL h 7")
        assert client.say("TTL h 7") == -1


@pytest.mark.parametrize("removal", ["SREM s 7", "SMOVE s o 7", "MULTI;SREM s 7;EXEC"])
def test_a_member_brought_back_by_a_script_tells_no_deadline_of_an_earlier_life(
    proxy: Proxy, talk: Callable[..., Talk], removal: str
) -> None:
    client = talk(proxy)
    client.say("SADD s 7 1")
    client.say(f"EXPIREMEMBER s 7 {FAR}")
    client("EVAL", "redis.call('SREM', KEYS[1], '7')", 1, "s")
    client("EVAL", "redis.call('SADD', KEYS[1], '7')", 1, "s")
    for line in removal.split(";"):
        client.say(line)
    assert client.say("TTL s 7") == -1


def test_a_pattern_named_store_is_no_target(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client = talk(proxy)
    client.say("SADD ASC 7 1")
    client.say(f"EXPIREMEMBER ASC 7 {FAR}")
    client.say("RPUSH l 2 1")
    assert client.say("SORT l BY store ASC") == [b"2", b"1"]
    assert is_far(client.say("TTL ASC 7"))


def test_a_store_too_long_for_a_script_is_refused_and_touches_nothing(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client = talk(proxy)
    many = [f"n{number}" for number in range(8_000)]
    client.say("SADD k 7 1")
    client.say(f"EXPIREMEMBER k 7 {FAR}")
    client.say("SADD o 8")
    with pytest.raises(hiredis.ReplyError, match="more than 7000 arguments"):
        raise client("SUNIONSTORE", "k", "o", *many)
    assert client.say("SCARD k") == 2
    assert is_far(client.say("TTL k 7"))
    assert client("SUNIONSTORE", "elsewhere", "o", *many) == 1
    client.say("MULTI")
    assert isinstance(client("SUNIONSTORE", "k", "o", *many), hiredis.ReplyError)
    assert "EXECABORT" in str(client.say("EXEC"))


def test_a_move_of_nothing_changes_nothing(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    """`TTL` tells of a member that has gone what it told before, until one of that name arrives."""
    client = talk(proxy)
    client.say("SADD s 1")
    client.say("SADD d 7 8")
    client.say(f"EXPIREMEMBER d 7 {FAR}")
    client("EVAL", "return redis.call('srem', KEYS[1], '7')", 1, "d")
    assert client.say("SMOVE s d 7") == 0
    assert is_far(client.say("TTL d 7"))
    client.say("SADD s 7")
    assert client.say("SMOVE s d 7") == 1
    assert client.say("TTL d 7") == -1


def test_the_index_tells_the_earliest_deadline_of_each_key(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(proxy), talk(upstream)
    index, early = PREFIX + b"index", clock(beside) + FAR * 1000
    late = early + 1000
    client.say("SADD k 7 8 1")
    client.say(f"PEXPIREMEMBERAT k 7 {early}")
    client.say(f"PEXPIREMEMBERAT k 8 {late}")
    assert beside("ZSCORE", index, "k") == b"%d" % early
    beside("SREM", "k", "7")
    client.say("SADD k 7")
    assert beside("ZSCORE", index, "k") == b"%d" % late
    client.say("MOVE k 3")
    assert beside("EXISTS", index) == 0
    assert talk(upstream, 3)("ZSCORE", index, "k") == b"%d" % late


def test_ttl_is_rounded_and_persist_ends_the_deadline(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(proxy), talk(upstream)
    client.say("SADD k 7")
    before = clock(beside)
    deadline = before + FAR * 1000 + 900
    client.say(f"PEXPIREMEMBERAT k 7 {deadline}")
    left = client.say("TTL k 7")
    after = clock(beside)
    assert (deadline - after + 500) // 1000 <= left <= (deadline - before + 500) // 1000
    assert client.say("PERSIST k 7") == 1
    assert client.say("TTL k 7") == -1
    assert client.say("PERSIST k 7") == 0


_SPEND: Final = """
local function spent()
  local told = redis.call('INFO', 'cpu')
  return tonumber(told:match('used_cpu_sys:([%d.]+)')) + tonumber(told:match('used_cpu_user:([%d.]+)'))
end
local enough = spent() + ARGV[1]
while spent() < enough do for _ = 1, 1000 do redis.call('PING') end end
"""
"""A server has no other clock that goes on while a script runs."""


def busy(seconds: float) -> list[str]:
    """Return a request that keeps the server busy for so many seconds of its CPU time: never for less than so long."""
    return ["EVAL", _SPEND, "0", str(seconds)]


UNDER_WAY: Final = {
    "expire": [("PEXPIREMEMBER k 7 900000 XX", 0)],
    "persist": [("PERSIST k 7", 0)],
    "many expire": [(f"EXPIREMEMBER k 7 {FAR}", 0)] * 6,  # those go together
    "many persist": [("PERSIST k 7", 0)] * 6,
}


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize(
    ("type_", "first"),
    [*(("set", first) for first in UNDER_WAY), ("hash", "expire"), ("zset", "expire"), ("list", "expire")],
)
def test_a_member_whose_deadline_passes_under_way_gets_no_other(
    proxy: Proxy, talk: Callable[..., Talk], type_: str, first: str, queued: bool
) -> None:
    """The requests wait in the server, behind a script of their own client's, until a deadline has passed."""
    client = talk(proxy)
    add = {"set": "SADD k 7 1", "hash": "HSET k 7 0 1 0", "zset": "ZADD k 0 7 1 1", "list": "RPUSH k 7 1"}[type_]
    remove = {"set": "SREM k 7", "hash": "HDEL k 7", "zset": "ZREM k 7", "list": "LREM k 0 7"}[type_]
    look = {"set": "SMEMBERS k", "hash": "HKEYS k", "zset": "ZRANGE k 0 -1", "list": "LRANGE k 0 -1"}[type_]
    wait = busy(0.2)
    lines: list[tuple[str, Any]] = [(look, [b"1"])] if queued else []
    for name in sorted(UNDER_WAY, key=lambda name: name != first):
        lines += [*UNDER_WAY[name], (look, [b"1"])]
    lines += [(f"EXPIREMEMBER k 1 {FAR}", 1), ("TTL k 7", -1)]
    words = [line.split() for line, _ in lines]
    client.say(add)
    client.say("PEXPIREMEMBER k 7 100")
    words = [wait, *([["MULTI"], *words, ["EXEC"]] if queued else words)]
    client.raw.send(b"".join(request(*one) for one in words))
    replies = [parse(reply) for reply in client.raw.replies(len(words))]
    assert (replies[-1] if queued else replies[1:]) == [reply for _, reply in lines]
    assert client.say("TTL k 7") == -1
    assert client.say(remove) == 0
    assert is_far(client.say("TTL k 1"))


@pytest.mark.parametrize(
    ("name", "arguments", "there", "gone"),
    [
        ("add", ["4 4 1", "SADD", "k", "7"], 0, 1),
        ("expire", ["7", "900000 relative expiremember "], 1, 0),
        ("persist", ["7"], 1, 0),
        ("ttl", ["7", "1"], 1, -1),
        ("ttl_members", ["set left 1 0 -2 one", "7"], 1, -2),
        ("persist_members", ["set", "7"], [1], [-2]),
        ("expire_members", ["900000 relative sexpire 9e15 set 2 ", "7"], [1], [-2]),
        ("expire_members", ["900000 relative sexpire 9e15 set 2 ", "7", "0"], [1, -2], [-2, -2]),
        ("set_members", ["900000 relative saddex 9e15 set done XX -", "7"], 1, 1),
        ("fail_members", ["ERR no", "hash"], "WRONGTYPE", "WRONGTYPE"),
        ("scan_members", ["0"], 2, 0),
        ("get_fields", ["none relative hgetex 9e15 leave", "7"], [b"0"], [None]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_transaction_sees_one_moment(
    upstream: Server, talk: Callable[..., Talk], name: str, arguments: list[str], there: object, gone: object
) -> None:
    check_one_moment(talk(upstream), script(name, Variant(cleared=True)), arguments, there, gone)


def check_one_moment(beside: Talk, text: bytes, arguments: list[str], there: object, gone: object) -> None:
    """What was due has been removed in front of its requests: what has passed since is there for all of them.

    So is a key of which nothing else is left.
    """
    shadow = PREFIX + b"k:{k}"

    def say(ago: int, members: list[str]) -> list[Any]:
        beside.say("DEL k")
        if "hgetex" in arguments[0]:
            beside("HSET", "k", *(word for member in members for word in (member, 0)))
        else:
            beside("SADD", "k", *members)
        moment = clock(beside)
        beside("ZADD", shadow, moment - ago, "7")  # not in the index, so nobody sweeps it
        reply = beside("EVAL", text, 3, "k", shadow, PREFIX + b"index", *arguments)
        if clock(beside) > moment + 40:
            return []  # it may have run too late
        if isinstance(reply, Exception):
            return str(reply).split()[:1]
        return [len(reply[1]) if arguments[0] == "0" else reply]

    assert until(lambda: say(0, ["7", "1"])) == [there]
    assert until(lambda: say(0, ["7"])) == [there]
    assert say(1000, ["7", "1"]) in ([gone], [])


def test_a_void_deadline_passes_in_a_transaction_as_elsewhere(upstream: Server, talk: Callable[..., Talk]) -> None:
    check_void_passes(talk(upstream), script("ttl", Variant(cleared=True)))


def check_void_passes(beside: Talk, text: bytes) -> None:
    shadow = PREFIX + b"k:{k}"
    beside.say("SADD k 1")
    beside("ZADD", shadow, -(clock(beside) - 1), "7")
    assert beside("EVAL", text, 2, "k", shadow, "7", "1") == -1


IN_A_TRANSACTION = {
    "SADD k 7": ("DEL k:2", "UNLINK k:2", "SREM k:2 7", "SADD k:2 7", "SET k:2 x GET", "SET k:2 x NX",
                 "RENAMENX k:2 k:3", "COPY k:2 k:3", "SMOVE k:2 k:3 7",
                 "RENAME k:2 new:3|SCARD new:3|SISMEMBER new:3 7", "COPY k:2 new:3|SCARD new:3|SISMEMBER new:3 7",
                 "SREM k:2 a|SREM k:2 7|SREM k:2 b|SREM k:2 c",
                 "SADD k:2 a|SADD k:2 7|SADD k:2 b|SADD k:2 c",
                 "PERSIST k:2 a|PERSIST k:2 7|PERSIST k:2 b|PERSIST k:2 c",
                 "EXPIREMEMBER k:2 a 9|EXPIREMEMBER k:2 7 9|EXPIREMEMBER k:2 b 9|EXPIREMEMBER k:2 c 9"),
    "RPUSH k 7": ("RPOPLPUSH k:2 k:3", "LMOVE k:2 k:3 LEFT LEFT", "RPUSH k:2 a|RPUSH k:2 b|RPUSH k:2 c|RPUSH k:2 d"),
}  # fmt: skip
"""Requests, by what makes their key. `new:` stands for a prefix that is not covered."""


@pytest.mark.parametrize(
    ("made", "probe"), [(made, probe) for made, some in IN_A_TRANSACTION.items() for probe in some]
)
def test_who_reads_in_a_transaction_finds_what_was_read(
    proxy: Proxy, talk: Callable[..., Talk], made: str, probe: str
) -> None:
    check_reads_hold(talk(proxy), made, probe)


def check_reads_hold(client: Talk, made: str, probe: str) -> None:
    """Whatever falls due meanwhile: each request answers as if nothing had."""
    client.say("SADD k:1 m")
    client.say(f"EXPIREMEMBER k:1 m {FAR}")

    def replies(delay: int) -> list[Any]:
        client.say("DEL k:2 k:3")
        client.say(made.replace("k", "k:2"))
        new = "".join(random.choices(string.ascii_lowercase, k=8))
        pieces = [
            [["MULTI"], ["TIME"], ["PEXPIREMEMBER", "k:2", "7", str(delay)], busy(0.008), ["EXISTS", "k:2"]],
            [line.replace("new:", f"{new}:").split() for line in probe.split("|")],
            [["TIME"], ["EXEC"]],
        ]
        for piece in pieces:
            client.raw.send(b"".join(request(*words) for words in piece))
            *_, last = client.raw.replies(len(piece))
        before, _, _, *found, after = parse(last)
        milliseconds = [int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in (before, after)]
        return [str(reply) for reply in found] if milliseconds[1] - milliseconds[0] < 40 else []

    assert until(lambda: replies(3)) == until(lambda: replies(FAR * 1000))


@pytest.mark.parametrize("count", [1, 6])
def test_the_deadline_of_a_removed_member_cannot_be_dropped_once_it_has_passed(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], count: int
) -> None:
    """`TTL` shows it no more. Six requests go together as one call."""
    check_void_is_dropped(talk(upstream), talk(proxy), count)


def check_void_is_dropped(beside: Talk, client: Talk, count: int) -> None:
    client.say("SADD k stays")
    client.say(f"EXPIREMEMBER k stays {FAR}")
    members = [b"%d" % number for number in range(count)]
    for moment, dropped in ((clock(beside) + 100_000, 1), (clock(beside) - 1, 0)):
        beside("ZADD", PREFIX + b"k:{k}", *(word for member in members for word in (b"-%d" % moment, member)))
        client.raw.send(b"".join(request("PERSIST", "k", member) for member in members))
        assert [parse(reply) for reply in client.raw.replies(count)] == [dropped] * count


def test_reads_that_come_first_in_a_transaction_hold_too(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    check_first_reads(talk(proxy), talk(proxy))


def check_first_reads(client: Talk, other: Talk) -> None:
    """Six of them, which elsewhere go together as one call."""
    client.say("SADD k:1 m")

    def reply() -> list[Any]:
        client.say("DEL k:2")
        client.say("SADD k:2 7")
        client.say(f"EXPIREMEMBER k:2 7 {FAR}")
        pieces = [[["MULTI"], ["TIME"], ["EXPIREMEMBER", "k:1", "m", str(FAR)]], [["PTTL", "k:2", "7"]] * 6]
        pieces.append([busy(0.02), ["SISMEMBER", "k:2", "7"], ["TIME"], ["EXEC"]])
        for piece in pieces:
            if len(piece) == 4:
                other.say("PEXPIREMEMBER k:2 7 10")
            client.raw.send(b"".join(request(*words) for words in piece))
            *_, last = client.raw.replies(len(piece))
        before, _, *lefts, _, there, after = parse(last)
        milliseconds = [int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in (before, after)]
        return [there] if min(lefts) > 0 and milliseconds[1] - milliseconds[0] < 45 else []

    assert until(reply) == [1]


def test_a_transaction_that_was_not_cleared_of_all_moves_nothing_that_is_due(
    upstream: Server, talk: Callable[..., Talk]
) -> None:
    check_left_over(talk(upstream), script("move_member", Variant(cleared=True)))


def check_left_over(beside: Talk, text: bytes) -> None:
    """Where more are due than a transaction removes in front of its requests, they count as due."""
    members = [b"%d" % number for number in range(2_500)]
    shadow, other, index = PREFIX + b"k:{k}", PREFIX + b"k:{k2}", PREFIX + b"index"
    beside("SADD", "k", *members)
    passed = clock(beside) - 1
    beside("ZADD", shadow, *(word for member in members for word in (passed, member)))
    beside("ZADD", index, passed, "k")
    assert beside("EVAL", text, 5, "k", shadow, "k2", other, index, "member", "2499", "SMOVE", "k", "k2", "2499") == 0
    assert beside("EXISTS", "k2") == 0


def test_a_request_in_a_transaction_removes_no_more_than_others_do(upstream: Server, talk: Callable[..., Talk]) -> None:
    check_much_left(talk(upstream), talk(upstream), script("vanish", Variant(cleared=True)))


def check_much_left(beside: Talk, user: Talk, text: bytes) -> None:
    """Whoever may remove members, 20,000 at a time and those that complete the last 2,000; whoever may not, none."""
    members, shadow, index = [b"%d" % number for number in range(30_000)], PREFIX + b"k:{k}", PREFIX + b"index"
    beside("SADD", "k", *members)
    beside("ZADD", shadow, *(word for member in members for word in (b"1", member)))
    beside("ACL", "SETUSER", "removes-none", "on", "nopass", "~*", "+@all", "-srem")
    beside("CONFIG", "RESETSTAT")
    for name, least, most in (("removes-none", 30_000, 30_000), ("default", 8_000, 10_000)):
        assert user("AUTH", name, "") == b"OK"
        assert user("EVAL", text, 3, index, "k", shadow, "SET", "k", "x", "NX") is None
        assert least <= beside("SCARD", "k") <= most
    looked = re.search(rb"cmdstat_zrangebyscore:calls=(\d+)", beside("INFO", "commandstats"))
    assert looked is not None
    assert int(looked[1]) < 40


@pytest.mark.parametrize("count", [1, 6])
def test_what_a_transaction_calls_gone_is_not_shown_by_its_next_request(
    proxy: Proxy, talk: Callable[..., Talk], count: int
) -> None:
    """Six requests go together as one call."""
    client = talk(proxy)
    client.say("SADD k 7")
    client.say(f"EXPIREMEMBER k 7 {FAR}")

    def replies() -> list[Any]:
        client.say("DEL k")
        client.say("SADD k 7")
        pieces = [[["MULTI"], ["TIME"], ["PEXPIREMEMBER", "k", "7", "3"], busy(0.008)], [["PTTL", "k", "7"]] * count]
        pieces.append([["SISMEMBER", "k", "7"], ["TIME"], ["EXEC"]])
        for piece in pieces:
            client.raw.send(b"".join(request(*words) for words in piece))
            *_, last = client.raw.replies(len(piece))
        before, _, _, *found, after = parse(last)
        milliseconds = [int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in (before, after)]
        return found if milliseconds[1] - milliseconds[0] < 40 else []

    *left, there = until(replies)
    assert there == 1
    assert len(left) == count
    assert set(left) <= {1, 2, 3}


@pytest.mark.parametrize(
    "line", ["DEL k", "RENAME k l", "COPY k l", "SUNIONSTORE l k", "SMOVE k l 7", "SREM k 7", "PERSIST k 7", "SCARD k"]
)
def test_no_time_passes_in_a_transaction(upstream: Server, proxy: Proxy, talk: Callable[..., Talk], line: str) -> None:
    client, beside = talk(proxy), talk(upstream)
    if upstream.version < (7, 2) and line.split()[0] not in ("SREM", "PERSIST", "SCARD"):
        return  # see rule 3 of docs/semantics.md: scripts are told the time that passes

    def replies() -> list[Any]:
        client.say("DEL k l")
        client.say("SADD k 7")
        client.say(f"PEXPIREMEMBERAT k 7 {clock(beside) + 10}")
        lines = ["MULTI", "SISMEMBER k 7", "DEBUG SLEEP 0.02", line, "EXEC"]
        client.raw.send(b"".join(request(*one.split()) for one in lines))
        return list(parse(client.raw.replies(len(lines))[-1]))

    got = until(lambda: (said := replies())[0] and said)  # else it has run too late
    assert got[2] in (1, b"OK"), got


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("type_", ["set", "hash", "zset", "list"])
def test_a_member_whose_deadline_passes_while_adders_wait_begins_a_new_life(
    proxy: Proxy, talk: Callable[..., Talk], type_: str, count: int
) -> None:
    client = talk(proxy)
    add = {"set": "SADD k {}", "hash": "HSET k {} 0", "zset": "ZADD k 0 {}", "list": "RPUSH k {}"}[type_]
    wait = busy(0.2)
    client.say(add.format("7"))
    client.say(add.format("8"))
    client.say("PEXPIREMEMBER k 7 100")
    words = [wait, *(add.format(member).split() for member in ("7", *"abcde")[:count])]
    client.raw.send(b"".join(request(*one) for one in words))
    replies = [parse(reply) for reply in client.raw.replies(len(words))][1:]
    assert replies == ([2, 3, 4, 5, 6, 7] if type_ == "list" else [1] * 6)[:count]
    assert client.say("TTL k 7") == -1
    time.sleep(0.3)  # the old deadline is long over
    assert client.say({"set": "SREM k 7", "hash": "HDEL k 7", "zset": "ZREM k 7", "list": "LREM k 0 7"}[type_]) == 1


def test_a_transaction_does_not_keep_what_it_could_not_clear(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """More is due than is removed in front of its requests."""
    client, other = talk(proxy), talk(upstream)
    wait = busy(0.2)
    client("SADD", "k", *range(700))
    soon = clock(other) + 400
    client.raw.send(b"".join(request("PEXPIREMEMBERAT", "k", member, soon) for member in range(700)))
    assert {parse(reply) for reply in client.raw.replies(700)} == {1}
    lines = ["MULTI", "PERSIST k 699", "EXPIREMEMBER k 698 900", "SADD k 697", "EXEC"]
    until(lambda: clock(other) > soon - 50)
    other.raw.send(request(*wait))
    time.sleep(0.02)
    client.raw.send(b"".join(request(*line.split()) for line in lines))
    assert parse(client.raw.replies(len(lines))[-1]) == [0, 0, 1]
    other.raw.reply()


@pytest.mark.parametrize("at_once", [True, False])
def test_all_keys_of_a_transaction_are_seen_at_one_moment(
    proxy: Proxy, talk: Callable[..., Talk], at_once: bool
) -> None:
    """Also where each of its requests names another."""
    client, other = talk(proxy), talk(proxy)
    keys = [f"moment:{number}" for number in range(40)]
    for key in keys:
        client("SADD", key, "7", "8")
    soon = clock(client) + 900
    for key in keys:
        client("PEXPIREMEMBERAT", key, "7", soon)
    words: list[tuple[str, ...]] = [("MULTI",), *(("SISMEMBER", key, "7") for key in keys), ("EXEC",)]
    if not at_once:
        for one in words[:-1]:
            client(*one)
        words = words[-1:]
    other.raw.send(request(*busy(1)))
    time.sleep(0.02)
    client.raw.send(b"".join(request(*one) for one in words))
    replies = parse(client.raw.replies(len(words))[-1])
    other.raw.reply()
    assert clock(client) > soon
    assert replies == [0] * 40


@pytest.mark.few_kinds
def test_a_transaction_that_sets_a_deadline_itself_shows_nothing_of_an_earlier_one(
    proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, other = talk(proxy), talk(proxy)
    client.say("SADD k 7 8 9")
    client.say("PEXPIREMEMBER k 7 800")
    for line in ("MULTI", f"EXPIREMEMBER k 8 {FAR}", "SISMEMBER k 7"):
        client.say(line)
    other.raw.send(request(*busy(1)))
    time.sleep(0.02)
    assert client.say("EXEC") == [1, 0]
    other.raw.reply()


def test_a_transaction_is_not_spoilt_by_its_own_deadlines(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    """They pass, and somebody reads the key, before it runs."""
    client, other = talk(proxy), talk(proxy)
    for line in ("MULTI", "SADD own:7 7 1", "PEXPIREMEMBER own:7 7 20", f"EXPIREMEMBER own:7 1 {FAR}"):
        client.say(line)
    time.sleep(0.05)
    assert other.say("SMEMBERS own:7") == []
    other.say("SMEMBERS own:7")
    assert client.say("EXEC") == [2, 1, 1]


@pytest.mark.parametrize("add", ["SADD {k} 7", "SUNIONSTORE {k} source"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_transaction_is_not_spoilt_while_its_first_deadline_waits(
    proxy: Proxy, talk: Callable[..., Talk], add: str, at_once: bool
) -> None:
    """It waits for somebody's long pipeline, which names other keys."""
    client, other = talk(proxy), talk(proxy)
    client.say("SADD source 7")
    pipeline = request(*busy(0.05)) + b"".join(request("SET", f"else:{number}", "x" * 20) for number in range(200))
    for number in range(5):
        key = f"waits:{add[:4]}:{at_once}:{number}"
        lines = ["MULTI", add.format(k=key), f"EXPIREMEMBER {key} 7 {FAR}", "EXEC"]
        other.raw.send(pipeline)
        time.sleep(0.01)
        if at_once:
            client.raw.send(b"".join(request(*line.split()) for line in lines))
            replies = [parse(reply) for reply in client.raw.replies(len(lines))]
        else:
            replies = [client.say(line) for line in lines]
        assert replies[-1] == [1, 1]
        other.raw.replies(201)


@pytest.mark.parametrize("line", ["SUNIONSTORE expected:7 " + "o " * 7_500, "SET x expected:7"])
def test_what_only_looks_like_a_deadline_takes_nothing_away(proxy: Proxy, talk: Callable[..., Talk], line: str) -> None:
    client = talk(proxy)
    client.say("SADD o 1")
    words = [["MULTI"], line.split(), ["SET", "y", "EXPIREMEMBER\r\n$10\r\nexpected:7"], ["EXEC"]]
    client.raw.send(b"".join(request(*one) for one in words))
    assert len(parse(client.raw.replies(4)[-1])) == 2


def test_a_transaction_that_goes_to_another_database_sees_one_moment_there_too(
    proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, there = talk(proxy), talk(proxy, 3)
    wait = busy(0.2)
    for one in (client, there):
        one.say("SADD k 7 1")
        one.say("PEXPIREMEMBER k 7 100")
    lines = ["SMEMBERS k", "SELECT 3", "SMEMBERS k", f"EXPIREMEMBER k 7 {FAR}", "SELECT 0", "SMEMBERS k"]
    words = [wait, ["MULTI"], *(line.split() for line in lines), ["EXEC"]]
    client.raw.send(b"".join(request(*one) for one in words))
    assert parse(client.raw.replies(len(words))[-1]) == [[b"1"], b"OK", [b"1"], 0, b"OK", [b"1"]]


@pytest.fixture
def uncovered(kind: str, start_server: StartServer, start_proxy: StartProxy) -> Proxy:
    """One that covers nothing yet."""
    return start_proxy(start_server(kind))


@pytest.mark.parametrize(
    "lines",
    [("HDEL {k} 7", "HINCRBY {k} 7 5"), ("DEL {k}", "HINCRBY {k} 7 5"), ("HDEL {k} 7", "EVAL {s} 1 {k} 7")],
    ids=["HINCRBY", "DEL", "EVAL"],
)
def test_a_transaction_that_removes_and_brings_back_is_spoilt_by_somebody_elses_first_deadline(
    uncovered: Proxy, talk: Callable[..., Talk], lines: tuple[str, ...]
) -> None:
    client, other = talk(uncovered), talk(uncovered)
    key = "spoilt"
    client.say(f"HSET {key} 7 1 8 1")
    client.say("MULTI")
    for line in lines:
        client(*(word.format(k=key, s="return redis.call('HSET', KEYS[1], ARGV[1], 9)") for word in line.split()))
    assert other.say(f"EXPIREMEMBER {key} 7 {FAR}") == 1
    assert "EXECABORT" in str(client.say("EXEC"))
    assert is_far(client.say(f"TTL {key} 7"))


@pytest.mark.parametrize("death", ["SPOP", "RENAME"])
@pytest.mark.parametrize("gap", [1, 2])
def test_a_transaction_that_adds_and_expires_is_spoilt_by_somebody_elses_first_deadline(
    uncovered: Proxy, talk: Callable[..., Talk], gap: int, death: str
) -> None:
    """It is queued bit by bit: what it adds went as it came, as the key had no deadlines then."""
    client, other = talk(uncovered), talk(uncovered)
    key = "spoilt"
    lines = ["MULTI", f"SADD {key} 7", f"EXPIREMEMBER {key} 1 {FAR}"]
    for line in lines[: gap + 1]:
        client.say(line)
    other.say(f"SADD {key} 7")
    assert other.say(f"EXPIREMEMBER {key} 7 {FAR}") == 1
    other.say(f"{death} {key}" if death == "SPOP" else f"{death} {key} {key}:other")
    for line in lines[gap + 1 :]:
        client.say(line)
    assert "EXECABORT" in str(client.say("EXEC"))
    assert client.say(f"SADD {key} 7") == 1
    assert client.say(f"TTL {key} 7") == -1


def test_two_transactions_that_add_and_expire_do_not_spoil_each_other(
    uncovered: Proxy, talk: Callable[..., Talk]
) -> None:
    """Sent in one piece they are judged as a whole; bit by bit the one that runs first spoils the other."""
    one, two = talk(uncovered), talk(uncovered)
    for line in ("MULTI", "SADD spoilt-by-both:one 1", f"EXPIREMEMBER spoilt-by-both:one 1 {FAR}"):
        one.say(line)
        two.say(line)
    assert one.say("EXEC") == [1, 1]
    assert "EXECABORT" in str(two.say("EXEC"))
    words = [
        line.split() for line in ("MULTI", "SADD spoilt-by-both:two 7", f"EXPIREMEMBER spoilt-by-both:two 7 {FAR}")
    ]
    for client in (one, two):
        client.raw.send(b"".join(request(*one) for one in words))
        assert parse(client.raw.replies(3)[-1]) == b"QUEUED"
    assert two.say("EXEC") == [1, 1]
    assert one.say("EXEC") == [0, 1]


def test_every_occurrence_of_an_element_goes(proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client = talk(proxy)
    client.say("RPUSH l 7 1 7 7")
    assert client.say("PEXPIREMEMBERAT l 7 1") == 1
    assert client.say("LRANGE l 0 -1") == [b"1"]


MOVES_WITHIN = ("LMOVE l l LEFT RIGHT", "LMOVE l l LEFT LEFT", "RPOPLPUSH l l", "BLMOVE l l LEFT RIGHT 0")


@pytest.mark.parametrize("queued", [False, True], ids=["alone", "in-a-transaction"])
def test_an_element_that_moves_within_its_list_lives_on(proxy: Proxy, talk: Callable[..., Talk], queued: bool) -> None:
    client = talk(proxy)
    for line, elements in itertools.product(MOVES_WITHIN, ("7", "7 1", "7 1 7", "1 7")):
        client("DEL", "l")
        client.say(f"RPUSH l {elements}")
        client.say(f"EXPIREMEMBER l 7 {FAR}")
        if queued:
            client("MULTI")
        client.say(line)
        if queued:
            client("EXEC")
        assert client.say("LLEN l") == len(elements.split())
        assert is_far(client.say("TTL l 7")), (line, elements)


def test_a_transaction_that_the_server_refused_hides_nothing(
    lazy_upstream: Server, lazy_proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(lazy_proxy), talk(lazy_upstream)
    for opening in ("MULTI x", "SUBSCRIBE ch;MULTI;UNSUBSCRIBE ch"):
        key = new_key()
        client.say(f"SADD {key} 7 1")
        deadline = clock(beside) + 50
        client.say(f"PEXPIREMEMBERAT {key} 7 {deadline}")
        for line in opening.split(";"):
            client.say(line)
        wait_past(beside, deadline)
        assert client.say(f"SMEMBERS {key}") == [b"1"], opening


@pytest.mark.few_kinds
def test_what_is_due_goes_when_there_is_no_memory_left(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    swept, lazy = start_proxy(server), start_proxy(server, "--no-sweep")
    client, beside = talk(lazy), talk(server)
    deadline = clock(beside) + 300
    for database, late in ((0, 0), (1, 100_000)):
        client.say(f"SELECT {database}")
        for key in ("s", "read"):
            client.say(f"SADD {key} 7 1")
            client.say(f"PEXPIREMEMBERAT {key} 7 {deadline + late}")
    client.say("SELECT 0")
    beside.say("CONFIG SET maxmemory 1")
    wait_past(beside, deadline)
    assert client.say("SMEMBERS read") == [b"1"]
    until(lambda: beside.say("SMEMBERS s") == [b"1"], 10, lambda: f"the sweeper: {swept.process.output}")
    assert "sweep failed" not in swept.process.output
    client.say("SELECT 1")
    assert client.say("SCARD read") == 2


def test_a_member_that_goes_while_a_transaction_is_queued_comes_back_without_a_deadline(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """What a script may bring back is voided before EXEC once more, and what HINCRBY may within the transaction."""
    client, beside = talk(proxy), talk(upstream)
    script = ("EVAL", "return redis.call('hincrby', KEYS[1], 'f', 1)", "1")
    for count in (("HINCRBY", "{}", "f", "1"), (*script, "{}")):
        key = new_key()
        client("HSET", key, "f", 1, "g", 1)
        assert client("EXPIREMEMBER", key, "f", 1000) == 1
        client("MULTI")
        assert client(*(word.format(key) if word == "{}" else word for word in count)) == b"QUEUED"
        assert beside("HDEL", key, "f") == 1
        assert client("EXEC") == [1]
        assert client("TTL", key, "f") == -1, count
