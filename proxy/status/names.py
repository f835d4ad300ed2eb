"""Make names of keys safe to display: clients choose names with any bytes and of any length.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 100
"""Maximum number of characters of a name to show."""


def shown(name: bytes) -> str:
    """Return a name as visible text of at most `LONGEST` characters."""
    text = visible(name[: 4 * LONGEST].decode("utf-8", "backslashreplace"))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def visible(text: str) -> str:
    """Escape characters that are not printable or that would change the layout of text."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
