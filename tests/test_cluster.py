"""Redis Cluster: a proxy beside each node, whose address the node announces; any cluster client, and any key."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import RedisCluster

from tests.cluster import SLOTS, Cluster, Node, slot_of
from tests.conftest import StartProxy, once_a_kind
from tests.libraries import run
from tests.pages import Block, page
from tests.raw import Raw, about, request
from tests.servers import KIND, KINDS, ROOT, until
from tests.test_transcripts import SCENARIOS, agree, read

TESTED: list[str] = [kind for kind in ("redis-7.0", "valkey-8.0") if kind in KINDS] or [KIND]

AWKWARD = (b"a}b", b"{}x", b"", b"\x00\xff\r\n", b"{a", b"}{", b"x{y}z{w}", b"{}{z}", b"{{a}}", b"k:{b}index")
"""Keys whose slot, or whose shadow's name, is easily got wrong."""


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Callable[[str], Cluster]]:
    yield from once_a_kind(Cluster)


@pytest.fixture
def cluster(shared_cluster: Callable[[str], Cluster]) -> Cluster:
    """Three primaries and three replicas, each with a proxy; whole and empty."""
    return shared_cluster(TESTED[0]).until_whole().flush()


@pytest.fixture(params=TESTED)
def every_cluster(request: pytest.FixtureRequest, shared_cluster: Callable[[str], Cluster]) -> Cluster:
    """The same, of each kind that is tested."""
    return shared_cluster(request.param).until_whole().flush()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def library(every_cluster: Cluster, stack: ExitStack) -> Any:
    """redis-py's cluster client, which has been told of one proxy."""
    return connected(every_cluster, stack)


def connected(cluster: Cluster, stack: ExitStack) -> Any:
    """Connect redis-py to a cluster that is told one address of it."""
    client: Any = RedisCluster(host="127.0.0.1", port=cluster.nodes[0].announced_port, decode_responses=True)
    stack.callback(client.close)
    return client


class Routed:
    """Raw connections to all primaries, each request to the node that has its key."""

    def __init__(self, cluster: Cluster, stack: ExitStack, *, straight: bool = False) -> None:
        self.nodes = cluster.primaries
        self._slots = {slot: node for node in self.nodes for slot in cluster.slots_of(node)}
        self.clients = {
            node.identity: stack.enter_context(node.connect() if straight else node.through()) for node in self.nodes
        }

    def node(self, key: str | bytes) -> Node:
        return self._slots[slot_of(key)]

    def at(self, key: str | bytes) -> Raw:
        """The connection to the node that has a key."""
        return self.clients[self.node(key).identity]

    def command(self, name: str, key: str | bytes, *args: str | bytes | int) -> bytes:
        """Send one request on a key."""
        return self.at(key).command(name, key, *args)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# The README's session.


def session(path: str = "README.md") -> tuple[list[str], list[str]]:
    """What is typed in a page's session, and what is shown for each line."""
    (block,) = (block for block in page(path).blocks if block.marker == "session")
    assert isinstance(block, Block)
    _, *exchanges = block.text.split("127.0.0.1:6380> ")
    lines, shown = zip(*(exchange.split("\n", 1) for exchange in exchanges), strict=True)
    return list(lines), list(shown)


def test_the_readmes_session_by_redis_cli(every_cluster: Cluster) -> None:
    lines, shown = session()
    done = subprocess.run(
        ["redis-cli", "-c", "--no-raw", "-p", str(every_cluster.nodes[0].announced_port)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = re.sub(r"^\(\d+\.\d\ds\)\n", "", done.stdout, flags=re.M)
    led = re.findall(r"^-> Redirected to slot \[\d+\] located at 127\.0\.0\.1:(\d+)\n", said, re.M)
    assert {int(port) for port in led} <= {node.announced_port for node in every_cluster.nodes}
    assert re.sub(r"^-> Redirected .*\n", "", said, flags=re.M) == "".join(shown)


def test_the_readmes_session_by_redis_py(library: Any) -> None:
    for line, shown in zip(*session(), strict=True):
        assert as_shown(library.execute_command(*shlex.split(line))) == shown, line


def as_shown(reply: object) -> str:
    """Show a reply as redis-cli does; GLIDE makes booleans of some."""
    if reply is None:
        return "(nil)\n"
    return f"(integer) {int(reply)}\n" if isinstance(reply, int) else f'"{reply}"\n'


def test_the_program_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    (block,) = (block for block in page("docs/cluster.md").blocks if block.language == "python")
    program = tmp_path / "program.py"
    program.write_text(block.text.replace("6380", str(cluster.nodes[0].announced_port)), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert about(done.stdout, 3600)


def test_nodes_that_announce_a_host_name(stack: ExitStack) -> None:
    """Clients are led to the proxies by name; nodes reach each other without them."""
    cluster = Cluster(TESTED[0], stack, named=True)
    lines = ["SADD cart1 a b", "EXPIREMEMBER cart1 a 100", "SADD cart2 c", "EXPIREMEMBER cart2 c 100", "TTL cart1 b"]
    done = subprocess.run(
        ["redis-cli", "-c", "--no-raw", "-p", str(cluster.nodes[0].announced_port)],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    led = re.findall(r"^-> Redirected to slot \[\d+\] located at ([\w.]+):(\d+)\n", done.stdout, re.M)
    assert {host for host, _ in led} == {"127.0.0.1"}
    assert cluster.nodes[0].command("CLUSTER", "NODES").count(b"127.0.0.2:") == len(cluster.nodes)
    assert re.findall(r"^\(integer\) (\d+)|^\(integer\) -1", done.stdout, re.M) == ["2", "1", "1", "1", ""]
    library = connected(cluster, stack)
    moment = now_ms() + 800
    for key in keys_in(range(SLOTS), 60):
        assert library.sadd(key, "gone", "stays") == 2
        assert library.execute_command("PEXPIREMEMBERAT", key, "gone", moment) == 1
    cluster.failover(cluster.replicas[0])
    until(lambda: now_ms() > moment)
    assert {library.scard(key) for key in keys_in(range(SLOTS), 60)} == {1}


@pytest.mark.parametrize("library", ["ioredis", "node-redis", "GLIDE"])
def test_the_readmes_session_by_libraries(every_cluster: Cluster, library: str, tmp_path: Path) -> None:
    lines, shown = session()
    program = ROOT / "tests" / "programs" / f"cluster_{library.lower().replace('-', '_')}.mjs"
    requests = [json.dumps(shlex.split(line)) for line in lines]
    port = every_cluster.nodes[0].announced_port
    (printed,) = run(library, program.read_text("utf-8"), tmp_path, port, *requests)
    assert [as_shown(reply) for reply in json.loads(printed)] == shown


def test_clients_learn_the_new_commands(every_cluster: Cluster) -> None:
    """redis-py refuses commands that COMMAND does not list."""
    for node in every_cluster.nodes:
        assert node.through_command("COMMAND", "GETKEYS", "EXPIREMEMBER", "k", "m", 1) == b"*1\r\n$1\r\nk\r\n"


def test_nodes_are_at_their_proxies(every_cluster: Cluster) -> None:
    node = every_cluster.nodes[0]
    told = node.through_command("CLUSTER", "NODES")
    assert told.split(b"\r\n")[1].count(b"\n") == node.command("CLUSTER", "NODES").split(b"\r\n")[1].count(b"\n")
    assert {int(port) for port in re.findall(rb"127\.0\.0\.1:(\d+)@", told)} == {
        each.announced_port for each in every_cluster.nodes
    }


# What KeyDB answered.


def tagged(tag: str, words: Sequence[str]) -> list[str]:
    """Put all keys of a recorded request into one slot."""
    name, *args = words
    match name.lower():
        case "multi" | "exec" | "dbsize" | "flushdb":
            keys = 0
        case "rename" | "copy" | "smove":
            keys = 2
        case "sunionstore" | "del" | "exists":
            keys = len(args)
        case _:
            keys = 1
    return [name, *(f"{{{tag}}}{arg}" for arg in args[:keys]), *args[keys:]]


def test_answers_as_keydb_did(every_cluster: Cluster, stack: ExitStack) -> None:
    """All that was recorded, each program in a slot of its own."""
    clients = Routed(every_cluster, stack)
    servers = Routed(every_cluster, stack, straight=True)
    for number, scenario in enumerate(SCENARIOS):
        tag = f"t{number}"
        assert servers.at(tag).command("FLUSHALL") == b"+OK\r\n"
        client = clients.at(tag)
        for place, step in enumerate(scenario["steps"]):
            if "sleep_ms" in step:
                # Part of the recording: what is under test is the time that passes.
                time.sleep(step["sleep_ms"] / 1000)
                continue
            client.send_command(*tagged(tag, step["send"]))
            reply = read(client)
            assert agree(step["match"], step["reply"], reply), f"{scenario['name']}, step {place}: {step} got {reply}"


# Requests that no cluster takes, and that a cluster answers in its own way.


def test_keys_of_several_slots_get_the_servers_own_error(cluster: Cluster, stack: ExitStack) -> None:
    node = cluster.primaries[0]
    keys: list[str] = []
    for number in range(10_000):
        key = f"key{number}"
        if cluster_slots_differ(keys, key) and slot_of(key) < SLOTS // 3:
            keys.append(key)
        if len(keys) == 3:
            break
    a, b, c = keys
    other = next(f"k{number}" for number in range(100) if slot_of(f"k{number}") > SLOTS // 2)
    through, straight = stack.enter_context(node.through()), stack.enter_context(node.connect())
    requests: list[tuple[str | int, ...]] = [
        *(("MSET", a, 1, b, 2), ("MGET", a, b), ("DEL", a, b), ("UNLINK", a, b, c), ("EXISTS", a, b), ("TOUCH", b, a)),
        *(("RENAME", a, b), ("RENAMENX", a, b), ("COPY", a, b), ("SMOVE", a, b, "m"), ("SUNION", a, b)),
        *(("SUNIONSTORE", a, b, c), ("SINTERSTORE", a, a, b), ("ZUNIONSTORE", a, 2, b, c), ("ZRANGESTORE", a, b, 0, 1)),
        *(
            ("LMOVE", a, b, "LEFT", "LEFT"),
            ("RPOPLPUSH", a, b),
            ("BLMOVE", a, b, "LEFT", "LEFT", 1),
            ("BLPOP", a, b, 1),
        ),
        *(("EVAL", "return 1", 2, a, b), ("EVAL", "return redis.call('GET', KEYS[1])", 1, other), ("PFMERGE", a, b)),
        *(("SORT", a, "STORE", b), ("GEORADIUS", a, 1, 1, 1, "m", "STORE", b), ("LMPOP", 2, a, b, "LEFT")),
        *(("SADD", other, "m"), ("HSET", other, "f", "v"), ("SMOVE", other, a, "m"), ("SUNIONSTORE", a, other)),
        *(("SELECT", 1), ("SELECT", 0), ("SWAPDB", 0, 1), ("MOVE", a, 1), ("COPY", a, f"{{{a}}}", "DB", 1)),
    ]
    for known in (False, True):
        if known:
            for key in (a, b, c):
                assert through.command("SADD", key, "m", "n") == b":2\r\n"
                assert through.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
        for words in requests:
            expected = straight.command(*words)
            assert expected.startswith((b"-CROSSSLOT", b"-MOVED", b"-ERR")) or words == ("SELECT", 0), (words, expected)
            assert through.command(*words) == expected, (known, words)
    for key in (a, b, c):
        assert about(through.command("TTL", key, "m"), 1000)


def cluster_slots_differ(keys: Sequence[str], key: str) -> bool:
    return slot_of(key) not in {slot_of(one) for one in keys}


def test_the_proxys_own_keys_are_hidden(every_cluster: Cluster, stack: ExitStack) -> None:
    clients, servers = Routed(every_cluster, stack), Routed(every_cluster, stack, straight=True)
    keys = [f"k{number}" for number in range(60)]
    for key in keys:
        assert clients.command("SADD", key, "m", "n") == b":2\r\n"
        assert clients.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    for node in clients.nodes:
        own = {key.encode() for key in keys if clients.node(key) is node}
        client = clients.clients[node.identity]
        assert client.command("DBSIZE") == b":%d\r\n" % len(own)
        assert int(servers.clients[node.identity].command("DBSIZE")[1:]) > 2 * len(own)
        assert set(re.findall(rb"\r\n(k\d+)", client.command("KEYS", "*"))) == own
        assert client.command("KEYS", "*").startswith(b"*%d\r\n" % len(own))
        assert re.fullmatch(rb"\$\d+\r\nk\d+\r\n", client.command("RANDOMKEY"))
        seen, cursor = set[bytes](), b"0"
        while True:
            words = client.command("SCAN", cursor, "COUNT", 20).split(b"\r\n")
            cursor = words[2]
            seen.update(words[5::2])
            if cursor == b"0":
                break
        assert seen - {b""} == own


def test_awkward_keys(every_cluster: Cluster, stack: ExitStack) -> None:
    clients = Routed(every_cluster, stack)
    for key in AWKWARD:
        assert clients.command("SADD", key, "m", "n", "o") == b":3\r\n"
        assert clients.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
        assert about(clients.command("TTL", key, "m"), 1000)
        assert clients.command("PEXPIREMEMBER", key, "n", 200) == b":1\r\n"
        assert clients.command("DEL", key) == b":1\r\n"
        assert clients.command("SADD", key, "m", "n") == b":2\r\n"
        assert clients.command("TTL", key, "m") == b":-1\r\n"
        assert clients.command("PEXPIREMEMBER", key, "n", 300) == b":1\r\n"
    servers = Routed(every_cluster, stack, straight=True)
    for key in AWKWARD:
        until(lambda: servers.command("SMEMBERS", key) == b"*1\r\n$1\r\nm\r\n", 3, f"an expiry in {key!r}")  # noqa: B023
        assert clients.command("PERSIST", key, "m") == b":0\r\n"


# Many slots.


def test_a_pipeline_over_many_slots_at_one_node(every_cluster: Cluster, stack: ExitStack) -> None:
    """Replies are in order, and keys of other nodes get MOVED, as of the node itself."""
    clients = Routed(every_cluster, stack)
    node = clients.nodes[1]
    client = clients.clients[node.identity]
    sent, expected = b"", list[bytes | None]()
    for number in range(100):
        key = f"key{number}"
        owner = clients.node(key)
        moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(key), owner.announced_port)
        for words, reply in (
            (("SADD", key, "m", "n"), b":2\r\n"),
            (("EXPIREMEMBER", key, "m", 1000 + number), b":1\r\n"),
            (("TTL", key, "m"), None),
            (("SCARD", key), b":2\r\n"),
            (("PERSIST", key, "n"), b":0\r\n"),
        ):
            sent += request(*words)
            expected.append(reply if owner is node else moved)
    client.send(sent)
    for place, (reply, wanted) in enumerate(zip(client.replies(len(expected)), expected, strict=True)):
        if wanted is None:
            assert about(reply, 1000 + place // 5), place
        else:
            assert reply == wanted, place


def test_a_thousand_members_over_many_slots_expire_in_time(cluster: Cluster, stack: ExitStack) -> None:
    library = connected(cluster, stack)
    names = [f"key{number}" for number in range(1000)]
    with library.pipeline() as pipe:
        for name in names:
            pipe.sadd(name, "gone", "stays")
        assert pipe.execute() == [2] * 1000
        moment = now_ms() + 3000
        for name in names:
            pipe.execute_command("PEXPIREMEMBERAT", name, "gone", moment)
        assert pipe.execute() == [1] * 1000
    assert now_ms() < moment, "this machine is too busy for this test"
    servers = Routed(cluster, stack, straight=True)

    def left() -> int:
        count = 0
        for node in servers.nodes:
            own = [name for name in names if servers.node(name) is node]
            servers.clients[node.identity].send(b"".join(request("SCARD", name) for name in own))
            replies = servers.clients[node.identity].replies(len(own))
            assert set(replies) <= {b":1\r\n", b":2\r\n"}
            count += replies.count(b":2\r\n")
        return count

    # At a moment before the deadline; looking takes some time.
    until(lambda: now_ms() >= moment - 500, 5)
    began = now_ms()
    seen, when = left(), now_ms()
    assert seen == 1000 or when >= moment
    slower = 10 * (when - began)  # than a second, on a machine that takes long to look
    until(lambda: now_ms() >= moment + 1000 + slower or not left(), 20)
    until(lambda: left() == 0, 4, "an end of the members")  # others' tests may have the machine for that long
    assert library.scard(names[0]) == 1


def test_no_member_is_read_after_its_deadline_nor_missed_before(cluster: Cluster, stack: ExitStack) -> None:
    clients = Routed(cluster, stack)
    chance = random.Random("due members")
    deadlines: dict[str, int] = {}
    for number in range(60):
        key = f"key{number}"
        assert clients.command("SADD", key, "m", "stays") == b":2\r\n"
        deadlines[key] = now_ms() + chance.randrange(600, 2500)
        assert clients.command("PEXPIREMEMBERAT", key, "m", deadlines[key]) == b":1\r\n"
    reads = 0
    while now_ms() < max(deadlines.values()) + 50:
        key = chance.choice(list(deadlines))
        sent = now_ms()
        reply = clients.command("SISMEMBER", key, "m")
        if sent > deadlines[key]:
            assert reply == b":0\r\n", (sent, deadlines[key])
        elif now_ms() < deadlines[key]:
            assert reply == b":1\r\n", (sent, deadlines[key])
        reads += 1
    assert reads > 500


def test_a_member_that_comes_back_keeps_living(cluster: Cluster, stack: ExitStack) -> None:
    clients = Routed(cluster, stack)
    names = [f"key{number}" for number in range(50)]
    moment = now_ms() + 1500
    for name in names:
        assert clients.command("HSET", name, "f", 1, "g", 1) == b":2\r\n"
        assert clients.command("PEXPIREMEMBERAT", name, "f", moment) == b":1\r\n"
        assert clients.command("HDEL", name, "f") == b":1\r\n"
        assert clients.command("HSET", name, "f", 2) == b":1\r\n"
        # And one that comes back after its deadline.
        assert clients.command("PEXPIREMEMBERAT", name, "g", moment) == b":1\r\n"
    assert now_ms() < moment, "this machine is too busy for this test"
    until(lambda: now_ms() > moment)
    for name in names:
        assert clients.command("HSET", name, "g", 2) == b":1\r\n"
        assert clients.command("TTL", name, "g") == b":-1\r\n"
    until(lambda: now_ms() > moment + 1000)
    for name in names:
        assert clients.command("HMGET", name, "f", "g") == b"*2\r\n$1\r\n2\r\n$1\r\n2\r\n"


def test_transactions(every_cluster: Cluster, stack: ExitStack) -> None:
    clients = Routed(every_cluster, stack)
    other = next(f"o{number}" for number in range(100) if clients.node(f"o{number}") is not clients.node("k"))
    client = clients.at("k")
    for _ in range(2):  # without deadlines, and with one
        assert client.command("MULTI") == b"+OK\r\n"
        for words in (
            ("SADD", "k", "a", "b"),
            ("EXPIREMEMBER", "k", "a", "1000"),
            ("SREM", "k", "b"),
            ("SCARD", "k"),
            ("PERSIST", "k", "a"),
            ("EXPIREMEMBER", "k", "a", "500"),
            ("SADD", "{k}2", "c"),
            ("EXPIREMEMBER", "{k}2", "c", "500"),
            ("DEL", "{k}2"),
        ):
            assert client.command(*words) == b"+QUEUED\r\n"
        replies = client.command("EXEC").split(b"\r\n")
        assert replies[0] == b"*9"
        assert replies[2:10] == [b":1", b":1", b":1", b":1", b":1", b":1", b":1", b":1"]
        assert about(client.command("TTL", "k", "a"), 500)
    moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(other), clients.node(other).announced_port)
    for words in (("SADD", other, "m"), ("EXPIREMEMBER", other, "m", "10")):
        assert client.command("MULTI") == b"+OK\r\n"
        assert client.command("SADD", "k", "z") == b"+QUEUED\r\n"
        assert client.command(*words) == moved
        assert client.command("EXEC").startswith(b"-EXECABORT ")
    assert client.command("SISMEMBER", "k", "z") == b":0\r\n"


# Slots that move.


def keys_in(slots: Sequence[int], count: int) -> list[str]:
    """Keys of some slots: of each slot at most one."""
    wanted, found = set(slots), dict[int, str]()
    for number in range(1_000_000):
        slot = slot_of(f"key{number}")
        if slot in wanted:
            found.setdefault(slot, f"key{number}")
        if len(found) == count:
            break
    return list(found.values())


def move_with_deadlines(cluster: Cluster, move: Callable[[Node, Node], None], keys: Sequence[str]) -> None:
    """Move slots whose keys have deadlines: these hold, and nothing of them stays behind."""
    source, target = cluster.primaries[:2]
    with source.through() as client:
        for key in keys:
            assert client.command("SADD", key, "soon", "late", "stays", "back") == b":4\r\n"
            assert client.command("EXPIREMEMBER", key, "late", 1000) == b":1\r\n"
            assert client.command("EXPIREMEMBER", key, "back", 2) == b":1\r\n"
        moment = now_ms() + 4000
        for key in keys:
            assert client.command("PEXPIREMEMBERAT", key, "soon", moment) == b":1\r\n"
    move(source, target)
    cluster.until_whole()
    with target.through() as client, source.through() as before:
        for key in keys:
            moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(key), target.announced_port)
            assert before.command("EXPIREMEMBER", key, "late", 5) == moved
            assert before.command("SADD", key, "late") == moved
            assert about(client.command("TTL", key, "late"), 1000)
            assert client.command("SREM", key, "back") in (b":1\r\n", b":0\r\n")
            assert client.command("SADD", key, "back") == b":1\r\n"
        if now_ms() < moment - 100:
            assert client.command("SISMEMBER", keys[-1], "soon") == b":1\r\n"
        until(lambda: now_ms() > moment, 5)
        for key in keys:
            assert client.command("SISMEMBER", key, "soon") == b":0\r\n"
        with target.connect() as straight:
            for key in keys:
                # Without a look at it: by the sweeper.
                until(lambda: straight.command("SCARD", key) == b":3\r\n", 2, "a sweep")  # noqa: B023
    # The indexes and shadows have gone with the slots.
    with source.connect() as straight:
        assert not any(straight.command("CLUSTER", "COUNTKEYSINSLOT", slot_of(key)) != b":0\r\n" for key in keys)


def test_deadlines_survive_a_reshard(every_cluster: Cluster) -> None:
    source, target = every_cluster.primaries[:2]
    slots = every_cluster.slots_of(source)[:100]
    keys = keys_in(slots, 30)
    move_with_deadlines(every_cluster, lambda here, there: every_cluster.reshard(slots, here, there), keys)
    every_cluster.reshard(slots, target, source)
    with source.through() as client:
        for key in keys:
            assert about(client.command("TTL", key, "late"), 1000)
            assert client.command("SISMEMBER", key, "back") == b":1\r\n"


def test_deadlines_survive_a_reshard_by_redis_cli(cluster: Cluster) -> None:
    source, target = cluster.primaries[:2]
    owned = cluster.slots_of(source)
    keys = keys_in(owned[:40], 20)

    def move(here: Node, there: Node) -> None:
        address = f"127.0.0.1:{here.announced_port}"
        command = ["redis-cli", "--cluster", "reshard", address, "--cluster-from", here.identity]
        command += ["--cluster-to", there.identity, "--cluster-slots", "40", "--cluster-yes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        cluster.until_whole()

    move_with_deadlines(cluster, move, keys)
    check = ["redis-cli", "--cluster", "check", f"127.0.0.1:{source.announced_port}"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cluster.reshard(sorted(set(owned) - set(cluster.slots_of(source))), target, source)


def test_in_the_midst_of_a_move(every_cluster: Cluster, stack: ExitStack) -> None:
    """ASK and ASKING are the nodes' own; what needs a key and its deadlines together is to be tried again."""
    source, target = every_cluster.primaries[:2]
    slot = every_cluster.slots_of(source)[3]
    (name,) = keys_in([slot], 1)
    here, there, new = f"{{{name}}}here", f"{{{name}}}there", f"{{{name}}}new"
    at_source, at_target = stack.enter_context(source.through()), stack.enter_context(target.through())
    for key in (here, there):
        assert at_source.command("SADD", key, "m", "n") == b":2\r\n"
    assert at_source.command("EXPIREMEMBER", here, "m", 1000) == b":1\r\n"
    every_cluster.begin_move(slot, source, target)
    every_cluster.move([there.encode()], source, target)
    ask = b"-ASK %d 127.0.0.1:%d\r\n" % (slot, target.announced_port)
    moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (slot, source.announced_port)
    assert at_source.command("SCARD", here) == b":2\r\n"
    for key in (there, new):
        assert at_source.command("SCARD", key) == ask
        assert at_source.command("SADD", key, "m") == ask
        assert at_target.command("SCARD", key) == moved
        assert at_target.command("SADD", key, "m") == moved
    # It concerns the next request only.
    for words, reply in (
        (("SCARD", there), b":2\r\n"),
        (("SADD", there, "o"), b":1\r\n"),
        (("SADD", new, "m"), b":1\r\n"),
        (("HGET", new, "m"), b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ):
        assert at_target.command("ASKING") == b"+OK\r\n"
        assert at_target.command(*words) == reply
        assert at_target.command(*words) == moved
    # In one go, as client libraries send it.
    at_target.send(request("ASKING") + request("SADD", new, "n") + request("SCARD", new))
    assert at_target.replies(3) == [b"+OK\r\n", b":1\r\n", moved]
    # A first deadline needs what is not there. None was set, and nothing else has happened.
    for key in (there, new):
        assert at_target.command("ASKING") == b"+OK\r\n"
        assert at_target.command("EXPIREMEMBER", key, "m", 1).startswith(b"-TRYAGAIN")
        assert at_target.command("EXPIREMEMBER", key, "m", 1) == moved
    assert at_source.command("EXPIREMEMBER", new, "m", 1)[:4] in (b"-ASK", b"-TRY")
    # All of it goes over, as what moves it is told of it.
    every_cluster.move_keys(slot, source, target)
    every_cluster.end_move(slot, source, target)
    every_cluster.until_whole()
    assert about(at_target.command("TTL", here, "m"), 1000)
    assert at_target.command("EXPIREMEMBER", new, "m", 1000) == b":1\r\n"
    assert at_target.command("SCARD", there) == b":3\r\n"
    # The proxy of the new node knows the deadlines that have come.
    assert at_target.command("SREM", here, "m") == b":1\r\n"
    assert at_target.command("SADD", here, "m") == b":1\r\n"
    assert at_target.command("TTL", here, "m") == b":-1\r\n"
    assert at_source.command("SCARD", here) == b"-MOVED %d 127.0.0.1:%d\r\n" % (slot, target.announced_port)
    every_cluster.reshard([slot], target, source)
    every_cluster.until_whole()


def test_redis_py_in_the_midst_of_a_move(every_cluster: Cluster, library: Any) -> None:
    """What is refused while a slot moves succeeds by itself when the move ends soon."""
    source, target = every_cluster.primaries[:2]
    slot = every_cluster.slots_of(source)[5]
    (name,) = keys_in([slot], 1)
    assert library.sadd(name, "m", "n") == 2
    assert library.execute_command("EXPIREMEMBER", name, "m", 1000) == 1
    every_cluster.begin_move(slot, source, target)
    assert library.sadd(f"{{{name}}}new", "m") == 1
    assert library.scard(f"{{{name}}}new") == 1
    assert library.scard(name) == 2
    every_cluster.move_keys(slot, source, target)
    assert library.scard(name) == 2
    every_cluster.end_move(slot, source, target)
    every_cluster.until_whole()
    assert library.execute_command("EXPIREMEMBER", f"{{{name}}}new", "m", 1000) == 1
    assert about(library.execute_command("TTL", name, "m"), 1000)
    every_cluster.reshard([slot], target, source)
    every_cluster.until_whole()


# Proxies that start again, and others.


def test_a_proxy_that_starts_again_reads_all_deadlines_of_its_node(cluster: Cluster, stack: ExitStack) -> None:
    node = cluster.primaries[2]
    names = keys_in(cluster.slots_of(node), 300)
    with node.through() as client:
        for name in names:
            assert client.command("ZADD", name, 1, "gone", 2, "stays") == b":2\r\n"
        moment = now_ms() + 4000
        client.send(b"".join(request("PEXPIREMEMBERAT", name, "gone", moment) for name in names))
        assert client.replies(len(names)) == [b":1\r\n"] * len(names)
        client.send(b"".join(request("EXPIREMEMBER", name, "stays", 1000) for name in names))
        assert client.replies(len(names)) == [b":1\r\n"] * len(names)
    node.kill_proxy()
    node.start_proxy()
    straight = stack.enter_context(node.connect())

    def cards() -> set[bytes]:
        straight.send(b"".join(request("ZCARD", name) for name in names))
        return set(straight.replies(len(names)))

    assert cards() == {b":2\r\n"} or now_ms() > moment
    until(lambda: now_ms() > moment, 5)
    until(lambda: cards() == {b":1\r\n"}, 2, "an expiry by the new proxy")
    with node.through() as client:
        assert about(client.command("TTL", names[7], "stays"), 1000)
        # It is known: what comes back has a life of its own.
        assert client.command("ZREM", names[7], "stays") == b":1\r\n"
        assert client.command("ZADD", names[7], 2, "stays") == b":1\r\n"
        assert client.command("TTL", names[7], "stays") == b":-1\r\n"
    cluster.until_whole()


def test_two_proxies_of_one_node(cluster: Cluster, start_proxy: StartProxy, stack: ExitStack) -> None:
    node = cluster.primaries[0]
    second = start_proxy(node)
    key, other = keys_in(cluster.slots_of(node), 2)
    with node.through() as one, second.connect() as two:
        for first, then in ((one, two), (two, one)):
            assert first.command("SADD", key, "m", "n", "o") == b":3\r\n"
            assert first.command("PEXPIREMEMBER", key, "m", 1000_000) == b":1\r\n"
            # At once the other one knows it.
            assert then.command("SREM", key, "m") == b":1\r\n"
            assert then.command("SADD", key, "m") == b":1\r\n"
            assert first.command("TTL", key, "m") == b":-1\r\n"
            moment = now_ms() + 300
            assert first.command("PEXPIREMEMBERAT", key, "n", moment) == b":1\r\n"
            until(lambda: now_ms() > moment)  # noqa: B023
            assert then.command("SMEMBERS", key).count(b"\r\nn\r\n") == 0
            assert first.command("SCARD", key) == b":2\r\n"
            assert first.command("DEL", key) == b":1\r\n"
        # Either one alone does all that there is to do.
        assert one.command("SADD", other, "m", "n") == b":2\r\n"
        assert one.command("PEXPIREMEMBER", other, "m", 800) == b":1\r\n"
    node.kill_proxy()
    try:
        until(lambda: node.command("SCARD", other) == b":1\r\n", 4, "an expiry by the second proxy")
    finally:
        node.start_proxy()
    second.stop()
    cluster.until_whole()


# Replicas.


def test_a_replica_is_read(cluster: Cluster, stack: ExitStack) -> None:
    replica = cluster.replicas[0]
    primary = cluster.primary_of(replica)
    (key,) = keys_in(cluster.slots_of(primary), 1)
    moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (slot_of(key), primary.announced_port)
    at_primary, at_replica = stack.enter_context(primary.through()), stack.enter_context(replica.through())
    assert at_primary.command("SADD", key, "gone", "stays") == b":2\r\n"
    assert at_primary.command("PEXPIREMEMBER", key, "gone", 1500) == b":1\r\n"
    assert at_primary.command("EXPIREMEMBER", key, "stays", 1000) == b":1\r\n"
    cluster.until_replicated()
    assert at_replica.command("SCARD", key) == moved
    assert at_replica.command("READONLY") == b"+OK\r\n"
    assert at_replica.command("SISMEMBER", key, "stays") == b":1\r\n"
    # What writes goes to the primary, whether its key has deadlines or not.
    for words in (("SADD", key, "x"), ("EXPIREMEMBER", key, "stays", 5), ("PERSIST", key, "stays"), ("SREM", key, "x")):
        assert at_replica.command(*words) == moved, words
    until(lambda: at_replica.command("SMEMBERS", key) == b"*1\r\n$5\r\nstays\r\n", 5, "an expiry at the replica")
    assert at_replica.command("READWRITE") == b"+OK\r\n"
    assert at_replica.command("SCARD", key) == moved
    assert about(at_primary.command("TTL", key, "stays"), 1000)


def commands(node: Node) -> int:
    """How many requests a node has run."""
    found = re.search(rb"total_commands_processed:(\d+)", node.command("INFO", "stats"))
    assert found is not None
    return int(found[1])


def test_a_proxy_of_a_replica_removes_nothing(cluster: Cluster, stack: ExitStack) -> None:
    replica = cluster.replicas[1]
    primary = cluster.primary_of(replica)
    names = keys_in(cluster.slots_of(primary), 20)
    with primary.through() as client:
        for name in names:
            assert client.command("SADD", name, "gone", "stays") == b":2\r\n"
        moment = now_ms() + 1500
        for name in names:
            assert client.command("PEXPIREMEMBERAT", name, "gone", moment) == b":1\r\n"
    cluster.until_replicated()
    # Nobody sweeps at the primary.
    primary.kill_proxy()
    try:
        straight = stack.enter_context(replica.connect())
        straight.command("READONLY")
        assert now_ms() < moment, "this machine is too busy for this test"
        with replica.through() as client:
            assert client.command("READONLY") == b"+OK\r\n"
            until(lambda: now_ms() > moment, 5)
            asked = commands(replica)
            until(lambda: now_ms() > moment + 1000, 5)
            # It does not go on looking for what it may not remove: 13 where nothing else falls into that second.
            assert commands(replica) - asked < 1000
            for name in names:
                assert client.command("SCARD", name) in (b":1\r\n", b":2\r\n")
        assert {straight.command("SCARD", name) for name in names} == {b":2\r\n"}
        assert {primary.command("SCARD", name) for name in names} == {b":2\r\n"}
    finally:
        primary.start_proxy()
    until(lambda: {primary.command("SCARD", name) for name in names} == {b":1\r\n"}, 3, "an expiry at the primary")
    cluster.until_whole()
    until(lambda: {straight.command("SCARD", name) for name in names} == {b":1\r\n"}, 3, "an expiry at the replica")


def test_proxies_end_in_order(shared_cluster: Callable[[str], Cluster]) -> None:
    """After all that: no proxy has met what it did not expect."""
    for kind in TESTED:
        for node in shared_cluster(kind).nodes:
            assert node.proxy is not None
            assert "Traceback" not in node.proxy.process.output, node.proxy.process.output[-8000:]
