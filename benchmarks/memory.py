"""What a member with a deadline costs in Redis, and what a known key costs in the proxy.

    python -m benchmarks.memory [--members 100000] [--keys 1000000] [--check]

In Redis: MEMORY USAGE of all keys under the proxy's own prefix, asked straight and exactly (SAMPLES 0), over the number
of members of one set; and, because an allocator has its own mind, how much `used_memory` grew over the same. The member
itself is not in either figure. Then the growth of `used_memory` again, with as many members spread over sets of
several sizes: the server packs a shadow of up to 128 deadlines, and each key costs an entry of the index.

In the proxy: that many sets of one member each get a deadline through a proxy, which then ends. The memory of a new one
in front of them, when it has loaded them, less that of one in front of an empty Redis, is what they cost. A third
connection sends a GET through the new proxy every millisecond from the moment it accepts until it has loaded all, to
show whether loading keeps traffic waiting.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import Connection, Service, Stage, StageError, batches

_PREFIX: Final = "__expiremember__:"
_FAR_SECONDS: Final = 10_000_000
_LOADED: Final = re.compile(r"covered prefixes loaded.*?ms=(\d+)")
_LOAD_SECONDS: Final = 120.0
_PERIOD: Final = 0.001
_SIZES: Final = (1, 5, 20, 128, 129, 1000)
"""Deadlines of a key; the server packs a sorted set of at most 128 (zset-max-listpack-entries)."""
_MOST_MB: Final = 150
_MOST_SECONDS: Final = 5.0


def _own_bytes(straight: Connection) -> int:
    cursor, total = b"0", 0
    while True:
        cursor, names = straight.call("SCAN", cursor, "MATCH", _PREFIX + "*", "COUNT", 1000)
        for name in names:
            total += straight.call("MEMORY", "USAGE", name, "SAMPLES", 0)
        if cursor == b"0":
            return total


def _used_bytes(straight: Connection) -> int:
    info: bytes = straight.call("INFO", "memory")
    match = re.search(rb"used_memory:(\d+)", info)
    assert match is not None
    return int(match[1])


def _in_redis(options: argparse.Namespace) -> dict[str, float]:
    count = options.members
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        with Connection(redis.port) as straight, Connection(proxy.port) as through:
            for packed, size in batches(("SADD", "set", f"member:{number:08}") for number in range(count)):
                straight.count_integers(packed, size)
            member_bytes = straight.call("MEMORY", "USAGE", "set", "SAMPLES", 0)
            before = _used_bytes(straight)
            progress(f"{count} deadlines in one set")
            for packed, size in batches(
                ("EXPIREMEMBER", "set", f"member:{number:08}", _FAR_SECONDS + number) for number in range(count)
            ):
                through.count_integers(packed, size)
            return {
                "member": member_bytes / count,
                "deadline, MEMORY USAGE": _own_bytes(straight) / count,
                "deadline, used_memory": (_used_bytes(straight) - before) / count,
            }


def _by_size(options: argparse.Namespace) -> dict[int, float]:
    """Return the bytes of a deadline, by how many deadlines a key has."""
    found = {}
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        with Connection(redis.port) as straight, Connection(proxy.port) as through:
            for size in _SIZES:
                members = [
                    (f"set:{size}:{number // size}", f"member:{number:08}")
                    for number in range(options.members // size * size)
                ]
                progress(f"{size} deadlines of a key")
                for packed, count in batches(("SADD", key, member) for key, member in members):
                    straight.count_integers(packed, count)
                before = _used_bytes(straight)
                for packed, count in batches(
                    ("EXPIREMEMBER", key, member, _FAR_SECONDS + number) for number, (key, member) in enumerate(members)
                ):
                    through.count_integers(packed, count)
                found[size] = (_used_bytes(straight) - before) / max(1, len(members))
    return found


def _known(count: int) -> Iterator[tuple[str | int, ...]]:
    for number in range(count):
        yield "SADD", f"key:{number:08}", "member"
        yield "EXPIREMEMBER", f"key:{number:08}", "member", _FAR_SECONDS + number


def _loaded(proxy: Service) -> float | None:
    """Return the seconds that the proxy says it took to load the covered prefixes."""
    match = _LOADED.search(re.sub(r"\x1b\[[0-9;]*m", "", proxy.said()))
    return int(match[1]) / 1000 if match else None


def _in_proxy(options: argparse.Namespace) -> dict[str, Any]:
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        time.sleep(1.0)
        empty_bytes = proxy.resident_bytes()
        progress(f"{options.keys} keys with a deadline")
        with Connection(proxy.port) as connection:
            for packed, size in batches(_known(options.keys)):
                connection.count_integers(packed, size)
        stage.stop(proxy)
        progress("starting a new proxy in front of them")
        began = time.perf_counter()
        proxy = stage.proxy(redis, *options.proxy_arg)
        latencies: list[float] = []
        with Connection(proxy.port) as connection:
            while (loaded := _loaded(proxy)) is None or len(latencies) < 100:
                if time.perf_counter() - began > _LOAD_SECONDS:
                    raise StageError(f"no covered prefixes loaded in {_LOAD_SECONDS:.0f} s:\n{proxy.said()}")
                sent = time.perf_counter()
                connection.call("GET", "bystander")
                latencies.append((time.perf_counter() - sent) * 1000)
                time.sleep(_PERIOD)
        time.sleep(1.0)
        return {
            "ready_seconds": proxy.ready_seconds,
            "load_seconds": loaded,
            "empty_bytes": empty_bytes,
            "loaded_bytes": proxy.resident_bytes(),
            "get_ms_while_loading": {f"p{percent}": percentile(latencies, percent) for percent in (50, 99, 100)},
        }


def measure(options: argparse.Namespace) -> Report:
    """Measure both."""
    redis = _in_redis(options)
    by_size = _by_size(options)
    proxy = _in_proxy(options)
    grown = proxy["loaded_bytes"] - proxy["empty_bytes"]
    get = proxy["get_ms_while_loading"]
    each = f"bytes of each of {options.members:,} members"
    rows = [[f"Redis: {name}, {each}", f"{value:.1f}"] for name, value in redis.items()]
    rows += [
        [f"Redis: deadline where a key has {size:,}, used_memory", f"{value:.1f}"] for size, value in by_size.items()
    ]
    rows += [
        [f"proxy: bytes of each of {options.keys:,} keys with a deadline", f"{grown / options.keys:.1f}"],
        ["proxy: MB in front of none", f"{proxy['empty_bytes'] / 1e6:.1f}"],
        ["proxy: MB in front of them", f"{proxy['loaded_bytes'] / 1e6:.1f}"],
        ["proxy: seconds from its start to ready", f"{proxy['ready_seconds']:.2f}"],
        ["proxy: seconds to load the covered prefixes", f"{proxy['load_seconds']:.2f}"],
        ["GET through it meanwhile, p50 / p99 / max ms", f"{get['p50']:.2f} / {get['p99']:.2f} / {get['p100']:.2f}"],
    ]
    bars = [
        Bar(f"MB for {options.keys:,} keys with a deadline", grown / 1e6, _MOST_MB, at_least=False),
        Bar("seconds to load them", proxy["load_seconds"], _MOST_SECONDS, at_least=False),
    ]
    return Report(table(["", "figure"], rows), {"redis_bytes": redis, "bytes_by_size": by_size, "proxy": proxy}, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=100_000, help="members with deadlines in Redis (100000)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys that the proxy knows (1000000)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
