"""The encoder, compared byte for byte with the reference encoder."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records import encoder, joined_rows
from spark_kafka_sink.records.batch_slicing import TimestampRange, find_timestamp_range, split_into_batches
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.records.column_strategies import NOW, arrow_columns, equal_size_rows, mixed_rows
from tests.records.reference_encoder import Row, reference_encode
from tests.records.slices import BatchSlice, EncodedSlice, PartitionSlice, encode_slices, partition_slices, to_rows


def single_partition_slices(rows: int, first_offset_delta: int = 0, base: int | None = None) -> list[BatchSlice]:
    return [BatchSlice(0, 0, rows, first_offset_delta, base)]


def assert_equal(pieces: Sequence[EncodedSlice], rows: Sequence[Row], plan: Sequence[BatchSlice]) -> None:
    expected = reference_encode(rows, plan, NOW)
    assert len(pieces) == len(expected)
    for piece, slow in zip(pieces, expected, strict=True):
        assert bytes(piece.segment) == slow.segment
        assert piece.record_count == slow.record_count
        assert piece.base_timestamp == slow.base_timestamp
        assert piece.max_timestamp == slow.max_timestamp


@st.composite
def plans(draw: st.DrawFn, rows: int) -> list[BatchSlice]:
    """Draw a plan that splits the rows into pieces, some of them appended to open batches."""
    cuts = sorted(draw(st.sets(st.integers(0, rows), max_size=5)) | {0, rows})
    plan = []
    for index, (start, stop) in enumerate(itertools.pairwise(cuts)):
        delta = draw(st.sampled_from([0, 0, 1, 62, 8190, 1 << 20]))
        base = draw(st.integers(NOW - 100, NOW + 100)) if delta else None
        plan.append(BatchSlice(index, start, stop, delta, base))
    return plan


@given(st.data(), mixed_rows | equal_size_rows())
@settings(max_examples=150, deadline=None)
def test_every_shape_equals_the_reference_encoder(data: st.DataObject, rows: list[Row]) -> None:
    columns = data.draw(arrow_columns(rows))
    plan = data.draw(plans(len(rows)))
    assert_equal(encode_slices(columns, plan, NOW), rows, plan)


@given(st.data(), mixed_rows | equal_size_rows())
@settings(max_examples=100, deadline=None)
def test_encodes_rows_in_given_order(data: st.DataObject, rows: list[Row]) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    as_they_came = [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]
    columns = data.draw(arrow_columns(as_they_came))
    plan = data.draw(plans(len(rows)))
    assert_equal(encode_slices(columns, plan, NOW, np.array(order, np.int32)), rows, plan)


@given(st.data(), mixed_rows)
@settings(max_examples=40, deadline=None)
def test_small_chunks_give_the_same_bytes(data: st.DataObject, rows: list[Row]) -> None:
    columns = data.draw(arrow_columns(rows))
    plan = data.draw(plans(len(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "MAX_CHUNK_ROWS", 3)
        assert_equal(encode_slices(columns, plan, NOW), rows, plan)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 128, 8191, 8192, 8193])
@pytest.mark.parametrize("value_sizes", [(5, 5), (4, 6)], ids=["even", "uneven"])
def test_encodes_record_counts_around_varint_limits(count: int, value_sizes: tuple[int, int]) -> None:
    rows = [Row(b"v" * value_sizes[i % 2], b"%07d" % i) for i in range(count)]
    columns = RecordColumns(pa.array([r.value for r in rows]), pa.array([r.key for r in rows]))
    assert_equal(encode_slices(columns, single_partition_slices(count), NOW), rows, single_partition_slices(count))


@pytest.mark.parametrize("border", [63, 8191, (1 << 20) - 1, (1 << 27) - 1])
def test_encodes_appended_rows_across_varint_limits_of_offsets(border: int) -> None:
    rows = [Row(b"v" * (i % 3)) for i in range(8)]
    plan = single_partition_slices(8, border - 3, NOW)
    assert_equal(encode_slices(RecordColumns(pa.array([r.value for r in rows])), plan, NOW), rows, plan)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1 << 20])
@pytest.mark.parametrize("uneven", [False, True])
def test_encodes_values_from_empty_to_one_megabyte(size: int, uneven: bool) -> None:
    rows = [Row(b"x" * size, b"k"), Row(b"y" * size, b"q"), Row(b"z" * (size + uneven), b"k")]
    columns = RecordColumns(pa.array([r.value for r in rows]), pa.array([r.key for r in rows]))
    assert_equal(encode_slices(columns, single_partition_slices(3), NOW), rows, single_partition_slices(3))


@pytest.mark.parametrize("step", [-1, -1000, 1 << 40, -(1 << 30)])
@pytest.mark.parametrize("value", ["even", None])
def test_encodes_decreasing_and_distant_timestamps(step: int, value: str | None) -> None:
    rows = [Row((value or "x" * i).encode(), None, None, (1 << 45) + i * step) for i in range(100)]
    columns = RecordColumns(pa.array([r.value for r in rows]), timestamp=pa.array([r.timestamp for r in rows]))
    assert_equal(encode_slices(columns, single_partition_slices(100), NOW), rows, single_partition_slices(100))


def test_encodes_timestamp_deltas_of_ten_bytes() -> None:
    times = [(1 << 63) - 1, 0, -1, 1 << 55, (1 << 55) - 1, (1 << 62) - 1, 1 << 48]
    rows = [Row(b"v", b"k", None, time) for time in times]
    columns = RecordColumns(
        pa.array([r.value for r in rows]), pa.array([r.key for r in rows]), timestamp=pa.array(times)
    )
    for base in (None, 0, NOW):
        plan = single_partition_slices(len(rows), 3 if base is not None else 0, base)
        assert_equal(encode_slices(columns, plan, NOW), rows, plan)


def test_encodes_record_with_many_headers() -> None:
    headers = tuple((f"h{i}", None if i % 3 == 0 else b"x" * (i % 70)) for i in range(300))
    rows = [Row(b"a"), Row(b"b", None, headers), Row(None, b"k", ()), Row(b"d", None, headers[:1])]
    kind = pa.map_(pa.string(), pa.binary())
    columns = RecordColumns(
        pa.array([r.value for r in rows]),
        pa.array([r.key for r in rows], pa.binary()),
        pa.array([r.headers for r in rows], kind),
    )
    assert_equal(encode_slices(columns, single_partition_slices(4), NOW), rows, single_partition_slices(4))


@pytest.mark.parametrize("longest", [0, 1, 62, 63, 64, 128, 8192])
@pytest.mark.parametrize("spread", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_encodes_rows_with_equal_numbers_of_headers(longest: int, spread: int, count: int) -> None:
    """The encoder has separate paths for values of equal size, short values, longer values and nulls."""

    def value(row: int, place: int) -> bytes | None:
        length = longest - (row + place) % (spread + 1)
        return None if length < 0 else b"x" * length

    rows = [
        Row(b"v" * (i % 4), b"k", tuple((f"{i % 9}name{place}", value(i, place)) for place in range(count)))
        for i in range(90)
    ]
    kind = pa.map_(pa.string(), pa.binary())
    headers = pa.array([r.headers for r in rows], kind)
    for values in ([r.value for r in rows], [b"even"] * 90):
        written = [Row(v, r.key, r.headers) for v, r in zip(values, rows, strict=True)]
        columns = RecordColumns(pa.array(values), pa.array([b"k"] * 90), headers)
        assert_equal(encode_slices(columns, single_partition_slices(90), NOW), written, single_partition_slices(90))


def test_omits_bytes_under_nulls() -> None:
    held = pa.array([b"secret", b"seen", b"secret"])
    masked = pa.BinaryArray.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x02"), *held.buffers()[1:]])
    rows = [Row(None, b"k"), Row(b"seen", b"k"), Row(None, b"k")]
    columns = RecordColumns(masked, pa.array([b"k"] * 3))
    assert_equal(encode_slices(columns, single_partition_slices(3), NOW), rows, single_partition_slices(3))


def test_omits_headers_under_null_list() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    held = pa.array([[{"key": "a", "value": b"1"}], [{"key": "b", "value": b"2"}]], kind)
    masked = pa.ListArray.from_arrays(held.offsets, held.values, type=kind, mask=pa.array([True, False]))
    rows = [Row(b"v"), Row(b"v", None, (("b", b"2"),))]
    assert_equal(
        encode_slices(RecordColumns(pa.array([b"v", b"v"]), None, masked), single_partition_slices(2), NOW),
        rows,
        single_partition_slices(2),
    )


def test_null_column_encodes_tombstones() -> None:
    rows = [Row(None, b"k")] * 3
    columns = RecordColumns(pa.nulls(3), pa.array([b"k"] * 3), pa.nulls(3), pa.nulls(3))
    assert_equal(encode_slices(columns, single_partition_slices(3), NOW), rows, single_partition_slices(3))


def test_encodes_many_partitions_of_a_chunk_together() -> None:
    rows = [Row(b"v" * (i % 5), b"%d" % i, None, NOW + i % 7) for i in range(10_000)]
    columns = RecordColumns(
        pa.array([r.value for r in rows]),
        pa.array([r.key for r in rows]),
        timestamp=pa.array([r.timestamp for r in rows]),
    )
    slices = [PartitionSlice(i, i + 10) for i in range(0, 10_000, 10)]
    cuts = split_into_batches(
        compute_record_size_bounds(columns), partition_slices(slices), 16_384, find_timestamp_range(columns, NOW)
    )
    plan = to_rows(cuts)
    pieces = encode_slices(columns, plan, NOW)
    assert len(pieces) == 1_000
    assert len({id(piece.segment.obj) for piece in pieces}) == 1
    assert_equal(pieces, rows, plan)


def test_encodes_large_records_a_few_megabytes_at_a_time() -> None:
    rows = [Row(bytes([65 + i]) * (1 << 20), b"%d" % i) for i in range(10)]
    columns = RecordColumns(pa.array([r.value for r in rows]), pa.array([r.key for r in rows]))
    plan = [BatchSlice(i, i, i + 1) for i in range(10)]
    pieces = encode_slices(columns, plan, NOW)
    buffers = {id(piece.segment.obj): memoryview(piece.segment.obj).nbytes for piece in pieces}
    assert len(buffers) > 2
    assert max(buffers.values()) <= encoder.TARGET_BUFFER_BYTES
    assert_equal(pieces, rows, plan)


@pytest.mark.parametrize("value", [b"same", None])
def test_segments_keep_their_memory_alive(value: bytes | None) -> None:
    rows = [Row(value or b"x" * (i % 9), b"key") for i in range(500)]
    expected = reference_encode(rows, single_partition_slices(500), NOW)[0].segment
    columns = RecordColumns(pa.array([r.value for r in rows]), pa.array([r.key for r in rows]))
    segments = [piece.segment for piece in encode_slices(columns, single_partition_slices(500), NOW)]
    del columns
    gc.collect()
    np.full(len(expected) * 2, 0xAA, np.uint8)
    assert b"".join(segments) == expected


def test_encodes_nothing_for_no_rows() -> None:
    assert encode_slices(RecordColumns(pa.array([], pa.binary())), [], NOW) == []
    assert not split_into_batches(np.zeros(0, np.int64), partition_slices([]), 100, TimestampRange(NOW, NOW)).starts


def test_rejects_batch_above_two_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(b"x" * 400), Row(b"y" * 400), Row(b"z" * 100)]
    columns = RecordColumns(pa.array([row.value for row in rows]))
    (expected,) = reference_encode(rows, single_partition_slices(3), NOW)
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", len(expected.segment))
    assert_equal(encode_slices(columns, single_partition_slices(3), NOW), rows, single_partition_slices(3))
    monkeypatch.setattr(joined_rows, "MAX_JOINED_BYTES", len(expected.segment) - 1)
    with pytest.raises(RecordTooLargeError, match="2 GiB"):
        encode_slices(columns, single_partition_slices(3), NOW)
