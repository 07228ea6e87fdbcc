"""Small numbers of a column as bytes: varints, floats, tags. The bytes of all of them are stored at once.

A `Field` has up to 8 bytes of each row in a number, the first byte in the lowest place, and how many of them count; the
others are 0. A width of 0 means that the row has nothing. A field that is the same in all rows has ints for both.
Fields that stand side by side are merged while they fit into 8 bytes, and then stored as whole words: what a word has
too much is overwritten by the word behind it a moment later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_WORD_BYTES = 8
_LARGEST_WORD = (1 << 56) - 1
"""The largest number whose varint has 8 bytes."""
_U64 = np.uint64
_MORE = np.array([0, *((0x8080808080808080 >> (8 * (9 - width))) for width in range(1, 9))], np.uint64)
"""By the width of a varint: the top bit of every byte but the last says that another one follows."""


class Field(NamedTuple):
    word: NDArray[np.uint64] | int
    width: NDArray[np.int64] | int
    width_max: int


def constant_field(data: bytes) -> Field:
    """A field with the same bytes, at most 8, in every row."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


def fixed_field(numbers: NDArray[Any]) -> Field:
    """Numbers of 1, 4 or 8 bytes as they lie in memory, little-endian."""
    width = numbers.itemsize
    return Field(np.ascontiguousarray(numbers).view(f"u{width}").astype(np.uint64), width, width)


def zigzag_fields(values: NDArray[Any]) -> list[Field]:
    """Signed numbers as zigzag varints: 0, -1, 1, -2 have the codes 0, 1, 2, 3."""
    numbers = values.astype(np.int64, copy=False)
    return varint_fields(((numbers << 1) ^ (numbers >> 63)).view(np.uint64))


def varint_fields(codes: NDArray[np.uint64]) -> list[Field]:
    """Groups of 7 bits, the lowest first. Numbers above 56 bits go on in a second field."""
    top = int(np.maximum.reduce(codes, initial=0))
    if top <= 0x7F:
        return [Field(codes, 1, 1)]
    if top <= _LARGEST_WORD:
        width = _varint_widths(codes, top)
        return [Field(_spread(codes) | _MORE[width], width, _varint_width(top))]
    low, high = codes & _U64(_LARGEST_WORD), codes >> _U64(56)
    is_long = high > 0
    width = np.where(is_long, _WORD_BYTES, _varint_widths(low, _LARGEST_WORD))
    first = _spread(low) | np.where(is_long, _U64(0x8080808080808080), _MORE[width])
    ninth, tenth = high & _U64(0x7F), high >> _U64(7)
    second = ninth | np.where(tenth > 0, _U64(0x80) | tenth << _U64(8), _U64(0))
    return [Field(first, width, 8), Field(second, is_long.astype(np.int64) + (tenth > 0), 2)]


def _spread(codes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """56 bits in groups of 7, each in a byte of its own: by halves, then by halves of those, and once more."""
    spread = codes & _U64(0x000000000FFFFFFF) | (codes & _U64(0x00FFFFFFF0000000)) << _U64(4)
    spread = spread & _U64(0x00003FFF00003FFF) | (spread & _U64(0x0FFFC0000FFFC000)) << _U64(2)
    return spread & _U64(0x007F007F007F007F) | (spread & _U64(0x3F803F803F803F80)) << _U64(1)


def _varint_width(code: int) -> int:
    return max(1, -(-code.bit_length() // 7))


def _varint_widths(codes: NDArray[np.uint64], top: int) -> NDArray[np.int64]:
    width = np.ones(len(codes), np.int64)
    for group in range(1, _varint_width(top)):
        width += codes >= _U64(1 << 7 * group)
    return width


def masked_field(field: Field, mask: NDArray[np.bool_]) -> Field:
    """The field with nothing in the other rows."""
    word = np.where(mask, np.asarray(field.word, np.uint64), _U64(0))
    return Field(word, np.where(mask, field.width, 0), field.width_max)


def packed(fields: Sequence[Field], rows: int) -> pa.Array:
    """A binary array with the fields of each row one after the other."""
    merged = _merged(fields)
    words = np.empty((rows, len(merged)), np.uint64)
    places = np.empty((rows, len(merged)), np.int64)
    ends = np.zeros(rows + 1, np.int64)
    width: Any = 0
    for field in merged:
        width = width + field.width
    np.cumsum(np.broadcast_to(width, rows), out=ends[1:])
    place: Any = ends[:-1]
    for index, field in enumerate(merged):
        words[:, index], places[:, index] = field.word, place
        place = place + field.width
    data = np.empty(int(ends[-1]) + _WORD_BYTES, np.uint8)
    # A view of the same bytes in which a word begins at every byte. Words are stored in the order of their places.
    anywhere = np.ndarray((len(data) - _WORD_BYTES + 1,), np.uint64, data, strides=(1,))
    anywhere[places.reshape(-1)] = words.reshape(-1)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), rows, buffers, 0)


def _merged(fields: Sequence[Field]) -> list[Field]:
    merged: list[Field] = []
    for field in fields:
        if merged and merged[-1].width_max + field.width_max <= _WORD_BYTES:
            merged[-1] = _one_behind_the_other(merged[-1], field)
        else:
            merged.append(field)
    return merged


def _one_behind_the_other(first: Field, second: Field) -> Field:
    width, width_max = first.width + second.width, first.width_max + second.width_max
    if isinstance(first.word, int) and isinstance(first.width, int) and isinstance(second.word, int):
        return Field(first.word | second.word << 8 * first.width, width, width_max)
    # If there are 8 bytes in front, there is none behind: the shift by 64 bits, which is undefined, must not be made.
    shift = np.minimum(np.asarray(first.width) << 3, 63).astype(np.uint64)
    word: NDArray[np.uint64] = np.asarray(first.word, np.uint64) | np.asarray(second.word, np.uint64) << shift
    return Field(word, width, width_max)
