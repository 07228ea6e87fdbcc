"""Idempotence in a transaction: sequences do not change after a missing record, since only brokers bump the epoch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.idempotence import MAX_AGE_MS, Idempotence
from spark_kafka_sink.producer.sending.partition_states import Phase
from tests.producer.sending.checked_idempotence import CheckedIdempotence
from tests.producer.sending.test_idempotence import CONNECTION, T0, admitted, create_batch, stamp, store
from tests.producer.transactions.transaction_cases import Talk


def begun() -> tuple[Talk, Idempotence]:
    """Create an Idempotence in a transaction, with a partition that has stored one record."""
    talk = Talk(version=2)
    talk.init()
    talk.manager.begin(2)
    idempotence = CheckedIdempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=lambda node: CONNECTION,
        get_topic_id=lambda topic: None,
        get_unix_time_ms=lambda: 0,
        transactions=talk.manager,
    )
    idempotence.set_producer_id_and_epoch(talk.manager.id_and_epoch)
    store(idempotence, admitted(idempotence)[0])
    return talk, idempotence


@pytest.mark.parametrize("in_doubt", [False, True])
def test_batch_behind_failed_record_in_transaction_stays_in_doubt_or_not(in_doubt: bool) -> None:
    talk, idempotence = begun()
    epoch = talk.manager.id_and_epoch
    refused, behind = admitted(idempotence, T0, 2)
    idempotence.handle_failed_attempt(refused, in_doubt=False)
    idempotence.handle_failed_batch(refused, in_doubt=False)
    idempotence.handle_failed_attempt(behind, in_doubt=in_doubt)
    idempotence.handle_retry(behind, needs_new_sequence=False)
    assert idempotence.id_and_epoch == epoch
    assert idempotence.take_abandoned_batches() == []
    assert stamp(behind) == (epoch.epoch, 2)
    assert idempotence.partition_state(T0).phase is Phase.AWAITING_EPOCH
    assert not idempotence.admit(behind, 0)
    assert not idempotence.admit(create_batch(), 0)
    assert idempotence.is_in_doubt(behind) is in_doubt
    idempotence.handle_failed_batch(behind, in_doubt=in_doubt)
    assert idempotence.partition_state(T0).pending_batches == []


def test_partition_continues_with_epoch_assigned_at_end_of_transaction() -> None:
    talk, idempotence = begun()
    (refused,) = admitted(idempotence)
    idempotence.handle_failed_attempt(refused, in_doubt=False)
    idempotence.handle_failed_batch(refused, in_doubt=False)
    following = ProducerIdAndEpoch(talk.manager.id_and_epoch.producer_id, talk.manager.id_and_epoch.epoch + 1)
    idempotence.set_producer_id_and_epoch(following)
    (next_one,) = admitted(idempotence)
    assert stamp(next_one) == (following.epoch, 0)


def test_pipelines_records_with_old_timestamps_in_transaction() -> None:
    """Brokers do not forget a producer during its transaction."""
    _, idempotence = begun()
    old_batches = [create_batch(), create_batch()]
    for batch in old_batches:
        batch.max_timestamp = -MAX_AGE_MS
    assert [idempotence.admit(batch, 0) for batch in old_batches] == [True, True]
