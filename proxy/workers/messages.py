"""Encode the messages between the supervisor and a worker: lines of JSON on a private pair of sockets.

Its tests: tests/test_workers.py.

Settings are sent in these messages, not on a command line or in the environment: they may hold passwords.
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
"""Maximum length of a line, in bytes."""


STARTING: Final = "starting"
"""A worker's obstacle until its first message."""


class Order(Enum):
    """A command from the supervisor to a worker."""

    STOP = "stop"
    LEAVE = "leave"
    """Stop; another proxy continues to listen."""
    ALONE = "alone"
    """No other proxy serves the clients any more: accept them."""
    RELOAD = "reload"
    METRICS = "metrics"
    REPORT = "report"
    LOOK = "look"


class News(Enum):
    """A message from a worker to the supervisor."""

    READY = "ready"
    """The worker can serve clients, and does so unless another proxy serves them. Contains the upstream's state."""
    OBSTACLE = "obstacle"
    """What prevents the worker from serving clients has changed. Contains the new obstacle, or None."""
    STOP = "stop"
    """The worker got a signal that stops the proxy."""
    UNUSABLE = "unusable"
    """A setting cannot be used, and the worker exits. Contains the reason."""
    METRICS = "metrics"
    """The worker's metrics, as requested."""
    REPORT = "report"
    """The worker's report for the status page."""
    LOOK = "look"
    """The server's data for the status page, or a text that says why there is none."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The first message to a worker: all that it needs to start.

    Attributes:
        worker: its number, counted from 1.
        workers: the number of workers.
        settings: the settings, as packed by `pack_settings`.
        upstream: the address of the upstream server.
        listeners: for each listening socket: its descriptor, whether clients use TLS there, and its address as in the
            settings.
        board: the descriptor of the shared memory.
        inbox: the descriptor of the socket on which other workers send clients.
        fellows: for each other worker: its number, and the descriptor of the socket for sending it clients.
        name: the proxy's random name, which all workers send to the upstream (`Place.name`).
        patient: whether another proxy serves the clients until this one is ready.
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
        """Return the assignment as a line."""
        return _line(asdict(self))

    @classmethod
    def unpack(cls, line: bytes) -> Assignment:
        """Parse a line.

        Raises:
            ValueError: the line is not an assignment.
        """
        try:
            found = json.loads(line)
            found["fellows"] = {int(number): descriptor for number, descriptor in found["fellows"].items()}
            found["listeners"] = [(descriptor, tls, name) for descriptor, tls, name in found["listeners"]]
            return cls(**found)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("not an assignment") from error


def pack_order(order: Order) -> bytes:
    """Return an order as a line."""
    return _line({"order": order.value})


def unpack_order(line: bytes) -> Order:
    """Parse an order.

    Raises:
        ValueError: the line is not an order.
    """
    return Order(_named(line, "order"))


def pack_news(news: News, what: object = None) -> bytes:
    """Return news as a line."""
    return _line({"news": news.value, "what": what})


def unpack_news(line: bytes) -> tuple[News, Any]:
    """Parse news.

    Raises:
        ValueError: the line is not news.
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
    """Return the settings that were given, including passwords, as JSON values."""
    return {name: _plain(getattr(settings, name)) for name in settings.model_fields_set}


def _plain(value: object) -> object:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value) if isinstance(value, Path) else value


def unpack_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings that `pack_settings` packed, ignoring the environment.

    Raises:
        ValueError: the settings are invalid.
    """
    try:
        return _Given(**given)
    except ValidationError as error:
        # pydantic's error text would show values, such as passwords.
        raise ValueError(f"settings are invalid: {error.error_count()} errors") from None


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
    """Return all samples as JSON values."""
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
