"""Decode the packed form of small hashes and sorted sets in RDB files: only the strings in it, which may be binary.

Its tests: tests/test_import_rdb.py.
"""

from __future__ import annotations

from typing import Final

_HEADER: Final = 10
_END: Final = 0xFF
_INTEGERS: Final = {0xC0: 2, 0xD0: 4, 0xE0: 8, 0xF0: 3, 0xFE: 1}
"""First byte of an integer → its size; the bytes 0xF1 to 0xFD contain the integer themselves."""


def members(packed: bytes) -> list[bytes]:
    """Return the fields of a hash, or the members of a sorted set, that are stored as strings.

    Raises:
        ValueError: the bytes are not a packed hash or sorted set.
    """
    found: list[bytes] = []
    at, count = _HEADER, 0
    try:
        while packed[at] != _END:
            at += 5 if packed[at] == 0xFE else 1  # skip the length of the previous entry
            first = packed[at]
            if first < 0x40:
                begin, size = at + 1, first
            elif first < 0x80:
                begin, size = at + 2, (first & 63) << 8 | packed[at + 1]
            elif first < 0xC0:
                begin, size = at + 5, int.from_bytes(packed[at + 1 : at + 5], "big")
            else:
                at += 1 + (0 if 0xF1 <= first <= 0xFD else _INTEGERS[first])
                count += 1
                continue
            at = begin + size
            if count % 2 == 0:
                found.append(packed[begin:at])
            count += 1
    except (IndexError, KeyError):
        raise ValueError("invalid packed hash or sorted set") from None
    return found
