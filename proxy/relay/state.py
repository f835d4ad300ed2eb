"""The state of a client's connection: which states there are, how they may follow each other, and timers within them.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from proxy.relay.port import nothing


class State(Enum):
    """The state of a client's connection."""

    CONNECTING = "the server is not connected yet; what the client sends is buffered"
    RELAYING = "requests are judged and sent as they arrive"
    HELD = "a request is held, and so is what follows it"
    FINISHING = "the proxy is stopping: requests received so far are still sent, and no more are taken"
    ORPHANED = "the client has gone: what it sent before is still sent to the server"
    ENDED = "the client has sent its last request; replies still arrive"
    DRAINING = "no more requests are taken; those that were sent are being answered"
    YIELDING = "like DRAINING, but no sign can follow the last request: it was sent in part, or breaks the protocol"
    REFUSED = "a request was sent that makes the server close, after it has answered those before"
    FAREWELL = "the client was sent its last words, and has a moment to read them"
    CLOSED = "the client has gone"


_LAST: Final = (State.DRAINING, State.YIELDING, State.REFUSED, State.FAREWELL)

MOVES: Final[dict[State, frozenset[State]]] = {
    State.CONNECTING: frozenset((State.RELAYING, State.FINISHING, State.ORPHANED, State.FAREWELL, State.CLOSED)),
    State.RELAYING: frozenset((State.HELD, State.FINISHING, State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.HELD: frozenset((State.RELAYING, State.FINISHING, State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.FINISHING: frozenset((State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.ORPHANED: frozenset((State.CLOSED,)),
    State.ENDED: frozenset((State.FAREWELL, State.CLOSED)),
    State.DRAINING: frozenset((State.FAREWELL, State.CLOSED)),
    State.YIELDING: frozenset((State.FAREWELL, State.CLOSED)),
    State.REFUSED: frozenset((State.YIELDING, State.FAREWELL, State.CLOSED)),
    State.FAREWELL: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset(),
}
"""Which states may follow each state."""

WAITING: Final = (State.HELD, State.FINISHING, State.ORPHANED)
"""States in which a question may be open."""

JUDGING: Final = (State.RELAYING, State.FINISHING, State.ORPHANED)
"""States in which buffered requests are judged."""

BEGUN: Final = (State.CONNECTING, State.RELAYING, State.HELD, State.FINISHING)
"""States in which requests that were received but not sent will still run."""

TAKING: Final = (State.RELAYING, State.HELD)
"""States in which the client's requests are taken."""

READING: Final = (State.RELAYING, State.FINISHING, *_LAST)
"""States in which the proxy reads from the client. In all but RELAYING it drops what it reads: unread bytes would make
the close a reset, and a client that sends everything before it reads a reply would never get to read."""

SENDING: Final = (State.RELAYING, State.HELD, State.FINISHING, State.ORPHANED)
"""States in which requests of the client can still be sent to the server."""

COLLECTING: Final = (*SENDING, State.ENDED, State.DRAINING, State.YIELDING)
"""States in which replies may be buffered until a resent read or a sign is answered."""

ENDING: Final = (State.ENDED, State.DRAINING, State.YIELDING, State.REFUSED)
"""States in which everything has been sent, and replies still arrive."""

OVER: Final = (State.FAREWELL, State.CLOSED)
"""States in which neither requests nor replies matter any more."""


class IllegalMoveError(Exception):
    """A change of state that is not allowed: a defect of the proxy."""


class Course:
    """The state of one connection, with the rules for its changes.

    Attributes:
        state: the current state.
        input_ended: whether the client has closed its side; replies may still reach it.
        moved: called after each change.
    """

    __slots__ = ("_due", "input_ended", "moved", "state")

    def __init__(self) -> None:
        self.state = State.CONNECTING
        self.input_ended = False
        self.moved: Callable[[], None] = nothing
        self._due: asyncio.TimerHandle | None = None

    def move(self, state: State) -> None:
        """Change the state; only this method does.

        Raises:
            IllegalMoveError: the new state may not follow the current one.
        """
        if state not in MOVES[self.state]:
            raise IllegalMoveError(f"from {self.state.name} to {state.name}")
        self.state = state
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self.moved()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Run a function after a time, unless the state changes first."""
        self._due = asyncio.get_running_loop().call_later(seconds, work)

    @property
    def sends(self) -> bool:
        """Whether requests of the client can still be sent to the server."""
        return self.state in SENDING

    @property
    def ended(self) -> bool:
        """Whether the server has been notified that there are no more requests."""
        return self.state is State.ENDED

    @property
    def refused(self) -> bool:
        """Whether a request was sent that makes the server close."""
        return self.state is State.REFUSED

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its side, as far as known without a look at its socket."""
        return self.input_ended or self.state is State.ORPHANED
