"""A deadline belongs to one life of a member: every way to remove one, every way to add one, every way to look."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import hiredis
import pytest

from tests.conftest import StartProxy, StartServer
from tests.model import parse
from tests.raw import Raw
from tests.servers import KINDS, Proxy, Server, until

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


@pytest.fixture(scope="session")
def lazy_proxy(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives a proxy without a sweeper in front of the shared server of a kind."""
    with ExitStack() as stack:
        proxies: dict[str, Proxy] = {}

        def get(kind: str) -> Proxy:
            if kind not in proxies:
                proxies[kind] = Proxy("--upstream", shared_server(kind).url, "--no-sweep", "--leftovers-rate", "0")
                stack.callback(proxies[kind].close)
            return proxies[kind]

        yield get


def clock(server: Talk) -> int:
    """The server's own clock, in Unix ms."""
    seconds, micros = server("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


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
        keys: each key with its type and the way to add to it.
    """

    through: Talk
    beside: Talk
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)

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
    assert all(bench.through("EXEC"))


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
    "BZPOPMIN": only("zset", "BZPOPMIN {k} 0"),
    "BZPOPMAX": only("zset", "BZPOPMAX {k} 0", "BZPOPMAX {k} 0"),
    "ZMPOP": only("zset", "ZMPOP 1 {k} MIN"),
    "BZMPOP": only("zset", "BZMPOP 0 1 {k} MIN"),
    "ZREMRANGEBYSCORE": only("zset", "ZREMRANGEBYSCORE {k} 1 1"),
    "ZREMRANGEBYRANK": only("zset", "ZREMRANGEBYRANK {k} 0 0"),
    "ZREMRANGEBYLEX": only("zset", "ZREMRANGEBYLEX {k} - +"),
    "LPOP": only("list", "LPOP {k}"),
    "RPOP": only("list", "RPOP {k} 2"),
    "BLPOP": only("list", "BLPOP {k} 0"),
    "BRPOP": only("list", "BRPOP {k} 0", "BRPOP {k} 0"),
    "LMPOP": only("list", "LMPOP 1 {k} LEFT"),
    "BLMPOP": only("list", "BLMPOP 0 1 {k} LEFT"),
    "LTRIM": only("list", "LTRIM {k} 1 -1"),
    "LSET": only("list", "LSET {k} 0 2"),
    "LMOVE": only("list", "LMOVE {k} {o}m LEFT RIGHT"),
    "RPOPLPUSH": only("list", "RPOPLPUSH {k} {o}m", "RPOPLPUSH {k} {o}m"),
    "BLMOVE": only("list", "BLMOVE {k} {o}m LEFT RIGHT 0"),
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
        for kind, ways in ADDERS.items()
        for number, way in enumerate(ways.split("|"))
    }
    bench.each(FILL)
    deadline = clock(bench.beside) + milliseconds
    bench.all(f"PEXPIREMEMBERAT {{k}} 7 {deadline}")
    remove(bench)
    # Where the way does nothing to this type, there is nothing to see.
    bench.keys = {
        key: (kind, way)
        for key, (kind, way) in bench.keys.items()
        if not bench.beside.say(HOLDS[kind].format(k=key))
    }
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
    until(lambda: bench.through("SMEMBERS", "witness") in ([b"stays"], {b"stays"}), what="the end of the witness")
    until(lambda: bench.beside("SCARD", "witness") == 1, what="the end of the witness in the server")
    wrong = {
        way: (key, where, lifetime)
        for key, (kind, way) in bench.keys.items()
        for where in (bench.through, bench.beside)
        if where.say(HOLDS[kind].format(k=key)) in (None, 0)
        or (lifetime := bench.through("PTTL", key, "7")) != -1
    } if False else {}
    for key, (kind, way) in bench.keys.items():
        holds = HOLDS[kind].format(k=key)
        seen = bench.through.say(holds), bench.beside.say(holds), bench.through("PTTL", key, "7")
        if seen[0] in (None, 0) or seen[1] in (None, 0) or seen[2] != -1:
            wrong[f"{kind}: {way}"] = seen
    assert not wrong
