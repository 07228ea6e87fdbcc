"""A producer that runs in the thread of the test, with virtual time and simulated brokers.

    system = FakeSystem(latency_ms=1)
    cluster = SimulatedCluster(system, topics={"t": 3})
    producer = create_simulated_producer(cluster, linger_ms=5)
    future = producer.send(ProducerRecord("t", b"v"))
    wait_for_result(producer, future)

A call that would block runs the sender until its wait is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.serializers import Serializer
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster

T = TypeVar("T")
ROUNDS_MAX = 200_000
"""Limit of rounds in one wait. A sender that spins in virtual time would otherwise never end."""


class InlineLoop:
    """A SenderLoop without a thread."""

    def __init__(self, system: FakeSystem) -> None:
        self.system = system
        self.rounds = 0
        self.after_round: Callable[[], None] = lambda: None
        self._sender: Sender | None = None
        self._running = False
        self._ended = False

    def start(self, sender: Sender, name: str) -> None:
        self._sender = sender

    @property
    def sender(self) -> Sender:
        assert self._sender is not None
        return self._sender

    def run_once(self) -> None:
        self._running = True
        self.rounds += 1
        try:
            self.sender.run_once(self.system.now())
        finally:
            self._running = False
        self.after_round()

    def run_until(self, condition: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        deadline_ms = float("inf") if timeout_ms is None else self.system.now() + timeout_ms
        if timeout_ms is not None and deadline_ms < float("inf"):
            self.system.at(deadline_ms, self.sender.client.wakeup)  # ends a poll at the deadline
        for _ in range(ROUNDS_MAX):
            if condition():
                return True
            if self.system.now() >= deadline_ms or self.sender.is_finished:
                return False
            self.run_once()
        raise AssertionError("the sender spins")

    def await_metadata(self, metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        def updated() -> bool:
            metadata.raise_if_fatal()
            return metadata.version > last_version

        if not self.run_until(updated, timeout_ms):
            metadata.await_update(last_version, 0)

    def wait(self, event: OneTimeEvent, timeout_ms: float | None) -> bool:
        return self.run_until(event.is_set, timeout_ms)

    def join(self, timeout_ms: float | None) -> bool:
        if self._ended:
            return True
        if not self.sender.is_finished and not self.run_until(lambda: self.sender.is_finished, timeout_ms):
            return False
        self._ended = True
        self.sender.shut_down()
        return True

    def is_current(self) -> bool:
        return self._running


def get_reserved_bytes(producer: KafkaProducer) -> float:
    """Return the bytes of buffer.memory that are reserved now."""
    return producer.metric("buffer-total-bytes") - producer.metric("buffer-available-bytes")


class SimulatedProducer(KafkaProducer):
    """A producer in virtual time, whose sender runs in the thread of the test."""

    def __init__(
        self, system: FakeSystem, config: Mapping[str, object], *, random: Random | None = None, **arguments: Any
    ) -> None:
        self.loop = InlineLoop(system)
        self._random = random if random is not None else Random()
        super().__init__(config, **arguments)

    def _create_environment(self, flush_at_exit: float) -> tuple[System, SenderLoop, Random]:
        return self.loop.system, self.loop, self._random


def create_simulated_producer(
    cluster: SimulatedCluster, seed: int = 0, value_serializer: Serializer | None = None, /, **options: object
) -> KafkaProducer:
    """Create a producer in virtual time. Options are named with underscores instead of dots."""
    configuration: dict[str, object] = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "test"}
    configuration.update({name.replace("_", "."): value for name, value in options.items()})
    return SimulatedProducer(cluster.system, configuration, random=Random(seed), value_serializer=value_serializer)


def get_loop(producer: KafkaProducer) -> InlineLoop:
    assert isinstance(producer, SimulatedProducer)
    return producer.loop


def get_sender(producer: KafkaProducer) -> Sender:
    """Return the sender of the producer's loop, through which tests reach its memory, batches, metadata and client."""
    return get_loop(producer).sender


def run_until(producer: KafkaProducer, condition: Callable[[], bool], timeout_ms: float = 600_000) -> None:
    assert get_loop(producer).run_until(condition, timeout_ms), "it did not happen"


def wait_for_result(producer: KafkaProducer, future: Future[T]) -> T:
    """Run the sender until the future is done."""
    run_until(producer, future.done)
    return future.result(0)
