"""NodeAvailability: finds nodes that have stopped accepting requests, so the partitioner can avoid them (KIP-794).

A node is unavailable if batches have waited for it for longer than partitioner.availability.timeout.ms and it has
accepted none of them. As in the Java client (NodeLatencyStats), two times are recorded for each node: when batches were
last waiting for it, and when it was last able to accept them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.client.cluster import ClusterSnapshot, PartitionInfo
from spark_kafka_sink.producer.partitioner import PartitionLoads


class _NodeTimes(NamedTuple):
    """The times, in milliseconds, that determine whether a node is available."""

    ready_ms: float
    """When batches were last waiting for the node."""
    accepting_ms: float
    """When the node was last able to accept batches. If it never was: when the first batches were waiting for it."""


class NodeAvailability:
    """Record of which nodes accept batches. The caller must hold the accumulator's lock."""

    def __init__(self, availability_timeout_ms: float) -> None:
        self._availability_timeout_ms = availability_timeout_ms
        self._times_by_node: dict[int, _NodeTimes] = {}

    def record_ready_batches(self, node_id: int, now_ms: float, *, is_accepting: bool) -> None:
        """Record that batches are waiting for a node, and whether the node can accept them now."""
        times = self._times_by_node.get(node_id)
        # The timeout of a node starts when batches are waiting for it for the first time.
        accepting_ms = now_ms if is_accepting or times is None else times.accepting_ms
        self._times_by_node[node_id] = _NodeTimes(ready_ms=now_ms, accepting_ms=accepting_ms)

    def filter_available_partitions(
        self, candidates: Sequence[PartitionInfo | None], queue_lengths: Sequence[int], snapshot: ClusterSnapshot
    ) -> PartitionLoads:
        """Return the queue lengths of the candidate partitions whose leader is known and available.

        `candidates`: the candidate partitions; None stands for a partition that is not in the metadata.
        `queue_lengths`: the queue length of each candidate.
        """
        partitions: list[int] = []
        lengths: list[int] = []
        for partition_info, queue_length in zip(candidates, queue_lengths, strict=True):
            if partition_info is None or partition_info.leader is None or partition_info.leader not in snapshot.nodes:
                continue
            if not self._is_unavailable(partition_info.leader):
                partitions.append(partition_info.index)
                lengths.append(queue_length)
        return PartitionLoads(partitions, lengths, candidate_count=len(queue_lengths))

    def _is_unavailable(self, node_id: int) -> bool:
        """Return whether batches have waited for a node for longer than the timeout, and it could accept none of them.

        A timeout of 0 disables the check.
        """
        times = self._times_by_node.get(node_id)
        if times is None or self._availability_timeout_ms <= 0:
            return False
        return times.ready_ms - times.accepting_ms > self._availability_timeout_ms
