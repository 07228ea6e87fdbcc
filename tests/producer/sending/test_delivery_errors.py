"""Errors of batches and records, including individually rejected records (KIP-467)."""

from __future__ import annotations

import re
from unittest.mock import Mock

import numpy as np
import pytest

from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    BrokerError,
    DataError,
    DeliveryError,
    DisconnectedError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_groups import build_batch_rows
from spark_kafka_sink.producer.futures import ColumnsFuture
from spark_kafka_sink.producer.sending.deliveries import fail_futures
from spark_kafka_sink.producer.sending.delivery_errors import (
    build_abandoned_error,
    build_attempt_error,
    build_encoding_error,
    build_final_error,
    build_record_errors,
    build_timeout_error,
    find_timeout_cause,
)
from spark_kafka_sink.producer.sending.outcome import Fail
from spark_kafka_sink.producer.sending.produce_exchange import (
    PartitionResponse,
)
from spark_kafka_sink.protocol import error_codes as codes
from tests.producer.batching.single_slice import append_rows


def test_named_records_get_broker_message_and_others_batch_refused_error() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    call = ColumnsFuture("t", 4)
    append_rows(batch, build_batch_rows(call, np.array([10, 11])))
    append_rows(batch, build_batch_rows(call, np.array([20, 21]), 2))
    named, innocent = build_record_errors(
        batch, PartitionResponse(codes.INVALID_RECORD, record_error_messages={2: "has no key"})
    )
    assert innocent is not None
    fail_futures(batch, innocent, named)
    errors = {int(row): failure.error for failure in call.result(0).failures for row in failure.row_indices}
    assert isinstance(errors[20], InvalidRecordError)
    assert "has no key" in str(errors[20])
    assert {row for row, error in errors.items() if isinstance(error, DeliveryError)} == {10, 11, 21}


def test_ignores_named_records_outside_the_batch() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    batch.record_count = 4
    message = {-1: "before", 3: "the last", 4: "behind"}
    assert list(
        build_record_errors(batch, PartitionResponse(codes.INVALID_RECORD, record_error_messages=message))[0]
    ) == [3]
    assert build_record_errors(batch, PartitionResponse(codes.INVALID_RECORD, record_error_messages={4: "behind"})) == (
        {},
        None,
    )


def test_error_contains_broker_message() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    error = build_attempt_error(
        batch, PartitionResponse(codes.POLICY_VIOLATION, error_message="keys are mandatory here")
    )
    assert "topic t, partition 3" in str(error)
    assert "POLICY_VIOLATION" in str(error)
    assert "keys are mandatory here" in str(error)
    assert "The broker's message" not in str(build_attempt_error(batch, PartitionResponse(codes.POLICY_VIOLATION)))


def test_error_in_doubt_does_not_also_deny_that_records_are_stored() -> None:
    """An earlier attempt may have stored the records, even if the last attempt did not."""
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    for code in codes.ERROR_CODES:
        text = str(build_final_error(batch, PartitionResponse(code), Fail(in_doubt=True)))
        assert text.count("may have been stored") == 1
        assert not re.search("(nothing|not|never|no records?) (was |were |is |are |been )?stored", text, re.IGNORECASE)


def final(code: int, records: int, message: str = "") -> KafkaSinkError:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    batch.record_count = records
    return build_final_error(batch, PartitionResponse(code, error_message=message), Fail())


@pytest.mark.parametrize(
    ("code", "kind"), [(codes.INVALID_RECORD, InvalidRecordError), (codes.MESSAGE_TOO_LARGE, RecordTooLargeError)]
)
def test_data_error_is_raised_for_single_record_of_batch(code: int, kind: type[KafkaSinkError]) -> None:
    alone, among_others = final(code, 1, "the broker's words"), final(code, 2)
    assert isinstance(alone, kind)
    assert isinstance(alone.__cause__, BrokerError)
    assert "the broker's words" in str(alone)
    assert not isinstance(among_others, DataError)


def test_rejection_for_other_reasons_is_no_data_error() -> None:
    assert not isinstance(final(codes.TOPIC_AUTHORIZATION_FAILED, 1), DataError)


def test_encoding_error_names_topic_and_cause() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    batch.error = MemoryError("no memory")
    error = build_encoding_error(batch)
    assert "topic t: the rows could not be encoded: MemoryError('no memory')" in str(error)
    assert error.__cause__ is batch.error


@pytest.mark.parametrize("has_been_sent", [False, True])
def test_timeout_is_caused_by_rejection_of_last_attempt(has_been_sent: bool) -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    batch.error = build_attempt_error(batch, PartitionResponse(codes.NOT_ENOUGH_REPLICAS))
    batch.last_sent_ms = 0 if has_been_sent else -1
    metadata = Mock(snapshot=ClusterSnapshot(), topic_error=Mock(return_value=None), has_connection_failures=False)
    assert find_timeout_cause(batch, metadata, Mock()) is batch.error


@pytest.mark.parametrize(
    ("has_responded", "expected"),
    [
        (
            True,
            "broker 1 (b1:9092), failed: reset. Check the log and the load of the broker, and of any proxy in front",
        ),
        (
            False,
            "broker 1 (b1:9092), cannot be reached: reset. Check that the broker is running. The broker advertises",
        ),
    ],
)
def test_timeout_suggests_leader_address_only_without_any_response(has_responded: bool, expected: str) -> None:
    leader = Node(1, "b1", 9092)
    snapshot = Mock(leader=Mock(return_value=leader))
    loss = ConnectionLoss("reset", has_responded=has_responded)
    metadata = Mock(snapshot=snapshot, topic_error=Mock(return_value=None), connection_failure=Mock(return_value=loss))
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    cause = find_timeout_cause(batch, metadata, Mock(authentication_exception=Mock(return_value=None)))
    assert expected in str(cause)


def test_delivery_error_after_lost_connection_names_partition_once() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    response = PartitionResponse(codes.NETWORK_EXCEPTION, cause=DisconnectedError("the connection was lost"))
    error = build_final_error(batch, response, Fail(has_used_up_retries=True))
    assert isinstance(error, DeliveryError)
    assert error.destination == "topic t, partition 3"
    assert str(error) == "topic t, partition 3: the connection was lost. Attempts: 1."


@pytest.mark.parametrize("failure", ["timed out", "abandoned"])
def test_error_of_failed_batch_names_partition_once(failure: str) -> None:
    batch = ProducerBatch(TopicPartition("t", 3), oldest_row_arrival_ms=0, deadline_ms=1)
    batch.last_sent_ms = 0
    cause = build_attempt_error(batch, PartitionResponse(codes.NOT_ENOUGH_REPLICAS))
    if failure == "timed out":
        error = build_timeout_error(batch, cause, possibly_stored=False)
    else:
        error = build_abandoned_error(batch, cause)
    assert "NOT_ENOUGH_REPLICAS" in str(error)
    assert str(error).count("topic t, partition 3") == 1
