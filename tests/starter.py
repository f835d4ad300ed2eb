"""Starts proxies from a process that has loaded the package already, as `python -m proxy` does from nothing.

To load it takes most of the CPU time of a start, and the tests start more than a thousand proxies. So one process per
worker of the tests, which has one thread and no event loop, loads it once and forks for each proxy. What is forked gets
its own arguments, environment, folder and output, and runs `proxy/__main__.py` from the first line: only its imports
find their modules loaded. Where another copy of the package is to run, its modules are loaded anew, but not those of
other packages, half of the work. All proxies of a starter share the seed of Python's hashes.

Tests that look at the start itself start Python anew: see `Proxy` in `servers.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

MODULES: Final = ("proxy.entry", "proxy.check.probe", "proxy.cli", "proxy.server", "encodings.idna", "email.parser")
"""What a proxy has loaded when it is ready."""

MOST_BYTES: Final = 1 << 17
"""Of an order, which says what a proxy is given."""


class Forked:
    """A forked proxy's guard, as far as tests know it: it ends the proxy when its standard input is closed.

    Args:
        stdin: the other end of its standard input.
        stdout: where the proxy's output comes.
        status: where it says the number of the proxy's process, and then the exit status, a line each.
    """

    def __init__(self, stdin: int, stdout: int, status: int) -> None:
        self.stdin: IO[bytes] = os.fdopen(stdin, "wb", 0)
        self.stdout: IO[bytes] = os.fdopen(stdout, "rb", 0)
        self._status = os.fdopen(status, "rb", 0)
        self._said = b""
        self._lock = threading.Lock()
        self._returned: int | None = None

    def child(self) -> int:
        """Wait for the number of the proxy's process."""
        select.select([self._status], [], [])
        self.poll()
        return int(self._said.split(b"\n")[0] or 0)

    def poll(self) -> int | None:
        """Return the exit status, if it has ended."""
        with self._lock:
            while self._returned is None and select.select([self._status], [], [], 0)[0]:
                said = os.read(self._status.fileno(), 64)
                self._said += said
                if not said:
                    self._status.close()
                    self._returned = int(self._said.split(b"\n")[1])
            return self._returned

    def wait(self, timeout: float) -> int:
        """Wait for the exit status.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        ends = time.monotonic() + timeout
        while (returned := self.poll()) is None:
            left = ends - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("proxy", timeout)
            with contextlib.suppress(ValueError):  # another thread has seen the end meanwhile
                select.select([self._status], [], [], left)
        return returned


class Starter:
    """The process that forks.

    Args:
        env: its environment.
        folder: the one to run in, which has the package.
    """

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._env = _common(env)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # It ends when the other end of its socket is closed, however the tests end.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.starter", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=env,
                cwd=folder,
                pass_fds=[theirs.fileno()],
            )

    def fits(self, env: Mapping[str, str]) -> bool:
        """Whether it can start a proxy with an environment: but for what `_common` leaves out it must be its own."""
        return _common(env) == self._env and Path(env["PYTHONPATH"], "proxy", "__init__.py").exists()

    def start(self, arguments: list[str], env: Mapping[str, str], folder: Path) -> Forked:
        """Start a proxy."""
        order = json.dumps({"arguments": arguments, "env": dict(env), "folder": str(folder)}).encode()
        assert len(order) < MOST_BYTES
        (stdin, our_stdin), (our_stdout, stdout), (our_status, status) = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin, stdout, status]
        socket.send_fds(self._control, [order], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        return Forked(our_stdin, our_stdout, our_status)


def _common(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without the settings of the proxy, where its package is, and what pytest changes each time."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith("EXPIREMEMBER_") and name not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")
    }


# In the process that forks.


def main() -> None:
    """Fork for each order; in what is forked, run the proxy."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _load()
    signal.signal(signal.SIGINT, lambda *_: None)  # at a terminal all get it: the tests end the proxies
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 3)
        if not order:
            return
        if os.fork() == 0:
            control.close()
            if not _guard(*descriptors):
                break
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()
    _become(**json.loads(order))


def _load() -> None:
    from proxy.loading import loading

    with loading():
        for name in MODULES:
            importlib.import_module(name)
    # What the first connections of a proxy would make, and keep.
    from proxy.session.plain import frequent_requests
    from proxy.settings import Settings

    frequent_requests(str(Settings.model_fields["prefix"].default).encode()[:1])


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _guard(stdin: int, stdout: int, status: int) -> bool:
    """Fork once more, and do for the proxy what `proxy/embedded/guard.py` does; return only in the proxy, False."""
    child = os.fork()
    if child == 0:
        os.close(stdin)
        os.close(status)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (stdout, 1), (stdout, 2)):
            os.dup2(descriptor, number)
        os.close(nothing)
        os.close(stdout)
        return False
    code = 255
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        os.close(stdout)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(status, b"%d\n" % child)
        ended = os.pidfd_open(child)
        while not (ready := select.select([stdin, ended], [], [])[0]):
            pass
        if ended not in ready:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.write(status, b"%d\n" % (code if code >= 0 else 128 - code))
        os._exit(0)


def _become(arguments: list[str], env: dict[str, str], folder: str) -> None:
    """Run the proxy, as `python -m proxy` in a folder."""
    here, there = os.environ["PYTHONPATH"], env["PYTHONPATH"]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.path[0] = folder
    sys.argv = ["-m", *arguments]
    random.seed()
    if there != here:
        sys.path[1:] = [there if path == here else path for path in sys.path[1:]]
        for name in [name for name in sys.modules if name.partition(".")[0] == "proxy"]:
            del sys.modules[name]
        _load()
    runpy.run_module("proxy", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
