"""What `COMMAND` is to say of the proxy's own commands: arity, flags, arguments; the only source of it.

Each takes after a command of the server's own, `MODEL`: keys, ACL categories and the form in which the server at hand
describes a command are that command's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

MODEL: Final = b"pexpire"
ARITY: Final = -4
FLAGS: Final = (b"write", b"denyoom", b"fast")
CATEGORIES: Final = (b"keyspace", b"write", b"fast")
"""Those of `MODEL`."""

_SINCE: Final = b"0.1.0"

Reply: TypeAlias = "bytes | int | list[Reply] | Status | Flags | Fields"
"""A value as a server sends it: a string, an integer, an array, a status, a set of statuses, a map."""


@dataclass(frozen=True, slots=True)
class Status:
    """A simple string."""

    word: bytes


@dataclass(frozen=True, slots=True)
class Flags:
    """A set of simple strings: an array in RESP2."""

    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """A map with its order: an array in RESP2."""

    items: tuple[tuple[bytes, Reply], ...]


def encode_reply(value: Reply, *, resp3: bool) -> bytes:
    """Encode a value as the server would.

    Args:
        value: the value.
        resp3: whether the client speaks RESP3, which has sets and maps.
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
    """Return the line that begins an array, a set or a map of so many elements."""
    return b"%b%d\r\n" % (mark, count)


def _argument(name: bytes, kind: bytes, *, token: bytes | None = None, optional: bool = False,
              choices: tuple[bytes, ...] = ()) -> Fields:  # fmt: skip
    items: list[tuple[bytes, Reply]] = [(b"name", name), (b"type", kind)]
    if not choices:
        items.append((b"display_text", name))
    if kind == b"key":
        items.append((b"key_spec_index", 0))
    if token is not None:
        items.append((b"token", token))
    if optional:
        items.append((b"flags", Flags((b"optional",))))
    if choices:
        items.append((b"arguments", [_argument(one.lower(), b"pure-token", token=one) for one in choices]))
    return Fields(tuple(items))


_KEY: Final = _argument(b"key", b"key")
_MEMBER: Final = _argument(b"member", b"string")
_UNIT: Final = _argument(b"unit", b"oneof", optional=True, choices=(b"s", b"ms"))
_CONDITION: Final = _argument(b"condition", b"oneof", optional=True, choices=(b"NX", b"XX", b"GT", b"LT"))

OPTIONAL_MEMBER: Final = _argument(b"member", b"string", optional=True)
"""The argument that the proxy adds to those of `EXTENDED`."""

EXTENDED: Final = (b"ttl", b"pttl", b"persist")
"""Commands of the server's own that take a member behind the key here."""

EXTENDED_ARITY: Final = -2
"""Their arity here."""


def _docs(summary: bytes, *arguments: Fields) -> Fields:
    complexity = (
        b"O(log(N)) with N being the number of deadlines of the key; in a list, O(M) more to find the element,"
        b" with M being the length of the list."
    )
    return Fields((
        (b"summary", summary),
        (b"since", _SINCE),
        (b"group", b"generic"),
        (b"complexity", complexity),
        (b"arguments", [_KEY, _MEMBER, *arguments, _CONDITION]),
    ))  # fmt: skip


_OF: Final = b"of a member of a set, hash, sorted set or list"

DOCS: Final[Mapping[bytes, Fields]] = {
    b"expiremember": _docs(
        b"Sets the expiration time %b in seconds or milliseconds." % _OF, _argument(b"delay", b"integer"), _UNIT
    ),
    b"expirememberat": _docs(
        b"Sets the expiration time %b to a Unix timestamp." % _OF, _argument(b"unix-time-seconds", b"unix-time")
    ),
    b"pexpiremember": _docs(
        b"Sets the expiration time %b in milliseconds." % _OF, _argument(b"milliseconds", b"integer")
    ),
    b"pexpirememberat": _docs(
        b"Sets the expiration time %b to a Unix milliseconds timestamp." % _OF,
        _argument(b"unix-time-milliseconds", b"unix-time"),
    ),
}
"""Lower-case name → what `COMMAND DOCS` says of the command, as servers from Redis 7.0 on put it."""
