"""A cluster under load while slots move, a primary gives way, and a primary dies.

What clients were told goes into a journal, from which a model tells what may be there. Nothing acknowledged is lost
but what the server itself had not replicated, nothing is removed early, and nothing is there late.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from tests.cluster import Cluster, Node, slot_of
from tests.conftest import once_a_kind
from tests.raw import Raw
from tests.servers import KIND, KINDS, until

TESTED: list[str] = [kind for kind in ("redis-7.0", "valkey-8.0") if kind in KINDS] or [KIND]

WHOLE_MS = 2000
"""How long after the cluster is whole, or after its deadline, a member may still be there."""

CLOCK_MS = 3
"""By how much the moments of a journal and of the server may differ: both are of this machine."""

BUSY_MS = 150
"""How late a read may be while nothing happens to the cluster: two cores run all of it."""

CLIENTS = 4
KEYS = 24
MEMBERS = ("a", "b", "c")


def now_ms() -> float:
    return time.time() * 1000


# The journal, and what follows from it.


@dataclass(frozen=True)
class Operation:
    """What a client asked about one member, and what it was told.

    Attributes:
        name: ``add``, ``remove``, ``until`` (a deadline), or ``look``.
        deadline: the one that it set, in Unix ms; 0 for others.
        sent: when, in Unix ms.
        answered: when it was told, or gave up.
        reply: 1 or 0; None if nobody knows whether it has been done.
    """

    name: str
    deadline: int
    sent: float
    answered: float
    reply: int | None


State = tuple[bool, int]
"""Whether a member is there, and its deadline; 0 if it has none."""

ABSENT: State = (False, 0)


@dataclass(frozen=True)
class Loss:
    """What a server that died may have taken with it.

    Attributes:
        replicated: what was acknowledged before this moment is not lost.
        died: when.
    """

    replicated: float
    died: float


@dataclass
class Verdict:
    """What is wrong with a journal.

    Attributes:
        missing: members that were not there although they should have been, in words.
        late: reads of members that should not have been there: when each was sent, and how late.
        doubtful: of how many members more than one state is possible in the end.
    """

    missing: list[str] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)
    doubtful: int = 0


def passing(state: State, sent: float, answered: float) -> set[State]:
    """Return what may have become of a state by the time between two moments."""
    there, deadline = state
    if not there or not deadline or answered < deadline - CLOCK_MS:
        return {state}
    return {ABSENT} if sent > deadline + CLOCK_MS else {state, ABSENT}


def after(state: State, operation: Operation) -> State:
    """Return what an operation makes of a state."""
    there, deadline = state
    match operation.name:
        case "add":
            return (True, deadline if there else 0)
        case "remove":
            return ABSENT
        case "until":
            return (True, operation.deadline) if there else ABSENT
    return state


def replied(state: State, operation: Operation) -> int:
    """Return what an operation answers in a state."""
    return int(not state[0]) if operation.name == "add" else int(state[0])


def outcome(operations: Sequence[Operation], loss: Loss | None, verdict: Verdict, member: str) -> set[State]:
    """Return the states of a member that its operations, one after the other, can have led to.

    Args:
        operations: what was done with it.
        loss: what its server may have taken with it.
        verdict: what is wrong is added to it.
        member: what it is called there.
    """
    states: set[State] = {ABSENT}
    history: list[tuple[float, set[State]]] = [(0, states)]
    for operation in operations:
        if loss is not None and operation.sent > loss.died:
            states, loss = _lossy(history, loss), None
        before = {then for state in states for then in passing(state, operation.sent, operation.answered)}
        if operation.reply is None:
            # What is due may have gone or not: who comes next may find it there, late.
            states = states | {after(state, operation) for state in before}
        else:
            fitting = {state for state in before if replied(state, operation) == operation.reply}
            if not fitting:
                was_late = _blame(operation, states, before, verdict, member)
                if operation.name == "look":
                    # Who looks again may find it again.
                    fitting = states if was_late else before
                else:
                    # A member that was there late may have got a deadline.
                    fitting = {(True, 0)} if was_late and operation.name == "until" else before
            states = {after(state, operation) for state in fitting}
        history.append((operation.answered, states))
    return states if loss is None else _lossy(history, loss)


def _lossy(history: Iterable[tuple[float, set[State]]], loss: Loss) -> set[State]:
    """What may be left: what the replica had, which is all up to some operation."""
    kept: set[State] = set()
    for answered, states in history:
        if answered < loss.replicated:
            kept = set(states)
        else:
            kept |= states
    return kept


def _blame(operation: Operation, states: set[State], before: set[State], verdict: Verdict, member: str) -> bool:
    """Say what is wrong; return whether a member was only there late."""
    deadlines = [deadline for there, deadline in states if there]
    if before == {ABSENT} and deadlines:
        verdict.late.append((operation.sent, operation.sent - max(deadlines)))
        return True
    verdict.missing.append(f"{member}, at {operation.sent:.0f}: {operation}, possible: {before}")
    return False


# Clients.


class Commands:
    """How a type of key does what the journal knows."""

    def __init__(self, add: str, remove: str, look: str, every: tuple[str, ...], value: tuple[str, ...] = ()) -> None:
        self.add = add
        self.remove = remove
        self.look = look
        self.every = every
        self._value = value

    def words(self, name: str, key: str, member: str, deadline: int) -> tuple[str | int, ...]:
        match name:
            case "until":
                return ("PEXPIREMEMBERAT", key, member, deadline)
            case "remove":
                return (self.remove, key, member)
            case "look":
                return (self.look, key, member)
        if self.add == "ZADD":
            return (self.add, key, *self._value, member)
        return (self.add, key, member, *self._value)


TYPES = {
    "set": Commands("SADD", "SREM", "SISMEMBER", ("SMEMBERS",)),
    "hash": Commands("HSET", "HDEL", "HEXISTS", ("HKEYS",), ("v",)),
    "zset": Commands("ZADD", "ZREM", "ZSCORE", ("ZRANGE", "0", "-1"), ("1",)),
}


def commands_of(key: str) -> Commands:
    return TYPES[key.partition(":")[0]]


class Client:
    """Works on keys of its own, one request after the other, and keeps the journal.

    Args:
        cluster: where.
        keys: of them.
        seed: of its choices.
    """

    def __init__(self, cluster: Cluster, keys: Sequence[str], seed: str) -> None:
        self.keys = keys
        self.journal: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
        self.errors: list[tuple[float, str]] = []
        self._chance = random.Random(seed)
        self._views: dict[tuple[str, str], State | None] = {}
        self._library: Any = RedisCluster(
            host="127.0.0.1",
            port=cluster.alive[0].announced_port,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=20,
            decode_responses=True,
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End it, and wait until it has."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a client waits for ever"
        self._library.close()
        if self._failed is not None:
            raise self._failed

    def is_served(self, slots: set[int], since: float) -> bool:
        """Whether it has been answered by who has these slots."""
        return any(
            operations[-1].sent > since and operations[-1].reply is not None
            for (key, _), operations in list(self.journal.items())
            if slot_of(key) in slots and operations
        )

    @property
    def failed(self) -> bool:
        """Whether it has ended by an exception, which `end` raises."""
        return self._failed is not None

    @property
    def acknowledged(self) -> int:
        return sum(operation.reply is not None for each in list(self.journal.values()) for operation in each)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._step(self._chance.choice(self.keys), self._chance.choice(MEMBERS))
                self._ended.wait(0.002)
        except BaseException as error:  # noqa: BLE001 (told in the test's own thread)
            self._failed = error

    def _step(self, key: str, member: str) -> None:
        view = self._views.get((key, member), ABSENT)
        name = self._choice(view)
        deadline = 0
        if name == "until":
            # A short one, or one that must not be lost.
            short = self._chance.random() < 0.6
            deadline = int(now_ms()) + (self._chance.randint(250, 2500) if short else 3_600_000)
        sent = now_ms()
        reply: int | None = None
        try:
            said = self._library.execute_command(*commands_of(key).words(name, key, member, deadline))
            reply = int(said is not None) if commands_of(key).look == "ZSCORE" and name == "look" else int(said)
        except (OSError, redis.RedisError) as error:
            self.errors.append((sent, f"{type(error).__name__}: {error}"))
            self._ended.wait(0.02)
        operation = Operation(name, deadline, sent, now_ms(), reply)
        self.journal[key, member].append(operation)
        if reply is None:
            self._views[key, member] = None
        elif view is not None:
            self._views[key, member] = after(view, operation)
        elif name == "remove":
            self._views[key, member] = ABSENT

    def _choice(self, view: State | None) -> str:
        """Choose what to do with a member; near its deadline only a look says something."""
        if view is None:
            return "remove"
        there, deadline = view
        left = deadline - now_ms()
        if not there:
            return self._chance.choice(("add", "add", "add", "look"))
        if deadline and left < -5:
            return self._chance.choice(("add", "look", "look"))
        if deadline and left < 60:
            return "look"
        return self._chance.choice(("until", "until", "look", "look", "add", "remove"))


def keys_for(name: str, number: int, slots: Sequence[int], chance: random.Random) -> list[str]:
    """Keys of one client: half of them in some slots."""
    wanted, inside, outside = set(slots), list[str](), list[str]()
    place = 0
    while min(len(inside), len(outside)) < KEYS // 2:
        place += 1
        key = f"{list(TYPES)[chance.randrange(3)]}:{name}/{number}:{place}"
        (inside if slot_of(key) in wanted else outside).append(key)
    return inside[: KEYS // 2] + outside[: KEYS // 2]


class Load:
    """Clients at work on a cluster, and what is to be said of it afterwards.

    Args:
        cluster: empty.
        slots: those that something happens to: half of the keys are in them.
        seed: of all choices.
    """

    def __init__(self, cluster: Cluster, slots: Sequence[int], seed: str) -> None:
        self.cluster = cluster
        self.seed = seed
        chance = random.Random(seed)
        self.clients = [
            Client(cluster, keys_for(self.seed, number, slots, chance), f"{seed}/{number}") for number in range(CLIENTS)
        ]

    def __enter__(self) -> Load:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        # After a failure: who goes on would disturb the next test.
        for client in self.clients:
            client.end()

    def until_busy(self, count: int) -> None:
        """Wait until so many requests more have been acknowledged."""
        enough = self.acknowledged + count
        until(
            lambda: self.acknowledged >= enough or any(client.failed for client in self.clients),
            60,
            lambda: f"a load ({self.acknowledged} of {enough}; {Counter(text for _, text in self.errors[-50:])})",
        )

    def until_served(self, slots: Iterable[int]) -> None:
        """Wait until every client, from now on, has been answered by who has these slots."""
        wanted, begun = set(slots), now_ms()

        def served() -> bool:
            return all(client.is_served(wanted, begun) for client in self.clients)

        until(served, 20, lambda: f"an answer to every client ({Counter(text for _, text in self.errors[-50:])})")

    @property
    def acknowledged(self) -> int:
        return sum(client.acknowledged for client in self.clients)

    def end(self) -> None:
        for client in self.clients:
            client.end()

    @property
    def errors(self) -> list[tuple[float, str]]:
        return [error for client in self.clients for error in client.errors]

    def check(self, what: str, begun: float, whole: float, loss: tuple[Loss, Callable[[str], bool]] | None) -> None:
        """See what has become of the data, after the end.

        Args:
            what: has happened.
            begun: when it began to.
            whole: when the cluster was whole again.
            loss: what a dead server may have taken with it, and of which keys.
        """
        verdict, without_loss = Verdict(), Verdict()
        states: dict[tuple[str, str], set[State]] = {}
        for client in self.clients:
            for (key, member), operations in client.journal.items():
                losing = loss[0] if loss is not None and loss[1](key) else None
                states[key, member] = outcome(operations, losing, verdict, f"{key} {member}")
                outcome(operations, None, without_loss, f"{key} {member}")
        # What was due before the cluster was whole is gone 2 s later, and what is due afterwards 2 s later than that.
        passed = max((deadline for each in states.values() for _, deadline in each if deadline < now_ms() + 60_000))
        for moment in (whole + WHOLE_MS, passed + WHOLE_MS):
            until(lambda: now_ms() >= moment, 10)  # noqa: B023
            self._look(states, moment - WHOLE_MS, verdict)
        verdict.doubtful = sum(len(each) > 1 for each in states.values())
        unsettled = [late for sent, late in verdict.late if begun <= sent <= whole + WHOLE_MS]
        settled = [late for sent, late in verdict.late if not begun <= sent <= whole + WHOLE_MS]
        told = Counter(f"{text[:90]}" for _, text in self.errors)
        print(
            f"{self.cluster.kind}, {what}: {self.acknowledged} acknowledged, {len(self.errors)} not,"
            f" {len(without_loss.missing)} lost,"
            f" whole after {(whole - begun) / 1000:.2f} s; {len(states)} members, {verdict.doubtful} in doubt;"
            f" late reads: {len(settled)} before (by {max(settled, default=0):.0f} ms),"
            f" {len(unsettled)} meanwhile (by {max(unsettled, default=0):.0f} ms)"
        )
        for text, count in told.most_common(8):
            print(f"  {count} times {text}")
        if verdict.missing:
            key, member = verdict.missing[0].removeprefix("in the end ").replace(",", "").split()[:2]
            journal = next(client.journal[key, member] for client in self.clients if (key, member) in client.journal)
            pytest.fail("\n".join([*verdict.missing[:20], f"All of {key} {member}:", *map(str, journal)]))
        assert max(settled, default=0) < BUSY_MS
        for node in self.cluster.nodes:
            assert node.proxy is None or "Traceback" not in node.proxy.process.output, node.proxy.process.output[-8000:]

    def _look(self, states: dict[tuple[str, str], set[State]], until_: float, verdict: Verdict) -> None:
        """Compare the servers' own data, and the deadlines as proxies tell them, with what may be there."""
        with ExitStack() as stack:
            straight = Asked(self.cluster, stack, straight=True)
            through = Asked(self.cluster, stack)
            for key in {key for key, _ in states}:
                command, *rest = commands_of(key).every
                begun = now_ms()
                there = set(straight.members(command, key, *rest))
                for member in MEMBERS:
                    possible = states.get((key, member), {ABSENT})
                    present = member.encode() in there
                    if not any(_may_be(state, begun, now_ms(), until_, present=present) for state in possible):
                        verdict.missing.append(f"in the end {key} {member} is there: {present}; possible: {possible}")
                    elif present:
                        _check_left(key, member, possible, through, verdict)


def _may_be(state: State, begun: float, ended: float, until_: float, *, present: bool) -> bool:
    """Whether a member in a state may be seen, or not seen, in the server between two moments.

    Args:
        state: which.
        begun: when the look began.
        ended: when it ended.
        until_: what was due by then has gone.
        present: whether it is seen.
    """
    there, deadline = state
    if present:
        return there and (not deadline or deadline > until_)
    return not there or bool(deadline and ended >= deadline - CLOCK_MS)


def _check_left(key: str, member: str, possible: set[State], through: Asked, verdict: Verdict) -> None:
    """A member that is there has one of the deadlines that it may have."""
    begun = now_ms()
    left = int(through.command("PTTL", key, member)[1:-2])
    ended = now_ms()
    if any(
        there
        and (
            left == -1
            if not deadline
            else deadline - ended - CLOCK_MS <= left <= deadline - begun + CLOCK_MS or deadline <= ended + CLOCK_MS
        )
        for there, deadline in possible
    ):
        return
    verdict.missing.append(f"in the end {key} {member} has {left} ms left; possible: {possible} at {ended:.0f}")


class Asked:
    """Connections to all primaries, straight or through their proxies."""

    def __init__(self, cluster: Cluster, stack: ExitStack, *, straight: bool = False) -> None:
        self._slots: dict[int, Raw] = {}
        for node in cluster.primaries:
            client = stack.enter_context(node.connect() if straight else node.through())
            self._slots.update(dict.fromkeys(cluster.slots_of(node), client))

    def command(self, name: str, key: str, *args: str) -> bytes:
        reply = self._slots[slot_of(key)].command(name, key, *args)
        assert not reply.startswith(b"-"), (name, key, reply)
        return reply

    def members(self, name: str, key: str, *args: str) -> list[bytes]:
        return self.command(name, key, *args).split(b"\r\n")[2::2]


# What happens to it.


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


def check_reshard(cluster: Cluster, seed: str, seconds: float) -> None:
    """Have a range of slots moved there and back under load."""
    source, target = cluster.primaries[:2]
    slots = cluster.slots_of(source)[100:124]
    with Load(cluster, slots, seed) as load:
        load.until_busy(500)
        begun = now_ms()
        moves = 0
        while now_ms() < begun + seconds * 1000 or moves % 2:
            here, there = (target, source) if moves % 2 else (source, target)
            cluster.reshard(slots, here, there, batch=1)
            moves += 1
            load.until_busy(200)
        cluster.until_whole()
        whole = now_ms()
        load.end()
        load.check(f"{len(slots)} slots moved {moves} times", begun, whole, None)
        # A slot that is between two nodes refuses what needs a key and its deadlines together: nothing else fails.
        assert all("TTL exhausted" in text for _, text in load.errors), load.errors[:5]


def check_failover(cluster: Cluster, seed: str) -> None:
    """Have a replica take over under load: the old primary hands over all that it has."""
    old = cluster.primaries[1]
    slots = cluster.slots_of(old)
    with Load(cluster, slots, seed) as load:
        load.until_busy(1500)
        begun = now_ms()
        cluster.failover(cluster.replica_of(old))
        whole = now_ms()
        load.until_served(slots)
        load.until_busy(600)
        load.end()
        load.check("a failover", begun, whole, None)


def check_death(cluster: Cluster, seed: str) -> None:
    """Kill a primary under load: what its replica had is kept."""
    old = cluster.primaries[2]
    replica = cluster.replica_of(old)
    slots = set(cluster.slots_of(old))
    with Load(cluster, sorted(slots), seed) as load:
        with Offsets(old) as offsets:
            load.until_busy(1500)
            begun = now_ms()
            cluster.kill(old)
            # All that it has sent has come when the link is down.
            info = until(lambda: _when_down(replica), 10, "an end of replication")
            loss = Loss(offsets.moment(number_of(info, "slave_repl_offset")), now_ms())
        try:
            cluster.until_whole()
            whole = now_ms()
            load.until_served(slots)
            load.until_busy(600)
            load.end()
            unsure = max(0.0, begun - loss.replicated)
            print(f"replicated: all that was acknowledged until {unsure:.0f} ms before the kill")
            assert unsure < 2000
            load.check("a primary killed", begun, whole, (loss, lambda key: slot_of(key) in slots))
        finally:
            cluster.restart(old)
            cluster.until_whole()


def _when_down(replica: Node) -> bytes:
    info = replica.command("INFO", "replication")
    return info if b"master_link_status:down" in info or b"role:master" in info else b""


def number_of(info: bytes, name: str) -> int:
    (line,) = (line for line in info.split(b"\r\n") if line.startswith(name.encode() + b":"))
    return int(line.partition(b":")[2])


class Offsets:
    """Notes how far a primary's stream of replication is, again and again."""

    def __init__(self, primary: Node) -> None:
        self._client = primary.connect()
        self._samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Offsets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._client.close()

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            sent = now_ms()
            try:
                info = self._client.command("INFO", "replication")
            except OSError:
                return
            self._samples.append((sent, number_of(info, "master_repl_offset")))

    def moment(self, offset: int) -> float:
        """Return a moment: whatever was acknowledged before it is within an offset."""
        return max(sent for sent, at in self._samples if at <= offset)


def test_slots_move_there_and_back_under_load(cluster: Cluster) -> None:
    check_reshard(cluster, "reshard", 6)


def test_a_failover_under_load(cluster: Cluster) -> None:
    check_failover(cluster, "failover")


def test_a_primary_dies_under_load(cluster: Cluster) -> None:
    check_death(cluster, "death")


@pytest.mark.long
def test_slots_move_under_load_for_long(every_cluster: Cluster) -> None:
    for number in range(3):
        check_reshard(every_cluster.flush(), f"reshard-{number}", 60)


@pytest.mark.long
@pytest.mark.parametrize("tested", TESTED)
def test_slots_move_past_the_proxies_under_load(tested: str) -> None:
    """Where nodes announce host names, redis-cli moves slots from node to node itself."""
    with ExitStack() as stack:
        check_reshard(Cluster(tested, stack, named=True), "past", 60)


@pytest.mark.long
def test_ten_failovers_under_load(every_cluster: Cluster) -> None:
    for number in range(10):
        check_failover(every_cluster.until_whole().flush(), f"failover-{number}")


@pytest.mark.long
def test_ten_primaries_die_under_load(every_cluster: Cluster) -> None:
    for number in range(10):
        check_death(every_cluster.until_whole().flush(), f"death-{number}")


# The model notices what would be wrong.


def operation(name: str, at: float, reply: int | None, deadline: int = 0) -> Operation:
    return Operation(name, deadline, at, at + 1, reply)


def judged(*operations: Operation, loss: Loss | None = None) -> tuple[set[State], int, int]:
    verdict = Verdict()
    states = outcome(operations, loss, verdict, "m")
    return states, len(verdict.missing), len(verdict.late)


def test_a_journal_without_fault() -> None:
    add, until_ = operation("add", 100, 1), operation("until", 200, 1, 1000)
    assert judged(add, until_, operation("look", 500, 1), operation("look", 1100, 0)) == ({ABSENT}, 0, 0)
    assert judged(add, until_, operation("add", 1100, 1), operation("look", 9000, 1)) == ({(True, 0)}, 0, 0)
    assert judged(add, until_, operation("remove", 500, 1), operation("add", 600, 1)) == ({(True, 0)}, 0, 0)
    assert judged(add, until_, operation("add", 500, 0)) == ({(True, 1000)}, 0, 0)
    # Nobody knows.
    assert judged(add, operation("until", 200, None, 1000)) == ({(True, 0), (True, 1000)}, 0, 0)
    assert judged(add, operation("until", 200, None, 1000), operation("look", 1100, 0)) == ({ABSENT}, 0, 0)
    assert judged(add, until_, operation("look", 999.5, 0)) == ({ABSENT}, 0, 0)


def test_a_journal_with_a_fault() -> None:
    add, until_ = operation("add", 100, 1), operation("until", 200, 1, 1000)
    assert judged(add, until_, operation("look", 500, 0))[1:] == (1, 0)  # early
    assert judged(add, operation("look", 500, 0))[1:] == (1, 0)  # lost
    assert judged(add, until_, operation("add", 1100, 1), operation("look", 1200, 0))[1:] == (1, 0)  # not its own life
    assert judged(add, until_, operation("look", 1100, 1))[1:] == (0, 1)  # late
    assert judged(add, until_, operation("look", 1100, 1), operation("look", 1200, 1))[1:] == (0, 2)
    assert judged(add, operation("remove", 200, 1), operation("look", 300, 1))[1:] == (1, 0)  # it came back


def test_a_journal_of_a_server_that_died() -> None:
    add, until_, remove = operation("add", 100, 1), operation("until", 200, 1, 9000), operation("remove", 300, 1)
    loss = Loss(replicated=150, died=400)
    assert judged(add, until_, remove, loss=loss)[0] == {(True, 0), (True, 9000), ABSENT}
    assert judged(add, until_, operation("look", 500, 1), loss=loss)[0] == {(True, 0), (True, 9000)}
    assert judged(add, until_, operation("look", 500, 0), loss=loss)[1:] == (1, 0)  # it had been replicated
    assert judged(add, until_, operation("look", 500, 0), loss=Loss(50, 400))[1:] == (0, 0)
