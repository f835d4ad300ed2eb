"""What the proxy of a cluster node does in the midst of a move, at a takeover, and when its node is down.

Each in a small cluster whose nodes reach each other without proxies, so that these can be started for one check.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from proxy.scripts.naming import Names
from tests.cluster import Cluster, Node
from tests.conftest import StartProxy, StartServer, installed
from tests.raw import Raw, request
from tests.relay import Relay
from tests.servers import KIND, halt, until
from tests.test_cluster import TESTED, keys_in, now_ms
from tests.test_sharing import SHARING, shared

NAMES = Names(b"__expiremember__:")

THOUSAND: Final = (b":1000\r\n", b":999\r\n", b":998\r\n")
"""What `TTL` says a moment after a lifetime of a thousand seconds was set, on a machine that may be busy."""


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

    def through(self, node: Node, user: str = "", url: str = "") -> Raw:
        """Connect to a node through a proxy that is started for it; with `user` it logs in as that one.

        `url`: where it finds the node, if not there where it is.
        """
        if node.proxy is None:
            url = node.url.replace("//", f"//{user}:x@") if user else url
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
        self.cluster.until_whole(again=lambda: self._give_back(slot))

    def _give_back(self, slot: int) -> None:
        """To be done until all agree: a ping that the target sent before takes the slot from the source again."""
        for node in (self.target, self.source):
            assert node.command("CLUSTER", "SETSLOT", slot, "NODE", self.source.identity) == b"+OK\r\n"
        # Who has had the slot for a moment has the greater epoch, by which the replicas go.
        assert self.source.command("CLUSTER", "BUMPEPOCH").startswith((b"+BUMPED", b"+STILL"))


def asking(client: Raw, *words: str | bytes | int) -> bytes:
    """Send one request behind an ASKING."""
    client.send(request("ASKING") + request(*words))
    assert client.reply() == b"+OK\r\n"
    return client.reply()


def migrate(client: Raw, key: str, target: Node) -> None:
    """Move a key by a request of a client's."""
    reply = client.command("MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", key)
    assert reply == b"+OK\r\n", reply


def by_proxy(client: Raw, target: Node, *words: str | bytes | int) -> bytes:
    """Have a key moved by a request of a client's, through the target's proxy."""
    return client.command("MIGRATE", "127.0.0.1", target.announced_port, *words)


def covered(client: Raw) -> int:
    found = re.search(rb"\ncovered_prefixes:(\d+)", client.command("INFO", "expiremember"))
    assert found
    return int(found[1])


def check_a_key_on_its_way(stage: Stage) -> None:
    """Deadlines go along with their key, and are judged where it is, though the slot's index is still elsewhere."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(3)
    for key in (f"{tag}1", f"{tag}2", f"{tag}3"):
        assert source.command("SADD", key, "m", "n") == b":2\r\n"
        assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    migrate(source, f"{tag}1", stage.target)
    migrate(source, f"{tag}3", stage.target)
    until(lambda: covered(target) > 0, 5, "a key with deadlines that has come")
    assert asking(target, "SREM", f"{tag}1", "m") == b":1\r\n"
    assert asking(target, "SADD", f"{tag}1", "m") == b":1\r\n"
    assert asking(target, "TTL", f"{tag}1", "m") == b":-1\r\n"
    # What goes altogether, and what comes back, at either node.
    assert asking(target, "SREM", f"{tag}1", "m", "n") == b":2\r\n"
    assert asking(target, "SREM", f"{tag}3", "m", "n") == b":2\r\n"
    with stage.target.connect() as straight:
        assert asking(straight, "EXISTS", NAMES.shadow(f"{tag}3".encode())) == b":0\r\n"
    assert asking(target, "SADD", f"{tag}1", "m") == b":1\r\n"
    assert source.command("SREM", f"{tag}2", "m", "n") == b":2\r\n"
    assert stage.source.command("EXISTS", NAMES.shadow(f"{tag}2".encode())).startswith(b"-ASK")  # it has gone too
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
    until(lambda: covered(target) > 0, 5, "a key with deadlines in a slot that has come")
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
    until(lambda: covered(target) > 0, 5, "a key with deadlines that has come")
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
    until(lambda: covered(through) > 0, 5, "deadlines at the replica")
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


def check_a_copy_left_behind(stage: Stage) -> None:
    """Deadlines of a copy that a move given up has left at the other node do not outlive it there."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(17)
    key = f"{tag}1"
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    assert by_proxy(source, stage.target, key, 0, 5000, "COPY") == b"+OK\r\n"
    assert asking(target, "TTL", key, "m") in THOUSAND
    assert source.command("SREM", key, "m") == b":1\r\n"
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert by_proxy(source, stage.target, key, 0, 5000).startswith(b"-ERR Target instance replied with error: BUSYKEY")
    assert asking(target, "TTL", key, "m") in THOUSAND  # what is refused changes nothing
    assert by_proxy(source, stage.target, key, 0, 5000, "REPLACE") == b"+OK\r\n"
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("SCARD", key) == b":2\r\n"
    assert target.command("TTL", key, "m") == b":-1\r\n"


def check_deadlines_meet_their_name(stage: Stage) -> None:
    """Deadlines that a key has left behind where it was do not become those of another that comes there."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(19)
    key = f"{tag}1"
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    assert by_proxy(source, stage.target, key, 0, 5000) == b"+OK\r\n"
    assert asking(target, "SPOP", key) == b"$1\r\nm\r\n"
    for node in (stage.source, stage.target):
        assert node.command("CLUSTER", "SETSLOT", slot, "STABLE") == b"+OK\r\n"
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("SADD", f"{key}0", "m") == b":1\r\n"
    assert source.command("EXPIREMEMBER", f"{key}0", "m", 1000) == b":1\r\n"
    stage.cluster.begin_move(slot, stage.source, stage.target)
    for name in (key, f"{key}0"):
        assert by_proxy(source, stage.target, name, 0, 5000) == b"+OK\r\n"
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("TTL", key, "m") == b":-1\r\n"
    assert target.command("TTL", f"{key}0", "m") in THOUSAND


def check_a_key_that_has_gone(stage: Stage) -> None:
    """A key that is gone takes no deadlines along, though who moves keys has been told of it before."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(21)
    key = f"{tag}1"
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    assert source.command("SPOP", key) == b"$1\r\nm\r\n"
    assert asking(target, "SADD", key, "m") == b":1\r\n"
    words = "MIGRATE", stage.target.host, stage.target.port, key, 0, 5000
    assert source.command(*words) == b"+NOKEY\r\n"
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("TTL", key, "m") == b":-1\r\n"


def check_a_copy_in_the_way(stage: Stage) -> None:
    """Deadlines stay with a key that cannot go because there is a copy at the other node."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(33)
    key = f"{tag}1"
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    stage.begin_move(slot)
    assert by_proxy(source, stage.target, key, 0, 5000, "COPY") == b"+OK\r\n"
    for node in (stage.source, stage.target):
        assert node.command("CLUSTER", "SETSLOT", slot, "STABLE") == b"+OK\r\n"
    moment = now_ms() + 2000
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    assert source.command("EXPIREMEMBER", key, "n", 1000) == b":1\r\n"
    stage.cluster.begin_move(slot, stage.source, stage.target)
    assert by_proxy(source, stage.target, key, 0, 5000).startswith(b"-ERR Target instance replied with error: BUSYKEY")
    assert source.command("TTL", key, "n") in THOUSAND
    assert by_proxy(source, stage.target, key, 0, 5000, "REPLACE") == b"+OK\r\n"
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("TTL", key, "n") in THOUSAND
    until(lambda: now_ms() > moment, 5)
    assert target.command("SISMEMBER", key, "m") == b":0\r\n"


def check_a_shadow_that_could_not_come(stage: Stage) -> None:
    """Deadlines that stay behind because the other node refuses them follow their key at the next try."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(43)
    key = f"{tag}1"
    assert source.command("SADD", key, "m", "x" * 3_000_000) == b":2\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    found = re.search(rb"used_memory:(\d+)", stage.target.command("INFO", "memory"))
    assert found is not None
    assert stage.target.command("CONFIG", "SET", "maxmemory", int(found[1]) + 1_500_000) == b"+OK\r\n"
    try:
        said = by_proxy(source, stage.target, key, 0, 5000)
        assert said.startswith(b"-ERR Target instance replied with error: OOM"), said
    finally:
        assert stage.target.command("CONFIG", "SET", "maxmemory", 0) == b"+OK\r\n"
    assert asking(target, "EXISTS", key) == b":1\r\n"
    while names := stage.cluster.keys_in(slot, stage.source):
        assert by_proxy(source, stage.target, "", 0, 5000, "KEYS", *names) == b"+OK\r\n"
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert target.command("TTL", key, "m") in THOUSAND


def check_past_a_proxy(stage: Stage) -> None:
    """Deadlines come with their key, also in front of it, where the proxy of the node that sends them is passed by."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(45)
    keys = [f"{tag}{number}" for number in range(4)]
    for key in keys:
        assert source.command("SADD", key, "m") == b":1\r\n"
        assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    names = sorted(stage.cluster.keys_in(slot, stage.source, 100), key=lambda name: b":t:" not in name)
    with stage.source.connect() as straight:
        assert by_proxy(straight, stage.target, "", 0, 5000, "KEYS", *names) == b"+OK\r\n"
    stage.cluster.end_move(slot, stage.source, stage.target)
    assert all(target.command("TTL", key, "m") in THOUSAND for key in keys)


def check_a_refused_deadline(stage: Stage) -> None:
    """A first deadline that is refused while the slot is moved does not keep others from the key."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(35)
    key = f"{tag}1"
    assert source.command("SADD", key, "m") == b":1\r\n"
    stage.begin_move(slot)
    assert source.command("EXPIREMEMBER", key, "m", 1000).startswith(b"-TRYAGAIN ")
    with stage.source.through() as other:
        until(lambda: not other.command("SADD", key, "n").startswith(b"-TRYAGAIN "), 3, "a key that can be used")
        for _ in range(25):
            assert other.command("SADD", key, "n") == b":0\r\n"
            time.sleep(0.02)  # what is under test is that it stays so


def check_keys_in_two_places(stage: Stage) -> None:
    """A transaction is refused where it would be, for keys of which some are at the other node."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(37)
    here, gone = f"{tag}1", f"{tag}2"
    for key in (here, gone):
        assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("EXPIREMEMBER", here, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    migrate(source, gone, stage.target)
    for words in (
        ("SUNIONSTORE", here, gone),
        ("DEL", here, gone),
        ("SORT", gone, "ALPHA", "STORE", here),
        ("SMOVE", here, gone, "m"),
        ("ZUNIONSTORE", here, 1, gone),
    ):
        with stage.source.through() as client:
            client.send(b"".join(map(_packed, (("MULTI",), ("RPUSH", f"{tag}3", 1), words, ("EXEC",)))))
            said = client.replies(4)
            assert said[2].startswith(b"-TRYAGAIN "), (words, said)
            assert said[3].startswith(b"-EXECABORT "), (words, said)
    assert source.command("TTL", here, "m") in THOUSAND


def check_a_start_behind_the_index(stage: Stage) -> None:
    """A proxy that starts while a slot goes knows the keys that are still there, though their index has gone."""
    slot, tag = stage.slot(39)
    key = f"{tag}1"
    with stage.through(stage.source) as source:
        assert source.command("SADD", key, "m", "n") == b":2\r\n"
        for member in ("m", "n"):
            assert source.command("EXPIREMEMBER", key, member, 1000) == b":1\r\n"
    stage.begin_move(slot)
    (index,) = (name for name in stage.cluster.keys_in(slot, stage.source) if name.endswith(b"index"))
    stage.cluster.move([index], stage.source, stage.target)
    stage.source.kill_proxy()
    source = stage.through(stage.source)
    assert source.command("SREM", key, "m") == b":1\r\n"
    assert source.command("SADD", key, "m") == b":1\r\n"
    assert source.command("TTL", key, "m") == b":-1\r\n"


def check_a_slot_that_comes_again(stage: Stage) -> None:
    """What a move that was given up has left at a node is known when the slot begins to come once more."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(41)
    key = f"{tag}1"
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    for node in (stage.source, stage.target):
        assert node.command("CLUSTER", "SETSLOT", slot, "STABLE") == b"+OK\r\n"
    target = stage.through(stage.target)
    assert covered(target) == 0
    stage.cluster.begin_move(slot, stage.source, stage.target)
    until(lambda: covered(target) > 0, 5, "a key with deadlines that has been left there")
    assert asking(target, "SREM", key, "m") == b":1\r\n"
    assert asking(target, "SADD", key, "m") == b":1\r\n"
    assert asking(target, "TTL", key, "m") == b":-1\r\n"


def check_a_later_deadline(stage: Stage) -> None:
    """A deadline that is set where a key has come to does not hide an earlier one that came with it."""
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(23)
    key = f"{tag}1"
    moment = now_ms() + 1500
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    assert asking(target, "EXPIREMEMBER", key, "n", 1000) == b":1\r\n"
    assert now_ms() < moment, "this machine is too busy for this test"
    until(lambda: now_ms() > moment, 5)
    assert asking(target, "SMEMBERS", key) == b"*1\r\n$1\r\nn\r\n"


class Waiting(Relay):
    """A relay that keeps back answers by which a node sends who asks to another one, until it is told to go on."""

    def __init__(self, server: Node) -> None:
        super().__init__(server.address)
        self.waits = threading.Event()
        self.go_on = threading.Event()
        self.answers = self._pass

    def _pass(self, answer: bytes) -> bytes:
        if b"-MOVED" in answer:
            self.waits.set()
            self.go_on.wait(20)
        return answer


def check_a_slot_that_comes_under_way(stage: Stage) -> None:
    """A request that waits while its slot becomes the node's own finds nothing that is due."""
    source, relay = stage.through(stage.source), stage.stack.enter_context(Waiting(stage.target))
    target = stage.through(stage.target, url=relay.url)
    slot, tag = stage.slot(25)
    key = f"{tag}1"
    moment = now_ms() + 1000
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    until(lambda: covered(target) > 0, 5, "a key with deadlines that has come")
    until(lambda: now_ms() > moment, 5)
    relay.waits.clear()
    relay.go_on.clear()
    target.send(request("ASKING") + request("SMEMBERS", key))
    assert relay.waits.wait(20)
    stage.cluster.end_move(slot, stage.source, stage.target)
    relay.go_on.set()
    assert target.reply() == b"+OK\r\n"
    assert target.reply() == b"*1\r\n$1\r\nn\r\n"


def check_a_start_while_the_cluster_is_down(stage: Stage) -> None:
    """Deadlines that cannot be read because the cluster is down are kept as soon as it is up."""
    node, other = stage.source, stage.target
    keys = keys_in(stage.cluster.slots_of(node), 20)
    with stage.through(node) as client:
        client.send(b"".join(request("SADD", key, "m", "n") for key in keys))
        assert client.replies(len(keys)) == [b":2\r\n"] * len(keys)
        client.send(b"".join(request("EXPIREMEMBER", key, "m", 1000) for key in keys))
        assert client.replies(len(keys)) == [b":1\r\n"] * len(keys)
    node.kill_proxy()
    missing = stage.cluster.slots_of(other)[0]
    for each in stage.cluster.nodes:
        assert each.command("CLUSTER", "DELSLOTS", missing) == b"+OK\r\n"
    try:
        until(lambda: node.command("CLUSTER", "INFO").find(b"cluster_state:fail") >= 0, 10, "a cluster that is down")
        client = stage.through(node)
        assert client.command("SREM", keys[0], "m").startswith(b"-CLUSTERDOWN ")
    finally:
        assert other.command("CLUSTER", "ADDSLOTS", missing) == b"+OK\r\n"
    for key in keys:
        until(lambda key=key: client.command("SREM", key, "m") == b":1\r\n", 10, "a cluster that is up")  # type: ignore[misc]
        assert client.command("SADD", key, "m") == b":1\r\n"
    assert {client.command("TTL", key, "m") for key in keys} == {b":-1\r\n"}
    stage.cluster.until_whole()


def check_rights_while_a_slot_moves(stage: Stage) -> None:
    """Which slots a node has, and which are moved, says nothing of what a user may do."""
    for node in (stage.source, stage.target):
        # Before the proxies start: they look at the start, and then once a second.
        assert node.command("ACL", "SETUSER", "somebody", "on", ">x", "~app:*", "+get") == b"+OK\r\n"
        stage.stack.callback(node.command, "ACL", "DELUSER", "somebody")
    source, target = stage.through(stage.source), stage.through(stage.target)
    slot, tag = stage.slot(0)
    _, at_rest = stage.slot(27)
    for key in (f"{tag}1", f"{at_rest}1"):
        assert source.command("SADD", key, "m", "n") == b":2\r\n"
        assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    program = request("MULTI"), request("SREM", f"{at_rest}1", "m"), request("SADD", f"{at_rest}1", "m")
    with stage.source.through() as client:
        client.send(b"".join((*program, request("EXEC"))))
        assert client.replies(4)[3] == b"*2\r\n:1\r\n:1\r\n"
    assert source.command("TTL", f"{at_rest}1", "m") == b":-1\r\n"
    # A transaction behind an ASKING.
    until(lambda: covered(target) > 0, 5, "a key with deadlines that has come")
    with stage.target.through() as client:
        program = request("MULTI"), request("SREM", f"{tag}1", "m"), request("SADD", f"{tag}1", "m")
        client.send(b"".join((request("ASKING"), *program, request("EXEC"))))
        assert client.replies(5)[4] == b"*2\r\n:1\r\n:1\r\n"
    assert asking(target, "TTL", f"{tag}1", "m") == b":-1\r\n"


def check_arguments_that_are_no_keys(stage: Stage) -> None:
    """A transaction is not refused for keys that it only mentions, and from which something is about to go."""
    client = stage.through(stage.source)
    (_, one), (_, other) = stage.slot(29), stage.slot(31)
    assert client.command("SADD", other, "m", "n") == b":2\r\n"
    for words in (
        ("EVAL", "return 1", 1, one, other),
        ("EVAL", "return 1", 0, other),
        ("EVAL", "return 1", 1, one, keys_in(stage.cluster.slots_of(stage.target), 1)[0]),
    ):
        assert client.command("PEXPIREMEMBER", other, "m", 900) == b":1\r\n"
        client.command("PEXPIREMEMBER", words[-1], "m", 900)
        client.send(b"".join(map(_packed, (("MULTI",), ("SET", one, 1), words, ("EXEC",)))))
        assert client.replies(4)[1:] == [b"+QUEUED\r\n", b"+QUEUED\r\n", b"*2\r\n+OK\r\n:1\r\n"]


def _packed(words: tuple[str | int, ...]) -> bytes:
    return request(*words)


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


def check_requests_in_a_row(stage: Stage) -> None:
    """One whose key has gone is redirected, and none beside it, though all could go as one call."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(11)
    stays, goes = f"{tag}1", f"{tag}2"
    for key in (stays, goes):
        assert source.command("SADD", key, "m") == b":1\r\n"
        assert source.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    stage.begin_move(slot)
    migrate(source, goes, stage.target)
    numbers = count()

    def send() -> list[bytes]:
        source.send(b"".join(request("SADD", key, next(numbers)) for key in (stays, stays, goes, stays)))
        return [reply[:4] for reply in source.replies(4)]

    apart = [b":1\r\n", b":1\r\n", b"-ASK", b":1\r\n"]
    until(lambda: send() != [b"-TRY"] * 4, 5)  # as long as the proxy does not know
    assert send() == apart
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    target = stage.through(stage.target)
    assert target.command("TTL", stays, "m").startswith(b":")
    assert target.command("SCARD", goes) == b":1\r\n"


CHECKS: dict[str, Callable[[Stage], None]] = {
    "requests in a row": check_requests_in_a_row,
    "a key on its way": check_a_key_on_its_way,
    "a slot that came before": check_a_slot_that_came_before_the_proxy,
    "an index that has gone": check_an_index_that_has_gone,
    "ASKING while blind": check_asking_while_blind,
    "a takeover": check_a_takeover,
    "a proxy in the midst": check_a_proxy_in_the_midst,
    "deadlines left behind": check_leftovers,
    "a shadow ahead": check_a_shadow_ahead,
    "a copy left behind": check_a_copy_left_behind,
    "deadlines meet their name": check_deadlines_meet_their_name,
    "a key that has gone": check_a_key_that_has_gone,
    "a copy in the way": check_a_copy_in_the_way,
    "a shadow that could not come": check_a_shadow_that_could_not_come,
    "past a proxy": check_past_a_proxy,
    "a refused deadline": check_a_refused_deadline,
    "keys in two places": check_keys_in_two_places,
    "a start behind the index": check_a_start_behind_the_index,
    "a slot that comes again": check_a_slot_that_comes_again,
    "a later deadline": check_a_later_deadline,
    "a slot that comes under way": check_a_slot_that_comes_under_way,
    "a start while it is down": check_a_start_while_the_cluster_is_down,
    "rights while a slot moves": check_rights_while_a_slot_moves,
    "arguments that are no keys": check_arguments_that_are_no_keys,
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


def test_requests_in_a_row_before_a_node_that_redirects_them_as_one(
    start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Before Redis 7.0, if one of its keys has gone; so no call has several keys, as a move may just have begun."""
    one, other = (start_server(installed("redis-6.2"), "--cluster-enabled", "yes") for _ in range(2))
    assert one.command("CLUSTER", "ADDSLOTS", *range(16384)) == b"+OK\r\n"
    assert one.command("CLUSTER", "MEET", "127.0.0.1", other.port) == b"+OK\r\n"
    identity = other.command("CLUSTER", "MYID").split(b"\r\n")[1]
    until(lambda: identity in one.command("CLUSTER", "NODES"))
    until(lambda: b"cluster_state:ok" in one.command("CLUSTER", "INFO"))
    with start_proxy(one).connect() as client:
        assert client.command("SADD", "s:{t}1", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s:{t}1", "m", 1000) == b":1\r\n"
        slot = client.command("CLUSTER", "KEYSLOT", "t")[1:-2]
        assert one.command("CLUSTER", "SETSLOT", slot, "MIGRATING", identity) == b"+OK\r\n"
        client.send(b"".join(request("SADD", f"s:{{t}}{key}", member) for key, member in ("1a", "1b", "2a", "1c")))
        assert [reply[:4] for reply in client.replies(4)] == [b":1\r\n", b":1\r\n", b"-ASK", b":1\r\n"]


@pytest.mark.parametrize("tested", TESTED)
def test_wait_counts_what_went_over_shared_connections(tested: str) -> None:
    """Also where a node sends its replicas no messages, as from Redis 8.0 and Valkey 8.0 on."""
    with ExitStack() as stack:
        cluster = Cluster(tested, stack, primaries=2, proxy_options=SHARING)
        primary = cluster.primaries[0]
        replica = cluster.replica_of(primary)
        assert primary.proxy is not None
        keys = keys_in(cluster.slots_of(primary), 4)
        with primary.through() as client:
            cluster.until_replicated()
            proxy, before = primary.proxy, shared(primary.proxy)
            until(lambda: client.command("GET", keys[0]) == b"$-1\r\n" and shared(proxy) > before, what="sharing")
            assert replica.process is not None
            halt(replica.process.pid)
            try:
                before = shared(primary.proxy)
                for key in keys:
                    assert client.command("SET", key, 1) == b"+OK\r\n"
                assert shared(primary.proxy) > before
                assert client.command("WAIT", 1, 300) == b":0\r\n"
            finally:
                os.kill(replica.process.pid, signal.SIGCONT)
            assert client.command("WAIT", 1, 20_000) == b":1\r\n"
        assert primary.command("KEYS", "*wait*") == b"*0\r\n"
