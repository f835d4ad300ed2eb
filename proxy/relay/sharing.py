"""One client's use of shared connections: when the client may share, and how it returns without losing order.

Its tests: tests/test_sharing.py.

A client starts to share when none of its requests is under way on its own connection, and returns when all requests
sent over shared ones have been answered. So its requests run, and are answered, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, Protocol

from proxy.relay.lanes import Group, Lanes, Tally
from proxy.relay.outbound import Outbound
from proxy.relay.port import Port, drop, nothing
from proxy.relay.upstream import ReadPause, UpstreamConnection
from proxy.session.ground import Ground
from proxy.session.identity import Identity
from proxy.session.plain import SMALL
from proxy.session.session import Session

ANEW_SECONDS: Final = 3.0
"""How long a client shares before its next request goes over its own connection, and its identity is checked again.
Without this, a server that closes idle connections (`timeout`) would close the own connection of an active client."""

TOUCH_SECONDS: Final = 0.25
"""How long to wait, after `ANEW_SECONDS`, for the client's next request before the proxy sends one of its own."""

DOZE_SECONDS: Final = 1.0
"""How long to pause checks of a client that sends no small requests."""

TRIAL_SECONDS: Final = 0.25
"""How long a client shares before the proxy checks whether that pays."""

RETIRE_SECONDS: Final = 10.0
"""About how long to pause if sharing does not pay. All these clients try again at the same time, because a client that
tries alone cannot find out that many would share."""

DOZE_AFTER: Final = 64
"""Checks pause after this number of chunks that could not be shared, counted since the server was last queried."""

MOST_PATIENCE: Final = 1024
"""Maximum number of small requests in a row to wait for before the server is queried."""

SELDOM_FROM: Final = 64
"""If the server is queried only after this many requests in a row, or more, only one in `SELDOM` is checked."""

SELDOM: Final = 8
"""How many requests each checked one then counts for."""


class State(Enum):
    """The state of a client."""

    OWN = "everything goes over its own connection"
    DOZING = "own connection; checks are paused, because requests or a reply were large, or few others shared"
    ASKED = "own connection; after the last request the server was asked for its identity"
    SHARED = "its small requests go over shared connections"
    STALE = "the next request goes over its own connection, and after it the server is asked again"
    LEAVING = "new requests wait for the reply to one on a shared connection"
    NEVER = "it does not share"


_AWAY: Final = frozenset((State.SHARED, State.STALE, State.LEAVING))


class Host(Protocol):
    """The part of the client's conversation that `Sharing` uses."""

    def rebind(self) -> None:
        """Use the receiver that fits the current state for the client's next bytes."""

    def come_back(self, kept: bytes) -> None:
        """Continue over the client's own connection, with bytes that were received but not sent."""

    def note_kept(self) -> None:
        """Record the buffered bytes, and pause reading from the client."""


class Client(Protocol):
    """The part of the client's side that `Sharing` uses."""

    def abandon(self) -> None:
        """Close without waiting for replies."""

    def fail(self, error: BaseException) -> None:
        """Close both sides after an internal error."""


class Patience:
    """How long to observe a client before the server is queried for its identity.

    After each time that sharing did not pay, wait for twice as many small requests in a row. From `SELDOM_FROM` on,
    check only one in `SELDOM`.

    Attributes:
        left: how many more small requests to wait for.
        large: number of chunks that could not be shared since the server was last queried.
        unlooked: how many of the next chunks not to check.
        retires: whether to pause after the return to the own connection, because sharing does not pay.
    """

    __slots__ = ("_after", "_most", "large", "left", "retires", "unlooked")

    def __init__(self, after: int) -> None:
        self._after = self._most = self.left = after
        self.large = 0
        self.unlooked = 0
        self.retires = False

    @property
    def weight(self) -> int:
        """How many chunks each checked one counts for."""
        return SELDOM if self._most >= SELDOM_FROM else 1

    def renew(self) -> None:
        """Start counting again."""
        self.left = self._most

    def reset(self) -> None:
        """Start over, as with a new client."""
        self._most = self.left = self._after

    def grow(self) -> None:
        """Wait longer before the next query. With `share_after` 1, keep querying after each request."""
        if self._most > 1:
            self._most = min(2 * self._most, MOST_PATIENCE)
        self.left = self._most


class Sharing:
    """Decides for one client what goes over shared connections.

    Args:
        host: the client's conversation.
        client: the connection to the client.
        transport: takes replies.
        session: judges the requests.
        upstream: the client's own connection to the server.
        outbound: sends requests over that connection.
        ground: what all sessions share.
        lanes: the shared connections.

    Attributes:
        state: the state of the client.
        kept: bytes that wait for the reply to earlier requests.
    """

    __slots__ = (
        "_ground",
        "_host",
        "_lanes",
        "_late",
        "_outbound",
        "_patience",
        "_port",
        "_questions",
        "_session",
        "_since",
        "_takers",
        "_tallies",
        "_upstream",
        "kept",
        "state",
    )

    def __init__(
        self,
        host: Host,
        client: Client,
        transport: asyncio.WriteTransport,
        session: Session,
        upstream: UpstreamConnection,
        outbound: Outbound,
        ground: Ground,
        lanes: Lanes,
    ) -> None:
        self._host = host
        self._session = session
        self._upstream = upstream
        self._outbound = outbound
        self._ground = ground
        self._lanes = lanes
        self._patience = Patience(lanes.after)
        self._late = b""  # a push from the client's own connection; waits for the end of a reply on a lane
        self._questions = 0
        self._since = 0.0  # when sharing began
        self._takers: tuple[Callable[[Port, bytes], bool], ...] = ()
        self._tallies: tuple[tuple[Group, Tally], ...] = ()  # the groups' tallies when sharing began
        self._port = port = Port(transport.write)
        port.lost = client.abandon
        port.returned = self._take_back
        port.retire = self._retire
        port.backlog = transport.get_write_buffer_size
        port.broke = client.fail
        self.kept = b""
        self.state = State.OWN

    @property
    def away(self) -> bool:
        """Whether something is or may be under way over a shared connection."""
        return self.state in _AWAY

    @property
    def leaving(self) -> bool:
        """Whether new requests must wait."""
        return self.state is State.LEAVING

    def receiver(self, own: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return the function that takes bytes from the client.

        Args:
            own: takes the bytes while they go over the client's own connection.
        """
        if self.state is State.SHARED:
            return self._shared_receiver()
        if self.state is State.OWN:
            return self._counting_receiver(own)
        if self.state is State.ASKED:
            return self._asked_receiver(own)
        if self.state is State.STALE:
            return self._leave
        return own if self.state in (State.NEVER, State.DOZING) else self._keep

    def _shared_receiver(self) -> Callable[[bytes], None]:
        port, shareable, takers, leave = self._port, self._ground.checks.shareable, self._takers, self._leave

        def receive(data: bytes) -> None:
            if port.busy or not takers[shareable(data)](port, data):
                leave(data)

        return receive

    def _counting_receiver(self, own: Callable[[bytes], None]) -> Callable[[bytes], None]:
        session, is_shareable, patience = self._session, self._ground.checks.is_shareable, self._patience
        weight = patience.weight

        def receive(data: bytes) -> None:
            if patience.unlooked:
                patience.unlooked -= 1
                own(data)
                return
            patience.unlooked = weight - 1
            small = len(data) <= SMALL and session.ordinary and is_shareable(data)
            own(data)
            if not small:
                patience.renew()
                patience.large += 1
                if patience.large >= DOZE_AFTER and self.state is State.OWN:
                    self._doze()
            elif patience.left > weight:
                patience.left -= weight
            elif self.state is State.OWN:
                patience.large = 0
                self._ask()

        return receive

    def _asked_receiver(self, own: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def receive(data: bytes) -> None:
            # The client has sent more before the reply to the proxy's CLIENT INFO came. When that reply comes, requests
            # may still be under way: the client cannot share yet.
            self._patience.grow()
            self.state = State.OWN
            self._host.rebind()
            own(data)

        return receive

    def _doze(self) -> None:
        self.state = State.DOZING
        self._host.rebind()
        self._lanes.wake_after(DOZE_SECONDS, self)

    def _ask(self) -> None:
        """Query the server for the client's identity, right after the client's request, so that the answer comes right
        behind the reply. If the client sends no other request before the answer, nothing is under way when it comes."""
        if self._session.user != self._lanes.credentials.user:
            self._doze()
            return
        self._questions += 1
        asked = self._session.ask_who(partial(self._hear, self._questions))
        self._patience.renew()
        if asked is not None:
            self.state = State.ASKED
            self._host.rebind()
            self._outbound.send(asked)

    def _hear(self, question: int, identity: Identity | None) -> None:
        """Handle the answer to a query. If no request has followed the query, nothing is under way now."""
        if self.state is not State.ASKED or question != self._questions:
            return
        self.state = State.OWN
        if identity is None or self._session.reads.under_way:
            self._patience.grow()
        else:
            groups = self._lanes.groups(identity)
            if groups is None:
                self._patience.grow()
            elif all([group.ready for group in groups]):  # noqa: C419 - ask all: each opens a lane if it has none
                writes, reads = groups
                self.state = State.SHARED
                self._since = asyncio.get_running_loop().time()
                joint = (
                    self._joint_taker(writes),
                    self._joint_taker(reads),
                    self._joint_taker(writes, transactions=True),
                )
                self._takers = _refuse, writes.take, reads.take, reads.take_guarded, *joint
                self._tallies = tuple((group, group.tally) for group in groups)
                self._port.used = False
                self._lanes.wake_after(TRIAL_SECONDS, self)
                self._session.share()
            else:
                self._patience.grow()
        self._host.rebind()

    def _joint_taker(self, group: Group, *, transactions: bool = False) -> Callable[[Port, bytes], bool]:
        """Return a function that takes this client's requests (or transactions) for joint calls while the session's
        state permits it."""
        take_joint = group.take_joint
        may_go = self._session.joint_check(transactions=transactions)

        def take(port: Port, data: bytes) -> bool:
            return may_go() and take_joint(port, data)

        return take

    def note_leaver(self) -> None:
        """Note that the client's own connection was half-closed while a request may block there."""
        self._lanes.note_leaver(self._upstream)

    # Returning to the client's own connection.

    def wake(self) -> None:
        """Resume checks, stop sharing that does not pay, or have the server queried again."""
        if self.state is State.DOZING:
            self._patience.large = DOZE_AFTER - 8
            self.state = State.OWN
            self._host.rebind()
        elif self.state is State.STALE:
            # The client has become idle: send a request, so that the server counts its idle time from now on.
            self._outbound.send(self._session.ask_who(lambda _: None) or b"")
            self._leave(b"")
        elif self.state is State.SHARED:
            if not any(group.has_paid(since) for group, since in self._tallies):
                self._retire()
            elif asyncio.get_running_loop().time() < self._since + ANEW_SECONDS / 2:
                self._lanes.wake_after(ANEW_SECONDS - TRIAL_SECONDS, self)
            elif self._port.busy:
                self._port.settled = self._grow_stale
            else:
                self._grow_stale()

    def _grow_stale(self) -> None:
        self._port.settled = None
        if self._port.used:
            self.state = State.STALE
            self._lanes.wake_after(TOUCH_SECONDS, self)
            self._host.rebind()
        else:
            self._leave(b"")

    def _retire(self) -> None:
        if self.state in _AWAY:
            self._patience.retires = True
            self.leave()

    def leave(self) -> None:
        """Return to the client's own connection."""
        if self.state in (State.SHARED, State.STALE):
            self._leave(b"")

    def _leave(self, data: bytes) -> None:
        self._lanes.let_sleep(self)
        if self._port.busy:
            self.state = State.LEAVING
            self.kept += data
            self._port.settled = self._settle
            self._host.rebind()
            self._host.note_kept()
            return
        self._port.settled = None
        if data and self.state is State.STALE and self._ground.checks.is_shareable(data):
            self._patience.left = 1  # serve one more request, then query the server again
        elif asyncio.get_running_loop().time() < self._since + 1 and not self._patience.retires:
            self._patience.grow()
        else:
            self._patience.reset()
        self._come_back(data)

    def _settle(self) -> None:
        self._port.settled = None
        self._patience.renew()
        self._come_back(b"")

    def _take_back(self, request: bytes) -> None:
        """Take back a request to send over the client's own connection, before those received since."""
        self.kept = request + self.kept
        self._port.settled = None
        self._leave(b"")

    def _come_back(self, data: bytes) -> None:
        kept, self.kept = self.kept + data, b""
        self.state = State.OWN
        self._upstream.deliver_by(self._port.deliver)
        if self._late:
            late, self._late = self._late, b""
            self._port.deliver(late)
            self._upstream.resume(ReadPause.MIDWAY)
        if self._patience.retires:
            self._patience.retires = False
            self.state = State.DOZING
            self._lanes.wake_after(RETIRE_SECONDS, self, together=True)
        self._host.come_back(kept)

    def _keep(self, data: bytes) -> None:
        self.kept += data

    def note_own_replies_done(self) -> None:
        """Note that all replies on the client's own connection have arrived: anything that follows there is a push."""
        if self.state is not State.SHARED:
            return
        if self._session.replies.trailed:  # a push began after the answer, and may be incomplete
            self._session.share_no_more()
            self.leave()
        else:
            self._upstream.deliver_by(self._hear_own)

    def _hear_own(self, data: bytes) -> None:
        """Pass on a push from the client's own connection, and stop sharing: another client redirects its pushes to
        this client, and they must not be mixed with replies."""
        self._session.share_no_more()
        if self._port.busy:
            self._late += data
            self._upstream.pause(ReadPause.MIDWAY)
        else:
            self._port.deliver(data)
        self.leave()

    def fail(self, error: Exception) -> None:
        """Close both sides of the client's connection."""
        self._port.broke(error)

    def drop_replies(self) -> None:
        """Drop replies: the client has gone, but its requests still go to the server."""
        self._port.deliver = drop

    def end(self) -> None:
        """Stop for good: send nothing more for the client, and drop its replies."""
        self._lanes.let_sleep(self)
        port = self._port
        port.deliver = port.broke = port.returned = drop
        port.settled = None
        port.lost = port.retire = nothing
        port.backlog = int
        self.kept = b""
        self.state = State.NEVER


def _refuse(_port: Port, _data: bytes) -> bool:
    """Refuse every request."""
    return False
