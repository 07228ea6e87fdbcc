"""InitProducerId: obtain a producer id and epoch for idempotence and transactions.

v3: adds the current producer id and epoch to the request, to obtain the next epoch (KIP-360)
v6: adds two-phase commit (KIP-939)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import VersionRange, boolean, int16, int32, int64, nullable_string


@dataclass(kw_only=True, slots=True)
class InitProducerIdRequest(Message):
    API_KEY = ApiKey.INIT_PRODUCER_ID
    VERSIONS = VersionRange(0, 6)
    FIRST_FLEXIBLE_VERSION = 2

    transactional_id: str | None = nullable_string("0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")


@dataclass(kw_only=True, slots=True)
class InitProducerIdResponse(Message):
    API_KEY = ApiKey.INIT_PRODUCER_ID
    VERSIONS = VersionRange(0, 6)
    FIRST_FLEXIBLE_VERSION = 2

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
