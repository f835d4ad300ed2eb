"""One worker's view of the others: which worker takes a new client, and the limits that hold for all together.

Its tests: tests/test_workers.py.

The kernel spreads clients by chance, and of clients that come one by one to a Unix socket may give all to the same
worker. So a worker that has more clients than another hands a new one over to that one, before anything is read from
it. Nothing is sent on behalf of a client between workers after that.
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
"""A worker that has been silent for so long gets no clients from others."""

_AT_ONCE: Final = 100
"""Clients of others that are taken before the own ones get their turn."""

_INBOX: Final = socket.SOCK_SEQPACKET if sys.platform.startswith("linux") else socket.SOCK_DGRAM
"""Both keep messages apart; Linux has room for ten datagrams only, and other systems lack the former."""


def inbox() -> tuple[socket.socket, socket.socket]:
    """Make the way by which a worker gets clients from others: the end to receive, and the end to send, of all."""
    return socket.socketpair(socket.AF_UNIX, _INBOX)


class Fellows(Others):
    """The other workers of the same proxy.

    Args:
        board: what all see.
        worker: this worker's number, from 0 on.
        inbox: where others send clients to.
        fellows: number → where to send clients to, for each of the others.
        limit: clients that this process may have, for want of files.
        most: clients of all together; 0 for as many as there are files for.
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
        """Begin to take clients from other workers."""
        self._take = take
        asyncio.get_running_loop().add_reader(self._inbox, self._receive, take)

    def end(self) -> None:
        """Take no more clients from other workers, and send them none. Harmless when not begun."""
        if self._inbox.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._inbox)
        if self._take is not None:  # those that others have sent meanwhile; from now on they cannot
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
        # Counted first: of two workers that ask at the same time for the last place, one may get it or none, not both.
        self.note(clients + 1)
        if self._most and self._board.clients() > self._most:
            self.note(clients)
            return False
        return True

    def note(self, clients: int) -> None:
        """Note how many clients this process has."""
        self._board.set_clients(self._worker, clients)

    def hand_over(self, client: socket.socket, listener: int, clients: int) -> bool:
        """Hand a client over to the worker that has the fewest, if that are fewer than this one's."""
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
        except OSError:  # its inbox is full, or it has gone
            board.send(self._worker, best, -1)
            return False
        client.close()
        return True

    def _receive(self, take: Take) -> bool:
        """Take clients that others have sent; return whether there may be more."""
        for _ in range(_AT_ONCE):
            try:
                number, descriptors, _, _ = socket.recv_fds(self._inbox, 16, 1)
            except (BlockingIOError, InterruptedError):
                return False
            if not number:  # there are no others any more
                asyncio.get_running_loop().remove_reader(self._inbox)
                return False
            self._board.receive(self._worker)
            for descriptor in descriptors:  # none, where this process is out of files: the client has been closed
                client = socket.socket(fileno=descriptor)
                client.setblocking(False)
                take(client, int(number))
        return True


class SharedBudget(HeldBudget):
    """The bytes of held requests, over all connections of all workers.

    Args:
        limit: how many there may be (`held_limit`).
        request_limit: how many of a single request.
        board: what all workers see.
        worker: this worker's number, from 0 on.
    """

    def __init__(self, limit: int, request_limit: int, board: Board, worker: int) -> None:
        super().__init__(limit, request_limit)
        self._board = board
        self._worker = worker

    def account(self, before: int, after: int, unsent: int = 0) -> bool:
        """Take a connection's new figure into account, and return whether it is still allowed."""
        if before == after:
            return True
        self.note(before, after)
        self._board.set_held(self._worker, self.total)
        return after - unsent <= ALWAYS_ALLOWED or after <= before or self._board.held() <= self.limit
