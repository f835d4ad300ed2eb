"""Which server is the primary, by what the Sentinels say: decisions without I/O.

Its tests: tests/test_sentinel_decisions.py.

Every Sentinel says where the primary is, with the number of the failover that it knows of (its configuration epoch). As
among Sentinels the highest number counts: a Sentinel that was cut off names the primary of before. Against the highest
number counts only a majority of all Sentinels that goes on naming another for a while: after a failover all know of it
within seconds, so they have been set up anew and count from zero again, or the one with the number is none of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from proxy.upstream.address import Address

GRACE_SECONDS: Final = 0.5
"""How long, after the first Sentinel has answered for the first time, the others are waited for."""

STEADY_SECONDS: Final = 10.0
"""How long a majority of the Sentinels has to go on naming another primary than the one with the highest number. They
tell each other of a failover every 2 s."""

FIND_SECONDS: Final = STEADY_SECONDS + 5.0
"""How long a command that needs the primary once waits for Sentinels that may still disagree."""

SWITCH: Final = b"+switch-master"
"""The channel on which a Sentinel says that there is another primary: from then on it tells it when it is asked."""

PROMOTED: Final = b"+promoted-slave"
"""The channel on which the Sentinel that leads a failover says that a replica has been promoted. From then on it tells
the new address when it is asked; it announces the switch only when the other replicas follow, which may take longer."""

_DIGITS: Final = 20
"""Digits of the highest epoch that there can be."""


class SentinelError(Exception):
    """A Sentinel gives no useful answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a Sentinel says.

    Attributes:
        address: where the primary is.
        epoch: the number of the last failover that the Sentinel knows of; None where it may not say so.
    """

    address: Address
    epoch: int | None


def questions(primary: str) -> list[tuple[str, ...]]:
    """Return the requests that ask a Sentinel for its report on a primary, by the name it has there."""
    return [("SENTINEL", "MASTER", primary), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", primary)]


def read_report(about: Any, address: Any, primary: str) -> Report:
    """Read the replies to `questions`.

    Args:
        about: the reply to the first, or the error.
        address: the reply to the second, or the error.
        primary: the name of the primary.

    Raises:
        SentinelError: they tell no address.
    """
    if isinstance(address, ResponseError):
        text = " ".join(str(address).split())
        if "unknown command" in text.lower() or "has no SENTINEL" in text:
            raise SentinelError("it is no Sentinel")
        raise SentinelError(f"it answers: {text}")
    if address is None:
        raise SentinelError(f"it knows no primary with the name {primary!r}")
    words = address if isinstance(address, list) else []
    found = _address(*words) if len(words) == 2 else None
    if found is None:
        raise SentinelError("it tells no address of the primary")
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
    """What a Sentinel goes on saying: its report, and the first and the last moment at which it was asked for it."""

    report: Report
    since: float
    until: float


class Council:
    """What all Sentinels say, and what follows.

    Args:
        sentinels: the Sentinels.

    Attributes:
        primary: where the primary is; None until that has been decided.
        reason: how it was decided, for people.
        failures: what is wrong with each Sentinel that was asked and tells no primary.
    """

    def __init__(self, sentinels: Sequence[Address]) -> None:
        self.primary: Address | None = None
        self.reason = ""
        self.failures: dict[Address, str] = {}
        self._sentinels = sentinels
        self._said: dict[Address, _Said] = {}
        self._epoch = 0
        self._since: float | None = None  # when the first report came
        self._split: float | None = None  # since when not all name the same primary
        self._overruled: set[Address] = set()  # the Sentinels that a majority has contradicted for long enough

    @property
    def reports(self) -> dict[Address, Report]:
        """What each Sentinel that answers says."""
        return {sentinel: said.report for sentinel, said in self._said.items()}

    @property
    def all_asked(self) -> bool:
        """Whether every Sentinel has answered or failed."""
        return len(self._said) + len(self.failures) == len(self._sentinels)

    @property
    def missing(self) -> str | None:
        """Why it is not known where the primary is; None if it is known."""
        if self.primary is not None:
            return None
        if self._split is not None:
            return f"the Sentinels disagree: {self.names}"
        if not self.failures:
            return "no Sentinel has answered yet"
        return "no Sentinel tells the primary: " + "; ".join(f"{where}: {why}" for where, why in self.failures.items())

    @property
    def names(self) -> str:
        """Which server each Sentinel names, for people."""
        return ", ".join(
            f"{sentinel} names {said.report.address} (epoch {said.report.epoch})"
            for sentinel, said in self._said.items()
        )

    def report(self, sentinel: Address, report: Report, asked: float) -> None:
        """Take what a Sentinel says.

        Args:
            sentinel: the Sentinel.
            report: what it says.
            asked: when it was asked, in seconds. What it said before the process stood still may be read only later.
        """
        before = self._said.get(sentinel)
        if report.epoch is None:
            known = before is not None and before.report.address == report.address
            report = Report(report.address, before.report.epoch if before is not None and known else 0)
        since = before.since if before is not None and before.report == report else asked
        self._said[sentinel] = _Said(report, since, asked)
        self.failures.pop(sentinel, None)

    def fail(self, sentinel: Address, why: str) -> None:
        """Note that a Sentinel does not answer, or not usefully."""
        self._said.pop(sentinel, None)
        self.failures[sentinel] = why

    def decide(self, now: float) -> Address | None:
        """Return where the primary is by all that has been said until `now`, in seconds; None if that is not known."""
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
        """Return whether the Sentinels have not agreed for longer than they need after a failover, at `now`."""
        return self._split is not None and now >= self._split + STEADY_SECONDS

    def _choose(self, address: Address, reason: str) -> None:
        if address != self.primary:
            self.primary, self.reason = address, reason

    def _is_steady(self, most: Address, best: Address) -> bool:
        """Return whether a majority has gone on naming one server for long enough after others named another."""
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
