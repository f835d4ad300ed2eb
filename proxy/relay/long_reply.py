"""A long reply on a shared connection: decide what waits for it, and for how long.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

from proxy.relay.port import LARGE, Port, Room
from proxy.wire.replies import MOST_PARTS

log = structlog.get_logger("proxy.relay")

MANY_LINES: Final = 2 * MOST_PARTS + 1
"""A reply of more lines is not processed whole, and splitting it costs the proxy more than sharing saves."""

RESCUE_SECONDS: Final = 0.1
"""How long requests behind a long reply wait before they are sent elsewhere."""

LOOK_SECONDS: Final = 0.02
PATIENT_LOOKS: Final = 3000
"""A client is closed after this many checks in a row at which it has read nothing, on a connection whose requests can
be resent: 60 s. (For a slow reader the system takes more data only now and then.)"""

IMPATIENT_LOOKS: Final = 250
"""The same limit on a connection whose requests must not run twice: 5 s. There it is also the limit for the total
number of checks, during one reply, at which other clients wait, even if this client reads."""


class Host(Protocol):
    """The connection over which the reply arrives."""

    @property
    def may_resend(self) -> bool:
        """Whether requests on this connection can be sent again."""

    @property
    def lost(self) -> bool:
        """Whether the connection has ended."""

    @property
    def others_wait(self) -> bool:
        """Whether more replies are outstanding behind this one."""

    @property
    def is_within_a_long_reply(self) -> bool:
        """Whether a long reply has arrived in part."""

    def stop_reading(self) -> None:
        """Pause reading: a client must read its reply first."""

    def read_on(self) -> None:
        """Resume reading."""

    def rescue(self) -> None:
        """Resend the requests behind the reply over their clients' own connections."""


class LongReply:
    """Tracks the long reply that is arriving on a connection, if there is one.

    Args:
        host: the connection.
        room: limits the replies that wait for clients.
        most_lines: lines of a reply beyond which sharing does not pay.

    Attributes:
        come: bytes of the reply received so far.
        waits_for: the client that must read more of the reply before the server is read again.
    """

    def __init__(self, host: Host, room: Room, most_lines: int) -> None:
        self.come = 0
        self.waits_for: Port | None = None
        self._host = host
        self._room = room
        self._most_lines = most_lines
        self._kept_waiting = 0  # number of checks at which others waited for this reply's client
        self._rescue_comes = False

    def grow(self, piece: bytes, *, ends: bool) -> bool:
        """Record a piece of the reply; return whether it was the last (`ends`) and sharing did not pay."""
        come = self.come + len(piece)
        if not ends:
            self.come = come
            return False
        self.come = self._kept_waiting = 0
        return come > LARGE or piece.count(b"\n") > self._most_lines

    def is_too_much_for(self, port: Port) -> bool:
        """Return whether so much of the reply waits for its client that reading must pause."""
        return self.come > LARGE and port.backlog() > self._room.of(port)

    def hold_up(self, port: Port) -> None:
        """Pause reading until the client has read more of its reply."""
        if self.waits_for is None:
            self.waits_for = port
            self._host.stop_reading()
            self._look_again(port, port.backlog(), 0)

    def plan_rescue(self) -> None:
        """Check soon whether the reply is complete. If not, requests behind it are sent again elsewhere."""
        if not self._rescue_comes:
            self._rescue_comes = True
            asyncio.get_running_loop().call_later(RESCUE_SECONDS, self._rescue)

    def _rescue(self) -> None:
        self._rescue_comes = False
        if self._host.is_within_a_long_reply:
            self._host.rescue()

    def _look_again(self, port: Port, backlog: int, looks: int) -> None:
        def look() -> None:
            host = self._host
            if host.lost:
                return
            left = port.backlog()
            if not host.may_resend and host.others_wait:
                self._kept_waiting += 1
            if left <= self._room.of(port) // 2:
                self.waits_for = None
                host.read_on()
            elif left < backlog and self._kept_waiting < IMPATIENT_LOOKS:
                self._look_again(port, left, 0)
            elif self._kept_waiting < IMPATIENT_LOOKS and looks < (
                PATIENT_LOOKS if host.may_resend else IMPATIENT_LOOKS
            ):
                self._look_again(port, backlog, looks + 1)
            else:
                log.warning("client dropped: it did not read its long reply", bytes=left)
                port.lost()
                self._look_again(port, backlog, 0)

        asyncio.get_running_loop().call_later(LOOK_SECONDS, look)
