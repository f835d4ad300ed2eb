"""The pages that people read, cut into headings, links, code blocks and inline code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers import ROOT

_FENCE: Final = re.compile(r"^(?:<!-- (?P<marker>[^>\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.M)
_LINK: Final = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_INLINE: Final = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: the page's path from the root of the repository.
        line: the number of its first line.
        language: what follows the fence.
        marker: the comment directly before it.
        text: what it contains.
    """

    page: str
    line: int
    language: str
    marker: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        path: from the root of the repository.
        text: all of it.
    """

    path: str
    text: str

    @property
    def blocks(self) -> list[Block]:
        """The fenced blocks."""
        return [
            Block(
                self.path,
                self.text.count("\n", 0, found.start("language")) + 1,
                found["language"],
                (found["marker"] or "").strip(),
                found["text"],
            )
            for found in _FENCE.finditer(self.text)
        ]

    @property
    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def headings(self) -> list[str]:
        """The headings, as they are written."""
        return _HEADING.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """What links to this page can name, as GitHub makes it of the headings."""
        found: dict[str, int] = {}
        anchors = set()
        for heading in self.headings:
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            again = found.get(anchor, 0)
            found[anchor] = again + 1
            anchors.add(f"{anchor}-{again}" if again else anchor)
        return anchors

    @property
    def links(self) -> list[str]:
        """The targets of links."""
        return _LINK.findall(self.prose)

    @property
    def inline(self) -> list[str]:
        """What stands in backticks."""
        return _INLINE.findall(self.prose)


def pages() -> list[Page]:
    """Return the pages of the repository: those of docs/ and those beside the README."""
    paths = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths]


def page(path: str) -> Page:
    """Return one page."""
    return Page(path, Path(ROOT / path).read_text("utf-8"))
