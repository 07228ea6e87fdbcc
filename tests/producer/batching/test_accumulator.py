"""RecordAccumulator: when batches are ready, flushes, and the memory of calls."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from spark_kafka_sink.errors import BufferExhaustedError, ProducerClosedError, RecordTooLargeError
from spark_kafka_sink.producer.batching.accumulator import ReadyCheckResult
from spark_kafka_sink.producer.batching.incomplete_batches import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.staging import Stage
from tests.producer.batching.accumulator_harness import (
    BATCH_ROWS,
    ERROR,
    FOREVER,
    TOPIC,
    Harness,
    OpenFlush,
    cluster,
    decode_values,
)


def test_full_batch_is_ready_immediately_and_open_batch_after_linger() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1)
    assert h.ready_nodes() == {0}
    assert [b.record_count for b in h.drain()] == [BATCH_ROWS]
    assert h.ready_nodes() == set()
    h.clock.now += 10
    assert h.ready_nodes() == {0}
    assert [b.record_count for b in h.drain()] == [1]


def test_staged_rows_linger_from_the_time_of_append() -> None:
    h = Harness()
    h.append(2)
    check = h.ready()
    assert (check.ready_node_ids, check.next_ready_check_delay_ms) == (frozenset(), 10)
    h.clock.now += 9
    assert h.ready().next_ready_check_delay_ms == 1
    h.clock.now += 1
    assert h.ready_nodes() == {1}


def test_open_batch_lingers_from_its_oldest_row() -> None:
    h = Harness()
    h.append(0, BATCH_ROWS + 1)  # grouped immediately: a full batch, and an open one with one row
    h.drain()
    h.clock.now += 6
    assert h.ready().next_ready_check_delay_ms == 4


def test_everything_is_ready_in_next_round_without_linger() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    assert h.ready_nodes() == {0}


def test_ready_check_waits_indefinitely_when_there_is_nothing_to_send() -> None:
    assert Harness().ready().next_ready_check_delay_ms == FOREVER


def test_requests_metadata_for_unknown_leader_and_sends_once_it_is_known() -> None:
    h = Harness(leaders=(None, None, 1), linger_ms=0)
    h.append(0)
    check = h.ready()
    assert check.ready_node_ids == frozenset()
    assert check.unknown_leader_topics == {TOPIC}
    assert h.drain() == []
    h.snapshot = cluster((1, 0, 1), epoch=2)
    check = h.ready()
    assert check.ready_node_ids == {1}
    assert check.unknown_leader_topics == set()


def test_treats_leader_without_address_as_unknown() -> None:
    h = Harness(leaders=(9,), linger_ms=0)
    h.append(0)
    assert h.ready().unknown_leader_topics == {TOPIC}


def test_flush_makes_everything_ready_immediately() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.append(2)
    flush = h.begin_flush()
    assert h.ready_nodes() == {0, 1}
    batches = h.drain()
    h.append(1)
    assert h.ready_nodes() == {0}  # nothing lingers during the flush
    assert not h.flushed(flush)
    h.append(2)
    assert h.ready_nodes() == {0}  # the flush has ended, so the new row lingers
    for batch in batches:
        h.acknowledge(batch)


def test_flush_completes_when_earlier_batches_are_acknowledged_or_failed() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.append(2)
    flush = h.begin_flush()
    first, second = h.take()
    h.append(1)  # the flush does not wait for rows that were appended after its start
    h.acknowledge(first)
    assert not flush.done.is_set()
    second.mark_request_ended()
    second.fail(ERROR)
    h.accumulator.remove_completed(second)
    assert h.flushed(flush)
    assert h.accumulator.has_incomplete_rows()


def test_flush_without_rows_completes_immediately() -> None:
    h = Harness()
    assert h.flushed(h.begin_flush())


def test_flush_waits_for_children_of_split_batch() -> None:
    h = Harness(linger_ms=1000, batch_size=4096)
    h.append(0, 20)
    flush = h.begin_flush()
    (batch,) = h.take()
    batch.mark_request_ended()
    h.accumulator.split_and_reenqueue(batch, h.clock.now)
    left = h.accumulator.has_undrained_rows()
    assert left
    assert not flush.done.is_set()
    while not flush.done.is_set():
        for child in h.take():
            h.acknowledge(child)
    assert h.flushed(flush)


def test_everything_is_ready_while_an_append_waits_for_memory() -> None:
    h = Harness(linger_ms=100_000, buffer_memory=4096, batch_size=4096, max_block_ms=60_000)
    h.append(0, 3)
    done = threading.Event()

    def call() -> None:
        h.append(1, 30)
        done.set()

    threading.Thread(target=call).start()
    drained = 0
    while not done.is_set() or h.accumulator.has_incomplete_rows():
        for batch in h.take():
            drained += batch.record_count
            h.acknowledge(batch)
        if done.is_set() and not h.pool.waiter_count:
            h.clock.now += 100_000
    assert drained == 33
    assert h.pool.free_bytes == 4096


def test_close_makes_everything_ready_and_rejects_appends() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    h.accumulator.close()
    assert h.ready_nodes() == {0}
    taken, error = h.append(0)
    assert taken == 0
    assert isinstance(error, ProducerClosedError)
    with pytest.raises(ProducerClosedError):
        h.append_record(0)
    for batch in h.drain():
        h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.total_bytes


def test_close_between_reservation_and_staging_rejects_append_and_releases_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    reserve = h.pool.try_reserve

    def closed_meanwhile(count: int) -> bool:
        reserved = reserve(count)
        h.accumulator.close()
        return reserved

    monkeypatch.setattr(h.pool, "try_reserve", closed_meanwhile)
    taken, error = h.append(0)
    assert (taken, type(error)) == (0, ProducerClosedError)
    assert h.pool.free_bytes == h.pool.total_bytes
    assert not h.accumulator.has_incomplete_rows()


def test_append_wakes_sender_only_for_new_stage_and_for_full_batch() -> None:
    h = Harness()
    h.append(0)
    assert h.wakeups == 1
    h.append(0)
    assert h.wakeups == 1
    h.append(0, BATCH_ROWS)
    assert h.wakeups == 2


def placed(h: Harness, monkeypatch: pytest.MonkeyPatch, *, later_ms: float) -> ReadyCheckResult:
    """Assign partitions to records that fill no batch. Return the sender's ready check during the split.

    `later_ms`: how long the split takes.
    """
    split = Stage.split
    checks: list[ReadyCheckResult] = []

    def split_and_look(stage: Stage, leaving: NDArray[np.bool_]) -> Any:
        h.clock.now += later_ms
        checks.append(h.ready())  # as the sender thread could at this moment
        return split(stage, leaving)

    monkeypatch.setattr(Stage, "split", split_and_look)
    for row in range(BATCH_ROWS + 1):
        h.append_record(row % 3)
    (check,) = checks
    return check


def test_sender_rechecks_lingered_rows_that_another_thread_had_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    assert placed(h, monkeypatch, later_ms=4).next_ready_check_delay_ms == 6
    assert h.wakeups == 1


def test_wakes_sender_for_returned_rows_that_became_due_while_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    assert placed(h, monkeypatch, later_ms=10).next_ready_check_delay_ms == FOREVER
    assert h.wakeups == 2
    assert h.ready_nodes() == {0, 1}


def test_stages_call_larger_than_memory_in_chunks() -> None:
    h = Harness(buffer_memory=20_000, batch_size=1000, linger_ms=0)
    result: list[object] = []
    caller = threading.Thread(target=lambda: result.append(h.append(0, 1000)))
    caller.start()
    got = 0
    while caller.is_alive() or h.accumulator.has_incomplete_rows():
        for batch in h.take():
            got += batch.record_count
            assert h.pool.free_bytes >= 0
            h.acknowledge(batch)
    caller.join()
    assert got == 1000
    assert h.pool.free_bytes == 20_000


def test_reports_rows_without_memory_and_keeps_earlier_rows() -> None:
    h = Harness(buffer_memory=16_000, max_block_ms=0, linger_ms=10_000, batch_size=16_000)
    taken, error = h.append(0, 1000)
    assert isinstance(error, BufferExhaustedError)
    assert 0 < taken < 1000
    assert "buffer.memory" in str(error)
    h.clock.now += 10_000
    got = sum(batch.record_count for _ in range(50) for batch in h.take())
    assert got == taken


def test_single_record_may_fill_memory_but_not_exceed_it() -> None:
    h = Harness(buffer_memory=10_000, batch_size=20_000, linger_ms=0)
    h.append(0, 1, b"x" * 9000)
    assert h.pool.total_bytes - h.pool.free_bytes > 9000
    (batch,) = h.take()
    h.acknowledge(batch)
    assert h.pool.free_bytes == 10_000
    _, error = h.append(0, 1, b"x" * 10_000)
    assert isinstance(error, RecordTooLargeError)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_releases_all_memory_when_everything_is_acknowledged(compression: str) -> None:
    h = Harness(compression_type=compression, leaders=(0, 1, 0, 1, 0), batch_size=3000)
    rng = np.random.default_rng(3)
    for step in range(30):
        partitions = rng.integers(0, 5, 50).astype(np.int32).tolist()
        h.append_rows([rng.bytes(int(n)) for n in rng.integers(0, 300, 50)], partitions)
        h.clock.now += 7
        for batch in h.take():
            if step % 3 == 0 and batch.failed_attempts == 0:
                batch.mark_request_ended()
                h.reenqueue(batch)
            else:
                h.acknowledge(batch)
    while h.accumulator.has_incomplete_rows():
        h.clock.now += 1000
        for batch in h.take():
            h.acknowledge(batch)
    assert h.pool.free_bytes == h.pool.total_bytes


def test_concurrent_appends_and_sends_lose_and_reorder_nothing() -> None:
    h = Harness(buffer_memory=60_000, batch_size=2000, linger_ms=0, leaders=(0, 1, 0, 1))
    threads = [
        threading.Thread(
            target=lambda n=n: [h.append_rows([b"%d-%04d" % (n, row)], [row % 4], call=n) for row in range(400)]
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    seen: dict[tuple[int, int], list[int]] = {}
    while any(thread.is_alive() for thread in threads) or h.accumulator.has_incomplete_rows():
        for batch in h.take():
            for value in decode_values(batch):
                task, row = (value or b"").split(b"-")
                seen.setdefault((batch.topic_partition.partition, int(task)), []).append(int(row))
            h.acknowledge(batch)
    assert sum(map(len, seen.values())) == 1200
    assert all(rows == sorted(rows) for rows in seen.values())
    assert h.pool.free_bytes == 60_000


def test_partition_loads_are_known_once_all_partitions_were_written_to() -> None:
    h = Harness(linger_ms=0)
    h.append(0, 3 * BATCH_ROWS)
    assert h.accumulator.find_partition_loads(TOPIC, h.snapshot, [0, 1, 2]) is None
    h.append(1)
    h.append(2)
    h.ready()
    loads = h.accumulator.find_partition_loads(TOPIC, h.snapshot, [0, 1, 2])
    assert loads is not None
    assert (loads.partitions, loads.queue_lengths) == ([0, 1, 2], [3, 1, 1])


def test_partition_loads_exclude_unavailable_nodes() -> None:
    h = Harness(linger_ms=0, partitioner_availability_timeout_ms=50)
    for partition in (0, 1, 2):
        h.append(partition)
    h.ready()
    for _ in range(3):
        h.accumulator.record_node_availability(0, h.clock.now, is_accepting=False)
        h.accumulator.record_node_availability(1, h.clock.now, is_accepting=True)
        h.clock.now += 30
    loads = h.accumulator.find_partition_loads(TOPIC, h.snapshot, [0, 1, 2])
    assert loads is not None
    assert (loads.partitions, loads.candidate_count) == ([2], 3)
    h.accumulator.record_node_availability(0, h.clock.now, is_accepting=True)
    again = h.accumulator.find_partition_loads(TOPIC, h.snapshot, [0, 1, 2])
    assert again is not None
    assert again.partitions == [0, 1, 2]


def test_partition_loads_exclude_partitions_without_leader() -> None:
    h = Harness(linger_ms=0)
    for partition in (0, 1, 2):
        h.append(partition)
    h.ready()
    loads = h.accumulator.find_partition_loads(TOPIC, cluster((None, 0, 1)), [0, 1, 2])
    assert loads is not None
    assert loads.partitions == [1, 2]


def test_flush_that_begins_during_shutdown_completes() -> None:
    h = Harness(linger_ms=1000)
    h.append(0)
    flush = OpenFlush(h.accumulator)  # begins after the sender's last round
    h.accumulator.close()
    h.accumulator.remove_completed(*h.accumulator.abort_incomplete_batches(ERROR))
    h.accumulator.complete_flushes()
    assert h.flushed(flush)


@pytest.mark.parametrize("before", [True, False])
def test_interrupt_at_begin_of_flush_leaves_no_flush_in_progress(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """A flush that never ends would disable linger.ms."""
    h = Harness()
    begin = IncompleteBatches.begin_flush

    def interrupted(incomplete: IncompleteBatches, flush: Flush) -> None:
        if not before:
            begin(incomplete, flush)
        raise KeyboardInterrupt

    monkeypatch.setattr(IncompleteBatches, "begin_flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        h.accumulator.flush(lambda done: True)
    assert not h.accumulator._incomplete_batches.is_flush_in_progress
