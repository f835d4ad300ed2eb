"""Reasons for turning a client away: each is counted, logged, and sent to the client as an error.

Its tests: tests/test_hostile.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from proxy.metrics.table import Metrics
from proxy.relay.budget import HeldBudget

log = structlog.get_logger("proxy.relay")

_TOGETHER: Final = b"-ERR expiremember-proxy: too many unfinished requests are buffered (held_limit)\r\n"
_ALONE: Final = b"-ERR expiremember-proxy: unfinished requests of one client exceed held_limit: raise it\r\n"
_OVERTAKEN: Final = (
    b"-ERR expiremember-proxy: not run, the key got its first deadline while this request arrived; send it again\r\n"
)


def no_room(metrics: Metrics, budget: HeldBudget, held: int, who: Mapping[str, str]) -> bytes:
    """Report that held requests exceed `held_limit`; `held`: bytes of this client."""
    metrics.requests_refused_total["held_limit"] += 1
    log.warning("client dropped: held_limit reached", bytes=held, **who)
    return _ALONE if held > budget.limit else _TOGETHER


def too_large(metrics: Metrics, budget: HeldBudget, held: int, who: Mapping[str, str]) -> bytes:
    """Report that a request that must be buffered exceeds the limit; `held`: its bytes so far."""
    metrics.requests_refused_total["request_limit"] += 1
    advice = f"raise {budget.names} to allow such requests"
    log.warning(
        "client dropped: request larger than request_limit", bytes=held, limit=budget.largest, advice=advice, **who
    )
    return f"-ERR expiremember-proxy: request larger than {budget.names} ({budget.largest} bytes)\r\n".encode()


def overtaken(metrics: Metrics, who: Mapping[str, str]) -> bytes:
    """Report that a key got its first deadline after the head of an upload was judged."""
    metrics.requests_refused_total["overtaken"] += 1
    log.warning("client dropped: key got its first deadline during a slow upload", **who)
    return _OVERTAKEN
