"""What the answer to a request about transactions says, and what follows from that.

`verdict` is one table over (request, error code). Codes that it does not list follow the general table of
error_codes.py: what is retriable is tried again. All else is fatal, except where partitions are added: then nothing has
been written yet, and the transaction can be aborted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.producer.batching.batch import TopicPartition
from spark_kafka_sink.producer.transactions.requests import Kind
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from spark_kafka_sink.words import placed


class Verdict(IntEnum):
    """What follows from an answer. Of several in one answer the greatest counts."""

    DONE = 0
    RETRY = 1
    LOOK_UP = 2
    """The coordinator is another one now; ask it."""
    ABORTABLE = 3
    REFUSED = 4
    """A right is missing. It may be granted, and the call repeated."""
    FENCED = 5
    FATAL = 6


def codes_of(message: Message) -> dict[str, int]:
    """What the answer is about -> its error code."""
    if isinstance(message, InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse):
        return {"": message.error_code}
    if isinstance(message, FindCoordinatorResponse):
        return {"": message.coordinators[0].error_code if message.coordinators else message.error_code}
    if isinstance(message, AddPartitionsToTxnResponse):
        return {
            placed(topic.name, row.partition_index): row.partition_error_code
            for topic in message.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        }
    if isinstance(message, TxnOffsetCommitResponse):
        return {placed(*where): code for where, code in offset_codes(message).items()}
    raise DecodeError(f"{type(message).__name__} answers no request about transactions")


def offset_codes(message: TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in message.topics
        for row in topic.partitions
    }


def partitions_of(message: AddPartitionsToTxnResponse) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name, row.partition_index)
        for topic in message.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }


def found_coordinator(message: FindCoordinatorResponse) -> Node:
    row = message.coordinators[0] if message.coordinators else message
    return Node(row.node_id, row.host, row.port)


# --- what follows

_OF_A_COORDINATOR = {
    codes.NONE: Verdict.DONE,
    codes.COORDINATOR_NOT_AVAILABLE: Verdict.LOOK_UP,
    codes.NOT_COORDINATOR: Verdict.LOOK_UP,
    codes.INVALID_PRODUCER_EPOCH: Verdict.FENCED,  # brokers before 2.8 call it so
    codes.PRODUCER_FENCED: Verdict.FENCED,
    codes.TRANSACTION_ABORTABLE: Verdict.ABORTABLE,
    codes.UNKNOWN_PRODUCER_ID: Verdict.ABORTABLE,
    codes.GROUP_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
}

_VERDICTS: dict[Kind, dict[int, Verdict]] = {
    Kind.FIND_COORDINATOR: _OF_A_COORDINATOR
    | {
        codes.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
        codes.NOT_COORDINATOR: Verdict.RETRY,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
    },
    Kind.INIT: _OF_A_COORDINATOR
    | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
        codes.CLUSTER_AUTHORIZATION_FAILED: Verdict.REFUSED,
        codes.UNKNOWN_PRODUCER_ID: Verdict.FATAL,
    },
    Kind.ADD_PARTITIONS: _OF_A_COORDINATOR
    | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
        codes.INVALID_TXN_STATE: Verdict.FATAL,
        codes.INVALID_PRODUCER_ID_MAPPING: Verdict.FATAL,
    },
    Kind.ADD_OFFSETS: _OF_A_COORDINATOR,
    Kind.COMMIT_OFFSETS: _OF_A_COORDINATOR
    | {
        codes.REQUEST_TIMED_OUT: Verdict.LOOK_UP,
        codes.FENCED_INSTANCE_ID: Verdict.ABORTABLE,
        codes.UNKNOWN_MEMBER_ID: Verdict.ABORTABLE,
        codes.ILLEGAL_GENERATION: Verdict.ABORTABLE,
        codes.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORTABLE,
    },
    Kind.END: _OF_A_COORDINATOR,
}


def verdict(kind: Kind, code: int) -> Verdict:
    listed = _VERDICTS[kind].get(code)
    if listed is not None:
        return listed
    if error_code(code).retriable:
        return Verdict.RETRY
    return Verdict.ABORTABLE if kind is Kind.ADD_PARTITIONS else Verdict.FATAL


def judge(kind: Kind, answers: Mapping[str, int]) -> tuple[Verdict, str, int]:
    """The verdict on an answer, with the place and the code that led to it."""
    verdicts = [(verdict(kind, code), where, code) for where, code in answers.items()]
    # Partitions that were not looked at say nothing of the reason; another one of the same request has it.
    verdicts = [row for row in verdicts if row[2] != codes.OPERATION_NOT_ATTEMPTED] or verdicts
    # An answer that names nothing of what was asked for is no answer.
    return max(verdicts, key=lambda row: row[0], default=(Verdict.RETRY, "", codes.UNKNOWN_SERVER_ERROR))
