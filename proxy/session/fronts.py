"""Put scripts in front of requests, in the same write: they remove due members and void deadlines of absent members.

Its tests: tests/test_lives.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import Final

from proxy.commands.table import COMMANDS, Command, Effect, is_indifferent
from proxy.session.alone import KEYS_AT_ONCE
from proxy.session.ground import PLAIN, Ground
from proxy.session.outgoing import Outgoing
from proxy.session.plain import FREE_OF_BLIND
from proxy.session.question import Question
from proxy.session.rewrite import goes_elsewhere
from proxy.session.standing import Next, Standing
from proxy.session.voiding import Absent
from proxy.session.without_engine import WithoutEngine
from proxy.wire.batch import request_size
from proxy.wire.guard import Fronted
from proxy.wire.request import Request, encode

_SCRIPTS: Final = {
    spelled: command
    for name, command in COMMANDS.items()
    if command.effect is Effect.SCRIPT
    for spelled in (name, name.lower(), name.title())
}
_READ_AT_ONCE: Final = 15 * 1024
"""About how many bytes a server reads and runs at once, without others' requests in between."""

_FREE: Final = Next.FREE


class Fronts:
    """Puts fronts before the requests of one connection.

    A request gets a front if the reply to a recent front has shown that the request's keys have few deadlines, and few
    that are due soon. If that is not known, a front is sent first, and the request is held until the front's reply. For
    keys with many deadlines the engine does all the work.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        without: knows how many deadlines keys have.
    """

    __slots__ = ("_coverage", "_ground", "_out", "_standing", "_without")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, without: WithoutEngine) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._standing = standing
        self._out = out
        self._without = without

    def may_be_put(self, now: float) -> bool:
        """Return whether a script can go directly before the next request without the client noticing the script."""
        standing, alone = self._standing, self._without.alone
        return (
            not alone.has_given_up(now)
            and standing.transaction is None
            and standing.next is _FREE
            and standing.hears_echoes
            and not (standing.caches or standing.limited or standing.is_link or standing.rights.unsure(now))
        )

    def question(
        self, command: Command | None, request: Request, absent: Absent, now: float, *, asked: bool
    ) -> Question | None:
        """Put a front before the next request if it needs one. Call only if `may_be_put`.

        Args:
            command: the request's entry in the table.
            request: the request.
            absent: the keys in which to void deadlines, as in a `Question`.
            now: the server's clock, in Unix ms.
            asked: whether the last front has been answered since this request came.

        Returns:
            The question to answer first; None if there is none.
        """
        ground, coverage, alone = self._ground, self._coverage, self._without.alone
        if is_indifferent(request.arguments) and not absent:
            return None
        if coverage.blind and request.arguments[0] in FREE_OF_BLIND:
            named = ground.rewriter.named(command, request.arguments)
            if not any(map(coverage.is_certain, named)):
                return None
        if command is not None and command.effect is Effect.MULTI:
            self._before_watched(now)
            return None
        covered = coverage.among(ground.rewriter.named(command, request.arguments))
        if not covered:
            return None
        moving = self._are_moving(covered)
        if not moving and ground.rewriter.settles(command, request, amends=self._out.amends):
            return None
        voided = tuple(key for key, members in absent if members is None)
        few: bool | None = False
        elsewhere = command is not None and goes_elsewhere(command, request.arguments)
        if not (moving or elsewhere or coverage.told or len(voided) < len(absent) or len(covered) > KEYS_AT_ONCE):
            keys = (*voided, *(key for key in covered if key not in voided))
            few = alone.have_few(keys, now, asked=asked)
            if few or (few is None and not asked):
                take = partial(alone.take_count, keys, now)
                self._out.append(
                    self._standing.replies_for_own().open(Fronted([take] if few is None else [take, None]))
                )
                self._out.append(ground.removals.front(keys, len(voided))[0])
                return Question(replied=True, again=True) if few is None else None
        if absent and not asked:  # earlier requests may remove members that this request adds again
            return Question(replied=True, again=True)
        due = tuple(
            key for key in covered if not coverage.cleared.holds(key, now, ground.rewriter.marks.alarm.set_lately)
        )
        return Question(due=due, absent=tuple(absent)) if due or absent else None

    def _before_watched(self, now: float) -> None:
        """Before a transaction begins, remove due members from watched keys and read their next deadlines."""
        alone, names, watched = self._without.alone, self._ground.names, self._standing.watched
        keys = tuple(self._coverage.among(watched.keys)[:KEYS_AT_ONCE])
        if not keys or self._are_moving(keys):
            return
        take = partial(alone.take_count, keys, now)
        self._out.append(self._standing.replies_for_own().open(Fronted([take, watched.hear])))
        self._out.append(self._ground.removals.front(keys, 0)[0])
        self._out.append(encode([b"ZMSCORE", names.index_for(keys[0]), *keys]))

    def _are_moving(self, keys: Collection[bytes]) -> bool:
        """Return whether the keys are in several slots, or in a slot that is moving."""
        names = self._ground.names
        if names.slots is None or not keys:
            return False
        return len(names.by_slot(keys)) > 1 or names.is_moving(next(iter(keys)))

    def take(self, requests: list[list[bytes]], raw: bytes, now: float) -> bool:
        """Send a chunk if its only requests on covered keys are script calls, for which fronts are enough.

        Args:
            requests: the requests, without any of the proxy's own keys.
            raw: their bytes.
            now: the server's clock, in Unix ms.

        Returns:
            Whether the requests have been sent.

        Raises:
            TypeError, AttributeError: an element of a request is not bytes.
        """
        alone, coverage, front = self._without.alone, self._coverage, self._ground.removals.front
        if coverage.told or not all(request[0] in _SCRIPTS or request[0] in PLAIN for request in requests):
            return False
        if coverage.blind or not self.may_be_put(now):
            return False
        named = coverage.among(chain.from_iterable(requests))
        if not named or not alone.have_few(named, now, asked=False) or self._are_moving(named):
            return False
        takers: list[Callable[[bytes], None] | None] = []
        parts: list[bytes] = []
        position = size = 0
        loaded = -_READ_AT_ONCE  # position of the last full script text, in bytes
        for request in requests:
            command, end = _SCRIPTS.get(request[0]), position + request_size(request)
            if coverage.touches((request,)):
                if command is None and not is_indifferent(request):
                    return False
                keys = () if command is None else tuple(coverage.among(command.keys(request) or ()))
                if keys:
                    takers.append(partial(alone.take_count, keys, now))
                    whole, short = front(keys, len(keys))
                    if size + end - position + len(whole) > loaded + _READ_AT_ONCE:
                        loaded, short = size, whole
                    parts.append(short)
                    size += len(short)
            takers.append(None)
            parts.append(raw[position:end])
            size += end - position
            position = end
        self._out.append(self._standing.replies_for_own().open(Fronted(takers)))
        self._out.append(b"".join(parts))
        return True
