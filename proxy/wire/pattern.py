"""Match requests by a regular expression: it frames a chunk of them exactly, without making an object for any.

Its tests: tests/test_wire.py.

A bulk string says its length before its bytes, which no regular expression can count. This one spells out every length
up to a bound, as a tree in which the digits lead to the one branch that skips so many bytes. Whatever the bytes, it
looks at each of them once: no two branches begin alike, and what has matched is not tried in another way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST: Final = 511
"""Bytes of an argument at most. To compile an expression takes time in proportion, at every start of the proxy."""

MOST: Final = 6
"""Arguments of a request at most, its name included."""

POSSESSIVE: Final = sys.version_info >= (3, 11, 5)
"""Whether this Python is right about `(?:…)*+`: see python/cpython issue 106052."""


def requests_pattern(
    names: Iterable[bytes], never: bytes = b"", *, longest: int = LONGEST, lines: bool = True
) -> re.Pattern[bytes]:
    """Make an expression that matches one or more requests of some commands, in the form that client libraries send.

    Args:
        names: the commands, each spelled as it should match. They are tried in this order.
        never: a byte that no argument behind the name may begin with, or none. To look at one byte of each costs less
            than to search the chunk for what begins with it.

    Returns:
        The expression. It matches as many whole requests, each with 1 to `MOST` - 1 arguments behind its name, as there
        are; `fullmatch` is for a chunk of nothing else.
    """
    name = name_pattern(names)
    byte, beginning = (".", "") if lines else (r"[^\r]", r"\r*")
    beginning += rf"\x{never[0]:02x}" if never else ""
    argument = bulk_pattern(longest, byte, rf"[^{beginning}]" if beginning else "")
    requests = "|".join(rf"\*{count}\r\n{name}{_repeated(argument, count - 1)}" for count in range(2, MOST + 1))
    return re.compile(at_once(requests, "+").encode(), re.DOTALL)


def at_once(repeated: str, quantifier: str) -> str:
    """Return the text of an expression for as many of something in a row as there are, none of them ever tried again.

    Python before 3.11.5 is wrong about `(?:…)*+`, which costs less, wherever one of them can fail half-way
    (python/cpython issue 106052): it goes on behind the failed half. Of single bytes, as in `.*+`, it is right.
    """
    if POSSESSIVE:
        return f"(?:{repeated}){quantifier}+"
    return f"(?>(?:{repeated}){quantifier})"


def name_pattern(names: Iterable[bytes]) -> str:
    """Return the text of an expression for a bulk string that is one of some names, tried in this order."""
    return _bulk([*str(len(name)), r"\r\n", *name.decode()] for name in names)


def bulk_pattern(longest: int, byte: str = ".", first: str = "") -> str:
    """Return the text of an expression for a bulk string.

    Args:
        longest: bytes that it has at most.
        byte: what each of them may be, as an expression.
        first: what the first of them may be, if that is something else.
    """

    def content(size: int) -> str:
        return rf"{first}{byte}{{{size - 1}}}+" if first and size else rf"{byte}{{{size}}}+"

    return _bulk([*str(size), rf"\r\n{content(size)}"] for size in range(longest + 1))


def header_pattern(mark: str, most: int) -> str:
    """Return the text of an expression for the line that begins an array, or the like, of up to so many elements."""
    return mark + _tree([*str(count), r"\r\n"] for count in range(most + 1))


def _repeated(argument: str, count: int) -> str:
    # Two are spelled out: a repetition costs more than its text, and most requests have one or two.
    return argument * count if count <= 2 else at_once(argument, f"{{{count}}}")


def _bulk(contents: Iterable[Sequence[str]]) -> str:
    """A bulk string with one of several contents, each a sequence of atoms: the digits of its length, and so on."""
    return rf"\${_tree(contents)}\r\n"


def _tree(sequences: Iterable[Sequence[str]]) -> str:
    """An expression for one of several sequences of atoms. Those that begin with the same atom share it."""
    rests: dict[str, list[Sequence[str]]] = {}
    for head, *rest in sequences:
        rests.setdefault(head, [])
        if rest:
            rests[head].append(rest)
    branches = [head + (_tree(rest) if rest else "") for head, rest in rests.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


ARGUMENT: Final = bulk_pattern(LONGEST)
"""A bulk string of any length up to `LONGEST`, as the text of an expression."""
