"""Calls that wait for metadata or memory while their transaction ends add their records to no transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import IllegalStateError, MetadataTimeoutError, TransactionAbortableError
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.topic_waits import TopicMetadataWaiter
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.producer.threaded import ThreadedProducer
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    create_producer_in_transaction,
    read_committed,
    send,
    send_and_flush,
)
from tests.producer.virtual_time import get_reserved_bytes, get_sender
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

ENDED = "has ended while the call waited"

ENDS: dict[str, Callable[[KafkaProducer], None]] = {
    "aborted": KafkaProducer.abort_transaction,
    "committed": KafkaProducer.commit_transaction,
}

CALLS: dict[str, Callable[[KafkaProducer], object]] = {
    "send": lambda producer: send(producer, b"late"),
    "send_columns": lambda producer: producer.send_columns("t", RecordColumns(pa.array([b"late", b"later"])), 0),
}


def run_during_metadata_wait(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None]) -> None:
    """Run `event`, as another thread could, while the next call waits for its topic."""
    wait = TopicMetadataWaiter.await_partitions

    def await_partitions(*arguments: Any) -> object:
        monkeypatch.undo()
        event()
        return wait(*arguments)

    monkeypatch.setattr(TopicMetadataWaiter, "await_partitions", await_partitions)


def run_during_memory_wait(monkeypatch: pytest.MonkeyPatch, event: Callable[[], None]) -> None:
    reserve = BufferPool.try_reserve

    def try_reserve(*arguments: Any) -> object:
        monkeypatch.undo()
        event()
        return reserve(*arguments)

    monkeypatch.setattr(BufferPool, "try_reserve", try_reserve)


@pytest.mark.parametrize("wait", [run_during_metadata_wait, run_during_memory_wait])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("begins_another", [True, False])
@BOTH_VERSIONS
def test_blocked_send_raises_when_its_transaction_ends(
    version: int,
    begins_another: bool,
    end: str,
    call: str,
    wait: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"first")

    def event() -> None:
        ENDS[end](producer)
        if begins_another:
            producer.begin_transaction()

    wait(monkeypatch, event)
    with pytest.raises(IllegalStateError, match=ENDED):
        CALLS[call](producer)
    if not begins_another:
        producer.begin_transaction()
    send_and_flush(producer, b"next")
    producer.commit_transaction()
    assert read_committed(cluster) == ([b"first", b"next"] if end == "committed" else [b"next"])
    assert get_reserved_bytes(producer) == 0


@BOTH_VERSIONS
def test_send_that_fails_after_its_transaction_does_not_affect_the_next(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = create_producer_in_transaction(version)

    def fails(*_: object) -> object:
        monkeypatch.undo()
        producer.abort_transaction()
        producer.begin_transaction()
        raise MetadataTimeoutError("the topic did not become known")

    monkeypatch.setattr(TopicMetadataWaiter, "await_partitions", fails)
    future = send(producer, b"late")
    assert isinstance(future.exception(0), MetadataTimeoutError)
    send_and_flush(producer, b"next")
    producer.commit_transaction()
    assert read_committed(cluster) == [b"next"]


@BOTH_VERSIONS
def test_failed_send_prevents_commit_of_its_transaction(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = create_producer_in_transaction(version)

    def fails(*_: object) -> object:
        monkeypatch.undo()
        raise MetadataTimeoutError("the topic did not become known")

    monkeypatch.setattr(TopicMetadataWaiter, "await_partitions", fails)
    send(producer, b"late")
    with pytest.raises(TransactionAbortableError, match="the topic did not become known"):
        producer.commit_transaction()
    assert read_committed(cluster) == []


@BOTH_VERSIONS
def test_rejects_sends_while_transaction_is_prepared(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the prepared transaction would wait for the record forever, or the next one would contain it."""
    cluster, producer = create_producer_in_transaction(version)
    send(producer, b"1")
    rejections: list[BaseException] = []
    flush = RecordAccumulator.flush

    def flush_beside_another_thread(*arguments: Any) -> bool:
        monkeypatch.undo()
        for call in CALLS.values():
            with pytest.raises(IllegalStateError, match="is being prepared") as error:
                call(producer)
            rejections.append(error.value)
        return flush(*arguments)

    monkeypatch.setattr(RecordAccumulator, "flush", flush_beside_another_thread)
    assert producer.prepare_transaction() is not None
    assert len(rejections) == 2
    producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_begin_transaction_unmutes_partitions(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    producer.commit_transaction()
    # No user call can stage a record now. If anything else does, the next transaction must not hang.
    inside = get_sender(producer)
    future = inside.accumulator.append_record("t", (b"2", None, None, 0, 0), 100, inside.metadata.snapshot)
    with pytest.raises(TimeoutError):
        producer.flush(timeout=1)
    producer.begin_transaction()
    producer.commit_transaction()
    assert future.result(0).offset >= 1
    assert read_committed(cluster) == [b"1", b"2"]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1, "late": 1}) as broker:
        yield broker


def test_blocked_send_raises_when_another_thread_has_ended_the_transaction(broker: EmbeddedBroker) -> None:
    broker.control.hide_topic("late")
    errors: list[BaseException] = []

    def write() -> None:
        try:
            producer.send(ProducerRecord("late", b"late"))
        except BaseException as error:
            errors.append(error)

    options = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "linger.ms": 0}
    with closing(ThreadedProducer({**options, "retry.backoff.ms": 10})) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        writer = threading.Thread(target=write)
        writer.start()
        wait_until(lambda: producer.sender.metadata.contains_topic("late"))
        producer.abort_transaction()
        producer.begin_transaction()
        broker.control.show_topic("late")
        writer.join(WAIT_TIMEOUT_SECONDS)
        producer.send(ProducerRecord("t", b"next")).result(WAIT_TIMEOUT_SECONDS)
        producer.commit_transaction()
    assert [type(error) for error in errors] == [IllegalStateError]
    assert read_topic(broker.bootstrap_servers, "late", isolation="read_uncommitted").num_rows == 0
