"""CreateTopics: create topics, or validate their settings only.

v5: adds partitions, replication factor and configs to the response (KIP-525)
v7: adds the topic id to the response
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Struct,
    VersionRange,
    array,
    boolean,
    int8,
    int16,
    int32,
    nullable_array,
    nullable_string,
    string,
    uuid,
)


@dataclass(kw_only=True, slots=True)
class CreatableReplicaAssignment(Struct):
    partition_index: int = int32("0+")
    broker_ids: list[int] = array("int32", "0+")


@dataclass(kw_only=True, slots=True)
class CreatableTopicConfig(Struct):
    name: str = string("0+")
    value: str | None = nullable_string("0+")


@dataclass(kw_only=True, slots=True)
class CreatableTopic(Struct):
    name: str = string("0+")
    num_partitions: int = int32("0+")
    replication_factor: int = int16("0+")
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


@dataclass(kw_only=True, slots=True)
class CreateTopicsRequest(Message):
    API_KEY = ApiKey.CREATE_TOPICS
    VERSIONS = VersionRange(2, 7)
    FIRST_FLEXIBLE_VERSION = 5

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


@dataclass(kw_only=True, slots=True)
class CreatableTopicConfigs(Struct):
    name: str = string("5+")
    value: str | None = nullable_string("5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


@dataclass(kw_only=True, slots=True)
class CreatableTopicResult(Struct):
    name: str = string("0+")
    topic_id: UUID = uuid("7+", ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("1+", ignorable=True)
    topic_config_error_code: int = int16("5+", tag=0, ignorable=True)
    num_partitions: int = int32("5+", default=-1, ignorable=True)
    replication_factor: int = int16("5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = nullable_array(CreatableTopicConfigs, "5+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class CreateTopicsResponse(Message):
    API_KEY = ApiKey.CREATE_TOPICS
    VERSIONS = VersionRange(2, 7)
    FIRST_FLEXIBLE_VERSION = 5

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")
