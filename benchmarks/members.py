"""How fast requests for members with deadlines are, beside a plain ZADD straight to Redis, on sets of several sizes.

    python -m benchmarks.members [--check]

Every member of every set has a deadline before anything is measured. Then, in each round and for each set in turn (in
an order that rotates), requests for random members of it are sent, pipelined 100 deep: EXPIREMEMBER, TTL of a member,
SADD, SREM (half of the members at a time, which get their deadlines back with the clock stopped), SISMEMBER; and TTL
one after another, for their latency. EXPIREMEMBER and HEXPIRE of a hash go one after another too, each as a script of
its own (from Redis 7.4 on HEXPIRE is the server's). In each round the same client also sends ZADD straight to Redis, on
plain sorted sets of the same sizes, and SISMEMBER through the proxy on a set without deadlines.

Requests are packed before the clock starts and replies are counted, not parsed, so that the client costs little. A
figure is the median of its rounds; a ratio is the median of the ratios within each round. CPU is that of all threads of
the proxy and of the server, a request (Linux only).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import Connection, Request, Service, Stage, batches

_SIZES: Final = (1_000, 10_000, 100_000, 200_000)
_DEPTH: Final = 100
_PLAIN_ZADD, _PLAIN_READ = "ZADD, straight", "SISMEMBER, no deadlines"
_EXPIREMEMBER, _TTL, _SADD, _SREM, _READ = "EXPIREMEMBER", "TTL key member", "SADD", "SREM", "SISMEMBER"
_ONE_EXPIREMEMBER, _ONE_HEXPIRE, _MANY_HEXPIRE = "EXPIREMEMBER alone", "HEXPIRE alone", "HEXPIRE of 100 fields"
_HASH, _FIELDS = "fields", 100
_MEASURED: Final = (_EXPIREMEMBER, _TTL, _SADD, _SREM, _READ)

_SHARES: Final = {_EXPIREMEMBER: 0.22, _TTL: 0.22, _SADD: 0.22, _SREM: 0.18}
"""Of the plain ZADD's rate, on the smallest set."""

Sample = tuple[float, float, float]
"""Requests a second; CPU time of the proxy and of the server, in µs a request."""

Samples = dict[str, dict[int, list[Sample]]]


def _key(size: int) -> str:
    return f"members:{size}"


def _far() -> int:
    """Return a delay in seconds that does not run out meanwhile."""
    return random.randrange(1_000_000, 2_000_000)


def _members(size: int) -> list[str]:
    return [f"member:{number}" for number in range(size)]


def _fill(connection: Connection, size: int, members: Iterable[str]) -> None:
    """Add members with deadlines."""
    key = _key(size)
    for requests in (
        [("SADD", key, member) for member in members],
        [("EXPIREMEMBER", key, member, _far()) for member in members],
    ):
        for packed, count in batches(requests):
            connection.count_integers(packed, count)


class _Meter:
    """Measures requests: how many a second, and the processor time of the proxy and of the server."""

    def __init__(self, proxy: Service, server: Service) -> None:
        self._services = proxy, server

    def __call__(
        self, connection: Connection, requests: Iterable[Request], depth: int = _DEPTH, lines: int = 1
    ) -> Sample:
        """Measure requests, of which so many are sent ahead. `lines`: those of a reply."""
        packed = list(batches(requests, depth))
        before = [service.cpu_seconds() for service in self._services]
        began = time.perf_counter()
        for data, size in packed:
            connection.count_integers(data, size * lines)
        took = time.perf_counter() - began
        proxy, server = (service.cpu_seconds() - cpu for service, cpu in zip(self._services, before, strict=True))
        count = sum(size for _, size in packed)
        return count / took, proxy / count * 1e6, server / count * 1e6


def _removals(connection: Connection, measure: _Meter, size: int, count: int) -> Sample:
    """Measure SREM, of half of the members at a time."""
    key, samples = _key(size), []
    while count > 0:
        some = random.sample(_members(size), min(size // 2, count))
        samples.append((len(some), measure(connection, [("SREM", key, member) for member in some])))
        _fill(connection, size, some)
        count -= len(some)
    total = sum(weight for weight, _ in samples)
    took = sum(weight / sample[0] for weight, sample in samples)
    proxy, server = (sum(weight * sample[place] for weight, sample in samples) / total for place in (1, 2))
    return total / took, proxy, server


def _latencies(connection: Connection, requests: Sequence[Request]) -> list[float]:
    packed = list(batches(requests, 1))
    took = []
    for data, _ in packed:
        began = time.perf_counter()
        connection.count_integers(data, 1)
        took.append((time.perf_counter() - began) * 1000)
    return took


def _alone(connection: Connection, measure: _Meter, size: int, count: int, samples: Samples) -> None:
    """Measure requests that give fields of a hash deadlines, each of which waits for the reply to the one before."""
    members = _members(size)
    requests: dict[str, list[Request]] = {
        _ONE_EXPIREMEMBER: [("EXPIREMEMBER", _HASH, random.choice(members), _far()) for _ in range(count)],
        _ONE_HEXPIRE: [("HEXPIRE", _HASH, _far(), "FIELDS", 1, random.choice(members)) for _ in range(count)],
        _MANY_HEXPIRE: [
            ("HEXPIRE", _HASH, _far(), "FIELDS", _FIELDS, *random.sample(members, _FIELDS))
            for _ in range(count // 10 + 1)
        ],
    }
    for (name, those), lines in zip(requests.items(), (1, 2, 1 + _FIELDS), strict=True):
        samples[name][size].append(measure(connection, those, 1, lines))


def measure(options: argparse.Namespace) -> Report:
    """Measure every size in every round."""
    sizes: list[int] = sorted(options.sizes)
    count: int = options.requests
    samples: Samples = {name: {size: [] for size in sizes} for name in _MEASURED}
    samples |= {name: {sizes[0]: []} for name in (_ONE_EXPIREMEMBER, _ONE_HEXPIRE, _MANY_HEXPIRE)}
    samples |= {_PLAIN_ZADD: {size: [] for size in sizes}, _PLAIN_READ: {sizes[0]: []}}
    latencies: dict[int, list[float]] = {size: [] for size in sizes}
    with Stage() as stage:
        server = stage.redis()
        proxy = stage.proxy(server, *options.proxy_arg)
        meter = _Meter(proxy, server)
        with Connection(proxy.port) as connection, Connection(server.port) as straight:
            plain = _members(sizes[0])
            straight.pipeline(("SADD", "unknown", member) for member in plain)
            straight.pipeline(("HSET", _HASH, member, "value") for member in plain)
            connection.pipeline(("EXPIREMEMBER", _HASH, member, _far()) for member in plain)
            for size in sizes:
                progress(f"filling a set of {size} members")
                _fill(connection, size, _members(size))
                straight.pipeline(("ZADD", f"plain:{size}", _far(), member) for member in _members(size))
            for number in range(options.rounds):
                progress(f"round {number + 1} of {options.rounds}")
                read: list[Request] = [("SISMEMBER", "unknown", random.choice(plain)) for _ in range(count)]
                samples[_PLAIN_READ][sizes[0]].append(meter(connection, read))
                _alone(connection, meter, sizes[0], options.latency_requests, samples)
                first = number % len(sizes)
                for size in sizes[first:] + sizes[:first]:
                    key, members = _key(size), _members(size)
                    zadd: list[Request] = [
                        ("ZADD", f"plain:{size}", _far(), random.choice(members)) for _ in range(count)
                    ]
                    samples[_PLAIN_ZADD][size].append(meter(straight, zadd))

                    def each(name: str, *, far: bool = False, key: str = key, of: list[str] = members) -> list[Request]:
                        return [(name, key, random.choice(of), *((_far(),) if far else ())) for _ in range(count)]

                    requests = {
                        _EXPIREMEMBER: each("EXPIREMEMBER", far=True),
                        _TTL: each("TTL"),
                        _SADD: each("SADD"),
                        _READ: each("SISMEMBER"),
                    }
                    for name, those in requests.items():
                        samples[name][size].append(meter(connection, those))
                    samples[_SREM][size].append(_removals(connection, meter, size, count))
                    latencies[size] += _latencies(connection, requests[_TTL][: options.latency_requests])
    return _report(sizes, samples, latencies)


def _ratio(some: list[Sample], base: list[Sample]) -> float:
    return statistics.median(one[0] / other[0] for one, other in zip(some, base, strict=True))


def _report(sizes: list[int], samples: Samples, latencies: dict[int, list[float]]) -> Report:
    smallest = sizes[0]
    zadd = samples[_PLAIN_ZADD][smallest]
    rows = []
    for name, of_size in samples.items():
        for size, some in of_size.items():
            per_second, proxy, server = (statistics.median(column) for column in zip(*some, strict=True))
            share, flat = _ratio(some, zadd), _ratio(some, of_size[smallest])
            row = [f"{size:,}", f"{per_second:,.0f}", f"{share:.2f}", f"{flat:.2f}", f"{proxy:.2f}", f"{server:.2f}"]
            rows.append([name, *row])
    head = ["requests", "members", "a second", "of ZADD", f"of {smallest:,}", "proxy, µs", "server, µs"]
    alone = [[f"{size:,}", *(f"{percentile(latencies[size], p):.3f}" for p in (50, 99))] for size in sizes]
    text = table(head, rows) + "\n\n" + table(["members", "TTL alone, p50 ms", "p99 ms"], alone)
    bars = [
        Bar(f"{name} / ZADD straight to Redis, {smallest:,} members", _ratio(samples[name][smallest], zadd), share)
        for name, share in _SHARES.items()
    ]
    known, unknown = samples[_READ][smallest], samples[_PLAIN_READ][smallest]
    bars.append(Bar("SISMEMBER of a key with deadlines / of one without", _ratio(known, unknown), 0.6))
    bars += [
        Bar(
            f"{name}: {size:,} members / {smallest:,}",
            _ratio(samples[name][size], samples[name][smallest]),
            0.85 if name == _EXPIREMEMBER else 0.8,
        )
        for name in (_EXPIREMEMBER, _TTL)
        for size in sizes[1:]
    ]
    alone_cpu, hash_cpu, fields_cpu = (
        statistics.median(sample[2] for sample in samples[name][smallest])
        for name in (_ONE_EXPIREMEMBER, _ONE_HEXPIRE, _MANY_HEXPIRE)
    )
    bars += [
        Bar("HEXPIRE of one field / EXPIREMEMBER, the server's CPU", hash_cpu / alone_cpu, 1.2, at_least=False),
        Bar("HEXPIRE of 100 fields, the server's CPU, µs a field", fields_cpu / _FIELDS, 3, at_least=False),
    ]
    last = percentile(latencies[sizes[-1]], 50)
    bars.append(Bar(f"TTL alone, {sizes[-1]:,} members, p50 ms", last, 0.3, at_least=False))
    data = {
        "samples": samples,
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
