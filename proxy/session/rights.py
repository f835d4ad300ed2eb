"""Whether scripts may stand in for the requests of one connection's user. The server is asked, on that connection.

A script runs as the client's user, who may lack EVAL, a command that a script uses, or the proxy's own keys. So before
the first script that stands in for a request the proxy has the user run one that changes nothing. Who passes is
served by scripts; for who does not, the request goes as it came, and the engine does what is left to do.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from proxy.commands.table import COMMANDS, SPARED, Effect
from proxy.scripts.calls import evaluation
from proxy.scripts.naming import Names
from proxy.wire.reply import ReplySubstitution

TRUST_MS: Final = 2_000
"""How long an answer is believed: rights can be changed on other connections."""

_SCRIPTED: Final = SPARED | {Effect.REPLACE, Effect.RENAME, Effect.COPY, Effect.MOVE}

_INNER: Final = (
    b"exists type time select copy move rename unlink dbsize randomkey keys scan zadd zcard zrem zscore zrangebyscore"
    b" zrevrangebyscore sismember srem hexists hdel lpos lindex lrem"
)
"""What the scripts run beside the client's request."""

_ALL: Final = b" ".join(
    (_INNER, *sorted(name.lower() for name, command in COMMANDS.items() if command.effect in _SCRIPTED))
)


_SOME_KEY: Final = b"expiremember-rights-" + secrets.token_hex(8).encode()
"""Nobody else's; always the same, for the server may have to remember that the client has read it."""


class Rights:
    """What is known of the rights of one connection's user.

    Args:
        names: the names of the proxy's own keys; None to take every user for one who may do everything.

    Attributes:
        limited: whether the user may not run every script on every key.
        outside: whether there is no user yet: the server asks for a login first.
        adjoining: whether nothing may be put in front of the next request, since the one before speaks of it.
    """

    def __init__(self, names: Names | None = None) -> None:
        self.limited = False
        self.outside = False
        self.adjoining = False
        self._names = names
        self._asked = -float("inf")
        self._silent = False  # CLIENT REPLY OFF

    @property
    def askable(self) -> bool:
        """Whether a request of the proxy's own may be put into the stream now, and is answered."""
        return not self._silent and not self.adjoining

    def unsure(self, now: float) -> bool:
        """Return whether the server has to be asked again; `now` in Unix ms."""
        return self._names is not None and not 0 <= now - self._asked <= TRUST_MS and self.askable

    def ask(self, replies: ReplySubstitution, now: float, *, by_greeting: bool = False) -> bytes:
        """Return the requests to send; the answer is known once `replies` has nothing outstanding.

        Args:
            replies: the replies of this connection.
            now: the clock, in Unix ms.
            by_greeting: as for `ReplySubstitution.expect`.
        """
        assert self._names is not None
        token = secrets.token_hex(8).encode()
        answer = re.compile(rb"(?:\A|(?<=\r\n))(?:\+%b([01])|-[^\r\n]*)\r\n" % token)

        def hear(said: bytes) -> bytes:
            found = answer.search(said)
            self.limited = found is None or found[1] != b"1"
            self.outside = found is not None and found[0].startswith(b"-NOAUTH")
            # A push message may have come between.
            return said if found is None else said[: found.start()] + said[found.end() :]

        self._asked = now
        key = _SOME_KEY
        keys = [key, self._names.shadow(key), self._names.index]
        return replies.enclose(evaluation("rights", keys, [_ALL, token]), hear, by_greeting=by_greeting)

    def note(self, effect: Effect | None, arguments: list[bytes]) -> None:
        """Take a request into account that is about to be sent."""
        self.adjoining = False
        if effect is None:
            return
        if effect in (Effect.LOGIN, Effect.DISCARD, Effect.EXEC):
            # Old servers queue AUTH in a transaction; RESET brings the default user back, and replies too.
            self._asked = -float("inf")
            self.outside = False
            if arguments[0].upper() == b"RESET":
                self._silent = False
        elif effect is Effect.CONNECTION and len(arguments) > 2:
            what, how = arguments[1].upper(), arguments[2].upper()
            if what == b"REPLY":
                self._silent = how == b"OFF" or (self._silent and how != b"ON")
            self.adjoining = what == b"CACHING" or (what == b"REPLY" and how == b"SKIP")
