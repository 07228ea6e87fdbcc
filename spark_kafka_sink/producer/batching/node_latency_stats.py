"""NodeLatencyStats: tracks nodes that accept no requests, so that the partitioner avoids their partitions (KIP-794).

A node is unavailable if it has had ready batches for longer than partitioner.availability.timeout.ms and none of them
could be drained. As in the Java client, two times are recorded for each node: when it last had ready batches, and when
they could last be drained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.client.cluster import ClusterSnapshot, PartitionInfo
from spark_kafka_sink.producer.partitioner import PartitionLoads


class _NodeTimes(NamedTuple):
    """The last time a node had ready batches, and the last time they could be drained."""

    ready_ms: float
    drained_ms: float


class NodeLatencyStats:
    """The last ready and drain times of each node. The caller must hold the accumulator's lock."""

    def __init__(self, availability_timeout_ms: float) -> None:
        self._availability_timeout_ms = availability_timeout_ms
        self._times_by_node: dict[int, _NodeTimes] = {}

    def update(self, node_id: int, now_ms: float, *, can_drain: bool) -> None:
        """Record that a node has ready batches, and whether they can be drained because the node accepts requests."""
        times = self._times_by_node.get(node_id)
        # The timeout of a node begins when it has ready batches for the first time.
        drained_ms = now_ms if can_drain or times is None else times.drained_ms
        self._times_by_node[node_id] = _NodeTimes(ready_ms=now_ms, drained_ms=drained_ms)

    def find_available_partition_loads(
        self, candidates: Sequence[PartitionInfo | None], queue_lengths: Sequence[int], snapshot: ClusterSnapshot
    ) -> PartitionLoads:
        """Return the queue lengths of the candidate partitions whose leader is known and available.

        `candidates`: the candidate partitions; None stands for one that is not in the metadata.
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
        """Return whether a node has accepted no batches for longer than the timeout. 0 disables the timeout."""
        times = self._times_by_node.get(node_id)
        if times is None or self._availability_timeout_ms <= 0:
            return False
        return times.ready_ms - times.drained_ms > self._availability_timeout_ms
