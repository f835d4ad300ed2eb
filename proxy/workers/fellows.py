"""Balance clients between workers, and enforce the limits that apply to all workers together.

Its tests: tests/test_workers.py.

The kernel distributes new connections at random, and may give all connections of a Unix socket to the same worker. So
a worker hands a new client over to the worker with the fewest clients, before it reads anything from the client. After
that, nothing is passed between workers on behalf of a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Mapping
from typing import Final

from proxy.listen.others import Others, Take
from proxy.relay.budget import ALWAYS_ALLOWED, HeldBudget
from proxy.workers.board import Board

_SLOW_SECONDS: Final = 1.0
"""Workers that have been silent for this long get no clients from others."""

_AT_ONCE: Final = 100
"""Clients to take from other workers before this worker's own get their turn."""

_INBOX: Final = socket.SOCK_SEQPACKET if sys.platform.startswith("linux") else socket.SOCK_DGRAM
"""Both types preserve message boundaries. Linux queues only ten datagrams; other systems lack SOCK_SEQPACKET."""


def inbox() -> tuple[socket.socket, socket.socket]:
    """Create the sockets for handing clients to a worker: its receiving end, and the sending end for other workers."""
    return socket.socketpair(socket.AF_UNIX, _INBOX)


class Fellows(Others):
    """The other workers of this proxy: exchanges clients with them, and enforces the common limit.

    Args:
        board: the shared numbers.
        worker: this worker's number, counted from 0.
        inbox: the socket on which other workers send clients.
        fellows: for each other worker, its number and the socket for sending it clients.
        limit: maximum number of clients of this process, by its file descriptors.
        most: maximum number of clients of all workers together; 0 if only file descriptors limit them.
    """

    def __init__(
        self,
        board: Board,
        worker: int,
        inbox: socket.socket,
        fellows: Mapping[int, socket.socket],
        limit: int,
        most: int,
    ) -> None:
        super().__init__(limit)
        self._board = board
        self._worker = worker
        self._inbox = inbox
        self._fellows = dict(fellows)
        self._most = most
        self._take: Take | None = None
        for connection in (inbox, *fellows.values()):
            connection.setblocking(False)

    def begin(self, take: Take) -> None:
        """Start accepting clients from other workers."""
        self._take = take
        asyncio.get_running_loop().add_reader(self._inbox, self._receive, take)

    def end(self) -> None:
        """Stop exchanging clients with other workers. Harmless if not begun."""
        if self._inbox.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._inbox)
        if self._take is not None:  # first take the clients already in the inbox; no more can follow
            with contextlib.suppress(OSError):
                self._inbox.shutdown(socket.SHUT_RD)
            while self._receive(self._take):
                pass
        for connection in (self._inbox, *self._fellows.values()):
            connection.close()
        self._fellows.clear()

    def has_room(self, clients: int) -> bool:
        """Return whether there is room for one more client, here and in all workers together."""
        if not super().has_room(clients):
            return False
        # Count before checking: if two workers compete for the last place, at most one of them gets it.
        self.note(clients + 1)
        if self._most and self._board.clients() > self._most:
            self.note(clients)
            return False
        return True

    def note(self, clients: int) -> None:
        """Publish the number of this process's clients."""
        self._board.set_clients(self._worker, clients)

    def hand_over(self, client: socket.socket, listener: int, clients: int) -> bool:
        """Hand a client over to the worker with the fewest clients, unless this worker has as few."""
        board = self._board
        fewest = board.clients_of(self._worker)
        best = self._worker
        for fellow in self._fellows:
            if (count := board.clients_of(fellow)) < fewest and board.silent_seconds(fellow) < _SLOW_SECONDS:
                fewest, best = count, fellow
        if best == self._worker:
            return False
        board.send(self._worker, best)
        try:
            socket.send_fds(self._fellows[best], [b"%d" % listener], [client.fileno()])
        except OSError:  # the other worker's inbox is full, or it has ended
            board.send(self._worker, best, -1)
            return False
        client.close()
        return True

    def _receive(self, take: Take) -> bool:
        """Take clients sent by other workers; return whether there may be more."""
        for _ in range(_AT_ONCE):
            try:
                number, descriptors, _, _ = socket.recv_fds(self._inbox, 16, 1)
            except (BlockingIOError, InterruptedError):
                return False
            if not number:  # all other workers have ended
                asyncio.get_running_loop().remove_reader(self._inbox)
                return False
            self._board.receive(self._worker)
            for descriptor in descriptors:  # empty if no descriptor was free: the kernel then closed the client
                client = socket.socket(fileno=descriptor)
                client.setblocking(False)
                take(client, int(number))
        return True


class SharedBudget(HeldBudget):
    """Limits the bytes of held requests, summed over all workers.

    Args:
        limit: bytes for all requests (`held_limit`).
        request_limit: bytes for a single request.
        board: the shared numbers.
        worker: this worker's number, counted from 0.
    """

    def __init__(self, limit: int, request_limit: int, board: Board, worker: int) -> None:
        super().__init__(limit, request_limit)
        self._board = board
        self._worker = worker

    def account(self, before: int, after: int, unsent: int = 0) -> bool:
        """Record a connection's new number of bytes; return whether it may hold that many."""
        if before == after:
            return True
        self.note(before, after)
        self._board.set_held(self._worker, self.total)
        return after - unsent <= ALWAYS_ALLOWED or after <= before or self._board.held() <= self.limit
