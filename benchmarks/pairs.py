"""What "add it, and say how long it lives" costs, where one client sends many such pairs.

    python -m benchmarks.pairs [--check]

One client sends pipelines of 200 requests and waits for the replies to each. Every key is new: no request finds
anything of an earlier one. Beside that, in the same rounds, it sends HSET and HEXISTS straight to the server. The
deadlines are far away. Then redis-py sends as many of the first pairs in one piece, as a pipeline and as a transaction.

In front of pipelines requests are packed before the clock starts and replies are counted, not parsed, so that the
client costs little; redis-py does all that on the clock. A figure is the median of its rounds; a ratio is the median of
the ratios within each round. CPU is that of all threads of the proxy and of the server, a request (Linux only).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import redis

from benchmarks.figures import Bar, Report, add_output_options, progress, run, table
from benchmarks.stage import Connection, Request, Service, Stage, batches

_DEPTH: Final = 200
_DELAY: Final = 1_000_000
"""Of each deadline, in seconds."""

_STRAIGHT: Final = "HSET, HEXISTS, straight"
_HASHES, _SETS, _KEYS = "HSET, EXPIREMEMBER", "SADD, EXPIREMEMBER", "EXPIREMEMBER, another key each time"
_WRITTEN: Final = "HSETEX"
_AMID: Final = "HSET, EXPIREMEMBER, SET"
_LEAST: Final = 0.1
"""Of the rate of HSET and HEXISTS."""

_AT_ONCE: Final = {"pipeline": 1.6, "transaction": 2.2}
"""What redis-py sends in one piece, and how many times what it takes straight that may take."""

Sample = tuple[float, float, float]
"""Requests a second; CPU time of the proxy and of the server, in µs a request."""


def _hashes(key: str) -> list[Request]:
    return [("HSET", f"hash:{key}", "field", 1), ("EXPIREMEMBER", f"hash:{key}", "field", _DELAY)]


def _sets(key: str) -> list[Request]:
    return [("SADD", f"set:{key}", "member"), ("EXPIREMEMBER", f"set:{key}", "member", _DELAY)]


def _amid(key: str) -> list[Request]:
    return [*_hashes(key), ("SETNX", f"text:{key}", "text")]


def _written(key: str) -> list[Request]:
    return [("HSETEX", f"hash:{key}", "EX", _DELAY, "FIELDS", 1, "field", 1)]


def _with_lifetime(key: str) -> list[Request]:
    return [("HSET", f"hash:{key}", "field", 1), ("EXPIRE", f"hash:{key}", _DELAY)]


def _with_both(key: str) -> list[Request]:
    return [*_hashes(key), ("EXPIRE", f"hash:{key}", _DELAY)]


def _counted(key: str) -> list[Request]:
    return [("INCR", f"hash:{key}:visits"), ("EXPIRE", f"hash:{key}:visits", _DELAY)]


def _straight(key: str) -> list[Request]:
    return [("HSET", f"plain:{key}", "field", 1), ("HEXISTS", f"plain:{key}", "field")]


def _keys(key: str) -> list[Request]:
    return [("EXPIREMEMBER", f"given:{key}", "member", _DELAY), ("EXPIREMEMBER", f"given:{key}+", "member", _DELAY)]


_LOADS: Final[dict[str, Callable[[str], list[Request]]]] = {
    _STRAIGHT: _straight,
    _HASHES: _hashes,
    _SETS: _sets,
    _KEYS: _keys,
    _AMID: _amid,
    _WRITTEN: _written,
    "HSET, EXPIRE": _with_lifetime,
    "HSET, EXPIREMEMBER, EXPIRE": _with_both,
    "INCR, EXPIRE": _counted,
}


def _measure_once(connection: Connection, services: list[Service], requests: list[Request]) -> Sample:
    packed = list(batches(requests, _DEPTH))
    before = [service.cpu_seconds() for service in services]
    began = time.perf_counter()
    for data, size in packed:
        connection.count_integers(data, size)
    took = time.perf_counter() - began
    proxy, server = (service.cpu_seconds() - cpu for service, cpu in zip(services, before, strict=True))
    return len(requests) / took, proxy / len(requests) * 1e6, server / len(requests) * 1e6


def _send_at_once(
    port: int, other: Service, server: Service, round_number: int, count: int, how: str, *, straight: bool
) -> Sample:
    """Send as many requests as one pipeline of redis-py's, or as one transaction."""
    make = _straight if straight else _hashes
    with redis.Redis(port=port) as client:
        pipeline = client.pipeline(transaction=how == "transaction")
        for key in range(count // 2):
            for words in make(f"{round_number}:{how}:{key}"):
                pipeline.execute_command(*words)
        before = [service.cpu_seconds() for service in (other, server)]
        began = time.perf_counter()
        replies = pipeline.execute()
        took = time.perf_counter() - began
        proxy, at_server = (one.cpu_seconds() - cpu for one, cpu in zip((other, server), before, strict=True))
    if set(replies) != {1}:
        raise RuntimeError(f"not all are 1: {set(replies)}")
    return count / took, proxy / count * 1e6, at_server / count * 1e6


def measure(options: argparse.Namespace) -> Report:
    """Measure every load in every round."""
    count: int = options.requests
    samples: dict[str, list[Sample]] = {name: [] for name in _LOADS}
    at_once: dict[str, list[tuple[Sample, Sample]]] = {how: [] for how in _AT_ONCE}
    with Stage() as stage:
        server = stage.redis()
        proxy = stage.proxy(server, *options.proxy_arg)
        with Connection(proxy.port) as connection, Connection(server.port) as straight:
            for kind, add in (("hash", "HSET"), ("set", "SADD"), ("given", "SADD")):
                connection.call(add, f"{kind}:first", "member", *([1] if add == "HSET" else []))
                connection.call("EXPIREMEMBER", f"{kind}:first", "member", _DELAY)
            for number in range(options.rounds):
                progress(f"round {number + 1} of {options.rounds}")
                loads = list(_LOADS.items())
                for name, make in loads[number % len(loads) :] + loads[: number % len(loads)]:
                    keys = [f"{number}:{key}" for key in range(count // len(make("")))]
                    if name == _KEYS:
                        straight.pipeline(
                            ("SADD", f"given:{key}{more}", "member") for key in keys for more in ("", "+")
                        )
                    requests = [request for key in keys for request in make(key)]
                    where = straight if name == _STRAIGHT else connection
                    samples[name].append(_measure_once(where, [proxy, server], requests))
                    straight.call("FLUSHDB")
                for how, pairs in at_once.items():
                    sent = partial(_send_at_once, other=proxy, server=server, round_number=number, count=count, how=how)
                    pairs.append((sent(server.port, straight=True), sent(proxy.port, straight=False)))
                    straight.call("FLUSHDB")
    return _report(samples, at_once)


def _report(samples: dict[str, list[Sample]], at_once: dict[str, list[tuple[Sample, Sample]]]) -> Report:
    base = samples[_STRAIGHT]
    shares = {
        name: statistics.median(one[0] / other[0] for one, other in zip(some, base, strict=True))
        for name, some in samples.items()
    }
    rows = []
    for name, some in samples.items():
        per_second, proxy, server = (statistics.median(column) for column in zip(*some, strict=True))
        rows.append([name, f"{per_second:,.0f}", f"{shares[name]:.3f}", f"{proxy:.2f}", f"{server:.2f}"])
    head = ["requests", "a second", "of straight", "proxy, µs", "server, µs"]
    bars = [Bar(f"{name} / {_STRAIGHT}", shares[name], _LEAST) for name in (_HASHES, _SETS, _KEYS)]
    times, pieces = {}, []
    for how, pairs in at_once.items():
        times[how] = statistics.median(base[0] / one[0] for base, one in pairs)
        straight, through = (tuple(statistics.median(column) for column in zip(*some, strict=True))
                             for some in zip(*pairs, strict=True))  # fmt: skip
        figures = (f"{straight[0]:,.0f}", f"{through[0]:,.0f}", f"{times[how]:.2f}")
        pieces.append([f"{_HASHES}: one {how}", *figures, f"{through[1]:.2f}", f"{through[2]:.2f}"])
        bars.append(Bar(f"redis-py, one {how}: times straight", times[how], _AT_ONCE[how], at_least=False))
    piece_head = ["redis-py", "straight", "a second", "times straight", "proxy, µs", "server, µs"]
    text = f"{table(head, rows)}\n\n{table(piece_head, pieces)}"
    return Report(text, {"samples": samples, "shares": shares, "at once": at_once, "times": times}, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (5)")
    parser.add_argument("--requests", type=int, default=40_000, help="requests of a measurement (40000)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
