"""Zigzag varints for whole columns.

Kafka writes the small numbers of a record as zigzag varints: z = (v << 1) ^ (v >> 63), then groups of 7 bits, lowest
first, the top bit of a byte saying that another follows. A column of such numbers is held here as a `Field`: the
encoded bytes of each row in the low bytes of a uint64 (little-endian, so the first byte is the lowest), and how many
of them count. A number that needs 9 or 10 bytes takes two fields, of 8 bytes and of the rest.

A number that is the same for all rows is a Field of ints: numpy broadcasts them, and no column is made of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

U64 = np.uint64
_TABLE_BITS = 16
_LARGEST_8_BYTES = 1 << 56


class Field(NamedTuple):
    """Bytes of a column. Arrays have one element per row; an int stands for all rows."""

    word: NDArray[np.uint64] | int
    width: NDArray[np.int64] | int
    width_max: int


def constant(data: bytes) -> Field:
    """The same bytes (at most 8) in every row."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@lru_cache(maxsize=4096)
def encode_varint(value: int) -> bytes:
    """One number that stands for a whole column. The same few come again and again."""
    rest = zigzag(value)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def varint_fields(values: NDArray[np.int64] | int) -> list[Field]:
    """A column as one field, or as two if some number needs more than 8 bytes."""
    if isinstance(values, int):
        data = encode_varint(values)
        return [constant(data[:8])] if len(data) <= 8 else [constant(data[:8]), constant(data[8:])]
    low, high = (int(np.minimum.reduce(values)), int(np.maximum.reduce(values))) if len(values) else (0, 0)
    if low == high:
        return varint_fields(low)
    if low >= 0:
        coded = (values << 1).view(np.uint64) if high < 1 << 62 else _zigzag_column(values)
    else:
        coded = _zigzag_column(values)
    top = max(zigzag(low), zigzag(high))
    if top < 1 << _TABLE_BITS:
        places, width_max = coded.view(np.int64), int(_WIDTHS[top])
        if low >= 0 and _WIDTHS[zigzag(low)] == width_max:
            return [Field(_WORDS.take(places), width_max, width_max)]
        return [Field(_WORDS.take(places), _WIDTHS.take(places), width_max)]
    if top < _LARGEST_8_BYTES:
        return [_spread(coded, top)]
    return _spread_wide(coded)


def counting_words(first: int, count: int) -> NDArray[np.uint64]:
    """The words of the numbers from `first` on (none below 0): where the table has them, they lie there like that."""
    low, high = first << 1, (first + count - 1) << 1
    if high < 1 << _TABLE_BITS:
        return _WORDS[low : high + 1 : 2]
    return np.asarray(_spread(np.arange(low, high + 1, 2, dtype=np.uint64), high).word)


def counting_fields(first: int, count: int) -> list[Field]:
    """As `varint_fields` for the numbers from `first` on."""
    low, high = first << 1, (first + count - 1) << 1
    width_max = len(encode_varint(first + count - 1))
    if len(encode_varint(first)) == width_max:
        return [Field(counting_words(first, count), width_max, width_max)]
    if high < 1 << _TABLE_BITS:
        return [Field(_WORDS[low : high + 1 : 2], _WIDTHS[low : high + 1 : 2], width_max)]
    return [_spread(np.arange(low, high + 1, 2, dtype=np.uint64), high)]


def varint_widths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each number takes."""
    coded = _zigzag_column(values)
    if not len(coded):
        return np.zeros(0, np.int64)
    top = int(coded.max())
    if top < 1 << _TABLE_BITS:
        return _WIDTHS.take(coded.view(np.int64))
    return _widths(coded, top)


def _zigzag_column(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _widths(coded: NDArray[np.uint64], top: int) -> NDArray[np.int64]:
    width = np.ones(len(coded), np.int64)
    bits = 7
    while top >> bits:
        width += coded >= U64(1 << bits)
        bits += 7
    return width


def _spread(coded: NDArray[np.uint64], top: int) -> Field:
    """Groups of 7 bits to bytes, with the top bit set wherever another byte follows. At most 8 bytes."""
    word = coded & U64(0x7F)
    width = np.ones(len(coded), np.int64)
    group = 1
    while top >> (7 * group):
        more = coded >= U64(1 << (7 * group))
        width += more
        word |= ((coded >> U64(7 * group)) & U64(0x7F)) << U64(8 * group)
        word |= more.astype(np.uint64) << U64(8 * group - 1)
        group += 1
    return Field(word, width, group)


def _spread_wide(coded: NDArray[np.uint64]) -> list[Field]:
    """As `_spread`, for numbers of up to 10 bytes: the first 8 bytes, then the others."""
    low_word, low_width, _ = _spread(coded & U64(_LARGEST_8_BYTES - 1), _LARGEST_8_BYTES - 1)
    rest = coded >> U64(56)
    longer = rest > U64(0)
    # A number that goes on has all of its first 8 bytes, each saying that another follows.
    low_word = np.where(longer, low_word | U64(0x8080808080808080), low_word)
    low_width = np.where(longer, 8, low_width)
    ninth = rest & U64(0x7F)
    tenth = rest >> U64(7)
    high_word = np.where(tenth > U64(0), ninth | U64(0x80) | (tenth << U64(8)), ninth)
    high_width = longer.astype(np.int64) + (tenth > U64(0))
    return [Field(low_word, low_width, 8), Field(high_word, high_width, 2)]


def _table() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    field = _spread(np.arange(1 << _TABLE_BITS, dtype=np.uint64), (1 << _TABLE_BITS) - 1)
    return np.asarray(field.word), np.asarray(field.width)


_WORDS, _WIDTHS = _table()
"""All varints up to 65,535: a look-up is cheaper than the arithmetic. Read only."""


def total_width(fields: list[Field]) -> NDArray[np.int64] | int:
    width = fields[0].width
    for field in fields[1:]:
        width = width + field.width
    return width


def merge(fields: list[Field]) -> list[Field]:
    """Neighbours that always fit into 8 bytes become one field."""
    merged = [fields[0]]
    for field in fields[1:]:
        last = merged[-1]
        if last.width_max + field.width_max > 8:
            merged.append(field)
            continue
        merged[-1] = Field(_after(last, field), last.width + field.width, last.width_max + field.width_max)
    return merged


def _after(first: Field, second: Field) -> NDArray[np.uint64] | int:
    """The words of two fields, the second one behind the first."""
    word: Any = second.word
    if isinstance(word, int):
        if word == 0:
            return first.word
        if not isinstance(first.width, int):
            word = U64(word)
    bits: Any = 8 * first.width if isinstance(word, int) else bits_of(first.width)
    behind: NDArray[np.uint64] | int = first.word | (word << bits)
    return behind


def bits_of(width: NDArray[np.int64] | int) -> Any:
    return U64(8 * width) if isinstance(width, int) else (width << 3).view(np.uint64)
