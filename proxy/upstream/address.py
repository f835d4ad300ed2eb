"""Parse the upstream's address in the settings: that of one server, or those of Sentinels that know the primary.

Its tests: tests/test_sentinel_decisions.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

SENTINEL_PORT: Final = 26379
SERVER_PORT: Final = 6379

_ENCODED: Final = "in a password, / ? # @ and % are written as %2F %3F %23 %40 and %25"
_SENTINEL: Final = re.compile(r"(rediss?)\+sentinel://", re.IGNORECASE)
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:/@\s]+))(?::([0-9]{1,5}))?")
_FORM: Final = "redis+sentinel://host1,host2,host3/mymaster"


class Address(NamedTuple):
    """The address of a server or a Sentinel.

    Attributes:
        host: a name or an IP address.
        port: the port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UpstreamURL:
    """The parsed URL of an upstream.

    Attributes:
        tls: whether to speak TLS.
        user: the user to log in as; None for the default user.
        password: the password; None if the URL has none.
        database: the number of the database.
        address: the server's address; None for a Unix socket or Sentinels.
        path: the Unix socket, if any.
        sentinels: the Sentinels to query.
        primary: the name by which the Sentinels know the primary.
    """

    tls: bool = False
    user: str | None = None
    password: str | None = None
    database: int = 0
    address: Address | None = None
    path: str | None = None
    sentinels: tuple[Address, ...] = ()
    primary: str = ""

    def __str__(self) -> str:
        """Return the URL without credentials and database."""
        scheme = "rediss" if self.tls else "redis"
        if self.path is not None:
            # A path need not be UTF-8, but logs must be.
            return f"unix://{self.path.encode('utf-8', 'backslashreplace').decode()}"
        if self.address is not None:
            return f"{scheme}://{self.address}"
        return f"{scheme}+sentinel://{','.join(map(str, self.sentinels))}/{self.primary}"


def parse_upstream(url: str) -> UpstreamURL:
    """Parse the URL of an upstream.

    Raises:
        ValueError: the URL cannot be used. The text quotes no part of the URL: it might be part of the password.
    """
    if match := _SENTINEL.match(url):
        return _parse_sentinels(url[match.end() :], tls=match[1].lower() == "rediss")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"has no valid host and port: redis://host:port; {_ENCODED}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError(
            "must begin with redis://, rediss://, unix:// or redis+sentinel://, for example redis://127.0.0.1:6379"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"has a ? or a #, which mean nothing here; {_ENCODED}")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password is not None else None
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("names no socket: unix:///path")
        return UpstreamURL(user=user, password=password, path=unquote(parts.path))
    if not host:
        raise ValueError(f"names no host: redis://host:port; {_ENCODED}")
    database = _database(parts.path.strip("/"))
    return UpstreamURL(parts.scheme == "rediss", user, password, database, Address(host, port or SERVER_PORT))


def _parse_sentinels(rest: str, *, tls: bool) -> UpstreamURL:
    if "?" in rest or "#" in rest:
        raise ValueError(f"has a ? or a #, which mean nothing here; {_ENCODED}")
    authority, _, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    sentinels = []
    for text in hosts.split(","):
        found = _HOST.fullmatch(text.strip())
        if found is None or int(found[3] or 1) not in range(1, 1 << 16):
            raise ValueError(f"has no valid hosts and ports of Sentinels: {_FORM}; {_ENCODED}")
        sentinels.append(Address(found[1] or found[2], int(found[3] or SENTINEL_PORT)))
    primary, _, database = path.strip("/").partition("/")
    if not primary:
        raise ValueError(f"lacks the primary's name, as the Sentinels know it: {_FORM}")
    return UpstreamURL(
        tls,
        unquote(user) if at and user else None,
        unquote(password) if colon else None,
        _database(database),
        sentinels=tuple(dict.fromkeys(sentinels)),
        primary=unquote(primary),
    )


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError(f"the database after the / must be a number; {_ENCODED}")
    return int(text or 0)
