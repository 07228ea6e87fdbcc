"""A TransactionManager without a network, whose requests are answered by the test.

talk = Talk(version=2)
talk.init()
talk.manager.begin(2)
talk.answer(...)          send the due request and answer it
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
PAUSE_MS = 100.0
NODE = Node(1, "b1", 9092)


def metadata() -> Metadata:
    return Metadata([NODE], ClientConfig(("b1:9092",)), system=FakeSystem())


class Talk:
    """A manager and its brokers. `is_flushed`: whether the sender reports that no record is in flight."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.manager = TransactionManager("x", 60_000)
        self.now = 0.0
        self.is_flushed = True
        backoff = ExponentialBackoff(PAUSE_MS, PAUSE_MS, Random(1))
        self.engine = RequestEngine(Routing(metadata(), lambda now_ms: NODE), backoff.compute_delay_ms)
        self.call = TransactionCall(self.manager, lambda: self.is_flushed)
        self.engine.add(self.call)
        self.attempts: dict[Request, Attempt] = {}
        self.id_and_epoch = IDENTITY
        self.asked: list[type[Request]] = []

    def state(self) -> TransactionManagerState:
        return self.manager.state

    # --- preparing a state

    def init(self) -> Talk:
        operation = self.manager.init()
        self.settle()
        operation.read_result()
        return self

    def begun(self) -> Talk:
        self.init()
        self.manager.begin(self.version)
        return self

    def started(self, *partitions: TopicPartition) -> Talk:
        """Begin a transaction and add the partitions, so that brokers know the transaction."""
        self.begun()
        self.write(*(partitions or (T0,)))
        return self

    def write(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self.manager.admit_batch(partition, is_retry=False)
        self.settle()
        assert all(self.manager.admit_batch(partition, is_retry=False) for partition in partitions)

    def commit(self) -> Talk:
        operation = self.manager.commit()
        self.settle()
        operation.read_result()
        return self

    # --- requests and responses

    def next(self) -> Request | None:
        attempt = next(iter(self.engine.find_due_attempts(self.now)), None)
        if attempt is None:
            return None
        self.attempts[attempt.request] = attempt
        return attempt.request

    def due(self) -> Request:
        request = self.next()
        assert request is not None, f"nothing to ask in {self.manager!r}"
        return request

    def send(self, kind: type[Request] | None = None) -> Request:
        request = self.due()
        assert kind in (None, type(request))
        self.asked.append(type(request))
        assert self.try_begin_sending(request)
        self.engine.mark_sent(self.attempts[request])
        return request

    def try_begin_sending(self, request: Request) -> bool:
        attempt = self.attempts[request]
        return attempt.is_lookup or attempt.call.try_begin_sending(request)

    def node_for(self, request: Request) -> Node:
        return self.attempts[request].node

    def pause_left_ms(self) -> float:
        return self.engine.next_due_ms(self.now) - self.now

    def answer(self, kind: type[Request], code: int = 0) -> Request:
        """Send the due request, which must have this type, and answer it. Answer coordinator lookups before it."""
        while kind is not FindCoordinator and type(self.due()) is FindCoordinator:
            self.answer(FindCoordinator)
        request = self.send(kind)
        self.reply(request, code)
        return request

    def reply(self, request: Request, code: int = 0) -> None:
        self.respond(request, self.response(request, code))

    def respond(self, request: Request, message: Message) -> None:
        self.engine.handle_response(self.attempts[request], message, self.now)

    def lose(self, kind: type[Request]) -> None:
        """Lose the response to the request, and wait for the retry backoff."""
        while type(self.due()) is not kind:
            self.answer(FindCoordinator)
        self.lose_response(self.send(kind))
        self.wait()

    def lose_response(self, request: Request) -> None:
        self.engine.handle_failure(self.attempts[request], DisconnectedError("the connection was lost"), self.now)

    def settle(self) -> None:
        """Send and answer requests until none is due."""
        while self.next() is not None:
            self.reply(self.send())

    def wait(self, ms: float = PAUSE_MS) -> None:
        self.now += ms

    # --- brokers

    def response(self, request: Request, code: int) -> Message:
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
            return partitions_answer(partitions)
        if isinstance(message, TxnOffsetCommitRequest):
            topics = {
                TopicPartition(topic.name, row.partition_index): code
                for topic in message.topics
                for row in topic.partitions
            }
            return offsets_answer(topics)
        return AddOffsetsToTxnResponse(error_code=code)


def partitions_answer(answered: Mapping[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                ],
            )
            for (topic, index), code in answered.items()
        ]
    )


def offsets_answer(answered: Mapping[TopicPartition, int]) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic, partitions=[TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)]
            )
            for (topic, index), code in answered.items()
        ]
    )


def create_talk_before(kind: type[Request]) -> Talk:
    """Create a version 1 Talk whose next request has this type."""
    if kind in (FindCoordinator, InitProducerId):
        talk = Talk()
        talk.manager.init()
        if kind is InitProducerId:
            talk.answer(FindCoordinator)
        return talk
    talk = Talk().begun()
    if kind is AddPartitions:
        talk.manager.admit_batch(T0, is_retry=False)
    elif kind is EndTransaction:
        talk.write(T0)
        talk.manager.commit()
    else:
        talk.manager.send_offsets(OFFSETS, GROUP)
        if kind is CommitOffsets:
            talk.answer(AddOffsets)
            talk.answer(FindCoordinator)
    assert type(talk.due()) is kind
    return talk


def get_error(operation: Operation) -> KafkaSinkError | None:
    assert operation.done_event.is_set(), f"{operation.name} has no outcome"
    try:
        operation.read_result()
    except KafkaSinkError as error:
        return error
    return None


def initial(talk: Talk) -> ProducerIdAndEpoch:
    """Return the producer's first producer id and epoch."""
    return ProducerIdAndEpoch(IDENTITY.producer_id, IDENTITY.epoch + 1)


def looked_up(request: Request) -> CoordinatorRoute:
    assert isinstance(request, FindCoordinator)
    (key,) = request.keys
    return CoordinatorRoute(request.key_type, key)


def adding(request: Request) -> set[TopicPartition]:
    message = request.build_message(3)
    assert isinstance(message, AddPartitionsToTxnRequest)
    return {TopicPartition(topic.name, index) for topic in message.v3_and_below_topics for index in topic.partitions}
