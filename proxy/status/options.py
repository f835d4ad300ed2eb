"""The subcommand `top` and its options.

Its tests: tests/test_top.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from proxy.settings import Settings

HELP: Final = """Show in the terminal how a running proxy is, and what falls due next, until q or Ctrl-C.

URL is the address of its admin port: http://host:port, host:port or unix:///path; without one that of the setting
admin, else 127.0.0.1:9121."""
SHORT: Final = "Show how a running proxy is, live."

DEFAULT: Final = "127.0.0.1:9121"


def command(load: Callable[[Path | None, dict[str, Any]], Settings], context_settings: dict[str, Any]) -> click.Command:
    """Create the subcommand.

    Args:
        load: loads the settings.
        context_settings: click's settings for the help output.
    """

    def run(url: str | None, *, once: bool, as_json: bool) -> None:
        from proxy.status.top import run as run_top

        sys.exit(run_top(url or load(None, {}).admin or DEFAULT, once=once, as_json=as_json))

    return click.Command(
        "top",
        params=[
            click.Argument(["url"], required=False),
            click.Option(["--once"], is_flag=True, help="Print the figures once."),
            click.Option(["--json", "as_json"], is_flag=True, help="Print a line of JSON every 2 s, or --once."),
        ],
        callback=run,
        help=HELP,
        short_help=SHORT,
        context_settings=context_settings,
    )
