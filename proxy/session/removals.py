"""Encode the scripts that remove due members on clients' own connections, with a cache for frequent ones.

Its tests: tests/test_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from proxy.commands.described import Terms
from proxy.metrics.table import Metrics
from proxy.metrics.told import count_told
from proxy.scripts.calls import evaluation, reads_only
from proxy.scripts.naming import Names
from proxy.session.script_calls import ScriptCalls

MEMBERS_AT_ONCE: Final = 500
"""Maximum number of members that one script removes."""

AHEAD_MS: Final = 50
"""How far a script looks ahead. If few deadlines pass in that time, the next script removes all members that are due
then."""

MOST_DEADLINES: Final = 5_000
"""Maximum number of a key's deadlines that a front checks. Fronts are used for keys with at most a tenth as many, and
no server can add the rest within `AHEAD_MS`."""

_KEPT: Final = 1024 * 1024
"""Maximum size of the cache of requests for all connections, in bytes."""

_LARGEST_KEPT: Final = 16 * 1024
"""Maximum size of the two calls that are cached for a front, in bytes. Longer ones take more time to send than to
encode."""


class Removals:
    """Encodes scripts that remove due members, and counts the removed members.

    Args:
        names: the names of the proxy's own keys.
        calls: knows the terms of scripts that remove members.
        metrics: where to count members that are removed.
        refused: called with the server's error when the server refuses a removal on a client's connection.

    Attributes:
        names: the names of the proxy's own keys.
        refused: called with the server's error when the server refuses a removal on a client's connection.
    """

    def __init__(self, names: Names, calls: ScriptCalls, metrics: Metrics, refused: Callable[[bytes], None]) -> None:
        self.names = names
        self.refused = refused
        self._calls = calls
        self._metrics = metrics
        self._fronts: dict[tuple[Terms, int, tuple[bytes, ...]], tuple[bytes, bytes]] = {}
        self._size = 0  # size of `_fronts` in bytes

    def keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """Return the KEYS of a script for some keys of one slot."""
        return [self.names.index_for(keys[0]), *(name for key in keys for name in (key, self.names.shadow(key)))]

    def encode(self, script: str, keys: list[bytes], arguments: list[bytes]) -> bytes:
        """Return the call of a script."""
        terms = self._calls.removing._replace(writes=not reads_only(script))
        return evaluation(terms, script, keys, arguments, declared=self.names.declared(keys))

    def count(self, members: int, told: Sequence[int | bytes] = ()) -> None:
        """Count members that have been removed, and the events sent for them."""
        self._metrics.members_expired_total["request"] += members
        if told:
            count_told(self._metrics, told)

    def front(self, keys: tuple[bytes, ...], voided: int) -> tuple[bytes, bytes]:
        """Return the front that removes due members from keys of one slot, and voids deadlines in some of them.

        Args:
            keys: the keys.
            voided: in how many of them, from the first on, to void deadlines of absent members.

        Returns:
            The request, and a shorter one that does the same if sent directly after it.
        """
        terms = self._calls.removing
        calls = self._fronts.get((terms, voided, keys))
        if calls is None:
            index, *pairs = self.keys(keys)
            names = [index, index[:-5] + b"events", *pairs]
            limits = [b"%d" % limit for limit in (MOST_DEADLINES, 2 * MEMBERS_AT_ONCE, AHEAD_MS, voided)]
            call = partial(evaluation, terms, "front", names, limits, declared=self.names.declared(names))
            calls = call(), call(loaded=True)
            self._keep((terms, voided, keys), calls)
        elif self.names.slots is not None:
            self.names.index_for(keys[0])  # only to record that the index may be written
        return calls

    def _keep(self, front: tuple[Terms, int, tuple[bytes, ...]], calls: tuple[bytes, bytes]) -> None:
        size = sum(map(len, calls)) + sum(map(len, front[2]))
        if size > _LARGEST_KEPT:
            return
        if self._size + size > _KEPT:
            self._fronts.clear()
            self._size = 0
        self._fronts[front] = calls
        self._size += size
