"""TransactionManager when the producer is closed during an abort, while brokers may still store a failed batch."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.transactions.manager import Request, TransactionManager
from spark_kafka_sink.requests.transactions import EndTransaction


@pytest.fixture
def manager() -> TransactionManager:
    """A manager that is aborting a transaction of version 1, one batch of which may still be stored."""
    manager = TransactionManager("x", 60_000)
    initialization = manager.init()
    with manager._lock:  # the sender holds it while it handles a response
        manager.on_initialized(ProducerIdAndEpoch(1, 0))
    initialization.read_result()
    manager.begin(1)
    with manager._lock:
        manager.on_partitions_added([TopicPartition("t", 0)])
    manager.handle_failed_batch(DeliveryTimeoutError("expired"), has_sequence=True, in_doubt=True)
    manager.abort()
    return manager


def get_end_request(manager: TransactionManager) -> Request:
    request = manager.next_request(0, is_flushed=True)
    assert isinstance(request, EndTransaction)
    return request


def test_does_not_send_an_end_request_that_was_derived_before_close(manager: TransactionManager) -> None:
    request = get_end_request(manager)
    assert manager.abort_or_get_pending() is None
    assert not manager.try_begin_sending(request)
    assert manager.next_request(0, is_flushed=True) is None
    assert manager.leaves_transaction_open


def test_close_awaits_an_abort_whose_end_request_was_sent(manager: TransactionManager) -> None:
    assert manager.try_begin_sending(get_end_request(manager))
    assert manager.abort_or_get_pending() is manager.abort()
    assert get_end_request(manager)  # for a retry
