"""Members that expire land in lists: each once, pushed by the script that removes it, whoever is killed meanwhile."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from proxy.check.needed import rules
from proxy.events.rules import Rule
from proxy.scripts.calls import script
from proxy.scripts.naming import Names
from tests.conftest import Start, StartProxy, StartServer
from tests.pages import page
from tests.raw import request
from tests.servers import KIND, Process, Proxy, Server, proxy_environment, until
from tests.test_docs import at, folder, one_kind, port_of, shell
from tests.test_events import ADD, FAR, entries, gone, talk, want
from tests.test_events_command import events, kept
from tests.test_events_exactly_once import Plan, begin, retried
from tests.test_lives import Talk, clock, wait_past

__all__ = ["folder", "talk"]  # fixtures

NAMES = Names(b"__expiremember__:")
Connect = Callable[..., Talk]
VALUE = {"set": b"a", "hash": b"one", "zset": b"1.5", "list": b"a"}
WORKER = """
import sys, time, redis
r = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
while True:
    try:
        r.blmove("ready", "taken", 1)
    except redis.RedisError:
        time.sleep(0.05)
"""


def elements(beside: Talk, name: str = "ready") -> list[bytes]:
    found = beside("LRANGE", name, 0, -1)
    assert isinstance(found, list)
    return found


# What is pushed.


@pytest.mark.every_kind
@pytest.mark.parametrize("kind_of", ADD)
def test_a_member_that_expires_lands_in_the_list(upstream: Server, proxy: Proxy, talk: Connect, kind_of: str) -> None:
    client, beside = talk(proxy), talk(upstream)
    want(beside, Rule(b"k:*", list=b"ready"))
    want(beside, Rule(b"k:?", b"expired", list=b"values", value=True, letters="S"))
    add, remove = ADD[kind_of]
    client.say(add.format("k:1"))
    assert client("PEXPIREMEMBER", "k:1", "a", 300) == 1
    assert client("EXPIREMEMBER", "k:1", "b", FAR) == 1
    assert client("BLPOP", "ready", 10) == [b"ready", b"a"]
    assert elements(beside, "values") == [VALUE[kind_of]]
    assert len(entries(beside)) == 1
    # What a request removes is not pushed, nor what is given a deadline in the past, nor what no rule is for.
    assert client("PEXPIREMEMBER", "k:1", "b", 150) == 1
    client.say(remove.format("k:1"))
    client.say(add.format("k:2"))
    assert client("PEXPIREMEMBERAT", "k:2", "a", 1) == client("EXPIREMEMBER", "k:2", "b", 0) == 1
    client.say(add.format("other"))
    assert client("PEXPIREMEMBER", "other", "a", 300) == 1
    gone(beside, "other")
    assert elements(beside) == []
    assert len(elements(beside, "values")) == 1


def test_of_several_rules_for_a_list_the_longest_pattern_counts(server: Server, start: Start, talk: Connect) -> None:
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"*", list=b"all"))
    want(beside, Rule(b"car*", list=b"ready"))
    want(beside, Rule(b"cart:*", list=b"ready", value=True))
    for key in ("cart:1", "car"):
        client("HSET", key, "a", "1")
        assert client("PEXPIREMEMBER", key, "a", 50) == 1
    until(lambda: len(elements(beside, "all")) == 2, what="two elements")
    assert sorted(elements(beside)) == [b"1", b"a"]


@pytest.mark.parametrize("kind_of", ["set", "hash", "zset"])
def test_those_of_one_key_come_in_the_order_of_their_deadlines(
    server: Server, start: Start, talk: Connect, kind_of: str
) -> None:
    """Several hundred that pass together, in several steps, and values of all sizes."""
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"k", list=b"ready", value=kind_of == "hash"))
    members = [f"m{number}" for number in range(1200)]
    random.Random(1).shuffle(members)
    values = {member: f"{member} {'x' * (30_000 if number % 300 == 7 else 0)}" for number, member in enumerate(members)}
    for member in members:
        add = {
            "set": ("SADD", "k", member),
            "zset": ("ZADD", "k", 1, member),
            "hash": ("HSET", "k", member, values[member]),
        }
        client(*add[kind_of])
    first = clock(beside) + 3000
    deadlines = (request("PEXPIREMEMBERAT", "k", member, first + number // 10) for number, member in enumerate(members))
    client.raw.send(b"".join(deadlines))  # in one pipeline: one by one they take seconds on a busy machine
    assert set(client.raw.replies(1200)) == {b":1\r\n"}
    assert clock(beside) < first
    until(lambda: beside("LLEN", "ready") == 1200, what="all in the list")
    found = [element.decode() for element in elements(beside)]
    assert sorted(found) == sorted(values.values() if kind_of == "hash" else members)
    order = {(values[member] if kind_of == "hash" else member): number // 10 for number, member in enumerate(members)}
    assert [order[element] for element in found] == sorted(order[element] for element in found)


def test_a_read_that_comes_first_pushes(server: Server, start: Start, talk: Connect) -> None:
    proxy = start("--no-sweep")
    for database in (0, 5):
        want(talk(server, database), Rule(b"*", list=b"ready %d" % database, database=database))
    for database in (0, 5):
        client, beside = talk(proxy, database), talk(server, database)
        client("SADD", "k", "a", "b")
        assert client("PEXPIREMEMBER", "k", "a", 50) == 1
        wait_past(beside, clock(beside) + 50)
        assert client("SMEMBERS", "k") == [b"b"]
        assert elements(beside, f"ready {database}") == [b"a"]


# A list that has deadlines itself.


def past(beside: Talk, key: str, kind: str = "SADD", member: str = "x", ago: int = 5) -> int:
    """Add a member whose deadline has passed, past every proxy."""
    deadline = int(clock(beside)) - ago
    beside(kind, key, member)
    beside("ZADD", NAMES.shadow(key.encode()), deadline, member)
    beside("ZADD", NAMES.index, deadline, key)
    return deadline


def sweep(beside: Talk, *keys: str, text: bytes | None = None) -> Any:
    names = [name for key in keys for name in (key, NAMES.shadow(key.encode()))]
    return beside("EVAL", text or script("sweep"), 1 + len(names), NAMES.index, *names, 0, 1000)


def check_new_life(beside: Talk, ready: str, text: bytes | None = None) -> None:
    """See what becomes of deadlines in a list to which members are pushed. `text`: the script that sweeps."""
    shadow = NAMES.shadow(ready.encode())
    want(beside, Rule(b"k", list=ready.encode()))
    want(beside, Rule(ready.replace("{t}", "?t?").encode(), b"expired"))
    # A deadline that is left over of an earlier element, and a void one.
    for deadline in (int(clock(beside)) + 60_000, -int(clock(beside)) - 60_000):
        beside("DEL", ready)
        beside("RPUSH", ready, "stays")
        beside("ZADD", shadow, deadline, "x")
        beside("ZADD", NAMES.index, abs(deadline), ready)
        past(beside, "k")
        assert sweep(beside, "k", text=text)[3] == 1
        assert elements(beside, ready) == [b"stays", b"x"]
        assert beside("EXISTS", shadow) == 0
        assert beside("ZSCORE", NAMES.index, ready) is None
        assert entries(beside) == []
    # One of a list that is gone.
    beside("DEL", ready)
    beside("ZADD", shadow, int(clock(beside)) + 60_000, "x", int(clock(beside)) + 60_000, "y")
    past(beside, "k")
    assert sweep(beside, "k", text=text)[3] == 1
    assert (elements(beside, ready), beside("EXISTS", shadow)) == ([b"x"], 0)
    # One that is due, and still there: it has expired, and is told of; what is pushed stays.
    deadline = past(beside, ready, "RPUSH")  # two by now
    past(beside, "k")
    tally = sweep(beside, "k", text=text)[4]
    assert elements(beside, ready) == [b"x"]
    assert beside("EXISTS", shadow) == 0
    assert [(one["member"], one["count"], one["deadline"]) for one in entries(beside)] == [("x", "2", str(deadline))]
    assert (tally[0], tally[5], tally[6]) == (1, 1, 0)
    assert sweep(beside, ready, text=text)[3] == 0
    assert elements(beside, ready) == [b"x"]
    # One that is not due: the element has a deadline, with all its occurrences, as after RPUSH.
    later = int(clock(beside)) + 60_000
    beside("ZADD", shadow, later, "x")
    past(beside, "k")
    sweep(beside, "k", text=text)
    assert elements(beside, ready) == [b"x", b"x"]
    assert beside("ZSCORE", shadow, "x") == b"%d" % later


@pytest.mark.parametrize("ready", ["ready", "a}b", "{t}ready"], ids=["plain", "brace", "tag"])
def test_what_is_pushed_begins_a_new_life(kind: str, start_server: StartServer, talk: Connect, ready: str) -> None:
    check_new_life(talk(start_server(kind)), ready)


def test_lists_that_push_to_each_other_come_to_an_end(kind: str, start_server: StartServer, talk: Connect) -> None:
    beside = talk(start_server(kind))
    want(beside, Rule(b"one", list=b"two"))
    want(beside, Rule(b"two", list=b"one"))
    for key in ("one", "two"):
        past(beside, key, "RPUSH")
    assert sweep(beside, "one")[4][5] == 2
    assert (elements(beside, "one"), elements(beside, "two")) == ([b"x"], [b"x"])
    assert sweep(beside, "one", "two")[3] == 0
    assert beside("EXISTS", NAMES.shadow(b"one"), NAMES.shadow(b"two"), NAMES.index) == 0


def test_what_expires_in_a_list_is_not_pushed_to_it_again(server: Server, start: Start, talk: Connect) -> None:
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"*", b"expired", list=b"ready"))
    client("RPUSH", "ready", "a", "b")
    assert client("PEXPIREMEMBER", "ready", "a", 50) == 1
    until(lambda: elements(beside) == [b"b"], what="an end of a")
    assert [entry["member"] for entry in entries(beside)] == ["a"]


# What can go wrong.


def test_a_list_that_is_none_stops_no_removal(server: Server, start: Start, talk: Connect) -> None:
    proxy = start()
    client, beside = talk(proxy), talk(server)
    want(beside, Rule(b"*", list=b"wrong"))
    want(beside, Rule(b"k", list=b"right"))
    beside("SET", "wrong", "a string")
    client("SADD", "k", "a", "b")
    assert client("PEXPIREMEMBER", "k", "a", 50) == 1
    gone(beside, "k")
    assert elements(beside, "right") == [b"a"]
    warning = proxy.process.line(lambda line: "events about expired members lost" in line)
    assert "WRONGTYPE" in warning
    assert '"elements": 1' in warning
    section = client("INFO", "expiremember").decode()
    assert "expiry_events_lost_total:entry=0,message=0,element=1" in section
    assert "expiry_events_total:entry=0,message=0,element=1" in section
    assert beside("GET", "wrong") == b"a string"


def test_without_the_right_to_the_list_a_client_fails_before_it_removes(
    kind: str, start_server: StartServer, talk: Connect
) -> None:
    server = start_server(kind)
    check_rights(talk(server), talk(server), script("clear"))


def check_rights(beside: Talk, client: Talk, text: bytes) -> None:
    """See that a client who may not push removes nothing. `text`: the script that clears."""
    want(beside, Rule(b"*", list=b"ready"))
    past(beside, "k")
    names: list[str | bytes | int] = [NAMES.index, "k", NAMES.shadow(b"k")]
    clear: list[str | bytes | int] = ["EVAL", text, 3, *names, 100, 0, ""]
    beside("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-rpush")
    assert client("AUTH", "few", "x") == b"OK"
    for change in ([], ["+rpush", "resetkeys", "~k", "~__expiremember__:*"]):
        if change:
            beside("ACL", "SETUSER", "few", *change)
        assert str(client(*clear)).startswith("NOPERM")
        assert (beside("SISMEMBER", "k", "x"), beside("EXISTS", "ready"), beside("TYPE", names[2])) == (1, 0, b"zset")
    beside("ACL", "SETUSER", "few", "~ready")
    assert client(*clear)[4] == 1
    assert elements(beside) == [b"x"]


def test_a_proxy_without_the_right_to_push_removes_and_says_so(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Connect
) -> None:
    server = start_server(kind)
    own = [rule for rule in rules("__expiremember__:") if rule != "+rpush"]
    server.command("ACL", "SETUSER", "older", "on", ">pw", "resetchannels", *own)
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//older:pw@"))
    client, beside = talk(proxy), talk(server)
    want(beside, Rule(b"*", list=b"ready"))
    client("SADD", "k", "a", "b")
    assert client("PEXPIREMEMBER", "k", "a", 50) == 1
    gone(beside, "k")
    warning = proxy.process.line(lambda line: "events about expired members lost" in line)
    assert "permission" in warning or "can't" in warning, warning
    assert beside("EXISTS", "ready") == 0


def test_without_memory_members_go_and_elements_come(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Connect
) -> None:
    server = start_server(kind)
    proxies = start_proxy(server), start_proxy(server, "--no-sweep")
    client, beside = talk(proxies[1]), talk(server)
    want(beside, Rule(b"*", list=b"ready"))
    client("SADD", "s", *range(20))
    for number in range(20):
        assert client("PEXPIREMEMBER", "s", number, 700) == 1
    beside("CONFIG", "SET", "maxmemory", 1)
    until(lambda: not beside("EXISTS", "s"), what="a sweep")
    assert sorted(map(int, elements(beside))) == list(range(20))


# The command.


def test_a_rule_with_a_list_is_set_and_listed(upstream: Server, talk: Connect) -> None:
    beside, where = talk(upstream), ("--upstream", upstream.url)
    status, said = events("set", "delayed", "--list", "ready", "--value", *where)
    assert (status, said) == (
        0, "set: members of delayed in database 0 that expire are pushed to the list ready (their values)\n",
    )  # fmt: skip
    assert kept(beside) == {Rule(b"delayed", list=b"ready", value=True)}
    beside("RPUSH", "ready", 1, 2, 3)
    status, said = events("set", "cart:*", "--list", "taken", "--stream", "expired", *where)
    assert status == 0
    assert "are appended to the stream expired" in said
    assert said.endswith("and are pushed to the list taken\n")
    rows = [row.split() for row in events("list", *where)[1].splitlines()]
    assert rows[1:] == [
        ["0", "cart:*", "expired", "0", "1,000,000", "taken", "0", "no", "-"],
        ["0", "delayed", "-", "-", "-", "ready", "3", "yes", "-"],
    ]
    beside("SET", "taken", "v")
    assert "NOT A LIST" in events("list", *where)[1]
    assert "taken is a string already" in events("set", "*", "--list", "taken", *where)[1]
    status, said = events("set", "delayed", "--list", "other", *where)
    assert (status, said.split(":")[0]) == (0, "replaced")
    assert events("remove", "delayed", *where)[0] == events("remove", "cart:*", *where)[0] == 0
    assert kept(beside) == set()


@one_kind
def test_the_page_shows_a_delay_queue(folder: Path, proxy: Proxy, upstream: Server) -> None:
    (block,) = [block for block in page("docs/events.md").blocks if "--list ready" in block.text]
    done = shell(at(block.text, port_of(proxy), upstream.port), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["ready", "send the letter"]


# Exactly once, whoever is killed.


def check(server: Server, start_proxy: StartProxy, plan: Plan, stack: ExitStack) -> str:
    """Do it; return figures."""
    chance = random.Random(plan.members)
    beside: Any = redis.Redis(port=server.port, decode_responses=True)
    proxies = [start_proxy(server), start_proxy(server), start_proxy(server, "--workers", "2")]
    ports = []
    clients: list[Any] = []
    for proxy in proxies:
        assert not isinstance(proxy.address, Path)
        ports.append(proxy.address[1])
        # Without retries: the reply to a second attempt does not say what became of the first.
        clients.append(redis.Redis(port=proxy.address[1], decode_responses=True, retry=Retry(NoBackoff(), 0)))
    beside.zadd(NAMES.events.decode(), {Rule(b"*:*", list=b"ready").encode(): 0})
    everybody, removed, hand = begin(beside, (clients[1], clients[0], clients[1]), plan, plan.members)

    def new_worker(number: int) -> Process:
        process = Process([sys.executable, "-c", WORKER, str(ports[number % 3])], proxy_environment())
        stack.callback(process.kill)
        return process

    workers = [new_worker(number) for number in range(3)]
    kills = {"workers": 0, "proxies": 0}
    for kill in range(plan.kills):
        until_then = time.monotonic() + plan.seconds / (plan.kills + 1)
        while time.monotonic() < until_then:
            time.sleep(chance.uniform(0.05, 2 * plan.seconds / plan.kills / 10))
            place = chance.randrange(3)
            workers[place].kill()
            kills["workers"] += 1
            workers[place] = new_worker(place)
        place = kill % 3
        proxies[place].close()
        kills["proxies"] += 1
        server.stop(signal.SIGKILL)
        server.start(120)  # it reads all that it has, on a busy machine
        more = ("--workers", "2") if place == 2 else ()
        proxies[place] = start_proxy(server, "--listen", f"127.0.0.1:{ports[place]}", *more)
    hand.join(120)
    assert not hand.is_alive()
    until(lambda: retried(beside.exists, NAMES.index.decode()) == 0, 120, "an end of all deadlines")
    until(lambda: retried(beside.llen, "ready") == 0, 120, "an empty list")
    assert not beside.exists(*{key for key, _ in everybody})
    taken = Counter(beside.lrange("taken", 0, -1))
    for one in (beside, *clients):
        one.close()
    assert [member for member, times in taken.items() if times != 1] == []
    names = {name for _, name in everybody}
    gone_by_request = {name for (_, name), reply in removed.items() if reply == 1}
    unknown = {name for (_, name), reply in removed.items() if reply is None}
    assert taken.keys() <= names
    assert gone_by_request & taken.keys() == set()
    assert names - gone_by_request - unknown - taken.keys() == set()
    return (
        f"{len(everybody):,} members, {len(gone_by_request):,} removed by hand ({len(unknown)} without a reply),"
        f" {taken.total():,} elements, each once; {kills['workers']} workers, {kills['proxies']} proxies and"
        f" {plan.kills} times the server killed"
    )


def run(kind: str, plan: Plan, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind, "--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        began = time.monotonic()
        print(kind, check(server, start_proxy, plan, stack), f"in {time.monotonic() - began:.0f} s")


def test_exactly_once(start_server: StartServer, start_proxy: StartProxy) -> None:
    run(KIND, Plan(members=3_000, keys=20, seconds=4, kills=3), start_server, start_proxy)


@pytest.mark.long
def test_exactly_once_a_hundred_thousand(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    run(kind, Plan(members=100_000, keys=100, seconds=60, kills=9), start_server, start_proxy)


def test_a_list_rule_does_not_read_as_one_without() -> None:
    """A proxy that does not know lists must not take the list for a part of the stream's name."""
    assert not re.fullmatch(
        rb"(\d+) ([01]) (\d+) ([A-Z]*)- (\d+):(.*)", Rule(b"*", b"s", list=b"l").encode(), re.DOTALL
    )
