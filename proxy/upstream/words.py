"""Explain in plain words why the upstream cannot be used, instead of the client library's text.

Its tests: tests/test_words.py.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

REACH: Final = "check the address, and that the server runs"
"""Advice about a server that cannot be reached."""


CLIENT_NAME: Final = "expiremember-proxy"
"""The proxy's name, in CLIENT LIST and at the start of its own errors."""


EMBEDDED_BEHIND: Final = "its server is embedded, for that proxy alone: set upstream to another server"
"""Advice about an upstream that is a proxy with an embedded server."""


class ProxyBehindError(RedisError):
    """The upstream is an expiremember-proxy itself.

    The text never quotes that proxy's own error, which may quote an error of this proxy, and so on.

    Args:
        behind: the URL of the server behind that proxy; None if that proxy cannot serve clients.
        embedded: whether that server is embedded.

    Attributes:
        behind: as passed.
        advice: what the operator can do.
    """

    def __init__(self, behind: str | None, *, embedded: bool = False) -> None:
        self.behind = behind
        other = f"set upstream to {behind or 'the Redis or Valkey server behind it'}"
        self.advice = EMBEDDED_BEHIND if embedded else other
        super().__init__(f"it is an expiremember-proxy itself; {self.advice}")


def is_proxys(text: str) -> bool:
    """Return whether an error, without its ERR, comes from an expiremember-proxy."""
    return text.startswith(f"{CLIENT_NAME}: ")


def in_words(error: BaseException) -> str:
    """Return what went wrong with a connection to the upstream, on one line; an error reply unchanged."""
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return "no answer in time"
    text = " ".join(str(error).split())
    if not is_unreachable(error):
        return text or type(error).__name__
    cause = _system_error(error)
    if isinstance(cause, ssl.SSLError):
        return text
    if isinstance(cause, socket.gaierror):
        return "its name cannot be looked up"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):  # the server's close may cause either
        return "it closed the connection"
    if cause is not None and cause.errno:
        return os.strerror(cause.errno).lower()
    closed = text.startswith(("Connection closed", "Connection lost", "the connection was lost")) or any(
        isinstance(cause, ConnectionResetError) for cause in _causes(error)
    )
    return "it closed the connection" if closed else text


def is_silent_from_the_start(error: BaseException) -> bool:
    """Return whether the server has sent nothing at all, not even for the TLS handshake."""
    return isinstance(error, RedisTimeoutError) and str(error).startswith("Timeout connecting")


def is_unreachable(error: BaseException) -> bool:
    """Return whether the server could not be reached or was lost; False for an error reply."""
    return isinstance(error, OSError) or type(error) in (RedisConnectionError, RedisTimeoutError)


def answers_ping(reply: object) -> bool:
    """Return whether a reply to PING shows that the server serves the connection.

    A server that cannot save its data returns an error even to PING, though it answers reads.
    """
    return reply == b"PONG" or (isinstance(reply, ResponseError) and str(reply).startswith("MISCONF "))


def _system_error(error: BaseException | None) -> OSError | None:
    """Return the first system error with a number among an error and its causes, or None."""
    return next((cause for cause in _causes(error) if isinstance(cause, OSError) and cause.errno is not None), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
