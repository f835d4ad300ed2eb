"""Rules for events: which members that expire are told of, where, and how. Kept in Redis, where the scripts read them.

Its tests: tests/test_events.py.

A rule is a member of a sorted set (`Names.events`) of its database, with the score 0:

    <maxlen> <0 or 1: with values> <database> <letters>- <size of the pattern>:<pattern><stream>

`proxy/scripts/lua/shared/lapse.lua` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.scripts.naming import hash_tag, slot

LETTERS: Final = "STIV"
"""The kinds of messages, by the letters of Redis's notify-keyspace-events: subkeyspace, subkeyevent, subkeyspaceitem,
subkeyspaceevent."""

LONGEST: Final = 1024
"""Bytes of a pattern or the name of a stream."""

MOST: Final = 64
"""Rules of a database: each is compared with each key that something expires in."""

MOST_ENTRIES: Final = 1 << 53

_ENCODED: Final = re.compile(rb"(\d+) ([01]) (\d+) ([A-Z]*)- (\d+):(.*)", re.DOTALL)
_SPECIAL: Final = re.compile(rb"[*?\[\\]")


class RuleError(Exception):
    """A rule cannot be; the text says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one pattern of keys has asked for.

    Attributes:
        pattern: the keys, as of KEYS.
        stream: the stream that gets an entry for each member; empty for none.
        value: whether an entry has the value of a hash's field, the score of a sorted set's member.
        maxlen: how many entries the stream keeps, about; 0 for all.
        letters: the kinds of messages that are published, of `LETTERS`.
        database: the database of the keys and the stream, for the names of channels.
    """

    pattern: bytes
    stream: bytes = b""
    value: bool = False
    maxlen: int = 1_000_000
    letters: str = ""
    database: int = 0

    def check(self, prefix: bytes) -> None:
        """See whether the rule can be.

        Args:
            prefix: what the reserved names begin with.

        Raises:
            RuleError: it cannot.
        """
        if not self.pattern:
            raise RuleError("the pattern is empty; * fits every key")
        if max(len(self.pattern), len(self.stream)) > LONGEST:
            raise RuleError(f"a pattern and a stream's name have at most {LONGEST} bytes")
        if not self.stream and not self.letters:
            raise RuleError("say what to do: --stream NAME, --publish LETTERS, or both")
        if self.value and not self.stream:
            raise RuleError("--value is for the entries of a stream: give --stream too")
        if not 0 <= self.maxlen <= MOST_ENTRIES:
            raise RuleError("--maxlen: 0 for all entries, or how many to keep")
        if not set(self.letters) <= set(LETTERS) or len(set(self.letters)) < len(self.letters):
            raise RuleError(f"--publish: letters of {LETTERS}, each once")
        if self.stream.startswith(prefix):
            raise RuleError(f"names that begin with '{prefix.decode(errors='replace')}' are reserved")
        tag = literal_tag(self.pattern)
        if tag is not None and self.stream and slot(self.stream) != slot(b"{%b}" % tag):
            shown = tag.decode(errors="replace")
            raise RuleError(
                f"the keys have the hash tag {{{shown}}}, so the stream needs it too, to be in their cluster slot:"
                f" {{{shown}}}:expired, for instance"
            )

    def encode(self) -> bytes:
        """Return the rule as it is kept."""
        letters = "".join(letter for letter in LETTERS if letter in self.letters).encode()
        return b"%d %d %d %b- %b%b" % (
            self.maxlen, self.value, self.database, letters, key_part(self.pattern), self.stream,
        )  # fmt: skip


def key_part(pattern: bytes) -> bytes:
    """Return the part of a rule that names its pattern."""
    return b"%d:%b" % (len(pattern), pattern)


def decode(text: bytes) -> Rule | None:
    """Return the rule that is kept so; None where it is none."""
    found = _ENCODED.fullmatch(text)
    if found is None or int(found[5]) > len(found[6]):
        return None
    size = int(found[5])
    pattern, stream = found[6][:size], found[6][size:]
    return Rule(pattern, stream, found[2] == b"1", int(found[1]), found[4].decode(), int(found[3]))


def literal_tag(pattern: bytes) -> bytes | None:
    """Return the hash tag that all keys of a pattern have; None where that is not certain."""
    tag = hash_tag(pattern)
    if tag is None or _SPECIAL.search(pattern[: pattern.index(b"}", pattern.index(b"{")) + 1]):
        return None
    return tag
