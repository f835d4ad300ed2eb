"""Recognise requests about members that one call of `batch.lua` can handle together with others.

Its tests: tests/test_together.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from proxy.commands.described import ServerCommands, Terms
from proxy.commands.dialects import LATEST, MOST_SECONDS, RELATIVE_UNITS, TOGETHER, WORDS, Deed, Word
from proxy.commands.lifetime import EXACT, UNITS
from proxy.commands.table import BATCHED, COMMANDS, Command, Effect
from proxy.wire.runs import SIZES

LONGEST: Final = EXACT // 2
"""Maximum delay, in ms, so that adding the clock does not overflow."""

MOST_KEYS: Final = 255
"""Maximum number of a call's keys, of its forms, and of consecutive requests of one form: each is counted in one
byte."""

MOST_ARGUMENTS: Final = 8
"""Maximum number of arguments of a request with a form, including the command's name."""

WRITING_OVER: Final = frozenset((b"HSET", b"HMSET", b"ZADD"))
"""Commands that, without options, overwrite the values of members."""

_SCORED: Final = frozenset((b"ZADD", b"ZINCRBY"))
_TYPED: Final = frozenset((b"ZINCRBY",))
"""Commands whose replies have a type that exists only in RESP3."""

_delay: Final = re.compile(rb"[1-9][0-9]{0,14}").fullmatch
_number: Final = re.compile(rb"[-+.0-9]+").fullmatch


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What requests of one kind have in common, such as `SADD` with two members.

    Attributes:
        text: the form's description for the script.
        does: the first letter of `text`.
        name: the command, in upper case.
        terms: the terms on which the server runs a request of this form.
        unit: the unit of the delay, in ms; with `by_option`, the option gives the unit; 0 if the form sets no deadline.
        delay_at: the position of the delay among the arguments.
        by_option: whether the option `EX` or `PX` must precede the delay.
        noun: the keyword that must follow the delay, in front of the number of members, which must be one; empty for
            none.
        written_at: the position of the member to write, which its value may follow; 0 if the form writes none. The
            script gets these arguments, then the delay in ms.
        longest: maximum delay, in ms.
        end: the end of the arguments that the script gets; they begin after the key.
        of_own: whether the server lacks such a form, so that it is replaced whether or not its key is covered.
        scored: whether the argument after the key must be a number; otherwise it may be an option.
        alike: letters of the forms that one call may mix with this one.
        alone: what the script for just one request gets besides it: the unit, the positions of the members, or what
            follows the delay.
    """

    text: bytes
    does: str
    name: bytes
    terms: Terms
    unit: int
    end: int
    of_own: bool
    scored: bool
    alike: str
    delay_at: int = 3
    by_option: bool = False
    noun: bytes = b""
    written_at: int = 0
    longest: int = LONGEST
    alone: bytes = b""

    @property
    def script(self) -> str:
        """The script for just one request, as which a request is counted; empty if the command needs none."""
        return _SCRIPTS[self.does]


class Operation(NamedTuple):
    """What one request does.

    Attributes:
        form: its form.
        key: its key.
        words: its arguments after the key, as the script gets them.
        delay: the deadline that it sets, in ms from now; 0 for none.
    """

    form: Form
    key: bytes
    words: list[bytes]
    delay: int


_operation: Final[Callable[[tuple[Form, bytes, list[bytes], int]], Operation]] = partial(tuple.__new__, Operation)

_SCRIPTS: Final = {
    "e": "expire", "E": "expire_members", "W": "set_members", "a": "add", "A": "add", "r": "remove", "p": "persist",
    "t": "ttl", "o": "",
}  # fmt: skip

_ALIKE: Final = "aAEWeo", "rp", "t"
"""Groups of forms: one call can mix those of a group. Between groups the server's terms differ: for requests that take
memory, that take none, and that only read."""

_OTHERS: Final = {b"SET": 3, b"SETEX": 4, b"PSETEX": 4, b"SETNX": 3, b"APPEND": 3}
"""Other commands of one key that a call may run, with their number of arguments: they take memory, and a script can
return their replies."""


_KINDS: Final = b"hash", b"set", b"zset", b"hash|set"
"""The types that commands of dialects take, in the order of their numbers in batch.lua."""


def _alike(does: str) -> str:
    return next(alike for alike in _ALIKE if does in alike)


class Operations:
    """Recognises the form of requests, and reads their operations.

    Args:
        server: the server's commands.
    """

    def __init__(self, server: ServerCommands) -> None:
        self._server = server
        self._forms: dict[tuple[bytes, int, bytes], Form | None] = server.worked_out

    def form(self, name: bytes, size: int, unit: bytes = b"") -> Form | None:
        """Return the form of requests with this command name, in the client's spelling, and `size` arguments; None if
        none.

        `unit`: the last of five arguments.
        """
        key = (name, size, unit if size == 5 and unit in UNITS else b"")
        try:
            return self._forms[key]
        except KeyError:
            upper = name.upper()
            found = self._make(COMMANDS[upper], size, key[2]) if upper in BATCHED and size in SIZES else None
            if _OTHERS.get(upper) == size:
                found = self._other(upper, size)
            elif upper in TOGETHER:
                found = self._word(WORDS[upper], size)
            known = upper in BATCHED or upper in _OTHERS or upper in TOGETHER
            if known and size <= MOST_ARGUMENTS and name in (upper, upper.lower()):
                self._forms[key] = found
            return found

    def _other(self, name: bytes, size: int) -> Form | None:
        terms = self._server.terms(name)
        if not (terms.writes and terms.takes_memory and self._server.accepts(name, size)):
            return None
        return Form(b"o %b %d 0 0 0" % (name, size - 2), "o", name, terms, 0, size, False, False, _alike("o"))

    def _word(self, word: Word, size: int) -> Form | None:
        if self._server.dialect(word.name) is None:
            return None
        if word.deed is Deed.WRITE:
            return self._written(word, size)
        if size != (6 if word.noun else 4):
            return None
        terms = self._server.terms(word.name)._replace(takes_memory=True)
        text = b"E %d %d %d 1 %d" % (word.unit, size - 2, size - 2, _KINDS.index(word.kind) + 1)
        return Form(
            text, "E", word.name, terms, word.unit, size, True, False, _alike("E"),
            delay_at=2, noun=word.noun, longest=LATEST // 2 if word.noun else MOST_SECONDS * word.unit,
            alone=b"relative %b %d %b %d " % (word.name.lower(), self._latest(word), word.kind, word.removed),
        )  # fmt: skip

    def _latest(self, word: Word) -> int:
        """Return the latest deadline that a command accepts, in Unix ms, as its script gets it."""
        return EXACT // 2 if self._server.is_valkey and word.kind == b"hash" else LATEST

    def _written(self, word: Word, size: int) -> Form | None:
        name, width = (b"HSET", 2) if word.kind == b"hash" else (b"SADD", 1)
        in_dragonfly = word.name == b"SADDEX" and size == 4
        if not in_dragonfly and size != 6 + width:
            return None
        terms = self._server.terms(word.name)._replace(takes_memory=True)
        text = b"W %b %d 1 1 %d" % (name, width + 1, 1 if in_dragonfly else 2)
        returns = b"count" if in_dragonfly else b"done"
        return Form(
            text, "W", word.name, terms, 1000, size, True, False, _alike("W"),
            delay_at=2 if in_dragonfly else 3, by_option=not in_dragonfly, noun=b"" if in_dragonfly else word.noun,
            written_at=size - width, longest=MOST_SECONDS * 1000 if in_dragonfly else LATEST // 2,
            alone=b"relative %b %d %b %b - -" % (word.name.lower(), self._latest(word), word.kind, returns),
        )  # fmt: skip

    def _make(self, command: Command, size: int, unit: bytes) -> Form | None:
        name, terms = command.name, self._server.terms(command.name)
        if command.effect is Effect.EXPIRE:
            scale = 1 if name == b"PEXPIREMEMBER" else 1000
            if size == 5 and name == b"EXPIREMEMBER":
                scale = UNITS.get(unit, 0)
            elif size != 4:
                return None
            terms = terms._replace(takes_memory=True)
            text, alone = b"e %d 2 1 2 0" % scale, b"relative %b " % name.lower()
            return Form(text, "e", name, terms, scale, 4, True, False, _alike("e"), alone=alone) if scale else None
        if command.effect is Effect.LIFETIME:
            if size != 3:
                return None
            if name == b"PERSIST":
                return Form(b"p - 1 0 0 0", "p", name, terms, 0, 3, True, False, _alike("p"))
            unit = b"1000" if name == b"TTL" else b"1"
            return Form(b"t %b 1 0 0 0" % unit, "t", name, terms, 0, 3, True, False, _alike("t"), alone=unit)
        # Assumes no options; a request with options is recognised by `scored`.
        members = command.members([name, b"", b"0", *[b""] * (size - 3)], size) if command.members is not None else None
        if members is None or not self._server.accepts(name, size):
            return None
        does = "r" if command.effect is Effect.REMOVE else "A" if name in _TYPED else "a"
        # Lua counts from 1, starting after the key.
        place = members[0] - 1, members[-1] - 1, members.step
        text = b"%b %b %d %d %d %d" % (does.encode(), name, size - 2, *place)
        # These scripts get the whole request, behind this argument.
        alone = b"%d %d %d" % (members[0] + 2, members[-1] + 2, members.step)
        if name in WRITING_OVER:
            alone += b" over"
        return Form(text, does, name, terms, 0, size, False, name in _SCORED, _alike(does), alone=alone)

    def read(self, request: list[bytes]) -> Operation | None:
        """Return a request's operation; None if it must be judged by itself."""
        size = len(request)
        form = self._forms.get((request[0], size, b"")) if size != 5 else None
        if form is None:
            form = self.form(request[0], size, request[-1])
            if form is None:
                return None
        if form.scored and not _number(request[2]):
            return None
        at = form.delay_at
        if form.noun and (request[at + 2] != b"1" or request[at + 1].upper() != form.noun):
            return None
        delay = 0
        if unit := form.unit:
            if form.by_option:
                unit = RELATIVE_UNITS.get(request[at - 1].upper(), 0)
            if not unit or not _delay(request[at]):
                return None
            delay = int(request[at]) * unit
            if delay > form.longest:
                return None
            if form.written_at:
                return _operation((form, request[1], [*request[form.written_at :], b"%d" % delay], delay))
        return _operation((form, request[1], request[2 : form.end], delay))


def plan(operations: Sequence[Operation]) -> tuple[list[bytes], list[Form], bytes]:
    """Return the distinct keys and forms, and for each run three bytes: numbers of its form and key, and its length."""
    keys: dict[bytes, int] = {}
    forms: dict[Form, int] = {}
    runs = bytearray()
    last: tuple[Form | None, bytes] = (None, b"")
    for form, key, _, _ in operations:
        if form is last[0] and key == last[1] and runs[-1] < MOST_KEYS:
            runs[-1] += 1
            continue
        last = form, key
        runs += bytes((forms.setdefault(form, len(forms) + 1), keys.setdefault(key, len(keys) + 1), 1))
    return list(keys), list(forms), bytes(runs)
