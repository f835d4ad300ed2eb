"""Find out from ACL LIST which users may certainly run the scripts that replace stores, RENAME, COPY and MOVE.

Its tests: tests/test_presumed.py.

Transactions need this: in them no script can be tried first on the client's connection. Only simple rules are
understood: all commands but some, and patterns for keys. For users with other rules the proxy asks the server whether
keys have deadlines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_NEEDED: Final = frozenset(b"eval exists time unlink select zadd zrem zrangebyscore zrevrangebyscore".split())
"""Commands that the scripts run, besides the client's own, on keys without deadlines."""

DANGEROUS: Final = frozenset(b"sort restore restore-asking migrate keys".split())
"""Commands that scripts replace and that the rules in `_SMALL` forbid."""

_SMALL: Final = frozenset((b"-@dangerous", b"-@admin"))
"""Rules that forbid no relevant command except those of `DANGEROUS`."""

_MOST: Final = 32
"""Maximum number of names, and of a user's patterns: every name is compared with every pattern."""

_SPECIAL: Final = re.compile(rb"[*?\[\\]")


@dataclass(frozen=True, slots=True)
class Grants:
    """A user's permissions: every command but some, on the keys that match some patterns.

    Attributes:
        without: the names of the forbidden commands, in lower case.
        patterns: the patterns.
    """

    without: frozenset[bytes]
    patterns: tuple[bytes, ...]

    def allow(self, command: bytes, names: list[bytes]) -> bool:
        """Return whether the user may run, on some names, the script that replaces a command (in upper case)."""
        if not self.without.isdisjoint((*_NEEDED, command.lower())) or len(names) > _MOST:
            return False
        return all(any(_fits(pattern, name) for pattern in self.patterns) for name in names)


def _fits(pattern: bytes, name: bytes) -> bool:
    """Return whether a pattern certainly matches a name. Only `name` and `beginning*` are tried: other patterns
    would take long."""
    beginning, last = pattern[:-1], pattern[-1:]
    if _SPECIAL.search(beginning):
        return False
    return name.startswith(beginning) if last == b"*" else name == pattern


def read_grants(rules: Iterable[bytes]) -> Grants | None:
    """Return a user's permissions; None if the rules are not simple ones.

    Args:
        rules: the words of the user's line in the reply to ACL LIST, from the fourth on.
    """
    everything, without, patterns = False, set[bytes](), list[bytes]()
    for rule in rules:
        if rule[:1] == b"(":
            break  # a selector, which only adds permissions
        name = rule[1:].partition(b"|")[0].lower()
        if b"db=" in rule:
            return None
        if rule in (b"+@all", b"-@all"):
            everything = rule == b"+@all"
            without.clear()
        elif rule in _SMALL:
            without |= DANGEROUS
        elif rule[:2] == b"-@":
            return None
        elif rule[:1] == b"-":
            without.add(name)
        elif rule[:1] == b"+" and b"|" not in rule:
            without.discard(name)
        elif rule[:1] == b"~":
            patterns.append(rule[1:])
        elif rule[:4] == b"%RW~":
            patterns.append(rule[4:])
    if not everything or len(patterns) > _MOST:
        return None
    return Grants(frozenset(without), tuple(patterns))
