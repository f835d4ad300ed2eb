"""Find runs of requests of one form, and split them column by column, without an object for each request.

Its tests: tests/test_together.py.

In a run every request has the same command in the same spelling, and the same number of arguments. None of these is
long or has a carriage return. So a line's position in the run shows what the line is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from proxy.wire.pattern import at_once, bulk_pattern, name_pattern

LEAST: Final = 4
"""Minimum number of requests in a run."""

MOST: Final = 100
"""Maximum number of requests in a run."""

MOST_BYTES: Final = 16 * 1024
"""Maximum size of a run, in bytes."""

LONGEST: Final = 255
"""Maximum size of an argument, in bytes."""

SIZES: Final = range(3, 7)
"""Possible numbers of arguments, including the command's name."""

_ARGUMENT: Final = bulk_pattern(LONGEST, r"[^\r]")


class Run:
    """Requests of one form.

    Args:
        lines: their lines, without line ends.
        size: how many arguments each of them has, including the command's name.
        length: how many bytes they take.

    Attributes:
        size: as given.
        length: as given.
        count: how many requests there are.
        name: the command, as the client spells it.
    """

    __slots__ = ("_lines", "_step", "count", "length", "name", "size")

    def __init__(self, lines: list[bytes], size: int, length: int) -> None:
        self._lines = lines
        self._step = 1 + 2 * size
        self.size = size
        self.length = length
        self.count = len(lines) // self._step
        self.name = lines[2]

    def column(self, place: int) -> list[bytes]:
        """Return one argument of each request; the command's name is at position 0."""
        return self._lines[2 + 2 * place :: self._step]

    def encoded(self, first: int, end: int) -> bytes:
        """Return the arguments from position `first` to before `end`, request by request, as bulk strings."""
        width = 2 * (end - first)
        rows = [b""] * (width * self.count + 1)
        for place in range(width):
            rows[place:-1:width] = self._lines[1 + 2 * first + place :: self._step]
        return b"\r\n".join(rows)

    def beginning(self, count: int) -> Run:
        """Return a run of the first `count` requests."""
        lines = self._lines[: count * self._step]
        return Run(lines, self.size, sum(map(len, lines)) + 2 * len(lines))


class Runs:
    """Finds runs of some commands.

    Args:
        names: the commands, each spelled as it should match.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        name = name_pattern(sorted(names, key=lambda name: (len(name), name)))
        self._match = _several(name, MOST).match
        self._least = _several(name, LEAST)

    def key_at_front(self, chunk: bytes) -> bytes | None:
        """Return the first argument after the command, in the first request of a chunk that begins with a run."""
        found = self._least.match(chunk)
        return None if found is None else chunk[found.start() : found.end()].split(b"\r\n", 5)[4]

    def may_be_in(self, chunk: bytes) -> bool:
        """Return whether a chunk may contain a run. A match may still be part of an argument."""
        return self._least.search(chunk) is not None

    def at(self, chunk: bytes, begin: int = 0) -> Run | None:
        """Return the run that begins at a position where a request begins; None if there is none."""
        found = self._match(chunk, begin, begin + MOST_BYTES)
        if found is None:
            return None
        lines = found.group().split(b"\r\n")
        lines.pop()
        return Run(lines, int(lines[0][1:]), found.end() - begin)


def _several(name: str, most: int) -> re.Pattern[bytes]:
    """Return a pattern for `LEAST` to `most` requests of the same form."""
    # The part that spells out all lengths occurs only once per form. It matches the first request too, except for the
    # star: that comes before this part, because `search` needs a literal byte to look for.
    forms = []
    for group, size in enumerate(SIZES, 1):
        arguments = at_once(_ARGUMENT, f"{{{size - 1}}}")
        others = at_once(rf"(?:\*|(?<=\*))\{group}{arguments}", f"{{{LEAST},{most}}}")
        forms.append(rf"\*(?=({size}\r\n{name})){others}")
    return re.compile("|".join(forms).encode())
