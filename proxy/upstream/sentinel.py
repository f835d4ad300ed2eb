"""Decide which server is the primary from the Sentinels' reports, without I/O.

Its tests: tests/test_sentinel_decisions.py.

Every Sentinel reports the primary with the number of the last failover that it knows (its configuration epoch). The
highest number wins, as among Sentinels: a Sentinel that was cut off still names the old primary.

The highest number is overruled only if a majority of all Sentinels keeps naming another primary. All Sentinels learn of
a failover within seconds. So a majority that disagrees for longer has been set up anew and counts from zero again, or
the Sentinel with the highest number belongs to another deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from proxy.upstream.address import Address

GRACE_SECONDS: Final = 0.5
"""How long to wait for the other Sentinels after the first report."""

STEADY_SECONDS: Final = 10.0
"""How long a majority of the Sentinels must name another primary before it overrules the highest number. Sentinels
exchange news of failovers every 2 s."""

FIND_SECONDS: Final = STEADY_SECONDS + 5.0
"""How long a subcommand that needs the primary waits for Sentinels that may still disagree."""

SWITCH: Final = b"+switch-master"
"""The channel on which a Sentinel announces another primary; from then on it reports that primary."""

PROMOTED: Final = b"+promoted-slave"
"""The channel on which the Sentinel that leads a failover announces that a replica has been promoted. From then on that
Sentinel reports the new address. It announces the switch later, when the other replicas follow the new primary."""

_DIGITS: Final = 20
"""Number of digits of the highest possible epoch."""


class SentinelError(Exception):
    """A Sentinel gives no useful answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a Sentinel.

    Attributes:
        address: where the primary is.
        epoch: the number of the last failover that the Sentinel knows; None if the user may not query it.
    """

    address: Address
    epoch: int | None


def questions(primary: str) -> list[tuple[str, ...]]:
    """Return the requests for a Sentinel's report on a primary; `primary`: the Sentinels' name for it."""
    return [("SENTINEL", "MASTER", primary), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", primary)]


def read_report(about: Any, address: Any, primary: str) -> Report:
    """Parse the replies to `questions`.

    Args:
        about: the reply to the first request, or the error.
        address: the reply to the second request, or the error.
        primary: the name of the primary.

    Raises:
        SentinelError: the replies contain no address.
    """
    if isinstance(address, ResponseError):
        text = " ".join(str(address).split())
        if "unknown command" in text.lower() or "has no SENTINEL" in text:
            raise SentinelError("it is not a Sentinel")
        raise SentinelError(f"it answers: {text}")
    if address is None:
        raise SentinelError(f"it knows no primary with the name {primary!r}")
    words = address if isinstance(address, list) else []
    found = _address(*words) if len(words) == 2 else None
    if found is None:
        raise SentinelError("it does not report the primary's address")
    return Report(found, _epoch(about))


def _epoch(about: Any) -> int | None:
    if isinstance(about, list):
        fields = list(zip(about[::2], about[1::2], strict=False))
    else:
        fields = list(about.items()) if isinstance(about, dict) else []
    for name, epoch in fields:
        if name == b"config-epoch" and isinstance(epoch, bytes) and epoch.isdigit() and len(epoch) <= _DIGITS:
            return int(epoch)
    return None


def _address(host: object, port: object) -> Address | None:
    if not (isinstance(host, bytes) and isinstance(port, bytes) and host and port.isdigit() and len(port) <= 5):
        return None
    try:
        name = host.decode("ascii")
    except UnicodeDecodeError:
        return None
    return Address(name, int(port)) if name.isprintable() and 0 < int(port) < 1 << 16 else None


@dataclass(slots=True)
class _Said:
    """A Sentinel's unchanged report, with the first and the last time at which it was requested."""

    report: Report
    since: float
    until: float


class Council:
    """The reports of all Sentinels, and the decision from them.

    Args:
        sentinels: the Sentinels.

    Attributes:
        primary: the primary's address; None until decided.
        reason: why this primary was chosen, for people.
        failures: the problem of each Sentinel that reports no primary.
    """

    def __init__(self, sentinels: Sequence[Address]) -> None:
        self.primary: Address | None = None
        self.reason = ""
        self.failures: dict[Address, str] = {}
        self._sentinels = sentinels
        self._said: dict[Address, _Said] = {}
        self._epoch = 0
        self._since: float | None = None  # when the first report arrived
        self._split: float | None = None  # since when the Sentinels disagree
        self._overruled: set[Address] = set()  # the Sentinels that a majority has overruled

    @property
    def reports(self) -> dict[Address, Report]:
        """The report of each Sentinel that answers."""
        return {sentinel: said.report for sentinel, said in self._said.items()}

    @property
    def all_asked(self) -> bool:
        """Whether every Sentinel has answered or failed."""
        return len(self._said) + len(self.failures) == len(self._sentinels)

    @property
    def missing(self) -> str | None:
        """Why the primary is not known; None if it is."""
        if self.primary is not None:
            return None
        if self._split is not None:
            return f"the Sentinels disagree: {self.names}"
        if not self.failures:
            return "no Sentinel has answered yet"
        return "no Sentinel names the primary: " + "; ".join(f"{where}: {why}" for where, why in self.failures.items())

    @property
    def names(self) -> str:
        """The server that each Sentinel names, for people."""
        return ", ".join(
            f"{sentinel} names {said.report.address} (epoch {said.report.epoch})"
            for sentinel, said in self._said.items()
        )

    def report(self, sentinel: Address, report: Report, asked: float) -> None:
        """Record a Sentinel's report.

        Args:
            sentinel: the Sentinel.
            report: its report.
            asked: when it was requested, in seconds. (It may be read much later, if the process was suspended.)
        """
        before = self._said.get(sentinel)
        if report.epoch is None:
            known = before is not None and before.report.address == report.address
            report = Report(report.address, before.report.epoch if before is not None and known else 0)
        since = before.since if before is not None and before.report == report else asked
        self._said[sentinel] = _Said(report, since, asked)
        self.failures.pop(sentinel, None)

    def fail(self, sentinel: Address, why: str) -> None:
        """Note that a Sentinel gives no useful answer."""
        self._said.pop(sentinel, None)
        self.failures[sentinel] = why

    def decide(self, now: float) -> Address | None:
        """Return the primary's address according to all reports; None if not known. `now`: the time, in seconds."""
        votes: dict[Address, int] = {}
        epochs: dict[Address, int] = {}
        for sentinel, said in self._said.items():
            address = said.report.address
            votes[address] = votes.get(address, 0) + 1
            if address == self.primary:
                self._overruled.discard(sentinel)
            if sentinel not in self._overruled:
                epochs[address] = max(epochs.get(address, 0), said.report.epoch or 0)
        if len(votes) <= 1:
            self._split = None
        elif self._split is None:
            self._split = now
        if not epochs:
            return self.primary
        if self._since is None:
            self._since = now
        best = max(epochs, key=lambda address: (epochs[address], votes[address], address == self.primary))
        most = max(votes, key=lambda address: votes[address])
        if most != best and 2 * votes[most] > len(self._sentinels):
            if self._is_steady(most, best):
                self._overruled.update(one for one, said in self._said.items() if said.report.address != most)
                self._choose(most, f"most Sentinels go on naming it, and not {best}")
                self._epoch = epochs.get(most, 0)
                return self.primary
            if self.primary is None:
                return None
        if self.primary is None:
            if self.all_asked or now >= self._since + GRACE_SECONDS:
                self._choose(best, "found by the Sentinels")
        elif 2 * votes[best] > len(self._sentinels):
            self._choose(best, "most Sentinels name it")
        elif epochs[best] > self._epoch:
            self._choose(best, "a Sentinel knows of a later failover")
        if self.primary in epochs:
            self._epoch = epochs[self.primary]
        return self.primary

    def are_at_odds(self, now: float) -> bool:
        """Return whether at `now` the Sentinels have disagreed for longer than a failover explains."""
        return self._split is not None and now >= self._split + STEADY_SECONDS

    def _choose(self, address: Address, reason: str) -> None:
        if address != self.primary:
            self.primary, self.reason = address, reason

    def _is_steady(self, most: Address, best: Address) -> bool:
        """Return whether a majority has named `most` for `STEADY_SECONDS` since others named `best`."""
        against = min(
            said.since
            for sentinel, said in self._said.items()
            if said.report.address == best and sentinel not in self._overruled
        )
        steady = [
            said
            for said in self._said.values()
            if said.report.address == most and said.until >= max(said.since, against) + STEADY_SECONDS
        ]
        return 2 * len(steady) > len(self._sentinels)
