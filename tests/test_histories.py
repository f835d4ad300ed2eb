"""Concurrent clients: for each key an order of their requests that respects real time explains every reply."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.conftest import StartProxy
from tests.cuts import Cuts
from tests.explain import Operation, UndecidedError, unexplained
from tests.histories import Plan, by_client, rounds
from tests.servers import Proxy, Server

# The search. Each line: client, from when, to when, request, reply.

RIGHT: Final[dict[str, tuple[tuple[int, float, float, str, Any], ...]]] = {
    "nothing": (),
    "one after the other": ((1, 0, 1, "SADD k a", 1), (2, 2, 3, "SISMEMBER k a", 1), (1, 4, 5, "SREM k a", 1)),
    "a read at the same time sees it or not": (
        (1, 0, 10, "SADD k a", 1),
        (2, 1, 2, "SISMEMBER k a", 0),
        (3, 3, 4, "SISMEMBER k a", 1),
    ),
    "it goes at its deadline": (
        (1, 0, 1, "SADD k a b", 2),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (2, 4, 9.9, "SMEMBERS k", ["b", "a"]),
        (2, 9.9, 10.1, "SMEMBERS k", ["b"]),
    ),
    "a read across the deadline may see it": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (2, 9, 12, "SISMEMBER k a", 1),
        (3, 9, 12, "SISMEMBER k a", 0),
    ),
    "a member that comes back stays": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (1, 4, 5, "SPOP k", "a"),
        (2, 6, 7, "SADD k a", 1),
        (2, 11, 12, "SISMEMBER k a", 1),
    ),
    "added at its very deadline": (
        (1, 0, 1, "HSET k a 1", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (1, 9, 11, "HINCRBY k a 5", 5),
        (1, 12, 13, "PTTL k a", -1),
    ),
    "a deadline that has passed removes": (
        (1, 20, 21, "RPUSH k a a b", 3),
        (1, 22, 23, "PEXPIREMEMBERAT k a 10", 1),
        (1, 24, 25, "LRANGE k 0 -1", ["b"]),
    ),
    "the rest of a lifetime": (
        (1, 0, 1, "ZADD k 5 a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 1000", 1),
        (1, 4, 5, "PTTL k a", 996),
        (1, 6, 7, "PERSIST k a", 1),
        (1, 8, 9, "PTTL k a", -1),
        (1, 10, 11, "ZPOPMIN k", ["a", "5"]),
        (1, 12, 13, "PTTL k a", -2),
    ),
}

WRONG: Final[dict[str, tuple[tuple[int, float, float, str, Any], ...]]] = {
    "a read before sees it": ((2, 0, 1, "SISMEMBER k a", 1), (1, 2, 3, "SADD k a", 1)),
    "gone again without a reason": (
        (1, 0, 10, "SADD k a", 1),
        (2, 1, 2, "SISMEMBER k a", 1),
        (3, 3, 4, "SISMEMBER k a", 0),
    ),
    "seen after its deadline": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (2, 10.1, 12, "SISMEMBER k a", 1),
    ),
    "gone before its deadline": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (2, 8, 9.9, "SISMEMBER k a", 0),
    ),
    "there again after a read across the deadline": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (2, 9, 10.5, "SISMEMBER k a", 0),
        (3, 10.6, 12, "SISMEMBER k a", 1),
    ),
    "a member that came back goes by an earlier life's deadline": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (1, 4, 5, "SPOP k", "a"),
        (2, 6, 7, "SADD k a", 1),
        (2, 11, 12, "SISMEMBER k a", 0),
    ),
    "a member that came back tells an earlier life's deadline": (
        (1, 0, 1, "HSET k a 1", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 100", 1),
        (1, 4, 5, "HDEL k a", 1),
        (1, 6, 7, "HINCRBY k a 1", 1),
        (1, 8, 9, "PTTL k a", 92),
    ),
    "an overwritten member loses its deadline": (
        (1, 0, 1, "HSET k a 1", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (1, 4, 5, "HSET k a 2", 0),
        (1, 6, 7, "PTTL k a", -1),
    ),
    "a counter goes on after the deadline": (
        (1, 0, 1, "HINCRBY k a 5", 5),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1),
        (1, 10.2, 11, "HINCRBY k a 5", 10),
    ),
    "one member is popped twice": ((1, 0, 9, "SADD k a", 1), (2, 0, 9, "SPOP k", "a"), (3, 0, 9, "SPOP k", "a")),
    "the remaining time is wrong": (
        (1, 0, 1, "ZADD k 5 a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 1000", 1),
        (1, 4, 5, "PTTL k a", 900),
    ),
    "a condition is not heeded": (
        (1, 0, 1, "SADD k a", 1),
        (1, 2, 3, "PEXPIREMEMBERAT k a 10 XX", 1),
    ),
    "the order of one client": ((1, 0, 9, "SADD k a", 1), (1, 0, 9, "SISMEMBER k a", 0)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_history_is_explained(name: str) -> None:
    assert unexplained(_kind(name, RIGHT), by_client(*RIGHT[name])) is None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_history_is_not(name: str) -> None:
    assert "none of these can be next" in str(unexplained(_kind(name, WRONG), by_client(*WRONG[name])))


def _kind(name: str, histories: dict[str, tuple[tuple[int, float, float, str, Any], ...]]) -> str:
    letters = {line[3][0] for line in histories[name]} & {"S", "H", "Z", "R"}
    return {"H": "hash", "Z": "zset", "R": "list"}.get("".join(letters), "set")


def test_time_passes_in_a_transaction_only_where_it_may() -> None:
    transaction = Operation(4, 20, (("SMEMBERS", "k"), ("DEL", "k"), ("SCARD", "k")), (["a"], 0, 0))
    clients = [[*by_client((1, 0, 1, "SADD k a", 1), (1, 2, 3, "PEXPIREMEMBERAT k a 10", 1))[0], transaction]]
    assert unexplained("set", clients, passing=True) is None
    assert "none of these can be next" in str(unexplained("set", clients))
    clients[0].append(Operation(21, 22, (("SADD", "k", "a"), ("DEL", "k")), (1, 0)))
    assert "none of these can be next" in str(unexplained("set", clients, passing=True))


def test_a_search_that_takes_too_long_says_so() -> None:
    with pytest.raises(UndecidedError):
        unexplained("set", by_client(*RIGHT["a member that comes back stays"]), limit=3)


# The real thing.


def check_histories(plan: Plan, server: Server, proxies: list[Proxy], seed: str, count: int) -> int:
    """Run rounds and search them; return how many operations there were. Fails where no order explains them."""
    operations = 0
    passing = server.version < (7, 2)  # see rule 3 of docs/semantics.md
    for recorder in rounds(plan, [proxy.connect for proxy in proxies], seed, count):
        recorder.check(passing=passing)
        operations += recorder.operations
    return operations


def test_concurrent_clients(upstream: Server, proxy: Proxy) -> None:
    assert check_histories(Plan(), upstream, [proxy], "short", 10) > 3_000


@pytest.mark.long
@pytest.mark.every_kind
@pytest.mark.parametrize("count", [1, 2, 4])
def test_many_concurrent_clients(upstream: Server, start_proxy: StartProxy, count: int) -> None:
    assert check_histories(Plan(), upstream, [start_proxy(upstream) for _ in range(count)], "long", 200) > 60_000


@pytest.mark.long
@pytest.mark.every_kind
@pytest.mark.parametrize("count", [1, 2])
def test_concurrent_clients_while_proxies_lose_their_own_connections(
    upstream: Server, start_proxy: StartProxy, count: int
) -> None:
    """A first deadline waits for 2 s after each cut, so they are left alone for some seconds in between."""
    proxies = [start_proxy(upstream) for _ in range(count)]
    with Cuts(upstream, "cuts", longest=6) as cuts:
        assert check_histories(Plan(), upstream, proxies, "cuts", 50) > 15_000
    assert cuts.count > 50
