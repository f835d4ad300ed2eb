"""Finds out, as fast as Python can, whether a chunk of requests can go upstream as it came: the hot path."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import Final

from proxy.commands.table import FREQUENT, FREQUENT_READS, REPEATED
from proxy.session.known import KnownKeys, lease_clock
from proxy.wire.batch import BatchParser, is_disjoint
from proxy.wire.lines import is_lines, lines_end
from proxy.wire.lines import names as names_in
from proxy.wire.pattern import requests_pattern
from proxy.wire.runs import Runs

LARGEST: Final = 16 * 1024
"""Bytes of a chunk that is parsed here; a larger one is parsed in slices."""

REPEATED_REQUESTS: Final = Runs(spelled for name in REPEATED for spelled in (name, name.lower()))
"""Finds requests that may be sent on together."""

SHORTEST_RUN: Final = 108
"""Bytes that such requests take at least: in most chunks there is only one, and nothing to be found."""

SMALL: Final = 1024
"""Bytes of a chunk that may go over a shared connection."""

DATED_MS: Final = 10.0
"""How long a read of a known key may wait until it is sent."""

_STAR: Final = 0x2A
_RETURN: Final = 0x0D


@cache
def frequent_requests(never: bytes) -> re.Pattern[bytes]:
    """Return what matches the requests that most traffic is made of, as long as no argument begins with a byte.

    Args:
        never: the byte that the reserved names begin with: few others do.
    """
    names = sorted(FREQUENT, key=lambda name: (len(name), name))
    return requests_pattern((spelled for name in names for spelled in (name, name.lower())), never)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of commands, as clients spell them: found out as they come, at most three spellings of each.

    Attributes:
        plain: those that need no look while they touch no known key.
        untabled: those of them that need none either while nothing is due in the keys that they touch.
    """

    plain: set[bytes] = field(default_factory=set)
    untabled: set[bytes] = field(default_factory=set)


def is_nothing_due(known: KnownKeys, requests: list[list[bytes]], now: float) -> bool:
    """Return whether nothing is due, at `now` in Unix ms, in the known keys that some requests touch.

    Raises:
        TypeError: an element of a request is not bytes.
    """
    return not known.to_ask_about(known.deadlines.keys() & chain.from_iterable(requests), now)


class LinesCheck:
    """Finds out whether inline requests need no look.

    Args:
        names: the commands.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
    """

    __slots__ = ("_is_reserved", "_keys", "_known", "_plain", "_untabled")

    def __init__(self, names: Names, known: KnownKeys, prefix: bytes) -> None:
        self._known = known
        self._keys = known.deadlines.keys()
        self._is_reserved = re.compile(re.escape(prefix)).search
        self._plain, self._untabled = names.plain, names.untabled

    def front(self, chunk: bytes, now: float, most: int) -> int:
        """Return how many bytes at the front of a chunk are such requests: none, or all lines that end in `most`."""
        end = lines_end(chunk, most)
        return end if end and self.needs_no_look(chunk[:end], now) else 0

    def needs_no_look(self, lines: bytes, now: float) -> bool:
        """Return whether lines of plain words can go as they came. Nothing in them is quoted: all is what it seems."""
        used = names_in(lines)
        if not used <= self._plain or self._is_reserved(lines):
            return False
        if not self._keys:
            return True
        words = lines.split()
        if self._keys.isdisjoint(words):
            return True
        return used <= self._untabled and is_nothing_due(self._known, [words], now)


def plain_check(
    names: Names, known: KnownKeys, prefix: bytes, batch: BatchParser, now: Callable[[], float]
) -> Callable[[bytes], bool]:
    """Make the check for one connection.

    Args:
        names: the commands.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
        batch: parses what has not the frequent form.
        now: gives the server's clock, in Unix ms.

    Returns:
        A function of a chunk that begins where a request does. True: the chunk is whole requests, each an ordinary one
        that needs no look. False says nothing, and changes nothing.
    """
    # Everything is bound here once: each attribute and each call is a per cent of what a request costs. Requests that
    # have the frequent form are not even parsed, nor their values looked at.
    framed = frequent_requests(prefix[:1]).fullmatch
    parse = batch.parse_whole
    beginnings = known.beginnings
    deadlines = known.deadlines
    keys = deadlines.keys()
    reserved = re.compile(re.escape(prefix)).search
    first_of_prefix = prefix[0]
    plain_names, untabled = names.plain, names.untabled
    key_of_run = REPEATED_REQUESTS.key_at_front
    lines = LinesCheck(names, known, prefix)

    def check(chunk: bytes) -> bool:
        if known.blind:
            return False
        for beginning in beginnings.found:
            if beginning in chunk:
                if len(chunk) >= SHORTEST_RUN and key_of_run(chunk) in deadlines:
                    return False  # may go together with others: do not parse them one by one
                break
        else:
            if framed(chunk):
                return True
        if len(chunk) > LARGEST or (first_of_prefix in chunk and reserved(chunk)):
            return False
        if chunk[0] != _STAR:
            return is_lines(chunk) is not None and lines.needs_no_look(chunk, now())
        requests = parse(chunk)
        if requests is None:
            return False
        try:
            if len(requests) == 1:
                name = requests[0][0]
                if name not in plain_names:
                    return False
                if not deadlines or keys.isdisjoint(requests[0]):
                    return True
                return name in untabled and is_nothing_due(known, requests, now())
            used = {request[0] for request in requests}
            if not used <= plain_names:
                return False
            if not deadlines or is_disjoint(keys, requests):
                return True
            return used <= untabled and is_nothing_due(known, requests, now())
        except TypeError:  # an array in the place of an argument: the exact reader sees what the server makes of it
            return False

    return check


def leased_check(check: Callable[[bytes], bool], known: KnownKeys) -> Callable[[bytes], bool]:
    """Make the check for where there are other proxies: no chunk is plain at the end of the lease, or of a standstill.

    Args:
        check: the check for a proxy that is alone.
        known: the keys with deadlines.

    Returns:
        Likewise.
    """
    clock = lease_clock

    def leased(chunk: bytes) -> bool:
        now = clock()
        return now < known.trusted_until and now < known.steady_until and check(chunk)

    return leased


class Shared(IntEnum):
    """Over which of the shared connections of its identity a chunk may go.

    Reads have their own: the server may hold up writes alone (CLIENT PAUSE WRITE), and what follows them. Dated are
    those of known keys in which nothing is due soon: they must not wait for longer.
    """

    NONE = 0
    WRITES = 1
    READS = 2
    DATED_READS = 3


def share_check(
    known: KnownKeys, prefix: bytes, batch: BatchParser, now: Callable[[], float]
) -> Callable[[bytes], Shared]:
    """Make the check whether a chunk may go over a shared connection.

    Args:
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
        batch: parses what has not the frequent form.
        now: gives the server's clock, in Unix ms.

    Returns:
        A function of a chunk that begins where a request does. Unless it returns `NONE` the chunk is one whole request,
        a frequent one of few bytes. With `READS` and `WRITES` it touches no known key, so nothing in it can be due,
        however long it waits for the end of the turn; with `DATED_READS` nothing is for `DATED_MS`. Whether the keys
        are known at all it does not ask: that is asked when the chunk is sent.
    """
    framed = frequent_requests(prefix[:1]).fullmatch
    parse = batch.parse_whole
    beginnings = known.beginnings
    keys = known.deadlines.keys()
    reserved = re.compile(re.escape(prefix)).search
    none, writes, reads, dated = Shared
    spelled = {spelling for name in FREQUENT for spelling in (name, name.lower())}
    reading = {spelling for name in FREQUENT_READS for spelling in (name, name.lower())}

    def check(chunk: bytes) -> Shared:
        # One request: behind the end of an argument there begins no other, not even within a value.
        if len(chunk) > SMALL or b"\r\n*" in chunk:
            return none
        for beginning in beginnings.found:
            if beginning in chunk:
                break
        else:
            if framed(chunk):
                # *2 $3 GET, each line with its end: the length of a name has one digit or two.
                name = chunk[8 : chunk[5] - 40] if chunk[6] == _RETURN else chunk[9 : 10 * chunk[5] + chunk[6] - 519]
                return reads if name in reading else writes
        if chunk[0] != _STAR or reserved(chunk):
            return none
        requests = parse(chunk)
        if requests is None or len(requests) != 1:
            return none
        try:
            name = requests[0][0]
            if name not in spelled:
                return none
            if keys.isdisjoint(requests[0]):
                return reads if name in reading else writes
            return dated if name in reading and is_nothing_due(known, requests, now() + DATED_MS) else none
        except TypeError:  # an array in the place of an argument
            return none

    return check
