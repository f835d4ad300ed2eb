"""Judge what the facts about an upstream server mean for a proxy. No I/O.

Its tests: tests/test_check.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from proxy.coverage.prefixes import MOST
from proxy.upstream.nodes import Node
from proxy.upstream.words import EMBEDDED_BEHIND

_SHOWN_PREFIXES: Final = 10

OLDEST_REDIS: Final = (6, 2)
OLDEST_VALKEY: Final = (7, 2)

ENOUGH_SENTINELS: Final = 3
"""Minimum number of Sentinels: of three, the two left after a failure are still a majority."""

SLOW_MS: Final = 5.0
"""Round trips longer than this, in ms, are worth a warning: some requests wait for one or two round trips."""

CLOCK_SECONDS: Final = 1.0
"""People notice clock differences larger than this, in seconds."""


class Level(Enum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    """Worth attention; the exit status is 0."""
    FAILURE = "failure"
    """The proxy cannot work, or cannot keep its promise; the exit status is 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the output.

    Attributes:
        level: how serious the finding is.
        subject: what the finding is about, in a word or two.
        text: what was found, and what to do about it.
    """

    level: Level
    subject: str
    text: str


@dataclass(slots=True)
class Facts:
    """The known facts about the upstream server.

    Attributes:
        address: the server's address, without credentials.
        info: the fields of the server's INFO.
        refused: the commands that the proxy's user may not run; None if that could not be tested.
        unknown: the commands that the proxy needs and the server does not know.
        keys_refused: whether there are keys that the user may not access.
        channels_refused: whether the user may not publish or subscribe on the proxy's channels.
        ahead: how many seconds the server's clock is ahead of this machine's.
        round_trip_ms: how long a round trip takes, in ms.
        save: the setting `save`; None if the user may not read it.
        proxies: the versions of the proxies on this server; an empty version if the server does not report it.
        covered: the covered prefixes.
        section: the fields of INFO expiremember, if the server is a proxy; else empty.
        has_command: whether the server has an EXPIREMEMBER command itself.
        version: the version of this proxy.
        exposed: the addresses in `listen` that other machines can reach and that require no client certificate.
        wants_login: whether the server requires clients to log in; None if unknown.
        sentinels: Sentinel → the primary's address that it reports, and the error; one of them is None.
        primary: the primary's address by the Sentinels' majority, empty if unknown; None without Sentinels.
        node: the server's line in CLUSTER NODES; None if the server is not a cluster node.
        ports: the ports in `listen`.
    """

    address: str
    info: Mapping[str, str] = field(default_factory=dict)
    refused: list[str] | None = None
    unknown: list[str] = field(default_factory=list)
    keys_refused: bool = False
    channels_refused: bool = False
    ahead: float | None = None
    round_trip_ms: float | None = None
    save: str | None = None
    proxies: list[str] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)
    section: Mapping[str, str] = field(default_factory=dict)
    has_command: bool = False
    version: str = ""
    exposed: list[str] = field(default_factory=list)
    wants_login: bool | None = None
    sentinels: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    primary: str | None = None
    node: Node | None = None
    ports: set[int] = field(default_factory=set)


def fields(info: str) -> dict[str, str]:
    """Parse the lines of INFO."""
    pairs = (line.partition(":") for line in info.splitlines() if ":" in line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def judge(facts: Facts) -> list[Finding]:
    """Return what the facts mean: a finding for each subject."""
    return [
        *judge_sentinels(facts),
        *_server(facts),
        *_nesting(facts),
        *_commands(facts.unknown),
        *_rights(facts),
        *_role(facts.info, facts.primary),
        *_eviction(facts.info),
        *_persistence(facts.info, facts.save),
        *_clock(facts.ahead),
        *_proxies(facts.proxies, facts.version),
        *_covered(facts.covered),
        *exposure(facts.exposed, facts.wants_login),
    ]


def _server(facts: Facts) -> Iterator[Finding]:
    info = facts.info
    if not info:
        return  # the finding on rights says why INFO is missing
    valkey = info.get("server_name") == "valkey" or "valkey_version" in info
    text = info.get("valkey_version") if valkey else info.get("redis_version")
    name, oldest = ("Valkey", OLDEST_VALKEY) if valkey else ("Redis", OLDEST_REDIS)
    numbers = re.match(r"(\d+)\.(\d+)", text or "")
    needs = f"needs Redis {_dotted(OLDEST_REDIS)}, Valkey {_dotted(OLDEST_VALKEY)} or newer"
    if numbers is None:
        yield Finding(Level.FAILURE, "version", f"{facts.address} does not report its version; the proxy {needs}")
    elif (int(numbers[1]), int(numbers[2])) < oldest:
        yield Finding(Level.FAILURE, "version", f"{name} {text} is too old; the proxy {needs}")
    else:
        yield Finding(Level.OK, "version", f"{name} {text}")
    mode = info.get("server_mode") or info.get("redis_mode")
    if mode == "sentinel":
        yield Finding(
            Level.FAILURE, "mode", "this is a Sentinel; set upstream to redis+sentinel://…, or to the primary"
        )
    elif is_cluster_node(info):
        yield from _node(facts)
    if info.get("loading") == "1" or info.get("async_loading") == "1":
        yield Finding(Level.FAILURE, "loading", "the server is still loading its data; try again when it is done")
    if facts.round_trip_ms is not None:
        slow = facts.round_trip_ms > SLOW_MS
        advice = "; run the proxy beside the server: some requests wait for one or two of these" if slow else ""
        level = Level.WARNING if slow else Level.OK
        yield Finding(level, "round trip", f"{facts.round_trip_ms:.2f} ms{advice}")


def is_cluster_node(info: Mapping[str, str]) -> bool:
    """Return whether the fields of INFO are those of a cluster node."""
    return "cluster" in (info.get("server_mode"), info.get("redis_mode")) or info.get("cluster_enabled") == "1"


def _node(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if node is None:
        return  # the finding on rights says why the node is unknown
    if not facts.ports.isdisjoint((node.address.port,)):
        where = f"the node announces {node.address}, where the proxy listens"
        role = f"{_count(len(node.slots), 'slot')}" if node.primary else "replica"
        yield Finding(Level.OK, "cluster", f"{role}; {where}")
    else:
        yield Finding(
            Level.WARNING,
            "cluster",
            f"the node announces {node.address}, and the proxy listens on another port: unless that port leads to it,"
            " clients bypass the proxy; set cluster-announce-port to the proxy's port",
        )


def _nesting(facts: Facts) -> Iterator[Finding]:
    if facts.section:
        behind = facts.section.get("upstream", "the server behind it")
        version = facts.section.get("version", "?")
        advice = EMBEDDED_BEHIND if facts.section.get("embedded") == "1" else f"set upstream to {behind}"
        yield Finding(
            Level.FAILURE,
            "upstream",
            f"{facts.address} is an expiremember-proxy itself (version {version}); {advice}",
        )
    elif facts.has_command:
        yield Finding(
            Level.FAILURE,
            "upstream",
            f"{facts.address} has EXPIREMEMBER itself, as KeyDB does; use it without the proxy",
        )


def _commands(unknown: list[str]) -> Iterator[Finding]:
    if unknown:
        yield Finding(
            Level.FAILURE,
            "commands",
            f"the server has no {', '.join(name.upper() for name in unknown)}, which the proxy needs; remove"
            " rename-command for it from the server's configuration",
        )


def _rights(facts: Facts) -> Iterator[Finding]:
    if facts.refused is None:
        return
    missing = [f"+{name}" for name in facts.refused]
    if facts.keys_refused:
        missing.append("~*")
    if facts.channels_refused:
        missing.append("the channels of the proxy")
    if missing:
        untried = "; +rpush cannot be tried without +eval, so check again then" if "eval" in facts.refused else ""
        yield Finding(
            Level.FAILURE,
            "rights",
            f"the proxy's user lacks {' '.join(missing)}; give it the rules in config/acl.example (ACL SETUSER)"
            f"{untried}",
        )
    else:
        yield Finding(Level.OK, "rights", "the proxy's user has all the rights it needs")


def judge_sentinels(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the Sentinels."""
    if not facts.sentinels:
        return
    agreed = [sentinel for sentinel, (told, _) in facts.sentinels.items() if told is not None and told == facts.primary]
    wrong = [f"{sentinel}: {failure}" for sentinel, (_, failure) in facts.sentinels.items() if failure is not None]
    others = [
        f"{sentinel} names {told}"
        for sentinel, (told, _) in facts.sentinels.items()
        if told not in (None, facts.primary)
    ]
    count = f"{len(agreed)} of {len(facts.sentinels)}"
    if not facts.primary:
        what = "they disagree about" if others else "none knows"
        yield Finding(
            Level.FAILURE,
            "sentinels",
            f"{what} the primary: {'; '.join((*wrong, *others))}; check the addresses and the name in upstream, and"
            " sentinel_password_file",
        )
    elif wrong or others:
        yield Finding(
            Level.WARNING,
            "sentinels",
            f"{count} name {facts.primary} as the primary; {'; '.join((*wrong, *others))}",
        )
    elif len(facts.sentinels) < ENOUGH_SENTINELS:
        yield Finding(
            Level.WARNING,
            "sentinels",
            f"{count} name {facts.primary} as the primary; name at least {ENOUGH_SENTINELS} in upstream, so that the"
            " proxy can follow when one has failed",
        )
    else:
        yield Finding(Level.OK, "sentinels", f"{count} name {facts.primary} as the primary")


def _role(info: Mapping[str, str], primary: str | None) -> Iterator[Finding]:
    if info.get("role") == "slave" and primary is not None:
        yield Finding(
            Level.FAILURE,
            "replication",
            "the Sentinels name this server as the primary, and it is a replica: a failover may be under way; check"
            " again",
        )
        return
    if info.get("role") == "slave" and is_cluster_node(info):
        yield Finding(Level.OK, "replication", "replica: its proxy removes members when it becomes a primary")
        return
    if info.get("role") == "slave":
        yield Finding(
            Level.FAILURE,
            "replication",
            f"this is a replica: the proxy cannot remove members here; set upstream to its primary,"
            f" {info.get('master_host', '?')}:{info.get('master_port', '?')}",
        )
        return
    replicas = int(info.get("connected_slaves", "0"))
    good = info.get("min_slaves_good_slaves")
    if good is not None and int(good) == 0:
        yield Finding(
            Level.WARNING,
            "replication",
            "min-replicas-to-write is set, and no replica keeps up: the server may refuse writes, including removals;"
            " check the replicas",
        )
    elif primary is not None and good is None and "role" in info:
        yield Finding(
            Level.WARNING,
            "replication",
            f"{_count(replicas, 'replica')}, and min-replicas-to-write is 0: in a failover the old primary keeps"
            " acknowledging writes for seconds, which are then lost; set min-replicas-to-write 1",
        )
    elif primary is not None and not replicas and "role" in info:
        yield Finding(Level.WARNING, "replication", "no replica: the Sentinels have nothing to fail over to")
    elif replicas and good is None:
        yield Finding(
            Level.WARNING,
            "replication",
            f"{_count(replicas, 'replica')}, and min-replicas-to-write is 0: a failover may lose the last deadlines"
            " with the last writes; set min-replicas-to-write 1",
        )
    elif "role" in info:
        yield Finding(Level.OK, "replication", f"primary, {_count(replicas, 'replica')}")


def _eviction(info: Mapping[str, str]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy"), int(info.get("maxmemory", "0"))
    if policy is None:
        return
    if not policy.startswith("allkeys-"):
        yield Finding(Level.OK, "eviction", policy)
        return
    advice = f"with {policy} the server may evict deadlines; set maxmemory-policy to noeviction or volatile-…"
    if limit:
        yield Finding(Level.FAILURE, "eviction", advice)
    else:
        yield Finding(Level.WARNING, "eviction", f"maxmemory is 0, so nothing is evicted; but {advice}")


def _persistence(info: Mapping[str, str], save: str | None) -> Iterator[Finding]:
    if info.get("aof_enabled") == "1":
        yield Finding(Level.OK, "persistence", "append-only file")
    elif save:
        yield Finding(Level.OK, "persistence", f"snapshots ({save}); a crash loses deadlines set since the last one")
    elif save == "":
        yield Finding(
            Level.WARNING,
            "persistence",
            "off: all data, deadlines included, is lost when the server stops; set appendonly yes",
        )
    elif "aof_enabled" in info:
        yield Finding(Level.OK, "persistence", "no append-only file; the proxy's user may not check for snapshots")


def _clock(ahead: float | None) -> Iterator[Finding]:
    if ahead is None:
        return
    if abs(ahead) <= CLOCK_SECONDS:
        yield Finding(Level.OK, "clock", f"the server's clock is {_offset(ahead)} this machine's")
    else:
        yield Finding(
            Level.WARNING,
            "clock",
            f"the server's clock is {_offset(ahead)} this machine's, and EXPIREMEMBERAT uses the server's;"
            " run a time service on both",
        )


def _proxies(versions: Iterable[str], own: str) -> Iterator[Finding]:
    found = sorted(versions)
    if not found:
        yield Finding(Level.OK, "proxies", "none on this server yet")
        return
    told = ", ".join(
        version or "of unknown version: servers before Redis 7.2 do not report it" for version in sorted(set(found))
    )
    others = {version for version in found if version and version != own}
    if others:
        yield Finding(
            Level.WARNING, "proxies", f"{len(found)} on this server ({told}), this is {own}; run the same version"
        )
    else:
        yield Finding(Level.OK, "proxies", f"{len(found)} on this server ({told})")


def _covered(prefixes: list[str]) -> Iterator[Finding]:
    if not prefixes:
        return
    shown = sorted(prefixes)[:_SHOWN_PREFIXES]
    more = f" and {len(prefixes) - len(shown)} more" if len(prefixes) > len(shown) else ""
    begin = f"keys that begin with {', '.join(shown)}{more}"
    if len(prefixes) < MOST:
        yield Finding(Level.OK, "covered", begin)
    else:
        yield Finding(
            Level.WARNING,
            "covered",
            f"{begin}: this is the maximum number of prefixes, so some also cover keys without deadlines, "
            "which costs time; give keys with deadlines common prefixes, such as cart:",
        )


def exposure(exposed: list[str], wants_login: bool | None) -> Iterator[Finding]:
    """Yield a warning if other machines can use the server without a password.

    Args:
        exposed: the addresses that other machines can reach and that require no client certificate.
        wants_login: whether the server requires clients to log in; None if unknown.
    """
    if exposed and wants_login is False:
        yield Finding(
            Level.WARNING,
            "listen",
            f"other machines can use the server without a password, at {', '.join(exposed)};"
            " set a password in the server (requirepass or ACL), or listen on 127.0.0.1",
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _offset(ahead: float) -> str:
    size = f"{abs(ahead) * 1000:.1f} ms" if abs(ahead) < 1 else f"{abs(ahead):.1f} s"
    return f"{size} {'ahead of' if ahead >= 0 else 'behind'}"
