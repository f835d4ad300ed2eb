"""The server's description of itself: its commands with their arity and keys, and its product and version, which
determine how it parses requests.

Its tests: tests/test_commands.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from proxy.commands.dialects import WORDS
from proxy.commands.table import COMMANDS, DIALECTS, HARMLESS, UNANSWERED, Command, Effect
from proxy.wire.request import Blanks, Quoting

_CONTAINERS: Final = frozenset((b"OBJECT", b"MEMORY", b"XINFO", b"XGROUP", b"DEBUG"))
"""Commands whose subcommands take keys, which older servers do not report."""

_WRITING: Final = frozenset((b"write", b"may_replicate", b"module"))
"""Flags of commands that may write, unless they are flagged as read-only."""

_WAITING: Final = frozenset((b"blocking", b"module"))
"""Flags of commands whose reply may be delayed."""

_OF_OTHERS: Final = (b"H", b"S", b"Z")
"""First letters of commands for hashes, sets and sorted sets."""

_OF_ONE: Final = frozenset(
    name for name, command in COMMANDS.items() if command.effect in (Effect.EXPIRE, Effect.LIFETIME)
)
"""Commands for one member, of any type."""


class Terms(NamedTuple):
    """The cases in which the server refuses a command or the script in its place, and what the script must handle.

    Attributes:
        writes: whether the command is refused where writes are not allowed.
        takes_memory: whether the command is refused when the server is out of memory.
        declared: whether the server reads the terms from a script's first line. Older servers check each call that the
            script makes.
        across: whether the script may access keys in several slots of a cluster node.
        clustered: whether the server may be a cluster node.
        told: whether there may be rules for events.
        lists: whether the script may have to remove many elements of a list.
        mixed: whether the script runs several requests, of which the server would refuse only some (when it is out of
            memory, for example). The script then refuses such requests itself.
        cleared: whether due members of the script's keys were removed in front of a transaction's requests, which must
            all see the same moment. The script then removes none, unless some may have been left.
    """

    writes: bool
    takes_memory: bool
    declared: bool
    across: bool = False
    clustered: bool = True
    told: bool = False
    lists: bool = True
    mixed: bool = False
    cleared: bool = False


@dataclass(frozen=True, slots=True)
class Description:
    """The server's description of one command, from its reply to `COMMAND`.

    Attributes:
        arity: number of arguments, including the name; if negative, the minimum.
        first: position of the first key; 0 if there is none.
        last: position of the last key; if negative, counted from the end.
        step: distance from one key to the next.
        movable: whether there may be keys in other places.
        flags: the command's flags.
        subcommands: the descriptions of its subcommands, by upper-case name (from Redis 7.0 on).
    """

    arity: int
    first: int
    last: int
    step: int
    movable: bool
    flags: frozenset[bytes]
    subcommands: Mapping[bytes, Description] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether the command or a subcommand may write. Modules need not set the write flag, but commands with keys
        set the read-only flag if they only read."""
        has_keys = bool(self.first) or self.movable
        own = b"readonly" not in self.flags and (has_keys or not self.flags.isdisjoint(_WRITING))
        return own or any(subcommand.writes for subcommand in self.subcommands.values())

    def of(self, arguments: list[bytes]) -> Description:
        """Return the description of a request's subcommand or, if there is none, of its command."""
        return self.subcommands.get(arguments[1].upper(), self) if len(arguments) > 1 and self.subcommands else self


def _describe(row: list[Any]) -> Description:
    """Parse one row of the reply to `COMMAND`: name, arity, flags, first key, last key, step, …"""
    below = row[9] if len(row) > 9 else ()
    subcommands = {bytes(each[0]).upper().partition(b"|")[2]: _describe(each) for each in below}
    flags = frozenset(row[2])
    first, last, step = map(int, row[3:6])
    return Description(int(row[1]), first, last, step, b"movablekeys" in flags, flags, subcommands)


def _house(name: bytes) -> bytes:
    """Return the group of a dialect's command: H, S, Z or L for the type of its key; for a command that takes keys of
    several types, its own name."""
    return name if name.startswith((b"FIELD", b"EXPIREMEMBER", b"PEXPIREMEMBER")) else name[:1]


class ServerCommands:
    """The server's commands. Until they are loaded, any command may exist, and any argument may be a key.

    Attributes:
        blanks: how the server treats a line of spaces between two requests.
        empty_counts: whether an empty request ends a CLIENT REPLY SKIP.
        hides_commands: whether the server, before a login, may hide that it lacks a command.
        redirects_split: whether a cluster node redirects a request even if it has some of the request's keys.
        takes_many_arguments: whether it accepts requests of more than 1,048,576 arguments.
        strict_lines: whether it closes the connection if a line of a request does not end in CRLF.
        declares_terms: whether it reads the terms from a script's first line.
        queues_without_memory: whether the server, out of memory, still queues requests that take no memory.
        clock_advances: whether its clock advances while it runs a transaction.
        quoting: how it splits inline requests into arguments.
        clustered: whether it may be a cluster node.
        told: whether any database has rules for events.
        is_valkey: whether it is a Valkey, whose commands for lifetimes of fields differ from those of Redis.
        worked_out: a cache for values derived from these attributes; cleared whenever they are loaded again.
    """

    def __init__(self) -> None:
        self.blanks = Blanks.EMPTY
        self.strict_lines = False
        self.quoting = Quoting.PLAIN
        self.empty_counts = self.hides_commands = self.redirects_split = True
        self.takes_many_arguments = self.clock_advances = True
        self.declares_terms = self.queues_without_memory = False
        self.clustered = True
        self.told = False
        self.is_valkey = False
        self.worked_out: dict[Any, Any] = {}
        self._described: dict[bytes, Description] = {}
        self._dialects: dict[bytes, Command] = {}  # entries of commands that the server lacks
        self._table = COMMANDS  # `COMMANDS`, and the commands in `_dialects`
        self._unplaced = Command(b"", Effect.ARRIVE, self._written)
        self._terms: dict[bytes, Terms] = {}  # name → its terms, a cache

    def read(self, rows: Iterable[list[Any]]) -> None:
        """Load the server's reply to `COMMAND`."""
        described = self._described = {bytes(row[0]).upper(): _describe(row) for row in rows}
        # A server with one command of a dialect stores such lifetimes itself: do not add the dialect's other commands.
        kept = {_house(name) for name in DIALECTS if name in described}
        self._dialects = {name: it for name, it in DIALECTS.items() if described and _house(name) not in kept}
        self._table = COMMANDS | self._dialects
        self.declares_terms = self.has(b"EVAL_RO")  # EVAL_RO and the flags of scripts both came with Redis 7.0
        self._terms.clear()
        self.worked_out.clear()

    def meet(self, *, clustered: bool) -> None:
        """Record whether the server is a cluster node."""
        if clustered != self.clustered:
            self.clustered = clustered
            self._terms.clear()
            self.worked_out.clear()

    def note_rules(self, *, told: bool) -> None:
        """Record whether any database has rules for events."""
        if told != self.told:
            self.told = told
            self._terms.clear()
            self.worked_out.clear()

    def read_greeting(self, greeting: Mapping[bytes, Any]) -> None:
        """Load the server's reply to `HELLO`: its name, its version, …"""
        self.blanks, self.strict_lines, self.takes_many_arguments = Blanks.EMPTY, False, True
        self.quoting = Quoting.PLAIN
        self.redirects_split, self.queues_without_memory, self.clock_advances = True, False, True
        self.is_valkey = greeting.get(b"server") == b"valkey"
        numbers = re.match(rb"([0-9]+)\.([0-9]+)", bytes(greeting.get(b"version", b"")))
        if numbers is None:
            return
        version = int(numbers[1]), int(numbers[2])
        self.takes_many_arguments = self.hides_commands = version >= (7, 0)
        self.redirects_split = version < (7, 0)
        self.queues_without_memory = version >= (7, 4)
        self.clock_advances = version < (7, 2)
        self.empty_counts = greeting.get(b"server") == b"valkey" or not (8, 0) <= version < (8, 6)
        if greeting.get(b"server") != b"valkey":
            return
        if version >= (8, 0):
            self.blanks = Blanks.INLINE if version < (9, 0) else Blanks.NOTHING
        self.strict_lines = version >= (9, 1)
        if version >= (8, 1):
            self.quoting = Quoting.JOINING if version >= (9, 0) else Quoting.DROPPING

    def has(self, name: bytes) -> bool:
        """Return whether the server is known to have a command."""
        return name in self._described

    def command(self, name: bytes) -> Command | None:
        """Return the table's entry for a command; None if the command is not in the table and adds no members.

        A command that is not in the table may add members, unless the server flags it as read-only: it may belong to a
        newer server or to a module, perhaps one loaded after the server's commands were read.
        """
        command = self._table.get(name)
        if command is not None or name in HARMLESS or not self._described:
            return command
        described = self._described.get(name)
        return None if described is not None and not described.writes else self._unplaced

    def dialect(self, name: bytes) -> Command | None:
        """Return the table's entry for a command of a dialect that the server lacks; None for any other command.

        Also None until the server's commands are loaded."""
        return self._dialects.get(name)

    def _reads_itself(self, name: bytes) -> bool:
        return name in self._dialects and WORDS[name].deed.reads

    def _written(self, arguments: list[bytes]) -> list[bytes] | None:
        """Return the arguments that may be keys, for a command that is not in the table and may write."""
        described = self._described.get(arguments[0].upper())
        return self.keys(arguments) if described is None or described.of(arguments).writes else None

    def terms(self, name: bytes) -> Terms:
        """Return the terms for a script that replaces a command.

        A command that the server does not have is one of the proxy's.
        """
        terms = self._terms.get(name)
        if terms is None:
            described = self._described.get(name)
            flags = described.flags if described is not None else () if self._reads_itself(name) else (b"write",)
            terms = self._terms[name] = Terms(
                b"write" in flags, b"denyoom" in flags, self.declares_terms, clustered=self.clustered, told=self.told,
                lists=name not in _OF_ONE and not name.startswith(_OF_OTHERS),
            )  # fmt: skip
        return terms

    def own_terms(self, *, writes: bool, takes_memory: bool) -> Terms:
        """Return the terms for a script that replaces no command."""
        return Terms(writes, takes_memory, self.declares_terms, clustered=self.clustered, told=self.told)

    def may_block(self, name: bytes) -> bool:
        """Return whether a command may block its connection.

        Commands of modules always may, because modules need not declare it.
        """
        if name in UNANSWERED or name in COMMANDS or name in HARMLESS or name in DIALECTS:
            return name in UNANSWERED
        described = self._described.get(name)
        return described is None or not described.flags.isdisjoint(_WAITING)

    def reads(self, name: bytes) -> bool:
        """Return whether a command only reads."""
        described = self._described.get(name)
        return b"readonly" in described.flags if described is not None else self._reads_itself(name)

    def accepts(self, name: bytes, count: int) -> bool:
        """Return whether the server has the command, and it accepts this many arguments."""
        if not self._described:
            return True
        described = self._described.get(name)
        if described is None:
            return False
        return count == described.arity if described.arity >= 0 else count >= -described.arity

    def has_one_key_in_front(self, name: bytes) -> bool:
        """Return whether the command has exactly one key, its first argument."""
        described = self._described.get(name)
        if described is None or described.movable or name in _CONTAINERS:
            return False
        return described.first == described.last == 1

    def has_keys_elsewhere(self, name: bytes) -> bool:
        """Return whether the command may have keys in places that the server does not describe."""
        described = self._described.get(name)
        return described is None or described.movable

    def keys(self, arguments: list[bytes]) -> list[bytes]:
        """Return the arguments of a request that may be keys."""
        name = arguments[0].upper()
        described = self._described.get(name)
        own = self._table.get(name)
        if described is None and own is not None and own.effect in (Effect.EXPIRE, Effect.LIFETIME):
            return arguments[1:2]  # a command of the proxy: its second argument is a member
        if described is None or name in _CONTAINERS:
            return arguments[1:]
        described = described.of(arguments)
        if described.movable:
            return arguments[1:]
        if not described.first:
            # If a command writes but describes no keys, every argument may be one.
            return arguments[1:] if name not in COMMANDS and name not in HARMLESS and described.writes else []
        last = described.last if described.last >= 0 else len(arguments) + described.last
        return arguments[described.first : last + 1 : max(described.step, 1)]
