"""Read from a client exactly while its bytes are wanted, and count the bytes that are held.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.relay.asking import Asking
from proxy.relay.budget import Holding
from proxy.relay.sharing import Sharing
from proxy.relay.state import JUDGING, READING, TAKING, Course, State
from proxy.relay.upstream import UpstreamConnection
from proxy.session.intake import TAIL_LIMIT
from proxy.session.session import Session

READ_WHILE_HELD: Final = 64 * 1024 * 1024
"""Bytes to read from a client while it waits for earlier replies."""


class Flow:
    """Flow control for one client.

    Args:
        transport: the client's transport.
        course: the connection's state.
        session: judges the requests.
        upstream: the server's side.
        sharing: the client's use of shared connections, if any.
        asking: the session's questions to the engine.
        holding: counts the held bytes.

    Attributes:
        clogged: whether the server's connection is full.
        rests: whether reading is paused while other clients are served.
        reads_on: whether to keep reading from a client that is held up, so that its disconnection is noticed.
    """

    __slots__ = (
        "_asking",
        "_course",
        "_holding",
        "_session",
        "_sharing",
        "_transport",
        "_upstream",
        "clogged",
        "reads_on",
        "rests",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        course: Course,
        session: Session,
        upstream: UpstreamConnection,
        sharing: Sharing | None,
        asking: Asking,
        holding: Holding,
    ) -> None:
        self._transport = transport
        self._course = course
        self._session = session
        self._upstream = upstream
        self._sharing = sharing
        self._asking = asking
        self._holding = holding
        self.clogged = self.rests = self.reads_on = False

    @property
    def is_stuffed(self) -> bool:
        """Whether the server's connection is full, or the server must answer some requests first."""
        return self.clogged or self._session.replies.crowded

    @property
    def is_held_up(self) -> bool:
        """Whether requests wait only for the server to read or answer earlier ones, without a time limit."""
        return self._course.state in JUDGING and self.is_stuffed

    def regulate(self) -> None:
        """Read from the client exactly while its bytes are wanted."""
        state, ended = self._course.state, self._course.input_ended
        wanted = state in READING and not ended
        if state is State.RELAYING and (self.rests or self.is_stuffed or self._session.unfinished):
            wanted = wanted and self.reads_on and not (self.rests or self.clogged)
            wanted = wanted and self._holding.bytes < self._most()
        elif state in TAKING and self._sharing is not None and self._sharing.leaving:
            wanted = False  # the loop may read once more before it pauses; those bytes are buffered
        elif state is State.HELD:
            # Read on: otherwise a client that sends everything before it reads a reply blocks the awaited replies.
            wanted = self._asking.awaits_replies and not ended and self._holding.bytes < self._most()
        set_reading(self._transport, wanted)

    def _most(self) -> int:
        """Return how many bytes to read from the client while replies are awaited."""
        return TAIL_LIMIT if self._session.waits_for_login else READ_WHILE_HELD

    def rest(self) -> bool:
        """Pause reading while others are served; return False if already paused. To end the pause, clear `rests`."""
        if self.rests:
            return False
        self.rests = True
        set_reading(self._transport, False)
        return True

    @property
    def held(self) -> int:
        """Bytes held for the client, as last counted."""
        return self._holding.bytes + self._holding.beside

    def account(self) -> bool:
        """Count the bytes held for the client; return whether it may hold that many."""
        session = self._session
        held = session.held + (len(self._sharing.kept) if self._sharing is not None else 0)
        beside = session.replies.memory + session.reads.memory
        # Count the client's buffer: replies that waited for an earlier one may all have been written at once.
        unsent = self._upstream.unsent + self._transport.get_write_buffer_size()
        return self._holding.account(held, unsent, self.account, beside)


def set_reading(transport: asyncio.Transport, wanted: bool) -> None:
    """Pause or resume reading from a connection, unless it is closing."""
    if not transport.is_closing() and wanted != transport.is_reading():
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
