"""Judge each request: hold it until a question is answered, or dispatch it.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from functools import partial
from typing import Final

from proxy.commands.table import BLIND, JUDGED, Command, Effect
from proxy.session.announcing import NOT_ANNOUNCED, Announcing
from proxy.session.dispatch import Dispatch
from proxy.session.ground import Ground
from proxy.session.hearing import speaks_of_next
from proxy.session.inquiry import Inquiry
from proxy.session.outgoing import Outgoing
from proxy.session.question import Question
from proxy.session.reads import Reads
from proxy.session.remaining import Remaining
from proxy.session.rewrite import LONGEST_NAME, is_own
from proxy.session.standing import End, Login, Next, Standing
from proxy.session.strangers import Strangers
from proxy.session.upload import Upload
from proxy.session.without_engine import WithoutEngine
from proxy.wire.pieces import Wish
from proxy.wire.request import Kind, Request, RequestReader

_FREE: Final = Next.FREE
_QUIT: Final = End.QUIT
_STRANGER: Final = Login.STRANGER


class Judge:
    """Judges the requests of one connection.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        reader: the reader of the connection's requests.
        dispatch: sends requests, or their replacements.
        reads: the guarded reads under way.
        announcing: finds keys that may get first deadlines.
        inquiry: finds out what the engine must do.
        without: does the engine's work on the client's own connection.
        strangers: judges requests before the login.
        remaining: answers TTL for users with limited permissions.
        upload: tracks requests that are forwarded while they arrive.

    Attributes:
        question: the work that must be done before the connection can go on; None if there is none.
        pending: the request that waits for the answer, if any.
    """

    __slots__ = (
        "_announcing",
        "_dispatch",
        "_ground",
        "_inquiry",
        "_out",
        "_reader",
        "_reads",
        "_remaining",
        "_replied",
        "_standing",
        "_strangers",
        "_upload",
        "_without",
        "pending",
        "question",
    )

    def __init__(
        self,
        ground: Ground,
        standing: Standing,
        out: Outgoing,
        reader: RequestReader,
        dispatch: Dispatch,
        reads: Reads,
        announcing: Announcing,
        inquiry: Inquiry,
        without: WithoutEngine,
        strangers: Strangers,
        remaining: Remaining,
        upload: Upload,
    ) -> None:
        self._ground = ground
        self._standing = standing
        self._out = out
        self._reader = reader
        self._dispatch = dispatch
        self._reads = reads
        self._announcing = announcing
        self._inquiry = inquiry
        self._without = without
        self._strangers = strangers
        self._remaining = remaining
        self._upload = upload
        self.question: Question | None = None
        self.pending: Request | None = None
        self._replied = False  # whether earlier requests had been answered when `question` was set

    def take(self) -> tuple[Question | None, Request | None]:
        """Return and clear the question, whether or not it could be answered, and the request that waits for it."""
        taken = self.question, self.pending
        self.question = self.pending = None
        return taken

    def judge(self, request: Request, now: float, *, replied: bool = False, having: Set[bytes] | None = None) -> None:
        """Send a request, refuse it, or hold it and set the question that must be answered first.

        Args:
            request: the request.
            now: the server's clock, in Unix ms.
            replied: whether the client's earlier requests have been answered since this one came.
            having: its keys that have deadlines, if the server was queried.
        """
        standing = self._standing
        if standing.end is _QUIT or standing.is_link or request.kind in (Kind.BODY, Kind.BROKEN):
            if request.kind is Kind.BROKEN and self._reads.under_way and not replied:
                # The server closes the connection after a broken request: then reads could not be sent again.
                self.question = Question(replied=True, again=True)
                self.pending = request
                self._replied = replied
                return
            if request.kind is Kind.BROKEN:
                self.break_off()
            self._pass(request, now)
            return
        if not request.arguments:
            if request.raw and self._ground.rewriter.empty_counts:
                self._out.wish_here(Wish.HEARD)
            self._out.append(request.raw)
            if standing.next is not _FREE:
                self._out.bind()
            return
        stranger = standing.login is _STRANGER
        if not replied and standing.limited:
            standing.permits.begin()
        if self._ground.guarded and request.kind is Kind.WHOLE:  # `Heads` rejects heads with reserved keys
            refusal = self._ground.rewriter.reserved(request)
            if refusal is not None and not stranger:
                self._out.note_queued()
                self._dispatch.refuse(request, refusal)
                return
        command = self._ground.command(request.arguments[0])
        if len(request.raw) > LONGEST_NAME and request.kind is Kind.WHOLE and command is not None and not stranger:
            refusal = self._ground.rewriter.long_name(command, request.arguments)
            if refusal is not None:
                self._out.note_queued()
                self._dispatch.refuse(request, refusal)
                return
        without = self._without
        if not stranger and self._reads.guard_one(request, now):
            return
        # Most requests have no reason to wait, so check conditions here: that is cheaper than calls.
        question = (
            (self._strangers.question(command, request, now) if stranger else None)
            or (self._behind_reads(command, request) if self._reads.under_way and not replied else None)
            or (self._doubt(command, request, now, replied=replied) if standing.transaction is None else None)
            or (self._permission(command, request) if standing.limited else None)
            or self._announcing.question(command, request)
            or (without.question(command, request, now) if without.unaided else None)
            or (self._time_left(command, request) if standing.limited else None)
            or (self._inquiry.question(command, request, now, replied=replied) if having is None else None)
        )
        if question is not None:
            self.question = question
            self.pending = request
            self._replied = replied
            return
        self._dispatch.send(command, request, now, having=having)
        if standing.permits.unclear and standing.transaction is None:
            self.question = Question(unclear=standing.permits.take_unclear(), replied=standing.askable, again=True)

    def turn_down(self, request: Request) -> None:
        """Let the server reply that the client must log in."""
        if not self._dispatch.send_wish(request):
            self._strangers.turn_down(request)

    def break_off(self) -> None:
        """Note that the server reads nothing after the next request, or after the current upload."""
        standing = self._standing
        # No sign fits into a request that was sent in part.
        if standing.end is not End.BROKEN and not self._reader.broken_within:
            self._out.sign_before_last(loud=True)
        standing.end = End.BROKEN

    def _pass(self, part: Request, now: float) -> None:
        """Send without judging: a later part of a request, invalid bytes, or bytes after QUIT or CLUSTER SYNCSLOTS."""
        if part.kind is Kind.BODY and not self._reader.within:
            self.question = self._upload.last_look()
        if self.question is None:
            self._out.append(part.raw)
        else:
            self.pending = part

    def _behind_reads(self, command: Command | None, request: Request) -> Question | None:
        """Return a question that waits for reads under way, if a request may disturb them."""
        return Question(replied=True, again=True) if self._reads.disturbs(command, request) else None

    def _doubt(self, command: Command | None, request: Request, now: float, *, replied: bool) -> Question | None:
        """If a script might replace a request, query the server for the user's permissions.

        Do not call this in a transaction. `replied`: whether earlier requests have been answered since this one came,
        and with them an earlier query for it: that answer is valid, however long it took.
        """
        rights = self._standing.rights
        if not self._standing.askable or not rights.unsure(now) or (replied and not rights.unasked):
            return None
        concerned = command is not None and (
            self._ground.rewriter.stands_in(command, request)
            or is_own(command, request)
            or (rights.unasked and request.kind is Kind.HEAD and command.effect in JUDGED | BLIND)
            or (rights.unasked and speaks_of_next(request.arguments))
            or (rights.unasked and command.effect is Effect.MULTI and self._first_may_be_set())
        )
        if not concerned and not self._without.shows(command, request):
            return None
        terms = self._ground.rewriter.calls.reading._replace(writes=rights.by_state)
        self._out.append(rights.ask(self._standing.replies_for_own(), now, terms))
        return Question(replied=True, again=True)

    def _first_may_be_set(self) -> bool:
        """Return whether the transaction might set a first deadline that matters: one is expected, or there are other
        proxies."""
        return self._ground.coverage.shared or bool(self._announcing.expected)

    def _permission(self, command: Command | None, request: Request) -> Question | None:
        """Query whether a user with limited permissions may give keys deadlines, before other clients are affected.

        If that is not possible, `judge` finds out afterwards whether the keys have got deadlines.
        """
        standing = self._standing
        if standing.transaction is not None or standing.login is _STRANGER:
            return None
        if command is None or not standing.askable:
            return None
        keys: Collection[bytes]
        if command.effect is Effect.MULTI:
            keys = self._announcing.expected
        else:
            keys = self._announcing.first_keys(request.arguments)
        asked = standing.permits.to_ask(keys, self._announcing.keys_ahead()) if keys else []
        asked = self._ground.rewriter.names.of_one_slot(asked)
        if not asked:
            return None
        self._out.append(
            standing.permits.ask(standing.replies_for_own(), asked, partial(self._ground.rewriter.beside.trial, asked))
        )
        return Question(replied=True, again=True)

    def _time_left(self, command: Command | None, request: Request) -> Question | None:
        """Query the server for the data with which `Remaining` answers TTL for a user with limited permissions."""
        asked = self._remaining.question(command, request)
        if asked is None:
            return None
        look, question = asked
        self._out.append(look)
        return question

    def judge_again(self, request: Request, question: Question, now: float, *, answered: bool) -> None:
        """Go on with a request after its question was answered, or could not be answered."""
        command = self._ground.command(request.arguments[0])
        replied = self._replied or question.replied
        if question.covers and self._announcing.unconfirmed(command, request):
            self._fail_to_announce(command, request, now)
        elif question.again or self._announcing.unconfirmed(command, request):
            self.judge(request, now, replied=replied)
        elif not answered and not self._standing.limited:
            self._without.unaided = True
            self.judge(request, now)
        else:
            self._dispatch.send(command, request, now, having=question.found if question.unclear and answered else None)

    def _fail_to_announce(self, command: Command | None, request: Request, now: float) -> None:
        """Refuse a request, because a key cannot get its first deadline now."""
        self._without.unaided = False
        if command is not None and command.effect is Effect.EXEC:
            self._dispatch.send(command, request, now)  # send EXEC anyway: `Multi` makes the transaction fail
        else:
            self._dispatch.refuse(request, NOT_ANNOUNCED)
