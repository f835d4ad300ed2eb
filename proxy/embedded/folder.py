"""The data folder of an embedded server: for one server at a time, and protected from servers that cannot read it.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import structlog

from proxy.embedded.binaries import EmbeddedError

log = structlog.get_logger("proxy.embedded")

LOCK_TIMEOUT = 10.0
"""Seconds to wait for a data folder that a killed proxy's server is about to release."""

POLL = 0.02
"""Seconds between two tries to take the lock."""

_ONE_FILE: Final = "appendonly.aof"
_MANY_FILES: Final = "appendonlydir"
_MANIFEST: Final = "appendonly.aof.manifest"
_SNAPSHOT: Final = "dump.rdb"

_FORMAT: Final = re.compile(rb"REDIS[0-9]{4}|VALKEY[0-9]{3}")
"""The beginning of an RDB file, or of an append-only file with an RDB preamble; the digits are the format's version."""

_FORMAT_LENGTH: Final = 9
_WRITER: Final = re.compile(rb"(redis|valkey)-ver[\x03-\x14]([0-9.]+)")


class DataFolder:
    """A folder with a server's data: one append-only file (Redis before 7), a folder of them, or only a snapshot.

    Args:
        path: the folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._was_one_file = False

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[int]:
        """Lock the folder for one server: two servers that append to the same file would corrupt it.

        Returns:
            The descriptor that holds the lock. A child that inherits it holds the lock as long as it lives, even if the
            proxy is killed.

        Raises:
            EmbeddedError: another server has locked the folder.
            OSError: the folder cannot be created or written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path / "expiremember.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._take(lock)
            yield lock
        finally:
            os.close(lock)

    async def _take(self, lock: int) -> None:
        waits = False
        try:
            async with asyncio.timeout(LOCK_TIMEOUT):
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        if not waits:
                            log.info("data folder in use by another embedded server: waiting", directory=str(self.path))
                        waits = True
                        await asyncio.sleep(POLL)
                    else:
                        return
        except TimeoutError as error:
            raise EmbeddedError(f"another embedded server uses the folder {self.path}") from error

    def parts(self) -> list[str]:
        """Return the names of the files and folders whose data a server must read; empty if there is no data.

        A snapshot beside an append-only file is not included: the append-only file holds all its data.
        """
        one, many, snapshot = (self.path / name for name in (_ONE_FILE, _MANY_FILES, _SNAPSHOT))
        found = [_ONE_FILE] if one.is_file() and one.stat().st_size else []
        if many.is_dir() and any(path.name != _MANIFEST for path in many.iterdir()):
            found.append(_MANY_FILES)
        return [_SNAPSHOT] if snapshot.is_file() and not found and not one.is_file() else found

    def copy_in_miniature(self, target: Path) -> None:
        """Make a copy of this folder in which each file has only one key: the name of its part.

        File names, formats and versions are the same. So a server that starts there and finds the keys of all `parts`
        will read all of this folder's data.

        Args:
            target: the path of the copy.
        """
        target.mkdir()
        for name in (_ONE_FILE, _SNAPSHOT):
            if (self.path / name).is_file():
                (target / name).write_bytes(_miniature(self.path / name, name))
        many = self.path / _MANY_FILES
        if many.is_dir():
            (target / _MANY_FILES).mkdir()
            for path in many.iterdir():
                if path.name == _MANIFEST:
                    shutil.copyfile(path, target / _MANY_FILES / _MANIFEST)
                elif path.is_file():
                    (target / _MANY_FILES / path.name).write_bytes(_miniature(path, _MANY_FILES))

    def writer(self) -> str | None:
        """Return the server that wrote the data, such as ``redis 8.0.2``; None if the files do not name it."""
        files = [self.path / _ONE_FILE, self.path / _SNAPSHOT]
        if (self.path / _MANY_FILES).is_dir():
            files += sorted((self.path / _MANY_FILES).iterdir())
        for path in files:
            if path.is_file():
                found = _WRITER.search(_beginning(path, 64))
                if found is not None:
                    return f"{found[1].decode()} {found[2].decode()}"
        return None

    def note_layout(self) -> None:
        """Record the layout of the data before a server starts."""
        self._was_one_file = (self.path / _ONE_FILE).is_file() and not (self.path / _MANY_FILES).exists()

    @property
    def is_converted(self) -> bool:
        """Whether a server has split the single append-only file since `note_layout`. Older servers find no data."""
        return self._was_one_file and (self.path / _MANY_FILES).exists()

    def take_back(self) -> None:
        """Move the single append-only file back if a server moved it and then failed.

        Redis 7 and later begin to split the file by moving it, and only then read it. If such a server rejects the
        file, an older one that could read it would not find it.
        """
        many = self.path / _MANY_FILES
        if self.is_converted and {path.name for path in many.iterdir()} == {_ONE_FILE, _MANIFEST}:
            (many / _ONE_FILE).rename(self.path / _ONE_FILE)
            (many / _MANIFEST).unlink()
            many.rmdir()


def _beginning(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _miniature(path: Path, key: str) -> bytes:
    """Return the content of a file of the same format with one key."""
    name, version = key.encode(), _FORMAT.match(_beginning(path, _FORMAT_LENGTH))
    if version is None:
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\n1\r\n" % (len(name), name)
    # The rest of the file: database 0, one string, the end mark, and a checksum of zero, which servers do not check.
    return b"%b\xfe\x00\x00%c%b\x011\xff" % (version[0], len(name), name) + bytes(8)
