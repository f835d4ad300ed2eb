"""How long a second proxy does not know yet that a key has got its first deadline through another.

    python -m benchmarks.window [--check]

Two proxies stand in front of one Redis. Through one a fresh key gets its first deadline; as soon as the reply has come,
the other is asked again and again whether it knows the key. A client without any permission can tell: the other proxy
puts a script in the place of a store to a known key, and the server's refusal names the command that it refuses. The
time from the reply to the first refusal of a script is the window; it is overstated by the round trip that asks.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from benchmarks.figures import Bar, Report, add_output_options, percentile, run, table
from benchmarks.stage import Connection, Stage, StageError

_P99_MS: Final = 5.0
_PATIENCE_SECONDS: Final = 5.0


class _Stranger:
    """A client that may do nothing.

    Args:
        port: of the proxy that is asked.
    """

    def __init__(self, port: int) -> None:
        self.connection = Connection(port)
        self.connection.call("AUTH", "stranger", "stranger")

    def sees(self, key: str) -> bool:
        """Tell whether the proxy knows that the key has deadlines."""
        try:
            self.connection.call("SUNIONSTORE", key, key)
        except StageError as error:
            refusal = str(error).lower()
            if "noperm" in refusal:
                return "sunionstore" not in refusal
            raise
        raise StageError("a user without permissions was allowed to store a set")


def _one(first: Connection, stranger: _Stranger, key: str) -> float:
    """Return the window of one key, in ms."""
    first.call("SADD", key, "x")
    if stranger.sees(key):
        raise StageError(f"{key} is known before it has a deadline")
    first.call("EXPIREMEMBER", key, "x", 1000)
    begin = time.perf_counter()
    while not stranger.sees(key):
        if time.perf_counter() - begin > _PATIENCE_SECONDS:
            raise StageError(f"{key} is not known after {_PATIENCE_SECONDS} s")
    return (time.perf_counter() - begin) * 1000


def measure(options: argparse.Namespace) -> Report:
    """Measure the window of many keys."""
    with Stage() as stage:
        redis = stage.redis()
        with Connection(redis.port) as straight:
            straight.call("ACL", "SETUSER", "stranger", "on", ">stranger", "-@all")
        ports = [stage.proxy(redis, *options.proxy_arg).port for _ in range(2)]
        stranger = _Stranger(ports[1])
        with Connection(ports[0]) as first, stranger.connection:
            windows = [_one(first, stranger, f"key:{number}") for number in range(options.keys)]
    figures = [percentile(windows, percent) for percent in (50, 99, 100)]
    text = table(
        ["from the reply until another proxy knows", "p50, ms", "p99, ms", "worst, ms"],
        [[f"{options.keys} keys", *(f"{figure:.2f}" for figure in figures)]],
    )
    return Report(text, {"window_ms": windows}, [Bar("window, p99 ms", figures[1], _P99_MS, at_least=False)])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2000, help="keys that get a deadline, one after the other (2000)")
    add_output_options(parser)
    return run(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
