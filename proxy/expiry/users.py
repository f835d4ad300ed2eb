"""Watch whether the server has users with limited permissions: only then does the proxy check what a client may do.

Its tests: tests/test_acl.py.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import structlog

from proxy.beats import until_beat
from proxy.expiry.caller import Caller
from proxy.expiry.tracker import Tracker
from proxy.session.grants import Grants, read_grants
from proxy.session.rights import Users

log = structlog.get_logger("proxy.users")

AGAIN_SECONDS: Final = 1.0
"""How soon a new user or a revoked permission is noticed."""


class UserWatch:
    """The task that polls the server's users.

    Args:
        caller: queries the server.
        tracker: knows whether the server is reachable.
        users: the state that this task updates.

    Attributes:
        asked: set after the first poll, successful or not.
    """

    def __init__(self, caller: Caller, tracker: Tracker, users: Users) -> None:
        self.asked = asyncio.Event()
        self._caller = caller
        self._tracker = tracker
        self._users = users
        self._read: dict[bytes, User] = {}  # line of the last reply to ACL LIST → the user in it

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            if not self._tracker.connected.is_set():
                self._users.forget()
                await self._tracker.connected.wait()
            try:
                before, lines = self._read, await self._caller.users()
                self._read = {line: before.get(line) or User.of(line) for line in lines}
                users = self._read.values()
                self._users.take(
                    frozenset(user.name for user in users),
                    unlimited=not any(user.limited for user in users),
                    by_database=any(user.by_database for user in users),
                    barred=frozenset(user.name for user in users if user.barred),
                    grants={user.name: user.grants for user in users if user.grants is not None},
                )
            except Exception as error:  # noqa: BLE001 - then every client is checked
                self._users.forget()
                log.debug("cannot list users", error=str(error))
            self.asked.set()
            await asyncio.sleep(until_beat(AGAIN_SECONDS))


class User(NamedTuple):
    """One user, from a line of the reply to ACL LIST. Disabled users count: they may still have connections.

    Attributes:
        name: the name.
        limited: whether the user may not run every command on every key.
        by_database: whether the permissions depend on the database.
        barred: whether it is certain that the user lacks the right to run EVAL on all keys.
        grants: the permissions that the user certainly has; None if the rules are not simple.
    """

    name: bytes
    limited: bool
    by_database: bool
    barred: bool
    grants: Grants | None

    @classmethod
    def of(cls, line: bytes) -> User:
        """Parse a line of the reply."""
        _, name, _, *rules = line.split()
        return cls(name, _is_limited(line), b"db=" in line, is_barred(line), read_grants(rules))


def is_barred(line: bytes) -> bool:
    """Return True if it is certain that a user lacks the right to run EVAL on all keys, else False.

    Args:
        line: the user's line of the reply to ACL LIST.
    """
    words = line.split()
    if any(word.startswith(b"(") for word in words) or b"db=" in line:
        return False
    if not {b"~*", b"%RW~*"}.intersection(words):
        return True
    granted = [word for word in words if word == b"+eval" or (word[:2] == b"+@" and word[2:] not in _WITHOUT_EVAL)]
    if not granted:
        return True
    behind = words[words.index(granted[-1]) :]
    return b"-eval" in behind or b"-@scripting" in behind


_WITHOUT_EVAL: Final = frozenset(
    b"read write connection fast keyspace string hash set sortedset list stream bitmap hyperloglog geo pubsub"
    b" transaction blocking".split()
)
"""ACL categories that do not include EVAL."""


def _is_limited(line: bytes) -> bool:
    words = line.split()
    return not {b"~*", b"+@all"}.issubset(words) or any(word.startswith(b"-") for word in words)
