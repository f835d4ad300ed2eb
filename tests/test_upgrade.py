"""A server gets the words for hash fields by an upgrade: what HEXPIRE and its like have set before becomes its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import StartProxy, StartServer, installed
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until

FAR = 4_000_000_000_123
SHADOW = "__expiremember__:k:{%s}"
UPGRADES = [("redis-7.0", "redis-8.10"), ("valkey-8.0", "valkey-9.1")]

LINES = """
    HPEXPIREAT {k} 4000000000999 NX FIELDS 1 a|HPEXPIREAT {k} 4000000000999 XX FIELDS 2 a z
    HPEXPIREAT {k} 4000000000122 GT FIELDS 2 a b|HPEXPIREAT {k} 4000000000122 LT FIELDS 1 b|HEXPIRE {k} 0 FIELDS 1 a
    HPERSIST {k} FIELDS 3 a z b|HGETEX {k} FIELDS 2 a z|HGETEX {k} PERSIST FIELDS 1 a|HGETEX {k} PXAT 1 FIELDS 1 b
    HGETEX {k} PXAT 4000000000999 FIELDS 1 a|HSETEX {k} FIELDS 1 a 5|HSETEX {k} KEEPTTL FIELDS 2 a 5 b 6
    HSETEX {k} PXAT 4000000000999 FIELDS 1 a 5|HSETEX {k} FNX FIELDS 1 a 5|HSETEX {k} FXX KEEPTTL FIELDS 2 a 5 z 6
    HGETDEL {k} FIELDS 2 a z|HSET {k} a 5|HSETNX {k} a 5|HINCRBY {k} a 5|HDEL {k} a|HEXPIRE {k} x FIELDS 1 a
    HEXPIRE {k} 100 FIELDS 2 a|HSETEX {k} EX x FIELDS 1 a 1|HPERSIST {k} FIELDS 1
"""
NO_WORDS = "HSETNX", "HINCRBY"
"""They keep deadlines, and leave them to the proxy."""

KEYS = {
    f"{way}:{number}": line.strip()
    for way in ("alone", "queued", "coming")
    for number, line in enumerate(part for row in LINES.strip().splitlines() for part in row.split("|"))
}


def say(client: Raw, line: str) -> object:
    return parse(client.command(*line.split()))


Start = Callable[..., Proxy]
"""Starts a proxy in front of a server, with further arguments."""


def upgrade(server: Server, newer: str, start: Start, lines: list[str]) -> None:
    """Run requests through a proxy in front of an old server, and have a newer one take over its data."""
    proxy = start(server, "--leftovers-rate", "0")
    with proxy.connect() as client:
        for line in lines:
            assert say(client, line) not in (0, [0], [-2])
    proxy.stop()
    assert server.command("SAVE") == b"+OK\r\n"
    server.stop()
    server.kind = installed(newer)
    server.start()


def check_all_become_the_servers_own(server: Server, newer: str, start: Start) -> None:
    upgrade(server, newer, start, [
        "HSET h a 1 b 2 c 3 d 4 e 5 f 6", f"HPEXPIREAT h {FAR} FIELDS 3 a e f", f"PEXPIREMEMBERAT h b {FAR}",
        "FIELDEXPIRE h 9000000 c", "HDEL h e", "SADD s a", f"SPEXPIREAT s {FAR} MEMBERS 1 a",
        "HSET g a 1", f"HSETEX g PXAT {FAR} FIELDS 1 a 1",
    ])  # fmt: skip
    server.command("HPEXPIREAT", "h", FAR + 1, "FIELDS", 1, "f")  # past the proxy: later, so it counts
    with start(server, "--leftovers-rate", "100000").connect() as client:
        for key in ("g", "h"):
            until(lambda key=key: say(client, f"HPEXPIRETIME {key} FIELDS 1 a") == [FAR])  # type: ignore[misc]
        assert say(client, "HPEXPIRETIME h FIELDS 6 a b c d e f") == [FAR, -1, -1, -1, -2, FAR + 1]
        assert say(client, "TTL h a") == say(client, "TTL g a") == say(client, "TTL h f") == -1
        assert say(client, "PEXPIREMEMBERTIME h b") == FAR
        assert say(client, "FIELDTTL h c") in range(8_999_000, 9_000_001)
        assert say(client, "SPEXPIRETIME s MEMBERS 1 a") == [FAR]
        assert server.command("EXISTS", SHADOW % "g") == b":0\r\n"
        assert parse(server.command("ZSCORE", "__expiremember__:index", "g")) is None
        # The rules are still those of the word that set it.
        for field, left in (("a", -1), ("b", FAR), ("c", -1)):
            assert say(client, f"HSET h {field} 5") == 0
            assert say(client, f"PEXPIREMEMBERTIME h {field}") == left
        assert say(client, "HPEXPIRETIME h FIELDS 1 a") == [-1]


def check_the_servers_words(server: Server, newer: str, start: Start) -> None:
    """Where the background pass has not come yet: they do what they do where the server had them all along."""
    lines = [line for key in KEYS for line in (f"HSET {key} a 1 b 2", f"HPEXPIREAT {key} {FAR} FIELDS 2 a b")]
    upgrade(server, newer, start, [*lines, "HSET kept a 1", f"PEXPIREMEMBERAT kept a {FAR}"])
    with start(server, "--leftovers-rate", "0").connect() as client, server.connect() as straight:
        straight.command("HELLO", 3)
        client.command("HELLO", 3)
        assert say(client, "HTTL kept FIELDS 1 a") == say(client, "HTTL alone:0 FIELDS 1 a") == [-1]
        assert say(client, "PEXPIREMEMBERTIME alone:0 a") == FAR
        for key, line in KEYS.items():
            straight.command("HSET", "own", "a", 1, "b", 2)
            straight.command("HPEXPIREAT", "own", FAR, "FIELDS", 2, "a", "b")
            reply, wanted = send(client, line.format(k=key), key), send(straight, line.format(k="own"), key)
            assert reply == wanted, line
            named = [field for field in "abz" if field in line.split()]
            for question in (f"HPEXPIRETIME {{}} FIELDS {len(named)} {' '.join(named)}", "HMGET {} a b z"):
                if named and b"ERR" not in wanted and not line.startswith(NO_WORDS):
                    assert say(client, question.format(key)) == say(straight, question.format("own")), line
            straight.command("DEL", "own")
        assert say(client, "HPERSIST kept FIELDS 1 a") == [-1]
        assert say(client, "PEXPIREMEMBERTIME kept a") == FAR


@pytest.mark.parametrize(("older", "newer"), UPGRADES)
@pytest.mark.parametrize("check", [check_all_become_the_servers_own, check_the_servers_words])
def test_what_was_set_before_an_upgrade(
    check: Callable[[Server, str, Start], None],
    older: str,
    newer: str,
    start_server: StartServer,
    start_proxy: StartProxy,
) -> None:
    check(start_server(older), newer, start_proxy)


def send(client: Raw, line: str, way: str) -> bytes:
    if way.startswith("alone"):
        return client.command(*line.split())
    client.send(request("MULTI") + request(*line.split()) + (b"" if way.startswith("queued") else request("EXEC")))
    if way.startswith("queued"):
        return b"".join(client.replies(2)) + client.command("EXEC")
    return b"".join(client.replies(3))
