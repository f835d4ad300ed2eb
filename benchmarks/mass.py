"""What a mass expiry does to other clients: a set of 1,000,000 members due in one second, then 100,000 sets of one.

    python -m benchmarks.mass [--members 1000000] [--keys 100000] [--check]

Two clients send a GET every millisecond, of a key that has nothing to do with it: one through the proxy, one straight
to Redis. They do so for some quiet seconds first, then from the first deadline until everything is gone, which is
watched straight on Redis. A client that is kept waiting past its next millisecond has its next requests counted from
when they were due, not from when they could be sent at last: otherwise one long stall would count as one slow request.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import BATCH, Connection, Stage, StageError, batches

_QUIET_SECONDS: Final = 3.0
_DRAIN_SECONDS: Final = 300.0
_PERIOD: Final = 0.001
_WITHIN_MS: Final = 1000
_PROBE: Final = 2000
"""Deadlines set to learn how long the rest will take."""
_LOOK_SECONDS: Final = 0.02
_OWN_KEYS: Final = 3
"""Keys that the proxy may keep for itself when nothing has a deadline."""
_P99_MS: Final = 10.0


class Bystander(threading.Thread):
    """A client that sends a GET every millisecond, and notes how long each took."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.latencies: list[float] = []
        self.error: Exception | None = None
        self._connection = Connection(port)
        self._ended = threading.Event()

    def run(self) -> None:
        """Send until told to end."""
        due = time.perf_counter()
        try:
            while not self._ended.is_set():
                if (wait := due - time.perf_counter()) > 0:
                    time.sleep(wait)
                    due = time.perf_counter()  # waking up late is nobody's fault here
                self._connection.call("GET", "bystander")
                self.latencies.append((time.perf_counter() - due) * 1000)
                due += _PERIOD
        except (OSError, StageError) as error:
            self.error = error

    def end(self) -> list[float]:
        """Stop, and return the latencies in ms."""
        self._ended.set()
        self.join(60)
        self._connection.close()
        if self.error is not None:
            raise StageError(f"a bystander's GET failed: {self.error}")
        return self.latencies


def _observe(ports: dict[str, int], ended: Callable[[], bool]) -> dict[str, list[float]]:
    """Let a bystander on each port run until something has ended."""
    bystanders = {name: Bystander(port) for name, port in ports.items()}
    for bystander in bystanders.values():
        bystander.start()
    give_up = time.monotonic() + _DRAIN_SECONDS
    try:
        while not ended():
            if time.monotonic() > give_up:
                raise StageError(f"not drained after {_DRAIN_SECONDS:.0f} s")
            time.sleep(_LOOK_SECONDS)
    finally:
        latencies = {name: bystander.end() for name, bystander in bystanders.items()}
    return latencies


@dataclass(frozen=True)
class Crowd:
    """Members that are due together: `per_key` in each of `keys` sets."""

    name: str
    keys: int
    per_key: int

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every key and member."""
        for key in range(self.keys):
            for number in range(self.per_key):
                yield f"{self.name}:{key}", f"member:{number}"

    def gather(self, straight: Connection, through: Connection) -> float:
        """Add the members and set their deadlines; return the first deadline, some seconds ahead, in Unix ms."""
        count = self.keys * self.per_key
        progress(f"adding {count} members to {self.keys} sets")
        for packed, size in batches(("SADD", key, member) for key, member in self.pairs()):
            straight.count_integers(packed, size)
        far = int(straight.now_ms()) + 3_600_000
        began = time.perf_counter()
        self._set(through, (far for _ in range(min(count, _PROBE))))
        each_ms = (time.perf_counter() - began) * 1000 / min(count, _PROBE)
        first = int(straight.now_ms() + count * each_ms * 2 + 3000)
        progress(f"setting their deadlines, {(first - straight.now_ms()) / 1000:.0f} s ahead")
        self._set(through, (first + random.randrange(_WITHIN_MS) for _ in range(count)))
        if straight.now_ms() >= first:
            raise StageError("setting the deadlines took longer than the first of them")
        return first

    def _set(self, through: Connection, deadlines: Iterator[int]) -> None:
        pairs = zip(self.pairs(), deadlines, strict=False)
        for packed, size in batches(("PEXPIREMEMBERAT", key, member, at) for (key, member), at in pairs):
            through.count_integers(packed, size)

    def left(self, straight: Connection) -> int:
        """Count the keys that are still there."""
        names = (f"{self.name}:{key}" for key in range(self.keys))
        left = 0
        while some := list(islice(names, BATCH)):
            left += straight.call("EXISTS", *some)
        return left


def _measure(crowd: Crowd, ports: dict[str, int], straight: Connection, through: Connection) -> dict[str, Any]:
    quiet_end = time.monotonic() + _QUIET_SECONDS
    quiet = _observe(ports, lambda: time.monotonic() > quiet_end)
    keys_before = straight.call("DBSIZE")
    first = crowd.gather(straight, through)
    time.sleep(max(0.0, first - straight.now_ms()) / 1000)
    progress("draining")

    def drained() -> bool:
        # Counting all keys is cheap, asking for each is not: ask once the count says that there can be none.
        return straight.call("DBSIZE") <= keys_before + _OWN_KEYS and not crowd.left(straight)

    latencies = _observe(ports, drained)
    seconds = (straight.now_ms() - first - _WITHIN_MS) / 1000
    return {"drained_seconds": seconds, "quiet": quiet, "draining": latencies}


def measure(options: argparse.Namespace) -> Report:
    """Measure both crowds."""
    crowds = [Crowd("one", 1, options.members), Crowd("many", options.keys, 1)]
    with Stage() as stage:
        redis = stage.redis()
        ports = {"through the proxy": stage.proxy(redis, *options.proxy_arg).port, "straight": redis.port}
        with Connection(redis.port) as straight, Connection(ports["through the proxy"]) as through:
            straight.call("SET", "bystander", "x" * 64)
            wanted = [crowd for crowd in crowds if crowd.keys and crowd.per_key]
            results = {crowd: _measure(crowd, ports, straight, through) for crowd in wanted}
    return _report(results)


def _report(results: dict[Crowd, dict[str, Any]]) -> Report:
    rows, bars, data, drained = [], [], {}, []
    for crowd, result in results.items():
        name = f"{crowd.keys:,} of {crowd.per_key:,}"
        drained.append(f"Sets of members {name}: gone {result['drained_seconds']:.2f} s after the last deadline.")
        data[name] = {"drained_seconds": result["drained_seconds"]}
        for phase in ("quiet", "draining"):
            for path, took in result[phase].items():
                figures = {f"p{percent}": percentile(took, percent) for percent in (50, 99, 100)}
                cells = [f"{figure:.2f}" for figure in figures.values()]
                rows.append([f"{name}, {phase}, {path}", f"{len(took)}", *cells])
                data[name][f"{phase}, {path}, ms"] = figures
                if phase == "draining":
                    bars.append(Bar(f"{name}: GET {path}, p99 ms", figures["p99"], _P99_MS, at_least=False))
    text = table(["sets of members, GET in ms", "requests", "p50", "p99", "max"], rows)
    return Report(text + "\n\n" + "\n".join(drained), data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1_000_000, help="members of the one set (1000000; 0: leave out)")
    parser.add_argument("--keys", type=int, default=100_000, help="sets of one member each (100000; 0: leave out)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
