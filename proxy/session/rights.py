"""Find out, on a client's connection, whether the client's user may run the proxy's scripts.

Its tests: tests/test_acl.py.

A script runs as the client's user, who may lack permission for EVAL, for a command that a script uses, or for the
proxy's own keys. So before the first script the proxy sends one that changes nothing. If the server refuses it,
requests are forwarded unchanged, and the engine does the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from proxy.commands.described import Terms
from proxy.commands.table import COMMANDS, SPARED, Effect
from proxy.scripts.calls import evaluation
from proxy.scripts.naming import Names
from proxy.session.grants import Grants
from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution

TRUST_MS: Final = 2_000
"""How long the server's answer is valid: permissions can be changed on other connections."""

_NOT_ASKED: Final = frozenset((Effect.IMPORT, Effect.FIELD_EXPIRY))
"""Effects of commands whose scripts need no permission for other commands."""

_SCRIPTED: Final = (SPARED | {Effect.REPLACE, Effect.RENAME, Effect.COPY, Effect.MOVE}) - _NOT_ASKED

_INNER: Final = (
    b"exists type time select copy move rename unlink dbsize randomkey keys scan zadd zcard zrem zscore zmscore"
    b" zrange zrangebyscore zrevrangebyscore zscan sismember smismember srem hexists hmget hset hdel lpos lindex lrange"
    b" lrem xadd rpush"
)
"""Commands that scripts run besides the client's request."""

_ALL: Final = b" ".join(
    (_INNER, *sorted(name.lower() for name, command in COMMANDS.items() if command.effect in _SCRIPTED))
)


_SOME_KEY: Final = b"\xff\x01" + secrets.token_hex(8).encode()
"""A key that nobody uses and no ACL pattern is likely to match. Always the same, because the server may track that the
client has read it."""

LONGEST_USER: Final = 1024
"""Maximum size, in bytes, of the name of a user who may share connections."""

MOST_USERS: Final = 8
"""Maximum number of users that a client may have tried to log in as; with more, the user list is not used."""

_DEFAULT: Final = b"default"

_CONFINED: Final = (b"-ERR Can't execute 'eval'", b"-ERR Replica can't inter")
"""Errors on a connection in a state that allows few commands: RESP2 subscriber or MONITOR."""

_NO_ANSWER: Final = (b"-BUSY", b"-LOADING", b"-MASTERDOWN", b"-CLUSTERDOWN", b"-TRYAGAIN")
"""Errors that say nothing of permissions: at present the server runs no script for any user."""


@dataclass
class Users:
    """The known permissions of the server's users, updated by `expiry.users`.

    Attributes:
        unlimited: whether every user may run every command on every key, so that no user needs to be checked.
        by_database: whether a user's permissions depend on the database (Valkey 9.1).
        names: the users in the last reply to ACL LIST.
        barred: users who certainly may not run scripts, so that they need no check.
        grants: the permissions of users with simple rules.
        looks: how often ACL LIST has been read.
    """

    unlimited: bool = False
    by_database: bool = False
    names: frozenset[bytes] = frozenset()
    barred: frozenset[bytes] = frozenset()
    grants: Mapping[bytes, Grants] = field(default_factory=dict)
    looks: int = 0

    def take(
        self,
        names: frozenset[bytes],
        *,
        unlimited: bool,
        by_database: bool = False,
        barred: frozenset[bytes] = frozenset(),
        grants: Mapping[bytes, Grants] = MappingProxyType({}),
    ) -> None:
        """Store the results of ACL LIST."""
        self.names, self.unlimited, self.by_database, self.barred = names, unlimited, by_database, barred
        self.grants = grants
        self.looks += 1

    def forget(self) -> None:
        """Forget the list, and check every client until ACL LIST has been read again."""
        self.unlimited, self.barred, self.grants = False, frozenset(), {}


class Rights:
    """The known permissions of one connection's user.

    Args:
        names: the names of the proxy's own keys; None to assume that every user may do everything.
        users: the known permissions of all users; if all users may do everything, no user is checked.
        stranger: whether the server requires a login, so that the default user may do nothing.

    Attributes:
        by_state: whether the connection may be in a state in which no user may run scripts: RESP2 subscriber or
            MONITOR.
        confinement: the server's error line for a script in that state; empty if it has not refused one.
    """

    def __init__(self, names: Names | None = None, users: Users | None = None, *, stranger: bool = False) -> None:
        self._limited = False
        self._may_be: set[bytes] = set() if stranger else {_DEFAULT}  # the users that the client may be
        self.by_state = False
        self.confinement = b""
        self._names = names
        self._users = users
        self._all_allowed_at_multi = False  # whether every user could run scripts when the open transaction began
        self._listed = 0  # the value of `Users.looks` from which on ACL LIST has certainly included the user
        self._asked = -float("inf")

    @property
    def limited(self) -> bool:
        """Whether the user may not run every script on every key."""
        return self._limited or self._is_barred

    @property
    def unasked(self) -> bool:
        """Whether the user may have limited permissions and has not been checked yet."""
        is_open = not self.all_may and self._asked == -float("inf") and not self._all_allowed_at_multi
        return is_open and not self._is_barred

    @property
    def _is_barred(self) -> bool:
        """Whether the user list shows that the user may not run scripts. False in the states of `by_state`."""
        users = self._users
        if users is None or not users.barred or self._names is None or self.by_state:
            return False
        if self._all_allowed_at_multi or users.looks < self._listed:
            return False
        return 0 < len(self._may_be) <= MOST_USERS and self._may_be <= users.barred

    def reach(self, command: bytes, names: list[bytes]) -> bool:
        """Return whether the user list shows that the user may run, on some names, the script that replaces a
        command."""
        users = self._users
        if users is None or self.by_state or users.looks < self._listed or not 0 < len(self._may_be) <= MOST_USERS:
            return False
        grants = [users.grants.get(user) for user in self._may_be]
        return all(grant is not None and grant.allow(command, names) for grant in grants)

    @property
    def all_may(self) -> bool:
        """Whether every user may run every command on every key."""
        if self._names is None:
            return True
        users = self._users
        return users is not None and users.unlimited and not self.by_state and users.looks >= self._listed

    def unsure(self, now: float) -> bool:
        """Return whether the server must be queried for the user's permissions; `now` in Unix ms."""
        if self.all_may:
            self._limited, self.confinement = False, b""
            return False
        return not self._is_barred and not 0 <= now - self._asked <= TRUST_MS

    def is_sure_of_all(self, now: Callable[[], float]) -> bool:
        """Return whether the user certainly may run every script on this connection.

        `now` returns the clock, in Unix ms. It is not asked while every user may run everything.
        """
        if self.all_may:
            self._limited, self.confinement = False, b""
            return not self.by_state
        return not (self.unsure(now()) or self.by_state or self.limited or self.confinement)

    def ask(self, replies: ReplySubstitution, now: float, terms: Terms) -> bytes:
        """Return the requests that query the permissions; the result is known once `replies` has nothing outstanding.

        Args:
            replies: the replies of this connection.
            now: the clock, in Unix ms.
            terms: the terms of a script that writes nothing.
        """
        assert self._names is not None
        token = secrets.token_hex(8).encode()

        def hear(said: bytes) -> bytes:
            # Other frames are pushes, which are arrays for a RESP2 subscriber: pass them on.
            others = []
            before, self._limited = self._limited, True
            self.confinement = b""
            for frame in frames(said):
                if frame.startswith(b"+" + token):
                    self._limited = frame != b"+%b1\r\n" % token
                elif frame.startswith(_CONFINED):
                    self.confinement = frame
                elif frame.startswith(b"-NOPERM") and self._users is not None:
                    # The user may not run the script: so the client can only be one of the barred users.
                    self._may_be = (self._may_be & self._users.barred) or self._may_be
                elif frame.startswith(_NO_ANSWER):
                    # Query again for the next request. For this request keep the previous answer; if there is none,
                    # assume that everything is allowed.
                    self._limited, self._asked = before, now - TRUST_MS - 1
                elif not frame.startswith(b"-"):
                    others.append(frame)
            return b"".join(others)

        self._asked = now
        keys = [_SOME_KEY, self._names.shadow(_SOME_KEY), self._names.index_for(_SOME_KEY)]
        # Declare no keys to a cluster node: it need not have their slot.
        call = evaluation(terms, "rights", keys, [_ALL, token], declared=self._names.declared(()))
        return replies.enclose(call, hear)

    def confined(self, name: bytes) -> bytes:
        """Return the error line for a command in a state that allows few commands (RESP2 subscriber, MONITOR)."""
        return self.confinement.replace(b"'eval'", b"'%b'" % name.lower(), 1)

    def log_in(self, arguments: Sequence[bytes]) -> None:
        """Note a login that is about to be sent: the user may have been created a moment ago."""
        user = named_user(arguments)
        if len(self._may_be) <= MOST_USERS and (user is not None or arguments[0].upper() == b"AUTH"):
            self._may_be.add(_DEFAULT if user is None else short_name(user))
        if self._users is not None and user is not None and user not in self._users.names:
            self._listed = self._users.looks + 2  # the next ACL LIST may be under way already, and lack the user

    def reset(self) -> None:
        """Note a RESET that is about to be sent: it restores the default user."""
        self._may_be.add(_DEFAULT)

    def note(self, effect: Effect | None) -> None:
        """Note a request that is about to be sent: it may change the user."""
        if effect is Effect.MULTI:
            self._all_allowed_at_multi = self._all_allowed_at_multi or self.all_may  # a nested MULTI changes nothing
        elif effect in (Effect.LOGIN, Effect.DISCARD, Effect.EXEC):
            self._all_allowed_at_multi = False
            # The user may have changed: by a login, by EXEC (old servers queue AUTH), or by RESET, which counts as
            # DISCARD.
            self.forget()

    def forget(self) -> None:
        """Forget the server's answer: query again before the next script."""
        self._asked, self.confinement = -float("inf"), b""

    @property
    def by_database(self) -> bool:
        """Whether the server's answer is valid only while the client stays in its database."""
        return self._users is not None and (self._users.by_database or self._users.looks < self._listed)


def named_user(arguments: Sequence[bytes]) -> bytes | None:
    """Return the user that an AUTH or a HELLO names."""
    name, *words = arguments
    if name.upper() == b"AUTH":
        return words[0] if len(words) == 2 else None
    position = 1
    while position < len(words) and words[position].upper() == b"SETNAME":
        position += 2
    option, *user = words[position : position + 2] or [b""]
    return user[0] if user and option.upper() == b"AUTH" else None


def short_name(user: bytes) -> bytes:
    """Return a user's name, or an empty one if it is long, because it is kept in memory."""
    return user if len(user) <= LONGEST_USER else b""
