"""The hash of records, compared with a definition of it in plain Python."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import compute_digest, hash_records
from tests.documents import ROOT

MASK = (1 << 64) - 1
BINARY, HEADERS = pa.binary(), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Headers = Sequence[tuple[str, "bytes | None"]]
Row = tuple["bytes | None", "bytes | None", "Headers | None"]


def mix(number: int) -> int:
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def constant(index: int) -> int:
    return mix(index * 0x9E3779B97F4A7C15 & MASK) | 1


def reference_hash(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> int:
    """Compute the hash as docs/receipts.md defines it."""
    fields: list[bytes | None] = [key, value]
    for name, header_value in headers or ():
        fields += [name.encode(), header_value]
    constants = [constant(index) for index in range(1, 37)]
    word_factors, (block_factor, field_factor, length_factor, total) = constants[:32], constants[32:]
    for field_index, field in enumerate(fields):
        if field is None:
            continue
        field_sum = length_factor * (len(field) + 1)
        for index in range(-(-len(field) // 8)):
            word = int.from_bytes(field[8 * index : 8 * index + 8].ljust(8, b"\0"), "little")
            field_sum += word_factors[index % 32] * pow(block_factor, index // 32, 1 << 64) * (word ^ word >> 33)
        total += field_sum * pow(field_factor, field_index, 1 << 64)
    return mix(total & MASK)


def build_columns(rows: Sequence[Row]) -> RecordColumns:
    keys, values, headers = zip(*rows, strict=True)
    return RecordColumns(
        pa.array(values, BINARY),
        pa.array(keys, BINARY),
        pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers], HEADERS),
    )


def random_rows(seed: int, count: int, max_bytes: int) -> list[Row]:
    rng = random.Random(seed)

    def field() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randrange(9)), rng.randbytes(rng.randrange(max_bytes))])

    return [
        (field(), field(), [(str(rng.randrange(100)), field()) for _ in range(rng.randrange(4))]) for _ in range(count)
    ]


@pytest.mark.parametrize("max_bytes", [2, 9, 130, 1_000, 5_000])
def test_hashes_equal_the_definition(max_bytes: int) -> None:
    rows = random_rows(max_bytes, 300, max_bytes)
    assert hash_records(build_columns(rows)).tolist() == [reference_hash(*row) for row in rows]


def test_hashes_equal_the_definition_at_each_length() -> None:
    rows: list[Row] = [(None, bytes(range(1, 200))[:size], None) for size in range(200)]
    assert hash_records(build_columns(rows)).tolist() == [reference_hash(*row) for row in rows]


@pytest.mark.parametrize(
    ("min_bytes", "max_bytes"), [(9, 16), (100, 100), (257, 264), (400, 600), (1_000, 1_024), (1_000, 1_032)]
)
def test_hashes_equal_the_definition_for_similar_lengths(min_bytes: int, max_bytes: int) -> None:
    rng = random.Random(max_bytes)
    sizes = [min_bytes, *(rng.randint(min_bytes, max_bytes) for _ in range(300)), max_bytes]
    rows: list[Row] = [(None, rng.randbytes(size), None) for size in sizes]
    assert hash_records(build_columns(rows)).tolist() == [reference_hash(*row) for row in rows]


def test_document_has_the_hash_of_its_example() -> None:
    row: Row = (b"o-1", b"12.50", [("trace", b"7"), ("empty", None)])
    (documented,) = re.findall(r"has the hash\s+`([0-9a-f]{16})`", (ROOT / "docs/receipts.md").read_text())
    assert documented == f"{reference_hash(*row):016x}"
    assert hash_records(build_columns([row])).tolist() == [reference_hash(*row)]


def test_hashes_slices_chunks_and_large_types() -> None:
    rows = random_rows(1, 500, 300)
    expected = [reference_hash(*row) for row in rows]
    columns = build_columns(rows)
    assert hash_records(columns.slice(123, 200)).tolist() == expected[123:323]
    chunked = RecordColumns.concat([columns.slice(0, 7), columns.slice(7)])
    assert hash_records(chunked).tolist() == expected
    assert columns.key is not None
    large = RecordColumns(columns.value.cast(pa.large_binary()), columns.key.cast(pa.large_binary()), columns.headers)
    assert hash_records(large).tolist() == expected


def test_hashes_maps_like_lists_of_headers() -> None:
    maps = pa.array([[("a", b"1"), ("b", None)], [], None], pa.map_(pa.string(), pa.binary()))
    value = pa.array([b"x", b"y", b"z"], BINARY)
    expected = [reference_hash(None, b"x", [("a", b"1"), ("b", None)])]
    expected += [reference_hash(None, b"y"), reference_hash(None, b"z")]
    assert hash_records(RecordColumns(value, headers=maps)).tolist() == expected


def test_ignores_bytes_of_null_fields() -> None:
    validity, offsets = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    value = pa.Array.from_buffers(BINARY, 3, [validity, offsets, pa.py_buffer(b"aabbcc")])
    assert hash_records(RecordColumns(value)).tolist() == [reference_hash(None, v) for v in (b"aa", None, b"cc")]


def test_distinguishes_null_empty_and_shifted_fields() -> None:
    header_lists: list[Headers] = [
        *([("", None)], [("", b"")], [("a", b"b")], [("ab", b"")]),
        *([("a", b"b"), ("c", b"d")], [("c", b"d"), ("a", b"b")]),
    ]
    rows: list[Row] = [
        *[(None, None, None), (b"", None, None), (None, b"", None), (b"", b"", None)],
        *[(b"ab", b"c", None), (b"a", b"bc", None), (b"abc", b"", None), (b"", b"abc", None)],
        *((None, b"", headers) for headers in header_lists),
        *((None, b"\0" * size, None) for size in range(1, 300)),
    ]
    assert len(set(hash_records(build_columns(rows)).tolist())) == len(rows)


def test_digest_is_the_sum_without_overflow() -> None:
    hashes = hash_records(build_columns(random_rows(2, 1_000, 50)))
    assert compute_digest(hashes) == sum(hashes.tolist()) > 1 << 64


def test_no_records_have_the_digest_0() -> None:
    assert compute_digest(hash_records(RecordColumns(pa.array([], BINARY)))) == 0
    assert len(hash_records(RecordColumns(pa.array([], BINARY), headers=pa.array([], HEADERS)))) == 0


def test_detects_changes_of_one_byte_in_each_of_two_words() -> None:
    """Without the shift of the words, the upper bytes would change only the upper byte of the sum."""
    base = bytearray(b"x" * 256)
    variants = {bytes(base)}
    rng = random.Random(3)
    while len(variants) < 20_000:
        variant = base.copy()
        for word in rng.sample(range(32), 2):
            variant[8 * word + 7] = rng.randrange(256)
        variants.add(bytes(variant))
    hashes = hash_records(RecordColumns(pa.array(sorted(variants), BINARY))).tolist()
    assert len(set(hashes)) == len(variants)


def test_detects_the_same_change_of_all_bytes_of_two_words() -> None:
    """A shift by whole bytes would cancel out such a change in the lower half of the words."""
    words = [bytes([byte]) * 8 for byte in range(256)]
    variants = [b"x" * 16, *(first + b"-" * 8 + second for first in words for second in words)]
    hashes = hash_records(RecordColumns(pa.array(variants, BINARY))).tolist()
    assert len(set(hashes)) == len(variants)
