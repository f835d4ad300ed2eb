"""Follow MULTI, EXEC and DISCARD on one connection.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Final

from proxy.commands.table import Command, Effect
from proxy.session import additions
from proxy.session.ground import Ground
from proxy.session.hearing import Hearing
from proxy.session.outgoing import Outgoing
from proxy.session.pipeline import Pipeline
from proxy.session.standing import Standing
from proxy.session.transaction import Transaction
from proxy.wire.request import Kind, Request

LOOKED_AHEAD: Final = 16 * 1024
"""How far to search a transaction for keys with due members, in bytes."""

_BOUNDS: Final = frozenset((Effect.EXEC, Effect.DISCARD, Effect.DATABASE))
"""Effects of requests after which names belong to another transaction or database."""


class Multi:
    """Opens and ends transactions, and records queued requests.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        hearing: tracks CLIENT REPLY in transactions, and RESET.
        owner: the connection's pipeline.
    """

    __slots__ = ("_coverage", "_hearing", "_out", "_owner", "_rewriter", "_standing", "_streams")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, hearing: Hearing, owner: Pipeline) -> None:
        self._coverage = ground.coverage
        self._rewriter = ground.rewriter
        self._streams = ground.streams
        self._standing = standing
        self._out = out
        self._hearing = hearing
        self._owner = owner

    def queue(self, transaction: Transaction, command: Command | None, request: Request, expected: Set[bytes]) -> None:
        """Record a request that is about to be queued.

        `expected`: keys to which requests in the same chunk may give deadlines.
        """
        runs, blind = False, []
        transaction.anticipates = False
        if command is not None:
            runs = command.effect is Effect.EXEC and self._rewriter.server.accepts(command.name, request.count)
            blind = additions.blind_keys(command, request, limited=self._standing.limited)
            if expected and command.effect is Effect.ADD and request.kind is Kind.WHOLE and not blind:
                transaction.anticipates = not expected.isdisjoint(command.keys(request.arguments) or ())
            elif transaction.presumed.gives(self._rewriter.unclear(command, request.arguments)):
                transaction.anticipates = True
        self._out.note_queued(runs=runs)
        transaction.queue(
            command, request.arguments, blind, reads=self._rewriter.server.reads(request.arguments[0].upper())
        )

    def clear_front(
        self,
        transaction: Transaction,
        command: Command | None,
        request: Request,
        requests_ahead: Callable[[int], Iterator[list[bytes]]],
    ) -> None:
        """Remove due members in front of a request that is about to be queued.

        That includes members that become due while the transaction waits in the server.

        Do nothing for a client with CLIENT TRACKING: such a client would get invalidations of the proxy's own keys
        and, with NOLOOP, none for the removed members.

        Args:
            transaction: the open transaction.
            command: the request's entry in the table.
            request: the request.
            requests_ahead: returns the requests after this one, within the given number of bytes: one call handles the
                keys of all.
        """
        if self._standing.caches:
            return
        named = list(self._rewriter.named(command, request.arguments))
        keys = transaction.to_clear(named)
        if not keys:
            return
        first = keys[0]
        for arguments in requests_ahead(LOOKED_AHEAD):
            behind = self._rewriter.command(arguments[0].upper())
            if behind is not None and behind.effect in _BOUNDS:
                break
            named += self._rewriter.named(behind, arguments)
        # In a cluster a transaction has keys of one slot: clear no others.
        keys = self._rewriter.names.of_one_slot([first, *(key for key in transaction.to_clear(named) if key != first)])
        if self._out.put_aside(self._rewriter.beside.clear_front(keys)):
            transaction.clear(keys)

    def send_delimiter(
        self, command: Command, request: Request, now: float, *, askable: bool, having: Set[bytes] | None = None
    ) -> bool:
        """Send a MULTI, EXEC or DISCARD, which begins or ends a transaction.

        Args:
            command: the request's entry in the table.
            request: the request.
            now: the server's clock, in Unix ms.
            askable: whether the proxy's own requests may be put in front of it.
            having: the transaction's keys that have deadlines, if the server was queried.

        Returns:
            False if the request has not been sent, because the server will refuse it. (A refused EXEC is sent.)
        """
        standing = self._standing
        accepted = self._rewriter.server.accepts(command.name, request.count)
        if command.effect is Effect.EXEC and not accepted:
            self.end()  # servers drop a transaction whose EXEC they refuse
            self._out.append(request.raw)
            self._hearing.end_transaction(runs=False)
            return True
        if not accepted or (standing.rights.confinement and standing.transaction is None):
            return False
        if command.effect is Effect.MULTI:
            self._begin(askable=askable)
            self._out.append(request.raw)
            return True
        runs = command.effect is Effect.EXEC
        if runs and standing.transaction is not None:
            self._run(standing.transaction, now, having)
        self.end()
        self._out.append(request.raw)
        self._hearing.end_transaction(runs=runs)
        if command.name == b"RESET":
            self._hearing.start_anew()
        return True

    def end(self) -> None:
        """Note that the transaction has ended."""
        transaction = self._standing.transaction
        if transaction is not None:
            self._standing.watched.clear()  # outside a transaction the server refuses EXEC, and keys stay watched
        if transaction is not None and transaction.is_long:
            self._streams.lengthen(self._owner)  # only now: others need not wait for it before EXEC
        self.abandon()

    def abandon(self) -> None:
        """Note that the transaction, if any, will not run: the client has gone."""
        self._out.end_transaction()
        self._standing.transaction = None

    def _begin(self, *, askable: bool) -> None:
        standing = self._standing
        if standing.transaction is not None:
            return
        self._hearing.begin_transaction()
        standing.transaction = Transaction(self._coverage, self._owner)
        if askable and not standing.is_stranger and not standing.limited:
            self._out.begin_transaction()

    def _run(self, transaction: Transaction, now: float, having: Set[bytes] | None) -> None:
        unseen = self._coverage.blind and self._standing.watched.earliest <= now  # a due watched member was not removed
        overtaken = transaction.is_overtaken or transaction.presumed.is_wrong(having)
        if unseen or overtaken or self._coverage.unconfirmed(transaction.keys_given_deadlines):
            # The transaction must not run: an unknown command makes EXEC return EXECABORT.
            self._out.append(self._standing.replies.expect(b"", by_greeting=False))
        for key, delay in transaction.keys_given_deadlines.items():
            self._rewriter.marks.expect([key], now + delay)
