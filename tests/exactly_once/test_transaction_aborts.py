"""Aborted transactions accept no more records, even from leaders that do not ask the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.broker.transaction_coordinator import (
    ProducerIdentity,
    TransactionCoordinator,
    TransactionMetadata,
)
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import KafkaSinkError, NetworkError, ProducerFencedError
from spark_kafka_sink.exactly_once import transaction_aborts
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.log_writer import WriterState
from spark_kafka_sink.exactly_once.transaction_aborts import _AddExistingPartitions, abort_transactions, can_write
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, end_transactions, init_producer_id
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import connect_client, get_log_writer, read_values, register_id_without_epoch
from tests.exactly_once.open_transactions import prepared as prepared
from tests.exactly_once.open_transactions import transactional_ids
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS


def create_attempt(broker: EmbeddedBroker) -> KafkaProducer:
    """Return the producer of a task attempt, with the transactional id "attempt" and no transaction yet."""
    return KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0})


def test_rejects_writes_after_abort(broker: EmbeddedBroker, prepared: list[TransactionIdentity]) -> None:
    """A superseded task may still be alive. In version 1 the end of its transaction alone would not stop it."""
    attempt = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0}
    )
    attempt.init_transactions()
    attempt.begin_transaction()
    attempt.send(ProducerRecord("t", b"1", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    with connect_client(broker) as client:
        abort_transactions(
            client,
            [
                *describe_transactions(
                    client, ["attempt", *(identity.transactional_id for identity in prepared)]
                ).values()
            ],
        )
        with pytest.raises(KafkaSinkError):
            attempt.send(ProducerRecord("t", b"2", partition=1)).result(WAIT_TIMEOUT_SECONDS)
        assert [
            transaction.is_open
            for transaction in describe_transactions(client, ["attempt", *transactional_ids(prepared)]).values()
        ] == [False] * 3
        assert end_transactions(client, prepared, commit=True).keys() == set(transactional_ids(prepared))
    attempt.close(timeout=0)
    assert read_values(broker) == []


def test_rejects_writes_after_abort_at_leaders_that_do_not_verify(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Kafka 3.6 a live task could continue to write to its partitions, and readers waited forever."""
    monkeypatch.setattr(TransactionCoordinator, "verify_partition", lambda *arguments: error_codes.NONE)
    attempt = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0}
    )
    attempt.init_transactions()
    attempt.begin_transaction()
    attempt.send(ProducerRecord("t", b"1", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    with connect_client(broker) as client:
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        with pytest.raises(KafkaSinkError):
            attempt.send(ProducerRecord("t", b"2", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        assert not describe_transactions(client, ["attempt"])["attempt"].is_open
    attempt.close(timeout=0)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as other:
        other.send(ProducerRecord("t", b"3", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    assert read_values(broker) == ["3"]


@pytest.mark.parametrize("step", ["before the end", "between end and fence"])
def test_rejects_writes_to_partition_added_during_abort(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before Kafka 3.6 records that a leader accepted then became visible with the next transaction of the id."""
    monkeypatch.setattr(TransactionCoordinator, "verify_partition", lambda *arguments: error_codes.NONE)
    attempt = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0}
    )

    def send(partition: int) -> None:
        attempt.send(ProducerRecord("t", b"late", partition=partition)).result(WAIT_TIMEOUT_SECONDS)

    attempt.init_transactions()
    attempt.begin_transaction()
    send(0)
    with connect_client(broker) as client:
        listed_transactions = [*describe_transactions(client, ["attempt"]).values()]
        if step == "before the end":
            send(1)
        should_send = iter([False, step == "between end and fence", False])

        def describe_and_send(*arguments: Any, **options: Any) -> Any:
            found = describe_transactions(*arguments, **options)
            if next(should_send):
                send(1)
            return found

        monkeypatch.setattr(transaction_aborts, "describe_transactions", describe_and_send)
        abort_transactions(client, listed_transactions)
        with pytest.raises(KafkaSinkError):
            send(1 if step == "before the end" else 0)
    attempt.close(timeout=0)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt"}) as another:
        another.init_transactions()
        another.begin_transaction()
        for partition in (0, 1):
            another.send(ProducerRecord("t", b"its own", partition=partition))
        another.commit_transaction()
    assert read_values(broker) == ["its own"] * 2


def test_rejects_writes_of_transaction_that_another_process_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process that aborted the transaction may have died before the fence. Before Kafka 3.6 the partitions still
    accepted records then.
    """
    monkeypatch.setattr(TransactionCoordinator, "verify_partition", lambda *arguments: error_codes.NONE)
    with embedded_broker(topics={"t": 2}, transaction_version=1) as broker, connect_client(broker) as client:
        attempt = create_attempt(broker)
        attempt.init_transactions()
        attempt.begin_transaction()
        attempt.send(ProducerRecord("t", b"late", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        listed_transactions = [*describe_transactions(client, ["attempt"]).values()]
        end_transactions(
            client, [TransactionIdentity("attempt", *listed_transactions[0].id_and_epoch, 1)], commit=False
        )
        attempt.send(ProducerRecord("t", b"late", partition=1)).result(WAIT_TIMEOUT_SECONDS)
        abort_transactions(client, listed_transactions)
        with pytest.raises(KafkaSinkError):
            attempt.send(ProducerRecord("t", b"late", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        attempt.close(timeout=0)
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as other:
            other.send(ProducerRecord("t", b"seen", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        assert read_values(broker) == ["seen"]


def test_ends_transactions_although_they_cannot_be_described_again(
    prepared: list[TransactionIdentity],
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A coordinator that does not respond delays no other."""
    with connect_client(broker) as client:
        listed_transactions = [*describe_transactions(client, transactional_ids(prepared)).values()]
        should_send = iter([True])

        def describe_and_send(*arguments: Any, **options: Any) -> Any:
            if next(should_send, False):
                raise NetworkError("a coordinator says nothing")
            return describe_transactions(*arguments, **options)

        monkeypatch.setattr(transaction_aborts, "describe_transactions", describe_and_send)
        abort_transactions(client, listed_transactions)
        assert not [
            transaction
            for transaction in describe_transactions(client, transactional_ids(prepared)).values()
            if transaction.is_open
        ]
        looks_once_more = client.transaction_version < 2
    assert (
        "Could not describe the transactions again before aborting them: a coordinator says nothing" in caplog.text
    ) == looks_once_more


def test_aborts_attempt_whose_first_request_is_in_progress(
    broker: EmbeddedBroker,
) -> None:
    """Brokers respond with CONCURRENT_TRANSACTIONS in this case too, and abort nothing."""
    attempt = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0}
    )
    attempt.init_transactions()
    with connect_client(broker) as client:
        listed_transactions = [*describe_transactions(client, ["attempt"]).values()]
        for api in (ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID):
            broker.control.when(api=api).fail(error_codes.CONCURRENT_TRANSACTIONS)
        attempt.begin_transaction()
        attempt.send(ProducerRecord("t", b"1", partition=0)).result(WAIT_TIMEOUT_SECONDS)
        abort_transactions(client, listed_transactions)
        assert not describe_transactions(client, ["attempt"])["attempt"].is_open
    attempt.close(timeout=0)
    assert read_values(broker) == []


def test_fences_at_remaining_leaders_although_a_topic_was_deleted(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with a partition of an unknown topic fails for all of its partitions, also when it is retried."""
    monkeypatch.setattr(TransactionCoordinator, "verify_partition", lambda *arguments: error_codes.NONE)
    broker.control.create_topic("gone", 1)
    attempt = KafkaProducer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "attempt", "linger.ms": 0}
    )
    attempt.init_transactions()
    attempt.begin_transaction()
    for topic in ("t", "gone"):
        attempt.send(ProducerRecord(topic, b"1", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    broker.control.delete_topic("gone")
    with connect_client(broker, timeout_ms=5_000) as client:
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        with pytest.raises(KafkaSinkError):
            attempt.send(ProducerRecord("t", b"2", partition=0)).result(WAIT_TIMEOUT_SECONDS)
    attempt.close(timeout=0)
    assert read_values(broker) == []


def test_rejected_fence_is_a_warning_and_is_returned(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction has ended by then. But its attempt can begin another one, which would stay open."""
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    with connect_client(broker) as client:
        init_producer_id(client, "attempt", 60_000)
        broker.cluster.coordinator.max_timeout_ms = 500
        errors_by_id = abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
    assert [error.code for error in errors_by_id.values()] == [error_codes.INVALID_TRANSACTION_TIMEOUT]
    assert "Could not fence a task attempt, which may therefore still write" in caplog.text
    assert "INVALID_TRANSACTION_TIMEOUT" in caplog.text


def test_rejected_abort_is_a_warning_and_is_returned(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], caplog: pytest.LogCaptureFixture
) -> None:
    with connect_client(broker) as client:
        listed_transactions = [*describe_transactions(client, transactional_ids(prepared)).values()]
        broker.control.when(api=ApiKey.END_TXN).fail(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        errors_by_id = abort_transactions(client, listed_transactions)
        descriptions = describe_transactions(client, transactional_ids(prepared)).values()
    assert [description.transactional_id for description in descriptions if description.is_open] == [*errors_by_id]
    assert len(errors_by_id) == 1
    assert "Could not abort a transaction" in caplog.text
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in caplog.text


def test_fences_id_that_has_no_epoch(broker: EmbeddedBroker) -> None:
    register_id_without_epoch(broker, "attempt")
    with connect_client(broker) as client:
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        assert describe_transactions(client, ["attempt"])["attempt"].id_and_epoch.epoch >= 0


def test_fences_attempt_without_transaction(broker: EmbeddedBroker) -> None:
    with connect_client(broker) as client:
        attempt = init_producer_id(client, "attempt", 60_000)
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        assert not [
            transaction for transaction in describe_transactions(client, ["attempt"]).values() if can_write(transaction)
        ]
        with pytest.raises(ProducerFencedError):
            get_log_writer(client).begin_transaction(
                "attempt", WriterState(attempt), TopicPartition("t", 0), [(b"k", b"late")]
            ).wait()


def test_keeps_transaction_that_began_after_the_listing(
    broker: EmbeddedBroker,
) -> None:
    """Ids are reused. A request for the next epoch that names the old epoch would abort the new transaction."""
    with connect_client(broker) as client:
        init_producer_id(client, "again", 60_000)
        listed_transactions = [*describe_transactions(client, ["again"]).values()]
        newer = init_producer_id(client, "again", 60_000)
        writing = get_log_writer(client).begin_transaction(
            "again", WriterState(newer), TopicPartition("t", 0), [(b"k", b"newer")]
        )
        writing.wait()
        assert abort_transactions(client, listed_transactions) == {}, (
            "nothing of the listed transaction is left to abort"
        )
        writing.commit()
    assert read_values(broker) == ["newer"]


@pytest.mark.parametrize("version", [1, 2])
def test_fences_aborted_transaction_although_its_markers_are_late(version: int) -> None:
    """In version 1 a request for the next epoch is rejected until the markers are written, and fences nothing."""
    system = FakeSystem()
    cluster = SimulatedCluster(system, topics={"t": 1}, transaction_version=version)

    def later(transaction: TransactionMetadata) -> bool:
        system.after(50, lambda: cluster.complete_transaction(transaction))
        return True

    cluster.core.coordinator.should_defer_completion = later
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with create_client(config, system=system) as client:
        client.wait_for_topic("t")
        granted = init_producer_id(client, "x", 60_000)
        coordinator, identity = cluster.core.coordinator, ProducerIdentity(*granted)
        assert coordinator.add_partitions("x", identity, [("t", 0)], 0, 0) == 0
        abort_transactions(client, [*describe_transactions(client, ["x"]).values()])
        assert coordinator.add_partitions("x", identity, [("t", 0)], 0, 0) == error_codes.PRODUCER_FENCED


def test_retries_without_the_partitions_that_the_brokers_do_not_know() -> None:
    partitions = {TopicPartition("t", number) for number in range(2)}
    addition = _AddExistingPartitions(TransactionIdentity("p-1-0-0", 70, 4, 1), frozenset(partitions))

    def find_remaining(*partition_codes: int) -> frozenset[TopicPartition] | None:
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code)
            for number, code in enumerate(partition_codes)
        ]
        topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
        retry = addition.build_retry_without_unknown_partitions(response)
        return None if retry is None else retry.partitions

    unknown, not_attempted = error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.OPERATION_NOT_ATTEMPTED
    assert find_remaining(unknown, not_attempted) == frozenset({TopicPartition("t", 1)})
    assert find_remaining(error_codes.NONE, error_codes.NONE) is None
    assert find_remaining(unknown, unknown) is None
