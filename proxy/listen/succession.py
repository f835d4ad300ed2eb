"""Replace a running proxy without refusing clients: it hands over its listening sockets through a Unix socket.

Its tests: tests/test_takeover.py.

The new proxy gets the very sockets that the old one listens on, so no client in their queues is lost. With a second
socket (SO_REUSEPORT), clients that the kernel had queued for the old one would be lost. While the new one starts, the
old one serves. When the new one reports that it serves, the old one stops accepting, answers pending requests and
exits. If the new one fails before that, the old one goes on.

    the new proxy             the old proxy
    n                         {"is": "…", "address": "…"} and sockets; and so on, until {"is": "all", …}
    s (it serves)             (ends)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from proxy.listen.given import Given
from proxy.listen.sockets import SocketFile, bind_path, clear_socket, why_not
from proxy.settings import Settings, SettingsError
from proxy.signals import Signals

log = structlog.get_logger("proxy.listen")

MEET_SECONDS: Final = 30.0
"""How long the running proxy has to answer: it may be busy handing over to another."""

_NEXT: Final = b"n"
_SERVES: Final = b"s"
_MOST: Final = 64
"""Maximum number of sockets per address, and so of workers."""

_LONGEST: Final = 4096
_BACKLOG: Final = 8
_VERSION: Final = 1


class Succession:
    """Replaces the running proxy, and hands over to the next one.

    Args:
        path: the Unix socket for this; None to turn it off.
        given: sockets that systemd has bound.

    Attributes:
        given: sockets that already exist, from systemd or the old proxy; None if all are to be bound.
        patient: whether the old proxy still serves clients; then accept none before this one can serve them.
        offer: functions that return the sockets for the next proxy.
        at_claim: called when this proxy has taken over and owns what the old one left.
        at_release: called when the next proxy has taken over and owns what this one left.
    """

    def __init__(self, path: Path | None = None, given: Given | None = None) -> None:
        self.given = given
        self.offer: list[Callable[[], Given]] = []
        self.at_claim: list[Callable[[], None]] = []
        self.at_release: list[Callable[[], None]] = []
        self._path = path
        self._file: SocketFile | None = None
        self._listener: socket.socket | None = None
        self._other: socket.socket | None = None  # connection to the old proxy
        self._visitor: socket.socket | None = None
        self._rest: Iterator[tuple[dict[str, Any], list[socket.socket]]] = iter(())
        self._signals: Signals | None = None

    @classmethod
    def of(cls, settings: Settings, given: Given | None) -> Succession:
        """Get the sockets of the running proxy, if there is one.

        Raises:
            SettingsError: they cannot be taken over.
        """
        made = cls(settings.takeover, given)
        if settings.takeover is not None:
            try:
                made._meet(settings.takeover)
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                made.close()
                raise SettingsError(f"takeover: {settings.takeover}: {_in_words(error)}") from None
        return made

    @property
    def patient(self) -> bool:
        """Whether the old proxy serves clients while this one starts."""
        return self._other is not None

    @property
    def outlived(self) -> bool:
        """Whether systemd keeps the sockets listening after this process has ended."""
        return self.given is not None and not self.given.keeps_files

    @property
    def wanted(self) -> bool:
        """Whether another proxy may replace this one."""
        return self._path is not None

    # Replacing another proxy.

    def _meet(self, path: Path) -> None:
        other = socket.socket(socket.AF_UNIX)
        try:
            other.settimeout(MEET_SECONDS)
            other.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            other.close()
            return
        except BaseException:
            other.close()
            raise
        self._other = other
        _check_user(other)
        found = Given()
        try:
            while self._take(other, found):
                pass
        except BaseException:
            found.close()
            raise
        if self.given is None:
            self.given = found
        else:
            found.close()  # use systemd's; the old proxy is told to end all the same
        other.setblocking(False)

    def _take(self, other: socket.socket, found: Given) -> bool:
        """Take the next item; return whether there are more."""
        other.sendall(_NEXT)
        line, descriptors, _, _ = socket.recv_fds(other, _LONGEST, _MOST)
        sockets = [_adopt(descriptor) for descriptor in descriptors]
        if not line:
            raise BrokenPipeError
        told = json.loads(line)
        if told["is"] == "clients":
            found.clients[str(told["address"])] = sockets
        elif told["is"] == "admin":
            found.admin[str(told["address"])] = sockets[0]
        elif told["is"] == "takeover":
            self._listener = sockets[0]
        else:
            if told["version"] != _VERSION:
                raise ConnectionError(
                    "the proxy there is of another version, which hands over otherwise; stop it first"
                )
            found.keeps_files = bool(told["keeps_files"])
            return False
        return True

    # Being replaced.

    async def begin(self, signals: Signals) -> None:
        """Report that this process serves clients, and listen for its successor.

        Args:
            signals: told when the successor serves.

        Raises:
            SettingsError: the path cannot be listened on.
        """
        if self._path is None:
            return
        self._signals = signals
        if self._other is not None:
            with contextlib.suppress(OSError):  # the old one has ended meanwhile
                self._other.send(_SERVES)
            self._other.close()
            self._other = None
            log.info("listening sockets taken over", takeover=str(self._path))
        try:
            if self._listener is None:
                await clear_socket(self._path)
                self._listener = bind_path(self._path)
                self._path.chmod(0o600)  # anyone who can connect gets the sockets
                self._listener.listen(_BACKLOG)
            self._file = SocketFile(self._path)
        except OSError as error:
            raise SettingsError(f"takeover: cannot listen on {self._path}: {why_not(error)}") from None
        for work in self.at_claim:
            work()
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            visitor, _ = self._listener.accept()
        except OSError:
            return
        # One at a time: the next one waits in the queue for whichever proxy listens then.
        asyncio.get_running_loop().remove_reader(self._listener)
        visitor.setblocking(False)
        self._visitor = visitor
        self._rest = self._all(self._listener)
        asyncio.get_running_loop().add_reader(visitor, self._hear, visitor)

    def _all(self, listener: socket.socket) -> Iterator[tuple[dict[str, Any], list[socket.socket]]]:
        keeps_files = True
        yield {"is": "takeover"}, [listener]
        for offer in self.offer:
            given = offer()
            keeps_files = keeps_files and given.keeps_files
            for address, sockets in given.clients.items():
                yield {"is": "clients", "address": address}, sockets
            for address, one in given.admin.items():
                yield {"is": "admin", "address": address}, [one]
        yield {"is": "all", "version": _VERSION, "keeps_files": keeps_files}, []

    def _hear(self, visitor: socket.socket) -> None:
        try:
            said = visitor.recv(1)
            if said == _NEXT and (item := next(self._rest, None)) is not None:
                socket.send_fds(visitor, [json.dumps(item[0]).encode()], [one.fileno() for one in item[1]])
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""
        self._part(visitor)
        if said == _SERVES and next(self._rest, None) is None:
            self._release()
        elif self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _part(self, visitor: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(visitor)
        visitor.close()
        self._visitor = None

    def _release(self) -> None:
        """Shut down because the successor serves."""
        assert self._signals is not None
        self._file = None
        self.close()
        for work in self.at_release:
            work()
        log.info("taken over by another process", takeover=str(self._path))
        self._signals.relieved = True
        self._signals.stop.set()

    def remove_path(self) -> None:
        """Remove the file, nothing else: the process is about to end."""
        if self._file is not None:
            self._file.remove()

    def close(self) -> None:
        """Stop handing over. Harmless if it never began."""
        if self._visitor is not None:
            self._part(self._visitor)
        if self._listener is not None:
            if self._signals is not None:
                asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self.remove_path()
        if self._other is not None:
            self._other.close()
            self._other = None


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time: another process may be about to take over"
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return "the proxy there hands nothing over: it is about to end"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "what answers there is no proxy"


def _adopt(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    one = socket.socket(fileno=descriptor)
    one.setblocking(False)
    return one


def _check_user(other: socket.socket) -> None:
    """Check that the sockets come from this user or root.

    Raises:
        ConnectionError: they come from another user.
    """
    if not sys.platform.startswith("linux"):
        return  # the path must be in a folder of this user
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (0, os.geteuid()):
        raise ConnectionError(f"it belongs to another user ({user})")
