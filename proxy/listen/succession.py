"""Replace a running proxy without refusing clients: it hands its listening sockets over through a Unix socket.

Its tests: tests/test_takeover.py.

The new proxy gets the very sockets on which the old one listens, so no client in their queues is lost. If it had bound
sockets of its own (SO_REUSEPORT), clients in the old one's queues would be lost. While the new one starts, the old one
serves. When the new one reports that it serves, the old one stops accepting, answers pending requests and exits. If the
new one fails before that, the old one continues.

    the new proxy             the old proxy
    n                         {"is": "…", "address": "…", "marks": […]} and sockets; and so on, until {"is": "all", …}
    a (it starts), often
    s (it serves)             e (it ends)

`marks` identify the file of a Unix socket that the old one has bound. Only that file is removed later, never a file
that another process has bound at the path since. For files of systemd, `marks` is null.

The old proxy also sends `e` if it is told to end earlier. A new one that has received `all` then owns everything,
including the files of Unix sockets. The same holds if the old one just disconnects: then it was killed. If the new one
is silent for too long, the old one sends `g` and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import structlog

from proxy.listen.given import Given
from proxy.listen.predecessor import ENDS, GIVES_UP, NEXT, SERVES, STARTS, VERSION, Predecessor
from proxy.listen.sockets import MORE_FILES, Marks, SocketFile, bind_path, clear_socket, why_not
from proxy.logs import Seldom
from proxy.settings import Settings, SettingsError
from proxy.signals import Signals

log = structlog.get_logger("proxy.listen")

STEP_SECONDS: Final = 3.0
"""How long a new process may take to request the next sockets. Other new ones wait meanwhile: see MEET_SECONDS."""

SILENT_SECONDS: Final = 10.0
"""How long a new process may give no sign of life while it starts: many times SIGN_SECONDS."""

_BACKLOG: Final = 8
_PAUSE_SECONDS: Final = 0.2


class Succession:
    """Replaces the running proxy, and hands over to the next one.

    Args:
        path: the Unix socket for handing over; None to turn that off.
        given: sockets that systemd has bound.

    Attributes:
        given: sockets that already exist, from systemd or the old proxy; None if this process has to bind all.
        alone: set when no old proxy serves clients any more; until then, this one accepts none.
        offer: functions that each return sockets for the next proxy.
        at_release: called when the next proxy has taken over and owns what this one left.
    """

    def __init__(self, path: Path | None = None, given: Given | None = None) -> None:
        self.given = given
        self.alone = asyncio.Event()
        self.alone.set()
        self.offer: list[Callable[[], Given]] = []
        self.at_release: list[Callable[[], None]] = []
        self._path = path
        self._file: SocketFile | None = None
        self._listener: socket.socket | None = None
        self._predecessor: Predecessor | None = None
        self._visitor: socket.socket | None = None  # the connection of a new proxy that takes over
        self._rest: Iterator[tuple[dict[str, Any], list[socket.socket]]] = iter(())
        self._has_all = False  # whether the visitor has received all sockets
        self._patience: asyncio.TimerHandle | None = None
        self._is_ending = self._has_left = False
        self._say_failed = Seldom(log.error, "cannot accept the next process")
        self._signals: Signals | None = None

    @classmethod
    def of(cls, settings: Settings, given: Given | None) -> Succession:
        """Get the sockets of the running proxy, if there is one.

        Raises:
            SettingsError: the sockets cannot be taken over.
            StoppedError: the process was told to stop while it waited for the running proxy.
        """
        made = cls(settings.takeover, given)
        if settings.takeover is not None and (found := Predecessor.at(settings.takeover)) is not None:
            made._predecessor, made._listener, made.alone = found, found.listener, found.ended
            if found.marks is not None:
                made._file = made.file(settings.takeover, found.marks)
            if given is None:  # otherwise systemd's sockets are used; the old proxy is still told to end
                made.given = found.given
        return made

    def watch(self) -> None:
        """Start receiving the old proxy's messages, if there is one."""
        if self._predecessor is not None:
            self._predecessor.watch()

    @property
    def outlived(self) -> bool:
        """Whether systemd keeps the sockets listening after this process has ended."""
        return self.given is not None and not self.given.keeps_files

    @property
    def wanted(self) -> bool:
        """Whether another proxy may replace this one."""
        return self._path is not None

    # Being replaced.

    async def begin(self, signals: Signals) -> None:
        """Report that this process serves clients, and listen for its successor.

        Args:
            signals: notified when the successor serves.

        Raises:
            SettingsError: the proxy cannot listen on the path, or the old proxy has given up on this one.
        """
        if self._path is None:
            return
        self._signals = signals
        if self._predecessor is not None:
            await self._predecessor.relieve()
            self._drop_rest()
            log.info("took over the listening sockets", takeover=str(self._path))
        try:
            if self._listener is None:
                await clear_socket(self._path)
                self._listener = bind_path(self._path)
                self._path.chmod(0o600)  # anyone who can connect gets the sockets
                self._listener.listen(_BACKLOG)
                self._file = self.file(self._path)
        except OSError as error:
            raise SettingsError(f"takeover: cannot listen on {self._path}: {why_not(error)}") from None
        self._await_visitor()

    def _drop_rest(self) -> None:
        """Close the old proxy's sockets that are unused here, and remove their files unless the old proxy continues."""
        if self._predecessor is not None:
            self._remove_rest()
            self._predecessor.given.close()

    def _remove_rest(self) -> None:
        if self._predecessor is not None:
            for file in self._predecessor.given.files(self.alone.is_set):
                file.remove()

    def _await_visitor(self) -> None:
        if self._listener is not None and not self._is_ending:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        try:
            visitor, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Files or memory have run out. The socket stays readable: without a pause the loop would spin.
            loop.remove_reader(self._listener)
            loop.call_later(_PAUSE_SECONDS, self._await_visitor)
            self._say_failed(error=error.strerror, takeover=str(self._path), advice=MORE_FILES)
            return
        # One visitor at a time. The next one waits in the socket's queue for whichever proxy listens then.
        loop.remove_reader(self._listener)
        visitor.setblocking(False)
        self._visitor = visitor
        self._rest = self._all(self._listener)
        self._has_all = False
        self._be_patient(visitor)
        loop.add_reader(visitor, self._hear, visitor)

    def _all(self, listener: socket.socket) -> Iterator[tuple[dict[str, Any], list[socket.socket]]]:
        keeps_files = True
        yield {"is": "takeover", "marks": None if self._file is None else self._file.marks}, [listener]
        for offer in self.offer:
            given = offer()
            keeps_files = keeps_files and given.keeps_files
            for address, sockets in given.clients.items():
                yield {"is": "clients", "address": address, "marks": given.marks.get(address)}, sockets
            for address, one in given.admin.items():
                yield {"is": "admin", "address": address, "marks": given.marks.get(address)}, [one]
        yield {"is": "all", "version": VERSION, "keeps_files": keeps_files}, []

    def _hear(self, visitor: socket.socket) -> bool:
        """Process the visitor's next message, or its disconnection; return False if neither has arrived."""
        try:
            said = visitor.recv(1)
            if said == NEXT and not self._has_all:
                what, sockets = next(self._rest)
                socket.send_fds(visitor, [json.dumps(what).encode()], [one.fileno() for one in sockets])
                self._has_all = what["is"] == "all"
                self._be_patient(visitor)
                return True
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            said = b""
        if said == STARTS and self._has_all:
            self._be_patient(visitor)
        elif said == SERVES and self._has_all:
            log.info("handed over to another process", takeover=str(self._path))
            self._tell_end(visitor)
            self._leave(visitor)
        else:
            self._part(visitor)
        return True

    def _be_patient(self, visitor: socket.socket) -> None:
        if self._patience is not None:
            self._patience.cancel()
        seconds = SILENT_SECONDS if self._has_all else STEP_SECONDS
        self._patience = asyncio.get_running_loop().call_later(seconds, self._give_up, visitor)

    def _give_up(self, visitor: socket.socket) -> None:
        if self._hear(visitor):
            return  # a message had arrived, but this process was late to read it
        log.warning("takeover given up: the other process does not respond", takeover=str(self._path))
        with contextlib.suppress(OSError):
            visitor.send(GIVES_UP)
        self._part(visitor)

    def _part(self, visitor: socket.socket) -> None:
        if self._patience is not None:
            self._patience.cancel()
        asyncio.get_running_loop().remove_reader(visitor)
        visitor.close()
        self._visitor = None
        self._await_visitor()

    def _tell_end(self, visitor: socket.socket) -> bool:
        """Tell the visitor that this process ends; return whether it is still there to hear it."""
        try:
            visitor.send(ENDS)
        except OSError:
            return False
        return True

    def _leave(self, visitor: socket.socket) -> None:
        """End, because the visitor takes over."""
        assert self._signals is not None
        self._is_ending = self._has_left = True
        self._part(visitor)
        self.close()
        for work in self.at_release:
            work()
        self._signals.relieved = True
        self._signals.stop.set()

    def file(self, path: Path, marks: Marks | None = None) -> SocketFile:
        """Return the file of a Unix socket at a path; `marks`: the file's marks, if another proxy has bound it."""
        return SocketFile(path, self._has_not_left if marks is None else self._owns, marks)

    def _owns(self) -> bool:
        """Return whether this process, which is about to end, has to remove the inherited files.

        The old proxy owns these files until it has gone.
        """
        if self._predecessor is not None:
            self._predecessor.part()
        return self._has_not_left() and self.alone.is_set()

    def _has_not_left(self) -> bool:
        """Return whether this process, which is about to end, has to remove the files that it has bound.

        From now on this process accepts no visitor. A visitor that has all sockets and is still connected owns the
        files too, and removes them if it fails later. So no process removes a file at which another one serves.
        """
        if not self._is_ending:
            self._is_ending = True
            if self._listener is not None and self._signals is not None:
                asyncio.get_running_loop().remove_reader(self._listener)
        while (visitor := self._visitor) is not None and self._hear(visitor):
            pass
        if (visitor := self._visitor) is not None and self._has_all and self._tell_end(visitor):
            log.info("listening sockets handed to the new process", takeover=str(self._path))
            self._leave(visitor)
        return not self._has_left

    def remove_path(self) -> None:
        """Remove the takeover socket's file and unused inherited files, and do nothing else: the process is ending."""
        if self._file is not None:
            self._file.remove()
        self._remove_rest()

    def close(self) -> None:
        """Stop handing over. Harmless if not begun."""
        self._owns()
        if self._visitor is not None:
            self._part(self._visitor)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.remove_path()
        if self._predecessor is not None:
            self._drop_rest()
            self._predecessor.close()
