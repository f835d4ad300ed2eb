"""What the log and the commands say of a connection: a state has one name, as the log tells only of another one."""

from __future__ import annotations

import errno
import os
import ssl

import pytest
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from proxy.settings import Settings
from proxy.upstream.complaint import complaint
from proxy.upstream.endpoint import Upstream
from proxy.upstream.words import in_words


def _raised_from(error: BaseException, text: str) -> RedisConnectionError:
    above = RedisConnectionError(text)
    above.__cause__ = error
    return above


def _numbered(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "error",
    [
        _numbered(errno.ECONNRESET),
        _numbered(errno.EPIPE),
        ConnectionResetError("the connection was lost"),
        RedisConnectionError("Connection closed by server."),
        RedisConnectionError("the connection was lost"),
        _raised_from(_numbered(errno.ECONNRESET), "Error while reading from 127.0.0.1:6379"),
        _raised_from(_numbered(errno.EPIPE), "Error 32 while writing to socket"),
        _raised_from(ConnectionResetError(), "Connection lost"),
    ],
    ids=lambda error: f"{type(error).__name__} {error}",
)
def test_an_end_has_one_name_whichever_way_it_is_told(error: BaseException) -> None:
    """A close that meets unread bytes is a reset: which of them comes is a matter of microseconds."""
    assert in_words(error) == "it closed the connection"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_numbered(errno.ECONNREFUSED), "connection refused"),
        (TimeoutError(), "no answer in time"),
        (ssl.SSLError(1, "wrong version number"), "('wrong version number',)"),
    ],
)
def test_other_states_keep_their_own(error: BaseException, words: str) -> None:
    assert in_words(error) != "it closed the connection"
    assert words.strip("(',)") in in_words(error)


URL = "redis://127.0.0.1:7777"
RIGHTS = "docs/x.md lists the rights"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (_numbered(errno.ECONNREFUSED), "connection refused; check the address, and that the server runs"),
        (TimeoutError(), "no answer in time; check the address, and that the server runs"),
        (
            AuthenticationError("Authentication required."),
            "it requires a password, and the proxy has none;"
            " set upstream_password_file, or upstream_password; a user goes in upstream",
        ),
        (
            NoPermissionError("this user has no permissions to run the 'config|get' command"),
            f"the user 'default' may not run CONFIG GET: it needs +config|get; {RIGHTS}",
        ),
        (
            ResponseError("ACL failure in script: User default has no permissions to run the 'zadd' command"),
            f"the user 'default' may not run ZADD: it needs +zadd; {RIGHTS}",
        ),
        (
            ResponseError("The user executing the script can't run this command or subcommand"),
            f"The user executing the script can't run this command or subcommand; {RIGHTS}",
        ),
        (BusyLoadingError("LOADING"), "it is still loading its data; repeat the command when it has"),
        (ResponseError("ERR odd\nthing"), "ERR odd thing"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_command_says_on_one_line_what_went_wrong_and_what_to_do(error: Exception, said: str) -> None:
    upstream = Upstream(Settings(upstream=URL), URL)
    assert complaint(upstream, error, rights=RIGHTS) == f"{URL}: {said}"
