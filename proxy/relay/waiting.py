"""Decide whether a client waits for replies, and keep a vigil over it meanwhile.

Its tests: tests/test_vigil.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from proxy.relay.asking import Asking
from proxy.relay.ending import Ending
from proxy.relay.flow import Flow
from proxy.relay.hangup import has_hung_up
from proxy.relay.inspection import Doing
from proxy.relay.progress import Progress
from proxy.relay.state import ENDING, JUDGING, OVER, Course, State
from proxy.relay.upstream import UpstreamConnection
from proxy.relay.vigil import Vigil
from proxy.session.session import Session


class Waiting:
    """Tracks what one client waits for, as the host of its vigil (relay.vigil.Host).

    Args:
        transport: the client's transport.
        course: the connection's state.
        session: judges the requests.
        upstream: the server's side.
        asking: the session's questions.
        flow: flow control for the client.
        progress: estimates how far the server has got.
        ending: brings the client's requests to an end.
        round_trip: waits until the server has answered the proxy.
        inspect: returns what the server does for a connection.
        start: starts a task of the connection.

    Attributes:
        round_trip: as the argument.
    """

    __slots__ = (
        "_asking",
        "_course",
        "_ending",
        "_flow",
        "_inspect",
        "_progress",
        "_session",
        "_start",
        "_transport",
        "_upstream",
        "_vigil",
        "round_trip",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        course: Course,
        session: Session,
        upstream: UpstreamConnection,
        asking: Asking,
        flow: Flow,
        progress: Progress,
        ending: Ending,
        round_trip: Callable[[], Coroutine[Any, Any, None]],
        inspect: Callable[[bytes | None], Coroutine[Any, Any, Doing]],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._transport = transport
        self._course = course
        self._session = session
        self._upstream = upstream
        self._asking = asking
        self._flow = flow
        self._progress = progress
        self._ending = ending
        self.round_trip = round_trip
        self._inspect = inspect
        self._start = start
        self._vigil: Vigil | None = None

    def look(self) -> None:
        """Start a vigil if the client waits."""
        if self._vigil is None and self.awaits:
            self._vigil = Vigil(self, self._course, self._progress, self._start)

    def note_left(self) -> None:
        """Watch a client that has just closed its side."""
        if self._vigil is not None:
            self._vigil.note_end()
        else:
            self.look()

    def end(self) -> None:
        """End the vigil."""
        if self._vigil is not None:
            self._vigil.end()
            self._vigil = None

    # For the vigil.

    @property
    def awaits(self) -> bool:
        """Whether the client's requests, or its half close, wait for replies without a time limit."""
        state, ended = self._course.state, self._course.input_ended
        if state in OVER or self._upstream.closing:
            return False
        if state in ENDING:
            return self._ending.untold if state is State.ENDED else ended and not self._ending.untold
        if self._asking.awaits_replies or self._flow.is_held_up:
            return True
        return ended and state in JUDGING and self._session.reads.under_way > 0

    def has_gone(self) -> bool:
        """Return whether the client has closed its side. The loop does not notice that while it does not read."""
        return self._course.has_left or has_hung_up(self._transport)

    async def doing(self) -> Doing:
        """Return what the server does for the client, in limited time."""
        return await self._inspect(self._upstream.near_end)

    def note_silence(self, *, silent: bool) -> None:
        """While the server is silent, read on from a client that is held up: only after its last bytes does the loop
        notice that it has disconnected."""
        self._flow.reads_on = silent and self._flow.is_held_up
        self._flow.regulate()

    def vigil_ended(self) -> None:
        """Note that the vigil is over."""
        self._vigil, self._flow.reads_on = None, False

    def give_up(self) -> None:
        """Close the server's side and drop unsent requests: the client has gone, and the server would not run them."""
        self._asking.cancel()
        self._ending.give_up()
