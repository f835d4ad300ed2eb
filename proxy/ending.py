"""End long-running tasks, and wait until they have ended.

Its tests: tests/test_sentinel_trouble.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they finish, even when the caller is cancelled meanwhile.

    Once is not always enough: a cancellation that arrives within a call of redis-py can be lost there, and the task
    goes on. What the tasks raise is not looked at.

    Raises:
        CancelledError: the caller has been cancelled; the tasks have finished.
    """
    given = list(tasks)
    pending = {task for task in given if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while pending:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
        pending = {task for task in pending if not task.done()}
    for task in given:
        if not task.cancelled():
            task.exception()  # read it, so that the loop does not report it as unhandled
    if cancelled is not None:
        raise cancelled
