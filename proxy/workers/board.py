"""Share numbers between all workers of a proxy, in shared memory. Each number has a single writer.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from typing import Final

BEAT_SECONDS: Final = 0.25
"""Interval at which a worker shows that its event loop runs."""

_CELL: Final = 8  # bytes; each write is one aligned access, so readers never see half a number


class Board:
    """The numbers that all workers share: clients, held bytes, and when each event loop last ran.

    Args:
        descriptor: the shared memory, as returned by `make`.
        workers: the number of workers.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        size = _size(workers)
        self._workers = workers
        self._cells = memoryview(mmap.mmap(descriptor, size * _CELL)).cast("q")
        # One row each: clients, held bytes of requests, time of the last beat, clients received from other workers.
        # Then one row per worker: how many clients each other worker has sent it.
        self._clients, self._held, self._beats, self._received = range(0, 4 * workers, workers)
        self._sent = 4 * workers

    @staticmethod
    def make(workers: int) -> int:
        """Create the shared memory, filled with zeros, and return its descriptor."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("expiremember-proxy")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _size(workers) * _CELL)
        return descriptor

    # Writing: `worker` is the caller's own number, counted from 0.

    def set_clients(self, worker: int, clients: int) -> None:
        """Set the number of a worker's clients."""
        self._cells[self._clients + worker] = clients

    def set_held(self, worker: int, size: int) -> None:
        """Set the bytes of requests that a worker holds."""
        self._cells[self._held + worker] = size

    def beat(self, worker: int) -> None:
        """Record that a worker's event loop runs."""
        self._cells[self._beats + worker] = time.monotonic_ns()

    def receive(self, worker: int) -> None:
        """Count a client that a worker received from another."""
        self._cells[self._received + worker] += 1

    def send(self, worker: int, to: int, clients: int = 1) -> None:
        """Count clients sent from one worker to another; with -1, take one back."""
        self._cells[self._sent + to * self._workers + worker] += clients

    # Reading: any worker, and the supervisor.

    def clients_of(self, worker: int) -> int:
        """Return how many clients a worker has, including those on their way to it."""
        begin = self._sent + worker * self._workers
        sent = sum(self._cells[begin : begin + self._workers])
        return self._cells[self._clients + worker] + sent - self._cells[self._received + worker]

    def clients(self) -> int:
        """Return the number of clients of all workers."""
        sent = sum(self._cells[self._sent :])
        return self._row(self._clients) + sent - self._row(self._received)

    def held(self) -> int:
        """Return the bytes of requests that all workers hold."""
        return self._row(self._held)

    def has_begun(self, worker: int) -> bool:
        """Return whether a worker's event loop has started."""
        return self._cells[self._beats + worker] > 0

    def silent_seconds(self, worker: int) -> float:
        """Return the time since a worker's event loop last ran; very long if it has not started."""
        return (time.monotonic_ns() - self._cells[self._beats + worker]) / 1e9

    def _row(self, begin: int) -> int:
        return sum(self._cells[begin : begin + self._workers])


def _size(workers: int) -> int:
    return workers * (4 + workers)
