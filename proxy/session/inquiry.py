"""What the engine has to do before a request may go."""

from __future__ import annotations

import math

from proxy.commands.table import MARKING, Command, Effect
from proxy.session import additions
from proxy.session.ground import Ground
from proxy.session.question import Question
from proxy.session.standing import Standing
from proxy.session.without_engine import WithoutEngine
from proxy.wire.request import Request


class Inquiry:
    """Finds out for the requests of one connection.

    Args:
        ground: what all sessions stand on.
        standing: the state of the connection, which is the owner of its streams.
        without: what is done without the engine.
    """

    __slots__ = ("_known", "_rewriter", "_standing", "_streams", "_without")

    def __init__(self, ground: Ground, standing: Standing, without: WithoutEngine) -> None:
        self._known = ground.known
        self._rewriter = ground.rewriter
        self._streams = ground.streams
        self._standing = standing
        self._without = without

    def question(
        self, command: Command | None, request: Request, now: float, *, waited: bool = False
    ) -> Question | None:
        """Return what has to be done before a request may go.

        In a transaction too, and again before its EXEC: the server may have refused the MULTI, by a rule of its own.
        What others have to finish before comes first, and by itself: more may be due when they have.

        `waited`: whether that has been.
        """
        known, standing, without = self._known, self._standing, self._without
        if without.unaided:
            return None
        arriving = self._arriving(command, request, now) if self._streams.keys and not waited else ()
        transaction, limited = standing.transaction, standing.limited
        if without.is_needed and transaction is None and standing.askable and not limited:
            return Question(arriving, again=True) if arriving else None  # the rest has been done
        if not known.deadlines and not known.blind:
            return Question(arriving, again=True) if arriving else None
        names: set[bytes] | list[bytes] = request.arguments
        everywhere = command is not None and command.everywhere(request.arguments)
        absent: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        if transaction is not None and command is not None and command.effect is Effect.EXEC:
            names = transaction.names
            everywhere = transaction.everywhere
            absent = [(key, None) for key in transaction.blind_keys]
        elif command is not None:
            absent = additions.absent(known, command, request, limited=limited)
        everywhere = everywhere and known.any_due(now)
        due = () if known.deadlines.keys().isdisjoint(names) else tuple(dict.fromkeys(known.to_ask_about(names, now)))
        unclear, replied = self._limited(command, request) if limited else ((), False)
        if absent and transaction is None and standing.askable:
            replied = True  # what the client has sent before may remove what this brings back
        if arriving or (replied and not waited):
            return Question(arriving, replied=replied, again=True)
        if not (due or everywhere or unclear or absent):
            return None
        tentative = bool(absent) and limited
        return Question((), due, everywhere, unclear, tuple(absent), tentative=tentative)

    def _arriving(self, command: Command | None, request: Request, now: float) -> tuple[bytes, ...]:
        """Return the keys that a request may give deadlines while others send requests for them."""
        if command is None or command.effect not in MARKING:
            return ()
        keys = command.keys(request.arguments) or ()
        if command.effect is not Effect.EXPIRE and not any(map(self._known.is_known, keys)):
            return ()
        arriving = tuple(key for key in keys if self._streams.of((key,), but=self._standing))
        for key in arriving:
            self._known.mark(key, math.inf, now)  # what comes after those is judged
        return arriving

    def _limited(self, command: Command | None, request: Request) -> tuple[tuple[bytes, ...], bool]:
        """Return, for a user who may run no script, which keys must not be taken to be known for no good reason; and
        whether members that requests before this one remove have to be gone."""
        if command is None:
            return (), False
        unclear = [key for key in self._rewriter.unclear(command, request.arguments) if self._known.is_known(key)]
        opens = command.effect is Effect.MULTI
        return tuple(unclear), opens and self._standing.transaction is None and self._standing.askable
