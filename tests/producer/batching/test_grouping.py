"""Grouping: rows are sorted by partition, and keep their order within a partition and the reference to their calls."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.producer.batching import grouping
from spark_kafka_sink.producer.batching.grouping import (
    GroupedRows,
    convert_and_assign_records,
    group_by_partition,
    split_into_row_groups,
)
from spark_kafka_sink.producer.batching.row_groups import BatchRows
from spark_kafka_sink.producer.batching.staging import SingleRecord, StagedRecords
from spark_kafka_sink.producer.partitioner import UNSPECIFIED_PARTITION
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.producer.batching.assigned_rows import assigned_rows
from tests.producer.batching.named_call import get_name, named


def staged_rows(values: list[bytes], partitions: list[int], call: object, headers: pa.Array | None = None) -> Rows:
    columns = RecordColumns(pa.array(values, pa.binary()), headers=headers)
    sizes, row_indices = [len(value) for value in values], range(0, 10 * len(values), 10)
    return assigned_rows(columns, partitions, call, sizes=sizes, row_indices=row_indices)


def list_grouped_values(grouped: GroupedRows) -> list[bytes]:
    values = grouped.columns.value.to_pylist()
    return values if grouped.row_order is None else [values[row_index] for row_index in grouped.row_order]


def convert(*records: SingleRecord) -> Rows:
    """Convert single records to rows. The records get the names 0, 1, 2, ..., and must request a partition."""
    staged_records = StagedRecords("t", ClusterSnapshot())
    for name, record in enumerate(records):
        staged_records.add(record, named(name))
    return convert_and_assign_records(staged_records, assign_requested_partitions)


def assign_requested_partitions(rows: Rows, _: object) -> NDArray[np.int32]:
    assert rows.requested_partitions is not None
    return rows.requested_partitions


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=5),
    st.sampled_from([1, 100, 40_000]),
)
def test_grouping_equals_stable_sort_of_rows(calls: list[list[int]], spread: int) -> None:
    entries = [
        staged_rows([b"%d-%d" % (call, row) for row in range(len(rows))], [p * spread for p in rows], call)
        for call, rows in enumerate(calls)
    ]
    expected: dict[int, list[tuple[bytes, int, int]]] = {}
    for call, rows in enumerate(calls):
        for row, partition in enumerate(rows):
            expected.setdefault(partition * spread, []).append((b"%d-%d" % (call, row), call, row * 10))
    grouped = group_by_partition(entries)
    assert grouped.partitions == sorted(expected)
    values = list_grouped_values(grouped)
    for index, partition in enumerate(grouped.partitions):
        start, stop = grouped.partition_starts[index], grouped.partition_starts[index + 1]
        assert values[start:stop] == [value for value, _, _ in expected[partition]]
        assert grouped.sizes[start:stop].tolist() == [len(value) for value, _, _ in expected[partition]]
        runs = BatchRows(grouped.row_group, start, stop, 7).split_by_call()
        found = [(get_name(call), row) for call, rows, _ in runs for row in rows.tolist()]
        assert found == [(call, row) for _, call, row in expected[partition]]
        lengths = [len(rows) for _, rows, _ in runs]
        assert [first for _, _, first in runs] == [7 + sum(lengths[:i]) for i in range(len(lengths))]


def test_splits_batches_that_begin_within_a_call_into_runs() -> None:
    grouped = group_by_partition(
        [staged_rows([b"a", b"b", b"c"], [0, 0, 0], "x"), staged_rows([b"d", b"e"], [0, 0], "y")]
    )
    parts = [BatchRows(grouped.row_group, *cut) for cut in ((0, 1, 8), (1, 4, 0), (4, 5, 0))]
    assert [
        [(get_name(call), rows.tolist(), first) for call, rows, first in part.split_by_call()] for part in parts
    ] == [
        [("x", [0], 8)],
        [("x", [10, 20], 0), ("y", [0], 2)],
        [("y", [10], 0)],
    ]


def test_converts_single_records_to_columns_with_their_futures() -> None:
    rows = convert((b"v", b"k", [("h", b"1"), ("h", None)], 3, 5), (None, None, None, 1, 6))
    assert rows.columns.key is not None
    assert rows.columns.headers is not None
    assert rows.columns.timestamp is not None
    assert rows.columns.key.to_pylist() == [b"k", None]
    assert rows.columns.value.to_pylist() == [b"v", None]
    assert rows.columns.timestamp.to_pylist() == [5, 6]
    assert rows.columns.headers.to_pylist()[0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (rows.partitions.tolist(), rows.row_counts.tolist()) == ([3, 1], [0, 1, 0, 1])
    assert rows.sizes.tolist() == compute_record_size_bounds(rows.columns).tolist()
    assert get_name(rows.call) == [0, 1]


def test_omits_columns_that_no_record_uses() -> None:
    rows = convert((b"v", None, [], 0, 5))
    assert rows.columns.key is None
    assert rows.columns.headers is None


def test_assigns_single_records_together_by_requested_partition_and_latest_snapshot() -> None:
    assign_calls: list[tuple[object, ...]] = []

    def assign_partitions(rows: Rows, snapshot: ClusterSnapshot) -> NDArray[np.int32]:
        sizes_fit = rows.sizes.tolist() == compute_record_size_bounds(rows.columns).tolist()
        assign_calls.append((len(rows), sizes_fit, rows.requested_partitions, snapshot))
        return np.array([4, 2, 4], np.int32)

    staged_records, unassigned_records = (StagedRecords("t", ClusterSnapshot()) for _ in range(2))
    staged_records.snapshot = latest = ClusterSnapshot()
    for partition in (None, 2, None):
        staged_records.add((b"v", None, None, partition, 1), ())
        unassigned_records.add((b"v", None, None, None, 1), ())
    assert convert_and_assign_records(staged_records, assign_partitions).partitions.tolist() == [4, 2, 4]
    convert_and_assign_records(unassigned_records, assign_partitions)
    (count, sizes_fit, names, snapshot), (*_, no_names, _) = assign_calls
    assert (count, sizes_fit, np.asarray(names).tolist()) == (
        3,
        True,
        [UNSPECIFIED_PARTITION, 2, UNSPECIFIED_PARTITION],
    )
    assert snapshot is latest
    assert no_names is None


def test_groups_rows_with_different_header_types_separately_in_order() -> None:
    as_map = pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))
    as_list = pa.array([[{"key": "k", "value": b"v"}]])
    entries = [
        staged_rows([b"1"], [0], 1),
        staged_rows([b"2"], [0], 2, as_map),
        staged_rows([b"3"], [0], 3),
        staged_rows([b"4"], [0], 4, as_list),
        staged_rows([b"5"], [0], 5, as_map),
    ]
    row_groups = list(split_into_row_groups(entries))
    assert [[get_name(rows.call) for rows in group] for group in row_groups] == [[1, 2, 3], [4], [5]]
    for group in row_groups:
        assert group_by_partition(group).columns.num_rows == len(group)


def test_groups_rows_separately_when_they_exceed_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUPED_BYTES", 10)
    entries = [staged_rows([b"x" * size], [0], call) for call, size in enumerate((4, 6, 1, 30, 1, 9, 1))]
    assert [[get_name(rows.call) for rows in group] for group in split_into_row_groups(entries)] == [
        [0, 1],
        [2],
        [3],
        [4, 5],
        [6],
    ]


@pytest.mark.parametrize("highest", [255, 256, 65_535, 65_536])
def test_sorts_partition_numbers_of_every_width(highest: int) -> None:
    grouped = group_by_partition([staged_rows([b"last", b"first"], [highest, 0], "c")])
    assert grouped.partitions == [0, highest]
    assert list_grouped_values(grouped) == [b"first", b"last"]


def test_does_not_copy_rows_that_are_already_sorted() -> None:
    rows = staged_rows([b"1", b"2", b"3"], [0, 0, 4], "c")
    values_address = rows.columns.value.buffers()[2].address
    assert group_by_partition([rows]).columns.to_contiguous().value.buffers()[2].address == values_address


@pytest.mark.parametrize("position", [3, 1_000, 2_999])
def test_detects_single_unsorted_row_at_any_position(position: int) -> None:
    partitions = [0] * 1_500 + [1] * 1_500
    partitions[position] = 1 - partitions[position]
    grouped = group_by_partition([staged_rows([b"%d" % partition for partition in partitions], partitions, "c")])
    assert list_grouped_values(grouped) == [b"0"] * partitions.count(0) + [b"1"] * partitions.count(1)


def test_grouping_time_depends_on_rows_not_on_calls_or_partitions() -> None:
    calls = [staged_rows([b"row"], [number % 1_000], number) for number in range(2_000)]
    group_by_partition([staged_rows([b"row"], [0], "first")])  # so that one-time allocations are not counted
    tracemalloc.start()
    try:
        group_by_partition(calls)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000 * len(calls)
