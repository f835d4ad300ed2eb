"""Random programs, run against the model and the real thing: every reply agrees, and what is there in the end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import StartProxy
from tests.cuts import Cuts
from tests.model import (
    ADDERS,
    FAR_MS,
    MARKING,
    REPLACERS,
    SCRIPTS,
    SLACK_MS,
    Model,
    Now,
    Words,
    agrees,
    in_script,
    is_relative,
    is_word,
    parse,
    plain,
)
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.test_lives import Talk, as_stranger, knows

DATABASES: Final = 3
FENCE: Final = 15
"""A database of the test's own."""

SOON_MS: Final = 70
NEAR: Final = 10**12
"""Unix ms: moments in requests are long gone, soon or far."""

PREFIX: Final = b"__expiremember__:"

KEYS = {
    "hash": ("h", "{t}h"),
    "set": ("s", "a}s"),
    "zset": ("z", "{z"),
    "list": ("l", "{}l"),
    "string": ("t",),
}
INDEX_AND_SHADOWS = """
local shadows, earliest, index = redis.call('keys', ARGV[1] .. '?:*'), {}, {}
for place, shadow in ipairs(shadows) do
  local scores = redis.call('zrange', shadow, 0, -1, 'withscores')
  for at = 2, #scores, 2 do
    local score = math.abs(tonumber(scores[at]))
    if not earliest[place] or score < earliest[place] then earliest[place] = score end
  end
end
local scores = redis.call('zrange', ARGV[1] .. 'index', 0, -1, 'withscores')
for place = 2, #scores, 2 do index[place / 2] = tonumber(scores[place]) end
return {shadows, earliest, index}
"""
"""A database's shadows, the earliest deadline of each, and those in the index, all at one moment."""
EVERY_KEY = tuple(key for keys in KEYS.values() for key in keys)
MEMBERS = ("a", "b", "c", "7")


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        proxy: through which of the proxies.
        database: where.
        requests: what, one after the other.
        transaction: whether all together are one.
        pipelined: whether they are sent in one piece.
    """

    proxy: int
    database: int
    requests: tuple[tuple[str, ...], ...]
    transaction: bool = False
    pipelined: bool = False

    def __repr__(self) -> str:
        way = " MULTI" if self.transaction else " PIPELINE" if self.pipelined else ""
        return f"[{self.proxy}:{self.database}{way}] " + "; ".join(" ".join(words) for words in self.requests)


NOTHING: Final = Step(0, 0, ())
WAIT: Final = Step(0, 0, (("WAIT",),))
LOOK: Final = Step(0, 0, (("LOOK",),))


# Programs. A request is written with blanks for its words: {h} a key that is likely a hash, {s} {z} {l} {t} likewise,
# {k} any key, {m} a member, {n} a small number, {w} a far deadline, {d} a database.

TEMPLATES = """
    HSET {h} {m} {n}|HSET {h} {m} {n} {m} {n}|HMSET {h} {m} {n}|HSETNX {h} {m} {n}|HINCRBY {h} {m} {n}
    HINCRBYFLOAT {h} {m} 0.5|HDEL {h} {m}|HDEL {h} {m} {m}|HGET {h} {m}|HGETALL {h}|HLEN {h}
    SADD {s} {m}|SADD {s} {m} {m}|SREM {s} {m}|SREM {s} {m} {m}|SMOVE {s} {s} {m}|SPOP {s}|SPOP {s} 2|SMEMBERS {s}
    SUNIONSTORE {s} {s} {s}|SINTERSTORE {s} {s}|SDIFFSTORE {s} {s} {s}|SCARD {s}|SISMEMBER {s} {m}
    ZADD {z} {n} {m}|ZADD {z} {n} {m} {n} {m}|ZADD {z} NX {n} {m}|ZADD {z} XX CH {n} {m}|ZADD {z} GT CH {n} {m}
    ZADD {z} LT {n} {m}|ZADD {z} INCR {n} {m}|ZADD {z} NX INCR {n} {m}|ZINCRBY {z} {n} {m}|ZREM {z} {m}|ZPOPMIN {z}
    ZPOPMAX {z} 2|ZREMRANGEBYSCORE {z} {n} {n}|ZREMRANGEBYRANK {z} 0 0|ZUNIONSTORE {z} 2 {z} {z}
    ZINTERSTORE {z} 2 {z} {s}|ZDIFFSTORE {z} 2 {z} {z}|ZRANGESTORE {z} {z} 0 1|ZRANGE {z} 0 -1 WITHSCORES|ZCARD {z}
    LPUSH {l} {m}|RPUSH {l} {m} {m}|LPUSHX {l} {m}|RPUSHX {l} {m}|LINSERT {l} BEFORE {m} {m}|LINSERT {l} AFTER {m} {m}
    LSET {l} 0 {m}|LSET {l} -1 {m}|LREM {l} 0 {m}|LREM {l} 1 {m}|LREM {l} -1 {m}|LPOP {l}|RPOP {l} 2|LTRIM {l} 1 -1
    LTRIM {l} 0 1|LMOVE {l} {l} LEFT RIGHT|LMOVE {l} {l} RIGHT LEFT|RPOPLPUSH {l} {l}|BLMOVE {l} {l} LEFT LEFT 0.005
    BRPOPLPUSH {l} {l} 0.005|LRANGE {l} 0 -1|LLEN {l}|SORT {l} ALPHA STORE {l}|SORT {s} ALPHA STORE {l}
    SET {t} x|SET {k} x|MSET {t} x {k} y|SETNX {k} x|GETSET {t} y|APPEND {t} z|GET {k}
    DEL {k}|DEL {k} {k}|UNLINK {k}|EXISTS {k} {k}|TYPE {k}|EXPIRE {k} -1|KEYS *
    RENAME {k} {k}|RENAMENX {k} {k}|COPY {k} {k}|COPY {k} {k} REPLACE|COPY {k} {k} DB {d} REPLACE|COPY {k} {k} DB {d}
    MOVE {k} {d}|SWAPDB {d} {d}|FLUSHDB
    EVAL add {h} {m}|EVAL add {s} {m}|EVAL add {z} {m}|EVAL add {l} {m}|EVAL remove {h} {m}|EVAL remove {s} {m}
    EVAL remove {z} {m}|EVAL remove {l} {m}|EVAL renew {h} {m}|EVAL renew {s} {m}|EVAL renew {z} {m}
    EVAL renew {l} {m}
"""

NEWEST = """
    LMOVEM {l} {l} LEFT RIGHT COUNT 2 OBO|LMOVEM {l} {l} RIGHT LEFT COUNT 1 BULK|LMOVEM {l} {l} LEFT LEFT COUNT 2 OBO
    LMOVEM {l} {l} RIGHT RIGHT EXACTLY 2 OBO|BLMOVEM {l} {l} LEFT RIGHT 0.005 COUNT 2 OBO
    BLMOVEM {l} {l} RIGHT LEFT 0.005 EXACTLY 2 BULK|HIMPORT SET {h} ab {n} {n}|HIMPORT SET {h} ab {n}
    HIMPORT SET {h} b7 {n} {n}|DELEX {k}
"""
"""Those of Redis 8.10; a field set has the letters of its name as fields."""

WORDS = """
    SPEXPIREAT {s} @far{w} MEMBERS 2 {m} {m}|SPEXPIREAT {s} @far{w} {o} MEMBERS 1 {m}|SPTTL {s} MEMBERS 2 {m} {m}
    SPERSIST {s} MEMBERS 2 {m} {m}|SEXPIRE {s} 0 MEMBERS 1 {m}|SPEXPIREAT {s} 1 {o} MEMBERS 2 {m} {m}
    SEXPIREAT {s} @farsec{w} {o} MEMBERS 2 {m} {m}|SEXPIRE {s} 1{w}00 {x} MEMBERS 2 {m} {m}
    SPEXPIRE {s} 4{w}0000 MEMBERS 1 {m}|STTL {s} MEMBERS 1 {m}|SEXPIRETIME {s} MEMBERS 2 {m} {m}
    SPEXPIRETIME {s} MEMBERS 1 {m}|SPEXPIREAT {s} @far{w} MEMBERS 2 {m}|STTL {s} MEMBERS 1 {m} {m}
"""
"""The words of other servers, for sets; those for the other types are made of them."""

FIELD_WORDS = """
    HSETEX {h} FIELDS 1 {m} {n}|HSETEX {h} KEEPTTL FIELDS 2 {m} {n} {m} {n}|HSETEX {h} PXAT 1 FIELDS 1 {m} {n}
    HSETEX {h} FNX PXAT @far{w} FIELDS 2 {m} {n} {m} {n}|HSETEX {h} FXX EX 1{w}00 FIELDS 1 {m} {n}
    HGETEX {h} FIELDS 1 {m}|HGETEX {h} PXAT @far{w} FIELDS 2 {m} {m}|HGETEX {h} PERSIST FIELDS 2 {m} {m}
    HGETEX {h} EX 0 FIELDS 1 {m}|HGETEX {h} PX 3{w}0000 FIELDS 1 {m}|HGETDEL {h} FIELDS 2 {m} {m}
"""
ADD_WORDS = """
    SADDEX {s} MEMBERS 2 {m} {m}|SADDEX {s} KEEPTTL MEMBERS 1 {m}|SADDEX {s} MNX PXAT @far{w} MEMBERS 1 {m}
    SADDEX {s} MXX EX 1{w}00 MEMBERS 2 {m} {m}|SADDEX {s} PX 0 MEMBERS 1 {m}|SADDEX {s} MXX MEMBERS 1 {m}
    SADDEX {s} 1{w}00 {m} {m}|SADDEX {s} KEEPTTL 2{w}00 {m} {m}
"""
OWN_WORDS = """
    FIELDEXPIRE {c} 1{w}00 {m} {m}|FIELDEXPIRE {c} 0 {m}|FIELDTTL {c} {m}|EXPIREMEMBERTIME {c} {m}
    PEXPIREMEMBERTIME {c} {m}|EXPIREMEMBERSCAN {c} 0
"""

LIFETIMES = """
    PEXPIREMEMBERAT {c} {m} @far{w}|PEXPIREMEMBERAT {c} {m} @far{w}|PEXPIREMEMBERAT {c} {m} @far{w} {o}
    PEXPIREMEMBERAT {c} {m} @far{w} {o}|EXPIREMEMBERAT {c} {m} @farsec{w}|EXPIREMEMBER {c} {m} 1{w}00
    EXPIREMEMBER {c} {m} 2{w}0000 ms|EXPIREMEMBER {c} {m} 3{w}00 s {x}|PEXPIREMEMBER {c} {m} 4{w}0000
    PEXPIREMEMBER {c} {m} 5{w}0000 {x}|PEXPIREMEMBERAT {c} {m} 1|EXPIREMEMBER {c} {m} 0|PEXPIREMEMBER {c} {m} -5
    EXPIREMEMBER {c} {m} -1 {o}|TTL {c} {m}|PTTL {c} {m}|PERSIST {c} {m}|PTTL {k} {m}
"""
SOON = "PEXPIREMEMBERAT {c} {m} @soon|PEXPIREMEMBERAT {c} {m} @soon {o}|PEXPIREAT {c} @soon"


def _lines(text: str) -> list[str]:
    return [line.strip() for row in text.strip().splitlines() for line in row.split("|")]


COLLECTIONS: Final = ("hash", "set", "zset", "list")
_LETTERS: Final = {"hash": "h", "set": "s", "zset": "z", "list": "l", "string": "t"}


def _words_for(kind: str) -> list[str]:
    letter, noun = _LETTERS[kind], "FIELDS" if kind == "hash" else "MEMBERS"
    lines = _lines(WORDS.replace("{s}", f"{{{letter}}}").replace("MEMBERS", noun))
    more = {"hash": FIELD_WORDS, "set": ADD_WORDS}.get(kind, "")
    return [*(letter.upper() + line[1:] for line in lines), *(_lines(more) if more else ())]


_ALL: Final = [*_lines(TEMPLATES), *(line for kind in ("set", "zset", "list") for line in _words_for(kind))]
_ALL_OLD: Final = [*_ALL, *_words_for("hash")]
"""With those for hashes, which newer servers have themselves."""

_ALL_NEWEST: Final = [*_ALL, *_lines(NEWEST) * 3]
_NOT_QUEUED: Final = ("EVAL", "SWAPDB", "FLUSHDB")
"""Not in transactions: what stands in docs/semantics.md as happening before EXEC, not within it."""


def _choices(focus: str) -> dict[str, st.SearchStrategy[str]]:
    likely = {letter: KEYS[kind] * 6 + EVERY_KEY for kind, letter in _LETTERS.items()}
    collections = tuple(key for kind in COLLECTIONS for key in KEYS[kind])
    return {
        **{letter: st.sampled_from(keys) for letter, keys in likely.items()},
        "k": st.sampled_from(KEYS[focus] * 5 + EVERY_KEY),
        "c": st.sampled_from(KEYS[focus] * 8 + collections),
        "m": st.sampled_from(("a", "b") * 3 + MEMBERS),
        "n": st.sampled_from("12345"),
        "w": st.sampled_from("123"),
        "d": st.sampled_from("012"),
        "o": st.sampled_from(("NX", "XX", "GT", "LT")),
        "x": st.sampled_from(("NX", "XX")),
    }


def _filled(template: str, choices: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[tuple[str, ...]]:
    parts = template.replace("{", "\0{").replace("}", "}\0").split("\0")
    chosen = [choices[part[1:-1]] if part.startswith("{") else st.just(part) for part in parts]
    return st.tuples(*chosen).map(lambda drawn: _words("".join(drawn)))


def _words(line: str) -> tuple[str, ...]:
    words = tuple(line.split(" "))
    if words[0] != "EVAL":
        return words
    kind = next((kind for kind in COLLECTIONS if words[2] in KEYS[kind]), "set")
    add, remove = SCRIPTS[kind]
    lines = {"add": (add,), "remove": (remove,), "renew": (remove, add)}[words[1]]
    return "EVAL", in_script(*lines), "1", *words[2:]


def _life(lines: list[str], kind: str, key: str, member: str) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    """A member that is added and gets a deadline, and then two requests that likely concern it."""
    letter = _LETTERS[kind]
    here = st.sampled_from((key, key, key, *KEYS[kind]))
    choices = {
        **_choices(kind),
        **dict.fromkeys((letter, "k", "c"), here),
        "m": st.sampled_from((member, member, member, *MEMBERS)),
    }
    own = [line for line in lines if f"{{{letter}}}" in line]

    def one_of(lines: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
        return st.sampled_from([_filled(line, choices) for line in lines]).flatmap(_drawn)

    anything = one_of([*own, *(line for line in lines if "{k}" in line), *_lines(LIFETIMES)])
    removal = st.just(_words(f"EVAL remove {key} {member}"))
    addition = one_of(
        [line for line in own if line.split()[0] in ADDERS | REPLACERS or "MOVE" in line or "add" in line]
    )
    add = tuple(word.format(k=key, m=member) for word in SCRIPTS[kind][0].split())
    return st.builds(
        lambda moment, second, third: (add, ("PEXPIREMEMBERAT", key, member, moment), second, third),
        st.sampled_from(("@far1", "@far2", "@far3")),
        st.one_of(anything, removal),
        st.one_of(anything, addition),
    )


def _has_script(requests: Sequence[Words]) -> bool:
    return any(words[0] == "EVAL" for words in requests)


def _drawn(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return strategy


def _program(
    everything: list[str], proxies: int, size: int, focus: str, *, timed: bool
) -> st.SearchStrategy[list[Step]]:
    choices = _choices(focus)

    def requests(lines: list[str]) -> st.SearchStrategy[tuple[str, ...]]:
        return st.sampled_from([_filled(line, choices) for line in lines]).flatmap(_drawn)

    letter = f"{{{_LETTERS[focus]}}}"
    own = [line for line in everything if letter in line]
    general = [line for line in everything if "{k}" in line or "{" not in line]
    lifetimes = requests(_lines(LIFETIMES) + _lines(OWN_WORDS) + (_lines(SOON) * 2 if timed else []))
    plain_requests = [requests(own), requests(own), requests(own), requests(general), requests(everything)]
    queued = st.one_of(
        requests([line for line in own if not line.startswith(_NOT_QUEUED)]),
        requests([line for line in everything if not line.startswith(_NOT_QUEUED)]),
        lifetimes,
    )
    where = st.integers(0, proxies - 1), st.sampled_from((0, 0, 0, 0, 0, 1, 2))
    single = [
        st.builds(lambda proxy, database, words: Step(proxy, database, (words,)), *where, requests)
        for requests in (*plain_requests, lifetimes, lifetimes, lifetimes)
    ]
    lives = [_life(everything, focus, key, member) for key in KEYS[focus] for member in MEMBERS[:2]]
    life = st.builds(
        lambda proxy, database, words, together: Step(proxy, database, words, together and not _has_script(words)),
        *where,
        st.sampled_from(lives).flatmap(_drawn),
        st.booleans(),
    )
    transaction = st.builds(
        lambda proxy, database, queued: Step(proxy, database, tuple(queued), transaction=True),
        *where,
        st.lists(queued, min_size=1, max_size=5),
    )
    pauses = (NOTHING, WAIT, LOOK) if timed else (NOTHING, LOOK)
    return st.lists(
        st.one_of(st.sampled_from(pauses), *single, life, life, life, transaction), min_size=size // 2, max_size=size
    )


def programs(proxies: int, size: int, lines: list[str] = _ALL) -> st.SearchStrategy[list[Step]]:
    """Random programs for so many proxies, of so many steps at most; each mostly about one type of collection."""
    kinds = [_program(lines, proxies, size, focus, timed=timed) for timed in (False, True) for focus in COLLECTIONS]
    return st.sampled_from(kinds).flatmap(_drawn)


FILL: Final = [
    Step(0, database, (tuple(line.split()),))
    for database in (0, 1)
    for line in (
        "HSET h a 1 b 2",
        "HSET {t}h 7 1",
        "SADD s a b c",
        "SADD a}s 7 b",
        "ZADD z 1 a 2 b 3 c",
        "ZADD {z 1 7",
        "RPUSH l a b a c",
        "RPUSH {}l 7",
        *(f"PEXPIREMEMBERAT {key} a @far1" for key in ("h", "s", "z", "l")),
    )
]


class StalledError(Exception):
    """A request took so long that nobody can tell whether it ran before or after a deadline."""


class Runner:
    """Runs programs.

    Args:
        server: the server.
        proxies: those in front of it.
        protocol: of the clients.
        fenced: whether to wait until all proxies know of a key's deadlines before a request goes through another one;
            else requests go through them in turn, and each program has keys of its own, of which no proxy knows.
    """

    def __init__(self, server: Server, proxies: list[Proxy], protocol: int, *, fenced: bool = True) -> None:
        has_words = parse(server.command("COMMAND", "INFO", "HTTL"))[0] is not None
        is_newest = server.kind.startswith("redis") and server.version >= (8, 10)
        self.lines = _ALL_NEWEST if is_newest else _ALL if has_words else _ALL_OLD
        self._stack = ExitStack()
        self._fenced_off = fenced and len(proxies) > 1
        self.server = server
        self._beside = self._stack.enter_context(server.connect())
        # The user without rights is there first, and only if news are awaited: a lone proxy's clients have none beside.
        strangers = proxies if self._fenced_off else []
        self._strangers = [as_stranger(Talk(self._beside), Talk(self._connect(it, FENCE, 2))) for it in strangers]
        self._clients = [
            [self._connect(proxy, database, protocol) for database in range(DATABASES)] for proxy in proxies
        ]
        self._fences = [self._connect(proxy, FENCE, 2) for proxy in proxies]
        self._fenced = 0
        self._turn = self._programs = 0
        self._suffix = ""
        self._story: list[str] = []
        self.steps = 0
        self.words = 0  # requests of the words of other servers
        self.whole = 0  # programs that nothing cut short

    def _connect(self, proxy: Proxy, database: int, protocol: int) -> Raw:
        client = self._stack.enter_context(proxy.connect())
        if protocol == 3:
            client.command("HELLO", 3)
        assert client.command("SELECT", database) == b"+OK\r\n"
        if self.lines is _ALL_NEWEST:
            assert [client.command("HIMPORT", "PREPARE", name, *name) for name in ("ab", "b7")] == [b"+OK\r\n"] * 2
        return client

    def close(self) -> None:
        self._stack.close()

    def run(self, program: list[Step]) -> None:
        """Run a program on empty databases, and look at all that is left."""
        self._beside.command("FLUSHALL")
        self._model = Model(DATABASES, valkey=self.server.kind.startswith("valkey"))
        self._marked: int | None = None
        self._story.clear()
        self._programs += 1
        self._suffix = "" if self._fenced_off or len(self._clients) == 1 else f":{self._programs}"
        self._fence(0)
        try:
            for step in [*FILL, *program, LOOK, WAIT]:
                self._step(step)
        except StalledError:
            return
        self.whole += 1

    def _step(self, step: Step) -> None:
        if step is NOTHING:
            return
        self.steps += 1
        if step is WAIT:
            soon = [deadline for deadline in self._model.deadlines() if deadline < _clock() + SOON_MS]
            if soon:
                self._pass(max(soon))
            self._look()
            return
        self._keep_clear()
        if step is LOOK:
            self._look()
            return
        if self._marked not in (None, step.proxy):
            self._fence(self._marked)
        requests = [self._named(tuple(map(self._resolve, words))) for words in step.requests]
        if any(words[0] in MARKING for words in requests):
            self._marked = step.proxy
        way = " in MULTI" if step.transaction else " in one piece" if step.pipelined else ""
        self._story.append(f"through proxy {step.proxy}{way}:")
        if step.transaction or step.pipelined:
            self._ask(self._client(step), step.database, requests, transaction=step.transaction)
            return
        for words in requests:
            self._keep_clear()
            self._ask(self._client(step), step.database, [words], transaction=False)

    def _client(self, step: Step) -> Raw:
        """The client that a step's next request goes by."""
        self._turn += 1
        return self._clients[step.proxy if self._fenced_off else self._turn % len(self._clients)][step.database]

    def _ask(self, client: Raw, database: int, requests: Sequence[Words], *, transaction: bool) -> None:
        before = _clock()
        if transaction:
            client.send(b"".join([request("MULTI"), *(request(*words) for words in requests), request("EXEC")]))
            *queued, reply = client.replies(len(requests) + 2)
            assert queued == [b"+OK\r\n", *[b"+QUEUED\r\n"] * len(requests)], queued
            replies = plain(parse(reply))
            assert isinstance(replies, list), replies
        else:
            client.send(b"".join(request(*words) for words in requests))
            replies = [plain(parse(reply)) for reply in client.replies(len(requests))]
        now = before, self._settle(before, requests)
        for words, reply in zip(requests, replies, strict=True):
            self._compare(database, words, reply, now)

    def _compare(self, database: int, words: Words, reply: Any, now: Now, *, tell: bool = True) -> None:
        wanted = self._model.run(database, words, now[0], reply)
        line = f"[{database}] {' '.join(words)} -> {reply!r}"
        if not agrees(reply, wanted, now):
            raise AssertionError("\n".join([*self._story, line, f"WANTED {wanted}"]))
        if tell:
            self._story.append(line)
            self.words += is_word(words[0])

    # Time.

    def _keep_clear(self) -> None:
        """Wait until no deadline is so near that a request might run before it or after it."""
        while near := [deadline for deadline in self._model.deadlines() if deadline <= _clock() + SLACK_MS]:
            self._pass(max(near))
        self._model.advance(_clock())

    def _pass(self, moment: float) -> None:
        """Wait until the server's clock has passed a moment."""
        time.sleep(max(0.0, moment - _clock()) / 1000)
        # A key lives until the end of the millisecond of its deadline.
        until(lambda: self._server_clock() >= moment + 1, what="a deadline")
        self._model.advance(self._server_clock())

    def _server_clock(self) -> float:
        seconds, micros = parse(self._beside.command("TIME"))
        return int(seconds) * 1000 + int(micros) / 1000

    def _settle(self, before: float, requests: Sequence[Words]) -> float:
        """The clock after requests that were sent at `before`; raises StalledError where a delay matters."""
        after = _clock()
        # None of these had passed, or was near, when the model was last brought up to date.
        passed = any(deadline <= after for deadline in self._model.deadlines())
        # Nor is it known whether a moment that a request names had passed when the server came to it.
        passed = passed or any(word.isdecimal() and NEAR < int(word) <= after for words in requests for word in words)
        relative = any(map(is_relative, requests))
        if passed or (relative and after - before > SLACK_MS):
            raise StalledError
        return after

    def _resolve(self, word: str) -> str:
        if word == "@soon":
            return str(int(_clock()) + SOON_MS)
        if word.startswith("@farsec"):
            return str(FAR_MS // 1000 + int(word[7:]) * 100)
        return str(FAR_MS + int(word[4:]) * 100_000) if word.startswith("@far") else word

    def _named(self, words: Words) -> Words:
        """Put this program's names of keys into a request."""
        keys = 2 if words[0] == "EXPIREMEMBER" else len(words)  # behind it may stand a unit
        return tuple(word + self._suffix if word in EVERY_KEY and at < keys else word for at, word in enumerate(words))

    # What is there.

    def _look(self) -> None:
        """Look at every key of every database, through every proxy."""
        self._keep_clear()
        if self._marked is not None:
            self._fence(self._marked)
        for clients in self._clients:
            for database, client in enumerate(clients):
                requests = list(self._questions(database))
                before = _clock()
                client.send(b"".join(request(*words) for words in requests))
                replies = [plain(parse(reply)) for reply in client.replies(len(requests))]
                now = before, self._settle(before, requests)
                for words, reply in zip(requests, replies, strict=True):
                    self._compare(database, words, reply, now, tell=False)
        self._check_indexes()

    def _questions(self, number: int) -> Iterator[Words]:
        database = self._model.databases[number]
        for key in (key + self._suffix for key in EVERY_KEY):
            value = database.values.get(key)
            yield "TYPE", key
            if value is not None:
                yield {
                    "hash": ("HGETALL", key),
                    "set": ("SMEMBERS", key),
                    "zset": ("ZRANGE", key, "0", "-1", "WITHSCORES"),
                    "list": ("LRANGE", key, "0", "-1"),
                    "string": ("GET", key),
                }[value.kind]
                for member in MEMBERS:
                    yield "PTTL", key, member
                yield "TTL", key, MEMBERS[0]
        yield "KEYS", "*"
        yield ("DBSIZE",)  # last: a key that has expired counts until somebody has touched it

    def _check_indexes(self) -> None:
        """The index tells of each key that has deadlines the earliest."""
        for number in range(DATABASES):
            self._beside.command("SELECT", number)
            shadows, earliest, index = parse(self._beside.command("EVAL", INDEX_AND_SHADOWS, 0, PREFIX))
            assert sorted(index) == sorted(earliest), (number, shadows)
        self._beside.command("SELECT", 0)

    # Several proxies.

    def _fence(self, number: int) -> None:
        """Wait until the other proxies know what has been done through one: news come in order."""
        self._marked = None
        if not self._fenced_off:
            return
        self._fenced += 1
        key = f"fence:{self._fenced}"
        client = self._fences[number]
        client.send(request("SADD", key, "x") + request("EXPIREMEMBER", key, "x", 1000))
        assert client.replies(2) == [b":1\r\n"] * 2
        for stranger in self._strangers:
            until(partial(knows, stranger, key), 2, "the news")
        client.command("DEL", key)


def _clock() -> float:
    """This machine's clock, which is the server's too, in Unix ms."""
    return time.time() * 1000


StartRunner = Callable[..., Runner]


@pytest.fixture(scope="session")
def runners(shared_server: Callable[[str], Server]) -> Iterator[StartRunner]:
    """Gives a runner, with servers and proxies that live as long as the tests: ``runner(kind, proxies, protocol)``."""
    with ExitStack() as stack:
        servers: dict[tuple[str, tuple[str, ...]], Server] = {}
        proxies: dict[tuple[str, tuple[str, ...]], list[Proxy]] = {}

        def start(kind: str, count: int, protocol: int, *arguments: str, fenced: bool = True) -> Runner:
            place = kind, arguments
            if place not in servers:
                servers[place] = Server(kind)
                proxies[place] = []
                stack.callback(servers[place].close)
            while len(proxies[place]) < count:
                proxies[place].append(Proxy("--upstream", servers[place].url, *arguments))
                stack.callback(proxies[place][-1].close)
            made = Runner(servers[place], proxies[place][:count], protocol, fenced=fenced)
            stack.callback(made.close)
            return made

        yield start


@pytest.fixture
def runner(runners: StartRunner) -> Iterator[StartRunner]:
    """Gives the same, and leaves nothing behind that is due: their proxies would go on looking at it."""
    used: list[Runner] = []

    def start(*arguments: Any, **more: Any) -> Runner:
        used.append(runners(*arguments, **more))
        return used[-1]

    yield start
    for made in used:
        made.server.flush()


SETTINGS: Final = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    print_blob=False,
    report_multiple_bugs=False,
)


def play(runner: Runner, proxies: int, examples: int, size: int, **more: Any) -> None:
    """Run so many random programs."""

    @settings(SETTINGS, max_examples=examples, **more)
    @given(programs(proxies, size, runner.lines))
    def run(program: list[Step]) -> None:
        runner.run(program)

    run()


LEAST_STEPS: Final = 1000
"""Steps of each test below: with three servers that makes more than 10,000 in all."""


def play_whole(runner: Runner, proxies: int, examples: int, whole: int) -> None:
    """Run random programs until so many went to their end: a busy machine cuts many of them short.

    Raises:
        AssertionError: three times as many programs as `examples` were not enough.
    """
    for _ in range(3):
        play(runner, proxies, examples, 60)
        if runner.whole >= whole:
            return
    raise AssertionError(f"only {runner.whole} programs went to their end")


@pytest.mark.parametrize("arguments", [(), ("--no-sweep",)], ids=["sweep", "no-sweep"])
@pytest.mark.parametrize(("proxies", "protocol"), [(1, 2), (1, 3), (2, 2), (2, 3)])
def test_random_programs(
    kind: str, runner: StartRunner, proxies: int, protocol: int, arguments: tuple[str, ...]
) -> None:
    made = runner(kind, proxies, protocol, *arguments)
    play_whole(made, proxies, 24, 14)
    assert made.steps >= LEAST_STEPS


@pytest.mark.every_kind(redis=(8, 10))
@pytest.mark.parametrize(("proxies", "protocol"), [(1, 2), (2, 3)])
def test_random_programs_with_the_newest_commands(kind: str, runner: StartRunner, proxies: int, protocol: int) -> None:
    made = runner(kind, proxies, protocol)
    play_whole(made, proxies, 24, 14)
    assert made.steps >= LEAST_STEPS


def test_random_programs_through_four_proxies(kind: str, runner: StartRunner) -> None:
    made = runner(kind, 4, 3)
    play_whole(made, 4, 5, 1)
    assert made.steps >= LEAST_STEPS // 8


def words_at_random(chance: random.Random, kind: str, lines: list[str], size: int) -> list[Step]:
    """A program most of which is words of other servers for one type."""
    letter = f"{{{_LETTERS[kind]}}}"
    words = [line for line in _words_for(kind) if line in lines] + _lines(OWN_WORDS)
    # What writes over members, removes or carries them counts more than what only reads.
    beside = [line for line in lines if letter in line and line not in words]
    whole = [line for line in lines if "{k}" in line and not line.startswith("SET")] + _lines(LIFETIMES)
    collections = tuple(key for it in COLLECTIONS for key in KEYS[it])
    blanks = {
        **{it: KEYS[of] * 6 + EVERY_KEY for of, it in _LETTERS.items()},
        "k": KEYS[kind] * 5 + EVERY_KEY,
        "c": KEYS[kind] * 8 + collections,
        "m": ("a", "b") * 3 + MEMBERS,
        "n": "12345",
        "w": "123",
        "d": "012",
        "o": ("NX", "XX", "GT", "LT"),
        "x": ("NX", "XX"),
    }

    def request_of(choices: list[str]) -> tuple[str, ...]:
        parts = chance.choice(choices).replace("{", "\0{").replace("}", "}\0").split("\0")
        return _words("".join(chance.choice(blanks[it[1:-1]]) if it.startswith("{") else it for it in parts))

    program = []
    for _ in range(size):
        few = chance.choice((1, 1, 1, 1, 3, 5, 12))
        of = chance.choices((words, beside, whole, _lines(SOON)), (24, 8, 4, 0.2), k=few)
        requests = tuple(map(request_of, of))
        if chance.random() < 0.3:
            requests = tuple(line for line in requests for _ in range(chance.choice((1, 3))))
        may_be_queued = not any(line[0].startswith(_NOT_QUEUED) for line in requests)
        queued = few > 1 and may_be_queued and chance.random() < 0.5
        program.append(Step(0, chance.choice((0, 0, 0, 1)), requests, queued, not queued))
    return program


WHOLE_PROGRAMS: Final = 3


def run_words(runner: Runner, kind: str, least: int) -> None:
    """Run programs of the words for a type until there were so many of them: a busy machine cuts programs short."""
    chance = random.Random(f"{kind} {least}")
    for _ in range(least // 4):
        if runner.words >= least and runner.whole >= WHOLE_PROGRAMS:
            return
        runner.run(words_at_random(chance, kind, runner.lines, 60))
    raise AssertionError(f"only {runner.words} words, and {runner.whole} programs to their end")


@pytest.mark.parametrize("family", COLLECTIONS)
def test_words_for_each_type(kind: str, runner: StartRunner, family: str) -> None:
    run_words(runner(kind, 1, 2), family, 500)


@pytest.mark.long
@pytest.mark.one_kind
@pytest.mark.parametrize("family", COLLECTIONS)
def test_many_words_for_each_type(kind: str, runner: StartRunner, family: str) -> None:
    run_words(runner(kind, 1, 3), family, 100_000)


@pytest.mark.long
@pytest.mark.parametrize("arguments", [(), ("--no-sweep",)], ids=["sweep", "no-sweep"])
@pytest.mark.parametrize("proxies", [1, 2, 4])
def test_many_random_programs(kind: str, runner: StartRunner, proxies: int, arguments: tuple[str, ...]) -> None:
    made = runner(kind, proxies, 3, *arguments)
    play(made, proxies, 500, 100)
    assert made.steps >= 12_000, "with three servers 200,000 in all"


@pytest.mark.long
@pytest.mark.parametrize("proxies", [2, 4])
def test_many_random_programs_that_wait_for_no_news(kind: str, runner: StartRunner, proxies: int) -> None:
    """Each request goes through another proxy at once, also when a key has just got its first deadline."""
    made = runner(kind, proxies, 3, fenced=False)
    play(made, proxies, 300, 100)
    assert made.steps >= 7_000


@pytest.mark.long
@pytest.mark.parametrize("proxies", [1, 2])
def test_many_random_programs_while_proxies_lose_their_own_connections(
    upstream: Server, start_proxy: StartProxy, proxies: int
) -> None:
    started = [start_proxy(upstream) for _ in range(proxies)]
    with ExitStack() as stack:
        made = Runner(upstream, started, 3, fenced=False)
        stack.callback(made.close)
        cuts = stack.enter_context(Cuts(upstream, "cuts"))
        play(made, proxies, 300, 100)
    assert cuts.count > 100
    assert made.steps >= 7_000
