"""Tells, as fast as Python can, whether a chunk of requests can go upstream as it came: the hot path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import hiredis

from proxy.commands.table import FREQUENT
from proxy.session.known import KnownKeys
from proxy.wire.batch import HUGE, LOOKALIKE, is_disjoint
from proxy.wire.pattern import requests_pattern

LARGEST: Final = 16 * 1024
"""Bytes of a chunk that is parsed here; a larger one is parsed in slices."""

FREQUENT_REQUESTS: Final = requests_pattern(
    spelled for name in sorted(FREQUENT, key=lambda name: (len(name), name)) for spelled in (name, name.lower())
)
"""Matches the requests that most traffic is made of."""

_STAR: Final = 0x2A
_TILDE: Final = 0x7E
_BAR: Final = 0x7C
_EMPTY: Final = b"*0\r\n"
_MORE: Final = object()
_LIST: Final = {list}


def plain_check(plain_names: set[bytes], known: KnownKeys, prefix: bytes) -> Callable[[bytes], bool]:
    """Make the check for one connection.

    Args:
        plain_names: names of commands, as clients spell them, that need no look while they touch no known key.
        known: the keys with deadlines.
        prefix: what the reserved names begin with.

    Returns:
        A function of a chunk that begins where a request does. True: the chunk is whole requests, each an ordinary one
        that needs no look. False says nothing, and changes nothing.
    """
    # Everything is bound here once: each attribute and each call is a per cent of what a request costs. Requests that
    # have the frequent form are not even parsed, and those that have not are parsed without building lists where they
    # come alone.
    framed = FREQUENT_REQUESTS.fullmatch
    beginnings = known.beginnings
    deadlines = known.deadlines
    keys = deadlines.keys()
    reserved = re.compile(re.escape(prefix)).search
    first_of_prefix = prefix[0]
    huge = HUGE.search
    fresh = _reader
    reader = fresh()
    feed, gets = reader.feed, reader.gets

    def check(chunk: bytes) -> bool:
        nonlocal reader, feed, gets
        if known.blind or (first_of_prefix in chunk and reserved(chunk)):
            return False
        for beginning in beginnings.found:
            if beginning in chunk:
                break
        else:
            if framed(chunk):
                return True
        if (
            chunk[0] != _STAR
            or len(chunk) > LARGEST
            or ((_TILDE in chunk or _BAR in chunk) and LOOKALIKE.search(chunk))
            or huge(chunk)
        ):
            return False
        try:
            # An empty array behind the chunk is a request of its own only if the chunk ends where a request does.
            feed(chunk + _EMPTY)
            first = gets()
            second = gets()
            if second == []:
                # The client may have sent one of its own: then there is more behind it.
                if gets() is _MORE and type(second) is list:
                    return first[0] in plain_names and type(first) is list and (not deadlines or keys.isdisjoint(first))
            else:
                requests = [first, second, *iter(gets, _MORE)]
                if (
                    requests.pop() == []
                    and {request[0] for request in requests} <= plain_names
                    and set(map(type, requests)) == _LIST
                    and (not deadlines or is_disjoint(keys, requests))
                ):
                    return True
        except (hiredis.ProtocolError, TypeError, IndexError, KeyError):
            pass  # not ordinary: the exact reader will see what it is
        reader = fresh()
        feed, gets = reader.feed, reader.gets
        return False

    return check


def _reader() -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=_MORE)
