"""Find out what the engine must do before a request may be sent.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from proxy.commands.table import Command, Effect, is_indifferent
from proxy.session import additions
from proxy.session.announcing import Announcing
from proxy.session.arriving import Arriving
from proxy.session.fronts import Fronts
from proxy.session.ground import Ground
from proxy.session.outgoing import Outgoing
from proxy.session.question import Arrival, Question
from proxy.session.standing import Standing
from proxy.session.transaction import Transaction
from proxy.session.without_engine import WithoutEngine
from proxy.wire.request import Request

_COMES: Final = b"RESTORE-ASKING"

ARRIVALS_AHEAD: Final = 64 * 1024
"""How far to search a stream from another cluster node for arriving keys, in bytes."""


class Inquiry:
    """Finds out what the engine must do before the requests of one connection may be sent.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        without: does the engine's work on the client's own connection.
        announcing: parses the requests after the current one.
        out: the stream to the server.
        fronts: puts scripts in front of requests.
    """

    __slots__ = (
        "_alarm",
        "_announcing",
        "_arriving",
        "_coverage",
        "_fronts",
        "_moves",
        "_out",
        "_rewriter",
        "_standing",
        "_without",
    )

    def __init__(
        self,
        ground: Ground,
        standing: Standing,
        without: WithoutEngine,
        announcing: Announcing,
        out: Outgoing,
        fronts: Fronts,
    ) -> None:
        self._fronts = fronts
        self._alarm = ground.rewriter.marks.alarm
        self._coverage = ground.coverage
        self._rewriter = ground.rewriter
        self._moves = ground.rewriter.moves
        self._standing = standing
        self._without = without
        self._announcing = announcing
        self._out = out
        self._arriving: Arriving | None = None  # set once another cluster node has sent keys

    def question(self, command: Command | None, request: Request, now: float, *, replied: bool) -> Question | None:
        """Return the work that must be done before a request is sent; None if there is none.

        Called for queued requests too, and again for their EXEC: if the server has refused the MULTI, they run at once.

        `replied`: whether the client's earlier requests have been answered since this one came.
        """
        coverage, standing, without = self._coverage, self._standing, self._without
        if without.unaided:
            return None
        transaction, limited = standing.transaction, standing.limited
        if command is not None and command.name == _COMES and transaction is None and not limited:
            arrivals = self._arrivals(request)
            if arrivals:
                return Question(arrivals=arrivals)
        leftover: tuple[bytes, ...] = ()
        if command is not None and command.effect is Effect.MIGRATE:
            leftover = tuple(self._moves.leftovers(request.arguments))
        if leftover and transaction is None and standing.askable and not limited:
            return Question(leftover=leftover) if replied else Question(replied=True, again=True)
        if not coverage.ever and not coverage.blind:
            return None
        everywhere = command is not None and command.everywhere(request.arguments)
        if transaction is not None:
            return self._of_transaction(transaction, command, request, everywhere=everywhere)
        everywhere = everywhere and not coverage.cleared.holds(None, now, self._alarm.set_lately)
        absent = (
            additions.absent(coverage, command, request, limited=limited, amends=self._out.amends) if command else []
        )
        if self._fronts.may_be_put(now):
            question = self._fronts.question(command, request, absent, now, asked=replied)
            if question is not None and question.replied:
                return question
            if question is None and not everywhere:
                return None
            if coverage.blind:
                without.unaided = True
                return without.question(command, request, now)
            return Question(everywhere=True) if question is None else replace(question, everywhere=everywhere)
        if is_indifferent(request.arguments) and not absent:
            return None
        due = coverage.among(self._rewriter.named(command, request.arguments))
        if coverage.blind:  # whether other keys have deadlines is not known
            due, absent = list(filter(coverage.is_certain, due)), [one for one in absent if coverage.is_certain(one[0])]
            everywhere = False
        due = [key for key in due if not coverage.cleared.holds(key, now, self._alarm.set_lately)]
        unclear: tuple[bytes, ...] = ()
        # Earlier requests may remove members that this request adds.
        reply = bool(absent or leftover) and standing.askable
        if limited and command is not None:
            unclear = self._unclear(command, request)
            # Wait for earlier requests: they may set deadlines in these keys.
            reply = reply or ((bool(unclear) or command.effect is Effect.MULTI) and standing.askable)
        if reply and not replied:
            return Question(replied=True, again=True)
        if not (due or everywhere or unclear or absent or leftover):
            return None
        return Question(
            due=tuple(due),
            everywhere=everywhere,
            unclear=unclear,
            absent=tuple(absent),
            tentative=bool(absent) and limited,
            leftover=leftover,
        )

    def _of_transaction(
        self, transaction: Transaction, command: Command | None, request: Request, *, everywhere: bool
    ) -> Question | None:
        """Return the work that must be done before a request is queued, or before EXEC; None if there is none.

        For most keys this is done by scripts queued in front of the requests that name them.
        """
        coverage, watched = self._coverage, self._standing.watched
        own = transaction.cleared
        if coverage.blind:
            return None
        if command is None or command.effect is not Effect.EXEC:
            named = coverage.among(self._rewriter.named(command, request.arguments))
            due = tuple(key for key in named if key not in own)
            if self._standing.limited and command is not None:
                # If the keys have deadlines, the request needs a script that this user may not run: find out.
                unclear = self._unclear(command, request)
                if due or everywhere or unclear:
                    return Question(due=due, everywhere=everywhere, unclear=unclear)
                return None
            if self._out.can_put_aside or is_indifferent(request.arguments):
                return None  # a script queued in front of the request removes due members
            return Question(due=due, everywhere=everywhere) if due or everywhere else None
        due = tuple(dict.fromkeys([*coverage.among(watched.keys), *coverage.among(transaction.names - own)]))
        absent = tuple((key, None) for key in transaction.blind_keys)
        everywhere = transaction.everywhere or watched.everywhere
        unclear = tuple(transaction.presumed.without)  # another client may have given these keys deadlines
        if not (due or absent or everywhere or unclear):
            return None
        return Question(due=due, absent=absent, everywhere=everywhere, unclear=unclear)

    def _unclear(self, command: Command, request: Request) -> tuple[bytes, ...]:
        """Return the keys of a limited user's request that needs a script only if they have deadlines.

        Empty for any other request, and if the user certainly may run the script: then a script always replaces the
        request, because the keys might have deadlines by the time it runs.
        """
        keys = tuple(filter(self._coverage.is_certain, self._rewriter.unclear(command, request.arguments)))
        names = self._rewriter.needed(command, request) if keys else None
        if names and self._standing.rights.reach(command.name, names):
            return ()
        return keys

    def _arrivals(self, request: Request) -> tuple[Arrival, ...]:
        """Return the arrivals to prepare for before a key from another cluster node is forwarded."""
        if self._arriving is None:
            self._arriving = Arriving()
        arrival = self._moves.arrival(request.arguments, request.count)
        if arrival is not None:
            return self._arriving.to_make_way_for(arrival, self._arrivals_ahead())
        if (shadow_of := self._moves.owner(request.arguments)) is not None:
            self._arriving.come_with(shadow_of)
        return ()

    def _arrivals_ahead(self) -> Iterator[Arrival]:
        for arguments in self._announcing.requests_ahead(ARRIVALS_AHEAD):
            arrival = self._moves.arrival(arguments, len(arguments)) if arguments[0].upper() == _COMES else None
            if arrival is not None:
                yield arrival
