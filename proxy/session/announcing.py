"""Which keys other proxies have to be told of before a request goes, as it may give them first or near deadlines."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from proxy.commands.lifetime import deadline_of
from proxy.commands.table import COMMANDS, MARKING, Command, Effect
from proxy.session.ground import Ground
from proxy.session.known import ASK_MS, NEAR_MS
from proxy.session.question import Question
from proxy.session.rewrite import Refusal
from proxy.session.standing import Standing
from proxy.session.transaction import LONGEST
from proxy.wire.request import Request, RequestReader

NOT_ANNOUNCED: Final = Refusal(
    b"ERR expiremember-proxy: other proxies could not be told of this key's first deadline: one does not answer,"
    b" or this proxy cannot reach the upstream for its own work; nothing was changed, try again",
    "not_announced",
)

LOOKED_AHEAD: Final = 1 << 20
"""Bytes that are searched for first deadlines to be announced together with one that is about to be sent."""


EXPECTED_AT_MOST: Final = 64
"""Requests behind others of a transaction that are looked at. The keys are held without being accounted for."""

_EXPIRING: Final = re.compile(rb"EXPIREMEMBER(?:AT)?\r\n\$(\d{1,4})\r\n", re.IGNORECASE)

_NOTHING: Final[Mapping[bytes, bool]] = MappingProxyType({})


def keys_expected(data: bytes, *, in_transaction: bool) -> frozenset[bytes]:
    """Return the keys to which requests within transactions may give deadlines, as far as they have come together.

    Requests that are queued before those can be judged as if the keys had deadlines. Nothing is parsed: what only looks
    like such a request makes a key count so for no good reason.

    Args:
        data: what has come.
        in_transaction: whether one is open where it begins.
    """
    opens = in_transaction or b"\r\nMULTI\r\n" in data or b"\r\nmulti\r\n" in data
    if not opens or (b"EXPIREMEMBER" not in data and b"expiremember" not in data):
        return frozenset()
    keys = set()
    for found in islice(_EXPIRING.finditer(data), EXPECTED_AT_MOST):
        length = int(found[1])
        if length <= LONGEST:
            keys.add(data[found.end() : found.end() + length])
    return frozenset(keys)


class Announcing:
    """Finds the keys that a connection's requests make it necessary to announce.

    Args:
        ground: what all sessions stand on.
        standing: the state of the connection.
        reader: the reader of the connection's requests.

    Attributes:
        ahead: what has come behind the request that is being judged, where the reader has not got it: bytes, and where
            in them that begins.
    """

    __slots__ = ("_ground", "_known", "_reader", "_standing", "ahead")

    def __init__(self, ground: Ground, standing: Standing, reader: RequestReader) -> None:
        self._ground = ground
        self._known = ground.known
        self._standing = standing
        self._reader = reader
        self.ahead = b"", 0

    def question(self, command: Command | None, request: Request, now: float, *, told: bool) -> Question | None:
        """Have other proxies told of keys that may get first or near deadlines; of those behind in the pipeline too.

        `told`: whether they have been told of near ones, as far as they could be.
        """
        if command is None or (command.effect not in MARKING and command.effect is not Effect.EXEC):
            return None
        keys, near = self.unannounced(command, request), [] if told else self._near(command, request, now)
        if not keys and not near:
            return None
        first = bool(keys)
        # Key → whether what it gets may be near. What is renamed further down the pipeline takes it along.
        coming = dict.fromkeys(keys, False) | dict.fromkeys(near, True)
        for arguments in self.requests_ahead():
            is_near = bool(self._near_keys(arguments, now, coming))
            for key in self._first_keys(arguments, coming):
                coming[key] = coming.get(key, False) or is_near
        keys = self._known.unannounced(coming)
        near = self._known.unstirred(key for key, is_near in coming.items() if is_near)
        announce = tuple(dict.fromkeys((*keys, *near)))
        return Question(announce=announce, first=first, near=frozenset(near), again=True)

    def _near(self, command: Command | None, request: Request, now: float) -> list[bytes]:
        """Return the keys of a request to whose near deadlines other proxies are not prepared."""
        transaction = self._standing.transaction
        if command is not None and command.effect is Effect.EXEC and transaction is not None:
            marked = transaction.marked.items()
            keys = [key for key, delay in marked if delay <= NEAR_MS or self._known.comes_soon(key, now)]
        else:
            keys = self._near_keys(request.arguments, now)
        return self._known.unstirred(dict.fromkeys(keys))

    def _near_keys(self, arguments: list[bytes], now: float, coming: Mapping[bytes, bool] = _NOTHING) -> list[bytes]:
        """Return those keys of a request that may get deadlines which pass before others hear of it."""
        keys = self._first_keys(arguments, coming)
        if not keys:
            return []
        command = COMMANDS[arguments[0].upper()]
        if command.effect is Effect.EXPIRE:
            deadline = deadline_of(command.name, arguments, now)
        else:
            source = (command.keys(arguments) or [b""])[0]
            deadline = now if coming.get(source) else self._known.deadlines.get(source, math.inf)
        return keys if now - ASK_MS < deadline <= now + NEAR_MS else []

    def unannounced(self, command: Command | None, request: Request) -> list[bytes]:
        """Return the keys of a request that other proxies have to know before it goes."""
        if not self._known.shared:
            return []
        transaction = self._standing.transaction
        if command is not None and command.effect is Effect.EXEC and transaction is not None:
            return self._known.unannounced(dict.fromkeys(transaction.marked))
        return self._known.unannounced(self._first_keys(request.arguments))

    def _first_keys(self, arguments: list[bytes], coming: Container[bytes] = ()) -> list[bytes]:
        """Return the keys to which a request may give deadlines, unless the server may refuse that to the user."""
        keys = self.first_keys(arguments, coming)
        return keys if not keys or self._standing.may_expire(keys) else []

    def first_keys(self, arguments: list[bytes], coming: Container[bytes] = ()) -> list[bytes]:
        """Return the keys to which a request may give deadlines; some are `coming` to others before it."""
        command = COMMANDS.get(arguments[0].upper())
        if command is None or command.effect not in MARKING:
            return []
        keys = command.keys(arguments) or []
        if command.effect is Effect.EXPIRE:
            return keys if len(arguments) > 3 else []
        # While it is blind it does not know of the source: to wait for others then would hold up every RENAME.
        return keys[-1:] if keys and (keys[0] in self._known.deadlines or keys[0] in coming) else []

    def keys_ahead(self) -> Iterator[bytes]:
        """Give the keys to which requests may give deadlines that have come, and have not been judged yet.

        Also those of whom the server may refuse it to the user.
        """
        return (key for arguments in self.requests_ahead() for key in self.first_keys(arguments))

    def requests_ahead(self, most: int = LOOKED_AHEAD) -> Iterator[list[bytes]]:
        """Give the requests that have come behind the one that is being judged, in so many bytes."""
        data, position = self.ahead
        parsed = self._ground.batch.parse(data[position : position + most] or self._reader.ahead(most))
        for arguments in parsed[0] if parsed else ():
            if set(map(type, arguments)) == {bytes}:
                yield arguments
