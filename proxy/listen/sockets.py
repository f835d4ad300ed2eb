"""Bind listening sockets: TCP addresses, and Unix sockets whose file a killed proxy may have left behind.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from proxy.names import Found

MORE_FILES: Final = "raise the limit on open files (ulimit -n), or lower max_clients"
"""Advice to the operator when files run out."""


def why_not(error: OSError) -> str:
    """Return why it is not possible to listen on an address and, if known, what to do about it."""
    advice = "; stop what listens there, or choose another address" if error.errno == errno.EADDRINUSE else ""
    return f"{error.strerror or error}{advice}"


Marks = tuple[int, int, int]
"""The marks by which a file is recognised: its device, its inode, and the time of its last change in ns."""


class SocketFile:
    """The file of a Unix socket at which this process listens.

    Args:
        path: its path.
        owns: returns whether this process must remove the file when it ends: see `Succession.file`.
        marks: the file's marks, if another process has bound it.

    Attributes:
        marks: the file's marks; None if there was no file.
    """

    def __init__(self, path: Path, owns: Callable[[], bool], marks: Marks | None = None) -> None:
        self.marks = marks or _marks(path)
        self._path: Path | None = path
        self._owns = owns

    def remove(self) -> None:
        """Remove the file, at most once, unless another process has bound the path since."""
        path, self._path = self._path, None
        if path is not None and self._owns() and self.marks is not None and _marks(path) == self.marks:
            path.unlink(missing_ok=True)


def _marks(path: Path) -> Marks | None:
    """Return a file's marks. The inode alone is not enough: file systems reuse it."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def is_loopback(host: str) -> bool:
    """Return whether an IP address is reachable only from this machine."""
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def bind(found: Found, *, shared: bool = False) -> socket.socket:
    """Bind a listening socket.

    Args:
        found: the addresses of the host; the first is used.
        shared: whether other shared sockets of this user may be bound to the address too.

    Raises:
        OSError: it cannot be bound.
    """
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def bind_path(path: Path) -> socket.socket:
    """Bind a Unix socket.

    Raises:
        OSError: it cannot be bound.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.setblocking(False)
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    return listener


async def clear_socket(path: Path) -> None:
    """Remove the socket file that a killed proxy has left behind.

    Raises:
        OSError: a process listens on the socket, or the file is not a socket.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "it is a file, not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # the socket's backlog is full: it is in use
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
