"""Run work later or in a task so that its exceptions are handled: a connection must not stay half open.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def guarded(work: Callable[[], None], fail: Callable[[BaseException], None]) -> Callable[[], None]:
    """Wrap work for the loop to call; exceptions go to `fail`."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
            fail(error)

    return run


def start(work: Coroutine[Any, Any, None], fail: Callable[[BaseException], None]) -> asyncio.Task[None]:
    """Start work as a task; exceptions go to `fail`."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            fail(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
