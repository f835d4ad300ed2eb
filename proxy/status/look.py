"""Query the server for the status page: a few calls, each of bounded work.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from proxy.coverage.coverage import Coverage
from proxy.events.rules import decode
from proxy.expiry.caller import Caller
from proxy.expiry.tasks import one_line
from proxy.expiry.tracker import Tracker
from proxy.proxies.announcer import Proxies
from proxy.scripts.naming import Names
from proxy.status.names import shown
from proxy.status.shape import Biggest, Due, Key, Looked, Prefix, Prefixes, Rule, Rules
from proxy.upstream.endpoint import Upstream

DATABASES: Final = 16
"""Maximum number of databases to query."""

LISTED: Final = 64
"""Maximum number of prefixes, and of rules, to list."""

SAMPLED: Final = 500
"""Number of keys to sample from the indexes for the prefixes: 0.3 ms of the server's time."""

SIZED: Final = 200
"""Number of keys whose deadlines to count: 0.2 ms of the server's time."""

BIGGEST: Final = 10

SAMPLE_SECONDS: Final = 10.0
"""How long to use a sample. A new one is taken earlier if an index has grown or shrunk by more than a tenth."""

_CLUSTERED: Final = "a cluster node has an index for each slot, and counting would take a call for each"
_MAY_NOT: Final = "the proxy's own user may not count them: grant +zcount"


class _Sample:
    """A random sample of keys with deadlines.

    Attributes:
        moment: when the sample was taken, by the monotonic clock.
        totals: database → number of keys with deadlines.
        keys: database → whether the sample contains all keys with deadlines, and the keys.
        biggest: the keys with the most deadlines.
    """

    def __init__(
        self, totals: dict[int, int], keys: dict[int, tuple[bool, list[bytes]]], biggest: Biggest | None
    ) -> None:
        self.moment = time.monotonic()
        self.totals = totals
        self.keys = keys
        self.biggest = biggest

    def is_good_for(self, totals: dict[int, int]) -> bool:
        """Return whether the sample is still representative: recent, and with hardly changed numbers of keys."""
        return (
            time.monotonic() - self.moment < SAMPLE_SECONDS
            and totals.keys() == self.totals.keys()
            and all(abs(total - self.totals[database]) * 10 <= total for database, total in totals.items())
        )


class ServerLook:
    """Queries the server for the status page.

    Args:
        upstream: the server.
        caller: sends the queries.
        names: the names of the proxy's own keys.
        coverage: the covered prefixes.
        tracker: knows whether the server is reachable.
        proxies: counts other proxies.
        with_names: whether to show names of keys.
    """

    def __init__(
        self,
        upstream: Upstream,
        caller: Caller,
        names: Names,
        coverage: Coverage,
        tracker: Tracker,
        proxies: Proxies,
        *,
        with_names: bool,
    ) -> None:
        self._upstream = upstream
        self._caller = caller
        self._names = names
        self._coverage = coverage
        self._tracker = tracker
        self._proxies = proxies
        self._with_names = with_names
        self._sample: _Sample | None = None

    async def look(self) -> dict[str, Any]:
        """Return what the server reports: a `Looked`, as JSON values.

        Raises:
            RedisError: the server does not answer, or refuses.
        """
        if not self._tracker.connected.is_set():
            raise RedisConnectionError(self._upstream.state)
        told = await self._told()
        databases = sorted(self._coverage.databases)
        due: Due | None = None
        trouble, rules, sample, totals = _CLUSTERED, None, None, dict[int, int]()
        if self._names.slots is None:
            try:
                rows = await self._forecast(databases[:DATABASES])
                totals = {int(row[0]): row[1] for row in rows}
                due, trouble, rules = _due(rows), _MAY_NOT, self._rules(rows)
                sample = await self._sampled(totals)
            except ResponseError as error:
                trouble = one_line(error)
        role = told.get("role")
        return Looked(
            at=time.time(),
            product="Valkey" if "valkey_version" in told else "Redis" if "redis_version" in told else None,
            version=told.get("valkey_version") or told.get("redis_version"),
            role=None if role is None else "primary" if role == "master" else "replica",
            mode=told.get("redis_mode") or told.get("server_mode"),
            replicas=_number(told.get("connected_slaves")),
            commands=_number(told.get("instantaneous_ops_per_sec")),
            others=self._proxies.others,
            due=due,
            due_trouble=None if due is not None else trouble,
            prefixes=self._prefixes(sample, totals),
            biggest=None if sample is None else sample.biggest,
            rules=rules,
            passed_over=max(0, len(databases) - DATABASES),
        ).model_dump()

    async def _told(self) -> dict[str, str]:
        """Return the fields of the server's INFO."""
        sections = await self._caller.aside(("INFO", "server"), ("INFO", "replication"), ("INFO", "stats"))
        told: dict[str, str] = {}
        for section in sections:
            if isinstance(section, bytes):
                lines = section.decode("utf-8", "backslashreplace").splitlines()
                told |= {name: shown(value.encode()) for name, _, value in (line.partition(":") for line in lines)}
        return told

    async def _forecast(self, databases: list[int]) -> list[Any]:
        keys = [self._names.index, self._names.events]
        _, rows = await self._caller.evaluate("forecast", keys, [LISTED, *databases])
        return cast(list[Any], rows)

    def _rules(self, rows: list[Any]) -> Rules:
        listed = [
            Rule(
                database=int(row[0]),
                pattern=shown(rule.pattern) if self._with_names else None,
                stream=shown(rule.stream) if self._with_names and rule.stream else None,
                streams=bool(rule.stream),
                list=shown(rule.list) if self._with_names and rule.list else None,
                lists=bool(rule.list),
                publishes=rule.letters,
                maxlen=rule.maxlen,
            )
            for row in rows
            for rule in map(decode, row[7])
            if rule is not None
        ]
        return Rules(count=sum(row[6] for row in rows), listed=listed)

    async def _sampled(self, totals: dict[int, int]) -> _Sample:
        if self._sample is not None and self._sample.is_good_for(totals):
            return self._sample
        share = max(1, SAMPLED // max(1, len(totals)))
        rows = await self._caller.evaluate("sample", [self._names.index], [share, *totals])
        keys = {int(database): (bool(whole), found) for database, whole, found in rows}
        biggest = await self._biggest(keys) if self._with_names else None
        self._sample = _Sample(totals, keys, biggest)
        return self._sample

    async def _biggest(self, keys: dict[int, tuple[bool, list[bytes]]]) -> Biggest:
        share = max(1, SIZED // max(1, len(keys)))
        asked = [(database, key) for database, (_, found) in keys.items() for key in found[:share]]
        if not asked:
            return Biggest(listed=[], sampled=0, whole=all(whole for whole, _ in keys.values()))
        arguments = [word for database, key in asked for word in (database, self._names.shadow(key))]
        sizes = await self._caller.evaluate("sizes", [], arguments)
        order = sorted(zip(sizes, asked, strict=True), key=lambda one: (-one[0], one[1]))[:BIGGEST]
        return Biggest(
            listed=[Key(name=shown(key), database=database, deadlines=size) for size, (database, key) in order if size],
            sampled=len(asked),
            whole=all(whole and len(found) <= share for whole, found in keys.values()),
        )

    def _prefixes(self, sample: _Sample | None, totals: dict[int, int]) -> Prefixes:
        entries = [(entry[1:], entry[:1] == b"!") for entry in self._coverage.entries]
        found: dict[tuple[bytes, bool], float] = dict.fromkeys(entries, 0.0)
        exact, looked_at = True, None
        if sample is not None:
            looked_at = sum(len(keys) for _, keys in sample.keys.values())
            whole_names = {name for name, whole in entries if whole}
            beginnings = {name for name, whole in entries if not whole}
            lengths = sorted({len(name) for name in beginnings}, reverse=True)
            for database, (complete, keys) in sample.keys.items():
                weight = 1.0 if complete or not keys else totals.get(database, 0) / len(keys)
                exact = exact and complete
                for key in keys:
                    if key in whole_names:
                        found[key, True] += 1  # a covered whole name counts only the key of that name
                        continue
                    beginning = next((key[:size] for size in lengths if key[:size] in beginnings), None)
                    if beginning is not None:
                        found[beginning, False] += weight
        listed = sorted(entries, key=lambda entry: (-found[entry], entry))[:LISTED]
        return Prefixes(
            count=len(entries),
            listed=[
                Prefix(
                    name=shown(name) if self._with_names else None,
                    whole=whole,
                    keys=None if sample is None else round(found[name, whole]) if exact else _about(found[name, whole]),
                )
                for name, whole in listed
            ],
            exact=exact,
            sampled=looked_at,
        )


def _due(rows: list[Any]) -> Due | None:
    counts = [sum(column) for column in zip(*(row[2:6] for row in rows), strict=True)] or [0] * 4
    if any(count < 0 for row in rows for count in row[2:6]):
        return None
    overdue, minute, hour, day = counts
    return Due(overdue=overdue, minute=minute, hour=hour, day=day, keys=sum(row[1] for row in rows))


def _about(count: float) -> int:
    """Round an estimate to two digits."""
    return round(count) if count < 100 else int(round(count, 1 - math.floor(math.log10(count))))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
