"""Cuts the connections on which proxies follow a server, at random instants, and lets them come back."""

from __future__ import annotations

import random
import re
import threading
from types import TracebackType
from typing import Final, Self

from tests.servers import Server

NAME: Final = b" name=expiremember-proxy "


class Cuts:
    """While entered, kills every proxy's own connections at random.

    Args:
        server: the server.
        seed: of the instants.
        longest: how many seconds the connections are kept down at most, and left alone at most.

    Attributes:
        count: connections that have been killed.
    """

    def __init__(self, server: Server, seed: str, longest: float = 0.3) -> None:
        self.count = 0
        self._chance = random.Random(seed)
        self._longest = longest
        self._client = server.connect()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._end.wait(self._chance.random() * self._longest):
            for _ in range(self._chance.choice((1, 1, 5, 20))):
                self._kill()
                if self._end.wait(self._chance.random() * self._longest / 20):
                    return

    def _kill(self) -> None:
        for line in self._client.command("CLIENT", "LIST").splitlines():
            found = re.search(rb"\bid=(\d+) ", line)
            if found and NAME in line and self._client.command("CLIENT", "KILL", "ID", found[1]) == b":1\r\n":
                self.count += 1
