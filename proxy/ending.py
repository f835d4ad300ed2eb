"""Cancel long-running tasks, and wait until they finish.

Its tests: tests/test_sentinel_trouble.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they finish, even if the caller is cancelled meanwhile.

    Cancelling once is not always enough: redis-py may swallow a cancellation during a call, and the task continues.
    Exceptions of the tasks are ignored.

    Raises:
        CancelledError: the caller was cancelled. Even then all tasks have finished.
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
            task.exception()  # reading it keeps the loop from reporting it as unhandled
    if cancelled is not None:
        raise cancelled
