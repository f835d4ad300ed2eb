"""Two network namespaces joined by a cable that can be cut, so that packets vanish without a word."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

NEAR = "10.213.0.1"
FAR = "10.213.0.2"
_MACS = {NEAR: "02:00:00:00:00:01", FAR: "02:00:00:00:00:02"}
_CLONE_NEWNET = 0x40000000


class Cable:
    """Two namespaces, near and far, each with one address.

    Attributes:
        near: the name of the one.
        far: the name of the other.
    """

    def __init__(self) -> None:
        token = secrets.token_hex(4)
        self.near, self.far = f"em-near-{token}", f"em-far-{token}"

    def _open(self) -> None:
        for name in (self.near, self.far):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self.near, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.far)
        for name, mine, other in ((self.near, NEAR, FAR), (self.far, FAR, NEAR)):
            _ip("-n", name, "link", "set", "cable", "address", _MACS[mine])
            _ip("-n", name, "address", "add", f"{mine}/30", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
            # Known for ever: no question about addresses can bring news of the cut.
            _ip("-n", name, "neigh", "replace", other, "lladdr", _MACS[other], "dev", "cable", "nud", "permanent")

    def _close(self) -> None:
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def cut(self) -> None:
        """Let all that near sends vanish from now on, also what it would acknowledge with.

        Far listens to another hardware address than near sends to. Only far's changes: near would forget far's
        with its own, and ask anew.
        """
        _ip("-n", self.far, "link", "set", "cable", "address", "02:00:00:00:ff:02")

    def command(self, name: str, *command: str) -> list[str]:
        """Return the command line that runs a command in one of the namespaces."""
        return ["ip", "netns", "exec", name, *command]

    def within(self, name: str, action: Callable[[], T]) -> T:
        """Do something in one of the namespaces; a socket made there stays there."""
        results: list[T] = []

        def act() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
            try:
                assert libc.setns(descriptor, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            finally:
                os.close(descriptor)
            results.append(action())

        thread = threading.Thread(target=act)  # only this thread moves, and it ends
        thread.start()
        thread.join()
        return results[0]


@contextmanager
def cable() -> Iterator[Cable]:
    """Make two namespaces; they are gone afterwards. Needs root, and the package iproute2."""
    made = Cable()
    try:
        made._open()
        yield made
    finally:
        made._close()


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"
