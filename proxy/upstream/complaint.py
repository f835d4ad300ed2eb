"""Explain, on one line for the user of a subcommand, what went wrong at the upstream and what to do.

Its tests: tests/test_words.py.
"""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import BusyLoadingError, NoPermissionError

from proxy.upstream.endpoint import Upstream
from proxy.upstream.stay import MovedError
from proxy.upstream.words import REACH, is_unreachable

_COMMAND: Final = re.compile(r"'([a-z|]+)' command")
_IN_A_SCRIPT: Final = ("ACL failure in script", "can't run this command")
"""Texts with which servers report that the user lacks a permission for a command within a script."""


def complaint(upstream: Upstream, error: Exception, *, rights: str, advice: str | None = None) -> str:
    """Return one line for the user: which server, what is wrong, and what to do.

    Args:
        upstream: the server.
        error: the error of the proxy's own connection to that server.
        rights: where the needed permissions are documented.
        advice: what to do about this error; None for the default.
    """
    if isinstance(error, MovedError):
        return f"{upstream}: there was a failover; repeat the command"
    if isinstance(error, NoPermissionError) or any(words in str(error) for words in _IN_A_SCRIPT):
        found = _COMMAND.search(str(error))
        why = upstream.explain(error) if found is None else may_not_run(upstream, found[1])
        return f"{upstream}: {why}; {rights}"
    if isinstance(error, BusyLoadingError):
        return f"{upstream}: it is still loading its data; repeat the command when it has"
    advice = advice or upstream.advice(error) or (REACH if is_unreachable(error) else None)
    why = upstream.explain(error)
    return f"{upstream}: {why}" + ("" if advice is None or advice in why else f"; {advice}")


def may_not_run(upstream: Upstream, command: str) -> str:
    """Return the text for a command that the proxy's user may not run; `command`: in lower case, `name|subcommand`."""
    user = upstream.user.decode("utf-8", "replace") or "default"
    return f"the user {user!a} may not run {command.replace('|', ' ').upper()}: it needs +{command}"
