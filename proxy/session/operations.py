"""Recognise requests about members that one call of `batch.lua` can handle together with others.

Its tests: tests/test_together.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby, islice
from operator import eq
from typing import Final, NamedTuple

from proxy.commands.described import ServerCommands, Terms
from proxy.commands.dialects import LATEST, MOST_SECONDS, RELATIVE_UNITS, TOGETHER, WORDS, Deed, Word
from proxy.commands.lifetime import EXACT, UNITS
from proxy.commands.table import BATCHED, COMMANDS, Command, Effect
from proxy.wire.runs import SIZES

LONGEST: Final = EXACT // 2
"""Maximum delay, in ms: the sum of the clock and the delay must stay below `EXACT`."""

MOST_KEYS: Final = 255
"""Maximum number of a call's keys, of its forms, and of consecutive requests of one form: one byte holds each of these
numbers."""

MOST_ARGUMENTS: Final = 8
"""Maximum number of arguments of a request with a form, including the command's name."""

WRITING_OVER: Final = frozenset((b"HSET", b"HMSET", b"ZADD"))
"""Commands that, without options, overwrite the values of members."""

_SCORED: Final = frozenset((b"ZADD", b"ZINCRBY"))
_TYPED: Final = frozenset((b"ZINCRBY",))
"""Commands whose replies in RESP3 have a type that RESP2 lacks."""

_delay: Final = re.compile(rb"[1-9][0-9]{0,14}").fullmatch
_number: Final = re.compile(rb"[-+.0-9]+").fullmatch


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """The common properties of requests of one kind, such as `SADD` with two members.

    Attributes:
        text: the form's description for the script.
        does: the first letter of `text`.
        name: the command, in upper case.
        terms: the terms on which the server runs a request of this form.
        unit: the unit, in ms, of the delay (the time from now to the deadline); with `by_option`, the option gives the
            unit; 0 if the form sets no deadline.
        delay_at: the position of the delay among the arguments.
        by_option: whether the option `EX` or `PX` must precede the delay.
        noun: the keyword that must follow the delay (such as `FIELDS`), with the number of members after it, which must
            be 1; empty for none.
        written_at: the position of the member to write; 0 if the form writes none. The script gets the member, any
            value after it, and the delay in ms.
        longest: maximum delay, in ms.
        end: the end of the arguments that the script gets; they begin after the key.
        of_own: whether the server lacks this form, so that requests are replaced whether or not their keys are covered.
        scored: whether the argument after the key must be a number, because any other may be an option.
        alike: letters of the forms that one call may mix with this one.
        alone: one argument for the script that runs a single request: the unit, the positions of the members, or what
            follows the delay in that argument.
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
        """The script for just one request, under whose name requests are counted."""
        return "count" if self.name == b"HINCRBY" else _SCRIPTS[self.does]

    @property
    def counts(self) -> bool:
        """Whether the reply may be too large an integer for Lua: the script then returns its digits as a status."""
        return self.name in _COUNTERS

    @property
    def names_members(self) -> bool:
        """Whether the request names members that it adds, removes or gives deadlines."""
        return self.does not in "okq"

    @property
    def reads(self) -> bool:
        """Whether the request only reads."""
        return self.does in "qt"


class Operation(NamedTuple):
    """The operation that one request performs.

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
    "t": "ttl", "o": "settled", "k": "settled", "q": "settled",
}  # fmt: skip

_ALIKE: Final = "aAEWeo", "rpk", "q", "t"
"""Letters of the forms that have the same terms. Requests of the first group take memory, those of the second write
but take none, and those of the others only read."""

MIXED: Final = "".join(_ALIKE)
"""The letters of the forms that one call can mix if its first request writes. A read in first place would have to wait
with the whole call while the server holds up writes (CLIENT PAUSE WRITE)."""

OTHER_WRITES: Final[dict[bytes, Sequence[int]]] = {
    **dict.fromkeys((b"INCR", b"DECR"), (2,)),
    **dict.fromkeys((b"SET", b"SETNX", b"APPEND", b"INCRBY", b"DECRBY", b"EXPIRE", b"PEXPIRE"), (3,)),
    **dict.fromkeys((b"SETEX", b"PSETEX", b"SETRANGE", b"SETBIT", b"LTRIM"), (4,)),
    **dict.fromkeys((b"ZREMRANGEBYSCORE", b"ZREMRANGEBYRANK", b"ZREMRANGEBYLEX"), (4,)),
    b"XADD": (5, 7),
}
"""Commands that a call may run and that name no members to be added, removed or given deadlines, with their numbers of
arguments. They have one key, and a short reply that a script can return: long ones would all be in Lua's memory at
once. (INCRBYFLOAT in a script crashes Redis 6.2.)"""

OTHER_READS: Final[dict[bytes, Sequence[int]]] = {
    **dict.fromkeys((b"STRLEN", b"EXISTS", b"TTL", b"PTTL", b"SCARD", b"HLEN", b"LLEN", b"ZCARD"), (2,)),
    **dict.fromkeys((b"SISMEMBER", b"HEXISTS", b"HSTRLEN"), (3,)),
    b"ZCOUNT": (4,),
}
"""Reads that may follow a write in a call."""

_OTHERS: Final = {**OTHER_WRITES, **OTHER_READS}

_COUNTERS: Final = frozenset((b"INCR", b"DECR", b"INCRBY", b"DECRBY", b"HINCRBY"))


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
        """Return the form of requests with this command name, in the client's spelling, and `size` arguments.

        None if they have no form.

        `unit`: the last argument; it matters only if there are five arguments (EXPIREMEMBER with a unit).
        """
        key = (name, size, unit if size == 5 and unit in UNITS else b"")
        try:
            return self._forms[key]
        except KeyError:
            upper = name.upper()
            found = self._make(COMMANDS[upper], size, key[2]) if upper in BATCHED and size in SIZES else None
            if size in _OTHERS.get(upper, ()):
                found = self._other(upper, size)
            elif upper in TOGETHER:
                found = self._word(WORDS[upper], size)
            known = upper in BATCHED or upper in _OTHERS or upper in TOGETHER
            if known and size <= MOST_ARGUMENTS and name in (upper, upper.lower()):
                self._forms[key] = found
            return found

    def free(self, operations: Sequence[Operation]) -> list[int]:
        """Return the positions of a transaction's requests that the server queues even if it is out of memory."""
        if not self._server.queues_without_memory:
            return []
        return [place for place, operation in enumerate(operations) if not operation.form.terms.takes_memory]

    def _other(self, name: bytes, size: int) -> Form | None:
        # Without a description it is not known whether the command takes memory.
        if not (self._server.has(name) and self._server.accepts(name, size)):
            return None
        terms = self._server.terms(name)
        does = "q" if not terms.writes else "o" if terms.takes_memory else "k"
        text = b"%b %b %d 0 0 0" % (does.encode(), name, size - 2)
        return Form(text, does, name, terms, 0, size, False, False, _alike(does))

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
        # The positions in a request without options; `scored` recognises requests with options.
        members = command.members([name, b"", b"0", *[b""] * (size - 3)], size) if command.members is not None else None
        if members is None or not self._server.accepts(name, size):
            return None
        does = "r" if command.effect is Effect.REMOVE else "A" if name in _TYPED else "a"
        # The positions for Lua, which counts from 1, after the key.
        place = members[0] - 1, members[-1] - 1, members.step
        text = b"%b %b %d %d %d %d" % (does.encode(), name, size - 2, *place)
        # The script for just one request gets the whole request after this argument: these are positions in its ARGV.
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


def script_for(forms: Sequence[Form], *, transaction: bool = False) -> tuple[str, Terms] | None:
    """Return the letters of the forms that one script for some requests handles, and the script's terms.

    There may be more letters than needed, so that few scripts are in use. None if the requests cannot be mixed.

    Args:
        forms: the forms of the requests.
        transaction: whether the requests form a transaction: if the server refuses one, it runs none of them.
    """
    first = forms[0]
    groups = {form.alike for form in forms}
    if len(groups) == 1:
        return None if first.does == "q" else (first.alike, _for_any(first.terms))
    if transaction:
        takes = [form.terms for form in forms if form.terms.takes_memory]
        # While the server refuses writes it still queues reads, so one refused call cannot give the replies to both.
        return (MIXED, _for_any(takes[0])) if takes and not any(form.reads for form in forms) else None
    return None if first.reads else (MIXED, _for_any(first.terms, mixed=True))


@cache
def _for_any(terms: Terms, *, mixed: bool = False) -> Terms:
    """Return terms with which a script may run requests of other forms too."""
    return terms._replace(lists=True, takes_memory=terms.takes_memory or mixed, mixed=mixed)


_EACH_ONCE: Final = bytes(chain.from_iterable((1, number, 1) for number in range(1, MOST_KEYS + 1)))
"""The runs (see `plan`) of requests of one form, each for a key of its own."""


def plan(forms: Sequence[Form], keys: Sequence[bytes]) -> tuple[list[Form], list[bytes], bytes]:
    """Plan a call for some requests, at most `MOST_KEYS`.

    Args:
        forms: the form of each.
        keys: the key of each.

    Returns:
        The distinct forms, the distinct keys, and three bytes for each run of requests with the same form and key: the
        number of the form, the number of the key, both from 1, and how many requests the run has.
    """
    different = list(dict.fromkeys(forms))
    names = list(dict.fromkeys(keys))
    if len(different) == 1:
        return different, names, runs_of_one(keys, names)
    form_numbers = {form: number for number, form in enumerate(different, 1)}
    numbers = {key: number for number, key in enumerate(names, 1)}
    runs: list[int] = []
    last_form, last_key = None, b""
    for form, key in zip(forms, keys, strict=True):
        if form is last_form and key == last_key:
            runs[-1] += 1
        else:
            runs += (form_numbers[form], numbers[key], 1)
            last_form, last_key = form, key
    return different, names, bytes(runs)


def runs_of_one(keys: Sequence[bytes], names: Sequence[bytes]) -> bytes:
    """Return the runs of `plan` for requests of one form; `names`: the distinct keys."""
    if len(names) == len(keys):
        return _EACH_ONCE[: 3 * len(keys)]
    if len(names) == 1:
        return bytes((1, 1, len(keys)))
    numbers = {key: number for number, key in enumerate(names, 1)}
    places = [numbers[key] for key in keys]
    if any(map(eq, places, islice(places, 1, None))):
        return b"".join([bytes((1, place, sum(1 for _ in run))) for place, run in groupby(places)])
    runs = bytearray(_EACH_ONCE[: 3 * len(keys)])
    runs[1::3] = bytes(places)
    return bytes(runs)
