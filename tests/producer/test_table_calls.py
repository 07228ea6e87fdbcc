"""Calls of send_table() and send_table_async() in a transaction: any exception prevents its commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import (
    IllegalStateError,
    InvalidRecordError,
    TransactionAbortableError,
)
from spark_kafka_sink.producer.columns_writer import ColumnsWriter
from spark_kafka_sink.producer.tables import TableSender
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.producer.table_cases import broker as broker
from tests.producer.table_cases import iterate_small_batches, read_rows, to_reader
from tests.producer.table_cases import producer as producer
from tests.producer.table_cases import topic as topic
from tests.waiting import WAIT_TIMEOUT_SECONDS


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


def test_commit_error_leads_to_exception_that_prevented_commit(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, topic: str
) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(LookupError) as raised:
            raise_from_reader(monkeypatch, producer, topic)
        with pytest.raises(TransactionAbortableError) as caught:
            producer.commit_transaction()
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__cause__ is raised.value
        producer.abort_transaction()


def test_exception_outside_of_transaction_is_raised_unchanged(broker: EmbeddedBroker, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        with pytest.raises(InvalidRecordError, match="cannot read int: it does not export Arrow columns"):
            producer.send_table(topic, 5)
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"0")


def test_cancelled_task_sends_no_rows_in_later_transaction(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, topic: str
) -> None:
    is_cancelled, errors = threading.Event(), queue.SimpleQueue[BaseException | None]()
    send_batches = TableSender.send_batches

    def record_error(sender: TableSender, reader: pa.RecordBatchReader) -> Iterator[int]:
        try:
            for completed_count in send_batches(sender, reader):
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

    monkeypatch.setattr(TableSender, "send_batches", record_error)
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


def test_send_table_async_does_not_block_event_loop(producer: KafkaProducer, topic: str) -> None:
    async def main() -> tuple[int, bool]:
        is_reading, has_run = asyncio.Event(), asyncio.Event()

        async def other_task() -> None:
            await is_reading.wait()
            has_run.set()

        loop = asyncio.get_running_loop()

        def batches() -> Iterator[pa.RecordBatch]:
            loop.call_soon_threadsafe(is_reading.set)
            asyncio.run_coroutine_threadsafe(has_run.wait(), loop).result()  # returns only if the event loop runs
            yield pa.record_batch({"value": ["1", "2"]})

        task = asyncio.create_task(other_task())
        reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches())
        result = await producer.send_table_async(topic, reader)
        await task
        return result.rows_written, has_run.is_set()

    assert asyncio.run(main()) == (2, True)


def test_transaction_makes_table_visible_after_commit(broker: EmbeddedBroker, topic: str) -> None:
    table = pa.table({"value": ["1", "2"]})
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send_table(topic, table)
    assert read_rows(broker, topic, "value") == [(b"1",), (b"2",)]
