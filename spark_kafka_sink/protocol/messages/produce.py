"""Produce: write record batches to the leaders of their partitions.

v3: adds the transactional id, and requires record format v2 (KIP-98)
v8: adds the errors of individual records (KIP-467)
v10: adds the current leader to the response (KIP-951)
v13: replaces topic names with topic ids (KIP-516)
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Records,
    Struct,
    VersionRange,
    array,
    int16,
    int32,
    int64,
    nullable_string,
    record_batches,
    string,
    tagged_struct,
    uuid,
)


# Not keyword-only: one instance is created for each batch, and positional arguments are faster.
@dataclass(slots=True)
class PartitionProduceData(Struct):
    index: int = int32("0+")
    records: Records = record_batches("0+")


@dataclass(kw_only=True, slots=True)
class TopicProduceData(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


@dataclass(kw_only=True, slots=True)
class ProduceRequest(Message):
    API_KEY = ApiKey.PRODUCE
    VERSIONS = VersionRange(3, 13)
    FIRST_FLEXIBLE_VERSION = 9

    transactional_id: str | None = nullable_string("3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")


@dataclass(kw_only=True, slots=True)
class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32("8+")
    batch_index_error_message: str | None = nullable_string("8+", default=None)


@dataclass(kw_only=True, slots=True)
class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: int = int32("10+", default=-1)
    leader_epoch: int = int32("10+", default=-1)


@dataclass(kw_only=True, slots=True)
class PartitionProduceResponse(Struct):
    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+")
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = nullable_string("8+", default=None, ignorable=True)
    current_leader: ProduceResponseLeaderIdAndEpoch | None = tagged_struct(
        ProduceResponseLeaderIdAndEpoch, "10+", tag=0
    )


@dataclass(kw_only=True, slots=True)
class TopicProduceResponse(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: UUID = uuid("13+", ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


@dataclass(kw_only=True, slots=True)
class ProduceResponseNodeEndpoint(Struct):
    node_id: int = int32("10+")
    host: str = string("10+")
    port: int = int32("10+")
    rack: str | None = nullable_string("10+", default=None)


@dataclass(kw_only=True, slots=True)
class ProduceResponse(Message):
    API_KEY = ApiKey.PRODUCE
    VERSIONS = VersionRange(3, 13)
    FIRST_FLEXIBLE_VERSION = 9

    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[ProduceResponseNodeEndpoint] = array(ProduceResponseNodeEndpoint, "10+", tag=0)
