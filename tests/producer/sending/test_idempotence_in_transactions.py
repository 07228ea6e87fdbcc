"""Idempotence in a transaction: sequences do not change after a missing record, since only brokers bump the epoch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.idempotence import MAX_AGE_MS, Idempotence
from spark_kafka_sink.producer.sending.partition_states import Phase
from tests.producer.sending.checked_idempotence import CheckedIdempotence
from tests.producer.sending.test_idempotence import CONNECTION, T0, admit_batches, create_batch, stamp, store
from tests.producer.transactions.transaction_cases import TransactionHarness


def begin_transaction() -> tuple[TransactionHarness, Idempotence]:
    """Create an Idempotence in a transaction, with a partition that has stored one record."""
    harness = TransactionHarness(version=2)
    harness.init()
    harness.manager.begin(2)
    idempotence = CheckedIdempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
        transactions=harness.manager,
    )
    idempotence.set_producer_id_and_epoch(harness.manager.id_and_epoch)
    store(idempotence, admit_batches(idempotence)[0])
    return harness, idempotence


@pytest.mark.parametrize("in_doubt", [False, True])
def test_batch_behind_failed_record_in_transaction_stays_in_doubt_or_not(in_doubt: bool) -> None:
    harness, idempotence = begin_transaction()
    epoch = harness.manager.id_and_epoch
    rejected, later = admit_batches(idempotence, T0, 2)
    idempotence.handle_failed_attempt(rejected, in_doubt=False)
    idempotence.handle_failed_batch(rejected, in_doubt=False)
    idempotence.handle_failed_attempt(later, in_doubt=in_doubt)
    idempotence.handle_retry(later, needs_new_sequence=False)
    assert idempotence.id_and_epoch == epoch
    assert idempotence.take_abandoned_batches() == []
    assert stamp(later) == (epoch.epoch, 2)
    assert idempotence.partition_state(T0).phase is Phase.AWAITING_EPOCH
    assert not idempotence.admit(later, 0)
    assert not idempotence.admit(create_batch(), 0)
    assert idempotence.is_in_doubt(later) is in_doubt
    idempotence.handle_failed_batch(later, in_doubt=in_doubt)
    assert idempotence.partition_state(T0).pending_batches == []


def test_partition_continues_with_epoch_assigned_at_end_of_transaction() -> None:
    harness, idempotence = begin_transaction()
    (rejected,) = admit_batches(idempotence)
    idempotence.handle_failed_attempt(rejected, in_doubt=False)
    idempotence.handle_failed_batch(rejected, in_doubt=False)
    following = ProducerIdAndEpoch(harness.manager.id_and_epoch.producer_id, harness.manager.id_and_epoch.epoch + 1)
    idempotence.set_producer_id_and_epoch(following)
    (following_batch,) = admit_batches(idempotence)
    assert stamp(following_batch) == (following.epoch, 0)


def test_pipelines_records_with_old_timestamps_in_transaction() -> None:
    """Brokers do not forget a producer during its transaction."""
    _, idempotence = begin_transaction()
    old_batches = [create_batch(), create_batch()]
    for batch in old_batches:
        batch.max_timestamp = -MAX_AGE_MS
    assert [idempotence.admit(batch, 0) for batch in old_batches] == [True, True]
