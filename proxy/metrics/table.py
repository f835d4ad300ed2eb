# ruff: noqa: E501, RUF009 - a metric is a line
"""The table of metrics. Each line declares a metric, which is a plain number that the parts of the proxy update.

Its tests: tests/test_metrics.py.

Prometheus, `INFO expiremember` and the tests of dashboard and documentation read the table. To count, write
`metrics.client_connections_total += 1`: there are no locks or calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from proxy.metrics.kinds import Declaration, Histogram, counter, declared, gauge, histogram, tally, upstream_counter

PREFIX: Final = "expiremember_"
"""Prefix of the names in Prometheus."""

_SHORT: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        labels: the label's name → its value; empty without a label.
        value: the number, or the distribution.
    """

    labels: Mapping[str, str]
    value: float | Histogram


class Metric(NamedTuple):
    """A metric with its current values.

    Attributes:
        name: the name without the prefix; a counter's name ends in "_total".
        declaration: the declaration in the table.
        samples: one for each value of the label.
    """

    name: str
    declaration: Declaration
    samples: list[Sample]


# fmt: off
@dataclass(slots=True)
class Metrics:
    """All metrics of a process.

    Attributes:
        constants: the labels with one value for the whole process: "upstream", "version", "worker".
        before_reading: updates the gauges.
    """

    constants: dict[str, str] = field(default_factory=dict)
    before_reading: Callable[[], None] = lambda: None

    build_info: float = gauge("Always 1; the version label is the proxy's version.", "version")
    worker_up: float = gauge("1 if this worker of the proxy reported its metrics in time, else 0.", "worker")
    upstream_up: float = gauge("1 while the control connection to the upstream is up, else 0.", "upstream")
    blind: float = gauge("1 while the proxy does not know which keys have deadlines and checks every request.", "upstream")
    client_connections: float = gauge("Clients connected now.")
    client_connections_total: int = counter("Clients accepted.")
    client_connections_rejected_total: Counter[str] = tally("Clients rejected.", "reason", "max_clients", "proxy_header", "proxy_network", "tls_handshake", "upstream")
    received_bytes_total: Counter[str] = tally("Bytes received on relayed TCP connections, as TCP counts them.", "side", "client", "upstream")
    sent_bytes_total: Counter[str] = tally("Bytes sent on relayed TCP connections, as TCP counts them.", "side", "client", "upstream")
    shared_connections: float = gauge("Upstream connections that clients share.")
    shared_requests_total: int = counter("Requests sent over shared upstream connections.")
    requests_rewritten_total: Counter[str] = tally("Requests replaced by a script.", "script", "expire", "ttl", "persist", "expire_members", "ttl_members", "persist_members", "scan_members", "set_members", "get_fields", "add", "count", "remove", "replace", "vanish", "move_member", "rename", "copy", "move", "keys", "scan", "dbsize", "dbsize_of_slots", "randomkey", "settled", "fail", "fail_members")
    requests_refused_total: Counter[str] = tally("Requests that the proxy answered with its own error.", "reason", "arity", "reply_in_multi", "reserved_name", "too_long", "not_announced", "overtaken", "request_limit", "held_limit")
    requests_held_total: int = counter("Requests that waited for a removal, an announcement or a reply.")
    request_hold_seconds: Histogram = histogram("How long held requests waited.", *_SHORT)
    held_bytes: float = gauge("Bytes of incomplete, held or many outstanding requests, of all clients.")
    covered_prefixes: float = gauge("Prefixes under which keys may have members with deadlines.", "upstream")
    next_deadline_timestamp_seconds: float = gauge("Unix time of the earliest deadline; 0 when there is none.", "upstream")
    members_expired_total: Counter[str] = tally("Members removed at their deadline: by the sweeper, or before a request that would have seen them (not counted: those removed by a transaction or by a script that replaces a request).", "trigger", "sweep", "request")
    expiry_events_total: Counter[str] = tally("Events about members that expired: entries appended to streams, messages published, elements pushed to lists.", "kind", "entry", "message", "element")
    expiry_events_lost_total: Counter[str] = tally("Events that the server refused while it removed the member.", "kind", "entry", "message", "element")
    deadlines_voided_total: int = counter("Void deadlines dropped by the background pass.")
    removal_delay_seconds: Histogram = histogram("How long after its earliest deadline the sweeper removed a key's due members.", *_SHORT, 60.0, 600.0)
    sweep_duration_seconds: Histogram = histogram("How long a sweep of one batch took, including the round trip.", *_SHORT)
    sweeper_leader: float = gauge("1 if this proxy held the sweeper's lease when members were last due, 0 if another did.", "upstream")
    clock_offset_seconds: float = gauge("How far the upstream's clock is ahead of this machine's.", "upstream")
    control_reconnects_total: int = upstream_counter("Times the control connection was lost and came back.")
    upstream_switches_total: int = counter("Times another server became the upstream, or the upstream stopped being a primary.")
    cluster_slots: float = gauge("Slots of the cluster node, or of its primary if it is a replica; 0 for other servers.", "upstream")
    cluster_primary: float = gauge("1 if the upstream is a primary of a cluster, else 0.", "upstream")
    sentinels_up: float = gauge("Sentinels that know the primary.")
    event_loop_delay_seconds: Histogram = histogram("Delay of a timer, sampled every second: how long the event loop keeps a request waiting.", *_SHORT[2:])

    def read(self) -> Iterator[Metric]:
        """Update the gauges, and yield every metric in the order of the table."""
        self.before_reading()
        for name, declaration in DECLARATIONS.items():
            value = getattr(self, name)
            if isinstance(value, Counter):
                samples = [Sample({declaration.label or "": key}, count) for key, count in value.items()]
            elif declaration.label is not None:
                samples = [Sample({declaration.label: self.constants.get(declaration.label, "")}, value)]
            else:
                samples = [Sample({}, value)]
            yield Metric(name, declaration, samples)
# fmt: on


DECLARATIONS: Final[Mapping[str, Declaration]] = {
    line.name: declaration for line in fields(Metrics) if (declaration := declared(line)) is not None
}
"""Name, without the prefix → the declaration."""
