"""Turn the bytes of one client into bytes for the server and questions for the engine, without I/O.

Its tests: tests/test_session.py.

Requests go upstream in the client's order, unchanged or replaced. Signs (the proxy's own requests, whose replies can be
recognised) mark the few replies that must be changed, so the others are not parsed. `Intake` splits the stream into
requests, `Judge` decides whether each must wait, and `Dispatch` sends it or its replacement.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.session import strangers
from proxy.session.announcing import Announcing
from proxy.session.changes import Changes
from proxy.session.dispatch import Dispatch
from proxy.session.fronts import Fronts
from proxy.session.ground import Ground
from proxy.session.hearing import Hearing
from proxy.session.identity import WHO, Identity, who
from proxy.session.inquiry import Inquiry
from proxy.session.intake import Intake
from proxy.session.judge import Judge
from proxy.session.loss import Loss
from proxy.session.multi import Multi
from proxy.session.outgoing import Blocker, Outgoing
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.reads import Late, Reads
from proxy.session.remaining import Remaining
from proxy.session.rights import Rights
from proxy.session.standing import End, Login, Next, Standing
from proxy.session.strangers import Strangers
from proxy.session.together import Together
from proxy.session.upload import Upload
from proxy.session.without_engine import WithoutEngine
from proxy.wire.frames import frames
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import Kind

_FREE = Next.FREE
_STRANGER = Login.STRANGER


class Session:
    """Handles the requests of one client connection.

    Args:
        ground: the objects that all sessions share.
        rights: the user's permissions; every permission by default.
        stranger: whether the client must still log in; call `login` once it has done so.

    Attributes:
        ordinary: whether the stream is between two requests, outside a transaction, with nothing held. Then chunks that
            `Checks.is_plain` accepts can go upstream without `receive`.
        replies: processes the server's replies; needed only while `replies.outstanding`.
        pipeline: the sent requests; other connections may have to wait for them.
        reads: the guarded reads under way.
        intake: splits the received bytes into requests, and keeps those that are not sent yet.
    """

    def __init__(self, ground: Ground, *, stranger: bool = False, rights: Rights | None = None) -> None:
        self.ordinary = self._is_between = not stranger
        self.pipeline = Pipeline()
        self._ground = ground
        # None of these objects refers to the session: without a cycle, Python frees it with the last reference.
        login = Login.STRANGER if stranger else Login.PRESUMED
        server = ground.rewriter.server
        self._standing = standing = Standing(rights or Rights(), login, hides_commands=server.hides_commands)
        self.replies = standing.replies
        self._out = out = Outgoing(ground.coverage, standing)
        self._upload = upload = Upload(ground, standing, out)
        reader = ground.rewriter.new_reader()
        hearing = Hearing(standing, out)
        self._multi = multi = Multi(ground, standing, out, hearing, self.pipeline)
        self._announcing = announcing = Announcing(ground, standing, reader, self.pipeline)
        without = WithoutEngine(ground, standing, out)
        fronts = Fronts(ground, standing, out, without)
        inquiry = Inquiry(ground, standing, without, announcing, out, fronts)
        self.reads = reads = Reads(ground, standing, out, without)
        remaining = Remaining(ground.names, standing, ground.now)
        self._together = together = Together(ground, standing, out, reads)
        self._strangers = Strangers(ground, standing, out, without, inquiry)
        changes = Changes(ground.coverage, standing, out, without, self._strangers)
        dispatch = Dispatch(
            ground, standing, out, changes, multi, hearing, upload, announcing, without, remaining, self.pipeline
        )
        self._judge = judge = Judge(
            ground, standing, out, reader, dispatch, reads, announcing, inquiry, without, self._strangers, remaining,
            upload,
        )  # fmt: skip
        self.intake = Intake(ground, standing, out, reader, judge, reads, fronts, together, upload, announcing, without)

    @property
    def question(self) -> Question | None:
        """The work that the engine must do before the session can go on; None if the session can go on."""
        return self._judge.question

    @property
    def blocker(self) -> Blocker:
        """The last sent request that may block, and so hold up later requests."""
        return self._out.blocker

    @property
    def is_proved(self) -> bool:
        """Whether replies have shown that the server serves the client."""
        return self._standing.is_proved

    @property
    def logged_out(self) -> int:
        """The number of the first sign after the client's last RESET: no reply before that sign proves a login.

        -1 if there was no RESET.
        """
        return self._out.logged_out

    @property
    def unfinished(self) -> bool:
        """Whether there are received requests for `go_on` to judge."""
        return self.intake.unfinished

    @property
    def held(self) -> int:
        """About how many bytes of memory the unsent requests, remembered names and waiting replies take."""
        transaction = self._standing.transaction
        queued = self._standing.watched.size + (transaction.size if transaction is not None else 0)
        return self.intake.held + self.replies.waiting + queued

    @property
    def hears_unasked(self) -> bool:
        """Whether the server may send the client pushes: messages, invalidations, MONITOR output."""
        standing = self._standing
        return standing.subscriptions.begun or standing.caches or standing.rights.by_state

    @property
    def may_block(self) -> bool:
        """Whether a sent request may still block later ones: no sign behind the request has been answered yet."""
        return self.blocker.sign >= self.replies.settled or self._standing.is_link

    @property
    def loss(self) -> Loss:
        """Knows whether the client could lose a reply if its half close were forwarded."""
        return self._out.loss

    @property
    def has_begun_transaction(self) -> Callable[[], bool] | None:
        """A function that returns whether everything before the open transaction was answered; None if unknown."""
        transaction = self._standing.transaction
        return transaction.has_begun if transaction is not None else None

    @property
    def waits_for_login(self) -> bool:
        """Whether the session waits for proof that the client has logged in."""
        return self.question is not None and self.question.login

    def login(self) -> None:
        """Note that the server's replies have proved that the client is logged in."""
        if self._standing.is_stranger:
            self._standing.login = Login.ADMITTED
            self._ground.coverage.visit(self._strangers.visited)
        else:
            self._standing.login = Login.OPEN
        self._note_state()

    def receive(self, data: bytes, now: float) -> bytes:
        """Take bytes from the client.

        Args:
            data: the bytes.
            now: the server's clock, in Unix ms.

        Returns:
            The bytes to send upstream. Check `question` afterwards.

        Raises:
            RequestTooLargeError: the buffer of a request would exceed `request_limit`.
            RefusedAtItsHeadError: a request must be refused before it is complete.
            OvertakenError: an upload must be cut off, because one of its keys has got deadlines.
        """
        self._expect(data)
        self.reads.quiet = False
        out = self.intake.receive(data, now)
        self._note_state()
        return out

    def guard(self, data: bytes, now: float) -> bytes | None:
        """Return the bytes to send for a chunk of only short, frequent reads; None if `receive` must take the chunk.

        Call only while `ordinary`.
        """
        self._ground.coverage.look()
        out = self.reads.guard_at_once(data, now)
        if out is not None:
            self._note_state()
        return out

    def keep(self, data: bytes) -> bytes:
        """Keep bytes from the client, for `go_on` to judge later."""
        self._expect(data)
        self.intake.keep(data)
        self._note_state()
        return b""

    def _expect(self, data: bytes) -> None:
        if not self.intake.reader.within and not self._standing.is_stranger:
            self._announcing.expect(data, more=self.intake.waits)

    def resume(self, now: float, *, answered: bool = True) -> bytes:
        """Go on after the engine has answered `question`.

        Args:
            now: the server's clock, in Unix ms.
            answered: whether the engine has answered; if not, the session does what it can on the client's connection.

        Returns:
            The bytes to send upstream. There may be another `question`.

        Raises:
            RequestTooLargeError: the buffer of a request would exceed `request_limit`.
            RefusedAtItsHeadError: a request must be refused before it is complete.
            OvertakenError: an upload must be cut off, because one of its keys has got deadlines.
        """
        self._ground.coverage.look()
        judge, intake = self._judge, self.intake
        question, pending = judge.take()
        if question is not None and question.login and self._standing.is_stranger:
            if pending is None:
                what, beginning = strangers.what_is_too_much(intake.reader)
                raise intake.refused_at_its_head(what, beginning)
            judge.turn_down(pending)
        elif pending is not None and pending.kind in (Kind.BODY, Kind.BROKEN):
            if pending.kind is Kind.BROKEN:
                judge.break_off()
            self._out.append(pending.raw)
            intake.follow(pending)
        elif pending is not None and question is not None:
            judge.judge_again(pending, question, now, answered=answered)
        out = intake.read_exactly(now)
        self._note_state()
        return out

    def go_on(self, now: float) -> bytes:
        """Judge more of the received bytes while `unfinished`; see `receive`."""
        out = self.intake.go_on(now)
        self._note_state()
        return out

    def close(self) -> None:
        """Note that the client has gone: other clients no longer wait for its requests, and no replies are expected."""
        self._multi.abandon()
        self._upload.close()
        self.reads.close()
        self.replies.close()
        # Drop the expected replies: they refer back to this session, and the cycle would keep both in memory.
        self.replies = self._standing.replies = ReplySubstitution()

    def lengthen(self) -> None:
        """Note that a long chunk has been sent: other connections may have to wait until it has run.

        They do not wait for a user with limited permissions: any such user could hold them all up. Nor do they wait
        for queued requests, which run only with their EXEC.
        """
        standing = self._standing
        if self._standing.is_stranger or standing.limited or standing.rights.unasked:
            return
        if standing.transaction is not None:
            if standing.transaction.is_long:
                return
            standing.transaction.is_long = True  # count this chunk now, too: it may begin before MULTI
        self._ground.streams.lengthen(self.pipeline)

    def sign(self, found: Callable[[], None]) -> bytes | None:
        """Return a sign that calls `found` when all requests before it have been answered; None if not possible."""
        if self._standing.transaction is not None or self.intake.is_in_part or not self._standing.askable:
            return None
        return self._take_out() + self._out.expect(b"", found=found)

    def read_again(self, late: list[Late], now: float) -> bytes:
        """Return the bytes that send late reads again; `now` in Unix ms.

        Due members of their keys must be removed first.
        """
        self.reads.send_again(late, now)
        return self._take_out()

    def take_settled(self) -> bool:
        """Return whether the last read under way has been answered since the previous call; now none is under way."""
        if not self.reads.take_settled():
            return False
        self._note_state()
        return True

    def drain(self) -> bytes | None:
        """Return a sign that shows when all requests so far have been answered.

        Returns:
            The bytes to send; `replies.outstanding` turns false when the sign's reply has come. None if no sign is
            possible: a request has been sent in part, or the server reads no further.
        """
        if self.intake.is_in_part or self._standing.end is End.BROKEN:
            return None
        joined = self._standing.next is not _FREE  # after CLIENT CACHING or ASKING only a loud sign is possible
        return self._take_out() + self._out.expect(b"", fails=joined)

    @property
    def owes(self) -> bool:
        """Whether the sign in front of a half-sent or rejected request is still unanswered."""
        return self._out.last_sign >= self.replies.settled

    def probe(self) -> bytes | None:
        """Return a loud sign, whose reply shows whether the server refused a silent one; None if not possible."""
        if self.intake.is_in_part or self._standing.next is not _FREE:
            return None
        standing = self._standing
        greets = self.replies.may_want_login and standing.transaction is None and standing.greets
        return self._take_out() + self.replies.expect(b"", by_greeting=greets)

    def ask_who(self, hear: Callable[[Identity | None], None]) -> bytes | None:
        """Return the request for this connection's identity, to be sent after everything so far.

        Args:
            hear: called with the identity after all earlier replies; with None if the client cannot use shared
                connections.

        Returns:
            The bytes to send. None if that is not possible now.
        """
        standing = self._standing
        if (
            not self._is_between
            or not standing.askable
            or standing.caches
            or standing.unlike
            or standing.end is End.QUIT
            or self.replies.silence.suspected
        ):
            return None

        def take(said: bytes) -> bytes:
            told, others = _apart(said)
            hear(who(told))
            return others

        return self._take_out() + standing.replies_for_own().enclose(WHO, take)

    @property
    def user(self) -> bytes:
        """The user that the client last tried to log in as."""
        return self._standing.user

    def joint_check(self, *, transactions: bool = False) -> Callable[[], bool]:
        """Return a function that returns whether the client's requests may go in script calls for several clients.

        Use the function only while nothing goes over the client's own connection. `transactions`: whether the requests
        are transactions.
        """
        together, rights, now = self._together, self._standing.rights, self._ground.now
        if not together.is_between or self.replies.silence.suspected:
            return lambda: False
        if transactions:
            return lambda: rights.is_sure_of_all(now) and together.may_replace_transactions
        return lambda: rights.is_sure_of_all(now)

    def share(self) -> None:
        """Note that the client's requests go over shared connections."""
        self._standing.shares = True

    def share_no_more(self) -> None:
        """Note that the client may not use shared connections: its state does not show in CLIENT INFO."""
        self._standing.unlike = True

    def discard(self) -> None:
        """Drop received bytes that have not been sent: the client is disconnected, so only replies still matter."""
        self.intake.discard()
        self._announcing.expected = frozenset()

    def _note_state(self) -> None:
        standing = self._standing
        self._is_between = self.intake.is_empty and not (
            standing.transaction is not None
            or standing.login is _STRANGER
            or standing.next is not _FREE
            or standing.is_link
        )
        self.ordinary = self._is_between and not (self.reads.under_way or self._out.loss.awaits_next)
        if self._announcing.expected and self.question is None and not self.unfinished:
            self._announcing.expected = frozenset()

    def _take_out(self) -> bytes:
        self.reads.quiet = False
        return self.intake.take_out()


def _apart(said: bytes) -> tuple[bytes, bytes]:
    """Return the reply to the proxy's own request, which is not an array, and the pushes around it."""
    parts = frames(said)
    own = [part for part in parts if part[:1] not in b">*"]
    return own[0] if own else b"", b"".join(part for part in parts if part[:1] in b">*")
