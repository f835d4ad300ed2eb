"""The running proxy that this one replaces: take over its sockets, and notice when it ends.

Its tests: tests/test_takeover.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from proxy import held_signals
from proxy.listen.given import Given
from proxy.listen.sockets import Marks
from proxy.settings import SettingsError

MEET_SECONDS: Final = 30.0
"""How long the running proxy may take to answer: it may be handing over to another process first."""

SIGN_SECONDS: Final = 1.0
"""How often to send the running proxy a sign of life while this process starts."""

ANSWER_SECONDS: Final = 2.0
"""How long the running proxy may take to confirm that it leaves. A suspended proxy reads the message when it
continues."""

END_SECONDS: Final = 1.0
"""How long a proxy that has disconnected may take to end."""

_AGAIN_SECONDS: Final = 0.01

_LOOK_SECONDS: Final = 0.1
"""How often to check, while waiting for the running proxy, whether this process has been told to stop."""

NEXT: Final = b"n"
STARTS: Final = b"a"
SERVES: Final = b"s"
ENDS: Final = b"e"
GIVES_UP: Final = b"g"
"""The messages, one byte each; succession.py explains them."""

VERSION: Final = 1
MOST: Final = 64
"""Maximum number of sockets of one address: one for each worker."""

_LONGEST: Final = 4096
_GIVEN_UP: Final = "the running proxy got no sign of life from this process in time, and keeps its sockets"


class Predecessor:
    """The proxy that serves the clients until this one can.

    Args:
        path: the Unix socket at which that proxy hands its sockets over.
        way: a connection to that proxy.

    Attributes:
        given: its sockets.
        listener: the listening socket of `path`.
        marks: the marks of the file of `listener`, if that proxy has reported them.
        ended: set when that proxy has ended or is leaving: its files now belong to this process.
    """

    def __init__(self, path: Path, way: socket.socket) -> None:
        self.given = Given()
        self.listener: socket.socket | None = None
        self.marks: Marks | None = None
        self.ended = asyncio.Event()
        self._path = path
        self._way: socket.socket | None = way
        self._early = b""  # bytes that the other process sent directly after its sockets
        self._answered = asyncio.Event()
        self._gave_up = False
        self._signs: asyncio.TimerHandle | None = None

    @classmethod
    def at(cls, path: Path) -> Predecessor | None:
        """Get the sockets of the running proxy; None if there is none.

        Raises:
            SettingsError: the process there hands over no sockets.
            StoppedError: this process was told to stop meanwhile.
        """
        until = time.monotonic() + END_SECONDS
        try:
            while True:
                try:
                    return cls._met(path)
                except (BrokenPipeError, ConnectionResetError):  # that proxy ends: soon another one listens, or none
                    if time.monotonic() >= until:
                        raise
                    time.sleep(_AGAIN_SECONDS)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise SettingsError(f"takeover: {path}: {_in_words(error)}") from None

    @classmethod
    def _met(cls, path: Path) -> Predecessor | None:
        way = socket.socket(socket.AF_UNIX)
        made = cls(path, way)
        try:
            way.setblocking(False)
            _wait(lambda: _connect(way, path))
            _check_user(way)
            while made._take(way):
                pass
        except BaseException as error:
            made.given.close()
            if made.listener is not None:
                made.listener.close()
            way.close()
            if isinstance(error, FileNotFoundError | ConnectionRefusedError):
                return None
            raise
        return made

    def _take(self, way: socket.socket) -> bool:
        """Receive the next message and its sockets; return whether more will follow."""
        way.sendall(NEXT)
        _wait(lambda: bool(select.select([way], [], [], _LOOK_SECONDS)[0]))
        line, descriptors, flags, _ = socket.recv_fds(way, _LONGEST, MOST)
        sockets = [_adopt(descriptor) for descriptor in descriptors]
        if flags & socket.MSG_CTRUNC:  # some descriptors were lost: this process may open no more files
            raise OSError(errno.EMFILE, "too few open files to take the sockets: raise their limit (ulimit -n)")
        if not line:
            raise BrokenPipeError
        if line == GIVES_UP:
            raise ConnectionError(_GIVEN_UP)
        text = line.decode()
        told, length = json.JSONDecoder().raw_decode(text)
        what, marks = told["is"], _marks(told.get("marks"))
        if marks is not None and what in ("clients", "admin"):
            self.given.marks[str(told["address"])] = marks
        if what == "clients":
            self.given.clients[str(told["address"])] = sockets
        elif what == "admin":
            self.given.admin[str(told["address"])] = sockets[0]
        elif what == "takeover":
            self.listener, self.marks = sockets[0], marks
        else:
            if told["version"] != VERSION:
                raise ConnectionError("the running proxy is of an incompatible version; stop it first")
            self.given.keeps_files = bool(told["keeps_files"])
            self._early = text[length:].encode()
            return False
        return True

    def watch(self) -> None:
        """Send signs of life while this process starts, and notice when the other proxy ends."""
        self.look()
        if self._way is not None:
            asyncio.get_running_loop().add_reader(self._way, self.look)
            self._sign()

    def _sign(self) -> None:
        if self._way is not None:
            with contextlib.suppress(OSError):
                self._way.send(STARTS)
            self._signs = asyncio.get_running_loop().call_later(SIGN_SECONDS, self._sign)

    def look(self) -> None:
        """Process the other proxy's message, if one has arrived."""
        if self._way is None:
            return
        try:
            said = self._early or self._way.recv(1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""
        if said == GIVES_UP:
            self._gave_up = True
        else:
            self.ended.set()  # the other process is ending, or was killed
        self._answered.set()
        self.close()

    async def relieve(self) -> None:
        """Report that this process serves clients, and wait until the other proxy confirms that it leaves.

        Raises:
            SettingsError: the other proxy has given up on this process, and continues.
        """
        self.look()
        if self._way is not None:
            try:
                self._way.send(SERVES)
            except BlockingIOError:
                raise SettingsError(f"takeover: {self._path}: the proxy there does not answer") from None
            except OSError:
                self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._answered.wait()
        if self._gave_up:
            raise SettingsError(f"takeover: {self._path}: {_GIVEN_UP}")
        self.ended.set()
        self.close()

    def part(self) -> None:
        """Disconnect from the other proxy. From now on `ended` does not change: the other proxy cannot leave its files
        to this process any more."""
        self.look()
        if self._way is not None:
            with contextlib.suppress(OSError):
                self._way.shutdown(socket.SHUT_RDWR)
                if self._way.recv(1) == ENDS:
                    self.ended.set()
            self.close()

    def close(self) -> None:
        """Disconnect from the other proxy. Harmless if already disconnected."""
        if self._signs is not None:
            self._signs.cancel()
        if self._way is not None:
            if self._signs is not None:
                asyncio.get_running_loop().remove_reader(self._way)
            self._way.close()
            self._way = None


def _wait(is_done: Callable[[], bool]) -> None:
    """Call a function until it returns True. The function itself waits for a moment.

    Raises:
        TimeoutError: the function does not return True within `MEET_SECONDS`.
        StoppedError: this process was told to stop.
    """
    latest = time.monotonic() + MEET_SECONDS
    while not is_done():
        held_signals.check()
        if time.monotonic() >= latest:
            raise TimeoutError


def _connect(way: socket.socket, path: Path) -> bool:
    """Connect; return False if the queue of the running proxy is full, because many processes start at once."""
    try:
        way.connect(str(path))
    except BlockingIOError:
        time.sleep(_AGAIN_SECONDS)
        return False
    return True


def _marks(told: object) -> Marks | None:
    """Return a file's marks; None if the other proxy does not report them, or does not remove the file."""
    if not isinstance(told, list):
        return None
    device, inode, changed = (int(number) for number in told)
    return device, inode, changed


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time: another process may be about to take over"
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return "the running proxy is shutting down and hands over no sockets"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "the process there is not a proxy"


def _adopt(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    one = socket.socket(fileno=descriptor)
    one.setblocking(False)
    return one


def _check_user(other: socket.socket) -> None:
    """Check that the other process belongs to this user or to root.

    Raises:
        ConnectionError: it belongs to another user.
    """
    if not sys.platform.startswith("linux"):
        return  # other systems have no such check: there the path must be in a folder of this user
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    if user not in (0, os.geteuid()):
        raise ConnectionError(f"it belongs to another user ({user})")
