"""The objects that all sessions of a process share.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from proxy.commands.table import Command
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.session.checks import Checks
from proxy.session.describe import Descriptions
from proxy.session.plain import LinesCheck, frequent_requests
from proxy.session.removals import Removals
from proxy.session.rewrite import Rewriter
from proxy.session.streams import Streams
from proxy.session.turns import Turns
from proxy.wire.batch import BatchParser

PLAIN: Final[set[bytes]] = set()
"""Names of commands, as clients spell them, that may be forwarded unjudged unless they touch a covered key. Learned
from traffic."""

BLOCKERS: Final[set[bytes]] = set()
"""Like `PLAIN`, for commands that may block: they are noted, because requests after them may have to wait."""


class Ground:
    """The objects that all sessions of a process share.

    Args:
        rewriter: replaces requests.
        coverage: the covered keys.
        request_limit: maximum size, in bytes, of a request that must be buffered before it can be judged.
        guarded: whether to refuse requests that name the proxy's own keys.
        refused: called with the server's error when the server refuses a removal on a client's connection.
        section: returns the lines of the proxy's section of INFO.
        now: returns the latest possible server time, in Unix ms.

    Attributes:
        names: the names of the proxy's own keys.
        prefix: the beginning of the names of the proxy's own keys.
        now: returns the latest possible server time, in Unix ms.
        batch: parses chunks of plain requests.
        checks: decides, before anything is parsed, whether a chunk can be forwarded unchanged.
        frequent: matches the most frequent requests if they contain no reserved name.
        lines: finds inline requests that can be forwarded unchanged.
        removals: encodes the scripts that remove due members on clients' own connections.
        streams: the uploads and long pipelines of all connections.
        descriptions: adds the proxy to the replies to COMMAND and INFO.
        turns: limits how much of one connection is judged at once.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        coverage: Coverage,
        request_limit: int,
        *,
        guarded: bool = True,
        refused: Callable[[bytes], None] = lambda _: None,
        section: Callable[[], bytes] = bytes,
        now: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.rewriter = rewriter
        self.coverage = coverage
        self.names = rewriter.names
        self.prefix = prefix = rewriter.names.prefix
        self.request_limit = request_limit
        self.guarded = guarded
        self.now = now
        self.batch = BatchParser()
        self.checks = Checks(PLAIN, rewriter, coverage, self.batch)
        self.frequent = frequent_requests(prefix[:1])
        self.lines = LinesCheck(PLAIN, coverage, prefix)
        self.removals = Removals(rewriter.names, rewriter.calls, rewriter.metrics, refused)
        self.streams = Streams()
        self.descriptions = Descriptions(section, rewriter.server.has)
        self.turns = Turns()

    @property
    def metrics(self) -> Metrics:
        """The counters of requests."""
        return self.rewriter.metrics

    @property
    def long_lists(self) -> set[bytes]:
        """As `Joinable.long_lists`."""
        return self.checks.joinable.long_lists

    def command(self, name: bytes) -> Command | None:
        """Look up a command by the name that a client sent; add that name to `PLAIN` or `BLOCKERS` if possible."""
        upper = name.upper()
        command = self.rewriter.command(upper)
        if name in PLAIN or name in BLOCKERS:
            return command
        if (
            (command is None or not command.always)
            and name in (upper, upper.lower(), upper.title())  # the spellings of libraries and people
            and self.rewriter.server.has(upper)
        ):
            (BLOCKERS if self.rewriter.server.may_block(upper) else PLAIN).add(name)
        return command

    def may_block(self, name: bytes) -> bool:
        """Return whether a command may block; `name`: as a client sent it."""
        return name not in PLAIN and self.rewriter.server.may_block(name.upper())
