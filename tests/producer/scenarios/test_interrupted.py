"""A signal handler's close() and flush() keep their time, whatever the interrupted call holds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.staging import Stage
from spark_kafka_sink.producer.windows import Windowed
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.producer.scenarios.test_threads import Caller
from tests.producer.threaded import ThreadedProducer
from tests.producer.virtual_time import memory_used
from tests.waiting import PATIENCE_SECONDS, wait_until

VALUE = b"v" * 1000
HANDLER_SECONDS = 0.2


class Waiters(deque[Any]):
    """The pool looks at its waiters while it holds its lock."""

    def look(self) -> bool:
        return len(self) > 0

    def __bool__(self) -> bool:
        return self.look()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.producer.producer._END_MS", 100.0)


@pytest.fixture
def producer(broker: EmbeddedBroker) -> ThreadedProducer:
    """Each record is a full batch, so that the caller's thread fills it."""
    producer = ThreadedProducer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 1})
    producer.partitions_for("t")
    return producer


def in_the_accumulator(producer: ThreadedProducer) -> tuple[object, str]:
    return BatchFiller, "new_stage"


def in_the_memory(producer: ThreadedProducer) -> tuple[object, str]:
    """Nothing is called there that has a public name."""
    producer.memory._waiters = waiters = Waiters()
    return waiters, "look"


def in_the_filling_of_a_batch(producer: ThreadedProducer) -> tuple[object, str]:
    return Stage, "place"


def in_the_metrics(producer: ThreadedProducer) -> tuple[object, str]:
    return Windowed, "record"


INSIDE = [in_the_accumulator, in_the_memory, in_the_filling_of_a_batch, in_the_metrics]


def interrupt_at(place: object, function: str, handler: Callable[[], None]) -> list[str]:
    """Let `handler` run once, when a thread is about to call the function, and on that thread, as Python runs handlers
    of signals. Returns what was interrupted."""
    usual = getattr(place, function)
    interrupted: list[str] = []

    def after_the_handler(*given: Any, **named: Any) -> Any:
        setattr(place, function, usual)
        interrupted.append(function)
        handler()
        return usual(*given, **named)

    setattr(place, function, after_the_handler)
    return interrupted


@pytest.mark.parametrize("where", INSIDE)
@pytest.mark.parametrize("way", ["send", "send_columns"])
@pytest.mark.parametrize("seconds", [0, HANDLER_SECONDS])
def test_a_close_in_a_signal_handler_returns_while_the_interrupted_call_holds_a_lock(
    broker: EmbeddedBroker, producer: ThreadedProducer, where: Callable[..., Any], way: str, seconds: float
) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    earlier = producer.send(ProducerRecord("t", VALUE))
    wait_until(lambda: producer.metric("requests-in-flight") > 0)
    returned: list[bool] = []

    def handler() -> None:
        producer.close(seconds)
        returned.append(True)

    place, function = where(producer)
    interrupted = interrupt_at(place, function, handler)
    error = Caller(lambda: error_of_the_interrupted(producer, way)).finish().returned
    assert (interrupted, returned) == ([function], [True])
    assert isinstance(error, ProducerClosedError)
    assert isinstance(earlier.exception(PATIENCE_SECONDS), ProducerClosedError)
    producer.close()
    assert producer.thread.join(0)
    assert memory_used(producer) == 0


def error_of_the_interrupted(producer: KafkaProducer, way: str) -> BaseException | None:
    try:
        if way == "send":
            return producer.send(ProducerRecord("t", VALUE)).exception(PATIENCE_SECONDS)
        rows = producer.send_columns("t", RecordColumns(pa.array([VALUE, VALUE])))
        return rows.result(PATIENCE_SECONDS).failures[0].error
    except ProducerClosedError as error:
        return error


def test_a_close_in_a_signal_handler_returns_while_the_interrupted_call_holds_the_lock_of_a_future(
    broker: EmbeddedBroker, producer: ThreadedProducer
) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    future = producer.send(ProducerRecord("t", VALUE))
    wait_until(lambda: producer.metric("requests-in-flight") > 0)
    done_in_the_handler: list[bool] = []

    class Interrupted(threading.Condition):
        def __enter__(self) -> bool:
            entered = super().__enter__()
            if not done_in_the_handler:
                done_in_the_handler.append(True)
                producer.close(HANDLER_SECONDS)
                done_in_the_handler[0] = future._state != "PENDING"
            return entered

    assert not future.done()  # it has a lock after the first look
    future._looked_at = Interrupted()
    error = Caller(lambda: future.exception(PATIENCE_SECONDS)).finish().returned
    assert isinstance(error, ProducerClosedError)
    assert done_in_the_handler == [False]
    producer.close()


def test_a_close_that_interrupts_nothing_waits_until_the_rest_has_failed(
    broker: EmbeddedBroker, producer: ThreadedProducer
) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    futures = [producer.send(ProducerRecord("t", VALUE)) for _ in range(50)]
    with ThreadPoolExecutor(1) as threads:  # whose own functions hold no lock while they run another
        threads.submit(producer.close, 0).result(PATIENCE_SECONDS)
    assert all(future.done() for future in futures)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as other:
        left = other.send(ProducerRecord("t", VALUE))
        other.close(0)
        assert left.done()


@pytest.mark.parametrize("where", [in_the_accumulator, in_the_memory])
def test_a_flush_in_a_signal_handler_ends_with_its_time_at_the_same_places(
    broker: EmbeddedBroker, producer: ThreadedProducer, where: Callable[..., Any]
) -> None:
    raised: list[BaseException] = []
    broker.control.when(api=ApiKey.PRODUCE).delay(2_000)
    producer.send(ProducerRecord("t", VALUE))

    def handler() -> None:
        try:
            producer.flush(HANDLER_SECONDS)
        except TimeoutError as error:
            raised.append(error)

    place, function = where(producer)
    interrupted = interrupt_at(place, function, handler)
    future = Caller(lambda: producer.send(ProducerRecord("t", VALUE))).finish().future()
    assert len(interrupted) == len(raised) == 1
    assert future.result(PATIENCE_SECONDS).offset == 1
    producer.close()
