"""Resolve host names in threads that never delay the process's exit, because a lookup cannot be cancelled.

Its tests: tests/test_lookups.py.

Imports little, because health probes use it every few seconds.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

PATIENCE_SECONDS: Final = 4.0
"""Time limit for resolving an address to listen on or to probe."""

Found: TypeAlias = Sequence[tuple[Any, ...]]
"""The type of `socket.getaddrinfo`'s result; never empty."""


def numeric(host: str, port: int) -> Found | None:
    """Return the address if the host is an IP address; None if the host is a name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None


def begin(host: str, port: int, tell: Callable[[Found | OSError], None]) -> None:
    """Resolve a name in a thread that does not delay the process's exit.

    Args:
        host: the name.
        port: the port.
        tell: called in that thread with the addresses or the error.
    """
    import threading

    def look_up() -> None:
        try:
            found: Found | OSError = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            found = error
        except UnicodeError:
            found = socket.gaierror(socket.EAI_NONAME, "not a valid host name")
        tell(found)

    threading.Thread(target=look_up, name="lookup", daemon=True).start()


def lookup(host: str, port: int, seconds: float = PATIENCE_SECONDS) -> Found:
    """Resolve a host.

    Raises:
        OSError: the name has no address.
        TimeoutError: the lookup took too long.
    """
    if (found := numeric(host, port)) is not None:
        return found
    import queue

    answers: queue.SimpleQueue[Found | OSError] = queue.SimpleQueue()
    begin(host, port, answers.put)
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise too_late(seconds) from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def too_late(seconds: float) -> TimeoutError:
    """Return the error for a lookup that took too long."""
    return TimeoutError(f"its name was not resolved in {seconds:.3g} s")
