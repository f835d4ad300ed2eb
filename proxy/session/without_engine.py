"""Decide when a session does the engine's work on the client's own connection.

Its tests: tests/test_blind.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.commands.table import Command, Effect
from proxy.session import additions
from proxy.session.alone import KEYS_AT_ONCE, MOST_KEYS, Alone
from proxy.session.ground import Ground
from proxy.session.outgoing import Outgoing
from proxy.session.question import Question
from proxy.session.standing import Standing
from proxy.wire.request import Request


class WithoutEngine:
    """Decides when a session does the engine's work, and for which keys; `Alone` does it.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.

    Attributes:
        alone: does the work.
        unaided: whether the engine has failed for the current request.
        coming: keys of the requests in the current chunk.
    """

    __slots__ = ("_coverage", "_ground", "_out", "_standing", "alone", "coming", "unaided")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._standing = standing
        self._out = out
        self.alone = Alone(ground.removals)
        self.unaided = False
        self.coming: list[bytes] = []

    @property
    def is_needed(self) -> bool:
        """Whether the engine's work must be done on the client's own connection."""
        return self._coverage.blind or self.unaided

    def go_elsewhere(self) -> None:
        """Note that the connection may use another database or user from now on."""
        self.alone.forget()

    def sent(self) -> None:
        """Note that the bytes in the stream are being sent."""
        self.alone.sent()

    def look_ahead(self, requests: Iterable[list[bytes]]) -> None:
        """Note the keys of the requests in one chunk, but no more keys than one script examines."""
        if not self.is_needed:
            self.coming = []
            return
        ground = self._ground
        keys: dict[bytes, None] = {}
        for arguments in requests:
            if arguments:
                keys.update(dict.fromkeys(ground.rewriter.named(ground.command(arguments[0]), arguments)))
            if len(keys) >= KEYS_AT_ONCE:
                break
        self.coming = list(keys)[:KEYS_AT_ONCE]

    def shows(self, command: Command | None, request: Request) -> bool:
        """Return whether a request may access collections from which due members must be removed on this connection."""
        if not self.is_needed:
            return False
        if command is not None and command.effect is Effect.MULTI:
            return bool(self.coming or self._standing.watched.keys)
        everywhere = command is not None and command.everywhere(request.arguments)
        return everywhere or bool(self._ground.rewriter.named(command, request.arguments))

    def question(self, command: Command | None, request: Request, now: float) -> Question | None:
        """Put scripts that do the engine's work in front of a request; in a transaction, do nothing.

        Returns:
            A question that waits for the scripts' replies; None if there is nothing to wait for.
        """
        alone, standing = self.alone, self._standing
        if not self.is_needed or standing.transaction is not None or not standing.askable:
            return None
        if standing.is_stranger or standing.limited or not self.shows(command, request):
            return None
        everywhere = command is not None and command.everywhere(request.arguments)
        keys = [*self._ground.rewriter.named(command, request.arguments), *self.coming]
        if len(keys) > MOST_KEYS:
            return None
        absent = (
            []
            if command is None
            else additions.absent(self._coverage, command, request, limited=False, amends=self._out.amends)
        )
        script = alone.ask(keys, absent, standing.replies_for_own(), now, everywhere=everywhere)
        if script is not None:
            self._out.append(script)
            return Question(replied=True, again=True)
        self._out.append(alone.clear_before(keys, standing.replies_for_own(), now, everywhere=everywhere))
        return None
