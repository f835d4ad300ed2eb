"""What the measurements say in the end: percentiles, Markdown tables, and bars that are met or missed."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.stage import StageError, server_version


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table, figures to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])


@dataclass(frozen=True)
class Bar:
    """A figure that has to reach a limit, or to stay below it."""

    what: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        """Whether it does."""
        return self.value >= self.limit if self.at_least else self.value < self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<"
        return f"{'met   ' if self.met else 'MISSED'}  {self.what}: {self.value:.4g} ({sign} {self.limit:g})"


@dataclass(frozen=True)
class Report:
    """What a measurement has to say: as text for people, as data for programs."""

    text: str
    data: dict[str, Any]
    bars: list[Bar]


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every measurement has."""
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a bar is missed")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--proxy-arg",
        action="append",
        default=[],
        metavar="FLAG",
        help="pass this on to the proxy, as in --proxy-arg=--no-sweep; may be repeated",
    )


def run(measure: Callable[[argparse.Namespace], Report], options: argparse.Namespace) -> int:
    """Measure, print, and return the exit status."""
    try:
        server = server_version()
        report = measure(options)
    except StageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        bars = [asdict(bar) | {"met": bar.met} for bar in report.bars]
        print(json.dumps(report.data | {"server": server, "bars": bars}, indent=2))
    else:
        print(server)
        print()
        print(report.text)
        print()
        print("\n".join(map(str, report.bars)))
    return 1 if options.check and not all(bar.met for bar in report.bars) else 0


def progress(text: str) -> None:
    """Say how far a measurement has come, apart from its result."""
    print(text, file=sys.stderr, flush=True)
