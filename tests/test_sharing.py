"""Shared connections: who may use them, and that nobody can tell but by what goes faster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.commands.dialects import TOGETHER
from proxy.commands.table import BATCHED, FREQUENT, FREQUENT_READS
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.fence import Fence
from proxy.relay.greeting import NAME
from proxy.relay.lane import Lane
from proxy.relay.lanes import MOST_GROUPS, MOST_WOKEN, Lanes
from proxy.relay.port import ALL_BACKLOGS, BACKLOG, LARGE, Port, Room
from proxy.relay.sharing import ANEW_SECONDS, RETIRE_SECONDS, TOUCH_SECONDS, TRIAL_SECONDS
from proxy.scripts.naming import Names
from proxy.session.identity import Identity, who
from proxy.session.operations import OTHER_WRITES
from proxy.session.plain import Shared, share_check
from proxy.wire.batch import BatchParser
from proxy.wire.first_line import StrayReplyError
from proxy.wire.pattern import LONGEST
from proxy.wire.replies import MOST_PARTS, Replies, short_arrays, short_replies
from tests import test_reads as reads
from tests.conftest import Start, StartProxy, StartServer
from tests.histories import clock
from tests.patience import patience
from tests.raw import Raw, request
from tests.relay import Pipe, Relay
from tests.servers import KIND, Proxy, Server, until

SHARING = "--share", "--share-after", "1"
on_each = pytest.mark.every_kind(redis=(7,), valkey=(8,))
on_one = pytest.mark.one_kind

OLD = "redis-6.2"
"""A server that does not say which protocol a connection speaks."""


@pytest.fixture
def server(kind: str, start_server: StartServer) -> Server:
    return start_server(kind)


@pytest.fixture
def sharing(server: Server, start_proxy: StartProxy) -> Proxy:
    """A proxy whose clients share from their second request on, whatever the other tests' do."""
    return start_proxy(server, *SHARING)


def shared(proxy: Proxy) -> int:
    """How many requests have gone over shared connections."""
    told = proxy.command("INFO", "expiremember")
    found = re.search(rb"shared_requests_total:(\d+)", told)
    assert found is not None, told
    return int(found[1])


def shares(proxy: Proxy, client: Raw, *, tries: int = 50) -> bool:
    """Whether a client's requests go over a shared connection, after some have gone."""
    for _ in range(tries):
        before = shared(proxy)
        assert client.command("GET", "nothing")[:1] in b"$_"
        if shared(proxy) > before:
            return True
        time.sleep(0.01)
    return False


def until_shares(proxy: Proxy, client: Raw) -> None:
    until(lambda: shares(proxy, client, tries=1), 30, what="a client that shares")


def lanes(server: Server) -> list[bytes]:
    """What the server says of the shared connections."""
    told = server.command("CLIENT", "LIST")
    return [line for line in told.split(b"\n") if b" name=%b " % NAME in line]


def kill_lanes(server: Server) -> None:
    for line in lanes(server):
        found = re.match(rb"(?:txt:)?id=(\d+)", line)
        assert found is not None
        server.command("CLIENT", "KILL", "ID", found[1])


# What it is for, and whose it is.


@on_one
def test_small_requests_of_many_clients_share(server: Server, sharing: Proxy) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(sharing.connect()) for _ in range(20)]
        for client in clients:
            until_shares(sharing, client)
        for number in range(50):
            for index, client in enumerate(clients):
                client.send_command("SET", f"k{index}", f"{index}:{number}")
            assert [client.reply() for client in clients] == [b"+OK\r\n"] * len(clients)
            for index, client in enumerate(clients):
                client.send_command("GET", f"k{index}")
            for index, client in enumerate(clients):
                value = f"{index}:{number}".encode()
                assert client.reply() == b"$%d\r\n%b\r\n" % (len(value), value)
        assert 1 <= len(lanes(server)) <= 4


def check_reads_of_known_keys(sharing: Proxy) -> None:
    """Clients read keys with deadlines without pause, until one has passed: over shared connections, and none is late.

    Nobody sweeps, so that what is due goes only where somebody looks before it is read.
    """
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(sharing.connect()) for _ in range(8)]
        for client in clients:
            until_shares(sharing, client)
        began, deadline = shared(sharing), int(clock()) + 1000
        for index, client in enumerate(clients):
            assert client.command("SADD", f"k{index}", "gone", "stays") == b":2\r\n"
            assert client.command("PEXPIREMEMBERAT", f"k{index}", "gone", deadline) == b":1\r\n"
        rounds = 0
        while (now := clock()) < deadline + 50:
            rounds += 1
            for index, client in enumerate(clients):
                client.send_command("SISMEMBER", f"k{index}", "gone")
            replies = {client.reply() for client in clients}
            assert replies == {b":0\r\n"} or (now < deadline and replies <= {b":0\r\n", b":1\r\n"})
        assert rounds > 10
        assert shared(sharing) - began > 0.5 * rounds * len(clients)


def test_what_is_sent_as_a_reply_comes_has_not_come() -> None:
    """A call that is sent once more stands behind the replies that are counted."""
    sent: list[bytes] = []
    lane = Lane(Identity(b"u", 0, 2), (), Traffic(Metrics()), Fence(), Room(), lambda: None, lambda _: None)
    lane._transport = SimpleNamespace(write=sent.append)  # type: ignore[assignment]
    call, asked, first, second, again = (Port(lambda _: None) for _ in range(5))
    come: list[bool] = []
    call.settled = lambda: lane.send([again], b"again")
    asked.settled = lambda: come.append(lane.has_come(2))
    lane.send([call, asked, first, second], b"all")
    lane._distribute(b":1\r\n" * 3)
    assert come == [False]
    assert sent == [b"all", b"again"]


def check_a_nearer_deadline(server: Server, sharing: Proxy) -> None:
    """Likewise, though no deadline has seemed near."""
    reads.check_a_nearer_deadline(server, sharing, partial(until_shares, sharing), count=1)


@on_each
def test_a_deadline_nearer_than_was_heard_is_seen_by_who_shares(server: Server, sharing: Proxy) -> None:
    check_a_nearer_deadline(server, sharing)


@on_each
def test_reads_of_keys_with_deadlines_share_and_none_is_late(server: Server, start_proxy: StartProxy) -> None:
    check_reads_of_known_keys(start_proxy(server, *SHARING, "--no-sweep"))


PARTED: Final = (
    "MGET k k nothing", "HGETALL h", "HMGET h a b c d", "SMEMBERS s", "SMISMEMBER s 1 2 x", "XRANGE x - + COUNT 1",
    "LRANGE l 0 1", "LRANGE l 0 14", "LRANGE l 0 -1", "LRANGE nothing 0 -1", "ZRANGE z 0 -1 WITHSCORES", "MGET starred",
    "GET k", "GET starred", "LLEN l", "TYPE l",
)  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3])
@on_one
def test_replies_of_several_parts_go_whole_to_whom_they_belong(server: Server, sharing: Proxy, protocol: int) -> None:
    with contextlib.ExitStack() as stack:
        straight = stack.enter_context(server.connect())
        for line in (
            "SET k v", "HSET h a 1 b 2", "SADD s 1 2 3", "XADD x 1-1 f v g w", "ZADD z 1 a 2.5 b", "RPUSH l *3 $-1 *0",
            "RPUSH l " + " ".join(map(str, range(27))),
        ):  # fmt: skip
            straight.command(*line.split())
        straight.command("SET", "starred", "*2\r\n$1\r\na\r\n*1\r\n")
        clients = [stack.enter_context(sharing.connect()) for _ in PARTED]
        for client in (straight, *clients):
            client.command("HELLO", protocol)
        wanted = [straight.command(*line.split()) for line in PARTED]
        before = shared(sharing)
        for _ in range(20):
            for client in clients:
                until_shares(sharing, client)
            server.command("CLIENT", "PAUSE", 20, "ALL")  # the replies come together
            for line, client in zip(PARTED, clients, strict=True):
                client.send_command(*line.split())
            assert [client.reply() for client in clients] == wanted
            clients.append(clients.pop(0))
        assert shared(sharing) - before >= 20 * len(PARTED)


@on_one
def test_who_is_the_only_one_goes_back_to_its_own_connection(server: Server, start_proxy: StartProxy) -> None:
    """Where few others' requests go with its own, a shared connection is only a longer way."""
    proxy = start_proxy(server, "--share-after", "8")

    def share_of(clients: list[Raw], seconds: float) -> float:
        before, sent, ends = shared(proxy), 0, time.monotonic() + seconds
        while time.monotonic() < ends:
            for client in clients:
                client.send_command("GET", "nothing")
            for client in clients:
                client.reply()
            sent += len(clients)
        return (shared(proxy) - before) / sent

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(20)]
        until(lambda: share_of(clients, 0.3) > 0.2, what="clients that share")
        until(lambda: share_of(clients[:1], 0.3) == 0, what="one that does so no more")
        assert share_of(clients[:1], 1) == 0
        until(lambda: share_of(clients, 0.3) > 0.2, 3 * RETIRE_SECONDS, "clients that share again")


@on_one
def test_who_is_the_only_one_shares_what_is_about_members(server: Server, start_proxy: StartProxy) -> None:
    """Over its own connection it would send a script's text each time, and a question in front of each read."""
    proxy = start_proxy(server, "--share-after", "8")
    with proxy.connect() as client:
        client.command("SADD", "s", "m")
        for words in (("EXPIREMEMBER", "s", "m", "1000"), ("SISMEMBER", "s", "m"), ("SADD", "s", "m")):
            client.command("EXPIREMEMBER", "s", "m", "1000")

            def share(words: tuple[str, ...] = words) -> float:
                before, sent, ends = shared(proxy), 0, time.monotonic() + 2 * TRIAL_SECONDS
                while time.monotonic() < ends:
                    assert client.command(*words)[:1] == b":"
                    sent += 1
                return (shared(proxy) - before) / sent

            until(lambda: share() > 0.9, 3 * RETIRE_SECONDS, f"{words} to be shared")
            assert share() > 0.9


@on_one
def test_the_kinds_of_shared_connections_are_bounded(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND, "--databases", "100")
    proxy = start_proxy(server, *SHARING)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(100)]
        for database, client in enumerate(clients):
            client.command("SELECT", database)
        for _ in range(30):
            for database, client in enumerate(clients):
                assert client.command("SET", "k", database) == b"+OK\r\n"
            for database, client in enumerate(clients):
                assert client.command("GET", "k") == b"$%d\r\n%d\r\n" % (len(str(database)), database)
        assert 0 < len(lanes(server)) <= 3 * MOST_GROUPS


@on_one
def test_users_who_may_not_share_leave_room_for_others(server: Server, sharing: Proxy) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all")
    with contextlib.ExitStack() as stack:
        for database in range(MOST_GROUPS // 2):
            client = stack.enter_context(sharing.connect())
            client.command("AUTH", "app", "pw")
            assert client.command("AUTH", "wrong").startswith(b"-")  # now it looks as if it were the proxy's own
            assert client.command("SELECT", database) == b"+OK\r\n"
            for _ in range(5):
                assert client.command("GET", "nothing") == b"$-1\r\n"
        until_shares(sharing, stack.enter_context(sharing.connect()))


@on_one
def test_every_client_keeps_its_own_connection(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as one, sharing.connect() as other:
        ids = [client.command("CLIENT", "ID") for client in (one, other)]
        assert one.command("CLIENT", "SETNAME", "one") == b"+OK\r\n"
        until_shares(sharing, one)
        until_shares(sharing, other)
        assert [client.command("CLIENT", "ID") for client in (one, other)] == ids
        assert one.command("CLIENT", "GETNAME") == b"$3\r\none\r\n"
        assert other.command("CLIENT", "GETNAME")[:2] in (b"$-", b"_\r")


@on_one
def test_none_shares_where_it_is_off(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--no-share")
    with proxy.connect() as client:
        for _ in range(50):
            client.command("GET", "nothing")
        assert shared(proxy) == 0
        assert lanes(server) == []


def test_an_old_server_does_not_say_enough(start_server: StartServer, start_proxy: StartProxy) -> None:
    proxy = start_proxy(start_server(OLD), *SHARING)
    with proxy.connect() as client:
        assert not shares(proxy, client, tries=10)


@on_each
def test_databases_and_protocols_are_kept_apart(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as one, sharing.connect() as other, sharing.connect() as newer:
        assert other.command("SELECT", 3) == b"+OK\r\n"
        newer.command("HELLO", 3)
        for client in (one, other, newer):
            until_shares(sharing, client)
        assert one.command("SET", "k", "in 0") == other.command("SET", "k", "in 3") == b"+OK\r\n"
        assert one.command("GET", "k") == newer.command("GET", "k") == b"$4\r\nin 0\r\n"
        assert other.command("GET", "k") == b"$4\r\nin 3\r\n"
        assert other.command("GET", "absent") == b"$-1\r\n"
        assert newer.command("GET", "absent") == b"_\r\n"
        newer.command("HSET", "h", "f", "v")
        assert newer.command("HGETALL", "h") == b"%1\r\n$1\r\nf\r\n$1\r\nv\r\n"
        assert one.command("SELECT", 3) == b"+OK\r\n"
        assert one.command("GET", "k") == b"$4\r\nin 3\r\n"
        until_shares(sharing, one)
        assert one.command("GET", "k") == b"$4\r\nin 3\r\n"
        newer.command("HELLO", 2)
        assert newer.command("GET", "absent") == b"$-1\r\n"
        until_shares(sharing, newer)
        assert newer.command("GET", "absent") == b"$-1\r\n"


@on_one
def test_another_user_does_not_share(server: Server, sharing: Proxy) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all")
    with sharing.connect() as client, sharing.connect() as other:
        until_shares(sharing, other)
        until_shares(sharing, client)
        assert client.command("AUTH", "app", "pw") == b"+OK\r\n"
        assert not shares_as(sharing, client, "app:k")
        assert client.command("GET", "k").startswith(b"-NOPERM")
        assert client.command("AUTH", "app", "wrong").startswith(b"-WRONGPASS")
        assert client.command("GET", "k").startswith(b"-NOPERM")
        assert other.command("GET", "k") == b"$-1\r\n"
        assert client.command("RESET") == b"+RESET\r\n"
        until_shares(sharing, client)


@on_one
def test_a_user_who_looks_like_the_proxys_own_does_not_share(server: Server, sharing: Proxy) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all")
    with sharing.connect() as client:
        assert client.command("AUTH", "app", "pw") == b"+OK\r\n"
        assert client.command("AUTH", "wrong").startswith(b"-")
        assert not shares_as(sharing, client, "app:k")
        assert client.command("GET", "k").startswith(b"-NOPERM")


def shares_as(proxy: Proxy, client: Raw, key: str) -> bool:
    before = shared(proxy)
    for _ in range(10):
        assert client.command("GET", key) == b"$-1\r\n"
    return shared(proxy) > before


@on_one
def test_users_share_where_they_are_the_proxys_own(server: Server, start_proxy: StartProxy) -> None:
    server.command("CONFIG", "SET", "requirepass", "secret")
    try:
        proxy = start_proxy(server, *SHARING, env={"EXPIREMEMBER_UPSTREAM_PASSWORD": "secret"})
        with proxy.connect() as client, proxy.connect() as stranger:
            assert client.command("AUTH", "secret") == b"+OK\r\n"
            for _ in range(50):
                client.command("GET", "nothing")
                assert stranger.command("GET", "k").startswith(b"-NOAUTH")
            told = client.command("INFO", "expiremember")
            assert re.search(rb"shared_requests_total:[1-9]", told), told
            # A user who was deleted, or lost its rights, has lost them over shared connections too.
            client.command("SET", "k", "v")
            with server.connect() as admin:
                admin.command("AUTH", "secret")
                admin.command("ACL", "SETUSER", "default", "-get")
                assert client.command("GET", "k").startswith(b"-NOPERM")
                admin.command("ACL", "SETUSER", "default", "+get")
            assert client.command("GET", "k") == b"$1\r\nv\r\n"
    finally:
        with server.connect() as admin:
            admin.command("AUTH", "secret")
            admin.command("CONFIG", "SET", "requirepass", "")


@on_one
def test_a_deleted_user_is_cut_off(server: Server, start_proxy: StartProxy) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
    proxy = start_proxy(server, "--upstream", server.url.replace("redis://", "redis://app:pw@"), *SHARING)
    with proxy.connect() as client, proxy.connect() as default:
        assert client.command("AUTH", "app", "pw") == b"+OK\r\n"
        until_shares_quietly(server, client)
        server.command("ACL", "DELUSER", "app")
        client.send_command("GET", "nothing")
        assert client.rest() == b""
        assert default.command("PING") == b"+PONG\r\n"


def until_shares_quietly(server: Server, client: Raw) -> None:
    """Wait until requests of a client go over shared connections, without asking the proxy."""

    def goes_there() -> bool:
        client.command("STRLEN", "nothing")
        return any(b" cmd=strlen " in line for line in lanes(server))

    until(goes_there, what="a client that shares")


# States that others do not share.


@on_each
@pytest.mark.parametrize(
    ("enter", "leave"),
    [
        (["MULTI"], ["DISCARD"]),
        (["CLIENT", "NO-EVICT", "on"], ["CLIENT", "NO-EVICT", "off"]),
        (["SUBSCRIBE", "channel"], ["UNSUBSCRIBE", "channel"]),
    ],
)
def test_a_state_of_its_own_keeps_a_client_from_sharing(
    server: Server, sharing: Proxy, enter: list[str], leave: list[str]
) -> None:
    with sharing.connect() as client:
        client.command("HELLO", 3)
        until_shares(sharing, client)
        client.command(*enter)
        before = shared(sharing)
        for _ in range(10):
            client.command("GET", "nothing")
        assert shared(sharing) == before
        client.command(*leave)
        until_shares(sharing, client)


@pytest.mark.every_kind(redis=(99,), valkey=(8,))
def test_what_the_server_does_not_tell_keeps_a_client_from_sharing(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        until_shares(sharing, client)
        assert client.command("CLIENT", "CAPA", "redirect") == b"+OK\r\n"
        assert not shares(sharing, client, tries=20)


@on_one
def test_a_server_that_closes_idle_clients_finds_no_shared_connection_idle(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        until_shares(sharing, client)
        client.command("SET", "k", 1)
        until_shares(sharing, client)
        ids = {line.split()[0] for line in lanes(server)}
        server.command("CONFIG", "SET", "timeout", int(ANEW_SECONDS) + 2)
        try:
            ends = time.monotonic() + ANEW_SECONDS + 6
            while time.monotonic() < ends:
                assert client.command("GET", "nothing") == b"$-1\r\n"  # nothing is written meanwhile
                time.sleep(0.01)
            assert {line.split()[0] for line in lanes(server)} == ids
        finally:
            server.command("CONFIG", "SET", "timeout", 0)


@on_each
def test_transactions_and_watched_keys(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client, sharing.connect() as other:
        until_shares(sharing, other)
        for expected, touch in ((b"*2\r\n+OK\r\n$1\r\n2\r\n", None), (b"*-1\r\n", other), (b"*-1\r\n", client)):
            until_shares(sharing, client)
            assert client.command("SET", "k", 1) == b"+OK\r\n"
            assert client.command("WATCH", "k") == b"+OK\r\n"
            for _ in range(3):
                assert client.command("GET", "k") == b"$1\r\n1\r\n"
            if touch is not None:
                assert touch.command("SET", "k", 1) == b"+OK\r\n"
            assert client.command("MULTI") == b"+OK\r\n"
            assert client.command("SET", "k", 2) == client.command("GET", "k") == b"+QUEUED\r\n"
            assert client.command("EXEC") == expected


@on_each
def test_tracking_is_told_of_what_others_share(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as reader, sharing.connect() as writer:
        reader.command("HELLO", 3)
        until_shares(sharing, reader)
        until_shares(sharing, writer)
        assert reader.command("CLIENT", "TRACKING", "on") == b"+OK\r\n"
        for number in range(5):
            for _ in range(3):
                reader.command("GET", "k")
            writer.command("SET", "k", number)
            assert reader.reply() == b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
        assert reader.command("CLIENT", "TRACKING", "off") == b"+OK\r\n"
        until_shares(sharing, reader)


@on_one
def test_replies_that_are_not_wanted(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        until_shares(sharing, client)
        client.send_command("CLIENT", "REPLY", "SKIP")
        client.send_command("SET", "k", 1)
        assert client.command("GET", "k") == b"$1\r\n1\r\n"
        until_shares(sharing, client)
        client.send_command("CLIENT", "REPLY", "OFF")
        for number in range(20):
            client.send_command("SET", "k", number)
            time.sleep(0.002)
        assert client.command("CLIENT", "REPLY", "ON") == b"+OK\r\n"
        assert client.command("GET", "k") == b"$2\r\n19\r\n"
        until_shares(sharing, client)


@on_each
def test_reads_go_on_while_writes_are_paused(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as reader, sharing.connect() as writer:
        for client in (reader, writer):
            client.command("SET", "k", "old")
            until_shares(sharing, client)
        server.command("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            writer.send_command("SET", "k", "new")
            assert writer.silent(0.1)
            for _ in range(20):
                assert reader.command("GET", "k") == b"$3\r\nold\r\n"
        finally:
            server.command("CLIENT", "UNPAUSE")
        assert writer.reply() == b"+OK\r\n"
        assert reader.command("GET", "k") == b"$3\r\nnew\r\n"


@on_each
def test_wait_waits_for_what_was_shared(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """WAIT looks at what its own connection did last."""
    primary = start_server(kind)
    port = primary.url.rpartition(":")[2]
    replica = start_server(kind, "--replicaof", f"127.0.0.1 {port}")
    until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
    proxy = start_proxy(primary, *SHARING)
    with proxy.connect() as client:
        until_shares(proxy, client)
        assert client.command("SET", "k", 1) == b"+OK\r\n"
        assert client.command("WAIT", 1, 20_000) == b":1\r\n"
        until_shares(proxy, client)
        assert replica.process is not None
        replica.process.send_signal(19)
        try:
            before = shared(proxy)
            assert client.command("SET", "k", 2) == b"+OK\r\n"
            assert shared(proxy) > before
            assert client.command("WAIT", 1, 200) == b":0\r\n"
        finally:
            replica.process.send_signal(18)


def shares_a_write(proxy: Proxy, client: Raw) -> None:
    until_shares(proxy, client)
    before = shared(proxy)
    assert client.command("SET", "k", 1) == b"+OK\r\n"
    assert shared(proxy) > before


@pytest.mark.every_kind(redis=(8,), valkey=(8,))
def test_waitaof_waits_for_what_was_shared(server: Server, sharing: Proxy) -> None:
    """Also on a server that has never had a replica, and on one that refuses all writes meanwhile."""
    assert server.command("CONFIG", "SET", "appendonly", "yes") == b"+OK\r\n"
    none = b"*2\r\n:0\r\n:0\r\n"
    try:
        for policy, timeout, synced in (("always", 20_000, 1), ("no", 200, 0)):
            assert server.command("CONFIG", "SET", "appendfsync", policy) == b"+OK\r\n"
            with sharing.connect() as client:
                shares_a_write(sharing, client)
                assert client.command("WAITAOF", 1, 0, timeout) == b"*2\r\n:%d\r\n:0\r\n" % synced
                assert not shares(sharing, client, tries=20)
        with sharing.connect() as client:
            shares_a_write(sharing, client)
            assert server.command("CONFIG", "SET", "min-replicas-to-write", 1) == b"+OK\r\n"
            for _ in range(2):
                assert client.command("WAITAOF", 1, 0, 200) == none
            assert server.command("CONFIG", "SET", "min-replicas-to-write", 0, "appendfsync", "always") == b"+OK\r\n"
            assert client.command("WAITAOF", 1, 0, 20_000) == b"*2\r\n:1\r\n:0\r\n"
    finally:
        server.command("CONFIG", "SET", "min-replicas-to-write", 0, "appendfsync", "everysec", "appendonly", "no")


# Order, and the way back.


@on_one
def test_order_is_kept_between_shared_and_own_connections(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        until_shares(sharing, client)
        server.command("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            client.send_command("SET", "k", "v")
            assert client.silent(0.1)
            client.send_command("GET", "k")
            assert client.silent(0.1)
        finally:
            server.command("CLIENT", "UNPAUSE")
        assert client.reply() == b"+OK\r\n"
        assert client.reply() == b"$1\r\nv\r\n"
        until_shares(sharing, client)
        for number in range(300):
            # Two that could share, the second sent behind the first; one that cannot; and one more.
            client.send(request("SET", "k", number))
            client.send(request("APPEND", "k", "x"))
            client.send(request("OBJECT", "ENCODING", "k") + request("GET", "k"))
            value = b"%dx" % number
            assert client.reply() == b"+OK\r\n"
            assert client.reply() == b":%d\r\n" % len(value)
            assert client.reply()[:1] == b"$"
            assert client.reply() == b"$%d\r\n%b\r\n" % (len(value), value)


@on_one
def test_the_last_request_of_a_client_that_ends_is_answered(server: Server, sharing: Proxy) -> None:
    for number in range(30):
        with sharing.connect() as client:
            until_shares(sharing, client)
            client.send_command("SET", "k", number)
            client.end_of_requests()
            assert client.rest() == b"+OK\r\n"


@on_one
def test_a_proxy_that_stops_answers_first(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, *SHARING)
    with proxy.connect() as client, proxy.connect() as reader:
        until_shares(proxy, client)
        until_shares(proxy, reader)
        server.command("CLIENT", "PAUSE", 1000, "WRITE")
        before = shared(proxy)
        client.send_command("SET", "k", 1)
        until(lambda: shared(proxy) > before, what="a request that goes over a shared connection")
        proxy.process.send_signal(15)
        assert client.rest() == b"+OK\r\n"
        assert reader.rest() == b""
    assert proxy.process.wait(20) == 0


@on_one
def test_what_piles_up_before_a_busy_server_goes_before_a_first_deadline(server: Server, sharing: Proxy) -> None:
    """A server reads 16 KB of a connection, then others: no batch is long, but all together are."""
    with contextlib.ExitStack() as stack:
        fillers = [stack.enter_context(sharing.connect()) for _ in range(120)]
        remover, adder, expirer, sleeper = (stack.enter_context(sharing.connect()) for _ in range(4))
        in_order = 0
        for number in range(12):
            key = f"{chr(97 + number)}:set"  # a first deadline each time
            server.command("SADD", key, "m", "other")
            for client in (*fillers, remover, adder):
                until_shares(sharing, client)
            sleeper.send_command("DEBUG", "SLEEP", "0.3")
            time.sleep(0.05)  # in which it begins
            for index, filler in enumerate(fillers):
                filler.send_command("SET", f"filler:{index}", "x" * 480)
                time.sleep(0.0005)  # each in a turn of its own
            remover.send_command("SREM", key, "m")
            time.sleep(0.005)
            adder.send_command("SADD", key, "m")
            time.sleep(0.005)
            expirer.send_command("EXPIREMEMBER", key, "m", 100)
            for client in fillers:
                assert client.reply() == b"+OK\r\n"
            replies = [client.reply() for client in (remover, adder, expirer)]
            assert sleeper.reply() == b"+OK\r\n"
            if replies[:2] != [b":1\r\n", b":1\r\n"]:
                continue  # on a busy machine one of them has come back to its own connection, and been overtaken
            assert replies[2] == b":1\r\n"
            # What has run in its order has the deadline; what came in between would have lost it or kept an old one.
            assert expirer.command("TTL", key, "m") == b":100\r\n"
            assert server.command("SCARD", key) == b":2\r\n"
            in_order += 1
            if in_order == 4:
                return
        pytest.fail("they have hardly ever run in their order")


@on_one
def test_an_idle_client_that_has_shared_is_let_go(server: Server, start_proxy: StartProxy) -> None:
    """As the proxy stops, and as it leaves by itself."""
    proxy = start_proxy(server, *SHARING)
    with proxy.connect() as idle, proxy.connect() as leaving, proxy.connect() as busy:
        for client in (idle, leaving):
            until_shares(proxy, client)
        busy.send(request("PING") + request("BLPOP", "list", 0))
        busy.reply()
        ends = time.monotonic() + ANEW_SECONDS + TOUCH_SECONDS + 1
        for client in (idle, leaving):
            client.command("GET", "nothing")
        while time.monotonic() < ends:
            time.sleep(0.05)
        leaving.end_of_requests()
        assert leaving.rest() == b""
        proxy.process.send_signal(15)
        assert idle.rest() == b""
        server.command("RPUSH", "list", "job")
        assert busy.rest().endswith(b"job\r\n")
    assert proxy.process.wait(20) == 0
    assert "Traceback" not in proxy.process.output


@on_one
def test_deadlines_and_shared_requests(server: Server, sharing: Proxy) -> None:
    """What is sent over a shared connection in the turn in which a key gets its first deadline goes before it."""
    with sharing.connect() as adder, sharing.connect() as expirer:
        until_shares(sharing, adder)
        for number in range(300):
            key = f"set:{number}"
            adder.send_command("SADD", key, "a", "b")
            expirer.send_command("EXPIREMEMBER", key, "a", 100)
            assert adder.reply() == b":2\r\n"
            given_one = expirer.reply() == b":1\r\n"
            adder.command("SREM", key, "a")
            adder.command("SADD", key, "a")
            assert expirer.command("TTL", key, "a") == b":-1\r\n", (number, given_one)


@on_one
def test_who_shares_sees_no_member_that_is_due(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, *SHARING, "--no-sweep")
    with proxy.connect() as reader, proxy.connect() as expirer:
        until_shares(proxy, reader)
        for number in range(20):
            key = f"set:{number}"
            assert expirer.command("SADD", key, "a", "b") == b":2\r\n"
            assert reader.command("SCARD", key) == b":2\r\n"
            assert expirer.command("PEXPIREMEMBER", key, "a", 20) == b":1\r\n"
            server.command("SET", "clock", 1, "PX", 21)
            until(lambda: server.command("EXISTS", "clock") == b":0\r\n", what="the deadline")
            assert reader.command("SMEMBERS", key) == b"*1\r\n$1\r\nb\r\n"


@on_one
@pytest.mark.parametrize("flush", [["SCRIPT", "FLUSH"], ["FUNCTION", "FLUSH"], ["FLUSHALL"]])
def test_flushes_at_any_instant(server: Server, sharing: Proxy, flush: list[str]) -> None:
    done = threading.Event()

    def go_on() -> None:
        with server.connect() as admin:
            while not done.is_set():
                admin.command(*flush)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        with sharing.connect() as client:
            for number in range(200):
                assert client.command("SADD", "k", number)[:1] == b":"
                assert client.command("EXPIREMEMBER", "k", number, 100)[:1] == b":"
                assert client.command("SCARD", "other")[:1] == b":"
    finally:
        done.set()
        thread.join()


@on_one
def test_an_answer_counts_for_its_own_question(server: Server, start_proxy: StartProxy) -> None:
    """A client is asked about again while the first question waits, and something of it blocks behind that."""
    proxy = start_proxy(server, *SHARING)
    with proxy.connect() as client, proxy.connect() as sleeper:
        until_shares(proxy, client)
        client.command("SET", "a", "1")
        for _ in range(5):
            sleeper.send_command("DEBUG", "SLEEP", "0.1")
            time.sleep(0.03)
            for words in (["OBJECT", "ENCODING", "a"], ["GET", "a"], ["BLPOP", "q", "0.5"], ["GET", "b"]):
                client.send_command(*words)
                time.sleep(0.005)
            time.sleep(0.1)
            client.send_command("STRLEN", "a")
            assert sleeper.reply() == b"+OK\r\n"
            assert client.reply()[:1] == b"$"
            assert client.reply() == b"$1\r\n1\r\n"
            assert client.reply() == b"*-1\r\n"
            assert client.reply() == b"$-1\r\n"
            assert client.reply() == b":1\r\n"


# What is lost.


@on_one
def test_a_lost_shared_connection_is_replaced(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        for _ in range(3):
            until_shares(sharing, client)
            kill_lanes(server)
            assert client.command("SET", "k", 1) == b"+OK\r\n"
    with sharing.connect() as client:
        until_shares(sharing, client)


@on_one
def test_who_has_a_request_on_a_lost_one_is_closed(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as writer, sharing.connect() as reader:
        until_shares(sharing, writer)
        until_shares(sharing, reader)
        server.command("CLIENT", "PAUSE", 600_000, "WRITE")
        writer.send_command("SET", "k", 1)
        assert writer.silent(0.1)
        kill_lanes(server)
        server.command("CLIENT", "UNPAUSE")
        assert writer.rest() == b""
        assert reader.command("GET", "k")[:1] == b"$"


@on_one
def test_what_may_run_again_does_when_a_shared_connection_is_lost(server: Server, start_proxy: StartProxy) -> None:
    with Relay(server.address) as relay:
        proxy = start_proxy(server, "--upstream", relay.url, *SHARING)
        server.command("SET", "k", "v")
        with proxy.connect() as writer, contextlib.ExitStack() as stack:
            readers = [stack.enter_context(proxy.connect()) for _ in range(5)]
            for client in (writer, *readers):
                until_shares(proxy, client)
            before = shared(proxy)
            assert relay.lose(NAME)
            writer.send_command("INCR", "number")
            for reader in readers:
                reader.send_command("GET", "k")
            until(lambda: shared(proxy) == before + 6, what="requests under way")
            for pipe in relay.pipes:
                if NAME in pipe.asked:
                    pipe.near.shutdown(socket.SHUT_RDWR)
            assert [reader.reply() for reader in readers] == [b"$1\r\nv\r\n"] * 5
            assert writer.rest() == b""
        assert server.command("GET", "number") == b"$-1\r\n"


@on_one
def test_a_client_that_is_killed_is_closed(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client, sharing.connect() as other:
        number = client.command("CLIENT", "ID")[1:-2]
        until_shares(sharing, client)
        until_shares(sharing, other)
        assert server.command("CLIENT", "KILL", "ID", number) == b":1\r\n"
        assert client.rest() == b""
        assert other.command("GET", "nothing") == b"$-1\r\n"


@on_one
def test_the_server_does_not_find_a_busy_client_idle(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client:
        until_shares(sharing, client)
        server.command("CONFIG", "SET", "timeout", int(ANEW_SECONDS) + 2)
        try:
            for gap in (0.01,) * 200 + (0.5,) * 4 + (0.01,) * 150 + (2.4, 2.4, 0.01, 2.4):
                assert client.command("GET", "nothing") == b"$-1\r\n"
                time.sleep(gap)
            assert client.command("GET", "nothing") == b"$-1\r\n"
        finally:
            server.command("CONFIG", "SET", "timeout", 0)


# Long replies.


def test_a_long_reply_holds_up_nobody_else(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    size = 500_000_000
    server.command("SETRANGE", "long", size - 1, "x")
    with proxy.connect(120) as client, proxy.connect() as other:
        until_shares(proxy, client)
        until_shares(proxy, other)
        client.send_command("GET", "long")
        other.command("SET", "k", 1)
        head = client.line()
        assert head == b"$%d\r\n" % size
        for _ in range(100):
            assert other.command("GET", "k") == b"$1\r\n1\r\n"
        left = size + 2
        while left:
            left -= len(client.exactly(min(left, 1 << 20)))
        assert client.command("GET", "k") == b"$1\r\n1\r\n"
        assert memory(proxy) < 60 * 1024 * 1024 + 2 * BACKLOG


def test_a_push_does_not_come_into_the_midst_of_a_long_reply(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Nor where the client reads it slowly, so that nothing is read from its own connection either."""
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    size = 3 * BACKLOG
    server.command("SETRANGE", "long", size - 1, "x")
    for _ in range(2):
        with proxy.connect() as client, proxy.connect() as other:
            redirect(client, other)
            until_shares(proxy, client)
            client.send_command("GET", "long")
            assert client.line() == b"$%d\r\n" % size
            got = len(client.exactly(1 << 20))
            server.command("SET", "told", 1)
            while got < size:
                piece = client.exactly(min(1 << 20, size - got))
                assert not piece.strip(b"\0x")
                got += len(piece)
            assert client.exactly(2) == b"\r\n"
            assert client.reply() == b">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\ntold\r\n"


class Stall(Relay):
    """A relay that passes replies on up to a chunk with `MARK` in it, and the rest when it is told to."""

    MARK = b"\x01"

    def __init__(self, server: Server) -> None:
        super().__init__(server.address)
        self._goes_on = threading.Event()
        self.answers = self._pass

    def go_on(self) -> None:
        self._goes_on.set()

    @property
    def pipe(self) -> Pipe:
        """The one connection that has asked for its number."""
        (pipe,) = (pipe for pipe in self.pipes if request("CLIENT", "ID") in pipe.asked)
        return pipe

    def _pass(self, answer: bytes) -> bytes:
        if self.MARK in answer:
            self._goes_on.wait()
        return answer


VALUE = b"x" * 70_000 + Stall.MARK + b"x" * 1000
"""More than a relay passes on at once stands before the mark."""

BEGINNING = b"$%d\r\nxxxx" % len(VALUE)


@contextlib.contextmanager
def midway(server: Server, start: Start) -> Iterator[tuple[Stall, Proxy, Raw]]:
    """A client that is told of changes, and that has got part of a reply over a shared connection."""
    server.command("SET", "value", VALUE)
    with Stall(server) as stall:
        proxy = start("--upstream", stall.url, *SHARING)
        with proxy.connect() as client, proxy.connect() as other:
            redirect(client, other)
            until_shares(proxy, client)
            before = shared(proxy)
            client.send_command("GET", "value")
            assert client.exactly(len(BEGINNING)) == BEGINNING
            assert shared(proxy) == before + 1
            yield stall, proxy, client


def check_a_push_within_a_reply(server: Server, start: Start) -> None:
    with midway(server, start) as (stall, proxy, client):
        server.command("SET", "told", 1)
        until(lambda: b"invalidate" in stall.pipe.last, what="a push")
        for _ in range(3):  # turns of the proxy, in which it reads the push
            proxy.command("PING")
        stall.go_on()
        assert client.exactly(len(VALUE) - 4) == VALUE[4:]
        assert client.exactly(2) == b"\r\n"
        assert client.reply() == b">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\ntold\r\n"


def check_pushes_that_wait(server: Server, start: Start) -> None:
    """Most of those that wait for the end of a reply wait in the server, not in the proxy."""
    names = [f"told:{'x' * 10_000}:{number}" for number in range(2000)]
    with midway(server, start) as (stall, proxy, client), server.connect() as writer:
        before = memory(proxy)
        writer.send(b"".join(request("SET", name, 1) for name in names))
        for _ in names:
            assert writer.reply() == b"+OK\r\n"
        told = [0]
        while told[-50:].count(told[-1]) < 50:  # in each of these turns the proxy would have read more
            proxy.command("PING")
            told.append(stall.pipe.answered)
        assert memory(proxy) < before + 10_000_000
        stall.go_on()
        client.exactly(len(VALUE) - 4 + 2)
        heard = 0
        while heard < len(names):
            heard += client.reply().count(b"told:")


@on_one
def test_a_push_does_not_come_into_the_midst_of_a_reply(server: Server, start: Start) -> None:
    """A connection to which others redirect what they are told does not show it."""
    check_a_push_within_a_reply(server, start)


@on_one
def test_pushes_that_wait_for_a_reply_wait_in_the_server(server: Server, start: Start) -> None:
    check_pushes_that_wait(server, start)


@on_one
def test_a_reply_does_not_come_into_the_midst_of_a_long_push(server: Server, sharing: Proxy) -> None:
    change = "for i = 1, 50000 do redis.call('SET', 'told:' .. i, 1) end"
    for _ in range(3):
        with sharing.connect() as client, sharing.connect() as other, server.connect() as writer:
            redirect(client, other)
            until_shares(sharing, client)
            writer.send_command("EVAL", change, 0)
            pushed = 0
            while pushed < 50_000:
                client.send_command("GET", "nothing")
                while (reply := client.reply()).startswith(b">"):
                    pushed += reply.count(b"\r\ntold:")
                assert reply == b"_\r\n"
            writer.reply()


def redirect(client: Raw, other: Raw) -> None:
    """Have a client told of changes by the server, as another one asks."""
    client.command("HELLO", 3)
    number = client.command("CLIENT", "ID")[1:-2].decode()
    assert other.command("CLIENT", "TRACKING", "on", "REDIRECT", number, "BCAST", "PREFIX", "told") == b"+OK\r\n"


@on_each
def test_what_others_have_the_server_push_to_a_shared_connection_is_dropped(server: Server, sharing: Proxy) -> None:
    with sharing.connect() as client, sharing.connect() as other, server.connect() as writer:
        client.command("HELLO", 3)
        client.command("SET", "k", 1)
        until_shares(sharing, client)
        ids = [line.split()[0].rpartition(b"=")[2] for line in lanes(server)]
        for number in ids:
            assert other.command("CLIENT", "TRACKING", "off") == b"+OK\r\n"
            words = "CLIENT", "TRACKING", "on", "REDIRECT", number, "BCAST", "PREFIX", "told"
            assert other.command(*words) == b"+OK\r\n"
            for value in range(100):
                writer.send_command("SET", "told", value)
                assert client.command("SET", "k", value) == b"+OK\r\n"
                assert client.command("GET", "k") == bulk(b"%d" % value)
                assert writer.reply() == b"+OK\r\n"
        assert {line.split()[0].rpartition(b"=")[2] for line in lanes(server)} >= set(ids)


def memory(proxy: Proxy) -> int:
    status = Path(f"/proc/{proxy.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def test_a_client_that_stops_reading_is_closed_and_others_go_on(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    server.command("SETRANGE", "long", 200_000_000, "x")
    with proxy.connect() as client, proxy.connect() as other:
        until_shares(proxy, client)
        until_shares(proxy, other)
        client.send_command("GETEX", "long")  # no read, as far as the table says: it is not asked for twice
        ends = time.monotonic() + 8
        while time.monotonic() < ends:
            began = time.monotonic()
            assert other.command("GET", "nothing") == b"$-1\r\n"
            assert time.monotonic() - began < 7
        until(lambda: any("did not read" in line["event"] for line in proxy.log()))
        until_shares(proxy, other)
        assert memory(proxy) < 60 * 1024 * 1024 + 2 * BACKLOG


def test_a_client_that_sends_on_while_it_reads_nothing_holds_nobody_up(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """What it sends behind a long reply is not read until that has come."""
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    server.command("SETRANGE", "long", 60_000_000, "x")
    chunk = request("SET", "k", "x" * 60_000) * 4
    with proxy.connect() as client, proxy.connect() as other:
        until_shares(proxy, client)
        client.send_command("GET", "long")
        client.socket.setblocking(False)
        worst, ends = 0.0, time.monotonic() + 4
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                client.socket.send(chunk)
            began = time.monotonic()
            assert other.command("PING") == b"+PONG\r\n"
            worst = max(worst, time.monotonic() - began)
        assert worst < patience(1)
        assert memory(proxy) < 60 * 1024 * 1024 + 2 * BACKLOG


def test_who_reads_a_long_list_slowly_holds_up_nobody_who_comes_later(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """An array of small elements is as long as a string."""
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    for _ in range(30):
        server.command("RPUSH", "list", *["x" * 100] * 10_000)
    with proxy.connect() as slow, proxy.connect() as other:
        until_shares(proxy, slow)
        slow.send_command("LRANGE", "list", 0, -1)
        slow.exactly(100_000)
        worst, ends = 0.0, time.monotonic() + 3
        while time.monotonic() < ends:
            slow.exactly(20_000)
            began = time.monotonic()
            assert other.command("GET", "nothing") == b"$-1\r\n"
            worst = max(worst, time.monotonic() - began)
            time.sleep(0.02)
        assert worst < patience(1)


@on_one
def test_a_value_that_looks_like_the_beginnings_of_replies_takes_little_time(server: Server, sharing: Proxy) -> None:
    server.command("SET", "long", b"-" * 1_000_000)
    with sharing.connect(120) as client:
        until_shares(sharing, client)
        process = psutil.Process(sharing.pid)
        before = process.cpu_times()
        assert client.command("GET", "long") == bulk(b"-" * 1_000_000)
        assert process.cpu_times().user - before.user < 0.6  # before, 5 and more


@on_one
def test_a_long_nested_reply_takes_little_time(server: Server, sharing: Proxy) -> None:
    """Each entry of a stream is an array of arrays."""
    server.command("EVAL", "for i = 1, 100000 do redis.call('XADD', 'stream', i, 'f', 'v') end", 0)
    with sharing.connect() as client:
        until_shares(sharing, client)
        process = psutil.Process(sharing.pid)
        before = process.cpu_times()
        reply = client.command("XRANGE", "stream", "-", "+")
        after = process.cpu_times()
        assert reply.startswith(b"*100000\r\n")
        assert after.user - before.user < 0.6  # 0.15; before, 1.2


def test_who_stands_behind_a_slow_reader_asks_again_elsewhere(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """What it has asked was sent before the reply was seen to be long."""
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    server.command("SETRANGE", "long", 2 * BACKLOG + 20_000_000, "x")
    until(lambda: stand_behind_a_slow_reader(proxy), 60, "others behind it")


def stand_behind_a_slow_reader(proxy: Proxy) -> bool:
    """Have clients ask behind one that reads slowly; return whether they did so on a shared connection."""
    with contextlib.ExitStack() as stack:
        slow, sleeper = stack.enter_context(proxy.connect()), stack.enter_context(proxy.connect())
        others = [stack.enter_context(proxy.connect()) for _ in range(10)]
        for index, client in enumerate(others):
            client.command("SET", f"k{index}", index)
        for client in (slow, *others):
            until_shares(proxy, client)
        before = shared(proxy)
        sleeper.send_command("DEBUG", "SLEEP", "0.5")
        time.sleep(0.1)  # in which it begins, mostly
        slow.send_command("GET", "long")
        time.sleep(0.02)
        for index, client in enumerate(others):
            client.send_command("GET", f"k{index}")
        began = time.monotonic()
        for index, client in enumerate(others):
            assert client.reply() == b"$1\r\n%d\r\n" % index
        assert time.monotonic() - began < patience(3)
        stood_behind = shared(proxy) > before + 5
        assert sleeper.reply() == b"+OK\r\n"
        for number in range(3):  # no late answer comes for anybody
            for index, client in enumerate(others):
                assert client.command("SET", f"k{index}", number) == b"+OK\r\n"
                assert client.command("GET", f"k{index}") == b"$1\r\n%d\r\n" % number
        size = int(slow.line()[1:-2])
        assert len(slow.exactly(size + 2)) == size + 2
        assert slow.command("GET", "k1") == b"$1\r\n2\r\n"
        for client in others:
            assert client.command("GET", "k1") == b"$1\r\n2\r\n"
        return stood_behind


def test_who_stands_behind_a_long_reply_of_a_slow_server_asks_again_elsewhere(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Its client reads at once."""
    server = start_server(KIND)
    server.command("SETRANGE", "long", 15_000_000, "x")

    def slowly(data: bytes) -> bytes:
        time.sleep(len(data) / 3e6 if len(data) > 8192 else 0)
        return data

    with Relay(server.address) as relay:
        relay.answers = slowly
        proxy = start_proxy(server, "--upstream", relay.url, *SHARING)
        until(lambda: stand_behind_a_slow_reader(proxy), 60, "others behind it")


def test_who_reads_bit_by_bit_does_not_keep_the_writes_of_others_waiting(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Their writes have run, and must not run twice."""
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    server.command("SETRANGE", "long", 3 * BACKLOG, "x")

    def stand_behind() -> bool:
        with contextlib.ExitStack() as stack:
            slow, sleeper, other = (stack.enter_context(proxy.connect()) for _ in range(3))
            until_shares(proxy, slow)
            until_shares(proxy, other)
            before = shared(proxy)
            sleeper.send_command("DEBUG", "SLEEP", "0.5")
            time.sleep(0.1)  # in which it begins, mostly
            slow.send_command("GETEX", "long")
            time.sleep(0.02)
            other.send_command("INCR", "k")
            assert sleeper.reply() == b"+OK\r\n"
            ends = time.monotonic() + patience(10)
            while other.silent(0.02):
                assert time.monotonic() < ends
                with contextlib.suppress(OSError):
                    slow.exactly(10_000)
            assert other.reply() == server.command("INCRBY", "k", 0)
            return shared(proxy) == before + 2

    until(stand_behind, 60, "another behind it")


def test_what_waits_for_clients_that_do_not_read_is_bounded_for_all(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(KIND)
    proxy = start_proxy(server, *SHARING)
    server.command("SETRANGE", "long", 15_000_000, "x")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(20)]
        for client in clients:
            until_shares(proxy, client)
        for client in clients:
            client.send_command("GET", "long")
        clients[0].exactly(1000)
        time.sleep(3)  # in which all of it could have come
        assert memory(proxy) < 60 * 1024 * 1024 + ALL_BACKLOGS + 2 * BACKLOG


@on_one
def test_who_got_a_long_reply_does_not_share_for_a_while(server: Server, sharing: Proxy) -> None:
    server.command("SETRANGE", "long", LARGE + 1, "x")
    server.command("SETRANGE", "short", LARGE - 1000, "x")
    with sharing.connect() as client:
        until_shares(sharing, client)
        assert client.command("GET", "short")[:1] == b"$"
        until_shares(sharing, client)
        assert client.command("GET", "long")[:1] == b"$"
        assert not shares(sharing, client, tries=20)


@on_one
def test_who_gets_replies_of_many_parts_does_not_share_for_a_while(server: Server, start_proxy: StartProxy) -> None:
    """To cut one of a hundred elements costs the proxy more than sharing saves."""
    proxy = start_proxy(server, "--share-after", "2")
    server.command("RPUSH", "list", *range(100))

    def shares_after(elements: int) -> bool:
        with proxy.connect() as client:
            until_shares(proxy, client)
            before = shared(proxy)
            assert client.command("LRANGE", "list", 0, elements - 1).startswith(b"*%d" % elements)
            assert shared(proxy) > before
            return shares(proxy, client, tries=1)

    until(lambda: shares_after(10), what="a client that shares on")
    assert not any(shares_after(100) for _ in range(5))


@on_one
def test_who_is_another_user_is_asked_about_ever_more_seldom(server: Server, start_proxy: StartProxy) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
    proxy = start_proxy(server, "--share", "--share-after", "2")
    with proxy.connect() as client:
        client.command("AUTH", "app", "pw")
        assert client.command("AUTH", "wrong").startswith(b"-")  # now it looks as if it were the proxy's own
        for _ in range(2000):
            client.command("GET", "nothing")
    told = server.command("INFO", "commandstats")
    found = re.search(rb"cmdstat_client\|info:calls=(\d+)", told)
    assert found is not None
    assert int(found[1]) < 100


@on_each
def test_who_has_logged_in_as_another_user_is_not_asked_about(server: Server, sharing: Proxy) -> None:
    """One with few rights would get entries in ACL LOG by it."""
    server.command("ACL", "SETUSER", "low", "on", ">pw", "~*", "&*", "+@read", "+@write")
    server.command("ACL", "LOG", "RESET")
    for words in (["AUTH", "low", "pw"], ["HELLO", "3", "AUTH", "low", "pw"]):
        with sharing.connect() as client:
            assert client.command(*words)[:1] in b"+%"
            for _ in range(100):
                assert client.command("GET", "nothing")[:1] in b"$_"
    assert b"client|info" not in server.command("ACL", "LOG")


# The parts.


class Sleeper:
    """Counts how often it is woken."""

    def __init__(self, error: Exception | None = None) -> None:
        self.woken, self.failed, self.awake = 0, False, asyncio.Event()
        self._error = error

    def wake(self) -> None:
        self.woken += 1
        self.awake.set()
        if self._error is not None:
            raise self._error

    def fail(self, error: Exception) -> None:
        self.failed = error is self._error


def test_many_are_woken_in_turns_and_a_defect_of_one_is_not_anothers() -> None:
    async def scenario() -> None:
        nobody: Any = None
        lanes = Lanes(nobody, nobody, nobody, nobody, Metrics(), 8)
        sleepers = [Sleeper(ValueError()), *(Sleeper() for _ in range(MOST_WOKEN + 10))]
        for sleeper in sleepers:
            lanes.wake_after(0.001, sleeper)
        watch = asyncio.create_task(lanes.run())
        await sleepers[0].awake.wait()
        assert sum(sleeper.woken for sleeper in sleepers) == MOST_WOKEN
        assert sleepers[0].failed
        await sleepers[-1].awake.wait()
        assert [sleeper.woken for sleeper in sleepers] == [1] * len(sleepers)
        watch.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def of_short_replies() -> st.SearchStrategy[bytes]:
    line = st.binary(max_size=20).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b""))
    return st.one_of(
        st.builds(lambda text: b"+%b\r\n" % text, line),
        st.builds(lambda text: b"-ERR %b\r\n" % text, line),
        st.integers().map(lambda number: b":%d\r\n" % number),
        st.binary(max_size=LONGEST).map(bulk),
        st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n"]),
    )


def array(mark: bytes, parts: Sequence[bytes]) -> bytes:
    return b"%b%d\r\n%b" % (mark, len(parts) // (2 if mark == b"%" else 1), b"".join(parts))


def of_short_arrays() -> st.SearchStrategy[bytes]:
    def grow(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        some = st.lists(parts, max_size=MOST_PARTS)
        pairs = some.map(lambda parts: parts[: len(parts) // 2 * 2])
        return st.one_of(st.builds(array, st.sampled_from([b"*", b"~"]), some), st.builds(array, st.just(b"%"), pairs))

    return grow(st.recursive(of_short_replies(), grow, max_leaves=20))


def of_replies() -> st.SearchStrategy[bytes]:
    leaves = st.one_of(
        of_short_replies(),
        st.binary(max_size=600).map(bulk),
        st.sampled_from([b"*0\r\n", b"%0\r\n", b"=7\r\ntxt:abc\r\n"]),
    )

    def grow(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return st.one_of(
            st.builds(array, st.just(b"*"), st.lists(parts, max_size=30)),
            st.builds(array, st.just(b"%"), st.lists(parts, max_size=10).map(lambda some: some[: len(some) // 2 * 2])),
        )

    return st.recursive(leaves, grow, max_leaves=40)


def of_pushes() -> st.SearchStrategy[bytes]:
    return st.lists(of_replies(), max_size=3).map(lambda some: b">%d\r\n%b" % (len(some), b"".join(some)))


@given(
    parts=st.lists(st.one_of(of_replies(), of_replies(), of_pushes()), max_size=10),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
)
def test_replies_are_cut_as_they_were_put_together(parts: list[bytes], cuts: list[int]) -> None:
    """Without the push messages between them."""
    replies = [part for part in parts if not part.startswith(b">")]
    stream, reader, found, begun = b"".join(parts), Replies(), [], b""
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        for piece, ends in reader.cut(stream[begin:end]):
            begun += piece
            if ends:
                found.append(begun)
                begun = b""
    assert found == replies
    assert not begun
    assert reader.between
    short = short_replies()(stream)
    if sum(map(len, short)) == len(stream):
        assert short == replies
    assert short_arrays()(stream or b"+\r\n") in (replies, [], [b"+\r\n"])


@given(parts=st.lists(st.one_of(of_short_replies(), of_short_arrays()), min_size=1, max_size=20), data=st.data())
def test_arrays_of_a_few_short_replies_are_taken_whole(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    assert short_arrays()(stream) == parts
    rest = data.draw(st.integers(1, len(stream)))
    cut = short_arrays()(stream[:-rest]) if rest < len(stream) else []
    assert cut == parts[: len(cut)]
    assert sum(map(len, cut)) in (0, len(stream) - rest)


@given(
    entries=st.lists(st.one_of(of_replies(), st.lists(of_replies(), max_size=3)), min_size=1, max_size=12),
    times=st.integers(6, 20),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
)
def test_long_nested_replies_are_cut_as_they_were_put_together(
    entries: list[bytes | list[bytes]], times: int, cuts: list[int]
) -> None:
    """Many parts are taken at once: none of the reply behind."""
    parts = [e if isinstance(e, bytes) else b"*%d\r\n%b" % (len(e), b"".join(e)) for e in entries] * times
    replies = [b"*%d\r\n%b" % (len(parts), b"".join(parts)), b":1\r\n", b"*1\r\n:2\r\n", b"+OK\r\n"] * 2
    stream, reader, found, begun = b"".join(replies), Replies(), [], b""
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(places):
        for piece, ends in reader.cut(stream[begin:end]):
            begun += piece
            if ends:
                found.append(begun)
                begun = b""
    assert found == replies
    assert reader.between


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("head", [b"", b"*2\r\n:1\r\n"])
@pytest.mark.parametrize("step", [1_000, 65_536, 100_001])
def test_a_long_text_is_cut_as_it_was_put_together(size: int, head: bytes, step: int) -> None:
    """MONITOR tells of requests of any size, and a script may say what it likes."""
    replies = [head + b"+" + b"x\r" * (size // 2) + b"x\r\n", b":1\r\n", b"-" + b"y" * size + b"\r\n", b"+OK\r\n"]
    stream, reader, found, begun = b"".join(replies), Replies(), [], b""
    for begin in range(0, len(stream), step):
        for piece, ends in reader.cut(stream[begin : begin + step]):
            begun += piece
            if ends:
                found.append(begun)
                begun = b""
    assert found == replies
    assert reader.between


@pytest.mark.parametrize("mark", [b"-", b"+", b":", b"$", b"$1", b"$500\r\n", b"*", b"*9\r\n", b"\r\n", b"x"])
@pytest.mark.parametrize("head", [b"", b"$1000000\r\n", b"*100000\r\n", b"*2\r\n$1000000\r\n"])
def test_whatever_a_long_reply_is_made_of_it_takes_little_time_to_cut(head: bytes, mark: bytes) -> None:
    """Its bytes may look like replies."""
    data = head + mark * (64_000 // len(mark))
    before = time.process_time()
    short_replies()(data)
    short_arrays()(data)
    with contextlib.suppress(StrayReplyError):
        Replies().cut(data)
    assert time.process_time() - before < 0.5  # 0.02 at most; some took 8


@pytest.mark.parametrize("stray", [b"*1\r\n*1\r\nx\r\n", b"x\r\n", b"$x\r\n", b"*\r\n", b":" + b"1" * 70_000])
def test_what_is_no_reply_is_told(stray: bytes) -> None:
    with pytest.raises(StrayReplyError):
        Replies().cut(stray)


INFO = b"id=3 addr=1.2.3.4:5 name=%b flags=%b db=%b sub=0 psub=0 ssub=0 multi=-1 watch=0 user=%b resp=%b\n"


def test_whose_a_connection_is() -> None:
    ordinary = INFO % (b"", b"N", b"4", b"app", b"3")
    assert who(bulk(ordinary)) == Identity(b"app", 4, 3)
    assert who(b"=%d\r\ntxt:%b\r\n" % (len(ordinary) + 4, ordinary)) == Identity(b"app", 4, 3)
    assert who(bulk(ordinary.replace(b"=N", b"=U"))) == Identity(b"app", 4, 3)
    assert who(bulk(ordinary.replace(b"multi=-1", b"multi=0"))) == Identity(b"app", 4, 3)  # Valkey 9 after a DISCARD
    for before, after in (
        (b"flags=N", b"flags=x"),
        (b"flags=N", b"flags=e"),
        (b"flags=N", b"flags=tR"),
        (b" sub=0", b" sub=1"),
        (b"psub=0", b"psub=1"),
        (b"ssub=0", b"ssub=2"),
        (b"watch=0", b"watch=1"),
        (b"flags=N", b"flags=N capa=r"),
        (b" resp=3", b""),
        (b"resp=3", b"resp=4"),
        (b" user=app", b""),
        (b"db=4", b"db="),
    ):
        assert before in ordinary
        assert who(bulk(ordinary.replace(before, after))) is None, after
    assert who(b"-NOPERM this user has no permissions\r\n") is None
    assert who(b"") is None


def covering(*keys: bytes) -> Coverage:
    coverage = Coverage()
    coverage.loaded = True
    coverage.see()
    coverage.learn(keys)
    return coverage


NAMES = Names(b"__expiremember__:")
NOW = 1e12
words = st.one_of(
    st.sampled_from([b"k", b"known", b"known2", b"__expiremember__:i", b"", b"_", b"\r\n*1\r\n", b"x" * 600]),
    st.binary(max_size=12),
)
names = st.one_of(
    st.sampled_from(sorted(FREQUENT)).flatmap(lambda name: st.sampled_from([name, name.lower(), name.title()])),
    st.sampled_from([b"SADD", b"MULTI", b"EXEC", b"AUTH", b"BLPOP", b"EVAL", b"WAIT", b"PING", b"SELECT"]),
)


@given(
    requests=st.lists(st.builds(lambda name, rest: [name, *rest], names, st.lists(words, max_size=6)), max_size=3),
    extra=st.sampled_from([b"", b"", b"", b"*1", b"\r\n", b"x"]),
    unlike=st.booleans(),
)
def test_what_may_share_is_one_frequent_request(requests: list[list[bytes]], extra: bytes, unlike: bool) -> None:
    names = b"known", b"other", *([b"a1", b"b2", b"c3", b"d4", b"e5"] if unlike else [])
    coverage = covering(*names)
    chunk = b"".join(request(*arguments) for arguments in requests) + extra
    if not chunk:
        return
    found = share_check(coverage, NAMES.prefix, BatchParser())(chunk)
    if found is Shared.NONE:
        return
    name, *arguments = requests[0]
    if found >= Shared.JOINT_WRITES:  # `Joinable` checks the rest
        assert name.upper() in BATCHED | TOGETHER | OTHER_WRITES.keys() | {b"MULTI"}
        return
    assert len(requests) == 1
    assert not extra
    assert name.upper() in FREQUENT
    if found is Shared.GUARDED_READS:
        assert name.upper() in FREQUENT_READS
    assert bool(coverage.among(arguments)) is (found is Shared.GUARDED_READS)
    assert not any(argument.startswith(NAMES.prefix) for argument in arguments)


@given(
    name=st.sampled_from(sorted(FREQUENT)),
    lower=st.booleans(),
    arguments=st.lists(words.filter(bool), min_size=1, max_size=4),
)
def test_reads_and_writes_are_told_apart(name: bytes, lower: bool, arguments: list[bytes]) -> None:
    spelled = name.lower() if lower else name
    check = share_check(covering(), NAMES.prefix, BatchParser())
    found = {check(request(spelled, *arguments)), check(request(spelled, "k", *arguments))} - {Shared.NONE}
    assert found <= {Shared.READS if name in FREQUENT_READS else Shared.WRITES}


def sample() -> Iterator[bytes]:
    yield request("GET", "k")
    yield request("set", "k", "v")


def test_frequent_requests_share() -> None:
    check = share_check(covering(), NAMES.prefix, BatchParser())
    assert [check(chunk) for chunk in sample()] == [Shared.READS, Shared.WRITES]
    assert check(b"".join(sample())) is Shared.NONE
    guarded = share_check(covering(b"k"), NAMES.prefix, BatchParser())
    assert [guarded(chunk) for chunk in sample()] == [Shared.GUARDED_READS, Shared.WRITES]
    assert guarded(request("INCR", "k")) is Shared.JOINT_WRITES
    assert check(request("SET", "k", "x" * 2000)) is Shared.NONE
