"""Which keys a user who may not run every script may give deadlines, as far as the server has shown it.

A key's first deadline makes others wait, cuts off their uploads and fails their transactions before the server has run
the request. Nothing of that may be done for somebody whom the server then refuses.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from typing import Final

from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution

REMEMBERED: Final = 1_000
"""What the keys that are remembered weigh (`_weight`), about; beyond, they are asked for again."""

TOGETHER: Final = 200
"""Keys that are asked for together, for requests that have come in one pipeline."""


class Permits:
    """What one connection's user has shown.

    Attributes:
        unclear: keys that may have got deadlines without having been asked for.
    """

    __slots__ = ("_granted", "_room", "_singly", "_tried", "_unclear_room", "unclear")

    def __init__(self) -> None:
        self._granted: set[bytes] = set()
        self._room = self._unclear_room = REMEMBERED
        self._tried: frozenset[bytes] = frozenset()  # for the request that is being judged
        self.unclear: set[bytes] = set()
        self._singly = False  # whether some that were asked for together have not been granted

    def cover(self, keys: Iterable[bytes]) -> bool:
        """Return whether the user may give all of some keys deadlines."""
        return self._granted.issuperset(keys)

    def to_ask(self, keys: Collection[bytes], ahead: Iterable[bytes]) -> list[bytes]:
        """Return the keys to ask for, before a request for some goes; none where the answer is there.

        `ahead`: the keys of the requests that have come behind it.
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
        """Return the requests to send; the answer is known once `replies` has nothing outstanding.

        Args:
            replies: the replies of this connection.
            keys: the keys.
            trial: makes the request that only a user who may is answered by a status, which is given to it.
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
                self._tried = frozenset(keys)  # else it may be another key's request that is refused
            self._singly = self._singly or not granted
            # Push messages may have come between.
            return b"".join(frame for frame in found if not frame.startswith((b"+", b"-")))

        return replies.enclose(trial(token), hear)

    def let(self, keys: list[bytes]) -> bool:
        """Return whether the user may, as `cover`; remember keys of which that has not been asked."""
        if self.cover(keys):
            return True
        if not self._tried.issuperset(keys) and self._unclear_room > 0:
            self._unclear_room -= sum(_weight(key) for key in keys if key not in self.unclear)
            self.unclear.update(keys)
        return False

    def take_unclear(self) -> tuple[bytes, ...]:
        """Return, once, the keys that are unclear."""
        unclear = tuple(self.unclear)
        self.unclear.clear()
        self._unclear_room = REMEMBERED
        return unclear

    def begin(self) -> None:
        """Note that another request is judged: rights may change."""
        self._tried = frozenset()

    def forget(self) -> None:
        """Forget all: the connection may have another user."""
        self._granted.clear()
        self._room = REMEMBERED
        self._tried, self._singly = frozenset(), False


def _weight(key: bytes) -> int:
    """Return how many ordinary keys take the memory of one."""
    return 1 + len(key) // 400
