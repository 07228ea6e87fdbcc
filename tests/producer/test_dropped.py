"""A producer that is dropped without close(): by the garbage collector, at any point of any thread, or at the exit."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from concurrent.futures import Future

import pytest

from spark_kafka_sink.errors import ProducerClosedError
from spark_kafka_sink.producer import producer as producers
from spark_kafka_sink.producer.futures import RecordMetadata
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import InlineLoop, loop_of, run_until, simulated_producer
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import PATIENCE_SECONDS


class Holder:
    """Holds a producer, and is part of a reference cycle."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.itself = self


def unanswered() -> tuple[KafkaProducer, InlineLoop, Future[RecordMetadata]]:
    """A producer with a record in flight that no broker answers."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = simulated_producer(cluster, linger_ms=0)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_answer()
    future = producer.send(ProducerRecord("t", b"v"))
    run_until(producer, lambda: producer._client.in_flight_request_count() > 0)
    return producer, loop_of(producer), future


def test_a_producer_that_is_collected_while_the_same_thread_holds_any_of_its_locks_does_not_lock_it_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "spark_kafka_sink")
    producer, loop, future = unanswered()
    accumulator, metadata, metrics = producer._accumulator, producer._metadata, producer._metrics
    holder = Holder(producer)
    collected: list[int] = []

    def collect() -> None:
        with accumulator._lock, accumulator._pool._lock, metadata._lock, metrics._lock, loop.sender._client._life_lock:
            collected.append(gc.collect())

    del producer, holder
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert collected, "the finalizer waits for a lock"
    assert caplog.text == ""  # a handler of the log has a lock, too
    assert loop.join(PATIENCE_SECONDS * 1000)
    assert isinstance(future.exception(0), ProducerClosedError)
    assert "dropped without close()" in caplog.text
    assert accumulator._pool.free_bytes == accumulator._pool.bytes_max


def test_dropping_a_producer_without_records_in_flight_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spark_kafka_sink")
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = simulated_producer(cluster, linger_ms=0)
    producer.send(ProducerRecord("t", b"v"))
    producer.flush()
    loop = loop_of(producer)
    del producer
    gc.collect()
    assert loop.sender.finished
    assert loop.join(PATIENCE_SECONDS * 1000)
    assert caplog.text == ""
    assert not cluster.system.open_sockets


def test_a_program_that_ends_without_close_is_warned_of_records_that_are_lost(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, _, _ = unanswered()
    assert producer in producers._open_producers
    monkeypatch.setattr(producers, "_open_producers", weakref.WeakSet([producer]))  # those of other tests live on
    producers._warn_of_open_producers()
    assert caplog.text.count("dropped without close()") == 1
    caplog.clear()
    producer.close(timeout=0)
    producers._warn_of_open_producers()
    assert caplog.text == ""
