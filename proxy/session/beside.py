"""Encode the proxy's own requests that accompany a client's request on the client's connection.

Its tests: tests/test_refusals.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Final

from proxy.commands.described import ServerCommands
from proxy.commands.table import Command, Effect
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.scripts.calls import evaluation
from proxy.scripts.naming import Names
from proxy.session.script_calls import COPIED, ScriptCalls
from proxy.session.voiding import Voiding
from proxy.wire.request import encode

WITHIN: Final = 1_000
"""How many of a key's deadlines to check in a transaction, in front of a client's request that may add any member."""


class Beside:
    """Encodes the proxy's own requests that go before or after a client's request.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys.
        server: the server's commands.
        calls: encodes scripts.
        metrics: the counters.
    """

    def __init__(
        self, names: Names, coverage: Coverage, server: ServerCommands, calls: ScriptCalls, metrics: Metrics
    ) -> None:
        self._names = names
        self._coverage = coverage
        self._server = server
        self._calls = calls
        self._metrics = metrics

    def guard(self, command: Command, arguments: list[bytes]) -> bytes | None:
        """Return a no-op that the server refuses in a transaction exactly when it would refuse the client's request.

        None if no such guard is possible, or if none is needed: then the server itself refuses the script that replaces
        the request whenever it would refuse the request.
        """
        terms = self._server.terms(command.name)
        if terms.declared or not terms.writes or not self._server.has(b"ZADD"):
            return None
        keys = command.keys(arguments) or [b""]
        if self._names.slots is not None and not keys[0]:
            return None
        index, nobody = self._names.index_for(keys[0]), self._names.prefix  # no key has the bare prefix as its name
        if terms.takes_memory or command.effect is Effect.EXPIRE:
            return encode([b"ZADD", index, b"XX", b"GT", b"-inf", nobody])
        return encode([b"ZREM", index, nobody])

    def void(self, key: bytes, members: tuple[bytes, ...] | None) -> bytes:
        """Return the request that voids the deadlines of absent members on the client's own connection.

        Args:
            key: the key.
            members: the members that may be added; None for all, of which about `WITHIN` are checked.
        """
        terms = self._server.own_terms(writes=True, takes_memory=False)
        terms = terms._replace(declared=False)  # so the server refuses single writes, not the whole script
        if members is None or sum(map(len, members)) > COPIED:
            arguments = [b"", b"0", b"%d" % WITHIN]
            return evaluation(
                terms, "void_page", self._calls.triple(key), arguments, declared=self._calls.declared([key])
            )
        keys = [self._names.index_for(key), key, self._names.shadow(key)]
        voiding = Voiding(keys, tentative=False, rest=[b"1", b"", b"%d" % len(members), *members])
        return evaluation(terms, "void", voiding.keys, voiding.arguments(()), declared=self._calls.declared([key]))

    def clear_front(self, keys: Iterable[bytes]) -> bytes:
        """Return the request that removes due members from keys in front of a transaction's requests on them.

        The keys are not declared to a cluster node: it would refuse the whole transaction if an argument that is not
        a key were in another node's slot.
        """
        terms = self._server.own_terms(writes=True, takes_memory=False)
        terms = terms._replace(declared=False)  # so the server refuses single writes, not the whole script
        front = self._calls.pairs(list(keys))
        return evaluation(terms, "clear_front", front, [], declared=self._names.declared(()))

    def brackets(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the scripts around a HIMPORT SET, which replaces a whole value; an empty list if no key is covered."""
        keys = command.keys(arguments) or []
        if command.effect is not Effect.IMPORT or not keys or not any(map(self._coverage.covers, keys)):
            return []
        self._metrics.requests_rewritten_total["bracket"] += 1
        terms = self._server.own_terms(writes=True, takes_memory=True)
        names, declared, field = self._calls.triple(keys[0]), self._calls.declared(keys), secrets.token_hex(8).encode()
        present = "" if declared is None else self._calls.shadows(names)
        return [
            evaluation(terms, "bracket", names, [field, where], declared=declared, present=present)
            for where in (b"front", b"behind")
        ]

    def own_write(self, waiting: bytes) -> bytes:
        """Return a write that changes nothing, so that WAIT or WAITAOF has a write of this connection to wait for."""
        if self._names.slots is None and waiting == b"WAIT":
            return encode([b"PUBLISH", self._names.written, b""])
        # A PUBLISH is not in the append-only file, nor do cluster nodes replicate it since Redis 8.0 and Valkey 8.0.
        terms = self._server.own_terms(writes=True, takes_memory=False)
        return evaluation(terms, "write", [self._names.written], [])

    def trial(self, keys: list[bytes], answer: bytes) -> bytes:
        """Return a request without effect that returns `answer` as a status if the user may give the keys deadlines."""
        return evaluation(self._calls.reading, "may", self._calls.pairs(keys), [answer])
