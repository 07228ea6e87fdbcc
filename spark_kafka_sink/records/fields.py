"""Encode the numbers of a column: varints, floats, tags and constants.

A `Field` stores up to 8 bytes per row in an integer called the word. The lowest byte of the word comes first. The width
is the number of valid bytes; all other bytes of the word are 0. A row of width 0 has no bytes. If all rows are equal,
the field holds plain ints instead of arrays. Adjacent fields are merged as long as they fit into 8 bytes.

Kafka, Avro and Protobuf encode numbers as varints. A varint consists of groups of 7 bits, lowest group first, with one
group per byte. The high bit of a byte is set if another byte follows. Signed numbers are first mapped to unsigned
numbers by zigzag encoding: 0, -1, 1, -2 become 0, 1, 2, 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
_MAX_WORD = (1 << 56) - 1
"""Largest unsigned number whose varint fits into 8 bytes."""
_GROUP_BITS = 7
_U64 = np.uint64


class Field(NamedTuple):
    """Words and widths of a column. Array elements of `word` have 4 or 8 bytes, those of `width` have one byte."""

    word: NDArray[Any] | int
    width: NDArray[Any] | int
    max_width: int

    def slice_rows(self, start: int, stop: int) -> Field:
        """Return the field for the rows [start, stop)."""
        word = self.word if isinstance(self.word, int) else self.word[start:stop]
        return Field(word, self.width if isinstance(self.width, int) else self.width[start:stop], self.max_width)


def build_constant_field(data: bytes) -> Field:
    """Return a field with the same bytes in every row. `data` must have at most 8 bytes."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


@lru_cache(maxsize=4096)
def build_constant_fields(data: bytes) -> tuple[Field, ...]:
    """Return fields with the same bytes in every row. The result is cached, because a job uses few constants."""
    return tuple(
        [build_constant_field(data[start : start + _WORD_BYTES]) for start in range(0, len(data), _WORD_BYTES)]
    )


def build_fixed_field(numbers: NDArray[Any]) -> Field:
    """Return a field of fixed-width numbers (1, 4 or 8 bytes) in little-endian order."""
    width = numbers.itemsize
    return Field(np.ascontiguousarray(numbers).view(f"u{width}").astype(np.uint64), width, width)


def mask_field(field: Field, mask: NDArray[np.bool_]) -> Field:
    """Return a copy of the field that has width 0 in the rows where the mask is False."""
    word = np.where(mask, np.asarray(field.word, np.uint64), _U64(0))
    return Field(word, np.where(mask, field.width, 0).astype(np.uint8), field.max_width)


# --- varints


def encode_zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@lru_cache(maxsize=4096)
def encode_varint(value: int) -> bytes:
    """Encode a single signed number as a varint. The result is cached, because sizes and deltas repeat within a job."""
    code = encode_zigzag(value)
    encoded = bytearray()
    while code > 0x7F:
        encoded.append(code & 0x7F | 0x80)
        code >>= _GROUP_BITS
    encoded.append(code)
    return bytes(encoded)


def build_signed_varint_fields(values: NDArray[Any]) -> list[Field]:
    """Encode signed numbers as varints."""
    if not len(values):
        return []
    numbers = values if values.dtype in (np.int32, np.int64) else values.astype(np.int64)
    lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    if lowest == highest:
        return [*build_constant_fields(encode_varint(lowest))]
    codes = numbers << 1
    if lowest < 0:
        codes ^= numbers >> (8 * numbers.itemsize - 1)
    return _build_varint_fields(codes.view(f"u{numbers.itemsize}"), max(encode_zigzag(lowest), encode_zigzag(highest)))


def build_unsigned_varint_fields(codes: NDArray[Any]) -> list[Field]:
    """Encode unsigned numbers of 4 or 8 bytes as varints."""
    return _build_varint_fields(codes, int(np.maximum.reduce(codes, initial=0)))


def _build_varint_fields(codes: NDArray[Any], max_code: int) -> list[Field]:
    """Encode unsigned numbers of at most `max_code`. Numbers of more than 56 bits continue in a second field."""
    if max_code <= _MAX_WORD:
        return [_build_varint_field(codes, max(1, -(-max_code.bit_length() // _GROUP_BITS)))]
    low_words, high_words = codes & _U64(_MAX_WORD), codes >> _U64(56)
    has_second_field = high_words > 0
    first, second = _build_varint_field(low_words, _WORD_BYTES), _build_varint_field(high_words, 2)
    word = np.where(has_second_field, first.word | _U64(0x8080808080808080), first.word)
    width = np.where(has_second_field, _WORD_BYTES, first.width).astype(np.uint8)
    return [Field(word, width, _WORD_BYTES), mask_field(second, has_second_field)]


def _build_varint_field(codes: NDArray[Any], max_groups: int) -> Field:
    """Encode numbers that have at most `max_groups` groups of 7 bits, as a single field."""
    if max_groups == 1:
        return Field(codes, 1, 1)
    word = codes if max_groups <= codes.itemsize else codes.astype(np.uint64)
    word_type = word.dtype.type
    width: Any = 1
    for group in range(1, max_groups):
        has_group = codes >= 1 << _GROUP_BITS * group
        top_bit = 8 * group - 1
        # Adding the bits from top_bit upwards to themselves shifts them by one, which frees the continuation bit.
        word = word + (word & word_type((1 << 8 * word.itemsize) - (1 << top_bit)))
        word |= np.left_shift(has_group, top_bit, dtype=word_type)
        width = np.add(width, has_group, dtype=np.uint8)
    return Field(word, width, max_groups)


# --- adjacent fields


def merge_fields(columns: Sequence[Any]) -> list[Any]:
    """Merge adjacent fields that fit into 8 bytes together. Elements that are not fields are returned unchanged."""
    merged_parts: list[Any] = []
    for column in columns:
        last = merged_parts[-1] if merged_parts else None
        if isinstance(last, Field) and isinstance(column, Field) and last.max_width + column.max_width <= _WORD_BYTES:
            merged_parts[-1] = _concatenate_fields(last, column)
        else:
            merged_parts.append(column)
    return merged_parts


def _concatenate_fields(first_field: Field, second_field: Field) -> Field:
    width, max_width = first_field.width + second_field.width, first_field.max_width + second_field.max_width
    if isinstance(second_field.word, int) and second_field.word == 0:
        return Field(first_field.word, width, max_width)
    if isinstance(second_field.word, int) and isinstance(first_field.width, int):
        shifted: Any = second_field.word << 8 * first_field.width
    else:
        shifted = np.left_shift(second_field.word, first_field.width * 8, dtype=np.uint64)
    if isinstance(first_field.word, int):
        return Field(first_field.word | shifted if first_field.word else shifted, width, max_width)
    return Field(np.bitwise_or(first_field.word, shifted, dtype=np.uint64), width, max_width)
