"""Open a shared connection: log in, and check which user, database and protocol the server reports.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.session.identity import WHO, Identity, who
from proxy.wire.first_line import StrayReplyError
from proxy.wire.replies import Replies
from proxy.wire.request import encode

NAME: Final = b"expiremember-proxy:shared"
"""The name shown in CLIENT LIST."""


class Greeting:
    """The first requests on a shared connection, and their replies.

    Args:
        identity: the required identity of the connection.
        login: the arguments of AUTH; empty if no login is needed.

    Attributes:
        over: whether all requests have been answered.
        refusal: why the connection cannot be used; empty if nothing is wrong so far.
    """

    def __init__(self, identity: Identity, login: Iterable[str]) -> None:
        self.over = False
        self.refusal = ""
        self._identity = identity
        words = [word.encode() for word in login]
        self._requests = [encode([b"AUTH", *words])] if words else []
        if identity.protocol == 3:
            self._requests.append(encode([b"HELLO", b"3"]))
        if identity.database:
            self._requests.append(encode([b"SELECT", b"%d" % identity.database]))
        self._requests += [encode([b"CLIENT", b"SETNAME", NAME]), WHO]
        self._answers: list[bytes] = [b""]

    @property
    def requests(self) -> bytes:
        """The requests to send."""
        return b"".join(self._requests)

    def receive(self, data: bytes, replies: Replies) -> None:
        """Process replies, which `replies` splits; afterwards the caller checks `over` and `refusal`."""
        try:
            for piece, ends in replies.cut(data):
                self._answers[-1] += piece
                if ends:
                    self._answers.append(b"")
        except StrayReplyError as error:
            self.refusal = repr(error.args[0])
            return
        answers = self._answers[:-1]
        if len(answers) < len(self._requests):
            return
        self.over = True
        *before, _named, told = answers
        self.refusal = next(
            (answer[1:].strip().decode("utf-8", "replace") for answer in before if answer[:1] == b"-"), ""
        )
        if not self.refusal and who(told) != self._identity:
            self.refusal = "the server reports another user, database or protocol for the shared connection"
