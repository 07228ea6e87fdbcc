"""Tests of send_table() results when a call or the reader raises in the middle of a stream."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
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
    TransactionAbortableError,
    TransactionError,
)
from spark_kafka_sink.producer.columns_writer import ColumnsWriter
from spark_kafka_sink.producer.tables import TableSender
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.producer.table_cases import broker as broker
from tests.producer.table_cases import producer as producer
from tests.producer.table_cases import topic as topic
from tests.waiting import WAIT_TIMEOUT_SECONDS


def iterate_small_batches(count: int) -> Iterator[pa.RecordBatch]:
    for number in range(count):
        yield pa.record_batch({"value": [str(10 * number + row) for row in range(10)]})


def to_reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches)


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
    assert (failure.rows.tolist(), failure.topic, failure.error) == (list(range(20, 30)), topic, error)
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
    assert [(failure.rows.tolist(), failure.error) for failure in result.failures] == [(list(range(20, 30)), error)]
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
    assert sorted(int(row) for failure in result.failures for row in failure.rows) == [1, 3, 4]
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


def raise_from_reader(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from iterate_small_batches(3)
        raise LookupError("the source is gone")

    producer.send_table(topic, to_reader(batches()))


def raise_from_reader_in_asyncio(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from iterate_small_batches(3)
        raise LookupError("the source is gone")

    asyncio.run(producer.send_table_async(topic, to_reader(batches())))


def raise_from_opening(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str) -> None:
    class Table:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise LookupError("the source is gone")

    producer.send_table(topic, Table())


def interrupt_wait(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str) -> None:
    def interrupt(writer: ColumnsWriter[Any]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ColumnsWriter, "collect_results", interrupt)
    producer.send_table(topic, to_reader(iterate_small_batches(3)))


def cancel_task(monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str) -> None:
    async def cancel() -> None:
        loop, is_reading, is_cancelled = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from iterate_small_batches(1)
            loop.call_soon_threadsafe(is_reading.set)
            is_cancelled.wait()
            yield from iterate_small_batches(1)

        task = asyncio.create_task(producer.send_table_async(topic, to_reader(batches())))
        await is_reading.wait()
        task.cancel()
        try:
            await task
        finally:
            is_cancelled.set()

    asyncio.run(cancel())


@pytest.mark.parametrize(
    ("call", "error_type", "reason"),
    [
        (raise_from_reader, LookupError, "LookupError was raised: the source is gone."),
        (raise_from_reader_in_asyncio, LookupError, "LookupError was raised: the source is gone."),
        (raise_from_opening, LookupError, "LookupError was raised: the source is gone."),
        (interrupt_wait, KeyboardInterrupt, "KeyboardInterrupt was raised."),
        (cancel_task, asyncio.CancelledError, "CancelledError was raised."),
    ],
)
def test_any_exception_prevents_commit(
    monkeypatch: pytest.MonkeyPatch,
    broker: EmbeddedBroker,
    topic: str,
    call: Callable[[pytest.MonkeyPatch, KafkaProducer, str], None],
    error_type: type[BaseException],
    reason: str,
) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"the other part of the transaction")
        with pytest.raises(error_type):
            call(monkeypatch, producer, topic)
        with pytest.raises(TransactionAbortableError, match=reason):
            producer.commit_transaction()
        producer.abort_transaction()
    assert read_topic(broker.bootstrap_servers, topic).num_rows == 0


def test_exception_outside_of_transaction_is_raised_unchanged(broker: EmbeddedBroker, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        with pytest.raises(InvalidRecordError, match="takes a table"):
            producer.send_table(topic, 5)
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"0")


def test_stops_reading_when_raising_calls_exceed_failed_rows_max(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str
) -> None:
    fail_calls(monkeypatch, producer, range(3, 100), MetadataTimeoutError("gone"))
    result = producer.send_table(topic, to_reader(iterate_small_batches(9)), failed_rows_max=15)
    assert (result.rows_written, result.rows_failed, result.is_complete) == (20, 20, False)
    assert sorted(int(row) for failure in result.failures for row in failure.rows) == list(range(20, 40))


def test_cancelled_task_sends_no_rows_in_later_transaction(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, topic: str
) -> None:
    is_cancelled, errors = threading.Event(), queue.SimpleQueue[BaseException | None]()
    send_slices = TableSender.send_slices

    def record_error(sender: TableSender, reader: pa.RecordBatchReader) -> Iterator[int]:
        try:
            for completed_count in send_slices(sender, reader):
                errors.put(None)  # rows were sent
                yield completed_count
        except Exception as error:
            errors.put(error)
            raise

    async def cancel(producer: KafkaProducer) -> None:
        loop, is_reading = asyncio.get_running_loop(), asyncio.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            loop.call_soon_threadsafe(is_reading.set)
            is_cancelled.wait()
            yield from iterate_small_batches(1)

        with producer.transaction():
            task = asyncio.create_task(producer.send_table_async(topic, to_reader(batches())))
            await is_reading.wait()
            task.cancel()
            await task

    monkeypatch.setattr(TableSender, "send_slices", record_error)
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        loop = asyncio.new_event_loop()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(cancel(producer))
        with producer.transaction():
            producer.send(topic, b"later")
            is_cancelled.set()
            error = errors.get(timeout=WAIT_TIMEOUT_SECONDS)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert isinstance(error, IllegalStateError)
    assert read_topic(broker.bootstrap_servers, topic).column("value").to_pylist() == [b"later"]
