"""Replace a client's request by one that gets the reply that the client expects, or refuse it.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final, assert_never

from proxy.commands.described import ServerCommands
from proxy.commands.dialects import WORDS
from proxy.commands.table import MARKING, SPARED, Command, Effect, is_indifferent
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.scripts.naming import Names
from proxy.session.beside import Beside
from proxy.session.errors import Refusal as Refusal
from proxy.session.heads import Heads
from proxy.session.keyspace import Keyspace
from proxy.session.marks import Marks
from proxy.session.moves import Moves
from proxy.session.operations import WRITING_OVER, Operations
from proxy.session.own_commands import OwnCommands, is_cleared
from proxy.session.pipeline import Pipeline
from proxy.session.script_calls import COPIED, UNPACKED, ScriptCalls
from proxy.session.transaction import Transaction
from proxy.wire.request import Kind, Request, RequestReader, strict_integer

_KEEPING: Final = frozenset((b"NX", b"GT", b"LT"))
_ENDS: Final = {b"LEFT": b"0", b"RIGHT": b"-1"}

_UNCLEAR: Final = frozenset((Effect.REPLACE, Effect.RENAME, Effect.COPY, Effect.MOVE))
"""Effects of commands that need a script if a key has deadlines, and must not use one if no key has."""

_TOO_MANY_ARGUMENTS: Final = Refusal(
    b"ERR expiremember-proxy: a request with more than %d arguments cannot replace a key with member deadlines"
    % UNPACKED,
    "too_long",
)
"""A request that replaces a key needs a script: if a separate step voided the deadlines, they would stay void even if
the server then refused the request. Other long requests need no script: adding a member voids their leftovers."""

LONGEST_NAME: Final = 64 * 1024
"""Maximum size of the name of a key with deadlines, in bytes. A server sends the names of all changed keys to each
proxy, and closes a connection with more than 32 MB to send."""

_LONG_NAME: Final = Refusal(
    b"ERR expiremember-proxy: a key with member deadlines may have a name of %d bytes at most" % LONGEST_NAME,
    "too_long",
)


_OF_SEVERAL: Final = (b"LPOP", b"RPOP", b"ZPOPMIN", b"ZPOPMAX")


def _has_form_of_protocol(command: Command, arguments: list[bytes]) -> bool:
    """Return whether the reply to a request has a form in RESP3 that no script can return: scores in pairs, nil for an
    array."""
    return command.name in _OF_SEVERAL and len(arguments) > 2


def _writes_over(name: bytes, arguments: list[bytes], first: int) -> bool:
    """Return whether a request overwrites members' values unconditionally; its first member is at `first`."""
    if name not in WRITING_OVER:
        return False
    return name != b"ZADD" or _KEEPING.isdisjoint(map(bytes.upper, arguments[2 : first - 1]))


def goes_elsewhere(command: Command, arguments: list[bytes]) -> bool:
    """Return whether a request accesses another database, where its script cannot remove due members."""
    if command.effect is Effect.COPY:
        return b"DB" in map(bytes.upper, arguments[3:])
    return command.effect is Effect.MOVE


def is_own(command: Command, request: Request) -> bool:
    """Return whether a request has a form that the server itself does not know, such as `TTL key member`."""
    effect = command.effect
    return (effect is Effect.EXPIRE and request.count > 3) or (effect is Effect.LIFETIME and request.count > 2)


class Rewriter:
    """Decides what to send upstream for a request that the table of commands knows.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys; keys that a transaction may give deadlines are added.
        server: the server's commands. A request that the server would refuse is forwarded unchanged.
        metrics: counts the requests that are replaced.

    Attributes:
        names: the names of the proxy's own keys.
        metrics: counts the requests that are replaced.
        server: the server's commands.
        calls: encodes calls of scripts.
        marks: notes which keys get deadlines.
        heads: knows which long requests can be judged by their head.
        own: rewrites the commands that the server does not have.
        beside: encodes requests that accompany a client's request.
        moves: handles requests with which cluster nodes send each other keys.
        operations: recognises requests that can go together.
        command: returns a command's entry in the table, by its name in upper case.
    """

    def __init__(
        self, names: Names, coverage: Coverage, server: ServerCommands, metrics: Metrics | None = None
    ) -> None:
        self.names = names
        self.metrics = metrics or Metrics()
        self.server = server
        self.calls = ScriptCalls(names, server, self.metrics)
        self.marks = Marks(names, coverage)
        self.moves = Moves(names, coverage)
        self.operations = Operations(server)
        self.own = OwnCommands(server, self.calls, self.marks)
        self.beside = Beside(names, coverage, server, self.calls, self.metrics)
        self.command = server.command
        self._coverage = coverage
        self.heads = Heads(names.prefix, coverage, server, self.moves)
        self._keyspace = Keyspace(names, coverage, server, self.calls)

    def reserved(self, request: Request) -> Refusal | None:
        """Return the refusal of a request that names one of the proxy's own keys; None for any other request."""
        prefix = self.names.prefix
        if request.header and prefix not in request.raw:
            return None
        name = request.arguments[0].upper()
        if self.moves.are_made_by(name):
            return None
        names = self.server.keys(request.arguments)
        if name in (b"PUBLISH", b"SPUBLISH"):
            names = request.arguments[1:2]  # the channels between proxies have reserved names
        for name in names:
            if name.startswith(prefix):
                return Refusal(
                    b"ERR expiremember-proxy: names that begin with '%b' are reserved"
                    b" (for maintenance, turn reserved_names off)" % prefix,
                    "reserved_name",
                )
        return None

    def long_name(self, command: Command, arguments: list[bytes]) -> Refusal | None:
        """Return the refusal of a request that would give deadlines to a key with a long name; None for any other."""
        keys = command.keys(arguments) or []
        if not keys or len(keys[-1]) <= LONGEST_NAME or command.effect not in MARKING:
            return None
        gets = self.own.may_set(command, arguments) if command.effect is Effect.EXPIRE else self._concerns(keys[:1])
        return _LONG_NAME if gets else None

    @property
    def empty_counts(self) -> bool:
        """Whether an empty request ends a CLIENT REPLY SKIP."""
        return self.server.empty_counts

    def named(self, command: Command | None, arguments: list[bytes]) -> list[bytes]:
        """Return the arguments of a request that may be keys with members: for a script, all that it gets."""
        if command is not None and command.effect in (Effect.EXPIRE, Effect.LIFETIME):
            return arguments[1:2]
        if command is not None and command.effect is Effect.SCRIPT:
            return arguments[3:]
        return self.server.keys(arguments)

    def new_reader(self) -> RequestReader:
        """Return a reader of a client's requests that reads as the server does."""
        server = self.server
        return RequestReader(server.blanks, strict=server.strict_lines, quoting=server.quoting)

    def stands_in(self, command: Command, request: Request) -> bool:
        """Return whether a script might replace a request or, for a MULTI, a request of its transaction."""
        effect = command.effect
        if effect is Effect.MULTI:
            return self._coverage.ever or self._coverage.blind
        if effect is Effect.KEYSPACE:
            return self._keyspace.instead(command, request) is not None
        if effect not in SPARED and effect not in _UNCLEAR:
            return False
        keys = command.keys(request.arguments)
        return keys is not None and self._concerns(keys) and self.server.accepts(command.name, request.count)

    def settles(self, command: Command | None, request: Request, *, amends: bool) -> bool:
        """Return whether the script that replaces a request settles it: removes due members and voids deadlines itself.

        `amends`: whether the request's reply can be amended.
        """
        if command is None or not command.name:
            return False
        arguments, effect = request.arguments, command.effect
        if effect in (Effect.EXPIRE, Effect.LIFETIME):
            return is_own(command, request)
        if request.count > UNPACKED or not self.server.accepts(command.name, request.count):
            return not self.server.accepts(command.name, request.count)
        if effect in (Effect.ADD, Effect.REMOVE):
            return command.members is not None and command.members(arguments, request.count) is not None
        if effect is Effect.COUNT:
            return amends and request.kind is Kind.WHOLE
        if effect is Effect.VANISH:
            if len(request.raw) > COPIED:
                return False
            return len(arguments) == 2 or set(self.server.keys(arguments)) <= set(command.keys(arguments) or ())
        if effect is Effect.REMOVE_UNNAMED:
            return command.keys(arguments) is not None and not _has_form_of_protocol(command, arguments)
        if effect is Effect.FIELD_EXPIRY:
            return True
        return effect in (Effect.MOVE_MEMBER, Effect.RENAME) or (
            effect is Effect.COPY and not goes_elsewhere(command, arguments)
        )

    def unclear(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys of a request that needs a script only if they have deadlines; an empty list for any other."""
        return command.keys(arguments) or [] if command.effect in _UNCLEAR else []

    def needed(self, command: Command, request: Request) -> list[bytes] | None:
        """Return the keys that the script that replaces a request accesses; None if no script can replace it."""
        if request.kind is not Kind.WHOLE or request.count > UNPACKED:
            return None
        keys = command.keys(request.arguments) or []
        return [*self.calls.all_keys(command, request.arguments), *self.calls.pairs(keys)]

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
        """Decide what to send upstream for one request.

        Args:
            command: the request's entry in the table.
            request: the request, whole or its head.
            now: the server's clock, in Unix ms.
            owner: the connection's pipeline.
            limited: whether its user may not run every script: then a script is used only if nothing else will do.
            having: the request's keys that have deadlines, if the server was queried.
            counts: whether the request's status reply will be turned into an integer.
            sure: whether the user certainly may give the keys deadlines; if not, do not cover the keys.
            transaction: the open transaction in which the request is about to be queued.

        Returns:
            The request to send instead, a refusal, or None to forward the request unchanged.
        """
        effect, arguments = command.effect, request.arguments
        if self.server.dialect(command.name) is not None:
            return self.own.by_word(WORDS[command.name], arguments, now, owner, transaction, marks=sure)
        if effect is Effect.EXPIRE:
            return self.own.expire(command, arguments, now, owner, transaction, marks=sure)
        if effect is Effect.LIFETIME:
            return self.own.lifetime(command, arguments, transaction)
        if (limited and effect in SPARED) or (effect is Effect.VANISH and is_indifferent(arguments)):
            return None
        if effect is Effect.KEYSPACE:
            return self._keyspace.instead(command, request)
        if effect is Effect.MIGRATE:
            return None if limited else self.moves.migrate(arguments)
        keys = command.keys(arguments)
        if (
            keys is None
            or self.moves.are_made_by(command.name)
            or not (self._concerns(keys, having) or (transaction is not None and transaction.anticipates))
            or not self.server.accepts(command.name, request.count)
            or self.calls.is_of_many_slots(command, request)
        ):
            return None
        if request.count > UNPACKED:
            return _TOO_MANY_ARGUMENTS if effect is Effect.REPLACE else None
        match effect:
            case Effect.ADD | Effect.REMOVE:
                return self._members(command, keys[0], request, transaction)
            case Effect.REPLACE:
                return self.calls.wrapping(command, "replace", self.calls.triple(keys[0]), [], request)
            case Effect.VANISH:
                return self._vanish(command, keys, request, transaction)
            case Effect.MOVE_MEMBER:
                return self._move_member(command, keys, request, transaction)
            case Effect.RENAME:
                if len(arguments) != 3:
                    return None
                cleared = self._are_cleared(keys, transaction)
                if sure:
                    self.marks.cover(keys[1], owner, transaction)
                return self.calls.wrapping(command, "rename", self.calls.pairs(keys), [], request, cleared=cleared)
            case Effect.COPY:
                return self._copy(command, keys, request, owner, transaction, marks=sure)
            case Effect.MOVE:
                if len(arguments) != 3 or strict_integer(arguments[2]) is None:
                    return None
                self._coverage.visit((int(arguments[2]),))
                cleared = self._are_cleared(keys, transaction)
                if sure:
                    self.marks.cover(keys[0], owner, transaction)
                where = self.calls.triple(keys[0])
                return self.calls.wrapping(command, "move", where, [arguments[2]], request, cleared=cleared)
            case Effect.COUNT if counts:
                return self._members(command, keys[0], request)
            case Effect.COUNT | Effect.SCRIPT | Effect.ARRIVE | Effect.IMPORT:
                return None  # the engine has voided deadlines of members that the request may add
            case Effect.REMOVE_UNNAMED:
                if _has_form_of_protocol(command, arguments):
                    return None
                cleared = is_cleared(keys[0], transaction)
                return self.calls.wrapping(command, "settled", self.calls.triple(keys[0]), [], request, cleared=cleared)
            case Effect.FIELD_EXPIRY:
                cleared = is_cleared(keys[0], transaction)
                return self.calls.wrapping(
                    command, "own_words", self.calls.triple(keys[0]), [b""], request, cleared=cleared
                )
            case Effect.READ | Effect.WAIT | Effect.WATCH:
                return None
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.DATABASE | Effect.LOGIN | Effect.CONNECTION:
                return None
            case Effect.DESCRIBE:
                return None  # its reply is amended
        assert_never(effect)

    def lacks(self, name: bytes) -> bool:
        """Return whether the server lacks a command, given in upper case."""
        return not self.server.has(name)

    @property
    def takes_many_arguments(self) -> bool:
        """Whether the server accepts requests of more than 1,048,576 arguments."""
        return self.server.takes_many_arguments

    def _concerns(self, keys: list[bytes], having: Set[bytes] | None = None) -> bool:
        if having is not None:
            return not having.isdisjoint(keys)
        return any(map(self._coverage.covers, keys))

    def _members(
        self, command: Command, key: bytes, request: Request, transaction: Transaction | None = None
    ) -> bytes | None:
        positions = command.members(request.arguments, request.count) if command.members is not None else None
        if positions is None:
            return None
        script = {Effect.ADD: "add", Effect.COUNT: "count"}.get(command.effect, "remove")
        if command.name == b"HSETEX":
            script = "own_words"
        before = 2  # Lua counts from 1, and the positions come first
        extra = [b"%d %d %d" % (positions[0] + before, positions[-1] + before, positions.step)]
        if script == "add" and _writes_over(command.name, request.arguments, positions[0]):
            extra[0] += b" over"
        cleared = is_cleared(key, transaction)
        return self.calls.wrapping(command, script, self.calls.triple(key), extra, request, cleared=cleared)

    def _are_cleared(self, keys: list[bytes], transaction: Transaction | None) -> bool:
        """Return whether a transaction, in which the clock advances, has removed due members from those of some keys
        that are covered."""
        if transaction is None or not self.server.clock_advances:
            return False
        return all(is_cleared(key, transaction) or not self._coverage.covers(key) for key in keys)

    def _vanish(
        self, command: Command, keys: list[bytes], request: Request, transaction: Transaction | None
    ) -> bytes | None:
        concerned = [key for key in keys if self._coverage.is_certain(key)]
        if not concerned or len(request.raw) > COPIED:
            return None  # forward the request: adding a member will void leftovers
        pairs = [name for key in dict.fromkeys(concerned) for name in (key, self.names.shadow(key))]
        names, cleared = [self.names.index_for(concerned[0]), *pairs], self._are_cleared(concerned, transaction)
        return self.calls.wrapping(command, "vanish", names, [], request, cleared=cleared)

    def _move_member(
        self, command: Command, keys: list[bytes], request: Request, transaction: Transaction | None
    ) -> bytes | None:
        name, arguments = request.arguments[0].upper(), request.arguments
        if name == b"SMOVE" and len(arguments) == 4:
            where = [b"member", arguments[3]]
        elif name == b"RPOPLPUSH" and len(arguments) == 3:
            where = [b"end", b"-1"]
        elif name == b"LMOVE" and len(arguments) == 5 and arguments[3].upper() in _ENDS:
            where = [b"end", _ENDS[arguments[3].upper()]]
        else:
            return None
        cleared = self._are_cleared(keys, transaction)
        return self.calls.wrapping(command, "move_member", self.calls.pairs(keys), where, request, cleared=cleared)

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
        cleared = self._are_cleared(keys[:1] if database else keys, transaction)
        if marks:
            self.marks.cover(keys[1], owner, transaction)
        return self.calls.wrapping(command, "copy", self.calls.pairs(keys), [database], request, cleared=cleared)
