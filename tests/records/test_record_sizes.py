"""Size bounds of records, and rows that cannot become records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.records import byte_column, record_sizes
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds, find_invalid_rows
from tests.records.column_strategies import NOW
from tests.records.slices import BatchSlice, encode_slices

HEADER_LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_size_bounds_do_not_depend_on_equal_sizes(kind: pa.DataType) -> None:
    even, odd = pa.array([b"x" * 70] * 5, kind), pa.array([b"x" * 70, b"", b"x" * 70, None, b"x"], kind)
    nulls, empty = pa.nulls(5, kind), pa.array([b""] * 5, kind)
    fixed = 1 + 4 + 6 + 1 + 2  # attributes, both deltas, the count of headers, and the record's own length
    for value in (even, odd, nulls, empty):
        for key in (None, even, odd, nulls, empty):
            expected = np.full(5, fixed, np.int64)
            for column in (value, key):
                lengths = [len(value_bytes or b"") for value_bytes in column.to_pylist()] if column is not None else [0]
                expected += np.array(lengths) + (2 if max(lengths) >= 64 else 1)
            expected -= 1 if expected.max() - 2 < 64 else 0
            assert compute_record_size_bounds(RecordColumns(value, key)).tolist() == expected.tolist()
            assert compute_record_size_bounds(RecordColumns(value, key).slice(1, 3)).tolist()[0] <= expected[1]


def test_largest_common_timestamp_fits_its_bound() -> None:
    for time in ((1 << 41) - 2, (1 << 41) - 1, 1 << 41):
        columns = RecordColumns(pa.array([b"v"] * 50), timestamp=pa.array([-1] + [time] * 49, pa.int64()))
        plan = [BatchSlice(0, 0, 50, 1 << 26)]
        assert encode_slices(columns, plan, NOW)[0].segment.nbytes <= compute_record_size_bounds(columns).sum()


def test_valid_rows_have_no_error() -> None:
    columns = RecordColumns(pa.array([b"v", None]), timestamp=pa.array([-1, None], pa.int64()))
    assert find_invalid_rows(columns) == {}


def test_finds_rows_with_timestamps_before_1970() -> None:
    counted = RecordColumns(pa.array([b"v"] * 4), timestamp=pa.array([5, -2, None, -(1 << 63)], pa.int64()))
    times = RecordColumns(pa.array([b"v"] * 4), timestamp=pa.array([5, -1, None, -1_000_000], pa.timestamp("us")))
    for columns in (counted, times):
        ((reason, rows),) = find_invalid_rows(columns).items()
        assert rows.tolist() == [1, 3]
        assert "1970" in reason


def test_finds_rows_with_headers_without_key() -> None:
    good, bad = {"key": "a", "value": None}, {"key": None, "value": b"1"}
    rows = pa.array([[good], [good, bad], None, [], [None], [bad, bad]], HEADER_LIST)
    for headers in (rows, pa.chunked_array([rows.slice(0, 3), rows.slice(3)])):
        ((reason, invalid),) = find_invalid_rows(RecordColumns(pa.array([b"v"] * 6), None, headers)).items()
        assert invalid.tolist() == [1, 4, 5]
        assert "key" in reason


def test_finds_row_above_two_gibibytes_in_large_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_column, "MAX_OFFSET", 1_000)
    monkeypatch.setattr(record_sizes, "MAX_JOINED_BYTES", 1_000)
    columns = RecordColumns(pa.array([b"x" * 300] * 9 + [b"y" * 1_001, None], pa.large_binary()))
    assert [size // 100 for size in compute_record_size_bounds(columns).tolist()] == [3] * 9 + [10, 0]
    ((reason, rows),) = find_invalid_rows(columns).items()
    assert rows.tolist() == [9]
    assert "2 GiB" in reason


def test_distinguishes_overflow_from_timestamps_before_1970() -> None:
    times = pa.array([0, -1, 1 << 62, None], pa.int64()).cast(pa.timestamp("s"))
    invalid_rows = find_invalid_rows(RecordColumns(pa.nulls(4, pa.binary()), timestamp=times))
    assert {reason: rows.tolist() for reason, rows in invalid_rows.items()} == {
        "the timestamp is before 1970": [1],
        "the timestamp is after the year 292,278,994": [2],
    }


def test_size_bounds_of_repeated_chunk_need_no_copy() -> None:
    chunk = pa.array([b"v" * (1 << 20)])
    before = pa.total_allocated_bytes()
    bounds = compute_record_size_bounds(RecordColumns(pa.chunked_array([chunk] * 2_100)))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert (bounds > 1 << 20).all()
    assert len(bounds) == 2_100
