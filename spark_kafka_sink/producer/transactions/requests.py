"""The requests of a transactional producer, and in which versions each may be sent.

Transactions of version 1: partitions and groups are added by requests of their own before anything is written, and
EndTxn is sent in version 4 at most. Version 2 (KIP-890): what is written adds its partition, and EndTxn from version 5
on brings the producer id and epoch to go on with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import NamedTuple, SupportsIndex

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.option_parsing import INT_MAX, LONG_MAX
from spark_kafka_sink.errors import InvalidRecordError
from spark_kafka_sink.producer.batching.batch import TopicPartition
from spark_kafka_sink.producer.sending.partition_states import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.prepared_transaction import PreparedTransaction
from spark_kafka_sink.protocol.codecs import STRING_BYTES_MAX, is_writable
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from spark_kafka_sink.protocol.schema import VERSION_LIMIT, VersionRange

SEVERAL_KEYS_FROM = 4
"""FindCoordinator takes a list of keys from this version on (KIP-699)."""
KEEPS_EPOCH_FROM = 3
"""InitProducerId takes the epoch that a producer has from this version on (KIP-360)."""
VERSION_2_OFFSETS_FROM = VERSION_2_END_FROM = 5
"""From these versions on, TxnOffsetCommit and EndTxn belong to transactions of version 2 (KIP-890)."""
MEMBERS_FROM = 3
"""TxnOffsetCommit checks the member of a consumer group from this version on (KIP-447)."""


class Kind(Enum):
    FIND_COORDINATOR = "look up a coordinator"
    INIT = "get a producer id"
    ADD_PARTITIONS = "add partitions to the transaction"
    ADD_OFFSETS = "add a consumer group to the transaction"
    COMMIT_OFFSETS = "write offsets into the transaction"
    END = "end the transaction"


class CoordinatorKey(NamedTuple):
    key_type: int
    key: str


GROUP, TRANSACTION = 0, 1


@dataclass(frozen=True)
class OffsetAndMetadata:
    """The position of a consumer group in one partition: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""

    def __post_init__(self) -> None:
        ensure_number("an offset", self.offset, 0, LONG_MAX)
        ensure_number("a leader epoch", self.leader_epoch, -1, INT_MAX)
        _ensure_text("the metadata of an offset", self.metadata)


@dataclass(frozen=True)
class GroupMetadata:
    """A consumer group, and its member if the group is managed by brokers."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

    def __post_init__(self) -> None:
        _ensure_text("the id of a consumer group", self.group_id)
        ensure_number("the generation of a consumer group", self.generation_id, -1, INT_MAX)
        _ensure_text("the id of a group's member", self.member_id)
        if self.group_instance_id is not None:
            _ensure_text("the instance id of a group's member", self.group_instance_id)


def ensure_number(what: str, value: object, lowest: int, highest: int) -> None:
    """Refuse at the call what the protocol cannot write: on the sender's thread it would end the producer."""
    if isinstance(value, SupportsIndex) and lowest <= index(value) <= highest:
        return
    raise InvalidRecordError(f"{what} is a whole number from {lowest} to {highest}, not {value!a:.60}.")


def _ensure_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not is_writable(value):
        raise InvalidRecordError(f"{what} is text of at most {STRING_BYTES_MAX} bytes in UTF-8, not {value!a:.60}.")


@dataclass(frozen=True)
class TransactionRequest:
    """A request to be sent to `node`, or to any broker if that is None."""

    kind: Kind
    api_key: ApiKey
    build: Callable[[int], Message]
    versions: VersionRange | None
    node: Node | None
    coordinator: CoordinatorKey
    """The id or group that `node` coordinates, or whose coordinator is looked for."""


VersionedMessage = tuple[Message, "VersionRange | None"]
"""A message, and the versions in which it may be sent (None: any)."""


# --- requests


def find_coordinator(wanted: CoordinatorKey) -> TransactionRequest:
    def build(version: int) -> FindCoordinatorRequest:
        if version >= SEVERAL_KEYS_FROM:
            return FindCoordinatorRequest(key_type=wanted.key_type, coordinator_keys=[wanted.key])
        return FindCoordinatorRequest(key=wanted.key, key_type=wanted.key_type)

    # Version 0 knows groups only.
    versions = VersionRange(wanted.key_type, VERSION_LIMIT)
    return TransactionRequest(Kind.FIND_COORDINATOR, ApiKey.FIND_COORDINATOR, build, versions, None, wanted)


def init(transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch) -> VersionedMessage:
    """`expected` is the producer's own id and epoch, if it has them: then no other producer is fenced by mistake."""
    message = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected.producer_id,
        producer_epoch=expected.epoch,
    )
    # Version 6 is about two-phase commit, which no released broker offers.
    return message, VersionRange(0 if expected == NO_PRODUCER_ID else KEEPS_EPOCH_FROM, 5)


def add_partitions(
    transactional_id: str, id_and_epoch: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> VersionedMessage:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    message = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=id_and_epoch.producer_id,
        v3_and_below_producer_epoch=id_and_epoch.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=its) for name, its in by_topic.items()],
    )
    return message, VersionRange(0, 3)  # later ones are for brokers


def add_offsets(transactional_id: str, id_and_epoch: ProducerIdAndEpoch, group: str) -> VersionedMessage:
    message = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=id_and_epoch.producer_id,
        producer_epoch=id_and_epoch.epoch,
        group_id=group,
    )
    return message, None


def commit_offsets(
    transactional_id: str,
    id_and_epoch: ProducerIdAndEpoch,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    transaction_version: int,
) -> VersionedMessage:
    by_topic: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for (topic, partition), each in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=each.offset,
                committed_leader_epoch=each.leader_epoch,
                committed_metadata=each.metadata,
            )
        )
    message = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=id_and_epoch.producer_id,
        producer_epoch=id_and_epoch.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=its) for name, its in by_topic.items()],
    )
    if transaction_version >= 2:
        return message, VersionRange(VERSION_2_OFFSETS_FROM, VERSION_LIMIT)
    has_member = group != GroupMetadata(group.group_id)
    return message, VersionRange(MEMBERS_FROM if has_member else 0, VERSION_2_OFFSETS_FROM - 1)


def end(transaction: PreparedTransaction, *, commit: bool) -> VersionedMessage:
    message = EndTxnRequest(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        committed=commit,
    )
    if transaction.version >= 2:
        return message, VersionRange(VERSION_2_END_FROM, VERSION_LIMIT)
    return message, VersionRange(0, VERSION_2_END_FROM - 1)
