"""The user and the password of control connections; a password file is read again for each connection.

Its tests: tests/test_passwords.py.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from proxy.settings import SettingsError

_REMEMBERED: Final = 8
"""How many passwords to remember and hide in errors: a reply to a login may come after the file has changed."""


class Credentials(CredentialProvider):
    """The credentials with which the proxy logs in.

    Args:
        user: the user; None for the server's default user.
        password: the password, unless it is in a file.
        file: the file with the password. Read at each login, so that a new password needs no restart.
        setting: the name of the setting for the file.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(
        self, user: str | None, password: str | None, file: Path | None, setting: str = "upstream_password_file"
    ) -> None:
        self._user = user
        self._password = password
        self._file = file
        self._setting = setting
        self._given: deque[str] = deque(maxlen=_REMEMBERED)
        if file is not None:
            try:
                _read(file, setting)
            except RedisError as error:
                raise SettingsError(str(error)) from None

    @property
    def given(self) -> Iterable[str]:
        """The last passwords used for logins, which must not appear in any text."""
        return self._given

    @property
    def user(self) -> str:
        """The user for logins."""
        return self._user or "default"

    @property
    def names_a_user(self) -> bool:
        """Whether the credentials are for a dedicated user, not the server's default user."""
        return self._user is not None

    def __bool__(self) -> bool:
        """Return whether there are any credentials."""
        return bool(self._user or self._password or self._file)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the password, or user and password.

        Raises:
            RedisError: the file cannot be used.
        """
        password = self._password or "" if self._file is None else _read(self._file, self._setting)
        if password and password not in self._given:
            self._given.append(password)
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Like `get_credentials`, for redis-py's asynchronous connections."""
        return self.get_credentials()


LARGEST: Final = 4096
"""Maximum size of a password file, in bytes."""


def _content(file: Path) -> bytes:
    """Return the content of a file, without blocking.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST} bytes")
    return content


def _read(file: Path, setting: str) -> str:
    try:
        password = _content(file).decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise RedisError(f"{setting} {file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RedisError(f"{setting} {file}: is not UTF-8") from None
    if not password:
        raise RedisError(f"{setting} {file}: is empty")
    return password
