"""Finds out, as fast as Python can, whether a chunk of requests can go upstream as it came: the hot path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from proxy.commands.table import FREQUENT
from proxy.session.known import KnownKeys, lease_clock
from proxy.wire.batch import BatchParser, is_disjoint
from proxy.wire.pattern import requests_pattern

LARGEST: Final = 16 * 1024
"""Bytes of a chunk that is parsed here; a larger one is parsed in slices."""

FREQUENT_REQUESTS: Final = requests_pattern(
    spelled for name in sorted(FREQUENT, key=lambda name: (len(name), name)) for spelled in (name, name.lower())
)
"""Matches the requests that most traffic is made of."""

_STAR: Final = 0x2A


def plain_check(
    plain_names: set[bytes], known: KnownKeys, prefix: bytes, batch: BatchParser
) -> Callable[[bytes], bool]:
    """Make the check for one connection.

    Args:
        plain_names: names of commands, as clients spell them, that need no look while they touch no known key.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.
        batch: parses what has not the frequent form.

    Returns:
        A function of a chunk that begins where a request does. True: the chunk is whole requests, each an ordinary one
        that needs no look. False says nothing, and changes nothing.
    """
    # Everything is bound here once: each attribute and each call is a per cent of what a request costs. Requests that
    # have the frequent form are not even parsed.
    framed = FREQUENT_REQUESTS.fullmatch
    parse = batch.parse_whole
    beginnings = known.beginnings
    deadlines = known.deadlines
    keys = deadlines.keys()
    reserved = re.compile(re.escape(prefix)).search
    first_of_prefix = prefix[0]

    def check(chunk: bytes) -> bool:
        if known.blind or (first_of_prefix in chunk and reserved(chunk)):
            return False
        for beginning in beginnings.found:
            if beginning in chunk:
                break
        else:
            if framed(chunk):
                return True
        if chunk[0] != _STAR or len(chunk) > LARGEST:
            return False
        requests = parse(chunk)
        if requests is None:
            return False
        try:
            if len(requests) == 1:
                return requests[0][0] in plain_names and (not deadlines or keys.isdisjoint(requests[0]))
            return {request[0] for request in requests} <= plain_names and (
                not deadlines or is_disjoint(keys, requests)
            )
        except TypeError:  # an array in the place of an argument: the exact reader sees what the server makes of it
            return False

    return check


def leased_check(check: Callable[[bytes], bool], known: KnownKeys) -> Callable[[bytes], bool]:
    """Make the check for where there are other proxies: no chunk is plain when the lease has run out.

    Args:
        check: the check for a proxy that is alone.
        known: the keys with deadlines.

    Returns:
        Likewise.
    """
    clock = lease_clock

    def leased(chunk: bytes) -> bool:
        return clock() < known.trusted_until and check(chunk)

    return leased
