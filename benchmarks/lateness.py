"""How late a member goes, by the clock of Redis: when it is removed, and how long clients of the proxy see it.

    python -m benchmarks.lateness [--check]
    python -m benchmarks.lateness --read [--proxy-arg=--no-sweep] [--busy MS] [--check]

Members of several sets get random deadlines within the next seconds.

Without `--read` nobody reads through the proxy, and the sweeper alone removes. A connection straight to Redis asks
again and again, in one transaction each time, for the TIME and for which of the members that are due about now are
still there. A member's lateness is the first TIME at which it was gone, less its deadline. It went at some time since
the look before, so lateness is overstated, by the time between two looks at most; that is reported beside it. A member
that goes before its deadline is an error.

With `--read` one client reads the sets through the proxy without pause, in two ways in turn. In a transaction with
TIME, the clock is that of the read itself. Outside, the pipeline is TIME, the read, TIME: the read ran between the two,
so a member in its reply was visible for at least the first TIME less its deadline, and at most the second. The worst of
all is reported; below zero no member was ever seen late. To judge, "in a transaction" and "at least" count: they are
certain.

With `--busy`, other clients keep Redis at scripts of up to so many ms each meanwhile: a read that waits behind one runs
later than it was judged.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, progress, run, table
from benchmarks.stage import Connection, Request, Stage, StageError, milliseconds

_LEAD_MS: Final = 50.0
"""From this time before its deadline on, a member is looked for: one that goes too early is noticed."""
_PATIENCE_MS: Final = 10_000.0
_PAUSE_SECONDS: Final = 0.0002
"""Between two looks: leaves Redis and the machine to the sweeper."""
_REMOVED_P99_MS: Final = 5.0
_READ_WORST_MS: Final = 1.0

_LOOP: Final = "for _ = 1, ARGV[1] do end"
_TRIAL: Final = 1_000_000

Deadlines = dict[bytes, dict[bytes, int]]
"""Key to member to Unix ms."""


def _schedule(connection: Connection, options: argparse.Namespace) -> Deadlines:
    """Add the members and set their deadlines, through the proxy."""
    names = [(b"late:%d" % (number % options.keys), b"member:%d" % number) for number in range(options.members)]
    connection.pipeline(("SADD", key, member) for key, member in names)
    begin = int(connection.now_ms()) + 1000 + options.members // 5  # time for the setting itself
    deadlines: Deadlines = defaultdict(dict)
    for key, member in names:
        deadlines[key][member] = begin + random.randrange(int(options.seconds * 1000))
    connection.pipeline(
        ("PEXPIREMEMBERAT", key, member, at) for key, members in deadlines.items() for member, at in members.items()
    )
    if connection.now_ms() >= begin:
        raise StageError("setting the deadlines took longer than the first of them: use fewer --members")
    return deadlines


def _transaction(connection: Connection, *requests: Request) -> tuple[float, list[Any]]:
    """Run requests in one transaction, and return the time inside it and their replies."""
    *_, replies = connection.pipeline([("MULTI",), ("TIME",), *requests, ("EXEC",)])
    return milliseconds(replies[0]), replies[1:]


def _watch_removal(connection: Connection, deadlines: Deadlines) -> tuple[list[float], list[float]]:
    """Return how late each member was removed, and the times between looks, in ms."""
    waiting = sorted((at, key, member) for key, members in deadlines.items() for member, at in members.items())
    waiting.reverse()
    present: Deadlines = defaultdict(dict)
    lateness: list[float] = []
    gaps: list[float] = []
    before, now = 0.0, connection.now_ms()
    while waiting or present:
        while waiting and waiting[-1][0] < now + _LEAD_MS:
            at, key, member = waiting.pop()
            present[key][member] = at
        if not present:
            time.sleep(min(_LEAD_MS, waiting[-1][0] - now - _LEAD_MS) / 1000)
            before, now = 0.0, connection.now_ms()
            continue
        asked = {key: list(members) for key, members in present.items()}
        looks: list[Request] = [("SMISMEMBER", key, *members) for key, members in asked.items()]
        now, replies = _transaction(connection, *looks)
        if before:
            gaps.append(now - before)
        before = now
        for (key, members), found in zip(asked.items(), replies, strict=True):
            for member, there in zip(members, found, strict=True):
                late = now - present[key][member]
                if late > _PATIENCE_MS:
                    raise StageError(f"{member!r} of {key!r} is still there {late:.0f} ms after its deadline")
                if there:
                    continue
                if late < 0:
                    raise StageError(f"{member!r} of {key!r} went {-late:.1f} ms before its deadline")
                lateness.append(late)
                del present[key][member]
            if not present[key]:
                del present[key]
        time.sleep(_PAUSE_SECONDS)
    return lateness, gaps


def _watch_reads(connection: Connection, deadlines: Deadlines) -> dict[str, list[float]]:
    """Read until the last deadline has passed; return how late each member was at each sight of it after its deadline.

    A sight before the deadline is of interest only as the closest one, and stands for "never late".
    """
    end = max(at for members in deadlines.values() for at in members.values()) + 100
    seen: dict[str, list[float]] = {"in a transaction": [], "at least": [], "at most": []}
    reads = 0
    now = 0.0
    while now < end:
        for key, members in deadlines.items():
            reads += 2
            now, [found] = _transaction(connection, ("SMEMBERS", key))
            first, plain, last = connection.pipeline([("TIME",), ("SMEMBERS", key), ("TIME",)])
            for how, at, names in (
                ("in a transaction", now, found),
                ("at least", milliseconds(first), plain),
                ("at most", milliseconds(last), plain),
            ):
                if names:
                    seen[how].append(at - min(members[name] for name in names))
    progress(f"{reads} reads")
    return seen


@contextmanager
def _busy(port: int, longest: float) -> Iterator[None]:
    """Keep Redis busy, with scripts of up to so many ms and pauses as long between them."""
    end = threading.Event()
    taken = [0.0]

    def run() -> None:
        with Connection(port) as connection:
            began = time.monotonic()
            connection.call("EVAL", _LOOP, 0, _TRIAL)
            a_ms = _TRIAL / (time.monotonic() - began) / 1000
            while not end.wait(random.random() * longest / 1000):
                began = time.monotonic()
                connection.call("EVAL", _LOOP, 0, int(random.random() * longest * a_ms))
                taken.append((time.monotonic() - began) * 1000)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        progress(f"{len(taken) - 1} scripts, from sending to the reply {max(taken):.0f} ms at most")


def _removal(options: argparse.Namespace) -> Report:
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        with Connection(proxy.port) as connection:
            deadlines = _schedule(connection, options)
        with Connection(redis.port) as straight:
            lateness, gaps = _watch_removal(straight, deadlines)
    rows = [
        [name, *(f"{percentile(values, percent):.2f}" for percent in (50, 99, 100))]
        for name, values in (("removed late", lateness), ("of which the look itself, at most", gaps))
    ]
    text = table([f"{len(lateness)} members, ms", "p50", "p99", "max"], rows)
    data = {
        name: {f"p{percent}": percentile(values, percent) for percent in (50, 99, 100)}
        for name, values in (("late_ms", lateness), ("between_looks_ms", gaps))
    }
    bar = Bar("removed late, p99 ms", percentile(lateness, 99), _REMOVED_P99_MS, at_least=False)
    return Report(text, {"members": len(lateness), **data}, [bar])


def _reading(options: argparse.Namespace) -> Report:
    with Stage() as stage:
        redis = stage.redis()
        proxy = stage.proxy(redis, *options.proxy_arg)
        with Connection(proxy.port) as connection:
            deadlines = _schedule(connection, options)
            with _busy(redis.port, options.busy) if options.busy else nullcontext():
                seen = _watch_reads(connection, deadlines)
    worst = {how: max(values) for how, values in seen.items()}
    late = {how: sum(value > 0 for value in values) for how, values in seen.items()}
    rows = [[how, f"{len(seen[how])}", f"{late[how]}", f"{worst[how]:.3f}"] for how in seen]
    text = table(["a member seen after its deadline", "reads with members", "of them late", "worst, ms"], rows)
    bars = [
        Bar(f"read late, {how}, worst ms", worst[how], _READ_WORST_MS, at_least=False)
        for how in ("in a transaction", "at least")
    ]
    return Report(text, {"worst_ms": worst, "late_reads": late}, bars)


def measure(options: argparse.Namespace) -> Report:
    """Measure removal, or reads."""
    return _reading(options) if options.read else _removal(options)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--read", action="store_true", help="measure what readers see, instead of removal")
    parser.add_argument("--members", type=int, default=2000, help="members in all (2000)")
    parser.add_argument("--keys", type=int, default=20, help="sets that they are spread over (20)")
    parser.add_argument("--seconds", type=float, default=10.0, help="time that the deadlines are spread over (10)")
    parser.add_argument(
        "--busy", type=float, default=0.0, metavar="MS", help="keep Redis busy while reading (0: do not)"
    )
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
