"""`check --probe`: test whether the running proxy answers a PING on its addresses.

Its tests: tests/test_check.py.

A container's health check runs the probe every few seconds, so this module avoids slow imports.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from proxy.addresses import DEFAULT_LISTEN, UNLISTED, TCPAddress, parse_address, split_addresses
from proxy.names import lookup

TIMEOUT: Final = 4.0
"""Time limit in seconds for one address, from connecting to the reply."""

LARGEST: Final = 64 * 1024
"""Maximum number of bytes of a reply to read."""

PING: Final = b"*1\r\n$4\r\nPING\r\n"
_HEADER: Final = b"PROXY UNKNOWN\r\n"
"""A PROXY protocol header without a client's address, because the probe connects for itself."""

ANY: Final = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to connect to
BUSY: Final = (b"-BUSY ", b"-LOADING ", b"-MISCONF ", b"-MASTERDOWN ", b"-ERR max number of clients reached")
"""Errors of a server that is alive but does not serve now: restarting the proxy would not help."""

_ALIVE: Final = (b"+PONG", b"-NOAUTH", b"-NOPERM", UNLISTED.rstrip(), *BUSY)
_WANTS_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")


class NoAnswerError(Exception):
    """There was no reply, or only part of one; the text says what happened."""


class NoConnectionError(NoAnswerError):
    """The address is unreachable."""


class CertificateWantedError(NoAnswerError):
    """The address requires a client certificate, which a probe does not have."""


def ask(
    address: str,
    request: bytes,
    is_whole: Callable[[bytes], bool],
    timeout: float = TIMEOUT,
    balancers: Sequence[str] = (),
) -> bytes:
    """Send a request to an address, and return the reply.

    Args:
        address: a listen address, as in the settings.
        request: the request.
        is_whole: returns whether enough of the reply has been read.
        timeout: seconds for the whole exchange.
        balancers: the networks from which connections begin with a PROXY protocol header.

    Raises:
        ConnectionRefusedError: nothing listens there.
        FileNotFoundError: the socket does not exist.
        CertificateWantedError: a client certificate is required.
        NoConnectionError: no connection could be opened.
        NoAnswerError: no reply came, or only part of one.
    """
    where = parse_address(address)
    end = time.monotonic() + timeout

    def left() -> float:
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    reply = b""
    try:
        by_tls = not isinstance(where, Path) and where.tls
        with _reach(where, left) as plain:
            plain.settimeout(left())
            if balancers and _is_among(plain, balancers):
                plain.sendall(_HEADER)
            with _tls(plain) if by_tls else plain as connection:
                connection.settimeout(left())
                connection.sendall(request)
                while not is_whole(reply) and len(reply) < LARGEST:
                    connection.settimeout(left())
                    data = connection.recv(LARGEST)
                    if not data and not reply and by_tls:
                        # After the handshake, only a missing client certificate makes a server close without a reply.
                        raise CertificateWantedError("it closed the connection after the handshake")
                    if not data:
                        raise NoAnswerError("it closed the connection" + (" in the middle of a reply" if reply else ""))
                    reply += data
    except (ConnectionRefusedError, FileNotFoundError, NoConnectionError):
        raise
    except TimeoutError:
        raise NoAnswerError(f"it did not answer in {timeout:g} s") from None
    except OSError as error:
        if any(reason in str(getattr(error, "reason", "")) for reason in _WANTS_CERTIFICATE):
            raise CertificateWantedError("it requires a client certificate") from None
        raise NoAnswerError(str(error.strerror or error)) from None
    return reply


def _reach(where: Path | TCPAddress, left: Callable[[], float]) -> socket.socket:
    """Connect to the address."""
    if isinstance(where, Path):
        return _connect(socket.AF_UNIX, str(where), left)
    try:
        found = lookup(ANY.get(where.host, where.host), where.port, left())
    except OSError as error:
        raise NoConnectionError(str(error.strerror or error)) from None
    for family, _, _, _, address in found[:-1]:
        with contextlib.suppress(OSError, NoConnectionError):
            return _connect(family, address, left)
    family, _, _, _, address = found[-1]
    return _connect(family, address, left)


def _connect(family: int, address: Any, left: Callable[[], float]) -> socket.socket:
    connection = socket.socket(family)
    try:
        connection.settimeout(left())
        connection.connect(address)
    except (ConnectionRefusedError, FileNotFoundError):
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise NoConnectionError(str(error.strerror or error)) from None
    return connection


def _is_among(connection: socket.socket, balancers: Sequence[str]) -> bool:
    """Return whether the local end of a connection is in one of the networks."""
    if connection.family == socket.AF_UNIX:
        return False
    from proxy.listen.header import is_among, networks

    return is_among(str(connection.getsockname()[0]), networks(balancers))


def _tls(connection: socket.socket) -> socket.socket:
    """Start TLS without verifying the peer, because nothing secret is sent."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def printable(text: str) -> str:
    """Replace control characters in a text."""
    return "".join(character if character.isprintable() else "?" for character in text)


def has_line(reply: bytes) -> bool:
    """Return whether the first line of a reply is complete."""
    return b"\r\n" in reply


def probe(addresses: Iterable[str], say: Callable[[str], None], balancers: Sequence[str] = ()) -> bool:
    """Return whether the proxy serves clients at all addresses.

    Args:
        addresses: the proxy's listen addresses, as in the settings.
        say: called with a line about each address.
        balancers: the networks from which connections begin with a PROXY protocol header.
    """
    healthy = True
    for address in addresses:
        try:
            line = ask(address, PING, has_line, balancers=balancers).partition(b"\r\n")[0]
            alive = line.startswith(_ALIVE)
            said = "answers" if alive else printable(line.removeprefix(b"-")[:300].decode("utf-8", "replace"))
        except CertificateWantedError:
            alive, said = True, "answers, and requires a client certificate"
        except (ConnectionRefusedError, FileNotFoundError):
            alive, said = False, "nothing listens there; is the proxy running?"
        except NoAnswerError as error:
            alive, said = False, str(error)
        say(f"{address}: {said}")
        healthy = healthy and alive
    return healthy


def listening(arguments: list[str], environment: Mapping[str, str]) -> list[str] | None:
    """Return the listen addresses; None if all settings must be loaded to determine them.

    Args:
        arguments: the arguments after `check`.
        environment: the environment variables.
    """
    variables = {name.upper(): value for name, value in environment.items()}
    given: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--listen":
            given.append(value if equals else next(rest, ""))
        elif argument != "--probe":
            return None
    if variables.keys() & {"EXPIREMEMBER_CONFIG", "EXPIREMEMBER_LISTEN_PROXY_PROTOCOL"}:
        return None
    addresses = given or split_addresses(variables.get("EXPIREMEMBER_LISTEN", ",".join(DEFAULT_LISTEN)))
    try:
        for address in addresses:
            parse_address(address)
    except ValueError:
        return None
    return addresses or None


def run(addresses: Iterable[str], balancers: Sequence[str] = ()) -> int:
    """Probe the addresses, and print a line about each.

    Returns:
        The exit status: 0 if all answer, else 1.
    """
    return 0 if probe(addresses, print, balancers) else 1


def main() -> int | None:
    """Run the probe if the command line asks for a probe that needs no loaded settings.

    Returns:
        The exit status; None if the command line must be processed in full.
    """
    arguments = sys.argv[1:]
    if arguments[:1] != ["check"] or "--probe" not in arguments:
        return None
    addresses = listening(arguments[1:], os.environ)
    return None if addresses is None else run(addresses)
