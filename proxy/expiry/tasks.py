"""Describe errors of long-running tasks for the log.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

from redis.exceptions import RedisError


def one_line(error: Exception) -> str:
    """Return an error's text on one line, with its type unless the error comes from the server or the network."""
    text = " ".join(str(error).split())
    if text and is_outage(error):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def is_outage(error: Exception) -> bool:
    """Return whether the server refused a request or could not be reached. Other errors mean an unexpected reply."""
    return isinstance(error, RedisError | OSError | TimeoutError)
