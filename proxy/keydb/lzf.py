"""Decompress LZF, the compression of strings in RDB files, completely or in part.

Its tests: tests/test_import_rdb.py.
"""

from __future__ import annotations


def decompress(packed: bytes, size: int, *, whole: bool = True) -> bytes:
    """Return the decompressed bytes.

    Args:
        packed: the compressed bytes.
        size: the decompressed size. It bounds the memory used, whatever `packed` contains.
        whole: whether `packed` is complete. If not, return the first `size` decompressed bytes; `2 * size` bytes of
            input are always enough. If `packed` is shorter than needed, return fewer bytes.

    Raises:
        ValueError: the bytes do not decompress to `size` bytes.
    """
    made = bytearray()
    at, end = 0, len(packed)
    try:
        while at < end and (whole or len(made) < size):
            control = packed[at]
            at += 1
            if control < 32:  # a run of literal bytes
                made += packed[at : at + control + 1]
                at += control + 1
                continue
            length = control >> 5
            if length == 7:
                length += packed[at]
                at += 1
            back = ((control & 31) << 8 | packed[at]) + 1
            at += 1
            begin, length = len(made) - back, length + 2
            if begin < 0 or (whole and len(made) + length > size):
                raise ValueError("reference to bytes before the beginning")
            if length <= back:
                made += made[begin : begin + length]
            else:  # source and copy overlap
                made += (made[begin:] * (length // back + 1))[:length]
    except IndexError:
        if whole:
            raise ValueError("too short") from None
    if whole and (at != end or len(made) != size):
        raise ValueError("wrong size")
    return bytes(made[:size])
