"""The first words on a shared connection: it logs in, and the server says whose it is.

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
"""What CLIENT LIST shows."""


class Greeting:
    """What is said, and what has been answered.

    Args:
        identity: whose the connection is to be.
        login: what AUTH is given; nothing where there is no need to log in.

    Attributes:
        over: whether all has been answered.
        refusal: why the connection cannot be used, for people; empty while nothing speaks against it.
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
        """What is sent."""
        return b"".join(self._requests)

    def receive(self, data: bytes, replies: Replies) -> None:
        """Take bytes that the server answers; look at `over` and `refusal` afterwards. `replies` cuts them."""
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
            self.refusal = "the server says that it is another user's, or in another state"
