"""Run the subcommands of `events`: print lines for people and return an exit status.

Its tests: tests/test_events_command.py.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import click

from proxy.check.probe import printable
from proxy.events.rules import Rule, RuleError
from proxy.events.store import Fields, Found, NoneSuchError, Store, StoreError, Target, opened
from proxy.scripts.naming import Names
from proxy.settings import Settings, SettingsError
from proxy.upstream.endpoint import Upstream

NONE_SUCH: Final = 1
FAILED: Final = 2

_SHOWN: Final = 60
_COLUMNS: Final = ("database", "pattern", "stream", "entries", "kept", "list", "elements", "value", "publish")
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_NAMED: Final = (b"key", b"type", b"member", b"deadline", b"value", b"count")


def set_rule(settings: Settings, rule: Rule) -> int:
    """Set a rule in the database that the upstream's URL names; return the exit status.

    Raises:
        SettingsError: the rule or a setting is not valid.
    """
    upstream = Upstream(settings, settings.upstream)
    rule = replace(rule, database=upstream.database)
    try:
        rule.check(settings.prefix.encode())
    except RuleError as error:
        raise SettingsError(f"events set: {error}") from None

    async def work(store: Store) -> None:
        had = await store.put(rule)
        click.echo(f"{'replaced' if had else 'set'}: {_in_words(rule)}")

    return _run(settings, upstream, work)


def remove_rule(settings: Settings, pattern: bytes) -> int:
    """Remove the rule for a pattern; return the exit status: 1 if there is no such rule."""
    upstream = Upstream(settings, settings.upstream)

    async def work(store: Store) -> None:
        if not await store.remove(upstream.database, pattern):
            raise NoneSuchError(f"no rule for {show(pattern)} in database {upstream.database}; see events list")
        click.echo(f"removed: {show(pattern)} in database {upstream.database}; what it wrote stays as it is")

    return _run(settings, upstream, work)


def list_rules(settings: Settings) -> int:
    """Print the rules of all databases; return the exit status."""

    async def work(store: Store) -> None:
        rows = [_COLUMNS, *map(_row, await store.rules())]
        if len(rows) == 1:
            click.echo("no rules")
            return
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    return _run(settings, Upstream(settings, settings.upstream), work)


def tail(settings: Settings, stream: bytes, count: int, *, follow: bool) -> int:
    """Print the last entries of a stream, with `follow` also new ones. Return the exit status: 1 without a stream."""
    upstream = Upstream(settings, settings.upstream)

    async def work(store: Store) -> None:
        last = b"0-0"
        entries = await store.last(stream, count)
        if not entries and not await store.is_there(stream):
            missing = f"there is no stream {show(stream)} in database {upstream.database}"
            if not follow:
                raise NoneSuchError(f"{missing}; a rule creates it when a member expires: see events list")
            _complain(f"{missing} yet; waiting for it")
        while True:
            for number, fields in entries:
                click.echo(line(number, fields))
                last = number
            if not follow:
                return
            entries = await store.after(stream, last)

    return _run(settings, upstream, work)


def _run(settings: Settings, upstream: Upstream, work: Callable[[Store], Awaitable[None]]) -> int:
    async def connect() -> None:
        async with opened(upstream, Names(settings.prefix.encode())) as store:
            await work(store)

    try:
        asyncio.run(connect())
    except StoreError as error:
        _complain(str(error))
        return NONE_SUCH if isinstance(error, NoneSuchError) else FAILED
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(text: str) -> None:
    print(printable(f"expiremember-proxy: events: {text}"), file=sys.stderr, flush=True)


# Output for people.


def show(name: bytes) -> str:
    """Return a name as text that fits on a line, without control characters."""
    text = name.decode("utf-8", "backslashreplace")
    if not text.isprintable() or text != text.strip() or not text:
        text = repr(name)[1:]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def line(number: bytes, fields: Fields) -> str:
    """Return the line for an entry: time, key, member, value or count, delay after the deadline.

    Args:
        number: the entry's ID, which begins with the server's time in Unix ms.
        fields: the entry.
    """
    moment = int(number.partition(b"-")[0])
    try:
        when = datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError):
        when = show(number)
    if not {b"key", b"member", b"deadline"} <= fields.keys() or not _NUMBER.fullmatch(fields[b"deadline"]):
        return f"{when}  " + "  ".join(f"{show(name)}={show(value)}" for name, value in fields.items())
    words = [when, show(fields[b"key"]), show(fields[b"member"])]
    words += [f"{name.decode()}={show(fields[name])}" for name in (b"value", b"count") if name in fields]
    words += [f"{show(name)}={show(value)}" for name, value in fields.items() if name not in _NAMED]
    return "  ".join((*words, f"late {moment - int(fields[b'deadline'])} ms"))


def _in_words(rule: Rule) -> str:
    parts = [f"members of {show(rule.pattern)} in database {rule.database} that expire"]
    if rule.stream:
        kept = f"about {rule.maxlen:,} entries kept, read or not" if rule.maxlen else "all entries kept"
        value = ", with values" if rule.value else ""
        parts.append(f"are appended to the stream {show(rule.stream)} ({kept}{value})")
    if rule.list:
        parts.append(f"are pushed to the list {show(rule.list)}{' (their values)' if rule.value else ''}")
    if rule.letters:
        parts.append(f"are published ({rule.letters})")
    return f"{parts[0]} {' and '.join(parts[1:])}"


def _row(found: Found) -> tuple[str, ...]:
    rule = found.rule
    if rule is None:
        return (str(found.database), "not a rule: written by another version, or by hand", *[""] * (len(_COLUMNS) - 2))
    return (
        str(found.database),
        show(rule.pattern),
        show(rule.stream) if rule.stream else "-",
        _size(rule.stream, found.stream, "NOT A STREAM"),
        ("all" if not rule.maxlen else f"{rule.maxlen:,}") if rule.stream else "-",
        show(rule.list) if rule.list else "-",
        _size(rule.list, found.list, "NOT A LIST"),
        "yes" if rule.value else "no",
        rule.letters or "-",
    )


def _size(name: bytes, target: Target, wrong: str) -> str:
    if not name:
        return "-"
    if not target.is_one:
        return wrong
    return "?" if target.size is None else f"{target.size:,}"
