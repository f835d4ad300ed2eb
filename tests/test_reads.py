"""Reads of keys with deadlines, however long the server was busy: none is late, and all replies come in their order."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from proxy.commands.table import COMMANDS, PURE_READS
from tests.conftest import StartProxy
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until

BUSY = "local time = redis.call('TIME') for _ = 1, ARGV[1] do end return time"
"""Keeps a server busy, and tells when it began to be."""

BUSY_SECONDS = 0.06
TRIAL = 1_000_000
LEFT_MS = 20


def turns(beside: Raw) -> int:
    """Return how many turns of a loop keep the server busy for as long as is wanted, at least."""
    shortest = BUSY_SECONDS
    for _ in range(5):
        began = time.monotonic()
        beside.command("EVAL", BUSY, 0, TRIAL)
        shortest = min(shortest, time.monotonic() - began)
    return int(TRIAL * BUSY_SECONDS / shortest)


def read_behind_a_busy_server(
    client: Raw, beside: Raw, key: str, reads: bytes, count: int, busy: int
) -> list[bytes] | None:
    """Give a member a deadline that passes while the server is busy, and read; None where it did not pass then, or the
    read came before."""
    client.send(request("DEL", key) + request("SADD", key, "m", "n"))
    client.replies(2)
    deadline = int(moment(beside.command("TIME")) * 1000) + LEFT_MS
    assert client.command("PEXPIREMEMBERAT", key, "m", deadline) == b":1\r\n"
    beside.send(request("EVAL", BUSY, 0, busy) + request("TIME"))
    time.sleep(0.005)
    sent = time.time()
    client.send(reads)
    replies = client.replies(count)
    began, ended = moment(beside.reply()), moment(beside.reply())
    return replies if began < sent and ended * 1000 > deadline + 1 else None


def moment(reply: bytes) -> float:
    """Return what TIME has answered, in Unix seconds."""
    seconds, micros = (int(part) for part in reply.split(b"\r\n")[2::2])
    return seconds + micros / 1e6


def check_behind_a_busy_server(server: Server, proxy: Proxy, protocol: int, *, pipelined: bool) -> None:
    """See that no read is late that waits for a busy server while a deadline passes."""
    late = rounds = 0
    with Raw(proxy.address) as client, Raw(server.address) as beside:
        client.command("HELLO", protocol)
        busy = turns(beside)
        if pipelined:
            reads = b"".join(
                (
                    request("SISMEMBER", "s", "m"),
                    request("GET", "plain"),
                    request("SMEMBERS", "s"),
                    request("GET", "other"),
                    request("SCARD", "s"),
                )
            )
            mark = b"*" if protocol == 2 else b"~"
            wanted = [b":0\r\n", b"$1\r\n1\r\n", mark + b"1\r\n$1\r\nn\r\n", b"$1\r\n2\r\n", b":1\r\n"]
        else:
            reads, wanted = request("SISMEMBER", "s", "m"), [b":0\r\n"]
        client.send(request("SET", "plain", 1) + request("SET", "other", 2))
        client.replies(2)
        for _ in range(100):
            if rounds == 10:
                break
            replies = read_behind_a_busy_server(client, beside, "s", reads, len(wanted), busy)
            if replies is not None:
                rounds += 1
                late += replies != wanted
    assert rounds == 10
    assert late == 0


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("pipelined", [False, True], ids=["alone", "pipelined"])
def test_no_read_behind_a_busy_server_is_late(
    upstream: Server, start_proxy: StartProxy, protocol: int, pipelined: bool
) -> None:
    check_behind_a_busy_server(upstream, start_proxy(upstream), protocol, pipelined=pipelined)


def check_a_nearer_deadline(
    server: Server, proxy: Proxy, prepare: Callable[[Raw], None] = lambda _: None, count: int = 2
) -> None:
    """See that no read is late although, as the server has last said, the next deadline of all is far.

    Args:
        server: the server.
        proxy: in front of it.
        prepare: what to do with the reader first.
        count: how many reads to send at once.
    """
    with Raw(proxy.address) as client, Raw(proxy.address) as setter, Raw(server.address) as beside:
        prepare(client)
        busy, late, rounds = turns(beside), 0, 0
        setter.send(request("SADD", "s", "m", "n", "far") + request("EXPIREMEMBER", "s", "far", 1000))
        setter.replies(2)
        end = time.monotonic() + 60
        for number in itertools.count():
            if rounds == 10 or time.monotonic() > end:
                break
            for _ in range(3):
                client.send(request("SISMEMBER", "s", "n") * count)
                client.replies(count)
            reads = request("SISMEMBER", "s", f"m{number}") * count
            setter.command("SADD", "s", f"m{number}")
            deadline = int(moment(beside.command("TIME")) * 1000) + LEFT_MS
            assert setter.command("PEXPIREMEMBERAT", "s", f"m{number}", deadline) == b":1\r\n"
            beside.send(request("EVAL", BUSY, 0, busy) + request("TIME"))
            time.sleep(0.005)
            sent = time.time()
            client.send(reads)
            replies = client.replies(count)
            began, ended = moment(beside.reply()), moment(beside.reply())
            if began < sent and ended * 1000 > deadline + 1:
                rounds += 1
                late += replies != [b":0\r\n"] * count
            setter.command("SREM", "s", f"m{number}")
    assert rounds == 10
    assert late == 0


@pytest.mark.parametrize("count", [1, 2, 200])
def test_a_deadline_that_is_nearer_than_was_heard_is_seen(
    upstream: Server, start_proxy: StartProxy, count: int
) -> None:
    check_a_nearer_deadline(upstream, start_proxy(upstream), count=count)


@pytest.mark.parametrize("reply", ["SISMEMBER s m", "SMEMBERS s", "SCARD s"])
def test_who_reads_while_no_deadline_is_near_asks_once_for_all(client: Raw, upstream: Server, reply: str) -> None:
    client.send(request("SADD", "s", "m") + request("EXPIREMEMBER", "s", "m", 1000))
    client.replies(2)
    read = request(*reply.split())
    until(lambda: _calls(client, upstream, read, "zrange", 20) == 1, what="the answer that no deadline is near")
    assert _calls(client, upstream, read, "zmscore", 20) == 0
    assert _calls(client, upstream, read, "echo", 20) == 0  # all has been answered: nothing marks the place


@pytest.mark.parametrize("broken", [b"*1\r\n$-5\r\n", b"*x\r\n", b'GET "\r\n'])
def test_a_late_read_in_front_of_a_protocol_error_is_answered(client: Raw, broken: bytes) -> None:
    due(client, "s")
    client.send(request("SISMEMBER", "s", "m") + request("INCR", "n") + broken)
    assert client.replies(2) == [b":0\r\n", b":1\r\n"]
    assert client.reply().startswith(b"-ERR Protocol error")


@pytest.mark.parametrize("read", ["SMISMEMBER s *x", "SMEMBERS *s", "SISMEMBER s *"])
def test_a_name_that_begins_with_a_star_is_one_argument(client: Raw, read: str) -> None:
    client.send(request("SADD", "s", "m") + request("SADD", "*s", "m"))
    client.replies(2)
    for key in ("s", "*s"):
        assert client.command("PEXPIREMEMBER", key, "m", 400) == b":1\r\n"
    for _ in range(2):  # then it is known that no deadline is near
        client.command(*read.split())
        client.send(request("MULTI") + request("INCR", "n") + request("EXEC"))
        assert client.replies(3)[2][:2] == b"*1"
    client.command(*read.split())
    time.sleep(0.5)  # past the deadline
    assert client.command("INCR", "n") == b":3\r\n"


def _calls(client: Raw, upstream: Server, read: bytes, name: str, count: int) -> int:
    """Read so many times at once; return how many calls of a command that takes the server."""

    def calls() -> int:
        found = re.search(rb"cmdstat_%b:calls=(\d+)" % name.encode(), upstream.command("INFO", "commandstats"))
        return int(found[1]) if found else 0

    before = calls()
    client.send(read * count)
    assert len(set(client.replies(count))) == 1
    return calls() - before


@pytest.fixture
def client(upstream: Server, start_proxy: StartProxy) -> Iterator[Raw]:
    with Raw(start_proxy(upstream, "--no-sweep").address) as client:
        yield client


def due(client: Raw, key: str) -> None:
    client.send(request("DEL", key) + request("SADD", key, "m", "n") + request("PEXPIREMEMBER", key, "m", 5))
    assert client.replies(3)[2] == b":1\r\n"
    time.sleep(0.02)


def check_what_follows(server: Server, proxy: Proxy) -> None:
    """See that what is sent behind a read that is late does not change what it shows."""
    with Raw(proxy.address) as client, Raw(server.address) as beside:
        _check_what_follows(client, beside)


def _check_what_follows(client: Raw, beside: Raw) -> None:
    for behind in (
        request("SADD", "s", "x"),
        request("DEL", "s"),
        request("SELECT", 1),
        request("MULTI"),
        request("FLUSHALL"),
        request("EXPIRE", "s", 100),
        request("EVAL", "redis.call('sadd', 's', 'y') return 1", 0),
        request("CLIENT", "REPLY", "SKIP") + request("SADD", "s", "x"),
    ):
        for together in (False, True):
            due(client, "s")
            beside.command("CLIENT", "PAUSE", 50)  # so that the read has not been answered when the other comes
            client.send(request("SMEMBERS", "s") + (behind if together else b""))
            if not together:
                time.sleep(0.01)
                client.send(behind)
            assert client.reply() == b"*1\r\n$1\r\nn\r\n"
            client.send(request("PING", "end"))
            while client.reply() != b"$3\r\nend\r\n":
                if behind == request("MULTI"):
                    assert client.reply() == b"+QUEUED\r\n"
                    assert client.command("DISCARD") == b"+OK\r\n"
                    break
            client.command("SELECT", 0)


def test_what_is_sent_behind_a_read_does_not_change_it(upstream: Server, start_proxy: StartProxy) -> None:
    check_what_follows(upstream, start_proxy(upstream, "--no-sweep"))


# All members of `gone` are due, one of two of `s` is; the replies are those of a server without them.
BEHIND: Final = [
    ("EXISTS s q; SET q 1", [b":1\r\n", b"+OK\r\n"]),
    ("SUNION s q; SADD q 1", [b"*1\r\n$1\r\nn\r\n", b":1\r\n"]),
    ("SCARD s; SET s v", [b":1\r\n", b"+OK\r\n"]),
    ("TTL s; EXPIRE s 100", [b":-1\r\n", b":1\r\n"]),
    ("SCARD s; EXPIRE s -1", [b":1\r\n", b":1\r\n"]),
    ("SCARD s; PEXPIRE s 0", [b":1\r\n", b":1\r\n"]),
    ("SCARD s; PEXPIRE s 99999; SCARD s; TTL s", [b":1\r\n", b":1\r\n", b":1\r\n", b":100\r\n"]),
    ("SCARD s; EXPIRE s 100; SCARD s; TTL s", [b":1\r\n", b":1\r\n", b":1\r\n", b":100\r\n"]),
    ("SCARD s; EXPIREMEMBER s m 100; SCARD s", [b":1\r\n", b":0\r\n", b":1\r\n"]),
    ("SCARD s; EXPIREMEMBER s n 100; SCARD s; TTL s n", [b":1\r\n", b":1\r\n", b":1\r\n", b":100\r\n"]),
    ("SCARD s; EXPIREMEMBER s n -1; SCARD s", [b":1\r\n", b":1\r\n", b":0\r\n"]),
    ("SCARD s; TTL s m; TTL s n", [b":1\r\n", b":-1\r\n", b":-1\r\n"]),
    ("EXPIRE s 100; EXPIRE s 200; TTL s", [b":1\r\n", b":1\r\n", b":200\r\n"]),
    ("EXPIRE s 300; EXPIRE s 400; TTL s", [b":1\r\n", b":1\r\n", b":400\r\n"]),
    ("EXPIRE s 200; EXPIRE s 2; TTL s", [b":1\r\n", b":1\r\n", b":2\r\n"]),
    ("SCARD gone; EXPIRE gone 100; SADD gone m; TTL gone", [b":0\r\n", b":0\r\n", b":1\r\n", b":-1\r\n"]),
    ("EXPIRE s 100; PERSIST s; TTL s", [b":1\r\n", b":1\r\n", b":-1\r\n"]),
    ("GET gone; SET gone v", [b"$-1\r\n", b"+OK\r\n"]),
    ("INCR gone; SET gone 100; GET gone", [b":1\r\n", b"+OK\r\n", b"$3\r\n100\r\n"]),
    ("GETEX gone EX 100; SET gone v; TTL gone", [b"$-1\r\n", b"+OK\r\n", b":-1\r\n"]),
    ("MSETNX q 1 gone 2; GET q", [b":1\r\n", b"$1\r\n1\r\n"]),
    ("PFMERGE q gone; TYPE q", [b"+OK\r\n", b"+string\r\n"]),
    ("INCR gone; INCR gone", [b":1\r\n", b":2\r\n"]),
]


def check_behind(client: Raw, *, together: bool) -> None:
    """See that what is sent twice sees nothing that came behind it, and undoes nothing."""
    wrong = []
    for lines, wanted in BEHIND:
        requests = [request(*line.split()) for line in lines.split("; ")]
        client.send(b"".join(requests))  # so that the commands are known
        client.replies(len(requests))
        client.send(request("DEL", "s", "q", "gone") + request("SADD", "gone", "m"))
        client.replies(2)
        assert client.command("PEXPIREMEMBER", "gone", "m", 5) == b":1\r\n"
        due(client, "s")
        for one in [b"".join(requests)] if together else requests:
            client.send(one)
            time.sleep(0.001)
        if (replies := client.replies(len(requests))) != wanted:
            wrong.append((lines, replies))
    assert not wrong


@pytest.mark.parametrize("together", [True, False])
def test_what_is_sent_twice_sees_nothing_that_came_behind_it(client: Raw, together: bool) -> None:
    check_behind(client, together=together)


@pytest.mark.parametrize("requests", [["EXPIRE s 100"], ["SCARD s", "EXPIRE s 100"], ["SCARD s", "PEXPIRE s 100000"]])
def test_an_expire_goes_by_what_lives(upstream: Server, start_proxy: StartProxy, requests: list[str]) -> None:
    check_an_expire(upstream, start_proxy(upstream, "--no-sweep"), requests)


def check_an_expire(server: Server, proxy: Proxy, requests: list[str]) -> None:
    """It comes after a deadline of the key, before anybody has removed the member, and another client right behind it.

    What comes first may differ; what an EXPIRE has answered, and what has become of the lifetime, belong together.
    """
    with proxy.connect() as client, proxy.connect() as other, server.connect() as beside:
        for members, behind, key, wanted in (
            ("m", "SADD s n", "s", {(b":0\r\n", b":-1\r\n"), (b":1\r\n", b":100\r\n")}),
            ("m n", "RENAME s t", "t", {(b":1\r\n", b":100\r\n"), (b":0\r\n", b":-1\r\n")}),
            ("m n", "PERSIST s", "s", {(b":1\r\n", b":-1\r\n"), (b":1\r\n", b":100\r\n")}),
        ):
            for _ in range(6):
                client.send(request("DEL", "s", "t") + request("SADD", "s", *members.split()))
                client.replies(2)
                deadline = int(time.time() * 1000) + LEFT_MS
                assert client.command("PEXPIREMEMBERAT", "s", "m", deadline) == b":1\r\n"
                beside.send(request("DEBUG", "SLEEP", "0.06"))
                until(lambda: time.time() * 1000 > deadline + 1)  # noqa: B023
                client.send(b"".join(request(*line.split()) for line in requests))
                time.sleep(0.004)
                other.send(request(*behind.split()))
                said, _, _ = client.replies(len(requests))[-1], other.reply(), beside.reply()
                assert (said, client.command("TTL", key)) in wanted, behind


@pytest.mark.one_kind
def test_requests_that_are_too_short_go_beside_reads(client: Raw, upstream: Server) -> None:
    check_short_requests(client, upstream)


def check_short_requests(client: Raw, upstream: Server) -> None:
    """Whatever a request lacks, only the server says so."""
    client.send(request("SADD", "s", "m", "n") + request("EXPIREMEMBER", "s", "m", 1000))
    client.replies(2)
    read = request("SISMEMBER", "s", "m")
    with upstream.connect() as beside:
        tried = 0
        for name in COMMANDS:
            known = re.match(
                rb"\*1\r\n\*\d+\r\n\$\d+\r\n[^\r]+\r\n:-?(\d+)\r\n", beside.command("COMMAND", "INFO", name)
            )
            for words in range(1, int(known[1]) if known else 0):
                short = request(name, *("s", "m", "1", "2", "3")[: words - 1])
                beside.send(short)
                error = beside.reply()
                client.send(short + read + read + short)
                assert client.replies(4) == [error, b":1\r\n", b":1\r\n", error], short
                tried += 1
        assert tried > 150


@pytest.mark.one_kind
def test_few_replies_wait_behind_a_late_one(upstream: Server, start_proxy: StartProxy) -> None:
    check_few_wait(upstream, start_proxy(upstream, "--no-sweep"))


def check_few_wait(server: Server, proxy: Proxy) -> None:
    """The script in front of a late read waits, since the server holds up writes; reads go on."""
    count = 120_000  # many times what the loop may have read before it knows that one is late
    with proxy.connect(60) as client, server.connect() as beside, server.connect() as other, ExitStack() as stack:
        stack.callback(other.command, "CLIENT", "UNPAUSE")
        client.send(b"".join(request("SADD", key, "m", "n") for key in ("s", "t")))
        client.replies(2)
        assert client.command("EXPIREMEMBER", "t", "m", 1000) == b":1\r\n"
        deadline = int(time.time() * 1000) + 1000
        assert client.command("PEXPIREMEMBERAT", "s", "m", deadline) == b":1\r\n"
        assert other.command("CLIENT", "PAUSE", 60_000, "WRITE") == b"+OK\r\n"
        until(lambda: time.time() * 1000 > deadline)
        assert beside.command("SCARD", "s") == b":2\r\n", "this machine is too busy for this test"
        client.send(request("SMEMBERS", "s"))

        def ran() -> int:
            found = re.search(rb"sismember:calls=([0-9]+)", beside.command("INFO", "commandstats"))
            return int(found[1]) if found else 0

        ran_before = ran()
        sender = threading.Thread(target=client.send, args=(request("SISMEMBER", "t", "m") * count,))
        sender.start()
        until(lambda: ran() > ran_before)
        before = -1
        while before != (now := ran() - ran_before):
            before = now
            time.sleep(0.2)
        assert now < count / 2
        assert other.command("CLIENT", "UNPAUSE") == b"+OK\r\n"
        first, *others = client.replies(1 + count)
        sender.join(20)
        assert first == b"*1\r\n$1\r\nn\r\n"
        assert set(others) == {b":1\r\n"}


@pytest.mark.one_kind
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("then", ["SADD", "DEL"])
def test_what_was_not_covered_is_not_sent_twice(
    upstream: Server, start_proxy: StartProxy, then: str, together: bool
) -> None:
    check_what_was_not_covered(upstream, start_proxy(upstream, "--no-sweep"), then=then, together=together)


def check_what_was_not_covered(server: Server, proxy: Proxy, *, then: str, together: bool) -> None:
    """The first deadline under a prefix comes while requests on a key under it are on their way: nothing waits."""
    late = "cart:x"
    with proxy.connect() as client, proxy.connect() as other, server.connect() as beside:
        for key in ("foo:y", "goo:y", "hoo:y"):
            client.send(
                request("DEL", late) + request("SADD", late, "m", "n") + request("PEXPIREMEMBER", late, "m", 150)
            )
            client.replies(3)
            assert client.command("SADD", key, "old") == b":1\r\n"
            other.command("SADD", f"{key}2", "m")
            beside.send(request("DEBUG", "SLEEP", "0.3"))
            time.sleep(0.02)
            reads = request("SMEMBERS", late) + (
                request("SMEMBERS", key) if then == "SADD" else request("SETNX", key, 1)
            )
            behind = request("SADD", key, "new") if then == "SADD" else request("DEL", key)
            client.send(reads + (behind if together else b""))
            time.sleep(0.02)
            client.send(b"" if together else behind)
            time.sleep(0.02)
            other.send(request("EXPIREMEMBER", f"{key}2", "m", 100))
            shown = b"*1\r\n$3\r\nold\r\n" if then == "SADD" else b":0\r\n"
            assert client.replies(3) == [b"*1\r\n$1\r\nn\r\n", shown, b":1\r\n"]
            assert other.reply() == b":1\r\n"
            assert beside.reply() == b"+OK\r\n"
            assert beside.command("EXISTS", key) == (b":1\r\n" if then == "SADD" else b":0\r\n")


@pytest.mark.parametrize("together", [True, False])
def test_a_reply_that_waits_for_another_can_become_late(client: Raw, upstream: Server, together: bool) -> None:
    check_what_waits(client, upstream, together=together)


def check_what_waits(client: Raw, server: Server, *, together: bool) -> None:
    """A member of `w` is due when the reply of `s` comes, which waits for a removal; both are read before."""
    for _ in range(20):
        due(client, "s")
        client.send(request("DEL", "w") + request("SADD", "w", "m", "n") + request("PEXPIREMEMBER", "w", "m", 150))
        assert client.replies(3)[2] == b":1\r\n"
        assert server.command("CLIENT", "PAUSE", 300, "WRITE") == b"+OK\r\n"
        if server.command("SCARD", "s") == b":2\r\n":  # no proxy of another test has swept it in time
            break
        assert server.command("CLIENT", "UNPAUSE") == b"+OK\r\n"
    first, second = request("SCARD", "s"), request("SMEMBERS", "w")
    client.send(first + (second if together else b""))
    if not together:
        time.sleep(0.02)
        client.send(second)
    time.sleep(0.02)
    client.send(request("SADD", "w", "x"))
    assert client.replies(3) == [b":1\r\n", b"*1\r\n$1\r\nn\r\n", b":1\r\n"]


def test_the_last_read_of_a_client_that_ends_is_sent_again(client: Raw) -> None:
    due(client, "s")
    client.send(request("SISMEMBER", "s", "m") + request("GET", "none"))
    client.socket.shutdown(1)
    assert client.rest() == b":0\r\n$-1\r\n"


def test_a_crowd_that_is_due_is_removed_before_the_reply(client: Raw) -> None:
    members = [f"m{number}" for number in range(3_500)]
    client.command("SADD", "s", "stays", *members)
    client.send(b"".join(request("PEXPIREMEMBER", "s", member, 400) for member in members))
    assert set(client.replies(len(members))) <= {b":1\r\n"}
    time.sleep(0.6)
    assert client.command("SCARD", "s") == b":1\r\n"


def test_no_error_is_left_at_the_server(client: Raw, upstream: Server) -> None:
    for _ in range(3):
        due(client, "s")
        before = upstream.command("INFO", "errorstats")
        assert client.command("SISMEMBER", "s", "m") == b":0\r\n"
        assert upstream.command("INFO", "errorstats") == before


def test_one_question_goes_in_front_of_a_chunk(client: Raw, upstream: Server) -> None:
    client.send(request("SADD", "s", "m") + request("EXPIREMEMBER", "s", "m", 100))
    client.replies(2)
    until(lambda: client.command("TTL", "s", "m") in (b":100\r\n", b":99\r\n"))
    client.command("SISMEMBER", "s", "m")

    read = request("SISMEMBER", "s", "m")
    for name in ("zmscore", "zrange"):  # the proxy itself sends one now and then, whoever asks for what
        assert min(_calls(client, upstream, read, name, 20) for _ in range(5)) <= 1


WAIT_FOR_NONE: Final = {
    "a string, again and again": ["GET c:text"],
    "texts": ["STRLEN c:text", "GETRANGE c:text 0 1", "GET c:text"],
    "a lifetime, again and again": ["TTL c:set"],
    "lifetimes among reads": ["PTTL c:set", "SCARD c:set", "TTL c:text", "GET c:text"],
    "lifetimes of many keys": ["EXPIRE c:{number} 100"],
    "a lifetime after a read": ["SMEMBERS c:{number}", "EXPIRE c:{number} 100"],
    "a lifetime in ms after a read": ["SMEMBERS c:{number}", "PEXPIRE c:{number} 100000"],
    "a read after a lifetime": ["EXPIRE c:{number} 100", "GET c:{number}"],
    "values alike": ["GETSET c:{number} 1"],
    "a condition": ["EXPIRE c:{number} 100"],
    "a stream, again and again": ["XLEN c:stream", "XRANGE c:stream - +"],
}
"""Requests on covered keys that do not disturb each other."""


def check_waiting_for_none(server: Server, proxy: Proxy) -> None:
    """See that none in a pipeline waits for the replies to those before."""
    with proxy.connect() as client:
        client.send(request("SADD", "c:set", "m") + request("EXPIREMEMBER", "c:set", "m", 1000))
        assert client.replies(2)[1] == b":1\r\n"
        for place, lines in enumerate(WAIT_FOR_NONE.values()):
            words = [
                line.format(number=f"{place}:{number}").split() for number in range(40 // len(lines)) for line in lines
            ]
            chunk = b"".join(request(*some) for some in words)
            pieces = []
            for _ in range(3):
                before = _pieces(server)
                client.send(chunk)
                client.replies(len(words))
                pieces.append(_pieces(server) - before)
            assert min(pieces) <= 8, lines


def _pieces(server: Server) -> int:
    """Return in how many pieces the server has read what it was sent."""
    found = re.search(rb"total_reads_processed:(\d+)", server.command("INFO", "stats"))
    assert found is not None
    return int(found[1])


@pytest.mark.every_kind
def test_reads_in_a_pipeline_wait_for_none(upstream: Server, proxy: Proxy) -> None:
    check_waiting_for_none(upstream, proxy)


def test_pure_reads_are_none_of_the_table() -> None:
    assert not PURE_READS & COMMANDS.keys()


def test_reads_that_are_read_one_by_one_go_together(upstream: Server, proxy: Proxy) -> None:
    check_one_by_one(upstream, proxy)


def check_one_by_one(upstream: Server, proxy: Proxy) -> None:
    """Once a request has come in part, or was held, one by one is how all behind it are read until none is left."""
    count = 5_000
    read = request("HGET", "h", "f")
    with Raw(proxy.address) as client:
        client.command("HSET", "h", "f", "v")
        client.command("EXPIREMEMBER", "h", "f", 1_000)
        client.command("HGET", "h", "f")
        before = _questions(upstream)
        client.send(read[:10])
        time.sleep(0.05)
        client.send(read[10:] + read * (count - 1))
        assert client.replies(count) == [b"$1\r\nv\r\n"] * count
        assert client.command("ECHO", "end") == b"$3\r\nend\r\n"
        assert _questions(upstream) - before < count / 20


def _questions(server: Server) -> int:
    """Return how often the server was asked for the earliest deadline, at least."""
    stats = server.command("INFO", "commandstats")
    return sum(int(calls) for calls in re.findall(rb"cmdstat_(?:zmscore|zrange):calls=(\d+)", stats))
