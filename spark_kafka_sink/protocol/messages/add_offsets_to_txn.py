"""AddOffsetsToTxn: add a consumer group's offsets to a transaction."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange, int16, int32, int64, string


@dataclass(kw_only=True, slots=True)
class AddOffsetsToTxnRequest(Message):
    API_KEY = ApiKey.ADD_OFFSETS_TO_TXN
    VERSIONS = VersionRange(0, 4)
    FIRST_FLEXIBLE_VERSION = 3

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


@dataclass(kw_only=True, slots=True)
class AddOffsetsToTxnResponse(Message):
    API_KEY = ApiKey.ADD_OFFSETS_TO_TXN
    VERSIONS = VersionRange(0, 4)
    FIRST_FLEXIBLE_VERSION = 3

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
