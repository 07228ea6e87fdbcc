"""ProducerBatch: state transitions, producer identity, and memory that is released exactly once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError, IllegalStateError
from spark_kafka_sink.producer.batching.batch import TRANSITIONS, BatchState, ProducerBatch
from spark_kafka_sink.producer.batching.batch_splitting import split_batch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.row_groups import BatchRows, RowGroup, build_batch_rows
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.batch_slicing import (
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import parse_header
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.producer.batching.accumulator_harness import Clock, tp
from tests.producer.batching.named_call import NamedCall
from tests.producer.batching.single_slice import append_rows

ERROR = DeliveryError("no")


def create_batch(columns: RecordColumns, pool: BufferPool | None = None) -> ProducerBatch:
    pool = pool or BufferPool(1 << 20, Clock())
    pool.reserve(1000, 0)
    lease = MemoryLease(pool, 1000)
    filling_holder = object()
    lease.add_holder(filling_holder, 0)
    batch = ProducerBatch(tp(3), oldest_row_arrival_ms=10, deadline_ms=110)
    now_ms = 1_700_000_000_000
    plan = split_into_batches(
        compute_record_size_bounds(columns),
        build_single_partition_slices(columns.num_rows),
        1 << 20,
        find_timestamp_range(columns, now_ms),
    )
    (encoded,) = encode_records(columns, plan, now_ms)
    append_rows(batch, build_batch_rows(NamedCall("call"), np.arange(columns.num_rows)), encoded, lease)
    lease.remove_holder(filling_holder)
    return batch


def plain_columns(count: int = 5) -> RecordColumns:
    return RecordColumns(pa.array([b"value %d" % i for i in range(count)]))


def send_batch(batch: ProducerBatch) -> ProducerBatch:
    batch.close()
    batch.mark_in_flight(20)
    return batch


def test_acknowledged_batch_has_offset_of_each_record() -> None:
    batch = send_batch(create_batch(plain_columns()))
    batch.complete(100, 5)
    assert (batch.base_offset, batch.log_append_time, batch.error) == (100, 5, None)
    assert [batch.compute_record_offset(i) for i in (0, 4)] == [100, 104]


def test_failed_batch_has_no_offsets() -> None:
    batch = send_batch(create_batch(plain_columns()))
    batch.fail(ERROR)
    assert (batch.error, batch.base_offset, batch.compute_record_offset(2)) == (ERROR, -1, -1)


STEPS_TO_STATE: dict[BatchState, list[Callable[[ProducerBatch], object]]] = {
    BatchState.OPEN: [],
    BatchState.PINNED: [lambda batch: batch.pin()],
    BatchState.AWAITING_CLOSE: [lambda batch: batch.mark_drained(1)],
    BatchState.CLOSED: [lambda batch: batch.close()],
    BatchState.IN_FLIGHT: [lambda batch: batch.close(), lambda batch: batch.mark_in_flight(20)],
    BatchState.DONE: [lambda batch: batch.fail(ERROR)],
}
TRANSITION_CALLS: list[tuple[BatchState, Callable[[ProducerBatch], object]]] = [
    (BatchState.PINNED, lambda batch: batch.pin()),
    (BatchState.OPEN, lambda batch: batch.unpin()),
    (BatchState.CLOSED, lambda batch: batch.close()),
    (BatchState.IN_FLIGHT, lambda batch: batch.mark_in_flight(1)),
    (BatchState.CLOSED, lambda batch: batch.mark_reenqueued(backoff_until_ms=1, error=ERROR)),
    (BatchState.DONE, lambda batch: batch.complete(100)),
    (BatchState.DONE, lambda batch: batch.fail(ERROR)),
    (BatchState.DONE, lambda batch: batch.mark_split()),
]


@pytest.mark.parametrize(("target", "change_state"), TRANSITION_CALLS)
@pytest.mark.parametrize("state", list(BatchState))
def test_batch_allows_only_transitions_of_the_table(
    state: BatchState, target: BatchState, change_state: Callable[[ProducerBatch], object]
) -> None:
    batch = create_batch(plain_columns())
    for step in STEPS_TO_STATE[state]:
        step(batch)
    assert batch.state is state
    if target in TRANSITIONS[state]:
        change_state(batch)
        assert batch.state is target
    else:
        with pytest.raises(IllegalStateError, match=f"cannot move to the state {target.value}"):
            change_state(batch)
        assert batch.state is state


@pytest.mark.parametrize("state", [BatchState.CLOSED, BatchState.IN_FLIGHT, BatchState.DONE])
def test_closed_batch_rejects_records(state: BatchState) -> None:
    batch = create_batch(plain_columns())
    (rows,) = batch.rows
    for step in STEPS_TO_STATE[state]:
        step(batch)
    with pytest.raises(IllegalStateError, match="cannot be appended"):
        append_rows(batch, rows)


@pytest.mark.parametrize("state", [BatchState.OPEN, BatchState.PINNED])
def test_batch_that_is_not_closed_cannot_be_encoded_for_a_request(state: BatchState) -> None:
    batch = create_batch(plain_columns())
    for step in STEPS_TO_STATE[state]:
        step(batch)
    with pytest.raises(IllegalStateError, match="not closed"):
        batch.build_wire_segments()


@pytest.mark.parametrize("copy_records", [ProducerBatch.copy_to_own_memory, lambda batch: batch.close(Codec.GZIP)])
def test_copied_batch_keeps_no_reference_to_rows_of_its_group(
    copy_records: Callable[[ProducerBatch], None],
) -> None:
    first, second = NamedCall("first"), NamedCall("second")
    numbers = np.repeat(np.array([0, 1], np.int32), 500)
    group = RowGroup(np.arange(1_000), [first, second], numbers)
    batch = ProducerBatch(tp(3), oldest_row_arrival_ms=10, deadline_ms=110)
    append_rows(batch, BatchRows(group, 495, 505, 0))
    before = [(call, row_indices.tolist(), number) for call, row_indices, number in batch.split_rows_by_call()]
    copy_records(batch)
    (rows,) = batch.rows
    assert len(rows.row_group.row_indices) == 10
    assert rows.row_group.row_indices.base is None
    assert [(call, row_indices.tolist(), number) for call, row_indices, number in batch.split_rows_by_call()] == before


def test_copied_batch_has_the_same_bytes_and_frees_the_buffer() -> None:
    pool = BufferPool(100_000, Clock())
    batch = create_batch(RecordColumns(pa.array([b"x" * 100] * 5)), pool)
    (shared,) = batch.leases
    other = object()
    shared.add_holder(other, 10)
    before = b"".join(batch.segments)
    batch.copy_to_own_memory()
    assert b"".join(batch.segments) == before
    own_bytes = len(before) + 5 * 8  # the records and their row indices
    assert shared.reserved_bytes == 1000 - own_bytes
    shared.remove_holder(other)
    assert pool.free_bytes == 100_000 - own_bytes
    batch.fail(ERROR)
    assert pool.free_bytes == 100_000


def test_releases_memory_when_batch_is_done_and_no_request_is_in_flight() -> None:
    pool = BufferPool(10_000, Clock())
    acknowledged = send_batch(create_batch(plain_columns(), pool))
    acknowledged.mark_request_ended()
    assert pool.free_bytes == 9_000
    acknowledged.complete(0)
    assert pool.free_bytes == 10_000
    expired = send_batch(create_batch(plain_columns(), pool))
    expired.fail(ERROR)
    assert pool.free_bytes == 9_000
    assert expired.build_wire_segments()[1:]
    expired.mark_request_ended()
    assert pool.free_bytes == 10_000
    expired.mark_request_ended()
    assert pool.free_bytes == 10_000


def test_batch_has_the_same_bytes_for_every_retry() -> None:
    batch = create_batch(plain_columns())
    batch.close(Codec.LZ4)
    batch.set_producer_state(4, 2, 17)
    batch.mark_in_flight(1)
    first = b"".join(batch.build_wire_segments())
    batch.mark_request_ended()
    batch.mark_reenqueued(backoff_until_ms=50, error=ERROR)
    batch.mark_in_flight(60)
    assert b"".join(batch.build_wire_segments()) == first
    assert (batch.failed_attempts, batch.has_been_sent) == (1, True)


def test_new_producer_identity_changes_only_the_header() -> None:
    batch = create_batch(plain_columns())
    batch.close()
    batch.set_producer_state(4, 2, 17)
    before = b"".join(batch.build_wire_segments())
    batch.set_producer_state(4, 3, 0)
    after = b"".join(batch.build_wire_segments())
    header = parse_header(after)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 3, 0)
    assert after[61:] == before[61:]
    assert [row.columns.num_rows for row in decode_batches(after, max_bytes=1 << 20)] == [5]


def test_last_sequence_wraps_around() -> None:
    batch = create_batch(plain_columns(5))
    assert (batch.has_sequence, batch.last_sequence) == (False, -1)
    batch.set_producer_state(1, 0, 2**31 - 3)
    assert batch.last_sequence == 1


def test_compression_transfers_needed_bytes_and_releases_the_rest() -> None:
    pool = BufferPool(10_000, Clock())
    batch = create_batch(RecordColumns(pa.array([b"x" * 100] * 5)), pool)
    batch.close(Codec.GZIP)
    assert batch.body_bytes < batch.uncompressed_bytes
    assert pool.free_bytes == 10_000 - batch.body_bytes - 5 * 8, "the records and their row indices"
    batch.fail(ERROR)
    assert pool.free_bytes == 10_000


def test_batch_reaches_delivery_timeout_exactly_at_its_deadline() -> None:
    batch = create_batch(plain_columns())
    assert not batch.has_reached_delivery_timeout(109)
    assert batch.has_reached_delivery_timeout(110)


@pytest.mark.parametrize("codec", list(Codec))
def test_split_keeps_codec_headers_keys_timestamps_and_nulls(codec: Codec) -> None:
    count = 20
    columns = RecordColumns(
        value=pa.array([None if i % 7 == 0 else b"v%d" % i for i in range(count)]),
        key=pa.array([None if i % 3 == 0 else b"k%d" % i for i in range(count)]),
        headers=pa.array([[("h", b"%d" % i), ("n", None)] for i in range(count)], pa.map_(pa.string(), pa.binary())),
        timestamp=pa.array([1000 + (i * 37) % 50 for i in range(count)], pa.int64()),
    )
    pool = BufferPool(10_000, Clock())
    batch = create_batch(columns, pool)
    batch.close(codec)
    batch.set_producer_state(9, 1, 2**31 - 10)
    batch.mark_in_flight(1)
    original = next(decode_batches(b"".join(batch.build_wire_segments()), max_bytes=1 << 20)).columns
    batch.mark_request_ended()
    children = list(split_batch(batch, 200))
    batch.mark_split()
    for child in children:
        child.close(codec)
    assert len(children) > 2
    rows = [next(decode_batches(b"".join(c.build_wire_segments()), max_bytes=1 << 20)).columns for c in children]
    for name in ("key", "value", "headers", "timestamp"):
        assert [x for part in rows for x in part[name].to_pylist()] == original[name].to_pylist()
    assert {c.codec for c in children} == {codec}
    assert [c.base_sequence for c in children[1:]] == [sequences.increment(c.last_sequence, 1) for c in children[:-1]]
    assert [i for c in children for _, rows, _ in c.split_rows_by_call() for i in rows.tolist()] == list(range(count))
    for child in children:
        child.fail(ERROR)
    assert pool.free_bytes == 10_000


def test_splits_batch_in_half_when_it_fits_the_limit() -> None:
    batch = create_batch(plain_columns(4))
    batch.close()
    children = list(split_batch(batch, 1 << 20))
    assert [child.record_count for child in children] == [2, 2]


def test_children_of_batch_without_sequence_have_none() -> None:
    batch = create_batch(plain_columns(4))
    batch.close()
    assert [child.has_sequence for child in split_batch(batch, 1 << 20)] == [False, False]


def test_repr_shows_the_state_and_no_data() -> None:
    batch = send_batch(create_batch(plain_columns()))
    assert "t-3" in repr(batch)
    assert "in flight" in repr(batch)
    assert "value" not in repr(batch)
