"""Remove due members and void deadlines on the client's own connection while the engine cannot.

Its tests: tests/test_blind.py.

A script is put into the stream, and its reply is taken out. Call `ask` again after each reply, until no due members are
left and few deadlines are near. Then put the script that `clear_before` returns directly in front of the request, for
deadlines that have passed since. Each script does bounded work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import hiredis

from proxy.session.removals import AHEAD_MS, MEMBERS_AT_ONCE, Removals
from proxy.session.voiding import Absent, Voiding, voidings
from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution

KEYS_AT_ONCE: Final = 500
"""Maximum number of keys that one script examines."""

MOST_KEYS: Final = 2_000
"""Maximum number of keys in a request that gets a script in front: with more, the result for the first key would be too
old when the last is reached."""

GIVEN_UP_MS: Final = 1_000
"""How long to attempt no removals, in ms, after the server has refused one, as a replica does."""

_LOOKED_MS: Final = 2 * AHEAD_MS
"""How far ahead to read the index for requests that do not name their keys."""

PATIENCE_MS: Final = _LOOKED_MS + 10
"""How long to repeat scripts while many deadlines are near but no members are due. New deadlines may keep coming,
so the wait is limited."""


FEW_DEADLINES: Final = 500
"""Maximum number of a key's deadlines to check in front of a request that may add any member; the engine checks keys
with more."""

_REMEMBERED: Final = 1_000
"""Maximum number of keys for which a connection remembers how many deadlines they have."""

_ELSEWHERE: Final = (b"-MOVED ", b"-ASK ", b"-TRYAGAIN ", b"-CLUSTERDOWN ")
"""Error codes of a cluster node for keys that it does not have or serve. Nothing can be done for such keys."""


_NOTHING: Final[tuple[Any, ...]] = (0, 0, [], 0, 0, [], [])
"""Used as the reply of the script `clear` if a cluster node has not run it: nothing was done."""


class Alone:
    """Does the engine's work for one connection, in its current database.

    Args:
        removals: encodes the scripts, for all connections.
    """

    def __init__(self, removals: Removals) -> None:
        self._removals = removals
        self._names = removals.names
        self._given_up = -float("inf")
        self._unheard = False  # whether a reply is outstanding
        self._checked: dict[int, float] = {}  # hash of a key → until when one script surely removes all its due members
        self._settled: set[int] = set()  # hashes of the keys that need no more scripts for the current request
        self._fronted: set[bytes] = set()
        self._looked = -float("inf")  # until when `_near` is valid
        self._has_looked = False  # whether `_near` was read for the current request
        self._near: list[bytes] = []  # keys in the index whose next deadline has passed or is near
        self._crowded = False  # whether the index may have more such keys than `_near`
        self._voiding: tuple[Absent, list[tuple[Voiding, list[bytes | int]]]] | None = None
        self._patient = math.inf  # until when to repeat scripts while many deadlines are near and none has passed
        self._counts: dict[int, tuple[int, float]] = {}  # hash of a key → its number of deadlines, valid until when

    def forget(self) -> None:
        """Forget everything: the connection may use another database or user from now on."""
        self._checked.clear()
        self._counts.clear()
        self._fronted.clear()
        self._looked = self._given_up = -float("inf")

    def sent(self) -> None:
        """Note that everything so far is being sent: later requests need scripts of their own in front."""
        self._fronted.clear()

    def ask(
        self, keys: Iterable[bytes], absent: Absent, replies: ReplySubstitution, now: float, *, everywhere: bool
    ) -> bytes | None:
        """Return the script to send next, or None if it is time for `clear_before`.

        A slow reply still counts for the current request: otherwise a server or a proxy that is too busy to answer
        within `AHEAD_MS` would never get to the request.

        Args:
            keys: the keys from which to remove due members.
            absent: the keys in which to void deadlines, as in a `Question`.
            replies: the replies of this connection.
            now: the clock, in Unix ms.
            everywhere: whether to remove due members from all other keys too.
        """
        if self._unheard:
            self._give_up(now)  # no reply has come, and none will
        script = None if self.has_given_up(now) else self._next(keys, absent, replies, now, everywhere=everywhere)
        if script is None:
            self._settled.clear()
            self._has_looked = False
        return script

    def _next(
        self, keys: Iterable[bytes], absent: Absent, replies: ReplySubstitution, now: float, *, everywhere: bool
    ) -> bytes | None:
        everywhere = everywhere and self._names.slots is None  # a cluster node has no single index to read
        if everywhere and now >= self._looked and not self._has_looked:
            return self._look(replies, now)
        wanted = [*keys, *self._near] if everywhere else keys
        unchecked = [
            key
            for key in dict.fromkeys(wanted)
            if self._checked.get(hash(key), 0) <= now and hash(key) not in self._settled
        ]
        if unchecked and now < self._patient:
            return self._clear(self._names.of_one_slot(unchecked[:KEYS_AT_ONCE]), replies, now)
        if everywhere and self._crowded and now < self._patient:
            return self._look(replies, now)
        self._patient = math.inf
        return self._void(absent, replies, now) if absent else None

    def clear_before(self, keys: Iterable[bytes], replies: ReplySubstitution, now: float, *, everywhere: bool) -> bytes:
        """Return the scripts that go directly in front of a request, for deadlines passed since `ask`.

        The arguments are those of `ask`.
        """
        self._voiding = None
        if self.has_given_up(now):
            return b""
        wanted = dict.fromkeys([*keys, *self._near] if everywhere and self._names.slots is None else keys)
        fresh = [key for key in wanted if key not in self._fronted]
        if not fresh:
            return b""
        self._fronted.update(fresh)

        def hear(reply: Any) -> None:
            if isinstance(reply, list):
                self._removals.count(reply[4], reply[5])
            if not isinstance(reply, list) or reply[1] >= 2 * MEMBERS_AT_ONCE:
                self._checked.clear()

        arguments = [b"%d" % (2 * MEMBERS_AT_ONCE), b"0", b""]
        return b"".join(
            self._send("clear", self._removals.keys(group), arguments, replies, now, hear)
            for group in self._names.by_slot(fresh)
        )

    def clear(self, keys: list[bytes], replies: ReplySubstitution, now: float, tell: Callable[[float], None]) -> bytes:
        """Return the script that removes due members from some keys, for a read that follows it.

        Args:
            keys: the keys.
            replies: the replies of this connection.
            now: the clock, in Unix ms.
            tell: called with the next deadline of the keys, in Unix ms; minus infinity if members are still due.
        """

        def hear(reply: Any) -> None:
            if isinstance(reply, list):
                _, gone, found, _, members, told, _ = reply
                self._removals.count(members, told)
                deadlines = [float(deadline) for deadline in found if deadline]
                tell(-math.inf if gone >= 2 * MEMBERS_AT_ONCE else min(deadlines, default=math.inf))

        if self.has_given_up(now):
            return b""
        arguments = [b"%d" % (2 * MEMBERS_AT_ONCE), b"0", b""]
        return self._send("clear", self._removals.keys(keys), arguments, replies, now, hear)

    def have_few(self, keys: Iterable[bytes], now: float, *, asked: bool) -> bool | None:
        """Return whether the keys have so few deadlines that one front handles all of them; None if not known.

        `asked`: whether the server was queried for this request. If so, the server's reply counts, however old.
        """
        few = True
        for key in keys:
            count, until = self._counts.get(hash(key), (0, -math.inf))
            if until == -math.inf or (until <= now and not asked):
                return None
            few = few and count <= FEW_DEADLINES
        return few

    def take_count(self, keys: tuple[bytes, ...], now: float, reply: bytes) -> None:
        """Take the reply to a front of `Removals.front` that was put into the stream at `now`, in Unix ms."""
        if reply.startswith(b"*3"):
            _, deadlines, soon, gone = reply.split(b"\r\n", 3)
            if len(self._counts) >= _REMEMBERED:
                self._counts.clear()
            count = max(int(deadlines[1:]), int(soon[1:]))
            self._counts.update(dict.fromkeys(map(hash, keys), (count, now + AHEAD_MS)))
            self._removals.count(int(gone[1:-2]))
        elif not reply.startswith(_ELSEWHERE):
            self._give_up(now)
            self._removals.refused(reply[1:-2])

    def has_given_up(self, now: float) -> bool:
        """Return whether a removal on this connection has failed in the last `GIVEN_UP_MS`."""
        return 0 <= now - self._given_up < GIVEN_UP_MS

    def _give_up(self, now: float) -> None:
        self._unheard = False
        self._voiding = None
        self._given_up = now
        self._checked.clear()

    def _send(
        self,
        script: str,
        keys: list[bytes],
        arguments: list[bytes],
        replies: ReplySubstitution,
        now: float,
        take: Callable[[Any], None],
    ) -> bytes:
        def hear(said: bytes) -> bytes:
            # Pushes may be among the frames. They are arrays only for a RESP2 subscriber, who cannot run a script.
            others = frames(said)
            for place, frame in enumerate(others):
                if frame.startswith(b"*"):
                    reader = hiredis.Reader()
                    reader.feed(frame)
                    self._unheard = False
                    take(reader.gets())
                elif frame.startswith(_ELSEWHERE):
                    self._unheard = False
                    take(None)
                elif frame.startswith(b"-"):
                    self._give_up(now)
                    self._removals.refused(frame[1:-2])
                else:
                    continue
                del others[place]
                break
            return b"".join(others)

        return replies.enclose(self._removals.encode(script, keys, arguments), hear)

    def _look(self, replies: ReplySubstitution, now: float) -> bytes:
        def hear(reply: Any) -> None:
            due, self._near = reply
            self._crowded = len(self._near) >= KEYS_AT_ONCE
            if self._crowded and not due:
                self._patient = min(self._patient, now + PATIENCE_MS)
            self._looked = now + _LOOKED_MS
            self._has_looked = True

        self._unheard = True
        arguments = [b"%d" % _LOOKED_MS, b"%d" % KEYS_AT_ONCE]
        return self._send("near", [self._names.index], arguments, replies, now, hear)

    def _clear(self, keys: list[bytes], replies: ReplySubstitution, now: float) -> bytes:
        def hear(reply: Any) -> None:
            _, gone, _, near, members, told, _ = reply or _NOTHING
            self._removals.count(members, told)
            if gone < MEMBERS_AT_ONCE and near < MEMBERS_AT_ONCE:
                self._patient = math.inf
                self._checked = {key: until for key, until in self._checked.items() if until > now}
                self._checked.update(dict.fromkeys(map(hash, keys), now + AHEAD_MS))
                self._settled.update(map(hash, keys))
            elif not gone:
                self._patient = min(self._patient, now + PATIENCE_MS)

        self._unheard = True
        arguments = [b"%d" % MEMBERS_AT_ONCE, b"%d" % AHEAD_MS, b""]
        return self._send("clear", self._removals.keys(keys), arguments, replies, now, hear)

    def _void(self, absent: Absent, replies: ReplySubstitution, now: float) -> bytes | None:
        if self._voiding is None or self._voiding[0] != absent:
            work: list[tuple[Voiding, list[bytes | int]]] = [
                (voiding, []) for voiding in voidings(self._names, absent, [b""], tentative=False)
            ]
            self._voiding = absent, work
        left = self._voiding[1]
        if not left:
            return None
        voiding, place = left[0]

        def hear(reply: Any) -> None:
            left[:1] = [(voiding, reply)] if reply else []

        self._unheard = True
        return self._send("void", voiding.keys, voiding.arguments(place), replies, now, hear)
