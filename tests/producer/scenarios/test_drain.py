"""The order in which batches are drained and reenqueued."""

from __future__ import annotations

from tests.producer.batching.accumulator_harness import (
    BATCH_ROWS,
    FOREVER,
    Harness,
    cluster,
    tp,
)


def test_drain_takes_one_batch_of_each_partition_of_the_node() -> None:
    h = Harness()
    for partition in (0, 1, 2):
        h.append(partition, 2 * BATCH_ROWS)
    h.ready()
    assert sorted(batch.topic_partition.partition for batch in h.drain(0)) == [0, 1]
    assert [batch.topic_partition.partition for batch in h.drain(1)] == [2]


def test_drain_returns_nothing_for_node_without_partitions() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    h.ready()
    assert h.drain(1) == []
    assert h.drain(77) == []


def test_drain_stops_at_request_size_and_continues_there() -> None:
    h = Harness(leaders=(0,) * 4)
    for _ in range(3):
        for partition in range(4):
            h.append(partition, BATCH_ROWS)
    h.clock.now += 10
    served: list[int] = []
    for _ in range(6):
        h.ready()
        served += [batch.topic_partition.partition for batch in h.drain(0, max_request_size=2200)]
    assert served == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


def test_drains_batch_above_request_size_alone() -> None:
    h = Harness(leaders=(0, 0), linger_ms=0)
    h.append(0, 1, b"x" * 5000)
    h.append(1)
    h.ready()
    assert [batch.topic_partition.partition for batch in h.drain(0, max_request_size=1000)] == [0]
    assert [batch.topic_partition.partition for batch in h.drain(0, max_request_size=1000)] == [1]


def test_muted_partition_neither_stalls_its_node_nor_makes_sender_spin() -> None:
    h = Harness(leaders=(0, 0, 0), linger_ms=0)
    h.gate.rejected_partitions = {0}
    for partition in (0, 1, 2):
        h.append(partition)
    assert sorted(batch.topic_partition.partition for batch in h.take()) == [1, 2]
    call_count = h.gate.admit_call_count
    check = h.ready()
    assert (check.ready_node_ids, check.next_ready_check_delay_ms) == (frozenset(), FOREVER)
    assert h.gate.admit_call_count == call_count
    h.gate.rejected_partitions.clear()
    h.accumulator.unmute(tp(0))
    assert [batch.topic_partition.partition for batch in h.take()] == [0]


def test_response_for_partition_unmutes_it() -> None:
    h = Harness(leaders=(0,))
    h.append(0, 2 * BATCH_ROWS)
    (first,) = h.take()
    h.gate.rejected_partitions = {0}
    assert h.take() == []
    h.gate.rejected_partitions.clear()
    assert h.ready_nodes() == set()
    h.acknowledge(first)
    assert len(h.take()) == 1


def test_unmute_without_argument_unmutes_all_partitions() -> None:
    h = Harness(linger_ms=0)
    h.gate.rejected_partitions = {0, 1, 2}
    for partition in (0, 1, 2):
        h.append(partition)
    assert h.take() == []
    h.gate.rejected_partitions.clear()
    h.accumulator.unmute()
    assert len(h.take()) == 3


def test_muted_partition_is_neither_ready_nor_drained_until_unmuted() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    h.gate.rejected_partitions = {0}
    assert h.take() == []
    h.gate.rejected_partitions.clear()
    assert h.ready_nodes() == set()
    assert h.drain(0) == []
    h.append(0)  # more rows do not unmute it
    assert h.ready_nodes() == set()
    h.accumulator.unmute(tp(0))
    assert h.ready_nodes() == {0}
    assert len(h.drain(0)) == 1


def test_partition_follows_its_leader_to_another_node() -> None:
    h = Harness(linger_ms=0)
    h.append(0)
    assert h.ready_nodes() == {0}
    h.snapshot = cluster((1, 0, 1), epoch=2)
    assert h.drain(0) == []
    assert [batch.topic_partition.partition for batch in h.drain(1)] == [0]


def test_retried_batch_backs_off_in_front_of_all_others() -> None:
    h = Harness(retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0, 3 * BATCH_ROWS)
    (first,) = h.take()
    first.mark_request_ended()
    h.reenqueue(first)
    check = h.ready()
    assert (check.ready_node_ids, check.next_ready_check_delay_ms) == (frozenset(), 100)
    h.clock.now += 100
    assert h.take() == [first]
    assert first.failed_attempts == 1


def test_backoff_of_one_partition_does_not_delay_another() -> None:
    h = Harness(leaders=(0, 0), linger_ms=0)
    h.append(0)
    (batch,) = h.take()
    batch.mark_request_ended()
    h.reenqueue(batch)
    h.append(1)
    assert [other.topic_partition.partition for other in h.take()] == [1]


def test_backoff_grows_with_the_attempts_up_to_its_maximum() -> None:
    h = Harness(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=1000)
    h.append(0)
    (batch,) = h.take()
    waits: list[float] = []
    for _ in range(7):
        batch.mark_request_ended()
        h.reenqueue(batch)
        waits.append(h.ready().next_ready_check_delay_ms)
        h.clock.now += waits[-1]
        assert h.take() == [batch]
    for attempt, wait in enumerate(waits):
        usual = min(100 * 2**attempt, 1000)
        assert 0.8 * usual - 1e-6 <= wait <= min(1.2 * usual, 1000) + 1e-6


def test_new_leader_ends_backoff_of_current_retry_but_not_of_the_next() -> None:
    h = Harness(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0)
    (batch,) = h.take()
    batch.mark_request_ended()
    h.reenqueue(batch)
    assert h.ready_nodes() == set()
    h.snapshot = cluster((1, 0, 1), epoch=2)
    assert h.ready_nodes() == {1}
    assert h.take() == [batch]
    batch.mark_request_ended()
    h.reenqueue(batch)
    assert h.ready_nodes() == set()


def test_metadata_without_leader_change_ends_no_backoff() -> None:
    h = Harness(linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0)
    (batch,) = h.take()
    batch.mark_request_ended()
    h.reenqueue(batch)
    h.snapshot = cluster((0, 0, 1))
    assert h.ready_nodes() == set()


def test_batch_that_lingers_again_after_aborted_flush_does_not_delay_its_node() -> None:
    h = Harness(leaders=(0, 0))
    h.append(0)
    flush = h.begin_flush()
    assert h.ready_nodes() == {0}
    assert not h.flushed(flush)
    h.append(1, BATCH_ROWS + 1)
    assert h.ready_nodes() == {0}
    assert [batch.topic_partition.partition for batch in h.drain(0)] == [1]


def test_leader_change_while_in_flight_skips_backoff() -> None:
    h = Harness(leaders=(0,), retry_backoff_ms=100, retry_backoff_max_ms=100)
    h.append(0, 3 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(2)]
    h.snapshot = cluster((1,), epoch=2)
    h.ready()
    for batch in reversed(sent):
        batch.mark_request_ended()
        h.reenqueue(batch)
    assert [h.take()[0] for _ in range(2)] == sent


def test_reenqueues_retried_batches_in_sequence_order() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.append(0, 5 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(4)]
    for batch in (sent[2], sent[0], sent[3], sent[1]):
        batch.mark_request_ended()
        h.reenqueue(batch)
    again = [h.take()[0] for _ in range(4)]
    assert again == sent


def test_reenqueues_retried_batches_in_order_across_sequence_wrap() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.gate.next_sequence[tp(0)] = 2**31 - 5
    h.append(0, 5 * BATCH_ROWS)
    sent = [h.take()[0] for _ in range(3)]
    assert sent[0].base_sequence == 2**31 - 5
    assert sent[1].base_sequence == BATCH_ROWS - 5
    for batch in (sent[1], sent[2], sent[0]):
        batch.mark_request_ended()
        h.reenqueue(batch)
    assert [h.take()[0] for _ in range(3)] == sent


def test_reenqueues_retried_batch_without_sequence_at_the_front() -> None:
    h = Harness(retry_backoff_ms=0, retry_backoff_max_ms=0)
    h.gate.admit = lambda *_: True  # type: ignore[method-assign]
    h.append(0, 3 * BATCH_ROWS)
    (first,) = h.take()
    first.mark_request_ended()
    h.reenqueue(first)
    assert h.take() == [first]
