"""An accumulator with a manual clock, a cluster of two nodes, and an admission check that tests control."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from random import Random

import pyarrow as pa

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import DeliveryTimeoutError, DisconnectedError, KafkaSinkError
from spark_kafka_sink.producer.batching.accumulator import ReadyCheckResult, RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import Partitioner
from spark_kafka_sink.records import sequences
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.decoder import decode_batches
from tests.producer.batching.assigned_rows import assigned_rows
from tests.producer.batching.named_call import named
from tests.waiting import WAIT_TIMEOUT_SECONDS

TOPIC = "t"
VALUE = b"v" * 100
RECORD_BYTES = 115
"""Maximum encoded size of a record with VALUE and no key."""
FOREVER = float("inf")
WALL_MS = 1_700_000_000_000


class Clock:
    """A clock that only changes when a test sets `now_ms`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Gate:
    """Stand-in for idempotence that rejects the batches of `rejected_partitions`, and assigns sequences to others."""

    def __init__(self) -> None:
        self.rejected_partitions: set[int] = set()
        self.admit_call_count = 0
        self.next_sequence: dict[TopicPartition, int] = {}

    def admit(self, batch: ProducerBatch, leader_id: int) -> bool:
        self.admit_call_count += 1
        if batch.topic_partition.partition in self.rejected_partitions:
            return False
        if not batch.has_sequence:
            sequence = self.next_sequence.get(batch.topic_partition, 0)
            batch.set_producer_state(7, 0, sequence)
            self.next_sequence[batch.topic_partition] = sequences.increment(sequence, batch.record_count)
        return True


def tp(partition: int, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, partition)


def cluster(leaders: Iterable[int | None], *, epoch: int = 1, topic: str = TOPIC) -> ClusterSnapshot:
    """Build a snapshot of a topic whose partitions have the given leaders."""
    partitions = tuple(PartitionInfo(topic, index, leader, epoch) for index, leader in enumerate(leaders))
    nodes = {node: Node(node, f"host{node}", 9092) for node in (0, 1)}
    return ClusterSnapshot(nodes=nodes, topics={topic: TopicInfo(topic, partitions=partitions)})


def build_columns(values: list[bytes | None]) -> RecordColumns:
    return RecordColumns(pa.array(values, pa.binary()))


BATCH_ROWS = (1024 - 61) // RECORD_BYTES
"""Number of records with VALUE in a batch of 1024 bytes."""
ERROR = DeliveryTimeoutError("too late")


def decode_values(batch: ProducerBatch) -> list[bytes | None]:
    decoded = list(decode_batches(b"".join(batch.build_wire_segments()), max_bytes=1 << 24))
    values: list[bytes | None] = decoded[0].columns["value"].to_pylist()
    return values


class OpenFlush:
    """A flush on a separate thread, which lasts until the test ends it."""

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self.done: threading.Event
        self._started, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=accumulator.flush, args=(self._wait,), daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_TIMEOUT_SECONDS)

    def end(self) -> bool:
        self._ended.set()
        self._thread.join(WAIT_TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        return self.done.is_set()

    def _wait(self, done: threading.Event) -> bool:
        self.done = done
        self._started.set()
        return self._ended.wait()


class Harness:
    """An accumulator with its pool, clock and cluster. Options are keyword arguments; `snapshot` may be replaced."""

    def __init__(self, leaders: Iterable[int | None] = (0, 0, 1), **options: object) -> None:
        option_values: dict[str, object] = {"bootstrap.servers": "host:9092", "batch.size": 1024, "linger.ms": 10}
        option_values.update({name.replace("_", "."): value for name, value in options.items()})
        self.config = ProducerConfig.parse(option_values)
        self.clock = Clock()
        self.pool = BufferPool(self.config.buffer_memory, self.clock)
        self.wakeups = 0
        self.snapshot = cluster(leaders)
        self.gate = Gate()
        self.counted_rows = 0
        self.accumulator = RecordAccumulator(
            self.config,
            self.pool,
            clock=self.clock,
            wall_clock_ms=lambda: WALL_MS,
            wake_sender=self._wake,
            wait_for_event=lambda event, timeout_ms: event.wait(None if timeout_ms is None else timeout_ms / 1000),
            random=Random(0),
            partitioner=Partitioner(self.config, Random(0)),
            report_assigned_rows=self._count_rows,
        )

    def _wake(self) -> None:
        self.wakeups += 1

    def _count_rows(self, rows: int, total_bytes: int, largest_row_bytes: int, now_ms: float) -> None:
        self.counted_rows += rows

    def append(
        self, partition: int, count: int = 1, value: bytes = VALUE, call: object = None, topic: str = TOPIC
    ) -> tuple[int, KafkaSinkError | None]:
        return self.append_rows([value] * count, [partition] * count, call=call, topic=topic)

    def append_rows(
        self, values: list[bytes | None], partitions: list[int], call: object = None, topic: str = TOPIC
    ) -> tuple[int, KafkaSinkError | None]:
        return self.accumulator.append_columns(topic, assigned_rows(build_columns(values), partitions, call))

    def append_record(self, partition: int, value: bytes = VALUE, call: object = None) -> None:
        size = len(value) + RECORD_BYTES - 100
        self.accumulator.append_record(TOPIC, (value, None, None, partition, WALL_MS), size, self.snapshot, named(call))

    def begin_flush(self) -> OpenFlush:
        """Begin a flush and run `ready` once, as the sender would. The test must call `flushed` to end it."""
        flush = OpenFlush(self.accumulator)
        self.ready()
        return flush

    def flushed(self, flush: OpenFlush) -> bool:
        """End a flush, and return whether all earlier batches were acknowledged or had failed."""
        return flush.end()

    def ready(self) -> ReadyCheckResult:
        return self.accumulator.fill_and_find_ready_nodes(self.snapshot, self.clock.now)

    def ready_nodes(self) -> set[int]:
        return set(self.ready().ready_node_ids)

    def drain(self, *node_ids: int, max_request_size: int = 1 << 20) -> list[ProducerBatch]:
        """Drain the batches of these nodes, by default of both, node by node."""
        drained = self.accumulator.drain(
            self.snapshot, node_ids or (0, 1), max_request_size, self.clock.now, self.gate.admit
        )
        return [batch for batches in drained.values() for batch in batches]

    def take(self) -> list[ProducerBatch]:
        """Run `ready` and drain the nodes with ready batches, as in one round of the sender."""
        return self.drain(*self.ready().ready_node_ids) if self.ready().ready_node_ids else []

    def reenqueue(self, batch: ProducerBatch) -> None:
        """Reenqueue a batch as if its connection was lost."""
        self.accumulator.reenqueue(batch, self.clock.now, DisconnectedError("the connection was lost"))

    def acknowledge(self, batch: ProducerBatch, base_offset: int = 0) -> None:
        batch.mark_request_ended()
        batch.complete(base_offset)
        self.accumulator.remove_completed(batch)
