"""Where a client's connection stands: its states, which may follow which, and what is due while one lasts.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from proxy.relay.port import nothing


class State(Enum):
    """Where a client's connection stands."""

    CONNECTING = "upstream is not there yet; what the client sends is kept"
    RELAYING = "requests go upstream as they come"
    HELD = "a request waits for the engine, and so does what follows it"
    FINISHING = "the proxy is about to stop: what has come still goes upstream, and no requests are taken afterwards"
    ORPHANED = "the client has gone: what it sent before still goes upstream"
    ENDED = "the client has sent its last request; replies still come"
    DRAINING = "no more requests are taken; those that were sent are being answered"
    YIELDING = "likewise, but for the last, behind which no sign can stand: it is given up then"
    REFUSED = "the server has been shown a request at which it closes, when those before it have been answered"
    FAREWELL = "the client has been told everything, and has a moment to read it"
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
"""Which states may follow which."""

WAITING: Final = (State.HELD, State.FINISHING, State.ORPHANED)
"""Where a question may be open."""

JUDGING: Final = (State.RELAYING, State.FINISHING, State.ORPHANED)
"""Where what has come and waits for its turn is judged."""

BEGUN: Final = (State.CONNECTING, State.RELAYING, State.HELD, State.FINISHING)
"""Where what has come, and has not been sent on, is still to run."""

READING: Final = (State.RELAYING, *_LAST)
"""While it drains and says farewell it reads on, and drops what it reads: unread bytes would reset the connection."""

SENDING: Final = (State.RELAYING, State.HELD, State.FINISHING, State.ORPHANED)
"""What the client has sent goes to the server, which has not been told that this was the last."""

COLLECTING: Final = (*SENDING, State.ENDED, State.DRAINING, State.YIELDING)
"""Replies may wait for another one that is asked for once more."""

ENDING: Final = (State.ENDED, State.DRAINING, State.YIELDING, State.REFUSED)
"""All has been sent that will be, and replies still come."""

OVER: Final = (State.FAREWELL, State.CLOSED)
"""Neither requests nor replies matter any more."""


class IllegalMoveError(Exception):
    """A state was to follow another that it cannot follow: a defect of the proxy."""


class Course:
    """The course of one connection through its states.

    Attributes:
        state: the present one.
        input_ended: whether the client is known to have ended its side; replies may still reach it.
        moved: is called after each move.
    """

    __slots__ = ("_due", "input_ended", "moved", "state")

    def __init__(self) -> None:
        self.state = State.CONNECTING
        self.input_ended = False
        self.moved: Callable[[], None] = nothing
        self._due: asyncio.TimerHandle | None = None

    def move(self, state: State) -> None:
        """Go over to another state: the only place where it changes.

        Raises:
            IllegalMoveError: it cannot follow the present one.
        """
        if state not in MOVES[self.state]:
            raise IllegalMoveError(f"from {self.state.name} to {state.name}")
        self.state = state
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self.moved()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something after a time, unless the state changes before."""
        self._due = asyncio.get_running_loop().call_later(seconds, work)

    @property
    def sends(self) -> bool:
        """Whether what the client has sent goes to the server, which has not been told that this was the last."""
        return self.state in SENDING

    @property
    def ended(self) -> bool:
        """Whether the server has been told so."""
        return self.state is State.ENDED

    @property
    def refused(self) -> bool:
        """Whether the server has been shown a request at which it closes."""
        return self.state is State.REFUSED

    @property
    def has_left(self) -> bool:
        """Whether the client has ended its side, as far as is known without a look at its socket."""
        return self.input_ended or self.state is State.ORPHANED
