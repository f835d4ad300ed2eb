"""While the control connection is down, and in front of a replica: no read is late, and no client is closed for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import hiredis
import pytest

from tests.conftest import StartProxy, StartServer
from tests.raw import request
from tests.relay import Relay
from tests.servers import KIND, Proxy, Server, until
from tests.test_lives import Talk, clock, talk, wait_past

__all__ = ["talk"]  # a fixture


Connect = Callable[..., Talk]

COLLECTIONS = ["SADD s{d} 7 1", "HSET h{d} 7 7 1 1", "ZADD z{d} 7 7 9 1", "RPUSH l{d} 7 1"]

READS: list[tuple[str, object]] = [
    ("SMEMBERS s{d}", [b"1"]), ("SISMEMBER s{d} 7", 0), ("SCARD s{d}", 1), ("SUNION s{d} none{d}", [b"1"]),
    ("HGETALL h{d}", [b"1", b"1"]), ("HGET h{d} 7", None), ("HEXISTS h{d} 7", 0), ("HLEN h{d}", 1),
    ("ZRANGE z{d} 0 -1", [b"1"]), ("ZSCORE z{d} 7", None), ("ZCARD z{d}", 1), ("LRANGE l{d} 0 -1", [b"1"]),
    ("LLEN l{d}", 1), ("SORT l{d}", [b"1"]), ("SADD s{d} 7", 1),
    ("EVAL return{b}redis.call('scard',KEYS[1]) 1 s{d}", 1), ("HINCRBY h{d} 7 5", 5), ("SUNIONSTORE o{d} s{d}", 1),
]  # fmt: skip


def lock_out(server: Server, proxy: Proxy) -> None:
    """Switch the proxy's own user off, and wait until the proxy has noticed."""
    assert server.command("ACL", "SETUSER", "control", "off") == b"+OK\r\n"
    server.command("CLIENT", "KILL", "USER", "control")
    proxy.process.line(lambda line: "no control connection" in line)


class Blind:
    """A server whose user `control`, the proxy's own, is switched off when told."""

    def __init__(self, server: Server, start_proxy: StartProxy, *args: str) -> None:
        self.server = server
        server.command("ACL", "SETUSER", "control", "on", ">x", "~*", "&*", "+@all")
        self.proxy = start_proxy(None, "--upstream", server.url.replace("//", "//control:x@"), *args)

    def lock_out(self) -> None:
        lock_out(self.server, self.proxy)


@pytest.fixture
def blind(kind: str, start_server: StartServer, start_proxy: StartProxy) -> Blind:
    return Blind(start_server(kind), start_proxy)


def words(line: str, key: str) -> list[str]:
    return [word.replace("{b}", " ") for word in line.replace("{d}", key).split()]


def give(client: Talk, key: str, milliseconds: int) -> None:
    for line in COLLECTIONS:
        command = words(line, key)
        client(*command)
        assert client("PEXPIREMEMBER", command[1], "7", milliseconds) == 1


def check_late_replies(server: Server, start_proxy: StartProxy) -> None:
    """The server answers scripts of the proxy's own later than what they say is true: then it counts all the same."""

    def late(chunk: bytes) -> bytes:
        time.sleep(0.1)
        return chunk

    server.command("ACL", "SETUSER", "control", "on", ">x", "~*", "&*", "+@all")
    with Relay(server.address) as relay:
        proxy = start_proxy(None, "--upstream", relay.url.replace("//", "//control:x@"))
        with proxy.connect() as client:
            client.send(request("SADD", "k", *range(700)))
            client.send(b"".join(request("EXPIREMEMBER", "k", number, 100) for number in range(700)))
            assert client.replies(701)[1:] == [b":1\r\n"] * 700
            lock_out(server, proxy)
            relay.answers = late
            assert client.command("EVAL", "return 7", 1, "k") == b":7\r\n"
            assert client.command("SORT", "other", "BY", "nosort", "GET", "h_*->f") == b"*0\r\n"


def test_late_replies_count(server: Server, start_proxy: StartProxy) -> None:
    check_late_replies(server, start_proxy)


@pytest.mark.every_kind
def test_no_read_is_late_while_the_proxys_user_is_locked_out(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy), talk(blind.server)
    for number in range(len(READS)):
        give(client, f"{number}", 700)
    deadline = clock(beside) + 700
    blind.lock_out()
    wait_past(beside, deadline)
    for number, (line, wanted) in enumerate(READS):
        assert client(*words(line, f"{number}")) == wanted, line
    # What has come again has no deadline of its earlier life.
    assert client("TTL", "s14", "7") == client("TTL", "h16", "7") == -1
    assert "internal error" not in blind.proxy.process.output


@pytest.mark.every_kind
def test_no_pipelined_read_is_late_either(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy), talk(blind.server)
    for number in range(len(READS) + 1):
        give(client, f"{number}", 700)
    deadline = clock(beside) + 700
    blind.lock_out()
    wait_past(beside, deadline)
    client.raw.send(b"".join(request(*words(line, f"{number}")) for number, (line, _) in enumerate(READS)))
    for line, wanted in READS:
        reader = hiredis.Reader()
        reader.feed(client.raw.reply())
        assert reader.gets() == wanted, line
    last = f"{len(READS)}"
    lines = ["MULTI", f"SMEMBERS s{last}", f"HGETALL h{last}", "EXEC"]
    client.raw.send(b"".join(request(*line.split()) for line in lines))
    client.raw.replies(3)
    assert client.raw.reply() == b"*2\r\n*1\r\n$1\r\n1\r\n*2\r\n$1\r\n1\r\n$1\r\n1\r\n"


def test_keys_that_are_not_named_are_looked_for(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy, 3), talk(blind.server)
    for number in range(1200):
        client.raw.send(request("SADD", number, 7) + request("PEXPIREMEMBER", number, 7, 1500))
    client.raw.replies(2400)
    client("SET", "other", "x")
    deadline = clock(beside) + 1500
    blind.lock_out()
    wait_past(beside, deadline)
    assert client("DBSIZE") == 1
    assert client("KEYS", "*") == [b"other"]


def many_due(blind: Blind, client: Talk, beside: Talk) -> int:
    """Have 2,000 members of s fall due at once while the proxy is blind; return when, in Unix ms."""
    client("SADD", "s", "stays", *range(2000))
    deadline = clock(beside) + 1500
    client.raw.send(b"".join(request("PEXPIREMEMBERAT", "s", member, deadline) for member in range(2000)))
    client.raw.replies(2000)
    blind.lock_out()
    return deadline


def test_many_members_due_at_once(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy), talk(blind.server)
    deadline = many_due(blind, client, beside)
    late, seen = 0, 0
    while (before := clock(beside)) < deadline + 200:
        count = client("SCARD", "s")
        late += before > deadline and count > 1
        seen += 1
    assert (late, client("SCARD", "s")) == (0, 1), seen


def test_more_due_at_once_than_one_script_removes_are_gone_for_who_looked_before(blind: Blind, talk: Connect) -> None:
    """What was found shortly before holds for a moment: not where so much is about to be due."""
    client, beside = talk(blind.proxy), talk(blind.server)
    deadline = many_due(blind, client, beside)
    wait_past(beside, deadline - 25)
    assert client("SCARD", "s") in (1, 2001)
    wait_past(beside, deadline)
    assert client("SCARD", "s") == 1


def test_control_connections_that_are_killed_at_any_time(
    start_server: StartServer, start_proxy: StartProxy, talk: Connect
) -> None:
    blind = Blind(start_server(KIND), start_proxy)
    writer, beside = talk(blind.proxy), talk(blind.server)
    ended = threading.Event()
    failures: list[str] = []
    given: dict[tuple[int, int], float] = {}  # key and member: since when it has its deadline for certain

    def kill() -> None:
        with blind.server.connect() as connection:
            while not ended.wait(0.02):
                connection.command("CLIENT", "KILL", "USER", "control")

    def read(number: int) -> None:
        with blind.proxy.connect() as raw, blind.server.connect() as straight:
            reader, own = Talk(raw), Talk(straight)
            while not ended.is_set():
                before, began = clock(own), time.monotonic()
                failures.extend(
                    f"{member} at {before}"
                    for member in map(int, reader("SMEMBERS", f"k{number}"))
                    if member < before and given.get((number, member), math.inf) < began
                )

    threads = [threading.Thread(target=kill), *(threading.Thread(target=read, args=(number,)) for number in range(2))]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for number in range(2):
                deadline = clock(beside) + 40
                writer("SADD", f"k{number}", deadline)
                if writer("PEXPIREMEMBERAT", f"k{number}", deadline, deadline) == 1:
                    given[number, deadline] = time.monotonic()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures, (len(failures), failures[:5])


@pytest.mark.one_kind
def test_requests_that_need_much_are_answered_in_time(blind: Blind, talk: Connect) -> None:
    """Those that name many keys, and those that may give a key its first deadline, which nobody can be told now."""
    client = talk(blind.proxy)
    client.say("SADD source m")
    client.say("EXPIREMEMBER source m 1000")
    client.say("SET plain 1")
    lock_out(blind.server, blind.proxy)
    began = time.monotonic()
    assert client("DEL", *(f"many{number}" for number in range(5000))) == 0
    assert client("MGET", *(f"many{number}" for number in range(10_000))) == [None] * 10_000
    assert client.say("COPY plain other") == 1
    assert client.say("RENAME plain another") == b"OK"
    assert time.monotonic() - began < 3
    client.say("SADD first m")
    client.raw.socket.settimeout(30)
    refused = [client.say("EXPIREMEMBER first m 1000") for _ in range(5)]
    assert all(isinstance(reply, hiredis.ReplyError) for reply in refused)
    assert time.monotonic() - began < 15  # the outage is waited for once


def test_a_user_without_scripts_is_served_as_the_server_serves(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy), talk(blind.server)
    blind.server.command("ACL", "SETUSER", "limited", "on", ">x", "~*", "&*", "+@all", "-@scripting")
    give(client, "1", 500)
    deadline = clock(beside) + 500
    limited = talk(blind.proxy)
    assert limited("AUTH", "limited", "x") == b"OK"
    blind.lock_out()
    wait_past(beside, deadline)
    assert sorted(limited("SMEMBERS", "s1")) == [b"1", b"7"]
    assert limited("HINCRBY", "h1", "9", "1") == 1
    assert limited("SADD", "s1", "8") == 1
    assert limited("PING") == b"PONG"
    assert client("SMEMBERS", "s1") == [b"1", b"8"] or sorted(client("SMEMBERS", "s1")) == [b"1", b"8"]


def test_in_front_of_a_replica_everybody_is_answered(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Connect
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server, "--no-sweep")
    client, beside = talk(proxy), talk(server)
    give(client, "1", 300)
    deadline = clock(beside) + 300
    beside("REPLICAOF", "127.0.0.1", "1")
    wait_past(beside, deadline)
    # What was begun at a primary ends: whoever comes back may be led to another one.
    with pytest.raises(ConnectionError):
        client("SMEMBERS", "s1")
    client = talk(proxy)
    for _ in range(3):
        assert sorted(client("SMEMBERS", "s1")) == [b"1", b"7"]
    assert isinstance(client("SADD", "s1", "8"), hiredis.ReplyError)
    assert client("EVAL", "return redis.call('scard', KEYS[1])", 1, "s1") == 2
    assert client("PING") == b"PONG"
    proxy.process.line(lambda line: "refuses removals" in line)
    said = [line for line in proxy.log() if "refuses removals" in str(line.get("event"))]
    assert len(said) == 1
    beside("REPLICAOF", "NO", "ONE")
    until(lambda: client("SMEMBERS", "s1") == [b"1"], 5)


def test_scripts_void_in_one_round_trip(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    """Ten keys, ten databases: what is done for a script is one EVAL, and another where none has been of late."""
    client, beside = talk(proxy), talk(upstream)
    for database in range(10):
        client("SELECT", database)
        client("SADD", "k1", "7", "1")
        client("PEXPIREMEMBER", "k1", "7", 3_600_000)
    client("SELECT", 0)
    keys = [f"k{number}" for number in range(1, 11)]
    for key in keys[1:]:
        client("SADD", key, "7", "1")
        client("PEXPIREMEMBER", key, "7", 3_600_000)

    def evaluations() -> int:
        said = beside("INFO", "commandstats").decode()
        return next((int(line.split("calls=")[1].split(",")[0]) for line in said.split() if "cmdstat_eval:" in line), 0)

    def quiet() -> bool:
        before = evaluations()
        time.sleep(0.05)
        return before == evaluations()

    script = "redis.call('srem', KEYS[1], '7') return redis.call('sadd', KEYS[1], '7')"
    counts = []
    for _ in range(5):
        before = evaluations()
        assert client("EVAL", script, len(keys), *keys) == 1
        counts.append(evaluations() - before)
    assert min(counts) <= 3, counts
    assert client("EVAL", "return redis.call('srem', KEYS[1], '7')", len(keys), *keys) == 1
    assert client("EVAL", "return redis.call('sadd', KEYS[1], '7')", len(keys), *keys) == 1
    assert client("TTL", "k1", "7") == -1
    assert client("TTL", "k2", "7") > 3000


def test_a_shadow_of_many_is_voided_in_pages(upstream: Server, proxy: Proxy, talk: Connect) -> None:
    client = talk(proxy)
    for key in ("many", "more"):
        client("HSET", key, *(word for field in range(3000) for word in (field, 0)))
        client.raw.send(b"".join(request("PEXPIREMEMBER", key, field, 3_600_000) for field in range(3000)))
        client.raw.replies(3000)
    client(
        "EVAL",
        "for f = 0, 2998 do redis.call('hdel', KEYS[1], f) redis.call('hdel', KEYS[2], f) end",
        2,
        "many",
        "more",
    )
    client(
        "EVAL",
        "for f = 0, 2998 do redis.call('hset', KEYS[1], f, 1) redis.call('hset', KEYS[2], f, 1) end",
        2,
        "many",
        "more",
    )
    for key in ("many", "more"):
        client.raw.send(b"".join(request("TTL", key, field) for field in range(3000)))
        replies = client.raw.replies(3000)
        assert set(replies[:2999]) == {b":-1\r\n"}
        assert replies[2999] != b":-1\r\n"


def test_answers_that_never_come(blind: Blind, talk: Connect) -> None:
    """A client that has silenced its replies gets none, and is not held up."""
    client = talk(blind.proxy)
    give(client, "1", 300)
    blind.lock_out()
    client.raw.send(request("CLIENT", "REPLY", "OFF") + request("SMEMBERS", "s1") + request("SADD", "s1", "9"))
    client.raw.send(request("CLIENT", "REPLY", "ON"))
    assert client.raw.reply() == b"+OK\r\n"
    assert client("PING") == b"PONG"


@pytest.mark.every_kind
def test_a_deadline_in_a_watched_key_that_passes_meanwhile_is_seen(blind: Blind, talk: Connect) -> None:
    client, beside = talk(blind.proxy), talk(blind.server)
    early = talk(blind.proxy)
    for key in ("0", "1", "2"):
        give(client, key, 3000)
    deadline = clock(beside) + 3000
    client("WATCH", "s0")
    early("WATCH", "s1")
    early("MULTI")
    early("INCR", "sold")
    blind.lock_out()
    wait_past(beside, deadline)
    client("MULTI")
    client("INCR", "sold")
    assert client("EXEC") is None
    assert isinstance(early("EXEC"), hiredis.ReplyError)  # nothing can be removed any more: it fails all the same
    for again in (client, early):
        again("WATCH", "s2")
        assert again("SISMEMBER", "s2", "7") == 0
        again("MULTI")
        again("INCR", "sold")
        assert again("EXEC")
