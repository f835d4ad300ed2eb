"""Turn the figures into titled rows of text: for a page without JavaScript, and for a terminal.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.status.shape import Status
from proxy.status.words import UNKNOWN, clock, duration, number, plural

Row = tuple[str, ...]

AS_THEY_CAME = (
    "A request may count in two lines. Requests forwarded unchanged count in none: not counting them keeps them cheap."
)
DUE = (
    "Keys by when their earliest deadline falls due. Each key counts once, however many deadlines it has. "
    "Each line includes those above."
)


class Section(NamedTuple):
    """A titled part of the figures.

    Attributes:
        rank: sections with the highest rank are dropped first if there is no room for all sections.
        title: the title of the section.
        rows: the rows; the first cell names the row, the others are numbers or words.
        head: the titles of the columns; none for rows of two cells.
        note: a sentence shown below the rows.
    """

    rank: int
    title: str
    rows: Sequence[Row]
    head: Row = ()
    note: str = ""


def sections(status: Status) -> list[Section]:
    """Return all sections, in display order."""
    made = [_removals(status), _due(status), _requests(status), _server(status), _prefixes(status)]
    if status.biggest is not None:
        made.append(_biggest(status))
    if status.rules is not None:
        made.append(_rules(status))
    return made


def _removals(status: Status) -> Section:
    told = status.removals
    return Section(
        1,
        "Removed at their deadline",
        [
            ("Members per second", number(told.removed_lately)),
            ("Members in the last 15 minutes", number(told.removed)),
            ("How late, half of the keys", duration(told.median)),
            ("How late, 99 of 100 keys", duration(told.p99)),
        ],
        note="By this proxy. “How late” is the delay of its sweeper: clients never see expired members.",
    )


def _due(status: Status) -> Section:
    if status.due is None:
        return Section(0, "Falls due", [("Not known", status.due_trouble or "not asked yet")])
    due = status.due
    note = DUE
    if status.passed_over:
        note += f" {plural(status.passed_over, 'database')} not queried."
    rows = [
        ("In the next minute", number(due.minute)),
        ("In the next hour", number(due.hour)),
        ("In the next day", number(due.day)),
        ("All with deadlines", number(due.keys)),
    ]
    if due.overdue:
        rows.insert(0, ("Overdue", number(due.overdue)))
    return Section(0, "Falls due", rows, note=note)


def _requests(status: Status) -> Section:
    told = status.requests
    return Section(
        3,
        "Requests per second",
        [
            ("Over shared connections", number(told.shared if told else None)),
            ("Replaced by a script", number(told.scripted if told else None)),
            ("Held", number(told.held if told else None)),
            ("Refused by the proxy", number(told.refused if told else None)),
            ("All commands on the server", number(status.upstream.commands)),
        ],
        note="Of this proxy. The last line is the server's own count, for all its clients and scripts. " + AS_THEY_CAME,
    )


def _server(status: Status) -> Section:
    upstream, proxies = status.upstream, status.proxies
    product = " ".join(filter(None, (upstream.product, upstream.version))) or UNKNOWN
    role: str = upstream.role or UNKNOWN
    if upstream.mode == "cluster":
        role += f" of a cluster, {plural(upstream.slots, 'slot')}"
    elif upstream.replicas is not None and upstream.role == "primary":
        role += f", {plural(upstream.replicas, 'replica')}"
    rows: list[Row] = [
        ("Server", upstream.address or UNKNOWN),
        ("Reachable", "yes" if upstream.reachable else "no"),
        ("Version", product),
        ("Role", role),
    ]
    if upstream.asked is not None and upstream.trouble is not None:
        rows.append(("Last answer", clock(upstream.asked)))
    if upstream.sentinels:
        rows.append(("Sentinels that answer", number(upstream.sentinels)))
    clients = [worker.clients for worker in proxies.workers if worker.clients is not None]
    rows += [
        ("Other proxies here", number(proxies.others)),
        ("Workers of this proxy", number(len(proxies.workers))),
        ("Clients of this proxy", number(sum(clients)) if clients else UNKNOWN),
    ]
    if len(proxies.workers) > 1:
        for worker in proxies.workers:
            said = "does not answer" if not worker.answers else plural(worker.clients or 0, "client")
            rows.append((f"Worker {worker.number}", said))
    return Section(2, "Server and proxies", rows)


def _unnamed(count: int) -> Sequence[Row]:
    return [(f"{plural(count, 'name')} not shown: see --admin-names",)]


def _prefixes(status: Status) -> Section:
    told = status.prefixes
    title = f"Covered prefixes: {number(told.count)}"
    if told.count and not status.names:
        return Section(4, title, _unnamed(told.count))
    note = "Keys with these prefixes can have members with deadlines."
    if not told.exact and told.sampled is not None:
        note += f" Numbers of keys are estimated from a sample of {number(told.sampled)} keys."
    about = "" if told.exact else "≈ "
    rows: list[Row] = [
        (
            prefix.name or "",
            "one key" if prefix.whole else "prefix",
            UNKNOWN if prefix.keys is None else about + number(prefix.keys) if prefix.keys or told.exact else "few",
        )
        for prefix in told.listed
    ]
    if told.count > len(told.listed):
        rows.append((f"and {number(told.count - len(told.listed))} more", "", ""))
    if not rows:
        rows = [("none yet", "", "")]
    return Section(4, title, rows, ("Prefix", "Kind", "With deadlines"), note)


def _biggest(status: Status) -> Section:
    assert status.biggest is not None
    told = status.biggest
    rows: list[Row] = [(key.name, str(key.database), number(key.deadlines)) for key in told.listed]
    note = (
        f"Of all {plural(told.sampled, 'key')} with deadlines."
        if told.whole
        else f"Of a sample of {plural(told.sampled, 'key')}: there may be bigger ones."
    )
    head = ("Key", "Database", "Deadlines")
    return Section(6, "Most deadlines", rows or [("none yet", "", "")], head, note if rows else "")


def _rules(status: Status) -> Section:
    assert status.rules is not None
    title = f"Rules of events: {number(status.rules.count)}"
    if status.rules.count and not status.names:
        return Section(5, title, _unnamed(status.rules.count))
    rows: list[Row] = []
    for rule in status.rules.listed:
        acts = [f"stream {rule.stream}"] if rule.streams else []
        acts += [f"list {rule.list}"] if rule.lists else []
        acts += [f"messages {rule.publishes}"] if rule.publishes else []
        rows.append((rule.pattern or "", str(rule.database), ", ".join(acts)))
    if status.rules.count > len(rows):
        rows.append((f"and {number(status.rules.count - len(rows))} more", "", ""))
    return Section(
        5,
        title,
        rows or [("none", "", "")],
        ("Pattern", "Database", "Tells"),
    )
