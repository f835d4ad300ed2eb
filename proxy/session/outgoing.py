"""The stream to the server on one connection: the client's requests, their replacements, and the proxy's own requests.

Its tests: tests/test_signs.py.

In a transaction, replies to the proxy's own requests are taken out of the reply to EXEC. For that a sign has to stand
in front of the MULTI. Its place is kept open, and filled only if it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.coverage.coverage import Coverage
from proxy.session.errors import Refusal, RequestTooLargeError
from proxy.session.standing import Next, Standing
from proxy.wire.asides import Asides, Call
from proxy.wire.asides import Kind as Whose
from proxy.wire.elements import Elements
from proxy.wire.integer import Integer
from proxy.wire.request import Kind, Request

_FREE: Final = Next.FREE


class Outgoing:
    """Collects what has been judged, in order, until it is sent.

    Args:
        coverage: the covered keys.
        standing: the state of the connection.

    Attributes:
        append: puts bytes behind what is there.
        queued_words: what each CLIENT in the open transaction says of replies, which cannot be counted then.
        blocker: changes with each request sent on that may keep what follows it from running: the number of the first
            sign behind it.
        fenced: the number of the last sign that stands in front of something behind which there may be none.
    """

    __slots__ = (
        "_asides",
        "_bound",
        "_coverage",
        "_front",
        "_parts",
        "_silent",
        "_standing",
        "append",
        "blocker",
        "fenced",
        "queued_words",
    )

    def __init__(self, coverage: Coverage, standing: Standing) -> None:
        self._coverage = coverage
        self._standing = standing
        self._parts: list[bytes] = []
        self.append: Callable[[bytes], None] = self._parts.append
        self.queued_words: list[list[bytes]] = []
        self.blocker = self.fenced = -1
        self._bound = -1  # where in `_parts` stands what nothing may be put in front of
        self._asides: Asides | None = None  # takes replies out of those of the open transaction
        self._front: int | None = None  # where in `_parts` their mark belongs, while it is not there
        self._silent = False  # whether it may be a silent sign

    def take(self) -> bytes:
        """Return everything collected; it is sent now."""
        if self._front is not None and not (self._coverage.ever or self._coverage.blind):
            self._asides = self._front = None  # nothing to be taken out, in all likelihood
        self._mark_front()
        out = b"".join(self._parts)
        self._bound = 0 if self._is_bound else -1
        self._parts.clear()
        return out

    def bind(self) -> None:
        """Note that what goes next has to stand directly behind what went last, which speaks of it."""
        self._bound = len(self._parts)

    @property
    def _is_bound(self) -> bool:
        return self._bound == len(self._parts)

    def expect(self, reply: bytes, *, found: Callable[[], None] | None = None, fails: bool = False) -> bytes:
        """Return a sign, in the place of whose reply the client gets `reply`; `found` is called when it comes.

        `fails`: whether it stands for a request that fails: then it is a loud one, which spoils a transaction. Only
        such a one may stand directly behind CLIENT REPLY SKIP: what that speaks of is to be the request, or this.
        """
        assert fails or not self._is_bound
        self._mark_front()
        standing = self._standing
        by_greeting = standing.is_stranger and standing.transaction is None and not standing.subscriptions.begun
        replies = standing.marked
        return replies.expect(reply, by_greeting=by_greeting, found=found, silent=replies.echoes and not fails)

    def replace(self, request: Request, instead: bytes) -> None:
        """Send something else in the place of a request. If the request's line ends are odd, so are those of what is
        sent, because the server may refuse them.

        Raises:
            RequestTooLargeError: the request is still arriving, and its rest has no place behind what replaces it.
        """
        if request.kind is Kind.HEAD and not instead.endswith(request.raw[request.header :]):
            raise RequestTooLargeError
        self.append(instead.replace(b"\r\n", b"\r?", 1) if request.odd else instead)

    def refuse(self, request: Request, refusal: Refusal, *, skips: bool) -> None:
        """Have the client get an error in the place of a request's reply, unless it `skips` that."""
        instead = self.expect(b"-%b\r\n" % refusal.message, fails=True)
        self.replace(request, instead)
        if skips:  # the server may have refused the skip; the next answer tells
            self.append(self.expect(b"", fails=True))

    def put_together(self, call: bytes, count: int, took_long: Callable[[int], None]) -> None:
        """Send one call in the place of `count` requests of the client. Not in a transaction.

        `took_long` is called with the number of a key if the call says so.
        """
        self.append(self._standing.marked.open(Elements(count, took_long)))
        self.append(call)

    @property
    def amends(self) -> bool:
        """Whether the reply to the client's next request can be amended; not in a transaction."""
        standing = self._standing
        unsure = standing.is_stranger or standing.limited or standing.rights.by_state
        return standing.transaction is None and standing.askable and not unsure

    def replace_count(self, request: Request, instead: bytes) -> None:
        """Send something else in the place of a request, and turn the status that it answers into an integer. Only if
        `amends`."""
        self.append(self._standing.marked.open(Integer()))
        self.replace(request, instead)

    def note_blocker(self) -> None:
        """Note that a request goes that may keep what follows it from running."""
        self.blocker = self._standing.replies.next_number

    def fence(self, *, loud: bool = False) -> None:
        """Put a sign in front of what goes next, as there may be none behind it; not if the server might refuse it.

        `loud`: whether it may be a loud one then, as the client does not do this often.
        """
        standing = self._standing
        silent = standing.hears_echoes and not (standing.limited or standing.rights.unasked)
        loud = loud and standing.next is _FREE and not (standing.replies.unheard or standing.is_stranger)
        if standing.transaction is None and (silent or loud) and not self._is_bound:
            self.fenced = standing.replies.next_number
            self.append(self.expect(b"", fails=not silent))

    # The replies of a transaction.

    def begin_transaction(self) -> None:
        """Keep a place in front of the MULTI that goes next."""
        self._asides = Asides()
        self._asides.note(Whose.CLIENT)
        self._front = len(self._parts)
        self._silent = self._standing.hears_echoes
        self.append(b"")

    def note_queued(self, *, runs: bool = False) -> None:
        """Note that a request of the client's goes; `runs`: it is the EXEC that runs the transaction."""
        if self._asides is not None:
            self._asides.note(Whose.EXEC if runs else Whose.CLIENT)

    @property
    def can_put_aside(self) -> bool:
        """Whether a request of the proxy's own may be queued beside the client's."""
        asides, standing = self._asides, self._standing
        return asides is not None and not (asides.shut or self.queued_words or standing.limited)

    def put_aside(self, own: bytes, *, follows: bool = False) -> bool:
        """Queue a request of the proxy's own in front of the client's, or behind it (`follows`). Return False if that
        is not possible."""
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
        """Queue one call in the place of `count` requests of the client. Only if `can_put_aside`.

        Args:
            call: the call.
            count: how many requests it is for.
            took_long: is called with the number of a key if the call says so.
            guard: a request to put in front, which the server refuses as it would refuse those requests; None if it
            refuses the call itself in the same way.
        """
        assert self._asides is not None  # else the call's array would be one reply
        self._asides.put_together(Call(count, took_long))
        if guard is None or not self.put_aside(guard):
            self._mark_front()
        self.append(call)

    def amend(self, amend: Callable[[bytes], bytes]) -> bool:
        """Amend, by a function, the reply to the request that is about to be queued.

        Returns:
            False if that is not possible: then the client gets the server's reply.
        """
        if self._asides is None or self._asides.shut or self.queued_words:
            return False
        self._mark_front()
        self._asides.amend(amend)
        return True

    @property
    def takes_asides(self) -> bool:
        """Whether replies may be taken out of those of an open transaction."""
        return self._asides is not None

    def shut(self) -> None:
        """Stop taking replies out of the open transaction's: they cannot be counted any more."""
        if self._asides is not None:
            self._asides.shut = True

    def end_transaction(self) -> None:
        """Note that no more requests are queued."""
        if self._asides is not None:
            self._asides.close()
        self._asides = self._front = None

    def _mark_front(self) -> None:
        """Mark where the replies of the open transaction begin."""
        if self._front is not None and self._asides is not None:
            transaction = self._standing.transaction
            found = None if transaction is None else transaction.expect_beginning()
            replies = self._standing.replies
            self._parts[self._front] = replies.open(self._asides, found=found, silent=self._silent)
            self._front = None
