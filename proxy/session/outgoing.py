"""The stream to the server on one connection: the client's requests, their replacements, and the proxy's own requests.

Its tests: tests/test_signs.py.

In a transaction, replies to the proxy's own requests are taken out of the reply to EXEC. That needs a sign in front of
the MULTI. Its place is reserved, and filled only if needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from proxy.coverage.coverage import Coverage
from proxy.session.errors import Refusal, RequestTooLargeError
from proxy.session.loss import Loss
from proxy.session.standing import Login, Next, Standing
from proxy.wire.asides import Asides, Call, Whose
from proxy.wire.elements import Elements
from proxy.wire.integer import Integer
from proxy.wire.pieces import Opening, Wish
from proxy.wire.request import Kind, Request
from proxy.wire.silence import ON

_FREE: Final = Next.FREE
_PRESUMED: Final = Login.PRESUMED
_UNPROVED: Final = Login.UNPROVED


class Blocker(NamedTuple):
    """A sent request that may block, and so hold up later requests.

    Attributes:
        number: how many such requests the client has sent, this one included.
        sign: the number of the first sign after the request.
        ahead: of the bytes that were last sent together with such requests, how many end with the last of these.
        place: how many collected parts end with it; -1 if all have been sent.
    """

    number: int
    sign: int
    ahead: int = 0
    place: int = -1


class Outgoing:
    """Collects judged requests, in order, until they are sent.

    Args:
        coverage: the covered keys.
        standing: the state of the connection.

    Attributes:
        append: appends bytes.
        caching_queued: whether CLIENT CACHING is queued: then no request of the proxy's own may be queued.
        blocker: the last request that may block.
        logged_out: the number of the sign after the last RESET: no reply before that sign proves a login; -1 for none.
        loss: knows whether the client could lose a reply if its half close were forwarded.
        last_sign: the number of the last sign put in front of a request after which no sign is possible.
        queued: how many requests of the client have been sent since its MULTI.
    """

    __slots__ = (
        "_asides",
        "_coverage",
        "_front",
        "_greets",
        "_parts",
        "_pinned_at",
        "_silent",
        "_standing",
        "append",
        "blocker",
        "caching_queued",
        "last_sign",
        "logged_out",
        "loss",
        "queued",
    )

    def __init__(self, coverage: Coverage, standing: Standing) -> None:
        self._coverage = coverage
        self._standing = standing
        self._parts: list[bytes] = []
        self.append: Callable[[bytes], None] = self._parts.append
        self.caching_queued = False
        self.queued = 0
        self.blocker = Blocker(0, -1)
        self.last_sign = self.logged_out = -1
        self._pinned_at = -1  # the place in `_parts` in front of which nothing may be put
        self.loss = Loss(standing)
        self._asides: Asides | None = None  # takes replies out of EXEC's reply
        self._front: int | None = None  # the reserved place in `_parts` for the sign before MULTI
        # Whether the sign before MULTI may be silent, and whether it must be a HELLO.
        self._silent = self._greets = False

    def take(self) -> bytes:
        """Return and clear all bytes collected; the caller sends them now."""
        if self._front is not None and not (self._coverage.ever or self._coverage.blind):
            self._asides = self._front = None  # without deadlines anywhere, EXEC's reply needs no change
        self._mark_front()
        if (place := self.blocker.place) >= 0:
            ahead = self.blocker.ahead + sum(map(len, self._parts[:place]))
            self.blocker = self.blocker._replace(ahead=ahead, place=-1)
        out = b"".join(self._parts)
        self.loss.look(len(self._parts), sent=True)
        self._pinned_at = 0 if self._is_pinned else -1
        self._parts.clear()
        return out

    def bind(self) -> None:
        """Let nothing come before the next request: the last request, such as CLIENT CACHING, applies to it."""
        self._pinned_at = len(self._parts)

    @property
    def _is_pinned(self) -> bool:
        return self._pinned_at == len(self._parts)

    def expect(self, reply: bytes, *, found: Callable[[], None] | None = None, fails: bool = False) -> bytes:
        """Return a sign. In place of its reply the client gets `reply`; `found` is called when the sign is answered.

        `fails`: whether the sign replaces a request that fails: then the sign is loud, and so aborts a transaction.
        Only a loud sign may come directly after CLIENT CACHING.
        """
        assert fails or not self._is_pinned
        self._mark_front()
        replies = self._standing.replies_for_own()
        return replies.expect(reply, found=found, silent=replies.echoes and not fails)

    def wish(self, wish: Wish, request: Request, *, caching: bytes = b"") -> None:
        """Send ON instead of the client's CLIENT REPLY, and apply the wish when the server accepts the ON.

        Do not call this in a transaction.

        Args:
            wish: which replies the client wants.
            request: the request.
            caching: the CLIENT CACHING that applies to the next request; empty for none. The sign cancels that
                CLIENT CACHING, so it is sent again.
        """
        self._pinned_at = -1
        self.loss.expect_wish(len(self._parts))
        self._heed(wish, 2 if caching else 1)
        self.replace(request, ON)
        self.append(caching)
        self.loss.note_wish(wish, len(self._parts))

    def wish_here(self, wish: Wish, opening: Opening | None = None) -> None:
        """Apply a wish from here on, without a request; do nothing if the client wants all replies."""
        standing = self._standing
        if standing.replies.silence.suspected and standing.transaction is None and not self._is_pinned:
            self._heed(wish, 0, opening)
            self.loss.note_wish(wish, len(self._parts))

    def _heed(self, wish: Wish, replies: int, opening: Opening | None = None) -> None:
        own, subscriptions = self._standing.replies_for_own(), self._standing.subscriptions
        may_be = wish is Wish.LISTENS or subscriptions.counted
        way = own.silence.expect(wish, lambda: may_be and not subscriptions.resp3, replies=replies, opening=opening)
        if self._standing.login is _PRESUMED:  # no ECHO: a login may be needed, or the user may change
            own.echoes, own.greets = False, self._standing.greets
        self.append(own.open(way))

    def replace(self, request: Request, instead: bytes) -> None:
        """Send something else instead of a request.

        If the request has a line that does not end in CRLF, so has the replacement: a server that rejects the request
        then rejects the replacement too.

        Raises:
            RequestTooLargeError: the request is still arriving, and the replacement does not end with the part of it
                that has arrived, so the rest cannot follow.
        """
        if request.kind is Kind.HEAD and not instead.endswith(request.raw[request.header :]):
            raise RequestTooLargeError
        self.append(instead.replace(b"\r\n", b"\r?", 1) if request.odd else instead)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Give the client an error as the request's reply."""
        self.replace(request, self.expect(b"-%b\r\n" % refusal.message, fails=True))

    def put_together(
        self,
        call: bytes,
        count: int,
        took_long: Callable[[int], None],
        *,
        transaction: bool = False,
        free: Collection[int] = (),
        counts: bool = False,
    ) -> None:
        """Send one call instead of `count` requests of the client. Do not call this in a transaction.

        Args:
            call: the call.
            count: how many requests it replaces.
            took_long: called with the number of the key that took the script a long time, if the reply names one.
            transaction: whether MULTI and EXEC around these requests are replaced too.
            free: the positions of a transaction's requests that take no memory.
            counts: whether there may be counters among the replies.
        """
        elements = Elements(count, took_long, transaction=transaction, free=free, counts=counts)
        self.append(self._standing.replies_for_own().open(elements))
        self.append(call)

    def ask_first(self, request: bytes, hear: Callable[[bytes], bytes]) -> None:
        """Put a request of the proxy's own before the next one, if a reply can be expected there.

        `hear` gets the reply, as in `ReplySubstitution.enclose`. The signs around the request are silent only if the
        server certainly accepts them: a refusal would show only with a later request, which may never come.
        """
        standing = self._standing
        unproved = standing.askable and standing.login is _UNPROVED  # then signs must be loud
        if standing.transaction is None and (standing.hears_echoes or unproved) and not self._is_pinned:
            replies = standing.replies_for_own()
            replies.echoes = not (unproved or standing.limited or standing.rights.unasked)
            self.append(replies.enclose(request, hear))

    @property
    def amends(self) -> bool:
        """Whether the reply to the client's next request can be amended; not in a transaction."""
        standing = self._standing
        unsure = standing.is_stranger or standing.limited or standing.rights.by_state
        return standing.transaction is None and standing.askable and not unsure

    def replace_count(self, request: Request, instead: bytes) -> None:
        """Send something else instead of a request, and turn its status reply into an integer.

        Call only if `amends`.
        """
        self.append(self._standing.replies_for_own().open(Integer()))
        self.replace(request, instead)

    def precede_blocker(self) -> None:
        """If the client may not want all replies, put a sign before the next request, which may block. The sign's reply
        shows that the server has sent all earlier replies."""
        standing = self._standing
        if standing.replies.silence.suspected and standing.next is _FREE and not self._is_pinned:
            self.append(self.expect(b"", found=self.loss.reach()))

    def note_blocker(self, count: int = 1, ahead: int = 0) -> None:
        """Note that a request is sent that may block, and so hold up later requests.

        It is the last part, or else `count` of them are in the next part, of which `ahead` bytes end with the last one.
        """
        sign = self._standing.replies.next_number
        self.blocker = Blocker(self.blocker.number + count, sign, ahead, len(self._parts))

    def sign_before_last(self, *, loud: bool = False) -> None:
        """Put a sign before the next request, after which no sign is possible. For rare requests only.

        The sign is silent. If the server might refuse a silent sign, put a loud sign if `loud`, else none.
        """
        standing = self._standing
        silent = standing.hears_echoes and not (standing.limited or standing.rights.unasked)
        loud = loud and standing.next is _FREE and not standing.is_stranger
        if standing.transaction is None and (silent or loud):
            self.last_sign = standing.replies.next_number
            self.append(self.expect(b"", fails=not silent))

    # The replies of a transaction.

    def begin_transaction(self) -> None:
        """Reserve room for a sign before the coming MULTI."""
        self._asides = Asides()
        self._asides.note(Whose.CLIENT)
        self._front = len(self._parts)
        self._silent, self._greets = self._standing.hears_echoes, self._standing.must_greet
        self.append(b"")

    def note_queued(self, *, runs: bool = False) -> None:
        """Note that a client's request is sent; `runs`: whether it is the EXEC that runs the transaction."""
        self.queued += 1
        if self._asides is not None:
            self._asides.note(Whose.EXEC if runs else Whose.CLIENT)

    @property
    def can_put_aside(self) -> bool:
        """Whether the proxy's own requests can be queued beside the client's."""
        asides, standing = self._asides, self._standing
        return asides is not None and not (asides.shut or self.caching_queued or standing.limited)

    def put_aside(self, own: bytes, *, follows: bool = False) -> bool:
        """Queue the proxy's own request before the client's, or after it (`follows`); return whether that worked."""
        if self._asides is None or not self.can_put_aside:
            return False
        self._mark_front()
        if follows:
            self._asides.note(Whose.ASIDE)
            self._asides.any = True
        else:
            self._asides.precede()
        self.append(own)
        return True

    def queue_together(self, call: bytes, count: int, took_long: Callable[[int], None], *, guard: bytes | None) -> None:
        """Queue one call instead of `count` requests of the client. Call only if `can_put_aside`.

        Args:
            call: the call.
            count: how many requests it replaces.
            took_long: called with the number of the key that took the script a long time, if the reply names one.
            guard: a request to put in front, which the server refuses if it would refuse the client's requests; None
                if the server refuses the call itself in the same cases.
        """
        assert self._asides is not None  # without it the client would get the call's array as one reply
        self._asides.put_together(Call(count, took_long))
        if guard is None or not self.put_aside(guard):
            self._mark_front()
        self.append(call)
        self.queued += count

    def amend(self, amend: Callable[[bytes], bytes]) -> bool:
        """Have a function amend the reply to the request that is about to be queued.

        Returns:
            False if that is not possible; then the client gets the server's reply.
        """
        if self._asides is None or self._asides.shut or self.caching_queued:
            return False
        self._mark_front()
        self._asides.amend(amend)
        return True

    @property
    def takes_asides(self) -> bool:
        """Whether replies to the proxy's own requests can be taken out of the open transaction's reply."""
        return self._asides is not None

    def shut(self) -> None:
        """Take out no more replies of the open transaction: they can no longer be counted."""
        if self._asides is not None:
            self._asides.shut = True

    def end_transaction(self) -> None:
        """Note that the transaction is complete."""
        if self._asides is not None:
            self._asides.close()
        self._asides = self._front = None
        self.caching_queued = False

    def _mark_front(self) -> None:
        """Put the sign in front of MULTI that shows where the replies of the transaction begin."""
        if self._front is not None and self._asides is not None:
            transaction = self._standing.transaction
            found = None if transaction is None else transaction.expect_beginning()
            replies = self._standing.replies
            self._parts[self._front] = replies.open(
                self._asides, found=found, silent=self._silent, by_greeting=self._greets
            )
            self._front = None
