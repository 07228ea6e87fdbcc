"""Columns of numbers encoded as varints, compared with single varints, and their decoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.records.decoder import read_varints
from spark_kafka_sink.records.fields import (
    Field,
    build_constant_fields,
    build_fixed_field,
    build_signed_varint_fields,
    build_unsigned_varint_fields,
    encode_varint,
    mask_field,
    merge_fields,
)
from tests.records.reference_encoder import reference_varint

borders = [sign * (1 << bits) + off for bits in range(0, 63, 7) for off in (-1, 0, 1) for sign in (1, -1)]
extremes = [*borders, *(b // 2 for b in borders), (1 << 63) - 1, -(1 << 63), (1 << 62), (1 << 62) - 1, -(1 << 62)]
numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-70, 70), st.sampled_from(extremes))


def encode_rows(fields: Sequence[Field], rows: int) -> list[bytes]:
    """Join the fields of each row. Fail for bits beyond a field's width, and for widths above `max_width`."""
    written = [b""] * rows
    for field in fields:
        words = np.broadcast_to(np.asarray(field.word, np.uint64), rows).tolist()
        widths = np.broadcast_to(field.width, rows).tolist()
        assert max(widths, default=0) <= field.max_width <= 8
        written = [
            row + word.to_bytes(width, "little") for row, word, width in zip(written, words, widths, strict=True)
        ]
    return written


@given(st.lists(numbers, max_size=50))
@settings(max_examples=200, deadline=None)
def test_varint_column_equals_single_varints(column: list[int]) -> None:
    expected = [reference_varint(value) for value in column]
    assert encode_rows(build_signed_varint_fields(np.array(column, np.int64)), len(column)) == expected
    assert [encode_varint(value) for value in column] == expected


@given(st.lists(numbers.filter(lambda value: -(1 << 31) <= value < 1 << 31), max_size=50))
@settings(max_examples=100, deadline=None)
def test_varints_of_32_and_64_bit_integers_are_equal(column: list[int]) -> None:
    expected = [reference_varint(value) for value in column]
    assert encode_rows(build_signed_varint_fields(np.array(column, np.int32)), len(column)) == expected


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.uint16, np.uint32])
def test_varints_of_narrow_integers_are_equal(kind: type[np.integer]) -> None:
    column = [int(np.iinfo(kind).min), 0, 1, 100, int(np.iinfo(kind).max)]
    assert encode_rows(build_signed_varint_fields(np.array(column, kind)), 5) == [
        reference_varint(value) for value in column
    ]


@given(st.lists(numbers.map(lambda value: value + (1 << 63)), max_size=50))
@settings(max_examples=100, deadline=None)
def test_unsigned_varints_use_no_zigzag(column: list[int]) -> None:
    expected = [reference_varint(code >> 1 if code % 2 == 0 else -(code >> 1) - 1) for code in column]
    assert encode_rows(build_unsigned_varint_fields(np.array(column, np.uint64)), len(column)) == expected


def test_merged_fields_have_bytes_of_all_fields() -> None:
    for seed in range(200):
        check_merged_fields(seed)


def check_merged_fields(seed: int) -> None:
    chance = Random(seed)
    rows = chance.choice([1, 5])
    fields: list[Field] = []
    for _ in range(chance.randrange(1, 8)):
        kind = chance.choice(["constant", "fixed", "varint", "masked"])
        if kind == "constant":
            fields += build_constant_fields(chance.choice([b"", b"\0", chance.randbytes(chance.randrange(11))]))
        elif kind == "fixed":
            fields.append(build_fixed_field(np.frombuffer(chance.randbytes(4 * rows), np.int32)))
        else:
            bits = chance.choice([6, 13, 30, 62])
            values = np.array([chance.randrange(1 << bits) for _ in range(rows)], chance.choice([np.int64, np.uint64]))
            found = build_signed_varint_fields(values.view(np.int64))
            mask = np.array([chance.random() < 0.5 for _ in range(rows)])
            fields += [mask_field(field, mask) for field in found] if kind == "masked" else found
    merged = merge_fields(fields)
    assert encode_rows(merged, rows) == encode_rows(fields, rows)
    assert all(first.max_width + second.max_width > 8 for first, second in pairwise(merged))


def test_merge_keeps_position_of_other_items() -> None:
    one, two = build_constant_fields(b"a"), build_constant_fields(b"b")
    merged = merge_fields([*one, *two, "places", *two])
    assert [column if isinstance(column, str) else encode_rows([column], 1) for column in merged] == [
        [b"ab"],
        "places",
        [b"b"],
    ]


@given(st.lists(numbers, min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_decodes_encoded_varint_column(column: list[int]) -> None:
    coded = [reference_varint(value) for value in column]
    at = np.cumsum([0, *(len(c) for c in coded)])
    values, after = read_varints(np.frombuffer(b"".join(coded), np.uint8), at[:-1], 10)
    assert values.tolist() == column
    assert after.tolist() == at[1:].tolist()


def test_rejects_unterminated_varint() -> None:
    with pytest.raises(DecodeError, match="malformed varint"):
        read_varints(np.full(40, 0xFF, np.uint8), np.array([0, 3]), 5)
