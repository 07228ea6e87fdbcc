"""Errors record by record (KIP-467), rule 6."""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.errors import DeliveryError, InvalidRecordError
from spark_kafka_sink.producer.batching.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.producer.batching.row_origins import rows_of_call
from spark_kafka_sink.producer.futures import ColumnsFuture, tell_failed
from spark_kafka_sink.producer.sending.delivery_errors import Answer, attempt_error, record_errors
from spark_kafka_sink.protocol import error_codes as codes


def test_records_that_the_broker_names_get_its_words_and_the_others_are_innocent() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), created_ms=0, deadline_ms=1)
    call = ColumnsFuture("t", 4)
    batch.record_count = 4
    batch.rows = (rows_of_call(call, np.array([10, 11])), rows_of_call(call, np.array([20, 21]), 2))
    named, innocent = record_errors(batch, Answer(codes.INVALID_RECORD, record_words={2: "has no key"}))
    assert innocent is not None
    tell_failed(batch, innocent, named)
    errors = {int(row): failure.error for failure in call.result(0).failures for row in failure.rows}
    assert isinstance(errors[20], InvalidRecordError)
    assert "has no key" in str(errors[20])
    assert {row for row, error in errors.items() if isinstance(error, DeliveryError)} == {10, 11, 21}


def test_the_brokers_own_words_are_in_the_error() -> None:
    batch = ProducerBatch(TopicPartition("t", 3), created_ms=0, deadline_ms=1)
    error = attempt_error(batch, Answer(codes.POLICY_VIOLATION, words="keys are mandatory here"))
    assert "topic t, partition 3" in str(error)
    assert "POLICY_VIOLATION" in str(error)
    assert "keys are mandatory here" in str(error)
    assert "The broker says" not in str(attempt_error(batch, Answer(codes.POLICY_VIOLATION)))
