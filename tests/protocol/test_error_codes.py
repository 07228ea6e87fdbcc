"""The table of error codes agrees with those of two other clients, and advises users what to do."""

from __future__ import annotations

import kafka.errors
import pytest
from confluent_kafka import KafkaError

from spark_kafka_sink.errors import AuthorizationError, BrokerError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, build_broker_error, lookup_error_code

THEIR_CODES = sorted(code for code in kafka.errors.kafka_errors if isinstance(code, int))

# kafka-python does not send a corrupted batch again; Kafka's own client does, for what it holds is whole.
RETRIABLE_IN_JAVA_ONLY = {error_codes.CORRUPT_MESSAGE}

# What a sink can meet, and must explain.
MET_BY_A_SINK = [
    "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "MESSAGE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TOPIC_EXCEPTION",
    "UNSUPPORTED_VERSION", "POLICY_VIOLATION", "OUT_OF_ORDER_SEQUENCE_NUMBER", "PRODUCER_FENCED", "KAFKA_STORAGE_ERROR",
    "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "INVALID_RECORD", "INVALID_TIMESTAMP",
    "INVALID_PRODUCER_EPOCH", "UNKNOWN_TOPIC_ID",
]  # fmt: skip


@pytest.mark.parametrize("code", THEIR_CODES)
def test_every_code_of_kafka_python_is_here_and_as_retriable(code: int) -> None:
    theirs = kafka.errors.kafka_errors[code]
    assert code in ERROR_CODES
    ours = ERROR_CODES[code]
    assert ours.code == code
    assert ours.requires_metadata_refresh <= ours.retriable
    retriable = bool(getattr(theirs, "retriable", False)) or code in RETRIABLE_IN_JAVA_ONLY
    assert ours.retriable == retriable, ours.name


def test_every_broker_error_that_librdkafka_knows_has_the_same_number() -> None:
    for name in dir(KafkaError):
        number = getattr(KafkaError, name)
        if name.isupper() and not name.startswith("_") and isinstance(number, int) and number > 0:
            assert number in ERROR_CODES, name


def test_names_are_unique_and_are_constants_of_the_module() -> None:
    names = [row.name for row in ERROR_CODES.values()]
    assert len(set(names)) == len(names)
    for row in ERROR_CODES.values():
        assert getattr(error_codes, row.name) == row.code


@pytest.mark.parametrize("name", MET_BY_A_SINK)
def test_an_error_that_a_sink_can_meet_says_what_to_do(name: str) -> None:
    row = ERROR_CODES[getattr(error_codes, name)]
    assert row.advice.endswith("."), name
    assert len(row.advice) > 30


def test_a_number_from_the_future_is_an_error_with_that_number_in_its_name() -> None:
    row = lookup_error_code(31_000)
    assert "31000" in row.name
    assert not row.retriable


def test_the_exception_says_where_what_and_what_to_do() -> None:
    error = build_broker_error(error_codes.TOPIC_AUTHORIZATION_FAILED, "topic orders, partition 3")
    assert isinstance(error, AuthorizationError)
    assert "orders" in str(error)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert ERROR_CODES[error.code].advice in str(error)
    assert isinstance(build_broker_error(31_000, "somewhere"), BrokerError)
