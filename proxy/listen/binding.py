"""Bind all listening addresses, for one process or for several that share them.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy.listen.given import Given
from proxy.listen.sockets import Marks, SocketFile, bind, bind_path, clear_socket, why_not
from proxy.loop import look_up
from proxy.settings import Settings, SettingsError, TCPAddress, parse_address
from proxy.upstream import tcp

BACKLOG: Final = 4096
"""Number of connections that the system accepts for a busy proxy, if `net.core.somaxconn` allows so many. It drops
further attempts, and a client tries again after a second."""

FileAt = Callable[[Path, Marks | None], SocketFile]

_SPREADS: Final = sys.platform.startswith("linux")
"""Whether the kernel distributes clients over the sockets that are bound to one address."""


@dataclass(slots=True)
class Listener:
    """A listening socket.

    Attributes:
        socket: the socket.
        tls: whether clients speak TLS there.
        file: the file of a Unix socket to remove at the end, unless systemd removes it.
        name: the address, as in the settings.
        pause: the timer that ends a pause in accepting.
    """

    socket: socket.socket
    tls: bool = False
    file: SocketFile | None = None
    name: str = ""
    pause: asyncio.TimerHandle | None = field(default=None)

    @property
    def address(self) -> str | None:
        """Host and port of the socket; None for a Unix socket."""
        if self.socket.family == socket.AF_UNIX:
            return None
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stop listening."""
        if self.file is not None:
            self.file.remove()
        self.socket.close()


def shown(address: str, listener: Listener) -> str:
    """Return an address as the log shows it: as in the settings, with the port that the system chose instead of 0."""
    where = parse_address(address)
    if isinstance(where, TCPAddress) and where.port == 0:
        return address.rpartition(":")[0] + f":{listener.socket.getsockname()[1]}"
    return address


async def bind_all(
    settings: Settings, file_at: FileAt, processes: int = 1, given: Given | None = None
) -> list[list[Listener]]:
    """Bind all addresses and begin to listen.

    On a TCP address each process has its own socket, and the kernel distributes clients over these (SO_REUSEPORT).
    Where the kernel does not, and on a Unix socket, the processes share one socket.

    Args:
        settings: the settings.
        file_at: see `Succession.file`.
        processes: the number of processes that accept clients.
        given: sockets that already listen; those used are removed from this object.

    Returns:
        For each process: its listeners in the order of the addresses, then surplus given listeners. The files of Unix
        sockets belong to the first process.

    Raises:
        SettingsError: the proxy cannot listen on an address.
    """
    made: list[list[Listener]] = [[] for _ in range(processes)]
    more: list[Listener] = []
    try:
        for address in dict.fromkeys(settings.listen):
            where = parse_address(address)
            tls = isinstance(where, TCPAddress) and where.tls
            there = given.clients.pop(address, []) if given is not None else []
            marks = given.marks.pop(address, None) if given is not None and there else None
            try:
                sockets = _share_out(there, processes, settings.tcp_keepalive) if there else None
                sockets = sockets or await _bind(address, processes, settings.tcp_keepalive)
            except OSError as error:
                raise SettingsError(f"listen: cannot listen on {address}: {why_not(error)}") from None
            for number, (listeners, bound) in enumerate(zip(made, sockets, strict=False)):
                file = None
                if isinstance(where, Path) and not number and (marks is not None or not there):
                    file = file_at(where, marks)
                listeners.append(Listener(bound, tls, file, address))
            more += [Listener(bound, tls, name=address) for bound in sockets[processes:]]
        for number, listener in enumerate(more):
            made[number % processes].append(listener)
    except BaseException:
        for listeners in (*made, more):
            close_all(listeners)
        raise
    return made


def as_given(listeners: Iterable[Listener], *, keeps_files: bool) -> Given:
    """Return listeners in the form for another proxy; `keeps_files`: see `Given`."""
    given = Given(keeps_files=keeps_files)
    for listener in listeners:
        given.clients.setdefault(listener.name, []).append(listener.socket)
        if listener.file is not None and listener.file.marks is not None:
            given.marks[listener.name] = listener.file.marks
    return given


def _share_out(there: list[socket.socket], processes: int, keepalive: int) -> list[socket.socket]:
    """Return the given sockets, and duplicates if there are fewer than processes. Surplus sockets stay open: if they
    were closed, the clients in their queues would be lost."""
    for listener in there:
        if listener.family != socket.AF_UNIX:
            tcp.configure(listener, keepalive)
        listener.listen(BACKLOG)
    return [*there, *(there[number % len(there)].dup() for number in range(len(there), processes))]


def close_all(listeners: Iterable[Listener]) -> None:
    """Close listeners."""
    for listener in listeners:
        listener.close()


async def _bind(address: str, processes: int, keepalive: int) -> list[socket.socket]:
    where = parse_address(address)
    if isinstance(where, Path):
        await clear_socket(where)
        first = bind_path(where)
        first.listen(BACKLOG)
        return [first, *(first.dup() for _ in range(processes - 1))]
    found = await look_up(where.host, where.port)
    sockets = [bind(found)]
    try:
        if processes > 1 and _SPREADS:
            # The first socket was bound alone, so nothing else listens there. Now this proxy's other sockets may join.
            family, kind, protocol, name, _ = found[0]
            found = [(family, kind, protocol, name, sockets[0].getsockname())]
            sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sockets += [bind(found, shared=True) for _ in range(processes - 1)]
        for listener in sockets:
            # Accepted sockets inherit the options.
            tcp.configure(listener, keepalive)
            listener.listen(BACKLOG)
        sockets += [sockets[0].dup() for _ in range(processes - len(sockets))]
    except OSError:
        for listener in sockets:
            listener.close()
        raise
    return sockets
