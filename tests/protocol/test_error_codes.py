"""The table of error codes agrees with those of two other clients and has advice for users."""

from __future__ import annotations

import kafka.errors
from confluent_kafka import KafkaError

from spark_kafka_sink.errors import AuthorizationError, BrokerError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, build_broker_error, lookup_error_code

KAFKA_PYTHON_CODES = sorted(code for code in kafka.errors.kafka_errors if isinstance(code, int))

# kafka-python does not retry a corrupt batch. The Java client does, because its own copy is intact.
RETRIABLE_IN_JAVA_ONLY = {error_codes.CORRUPT_MESSAGE}

# Errors that a sink can encounter, so that they need advice.
SINK_ERRORS = [
    "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "MESSAGE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "INVALID_TOPIC_EXCEPTION",
    "UNSUPPORTED_VERSION", "POLICY_VIOLATION", "OUT_OF_ORDER_SEQUENCE_NUMBER", "PRODUCER_FENCED", "KAFKA_STORAGE_ERROR",
    "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "INVALID_RECORD", "INVALID_TIMESTAMP",
    "INVALID_PRODUCER_EPOCH", "UNKNOWN_TOPIC_ID",
]  # fmt: skip


def test_table_has_every_code_of_kafka_python_with_same_retriability() -> None:
    for code in KAFKA_PYTHON_CODES:
        reference = kafka.errors.kafka_errors[code]
        assert code in ERROR_CODES
        row = ERROR_CODES[code]
        assert row.code == code
        assert row.requires_metadata_refresh <= row.retriable, row.name
        retriable = bool(getattr(reference, "retriable", False)) or code in RETRIABLE_IN_JAVA_ONLY
        assert row.retriable == retriable, row.name


def test_table_has_every_broker_error_of_librdkafka() -> None:
    for name in dir(KafkaError):
        number = getattr(KafkaError, name)
        if name.isupper() and not name.startswith("_") and isinstance(number, int) and number > 0:
            assert number in ERROR_CODES, name


def test_names_are_unique_constants_of_the_module() -> None:
    names = [row.name for row in ERROR_CODES.values()]
    assert len(set(names)) == len(names)
    for row in ERROR_CODES.values():
        assert getattr(error_codes, row.name) == row.code


def test_sink_errors_have_advice() -> None:
    for name in SINK_ERRORS:
        row = ERROR_CODES[getattr(error_codes, name)]
        assert row.advice.endswith("."), name
        assert len(row.advice) > 30, name


def test_unknown_code_gets_row_with_code_in_its_name() -> None:
    row = lookup_error_code(31_000)
    assert "31000" in row.name
    assert not row.retriable


def test_exception_has_context_error_name_and_advice() -> None:
    error = build_broker_error(error_codes.TOPIC_AUTHORIZATION_FAILED, "topic orders, partition 3")
    assert isinstance(error, AuthorizationError)
    assert "orders" in str(error)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert ERROR_CODES[error.code].advice in str(error)
    assert isinstance(build_broker_error(31_000, "somewhere"), BrokerError)


def test_broker_error_has_sentences_with_and_without_advice() -> None:
    error = build_broker_error(error_codes.INVALID_RECORD_STATE, "topic t", broker_message="bad")
    assert str(error) == "topic t: INVALID_RECORD_STATE (121). The broker's message: bad"
    error = build_broker_error(error_codes.INVALID_RECORD_STATE, "topic t", "Retry.", "bad")
    assert str(error) == "topic t: INVALID_RECORD_STATE (121). Retry. The broker's message: bad"
    assert str(build_broker_error(error_codes.INVALID_RECORD_STATE, "t")) == "t: INVALID_RECORD_STATE (121)"
