"""The hash of records, compared with a definition of it in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import RecordHashes, digest_to_int, hash_records

MASK = (1 << 64) - 1
BINARY, HEADERS = pa.binary(), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

KNOWN_HASH = "6b2b3407e0e1d1f2d3a13743abe818f0"

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
    sums = []
    byte_orders: list[tuple[int, Literal["little", "big"]]] = [(1, "little"), (21, "big")]
    for first, byte_order in byte_orders:
        factors = [constant(first + index) for index in range(20)]
        block_factor, field_factor, length_factor, total = factors[16:]
        for field_index, field in enumerate(fields):
            if field is None:
                continue
            words = [int.from_bytes(field[at : at + 8].ljust(8, b"\0"), byte_order) for at in range(0, len(field), 8)]
            field_sum = length_factor * (len(field) + 1)
            for index, word in enumerate(words):
                field_sum += word * factors[index % 16] * pow(block_factor, index // 16, 1 << 64)
            total += field_sum * pow(field_factor, field_index, 1 << 64)
        sums.append(mix(total & MASK))
    return sums[0] << 64 | sums[1]


def build_columns(rows: Sequence[Row]) -> RecordColumns:
    keys, values, headers = zip(*rows, strict=True)
    return RecordColumns(
        pa.array(values, BINARY),
        pa.array(keys, BINARY),
        pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers], HEADERS),
    )


def to_ints(hashes: RecordHashes) -> list[int]:
    return [int(high) << 64 | int(low) for high, low in zip(hashes.high, hashes.low, strict=True)]


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
    assert to_ints(hash_records(build_columns(rows))) == [reference_hash(*row) for row in rows]


def test_hashes_equal_the_definition_at_each_length() -> None:
    rows: list[Row] = [(None, bytes(range(1, 200))[:size], None) for size in range(200)]
    assert to_ints(hash_records(build_columns(rows))) == [reference_hash(*row) for row in rows]


def test_hash_of_known_record_is_stable() -> None:
    (known,) = to_ints(hash_records(build_columns([(b"o-1", b"12.50", [("trace", b"7"), ("empty", None)])])))
    assert f"{known:032x}" == KNOWN_HASH


def test_hashes_slices_chunks_and_large_types() -> None:
    rows = random_rows(1, 500, 300)
    expected = [reference_hash(*row) for row in rows]
    columns = build_columns(rows)
    assert to_ints(hash_records(columns.slice(123, 200))) == expected[123:323]
    chunked = RecordColumns.concat([columns.slice(0, 7), columns.slice(7)])
    assert to_ints(hash_records(chunked)) == expected
    assert columns.key is not None
    large = RecordColumns(columns.value.cast(pa.large_binary()), columns.key.cast(pa.large_binary()), columns.headers)
    assert to_ints(hash_records(large)) == expected


def test_hashes_maps_like_lists_of_headers() -> None:
    maps = pa.array([[("a", b"1"), ("b", None)], [], None], pa.map_(pa.string(), pa.binary()))
    value = pa.array([b"x", b"y", b"z"], BINARY)
    expected = [reference_hash(None, b"x", [("a", b"1"), ("b", None)])]
    expected += [reference_hash(None, b"y"), reference_hash(None, b"z")]
    assert to_ints(hash_records(RecordColumns(value, headers=maps))) == expected


def test_ignores_bytes_of_null_fields() -> None:
    validity, offsets = pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    value = pa.Array.from_buffers(BINARY, 3, [validity, offsets, pa.py_buffer(b"aabbcc")])
    assert to_ints(hash_records(RecordColumns(value))) == [reference_hash(None, v) for v in (b"aa", None, b"cc")]


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
    assert len(set(to_ints(hash_records(build_columns(rows))))) == len(rows)


def test_digest_is_the_sum_modulo_2_to_128() -> None:
    columns = build_columns(random_rows(2, 1_000, 50))
    hashes = hash_records(columns)
    assert hashes.digest() == sum(to_ints(hashes)) % (1 << 128)
    starts = np.array([0, 1, 600])
    assert [digest_to_int(row) for row in hashes.sum_groups(starts)] == [
        sum(to_ints(hashes)[start:stop]) % (1 << 128) for start, stop in ((0, 1), (1, 600), (600, 1_000))
    ]


def test_no_records_have_the_digest_0() -> None:
    assert hash_records(RecordColumns(pa.array([], BINARY))).digest() == 0
    assert len(hash_records(RecordColumns(pa.array([], BINARY), headers=pa.array([], HEADERS)))) == 0


def test_carries_into_the_upper_half() -> None:
    ones = np.full(3, MASK, np.uint64)
    assert RecordHashes(ones, ones).digest() == 3 * ((1 << 128) - 1) % (1 << 128)


def test_detects_changes_of_one_byte_in_each_of_two_words() -> None:
    """Stream 1 alone would miss one of 256 pairs of changes in the upper bytes of two words."""
    base = bytearray(b"x" * 256)
    variants = {bytes(base)}
    rng = random.Random(3)
    while len(variants) < 20_000:
        variant = base.copy()
        for word in rng.sample(range(32), 2):
            variant[8 * word + 7] = rng.randrange(256)
        variants.add(bytes(variant))
    hashes = to_ints(hash_records(RecordColumns(pa.array(sorted(variants), BINARY))))
    assert len(set(hashes)) == len(variants)
