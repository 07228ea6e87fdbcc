"""A producer without close() that is garbage-collected on any thread at any time."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from spark_kafka_sink.errors import ConfigurationError, DeliveryTimeoutError, ProducerClosedError
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.protocol.message import ApiKey
from tests.fake_system import FakeSystem
from tests.locks import find_locks
from tests.producer.virtual_time import InlineLoop, create_simulated_producer, get_loop, run_until
from tests.simulated_cluster import SimulatedCluster
from tests.waiting import WAIT_TIMEOUT_SECONDS

DELIVERY_MS = 40_000


class Holder:
    """Holder of a producer that is part of a reference cycle, so that only the garbage collector frees it."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.itself = self


def create_producer_without_acknowledgement() -> tuple[KafkaProducer, InlineLoop, Future[RecordMetadata]]:
    """Create a producer with a record in flight that no broker acknowledges."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0, delivery_timeout_ms=DELIVERY_MS)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = producer.send(ProducerRecord("t", b"v"))
    run_until(producer, lambda: producer.metric("requests-in-flight") > 0)
    return producer, get_loop(producer), future


def test_collecting_producer_does_not_deadlock_while_thread_holds_any_of_its_locks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "spark_kafka_sink")
    producer, loop, future = create_producer_without_acknowledgement()
    memory = loop.sender.accumulator.pool
    locks = find_locks(producer)
    assert len(locks) > 5
    holder = Holder(producer)
    collected: list[int] = []

    def collect() -> None:
        with ExitStack() as held:
            for lock in locks.values():
                held.enter_context(lock)
            collected.append(gc.collect())

    del producer, holder
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(WAIT_TIMEOUT_SECONDS)
    assert collected, "the finalizer waits for a lock"
    assert caplog.text == ""  # log handlers have a lock, too
    assert loop.join(DELIVERY_MS + 1)
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert "was dropped, or the program exited, without close()" in caplog.text
    assert memory.free_bytes == memory.total_bytes


def test_dropping_producer_without_records_in_flight_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spark_kafka_sink")
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0)
    producer.send(ProducerRecord("t", b"v"))
    producer.flush()
    loop = get_loop(producer)
    del producer
    gc.collect()
    assert loop.sender.is_finished
    assert loop.join(WAIT_TIMEOUT_SECONDS * 1000)
    assert caplog.text == ""
    assert not cluster.system.open_sockets


def test_dropped_producer_delivers_accepted_records() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=60_000)
    futures = [producer.send(ProducerRecord("t", b"%d" % number)) for number in range(3)]
    loop = get_loop(producer)
    del producer
    gc.collect()
    assert loop.join(1_000)
    assert [future.result(0).offset for future in futures] == [0, 1, 2]
    assert cluster.values("t") == [b"0", b"1", b"2"]
    assert not cluster.system.open_sockets


def test_call_that_drops_its_producer_gets_its_result() -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    loops: list[InlineLoop] = []

    def send() -> Future[RecordMetadata]:
        producer = create_simulated_producer(cluster)
        loops.append(get_loop(producer))
        return producer.send("t", b"v")

    future = send()
    gc.collect()
    assert loops[0].join(1_000)
    assert future.result(0).offset == 0


def test_records_of_dropped_producer_fail_after_timeout_and_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "spark_kafka_sink")
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 2})
    producer = create_simulated_producer(cluster, linger_ms=0, delivery_timeout_ms=3_000, request_timeout_ms=1_000)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    futures = [producer.send("t", b"v", partition=partition) for partition in (0, 1)]
    loop = get_loop(producer)
    del producer
    gc.collect()
    assert not loop.join(2_900)
    assert loop.join(200)
    assert all(isinstance(future.exception(0), DeliveryTimeoutError) for future in futures)
    (record,) = (record for record in caplog.records if record.name.startswith("spark_kafka_sink.producer"))
    assert record.getMessage().startswith(
        "KafkaProducer test was dropped, or the program exited, without close(). No acknowledgement was received for 2 "
        "records. First error: topic t, partition 0: not acknowledged within 3000 ms."
    )


def test_dropped_producer_abandons_open_transaction_immediately(caplog: pytest.LogCaptureFixture) -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=60_000, transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("t", b"v")
    loop = get_loop(producer)
    del producer
    gc.collect()
    assert loop.sender.is_finished
    assert loop.join(0)
    assert isinstance(future.exception(0), ProducerClosedError)
    assert "No acknowledgement was received for 1 record" in caplog.text


@pytest.mark.parametrize("seconds", [-1, float("nan"), "10", None])
def test_rejects_flush_at_exit_that_is_no_number_of_seconds(seconds: object) -> None:
    with pytest.raises(ConfigurationError, match=r"flush_at_exit must be a number of seconds, 0 or more"):
        KafkaProducer(bootstrap_servers="localhost:1", flush_at_exit=seconds)  # type: ignore[arg-type]
