"""Futures of calls with many rows: each row gets its outcome and offset."""

from __future__ import annotations

import numpy as np
import pytest

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_groups import BatchRows, RowGroup
from spark_kafka_sink.producer.calls import StoredRange
from spark_kafka_sink.producer.futures import ColumnsFuture, RecordFutures
from spark_kafka_sink.producer.results import OffsetRange, RecordMetadata
from spark_kafka_sink.producer.sending.deliveries import collect_stored_rows, complete_futures
from tests.producer.batching.single_slice import append_rows


@pytest.mark.parametrize(
    ("base_offset", "offsets"), [(100, [(100, 102), (103, 104)]), (0, [(0, 2), (3, 4)]), (-1, [(-1, -1), (-1, -1)])]
)
def test_call_gets_offsets_of_its_rows_within_a_shared_batch(base_offset: int, offsets: list[tuple[int, int]]) -> None:
    calls = [ColumnsFuture("t", 3), ColumnsFuture("t", 2)]
    batch = ProducerBatch(TopicPartition("t", 7), 0, 1)
    append_rows(batch, BatchRows(RowGroup(np.arange(3), calls[:1]), 0, 3, 0))
    append_rows(batch, BatchRows(RowGroup(np.arange(9), calls[1:]), 4, 6, 3))  # from a later grouping
    batch.base_offset = base_offset
    complete_futures(collect_stored_rows([batch]))
    written = [call.result(0).partitions[7] for call in calls]
    assert [(stored_range.first_offset, stored_range.last_offset) for stored_range in written] == offsets
    assert [stored_range.rows for stored_range in written] == [3, 2]


def test_adds_up_partition_ranges_over_all_responses() -> None:
    call = ColumnsFuture("t", 12)
    call.complete_rows(np.arange(12), [StoredRange(0, 2, 7, 100, -1), StoredRange(2, 3, 4, -1, -1)], 3)
    call.complete_rows(np.arange(12), np.array([(3, 7, 7, 90, -1), (7, 8, 7, -1, -1), (8, 12, 4, 0, -1)]), 9)
    result = call.result(0)
    assert result.partitions == {
        4: OffsetRange(0, 3, 5, rows_without_offset=1),
        7: OffsetRange(90, 101, 7, rows_without_offset=1),
    }
    assert result.rows_written == 12


@pytest.mark.parametrize("batches", [2, 40], ids=["few", "many"])
def test_callbacks_run_in_record_order_within_partition(batches: int) -> None:
    seen: dict[int, list[int]] = {partition: [] for partition in range(batches)}

    def note(metadata: RecordMetadata, error: Exception | None) -> None:
        seen[metadata.partition].append(metadata.offset)

    def build_row_group(rows: int) -> RowGroup:
        """Build a row group whose rows alternate between two calls."""
        calls = [RecordFutures("t"), RecordFutures("t")]
        for call in calls:
            call.set_record_fields(np.zeros(rows, np.int64), np.zeros(rows, np.int32), np.zeros(rows, np.int32))
            call.callbacks |= dict.fromkeys(range(rows), (note,))
        return RowGroup(np.arange(rows) // 2, calls, np.arange(rows, dtype=np.int32) % 2)

    first, second = build_row_group(2 * batches), build_row_group(2 * batches)
    done = []
    for partition in range(batches):
        batch = ProducerBatch(TopicPartition("t", partition), 0, 1)
        start = 2 * partition
        later = BatchRows(second, start, start + 2, 2 if partition % 2 else 0)
        if partition % 2:
            append_rows(batch, BatchRows(first, start, start + 2, 0))
        append_rows(batch, later)
        batch.base_offset = 0
        done.append(batch)
    complete_futures(collect_stored_rows(done))
    assert seen == {partition: [0, 1, 2, 3] if partition % 2 else [0, 1] for partition in range(batches)}


def test_callbacks_run_in_record_order_across_batches() -> None:
    seen: list[int] = []
    call = RecordFutures("t")
    call.set_record_fields(np.zeros(5, np.int64), np.zeros(5, np.int32), np.zeros(5, np.int32))
    call.callbacks |= dict.fromkeys(range(5), (lambda metadata, error: seen.append(metadata.offset),))
    before, together = RowGroup(np.arange(2), [call]), RowGroup(np.arange(2, 5), [call])
    full, following = (ProducerBatch(TopicPartition("t", 0), 0, 1) for _ in range(2))
    append_rows(full, BatchRows(before, 0, 2, 0))
    append_rows(full, BatchRows(together, 0, 1, 2))
    append_rows(following, BatchRows(together, 1, 3, 0))
    full.base_offset, following.base_offset = 0, 3
    complete_futures(collect_stored_rows([full, following]))
    assert seen == [0, 1, 2, 3, 4]


def test_callbacks_run_in_record_order_after_batch_is_copied() -> None:
    seen: list[int] = []
    call = RecordFutures("t")
    call.set_record_fields(np.zeros(5, np.int64), np.zeros(5, np.int32), np.zeros(5, np.int32))
    call.callbacks |= dict.fromkeys(range(1, 5), (lambda metadata, error: seen.append(metadata.offset),))
    together = RowGroup(np.arange(5), [call])
    of_another_partition = ProducerBatch(TopicPartition("t", 1), 0, 1)
    moved, following = (ProducerBatch(TopicPartition("t", 0), 0, 1) for _ in range(2))
    append_rows(of_another_partition, BatchRows(together, 0, 1, 0))
    append_rows(moved, BatchRows(together, 1, 3, 0))
    append_rows(following, BatchRows(together, 3, 5, 0))
    moved.copy_to_own_memory()
    of_another_partition.base_offset, moved.base_offset, following.base_offset = 0, 0, 2
    complete_futures(collect_stored_rows([of_another_partition, moved, following]))
    assert seen == [0, 1, 2, 3]


def test_simultaneous_batches_complete_each_row_of_call_once() -> None:
    call = ColumnsFuture("t", 4)
    together = RowGroup(np.arange(4), [call])
    batches = [ProducerBatch(TopicPartition("t", index % 2), 0, 1) for index in range(4)]
    for index, batch in enumerate(batches):
        append_rows(batch, BatchRows(together, index, index + 1, 0))
        batch.base_offset = index // 2
    stored_rows = collect_stored_rows(batches)
    assert [rows.row_count for rows in stored_rows] == [2, 2]
    complete_futures(stored_rows)
    assert call.result(0).partitions == {0: OffsetRange(0, 1, 2), 1: OffsetRange(0, 1, 2)}


def test_sum_of_ranges_begins_at_lowest_offset() -> None:
    assert OffsetRange(0, 4, 5) + OffsetRange(5, 9, 5) == OffsetRange(0, 9, 10)
    assert OffsetRange(5, 9, 5) + OffsetRange(-1, -1, 1) + OffsetRange(0, 4, 5) == OffsetRange(0, 9, 11)
