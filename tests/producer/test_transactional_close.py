"""close() of a producer whose transaction is open, or whose commit or abort has not finished."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import DeliveryTimeoutError, ProducerClosedError, TransactionTimeoutError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    create_cluster,
    create_producer,
    create_producer_in_transaction,
    pass_time,
    read_committed,
    send,
    send_and_flush,
    state,
)


def test_aborted_record_stays_invisible_if_close_follows_an_abort_that_timed_out() -> None:
    """With brokers before Kafka 3.6, an EndTxn would let the late batch open the next transaction."""
    cluster = create_cluster(1, verifies_transactions=False)
    cluster.executes_after_disconnect = True
    limits = {"max_block_ms": 550, "delivery_timeout_ms": 900, "request_timeout_ms": 300}
    producer = create_producer(cluster, **limits)
    producer.init_transactions()
    producer.begin_transaction()
    send_and_flush(producer, b"stored")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).delay(5000, execute_first=False)
    late = send(producer, b"late")
    pass_time(producer, 300)
    with pytest.raises(TransactionTimeoutError):
        producer.abort_transaction()
    producer.close()
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    assert state(cluster) is TransactionState.ONGOING
    cluster.control.clear()
    cluster.system.advance(6000)
    heir = create_producer(cluster)
    heir.init_transactions()
    with heir.transaction():
        send(heir, b"heir")
    assert read_committed(cluster) == [b"heir"]


def test_close_aborts_transaction_whose_pending_commit_fails_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"max_block_ms": 1000, "delivery_timeout_ms": 1500, "request_timeout_ms": 1000}
    cluster, producer = create_producer_in_transaction(2, **limits)
    send_and_flush(producer, b"stored")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.NOT_ENOUGH_REPLICAS)
    send(producer, b"expires")
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction()
    producer.close()
    assert state(cluster) is TransactionState.COMPLETE_ABORT
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with pytest.raises(ProducerClosedError) as raised:
        producer.commit_transaction()
    assert not raised.value.possibly_stored


@BOTH_VERSIONS
def test_close_warns_of_transaction_that_could_not_be_aborted(version: int, caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=600_000)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    producer.close()
    assert state(cluster) is TransactionState.ONGOING
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "close() has not ended the transaction" in warning


def test_close_does_not_warn_of_transaction_that_no_broker_knows(caplog: pytest.LogCaptureFixture) -> None:
    """The transaction is empty, and its new epoch, which version 1 needs after a lost response, cannot be obtained."""
    cluster, producer = create_producer_in_transaction(1, max_block_ms=1000, request_timeout_ms=300)
    send_and_flush(producer, b"1")
    cluster.executes_after_disconnect = True
    cluster.control.when(api=ApiKey.END_TXN).delay(400)
    producer.commit_transaction()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    producer.begin_transaction()
    caplog.clear()
    producer.close()
    assert state(cluster) is TransactionState.COMPLETE_COMMIT
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_close_does_not_warn_of_prepared_transaction(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    producer.prepare_transaction()
    producer.close()
    assert state(cluster) is TransactionState.ONGOING
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    "call",
    [
        KafkaProducer.commit_transaction,
        KafkaProducer.abort_transaction,
        lambda producer: producer.send_offsets_to_transaction({("t", 0): 1}, "group"),
    ],
    ids=["commit", "abort", "send offsets"],
)
def test_call_that_begins_after_the_sender_has_ended_fails_without_waiting(
    call: Callable[[KafkaProducer], None],
) -> None:
    """A signal handler calls close() after the call has checked that the producer is open."""
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    producer.close(timeout=0)
    producer._is_closed = False  # as the call has seen it
    started_ms = cluster.system.now()
    with pytest.raises(ProducerClosedError):
        call(producer)
    assert cluster.system.now() == started_ms
