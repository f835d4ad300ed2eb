"""Whether several proxies judge as one: a first deadline through one, and what the others then make of the key.

    python -m benchmarks.window [--sequences 10000] [--check]

Clients of two and of four proxies use the same fresh keys in turn. A *life* gives a member a deadline through one
proxy, then removes the member and adds it again through another: it must have no deadline. A *read* looks at a member
with a deadline of 5 ms through another proxy once it has passed: it must not be there. Meanwhile nothing else happens,
or one proxy is under load, is stopped for 3 s and goes on, is killed, joins, or loses its control connection.

Last, through one proxy: a client's removal and addition of a member is under way, behind many requests of the same
pipeline or by itself, while another client gives the key its first deadline. By itself is a window that
docs/semantics.md names, so no bar holds it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import Connection, Service, Stage, StageError, batches, milliseconds

_MEDIAN_MS: Final = 3.0
_A_SECOND: Final = 10_000
_SHADOW: Final = "__expiremember__:k:{%s}"


@dataclass
class _Sequences:
    """What clients do in turn, and what came of it."""

    clients: list[Connection]
    beside: Connection
    name: str
    number: int = 0
    stale: int = 0
    seen: int = 0
    waits: list[float] = field(default_factory=list)

    def go(self, count: int) -> None:
        """Let a number of sequences happen, one in eight of which is a read."""
        for _ in range(count):
            self.number += 1
            first = self.clients[self.number % len(self.clients)]
            step = 1 + self.number // len(self.clients) % (len(self.clients) - 1)
            other = self.clients[(self.number + step) % len(self.clients)]
            (self._read if self.number % 8 == 0 else self._live)(f"{self.name}:{self.number}", first, other)

    def _live(self, key: str, first: Connection, other: Connection) -> None:
        first.call("SADD", key, "m")
        begin = time.perf_counter()
        first.call("EXPIREMEMBER", key, "m", 1000)
        self.waits.append((time.perf_counter() - begin) * 1000)
        other.call("SREM", key, "m")
        other.call("SADD", key, "m")
        self.stale += self.beside.call("ZSCORE", _SHADOW % key, "m") is not None

    def _read(self, key: str, first: Connection, other: Connection) -> None:
        first.call("SADD", key, "m", "n")
        first.call("PEXPIREMEMBER", key, "m", 5)
        deadline = self.beside.now_ms() + 5
        while self.beside.now_ms() <= deadline:
            pass
        self.seen += other.call("SISMEMBER", key, "m")


@contextlib.contextmanager
def _load(proxy: Service) -> Iterator[None]:
    """Keep a proxy busy with requests that it has to judge."""
    done = threading.Event()
    with Connection(proxy.port) as client:
        client.call("SADD", "busy", "a")
        client.call("EXPIREMEMBER", "busy", "a", 10_000)
    requests = [("SADD", "busy", "b", "c")] * 150 + [("TTL", "busy", "a")] * 50
    packed = next(batches(requests))[0]

    def work() -> None:
        with Connection(proxy.port) as client:
            while not done.is_set():
                client.count_integers(packed, len(requests))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


class _Run:
    """One kind of run: its own Redis, its own proxies."""

    def __init__(self, stage: Stage, options: argparse.Namespace, name: str, proxies: int) -> None:
        self.stage = stage
        self.options = options
        self.redis = stage.redis()
        self.proxies = [self.start() for _ in range(proxies)]
        self.clients = [Connection(proxy.port) for proxy in self.proxies]
        self.beside = Connection(self.redis.port)
        self.sequences = _Sequences(self.clients, self.beside, name)

    def start(self) -> Service:
        return self.stage.proxy(self.redis, *self.options.proxy_arg)

    def quiet(self) -> None:
        self.sequences.go(self.options.sequences)

    def loaded(self, which: int) -> None:
        with _load(self.proxies[which]):
            self.quiet()

    def disturbed(self, disturb: Callable[[], Callable[[], None]], times: int) -> None:
        """Let something happen several times in the course of the run; what it returns ends it after 3 s."""
        for _ in range(times):
            undo = disturb()
            timer = threading.Timer(3.0, undo)
            timer.start()
            self.sequences.go(self.options.sequences // times)
            timer.join()

    def stop_one(self) -> Callable[[], None]:
        """Stop a proxy for 3 s, while its client goes on through the others."""
        self.proxies[-1].process.send_signal(signal.SIGSTOP)
        return lambda: self.proxies[-1].process.send_signal(signal.SIGCONT)

    def replace_one(self) -> Callable[[], None]:
        """Kill a proxy, and start another."""
        self.proxies[-1].process.kill()
        self.proxies[-1].process.wait()
        self.clients.pop().close()
        self.sequences.go(20)
        self.proxies[-1] = self.start()
        self.clients.append(Connection(self.proxies[-1].port))
        return lambda: None

    def join_one(self) -> Callable[[], None]:
        """Start one more proxy."""
        self.proxies.append(self.start())
        self.clients.append(Connection(self.proxies[-1].port))
        return lambda: None

    def cut_one(self) -> Callable[[], None]:
        """Have the server drop the control connection of a proxy."""
        clients: bytes = self.beside.call("CLIENT", "LIST", "TYPE", "pubsub")
        name = clients.split(b"id=", 1)[1].split(b" ", 1)[0]
        self.beside.call("CLIENT", "KILL", "ID", name)
        return lambda: None

    def end(self) -> None:
        for connection in (*self.clients, self.beside):
            connection.close()
        for service in (*self.proxies, self.redis):
            self.stage.stop(service)


_RUNS: Final[dict[str, tuple[int, Callable[[_Run], None]]]] = {
    "two, quiet": (2, _Run.quiet),
    "four, quiet": (4, _Run.quiet),
    "two, the first under load": (2, lambda run: run.loaded(0)),
    "two, the second under load": (2, lambda run: run.loaded(1)),
    "three, one stopped for 3 s, 5 times": (3, lambda run: run.disturbed(run.stop_one, 5)),
    "three, one killed and replaced, 5 times": (3, lambda run: run.disturbed(run.replace_one, 5)),
    "two, one more joining, 4 times": (2, lambda run: run.disturbed(run.join_one, 4)),
    "two, control connection cut, 5 times": (2, lambda run: run.disturbed(run.cut_one, 5)),
}


_IN_FLIGHT: Final[dict[str, tuple[int, tuple[str, ...], float]]] = {
    "one, a re-add behind 10,000 GET": (10_000, ("GET", "nothing"), 0.02),
    "one, a re-add behind 5,000 LPOS of 60 us": (5_000, ("LPOS", "long", "absent"), 0.1),
    "one, a re-add at the same moment": (0, (), 0.0),
}
"""What is ahead of the re-add in its pipeline, and within how many seconds the first deadline is given."""


def _in_flight(run: _Run, ahead: int, slow: tuple[str, ...], within: float, sequences: int) -> tuple[int, list[float]]:
    """Have a first deadline given while a re-add is under way.

    Returns:
        How many deadlines were given for certain before the removal ran, and outlived it; and how many ms after each of
        them, as the server's clock has it, the removal ran.
    """
    stale = []
    readd = [
        [("TIME",), ("SREM", f"{ahead}:{number}", "m"), ("SADD", f"{ahead}:{number}", "m")]
        for number in range(sequences)
    ]
    sent = [b"".join(part for part, _ in batches([slow] * ahead + requests)) for requests in readd]
    together = threading.Barrier(2)
    began: list[float] = []  # when the removal is sent, or soon after, by the server's clock

    def send() -> None:
        for packed in sent:
            together.wait()
            run.clients[0].send(packed)
            began.append(milliseconds([run.clients[0].reply() for _ in range(ahead + 3)][-3]))
            together.wait()

    run.beside.call("RPUSH", "long", *range(3000))
    for number in range(sequences):
        run.beside.call("SADD", f"{ahead}:{number}", "m")
    sender = threading.Thread(target=send)
    sender.start()
    with Connection(run.proxies[0].port) as other:
        for number in range(sequences):
            together.wait()
            begin, pause = time.perf_counter(), random.uniform(0, within)
            while time.perf_counter() - begin < pause:
                time.sleep(min(pause, 0.0001))
            _, deadline = other.pipeline((("EXPIREMEMBER", f"{ahead}:{number}", "m", 1000), ("TIME",)))
            together.wait()
            later = began[-1] - milliseconds(deadline)
            if later >= 0 and run.beside.call("ZSCORE", _SHADOW % f"{ahead}:{number}", "m") is not None:
                stale.append(later)
    sender.join()
    return len(stale), stale


def _pipelined(run: _Run, keys: int) -> float:
    """Return first deadlines a second, pipelined through one proxy."""
    best = 0.0
    for attempt in range(3):
        client = run.clients[0]
        client.pipeline(("SADD", f"p{attempt}:{number}", "m") for number in range(keys))
        requests = (("EXPIREMEMBER", f"p{attempt}:{number}", "m", 1000) for number in range(keys))
        packed = b"".join(part for part, _ in batches(requests))
        begin = time.perf_counter()
        client.count_integers(packed, keys)
        best = max(best, keys / (time.perf_counter() - begin))
    return best


def measure(options: argparse.Namespace) -> Report:
    """Go through all kinds of runs."""
    rows: list[list[str]] = []
    bars: list[Bar] = []
    data: dict[str, object] = {}
    with Stage() as stage:
        for name, (proxies, act) in _RUNS.items():
            if options.only and options.only not in name:
                continue
            progress(name)
            run = _Run(stage, options, f"r{len(rows)}", proxies)
            try:
                act(run)
                if name == "two, quiet":
                    speed = _pipelined(run, 10_000)
                    bars.append(Bar("two proxies, first deadlines a second, pipelined", speed, _A_SECOND))
                    data["pipelined"] = speed
                found = run.sequences
                wait = [percentile(found.waits, percent) for percent in (50, 99, 100)]
                if name == "two, quiet":
                    bars.append(Bar("two proxies, one first deadline, median ms", wait[0], _MEDIAN_MS, at_least=False))
            finally:
                run.end()
            bars.append(Bar(f"{name}: violations", found.stale + found.seen, 1, at_least=False))
            rows.append([name, *map(str, (found.number, found.stale, found.seen)), *(f"{one:.1f}" for one in wait)])
            data[name] = {"sequences": found.number, "stale": found.stale, "seen": found.seen, "wait_ms": wait}
        in_flight = {name: how for name, how in _IN_FLIGHT.items() if options.only in name}
        left: list[list[str]] = []
        for name, how in in_flight.items():
            progress(name)
            run = _Run(stage, options, "r", 1)
            try:
                sequences = options.sequences * 2 if not how[0] else options.sequences // 100
                count, ms = _in_flight(run, *how, sequences)
            finally:
                run.end()
            worst = f"{max(ms):.1f}" if ms else "-"
            left.append([name, str(sequences), str(count), worst])
            if how[0]:
                bars.append(Bar(f"{name}: violations", count, 1, at_least=False))
            data[name] = {"sequences": sequences, "stale": count, "ms": ms}
    if not rows and not left:
        raise StageError(f"no run has {options.only!r} in its name")
    head = ["proxies", "sequences", "stale deadlines", "expired reads", "first deadline p50, ms", "p99", "worst"]
    told = [table(head, rows)] if rows else []
    if left:
        told.append(table(["in flight", "sequences", "stale deadlines", "after the deadline, worst ms"], left))
    return Report("\n\n".join(told), data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=10_000, help="sequences of each run (10000)")
    parser.add_argument("--only", default="", help="only runs with this in their name")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
