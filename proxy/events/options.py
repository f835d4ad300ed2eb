"""The command line of `events`: its subcommands, their options and help texts.

Its tests: tests/test_events_command.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from proxy.events.rules import MOST_ENTRIES, Rule
from proxy.keydb.options import SETTINGS
from proxy.settings import Settings

__all__ = ["SETTINGS", "group"]  # `SETTINGS` is that of `import`, which takes the same settings

HELP: Final = """Manage expiry notifications: rules say where expired members are reported.

\b
  expiremember-proxy events set 'cart:*' --stream expired --value
  expiremember-proxy events set delayed --list ready
  expiremember-proxy events list
  expiremember-proxy events tail expired --follow
  expiremember-proxy events remove 'cart:*'

The rules are kept in the server, in each database for its own keys: --upstream redis://127.0.0.1:6379/3 means database
3. If the upstream is a proxy, the server behind it is meant. The rules apply to every proxy at once.
docs/events.md describes events, docs/recipes has programs."""

_SET: Final = """Report members that expire in keys that match PATTERN, a pattern as in KEYS. This replaces an existing
rule for the pattern.

--stream appends an entry for each member to a stream, in the same script that removes the member: exactly one entry.
--list pushes each member to a list in the same way, for workers that pop it: exactly one element.
--publish sends messages, which only current subscribers get."""
_REMOVE: Final = "Remove the rule for PATTERN. Its stream and its list stay as they are."
_LIST: Final = "List the rules of all databases."
_TAIL: Final = """Print the last entries of STREAM. A line has the time (UTC), key, member, value or count,
and how long after the deadline the member was removed."""

Load = Callable[[Path | None, dict[str, Any]], Settings]
"""Loads the settings."""


def group(load: Load, settings: list[click.Parameter], context_settings: dict[str, Any]) -> click.Group:
    """Make the subcommand.

    Args:
        load: loads the settings.
        settings: the flags of the settings that apply to these commands.
        context_settings: Click's settings, such as how help is shown.
    """

    def of(name: str, text: str, callback: Callable[..., Any], *parameters: click.Parameter) -> click.Command:
        return click.Command(
            name,
            params=[*parameters, *settings],
            callback=callback,
            help=text,
            short_help=text.split(".", maxsplit=1)[0] + ".",
            context_settings=context_settings,
        )

    def set_(
        config: Path | None, pattern: str, stream: str | None, pushed_to: str | None, value: bool, maxlen: int,
        publish: str, **flags: Any,
    ) -> None:  # fmt: skip
        from proxy.events.command import set_rule

        rule = Rule(
            os.fsencode(pattern), os.fsencode(stream or ""), value, maxlen, publish.upper(),
            list=os.fsencode(pushed_to or ""),
        )  # fmt: skip
        sys.exit(set_rule(_chosen(load(config, flags)), rule))

    def remove(config: Path | None, pattern: str, **flags: Any) -> None:
        from proxy.events.command import remove_rule

        sys.exit(remove_rule(_chosen(load(config, flags)), os.fsencode(pattern)))

    def list_(config: Path | None, **flags: Any) -> None:
        from proxy.events.command import list_rules

        sys.exit(list_rules(_chosen(load(config, flags))))

    def tail_(config: Path | None, stream: str, count: int, follow: bool, **flags: Any) -> None:
        from proxy.events.command import tail

        sys.exit(tail(_chosen(load(config, flags)), os.fsencode(stream), count, follow=follow))

    made = click.Group("events", help=HELP, short_help="Manage expiry notifications.",
                       context_settings=context_settings, subcommand_metavar="[set|list|remove|tail]")  # fmt: skip
    made.add_command(
        of(
            "set", _SET, set_, click.Argument(["pattern"]),
            click.Option(["--stream"], metavar="NAME", help="Append an entry for each member to this stream."),
            click.Option(["--list", "pushed_to"], metavar="NAME", help="Push each member to this list."),
            click.Option(
                ["--value"], is_flag=True,
                help="Add a hash field's value or a score to entries; push that instead of the member.",
            ),
            click.Option(
                ["--maxlen"], type=click.IntRange(0, MOST_ENTRIES), default=1_000_000, metavar="N",
                help="Keep about N entries, read or not; older ones are lost. 0 keeps all. [default: 1000000]",
            ),
            click.Option(
                ["--publish"], metavar="LETTERS", default="",
                help="Publish messages as Redis 8.8 does for hash fields, of the kinds S, T, I, V: STIV for all.",
            ),
        )
    )  # fmt: skip
    made.add_command(of("list", _LIST, list_))
    made.add_command(of("remove", _REMOVE, remove, click.Argument(["pattern"])))
    made.add_command(
        of(
            "tail", _TAIL, tail_, click.Argument(["stream"]),
            click.Option(
                ["--count", "-n"], type=click.IntRange(1, 10_000), default=10, metavar="N",
                help="How many. [default: 10]",
            ),
            click.Option(["--follow", "-f"], is_flag=True, help="Also print new entries, until Ctrl-C."),
        )
    )  # fmt: skip
    return made


def _chosen(settings: Settings) -> Settings:
    from proxy.embedded.running import of_running

    return of_running(settings)
