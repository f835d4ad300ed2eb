"""Remove secrets from the server's errors on control connections: a server quotes requests that it rejects.

Its tests: tests/test_passwords.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from redis.exceptions import ResponseError

from proxy.upstream.words import ProxyBehindError, is_proxys

_QUOTED: Final = ", with args beginning with"
"""After these words Redis and Valkey quote the arguments of an unknown command, even the password of a login."""

_UNKNOWN: Final = re.compile(r"unknown command [`'\"]?([^`'\",\s]+)", re.IGNORECASE)

_CERTAIN: Final = 8
"""Minimum length of passwords that are hidden even inside a word: shorter ones may be part of an ordinary word."""


class UnknownCommandError(ResponseError):
    """The server does not know a command.

    Attributes:
        command: its name, in upper case.
    """

    def __init__(self, command: str) -> None:
        self.command = command.upper()
        why = "it is older than Redis 6, or" if self.command == "HELLO" else "perhaps"
        super().__init__(f"the server has no {self.command}: {why} rename-command took it away")


def shown(error: Exception, passwords: Iterable[str]) -> Exception:
    """Return an error of the server without secrets: reworded, or replaced by a clearer one.

    Args:
        error: the server's error.
        passwords: passwords that may have been sent to the server.
    """
    if is_proxys(str(error)):
        return ProxyBehindError(None)
    text, quoted, _ = str(error).partition(_QUOTED)
    for password in passwords:
        word = re.escape(password)
        text = re.sub(word if len(password) >= _CERTAIN else rf"(?<!\w){word}(?!\w)", "***", text)
    unknown = _UNKNOWN.match(text)
    if unknown is not None and "subcommand" not in text:
        return UnknownCommandError(unknown[1])
    if quoted or text != str(error):
        error.args = (text,)
    return error
