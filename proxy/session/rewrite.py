"""Puts one upstream request in the place of a client's, such that its reply is the reply wanted."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from proxy.commands.described import ServerCommands, Terms
from proxy.commands.dialects import LATEST, WORDS, Deed, MisreadError, Term, Word, read_words
from proxy.commands.lifetime import EXACT, ArityError, LifetimeError, deadline_of, read_lifetime
from proxy.commands.table import COMMANDS, MARKING, SPARED, STREAMED, Command, Effect, is_indifferent
from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.scripts.calls import evaluation
from proxy.scripts.naming import Names, slot
from proxy.session.globs import may_match_beginning
from proxy.session.moves import Moves
from proxy.session.operations import Form, Operation, Operations
from proxy.session.pipeline import Pipeline
from proxy.session.transaction import Transaction
from proxy.session.voiding import Voiding
from proxy.wire.request import Kind, Request, RequestReader, bulk, encode, strict_integer

UNPACKED: Final = 7_000
"""Arguments that a script passes on to one command at most: Lua unpacks some 8,000 (LUAI_MAXCSTACK)."""

COPIED: Final = 64 * 1024
"""Bytes of a request at most that are copied into a script's call where it can be done without the script."""

_NUMBERED: Final = frozenset((b"ZUNIONSTORE", b"ZINTERSTORE", b"ZDIFFSTORE"))
"""Commands whose keys are the first argument and, behind a number, so many."""

WITHIN: Final = 1_000
"""Deadlines of a key that are looked at within a transaction before a script that may add any member of it."""

CLEARED_AT_ONCE: Final = 500
"""Members of a key that are removed within a transaction at most, in front of its requests."""

_SETTING: Final = frozenset(("expire", "expire_members", "rename", "copy", "move"))
"""Scripts that always set deadlines, and so need the index where the key is."""

_OF_SOME_KEYS: Final = frozenset(("replace", "vanish"))
"""Scripts whose KEYS may be only some of the request's keys."""

_CLEARED: Final = b" cleared"
_KEEPING: Final = frozenset((b"NX", b"GT", b"LT"))
_ENDS: Final = {b"LEFT": b"0", b"RIGHT": b"-1"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that the client gets at once, where the server would have refused to queue the request.

    Attributes:
        message: the error, without the leading minus and the line's end.
        reason: what it is counted as.
    """

    message: bytes
    reason: str


_UNCLEAR: Final = frozenset((Effect.REPLACE, Effect.RENAME, Effect.COPY, Effect.MOVE))
"""Effects that need a script on a key that has deadlines, and that nobody wants to meet on others."""

_TOO_LONG: Final = Refusal(
    b"ERR expiremember-proxy: a request with more than %d arguments cannot replace a key with member deadlines"
    % UNPACKED,
    "too_long",
)
"""To void the deadlines in a step before would void them too when the server then fails, or in another database. Other
long requests need no script: what they leave in a shadow is void as soon as a member is added."""

LONGEST_NAME: Final = 64 * 1024
"""Bytes of a key that may get deadlines. Servers tell the proxies of each such key, of all that change in one turn at
once, and end a connection to which they have more than 32 MB to tell."""

_LONG_NAME: Final = Refusal(
    b"ERR expiremember-proxy: a key with member deadlines may have a name of %d bytes at most" % LONGEST_NAME,
    "too_long",
)


_OF_SEVERAL: Final = (b"LPOP", b"RPOP", b"ZPOPMIN", b"ZPOPMAX")


def _batch(
    terms: Terms,
    names: list[bytes],
    arguments: list[bytes],
    tail: bytes,
    tail_count: int,
    declared: list[bytes] | None,
    present: str,
    does: str,
    loaded: bool,
) -> bytes:
    return evaluation(
        terms, "batch", names, arguments, tail, tail_count, declared=declared, present=present, loaded=loaded, does=does
    )


def _is_cleared(key: bytes, transaction: Transaction | None) -> bool:
    return transaction is not None and key in transaction.cleared


def _has_form_of_protocol(command: Command, arguments: list[bytes]) -> bool:
    """Return whether the form of a reply depends on the client's protocol, which no script knows.

    That of scores in pairs, and of nothing where there might be an array.
    """
    return command.name in _OF_SEVERAL and len(arguments) > 2


def _writes_over(name: bytes, arguments: list[bytes], first: int) -> bool:
    """Return whether a request gives members new values whatever they had; its first member stands at `first`."""
    if name == b"ZADD":
        return _KEEPING.isdisjoint(map(bytes.upper, arguments[2 : first - 1]))
    return name in (b"HSET", b"HMSET")


def goes_elsewhere(command: Command, arguments: list[bytes]) -> bool:
    """Return whether a request looks at a key of another database, where its script does not remove what is due."""
    if command.effect is Effect.COPY:
        return b"DB" in map(bytes.upper, arguments[3:])
    return command.effect is Effect.MOVE


def is_own(command: Command, request: Request) -> bool:
    """Return whether a request is of a form that the server itself does not know."""
    effect = command.effect
    return (effect is Effect.EXPIRE and request.count > 3) or (effect is Effect.LIFETIME and request.count > 2)


class Rewriter:
    """Decides what to send upstream for a request that the table names.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys; those that a transaction may give deadlines are covered here.
        server: what the server at hand says of its commands: what it would refuse goes to it as it came.
        metrics: where to count the requests that are replaced.

    Attributes:
        moves: what to send for requests by which the nodes of a cluster give each other keys.
        operations: finds out what requests can be done together.
        command: returns what to do about a command of an upper-case name.
    """

    def __init__(
        self, names: Names, coverage: Coverage, server: ServerCommands, metrics: Metrics | None = None
    ) -> None:
        self._names = names
        self._coverage = coverage
        self.alarm = Alarm()
        self._server = server
        self._metrics = metrics or Metrics()
        self.moves = Moves(names, coverage)
        self.operations = Operations(server)
        self.command = server.command

    def expect(self, keys: Iterable[bytes], deadline: float) -> None:
        """Note that keys get deadlines, the earliest in Unix ms: the sweeper has to look then."""
        self.alarm.set(deadline)
        if self._names.slots is not None:
            self._names.slots.changed.update(map(slot, keys))

    def reserved(self, request: Request) -> Refusal | None:
        """Refuse a request that names one of the proxy's own keys; None for any other."""
        prefix = self._names.prefix
        if request.header and prefix not in request.raw:
            return None
        name = request.arguments[0].upper()
        if self.moves.are_made_by(name):
            return None
        names = self._server.keys(request.arguments)
        if name in (b"PUBLISH", b"SPUBLISH"):
            names = request.arguments[1:2]  # proxies tell each other of keys on channels of such names
        for name in names:
            if name.startswith(prefix):
                return Refusal(
                    b"ERR expiremember-proxy: names that begin with '%b' are reserved"
                    b" (for maintenance, turn reserved_names off)" % prefix,
                    "reserved_name",
                )
        return None

    def too_long(self, command: Command, arguments: list[bytes]) -> Refusal | None:
        """Refuse to give deadlines, or to take them along, to a key with a long name."""
        keys = command.keys(arguments) or []
        if not keys or len(keys[-1]) <= LONGEST_NAME or command.effect not in MARKING:
            return None
        gets = self.may_set(command, arguments) if command.effect is Effect.EXPIRE else self._concerns(keys[:1])
        return _LONG_NAME if gets else None

    @property
    def empty_counts(self) -> bool:
        """Whether an empty request ends a CLIENT REPLY SKIP."""
        return self._server.empty_counts

    def named(self, command: Command | None, arguments: list[bytes]) -> list[bytes]:
        """Return the arguments of a request that may be keys with members: of a script all of them."""
        if command is not None and command.effect in (Effect.EXPIRE, Effect.LIFETIME):
            return arguments[1:2]
        if command is not None and command.effect is Effect.SCRIPT:
            return arguments[3:]
        return self._server.keys(arguments)

    @property
    def removing(self) -> Terms:
        """The terms of a script that writes, but takes no memory."""
        return Terms(writes=True, takes_memory=False, declared=self._server.declares_terms)

    @property
    def reading(self) -> Terms:
        """The terms of a script that writes nothing."""
        return Terms(writes=False, takes_memory=False, declared=self._server.declares_terms)

    def reads(self, name: bytes) -> bool:
        """Return whether the server says of a command that it writes nothing."""
        return self._server.reads(name.upper())

    def guard(self, command: Command, arguments: list[bytes]) -> bytes | None:
        """Return a request that changes nothing, and that the server refuses while queueing, or with the whole of a
        transaction, exactly as it does a request; None where a script that stands in for that one is refused so."""
        terms = self._server.terms(command.name)
        if terms.declared or not terms.writes or not self._server.has(b"ZADD"):
            return None
        keys = command.keys(arguments) or [b""]
        if self._names.slots is not None and not keys[0]:
            return None
        index, nobody = self._names.index_for(keys[0]), self._names.prefix  # no key of a client's has that name
        if terms.takes_memory or command.effect is Effect.EXPIRE:
            return encode([b"ZADD", index, b"XX", b"GT", b"-inf", nobody])
        return encode([b"ZREM", index, nobody])

    def void(self, key: bytes, members: tuple[bytes, ...] | None) -> bytes:
        """Return the request that voids the deadlines of absent members on the client's own connection.

        Args:
            key: the key.
            members: the members that may be about to be added; None for all, of which `WITHIN` or so are looked at.
        """
        terms = Terms(writes=True, takes_memory=False, declared=False)  # refused when it writes, not before
        if members is None or sum(map(len, members)) > COPIED:
            arguments = [b"", b"0", b"%d" % WITHIN]
            return evaluation(terms, "void_page", self._triple(key), arguments, declared=self._declared([key]))
        keys = [self._names.index_for(key), key, self._names.shadow(key)]
        voiding = Voiding(keys, tentative=False, rest=[b"1", b"", b"%d" % len(members), *members])
        return evaluation(terms, "void", voiding.keys, voiding.arguments(()), declared=self._declared([key]))

    def clear_front(self, keys: Iterable[bytes]) -> bytes:
        """Return the request that removes what is due in some keys, in front of a transaction's that name them.

        A cluster node sees none of them: it would refuse the whole transaction for one that is not there, or that is
        no key but an argument.
        """
        terms = Terms(writes=True, takes_memory=False, declared=False)  # refused when it writes, not before
        front = self._pairs(list(keys))
        return evaluation(terms, "clear_front", front, [b"%d" % CLEARED_AT_ONCE], declared=self._names.declared(()))

    def brackets(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the request to put in front of one that replaces a value, and the one to put behind it; none where its
        key has no deadlines."""
        keys = command.keys(arguments) or []
        if command.effect is not Effect.IMPORT or not keys or not self._concerns(keys):
            return []
        self._metrics.requests_rewritten_total["bracket"] += 1
        terms = Terms(writes=True, takes_memory=True, declared=self._server.declares_terms)
        names, declared, field = self._triple(keys[0]), self._declared(keys), secrets.token_hex(8).encode()
        present = "" if declared is None else self._shadows(names)
        return [
            evaluation(terms, "bracket", names, [field, where], declared=declared, present=present)
            for where in (b"front", b"behind")
        ]

    def own_write(self, waiting: bytes) -> bytes:
        """Return a request that changes nothing, and for which a command waits: WAIT or WAITAOF."""
        if self._names.slots is None and waiting == b"WAIT":
            return encode([b"PUBLISH", self._names.written, b""])
        # No message is in an append-only file. From Redis 8.0 and Valkey 8.0 on a cluster node sends none to replicas.
        terms = Terms(writes=True, takes_memory=False, declared=self._server.declares_terms)
        return evaluation(terms, "write", [self._names.written], [])

    def of_one_slot(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that a script may be called for together with the first of them."""
        return self._names.of_one_slot(keys)

    def length_in_slot(self, keys: list[bytes]) -> int:
        """Return how many keys, from the first one on, a script may be called for together."""
        if self._names.slots is None:
            return len(keys)
        index = self._names.index_for(keys[0])
        return next((place for place, key in enumerate(keys) if self._names.index_for(key) != index), len(keys))

    def trial(self, keys: list[bytes], answer: bytes) -> bytes:
        """Return a request that changes nothing; who may give keys deadlines is answered so, by a status."""
        return evaluation(self.reading, "may", self._pairs(keys), [answer])

    def new_reader(self) -> RequestReader:
        """Return a reader of a client's requests that reads as the server does."""
        server = self._server
        return RequestReader(server.blanks, strict=server.strict_lines, quoting=server.quoting)

    def accepts(self, command: Command, count: int) -> bool:
        """Tell whether the server takes so many arguments, the name included, for a command."""
        return self._server.accepts(command.name, count)

    def stands_in(self, command: Command, request: Request) -> bool:
        """Return whether a script may stand in for a request, or for one of the transaction that it opens."""
        effect = command.effect
        if effect is Effect.MULTI:
            return self._coverage.ever or self._coverage.blind
        if effect is Effect.KEYSPACE:
            return self._keyspace(command, request) is not None
        if effect not in SPARED and effect not in _UNCLEAR:
            return False
        keys = command.keys(request.arguments)
        return keys is not None and self._concerns(keys) and self._server.accepts(command.name, request.count)

    def settles(self, command: Command | None, request: Request, *, amends: bool) -> bool:
        """Return whether what stands in for a request removes what is due itself, and voids what it has to.

        `amends`: whether the request's reply can be amended.
        """
        if command is None or not command.name:
            return False
        arguments, effect = request.arguments, command.effect
        if effect in (Effect.EXPIRE, Effect.LIFETIME):
            return is_own(command, request)
        if request.count > UNPACKED or not self._server.accepts(command.name, request.count):
            return not self._server.accepts(command.name, request.count)
        if effect in (Effect.ADD, Effect.REMOVE):
            return command.members is not None and command.members(arguments, request.count) is not None
        if effect is Effect.COUNT:
            return amends and request.kind is Kind.WHOLE
        if effect is Effect.VANISH:
            if len(request.raw) > COPIED:
                return False
            return len(arguments) == 2 or set(self._server.keys(arguments)) <= set(command.keys(arguments) or ())
        if effect is Effect.REMOVE_UNNAMED:
            return command.keys(arguments) is not None and not _has_form_of_protocol(command, arguments)
        if effect is Effect.FIELD_EXPIRY:
            return True
        return effect in (Effect.MOVE_MEMBER, Effect.RENAME) or (
            effect is Effect.COPY and not goes_elsewhere(command, arguments)
        )

    def unclear(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys for which a request needs a script, if they have deadlines."""
        return command.keys(arguments) or [] if command.effect in _UNCLEAR else []

    def rewrite(
        self,
        command: Command,
        request: Request,
        now: float,
        *,
        owner: Pipeline | None = None,
        limited: bool = False,
        having: Set[bytes] | None = None,
        counts: bool = False,
        sure: bool = True,
        transaction: Transaction | None = None,
    ) -> bytes | Refusal | None:
        """Decide on one request.

        Args:
            command: what the table says of it.
            request: a whole request.
            now: the server's clock, in Unix ms.
            owner: stands for this connection.
            limited: whether its user may not run every script: then none stands in where it can be done without.
            having: those of its keys that have deadlines, if that has just been asked.
            counts: whether its reply is made an integer if it is a status.
            sure: whether the server is known to let the user give its keys deadlines; if not, they are not marked.
            transaction: the open one, in which it is about to be queued.

        Returns:
            The upstream request to send instead, a refusal, or None to forward the request as it came.
        """
        effect, arguments = command.effect, request.arguments
        if self._server.dialect(command.name) is not None:
            return self._by_word(WORDS[command.name], arguments, now, owner, transaction, marks=sure)
        if effect is Effect.EXPIRE:
            return self._expire(command, arguments, now, owner, transaction, marks=sure)
        if effect is Effect.LIFETIME:
            return self._lifetime(command, arguments, transaction)
        if (limited and effect in SPARED) or (effect is Effect.VANISH and is_indifferent(arguments)):
            return None
        if effect is Effect.KEYSPACE:
            return self._keyspace(command, request)
        if effect is Effect.MIGRATE:
            return None if limited else self.moves.migrate(arguments)
        keys = command.keys(arguments)
        if (
            keys is None
            or self.moves.are_made_by(command.name)
            or not (self._concerns(keys, having) or (transaction is not None and transaction.anticipates))
            or not self._server.accepts(command.name, request.count)
            or self._is_of_many_slots(command, request)
        ):
            return None
        if request.count > UNPACKED:
            return _TOO_LONG if effect is Effect.REPLACE else None
        match effect:
            case Effect.ADD | Effect.REMOVE:
                return self._members(command, keys[0], request, transaction)
            case Effect.REPLACE:
                return self._run(command, "replace", self._triple(keys[0]), [], request)
            case Effect.VANISH:
                return self._vanish(command, keys, request)
            case Effect.MOVE_MEMBER:
                return self._move_member(command, keys, request)
            case Effect.RENAME:
                if len(arguments) != 3:
                    return None
                if sure:
                    self._cover(keys[1], owner, transaction)
                return self._run(command, "rename", self._pairs(keys), [], request)
            case Effect.COPY:
                return self._copy(command, keys, request, owner, transaction, marks=sure)
            case Effect.MOVE:
                if len(arguments) != 3 or strict_integer(arguments[2]) is None:
                    return None
                self._coverage.visit((int(arguments[2]),))
                if sure:
                    self._cover(keys[0], owner, transaction)
                return self._run(command, "move", self._triple(keys[0]), [arguments[2]], request)
            case Effect.COUNT if counts:
                return self._members(command, keys[0], request)
            case Effect.COUNT | Effect.SCRIPT | Effect.ARRIVE | Effect.IMPORT:
                return None  # the engine has voided what the request may add: see `Session`
            case Effect.REMOVE_UNNAMED:
                if _has_form_of_protocol(command, arguments):
                    return None
                cleared = [b"cleared" if _is_cleared(keys[0], transaction) else b""]
                return self._run(command, "settled", self._triple(keys[0]), cleared, request)
            case Effect.FIELD_EXPIRY:
                cleared = [_CLEARED if _is_cleared(keys[0], transaction) else b""]
                return self._run(command, "own_words", self._triple(keys[0]), cleared, request)
            case Effect.READ | Effect.WAIT | Effect.WATCH:
                return None
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.DATABASE | Effect.LOGIN | Effect.CONNECTION:
                return None
            case Effect.DESCRIBE:
                return None  # its reply is amended
        assert_never(effect)

    def may_block(self, name: bytes) -> bool:
        """Return whether the command of that upper-case name may keep what follows it from running."""
        return self._server.may_block(name)

    def knows(self, name: bytes) -> bool:
        """Return whether the server is known to have a command of that upper-case name."""
        return self._server.has(name)

    def lacks(self, name: bytes) -> bool:
        """Return whether the server does not have a command of that upper-case name."""
        return not self._server.has(name)

    @property
    def takes_many_arguments(self) -> bool:
        """Whether the server takes requests of more than 1,048,576 arguments."""
        return self._server.takes_many_arguments

    def is_judged_by_its_head(self, arguments: list[bytes], count: int) -> bool:
        """Return whether what has come of a long request is enough to decide on it.

        Args:
            arguments: the arguments that are complete.
            count: how many it has in all.
        """
        if len(arguments) < 2:
            return False
        name = arguments[0].upper()
        command = COMMANDS.get(name)
        if command is not None and command.effect is Effect.SCRIPT:
            return self._are_keys_there(arguments)
        if self._server.dialect(name) is not None:
            return False
        if command is None and not self._server.accepts(name, count):
            return True  # it will not run
        if self.moves.are_made_by(name):
            return self._server.has_one_key_in_front(name)
        if not (name in STREAMED or self._server.has_one_key_in_front(name)) or self._are_reserved(arguments[1:2]):
            return False
        if command is None:
            return True
        match command.effect:
            case Effect.ADD | Effect.COUNT | Effect.REMOVE | Effect.REPLACE | Effect.VANISH:
                return not self._concerns(arguments[1:2]) or self._is_script_determined(command, arguments, count)
            case Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY | Effect.LOGIN | Effect.CONNECTION:
                return True
            case Effect.EXPIRE | Effect.LIFETIME | Effect.KEYSPACE | Effect.READ | Effect.DATABASE | Effect.WAIT:
                return False
            case Effect.MOVE_MEMBER | Effect.RENAME | Effect.COPY | Effect.MOVE | Effect.ARRIVE | Effect.SCRIPT:
                return False
            case Effect.IMPORT | Effect.WATCH:
                return False
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.DESCRIBE | Effect.MIGRATE:
                return False
        assert_never(command.effect)

    def _are_keys_there(self, arguments: list[bytes]) -> bool:
        """Return whether all keys of a script's call have come, and none of them is reserved."""
        number = strict_integer(arguments[2]) if len(arguments) > 2 else None
        if number is None or not 0 <= number <= len(arguments) - 3:  # no key is looked at before the last has come
            return False
        return not self._are_reserved(arguments[3 : 3 + number])

    def _are_reserved(self, keys: list[bytes]) -> bool:
        return any(key.startswith(self._names.prefix) for key in keys)

    @staticmethod
    def _is_script_determined(command: Command, arguments: list[bytes], count: int) -> bool:
        """Return whether it is clear already where the members of a request that is still arriving stand."""
        if count > UNPACKED:
            return False
        if command.members is None:
            return True
        try:
            command.members(arguments, count)
        except IndexError:
            return False
        return True

    def _concerns(self, keys: list[bytes], having: Set[bytes] | None = None) -> bool:
        if having is not None:
            return not having.isdisjoint(keys)
        return any(map(self._coverage.covers, keys))

    def _triple(self, key: bytes) -> list[bytes]:
        return [key, self._names.shadow(key), self._names.index_for(key)]

    def _pairs(self, keys: list[bytes]) -> list[bytes]:
        pairs = [name for key in keys for name in (key, self._names.shadow(key))]
        return [*pairs, self._names.index_for(keys[0])]

    def _is_of_many_slots(self, command: Command, request: Request) -> bool:
        """Return whether a cluster node refuses a request for keys of different slots, and is to say so itself."""
        if self._names.slots is None:
            return False
        keys = self._all_keys(command, request.arguments)
        return len(self._names.of_one_slot(keys)) < len(keys)

    def _all_keys(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys of a request by which a cluster node judges it."""
        if command.name in _NUMBERED:
            return [arguments[1], *arguments[3 : 3 + (strict_integer(arguments[2]) or 0)]]
        if not self._server.has_keys_elsewhere(command.name):
            return self._server.keys(arguments)
        keys = command.keys(arguments) or []
        return [arguments[1], *keys] if command.effect is Effect.REPLACE else keys

    def _cover(self, key: bytes, owner: Pipeline | None, transaction: Transaction | None) -> None:
        """Have what follows in a transaction judged as if a key had deadlines; others are told before EXEC."""
        if transaction is not None:
            self._coverage.begin((key,), owner.mark if owner is not None else self, queued=True)

    def _run(self, command: Command, script: str, keys: list[bytes], extra: list[bytes], request: Request) -> bytes:
        """Encode the script with the client's own request, as the bytes it came in where they are RESP, behind it."""
        if request.header:
            tail = request.raw[request.header :]
        else:
            tail = b"".join(map(bulk, request.arguments))
        named = self._all_keys(command, request.arguments) if script in _OF_SOME_KEYS else []
        return self._script(self._server.terms(command.name), script, keys, extra, tail, request.count, named=named)

    def _expire(
        self,
        command: Command,
        arguments: list[bytes],
        now: float,
        owner: Pipeline | None,
        transaction: Transaction | None,
        *,
        marks: bool,
    ) -> bytes | Refusal:
        name = command.name
        try:
            lifetime = read_lifetime(name, arguments)
        except ArityError as error:
            return Refusal(error.message, "arity")
        except LifetimeError as error:
            return self._script(self._server.terms(name), "fail", [], [error.message])
        key, member, deadline = arguments[1], arguments[2], lifetime.deadline(now)
        if marks:
            self._cover(key, owner, transaction)
        if transaction is None:
            self.expect([key], deadline)
        # One word for four: before AUTH, a server takes ten arguments at most, and is to answer NOAUTH here too.
        mode = b"relative" if lifetime.is_relative else b"absolute"
        terms = b"%d %b %b %b" % (lifetime.milliseconds, mode, name.lower(), lifetime.condition)
        if _is_cleared(key, transaction):
            terms += _CLEARED
        # One that has passed removes the member: for that there is always memory.
        removes = deadline <= now
        return self._script(
            self._server.terms(name)._replace(takes_memory=not removes), "expire", self._triple(key), [member, terms]
        )

    def may_set(self, command: Command, arguments: list[bytes]) -> bool:
        """Return whether a request may give its key deadlines, as its command may: words of dialects need not."""
        return command.effect is not Effect.EXPIRE or self.delay(command, arguments) is not None

    def delay(self, command: Command, arguments: list[bytes]) -> float | None:
        """Return in how many ms the deadline is that a request sets, if it tells; as `deadline_of`.

        None where it sets none: words of dialects need not, and a request that is none of theirs does nothing.
        """
        if command.effect is not Effect.EXPIRE:
            return math.inf
        if self._server.dialect(command.name) is None:
            return deadline_of(command.name, arguments, 0.0)
        word = WORDS[command.name]
        try:
            asked = read_words(word, arguments, 0.0, valkey=self._server.is_valkey)
        except LifetimeError:
            return None
        if asked.term is not Term.TIME:
            return None
        return asked.milliseconds or -math.inf

    def _by_word(
        self,
        word: Word,
        arguments: list[bytes],
        now: float,
        owner: Pipeline | None,
        transaction: Transaction | None,
        *,
        marks: bool,
    ) -> bytes | Refusal:
        """Return what does a request of a dialect, about several members."""
        valkey, terms = self._server.is_valkey and word.kind == b"hash", self._server.terms(word.name)
        try:
            asked = read_words(word, arguments, now, valkey=valkey)
        except ArityError as error:
            return Refusal(error.message, "arity")
        except MisreadError as error:
            if not error.after_type:
                return self._script(terms, "fail", [], [error.message])
            key = arguments[1]
            return self._script(terms, "fail_members", [key, self._names.shadow(key)], [error.message, word.kind])
        key = arguments[1]
        cleared = _CLEARED if _is_cleared(key, transaction) else b""
        if word.deed is Deed.SCAN:
            return self._script(terms, "scan_members", [key, self._names.shadow(key)], [*asked.options])
        if word.deed is Deed.READ:
            rest = word.unit // 2 if valkey or not word.noun else word.unit - 1
            what = b"%b %b %d %d %d %b" % (
                word.kind, b"left" if word.relative else b"at", word.unit, rest, word.missing,
                b"one" if word.is_of_one else b"each",
            )  # fmt: skip
            return self._script(terms, "ttl_members", [key, self._names.shadow(key)], [what, *asked.members])
        if word.deed is Deed.DROP:
            return self._script(terms, "persist_members", self._triple(key), [word.kind + cleared, *asked.members])
        is_timed, deadline = asked.term is Term.TIME, math.inf
        if is_timed:
            deadline = asked.milliseconds + (now if asked.relative else 0)
            if marks:
                self._cover(key, owner, transaction)
            if transaction is None:
                self.expect([key], deadline)
        mode, latest = b"relative" if asked.relative else b"absolute", EXACT // 2 if valkey else LATEST
        if word.deed is not Deed.SET:
            term = asked.term.name.lower().encode() if not is_timed else b"%d" % asked.milliseconds
            if word.deed is Deed.WRITE:
                conditions = b"%b %b %b %b" % (
                    word.kind, b"count" if asked.counts else b"done", asked.of_key or b"-", asked.condition[1:] or b"-"
                )  # fmt: skip
                script = "set_members"
            else:
                script, conditions = "get_fields", b"take" if word.deed is Deed.TAKE else b"leave"
            what = b"%b %b %b %d %b%b" % (term, mode, word.name.lower(), latest, conditions, cleared)
            terms = terms._replace(takes_memory=word.deed is Deed.WRITE or (is_timed and deadline > now))
            return self._script(terms, script, self._triple(key), [what, *asked.members], sets=is_timed)
        what = b"%d %b %b %d %b %d %b%b" % (
            asked.milliseconds, mode, word.name.lower(), latest, word.kind, word.removed, asked.condition, cleared
        )  # fmt: skip
        terms = terms._replace(takes_memory=deadline > now)
        return self._script(terms, "expire_members", self._triple(key), [what, *asked.members])

    def _lifetime(self, command: Command, arguments: list[bytes], transaction: Transaction | None) -> bytes | None:
        name, size = command.name, len(arguments)
        if size < 3:
            return None
        key, terms = arguments[1], self._server.terms(name)
        if size > 3:
            missing = b"0" if name == b"PERSIST" else b"-2"
            return self._script(terms, "fail", [key], [b"ERR Invalid arguments", missing])
        if name == b"PERSIST":
            said = [_CLEARED.strip()] if _is_cleared(key, transaction) else []
            return self._script(terms, "persist", self._triple(key), [arguments[2], *said])
        unit = b"1000" if name == b"TTL" else b"1"
        return self._script(terms, "ttl", [key, self._names.shadow(key)], [arguments[2], unit])

    def _script(
        self,
        terms: Terms,
        name: str,
        keys: list[bytes],
        arguments: list[bytes],
        tail: bytes = b"",
        tail_count: int = 0,
        *,
        named: Sequence[bytes] = (),
        sets: bool = False,
    ) -> bytes:
        """Return the script that replaces a request, and count it; as `evaluation`.

        Args:
            named: the request's keys, where the script's are only those of them that have deadlines.
            sets: whether it sets deadlines, though its script need not.
        """
        self._metrics.requests_rewritten_total[name] += 1
        declared = None if sets or name in _SETTING else self._declared([*named, *keys])
        present = "" if declared is None else self._shadows(keys)
        return evaluation(terms, name, keys, arguments, tail, tail_count, declared=declared, present=present)

    def _shadows(self, keys: list[bytes]) -> str:
        """Return the places, from 1 on, of the shadows among a script's keys that have to be at the node."""
        found = ((place, self._names.key(name)) for place, name in enumerate(keys, 1))
        return " ".join(str(place) for place, key in found if key is not None and self._has_had(key))

    def _has_had(self, key: bytes) -> bool:
        """Return whether a key has, or had, deadlines, if its slot is on its way; elsewhere that does not matter."""
        slots = self._names.slots
        return slots is None or slot(key) not in slots.moving or key in slots.had

    def _declared(self, keys: list[bytes]) -> list[bytes] | None:
        """Return which of a script's keys a cluster node is to see, such that it treats it as the client's request."""
        return self._names.declared(keys) if keys else None

    def batch(
        self,
        forms: Sequence[Form],
        keys: Sequence[bytes],
        runs: bytes,
        tail: bytes,
        tail_count: int,
        does: str = "",
    ) -> Callable[[bool], bytes]:
        """Return what encodes the call of a script that does many requests.

        Args:
            forms: their forms, each once; all are run on the same terms.
            keys: their keys, each once.
            runs: which of them stand where, as of `plan`.
            tail: what the script has of their arguments, as bulk strings.
            tail_count: how many.
            does: what the script is to be able to do; what it has to do, if not given.

        Returns:
            A function of whether the server has run the same script before, so that its digest does.
        """
        sets = any(form.unit for form in forms)
        names = [self._names.index_for(keys[0]) if forms[0].terms.writes else self._names.index_of_key(keys[0])]
        for key in keys:
            names += (key, self._names.shadow(key))
        declared = None if sets else self._declared(list(keys))
        return partial(
            _batch,
            forms[0].terms,
            names,
            [runs, b" ".join([form.text for form in forms])],
            tail,
            tail_count,
            declared,
            "" if declared is None else self._shadows(names),
            does or "".join(sorted({form.does for form in forms})),
        )

    def count(self, script: str, requests: int) -> None:
        """Count requests that are replaced by such a script, or by one that does what it does."""
        self._metrics.requests_rewritten_total[script] += requests

    def count_all(self, operations: Sequence[Operation]) -> None:
        """Count requests that a call replaces."""
        for form, requests in Counter([operation.form for operation in operations]).items():
            if form.script:
                self.count(form.script, requests)

    def _keyspace(self, command: Command, request: Request) -> bytes | None:
        if not self._coverage.ever and not self._coverage.blind:
            return None
        name, size, terms = command.name, request.count, self._server.terms(command.name)
        if name == b"DBSIZE" and size == 1 and (slots := self._names.slots) is not None:
            return self._script(
                terms._replace(across=True),
                "dbsize_of_slots",
                [],
                [self._names.lease, *map(self._names.index_of, slots.indexed)],
            )
        if name == b"DBSIZE" and size == 1:
            own = [self._names.index, self._names.lease, self._names.events, self._names.covered]
            return self._script(terms, "dbsize", own, [])
        if name == b"RANDOMKEY" and size == 1:
            return self._script(terms, "randomkey", [], [self._names.prefix])
        if not self._may_show_own(request):
            return None
        if name == b"KEYS" and size == 2:
            return self._run(command, "keys", [], [self._names.prefix], request)
        if name == b"SCAN" and size >= 2:
            return self._run(command, "scan", [], [self._names.prefix], request)
        if name == b"CLUSTERSCAN" and size >= 2:  # the cursor tells the slot
            return self._run(command, "scan", request.arguments[1:2], [self._names.prefix], request)
        return None

    def _may_show_own(self, request: Request) -> bool:
        """Return whether the pattern of KEYS or SCAN, if there is one, may match the proxy's own keys."""
        arguments = request.arguments
        patterns = arguments[1:2]
        if arguments[0].upper() != b"KEYS":
            # Options come in pairs, and the last of the same counts.
            patterns = [arguments[place + 1] for place in range(2, len(arguments) - 1, 2)
                        if arguments[place].upper() == b"MATCH"][-1:]  # fmt: skip
        return not patterns or may_match_beginning(patterns[0], self._names.prefix)

    def _members(
        self, command: Command, key: bytes, request: Request, transaction: Transaction | None = None
    ) -> bytes | None:
        positions = command.members(request.arguments, request.count) if command.members is not None else None
        if positions is None:
            return None
        script = {Effect.ADD: "add", Effect.COUNT: "count"}.get(command.effect, "remove")
        if command.name == b"HSETEX":
            script = "own_words"
        before = 2  # Lua counts from 1, and the positions themselves come first
        extra = [b"%d %d %d" % (positions[0] + before, positions[-1] + before, positions.step)]
        if script == "add" and _writes_over(command.name, request.arguments, positions[0]):
            extra[0] += b" over"
        if script in ("add", "remove", "own_words") and _is_cleared(key, transaction):
            extra[0] += _CLEARED
        return self._run(command, script, self._triple(key), extra, request)

    def _vanish(self, command: Command, keys: list[bytes], request: Request) -> bytes | None:
        concerned = [key for key in keys if self._coverage.is_certain(key)]
        if not concerned or len(request.raw) > COPIED:
            return None  # nothing is known for certain; what is left over is void as soon as a member is added
        pairs = [name for key in dict.fromkeys(concerned) for name in (key, self._names.shadow(key))]
        return self._run(command, "vanish", [self._names.index_for(concerned[0]), *pairs], [], request)

    def _move_member(self, command: Command, keys: list[bytes], request: Request) -> bytes | None:
        name, arguments = request.arguments[0].upper(), request.arguments
        if name == b"SMOVE" and len(arguments) == 4:
            where = [b"member", arguments[3]]
        elif name == b"RPOPLPUSH" and len(arguments) == 3:
            where = [b"end", b"-1"]
        elif name == b"LMOVE" and len(arguments) == 5 and arguments[3].upper() in _ENDS:
            where = [b"end", _ENDS[arguments[3].upper()]]
        else:
            return None
        return self._run(command, "move_member", self._pairs(keys), where, request)

    def _copy(
        self,
        command: Command,
        keys: list[bytes],
        request: Request,
        owner: Pipeline | None,
        transaction: Transaction | None,
        *,
        marks: bool,
    ) -> bytes | None:
        database, position, arguments = b"", 3, request.arguments
        while position < len(arguments):
            option = arguments[position].upper()
            if option == b"DB" and position + 1 < len(arguments):
                database = arguments[position + 1]
                position += 1
            elif option != b"REPLACE":
                return None
            position += 1
        if database and strict_integer(database) is None:
            return None
        if database:
            self._coverage.visit((int(database),))
        if marks:
            self._cover(keys[1], owner, transaction)
        return self._run(command, "copy", self._pairs(keys), [database], request)
