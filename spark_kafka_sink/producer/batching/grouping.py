"""Grouping: what a topic has staged becomes batches in the queues of its partitions.

    1. take the stage's runs                             under the lock
    2. order the rows by partition                       free of the lock
    3. pin the open batches of these partitions          under the lock
    4. plan where batches begin and end, encode          free of the lock
    5. append the pieces to the batches                  under the lock
    6. compress the batches that are full                free of the lock, they stay pinned until it is done; without
                                                         compression they are closed in step 5

A batch is pinned while a thread works on it without the lock: the sender may neither close nor send it. Otherwise a
batch could be sent between 3 and 5, and the records that were encoded to follow its last one would follow nothing.

Rows that cannot be encoded (a fault of ours, or no memory in the machine) become batches without bytes that have failed
already, so that their calls are told like all others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.batching.batch import ProducerBatch, TopicPartition
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.incomplete import IncompleteBatches
from spark_kafka_sink.producer.batching.partition_queues import INFINITE_MS, PartitionQueue, PartitionQueues
from spark_kafka_sink.producer.batching.row_origins import PieceRows, RowOwners, rows_of_call
from spark_kafka_sink.producer.batching.staging import (
    Grouped,
    Run,
    Stage,
    Staged,
    as_run,
    compatible,
    group,
    whose_rows,
)
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.arrays import named_rows
from spark_kafka_sink.records.compression import Codec, CompressionRatios
from spark_kafka_sink.records.cutting import BatchSlice, PartitionSlice, cut_batches, times_of
from spark_kafka_sink.records.encoder import EncodedSlice, encode
from spark_kafka_sink.records.header import HEADER_BYTES

_log = logging.getLogger(__name__)
_RATIO_SAFETY = 1.05  # an estimate of the compressed size is taken a little too high, as in Java


class Grouping:
    """Any thread may group; one at a time for each topic, which keeps the order of rows."""

    def __init__(
        self,
        config: ProducerConfig,
        pool: BufferPool,
        lock: threading.Lock,
        queues: PartitionQueues,
        incomplete: IncompleteBatches,
        *,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._codec = config.codec
        self._compresses = config.codec is not Codec.NONE
        self._pool = pool
        self._lock = lock
        self._queues = queues
        self._incomplete = incomplete
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._ratios = CompressionRatios()
        self._failed: list[ProducerBatch] = []  # guarded by the lock
        self.under_way = 0  # guarded by the lock; their rows are in no stage any more, and in no batch yet

    def run(self, stage: Stage) -> bool:
        """Turn all that a stage holds into batches; False if it held nothing."""
        with stage.group_lock:
            with self._lock:
                taken = stage.take()
                if not taken.runs:
                    return False
                self.under_way += 1
            lease = MemoryLease(self._pool, taken.reserved)
            try:
                encoded = self._encode_all(stage.topic, taken.runs, taken.oldest_ms, lease)
                lease.shrink_to(2 * encoded if self._compresses else encoded)
            finally:
                lease.let_go()
                with self._lock:
                    self.under_way -= 1
        return True

    def _encode_all(self, topic: str, staged: Sequence[Staged], oldest_ms: float, lease: MemoryLease) -> int:
        """Runs that can be one table are encoded together; if one part ends in Ctrl-C, the rest is told as well."""
        try:
            parts = list(compatible([as_run(each) for each in staged]))
        except BaseException as error:
            self._give_up(topic, staged, error)
            if not isinstance(error, Exception):
                raise
            return 0
        encoded = 0
        while parts:
            part = parts.pop(0)
            try:
                encoded += self._encode(topic, part, oldest_ms, lease)
            except BaseException as error:
                for rest in parts:
                    self._give_up(topic, rest, error)
                raise
        return encoded

    def close_batch(self, batch: ProducerBatch) -> None:
        """Compress, and learn from it how much more fits into the next batch."""
        if not self._compresses:
            batch.close()
            return
        try:
            batch.close(self._codec, self._config.compression_level)
        except Exception as error:
            _log.warning("%r could not be compressed (%r): it is sent as it is.", batch, error)
        ratio = batch.body_bytes / batch.uncompressed_bytes
        self._ratios.update(batch.topic_partition.topic, self._codec, ratio)

    def forget_ratio(self, batch: ProducerBatch) -> None:
        """A batch was refused as too large: begin again with a careful estimate."""
        if self._compresses:
            observed = batch.body_bytes / batch.uncompressed_bytes
            self._ratios.reset(batch.topic_partition.topic, self._codec, max(1.0, observed))

    @property
    def some_failed(self) -> bool:
        """May be asked without the lock."""
        return bool(self._failed)

    def take_failed(self) -> list[ProducerBatch]:
        """Batches that could not be encoded, each once. Under the lock."""
        failed, self._failed = self._failed, []
        return failed

    def stillborn(self, topic: str, staged: Sequence[Staged], error: Exception) -> list[ProducerBatch]:
        """Batches without bytes, to tell the calls of rows that cannot be sent. Under the lock."""
        batches = []
        for each in staged:
            partitions, rows, call = whose_rows(each)
            for partition in np.flatnonzero(np.bincount(partitions)).tolist():
                piece = rows_of_call(call, rows[partitions == partition])
                batches.append(self._stillborn(TopicPartition(topic, partition), piece, error))
        return batches

    def _stillborn(self, topic_partition: TopicPartition, piece: PieceRows, error: Exception) -> ProducerBatch:
        batch = ProducerBatch(topic_partition, created_ms=0, deadline_ms=INFINITE_MS)
        batch.record_count = piece.stop - piece.start
        batch.pieces = (piece,)
        batch.fail(error)
        self._incomplete.add(batch)
        return batch

    def _encode(self, topic: str, runs: Sequence[Run], oldest_ms: float, lease: MemoryLease) -> int:
        """Make batches of some runs; returns the bytes that they have become, the positions of rows included."""
        bytes_max = self._batch_bytes_max(topic)
        try:
            grouped = group(runs)
            with self._lock:
                queues = self._queues.of_topic(topic, grouped.partitions)
                batches = [queue.pin_open_batch() for queue in queues]
            now_ms = self._wall_clock_ms()
            times = times_of(grouped.columns, now_ms)
            plan = cut_batches(grouped.sizes, _slices(grouped, batches), bytes_max, times)
            pieces = encode(grouped.columns, plan, now_ms)
            lease.hold(len(plan))  # once for each piece, whose batch is to be the holder
        except BaseException as error:  # whatever it was, Ctrl-C included: the rows must not vanish
            self._give_up(topic, runs, error)
            if not isinstance(error, Exception):
                raise
            return 0
        with self._lock:
            try:
                full = self._append(queues, batches, grouped.owners, plan, pieces, oldest_ms, lease)
                now = self._clock()
                for queue, batch in zip(queues, batches, strict=True):
                    if batch is not None and _is_full(batch, bytes_max):
                        full.append((queue, batch))
                    elif batch is not None:
                        self._queues.unpin(queue, batch, now)
            except BaseException as error:
                self._break_off(queues, plan, grouped.owners, lease, error)
                if not isinstance(error, Exception):
                    raise
                return 0
        try:
            for _, batch in full:
                self.close_batch(batch)
        finally:
            with self._lock:
                self._unpin(full)
        owners = grouped.owners
        segments, *_ = zip(*pieces, strict=True)
        return len(owners.rows) * owners.row_bytes + sum(map(len, segments))

    def _give_up(self, topic: str, staged: Sequence[Staged], error: BaseException) -> None:
        """None of the rows is in a batch. Nobody else groups the topic now: what is pinned was pinned for them."""
        with self._lock:
            queues = [queue for queue in self._queues if queue.topic_partition.topic == topic]
            self._unpin(_pinned(queues))
            self._failed += self.stillborn(topic, staged, _reason(error))

    def _unpin(self, pinned: Sequence[tuple[PartitionQueue, ProducerBatch]]) -> None:
        now = self._clock()
        for queue, batch in pinned:
            self._queues.unpin(queue, batch, now)

    def _break_off(
        self,
        queues: Sequence[PartitionQueue],
        plan: Sequence[BatchSlice],
        owners: RowOwners,
        lease: MemoryLease,
        error: BaseException,
    ) -> None:
        """Some of the rows are in batches, and one batch may be half appended to: the batches that are worked on fail,
        and the rows that are in no batch. Under the lock."""
        reason, now = _reason(error), self._clock()
        holders = sum(batch.leases.count(lease) for queue in queues for batch in queue.batches)
        for _ in range(len(plan) - holders):
            lease.let_go()
        in_batches = {
            piece.start
            for queue in queues
            for batch in queue.batches
            for piece in batch.pieces
            if piece.owners is owners
        }
        for _, batch in _pinned(queues):
            batch.pinned = False
            self._queues.remove(batch, now)
            batch.fail(reason)
            self._failed.append(batch)
        for queue in queues:  # some may have got full batches
            self._queues.place(queue, now)
        for cut in plan:
            if cut.start not in in_batches:
                piece = PieceRows(owners, cut.start, cut.stop, 0)
                self._failed.append(self._stillborn(queues[cut.partition_index].topic_partition, piece, reason))

    def _append(
        self,
        queues: Sequence[PartitionQueue],
        batches: list[ProducerBatch | None],
        owners: RowOwners,
        plan: Sequence[BatchSlice],
        pieces: Sequence[EncodedSlice],
        oldest_ms: float,
        lease: MemoryLease,
    ) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Put the pieces into the batches, and into new ones where those are full; returns what is to be compressed."""
        full: list[tuple[PartitionQueue, ProducerBatch]] = []
        leases = (lease,)
        deadline_ms = oldest_ms + self._config.delivery_timeout_ms
        indexes, starts, stops, places, _ = zip(*plan, strict=True)
        rows = named_rows(PieceRows, repeat(owners), starts, stops, places)
        for index, place, its_rows, piece in zip(indexes, places, rows, pieces, strict=True):
            segment, count, base, top = piece
            batch = batches[index]
            if batch is not None and place:
                batch.append(segment, count, base, top, (its_rows,), leases)
                continue
            queue = queues[index]
            if batch is not None and self._compresses:
                full.append((queue, batch))
            elif batch is not None:
                batch.close()
                batch.pinned = False
            batches[index] = batch = ProducerBatch(
                queue.topic_partition, oldest_ms, deadline_ms, (segment,), count, base, top, (its_rows,), leases
            )
            batch.pinned = True
            queue.batches.append(batch)
            self._incomplete.add(batch)
        return full

    def _batch_bytes_max(self, topic: str) -> int:
        """Bytes of a batch before compression: as many as are expected to become batch.size."""
        if not self._compresses:
            return self._config.batch_size
        most = max(self._config.batch_size, self._config.max_request_size)
        return min(int(self._config.batch_size / (self._ratios.get(topic, self._codec) * _RATIO_SAFETY)), most)


def _pinned(queues: Sequence[PartitionQueue]) -> list[tuple[PartitionQueue, ProducerBatch]]:
    return [(queue, batch) for queue in queues for batch in queue.batches if batch.pinned]


def _reason(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else DeliveryError(f"Interrupted by {type(error).__name__}.")


def _is_full(batch: ProducerBatch, bytes_max: int) -> bool:
    """Another record of the usual size would not fit."""
    body_bytes = batch.body_bytes
    return HEADER_BYTES + body_bytes + body_bytes // batch.record_count > bytes_max


def _slices(grouped: Grouped, batches: Sequence[ProducerBatch | None]) -> list[PartitionSlice]:
    slices = []
    for start, stop, batch in zip(grouped.starts, grouped.starts[1:], batches, strict=False):
        if batch is None:
            slices.append(PartitionSlice(start, stop))
        else:
            open_bytes = HEADER_BYTES + batch.body_bytes
            slices.append(PartitionSlice(start, stop, batch.record_count, open_bytes, batch.base_timestamp))
    return slices
