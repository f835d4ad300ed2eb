"""Requests about members of many clients, done by one call of a script: each has its own reply, and runs once."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from proxy.relay.joint import MOST
from proxy.scripts.naming import Names
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw
from tests.servers import Proxy, Server, until
from tests.test_refusals import REFUSALS
from tests.test_sharing import SHARING, kill_lanes, on_each, on_one, shared, until_shares
from tests.test_together import FAR, Words, alike, refusing

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
        assert shared(sharing) - began >= 8 * CLIENTS
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
    server.command("CONFIG", "SET", "lua-time-limit", "1")
    with crowd(sharing) as clients, server.connect() as busy:
        assert at_once(clients, [("SADD", "c:s", "m")] * CLIENTS).count(b":1\r\n") == 1
        busy.send_command("EVAL", "while true do end", 0)
        until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
        replies = at_once(clients, [("SADD", "c:s", "m")] * CLIENTS)
        assert all(reply.startswith((b"-BUSY", b"-ERR expiremember-proxy: other")) for reply in replies), replies
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        assert busy.reply().startswith(b"-ERR")


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
SADD t m|HSET s m 1|ZPOPMIN z|SPOP n|RPUSH l m|LREM l 1 m|EXPIREMEMBER l m d|SEXPIRE s d MEMBERS 1 m|FIELDEXPIRE k d m
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
            counts = [chance.random() < 0.2 for _ in clients]
            requests: list[Words] = [
                ("ZINCRBY", "c:counts", 1, "all") if counts[number] else _request(chance, number)
                for number in range(CLIENTS)
            ]
            refuses, waits = 0.25 < fault < 0.35, chance.random() < 0.3
            with refusing(server, chance.choice([*REFUSALS])) if refuses else contextlib.nullcontext():
                for client, words in zip(clients, requests, strict=True):
                    if not waits:
                        client.send_command(*words)
                if 0.2 < fault < 0.25:
                    kill_lanes(server)
                for number, words in enumerate(requests):
                    if waits:  # then each is a call of its own
                        clients[number].send_command(*words)
                    try:
                        reply = clients[number].reply()
                    except (ConnectionError, EOFError):
                        unknown += counts[number]
                        clients[number] = stack.enter_context(joint.connect())
                        for key in "shztln":
                            clients[number].command("DEL", f"c:{number}:{key}")
                            other.command("DEL", f"o:{number}:{key}")
                        continue
                    if counts[number]:
                        assert reply[:1] in (b"-" if refuses else b":$"), reply
                        acknowledged += not refuses
                        continue
                    wanted = other.command(words[0], "o" + str(words[1])[1:], *words[2:])
                    same = alike(reply, wanted.replace(b"'o:", b"'c:"))
                    assert same or words[0] == "SPOP", (seed, words, reply, wanted)
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
    joint, alone = start_proxy(server, *SHARING), start_proxy(server, "--no-share")
    for seed in range(20):
        check_program(server, joint, alone, f"joint for long {seed}", 400, faults=True)
        server.flush()
