"""Judge requests of clients that may not have logged in: do for them only what the server would do.

Its tests: tests/test_strangers.py.
"""

from __future__ import annotations

from typing import Final

from proxy.commands.table import Command, Effect
from proxy.session.ground import Ground
from proxy.session.inquiry import Inquiry
from proxy.session.outgoing import Outgoing
from proxy.session.question import Question
from proxy.session.rewrite import is_own
from proxy.session.standing import End, Login, Standing
from proxy.session.without_engine import WithoutEngine
from proxy.wire.request import Kind, Request, RequestReader

MOST_ARGUMENTS: Final = 10
MOST_BYTES: Final = 16 * 1024
"""Limits of servers on a request before a login: the number of arguments, and the size of one argument in bytes."""

_NOT_LOGGED_IN: Final = b"-NOAUTH Authentication required.\r\n"
"""The error is the same in all servers (`shared.noautherr`)."""


class Strangers:
    """Judges the requests of one connection while its client is a stranger.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        without: does the engine's work on the client's own connection.
        inquiry: finds out what the engine must do.

    Attributes:
        tried: whether a login has been sent since the last RESET.
        visited: the databases that the client has selected, noted once its login is proved.
    """

    __slots__ = ("_ground", "_inquiry", "_out", "_standing", "_without", "tried", "visited")

    def __init__(
        self, ground: Ground, standing: Standing, out: Outgoing, without: WithoutEngine, inquiry: Inquiry
    ) -> None:
        self._ground = ground
        self._standing = standing
        self._out = out
        self._without = without
        self._inquiry = inquiry
        self.tried = False
        self.visited: set[int] = set()

    def question(self, command: Command | None, request: Request, now: float) -> Question | None:
        """Return a question that waits for proof of the login; None if the proxy would do nothing for the request."""
        rewriter = self._ground.rewriter
        if request.kind is Kind.HEAD:
            concerns = True  # other clients would wait for the end of the upload
        elif self._ground.guarded and rewriter.reserved(request) is not None:
            concerns = True
        elif command is None:
            has_quit = request.arguments[0].upper() == b"QUIT"  # QUIT's reply does not prove a login
            self._standing.end = End.QUIT if has_quit else End.OPEN
            concerns = False
        elif command.effect is Effect.CONNECTION or command.name.endswith(b"SUBSCRIBE"):
            concerns = True  # no sign can follow it, at least not before a login
        elif command.effect in (Effect.MULTI, Effect.DESCRIBE) or is_own(command, request):
            concerns = True
        else:
            concerns = rewriter.stands_in(command, request)
        if (
            concerns
            or self._without.shows(command, request)
            or self._inquiry.question(command, request, now, replied=True) is not None
        ):
            return Question(replied=True, again=True, login=True)
        return None

    def reset(self) -> None:
        """Note that a RESET is sent. If it may end a login, note the number of the next sign: no reply before that sign
        proves another login."""
        standing = self._standing
        if standing.login not in (Login.STRANGER, Login.ADMITTED):
            standing.login = Login.UNPROVED
        elif self.tried or standing.login is Login.ADMITTED:
            standing.login = Login.STRANGER
        else:
            return
        self._out.logged_out = standing.replies.next_number
        self.tried = False

    def turn_down(self, request: Request) -> None:
        """Let the server reply that the client must log in; the proxy does so if the server does not know the
        command."""
        command = self._ground.command(request.arguments[0])
        if command is not None and command.effect in (Effect.EXPIRE, Effect.LIFETIME) and request.kind is Kind.WHOLE:
            self._out.replace(request, self._out.expect(_NOT_LOGGED_IN, fails=True))
        else:
            self._out.append(request.raw)


def is_too_much(reader: RequestReader) -> bool:
    """Return whether the arriving request is larger than servers accept before a login."""
    return reader.count > MOST_ARGUMENTS or reader.announced > MOST_BYTES


def what_is_too_much(reader: RequestReader) -> tuple[str, bytes]:
    """Return the servers' name for the limit, and the part of the request that makes them report it."""
    many = reader.count > MOST_ARGUMENTS
    what = "multibulk length" if many else "bulk length"
    return f"unauthenticated {what}", reader.refused(at_count=many)
