"""IncompleteBatches: expired batches are found without a scan of all batches in each round."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.incomplete_batches import Flush, IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS


def create_batch(deadline_ms: float) -> ProducerBatch:
    return ProducerBatch(TopicPartition("t", 0), oldest_row_arrival_ms=0.0, deadline_ms=deadline_ms)


@pytest.fixture
def incomplete() -> IncompleteBatches:
    return IncompleteBatches()


def test_next_deadline_is_never_later_than_any_deadline(incomplete: IncompleteBatches) -> None:
    late, early = create_batch(200), create_batch(100)
    incomplete.add(late)
    assert incomplete.next_deadline_ms == 200
    incomplete.add(early)
    assert incomplete.next_deadline_ms == 100


def test_completed_batch_causes_at_most_one_search_for_expired_batches(incomplete: IncompleteBatches) -> None:
    completed, other = create_batch(100), create_batch(200)
    incomplete.add(completed)
    incomplete.add(other)
    incomplete.remove(completed)
    assert incomplete.take_expired(100) == []
    assert incomplete.next_deadline_ms == 200
    incomplete.remove(other)
    assert incomplete.next_deadline_ms == INFINITE_MS


def test_flush_completes_when_its_last_batches_complete_together(incomplete: IncompleteBatches) -> None:
    first, second, third, later = (create_batch(100) for _ in range(4))
    for batch in (first, second, third):
        incomplete.add(batch)
    incomplete.begin_flush(flush := Flush())
    incomplete.assign_batches_to_flushes([flush])
    incomplete.add(later)
    incomplete.remove(first, later)
    assert not flush.done_event.is_set()
    incomplete.remove(second, third)
    assert flush.done_event.is_set()


def test_expired_batches_are_ordered_by_deadline_not_by_insertion(
    incomplete: IncompleteBatches,
) -> None:
    parent, younger, child = create_batch(100), create_batch(101), create_batch(100)
    incomplete.add(parent)
    incomplete.add(younger)
    incomplete.add(child)  # the parent was split
    incomplete.remove(parent, successors=[child])
    assert incomplete.take_expired(150) == [child, younger]
    assert incomplete.take_expired(150) == []
    assert incomplete.next_deadline_ms == INFINITE_MS


def test_pinned_batch_expires_when_it_is_unpinned(incomplete: IncompleteBatches) -> None:
    batch = create_batch(100)
    batch.pin()
    incomplete.add(batch)
    assert incomplete.take_expired(100) == []
    assert incomplete.next_deadline_ms == 100
    batch.unpin()
    assert incomplete.take_expired(100) == [batch]


def test_done_batch_does_not_expire(incomplete: IncompleteBatches) -> None:
    batch = create_batch(100)
    incomplete.add(batch)
    batch.fail(ValueError())
    assert incomplete.take_expired(100) == []
    assert incomplete.next_deadline_ms == INFINITE_MS


def test_flush_that_begins_while_batches_are_filled_waits_for_its_rows(
    incomplete: IncompleteBatches,
) -> None:
    incomplete.begin_flush(first := Flush())
    flushes = incomplete.find_flushes_without_batches()
    incomplete.begin_flush(later := Flush())
    incomplete.assign_batches_to_flushes(flushes)
    assert first.done_event.is_set()
    assert not later.done_event.is_set()
    assert incomplete.find_flushes_without_batches() == [later]
    incomplete.end_flush(first)
    incomplete.end_flush(later)
    assert not incomplete.is_flush_in_progress
