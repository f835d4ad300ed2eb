"""Why a client's request is refused, or its stream cannot go on."""

from __future__ import annotations

from dataclasses import dataclass


class RequestTooLargeError(Exception):
    """A request that has to be read whole before it can be judged is larger than the limit."""


class OvertakenError(Exception):
    """A request must not be completed: a key has got deadlines since its head was judged."""


class RefusedAtItsHeadError(Exception):
    """A request of which nothing after its head must be sent on: the server refuses it there, and closes.

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
    """An error that the client gets at once, where the server would have refused to queue the request.

    Attributes:
        message: the error, without the leading minus and the line's end.
        reason: what it is counted as.
    """

    message: bytes
    reason: str
