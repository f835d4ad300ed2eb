"""What a client has queued since its MULTI, as far as it matters to deadlines: looked at once more before EXEC.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Final

from proxy.commands.table import BLIND, JUDGED, MARKING, Command, Effect
from proxy.coverage.coverage import Coverage
from proxy.session.operations import Operation
from proxy.session.pipeline import Pipeline

REMEMBERED: Final = 100_000
"""Arguments that are remembered; beyond, whatever is due anywhere is removed before EXEC."""


LONGEST: Final = 1024
"""Bytes of an argument that is remembered, unless it is a covered key; longer ones are hardly keys."""

CLEARED_AT_MOST: Final = 100
"""Keys of a transaction from which what is due is removed in front of its requests."""

NAME_SIZE: Final = 96
"""Bytes that a remembered name takes, about, beside its own."""

MARK_SIZE: Final = 320
"""Bytes that a key takes which has been marked for a transaction, about, beside its name."""


class Transaction:
    """The requests between MULTI and EXEC.

    Args:
        coverage: the covered keys.
        owner: stands for the connection.

    Attributes:
        anticipates: whether the last request is judged as if its keys had deadlines: they are about to get some.
        is_long: whether a long chunk of it has been sent.
        has_begun: returns whether all that was sent before it has been answered, so that nothing runs until it ends;
            None where that cannot be told.
    """

    def __init__(self, coverage: Coverage, owner: Pipeline) -> None:
        self._coverage = coverage
        self._owner = owner
        self._arguments: set[bytes] = set()
        self._marked: dict[bytes, float] = {}
        self._everywhere = False
        self._blind: set[bytes] = set()
        self._cleared: set[bytes] = set()
        self._clearings = 0
        self._unjudged: set[bytes] = set()
        self._writes = 0
        self._size = 0
        self.anticipates = False
        self.is_long = False
        self.has_begun: Callable[[], bool] | None = None

    def expect_beginning(self) -> Callable[[], None]:
        """Return what is to be called when its first reply is to come next."""
        begun: list[bool] = []
        self.has_begun = lambda: bool(begun)
        return lambda: begun.append(True)

    @property
    def size(self) -> int:
        """Bytes, about, that is taken by what is remembered, and by the marks that last until it ends."""
        return self._size + MARK_SIZE * len(self._marked)

    @property
    def names(self) -> set[bytes]:
        """Every argument of what is queued: its keys are among them."""
        return self._arguments

    @property
    def everywhere(self) -> bool:
        """Whether something queued looks at keys that it does not name, or too much is queued to remember its keys."""
        return self._everywhere or len(self._arguments) > REMEMBERED

    @property
    def blind_keys(self) -> list[bytes]:
        """Known keys to which something queued may add members without looking which are absent."""
        return self._coverage.among(self._blind)

    @property
    def follows_writes(self) -> bool:
        """Whether something queued before the last request, one that writes, may have removed members."""
        return self._writes > 1

    def queue(
        self, command: Command | None, arguments: list[bytes], blind_keys: list[bytes], *, reads: bool = False
    ) -> None:
        """Remember a request.

        Args:
            command: what the table says of it, if anything.
            arguments: its arguments, the command's name first.
            blind_keys: the keys to which it may add members without looking which are absent.
            reads: whether the server says that it writes nothing.
        """
        self._writes += not reads
        if len(self._arguments) <= REMEMBERED:
            self._remember(arguments)
        if command is None:
            return
        if command.effect is Effect.DATABASE:
            self._cleared.clear()
        self._everywhere = self._everywhere or command.everywhere(arguments)
        self._keep(blind_keys, self._blind)
        keys = command.keys(arguments) or ()
        voided = blind_keys and not self.follows_writes and command.effect is not Effect.IMPORT
        if command.effect in JUDGED | BLIND and not self.anticipates and not voided:
            # Goes as it came, as its keys have no deadlines. They may have when the transaction runs.
            self._keep(set(keys).difference(self._coverage.among(keys)), self._unjudged)

    def queue_together(self, operations: Iterable[Operation], keys: Collection[bytes]) -> None:
        """Remember requests that one call of a script does, and which keys they name, each once.

        When it runs it sees to what is due in their keys, and voids the deadlines of what it removes.
        """
        self._size += NAME_SIZE * len(keys) + sum(map(len, keys))
        for _, key, _, delay in operations:
            if delay:
                self._marked[key] = min(self._marked.get(key, math.inf), delay)

    def _remember(self, arguments: list[bytes]) -> None:
        names = arguments[1:]
        if max(map(len, names), default=0) > LONGEST:
            # Values, in all likelihood, unless one stands where keys do.
            self._everywhere = self._everywhere or len(names[0]) > LONGEST
            names = [name for name in names if len(name) <= LONGEST or self._coverage.is_certain(name)]
        self._keep(names, self._arguments)

    def _keep(self, names: Iterable[bytes], where: set[bytes]) -> None:
        new = set(names) - where
        where |= new
        self._size += NAME_SIZE * len(new) + sum(map(len, new))

    def rewritten(self, command: Command, arguments: list[bytes], delay: float) -> None:
        """Remember which keys a request that was replaced may give deadlines.

        `delay`: in how many ms, from EXEC on, if it tells; not more than 0 where it just removes.
        """
        if command.effect in MARKING:
            keys = command.keys(arguments) or []
            if keys and command.effect is not Effect.EXPIRE:
                delay = self._marked.get(keys[0], math.inf)  # what its source is about to get it takes along
            for key in keys:
                self._marked[key] = min(self._marked.get(key, math.inf), delay if delay > 0 else math.inf)

    @property
    def cleared(self) -> Set[bytes]:
        """The keys from which what is due is removed in front of its requests, in the database that it is in."""
        return self._cleared

    def to_clear(self, names: Iterable[bytes]) -> list[bytes]:
        """Return those of some names that are keys from which to remove what is due, as far as there is room."""
        covered = self._coverage.among(names)
        return [key for key in covered if key not in self._cleared][: CLEARED_AT_MOST - self._clearings]

    def clear(self, keys: Collection[bytes]) -> None:
        """Note that what is due is removed from keys in front of the request that is about to be queued."""
        self._clearings += len(keys)
        self._keep(keys, self._cleared)

    @property
    def marked(self) -> Mapping[bytes, float]:
        """The keys that something queued may give deadlines: in how many ms, from EXEC on, if it tells."""
        return self._marked

    @property
    def is_overtaken(self) -> bool:
        """Whether a key of a request that went as it came has been covered since, not by a request of its own."""
        unjudged = self._coverage.among(self._unjudged)
        return bool(unjudged) and self._coverage.others_cover(unjudged, self._owner.mark)
