"""SimulatedWrite: a write of many tasks to many partitions on many brokers, with real producers, in virtual time.

Tasks run in waves. At any time, `concurrent_tasks` tasks run, each in a slot of its own. When a task ends, the next one
takes over its slot and its producer, as in a Spark worker. A task receives Arrow batches at `rows_per_second`, passes
them to its producer, and finally waits for all acknowledgements. Without a distribution, its rows go to all partitions
at random. With a distribution, each partition has the rows of one task, or of as few tasks as possible.

All partitions and brokers are simulated, but at most `max_simulated_slots` of the slots. Counts are multiplied by the
number of slots that each simulated slot represents; memory and times are not. Brokers serve each request as slowly as
if the slots that are not simulated sent requests, too (ServedCluster.weight).
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
"""Rows of an Arrow batch, the default of spark.sql.execution.arrow.maxRecordsPerBatch."""
MAX_START_DELAY_MS = 50.0
"""Maximum of the random delay before each task. Spark does not start all tasks of a wave at the same time."""
LATENCY_MS = 1.0


@dataclass(frozen=True)
class WriteParameters:
    """Parameters of a simulated write."""

    tasks: int
    partitions: int
    brokers: int
    concurrent_tasks: int
    rows: int = 100_000
    """Rows of each task."""
    row_bytes: int = 100
    rows_per_second: float = 200_000.0
    is_distributed: bool = False
    max_simulated_slots: int = 2
    has_slow_broker: bool = True
    has_dying_broker: bool = True
    service: Service = field(default_factory=Service)
    seed: int = 0

    @property
    def simulated_slots(self) -> int:
        """Number of slots that are simulated."""
        return min(self.concurrent_tasks, self.max_simulated_slots, self.tasks)

    @property
    def weight(self) -> float:
        """Number of slots that each simulated slot represents."""
        return min(self.concurrent_tasks, self.tasks) / self.simulated_slots

    @property
    def waves(self) -> int:
        return ceil(self.tasks / self.concurrent_tasks)

    def find_task_partitions(self, task: int) -> npt.NDArray[np.int64]:
        """Return the partitions to which the rows of a task may go."""
        if not self.is_distributed:
            return np.arange(self.partitions)
        return np.arange(task % self.partitions, self.partitions, min(self.tasks, self.partitions))


@dataclass(frozen=True)
class WriteResult:
    """Result of a write. Counts are those of the whole write: the counts of the sample, multiplied by its weight."""

    rows: float
    duration_s: float
    """Virtual time from the start of the write to the end of its last task."""
    max_connections: float
    """Sum of the maximum numbers of open connections of all brokers."""
    opened_connections: float
    rejected_connections: float
    requests: float
    """Produce requests."""
    batches: float
    batch_bytes: float
    """Mean size of a batch."""
    peak_memory_bytes: int
    """Maximum part of buffer.memory that any producer used."""
    producer_states: float
    """Number of pairs of a producer and a partition. Brokers keep a state of each for producer.id.expiration.ms."""
    retried_rows: float
    """Rows that were sent again."""
    failed_rows: float
    """Rows whose delivery failed with an error."""
    lost_rows: int
    """Rows of the sample that were acknowledged but are not in the log. There must be none."""
    duplicated_rows: int
    """Rows of the sample that are in the log more than once. There must be none."""

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.duration_s

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
    """Runs a write and collects its result."""

    def __init__(self, write: WriteParameters) -> None:
        self.write = write
        self.system = SharedSystem(latency_ms=LATENCY_MS, window_bytes=4 * 1024 * 1024)
        self.turns = Turns(self.system)
        self.turns.after_round = self._update_peak_memory
        self.cluster = ServedCluster(
            self.system,
            write.service,
            nodes=write.brokers,
            topics={TOPIC: write.partitions},
            max_partitions=write.partitions,
            check_records=False,
            seed=write.seed,
        )
        self.cluster.weight = self._compute_service_weight()
        self.sent_rows = np.zeros(write.partitions, np.int64)
        """Number of rows sent to each partition."""
        self.acknowledged_rows = np.zeros(write.partitions, np.int64)
        self.failed_rows = 0
        self.producer_state_count = 0
        self._producers: list[KafkaProducer] = []
        self._peak_memory_bytes = 0

    def run(self) -> WriteResult:
        write, cluster, started = self.write, self.cluster, self.system.now()
        if write.has_slow_broker:
            cluster.slow_node = 0
        if write.has_dying_broker and write.brokers > 1:
            cluster.failing_node = write.brokers - 1
        end_times_ms: list[float] = []
        self.turns.run([partial(self._run_slot, slot, end_times_ms) for slot in range(write.simulated_slots)])
        return self._build_result(max(end_times_ms) - started)

    def _compute_service_weight(self) -> float:
        """Return the number of concurrent tasks that a broker serves, divided by the number of simulated ones."""
        write, cluster = self.write, self.cluster.core
        leaders = {cluster.partition(TOPIC, int(index)).leader for index in write.find_task_partitions(0)}
        share = len(leaders) / write.brokers  # the share of brokers to which a task writes
        return max(1.0, min(write.concurrent_tasks, write.tasks) * share) / max(1.0, write.simulated_slots * share)

    # --- one slot, in which tasks run one after the other

    def _run_slot(self, slot: int, end_times_ms: list[float], caller: Caller) -> None:
        """Run the tasks of a slot, and append the time at which the last one ended to `end_times_ms`."""
        write, random = self.write, Random(f"{self.write.seed} {slot}")
        written_partitions = np.zeros(write.partitions, np.bool_)
        caller.pause(random.uniform(0, MAX_START_DELAY_MS))
        producer = self._create_producer(random)
        for wave in range(write.waves):
            self._run_task(caller, producer, slot * write.waves + wave, written_partitions)
            caller.pause(random.uniform(0, MAX_START_DELAY_MS))
        end_times_ms.append(self.system.now())
        producer.close()
        self.producer_state_count += int(written_partitions.sum())

    def _create_producer(self, random: Random) -> KafkaProducer:
        config = {"bootstrap.servers": self.cluster.bootstrap_servers, **BULK_DEFAULTS}
        producer = _Producer(config, self.system, TurnLoop(self.turns), random)
        self._producers.append(producer)
        return producer

    def _run_task(
        self, caller: Caller, producer: KafkaProducer, task: int, written_partitions: npt.NDArray[np.bool_]
    ) -> None:
        """Send the rows of a task, wait for all acknowledgements and count the results."""
        calls = []
        for columns, partitions in self._iterate_rows(task):
            caller.pause(columns.num_rows / self.write.rows_per_second * 1000.0)
            calls.append(producer.send_columns(TOPIC, columns, partition=pa.array(partitions, pa.int32())))
            written_partitions[partitions] = True
            self.sent_rows += np.bincount(partitions, minlength=self.write.partitions)
        producer.flush()
        for call in calls:
            result = call.result(0)
            self.failed_rows += result.rows_failed
            for partition, stored_range in result.partitions.items():
                self.acknowledged_rows[partition] += stored_range.rows

    def _iterate_rows(self, task: int) -> Iterator[tuple[RecordColumns, npt.NDArray[np.int64]]]:
        """Yield the Arrow batches of a task, each with the partitions of its rows."""
        generator = np.random.default_rng([self.write.seed, task])
        task_partitions = self.write.find_task_partitions(task)
        for first in range(0, self.write.rows, ARROW_ROWS):
            count = min(ARROW_ROWS, self.write.rows - first)
            data = pa.py_buffer(bytes(count * self.write.row_bytes))
            offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * self.write.row_bytes)
            values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])
            yield RecordColumns(values), generator.choice(task_partitions, count)

    # --- the result

    def _update_peak_memory(self) -> None:
        """Update the maximum amount of memory that any producer has used."""
        pools = [loop.sender.accumulator.pool for loop in self.turns.loops]
        max_used_bytes = max((pool.total_bytes - pool.free_bytes for pool in pools), default=0)
        self._peak_memory_bytes = max(self._peak_memory_bytes, max_used_bytes)

    def _build_result(self, elapsed_ms: float) -> WriteResult:
        write, cluster = self.write, self.cluster
        weight = write.weight
        totals = [producer.totals() for producer in self._producers]
        stored_rows = np.array([cluster.log(TOPIC, index).log_end_offset for index in range(write.partitions)])
        batches = sum(total.batches for total in totals)
        return WriteResult(
            rows=write.simulated_slots * write.waves * write.rows * weight,
            duration_s=elapsed_ms / 1000.0,
            max_connections=sum(cluster.max_open_connections.values()) * weight,
            opened_connections=cluster.opened_count * weight,
            rejected_connections=cluster.rejected_count * weight,
            requests=sum(cluster.produce_requests.values()) * weight,
            batches=batches * weight,
            batch_bytes=sum(total.bytes for total in totals) / batches,
            peak_memory_bytes=self._peak_memory_bytes,
            producer_states=self.producer_state_count * weight,
            retried_rows=sum(total.retries for total in totals) * weight,
            failed_rows=self.failed_rows * weight,
            lost_rows=int(np.maximum(self.acknowledged_rows - stored_rows, 0).sum()),
            duplicated_rows=int(np.maximum(stored_rows - self.sent_rows, 0).sum()),
        )
