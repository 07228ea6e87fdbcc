"""AddPartitionsToTxn: add topic-partitions to a transaction.

Clients use at most v3; later versions are for requests between brokers.

v4: allows several transactions in one request (KIP-890)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, boolean, int16, int32, int64, string


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnTopic(Struct):
    name: str = string("0+")
    partitions: list[int] = array("int32", "0+")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnRequest(Message):
    API_KEY = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnTopicResult(Struct):
    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult, "0+")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


@dataclass(kw_only=True, slots=True)
class AddPartitionsToTxnResponse(Message):
    API_KEY = ApiKey.ADD_PARTITIONS_TO_TXN
    VERSIONS = VersionRange(0, 5)
    FIRST_FLEXIBLE_VERSION = 3

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "0-3")
