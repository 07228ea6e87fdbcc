"""FindCoordinator: look up the coordinator of a consumer group or a transactional id.

v1: adds the key type, to look up coordinators of transactional ids
v4: allows several keys in one request (KIP-699)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int8, int16, int32, nullable_string, string


@dataclass(kw_only=True, slots=True)
class FindCoordinatorRequest(Message):
    API_KEY = ApiKey.FIND_COORDINATOR
    VERSIONS = VersionRange(0, 6)
    FIRST_FLEXIBLE_VERSION = 3

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array("string", "4+")


@dataclass(kw_only=True, slots=True)
class Coordinator(Struct):
    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = nullable_string("4+", ignorable=True)


@dataclass(kw_only=True, slots=True)
class FindCoordinatorResponse(Message):
    API_KEY = ApiKey.FIND_COORDINATOR
    VERSIONS = VersionRange(0, 6)
    FIRST_FLEXIBLE_VERSION = 3

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = nullable_string("1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
