"""End long-running tasks, and describe why they failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.exceptions import RedisError

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


def one_line(error: Exception) -> str:
    """Return what an error says, on one line; its type too if it does not come from the server or the network."""
    text = " ".join(str(error).split())
    if text and is_outage(error):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_outage(error: Exception) -> bool:
    """Return whether the server refused, or could not be reached; any other error comes from a nonsensical reply."""
    return isinstance(error, RedisError | OSError | TimeoutError)
