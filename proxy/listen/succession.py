"""How a proxy takes the place of one that runs, and refuses nobody: by a Unix socket at which that hands sockets over.

Its tests: tests/test_takeover.py.

The one that comes gets the very sockets that the other listens on, so clients that wait in their queues are lost to
neither. A socket of its own beside the other's (SO_REUSEPORT) would lose those that the kernel has given to the other.
While it starts, the other serves. When it serves itself, it says so: then the other accepts no more, answers what has
come and ends. Whatever becomes of it before, the other goes on.

    the one that comes        the other
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
"""How long the proxy that runs has to answer: another may be about to take its place."""

_NEXT: Final = b"n"
_SERVES: Final = b"s"
_MOST: Final = 64
"""Sockets of one address: there are as many workers at most."""

_LONGEST: Final = 4096
_BACKLOG: Final = 8
_VERSION: Final = 1


class Succession:
    """Takes the place of the proxy that is there, and gives this one's to the next.

    Args:
        path: the Unix socket at which that happens; None if it is not to.
        given: sockets that systemd has bound.

    Attributes:
        given: sockets that are there already, of whomever; None if all are to be bound.
        patient: whether another proxy serves the clients meanwhile: nobody is accepted before this one can serve them.
        offer: tells what the next one gets.
        at_claim: called when this one has taken over: what the other has left is its own now.
        at_release: called when the next one has: nothing of it is this one's any more.
    """

    def __init__(self, path: Path | None = None, given: Given | None = None) -> None:
        self.given = given
        self.offer: list[Callable[[], Given]] = []
        self.at_claim: list[Callable[[], None]] = []
        self.at_release: list[Callable[[], None]] = []
        self._path = path
        self._file: SocketFile | None = None
        self._listener: socket.socket | None = None
        self._other: socket.socket | None = None  # the way to the proxy whose place this one takes
        self._visitor: socket.socket | None = None
        self._rest: Iterator[tuple[dict[str, Any], list[socket.socket]]] = iter(())
        self._signals: Signals | None = None

    @classmethod
    def of(cls, settings: Settings, given: Given | None) -> Succession:
        """Get the sockets of the proxy that runs, if one does.

        Raises:
            SettingsError: what is there gives none.
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
        """Whether another proxy serves the clients while this one starts."""
        return self._other is not None

    @property
    def outlived(self) -> bool:
        """Whether the sockets listen on when this process has ended: systemd has them."""
        return self.given is not None and not self.given.keeps_files

    @property
    def wanted(self) -> bool:
        """Whether another proxy may take this one's place."""
        return self._path is not None

    # Taking the place of another.

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
            found.close()  # systemd's count; the other proxy is told to end all the same
        other.setblocking(False)

    def _take(self, other: socket.socket, found: Given) -> bool:
        """Take what comes next; return whether there is more."""
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
        """Say that this process serves the clients, and let the next one come.

        Args:
            signals: told when the next one has come.

        Raises:
            SettingsError: the path cannot be listened on.
        """
        if self._path is None:
            return
        self._signals = signals
        if self._other is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self._other.send(_SERVES)
            self._other.close()
            self._other = None
            log.info("listening sockets taken over", takeover=str(self._path))
        try:
            if self._listener is None:
                await clear_socket(self._path)
                self._listener = bind_path(self._path)
                self._path.chmod(0o600)  # whoever gets in gets the sockets
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
        # One at a time: the next waits in the queue, and meets whoever listens then.
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
        """End, in favour of the one that has come."""
        assert self._signals is not None
        self._file = None
        self.close()
        for work in self.at_release:
            work()
        log.info("taken over by another process", takeover=str(self._path))
        self._signals.relieved = True
        self._signals.stop.set()

    def remove_path(self) -> None:
        """Remove the file, and nothing else: the process is about to end."""
        if self._file is not None:
            self._file.remove()

    def close(self) -> None:
        """Hand nothing over any more. Harmless when nothing was."""
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
    """See that it is no other user who hands sockets over.

    Raises:
        ConnectionError: it is.
    """
    if not sys.platform.startswith("linux"):
        return  # the path has to be in a folder of this user
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (0, os.geteuid()):
        raise ConnectionError(f"it belongs to another user ({user})")
