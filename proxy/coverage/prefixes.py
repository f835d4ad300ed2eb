"""Choose the prefixes that cover keys with deadlines.

Its tests: tests/test_coverage.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import combinations, pairwise
from typing import Final

MOST: Final = 64
"""Maximum number of prefixes: every chunk is searched for each of them. If there are more, similar ones are merged."""

LONGEST: Final = 64
"""Maximum size of a prefix, in bytes."""

_SEPARATOR: Final = re.compile(rb"[:/.\-_|#{}]")
_IDENTIFIER: Final = re.compile(rb".*[0-9].*|[A-Za-z0-9+/=]{16,}", re.DOTALL)
_TELLING: Final = re.compile(rb"[^:/.\-_|#{}]")
_DIGITS: Final = b"0123456789"


def prefix_of(key: bytes) -> bytes:
    """Return the prefix that covers a key and others of its kind: `cart:` for `cart:123`.

    The prefix ends before the first part that looks like an identifier, or before the last part. A name of one part
    loses its trailing digits. If the result would be meaningless, the whole name is used, up to `LONGEST`.
    """
    begin = 0
    for separator in _SEPARATOR.finditer(key):
        if _IDENTIFIER.fullmatch(key, begin, separator.start()):
            break
        begin = separator.end()
    prefix = key[:begin] if begin else key.rstrip(_DIGITS)
    return (prefix if _TELLING.search(prefix) else key)[:LONGEST]


def merged(prefixes: Collection[bytes]) -> tuple[bytes, bytes, bytes]:
    """Return the two prefixes with the longest common beginning, and that beginning."""
    ordered = sorted(prefixes)
    pairs = pairwise(ordered) if len(ordered) > 2 else combinations(ordered, 2)
    one, other = max(pairs, key=lambda pair: len(_common(*pair)))
    return one, other, _common(one, other)


def _common(one: bytes, other: bytes) -> bytes:
    size = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return one[:size]
