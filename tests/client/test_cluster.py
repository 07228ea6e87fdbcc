"""ClusterSnapshot: lookups of partitions and leaders. Metadata responses are merged in test_metadata_merge.py."""

from __future__ import annotations

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node, PartitionInfo, TopicInfo, replace_partitions


def create_partition(index: int, leader: int | None = 0) -> PartitionInfo:
    return PartitionInfo("t", index, leader, leader_epoch=1)


def create_snapshot(*partitions: PartitionInfo) -> ClusterSnapshot:
    return ClusterSnapshot(nodes={0: Node(0, "b0", 9092)}, topics={"t": TopicInfo("t", partitions=partitions)})


def test_finds_partition_behind_gap() -> None:
    snapshot = create_snapshot(create_partition(0), create_partition(2))
    assert snapshot.partition("t", 2) == create_partition(2)
    assert [snapshot.partition("t", index) for index in (-1, 1, 3)] == [None, None, None]


def test_leader_is_none_if_leader_or_its_address_is_unknown() -> None:
    snapshot = create_snapshot(create_partition(0), create_partition(1, leader=None), create_partition(2, leader=7))
    assert [snapshot.leader("t", index) for index in range(4)] == [Node(0, "b0", 9092), None, None, None]
    assert snapshot.leader("other", 0) is None


def test_replaced_partitions_are_sorted_and_others_are_kept() -> None:
    topic = TopicInfo("t", partitions=(create_partition(0), create_partition(3)))
    replaced = replace_partitions(topic, [create_partition(2), create_partition(0, leader=5)])
    assert [(partition.index, partition.leader) for partition in replaced.partitions] == [(0, 5), (2, 0), (3, 0)]
