"""Make names of keys fit to be shown: anybody may have chosen them, with any bytes and of any length.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 100
"""Characters of a name that are shown."""


def shown(name: bytes) -> str:
    """Return a name as visible text, of at most `LONGEST` characters."""
    text = visible(name[: 4 * LONGEST].decode("utf-8", "backslashreplace"))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def visible(text: str) -> str:
    """Return a text in which an escape stands for what does not print, or would change how text is laid out."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
