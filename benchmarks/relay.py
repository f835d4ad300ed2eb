"""How many SET and GET a second go through the proxy, beside straight to Redis, through HAProxy and through nutcracker.

    python -m benchmarks.relay [--known-keys 100000] [--bare] [--unix] [--admin] [--check]

Load comes from redis-benchmark (or valkey-benchmark): 50 connections, 64-byte values, random keys, without pipelining
and 32 deep; and one connection alone, whose rate tells how long a request takes. All paths lead to one Redis, and none
is busy while another is measured. A machine is never quiet, so every round measures each path in turn, in an order that
rotates from round to round. A figure is the median of its rounds, with the lowest and the highest behind it; a ratio is
the median of the ratios within each round, since those were measured within seconds of each other.

HAProxy relays bytes in TCP mode, with one thread, as the proxy and Redis have (`--haproxy-threads 0`: as many as it
chooses; on two cores that changes little). nutcracker has one server and one connection to it, as its authors advise.

The proxy is measured with shared connections, as it comes, and without (`--no-share`).

With `--bare` a relay on the proxy's own event loop that looks at nothing is measured too: what is lost to HAProxy there
is the loop's, and only the rest the proxy's.

With `--unix` the proxy is measured too as a sidecar can run it, with Redis behind a Unix socket.

With `--admin` the proxy is measured too with an admin port that is scraped every second meanwhile.

With `--known-keys N` a second Redis holds N sets of one member each whose deadline is far away; the proxy in front of
it knows all N, and the traffic touches none of them. Its ratio is to the proxy in front of the first Redis, which holds
as many keys, without deadlines.

The last rows tell the processor time that each takes for a request, and that Redis takes behind it, in µs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from benchmarks.figures import Bar, Report, add_output_options, progress, run, table
from benchmarks.stage import HOST, Connection, Service, Stage, free_port, generated_rate

_CONNECTIONS: Final = 50
_VALUE_BYTES: Final = 64
_KEYSPACE: Final = 100_000
_PIPELINED_FACTOR: Final = 8
"""Pipelined requests take about an eighth of the time."""
_ALONE: Final = 5
"""Those of a single connection take about five times as long."""

_REDIS, _HAPROXY, _NUTCRACKER = "Redis, straight", "HAProxy", "nutcracker"
_PROXY, _KNOWING, _BARE, _UNIX = "proxy", "proxy, keys known", "bare uvloop relay", "proxy, Unix socket"
_ADMIN, _OWN = "proxy, scraped", "proxy, --no-share"


class Load(NamedTuple):
    """One kind of traffic."""

    command: str
    depth: int = 1
    connections: int = _CONNECTIONS

    def __str__(self) -> str:
        if self.connections == 1:
            return f"{self.command}, alone"
        return f"{self.command}, {self.depth} deep" if self.depth > 1 else self.command

    def requests(self, count: int) -> int:
        """Return how many requests to send, where `count` are sent by many connections without pipelining."""
        if self.depth > 1:
            return count * _PIPELINED_FACTOR
        return max(1, count // _ALONE) if self.connections == 1 else count


_MANY: Final = Load("SET"), Load("GET")
_DEEP: Final = Load("SET", 32), Load("GET", 32)
_ALONE_LOADS: Final = Load("SET", connections=1), Load("GET", connections=1)
_LOADS: Final = (*_MANY, *_DEEP, *_ALONE_LOADS)


def _requests_per_second(port: int, load: Load, requests: int) -> float:
    return generated_rate(
        port,
        *("-t", load.command.lower(), "-c", load.connections, "-n", load.requests(requests)),
        *("-d", _VALUE_BYTES, "-r", _KEYSPACE, "-P", load.depth),
    )


def _ballast(count: int, deadlines: bool) -> Iterator[tuple[str | int, ...]]:
    """Make keys that the traffic does not touch: with deadlines, or as many with none."""
    for number in range(count):
        yield "SADD", f"untouched:{number}", "member"
        if deadlines:
            yield "EXPIREMEMBER", f"untouched:{number}", "member", 1_000_000
        else:
            yield "ZADD", f"beside:{number}", 1, "member"


@contextmanager
def _scraped(port: int) -> Iterator[None]:
    """Read the metrics of an admin port every second; at port 0 nothing."""
    end = threading.Event()

    def scrape() -> None:
        while not end.wait(1.0):
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=scrape, daemon=True)
    if port:
        thread.start()
    try:
        yield
    finally:
        end.set()
        if port:
            thread.join()


def _set_up(stage: Stage, options: argparse.Namespace, admin_port: int) -> dict[str, Service]:
    redis = stage.redis()
    paths = {
        _REDIS: redis,
        _HAPROXY: stage.haproxy(redis, options.haproxy_threads),
        _NUTCRACKER: stage.nutcracker(redis),
        _PROXY: stage.proxy(redis, *options.proxy_arg),
        _OWN: stage.proxy(redis, *options.proxy_arg, "--no-share"),
    }
    if options.bare:
        paths[_BARE] = stage.bare(redis)
    if options.unix:
        paths[_UNIX] = stage.proxy(redis, *options.proxy_arg, unix=True)
    if options.admin:
        paths[_ADMIN] = stage.proxy(redis, *options.proxy_arg, "--admin", f"{HOST}:{admin_port}")
    if options.known_keys:
        paths[_KNOWING] = stage.proxy(stage.redis(), *options.proxy_arg)
        for name, deadlines in ((_KNOWING, True), (_REDIS, False)):
            progress(f"loading {options.known_keys} keys, deadlines: {deadlines}")
            with Connection(paths[name].port) as connection:
                connection.pipeline(_ballast(options.known_keys, deadlines))
    return paths


def measure(options: argparse.Namespace) -> Report:
    """Measure every path under every load."""
    with Stage() as stage:
        admin_port = free_port()
        paths = _set_up(stage, options, admin_port)
        names = list(paths)
        costs: dict[Load, dict[str, list[float]]] = {load: {name: [] for name in names} for load in _LOADS}
        behind: dict[Load, dict[str, list[float]]] = {load: {name: [] for name in names} for load in _LOADS}
        figures: dict[Load, dict[str, list[float]]] = {load: {name: [] for name in names} for load in _LOADS}
        for number in range(options.rounds):
            progress(f"round {number + 1} of {options.rounds}")
            first = number % len(names)
            for load in _LOADS:
                for name in names[first:] + names[:first]:
                    service = paths[name]
                    server = paths[_REDIS]
                    before, servers = service.cpu_seconds(), server.cpu_seconds()
                    with _scraped(admin_port if name == _ADMIN else 0):
                        figure = _requests_per_second(service.port, load, options.requests)
                    figures[load][name].append(figure)
                    count = load.requests(options.requests)
                    costs[load][name].append((service.cpu_seconds() - before) / count * 1e6)
                    behind[load][name].append((server.cpu_seconds() - servers) / count * 1e6)
    return _report(figures, costs, behind, options)


def _ratio(figures: dict[str, list[float]], name: str, base: str) -> float:
    pairs = zip(figures[name], figures[base], strict=True)
    return statistics.median(one / other if other else math.nan for one, other in pairs)


def _report(
    figures: dict[Load, dict[str, list[float]]],
    costs: dict[Load, dict[str, list[float]]],
    behind: dict[Load, dict[str, list[float]]],
    options: argparse.Namespace,
) -> Report:
    names = list(figures[_LOADS[0]])
    comparisons = [(one, other) for one in (_PROXY, _OWN) for other in (_HAPROXY, _NUTCRACKER, _REDIS)]
    comparisons.append((_PROXY, _OWN))
    each = (_HAPROXY, 1.3), (_NUTCRACKER, 1.0), (_REDIS, 0.95)
    least = [(load, base, bar) for load in _MANY for base, bar in each]
    least += [(load, base, bar) for load in _DEEP for base, bar in ((_HAPROXY, 0.95), (_NUTCRACKER, 1.5))]
    least += [(load, _OWN, 1 / 1.05) for load in _ALONE_LOADS]
    bars = [Bar(f"{load}: proxy / {base}", _ratio(figures[load], _PROXY, base), bar) for load, base, bar in least]
    bars += [
        Bar(f"{load}: Redis's CPU, straight / behind the proxy", _ratio(behind[load], _REDIS, _PROXY), 2.5)
        for load in _MANY
    ]
    if _BARE in names:
        comparisons += [(_BARE, _HAPROXY), (_OWN, _BARE)]
    if _UNIX in names:
        comparisons.append((_UNIX, _HAPROXY))
    if _ADMIN in names:
        comparisons += [(_ADMIN, _PROXY), (_ADMIN, _HAPROXY)]
        bars += [Bar(f"{load}: scraped / not", _ratio(figures[load], _ADMIN, _PROXY), 0.95) for load in _LOADS]
    if _KNOWING in names:
        comparisons.append((_KNOWING, _PROXY))
        what = f"{options.known_keys} keys known / none"
        bars += [Bar(f"{load}: {what}", _ratio(figures[load], _KNOWING, _PROXY), 0.9) for load in _LOADS]
    rows = [[name, *(_thousands(figures[load][name]) for load in _LOADS)] for name in names]
    rows += [
        [f"{name} / {base}", *(f"{_ratio(figures[load], name, base):.2f}" for load in _LOADS)]
        for name, base in comparisons
    ]
    rows += [
        [f"{name}: µs of CPU a request", *(f"{statistics.median(costs[load][name]):.2f}" for load in _LOADS)]
        for name in names
    ]
    rows += [
        [f"Redis behind {name}: µs", *(f"{statistics.median(behind[load][name]):.2f}" for load in _LOADS)]
        for name in names
        if name not in (_REDIS, _KNOWING)
    ]
    text = table(["thousand requests a second: median (lowest to highest)", *map(str, _LOADS)], rows)
    data = {
        "rounds": options.rounds,
        "known_keys": options.known_keys,
        "requests_per_second": {str(load): figures[load] for load in _LOADS},
        "cpu_microseconds": {str(load): costs[load] for load in _LOADS},
        "cpu_microseconds_of_redis": {str(load): behind[load] for load in _LOADS},
        "ratios": {
            f"{name} / {base}": {str(load): _ratio(figures[load], name, base) for load in _LOADS}
            for name, base in comparisons
        },
    }
    return Report(text, data, bars)


def _thousands(values: list[float]) -> str:
    return f"{statistics.median(values) / 1000:.1f} ({min(values) / 1000:.1f} to {max(values) / 1000:.1f})"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each path is measured (5)")
    parser.add_argument(
        "--requests", type=int, default=100_000, help="requests of a measurement (100000); pipelined, 8 times as many"
    )
    parser.add_argument("--known-keys", type=int, default=0, metavar="N", help="measure with N known keys too (none)")
    parser.add_argument("--bare", action="store_true", help="measure a relay on uvloop that looks at nothing too")
    parser.add_argument("--unix", action="store_true", help="measure the proxy with Redis on a Unix socket too")
    parser.add_argument("--admin", action="store_true", help="measure the proxy with a scraped admin port too")
    parser.add_argument("--haproxy-threads", type=int, default=1, metavar="N", help="threads of HAProxy (1)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
