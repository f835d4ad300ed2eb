"""Commands that only the newest servers have, and that move many members, replace a hash, or list keys of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import hiredis
import pytest

from tests.cluster import Cluster, slot_of
from tests.raw import Raw, request
from tests.servers import EVERY_KIND, Proxy, Server, until
from tests.test_lives import FAR, PREFIX, Bench, Talk, check_lives, clock, is_far, only, talk, wait_past

__all__ = ["talk"]

from_8_10 = pytest.mark.every_kind(redis=(8, 10))

LISTS = {
    "list": "RPUSH {o} 7 2; LMOVEM {o} {k} LEFT RIGHT COUNT 2 OBO|RPUSH {o} 7; LMOVEM {o} {k} RIGHT LEFT"
    "|RPUSH {o} 1 7; LMOVEM {o} {k} LEFT RIGHT EXACTLY 2 BULK|RPUSH {o} 7; BLMOVEM {o} {k} LEFT RIGHT 0 COUNT 3 BULK"
}


@from_8_10
@pytest.mark.parametrize("removal", ["LPOP {k}", "LREM {k} 0 7", "LMOVEM {k} {o}m LEFT RIGHT", "DELEX {k}"])
def test_elements_that_are_moved_have_no_deadline(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], removal: str
) -> None:
    check_lives(Bench(talk(proxy), talk(upstream), LISTS), only("list", removal))


@from_8_10
@pytest.mark.parametrize("move", ["LMOVEM o k LEFT RIGHT COUNT 2 OBO", "BLMOVEM o k LEFT RIGHT 0 COUNT 2 OBO"])
def test_nor_have_those_that_are_moved_within_a_transaction(proxy: Proxy, talk: Callable[..., Talk], move: str) -> None:
    client = talk(proxy)
    client.say("RPUSH k 7 1")
    client.say("RPUSH o 7 8")
    assert client("EXPIREMEMBER", "k", "7", FAR) == client("EXPIREMEMBER", "k", "1", FAR) == 1
    client("MULTI")
    client.say("LPOP k")
    client.say(move)
    assert client("EXEC") == [b"7", [b"7", b"8"]]
    assert client.say("TTL k 7") == -1
    assert is_far(client.say("TTL k 1"))


@from_8_10
def test_a_blocking_move_of_many_that_waits(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, other = talk(proxy), talk(proxy)
    client.say("RPUSH k 7 1")
    assert client("EXPIREMEMBER", "k", "7", FAR) == 1
    client.say("LPOP k")
    client.raw.send(request("BLMOVEM", "o", "k", "LEFT", "RIGHT", 0, "EXACTLY", 2, "OBO"))
    until(lambda: b"\r\nblocked_clients:1\r\n" in upstream.command("INFO", "clients"))
    other.say("RPUSH o 7 8")
    assert client.raw.reply() == b"*2\r\n$1\r\n7\r\n$1\r\n8\r\n"
    assert client.say("TTL k 7") == -1


@pytest.fixture(params=[False, True], ids=["alone", "queued"])
def importing(request: pytest.FixtureRequest, talk: Callable[..., Talk], proxy: Proxy) -> Callable[..., object]:
    """Sends a HIMPORT SET, by itself or within a transaction; the client has the field set `fs` of 7 and 2."""
    client = talk(proxy)
    assert client.say("HIMPORT PREPARE fs 7 2") == b"OK"

    def send(line: str) -> object:
        if not request.param:
            return client.say(line)
        client("MULTI")
        client.say("SADD before a")
        queued = client.say(line)
        client.say("SADD behind a")
        reply = client("EXEC")
        if queued != b"QUEUED":
            assert isinstance(reply, hiredis.ReplyError)
            return queued
        assert len(reply) == 3
        return reply[1]

    return send


@from_8_10
def test_a_hash_that_is_imported_has_no_deadlines(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], importing: Callable[..., object]
) -> None:
    client, beside = talk(proxy), talk(upstream)
    deadline = clock(beside) + 400
    client.say("HSET h 7 old 1 old")
    assert client("PEXPIREMEMBERAT", "h", "7", deadline) == client("PEXPIREMEMBERAT", "h", "1", deadline) == 1
    assert importing("HIMPORT SET h fs new new") == b"OK"
    assert clock(beside) < deadline, "too slow to tell"
    assert sorted(beside.say("HGETALL h")) == [b"2", b"7", b"new", b"new"]
    assert beside("KEYS", f"{PREFIX.decode()}?:*") == []
    assert client.say("PTTL h 7") == client.say("PTTL h 1") == -1
    wait_past(beside, deadline + 1)
    assert client.say("HGET h 7") == b"new"


@from_8_10
@pytest.mark.parametrize(
    "line",
    [
        "HIMPORT SET h fs one",
        "HIMPORT SET h nothing one two",
        "HIMPORT SET h",
        "HIMPORT NOSUCH h fs one two",
        "HIMPORT SET s fs one two",
    ],
)
def test_an_import_that_the_server_refuses_changes_no_deadline(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], importing: Callable[..., object], line: str
) -> None:
    client, beside = talk(proxy), talk(upstream)
    beside.say("HIMPORT PREPARE fs 7 2")
    client.say("HSET h 7 old 1 old")
    client.say("SADD s 7")
    assert client("EXPIREMEMBER", "h", "7", FAR) == client("EXPIREMEMBER", "s", "7", FAR) == 1
    reply = importing(line)
    assert isinstance(reply, hiredis.ReplyError)
    assert str(reply) == str(beside.say(line))
    assert beside.say("HGETALL h") == [b"7", b"old", b"1", b"old"]
    assert is_far(client.say("TTL h 7"))
    assert is_far(client.say("TTL s 7"))


def check_import(client: Talk, beside: Talk) -> None:
    """Check that the deadlines of a hash go with an import that succeeds, and stay with one that fails."""
    client.say("HIMPORT PREPARE fs 7 2")
    client.say("HSET h 7 old 1 old")
    assert client("EXPIREMEMBER", "h", "7", FAR) == 1
    assert isinstance(client.say("HIMPORT SET h nothing new new"), hiredis.ReplyError)
    assert is_far(client.say("TTL h 7"))
    assert beside.say("HLEN h") == 2
    assert client.say("HIMPORT SET h fs new new") == b"OK"
    assert client.say("TTL h 7") == -1


@from_8_10
def test_an_import_runs_whole_or_not_at_all(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    """With no memory left; for a user who may not run scripts; behind a WATCH, which an import leaves as it is."""
    client, beside = talk(proxy), talk(upstream)
    check_import(client, beside)
    client.say("HSET h 1 old")
    client("EXPIREMEMBER", "h", "7", FAR)
    beside.say("CONFIG SET maxmemory 1")
    assert str(client.say("HIMPORT SET h fs new new")).startswith("OOM command not allowed")
    beside.say("CONFIG SET maxmemory 0")
    assert beside.say("HMGET h 7 2 1") == [b"new", b"new", b"old"]
    assert is_far(client.say("TTL h 7"))
    client.say("WATCH w")
    assert client.say("HIMPORT SET h fs new new") == b"OK"
    beside.say("SET w changed")
    client("MULTI")
    client.say("SET w mine")
    assert client("EXEC") is None
    assert client.say("HIMPORT SET h fs newer newer") == b"OK"
    assert client.say("TTL h 7") == -1
    client("EXPIREMEMBER", "h", "7", FAR)
    client("HDEL", "h", "7")
    beside.say("ACL SETUSER few on nopass ~* +@all -eval")
    upstream.wait_until_proxies_know_the_users()
    few = talk(proxy)
    few.say("AUTH few any")
    few.say("HIMPORT PREPARE fs 7 2")
    assert few.say("HIMPORT SET h fs 1 2") == b"OK"
    assert few.say("HMGET h 7 2") == [b"1", b"2"]
    assert client.say("TTL h 7") == -1


@from_8_10
@pytest.mark.parametrize("lacks", ["-multi", "-exec", "-multi -exec", "-@transaction"])
def test_an_import_by_who_may_run_no_transaction(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], lacks: str
) -> None:
    client, beside, few = talk(proxy), talk(upstream), talk(proxy)
    beside.say(f"ACL SETUSER few reset on nopass ~* &* +@all {lacks}")
    upstream.wait_until_proxies_know_the_users()
    few.say("AUTH few any")
    few.say("HIMPORT PREPARE fs 7 2")
    client.say("HSET h 7 old 1 old")
    assert client("EXPIREMEMBER", "h", "7", FAR) == 1
    assert isinstance(few.say("HIMPORT SET h nothing new new"), hiredis.ReplyError)
    assert beside.say("HGETALL h") == [b"7", b"old", b"1", b"old"]
    assert is_far(client.say("TTL h 7"))
    reply = few.say("HIMPORT SET h fs new new")
    if lacks == "-exec":  # MULTI is let in, so it is all or nothing
        assert "no permissions to run the 'exec' command" in str(reply)
        assert beside.say("HGETALL h") == [b"7", b"old", b"1", b"old"]
        assert is_far(client.say("TTL h 7"))
    else:
        assert reply == b"OK"
        assert beside.say("HMGET h 7 2 1") == [b"new", b"new", None]
        assert client.say("TTL h 7") == -1
    assert few.say("HGET h 1") == client.say("HGET h 1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node of Valkey 9.1 with all slots, and the proxy beside it."""
    if "valkey-9.1" not in EVERY_KIND:
        pytest.skip("valkey-9.1 is not installed")
    with ExitStack() as stack:
        yield Cluster("valkey-9.1", stack, primaries=1, replicas=0)


def scanned(client: Raw, *options: str) -> set[bytes]:
    """The keys that CLUSTERSCAN lists."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        said = Talk(client)("CLUSTERSCAN", cursor, *options)
        assert isinstance(said, list), said
        cursor, keys = said
        found.update(keys)
        if cursor == b"0":
            return found


def test_clusterscan_shows_neither_the_proxys_own_keys_nor_what_is_due(cluster: Cluster) -> None:
    cluster.flush()
    (node,) = cluster.nodes
    proxy = node.proxy
    assert proxy is not None
    until(lambda: any(line["event"] == "covered prefixes loaded" for line in proxy.log()))
    with node.through() as through, node.connect() as straight:
        client = Talk(through)
        for number in range(20):
            client("SADD", f"k{number}", "m")
            client("EXPIREMEMBER", f"k{number}", "m", FAR)
        assert scanned(straight) > {b"k1", b"__expiremember__:k:{k1}"}
        own = {b"k%d" % number for number in range(20)}
        assert scanned(through) == own
        assert scanned(through, "COUNT", "3", "TYPE", "set") == own
        assert scanned(through, "MATCH", "k1*") == {key for key in own if key.startswith(b"k1")}
        assert scanned(through, "SLOT", str(slot_of("k7"))) == {b"k7"}
        for words in ((), ("x",), ("0", "COUNT"), ("0", "SLOT", "99999"), ("0", "COUNT", "0")):
            assert through.command("CLUSTERSCAN", *words) == straight.command("CLUSTERSCAN", *words), words
        for key in ("k1", "k7"):
            client("PEXPIREMEMBER", key, "m", 1)
        deadline = clock(client) + 1
        wait_past(client, deadline)
        assert scanned(through) == own - {b"k1", b"k7"}
        client("MULTI")
        client("CLUSTERSCAN", "0-{k2}-0", "SLOT", slot_of("k2"))
        ((_, keys),) = client("EXEC")
        assert keys == [b"k2"]
