"""What a fleet of proxies in front of one Redis costs, beside what one proxy costs.

    python -m benchmarks.fleet [--proxies 1 4 16 48] [--check]

The smallest fleet stays, with a Redis of its own, while each of the others is there, and in each round both are
measured, in turn. One client waits for each reply: first deadlines of fresh keys under a prefix that many keys with
deadlines have (`cart:`), renewals, SADD and SISMEMBER of keys with deadlines. First it sends all to one proxy, then to
all in turn. CPU is that of all threads of a process (Linux only), until a moment after the last reply, less what the
same process takes while nobody sends anything, right afterwards and for as long. Where all are asked in turn, what a
proxy does for its own client cannot be told from what it does for others, so only all together are shown.

A proxy refuses a first deadline if others do not acknowledge it in time, as on a machine too small for the fleet.
Where requests are measured that is counted; elsewhere they are sent again.

A figure is the median of its rounds; a ratio is the median of the ratios within each round.

Idle CPU and memory of each proxy are measured before any key has a deadline, and once many have. Last, keys get their
first deadline under prefixes that no key has had before: with all well, with another proxy just stopped (SIGSTOP), and
with another just killed (SIGKILL).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import signal
import statistics
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import BATCH, Connection, ErrorReplyError, Request, Stage, StageError, batches

_DELAY: Final = 1_000_000
"""Of each deadline, in seconds."""

_FRESH: Final = 20
"""Prefixes of a fleet that are used for the first time while all is well."""

_SETTLE_SECONDS: Final = 60.0
_STEADY: Final = 0.9
_MOST_WINDOWS: Final = 8
_REST_SECONDS: Final = 0.1
"""What others still have to do after the last reply, as long as it belongs to the measurement."""

_FIRST, _RENEWAL, _ADDER, _READ = "first deadline", "renewed deadline", "SADD", "SISMEMBER"
_IN_TURN: Final = ", in turn"
_QUIET, _STOPPED, _KILLED = "quiet", "one stopped", "one killed"
_COUNTS: Final = (1, 4, 16, 48)
_FORMS: Final = (_FIRST, _RENEWAL, _ADDER, _READ)

_MOST_RATIO: Final = 1.2
_MOST_OTHERS_US: Final = 5.0
_MOST_REFUSED: Final = 0.01
_MOST_IDLE: Final = 0.3
_MOST_FRESH_MS: Final = 20.0
_MOST_STOPPED_MS: Final = 2_200.0
_FRESH_AMONG: Final = 16
"""How many proxies the last two bars are for."""


@dataclass(frozen=True)
class _Sample:
    """One measurement: times in ms, CPU in µs a request, and how many requests were refused, in %."""

    p50: float
    p99: float
    server: float
    asked: float
    others: float
    refused: float


_p50, _p99, _server, _asked, _others = map(attrgetter, ("p50", "p99", "server", "asked", "others"))


@dataclass(frozen=True)
class _Idle:
    """What a fleet takes when nobody sends anything: CPU in % of a core, of each proxy; memory in MB."""

    server: float
    proxies: list[float]
    resident: float
    own: float


class _Fleet:
    """Several proxies, a Redis of their own, and a connection to each."""

    def __init__(self, stage: Stage, options: argparse.Namespace, count: int) -> None:
        progress(f"starting {count} proxies")
        self._stage = stage
        self._options = options
        self.count = count
        self.keys: int = options.keys
        self._redis = stage.redis()
        self._beside = Connection(self._redis.port)
        self._proxies = stage.proxies(self._redis, count, *options.proxy_arg)
        self._clients = [Connection(proxy.port) for proxy in self._proxies]
        self._fresh_keys = itertools.count(self.keys)
        self._fresh_items = itertools.count()
        # Only letters: a part with a digit in it is not taken for a part of a prefix.
        self._words = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
        self.samples: dict[str, list[_Sample]] = {f"{form}{way}": [] for form in _FORMS for way in ("", _IN_TURN)}
        self.fresh: dict[str, list[float]] = {how: [] for how in (_QUIET, _STOPPED, _KILLED)}
        self._settle()
        self.without_keys = self._idle()
        self._fill()
        self.with_keys = self._idle()

    # What it waits for.

    def _settle(self) -> None:
        """Wait until all proxies know of each other.

        A proxy has to have heard of all others, and they of it, before it ceases to be blind.
        """
        ends = time.perf_counter() + _SETTLE_SECONDS
        while not self._is_settled():
            if time.perf_counter() > ends:
                raise StageError(f"{self.count} proxies do not know of each other after {_SETTLE_SECONDS:.0f} s")
            time.sleep(0.05)

    def _is_settled(self) -> bool:
        _, listening = self._beside.call("PUBSUB", "NUMSUB", "__expiremember__:proxies")
        # Asked twice: one that was stopped may give the first answer before it has noticed.
        return listening == self.count and not any(_is_blind(client) for client in self._clients * 2)

    def _fill(self) -> None:
        keys = range(self.keys)
        self._insist(self._clients[0], [("SADD", f"cart:{number}", "member", "other") for number in keys])
        self._insist(self._clients[0], [("EXPIREMEMBER", f"cart:{number}", "member", _DELAY) for number in keys])
        # The first request of a form on a connection may take longer.
        for form, client in itertools.product(_FORMS, self._clients):
            self._insist(client, self._requests(form, 1))

    def _insist(self, client: Connection, requests: Sequence[Request]) -> None:
        """Send requests, and again those that are refused because other proxies do not acknowledge in time."""
        ends = time.perf_counter() + _SETTLE_SECONDS
        while requests:
            refused: list[Request] = []
            for place in range(0, len(requests), BATCH):
                some = requests[place : place + BATCH]
                for packed, _ in batches(some):
                    client.send(packed)
                refused += [request for request in some if not _is_granted(client)]
            requests = refused
            if requests and time.perf_counter() > ends:
                raise StageError(f"{len(requests)} requests are still refused after {_SETTLE_SECONDS:.0f} s")

    def _cpu(self) -> list[float]:
        """Return the CPU time of the server and of each proxy."""
        return [service.cpu_seconds() for service in (self._redis, *self._proxies)]

    def _percents(self, seconds: float) -> list[float]:
        """Return the CPU of the server and of each proxy while nobody sends anything, in % of a core."""
        before, began = self._cpu(), time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        return [(after - cpu) / took * 100 for after, cpu in zip(self._cpu(), before, strict=True)]

    def _idle(self) -> _Idle:
        """Measure what it takes while nobody sends anything, once that falls no more."""
        progress(f"{self.count} proxies: idle")
        last = self._percents(self._options.idle_seconds)
        for _ in range(_MOST_WINDOWS):
            before, last = last, self._percents(self._options.idle_seconds)
            # One proxy looks through all deadlines after a change: that is not idle, and tells little in the sum.
            if sum(last) >= sum(before) * _STEADY and max(last[1:]) >= max(before[1:]) * _STEADY:
                break
        server, *proxies = map(statistics.mean, zip(before, last, strict=True))
        resident = statistics.median(proxy.resident_bytes() for proxy in self._proxies)
        own = statistics.median(proxy.own_bytes() for proxy in self._proxies)
        return _Idle(server, proxies, resident / 1e6, own / 1e6)

    # What it measures.

    def _requests(self, form: str, count: int) -> list[Request]:
        if form == _FIRST:
            keys = [f"cart:{next(self._fresh_keys)}" for _ in range(count)]
            self._beside.pipeline(("SADD", key, "member", "other") for key in keys)
            return [("EXPIREMEMBER", key, "member", _DELAY) for key in keys]
        keys = [f"cart:{random.randrange(self.keys)}" for _ in range(count)]
        if form == _RENEWAL:
            return [("EXPIREMEMBER", key, "member", _DELAY + random.randrange(_DELAY)) for key in keys]
        if form == _ADDER:
            return [("SADD", key, f"item:{next(self._fresh_items)}") for key in keys]
        return [("SISMEMBER", key, "member") for key in keys]

    def measure(self, form: str) -> None:
        """Measure requests of one form: to one proxy, then to all in turn."""
        self._settle()
        self.samples[form].append(self._measure(form, self._clients[:1]))
        if self.count > 1:
            self.samples[form + _IN_TURN].append(self._measure(form, self._clients))

    def _measure(self, form: str, clients: Sequence[Connection]) -> _Sample:
        packed = [data for data, _ in batches(self._requests(form, self._options.requests), 1)]
        milliseconds: list[float] = []
        refused = 0
        before, began = self._cpu(), time.perf_counter()
        for data, client in zip(packed, itertools.cycle(clients), strict=False):
            sent = time.perf_counter()
            client.send(data)
            refused += not _is_granted(client)
            replied = time.perf_counter()
            milliseconds.append((replied - sent) * 1000)
            if replied - began > self._options.seconds:
                break
        time.sleep(_REST_SECONDS)
        cpu, took = self._cpu(), time.perf_counter() - began
        idle = self._percents(took)
        server, asked, *others = (
            (after - earlier - percent / 100 * took) / len(milliseconds) * 1e6
            for after, earlier, percent in zip(cpu, before, idle, strict=True)
        )
        p50, p99 = (percentile(milliseconds, percent) for percent in (50, 99))
        return _Sample(p50, p99, server, asked, sum(others), refused / len(milliseconds) * 100)

    def measure_fresh(self) -> None:
        """Give keys their first deadline under prefixes that no key has had before."""
        progress(f"{self.count} proxies: fresh prefixes")
        self._settle()
        for _ in range(_FRESH):
            self._time_fresh(_QUIET)
        if self.count > 1:
            for _ in range(self._options.rounds):
                self._settle()
                with self._one_stopped():
                    self._time_fresh(_STOPPED)
            for number in range(self._options.rounds):
                if number:
                    self._replace_one()
                self._settle()
                self._kill_one()
                self._time_fresh(_KILLED)

    def _time_fresh(self, how: str) -> None:
        key = f"{next(self._words)}:1"
        self._beside.call("SADD", key, "member")
        sent = time.perf_counter()
        self._insist(self._clients[0], [("EXPIREMEMBER", key, "member", _DELAY)])
        self.fresh[how].append((time.perf_counter() - sent) * 1000)

    @contextlib.contextmanager
    def _one_stopped(self) -> Iterator[None]:
        process = self._proxies[-1].process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def _kill_one(self) -> None:
        self._proxies[-1].process.kill()
        self._stage.stop(self._proxies.pop())
        self._clients.pop().close()

    def _replace_one(self) -> None:
        self._proxies.append(self._stage.proxy(self._redis, *self._options.proxy_arg))
        self._clients.append(Connection(self._proxies[-1].port))

    def end(self) -> None:
        """Stop all of it."""
        for connection in (self._beside, *self._clients):
            connection.close()
        self._stage.stop(*self._proxies, self._redis)


def _is_granted(client: Connection) -> bool:
    """Wait for a reply, and return whether it is no error."""
    try:
        client.reply()
    except ErrorReplyError:
        return False
    return True


def _is_blind(client: Connection) -> bool:
    lines: bytes = client.call("INFO", "expiremember")
    return b"\r\nblind:0\r\n" not in lines


def _measure_rounds(options: argparse.Namespace, fleets: Sequence[_Fleet]) -> None:
    for number in range(options.rounds):
        progress(f"{fleets[-1].count} proxies: round {number + 1} of {options.rounds}")
        for place, form in enumerate(_FORMS):
            for fleet in fleets if (number + place) % 2 else reversed(fleets):
                fleet.measure(form)


def measure(options: argparse.Namespace) -> Report:
    """Measure the smallest fleet beside each of the others."""
    least, *more = sorted(set(options.proxies))
    with Stage() as stage:
        smallest = _Fleet(stage, options, least)
        fleets = [smallest]
        for count in more:
            fleets.append(_Fleet(stage, options, count))
            _measure_rounds(options, (smallest, fleets[-1]))
            fleets[-1].measure_fresh()
            fleets[-1].end()
        if not more:
            _measure_rounds(options, fleets)
        smallest.measure_fresh()
    return _report(fleets)


def _median(samples: Sequence[_Sample], of: Callable[[_Sample], float]) -> float:
    return statistics.median(map(of, samples))


def _ratio(fleets: Sequence[_Fleet], place: int, form: str, of: Callable[[_Sample], float]) -> float:
    """Return how much more a fleet takes than the smallest, which is asked one by one."""
    some = fleets[place].samples[form]
    base = fleets[0].samples[form.removesuffix(_IN_TURN)]
    if place:  # the rounds in which both were measured
        base = base[(place - 1) * len(some) : place * len(some)]
    return statistics.median(of(one) / of(other) for one, other in zip(some, base, strict=True))


def _costs(fleets: Sequence[_Fleet]) -> str:
    rows = []
    for form, (place, fleet), way in itertools.product(_FORMS, enumerate(fleets), ("", _IN_TURN)):
        if samples := fleet.samples[form + way]:
            p50, p99, server = (_median(samples, of) for of in (_p50, _p99, _server))
            asked, others = (_median(samples, of) for of in (_asked, _others))
            together = _median(samples, lambda sample: sample.asked + sample.others)
            ratios = [f"{_ratio(fleets, place, form + way, of):.2f}" for of in (_p50, _server)]
            row = [form, f"{fleet.count}{way}", f"{p50:.2f}", f"{p99:.2f}", ratios[0], f"{server:.1f}", ratios[1]]
            rows.append([*row, *(("", "") if way else (f"{asked:.1f}", f"{others:.1f}")), f"{together:.1f}"])
            rows[-1].append(f"{statistics.mean(sample.refused for sample in samples):.1f}")
    base = f"of {fleets[0].count}"
    head = ["requests", "proxies", "p50, ms", "p99", base, "server, µs", base]
    return table([*head, "proxy asked, µs", "all others, µs", "all proxies, µs", "refused, %"], rows)


def _idling(fleets: Sequence[_Fleet]) -> str:
    rows = []
    for fleet in fleets:
        for name, idle in (("none", fleet.without_keys), (f"{fleet.keys:,}", fleet.with_keys)):
            cpu = [statistics.median(idle.proxies), max(idle.proxies), idle.server]
            memory = [idle.resident, idle.own]
            rows.append([str(fleet.count), name, *(f"{one:.2f}" for one in cpu), *(f"{one:.1f}" for one in memory)])
    head = ["idle: proxies", "keys with deadlines", "CPU of each, %", "of the busiest", "of the server"]
    return table([*head, "RSS of each, MB", "USS"], rows)


def _freshness(fleets: Sequence[_Fleet]) -> str:
    rows = []
    for fleet in fleets:
        quiet, *troubled = fleet.fresh.values()
        row = [str(fleet.count), f"{statistics.median(quiet):.1f}", f"{max(quiet):.1f}"]
        rows.append([*row, *(f"{max(waits):.0f}" if waits else "" for waits in troubled)])
    head = ["fresh prefixes: proxies", "p50, ms", "worst", "one stopped: worst", "one killed: worst"]
    return table(head, rows)


def _bars(fleets: Sequence[_Fleet]) -> Iterator[Bar]:
    last, least = fleets[-1], fleets[0]
    if last is not least:
        for form in _FORMS:
            for what, of in (("median", _p50), ("CPU of the server", _server)):
                ratio = _ratio(fleets, len(fleets) - 1, form, of)
                yield Bar(f"{form}, {what}: {last.count} proxies / {least.count}", ratio, _MOST_RATIO, at_least=False)
            others = _median(last.samples[form], _others)
            what = f"{form}, {last.count} proxies: CPU of all others, µs a request"
            yield Bar(what, others, _MOST_OTHERS_US, at_least=False)
    refused = max(sample.refused for fleet in fleets for samples in fleet.samples.values() for sample in samples)
    yield Bar("most requests refused in a measurement, %", refused, _MOST_REFUSED, at_least=False)
    for keys, idle in (("no key", last.without_keys), ("keys", last.with_keys)):
        what = f"{last.count} proxies, {keys} with deadlines: idle CPU of the busiest, % of a core"
        yield Bar(what, max(idle.proxies), _MOST_IDLE, at_least=False)
    among = min(fleets, key=lambda fleet: abs(fleet.count - _FRESH_AMONG))
    what = f"a fresh prefix among {among.count} proxies"
    yield Bar(f"{what}: worst, ms", max(among.fresh[_QUIET]), _MOST_FRESH_MS, at_least=False)
    if stopped := among.fresh[_STOPPED]:
        yield Bar(f"{what}, one stopped: worst, ms", max(stopped), _MOST_STOPPED_MS, at_least=False)


def _report(fleets: Sequence[_Fleet]) -> Report:
    text = "\n\n".join((_costs(fleets), _idling(fleets), _freshness(fleets)))
    data = {
        str(fleet.count): {
            "samples": {form: list(map(asdict, samples)) for form, samples in fleet.samples.items() if samples},
            "idle": {"without_keys": asdict(fleet.without_keys), "with_keys": asdict(fleet.with_keys)},
            "fresh_ms": fleet.fresh,
        }
        for fleet in fleets
    }
    return Report(text, data, list(_bars(fleets)))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", type=int, nargs="+", default=_COUNTS, help="sizes of the fleets (1 4 16 48)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured (3)")
    parser.add_argument("--requests", type=int, default=5_000, help="most requests of a measurement (5000)")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest time of a measurement (3)")
    parser.add_argument("--keys", type=int, default=1_000, help="keys with deadlines (1000)")
    parser.add_argument(
        "--idle-seconds", type=float, default=10.0, help="time that idle CPU is taken over, at least twice (10)"
    )
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
