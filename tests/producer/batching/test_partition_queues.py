"""PartitionQueues: order by wrapping sequences, and rounds that do not visit every partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.partition_queues import PartitionQueue, PartitionQueues, has_earlier_sequence
from tests.producer.batching.accumulator_harness import FOREVER, Gate, cluster, tp


def create_batch(sequence: int, epoch: int = 0) -> ProducerBatch:
    batch = ProducerBatch(tp(0), oldest_row_arrival_ms=0, deadline_ms=1000)
    batch.set_producer_state(1, epoch, sequence)
    batch.record_count = 1
    return batch


@pytest.mark.parametrize(
    ("first", "second", "is_earlier"),
    [(0, 1, True), (1, 0, False), (5, 5, False), (2**31 - 1, 0, True), (0, 2**31 - 1, False), (2**31 - 5, 7, True)],
)
def test_sequence_comparison_wraps_around(first: int, second: int, is_earlier: bool) -> None:
    assert has_earlier_sequence(create_batch(first), create_batch(second)) is is_earlier


def test_lower_epoch_precedes_higher_epoch_for_any_sequence() -> None:
    assert has_earlier_sequence(create_batch(99, epoch=1), create_batch(0, epoch=2))


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 1, 2), (2, 1, 0)])
def test_reenqueued_batches_are_in_sequence_order_before_unsent_ones(order: tuple[int, ...]) -> None:
    queue = PartitionQueue(tp(0))
    sent = [create_batch(2**31 - 2), create_batch(2**31 - 1), create_batch(0)]
    never_sent = ProducerBatch(tp(0), oldest_row_arrival_ms=0, deadline_ms=1000)
    queue.batches.append(never_sent)
    for index in order:
        queue.insert_in_sequence_order(sent[index])
    assert list(queue.batches) == [*sent, never_sent]


def closed_batch(partition: int) -> ProducerBatch:
    batch = ProducerBatch(tp(partition), oldest_row_arrival_ms=0, deadline_ms=1000)
    batch.record_count = 1
    batch.close()
    return batch


def test_round_visits_only_partitions_with_events() -> None:
    queues, snapshot = PartitionQueues(linger_ms=5), cluster([0] * 1000)
    queues.set_snapshot(snapshot, 0)
    visited_partitions: set[int] = set()

    class RecordingList(list[ProducerBatch]):
        def __getitem__(self, index: Any) -> Any:
            batch = super().__getitem__(index)
            visited_partitions.add(batch.topic_partition.partition)
            return batch

    for partition in range(1000):
        queue = queues.get(tp(partition))
        queue.batches = RecordingList([ProducerBatch(tp(partition), oldest_row_arrival_ms=100, deadline_ms=1000)])
        queues.schedule(queue, 100)
    assert len(visited_partitions) == 1000
    visited_partitions.clear()
    for now_ms in (101, 102, 103, 104):
        queues.set_snapshot(snapshot, now_ms)
        queues.set_linger_suspended(False, now_ms)
        queues.fire_timers(now_ms)
        assert queues.ready_node_ids() == frozenset()
    assert not visited_partitions
    assert queues.find_next_due_ms() == 105
    queues.fire_timers(105)
    assert len(visited_partitions) == 1000
    assert queues.ready_node_ids() == {0}


def test_stale_timer_makes_no_node_ready() -> None:
    queues = PartitionQueues(linger_ms=5)
    queues.set_snapshot(cluster([0]), 0)
    queue = queues.get(tp(0))
    queue.batches.append(ProducerBatch(tp(0), oldest_row_arrival_ms=0, deadline_ms=1000))
    queues.schedule(queue, 0)
    queue.batches.clear()
    queues.schedule(queue, 1)
    assert queues.find_next_due_ms() == FOREVER
    queues.fire_timers(10)
    assert queues.ready_node_ids() == frozenset()


def test_drains_all_partitions_of_a_node_in_turn() -> None:
    queues = PartitionQueues(linger_ms=0)
    queues.set_snapshot(cluster([0] * 5), 0)
    for partition in range(5):
        for _ in range(10):
            queues.get(tp(partition)).batches.append(closed_batch(partition))
        queues.schedule(queues.get(tp(partition)), 0)
    drained_partitions = [
        batch.topic_partition.partition for _ in range(10) for batch in queues.drain_node(0, 3 * 61, 0, Gate().admit)
    ]
    assert [drained_partitions.count(partition) for partition in range(5)] == [6, 6, 6, 6, 6]


def test_ready_queue_follows_new_leader() -> None:
    queues = PartitionQueues(linger_ms=0)
    queues.set_snapshot(cluster([0]), 0)
    queues.get(tp(0)).batches.append(closed_batch(0))
    queues.schedule(queues.get(tp(0)), 0)
    for leaders, nodes, unknown in (([1], {1}, set()), ([None], set(), {"t"}), ([0], {0}, set())):
        queues.set_snapshot(cluster(leaders), 0)
        assert queues.ready_node_ids() == nodes
        assert queues.unknown_leader_topics() == unknown


def test_snapshot_with_new_topic_does_not_touch_queues_of_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    queues, snapshot = PartitionQueues(linger_ms=0), cluster([0] * 100)
    queues.set_snapshot(snapshot, 0)
    for partition in range(100):
        queues.get(tp(partition))
    updated_topics: list[str] = []
    set_leader = queues._set_leader

    def record_lookup(queue: PartitionQueue) -> None:
        updated_topics.append(queue.topic_partition.topic)
        set_leader(queue)

    monkeypatch.setattr(queues, "_set_leader", record_lookup)
    other = cluster([1], topic="other").topics
    queues.set_snapshot(replace(snapshot, topics={**snapshot.topics, **other}), 0)
    assert updated_topics == []
    queues.get(TopicPartition("other", 0))
    updated_topics.clear()
    queues.set_snapshot(replace(snapshot, topics={**snapshot.topics, **cluster([0], topic="other").topics}), 0)
    assert updated_topics == ["other"]
    updated_topics.clear()
    queues.set_snapshot(replace(snapshot, nodes={0: snapshot.nodes[0]}), 0)
    assert len(updated_topics) == 101


def create_queue_with(*batches: ProducerBatch) -> tuple[PartitionQueues, PartitionQueue]:
    queues = PartitionQueues(linger_ms=5)
    queues.set_snapshot(cluster([0]), 0)
    queue = queues.get(tp(0))
    queue.batches.extend(batches)
    queues.schedule(queue, 0)
    return queues, queue


def test_skips_pinned_batch_until_it_is_unpinned() -> None:
    first, second = (ProducerBatch(tp(0), oldest_row_arrival_ms=0, deadline_ms=1000) for _ in range(2))
    queues, queue = create_queue_with(first, second)
    first.pin()
    second.pin()  # both are being compressed in a queue that was ready
    assert queues.drain_node(0, 1 << 20, 0, Gate().admit) == []
    first.close()
    queues.schedule(queue, 0)
    assert queues.drain_node(0, 1 << 20, 0, Gate().admit) == [first]
    assert queues.ready_node_ids() == frozenset()
    second.close()
    queues.schedule(queue, 0)
    assert queues.drain_node(0, 1 << 20, 0, Gate().admit) == [second]


def test_retry_backs_off_behind_batch_without_backoff() -> None:
    first, second = closed_batch(0), closed_batch(0)
    second.failed_attempts, second.backoff_until_ms = 1, 50
    queues, _ = create_queue_with(first, second)
    assert queues.drain_node(0, 1 << 20, 0, Gate().admit) == [first]
    assert (queues.ready_node_ids(), queues.find_next_due_ms()) == (frozenset(), 50)
    queues.fire_timers(50)
    assert queues.drain_node(0, 1 << 20, 50, Gate().admit) == [second]


def test_retry_at_head_of_ready_queue_backs_off() -> None:
    queues, queue = create_queue_with(closed_batch(0))
    retried = create_batch(0)
    retried.close()
    retried.failed_attempts, retried.backoff_until_ms = 1, 50
    queue.insert_in_sequence_order(retried)
    assert queues.drain_node(0, 1 << 20, 0, Gate().admit) == []
    assert queues.find_next_due_ms() == 50


def test_open_batch_lingers_again_after_linger_suspension() -> None:
    batch = ProducerBatch(tp(0), oldest_row_arrival_ms=0, deadline_ms=1000)
    queues, _ = create_queue_with(batch)
    queues.set_linger_suspended(True, 1)
    assert queues.ready_node_ids() == {0}
    queues.set_linger_suspended(False, 1)
    assert queues.drain_node(0, 1 << 20, 1, Gate().admit) == []
    queues.fire_timers(5)
    assert queues.drain_node(0, 1 << 20, 5, Gate().admit) == [batch]
