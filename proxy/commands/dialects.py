"""Parse the commands of Redis, Valkey, Garnet and Dragonfly that set or read lifetimes of several members at once.

Its tests: tests/test_dialects.py.

`HEXPIRE key time [NX|XX|GT|LT] FIELDS n field …` and related commands for hashes (H); the same with MEMBERS for sets
(S, as in Redis 8.12), sorted sets (Z, as in Garnet) and lists (L). Also `HSETEX`, `HGETEX` and `HGETDEL`. Errors and
their order are those of Redis 8.10, or, for hashes on Valkey, of Valkey 9.1. Also Dragonfly's `FIELDEXPIRE` and
`FIELDTTL`, and the proxy's own `EXPIREMEMBERTIME`, `PEXPIREMEMBERTIME` and `EXPIREMEMBERSCAN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from proxy.commands.lifetime import (
    EXACT,
    GT_OR_LT,
    NOT_AN_INTEGER,
    NX_ALONE,
    ArityError,
    LifetimeError,
)
from proxy.wire.request import strict_integer

LATEST: Final = (1 << 46) - 1
"""The latest deadline that Redis accepts for a field, in Unix ms."""

MOST_MEMBERS: Final = 100_000
"""Maximum number of members per request: each blocks the server for some 2 µs."""

MOST_ELEMENTS: Final = 100
"""Maximum number of elements of a list per request: the list is scanned once for each that is removed."""

MOST_SCANNED: Final = 10_000
"""Maximum COUNT of EXPIREMEMBERSCAN; larger values are reduced to it."""

ANY: Final = b"hash|set|zset|list"
"""All types that have members."""

MOST_SECONDS: Final = (1 << 32) - 1
"""Maximum time that Dragonfly's commands take, in seconds."""

RELATIVE_UNITS: Final[Mapping[bytes, int]] = {b"EX": 1000, b"PX": 1}
"""Option that precedes a time from now → the unit of that time, in ms."""

_MOST_COUNTED: Final = (1 << 31) - 1


class Deed(Enum):
    """The effect of a command on lifetimes."""

    SET = "sets them"
    READ = "returns them"
    DROP = "drops them"
    SCAN = "lists them"
    WRITE = "writes members, with lifetimes"
    GET = "returns members' values, and sets or drops lifetimes"
    TAKE = "returns members' values, and removes them"

    @property
    def reads(self) -> bool:
        """Whether the command writes nothing."""
        return self in (Deed.READ, Deed.SCAN)

    @property
    def may_set(self) -> bool:
        """Whether the command may give a member a lifetime."""
        return self in (Deed.SET, Deed.WRITE, Deed.GET)


class Term(Enum):
    """The effect of a request's options on lifetimes."""

    TIME = "they are set"
    NONE = "as the command does by default"
    KEEP = "they stay"
    DROP = "they are dropped"


@dataclass(frozen=True, slots=True)
class Word:
    """A command for lifetimes of members: of Redis, Valkey, Garnet or Dragonfly, or of the proxy itself.

    Attributes:
        name: the name in upper case.
        deed: its effect on lifetimes.
        kind: the required type of its key, as reported by TYPE; alternatives are separated by `|`.
        unit: the unit of its times, in ms.
        relative: whether times count from now.
        noun: the keyword before the number of members; empty if there is none.
        arity: number of arguments, including the name; if negative, the minimum, as in COMMAND.
        missing: its reply for an absent member of an existing key.
        removed: its reply for a member that it removes because the time has passed.
    """

    name: bytes
    deed: Deed
    kind: bytes
    unit: int
    relative: bool
    noun: bytes
    arity: int
    missing: int = -2
    removed: int = 2

    @property
    def is_of_one(self) -> bool:
        """Whether the command takes a single member, and its reply is not an array."""
        return self.deed is Deed.READ and not self.noun


def _words() -> dict[bytes, Word]:
    words = {}
    for letter, kind in ((b"H", b"hash"), (b"S", b"set"), (b"Z", b"zset"), (b"L", b"list")):
        for name, deed, unit, relative in (
            (b"EXPIRE", Deed.SET, 1000, True), (b"PEXPIRE", Deed.SET, 1, True),
            (b"EXPIREAT", Deed.SET, 1000, False), (b"PEXPIREAT", Deed.SET, 1, False),
            (b"TTL", Deed.READ, 1000, True), (b"PTTL", Deed.READ, 1, True),
            (b"EXPIRETIME", Deed.READ, 1000, False), (b"PEXPIRETIME", Deed.READ, 1, False),
            (b"PERSIST", Deed.DROP, 1, False),
        ):  # fmt: skip
            noun, arity = (b"FIELDS" if letter == b"H" else b"MEMBERS"), (-6 if deed is Deed.SET else -5)
            words[letter + name] = Word(letter + name, deed, kind, unit, relative, noun, arity)
    for word in (
        Word(b"HSETEX", Deed.WRITE, b"hash", 1, True, b"FIELDS", -6),
        Word(b"HGETEX", Deed.GET, b"hash", 1, True, b"FIELDS", -5),
        Word(b"HGETDEL", Deed.TAKE, b"hash", 1, True, b"FIELDS", -5),
        Word(b"SADDEX", Deed.WRITE, b"set", 1, True, b"MEMBERS", -4),
        Word(b"FIELDEXPIRE", Deed.SET, b"hash|set", 1000, True, b"", -4, removed=1),
        Word(b"FIELDTTL", Deed.READ, b"hash|set", 1000, True, b"", 3, missing=-3),
        Word(b"EXPIREMEMBERTIME", Deed.READ, ANY, 1000, False, b"", 3),
        Word(b"PEXPIREMEMBERTIME", Deed.READ, ANY, 1, False, b"", 3),
        Word(b"EXPIREMEMBERSCAN", Deed.SCAN, ANY, 1, False, b"", -3),
    ):
        words[word.name] = word
    return words


WORDS: Final[Mapping[bytes, Word]] = _words()
"""Upper-case name → the command."""


TOGETHER: Final = frozenset(b"HEXPIRE HPEXPIRE SEXPIRE SPEXPIRE ZEXPIRE ZPEXPIRE FIELDEXPIRE HSETEX SADDEX".split())
"""Commands that are batched if they name one member, no condition, and a time from now: `HEXPIRE key seconds FIELDS 1
field`, `HSETEX key EX seconds FIELDS 1 field value`, `SADDEX key seconds member`."""


class MisreadError(LifetimeError):
    """The arguments are invalid for the command.

    Attributes:
        after_type: whether the server reports a key of the wrong type before this error.
    """

    def __init__(self, message: bytes, *, after_type: bool) -> None:
        super().__init__(message)
        self.after_type = after_type


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed arguments of a request.

    Attributes:
        members: the members, in order; for a command that writes them, each with its value.
        milliseconds: the time, for a command that sets lifetimes: from now if `relative`, else since 1970.
        condition: the given options of NX, XX, GT and LT, XX first; for a command that writes members, FNX, FXX, MNX
            or MXX (see `counts`).
        of_key: NX or XX, the condition on the key's existence, for a command that writes members.
        term: whether lifetimes are set, kept, dropped, or treated as the command does by default.
        relative: whether the time counts from now.
        options: the cursor and the options of ZSCAN, for a command that lists lifetimes.
        counts: whether a command that writes members returns the number of new ones; then `condition` is MNX if only
            new members get a lifetime.
    """

    members: list[bytes]
    milliseconds: int = 0
    condition: bytes = b""
    options: tuple[bytes, ...] = ()
    term: Term = Term.TIME
    relative: bool = False
    of_key: bytes = b""
    counts: bool = False


def read_words(word: Word, arguments: list[bytes], now: float, *, valkey: bool) -> Asked:
    """Parse the arguments of a request.

    Args:
        word: the command.
        arguments: the request's arguments, including the name.
        now: the server's clock in Unix ms, approximately; the server itself checks times near the limits.
        valkey: whether the server is a Valkey, which has its own errors for hashes.

    Raises:
        ArityError: there are too few arguments.
        MisreadError: the arguments are invalid in another way.
    """
    if len(arguments) != word.arity if word.arity > 0 else len(arguments) < -word.arity:
        raise ArityError(word.name)
    after_type = not (valkey and word.kind == b"hash")
    try:
        if word.deed is Deed.SCAN:
            return _scan(arguments)
        if not word.noun:
            asked = _plainly(word, arguments)
        elif word.name == b"SADDEX" and (added := _add_in_dragonfly(arguments)) is not None:
            asked = added
        elif word.deed in (Deed.WRITE, Deed.GET):
            after_type = after_type and word.deed is Deed.GET
            asked = (_options_of_valkey if valkey else _options_of_redis)(word, arguments, now)
        elif word.deed is Deed.SET:
            asked = (_set_in_redis if after_type else _set_in_valkey)(word, arguments, now)
        else:
            asked = Asked((_of_redis if after_type else _of_valkey)(word, arguments), term=Term.NONE)
    except _WrongError as error:
        raise MisreadError(error.message, after_type=error.after_type or (after_type and bool(word.noun))) from None
    most = MOST_ELEMENTS if word.kind == b"list" else MOST_MEMBERS
    if len(asked.members) > most * (2 if word.name == b"HSETEX" else 1):
        text = b"ERR expiremember-proxy: too many members at once, '%b' takes %d at most" % (word.name.lower(), most)
        raise MisreadError(text, after_type=after_type)
    return asked


class _WrongError(LifetimeError):
    """An error in the arguments, which `read_words` turns into a `MisreadError`.

    `after_type`: whether the server reports a key of the wrong type before this error, even if it checks the type
    after other errors of the same command.
    """

    after_type = False


def _invalid_time(word: Word) -> _WrongError:
    return _WrongError(b"ERR invalid expire time in '%b' command" % word.name.lower())


def _named(option: bytes) -> bytes:
    """Return an argument as it appears at the end of an error text."""
    return option.split(b"\0", 1)[0].rstrip(b"\r\n").replace(b"\r", b" ").replace(b"\n", b" ")


def _plainly(word: Word, arguments: list[bytes]) -> Asked:
    if word.deed is not Deed.SET:
        return Asked(arguments[2:], term=Term.NONE)
    seconds = strict_integer(arguments[2])
    if seconds is None or not 0 <= seconds <= MOST_SECONDS:
        raise _WrongError(NOT_AN_INTEGER)
    return Asked(arguments[3:], seconds * word.unit, relative=True)


def _scan(arguments: list[bytes]) -> Asked:
    cursor = arguments[2]
    if not cursor.isdigit() or len(cursor) > 20 or int(cursor) >= 1 << 64:
        raise _WrongError(b"ERR invalid cursor")
    pattern, count = b"*", 10
    for place in range(3, len(arguments), 2):
        option, value = arguments[place].upper(), arguments[place + 1 : place + 2]
        if option == b"COUNT" and value:
            number = strict_integer(value[0])
            if number is None:
                raise _WrongError(NOT_AN_INTEGER)
            if number < 1:
                raise _WrongError(_SYNTAX)
            count = min(number, MOST_SCANNED)
        elif option == b"MATCH" and value:
            pattern = value[0]
        else:
            raise _WrongError(_SYNTAX)
    options = (cursor, b"MATCH", pattern, b"COUNT", b"%d" % count)
    return Asked([], options=options, term=Term.NONE)


_CONDITIONS: Final = (b"NX", b"XX", b"GT", b"LT")


def _set_in_redis(word: Word, arguments: list[bytes], now: float) -> Asked:
    milliseconds = _time_in_redis(word, arguments[2], word.unit, now if word.relative else 0)
    chosen, members, place, size = set(), None, 3, len(arguments)
    while place < size:
        option = arguments[place].upper()
        if option == word.noun:
            if members is not None:
                raise _WrongError(b"ERR %b keyword specified multiple times" % word.noun)
            if place >= size - 2:
                text = b"ERR %b requires at least num%b and one %b argument"
                raise _WrongError(text % (word.noun, word.noun.lower(), word.noun[:-1].lower()))
            count = strict_integer(arguments[place + 1])
            if count is None or not 1 <= count <= _MOST_COUNTED:
                raise _WrongError(b"ERR Parameter `num%b` should be greater than 0" % word.noun.capitalize())
            if place + 2 + count > size:
                raise _WrongError(b"ERR wrong number of arguments")
            members = arguments[place + 2 : place + 2 + count]
            place += 2 + count
            continue
        if option not in _CONDITIONS:
            raise _WrongError(b"ERR unknown argument: %b" % _named(arguments[place]))
        chosen.add(option)
        place += 1
    if members is None:
        raise _WrongError(b"ERR missing %b argument" % word.noun)
    if len(chosen) > 1:
        raise _WrongError(b"ERR Multiple condition flags specified")
    return Asked(members, milliseconds, b"".join(chosen), relative=word.relative)


def _time_in_redis(word: Word, text: bytes, unit: int, since: float) -> int:
    number = strict_integer(text)
    if number is None:
        raise _WrongError(NOT_AN_INTEGER)
    if number < 0:
        raise _WrongError(b"ERR invalid expire time, must be >= 0")
    milliseconds = number * unit
    if milliseconds > LATEST or LATEST - milliseconds < since < LATEST:
        raise _invalid_time(word)
    return milliseconds


_TIMES: Final = {option: (unit, True) for option, unit in RELATIVE_UNITS.items()} | {
    b"EXAT": (1000, False), b"PXAT": (1, False)
}  # fmt: skip


def _options_of_redis(word: Word, arguments: list[bytes], now: float) -> Asked:
    writes, size, place = word.deed is Deed.WRITE, len(arguments), 2
    other, width = (b"KEEPTTL" if writes else b"PERSIST"), (2 if writes and word.kind == b"hash" else 1)
    present, absent = word.noun[:1] + b"XX", word.noun[:1] + b"NX"
    members, condition, term, milliseconds, relative = None, b"", Term.NONE, 0, False
    while place < size:
        option = arguments[place].upper()
        if option == word.noun:
            if members is not None:
                raise _WrongError(b"ERR %b keyword specified multiple times" % word.noun)
            if place == size - 1:
                raise _WrongError(ArityError(word.name).message)
            count = strict_integer(arguments[place + 1])
            if count is None or not 1 <= count <= _MOST_COUNTED:
                raise _WrongError(b"ERR invalid number of %b" % word.noun.lower())
            count *= width
            if place + 2 + count > size:
                raise _WrongError(b"ERR wrong number of arguments")
            members = arguments[place + 2 : place + 2 + count]
            place += 2 + count
            continue
        if option in _TIMES or option == other:
            if term is not Term.NONE:
                text = b"ERR Only one of EX, PX, EXAT, PXAT or %b arguments can be specified"
                raise _WrongError(text % other)
            term = Term.TIME if option in _TIMES else Term.KEEP if writes else Term.DROP
            if option in _TIMES:
                place += 1
                if place == size:
                    raise _WrongError(b"ERR missing expire time")
                unit, relative = _TIMES[option]
                milliseconds = _time_in_redis(word, arguments[place], unit, now if relative else 0)
        elif writes and option in (absent, present):
            if condition:
                raise _WrongError(b"ERR Only one of %b or %b arguments can be specified" % (present, absent))
            condition = option
        else:
            raise _WrongError(b"ERR unknown argument: %b" % _named(arguments[place]))
        place += 1
    if members is None:
        raise _WrongError(b"ERR missing %b argument" % word.noun)
    return Asked(members, milliseconds, condition, term=term, relative=relative)


def _add_in_dragonfly(arguments: list[bytes]) -> Asked | None:
    """Parse SADDEX key [KEEPTTL] seconds member …; return None for Redis's form, which has no number there."""
    keeps = arguments[2].upper() == b"KEEPTTL"
    seconds = strict_integer(arguments[2 + keeps])
    if seconds is None:
        return None
    members = arguments[3 + keeps :]
    if not members:
        raise _WrongError(ArityError(arguments[0]).message)
    if not 0 < seconds <= MOST_SECONDS:
        raise _WrongError(NOT_AN_INTEGER)
    return Asked(members, 1000 * seconds, b"MNX" if keeps else b"", relative=True, counts=True)


def _of_redis(word: Word, arguments: list[bytes]) -> list[bytes]:
    if arguments[2].upper() != word.noun:
        raise _WrongError(b"ERR Mandatory argument %b is missing or not at the right position" % word.noun)
    count = strict_integer(arguments[3])
    if count is None or count < 1:
        raise _WrongError(b"ERR Number of %b must be a positive integer" % word.noun.lower())
    if count != len(arguments) - 4:
        raise _WrongError(b"ERR The `num%b` parameter must match the number of arguments" % word.noun.lower())
    return arguments[4:]


_MISCOUNTED: Final = b"ERR numfields should be greater than 0 and match the provided number of fields"
_SYNTAX: Final = b"ERR syntax error"


def _options_of_valkey(word: Word, arguments: list[bytes], now: float) -> Asked:
    writes, place, count = word.deed is Deed.WRITE, 2, 0
    chosen: dict[bytes, bytes] = {}
    while place < len(arguments) - 1:
        if arguments[place].upper() == b"FIELDS":
            chosen = _chosen(arguments[2:place], writes=writes)
            number = strict_integer(arguments[place + 1])
            if number is None:
                raise _WrongError(NOT_AN_INTEGER)
            count, place = number, place + 2
            break
        place += 1
    if count < 1 or count * (2 if writes else 1) != len(arguments) - place:
        raise _WrongError(_MISCOUNTED)
    milliseconds, relative, term = 0, False, Term.NONE
    for option, value in chosen.items():
        if option in _TIMES:
            unit, relative = _TIMES[option]
            term = Term.TIME
            try:
                milliseconds = _time_in_valkey(word, value, unit, now if relative else 0)
            except _WrongError as error:
                error.after_type = True
                raise
        elif option in (b"KEEPTTL", b"PERSIST"):
            term = Term.KEEP if writes else Term.DROP
    condition = next((option for option in chosen if option in (b"FNX", b"FXX")), b"")
    of_key = next((option for option in chosen if option in (b"NX", b"XX")), b"")
    return Asked(arguments[place:], milliseconds, condition, term=term, relative=relative, of_key=of_key)


_APART: Final = (frozenset((*_TIMES, b"KEEPTTL", b"PERSIST")), frozenset((b"FNX", b"FXX")), frozenset((b"NX", b"XX")))
"""Groups of options: a request may have at most one option of each group."""


def _chosen(options: list[bytes], *, writes: bool) -> dict[bytes, bytes]:
    """Return the options of a request with their values."""
    known = {*_TIMES, b"KEEPTTL", b"FNX", b"FXX", b"NX", b"XX"} if writes else {*_TIMES, b"PERSIST"}
    chosen: dict[bytes, bytes] = {}
    words = iter(options)
    for word in words:
        option = word.upper()
        value = next(words, None) if option in _TIMES else b""
        if option not in known or value is None:
            raise _WrongError(_SYNTAX)
        if any(option in apart and not apart.isdisjoint(chosen.keys() - {option}) for apart in _APART):
            raise _WrongError(_SYNTAX)
        chosen[option] = value
    return chosen


def _time_in_valkey(word: Word, text: bytes, unit: int, since: float) -> int:
    number = strict_integer(text)
    if number is None:
        raise _WrongError(NOT_AN_INTEGER)
    milliseconds = number * unit
    # Valkey's own limit is much higher, but a shadow's scores are not exact beyond `EXACT`.
    if number < 0 or milliseconds > EXACT // 2 or EXACT // 2 - milliseconds < since < EXACT:
        raise _invalid_time(word)
    return milliseconds


def _set_in_valkey(word: Word, arguments: list[bytes], now: float) -> Asked:
    place, count, condition = 3, 0, b""
    while place < len(arguments) - 1:
        if arguments[place].upper() == word.noun:
            condition = _conditions(arguments[3:place])
            number = strict_integer(arguments[place + 1])
            if number is None:
                raise _WrongError(NOT_AN_INTEGER)
            count, place = number, place + 2
            break
        place += 1
    if not count or count != len(arguments) - place:
        raise _WrongError(_MISCOUNTED)
    milliseconds = _time_in_valkey(word, arguments[2], word.unit, now if word.relative else 0)
    return Asked(arguments[place:], milliseconds, condition, relative=word.relative)


def _conditions(options: list[bytes]) -> bytes:
    chosen = set()
    for option in options:
        if option.upper() not in _CONDITIONS:
            raise _WrongError(b"ERR Unsupported option %b" % _named(option))
        chosen.add(option.upper())
    if b"NX" in chosen and len(chosen) > 1:
        raise _WrongError(NX_ALONE)
    if {b"GT", b"LT"} <= chosen:
        raise _WrongError(GT_OR_LT)
    return b"".join(sorted(chosen, reverse=True))


def _of_valkey(word: Word, arguments: list[bytes]) -> list[bytes]:
    if arguments[2].upper() != word.noun:
        raise _WrongError(_SYNTAX)
    count = strict_integer(arguments[3])
    if count is None:
        raise _WrongError(NOT_AN_INTEGER)
    if count < 1 or count != len(arguments) - 4:
        raise _WrongError(_SYNTAX if word.deed is Deed.READ else _MISCOUNTED)
    return arguments[4:]
