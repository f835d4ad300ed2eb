"""The table of commands: the effect of each on members' deadlines, and which arguments are the keys concerned.

Its tests: tests/test_commands.py.

The proxy and the documentation (`docs/semantics.md`) use this table, and a test compares it with the server's
`COMMAND`. Commands that are not in the table are forwarded unchanged, unless they may write (`ServerCommands`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias, assert_never

from proxy.commands import members
from proxy.commands.dialects import WORDS
from proxy.commands.members import Arguments, Locator
from proxy.wire.request import strict_integer


class Effect(Enum):
    """The effect of a command on members and deadlines."""

    EXPIRE = "sets a deadline"
    LIFETIME = "returns or drops the deadline, if the request names a member"
    ADD = "adds members: deadlines of those that were absent are void"
    COUNT = "may add a member, and its reply may be too large an integer for a script: like ADD, with a corrected reply"
    REMOVE = "removes members: their deadlines are void"
    REMOVE_UNNAMED = (
        "removes members that the request does not name: their deadlines are voided when they are added again"
    )
    FIELD_EXPIRY = "the server's own expiry of hash fields: may remove fields, adds none, meets deadlines set before it"
    REPLACE = "replaces the whole value: all deadlines of the key are void"
    VANISH = "may end the collection: then all its deadlines are void"
    MOVE_MEMBER = "moves a member: it arrives without a deadline"
    RENAME = "carries the deadlines to the new name"
    COPY = "copies the deadlines"
    MOVE = "carries the deadlines to another database"
    MULTI = "opens a transaction"
    EXEC = "runs the transaction"
    DISCARD = "drops the transaction"
    SCRIPT = "runs a script: deadlines of members absent before it are void"
    ARRIVE = "may add members that only the server knows: deadlines of members absent before it are void"
    IMPORT = "like REPLACE, but no script can replace it: scripts before and after it see what it does"
    KEYSPACE = "shows keys: the proxy's own are hidden"
    READ = "reads keys that it does not name"
    WATCH = "makes the next transaction fail if keys change, or ends that"
    DATABASE = "selects another database"
    MIGRATE = "moves keys to another node of a cluster, with their deadlines"
    WAIT = "waits until replicas have the client's writes, including those over shared connections"
    LOGIN = "changes the user, or what the connection may do"
    CONNECTION = "may change how the next request is answered, or turn off replies"
    DESCRIBE = "describes the server, and the proxy"

    @property
    def judged(self) -> bool:
        """Whether forwarding a request unchanged, for a key with deadlines, would break the promise."""
        match self:
            case Effect.ADD | Effect.REPLACE | Effect.MOVE_MEMBER | Effect.RENAME | Effect.COPY | Effect.MOVE:
                return True
            case Effect.IMPORT:
                return True
            case Effect.COUNT | Effect.SCRIPT | Effect.ARRIVE:
                return False  # before it is sent, deadlines of members that it may add are voided
            case Effect.EXPIRE | Effect.LIFETIME | Effect.KEYSPACE | Effect.READ | Effect.DATABASE | Effect.WAIT:
                return False
            case Effect.WATCH:
                return False
            case Effect.REMOVE | Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY | Effect.VANISH | Effect.MIGRATE:
                return False  # leftover deadlines are voided when a member is added
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.LOGIN | Effect.CONNECTION | Effect.DESCRIBE:
                return False
        assert_never(self)

    @property
    def marking(self) -> bool:
        """Whether the request may give a key deadlines."""
        match self:
            case Effect.EXPIRE | Effect.RENAME | Effect.COPY | Effect.MOVE:
                return True
            case Effect.ADD | Effect.COUNT | Effect.REPLACE | Effect.MOVE_MEMBER | Effect.SCRIPT | Effect.ARRIVE:
                return False
            case Effect.IMPORT:
                return False
            case Effect.REMOVE | Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY | Effect.VANISH | Effect.LIFETIME:
                return False
            case Effect.KEYSPACE | Effect.READ | Effect.DATABASE | Effect.MIGRATE | Effect.WAIT | Effect.WATCH:
                return False
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.LOGIN | Effect.CONNECTION | Effect.DESCRIBE:
                return False
        assert_never(self)

    @property
    def blind(self) -> bool:
        """Whether the request may add members without a script that checks which members are absent."""
        match self:
            case Effect.COUNT | Effect.SCRIPT | Effect.ARRIVE | Effect.IMPORT:
                return True
            case Effect.ADD | Effect.REPLACE | Effect.MOVE_MEMBER | Effect.RENAME | Effect.COPY | Effect.MOVE:
                return False
            case Effect.REMOVE | Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY | Effect.VANISH | Effect.LIFETIME:
                return False
            case Effect.EXPIRE | Effect.KEYSPACE | Effect.READ | Effect.DATABASE | Effect.MIGRATE | Effect.WAIT:
                return False
            case Effect.WATCH:
                return False
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.LOGIN | Effect.CONNECTION | Effect.DESCRIBE:
                return False
        assert_never(self)

    @property
    def spared(self) -> bool:
        """Whether a request may be forwarded unchanged if its user may not run the script that would replace it."""
        match self:
            case Effect.ADD | Effect.COUNT | Effect.MOVE_MEMBER | Effect.IMPORT:
                return True  # before it is sent, deadlines of members that it may add are voided
            case Effect.REMOVE | Effect.VANISH:
                return True  # leftover deadlines are voided when a member is added
            case Effect.KEYSPACE:
                return True  # at worst the user sees the proxy's own keys
            case Effect.REPLACE | Effect.RENAME | Effect.COPY | Effect.MOVE:
                return False  # if it succeeds, it may change deadlines of members that exist already
            case Effect.EXPIRE | Effect.LIFETIME:
                return False
            case Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY:
                return True  # before it is sent, due members are removed
            case Effect.SCRIPT | Effect.ARRIVE:
                return False  # no script replaces it
            case Effect.READ | Effect.DATABASE | Effect.WAIT | Effect.LOGIN | Effect.CONNECTION | Effect.DESCRIBE:
                return False
            case Effect.MIGRATE | Effect.WATCH:
                return False  # no script replaces it
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD:
                return False
        assert_never(self)


JUDGED: Final = frozenset(effect for effect in Effect if effect.judged)
MARKING: Final = frozenset(effect for effect in Effect if effect.marking)
BLIND: Final = frozenset(effect for effect in Effect if effect.blind)
SPARED: Final = frozenset(effect for effect in Effect if effect.spared)

Keys: TypeAlias = Callable[[Arguments], list[bytes] | None]
"""Finds the keys whose deadlines a request affects; returns None if the request is malformed or affects none."""


@dataclass(frozen=True, slots=True)
class Command:
    """The table's entry for one command.

    Attributes:
        name: the name in upper case.
        effect: its effect on members and deadlines.
        keys: finds the keys whose deadlines it affects.
        members: finds the members it adds or removes, for `Effect.ADD`, `Effect.COUNT` and `Effect.REMOVE`.
        always: whether to examine every request, even while no key has deadlines.
        everywhere: returns whether a request reads keys that it does not name.
    """

    name: bytes
    effect: Effect
    keys: Keys
    members: Locator | None = None
    always: bool = False
    everywhere: Callable[[Arguments], bool] = lambda _: False


def _at(*positions: int, least: int = 0) -> Keys:
    size = max(least, max(positions) + 1)

    def keys(arguments: Arguments) -> list[bytes] | None:
        return [arguments[position] for position in positions] if len(arguments) >= size else None

    return keys


def _from(first: int, step: int = 1) -> Keys:
    def keys(arguments: Arguments) -> list[bytes] | None:
        return arguments[first::step] if len(arguments) >= first + step else None

    return keys


_OPTION_VALUES = {b"BY": 1, b"GET": 1, b"LIMIT": 2, b"COUNT": 1, b"STORE": 1, b"STOREDIST": 1}
"""Options of SORT and GEORADIUS, with the number of values after each, since a value may look like an option."""


def _stored(*options: bytes, first: int) -> Keys:
    """The key after the last of the options (SORT … STORE key); None if there is none."""

    def keys(arguments: Arguments) -> list[bytes] | None:
        position, target = first, None
        while position < len(arguments):
            option = arguments[position].upper()
            if option in options and position + 1 < len(arguments):
                target = [arguments[position + 1]]
            position += 1 + _OPTION_VALUES.get(option, 0)
        return target

    return keys


def _counted(arguments: Arguments) -> list[bytes] | None:
    """The keys of a script, EVAL script count key …; None if the script declares that it only reads."""
    if arguments[1:2] and arguments[1].startswith(b"#!") and b"no-writes" in arguments[1].split(b"\n", 1)[0]:
        return None
    count = strict_integer(arguments[2]) if len(arguments) > 2 else None
    return arguments[3 : 3 + count] if count is not None and 0 < count <= len(arguments) - 3 else None


def _numbered(arguments: Arguments) -> list[bytes] | None:
    """The keys of MSETEX count key value …, which options may follow."""
    count = strict_integer(arguments[1]) if len(arguments) > 1 else None
    return arguments[2 : 2 + 2 * count : 2] if count is not None and 0 < count <= (len(arguments) - 2) // 2 else None


def _imported(arguments: Arguments) -> list[bytes] | None:
    """The key of HIMPORT SET key fieldset value …; other subcommands have none."""
    return arguments[2:3] if len(arguments) > 4 and arguments[1].upper() == b"SET" else None


def _by_pattern(arguments: Arguments) -> bool:
    """Whether a SORT reads other keys (BY weight_*, GET object_*)."""
    return any(word.upper() in (b"BY", b"GET") and b"*" in pattern for word, pattern in pairwise(arguments[2:]))


def _none(_: Arguments) -> list[bytes] | None:
    return None


def _build() -> dict[bytes, Command]:
    table: dict[bytes, Command] = {}

    def put(
        effect: Effect,
        names: str,
        keys: Keys,
        locator: Locator | None = None,
        *,
        always: bool = False,
        everywhere: Callable[[Arguments], bool] = lambda _: False,
    ) -> None:
        for name in names.encode().split():
            assert name not in table
            table[name] = Command(name, effect, keys, locator, always, everywhere)

    key = _at(1)
    put(Effect.EXPIRE, "EXPIREMEMBER EXPIREMEMBERAT PEXPIREMEMBER PEXPIREMEMBERAT", key, always=True)
    put(Effect.LIFETIME, "TTL PTTL PERSIST", key, always=True)

    put(Effect.ADD, "HSET HMSET", key, members.every(2, 2))
    put(Effect.ADD, "HSETNX HINCRBYFLOAT", key, members.one(2, 4))
    put(Effect.COUNT, "HINCRBY", key, members.one(2, 4))
    put(Effect.ADD, "HSETEX", key, members.fields_with_values)
    put(Effect.ADD, "SADD LPUSH RPUSH LPUSHX RPUSHX", key, members.every(2))
    put(Effect.ADD, "ZADD", key, members.zadd)
    put(Effect.ADD, "ZINCRBY", key, members.one(3, 4))
    put(Effect.ADD, "GEOADD", key, members.geoadd)
    put(Effect.ADD, "LINSERT", key, members.one(4, 5))
    put(Effect.ADD, "LSET", key, members.one(3, 4))

    put(Effect.REMOVE, "HDEL SREM ZREM", key, members.every(2))
    put(Effect.REMOVE, "HGETDEL", key, members.fields)
    put(Effect.REMOVE, "LREM", key, members.one(3, 4))

    put(Effect.REMOVE_UNNAMED, "SPOP LPOP RPOP LTRIM ZPOPMIN ZPOPMAX", key)
    put(Effect.REMOVE_UNNAMED, "BLPOP BRPOP BZPOPMIN BZPOPMAX LMPOP BLMPOP ZMPOP BZMPOP", _none)
    put(Effect.REMOVE_UNNAMED, "ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE", key)
    put(Effect.REMOVE_UNNAMED, "EXPIRE PEXPIRE EXPIREAT PEXPIREAT", key)  # a time in the past removes all members
    put(Effect.FIELD_EXPIRY, "HEXPIRE HPEXPIRE HEXPIREAT HPEXPIREAT HPERSIST HGETEX", key)

    put(Effect.MOVE_MEMBER, "SMOVE", _at(1, 2))
    put(Effect.MOVE_MEMBER, "LMOVE RPOPLPUSH", _at(1, 2))

    put(Effect.ARRIVE, "BLMOVE BRPOPLPUSH LMOVEM BLMOVEM", _at(2))
    put(Effect.IMPORT, "HIMPORT", _imported)
    put(Effect.SCRIPT, "EVAL EVALSHA FCALL", _counted)

    put(Effect.REPLACE, "SINTERSTORE SUNIONSTORE SDIFFSTORE ZUNIONSTORE ZINTERSTORE ZDIFFSTORE", key)
    put(Effect.REPLACE, "ZRANGESTORE GEOSEARCHSTORE RESTORE RESTORE-ASKING", key)
    put(Effect.REPLACE, "SORT", _stored(b"STORE", first=2), always=True, everywhere=_by_pattern)
    put(Effect.READ, "SORT_RO", _none, always=True, everywhere=_by_pattern)
    put(Effect.WATCH, "WATCH UNWATCH", _none, always=True)
    put(Effect.REPLACE, "GEORADIUS GEORADIUSBYMEMBER", _stored(b"STORE", b"STOREDIST", first=4))

    put(Effect.VANISH, "DEL UNLINK", _from(1))
    put(Effect.VANISH, "SET SETEX PSETEX DELEX", key)
    put(Effect.VANISH, "MSET", _from(1, 2))
    put(Effect.VANISH, "MSETEX", _numbered)
    put(Effect.VANISH, "BITOP", _at(2))

    put(Effect.RENAME, "RENAME RENAMENX", _at(1, 2))
    put(Effect.COPY, "COPY", _at(1, 2))
    put(Effect.MOVE, "MOVE", _at(1, least=3))

    put(Effect.MULTI, "MULTI", _none, always=True)
    put(Effect.EXEC, "EXEC", _none, always=True)
    put(Effect.DISCARD, "DISCARD RESET", _none, always=True)
    put(Effect.KEYSPACE, "DBSIZE KEYS SCAN CLUSTERSCAN RANDOMKEY", _none, always=True, everywhere=lambda _: True)
    put(Effect.DATABASE, "SELECT SWAPDB", _none, always=True)
    put(Effect.MIGRATE, "MIGRATE", _none, always=True)
    put(Effect.WAIT, "WAIT WAITAOF", _none, always=True)
    put(Effect.LOGIN, "AUTH HELLO", _none, always=True)
    # A RESP2 subscriber may run few commands: errors must be about the client's own requests, not about scripts.
    put(Effect.LOGIN, "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE", _none, always=True)
    put(Effect.LOGIN, "MONITOR", _none, always=True)  # after MONITOR the connection may run few commands, too
    put(Effect.CONNECTION, "CLIENT ASKING CLUSTER", _none, always=True)
    put(Effect.DESCRIBE, "COMMAND INFO", _none, always=True)
    return table


COMMANDS: dict[bytes, Command] = _build()
"""Upper-case name → the entry for the command."""

DIALECTS: Final[dict[bytes, Command]] = {
    word.name: Command(word.name, Effect.EXPIRE if word.deed.may_set else Effect.LIFETIME, _at(1), always=True)
    for word in WORDS.values()
}
"""Entries for commands that only some servers have. Used if the server does not have the command."""

HARMLESS: Final = frozenset(
    b"""APPEND ARDEL ARDELRANGE ARINSERT ARMSET ARRING ARSEEK ARSET BITFIELD DECR DECRBY DELIFEQ
    FLUSHALL FLUSHDB FUNCTION GETDEL GETEX GETSET INCR INCRBY INCRBYFLOAT INCREX MSETNX
    PFADD PFDEBUG PFMERGE PUBLISH SCRIPT SETBIT SETNX SETRANGE SPUBLISH TRIMSLOTS VADD VREM VSETATTR XACK
    XACKDEL XADD XAUTOCLAIM XCFGSET XCLAIM XDEL XDELEX XGROUP XIDMPRECORD XNACK XREADGROUP XSETID XTRIM""".split()
)
"""Commands that write but neither add, remove nor replace members of a set, hash, sorted set or list. Commands
neither here nor in the table may add members, unless the server flags them as read-only (`ServerCommands`)."""

STREAMED: frozenset[bytes] = frozenset(
    b"""APPEND ECHO GETSET HSET HSETNX LPUSH LPUSHX PFADD PUBLISH RPUSH RPUSHX RESTORE SADD SET SETEX SETNX SETRANGE
    PSETEX SPUBLISH XADD ZADD""".split()
)
"""Commands whose only key is their first argument: a request with a huge value can be judged by its head. The same is
true of other commands if the server describes the first argument as their only key."""

FREQUENT: frozenset[bytes] = frozenset(
    b"""APPEND DECR DECRBY DEL EXISTS EXPIRE EXPIREAT GEOADD GET GETBIT GETDEL GETEX GETRANGE GETSET HDEL HEXISTS HGET
    HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HSCAN HSET HSETNX HVALS INCR INCRBY INCRBYFLOAT LINDEX LINSERT
    LLEN LPOP LPUSH LRANGE LREM LSET LTRIM MGET MSET PEXPIRE PEXPIREAT PFADD PSETEX PUBLISH RPOP RPUSH SADD SCARD SET
    SETBIT SETEX SETNX SETRANGE SISMEMBER SMEMBERS SMISMEMBER SPOP SRANDMEMBER SREM SSCAN STRLEN TYPE UNLINK XACK XADD
    XLEN XRANGE ZADD ZCARD ZCOUNT ZINCRBY ZPOPMAX ZPOPMIN ZRANGE ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYRANK
    ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE""".split()
)
"""The most frequent commands, which need no examination unless they touch a covered key."""

FREQUENT_READS: frozenset[bytes] = frozenset(
    b"""EXISTS GET GETBIT GETRANGE HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN HVALS LINDEX LLEN LRANGE MGET SCARD
    SISMEMBER SMEMBERS SMISMEMBER SRANDMEMBER SSCAN STRLEN TYPE XLEN XRANGE ZCARD ZCOUNT ZRANGE ZRANGEBYSCORE ZRANK
    ZREVRANGE ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE""".split()
)
"""Frequent commands that the server also runs while it rejects writes."""

INDIFFERENT: Final = frozenset(b"MGET MSET PSETEX PUBLISH SETEX SPUBLISH".split())
"""Commands whose effect and reply do not depend on the members of their keys, and that add no members."""

_TERMS: Final = frozenset((b"EX", b"PX", b"EXAT", b"PXAT"))


def is_indifferent(arguments: Arguments) -> bool:
    """Return whether the effect and reply of a request do not depend on the members of its keys."""
    name, size = arguments[0].upper(), len(arguments)
    if name == b"SET":
        return size == 3 or (size == 5 and arguments[3].upper() in _TERMS)
    return name in INDIFFERENT


STRING_LIKE: Final = frozenset(
    b"""APPEND BITCOUNT BITFIELD BITFIELD_RO BITPOS DECR DECRBY GET GETBIT GETDEL GETEX GETRANGE GETSET INCR INCRBY
    INCRBYFLOAT LCS MSETNX PFADD PFCOUNT PFMERGE SETBIT SETNX SETRANGE STRLEN SUBSTR XACK XADD XAUTOCLAIM XCLAIM XDEL
    XGROUP XINFO XLEN XPENDING XRANGE XREAD XREADGROUP XREVRANGE XSETID XTRIM""".split()
)
"""Commands for strings and streams: on a key that holds a collection they change nothing and return an error."""

OF_KEYS: Final = frozenset(b"EXPIRETIME OBJECT PEXPIRETIME PTTL TOUCH TTL".split())
"""Commands about a key as a whole, which can be sent twice."""

OF_SEVERAL_KEYS: Final = frozenset(
    b"""EXISTS LCS MSETNX OBJECT PFCOUNT PFMERGE SDIFF SINTER SINTERCARD SUNION TOUCH XGROUP XINFO XREAD XREADGROUP
    ZDIFF ZINTER ZINTERCARD ZUNION""".split()
)
"""Commands of `STRING_LIKE`, `OF_KEYS` and `PURE_READS` with several keys, or with a key after another argument."""

PURE_READS: Final = (FREQUENT_READS - INDIFFERENT) | frozenset(
    b"""BITCOUNT BITFIELD_RO BITPOS DUMP EXPIRETIME GEODIST GEOHASH GEOPOS GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH
    HRANDFIELD HSTRLEN LCS LPOS PEXPIRETIME SDIFF SINTER SINTERCARD SUBSTR SUNION XPENDING XREVRANGE ZDIFF ZINTER
    ZINTERCARD ZLEXCOUNT ZMSCORE ZRANDMEMBER ZRANGEBYLEX ZREVRANGEBYLEX ZUNION""".split()
)
"""Commands that only read, and only the keys they name: sending them twice makes no difference."""

BATCHED: frozenset[bytes] = frozenset(
    b"""EXPIREMEMBER PEXPIREMEMBER TTL PTTL PERSIST HINCRBY HINCRBYFLOAT HMSET HSET HSETNX SADD ZADD ZINCRBY
    HDEL SREM ZREM""".split()
)
"""Commands that are batched: many in a row become one call of a script. None is slow, and their replies contain no
nulls. (Commands for lists are left out: each scans the list.)"""

BLOCKING: frozenset[bytes] = frozenset(
    b"BLMOVE BLMOVEM BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN XREAD XREADGROUP".split()
)
"""Commands that may wait until another client adds data."""

UNANSWERED: frozenset[bytes] = BLOCKING | {b"WAIT", b"WAITAOF", b"SYNC", b"PSYNC"}
"""Commands that the server may answer at any time, or never. Later requests on the connection wait too."""
