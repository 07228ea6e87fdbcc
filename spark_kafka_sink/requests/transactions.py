"""Transaction requests: their messages, versions and verdicts, and their effects on the producer's state.

    AddPartitions            version 1 only: adds partitions to a transaction, before records are written to them
    AddOffsets               version 1 only: adds a consumer group, before its offsets are written
    CommitOffsets            writes a consumer group's offsets in the transaction; goes to the group's coordinator
    EndTransaction           commits or aborts the transaction
    DescribeTransactions     describes the transactions of transactional ids
    ListTransactions         lists the transactions that a broker coordinates

In transaction version 1, separate requests add partitions and groups to a transaction, and EndTxn is sent in version 4
or older. In transaction version 2 (KIP-890), a write adds its own partition, and EndTxn (version 5 or newer) returns
the producer id and epoch for the next transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from spark_kafka_sink.protocol.schema import NO_MAX_VERSION, VersionRange
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata
from spark_kafka_sink.requests.init_producer_id import parse_producer_id_and_epoch
from spark_kafka_sink.requests.request import (
    GROUP_KEY_TYPE,
    TRANSACTION_KEY_TYPE,
    BrokerRoute,
    CoordinatorRoute,
    Request,
    Role,
    Route,
)
from spark_kafka_sink.requests.responses import parse_each_response
from spark_kafka_sink.requests.transaction_description import TransactionDescription, build_transaction_description
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionListener, TransactionRequest
from spark_kafka_sink.requests.verdicts import (
    COORDINATOR_VERDICTS,
    MISSING_IN_RESPONSE,
    Classification,
    Verdict,
    select_most_severe,
)

MIN_TXN_OFFSET_COMMIT_VERSION_FOR_TXN_V2 = MIN_END_TXN_VERSION_FOR_TXN_V2 = 5
"""The first versions of TxnOffsetCommit and EndTxn for transaction version 2 (KIP-890)."""
MIN_TXN_OFFSET_COMMIT_VERSION_WITH_MEMBER_FIELDS = 3
"""The first version of TxnOffsetCommit that identifies the consumer group's member (KIP-447)."""


@dataclass(frozen=True, eq=False)
class AddPartitions(TransactionRequest[AddPartitionsToTxnResponse]):
    """Add partitions to a transaction. Nothing is written to them yet, so most errors require only an abort."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    action = "add partitions to the transaction"
    may_open_transaction = True
    verdicts = COORDINATOR_VERDICTS | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        codes.INVALID_TXN_STATE: Verdict.FATAL,
        codes.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
    }
    default_verdict = Verdict.ABORTABLE
    versions = VersionRange(0, 3)  # Brokers use versions 4 and later among themselves.
    transaction: TransactionIdentity
    partitions: frozenset[TopicPartition]

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(TRANSACTION_KEY_TYPE, self.transaction.transactional_id)

    def build_message(self, version: int) -> AddPartitionsToTxnRequest:
        partitions_by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            partitions_by_topic.setdefault(topic, []).append(partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transaction.transactional_id,
            v3_and_below_producer_id=self.transaction.producer_id,
            v3_and_below_producer_epoch=self.transaction.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=partitions)
                for topic, partitions in partitions_by_topic.items()
            ],
        )

    def classify(self, response: AddPartitionsToTxnResponse) -> Classification:
        return select_most_severe(_classify_partitions(self, self.partitions, parse_partition_error_codes(response)))

    def on_executed(self, response: AddPartitionsToTxnResponse, listener: TransactionListener) -> None:
        listener.on_partitions_added(parse_partition_error_codes(response))


def _classify_partitions(
    request: TransactionRequest[Any], partitions: Iterable[TopicPartition], error_codes: Mapping[TopicPartition, int]
) -> Iterator[Classification]:
    """Classify each partition of the request. A partition that the response omits is MISSING_IN_RESPONSE."""
    for partition in sorted(partitions):
        yield (
            request.classify_code(error_codes[partition], format_partition(*partition))
            if partition in error_codes
            else MISSING_IN_RESPONSE
        )


def parse_partition_error_codes(response: AddPartitionsToTxnResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    }


@dataclass(frozen=True, eq=False)
class AddOffsets(TransactionRequest[AddOffsetsToTxnResponse]):
    """Add a consumer group to a transaction, so that CommitOffsets may write the group's offsets."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    action = "add a consumer group to the transaction"
    may_open_transaction = True
    transaction: TransactionIdentity
    group_id: str

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(TRANSACTION_KEY_TYPE, self.transaction.transactional_id)

    def build_message(self, version: int) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transaction.transactional_id,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            group_id=self.group_id,
        )

    def classify(self, response: AddOffsetsToTxnResponse) -> Classification:
        return self.classify_code(response.error_code)

    def on_executed(self, response: AddOffsetsToTxnResponse, listener: TransactionListener) -> None:
        listener.on_group_added()


@dataclass(frozen=True, eq=False)
class CommitOffsets(TransactionRequest[TxnOffsetCommitResponse]):
    """Write a consumer group's offsets in a transaction. They take effect when the transaction is committed."""

    api_key = ApiKey.TXN_OFFSET_COMMIT
    action = "write offsets into the transaction"
    starts_v2_transaction = True
    affects_next_transaction_if_late = True
    verdicts = COORDINATOR_VERDICTS | {
        codes.REQUEST_TIMED_OUT: Verdict.LOOK_UP,
        codes.FENCED_INSTANCE_ID: Verdict.ABORTABLE,
        codes.UNKNOWN_MEMBER_ID: Verdict.ABORTABLE,
        codes.ILLEGAL_GENERATION: Verdict.ABORTABLE,
        codes.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
    }
    transaction: TransactionIdentity
    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(GROUP_KEY_TYPE, self.group.group_id)

    @property
    def versions(self) -> VersionRange:
        if self.transaction.version >= 2:
            return VersionRange(MIN_TXN_OFFSET_COMMIT_VERSION_FOR_TXN_V2, NO_MAX_VERSION)
        has_member_fields = self.group != GroupMetadata(self.group.group_id)  # any field besides the id is set
        min_version = MIN_TXN_OFFSET_COMMIT_VERSION_WITH_MEMBER_FIELDS if has_member_fields else 0
        return VersionRange(min_version, MIN_TXN_OFFSET_COMMIT_VERSION_FOR_TXN_V2 - 1)

    def build_message(self, version: int) -> TxnOffsetCommitRequest:
        partitions_by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), offset_and_metadata in sorted(self.offsets.items()):
            partitions_by_topic.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset_and_metadata.offset,
                    committed_leader_epoch=offset_and_metadata.leader_epoch,
                    committed_metadata=offset_and_metadata.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self.transaction.transactional_id,
            group_id=self.group.group_id,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            generation_id=self.group.generation_id,
            member_id=self.group.member_id,
            group_instance_id=self.group.group_instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in partitions_by_topic.items()
            ],
        )

    def classify(self, response: TxnOffsetCommitResponse) -> Classification:
        return select_most_severe(_classify_partitions(self, self.offsets, _parse_offset_error_codes(response)))

    def on_partitions_executed(self, response: TxnOffsetCommitResponse, listener: TransactionListener) -> None:
        error_codes = _parse_offset_error_codes(response)
        listener.on_offsets_written(partition for partition, code in error_codes.items() if code == codes.NONE)


def _parse_offset_error_codes(response: TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, result.partition_index): result.error_code
        for topic in response.topics
        for result in topic.partitions
    }


@dataclass(frozen=True, eq=False)
class EndTransaction(TransactionRequest[EndTxnResponse]):
    """Commit a transaction, or abort it if `commit` is false."""

    api_key = ApiKey.END_TXN
    action = "end the transaction"
    ends_transaction = True
    completes_abort = True
    affects_next_transaction_if_late = True
    transaction: TransactionIdentity
    commit: bool
    has_begun: bool = True
    """Whether the transaction has certainly begun on the brokers. If not, INVALID_TXN_STATE counts as success."""

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(TRANSACTION_KEY_TYPE, self.transaction.transactional_id)

    @property
    def versions(self) -> VersionRange:
        if self.transaction.version >= 2:
            return VersionRange(MIN_END_TXN_VERSION_FOR_TXN_V2, NO_MAX_VERSION)
        return VersionRange(0, MIN_END_TXN_VERSION_FOR_TXN_V2 - 1)

    def build_message(self, version: int) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transaction.transactional_id,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            committed=self.commit,
        )

    def classify(self, response: EndTxnResponse) -> Classification:
        if response.error_code == codes.INVALID_TXN_STATE and not self.has_begun:
            return Classification(Verdict.DONE, codes.NONE)
        return self.classify_code(response.error_code)

    def on_executed(self, response: EndTxnResponse, listener: TransactionListener) -> None:
        listener.on_ended(None if response.producer_id < 0 else parse_producer_id_and_epoch(response))


@dataclass(frozen=True, eq=False)
class DescribeTransactions(TransactionRequest[DescribeTransactionsResponse]):
    """Describe transactional ids. It is not an error if a coordinator does not know an id.

    `wait_while_ending`: whether to retry while the coordinator is still writing the markers of a commit or abort.
    """

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    action = "describe the transaction"
    verdicts = COORDINATOR_VERDICTS | {
        codes.TRANSACTIONAL_ID_NOT_FOUND: Verdict.DONE,
        codes.UNKNOWN_SERVER_ERROR: Verdict.RETRY,  # safe, because the request has no side effects
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.UNAUTHORIZED,
    }
    transactional_ids: Sequence[str]
    wait_while_ending: bool = False

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(TRANSACTION_KEY_TYPE, self.transactional_ids[0])

    @property
    def keys(self) -> Sequence[str]:
        return self.transactional_ids

    def select_keys(self, keys: Sequence[str]) -> DescribeTransactions:
        return DescribeTransactions(keys, self.wait_while_ending)

    def build_message(self, version: int) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(transactional_ids=list(self.transactional_ids))

    def classify(self, response: DescribeTransactionsResponse) -> Classification:
        classifications = self.classify_keys(response)
        return select_most_severe(
            classifications.get(transactional_id, MISSING_IN_RESPONSE)._replace(item=transactional_id)
            for transactional_id in self.transactional_ids
        )

    def classify_keys(self, response: DescribeTransactionsResponse) -> Mapping[str, Classification]:
        return {state.transactional_id: self._classify_state(state) for state in response.transaction_states}

    def _classify_state(self, state: DescribeTransactionsResponseTransactionState) -> Classification:
        if self.wait_while_ending and state.error_code == codes.NONE and build_transaction_description(state).is_ending:
            # The engine retries this code sooner than others, because a transaction usually ends soon.
            return Classification(Verdict.RETRY, codes.CONCURRENT_TRANSACTIONS)
        return self.classify_code(state.error_code)

    def parse_descriptions(self, response: DescribeTransactionsResponse) -> dict[str, TransactionDescription | None]:
        """Return the descriptions by transactional id; None for an id that its coordinator does not know."""
        successful_codes = (codes.NONE, codes.TRANSACTIONAL_ID_NOT_FOUND)
        return {
            state.transactional_id: build_transaction_description(state) if state.error_code == codes.NONE else None
            for state in response.transaction_states
            if state.error_code in successful_codes
        }


def collect_descriptions(
    request: DescribeTransactions, responses: dict[str, DescribeTransactionsResponse]
) -> dict[str, TransactionDescription]:
    """Return the descriptions by transactional id. Ids that the brokers do not know are omitted.

    Raise BrokerError if a broker rejected the request for an id, for example because a permission is missing.

    `responses`: the final response for each id.
    """

    def parse(
        response: DescribeTransactionsResponse,
    ) -> tuple[Mapping[str, Classification], dict[str, TransactionDescription | None]]:
        return request.classify_keys(response), request.parse_descriptions(response)

    descriptions_by_id: dict[str, TransactionDescription] = {}
    for transactional_id, (classifications, descriptions) in parse_each_response(responses, parse):
        classification = classifications[transactional_id]
        if classification.verdict is not Verdict.DONE:
            raise request.build_rejection_error(transactional_id, classification)
        description = descriptions[transactional_id]
        if description is not None:
            descriptions_by_id[transactional_id] = description
    return descriptions_by_id


@dataclass(frozen=True, eq=False)
class ListTransactions(Request[ListTransactionsResponse]):
    """List the transactions that a broker coordinates.

    `broker`: the broker to send the request to; None for any broker. It is also the request's key, because the requests
    of one call must have different keys.
    `states`: list only transactions in these states; empty for all states.
    `producer_ids`: list only transactions of these producers; empty for all producers.
    """

    api_key = ApiKey.LIST_TRANSACTIONS
    action = "list transactions"
    broker: Node | None
    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()

    @property
    def keys(self) -> Sequence[str]:
        return (str(self.broker),)

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER if self.broker is None else BrokerRoute(self.broker)

    def build_message(self, version: int) -> ListTransactionsRequest:
        return ListTransactionsRequest(state_filters=list(self.states), producer_id_filters=list(self.producer_ids))

    def classify(self, response: ListTransactionsResponse) -> Classification:
        return self.classify_code(response.error_code)


LIST_TRANSACTIONS_PROBE = ListTransactions(broker=None, producer_ids=(-1,))
"""Checks whether brokers support ListTransactions, which exactly-once delivery needs.

The response is empty, because no producer has the id -1.
"""
