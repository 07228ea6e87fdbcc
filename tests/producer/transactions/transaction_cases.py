"""A TransactionManager with scripted broker responses.

harness = TransactionHarness(version=2)
harness.init()
harness.manager.begin(2)
harness.send_and_respond(AddPartitions)
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import Operation, TransactionManagerState
from spark_kafka_sink.producer.transactions.transaction_call import TransactionCall
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from spark_kafka_sink.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from spark_kafka_sink.requests.consumer_groups import GroupMetadata, OffsetAndMetadata
from spark_kafka_sink.requests.engine import Attempt, RequestEngine
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import CoordinatorRoute
from spark_kafka_sink.requests.request import Request as ClusterRequest
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.transactions import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
)
from tests.fake_system import FakeSystem

S = TransactionManagerState
Request = ClusterRequest[Any]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g")
OFFSETS = {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(7)}
IDENTITY = ProducerIdAndEpoch(70, 3)
BACKOFF_MS = 100.0
NODE = Node(1, "b1", 9092)


def metadata() -> Metadata:
    return Metadata([NODE], ClientConfig(("b1:9092",)), system=FakeSystem())


class TransactionHarness:
    """A TransactionManager with scripted broker responses.

    `is_flushed`: whether the sender reports that no record is in flight.
    """

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.manager = TransactionManager("x", 60_000)
        self.now = 0.0
        self.is_flushed = True
        backoff = ExponentialBackoff(BACKOFF_MS, BACKOFF_MS, Random(1))
        self.engine = RequestEngine(Routing(metadata(), lambda now_ms: NODE), backoff.compute_delay_ms)
        self.call = TransactionCall(self.manager, lambda: self.is_flushed)
        self.engine.add(self.call)
        self.attempts: dict[Request, Attempt] = {}
        self.id_and_epoch = IDENTITY
        self.sent_request_types: list[type[Request]] = []

    def state(self) -> TransactionManagerState:
        return self.manager.state

    # --- preparing a state

    def init(self) -> TransactionHarness:
        operation = self.manager.init()
        self.run_until_idle()
        operation.read_result()
        return self

    def with_begun_transaction(self) -> TransactionHarness:
        self.init()
        self.manager.begin(self.version)
        return self

    def with_added_partitions(self, *partitions: TopicPartition) -> TransactionHarness:
        """Begin a transaction and add the partitions, so that brokers know the transaction."""
        self.with_begun_transaction()
        self.add_partitions(*(partitions or (T0,)))
        return self

    def add_partitions(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self.manager.admit_batch(partition, is_retry=False)
        self.run_until_idle()
        assert all(self.manager.admit_batch(partition, is_retry=False) for partition in partitions)

    def commit(self) -> TransactionHarness:
        operation = self.manager.commit()
        self.run_until_idle()
        operation.read_result()
        return self

    # --- requests and responses

    def find_due_request(self) -> Request | None:
        attempt = next(iter(self.engine.find_due_attempts(self.now)), None)
        if attempt is None:
            return None
        self.attempts[attempt.request] = attempt
        return attempt.request

    def require_due_request(self) -> Request:
        request = self.find_due_request()
        assert request is not None, f"no request is due in {self.manager!r}"
        return request

    def send(self, kind: type[Request] | None = None) -> Request:
        request = self.require_due_request()
        assert kind in (None, type(request))
        self.sent_request_types.append(type(request))
        assert self.try_begin_sending(request)
        self.engine.mark_sent(self.attempts[request])
        return request

    def try_begin_sending(self, request: Request) -> bool:
        attempt = self.attempts[request]
        return attempt.is_lookup or attempt.call.try_begin_sending(request)

    def node_for(self, request: Request) -> Node:
        return self.attempts[request].node

    def remaining_backoff_ms(self) -> float:
        return self.engine.next_due_ms(self.now) - self.now

    def send_and_respond(self, kind: type[Request], code: int = 0) -> Request:
        """Send the due request, which must have this type, and return a response with the error code.

        Respond to due coordinator lookups first.
        """
        while kind is not FindCoordinator and type(self.require_due_request()) is FindCoordinator:
            self.send_and_respond(FindCoordinator)
        request = self.send(kind)
        self.respond(request, code)
        return request

    def respond(self, request: Request, code: int = 0) -> None:
        self.respond_with_message(request, self.build_response(request, code))

    def respond_with_message(self, request: Request, message: Message) -> None:
        self.engine.handle_response(self.attempts[request], message, self.now)

    def send_and_lose_response(self, kind: type[Request]) -> None:
        """Lose the response to the request, and wait for the retry backoff."""
        while type(self.require_due_request()) is not kind:
            self.send_and_respond(FindCoordinator)
        self.lose_response(self.send(kind))
        self.pass_time()

    def lose_response(self, request: Request) -> None:
        self.engine.handle_failure(self.attempts[request], DisconnectedError("the connection was lost"), self.now)

    def run_until_idle(self) -> None:
        """Send requests and respond to them until none is due."""
        while self.find_due_request() is not None:
            self.respond(self.send())

    def pass_time(self, ms: float = BACKOFF_MS) -> None:
        self.now += ms

    # --- brokers

    def build_response(self, request: Request, code: int) -> Message:
        version = 5 if self.version >= 2 else 4
        message = request.build_message(version)
        if type(request) is FindCoordinator:
            (key,) = request.keys
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key=key, node_id=1, host="b1", port=9092, error_code=code)]
            )
        if type(request) is InitProducerId:
            self.id_and_epoch = ProducerIdAndEpoch(self.id_and_epoch.producer_id, self.id_and_epoch.epoch + 1)
            return InitProducerIdResponse(
                error_code=code, producer_id=self.id_and_epoch.producer_id, producer_epoch=self.id_and_epoch.epoch
            )
        if isinstance(message, EndTxnRequest):
            if self.version < 2 or code:
                return EndTxnResponse(error_code=code)
            self.id_and_epoch = ProducerIdAndEpoch(message.producer_id, message.producer_epoch + 1)
            return EndTxnResponse(producer_id=self.id_and_epoch.producer_id, producer_epoch=self.id_and_epoch.epoch)
        if isinstance(message, AddPartitionsToTxnRequest):
            partitions = {
                TopicPartition(topic.name, index): code
                for topic in message.v3_and_below_topics
                for index in topic.partitions
            }
            return build_add_partitions_response(partitions)
        if isinstance(message, TxnOffsetCommitRequest):
            topics = {
                TopicPartition(topic.name, row.partition_index): code
                for topic in message.topics
                for row in topic.partitions
            }
            return build_offset_commit_response(topics)
        return AddOffsetsToTxnResponse(error_code=code)


def build_add_partitions_response(codes_by_partition: Mapping[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                ],
            )
            for (topic, index), code in codes_by_partition.items()
        ]
    )


def build_offset_commit_response(codes_by_partition: Mapping[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic, partitions=[TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)]
            )
            for (topic, index), code in codes_by_partition.items()
        ]
    )


def create_harness_before(kind: type[Request]) -> TransactionHarness:
    """Create a harness with transaction version 1 whose next request has this type."""
    if kind in (FindCoordinator, InitProducerId):
        harness = TransactionHarness()
        harness.manager.init()
        if kind is InitProducerId:
            harness.send_and_respond(FindCoordinator)
        return harness
    harness = TransactionHarness().with_begun_transaction()
    if kind is AddPartitions:
        harness.manager.admit_batch(T0, is_retry=False)
    elif kind is EndTransaction:
        harness.add_partitions(T0)
        harness.manager.commit()
    else:
        harness.manager.send_offsets(OFFSETS, GROUP)
        if kind is CommitOffsets:
            harness.send_and_respond(AddOffsets)
            harness.send_and_respond(FindCoordinator)
    assert type(harness.require_due_request()) is kind
    return harness


def get_error(operation: Operation) -> KafkaSinkError | None:
    assert operation.done_event.is_set(), f"{operation.name} has no outcome"
    try:
        operation.read_result()
    except KafkaSinkError as error:
        return error
    return None


def get_initial_identity(harness: TransactionHarness) -> ProducerIdAndEpoch:
    """Return the producer's first producer id and epoch."""
    return ProducerIdAndEpoch(IDENTITY.producer_id, IDENTITY.epoch + 1)


def get_lookup_route(request: Request) -> CoordinatorRoute:
    assert isinstance(request, FindCoordinator)
    (key,) = request.keys
    return CoordinatorRoute(request.key_type, key)


def get_added_partitions(request: Request) -> set[TopicPartition]:
    message = request.build_message(3)
    assert isinstance(message, AddPartitionsToTxnRequest)
    return {TopicPartition(topic.name, index) for topic in message.v3_and_below_topics for index in topic.partitions}
