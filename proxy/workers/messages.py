"""What the supervisor and a worker tell each other: lines of JSON on a pair of sockets that nobody else has.

Its tests: tests/test_workers.py.

Never on a command line or in the environment: settings may hold passwords.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from proxy.metrics.kinds import Histogram
from proxy.metrics.table import Metrics, Sample
from proxy.settings import Settings

LONGEST: Final = 1 << 20
"""Bytes of a line at most."""


STARTING: Final = "starting"
"""What is in the way of serving clients before a worker has told anything."""


class Order(Enum):
    """What the supervisor tells a worker."""

    STOP = "stop"
    LEAVE = "leave"
    """Stop; others go on listening."""
    ALONE = "alone"
    """No other proxy serves the clients any more."""
    RELOAD = "reload"
    METRICS = "metrics"
    REPORT = "report"
    LOOK = "look"


class News(Enum):
    """What a worker tells the supervisor."""

    READY = "ready"
    """It serves clients; with the state of the upstream."""
    OBSTACLE = "obstacle"
    """Whether it can serve clients has changed; with what is in the way, or nothing."""
    STOP = "stop"
    """It got a signal that asks the proxy to stop."""
    UNUSABLE = "unusable"
    """A setting cannot be used; with the reason. It ends."""
    METRICS = "metrics"
    """The metrics that it was asked for."""
    REPORT = "report"
    """How it is, for the status page."""
    LOOK = "look"
    """What it has found at the server, for the status page; or a text: why it has found nothing."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is told first.

    Attributes:
        worker: its number, from 1 on.
        workers: how many there are.
        settings: the settings, as `pack_settings` makes them.
        upstream: the address of the upstream server.
        listeners: for each listening socket its descriptor, whether clients speak TLS there, and its address as in the
            settings.
        board: the descriptor of the memory that all share.
        inbox: the descriptor of the socket on which other workers send clients.
        fellows: number → descriptor of the socket on which to send them clients, of the others.
        name: what all workers tell the upstream (`Place.name`).
        patient: whether another proxy serves the clients until this one can.
    """

    worker: int
    workers: int
    settings: dict[str, Any]
    upstream: str
    listeners: list[tuple[int, bool, str]]
    board: int
    inbox: int
    fellows: dict[int, int]
    name: str = ""
    patient: bool = False

    def pack(self) -> bytes:
        """Return the line."""
        return _line(asdict(self))

    @classmethod
    def unpack(cls, line: bytes) -> Assignment:
        """Read a line.

        Raises:
            ValueError: it is none.
        """
        try:
            found = json.loads(line)
            found["fellows"] = {int(number): descriptor for number, descriptor in found["fellows"].items()}
            found["listeners"] = [(descriptor, tls, name) for descriptor, tls, name in found["listeners"]]
            return cls(**found)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("not an assignment") from error


def pack_order(order: Order) -> bytes:
    """Return the line for an order."""
    return _line({"order": order.value})


def unpack_order(line: bytes) -> Order:
    """Read an order.

    Raises:
        ValueError: it is none.
    """
    return Order(_named(line, "order"))


def pack_news(news: News, what: object = None) -> bytes:
    """Return the line for news."""
    return _line({"news": news.value, "what": what})


def unpack_news(line: bytes) -> tuple[News, Any]:
    """Read news.

    Raises:
        ValueError: it is none.
    """
    return News(_named(line, "news")), json.loads(line).get("what")


def _named(line: bytes, name: str) -> object:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a message")
    return found.get(name)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


# Settings.


def pack_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that were given, passwords among them, as JSON can hold them."""
    return {name: _plain(getattr(settings, name)) for name in settings.model_fields_set}


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value


def unpack_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings that `pack_settings` has packed, whatever the environment says.

    Raises:
        ValueError: they cannot be used.
    """
    try:
        return _Given(**given)
    except ValidationError as error:
        # Its text shows values.
        raise ValueError(f"settings are not understood: {error.error_count()} errors") from None


class _Given(Settings):
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


# Metrics.


def pack_metrics(metrics: Metrics) -> dict[str, list[Any]]:
    """Return all samples, as JSON can hold them."""
    return {
        metric.name: [[dict(sample.labels), _number(sample.value)] for sample in metric.samples]
        for metric in metrics.read()
    }


def _number(value: float | Histogram) -> Any:
    return [value.bounds, value.counts, value.sum] if isinstance(value, Histogram) else value


def unpack_metrics(packed: Mapping[str, list[Any]]) -> dict[str, list[Sample]]:
    """Return the samples of each metric."""
    return {name: [Sample(labels, _value(value)) for labels, value in samples] for name, samples in packed.items()}


def _value(packed: Any) -> float | Histogram:
    if not isinstance(packed, list):
        return packed  # type: ignore[no-any-return]
    bounds, counts, total = packed
    histogram = Histogram(tuple(bounds))
    histogram.counts, histogram.sum = counts, total
    return histogram
