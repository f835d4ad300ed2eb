"""The shared connections (lanes) of a proxy: requests of one turn of the event loop are sent in one write.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, Protocol
from weakref import WeakSet

import structlog
from redis.exceptions import RedisError

from proxy.beats import until_beat
from proxy.coverage.outlook import Outlook
from proxy.logs import Seldom
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.batch_guard import BatchGuard
from proxy.relay.fence import Fence
from proxy.relay.joint import Joint, in_calls, read
from proxy.relay.lane import Lane, Obstacle, State
from proxy.relay.port import Port, Room
from proxy.session.ground import Ground
from proxy.session.identity import Identity
from proxy.session.streams import LONG
from proxy.wire.guard import earliest_of_all, first_of
from proxy.wire.request import bulk, encode, second

log = structlog.get_logger("proxy.relay")

MOST_LANES: Final = 3
"""Maximum number of lanes of a group: if one is held up, the others still work."""

AGAIN_SECONDS: Final = 1.0
"""Minimum time between two attempts to open a lane of a group."""

REFUSED_SECONDS: Final = 60.0
"""How long not to try again after the server has refused a lane, usually because the proxy's login makes it another
user than its clients."""

TICK_SECONDS: Final = 0.1
"""How often to check the lanes. A lane is held up if replies are outstanding and none arrives for this long."""

MOST_WOKEN: Final = 1000
"""Maximum number of clients to wake per check: each takes some µs, while other clients wait."""

MOST_GROUPS: Final = 32
"""Maximum number of groups of lanes, two for each user, database and protocol. Other clients use their own
connections."""

SPARSE: Final = 1.75
"""If batches are worth less than this on average (see `COVERED_WORTH`), sharing does not pay: it saves no work for the
proxy or the server."""

COVERED_WORTH: Final = 4
"""The worth of a request on a covered key; other requests are worth 1. Over the client's own connection, a request on a
covered key needs a script's text or a guard. Saving these is worth three times what the detour over a lane costs."""

PING_TICKS: Final = 20
"""After this many checks without use, PING is sent over a lane, so that the server does not close it as idle. (A
`timeout` of less than 5 s disconnects clients that share anyway.)"""

IDLE_TICKS: Final = 600
"""After this many checks without use, a lane is closed."""

_ZMSCORE: Final = bulk(b"ZMSCORE")

Tally = tuple[int, int]
"""The worth of all requests, and the number of batches in which they were sent."""

OpenUpstream = Callable[[Callable[[Fence], asyncio.Protocol]], Awaitable[None]]


class Sharer(Protocol):
    """A client that shares."""

    def wake(self) -> None:
        """Continue: the requested time has passed."""

    def fail(self, error: Exception) -> None:
        """Close the connection, because `wake` has raised an exception."""


class HasLogin(Protocol):
    """The credentials of the proxy."""

    @property
    def user(self) -> bytes:
        """The proxy's user."""

    @property
    def login(self) -> Iterable[str]:
        """The arguments of AUTH; empty if there is no need to log in. Raises RedisError."""


class Leaver(Protocol):
    """A client's connection to the server."""

    @property
    def may_take(self) -> bool:
        """Whether the server could still give the client data through this connection."""


class Lanes:
    """The shared connections, grouped by identity.

    Args:
        ground: what all sessions share.
        connect: connects to the server; raises OSError or TimeoutError.
        credentials: the proxy's own login.
        traffic: counts bytes.
        metrics: the metrics to update.
        after: how many small requests in a row a client sends before the server is queried for the client's identity.
    """

    def __init__(
        self,
        ground: Ground,
        connect: OpenUpstream,
        credentials: HasLogin,
        traffic: Traffic,
        metrics: Metrics,
        after: int,
    ) -> None:
        self.ground = ground
        self.connect = connect
        self.credentials = credentials
        self.traffic = traffic
        self.metrics = metrics
        self.after = after
        self.room = Room()
        self._alarms: dict[float, dict[Sharer, float]] = {}  # seconds to wait → client to wake → when its wait began
        self._groups: dict[tuple[Identity, bool], Group] = {}
        self._refused: dict[Identity, float] = {}  # identity that the server refused → when it may be tried again
        self._dirty: list[Group] = []  # groups with something to send
        self._leavers: WeakSet[Leaver] = WeakSet()  # some may have ended
        self._rests = False  # whether no lane needs frequent checks
        self._wanted = asyncio.Event()  # set when lanes need frequent checks
        self._say_refused = Seldom(log.info, "requests not shared: no shared connection as this user")

    def groups(self, identity: Identity) -> tuple[Group, Group] | None:
        """Return the two groups of an identity: one for writes, and one for reads, which also run during CLIENT PAUSE
        WRITE.

        None if there are too many groups, or if the server has refused lanes of this identity.
        """
        if identity in self._refused:
            return None
        missing = [(identity, reads) for reads in (False, True) if (identity, reads) not in self._groups]
        if len(self._groups) + len(missing) > MOST_GROUPS:
            return None
        for key in missing:
            self._groups[key] = Group(self, *key)
        self._wanted.set()
        return self._groups[identity, False], self._groups[identity, True]

    def note(self, group: Group) -> None:
        """Note that a group has something to send at the end of this turn."""
        if not self._dirty:
            if self._rests:
                self._wanted.set()
            asyncio.get_running_loop().call_soon(self.flush)
        self._dirty.append(group)

    def flush(self) -> None:
        """Send the collected requests. Called at the end of a turn, and before judging anything that might give a key a
        deadline."""
        dirty = self._dirty
        if dirty:
            self._dirty = []
            # Flush all groups first: a returned request is judged at once, and so are its client's later ones, which
            # may set a key's first deadline.
            for port in [unsent for group in dirty for unsent in group.flush()]:
                port.give_back(port.request)

    def note_leaver(self, upstream: Leaver) -> None:
        """Note that a client's connection was half-closed while the server may still give it data meant for others."""
        self._leavers.add(upstream)

    @property
    def anybody_leaves(self) -> bool:
        """Whether there may be a half close (see `note_leaver`) that the server has not read yet.

        A shared write could overtake it: the server reads connections in the order in which their first unread bytes
        came, and a lane's may have come before the half close. So writes then go over the clients' own connections.
        """
        return len(self._leavers) > 0 and any(upstream.may_take for upstream in self._leavers)

    def refuse(self, identity: Identity) -> None:
        """Note that the server refused lanes of an identity."""
        self._refused[identity] = asyncio.get_running_loop().time() + REFUSED_SECONDS
        self._wanted.set()

    def say_refused(self, identity: Identity, refusal: str) -> None:
        """Log that clients of a user cannot share."""
        self._say_refused(user=identity.user.decode("utf-8", "replace"), error=refusal)

    def wake_after(self, seconds: float, sharer: Sharer, *, together: bool = False) -> None:
        """Wake a client after a time.

        Args:
            seconds: the time; only few different values are in use.
            sharer: the client.
            together: whether to wake all clients with the same `seconds` at the same moment; a client then waits for
                half to one and a half times as long.
        """
        now = asyncio.get_running_loop().time()
        alarms = self._alarms.setdefault(seconds, {})
        alarms.pop(sharer, None)
        alarms[sharer] = seconds * round(now / seconds) if together else now
        self._wanted.set()

    def let_sleep(self, sharer: Sharer) -> None:
        """Cancel waking a client."""
        for alarms in self._alarms.values():
            alarms.pop(sharer, None)

    def _wake(self) -> None:
        now = asyncio.get_running_loop().time()
        for seconds, alarms in list(self._alarms.items()):
            for sharer, since in list(islice(alarms.items(), MOST_WOKEN)):
                if since + seconds > now:
                    break
                if alarms.pop(sharer, None) is None:
                    continue  # waking another client has cancelled this one's alarm
                try:
                    sharer.wake()
                except Exception as error:  # noqa: BLE001 - one client's defect is not another's
                    sharer.fail(error)

    async def run(self) -> None:
        """Check the lanes until cancelled; rarely while none is used and no client must be woken."""
        while True:
            ticks = 1
            if not any(self._alarms.values()) and all(group.rests for group in self._groups.values()):
                ticks = PING_TICKS if await self._rest() else 1
            else:
                await asyncio.sleep(TICK_SECONDS)
            for key, group in list(self._groups.items()):
                if group.look(ticks):
                    del self._groups[key]
            now = asyncio.get_running_loop().time()
            self._refused = {identity: until for identity, until in self._refused.items() if until > now}
            self._wake()
            self.metrics.shared_connections = sum(group.open_lanes for group in self._groups.values())

    async def _rest(self) -> bool:
        """Sleep until a lane is used, or until idle lanes need a PING; return True if they need it."""
        self._wanted.clear()
        self._rests = True
        seconds = until_beat(PING_TICKS * TICK_SECONDS) if self._groups or self._refused else None
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            return True
        finally:
            self._rests = False
        await asyncio.sleep(TICK_SECONDS)
        return False


class Opener:
    """Opens lanes for a group: one at a time, and at most one a second.

    Args:
        lanes: the shared connections.
        identity: the lanes' identity.
        reads: whether the lanes are for reads.
        opened: called with a lane that is being opened.
        changed: called when the state of a lane has changed.

    Attributes:
        refused: whether the server refused a lane of this identity.
    """

    def __init__(
        self,
        lanes: Lanes,
        identity: Identity,
        reads: bool,
        opened: Callable[[Lane], None],
        changed: Callable[[], None],
    ) -> None:
        self._all = lanes
        self._identity = identity
        self._reads = reads
        self._opened = opened
        self._changed = changed
        self._opening: asyncio.Task[None] | None = None
        self._again = 0.0  # earliest time to open another lane
        self.refused = False

    @property
    def is_busy(self) -> bool:
        """Whether a lane is being opened, or has just been opened."""
        return self._opening is not None

    def open(self) -> None:
        """Start opening a lane, unless one was started recently."""
        now = asyncio.get_running_loop().time()
        if self._opening is None and now >= self._again:
            self._again = now + AGAIN_SECONDS
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        made: list[Lane] = []

        def make(login: Iterable[str], fence: Fence) -> Lane:
            lanes = self._all
            lane = Lane(
                self._identity,
                login,
                lanes.traffic,
                fence,
                lanes.room,
                self._changed,
                lanes.ground.streams.ran,
                may_resend=self._reads,
                retires=lanes.after > 1,
            )
            made.append(lane)
            return lane

        try:
            await self._all.connect(partial(make, self._all.credentials.login))
            self._opened(made[-1])
            await asyncio.sleep(AGAIN_SECONDS)
            if made[-1].state is State.OPENING:
                made[-1].abort()
            if made[-1].refusal:
                self.refused = True
                self._all.refuse(self._identity)
                self._all.say_refused(self._identity, made[-1].refusal)
        except (OSError, TimeoutError, RedisError) as error:
            self._all.say_refused(self._identity, str(error))
        finally:
            self._opening = None


class Group:
    """The lanes of one identity that take the same kind of requests: reads, or writes."""

    def __init__(self, lanes: Lanes, identity: Identity, reads: bool) -> None:
        self._all = lanes
        self._writes = not reads
        self._opener = Opener(lanes, identity, reads, self._add, self._choose)
        self._lanes: list[Lane] = []
        self._lane: Lane | None = None  # the lane for new requests
        self._ports: list[Port] = []
        self._requests: list[bytes] = []
        self._guarded: dict[Port, bytes] = {}  # reads of covered keys
        self._outlook = Outlook()
        self._joint: list[Port] = []  # ports with requests for joint calls
        self._heard: dict[Lane, int] = {}  # lane → its number of reply chunks at the last check
        self._used = False
        self._unused = 0
        self._batches = self._worth = 0

    @property
    def ready(self) -> bool:
        """Whether there is a usable lane. If not, start opening one."""
        if self._lane is None:
            self._open()
        return self._lane is not None

    @property
    def tally(self) -> Tally:
        """The worth of the requests that were sent so far, and the number of their batches."""
        return self._worth, self._batches

    def has_paid(self, since: Tally) -> bool:
        """Return whether sharing has paid since a tally was taken."""
        worth, batches = since
        return self._worth - worth >= max(1, SPARSE * (self._batches - batches)) or self._all.after == 1

    @property
    def open_lanes(self) -> int:
        """Number of open lanes."""
        return sum(lane.state is State.OPEN for lane in self._lanes)

    def take(self, port: Port, request: bytes) -> bool:
        """Accept a request, to be sent at the end of this turn; return False if there is no lane.

        Args:
            port: the client's port, which must not be busy.
            request: one complete request.
        """
        if not self._begin(port, request):
            return False
        self._ports.append(port)
        self._requests.append(request)
        return True

    def _begin(self, port: Port, request: bytes) -> bool:
        if self._lane is None:
            return False
        if not self._requests and not self._joint:
            self._all.note(self)
        port.busy = port.used = True
        port.request = request
        return True

    def take_joint(self, port: Port, request: bytes) -> bool:
        """Like `take`, for a request that may fit into a joint call. If it does not fit, `flush` returns its port."""
        if not self._begin(port, request):
            return False
        self._joint.append(port)
        return True

    def take_guarded(self, port: Port, request: bytes) -> bool:
        """Like `take`, for a read of a covered key; the key must be the request's first argument."""
        if not self.take(port, request):
            return False
        self._guarded[port] = request
        return True

    def flush(self) -> list[Port]:
        """Send the accepted requests; return the ports of those that cannot be sent, because the lane is lost, the
        proxy has become blind, a half close is under way (`anybody_leaves`), or a joint call cannot take them."""
        ports, requests, lane = self._ports, self._requests, self._lane
        guarded, self._guarded = self._guarded, {}
        joint, self._joint = self._joint, []
        self._ports, self._requests = [], []
        try:
            coverage = self._all.ground.coverage
            coverage.look()
            if lane is None or lane.state is not State.OPEN or coverage.blind:
                return [*ports, *joint]
            if self._writes and self._all.anybody_leaves:
                return [*ports, *joint]
            return self._flush(lane, ports, requests, guarded, joint)
        except Exception as error:  # noqa: BLE001 - whatever it is, these clients must not wait for ever
            for port in (*ports, *joint):
                port.fail(error)
            return []

    def _flush(
        self, lane: Lane, ports: list[Port], requests: list[bytes], guarded: dict[Port, bytes], joint: list[Port]
    ) -> list[Port]:
        calls, refused = self._joined(joint, lane) if joint else ([], [])
        if ports or calls:
            self._used = True
            self._batches += 1
            joined = len(joint) - len(refused)
            self._worth += len(ports) - len(guarded) + COVERED_WORTH * (len(guarded) + joined)
            self._all.metrics.shared_requests_total += len(ports) + joined
            if guarded:
                ports, requests = self._guard(guarded, ports, requests, lane)
            self._send(lane, [*ports, *(call.port for call in calls)], [*requests, *(call.request() for call in calls)])
        return refused

    def _joined(self, ports: list[Port], lane: Lane) -> tuple[list[Joint], list[Port]]:
        """Return the joint calls for some requests, and the ports of those that cannot be joined."""
        ground = self._all.ground
        parts, refused = read(ground.checks.joinable, ports)
        if delays := [part.asked.delay for part in parts if part.asked.delay]:
            ground.rewriter.marks.expect((), ground.now() + min(delays))
        return [Joint(ground, some, lane) for some in in_calls(parts)], refused

    def _send(self, lane: Lane, ports: list[Port], requests: list[bytes]) -> None:
        out = b"".join(requests)
        load = lane.load
        load.unanswered += len(out)
        if load.unanswered > LONG and not load.is_long:
            load.is_long = True
            self._all.ground.streams.lengthen(load.pipeline)
        lane.send(ports, out)

    def _guard(
        self, guarded: dict[Port, bytes], ports: list[Port], requests: list[bytes], lane: Lane
    ) -> tuple[list[Port], list[bytes]]:
        """Put a request for the next deadline of the guarded reads' keys in front of a batch.

        A late read is sent again over the client's own connection.
        """
        ground, names, outlook = self._all.ground, self._all.ground.names, self._outlook
        guard, now = BatchGuard(guarded, len(ports), lane, ground.now), ground.now()
        if names.slots is None and outlook.is_far(now):
            return [guard.ask_first(outlook.hear), *ports], [first_of(names.index), *requests]
        keys = dict.fromkeys(map(second, guarded.values()))
        if names.slots is None:
            questions = [b"*%d\r\n%b%b%b" % (2 + len(keys), _ZMSCORE, bulk(names.index), b"".join(keys))]
        else:
            groups = names.by_slot([key[key.index(b"\n") + 1 : -2] for key in keys])
            questions = [encode([b"ZMSCORE", names.index_for(group[0]), *group]) for group in groups]
        asked = guard.ask(len(questions))
        if names.slots is None and outlook.wants(now):
            said: list[bytes] = []
            beside = Port(said.append)
            beside.settled = lambda: outlook.hear(earliest_of_all(b"".join(said)))
            asked, questions = [beside, *asked], [first_of(names.index), *questions]
        return [*asked, *ports], [*questions, *requests]

    @property
    def rests(self) -> bool:
        """Whether the group was not used lately, and nothing is outstanding."""
        return self._unused > 0 and not self._requests and not any(lane.waits for lane in self._lanes)

    def look(self, ticks: int) -> bool:
        """Check which lanes are held up; return whether to drop the group: it is unused or refused, and has no lanes.

        Args:
            ticks: number of ticks since the last check.
        """
        for lane in self._lanes:
            if not lane.waits:
                lane.obstacles.discard(Obstacle.STALLED)
            elif self._heard.get(lane) == lane.load.replied:
                lane.obstacles.add(Obstacle.STALLED)
        self._heard = {lane: lane.load.replied for lane in self._lanes}
        before = self._unused
        self._unused = 0 if self._used else before + ticks
        self._used = False
        self._choose()
        if self._unused >= IDLE_TICKS:
            for lane in self._lanes:
                if not lane.waits:
                    lane.abort()
        elif self._unused // PING_TICKS > before // PING_TICKS:
            for lane in self._lanes:
                if lane.state is State.OPEN and not lane.waits:
                    lane.ping()
        return (
            (self._opener.refused or self._unused > IDLE_TICKS)
            and not self._lanes
            and not self._requests
            and not self._joint
            and not self._opener.is_busy
        )

    def _choose(self) -> None:
        """Choose the lane for the next requests; if none is usable, open another."""
        self._lanes = [lane for lane in self._lanes if lane.state is not State.LOST]
        if self._lane is None or not self._lane.usable:
            self._lane = next((lane for lane in self._lanes if lane.usable), None)
            if self._lane is None and self._lanes and self._used:
                self._open()

    def _open(self) -> None:
        if len(self._lanes) < MOST_LANES:
            self._opener.open()

    def _add(self, lane: Lane) -> None:
        self._lanes.append(lane)
        self._choose()
