"""Idempotence without a sender: sequences, gaps, unresolved partitions and epochs (Kafka's TransactionManagerTest)."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.partition_states import Phase
from tests.producer.sending.checked_idempotence import CheckedIdempotence

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = ProducerIdAndEpoch(7, 0)
CONNECTION = NodeApiVersions("b", {})


def create_idempotence(id_and_epoch: ProducerIdAndEpoch = FIRST) -> Idempotence:
    """Create an Idempotence with two partitions that have each stored one record."""
    idempotence = CheckedIdempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    idempotence.set_producer_id_and_epoch(id_and_epoch)
    for partition in (T0, T1):
        store(idempotence, admit_batches(idempotence, partition)[0])
    return idempotence


def create_batch(partition: TopicPartition = T0, records: int = 1) -> ProducerBatch:
    batch = ProducerBatch(partition, oldest_row_arrival_ms=0, deadline_ms=1_000)
    batch.record_count = records
    return batch


def admit_batches(idempotence: Idempotence, partition: TopicPartition = T0, count: int = 1) -> list[ProducerBatch]:
    batches = [create_batch(partition) for _ in range(count)]
    assert all(idempotence.admit(batch, 0) for batch in batches)
    return batches


def store(idempotence: Idempotence, batch: ProducerBatch) -> None:
    idempotence.handle_stored_batch(batch, CONNECTION, None)


def retry(
    idempotence: Idempotence, batch: ProducerBatch, *, in_doubt: bool = False, needs_new_sequence: bool = False
) -> None:
    idempotence.handle_failed_attempt(batch, in_doubt=in_doubt)
    idempotence.handle_retry(batch, needs_new_sequence=needs_new_sequence)


def expire(idempotence: Idempotence, batch: ProducerBatch) -> None:
    """Fail a batch that has expired after an attempt without a response."""
    idempotence.handle_failed_attempt(batch, in_doubt=True)
    idempotence.handle_failed_batch(batch, in_doubt=True)


def stamp(batch: ProducerBatch) -> tuple[int, int]:
    return batch.producer_epoch, batch.base_sequence


def test_sequences_start_at_0_and_count_records() -> None:
    idempotence = create_idempotence()
    three, one = create_batch(records=3), create_batch()
    assert idempotence.admit(three, 0)
    assert idempotence.admit(one, 0)
    assert (stamp(three), stamp(one), idempotence.partition_state(T0).next_sequence) == ((0, 1), (0, 4), 5)


def test_admits_no_batch_before_producer_id_is_known() -> None:
    idempotence = CheckedIdempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    before = idempotence.needs_producer_id, idempotence.admit(create_batch(), 0)
    idempotence.set_producer_id_and_epoch(FIRST)
    after = idempotence.needs_producer_id, idempotence.admit(create_batch(), 0)
    assert (before, after) == ((True, False), (False, True))


def test_rejected_batches_get_new_sequences_when_none_is_in_flight() -> None:
    idempotence = create_idempotence()
    first, second, third, fourth, fifth = admit_batches(idempotence, T0, 5)
    store(idempotence, first)
    retry(idempotence, second, needs_new_sequence=True)
    assert idempotence.id_and_epoch == FIRST  # the others are still in flight with their old sequences
    assert [stamp(batch) for batch in (third, fourth, fifth)] == [(0, 3), (0, 4), (0, 5)]
    for batch in (third, fourth, fifth):
        retry(idempotence, batch)
    assert idempotence.id_and_epoch == ProducerIdAndEpoch(7, 1)
    assert [stamp(batch) for batch in (second, third, fourth, fifth)] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert (idempotence.partition_state(T0).next_sequence, idempotence.partition_state(T0).last_acked_sequence) == (
        4,
        -1,
    )


@pytest.mark.parametrize("last_epoch", [False, True])
def test_restart_of_one_partition_keeps_sequences_of_others(last_epoch: bool) -> None:
    idempotence = create_idempotence(ProducerIdAndEpoch(7, MAX_EPOCH) if last_epoch else FIRST)
    old = idempotence.id_and_epoch
    (failed_batch,), (unaffected_batch, following_batch) = (
        admit_batches(idempotence, T0),
        admit_batches(idempotence, T1, 2),
    )
    retry(idempotence, failed_batch, needs_new_sequence=True)
    assert idempotence.id_and_epoch == (NO_PRODUCER_ID if last_epoch else ProducerIdAndEpoch(7, 1))
    store(idempotence, unaffected_batch)
    state = idempotence.partition_state(T1)
    assert (state.id_and_epoch, state.next_sequence, state.last_acked_sequence) == (old, 3, 1)
    assert state.pending_batches == [following_batch]
    assert stamp(following_batch) == (old.epoch, 2)


def test_batches_of_previous_producer_id_complete_before_new_one_is_used() -> None:
    idempotence = create_idempotence(ProducerIdAndEpoch(7, MAX_EPOCH))
    (failed_batch,), (first, second) = admit_batches(idempotence, T0), admit_batches(idempotence, T1, 2)
    retry(idempotence, failed_batch, needs_new_sequence=True)
    assert not idempotence.admit(failed_batch, 0)  # there is no producer id for it yet
    idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(8, 0))
    assert (failed_batch.producer_id, *stamp(failed_batch)) == (8, 0, 0)
    store(idempotence, first)
    retry(idempotence, second, in_doubt=True)
    assert idempotence.admit(second, 0)  # with the previous producer id
    assert (second.producer_id, *stamp(second)) == (7, MAX_EPOCH, 2)
    new = create_batch(T1)
    assert not idempotence.admit(new, 0)
    store(idempotence, second)
    assert idempotence.admit(new, 0)
    assert (new.producer_id, *stamp(new)) == (8, 0, 0)


def test_expired_batch_starts_new_epoch_immediately_when_nothing_is_in_flight() -> None:
    idempotence = create_idempotence()
    (lost,) = admit_batches(idempotence)
    expire(idempotence, lost)
    assert idempotence.id_and_epoch == ProducerIdAndEpoch(7, 1)
    (following,) = admit_batches(idempotence)
    assert stamp(following) == (1, 0)


def test_sequences_do_not_restart_while_expired_batch_is_in_flight() -> None:
    idempotence = create_idempotence()
    (lost,) = admit_batches(idempotence)
    idempotence.handle_failed_batch(lost, in_doubt=True)
    assert idempotence.partition_state(T0).has_unresolved_sequence
    assert not idempotence.admit(create_batch(), 0)
    idempotence.handle_failed_attempt(lost, in_doubt=True)
    idempotence.handle_late_failure(lost)
    assert (idempotence.id_and_epoch, idempotence.partition_state(T0).has_unresolved_sequence) == (
        ProducerIdAndEpoch(7, 1),
        False,
    )


def test_success_behind_expired_batches_resolves_them() -> None:
    idempotence = create_idempotence()
    first, second, third = admit_batches(idempotence, T0, 3)
    expire(idempotence, first)
    expire(idempotence, second)
    assert idempotence.partition_state(T0).has_unresolved_sequence
    assert not idempotence.admit(create_batch(), 0)
    store(idempotence, third)
    assert (
        idempotence.id_and_epoch,
        idempotence.partition_state(T0).has_unresolved_sequence,
        idempotence.partition_state(T0).next_sequence,
    ) == (FIRST, False, 4)
    (following,) = admit_batches(idempotence)
    assert stamp(following) == (0, 4)


def test_last_expired_batch_behind_a_success_starts_new_epoch() -> None:
    idempotence = create_idempotence()
    first, second, third = admit_batches(idempotence, T0, 3)
    expire(idempotence, first)
    store(idempotence, second)
    assert (idempotence.id_and_epoch, idempotence.partition_state(T0).has_unresolved_sequence) == (FIRST, True)
    expire(idempotence, third)
    assert (idempotence.id_and_epoch, idempotence.partition_state(T0).has_unresolved_sequence) == (
        ProducerIdAndEpoch(7, 1),
        False,
    )
    assert idempotence.partition_state(T0).next_sequence == 0


def test_batch_behind_unstored_expired_batch_is_first_under_new_epoch() -> None:
    idempotence = create_idempotence()
    first, second = admit_batches(idempotence, T0, 2)
    retry(idempotence, first, in_doubt=True)
    retry(idempotence, second)
    idempotence.handle_failed_batch(first, in_doubt=True)  # it expires between two attempts
    new = create_batch()
    assert not idempotence.admit(new, 0)
    assert idempotence.admit(second, 0)  # with its sequence unchanged, because the first batch may be stored
    assert stamp(second) == (0, 2)
    retry(idempotence, second, needs_new_sequence=True)  # out of order, so the first batch is not stored
    assert (idempotence.id_and_epoch, stamp(second)) == (ProducerIdAndEpoch(7, 1), (1, 0))
    assert idempotence.admit(second, 0)
    store(idempotence, second)
    assert idempotence.admit(new, 0)
    assert stamp(new) == (1, 1)


def test_batch_that_expired_unsent_does_not_change_sequences() -> None:
    idempotence = create_idempotence()
    idempotence.handle_failed_batch(create_batch(), in_doubt=False)
    state = idempotence.partition_state(T0)
    assert (idempotence.id_and_epoch, state.has_unresolved_sequence, state.gap_start, state.next_sequence) == (
        FIRST,
        False,
        None,
        1,
    )


def test_limits_requests_in_flight_and_sets_no_sequences_without_idempotence() -> None:
    idempotence = Idempotence(
        enabled=False,
        max_in_flight=2,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    first, second, third = create_batch(), create_batch(), create_batch()
    assert [idempotence.admit(batch, 0) for batch in (first, second, third)] == [True, True, False]
    assert not first.has_sequence
    idempotence.handle_failed_attempt(first, in_doubt=True)
    assert idempotence.admit(third, 0)
    assert [idempotence.is_in_doubt(batch) for batch in (first, second)] == [True, False]
    idempotence.handle_stored_batch(first, CONNECTION, None)  # stored by the second attempt
    assert not idempotence.is_in_doubt(first)


def test_admits_no_new_batch_before_retries() -> None:
    idempotence = create_idempotence()
    (first,) = admit_batches(idempotence)
    retry(idempotence, first)
    assert not idempotence.admit(create_batch(), 0)
    assert idempotence.admit(first, 0)
    store(idempotence, first)
    assert idempotence.admit(create_batch(), 0)


def test_children_of_batch_in_doubt_are_in_doubt() -> None:
    idempotence = create_idempotence()
    batch, parts = create_batch(records=2), [create_batch(), create_batch()]
    assert idempotence.admit(batch, 0)
    retry(idempotence, batch, in_doubt=True)
    assert idempotence.admit(batch, 0)
    for part, sequence in zip(parts, (batch.base_sequence, batch.last_sequence), strict=True):
        part.set_producer_state(batch.producer_id, batch.producer_epoch, sequence)
    idempotence.handle_failed_attempt(batch, in_doubt=False)
    idempotence.handle_split(batch, parts)
    assert [idempotence.is_in_doubt(part) for part in (*parts, batch)] == [True, True, False]


def test_batches_keep_sequences_until_all_before_the_gap_are_complete() -> None:
    idempotence = create_idempotence()
    before, rejected, later = admit_batches(idempotence, T0, 3)
    retry(idempotence, before)
    retry(idempotence, later)
    idempotence.handle_failed_attempt(rejected, in_doubt=False)
    idempotence.handle_failed_batch(rejected, in_doubt=False)
    assert idempotence.partition_state(T0).phase is Phase.REPAIRING
    assert [stamp(batch) for batch in (before, later)] == [(0, 1), (0, 3)]
    assert not idempotence.admit(later, 0)
    assert idempotence.admit(before, 0)
    store(idempotence, before)
    assert (idempotence.partition_state(T0).phase, stamp(later)) == (Phase.PROBING, (1, 0))


def test_batch_that_may_be_stored_keeps_its_sequence_when_sequences_restart() -> None:
    idempotence = create_idempotence()
    rejected, in_doubt = admit_batches(idempotence, T0, 2)
    retry(idempotence, in_doubt, in_doubt=True)
    retry(idempotence, rejected, needs_new_sequence=True)
    assert idempotence.take_abandoned_batches() == [in_doubt]
    assert (stamp(rejected), stamp(in_doubt)) == ((1, 0), (0, 2))
    assert idempotence.partition_state(T0).pending_batches == [rejected]


def test_only_limits_requests_in_flight_if_disabled() -> None:
    idempotence = CheckedIdempotence(
        enabled=False,
        max_in_flight=1,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    (batch,) = admit_batches(idempotence)
    assert not idempotence.admit(create_batch(), 0)
    store(idempotence, batch)
    assert idempotence.admit(create_batch(), 0)


def test_forgets_expired_batch_after_its_late_failure_if_disabled() -> None:
    idempotence = CheckedIdempotence(
        enabled=False,
        max_in_flight=1,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    (batch,) = admit_batches(idempotence)
    idempotence.handle_failed_batch(batch, in_doubt=True)
    idempotence.handle_failed_attempt(batch, in_doubt=True)
    idempotence.handle_late_failure(batch)
    assert not idempotence.is_in_doubt(batch)


def test_describes_violated_invariants_of_partitions() -> None:
    idempotence = Idempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
    )
    idempotence.set_producer_id_and_epoch(FIRST)
    admit_batches(idempotence)
    assert idempotence.find_violations() == []
    idempotence.partition_state(T0).in_flight_node_id = 1
    (violation,) = idempotence.find_violations()
    assert "all requests in flight are to one node" in violation


def test_keeps_no_batch_after_the_end_of_all_requests() -> None:
    """A closed producer that its user still references must not keep the memory of batches."""
    idempotence = create_idempotence()
    batches = admit_batches(idempotence, count=2)
    idempotence.end_in_flight_requests()
    assert not idempotence.partition_state(T0).in_flight_batches
    assert not any(batch.has_request_in_flight for batch in batches)
