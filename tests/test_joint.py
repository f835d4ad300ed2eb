"""Requests about members of many clients, done by one call of a script: each has its own reply, and runs once."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from proxy.relay.joint import MOST
from proxy.scripts.naming import Names
from tests.conftest import StartProxy, StartServer
from tests.mutations import Mutation, broken_copy
from tests.raw import Raw, request
from tests.servers import Proxy, Server, halt, until
from tests.test_refusals import REFUSALS
from tests.test_sharing import SHARING, kill_lanes, on_each, on_one, shared, until_shares
from tests.test_together import FAR, Words, alike, fill_counters, pipelined, refusing

NAMES: Final = Names(b"__expiremember__:")
CLIENTS: Final = 12


@pytest.fixture
def server(kind: str, start_server: StartServer) -> Server:
    return start_server(kind)


@pytest.fixture
def sharing(server: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(server, *SHARING)


@contextlib.contextmanager
def crowd(proxy: Proxy, count: int = CLIENTS, protocol: int = 2) -> Iterator[list[Raw]]:
    """Clients that share, and that may set deadlines in keys `c:…` without announcing it any more."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(count)]
        clients[0].command("SADD", "c:first", "m")
        assert clients[0].command("EXPIREMEMBER", "c:first", "m", FAR) == b":1\r\n"
        for client in clients:
            client.command("HELLO", protocol)
            until_shares(proxy, client)
        yield clients


def at_once(clients: Sequence[Raw], requests: Sequence[Words]) -> list[bytes]:
    """Each client sends a request, and all wait for their replies then."""
    for client, words in zip(clients, requests, strict=True):
        client.send_command(*words)
    return [client.reply() for client in clients]


@contextlib.contextmanager
def held_still(proxy: Proxy) -> Iterator[None]:
    """The proxy finds all that is sent meanwhile when it next looks."""
    halt(proxy.pid)
    try:
        yield
    finally:
        os.kill(proxy.pid, signal.SIGCONT)


def in_one_turn(proxy: Proxy, clients: Sequence[Raw], requests: Sequence[Words]) -> list[bytes]:
    """Like `at_once`, but the proxy finds all requests when it next looks."""
    with held_still(proxy):
        for client, words in zip(clients, requests, strict=True):
            client.send_command(*words)
    return [client.reply() for client in clients]


def all_at_once(proxy: Proxy, clients: Sequence[Raw], some: Sequence[Sequence[Words]]) -> list[list[bytes]]:
    """Like `in_one_turn`, for several requests of each client."""
    with held_still(proxy):
        for client, requests in zip(clients, some, strict=True):
            client.send(b"".join(request(*words) for words in requests))
    return [client.replies(len(requests)) for client, requests in zip(clients, some, strict=True)]


def calls(server: Server, *names: bytes) -> list[int]:
    """How many commands of some names a server has run."""
    told = server.command("INFO", "commandstats")
    found = [re.search(rb"cmdstat_%b:calls=(\d+)" % name, told) for name in names]
    return [int(one[1]) if one else 0 for one in found]


def check_one_call(server: Server, sharing: Proxy) -> None:
    with crowd(sharing) as clients:
        keys = [f"c:{number}" for number in range(CLIENTS)]
        assert at_once(clients, [("SADD", key, "m", "other") for key in keys]) == [b":2\r\n"] * CLIENTS
        began, (texts, digests) = shared(sharing), calls(server, b"eval", b"evalsha")
        for requests, wanted in (
            ([("EXPIREMEMBER", key, "m", FAR + number) for number, key in enumerate(keys)], None),
            ([("TTL", key, "m") for key in keys], [b":%d\r\n" % (FAR + number) for number in range(CLIENTS)]),
            ([("SEXPIRE", key, FAR, "MEMBERS", 1, "m") for key in keys], [b"*1\r\n:1\r\n"] * CLIENTS),
            ([("SREM", key, "m") for key in keys], None),
            ([("SADDEX", key, FAR, "m") for key in keys], None),
            ([("SADDEX", key, "EX", FAR, "MEMBERS", 1, "m") for key in keys], None),
            ([("SREM", key, "m") for key in keys], None),
            ([("SADD", key, "m") for key in keys], None),
            ([("TTL", key, "m") for key in keys], [b":-1\r\n"] * CLIENTS),
        ):
            replies = at_once(clients, requests)
            assert all(map(alike, replies, wanted or [b":1\r\n"] * CLIENTS)), (requests, replies)
        assert shared(sharing) - began >= 9 * CLIENTS
        assert sum(calls(server, b"eval", b"evalsha")) - texts - digests < 8 * CLIENTS
        for _ in range(5):
            assert at_once(clients, [("SADD", key, "m") for key in keys]) == [b":0\r\n"] * CLIENTS
        assert calls(server, b"evalsha")[0] > digests


@on_each
def test_those_of_a_turn_are_one_call(server: Server, sharing: Proxy) -> None:
    check_one_call(server, sharing)


LONE: Final[tuple[tuple[str, bytes], ...]] = (
    (f"EXPIREMEMBER c:k m {FAR}", b":1\r\n"),
    ("TTL c:k m", b":%d\r\n" % FAR),
    (f"EXPIREMEMBER c:k m {FAR}000 ms", b":1\r\n"),
    ("pttl c:k none", b":-1\r\n"),
    (f"PEXPIREMEMBER c:k none {FAR}", b":0\r\n"),
    ("SADD c:k m new", b":1\r\n"),
    ("SREM c:k new none", b":1\r\n"),
    ("PERSIST c:k m", b":1\r\n"),
    ("ZINCRBY c:z 1 m", b"$1\r\n1\r\n"),
    (f"EXPIREMEMBER c:z m {FAR}", b":1\r\n"),
    ("ZADD c:z 2 m", b":0\r\n"),
    ("TTL c:z m", b":%d\r\n" % FAR),
    (f"ZEXPIRE c:z {FAR} MEMBERS 1 m", b"*1\r\n:1\r\n"),
    ("ZADD c:z 2 m", b":0\r\n"),
    ("TTL c:z m", b":-1\r\n"),
    ("ZINCRBY c:z 0.5 m", b"$3\r\n2.5\r\n"),
    ("ZREM c:z m", b":1\r\n"),
    ("ZREM c:k m", b"-WRONGTYPE"),
    (f"SEXPIRE c:k {FAR} MEMBERS 1 m", b"*1\r\n:1\r\n"),
    (f"spexpire c:k {FAR} members 1 none", b"*1\r\n:-2\r\n"),
    (f"SEXPIRE c:t {FAR} MEMBERS 1 m", b"-WRONGTYPE"),
    (f"FIELDEXPIRE c:k {FAR} m", b"*1\r\n:1\r\n"),
    ("TTL c:k m", b":%d\r\n" % FAR),
    (f"SADDEX c:k {FAR} x", b":1\r\n"),
    (f"SADDEX c:k EX {FAR} MEMBERS 1 x", b":1\r\n"),
    (f"SADDEX c:t PX {FAR} MEMBERS 1 x", b"-WRONGTYPE"),
    ("TTL c:k x", b":%d\r\n" % FAR),
    ("SREM c:k x", b":1\r\n"),
    (f"EXPIREMEMBER c:t m {FAR}", b"-ERR object type is unsupported\r\n"),
)


def check_lone(server: Server, sharing: Proxy) -> None:
    """A request alone goes with the script for just that: there is no ZMSCORE, with which a batch begins."""
    server.command("SCRIPT", "FLUSH")
    unknown = _unknown_digests(server)
    with crowd(sharing, 1) as (client,):
        for line in ("SADD c:k m", "SET c:t text"):
            client.command(*line.split())
        for line, _ in LONE:  # brings the scripts
            client.command(*line.split())
        for line in ("DEL c:z c:k", "SADD c:k m"):
            client.command(*line.split())
        until_shares(sharing, client)
        began, (digests, reads, looks) = shared(sharing), calls(server, b"evalsha", b"evalsha_ro", b"zmscore")
        for line, wanted in LONE:
            reply = client.command(*line.split())
            assert alike(reply, wanted) or wanted == reply[:10] == b"-WRONGTYPE", (line, reply)
        assert shared(sharing) - began == len(LONE)
        after = calls(server, b"evalsha", b"evalsha_ro", b"zmscore")
        assert after[0] - digests + after[1] - reads >= len(LONE)
        assert after[2] - looks < len(LONE) / 2
    assert _unknown_digests(server) == unknown


@on_each
def test_a_request_alone_needs_no_batch(server: Server, sharing: Proxy) -> None:
    check_lone(server, sharing)


def check_own_errors(sharing: Proxy) -> None:
    with crowd(sharing, 2 * MOST + 3) as clients:
        clients[0].command("SET", "c:text", "text")
        for number in range(0, len(clients), 3):
            clients[0].command("HSET", f"c:{number}", "m", 1)
        for name, more in (("EXPIREMEMBER", (FAR,)), ("SADD", ()), ("SREM", ())):
            requests: list[Words] = [
                (name, "c:text" if number % 3 == 1 else f"c:{number}", "m", *more) for number in range(len(clients))
            ]
            wanted = {
                0: b":1\r\n" if name == "EXPIREMEMBER" else b"-WRONGTYPE",
                2: b":1\r\n" if name != "EXPIREMEMBER" else b":0\r\n",
            }
            for number, reply in enumerate(at_once(clients, requests)):
                error = b"-ERR object type" if name == "EXPIREMEMBER" else b"-WRONGTYPE"
                assert reply.startswith(wanted.get(number % 3, error)), (name, number, reply)


@on_each
def test_an_error_is_of_the_one_whose_it_is(sharing: Proxy) -> None:
    check_own_errors(sharing)


ODD_ONES: Final[tuple[tuple[str, str], ...]] = (
    ("EXPIREMEMBER c:{} m 90000000 ms", "EXPIREMEMBER c:{} m 90000 s"),
    ("EXPIREMEMBER c:{} m 90000", "EXPIREMEMBER c:{} m 090000"),
    ("EXPIREMEMBER c:{} m 90000", "EXPIREMEMBER c:{} m -10"),
    ("EXPIREMEMBER c:{} m 90000", "EXPIREMEMBER new:{}: m 80000"),
    ("EXPIREMEMBER c:{} m 90000", "EXPIREMEMBER __expiremember__:index m 10"),
    ("SADD c:{} x y", "SADD __expiremember__:index x"),
    ("ZADD c:z:{} 1 m 2 n", "ZADD c:z:{} NX CH 5 m"),
    ("TTL c:{} m", "TTL __expiremember__:index m"),
)
"""Requests, and one that must be judged by itself where it comes among them."""


def check_odd_ones(sharing: Proxy) -> None:
    with crowd(sharing) as clients, sharing.connect() as judged:
        judged.command("CLIENT", "NO-EVICT", "on")  # such a client does not share
        for client, name in ((clients[0], "one"), (judged, "other")):
            for number in range(CLIENTS):
                client.command("SADD", f"c:{name}{number}", "m")
                client.command("ZADD", f"c:z:{name}{number}", 1, "m")
                client.command("ZEXPIRE", f"c:z:{name}{number}", FAR, "MEMBERS", 1, "m")
                client.command("SADD", f"new:{name}{number}:", "m")
        for most, odd in ODD_ONES:

            def requests(name: str, most: str = most, odd: str = odd) -> list[Words]:
                lines = (odd if number in (5, 9) else most for number in range(CLIENTS))
                return [tuple(line.format(f"{name}{number}").split()) for number, line in enumerate(lines)]

            for client in clients:
                until_shares(sharing, client)
            replies = in_one_turn(sharing, clients, requests("one"))
            wanted = [judged.command(*words) for words in requests("other")]
            assert all(map(alike, replies, wanted)), (most, odd, replies, wanted)
            for number in range(CLIENTS):
                for line in ("TTL c:{} m", "TTL new:{}: m", "TTL c:z:{} m"):
                    is_so, should = (
                        judged.command(*line.format(f"{name}{number}").split()) for name in ("one", "other")
                    )
                    assert alike(is_so, should), (most, odd, number, line)


@on_each
def test_what_must_be_judged_by_itself_is(sharing: Proxy) -> None:
    check_odd_ones(sharing)


def check_flushed_scripts(server: Server, sharing: Proxy) -> None:
    """Each request runs once, and nobody hears that a script is not there."""
    with crowd(sharing) as clients:
        clients[0].command("ZADD", "c:counts", 0, "all")
        assert clients[0].command("EXPIREMEMBER", "c:counts", "all", FAR) == b":1\r\n"
        began = shared(sharing)
        for number in range(1, 41):
            if number % 2:
                assert server.command("SCRIPT", "FLUSH") == b"+OK\r\n"
            replies = at_once(clients, [("ZINCRBY", "c:counts", 1, "all")] * CLIENTS)
            assert all(reply.startswith(b"$") for reply in replies), replies
            counts = sorted(int(reply.split(b"\r\n")[1]) for reply in replies)
            assert counts == list(range(CLIENTS * (number - 1) + 1, CLIENTS * number + 1)), replies
            assert all(reply.startswith(b":") for reply in at_once(clients, [("TTL", "c:counts", "all")] * CLIENTS))
        assert shared(sharing) - began > 40 * CLIENTS


@on_each
def test_scripts_that_are_gone_are_sent_again(server: Server, sharing: Proxy) -> None:
    check_flushed_scripts(server, sharing)


@on_each
def test_a_user_who_may_name_no_script_by_its_digest_is_served_by_texts(
    server: Server, start_proxy: StartProxy
) -> None:
    check_no_digests(server, start_proxy(server, *SHARING))


def check_no_digests(server: Server, sharing: Proxy) -> None:
    with crowd(sharing) as clients:
        clients[0].command("SADD", "c:some", "m")
        assert clients[0].command("EXPIREMEMBER", "c:some", "m", FAR) == b":1\r\n"
        for _ in range(2):
            at_once(clients, [("TTL", "c:some", "m")] * CLIENTS)
        assert server.command("ACL", "SETUSER", "default", "-evalsha", "-evalsha_ro") == b"+OK\r\n"
        try:
            for number in range(10):
                replies = at_once(clients, [("SADD", "c:some", f"{number}:{client}") for client in range(CLIENTS)])
                assert replies == [b":1\r\n"] * CLIENTS
                replies = at_once(clients, [("TTL", "c:some", "m")] * CLIENTS)
                assert all(alike(reply, b":%d\r\n" % FAR) for reply in replies), replies
        finally:
            server.command("ACL", "SETUSER", "default", "+@all")


def check_refused_texts(server: Server, sharing: Proxy) -> None:
    """The server has not taken a text that it refuses, so a digest would be unknown to it, each time."""
    with crowd(sharing, 1) as (client,), refusing(server, "no replicas"):
        server.command("SCRIPT", "FLUSH")
        unknown = _unknown_digests(server)
        for number in range(20):
            assert client.command("SADD", "c:first", f"m{number}").startswith(b"-NOREPLICAS")
        assert _unknown_digests(server) - unknown < 3


def _unknown_digests(server: Server) -> int:
    found = re.search(rb"errorstat_NOSCRIPT:count=(\d+)", server.command("INFO", "errorstats"))
    return int(found[1]) if found else 0


@on_each
def test_a_text_that_is_refused_is_not_known(server: Server, sharing: Proxy) -> None:
    check_refused_texts(server, sharing)


@on_each
def test_a_script_that_was_refused_a_command_is_still_named_by_its_digest(server: Server, sharing: Proxy) -> None:
    check_digests_after_a_refusal(server, sharing)


def check_digests_after_a_refusal(server: Server, sharing: Proxy) -> None:
    def by_digest() -> int:
        found = re.search(rb"cmdstat_evalsha:calls=(\d+)", server.command("INFO", "commandstats"))
        return int(found[1]) if found else 0

    with crowd(sharing) as clients:

        def are_named_by_digest() -> bool:
            before = by_digest()
            assert at_once(clients, [("SADD", "c:s", "m")] * CLIENTS).count(b":0\r\n") == CLIENTS
            return by_digest() > before

        at_once(clients, [("SADD", "c:s", "m")] * CLIENTS)
        until(are_named_by_digest, what="calls by digest")
        assert server.command("ACL", "SETUSER", "default", "-time") == b"+OK\r\n"
        try:
            replies = at_once(clients, [("SADD", "c:s", "m")] * CLIENTS)
            assert {reply[:7] for reply in replies} <= {b"-NOPERM", b":0\r\n"}
        finally:
            server.command("ACL", "SETUSER", "default", "+@all")
        until(are_named_by_digest, what="calls by digest again")


@on_each
@pytest.mark.parametrize("protocol", [2, 3])
def test_all_are_refused_as_each_would_be(
    server: Server, sharing: Proxy, start_proxy: StartProxy, protocol: int
) -> None:
    forms: tuple[Words, ...] = (
        ("EXPIREMEMBER", "c:s", "b", FAR), ("TTL", "c:s", "a"), ("PERSIST", "c:s", "nosuch"), ("SADD", "c:s", "new"),
        ("SREM", "c:s", "nosuch"), ("HSET", "c:h", "x", "1"), ("HDEL", "c:h", "nosuch"), ("ZINCRBY", "c:z", "2", "a"),
        ("HINCRBYFLOAT", "c:h", "a", "0.5"),
    )  # fmt: skip
    alone = start_proxy(server, "--no-share")
    with crowd(sharing, protocol=protocol) as clients, alone.connect() as one:
        one.command("HELLO", protocol)
        for fill in (("SADD", "c:s", *"abc"), ("HSET", "c:h", "a", 1), ("ZADD", "c:z", 1, "a")):
            one.command(*fill)
            assert one.command("EXPIREMEMBER", fill[1], "a", FAR) == b":1\r\n"
        for refusal, (begin, end) in REFUSALS.items():
            for line in begin:
                assert server.command(*line.split()) == b"+OK\r\n"
            for form in forms:
                wanted = one.command(*form)
                for reply in at_once(clients, [form] * CLIENTS):
                    assert alike(reply, wanted) or not wanted.startswith(b"-"), (refusal, form, reply, wanted)
                    assert reply.startswith(b"-") == wanted.startswith(b"-"), (refusal, form, reply, wanted)
            for line in end:
                server.command(*line.split())


@on_each
def test_a_busy_server_refuses_each(server: Server, sharing: Proxy) -> None:
    with server.busy_after(1), crowd(sharing) as clients, server.connect() as busy:
        assert at_once(clients, [("SADD", "c:s", "m")] * CLIENTS).count(b":1\r\n") == 1
        busy.send_command("EVAL", "while true do end", 0)
        until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
        replies = at_once(clients, [("SADD", "c:s", "m")] * CLIENTS)
        assert all(reply.startswith((b"-BUSY", b"-ERR expiremember-proxy: other")) for reply in replies), replies
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        assert busy.reply().startswith(b"-ERR")


def check_few(server: Server, sharing: Proxy, protocol: int = 2) -> None:
    """Pairs, and pairs within MULTI, of many clients are few calls by digest, and each client gets its own replies."""
    with crowd(sharing, protocol=protocol) as clients:
        pairs: list[list[Words]] = [
            [("SADD", f"c:{number}", "m", number), ("EXPIREMEMBER", f"c:{number}", number, FAR)]
            for number in range(CLIENTS)
        ]
        whole = [[("MULTI",), *pair, ("EXEC",)] for pair in pairs]
        for client, pair in zip(clients, pairs, strict=True):
            assert pipelined(client, pair) == [b":2\r\n", b":1\r\n"]
            until_shares(sharing, client)
        for some in (pairs, whole):  # these bring the script there
            all_at_once(sharing, clients, some)
        began, before = shared(sharing), calls(server, b"eval", b"evalsha", b"multi")
        assert all_at_once(sharing, clients, pairs) == [[b":0\r\n", b":1\r\n"]] * CLIENTS
        wanted = [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"*2\r\n:0\r\n:1\r\n"]
        assert all_at_once(sharing, clients, whole) == [wanted] * CLIENTS
        clients[5].command("SET", "c:text", "x")
        until_shares(sharing, clients[5])
        wrong = [("MULTI",), ("SADD", "c:5", "o"), ("SADD", "c:text", "o"), ("EXEC",)]
        found = all_at_once(sharing, clients, [*whole[:5], wrong, *whole[6:]])
        assert found[5][3].startswith(b"*2\r\n:1\r\n-WRONGTYPE ")
        assert found[:5] + found[6:] == [wanted] * (CLIENTS - 1)
        assert shared(sharing) - began >= 3 * CLIENTS
        texts, digests, transactions = (
            now - then for now, then in zip(calls(server, b"eval", b"evalsha", b"multi"), before, strict=True)
        )
        assert (texts, transactions) == (0, 0)
        assert digests <= 6
        with refusing(server, "no memory"):
            found = all_at_once(sharing, clients, whole)
        assert all(replies[0] == b"+OK\r\n" for replies in found)
        assert all(reply.startswith(b"-OOM ") for replies in found for reply in replies[1:3])
        assert all(replies[3].startswith(b"-EXECABORT ") for replies in found)
        assert clients[0].command("WATCH", "c:0") == b"+OK\r\n"
        server.command("SADD", "c:0", "other")
        assert pipelined(clients[0], whole[0])[3] == (b"_\r\n" if protocol == 3 else b"*-1\r\n")


@on_each
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_few_requests_of_many_clients_go_jointly(server: Server, sharing: Proxy, protocol: int) -> None:
    check_few(server, sharing, protocol)


def check_joint_multi_forbidden(server: Server, sharing: Proxy) -> None:
    """A transaction of a user who may no longer use MULTI."""
    with crowd(sharing) as clients:
        client, whole = clients[0], [("MULTI",), ("SADD", "c:first", "m"), ("EXEC",)]
        assert pipelined(client, whole)[2] == b"*1\r\n:0\r\n"
        server.command("ACL", "SETUSER", "default", "-multi")
        try:
            until(lambda: pipelined(client, whole)[0].startswith(b"-NOPERM"), 10, what="known rights")
            for _ in range(5):
                assert client.command("SADD", "c:first", "m") == b":0\r\n"
                until_shares(sharing, client)
                assert pipelined(client, whole)[0].startswith(b"-NOPERM")
        finally:
            server.command("ACL", "SETUSER", "default", "+multi")


@on_each
def test_joint_transactions_need_the_right_to_multi(server: Server, sharing: Proxy) -> None:
    check_joint_multi_forbidden(server, sharing)


def check_bytes_of_two(server: Server, sharing: Proxy) -> None:
    """Part of a client's request, which another client's bytes would complete, waits for its own rest."""
    with crowd(sharing) as clients:
        clients[0].command("SADD", "c:1", "m")
        for client in clients:
            until_shares(sharing, client)
        part = request("SADD", "c:1", "**", "SADD").split(b"**")[0]
        rest = b"*4\r\n$4\r\nSADD\r\n" + request("SADD", "c:1", "x", "y")
        in_order = [*[request("SADD", "c:1", "m", "n")] * (CLIENTS - 2), part, rest]
        with held_still(sharing):
            for client, chunk in zip(clients, in_order, strict=True):
                client.send(chunk)
        assert clients[-1].rest().startswith(b"-ERR Protocol error")
        clients[-2].send(b"zz\r\n$1\r\nz\r\n")
        assert clients[-2].reply() == b":2\r\n"
        assert server.command("SCARD", "c:1") == b":4\r\n"


@on_one
def test_no_request_is_made_of_two_clients_bytes(server: Server, sharing: Proxy) -> None:
    check_bytes_of_two(server, sharing)


def check_strings(server: Server, sharing: Proxy) -> None:
    """Requests for strings, and lifetimes of keys, go jointly too if their keys are covered, and only then."""
    with crowd(sharing) as clients:
        for words in (("INCR", "c:n"), ("EXPIRE", "c:n", FAR), ("APPEND", "c:t", "text")):
            clients[0].command(*words)
        for words in (("INCR", "c:n"), ("EXPIRE", "c:n", FAR), ("APPEND", "c:t", "text"), ("SET", "c:v", "text")):
            for client in clients:
                until_shares(sharing, client)
            began, run = shared(sharing), sum(calls(server, b"eval", b"evalsha"))
            replies = in_one_turn(sharing, clients, [words] * CLIENTS)
            assert not [reply for reply in replies if reply.startswith(b"-")]
            assert shared(sharing) - began >= CLIENTS, words
            assert sum(calls(server, b"eval", b"evalsha")) - run < CLIENTS / 2, words
        run = sum(calls(server, b"eval", b"evalsha"))
        for _ in range(5):
            assert len(pipelined(clients[0], [("MULTI",), ("INCR", "plain"), ("EXPIRE", "plain", FAR), ("EXEC",)])) == 4
        assert sum(calls(server, b"eval", b"evalsha")) - run < 5


def check_few_while_paused(server: Server, sharing: Proxy) -> None:
    """A read in front of a write is not held up with it."""
    with crowd(sharing) as clients:
        some: list[Words] = [("TTL", "c:first", "m"), ("SADD", "c:first", "m")]
        for client in clients:
            until_shares(sharing, client)
        server.command("CLIENT", "PAUSE", 10_000, "WRITE")
        try:
            for client in clients:
                client.send(b"".join(request(*words) for words in some))
            assert all(alike(client.reply(), b":%d\r\n" % FAR) for client in clients)
        finally:
            server.command("CLIENT", "UNPAUSE")
        assert [client.reply() for client in clients] == [b":0\r\n"] * CLIENTS


@on_each
def test_reads_in_front_of_writes_of_many_clients_while_paused(server: Server, sharing: Proxy) -> None:
    check_few_while_paused(server, sharing)


def check_counters(server: Server, sharing: Proxy, protocol: int = 2) -> None:
    """Counters of many clients keep their digits."""
    with crowd(sharing, protocol=protocol) as clients:
        for place, client in enumerate(clients):
            fill_counters(server, f"c:{place}:")
            until_shares(sharing, client)
        for number in (0, 1):
            some: list[Words] = [("HINCRBY", f"c:{place}:h", "n", -1) for place in range(CLIENTS)]
            some[::2] = [("INCR", f"c:{place}:n") for place in range(0, CLIENTS, 2)]
            replies = in_one_turn(sharing, clients, some)
            assert replies == [b":%d\r\n" % (2**53 + number), b":%d\r\n" % (-(2**53) - number)] * (CLIENTS // 2)
        whole: list[list[Words]] = [
            [("MULTI",), ("INCR", f"c:{place}:n"), ("EXPIRE", f"c:{place}:n", FAR), ("EXEC",)]
            for place in range(0, CLIENTS, 2)
        ]
        for number in (2, 3):
            assert clients[1].command("INCR", "c:0:n") == b":%d\r\n" % (2**53 + number)
        assert clients[1].command("INCRBY", "c:0:n", -2) == b":%d\r\n" % (2**53 + 1)
        before = shared(sharing)
        replies = [some[-1] for some in all_at_once(sharing, clients[::2], whole)]
        assert replies == [b"*2\r\n:%d\r\n:1\r\n" % (2**53 + 2)] * (CLIENTS // 2)
        assert shared(sharing) > before


@on_each
@pytest.mark.parametrize("protocol", [2, 3])
def test_counters_of_many_clients_keep_their_digits(server: Server, sharing: Proxy, protocol: int) -> None:
    check_counters(server, sharing, protocol)


@on_each
def test_strings_of_many_clients(server: Server, sharing: Proxy) -> None:
    check_strings(server, sharing)


def check_transactions_without_memory(server: Server, sharing: Proxy) -> None:
    """Of a transaction that the server refuses for want of memory it queues what takes none, if it is new enough."""
    whole: list[Words] = [("MULTI",), ("EXPIRE", "c:first", FAR), ("SADD", "c:first", "n"), ("EXEC",)]
    with crowd(sharing) as clients:
        for client in clients:
            until_shares(sharing, client)
        with refusing(server, "no memory"):
            began = shared(sharing)
            replies = all_at_once(sharing, clients, [whole] * CLIENTS)
            assert shared(sharing) > began
            wanted = [clients[0].command(*words) for words in whole]
        assert replies == [wanted] * CLIENTS


@on_each
def test_transactions_of_many_clients_without_memory(server: Server, sharing: Proxy) -> None:
    check_transactions_without_memory(server, sharing)


DEFECTS: Final = {
    "reading": ("relay/joint.py", "    parts: list[Part] = []\n    refused", "    if len(ports) > 2:\n"),
    "encoding": (
        "relay/joint.py",
        "        return self._call.encode(self._by_digest)",
        "        if self._count > 2:\n",
    ),
    "sending": (
        "relay/lanes.py",
        '        out = b"".join(requests)',
        '        if b"".join(requests).count(b"\\r\\nm\\r\\n") > 2:\n',
    ),
    "looking": (
        "relay/lanes.py",
        "            coverage = self._all.ground.coverage",
        "            if len(joint) > 2:\n    ",
    ),
}
"""Where an error is raised: file, what it precedes, the condition."""


@on_one
@pytest.mark.parametrize("place", DEFECTS)
def test_a_defect_leaves_nobody_waiting(server: Server, start_proxy: StartProxy, tmp_path: Path, place: str) -> None:
    file, text, condition = DEFECTS[place]
    broken_copy(tmp_path, Mutation(file, text, f"{condition}            raise KeyError(7)\n{text}", ""))
    proxy = start_proxy(server, *SHARING, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    with crowd(proxy) as clients:
        for number, client in enumerate(clients):
            assert client.command("SADD", f"c:{number}", "m") == b":1\r\n"
        for client in clients:
            until_shares(proxy, client)
        with held_still(proxy):
            for client in clients:
                client.send_command("SADD", "c:first", "m")
        said = [client.some() for client in clients]  # a reply if a client's request did not come with the others
        assert said.count(b"") > 2
        assert set(said) <= {b"", b":0\r\n"}
        assert proxy.command("PING") == b"+PONG\r\n"
    assert "KeyError: 7" in proxy.process.output


@on_one
def test_a_defect_at_a_loss_leaves_nobody_waiting(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    text = '        """Tell the client that its reply will not arrive."""\n        self.busy = False\n        try:\n'
    broken_copy(tmp_path, Mutation("relay/port.py", text, f"{text}            raise KeyError(7)\n", ""))
    proxy = start_proxy(server, *SHARING, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    with crowd(proxy) as clients:
        server.command("CLIENT", "PAUSE", 3000, "WRITE")
        with held_still(proxy):
            for client in clients:
                client.send_command("SADD", "c:first", "m")
        until(lambda: shared(proxy) >= CLIENTS, what="the call")
        kill_lanes(server)
        assert {client.rest() for client in clients} == {b""}


KEYS: Final = ["d:s" if number == 5 else f"c:{number}" for number in range(CLIENTS)]
"""A key for each client; of these one becomes forbidden."""


@contextlib.contextmanager
def one_key_forbidden(server: Server, sharing: Proxy, clients: Sequence[Raw]) -> Iterator[None]:
    """The keys have deadlines and the clients share; then the user's rights are reduced, unknown to the proxy."""
    for key, client in zip(KEYS, clients, strict=True):
        clients[0].command("SADD", key, "m")
        assert clients[0].command("EXPIREMEMBER", key, "m", FAR) == b":1\r\n"
        until_shares(sharing, client)
    in_one_turn(sharing, clients, [("SADD", key, "m") for key in KEYS])
    try:
        server.command("ACL", "SETUSER", "default", "resetkeys", "~c:*", b"~" + NAMES.prefix + b"*")
        yield
    finally:
        server.command("ACL", "SETUSER", "default", "allkeys")


@on_one
def test_a_defect_of_a_call_sent_anew_leaves_nobody_waiting(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    text = "        parts, _ = read(self._ground.checks.joinable, [port])\n"
    broken_copy(tmp_path, Mutation("relay/joint.py", text, f"{text}        raise KeyError(7)\n", ""))
    proxy = start_proxy(server, *SHARING, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    with crowd(proxy) as clients, one_key_forbidden(server, proxy, clients):
        with held_still(proxy):
            for key, client in zip(KEYS, clients, strict=True):
                client.send_command("SADD", key, "m")
        assert {client.rest() for client in clients} == {b""}
    assert "KeyError: 7" in proxy.process.output


def check_one_forbidden(server: Server, sharing: Proxy) -> None:
    """The user's rights have just been reduced, and one of the clients names a key that it may not access."""
    with crowd(sharing) as clients:
        with one_key_forbidden(server, sharing, clients):
            replies = in_one_turn(sharing, clients, [("SADD", key, "m") for key in KEYS])
        assert replies[5].startswith(b"-NOPERM")
        assert replies[:5] + replies[6:] == [b":0\r\n"] * (CLIENTS - 1)


def check_one_forbidden_and_all_left(server: Server, sharing: Proxy) -> None:
    """Clients that have left behind a request, which one client's key has prevented, are not there to send it again."""
    for number in range(4):  # the refusal must come when the proxy knows that they have left
        _check_one_forbidden_and_all_left(server, sharing, f"late:{number}")


def _check_one_forbidden_and_all_left(server: Server, sharing: Proxy, member: str) -> None:
    with crowd(sharing) as clients, one_key_forbidden(server, sharing, clients):
        with held_still(sharing):
            for key, client in zip(KEYS, clients, strict=True):
                client.send_command("SADD", key, member)
                client.reset()
        added = [key for key in KEYS if key != "d:s"]
        until(
            lambda: all(server.command("SISMEMBER", key, member) == b":1\r\n" for key in added),
            what="requests of clients that have left",
        )


@on_each
def test_what_clients_have_left_behind_runs_though_one_was_forbidden_its_request(
    server: Server, sharing: Proxy
) -> None:
    check_one_forbidden_and_all_left(server, sharing)


@on_each
def test_what_one_client_may_not_do_is_refused_to_it_alone(server: Server, sharing: Proxy) -> None:
    check_one_forbidden(server, sharing)


def check_paused(server: Server, sharing: Proxy) -> None:
    """Reads have a connection of their own."""
    with crowd(sharing) as clients:
        clients[0].command("SADD", "c:s", "m")
        assert clients[0].command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        for client in clients:
            until_shares(sharing, client)
        at_once(clients, [("TTL", "c:s", "m")] * CLIENTS)
        server.command("SCRIPT", "FLUSH")
        server.command("CLIENT", "PAUSE", 3000, "WRITE")
        try:
            writers, readers = clients[:4], clients[4:]
            for client in writers:
                client.send_command("SADD", "c:s", "n")
            began = server.command("TIME").split(b"\r\n")[2]
            replies = at_once(readers, [("TTL", "c:s", "m")] * len(readers))
            assert all(alike(reply, b":%d\r\n" % FAR) for reply in replies), replies
            assert int(server.command("TIME").split(b"\r\n")[2]) - int(began) <= 1
        finally:
            server.command("CLIENT", "UNPAUSE")
        assert sorted(client.reply() for client in writers) == [b":0\r\n"] * 3 + [b":1\r\n"]


@on_each
def test_lifetimes_are_told_while_nobody_may_write(server: Server, sharing: Proxy) -> None:
    check_paused(server, sharing)


@on_one
def test_a_long_list_is_looked_through_once(server: Server, sharing: Proxy) -> None:
    with crowd(sharing) as clients:
        clients[0].command("RPUSH", "c:long", *range(3000))
        for _ in range(2):
            requests: list[Words] = [("EXPIREMEMBER", "c:long", number * 200, FAR) for number in range(CLIENTS)]
            assert at_once(clients, requests) == [b":1\r\n"] * CLIENTS
        for client in clients:
            until_shares(sharing, client)
        began = shared(sharing)
        assert at_once(clients, requests) == [b":1\r\n"] * CLIENTS
        assert shared(sharing) == began


# Random programs.


LINES = """SADD s m|SADD s m|SADD s m n|SREM s m|HSET h m 1|HSET h m 2 n 3|HSETNX h m 1|HDEL h m|HINCRBYFLOAT h f 0.5
ZADD z 1 m|ZADD z NX 2 m|ZREM z m|ZINCRBY z 1.5 m|EXPIREMEMBER k m d|EXPIREMEMBER k m d|PEXPIREMEMBER k m d000
EXPIREMEMBER k m d000 ms NX|EXPIREMEMBER k m x|TTL k m|PTTL k m|TTL k|PERSIST k m|SISMEMBER s m|HGET h m|SET t v|DEL k
SADD t m|HSET s m 1|ZPOPMIN z|SPOP no|RPUSH l m|LREM l 1 m|EXPIREMEMBER l m d|SEXPIRE s d MEMBERS 1 m|FIELDEXPIRE k d m
ZPEXPIRE z d000 MEMBERS 1 m|SEXPIRE k d MEMBERS 1 m|HEXPIRE h d FIELDS 1 m|STTL s MEMBERS 1 m|SADDEX s d m
SADDEX k d m|SADDEX s EX d MEMBERS 1 m|SADDEX k PX d000 MEMBERS 1 m|HSETEX h EX d FIELDS 1 m 1
HSETEX k PX d000 FIELDS 1 m 2|SADDEX s d m n|HSETEX h FNX EX d FIELDS 1 m 1""".replace("\n", "|").split("|")


def _request(chance: random.Random, client: int) -> Words:
    name, key, *words = chance.choice(LINES).split()
    key = chance.choice("shztln") if key == "k" else key
    some = {"m": lambda: chance.choice("abcd"), "n": lambda: chance.choice("abcd")}
    some["d"] = lambda: str(chance.randrange(5000, 9000))
    some["d000"] = lambda: str(chance.randrange(5000, 9000)) + "000"
    return (name, f"c:{client}:{key}", *(some[word]() if word in some else word for word in words))


def _requests(chance: random.Random, client: int) -> tuple[list[Words], int]:
    """What a client sends at once: one request, a few, or a transaction; and how many of these count."""
    kind, counts = chance.random(), chance.random() < 0.2
    size = 1 if kind < 0.5 else chance.randrange(1, 4)
    some: list[Words] = [("ZINCRBY", "c:counts", 1, "all") if counts else _request(chance, client) for _ in range(size)]
    return [("MULTI",), *some, ("EXEC",)] if kind > 0.7 else some, size * counts


def check_program(server: Server, joint: Proxy, alone: Proxy, seed: str, steps: int, *, faults: bool) -> None:
    """Clients that share get what they would get if each were alone; where a connection is lost they begin anew.

    The same requests go, one after another, through a proxy that shares nothing, for keys of other names. One that is
    common to all counts what has run.
    """
    chance, acknowledged, unknown = random.Random(seed), 0, 0
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(crowd(joint))
        other = stack.enter_context(alone.connect())
        for begin in (("ZADD", "c:counts", 0, "all"), ("EXPIREMEMBER", "c:counts", "all", FAR)):
            assert clients[0].command(*begin) == b":1\r\n"
        for _ in range(steps):
            fault = chance.random() if faults else 1.0
            if fault < 0.2:
                server.command("SCRIPT", "FLUSH")
            programs = [_requests(chance, number) for number in range(CLIENTS)]
            chunks = [b"".join(request(*words) for words in some) for some, _ in programs]
            refuses, waits = 0.25 < fault < 0.35, chance.random() < 0.3
            with refusing(server, chance.choice([*REFUSALS])) if refuses else contextlib.nullcontext():
                for client, chunk in zip(clients, chunks, strict=True):
                    if not waits:
                        client.send(chunk)
                if 0.2 < fault < 0.25:
                    kill_lanes(server)
                for number, (some, counts) in enumerate(programs):
                    if waits:  # then each is a call of its own
                        clients[number].send(chunks[number])
                    try:
                        replies = clients[number].replies(len(some))
                    except (ConnectionError, EOFError):
                        unknown += counts
                        clients[number] = stack.enter_context(joint.connect())
                        for key in "shztln":
                            clients[number].command("DEL", f"c:{number}:{key}")
                            other.command("DEL", f"o:{number}:{key}")
                        continue
                    if counts:
                        assert replies[-1][:1] in (b"-" if refuses else b"*" if len(some) > counts else b":$"), replies
                        acknowledged += 0 if refuses else counts
                        continue
                    for words, reply in zip(some, replies, strict=True):
                        wanted = other.command(words[0], *("o" + str(key)[1:] for key in words[1:2]), *words[2:])
                        assert alike(reply, wanted.replace(b"'o:", b"'c:")), (seed, some, words, reply, wanted)
        ran = float(server.command("ZSCORE", "c:counts", "all").split(b"\r\n")[1])
        assert acknowledged <= ran <= acknowledged + unknown, (seed, acknowledged, unknown)
        for number in range(CLIENTS):
            for key in "shz":
                mine, its = (f"{which}:{number}:{key}".encode() for which in "co")
                members, others = (
                    sorted(server.command("ZRANGE", NAMES.shadow(name), 0, -1).split(b"\r\n")) for name in (mine, its)
                )
                assert members == others, (seed, mine)


@on_each
@pytest.mark.parametrize("seed", range(4))
def test_clients_together_are_served_as_alone(server: Server, start_proxy: StartProxy, seed: int) -> None:
    joint, alone = start_proxy(server, *SHARING), start_proxy(server, "--no-share")
    check_program(server, joint, alone, f"joint {seed}", 60, faults=seed % 2 == 1)


@pytest.mark.long
@on_each
def test_clients_together_are_served_as_alone_for_long(server: Server, start_proxy: StartProxy) -> None:
    # The background pass frees void deadlines after a minute, in one world before the other.
    rate = "--leftovers-rate", "0"
    joint, alone = start_proxy(server, *SHARING, *rate), start_proxy(server, "--no-share", *rate)
    for seed in range(20):
        check_program(server, joint, alone, f"joint for long {seed}", 400, faults=True)
        server.flush()
