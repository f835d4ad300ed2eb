"""What the proxy of a cluster node does in the midst of a move, at a takeover, and when its node is down.

Each in a small cluster whose nodes reach each other without proxies, so that these can be started for one check.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import Cluster, Node
from tests.raw import Raw, request
from tests.servers import KIND, until
from tests.test_cluster import keys_in, now_ms


class Stage:
    """Two primaries with a replica each, and proxies that are started where they are needed.

    Args:
        cluster: whole and empty, without proxies.
        folder: where the proxies' package is, if not here.
    """

    def __init__(self, cluster: Cluster, folder: Path | None) -> None:
        self.cluster = cluster
        self.folder = folder
        self.source, self.target = cluster.primaries
        self.stack = ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def through(self, node: Node, user: str = "") -> Raw:
        """Connect to a node through a proxy that is started for it; with `user` it logs in as that one."""
        if node.proxy is None:
            url = node.url.replace("//", f"//{user}:x@") if user else ""
            node.start_proxy("--leftovers-rate", "0", url=url, folder=self.folder)
            self.stack.callback(node.kill_proxy)
        return self.stack.enter_context(node.through())

    def slot(self, place: int) -> tuple[int, str]:
        """Return a slot of the source, and what its keys contain."""
        slot = self.cluster.slots_of(self.source)[place]
        (key,) = keys_in([slot], 1)
        return slot, f"{{{key}}}"

    def begin_move(self, slot: int) -> None:
        """Have a slot of the source between it and the target until the end."""
        self.stack.callback(self._bring_back, slot)
        self.cluster.begin_move(slot, self.source, self.target)

    def _bring_back(self, slot: int) -> None:
        for node in (self.source, self.target):
            node.flush()
            assert node.command("CLUSTER", "SETSLOT", slot, "STABLE") == b"+OK\r\n"
        for node in (self.source, self.target):
            assert node.command("CLUSTER", "SETSLOT", slot, "NODE", self.source.identity) == b"+OK\r\n"
        self.cluster.until_whole()


def asking(client: Raw, *words: str | int) -> bytes:
    """Send one request behind an ASKING."""
    client.send(request("ASKING") + request(*words))
    assert client.reply() == b"+OK\r\n"
    return client.reply()


def migrate(client: Raw, key: str, target: Node) -> None:
    """Move a key by a request of a client's."""
    reply = client.command("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", key)
    assert reply == b"+OK\r\n", reply


def known_keys(client: Raw) -> int:
    found = re.search(rb"\nknown_keys:(\d+)", client.command("INFO", "expiremember"))
    assert found
    return int(found[1])


def check_a_key_on_its_way(stage: Stage) -> None:
    """Deadlines go along with their key, and are judged where it is, though the slot's index is still elsewhere."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(3)
    for key in (f"{tag}1", f"{tag}2"):
        assert source.command("SADD", key, "m", "n") == b":2\r\n"
        assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    migrate(source, f"{tag}1", stage.target)
    until(lambda: known_keys(target) > 0, 5, "a key with deadlines that has come")
    # It stays known, also when the proxy has asked the node about it.
    moment = now_ms() + 500
    while now_ms() < moment:
        assert known_keys(target) > 0
    assert asking(target, "SREM", f"{tag}1", "m") == b":1\r\n"
    assert asking(target, "SADD", f"{tag}1", "m") == b":1\r\n"
    assert asking(target, "TTL", f"{tag}1", "m") == b":-1\r\n"
    # What goes altogether, and what comes back, at either node.
    assert asking(target, "SREM", f"{tag}1", "m", "n") == b":2\r\n"
    assert asking(target, "SADD", f"{tag}1", "m") == b":1\r\n"
    assert source.command("SREM", f"{tag}2", "m", "n") == b":2\r\n"
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("TTL", f"{tag}1", "m") == b":-1\r\n"


def check_a_slot_that_came_before_the_proxy(stage: Stage) -> None:
    """A proxy that starts when keys have come, and their slot has not, reads their deadlines when it does."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(7)
    assert source.command("SADD", f"{tag}1", "m", "n") == b":2\r\n"
    assert source.command("EXPIREMEMBER", f"{tag}1", "m", 1000) == b":1\r\n"
    moment = now_ms() + 4000
    assert source.command("SADD", f"{tag}2", "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", f"{tag}2", "m", moment) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    target = stage.through(stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    until(lambda: known_keys(target) > 0, 5, "a key with deadlines in a slot that has come")
    assert target.command("SREM", f"{tag}1", "m") == b":1\r\n"
    assert target.command("SADD", f"{tag}1", "m") == b":1\r\n"
    assert target.command("TTL", f"{tag}1", "m") == b":-1\r\n"
    # Nobody reads the other key: it is the sweeper that knows.
    until(lambda: now_ms() > moment, 6)
    until(lambda: stage.target.command("SCARD", f"{tag}2") == b":1\r\n", 1.5, "a removal in time")


def check_an_index_that_has_gone(stage: Stage) -> None:
    """Deadlines are kept where the key still is, though the slot's index has gone to the other node before it."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(9)
    key = f"{tag}1"
    moment = now_ms() + 500
    assert source.command("SADD", key, "m", *range(30)) == b":31\r\n"
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    for member in range(21):  # the last one stays: a shadow without deadlines is gone, as one that has been moved
        assert source.command("EXPIREMEMBER", key, member, 1000) == b":1\r\n"
    stage.begin_move(slot)
    (index,) = (name for name in stage.cluster.keys_in(slot, stage.source) if name.endswith(b"index"))
    stage.cluster.move([index], stage.source, stage.target)
    until(lambda: now_ms() > moment, 3)
    for member in range(20):
        assert source.command("SISMEMBER", key, "m") == b":0\r\n"
        assert source.command("SREM", key, member) == b":1\r\n"
        assert source.command("SADD", key, member) == b":1\r\n"
        assert source.command("TTL", key, member) == b":-1\r\n"
        time.sleep(0.02)  # what is under test is that it stays so


def check_asking_while_blind(stage: Stage) -> None:
    """Nothing is put between ASKING and its request, also where the proxy has to do its work on that connection."""
    server = stage.target
    assert server.command("ACL", "SETUSER", "control", "on", ">x", "~*", "&*", "+@all") == b"+OK\r\n"
    stage.stack.callback(server.command, "ACL", "DELUSER", "control")
    source, target = stage.through(stage.source), stage.through(stage.target, "control")
    slot, tag = stage.slot(5)
    moment = now_ms() + 1000
    assert source.command("SADD", f"{tag}1", "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", f"{tag}1", "m", moment) == b":1\r\n"
    stage.begin_move(slot)
    migrate(source, f"{tag}1", stage.target)
    until(lambda: known_keys(target) > 0, 5, "a key with deadlines that has come")
    assert server.command("ACL", "SETUSER", "control", "off") == b"+OK\r\n"
    server.command("CLIENT", "KILL", "USER", "control")
    assert server.proxy is not None
    server.proxy.process.line(lambda line: "no control connection" in line)
    until(lambda: now_ms() > moment, 3)
    assert asking(target, "SADD", f"{tag}1", "o") == b":1\r\n"
    assert asking(target, "SISMEMBER", f"{tag}1", "n") == b":1\r\n"
    assert asking(target, "SCARD", f"{tag}2") == b":0\r\n"


def check_a_takeover(stage: Stage) -> None:
    """As soon as a replica is a primary, nobody reads there what is due, though nobody has removed it before."""
    cluster, primary = stage.cluster, stage.source
    replica = cluster.replica_of(primary)
    names = keys_in(cluster.slots_of(primary), 20)
    # The one that sets them ends: nobody removes at the primary.
    with stage.through(primary) as client:
        moment = now_ms() + 1500
        client.send(b"".join(request("SADD", name, "m", "n") for name in names))
        assert client.replies(len(names)) == [b":2\r\n"] * len(names)
        client.send(b"".join(request("PEXPIREMEMBERAT", name, "m", moment) for name in names))
        assert client.replies(len(names)) == [b":1\r\n"] * len(names)
    primary.kill_proxy()
    cluster.until_replicated()
    through, straight = stage.through(replica), stage.stack.enter_context(replica.connect())
    until(lambda: known_keys(through) == len(names), 5, "deadlines at the replica")
    until(lambda: now_ms() > moment + 300, 5)
    assert through.command("READONLY") == b"+OK\r\n"
    # Two sweeps would have come by now.
    assert straight.command("READONLY") == b"+OK\r\n"
    assert straight.command("SCARD", names[0]) == b":2\r\n"
    reply = replica.command("CLUSTER", "FAILOVER")
    assert reply == b"+OK\r\n", reply
    end = time.monotonic() + 8
    while not straight.command("ROLE").startswith(b"*3\r\n$6\r\nmaster"):
        assert time.monotonic() < end, "no takeover"
    for name in names:
        assert through.command("SISMEMBER", name, "m") == b":0\r\n"
    cluster.until_whole()
    until(lambda: {straight.command("SCARD", name) for name in names} == {b":1\r\n"}, 3, "a sweep")


def check_a_proxy_in_the_midst(stage: Stage) -> None:
    """A proxy that starts while a slot is coming knows the deadlines of the keys that have come."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(15)
    keys = f"{tag}1", f"{tag}2"
    moment = now_ms() + 3000
    for key in keys:
        assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", keys[0], "m", moment) == b":1\r\n"
    assert source.command("EXPIREMEMBER", keys[1], "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    names = stage.cluster.keys_in(slot, stage.source)
    stage.cluster.move([name for name in names if not name.endswith(b"index")], stage.source, stage.target)
    target = stage.through(stage.target)
    assert asking(target, "SREM", keys[1], "m") == b":1\r\n"
    assert asking(target, "SADD", keys[1], "m") == b":1\r\n"
    assert asking(target, "TTL", keys[1], "m") == b":-1\r\n"
    until(lambda: now_ms() > moment, 6)
    assert asking(target, "SISMEMBER", keys[0], "m") == b":0\r\n"


def check_leftovers(stage: Stage) -> None:
    """Deadlines of a key that is gone do not follow one that has begun anew at the other node."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(11)
    key = f"{tag}1"
    moment = now_ms() + 1500
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    assert source.command("SPOP", key) == b"$1\r\nm\r\n"
    stage.begin_move(slot)
    assert asking(target, "SADD", key, "m") == b":1\r\n"
    for name in stage.cluster.keys_in(slot, stage.source):
        reply = source.command("MIGRATE", stage.target.host, stage.target.announced_port, name, 0, 5000)
        assert reply in (b"+OK\r\n", b"+NOKEY\r\n"), reply
    stage.cluster.end_move(slot, stage.source, stage.target)
    until(lambda: now_ms() > moment + 500, 4)
    assert stage.target.command("SISMEMBER", key, "m") == b":1\r\n"


def check_a_shadow_ahead(stage: Stage) -> None:
    """While the deadlines of a key are at the other node already nothing is done to it that would void some."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(13)
    key = f"{tag}1"
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    names = stage.cluster.keys_in(slot, stage.source)
    (shadow,) = (name for name in names if name.endswith(b":t:" + key.encode()))
    stage.cluster.move([shadow], stage.source, stage.target)
    for words in (("SREM", key, "m"), ("SADD", key, "m")):
        assert source.command(*words).startswith(b"-TRYAGAIN "), words
    assert stage.source.command("SISMEMBER", key, "m") == b":1\r\n"


def check_a_dead_node(stage: Stage) -> None:
    """Clients of a node that is down see their connections end, without a word."""
    node = stage.cluster.replicas[0]
    idle = stage.through(node)
    assert idle.command("PING") == b"+PONG\r\n"
    node.stop(signal.SIGKILL)
    try:
        assert idle.rest() == b""
        with node.through() as late:
            assert late.rest() == b""
    finally:
        node.start()
        stage.cluster.until_whole()


CHECKS: dict[str, Callable[[Stage], None]] = {
    "a key on its way": check_a_key_on_its_way,
    "a slot that came before": check_a_slot_that_came_before_the_proxy,
    "an index that has gone": check_an_index_that_has_gone,
    "ASKING while blind": check_asking_while_blind,
    "a takeover": check_a_takeover,
    "a proxy in the midst": check_a_proxy_in_the_midst,
    "deadlines left behind": check_leftovers,
    "a shadow ahead": check_a_shadow_ahead,
    "a dead node": check_a_dead_node,
}


def small_cluster(kind: str, stack: ExitStack) -> Cluster:
    """Start nodes without proxies, which reach each other at addresses of their own."""
    return Cluster(kind, stack, primaries=2, named=True, proxied=False)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield small_cluster(KIND, stack)


@pytest.mark.parametrize("check", CHECKS)
def test_details(cluster: Cluster, check: str) -> None:
    cluster.until_whole().flush()
    with Stage(cluster, None) as stage:
        CHECKS[check](stage)
