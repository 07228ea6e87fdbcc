"""Aborts of a transaction in which a broker may still store a batch, because its response was lost.

Before Kafka 3.6, leaders do not check that the transaction of a batch is still open (version 1). A batch that is stored
after the end of its transaction opens the next one: no `read_committed` reader gets past it, and the next commit of the
same producer makes it visible.
"""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import DeliveryTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.transactional_cases import (
    Sent,
    create_cluster,
    create_producer,
    pass_time,
    read_committed,
    send,
    send_and_flush,
    state,
)
from tests.producer.virtual_time import get_loop, get_sender
from tests.simulated_cluster import SimulatedCluster

LATE_MS = 200


def begin_on_broker_without_verification(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    """Create a producer whose open transaction contains one stored record."""
    cluster = create_cluster(1, verifies_transactions=False)
    cluster.executes_after_disconnect = True
    producer = create_producer(cluster, **options)
    producer.init_transactions()
    producer.begin_transaction()
    send_and_flush(producer, b"stored")
    return cluster, producer


def send_and_lose_connection(cluster: SimulatedCluster, producer: KafkaProducer) -> Sent:
    """Send a record that the broker stores later, and lose the connection before it does."""
    cluster.control.when(api=ApiKey.PRODUCE).delay(LATE_MS, execute_first=False)
    future = send(producer, b"late")
    pass_time(producer, 10)
    cluster.close_connections(0)
    pass_time(producer, 5)
    return future


def test_aborted_record_does_not_become_part_of_next_transaction() -> None:
    cluster, producer = begin_on_broker_without_verification()
    send_and_lose_connection(cluster, producer)
    producer.abort_transaction()
    pass_time(producer, LATE_MS)
    assert cluster.log("t").list_open_producer_ids() == []
    with producer.transaction():
        send(producer, b"next")
    assert read_committed(cluster) == [b"next"]


def test_connection_that_is_lost_during_abort_leaves_no_open_transaction() -> None:
    cluster, producer = begin_on_broker_without_verification()
    cluster.control.when(api=ApiKey.PRODUCE).delay(LATE_MS, execute_first=False)
    send(producer, b"late")
    pass_time(producer, 10)
    cluster.system.after(10, lambda: cluster.close_connections(0))
    producer.abort_transaction()
    pass_time(producer, LATE_MS)
    assert cluster.log("t").list_open_producer_ids() == []


@pytest.mark.parametrize("ms_before_close", [1000, 10], ids=["before", "during"])
def test_close_leaves_transaction_with_expired_batch_to_coordinator(
    ms_before_close: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is not sent again, and the broker stores it late."""
    cluster, producer = begin_on_broker_without_verification(delivery_timeout_ms=300, request_timeout_ms=300)
    cluster.control.when(api=ApiKey.PRODUCE).delay(5000, execute_first=False)
    late = send(producer, b"late")
    pass_time(producer, ms_before_close)
    producer.close()
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "close() has not ended the transaction" in caplog.messages[-1]
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    assert state(cluster) is TransactionState.ONGOING
    successor = create_producer(cluster)
    successor.init_transactions()
    pass_time(successor, 5000)
    assert cluster.log("t").list_open_producer_ids() == []
    with successor.transaction():
        send(successor, b"heir")
    assert read_committed(cluster) == [b"heir"]


def test_close_that_ends_with_a_batch_in_flight_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = begin_on_broker_without_verification()
    cluster.control.when(api=ApiKey.PRODUCE).delay(100_000, execute_first=False)
    late = send(producer, b"late")
    pass_time(producer, 10)
    producer.close(timeout=1)
    assert isinstance(late.exception(0), ProducerClosedError)
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]
    assert state(cluster) is TransactionState.ONGOING


def test_closed_producer_leaves_no_open_transaction() -> None:
    cluster, producer = begin_on_broker_without_verification()
    send_and_lose_connection(cluster, producer)
    producer.close()
    other = create_producer(cluster, "other")
    other.init_transactions()
    pass_time(other, LATE_MS)
    with other.transaction():
        send(other, b"other")
    assert read_committed(cluster) == [b"other"]


def test_batch_in_doubt_behind_a_dropped_one_does_not_delay_the_abort() -> None:
    """The first batch waits for a retry after a rejection, so the broker accepts none of the batches behind it."""
    cluster, producer = begin_on_broker_without_verification(retry_backoff_ms=1000, retry_backoff_max_ms=1000)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.NOT_ENOUGH_REPLICAS)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(LATE_MS, execute_first=False)
    send(producer, b"rejected")
    pass_time(producer, 1)
    send(producer, b"in doubt")
    pass_time(producer, 20)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    cluster.close_connections(0)
    pass_time(producer, 3300)
    manager, started_ms = get_sender(producer)._transactions, cluster.system.now()
    assert manager is not None
    operations = []

    def abort() -> None:
        operations.append(manager.abort())
        producer._client.wakeup()

    cluster.system.after(1, abort)  # as another thread does it while the sender waits
    get_loop(producer).run_until(lambda: bool(operations) and operations[0].done_event.is_set())
    assert cluster.system.now() - started_ms < 1000
