"""Track CLIENT REPLY, which turns replies off and on, and requests that affect only the request after them.

Its tests: tests/test_strangers.py.
"""

from __future__ import annotations

from typing import Final

from proxy.session.errors import Refusal
from proxy.session.outgoing import Outgoing
from proxy.session.standing import Next, Standing
from proxy.wire.pieces import Opening, Wish
from proxy.wire.request import Kind, Request, encode

_NOT_QUEUED: Final = Refusal(b"ERR Command 'client|reply' not allowed inside a transaction", "reply_in_multi")
"""Valkey 9.1's error. Other servers queue the request, but OFF or SKIP then breaks off the reply to EXEC."""

_WISHES: Final = {b"ON": Wish.ON, b"OFF": Wish.OFF, b"SKIP": Wish.SKIP}

_CACHING: Final = {word: encode([b"CLIENT", b"CACHING", word]) for word in (b"YES", b"NO")}


def speaks_of_next(arguments: list[bytes]) -> bool:
    """Return whether a request must stay directly in front of the next one: the proxy's own requests go before both."""
    first = arguments[0].upper()
    caches = first == b"CLIENT" and len(arguments) > 2 and arguments[1].upper() == b"CACHING"
    return caches or first == b"ASKING"


class Hearing:
    """Tracks the changes that CLIENT requests and ASKING make on one connection.

    Args:
        standing: the state of the connection.
        out: the stream to the server.
    """

    __slots__ = ("_caching", "_opening", "_out", "_standing", "_wants_all")

    def __init__(self, standing: Standing, out: Outgoing) -> None:
        self._standing = standing
        self._out = out
        self._caching = b""  # the last CLIENT CACHING request
        self._wants_all = False  # whether the open transaction turns replies on again
        self._opening = Opening()  # the open transaction's MULTI, which the server may refuse

    def send(self, request: Request, *, joined: bool) -> Refusal | None:
        """Send a CLIENT request, or ASKING, and note what it changes.

        `joined`: whether the request comes between a CLIENT CACHING and the request that it affects.

        Returns:
            The error to give the client; None if the request was sent.
        """
        standing, out, arguments = self._standing, self._out, request.arguments
        about = arguments[1].upper() if len(arguments) > 2 else b""
        wish = self._wish_of(request)
        if wish is not None and standing.transaction is None:
            out.wish(wish, request, caching=self._caching if joined else b"")
            if joined and self._caching:
                self._join()
            else:
                standing.next = Next.FREE
            return None
        if wish is Wish.OFF or wish is Wish.SKIP:
            return _NOT_QUEUED
        if wish is Wish.ON and not self._wants_all:
            self._wants_all, self._opening.ends = True, out.queued
            out.loss.note_wish(wish, 0)
        out.append(request.raw)
        self._note(arguments, about)
        return None

    def send_of_stranger(self, request: Request) -> bool:
        """Send a CLIENT REPLY of a client that may not have logged in; return False for any other request.

        The server may no longer require a login; then it would obey a forwarded request and stop sending replies.
        """
        wish = self._wish_of(request)
        if wish is None:
            return False
        self._out.wish(wish, request)
        return True

    def _wish_of(self, request: Request) -> Wish | None:
        """Return the wish that a CLIENT REPLY states; None if the proxy need not act on the request."""
        words = [word.upper() for word in request.arguments] if request.count == 3 else []
        if words[:2] != [b"CLIENT", b"REPLY"] or request.kind is not Kind.WHOLE:
            return None
        wish = _WISHES.get(words[2])
        return None if wish is Wish.ON and not self._standing.replies.silence.suspected else wish

    def _note(self, arguments: list[bytes], about: bytes) -> None:
        """Note how a request that is forwarded unchanged changes the state."""
        standing = self._standing
        if arguments[0].upper() == b"ASKING":
            if standing.transaction is None:
                self._caching = b""
                self._join()
        elif about == b"TRACKING":
            ends = arguments[2].upper() == b"OFF" and len(arguments) == 3
            if not (ends and standing.transaction is not None):  # the transaction may be dropped, and this OFF with it
                standing.caches = not ends
        elif about == b"CAPA":
            standing.unlike = True
        elif about == b"CACHING" and standing.transaction is not None:
            self._out.caching_queued = True
        elif about == b"CACHING":
            self._caching = _CACHING.get(arguments[2].upper(), b"") if len(arguments) == 3 else b""
            self._join()

    def begin_transaction(self) -> None:
        """Note that a MULTI is about to be sent."""
        self._opening, self._out.queued = Opening(), 0
        self._out.wish_here(Wish.BEGINS, self._opening)

    def end_transaction(self, *, runs: bool) -> None:
        """Note the end of the open transaction. If the transaction `runs` and contains CLIENT REPLY ON, replies are on
        again after the reply to EXEC."""
        if runs:
            self._out.wish_here(Wish.RAN if self._wants_all else Wish.HEARD)
        self._wants_all = False

    def start_anew(self) -> None:
        """Note that a RESET has been sent, which turns all replies on again and logs the client out.

        Only replies after the sign that follows the RESET can prove another login.
        """
        if self._standing.replies.silence.suspected:
            self._out.wish_here(Wish.ANEW)
        elif self._standing.is_stranger and self._out.logged_out == self._standing.replies.next_number:
            self._out.append(self._out.expect(b""))

    def _join(self) -> None:
        self._standing.next = Next.JOINED
        self._out.bind()
