"""The limit on open files: raise it, and fail at once if it is too low to start.

Its tests: tests/test_limits.py.
"""

from __future__ import annotations

import resource
import sys
from typing import Final

from proxy.listen.given import Given
from proxy.settings import Settings, SettingsError

_ALWAYS: Final = 40
"""Maximum number of files that a process has open before it serves clients, besides its listening sockets."""

_OF_A_WORKER: Final = 4
"""Sockets that the supervisor holds open for each worker while workers start."""


def raise_file_limit() -> int:
    """Raise the limit on open files as far as the system allows: each client takes two files.

    Returns:
        The limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def enough_files(settings: Settings, given: Given | None = None) -> int:
    """Raise the limit on open files; return it.

    Args:
        settings: the settings.
        given: inherited sockets. There may be more than the settings need, for more workers or other addresses.

    Raises:
        SettingsError: the limit is too low to start.
    """
    files = raise_file_limit()
    inherited = {address: len(sockets) for address, sockets in given.clients.items()} if given is not None else {}
    sockets = sum(max(settings.workers, inherited.pop(address, 0)) for address in settings.listen)
    needed = _ALWAYS + sockets + sum(inherited.values())
    if settings.workers > 1:  # the supervisor holds each socket twice: for a worker and for a successor
        needed += len(settings.listen) + sockets + settings.workers * _OF_A_WORKER
    if files < needed:
        raise SettingsError(f"too few open files to start: raise their limit (ulimit -n) from {files} to {needed}")
    return files
