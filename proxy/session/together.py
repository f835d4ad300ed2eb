"""Has the server do many requests of one form by one call of a script, which answers for each of them.

Only where each of them would be rewritten anyway, and none would have to wait: whatever is special about a request, or
about the connection, is left to `Session`, which judges requests one by one.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from proxy.commands.lifetime import EXACT, UNITS
from proxy.commands.table import COMMANDS, Command, Effect
from proxy.session.ground import Ground
from proxy.session.outgoing import Outgoing
from proxy.session.plain import REPEATED_REQUESTS
from proxy.session.reads import Reads
from proxy.session.standing import Login, Next, Standing
from proxy.wire.request import RequestReader
from proxy.wire.runs import LEAST, MOST_BYTES, Run

_SCORED: Final = frozenset((b"ZADD", b"ZINCRBY"))
_OWN: Final = frozenset((Effect.EXPIRE, Effect.LIFETIME))
"""What the server does not know: it is rewritten whether or not its key has deadlines."""

_POSITIVE: Final = re.compile(rb"(?:[1-9][0-9]{0,14} )+")
_NUMBERS: Final = re.compile(rb"[-+.0-9 ]+")
_LONGEST: Final = EXACT // 2
"""A delay, in ms, to which the clock can be added."""

LONG_LISTS: Final = 1_000
"""Keys of long lists that are remembered, about."""

_FREE: Final = Next.FREE
_STRANGER: Final = Login.STRANGER


class Together:
    """Puts requests of one connection together.

    Args:
        ground: what all sessions stand on.
        standing: the state of the connection.
        out: what goes upstream.
        reads: those that must not be disturbed.
    """

    __slots__ = ("_coverage", "_ground", "_left", "_out", "_reads", "_rewriter", "_standing")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, reads: Reads) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._rewriter = ground.rewriter
        self._standing = standing
        self._out = out
        self._reads = reads
        self._left = 0  # requests that are to be judged one by one before the next are looked at

    def may_take(self, data: bytes, now: float) -> bool:
        """Return whether some requests that have come, behind others, may go together."""
        return self._is_ordinary(now) and REPEATED_REQUESTS.may_be_in(data)

    def take(self, data: bytes, begin: int, now: float) -> int:
        """Send those requests on that can go together, from a place on where a request begins.

        Args:
            data: what has come.
            begin: the place.
            now: the server's clock, in Unix ms.

        Returns:
            Where they end; `begin`, if there are none.
        """
        self._left = 0
        run = REPEATED_REQUESTS.at(data, begin)
        if run is None:
            return begin
        end = begin + run.length
        if (
            self._is_ordinary(now)
            and data.find(self._ground.prefix, begin, end) < 0
            and (taken := self._send(run, now))
        ):
            return begin + taken
        self._left = run.count - 1
        return begin

    def take_from(self, reader: RequestReader, now: float) -> bool:
        """Send those requests on that come next and can go together, if there are any; return whether."""
        if self._left:
            self._left -= 1
            return False
        data, begin = reader.front(MOST_BYTES)
        taken = self.take(data, begin, now) - begin
        reader.skip(taken)
        return taken > 0

    def _send(self, run: Run, now: float) -> int:
        """Send a run on, or what of it can go; return how many bytes of the client's that was."""
        command = COMMANDS[run.name.upper()]
        keys = run.column(1)
        is_covered = self._coverage.covers
        if command.effect not in _OWN and not all(map(is_covered, keys)):
            count = next(place for place, key in enumerate(keys) if not is_covered(key))
            if count < LEAST:
                return 0
            run, keys = run.beginning(count), keys[:count]
        if (count := self._rewriter.length_in_slot(keys)) < len(keys):
            if count < LEAST:
                return 0
            run, keys = run.beginning(count), keys[:count]
        names = list(dict.fromkeys(keys))
        call = self._call(command, run, keys, names, now)
        if call is None:
            return 0
        self._out.put_together(call, run.count, partial(self._note_long_lists, names))
        return run.length

    def _note_long_lists(self, names: list[bytes]) -> None:
        """Note that among some keys there is a list so long that no script should look for many members of it."""
        long_lists = self._ground.long_lists
        if len(long_lists) > LONG_LISTS:
            long_lists.clear()
        long_lists.update(names)

    def _is_ordinary(self, now: float) -> bool:
        """Return whether the connection is in no state in which something else may have to be done for a request."""
        standing, rights = self._standing, self._standing.rights
        return not (
            standing.transaction is not None
            or standing.next is not _FREE
            or standing.is_link
            or standing.login is _STRANGER
            or standing.subscribed
            or standing.replies.silenced
            or self._reads.under_way
            or rights.by_state
            or rights.unsure(now)
            or standing.limited
            or rights.confinement
        )

    def _call(self, command: Command, run: Run, keys: list[bytes], names: list[bytes], now: float) -> bytes | None:
        """Return the call of the script; None where the requests are to be judged one by one."""
        match command.effect:
            case Effect.EXPIRE:
                return self._expire(command, run, keys, names, now)
            case Effect.LIFETIME:
                return self._lifetime(command, run, keys, names)
            case Effect.ADD:
                return self._add(command, run, keys, names)
            case _:
                return self._remove(command, run, keys, names)

    def _expire(self, command: Command, run: Run, keys: list[bytes], names: list[bytes], now: float) -> bytes | None:
        unit = 1 if command.name == b"PEXPIREMEMBER" else 1000
        if run.size == 5 and command.name == b"EXPIREMEMBER":
            unit = UNITS.get(run.column(4)[0], 0)
            if not unit or len(set(run.column(4))) > 1:
                return None
        elif run.size != 4:
            return None
        if not self._ground.long_lists.isdisjoint(names):
            return None
        terms = run.column(3)
        if not _POSITIVE.fullmatch(b" ".join(terms) + b" ") or self._coverage.unconfirmed(names):
            return None
        delays = [int(term) * unit for term in terms]
        if max(delays) > _LONGEST:
            return None
        self._rewriter.expect(names, now + min(delays))
        return self._rewriter.together(
            command, "expire", names, keys, [b"%d" % unit], run.encoded(2, 4), 2 * run.count, takes_memory=True
        )

    def _lifetime(self, command: Command, run: Run, keys: list[bytes], names: list[bytes]) -> bytes | None:
        if run.size != 3:
            return None
        members = run.encoded(2, 3)
        if command.name == b"PERSIST":
            return self._rewriter.together(command, "persist", names, keys, [], members, run.count)
        unit = b"1000" if command.name == b"TTL" else b"1"
        return self._rewriter.together(command, "ttl", names, keys, [unit], members, run.count)

    def _add(self, command: Command, run: Run, keys: list[bytes], names: list[bytes]) -> bytes | None:
        if command.name in _SCORED and not _NUMBERS.fullmatch(b" ".join(run.column(2))):
            return None  # one of its options, maybe
        first = [run.column(place)[0] for place in range(run.size)]
        members = command.members(first, run.size) if command.members is not None else None
        if members is None or not self._rewriter.accepts(command, run.size):
            return None
        width = run.size - 2
        # Lua counts from 1, from behind the key on.
        where = b"%d %d %d %d" % (width, members[0] - 1, members[-1] - 1, members.step)
        tail = run.encoded(2, run.size)
        return self._rewriter.together(command, "add", names, keys, [run.name, where], tail, width * run.count)

    def _remove(self, command: Command, run: Run, keys: list[bytes], names: list[bytes]) -> bytes | None:
        if not self._rewriter.accepts(command, run.size):
            return None
        width = run.size - 2
        tail = run.encoded(2, run.size)
        extra = [run.name, b"%d" % width]
        return self._rewriter.together(command, "remove", names, keys, extra, tail, width * run.count)
