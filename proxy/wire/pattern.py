"""Match requests with a regular expression that frames a chunk exactly, without making an object for each.

Its tests: tests/test_wire.py.

A bulk string gives its length before its bytes, and no regular expression can count them. The expression here spells
out every length up to a bound, as a tree: the digits select the branch that skips that many bytes. It looks at each
byte only once, because no two branches have the same beginning and nothing is backtracked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST: Final = 511
"""Maximum size of an argument, in bytes. The time to compile the expression at startup is proportional to it."""

MOST: Final = 6
"""Maximum number of arguments, including the name."""

POSSESSIVE: Final = sys.version_info >= (3, 11, 5)
"""Whether this Python handles `(?:…)*+` correctly: see python/cpython issue 106052."""


def requests_pattern(
    names: Iterable[bytes], never: bytes = b"", *, longest: int = LONGEST, lines: bool = True
) -> re.Pattern[bytes]:
    """Make an expression that matches one or more requests of some commands, as client libraries send them.

    Args:
        names: the commands, each spelled as it should match. They are tried in this order.
        never: a byte with which no argument after the name may begin; empty for none. This check costs less than a
            search for the byte in the chunk.
        longest: maximum size of an argument, in bytes.
        lines: whether arguments may contain carriage returns, and begin with `*`.

    Returns:
        The expression. It matches as many whole requests as possible, each with 1 to `MOST` - 1 arguments after its
        name; use `fullmatch` for a chunk of only such requests.
    """
    name = name_pattern(names)
    byte, beginning = (".", "") if lines else (r"[^\r]", r"\r*")
    beginning += rf"\x{never[0]:02x}" if never else ""
    argument = bulk_pattern(longest, byte, rf"[^{beginning}]" if beginning else "")
    requests = "|".join(rf"\*{count}\r\n{name}{_repeated(argument, count - 1)}" for count in range(2, MOST + 1))
    return re.compile(at_once(requests, "+").encode(), re.DOTALL)


def at_once(repeated: str, quantifier: str) -> str:
    """Return the text of an expression for as many repetitions as possible, without backtracking.

    `(?:…)*+` would cost less, but Python before 3.11.5 handles it wrongly if a repetition can fail half-way
    (python/cpython issue 106052): it continues after the half that matched. Repeating single bytes, as in `.*+`, works.
    """
    if POSSESSIVE:
        return f"(?:{repeated}){quantifier}+"
    return f"(?>(?:{repeated}){quantifier})"


def name_pattern(names: Iterable[bytes]) -> str:
    """Return the text of an expression for a bulk string with one of some names, tried in this order."""
    return _bulk([*str(len(name)), r"\r\n", *name.decode()] for name in names)


def bulk_pattern(longest: int, byte: str = ".", first: str = "") -> str:
    """Return the text of an expression for a bulk string.

    Args:
        longest: its maximum size in bytes.
        byte: an expression for each byte.
        first: an expression for the first byte, if different.
    """

    def content(size: int) -> str:
        return rf"{first}{byte}{{{size - 1}}}+" if first and size else rf"{byte}{{{size}}}+"

    return _bulk([*str(size), rf"\r\n{content(size)}"] for size in range(longest + 1))


def header_pattern(mark: str, most: int) -> str:
    """Return the text of an expression for the header line of an array, set or map of up to `most` elements."""
    return mark + _tree([*str(count), r"\r\n"] for count in range(most + 1))


def _repeated(argument: str, count: int) -> str:
    # Spell out one or two arguments, as most requests have: a repetition is slower.
    return argument * count if count <= 2 else at_once(argument, f"{{{count}}}")


def _bulk(contents: Iterable[Sequence[str]]) -> str:
    """Return an expression for a bulk string with one of several contents, each a sequence of atoms."""
    return rf"\${_tree(contents)}\r\n"


def _tree(sequences: Iterable[Sequence[str]]) -> str:
    """Return an expression for one of several sequences of atoms. Those with the same first atom share it."""
    rests: dict[str, list[Sequence[str]]] = {}
    for head, *rest in sequences:
        rests.setdefault(head, [])
        if rest:
            rests[head].append(rest)
    branches = [head + (_tree(rest) if rest else "") for head, rest in rests.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


ARGUMENT: Final = bulk_pattern(LONGEST)
"""A bulk string of any length up to `LONGEST`, as the text of an expression."""
