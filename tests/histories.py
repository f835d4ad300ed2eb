"""Records what concurrent clients sent and were told, and when: random requests on keys whose members expire soon."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

from tests.explain import REMOVAL_SCRIPTS, Operation, unexplained
from tests.model import parse, plain
from tests.raw import Raw, request

Connect = Callable[[], Raw]

KINDS: Final = ("set", "hash", "zset", "list")
MEMBERS: Final = ("a", "b", "c")

LIFETIMES_MS: Final = (-1, 1, 2, 3, 5, 8, 13, 20, 40, 80, 150)
SHORT_LIFETIMES_MS: Final = LIFETIMES_MS[:8]

REQUESTS: Final = {
    "set": """SADD {k} {m}|SADD {k} {m}|SADD {k} {m} {o}|SREM {k} {m}|SPOP {k}|SISMEMBER {k} {m}|SISMEMBER {k} {m}
        SMEMBERS {k}|SCARD {k}""",
    "hash": """HSET {k} {m} {n}|HSET {k} {m} {n}|HSETNX {k} {m} {n}|HINCRBY {k} {m} {n}|HDEL {k} {m}|HGET {k} {m}
        HGET {k} {m}|HGETALL {k}|HDEL {k} {m} {o}""",
    "zset": """ZADD {k} {n} {m}|ZADD {k} {n} {m}|ZINCRBY {k} {n} {m}|ZREM {k} {m}|ZPOPMIN {k}|ZSCORE {k} {m}
        ZSCORE {k} {m}|ZRANGE {k} 0 -1 WITHSCORES|ZRANGE {k} 0 -1 WITHSCORES""",
    "list": """RPUSH {k} {m}|RPUSH {k} {m} {o}|LPOP {k}|LPOP {k}|LREM {k} 0 {m}|LRANGE {k} 0 -1|LRANGE {k} 0 -1""",
}
EVERY_KIND: Final = """PEXPIREMEMBERAT {k} {m} {t}|PEXPIREMEMBERAT {k} {m} {t}|PEXPIREMEMBERAT {k} {m} {t}
    PEXPIREMEMBERAT {k} {m} {t} {c}|PTTL {k} {m}|PERSIST {k} {m}|EVAL {k} {m}"""
RARE: Final = "DEL {k}"
_RARITY: Final = 0.02


def _lines(text: str) -> list[str]:
    return [line.strip() for row in text.splitlines() for line in row.split("|")]


@dataclass
class Plan:
    """What the clients do.

    Attributes:
        clients: how many there are.
        batches: how often each of them sends.
        kinds: types of the keys; one key of each.
        lifetimes: how many ms from now deadlines are set.
        pause: the longest time between two batches, in seconds.
    """

    clients: int = 6
    batches: int = 40
    kinds: Sequence[str] = KINDS
    lifetimes: Sequence[int] = LIFETIMES_MS
    pause: float = 0.01


@dataclass
class Recorder:
    """Runs the clients of one round, and keeps what each did on each key.

    Args:
        plan: what they do.
        connects: where to; the clients take turns.
        seed: of their choices.
        name: sets this round's keys apart from others'.
    """

    plan: Plan
    connects: Sequence[Connect]
    seed: str
    name: str
    histories: dict[str, list[list[Operation]]] = field(default_factory=dict)

    def run(self) -> None:
        """Run them all, and then one client that looks at every key when the last deadline has passed.

        Raises:
            ConnectionError: a connection was lost.
        """
        failures: list[Exception] = []

        def run(number: int) -> None:
            try:
                self._client(number)
            except Exception as error:  # noqa: BLE001 (told below, in the test's own thread)
                failures.append(error)

        self.histories = {self._key(kind): [[] for _ in range(self.plan.clients + 1)] for kind in self.plan.kinds}
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(self.plan.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client waits for ever"
        if failures:
            raise failures[0]
        time.sleep((max(self.plan.lifetimes) + 5) / 1000)
        self._look()

    def check(self, *, passing: bool) -> None:
        """Fail if no order explains what the clients of a key were told; see `unexplained` for `passing`."""
        for kind in self.plan.kinds:
            reason = unexplained(kind, self.histories[self._key(kind)], passing=passing)
            assert reason is None, f"{self._key(kind)} of round {self.seed}\n{reason}"

    @property
    def operations(self) -> int:
        """How many there were."""
        return sum(len(client) for clients in self.histories.values() for client in clients)

    def _key(self, kind: str) -> str:
        return f"{kind}:{self.name}"

    def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed}/{number}")
        with self.connects[number % len(self.connects)]() as client:
            for _ in range(self.plan.batches):
                if chance.random() < 0.5:
                    time.sleep(chance.random() * self.plan.pause)
                way = chance.choice(("one", "one", "pipeline", "transaction"))
                key = self._key(chance.choice(self.plan.kinds))
                if way == "transaction":
                    requests = [self._request(chance, key, queued=True) for _ in range(chance.randint(2, 4))]
                    self._send_transaction(client, number, key, requests)
                elif way == "one":
                    self._send(client, number, [(key, self._request(chance, key))])
                else:
                    keys = [chance.choice((key, self._key(chance.choice(self.plan.kinds)))) for _ in range(4)]
                    self._send(client, number, [(key, self._request(chance, key)) for key in keys])

    def _request(self, chance: random.Random, key: str, *, queued: bool = False) -> tuple[str, ...]:
        kind = key.partition(":")[0]
        own = _lines(REQUESTS[kind])
        every = _lines(EVERY_KIND)
        if queued:
            # In a transaction: what stands among the windows of docs/semantics.md.
            own = [line for line in own if not line.startswith("HINCRBY")]
            every = [line for line in every if not line.startswith("EVAL")]
        line = RARE if chance.random() < _RARITY else chance.choice(own if chance.random() < 0.6 else every)
        words = line.format(
            k=key,
            m=chance.choice(MEMBERS),
            o=chance.choice(MEMBERS),
            n=chance.choice("12345"),
            t=int(clock()) + chance.choice(self.plan.lifetimes),
            c=chance.choice(("NX", "XX", "GT", "LT")),
        ).split()
        return ("EVAL", REMOVAL_SCRIPTS[kind], "1", *words[1:]) if words[0] == "EVAL" else tuple(words)

    def _send(self, client: Raw, number: int, requests: list[tuple[str, tuple[str, ...]]]) -> None:
        invoked = clock()
        client.send(b"".join(request(*words) for _, words in requests))
        for key, words in requests:
            said = parse(client.reply())
            if isinstance(said, hiredis.ReplyError) and "could not be told" in str(said):
                continue  # refused, as proxies are cut off: it has done nothing
            self.histories[key][number].append(Operation(invoked, clock(), (words,), (plain(said),)))

    def _send_transaction(self, client: Raw, number: int, key: str, requests: list[tuple[str, ...]]) -> None:
        invoked = clock()
        client.send(request("MULTI") + b"".join(request(*words) for words in requests) + request("EXEC"))
        *_, last = client.replies(len(requests) + 2)
        replies = plain(parse(last))
        returned = clock()
        if isinstance(replies, list):
            self.histories[key][number].append(Operation(invoked, returned, tuple(requests), tuple(replies)))
        else:
            # Spoilt, as a key got its first deadline meanwhile: it has done nothing.
            assert "EXECABORT" in str(replies), replies

    def _look(self) -> None:
        looks = {"set": "SMEMBERS {k}", "hash": "HGETALL {k}", "zset": "ZRANGE {k} 0 -1 WITHSCORES"}
        with self.connects[0]() as client:
            for kind in self.plan.kinds:
                key = self._key(kind)
                lines = [looks.get(kind, "LRANGE {k} 0 -1"), *(f"PTTL {{k}} {member}" for member in MEMBERS)]
                self._send(client, -1, [(key, tuple(line.format(k=key).split())) for line in lines])


def rounds(plan: Plan, connects: Sequence[Connect], seed: str, count: int) -> Iterator[Recorder]:
    """Run rounds, each on keys of its own; what they give has been run and not been checked.

    Args:
        plan: what the clients do.
        connects: where to.
        seed: of all choices.
        count: how many rounds.
    """
    for number in range(count):
        recorder = Recorder(plan, connects, f"{seed}/{number}", f"{seed}:{number}")
        recorder.run()
        yield recorder


def clock() -> float:
    """This machine's clock, which is the server's too, in Unix ms."""
    return time.time() * 1000


def by_client(*operations: tuple[int, float, float, str, Any]) -> list[list[Operation]]:
    """Write a history by hand: of each operation its client, from when to when, the request and its reply."""
    clients: defaultdict[int, list[Operation]] = defaultdict(list)
    for client, invoked, returned, line, reply in operations:
        clients[client].append(Operation(invoked, returned, (tuple(line.split()),), (reply,)))
    return list(clients.values())
