"""Structs of DescribeQuorumRequest: in Kafka those of the response have the same names."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.schema import Struct, array, int32, string


@dataclass(kw_only=True, slots=True)
class PartitionData(Struct):
    partition_index: int = int32("0+")


@dataclass(kw_only=True, slots=True)
class TopicData(Struct):
    topic_name: str = string("0+")
    partitions: list[PartitionData] = array(PartitionData, "0+")
