"""The keys that have members with deadlines, as far as the proxy has been told: what the hot path looks at."""

from __future__ import annotations

import math
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Final

from proxy.session.ages import Ages
from proxy.session.beginnings import Beginnings
from proxy.session.claims import CLAIMED_BY_ANYBODY, HURRIED_LOOKS, SETTLE_SECONDS, UNANSWERED_LOOKS, Claims, weight
from proxy.session.order import DeadlineOrder
from proxy.session.travelling import Travelling

DATABASES: Final = frozenset(range(1024))
"""The numbers of databases that a client's word makes known. The server leaves those out that it has not."""

ASK_MS = 3.0
"""How near a deadline has to be for the server to be asked whether it has passed: on a busy machine a request takes so
long from here to the server."""

AHEAD_MS = 0.5
"""A deadline so near counts as passed: a request sent now might run when it is."""

SOON_MS: Final = 1_000.0
"""A deadline so near may pass while a transaction waits in the server."""

MARKED_AT_ONCE = 64
"""Deadlines of one key's marks and claims that are kept, earliest first: later ones become known before they matter."""

MARK_SECONDS = 20.0
"""How long a key stays known that another proxy has announced, or that others may still take for known to all."""

CLAIMED_AT_MOST: Final = 200_000
"""What the claimed keys of all connections together weigh from which on those are turned away that claim many for long,
as a request of theirs is not answered."""

SETTLE_EVERY: Final = 0.25
"""Seconds between two looks for signs. A client can claim tens of thousands of keys a second, and each look settles all
of them."""

NEAR_MS: Final = 100.0
"""A deadline so near may pass before other proxies hear of it from the server: they are told before."""

RESTLESS_SECONDS: Final = 1.0
"""How long they ask the server about such a key whenever a request names it."""

STIRRED_SECONDS: Final = 0.4
"""How long further near deadlines of the key are not announced, from when the others began to be told: what is set
last passes, and the server has told of it, while they still ask."""

DROPPED_AT_ONCE: Final = 5_000
"""Keys whose claims are dropped before others get their turn."""

STEADY_SECONDS: Final = 0.08
"""How long after a beat this process may stand still: no far deadline, of which nobody is told before, passes in it."""

BEAT_SECONDS: Final = 0.025
"""How long lies between two beats, while there are other proxies."""

FRESH_SECONDS = 7.0
"""How long an announcement counts. Claims that are older are announced again: well before `MARK_SECONDS`."""


def lease_clock() -> float:
    """Return the clock by which leases are counted, in seconds: one that goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Freed:
    """Keys whose claims and marks have ended since a question was asked."""

    def __init__(self, freed: Ages, number: int) -> None:
        self._freed = freed
        self._number = number

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and self._freed.get(key, -1.0) >= self._number


class KnownKeys:
    """Key → earliest deadline of its members, over all databases, by the server's clock.

    A key that is known without need costs its requests a script that finds nothing to do; a key that should be known
    and is not would break the promise. So a key becomes known before the request that may give it deadlines is
    sent (`mark`), and is forgotten only on the server's word (`learn`), never while it is claimed or marked.

    A connection claims the keys to which its requests may give deadlines until a sign has come from behind them. A mark
    is for keys of other proxies' requests, and lasts for a time.

    Attributes:
        deadlines: key → deadline in Unix ms; infinite where only a mark makes the key known. Always the
            same dictionary, to be read only.
        beginnings: what all these keys begin with.
        next_deadline: the earliest deadline of all when the sweeper last looked, in Unix ms.
        databases: the numbers of those that may hold deadlines.
        doubt: how far the clock that requests are judged by may be ahead of the server's, in ms.
        ever: whether any key has been known, so that the proxy's own keys may be in a database.
        blind: whether there may be keys with deadlines that are not known, so that every key counts as known.
        loaded: whether the index has been read since the control connection was made.
        trusted_until: until when (`lease_clock`) other proxies' first deadlines are sure to be known here.
        steady_until: until when this process is sure not to have stood still since it last took in what had come.
        standstills: how often it has been noticed that it has.
        on_standstill: is called at the moment (`lease_clock`) at which it is noticed that it has.
        shared: whether there may be other proxies, which have to know a key before it gets its first deadline.
        on_announced: is called with keys to which another proxy is about to give their first deadlines.
        cut_off: whether there is no connection by which they could be told.
        order: the deadlines in order, if they are kept so.
        unclear: those whose earliest deadline the server does not tell yet, whatever else is known of them.
        sent: those that have been sent to another cluster node, or should have been, while their slot is moved.
        parted: those whose deadlines a cluster node had, and which are elsewhere while their slot is moved.
    """

    def __init__(self) -> None:
        self.deadlines: dict[bytes, float] = {}
        self.beginnings = Beginnings()
        self.order: DeadlineOrder | None = None
        self.unclear = Travelling()
        self.sent = Travelling()
        self.parted = Travelling()
        self._guessed: set[bytes] = set()  # known to the proxy only by what requests may set
        self.databases: set[int] = {0}
        self.blind = True
        self.loaded = False
        self.trusted_until = math.inf
        self.steady_until = math.inf
        self.on_standstill: Callable[[float], None] = lambda _: None
        self.standstills = 0
        self._stood_still = -math.inf  # when that was noticed, as long as what had come meanwhile has not been taken in
        self.shared = False
        self.cut_off = False
        self.doubt = 0.0
        self.ever = False
        self._marks = Ages()
        self._restless = Ages()  # keys that others are giving near deadlines: since when
        self._stirred = Ages()  # keys of whose near deadlines others have been told: when
        self._claimed: dict[bytes, int] = {}
        self._claimed_weight = 0
        self.on_announced: Callable[[list[bytes]], None] = lambda _: None
        self._coming: dict[bytes, list[float]] = {}  # the deadlines that requests may be about to set
        self._watched: dict[bytes, dict[Claims, Callable[[], None]]] = {}
        self._overtaken: set[bytes] = set()  # claimed keys of which a deadline had passed before all requests had run
        self._claims: dict[Claims, None] = {}
        self._asked = 0  # questions about keys that there have been
        self._asking: OrderedDict[int, None] = OrderedDict()  # the numbers of those that are on their way
        self._freed = Ages()  # keys whose claims and marks ended: which was the last question then
        self._settled: list[bytes] = []  # keys of claims that have been settled, and not been dropped yet
        self._settled_weight = 0
        self._orphans: list[tuple[float, list[bytes]]] = []
        self._doubtful: set[bytes] = set()
        self._announced = Ages()
        self.next_deadline = -math.inf
        self._horizon = math.inf
        self._wake: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.deadlines)

    def is_known(self, key: bytes) -> bool:
        """Return whether a key may have members with deadlines."""
        return self.blind or key in self.deadlines

    def has_had(self, key: bytes) -> bool:
        """Return whether the server has, or had, deadlines of a key, as far as is known; not whether it may get any."""
        if self.blind or key in self.parted:
            return True
        return key not in self._guessed and self.deadlines.get(key, math.inf) < math.inf

    def known_among(self, keys: Collection[bytes]) -> list[bytes]:
        """Return those of some keys that may have members with deadlines."""
        return list(keys) if self.blind else list(self.deadlines.keys() & keys)

    def look(self) -> None:
        """See whether the proxy's lease has run out, or it has stood still. To be called whenever requests are about to
        be judged.

        Timers are no use for it: a process that was stopped serves its sockets before its timers.
        """
        if self.trusted_until < math.inf:
            now = lease_clock()
            if now >= self.trusted_until:
                self.distrust()
            elif now >= self.steady_until:
                self._stand_still(now)

    def go_on(self) -> None:
        """Note that this process has been stopped, and goes on. For a signal handler: nothing is sent before `look`."""
        if self.trusted_until < math.inf and lease_clock() >= self.trusted_until:
            self.distrust()
        elif self.steady_until < math.inf:
            self.steady_until = -math.inf

    def beat(self, now: float) -> None:
        """Note at intervals, while there are other proxies, that this process goes on; `now` is `lease_clock`."""
        if not self.shared:
            self.steady_until = math.inf
        elif now >= self.steady_until:
            self._stand_still(now)
        else:
            self.steady_until = now + STEADY_SECONDS

    def _stand_still(self, now: float) -> None:
        """Ask about every known key until the news has been read: what others have set may be due before that, since
        clients may be served first. (Of keys that are not known the lease takes care.)"""
        self.standstills += 1
        self._stood_still = now
        self.steady_until = now + STEADY_SECONDS  # it may be stopped again before the next beat
        self.on_standstill(now)

    @property
    def has_missed_news(self) -> bool:
        """Whether it has stood still, and not read yet what the server sent meanwhile."""
        return self._stood_still > -math.inf

    def heard(self, moment: float) -> None:
        """Take in that all has been read that the server had sent by a moment (`lease_clock`)."""
        if self.has_missed_news and moment >= self._stood_still:
            self._stood_still = -math.inf
            for key in self._doubtful:  # it has been told that their deadlines have changed, and not yet to what
                self._restless.note(key, lease_clock())

    def distrust(self) -> None:
        """Become blind until the other proxies have been heard again."""
        self.blind = self.shared = True

    def see(self) -> None:
        """See again: the index has been read, or the other proxies have been heard."""
        self.blind = not self.loaded or (self.trusted_until < math.inf and lease_clock() >= self.trusted_until)

    def due(self, names: Iterable[bytes], now: float, ahead: float = ASK_MS) -> list[bytes]:
        """Return those of the names that are keys with a deadline that has passed, or may have.

        Args:
            names: the names.
            now: the clock, in Unix ms.
            ahead: how many ms before its deadline a key counts already.
        """
        deadlines, limit = self.deadlines, now + ahead
        return [name for name in names if name in deadlines and deadlines[name] <= limit]

    def to_ask_about(self, names: Iterable[bytes], now: float) -> list[bytes]:
        """Return those of the names that are keys in which something may be due, as far as is known at `now` (Unix ms).

        Besides those that are `due`, these are keys to which other proxies may have given deadlines of which no word
        has come yet, and those that are unclear.
        """
        if self._stood_still > -math.inf:
            return self._known_names(names)
        deadlines, marks, limit = self.deadlines, self._marks, now + ASK_MS
        restless, unclear = self._restless, self.unclear
        return [
            name
            for name in names
            if name in deadlines
            and (
                (deadline := deadlines[name]) <= limit
                or name in restless
                or (deadline == math.inf and name in marks)
                or name in unclear
            )
        ]

    def soon_due(self, names: Iterable[bytes], now: float) -> list[bytes]:
        """Return those of the names that are keys with a deadline that is near at `now` (Unix ms), or may be."""
        if self._stood_still > -math.inf:
            return self._known_names(names)
        deadlines, limit = self.deadlines, now + SOON_MS
        return [name for name in names if name in deadlines and not limit < deadlines[name] < math.inf]

    def _known_names(self, names: Iterable[bytes]) -> list[bytes]:
        deadlines = self.deadlines
        return [name for name in names if name in deadlines]

    def visit(self, databases: Iterable[int]) -> None:
        """Make databases known because a client goes there, or sends keys there."""
        self.databases |= DATABASES.intersection(databases)

    def any_due(self, now: float) -> bool:
        """Return whether any key may have a deadline that has passed, or is about to, at `now` in Unix ms."""
        news = self.shared and (bool(self._marks) or self.has_missed_news)
        return news or min(self.next_deadline, self._horizon) <= now + ASK_MS

    # Keys that are about to get deadlines.

    def watch(self, key: bytes, by: Claims, overtaken: Callable[[], None]) -> None:
        """Have something called when anybody else than one connection may give a key that is not known a deadline."""
        self._watched.setdefault(key, {})[by] = overtaken

    @property
    def watched(self) -> Set[bytes]:
        """The keys of which somebody wants to be told so."""
        return self._watched.keys()

    def unwatch(self, keys: Iterable[bytes], by: Claims) -> None:
        """Call nothing any more for a connection."""
        for key in keys:
            watchers = self._watched.get(key, {})
            watchers.pop(by, None)
            if not watchers:
                self._watched.pop(key, None)

    def _disturb(self, key: bytes, by: Claims | None = None) -> None:
        """Tell those who watch a key, once, that it may have a deadline now which is not theirs."""
        for owner, overtaken in self._watched.pop(key).items():
            if owner is not by:
                overtaken()
            else:
                self.watch(key, owner, overtaken)

    def mark(self, key: bytes, deadline: float, now: float, by: Claims | None = None, *, queued: bool = False) -> None:
        """Make a key known because a request that is about to be sent may give it a deadline.

        Args:
            key: the key.
            deadline: the earliest that it may be, in Unix ms.
            now: the clock, in Unix ms.
            by: the claims of the connection by which the request is sent; None for a mark that lasts for a time.
            queued: whether it does not run before the EXEC of an open transaction, which marks the key once more.
        """
        if by is None:
            self._mark_for_a_time(key)
        else:
            self._claim(key, by)
        if not queued and key in self._watched:
            self._disturb(key, by)
        self.ever = True
        if deadline < math.inf:
            coming = self._coming.get(key)
            if coming is None:
                self._coming[key] = [deadline]
            elif len(coming) < MARKED_AT_ONCE or deadline < coming[-1]:
                insort(coming, deadline)
                del coming[MARKED_AT_ONCE:]
        self._bring_forward(key, deadline)

    def mark_all(self, key: bytes, deadlines: list[float], by: Claims) -> None:
        """Make a key known because requests may give it any of some deadlines, in Unix ms; as `mark` for each."""
        self._claim(key, by)
        if key in self._watched:
            self._disturb(key, by)
        self.ever = True
        earliest, coming = min(deadlines), self._coming.get(key, [])
        if len(coming) < MARKED_AT_ONCE or earliest < coming[-1]:
            self._coming[key] = sorted((*coming, *deadlines))[:MARKED_AT_ONCE]
        self._bring_forward(key, earliest)

    def _claim(self, key: bytes, by: Claims) -> None:
        if key in by.keys:
            return
        if not by.keys:
            by.since = lease_clock()
            self._claims[by] = None
        by.add(key)
        count = self._claimed.get(key, 0)
        self._claimed[key] = count + 1
        if not count:
            self._claimed_weight += weight(key)

    def _bring_forward(self, key: bytes, deadline: float) -> None:
        deadline -= self.doubt
        known = self.deadlines.get(key)
        if known is None or deadline < known:
            if known is None or known == math.inf:
                self._guessed.add(key)
            self._put(key, deadline)

    def obscure(self, number: int, key: bytes) -> None:
        """Make a key of a slot known of whose deadlines the server tells nothing yet; it counts as due until then."""
        self.unclear.add(number, (key,))
        self.mark(key, math.inf, 0.0)

    def _mark_for_a_time(self, key: bytes) -> None:
        self._marks.note(key, lease_clock())

    def mark_announced(self, keys: Collection[bytes], near: Set[bytes] = frozenset()) -> None:
        """Make keys known because another proxy is about to give them deadlines; of `near` ones, which pass at once."""
        marks, deadlines = self._marks, self.deadlines
        first = [
            key for key in keys if key not in near or (key not in marks and deadlines.get(key, math.inf) == math.inf)
        ]
        for key in keys:
            self.mark(key, math.inf, 0.0)
        for key in near:
            self._restless.note(key, lease_clock())
        self.on_announced(first)

    def unstirred(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those keys of whose near deadlines other proxies have to be told, and can be."""
        if not self.shared or self.cut_off:
            return []
        stirred, since = self.stirred(), lease_clock() - STIRRED_SECONDS
        return [key for key in keys if stirred.get(key, -math.inf) <= since]  # (what took longest is noted last)

    def stirred(self) -> Mapping[bytes, float]:
        """Return the keys of whose near deadlines others have been told lately."""
        self._stirred.end(lease_clock() - STIRRED_SECONDS)
        return self._stirred

    def stir(self, keys: Iterable[bytes], moment: float) -> None:
        """Note that others began to be told of near deadlines of keys at a moment (`lease_clock`)."""
        for key in keys:
            self._stirred.note(key, moment)

    def comes_soon(self, key: bytes, now: float) -> bool:
        """Return whether a request that is about to run may give a key a deadline that is near at `now` (Unix ms)."""
        coming = self._coming.get(key)
        return not coming or coming[0] <= now + NEAR_MS

    def suspect(self, key: bytes) -> None:
        """Make a key known because its deadlines have changed; `learn` follows."""
        self._doubtful.add(key)
        self._guessed.discard(key)
        if key not in self.deadlines:
            self._put(key, math.inf)
        if key in self._watched:
            self._disturb(key)

    def is_urgent(self, key: bytes) -> bool:
        """Return whether a change of a key's deadlines may have brought one that is earlier than is known.

        A deadline that this proxy's clients set was known before, unless the request ran when it would have passed.
        """
        return self.shared or key in self._overtaken or self.deadlines.get(key, math.inf) == math.inf

    @contextmanager
    def asking(self) -> Iterator[Freed]:
        """While the server is asked about keys: give those whose claims or marks end meanwhile, for `learn`.

        Their requests had run by then; what the server says may be older. They are given as long as the context lasts.
        """
        self._asked += 1
        number = self._asked
        self._asking[number] = None
        try:
            yield Freed(self._freed, number)
        finally:
            del self._asking[number]
            self._freed.end(next(iter(self._asking), self._asked + 1) - 1)

    def learn(
        self, key: bytes, deadline: float | None, moment: float, *, freed: Container[bytes] = frozenset()
    ) -> None:
        """Take over what the server says of a key.

        Args:
            key: the key.
            deadline: its earliest deadline in Unix ms, or None when it has none.
            moment: the server's clock when it said so. The request of a mark or claim may not have run by then, so its
                deadline counts too. One that had passed counts no more: whenever that request runs, its member goes.
            freed: keys of which the server may have said so before a request ran: what is known of them stays as well.
        """
        self._doubtful.discard(key)
        if deadline is not None:
            self._guessed.discard(key)
            if key in self._watched:
                self._disturb(key)
        if key in freed and (known := self.deadlines.get(key)) is not None:
            deadline = known if deadline is None else min(deadline, known)
        coming = self._coming.get(key)
        if coming:
            passed = bisect_right(coming, moment)
            del coming[:passed]
            if passed and key in self._claimed:
                self._overtaken.add(key)
            if coming:
                marked = coming[0] - self.doubt
                deadline = marked if deadline is None else min(deadline, marked)
        if deadline is not None:
            self.ever = True
            self._put(key, deadline)
        elif key in self._marks or key in self._claimed:
            self._put(key, math.inf)
        elif self.shared and self.deadlines.get(key, math.inf) < math.inf:
            # Others may not have heard yet, take it for known to all, and so announce nothing.
            self._put(key, math.inf)
            self._mark_for_a_time(key)
        else:
            self.deadlines.pop(key, None)
            self._guessed.discard(key)
            if not self.deadlines:
                self.beginnings.clear()

    def keep_order(self) -> None:
        """Keep the deadlines in order from now on."""
        if self.order is None:
            self.order = DeadlineOrder(self.deadlines)

    def _put(self, key: bytes, deadline: float) -> None:
        order = self.order
        if order is not None and deadline < math.inf and self.deadlines.get(key) != deadline:
            self.deadlines[key] = deadline
            order.put(key, deadline)
        self.deadlines[key] = deadline
        self.beginnings.add(key)
        if deadline < self._horizon:
            self._alarm(deadline)

    def stale_marks(self, now: float) -> list[bytes]:
        """End the marks that are old at `now` (`lease_clock`); return their keys, which are to be asked about again."""
        self._restless.end(now - RESTLESS_SECONDS)
        old = self._marks.end(now - MARK_SECONDS)
        for key in old:
            self._release(key)
        return old

    def _release(self, key: bytes) -> None:
        """Forget what was about to be set, where nothing is any more."""
        if key not in self._marks and key not in self._claimed:
            self._coming.pop(key, None)
            self._overtaken.discard(key)
            if self._asking:
                self._freed.note(key, self._asked)

    # Claims.

    def settle(self, now: float) -> list[bytes]:
        """Ask connections for signs, and return keys that none claims any more: they are to be asked about again.

        Args:
            now: `lease_clock`.

        Returns:
            The keys; there may be more (`settle_more`).
        """
        for claims in list(self._claims):
            before = claims.weight
            self._settled.extend(claims.settle(now))
            self._settled_weight += before - claims.weight
            if not claims.weight:
                del self._claims[claims]
        excess = (self._claimed_weight - self._settled_weight) // CLAIMED_AT_MOST
        if excess > 0:  # keys that several have claimed are settled once for each
            looks = UNANSWERED_LOOKS if excess == 1 else min(HURRIED_LOOKS, UNANSWERED_LOOKS)
            for claims in list(self._claims):
                if claims.weight >= CLAIMED_BY_ANYBODY and claims.looks >= looks:
                    claims.sender.refuse()
        return self.settle_more()

    def settle_more(self) -> list[bytes]:
        """Return further keys that none claims any more; there may be others left, as `settling` tells."""
        keys = self._settled[-DROPPED_AT_ONCE:]
        del self._settled[-DROPPED_AT_ONCE:]
        self._settled_weight -= sum(map(weight, keys))
        return self._unclaim(keys)

    @property
    def settling(self) -> bool:
        """Whether claims have been settled that have not been dropped yet."""
        return bool(self._settled)

    def _unclaim(self, keys: Iterable[bytes]) -> list[bytes]:
        """Take one claim away from each key; return those that have none left."""
        free: list[bytes] = []
        for key in keys:
            count = self._claimed[key] - 1
            if count:
                self._claimed[key] = count
            else:
                del self._claimed[key]
                self._claimed_weight -= weight(key)
                self._release(key)
                free.append(key)
        return free

    def orphan(self, claims: Claims) -> None:
        """Keep the claims of a connection that has ended: the server may not have read its last requests."""
        if self._claims.pop(claims, 0) is None:
            self._orphans.append((lease_clock(), claims.all_keys))

    def has_orphans(self, now: float) -> bool:
        """Return whether connections with claims have ended long ago; `now` is `lease_clock`."""
        return bool(self._orphans) and self._orphans[0][0] <= now - SETTLE_SECONDS

    def bury(self, now: float) -> list[bytes]:
        """Drop claims of connections that had ended long before `now`, when the server was asked something else.

        Returns:
            The keys that none claims any more. There may be others left: see `has_orphans`.
        """
        free: list[bytes] = []
        if self.has_orphans(now):
            _, keys = self._orphans[0]
            free = self._unclaim(keys[-DROPPED_AT_ONCE:])
            del keys[-DROPPED_AT_ONCE:]
            if not keys:
                self._orphans.pop(0)
        return free

    @property
    def claimed(self) -> int:
        """How many keys are claimed."""
        return len(self._claimed)

    @property
    def crowded(self) -> bool:
        """Whether so much is claimed that some may have to be turned away."""
        return self._claimed_weight >= CLAIMED_AT_MOST

    # Other proxies.

    def outstanding(self) -> list[bytes]:
        """Return the keys to which requests may give deadlines that have been sent, or may be without announcement."""
        return list(self._claimed.keys() | self._announced.keys())

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        """Note that all proxies know these keys; the announcement was published at that moment (`lease_clock`)."""
        for key in keys:
            self._announced.note(key, moment)

    def forget_announced(self) -> None:
        """Announce every key again: others may have joined that have not been told."""
        self._announced.clear()
        self._stirred.clear()

    def unannounced(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those keys that may get deadlines only when they have been announced."""
        if not self.shared:
            return []
        now = lease_clock()
        trusted = now < self.trusted_until
        fresh = now - FRESH_SECONDS if trusted else math.inf
        # What is known here for certain is known elsewhere, or will be before it can matter.
        certain = trusted or self.cut_off
        return [
            key
            for key in keys
            if self._announced.get(key, -math.inf) < fresh and not (certain and self._is_certain(key))
        ]

    def _is_certain(self, key: bytes) -> bool:
        """Return whether the server has told that a key has deadlines, and nothing has changed since."""
        return (
            self.deadlines.get(key, math.inf) < math.inf
            and key not in self._claimed
            and key not in self._marks
            and key not in self._doubtful
        )

    def to_announce_again(self, now: float) -> list[bytes]:
        """Return the keys that are still claimed long after they were announced; `now` is `lease_clock`."""
        old = now - FRESH_SECONDS
        again: set[bytes] = set()
        for claims in self._claims:
            again |= claims.older_than(old)
        for ended, keys in self._orphans:
            if ended <= old:
                again.update(keys)
        announced = self._announced
        announced.end(old)
        return [key for key in again if announced.get(key, -math.inf) <= old]

    def begin_watch(self) -> None:
        """Note the earliest deadline that becomes known from now on, without an alarm."""
        self.next_deadline = min(self.next_deadline, self._horizon)
        self._horizon = math.inf
        self._wake = None

    def end_watch(self, earliest: float, wake: Callable[[], None]) -> None:
        """Set the next deadline, and have `wake` called once when an earlier one becomes known.

        Args:
            earliest: the earliest deadline that the server told since `begin_watch`, in Unix ms.
            wake: the alarm.
        """
        self.next_deadline = self._horizon = min(earliest, self._horizon)
        self._wake = wake

    def _alarm(self, deadline: float) -> None:
        self._horizon = deadline
        if self._wake is not None:
            self._wake()
