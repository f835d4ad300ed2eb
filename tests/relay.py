"""A TCP relay in front of a server, which can lose what passes, or put something else in its place."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.raw import Address


class Pipe:
    """One connection through the relay.

    Attributes:
        asked: the first bytes that its client has sent.
        answered: how many bytes of replies have been passed on.
        last: those that have been passed on last, a chunk.
        lost: set when whatever is sent from now on, either way, never arrives.
    """

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.asked = b""
        self.answered = 0
        self.last = b""
        self.lost = threading.Event()


class Relay:
    """Passes connections on to a server, until it is closed.

    Args:
        server: the server's address.

    Attributes:
        pipes: the connections so far.
        answers: what the server's replies pass through, a chunk each.
        asks: what goes to the server passes through, likewise.
    """

    def __init__(self, server: Address) -> None:
        assert isinstance(server, tuple)
        self.pipes: list[Pipe] = []
        self.answers: Callable[[bytes], bytes] = bytes
        self.asks: Callable[[bytes], bytes] = bytes
        self._server = server
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self.listener, *(end for pipe in self.pipes for end in (pipe.near, pipe.far))):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def lose(self, asked: bytes) -> int:
        """Lose all that passes from now on in the connections that have asked for something; return how many."""
        chosen = [pipe for pipe in self.pipes if asked in pipe.asked]
        for pipe in chosen:
            pipe.lost.set()
        return len(chosen)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    pipe = Pipe(near, socket.create_connection(self._server))
                except OSError:
                    near.close()
                    continue
                for end in (near, pipe.far):  # what is passed on arrives now, not with the next acknowledgement
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.pipes.append(pipe)
                for way in (self._ask, self._answer):
                    threading.Thread(target=way, args=(pipe,), daemon=True).start()

    def _ask(self, pipe: Pipe) -> None:
        with contextlib.suppress(OSError):
            while data := pipe.near.recv(1 << 16):
                pipe.asked = (pipe.asked + data)[:4096]
                if not pipe.lost.is_set():
                    pipe.far.sendall(self.asks(data))
            pipe.far.shutdown(socket.SHUT_WR)

    def _answer(self, pipe: Pipe) -> None:
        with contextlib.suppress(OSError):
            while data := pipe.far.recv(1 << 16):
                if not pipe.lost.is_set():
                    answer = self.answers(data)
                    pipe.near.sendall(answer)
                    pipe.last = answer
                    pipe.answered += len(answer)
            pipe.near.shutdown(socket.SHUT_WR)
