"""One client's stream of requests, without I/O: bytes in; bytes for upstream, sometimes a question for the engine, out.

Its tests: tests/test_session.py.

Every request becomes exactly one upstream request, in order, so replies need no parsing. `Intake` cuts the stream into
requests, `Judge` finds out what each has to wait for, and `Dispatch` sends it, or what goes in its place.
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
from proxy.session.multi import Multi
from proxy.session.outgoing import Outgoing
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
_SKIPPED = Next.SKIPPED
_STRANGER = Login.STRANGER


class Session:
    """The state of one client connection.

    Args:
        ground: what all sessions stand on.
        rights: what the user may do; everything where not given.
        stranger: whether the server wants a login that the client has not shown yet; `login` ends it.

    Attributes:
        ordinary: whether the stream stands between two requests, outside of a transaction and with nothing held. Then
            what `ground.is_plain` accepts can go upstream without `receive`.
        replies: what the replies from upstream have to pass through while `replies.outstanding`.
        pipeline: stands for the connection where others wait for what it has sent.
        reads: the reads under way.
        intake: what has come, and has not been sent on.
    """

    def __init__(self, ground: Ground, *, stranger: bool = False, rights: Rights | None = None) -> None:
        self.ordinary = self._is_between = not stranger
        self.pipeline = Pipeline()
        self._ground = ground
        # None of these knows the session, which therefore goes with the last reference to it.
        self._standing = standing = Standing(rights or Rights(), Login.STRANGER if stranger else Login.OPEN)
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
        """What the engine is to do before the session can go on; None while it is not held up."""
        return self._judge.question

    @property
    def blocker(self) -> int:
        """Changes with each request sent on that may keep what follows it from running."""
        return self._out.blocker

    @property
    def stranger(self) -> bool:
        """Whether the client has still to log in, as far as is known."""
        return self._standing.login is _STRANGER

    @property
    def unfinished(self) -> bool:
        """Whether more of what has come can be judged at once, by `go_on`."""
        return self.intake.unfinished

    @property
    def held(self) -> int:
        """Bytes, about, that requests take which have been received and not been sent on."""
        transaction = self._standing.transaction
        queued = self._standing.watched.size + (transaction.size if transaction is not None else 0)
        return self.intake.held + self.replies.waiting + queued

    @property
    def hears_unasked(self) -> bool:
        """Whether the server may tell the client something that it has not asked for: messages, changes, commands."""
        standing = self._standing
        return standing.subscriptions.begun or standing.caches or standing.rights.by_state

    @property
    def may_block(self) -> bool:
        """Whether a request may keep what follows it from running: unless a sign behind it has been answered."""
        return self.blocker >= self.replies.settled or self._standing.is_link

    @property
    def answers(self) -> bool:
        """Whether the server would answer the next request."""
        return self._standing.answers

    @property
    def has_begun_transaction(self) -> Callable[[], bool] | None:
        """Returns whether all that was sent before the open transaction has been answered; None: see `sign`."""
        transaction = self._standing.transaction
        return transaction.has_begun if transaction is not None else None

    @property
    def waits_for_login(self) -> bool:
        """Whether the question is whether the client has logged in."""
        return self.question is not None and self.question.login

    def login(self) -> None:
        """Note that the server's replies have shown the client to be logged in."""
        if self.stranger:
            self._standing.login = Login.ADMITTED
            self._ground.coverage.visit(self._strangers.visited)
        self._note_state()

    def receive(self, data: bytes, now: float) -> bytes:
        """Take bytes from the client.

        Args:
            data: the bytes.
            now: the server's clock, in Unix ms.

        Returns:
            The bytes to send upstream. Look at `question` afterwards.

        Raises:
            RequestTooLargeError: more would have to be held than `request_limit` allows.
            RefusedAtItsHeadError: it is to be refused before it is complete.
            OvertakenError: it must not be completed any more.
        """
        self._expect(data)
        self.reads.quiet = False
        out = self.intake.receive(data, now)
        self._note_state()
        return out

    def guard(self, data: bytes, now: float) -> bytes | None:
        """Take bytes while `ordinary`, if they are nothing but reads of the frequent form; return what to send."""
        self._ground.coverage.look()
        out = self.reads.guard_at_once(data, now)
        if out is not None:
            self._note_state()
        return out

    def keep(self, data: bytes) -> bytes:
        """Take bytes from the client that are to be judged later, by `go_on`. Nothing is to be sent for them yet."""
        self._expect(data)
        self.intake.keep(data)
        self._note_state()
        return b""

    def _expect(self, data: bytes) -> None:
        if not self.intake.reader.within and not self.stranger:
            self._announcing.expect(data, more=self.intake.waits)

    def resume(self, now: float, *, answered: bool = True) -> bytes:
        """Go on after the engine has dealt with `question`.

        Args:
            now: the server's clock, in Unix ms.
            answered: whether it has; otherwise what can be done on the client's own connection is done there.

        Returns:
            The bytes to send upstream. There may be another `question`.

        Raises:
            RequestTooLargeError: more would have to be held than `request_limit` allows.
            RefusedAtItsHeadError: it is to be refused before it is complete.
            OvertakenError: it must not be completed any more.
        """
        self._ground.coverage.look()
        judge, intake = self._judge, self.intake
        question, pending = judge.take()
        if question is not None and question.login and self.stranger:
            if pending is None:
                what, beginning = strangers.what_is_too_much(intake.reader)
                raise intake.refused_at_its_head(what, beginning)
            self._strangers.turn_down(pending)
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
        """Judge more of what has come, while `unfinished`; as `receive`."""
        out = self.intake.go_on(now)
        self._note_state()
        return out

    def close(self) -> None:
        """Let go of what outlives requests: the client has gone."""
        self._multi.end()
        self._upload.close()
        self.replies = self._standing.replies = ReplySubstitution()  # those expected refer to parts of this session

    def lengthen(self) -> None:
        """Note that a long chunk has been sent: others may have to wait until it has run. Nobody waits for a user who
        may do little: such a one could hold up all; nor for what is queued, which runs with its EXEC."""
        standing = self._standing
        if self.stranger or standing.limited or standing.rights.unasked:
            return
        if standing.transaction is not None:
            if standing.transaction.is_long:
                return
            standing.transaction.is_long = True  # this chunk may have begun before it
        self._ground.streams.lengthen(self.pipeline)

    def sign(self, found: Callable[[], None]) -> bytes | None:
        """Return a request that shows, by `found`, that all before it has been answered; None where none may stand."""
        if self._standing.transaction is not None or self.intake.is_in_part or not self._standing.askable:
            return None
        return self._take_out() + self._out.expect(b"", found=found)

    def read_again(self, late: list[Late], now: float) -> bytes:
        """Return what sends reads once more whose replies have come too late; `now` in Unix ms.

        What is due in their keys has to be removed first.
        """
        self.reads.send_again(late, now)
        return self._take_out()

    def take_settled(self) -> bool:
        """Return whether the last of the reads under way has been answered since this was last asked."""
        if not self.reads.take_settled():
            return False
        self._note_state()
        return True

    def drain(self, last_words: bytes = b"") -> bytes | None:
        """Ask upstream for a sign that every request so far has been answered.

        Args:
            last_words: what the client is to get in its place, behind all replies.

        Returns:
            What to send; `replies.outstanding` turns false when the sign has come. None where none can come: a request
            has been sent in part, or the server reads no further.
        """
        if self.intake.is_in_part or self._standing.end is End.MUTE:
            return None
        if self._standing.next is _SKIPPED:
            self._out.append(self._out.expect(b"", fails=True))  # of which the server tells nothing
            self._standing.next = _FREE
        return self._take_out() + self._out.expect(last_words, fails=bool(last_words))

    @property
    def owes(self) -> bool:
        """Whether something is still to be answered that stands in front of what there is no sign behind."""
        return self._out.fenced >= self.replies.settled

    def probe(self) -> bytes | None:
        """Return the loud sign that shows whether a silent one has been refused; None where none may stand."""
        if self.intake.is_in_part or self._standing.next is not _FREE:
            return None
        return self._take_out() + self.replies.expect(b"")

    def ask_who(self, hear: Callable[[Identity | None], None]) -> bytes | None:
        """Ask the server, behind all that has been sent, whose this connection is.

        Args:
            hear: gets the answer when all before it has been answered; None where others may not have the same.

        Returns:
            What to send. None where it cannot be asked now.
        """
        standing = self._standing
        if (
            not self._is_between
            or not standing.askable
            or standing.caches
            or standing.unlike
            or standing.end is End.QUIT
        ):
            return None

        def take(said: bytes) -> bytes:
            told, others = _apart(said)
            hear(who(told))
            return others

        return self._take_out() + standing.marked.enclose(WHO, take)

    @property
    def user(self) -> bytes:
        """As whom the client has last asked to be."""
        return self._standing.user

    def may_go_jointly(self, now: float) -> bool:
        """Return whether a request that comes next, and alone, may be done by a script for several clients."""
        return self._together.is_ordinary(now)

    def share(self) -> None:
        """Note that requests of the client's go over connections that are not its own."""
        self._standing.shares = True

    def share_no_more(self) -> None:
        """Note that the connection is in a state that the server does not tell of."""
        self._standing.unlike = True

    def discard(self) -> None:
        """Forget what has come and has not been sent: the client is turned away, and only replies matter."""
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
        self.ordinary = self._is_between and not self.reads.under_way
        if self._announcing.expected and self.question is None and not self.unfinished:
            self._announcing.expected = frozenset()

    def _take_out(self) -> bytes:
        self.reads.quiet = False
        return self.intake.take_out()


def _apart(said: bytes) -> tuple[bytes, bytes]:
    """Return the reply to a request of the proxy's own, which is no array, and what a subscriber gets beside it."""
    parts = frames(said)
    own = [part for part in parts if part[:1] not in b">*"]
    return own[0] if own else b"", b"".join(part for part in parts if part[:1] in b">*")
