"""Two and more proxies in front of one server: what one promises holds through all of them at once."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hiredis
import pytest

from proxy.proxies.protocol import LEASE
from tests.conftest import Start, StartProxy
from tests.raw import request
from tests.relay import Relay
from tests.servers import Proxy, Server, halt, until
from tests.test_lives import Talk, clock, first_of_its_kind, talk

__all__ = ["talk"]  # a fixture


TalkTo = Callable[..., Talk]


class Sequences:
    """Clients of several proxies who use the same keys, one after the other.

    Attributes:
        stale: how many members kept a deadline of an earlier life.
        seen: how many were seen after their deadline.
    """

    def __init__(self, clients: list[Talk], beside: Talk) -> None:
        self.clients = clients
        self.beside = beside
        self.number = 0
        self.stale = self.seen = 0

    def lives(self, count: int) -> None:
        """Give keys that nothing covers a deadline through one proxy; remove and add the member through another."""
        for _ in range(count):
            self.number += 1
            key = first_of_its_kind()
            first = self.clients[self.number % len(self.clients)]
            first("SADD", key, "m")
            assert first("EXPIREMEMBER", key, "m", 1000) == 1
            other = self.clients[(self.number + 1 + self.number // len(self.clients)) % len(self.clients)]
            other("SREM", key, "m")
            other("SADD", key, "m")
            self.stale += self.beside("ZSCORE", b"__expiremember__:k:{%b}" % key.encode(), "m") not in (None, False)

    def near(self, count: int, way: str = "{}") -> None:
        """Give members of covered keys deadlines 1 ms ahead through one proxy; read them through another."""
        for _ in range(count):
            self.number += 1
            key = f"near:{self.number % 10}"
            first, other = self.clients[self.number % 2], self.clients[1 - self.number % 2]
            first("SADD", key, "m", "n")
            first("EXPIREMEMBER", key, "n", 1000)
            deadline = int(clock(self.beside)) + 1
            for line in way.format(f"PEXPIREMEMBERAT {key} m {deadline}").split(";"):
                first(*line.split())
            read = f"to:{key}" if "RENAME" in way else key
            while clock(self.beside) <= deadline:
                pass
            self.seen += other("SISMEMBER", read, "m")

    def reads(self, count: int) -> None:
        """Give such keys deadlines of a few ms through one proxy; read them through another when these have passed."""
        for _ in range(count):
            self.number += 1
            key = first_of_its_kind()
            first, other = (
                self.clients[self.number % len(self.clients)],
                self.clients[(self.number + 1) % len(self.clients)],
            )
            first("SADD", key, "m", "n")
            first("PEXPIREMEMBER", key, "m", 5)
            deadline = clock(self.beside) + 5  # or earlier
            while clock(self.beside) <= deadline:
                pass
            self.seen += other("SISMEMBER", key, "m")


@contextlib.contextmanager
def load(proxy: Proxy) -> Iterator[None]:
    """Keep a proxy busy with pipelines of requests that it has to judge."""
    done = threading.Event()

    def work() -> None:
        with proxy.connect() as raw, contextlib.suppress(ConnectionError, OSError):
            Talk(raw)("SADD", "busy", "a")
            chunk = request("SADD", "busy", "b", "c") * 300 + request("TTL", "busy", "a") * 100
            Talk(raw)("EXPIREMEMBER", "busy", "a", 1000)
            while not done.is_set():
                raw.send(chunk)
                raw.replies(400)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def control_connections(beside: Talk) -> list[bytes]:
    """The ids of the connections on which proxies hear of changes."""
    clients: bytes = beside("CLIENT", "LIST", "TYPE", "pubsub")
    return re.findall(rb"\bid=(\d+) [^\n]*name=expiremember-proxy", clients)


def together(proxies: int, start: Start, server: Server, talk: TalkTo) -> tuple[list[Proxy], Sequences]:
    started = [start() for _ in range(proxies)]
    return started, Sequences([talk(proxy) for proxy in started], talk(server))


def check(sequences: Sequences) -> None:
    assert (sequences.stale, sequences.seen) == (0, 0)


@pytest.mark.parametrize("proxies", [2, 4])
def test_quiet(proxies: int, server: Server, start: Start, talk: TalkTo) -> None:
    _, sequences = together(proxies, start, server, talk)
    sequences.lives(200)
    sequences.reads(40)
    check(sequences)


@pytest.mark.parametrize("busy", [0, 1])
def test_one_under_load(busy: int, server: Server, start: Start, talk: TalkTo) -> None:
    proxies, sequences = together(2, start, server, talk)
    with load(proxies[busy]):
        sequences.lives(60)
        sequences.reads(10)
    check(sequences)


def test_one_stopped_and_continued(server: Server, start: Start, talk: TalkTo) -> None:
    proxies, sequences = together(2, start, server, talk)
    sequences.lives(10)
    first, other = sequences.clients
    keys = [first_of_its_kind() for _ in range(50)]
    for key in keys:
        first("SADD", key, "m")
    # Sent while it is stopped, these are the first that it sees when it goes on.
    halt(proxies[1].process.pid)
    begin = time.monotonic()
    for key in keys:
        assert first("EXPIREMEMBER", key, "m", 1000) == 1
    assert time.monotonic() - begin < 12
    other.raw.send(b"".join(request("SREM", key, "m") + request("SADD", key, "m") for key in keys))
    time.sleep(max(0.0, begin + 3 - time.monotonic()))
    proxies[1].process.send_signal(signal.SIGCONT)
    assert other.raw.replies(2 * len(keys)) == [b":1\r\n"] * (2 * len(keys))
    assert {first("TTL", key, "m") for key in keys} == {-1}
    sequences.lives(50)
    check(sequences)


def test_one_that_was_alone_stopped_and_continued(server: Server, start: Start, talk: TalkTo) -> None:
    """While it is stopped another comes, which does not wait for it for ever."""
    alone = start()
    first = talk(alone)
    first("SADD", "k", "m")
    halt(alone.process.pid)
    other = talk(start())
    assert other("EXPIREMEMBER", "k", "m", 1000) == 1
    first.raw.send(request("SREM", "k", "m") + request("SADD", "k", "m"))
    alone.process.send_signal(signal.SIGCONT)
    assert first.raw.replies(2) == [b":1\r\n"] * 2
    assert other("TTL", "k", "m") == -1


def test_one_killed(server: Server, start: Start, talk: TalkTo) -> None:
    proxies, sequences = together(3, start, server, talk)
    sequences.lives(20)
    proxies[2].process.kill()
    sequences.clients.pop()
    begin = time.monotonic()
    sequences.lives(1)
    assert time.monotonic() - begin < 6
    sequences.lives(50)
    check(sequences)


def test_one_joining(server: Server, start: Start, talk: TalkTo) -> None:
    _, sequences = together(2, start, server, talk)
    sequences.lives(20)
    sequences.clients.append(talk(start()))
    sequences.lives(60)
    sequences.reads(10)
    check(sequences)


@pytest.mark.parametrize("cut", [0, 1])
def test_control_connection_cut(cut: int, server: Server, start: Start, talk: TalkTo) -> None:
    _, sequences = together(2, start, server, talk)
    beside = talk(server)
    for _ in range(3):
        sequences.lives(10)
        until(lambda: len(control_connections(beside)) == 2, what="both connections")
        beside("CLIENT", "KILL", "ID", control_connections(beside)[cut])
    sequences.lives(20)
    check(sequences)


def refuse_writes(server: Server) -> None:
    """Make a save fail, and with it what writes, as on a full disk."""
    (Path(server.folder.name) / "dump.rdb").mkdir()
    server.command("CONFIG", "SET", "save", "3600 1000000")
    assert server.command("BGSAVE").startswith(b"+")
    until(lambda: server.command("PING").startswith(b"-MISCONF"), what="MISCONF")


def test_a_server_that_cannot_save_is_not_lost(server: Server, start: Start, talk: TalkTo) -> None:
    """It says so to PING too. Who asked by it would be blind until its end, and alone from then on."""
    first = start()
    client, beside = talk(first), talk(server)
    client("SADD", "set", "m")
    client("EXPIREMEMBER", "set", "m", 1000)
    before = control_connections(beside)
    assert len(before) == 1
    refuse_writes(server)
    other = start()
    until(lambda: b"blind:0" in other.command("INFO", "expiremember"), what="the second one's trust")
    time.sleep(2 * LEASE)  # the lease has to be kept
    assert b"blind:0" in first.command("INFO", "expiremember")
    assert set(control_connections(beside)) > set(before)
    assert client("SISMEMBER", "set", "m") == 1
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    sequences = Sequences([client, talk(other)], beside)
    sequences.lives(50)
    check(sequences)
    assert published(beside) > 0
    assert [line["event"] for proxy in (first, other) for line in proxy.log() if line["level"] == "warning"] == []


def test_first_deadlines_of_one_kind_take_few_messages(server: Server, start: Start, talk: TalkTo) -> None:
    first, _, beside = talk(start()), talk(start()), talk(server)
    count = 5_000
    first.raw.send(b"".join(request("SADD", f"k{number}", "m") for number in range(count)))
    first.raw.replies(count)
    first("SADD", "once", "m")
    first("EXPIREMEMBER", "once", "m", 1000)  # the other has joined when this is answered
    before = published(beside)
    first.raw.send(b"".join(request("EXPIREMEMBER", f"k{number}", "m", 1000) for number in range(count)))
    assert first.raw.replies(count) == [b":1\r\n"] * count
    assert published(beside) - before < 20


def published(beside: Talk) -> int:
    """How many messages have been published."""
    found = re.search(rb"cmdstat_publish:calls=(\d+)", beside.say("INFO commandstats"))
    return int(found[1]) if found else 0


def test_one_proxy_announces_a_kind_of_keys_once(server: Server, start: Start, talk: TalkTo) -> None:
    client, beside = talk(start()), talk(server)
    before = published(beside)
    for number in range(100):
        client("SADD", f"k{number}", "m")
        client("EXPIREMEMBER", f"k{number}", "m", 1000)
    assert published(beside) - before <= 1


def test_what_the_settings_cover_is_agreed_on_before_it_is_used(server: Server, start: Start, talk: TalkTo) -> None:
    first, other, beside = talk(start("--cover", "cart:", "--cover", "session:")), talk(start()), talk(server)
    until(lambda: {b"=cart:", b"=session:"} <= set(beside("ZRANGE", "__expiremember__:covered", 0, -1)))
    first("SADD", "once", "m")
    assert first("EXPIREMEMBER", "once", "m", 1000) == 1  # the other has joined when this is answered
    before = published(beside)
    for number in range(20):
        for client in (first, other):
            client("SADD", f"cart:{number}", "m")
            assert client("EXPIREMEMBER", f"cart:{number}", "m", 1000) == 1
    assert published(beside) - before < 10  # the other announces it once too, as it cannot tell who else knows


def test_what_was_sent_through_another_proxy_without_a_look_runs_first(
    server: Server, start: Start, talk: TalkTo
) -> None:
    """A first deadline waits for it: else the member that is added there would have that deadline."""
    first, other = talk(start()), talk(start())
    first("SADD", "once", "m")
    assert first("EXPIREMEMBER", "once", "m", 1000) == 1  # the other has joined when this is answered
    first("SADD", "k", "m")
    words = (("BLPOP", "nothing", "0.2"), ("SET", "pad", "x" * 8000), ("SREM", "k", "m"), ("SADD", "k", "m"))
    other.raw.send(b"".join(request(*one) for one in words))
    until(lambda: b"blocked_clients:1" in first.say("INFO clients"))
    assert first("EXPIREMEMBER", "k", "m", 1000) == 1
    assert not other.raw.silent(0), "it has not run before"
    assert other.raw.replies(4)[2:] == [b":1\r\n", b":1\r\n"]
    assert first("TTL", "k", "m") == 1000


def test_a_list_that_is_made_anew_tells_of_all_prefixes(server: Server, start: Start, talk: TalkTo) -> None:
    """It says so itself: who begins then does not read the index."""
    client, beside = talk(start()), talk(server)
    for key in ("cart:1", "session:1"):
        client("SADD", key, "m")
        assert client("EXPIREMEMBER", key, "m", 1000) == 1
    beside("FLUSHALL")
    client("SADD", "fresh:1", "m")
    assert client("EXPIREMEMBER", "fresh:1", "m", 1000) == 1
    assert {b"*", b"=cart:", b"=session:", b"=fresh:"} <= set(beside("ZRANGE", "__expiremember__:covered", 0, -1))


def test_what_is_announced_while_a_proxy_begins_is_not_forgotten(
    server: Server, start_proxy: StartProxy, talk: TalkTo
) -> None:
    """The server is asked meanwhile whether there are keys of the proxy's own, and answers for the time before."""
    asked, answered, goes_on = threading.Event(), threading.Event(), threading.Event()

    def note(chunk: bytes) -> bytes:
        if chunk.endswith(b"\r\n__expiremember__:sweeper\r\n$23\r\n__expiremember__:events\r\n$1\r\n0\r\n"):
            asked.set()
        return chunk

    def hold(chunk: bytes) -> bytes:
        if chunk == b":0\r\n" and asked.is_set() and not answered.is_set():
            answered.set()
            goes_on.wait(10)
        return chunk

    client = talk(start_proxy(server))
    with Relay(server.address) as relay:
        relay.asks, relay.answers = note, hold
        late = start_proxy(None, "--upstream", relay.url, ready=False)
        try:
            assert answered.wait(10)
            client("SADD", "k", "m")
            assert client("EXPIREMEMBER", "k", "m", 1000) == 1
            goes_on.set()
            late.until_ready()
            other = talk(late)
            until(lambda: b"blind:0" in other("INFO", "expiremember"), what="trust")
            assert (other("DBSIZE"), other("KEYS", "*")) == (1, [b"k"])
        finally:
            goes_on.set()


def test_near_deadlines_of_covered_keys_are_seen_by_all(server: Server, start: Start, talk: TalkTo) -> None:
    sequences = Sequences([talk(start()), talk(start())], talk(server))
    sequences.near(400)
    sequences.near(100, "MULTI;{};EXEC")
    check(sequences)


def check_standstill(first: Proxy, other: Proxy, talk: TalkTo) -> None:
    """A proxy stands still while another's client sets a deadline, and has its own client's request before it."""
    client, late = talk(first), talk(other)
    until(lambda: b"blind:0" in late("INFO", "expiremember"), what="trust")  # else it covers every key
    for way in ("SISMEMBER {} m", "MULTI;SISMEMBER {} m;EXEC", "EVAL return\0redis.call('sismember',KEYS[1],'m') 1 {}"):
        key = way.split()[0]
        client("SADD", key, "m", "n")
        client("EXPIREMEMBER", key, "n", 1000)
        until(lambda key=key: late("TTL", key, "n") > 0)  # type: ignore[misc]
        halt(other.process.pid)
        try:
            lines = [line.format(key).split() for line in way.split(";")]
            late.raw.send(b"".join(request(*(word.replace("\0", " ") for word in line)) for line in lines))
            assert client("PEXPIREMEMBER", key, "m", 150) == 1
            time.sleep(0.3)  # what is under test is the time that passes
        finally:
            other.process.send_signal(signal.SIGCONT)
        assert late.raw.replies(len(lines))[-1].endswith(b":0\r\n")
        assert client("TTL", key, "n") > 0


def test_who_has_stood_still_shows_nothing_that_is_due(start: Start, talk: TalkTo) -> None:
    check_standstill(start("--no-sweep"), start("--no-sweep"), talk)


def check_answer_of_before(first: Proxy, other: Proxy, server: Server, talk: TalkTo) -> None:
    """The server has told a proxy that nothing is due, which then stands still before it can read that."""
    client, late, beside = talk(first), talk(other), talk(server)
    until(lambda: b"blind:0" in late("INFO", "expiremember"), what="trust")
    for key in ("k1", "k2"):
        client("SADD", key, "m", "n", "o")
        client("EXPIREMEMBER", key, "n", 1000)
        client("PEXPIREMEMBER", key, "o", 300)
        time.sleep(0.5)  # until it has passed
        beside.raw.send_command("DEBUG", "SLEEP", "0.3")
        time.sleep(0.02)
        late.raw.send_command("SISMEMBER", key, "m")
        time.sleep(0.02)
        halt(other.process.pid)
        try:
            assert client("PEXPIREMEMBER", key, "m", 150) == 1  # behind what the other has asked
            time.sleep(0.3)
        finally:
            other.process.send_signal(signal.SIGCONT)
        assert late.raw.reply() == b":0\r\n"
        assert beside.raw.reply() == b"+OK\r\n"


def test_what_was_asked_before_a_standstill_is_asked_again(server: Server, start: Start, talk: TalkTo) -> None:
    check_answer_of_before(start("--no-sweep"), start("--no-sweep"), server, talk)


def test_a_look_that_had_begun_before_tells_nothing_of_a_near_deadline(
    server: Server, start: Start, talk: TalkTo
) -> None:
    with Relay(server.address) as relay:
        check_late_answers(start("--no-sweep"), start("--upstream", relay.url, "--no-sweep"), relay, server, talk)


def check_late_answers(first: Proxy, other: Proxy, relay: Relay, server: Server, talk: TalkTo) -> None:
    """Two clients read through a proxy that the server's answers reach late; between the two a deadline passes."""
    client, beside = talk(first), talk(server)
    one, two = talk(other), talk(other)
    until(lambda: b"blind:0" in one("INFO", "expiremember"), what="trust")  # else it covers every key
    for number in range(5):
        key = f"set{number}"
        client("SADD", key, "m", "n", "w")
        client("EXPIREMEMBER", key, "n", 1000)
        until(lambda key=key: one("TTL", key, "n") > 0)  # type: ignore[misc]
        client("PEXPIREMEMBER", key, "w", 90)
        relay.answers = late
        one.raw.send_command("SISMEMBER", key, "m")
        time.sleep(0.005)  # it asks
        client("PEXPIREMEMBER", key, "m", 1)
        passed = clock(beside) + 2
        until(lambda passed=passed: clock(beside) > passed)  # type: ignore[misc]
        assert two("SISMEMBER", key, "m") == 0
        relay.answers = bytes
        one.raw.reply()
    other.stop()


def late(answer: bytes) -> bytes:
    time.sleep(0.03)
    return answer


def test_near_deadlines_wait_for_no_proxy_that_hangs(server: Server, start: Start, talk: TalkTo) -> None:
    first, other = start(), start()
    client, beside = talk(first), talk(server)
    client("SADD", "set", "m", "n")
    client("EXPIREMEMBER", "set", "n", 1000)
    halt(other.process.pid)
    try:
        began = time.monotonic()
        assert client("PEXPIREMEMBER", "set", "m", 50) == 1
        assert time.monotonic() - began < 10
        began = time.monotonic()
        for number in range(20):
            client("SADD", "set", number)
            assert client("PEXPIREMEMBER", "set", number, 50) == 1
        assert time.monotonic() - began < 5
        until(lambda: beside("SCARD", "set") == 1, what="an end of all but one")
    finally:
        other.process.send_signal(signal.SIGCONT)
    assert talk(other)("SISMEMBER", "set", "m") == 0


def test_first_deadlines_in_a_transaction_are_announced(server: Server, start: Start, talk: TalkTo) -> None:
    first, other = talk(start()), talk(start())
    for _ in range(30):
        key = first_of_its_kind()
        first("SADD", key, "m")
        first("MULTI")
        first("EXPIREMEMBER", key, "m", 1000)
        assert first("EXEC") == [1]
        other("SREM", key, "m")
        other("SADD", key, "m")
        assert other("TTL", key, "m") == -1


def test_the_first_of_all_in_a_transaction_is_announced_where_somebody_has_few_rights(
    server: Server, start: Start, talk: TalkTo
) -> None:
    """What the client may do is asked at MULTI, though nothing has deadlines yet: within it cannot be asked."""
    beside = talk(server)
    beside("ACL", "SETUSER", "low", "on", "nopass", "~*", "+@all", "-hset")
    try:
        proxies = [start(), start()]
        first = talk(proxies[0])
        first("SADD", "set", "m")
        first("MULTI")
        halt(proxies[1].process.pid)
        try:
            began = time.monotonic()
            first("EXPIREMEMBER", "set", "m", 1000)
            assert first("EXEC") == [1]
            assert time.monotonic() - began > 0.2  # it waits for the other one, for a time
        finally:
            proxies[1].process.send_signal(signal.SIGCONT)
    finally:
        beside("ACL", "DELUSER", "low")


def test_what_sets_no_deadline_waits_for_no_proxy_that_hangs(server: Server, start: Start, talk: TalkTo) -> None:
    first, other = start(), start()
    client = talk(first)
    client("SADD", "set", "m")
    client("EXPIREMEMBER", "set", "m", 1000)
    halt(other.process.pid)
    try:
        began = time.monotonic()
        for _ in range(10):
            key = first_of_its_kind()
            assert client("HSETEX", key, "FIELDS", 1, "a", 1) == 1
            client("MULTI")
            client("HGETEX", key, "PERSIST", "FIELDS", 1, "a")
            assert client("EXEC") == [[b"1"]]
        assert time.monotonic() - began < 3  # two waits take more
        began = time.monotonic()
        assert client("HGETEX", first_of_its_kind(), "EX", 10, "FIELDS", 1, "a") == [None]
        assert time.monotonic() - began > 0.2
    finally:
        other.process.send_signal(signal.SIGCONT)


def test_a_first_deadline_outlives_a_request_that_waits(server: Server, start: Start, talk: TalkTo) -> None:
    """It stands behind a request that blocks for several leases."""
    check_a_waiting_request(talk, start, 5.0)


def check_a_waiting_request(talk: TalkTo, start: Start, seconds: float) -> None:
    first, same = (talk(proxy) for proxy in [start()] for _ in range(2))
    other = talk(start())
    keys = [first_of_its_kind() for _ in range(20)]
    for key in keys:
        first("SADD", key, "m")
    first.raw.send(request("BLPOP", "gate", 0) + b"".join(request("EXPIREMEMBER", key, "m", 1000) for key in keys))
    time.sleep(seconds)
    # Let go, and at once from each proxy a member that goes and comes back.
    other("RPUSH", "gate", "x")
    first.raw.replies(1 + len(keys))
    for number, key in enumerate(keys):
        client = (same, other)[number % 2]
        client("SREM", key, "m")
        client("SADD", key, "m")
        assert client("TTL", key, "m") == -1


def test_without_the_others_a_first_deadline_is_refused_and_nothing_is_lost(
    server: Server, start: Start, talk: TalkTo
) -> None:
    first, _, beside = talk(start("--control-timeout", "1")), talk(start()), talk(server)
    first("SADD", "known", "m")
    assert first("EXPIREMEMBER", "known", "m", 1000) == 1
    until(lambda: first("TTL", "known", "m") > 0)
    # From now on no control connection is let in: the user who has clients' connections has another password.
    beside("ACL", "SETUSER", "client", "on", ">client", "~*", "&*", "+@all")
    first("AUTH", "client", "client")
    beside("ACL", "SETUSER", "default", "-client|tracking" if server.version >= (7,) else "-client")
    for name in control_connections(beside):
        beside("CLIENT", "KILL", "ID", name)
    first("SADD", "fresh", "m")
    with pytest.raises(hiredis.ReplyError, match=r"^ERR expiremember-proxy: other proxies could not be told"):
        raise first("EXPIREMEMBER", "fresh", "m", 1000)
    assert first("HGETEX", "fresh:hash", "FIELDS", 1, "a") == [None]
    assert first("SCARD", "fresh") == 1
    assert first("EXPIREMEMBER", "known", "m", 900) == 1
    first("MULTI")
    first("SADD", "fresh", "n")
    assert first("EXPIREMEMBER", "fresh", "m", 1000) == b"QUEUED"  # the others are told before EXEC
    assert "EXECABORT" in str(first("EXEC"))
    assert first("SCARD", "fresh") == 1
    beside("ACL", "SETUSER", "default", "+@all")
    until(lambda: first("EXPIREMEMBER", "fresh", "m", 1000) == 1, 30)


def test_where_publishing_is_refused_it_says_so_once(server: Server, start: Start, talk: TalkTo) -> None:
    beside = talk(server)
    beside("ACL", "SETUSER", "control", "on", ">control", "resetchannels", "~*", "+@all")
    flags = ("--upstream", server.url.replace("//", "//control:control@"))
    proxies = [start(*flags), start(*flags)]
    for proxy in proxies:
        assert sum("messages between proxies refused" in line for line in proxy.process.lines) == 1
    first = talk(proxies[0])
    first("SADD", "k", "m")
    assert first("EXPIREMEMBER", "k", "m", 1000) == 1


def test_everything_ends_in_order(server: Server, start: Start, talk: TalkTo) -> None:
    """Who ends in good order is not waited for."""
    with ExitStack() as stack:
        first, last = start(), start()
        client = talk(first)
        client("SADD", "k", "m")
        client("EXPIREMEMBER", "k", "m", 1000)
        stack.callback(first.stop)
        last.stop()
        client("SADD", "l", "m")
        begin = time.monotonic()
        client("EXPIREMEMBER", "l", "m", 1000)
        assert time.monotonic() - begin < 1
