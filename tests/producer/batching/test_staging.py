"""Staging: how much waits for a topic, and when it is enough."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_kafka_sink.producer.batching.staging import Stage, StagedRecord, StagedRows, chunks
from spark_kafka_sink.records.columns import RecordColumns

KIB, MIB = 1 << 10, 1 << 20


def rows_of(sizes: list[int], partitions: list[int]) -> StagedRows:
    return StagedRows(
        RecordColumns(pa.array([b""] * len(sizes), pa.binary())),
        np.array(sizes, np.int64),
        np.array(partitions, np.int32),
        np.bincount(partitions),
        np.arange(len(sizes)),
        "call",
    )


def record(partition: int, size: int) -> StagedRecord:
    return StagedRecord(partition, None, b"v", None, 1, size, "future")


def test_a_stage_counts_what_it_holds() -> None:
    stage = Stage("t", 5)
    stage.add(record(2, 1_030), 2_000)
    stage.add(rows_of([208, 108, 108], [0, 9, 9]), 900)
    stage.add(record(2, 1_030), 2_000)
    assert (stage.bytes, stage.fullest_bytes, stage.oldest_ms) == (2 * 1_030 + 424, 2_000, 5)
    assert [reserved for _, reserved in stage.entries] == [2_000, 900, 2_000]


def test_an_entry_that_is_taken_back_is_not_there_any_more() -> None:
    stage = Stage("t", 5)
    first, second = record(0, 100), rows_of([100], [0])
    stage.add(first, 10)
    stage.add(second, 20)
    assert stage.holds(second)
    stage.remove(second)
    assert not stage.holds(second)
    assert stage.entries == [(first, 10)]


def test_a_stage_is_full_when_one_partition_has_a_batch_of_rows_however_thin_the_others_are() -> None:
    stage = Stage("t", 0)
    stage.add(rows_of([100] * 101, list(range(101))), 1)
    assert not stage.is_full(16 * KIB, 32 * MIB)
    stage.add(rows_of([1_000] * 17, [7] * 17), 1)
    assert stage.is_full(16 * KIB, 32 * MIB)


@pytest.mark.parametrize(
    ("batch_size", "memory", "partitions", "enough"),
    [
        pytest.param(MIB, 32 * MIB, 12, 3 * MIB, id="what the processor's cache holds"),
        pytest.param(MIB, 64 * MIB, 100, 100 * 64 * KIB, id="enough for each partition"),
        pytest.param(MIB, 8 * MIB, 1_000, 8 * MIB, id="its part of the memory"),
    ],
)
def test_a_stage_is_full_with(batch_size: int, memory: int, partitions: int, enough: int) -> None:
    stage = Stage("t", 0)
    stage.add(rows_of([100] * partitions, list(range(partitions))), 1)
    stage.bytes = enough - 1
    assert not stage.is_full(batch_size, memory)
    stage.bytes = enough
    assert stage.is_full(batch_size, memory)


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
