"""Note how requests change the state of their connection: its user, database, subscriptions and watched keys.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from typing import Final

from proxy.commands.table import Command, Effect
from proxy.coverage.coverage import DATABASES, Coverage
from proxy.session.outgoing import Outgoing
from proxy.session.rights import named_user, short_name
from proxy.session.standing import DEFAULT_USER, Login, Standing, Subscriptions
from proxy.session.strangers import Strangers
from proxy.session.without_engine import WithoutEngine
from proxy.wire.pieces import Wish
from proxy.wire.request import Request, encode, strict_integer

_ELSEWHERE: Final = frozenset((Effect.DATABASE, Effect.LOGIN, Effect.DISCARD, Effect.EXEC))
"""Effects that may change a connection's database or user."""

_HELLO: Final = encode([b"HELLO"])
"""A request that changes nothing; its reply shows the protocol."""

_STRANGER: Final = Login.STRANGER
_KNOWN_AS_STRANGERS: Final = frozenset((Login.STRANGER, Login.ADMITTED))


class Changes:
    """Notes changes in the state of one connection.

    Args:
        coverage: the covered keys.
        standing: the state of the connection.
        out: the stream to the server.
        without: does the engine's work on the client's own connection.
        strangers: judges requests before the login.
    """

    __slots__ = ("_coverage", "_out", "_standing", "_strangers", "_without")

    def __init__(
        self, coverage: Coverage, standing: Standing, out: Outgoing, without: WithoutEngine, strangers: Strangers
    ) -> None:
        self._coverage = coverage
        self._standing = standing
        self._out = out
        self._without = without
        self._strangers = strangers

    def note(self, command: Command, request: Request) -> None:
        """Note how a request that is about to be sent may change the state."""
        standing, name = self._standing, command.name
        if command.effect in _ELSEWHERE:
            self._without.go_elsewhere()
        if command.effect is Effect.LOGIN:
            standing.rights.log_in(request.arguments)
            standing.replies.deaf = False
            self._strangers.tried = standing.login in _KNOWN_AS_STRANGERS
            if name == b"AUTH":
                standing.user = short_name(named_user(request.arguments) or DEFAULT_USER)
            elif name == b"HELLO":
                standing.user = short_name(named_user(request.arguments) or standing.user)
                if len(request.arguments) > 1:
                    asked = request.arguments[1] == b"3"
                    standing.greeted_in_resp3 |= asked
                    standing.subscriptions.greet(resp3=asked)
            # Replies within EXEC's reply cannot be counted: Redis 8.0 and Valkey 8.0 omit the reply to a refused login.
            self._out.shut()
        if command.effect is Effect.LOGIN or name == b"RESET":
            standing.permits.forget()
        if command.effect is Effect.DATABASE:
            if standing.transaction is None and standing.rights.by_database:
                standing.rights.forget()
                standing.permits.forget()
            visited = {strict_integer(argument) or 0 for argument in request.arguments[1:3]}
            if standing.login is _STRANGER:
                self._strangers.visited |= visited & DATABASES
            else:
                self._coverage.visit(visited)
        if name == b"RESET" and request.count == 1:
            self._strangers.reset()
            standing.watched.clear()
            standing.rights.reset()
            standing.user = DEFAULT_USER
            standing.caches = False
            standing.subscriptions = Subscriptions()
        elif name.endswith(b"SUBSCRIBE"):
            standing.rights.by_state = True
            if standing.greeted_in_resp3 and not standing.subscriptions.resp3:
                self._out.ask_first(_HELLO, standing.subscriptions.learn())
            standing.subscriptions.note(name, request.arguments[1:])
            self._out.wish_here(Wish.LISTENS)
            # Replies within EXEC's reply cannot be counted: there is one for each channel.
            self._out.shut()
        elif command.effect is Effect.WATCH and standing.transaction is None:
            if name == b"WATCH":
                standing.watched.add(request.arguments[1:])
            elif request.count == 1:
                standing.watched.clear()
        elif name == b"MONITOR":
            standing.rights.by_state = standing.subscriptions.monitors = True
