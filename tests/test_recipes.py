"""The programs of docs/recipes do what they say, on real servers, and when a worker dies amid its work."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis

from tests.pages import page
from tests.servers import ROOT, Process, Proxy, Server, proxy_environment, until
from tests.test_events_command import events

one_kind = pytest.mark.every_kind(valkey=(9, 1))
"""One kind of server is enough where there is no consumer group."""

FOLDER = ROOT / "docs" / "recipes"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def recipe(name: str) -> Any:
    """Load a program without running it."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def url(proxy: Proxy) -> str:
    assert not isinstance(proxy.address, Path)
    return f"redis://127.0.0.1:{proxy.address[1]}"


class Place:
    """A server, a proxy in front of it, and the rules that a program asks for."""

    def __init__(self, server: Server, proxy: Proxy, stack: ExitStack) -> None:
        self.server = server
        self.proxy = proxy
        self.stack = stack

    def connect(self) -> Any:
        client = redis.Redis.from_url(url(self.proxy), decode_responses=True)
        self.stack.callback(client.close)
        return client

    def set_up(self, name: str) -> None:
        """Run the lines that the program says to run once."""
        for line in re.findall(
            r"^    expiremember-proxy events (.+)$", (FOLDER / f"{name}.py").read_text("utf-8"), re.M
        ):
            assert events(*shlex.split(line), "--upstream", self.server.url)[0] == 0, line

    def worker(self, name: str, *arguments: str, **env: str) -> Process:
        """Start a program as its users do."""
        process = Process(
            [sys.executable, str(FOLDER / f"{name}.py"), url(self.proxy), *arguments], proxy_environment(env)
        )
        self.stack.callback(process.kill)
        return process


@pytest.fixture
def place(upstream: Server, proxy: Proxy) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(upstream, proxy, stack)


def test_each_program_is_short_and_on_the_page() -> None:
    table = page("docs/recipes/README.md").links
    assert len(PROGRAMS) >= 8
    for path in PROGRAMS:
        text = path.read_text("utf-8")
        assert text.count("\n") <= 62, path.name
        assert "\nIt replaces " in text, path.name
        assert "\nWhat can go wrong: " in text, path.name
        assert path.name in table, path.name


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_says_what_it_is_to_be_called_with(path: Path) -> None:
    (line,) = re.findall(rf"^    python {path.name} (.+)$", path.read_text("utf-8"), re.M)
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(rf"usage: python {path.name} redis://HOST:PORT( [A-Z]+)?\n", run.stderr), run.stderr
    assert len(run.stderr.split()[3:]) == len(line.split())


ENDLESS = ("unpaid_orders", "delay_queue", "ready_list", "presence")
"""Programs that go on until they are stopped: they have tests of their own."""


@one_kind
@pytest.mark.parametrize("path", [path for path in PROGRAMS if path.stem not in ENDLESS], ids=lambda path: path.stem)
def test_a_program_runs_as_its_first_lines_say(place: Place, path: Path) -> None:
    (line,) = re.findall(rf"^    python {path.name} (.+)$", path.read_text("utf-8"), re.M)
    arguments = line.replace("redis://127.0.0.1:6380", url(place.proxy)).split()
    run = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


# With workers.


def killed_amid_work(place: Place, work: Callable[[], Any], stream: str, group: str) -> None:
    """Have a worker read entries and die before it acknowledges them: as a process that is killed there."""
    client = place.connect()
    with contextlib.suppress(redis.ResponseError):
        client.xgroup_create(stream, group, id="0", mkstream=True)
    work()
    until(lambda: client.xlen(stream) > 0, what="an entry")
    assert client.xreadgroup(group, "dead", {stream: ">"}, count=2)


def test_no_stock_is_lost_or_returned_twice(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNPAID_SECONDS", "1")
    shop, client = recipe("unpaid_orders"), place.connect()
    place.set_up("unpaid_orders")
    client.set("stock:book", 100)
    killed_amid_work(
        place, lambda: [shop.place(client, "ann", f"a{number}", "book", 2) for number in range(3)], "lapsed", "stock"
    )
    for user in ("bob", "cat", "dan"):
        assert [shop.place(client, user, f"{user}{number}", "book", 3) for number in range(5)] == [True] * 3 + [
            False
        ] * 2
    assert shop.pay(client, "bob", "bob0")
    assert not shop.place(client, "eve", "e0", "book", 1000)
    assert (
        int(client.get("stock:book")) == 100 - 6 - 27
    )  # Ann's orders have lapsed, and nobody has returned their stock
    workers = [place.worker("unpaid_orders", f"w{number}", IDLE_MS="300") for number in range(3)]
    with contextlib.suppress(AssertionError):
        until(lambda: False, 1.2)  # while orders lapse and come back
    for worker in workers[:2]:
        worker.send_signal(signal.SIGKILL)
    until(lambda: int(client.get("stock:book")) == 97, 20, "the stock but for what has been paid")
    until(lambda: client.xpending("lapsed", "stock")["pending"] == client.xlen("lapsed") == 0, 20, "no entry left")
    assert not shop.pay(client, "cat", "cat1")
    assert shop.place(client, "cat", "again", "book", 1)


@one_kind
def test_two_workers_with_the_same_entry_return_it_once(place: Place) -> None:
    shop, client = recipe("unpaid_orders"), place.connect()
    client.xgroup_create("lapsed", "stock", id="0", mkstream=True)
    number = client.xadd("lapsed", {"member": "a", "value": '["book", 2]'})
    client.xreadgroup("stock", "one", {"lapsed": ">"})
    for _ in range(2):
        client.eval(shop.RETURN, 2, "lapsed", "stock:book", number, 2)
    assert client.get("stock:book") == "2"


def test_each_delayed_job_runs_though_workers_die(place: Place) -> None:
    queue, client = recipe("delay_queue"), place.connect()
    place.set_up("delay_queue")
    killed_amid_work(
        place, lambda: [queue.put(client, f"early{number}", "x", 0.05) for number in range(2)], "jobs", "workers"
    )
    for number in range(40):
        queue.put(client, f"job{number}", "payload", 0.1 + number / 40)
    queue.put(client, "cancelled", "x", 60)
    assert queue.cancel(client, "cancelled")
    queue.put(client, "put off", "x", 0.2)
    queue.put(client, "put off", "x", 1.5)
    first = place.worker("delay_queue", "w0", IDLE_MS="300")
    first.line(lambda line: "running" in line)
    first.send_signal(signal.SIGKILL)
    for number in (1, 2):
        place.worker("delay_queue", f"w{number}", IDLE_MS="300")
    done = {f"job{number}" for number in range(40)} | {"early0", "early1", "put off"}
    until(lambda: set(client.lrange("log", 0, -1)) == done, 20, "all done")
    until(lambda: client.xlen("jobs") == 0, what="an empty stream")
    assert len(client.lrange("log", 0, -1)) == len(done)  # the entry of a job that is done is passed over
    assert not queue.cancel(client, "job1")


def test_each_job_of_a_list_runs_though_workers_die(place: Place) -> None:
    queue, client = recipe("ready_list"), place.connect()
    place.set_up("ready_list")
    for number in range(40):
        queue.put(client, f"job{number}", f"job{number}", 0.1 + number / 40)
    queue.put(client, "cancelled", "cancelled", 60)
    assert queue.cancel(client, "cancelled")
    for seconds in (0.2, 1.5):
        queue.put(client, "put off", "put off", seconds)
    client.rpush("working:w0", "left behind")
    first = place.worker("ready_list", "w0")
    first.line(lambda line: "running job" in line)
    first.send_signal(signal.SIGKILL)
    for name in ("w0", "w1"):
        place.worker("ready_list", name)
    done = {f"job{number}" for number in range(40)} | {"put off", "left behind"}
    until(lambda: set(client.lrange("log", 0, -1)) == done, 20, "all done")
    until(lambda: not client.exists("ready", "working:w0", "working:w1"), what="empty lists")
    assert len(client.lrange("log", 0, -1)) == len(done)
    assert not queue.cancel(client, "job1")


@one_kind
def test_the_absence_of_an_agent_is_told(place: Place) -> None:
    there, client = recipe("presence"), place.connect()
    place.set_up("presence")
    there.alive(client, "anna")
    heard: list[tuple[str, str]] = []

    def listen() -> None:
        with contextlib.suppress(redis.ConnectionError, ValueError, OSError):
            for _, one in zip(range(3), there.watch(place.connect()), strict=False):
                heard.append(one)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    until(lambda: heard, what="a listener")
    for agent, seconds in (("bob", 0.3), ("eve", 0.3), ("anna", 60)):
        there.alive(client, agent, seconds)
    there.alive(client, "carl", 60)
    there.leave(client, "carl")  # who leaves is not lost
    thread.join(20)
    assert heard[0] == ("there", "anna")
    assert sorted(heard[1:]) == [("lost", "bob"), ("lost", "eve")]
    assert there.present(client) == {"anna"}


# Without.


@one_kind
def test_who_fails_too_often_waits(place: Place) -> None:
    grey, client = recipe("grey_list"), place.connect()
    assert [grey.failed(client, "a", penalty=0.5) for _ in range(5)] == [False] * 4 + [True]
    assert not grey.may_try(client, "a")
    assert grey.seconds_left(client, "b") == 0
    until(lambda: grey.may_try(client, "a"), what="an end of the penalty")
    assert [grey.failed(client, "b", within=0.3) for _ in range(4)] == [False] * 4
    until(lambda: not client.hexists("failures", "b"), what="an end of the minute")
    assert not grey.failed(client, "b")
    assert grey.failed(client, "a") is False


@one_kind
def test_messages_lapse_and_are_counted(place: Place) -> None:
    inbox, client = recipe("inbox"), place.connect()
    place.set_up("inbox")
    for number in range(3):
        inbox.send(client, "ann", f"short {number}", 0.2)
    inbox.send(client, "ann", "long", 60)
    inbox.send(client, "bob", "read in time", 0.5)
    assert inbox.read(client, "bob") == ["read in time"]
    until(lambda: inbox.unread(client, "ann") == 1, what="an end of three")
    assert inbox.read(client, "ann") == ["long"]
    counts, last = inbox.missed(client)
    assert counts == {"ann": 3}
    assert inbox.missed(client, last) == ({}, last)


@one_kind
def test_objects_lapse_one_by_one(place: Place) -> None:
    cache = recipe("object_cache").Cache(place.connect(), "users", 0.4)
    loaded: list[str] = []

    def load(number: str) -> list[str]:
        loaded.append(number)
        return [number]

    assert [cache.get(number, load) for number in ("1", "2", "1")] == [["1"], ["2"], ["1"]]
    assert loaded == ["1", "2"]
    began = time.monotonic()
    while time.monotonic() - began < 0.6:
        cache.put("2", ["fresh"])
    assert cache.get("1", load) == ["1"]
    assert (cache.get("2", load), loaded) == (["fresh"], ["1", "2", "1"])
    cache.forget("1")
    assert len(cache) == 1
    cache.forget()
    assert len(cache) == 0


@one_kind
def test_tags_do_not_grow_for_ever(place: Place) -> None:
    tags, client = recipe("cache_tags"), place.connect()
    shown = ["product:7", "shop"]
    assert tags.put(client, "/7", "<7>", shown, tags.numbers(client, shown), 60)
    assert tags.put(client, "/8", "<8>", ["shop"], tags.numbers(client, ["shop"]), 0.2)
    until(lambda: client.smembers("tag:shop") == {"/7"}, what="an end of the page that has expired")
    before = tags.numbers(client, shown)
    assert tags.drop(client, "product:7") == 1
    assert client.get("page:/7") is None
    assert not tags.put(client, "/7", "<stale>", shown, before, 60)
    assert tags.drop(client, "nothing") == 0


@one_kind
def test_products_lapse_from_a_list(place: Place) -> None:
    seen, client = recipe("recent"), place.connect()
    for number in range(12):
        seen.look(client, "7", f"p{number}", 0.3 if number == 11 else 60)
    seen.look(client, "7", "p5", 60)
    assert seen.recent(client, "7")[:2] == ["p5", "p11"]
    assert len(seen.recent(client, "7")) == 10
    until(lambda: "p11" not in seen.recent(client, "7"), what="an end of one")
    seen.look(client, "7", "p11", 60)
    assert len(seen.recent(client, "7")) == 10
