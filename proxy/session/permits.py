"""Find out which keys a user with limited permissions may give deadlines.

Its tests: tests/test_acl.py.

Before a first deadline is set, other clients wait, and their uploads and transactions may fail. A request that the
server would reject must not cause that, so the proxy checks the user's permissions first.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Final

from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution

REMEMBERED: Final = 1_000
"""Maximum total `_weight` of the remembered keys. Beyond that they are forgotten and checked again."""

TOGETHER: Final = 200
"""How many keys to check together, for requests of one pipeline."""


class Permits:
    """The known permissions of one connection's user to set deadlines.

    Attributes:
        unclear: keys that might have got deadlines, though it was not checked whether the user may set them.
    """

    __slots__ = ("_granted", "_room", "_singly", "_tried", "_unclear_room", "unclear")

    def __init__(self) -> None:
        self._granted: set[bytes] = set()
        self._room = self._unclear_room = REMEMBERED
        self._tried: frozenset[bytes] = frozenset()  # keys checked for the current request
        self.unclear: set[bytes] = set()
        self._singly = False  # whether to check keys one by one: a group was refused

    def cover(self, keys: Iterable[bytes]) -> bool:
        """Return whether the user is known to be permitted to give all these keys deadlines."""
        return self._granted.issuperset(keys)

    def to_ask(self, keys: Collection[bytes], ahead: Iterable[bytes]) -> list[bytes]:
        """Return the keys to check before a request is sent; empty if the result for its keys is known.

        `keys`: the keys of the request; `ahead`: those of the requests after it.
        """
        if self.cover(keys) or self._tried.issuperset(keys):
            return []
        found = dict.fromkeys(keys)
        for key in () if self._singly else ahead:
            if len(found) >= TOGETHER:
                break
            if key not in self._granted:
                found[key] = None
        return list(found)

    def ask(self, replies: ReplySubstitution, keys: list[bytes], trial: Callable[[bytes], bytes]) -> bytes:
        """Return the requests that check the keys; the result is known once `replies` has nothing outstanding.

        Args:
            replies: the replies of this connection.
            keys: the keys.
            trial: makes a request that returns the given status only if the user may set the deadlines.
        """
        token = secrets.token_hex(8).encode()

        def hear(said: bytes) -> bytes:
            found = frames(said)
            granted = b"+%b\r\n" % token in found
            if granted:
                if self._room <= 0:
                    self._granted.clear()
                    self._room = REMEMBERED
                self._granted.update(keys)
                self._room -= sum(map(_weight, keys))
            if granted or self._singly or len(keys) == 1:
                self._tried = frozenset(keys)  # if a group was refused, any of its keys may be the cause
            self._singly = self._singly or not granted
            # Other frames are pushes: pass them on.
            return b"".join(frame for frame in found if not frame.startswith((b"+", b"-")))

        return replies.enclose(trial(token), hear)

    def allows_and_notes(self, keys: list[bytes]) -> bool:
        """Like `cover`, but note the keys as unclear if they were not checked."""
        if self.cover(keys):
            return True
        if not self._tried.issuperset(keys) and self._unclear_room > 0:
            self._unclear_room -= sum(_weight(key) for key in keys if key not in self.unclear)
            self.unclear.update(keys)
        return False

    def take_unclear(self) -> tuple[bytes, ...]:
        """Return and clear the unclear keys."""
        unclear = tuple(self.unclear)
        self.unclear.clear()
        self._unclear_room = REMEMBERED
        return unclear

    def begin(self) -> None:
        """Note that the next request is being judged: permissions may have changed."""
        self._tried = frozenset()

    def forget(self) -> None:
        """Forget everything: the connection may have another user."""
        self._granted.clear()
        self._room = REMEMBERED
        self._tried, self._singly = frozenset(), False


def _weight(key: bytes) -> int:
    """Return the memory that a key takes, in units of an ordinary key."""
    return 1 + len(key) // 400
