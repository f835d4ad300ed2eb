"""Turn a status of digits into an integer. Scripts return 64-bit integers so, because Lua's numbers have 53 bits.

Its tests: tests/test_together.py.
"""

from __future__ import annotations

from proxy.wire.first_line import FirstLine


class Integer(FirstLine):
    """Passes on a status reply as an integer, and an error unchanged."""

    def _open(self, line: bytes) -> bytes:
        self.done = True
        return b":" + line[1:] if line.startswith(b"+") else line
