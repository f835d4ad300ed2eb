"""Read the PROXY protocol header from a connection before anything else reads from it.

Its tests: tests/test_proxy_protocol.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from proxy.wire.proxied import LONGEST, read

Networks: TypeAlias = tuple[IPv4Network | IPv6Network, ...]


class OnlyLookedError(ConnectionError):
    """The peer disconnected without sending anything, as the health checks of load balancers do."""


def networks(texts: Iterable[str]) -> Networks:
    """Parse networks from a setting.

    Raises:
        ValueError: a text is not a network.
    """
    return tuple(ip_network(text) for text in texts)


def is_among(host: str, of: Networks) -> bool:
    """Return whether an IP address is in one of the networks."""
    address = ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in of)


async def take_header(client: socket.socket, seconds: float) -> str | None:
    """Read the header from a connection, and not a byte more.

    Args:
        client: the connection, which nothing else reads from.
        seconds: how long the header may take to arrive.

    Returns:
        The client's address; None if the header has none.

    Raises:
        OnlyLookedError: the peer disconnected without sending anything.
        OSError: the connection ended within the header, or the header did not arrive in time.
        ProxyHeaderError: there is no header, or it cannot be used.
    """
    data = b""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    # Peek first: bytes after the header must stay unread for the next reader, which may be TLS.
                    there = client.recv(LONGEST, socket.MSG_PEEK)
                    if not there:
                        raise ConnectionResetError(f"the connection ended after {len(data)} bytes of a PROXY header")
                    header = read(data + there)
                    data += client.recv(len(there) if header is None else header.size - len(data))
                except (BlockingIOError, InterruptedError):
                    await until_readable(client)
                    continue
                if header is not None and len(data) == header.size:
                    return header.source
    except TimeoutError:
        raise TimeoutError(f"a PROXY header took longer than {seconds:g} s ({len(data)} bytes arrived)") from None
    except OSError as error:
        if not data:
            raise OnlyLookedError("the connection ended before a PROXY header") from error
        raise


async def until_readable(one: socket.socket) -> None:
    """Wait until a socket has something to read or, if it listens, to accept."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(one, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(one)
