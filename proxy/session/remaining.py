"""Answer `TTL key member` with plain commands, for a user who may not run every script.

Its tests: tests/test_acl.py.

A user with only read permission may run no script, because the server treats the keys of EVAL as written. The first
step reads the key's type and the member's deadline. The second step reads them again and computes the reply. If the
deadline was void, the second step also looks for the member itself, with the command for that type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from proxy.commands.table import Command, Effect
from proxy.scripts.naming import Names
from proxy.session.question import Question
from proxy.session.standing import Standing
from proxy.wire.frames import frames
from proxy.wire.request import Request, encode

_ASKS: Final = {b"set": b"SISMEMBER", b"hash": b"HEXISTS", b"zset": b"ZSCORE", b"list": b"LPOS"}
_ABSENT: Final = frozenset((b":0\r\n", b"$-1\r\n", b"_\r\n"))


class Remaining:
    """Answers `TTL key member` and `PTTL key member` on one connection.

    Args:
        names: the names of the proxy's own keys.
        standing: the state of the connection.
        now: returns the latest possible server time, in Unix ms.
    """

    __slots__ = ("_asked", "_kind", "_names", "_now", "_standing", "_void")

    def __init__(self, names: Names, standing: Standing, now: Callable[[], float]) -> None:
        self._names = names
        self._standing = standing
        self._now = now
        self._asked: Request | None = None  # the request for which the first step was sent
        self._kind = b""  # the type of that request's key
        self._void = False  # whether its member's deadline is void

    def question(self, command: Command | None, request: Request) -> tuple[bytes, Question] | None:
        """Return the bytes to send before a request, and the question to wait for; None if not needed."""
        if command is None or not self._concerns(command, request) or self._asked is request:
            return None

        def hear(said: bytes) -> bytes:
            replies, pushes = _split(said)
            kind, deadline = _looked(replies)
            self._kind, self._void = kind, deadline < 0
            return pushes

        self._asked, self._kind, self._void = request, b"", False
        look = self._standing.replies_for_own().enclose(self._look(request), hear, replies=2)
        return look, Question(replied=True, again=True)

    def instead(self, command: Command, request: Request) -> bytes | None:
        """Return the bytes to send instead of a request whose question was answered; None for any other request."""
        if self._asked is not request or not self._concerns(command, request):
            return None
        _, key, member = request.arguments
        unit = 1000 if command.name == b"TTL" else 1
        self._asked, kind = None, self._kind
        ask = _ASKS.get(kind) if self._void else None

        def hear(said: bytes) -> bytes:
            replies, pushes = _split(said)
            error = next((reply for reply in replies if reply[:1] == b"-" and reply[:10] != b"-WRONGTYPE"), None)
            return pushes + (error or b":%d\r\n" % _left(replies, kind, unit, self._now()))

        sent = self._look(request) + (encode([ask, key, member]) if ask else b"")
        return self._standing.replies_for_own().enclose(sent, hear, replies=3 if ask else 2)

    def _concerns(self, command: Command, request: Request) -> bool:
        """Return whether this class answers a request: none in a transaction, where the server cannot be queried."""
        standing = self._standing
        return (
            command.effect is Effect.LIFETIME
            and command.name in (b"TTL", b"PTTL")
            and request.count == 3
            and self._names is not None
            and standing.limited
            and standing.transaction is None
            and standing.askable
            and not standing.is_stranger
            and not standing.rights.confinement
        )

    def _look(self, request: Request) -> bytes:
        assert self._names is not None
        _, key, member = request.arguments
        return encode([b"TYPE", key]) + encode([b"ZSCORE", self._names.shadow(key), member])


def _split(said: bytes) -> tuple[list[bytes], bytes]:
    """Return the replies in the server's output, and the pushes between them."""
    parts = frames(said)
    return [part for part in parts if part[:1] != b">"], b"".join(part for part in parts if part[:1] == b">")


def _looked(replies: list[bytes]) -> tuple[bytes, float]:
    """Return the type of the key, and the deadline as stored in the shadow; infinite if there is none."""
    kind, score = (*replies, b"", b"")[:2]
    number = score.split(b"\r\n")[-2] if score[:1] == b"$" and score[:2] != b"$-" else score[1:-2]
    return kind[1:-2], float(number) if score[:1] in (b"$", b",") and score[:2] != b"$-" else math.inf


def _left(replies: list[bytes], kind: bytes, unit: int, now: float) -> int:
    """Return the time left, as `ttl.lua` would. `kind`: the key's type in the first step."""
    found, deadline = _looked(replies)
    if found == b"none":
        return -2
    if deadline == math.inf or found not in _ASKS:
        return -1
    if deadline < 0:
        if len(replies) < 3 or found != kind or replies[2] not in _ABSENT:
            return -1
        deadline = -deadline
    left = math.ceil(deadline) - now if deadline < math.inf else deadline
    return -1 if left <= 0 or left == math.inf else math.floor((left + unit / 2) / unit)
