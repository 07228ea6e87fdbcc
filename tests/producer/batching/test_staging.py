"""Staging: stage sizes, and the conditions under which rows become batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.batching import chunks, grouping, staging
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.chunks import split_into_chunks
from spark_kafka_sink.producer.batching.encoded_buffer import EncodedBuffer
from spark_kafka_sink.producer.batching.grouping import group_by_partition
from spark_kafka_sink.producer.batching.row_groups import RowGroup
from spark_kafka_sink.producer.batching.staging import BatchAppends, Stage, StagedRecords
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.futures import FUTURE_BYTES, SendFuture
from spark_kafka_sink.producer.record import MAX_RECORD_OVERHEAD_BYTES, compute_max_headers_bytes
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.batch_slicing import find_timestamp_range, split_into_batches
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import EncodedSlices, encode_records
from spark_kafka_sink.records.header import HEADER_BYTES
from tests.producer.batching.assigned_rows import assigned_rows
from tests.producer.batching.named_call import NamedCall

KIB, MIB = 1 << 10, 1 << 20


def build_rows(sizes: list[int], partitions: list[int]) -> Rows:
    return assigned_rows(RecordColumns(pa.array([b""] * len(sizes), pa.binary())), partitions, "call", sizes=sizes)


def add_record(stage: Stage, partition: int, size: int, value: bytes = b"v", reserved: int = 1) -> SendFuture:
    record = (value, bytes(8), None, partition, 1_700_000_000_000)
    return stage.add_record(record, size, reserved, ClusterSnapshot(), ())


def convert_records(staged: StagedRecords) -> Rows:
    """Convert single records, all of which request a partition."""
    return grouping.convert_and_assign_records(staged, lambda rows, snapshot: np.array(rows.requested_partitions))


def test_stage_counts_its_rows_bytes_and_reservations() -> None:
    stage = Stage("t", 5, 32 * MIB, 32 * MIB)
    add_record(stage, 2, 1_036, reserved=1_000)
    add_record(stage, 2, 1_036, reserved=1_000)
    stage.add(build_rows([208, 108, 108], [0, 9, 9]), 900)
    add_record(stage, 2, 1_036, reserved=2_000)
    assert (stage.assigned_bytes, stage.unassigned_bytes) == (424, 3 * 1_036)
    assert (stage.largest_partition_bytes, stage.oldest_row_arrival_ms) == (200, 5)
    assert (len(stage.entries), stage.reserved_bytes) == (3, 4_900)


def test_assigned_records_become_rows_in_place_and_are_counted() -> None:
    stage = Stage("t", 5, 32 * MIB, 32 * MIB)
    first = [add_record(stage, 2, 1_036, bytes(900)) for _ in range(2)]
    between = build_rows([108], [9])
    stage.add(between, 900)
    last = add_record(stage, 3, 1_036, bytes(900))
    for _ in range(2):
        stage.assign_partitions(convert_records)
    assert [rows.partitions.tolist() for rows in stage.assigned_entries] == [[2, 2], [9], [3]]
    assert stage.entries[1] is between
    for rows, futures in ((stage.assigned_entries[0], first), (stage.assigned_entries[2], [last])):
        assert not any(future.done() for future in futures)
        rows.call.fail_rows(FailedRows(rows.row_indices, DeliveryError("no"), "t"))
        assert all(future.done() for future in futures)
    assert (stage.assigned_bytes, stage.unassigned_bytes) == (
        sum(int(rows.sizes.sum()) for rows in stage.assigned_entries),
        0,
    )
    assert 1_800 < stage.largest_partition_bytes < 1_900


@pytest.mark.parametrize("length", [0, 10, 100, 1_000])
def test_full_stage_of_single_records_fills_a_batch(length: int) -> None:
    stage, batch_bytes = Stage("t", 5, 32 * MIB, 32 * MIB), 16 * KIB
    while not stage.is_full(batch_bytes - HEADER_BYTES):
        add_record(stage, 0, MAX_RECORD_OVERHEAD_BYTES + 8 + length + compute_max_headers_bytes(None), bytes(length))
        if stage.is_full(batch_bytes - HEADER_BYTES):
            stage.assign_partitions(convert_records)
    grouped = group_by_partition(stage.assigned_entries)
    cuts = split_into_batches(
        grouped.sizes, grouped.build_partition_slices([None]), batch_bytes, find_timestamp_range(grouped.columns, 0)
    )
    first, *_ = encode_records(grouped.columns, cuts, 0, grouped.row_order)
    assert 0.94 * batch_bytes < HEADER_BYTES + first.sizes[0] <= batch_bytes


def test_assigns_single_records_at_one_batch_and_then_at_every_four_batches() -> None:
    stage, max_body_bytes = Stage("t", 5, 32 * MIB, 32 * MIB), 16 * KIB - HEADER_BYTES
    assigned_after: list[int] = []
    for number in range(160):
        add_record(stage, number % 8, 1_000, bytes(950))
        if stage.is_full(max_body_bytes):
            assigned_after.append(number + 1)
            stage.assign_partitions(convert_records)
            if stage.largest_partition_bytes >= max_body_bytes:
                break
            ready_partitions = stage.find_ready_partitions(max_body_bytes)
            assert ready_partitions is not None
            ready, remaining = stage.split(ready_partitions)
            assert (ready.entries, remaining.entries, remaining.reserved_bytes) == ([], stage.entries, number + 1)
    assert assigned_after == [17, 17 + 66, 17 + 2 * 66]  # 17 records could fill one batch, 66 records four batches


def test_grouped_rows_fit_one_array_with_any_amount_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "MAX_GROUPED_BYTES", 300)
    monkeypatch.setattr(chunks, "MAX_GROUPED_BYTES", 300)
    stage = Stage("t", 0, 32 * MIB, 32 * MIB)
    stage.add(build_rows([150], [0]), 1)
    assert not stage.is_full(16 * KIB)
    stage.add(build_rows([150], [1]), 1)
    assert stage.is_full(16 * KIB)
    assert list(split_into_chunks(np.array([150, 150, 150, 400]), 100, 32 * MIB)) == [
        (0, 2, 300),
        (2, 3, 150),
        (3, 4, 400),
    ]


def test_single_records_count_towards_memory_limit_of_stage() -> None:
    stage = Stage("t", 0, 1_000, 32 * MIB)
    stage.add(build_rows([500], [0]), 1)
    add_record(stage, 0, 499)
    assert not stage.is_full(MIB)
    add_record(stage, 0, 1)
    assert stage.is_full(MIB)


def test_all_rows_are_ready_when_reservation_reaches_limit() -> None:
    stage = Stage("t", 0, MIB, 1_000)
    stage.add(build_rows([1_000] * 17 + [100], [7] * 17 + [8]), 500)
    add_record(stage, 0, 100, reserved=499)
    stage.assign_partitions(convert_records)
    assert stage.find_ready_partitions(16 * KIB) is not None
    add_record(stage, 0, 100, reserved=1)
    assert stage.is_full(MIB)
    stage.assign_partitions(convert_records)
    assert stage.find_ready_partitions(16 * KIB) is None


def test_stage_is_full_when_one_partition_fills_a_batch_despite_sparse_others() -> None:
    stage = Stage("t", 0, 32 * MIB, 32 * MIB)
    stage.add(build_rows([100] * 101, list(range(101))), 1)
    assert not stage.is_full(16 * KIB)
    stage.add(build_rows([1_000] * 17, [7] * 17), 1)
    assert stage.is_full(16 * KIB)


@pytest.mark.parametrize(
    ("batch_size", "memory", "partitions", "full_bytes"),
    [
        pytest.param(MIB, 32 * MIB, 12, 4 * MIB, id="bytes at which a row costs least"),
        pytest.param(MIB, 64 * MIB, 100, 100 * 64 * KIB, id="bytes for each partition"),
        pytest.param(MIB, 8 * MIB, 1_000, 8 * MIB, id="share of the memory"),
    ],
)
def test_stage_is_full_at_byte_limit_for_partition_count(
    batch_size: int, memory: int, partitions: int, full_bytes: int
) -> None:
    stage = Stage("t", 0, memory, 32 * MIB)
    stage.add(build_rows([100] * partitions, list(range(partitions))), 1)
    stage.assigned_bytes = full_bytes - 1
    assert not stage.is_full(batch_size)
    stage.assigned_bytes = full_bytes
    assert stage.is_full(batch_size)


def skewed_stage(max_bytes: int = 32 * MIB) -> Stage:
    """Build a stage in which partition 7 has a batch of 16 kB in two entries, and 20 other partitions have few rows.

    Each byte is reserved twice.
    """
    stage = Stage("t", 5, max_bytes, 32 * MIB)
    stage.add(build_rows([100] * 20 + [1_000] * 9, [*range(8, 28), *[7] * 9]), 22_000)
    stage.add(build_rows([1_000] * 9, [7] * 9), 18_000)
    stage.add(build_rows([100] * 3, [8, 9, 10]), 600)
    return stage


def test_split_separates_full_partition_and_keeps_age_of_sparse_ones() -> None:
    stage = skewed_stage()
    ready_partitions = stage.find_ready_partitions(16 * KIB)
    assert ready_partitions is not None
    assert np.flatnonzero(ready_partitions).tolist() == [7]
    ready, remaining = stage.split(ready_partitions)
    assert [rows.row_indices.tolist() for rows in ready.assigned_entries] == [list(range(20, 29)), list(range(9))]
    assert (ready.reserved_bytes, remaining.reserved_bytes) == (36_000, 4_600)
    assert remaining.entries[1] is stage.entries[2]  # an entry that remains as a whole is not copied
    assert (remaining.assigned_bytes, remaining.oldest_row_arrival_ms) == (2_300, 5)
    assert not remaining.is_full(16 * KIB)
    assert len(stage.entries) == 3


def test_partition_is_ready_when_rows_fill_exactly_one_batch() -> None:
    batch_bytes = 16 * KIB
    stage = Stage("t", 0, 32 * MIB, 32 * MIB)
    stage.add(build_rows([100] * 20, [*range(8, 28)]), 1)
    stage.add(build_rows([1_032] * 16, [7] * 16), 1)  # each size exceeds the lower bound by 8 bytes
    assert stage.largest_partition_bytes == batch_bytes
    ready_partitions = stage.find_ready_partitions(batch_bytes)
    assert ready_partitions is not None
    assert np.flatnonzero(ready_partitions).tolist() == [7]


def test_remainder_of_large_stage_stays_until_each_partition_has_enough_bytes() -> None:
    stage = Stage("t", 0, 32 * MIB, 32 * MIB)
    stage.add(build_rows([60_000] * 118, [*range(100), *[7] * 18]), 1)
    ready_partitions = stage.find_ready_partitions(MIB)
    assert ready_partitions is not None
    _, remaining = stage.split(ready_partitions)
    assert remaining.assigned_bytes > 5 * MIB
    assert not remaining.is_full(MIB)


def test_full_partition_waits_in_half_full_stage_while_others_are_sparse() -> None:
    less_than_half, half_full = skewed_stage(max_bytes=40_602), skewed_stage(max_bytes=40_600)
    assert less_than_half.assigned_bytes == half_full.assigned_bytes == 20_300
    assert less_than_half.is_full(16 * KIB)
    assert not half_full.is_full(16 * KIB)
    ready_partitions = half_full.find_ready_partitions(16 * KIB)
    assert ready_partitions is not None
    assert not ready_partitions.any()
    half_full.add(build_rows([100] * 203, [29] * 203), 20_300)
    assert half_full.is_full(16 * KIB)
    assert half_full.find_ready_partitions(16 * KIB) is None


def test_all_rows_are_ready_when_stage_is_full_without_full_partition() -> None:
    stage = Stage("t", 0, 32 * MIB, 32 * MIB)
    stage.add(build_rows([64 * KIB] * 64, list(range(64))), 1)  # each row may be 8 bytes smaller when it is encoded
    assert stage.is_full(MIB)
    assert stage.find_ready_partitions(MIB) is None


def test_staging_single_record_does_not_scan_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned_lengths: list[int] = []

    def count_and_record(values: NDArray[np.int64], count: Callable[..., int] = np.count_nonzero) -> int:
        scanned_lengths.append(len(values))
        return count(values)

    monkeypatch.setattr(np, "count_nonzero", count_and_record)
    half_full, large = skewed_stage(max_bytes=40_600), Stage("t", 0, 32 * MIB, 32 * MIB)
    large.add(build_rows([1_000] * 5_000, [*range(1_000)] * 5), 1)
    for stage in (half_full, large):
        assert not stage.is_full(16 * KIB)
        scanned_lengths.clear()
        for _ in range(10):
            add_record(stage, 8, 100)
            assert not stage.is_full(16 * KIB)
        assert scanned_lengths == []


def half_full_stage() -> Stage:
    """Build a stage of 19.2 kB in which partition 7 has a batch of 16 kB, and partition 8 has the rest."""
    stage = Stage("t", 5, 38_400, 32 * MIB)
    stage.add(build_rows([1_200] * 16, [7] * 15 + [8]), 1)
    return stage


def test_sparse_remainder_is_recomputed_after_new_rows_or_smaller_batches() -> None:
    more, later = build_rows([1_200] * 6, [8] * 6), Stage("t", 9, 38_400, 32 * MIB)
    later.add(more, 1)
    changes: list[Callable[[Stage], None]] = [lambda stage: stage.add(more, 1), lambda stage: stage.extend(later)]
    for change in changes:
        stage = half_full_stage()
        assert not stage.is_full(16 * KIB)
        assert stage.is_full(2 * KIB)
        assert not stage.is_full(16 * KIB)
        change(stage)
        assert stage.is_full(16 * KIB)


def test_later_rows_are_appended_after_remaining_rows() -> None:
    stage, later = skewed_stage(), Stage("t", 9, 32 * MIB, 32 * MIB)
    added = build_rows([1_000] * 17, [30] * 17)
    later.add(added, 34_000)
    ready_partitions = stage.find_ready_partitions(16 * KIB)
    assert ready_partitions is not None
    _, remaining = stage.split(ready_partitions)
    remaining.extend(later)
    assert remaining.entries[-1] is added
    assert (remaining.assigned_bytes, remaining.reserved_bytes, remaining.oldest_row_arrival_ms) == (19_300, 38_600, 5)
    next_ready_partitions = remaining.find_ready_partitions(16 * KIB)
    assert next_ready_partitions is not None
    assert np.flatnonzero(next_ready_partitions).tolist() == [30]


def test_all_rows_are_ready_if_stage_cannot_be_split() -> None:
    assert skewed_stage(max_bytes=20_000).find_ready_partitions(16 * KIB) is None
    broad = Stage("t", 0, 32 * MIB, 32 * MIB)
    broad.add(build_rows([64 * KIB + 8] * 20, [0] * 18 + [1, 2]), 1)
    assert broad.find_ready_partitions(MIB) is None
    half_full = Stage("t", 0, 50_000, 32 * MIB)
    half_full.add(build_rows([1_000] * 17 + [1_000] * 9, [7] * 17 + [8] * 9), 1)
    assert half_full.find_ready_partitions(16 * KIB) is None
    stage, splits = skewed_stage(), 0
    while splits < 100 and (ready_partitions := stage.find_ready_partitions(16 * KIB)) is not None:
        splits += 1
        _, stage = stage.split(ready_partitions)
        stage.add(build_rows([1_000] * 17, [7] * 17), 1)
    assert splits == 64


def test_split_count_is_kept_after_single_records_are_assigned() -> None:
    stage, splits = skewed_stage(), 0
    while splits < 100 and (ready_partitions := stage.find_ready_partitions(16 * KIB)) is not None:
        splits += 1
        _, stage = stage.split(ready_partitions)
        _, stage = stage.split(np.zeros(30, np.bool_))  # none was full
        stage.add(build_rows([1_000] * 17, [7] * 17), 1)
    assert splits == 64


def test_split_divides_reservation_by_bytes_and_futures_by_count() -> None:
    before = Stage("t", 0, MIB, 32 * MIB)
    for partition, length in ((0, 50), (1, 50), (1, 700)):
        add_record(before, partition, 800, bytes(length))
    before.assign_partitions(convert_records)
    (rows,) = before.assigned_entries
    small, _, large = rows.sizes.tolist()
    stage = Stage("t", 0, MIB, 32 * MIB)
    stage.add(rows, 2 * (2 * small + large) + 3 * FUTURE_BYTES)
    ready, remaining = stage.split(np.array([False, True]))
    assert ready.reserved_bytes == 2 * (small + large) + 2 * FUTURE_BYTES
    assert remaining.reserved_bytes == 2 * small + FUTURE_BYTES


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 120))
def test_splits_call_into_chunks_of_bounded_rows_and_bytes(sizes: list[int], max_rows: int, max_bytes: int) -> None:
    call_chunks = list(split_into_chunks(np.array(sizes, np.int64), max_rows, max_bytes))
    assert [start for start, _, _ in call_chunks] == [0, *(stop for _, stop, _ in call_chunks[:-1])]
    assert call_chunks[-1][1] == len(sizes)
    for start, stop, size in call_chunks:
        assert size == sum(sizes[start:stop])
        assert stop - start == 1 or (stop - start <= max_rows and size <= max_bytes)
        # The next row would not have fit into the chunk.
        assert stop == len(sizes) or stop - start == max_rows or size + sizes[stop] > max_bytes


def test_builds_one_failed_batch_per_partition() -> None:
    stage, error = Stage("t", 0, MIB, 32 * MIB), DeliveryError("no memory")
    stage.add(build_rows([10, 10, 10], [2, 5, 2]), 1)
    futures = [
        stage.add_record((b"v", None, None, partition, 1), 30, 1, ClusterSnapshot(), ()) for partition in (5, None, 5)
    ]
    batches = stage.build_failed_batches(error)
    chunks = [(batch.topic_partition.partition, batch.record_count) for batch in batches]
    assert chunks == [(2, 2), (5, 1), (-1, 1), (5, 2)]  # -1: a record without an assigned partition
    assert all(batch.is_done and batch.error is error for batch in batches)
    ((call, rows, _),) = batches[3].split_rows_by_call()
    call.fail_rows(FailedRows(rows, error, "t", 5))
    assert [future.done() for future in futures] == [True, False, True]
    assert str(batches[2].topic_partition) == "t"


def test_rows_in_a_batch_do_not_fail_with_stage_after_copy_to_own_memory() -> None:
    stage = Stage("t", 0, MIB, 32 * MIB)
    appended, missing = (ProducerBatch(TopicPartition("t", partition), 0, 1) for partition in range(2))
    group = RowGroup(np.arange(4), [NamedCall("call")])
    encoded = EncodedSlices(memoryview(b""), [0, 0], [0, 0], [2, 2], [0, 0], [0, 0])
    encoded_buffer = EncodedBuffer(encoded, MemoryLease(BufferPool(0, lambda: 0.0), 0), group, [0, 2], [2, 4], [0, 0])
    stage.pending_appends = BatchAppends([encoded_buffer], [appended, missing], [])
    appended.append(encoded_buffer, 0)
    appended.copy_to_own_memory()
    (failed,) = stage.build_failed_batches(DeliveryError("no"))
    assert [row_indices.tolist() for _, row_indices, _ in failed.split_rows_by_call()] == [[2, 3]]
