"""Shorten Lua: a server hashes the text of a script at each EVAL, which takes some 2 µs per KB.

Its tests: tests/test_shortening.py.

The parser understands only enough to recognise names. It replaces the name of each local variable with a short name,
which is the same in all scopes and used for no other variable, so references stay intact. Names of fields, methods and
globals stay; scripts have only the server's globals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, product
from string import ascii_letters, digits
from typing import Final

GLOBALS: Final = frozenset((
    "KEYS", "ARGV", "redis", "bit", "cjson", "cmsgpack", "struct", "math", "string", "table", "assert", "error",
    "getmetatable", "ipairs", "loadstring", "next", "pairs", "pcall", "rawequal", "rawget", "rawset", "select",
    "setmetatable", "tonumber", "tostring", "type", "unpack", "xpcall",
))  # fmt: skip
_KEYWORDS: Final = frozenset((
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not",
    "or", "repeat", "return", "then", "true", "until", "while",
))  # fmt: skip
_TOKEN: Final = re.compile(
    r"\s+|--(?!\[=*\[)[^\n]*|([A-Za-z_]\w*|0x[0-9A-Fa-f]+|(?:\d+(?:\.(?!\.)\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
    r"""|'(?:[^'\\\n]|\\[\s\S])*'|"(?:[^"\\\n]|\\[\s\S])*"|\[(=*)\[[\s\S]*?\]\2\]"""
    r"|\.{1,3}|[=~<>]=|([-/:])(?!\3)|[+*%^#<>=(){}\[\];,])",
    re.ASCII,
)
"""The tokens. Multi-line comments and syntax of later Lua versions are not supported."""
_OPENERS: Final = {")": ("(",), "}": ("{",), "]": ("[",), "until": ("repeat",), "elseif": ("then",), "else": ("then",),
                   "end": ("function", "do", "then", "else")}  # fmt: skip
_OPENING: Final = frozenset(("(", "{", "[", "function", "do", "then", "else", "repeat"))
_CONSTANT: Final = re.compile(r"true$|false$|nil$|['\".\d]")
_TOUCH: Final = re.compile(r"\w\w|[\d.]\.|--|\[\[")
"""Matches the last byte of a token and the first byte of the next token if a blank must separate them."""


class ShorteningError(ValueError):
    """A text contains unsupported syntax."""


class Text:
    """A script, token by token.

    Attributes:
        tokens: the remaining tokens, with "" in place of removed ones.
        fresh: the positions of the first tokens of lines.
        places: name of a variable → its positions.
        local: the names of local variables.
        declarations: removable declarations: the name, the first position, and the position after the last.

    Raises:
        ShorteningError: the script contains unsupported syntax.
    """

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.fresh: set[int] = set()
        self._split(text)
        self.places: dict[str, list[int]] = {}
        self.local: set[str] = set()
        self.declarations: list[tuple[str, int, int]] = []
        self._find_variables()
        for name in self.places.keys() - self.local - GLOBALS:
            raise ShorteningError(f"not declared: {name}")

    def _split(self, text: str) -> None:
        tokens, end, fresh = self.tokens, 0, False
        for found in _TOKEN.finditer(text):
            if found.start() != end:
                break
            end, token = found.end(), found[1]
            if token is None:
                fresh = fresh or "\n" in found[0]
                continue
            if fresh:
                self.fresh.add(len(tokens))
                fresh = False
            tokens.append(token)
        if end != len(text):
            raise ShorteningError(f"not understood: {text[end : end + 40]!r}")
        tokens += "", "", ""  # so that every token has a next token

    def _find_variables(self) -> None:
        tokens, places = self.tokens, self.places
        opened: list[tuple[str, int]] = [("", 0)]
        for place, word in enumerate(tokens):
            if word in _OPENERS:
                opener, begin = opened.pop()
                if opener not in _OPENERS[word]:
                    raise ShorteningError(f"{word} behind {opener}")
                if word == "end" and opener == "function" and tokens[begin - 1] == "local":
                    self.declarations.append((tokens[begin + 1], begin - 1, place + 1))
            if word in _OPENING:
                opened.append((word, place))
            if word in _KEYWORDS:
                if word in ("local", "for", "function"):
                    self._declare(word, place + 1)
            elif word.isidentifier() and not self._is_field(place, opened[-1][0]):
                places.setdefault(word, []).append(place)
        if len(opened) != 1:
            raise ShorteningError(f"{opened[-1][0]} without an end")

    def _is_field(self, place: int, opened: str) -> bool:
        """Return whether a name is the name of a field or a method. `opened`: the innermost open bracket or block."""
        before = self.tokens[place - 1] if place else ""
        if before in (".", ":"):
            return True
        begins = before == "{" or (before in (",", ";") and opened == "{")
        return begins and self.tokens[place + 1] == "="

    def _declare(self, word: str, begin: int) -> None:
        """Record the names that a `local`, a `for`, or a function and its parameters declare."""
        tokens, end = self.tokens, begin
        if word == "function":
            if begin > 1 and tokens[begin - 2] == "local":
                self.local.add(tokens[begin])
            end = begin = tokens.index("(", begin) + 1
        while tokens[end + 1] == ",":
            end += 2
        self.local.update(name for name in tokens[begin : end + 1 : 2] if name not in _KEYWORDS)
        if word == "local" and begin == end and tokens[end + 1] == "=":
            is_table = tokens[end + 2 : end + 4] == ["{", "}"]
            behind = end + 3 + is_table
            # A complete expression ends before any name or keyword except `and` and `or`.
            ends = not tokens[behind] or (tokens[behind].isidentifier() and tokens[behind] not in ("and", "or"))
            if ends and (is_table or _CONSTANT.match(tokens[end + 2])):
                self.declarations.append((tokens[begin], begin - 1, behind))

    def drop_unused(self) -> None:
        """Remove declarations of unused names; then of names that only removed declarations used, and so on."""
        left, found = self.declarations, True
        while found:
            found = False
            for one in left.copy():
                name, begin, end = one
                if all(begin <= place < end for place in self._left(name)):
                    self.tokens[begin:end] = [""] * (end - begin)
                    left.remove(one)
                    found = True

    def rename(self) -> None:
        """Give each local variable a short name. The most frequent variables get the shortest names."""
        places = [self._left(name) for name in self.places if name not in GLOBALS]
        for standing, short in zip(sorted(places, key=len, reverse=True), _shorts(), strict=False):
            for place in standing:
                self.tokens[place] = short

    def _left(self, name: str) -> list[int]:
        return [place for place in self.places[name] if self.tokens[place]]

    def __str__(self) -> str:
        """Return the text. Where a blank is needed, a line break of the script stays: errors contain line numbers."""
        parts, before, fresh = list[str](), "", False
        for place, token in enumerate(self.tokens):
            fresh = fresh or place in self.fresh
            if not token:
                continue
            if _TOUCH.match(before[-1:] + token[0]):
                parts.append("\n" if fresh else " ")
            parts.append(token)
            before, fresh = token, False
        return "".join(parts)


def _shorts() -> Iterator[str]:
    for more in count():
        for first, *rest in product(ascii_letters, *[ascii_letters + digits] * more):
            short = "".join((first, *rest))
            if short not in _KEYWORDS and short not in GLOBALS:
                yield short


def shorten(text: str) -> str:
    """Return a script that does the same, in fewer bytes.

    Raises:
        ShorteningError: the script contains unsupported syntax.
    """
    found = Text(text)
    found.drop_unused()
    found.rename()
    return str(found)
