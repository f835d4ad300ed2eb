"""The rights that the proxy's own user needs, each with a harmless request that shows whether the user has it.

Its tests: tests/test_check.py.

They are defined only here. The check tries them; a test compares docs/security.md and config/acl.example with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from proxy.scripts.calls import script

KEY: Final = b"{key}"
CHANNEL: Final = b"{channel}"
"""Placeholders for a key that does not exist, and for a channel without subscribers."""

EVERYBODY: Final = b"{everybody}"
"""Placeholder for the channel of all proxies; they ignore an empty message."""

EVENTS: Final = b"__subkeyspace@0__:" + KEY
"""A channel for events that has no subscribers."""

_KEYS: Final = (b"{prefix}" + KEY, b"z" + KEY, b"\0" + KEY, KEY)
"""Names with different beginnings, the proxy's prefix among them: only a pattern for all keys matches them all."""

TRIALS: Final[Mapping[str, tuple[bytes, ...]]] = {
    "hello": (b"HELLO",),
    "client": (b"CLIENT", b"TRACKING", b"OFF"),
    "ping": (b"PING",),
    "subscribe": (b"SUBSCRIBE", CHANNEL),
    "publish": (b"PUBLISH", CHANNEL, b""),
    "pubsub": (b"PUBSUB", b"NUMSUB", CHANNEL),
    "command": (b"COMMAND", b"COUNT"),
    "info": (b"INFO", b"server"),
    "eval": (b"EVAL", b"return 1", b"0"),
    "select": (b"SELECT", b"0"),
    "time": (b"TIME",),
    "type": (b"TYPE", KEY),
    "exists": (b"EXISTS", KEY),
    "get": (b"GET", KEY),
    "set": (b"SET", KEY, b"", b"XX"),
    "pexpire": (b"PEXPIRE", KEY, b"1"),
    "pttl": (b"PTTL", KEY),
    "scan": (b"SCAN", b"0", b"COUNT", b"1"),
    "unlink": (b"UNLINK", KEY),
    "zadd": (b"ZADD", KEY, b"XX", b"1", b"m"),
    "zcard": (b"ZCARD", KEY),
    "zcount": (b"ZCOUNT", KEY, b"0", b"0"),
    "zrange": (b"ZRANGE", KEY, b"0", b"0"),
    "zrangebyscore": (b"ZRANGEBYSCORE", KEY, b"0", b"0"),
    "zrevrangebyscore": (b"ZREVRANGEBYSCORE", KEY, b"0", b"0"),
    "zrem": (b"ZREM", KEY, b"m"),
    "zscan": (b"ZSCAN", KEY, b"0"),
    "zscore": (b"ZSCORE", KEY, b"m"),
    "zmscore": (b"ZMSCORE", KEY, b"m"),
    "sismember": (b"SISMEMBER", KEY, b"m"),
    "smismember": (b"SMISMEMBER", KEY, b"m"),
    "srem": (b"SREM", KEY, b"m"),
    "hexists": (b"HEXISTS", KEY, b"m"),
    "hmget": (b"HMGET", KEY, b"m"),
    "hdel": (b"HDEL", KEY, b"m"),
    "lpos": (b"LPOS", KEY, b"m"),
    "lrange": (b"LRANGE", KEY, b"0", b"0"),
    "lrem": (b"LREM", KEY, b"0", b"m"),
    "lset": (b"LSET", KEY, b"0", b"m"),
    "xadd": (b"XADD", KEY, b"NOMKSTREAM", b"*", b"f", b"v"),
    "rpush": (b"RPUSH", KEY),
}
"""Command → request. Servers check permissions before they run it: for the command, then for key or channel."""

CLUSTERED: Final[Mapping[str, tuple[bytes, ...]]] = {
    "cluster": (b"CLUSTER", b"NODES"),
    "readonly": (b"READONLY",),
}
"""Command → request, for commands that the proxy needs only if the upstream is a cluster node."""

_MORE: Final[tuple[tuple[str, tuple[bytes, ...]], ...]] = (
    ("client", (b"CLIENT", b"SETNAME", b"")),
    ("command", (b"COMMAND",)),
    ("publish", (b"PUBLISH", EVERYBODY, b"")),
    ("publish", (b"PUBLISH", EVENTS, b"")),
    ("exists", (b"EXISTS", *_KEYS)),
    ("unlink", (b"UNLINK", *_KEYS)),
    ("rpush", (b"EVAL", script("may_push"), b"1", KEY)),  # the RPUSH above shows only whether the server knows RPUSH
)
"""Further requests, because a user may be limited to some forms of a command, or to some keys and channels."""

LAST: Final = "subscribe"
"""The command to try last: after SUBSCRIBE a connection can do little else."""


def rules(prefix: str) -> list[str]:
    """Return the ACL SETUSER rules that give a user exactly what the proxy needs.

    Args:
        prefix: the prefix of the proxy's own keys and channels.
    """
    return ["~*", f"&{prefix}*", "&__subkey*", "-@all", *(f"+{name}" for name in TRIALS)]


def trials(token: bytes, prefix: bytes, *, clustered: bool = False) -> list[tuple[str, list[bytes]]]:
    """Return the requests that show whether the user may run each command, in the order to send them.

    Args:
        token: the name of a key that does not exist.
        prefix: the prefix of the proxy's own keys and channels.
        clustered: whether the server is a cluster node.
    """
    words = {
        KEY: token, CHANNEL: prefix + b"proxy:" + token, EVERYBODY: prefix + b"proxies", b"{prefix}": prefix,
    }  # fmt: skip

    def fill(word: bytes) -> bytes:
        for placeholder, value in words.items():
            word = word.replace(placeholder, value)
        return word

    requests = [*TRIALS.items(), *_MORE, *(CLUSTERED.items() if clustered else ())]
    requests.sort(key=lambda request: request[0] == LAST)
    return [(name, [fill(word) for word in request]) for name, request in requests]
