"""Parses a chunk of ordinary requests at the speed of C, and says so when a chunk is not ordinary.

hiredis reads replies, not requests. Both are the same bytes as long as a request is a RESP array of bulk strings; where
hiredis succeeds on such an array its counts are strictly decimal and end in CRLF, and the server reads them likewise.
What else hiredis would take (inline requests, other RESP types) is left to `RequestReader`.
"""

from __future__ import annotations

import re
from collections.abc import KeysView
from itertools import chain
from typing import Final

import hiredis

_SLICE: Final = 16 * 1024
"""Bytes fed at once: hiredis moves what is left in its buffer after each KiB it consumes."""

_STAR: Final = 0x2A
# As integers: looking for a byte that is given as bytes costs twenty times as much.
_TILDE: Final = 0x7E
_BAR: Final = 0x7C
_EMPTY: Final = b"*0\r\n"
_LIST: Final = {list}
_MORE: Final = object()
HUGE: Final = re.compile(rb"\*[0-9]{7}")
"""A count for which hiredis would make a list of that size before it has seen one element."""

LOOKALIKE: Final = re.compile(rb"[~|]-?[0-9]+\r\n")
"""A RESP3 set or attribute, which hiredis gives as a list too."""


def _reader() -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=_MORE)


class BatchParser:
    """Parses chunks that begin where a request begins."""

    def __init__(self) -> None:
        self._reader = _reader()

    def parse(self, chunk: bytes) -> tuple[list[list[bytes]], bool] | None:
        """Parse a chunk.

        Args:
            chunk: bytes that begin at the boundary of a request.

        Returns:
            The requests that are complete, and whether they are the whole of the chunk; or None when the chunk is not
            one of ordinary requests and has to be read by a `RequestReader`. Elements of a request that are not bytes
            stand for requests that the server refuses as a protocol error.
        """
        if chunk[0] != _STAR:
            return None
        if ((_TILDE in chunk or _BAR in chunk) and LOOKALIKE.search(chunk)) or HUGE.search(chunk):
            return None
        reader = self._reader
        size = len(chunk)
        try:
            if size <= _SLICE:
                reader.feed(chunk)
                requests = list(iter(reader.gets, _MORE))
            else:
                requests = []
                for begin in range(0, size, _SLICE):
                    reader.feed(chunk, begin, min(_SLICE, size - begin))
                    requests += iter(reader.gets, _MORE)
        except hiredis.ProtocolError:
            self._reader = _reader()
            return None
        whole = self._ends_at_boundary()
        if not whole:
            self._reader = _reader()
        if requests and (set(map(type, requests)) != _LIST or [] in requests):
            return None
        return requests, whole

    def _ends_at_boundary(self) -> bool:
        """Tell whether what was fed ends where a request does: only there is an empty array a reply of its own."""
        self._reader.feed(_EMPTY)
        try:
            return self._reader.gets() == []  # type: ignore[no-any-return]
        except hiredis.ProtocolError:
            return False


def request_size(request: list[bytes]) -> int:
    """Count the bytes that an ordinary request took on the wire."""
    size = 3 + len(str(len(request))) + 5 * len(request)
    for argument in request:
        length = len(argument)
        size += length + (1 if length < 10 else 2 if length < 100 else len(str(length)))
    return size


def is_disjoint(names: KeysView[bytes], requests: list[list[bytes]]) -> bool:
    """Tell whether no argument of the requests is one of the names.

    Raises:
        TypeError: an element of a request is not bytes.
    """
    return names.isdisjoint(chain.from_iterable(requests))
