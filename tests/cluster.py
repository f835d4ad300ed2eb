"""A Redis Cluster of real servers on loopback ports, with a proxy beside each node whose address the node announces."""

from __future__ import annotations

import binascii
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.raw import Address, Raw
from tests.servers import Proxy, Server, free_port, until

T = TypeVar("T")

SLOTS = 16384

NODE_TIMEOUT_MS = 2500
"""How long a node is silent before others think that it has failed: a busy machine may keep one from its work."""


def slot_of(key: str | bytes) -> int:
    """Return a key's slot, as every node counts it."""
    data = key if isinstance(key, bytes) else key.encode()
    start = data.find(b"{")
    end = data.find(b"}", start + 1) if start >= 0 else -1
    return binascii.crc_hqx(data[start + 1 : end] if end > start + 1 else data, 0) % SLOTS


@dataclass(frozen=True)
class Known:
    """What a node says of a node, or of itself.

    Attributes:
        identity: its identity.
        flags: such as ``master`` and ``fail?``.
        primary: the identity of its primary; empty for a primary.
        slots: its slots, without those that are being moved.
    """

    identity: str
    flags: frozenset[str]
    primary: str
    slots: frozenset[int]


class Node(Server):
    """A node of a cluster, and the proxy beside it once it is started.

    Args:
        kind: which kind of server.
        port: its own port; its bus has the port 10,000 higher.
        announced: the port that it tells others and clients.
        args: further arguments for it.
        host: its own address.
    """

    def __init__(self, kind: str, port: int, announced: int, *args: str, host: str = "127.0.0.1") -> None:
        self._own_port = port
        self.host = host
        self.announced: Address = ("127.0.0.1", announced)
        self.announced_port = announced
        self.proxy: Proxy | None = None
        self._proxy_args: tuple[str, ...] = ()
        options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
        options += ["--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--bind", host, "--cluster-announce-ip", host]
        options += ["--cluster-announce-port", str(announced), "--cluster-announce-bus-port", str(port + 10000)]
        options += ["--repl-diskless-sync-delay", "0", "--repl-backlog-size", "4mb"]
        super().__init__(kind, *options, *args)
        said = self.command("CLUSTER", "MYID")
        self.identity = said.split(b"\r\n")[1].decode()

    def start(self, seconds: float = 10) -> None:
        self.port = self._own_port
        super().start(seconds)

    @property
    def address(self) -> Address:
        return self.host, self.port

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether it has been started, and not stopped or killed."""
        return self.process is not None

    def start_proxy(self, *args: str, url: str = "", folder: Path | None = None) -> Proxy:
        """Start its proxy, the first time or again.

        Args:
            args: further arguments; without them those of the last time.
            url: where the node is, if not at its own address.
            folder: where the proxy's package is, if not here.
        """
        assert self.proxy is None
        self._proxy_args = args or self._proxy_args
        flags = ("--listen", f"127.0.0.1:{self.announced_port}", "--upstream", url or self.url)
        env = None if folder is None else {"PYTHONPATH": str(folder)}
        self.proxy = Proxy(*flags, *self._proxy_args, env=env, cwd=folder)
        return self.proxy

    def kill_proxy(self) -> None:
        """End its proxy with SIGKILL."""
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None

    def through(self, timeout: float = 20) -> Raw:
        """Connect to it as clients do: through its proxy, where it has one."""
        return Raw(self.announced, timeout)

    def through_command(self, *args: str | bytes | int) -> bytes:
        """Send one request as clients do and return the reply."""
        with self.through() as client:
            return client.command(*args)

    def nodes(self) -> dict[str, Known]:
        """What it knows of the nodes, by identity."""
        found = {}
        for line in self.command("CLUSTER", "NODES").split(b"\r\n", 1)[1].decode().splitlines():
            words = line.split()
            if len(words) < 8:
                continue
            slots = set[int]()
            for part in words[8:]:
                if not part.startswith("["):
                    first, _, last = part.partition("-")
                    slots.update(range(int(first), int(last or first) + 1))
            primary = "" if words[3] == "-" else words[3]
            found[words[0]] = Known(words[0], frozenset(words[2].split(",")), primary, frozenset(slots))
        return found

    @property
    def is_primary(self) -> bool:
        """Whether it says that it is one."""
        return "master" in self.nodes()[self.identity].flags


class Cluster:
    """Primaries and replicas that know each other, with all slots, and a proxy beside each.

    Args:
        kind: the kind of all nodes.
        stack: ends them.
        primaries: how many.
        replicas: how many each primary has.
        proxied: whether there are proxies; without them the nodes announce themselves.
        named: whether the nodes announce a host name, ``127.0.0.1``, instead of a port: what is at that name is the
            proxy, at the node's own port. Nodes reach each other without proxies then. From Redis 7.0 on, on Linux.
        server_options: more arguments for the nodes.
        proxy_options: more arguments for the proxies.

    Attributes:
        nodes: all of them; the first ones are made primaries.
    """

    def __init__(
        self,
        kind: str,
        stack: ExitStack,
        *,
        primaries: int = 3,
        replicas: int = 1,
        proxied: bool = True,
        named: bool = False,
        server_options: Sequence[str] = (),
        proxy_options: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.proxied = proxied
        self.named = named
        self.nodes: list[Node] = []
        self._pool = stack.enter_context(ThreadPoolExecutor(2 * primaries * (1 + replicas)))
        ports = _distinct_ports(primaries * (1 + replicas))
        options = list(server_options)
        if named:
            options += ["--cluster-announce-hostname", "127.0.0.1", "--cluster-preferred-endpoint-type", "hostname"]
        host = "127.0.0.2" if named else "127.0.0.1"

        def start(pair: tuple[int, int]) -> Node:
            own, beside = pair
            node = Node(kind, own, beside if proxied and not named else own, *options, host=host)
            stack.callback(node.close)
            stack.callback(node.kill_proxy)
            return node

        self.nodes += self._pool.map(start, ports)
        if proxied:
            starting = self._pool.submit(self._start_proxies, proxy_options)
        self._introduce(primaries)
        if proxied:
            starting.result()
        self.until_whole()

    def _start_proxies(self, options: Sequence[str]) -> None:
        # The first one alone: with it starts the process from which all are forked.
        first, *others = self.nodes
        first.start_proxy(*options)
        list(self._pool.map(lambda node: node.start_proxy(*options), others))

    def _introduce(self, primaries: int) -> None:
        """Give out the slots, and let all nodes meet."""
        share = SLOTS // primaries
        for number, node in enumerate(self.nodes):
            assert node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1) == b"+OK\r\n"
            if number < primaries:
                first = number * share
                last = first + share - 1 if number < primaries - 1 else SLOTS - 1
                if node.version >= (7,):
                    given = node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
                else:
                    given = node.command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
                assert given == b"+OK\r\n", given
            # Everybody everybody: gossip would take seconds.
            for other in self.nodes[:number]:
                node.command("CLUSTER", "MEET", other.host, other.announced_port, other.port + 10000)
        for number, node in enumerate(self.nodes[primaries:]):
            of = self.nodes[number % primaries].identity
            until(
                lambda: node.command("CLUSTER", "REPLICATE", of) == b"+OK\r\n",  # noqa: B023
                what="an acquaintance of nodes",
            )

    # What it is made of.

    @property
    def alive(self) -> list[Node]:
        """The nodes that run."""
        return [node for node in self.nodes if node.alive]

    @property
    def primaries(self) -> list[Node]:
        """The nodes that have slots now, the one with the lowest first."""
        view = self._view()
        found = [node for node in self.alive if view[node.identity].slots]
        return sorted(found, key=lambda node: min(view[node.identity].slots))

    @property
    def replicas(self) -> list[Node]:
        """The nodes that are replicas now."""
        view = self._view()
        return [node for node in self.alive if view[node.identity].primary]

    def replica_of(self, primary: Node) -> Node:
        """A replica of a primary that runs."""
        view = self._view()
        return next(node for node in self.alive if view[node.identity].primary == primary.identity)

    def primary_of(self, replica: Node) -> Node:
        """The primary that a replica has now."""
        return self.node(self._view()[replica.identity].primary)

    def node(self, identity: str) -> Node:
        return next(node for node in self.nodes if node.identity == identity)

    def owner(self, slot: int) -> Node:
        """The node that has a slot now."""
        view = self._view()
        return next(node for node in self.nodes if slot in view[node.identity].slots)

    def owner_of(self, key: str | bytes) -> Node:
        """The node that has a key's slot now."""
        return self.owner(slot_of(key))

    def slots_of(self, node: Node) -> list[int]:
        """The slots that a node has now."""
        return sorted(self._view()[node.identity].slots)

    def _view(self) -> dict[str, Known]:
        return self.alive[0].nodes()

    # Whether it is whole.

    def until_whole(self, timeout: float = 30, again: Callable[[], None] = lambda: None) -> Cluster:
        """Wait until all nodes that run agree, serve, and replicate.

        `again`: done before each look.
        """
        reason = "nothing was seen"

        def is_whole() -> bool:
            nonlocal reason
            again()
            try:
                reason = self._trouble()
            except (OSError, KeyError) as error:
                reason = repr(error)
            return not reason

        until(is_whole, timeout, lambda: f"a whole cluster ({reason})")
        return self

    def _trouble(self) -> str:
        """What keeps it from being whole; empty if nothing does."""
        views = []
        running = {node.identity for node in self.alive}
        for node in self.alive:
            if b"cluster_state:ok" not in node.command("CLUSTER", "INFO"):
                return f"{node.port} does not serve"
            nodes = node.nodes()
            if len(nodes) != len(self.nodes):
                return f"{node.port} knows {len(nodes)} nodes"
            for identity in running:
                known = nodes[identity]
                if known.flags & {"fail", "fail?", "handshake", "noaddr"}:
                    return f"{node.port} thinks that {self.node(identity).port} has {','.join(known.flags)}"
            views.append({identity: (nodes[identity].primary, nodes[identity].slots) for identity in running})
            if sum(len(known.slots) for identity, known in nodes.items() if identity in running) != SLOTS:
                return f"{node.port} knows nobody for some slots"
        if any(view != views[0] for view in views):
            return "nodes disagree"
        for node in self.alive:
            of = views[0][node.identity][0]
            if not of:
                continue
            info = node.command("INFO", "replication")
            if b"role:slave" not in info or b"master_link_status:up" not in info:
                return f"{node.port} does not replicate"
            port = self.node(of).announced_port
            if b"master_port:%d\r" % port not in info:
                return f"{node.port} replicates another than {port}"
        return ""

    def until_replicated(self, timeout: float = 20) -> None:
        """Wait until the replicas have all that their primaries have now."""
        for replica in self.replicas:
            wanted = _number(rb"master_repl_offset:(\d+)", self.primary_of(replica).command("INFO", "replication"))
            until(
                lambda: (
                    _number(rb"slave_repl_offset:(\d+)", replica.command("INFO", "replication")) >= wanted  # noqa: B023
                ),
                timeout,
                "an offset of a replica",
            )

    def flush(self) -> Cluster:
        """Remove all data, of replicas too."""
        for node in self.primaries:
            node.flush()
        self.until_replicated()
        return self

    # What happens to it.

    def reshard(self, slots: Iterable[int], source: Node, target: Node, batch: int = 10) -> None:
        """Move slots with all their keys, as redis-cli does it.

        It goes to the ports that the nodes announce, and so through the proxies; where they announce host names it goes
        to their addresses, past the proxies.

        Args:
            slots: which.
            source: who has them.
            target: who gets them.
            batch: how many keys a MIGRATE takes at most.
        """
        with ExitStack() as stack:
            clients = {node.identity: stack.enter_context(self._connect(node)) for node in self.alive}
            for slot in slots:
                self.begin_move(slot, source, target, clients)
                self.move_keys(slot, source, target, batch, clients)
                self.end_move(slot, source, target, clients)

    def begin_move(self, slot: int, source: Node, target: Node, clients: dict[str, Raw] | None = None) -> None:
        """Have a slot between two nodes: its keys are still where they were."""
        self._tell(target, ("CLUSTER", "SETSLOT", slot, "IMPORTING", source.identity), clients)
        self._tell(source, ("CLUSTER", "SETSLOT", slot, "MIGRATING", target.identity), clients)

    def move_keys(
        self, slot: int, source: Node, target: Node, batch: int = 10, clients: dict[str, Raw] | None = None
    ) -> None:
        """Move the keys of a slot that is between two nodes."""
        while keys := self.keys_in(slot, source, batch, clients):
            self.move(keys, source, target, clients)

    def keys_in(self, slot: int, node: Node, count: int = 10, clients: dict[str, Raw] | None = None) -> list[bytes]:
        """Some keys of a slot, as who moves them is told of them."""
        reply = self._ask(node, ("CLUSTER", "GETKEYSINSLOT", slot, count), clients)
        assert reply.startswith(b"*"), reply
        return _bulks(reply)

    def move(self, keys: Sequence[bytes], source: Node, target: Node, clients: dict[str, Raw] | None = None) -> None:
        """Move keys of a slot that is between two nodes."""
        reply = self._ask(source, ("MIGRATE", target.host, target.announced_port, "", 0, 10000, "KEYS", *keys), clients)
        # All of them may have expired meanwhile.
        assert reply in (b"+OK\r\n", b"+NOKEY\r\n"), reply

    def end_move(self, slot: int, source: Node, target: Node, clients: dict[str, Raw] | None = None) -> None:
        """Give a slot to its new node, which has all of its keys: that node first, or nobody would have it."""
        others = [node for node in self.primaries if node not in (source, target)]
        for node in (target, source, *others):
            self._tell(node, ("CLUSTER", "SETSLOT", slot, "NODE", target.identity), clients)

    def _tell(self, node: Node, words: tuple[str | int, ...], clients: dict[str, Raw] | None) -> None:
        reply = self._ask(node, words, clients)
        assert reply == b"+OK\r\n", (words, reply)

    def _ask(self, node: Node, words: Sequence[str | bytes | int], clients: dict[str, Raw] | None) -> bytes:
        if clients is not None:
            return clients[node.identity].command(*words)
        with self._connect(node) as client:
            return client.command(*words)

    def _connect(self, node: Node) -> Raw:
        return node.connect() if self.named else node.through()

    def failover(self, replica: Node) -> None:
        """Have a replica take the place of its primary, which is alive, and wait until all agree."""
        until(lambda: self._took_over(replica), 40, "a failover")
        self.until_whole()

    @staticmethod
    def _took_over(replica: Node) -> bool:
        """Ask a replica to take over, once; return whether it has in the time that it tries."""
        reply = replica.command("CLUSTER", "FAILOVER")
        if reply != b"+OK\r\n":
            return replica.is_primary
        end = time.monotonic() + 6  # a manual failover is given up after 5 s
        while time.monotonic() < end:
            if replica.is_primary:
                return True
            time.sleep(0.01)
        return False

    def kill(self, node: Node) -> None:
        """Kill a node at once; its proxy stays."""
        node.stop(signal.SIGKILL)

    def restart(self, node: Node) -> None:
        """Start a node that was killed or stopped."""
        node.start()


def _distinct_ports(count: int) -> list[tuple[int, int]]:
    """Ports of nodes and of what is beside them: none is in use, and each is there once, with those of buses."""
    taken = set[int]()

    def take(*, with_bus: bool) -> int:
        while True:
            port = free_port(with_bus=with_bus)
            wanted = {port, port + 10000} if with_bus else {port}
            if not wanted & taken:
                taken.update(wanted)
                return port

    return [(take(with_bus=True), take(with_bus=False)) for _ in range(count)]


def _number(pattern: bytes, text: bytes) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else -1


def _bulks(reply: bytes) -> list[bytes]:
    """The elements of an array of bulk strings."""
    _, _, rest = reply.partition(b"\r\n")
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size[1:])
        found.append(rest[:length])
        rest = rest[length + 2 :]
    return found
