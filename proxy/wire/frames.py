"""Split a part of a reply stream into replies and pushes.

Its tests: tests/test_command.py.
"""

from __future__ import annotations


def frames(data: bytes) -> list[bytes]:
    """Return the replies and pushes in some bytes, which begin where a reply or push does.

    Args:
        data: bytes from a server, RESP2 or RESP3.

    Returns:
        The frames, in order; the last one may be incomplete.
    """
    found: list[bytes] = []
    begin, size = 0, len(data)
    while begin < size:
        end = frame_end(data, begin)
        found.append(data[begin:end])
        begin = end
    return found


def frame_end(data: bytes, begin: int) -> int:
    """Return the end of the reply, or part of one, at a position; the end of the data if the reply is incomplete.

    Args:
        data: bytes from a server.
        begin: the position.
    """
    position, pending = begin, 1
    while pending:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return len(data)
        kind, rest = data[position : position + 1], data[position + 1 : line_end]
        position = line_end + 2
        pending -= 1
        count = int(rest) if kind in b"$=!*~>%|" and rest.lstrip(b"-").isdigit() else 0
        if kind in b"$=!":
            position += count + 2 if count >= 0 else 0
        elif kind in b"*~>":
            pending += max(count, 0)
        elif kind in b"%|":
            pending += 2 * max(count, 0) + (kind == b"|")
    return min(position, len(data))
