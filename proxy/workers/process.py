"""A worker as the supervisor sees it: its process, and the messages from it and to it.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from proxy.metrics.table import Sample
from proxy.status.report import Report
from proxy.workers.messages import LONGEST, STARTING, Assignment, News, Order, pack_order, unpack_metrics, unpack_news

START: Final = Path(__file__).with_name("start.py")

METRICS_SECONDS: Final = 4.0
"""How long a worker has to tell its metrics: less than a scrape usually waits."""

_LAST_SECONDS: Final = 2.0
"""How long a worker may live that tells nothing any more."""


class WorkerProcess:
    """A worker.

    Args:
        number: its number, from 1 on.
        stop: called when it got a signal that asks the proxy to stop.

    Attributes:
        number: the same.
        ready: set when it serves clients for the first time.
        obstacle: what stands in the way of serving clients, or None.
        upstream_state: the state of the upstream when it became ready.
        unusable: why it cannot use a setting, if that is so.
        ended: whether it has ended.
    """

    def __init__(self, number: int, stop: Callable[[], None]) -> None:
        self.number = number
        self.ready = asyncio.Event()
        self.obstacle: str | None = STARTING
        self.upstream_state = ""
        self.unusable: str | None = None
        self.ended = False
        self._stop = stop
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[News, asyncio.Future[Any]] = {}

    async def start(self, assignment: Assignment, descriptors: Iterable[int]) -> None:
        """Start the process.

        Args:
            assignment: what it is told first.
            descriptors: the files that it inherits.

        Raises:
            OSError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    # Not from its own folder: modules there have names that others may have.
                    *("-P", str(START), str(self.number)),
                    stdin=theirs.fileno(),
                    pass_fds=tuple(descriptors),
                )
                self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST)
            except BaseException:
                ours.close()
                self.kill()
                raise
        self._writer.write(assignment.pack())

    async def run(self) -> int:
        """Take what it tells until it ends.

        Returns:
            Its exit status; the signal's number, negative, where a signal ended it.
        """
        assert self._process is not None
        with contextlib.suppress(OSError, ValueError):  # a line that is too long, or no message, is the last one
            await self._listen()
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()
        finally:
            self.ended = True
            if self._writer is not None:
                self._writer.close()

    async def _listen(self) -> None:
        assert self._reader is not None
        while line := await self._reader.readline():
            self._take(*unpack_news(line))

    def _take(self, news: News, what: Any) -> None:
        if news is News.READY:
            self.upstream_state = str(what)
            self.ready.set()
        elif news is News.OBSTACLE:
            self.obstacle = what
        elif news is News.STOP:
            self._stop()
        elif news is News.UNUSABLE:
            self.unusable = str(what)
        elif (asked := self._asked.pop(news, None)) is not None and not asked.done():
            asked.set_result(what)

    def tell(self, order: Order) -> None:
        """Tell it something, if it is there."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_order(order))

    async def metrics(self) -> dict[str, list[Sample]] | None:
        """Return its metrics; None if it does not tell them in time."""
        told = await self._ask(Order.METRICS, METRICS_SECONDS)
        return None if told is None else unpack_metrics(told)

    async def report(self, seconds: float) -> Report | None:
        """Return how it is; None if it does not tell it in so many seconds."""
        told = await self._ask(Order.REPORT, seconds)
        return None if told is None else Report.unpack(told)

    async def look(self, seconds: float) -> dict[str, Any] | str | None:
        """Return what it finds at the server, or why it finds nothing; None if it does not tell it in time."""
        found: dict[str, Any] | str | None = await self._ask(Order.LOOK, seconds)
        return found

    async def _ask(self, order: Order, seconds: float) -> Any:
        """Return what it answers; None if it does not in time. It is not asked for the same again before it has."""
        if self._writer is None or self._writer.is_closing():
            return None
        news = News(order.value)
        if (asked := self._asked.get(news)) is None:
            asked = self._asked[news] = asyncio.get_running_loop().create_future()
            self.tell(order)
        done, _ = await asyncio.wait((asked,), timeout=seconds)
        return done.pop().result() if done else None

    def kill(self) -> None:
        """End it at once. Harmless when it has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
