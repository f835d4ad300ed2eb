"""Decide, before anything is parsed, whether a chunk may be forwarded unchanged, and over which connection.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.coverage.coverage import Coverage
from proxy.session.operations import Operation
from proxy.session.plain import Latest, frequent_reads, leased_check, plain_check, share_check
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
        latest: the operation of the last request that `shareable` found to be joint.
        long_lists: keys of lists too long to look for many members in one script.
    """

    def __init__(self, plain: set[bytes], rewriter: Rewriter, coverage: Coverage, batch: BatchParser) -> None:
        prefix = rewriter.names.prefix
        self._rewriter = rewriter
        self._coverage = coverage
        self._plain = plain_check(plain, coverage, prefix, batch)
        self._leased = leased_check(self._plain, coverage)
        self.reads = frequent_reads(prefix[:1])
        self.latest = Latest()
        self.shareable = share_check(coverage, prefix, batch, self._joint, self.latest)
        self.long_lists: set[bytes] = set()

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """A function that tells whether a chunk that begins with a request can be forwarded unchanged.

        Get it again when other proxies appear or disappear: the function changes.
        """
        return self._leased if self._coverage.shared else self._plain

    def _joint(self, request: list[bytes]) -> Operation | None:
        """Return the operation of a request that could go jointly with those of other clients."""
        if self._rewriter.names.slots is not None:
            return None  # a call is for one slot, and the requests of a turn rarely share a slot
        operation = self._rewriter.operations.read(request)
        if operation is not None and operation.delay:
            key = operation.key
            if key in self.long_lists or not self._coverage.is_confirmed(key):
                return None
        return operation
