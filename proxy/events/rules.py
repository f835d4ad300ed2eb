"""Rules for events: which expirations are reported, where and how. Redis stores them, and the scripts read them.

Its tests: tests/test_events.py.

A rule is a member of a sorted set (`Names.events`) of its database, with the score 0:

    <maxlen> <0 or 1: with values> <database> <letters>-<l> <size of the pattern>:<pattern><list><stream>

The list is stored as the name of its shadow without the prefix, because the scripts need both names. l is the size of
that name, empty if there is no list.

`proxy/scripts/lua/shared/lapse.lua` reads the rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.scripts.naming import Names, hash_tag, slot

LETTERS: Final = "STIV"
"""The kinds of messages, as letters of Redis's notify-keyspace-events, in order: subkeyspace, subkeyevent,
subkeyspaceitem, subkeyspaceevent."""

LONGEST: Final = 1024
"""Maximum size of a pattern, stream name or list name, in bytes."""

MOST: Final = 64
"""Maximum number of rules per database, because each is matched against every key in which members expire."""

MOST_ENTRIES: Final = 1 << 53

_ENCODED: Final = re.compile(rb"(\d+) ([01]) (\d+) ([A-Z]*)-(\d*) (\d+):(.*)", re.DOTALL)
_NAMES: Final = Names(b"-")  # any prefix will do, because `encode` removes it
_SPECIAL: Final = re.compile(rb"[*?\[\\]")


class RuleError(Exception):
    """A rule is not valid; the text says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: how to report members that expire in keys that match a pattern.

    Attributes:
        pattern: the keys, as a pattern of KEYS.
        stream: the stream that gets an entry for each member; empty for none.
        value: whether to add the field's value, or the score, to entries, and to push that instead of the member.
        maxlen: about how many entries the stream keeps; 0 for all.
        letters: the kinds of messages that are published, of `LETTERS`.
        database: the database of the keys and the stream, for the names of channels.
        list: the list to which each member is pushed; empty for none.
    """

    pattern: bytes
    stream: bytes = b""
    value: bool = False
    maxlen: int = 1_000_000
    letters: str = ""
    database: int = 0
    list: bytes = b""

    def check(self, prefix: bytes) -> None:
        """Check that the rule is valid.

        Args:
            prefix: the beginning of the reserved names.

        Raises:
            RuleError: the rule is not valid.
        """
        if not self.pattern:
            raise RuleError("the pattern is empty; * matches every key")
        if max(len(self.pattern), len(self.stream), len(self.list)) > LONGEST:
            raise RuleError(f"a pattern and the name of a stream or list have at most {LONGEST} bytes")
        if not self.stream and not self.list and not self.letters:
            raise RuleError("say what to do: --stream NAME, --list NAME, --publish LETTERS, or several of these")
        if self.value and not self.stream and not self.list:
            raise RuleError(
                "--value is for the entries of a stream, or what is pushed to a list: give --stream or --list"
            )
        if self.stream and self.stream == self.list:
            raise RuleError("--stream and --list: a key cannot be both")
        if not 0 <= self.maxlen <= MOST_ENTRIES:
            raise RuleError("--maxlen: 0 for all entries, or how many to keep")
        if not set(self.letters) <= set(LETTERS) or len(set(self.letters)) < len(self.letters):
            raise RuleError(f"--publish: letters of {LETTERS}, each once")
        if any(name.startswith(prefix) for name in (self.stream, self.list)):
            raise RuleError(f"names that begin with '{prefix.decode(errors='replace')}' are reserved")
        tag = literal_tag(self.pattern)
        for name, noun, instead in ((self.stream, "stream", "expired"), (self.list, "list", "ready")):
            if tag is None or not name or slot(name) == slot(b"{%b}" % tag):
                continue
            shown = tag.decode(errors="replace")
            raise RuleError(
                f"the keys have the hash tag {{{shown}}}, so the {noun} needs it too, to be in their cluster slot:"
                f" {{{shown}}}:{instead}, for instance"
            )

    def encode(self) -> bytes:
        """Return the rule as it is stored."""
        letters = "".join(letter for letter in LETTERS if letter in self.letters).encode()
        shadow = _NAMES.shadow(self.list).removeprefix(_NAMES.prefix) if self.list else b""
        return b"%d %d %d %b-%b %b%b%b" % (
            self.maxlen, self.value, self.database, letters, b"%d" % len(shadow) if shadow else b"",
            key_part(self.pattern), shadow, self.stream,
        )  # fmt: skip


def key_part(pattern: bytes) -> bytes:
    """Return the part of a rule that names its pattern."""
    return b"%d:%b" % (len(pattern), pattern)


def decode(text: bytes) -> Rule | None:
    """Decode a stored rule; return None if the text is not a rule."""
    found = _ENCODED.fullmatch(text)
    if found is None:
        return None
    size, shadow_size = int(found[6]), int(found[5] or 0)
    if size + shadow_size > len(found[7]):
        return None
    pattern, shadow, stream = found[7][:size], found[7][size : size + shadow_size], found[7][size + shadow_size :]
    name = _NAMES.key(_NAMES.prefix + shadow) if shadow else b""
    if name is None:
        return None
    return Rule(pattern, stream, found[2] == b"1", int(found[1]), found[4].decode(), int(found[3]), name)


def literal_tag(pattern: bytes) -> bytes | None:
    """Return the hash tag that all keys of a pattern certainly share; None if there is none."""
    tag = hash_tag(pattern)
    if tag is None or _SPECIAL.search(pattern[: pattern.index(b"}", pattern.index(b"{")) + 1]):
        return None
    return tag
