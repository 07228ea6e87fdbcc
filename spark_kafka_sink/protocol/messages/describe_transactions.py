"""DescribeTransactions: look up the transactions of transactional ids (KIP-664)."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int16, int32, int64, string


@dataclass(kw_only=True, slots=True)
class DescribeTransactionsRequest(Message):
    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    VERSIONS = VersionRange(0, 0)
    FIRST_FLEXIBLE_VERSION = 0

    transactional_ids: list[str] = array("string", "0+")


@dataclass(kw_only=True, slots=True)
class DescribeTransactionsResponseTopicData(Struct):
    topic: str = string("0+")
    partitions: list[int] = array("int32", "0+")


@dataclass(kw_only=True, slots=True)
class DescribeTransactionsResponseTransactionState(Struct):
    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[DescribeTransactionsResponseTopicData] = array(DescribeTransactionsResponseTopicData, "0+")


@dataclass(kw_only=True, slots=True)
class DescribeTransactionsResponse(Message):
    API_KEY = ApiKey.DESCRIBE_TRANSACTIONS
    VERSIONS = VersionRange(0, 0)
    FIRST_FLEXIBLE_VERSION = 0

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribeTransactionsResponseTransactionState] = array(
        DescribeTransactionsResponseTransactionState, "0+"
    )
