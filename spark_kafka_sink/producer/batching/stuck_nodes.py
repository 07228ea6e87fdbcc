"""StuckNodes: which brokers take nothing, so that the partitioner leaves their partitions out (KIP-794).

A broker is stuck while there is something to send to it, and it has taken nothing for longer than
partitioner.availability.timeout.ms. For that two times are kept for each broker, which no queue has.
"""

from __future__ import annotations

from spark_kafka_sink.client.cluster import ClusterSnapshot, TopicInfo
from spark_kafka_sink.producer.partitioner import PartitionLoads


class StuckNodes:
    """When each node last had something to be sent to it, and when it last took something. Under a caller's lock."""

    def __init__(self, availability_timeout_ms: float) -> None:
        self._timeout_ms = availability_timeout_ms
        self._times: dict[int, tuple[float, float]] = {}

    def note(self, node_id: int, now: float, *, can_drain: bool) -> None:
        _, drained_ms = self._times.get(node_id, (now, now))
        self._times[node_id] = (now, now if can_drain else drained_ms)

    def usable(self, topic: TopicInfo, queue_lengths: list[int], snapshot: ClusterSnapshot) -> PartitionLoads:
        """The partitions that have a leader which takes what it is sent."""
        usable = [
            (partition.index, length)
            for partition, length in zip(topic.partitions, queue_lengths, strict=True)
            if partition.leader is not None and partition.leader in snapshot.nodes and not self._stuck(partition.leader)
        ]
        return PartitionLoads([one[0] for one in usable], [one[1] for one in usable], len(queue_lengths))

    def _stuck(self, node_id: int) -> bool:
        ready_ms, drained_ms = self._times.get(node_id, (0.0, 0.0))
        return self._timeout_ms > 0 and ready_ms - drained_ms > self._timeout_ms
