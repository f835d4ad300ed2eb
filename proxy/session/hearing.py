"""Track CLIENT REPLY and CLIENT CACHING: whether replies come, and whether a request may be put before the next one.

Its tests: tests/test_strangers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from proxy.session.outgoing import Outgoing
from proxy.session.standing import Login, Next, Standing

_CACHING: Final = [b"CACHING"]
_WORDS: Final = {(b"REPLY", word): [b"REPLY", word] for word in (b"ON", b"OFF", b"SKIP")}
"""Shared lists for queued requests, which may be many and of any length."""
_ON, _OFF, _SKIP = _WORDS.values()


_SILENT: Final = (b"OFF", b"SKIP")


def speaks_of_replies(arguments: list[bytes]) -> bool:
    """Return whether a request changes which replies the client gets, or applies to the next request only."""
    return len(arguments) > 2 and arguments[0].upper() == b"CLIENT" and arguments[1].upper() in (b"REPLY", b"CACHING")


def asks_for_silence(arguments: list[bytes]) -> bool:
    """Return whether a request turns off replies to later requests."""
    return speaks_of_replies(arguments) and arguments[1].upper() == b"REPLY" and arguments[2].upper() in _SILENT


def speaks_of_next(arguments: list[bytes]) -> bool:
    """Return whether nothing may be put between a request and the next one. The proxy's own requests go before both."""
    return speaks_of_replies(arguments) or arguments[0].upper() == b"ASKING"


class Hearing:
    """Tracks what CLIENT requests have changed on one connection.

    Args:
        standing: the state of the connection.
        out: what goes upstream.
    """

    __slots__ = ("_out", "_standing", "_times")

    def __init__(self, standing: Standing, out: Outgoing) -> None:
        self._standing = standing
        self._out = out
        self._times = 0  # how often the client has turned replies off

    def hush(self, arguments: list[bytes]) -> None:
        """Note how a CLIENT request changes later replies; in a transaction it does so at EXEC.

        Likewise ASKING, which applies to the next request only, so nothing may be put between.
        """
        if arguments[0].upper() == b"ASKING":
            if self._standing.transaction is None:
                self._join(Next.JOINED)
            return
        if len(arguments) > 2 and arguments[1].upper() == b"TRACKING":
            ends = arguments[2].upper() == b"OFF" and len(arguments) == 3
            if not (ends and self._standing.transaction is not None):  # the transaction may be dropped
                self._standing.caches = not ends
        if len(arguments) > 2 and arguments[1].upper() == b"CAPA":
            self._standing.unlike = True
        if not speaks_of_replies(arguments):
            return
        words = _WORDS.get((arguments[1].upper(), arguments[2].upper()), []) if len(arguments) == 3 else []
        if arguments[1].upper() == b"CACHING":
            words = _CACHING
        if self._standing.transaction is not None:
            self._out.queued_words.append(words)
        else:
            self._heed(words)

    def end_transaction(self, *, runs: bool) -> None:
        """Apply the queued requests if the transaction `runs` now, or if the server may have run them at once.

        That it does if it has refused the MULTI. Their signs tell what has come of them.

        Signs go directly behind EXEC: if the server skips the reply to what follows, that is the first of them. CLIENT
        CACHING is over at the end of EXEC.
        """
        queued, self._out.queued_words = self._out.queued_words, []
        skips, replies = runs and _SKIP in queued, self._standing.replies
        changes = [words for words in queued if words in (_OFF, _ON)]
        for words in changes:
            self._heed(words)
        if skips and not (changes and replies.silenced):
            self._heed(_SKIP)
        elif skips and replies.recalled:
            self.recall()

    def start_anew(self) -> None:
        """Note that a RESET has been sent, which brings replies again and ends a login.

        A sign behind it shows where the replies begin that can prove another login. None before it would do: behind
        CLIENT REPLY OFF or SKIP there can be none.
        """
        if self._standing.replies.silenced:
            self.recall()
        elif self._standing.login is not Login.OPEN:
            self._out.append(self._out.expect(b""))

    def recall(self) -> None:
        """Note that a request has been sent that asks for replies again, or brings them again (RESET).

        The server may refuse it, and nobody hears that: only a sign behind it shows that the silence has ended.
        """
        replies = self._standing.replies
        if replies.silenced:
            replies.recalled = True
            self._out.append(self._out.expect(b"", found=self._not_silenced()))

    def _heed(self, words: list[bytes]) -> None:
        replies = self._standing.replies
        if words == _OFF:
            # If the server has refused it, this sign is answered, and replies are expected again.
            replies.silenced = True
            self._times += 1
            replies.recalled = False
            self._out.append(replies.expect(b"", found=self._not_silenced()))
        elif words == _ON:
            self.recall()
        elif words == _SKIP:
            self._join(Next.SKIPPED)  # while replies are off, too: the server may have refused that
        elif words is _CACHING:
            self._join(Next.JOINED)

    def _join(self, how: Next) -> None:
        self._standing.next = how
        self._out.bind()

    def _not_silenced(self) -> Callable[[], None]:
        """Return the callback for a reply; the client may have turned replies off again meanwhile."""
        times = self._times

        def note() -> None:
            if self._times == times:
                self._standing.replies.end_silence()

        return note
