"""The hot path: find out, as fast as Python can, whether a chunk of requests can be forwarded unchanged.

Its tests: tests/test_wire.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cache
from typing import Final

from proxy.commands.dialects import TOGETHER
from proxy.commands.table import (
    BATCHED,
    FREQUENT,
    FREQUENT_READS,
    INDIFFERENT,
    OF_KEYS,
    PURE_READS,
    STRING_LIKE,
    is_indifferent,
)
from proxy.coverage.coverage import Coverage, lease_clock
from proxy.session.operations import MOST_ARGUMENTS, Operation
from proxy.wire.batch import BatchParser
from proxy.wire.lines import is_lines, lines_end
from proxy.wire.lines import names as names_in
from proxy.wire.pattern import requests_pattern
from proxy.wire.request import packed
from proxy.wire.runs import SIZES, Runs

LARGEST: Final = 16 * 1024
"""Maximum size of a chunk that is parsed here; a larger one is parsed in slices."""

BATCHED_RUNS: Final = Runs(spelled for name in BATCHED for spelled in (name, name.lower()))
"""Finds requests that may go together."""

SHORTEST_RUN: Final = 108
"""Minimum size of a chunk to search for runs, in bytes: most chunks have only one request."""

SMALL: Final = 1024
"""Maximum size of a chunk that may go over a shared connection."""


def _spelled(names: Iterable[bytes]) -> frozenset[bytes]:
    """Return the usual spellings of commands."""
    return frozenset(spelled for name in names for spelled in (name, name.lower(), name.title()))


PURE: Final = _spelled(PURE_READS)
"""The commands that only read."""

OF_ONE_KEY: Final = _spelled(FREQUENT_READS - {b"EXISTS", b"MGET"})
"""Frequent reads whose only key is their first argument."""

REPEATABLE: Final = _spelled(PURE_READS | OF_KEYS)
"""Reads that can be sent twice."""

STRINGS: Final = _spelled(STRING_LIKE)
"""Commands that change nothing if the key is a collection."""

FREE: Final = _spelled(INDIFFERENT)
"""Commands that are never judged, whatever keys they name."""

FREE_OF_BLIND: Final = FREE | STRINGS
"""Commands that are forwarded unchanged if a key is covered only because the proxy is blind. They may see a key that
exists only by due members."""

_LONGEST_READ: Final = 99
"""Longest argument of a read that is matched without being parsed, in bytes."""

_STAR: Final = 0x2A
_LEAST_PARTS: Final = 2 * SIZES[0] + 1
_MOST_PARTS: Final = 2 * MOST_ARGUMENTS + 1
"""Line ends in the shortest and the longest requests that may go together."""
_RETURN: Final = 0x0D


@cache
def frequent_requests(never: bytes) -> re.Pattern[bytes]:
    """Return a pattern for the most frequent requests, if none of their arguments begins with the byte `never`.

    Args:
        never: the first byte of the reserved names, with which few others begin.
    """
    names = sorted(FREQUENT, key=lambda name: (len(name), name))
    return requests_pattern((spelled for name in names for spelled in (name, name.lower())), never)


@cache
def frequent_reads(never: bytes) -> re.Pattern[bytes]:
    """Return a pattern for short requests that read one key and can be sent twice. They are easy to count."""
    names = sorted(OF_ONE_KEY & PURE, key=lambda name: (len(name), name))
    spelled = (name for name in names if name != name.title())
    return requests_pattern(spelled, never, longest=_LONGEST_READ, lines=False)


class LinesCheck:
    """Finds out whether inline requests need no judging.

    Args:
        plain: the commands that need no judging unless they touch a covered key.
        coverage: the covered keys.
        prefix: what the reserved names begin with.
    """

    __slots__ = ("_coverage", "_is_reserved", "_plain")

    def __init__(self, plain: set[bytes], coverage: Coverage, prefix: bytes) -> None:
        self._coverage = coverage
        self._is_reserved = re.compile(re.escape(prefix)).search
        self._plain = plain

    def front(self, chunk: bytes, most: int) -> int:
        """Return how many bytes at the front need no judging: none, or all lines that end within `most`."""
        end = lines_end(chunk, most)
        return end if end and self.needs_no_look(chunk[:end]) else 0

    def needs_no_look(self, lines: bytes) -> bool:
        """Return whether lines of plain words can be forwarded unchanged. Nothing in them is quoted."""
        used = names_in(lines)
        if not used <= self._plain or self._is_reserved(lines):
            return False
        return used <= FREE or not self._coverage.touches([lines.split()])


def plain_check(plain: set[bytes], coverage: Coverage, prefix: bytes, batch: BatchParser) -> Callable[[bytes], bool]:
    """Make the check whether a chunk can be forwarded unchanged.

    Args:
        plain: the names of commands that need no judging unless they touch a covered key.
        coverage: the covered keys.
        prefix: what the reserved names begin with.
        batch: parses what does not match the frequent form.

    Returns:
        A function of a chunk that begins with a request. True: the chunk is whole requests that need no judging. False
        means only that the chunk must be judged.
    """
    # Everything is bound once: each attribute access and call costs one per cent of a request. Requests of the frequent
    # form are not even parsed, and their values are not looked at.
    framed = frequent_requests(prefix[:1]).fullmatch
    reads = frequent_reads(prefix[:1]).fullmatch
    parse = batch.parse_whole
    reserved = re.compile(re.escape(prefix)).search
    first_of_prefix = prefix[0]
    lines = LinesCheck(plain, coverage, prefix)
    may_be_run = BATCHED_RUNS.key_at_front

    def check(chunk: bytes) -> bool:
        if coverage.blind:
            pass
        elif coverage.search(chunk):
            if reads(chunk) or (len(chunk) >= SHORTEST_RUN and may_be_run(chunk)):
                return False  # guarded reads, or requests that go together: do not parse them one by one
        elif framed(chunk):
            return True
        if len(chunk) > LARGEST or (first_of_prefix in chunk and reserved(chunk)):
            return False
        if chunk[0] != _STAR:
            return is_lines(chunk) is not None and lines.needs_no_look(chunk)
        requests = parse(chunk)
        if requests is None:
            return False
        try:
            used = {request[0] for request in requests}
            if not used <= plain:
                return False
            free = FREE_OF_BLIND if coverage.blind and not coverage.search(chunk) else FREE
            return used <= free or not coverage.touches(
                request for request in requests if request[0] not in free and not is_indifferent(request)
            )
        except (TypeError, AttributeError):  # an array in the place of an argument: leave it to the reader
            return False

    return check


def leased_check(check: Callable[[bytes], bool], coverage: Coverage) -> Callable[[bytes], bool]:
    """Make the check for use with other proxies: no chunk is plain once the lease has run out.

    Args:
        check: the check for a single proxy.
        coverage: the covered keys.

    Returns:
        A check that is also False once the lease has run out.
    """
    clock = lease_clock

    def leased(chunk: bytes) -> bool:
        return clock() < coverage.trusted_until and check(chunk)

    return leased


class Shared(IntEnum):
    """The shared connections over which a chunk may go.

    Reads have separate connections, because the server may hold up only writes (CLIENT PAUSE WRITE). Guarded reads
    go behind a request for the next deadline of their keys. Joint requests, on members with deadlines, go as one call
    of a script.
    """

    NONE = 0
    WRITES = 1
    READS = 2
    GUARDED_READS = 3
    JOINT_WRITES = 4
    JOINT_READS = 5


class Latest:
    """The operation of the last request that `share_check` found to be joint.

    Attributes:
        operation: the operation.
    """

    __slots__ = ("operation",)

    operation: Operation


def share_check(
    coverage: Coverage,
    prefix: bytes,
    batch: BatchParser,
    read: Callable[[list[bytes]], Operation | None] = lambda _: None,
    latest: Latest | None = None,
) -> Callable[[bytes], Shared]:
    """Make the function that chooses the shared connection for a chunk.

    Args:
        coverage: the covered keys.
        prefix: what the reserved names begin with.
        batch: parses what does not match the frequent form.
        read: returns the operation of a request that could go jointly with others.
        latest: gets that operation.

    Returns:
        A function of a chunk that begins where a request does. Unless it returns `NONE` the chunk is one whole request,
        a frequent one of few bytes. With `READS` and `WRITES` it touches no covered key, as far as is known. A key may
        become covered before the chunk is sent, so check again then. With `JOINT_…` a script replaces it.
    """
    framed = frequent_requests(prefix[:1]).fullmatch
    parse = batch.parse_whole
    reserved = re.compile(re.escape(prefix)).search
    none, writes, reads, guarded, joint_writes, joint_reads = Shared
    joint = {spelling for name in BATCHED | TOGETHER for spelling in (name, name.lower())}
    latest = latest or Latest()
    spelled = {spelling for name in FREQUENT for spelling in (name, name.lower())}
    reading = {spelling for name in FREQUENT_READS for spelling in (name, name.lower())}
    guardable = reading & OF_ONE_KEY

    def check(chunk: bytes) -> Shared:
        # "\r\n*" may begin a second request, or be part of a value: without it the chunk is one request.
        if len(chunk) > SMALL or b"\r\n*" in chunk or coverage.blind:
            return none
        covered = coverage.search(chunk)
        if framed(chunk):
            # `*2\r\n$3\r\nGET\r\n`: the name begins at 8, or at 9 if its length has two digits.
            name = chunk[8 : chunk[5] - 40] if chunk[6] == _RETURN else chunk[9 : 10 * chunk[5] + chunk[6] - 519]
            if not covered:
                return reads if name in reading else writes
            if name in guardable:
                return guarded  # if only a value looks like a covered key, the guard is needless, but harmless
        if chunk[0] != _STAR:
            return none
        parts = chunk.split(b"\r\n", _MOST_PARTS)
        if len(parts) > _LEAST_PARTS and parts[2] in joint:
            request = parts[2:-1:2]
            operation = read(request) if packed(request) == chunk else None  # else an argument has line ends
            if operation is not None and not operation.key.startswith(prefix):
                form = operation.form
                if form.of_own or coverage.covers(operation.key):
                    latest.operation = operation
                    return joint_writes if form.terms.writes else joint_reads
        if reserved(chunk):
            return none
        requests = parse(chunk)
        if requests is None or len(requests) != 1:
            return none
        try:
            name = requests[0][0]
            if name not in spelled:
                return none
            if not coverage.touches(requests):
                return reads if name in reading else writes
            return guarded if name in guardable and chunk[2] == _RETURN else none
        except (TypeError, AttributeError):  # an array in the place of an argument
            return none

    return check
