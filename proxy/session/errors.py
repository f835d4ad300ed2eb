"""Errors for requests that are refused and streams that cannot go on. The texts of refusals are in the modules that
refuse requests: rewrite.py, own_commands.py, announcing.py and hearing.py; of errors in the arguments of the proxy's
own commands in commands/lifetime.py and commands/dialects.py.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from dataclasses import dataclass


class RequestTooLargeError(Exception):
    """A request that must be buffered whole is larger than the limit."""


class OvertakenError(Exception):
    """An upload must not be completed: one of its keys has got deadlines since its head was judged."""


class RefusedAtItsHeadError(Exception):
    """The server would reject the request at its head and close the connection: send nothing after the head.

    Attributes:
        beginning: the part of the request to send.
        reply: the error line that the server would send.
    """

    def __init__(self, what: str, beginning: bytes) -> None:
        super().__init__(what)
        self.beginning = beginning
        self.reply = f"-ERR Protocol error: {what}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that the client gets instead of a reply. In a transaction it makes EXEC fail, as if the server had
    refused to queue the request.

    Attributes:
        message: the error, without the leading minus and the line end.
        reason: the label under which it is counted.
    """

    message: bytes
    reason: str
