"""The command line of `deadlines` and `explain`: their options and help texts.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from proxy.keydb.options import SETTINGS
from proxy.settings import Settings

__all__ = ["SETTINGS", "commands"]  # `SETTINGS` is that of `import`, which takes the same settings

_DEADLINES: Final = """List deadlines, soonest first, of the keys that match PATTERN, a pattern as in KEYS.

\b
  expiremember-proxy deadlines --upstream redis://127.0.0.1:6379
  expiremember-proxy deadlines 'cart:*' --within 1h --next 0 --format csv

It reads the server itself, in small steps, and changes nothing. If the upstream is a proxy, it reads the server behind
that proxy; of a cluster, any node will do. Without PATTERN it lists all keys of the database.

The exit status is 0, or 2 if the deadlines cannot be read. docs/deadlines.md describes the formats."""

_EXPLAIN: Final = """Show all that is known about MEMBER of KEY: whether it exists, its deadline, and what will happen.

It reads the server itself, and changes nothing. If the upstream is a proxy, it reads the server behind that proxy.

The exit status is 0 if the member exists, 1 if not, 2 if that cannot be found out. docs/deadlines.md describes the
output."""

LONGEST_PATTERN: Final = 1024

_WITHIN: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Load = Callable[[Path | None, dict[str, Any]], Settings]
"""Loads the settings."""


def _time(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Convert a time, such as `90s`, to ms."""
    if value is None:
        return None
    found = _WITHIN.fullmatch(value)
    if found is None:
        raise click.BadParameter("give a number and a unit: 90s, 15m, 1h or 2d", context, option)
    return float(int(found[1]) * _MS[found[2]])


def commands(load: Load, settings: list[click.Parameter], context_settings: dict[str, Any]) -> list[click.Command]:
    """Make the subcommands.

    Args:
        load: loads the settings.
        settings: the flags of the settings that apply to these commands.
        context_settings: Click's settings, such as how help is shown.
    """

    def deadlines(
        config: Path | None, pattern: str | None, key: str | None, next_: int, within: float | None, format_: str,
        **flags: Any,
    ) -> None:  # fmt: skip
        if pattern is not None and key is not None:
            raise click.UsageError("give PATTERN or --key, not both")
        if pattern is not None and len(os.fsencode(pattern)) > LONGEST_PATTERN:
            raise click.UsageError(f"PATTERN has at most {LONGEST_PATTERN} bytes")
        from proxy.looking.command import Wanted, list_deadlines

        wanted = Wanted(
            os.fsencode("*" if pattern is None else pattern), None if key is None else os.fsencode(key), next_,
            math.inf if within is None else within, format_,
        )  # fmt: skip
        sys.exit(list_deadlines(_chosen(load(config, flags)), wanted))

    def explain_(config: Path | None, key: str, member: str, **flags: Any) -> None:
        from proxy.looking.command import explain

        sys.exit(explain(_chosen(load(config, flags)), os.fsencode(key), os.fsencode(member)))

    return [
        click.Command(
            "deadlines", callback=deadlines, help=_DEADLINES, short_help="List deadlines, soonest first.",
            context_settings=context_settings,
            params=[
                click.Argument(["pattern"], required=False),
                click.Option(["--key"], metavar="KEY", help="Only this key, by its exact name."),
                click.Option(
                    ["--next", "-n", "next_"], type=click.IntRange(0, 100_000), default=20, metavar="N",
                    help="How many; 0 lists all. [default: 20]",
                ),
                click.Option(
                    ["--within"], callback=_time, metavar="TIME",
                    help="Only members that expire within this time or are overdue: 90s, 15m, 1h, 2d.",
                ),
                click.Option(
                    ["--format", "format_"], type=click.Choice(["table", "json", "csv"]), default="table",
                    metavar="table|json|csv", help="For people, programs, or spreadsheets. [default: table]",
                ),
                *settings,
            ],
        ),
        click.Command(
            "explain", callback=explain_, help=_EXPLAIN, short_help="Explain why a member exists, or not.",
            context_settings=context_settings,
            params=[click.Argument(["key"]), click.Argument(["member"]), *settings],
        ),
    ]  # fmt: skip


def _chosen(settings: Settings) -> Settings:
    from proxy.embedded.running import of_running

    return of_running(settings)
