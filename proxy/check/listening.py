"""Check whether the proxy can listen on its addresses, or already listens there.

Its tests: tests/test_check.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final

from proxy.addresses import TCPAddress, parse_address
from proxy.check.findings import Finding, Level, fields
from proxy.check.probe import ANY, BUSY, PING, CertificateWantedError, NoAnswerError, NoConnectionError, ask, has_line
from proxy.listen.sockets import bind, is_loopback
from proxy.names import lookup
from proxy.settings import Settings, SettingsError
from proxy.upstream.address import Address, parse_upstream
from proxy.upstream.certificates import listening_certificate_date, listening_context

_SUBJECT: Final = "listen"
_LONGEST_PATH: Final = 107 if sys.platform.startswith("linux") else 103
_INFO: Final = b"*2\r\n$4\r\nINFO\r\n$12\r\nexpiremember\r\n"
_PAGES: Final = b"GET /pages HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_DRAIN: Final = b"POST /drain"
"""Text that only the 404 page of the proxy's admin port contains."""

_OURS: Final = b"-ERR expiremember-proxy:"


def check_listening(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each address in `listen`."""
    if settings.listen_tls_cert_file is not None:
        try:
            listening_context(settings)
        except SettingsError as error:
            yield Finding(Level.FAILURE, _SUBJECT, str(error))
        if (date := listening_certificate_date(settings)) is not None:
            text = f"the certificate {date}: renew {settings.listen_tls_cert_file}, or set this machine's clock"
            yield Finding(Level.WARNING, _SUBJECT, text)
    for address in settings.listen:
        level, text = _look(address, settings.listen_proxy_protocol)
        yield Finding(level, _SUBJECT, f"{address} {text}")


def check_admin(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for the address of the admin port, if there is one."""
    if settings.admin is None:
        return
    where = parse_address(settings.admin)
    if where in map(parse_address, settings.listen):
        yield Finding(Level.FAILURE, "admin", f"{settings.admin} is in listen too; choose another address")
        return
    try:
        ask(settings.admin, _PAGES, lambda reply: _DRAIN in reply)
        level, text = Level.OK, "is where the proxy is running"
    except (ConnectionRefusedError, FileNotFoundError, NoConnectionError):
        level, text = _bind(where)
    except NoAnswerError:
        level, text = Level.FAILURE, "is in use by another program; choose another address"
    yield Finding(level, "admin", f"{settings.admin} {text}")


def check_takeover(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for the path in `takeover`, if there is one."""
    path = settings.takeover
    if path is None:
        return
    level, text = _look_at_path(path)
    if level is Level.OK:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                with contextlib.suppress(BlockingIOError):  # the socket's queue is full, so a process listens
                    probe.connect(str(path))
                text = "is in use: a proxy that starts takes over from the one there"
            except (FileNotFoundError, ConnectionRefusedError):
                pass  # a killed proxy may have left the file
            except OSError as error:
                level, text = Level.FAILURE, f"cannot be used: {error.strerror or error}"
    yield Finding(level, "takeover", f"{path} {text}")


def ports(settings: Settings) -> set[int]:
    """Return the TCP ports in `listen`."""
    addresses = map(parse_address, settings.listen)
    return {address.port for address in addresses if isinstance(address, TCPAddress)}


def own_address(settings: Settings, primary: Address | None) -> str | None:
    """Return the address in `listen` to which the upstream's address leads; None if there is none.

    Args:
        settings: the settings.
        primary: the primary's address according to Sentinels.
    """
    upstream = parse_upstream(settings.upstream)
    meant: set[tuple[str, int]] = set()
    if (address := upstream.address or primary) is not None:
        host, port = address
        with contextlib.suppress(OSError):  # a name that cannot be resolved is reported elsewhere
            meant = {_at(found) for found in lookup(ANY.get(host, host), port)}

    def is_meant(where: Path | TCPAddress) -> bool:
        if isinstance(where, Path):
            return upstream.path is not None and os.path.realpath(where) == os.path.realpath(upstream.path)
        return where.port in {port for _, port in meant} and _leads_to(meant, where)

    return next((address for address in settings.listen if is_meant(parse_address(address))), None)


def _leads_to(meant: Set[tuple[str, int]], where: TCPAddress) -> bool:
    try:
        found = lookup(where.host, where.port)[0]
    except OSError:
        return False
    if found[4][0] not in ANY:
        return _at(found) in meant
    return any(_is_here(host, found[0]) for host, port in meant if port == where.port)


def _at(found: tuple[Any, ...]) -> tuple[str, int]:
    return found[4][0], found[4][1]


def _is_here(host: str, family: int) -> bool:
    """Return whether an IP address belongs to this machine."""
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def exposed(settings: Settings) -> list[str]:
    """Return the addresses in `listen` that other machines can reach and that require no client certificate."""
    return [address for address in settings.listen if _is_open(parse_address(address), settings)]


def _is_open(where: Path | TCPAddress, settings: Settings) -> bool:
    if isinstance(where, Path) or (where.tls and settings.listen_tls_ca_file is not None):
        return False
    try:
        host = str(lookup(where.host, where.port)[0][4][0])
    except OSError:
        return False  # a name that cannot be resolved is reported elsewhere
    return not is_loopback(host)


def _look(address: str, balancers: Sequence[str]) -> tuple[Level, str]:
    try:
        line = ask(address, PING, has_line, balancers=balancers).partition(b"\r\n")[0]
    except (ConnectionRefusedError, FileNotFoundError):
        return _bind(parse_address(address))
    except NoConnectionError as error:
        where = parse_address(address)
        if isinstance(where, Path) and where.is_socket():
            return Level.FAILURE, f"cannot be listened on: {error}"
        return _bind(where)
    except CertificateWantedError:
        return Level.OK, "is in use by a server that requires a client certificate: the proxy, if it is running"
    except NoAnswerError as error:
        return Level.FAILURE, f"is in use, and the program there does not answer ({error}); choose another address"
    if line.startswith(b"-NOAUTH"):
        return Level.OK, "is in use by a server that requires a login: the proxy, if it is running"
    if line.startswith(BUSY):
        return Level.OK, f"is in use by a server that answers {line[1:].decode(errors='replace')}: perhaps the proxy"
    if line.startswith(_OURS):
        return Level.OK, "is where the proxy is running"
    if line.startswith((b"+PONG", b"-NOPERM")) and (version := section(address, balancers).get("version")) is not None:
        return Level.OK, f"is where the proxy is running (version {version})"
    return Level.FAILURE, "is in use by another program; choose another address"


def section(address: str, balancers: Sequence[str] = ()) -> dict[str, str]:
    """Return the INFO section of the proxy at an address; empty if no proxy answers there."""
    try:
        reply = ask(address, _INFO, _is_whole, balancers=balancers)
    except (NoAnswerError, ConnectionRefusedError, FileNotFoundError):
        return {}
    return fields(reply.decode("utf-8", "replace")) if b"# Expiremember" in reply else {}


def _is_whole(reply: bytes) -> bool:
    head, end, body = reply.partition(b"\r\n")
    size = head[1:]
    return bool(end) and (not head.startswith(b"$") or not size.isdigit() or len(body) >= int(size) + 2)


def _bind(where: Path | TCPAddress) -> tuple[Level, str]:
    """Check whether the address can be bound, by binding it briefly."""
    try:
        if isinstance(where, Path):
            return _look_at_path(where)
        bind(lookup(where.host, where.port)).close()
    except OSError as error:
        return Level.FAILURE, f"cannot be listened on: {error.strerror or error}"
    return Level.OK, "is free"


def _look_at_path(path: Path) -> tuple[Level, str]:
    """Check whether a socket can be created at a path, or can replace one that a killed proxy has left there."""
    reason = None
    if len(os.fsencode(path)) > _LONGEST_PATH:
        reason = f"its path is longer than {_LONGEST_PATH} bytes"
    elif not path.parent.is_dir():
        reason = "its folder does not exist"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        reason = "its folder is not writable"
    elif path.is_symlink() and not path.exists():
        reason = "it is a broken link"
    elif path.exists() and not path.is_socket():
        reason = "it is a file, not a socket"
    return (Level.OK, "is free") if reason is None else (Level.FAILURE, f"cannot be listened on: {reason}")
