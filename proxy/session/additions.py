"""Find the keys to which a request might add members unchecked: no script checks which of them are absent.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from proxy.commands.table import BLIND, Command, Effect
from proxy.coverage.coverage import Coverage
from proxy.session.script_calls import UNPACKED
from proxy.wire.request import Kind, Request


def blind_keys(command: Command, request: Request, *, limited: bool) -> list[bytes]:
    """Return the keys to which a request might add members unchecked; `limited`: as `Standing.limited`."""
    effect = command.effect
    if limited and effect is Effect.MOVE_MEMBER:
        return (command.keys(request.arguments) or [])[1:]
    if limited and effect is Effect.ADD:
        return command.keys(request.arguments) or []
    if effect in BLIND or (effect is Effect.ADD and request.count > UNPACKED):
        return command.keys(request.arguments) or []
    return []


def is_count_by_script(command: Command, request: Request) -> bool:
    """Return whether a request is whole and has `Effect.COUNT`: then a script can replace the request, provided that
    its reply can be amended."""
    return command.effect is Effect.COUNT and request.kind is Kind.WHOLE


def absent(
    coverage: Coverage, command: Command, request: Request, *, limited: bool, amends: bool = False
) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
    """Return the covered keys to which a request might add members unchecked, each with those members (None for any).

    `amends`: whether the request's reply can be amended.
    """
    if amends and is_count_by_script(command, request):
        return []
    arguments = request.arguments
    keys = blind_keys(command, request, limited=limited)
    members: tuple[bytes, ...] | None = None
    if keys and command.members is not None and request.kind is Kind.WHOLE:
        positions = command.members(arguments, request.count)
        if positions is not None:
            members = tuple(arguments[positions.start : positions.stop : positions.step])
    return [(key, members) for key in dict.fromkeys(keys) if coverage.covers(key)]
