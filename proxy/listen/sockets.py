"""Binds listening sockets: TCP addresses, and Unix sockets that a killed proxy may have left behind."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from proxy.names import Found


def is_loopback(host: str) -> bool:
    """Return whether an IP address can only be reached from this machine."""
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def bind(found: Found, *, shared: bool = False) -> socket.socket:
    """Bind a listening socket.

    Args:
        found: the addresses of the host; the first counts.
        shared: whether other sockets of the same user that say so too may be bound to the address.

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
        OSError: it cannot be.
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
    """Remove the socket that a killed proxy has left.

    Raises:
        OSError: somebody listens on it, or it is something else.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
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
            pass  # its backlog is full: it lives
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
