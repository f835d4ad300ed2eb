"""What all sessions of a proxy stand on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from proxy.commands.table import Command
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.scripts.naming import Names as OwnNames
from proxy.session.alone import KeptCalls
from proxy.session.describe import Descriptions
from proxy.session.operations import Operation
from proxy.session.plain import (
    Latest,
    LinesCheck,
    frequent_reads,
    frequent_requests,
    leased_check,
    plain_check,
    share_check,
)
from proxy.session.rewrite import Rewriter
from proxy.session.streams import Streams
from proxy.session.turns import Turns
from proxy.wire.batch import BatchParser

PLAIN: Final[set[bytes]] = set()
"""Names of commands, as clients spell them, that need no look while they touch no covered key: found as they come."""

BLOCKERS: Final[set[bytes]] = set()
"""Likewise of those that need only to be noted, as they may keep what follows them from running."""


class Ground:
    """What all sessions of a proxy stand on.

    Args:
        rewriter: what puts other requests in place of some.
        coverage: the covered keys.
        prefix: what the reserved names begin with.
        request_limit: bytes of a request that may have to be held before it can be judged.
        guarded: whether to refuse requests that name the proxy's own keys.
        names: the names of those keys; where not given, nothing is done in the engine's place.
        refused: told the server's words, where it refuses to have members removed on a client's connection.
        metrics: where to count.
        section: returns the lines of the proxy's section of INFO.
        now: gives the server's clock, in Unix ms.

    Attributes:
        now: gives the server's clock, in Unix ms, the latest that it may be.
        frequent: matches the requests that most traffic is made of, and that name no reserved name.
        reads: matches those of them that read one key.
        lines: finds the inline requests that can go as they came.
        streams: the requests that are sent on while they arrive.
        descriptions: what COMMAND and INFO tell of the proxy.
        turns: how much of one connection is judged at once.
        kept: requests of the proxy's own that may be sent again.
        long_lists: keys of lists in which members are looked for one by one.
        latest: what the last request asks for of which `shareable` returned that it goes jointly with others.
        shareable: returns over which shared connection a chunk that begins where a request does may go.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        coverage: Coverage,
        prefix: bytes,
        request_limit: int,
        *,
        guarded: bool = True,
        names: OwnNames | None = None,
        refused: Callable[[bytes], None] = lambda _: None,
        metrics: Metrics | None = None,
        section: Callable[[], bytes] = bytes,
        now: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.rewriter = rewriter
        self.descriptions = Descriptions(section, rewriter.server.has)
        self.coverage = coverage
        self.alarm = rewriter.marks.alarm
        self.prefix = prefix
        self.request_limit = request_limit
        self.guarded = guarded
        self.names = names
        self.now = now
        self.refused = refused
        self.batch = BatchParser()
        self.kept = KeptCalls()
        self.streams = Streams()
        self.turns = Turns()
        self.long_lists: set[bytes] = set()
        self.frequent = frequent_requests(prefix[:1])
        self.reads = frequent_reads(prefix[:1])
        self.lines = LinesCheck(PLAIN, coverage, prefix)
        self._plain = plain_check(PLAIN, coverage, prefix, self.batch)
        self._leased = leased_check(self._plain, coverage)
        self.latest = Latest()
        self.shareable = share_check(coverage, prefix, self.batch, self._joint, self.latest)

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """Returns whether a chunk that begins where a request does, outside of a transaction, can go as it came.

        It is another one when there come to be other proxies, or none any more.
        """
        return self._leased if self.coverage.shared else self._plain

    def _joint(self, request: list[bytes]) -> Operation | None:
        """Return what a request asks for that could go jointly with those of other clients."""
        if self.names is None or self.names.slots is not None:
            return None  # a call is for keys of one slot, and hardly two of a turn would be
        operation = self.rewriter.operations.read(request)
        if operation is not None and operation.delay:
            key = operation.key
            if key in self.long_lists or not self.coverage.is_confirmed(key):
                return None
        return operation

    def command(self, name: bytes) -> Command | None:
        """Return what the table says of a command, by the name that a client gives it; learn which names are plain."""
        upper = name.upper()
        command = self.rewriter.command(upper)
        if name in PLAIN or name in BLOCKERS:
            return command
        if (
            (command is None or not command.always)
            and name in (upper, upper.lower(), upper.title())  # as libraries and people spell them
            and self.rewriter.server.has(upper)
        ):
            (BLOCKERS if self.rewriter.server.may_block(upper) else PLAIN).add(name)
        return command

    def may_block(self, name: bytes) -> bool:
        """Return whether a command may keep what follows it from running, by the name that a client gives it."""
        return name not in PLAIN and self.rewriter.server.may_block(name.upper())
