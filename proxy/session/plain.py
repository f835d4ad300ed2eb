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
    COMMANDS,
    FREQUENT,
    FREQUENT_READS,
    INDIFFERENT,
    OF_KEYS,
    OF_SEVERAL_KEYS,
    PURE_READS,
    STRING_LIKE,
    is_indifferent,
)
from proxy.coverage.coverage import Coverage, lease_clock
from proxy.session.operations import MOST_ARGUMENTS, OTHER_WRITES
from proxy.wire.batch import BatchParser
from proxy.wire.lines import is_lines, lines_end
from proxy.wire.lines import names as names_in
from proxy.wire.pattern import requests_pattern
from proxy.wire.request import bulk, encode
from proxy.wire.runs import SIZES, Runs

LARGEST: Final = 16 * 1024
"""Maximum size of a chunk that is parsed here, in bytes; a larger one is parsed in slices."""

BATCHED_RUNS: Final = Runs(spelled for name in BATCHED for spelled in (name, name.lower()))
"""Finds runs of requests that may go together."""

MULTI: Final = frozenset((b"MULTI", b"multi"))
EXEC: Final = frozenset((b"EXEC", b"exec"))
"""The names around transactions, as clients spell them."""

SHORTEST_RUN: Final = 108
"""Minimum size of a chunk to search for runs, in bytes: most chunks have only one request."""

SMALL: Final = 1024
"""Maximum size of a chunk that may go over a shared connection, in bytes."""


def _spelled(names: Iterable[bytes]) -> frozenset[bytes]:
    """Return the usual spellings of commands."""
    return frozenset(spelled for name in names for spelled in (name, name.lower(), name.title()))


PURE: Final = _spelled(PURE_READS)
"""The commands that only read."""

OF_ONE_KEY: Final = _spelled(FREQUENT_READS - {b"EXISTS", b"MGET"})
"""Frequent reads whose only key is their first argument."""

SEVERAL_KEYS: Final = _spelled(OF_SEVERAL_KEYS)
"""Commands that may have several keys, or whose key is not their first argument. They can be sent twice, at least if
they changed nothing the first time."""

REPEATABLE: Final = _spelled(PURE_READS | OF_KEYS)
"""Reads that can be sent twice."""

STRINGS: Final = _spelled(STRING_LIKE)
"""Commands that change nothing if the key is a collection."""

FREE: Final = _spelled(INDIFFERENT)
"""Commands that are never judged, whatever keys they name."""

FREE_OF_BLIND: Final = FREE | STRINGS
"""Commands that are forwarded unchanged if a key is covered only because the proxy is blind. They may then see a key
whose members are all due."""

_LONGEST_READ: Final = 99
"""Longest argument of a read that is matched without being parsed, in bytes."""

_STAR: Final = 0x2A
_SHORTEST: Final = 11
"""Size of the shortest request that has a command: `*1\\r\\n$1\\r\\na\\r\\n`."""
_RETURN: Final = 0x0D


@cache
def frequent_requests(never: bytes) -> re.Pattern[bytes]:
    """Return a pattern for the most frequent requests, if none of their arguments begins with the byte `never`.

    Args:
        never: the first byte of the reserved names; few other arguments begin with it.
    """
    names = sorted(FREQUENT, key=lambda name: (len(name), name))
    return requests_pattern((spelled for name in names for spelled in (name, name.lower())), never)


@cache
def frequent_reads(never: bytes) -> re.Pattern[bytes]:
    """Return a pattern for short reads of one key that can be sent twice, without line ends in their arguments: such
    reads are easy to count."""
    names = sorted(OF_ONE_KEY & PURE, key=lambda name: (len(name), name))
    spelled = (name for name in names if name != name.title())
    return requests_pattern(spelled, never, longest=_LONGEST_READ, lines=False)


class LinesCheck:
    """Finds the inline requests that need no judging.

    Args:
        plain: the commands that need no judging unless they touch a covered key.
        coverage: the covered keys.
        prefix: the beginning of the reserved names.
    """

    __slots__ = ("_coverage", "_is_reserved", "_plain")

    def __init__(self, plain: set[bytes], coverage: Coverage, prefix: bytes) -> None:
        self._coverage = coverage
        self._is_reserved = re.compile(re.escape(prefix)).search
        self._plain = plain

    def front(self, chunk: bytes, most: int) -> int:
        """Return how many bytes at the front need no judging: none, or all lines that end within `most` bytes."""
        end = lines_end(chunk, most)
        return end if end and self.needs_no_look(chunk[:end]) else 0

    def needs_no_look(self, lines: bytes) -> bool:
        """Return whether lines of plain words can be forwarded unchanged. Nothing in them is quoted."""
        used = names_in(lines)
        if not used <= self._plain or self._is_reserved(lines):
            return False
        return used <= FREE or not self._coverage.touches([lines.split()])


def plain_check(plain: set[bytes], coverage: Coverage, prefix: bytes, batch: BatchParser) -> Callable[[bytes], bool]:
    """Return a function that checks whether a chunk can be forwarded unchanged.

    Args:
        plain: the names of commands that need no judging unless they touch a covered key.
        coverage: the covered keys.
        prefix: the beginning of the reserved names.
        batch: parses chunks that do not match the frequent form.

    Returns:
        A function of a chunk that begins with a request. True: the chunk is whole requests that need no judging. False
        means only that the chunk must be judged.
    """
    # Everything is bound once: each attribute access and call takes one per cent of a request's time. Requests of the
    # frequent form are not even parsed, and their values are not examined.
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
    """Return a check for use beside other proxies: no chunk is plain once the lease has run out.

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
    follow a request for the next deadline of their keys. Joint requests concern members with deadlines: one script call
    replaces several, from one chunk or transaction or from several clients.
    """

    NONE = 0
    WRITES = 1
    READS = 2
    GUARDED_READS = 3
    JOINT_WRITES = 4
    JOINT_READS = 5
    JOINT_TRANSACTIONS = 6


_READ_TOGETHER: Final = frozenset((b"TTL", b"PTTL"))
"""The commands that only read and may go jointly."""


def _joint_heads(names: Iterable[bytes]) -> dict[bytes, Shared]:
    """Return the beginnings of some commands' requests that may go jointly, each with its shared connection."""
    heads = {}
    for name in names:
        kind = Shared.JOINT_READS if name in _READ_TOGETHER else Shared.JOINT_WRITES
        for spelled in (name, name.lower()):
            for size in range(SIZES[0], MOST_ARGUMENTS + 1):
                heads[b"*%d\r\n%b" % (size, bulk(spelled))] = kind
    return heads


def _other_heads() -> dict[bytes, Shared]:
    """Return the same map for the requests in `OTHER_WRITES` that may not be forwarded unchanged."""
    return {
        b"*%d\r\n%b" % (size, bulk(spelled)): Shared.JOINT_WRITES
        for name, sizes in OTHER_WRITES.items()
        if name not in INDIFFERENT and name != b"SET"
        for size in sizes
        for spelled in (name, name.lower())
    }


_TRANSACTIONS: Final = {encode([name]): Shared.JOINT_TRANSACTIONS for name in MULTI}
_EXECS: Final = tuple(encode([name]) for name in EXEC)


def share_check(coverage: Coverage, prefix: bytes, batch: BatchParser) -> Callable[[bytes], Shared]:
    """Return a function that chooses the shared connection for a chunk.

    Args:
        coverage: the covered keys.
        prefix: the beginning of the reserved names.
        batch: parses chunks that do not match the frequent form.

    Returns:
        A function of a chunk that begins with a request. If it returns `WRITES`, `READS` or `GUARDED_READS`, the chunk
        is one whole, small, frequent request. With the first two the chunk touches no covered key; a key may become
        covered before the chunk is sent, so check again then. If it returns `JOINT_…`, the chunk begins like a request
        that a script may replace, or like a transaction; `Joinable` checks the rest.
    """
    framed = frequent_requests(prefix[:1]).fullmatch
    parse = batch.parse_whole
    reserved = re.compile(re.escape(prefix)).search
    none, writes, reads, guarded, *_, transactions = Shared
    joint = {**_joint_heads(BATCHED | TOGETHER), **_other_heads(), **_TRANSACTIONS}.get
    # A script replaces these, whether or not their keys are covered.
    joint_always = _joint_heads(TOGETHER.union(name for name in BATCHED if COMMANDS[name].always)).get
    spelled = {spelling for name in FREQUENT for spelling in (name, name.lower())}
    reading = {spelling for name in FREQUENT_READS for spelling in (name, name.lower())}
    guardable = reading & OF_ONE_KEY

    def check(chunk: bytes) -> Shared:
        if len(chunk) > SMALL or chunk[0] != _STAR or len(chunk) < _SHORTEST or coverage.blind:
            return none
        # `*2\r\n$3\r\nGET\r\n`: the name begins at 8, or at 9 if its length has two digits.
        begin, end = (8, chunk[5] - 40) if chunk[6] == _RETURN else (9, 10 * chunk[5] + chunk[6] - 519)
        # "\r\n*" may begin a second request, or be part of a value: without it the chunk is one request.
        if b"\r\n*" in chunk:
            first = joint(chunk[: end + 2], none)
            is_whole = first is not transactions or chunk.endswith(_EXECS)
            return first if first and is_whole and coverage.search(chunk) else none
        if coverage.search(chunk):
            if kind := joint(chunk[: end + 2]):
                return kind
            if chunk[begin:end] in guardable and framed(chunk):
                return guarded  # if only a value looks like a covered key, the guard is needless, but harmless
        elif framed(chunk):
            return reads if chunk[begin:end] in reading else writes
        elif kind := joint_always(chunk[: end + 2]):
            return kind
        if reserved(chunk):
            return none
        requests = parse(chunk)
        if requests is None or len(requests) != 1:
            return none
        try:
            name = requests[0][0]
            if name not in spelled:
                return none
            if is_indifferent(requests[0]) or not coverage.touches(requests):
                return reads if name in reading else writes
            return guarded if name in guardable and chunk[2] == _RETURN else none
        except (TypeError, AttributeError):  # an array in the place of an argument
            return none

    return check
