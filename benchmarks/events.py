"""What events cost: how fast members go that are due, without a rule, with entries, with values, with messages.

    python -m benchmarks.events [--members 200000] [--keys 20] [--check]

Hashes of members that are all due in the same ms; from that moment it is watched straight on Redis how long it takes
until the last has gone. A proxy that sweeps is in front; nobody else sends anything. The sweeper leaves the server
alone for as long as each of its scripts takes, so a member costs the server half of what the throughput seems to say.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from benchmarks.figures import Bar, Report, add_output_options, progress, run, table
from benchmarks.stage import Connection, Stage, StageError, batches
from proxy.events.rules import Rule
from proxy.scripts.naming import Names

_RULES: Final = Names(b"__expiremember__:").events
_WAYS: Final[dict[str, Rule | None]] = {
    "no rule": None,
    "a rule for other keys": Rule(b"other:*", b"expired", value=True),
    "entries": Rule(b"k:*", b"expired"),
    "entries with values": Rule(b"k:*", b"expired", value=True),
    "messages, subkeyevent": Rule(b"k:*", letters="T"),
    "messages, all four": Rule(b"k:*", letters="STIV"),
}
_DRAIN_SECONDS: Final = 120.0
_LEAST: Final = 0.5
_SLACKS: Final = (1 / 8, 1 / 2)
"""How many ms setting a deadline may take: on a quick machine, and, tried after that, on a slow one."""


def _drain(straight: Connection, through: Connection, rule: Rule | None, keys: int, members: int) -> dict[str, float]:
    """Return members a second, the server's CPU in µs a member, and bytes an entry."""
    for slack in _SLACKS:
        first = _prepare(straight, through, rule, keys, members, 1000 + members * slack)
        if straight.now_ms() < first:
            break
    else:
        raise StageError("setting the deadlines took longer than the first of them")
    time.sleep(max(0, first - straight.now_ms()) / 1000)
    cpu = _cpu(straight)
    give_up = time.monotonic() + _DRAIN_SECONDS
    while straight.call("EXISTS", *(f"k:{number}" for number in range(keys))):
        if time.monotonic() > give_up:
            raise StageError(f"not drained after {_DRAIN_SECONDS:.0f} s")
        time.sleep(0.002)
    seconds = (straight.now_ms() - first) / 1000
    used = _cpu(straight) - cpu
    found = {"members a second": members / seconds, "CPU us a member": used * 1e6 / members}
    if rule is not None and rule.stream and rule.pattern == b"k:*":
        if straight.call("XLEN", "expired") != members:
            raise StageError("not as many entries as members")
        found["bytes an entry"] = straight.call("MEMORY", "USAGE", "expired", "SAMPLES", 0) / members
    return found


def _prepare(
    straight: Connection, through: Connection, rule: Rule | None, keys: int, members: int, ahead: float
) -> float:
    """Begin anew with members that are all due at one time, `ahead` ms after they have been added; return that time."""
    straight.call("FLUSHALL")
    if rule is not None:
        straight.call("ZADD", _RULES, 0, rule.encode())
    pairs = [(f"k:{number % keys}", f"member:{number}") for number in range(members)]
    for packed, size in batches(("HSET", key, member, "value") for key, member in pairs):
        straight.count_integers(packed, size)
    first = int(straight.now_ms() + ahead)
    for packed, size in batches(("PEXPIREMEMBERAT", key, member, first) for key, member in pairs):
        through.count_integers(packed, size)
    return first


def _cpu(straight: Connection) -> float:
    """Return the seconds of CPU that the server has used."""
    info = straight.call("INFO", "cpu").decode()
    return sum(
        float(line.split(":")[1]) for line in info.splitlines() if line.startswith(("used_cpu_sys:", "used_cpu_user:"))
    )


def measure(options: argparse.Namespace) -> Report:
    """Measure each way, some times in turn; the best of each counts."""
    results: dict[str, dict[str, float]] = {}
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        with Connection(redis.port) as straight, Connection(proxy.port) as through:
            for number in range(options.rounds):
                for way, rule in _WAYS.items():
                    progress(f"round {number + 1}: {way}")
                    found = _drain(straight, through, rule, options.keys, options.members)
                    if found["members a second"] > results.get(way, found)["members a second"] or way not in results:
                        results[way] = found
    return _report(results)


def _report(results: dict[str, dict[str, float]]) -> Report:
    without = results["no rule"]["members a second"]
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    for way, found in results.items():
        share = found["members a second"] / without
        size = found.get("bytes an entry")
        rows.append(
            [way, f"{found['members a second']:,.0f}", f"{share:.2f}", f"{found['CPU us a member']:.1f}",
             "" if size is None else f"{size:.0f}"]
        )  # fmt: skip
        data[way] = {**found, "of that without": share}
    bars = [
        Bar(f"sweep throughput, {way}, of that without", data[way]["of that without"], _LEAST, at_least=True)
        for way in ("entries", "entries with values")
    ]
    header = ["", "members a second", "of that without", "server CPU, us a member", "bytes an entry"]
    return Report(table(header, rows), data, bars)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=200_000, help="members that are due together (200000)")
    parser.add_argument("--keys", type=int, default=20, help="hashes that they are in (20)")
    parser.add_argument("--rounds", type=int, default=2, help="times that each way is measured (2)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
