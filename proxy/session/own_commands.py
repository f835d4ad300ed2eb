"""Rewrite the commands that the proxy adds: EXPIREMEMBER and its relatives, and commands of other servers.

Its tests: tests/test_dialects.py.
"""

from __future__ import annotations

import math

from proxy.commands.described import ServerCommands, Terms
from proxy.commands.dialects import LATEST, WORDS, Deed, MisreadError, Term, Word, read_words
from proxy.commands.lifetime import EXACT, ArityError, LifetimeError, deadline_of, read_lifetime
from proxy.commands.table import Command, Effect
from proxy.session.errors import Refusal
from proxy.session.marks import Marks
from proxy.session.pipeline import Pipeline
from proxy.session.script_calls import ScriptCalls
from proxy.session.transaction import Transaction


def is_cleared(key: bytes, transaction: Transaction | None) -> bool:
    """Return whether an earlier request of the same transaction removes due members from a key."""
    return transaction is not None and key in transaction.cleared


def _terms_of(condition: bytes, *, later: bool) -> str:
    """Return the letters of the operations that expire.lua needs. `later`: the deadline is surely in the future."""
    return ("x" if condition else "") + ("" if later else "d")


class OwnCommands:
    """Replaces, by scripts, commands that the server does not have.

    Args:
        server: the server's commands.
        calls: encodes the scripts.
        marks: notes which keys get deadlines.
    """

    def __init__(self, server: ServerCommands, calls: ScriptCalls, marks: Marks) -> None:
        self._server = server
        self._calls = calls
        self._marks = marks

    def may_set(self, command: Command, arguments: list[bytes]) -> bool:
        """Return whether a request sets a deadline; some requests of dialects do not, such as `HSETEX` without a
        time."""
        return command.effect is not Effect.EXPIRE or self.delay(command, arguments) is not None

    def delay(self, command: Command, arguments: list[bytes]) -> float | None:
        """Return the deadline that a request sets, in ms from now, as `deadline_of` computes it.

        Infinite if an EXPIREMEMBER or a relative is invalid. None if a request of a dialect is invalid or sets none.
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

    def expire(
        self,
        command: Command,
        arguments: list[bytes],
        now: float,
        owner: Pipeline | None,
        transaction: Transaction | None,
        *,
        marks: bool,
    ) -> bytes | Refusal:
        """Return the script call for an EXPIREMEMBER or a relative, on one member.

        Args:
            command: the request's entry in the table.
            arguments: the request.
            now: the server's clock, in Unix ms.
            owner: the connection's pipeline.
            transaction: the open transaction in which the request is about to be queued.
            marks: whether to judge the rest of the transaction as if the request's key had deadlines.
        """
        name = command.name
        try:
            lifetime = read_lifetime(name, arguments)
        except ArityError as error:
            return Refusal(error.message, "arity")
        except LifetimeError as error:
            return self._calls.replacing(self._server.terms(name), "fail", [], [error.message])
        key, member, deadline = arguments[1], arguments[2], lifetime.deadline(now)
        if marks:
            self._marks.cover(key, owner, transaction)
        if transaction is None:
            self._marks.expect([key], deadline)
        # Four words in one argument: before AUTH a server accepts at most ten arguments, and the client should get
        # NOAUTH.
        mode = b"relative" if lifetime.is_relative else b"absolute"
        terms = b"%d %b %b %b" % (lifetime.milliseconds, mode, name.lower(), lifetime.condition)
        # A deadline in the past removes the member, which needs no memory.
        removes = deadline <= now
        run = self._terms(name, key, transaction)._replace(takes_memory=not removes)
        does = "e" + _terms_of(lifetime.condition, later=lifetime.is_relative and lifetime.milliseconds > 0)
        return self._calls.replacing(run, "expire", self._calls.triple(key), [member, terms], does=does)

    def by_word(
        self,
        word: Word,
        arguments: list[bytes],
        now: float,
        owner: Pipeline | None,
        transaction: Transaction | None,
        *,
        marks: bool,
    ) -> bytes | Refusal:
        """Return the script call for a request of a dialect, on several members. Same arguments as `expire`."""
        valkey, key = self._server.is_valkey and word.kind == b"hash", b"".join(arguments[1:2])
        terms = self._terms(word.name, key, transaction)
        try:
            asked = read_words(word, arguments, now, valkey=valkey)
        except ArityError as error:
            return Refusal(error.message, "arity")
        except MisreadError as error:
            if not error.after_type:
                return self._calls.replacing(terms, "fail", [], [error.message])
            return self._calls.replacing(terms, "fail_members", self._calls.pair(key), [error.message, word.kind])
        if word.deed is Deed.SCAN:
            return self._calls.replacing(terms, "scan_members", self._calls.pair(key), [*asked.options])
        if word.deed is Deed.READ:
            rest = word.unit // 2 if valkey or not word.noun else word.unit - 1
            what = b"%b %b %d %d %d %b" % (
                word.kind, b"left" if word.relative else b"at", word.unit, rest, word.missing,
                b"one" if word.is_of_one else b"each",
            )  # fmt: skip
            return self._calls.replacing(terms, "ttl_members", self._calls.pair(key), [what, *asked.members])
        if word.deed is Deed.DROP:
            return self._calls.replacing(terms, "persist_members", self._calls.triple(key), [word.kind, *asked.members])
        is_timed, deadline = asked.term is Term.TIME, math.inf
        if is_timed:
            deadline = asked.milliseconds + (now if asked.relative else 0)
            if marks:
                self._marks.cover(key, owner, transaction)
            if transaction is None:
                self._marks.expect([key], deadline)
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
            what = b"%b %b %b %d %b" % (term, mode, word.name.lower(), latest, conditions)
            terms = terms._replace(takes_memory=word.deed is Deed.WRITE or (is_timed and deadline > now))
            return self._calls.replacing(terms, script, self._calls.triple(key), [what, *asked.members], sets=is_timed)
        what = b"%d %b %b %d %b %d %b" % (
            asked.milliseconds, mode, word.name.lower(), latest, word.kind, word.removed, asked.condition
        )  # fmt: skip
        terms = terms._replace(takes_memory=deadline > now, lists=terms.lists and len(asked.members) > 1)
        does = ("1" if len(asked.members) == 1 else "n") + _terms_of(
            asked.condition, later=asked.relative and asked.milliseconds > 0
        )
        return self._calls.replacing(
            terms, "expire_members", self._calls.triple(key), [what, *asked.members], does=does
        )

    def lifetime(self, command: Command, arguments: list[bytes], transaction: Transaction | None) -> bytes | None:
        """Return the script call for TTL, PTTL or PERSIST of a member; None if the request is about a key."""
        name, size = command.name, len(arguments)
        if size < 3:
            return None
        key, terms = arguments[1], self._terms(name, arguments[1], transaction)
        if size > 3:
            missing = b"0" if name == b"PERSIST" else b"-2"
            return self._calls.replacing(terms, "fail", [key], [b"ERR Invalid arguments", missing])
        if name == b"PERSIST":
            return self._calls.replacing(terms, "persist", self._calls.triple(key), [arguments[2]])
        unit = b"1000" if name == b"TTL" else b"1"
        return self._calls.replacing(terms, "ttl", self._calls.pair(key), [arguments[2], unit])

    def _terms(self, name: bytes, key: bytes, transaction: Transaction | None) -> Terms:
        """Return the terms of a command on a key."""
        terms = self._server.terms(name)
        return terms._replace(cleared=True) if is_cleared(key, transaction) else terms
