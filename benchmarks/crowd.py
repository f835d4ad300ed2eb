"""What requests for members with deadlines cost where many clients send one at a time, beside those for other keys.

    python -m benchmarks.crowd [--check]

Load comes from redis-benchmark (or valkey-benchmark): 50 connections, without pipelining, each request sent as soon as
the one before it has been answered. Pairs go in one piece, by themselves and within MULTI, from a client in Python that
takes most of the time itself. All paths lead to one Redis and are measured in turn, in an order that rotates from round
to round. There are 100 sets of 100 members each, one of which has a deadline that is far away, or none; each request is
for one of them by chance. Straight to the server goes what it does for the same without deadlines: SADD of a set
without any, SISMEMBER in the place of TTL, ZADD of a sorted set in that of EXPIREMEMBER.

A figure is the median of its rounds; a ratio is the median of the ratios within each round. CPU is that of all threads
of the proxy and of the server, a request (Linux only).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, progress, run, table
from benchmarks.stage import Connection, Request, Service, Stage, generated_rate, pack, waiting_rate

_CONNECTIONS: Final = 50
_SETS: Final = 100
_MEMBERS: Final = 100
_DELAY: Final = 1_000_000
"""Of each deadline, in seconds."""

_SHARED, _OWN, _STRAIGHT = "proxy", "proxy, --no-share", "straight"

_READ, _TTL, _EXPIREMEMBER, _SADD, _SREM = "SISMEMBER", "TTL key member", "EXPIREMEMBER", "SADD", "SREM of nothing"
_LIFETIME, _COUNTER = "EXPIRE of such a set", "INCR of a string beside them"
_PLAIN_READ, _PLAIN_SADD = "SISMEMBER, no deadlines", "SADD, no deadlines"
_DATED, _PLAIN, _SORTED = "dated:__rand_int__", "plain:__rand_int__", "sorted:__rand_int__"
_REQUESTS: Final[dict[str, tuple[str | int, ...]]] = {
    _PLAIN_READ: ("SISMEMBER", _PLAIN, "member:7"),
    _READ: ("SISMEMBER", _DATED, "member:7"),
    _PLAIN_SADD: ("SADD", _PLAIN, "member:7"),
    _SADD: ("SADD", _DATED, "member:7"),
    _SREM: ("SREM", _DATED, "nothing"),
    _TTL: ("TTL", _DATED, "member:7"),
    _EXPIREMEMBER: ("EXPIREMEMBER", _DATED, "member:7", _DELAY),
    _LIFETIME: ("EXPIRE", _DATED, _DELAY),
    _COUNTER: ("INCR", "dated:counter:__rand_int__"),
}
_INSTEAD: Final[dict[str, tuple[str | int, ...]]] = {
    _READ: ("SISMEMBER", _PLAIN, "member:7"),
    _SADD: ("SADD", _PLAIN, "member:7"),
    _SREM: ("SREM", _PLAIN, "nothing"),
    _TTL: ("SISMEMBER", _PLAIN, "member:7"),
    _EXPIREMEMBER: ("ZADD", _SORTED, _DELAY, "member:7"),
    _LIFETIME: ("EXPIRE", _PLAIN, _DELAY),
    _COUNTER: ("INCR", "counter:__rand_int__"),
}
"""What goes straight to the server in the place of others."""

_PAIR, _TRANSACTION = "SADD, EXPIREMEMBER", "MULTI, SADD, EXPIREMEMBER, EXEC"
_LINES: Final = {_PAIR: 2, _TRANSACTION: 6}
"""Lines of the replies."""

_LEAST: Final = 0.7
"""Of a read's rate where nothing has a deadline."""

_SHARES: Final = {_READ: 0.75, _SADD: 0.5, _SREM: 0.5, _TTL: 0.6, _EXPIREMEMBER: 0.5}
"""Of the rate of what goes straight to the server."""

_MOST_CPU: Final = 1.5
"""Of the server, a request, compared with the same."""

Sample = tuple[float, float, float]
"""Requests a second; CPU time of the proxy and of the server, in µs a request."""


def _fill(connection: Connection) -> None:
    for kind in ("plain", "dated"):
        for number in range(_SETS):
            connection.call("SADD", f"{kind}:{number:012}", *(f"member:{member}" for member in range(_MEMBERS)))
    for number in range(_SETS):
        connection.call("EXPIREMEMBER", f"dated:{number:012}", f"member:{number}", _DELAY)


def _measure_once(service: Service, server: Service, words: tuple[str | int, ...], count: int) -> Sample:
    before, behind = service.cpu_seconds(), server.cpu_seconds()
    rate = generated_rate(service.port, "-c", _CONNECTIONS, "-n", count, "-r", _SETS, *words)
    return rate, (service.cpu_seconds() - before) / count * 1e6, (server.cpu_seconds() - behind) / count * 1e6


def _chunks(request: str, *, dated: bool) -> list[bytes]:
    """Return what each client sends; without deadlines ZADD of a sorted set stands in for EXPIREMEMBER."""
    chunks = []
    for number in range(_CONNECTIONS):
        add = pack(("SADD", f"{'dated' if dated else 'plain'}:{number:012}", "member:7"))
        expire: Request = ("EXPIREMEMBER", f"dated:{number:012}", "member:7", _DELAY)
        pair = add + pack(expire if dated else ("ZADD", f"sorted:{number:012}", _DELAY, "member:7"))
        chunks.append(pair if request == _PAIR else pack(("MULTI",)) + pair + pack(("EXEC",)))
    return chunks


def _measure_chunks(service: Service, server: Service, request: str, count: int, *, dated: bool) -> Sample:
    before, behind = service.cpu_seconds(), server.cpu_seconds()
    rate = waiting_rate(service.port, _chunks(request, dated=dated), _LINES[request], count)
    return rate, (service.cpu_seconds() - before) / count * 1e6, (server.cpu_seconds() - behind) / count * 1e6


def measure(options: argparse.Namespace) -> Report:
    """Measure every request on every path."""
    with Stage() as stage:
        redis = stage.redis()
        paths = {
            _SHARED: stage.proxy(redis, *options.proxy_arg),
            _OWN: stage.proxy(redis, *options.proxy_arg, "--no-share"),
            _STRAIGHT: redis,
        }
        with Connection(paths[_SHARED].port) as connection:
            _fill(connection)
        measured = (*_REQUESTS, *_LINES)
        samples: dict[str, dict[str, list[Sample]]] = {name: {path: [] for path in paths} for name in measured}
        for number in range(options.rounds):
            progress(f"round {number + 1} of {options.rounds}")
            names = list(paths)[number % len(paths) :] + list(paths)[: number % len(paths)]
            for request, words in _REQUESTS.items():
                for path in names:
                    sent = _INSTEAD.get(request, words) if path == _STRAIGHT else words
                    samples[request][path].append(_measure_once(paths[path], redis, sent, options.requests))
            for request in _LINES:
                for path in names:
                    one = _measure_chunks(paths[path], redis, request, options.requests // 2, dated=path != _STRAIGHT)
                    samples[request][path].append(one)
    return _report(samples)


def _ratio(some: list[Sample], base: list[Sample]) -> float:
    return statistics.median(one[0] / other[0] for one, other in zip(some, base, strict=True))


def _median(samples: list[Sample], which: int) -> float:
    return statistics.median(sample[which] for sample in samples)


def _report(samples: dict[str, dict[str, list[Sample]]]) -> Report:
    rows = []
    for request, each in samples.items():
        row = [request, *(f"{_median(each[path], 0):,.0f}" for path in each)]
        row += [f"{_median(each[path], which):.1f}" for path in (_SHARED, _OWN) for which in (1, 2)]
        row.append(f"{_median(each[_STRAIGHT], 2):.1f}")
        rows.append(row)
    head = ["", *(f"{path}, a second" for path in (_SHARED, _OWN, _STRAIGHT))]
    head += [f"{path}: {whose}, µs" for path in (_SHARED, _OWN) for whose in ("its CPU", "the server's")]
    head.append("straight: the server's, µs")
    ratio = _ratio(samples[_READ][_SHARED], samples[_PLAIN_READ][_SHARED])
    data = {"samples": samples, "read_of_known_key_ratio": ratio}
    bars = [Bar(f"{_READ}: of a key with deadlines / without", ratio, _LEAST)]
    for request, share in _SHARES.items():
        some, base = samples[request][_SHARED], samples[request][_STRAIGHT]
        instead = f"{_INSTEAD[request][0]} straight, no deadlines"
        bars.append(Bar(f"{request} / {instead}", _ratio(some, base), share))
        if all(other[2] for other in base):
            ratio = statistics.median(one[2] / other[2] for one, other in zip(some, base, strict=True))
            bars.append(Bar(f"{request} / {instead}: the server's CPU", ratio, _MOST_CPU, at_least=False))
    return Report(table(head, rows), data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured (5)")
    parser.add_argument("--requests", type=int, default=60_000, help="requests of a measurement (60000)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
