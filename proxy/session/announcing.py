"""Find the keys that must be covered and announced before a request may give them their first deadlines.

Its tests: tests/test_proxies.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from itertools import islice
from typing import Final

from proxy.commands.table import MARKING, Command, Effect
from proxy.session.errors import Refusal
from proxy.session.ground import Ground
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.standing import Standing
from proxy.session.transaction import LONGEST
from proxy.wire.request import Request, RequestReader

NOT_ANNOUNCED: Final = Refusal(
    b"ERR expiremember-proxy: other proxies could not be told of this key's first deadline: one does not answer,"
    b" or this proxy cannot reach the upstream for its own work; nothing was changed, try again",
    "not_announced",
)

LOOKED_AHEAD: Final = 1 << 20
"""How far to search for further requests after the current one, in bytes."""


EXPECTED_AT_MOST: Final = 64
"""How many requests of a transaction to search in advance: few, because the memory for their keys is not counted."""

_EXPIRING: Final = re.compile(
    rb"\n(P?EXPIREMEMBER(?:AT)?|(?:[HSZL]P?|FIELD)EXPIRE(?:AT)?|H[SG]ETEX|SADDEX)\r\n\$(\d{1,4})\r\n", re.IGNORECASE
)

_NEED_NOT: Final = frozenset((b"HGETEX", b"HSETEX", b"SADDEX"))
_TIME: Final = re.compile(rb"\r\n[EP]X(?:AT)?\r\n", re.IGNORECASE)
_SECONDS: Final = re.compile(rb"\r\n\$\d+\r\n(?:KEEPTTL\r\n\$\d+\r\n)?\d+\r\n", re.IGNORECASE)
"""The time after the key in Dragonfly's SADDEX, with KEEPTTL in front if given."""


def keys_expected(
    data: bytes, *, in_transaction: bool, lacks: Callable[[bytes], bool] = lambda _: True
) -> frozenset[bytes]:
    """Return the keys that may get deadlines from the transactions in a chunk.

    Requests queued earlier in the same transaction are then judged as if these keys had deadlines. Nothing is parsed: a
    value that looks like such a request adds a needless key, which does no harm. A request without its optional
    lifetime (`EX` …) adds a needless key too, if another request in the chunk has a lifetime.

    Args:
        data: the bytes received.
        in_transaction: whether a transaction is open at the beginning.
        lacks: returns whether the server itself lacks a command, given in upper case.
    """
    opens = in_transaction or b"\r\nMULTI\r\n" in data or b"\r\nmulti\r\n" in data
    if not opens or (
        b"EXPIRE" not in data and b"SETEX" not in data and b"GETEX" not in data and b"SADDEX" not in data
        and b"expire" not in data and b"setex" not in data and b"getex" not in data and b"saddex" not in data
    ):  # fmt: skip
        return frozenset()
    keys, timed = set(), None
    for found in islice(_EXPIRING.finditer(data), EXPECTED_AT_MOST):
        length, name = int(found[2]), found[1].upper()
        if length > LONGEST or not lacks(name):
            continue
        end = found.end() + length
        if name in _NEED_NOT:
            timed = _TIME.search(data) is not None if timed is None else timed
            if not timed and not (name == b"SADDEX" and _SECONDS.match(data, end)):
                continue
        keys.add(data[found.end() : end])
    return frozenset(keys)


class Announcing:
    """Finds the keys to which a connection's requests might give their first deadlines.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        reader: the reader of the connection's requests.
        owner: the connection's pipeline.

    Attributes:
        ahead: the received chunk, and the position in it after the request that is being judged; empty if the reader
            has the chunk.
        expected: keys to which transactions in the last bytes received might give deadlines.
    """

    __slots__ = ("_coverage", "_ground", "_owner", "_reader", "_standing", "ahead", "expected")

    def __init__(self, ground: Ground, standing: Standing, reader: RequestReader, owner: Pipeline) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._standing = standing
        self._reader = reader
        self._owner = owner
        self.ahead = b"", 0
        self.expected: Set[bytes] = frozenset()

    def expect(self, data: bytes, *, more: bool) -> None:
        """Update `expected` from received bytes; `more`: whether they follow bytes that wait for their turn."""
        found = keys_expected(
            data, in_transaction=self._standing.transaction is not None, lacks=self._ground.rewriter.lacks
        )
        self.expected = self.expected | found if more else found

    def question(self, command: Command | None, request: Request) -> Question | None:
        """Return the question that covers and announces the keys to which a request might give first deadlines.

        None if there are no such keys.
        """
        keys = self.unconfirmed(command, request)
        if not keys:
            return None
        entries = tuple(self._coverage.begin(keys, self._owner.mark))
        behind = self._ground.streams.of_others(self._owner)
        return Question(covers=entries, owner=self._standing, behind=behind, again=True)

    def unconfirmed(self, command: Command | None, request: Request) -> list[bytes]:
        """Return the keys of a request that must be covered and announced before it is sent."""
        if command is None or (command.effect not in MARKING and command.effect is not Effect.EXEC):
            return []
        transaction = self._standing.transaction
        if command.effect is Effect.EXEC:
            return self._coverage.unconfirmed(transaction.keys_given_deadlines) if transaction is not None else []
        if transaction is not None:
            return []  # the keys are announced before EXEC
        keys = self._coverage.unconfirmed(self._given_deadlines(command, request.arguments))
        if keys and not self._ground.rewriter.own.may_set(command, request.arguments):
            return []
        return keys if not keys or self._standing.may_expire(keys) else []

    def first_keys(self, arguments: list[bytes]) -> list[bytes]:
        """Return the keys to which a request might give deadlines."""
        command = self._ground.rewriter.command(arguments[0].upper())
        if command is None or not (keys := self._given_deadlines(command, arguments)):
            return []
        return keys if self._ground.rewriter.own.may_set(command, arguments) else []

    def _given_deadlines(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys to which a request gives deadlines, provided that its arguments set some."""
        if command.effect not in MARKING:
            return []
        keys = command.keys(arguments) or []
        if command.effect is Effect.EXPIRE:
            return keys if len(arguments) > 3 else []
        # A blind proxy does not know whether the source has deadlines; announcing would hold up every RENAME.
        return keys[-1:] if keys and self._coverage.is_certain(keys[0]) else []

    def keys_ahead(self) -> Iterator[bytes]:
        """Yield the keys that may get deadlines from requests not judged yet, even if the user lacks permission."""
        return (key for arguments in self.requests_ahead() for key in self.first_keys(arguments))

    def requests_ahead(self, most: int = LOOKED_AHEAD) -> Iterator[list[bytes]]:
        """Yield the requests after the one that is being judged, within `most` bytes."""
        data, position = self.ahead
        parsed = self._ground.batch.parse(data[position : position + most] or self._reader.ahead(most))
        for arguments in parsed[0] if parsed else ():
            if set(map(type, arguments)) == {bytes}:
                yield arguments
