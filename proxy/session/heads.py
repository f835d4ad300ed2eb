"""Decide which long requests can be judged by their head, so that the rest need not be buffered.

Its tests: tests/test_streams.py.
"""

from __future__ import annotations

from typing import assert_never

from proxy.commands.described import ServerCommands
from proxy.commands.table import COMMANDS, STREAMED, Command, Effect
from proxy.coverage.coverage import Coverage
from proxy.session.moves import Moves
from proxy.session.script_calls import UNPACKED
from proxy.wire.request import strict_integer


class Heads:
    """Decides whether the head of a request is enough to judge it.

    Args:
        prefix: the beginning of the names of the proxy's own keys.
        coverage: the covered keys.
        server: the server's commands.
        moves: knows the requests that move keys.
    """

    def __init__(self, prefix: bytes, coverage: Coverage, server: ServerCommands, moves: Moves) -> None:
        self._prefix = prefix
        self._coverage = coverage
        self._server = server
        self._moves = moves

    def are_enough(self, arguments: list[bytes], count: int) -> bool:
        """Return whether the received part of a long request is enough to judge it.

        Args:
            arguments: the arguments that are complete.
            count: how many the request has in all.
        """
        if len(arguments) < 2:
            return False
        name = arguments[0].upper()
        command = COMMANDS.get(name)
        if command is not None and command.effect is Effect.SCRIPT:
            return self._are_keys_there(arguments)
        if self._server.dialect(name) is not None:
            return False
        if command is None and not self._server.accepts(name, count):
            return True  # the server will refuse it
        if self._moves.are_made_by(name):
            return self._server.has_one_key_in_front(name)
        if not (name in STREAMED or self._server.has_one_key_in_front(name)) or self._are_reserved(arguments[1:2]):
            return False
        if command is None:
            return True
        match command.effect:
            case Effect.ADD | Effect.COUNT | Effect.REMOVE | Effect.REPLACE | Effect.VANISH:
                is_covered = self._coverage.covers(arguments[1])
                return not is_covered or self._is_script_determined(command, arguments, count)
            case Effect.REMOVE_UNNAMED | Effect.FIELD_EXPIRY | Effect.LOGIN | Effect.CONNECTION:
                return True
            case Effect.EXPIRE | Effect.LIFETIME | Effect.KEYSPACE | Effect.READ | Effect.DATABASE | Effect.WAIT:
                return False
            case Effect.MOVE_MEMBER | Effect.RENAME | Effect.COPY | Effect.MOVE | Effect.ARRIVE | Effect.SCRIPT:
                return False
            case Effect.IMPORT | Effect.WATCH:
                return False
            case Effect.MULTI | Effect.EXEC | Effect.DISCARD | Effect.DESCRIBE | Effect.MIGRATE:
                return False
        assert_never(command.effect)

    def _are_keys_there(self, arguments: list[bytes]) -> bool:
        """Return whether all keys of a script call have come, and none of them is reserved."""
        number = strict_integer(arguments[2]) if len(arguments) > 2 else None
        if number is None or not 0 <= number <= len(arguments) - 3:  # check the keys only when all have come
            return False
        return not self._are_reserved(arguments[3 : 3 + number])

    def _are_reserved(self, keys: list[bytes]) -> bool:
        return any(key.startswith(self._prefix) for key in keys)

    @staticmethod
    def _is_script_determined(command: Command, arguments: list[bytes], count: int) -> bool:
        """Return whether a script can replace an arriving request, and the positions of its members are known."""
        if count > UNPACKED:
            return False
        if command.members is None:
            return True
        try:
            command.members(arguments, count)
        except IndexError:
            return False
        return True
