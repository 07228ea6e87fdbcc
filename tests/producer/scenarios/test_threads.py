"""close(), flush() and blocked calls of several threads at once, with a real thread and real sockets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.client.option_parsing import LONG_MAX
from spark_kafka_sink.errors import AuthorizationError, BufferExhaustedError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.fake_system import FakeSystem
from tests.producer.threaded import ThreadedProducer
from tests.producer.virtual_time import create_simulated_producer, get_reserved_bytes, wait_for_result
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

VALUE = b"v" * 1000
LARGE = b"v" * 30_000
CENTURIES = 1e12
"""A timeout in seconds that is longer than threads can wait."""


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 1}) as broker:
        yield broker


def create_producer(broker: EmbeddedBroker, **options: object) -> ThreadedProducer:
    configuration: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0}
    configuration.update({name.replace("_", "."): value for name, value in options.items()})
    return ThreadedProducer(configuration)


class Caller(threading.Thread):
    """One call on a thread of its own, with the result or the exception of the call."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.returned: object = None
        self.raised: BaseException | None = None
        self._call = call
        self.start()

    def run(self) -> None:
        try:
            self.returned = self._call()
        except BaseException as error:
            self.raised = error

    def future(self) -> Future[Any]:
        assert isinstance(self.returned, Future)
        return self.returned

    def finish(self) -> Caller:
        self.join(WAIT_TIMEOUT_SECONDS)
        assert not self.is_alive(), "the call did not end"
        return self


def yield_until(condition: Callable[[], bool]) -> None:
    """Yield to the other threads until the condition holds."""
    deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0)


def hold_memory(producer: ThreadedProducer, free_bytes: int = 0) -> int:
    """Reserve all memory but `free_bytes`, as slow brokers would cause.

    The test releases the returned number of bytes.
    """
    producer.partitions_for("t")
    held_bytes = producer.memory.free_bytes - free_bytes
    assert producer.memory.try_reserve(held_bytes)
    return held_bytes


def set_max_block_ms(producer: KafkaProducer, max_block_ms: int) -> None:
    """Set max.block.ms for later calls of send()."""
    producer.config = replace(producer.config, max_block_ms=max_block_ms)


def start_blocked_call(producer: ThreadedProducer, count: int, call: Callable[[], object]) -> Caller:
    caller = Caller(call)
    yield_until(lambda: producer.memory.waiter_count == count or not caller.is_alive())
    return caller


def test_call_blocked_on_memory_ends_when_producer_is_closed(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, max_block_ms=600_000)
    held_bytes = hold_memory(producer)
    single = start_blocked_call(producer, 1, lambda: producer.send(ProducerRecord("t", VALUE)))
    columns = start_blocked_call(producer, 2, lambda: producer.send_columns("t", RecordColumns(pa.array([VALUE] * 3))))
    producer.close(timeout=0)
    assert isinstance(single.finish().raised, ProducerClosedError)
    result = columns.finish().future().result(0)
    assert [len(failure.row_indices) for failure in result.failures] == [3]
    assert isinstance(result.failures[0].error, ProducerClosedError)
    assert get_reserved_bytes(producer) == held_bytes


def test_call_blocked_on_memory_fails_with_fatal_error(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, max_block_ms=600_000)
    held_bytes = hold_memory(producer, free_bytes=10_000)
    caller = start_blocked_call(
        producer, 1, lambda: producer.send(ProducerRecord("t", LARGE)).exception(WAIT_TIMEOUT_SECONDS)
    )
    assert caller.is_alive()
    producer.sender.fatal_error = AuthorizationError("not allowed", code=31, name="CLUSTER_AUTHORIZATION_FAILED")
    producer.memory.release(held_bytes)
    assert isinstance(caller.finish().returned, AuthorizationError)
    producer.close()
    assert get_reserved_bytes(producer) == 0


def test_blocked_calls_time_out_in_turn_and_released_memory_goes_to_the_next(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, max_block_ms=600_000)
    held_bytes = hold_memory(producer, free_bytes=10_000)  # enough for a small record, not for a large one
    set_max_block_ms(producer, 300)
    first = start_blocked_call(producer, 1, lambda: producer.send(ProducerRecord("t", LARGE)))
    set_max_block_ms(producer, 600_000)
    second = Caller(lambda: producer.send(ProducerRecord("t", VALUE)))
    error = first.finish().future().exception(0)
    assert isinstance(error, BufferExhaustedError)
    for phrase in ("buffer.memory", "stayed full for", "max.block.ms", "The brokers accept records more slowly"):
        assert phrase in str(error)
    assert second.finish().future().result(WAIT_TIMEOUT_SECONDS).offset == 0
    producer.close()
    assert get_reserved_bytes(producer) == held_bytes


def test_small_record_does_not_overtake_large_one_blocked_on_memory(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, max_block_ms=600_000)
    held_bytes = hold_memory(producer, free_bytes=10_000)
    large_call = start_blocked_call(producer, 1, lambda: producer.send(ProducerRecord("t", LARGE)))
    small_call = start_blocked_call(producer, 2, lambda: producer.send(ProducerRecord("t", VALUE)))
    assert small_call.is_alive()
    producer.memory.release(held_bytes)
    assert {call.finish().future().result(WAIT_TIMEOUT_SECONDS).offset for call in (large_call, small_call)} == {0, 1}
    producer.close()


def test_send_columns_reports_accepted_rows_when_memory_is_exhausted() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0, buffer_memory=100_000, max_block_ms=50)
    producer.partitions_for("t")
    cluster.control.when(api=ApiKey.PRODUCE).delay(300)
    result = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([VALUE] * 400))))
    producer.close()
    failed_rows = [row for failure in result.failures for row in failure.row_indices.tolist()]
    assert 0 < result.rows_written < 400
    assert failed_rows == list(range(result.rows_written, 400))  # the first rows were accepted, in order
    assert {type(failure.error) for failure in result.failures} == {BufferExhaustedError}


def test_call_blocked_on_metadata_ends_when_producer_is_closed(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, max_block_ms=600_000)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(ProducerRecord("missing", VALUE)),
        lambda: producer.send_columns("missing", RecordColumns(pa.array([VALUE]))),
        lambda: producer.partitions_for("missing"),
    ]
    callers = [Caller(call) for call in calls]
    yield_until(lambda: "missing" in producer.sender.metadata.topics)
    producer.close(timeout=0)
    for caller in callers:
        assert isinstance(caller.finish().raised, ProducerClosedError)


def test_flush_ends_when_another_thread_closes(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = create_producer(broker)
    broker.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = producer.send(ProducerRecord("t", VALUE))
    entered_waits = threading.Semaphore(0)
    original_wait = producer.thread.wait

    def wait(event: OneTimeEvent, timeout_ms: float | None) -> bool:
        entered_waits.release()
        return original_wait(event, timeout_ms)

    monkeypatch.setattr(producer.thread, "wait", wait)
    flushes = [Caller(producer.flush) for _ in range(3)]
    for _ in flushes:
        assert entered_waits.acquire(timeout=WAIT_TIMEOUT_SECONDS)
    producer.close(timeout=0)
    for flush in flushes:
        assert flush.finish().raised is None
    assert isinstance(future.exception(0), ProducerClosedError)


@pytest.mark.parametrize("timeout", [None, 0, 0.01])
def test_concurrent_flush_and_close(broker: EmbeddedBroker, timeout: float | None) -> None:
    producer = create_producer(broker, linger_ms=60_000, delivery_timeout_ms=200_000)
    futures = [producer.send(ProducerRecord("t", VALUE)) for _ in range(50)]
    callers = [Caller(producer.flush) for _ in range(3)]
    callers += [Caller(lambda: producer.close(timeout)) for _ in range(4)]
    for caller in callers:
        error = caller.finish().raised
        assert error is None or isinstance(error, ProducerClosedError)
    assert all(future.done() for future in futures)
    if timeout is None:
        assert [future.result(0).offset for future in futures] == list(range(50))
    assert get_reserved_bytes(producer) == 0


def test_close_in_callback_logs_nothing_and_second_close_waits(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    producer = create_producer(broker)
    with caplog.at_level(logging.WARNING):
        producer.send(ProducerRecord("t", VALUE), lambda metadata, error: producer.close()).result(WAIT_TIMEOUT_SECONDS)
        producer.close()
    assert caplog.text == ""
    assert producer.thread.join(0)


@pytest.mark.parametrize("error_class", [SystemExit, KeyboardInterrupt])
def test_rejects_records_after_sender_thread_has_failed(
    broker: EmbeddedBroker, error_class: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    producer = create_producer(broker)
    producer.partitions_for("t")

    def raise_error(now_ms: float) -> None:
        raise error_class("from within")

    producer.sender.run_once = raise_error  # type: ignore[method-assign]
    producer.sender.client.wakeup()
    yield_until(lambda: producer.sender.fatal_error is not None)
    with pytest.raises(ProducerClosedError, match="from within"):
        producer.send(ProducerRecord("t", VALUE))
    producer.close()
    assert "No more records are sent" in caplog.text
    assert isinstance(producer.sender.fatal_error, KafkaSinkError)


def test_largest_timeouts_wait_indefinitely(broker: EmbeddedBroker) -> None:
    producer = create_producer(broker, transactional_id="x", max_block_ms=LONG_MAX)
    producer.init_transactions()
    with producer.transaction():
        assert producer.send("t", VALUE).result(WAIT_TIMEOUT_SECONDS).offset == 0
    producer.close(CENTURIES)
    broker.control.when(api=ApiKey.PRODUCE, times=3).delay(100)
    producer = create_producer(broker, max_block_ms=LONG_MAX, buffer_memory=3 * len(LARGE))
    futures = [producer.send("t", LARGE) for _ in range(5)]  # memory is full after the first
    producer.flush(CENTURIES)
    assert [future.exception(0) for future in futures] == [None] * 5
    producer.close(CENTURIES)
