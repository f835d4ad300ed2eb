"""More members of one key are due than a script used to remove: what follows at once sees none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from tests import test_lives as lives
from tests.conftest import StartProxy, StartServer
from tests.model import parse
from tests.raw import request
from tests.test_lives import Talk, talk  # noqa: F401 - a fixture

MANY: Final = 5_000
"""More than a script removes at a time."""

TOO_MANY: Final = 25_000
"""More than a script removes at most."""

_FILL: Final[dict[str, Callable[[Sequence[str]], list[str | int]]]] = {
    "S": lambda members: ["SADD", *members],
    "Z": lambda members: ["ZADD", *(word for member in members for word in (1, member))],
    "H": lambda members: ["HSET", *(word for member in members for word in (member, 1))],
}


class Mass:
    """A key whose members fall due at one moment, which just has passed.

    Args:
        proxy: a client of the proxy.
        beside: one of its server.
    """

    def __init__(self, proxy: Talk, beside: Talk) -> None:
        self.client = proxy
        self.beside = beside

    def falls_due(self, family: str, count: int, *stay: str, key: str = "many") -> str:
        """Fill the key, wait until all is due but what stays, and return the name of one that is due."""
        names = [f"m{number:05d}" for number in range(count)]
        for seconds in (0.6, 3, 15):  # as long as this machine takes now
            deadline = lives.clock(self.beside) + int(seconds * 1000) + count // 10
            for begin in range(0, count, 2_500):
                part = names[begin : begin + 2_500]
                verb, *words = _FILL[family](part)
                self.client(verb, key, *words)
                if family == "H":  # servers that have HPEXPIREAT would remove the fields themselves
                    self.client.raw.send(b"".join(request("PEXPIREMEMBERAT", key, field, deadline) for field in part))
                    assert set(self.client.raw.replies(len(part))) == {b":1\r\n"}
                else:
                    self.client(f"{family}PEXPIREAT", key, deadline, "MEMBERS", len(part), *part)
            if stay:
                verb, *words = _FILL[family](stay)
                self.client(verb, key, *words)
            if lives.clock(self.beside) < deadline:
                break
            self.client("DEL", key)
        else:
            pytest.fail("the machine is too slow")
        lives.wait_past(self.beside, deadline)
        return names[-3]

    def in_transaction(self, *words: str | int, alone: bool = True) -> object:
        """Send it within MULTI and EXEC in one write, and return its reply; unless `alone` something is queued in front
        of it, so that no call can stand in for the whole transaction."""
        front = [] if alone else [request("ECHO", "front")]
        self.client.raw.send(b"".join([request("MULTI"), *front, request(*words), request("EXEC")]))
        return parse(self.client.raw.replies(3 + len(front))[-1])[-1]


@pytest.fixture
def mass(kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]) -> Mass:  # noqa: F811
    """On a server of its own: once a proxy has heard of rules for events, a script removes fewer."""
    server = start_server(kind)
    return Mass(talk(start_proxy(server, "--no-sweep")), talk(server))


def check_a_move_finds_no_member_that_is_due(mass: Mass, count: int) -> None:
    """Neither where it comes from, nor where an equal one is due, which would take the new one with it."""
    due = mass.falls_due("S", count, "stays")
    assert mass.client("SMOVE", "many", "other", due) == 0
    mass.beside("SADD", "source", due)
    assert mass.client("SMOVE", "source", "many", due) == 1
    assert sorted(mass.client("SMEMBERS", "many")) == sorted([due.encode(), b"stays"])


def check_what_is_added_stays(
    mass: Mass, family: str, words: list[str | int], count: int, *, alone: bool = True
) -> None:
    """In a transaction, to a key with an equal member that is due."""
    due = mass.falls_due(family, count, "stays")
    mass.beside("SADD", "source", due)
    mass.in_transaction(*(due if word == "?" else word for word in words), alone=alone)
    time.sleep(0.06)  # as long as the requests of a transaction may take what is due for present
    assert mass.client(*{"S": ("SCARD", "many"), "Z": ("ZCARD", "many"), "H": ("HLEN", "many")}[family]) == 2
    assert mass.client("EXPIREMEMBER", "many", due, 1000) == 1


@pytest.mark.parametrize("count", [MANY, TOO_MANY])
def test_a_move_finds_no_member_that_is_due(mass: Mass, count: int) -> None:
    check_a_move_finds_no_member_that_is_due(mass, count)


@pytest.mark.parametrize(
    ("family", "words", "count"),
    [
        *(("S", ["SADD", "many", "?"], count) for count in (MANY, TOO_MANY)),
        *(("S", ["SADDEX", "many", 1000, "?"], count) for count in (MANY, TOO_MANY)),
        *(("S", ["SMOVE", "source", "many", "?"], count) for count in (MANY, TOO_MANY)),
        *(("Z", ["ZINCRBY", "many", 5, "?"], count) for count in (MANY, TOO_MANY)),
        ("H", ["HINCRBY", "many", "?", 1], MANY),
        ("S", ["EVAL", "return redis.call('sadd', KEYS[1], ARGV[1])", 1, "many", "?"], MANY),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_transaction_adds_stays(
    mass: Mass, family: str, words: list[str | int], count: int, alone: bool
) -> None:
    check_what_is_added_stays(mass, family, words, count, alone=alone)


def check_no_transaction_sees_what_is_due(mass: Mass) -> None:
    mass.falls_due("S", MANY, "stays")
    assert mass.in_transaction("SMEMBERS", "many") == [b"stays"]
    mass.falls_due("S", MANY, "stays")
    assert mass.in_transaction("SUNIONSTORE", "copy", "many") == 1


def test_no_transaction_sees_what_is_due(mass: Mass) -> None:
    check_no_transaction_sees_what_is_due(mass)


@pytest.mark.parametrize(
    ("family", "words", "reply"),
    [
        ("S", ["SREM", "many", "?"], 0),
        ("H", ["HDEL", "many", "?"], 0),
        ("Z", ["ZREM", "many", "?"], 0),
        ("S", ["SPOP", "many"], b"stays"),
        ("Z", ["ZPOPMAX", "many"], [b"stays", b"1"]),
        ("Z", ["ZREMRANGEBYRANK", "many", 0, -1], 1),
    ],
)
def test_what_removes_finds_none_that_is_due(mass: Mass, family: str, words: list[str], reply: object) -> None:
    due = mass.falls_due(family, MANY, "stays")
    assert mass.client(*(due if word == "?" else word for word in words)) == reply


def test_a_key_of_which_all_is_due_is_gone(mass: Mass) -> None:
    for words in (["DEL", "many"], ["COPY", "many", "other"], ["RENAMENX", "many", "other"]):
        mass.falls_due("S", MANY)
        reply = mass.client(*words)
        assert reply == 0 or str(reply) == "ERR no such key", (words, reply)


def check_no_void_deadline_is_dropped(mass: Mass, *ways: tuple[str, int]) -> None:
    for key, times in ways:
        mass.client("SADD", key, "due", "removed")
        mass.client("EXPIREMEMBER", key, "removed", 100)
        mass.client("SREM", key, "removed")
        mass.client("PEXPIREMEMBER", key, "due", 5)
        lives.wait_past(mass.beside, lives.clock(mass.beside) + 5)
        mass.client.raw.send(request("PERSIST", key, "removed") * times)
        assert mass.client.raw.replies(times) == [b":0\r\n"] * times


def test_no_void_deadline_is_dropped_of_a_key_that_is_gone(mass: Mass) -> None:
    check_no_void_deadline_is_dropped(mass, ("alone", 1), ("together", 4))


def test_no_other_key_of_a_request_uses_up_what_may_go(mass: Mass) -> None:
    """What is due in others is little, or a list's."""
    names = [f"other:{number}" for number in range(12)]
    for lines in (["DEL", "many", *names], ["RENAMENX", "list", "many"], ["COPY", "list", "many"]):
        mass.beside("FLUSHDB")
        for name in names:
            mass.client("SADD", name, "m", "n")
            mass.client("PEXPIREMEMBER", name, "m", 300)
        mass.client("RPUSH", "list", "m", "n")
        mass.client("PEXPIREMEMBER", "list", "m", 300)
        mass.falls_due("S", MANY)
        assert mass.client(*lines) == {"DEL": 12}.get(lines[0], 1), lines


def check_an_element_behind_one_that_is_due_moves_as_itself(mass: Mass) -> None:
    """Its earlier life in the target has left a deadline."""
    due = [f"m{number:05d}" for number in range(4_500)]
    mass.client("RPUSH", "target", "stays")
    mass.client("PEXPIREMEMBER", "target", "stays", 2_500)
    assert mass.client("RPOP", "target") == b"stays"
    mass.client("RPUSH", "list", *due[:-1], "stays", due[-1])
    deadline = lives.clock(mass.beside) + 1_500
    for begin in range(0, len(due), 100):
        mass.client("LPEXPIREAT", "list", deadline, "MEMBERS", 100, *due[begin : begin + 100])
    assert lives.clock(mass.beside) < deadline
    lives.wait_past(mass.beside, deadline)
    assert mass.client("RPOPLPUSH", "list", "target") == b"stays"
    time.sleep(1.1)
    assert mass.client("LRANGE", "target", 0, -1) == [b"stays"]


def test_an_element_behind_one_that_is_due_moves_as_itself(mass: Mass) -> None:
    check_an_element_behind_one_that_is_due_moves_as_itself(mass)
