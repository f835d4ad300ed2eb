"""Whether EXPIREMEMBER and `TTL key member` are as fast on a set of 200,000 members as on one of 1,000.

    python -m benchmarks.members [--check]

Every member of every set has a deadline before anything is measured. Then, in each round and for each set in turn (in
an order that rotates), deadlines of random members are set anew, their TTL is asked for, both pipelined, and a number
of TTL are asked for one after another, for their latency. Requests are packed before the clock starts and replies are
counted, not parsed, so that the client costs little. A figure is the median of its rounds; a ratio is the median of the
ratios to the smallest set within each round.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import Connection, Request, Stage, batches

_SIZES: Final = (1_000, 10_000, 100_000, 200_000)
_DEPTH: Final = 100
_EXPIREMEMBER, _TTL = "EXPIREMEMBER", "TTL key member"


def _key(size: int) -> str:
    return f"members:{size}"


def _far() -> int:
    """Return a delay in seconds that does not run out meanwhile."""
    return random.randrange(1_000_000, 2_000_000)


def _fill(connection: Connection, size: int) -> None:
    key = _key(size)
    for at in range(0, size, 500):
        connection.call("SADD", key, *(f"member:{number}" for number in range(at, min(at + 500, size))))
    requests = (("EXPIREMEMBER", key, f"member:{number}", _far()) for number in range(size))
    for packed, count in batches(requests):
        connection.count_integers(packed, count)


def _per_second(connection: Connection, make: Callable[[], Request], count: int) -> float:
    packed = list(batches((make() for _ in range(count)), _DEPTH))
    began = time.perf_counter()
    for data, size in packed:
        connection.count_integers(data, size)
    return count / (time.perf_counter() - began)


def _latencies(connection: Connection, make: Callable[[], Request], count: int) -> list[float]:
    packed = list(batches((make() for _ in range(count)), 1))
    took = []
    for data, _ in packed:
        began = time.perf_counter()
        connection.count_integers(data, 1)
        took.append((time.perf_counter() - began) * 1000)
    return took


def measure(options: argparse.Namespace) -> Report:
    """Measure every size in every round."""
    sizes: list[int] = sorted(options.sizes)
    rates: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in (_EXPIREMEMBER, _TTL)}
    latencies: dict[int, list[float]] = {size: [] for size in sizes}
    with Stage() as stage, Connection(stage.proxy(stage.redis(), *options.proxy_arg).port) as connection:
        for size in sizes:
            progress(f"filling a set of {size} members")
            _fill(connection, size)
        for number in range(options.rounds):
            progress(f"round {number + 1} of {options.rounds}")
            first = number % len(sizes)
            for size in sizes[first:] + sizes[:first]:

                def member(size: int = size) -> str:
                    return f"member:{random.randrange(size)}"

                def expire(size: int = size) -> Request:
                    return "EXPIREMEMBER", _key(size), member(size), _far()

                def ttl(size: int = size) -> Request:
                    return "TTL", _key(size), member(size)

                rates[_EXPIREMEMBER][size].append(_per_second(connection, expire, options.requests))
                rates[_TTL][size].append(_per_second(connection, ttl, options.requests))
                latencies[size] += _latencies(connection, ttl, options.latency_requests)
    return _report(sizes, rates, latencies)


def _report(sizes: list[int], rates: dict[str, dict[int, list[float]]], latencies: dict[int, list[float]]) -> Report:
    ratios = {
        name: {
            size: statistics.median(one / base for one, base in zip(of_size[size], of_size[sizes[0]], strict=True))
            for size in sizes
        }
        for name, of_size in rates.items()
    }
    rows = []
    for size in sizes:
        row = [f"{size:,}"]
        for name, of_size in rates.items():
            row += [f"{statistics.median(of_size[size]):,.0f}", f"{ratios[name][size]:.2f}"]
        rows.append([*row, *(f"{percentile(latencies[size], percent):.3f}" for percent in (50, 99))])
    head = ["members of the set"]
    for name in rates:
        head += [f"{name} a second", "ratio"]
    text = table([*head, "TTL alone, p50 ms", "p99 ms"], rows)
    bars = [
        Bar(f"{name}: {size:,} members / {sizes[0]:,}", ratios[name][size], 0.8) for name in rates for size in sizes[1:]
    ]
    alone = percentile(latencies[sizes[-1]], 50)
    bars.append(Bar(f"TTL alone, {sizes[-1]:,} members, p50 ms", alone, 0.3, at_least=False))
    data = {
        "per_second": rates,
        "ratios": ratios,
        "ttl_ms": {size: {f"p{p}": percentile(took, p) for p in (50, 99)} for size, took in latencies.items()},
    }
    return Report(text, data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="members of the sets (1000 to 200000)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each set is measured (5)")
    parser.add_argument("--requests", type=int, default=10_000, help="pipelined requests of a measurement (10000)")
    parser.add_argument("--latency-requests", type=int, default=500, help="single requests of a measurement (500)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
