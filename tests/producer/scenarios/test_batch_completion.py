"""Batches that are split, expire or are aborted release all of their memory and state."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.batching.batch import BatchState, ProducerBatch
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, decompress
from tests.producer.batching.accumulator_harness import (
    BATCH_ROWS,
    ERROR,
    FOREVER,
    TOPIC,
    VALUE,
    Harness,
    decode_values,
)
from tests.producer.batching.assigned_rows import assigned_rows


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_split_keeps_sequences_and_age_of_batch(compression: str) -> None:
    h = Harness(batch_size=8192, linger_ms=0, compression_type=compression)
    h.append_rows([b"%03d" % i * 20 for i in range(60)], [0] * 60, call="call")
    (batch,) = h.take()
    assert batch.record_count == 60
    batch.mark_request_ended()
    h.clock.now += 5
    children = h.accumulator.split_and_reenqueue(batch, h.clock.now)
    assert len(children) >= 2
    assert batch.is_done
    sequence = batch.base_sequence
    for child in children:
        assert (child.producer_id, child.base_sequence) == (batch.producer_id, sequence)
        assert (child.oldest_row_arrival_ms, child.deadline_ms, child.failed_attempts) == (
            batch.oldest_row_arrival_ms,
            batch.deadline_ms,
            0,
        )
        assert child.codec is batch.codec
        assert [lease.buffer for lease in child.leases] == [None]  # uses none of the parent's memory
        sequence += child.record_count
    sent: list[ProducerBatch] = []
    while h.accumulator.has_undrained_rows():
        sent += h.take()
    assert sent == children
    assert [v for child in sent for v in decode_values(child)] == [b"%03d" % i * 20 for i in range(60)]
    rows = [row for child in sent for _, its_rows, _ in child.split_rows_by_call() for row in its_rows.tolist()]
    assert rows == list(range(60))
    for child in sent:
        h.acknowledge(child)
    assert h.pool.free_bytes == h.pool.total_bytes
    assert not h.accumulator.has_incomplete_rows()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_split_keeps_header_keys_that_are_not_utf8(compression: str) -> None:
    h = Harness(linger_ms=0, compression_type=compression)
    kind = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
    headers = pa.array([[{"key": b"caf\xe9", "value": b"x"}]] * 2, kind)
    columns = RecordColumns(pa.array([b"a", b"b"]), headers=headers)
    h.accumulator.append_columns(TOPIC, assigned_rows(columns, [0, 0], "call"))
    (batch,) = h.take()
    batch.mark_request_ended()
    children = h.accumulator.split_and_reenqueue(batch, h.clock.now)
    bodies = [decompress(child.codec, b"".join(child.segments), 1 << 20) for child in children]
    assert [body.count(b"\x08caf\xe9\x02x") for body in map(bytes, bodies)] == [1, 1]


def test_sends_children_uncompressed_when_compression_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("at a bad moment")

    h = Harness(linger_ms=0, compression_type="gzip")
    h.append(0, 2)
    (batch,) = h.take()
    batch.mark_request_ended()
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch.compress", no_memory)
    children = h.accumulator.split_and_reenqueue(batch, h.clock.now)
    assert [(child.codec, decode_values(child)) for child in children] == [(Codec.NONE, [VALUE])] * 2
    for child in h.take() + h.take():
        h.acknowledge(child)
    assert h.pool.free_bytes == h.pool.total_bytes


def test_repeated_splits_end_with_single_records() -> None:
    h = Harness(batch_size=8192, linger_ms=0, retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.append(0, 13)
    singles = 0
    for _ in range(100):
        for batch in h.take():
            if batch.record_count == 1:
                singles += 1
                h.acknowledge(batch)
            else:
                batch.mark_request_ended()
                h.accumulator.split_and_reenqueue(batch, h.clock.now)
    assert singles == 13
    assert h.pool.free_bytes == h.pool.total_bytes


def test_split_resets_compression_ratio() -> None:
    h = Harness(compression_type="gzip", batch_size=4096)

    def first_full_batch() -> ProducerBatch:
        while True:
            h.append(0, 300)
            batches = h.take()
            for batch in batches[1:]:
                h.acknowledge(batch)
            if batches:
                return batches[0]

    for _ in range(60):
        h.acknowledge(first_full_batch())
    roomy = first_full_batch()
    roomy.mark_request_ended()
    h.accumulator.split_and_reenqueue(roomy, h.clock.now)
    while h.accumulator.has_undrained_rows():
        for batch in h.take():
            h.acknowledge(batch)
        h.clock.now += 1000
    assert first_full_batch().record_count < roomy.record_count


def expiring(leaders: Iterable[int | None] = (0, 0, 1), linger_ms: int = 10) -> Harness:
    return Harness(leaders, delivery_timeout_ms=100, request_timeout_ms=50, linger_ms=linger_ms)


def test_queued_batches_expire_once_after_delivery_timeout() -> None:
    h = expiring()
    h.append(0, BATCH_ROWS + 1)
    h.ready()
    assert h.accumulator.next_expiry_ms() == h.clock.now + 100
    h.clock.now += 99
    assert h.accumulator.take_expired_batches(h.clock.now) == []
    h.clock.now += 1
    expired = h.accumulator.take_expired_batches(h.clock.now)
    assert sum(batch.record_count for batch in expired) == BATCH_ROWS + 1
    assert h.accumulator.take_expired_batches(h.clock.now) == []
    assert h.ready_nodes() == set()
    for batch in expired:
        batch.fail(ERROR)
        h.accumulator.remove_completed(batch)
    assert h.pool.free_bytes == h.pool.total_bytes
    assert h.accumulator.next_expiry_ms() == FOREVER


def test_age_of_batch_counts_from_append_not_from_grouping() -> None:
    h = expiring(linger_ms=50)
    h.append(0)
    h.clock.now += 50
    h.ready()
    h.clock.now += 50
    assert len(h.accumulator.take_expired_batches(h.clock.now)) == 1


def test_batches_of_muted_or_leaderless_partition_expire() -> None:
    h = expiring(leaders=(None, 0), linger_ms=0)
    h.append(0)
    h.append(1)
    h.gate.rejected_partitions = {1}
    assert h.take() == []
    h.clock.now += 100
    assert len(h.accumulator.take_expired_batches(h.clock.now)) == 2


def test_batch_expired_in_flight_keeps_memory_until_response() -> None:
    h = expiring(linger_ms=0)
    h.append(0, 3)
    (batch,) = h.take()
    held = h.pool.total_bytes - h.pool.free_bytes
    h.clock.now += 100
    assert h.accumulator.take_expired_batches(h.clock.now) == [batch]
    batch.fail(ERROR)
    h.accumulator.remove_completed(batch)
    assert h.pool.total_bytes - h.pool.free_bytes == held > 0
    assert batch.segments
    batch.mark_request_ended()
    assert h.pool.free_bytes == h.pool.total_bytes
    assert batch.error is ERROR


def test_batch_removed_from_queue_is_incomplete_until_it_fails() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    h.append(1)
    remaining, withdrawn = h.take()
    h.reenqueue(withdrawn)
    h.accumulator.remove_from_queue(withdrawn)
    h.acknowledge(remaining)
    h.clock.now += 60_000
    assert h.take() == []
    assert h.accumulator.has_incomplete_rows()
    withdrawn.fail(ERROR)
    h.accumulator.remove_completed(withdrawn)
    assert not h.accumulator.has_incomplete_rows()
    assert h.pool.free_bytes == h.pool.total_bytes


def test_retried_batch_expires_by_its_original_age() -> None:
    h = expiring(linger_ms=0)
    h.append(0)
    (batch,) = h.take()
    h.clock.now += 60
    batch.mark_request_ended()
    h.reenqueue(batch)
    h.clock.now += 40
    assert h.accumulator.take_expired_batches(h.clock.now) == [batch]
    assert batch.failed_attempts == 1
    assert not h.accumulator.has_undrained_rows()


def test_largest_delivery_timeout_does_not_overflow() -> None:
    h = Harness(delivery_timeout_ms=2**31 - 1, linger_ms=0)
    h.append(0)
    h.ready()
    assert h.accumulator.take_expired_batches(h.clock.now + 2**31 - 2) == []
    assert len(h.accumulator.take_expired_batches(h.clock.now + 2**31 - 1)) == 1


def test_forgets_deadlines_of_completed_batches() -> None:
    h = Harness(batch_size=0, linger_ms=0)
    for _ in range(40):
        h.append(0, 100)
        for _ in range(100):
            for batch in h.take():
                h.acknowledge(batch)
    assert not h.accumulator.has_incomplete_rows()
    assert h.accumulator.next_expiry_ms() == FOREVER


def test_abort_fails_staged_queued_and_in_flight_rows() -> None:
    h = Harness()
    h.append(0, 2 * BATCH_ROWS + 1, call="a")
    (in_flight,) = h.take()
    h.append(1, 2, call="b")
    aborted = h.accumulator.abort_incomplete_batches(ERROR)
    assert in_flight in aborted
    assert all(batch.error is ERROR for batch in aborted)
    aborted_rows = sum(len(rows) for batch in aborted for _, rows, _ in batch.split_rows_by_call())
    assert aborted_rows == 2 * BATCH_ROWS + 3
    for batch in aborted:
        h.accumulator.remove_completed(batch)
    assert not h.accumulator.has_incomplete_rows()
    assert not h.accumulator.has_undrained_rows()
    assert h.pool.free_bytes < h.pool.total_bytes  # held by the batch in flight
    in_flight.mark_request_ended()
    assert h.pool.free_bytes == h.pool.total_bytes


def test_abort_without_in_flight_keeps_batches_in_flight() -> None:
    h = Harness()
    h.append(0, 2 * BATCH_ROWS)
    (in_flight,) = h.take()
    aborted = h.accumulator.abort_incomplete_batches(ERROR, include_in_flight=False)
    assert in_flight not in aborted
    assert in_flight.state is BatchState.IN_FLIGHT
    h.acknowledge(in_flight)
    for batch in aborted:
        h.accumulator.remove_completed(batch)
    assert h.pool.free_bytes == h.pool.total_bytes
