"""Cuts the connections on which proxies follow a server, at random instants, and lets them come back."""

from __future__ import annotations

import random
import re
from types import TracebackType
from typing import Final

from tests.beside import Beside
from tests.servers import Server

NAME: Final = b" name=expiremember-proxy "


class Cuts(Beside):
    """While entered, kills every proxy's own connections at random.

    Args:
        server: the server.
        seed: of the instants.
        longest: how many seconds the connections are kept down at most, and left alone at most.

    Attributes:
        count: connections that have been killed.
    """

    def __init__(self, server: Server, seed: str, longest: float = 0.3) -> None:
        super().__init__()
        self.count = 0
        self._chance = random.Random(seed)
        self._longest = longest
        self._client = server.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._client.close()

    def work(self) -> None:
        while not self.end.wait(self._chance.random() * self._longest):
            for _ in range(self._chance.choice((1, 1, 5, 20))):
                self._kill()
                if self.end.wait(self._chance.random() * self._longest / 20):
                    return

    def _kill(self) -> None:
        for line in self._client.command("CLIENT", "LIST").splitlines():
            found = re.search(rb"\bid=(\d+) ", line)
            if found and NAME in line and self._client.command("CLIENT", "KILL", "ID", found[1]) == b":1\r\n":
                self.count += 1
