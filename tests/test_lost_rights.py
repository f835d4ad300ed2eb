"""Rights that a user has just lost: for a moment scripts still stand in for its requests, and fail within.

What has run is told all the same, so whoever reads NOPERM may rely on it that nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from proxy.scripts.naming import Names
from tests.raw import request
from tests.servers import KINDS, Proxy, Server, until
from tests.test_together import calls

NAMES = Names(b"__expiremember__:")

MEMBERS = "abcd"
SET = ["SADD k a b c d e", *(f"EXPIREMEMBER k {member} 100" for member in MEMBERS)]
HASH = ["HSET k a 1 b 1 c 1 d 1 e 1", *(f"EXPIREMEMBER k {member} 100" for member in MEMBERS)]
SORTED = ["ZADD k 1 a 1 b 1 c 1 d 1 e", *(f"EXPIREMEMBER k {member} 100" for member in MEMBERS)]
OVERWRITTEN = [HASH[0], "HEXPIRE k 100 FIELDS 4 a b c d"]

ROWS = [
    (SET, "SREM k {}", "SISMEMBER k {}", "type"),
    (SET, "SREM k {}", "SISMEMBER k {}", "sismember"),
    (SET, "SREM k {}", "SISMEMBER k {}", "smismember"),
    (SET, "SREM k {}", "SISMEMBER k {}", "zadd"),
    (SET, "SMOVE k other {}", "SISMEMBER k {}", "type"),
    (SET, "PERSIST k {}", "ZSCORE shadow {}", "type"),
    (HASH, "HDEL k {}", "HEXISTS k {}", "type"),
    (HASH, "HDEL k {}", "HEXISTS k {}", "hexists"),
    (SORTED, "ZREM k {}", "ZSCORE k {}", "type"),
    (SORTED, "ZREM k {}", "ZSCORE k {}", "zscore"),
    (OVERWRITTEN, "HSET k {} 2", "HGET k {}", "zrem"),
    (OVERWRITTEN, "HSET k {} 2", "HGET k {}", "zrangebyscore"),
]
"""What makes a key, a request for one of its members, what shows whether that has run, and the right that goes."""

WAYS = ["alone", "in a row", "queued"]


def check_what_has_run_is_told(server: Server, proxy: Proxy) -> None:
    places = [(way, *row) for row in ROWS for way in WAYS]
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in places]
        server_too = stack.enter_context(server.connect())

        def words(place: int, line: str) -> list[bytes]:
            key = b"lost:%d" % place
            names = {b"k": key, b"shadow": NAMES.shadow(key), b"other": b"other:%d" % place}
            return [names.get(word, word) for word in line.encode().split()]

        def shown(place: int, line: str) -> list[bytes]:
            return [server_too.command(*words(place, line.format(member))) for member in MEMBERS]

        def are_wrong() -> list[tuple[object, ...]]:
            server.flush()
            for place, (client, (_, fill, *_)) in enumerate(zip(clients, places, strict=True)):
                server.command("ACL", "SETUSER", f"lost{place}", "reset", "on", ">x", "~*", "&*", "+@all")
                assert client.command("AUTH", f"lost{place}", "x") == b"+OK\r\n"
                for line in fill:
                    assert not client.command(*words(place, line)).startswith(b"-")
            before = [shown(place, shows) for place, (_, _, _, shows, _) in enumerate(places)]
            for place, (*_, right) in enumerate(places):
                server.command("ACL", "SETUSER", f"lost{place}", f"-{right}")
            said = []
            for place, (client, (way, _, line, *_)) in enumerate(zip(clients, places, strict=True)):
                requests = [request(*words(place, line.format(member))) for member in MEMBERS]
                if way == "alone":
                    said.append(b"".join(client.command(*words(place, line.format(member))) for member in MEMBERS))
                    continue
                if way == "queued":
                    requests = [request("MULTI"), *requests, request("EXEC")]
                client.send(b"".join(requests))
                said.append(b"".join(client.replies(len(requests))))
            wrong: list[tuple[object, ...]] = []
            for place, (way, _, line, shows, right) in enumerate(places):
                done = [was != now for was, now in zip(before[place], shown(place, shows), strict=True)]
                if b"-EXECABORT" in said[place] and not any(done):
                    continue
                if said[place].count(b"-NOPERM") != done.count(False):
                    wrong.append((way, line, right, done, said[place]))
            return wrong

        def have_been_in_scripts() -> bool:
            before = calls(server)
            assert are_wrong() == []
            return calls(server) - before > len(places)

        until(have_been_in_scripts, 30, "scripts in the place of requests")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Proxy]]:
    server = Server(request.param)
    proxy = Proxy("--upstream", server.url)
    yield server, proxy
    proxy.close()
    server.close()


def test_what_has_run_is_told(pair: tuple[Server, Proxy]) -> None:
    check_what_has_run_is_told(*pair)
