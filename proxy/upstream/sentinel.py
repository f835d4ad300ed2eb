"""Which server is the primary, by what the Sentinels say: decisions without I/O.

Every Sentinel says where the primary is, with the number of the failover that it knows of (its configuration epoch). As
among Sentinels the highest number counts: a Sentinel that was cut off names the primary of before. Against the highest
number only a majority of all Sentinels counts: they may have been set up anew, and count from zero again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from proxy.upstream.address import Address

GRACE_SECONDS: Final = 0.5
"""How long, after the first Sentinel has answered for the first time, the others are waited for."""

SWITCH: Final = b"+switch-master"
"""The channel on which a Sentinel says that there is another primary."""

PROMOTED: Final = b"+promoted-slave"
"""The channel on which the Sentinel that leads a failover says that a replica has been promoted. From then on it tells
the new address when it is asked; it announces the switch only when the other replicas follow, which may take longer."""


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
        about = dict(zip(about[::2], about[1::2], strict=False))
    epoch = about.get(b"config-epoch") if isinstance(about, dict) else None
    return int(epoch) if isinstance(epoch, bytes) and epoch.isdigit() else None


def _address(host: object, port: object) -> Address | None:
    if not (isinstance(host, bytes) and isinstance(port, bytes) and host and port.isdigit() and len(port) <= 5):
        return None
    try:
        name = host.decode("ascii")
    except UnicodeDecodeError:
        return None
    return Address(name, int(port)) if name.isprintable() and 0 < int(port) < 1 << 16 else None


def read_switch(message: bytes, primary: str) -> tuple[Address, Address] | None:
    """Read a message of `SWITCH`.

    Returns:
        Where the primary was, and where it is; None if the message is about another primary, or no such message.
    """
    words = message.split()
    if len(words) != 5 or words[0] != primary.encode():
        return None
    old, new = _address(words[1], words[2]), _address(words[3], words[4])
    return (old, new) if old is not None and new is not None else None


class Council:
    """What all Sentinels say, and what follows.

    Args:
        sentinels: the Sentinels.

    Attributes:
        primary: where the primary is; None until that has been decided.
        reports: what each Sentinel that answers says.
        failures: what is wrong with each of the others that was asked.
    """

    def __init__(self, sentinels: Sequence[Address]) -> None:
        self.primary: Address | None = None
        self.reports: dict[Address, Report] = {}
        self.failures: dict[Address, str] = {}
        self._sentinels = sentinels
        self._epoch = 0
        self._since: float | None = None  # when the first report came

    @property
    def all_asked(self) -> bool:
        """Whether every Sentinel has answered or failed."""
        return len(self.reports) + len(self.failures) == len(self._sentinels)

    @property
    def missing(self) -> str | None:
        """Why it is not known where the primary is; None if it is known."""
        if self.primary is not None:
            return None
        if not self.failures:
            return "no Sentinel has answered yet"
        return "no Sentinel tells the primary: " + "; ".join(f"{where}: {why}" for where, why in self.failures.items())

    def report(self, sentinel: Address, report: Report, now: float) -> None:
        """Take what a Sentinel says, at `now` in seconds."""
        epoch = report.epoch
        if epoch is None:
            before = self.reports.get(sentinel)
            epoch = before.epoch if before is not None and before.address == report.address else 0
        self.reports[sentinel] = Report(report.address, epoch)
        self.failures.pop(sentinel, None)
        if self._since is None:
            self._since = now

    def announce(self, sentinel: Address, old: Address, new: Address) -> None:
        """Take a Sentinel's message that there is another primary; if it replaces the one of before, that counts."""
        if old == self.primary:
            self.reports[sentinel] = Report(new, self._epoch + 1)
            self.failures.pop(sentinel, None)

    def fail(self, sentinel: Address, why: str) -> None:
        """Note that a Sentinel does not answer, or not usefully."""
        self.reports.pop(sentinel, None)
        self.failures[sentinel] = why

    def decide(self, now: float) -> Address | None:
        """Return where the primary is by all that has been said until `now`, in seconds; None if that is not known."""
        if not self.reports:
            return self.primary
        votes: dict[Address, int] = {}
        epochs: dict[Address, int] = {}
        for report in self.reports.values():
            votes[report.address] = votes.get(report.address, 0) + 1
            epochs[report.address] = max(epochs.get(report.address, 0), report.epoch or 0)
        best = max(votes, key=lambda address: (epochs[address], votes[address], address == self.primary))
        if self.primary is None:
            assert self._since is not None
            if self.all_asked or now >= self._since + GRACE_SECONDS:
                self.primary = best
        elif epochs[best] > self._epoch or 2 * votes[best] > len(self._sentinels):
            self.primary = best
        if self.primary in epochs:
            self._epoch = epochs[self.primary]
        return self.primary
