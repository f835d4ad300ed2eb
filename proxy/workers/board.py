"""Numbers in shared memory that all workers of a proxy see. Each number is written by one worker only.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from typing import Final

BEAT_SECONDS: Final = 0.25
"""How often a worker shows that its event loop runs."""

_CELL: Final = 8  # bytes; a cell is written at once, so that nobody reads half of one


class Board:
    """The numbers.

    Args:
        descriptor: of the memory, as `make` has returned it.
        workers: how many workers there are.
    """

    def __init__(self, descriptor: int, workers: int) -> None:
        size = _size(workers)
        self._workers = workers
        self._cells = memoryview(mmap.mmap(descriptor, size * _CELL)).cast("q")
        # For each worker: its clients, bytes of requests that it holds, when it last showed to be alive, and how many
        # clients it has got from others. Then, for each worker, how many each of the others has sent it.
        self._clients, self._held, self._beats, self._received = range(0, 4 * workers, workers)
        self._sent = 4 * workers

    @staticmethod
    def make(workers: int) -> int:
        """Make the memory, all zeros, and return its descriptor."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("expiremember-proxy")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _size(workers) * _CELL)
        return descriptor

    # What a worker writes: `worker` is its own number, from 0 on.

    def set_clients(self, worker: int, clients: int) -> None:
        """Note how many clients a worker has."""
        self._cells[self._clients + worker] = clients

    def set_held(self, worker: int, size: int) -> None:
        """Note how many bytes of requests a worker holds."""
        self._cells[self._held + worker] = size

    def beat(self, worker: int) -> None:
        """Show that the event loop of a worker runs."""
        self._cells[self._beats + worker] = time.monotonic_ns()

    def receive(self, worker: int) -> None:
        """Note that a worker has got a client from another."""
        self._cells[self._received + worker] += 1

    def send(self, worker: int, to: int, clients: int = 1) -> None:
        """Note that a worker sends a client to another; -1 clients take it back."""
        self._cells[self._sent + to * self._workers + worker] += clients

    # What everybody reads.

    def clients_of(self, worker: int) -> int:
        """Return how many clients a worker has, or is about to get from others."""
        begin = self._sent + worker * self._workers
        sent = sum(self._cells[begin : begin + self._workers])
        return self._cells[self._clients + worker] + sent - self._cells[self._received + worker]

    def clients(self) -> int:
        """Return how many clients all workers have together."""
        sent = sum(self._cells[self._sent :])
        return self._row(self._clients) + sent - self._row(self._received)

    def held(self) -> int:
        """Return how many bytes of requests all workers hold together."""
        return self._row(self._held)

    def has_begun(self, worker: int) -> bool:
        """Return whether the event loop of a worker has run."""
        return self._cells[self._beats + worker] > 0

    def silent_seconds(self, worker: int) -> float:
        """Return how long ago a worker has shown that its event loop runs; very long if it has not begun."""
        return (time.monotonic_ns() - self._cells[self._beats + worker]) / 1e9

    def _row(self, begin: int) -> int:
        return sum(self._cells[begin : begin + self._workers])


def _size(workers: int) -> int:
    return workers * (4 + workers)
