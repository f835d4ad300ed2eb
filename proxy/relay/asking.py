"""Answer the questions of held requests by means of the engine, then resume each request in its turn.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from proxy.metrics.table import Metrics
from proxy.relay.later import guarded, start
from proxy.relay.turns import TurnQueue
from proxy.session.question import Question


class Engine(Protocol):
    """The part of the proxy's server object that answers questions.

    Attributes:
        queue: gives connections their turns.
        metrics: the metrics to update.
    """

    queue: TurnQueue
    metrics: Metrics

    async def answer(self, question: Question) -> None:
        """Do what a question requires, or raise ConnectionError or TimeoutError, within a limited time."""


class Asker(Protocol):
    """The connection whose session asks questions."""

    @property
    def waits(self) -> bool:
        """Whether the answer still matters."""

    def ask_for_sign(self) -> bool:
        """Send a sign, to learn when everything sent has been answered; return False if no more replies will come."""

    def regulate(self) -> None:
        """Update flow control: replies are awaited now, or no longer."""

    def resume(self, *, answered: bool) -> None:
        """Go on with the held request; `answered`: whether the question was answered."""


class Asking:
    """The questions of one session, one at a time.

    Args:
        engine: answers the questions.
        asker: the connection.
        fail: closes the connection after an internal error.
    """

    __slots__ = ("_asker", "_engine", "_fail", "_replied", "_task")

    def __init__(self, engine: Engine, asker: Asker, fail: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._asker = asker
        self._fail = fail
        self._task: asyncio.Task[None] | None = None
        self._replied: asyncio.Future[None] | None = None  # set when everything sent so far has been answered

    @property
    def awaits_replies(self) -> bool:
        """Whether a question waits for replies."""
        return self._replied is not None and not self._replied.done()

    def ask(self, question: Question) -> None:
        """Start answering a question. Each question has its own task, and so its own turn."""
        self._task = start(self._answer(question), self._fail)

    def note_replied(self) -> None:
        """Note that the awaited replies have arrived."""
        if self._replied is not None and not self._replied.done():
            self._replied.set_result(None)
            self._asker.regulate()

    def cancel(self) -> None:
        """Cancel the question: the server has gone, or the answer is no longer needed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def end(self) -> None:
        """Stop waiting for replies, and let a running question finish."""
        if self._replied is not None and not self._replied.done():
            self._replied.set_result(None)
        self._task = None

    async def _answer(self, question: Question) -> None:
        engine, asker = self._engine, self._asker
        answered = True
        began = time.monotonic()
        try:
            if question.replied and asker.ask_for_sign():
                self._replied = replied = asyncio.get_running_loop().create_future()
                asker.regulate()
                await replied
            if asker.waits:
                await engine.answer(question)
        except (OSError, TimeoutError):
            answered = False  # the session decides what to do without the answer
        engine.metrics.requests_held_total += 1
        engine.metrics.request_hold_seconds.observe(time.monotonic() - began)
        go_on: Callable[[], None] = partial(asker.resume, answered=answered)
        if engine.queue.is_busy:
            engine.queue.join(guarded(go_on, self._fail), answered=True)
        else:
            go_on()
