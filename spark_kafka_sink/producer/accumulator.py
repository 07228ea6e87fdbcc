"""RecordAccumulator: the queues of batches between the callers of send and the sender thread. (Surface; body follows.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.metadata import ClusterSnapshot
from spark_kafka_sink.producer.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.producer.buffer_pool import BufferPool
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.columns import RecordColumns


class DrainGate(Protocol):
    """Who decides whether a partition's next batch may leave now (idempotence)."""

    def admit(self, batch: ProducerBatch, leader_id: int, now: float) -> bool:
        """May `batch`, the head of its partition's queue, be sent to `leader_id` now? If yes: set its sequence if it has none
        and count it as in flight. If no, the partition is set aside until recheck(), so that the sender does not spin.
        Called under the accumulator's lock, so it must not call back into the accumulator."""
        ...


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """What the sender can do now, and when to look again if nothing happens."""

    ready_node_ids: frozenset[int]
    next_check_delay_ms: float  # inf if nothing waits for a time
    unknown_leader_topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows of a call were taken, and why the others were not."""

    rows: int
    error: Exception | None


class RecordAccumulator:
    """See the module's docstring."""

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        wakeup: Callable[[], None],
    ) -> None:
        """`wakeup` makes the sender look again; it is called by appends, from any thread."""

    # -- callers of send ----------------------------------------------------------------------------------------------

    def append_columns(
        self,
        topic: str,
        columns: RecordColumns,
        sizes: NDArray[np.int64],
        partitions: NDArray[np.int32],
        rows: NDArray[np.int64],
        call: object,
    ) -> Appended:
        """Stage rows. `sizes` = record_size_bounds(columns); `partitions` all valid; `rows` = positions in what the caller
        gave (np.arange if nothing was filtered), told back in BatchPart.rows. Blocks up to max.block.ms for each chunk."""
        raise NotImplementedError

    def append_record(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp_ms: int,
        size: int,
        call: object,
    ) -> None:
        """Stage one record. `size` = record_size_bound(key, value, headers). Raises BufferExhaustedError after max.block.ms."""
        raise NotImplementedError

    # -- sender thread ------------------------------------------------------------------------------------------------

    def ready(self, snapshot: ClusterSnapshot, now: float) -> ReadyCheck:
        """Group what has lingered; which nodes have a batch that may be sent?"""
        raise NotImplementedError

    def drain(
        self, snapshot: ClusterSnapshot, node_ids: Iterable[int], max_request_size: int, now: float, gate: DrainGate
    ) -> dict[int, list[ProducerBatch]]:
        """Take at most one batch per partition and `max_request_size` bytes per node; they are closed and IN_FLIGHT."""
        raise NotImplementedError

    def recheck(self, topic_partition: TopicPartition | None = None) -> None:
        """The gate may decide otherwise now, for one partition or for all. Done by itself by reenqueue, split_and_reenqueue,
        finish and unmute."""
        raise NotImplementedError

    def mute(self, topic_partition: TopicPartition) -> None:
        raise NotImplementedError

    def unmute(self, topic_partition: TopicPartition) -> None:
        raise NotImplementedError

    def reenqueue(self, batch: ProducerBatch, now: float) -> None:
        """Send it again after its backoff. Its request must be off the wire. Kept in sequence order."""
        raise NotImplementedError

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Replace a batch that was refused as too large by smaller ones (CLOSED, with consecutive sequences from its base)."""
        raise NotImplementedError

    def expired_batches(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery.timeout.ms has passed, each told once: queued ones are taken out of their queue, those in
        flight stay in flight. The caller fails them and then calls finish()."""
        raise NotImplementedError

    def next_expiry_ms(self) -> float:
        """When the next batch expires, inf if there is none."""
        raise NotImplementedError

    def finish(self, batch: ProducerBatch) -> None:
        """The batch is DONE and its calls have been told: forget it, wake flushes. Once per batch."""
        raise NotImplementedError

    def node_latency(self, node_id: int, now: float, *, can_drain: bool) -> None:
        """Note when a node was last ready and last drained (partitioner.availability.timeout.ms)."""
        raise NotImplementedError

    # -- flush and close ----------------------------------------------------------------------------------------------

    def begin_flush(self) -> object:
        """From now on everything is sendable at once; returns the mark for await_flush."""
        raise NotImplementedError

    def await_flush(self, mark: object, timeout_ms: float) -> bool:
        """Wait until all that was appended before begin_flush is finished; False on timeout. Ends the flush in any case."""
        raise NotImplementedError

    def flush_in_progress(self) -> bool:
        raise NotImplementedError

    def has_incomplete(self) -> bool:
        """Is anything staged, queued or in flight?"""
        raise NotImplementedError

    def has_undrained(self) -> bool:
        """Is anything staged or queued?"""
        raise NotImplementedError

    def close(self) -> None:
        """No more appends: blocked ones end with ProducerClosedError; everything queued becomes sendable."""
        raise NotImplementedError

    def abort_incomplete(self, error: Exception) -> list[ProducerBatch]:
        """Fail everything staged, queued and in flight with `error`; the caller tells the calls and then calls finish()."""
        raise NotImplementedError

    def abort_undrained(self, error: Exception) -> list[ProducerBatch]:
        """The same for what is not in flight."""
        raise NotImplementedError
