"""Reads what Lua 5.1's `string.dump` gives: what a text compiles to, without the names and lines that it also tells."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_HEADER: Final = b"\x1bLua\x51\x00"
_GET_GLOBAL, _SET_GLOBAL = 5, 7


@dataclass(frozen=True)
class Compiled:
    """A function.

    Attributes:
        shape: how many upvalues, parameters and registers it has, and whether it takes any number of arguments.
        code: its instructions.
        constants: what they use.
        inner: the functions in it.
    """

    shape: bytes
    code: tuple[int, ...]
    constants: tuple[object, ...]
    inner: tuple[Compiled, ...]

    def globals_named(self) -> set[object]:
        """Return the names of all globals that it and those in it read or write."""
        own = {
            self.constants[instruction >> 14]
            for instruction in self.code
            if instruction & 0x3F in (_GET_GLOBAL, _SET_GLOBAL)
        }
        return own.union(*(function.globals_named() for function in self.inner))

    def count(self) -> int:
        """Return how many functions there are, with it."""
        return 1 + sum(function.count() for function in self.inner)


class _Reader:
    def __init__(self, dumped: bytes) -> None:
        assert dumped.startswith(_HEADER)
        assert dumped[6:12] == bytes((1, 4, 8, 4, 8, 0)), "little end first, 64 bits"
        self._dumped, self._at = dumped, 12

    def _take(self, count: int) -> bytes:
        self._at += count
        return self._dumped[self._at - count : self._at]

    def _number(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _string(self) -> bytes:
        return self._take(int.from_bytes(self._take(8), "little"))[:-1]

    def _constant(self) -> object:
        kind = self._take(1)[0]
        if kind == 0:
            return None
        if kind == 1:
            return self._take(1) != b"\0"
        return struct.unpack("<d", self._take(8))[0] if kind == 3 else self._string()

    def function(self) -> Compiled:
        self._string()  # where the text is from
        self._take(8)  # its lines
        shape = self._take(4)
        code = tuple(self._number() for _ in range(self._number()))
        constants = tuple(self._constant() for _ in range(self._number()))
        inner = tuple(self.function() for _ in range(self._number()))
        for _ in range(self._number()):
            self._number()  # the line of an instruction
        for _ in range(self._number()):
            self._string()  # the name of a variable
            self._take(8)
        for _ in range(self._number()):
            self._string()
        return Compiled(shape, code, constants, inner)


def compiled(dumped: bytes) -> Compiled:
    """Return the function that has been dumped."""
    return _Reader(dumped).function()
