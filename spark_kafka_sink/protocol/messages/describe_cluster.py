"""DescribeCluster: look up brokers, controller and cluster id (KIP-700).

v1: adds the endpoint type, to look up controllers instead of brokers
v2: adds fenced brokers
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
    nullable_string,
    string,
)


@dataclass(kw_only=True, slots=True)
class DescribeClusterRequest(Message):
    API_KEY = ApiKey.DESCRIBE_CLUSTER
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


@dataclass(kw_only=True, slots=True)
class DescribeClusterBroker(Struct):
    broker_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = nullable_string("0+", default=None)
    is_fenced: bool = boolean("2+")


@dataclass(kw_only=True, slots=True)
class DescribeClusterResponse(Message):
    API_KEY = ApiKey.DESCRIBE_CLUSTER
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = int32("0+", default=-0x80000000)
