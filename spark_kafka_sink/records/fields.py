"""Small numbers of a column as bytes: varints, floats, tags, constants.

A `Field` has up to 8 bytes of each row in a number, the first byte in the lowest place, and how many of them count; the
others are 0. A width of 0 means that the row has nothing. A field that is the same in all rows has ints for both.
Fields that stand side by side are merged while they fit into 8 bytes.

Kafka, Avro and Protobuf write numbers as varints: groups of 7 bits, lowest first; the top bit of a byte says that
another byte follows. Signed numbers are made unsigned before, by zigzag: 0, -1, 1, -2 have the codes 0, 1, 2, 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
_LARGEST_WORD = (1 << 56) - 1
"""The largest number whose varint has 8 bytes."""
_GROUP_BITS = 7
_U64 = np.uint64


class Field(NamedTuple):
    """`word` has 4 or 8 bytes, `width` one."""

    word: NDArray[Any] | int
    width: NDArray[Any] | int
    width_max: int

    def of_rows(self, first: int, stop: int) -> Field:
        """The field of the rows [first, stop)."""
        word = self.word if isinstance(self.word, int) else self.word[first:stop]
        return Field(word, self.width if isinstance(self.width, int) else self.width[first:stop], self.width_max)


def constant_field(data: bytes) -> Field:
    """A field with the same bytes, at most 8, in every row."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


@lru_cache(maxsize=4096)
def constant_fields(data: bytes) -> tuple[Field, ...]:
    """Any number of bytes that are the same in all rows. Cached, because those of one job repeat."""
    return tuple([constant_field(data[at : at + _WORD_BYTES]) for at in range(0, len(data), _WORD_BYTES)])


def fixed_field(numbers: NDArray[Any]) -> Field:
    """Numbers of 1, 4 or 8 bytes as they lie in memory, little-endian."""
    width = numbers.itemsize
    return Field(np.ascontiguousarray(numbers).view(f"u{width}").astype(np.uint64), width, width)


def mask_field(field: Field, mask: NDArray[np.bool_]) -> Field:
    """Keep the field where the mask is True; the other rows get width 0."""
    word = np.where(mask, np.asarray(field.word, np.uint64), _U64(0))
    return Field(word, np.where(mask, field.width, 0).astype(np.uint8), field.width_max)


# --- varints


def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@lru_cache(maxsize=4096)
def encode_varint(value: int) -> bytes:
    """The zigzag varint of one number. Cached, because the sizes and deltas of one job repeat."""
    rest = zigzag(value)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= _GROUP_BITS
    out.append(rest)
    return bytes(out)


def signed_varint_fields(values: NDArray[Any]) -> list[Field]:
    """Signed numbers as zigzag varints."""
    if not len(values):
        return []
    numbers = values if values.dtype in (np.int32, np.int64) else values.astype(np.int64)
    lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    if lowest == highest:
        return [*constant_fields(encode_varint(lowest))]
    codes = numbers << 1
    if lowest < 0:
        codes ^= numbers >> (8 * numbers.itemsize - 1)
    return _varint_fields(codes.view(f"u{numbers.itemsize}"), max(zigzag(lowest), zigzag(highest)))


def unsigned_varint_fields(codes: NDArray[Any]) -> list[Field]:
    """Unsigned numbers of 4 or 8 bytes as varints."""
    return _varint_fields(codes, int(np.maximum.reduce(codes, initial=0)))


def _varint_fields(codes: NDArray[Any], top: int) -> list[Field]:
    """Numbers above 56 bits go on in a second field. None is above `top`."""
    if top <= _LARGEST_WORD:
        return [_varint_field(codes, max(1, -(-top.bit_length() // _GROUP_BITS)))]
    low, high = codes & _U64(_LARGEST_WORD), codes >> _U64(56)
    goes_on = high > 0
    first, second = _varint_field(low, _WORD_BYTES), _varint_field(high, 2)
    word = np.where(goes_on, first.word | _U64(0x8080808080808080), first.word)
    width = np.where(goes_on, _WORD_BYTES, first.width).astype(np.uint8)
    return [Field(word, width, _WORD_BYTES), mask_field(second, goes_on)]


def _varint_field(codes: NDArray[Any], groups: int) -> Field:
    """The varints of numbers that have at most `groups` groups of 7 bits."""
    if groups == 1:
        return Field(codes, 1, 1)
    word = codes if groups <= codes.itemsize else codes.astype(np.uint64)
    kind = word.dtype.type
    width: Any = 1
    for group in range(1, groups):
        follows = codes >= 1 << _GROUP_BITS * group
        top_bit = 8 * group - 1
        word = word + (word & kind((1 << 8 * word.itemsize) - (1 << top_bit)))  # all from that bit on moves up by one
        word |= np.left_shift(follows, top_bit, dtype=kind)
        width = np.add(width, follows, dtype=np.uint8)
    return Field(word, width, groups)


# --- fields side by side


def merge_fields(columns: Sequence[Any]) -> list[Any]:
    """Neighbouring fields as one while they fit into 8 bytes; what is no field stays as it is."""
    merged: list[Any] = []
    for column in columns:
        last = merged[-1] if merged else None
        if isinstance(last, Field) and isinstance(column, Field) and last.width_max + column.width_max <= _WORD_BYTES:
            merged[-1] = _one_behind_the_other(last, column)
        else:
            merged.append(column)
    return merged


def _one_behind_the_other(first: Field, second: Field) -> Field:
    width, width_max = first.width + second.width, first.width_max + second.width_max
    if isinstance(second.word, int) and second.word == 0:
        return Field(first.word, width, width_max)
    if isinstance(second.word, int) and isinstance(first.width, int):
        behind: Any = second.word << 8 * first.width
    else:
        behind = np.left_shift(second.word, first.width * 8, dtype=np.uint64)
    if isinstance(first.word, int):
        return Field(first.word | behind if first.word else behind, width, width_max)
    return Field(np.bitwise_or(first.word, behind, dtype=np.uint64), width, width_max)
