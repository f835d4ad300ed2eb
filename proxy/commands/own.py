"""The proxy's own commands as `COMMAND` describes them: arity, flags, arguments.

Its tests: tests/test_command.py.

Each is modelled on a command of the server, and has the same keys, ACL categories and form of description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from proxy.commands.dialects import WORDS, Deed, Word

MODELS: Final[Mapping[bytes, tuple[bytes, ...]]] = {
    b"pexpire": (b"keyspace", b"write", b"fast"),
    b"pttl": (b"keyspace", b"read", b"fast"),
}
"""The model commands, each with its ACL categories."""

Reply: TypeAlias = "bytes | int | list[Reply] | Status | Flags | Fields"
"""A reply value: string, integer, array, status, set of statuses, or map."""


@dataclass(frozen=True, slots=True)
class Status:
    """A simple string."""

    word: bytes


@dataclass(frozen=True, slots=True)
class Flags:
    """A set of simple strings; an array in RESP2."""

    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """A map that keeps its order; an array in RESP2."""

    items: tuple[tuple[bytes, Reply], ...]


def encode_reply(value: Reply, *, resp3: bool) -> bytes:
    """Encode a reply as the server would.

    Args:
        value: the value.
        resp3: whether the client uses RESP3, which has sets and maps.
    """
    match value:
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case int():
            return b":%d\r\n" % value
        case Status(word):
            return b"+%b\r\n" % word
        case Flags(words):
            return header(b"~" if resp3 else b"*", len(words)) + b"".join(b"+%b\r\n" % word for word in words)
        case Fields(items):
            head = header(b"%", len(items)) if resp3 else header(b"*", 2 * len(items))
            pairs = (encode_reply(part, resp3=resp3) for item in items for part in item)
            return head + b"".join(pairs)
        case list():
            return header(b"*", len(value)) + b"".join(encode_reply(part, resp3=resp3) for part in value)


def header(mark: bytes, count: int) -> bytes:
    """Return the line that starts an array, set or map with this many elements."""
    return b"%b%d\r\n" % (mark, count)


def _argument(name: bytes, kind: bytes, *, token: bytes | None = None, flag: bytes = b"",
              choices: tuple[bytes, ...] = (), parts: tuple[Fields, ...] = ()) -> Fields:  # fmt: skip
    items: list[tuple[bytes, Reply]] = [(b"name", name), (b"type", kind)]
    if not choices and not parts:
        items.append((b"display_text", name))
    if kind == b"key":
        items.append((b"key_spec_index", 0))
    if token is not None:
        items.append((b"token", token))
    if flag:
        items.append((b"flags", Flags((flag,))))
    if parts:
        items.append((b"arguments", [*parts]))
    if choices:
        items.append((b"arguments", [_argument(one.lower(), b"pure-token", token=one) for one in choices]))
    return Fields(tuple(items))


_KEY: Final = _argument(b"key", b"key")
_MEMBER: Final = _argument(b"member", b"string")
_UNIT: Final = _argument(b"unit", b"oneof", flag=b"optional", choices=(b"s", b"ms"))
_CONDITION: Final = _argument(b"condition", b"oneof", flag=b"optional", choices=(b"NX", b"XX", b"GT", b"LT"))

OPTIONAL_MEMBER: Final = _argument(b"member", b"string", flag=b"optional")
"""The argument that the proxy adds to the commands in `EXTENDED`."""

EXTENDED: Final = (b"ttl", b"pttl", b"persist")
"""Commands of the server that, with the proxy, also accept a member after the key."""

EXTENDED_ARITY: Final = -2
"""Arity of these commands with the proxy."""


@dataclass(frozen=True, slots=True)
class Own:
    """Description of one of the proxy's own commands.

    Attributes:
        arity: number of arguments, including the name; if negative, the minimum.
        flags: the flags that the server would report.
        model: the server's command on which it is modelled.
        docs: the reply to `COMMAND DOCS`, in the form used from Redis 7.0 on.
    """

    arity: int
    flags: tuple[bytes, ...]
    model: bytes
    docs: Fields


_SETS: Final = (b"write", b"denyoom", b"fast")
_IN_A_LIST: Final = b"; in a list, O(M) more to find the element, with M being the length of the list."


def _one(summary: bytes, *arguments: Fields) -> Own:
    docs = Fields((
        (b"summary", summary),
        (b"since", b"0.1.0"),
        (b"group", b"generic"),
        (b"complexity", b"O(log(N)) with N being the number of deadlines of the key" + _IN_A_LIST),
        (b"arguments", [_KEY, _MEMBER, *arguments, _CONDITION]),
    ))  # fmt: skip
    return Own(-4, _SETS, b"pexpire", docs)


_GROUPS: Final = {b"hash": b"hash", b"set": b"set", b"zset": b"sorted-set", b"list": b"list"}
_TIMES: Final = {
    (1000, True): _argument(b"seconds", b"integer"),
    (1, True): _argument(b"milliseconds", b"integer"),
    (1000, False): _argument(b"unix-time-seconds", b"unix-time"),
    (1, False): _argument(b"unix-time-milliseconds", b"unix-time"),
}


_FIELDS: Final = _argument(b"field", b"string", flag=b"multiple")
_VALUED: Final = (
    (b"seconds", b"integer", b"EX"), (b"milliseconds", b"integer", b"PX"),
    (b"unix-time-seconds", b"unix-time", b"EXAT"), (b"unix-time-milliseconds", b"unix-time", b"PXAT"),
)  # fmt: skip


def _lifetime(other: bytes) -> Fields:
    choices = [_argument(name, kind, token=token) for name, kind, token in _VALUED]
    choices.append(_argument(other.lower(), b"pure-token", token=other))
    return _argument(b"expiration", b"oneof", flag=b"optional", parts=(*choices,))


def _fields(each: Fields) -> Fields:
    return _argument(b"fields", b"block", token=b"FIELDS", parts=(_argument(b"numfields", b"integer"), each))


_SCAN: Final = (
    _KEY, _argument(b"cursor", b"integer"), _argument(b"pattern", b"pattern", token=b"MATCH", flag=b"optional"),
    _argument(b"count", b"integer", token=b"COUNT", flag=b"optional"),
)  # fmt: skip
_OTHERS: Final[Mapping[bytes, tuple[bytes, tuple[Fields, ...]]]] = {
    b"FIELDEXPIRE": (
        b"Sets the expiration time of members of a set or of fields of a hash in seconds.",
        (_KEY, _TIMES[1000, True], _FIELDS),
    ),
    b"FIELDTTL": (
        b"Returns the time in seconds that a member of a set or a field of a hash still has to live.",
        (_KEY, _argument(b"field", b"string")),
    ),
    b"EXPIREMEMBERTIME": (b"Returns the expiration time of a member as a Unix timestamp.", (_KEY, _MEMBER)),
    b"PEXPIREMEMBERTIME": (
        b"Returns the expiration time of a member as a Unix milliseconds timestamp.",
        (_KEY, _MEMBER),
    ),
    b"HSETEX": (
        b"Sets fields of a hash, and optionally their expiration time.",
        (
            _KEY,
            _argument(b"condition", b"oneof", flag=b"optional", choices=(b"FNX", b"FXX")),
            _lifetime(b"KEEPTTL"),
            _fields(
                _argument(
                    b"data",
                    b"block",
                    flag=b"multiple",
                    parts=(_argument(b"field", b"string"), _argument(b"value", b"string")),
                )
            ),
        ),
    ),
    b"HGETEX": (
        b"Returns fields of a hash, and optionally sets their expiration time.",
        (_KEY, _lifetime(b"PERSIST"), _fields(_FIELDS)),
    ),
    b"HGETDEL": (b"Returns fields of a hash, and deletes them.", (_KEY, _fields(_FIELDS))),
    b"SADDEX": (
        b"Adds members to a set, and optionally sets their expiration time.",
        (
            _KEY,
            _argument(b"condition", b"oneof", flag=b"optional", choices=(b"MNX", b"MXX")),
            _lifetime(b"KEEPTTL"),
            _argument(
                b"members",
                b"block",
                token=b"MEMBERS",
                parts=(_argument(b"nummembers", b"integer"), _argument(b"member", b"string", flag=b"multiple")),
            ),
        ),
    ),
    b"EXPIREMEMBERSCAN": (b"Iterates over members that have an expiration time, and those times.", _SCAN),
}


def _several(word: Word) -> Own:
    noun, group = word.noun.lower(), _GROUPS.get(word.kind, b"generic")
    of = b"of %b of a %b" % (noun, group.replace(b"-", b" "))
    unit = b"seconds" if word.unit == 1000 else b"milliseconds"
    summary = {
        (Deed.SET, True): b"Sets the expiration time %b in %b.",
        (Deed.SET, False): b"Sets the expiration time %b to a Unix timestamp in %b.",
        (Deed.READ, True): b"Returns the time %b still have to live in %b.",
        (Deed.READ, False): b"Returns the expiration time %b as a Unix timestamp in %b.",
    }.get((word.deed, word.relative), b"")
    members = _argument(noun, b"block", token=word.noun, parts=(
        _argument(b"num" + noun, b"integer"), _argument(noun[:-1], b"string", flag=b"multiple")
    ))  # fmt: skip
    said = summary % (of, unit) if summary else b"Removes the expiration time %b." % of
    arguments = (_KEY, *((_TIMES[word.unit, word.relative], _CONDITION) if word.deed is Deed.SET else ()), members)
    said, arguments = _OTHERS.get(word.name, (said, arguments))
    complexity = b"O(K log(N)) for K members, with N being the number of deadlines of the key" + _IN_A_LIST
    docs = Fields((
        (b"summary", said),
        (b"since", b"0.2.0"),
        (b"group", group),
        (b"complexity", complexity),
        (b"arguments", [*arguments]),
    ))  # fmt: skip
    flags: tuple[bytes, ...] = (b"write", b"fast")
    if word.deed.reads:
        flags = (b"readonly",) if word.deed is Deed.SCAN else (b"readonly", b"fast")
    elif word.deed.may_set:
        flags = _SETS
    return Own(word.arity, flags, b"pttl" if word.deed.reads else b"pexpire", docs)


_OF: Final = b"of a member of a set, hash, sorted set or list"

OWN: Final[Mapping[bytes, Own]] = {
    b"expiremember": _one(
        b"Sets the expiration time %b in seconds or milliseconds." % _OF, _argument(b"delay", b"integer"), _UNIT
    ),
    b"expirememberat": _one(
        b"Sets the expiration time %b to a Unix timestamp." % _OF, _argument(b"unix-time-seconds", b"unix-time")
    ),
    b"pexpiremember": _one(
        b"Sets the expiration time %b in milliseconds." % _OF, _argument(b"milliseconds", b"integer")
    ),
    b"pexpirememberat": _one(
        b"Sets the expiration time %b to a Unix milliseconds timestamp." % _OF,
        _argument(b"unix-time-milliseconds", b"unix-time"),
    ),
    **{name.lower(): _several(word) for name, word in WORDS.items()},
}
"""Lower-case name → the command. A server may itself have some of the commands from `WORDS`."""
