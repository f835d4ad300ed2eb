"""A worker as the supervisor sees it: its process and its messages.

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
"""Time limit for a worker to send its metrics: shorter than the usual scrape timeout."""

_LAST_SECONDS: Final = 2.0
"""How long a worker may live after it has closed its connection to the supervisor."""


class WorkerProcess:
    """A worker's process: starts it, sends it orders and receives its news.

    Args:
        number: its number, counted from 1.
        stop: called when the worker gets a signal that stops the proxy.

    Attributes:
        number: the worker's number.
        ready: set when the worker can serve clients for the first time.
        obstacle: what prevents the worker from serving clients, or None.
        upstream_state: the state of the upstream when the worker became ready.
        unusable: why the worker cannot use a setting, or None.
        ended: whether the process has ended.
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
            assignment: the first message to the process.
            descriptors: the file descriptors that the process inherits.

        Raises:
            OSError: the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    # -P leaves START's folder off sys.path: modules there may shadow others.
                    *("-P", str(START), str(self.number)),
                    stdin=theirs.fileno(),
                    start_new_session=True,  # Ctrl-C is for the supervisor: Python cannot block it while it starts
                    pass_fds=tuple(descriptors),
                )
                self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST)
            except BaseException:
                ours.close()
                self.kill()
                raise
        self._writer.write(assignment.pack())

    async def run(self) -> int:
        """Process the worker's news until it ends.

        Returns:
            The exit status; if a signal ended the process, the signal's number, negated.
        """
        assert self._process is not None
        with contextlib.suppress(OSError, ValueError):  # stop at a line that is too long or not valid
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
        """Send an order, if the worker is connected."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_order(order))

    async def metrics(self) -> dict[str, list[Sample]] | None:
        """Return the worker's metrics; None if they do not arrive in time."""
        told = await self._ask(Order.METRICS, METRICS_SECONDS)
        return None if told is None else unpack_metrics(told)

    async def report(self, seconds: float) -> Report | None:
        """Return the worker's report; None if it does not arrive in time."""
        told = await self._ask(Order.REPORT, seconds)
        return None if told is None else Report.unpack(told)

    async def look(self, seconds: float) -> dict[str, Any] | str | None:
        """Return the server's data for the status page, or a text that says why there is none; None if no answer
        arrives in time."""
        found: dict[str, Any] | str | None = await self._ask(Order.LOOK, seconds)
        return found

    async def _ask(self, order: Order, seconds: float) -> Any:
        """Return the answer to an order; None if it does not arrive in time. An unanswered order is not sent again."""
        if self._writer is None or self._writer.is_closing():
            return None
        news = News(order.value)
        if (asked := self._asked.get(news)) is None:
            asked = self._asked[news] = asyncio.get_running_loop().create_future()
            self.tell(order)
        done, _ = await asyncio.wait((asked,), timeout=seconds)
        return done.pop().result() if done else None

    def kill(self) -> None:
        """Kill the process. Harmless if it has ended."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
