"""Count the events about expired members that a script has sent.

Its tests: tests/test_events.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.metrics.table import Metrics


def count_told(metrics: Metrics, told: Sequence[int | bytes]) -> bytes:
    """Add to the metrics the counts that a script has returned after removing members.

    Args:
        metrics: the metrics to update.
        told: entries written, messages published, entries refused, messages refused, the last error, elements pushed,
            elements refused.

    Returns:
        The error; empty if there was none.
    """
    for place, counter, what in (
        (0, metrics.expiry_events_total, "entry"),
        (1, metrics.expiry_events_total, "message"),
        (2, metrics.expiry_events_lost_total, "entry"),
        (3, metrics.expiry_events_lost_total, "message"),
        (5, metrics.expiry_events_total, "element"),
        (6, metrics.expiry_events_lost_total, "element"),
    ):
        count = told[place]
        assert isinstance(count, int)
        counter[what] += count
    error = told[4]
    assert isinstance(error, bytes)
    return error
