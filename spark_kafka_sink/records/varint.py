"""Zigzag varints, one number at a time or a whole column.

Kafka writes the small numbers of a record as zigzag varints: code = (v << 1) ^ (v >> 63), then groups of 7 bits,
lowest first; the top bit of a byte says that another byte follows. 0 is 00, -1 is 01, 1 is 02, 64 is 80 01. A number
of 64 bits takes 10 bytes at most.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_GROUP_BITS = 7


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@lru_cache(maxsize=4096)
def encode_varint(value: int) -> bytes:
    """One number. Cached, because the sizes and deltas of one job repeat."""
    rest = zigzag(value)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= _GROUP_BITS
    out.append(rest)
    return bytes(out)


def zigzag_column(values: NDArray[Any]) -> NDArray[Any]:
    """The zigzag codes of signed integers, as unsigned integers of their size."""
    bits = 8 * values.itemsize
    return ((values << 1) ^ (values >> (bits - 1))).view(f"u{values.itemsize}")


def varint_widths(coded: NDArray[Any]) -> NDArray[np.int32]:
    """How many bytes each number takes, from its zigzag code."""
    width = np.ones(len(coded), np.int32)
    for group in range(1, _groups(coded)):
        width += coded >= 1 << _GROUP_BITS * group
    return width


def varint_array(coded: NDArray[Any]) -> pa.Array:
    """A binary array with the varint of each number, from its zigzag code."""
    groups = _groups(coded)
    table = np.empty((len(coded), groups), np.uint8)
    used = np.ones((len(coded), groups), np.bool_)
    rest = coded
    for group in range(groups):
        more = rest > 0x7F
        table[:, group] = rest & 0x7F
        table[:, group] |= more.view(np.uint8) << _GROUP_BITS
        used[:, group + 1 : group + 2] = more[:, None]
        rest = rest >> _GROUP_BITS
    ends = np.zeros(len(coded) + 1, np.int32)
    np.cumsum(used.sum(axis=1), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(table[used])]
    return pa.BinaryArray.from_buffers(pa.binary(), len(coded), buffers, null_count=0)


def _groups(coded: NDArray[Any]) -> int:
    """The bytes of the longest varint."""
    return max(1, -(-int(np.maximum.reduce(coded, initial=0)).bit_length() // _GROUP_BITS))
