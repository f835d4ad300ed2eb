"""The state of one client connection: its user, its transaction and its subscriptions.

Its tests: tests/test_signs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from proxy.session.permits import Permits
from proxy.session.rights import Rights
from proxy.session.transaction import Transaction
from proxy.session.watched import Watched
from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution


class Login(Enum):
    """Whether the client has logged in, as far as is known."""

    PRESUMED = "the server wanted no login when the proxy asked last"
    UNPROVED = "as above, but a RESET has made the client a stranger if a password has been set since it came"
    OPEN = "the client has been served without a login"
    STRANGER = "the client has still to log in"
    ADMITTED = "the client has logged in; RESET makes it a stranger again"


class End(Enum):
    """Whether the server reads on after the requests that have been sent."""

    OPEN = "it does"
    QUIT = "it does not: a client that had not logged in has sent QUIT"
    BROKEN = "it does not: there was a protocol error"


class Next(Enum):
    """How the last request affects the next one."""

    FREE = "nothing"
    JOINED = "something (CLIENT CACHING, ASKING), so that nothing may be put between"


_GREETED: Final = (b"%", b"-")
"""How the reply to a HELLO begins in RESP3, and how a refusal begins."""

MOST_SUBSCRIPTIONS: Final = 100
"""How many channel names of one client to remember."""


class Subscriptions:
    """The subscriptions of a connection. In RESP2 the server refuses an ECHO from a subscriber.

    Attributes:
        begun: whether there may have been a subscription; then HELLO is refused in RESP2.
        resp3: whether a reply has shown that the connection uses RESP3; a HELLO alone may have been refused.
        monitors: whether MONITOR is on.
    """

    __slots__ = ("_greetings", "_names", "_uncounted", "begun", "monitors", "resp3")

    def __init__(self) -> None:
        self._greetings = 0  # how many HELLO requests named a protocol
        self.begun = self.resp3 = self.monitors = False
        self._uncounted: set[bytes] = set()  # kinds of subscriptions with more names than are remembered
        self._names: set[tuple[bytes, int]] = set()  # hashes, because a name may have any length

    @property
    def hinder(self) -> bool:
        """Whether the server may refuse an ECHO."""
        return self.monitors or (not self.resp3 and self.counted)

    @property
    def counted(self) -> bool:
        """Whether there may be a subscription now."""
        return bool(self._uncounted or self._names)

    def greet(self, *, resp3: bool) -> None:
        """Note a HELLO that asks for a protocol."""
        self._greetings += 1
        self.resp3 = self.resp3 and resp3

    def learn(self) -> Callable[[bytes], bytes]:
        """Return a function that takes the reply to the proxy's own HELLO out of some frames and returns the others,
        which are for the client.

        In RESP2 the other frames may be messages, which are arrays like the reply.
        """
        greetings = self._greetings

        def hear(said: bytes) -> bytes:
            others = frames(said)
            own = next((one for one in others if one.startswith(_GREETED) or b"\r\nserver\r\n" in one[:20]), None)
            if own is not None:
                others.remove(own)
                if self._greetings == greetings:  # else the client may have switched the protocol meanwhile
                    self.resp3 = own.startswith(b"%")
            return b"".join(others)

        return hear

    def note(self, name: bytes, channels: Iterable[bytes]) -> None:
        """Note a request that subscribes or unsubscribes.

        Args:
            name: SUBSCRIBE, PSUBSCRIBE, SSUBSCRIBE, or one of these with UN in front.
            channels: the arguments; none to end all subscriptions of that kind.
        """
        self.begun = True
        ends = b"UN" in name
        kind = name.replace(b"UN", b"")
        named = {(kind, hash(channel)) for channel in channels}
        if ends:
            self._names -= named or {one for one in self._names if one[0] == kind}
            if not named:
                self._uncounted.discard(kind)
        elif len(self._names) + len(named) > MOST_SUBSCRIPTIONS:
            self._uncounted.add(kind)
        else:
            self._names |= named


class Standing:
    """The state of one connection that several parts of its session share.

    Args:
        rights: the permissions of its user.
        login: what is known of the client's login at first.
        hides_commands: whether the server, before a login, may hide that it lacks a command.

    Attributes:
        rights: the permissions of its user.
        permits: which keys a user with limited rights may give deadlines.
        login: whether the client has logged in.
        user: the name that it last tried to log in with.
        subscriptions: its subscriptions, as far as is known.
        greeted_in_resp3: whether it has ever asked for RESP3, in which pushes may come at any time.
        end: whether the server reads on.
        is_link: whether a cluster node sends slots to another over this connection; then nothing on it is judged.
        transaction: the requests queued since its MULTI; None outside a transaction.
        replies: finds signs in the stream of replies and replaces them.
        next: how its last request affects the next one.
        caches: whether it may have CLIENT TRACKING on.
        unlike: whether it may be in a state that CLIENT INFO does not show (such as CLIENT CAPA before Valkey 9).
        watched: the keys on which its next transaction may depend.
        shares: whether the client's requests may have gone over shared connections since its last WAIT.
    """

    __slots__ = (
        "caches",
        "end",
        "greeted_in_resp3",
        "is_link",
        "login",
        "next",
        "permits",
        "replies",
        "rights",
        "shares",
        "subscriptions",
        "transaction",
        "unlike",
        "user",
        "watched",
    )

    def __init__(self, rights: Rights, login: Login = Login.PRESUMED, *, hides_commands: bool = True) -> None:
        self.rights = rights
        self.permits = Permits()
        self.login = login
        self.user: bytes = DEFAULT_USER
        self.greeted_in_resp3 = False
        self.subscriptions = Subscriptions()
        self.caches = False
        self.unlike = False
        self.shares = False
        self.watched = Watched()
        self.end = End.OPEN
        self.is_link = False
        self.transaction: Transaction | None = None
        self.replies = ReplySubstitution()
        self.replies.hides_commands = hides_commands
        self.next = Next.FREE

    @property
    def is_stranger(self) -> bool:
        """Whether the client must still log in, as far as is known."""
        return self.login is _STRANGER

    @property
    def is_proved(self) -> bool:
        """Whether replies have shown that the server serves the client without a further login."""
        return self.login not in _UNPROVED

    @property
    def greets(self) -> bool:
        """Whether a sign outside a transaction can be a HELLO, which the server answers even before a login."""
        return self.replies.hides_commands and self.next is _FREE and not self.subscriptions.begun

    @property
    def must_greet(self) -> bool:
        """Whether each sign outside a transaction must be a HELLO, because the server may answer nothing else."""
        return self.login in _UNSURE and self.greets

    @property
    def limited(self) -> bool:
        """Whether there may be scripts that the user may not run. For an unchecked user this is assumed while the
        server cannot be queried, as in a transaction."""
        rights = self.rights
        return rights.limited or (rights.unasked and (self.transaction is not None or not self.askable))

    def may_expire(self, keys: Iterable[bytes]) -> bool:
        """Return whether the user is known to have permission to give some keys deadlines."""
        return not self.limited or self.permits.cover(keys)

    @property
    def hears_echoes(self) -> bool:
        """Whether the server will probably reply to an ECHO sent now, outside a transaction."""
        rights = self.rights
        unsure = self.login in _UNSURE
        unlikely = unsure or self.subscriptions.hinder or rights.confinement or self.replies.deaf
        return self.askable and not unlikely

    def replies_for_own(self) -> ReplySubstitution:
        """Return `replies`, set so that the server will answer the signs around the proxy's next request."""
        replies = self.replies
        apart = self.transaction is None
        replies.echoes = apart and self.hears_echoes
        replies.greets = apart and self.must_greet
        return replies

    @property
    def askable(self) -> bool:
        """Whether the proxy can put a request of its own into the stream now and get a reply to it."""
        return self.next is _FREE and self.end is not _BROKEN


DEFAULT_USER: Final = b"default"
"""The user of a connection that has not logged in."""

_STRANGER = Login.STRANGER
_UNSURE = frozenset((Login.STRANGER, Login.UNPROVED))
_UNPROVED = frozenset((Login.STRANGER, Login.UNPROVED, Login.PRESUMED))
_FREE = Next.FREE
_BROKEN = End.BROKEN
