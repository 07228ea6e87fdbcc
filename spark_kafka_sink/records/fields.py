"""Field: encoded numbers of a column, such as varints, floats, tags and constants.

A `Field` has up to 8 bytes per row. They are stored in an integer, the *word*, whose lowest byte comes first. The
*width* is the number of bytes of a row, which may be 0; all other bytes of its word are 0. For example, a row with the
bytes AC 02 has the word 0x02AC and the width 2. If all rows are equal, the word and the width are plain ints instead of
arrays.

Writing a field takes equally long for any width (joined_rows.py). Adjacent fields are therefore merged as long as they
fit into 8 bytes together.

Kafka, Avro and Protobuf encode numbers as varints. A varint consists of groups of 7 bits, lowest group first, with one
group per byte. The high bit of a byte is set if another byte follows. Signed numbers are first mapped to unsigned
numbers by zigzag encoding: 0, -1, 1, -2 become 0, 1, 2, 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
_MAX_WORD = (1 << 56) - 1
"""Largest unsigned number whose varint fits into 8 bytes."""
_GROUP_BITS = 7
_GROUP_MASK = 0x7F
_CONTINUATION_BIT = 0x80
_ALL_CONTINUATION_BITS = 0x8080808080808080
"""The continuation bits of all 8 bytes of a word."""
_U64 = np.uint64


class Field(NamedTuple):
    """Up to 8 bytes per row."""

    word: NDArray[Any] | int
    """The bytes of each row, as an integer of 4 or 8 bytes; an int if all rows have the same bytes."""
    width: NDArray[Any] | int
    """The number of bytes of each row, as uint8; an int if all rows have the same number of bytes."""
    max_width: int
    """An upper bound of the widths."""

    def slice_rows(self, start: int, stop: int) -> Field:
        """Return the field for the rows [start, stop)."""
        word = self.word if isinstance(self.word, int) else self.word[start:stop]
        return Field(word, self.width if isinstance(self.width, int) else self.width[start:stop], self.max_width)


def build_constant_field(data: bytes) -> Field:
    """Return a field with the same bytes, at most 8, in every row."""
    return Field(int.from_bytes(data, "little"), len(data), len(data))


@lru_cache(maxsize=4096)
def build_constant_fields(data: bytes) -> tuple[Field, ...]:
    """Return as many fields as are needed for the same bytes in every row.

    The result is cached, because a job uses few constants.
    """
    return tuple(
        [build_constant_field(data[start : start + _WORD_BYTES]) for start in range(0, len(data), _WORD_BYTES)]
    )


def build_fixed_field(numbers: NDArray[Any]) -> Field:
    """Return a field of numbers that all have the width of their dtype (1, 4 or 8 bytes), in little-endian order."""
    width = numbers.itemsize
    return Field(np.ascontiguousarray(numbers).view(f"u{width}").astype(np.uint64), width, width)


def mask_field(field: Field, mask: NDArray[np.bool_]) -> Field:
    """Return a copy of the field that has no bytes in the rows where the mask is False."""
    word = np.where(mask, np.asarray(field.word, np.uint64), _U64(0))
    return Field(word, np.where(mask, field.width, 0).astype(np.uint8), field.max_width)


# --- varints


def encode_zigzag(value: int) -> int:
    """Map a signed 64-bit number to an unsigned one: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return (value << 1) ^ (value >> 63)


@lru_cache(maxsize=4096)
def encode_varint(value: int) -> bytes:
    """Encode a single signed number as a varint. The result is cached, because sizes and deltas repeat within a job."""
    remaining_bits = encode_zigzag(value)
    encoded = bytearray()
    while remaining_bits > _GROUP_MASK:
        encoded.append((remaining_bits & _GROUP_MASK) | _CONTINUATION_BIT)
        remaining_bits >>= _GROUP_BITS
    encoded.append(remaining_bits)
    return bytes(encoded)


def build_signed_varint_fields(values: NDArray[Any]) -> list[Field]:
    """Encode signed numbers as varints.

    Return one field, or two if a varint has more than 8 bytes, or none if there are no numbers.
    """
    if not len(values):
        return []
    numbers = values if values.dtype in (np.int32, np.int64) else values.astype(np.int64)
    lowest, highest = int(np.minimum.reduce(numbers)), int(np.maximum.reduce(numbers))
    if lowest == highest:
        return [*build_constant_fields(encode_varint(lowest))]
    zigzag_values = numbers << 1
    if lowest < 0:
        # The shift gives -1, whose bits are all set, for a negative number, and 0 for any other.
        sign_bit = 8 * numbers.itemsize - 1
        zigzag_values ^= numbers >> sign_bit
    max_value = max(encode_zigzag(lowest), encode_zigzag(highest))
    return _build_varint_fields(zigzag_values.view(f"u{numbers.itemsize}"), max_value)


def build_unsigned_varint_fields(values: NDArray[Any]) -> list[Field]:
    """Encode unsigned numbers of 4 or 8 bytes as varints, in one field, or in two if a varint has more than 8 bytes."""
    return _build_varint_fields(values, int(np.maximum.reduce(values, initial=0)))


def _build_varint_fields(values: NDArray[Any], max_value: int) -> list[Field]:
    """Encode unsigned numbers of at most `max_value`. Numbers of more than 56 bits (8 groups) need a second field."""
    if max_value <= _MAX_WORD:
        max_groups = max(1, math.ceil(max_value.bit_length() / _GROUP_BITS))
        return [_build_varint_field(values, max_groups)]
    low_groups, high_groups = values & _U64(_MAX_WORD), values >> _U64(_WORD_BYTES * _GROUP_BITS)
    has_second_field = high_groups > 0
    low_field, high_field = _build_varint_field(low_groups, _WORD_BYTES), _build_varint_field(high_groups, 2)
    # If another byte follows in the second field, all eight bytes of the first field have the continuation bit.
    word = np.where(has_second_field, low_field.word | _U64(_ALL_CONTINUATION_BITS), low_field.word)
    width = np.where(has_second_field, _WORD_BYTES, low_field.width).astype(np.uint8)
    return [Field(word, width, _WORD_BYTES), mask_field(high_field, has_second_field)]


def _build_varint_field(values: NDArray[Any], max_groups: int) -> Field:
    """Encode numbers that have at most `max_groups` groups of 7 bits, 8 at most, as a single field."""
    # Each step of the loop makes room for the continuation bit of one more byte. For example, the number 300 is the
    # word 0x012C. The first step shifts everything above the lowest 7 bits by one, which gives 0x022C. It then sets the
    # bit that has become free, which gives 0x02AC. The lowest byte comes first, so the varint is AC 02.
    if max_groups == 1:
        return Field(values, 1, 1)
    word = values if max_groups <= values.itemsize else values.astype(np.uint64)
    word_type = word.dtype.type
    word_bits = 8 * word.itemsize
    width: Any = 1
    for group in range(1, max_groups):
        needs_group = values >= (1 << (_GROUP_BITS * group))
        continuation_bit = 8 * group - 1
        upper_bits_mask = word_type((1 << word_bits) - (1 << continuation_bit))
        # Shift the upper bits by one, by adding them to themselves.
        word = word + (word & upper_bits_mask)
        word |= np.left_shift(needs_group, continuation_bit, dtype=word_type)
        width = np.add(width, needs_group, dtype=np.uint8)
    return Field(word, width, max_groups)


# --- adjacent fields


def merge_fields(columns: Sequence[Any]) -> list[Any]:
    """Merge adjacent fields that fit into 8 bytes together.

    `columns`: fields, and other objects, which stay where they are.
    """
    merged_columns: list[Any] = []
    for column in columns:
        last = merged_columns[-1] if merged_columns else None
        if isinstance(last, Field) and isinstance(column, Field) and last.max_width + column.max_width <= _WORD_BYTES:
            merged_columns[-1] = _concatenate_fields(last, column)
        else:
            merged_columns.append(column)
    return merged_columns


def _concatenate_fields(first_field: Field, second_field: Field) -> Field:
    """Concatenate two fields row by row. They must fit into 8 bytes together."""
    width, max_width = first_field.width + second_field.width, first_field.max_width + second_field.max_width
    # The lowest byte comes first, so shift the second field above the bytes of the first. If a field is equal in all
    # rows, its word and width are ints, and some of the arrays need not be computed.
    if isinstance(second_field.word, int) and second_field.word == 0:
        return Field(first_field.word, width, max_width)
    if isinstance(second_field.word, int) and isinstance(first_field.width, int):
        shifted_word: Any = second_field.word << 8 * first_field.width
    else:
        shifted_word = np.left_shift(second_field.word, first_field.width * 8, dtype=np.uint64)
    if isinstance(first_field.word, int):
        return Field(first_field.word | shifted_word if first_field.word else shifted_word, width, max_width)
    return Field(np.bitwise_or(first_field.word, shifted_word, dtype=np.uint64), width, max_width)
