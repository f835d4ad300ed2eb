"""Hide the proxy's own keys from commands that show all keys: KEYS, SCAN, DBSIZE and RANDOMKEY.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from proxy.commands.described import ServerCommands
from proxy.commands.table import Command
from proxy.coverage.coverage import Coverage
from proxy.scripts.naming import Names
from proxy.session.globs import may_match_beginning
from proxy.session.script_calls import ScriptCalls
from proxy.wire.request import Request


class Keyspace:
    """Replaces KEYS, SCAN, DBSIZE and RANDOMKEY by scripts while the proxy's own keys may exist.

    Args:
        names: the names of the proxy's own keys.
        coverage: knows whether the proxy's own keys may exist.
        server: the server's commands.
        calls: encodes the scripts.
    """

    def __init__(self, names: Names, coverage: Coverage, server: ServerCommands, calls: ScriptCalls) -> None:
        self._names = names
        self._coverage = coverage
        self._server = server
        self._calls = calls

    def instead(self, command: Command, request: Request) -> bytes | None:
        """Return what to send instead of a request; None to forward it unchanged."""
        if not self._coverage.ever and not self._coverage.blind:
            return None
        name, size, terms = command.name, request.count, self._server.terms(command.name)
        if name == b"DBSIZE" and size == 1 and (slots := self._names.slots) is not None:
            return self._calls.replacing(
                terms._replace(across=True),
                "dbsize_of_slots",
                [],
                [self._names.lease, *map(self._names.index_of, slots.indexed)],
            )
        if name == b"DBSIZE" and size == 1:
            names = self._names
            own = [names.index, names.lease, names.events, names.covered, names.owed]
            return self._calls.replacing(terms, "dbsize", own, [])
        if name == b"RANDOMKEY" and size == 1:
            return self._calls.replacing(terms, "randomkey", [], [self._names.prefix])
        if not self._may_show_own(request):
            return None
        if name == b"KEYS" and size == 2:
            return self._calls.wrapping(command, "keys", [], [self._names.prefix], request)
        if name == b"SCAN" and size >= 2:
            return self._calls.wrapping(command, "scan", [], [self._names.prefix], request)
        if name == b"CLUSTERSCAN" and size >= 2:  # the cursor contains the slot
            return self._calls.wrapping(command, "scan", request.arguments[1:2], [self._names.prefix], request)
        return None

    def _may_show_own(self, request: Request) -> bool:
        """Return whether the pattern of KEYS or SCAN, if there is one, may match the proxy's own keys."""
        arguments = request.arguments
        patterns = arguments[1:2]
        if arguments[0].upper() != b"KEYS":
            # Options come in pairs, and the last MATCH counts.
            patterns = [arguments[place + 1] for place in range(2, len(arguments) - 1, 2)
                        if arguments[place].upper() == b"MATCH"][-1:]  # fmt: skip
        return not patterns or may_match_beginning(patterns[0], self._names.prefix)
