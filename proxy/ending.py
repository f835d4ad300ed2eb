"""End long-running tasks, so that they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they finish.

    Once is not always enough: a cancellation that arrives within a call of redis-py can be lost there, and the task
    goes on. What the tasks raise is not looked at.
    """
    given = list(tasks)
    pending = {task for task in given if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
    for task in given:
        if not task.cancelled():
            task.exception()  # looked at, so that the loop does not complain of it
