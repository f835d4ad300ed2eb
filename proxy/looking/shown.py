"""Format deadlines for people, programs or spreadsheets. Names cannot send control codes to a terminal.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from proxy.events.command import show
from proxy.looking.merge import Deadline

BLOCK: Final = 100
"""Number of rows that determine the widths of a table's columns."""

_COLUMNS: Final = ("deadline_ms", "deadline", "seconds_left", "key", "member", "unsure")
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FORMULA: Final = ("=", "+", "-", "@")
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNITS: Final = ((120_000, 1000, "s"), (7_200_000, 60_000, "min"), (172_800_000, 3_600_000, "h"))
_DAY: Final = 86_400_000


def whole_ms(score: float) -> int:
    """Return a stored deadline as whole Unix ms. Its fraction, if any, is a mark of the proxy's own."""
    return math.ceil(score)


def date(deadline: int) -> str | None:
    """Return a time as a date in UTC; None if it is beyond the calendar."""
    try:
        moment = _BEGIN + timedelta(milliseconds=deadline)
    except OverflowError:
        return None
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{deadline % 1000:03}"


def date_in_words(deadline: int) -> str:
    """Return a time as a date, or as a number if it is beyond the calendar."""
    shown = date(deadline)
    return f"{deadline} ms" if shown is None else f"{shown} UTC"


def span(ms: float) -> str:
    """Return a duration in the unit that suits it."""
    ms = abs(ms)
    if ms < 1000:
        return f"{ms:.0f} ms"
    for below, unit, name in _UNITS:
        if ms < below:
            return f"{max(1, round(ms / unit))} {name}"
    return f"{round(ms / _DAY)} days"


def when(deadline: int, now: float) -> str:
    """Return how far ahead or overdue a deadline is."""
    return f"in {span(deadline - now)}" if deadline > now else f"overdue {span(now - deadline)}"


def spelled(name: bytes) -> str:
    """Return a name for a cell. Bytes that are not printable text are escaped, so that no two names look alike."""
    text = "".join(map(_character, name.decode("utf-8", "surrogateescape")))
    # A quote keeps spreadsheets from evaluating text that looks like a formula. A leading quote of a name is doubled.
    return "'" + text if text.startswith((*_FORMULA, "'")) else text


def _character(one: str) -> str:
    if one.isprintable() and one != "\\":
        return one
    data = one.encode("utf-8", "surrogateescape")
    return _ESCAPES.get(one) or "".join(f"\\x{byte:02x}" for byte in data)


class Format(Protocol):
    """Formats deadlines as text."""

    def begin(self) -> str:
        """Return the text before all rows."""

    def rows(self, deadlines: Iterable[Deadline], now: float) -> str:
        """Return the rows for some deadlines, in the order given.

        Args:
            deadlines: the deadlines.
            now: the server's time in Unix ms.
        """

    def end(self) -> str:
        """Return the text after all rows."""


class Table:
    """A table for people, with columns as wide as the first rows need."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def begin(self) -> str:
        """Return nothing: the widths are not known yet."""
        return ""

    def rows(self, deadlines: Iterable[Deadline], now: float) -> str:
        """Return lines, with the headings the first time."""
        found = list(map(list, self._cells(deadlines, now)))
        if not self._widths and found:
            found.insert(0, ["deadline (UTC)", "in", "key", "member"])
            self._widths = [max(len(row[column]) for row in found) for column in range(3)]
        return "".join("  ".join([*map(str.ljust, row[:3], self._widths), row[3]]).rstrip() + "\n" for row in found)

    def _cells(self, deadlines: Iterable[Deadline], now: float) -> Iterator[tuple[str, str, str, str]]:
        for one in deadlines:
            deadline = whole_ms(one.score)
            far = when(deadline, now).removeprefix("in ")
            member = show(one.member) + ("  unsure" if one.unsure else "")
            yield date(deadline) or date_in_words(deadline), far, show(one.key), member

    def end(self) -> str:
        """Return a message if there were no rows."""
        return "" if self._widths else "no deadlines\n"


class Json:
    """JSON for programs: an array with one object per line."""

    def __init__(self) -> None:
        self._between = "\n"

    def begin(self) -> str:
        """Return the opening bracket."""
        return "["

    def rows(self, deadlines: Iterable[Deadline], now: float) -> str:
        """Return an object for each deadline."""
        text = ""
        for one in deadlines:
            text += self._between + json.dumps(_fields(one, now))
            self._between = ",\n"
        return text

    def end(self) -> str:
        """Return the closing bracket."""
        return "\n]\n"


class Csv:
    """CSV for spreadsheets."""

    def begin(self) -> str:
        """Return a byte order mark, which identifies UTF-8, and the headings."""
        return "\ufeff" + self._line(_COLUMNS)

    def rows(self, deadlines: Iterable[Deadline], now: float) -> str:
        """Return a line for each deadline."""
        return "".join(map(self._line, self._cells(deadlines, now)))

    def _cells(self, deadlines: Iterable[Deadline], now: float) -> Iterator[tuple[str | int, ...]]:
        for one in deadlines:
            deadline = whole_ms(one.score)
            left = f"{(deadline - now) / 1000:.3f}"
            unsure = "yes" if one.unsure else ""
            yield deadline, date(deadline) or "", left, spelled(one.key), spelled(one.member), unsure

    def _line(self, cells: Iterable[str | int]) -> str:
        text = io.StringIO()
        csv.writer(text).writerow(cells)
        return text.getvalue()

    def end(self) -> str:
        """Return nothing."""
        return ""


FORMATS: Final[Mapping[str, Callable[[], Format]]] = {"table": Table, "json": Json, "csv": Csv}


def _fields(one: Deadline, now: float) -> dict[str, Any]:
    deadline = whole_ms(one.score)
    shown = date(deadline)
    fields: dict[str, Any] = {
        "deadline_ms": deadline,
        "deadline": None if shown is None else shown.replace(" ", "T") + "Z",
        "seconds_left": round((deadline - now) / 1000, 3),
    }
    for label, name in (("key", one.key), ("member", one.member)):
        try:
            fields[label] = name.decode()
        except UnicodeDecodeError:
            fields[f"{label}_base64"] = base64.b64encode(name).decode()
    if one.unsure:
        fields["unsure"] = True
    return fields
