"""The upstream server: how to reach it for a client's connection and for the proxy's own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from proxy.settings import Settings, SettingsError

CLIENT_NAME = "expiremember-proxy"
_POOL = 8


class Upstream:
    """The address of the upstream server, and what it takes to connect to it.

    Args:
        settings: the settings.
        url: where it is; that of the settings, or the embedded server's.

    Raises:
        SettingsError: a certificate cannot be used.

    Attributes:
        database: the number of the database in which the proxy's own connections begin.
        state: what is known of it, for people: "not tried yet", "reachable" or what went wrong.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        parts = urlsplit(url)
        self.state = "not tried yet"
        self._settings = settings
        self._user = unquote(parts.username) if parts.username else None
        self._password = unquote(parts.password) if parts.password else None
        self._path = unquote(parts.path) if parts.scheme == "unix" else None
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or 6379
        self.database = int(parts.path.strip("/") or 0) if parts.scheme != "unix" else 0
        self._tls = self._tls_context() if parts.scheme == "rediss" else None

    def __str__(self) -> str:
        """The address, without credentials."""
        if self._path is not None:
            return f"unix://{self._path}"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'rediss' if self._tls else 'redis'}://{host}:{self._port}"

    def _tls_context(self) -> ssl.SSLContext:
        settings = self._settings
        try:
            context = ssl.create_default_context(cafile=settings.tls_ca_file)
            if settings.tls_cert_file is not None:
                context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
        except OSError as error:
            files = ", ".join(
                f"{name} {path}"
                for name, path in (
                    ("tls_ca_file", settings.tls_ca_file),
                    ("tls_cert_file", settings.tls_cert_file),
                    ("tls_key_file", settings.tls_key_file),
                )
                if path is not None
            )
            raise SettingsError(f"{files}: cannot be used: {error.strerror or error}") from None
        if not settings.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection for a client.

        Raises:
            OSError: it cannot be reached.
            TimeoutError: it did not answer within `connect_timeout`.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._settings.connect_timeout):
            if self._path is not None:
                await loop.create_unix_connection(factory, self._path)
                return
            name = self._host if self._tls else None
            transport, _ = await loop.create_connection(
                factory, self._host, self._port, ssl=self._tls, server_hostname=name
            )
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def control(self) -> Redis:
        """Make a client for the proxy's own requests (RESP2, replies as bytes; nothing connects yet)."""
        pool = BlockingConnectionPool(
            connection_class=self._connection_class(), max_connections=_POOL, timeout=None, **self._options(2)
        )
        return Redis(connection_pool=pool)

    def listening_connection(self) -> Connection | UnixDomainSocketConnection:
        """Make a RESP3 connection on which the server's pushes are read (it is not connected yet)."""
        connection: Connection | UnixDomainSocketConnection = self._connection_class()(**self._options(3))
        return connection

    def _connection_class(self) -> type[Connection] | type[UnixDomainSocketConnection]:
        if self._path is not None:
            return UnixDomainSocketConnection
        return SSLConnection if self._tls else Connection

    def _options(self, protocol: int) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "username": self._user,
            "password": self._password,
            "db": self.database,
            "protocol": protocol,
            "client_name": CLIENT_NAME,
            "socket_timeout": settings.control_timeout,
            "socket_connect_timeout": settings.connect_timeout,
            # The callers decide what a failure means; a call repeated behind their back could only hide it.
            "retry": Retry(NoBackoff(), 0),
        }
        if self._path is not None:
            return options | {"path": self._path}
        options |= {"host": self._host, "port": self._port, "socket_keepalive": True}
        if self._tls is not None:
            options |= {
                "ssl_ca_certs": str(settings.tls_ca_file) if settings.tls_ca_file else None,
                "ssl_certfile": str(settings.tls_cert_file) if settings.tls_cert_file else None,
                "ssl_keyfile": str(settings.tls_key_file) if settings.tls_key_file else None,
                "ssl_cert_reqs": "required" if settings.tls_verify else "none",
                "ssl_check_hostname": settings.tls_verify,
            }
        return options
