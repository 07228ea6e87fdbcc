"""Partitioner: assigns the rows of columns to partitions.

    row                          partition
    requests a partition         the requested one; rows.py has already rejected partitions that the topic does not have
    has a key                    murmur2 of the key, modulo the number of partitions, as in Kafka's Java client
    neither                      the sticky partition of the topic

The *sticky partition* of a topic receives all rows without a key until they fill a batch. Then the next sticky
partition is chosen at random (KIP-480, KIP-794). If each row went to a random partition instead, there would be many
small batches, which cost more than a few large ones.

The choice is among the partitions that have a leader. With partitioner.rack.aware, it is among those whose leader is in
client.rack (KIP-1123). Until all of these candidates have been written to, each has the same probability. After that, a
candidate's weight is (longest queue + 1 - own queue), where a queue is the number of batches that wait to be sent to a
partition. So a slow broker receives fewer rows.

If a broker has not accepted a batch for partitioner.availability.timeout.ms, its partitions are not chosen; the
accumulator finds these brokers. If this leaves no partition in the rack, the choice is among those of other racks.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node, PartitionInfo, TopicInfo
from spark_kafka_sink.diagnostics.text import format_partition, sanitize
from spark_kafka_sink.errors import MetadataTimeoutError, SchemaError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.murmur2 import compute_partitions
from spark_kafka_sink.producer.options import ROUND_ROBIN_PARTITIONER
from spark_kafka_sink.records.arrays import build_null_mask, integers_to_numpy
from spark_kafka_sink.records.byte_column import ByteColumn, read_byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks, take_rows
from spark_kafka_sink.records.header import HEADER_BYTES

RecordPartitioner = Callable[[str, "bytes | None", "bytes | None", Sequence[PartitionInfo]], int]
"""A custom partitioner for send(): (topic, key, value, partitions) -> partition."""

INVALID_PARTITION = -1
"""Marks a requested number that cannot be a partition of any topic, or a sticky partition that is not chosen yet."""
UNSPECIFIED_PARTITION = -2
"""Marks a row that requests no partition.

It must be lower than all other numbers in an array of requested partitions, so that the minimum of the array shows
whether there is such a row.
"""
MAX_PARTITION = 2**31 - 1
"""The highest partition number that Kafka's protocol can represent."""
_CHUNK_ROWS = 16_384
"""Number of keys that are hashed at once, in arrays that fit into the CPU cache (murmur2.py)."""
_NO_ROW_INDICES: NDArray[np.int64] = np.empty(0, np.int64)

_log = logging.getLogger(__name__)


class PartitionLoads(NamedTuple):
    """The number of queued batches of each candidate partition that can be written to now (KIP-794)."""

    partitions: list[int]
    queue_lengths: list[int]
    candidate_count: int
    """The number of candidates, including those that cannot be written to."""


FindPartitionLoads = Callable[[Sequence[int]], "PartitionLoads | None"]
"""A function that takes candidate partitions and returns their loads, or None if one has never been written to."""


class _TopicState:
    """The partitions of one topic in the latest snapshot, and its sticky partition."""

    __slots__ = (
        "_nodes",
        "_topic_info",
        "assignable_partitions",
        "next_position",
        "partitions",
        "rack_partitions",
        "sticky_bytes",
        "sticky_partition",
    )

    def __init__(self) -> None:
        # The topic and the nodes as of the last update; None before the first update.
        self._topic_info: TopicInfo | None = None
        self._nodes: Mapping[int, Node] | None = None
        self.partitions: list[int] = []
        """All partitions of the topic."""
        self.assignable_partitions: list[int] = []
        """The partitions that have a leader; all partitions if none has one."""
        self.rack_partitions: list[int] = []
        """The partitions whose leader is in client.rack; empty if rack awareness is off."""
        self.sticky_partition = INVALID_PARTITION
        self.sticky_bytes = 0
        """Number of bytes assigned to the sticky partition since it was chosen."""
        self.next_position = 0
        """Index in `assignable_partitions` of the next partition that the round-robin partitioner assigns."""

    def update(self, topic: str, snapshot: ClusterSnapshot, rack: str | None) -> None:
        """Update the partitions from the snapshot if the topic or the nodes have changed.

        `rack`: the client's rack; None if rack awareness is off.

        Raise MetadataTimeoutError if the snapshot does not contain the topic's partitions.
        """
        topic_info = snapshot.topics.get(topic)
        if topic_info is None or not topic_info.partitions:
            raise MetadataTimeoutError(f"The partitions of {format_partition(topic)} are not known.")
        if self._topic_info is topic_info and self._nodes is snapshot.nodes:
            return
        self._topic_info, self._nodes = topic_info, snapshot.nodes
        self.partitions = [partition.index for partition in topic_info.partitions]
        partitions_with_leader = [
            partition for partition in topic_info.partitions if partition.leader in snapshot.nodes
        ]
        self.assignable_partitions = [partition.index for partition in partitions_with_leader] or self.partitions
        rack_node_ids = {node.id for node in snapshot.nodes.values() if rack is not None and node.rack == rack}
        self.rack_partitions = [
            partition.index for partition in partitions_with_leader if partition.leader in rack_node_ids
        ]
        # A topic that was deleted and created again may have fewer partitions.
        if self.sticky_partition not in self.partitions:
            self.sticky_partition = INVALID_PARTITION


class Partitioner:
    """Assigns rows to partitions. Thread-safe: _lock guards the sticky partitions and all other state of topics."""

    def __init__(self, config: ProducerConfig, random: Random) -> None:
        self._ignores_keys = config.partitioner_ignore_keys
        self._is_round_robin = config.partitioner_class == ROUND_ROBIN_PARTITIONER
        self._is_adaptive = config.partitioner_adaptive_partitioning_enable
        self._rack = config.client_rack if config.partitioner_rack_aware else None
        self._batch_body_bytes = max(1, config.batch_size - HEADER_BYTES)
        self._random = random
        self._lock = threading.Lock()
        self._has_checked_rack = False
        self._topic_states: dict[str, _TopicState] = {}

    def assign(
        self,
        topic: str,
        columns: RecordColumns,
        sizes: NDArray[np.int64],
        requested_partitions: NDArray[np.int32] | None,
        snapshot: ClusterSnapshot,
        find_partition_loads: FindPartitionLoads,
    ) -> NDArray[np.int32]:
        """Return the partition of each row.

        `sizes`: the maximum size of each encoded row in bytes, which determines how many rows fit into a batch.
        `requested_partitions`: for each row, a partition of the topic or UNSPECIFIED_PARTITION; None if no row requests
        a partition. This array may be modified, and may be the one that is returned.
        `find_partition_loads`: returns how many batches are queued for each partition.

        Raise MetadataTimeoutError if `snapshot` does not contain the topic's partitions.
        """
        topic_state = self._update_topic(topic, snapshot)
        key = None if self._ignores_keys or self._is_round_robin else columns.key
        # A requested partition takes precedence over a key. The rows that remain unassigned have neither.
        if requested_partitions is not None:
            partitions = requested_partitions
            unassigned_indices = np.flatnonzero(partitions == UNSPECIFIED_PARTITION)
            if key is not None and len(unassigned_indices):
                unassigned_indices = _assign_by_key(key, partitions, unassigned_indices, len(topic_state.partitions))
        elif key is not None:
            partitions, unassigned_indices = compute_partitions_by_key(key, len(topic_state.partitions))
        else:
            return self._assign_keyless(topic_state, sizes, find_partition_loads)
        if len(unassigned_indices):
            partitions[unassigned_indices] = self._assign_keyless(
                topic_state, sizes[unassigned_indices], find_partition_loads
            )
        return partitions

    def _update_topic(self, topic: str, snapshot: ClusterSnapshot) -> _TopicState:
        """Update and return the state of a topic. Warn, once per producer, if no broker has the client's rack."""
        with self._lock:
            topic_state = self._topic_states.get(topic)
            if topic_state is None:
                topic_state = self._topic_states[topic] = _TopicState()
            topic_state.update(topic, snapshot, self._rack)
            if self._rack is not None and not self._has_checked_rack:
                self._has_checked_rack = True
                _warn_of_unknown_rack(self._rack, snapshot)
            return topic_state

    def _assign_keyless(
        self, topic_state: _TopicState, sizes: NDArray[np.int64], find_partition_loads: FindPartitionLoads
    ) -> NDArray[np.int32]:
        """Return the partitions of rows that have neither a key nor a requested partition."""
        with self._lock:
            if self._is_round_robin:
                return _assign_round_robin(topic_state, len(sizes))
            choose_partition = _create_partition_chooser(
                topic_state, find_partition_loads if self._is_adaptive else None
            )
            return self._assign_sticky(topic_state, sizes, choose_partition)

    def _assign_sticky(
        self, topic_state: _TopicState, sizes: NDArray[np.int64], choose_partition: Callable[[Random], int]
    ) -> NDArray[np.int32]:
        """Assign rows to the sticky partition until its batch is full, then to the next sticky partition, and so on.

        The loop has one iteration per batch, plus one if the first row does not fit into the current batch.

        Example: batches have room for 10 bytes, and the current one already has 6. The sizes [3, 3, 3, 3], of which the
        cumulative sizes are [3, 6, 9, 12], are assigned as

            iteration 1    4 bytes are left    row 0          to the current sticky partition
            iteration 2    10 bytes are left   rows 1 to 3    to the next sticky partition
        """
        if topic_state.sticky_partition < 0:
            topic_state.sticky_partition = choose_partition(self._random)
            topic_state.sticky_bytes = 0
        cumulative_bytes = np.cumsum(sizes)
        partitions: list[int] = []
        row_counts: list[int] = []
        start, bytes_before_start = 0, 0
        while start < len(sizes):
            # The space that is left in the sticky partition's batch; negative after a row that is larger than a batch.
            remaining_bytes = self._batch_body_bytes - topic_state.sticky_bytes
            stop = int(np.searchsorted(cumulative_bytes, bytes_before_start + remaining_bytes, "right"))
            if stop == start and not topic_state.sticky_bytes:
                stop = start + 1  # a row that is larger than a batch gets a batch of its own
            if stop > start:
                partitions.append(topic_state.sticky_partition)
                row_counts.append(stop - start)
                bytes_before_stop = int(cumulative_bytes[stop - 1])
                topic_state.sticky_bytes += bytes_before_stop - bytes_before_start
                start, bytes_before_start = stop, bytes_before_stop
            if start < len(sizes):
                topic_state.sticky_partition, topic_state.sticky_bytes = choose_partition(self._random), 0
        return np.repeat(np.array(partitions, np.int32), row_counts)


def _assign_round_robin(topic_state: _TopicState, row_count: int) -> NDArray[np.int32]:
    """Assign rows to the assignable partitions in turn, beginning after the one at which the previous call stopped."""
    partitions = np.array(topic_state.assignable_partitions, np.int32)
    positions = (topic_state.next_position + np.arange(row_count)) % len(partitions)
    topic_state.next_position = (topic_state.next_position + row_count) % len(partitions)
    return partitions[positions]


def _warn_of_unknown_rack(rack: str, snapshot: ClusterSnapshot) -> None:
    """Log a warning if no broker has this rack, because client.rack is then probably misspelled."""
    known_racks = sorted({node.rack for node in snapshot.nodes.values() if node.rack is not None})
    if rack not in known_racks:
        _log.warning(
            "No broker has the rack %r set in client.rack, so rows without a key go to the partitions of all racks. "
            "The racks of the brokers are: %s. Spell client.rack as broker.rack.",
            rack,
            sanitize(", ".join(known_racks)) or "none",
        )


def parse_requested_partitions(partition: int | ArrowColumn | None, row_count: int) -> NDArray[np.int32] | None:
    """Return the requested partition of each row; None if no row requests one.

    A null becomes UNSPECIFIED_PARTITION, and a number that cannot be a partition becomes INVALID_PARTITION.

    `partition`: the partition of all rows, or a column with the partition of each row.

    Raise SchemaError if the column has a different length or does not contain integers.
    """
    if partition is None:
        return None
    if isinstance(partition, int):
        return np.full(row_count, partition if 0 <= partition <= MAX_PARTITION else INVALID_PARTITION, np.int32)
    if len(partition) != row_count:
        raise SchemaError(
            f"columns must have the same number of rows: value has {row_count}, partition has {len(partition)}"
        )
    if pa.types.is_null(partition.type):
        return None
    if not pa.types.is_integer(partition.type):
        raise SchemaError(f"column partition must be of integers, not {partition.type}")
    column = combine_chunks(partition)
    numbers = integers_to_numpy(column)
    partitions = numbers.astype(np.int32)
    has_invalid = np.minimum.reduce(numbers, initial=0) < 0 or np.maximum.reduce(numbers, initial=0) > MAX_PARTITION
    if has_invalid:
        partitions[(numbers < 0) | (numbers > MAX_PARTITION)] = INVALID_PARTITION
    if column.null_count:
        partitions[build_null_mask(column)] = UNSPECIFIED_PARTITION
    return partitions


def strip_key_prefix(columns: RecordColumns, prefix_bytes: int) -> RecordColumns:
    """Return columns for the partitioner: the values, and the keys without their first `prefix_bytes` bytes.

    Null keys stay null. If there is no key column, return `columns` unchanged.
    """
    if columns.key is None:
        return columns
    return RecordColumns(columns.value, pc.binary_replace_slice(columns.key, 0, prefix_bytes, b""))


def _assign_by_key(
    key: ArrowColumn,
    partitions: NDArray[np.int32],
    unassigned_indices: NDArray[np.int64],
    partition_count: int,
) -> NDArray[np.int64]:
    """Set the partition of each unassigned row that has a key. Return the indices of those that have none.

    `key`: the keys of all rows.
    `partitions`: the partition of each row, which is changed in place.
    `unassigned_indices`: the indices of the unassigned rows, at least one.
    """
    unassigned_keys = take_rows(combine_chunks(key), unassigned_indices)
    partitions[unassigned_indices], keyless_positions = compute_partitions_by_key(unassigned_keys, partition_count)
    return unassigned_indices[keyless_positions]


def compute_partitions_by_key(key: ArrowColumn, partition_count: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the partition that each row's key determines, and the indices of the rows without a key.

    The partitions of rows without a key are undefined.
    """
    partitions = np.empty(len(key), np.int32)
    keyless_indices: list[NDArray[np.int64]] = [_NO_ROW_INDICES]  # by chunk
    for start in range(0, len(key), _CHUNK_ROWS):
        keys = read_byte_column(combine_chunks(key.slice(start, _CHUNK_ROWS)))
        chunk_partitions = partitions[start : start + keys.row_count]
        if keys.nulls is None:
            chunk_partitions[:] = compute_partitions(keys, partition_count)
            continue
        # A null occupies no bytes, so the other keys are contiguous. For example, keys of 2 bytes, null and 3 bytes
        # have the offsets [0, 2, 2, 5], and without the null [0, 2, 5].
        keyed_indices = np.flatnonzero(~keys.nulls)
        offsets = np.append(keys.offsets.take(keyed_indices), keys.offsets[-1])
        chunk_partitions[keyed_indices] = compute_partitions(ByteColumn(offsets, keys.data), partition_count)
        keyless_indices.append(np.flatnonzero(keys.nulls) + start)
    return partitions, keyless_indices[0] if len(keyless_indices) == 1 else np.concatenate(keyless_indices)


class _WeightedPartitions(NamedTuple):
    """The partitions to choose from at random, and their weights."""

    partitions: Sequence[int]
    cumulative_weights: list[int] | None = None
    """For each partition, the sum of its weight and all weights before it; None if all weights are equal."""


def _create_partition_chooser(
    topic_state: _TopicState, find_partition_loads: FindPartitionLoads | None
) -> Callable[[Random], int]:
    """Return a function that chooses the next sticky partition at random.

    The function determines the weights of the partitions when it is first called, and then reuses them. Often, it is
    never called, because all rows fit into the batch of the current sticky partition.

    `find_partition_loads`: returns how many batches are queued for each partition; None to use equal weights.
    """
    weighted_partitions: _WeightedPartitions | None = None

    def choose_partition(random: Random) -> int:
        nonlocal weighted_partitions
        if weighted_partitions is None:
            weighted_partitions = _weigh_partitions(topic_state, find_partition_loads)
        partitions, cumulative_weights = weighted_partitions
        if cumulative_weights is None:
            return partitions[random.randrange(len(partitions))]
        return partitions[bisect_right(cumulative_weights, random.randrange(cumulative_weights[-1]))]

    return choose_partition


def _weigh_partitions(topic_state: _TopicState, find_partition_loads: FindPartitionLoads | None) -> _WeightedPartitions:
    """Return the partitions to choose from, with their weights.

    The candidates are the partitions whose leader is in the client's rack. If none of these leaders accepts batches,
    the candidates are the partitions of the other racks. If no partition has a leader in the rack, or if rack awareness
    is off, all partitions are candidates.

    The candidates are weighted by load once each of them has been written to. (The Java client waits until all of the
    topic's partitions have been written to. As long as all rows go to one rack, that never happens.)
    """
    weighted_candidates, unweighted_fallback = topic_state.partitions, topic_state.assignable_partitions
    if topic_state.rack_partitions:
        rack_loads = None if find_partition_loads is None else find_partition_loads(topic_state.rack_partitions)
        can_use_rack = rack_loads is None or len(rack_loads.partitions) > 0
        if can_use_rack:
            return _weigh_by_load(rack_loads) or _WeightedPartitions(topic_state.rack_partitions)
        # None of the leaders in the rack accepts batches, so the rows go to the other racks.
        outside_partitions = sorted(set(topic_state.assignable_partitions) - set(topic_state.rack_partitions))
        if outside_partitions:
            weighted_candidates = unweighted_fallback = outside_partitions
    loads = None if find_partition_loads is None else find_partition_loads(weighted_candidates)
    return _weigh_by_load(loads) or _WeightedPartitions(unweighted_fallback)


def _weigh_by_load(loads: PartitionLoads | None) -> _WeightedPartitions | None:
    """Return the partitions that can be written to now, with their weights. A longer queue means a lower weight.

    Return None if all candidates should have the same probability.

    `loads`: the loads of the candidates; None if a candidate has never been written to.

    Example: queue lengths of [0, 2, 1] give the weights [3, 1, 2], which add up to [3, 4, 6].
    """
    if loads is None or not loads.partitions or loads.candidate_count < 2:
        return None
    shortest, longest = min(loads.queue_lengths), max(loads.queue_lengths)
    are_all_available = len(loads.queue_lengths) == loads.candidate_count
    if are_all_available and shortest == longest:
        return None
    weights = [longest + 1 - length for length in loads.queue_lengths]
    return _WeightedPartitions(loads.partitions, list(accumulate(weights)))
