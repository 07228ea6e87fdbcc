"""ListTransactions: list the transactions of a coordinator (KIP-664).

v1: adds a filter by minimum duration (KIP-994)
v2: adds a filter by transactional id pattern (KIP-1152)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.schema import Struct, VersionRange, array, int16, int32, int64, nullable_string, string


@dataclass(kw_only=True, slots=True)
class ListTransactionsRequest(Message):
    API_KEY = ApiKey.LIST_TRANSACTIONS
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    state_filters: list[str] = array("string", "0+")
    producer_id_filters: list[int] = array("int64", "0+")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = nullable_string("2+", default=None)


@dataclass(kw_only=True, slots=True)
class ListTransactionsResponseTransactionState(Struct):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


@dataclass(kw_only=True, slots=True)
class ListTransactionsResponse(Message):
    API_KEY = ApiKey.LIST_TRANSACTIONS
    VERSIONS = VersionRange(0, 2)
    FIRST_FLEXIBLE_VERSION = 0

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array("string", "0+")
    transaction_states: list[ListTransactionsResponseTransactionState] = array(
        ListTransactionsResponseTransactionState, "0+"
    )
