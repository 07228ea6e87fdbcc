"""Errors of a commit that the coordinator may have executed although no response has confirmed it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from spark_kafka_sink.errors import (
    AuthenticationError,
    BrokerError,
    DecodeError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.requests import transactions
from tests.fake_system import FakeSystem
from tests.producer.scenarios.test_rejected_authentication import SASL, AuthenticatingCluster
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    create_producer,
    create_producer_in_transaction,
    find_requests,
    pass_time,
    read_committed,
    send_and_flush,
)
from tests.producer.virtual_time import get_loop, get_sender
from tests.simulated_cluster import SimulatedCluster

WARNING = "The transaction may have been committed."


def fence_after_first_end_txn(cluster: SimulatedCluster, producer: KafkaProducer) -> None:
    """Initialize another producer with the same transactional.id once a broker has received an EndTxn."""
    successor = create_producer(cluster)
    has_fenced: list[bool] = []

    def fence() -> None:
        if not has_fenced and find_requests(cluster, EndTxnRequest):
            has_fenced.append(True)
            successor.init_transactions()

    get_loop(producer).after_round = fence


@BOTH_VERSIONS
@pytest.mark.parametrize("is_response_lost", [True, False])
def test_fenced_commit_may_be_committed_only_if_an_earlier_response_was_lost(
    version: int, is_response_lost: bool
) -> None:
    cluster, producer = create_producer_in_transaction(version, retry_backoff_ms=1000, retry_backoff_max_ms=1000)
    send_and_flush(producer, b"1")
    if is_response_lost:
        cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
        fence_after_first_end_txn(cluster, producer)
    else:
        create_producer(cluster).init_transactions()
    with pytest.raises(ProducerFencedError) as raised:
        producer.commit_transaction()
    assert read_committed(cluster) == ([b"1"] if is_response_lost else [])
    assert raised.value.possibly_stored is is_response_lost
    assert str(raised.value).endswith(WARNING) is is_response_lost
    with pytest.raises(ProducerFencedError) as raised:
        producer.commit_transaction()
    assert raised.value.possibly_stored is is_response_lost, "the repeated call says the same"


@BOTH_VERSIONS
@pytest.mark.parametrize("is_executed", [True, False])
def test_commit_rejected_with_unknown_server_error_may_be_committed(version: int, is_executed: bool) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).fail(codes.UNKNOWN_SERVER_ERROR, execute_first=is_executed)
    with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR") as raised:
        producer.commit_transaction()
    assert raised.value.possibly_stored
    assert str(raised.value).endswith(WARNING)


@BOTH_VERSIONS
def test_abortable_rejection_after_a_lost_response_does_not_ask_for_an_abort(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
    cluster.control.when(api=ApiKey.END_TXN, nth=2).fail(codes.TRANSACTION_ABORTABLE)
    with pytest.raises(BrokerError, match=f"{WARNING}$") as raised:
        producer.commit_transaction()
    assert raised.value.possibly_stored
    assert "abort_transaction()" not in str(raised.value)
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_commit_rejected_after_retriable_rejections_is_not_committed(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN, times=2).fail(codes.CONCURRENT_TRANSACTIONS)
    cluster.control.when(api=ApiKey.END_TXN, nth=3).fail(codes.INVALID_TXN_STATE)
    with pytest.raises(BrokerError, match="INVALID_TXN_STATE") as raised:
        producer.commit_transaction()
    assert not raised.value.possibly_stored
    assert WARNING not in str(raised.value)


@BOTH_VERSIONS
def test_commit_is_in_doubt_if_credentials_are_rejected_after_lost_response(version: int) -> None:
    cluster = AuthenticatingCluster(FakeSystem(latency_ms=1), topics={"t": 1}, transaction_version=version)
    producer = create_producer(cluster, **SASL)
    producer.init_transactions()
    producer.begin_transaction()
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).drop(execute_first=True)
    cluster.rejecting_nodes.add(0)
    with pytest.raises(AuthenticationError) as raised:
        producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]
    assert raised.value.possibly_stored
    assert str(raised.value).endswith(WARNING)


def test_commit_is_in_doubt_if_response_has_invalid_producer_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    monkeypatch.setattr(transactions, "parse_producer_id_and_epoch", Mock(side_effect=DecodeError("invalid epoch")))
    with pytest.raises(DecodeError, match="invalid epoch") as raised:
        producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]
    assert raised.value.possibly_stored


def commit_without_response(producer: KafkaProducer) -> None:
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction()


@BOTH_VERSIONS
@pytest.mark.parametrize("close", [lambda producer: producer.close(timeout=0), KafkaProducer.close])
def test_repeated_commit_after_close_reports_that_the_transaction_may_be_committed(
    version: int, close: Callable[[KafkaProducer], None]
) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=1000)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN, times=None).delay(100_000, execute_first=True)
    commit_without_response(producer)
    close(producer)
    with pytest.raises(ProducerClosedError) as raised:
        producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]
    assert raised.value.possibly_stored
    assert str(raised.value).endswith(WARNING)
    with pytest.raises(ProducerClosedError):
        producer.begin_transaction()


@BOTH_VERSIONS
def test_repeated_commit_after_close_succeeds_if_close_has_awaited_the_response(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=100)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).delay(150, execute_first=True)
    commit_without_response(producer)
    producer.close()
    producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]
    with pytest.raises(ProducerClosedError):
        producer.commit_transaction()


@BOTH_VERSIONS
def test_repeated_commit_after_close_reports_that_a_commit_that_was_not_sent_failed(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=1000)
    send_and_flush(producer, b"1")
    cluster.control.stop_node(0)
    pass_time(producer, 100)
    commit_without_response(producer)
    producer.close(timeout=0)
    with pytest.raises(ProducerClosedError) as raised:
        producer.commit_transaction()
    assert not raised.value.possibly_stored


@BOTH_VERSIONS
@pytest.mark.parametrize("is_taken_over", [True, False])
def test_prepared_transaction_may_have_been_committed_by_another_process(version: int, is_taken_over: bool) -> None:
    """The process that has committed it dies before it reports this, and the transactional id is initialized again."""
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    prepared = producer.prepare_transaction()
    assert prepared is not None
    committer, heir = create_producer(cluster), create_producer(cluster)
    committer.take_over_transaction(prepared)
    committer.commit_transaction()
    heir.init_transactions()
    if is_taken_over:
        producer = create_producer(cluster)
        producer.take_over_transaction(prepared)
    with pytest.raises(ProducerFencedError, match=WARNING) as raised:
        producer.commit_transaction()
    assert raised.value.possibly_stored


@BOTH_VERSIONS
def test_prepared_transaction_can_be_aborted_if_its_commit_is_rejected(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    producer.prepare_transaction()
    cluster.control.when(api=ApiKey.END_TXN).fail(codes.TRANSACTION_ABORTABLE)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert cluster.log("t").list_open_producer_ids() == []
    assert read_committed(cluster) == []


def test_failure_between_preparation_and_end_says_nothing_about_a_commit() -> None:
    """A Spark task that initializes the producer for its own transaction gets this error."""
    _, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    producer.prepare_transaction()
    get_sender(producer).metadata.set_fatal_error(AuthenticationError("SASL PLAIN: invalid credentials"))
    pass_time(producer, 10)
    with pytest.raises(AuthenticationError) as raised:
        producer.init_transactions("next-task")
    assert not raised.value.possibly_stored
    assert WARNING not in str(raised.value)
