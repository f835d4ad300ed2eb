"""Sum up the proxy's state in one line, and say what to do if something is wrong.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from typing import Final

from proxy.status.shape import State, Upstream

LATE_SECONDS: Final = 10.0
"""Maximum harmless delay of the earliest deadline, in seconds."""

AHEAD_SECONDS: Final = 1.0
"""Maximum harmless difference between the clocks of server and proxy, in seconds."""

_GOOD: Final = State(level="good", text="Good: clients are served, and members are removed on time.", advice=None)


def judge(*, hung: str | None, obstacle: str | None, upstream: Upstream, blind: bool, lost: int, now: float) -> State:
    """Return the proxy's state: the most serious problem, or that all is good.

    Args:
        hung: which worker hangs, as a phrase; None if none does.
        obstacle: what prevents serving clients, or None.
        upstream: the server.
        blind: whether the proxy may be missing covered prefixes.
        lost: events that the server refused in the last 15 minutes.
        now: Unix time, by this machine's clock.
    """
    late = 0.0 if upstream.next_deadline is None else now + upstream.clock_offset - upstream.next_deadline
    if hung is not None:
        return _bad(f"{_sentence(hung)}.", "If this lasts, restart the proxy: a worker's event loop is stuck.")
    if obstacle in ("starting", "draining"):
        return _warning(
            f"{_sentence(obstacle)}: no new clients are served.",
            "Wait: this takes some seconds." if obstacle == "starting" else "Connected clients are still served.",
        )
    if obstacle is not None and not upstream.reachable:
        return _bad(
            f"{_sentence(obstacle)}.",
            "Check that the server runs, and the proxy's settings for its address, user, password and certificates. "
            "The proxy keeps trying.",
        )
    if obstacle is not None:
        return _warning(f"Not ready: {obstacle}.", "Wait: this takes some seconds. If it lasts, see the log.")
    if upstream.trouble is not None and upstream.asked is not None:
        return _warning(
            f"The server is slow: {upstream.trouble}.", "The figures below are older. Check what keeps the server busy."
        )
    if upstream.role == "replica" and not upstream.slots:
        return _warning(
            "The server is a replica: clients can see expired members until a proxy of the primary removes them.",
            "Set upstream to the primary.",
        )
    if late > LATE_SECONDS:
        return _bad(
            f"Nobody removes expired members: the earliest deadline passed {late:,.0f} s ago.",
            "Check the setting sweep, and look for “sweep failed” in the log. Clients do not see expired members.",
        )
    if blind:
        return _warning(
            "The proxy checks every request because it may not know every covered prefix.",
            "Wait: this takes some seconds after a start or an outage. If it lasts, see the log.",
        )
    if lost:
        return _warning(
            f"{lost:,} events about expired members were lost in the last 15 minutes.",
            "See “events about expired members lost” in the log: it names the error.",
        )
    if abs(upstream.clock_offset) > AHEAD_SECONDS:
        side = "ahead of" if upstream.clock_offset > 0 else "behind"
        return _warning(
            f"The server's clock is {abs(upstream.clock_offset):,.1f} s {side} this machine's.",
            "Set up a time service on both: deadlines follow the server's clock.",
        )
    return _GOOD


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bad(text: str, advice: str) -> State:
    return State(level="bad", text=text, advice=advice)


def _warning(text: str, advice: str) -> State:
    return State(level="warning", text=text, advice=advice)
