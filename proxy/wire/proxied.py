"""Read the PROXY protocol header, versions 1 and 2, in which a load balancer reports a client's address.

Its tests: tests/test_proxy_protocol.py.

`read` gets all bytes received so far. To find the end of the header, it needs no byte after the header.
"""

from __future__ import annotations

import re
import struct
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

LONGEST: Final = 4096
"""Maximum size of a header, in bytes. A balancer's header with all extensions has a few hundred."""

LONGEST_LINE: Final = 107
"""Maximum size of a version 1 header, in bytes, by the protocol."""

_BEGIN: Final = b"PROXY "
_LINE: Final = re.compile(r"PROXY TCP([46]) (\S+) (\S+) (\d+) (\d+)", re.ASCII).fullmatch
_PORT: Final = re.compile(r"0|[1-9]\d{0,4}", re.ASCII).fullmatch

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD: Final = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED: Final = 0x00
_INET: Final = struct.Struct("!4s4sHH")
_INET6: Final = struct.Struct("!16s16sHH")
_UNIX: Final = struct.Struct("!108s108s")
_SHAPES: Final = {0x11: _INET, 0x21: _INET6, 0x31: _UNIX}
"""Second byte after the signature → format of the addresses after the length. Datagrams are not supported."""


class ProxyHeaderError(Exception):
    """The header is missing or cannot be used; the text says why."""


class ProxyHeader(NamedTuple):
    """A complete header.

    Attributes:
        size: its size in bytes; the bytes after it are the client's.
        source: the client's address, as the log shows it; None to use the peer's own.
    """

    size: int
    source: str | None


def read(data: bytes) -> ProxyHeader | None:
    """Read the header at the front of a connection.

    Args:
        data: all bytes received so far.

    Returns:
        The header; None if it is incomplete, so that all of `data` belongs to it.

    Raises:
        ProxyHeaderError: there is no header, or it cannot be used.
    """
    if data.startswith(_SIGNATURE[: len(data)]):
        return _read_binary(data)
    if data.startswith(_BEGIN[: len(data)]):
        return _read_line(data)
    raise ProxyHeaderError("the connection does not begin with a PROXY protocol header")


def shown(host: str, port: int) -> str:
    """Return an address as the log shows it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name(host: IPv4Address | IPv6Address, port: int) -> str:
    return shown(str(getattr(host, "ipv4_mapped", None) or host), port)


def _read_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, LONGEST_LINE)
    if end < 0:
        if len(data) >= LONGEST_LINE:
            raise ProxyHeaderError(f"a PROXY line has more than {LONGEST_LINE} bytes")
        return None
    text, size = data[:end].decode("latin-1"), end + 2
    if text == "PROXY UNKNOWN" or text.startswith("PROXY UNKNOWN "):
        return ProxyHeader(size, None)
    found = _LINE(text)
    if found is None:
        raise ProxyHeaderError("a PROXY line is none of TCP4, TCP6 and UNKNOWN with their addresses")
    family, source, destination, *ports = found.groups()
    kind = IPv4Address if family == "4" else IPv6Address
    try:
        host, _ = kind(source), kind(destination)
    except AddressValueError:
        raise ProxyHeaderError(f"a PROXY line has an invalid TCP{family} address") from None
    if "%" in source + destination:
        raise ProxyHeaderError(f"a PROXY line has an invalid TCP{family} address")
    if not all(_PORT(port) and int(port) <= 0xFFFF for port in ports):
        raise ProxyHeaderError("a PROXY line has an invalid port")
    return ProxyHeader(size, _name(host, int(ports[0])))


def _read_binary(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    size = _HEAD.size + length
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(f"a PROXY header has the version and command {command:#04x}: 0x20 and 0x21 are known")
    if size > LONGEST:
        raise ProxyHeaderError(f"a PROXY header has {size} bytes, more than {LONGEST}")
    shape = _SHAPES.get(family)
    if command == _PROXY:
        if shape is None and family != _UNSPECIFIED:
            raise ProxyHeaderError(f"a PROXY header has the family and transport {family:#04x}: not a stream")
        if shape is not None and length < shape.size:
            raise ProxyHeaderError(f"a PROXY header has {length} bytes of addresses: {shape.size} are needed")
    if len(data) < size:
        return None
    if command == _LOCAL or shape is None:
        return ProxyHeader(size, None)
    source, _, *ports = shape.unpack_from(data, _HEAD.size)
    if shape is _UNIX:
        return ProxyHeader(size, _path(source))
    host = IPv4Address(source) if shape is _INET else IPv6Address(source)
    return ProxyHeader(size, _name(host, ports[0]))


def _path(field: bytes) -> str | None:
    """Return a Unix address as the log shows it; None for an unnamed socket, which most clients use."""
    name = field.rstrip(b"\0") if field.startswith(b"\0") else field.partition(b"\0")[0]
    text = "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in name)
    return f"unix:{text}" if text else None
