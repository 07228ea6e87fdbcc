"""Partitioner: which row goes to which partition, a column at a time.

    the row names its partition     that one; rows that name one which the topic does not have fail before (rows.py)
    it has a key                    murmur2 of the key over all partitions, as every Kafka client in Java does it
    neither                         the sticky partition of the topic

A partition is sticky for one batch (KIP-480, KIP-794): rows without a key fill a batch of one partition before they go
to the next, because many small batches cost more than few large ones. With columns that is an assignment of ranges:
as many rows as fit into batch.size, then another partition is drawn for the following ones. The draw is among the
partitions that have a leader, uniform at first; once all partitions have been written to, it is weighted by how few
batches wait for each (longest queue + 1 - own queue), so that a slow broker gets less. Partitions of a broker that has
taken nothing for partitioner.availability.timeout.ms are left out; the accumulator knows which.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot, PartitionInfo
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import MetadataTimeoutError, SchemaError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.murmur2 import partitions_of_keys
from spark_kafka_sink.records.arrays import integers_to_numpy, null_mask
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header import HEADER_BYTES

RecordPartitioner = Callable[[str, "bytes | None", "bytes | None", Sequence[PartitionInfo]], int]
"""(topic, key, value, partitions) -> partition: a user's own, for send()."""

INVALID_PARTITION = -1
NOT_NAMED = -2
PARTITION_MAX = 2**31 - 1
_ROUND_ROBIN = "RoundRobinPartitioner"
_CHUNK_ROWS = 16_384
_NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)


class PartitionLoads(NamedTuple):
    """How many batches wait for each partition that can be written to now (KIP-794)."""

    partitions: list[int]
    queue_lengths: list[int]
    partition_count: int
    """How many partitions the topic has, including those that cannot be written to."""


LoadsOf = Callable[[], "PartitionLoads | None"]


class _Topic:
    """The partitions of one topic by the last snapshot, and the sticky one with the bytes it got since it was drawn."""

    __slots__ = ("available", "bytes", "indexes", "partition", "seen", "turn")

    def __init__(self) -> None:
        self.seen: tuple[object, object] | None = None
        self.indexes: list[int] = []
        self.available: list[int] = []
        self.partition = INVALID_PARTITION
        self.bytes = 0
        self.turn = 0  # of the round-robin partitioner

    def look(self, topic: str, snapshot: ClusterSnapshot) -> None:
        """Learn the partitions, if the snapshot has new ones."""
        info = snapshot.topics.get(topic)
        if info is None or not info.partitions:
            raise MetadataTimeoutError(f"The partitions of {format_partition(topic)} are not known.")
        if self.seen is not None and self.seen[0] is info and self.seen[1] is snapshot.nodes:
            return
        self.seen = (info, snapshot.nodes)
        self.indexes = [partition.index for partition in info.partitions]
        led = [partition.index for partition in info.partitions if partition.leader in snapshot.nodes]
        self.available = led or self.indexes
        if self.partition not in self.indexes:
            self.partition = INVALID_PARTITION


class Partitioner:
    """Any thread may ask; the sticky state is guarded by _lock."""

    def __init__(self, config: ProducerConfig, random: Random) -> None:
        self._ignore_keys = config.partitioner_ignore_keys
        self._round_robin = config.partitioner_class == _ROUND_ROBIN
        self._adaptive = config.partitioner_adaptive_partitioning_enable
        self._batch_room = max(1, config.batch_size - HEADER_BYTES)
        self._random = random
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}

    def assign(
        self,
        topic: str,
        columns: RecordColumns,
        sizes: NDArray[np.int64],
        named: NDArray[np.int32] | None,
        snapshot: ClusterSnapshot,
        loads: LoadsOf,
    ) -> NDArray[np.int32]:
        """The partition of each row. `named` (see named_partitions) are the rows' own, and the topic has them."""
        state = self._topic(topic, snapshot)
        partitions, undecided = named, _NO_ROWS if named is None else np.flatnonzero(named == NOT_NAMED)
        if columns.key is not None and not (self._ignore_keys or self._round_robin):
            partitions, undecided = _keyed(columns.key, partitions, undecided, len(state.indexes))
        if partitions is None:
            return self._without_key(state, sizes, loads)
        if len(undecided):
            partitions[undecided] = self._without_key(state, sizes[undecided], loads)
        return partitions

    def _topic(self, topic: str, snapshot: ClusterSnapshot) -> _Topic:
        with self._lock:
            state = self._topics.get(topic)
            if state is None:
                state = self._topics[topic] = _Topic()
            state.look(topic, snapshot)
            return state

    def _without_key(self, state: _Topic, sizes: NDArray[np.int64], loads: LoadsOf) -> NDArray[np.int32]:
        with self._lock:
            if not self._round_robin:
                return self._in_ranges(state, sizes, _draw(state.available, loads if self._adaptive else None))
            turns = state.turn + np.arange(len(sizes))
            state.turn = (state.turn + len(sizes)) % len(state.available)
            return np.array(state.available, np.int32)[turns % len(state.available)]

    def _in_ranges(self, sticky: _Topic, sizes: NDArray[np.int64], draw: Callable[[Random], int]) -> NDArray[np.int32]:
        """Give rows to the sticky partition until a batch is full, then draw another: one step per batch."""
        if sticky.partition < 0:
            sticky.partition, sticky.bytes = draw(self._random), 0
        ends = np.cumsum(sizes)
        chosen: list[int] = []
        counts: list[int] = []
        row, done = 0, 0
        while row < len(sizes):
            stop = int(np.searchsorted(ends, done + self._batch_room - sticky.bytes, "right"))
            if stop == row and not sticky.bytes:
                stop = row + 1  # larger than a batch: it gets one of its own
            if stop > row:
                chosen.append(sticky.partition)
                counts.append(stop - row)
                sticky.bytes += int(ends[stop - 1]) - done
                row, done = stop, int(ends[stop - 1])
            if row < len(sizes):
                sticky.partition, sticky.bytes = draw(self._random), 0
        return np.repeat(np.array(chosen, np.int32), counts)


def named_partitions(explicit: int | ArrowColumn | None, row_count: int) -> NDArray[np.int32] | None:
    """The partitions that the rows name themselves; None if no row does.

    NOT_NAMED where the row leaves it to its key or to us, INVALID_PARTITION for what no topic can have.
    """
    if explicit is None:
        return None
    if isinstance(explicit, int):
        return np.full(row_count, explicit if 0 <= explicit <= PARTITION_MAX else INVALID_PARTITION, np.int32)
    if len(explicit) != row_count:
        raise SchemaError(f"column partition has {len(explicit)} rows, column value has {row_count}")
    if pa.types.is_null(explicit.type):
        return None
    if not pa.types.is_integer(explicit.type):
        raise SchemaError(f"column partition must be of integers, not {explicit.type}")
    column = combine_chunks(explicit)
    named = integers_to_numpy(column)
    partitions = named.astype(np.int32)
    if np.minimum.reduce(named, initial=0) < 0 or np.maximum.reduce(named, initial=0) > PARTITION_MAX:
        partitions[(named < 0) | (named > PARTITION_MAX)] = INVALID_PARTITION
    if column.null_count:
        partitions[null_mask(column)] = NOT_NAMED
    return partitions


def _keyed(
    key: ArrowColumn, partitions: NDArray[np.int32] | None, undecided: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Fill in the partitions that keys decide. Returns all partitions, and the rows that have none yet."""
    if partitions is None:
        return partitions_by_key(key, count)
    if len(undecided):
        partitions[undecided], keyless = partitions_by_key(RecordColumns(key).take(undecided).value, count)
        undecided = undecided[keyless]
    return partitions, undecided


def partitions_by_key(key: ArrowColumn, count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The partition of each key, and the rows that have no key: the partition of such a row means nothing."""
    partitions = np.empty(len(key), np.int32)
    keyless: list[NDArray[np.int64]] = [_NO_ROWS]
    for start in range(0, len(key), _CHUNK_ROWS):
        keys = read_byte_column(combine_chunks(key.slice(start, _CHUNK_ROWS)))
        part = partitions[start : start + keys.rows]
        if keys.nulls is None:
            part[:] = partitions_of_keys(keys, count)
            continue
        # A null has no bytes: the keys of the others lie one after the other.
        present = np.flatnonzero(~keys.nulls)
        offsets = np.append(keys.offsets.take(present), keys.offsets[-1])
        part[present] = partitions_of_keys(ByteColumn(offsets, keys.data), count)
        keyless.append(np.flatnonzero(keys.nulls) + start)
    return partitions, keyless[0] if len(keyless) == 1 else np.concatenate(keyless)


def _draw(available: Sequence[int], loads_of: LoadsOf | None) -> Callable[[Random], int]:
    """How the next sticky partition is drawn. The loads are asked for when the first is drawn, and once."""
    known: list[tuple[Sequence[int], list[int]] | None] = []

    def draw(random: Random) -> int:
        if not known:
            known.append(_weights(loads_of() if loads_of is not None else None))
        if known[0] is None:
            return available[random.randrange(len(available))]
        partitions, ends = known[0]
        return partitions[bisect_right(ends, random.randrange(ends[-1]))]

    return draw


def _weights(loads: PartitionLoads | None) -> tuple[Sequence[int], list[int]] | None:
    """Partitions, and the running sum of their weights; None if all are alike."""
    if loads is None or not loads.partitions or loads.partition_count < 2:
        return None
    lengths = loads.queue_lengths
    if len(lengths) == loads.partition_count and min(lengths) == max(lengths):
        return None
    return loads.partitions, list(accumulate(max(lengths) + 1 - length for length in lengths))
