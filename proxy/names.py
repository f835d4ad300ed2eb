"""Look up host names in threads that nobody has to wait for, because the system's lookup cannot be cancelled.

Its tests: tests/test_lookups.py.

Imports little: a probe that runs every few seconds looks names up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

PATIENCE_SECONDS: Final = 4.0
"""How long an address to listen on, or to probe, may take to look up."""

Found: TypeAlias = Sequence[tuple[Any, ...]]
"""As of `socket.getaddrinfo`; never empty."""


def numeric(host: str, port: int) -> Found | None:
    """Return the address of a host that is one already; None if it is a name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None


def begin(host: str, port: int, tell: Callable[[Found | OSError], None]) -> None:
    """Look a name up in a thread, which does not keep the process from ending.

    Args:
        host: the name.
        port: the port.
        tell: called in that thread with the addresses, or with what went wrong.
    """
    import threading

    def look_up() -> None:
        try:
            found: Found | OSError = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            found = error
        except UnicodeError:
            found = socket.gaierror(socket.EAI_NONAME, "this cannot be a name")
        tell(found)

    threading.Thread(target=look_up, name="lookup", daemon=True).start()


def lookup(host: str, port: int, seconds: float = PATIENCE_SECONDS) -> Found:
    """Return the addresses of a host.

    Raises:
        OSError: it has none.
        TimeoutError: that was not known in time.
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
    """Return the error for a lookup that takes too long."""
    return TimeoutError(f"its name was not found in {seconds:.3g} s")
