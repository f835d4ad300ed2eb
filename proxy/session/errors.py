"""Why a client's request is refused, or its stream cannot go on.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from dataclasses import dataclass


class RequestTooLargeError(Exception):
    """A request that has to be read whole before it can be judged is larger than the limit."""


class OvertakenError(Exception):
    """An upload must not be completed: a key has got deadlines since the request's head was judged."""


class RefusedAtItsHeadError(Exception):
    """The server would refuse the request at its head and close: nothing behind the head may be sent on.

    Attributes:
        beginning: what has come of the request.
        reply: the line with which servers refuse it; empty where the client has asked for no replies.
    """

    def __init__(self, what: str, beginning: bytes, *, answered: bool) -> None:
        super().__init__(what)
        self.beginning = beginning
        self.reply = f"-ERR Protocol error: {what}\r\n".encode() if answered else b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that the client gets instead of a reply. In a transaction it counts as a request that the server refused
    to queue.

    Attributes:
        message: the error, without the leading minus and the line's end.
        reason: what it is counted as.
    """

    message: bytes
    reason: str
