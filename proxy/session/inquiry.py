"""What the engine has to do before a request may go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from proxy.commands.table import MARKING, Command, Effect
from proxy.session import additions
from proxy.session.announcing import Announcing
from proxy.session.arriving import Arriving
from proxy.session.claims import Claims
from proxy.session.ground import Ground
from proxy.session.outgoing import Outgoing
from proxy.session.question import Arrival, Question
from proxy.session.standing import Standing
from proxy.session.without_engine import WithoutEngine
from proxy.wire.request import Request

_COMES: Final = b"RESTORE-ASKING"

ARRIVALS_AHEAD: Final = 64 * 1024
"""Bytes of what another cluster node sends that are searched for keys that come."""


class Inquiry:
    """Finds out for the requests of one connection.

    Args:
        ground: what all sessions stand on.
        standing: the state of the connection, which is the owner of its streams.
        without: what is done without the engine.
        claims: those of the connection, which is the owner of its pipeline.
        announcing: sees what comes behind a request.
        out: what goes upstream.
    """

    __slots__ = (
        "_announcing",
        "_arriving",
        "_claims",
        "_known",
        "_moves",
        "_out",
        "_rewriter",
        "_standing",
        "_streams",
        "_without",
    )

    def __init__(
        self,
        ground: Ground,
        standing: Standing,
        without: WithoutEngine,
        claims: Claims,
        announcing: Announcing,
        out: Outgoing,
    ) -> None:
        self._known = ground.known
        self._rewriter = ground.rewriter
        self._moves = ground.rewriter.moves
        self._streams = ground.streams
        self._standing = standing
        self._without = without
        self._claims = claims
        self._announcing = announcing
        self._out = out
        self._arriving: Arriving | None = None  # once another cluster node has sent keys

    def question(
        self, command: Command | None, request: Request, now: float, *, replied: bool, waited: bool
    ) -> Question | None:
        """Return what has to be done before a request may go.

        In a transaction too, and again before its EXEC: the server may have refused the MULTI, by a rule of its own.
        What others have to finish before comes first, and by itself: more may be due when they have.

        `replied`: whether what the client sent before has been answered meanwhile; `waited`: whether others have been
        waited for, or are not to be: then nothing is changed by asking.
        """
        known, standing, without = self._known, self._standing, self._without
        if without.unaided:
            return None
        streams = self._streams
        before = self._before(command, request, now) if (streams.keys or streams.pipelines) and not waited else None
        transaction, limited = standing.transaction, standing.limited
        if command is not None and command.name == _COMES and transaction is None and not limited:
            arrivals = self._arrivals(request)
            if arrivals:
                return Question(arrivals=arrivals)
        leftover: tuple[bytes, ...] = ()
        if command is not None and command.effect is Effect.MIGRATE:
            leftover = tuple(self._moves.leftovers(request.arguments))
        if without.is_needed and transaction is None and standing.askable and not limited:
            if leftover:
                return Question(leftover=leftover) if replied else Question(replied=True, again=True)
            return before  # the rest has been done
        if not known.deadlines and not known.blind:
            return before
        names: set[bytes] | list[bytes] = request.arguments
        everywhere = command is not None and command.everywhere(request.arguments)
        absent: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        if transaction is not None and command is not None and command.effect is Effect.EXEC:
            watched = standing.watched
            names = transaction.names | watched.keys if watched.keys else transaction.names
            everywhere = transaction.everywhere or watched.everywhere
            absent = [(key, None) for key in transaction.blind_keys]
        elif command is not None:
            absent = additions.absent(known, command, request, limited=limited, amends=self._out.amends)
        everywhere = everywhere and known.any_due(now)
        due = () if known.deadlines.keys().isdisjoint(names) else tuple(dict.fromkeys(known.to_ask_about(names, now)))
        unclear, reply = self._limited(command, request) if limited else ((), False)
        if (absent or leftover) and transaction is None and standing.askable:
            reply = True  # what the client has sent before may remove what this brings back
        if before is not None:
            return replace(before, replied=reply and not replied)
        if reply and not replied:
            return Question(replied=True, again=True)
        if not (due or everywhere or unclear or absent or leftover):
            return None
        tentative = bool(absent) and limited
        return Question((), due, everywhere, unclear, tuple(absent), tentative=tentative, leftover=leftover)

    def _arrivals(self, request: Request) -> tuple[Arrival, ...]:
        """Return the keys for which way has to be made before one may come from another cluster node."""
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

    def _before(self, command: Command | None, request: Request, now: float) -> Question | None:
        """Return what others have to finish before a request may give keys deadlines."""
        if command is None or command.effect not in MARKING:
            return None
        keys = command.keys(request.arguments) or ()
        if command.effect is not Effect.EXPIRE and not any(map(self._known.is_known, keys)):
            return None
        standing = self._standing
        if not standing.may_expire(keys):
            return None
        streams = self._streams
        first = streams.held_up(keys, self._known.deadlines, self._claims)
        arriving = tuple(key for key in keys if key in first or streams.of((key,), but=standing))
        if not arriving:
            return None
        if first:  # all that come in one pipeline wait together
            ahead = set(self._announcing.keys_ahead()).difference(self._known.deadlines, arriving)
            arriving = (*arriving, *(key for key in ahead if standing.may_expire((key,))))
        if standing.transaction is not None:
            standing.transaction.watch(arriving)
        for key in arriving:
            self._known.mark(key, math.inf, now, self._claims)  # what comes after those is judged
        if not first:
            return Question(arriving, again=True)
        streams.let_wait(arriving)
        return Question(arriving, again=True, behind=streams.of_others(self._claims))

    def _limited(self, command: Command | None, request: Request) -> tuple[tuple[bytes, ...], bool]:
        """Return, for a user who may run no script, which keys must not be taken to be known for no good reason; and
        whether members that requests before this one remove have to be gone."""
        if command is None:
            return (), False
        unclear = [key for key in self._rewriter.unclear(command, request.arguments) if self._known.is_known(key)]
        opens = command.effect is Effect.MULTI
        return tuple(unclear), opens and self._standing.transaction is None and self._standing.askable
