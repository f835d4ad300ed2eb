"""Run the subcommands `deadlines` and `explain`: print lines, return an exit status.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.check.probe import printable
from proxy.events.command import show
from proxy.looking.member import find_out, has_own_lifetimes, lines, outlook
from proxy.looking.merge import Asked, Deadline, Soonest, SpoiltError, TooManyError, check_index
from proxy.looking.reading import MOVING, LookError, Servers, opened
from proxy.looking.shown import BLOCK, FORMATS, Format
from proxy.looking.walk import RestlessError, Words
from proxy.session.globs import matches
from proxy.settings import Settings

DONE: Final = 0
ABSENT: Final = 1
FAILED: Final = 2

_SURVEYED: Final = 400
"""Number of indexes of a cluster to read in one step."""

_QUIET_SECONDS: Final = 0.5
_OFTEN_SECONDS: Final = 0.2


_OWN_LIFETIMES: Final = """\
note: this server has HEXPIRE itself, and the lifetimes that it sets are not listed; this shows them:
  HTTL {key} FIELDS n field ...
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The deadlines to list.

    Attributes:
        pattern: the keys, as a pattern of KEYS.
        key: one key to list instead of those of the pattern; None to use the pattern.
        most: maximum number of deadlines; 0 for all.
        within: how far ahead to look, in ms; infinite for all.
        form: one of `FORMATS`.
    """

    pattern: bytes = b"*"
    key: bytes | None = None
    most: int = 20
    within: float = math.inf
    form: str = "table"

    @property
    def only(self) -> bytes | None:
        """The only key to list; None if the options may mean several keys."""
        if self.key is not None:
            return self.key
        return self.pattern if beginning(self.pattern) == self.pattern else None


def list_deadlines(settings: Settings, wanted: Wanted) -> int:
    """Print deadlines, soonest first; return the exit status.

    Raises:
        SettingsError: a setting cannot be used.
    """

    async def work(servers: Servers) -> int:
        await _list(servers, wanted)
        if wanted.form == "table" and wanted.only is not None and await has_own_lifetimes(servers, wanted.only):
            _write(_OWN_LIFETIMES.format(key=show(wanted.only)))
        if any(server.lacks for server in servers.all):
            raise LookError(f"some deadlines may be missing: {MOVING}")
        return DONE

    return _run("deadlines", settings, work, wanted.key)


def explain(settings: Settings, key: bytes, member: bytes) -> int:
    """Print what is known about a member; return the exit status: 0 if the member exists.

    Raises:
        SettingsError: a setting cannot be used.
    """

    async def work(servers: Servers) -> int:
        facts = await find_out(servers, key, member)
        rows = lines(facts, str(servers.owner(key)))
        width = max(len(label) for label, _ in rows)
        text = "".join(f"{label:<{width}}  {printable(said)}\n" for label, said in rows)
        _write(f"{text}\n{outlook(facts)}\n")
        return {True: DONE, False: ABSENT, None: FAILED}[facts.there]

    return _run("explain", settings, work, key)


def _run(name: str, settings: Settings, work: Callable[[Servers], Awaitable[int]], key: bytes | None = None) -> int:
    async def connect() -> int:
        async with opened(settings, key) as servers:
            return await work(servers)

    try:
        return asyncio.run(connect())
    except LookError as error:
        _complain(name, str(error))
    except SpoiltError:
        _complain(name, "the index has the wrong type; a running proxy rebuilds it")
    except TooManyError:
        _complain(name, "too many keys to remember at once; ask for fewer deadlines: --next, --within, PATTERN")
    except RestlessError:
        _complain(name, "deadlines change faster than they can be read; try again")
    except KeyboardInterrupt:
        return 130
    return FAILED


def _complain(name: str, text: str) -> None:
    print(printable(f"expiremember-proxy: {name}: {text}"), file=sys.stderr)  # a reply may hold control characters


def _write(text: str, encoding: str | None = None) -> None:
    sys.stdout.buffer.write(text.encode(encoding or sys.stdout.encoding, "backslashreplace"))
    sys.stdout.buffer.flush()


class _Progress:
    """Shows progress on a terminal if the command takes long. `clear` removes the line at the end."""

    def __init__(self, text: Callable[[], str]) -> None:
        self.text = text
        self._shown = ""
        self._next = time.monotonic() + _QUIET_SECONDS
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def step(self) -> None:
        """Show the progress if it is time to."""
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + _OFTEN_SECONDS
            text = self.text()
            print("\r" + text.ljust(len(self._shown)), end="", file=sys.stderr, flush=True)
            self._shown = text

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r" + " " * len(self._shown) + "\r", end="", file=sys.stderr, flush=True)
            self._shown = ""


class _Stepping:
    """Passes requests on to a server, and shows the progress at each step."""

    def __init__(self, server: Asked, step: Callable[[], None]) -> None:
        self._server = server
        self._step = step

    async def ask(self, requests: Sequence[Words]) -> list[Any]:
        """Query the server, and show the progress."""
        self._step()
        return await self._server.ask(requests)


async def _list(servers: Servers, wanted: Wanted) -> None:
    now = await servers.all[0].moment()
    began = time.monotonic()
    names, is_wanted = servers.names, matcher(wanted.pattern)
    soonest = Soonest(
        names.shadow, lambda key: key != names.owed and is_wanted(key), until=now + wanted.within, most=wanted.most
    )
    progress = _Progress(lambda: "looking for deadlines")
    if wanted.key is not None:
        await soonest.add_key(_Stepping(servers.owner(wanted.key), progress.step), wanted.key)
    else:
        total = await _add_indexes(servers, soonest, progress.step)
        progress.text = lambda: f"looked at {soonest.looked_at:,} of {total:,} keys"
    form: Format = FORMATS[wanted.form]()
    encoding = {"csv": "utf-8", "json": "ascii"}.get(wanted.form)
    block: list[Deadline] = []

    def show_block() -> None:
        progress.clear()
        _write(form.rows(block, now + 1000 * (time.monotonic() - began)), encoding)
        block.clear()

    try:
        _write(form.begin(), encoding)
        async for deadline in soonest.deadlines():
            block.append(deadline)
            if len(block) == BLOCK:
                show_block()
        show_block()
        _write(form.end(), encoding)
    finally:
        progress.clear()


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Return a function that returns whether a key matches a pattern of KEYS."""
    if pattern == b"*":
        return lambda _: True
    head = beginning(pattern)
    if head + b"*" == pattern:
        return lambda key: key.startswith(head)
    return lambda key: key.startswith(head) and matches(pattern, key)


def beginning(pattern: bytes) -> bytes:
    """Return the literal beginning of a pattern of KEYS."""
    return pattern[: next((at for at, byte in enumerate(pattern) if byte in b"*?[\\"), len(pattern))]


async def _add_indexes(servers: Servers, soonest: Soonest, step: Callable[[], None]) -> int:
    """Add all indexes of all servers; return how many keys these indexes list."""
    names, total = servers.names, 0
    for server in servers.all:
        slots = sorted(server.node.slots) if server.node is not None else [None]
        stepping = _Stepping(server, step)
        for begin in range(0, len(slots), _SURVEYED):
            indexes = [names.index_of(number) for number in slots[begin : begin + _SURVEYED]]
            sizes = await stepping.ask([("ZCARD", index) for index in indexes])
            present = [index for index, size in zip(indexes, sizes, strict=True) if isinstance(size, int) and size]
            for error in (size for size in sizes if isinstance(size, Exception)):
                check_index(error)
            total += sum(size for size in sizes if isinstance(size, int))
            firsts = await stepping.ask([("ZRANGE", index, 0, 0, "WITHSCORES") for index in present]) if present else ()
            for index, first in zip(present, firsts, strict=True):
                if isinstance(first, Exception):
                    check_index(first)
                    continue
                soonest.add_index(stepping, index, float(first[1]) if first else 0.0)
    return total
