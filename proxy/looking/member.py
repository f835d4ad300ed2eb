"""Find out everything about one member, and predict what will happen to the member.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from proxy.events.command import show
from proxy.events.rules import Rule, decode
from proxy.looking.merge import presence
from proxy.looking.reading import MOVING, LookError, Server, Servers
from proxy.looking.shown import date_in_words, span, when, whole_ms
from proxy.looking.walk import Words
from proxy.session.globs import matches

COMPARED: Final = 400_000
"""Maximum number of list elements to compare: half of them from each end of the list."""

_ATTEMPTS: Final = 5
_LISTED: Final = 1000
_NOUNS: Final = {b"set": "set", b"hash": "hash", b"zset": "sorted set", b"list": "list"}
_KINDS: Final = {b"set": "member", b"hash": "field", b"zset": "member", b"list": "element"}


@dataclass(frozen=True, slots=True)
class Facts:
    """The known facts about a member.

    Attributes:
        now: the server's time in Unix ms.
        kind: the key's type, as TYPE returns it.
        there: whether the member exists; None if unknown, because the list is too long.
        score: the member's score in the shadow; None if there is none.
        covered: whether and why the key is covered, in words; None if not known.
        key_left: the key's own TTL in ms; None if there is none.
        field_left: the field's native TTL in ms; None if there is none.
        field_unknown: why the field's TTL is not known; empty if it is known.
        rules: the rules for events that match the key; None if the user may not read them.
        proxies: how many proxies are connected to the server; None if not known.
    """

    now: float
    kind: bytes
    there: bool | None
    score: float | None
    covered: str | None = None
    key_left: float | None = None
    field_left: float | None = None
    field_unknown: str = ""
    rules: Sequence[Rule] | None = ()
    proxies: int | None = None

    @property
    def is_void(self) -> bool:
        """Whether a deadline is stored but will remove nothing."""
        return self.score is not None and (self.score < 0 or self.there is False)

    @property
    def deadline(self) -> int | None:
        """The deadline that is stored, void or not, in Unix ms."""
        if self.score is None:
            return None
        # A void deadline is stored negated. Drop the fraction, which may note when it was found void (comb.lua).
        return whole_ms(self.score) if self.score >= 0 else int(-self.score)


async def find_out(servers: Servers, key: bytes, member: bytes) -> Facts:
    """Query the server about a member.

    Raises:
        LookError: the server does not answer, or refuses.
    """
    server, names = servers.owner(key), servers.names
    for _ in range(_ATTEMPTS):
        ((kind,), moment) = await server.ask([("TYPE", key)]), await server.moment()
        if isinstance(kind, Exception):
            raise LookError(f"{server}: {MOVING}")
        there = await _is_there(server, key, kind, member)
        ours: list[Words] = [("ZSCORE", names.shadow(key), member), ("PTTL", key), ("TYPE", key)]
        score, key_left, kind_now = await server.ask(ours)
        # The member may come or go between the requests: retry until the replies are consistent.
        if kind_now == kind and await _is_there(server, key, kind, member) == there:
            break
    else:
        raise LookError(f"{server}: the key changes faster than it can be looked at; try again")
    everybody = names.prefix + b"proxies" + (b":" + server.node.name if server.node is not None else b"")
    more: list[Words] = [
        ("ZRANGE", names.covered, 0, _LISTED) if not servers.clustered else ("TIME",),
        ("ZRANGE", names.events, 0, _LISTED) if not servers.clustered else ("TIME",),
        ("PUBSUB", "NUMSUB", everybody),
        ("ZSCORE", servers.index_of(key), key),
    ]
    if kind == b"hash" and there:
        more.append(("HPTTL", key, "FIELDS", 1, member))
    covered, rules, proxies, indexed, *lifetime = await server.ask_freely(more)
    field_left, unknown = _field(lifetime[0]) if lifetime else (None, "")
    is_indexed = isinstance(indexed, bytes)
    return Facts(
        now=moment,
        kind=kind,
        there=there,
        score=float(score) if isinstance(score, bytes) else None,
        covered=_covered(key, [] if servers.clustered else covered, indexed=is_indexed, clustered=servers.clustered),
        key_left=key_left if key_left >= 0 else None,
        field_left=field_left,
        field_unknown=unknown,
        rules=() if servers.clustered else _rules(key, rules),
        proxies=int(proxies[1]) if isinstance(proxies, list) else None,
    )


async def has_own_lifetimes(servers: Servers, key: bytes) -> bool:
    """Return whether a key is a hash on a server with field lifetimes of its own."""
    server = servers.owner(key)
    kind, reply = await server.ask_freely([("TYPE", key), ("HPTTL", key, "FIELDS", 1, b"")])
    # A server that has HPTTL refuses it if the user lacks +hpttl; on other servers the command is unknown.
    return kind == b"hash" and isinstance(reply, list | NoPermissionError)


async def _is_there(server: Server, key: bytes, kind: bytes, member: bytes) -> bool | None:
    [[found]] = await presence(server, [(key, kind, [member])], COMPARED // 2)
    if found is None:
        last, between = await server.ask([
            ("LPOS", key, member, "RANK", -1, "MAXLEN", COMPARED // 2), ("LRANGE", key, COMPARED, COMPARED),
        ])  # fmt: skip
        return True if isinstance(last, int) else None if between else False
    return found


def _field(reply: Any) -> tuple[float | None, str]:
    if isinstance(reply, NoPermissionError):
        return None, "not known: the user lacks +hpttl"
    if isinstance(reply, ResponseError) or not isinstance(reply, list):
        return None, ""  # the server has no TTLs for fields
    return (float(reply[0]) if reply[0] >= 0 else None), ""


def _covered(key: bytes, entries: Any, *, indexed: bool, clustered: bool) -> str | None:
    if isinstance(entries, Exception):
        return None
    fit = [one[1:] for one in entries if one[:1] == b"=" and key.startswith(one[1:])]
    if b"!" + key in entries:
        return "by its whole name"
    if fit:
        return f"by the prefix {show(max(fit, key=len))}"
    if indexed:
        return "by the deadlines that it has" if clustered else "by the deadlines that it has: no prefix is listed"
    return "no: none of its members has a deadline" if clustered else "no"


def _rules(key: bytes, reply: Any) -> list[Rule] | None:
    if isinstance(reply, Exception):
        return None
    found = [rule for rule in map(decode, reply) if rule is not None and matches(rule.pattern, key)]
    return sorted(found, key=lambda rule: (-len(rule.pattern), rule.pattern))


# Output for people.


def lines(facts: Facts, where: str) -> list[tuple[str, str]]:
    """Return the known facts, each with a label."""
    noun = _NOUNS.get(facts.kind)
    there = {True: "there", False: "not there", None: f"not found; the list has more than {COMPARED:,} elements"}
    rows = [
        ("server", where),
        ("key", "not there" if facts.kind == b"none" else f"there: a {noun or show(facts.kind)}"),
        ("member", there[facts.there]),
        ("deadline", _deadline(facts)),
        *_set_by(facts),
        ("covered", "not known" if facts.covered is None else facts.covered),
        ("key's TTL", "none" if facts.key_left is None else _at(facts, facts.key_left)),
    ]
    if facts.kind == b"hash":
        none = facts.field_unknown or "none"
        rows.append(("field TTL", none if facts.field_left is None else _at(facts, facts.field_left)))
    rows.append(("events", _told(facts.rules)))
    rows.append(("proxies", "not known" if facts.proxies is None else str(facts.proxies)))
    return rows


def _deadline(facts: Facts) -> str:
    if facts.deadline is None:
        return "none"
    far = when(facts.deadline, facts.now)
    return f"{date_in_words(facts.deadline)}, {far}" + ("; void: it removes nothing" if facts.is_void else "")


def _set_by(facts: Facts) -> list[tuple[str, str]]:
    """Return what kind of command has set the deadline. If the score is not a whole number, it was HEXPIRE or the like,
    and overwriting the member drops the deadline."""
    if facts.score is None or facts.is_void:
        return []
    if facts.score % 1:
        return [("set by", "HEXPIRE or its like: writing over the member drops it")]
    return [("set by", "EXPIREMEMBER or its like: writing over the member keeps it")]


def _at(facts: Facts, left: float) -> str:
    return f"{date_in_words(whole_ms(facts.now + left))}, in {span(left)}"


def _told(rules: Sequence[Rule] | None) -> str:
    if rules is None:
        return "not known"
    return ", ".join(f"{show(rule.pattern)} ({_to(rule)})" for rule in rules) or "no rule"


def _to(rule: Rule) -> str:
    parts = [f"stream {show(rule.stream)}"] if rule.stream else []
    parts += [f"list {show(rule.list)}"] if rule.list else []
    return " and ".join([*parts, *([f"messages {rule.letters}"] if rule.letters else [])])


def outlook(facts: Facts) -> str:
    """Return what will happen to the member, and when."""
    what = _KINDS.get(facts.kind, "member")
    if facts.kind == b"none":
        void = " The deadline that is stored is void, and is freed within minutes." if facts.is_void else ""
        return f"There is no such key, so the member does not exist either.{void}"
    if facts.kind not in _NOUNS:
        return f"The key is a {show(facts.kind)}, which has no members that could expire."
    if facts.there is None:
        return f"The list is too long to say whether the element is there{_if_there(facts)}."
    return _of_present(facts, what) if facts.there else _of_absent(facts, what)


def _if_there(facts: Facts) -> str:
    if facts.deadline is None or facts.is_void:
        return ""
    return f"; if it is, its deadline is {date_in_words(facts.deadline)}, {when(facts.deadline, facts.now)}"


def _of_absent(facts: Facts, what: str) -> str:
    if facts.score is None:
        streams = [
            f" If it expired, the stream {show(rule.stream)} has an entry." for rule in facts.rules or () if rule.stream
        ]
        lists = [
            f" If it expired, it was pushed to the list {show(rule.list)}." for rule in facts.rules or () if rule.list
        ]
        told = next(iter([*streams, *lists]), "")
        return f"The {what} has expired, was removed, or has never been there: nothing is stored of it.{told}"
    return f"Something removed it before its deadline, which is void now: if the {what} is added again, it stays."


def _of_present(facts: Facts, what: str) -> str:
    own = None if facts.is_void or facts.deadline is None else facts.deadline - facts.now
    ends = [(left, order) for order, left in enumerate((own, facts.field_left, facts.key_left)) if left is not None]
    if not ends:
        if facts.is_void:
            return f"It stays: the {what} has been removed and added again, so the deadline that is stored is void."
        return f"It stays until something removes it: the {what} has no deadline, and the key has no TTL."
    left, which = min(ends)
    moment = f"in {span(left)} ({date_in_words(whole_ms(facts.now + left))})"
    earlier = "" if own is None else ", before its deadline"
    if which == 1:
        return f"The server itself removes the field {moment}{earlier}."
    if which == 2:
        return f"The key expires as a whole {moment}, and the {what} with it{earlier}."
    nobody = facts.proxies == 0
    if left <= 0:
        ago = span(left)
        if nobody:
            return f"Its deadline passed {ago} ago, and it stays: no proxy is connected to the server to remove it."
        return f"Its deadline passed {ago} ago: no client of a proxy sees it, and a proxy removes it in a moment."
    whoever = "a proxy removes it then"
    if nobody:
        whoever = "no proxy is connected to the server, so it stays until one is"
    return f"It expires {moment}: {whoever}.{_announced(facts)}"


def _announced(facts: Facts) -> str:
    streams = dict.fromkeys(show(rule.stream) for rule in facts.rules or () if rule.stream)
    lists = dict.fromkeys(show(rule.list) for rule in facts.rules or () if rule.list)
    entry = f" An entry then goes to {' and '.join(streams)}." if streams else ""
    return entry + (f" It is then pushed to {' and '.join(lists)}." if lists else "")
