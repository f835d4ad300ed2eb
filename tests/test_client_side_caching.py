"""What a client that caches hears of keys with deadlines, besides what the server alone would tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest

from tests.raw import Raw
from tests.servers import Proxy, Server, until
from tests.test_lives import FAR, PREFIX, Talk, talk

__all__ = ["talk"]  # a fixture

pytestmark = pytest.mark.every_kind

OWN: Final = frozenset((PREFIX + b"k:{s}", PREFIX + b"index"))
"""The proxy's own keys for the key ``s``."""

SIGN: Final = b"s-sign"

LISTED: Final = PREFIX + b"covered"
"""The list of covered prefixes. After a flush the proxy writes it again whenever it notices."""


@dataclass
class Cache:
    """A client that tracks keys.

    Args:
        client: its connection, in RESP3.
        other: another client.
        mode: what it says behind ``CLIENT TRACKING ON``.
    """

    client: Raw
    other: Talk
    mode: str

    def __post_init__(self) -> None:
        assert self.client.command("HELLO", 3).startswith(b"%")
        assert self.client.command("CLIENT", "TRACKING", "ON", *self.mode.split()) == b"+OK\r\n"

    def heard_by(self, *lines: str) -> frozenset[bytes]:
        """Send requests, and return the names that it hears until another client has changed a key that it has read."""
        sent = list(lines)
        if self.mode == "OPTIN":
            sent.append("CLIENT CACHING YES")
        names: set[bytes] = set()
        for line in [*sent, f"GET {SIGN.decode()}"]:
            self.client.send_command(*line.split())
            while (reply := self.client.reply()).startswith(b">"):
                names.update(_names(reply))
        self.other("SET", SIGN, "x")
        while SIGN not in names:
            names.update(_names(self.client.reply()))
        return frozenset(names - {SIGN, LISTED})


def _names(push: bytes) -> list[bytes]:
    """The names in an invalidation: ``>2``, the word, an array of names."""
    assert push.startswith(b">2\r\n$10\r\ninvalidate\r\n*"), push
    return push.split(b"\r\n")[5::2]


CHANGED: Final = {"": {b"s"}, "BCAST": {b"s"}, "BCAST PREFIX s": {b"s"}, "OPTIN": set(), "NOLOOP": set()}
"""For each mode what a client hears of a change of ``s`` by itself, if it counts as having read it."""


def test_a_client_hears_of_what_the_scripts_in_place_of_its_requests_read(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """A request that adds or removes members of a key with deadlines counts as a read of the key as well."""
    for mode in CHANGED:
        upstream.flush()
        check_own_requests(proxy, talk(proxy), mode)


def check_own_requests(proxy: Proxy, other: Talk, mode: str) -> None:
    other.say("SADD s m")
    other.say(f"EXPIREMEMBER s m {FAR}")
    with proxy.connect() as client:
        cache = Cache(client, other, mode)
        assert cache.heard_by("SADD s n") == CHANGED[mode]
        # Its own names: to whoever hears of all keys, and to clients that set deadlines without NOLOOP or OPTIN.
        own = OWN if mode in ("", "BCAST") else frozenset()
        assert cache.heard_by(f"EXPIREMEMBER s n {FAR // 2}") == own


def test_a_client_that_reads_hears_when_a_member_goes(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """And of no other name, unless it asked for all."""
    for mode in CHANGED:
        upstream.flush()
        check_reads(proxy, talk(proxy), talk(upstream), mode)


def check_reads(proxy: Proxy, other: Talk, beside: Talk, mode: str) -> None:
    other.say("SADD s m n")
    other.say(f"EXPIREMEMBER s m {FAR}")
    with proxy.connect() as client:
        cache = Cache(client, other, mode)
        read = ["CLIENT CACHING YES"] if mode == "OPTIN" else []
        assert cache.heard_by(*read, "SMEMBERS s") == frozenset()
        other.say("PEXPIREMEMBER s m 30")
        until(lambda: beside("SCARD", "s") == 1, what="the removal")
        heard = cache.heard_by("PING")
        assert b"s" in heard
        assert mode == "BCAST" or heard == {b"s"}


@pytest.mark.parametrize("between", [["CLIENT GETNAME"], ["CLIENT REPLY ON"], ["CLIENT GETNAME", "CLIENT ID"]])
def test_caching_lasts_over_other_client_commands(proxy: Proxy, talk: Callable[..., Talk], between: list[str]) -> None:
    """As in the server; nothing of the proxy's own comes between."""
    other = talk(proxy)
    for read in (["SMEMBERS s"], ["MULTI", "SMEMBERS s", "EXEC"], ["MULTI", "SADD s m", "SMEMBERS s", "EXEC"]):
        other.say("SADD s m n")
        other.say(f"EXPIREMEMBER s m {FAR}")
        with proxy.connect() as client:
            cache = Cache(client, other, "OPTIN")
            for line in ["CLIENT CACHING YES", *between, *read]:
                client.command(*line.split())
            other.say("SREM s n")
            assert b"s" in cache.heard_by("PING"), read
