"""ApiVersions: look up the APIs and versions that a broker supports.

v3: adds the client's software name and version (KIP-511), and the cluster's features (KIP-584)
v5: adds the cluster id and node id that the client expects; a broker with a different id responds with
    REBOOTSTRAP_REQUIRED (KIP-1242)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import (
    Struct,
    VersionRange,
    array,
    boolean,
    int16,
    int32,
    int64,
    nullable_string,
    string,
)


@dataclass(kw_only=True, slots=True)
class ApiVersionsRequest(Message):
    API_KEY = ApiKey.API_VERSIONS
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = nullable_string("5+", default=None, ignorable=True)
    node_id: int = int32("5+", default=-1, ignorable=True)


@dataclass(kw_only=True, slots=True)
class ApiVersion(Struct):
    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


@dataclass(kw_only=True, slots=True)
class SupportedFeatureKey(Struct):
    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


@dataclass(kw_only=True, slots=True)
class FinalizedFeatureKey(Struct):
    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


@dataclass(kw_only=True, slots=True)
class ApiVersionsResponse(Message):
    API_KEY = ApiKey.API_VERSIONS
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)
