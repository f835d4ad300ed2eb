"""Lay out the figures as lines of text for a terminal's width and height.

Its tests: tests/test_top.py.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.status.names import visible
from proxy.status.shape import Removals, Status
from proxy.status.view import Row, Section, sections
from proxy.status.words import clock, plural

_TWO_COLUMNS: Final = 96
"""Terminals at least this wide get two columns."""

_FOLDS: Final = 3
"""Maximum number of lines for the problem; the same for the advice."""

_FEW: Final = 5
"""How many rows of a list to show if there is no room for all rows."""

_BETWEEN: Final = 4
_WIDEST: Final = 76
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_TONES: Final = {"good": "\x1b[32m", "warning": "\x1b[33m", "bad": "\x1b[31m"}


def lines_of(
    status: Status, width: int, height: int | None, *, colours: bool = False, complaint: str | None = None
) -> list[str]:
    """Return the figures as lines.

    Args:
        status: the figures.
        width: maximum cells per line.
        height: maximum number of lines; None for no limit.
        colours: whether to use colours.
        complaint: why the figures are out of date; None if they are not.
    """
    head = list(_head(status, width, complaint, colours=colours, live=height is not None))
    parts, column = sections(status), _column(width)

    def blocks(most: int | None, *, notes: bool) -> list[list[str]]:
        removals = [status.removals if not place else None for place in range(len(parts))]
        return [
            list(_section(part, column, told, colours, notes, most)) for part, told in zip(parts, removals, strict=True)
        ]

    lines = [*head, *_laid(blocks(None, notes=True), width)]
    if height is None or len(lines) <= height:
        return lines
    whole = blocks(None, notes=False)
    lines = [*head, *_laid(whole, width)]
    if len(lines) <= height:
        return lines
    few = blocks(_FEW, notes=False)
    kept: list[int] = []
    for place in sorted(range(len(parts)), key=lambda place: parts[place].rank):
        more = sorted((*kept, place))
        if len(head) + len(list(_laid([few[one] for one in more], width))) < height:
            kept = more
    lines = [*head, *_laid([few[one] for one in kept], width)]
    missing = sum(map(len, whole)) - sum(len(few[one]) for one in kept)
    without = ", ".join(visible(part.title) for place, part in enumerate(parts) if place not in kept)
    last = plural(missing, "more line") + (f": {without}" if without else "")
    return [*lines[: height - 1], _styled(_clip(last, width), _DIM, colours)] if height > 1 else lines[:height]


def _head(status: Status, width: int, complaint: str | None, *, colours: bool, live: bool) -> Iterator[str]:
    level, text, advice = status.state.level, status.state.text, status.state.advice
    if complaint is not None:
        level, text, advice = "bad", complaint, "The figures below are older."
    yield from (_styled(line, _BOLD + _TONES[level], colours) for line in _folded(visible(text), width))
    if advice is not None:
        yield from _folded(visible(advice), width)
    meta = f"expiremember-proxy {visible(status.version)} · {visible(status.upstream.address)} · {clock(status.at)}"
    yield _styled(_clip(meta + (" · q quits" if live else ""), width), _DIM, colours)


def _column(width: int) -> int:
    return min(width if width < _TWO_COLUMNS else (width - _BETWEEN) // 2, _WIDEST)


def _laid(blocks: Sequence[list[str]], width: int) -> Iterator[str]:
    """Yield the blocks below each other, or in two columns of about the same length."""
    if width < _TWO_COLUMNS:
        for block in blocks:
            yield from ("", *block)
        return
    columns: tuple[list[str], list[str]] = ([], [])
    for block in blocks:
        shorter = min(columns, key=len)
        shorter += ["", *block]
    for place in range(max(map(len, columns))):
        left, right = (one[place] if place < len(one) else "" for one in columns)
        yield (left + " " * (_column(width) - _width(left) + _BETWEEN) + right) if right else left


def _section(
    part: Section, width: int, removals: Removals | None, colours: bool, notes: bool, most: int | None
) -> Iterator[str]:
    yield _styled(_clip(visible(part.title), width), _BOLD, colours)
    rows = [tuple(map(visible, row)) for row in (part.rows[:most] if part.head else part.rows)]
    sizes = _sizes([*rows, part.head], width)
    if part.head:
        yield _styled(_row(part.head, sizes, width), _DIM, colours)
    for row in rows:
        yield _row(row, sizes, width)
    if removals is not None and any(removals.rates) and width > 20:
        yield _clip(f"  15 minutes  {_spark(removals, width - 14)}", width)
    if notes and part.note:
        yield from (_styled(f"  {line}", _DIM, colours) for line in textwrap.wrap(part.note, max(1, width - 2)))


def _sizes(rows: Sequence[Row], width: int) -> list[int]:
    """Return the widths of all columns but the first."""
    count = max(len(row) for row in rows) - 1
    most = max(1, (width // 2) // max(1, count) if count > 1 else width * 2 // 3)
    return [
        min(most, max((_width(row[place]) for row in rows if len(row) > place), default=0))
        for place in range(1, count + 1)
    ]


def _row(row: Row, sizes: list[int], width: int) -> str:
    cells = [_clip(cell, size) for cell, size in zip(row[1:], sizes, strict=False)]
    right = "".join("  " + " " * (size - _width(cell)) + cell for cell, size in zip(cells, sizes, strict=False))
    name = _clip(row[0], max(1, width - _width(right) - 2))
    return _clip("  " + name + " " * (width - 2 - _width(name) - _width(right)) + right, width).rstrip()


def _spark(removals: Removals, width: int) -> str:
    """Return members removed per second over the last 15 minutes, as a row of blocks."""
    heights = [0.0] * width
    for age, rate in zip(removals.ages, removals.rates, strict=False):
        place = width - 1 - min(width - 1, int(age / 900 * width))
        heights[place] = max(heights[place], rate)
    top = max(heights)
    return "".join(_BLOCKS[min(7, math.ceil(height / top * 8) - 1)] if height else " " for height in heights)


def _styled(text: str, style: str, colours: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colours and text else text


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _width(text: str) -> int:
    """Return how many cells a text takes, ignoring style codes."""
    total, pieces = 0, text.split("\x1b[")
    for number, piece in enumerate(pieces):
        total += sum(map(_cells, piece.partition("m")[2] if number else piece))
    return total


def _folded(text: str, width: int) -> Iterator[str]:
    """Wrap a text into lines of this width, `_FOLDS` lines at most."""
    lines = textwrap.wrap(text, max(1, width))
    for line in lines[: _FOLDS - 1]:
        yield _clip(line, width)
    if rest := " ".join(lines[_FOLDS - 1 :]):
        yield _clip(rest, width)


def _clip(text: str, width: int) -> str:
    """Cut an unstyled text to this width."""
    if _width(text) <= width:
        return text
    taken, kept = 0, ""
    for character in text:
        taken += _cells(character)
        if taken > width - 1:
            break
        kept += character
    return kept + "…" if width > 0 else ""
