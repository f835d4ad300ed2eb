"""Every member that expires is told of exactly once, and every entry is processed, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from proxy.events.rules import Rule
from proxy.scripts.naming import Names
from tests.conftest import StartProxy, StartServer
from tests.servers import KIND, Process, Proxy, Server, proxy_environment, until

NAMES = Names(b"__expiremember__:")
STREAM, GROUP = "expired", "workers"
WORKER = """
import sys, time, redis
r = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
while True:
    try:
        claimed = r.xautoclaim("expired", "workers", sys.argv[2], min_idle_time=500, count=200)[1]
        fresh = r.xreadgroup("workers", sys.argv[2], {"expired": ">"}, count=200, block=200)
        numbers = [number for number, _ in claimed + (fresh[0][1] if fresh else [])]
        if numbers:
            r.sadd("processed", *numbers)
            r.xack("expired", "workers", *numbers)
    except redis.RedisError:
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Plan:
    """How much of it.

    Attributes:
        members: how many members in all.
        keys: in how many keys.
        seconds: the time in which they expire.
        kills: how often the server is killed; workers are about ten times as often.
    """

    members: int
    keys: int
    seconds: float
    kills: int


def retried(call: Any, *arguments: Any) -> Any:
    """Call until the server answers: it is killed now and then."""
    give_up = time.monotonic() + 30
    while True:
        try:
            return call(*arguments)
        except redis.RedisError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def fill(client: Any, plan: Plan, first: int, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Add the members, give each its deadline, and yield their keys and names."""
    each = plan.members // plan.keys
    for number in range(plan.keys):
        key = f"{('set', 'hash', 'zset')[number % 3]}:{number}"
        names = [f"{number}.{place}" for place in range(each)]
        with client.pipeline(transaction=False) as p:
            if key.startswith("set"):
                p.sadd(key, *names)
            elif key.startswith("hash"):
                p.hset(key, mapping=dict.fromkeys(names, "v"))
            else:
                p.zadd(key, dict.fromkeys(names, 1.5))
            for name in names:
                p.execute_command("PEXPIREMEMBERAT", key, name, first + chance.randrange(int(plan.seconds * 1000)))
            p.execute()
        yield from ((key, name) for name in names)


def remove_by_hand(client: Any, members: list[tuple[str, str]], removed: dict[tuple[str, str], int | None]) -> None:
    """Remove some members through a proxy; note the reply, or None where none has come."""
    for key, name in members:
        command = {"set": "SREM", "hash": "HDEL", "zset": "ZREM"}[key.partition(":")[0]]
        try:
            removed[key, name] = client.execute_command(command, key, name)
        except redis.RedisError:
            removed[key, name] = None
            time.sleep(0.02)


def begin(
    beside: Any, clients: tuple[Any, Any, Any], plan: Plan, ahead: int
) -> tuple[list[tuple[str, str]], dict[tuple[str, str], int | None], threading.Thread]:
    """Add all members, and have some removed by hand: half before the first deadline, half from then on.

    Args:
        beside: a client of the server.
        clients: those that add, that remove before, and that remove from then on.
        plan: how many.
        ahead: ms until the first deadline, beside three seconds.

    Returns:
        All members; the replies to the removals; who goes on removing.
    """
    chance = random.Random(plan.members)
    adds, before, behind = clients
    beside.config_set("appendfsync", "no")  # which matters from the first deadline on, and takes a minute before
    now = beside.time()
    first = int(now[0] * 1000 + now[1] / 1000) + 3000 + ahead
    everybody = list(fill(adds, plan, first, chance))
    now = beside.time()
    assert now[0] * 1000 < first, "filling took longer than the first deadline"
    beside.config_set("appendfsync", "always")
    by_hand = chance.sample(everybody, len(everybody) // 10)
    removed: dict[tuple[str, str], int | None] = {}
    half = len(by_hand) // 2
    remove_by_hand(before, by_hand[:half], removed)
    now = beside.time()
    time.sleep(max(0.0, first / 1000 - now[0] - now[1] / 1e6))
    hand = threading.Thread(target=remove_by_hand, args=(behind, by_hand[half:], removed), daemon=True)
    hand.start()
    return everybody, removed, hand


def check(server: Server, proxies: list[Proxy], plan: Plan, stack: ExitStack) -> str:
    """Do it; return figures."""
    chance = random.Random(plan.members)
    beside: Any = redis.Redis(port=server.port, decode_responses=True)
    clients: list[Any] = []
    for proxy in proxies:
        assert not isinstance(proxy.address, Path)
        clients.append(redis.Redis(port=proxy.address[1], decode_responses=True))
    beside.zadd(NAMES.events.decode(), {Rule(b"*:*", STREAM.encode(), value=True, maxlen=0).encode(): 0})
    beside.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    everybody, removed, hand = begin(beside, (clients[1], clients[0], clients[2]), plan, plan.members // 2)

    def new_worker(name: str) -> Process:
        process = Process([sys.executable, "-c", WORKER, str(server.port), name], proxy_environment())
        stack.callback(process.kill)
        return process

    workers = [new_worker(f"w{number}") for number in range(3)]
    worker_kills = 0
    for kill in range(plan.kills):
        until_then = time.monotonic() + plan.seconds / (plan.kills + 1)
        while time.monotonic() < until_then:
            time.sleep(chance.uniform(0.05, 2 * plan.seconds / plan.kills / 10))
            place = chance.randrange(len(workers))
            workers[place].kill()
            worker_kills += 1
            workers[place] = new_worker(f"w{kill}-{worker_kills}")
        server.stop(signal.SIGKILL)
        server.start()
    hand.join(120)
    assert not hand.is_alive()
    until(lambda: retried(beside.exists, NAMES.index.decode()) == 0, 120, "an end of all deadlines")
    ended = {key for key, _ in everybody}
    assert not beside.exists(*ended)
    count = beside.xlen(STREAM)

    def progress() -> str:
        return f"{count} entries processed: {beside.scard('processed')}, {beside.xpending(STREAM, GROUP)}"

    until(lambda: retried(beside.scard, "processed") >= count, 120, progress)
    until(lambda: retried(beside.xpending, STREAM, GROUP)["pending"] == 0, 60, progress)
    told: Counter[tuple[str, str]] = Counter()
    late: list[int] = []
    last = "-"
    while rows := beside.xrange(STREAM, min=last, count=5000):
        for number, entry in rows:
            told[entry["key"], entry["member"]] += 1
            late.append(int(number.partition("-")[0]) - int(entry["deadline"]))
        last = "(" + rows[-1][0]
    assert [member for member, times in told.items() if times != 1] == []
    assert told.keys() <= set(everybody)
    gone_by_request = {member for member, reply in removed.items() if reply == 1}
    unknown = {member for member, reply in removed.items() if reply is None}
    assert gone_by_request & told.keys() == set()
    assert set(everybody) - gone_by_request - unknown - told.keys() == set()
    for one in (beside, *clients):
        one.close()
    late.sort()
    return (
        f"{len(everybody):,} members, {len(gone_by_request):,} removed by hand ({len(unknown)} without a reply),"
        f" {len(told):,} entries, each once; all processed; {worker_kills} workers and {plan.kills} times the server"
        f" killed; late: median {late[len(late) // 2]} ms, 99% {late[len(late) * 99 // 100]} ms, most {late[-1]} ms"
    )


def run(plan: Plan, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND, "--appendonly", "yes", "--appendfsync", "always")
    proxies = [start_proxy(server) for _ in range(3)]
    with ExitStack() as stack:
        figures = check(server, proxies, plan, stack)
    print(figures)
    for proxy in proxies:
        with contextlib.suppress(AssertionError):
            proxy.process.line(lambda line: "lost" in line and "events" in line, timeout=0)
            pytest.fail("events were lost")


def test_exactly_once(start_server: StartServer, start_proxy: StartProxy) -> None:
    run(Plan(members=4_000, keys=20, seconds=4, kills=2), start_server, start_proxy)


@pytest.mark.long
def test_exactly_once_a_hundred_thousand(start_server: StartServer, start_proxy: StartProxy) -> None:
    run(Plan(members=100_000, keys=100, seconds=60, kills=8), start_server, start_proxy)
