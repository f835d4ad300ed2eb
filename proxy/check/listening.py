"""Finds out whether the proxy can listen where it is to, or listens there already."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.addresses import TCPAddress, parse_address
from proxy.check.findings import Finding, Level, fields
from proxy.check.probe import PING, CertificateWantedError, NoAnswerError, ask, has_line
from proxy.settings import Settings, SettingsError
from proxy.upstream.certificates import listening_context

_SUBJECT: Final = "listen"
_INFO: Final = b"*2\r\n$4\r\nINFO\r\n$12\r\nexpiremember\r\n"
_OURS: Final = b"-ERR expiremember-proxy:"


def check_listening(settings: Settings) -> Iterator[Finding]:
    """Give a finding for each address to listen on."""
    if settings.listen_tls_cert_file is not None:
        try:
            listening_context(settings)
        except SettingsError as error:
            yield Finding(Level.FAILURE, _SUBJECT, str(error))
    for address in settings.listen:
        level, text = _look(address)
        yield Finding(level, _SUBJECT, f"{address} {text}")


def _look(address: str) -> tuple[Level, str]:
    try:
        line = ask(address, PING, has_line).partition(b"\r\n")[0]
    except (ConnectionRefusedError, FileNotFoundError):
        return _bind(parse_address(address))
    except CertificateWantedError:
        return Level.OK, "is in use by a server that wants a client certificate: the proxy, if it is running"
    except NoAnswerError as error:
        return Level.FAILURE, f"is in use, and who listens there does not answer ({error}); choose another address"
    if line.startswith(b"-NOAUTH"):
        return Level.OK, "is in use by a server that wants a login: the proxy, if it is running"
    if line.startswith(_OURS):
        return Level.OK, "is where the proxy is running"
    if line.startswith((b"+PONG", b"-NOPERM")) and (version := _version(address)) is not None:
        return Level.OK, f"is where the proxy is running (version {version})"
    return Level.FAILURE, "is in use by another program; choose another address"


def _version(address: str) -> str | None:
    """Return the version of the proxy that listens at an address; None if that is no proxy."""
    try:
        reply = ask(address, _INFO, _is_whole)
    except (NoAnswerError, ConnectionRefusedError, FileNotFoundError):
        return None
    return fields(reply.decode("utf-8", "replace")).get("version") if b"# Expiremember" in reply else None


def _is_whole(reply: bytes) -> bool:
    head, end, body = reply.partition(b"\r\n")
    size = head[1:]
    return bool(end) and (not head.startswith(b"$") or not size.isdigit() or len(body) >= int(size) + 2)


def _bind(where: Path | TCPAddress) -> tuple[Level, str]:
    """Bind the address for a moment, to see whether that is possible."""
    if isinstance(where, Path):
        if not where.parent.is_dir():
            return Level.FAILURE, "cannot be listened on: there is no such folder"
        return Level.OK, "is free"
    try:
        family, kind, number, _, bound = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(bound)
    except OSError as error:
        return Level.FAILURE, f"cannot be listened on: {error.strerror or error}"
    return Level.OK, "is free"
