"""A long reply that comes over a shared connection: what is held up for it, and for how long.

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
"""Lines of a reply beyond which to cut it costs the proxy more than sharing saves it: it is not taken whole."""

RESCUE_SECONDS: Final = 0.1
"""How long those behind a long reply wait before they ask again elsewhere."""

LOOK_SECONDS: Final = 0.02
PATIENT_LOOKS: Final = 3000
"""How often in a row a client may be seen not to have read anything: for 60 s, as nobody has to wait for it. (Of one
that reads slowly the system takes more only now and then.)"""

IMPATIENT_LOOKS: Final = 250
"""The same where others may wait behind it whose requests must not run twice: for 5 s. Where others do wait, also how
often in all that may be seen, whatever it reads."""


class Host(Protocol):
    """The connection over which it comes."""

    @property
    def repeats(self) -> bool:
        """Whether its requests may be sent once more."""

    @property
    def lost(self) -> bool:
        """Whether it has ended."""

    @property
    def others_wait(self) -> bool:
        """Whether replies are to come behind this one."""

    @property
    def is_within_a_long_reply(self) -> bool:
        """Whether such a reply has come in part."""

    def stop_reading(self) -> None:
        """Read no more, as a client has to read its reply first."""

    def read_on(self) -> None:
        """Go on reading."""

    def rescue(self) -> None:
        """Let those behind the reply ask again over their own connections."""


class LongReply:
    """The one that is coming over a connection, if one is.

    Args:
        host: the connection.
        room: bounds what waits for clients.
        most_lines: of a reply, beyond which to share it does not pay.

    Attributes:
        come: bytes that have come of it.
        waits_for: the client that has to read more of it before more is read from the server.
    """

    def __init__(self, host: Host, room: Room, most_lines: int) -> None:
        self.come = 0
        self.waits_for: Port | None = None
        self._host = host
        self._room = room
        self._most_lines = most_lines
        self._kept_waiting = 0  # looks, since it began, at which others waited behind such a client
        self._rescue_comes = False

    def grow(self, piece: bytes, *, ends: bool) -> bool:
        """Note that a piece of it has come; return whether that `ends` it, and to share it did not pay."""
        come = self.come + len(piece)
        if not ends:
            self.come = come
            return False
        self.come = self._kept_waiting = 0
        return come > LARGE or piece.count(b"\n") > self._most_lines

    def is_too_much_for(self, port: Port) -> bool:
        """Return whether so much of it waits for its client that no more is to be read."""
        return self.come > LARGE and port.backlog() > self._room.of(port)

    def hold_up(self, port: Port) -> None:
        """Read no more until its client has read more of it."""
        if self.waits_for is None:
            self.waits_for = port
            self._host.stop_reading()
            self._look_again(port, port.backlog(), 0)

    def plan_rescue(self) -> None:
        """See before long whether it has come whole: others may wait behind it, and their requests may run twice."""
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
            if not host.repeats and host.others_wait:
                self._kept_waiting += 1
            if left <= self._room.of(port) // 2:
                self.waits_for = None
                host.read_on()
            elif left < backlog and self._kept_waiting < IMPATIENT_LOOKS:
                self._look_again(port, left, 0)
            elif self._kept_waiting < IMPATIENT_LOOKS and looks < (PATIENT_LOOKS if host.repeats else IMPATIENT_LOOKS):
                self._look_again(port, backlog, looks + 1)
            else:
                log.warning("client closed: it does not read a long reply", bytes=left)
                port.lost()
                self._look_again(port, backlog, 0)

        asyncio.get_running_loop().call_later(LOOK_SECONDS, look)
