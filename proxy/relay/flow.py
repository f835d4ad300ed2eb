"""Read from a client exactly while its bytes are wanted, and count those that the proxy holds of it.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.relay.asking import Asking
from proxy.relay.budget import Holding
from proxy.relay.sharing import Sharing
from proxy.relay.state import JUDGING, READING, Course, State
from proxy.relay.upstream import UpstreamConnection
from proxy.session.intake import TAIL_LIMIT
from proxy.session.session import Session

READ_WHILE_HELD: Final = 64 * 1024 * 1024
"""Bytes that are taken from a client while the replies to what it has sent before are awaited."""


class Flow:
    """What comes from one client.

    Args:
        transport: the client's.
        course: where its connection stands.
        session: what judges its requests.
        upstream: where they go.
        sharing: its use of shared connections, if there are any.
        asking: what its session asks for.
        holding: what is held of it.

    Attributes:
        clogged: whether upstream takes no more at present.
        rests: whether others are served first.
        reads_on: whether to read from a client that is held up, as its requests seem to block: its end stands behind.
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
        """Whether upstream takes no more requests, or has to answer some first."""
        return self.clogged or self._session.replies.crowded

    @property
    def is_held_up(self) -> bool:
        """Whether requests wait only for upstream to take or to answer what it has: as long as it likes."""
        return self._course.state in JUDGING and self.is_stuffed

    def regulate(self) -> None:
        """Read from the client exactly while its bytes are wanted."""
        state, ended = self._course.state, self._course.input_ended
        wanted = state in READING and not ended
        if state is State.RELAYING and (self.rests or self.is_stuffed or self._session.unfinished):
            wanted = wanted and self.reads_on and not (self.rests or self.clogged)
            wanted = wanted and self._holding.bytes < self._most()
        elif self._sharing is not None and self._sharing.leaving:
            wanted = False  # what has come already is kept; the loop reads once before it can be told to pause
        elif state in (State.HELD, State.FINISHING):
            # A client may send all that it has before it reads a reply; those that are awaited must not wait for that.
            wanted = self._asking.awaits_replies and not ended and self._holding.bytes < self._most()
        set_reading(self._transport, wanted)

    def _most(self) -> int:
        """Return how many bytes are taken from the client while replies are awaited."""
        return TAIL_LIMIT if self._session.waits_for_login else READ_WHILE_HELD

    def rest(self) -> bool:
        """Pause while others are served; return False where that is so already. `rests` ends it."""
        if self.rests:
            return False
        self.rests = True
        set_reading(self._transport, False)
        return True

    @property
    def held(self) -> int:
        """How many bytes are held of the client's requests, as last counted."""
        return self._holding.bytes

    def account(self) -> bool:
        """Count what is held of the client's requests; return whether that is still allowed."""
        kept = len(self._sharing.kept) if self._sharing is not None else 0
        return self._holding.account(self._session.held + kept, self._upstream.unsent, self.account)


def set_reading(transport: asyncio.Transport, wanted: bool) -> None:
    """Read from a connection, or not, if it is not closing."""
    if not transport.is_closing() and wanted != transport.is_reading():
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()
