"""EndTxn: commit or abort a transaction.

v5: supports transactions v2, and adds the producer's next epoch to the response (KIP-890)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange, boolean, int16, int32, int64, string


@dataclass(kw_only=True, slots=True)
class EndTxnRequest(Message):
    API_KEY = ApiKey.END_TXN
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


@dataclass(kw_only=True, slots=True)
class EndTxnResponse(Message):
    API_KEY = ApiKey.END_TXN
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)
