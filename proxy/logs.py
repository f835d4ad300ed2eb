"""Structured logging to standard error, for people or for programs.

Its tests: tests/test_docs.py.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Literal

import structlog

from proxy.log_stream import Patient

log = structlog.get_logger("proxy.logs")


def page_of(event: str) -> str:
    """Return the link to the documentation of a warning or an error."""
    return "docs/operations.md#" + re.sub(r"[^\w -]", "", event.lower()).replace(" ", "-")


def _point_to_page(_logger: object, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    if fields["level"] in ("warning", "error"):
        fields["see"] = page_of(fields["event"])
    return fields


def style_of(chosen: Literal["auto", "console", "json"]) -> Literal["console", "json"]:
    """Return the log format: `auto` means console if standard error is a terminal, else JSON."""
    if chosen != "auto":
        return chosen
    return "console" if sys.stderr.isatty() else "json"


def print_below(text: str) -> None:
    """Print a text for people after all log lines so far; drop the text if standard error accepts no more."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.stream.write(text)
            handler.flush()


def configure(level: str, chosen: Literal["auto", "console", "json"]) -> None:
    """Set up logging.

    Args:
        level: minimum level of messages: debug, info, warning or error.
        chosen: `console` for people, `json` for one object per line, or `auto` (see `style_of`).
    """
    style = style_of(chosen)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        # Plain tracebacks: other formatters show local variables, such as passwords.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if style == "json":
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            _point_to_page,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    stream = Patient(sys.stderr)
    stream.on_room = _say_lost
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    logging.getLogger("asyncio").setLevel(max(threshold, logging.WARNING))


def _say_lost(lines: int) -> None:
    log.warning("log lines lost: their reader was too slow", lines=lines)


class Seldom:
    """Logs a frequent event at most once in `seconds`, with the number of occurrences since the last line.

    Args:
        say: the logger's method, such as `log.warning`.
        event: the event.
        seconds: minimum time between two lines.
    """

    def __init__(self, say: Callable[..., object], event: str, seconds: float = 60.0) -> None:
        self._say = say
        self._event = event
        self._seconds = seconds
        self._times = 0
        self._silent_until = 0.0

    def __call__(self, **fields: object) -> None:
        """Count the event. If enough time has passed, log it with these fields and the count (`times`)."""
        self._times += 1
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + self._seconds
            self._say(self._event, times=self._times, **fields)
            self._times = 0
