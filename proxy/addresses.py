"""Parse listen addresses. Imports little, because health probes use it every few seconds.

Its tests: tests/test_proxy_protocol.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

DEFAULT_LISTEN: Final = ("127.0.0.1:6380",)

UNLISTED: Final = b"-ERR expiremember-proxy: this address is not in listen_proxy_protocol; use the load balancer\r\n"
"""The error for a client that does not come through a load balancer in listen_proxy_protocol."""

_HOST_AND_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/]+):([0-9]{1,5})")
_TLS: Final = "tls://"
_LAST_PORT: Final = 65_535


class TCPAddress(NamedTuple):
    """A TCP address to listen on.

    Attributes:
        host: a name or an IP address.
        port: the port.
        tls: whether clients use TLS there.
    """

    host: str
    port: int
    tls: bool = False


def split_addresses(text: str) -> list[str]:
    """Split a comma-separated list of addresses."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_address(address: str, *, offer_tls: bool = True) -> Path | TCPAddress:
    """Parse a listen address.

    Args:
        address: the address as in the settings.
        offer_tls: whether an error suggests the form `tls://host:port`.

    Returns:
        The path of a Unix socket, or a TCP address.

    Raises:
        ValueError: the address is neither `host:port` nor `tls://host:port` nor `unix:///path`.
    """
    if address.startswith("unix://"):
        path = address.removeprefix("unix://")
        if not path.startswith("/"):
            raise ValueError(f"{address!r}: the path of a Unix socket is absolute: unix:///path")
        return Path(path)
    match = _HOST_AND_PORT.fullmatch(address.removeprefix(_TLS))
    if match is None:
        forms = "host:port (such as 127.0.0.1:6380), tls://host:port" if offer_tls else "host:port (127.0.0.1:9121)"
        raise ValueError(f"{address!r} is not an address: use {forms} or unix:///path")
    if int(match[2]) > _LAST_PORT:
        raise ValueError(f"{address!r}: port {match[2]} is greater than {_LAST_PORT}")
    return TCPAddress(match[1].strip("[]"), int(match[2]), address.startswith(_TLS))
