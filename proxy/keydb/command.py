"""The subcommand `import`: run it, print a summary and return the exit status.

Its tests: tests/test_import.py.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import click
import structlog

from proxy.keydb.apply import ApplyError, Importer, Mode, Named, Outcome, Tally
from proxy.keydb.options import Order, of_source
from proxy.keydb.rdb import LARGEST, Ambiguity, DamagedError, Findings, Reader
from proxy.keydb.source import FileSource, ServerSource, SourceError
from proxy.keydb.spool import Spool, SpoolError
from proxy.scripts.naming import Names
from proxy.settings import Settings, SettingsError
from proxy.upstream.endpoint import Upstream

log = structlog.get_logger("proxy.import")

DONE: Final = 0
STOPPED: Final = 1
INCOMPLETE: Final = 3
"""The exit status if some deadlines could not be set. Status 2 is for invalid settings, as everywhere."""


def run(settings: Settings, order: Order) -> int:
    """Import the deadlines, and print a summary.

    Returns:
        The exit status.

    Raises:
        SettingsError: a certificate or a password file cannot be used.
    """
    importer = Importer(
        Upstream(settings, settings.upstream), Names(settings.prefix.encode()), settings.control_timeout
    )
    try:
        source = _source(order)
        asyncio.run(importer.reach())
        with Spool() as spool:
            found = _gather(source, spool)
            _print_findings(order.name if order.server is None else str(source), found)
            good = found.too_large == found.out_of_range == found.ambiguous == found.untold == 0
            mode = Mode.LOOK if order.dry_run else Mode.SET
            good = _apply(importer, spool, mode) and good
            if order.verify:
                good = _apply(importer, spool, Mode.COMPARE) and good
    except DamagedError as error:
        return _stop(f"{order.name}: {error}; nothing has been changed")
    except (SourceError, SpoolError, ApplyError) as error:
        return _stop(str(error))
    except KeyboardInterrupt:
        _stop("interrupted; repeat the import to complete it")
        return 130
    return DONE if good else INCOMPLETE


def _source(order: Order) -> FileSource | ServerSource:
    if order.server is None:
        return FileSource(None if order.rdb == "-" else Path(order.rdb or ""))
    try:
        return ServerSource(Upstream(order.server, order.server.upstream))
    except SettingsError as error:
        raise of_source(str(error)) from None


def _stop(text: str) -> int:
    print("expiremember-proxy: import: " + text, file=sys.stderr)
    return STOPPED


def _gather(source: FileSource | ServerSource, spool: Spool) -> Findings:
    """Read the whole source.

    Raises:
        DamagedError: the source is not a complete RDB file.
        SourceError: the source cannot be read.
        SpoolError: there is no space to store the deadlines.
    """
    reader = Reader()

    async def receive(source: ServerSource) -> None:
        async for chunk in source.chunks():
            progress.begin(source.size)
            spool.add(reader.feed(chunk))
            progress.step(len(chunk))

    with _Progress("reading", "bytes") as progress:
        if isinstance(source, ServerSource):
            asyncio.run(receive(source))
        else:
            progress.begin(source.size)
            for chunk in source.chunks():
                spool.add(reader.feed(chunk))
                progress.step(len(chunk))
    spool.finish()
    return reader.finish()


def _apply(importer: Importer, spool: Spool, mode: Mode) -> bool:
    """Process all deadlines, and print the outcomes; return whether all outcomes are good."""
    tally = Tally()
    label = {Mode.SET: "importing", Mode.LOOK: "looking", Mode.COMPARE: "comparing"}[mode]
    try:
        with _Progress(label, "deadlines") as progress:
            progress.begin(spool.size)
            asyncio.run(importer.run(spool, mode, tally, progress.step))
    except BaseException:
        if tally.total:
            click.echo(f"stopped after {tally.total:,} of {_count(spool.size, 'deadline')}")
        raise
    _print_tally(mode, tally)
    return tally.is_good


# Output.


class _Progress:
    """Shows progress: a bar on a terminal, otherwise a log line every 10 s."""

    def __init__(self, label: str, unit: str) -> None:
        self._label = label
        self._unit = unit
        self._done = 0
        self._total: int | None = None
        self._bar: AbstractContextManager[Any] | None = None
        self._update: Callable[[int], None] = lambda _: None
        self._said = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def begin(self, total: int | None) -> None:
        """Start to show progress. `total`: the amount to do; None if unknown."""
        if self._bar is not None:
            return
        self._bar = nullcontext()
        self._total = total
        if total and sys.stderr is not None and sys.stderr.isatty():
            bar = click.progressbar(length=total, label=self._label, file=sys.stderr)
            self._bar, self._update = bar, bar.update
            bar.__enter__()

    def step(self, count: int) -> None:
        """Add to the amount done."""
        self._done += count
        self._update(count)
        if isinstance(self._bar, nullcontext) and time.monotonic() - self._said > _SAID_EVERY:
            self._said = time.monotonic()
            log.info("import progress", step=self._label, done=self._done, total=self._total, unit=self._unit)

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)


_SAID_EVERY: Final = 10.0


def _print_findings(name: str, found: Findings) -> None:
    checksum = "checksum correct" if found.checked else "no checksum, so damage would go unnoticed"
    click.echo(
        f"{name}: {_count(found.keys, 'key')}; {found.with_deadlines:,} of them"
        f" {'has' if found.with_deadlines == 1 else 'have'} members with deadlines:"
        f" {_count(found.rows, 'deadline')}; {checksum}"
    )
    for count, text in (
        (found.too_large, f"left out: the key or the member is larger than {LARGEST:,} bytes"),
        (found.out_of_range, "left out: the deadline is out of range"),
        (found.ambiguous, _CUT_OFF),
        (found.untold, _TOO_MANY),
        (found.modules, "values of modules skipped"),
    ):
        if count:
            click.echo(f"{count:>12,}  {text}")
        if text is _TOO_MANY:
            for database, key in found.untold_of:
                click.echo(f"{'':14}database {database}: {_show(key)}")
        if text is _CUT_OFF:
            for ambiguity in found.ambiguities:
                click.echo(f"{'':14}{_explain(ambiguity)}")
            if sum(ambiguity.deadlines for ambiguity in found.ambiguities) < count:
                click.echo(f"{'':14}…")
    if found.cron_jobs:
        names = ", ".join(map(_show, found.cron_names)) + (", …" if found.cron_jobs > len(found.cron_names) else "")
        click.echo(f"{found.cron_jobs:>12,}  KEYDB.CRON jobs skipped, because no other server loads them: {names}")


_CUT_OFF: Final = "left out: KeyDB cut the member off at a NUL byte, and several members match"
_TOO_MANY: Final = "left out: KeyDB cuts members off at a NUL byte, and the key has too many with one"


def _explain(found: Ambiguity) -> str:
    """Explain on one line which member is ambiguous, and why."""
    members = list(found.members)
    if found.deadlines > found.candidates:
        members.insert(0, found.begin)
    deadlines = _count(found.deadlines, "deadline" if found.same else "different deadline")
    names = ", ".join(map(_show, members)) + (", …" if found.candidates > len(found.members) else "")
    return f"database {found.database}: {_show(found.key)} {_show(found.begin)}: {deadlines} for {names}"


_WORDS: Final = {
    Outcome.SET: ("set", "to be set", "the same"),
    Outcome.REMOVED: ("deadline passed: member removed", "deadline passed: member to be removed", ""),
    Outcome.PASSED: ("deadline passed: member already gone",) * 3,
    Outcome.NO_KEY: ("no such key",) * 3,
    Outcome.NO_MEMBER: ("no such member",) * 3,
    Outcome.OTHER_TYPE: ("the key has another type",) * 3,
    Outcome.AMBIGUOUS: ("ambiguous: KeyDB cut the member off at a NUL byte",) * 3,
    Outcome.NO_DATABASE: ("no such database",) * 3,
    Outcome.DIFFERS: ("", "", "another deadline, or none"),
}
_COLUMN: Final = {Mode.SET: 0, Mode.LOOK: 1, Mode.COMPARE: 2}


def _print_tally(mode: Mode, tally: Tally) -> None:
    heading = {Mode.SET: "imported", Mode.LOOK: "dry run, nothing changed", Mode.COMPARE: "compared"}[mode]
    click.echo(f"{heading}: {_count(tally.total, 'deadline')}")
    for outcome, words in _WORDS.items():
        count = tally.counts[outcome]
        if count or (outcome is Outcome.SET):
            click.echo(f"{count:>12,}  {words[_COLUMN[mode]]}")
            names = tally.names.get(outcome, {})
            for (database, key), named in names.items():
                click.echo(f"{'':14}database {database}: {_show(key)} {_members(named)}")
            if names and count > sum(named.count for named in names.values()):
                click.echo(f"{'':14}…")


def _members(named: Named) -> str:
    shown = ", ".join(
        _show(member) if other is None else f"{_show(member)} or {_show(other)}" for member, other in named.members
    )
    return shown if named.count == len(named.members) else f"{shown}, … ({named.count:,})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _show(name: bytes) -> str:
    """Format a key or a member as text that fits on a line of a terminal."""
    text = repr(name)[1:]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


_SHOWN: Final = 60
