"""DescribeConfigs: look up the configuration of topics and brokers.

v1: adds synonyms
v3: adds documentation and types (KIP-569)
"""

from __future__ import annotations

from dataclasses import dataclass

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
)

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
"""Values of `resource_type` (ConfigResource.Type)."""


@dataclass(kw_only=True, slots=True)
class DescribeConfigsResource(Struct):
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = nullable_array("string", "0+")


@dataclass(kw_only=True, slots=True)
class DescribeConfigsRequest(Message):
    API_KEY = ApiKey.DESCRIBE_CONFIGS
    VERSIONS = VersionRange(1, 4)
    FIRST_FLEXIBLE_VERSION = 4

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


@dataclass(kw_only=True, slots=True)
class DescribeConfigsSynonym(Struct):
    name: str = string("1+")
    value: str | None = nullable_string("1+", nullable_versions="0+")
    source: int = int8("1+")


@dataclass(kw_only=True, slots=True)
class DescribeConfigsResourceResult(Struct):
    name: str = string("0+")
    value: str | None = nullable_string("0+")
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_default: bool = boolean("0")
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", ignorable=True)
    documentation: str | None = nullable_string("3+", nullable_versions="0+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class DescribeConfigsResult(Struct):
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeConfigsResponse(Message):
    API_KEY = ApiKey.DESCRIBE_CONFIGS
    VERSIONS = VersionRange(1, 4)
    FIRST_FLEXIBLE_VERSION = 4

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")
