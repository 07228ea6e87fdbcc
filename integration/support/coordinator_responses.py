"""CoordinatorAnswers: what a coordinator of transactions says to one request after the other, as text to be compared.

The same requests go to a real Kafka and to the embedded broker. Each line has the request, the error of its answer, the
identity that it gave, and what the id looks like when the coordinator has come to rest. Producer ids are letters, in
the order in which they were given, so that two clusters can be compared.
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
from spark_kafka_sink.requests.find_coordinator import FIRST_SEVERAL_KEYS_VERSION, FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transaction_request import TransactionRequest
from spark_kafka_sink.requests.transactions import AddPartitions, DescribeTransactions, EndTransaction
from tests.broker.wire_client import batch, partition_response, produce_request
from tests.requests.node_message import send_to
from tests.waiting import wait_until

AnswerT = TypeVar("AnswerT", bound=Message)

UNUSED = ProducerIdAndEpoch(2**62, 0)
"""No broker gives this producer id to any client."""
_OF_A_NEW_TOPIC = (error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
_OF_VERSION_1 = VersionRange(11, 11)
_OF_VERSION_2 = VersionRange(12, 12)


class CoordinatorAnswers:
    """A context manager. One transactional id, and partition 0 of one topic."""

    def __init__(self, bootstrap: str, transactional_id: str, topic: str, version: int) -> None:
        config: ClientConfig = ProducerConfig.parse({"bootstrap.servers": bootstrap}).client_config()
        self._client = BlockingClient(config)
        self._id = transactional_id
        self._topic = topic
        self._version = version
        self._sequence = 0
        self._ids: list[int] = []
        self.lines: list[str] = []
        self.given = NO_PRODUCER_ID
        """What was given last."""

    def __enter__(self) -> CoordinatorAnswers:
        self._client.topic(self._topic)
        self._node = self._coordinator()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    # --- requests

    def init(self, expected: ProducerIdAndEpoch = NO_PRODUCER_ID, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        request = InitProducerId(self._id, timeout_ms, expected)
        answer = self._ask(request)
        while answer.error_code == error_codes.COORDINATOR_LOAD_IN_PROGRESS:  # a broker that has no producer ids yet
            answer = self._ask(request)
        what = f"init, expected {self._named(expected)}"
        self._note(what, answer.error_code, answer.producer_id, answer.producer_epoch)
        return self.given

    def end(self, identity: ProducerIdAndEpoch, *, commit: bool = True) -> ProducerIdAndEpoch:
        answer = self._ask(EndTransaction(TransactionIdentity(self._id, *identity, self._version), commit))
        what = f"{'commit' if commit else 'abort'} by {self._named(identity)}"
        self._note(what, answer.error_code, getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1))
        return self.given

    def write(self, identity: ProducerIdAndEpoch, sequence: int = 0) -> None:
        """Write one record into the transaction, which begins with it."""
        if self._version == 1:
            whole = TransactionIdentity(self._id, *identity, 1)
            added = self._ask(AddPartitions(whole, frozenset([TopicPartition(self._topic, 0)])))
            code = added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code:
                self._note(f"add by {self._named(identity)}", code, -1, -1)
                return
        data = batch(b"a", sequence=sequence, producer=(identity.producer_id, identity.epoch), transactional=True)
        message = produce_request(data, topic=self._topic, transactional_id=self._id, timeout_ms=30_000)
        versions = _OF_VERSION_1 if self._version == 1 else _OF_VERSION_2
        codes: list[int] = []

        def is_answered() -> bool:
            """The leader of a new topic may not know of it yet."""
            leader = self._client.leader(self._topic, 0)
            assert leader is not None
            codes[:] = [
                partition_response(
                    send_to(self._client, leader, ProduceResponse, message, versions=versions)
                ).error_code
            ]
            return codes[0] not in _OF_A_NEW_TOPIC

        wait_until(is_answered)
        self._note(f"write by {self._named(identity)}", codes[0], -1, -1)

    def await_state(self, state: str) -> None:
        wait_until(lambda: self._described().split(" ")[0] == state, lambda: f"it is {self._described()}")
        self.lines.append(f"waited for -> {self._described()}")

    # --- parts

    def _note(self, what: str, code: int, producer_id: int, epoch: int) -> None:
        wait_until(lambda: not self._described().startswith("Prepare"))
        text = "" if producer_id == -1 else f" {self._named(ProducerIdAndEpoch(producer_id, epoch))}"
        if producer_id != -1:
            self.given = ProducerIdAndEpoch(producer_id, epoch)
        self.lines.append(f"{what}: {lookup_error_code(code).name}{text} -> {self._described()}")

    def _described(self) -> str:
        answer = self._ask(DescribeTransactions([self._id]))
        row = answer.transaction_states[0]
        if row.error_code:
            return lookup_error_code(row.error_code).name
        return f"{row.transaction_state} {self._named(ProducerIdAndEpoch(row.producer_id, row.producer_epoch))}"

    def _named(self, identity: ProducerIdAndEpoch) -> str:
        if identity in (NO_PRODUCER_ID, UNUSED):
            return "nothing" if identity == NO_PRODUCER_ID else "an unused one"
        if identity.producer_id not in self._ids:
            self._ids.append(identity.producer_id)
        return f"({'ABCDEFGH'[self._ids.index(identity.producer_id)]}, {identity.epoch})"

    def _ask(self, request: TransactionRequest[AnswerT]) -> AnswerT:
        message = request.message(NO_MAX_VERSION)
        return cast("AnswerT", send_to(self._client, self._node, Message, message, versions=request.versions))

    def _coordinator(self) -> Node:
        """The coordinator, when it has loaded what it knows."""
        found: list[Node] = []

        def is_found() -> bool:
            node = self._client.choose_node()
            assert node is not None
            message = FindCoordinator([self._id]).message(FIRST_SEVERAL_KEYS_VERSION)
            row = send_to(self._client, node, FindCoordinatorResponse, message).coordinators[0]
            if row.error_code:
                return False
            self._node = Node(row.node_id, row.host, row.port)
            found[:] = [self._node]
            return self._described() == "TRANSACTIONAL_ID_NOT_FOUND"

        wait_until(is_found)
        return found[0]
