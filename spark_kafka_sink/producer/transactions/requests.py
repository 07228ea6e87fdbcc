"""The requests about transactions, one class for each: message, versions, what codes mean, what follows from an answer.

    FindCoordinator          any broker         which brokers coordinate these ids or groups
    InitProducerId           id's coordinator   fence earlier producers of the id, and get a producer id and epoch
    AddPartitions            id's coordinator   transactions of version 1, before anything is written
    AddOffsets               id's coordinator   transactions of version 1, before offsets are written
    CommitOffsets            group's            write offsets into the transaction
    EndTransaction           id's coordinator   commit or abort
    DescribeTransactions     ids' coordinator   what it knows of these ids

A TransactionManager asks for one transaction, and `follow` notes there what was carried out. A producer's Descriptions
ask about ids of others. A driver of exactly once asks about many ids (exactly_once/coordinator_questions.py).

Transactions of version 1: partitions and groups are added by requests of their own before anything is written, and
EndTxn is sent in version 4 at most. Version 2 (KIP-890): what is written adds its partition, and EndTxn from version 5
on brings the producer id and epoch to go on with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.producer.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.topic_partition import TopicPartition
from spark_kafka_sink.producer.transactions.consumer_groups import GroupMetadata, OffsetAndMetadata
from spark_kafka_sink.producer.transactions.transaction_description import TransactionDescription, description_of
from spark_kafka_sink.producer.transactions.transaction_identity import TransactionIdentity
from spark_kafka_sink.producer.transactions.transaction_request import (
    GROUP,
    TRANSACTION,
    CoordinatorKey,
    Follower,
    TransactionRequest,
)
from spark_kafka_sink.producer.transactions.verdicts import NO_ANSWER, OF_A_COORDINATOR, Judgement, Verdict, worst
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
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from spark_kafka_sink.protocol.schema import VERSION_LIMIT, VersionRange
from spark_kafka_sink.words import placed

SEVERAL_KEYS_FROM = 4
"""FindCoordinator takes a list of keys from this version on (KIP-699)."""
KEEPS_EPOCH_FROM = 3
"""InitProducerId takes the epoch that a producer has from this version on (KIP-360)."""
INIT_MAX = 5
"""Version 6 of InitProducerId is about two-phase commit, which no released broker offers."""
VERSION_2_OFFSETS_FROM = VERSION_2_END_FROM = 5
"""From these versions on, TxnOffsetCommit and EndTxn belong to transactions of version 2 (KIP-890)."""
MEMBERS_FROM = 3
"""TxnOffsetCommit checks the member of a consumer group from this version on (KIP-447)."""


@dataclass(frozen=True, eq=False)
class FindCoordinator(TransactionRequest[FindCoordinatorResponse]):
    api_key = ApiKey.FIND_COORDINATOR
    action = "look up a coordinator"
    answer_type = FindCoordinatorResponse
    any_broker_answers = True
    verdicts = OF_A_COORDINATOR | {
        codes.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
        codes.NOT_COORDINATOR: Verdict.RETRY,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
    }
    keys: Sequence[str]
    key_type: int = TRANSACTION

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(self.key_type, self.keys[0])

    @property
    def ids(self) -> Sequence[str]:
        return self.keys

    @property
    def versions(self) -> VersionRange:
        # Version 0 knows groups only.
        return VersionRange(SEVERAL_KEYS_FROM if len(self.keys) > 1 else self.key_type, VERSION_LIMIT)

    def message(self, version: int) -> FindCoordinatorRequest:
        if version >= SEVERAL_KEYS_FROM:
            return FindCoordinatorRequest(key_type=self.key_type, coordinator_keys=list(self.keys))
        return FindCoordinatorRequest(key=self.keys[0], key_type=self.key_type)

    def judged(self, answer: FindCoordinatorResponse) -> Judgement:
        return worst(judgement._replace(where=name) for name, judgement in self.judged_by_id(answer).items())

    def judged_by_id(self, answer: FindCoordinatorResponse) -> Mapping[str, Judgement]:
        if not answer.coordinators:
            return {self.keys[0]: self.judgement(answer.error_code)}
        return {row.key: self.judgement(row.error_code) for row in answer.coordinators}

    def progress(self, answer: FindCoordinatorResponse, follower: Follower) -> None:
        for name, node in self.found(answer).items():
            follower.coordinator_found(CoordinatorKey(self.key_type, name), node)

    def found(self, answer: FindCoordinatorResponse) -> dict[str, Node]:
        """The coordinators that the answer names."""
        if not answer.coordinators:
            return {} if answer.error_code else {self.keys[0]: Node(answer.node_id, answer.host, answer.port)}
        return {row.key: Node(row.node_id, row.host, row.port) for row in answer.coordinators if not row.error_code}


@dataclass(frozen=True, eq=False)
class InitProducerId(TransactionRequest[InitProducerIdResponse]):
    """`expected` is the producer's own id and epoch, if it has them: then no other producer is fenced by mistake."""

    api_key = ApiKey.INIT_PRODUCER_ID
    action = "get a producer id"
    answer_type = InitProducerIdResponse
    verdicts = OF_A_COORDINATOR | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
        codes.CLUSTER_AUTHORIZATION_FAILED: Verdict.REFUSED,
        codes.UNKNOWN_PRODUCER_ID: Verdict.FATAL,
    }
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch = NO_PRODUCER_ID

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(TRANSACTION, self.transactional_id)

    @property
    def versions(self) -> VersionRange:
        return VersionRange(0 if self.expected == NO_PRODUCER_ID else KEEPS_EPOCH_FROM, INIT_MAX)

    def message(self, version: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.expected.producer_id,
            producer_epoch=self.expected.epoch,
        )

    def judged(self, answer: InitProducerIdResponse) -> Judgement:
        return self.judgement(answer.error_code)

    def follow(self, answer: InitProducerIdResponse, follower: Follower) -> None:
        follower.initialized(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))


@dataclass(frozen=True, eq=False)
class AddPartitions(TransactionRequest[AddPartitionsToTxnResponse]):
    """Nothing has been written yet, so the transaction can be aborted after nearly any error."""

    api_key = ApiKey.ADD_PARTITIONS_TO_TXN
    action = "add partitions to the transaction"
    answer_type = AddPartitionsToTxnResponse
    joins = True
    verdicts = OF_A_COORDINATOR | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        codes.INVALID_TXN_STATE: Verdict.FATAL,
        codes.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
    }
    unlisted = Verdict.ABORTABLE
    versions = VersionRange(0, 3)  # later ones are for brokers
    transaction: TransactionIdentity
    partitions: frozenset[TopicPartition]

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(TRANSACTION, self.transaction.transactional_id)

    def message(self, version: int) -> AddPartitionsToTxnRequest:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            by_topic.setdefault(topic, []).append(partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transaction.transactional_id,
            v3_and_below_producer_id=self.transaction.producer_id,
            v3_and_below_producer_epoch=self.transaction.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=its) for name, its in by_topic.items()],
        )

    def judged(self, answer: AddPartitionsToTxnResponse) -> Judgement:
        return worst(self.judgement(code, placed(*where)) for where, code in codes_of_partitions(answer).items())

    def follow(self, answer: AddPartitionsToTxnResponse, follower: Follower) -> None:
        follower.partitions_added(codes_of_partitions(answer))


def codes_of_partitions(answer: AddPartitionsToTxnResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }


@dataclass(frozen=True, eq=False)
class AddOffsets(TransactionRequest[AddOffsetsToTxnResponse]):
    api_key = ApiKey.ADD_OFFSETS_TO_TXN
    action = "add a consumer group to the transaction"
    answer_type = AddOffsetsToTxnResponse
    joins = True
    transaction: TransactionIdentity
    group_id: str

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(TRANSACTION, self.transaction.transactional_id)

    def message(self, version: int) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=self.transaction.transactional_id,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            group_id=self.group_id,
        )

    def judged(self, answer: AddOffsetsToTxnResponse) -> Judgement:
        return self.judgement(answer.error_code)

    def follow(self, answer: AddOffsetsToTxnResponse, follower: Follower) -> None:
        follower.group_added()


@dataclass(frozen=True, eq=False)
class CommitOffsets(TransactionRequest[TxnOffsetCommitResponse]):
    api_key = ApiKey.TXN_OFFSET_COMMIT
    action = "write offsets into the transaction"
    answer_type = TxnOffsetCommitResponse
    begins_version_2 = True
    harms_late = True
    verdicts = OF_A_COORDINATOR | {
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
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(GROUP, self.group.group_id)

    @property
    def versions(self) -> VersionRange:
        if self.transaction.version >= 2:
            return VersionRange(VERSION_2_OFFSETS_FROM, VERSION_LIMIT)
        has_member = self.group != GroupMetadata(self.group.group_id)
        return VersionRange(MEMBERS_FROM if has_member else 0, VERSION_2_OFFSETS_FROM - 1)

    def message(self, version: int) -> TxnOffsetCommitRequest:
        by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), each in sorted(self.offsets.items()):
            by_topic.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    committed_metadata=each.metadata,
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
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=its) for name, its in by_topic.items()],
        )

    def judged(self, answer: TxnOffsetCommitResponse) -> Judgement:
        return worst(self.judgement(code, placed(*where)) for where, code in _codes_of_offsets(answer).items())

    def progress(self, answer: TxnOffsetCommitResponse, follower: Follower) -> None:
        follower.offsets_written(where for where, code in _codes_of_offsets(answer).items() if code == codes.NONE)


def _codes_of_offsets(answer: TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }


@dataclass(frozen=True, eq=False)
class EndTransaction(TransactionRequest[EndTxnResponse]):
    api_key = ApiKey.END_TXN
    action = "end the transaction"
    answer_type = EndTxnResponse
    ends = True
    harms_late = True
    transaction: TransactionIdentity
    commit: bool
    has_begun: bool = True
    """False: it is not known whether there is anything to end; then brokers may say that there is not."""

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(TRANSACTION, self.transaction.transactional_id)

    @property
    def versions(self) -> VersionRange:
        if self.transaction.version >= 2:
            return VersionRange(VERSION_2_END_FROM, VERSION_LIMIT)
        return VersionRange(0, VERSION_2_END_FROM - 1)

    def message(self, version: int) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transaction.transactional_id,
            producer_id=self.transaction.producer_id,
            producer_epoch=self.transaction.epoch,
            committed=self.commit,
        )

    def judged(self, answer: EndTxnResponse) -> Judgement:
        if answer.error_code == codes.INVALID_TXN_STATE and not self.has_begun:
            return Judgement(Verdict.DONE, codes.NONE)
        return self.judgement(answer.error_code)

    def follow(self, answer: EndTxnResponse, follower: Follower) -> None:
        following = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        follower.ended(following if answer.producer_id >= 0 else None)


@dataclass(frozen=True, eq=False)
class DescribeTransactions(TransactionRequest[DescribeTransactionsResponse]):
    """What a coordinator knows of these ids. One that it does not know is no error."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    action = "describe the transaction"
    answer_type = DescribeTransactionsResponse
    verdicts = OF_A_COORDINATOR | {
        codes.TRANSACTIONAL_ID_NOT_FOUND: Verdict.DONE,
        codes.UNKNOWN_SERVER_ERROR: Verdict.RETRY,  # to ask changes nothing
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
    }
    transactional_ids: Sequence[str]

    @property
    def coordinator(self) -> CoordinatorKey:
        return CoordinatorKey(TRANSACTION, self.transactional_ids[0])

    @property
    def ids(self) -> Sequence[str]:
        return self.transactional_ids

    def about(self, names: Sequence[str]) -> DescribeTransactions:
        return DescribeTransactions(names)

    def message(self, version: int) -> DescribeTransactionsRequest:
        return DescribeTransactionsRequest(transactional_ids=list(self.transactional_ids))

    def judged(self, answer: DescribeTransactionsResponse) -> Judgement:
        by_id = self.judged_by_id(answer)
        return worst(by_id.get(name, NO_ANSWER)._replace(where=name) for name in self.transactional_ids)

    def judged_by_id(self, answer: DescribeTransactionsResponse) -> Mapping[str, Judgement]:
        return {row.transactional_id: self.judgement(row.error_code) for row in answer.transaction_states}

    def found(self, answer: DescribeTransactionsResponse) -> dict[str, TransactionDescription | None]:
        """What the answer says of ids; None of one that the coordinator does not know."""
        known = (codes.NONE, codes.TRANSACTIONAL_ID_NOT_FOUND)
        return {
            row.transactional_id: description_of(row) if row.error_code == codes.NONE else None
            for row in answer.transaction_states
            if row.error_code in known
        }
