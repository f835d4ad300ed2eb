"""Which keys may have members with deadlines: those that begin with a covered prefix.

Its tests: tests/test_coverage.py.

A prefix is announced to all proxies before the first deadline is set under it. From then on every proxy queries the
server, which has the deadlines, for each request on keys under the prefix. A proxy that may have missed a prefix covers
every key.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from proxy.coverage.clearance import Clearance
from proxy.coverage.prefixes import MOST, merged, prefix_of

DATABASES: Final = frozenset(range(1024))
"""The databases that a client's request can add to `Coverage.databases`. Those that the server does not have are
dropped later."""

_WHOLE: Final = b"!"
_PREFIX: Final = b"="
"""The first byte of an entry, in messages and in the server's list: `_WHOLE` in front of a whole name, `_PREFIX` in
front of a prefix."""


def lease_clock() -> float:
    """Return the time for leases, in seconds, by a clock that runs on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _nothing(_chunk: bytes) -> None:
    return None


class Scope(NamedTuple):
    """Which keys were covered at one moment.

    Attributes:
        blind: whether all keys were.
        prefixes: the prefixes of the names of covered keys.
        whole: further names of covered keys.
    """

    blind: bool
    prefixes: tuple[bytes, ...]
    whole: frozenset[bytes]

    def is_certain(self, key: bytes) -> bool:
        """Return whether a key was covered by an entry, and not only because the proxy was blind."""
        return key.startswith(self.prefixes) or key in self.whole

    def among(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys that might have had members with deadlines, each once."""
        found, (blind, prefixes, whole) = dict.fromkeys(keys), self
        return list(found) if blind else [key for key in found if key.startswith(prefixes) or key in whole]


class Coverage:
    """The covered prefixes, and whether they are complete.

    Attributes:
        entries: covered prefix or whole name, with `_PREFIX` or `_WHOLE` in front → the connection that began the
            entry; None if other connections may use the entry.
        blind: whether prefixes may be missing, so that every key is covered.
        loaded: whether the prefixes have been read over the current control connection.
        trusted_until: the end of the lease (`lease_clock`): before it, no announcement can have been missed.
        shared: whether there may be other proxies, to which first deadlines must be announced.
        databases: the numbers of the databases that may hold deadlines.
        search: finds the beginning of a covered key in a chunk of a client's bytes; may report false matches.
        on_announced: called when another proxy has announced entries.
        on_covered: called with entries that come from other proxies, the server or the settings.
        ever: whether a prefix has ever been covered, so that the proxy's own keys may exist.
        told: whether any database has rules for events.
        cleared: the keys from which the engine has just removed due members, in all databases.
    """

    def __init__(self) -> None:
        self.entries: dict[bytes, object] = {}
        self.blind = True
        self.loaded = False
        self.trusted_until = math.inf
        self.shared = False
        self.databases: set[int] = {0}
        self.ever = False
        self.told = False
        self.cleared = Clearance()
        self.search: Callable[[bytes], object] = _nothing
        self.on_announced: Callable[[], None] = lambda: None
        self.on_covered: Callable[[list[bytes]], None] = lambda _: None
        self._begun: set[bytes] = set()  # entries that connections here use and other proxies have not confirmed
        self._confirmed: set[bytes] = set()
        self._confirmed_prefixes: tuple[bytes, ...] = ()
        self._confirmed_whole: frozenset[bytes] = frozenset()
        self._prefixes: tuple[bytes, ...] = ()
        self._whole: frozenset[bytes] = frozenset()

    def __len__(self) -> int:
        return len(self.entries)

    # Called by sessions.

    def is_certain(self, key: bytes) -> bool:
        """Return whether a key is covered by an entry, and not only because the proxy is blind."""
        return key.startswith(self._prefixes) or key in self._whole

    def covers(self, key: bytes) -> bool:
        """Return whether a key may have members with deadlines."""
        return self.blind or key.startswith(self._prefixes) or key in self._whole

    def among(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys that may have members with deadlines, each once."""
        found = dict.fromkeys(keys)
        if self.blind:
            return list(found)
        prefixes, whole = self._prefixes, self._whole
        return [key for key in found if key.startswith(prefixes) or key in whole]

    def touches(self, requests: Iterable[list[bytes]]) -> bool:
        """Return whether any argument of some requests is the name of a covered key.

        Raises:
            AttributeError: an element of a request is not bytes.
        """
        if self.blind:
            return True
        prefixes, whole = self._prefixes, self._whole
        if not prefixes and not whole:
            return False
        for request in requests:
            for argument in request:
                if argument.startswith(prefixes) or argument in whole:
                    return True
        return False

    def look(self) -> None:
        """Become blind if the lease has run out. Call this before requests are judged.

        A timer would be too late: a process that was stopped serves its sockets before its timers.
        """
        if self.trusted_until < math.inf and lease_clock() >= self.trusted_until:
            self.distrust()

    def distrust(self) -> None:
        """Become blind until the other proxies can be reached again."""
        self.blind = self.shared = True

    def see(self) -> None:
        """Stop being blind if the prefixes have been read and the lease is valid; otherwise become blind."""
        self.blind = not self.loaded or (self.trusted_until < math.inf and lease_clock() >= self.trusted_until)

    def visit(self, databases: Iterable[int]) -> None:
        """Note databases that a client selects, or moves or copies keys to."""
        new = DATABASES.intersection(databases) - self.databases
        if new:
            self.databases |= new
            self.cleared.forget()

    @property
    def scope(self) -> Scope:
        """Which keys are covered now."""
        return Scope(self.blind, self._prefixes, self._whole)

    # First deadlines.

    def unconfirmed(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys that may get deadlines only after an entry has been announced."""
        prefixes, whole = self._confirmed_prefixes, self._confirmed_whole
        return [key for key in keys if not (key.startswith(prefixes) or key in whole)]

    def is_confirmed(self, key: bytes) -> bool:
        """Return whether a key may get deadlines without an announcement."""
        return key.startswith(self._confirmed_prefixes) or key in self._confirmed_whole

    def begin(self, keys: Iterable[bytes], by: object, *, queued: bool = False) -> list[bytes]:
        """Cover keys that are about to get their first deadlines from a request.

        Args:
            keys: the keys.
            by: the connection that sent the request.
            queued: whether the request is queued until the EXEC of an open transaction.

        Returns:
            The entries that have to be announced before the request is sent.
        """
        wanted: dict[bytes, None] = {}
        for key in self.unconfirmed(keys):
            if not self.is_certain(key):
                entries = self._entries_for(key)
                self._add(entries, by)
                wanted.update(dict.fromkeys(entries))
            covering = [entry for entry in self.entries if _covers(entry, key)]
            for entry in () if queued else covering:
                if self.entries[entry] is not by:
                    self.entries[entry] = None  # from now on several connections may use it
            wanted.update(dict.fromkeys(covering))
        self._begun.update(wanted)
        return list(wanted)

    def want(self, prefixes: Iterable[bytes]) -> list[bytes]:
        """Cover prefixes given by the `cover` setting; return the entries to announce."""
        wanted: dict[bytes, None] = {}
        for prefix in self.unconfirmed(prefixes):
            if not self.is_certain(prefix):
                self._add([_PREFIX + prefix], None)
            wanted.update(dict.fromkeys(entry for entry in self.entries if _covers(entry, prefix)))
        return list(wanted)

    def _entries_for(self, key: bytes) -> list[bytes]:
        """Return the entry that covers a key and, if there are too many entries, wider entries that replace others."""
        prefix = prefix_of(key)
        if not prefix:
            return [_WHOLE + key]
        prefixes, wider = {*self._prefixes, prefix}, set()
        while len(prefixes) > MOST:
            common = merged(prefixes)[2]
            prefixes = {common, *(one for one in prefixes if not one.startswith(common))}
            wider.add(common)
        covering = next(prefix for prefix in prefixes if key.startswith(prefix))
        return [_PREFIX + prefix for prefix in {covering, *(wider & prefixes)}]

    def confirm(self, entries: Iterable[bytes]) -> None:
        """Note that all proxies know some entries and that the server lists them."""
        self._begun.difference_update(entries)
        self._confirmed.update(entries)
        prefixes = [entry[1:] for entry in self._confirmed if entry[:1] == _PREFIX]
        for prefix in prefixes:
            if any(prefix != other and prefix.startswith(other) for other in prefixes):
                self._confirmed.discard(_PREFIX + prefix)  # a shorter confirmed prefix includes this one
        self._confirmed_prefixes = tuple(entry[1:] for entry in self._confirmed if entry[:1] == _PREFIX)
        self._confirmed_whole = frozenset(entry[1:] for entry in self._confirmed if entry[:1] == _WHOLE)

    def learn(self, keys: Iterable[bytes]) -> None:
        """Cover keys for which the server has deadlines. Other proxies find them in the same way."""
        for key in keys:
            if not self.is_certain(key):
                self._add(self._entries_for(key), None)

    def add(self, entries: Collection[bytes]) -> None:
        """Cover entries from the server's list; ignore anything that is not an entry."""
        self._add([entry for entry in entries if entry[:1] in (_PREFIX, _WHOLE)], None)

    def hear(self, entries: Collection[bytes]) -> None:
        """Cover entries that another proxy has announced: its clients may set deadlines under them from now on.

        If a connection of this proxy began such an entry, the entry no longer belongs to that connection alone.
        """
        begun = [entry for entry in entries if entry in self._begun and entry in self.entries]
        self._begun.difference_update(begun)
        self.entries.update(dict.fromkeys(begun))
        self.add(entries)
        if begun:
            self.on_covered(begun)

    def _add(self, entries: Collection[bytes], by: object) -> None:
        new = [entry for entry in entries if entry not in self.entries]
        if not new:
            return
        self.ever = True
        for entry in new:
            self.entries[entry] = by
        self._drop_narrower()
        self._prefixes = tuple(entry[1:] for entry in self.entries if entry[:1] == _PREFIX)
        self._whole = frozenset(entry[1:] for entry in self.entries if entry[:1] == _WHOLE)
        names = b"|".join(map(re.escape, (*self._prefixes, *self._whole)))
        self.search = re.compile(b"\n(?:" + names + b")").search if self.entries else _nothing
        if by is None:
            self.on_covered(new)

    def _drop_narrower(self) -> None:
        """If there are too many prefixes, drop those that a shorter one includes."""
        if len(self.entries) <= MOST:
            return
        prefixes = [entry[1:] for entry in self.entries if entry[:1] == _PREFIX]
        for prefix in prefixes:
            wider = [other for other in prefixes if prefix != other and prefix.startswith(other)]
            if wider:
                by = self.entries.pop(_PREFIX + prefix)
                for other in wider:
                    if self.entries.get(_PREFIX + other) is not by and _PREFIX + other in self.entries:
                        self.entries[_PREFIX + other] = None

    def others_cover(self, keys: Iterable[bytes], by: object) -> bool:
        """Return whether any of the keys is covered by an entry that does not belong to the given connection alone."""
        if self.blind:
            return True
        return any(
            owner is not by and any(_covers(entry, key) for key in keys) for entry, owner in self.entries.items()
        )


def _covers(entry: bytes, key: bytes) -> bool:
    return key.startswith(entry[1:]) if entry[:1] == _PREFIX else entry[1:] == key


def covers_any(entries: Iterable[bytes], keys: Iterable[bytes]) -> bool:
    """Return whether some entry covers some key."""
    return any(_covers(entry, key) for entry in entries for key in keys)
