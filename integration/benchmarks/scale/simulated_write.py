"""One write of many tasks to many partitions on many brokers, with real producers, in virtual time.

Tasks come in waves: `at_once` of them run at any time, each in the place of one before it, whose producer it takes, as
in a Spark worker. A task is handed Arrow batches at `rows_per_second`, gives them to its producer and waits at its end
for all acknowledgements. Without a distribution its rows go to all partitions at random; with one, each partition has
the rows of one task, or of as few as there can be.

All partitions and brokers are simulated. Of the places at most `sampled` are. What is counted is multiplied by the
number of places that each stands for; memory and times are not. Brokers serve each as slowly as if the others that
write to the same broker were there (ServedCluster.weight).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from integration.benchmarks.scale.served_cluster import ServedCluster, Service
from integration.benchmarks.scale.turns import Caller, SharedSystem, TurnLoop, Turns
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.sender_loop import SenderLoop
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.spark.options.parse import BULK_DEFAULTS

TOPIC = "t"
ARROW_ROWS = 10_000
"""Of an Arrow batch: spark.sql.execution.arrow.maxRecordsPerBatch."""
START_MS_MAX = 50.0
"""Spark starts the tasks of a wave one after the other."""
LATENCY_MS = 1.0


@dataclass(frozen=True)
class Write:
    tasks: int
    partitions: int
    brokers: int
    at_once: int
    rows: int = 100_000
    """Of each task."""
    row_bytes: int = 100
    rows_per_second: float = 200_000.0
    distributed: bool = False
    sampled: int = 2
    slow_broker: bool = True
    dying_broker: bool = True
    service: Service = field(default_factory=Service)
    seed: int = 0

    @property
    def places(self) -> int:
        """How many tasks at once are simulated."""
        return min(self.at_once, self.sampled, self.tasks)

    @property
    def weight(self) -> float:
        """How many places each of those that are simulated stands for."""
        return min(self.at_once, self.tasks) / self.places

    @property
    def waves(self) -> int:
        return ceil(self.tasks / self.at_once)

    def find_task_partitions(self, task: int) -> npt.NDArray[np.int64]:
        """Return the partitions to which the rows of a task may go."""
        if not self.distributed:
            return np.arange(self.partitions)
        return np.arange(task % self.partitions, self.partitions, min(self.tasks, self.partitions))


@dataclass(frozen=True)
class Written:
    """What came of a write. Counts are of the whole write, those of a sample multiplied."""

    rows: float
    seconds: float
    """Of virtual time, from the first task's start to the last one's end."""
    connections: float
    """The most that were open at one time, on all brokers."""
    opened: float
    refused: float
    requests: float
    """Produce requests."""
    batches: float
    batch_bytes: float
    """Of a batch, on average."""
    memory_bytes: int
    """The most that one producer held of its buffer.memory."""
    producer_states: float
    """Which producer has written to which partition: brokers keep each for producer.id.expiration.ms."""
    retried: float
    """Rows that were sent again."""
    failed: float
    """Rows that were given up, and reported so."""
    lost: int
    """Rows that were acknowledged and are not in the log; of the sample, and none may be."""
    doubled: int

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def requests_per_million_rows(self) -> float:
        return self.requests / self.rows * 1_000_000


class _Producer(KafkaProducer):
    """A producer in virtual time, whose sender takes turns with the other tasks."""

    def __init__(self, config: Mapping[str, object], system: System, loop: SenderLoop, random: Random) -> None:
        self._environment = system, loop, random
        super().__init__(config)

    def _create_environment(self, flush_at_exit: float) -> tuple[System, SenderLoop, Random]:
        return self._environment


class SimulatedWrite:
    def __init__(self, write: Write) -> None:
        self.write = write
        self.system = SharedSystem(latency_ms=LATENCY_MS, window_bytes=4 * 1024 * 1024)
        self.turns = Turns(self.system)
        self.turns.after_round = self._look_at_memory
        self.cluster = ServedCluster(
            self.system,
            write.service,
            nodes=write.brokers,
            topics={TOPIC: write.partitions},
            max_partitions=write.partitions,
            check_records=False,
            seed=write.seed,
        )
        self.cluster.weight = self._service_weight()
        self.given = np.zeros(write.partitions, np.int64)
        """Rows by partition."""
        self.acknowledged = np.zeros(write.partitions, np.int64)
        self.failed = 0
        self.states = 0
        self._producers: list[KafkaProducer] = []
        self._memory_bytes = 0

    def run(self) -> Written:
        write, cluster, started = self.write, self.cluster, self.system.now()
        if write.slow_broker:
            cluster.slow_node = 0
        if write.dying_broker and write.brokers > 1:
            cluster.failing_node = write.brokers - 1
        ended: list[float] = []
        self.turns.run([partial(self._work, place, ended) for place in range(write.places)])
        return self._written(max(ended) - started)

    def _service_weight(self) -> float:
        """How many tasks a broker serves at one time, by how many of those that are simulated."""
        write, cluster = self.write, self.cluster.core
        leaders = {cluster.partition(TOPIC, int(index)).leader for index in write.find_task_partitions(0)}
        share = len(leaders) / write.brokers  # of the brokers that a task writes to
        return max(1.0, min(write.at_once, write.tasks) * share) / max(1.0, write.places * share)

    # --- one place, in which one task runs after the other

    def _work(self, place: int, ended: list[float], caller: Caller) -> None:
        write, random = self.write, Random(f"{self.write.seed} {place}")
        written_to = np.zeros(write.partitions, np.bool_)
        caller.pause(random.uniform(0, START_MS_MAX))
        producer = self._new_producer(random)
        for wave in range(write.waves):
            self._run_task(caller, producer, place * write.waves + wave, written_to)
            caller.pause(random.uniform(0, START_MS_MAX))
        ended.append(self.system.now())
        producer.close()
        self.states += int(written_to.sum())

    def _new_producer(self, random: Random) -> KafkaProducer:
        config = {"bootstrap.servers": self.cluster.bootstrap_servers, **BULK_DEFAULTS}
        producer = _Producer(config, self.system, TurnLoop(self.turns), random)
        self._producers.append(producer)
        return producer

    def _run_task(self, caller: Caller, producer: KafkaProducer, task: int, written_to: npt.NDArray[np.bool_]) -> None:
        calls = []
        for columns, partitions in self._iterate_rows(task):
            caller.pause(columns.num_rows / self.write.rows_per_second * 1000.0)
            calls.append(producer.send_columns(TOPIC, columns, partition=pa.array(partitions, pa.int32())))
            written_to[partitions] = True
            self.given += np.bincount(partitions, minlength=self.write.partitions)
        producer.flush()
        for call in calls:
            result = call.result(0)
            self.failed += result.rows_failed
            for partition, written in result.partitions.items():
                self.acknowledged[partition] += written.rows

    def _iterate_rows(self, task: int) -> Iterator[tuple[RecordColumns, npt.NDArray[np.int64]]]:
        generator = np.random.default_rng([self.write.seed, task])
        task_partitions = self.write.find_task_partitions(task)
        for first in range(0, self.write.rows, ARROW_ROWS):
            count = min(ARROW_ROWS, self.write.rows - first)
            data = pa.py_buffer(bytes(count * self.write.row_bytes))
            offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * self.write.row_bytes)
            values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])
            yield RecordColumns(values), generator.choice(task_partitions, count)

    # --- what came of it

    def _look_at_memory(self) -> None:
        pools = [loop.sender.accumulator.pool for loop in self.turns.loops]
        held = max((pool.total_bytes - pool.free_bytes for pool in pools), default=0)
        self._memory_bytes = max(self._memory_bytes, held)

    def _written(self, elapsed_ms: float) -> Written:
        write, cluster = self.write, self.cluster
        weight = write.weight
        totals = [producer.totals() for producer in self._producers]
        found = np.array([cluster.log(TOPIC, index).log_end_offset for index in range(write.partitions)])
        batches = sum(total.batches for total in totals)
        return Written(
            rows=write.places * write.waves * write.rows * weight,
            seconds=elapsed_ms / 1000.0,
            connections=sum(cluster.max_open.values()) * weight,
            opened=cluster.opened_count * weight,
            refused=cluster.refused_count * weight,
            requests=sum(cluster.produce_requests.values()) * weight,
            batches=batches * weight,
            batch_bytes=sum(total.bytes for total in totals) / batches,
            memory_bytes=self._memory_bytes,
            producer_states=self.states * weight,
            retried=sum(total.retries for total in totals) * weight,
            failed=self.failed * weight,
            lost=int(np.maximum(self.acknowledged - found, 0).sum()),
            doubled=int(np.maximum(found - self.given, 0).sum()),
        )
