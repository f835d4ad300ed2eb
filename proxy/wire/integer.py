"""Turn a status reply of digits into an integer reply.

Its tests: tests/test_together.py.

Scripts return 64-bit integers as such a status, because Lua's numbers have only 53 bits.
"""

from __future__ import annotations

from proxy.wire.first_line import FirstLine


class Integer(FirstLine):
    """Passes on a status reply as an integer, and an error unchanged."""

    def _open(self, line: bytes) -> bytes:
        self.done = True
        return b":" + line[1:] if line.startswith(b"+") else line
