"""Send a request that need not wait: forward it, replace it by a script, or give the client an error.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from proxy.commands.table import BLIND, JUDGED, Command, Effect
from proxy.session import additions, describe
from proxy.session.announcing import Announcing
from proxy.session.changes import Changes
from proxy.session.errors import Refusal
from proxy.session.ground import Ground
from proxy.session.hearing import Hearing
from proxy.session.multi import Multi
from proxy.session.outgoing import Outgoing
from proxy.session.pipeline import Pipeline
from proxy.session.remaining import Remaining
from proxy.session.rewrite import is_own
from proxy.session.standing import Next, Standing
from proxy.session.upload import Upload
from proxy.session.without_engine import WithoutEngine
from proxy.wire.frames import frames
from proxy.wire.pieces import Wish
from proxy.wire.request import Kind, Request, encode

_TRANSACTION: Final = frozenset((Effect.MULTI, Effect.EXEC, Effect.DISCARD))

_FREE: Final = Next.FREE
_JOINED: Final = Next.JOINED


class Dispatch:
    """Sends the requests of one connection, or their replacements.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        changes: notes how requests change the connection's state.
        multi: opens and ends transactions.
        hearing: sends CLIENT requests and notes their effects.
        upload: tracks requests that are forwarded while they arrive.
        announcing: finds keys that may get first deadlines.
        without: does the engine's work on the client's own connection.
        remaining: answers TTL for users with limited permissions.
        owner: the connection's pipeline.
    """

    __slots__ = (
        "_announcing",
        "_changes",
        "_ground",
        "_hearing",
        "_multi",
        "_out",
        "_owner",
        "_remaining",
        "_standing",
        "_upload",
        "_without",
    )

    def __init__(
        self,
        ground: Ground,
        standing: Standing,
        out: Outgoing,
        changes: Changes,
        multi: Multi,
        hearing: Hearing,
        upload: Upload,
        announcing: Announcing,
        without: WithoutEngine,
        remaining: Remaining,
        owner: Pipeline,
    ) -> None:
        self._ground = ground
        self._standing = standing
        self._out = out
        self._changes = changes
        self._multi = multi
        self._hearing = hearing
        self._upload = upload
        self._announcing = announcing
        self._without = without
        self._remaining = remaining
        self._owner = owner

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """Give the client an error as the request's reply."""
        self._ground.metrics.requests_refused_total[refusal.reason] += 1
        self._standing.next = _FREE
        self._out.refuse(request, refusal)

    def send_wish(self, request: Request) -> bool:
        """Send a CLIENT REPLY of a client that may not have logged in; return False for any other request."""
        return self._hearing.send_of_stranger(request)

    def send(self, command: Command | None, request: Request, now: float, *, having: Set[bytes] | None = None) -> None:
        """Forward a request that need not wait, or send its replacement.

        Args:
            command: the request's entry in the table.
            request: the request.
            now: the server's clock, in Unix ms.
            having: the request's keys that have deadlines, if the server was queried.
        """
        if request.kind is Kind.HEAD:
            self._out.sign_before_last()
        blocks = self._standing.transaction is None and self._ground.may_block(request.arguments[0])
        if blocks and not _reads_at_once(request.arguments):
            self._out.precede_blocker()
        self._send_in_its_place(command, request, now, having=having)
        if blocks:
            self._out.note_blocker()
        if command is not None and self._standing.replies.silence.suspected and command.name.endswith(b"SUBSCRIBE"):
            self._out.wish_here(Wish.HEARD)  # the server confirms SUBSCRIBE in spite of a SKIP, which ends here

    def _send_in_its_place(
        self, command: Command | None, request: Request, now: float, *, having: Set[bytes] | None
    ) -> None:
        standing, out, rewriter = self._standing, self._out, self._ground.rewriter
        askable = standing.askable
        free = standing.next is _FREE  # no CLIENT CACHING or ASKING applies to this request
        counts = command is not None and additions.is_count_by_script(command, request) and out.amends
        effect = None if command is None else command.effect
        limited = standing.next is not _FREE and standing.limited  # then no query fits before this request
        joined = standing.next is _JOINED
        if effect is not Effect.CONNECTION or not joined:  # CLIENT CACHING stays valid across other CLIENT requests
            standing.next = _FREE
        self._without.unaided = False
        standing.rights.note(effect)
        if standing.transaction is not None:
            self._multi.queue(standing.transaction, command, request, self._announcing.expected)
            if self._ground.coverage.ever or self._ground.coverage.blind:
                ahead = self._announcing.requests_ahead
                self._multi.clear_front(standing.transaction, command, request, ahead)
        if command is None:
            out.append(request.raw)
            self._upload.begin_unnamed(request.arguments[1:2] if request.kind is Kind.HEAD else [])
            return
        self._changes.note(command, request)
        if command.name == b"WAITAOF":
            standing.unlike = True  # the client uses no shared connections from now on
        waits = effect is Effect.WAIT and standing.transaction is None and request.kind is Kind.WHOLE
        if waits and standing.shares and askable:
            # WAIT waits only for this connection's own last write: send one now, after the client's shared writes.
            standing.shares = False
            both = rewriter.beside.own_write(command.name) + request.raw
            out.replace(request, standing.replies_for_own().enclose(both, self._waited, replies=2))
            return
        if effect is Effect.CONNECTION:
            if (refusal := self._hearing.send(request, joined=joined)) is not None:
                self.refuse(request, refusal)
            standing.is_link = rewriter.moves.opens_link(request.arguments)
            return
        if effect in _TRANSACTION and self._multi.send_delimiter(command, request, now, askable=askable, having=having):
            return
        confinement = standing.rights.confinement
        if confinement and ((own := is_own(command, request)) or effect is not Effect.EXPIRE):
            # The server refuses this request: the error must name the client's command, not EVAL.
            out.replace(request, out.expect(standing.rights.confined(command.name), fails=True) if own else request.raw)
            return
        instead: bytes | Refusal | None
        sure = True
        if effect is Effect.DESCRIBE:
            instead = describe.instead(self._ground.descriptions, standing, out, request, askable=free)
        elif (plainly := self._remaining.instead(command, request) if standing.limited else None) is not None:
            instead = plainly
        else:
            limited = limited or standing.limited
            sure = not limited or standing.permits.allows_and_notes(self._announcing.first_keys(request.arguments))
            instead = rewriter.rewrite(
                command,
                request,
                now,
                owner=self._owner,
                limited=limited,
                having=having,
                counts=counts,
                sure=sure,
                transaction=standing.transaction,
            )
        if instead is None and effect is Effect.IMPORT and self._bracket(command, request):
            return
        if instead is None:
            self._send_on(command, request)
        elif isinstance(instead, Refusal):
            self._ground.metrics.requests_refused_total[instead.reason] += 1
            out.refuse(request, instead)
        elif effect is Effect.COUNT:
            out.replace_count(request, instead)
        else:
            transaction = standing.transaction
            if transaction is not None and (guard := rewriter.beside.guard(command, request.arguments)) is not None:
                out.put_aside(guard)
            out.replace(request, instead)
            if transaction is not None:
                delay = rewriter.own.delay(command, request.arguments)
                if delay is not None:
                    known = having or frozenset()
                    transaction.rewritten(command, request.arguments, delay, marks=sure, having=known)

    def _bracket(self, command: Command, request: Request) -> bool:
        """Send, between two scripts, a request that replaces a whole value; return False if that is not possible."""
        standing, out = self._standing, self._out
        queued = standing.transaction is not None
        if not (out.can_put_aside if queued else out.amends and not standing.watched):
            return False
        brackets = self._ground.rewriter.beside.brackets(command, request.arguments)
        if not brackets:
            return False
        front, behind = brackets
        if queued:
            out.put_aside(front)
            out.append(request.raw)
            out.put_aside(behind, follows=True)
        else:
            whole = b"".join((encode([b"MULTI"]), front, request.raw, behind, encode([b"EXEC"])))
            out.replace(request, standing.replies_for_own().enclose(whole, _of_bracketed, replies=5))
        return True

    def _waited(self, said: bytes) -> bytes:
        """Drop the reply to the proxy's own write; return the reply to WAIT or WAITAOF, and the pushes around both.

        If the server refused that write, WAIT has not waited for all of the client's writes: so report that no replica
        has them. The client then no longer uses shared connections.
        """
        parts = frames(said)
        replies = [part for part in parts if part[:1] != b">"]
        if len(replies) == 2 and replies[0][:1] == b"-":
            self._standing.unlike = self._standing.shares = True
            replies[1] = {b":": b":0\r\n", b"*": b"*2\r\n:0\r\n:0\r\n"}.get(replies[1][:1], replies[1])
        return b"".join([*(part for part in parts if part[:1] == b">"), *replies[1:]])

    def _send_on(self, command: Command, request: Request) -> None:
        """Forward a request unchanged."""
        standing, out = self._standing, self._out
        transaction = standing.transaction
        if transaction is not None and standing.limited:
            transaction.presume(self._ground.rewriter.unclear(command, request.arguments))
        if (
            transaction is not None
            and out.takes_asides
            and (transaction.follows_writes or command.effect is Effect.COUNT)
        ):
            # Earlier queued requests, or other clients, may remove members that this request adds unchecked.
            absent = additions.absent(self._ground.coverage, command, request, limited=standing.limited)
            for key, members in absent:
                out.put_aside(self._ground.rewriter.beside.void(key, members))
        out.append(request.raw)
        if request.kind is Kind.HEAD and transaction is None and command.effect in JUDGED | BLIND:
            self._upload.begin(command, request)


def _of_bracketed(said: bytes) -> bytes:
    """Return the reply to the middle one of three requests in a transaction, and the pushes around the replies.

    If the user may not run MULTI, the three ran one after the other, without a transaction.
    """
    parts = frames(said)
    pushes = [part for part in parts if part[:1] == b">"]
    opened, *queued, run = [part for part in parts if part[:1] != b">"]
    if opened[:1] == b"-":
        return b"".join([*pushes, queued[1]])
    reply = next((part for part in (queued[1], *queued, run) if part[:1] == b"-"), None)
    return b"".join([*pushes, frames(run.partition(b"\r\n")[2])[1] if reply is None else reply])


def _reads_at_once(arguments: list[bytes]) -> bool:
    """Return whether a request is an XREAD or XREADGROUP that does not wait."""
    return arguments[0].upper().startswith(b"XREAD") and all(word.upper() != b"BLOCK" for word in arguments)
