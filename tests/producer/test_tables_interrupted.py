"""Tests of send_table() results when a call or the reader raises in the middle of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, KafkaSinkError, RecordColumns
from spark_kafka_sink.errors import (
    BufferExhaustedError,
    IllegalStateError,
    InvalidRecordError,
    MetadataTimeoutError,
    ProducerClosedError,
    SchemaError,
    TransactionError,
)
from spark_kafka_sink.producer.columns_writer import ColumnsWriter
from spark_kafka_sink.testing import EmbeddedBroker
from tests.producer.table_cases import broker as broker
from tests.producer.table_cases import iterate_small_batches, to_reader
from tests.producer.table_cases import producer as producer
from tests.producer.table_cases import topic as topic


def fail_calls(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, numbers: range, error: KafkaSinkError) -> None:
    """Make the send_columns() calls with these numbers raise. The first call has the number 1."""
    send_columns, calls = producer.send_columns, iter(range(1, 1_000))

    def send(topic: str, columns: RecordColumns, partition: Any = None) -> Any:
        if next(calls) in numbers:
            raise error
        return send_columns(topic, columns, partition)

    monkeypatch.setattr(producer, "send_columns", send)


@pytest.mark.parametrize(
    "error", [BufferExhaustedError("full"), MetadataTimeoutError("gone"), SchemaError("no"), InvalidRecordError("bad")]
)
@pytest.mark.parametrize("has_topic_column", [False, True])
def test_fails_only_rows_of_call_that_raises(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str, error: KafkaSinkError, has_topic_column: bool
) -> None:
    fail_calls(monkeypatch, producer, range(3, 4), error)
    table = pa.Table.from_batches(iterate_small_batches(5))
    if has_topic_column:
        table = table.append_column("topic", pa.array([topic] * 50))
    result = producer.send_table(None if has_topic_column else topic, table)
    ((failure,), offsets) = result.failures, result.partitions[topic][0]
    assert (failure.row_indices.tolist(), failure.topic, failure.error) == (list(range(20, 30)), topic, error)
    assert (offsets.first_offset, offsets.last_offset, offsets.rows) == (0, 39, 40)
    assert (result.rows_written, result.rows_processed, result.is_complete) == (40, 50, True)


@pytest.mark.parametrize("error", [ProducerClosedError("closed"), IllegalStateError("no"), TransactionError("ended")])
def test_attaches_table_result_to_fatal_exception(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str, error: KafkaSinkError
) -> None:
    fail_calls(monkeypatch, producer, range(3, 4), error)
    with pytest.raises(type(error)) as caught:
        producer.send_table(topic, to_reader(iterate_small_batches(5)))
    assert caught.value is error
    result = caught.value.table_result  # type: ignore[attr-defined]
    assert [(failure.row_indices.tolist(), failure.error) for failure in result.failures] == [
        (list(range(20, 30)), error)
    ]
    assert result.partitions[topic][0].rows == result.rows_written == 20
    assert (result.rows_processed, result.is_complete) == (30, False)


def test_fatal_exception_fails_all_rows_of_current_batch(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    broker.create_topic(other := topic + "-b", 1)
    fail_calls(monkeypatch, producer, range(2, 3), ProducerClosedError("closed"))
    table = pa.table({"topic": [topic, other, topic, None, other], "value": ["0", "1", "2", "3", "4"]})
    with pytest.raises(ProducerClosedError) as caught:
        producer.send_table(None, table)
    result = caught.value.table_result  # type: ignore[attr-defined]
    assert sorted(int(row) for failure in result.failures for row in failure.row_indices) == [1, 3, 4]
    assert result.partitions.keys() == {topic}
    assert result.rows_processed == 5


@pytest.mark.parametrize("is_async", [False, True])
def test_attaches_table_result_to_exception_of_reader(producer: KafkaProducer, topic: str, is_async: bool) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from iterate_small_batches(3)
        raise LookupError("the source is gone")

    reader = to_reader(batches())
    with pytest.raises(LookupError, match="the source is gone") as caught:
        asyncio.run(producer.send_table_async(topic, reader)) if is_async else producer.send_table(topic, reader)
    result = caught.value.table_result  # type: ignore[attr-defined]
    assert (result.rows_written, result.rows_failed, result.is_complete) == (30, 0, False)
    assert result.partitions[topic][0].rows == 30


def test_attaches_result_of_completed_rows_to_interrupt(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str
) -> None:
    send_columns = producer.send_columns

    def send(*arguments: Any) -> Any:
        future = send_columns(*arguments)
        producer.flush()
        return future

    def interrupt_wait(writer: ColumnsWriter[Any]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(producer, "send_columns", send)
    monkeypatch.setattr(ColumnsWriter, "collect_all_results", interrupt_wait)
    with pytest.raises(KeyboardInterrupt) as caught:
        producer.send_table(topic, to_reader(iterate_small_batches(3)))
    result = caught.value.table_result  # type: ignore[attr-defined]
    assert result.partitions[topic][0].rows == result.rows_written == 30
    assert (result.rows_failed, result.is_complete) == (0, False)


def test_stops_reading_when_raising_calls_exceed_max_failed_rows(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str
) -> None:
    fail_calls(monkeypatch, producer, range(3, 100), MetadataTimeoutError("gone"))
    result = producer.send_table(topic, to_reader(iterate_small_batches(9)), max_failed_rows=15)
    assert (result.rows_written, result.rows_failed, result.is_complete) == (20, 20, False)
    assert sorted(int(row) for failure in result.failures for row in failure.row_indices) == list(range(20, 40))
