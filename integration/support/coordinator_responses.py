"""CoordinatorTranscript: sends requests to a transaction coordinator and records its responses as lines of text.

Tests send the same requests to a real Kafka broker and to the embedded broker, and compare the lines. A line contains
the request, the error code of the response, the identity that the response assigned, and the description of the
transactional id after the coordinator has completed the transaction. Producer ids are replaced by letters, in the order
of their assignment, because the ids themselves differ between clusters.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar, cast

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import lookup_error_code
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.find_coordinator import FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.produce import ProduceResponse
from spark_kafka_sink.protocol.schema import NO_MAX_VERSION, VersionRange
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.find_coordinator import MIN_VERSION_WITH_SEVERAL_KEYS, FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.transactions import AddPartitions, DescribeTransactions, EndTransaction
from tests.broker.wire_client import batch, partition_response, produce_request
from tests.requests.node_message import send_to
from tests.waiting import wait_until

ResponseT = TypeVar("ResponseT", bound=Message)

UNUSED_IDENTITY = ProducerIdAndEpoch(2**62, 0)
"""An identity that no broker assigns to any client."""
_NEW_TOPIC_ERRORS = (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
_V1_PRODUCE_VERSIONS = VersionRange(11, 11)
_V2_PRODUCE_VERSIONS = VersionRange(12, 12)


class CoordinatorTranscript:
    """The transcript of one transactional id that writes to partition 0 of one topic. A context manager."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str, version: int) -> None:
        config: ClientConfig = ProducerConfig.parse({"bootstrap.servers": bootstrap}).client_config()
        self._client = BlockingClient(config)
        self._id = transactional_id
        self._topic = topic
        self._version = version
        self._sequence = 0
        self._ids: list[int] = []
        self.lines: list[str] = []
        self.last_identity = NO_PRODUCER_ID
        """The identity in the last response that contained one."""

    def __enter__(self) -> CoordinatorTranscript:
        self._client.wait_for_topic(self._topic)
        self._node = self._find_coordinator()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # --- requests

    def init(self, expected: ProducerIdAndEpoch = NO_PRODUCER_ID, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        request = InitProducerId(self._id, timeout_ms, expected)
        response = self._send(request)
        # The coordinator responds with this error while it has no block of producer ids.
        while response.error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS:
            response = self._send(request)
        operation = f"init, expected {self._name_identity(expected)}"
        self._record(operation, response.error_code, response.producer_id, response.producer_epoch)
        return self.last_identity

    def end(self, identity: ProducerIdAndEpoch, *, commit: bool = True) -> ProducerIdAndEpoch:
        response = self._send(EndTransaction(TransactionIdentity(self._id, *identity, self._version), commit))
        operation = f"{'commit' if commit else 'abort'} by {self._name_identity(identity)}"
        self._record(
            operation,
            response.error_code,
            getattr(response, "producer_id", -1),
            getattr(response, "producer_epoch", -1),
        )
        return self.last_identity

    def write(self, identity: ProducerIdAndEpoch, sequence: int = 0) -> None:
        """Begin a transaction by writing one record."""
        if self._version == 1:
            transaction = TransactionIdentity(self._id, *identity, 1)
            added = self._send(AddPartitions(transaction, frozenset([TopicPartition(self._topic, 0)])))
            code = added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code:
                self._record(f"add by {self._name_identity(identity)}", code, -1, -1)
                return
        data = batch(b"a", sequence=sequence, producer=(identity.producer_id, identity.epoch), transactional=True)
        message = produce_request(data, topic=self._topic, transactional_id=self._id, timeout_ms=30_000)
        versions = _V1_PRODUCE_VERSIONS if self._version == 1 else _V2_PRODUCE_VERSIONS
        codes: list[int] = []

        def has_final_response() -> bool:
            """Send the record. Return False if the leader does not know its new topic yet."""
            leader = self._client.find_leader(self._topic, 0)
            assert leader is not None
            codes[:] = [
                partition_response(
                    send_to(self._client, leader, ProduceResponse, message, versions=versions)
                ).error_code
            ]
            return codes[0] not in _NEW_TOPIC_ERRORS

        wait_until(has_final_response)
        self._record(f"write by {self._name_identity(identity)}", codes[0], -1, -1)

    def await_state(self, state: str) -> None:
        wait_until(
            lambda: self._describe_transaction().split(" ")[0] == state,
            lambda: f"the state is {self._describe_transaction()}",
        )
        self.lines.append(f"waited for -> {self._describe_transaction()}")

    # --- lines of the transcript

    def _record(self, operation: str, code: int, producer_id: int, epoch: int) -> None:
        wait_until(lambda: not self._describe_transaction().startswith("Prepare"))
        identity_text = ""
        if producer_id != -1:
            self.last_identity = ProducerIdAndEpoch(producer_id, epoch)
            identity_text = f" {self._name_identity(self.last_identity)}"
        error_name = lookup_error_code(code).name
        self.lines.append(f"{operation}: {error_name}{identity_text} -> {self._describe_transaction()}")

    def _describe_transaction(self) -> str:
        response = self._send(DescribeTransactions([self._id]))
        row = response.transaction_states[0]
        if row.error_code:
            return lookup_error_code(row.error_code).name
        return f"{row.transaction_state} {self._name_identity(ProducerIdAndEpoch(row.producer_id, row.producer_epoch))}"

    def _name_identity(self, identity: ProducerIdAndEpoch) -> str:
        if identity in (NO_PRODUCER_ID, UNUSED_IDENTITY):
            return "nothing" if identity == NO_PRODUCER_ID else "an unused one"
        if identity.producer_id not in self._ids:
            self._ids.append(identity.producer_id)
        return f"({'ABCDEFGH'[self._ids.index(identity.producer_id)]}, {identity.epoch})"

    def _send(self, request: TransactionRequest[ResponseT]) -> ResponseT:
        message = request.build_message(NO_MAX_VERSION)
        return cast("ResponseT", send_to(self._client, self._node, Message, message, versions=request.versions))

    def _find_coordinator(self) -> Node:
        """Find the coordinator, and wait until it has loaded its transactions."""
        coordinators: list[Node] = []

        def is_loaded() -> bool:
            node = self._client.choose_node()
            assert node is not None
            message = FindCoordinator([self._id]).build_message(MIN_VERSION_WITH_SEVERAL_KEYS)
            row = send_to(self._client, node, FindCoordinatorResponse, message).coordinators[0]
            if row.error_code:
                return False
            self._node = Node(row.node_id, row.host, row.port)
            coordinators[:] = [self._node]
            return self._describe_transaction() == "TRANSACTIONAL_ID_NOT_FOUND"

        wait_until(is_loaded)
        return coordinators[0]
