"""close(timeout) in a signal handler returns in time, whatever locks the interrupted call holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.batching.staging import Stage
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.locks import find_locks
from tests.producer.scenarios.test_threads import Caller
from tests.producer.threaded import ThreadedProducer
from tests.producer.virtual_time import get_reserved_bytes
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

VALUE = b"v" * 1000
HANDLER_SECONDS = 0.2


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1}) as broker:
        yield broker


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.producer.producer._FORCED_CLOSE_TIMEOUT_MS", 100.0)


def create_producer(broker: EmbeddedBroker, **options: object) -> ThreadedProducer:
    """Create a producer whose batches hold one record, so that the caller's thread fills them."""
    producer = ThreadedProducer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 1, **options})
    producer.partitions_for("t")
    return producer


@pytest.fixture
def producer(broker: EmbeddedBroker) -> ThreadedProducer:
    return create_producer(broker)


def interrupt_at(owner: type, function: str, handler: Callable[[], None]) -> list[str]:
    """Run `handler` once, on the thread that is about to call the function, as Python runs signal handlers.

    Return a list to which the function's name is added when it is interrupted.
    """
    usual = getattr(owner, function)
    interrupted: list[str] = []

    def after_the_handler(*arguments: Any, **named: Any) -> Any:
        setattr(owner, function, usual)
        interrupted.append(function)
        handler()
        return usual(*arguments, **named)

    setattr(owner, function, after_the_handler)
    return interrupted


@pytest.mark.parametrize(("owner", "function"), [(BatchFiller, "create_stage"), (Stage, "assign_partitions")])
@pytest.mark.parametrize("way", ["send", "send_columns"])
@pytest.mark.parametrize("seconds", [0, HANDLER_SECONDS])
def test_close_in_signal_handler_returns_and_remaining_records_fail_afterwards(
    broker: EmbeddedBroker, producer: ThreadedProducer, owner: type, function: str, way: str, seconds: float
) -> None:
    """The call holds the accumulator's lock in `create_stage`, and the topic's lock in `assign_partitions`."""
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    earlier = producer.send(ProducerRecord("t", VALUE))
    wait_until(lambda: producer.metric("requests-in-flight") > 0)
    returned: list[bool] = []

    def handler() -> None:
        producer.close(seconds)
        returned.append(True)

    interrupted = interrupt_at(owner, function, handler)
    error = Caller(lambda: get_error_of_interrupted_call(producer, way)).finish().returned
    assert (interrupted, returned) == ([function], [True])
    assert isinstance(error, ProducerClosedError)
    assert isinstance(earlier.exception(WAIT_TIMEOUT_SECONDS), ProducerClosedError)
    producer.close()
    assert producer.thread.join(0)
    assert get_reserved_bytes(producer) == 0


def get_error_of_interrupted_call(producer: KafkaProducer, way: str) -> BaseException | None:
    try:
        if way == "send":
            return producer.send(ProducerRecord("t", VALUE)).exception(WAIT_TIMEOUT_SECONDS)
        rows = producer.send_columns("t", RecordColumns(pa.array([VALUE, VALUE])))
        return rows.result(WAIT_TIMEOUT_SECONDS).failures[0].error
    except ProducerClosedError as error:
        return error


@pytest.mark.parametrize("transactional", [False, True])
def test_close_in_signal_handler_returns_while_interrupted_call_holds_any_lock(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    monkeypatch.setattr("spark_kafka_sink.producer.producer._FORCED_CLOSE_TIMEOUT_MS", 1.0)
    options: dict[str, object] = {"transactional.id": "x", "linger.ms": 60_000} if transactional else {}

    with create_producer(broker, **options) as idle:
        # The lock of `_ended_event` is excluded, because it is held until the sender has ended.
        ways = [way for way in find_locks(idle) if not way.endswith("._ended_event._lock")]
    assert len(ways) > 5
    for way in ways:
        producer = create_producer(broker, **options)
        lock = find_locks(producer)[way]
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        producer.send(ProducerRecord("t", VALUE))

        def handler(producer: ThreadedProducer = producer, lock: Any = lock) -> None:
            with lock:
                producer.close(0.01)

        assert Caller(handler).finish().raised is None, way
        producer.close()
        assert producer.thread.join(0), way


def test_close_in_signal_handler_returns_while_lock_of_a_future_is_held(
    broker: EmbeddedBroker, producer: ThreadedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = producer.send(ProducerRecord("t", VALUE))
    wait_until(lambda: producer.metric("requests-in-flight") > 0)
    waits: list[bool] = []
    done_in_the_handler: list[bool] = []

    class Interrupted(threading.Condition):
        def __enter__(self) -> bool:
            entered = super().__enter__()
            if waits and not done_in_the_handler:
                done_in_the_handler.append(True)
                producer.close(HANDLER_SECONDS)
                done_in_the_handler[0] = future.done()  # the lock is reentrant
            return entered

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", Interrupted)
        assert not future.done()  # the first access creates the lock
    waits.append(True)
    error = Caller(lambda: future.exception(WAIT_TIMEOUT_SECONDS)).finish().returned
    assert isinstance(error, ProducerClosedError)
    assert done_in_the_handler == [False]
    producer.close()


def test_close_that_interrupts_no_call_waits_until_remaining_records_have_failed(
    broker: EmbeddedBroker, producer: ThreadedProducer
) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    futures = [producer.send(ProducerRecord("t", VALUE)) for _ in range(50)]
    with ThreadPoolExecutor(1) as threads:  # its own functions hold no lock while they run the call
        threads.submit(producer.close, 0).result(WAIT_TIMEOUT_SECONDS)
    assert all(future.done() for future in futures)
    with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as other:
        left = other.send(ProducerRecord("t", VALUE))
        other.close(0)
        assert left.done()
