"""ListOffsets: for each topic-partition, look up the earliest offset, the latest offset or the offset for a timestamp.

v2: adds the isolation level
v4: adds leader epochs
v7: adds the special timestamp MAX_TIMESTAMP (-3): the record with the highest timestamp
v8: adds EARLIEST_LOCAL_TIMESTAMP (-4): the earliest offset in local storage
v9: adds LATEST_TIERED_TIMESTAMP (-5): the latest offset in remote storage
v10: adds a timeout
v11: adds EARLIEST_PENDING_UPLOAD_TIMESTAMP (-6): the earliest offset that is not yet in remote storage
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int8, int16, int32, int64, string


@dataclass(kw_only=True, slots=True)
class ListOffsetsPartition(Struct):
    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
    timestamp: int = int64("0+")
    max_num_offsets: int = int32("0", default=1)  # version 0 is not supported; declared to match Kafka's definition


@dataclass(kw_only=True, slots=True)
class ListOffsetsTopic(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


@dataclass(kw_only=True, slots=True)
class ListOffsetsRequest(Message):
    API_KEY = ApiKey.LIST_OFFSETS
    VERSIONS = VersionRange(1, 11)
    FIRST_FLEXIBLE_VERSION = 6

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    old_style_offsets: list[int] = array("int64", "0")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)


@dataclass(kw_only=True, slots=True)
class ListOffsetsTopicResponse(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


@dataclass(kw_only=True, slots=True)
class ListOffsetsResponse(Message):
    API_KEY = ApiKey.LIST_OFFSETS
    VERSIONS = VersionRange(1, 11)
    FIRST_FLEXIBLE_VERSION = 6

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")
