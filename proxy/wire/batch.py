"""Parse a chunk of ordinary requests at the speed of C, or report that it is not ordinary.

Its tests: tests/test_wire.py.

hiredis reads replies, not requests. A request that is an array of bulk strings has the form of a reply, and `framing`
ensures that hiredis gets no other bytes. Everything else (inline requests, other RESP types) is left to
`RequestReader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import hiredis

from proxy.wire.framing import framed_end, is_beginning

_SLICE: Final = 16 * 1024
"""Bytes to feed at once: hiredis moves the rest of its buffer after each KiB it consumes."""

_EMPTY: Final = b"*0\r\n"
_MORE: Final = object()
_LIST: Final = {list}


class BatchParser:
    """Parses chunks that begin with a request. One parser serves all connections.

    The parser caches the last chunk that it parsed whole: a chunk that a check has declined is parsed again when it is
    judged. Callers must not change the requests.
    """

    def __init__(self) -> None:
        self._reader = _reader()
        self._last: tuple[bytes, list[list[bytes]]] = b"", []

    def parse_whole(self, chunk: bytes) -> list[list[bytes]] | None:
        """Parse a chunk of whole requests, 16 KiB at most.

        Args:
            chunk: bytes that begin where a request does.

        Returns:
            The requests; None if the chunk is anything else. A request may have elements that are not bytes: the server
            rejects it with a protocol error.
        """
        if chunk is self._last[0]:
            return self._last[1]
        if framed_end(chunk) != len(chunk):
            return None
        # Append an empty array. It is parsed as a separate request only if the chunk ends with a whole one.
        requests = self._read(chunk + _EMPTY, len(chunk) + len(_EMPTY))
        if requests and requests.pop() == []:
            if set(map(type, requests)) != _LIST:
                return None
            self._last = chunk, requests
            return requests
        self._reader = _reader()
        return None

    def parse(self, chunk: bytes) -> tuple[list[list[bytes]], bool] | None:
        """Parse the complete requests of a chunk.

        Args:
            chunk: bytes that begin where a request does.

        Returns:
            The complete requests, and whether they are the whole chunk; None if the chunk is not ordinary and must be
            read by a `RequestReader`. Elements that are not bytes: as in `parse_whole`.
        """
        if chunk is self._last[0]:
            return self._last[1], True
        end = framed_end(chunk)
        if not end or not is_beginning(chunk[end:]):
            return None
        requests = self._read(chunk, end)
        if requests is None:
            return None
        self._reader.feed(_EMPTY)
        whole = self._reader.gets() == []
        if not whole:
            self._reader = _reader()
        if requests and set(map(type, requests)) != _LIST:
            return None
        return requests, whole and end == len(chunk)

    def _read(self, chunk: bytes, end: int) -> list[Any] | None:
        reader = self._reader
        requests: list[Any] = []
        try:
            for begin in range(0, end, _SLICE):
                reader.feed(chunk, begin, min(_SLICE, end - begin))
                requests += iter(reader.gets, _MORE)
        except hiredis.ProtocolError:  # arrays nested too deep
            self._reader = _reader()
            return None
        return requests


_OF_ONE_DIGIT: Final = bytes(range(10))
_OF_TWO_DIGITS: Final = bytes(range(100))


def _reader() -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=_MORE)


def request_size(request: list[bytes]) -> int:
    """Count the bytes that an ordinary request took on the wire."""
    size = 3 + len(str(len(request))) + 5 * len(request)
    for argument in request:
        length = len(argument)
        size += length + (1 if length < 10 else 2 if length < 100 else len(str(length)))
    return size


def requests_size(requests: Sequence[list[bytes]]) -> int:
    """Count the bytes that ordinary requests took on the wire."""
    sizes = list(map(len, chain.from_iterable(requests)))
    size = sum(sizes) + 6 * len(sizes) + 4 * len(requests)
    try:
        short = bytes(sizes)
    except ValueError:  # an argument has more than 255 bytes
        size += sum([len(str(length)) - 1 for length in sizes if length > 9])
    else:
        size += len(short.translate(None, _OF_ONE_DIGIT)) + len(short.translate(None, _OF_TWO_DIGITS))
    return size + sum([len(str(len(request))) - 1 for request in requests if len(request) > 9])
