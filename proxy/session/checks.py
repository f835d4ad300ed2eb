"""Decide, before anything is parsed, whether a chunk may be forwarded unchanged, and over which connection.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.coverage.coverage import Coverage
from proxy.session.joinable import Joinable
from proxy.session.plain import Shared, frequent_reads, leased_check, plain_check, share_check
from proxy.session.rewrite import Rewriter
from proxy.wire.batch import BatchParser


class Checks:
    """The checks that all sessions of a process share.

    Args:
        plain: names of commands that need no judging unless they touch a covered key.
        rewriter: reads the operations of requests.
        coverage: the covered keys.
        batch: parses chunks of plain requests.

    Attributes:
        reads: matches frequent requests that read one key and name no reserved name.
        shareable: returns the shared connection for a chunk that begins with a request.
        joinable: reads the requests that may go jointly with those of other clients.
    """

    def __init__(self, plain: set[bytes], rewriter: Rewriter, coverage: Coverage, batch: BatchParser) -> None:
        prefix = rewriter.names.prefix
        self._coverage = coverage
        self._plain = plain_check(plain, coverage, prefix, batch)
        self._leased = leased_check(self._plain, coverage)
        self.reads = frequent_reads(prefix[:1])
        self.shareable = share_check(coverage, prefix, batch)
        self.joinable = Joinable(rewriter, coverage, batch)

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """A function that returns whether a chunk that begins with a request can be forwarded unchanged.

        Read this property again when other proxies appear or disappear: the function changes.
        """
        return self._leased if self._coverage.shared else self._plain

    def is_shareable(self, chunk: bytes) -> bool:
        """Return whether a chunk that begins with a request can go over a shared connection."""
        kind = self.shareable(chunk)
        if kind < Shared.JOINT_WRITES:
            return kind is not Shared.NONE
        return self.joinable.one(chunk) is not None or self.joinable.few(chunk) is not None
