"""Replies and deadlines while a slot is between two nodes, or goes from one to the other at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster import Cluster, Node, slot_of
from tests.conftest import installed
from tests.raw import request as encoded
from tests.servers import EVERY_KIND, KIND, until
from tests.test_cluster import now_ms

TRYAGAIN = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
ATOMIC = [kind for kind in EVERY_KIND if kind.startswith("valkey-9")]


class Move:
    """A slot of one node that is on its way to another, with a client of each node's proxy.

    Attributes:
        source: a client of the node that has the slot.
        target: a client of the node that is to have it.
    """

    def __init__(self, cluster: Cluster, stack: ExitStack, tag: str) -> None:
        self.slot = slot_of(tag)
        self._from = cluster.owner(self.slot)
        self._to = next(node for node in cluster.primaries if node is not self._from)
        self.source, self.target = stack.enter_context(self._from.through()), stack.enter_context(self._to.through())
        self.straight = stack.enter_context(self._from.connect())
        self._stack = stack
        stack.callback(self._end)

    def begin(self) -> None:
        """Have it between the nodes."""
        assert self._to.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._from.identity) == b"+OK\r\n"
        assert self._from.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._to.identity) == b"+OK\r\n"

    def migrate(self, *keys: str | bytes, past: bool = False) -> bytes:
        """Move keys, by a request of a client's or `past` the proxy."""
        client = self.straight if past else self.source
        port = self._to.announced_port
        return client.command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

    def own(self, ending: bytes) -> bytes:
        """The name of one of the proxy's own keys in the slot."""
        names = self._from.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100).split(b"\r\n")
        return next(name for name in names if name.startswith(b"__expiremember__:") and name.endswith(ending))

    def names(self) -> list[bytes]:
        """All keys of the slot at the source."""
        return self._from.command("CLUSTER", "GETKEYSINSLOT", self.slot, 100).split(b"\r\n")[2::2]

    def finish(self) -> None:
        """Give the slot to the target."""
        for node in (self._to, self._from):
            assert node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self._to.identity) == b"+OK\r\n"

    def restart_targets_proxy(self) -> None:
        """Start another proxy in the place of the target's."""
        self._to.kill_proxy()
        self._to.start_proxy()
        self.target = self._stack.enter_context(self._to.through())

    def asking(self, *words: str | int) -> bytes:
        """Send one request to the target, behind an ASKING."""
        assert self.target.command("ASKING") == b"+OK\r\n"
        return self.target.command(*words)

    def _end(self) -> None:
        for node in (self._from, self._to):
            node.command("FLUSHALL")
            node.command("CLUSTER", "SETSLOT", self.slot, "STABLE")
        for node in (self._from, self._to):
            assert node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self._from.identity) == b"+OK\r\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(installed(KIND), stack, replicas=0)


@pytest.fixture
def move(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Move]:
    with ExitStack() as stack:
        yield Move(cluster, stack, request.node.name)


def key(move: Move, request: pytest.FixtureRequest, name: str = "") -> str:
    return f"{{{request.node.name}}}{name}"


def test_the_last_member_goes(move: Move, request: pytest.FixtureRequest) -> None:
    one = key(move, request)
    assert move.source.command("SADD", one, "m") == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", one, "m", 1000) == b":1\r\n"
    move.begin()
    assert move.source.command("SREM", one, "m") == b":1\r\n"
    assert move.source.command("EXISTS", one).startswith(b"-ASK ")


def test_what_the_index_has_left_goes_on_time(move: Move, request: pytest.FixtureRequest) -> None:
    one = key(move, request)
    moment = now_ms() + 700
    assert move.source.command("SADD", one, "m", "n") == b":2\r\n"
    assert move.source.command("PEXPIREMEMBERAT", one, "m", moment) == b":1\r\n"
    move.begin()
    assert move.migrate(move.own(b"index")) == b"+OK\r\n"
    until(lambda: now_ms() > moment, 3)
    assert move.source.command("SMEMBERS", one) == b"*1\r\n$1\r\nn\r\n"
    until(lambda: move.straight.command("SCARD", one) == b":1\r\n", 2, "a removal by the sweeper or the request")


def test_what_has_come_before_the_index_goes_on_time(move: Move, request: pytest.FixtureRequest) -> None:
    one, other = key(move, request), key(move, request, "2")
    moment = now_ms() + 700
    for name in (one, other):
        assert move.source.command("SADD", name, "m", "n") == b":2\r\n"
        assert move.source.command("PEXPIREMEMBERAT", name, "m", moment) == b":1\r\n"
        assert move.source.command("PEXPIREMEMBERAT", name, "n", moment + 100_000) == b":1\r\n"
    move.begin()
    assert move.migrate(one) == b"+OK\r\n"
    until(lambda: now_ms() > moment, 3)
    assert move.asking("SMEMBERS", one) == b"*1\r\n$1\r\nn\r\n"
    assert move.source.command("SMEMBERS", other) == b"*1\r\n$1\r\nn\r\n"


def test_a_shadow_that_goes_ahead_keeps_its_members_from_a_second_life(
    move: Move, request: pytest.FixtureRequest
) -> None:
    one = key(move, request)
    assert move.source.command("SADD", one, "m", "n") == b":2\r\n"
    assert move.source.command("EXPIREMEMBER", one, "m", 1000) == b":1\r\n"
    move.begin()
    assert move.migrate(move.own(one.encode()), past=True) == b"+OK\r\n"
    for words in (("SREM", one, "m"), ("SADD", one, "m"), ("TTL", one, "m"), ("PERSIST", one, "m")):
        assert move.source.command(*words) == TRYAGAIN, words


def test_a_script_adds_where_the_index_has_gone(move: Move, request: pytest.FixtureRequest) -> None:
    one = key(move, request)
    assert move.source.command("SADD", one, "m", "n") == b":2\r\n"
    for member in ("m", "n"):
        assert move.source.command("EXPIREMEMBER", one, member, 1000) == b":1\r\n"
    move.begin()
    assert move.migrate(move.own(b"index")) == b"+OK\r\n"
    for word, reply in (("srem", b":1\r\n"), ("sadd", b":1\r\n")):
        assert move.source.command("EVAL", f"return redis.call('{word}', KEYS[1], 'm')", 1, one) == reply
    assert move.source.command("TTL", one, "m") == b":-1\r\n"


@pytest.fixture
def older_move(request: pytest.FixtureRequest) -> Iterator[Move]:
    """A slot of nodes that lack the words of newer servers."""
    with ExitStack() as stack:
        yield Move(Cluster(installed("redis-7.0"), stack, replicas=0), stack, request.node.name)


@pytest.mark.one_kind
def test_words_that_set_no_deadline_are_answered_as_by_the_node(
    older_move: Move, request: pytest.FixtureRequest
) -> None:
    move = older_move
    here, gone, timed, new = (key(move, request, name) for name in ("1", "2", "3", "4"))
    for name in (here, gone, timed):
        assert move.source.command("HSET", name, "a", 1, "b", 2) == b":2\r\n"
    assert move.source.command("HPEXPIREAT", timed, 4000000000001, "FIELDS", 2, "a", "b") == b"*2\r\n:1\r\n:1\r\n"
    move.begin()
    assert move.migrate(gone) == b"+OK\r\n"
    # What is said at once, before the proxy has heard of the move, is to be said again.
    until(lambda: move.source.command("HTTL", here, "FIELDS", 1, "a") == b"*1\r\n:-1\r\n")
    one, value = b":1\r\n", b"*1\r\n$1\r\n5\r\n"
    lines = (
        ("HSETEX {k} KEEPTTL FIELDS 1 a 5", one), ("HGETEX {k} FIELDS 1 a", value), ("HSETEX {k} FIELDS 1 a 5", one),
        ("HGETEX {k} PERSIST FIELDS 1 a", value), ("HGETDEL {k} FIELDS 1 a", value),
    )  # fmt: skip
    for line, reply in lines:
        assert move.source.command(*line.format(k=here).split()) == reply, line
        assert move.source.command(*line.format(k=gone).split()).startswith(b"-ASK "), line
        assert move.source.command(*line.format(k=new).split()).startswith(b"-ASK "), line
        assert move.asking(*line.format(k=gone).split()) == reply, line
        assert move.source.command(*line.format(k=timed).split()) == reply, line
        left = b"*2\r\n%b:4000000000001\r\n"
        first = b":4000000000001\r\n" if line is lines[0][0] or line is lines[1][0] else b":-1\r\n"
        first = b":-2\r\n" if "DEL" in line else first
        assert move.source.command("HPEXPIRETIME", timed, "FIELDS", 2, "a", "b") == left % first, line
    # Where a shadow has gone ahead of its key, its deadlines can neither be dropped nor kept.
    assert move.migrate(move.own(timed.encode()), past=True) == b"+OK\r\n"
    for line, _ in lines:
        assert move.source.command(*line.format(k=timed).split()) == TRYAGAIN, line


@pytest.fixture
def newer_move(request: pytest.FixtureRequest) -> Iterator[Move]:
    """The same in front of nodes that have the words for fields themselves."""
    with ExitStack() as stack:
        yield Move(Cluster(installed("redis-8.10"), stack, replicas=0), stack, request.node.name)


@pytest.mark.one_kind
def test_words_of_the_nodes_are_answered_as_by_the_node(newer_move: Move, request: pytest.FixtureRequest) -> None:
    """Of keys that have deadlines too, which scripts stand in for, and what was set before an upgrade."""
    move = newer_move
    here, gone, timed, new = (key(move, request, name) for name in ("1", "2", "3", "4"))
    for name in (here, gone, timed):
        assert move.source.command("HSET", name, "a", 1, "b", 2) == b":2\r\n"
        assert move.source.command("EXPIREMEMBER", name, "b", 100_000) == b":1\r\n"
    shadow, early = move.own(f"{{{request.node.name}}}3".encode()), 4_000_000_000_000.5
    assert move.straight.command("ZADD", shadow, str(early), "a") == b":1\r\n"
    move.begin()
    assert move.migrate(gone) == b"+OK\r\n"
    until(lambda: move.source.command("HGET", gone, "a").startswith(b"-ASK "))
    one, value = b"*1\r\n:1\r\n", b"*1\r\n$1\r\n5\r\n"
    for line, reply in (
        ("HSETEX {k} KEEPTTL FIELDS 1 a 5", b":1\r\n"), ("HGETEX {k} FIELDS 1 a", value),
        ("HPEXPIREAT {k} 4000000000000 FIELDS 1 a", one), ("HPERSIST {k} FIELDS 1 a", one),
        ("HSETEX {k} FIELDS 1 a 5", b":1\r\n"), ("HEXPIRE {k} 0 FIELDS 1 a", b"*1\r\n:2\r\n"),
    ):  # fmt: skip
        assert move.source.command(*line.format(k=here).split()) == reply, line
        for name in (gone, new):
            assert move.source.command(*line.format(k=name).split()).startswith(b"-ASK "), line
        assert move.asking(*line.format(k=gone).split()) == reply, line
        assert move.source.command(*line.format(k=timed).split()) == reply, line
        if line.startswith("HGETEX"):
            assert move.straight.command("HPEXPIRETIME", timed, "FIELDS", 1, "a") == b"*1\r\n:4000000000001\r\n"
    assert move.straight.command("ZCARD", shadow) == b":1\r\n"


def test_a_rename_takes_deadlines_along(move: Move, request: pytest.FixtureRequest) -> None:
    one, other = key(move, request), key(move, request, "2")
    for name in (one, other):
        assert move.source.command("SADD", name, "m") == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", one, "m", 1000) == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", other, "m", 10) == b":1\r\n"
    move.begin()
    assert move.source.command("RENAME", one, other) == b"+OK\r\n"
    assert move.source.command("TTL", other, "m") in (b":1000\r\n", b":999\r\n")


@pytest.mark.parametrize("way", ["SPOP", "PEXPIRE", "script"])
def test_leftover_deadlines_do_not_follow_a_key_that_has_begun_anew_elsewhere(
    move: Move, request: pytest.FixtureRequest, way: str
) -> None:
    one = key(move, request)
    moment = now_ms() + 1200
    assert move.source.command("SADD", one, "m") == b":1\r\n"
    assert move.source.command("PEXPIREMEMBERAT", one, "m", moment) == b":1\r\n"
    if way == "SPOP":
        assert move.source.command("SPOP", one) == b"$1\r\nm\r\n"
    elif way == "PEXPIRE":
        assert move.source.command("PEXPIRE", one, 0) == b":1\r\n"
    else:
        assert move.source.command("EVAL", "return redis.call('srem', KEYS[1], 'm')", 1, one) == b":1\r\n"
    move.begin()
    assert move.source.command("SADD", one, "m").startswith(b"-ASK ")
    assert move.asking("SADD", one, "m") == b":1\r\n"
    for name in move.names():
        assert move.migrate(name).startswith(b"+")
    move.finish()
    until(lambda: now_ms() > moment + 300, 3)
    assert move.target.command("SISMEMBER", one, "m") == b":1\r\n"
    assert move.target.command("TTL", one, "m") == b":-1\r\n"


def test_a_proxy_that_starts_in_the_midst_of_a_move_knows_what_has_come(
    move: Move, request: pytest.FixtureRequest
) -> None:
    one, other = key(move, request), key(move, request, "2")
    moment = now_ms() + 4000
    for name in (one, other):
        assert move.source.command("SADD", name, "m", "n") == b":2\r\n"
    assert move.source.command("PEXPIREMEMBERAT", one, "m", moment) == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", other, "m", 1000) == b":1\r\n"
    move.begin()
    assert move.migrate(one, other) == b"+OK\r\n"
    move.restart_targets_proxy()
    assert move.asking("SREM", other, "m") == b":1\r\n"
    assert move.asking("SADD", other, "m") == b":1\r\n"
    assert move.asking("TTL", other, "m") == b":-1\r\n"
    until(lambda: now_ms() > moment, 6)
    assert move.asking("SISMEMBER", one, "m") == b":0\r\n"


def test_a_node_with_another_id_is_met_anew() -> None:
    """The id is in the name of the channel by which proxies in front of one node talk."""
    with ExitStack() as stack:
        lonely = Cluster(installed(KIND), stack, primaries=1, replicas=0).nodes[0]

        def channel() -> bytes:
            return lonely.command("PUBSUB", "CHANNELS", "__expiremember__:proxies:*")

        until(lambda: lonely.identity.encode() in channel(), 5, "a channel")
        assert lonely.command("FLUSHALL") == b"+OK\r\n"
        assert lonely.command("CLUSTER", "RESET", "HARD") == b"+OK\r\n"
        identity = lonely.command("CLUSTER", "MYID").split(b"\r\n")[1]
        until(
            lambda: identity in channel() and lonely.identity.encode() not in channel(), 5, "a channel of another name"
        )


def test_migrate_is_answered_as_by_the_node(move: Move, request: pytest.FixtureRequest) -> None:
    one = key(move, request)
    assert move.source.command("SADD", one, "m") == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", one, "m", 1000) == b":1\r\n"
    for words in (
        ("127.0.0.1", 1, one, 0, 1000, "KEYS", one),
        ("127.0.0.1", 1, one, 0, 1000, "NONSENSE"),
        ("127.0.0.1", 1, one, 0, 1000, "AUTH"),
        ("127.0.0.1", 1, "", 0, 1000),
        ("127.0.0.1", 1, "", 0, 1000, "KEYS"),
        ("127.0.0.1", 1, "", 0, "x", "KEYS", one),
        ("127.0.0.1", 1, "", "x", 1000, "COPY", "AUTH", "KEYS", "KEYS", one),
        ("127.0.0.1", 1, one),
    ):
        assert move.source.command("MIGRATE", *words) == move.straight.command("MIGRATE", *words), words
    assert move.source.command("TTL", one, "m") in (b":1000\r\n", b":999\r\n")


def test_many_keys_go_at_once(move: Move, request: pytest.FixtureRequest) -> None:
    """More of them, with their shadows, than Lua unpacks."""
    names = [key(move, request, str(number)) for number in range(4_200)]
    for name in names:
        move.source.send(encoded("SADD", name, "m") + encoded("EXPIREMEMBER", name, "m", 1000))
    assert move.source.replies(2 * len(names)) == [b":1\r\n"] * (2 * len(names))
    assert move.source.command("DEL", *names) == b":4200\r\n"
    assert move.source.command("DBSIZE") == b":0\r\n"


def test_what_is_malformed_is_refused_by_the_node(move: Move, request: pytest.FixtureRequest) -> None:
    one = key(move, request)
    assert move.source.command("ZADD", one, 1, "m") == b":1\r\n"
    assert move.source.command("EXPIREMEMBER", one, "m", 1000) == b":1\r\n"
    for words in (("ZUNIONSTORE", one), ("ZINTERSTORE", one, "x", one), ("ZDIFFSTORE", one, 0), ("SUNIONSTORE", one)):
        assert move.source.command(*words) == move.straight.command(*words), words


# Valkey 9 moves a slot at once, over a connection of the nodes' own.


def _moved(node: Node, slots: int, target: Node) -> None:
    assert node.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slots, slots, "NODE", target.identity) == b"+OK\r\n"
    until(lambda: slots in target.nodes()[target.identity].slots, 10, "a slot")


@pytest.mark.parametrize("newest", ATOMIC)
def test_a_slot_that_moves_at_once(newest: str) -> None:
    with ExitStack() as stack:
        cluster = Cluster(installed(newest), stack, replicas=0)
        source = cluster.owner_of("k")
        target = next(node for node in cluster.primaries if node is not source)
        before, after = stack.enter_context(source.through()), stack.enter_context(target.through())
        moment = now_ms() + 3000
        assert before.command("SADD", "k", "m", "n", "o") == b":3\r\n"
        assert before.command("PEXPIREMEMBERAT", "k", "m", moment) == b":1\r\n"
        assert before.command("EXPIREMEMBER", "k", "n", 1000) == b":1\r\n"
        _moved(source, slot_of("k"), target)
        assert after.command("SREM", "k", "n") == b":1\r\n"
        assert after.command("SADD", "k", "n") == b":1\r\n"
        assert after.command("TTL", "k", "n") == b":-1\r\n"
        until(lambda: now_ms() > moment, 5)
        assert after.command("SISMEMBER", "k", "m") == b":0\r\n"
