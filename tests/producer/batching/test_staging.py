"""Staging: rows are ordered by partition without losing their order or whose they are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.batching.row_origins import PieceRows
from spark_kafka_sink.producer.batching.staging import (
    Grouped,
    Run,
    Stage,
    StagedRecord,
    as_run,
    chunks,
    compatible,
    group,
    run_of_records,
)
from spark_kafka_sink.records.columns import RecordColumns


def run_of(values: list[bytes], partitions: list[int], call: object, headers: pa.Array | None = None) -> Run:
    return Run(
        RecordColumns(pa.array(values, pa.binary()), headers=headers),
        np.array([len(value) for value in values], np.int64),
        np.array(partitions, np.int32),
        np.arange(len(values)) * 10,
        call,
    )


def ordered_values(grouped: Grouped) -> list[bytes]:
    values: list[bytes] = grouped.columns.value.to_pylist()
    return values


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=12), min_size=1, max_size=5),
    st.sampled_from([1, 100, 40_000]),
)
def test_grouping_equals_sorting_row_by_row(calls: list[list[int]], spread: int) -> None:
    runs = [
        run_of([b"%d-%d" % (call, row) for row in range(len(rows))], [p * spread for p in rows], call)
        for call, rows in enumerate(calls)
    ]
    slow: dict[int, list[tuple[bytes, int, int]]] = {}
    for call, rows in enumerate(calls):
        for row, partition in enumerate(rows):
            slow.setdefault(partition * spread, []).append((b"%d-%d" % (call, row), call, row * 10))
    grouped = group(runs)
    assert grouped.partitions == sorted(slow)
    values = ordered_values(grouped)
    edges = grouped.starts
    all_parts = [PieceRows(grouped.owners, edges[i], edges[i + 1], 7).parts for i in range(len(slow))]
    for index, partition in enumerate(grouped.partitions):
        start, stop = grouped.starts[index], grouped.starts[index + 1]
        assert values[start:stop] == [value for value, _, _ in slow[partition]]
        assert grouped.sizes[start:stop].tolist() == [len(value) for value, _, _ in slow[partition]]
        parts = all_parts[index]
        told = [(part.call, row) for part in parts for row in part.rows.tolist()]
        assert told == [(call, row) for _, call, row in slow[partition]]
        assert [part.first_index for part in parts] == [
            7 + sum(len(p.rows) for p in parts[:i]) for i in range(len(parts))
        ]


def test_parts_of_batches_that_begin_in_the_middle_of_a_call() -> None:
    grouped = group([run_of([b"a", b"b", b"c"], [0, 0, 0], "x"), run_of([b"d", b"e"], [0, 0], "y")])
    pieces = [PieceRows(grouped.owners, *cut) for cut in ((0, 1, 8), (1, 4, 0), (4, 5, 0))]
    assert [[(p.call, p.rows.tolist(), p.first_index) for p in piece.parts] for piece in pieces] == [
        [("x", [0], 8)],
        [("x", [10, 20], 0), ("y", [0], 2)],
        [("y", [10], 0)],
    ]


def test_single_records_become_one_run_with_all_their_calls() -> None:
    records = [
        StagedRecord(b"k", b"v", [("h", b"1"), ("h", None)], 5, 3, 20, "first"),
        StagedRecord(None, None, None, 6, 1, 10, "second"),
    ]
    run = run_of_records(records)
    assert run.columns.key is not None
    assert run.columns.headers is not None
    assert run.columns.timestamp is not None
    assert run.columns.key.to_pylist() == [b"k", None]
    assert run.columns.value.to_pylist() == [b"v", None]
    assert run.columns.timestamp.to_pylist() == [5, 6]
    assert run.columns.headers.to_pylist()[0] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (run.partitions.tolist(), run.sizes.tolist(), run.call) == ([3, 1], [20, 10], ["first", "second"])


def test_columns_that_nobody_uses_are_left_out() -> None:
    run = run_of_records([StagedRecord(None, b"v", [], 5, 0, 20, "c")])
    assert run.columns.key is None
    assert run.columns.headers is None


def test_a_stage_counts_what_it_holds_and_gives_it_away_once() -> None:
    stage = Stage("t")
    stage.add_record(StagedRecord(None, b"v", None, 1, 2, 30, "a"), 60, now=5)
    stage.add_run(run_of([b"x", b"y"], [0, 9], "b"), size=40, reserved=80, now=8)
    stage.add_record(StagedRecord(None, b"w", None, 1, 2, 30, "c"), 60, now=9)
    assert (stage.row_count, stage.bytes, stage.hit, stage.oldest_ms) == (4, 100, {0, 2, 9}, 5)
    taken = stage.take()
    assert ([as_run(each).call for each in taken.runs], taken.reserved, taken.oldest_ms) == (
        [["a"], "b", ["c"]],
        200,
        5,
    )
    assert (stage.row_count, stage.take().runs) == (0, [])


def test_a_stage_knows_the_partitions_of_all_its_runs() -> None:
    stage = Stage("t")
    for wanted, partitions in (
        ({1, 2}, [1, 2]),
        ({0, 1, 2}, [0, 0]),
        ({0, 1, 2}, [2, 1]),
        ({0, 1, 2, 4}, [4, 2]),
        ({0, 1, 2, 3, 4}, [3, 3]),
    ):
        stage.add_run(run_of([b"x", b"y"], partitions, "a"), size=40, reserved=80, now=1)
        assert stage.hit == wanted
    stage.take()
    stage.add_run(run_of([b"x", b"y"], [1, 1], "a"), size=40, reserved=80, now=2)
    assert stage.hit == {1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 120))
def test_a_call_is_staged_in_chunks_of_bounded_rows_and_bytes(sizes: list[int], rows_max: int, bytes_max: int) -> None:
    found = list(chunks(np.array(sizes, np.int64), rows_max, bytes_max))
    assert [start for start, _, _ in found] == [0, *(stop for _, stop, _ in found[:-1])]
    assert found[-1][1] == len(sizes)
    for start, stop, size in found:
        assert size == sum(sizes[start:stop])
        assert stop - start == 1 or (stop - start <= rows_max and size <= bytes_max)
        # Nothing more would have fitted in.
        assert stop == len(sizes) or stop - start == rows_max or size + sizes[stop] > bytes_max


def test_runs_with_headers_of_different_types_are_grouped_apart_in_order() -> None:
    as_map = pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))
    as_list = pa.array([[{"key": "k", "value": b"v"}]])
    runs = [
        run_of([b"1"], [0], 1),
        run_of([b"2"], [0], 2, as_map),
        run_of([b"3"], [0], 3),
        run_of([b"4"], [0], 4, as_list),
        run_of([b"5"], [0], 5, as_map),
    ]
    together = [[run.call for run in some] for some in compatible(runs)]
    assert together == [[1, 2, 3], [4], [5]]
    for some in compatible(runs):
        assert group(some).columns.num_rows == len(some)


@pytest.mark.parametrize("highest", [255, 256, 65_535, 65_536])
def test_partition_numbers_of_every_width_are_ordered(highest: int) -> None:
    grouped = group([run_of([b"last", b"first"], [highest, 0], "c")])
    assert grouped.partitions == [0, highest]
    assert ordered_values(grouped) == [b"first", b"last"]


@pytest.mark.parametrize("count", [3, 40_000, 70_000])
def test_rows_leave_grouping_in_the_order_of_their_partitions(count: int) -> None:
    values = [b"%05d" % i for i in range(count)]
    grouped = group([run_of(values, [i % 3 % 2 for i in range(count)], "c")])
    assert ordered_values(grouped) == sorted(values, key=lambda value: int(value) % 3 % 2)


def test_rows_that_came_in_the_order_of_their_partitions_are_not_copied() -> None:
    run = run_of([b"a", b"b", b"c"], [0, 0, 1], "c")
    given = run.columns
    assert group([run]).columns is given


@pytest.mark.parametrize("at", [3, 1_000, 2_999])
def test_one_row_out_of_its_partitions_order_is_noticed_wherever_it_is(at: int) -> None:
    partitions = [0] * 1_500 + [1] * 1_500
    partitions[at] = 1 - partitions[at]
    grouped = group([run_of([b"%d" % partition for partition in partitions], partitions, "c")])
    assert ordered_values(grouped) == [b"0"] * partitions.count(0) + [b"1"] * partitions.count(1)
