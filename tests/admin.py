"""Talks to a proxy's admin port."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import StartProxy
from tests.patience import patience
from tests.raw import Address
from tests.servers import Proxy, Server

PROBE = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"


class Admin:
    """The admin port of a proxy.

    Args:
        address: where it is.
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def connect(self, timeout: float = 20) -> socket.socket:
        """Open a connection."""
        connection = socket.socket(socket.AF_UNIX if isinstance(self.address, Path) else socket.AF_INET)
        connection.settimeout(patience(timeout))
        connection.connect(str(self.address) if isinstance(self.address, Path) else self.address)
        return connection

    @contextmanager
    def conversation(self) -> Iterator[http.client.HTTPConnection]:
        """Give a connection that is kept between requests."""
        connection = http.client.HTTPConnection("here")
        connection.sock = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """Send a request; return the status and the body of the answer."""
        with self.conversation() as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """Return all samples: ``name{label=value}``, without the prefix and without a label's quotes, → value."""
        status, text = self.ask("/metrics")
        assert status == 200
        return {
            sample.name.removeprefix("expiremember_")
            + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items() if name not in ("upstream", "le"))
            + (f"<={sample.labels['le']}" if "le" in sample.labels else ""): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def admin_of(proxy: Proxy) -> Admin:
    """Return the admin port of a proxy that has one, once it is open."""
    line = proxy.process.line(lambda line: "admin port open" in line)
    match = re.search(r'"address": "(?:unix://(?P<path>[^"]+)|(?P<host>[^"]+):(?P<port>\d+))"', line)
    assert match is not None, line
    return Admin(Path(match["path"]) if match["path"] else (match["host"], int(match["port"])))


def with_admin(start_proxy: StartProxy, upstream: Server | None, *args: str, ready: bool = True) -> tuple[Proxy, Admin]:
    """Start a proxy with an admin port."""
    proxy = start_proxy(upstream, "--admin", "127.0.0.1:0", *args, ready=ready)
    return proxy, admin_of(proxy)
