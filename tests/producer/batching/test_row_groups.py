"""Tests of RowGroup: runs and stored ranges equal those found by scanning the rows."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.batching.row_groups import BatchRows, RowGroup, select_rows
from spark_kafka_sink.producer.calls import StoredRange
from spark_kafka_sink.producer.futures import FUTURE_BYTES, RecordFutures
from tests.producer.batching.named_call import NamedCall, get_name

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.data())
def test_splits_range_into_runs_like_a_scan_of_rows(lengths: list[int], data: st.DataObject) -> None:
    row_calls = [call for call, length in enumerate(lengths) for _ in range(length)]
    start = data.draw(st.integers(0, len(row_calls) - 1))
    stop = data.draw(st.integers(start + 1, len(row_calls)))
    row_group = RowGroup(
        np.arange(len(row_calls)) * 10, [NamedCall(call) for call in range(len(lengths))], np.array(row_calls)
    )
    expected = [(call, list(rows)) for call, rows in groupby(range(start, stop), key=row_calls.__getitem__)]
    runs = [(get_name(call), first, last) for call, first, last in row_group.split_by_call(start, stop)]
    assert runs == [(call, rows[0], rows[-1] + 1) for call, rows in expected]
    actual = BatchRows(row_group, start, stop, 4).split_by_call()
    assert [(get_name(call), rows.tolist(), first) for call, rows, first in actual] == [
        (call, [10 * row for row in rows], rows[0] - start + 4) for call, rows in expected
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_splits_few_or_many_stored_ranges_by_call_like_a_scan_of_rows(
    row_calls: list[int], data: st.DataObject
) -> None:
    calls = [NamedCall(call) for call in range(max(row_calls) + 1)]
    row_group = RowGroup(np.arange(len(row_calls)) * 10, calls, np.array(row_calls, np.int32))
    boundaries = sorted({0, len(row_calls), *data.draw(st.lists(st.integers(0, len(row_calls))))})
    offsets = [data.draw(st.sampled_from([-1, 0, 1_000 * start])) for start in boundaries[:-1]]
    ranges = [
        StoredRange(start, stop, 7 + start, offset, start - 1)
        for (start, stop), offset in zip(pairwise(boundaries), offsets, strict=True)
    ]
    expected: dict[int, list[tuple[int, ...]]] = {}
    for start, stop, partition, offset, time in ranges:
        for call, group in groupby(range(start, stop), key=row_calls.__getitem__):
            rows = list(group)
            run_offset = offset + rows[0] - start if offset >= 0 else -1
            expected.setdefault(call, []).append((rows[0], rows[-1] + 1, partition, run_offset, time))
    for repeats in (1, 20):  # 20 times as many ranges are always split as an array
        actual = {
            get_name(stored.call): (stored.stored_ranges, stored.row_count)
            for stored in row_group.split_stored_ranges(ranges * repeats)
        }
        assert {
            call: [tuple(row) for row in np.asarray(stored_ranges).tolist()]
            for call, (stored_ranges, _) in actual.items()
        } == {call: stored_ranges * repeats for call, stored_ranges in expected.items()}
        assert {call: count for call, (_, count) in actual.items()} == {
            call: row_calls.count(call) * repeats for call in expected
        }


def test_charges_futures_of_single_records_but_not_of_columns() -> None:
    columns, singles = NamedCall("columns"), RecordFutures("t")
    row_group = RowGroup(np.arange(9), [columns, singles], np.array([0, 0, 1, 1, 1, 0, 0, 0, 0]))
    index_bytes = row_group.row_indices.itemsize
    assert row_group.compute_overhead_bytes(0, 2) == 2 * index_bytes
    assert row_group.compute_overhead_bytes(1, 4) == 3 * index_bytes + 2 * FUTURE_BYTES
    assert BatchRows(row_group, 0, 9, 0).overhead_bytes == 9 * index_bytes + 3 * FUTURE_BYTES
    assert RowGroup(np.arange(2), [singles]).compute_overhead_bytes(0, 2) == 2 * (index_bytes + FUTURE_BYTES)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, st.integers(0, 40), st.integers(1, 40))
def test_selected_rows_count_offset_deltas_from_first_record(lengths: list[int], first: int, count: int) -> None:
    rows = sum(lengths)
    row_group = RowGroup(np.arange(rows), [NamedCall("call")])
    boundaries = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    batch_rows = [BatchRows(row_group, boundaries[i], boundaries[i + 1], boundaries[i]) for i in range(len(lengths))]
    actual = [
        (first_delta + i, int(row))
        for part in select_rows(batch_rows, first, first + count)
        for _, row_indices, first_delta in part.split_by_call()
        for i, row in enumerate(row_indices)
    ]
    assert actual == [(row - first, row) for row in range(rows) if first <= row < first + count]
