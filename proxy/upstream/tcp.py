"""TCP options that detect a peer that has died silently: keepalive, and a limit on unacknowledged data.

Its tests: tests/test_limits.py.
"""

from __future__ import annotations

import socket
from typing import Final

PROBES: Final = 3
"""Maximum number of unanswered keepalive probes, as in Redis."""


def options(keepalive: int, user_timeout: float = 0) -> dict[int, int]:
    """Return TCP options, without those that the system lacks.

    Args:
        keepalive: seconds of silence before the first probe, 0 for the system's default. As in Redis, there are up to
            three probes, at intervals of a third of that time.
        user_timeout: seconds that sent data may stay unacknowledged, 0 for the system's default.
    """
    wanted: list[tuple[str, int]] = []
    if keepalive:
        idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
        wanted += [(idle, keepalive), ("TCP_KEEPINTVL", max(1, keepalive // PROBES)), ("TCP_KEEPCNT", PROBES)]
    if user_timeout:
        wanted.append(("TCP_USER_TIMEOUT", round(user_timeout * 1000)))
    return {getattr(socket, name): value for name, value in wanted if hasattr(socket, name)}


def configure(connection: socket.socket, keepalive: int, user_timeout: float = 0) -> None:
    """Set the options on a TCP socket.

    Args:
        connection: the socket, or the event loop's wrapper.
        keepalive: as in `options`; 0 turns keepalive off.
        user_timeout: as in `options`.

    Raises:
        OSError: the connection has ended.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(keepalive > 0))
    for name, value in options(keepalive, user_timeout).items():
        connection.setsockopt(socket.IPPROTO_TCP, name, value)
