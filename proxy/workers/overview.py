"""Report the state of all workers as the state of one proxy.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError

from proxy.metrics.table import DECLARATIONS, Metric, Sample
from proxy.notify import Notifier
from proxy.reporting import Reporting
from proxy.status.report import Report
from proxy.workers.board import Board
from proxy.workers.process import WorkerProcess

HUNG_SECONDS: Final = 5.0
"""A worker whose event loop has not run for this long counts as hanging."""

LOOK_SECONDS: Final = 5.0
"""Time limit for a worker to query the server."""


class Overview(Reporting):
    """Reports to systemd and the admin port on behalf of all workers.

    Args:
        notifier: notifies systemd.
        workers: the workers.
        board: the numbers that they share.
    """

    def __init__(self, notifier: Notifier, workers: Sequence[WorkerProcess], board: Board) -> None:
        super().__init__(notifier)
        self._workers = workers
        self._board = board
        self._told: Mapping[int, Mapping[str, list[Sample]]] = {}
        self._gathering: asyncio.Task[None] | None = None
        self._drains = False
        self.readiness.judge_by(self._obstacle)

    def draining(self, *, relieved: bool = False) -> None:
        """Report that no more clients are accepted."""
        self._drains = True
        super().draining(relieved=relieved)

    def silent(self) -> list[WorkerProcess]:
        """Return the running workers that hang."""
        return [
            worker
            for place, worker in enumerate(self._workers)
            if not worker.ended and self._board.has_begun(place) and self._board.silent_seconds(place) > HUNG_SECONDS
        ]

    def hung(self) -> str | None:
        """Return which worker hangs; None if no worker hangs, or while all are being stopped."""
        silent = [] if self._drains else self.silent()
        return f"worker {silent[0].number} does not answer" if silent else None

    def _obstacle(self) -> str | None:
        obstacles = {worker.number: worker.obstacle for worker in self._workers if worker.obstacle is not None}
        if hung := self.hung():
            return hung
        if not obstacles:
            return None
        number, first = next(iter(obstacles.items()))
        together = len(obstacles) == len(self._workers) and len(set(obstacles.values())) == 1
        return first if together else f"worker {number}: {first}"

    # The status page.

    async def reports(self, seconds: float) -> dict[int, Report | None]:
        """Return each worker's report; None for a worker that does not send one in time."""
        told = await asyncio.gather(*(worker.report(seconds) for worker in self._workers))
        return {worker.number: report for worker, report in zip(self._workers, told, strict=True)}

    async def look_at_server(self) -> dict[str, Any] | None:
        """Return the server's data for the status page, from the first responsive worker; None if no worker responds.

        Raises:
            RedisError: the server does not answer.
        """
        silent = self.silent()
        for worker in self._workers:
            if worker.ready.is_set() and not worker.ended and worker not in silent:
                found = await worker.look(LOOK_SECONDS)
                if isinstance(found, str):
                    raise RedisConnectionError(found)
                return found
        return None

    # Metrics.

    async def gather(self) -> None:
        """Fetch the metrics of all workers; concurrent callers share one fetch."""
        if self._gathering is None or self._gathering.done():
            self._gathering = asyncio.get_running_loop().create_task(self._gather())
        await asyncio.shield(self._gathering)

    async def _gather(self) -> None:
        told = await asyncio.gather(*(worker.metrics() for worker in self._workers))
        self._told = {
            worker.number: metrics for worker, metrics in zip(self._workers, told, strict=True) if metrics is not None
        }

    def read(self) -> Iterator[Metric]:
        """Yield every metric, with the worker's number as a label."""
        return merge({worker.number: self._told.get(worker.number) for worker in self._workers})


def merge(told: Mapping[int, Mapping[str, list[Sample]] | None]) -> Iterator[Metric]:
    """Yield every metric of several workers.

    Args:
        told: the number of each worker → its metrics; None if the worker sent none.
    """
    for name, declaration in DECLARATIONS.items():
        samples = []
        for number, metrics in told.items():
            worker = {"worker": str(number)}
            if metrics is not None:
                samples += [Sample({**sample.labels, **worker}, sample.value) for sample in metrics.get(name, ())]
            elif declaration.label == "worker":
                samples.append(Sample(worker, 0.0))
        yield Metric(name, declaration, samples)
