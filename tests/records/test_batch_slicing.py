"""Splitting of rows into batches within size limits."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.records.batch_slicing import (
    TimestampRange,
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.records.column_strategies import NOW, arrow_columns, mixed_rows, timestamps
from tests.records.reference_encoder import Row, reference_split, reference_varint
from tests.records.slices import BatchSlice, PartitionSlice, encode_slices, partition_slices, to_rows

HEADER_LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@st.composite
def draw_slices(draw: st.DrawFn, rows: int) -> list[PartitionSlice]:
    cuts = sorted([*draw(st.lists(st.integers(0, rows), max_size=6)), 0, rows])
    slices = []
    for start, stop in itertools.pairwise(cuts):
        open_record_count = draw(st.sampled_from([0, 0, 3, 50, 8_170]))
        open_batch_bytes = draw(st.integers(HEADER_BYTES, 300)) if open_record_count else HEADER_BYTES
        base = draw(st.sampled_from([NOW, NOW - 64, NOW + 8_200, 0])) if open_record_count else None
        slices.append(PartitionSlice(start, stop, open_record_count, open_batch_bytes, base))
    return slices


many_sizes = st.one_of(
    st.lists(st.integers(17, 120), max_size=60),
    st.builds(lambda size, count: [size] * count, st.integers(17, 120), st.integers(0, 300)),
    st.builds(lambda sizes, times: sizes * times, st.lists(st.integers(17, 40), max_size=5), st.integers(1, 60)),
)


@given(st.data(), many_sizes, st.integers(1, 400) | st.integers(1_000, 9_000))
@settings(max_examples=300, deadline=None)
def test_splits_batches_like_record_by_record_splitting(
    data: st.DataObject, sizes: list[int], max_batch_bytes: int
) -> None:
    slices = data.draw(draw_slices(len(sizes)))
    times = TimestampRange(*sorted(NOW + data.draw(st.sampled_from([0, 0, 63, -70, 9_000])) for _ in range(2)))
    cuts = to_rows(split_into_batches(np.array(sizes, np.int64), partition_slices(slices), max_batch_bytes, times))
    needed = offset_delta_bytes(cuts) + timestamp_delta_bytes(slices, times)
    # The deltas are counted as wide as these rows could need, which is up to two bytes more than they need.
    assert any(cuts == reference_split(sizes, slices, max_batch_bytes, needed + extra) for extra in range(3))


def offset_delta_bytes(cuts: list[BatchSlice]) -> int:
    return max([len(reference_varint(cut.first_offset_delta + cut.stop - cut.start - 1)) for cut in cuts], default=1)


def timestamp_delta_bytes(slices: list[PartitionSlice], times: TimestampRange) -> int:
    bases = [*times, *(part.base_timestamp for part in slices if part.base_timestamp is not None)]
    return max(len(reference_varint(time - base)) for time in times for base in bases)


@given(st.data(), mixed_rows)
@settings(max_examples=60, deadline=None)
def test_records_fit_their_bounds_and_batches_their_limit(data: st.DataObject, rows: list[Row]) -> None:
    columns = data.draw(arrow_columns(rows))
    sizes = compute_record_size_bounds(columns)
    assert len(sizes) == len(rows)
    max_batch_bytes = data.draw(st.integers(100, 20_000))
    plan = split_into_batches(
        sizes, build_single_partition_slices(len(rows)), max_batch_bytes, find_timestamp_range(columns, NOW)
    )
    for part, piece in zip(to_rows(plan), encode_slices(columns, to_rows(plan), NOW), strict=True):
        bound = int(sizes[part.start : part.stop].sum())
        # The bound exceeds the size by at most 5 bytes for each of the three lengths, and the rest for both deltas.
        assert piece.segment.nbytes <= bound <= piece.segment.nbytes + 26 * piece.record_count
        assert HEADER_BYTES + piece.segment.nbytes <= max_batch_bytes or piece.record_count == 1


@given(st.data(), mixed_rows, timestamps.filter(lambda time: time is not None), st.sampled_from([1, 63, 8192, 1 << 20]))
@settings(max_examples=60, deadline=None)
def test_open_batch_stays_within_its_limit(
    data: st.DataObject, rows: list[Row], base: int, open_record_count: int
) -> None:
    columns = data.draw(arrow_columns(rows))
    open_batch = PartitionSlice(0, len(rows), open_record_count, 100, base)
    max_batch_bytes = data.draw(st.integers(100, 2_000))
    plan = split_into_batches(
        compute_record_size_bounds(columns),
        partition_slices([open_batch]),
        max_batch_bytes,
        find_timestamp_range(columns, NOW),
    )
    for part, piece in zip(to_rows(plan), encode_slices(columns, to_rows(plan), NOW), strict=True):
        before = 100 if part.first_offset_delta else HEADER_BYTES
        assert before + piece.segment.nbytes <= max_batch_bytes or (part.first_offset_delta, piece.record_count) == (
            0,
            1,
        )


def test_open_batch_with_distant_base_timestamp_stays_within_limit() -> None:
    columns = RecordColumns(pa.array([b"v"] * 50), timestamp=pa.array([NOW] * 50, pa.int64()))
    sizes = compute_record_size_bounds(columns)
    max_batch_bytes = 100 + int(sizes.sum())
    for base in (1 << 62, 1 << 50, -1, NOW):
        open_batch = PartitionSlice(0, 50, 1 << 26, 100, base)
        plan = split_into_batches(
            sizes, partition_slices([open_batch]), max_batch_bytes, find_timestamp_range(columns, NOW)
        )
        first, *_ = encode_records(columns, plan, NOW)
        assert plan.first_offset_deltas[0]
        assert 100 + first.sizes[0] <= max_batch_bytes


@pytest.mark.parametrize("sizes", [[1], [100], [5, 6, 7], [0, 20], [70] * 50 + [300]], ids=len)
@pytest.mark.parametrize("max_batch_bytes", [700, 16_384, 150_000])
@pytest.mark.parametrize(
    ("open_record_count", "base"),
    [(0, None), (1, NOW), (63, NOW - 63), (64, NOW - 65), (8_150, NOW + 20_000), (8_192, 0)],
)
def test_batches_are_full_to_within_one_record(
    sizes: list[int], max_batch_bytes: int, open_record_count: int, base: int | None
) -> None:
    values = [b"v" * sizes[i % len(sizes)] for i in range(9_000)]
    columns = RecordColumns(pa.array(values), pa.array([b"k" * 12] * len(values)))
    open_batch = PartitionSlice(0, len(values), open_record_count, 400 if open_record_count else HEADER_BYTES, base)
    times = find_timestamp_range(columns, NOW)
    plan = split_into_batches(
        compute_record_size_bounds(columns), partition_slices([open_batch]), max_batch_bytes, times
    )
    largest = max(sizes) + 12 + 20
    delta_bytes = 1 + timestamp_delta_bytes([open_batch], times)
    pieces = encode_slices(columns, to_rows(plan), NOW)
    last = len(plan.starts) - 1
    for number, (part, piece) in enumerate(zip(to_rows(plan), pieces, strict=True)):
        used = (400 if part.first_offset_delta else HEADER_BYTES) + piece.segment.nbytes
        assert used <= max_batch_bytes
        assert used > max_batch_bytes - largest - delta_bytes * piece.record_count or number == last


@pytest.mark.parametrize("times", [(0, -50), (0, -64, 64), (0, 9_000), (-1 - NOW, 0), ((1 << 62) - NOW, 0)], ids=str)
@pytest.mark.parametrize("base", [NOW, NOW - 65, 1 << 50])
def test_alternating_timestamps_stay_within_limit(times: tuple[int, ...], base: int) -> None:
    rows = 3_000
    stamps = [NOW + times[i % len(times)] for i in range(rows)]
    stamps[7:9] = [None, None]  # type: ignore[list-item]
    columns = RecordColumns(pa.array([b"v" * 40] * rows), timestamp=pa.array(stamps, pa.int64()))
    slices = [PartitionSlice(0, 1_000, 70, 500, base), PartitionSlice(1_000, rows)]
    plan = split_into_batches(
        compute_record_size_bounds(columns), partition_slices(slices), 2_000, find_timestamp_range(columns, NOW)
    )
    for part, piece in zip(to_rows(plan), encode_slices(columns, to_rows(plan), NOW), strict=True):
        used = (500 if part.first_offset_delta else HEADER_BYTES) + piece.segment.nbytes
        assert used <= 2_000
        if part.stop not in (1_000, rows) and max(times) < 1 << 40:
            delta_bytes = 1 + timestamp_delta_bytes(slices, find_timestamp_range(columns, NOW))
            assert used > 2_000 - 70 - delta_bytes * piece.record_count


def test_record_above_limit_gets_its_own_batch() -> None:
    sizes = np.array([10, 500, 10], np.int64)
    open_batch = PartitionSlice(0, 3, open_record_count=2, open_batch_bytes=80, base_timestamp=NOW)
    plan = split_into_batches(sizes, partition_slices([open_batch]), 100, TimestampRange(NOW, NOW))
    assert [(p.start, p.stop, p.first_offset_delta) for p in to_rows(plan)] == [(0, 1, 2), (1, 2, 0), (2, 3, 0)]
