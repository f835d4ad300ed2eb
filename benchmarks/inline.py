"""How many PING a second go through the proxy as inline requests, which health checks and `nc` send, beside others.

    python -m benchmarks.inline [--check]

Load comes from redis-benchmark (or valkey-benchmark): 50 connections, and one alone, 1, 16 and 64 deep; each sends PING
as a line and as an array of one string, straight and through the proxy. A figure is the median of the rounds, a ratio
the median of the ratios within each round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, progress, run, table
from benchmarks.stage import Stage, generated_rate

_FORMS: Final = "ping_inline", "ping_mbulk"
_LOADS: Final = (50, 1), (50, 16), (50, 64), (1, 1), (1, 16), (1, 64)
"""Connections, and how deep each of them sends."""


def measure(options: argparse.Namespace) -> Report:
    """Measure both forms under every load."""
    figures: dict[tuple[int, int], list[list[float]]] = {load: [] for load in _LOADS}
    costs: dict[tuple[int, int], list[list[float]]] = {load: [] for load in _LOADS}
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        for number in range(options.rounds):
            progress(f"round {number + 1} of {options.rounds}")
            for clients, depth in _LOADS:
                count = options.requests * min(depth, 8) // (1 if clients > 1 else 5)
                rates, spent = [], []
                for form in _FORMS:
                    for service in (redis, proxy):
                        before = proxy.cpu_seconds()
                        arguments = ("-t", form, "-c", clients, "-n", count, "-P", depth)
                        rates.append(generated_rate(service.port, *arguments))
                    spent.append((proxy.cpu_seconds() - before) / count * 1e6)
                figures[clients, depth].append(rates)
                costs[clients, depth].append(spent)
    rows, bars = [], []
    for load in _LOADS:
        straight, line, straight_array, array = map(statistics.median, zip(*figures[load], strict=True))
        of_line, of_array = map(statistics.median, zip(*costs[load], strict=True))
        ratio = statistics.median(one / other for one, other in costs[load])
        what = f"{load[0]} connections, {load[1]} deep" if load[0] > 1 else f"alone, {load[1]} deep"
        each = (f"{rate / 1000:.1f}" for rate in (straight, line, straight_array, array))
        rows.append([what, *each, f"{of_line:.2f}", f"{of_array:.2f}"])
        bars.append(Bar(f"{what}: CPU of the proxy, array / line", 1 / ratio, 0.9))
    head = ["thousand PING a second", "line, straight", "line, proxy", "array, straight", "array, proxy"]
    text = table([*head, "line: µs of CPU", "array: µs of CPU"], rows)
    data = {"rounds": options.rounds, "requests_per_second": {str(load): figures[load] for load in _LOADS}}
    return Report(text, data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each path is measured (5)")
    parser.add_argument("--requests", type=int, default=50_000, help="requests of a measurement (50000)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
