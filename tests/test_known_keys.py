"""The proxy is not there either when every key is known: scripts stand in for requests, and answer byte for byte alike.

Each key name has a member with a far deadline in a database that no client is in, so that whatever names it is judged.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.random_requests import KEYS, UNORDERED, stream
from tests.raw import Raw, request
from tests.servers import Proxy, Server
from tests.test_lives import FAR

pytestmark = pytest.mark.every_kind

APART: Final = 9
"""The database in which the keys have deadlines."""

DATABASES: Final = (0, 1)
CHUNK: Final = 400


def give_all_deadlines(proxy: Proxy) -> None:
    """Make every key known to the proxy, by a key of its name in another database."""
    with proxy.connect() as client:
        client.send(request("SELECT", APART))
        for key in KEYS:
            client.send(request("SADD", key, "member") + request("EXPIREMEMBER", key, "member", FAR))
        assert client.replies(1 + 2 * len(KEYS)) == [b"+OK\r\n", *[b":1\r\n"] * (2 * len(KEYS))]


def talk(server: Server, client: Raw, protocol: int, requests: list[tuple[str, ...]]) -> list[bytes]:
    """Send requests to empty databases, all at once, and return the replies."""
    with server.connect() as beside:
        for database in DATABASES:
            assert beside.command("SELECT", database) == beside.command("FLUSHDB") == b"+OK\r\n"
    if protocol == 3:
        client.command("HELLO", 3)
    client.send(b"".join(request(*words) for words in requests))
    return [normal(server, words, reply) for words, reply in zip(requests, client.replies(len(requests)), strict=True)]


def normal(server: Server, words: tuple[str, ...], reply: bytes) -> bytes:
    """A reply; of keys in no particular order the sorted lines. EXEC's too: it may have queued such a request."""
    if server.kind == "valkey-9.1":
        # There a number that any script has set is stored as text.
        reply = reply.replace(b"$3\r\nint\r\n", b"$6\r\nembstr\r\n")
    return b"\n".join(sorted(reply.split(b"\r\n"))) if words[0].upper() in (*UNORDERED, "EXEC") else reply


def compare(upstream: Server, proxy: Proxy, protocol: int, seed: str) -> int:
    """Send a stream straight and through the proxy; fail where an answer differs. Return how many were no errors."""
    requests = stream(seed, CHUNK)
    with upstream.connect() as straight:
        wanted = talk(upstream, straight, protocol, requests)
    with proxy.connect() as through:
        got = talk(upstream, through, protocol, requests)
    for number, (one, other) in enumerate(zip(wanted, got, strict=True)):
        assert one == other, "\n".join(
            [
                *(f"{' '.join(words)!r} -> {reply!r}" for words, reply in zip(requests[:number], wanted, strict=False)),
                f"{' '.join(requests[number])!r}: straight {one!r}, through the proxy {other!r}",
            ]
        )
    return sum(not reply.startswith(b"-") for reply in wanted)


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_random_requests_on_known_keys(upstream: Server, proxy: Proxy, protocol: int) -> None:
    check(upstream, proxy, protocol, 800)


@pytest.mark.long
@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_many_random_requests_on_known_keys(upstream: Server, proxy: Proxy, protocol: int) -> None:
    """With six kinds of server more than 200,000 for each protocol."""
    check(upstream, proxy, protocol, 40_000)


def check(upstream: Server, proxy: Proxy, protocol: int, count: int) -> None:
    give_all_deadlines(proxy)
    understood = sum(compare(upstream, proxy, protocol, f"{protocol}/{number}") for number in range(count // CHUNK))
    assert understood > count // 2, "a heap of errors compares little"


@pytest.mark.parametrize("protocol", [2, 3])
def test_hincrby_counts_exactly_where_its_key_is_known(upstream: Server, proxy: Proxy, protocol: int) -> None:
    """A script's numbers have 53 bits, the server's 64."""
    with upstream.connect() as straight, proxy.connect() as client:
        if protocol == 3:
            assert client.command("HELLO", 3) is not None
            assert straight.command("HELLO", 3) is not None
        assert client.command("HSET", "known", "m", 1) == straight.command("HSET", "plain", "m", 1) == b":1\r\n"
        assert client.command("EXPIREMEMBER", "known", "m", FAR) == b":1\r\n"
        edges = [
            sign * (2**power + more) for power in (0, 31, 52, 53, 62, 63) for more in (-1, 0, 1) for sign in (1, -1)
        ]
        for number in edges:
            lines = (
                f"HSET {{}} n {number}",
                "HINCRBY {} n 1",
                "HINCRBY {} n -2",
                f"HINCRBY {{}} o {number}",
                "HDEL {} o",
            )
            requests = [(line.format("known"), line.format("plain")) for line in lines]
            client.send(b"".join(request(*one.split()) for one, _ in requests))
            straight.send(b"".join(request(*other.split()) for _, other in requests))
            assert client.replies(len(lines)) == straight.replies(len(lines)), number
        assert client.command("TTL", "known", "m") != b":-1\r\n"


def test_a_field_that_hincrby_brings_back_begins_a_new_life(proxy: Proxy) -> None:
    with proxy.connect() as client:
        requests = ("HSET h f 5 other 1", f"EXPIREMEMBER h f {FAR}", "HDEL h f", "HINCRBY h f 3", "TTL h f")
        client.send(b"".join(request(*line.split()) for line in requests))
        assert client.replies(5) == [b":2\r\n", b":1\r\n", b":1\r\n", b":3\r\n", b":-1\r\n"]
