"""A producer with a real thread and real sockets that gives tests access to its sender."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.producer.sending.sender_thread import SenderThread


class KnownThread(SenderThread):
    sender: Sender

    def start(self, sender: Sender, name: str) -> None:
        self.sender = sender
        super().start(sender, name)


class ThreadedProducer(KafkaProducer):
    def __init__(self, config: Mapping[str, object]) -> None:
        self.thread = KnownThread(OperatingSystem(), flush_at_exit=10.0)
        super().__init__(config)

    def _create_environment(self, flush_at_exit: float) -> tuple[System, SenderLoop, Random]:
        return OperatingSystem(), self.thread, Random()

    @property
    def sender(self) -> Sender:
        return self.thread.sender

    @property
    def memory(self) -> BufferPool:
        return self.sender.accumulator.pool
