"""Which keys one connection's requests may still give deadlines, and the signs that settle it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

SETTLE_SECONDS: Final = 4.0
"""How old a claim gets before its connection is asked for a sign that its requests have been answered."""

SETTLE_WEIGHT: Final = 20_000
"""How much a connection claims for that to be done at once."""

CLAIMED_BY_ANYBODY: Final = 1_000
"""How much a connection may claim even then."""

HURRIED_LOOKS: Final = 4
"""The same where twice as much is claimed as should be: memory runs out before patience does."""

_KEY_BYTES: Final = 400
"""What is known of a claimed key takes, about, beside its name."""

UNANSWERED_LOOKS: Final = 60
"""How often a sign is looked for before it counts as one that does not come: for longer than a client is given that
wants no replies. Not seconds: a proxy that stood still has not looked, and a server that answers nobody makes it
wait."""

Passed = Callable[[], bool]
"""Returns whether a sign has come."""


def weight(key: bytes) -> int:
    """Return how many ordinary keys take the memory of a claimed one."""
    return 1 + len(key) // _KEY_BYTES


class Sender:
    """Sends a connection's requests, and can put a sign behind them; this one has not begun to."""

    def ask(self) -> Passed | None:
        """Put a sign behind all that has been sent; return None when none can be put there at present."""
        return None

    def promise(self) -> Passed | None:
        """Likewise, but as soon as one can be put; return None when nothing is sent any more.

        It goes in front of a request that waits to be sent for what others have to finish, as its keys are claimed.
        """
        return None

    def insist(self) -> Passed | None:
        """Put a promised sign that still waits for a request behind all that has been sent; return None if it does not.

        A client may send nothing more, or only requests that nobody looks at one by one.
        """
        return None

    def before(self) -> Passed | None:
        """In a transaction, return how to see whether all that was sent before it has been answered.

        Nothing runs then until it ends, but what is queued is claimed as before. None where that cannot be told.
        """
        return None

    def heard(self) -> int | None:
        """Return a number that changes when the server says something on the connection, while a sign is awaited.

        None where that is not looked at.
        """
        return 0

    def refuse(self) -> None:
        """Turn the client away, as it claims too much."""


class Claims:
    """The keys to which one connection's requests may still give deadlines: no sign has come from behind them.

    Attributes:
        sender: sends those requests.
        keys: those behind the sign that is awaited; `add` adds to them.
        since: when the first of these was claimed (`lease_clock`).
        looks: how often the sign that is awaited has been looked for in vain.
        given_up: what `sender.heard` gave when those who waited for the connection last gave up; -1 before.
    """

    __slots__ = (
        "_passed",
        "_signed",
        "_signed_since",
        "_signed_weight",
        "_weight",
        "given_up",
        "keys",
        "looks",
        "sender",
        "since",
    )

    def __init__(self) -> None:
        self.sender = Sender()
        self.keys: set[bytes] = set()
        self.since = math.inf
        self.looks = 0
        self.given_up: int | None = -1
        self._signed: set[bytes] = set()  # those in front of the sign that is awaited
        self._signed_since = math.inf
        self._weight = self._signed_weight = 0
        self._passed: Passed = bool

    def add(self, key: bytes) -> None:
        """Claim a key that is not among `keys`."""
        self.keys.add(key)
        self._weight += weight(key)

    @property
    def weight(self) -> int:
        """What all claimed keys weigh; those twice that are before and behind the sign that is awaited."""
        return self._signed_weight + self._weight

    @property
    def all_keys(self) -> list[bytes]:
        """All keys that are claimed; twice those that are before and behind the sign that is awaited."""
        return [*self._signed, *self.keys]

    def older_than(self, moment: float) -> set[bytes]:
        """Return the keys whose claims may have been there at a moment (`lease_clock`)."""
        old = self._signed if self._signed_since <= moment else set()
        return old | self.keys if self.since <= moment else old

    def settle(self, now: float) -> set[bytes]:
        """Go on with what is old.

        Args:
            now: `lease_clock`.

        Returns:
            The keys that are claimed no more, as the requests have been answered.
        """
        if self._signed:
            self._passed = self.sender.insist() or self._passed
            if not self._passed():
                self.looks += 1
                return set()
            settled, self._signed = self._signed, set()
            self._signed_since, self._signed_weight, self.looks = math.inf, 0, 0
            return settled
        is_time = self.since <= now - SETTLE_SECONDS or self._weight >= SETTLE_WEIGHT
        if self.keys and is_time and (passed := self.sender.promise()) is not None:
            self._passed = passed
            self._signed, self.keys = self.keys, set()
            self._signed_since, self.since = self.since, math.inf
            self._signed_weight, self._weight = self._weight, 0
        return set()
