"""The proxy's section of INFO: the metrics in Redis's format.

Its tests: tests/test_info.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from proxy.metrics.kinds import Histogram
from proxy.metrics.table import Metrics, Sample

_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f]")
_TOLD_BY_FACTS: Final = frozenset(("build_info",))


def section(metrics: Metrics, facts: Mapping[str, str | int]) -> bytes:
    """Format the section.

    Args:
        metrics: the metrics, one line each; those with a label as `name:value=1,other=2`, like Redis's `db0`.
        facts: fields to put first.
    """
    lines = ["# Expiremember"]
    lines += [f"{name}:{_UNFIT.sub('?', str(value))}" for name, value in facts.items()]
    for metric in metrics.read():
        if metric.name not in _TOLD_BY_FACTS:
            labelled = bool(metric.declaration.values)
            lines.append(f"{metric.name}:{_values(metric.samples, labelled=labelled)}")
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8", "replace")


def _values(samples: list[Sample], *, labelled: bool) -> str:
    if labelled:
        return ",".join(f"{next(iter(sample.labels.values()))}={_value(sample.value)}" for sample in samples)
    return ",".join(_value(sample.value) for sample in samples)


def _value(value: float | Histogram) -> str:
    if isinstance(value, Histogram):
        return f"count={value.count},sum={_value(value.sum)}"
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")
