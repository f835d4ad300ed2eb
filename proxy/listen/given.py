"""Listening sockets that are inherited: from systemd (LISTEN_FDS) or from the proxy that this one replaces.

Its tests: tests/test_systemd.py.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy.listen.sockets import Marks, SocketFile
from proxy.settings import SettingsError, parse_address

_FIRST: Final = 3
_ADMIN: Final = "admin"
_TLS: Final = "tls"


@dataclass(slots=True)
class Given:
    """Inherited sockets that already listen.

    Attributes:
        clients: address, as in the settings → its sockets, which share its clients.
        admin: address of the admin port → its socket.
        marks: address → the marks of the file of a Unix socket that a proxy has bound. All other files stay: they are
            systemd's, or the old proxy has not reported them.
        keeps_files: whether the sockets belong to the proxy; systemd's outlive the proxy.
    """

    clients: dict[str, list[socket.socket]] = field(default_factory=dict)
    admin: dict[str, socket.socket] = field(default_factory=dict)
    marks: dict[str, Marks] = field(default_factory=dict)
    keeps_files: bool = True

    def files(self, owns: Callable[[], bool]) -> list[SocketFile]:
        """Return the files of unused Unix sockets; `owns`: returns whether this proxy has to remove them."""
        found = ((parse_address(address), marks) for address, marks in self.marks.items())
        return [SocketFile(path, owns, marks) for path, marks in found if isinstance(path, Path)]

    def close(self) -> None:
        """Close unused sockets."""
        for one in (*(one for some in self.clients.values() for one in some), *self.admin.values()):
            one.close()
        self.clients.clear()
        self.admin.clear()
        self.marks.clear()


def from_manager(environment: MutableMapping[str, str] = os.environ) -> Given | None:
    """Take the sockets that systemd has bound for this process; None if there are none.

    Args:
        environment: the process's environment; systemd's variables are removed, so that no child takes the sockets.

    Raises:
        SettingsError: a socket cannot be used.
    """
    pid, count, names = (environment.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not (count.isascii() and count.isdecimal()) or count == "0":
        return None
    given = Given(keeps_files=False)
    named = names.split(":")
    for place in range(int(count)):
        name = named[place] if place < len(named) else ""
        one = _listening(_FIRST + place, name)
        address = _address(one, name)
        if name == _ADMIN:
            given.admin[address] = one
        else:
            given.clients.setdefault(f"tls://{address}" if name == _TLS else address, []).append(one)
    if not given.clients:
        raise SettingsError("listen: systemd has bound a socket for the admin port only; add one for clients")
    if len(given.admin) > 1:
        raise SettingsError("admin: systemd has bound several sockets for the admin port; there can be one")
    return given


def _listening(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        one = socket.socket(fileno=descriptor)
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.type == socket.SOCK_STREAM
    except OSError as error:
        raise SettingsError(f"listen: file {descriptor} ({name}) from systemd: {error.strerror or error}") from None
    if not listens or one.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        raise SettingsError(f"listen: file {descriptor} ({name}) from systemd is not a stream socket (ListenStream=)")
    one.setblocking(False)
    return one


def _address(one: socket.socket, name: str) -> str:
    where = one.getsockname()
    if one.family == socket.AF_UNIX:
        if not isinstance(where, str) or not Path(where).is_absolute():
            raise SettingsError(f"listen: the Unix socket {where!r} ({name}) from systemd has no absolute path")
        return f"unix://{where}"
    host, port = where[:2]
    return f"[{host}]:{port}" if one.family == socket.AF_INET6 else f"{host}:{port}"
