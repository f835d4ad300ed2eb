"""The commented-out alternatives in config/: found, and put in the place of what they replace.

They are lines without a space behind their `#`, or with two and more that continue such a line. The comment above says
what for: the words in front of its first colon or comma are the alternative's label, all blocks of a file with one
label belong together, and names in backticks behind "instead of" are the neighbours that go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Final

from tests.servers import ROOT

KINDS: Final = {
    "unit": "config/systemd/*.service",
    "kubernetes": "config/kubernetes/*.yaml",
    "compose": "config/compose*.yaml",
}
"""What runs them: tests/test_alternatives.py, and for Compose tests/container/test_compose.py."""

_FIRST: Final = re.compile(r"( *)#([^\s#!].*)")
_FURTHER: Final = re.compile(r"( *)#((?:  )?[^\s#!].*|  .*)")
_COMMENT: Final = re.compile(r"( *)# (\S.*)")


@dataclass
class Alternative:
    """One alternative.

    Attributes:
        file: from the root of the repository.
        label: what it is called in the comments.
        added: line → what stands there with it.
        removed: the lines that go.
    """

    file: str
    label: str
    added: dict[int, str] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.file}:{self.label}"

    @property
    def text(self) -> str:
        """The file with the alternative in place."""
        lines = (ROOT / self.file).read_text("utf-8").splitlines()
        kept = (self.added.get(at, line) for at, line in enumerate(lines) if at not in self.removed)
        return "\n".join(kept) + "\n"


def _neighbours(lines: list[str], at: int, indentation: int, name: str) -> Iterator[int]:
    """Give the lines of the entry of this name beside a line."""
    begin = end = at
    while begin > 0 and _is_beside(lines[begin - 1], indentation):
        begin -= 1
    while end < len(lines) and _is_beside(lines[end], indentation):
        end += 1
    within = False
    for number in range(begin, end):
        line = lines[number]
        if line.strip() and len(line) - len(line.lstrip()) == indentation:
            within = re.match(rf" *{re.escape(name)}[:=]", line) is not None
        if within:
            yield number


def _is_beside(line: str, indentation: int) -> bool:
    text = line.lstrip()
    return not text or text.startswith("#") or len(line) - len(text) >= indentation


def _within(file: str, text: str) -> list[Alternative]:
    lines = text.splitlines()
    found: dict[str, Alternative] = {}
    at = 0
    while at < len(lines):
        first = _FIRST.fullmatch(lines[at])
        if first is None:
            at += 1
            continue
        above = at
        while above > 0 and _COMMENT.fullmatch(lines[above - 1]):
            above -= 1
        said = " ".join(line.lstrip(" #") for line in lines[above:at])
        assert said, f"{file}:{at + 1}: a commented-out line without a comment that says what for"
        label = re.split("[:,]", said)[0]
        alternative = found.setdefault(label, Alternative(file, label))
        for name in re.findall("`([^`]+)`", said.partition("instead of")[2]):
            gone = set(_neighbours(lines, at, len(first[1]), name))
            assert gone, f"{file}:{at + 1}: there is no {name!r} to replace"
            alternative.removed |= gone
        while at < len(lines) and (further := _FURTHER.fullmatch(lines[at])) and further[1] == first[1]:
            alternative.added[at] = further[1] + further[2]
            at += 1
    return list(found.values())


def alternatives(kind: str = "") -> list[Alternative]:
    """Return the alternatives of a kind of file, or all."""
    paths = sorted(path for path in (ROOT / "config").rglob("*") if path.is_file() and path.suffix != ".json")
    files = [path.relative_to(ROOT).as_posix() for path in paths]
    return [
        alternative
        for file in files
        if not kind or fnmatch(file, KINDS[kind])
        for alternative in _within(file, (ROOT / file).read_text("utf-8"))
    ]
