"""What commands do to members and their deadlines, in plain Python: databases, keys, members, deadlines.

The rules are those of `docs/semantics.md`. A command first changes the data; then, from what was there before and what
is there after it, follows which lives have ended and which have begun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

Words = Sequence[str]
Now = tuple[float, float]
"""Two moments, in Unix ms, between which a request ran."""

SLACK_MS: Final = 30
"""How long a request may take at most while the model can tell what it will do."""


def parse(reply: bytes) -> Any:
    """Read one reply, whole, as a Python value."""
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


def plain(reply: Any) -> Any:
    """Make text of bytes, and lists of all that holds elements, so that both protocols look alike."""
    if isinstance(reply, bytes):
        return reply.decode("latin-1")
    if isinstance(reply, dict):
        return [plain(part) for pair in reply.items() for part in pair]
    if isinstance(reply, (list, tuple, set, frozenset)):
        return [plain(part) for part in reply]
    return reply


class RefusedError(Exception):
    """The server answers with an error that contains this text."""


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return got is not None and not isinstance(got, list) and float(got) == wanted
    return bool(got == wanted and type(got) is type(wanted))


@dataclass(frozen=True)
class Unordered:
    """Elements in any order."""

    elements: list[str]

    def agrees(self, got: Any, now: Now) -> bool:
        return isinstance(got, list) and sorted(got) == sorted(self.elements)


@dataclass(frozen=True)
class Pairs:
    """Members with their scores or values; in RESP3 each pair may be a list of its own."""

    pairs: list[tuple[str, Any]]
    ordered: bool = True

    def agrees(self, got: Any, now: Now) -> bool:
        if not isinstance(got, list):
            return False
        flat = [part for element in got for part in (element if isinstance(element, list) else [element])]
        found = list(zip(flat[::2], flat[1::2], strict=True))
        wanted = self.pairs
        if not self.ordered:
            found, wanted = sorted(found), sorted(wanted)
        return len(found) == len(wanted) and all(
            one[0] == other[0] and _same(one[1], other[1]) for one, other in zip(found, wanted, strict=True)
        )


@dataclass(frozen=True)
class Lifetime:
    """The time left until a deadline, in rounded units; where it is not certain, it may be missing."""

    deadline: float
    unit: int
    certain: bool = True
    up: bool = False  # rounded up, not to the nearest

    def agrees(self, got: Any, now: Now) -> bool:
        if not self.certain and got == -1:
            return True
        rest = self.unit - 1 if self.up else self.unit / 2
        # A relative deadline counts from some moment while its request ran, so some ms are open.
        most, least = (
            (self.deadline - moment + rest) // self.unit for moment in (now[0] - SLACK_MS, now[1] + SLACK_MS)
        )
        return isinstance(got, int) and least <= got <= most


FAR_MS: Final = 10**13
"""Absolute far deadlines lie behind this moment, relative ones before it."""


@dataclass(frozen=True)
class Moment:
    """A deadline as a Unix time, in rounded units; as text, where it is listed."""

    deadline: float
    unit: int = 1
    up: bool = False
    text: bool = False

    def agrees(self, got: Any, now: Now) -> bool:
        slack = 0 if self.deadline >= FAR_MS else SLACK_MS
        rest = self.unit - 1 if self.up else self.unit // 2
        least, most = ((self.deadline + ms + rest) // self.unit for ms in (-slack, slack))
        return isinstance(got, str if self.text else int) and least <= int(got) <= most


@dataclass(frozen=True)
class Listed:
    """A cursor at the end, and members with their deadlines."""

    deadlines: dict[str, float]

    def agrees(self, got: Any, now: Now) -> bool:
        if not (isinstance(got, list) and len(got) == 2 and got[0] == "0"):
            return False
        found = dict(zip(got[1][::2], got[1][1::2], strict=True))
        return (
            found.keys() == self.deadlines.keys()
            and len(got[1]) == 2 * len(found)
            and all(Moment(self.deadlines[member], text=True).agrees(text, now) for member, text in found.items())
        )


@dataclass(frozen=True)
class Each:
    """An array of replies, each of which has to agree."""

    replies: list[Any]

    def agrees(self, got: Any, now: Now) -> bool:
        return (
            isinstance(got, list)
            and len(got) == len(self.replies)
            and all(agrees(one, wanted, now) for wanted, one in zip(self.replies, got, strict=True))
        )


@dataclass(frozen=True)
class OneOf:
    """One of several replies."""

    choices: tuple[Any, ...]

    def agrees(self, got: Any, now: Now) -> bool:
        return got in self.choices


def agrees(got: Any, wanted: Any, now: Now) -> bool:
    """Whether a reply, made `plain`, is the one that the model wants."""
    if isinstance(wanted, RefusedError):
        return isinstance(got, hiredis.ReplyError) and str(wanted) in str(got)
    if isinstance(wanted, (Unordered, Pairs, Lifetime, Moment, Listed, OneOf, Each)):
        return wanted.agrees(got, now)
    return _same(got, wanted)


@dataclass
class Value:
    """What a key holds: a dictionary for a hash, a set or a sorted set, else a list or text.

    Attributes:
        kind: as `TYPE` tells it.
        expires: the deadline of the key itself, in Unix ms.
    """

    kind: str
    items: Any
    expires: float | None = None

    def members(self) -> set[str]:
        return set() if self.kind == "string" else set(self.items)

    def copy(self) -> Value:
        return Value(self.kind, self.items if self.kind == "string" else self.items.copy(), self.expires)

    def ranked(self) -> list[tuple[str, float]]:
        return sorted(self.items.items(), key=lambda pair: (pair[1], pair[0]))


@dataclass
class Database:
    """The keys of one database.

    Attributes:
        values: what they hold.
        deadlines: of members that are there.
        traces: of members that have gone, what `TTL` tells still, and whether it certainly does.
    """

    values: dict[str, Value] = field(default_factory=dict)
    deadlines: dict[str, dict[str, float]] = field(default_factory=dict)
    traces: dict[str, dict[str, tuple[float, bool]]] = field(default_factory=dict)

    def void(self, key: str) -> None:
        """Forget all deadlines of a key."""
        self.deadlines.pop(key, None)
        self.traces.pop(key, None)

    def doubt(self, key: str) -> None:
        """A key is no collection any more: whether deadlines of its members are still told is open."""
        traces = self.traces.setdefault(key, {})
        for member, deadline in self.deadlines.pop(key, {}).items():
            traces[member] = deadline, False
        for member, (deadline, _) in traces.items():
            traces[member] = deadline, False


class OfDialect(float):
    """A deadline that ends when its member is written over."""


_DIALECT: Final = re.compile("([HSZL])(P?)(EXPIRE|EXPIREAT|TTL|EXPIRETIME|PERSIST)")
_OTHERS: Final = frozenset(["HSETEX", "SADDEX", "HGETEX", "HGETDEL", "FIELDEXPIRE", "FIELDTTL"]) | {
    "EXPIREMEMBERTIME",
    "PEXPIREMEMBERTIME",
    "EXPIREMEMBERSCAN",
}
_KINDS: Final = {"H": "hash", "S": "set", "Z": "zset", "L": "list"}


def is_word(name: str) -> bool:
    """Whether a command is one of the words of other servers, or of the proxy's own that go with them."""
    return name in _OTHERS or _DIALECT.fullmatch(name) is not None


def is_relative(words: Words) -> bool:
    """Whether a request may name a time that counts from now on."""
    name = words[0]
    if name == "SADDEX" and "MEMBERS" not in words[2:4]:
        return True
    return name in ("EXPIREMEMBER", "PEXPIREMEMBER", "FIELDEXPIRE") or (
        is_word(name) and (name.endswith("EXPIRE") or "EX" in words or "PX" in words)
    )


def _written_over(words: Words) -> Sequence[str]:
    """Return the members to which a request gives new values whatever they had."""
    if words[0] in ("HSET", "HMSET"):
        return words[2::2]
    if words[0] != "ZADD" or {"NX", "GT", "LT"} & set(words):
        return ()
    first = 2
    while words[first] in ("XX", "CH", "INCR"):
        first += 1
    return words[first + 1 :: 2]


_EMPTY: Final = {"hash": dict, "set": dict, "zset": dict, "list": list}

ADDERS = frozenset(
    [
        "HSET",
        "HMSET",
        "HSETNX",
        "HINCRBY",
        "HINCRBYFLOAT",
        "SADD",
        "ZADD",
        "ZINCRBY",
        "LPUSH",
        "RPUSH",
        "LPUSHX",
        "RPUSHX",
        "LINSERT",
        "LSET",
    ]
)
REPLACERS = frozenset(
    [
        "SUNIONSTORE",
        "SINTERSTORE",
        "SDIFFSTORE",
        "ZUNIONSTORE",
        "ZINTERSTORE",
        "ZDIFFSTORE",
        "ZRANGESTORE",
        "SORT",
        "HIMPORT",
    ]
)
OWN: Final = frozenset(["EXPIREMEMBER", "EXPIREMEMBERAT", "PEXPIREMEMBER", "PEXPIREMEMBERAT"])
MARKING = (
    OWN
    | {"RENAME", "RENAMENX", "COPY", "MOVE", "HSETEX", "HGETEX", "SADDEX", "FIELDEXPIRE"}
    | {letter + word for letter in "HSZL" for word in ("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT")}
)
"""Commands by which a key may come to have deadlines."""


class Model:
    """All databases.

    Args:
        count: how many.
        valkey: whether the server is a Valkey: then words for fields are its own.
    """

    def __init__(self, count: int, *, valkey: bool = False) -> None:
        self.databases = [Database() for _ in range(count)]
        self._valkey = valkey
        self.now = 0.0

    # Time.

    def deadlines(self) -> list[float]:
        """Every moment at which something goes by itself."""
        return [
            deadline
            for database in self.databases
            for found in (
                *(by.values() for by in database.deadlines.values()),
                *([deadline for deadline, _ in by.values()] for by in database.traces.values()),
                [value.expires for value in database.values.values() if value.expires is not None],
            )
            for deadline in found
        ]

    def advance(self, now: float) -> None:
        """Let time pass, to a moment in Unix ms."""
        self.now = now
        for database in self.databases:
            for key, value in list(database.values.items()):
                if value.expires is not None and value.expires <= now:
                    del database.values[key]
                    database.doubt(key)
            for key, deadlines in list(database.deadlines.items()):
                for member, deadline in list(deadlines.items()):
                    if deadline <= now:
                        del deadlines[member]
                        self._drop(database.values[key], member)
                self._tidy(database, key)
            for traces in database.traces.values():
                for member, (deadline, _) in list(traces.items()):
                    if deadline <= now:
                        del traces[member]

    @staticmethod
    def _drop(value: Value, member: str) -> None:
        if value.kind == "list":
            value.items[:] = [element for element in value.items if element != member]
        else:
            value.items.pop(member, None)

    @staticmethod
    def _tidy(database: Database, key: str) -> None:
        value = database.values.get(key)
        if value is not None and value.kind != "string" and not value.items:
            del database.values[key]
            value = None
        if value is None or value.kind == "string":
            database.doubt(key)

    # Requests.

    def run(self, number: int, words: Words, now: float, reply: Any = None) -> Any:
        """Run a request.

        Args:
            number: the database.
            words: the request.
            now: the clock, in Unix ms.
            reply: the real reply, where chance decides (SPOP).

        Returns:
            The reply wanted, to be compared with `agrees`.
        """
        self.now = now
        name, database = words[0], self.databases[number]
        if name in OWN or name in (
            "RENAME",
            "RENAMENX",
            "COPY",
            "MOVE",
            "TTL",
            "PTTL",
            "PERSIST",
            "SWAPDB",
            "FLUSHDB",
            "FLUSHALL",
        ):
            try:
                wanted = getattr(self, f"_{name.lower()}")(number, *words[1:])
            except RefusedError as refused:
                wanted = refused
            return wanted
        if name == "HINCRBY":
            # Judged before it is known in which database it will run.
            for other in self.databases:
                self._doubt_named(other, words)
        if is_word(name):
            try:
                if (word := _DIALECT.fullmatch(name)) is not None:
                    return self._many(number, _KINDS[word[1]], word[3], 1 if word[2] else 1000, *words[1:])
                return getattr(self, f"_{name.lower()}")(number, *words[1:])
            except RefusedError as refused:
                return refused
        before = {key: value.members() for key, value in database.values.items()}
        data = Data(database.values, reply)
        try:
            wanted = data.script(words) if name == "EVAL" else data.run(words)
        except RefusedError as refused:
            self._doubt_named(database, words)
            return refused
        for key in list(database.values):
            value = database.values[key]
            if value.kind != "string" and not value.items:
                del database.values[key]
        if name in REPLACERS and data.target is not None:
            database.void(data.target)
            before.pop(data.target, None)
        for key in {*before, *database.values}:
            self._settle(database, key, before.get(key, set()), words)
        return wanted

    @staticmethod
    def _doubt_named(database: Database, words: Words) -> None:
        """An adder that fails may have made traces of absent members void."""
        for traces in database.traces.values():
            for member, (deadline, _) in traces.items():
                if member in words:
                    traces[member] = deadline, False

    def _settle(self, database: Database, key: str, before: set[str], words: Words) -> None:
        """End and begin lives, after a request."""
        value = database.values.get(key)
        if value is None or value.kind == "string":
            database.doubt(key)
            return
        after, traces = value.members(), database.traces.setdefault(key, {})
        deadlines = database.deadlines.setdefault(key, {})
        for member in before - after:
            if member in deadlines:
                deadline = deadlines.pop(member)
                traces[member] = deadline, not isinstance(deadline, OfDialect)
        for member in after - before:
            if member in traces:
                traces[member] = traces[member][0], False
        if (key,) == tuple(words[1:2]):
            for member in _written_over(words):
                if isinstance(deadlines.get(member), OfDialect):
                    del deadlines[member]
        if words[0] in ADDERS and key == words[1]:
            for member in words[2:]:
                if member in after:
                    traces.pop(member, None)
                elif member in traces:
                    traces[member] = traces[member][0], False

    # Deadlines.

    def _expiremember(self, number: int, key: str, member: str, amount: str, *options: str) -> Any:
        unit = 1 if options and options[0] == "ms" else 1000
        return self._expire(number, key, member, self.now + int(amount) * unit, options)

    def _pexpiremember(self, number: int, key: str, member: str, amount: str, *options: str) -> Any:
        return self._expire(number, key, member, self.now + int(amount), options)

    def _expirememberat(self, number: int, key: str, member: str, moment: str, *options: str) -> Any:
        return self._expire(number, key, member, int(moment) * 1000, options)

    def _pexpirememberat(self, number: int, key: str, member: str, moment: str, *options: str) -> Any:
        return self._expire(number, key, member, int(moment), options)

    def _expire(self, number: int, key: str, member: str, deadline: float, options: Iterable[str]) -> Any:
        database = self.databases[number]
        value = database.values.get(key)
        if value is None:
            return 0
        if value.kind == "string":
            raise RefusedError("ERR object type is unsupported")
        if member not in value.members():
            return 0
        deadlines = database.deadlines.setdefault(key, {})
        present = deadlines.get(member)
        for option in options:
            if (
                (option == "NX" and present is not None)
                or (option == "XX" and present is None)
                or (option == "GT" and (present is None or deadline <= present))
                or (option == "LT" and present is not None and deadline >= present)
            ):
                return 0
        if deadline > self.now:
            deadlines[member] = deadline
        else:
            deadlines.pop(member, None)
            database.traces.get(key, {}).pop(member, None)
            self._drop(value, member)
            self._tidy(database, key)
        return 1

    @staticmethod
    def _of_kind(database: Database, key: str, *kinds: str) -> Value | None:
        value = database.values.get(key)
        if value is not None and value.kind not in kinds:
            raise RefusedError("ERR object type is unsupported" if "list" in kinds and len(kinds) > 1 else "WRONGTYPE")
        return value

    def _counted(self, kind: str, words: Words, step: int = 1) -> tuple[Words, Words]:
        """Return the words in front of FIELDS or MEMBERS, and the members; raises `RefusedError` for a wrong number."""
        noun = words.index("FIELDS" if kind == "hash" else "MEMBERS")
        if int(words[noun + 1]) * step != len(words) - noun - 2:
            raise RefusedError("number of")
        return words[:noun], words[noun + 2 :]

    def _many(self, number: int, kind: str, deed: str, unit: int, key: str, *words: str) -> Any:
        """What the words of other servers do: HPEXPIREAT and the like."""
        database, valkey = self.databases[number], self._valkey and kind == "hash"
        try:
            options, members = self._counted(kind, words)
        except RefusedError:
            if not valkey:
                self._of_kind(database, key, kind)
            raise RefusedError("" if valkey else "number of arguments") from None
        self._of_kind(database, key, kind)
        replies: list[Any] = []
        for member in members:
            value = database.values.get(key)
            deadlines = database.deadlines.get(key, {})
            deadline = deadlines.get(member)
            if value is None or member not in value.members():
                replies.append(-2)
            elif deed in ("EXPIRE", "EXPIREAT"):
                time = unit * int(options[0]) + (self.now if deed == "EXPIRE" else 0)
                set_ = self._expire(number, key, member, OfDialect(time), options[1:])
                replies.append(2 if set_ and time <= self.now else set_)
            elif deadline is None:
                replies.append(-1)
            elif deed == "PERSIST":
                del deadlines[member]
                replies.append(1)
            else:
                of = Lifetime if deed == "TTL" else Moment
                replies.append(of(deadline, unit, up=not valkey))
        return Each(replies)

    def _term(self, options: Words) -> OfDialect | str:
        """What options say of lifetimes: when they end, or `KEEPTTL`, `PERSIST` or nothing."""
        for place, option in enumerate(options):
            if option in ("EX", "PX", "EXAT", "PXAT"):
                time = int(options[place + 1]) * (1000 if option.startswith("EX") else 1)
                return OfDialect(time + (0 if option.endswith("AT") else self.now))
        return next((option for option in options if option in ("KEEPTTL", "PERSIST")), "")

    def _remove(self, database: Database, key: str, member: str) -> None:
        """Remove a member as a time that has passed does: nothing tells of it any more."""
        database.deadlines.get(key, {}).pop(member, None)
        database.traces.get(key, {}).pop(member, None)
        if key in database.values:
            self._drop(database.values[key], member)
            self._tidy(database, key)

    def _write(self, number: int, kind: str, key: str, *words: str) -> Any:
        """What HSETEX and SADDEX … MEMBERS do: all of it or nothing."""
        database, step = self.databases[number], 2 if kind == "hash" else 1
        options, given = self._counted(kind, words, step)
        members, value, term = given[::step], self._of_kind(database, key, kind), self._term(options)
        present = set() if value is None else value.members()
        traces = database.traces.setdefault(key, {})
        for member in set(members) & traces.keys():
            traces[member] = traces[member][0], False
        for option, fits in (("NX", present.isdisjoint(members)), ("XX", present.issuperset(members))):
            if not fits and any(it.endswith(option) for it in options):
                return 0
        if isinstance(term, OfDialect) and term <= self.now:
            for member in members:
                self._remove(database, key, member)
            return 1
        self._put(database, kind, key, given)
        deadlines = database.deadlines.setdefault(key, {})
        for member in members:
            traces.pop(member, None)
            if isinstance(term, OfDialect):
                deadlines[member] = term
            elif term != "KEEPTTL":
                deadlines.pop(member, None)
        return 1

    @staticmethod
    def _put(database: Database, kind: str, key: str, given: Words) -> int:
        data = Data(database.values, None)
        return int(data.run(("HSET" if kind == "hash" else "SADD", key, *given)))

    def _hsetex(self, number: int, key: str, *words: str) -> Any:
        return self._write(number, "hash", key, *words)

    def _saddex(self, number: int, key: str, *words: str) -> Any:
        keeps = words[0] == "KEEPTTL"
        if not words[keeps].isdecimal():
            return self._write(number, "set", key, *words)
        # Dragonfly's.
        database, members = self.databases[number], words[keeps + 1 :]
        value = self._of_kind(database, key, "set")
        kept = value.members() if value is not None and keeps else set()
        new = self._put(database, "set", key, members)
        for member in members:
            database.traces.setdefault(key, {}).pop(member, None)
            if member not in kept:
                database.deadlines.setdefault(key, {})[member] = OfDialect(self.now + 1000 * int(words[keeps]))
        return new

    def _hgetex(self, number: int, key: str, *words: str, takes: bool = False) -> Any:
        database = self.databases[number]
        self._of_kind(database, key, "hash")
        options, members = self._counted("hash", words)
        term, replies = self._term(options), []
        for member in members:
            value = database.values.get(key)
            found = None if value is None else value.items.get(member)
            replies.append(found)
            if found is None:
                continue
            if takes or (isinstance(term, OfDialect) and term <= self.now):
                self._remove(database, key, member)
            elif isinstance(term, OfDialect):
                database.deadlines.setdefault(key, {})[member] = term
                database.traces.get(key, {}).pop(member, None)
            elif term == "PERSIST":
                database.deadlines.get(key, {}).pop(member, None)
        return replies

    def _hgetdel(self, number: int, key: str, *words: str) -> Any:
        return self._hgetex(number, key, *words, takes=True)

    def _fieldexpire(self, number: int, key: str, seconds: str, *members: str) -> Any:
        self._of_kind(self.databases[number], key, "hash", "set")
        deadline = OfDialect(self.now + 1000 * int(seconds))
        return Each([self._expire(number, key, member, deadline, ()) or -2 for member in members])

    def _fieldttl(self, number: int, key: str, member: str) -> Any:
        value = self._of_kind(self.databases[number], key, "hash", "set")
        if value is None or member not in value.members():
            return -2 if value is None else -3
        deadline = self.databases[number].deadlines.get(key, {}).get(member)
        return -1 if deadline is None else Lifetime(deadline, 1000)

    def _expiremembertime(self, number: int, key: str, member: str, unit: int = 1000) -> Any:
        value = self._of_kind(self.databases[number], key, *_EMPTY)
        if value is None or member not in value.members():
            return -2
        deadline = self.databases[number].deadlines.get(key, {}).get(member)
        return -1 if deadline is None else Moment(deadline, unit)

    def _pexpiremembertime(self, number: int, key: str, member: str) -> Any:
        return self._expiremembertime(number, key, member, 1)

    def _expirememberscan(self, number: int, key: str, _: str) -> Any:
        self._of_kind(self.databases[number], key, *_EMPTY)
        return Listed(dict(self.databases[number].deadlines.get(key, {})))

    def _ttl(self, number: int, key: str, member: str, unit: int = 1000) -> Any:
        database = self.databases[number]
        value = database.values.get(key)
        if value is None:
            return -2
        if value.kind == "string":
            return -1
        if member in value.members():
            deadline = database.deadlines.get(key, {}).get(member)
            return -1 if deadline is None else Lifetime(deadline, unit)
        trace = database.traces.get(key, {}).get(member)
        return -1 if trace is None else Lifetime(trace[0], unit, trace[1])

    def _pttl(self, number: int, key: str, member: str) -> Any:
        return self._ttl(number, key, member, 1)

    def _persist(self, number: int, key: str, member: str) -> Any:
        database = self.databases[number]
        value = database.values.get(key)
        deadline = database.deadlines.get(key, {}).pop(member, None)
        if deadline is not None:
            return 1
        trace = database.traces.get(key, {}).pop(member, None)
        if value is None or value.kind == "string" or member in value.members() or trace is None:
            return 0
        return 1 if trace[1] else OneOf((0, 1))

    # Whole keys and whole databases.

    def _carry(self, source: Database, key: str, target: Database, name: str, *, keep: bool) -> None:
        """Put a key with its deadlines in another place."""
        value = source.values[key]
        deadlines, traces = source.deadlines.get(key, {}), source.traces.get(key, {})
        if keep:
            value, deadlines, traces = value.copy(), dict(deadlines), dict(traces)
        else:
            del source.values[key]
            source.void(key)
        target.values[name], target.deadlines[name], target.traces[name] = value, deadlines, traces

    def _rename(self, number: int, key: str, name: str) -> Any:
        database = self.databases[number]
        if key not in database.values:
            raise RefusedError("ERR no such key")
        if key != name:
            self._carry(database, key, database, name, keep=False)
        return "OK"

    def _renamenx(self, number: int, key: str, name: str) -> Any:
        database = self.databases[number]
        if key in database.values and name in database.values:
            return 0
        self._rename(number, key, name)
        return 1

    def _copy(self, number: int, key: str, name: str, *options: str) -> Any:
        other = int(options[options.index("DB") + 1]) if "DB" in options else number
        if (number, key) == (other, name):
            raise RefusedError("ERR source and destination objects are the same")
        source, target = self.databases[number], self.databases[other]
        if key not in source.values or (name in target.values and "REPLACE" not in options):
            return 0
        self._carry(source, key, target, name, keep=True)
        return 1

    def _move(self, number: int, key: str, other: str) -> Any:
        if number == int(other):
            raise RefusedError("ERR source and destination objects are the same")
        source, target = self.databases[number], self.databases[int(other)]
        if key not in source.values or key in target.values:
            return 0
        self._carry(source, key, target, key, keep=False)
        return 1

    def _swapdb(self, number: int, one: str, other: str) -> Any:
        first, second = int(one), int(other)
        self.databases[first], self.databases[second] = self.databases[second], self.databases[first]
        return "OK"

    def _flushdb(self, number: int) -> Any:
        self.databases[number] = Database()
        return "OK"

    def _flushall(self, number: int) -> Any:
        self.databases[:] = [Database() for _ in self.databases]
        return "OK"


class Data:
    """Commands on the data of one database, without deadlines of members.

    Args:
        values: the keys.
        reply: the real reply.

    Attributes:
        target: the key whose whole value has been replaced.
    """

    def __init__(self, values: dict[str, Value], reply: Any) -> None:
        self.values = values
        self.reply = reply
        self.target: str | None = None

    def run(self, words: Words) -> Any:
        """Run one request; raises `RefusedError`."""
        run: Callable[..., Any] = getattr(self, f"_{words[0].lower()}")
        return run(*words[1:])

    def script(self, words: Words) -> Any:
        """Run a script that `in_script` has made."""
        reply = None
        for line in words[1].removeprefix("--").splitlines()[0].split(";"):
            reply = self.run(line.format(k=words[3], m=words[4]).split())
            self.tidy(words[3])
        return reply

    def tidy(self, key: str) -> None:
        value = self.values.get(key)
        if value is not None and value.kind != "string" and not value.items:
            del self.values[key]

    def items_of(self, key: str, kind: str) -> Any:
        """The items of a key; of a missing one, a container of its own."""
        value = self.values.get(key)
        if value is None:
            return "" if kind == "string" else _EMPTY[kind]()
        if value.kind != kind:
            raise RefusedError("WRONGTYPE")
        return value.items

    def opened(self, key: str, kind: str) -> Any:
        """The items of a key, to be changed: a missing key is made."""
        items = self.items_of(key, kind)
        if key not in self.values:
            self.values[key] = Value(kind, items)
        return items

    def replace(self, key: str, kind: str, items: Any) -> int:
        self.target = key
        self.values.pop(key, None)
        if items:
            self.values[key] = Value(kind, items)
        return len(items)

    # Hashes.

    def _hset(self, key: str, *pairs: str) -> Any:
        items = self.opened(key, "hash")
        fresh = set(pairs[::2]) - set(items)
        items.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fresh)

    def _hmset(self, key: str, *pairs: str) -> Any:
        self._hset(key, *pairs)
        return "OK"

    def _hsetnx(self, key: str, member: str, value: str) -> Any:
        return 0 if member in self.items_of(key, "hash") else self._hset(key, member, value)

    def _hincrby(self, key: str, member: str, amount: str) -> Any:
        old = self.items_of(key, "hash").get(member, "0")
        if "." in old:
            raise RefusedError("ERR hash value is not an integer")
        self._hset(key, member, str(int(old) + int(amount)))
        return int(old) + int(amount)

    def _hincrbyfloat(self, key: str, member: str, amount: str) -> Any:
        value = f"{float(self.items_of(key, 'hash').get(member, '0')) + float(amount):g}"
        self._hset(key, member, value)
        return value

    def remove(self, kind: str, key: str, members: Iterable[str]) -> int:
        items = self.items_of(key, kind)
        return sum(items.pop(member, self) is not self for member in members)

    def _hdel(self, key: str, *members: str) -> Any:
        return self.remove("hash", key, members)

    def _himport(self, _: str, key: str, fields: str, *values: str) -> Any:
        self.items_of(key, "hash")
        if len(values) != len(fields):
            raise RefusedError("ERR value count does not match")
        self.replace(key, "hash", dict(zip(fields, values, strict=True)))
        return "OK"

    def _hget(self, key: str, member: str) -> Any:
        return self.items_of(key, "hash").get(member)

    def _hgetall(self, key: str) -> Any:
        return Pairs(list(self.items_of(key, "hash").items()), ordered=False)

    def _hlen(self, key: str) -> Any:
        return len(self.items_of(key, "hash"))

    # Sets.

    def _sadd(self, key: str, *members: str) -> Any:
        items = self.opened(key, "set")
        fresh = set(members) - set(items)
        items.update(dict.fromkeys(members))
        return len(fresh)

    def _srem(self, key: str, *members: str) -> Any:
        return self.remove("set", key, members)

    def _smove(self, source: str, target: str, member: str) -> Any:
        if source not in self.values:
            return 0
        items = self.items_of(source, "set")
        self.items_of(target, "set")
        if source == target:
            return int(member in items)
        if member not in items:
            return 0
        del items[member]
        self._sadd(target, member)
        return 1

    def _spop(self, key: str, count: str = "") -> Any:
        items = self.items_of(key, "set")
        popped = self.reply if isinstance(self.reply, list) else [self.reply] if self.reply is not None else []
        if any(member not in items for member in popped) or len(popped) != min(int(count or 1), len(items)):
            return RefusedError("members of the set, as many as asked for")
        self.remove("set", key, popped)
        return self.reply

    def _smembers(self, key: str) -> Any:
        return Unordered(list(self.items_of(key, "set")))

    def _scard(self, key: str) -> Any:
        return len(self.items_of(key, "set"))

    def _sismember(self, key: str, member: str) -> Any:
        return int(member in self.items_of(key, "set"))

    def _sunionstore(self, target: str, *sources: str) -> Any:
        found = [self.items_of(key, "set") for key in sources]
        return self.replace(target, "set", {member: None for items in found for member in items})

    def _sinterstore(self, target: str, *sources: str) -> Any:
        first, *rest = (self.items_of(key, "set") for key in sources)
        return self.replace(target, "set", {m: None for m in first if all(m in items for items in rest)})

    def _sdiffstore(self, target: str, *sources: str) -> Any:
        first, *rest = (self.items_of(key, "set") for key in sources)
        return self.replace(target, "set", {m: None for m in first if not any(m in items for items in rest)})

    # Sorted sets.

    def _zadd(self, key: str, *words: str) -> Any:
        options = {word for word in words if word in ("NX", "XX", "GT", "LT", "CH", "INCR")}
        pairs = words[len(options) :]
        self.items_of(key, "zset")
        fresh = changed = 0
        score: float | None = None
        for number, member in zip(pairs[::2], pairs[1::2], strict=True):
            old = self.items_of(key, "zset").get(member)
            score = float(number) + (old or 0 if "INCR" in options else 0)
            if (
                ("NX" in options and old is not None)
                or ("XX" in options and old is None)
                or (old is not None and (("GT" in options and score <= old) or ("LT" in options and score >= old)))
            ):
                score = None
                continue
            fresh += old is None
            changed += old is None or old != score
            self.opened(key, "zset")[member] = score
        if "INCR" in options:
            return score
        return changed if "CH" in options else fresh

    def _zincrby(self, key: str, amount: str, member: str) -> Any:
        return self._zadd(key, "INCR", amount, member)

    def _zrem(self, key: str, *members: str) -> Any:
        return self.remove("zset", key, members)

    def ranked(self, key: str) -> list[tuple[str, float]]:
        return Value("zset", self.items_of(key, "zset")).ranked()

    def _zpopmin(self, key: str, count: str = "1") -> Any:
        popped = self.ranked(key)[: int(count)]
        self._zrem(key, *(member for member, _ in popped))
        return Pairs(popped)

    def _zpopmax(self, key: str, count: str = "1") -> Any:
        popped = self.ranked(key)[::-1][: int(count)]
        self._zrem(key, *(member for member, _ in popped))
        return Pairs(popped)

    def _zremrangebyscore(self, key: str, low: str, high: str) -> Any:
        return self._zrem(key, *(m for m, score in self.ranked(key) if float(low) <= score <= float(high)))

    def _zremrangebyrank(self, key: str, first: str, last: str) -> Any:
        return self._zrem(key, *(member for member, _ in self.ranked(key)[int(first) : int(last) + 1]))

    def scored(self, key: str) -> dict[str, float]:
        value = self.values.get(key)
        if value is not None and value.kind == "set":
            return dict.fromkeys(value.items, 1.0)
        return dict(self.items_of(key, "zset"))

    def _zunionstore(self, target: str, _: str, one: str, other: str) -> Any:
        first, second = self.scored(one), self.scored(other)
        return self.replace(
            target, "zset", {member: first.get(member, 0.0) + second.get(member, 0.0) for member in {**first, **second}}
        )

    def _zinterstore(self, target: str, _: str, one: str, other: str) -> Any:
        first, second = self.scored(one), self.scored(other)
        return self.replace(target, "zset", {m: first[m] + second[m] for m in first if m in second})

    def _zdiffstore(self, target: str, _: str, one: str, other: str) -> Any:
        first, second = self.scored(one), self.scored(other)
        return self.replace(target, "zset", {m: first[m] for m in first if m not in second})

    def _zrangestore(self, target: str, source: str, first: str, last: str) -> Any:
        return self.replace(target, "zset", dict(self.ranked(source)[int(first) : int(last) + 1]))

    def _zrange(self, key: str, *_: str) -> Any:
        return Pairs(self.ranked(key))

    def _zcard(self, key: str) -> Any:
        return len(self.items_of(key, "zset"))

    # Lists.

    def _rpush(self, key: str, *members: str) -> Any:
        items = self.opened(key, "list")
        items += members
        return len(items)

    def _lpush(self, key: str, *members: str) -> Any:
        items = self.opened(key, "list")
        items[:0] = members[::-1]
        return len(items)

    def _lpushx(self, key: str, *members: str) -> Any:
        return self._lpush(key, *members) if self.items_of(key, "list") else 0

    def _rpushx(self, key: str, *members: str) -> Any:
        return self._rpush(key, *members) if self.items_of(key, "list") else 0

    def _linsert(self, key: str, where: str, pivot: str, member: str) -> Any:
        items = self.items_of(key, "list")
        if pivot not in items:
            return -1 if items else 0
        items.insert(items.index(pivot) + (where == "AFTER"), member)
        return len(items)

    def _lset(self, key: str, place: str, member: str) -> Any:
        items = self.items_of(key, "list")
        if not items:
            raise RefusedError("ERR no such key")
        if not -len(items) <= int(place) < len(items):
            raise RefusedError("ERR index out of range")
        items[int(place)] = member
        return "OK"

    def _lrem(self, key: str, count: str, member: str) -> Any:
        items = self.items_of(key, "list")
        places = [place for place, element in enumerate(items) if element == member]
        if int(count):
            places = places[: int(count)] if int(count) > 0 else places[int(count) :]
        for place in reversed(places):
            del items[place]
        return len(places)

    def take(self, key: str, place: int, count: str) -> Any:
        items = self.items_of(key, "list")
        if not items:
            return None
        popped = [items.pop(place) for _ in range(min(int(count or 1), len(items)))]
        return popped if count else popped[0]

    def _lpop(self, key: str, count: str = "") -> Any:
        return self.take(key, 0, count)

    def _rpop(self, key: str, count: str = "") -> Any:
        return self.take(key, -1, count)

    def _ltrim(self, key: str, first: str, last: str) -> Any:
        items = self.items_of(key, "list")
        end = len(items) + int(last) if int(last) < 0 else int(last)
        items[:] = items[int(first) : end + 1]
        return "OK"

    def _lmove(self, source: str, target: str, out: str, into: str) -> Any:
        items = self.items_of(source, "list")
        if not items:
            return None
        self.items_of(target, "list")
        member = items.pop(0 if out == "LEFT" else -1)
        (self._lpush if into == "LEFT" else self._rpush)(target, member)
        return member

    def _lmovem(self, source: str, target: str, out: str, into: str, how: str, number: str, order: str) -> Any:
        items = self.items_of(source, "list")
        if not items or (how == "EXACTLY" and len(items) < int(number)):
            return None
        self.items_of(target, "list")
        cut = min(int(number), len(items))
        moved = items[:cut] if out == "LEFT" else items[-cut:]
        items[:] = items[cut:] if out == "LEFT" else items[:-cut]
        if order == "OBO" and out == into:  # one by one, each in front of those before it
            moved.reverse()
        there = self.opened(target, "list")
        there[:] = [*moved, *there] if into == "LEFT" else [*there, *moved]
        return moved

    def _blmovem(self, source: str, target: str, out: str, into: str, _: str, *how: str) -> Any:
        return self._lmovem(source, target, out, into, *how)

    def _rpoplpush(self, source: str, target: str) -> Any:
        return self._lmove(source, target, "RIGHT", "LEFT")

    def _blmove(self, source: str, target: str, out: str, into: str, _: str) -> Any:
        return self._lmove(source, target, out, into)

    def _brpoplpush(self, source: str, target: str, _: str) -> Any:
        return self._lmove(source, target, "RIGHT", "LEFT")

    def _lrange(self, key: str, *_: str) -> Any:
        return list(self.items_of(key, "list"))

    def _llen(self, key: str) -> Any:
        return len(self.items_of(key, "list"))

    def _sort(self, key: str, *words: str) -> Any:
        value = self.values.get(key)
        if value is not None and value.kind in ("string", "hash"):
            raise RefusedError("WRONGTYPE")
        return self.replace(words[-1], "list", sorted(value.items) if value is not None else [])

    # Texts.

    def _set(self, key: str, text: str) -> Any:
        self.values[key] = Value("string", text)
        return "OK"

    def _mset(self, *pairs: str) -> Any:
        for key, text in zip(pairs[::2], pairs[1::2], strict=True):
            self._set(key, text)
        return "OK"

    def _setnx(self, key: str, text: str) -> Any:
        return 0 if key in self.values else int(self._set(key, text) == "OK")

    def _getset(self, key: str, text: str) -> Any:
        old = self.items_of(key, "string")
        self._set(key, text)
        return old or None

    def _append(self, key: str, text: str) -> Any:
        text = self.items_of(key, "string") + text
        if key in self.values:
            self.values[key].items = text
        else:
            self._set(key, text)
        return len(text)

    def _get(self, key: str) -> Any:
        return self.items_of(key, "string") or None

    # Keys.

    def _del(self, *keys: str) -> Any:
        return sum(self.values.pop(key, None) is not None for key in dict.fromkeys(keys))

    _unlink = _delex = _del

    def _exists(self, *keys: str) -> Any:
        return sum(key in self.values for key in keys)

    def _type(self, key: str) -> Any:
        return self.values[key].kind if key in self.values else "none"

    def _dbsize(self) -> Any:
        return len(self.values)

    def _keys(self, _: str) -> Any:
        return Unordered(list(self.values))

    def _pexpireat(self, key: str, moment: str) -> Any:
        if key not in self.values:
            return 0
        self.values[key].expires = int(moment)
        return 1

    def _expire(self, key: str, seconds: str) -> Any:
        # Only ever into the past.
        assert int(seconds) < 0
        return self._del(key)


SCRIPTS = {
    "hash": ("HSET {k} {m} 1", "HDEL {k} {m}"),
    "set": ("SADD {k} {m}", "SREM {k} {m}"),
    "zset": ("ZADD {k} 1 {m}", "ZREM {k} {m}"),
    "list": ("RPUSH {k} {m}", "LREM {k} 0 {m}"),
}
"""How a script adds, and removes, a member of each type."""


def in_script(*lines: str) -> str:
    """Make a script that runs requests on KEYS[1] and ARGV[1]; its first line tells which."""
    calls = [
        "redis.call({})".format(
            ",".join({"{k}": "KEYS[1]", "{m}": "ARGV[1]"}.get(word, f"'{word}'") for word in line.split())
        )
        for line in lines
    ]
    return "\n".join([f"--{';'.join(lines)}", *calls[:-1], f"return {calls[-1]}"])
