"""CallExecutor: the sender thread sends the calls of other threads over the producer's connections."""

from __future__ import annotations

from random import Random
from unittest.mock import Mock

import pytest

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.client_request import ClientRequest, ClientResponse
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.errors import KafkaSinkError, ProducerClosedError, UnsupportedVersionError
from spark_kafka_sink.producer.sending.call_executor import BlockingCall, CallExecutor
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.engine import POLL_INTERVAL_MS, Call
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute
from spark_kafka_sink.requests.transactions import DescribeTransactions
from tests.requests.test_engine import descriptions_response

NODE = Node(1, "b1", 9092)


class Sender:
    """The sender thread's part, with a client that has one node. Tests set whether the node is ready."""

    def __init__(self) -> None:
        self.is_ready = True
        self.sent: list[ClientRequest] = []
        self.client = Mock(spec=NetworkClient)
        self.client.least_loaded_node.return_value = NODE
        self.client.ready.side_effect = lambda node, now_ms: self.is_ready
        self.client.has_connection_failed.return_value = False
        self.client.poll_delay_ms.return_value = 0.0
        self.client.latest_usable_version.return_value = 4
        self.client.new_client_request.side_effect = self._new_request
        self.client.send.side_effect = lambda request, now_ms: self.sent.append(request)
        self.requests = CallExecutor(self.client, Mock(), ExponentialBackoff(100, 100, Random(1)))

    def _new_request(self, node_id: int, message: Message, now_ms: float, *, tag: object, **limits: object) -> object:
        return ClientRequest(node_id, message, len(self.sent), now_ms, 30_000, tag=tag)

    def respond(self, message: Message | None, reason: str = "") -> None:
        self.requests.handle_response(ClientResponse(self.sent[-1], 0, 0, message=message, reason=reason))


@pytest.fixture
def sender() -> Sender:
    return Sender()


def new_call() -> BlockingCall[InitProducerIdResponse]:
    return BlockingCall([InitProducerId(None)])


def test_sender_thread_sends_submitted_call_which_ends_with_its_response(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    assert not sender.sent, "the caller's thread sends nothing"
    assert sender.requests.send_due(0) == float("inf")
    sender.respond(InitProducerIdResponse(producer_id=7))
    assert call.done_event.is_set()
    assert [response.producer_id for response in call.results().values()] == [7]


@pytest.mark.parametrize("code", [codes.NONE, codes.COORDINATOR_LOAD_IN_PROGRESS])
def test_call_ends_with_its_last_key_when_one_response_covers_several(sender: Sender, code: int) -> None:
    """The caller reads the results of all keys as soon as the call has ended."""
    call = BlockingCall([DescribeTransactions(["a", "b"])])
    ended_with: list[list[str]] = []
    call.done_event.set = lambda: ended_with.append(list(call.responses))  # type: ignore[method-assign]
    for name in "ab":
        sender.requests._engine.routing.add_coordinator(CoordinatorRoute(TRANSACTION_KEY_TYPE, name), NODE)
    sender.requests.submit(call)
    sender.requests.send_due(0)
    sender.respond(descriptions_response({"a": codes.NONE, "b": code}))
    if code:
        assert ended_with == []
        sender.requests.send_due(100)
        sender.respond(descriptions_response({"b": codes.NONE}))
    assert ended_with == [["a", "b"]]


def test_rechecks_unready_node_soon(sender: Sender) -> None:
    sender.requests.submit(new_call())
    sender.is_ready = False
    assert sender.requests.send_due(0) == POLL_INTERVAL_MS
    sender.is_ready = True
    sender.requests.send_due(POLL_INTERVAL_MS)
    assert len(sender.sent) == 1


def test_retries_lost_request_and_reports_the_reason(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    sender.requests.send_due(0)
    sender.respond(None, "broker 1 closed the connection")
    assert str(call.last_failure) == "broker 1 closed the connection"
    assert sender.requests.send_due(0) == 100
    sender.requests.send_due(100)
    assert len(sender.sent) == 2


def test_cancelled_call_is_not_retried(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    sender.requests.send_due(0)
    sender.requests.cancel(call)
    sender.requests.send_due(0)
    sender.respond(InitProducerIdResponse(error_code=codes.COORDINATOR_LOAD_IN_PROGRESS))
    assert sender.requests.send_due(1_000) == float("inf")
    assert len(sender.sent) == 1


def test_request_that_node_does_not_support_ends_its_call(sender: Sender) -> None:
    sender.client.latest_usable_version.side_effect = UnsupportedVersionError("node 1 does not support it")
    call = new_call()
    sender.requests.submit(call)
    sender.requests.send_due(0)
    assert call.done_event.is_set()
    with pytest.raises(UnsupportedVersionError):
        call.results()


def test_end_of_producer_ends_calls_and_rejects_later_ones(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    sender.requests.fail(ProducerClosedError("closed"))
    assert call.done_event.is_set()
    with pytest.raises(ProducerClosedError):
        call.results()
    with pytest.raises(KafkaSinkError, match="closed"):
        sender.requests.submit(new_call())


def test_rechecks_node_when_its_reconnect_backoff_ends(sender: Sender) -> None:
    sender.requests.submit(new_call())
    sender.is_ready = False
    sender.client.poll_delay_ms.return_value = 700.0
    assert sender.requests.send_due(0) == 700


def test_end_of_producer_does_not_change_results_of_ended_call(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    sender.requests.send_due(0)
    sender.respond(InitProducerIdResponse(producer_id=7))
    sender.requests.fail(ProducerClosedError("closed"))
    assert [response.producer_id for response in call.results().values()] == [7]


def describing_call(sender: Sender) -> BlockingCall[DescribeTransactionsResponse]:
    """Submit a call to the known coordinator of the transactional id "a"."""
    call = BlockingCall([DescribeTransactions(["a"])])
    sender.requests._engine.routing.add_coordinator(CoordinatorRoute(TRANSACTION_KEY_TYPE, "a"), NODE)
    sender.requests.submit(call)
    return call


@pytest.mark.parametrize("is_reason_known", [True, False])
def test_unreachable_coordinator_is_looked_up_again_and_its_failure_reported(
    sender: Sender, is_reason_known: bool
) -> None:
    loss = Mock(reason="broker 1 refused the connection")
    sender.client.connection_losses = {NODE.id: loss} if is_reason_known else {}
    sender.client.has_connection_failed.return_value = True
    sender.is_ready = False
    call = describing_call(sender)
    assert sender.requests.send_due(0) == 0
    assert str(call.last_failure) == (loss.reason if is_reason_known else "")
    sender.is_ready = True
    sender.requests.send_due(100)
    assert sender.client.latest_usable_version.call_args.args[1] is ApiKey.FIND_COORDINATOR


def test_request_for_any_broker_waits_for_a_connection(sender: Sender) -> None:
    sender.client.has_connection_failed.return_value = True
    sender.is_ready = False
    call = new_call()
    sender.requests.submit(call)
    assert sender.requests.send_due(0) == POLL_INTERVAL_MS
    assert call.last_failure is None


def test_request_that_its_call_revokes_is_not_sent(sender: Sender) -> None:
    call = describing_call(sender)
    call.try_begin_sending = lambda request: False  # type: ignore[method-assign]
    assert sender.requests.send_due(0) == 0
    assert sender.sent == []


def test_unsupported_version_in_the_response_ends_the_call(sender: Sender) -> None:
    call = new_call()
    sender.requests.submit(call)
    sender.requests.send_due(0)
    error = UnsupportedVersionError("broker 1 does not support it")
    sender.requests.handle_response(ClientResponse(sender.sent[-1], 0, 0, message=None, version_error=error))
    with pytest.raises(UnsupportedVersionError):
        call.results()


def test_backoff_is_that_of_requests(sender: Sender) -> None:
    assert sender.requests.compute_backoff_ms(0) == 100


def test_added_call_is_sent_until_it_is_removed(sender: Sender) -> None:
    calls = [Call([InitProducerId(None)]) for _ in range(2)]
    for call in calls:
        sender.requests.add(call)
    sender.requests.remove(calls[0])
    sender.requests.send_due(0)
    assert len(sender.sent) == 1
