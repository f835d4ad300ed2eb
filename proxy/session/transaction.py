"""Track what the requests queued since a MULTI may do to deadlines: before EXEC their keys are checked again.

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
from proxy.session.presumed import Presumed

REMEMBERED: Final = 100_000
"""Maximum number of arguments to remember; beyond that, all due members everywhere are removed before EXEC."""


LONGEST: Final = 1024
"""Maximum size, in bytes, of an argument to remember, unless it is a covered key; longer arguments are rarely keys."""

CLEARED_AT_MOST: Final = 100
"""Maximum number of a transaction's keys from which due members are removed in front of its requests."""

NAME_SIZE: Final = 96
"""Approximate overhead of a remembered name, in bytes."""

MARK_SIZE: Final = 320
"""Approximate overhead of a key that a transaction may give deadlines, in bytes."""


class Transaction:
    """The requests between MULTI and EXEC.

    Args:
        coverage: the covered keys.
        owner: the connection's pipeline.

    Attributes:
        anticipates: whether the last request is judged as if its keys had deadlines, because the keys are about to
            get some.
        presumed: its assumptions about its keys' deadlines.
        is_long: whether a long chunk of it has been sent.
        has_begun: returns whether all requests before the transaction have been answered, so that nothing of this
            connection runs until the transaction ends; None if unknown.
    """

    def __init__(self, coverage: Coverage, owner: Pipeline) -> None:
        self._coverage = coverage
        self._owner = owner
        self._arguments: set[bytes] = set()
        self._given_deadlines: dict[bytes, float] = {}
        self._everywhere = False
        self._blind: set[bytes] = set()
        self._cleared: set[bytes] = set()
        self._clearings = 0
        self._unjudged: set[bytes] = set()
        self._writes = 0
        self._size = 0
        self.anticipates = False
        self.presumed = Presumed()
        self.is_long = False
        self.has_begun: Callable[[], bool] | None = None

    def expect_beginning(self) -> Callable[[], None]:
        """Return the callback for the sign in front of MULTI, called when all earlier requests have been answered."""
        begun: list[bool] = []
        self.has_begun = lambda: bool(begun)
        return lambda: begun.append(True)

    @property
    def size(self) -> int:
        """About how many bytes the remembered names take."""
        return self._size + MARK_SIZE * len(self._given_deadlines)

    @property
    def names(self) -> set[bytes]:
        """The remembered arguments of the queued requests, including their keys."""
        return self._arguments

    @property
    def everywhere(self) -> bool:
        """Whether a queued request accesses keys that it does not name, or there are too many keys to remember."""
        return self._everywhere or len(self._arguments) > REMEMBERED

    @property
    def blind_keys(self) -> list[bytes]:
        """Covered keys to which a queued request might add members without a script that checks which are absent."""
        return self._coverage.among(self._blind)

    @property
    def follows_writes(self) -> bool:
        """Whether the last request, if it is a write, follows another write, which may remove members."""
        return self._writes > 1

    def queue(
        self, command: Command | None, arguments: list[bytes], blind_keys: list[bytes], *, reads: bool = False
    ) -> None:
        """Remember a request.

        Args:
            command: the request's entry in the table, if any.
            arguments: its arguments, the command's name first.
            blind_keys: the keys to which it might add members unchecked.
            reads: whether it only reads.
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
            # The request is forwarded unchanged because its keys have no deadlines; by EXEC they may have some.
            self._keep(set(keys).difference(self._coverage.among(keys)), self._unjudged)

    def queue_together(self, operations: Iterable[Operation], keys: Collection[bytes]) -> None:
        """Remember requests that one script call replaces, and their keys, each once.

        The script settles them: it removes due members and voids deadlines itself.
        """
        self._size += NAME_SIZE * len(keys) + sum(map(len, keys))
        for _, key, _, delay in operations:
            if delay:
                self._given_deadlines[key] = min(self._given_deadlines.get(key, math.inf), delay)

    def _remember(self, arguments: list[bytes]) -> None:
        names = arguments[1:]
        if max(map(len, names), default=0) > LONGEST:
            # Long arguments are probably values, except the first, which may be a key.
            self._everywhere = self._everywhere or len(names[0]) > LONGEST
            names = [name for name in names if len(name) <= LONGEST or self._coverage.is_certain(name)]
        self._keep(names, self._arguments)

    def _keep(self, names: Iterable[bytes], where: set[bytes]) -> None:
        new = set(names) - where
        where |= new
        self._size += NAME_SIZE * len(new) + sum(map(len, new))

    def rewritten(
        self, command: Command, arguments: list[bytes], delay: float, *, marks: bool, having: Set[bytes] = frozenset()
    ) -> None:
        """Remember the keys to which a replaced request may give deadlines.

        Args:
            command: the request's entry in the table.
            arguments: its arguments.
            delay: the deadline, in ms from EXEC; infinite if unknown, 0 or less if the request only removes.
            marks: whether to announce these keys to other proxies.
            having: its keys that are known to have deadlines.
        """
        if command.effect in MARKING:
            keys = command.keys(arguments) or []
            moves = keys and command.effect is not Effect.EXPIRE
            self._keep(self.presumed.carry(keys, having) if moves else keys, self.presumed.given)
            names_database = command.effect is Effect.MOVE or len(arguments) > 4
            has_room = self._clearings < CLEARED_AT_MOST  # else an earlier request may name a target with due members
            if moves and not names_database and has_room and keys[0] in self._cleared:
                self._keep(keys[1:], self._cleared)  # the target gets the source's members, of which none is due
            if not marks:
                return
            if keys and command.effect is not Effect.EXPIRE:
                delay = self._given_deadlines.get(keys[0], math.inf)  # the source's deadlines move along
            for key in keys:
                self._given_deadlines[key] = min(
                    self._given_deadlines.get(key, math.inf), delay if delay > 0 else math.inf
                )

    def presume(self, keys: Iterable[bytes]) -> None:
        """Note a request queued unchanged because its keys have no deadlines; before EXEC they are checked again."""
        self._keep(self._coverage.among(self.presumed.behind(keys)), self.presumed.without)

    @property
    def cleared(self) -> Set[bytes]:
        """The keys of the transaction's current database from which due members are removed in front of its
        requests."""
        return self._cleared

    def to_clear(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the covered keys among some names from which to remove due members.

        At most `CLEARED_AT_MOST` in one transaction.
        """
        covered = self._coverage.among(names)
        return [key for key in covered if key not in self._cleared][: CLEARED_AT_MOST - self._clearings]

    def clear(self, keys: Collection[bytes]) -> None:
        """Note that due members are removed from keys in front of the request that is about to be queued."""
        self._clearings += len(keys)
        self._keep(keys, self._cleared)

    @property
    def keys_given_deadlines(self) -> Mapping[bytes, float]:
        """Key that a queued request may give a deadline → in how many ms from EXEC; infinite if unknown."""
        return self._given_deadlines

    @property
    def is_overtaken(self) -> bool:
        """Whether a key of a request queued unchanged has been covered since, by another connection or proxy."""
        unjudged = self._coverage.among(self._unjudged)
        return bool(unjudged) and self._coverage.others_cover(unjudged, self._owner.mark)
