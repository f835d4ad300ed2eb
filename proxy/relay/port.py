"""One client's access to shared connections, and the limits on long replies that wait in the proxy.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LARGE: Final = 16 * 1024
"""Replies of this size are long: the lane takes no requests until the reply is complete, and the client returns to its
own connection."""

BACKLOG: Final = 16 * 1024 * 1024
"""While more bytes wait for a client, no more of its long reply is read from the server."""

ALL_BACKLOGS: Final = 64 * 1024 * 1024
"""Limit for the bytes that wait for all clients together."""

LEAST_BACKLOG: Final = 256 * 1024
"""Bytes that each client may have waiting even if the limit for all is used up."""


class Port:
    """One client's access to lanes. At most one request is under way, so a client's requests stay in order.

    Args:
        deliver: takes bytes of replies.

    Attributes:
        busy: whether a request is under way.
        used: whether a request has been sent since this was set to False.
        deliver: takes bytes of replies.
        request: the last request.
        settled: if set, called when the request has been answered.
        retire: called if sharing does not pay for this client: it got a long reply, or one of many parts.
        lost: called if the reply will not arrive.
        returned: takes back a request to be sent over the client's own connection: it has not run, or can run twice.
        backlog: returns how many bytes of replies wait for the client to read them.
        broke: called with an exception that one of the other functions, or sending the request, raised.
    """

    __slots__ = (
        "backlog",
        "broke",
        "busy",
        "deliver",
        "lost",
        "request",
        "retire",
        "returned",
        "settled",
        "used",
    )

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self.busy = self.used = False
        self.deliver = deliver
        self.request = b""
        self.settled: Callable[[], None] | None = None
        self.retire: Callable[[], None] = nothing
        self.lost: Callable[[], None] = nothing
        self.returned: Callable[[bytes], None] = drop
        self.backlog: Callable[[], int] = int
        self.broke: Callable[[Exception], None] = drop

    def give_back(self, request: bytes) -> None:
        """Have the client send a request over its own connection: it has not run, or can run twice."""
        self.busy = False
        try:
            self.returned(request)
        except Exception as error:  # noqa: BLE001 - one client's defect is not another's
            self.broke(error)

    def lose(self) -> None:
        """Tell the client that its reply will not arrive."""
        self.busy = False
        try:
            self.lost()
        except Exception as error:  # noqa: BLE001
            self.broke(error)

    def fail(self, error: Exception) -> None:
        """Close the client's connection because of a defect."""
        self.busy = False
        self.broke(error)


class Room:
    """Limits the parts of long replies that wait in the proxy, for all clients together."""

    def __init__(self) -> None:
        self._ports: set[Port] = set()  # ports that received part of a long reply

    def of(self, port: Port) -> int:
        """Return how many bytes may wait for one client now."""
        self._ports.add(port)
        waiting = {other: other.backlog() for other in self._ports}
        self._ports = {other for other, backlog in waiting.items() if backlog > LARGE}
        others = sum(waiting.values()) - waiting[port]
        return max(LEAST_BACKLOG, min(BACKLOG, ALL_BACKLOGS - others))


def drop(_: object) -> None:
    """Ignore the argument."""


def nothing() -> None:
    """Do nothing."""
