"""Aborts of a transaction in which a broker may still store a batch, because its response was lost.

Before Kafka 3.6, leaders do not check that the transaction of a batch is still open (version 1). A batch that is stored
after the end of its transaction opens the next one: no `read_committed` reader gets past it, and the next commit of the
same producer makes it visible.
"""

from __future__ import annotations

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import DeliveryTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
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


def test_closed_producer_leaves_abort_to_coordinator_if_a_batch_may_be_stored_late() -> None:
    """The batch has expired, so it is not sent again."""
    cluster, producer = begin_on_broker_without_verification(delivery_timeout_ms=300, request_timeout_ms=300)
    cluster.control.when(api=ApiKey.PRODUCE).delay(5000, execute_first=False)
    late = send(producer, b"late")
    pass_time(producer, 1000)
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    producer.close()
    assert state(cluster) is TransactionState.ONGOING
    heir = create_producer(cluster)
    heir.init_transactions()
    pass_time(heir, 5000)
    assert cluster.log("t").list_open_producer_ids() == []
    with heir.transaction():
        send(heir, b"heir")
    assert read_committed(cluster) == [b"heir"]


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
