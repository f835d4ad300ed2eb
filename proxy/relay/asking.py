"""Have done what a session asks for: when what was sent before has been answered, if need be, and then go on in turn.

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
    """Who does it.

    Attributes:
        queue: gives connections their turns.
        metrics: where to count.
    """

    queue: TurnQueue
    metrics: Metrics

    async def answer(self, question: Question) -> None:
        """Do what a session asks for. Raises ConnectionError or TimeoutError, bounded in time."""


class Asker(Protocol):
    """The connection whose session asks."""

    @property
    def waits(self) -> bool:
        """Whether the answer still matters."""

    def ask_for_sign(self) -> bool:
        """Ask for a sign that all that was sent has been answered; return False where none is to come."""

    def regulate(self) -> None:
        """Note that replies are awaited, or no more."""

    def resume(self, *, answered: bool) -> None:
        """Go on; `answered`: whether it has been done."""


class Asking:
    """What one session asks for, one question at a time.

    Args:
        engine: does it.
        asker: the connection.
        fail: ends it.
    """

    __slots__ = ("_asker", "_engine", "_fail", "_replied", "_task")

    def __init__(self, engine: Engine, asker: Asker, fail: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._asker = asker
        self._fail = fail
        self._task: asyncio.Task[None] | None = None
        self._replied: asyncio.Future[None] | None = None  # done when everything sent so far has been answered

    @property
    def awaits_replies(self) -> bool:
        """Whether replies have to come first."""
        return self._replied is not None and not self._replied.done()

    def ask(self, question: Question) -> None:
        """Begin with a question. What is asked next has a task, and so a turn, of its own."""
        self._task = start(self._answer(question), self._fail)

    def note_replied(self) -> None:
        """Note that the replies have come."""
        if self._replied is not None and not self._replied.done():
            self._replied.set_result(None)
            self._asker.regulate()

    def cancel(self) -> None:
        """Give up: the server has gone, or nobody waits any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def end(self) -> None:
        """Wait for no more replies, and let what is under way come to its end."""
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
            answered = False  # the session goes on without
        engine.metrics.requests_held_total += 1
        engine.metrics.request_hold_seconds.observe(time.monotonic() - began)
        go_on: Callable[[], None] = partial(asker.resume, answered=answered)
        if engine.queue.is_busy:
            engine.queue.join(guarded(go_on, self._fail), answered=True)
        else:
            go_on()
