"""Routing, retries and timeouts of the request engine. The tests play the driver and the brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    DisconnectedError,
    KafkaSinkError,
    UnsupportedVersionError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.engine import MAX_UNKNOWN_TOPIC_MS, POLL_INTERVAL_MS, Attempt, Call, RequestEngine
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute, LeaderRoute, Route
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.topics import DescribeTopic
from spark_kafka_sink.requests.transactions import DescribeTransactions, collect_descriptions
from tests.fake_system import FakeSystem

NODES = [Node(number, f"b{number}", 9092) for number in range(3)]
PAUSE_MS = 100.0
LOST = DisconnectedError("broker 1 closed the connection")


class EngineRig:
    """RequestEngine in virtual time. `any_node`: the node for requests that any broker can handle."""

    def __init__(self) -> None:
        self.now = 0.0
        self.any_node: Node | None = NODES[0]
        metadata = Metadata(NODES, ClientConfig(("b0:9092",)), system=FakeSystem(), allow_auto_topic_creation=False)
        self.leader: Node | None = None
        self.routing = Routing(metadata, lambda now_ms: self.any_node)
        self.engine = RequestEngine(self.routing, lambda failures: PAUSE_MS * 2.0**failures)

    def describe(
        self,
        *ids: str,
        should_retry: bool = True,
        should_retry_unknown_errors: bool = False,
        wait_while_ending: bool = False,
    ) -> Call[Any]:
        request = DescribeTransactions(list(ids), wait_while_ending)
        call: Call[Any] = Call(
            [request], should_retry=should_retry, should_retry_unknown_errors=should_retry_unknown_errors
        )
        self.engine.add(call)
        return call

    def make_topic_unknown(self, topic: str) -> None:
        error = build_broker_error(codes.UNKNOWN_TOPIC_OR_PARTITION, topic)
        self.routing.find_leader_error = lambda route: error  # type: ignore[method-assign]
        find_node = self.routing.find_node
        self.routing.find_node = (  # type: ignore[method-assign]
            lambda route, now_ms: self.leader if isinstance(route, LeaderRoute) else find_node(route, now_ms)
        )

    def add_coordinators(self, **nodes: int) -> None:
        for name, node in nodes.items():
            self.routing.add_coordinator(CoordinatorRoute(TRANSACTION_KEY_TYPE, name), NODES[node])

    def send(self) -> list[Attempt]:
        """Send all requests that are due."""
        attempts = self.engine.find_due_attempts(self.now)
        for attempt in attempts:
            self.engine.mark_sent(attempt)
        return attempts

    def send_one(self) -> Attempt:
        (attempt,) = self.send()
        return attempt

    def respond(self, attempt: Attempt, **error_codes: int) -> None:
        """Respond to a request. `error_codes`: the codes by id; other ids succeed."""
        by_id = {name: error_codes.get(name, codes.NONE) for name in attempt.keys}
        message = (
            coordinators_response(by_id)
            if isinstance(attempt.request, FindCoordinator)
            else descriptions_response(by_id)
        )
        self.engine.handle_response(attempt, message, self.now)

    def wait(self) -> None:
        """Advance the time until a request may be due."""
        self.now = self.engine.next_due_ms(self.now)


class LeaderRequest(DescribeTopic):
    """A request for the leader of a topic's partition 0."""

    def route(self, key: str) -> Route:
        return LeaderRoute(self.topic, 0)


def coordinators_response(by_id: dict[str, int]) -> FindCoordinatorResponse:
    """Build a response with node 1 as the coordinator of each id. `by_id`: the error codes."""
    rows = [Coordinator(key=name, node_id=1, host="b1", port=9092, error_code=code) for name, code in by_id.items()]
    return FindCoordinatorResponse(coordinators=rows)


def descriptions_response(by_id: dict[str, int]) -> DescribeTransactionsResponse:
    states = [
        DescribeTransactionsResponseTransactionState(
            error_code=code, transactional_id=name, producer_id=70, producer_epoch=3
        )
        for name, code in by_id.items()
    ]
    return DescribeTransactionsResponse(transaction_states=states)


def keys_by_node(attempts: Iterable[Attempt]) -> dict[int, list[str]]:
    return {attempt.node.id: sorted(attempt.keys) for attempt in attempts}


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


# --- routing


def test_looks_up_unknown_coordinators_in_one_request_of_any_broker(rig: EngineRig) -> None:
    rig.describe("a", "b")
    lookup = rig.send_one()
    assert isinstance(lookup.request, FindCoordinator)
    assert keys_by_node([lookup]) == {0: ["a", "b"]}
    assert not rig.send(), "the requests wait for the lookup"
    rig.respond(lookup)
    assert keys_by_node(rig.send()) == {1: ["a", "b"]}


def test_sends_each_coordinator_one_request_about_all_its_keys(rig: EngineRig) -> None:
    rig.add_coordinators(a=1, b=2, c=1)
    call = rig.describe("a", "b", "c")
    attempts = rig.send()
    assert keys_by_node(attempts) == {1: ["a", "c"], 2: ["b"]}
    rig.respond(attempts[1])
    assert list(call.responses) == ["b"]
    rig.respond(attempts[0])
    assert call.is_done
    assert list(call.results()) == ["a", "b", "c"]


def test_lookup_does_not_delay_known_coordinators(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    rig.describe("a", "b")
    requests = {type(attempt.request): list(attempt.keys) for attempt in rig.send()}
    assert requests == {DescribeTransactions: ["a"], FindCoordinator: ["b"]}


def test_each_call_looks_up_its_own_coordinators(rig: EngineRig) -> None:
    """Old brokers look up one key in a request: several keys of one call must not fail another call with one key."""
    first, second = rig.describe("a", "b"), rig.describe("c")
    of_first, of_second = rig.send()
    assert [list(attempt.keys) for attempt in (of_first, of_second)] == [["a", "b"], ["c"]]
    rig.engine.handle_failure(of_first, UnsupportedVersionError("node 0 looks up one key"), rig.now)
    assert first.error is not None
    rig.respond(of_second)
    assert keys_by_node(rig.send()) == {1: ["c"]}
    assert second.error is None


def test_lookup_of_a_removed_call_delays_no_other(rig: EngineRig) -> None:
    call = rig.describe("a")
    rig.send()
    rig.engine.remove(call)
    rig.describe("b")
    assert keys_by_node(rig.send()) == {0: ["b"]}


def test_time_limit_restarts_when_topic_becomes_unknown_again(rig: EngineRig) -> None:
    call = Call([LeaderRequest("t")])
    rig.engine.add(call)
    rig.make_topic_unknown("t")
    rig.send()
    rig.now = 1_000
    rig.leader = NODES[1]
    assert len(rig.engine.find_due_attempts(rig.now)) == 1, "the leader is known"
    rig.now, rig.leader = 20_000, None
    rig.send()
    assert not call.is_done


def test_time_limit_restarts_when_topic_was_known_without_leader(rig: EngineRig) -> None:
    call = Call([LeaderRequest("t")])
    rig.engine.add(call)
    for rig.now in (0, MAX_UNKNOWN_TOPIC_MS):
        rig.make_topic_unknown("t")
        rig.send()
        rig.routing.find_leader_error = lambda route: None  # type: ignore[method-assign]
        rig.send()
    assert not call.is_done


def test_only_lookup_is_for_any_node(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    rig.describe("a", "b")
    attempts = {type(attempt.request): attempt.is_for_any_node for attempt in rig.send()}
    assert attempts == {DescribeTransactions: False, FindCoordinator: True}


def test_polls_while_no_node_is_usable(rig: EngineRig) -> None:
    assert rig.engine.next_due_ms(rig.now) == float("inf"), "no request is due"
    rig.any_node = None
    rig.describe("a")
    assert rig.send() == []
    assert rig.engine.next_due_ms(rig.now) == POLL_INTERVAL_MS
    rig.any_node = NODES[2]
    assert keys_by_node(rig.send()) == {2: ["a"]}
    rig.send()
    assert rig.engine.next_due_ms(rig.now) == float("inf"), "only the response can make a request due"


def test_attempt_is_due_until_it_is_sent(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    rig.describe("a")
    assert len(rig.engine.find_due_attempts(rig.now)) == 1
    assert len(rig.engine.find_due_attempts(rig.now)) == 1, "the attempt is due until it is sent"
    rig.send()
    assert rig.engine.find_due_attempts(rig.now) == []


# --- retry


@pytest.mark.parametrize("code", [codes.COORDINATOR_LOAD_IN_PROGRESS, codes.CONCURRENT_TRANSACTIONS])
def test_retries_only_retriable_key_after_backoff(rig: EngineRig, code: int) -> None:
    rig.add_coordinators(a=1, b=1)
    call = rig.describe("a", "b")
    rig.respond(rig.send_one(), a=code)
    assert rig.send() == []
    rig.wait()
    assert rig.now > 0
    retry = rig.send_one()
    assert keys_by_node([retry]) == {1: ["a"]}
    rig.respond(retry)
    assert set(call.results()) == {"a", "b"}


def test_backoff_grows_with_each_failure(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    rig.describe("a")
    pauses = []
    for _ in range(3):
        sent_ms = rig.now
        rig.respond(rig.send_one(), a=codes.COORDINATOR_LOAD_IN_PROGRESS)
        rig.wait()
        pauses.append(rig.now - sent_ms)
    assert pauses == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]


def test_concurrent_transactions_are_retried_sooner(rig: EngineRig) -> None:
    assert [rig.engine.compute_backoff_ms(failures, codes.CONCURRENT_TRANSACTIONS) for failures in range(3)] == [
        20,
        40,
        80,
    ]


def test_looks_up_moved_coordinator(rig: EngineRig) -> None:
    rig.add_coordinators(a=2, b=2)
    rig.describe("a", "b")
    rig.respond(rig.send_one(), a=codes.NOT_COORDINATOR)
    rig.wait()
    lookup = rig.send_one()
    assert isinstance(lookup.request, FindCoordinator)
    assert list(lookup.keys) == ["a"]
    rig.respond(lookup)
    assert keys_by_node(rig.send()) == {1: ["a"]}


def test_lost_response_causes_lookup_and_leaves_keys_in_doubt(rig: EngineRig) -> None:
    rig.add_coordinators(a=2)
    call = rig.describe("a")
    rig.engine.handle_failure(rig.send_one(), LOST, rig.now)
    assert call.in_doubt_keys == {"a"}
    assert call.last_failure is LOST
    rig.wait()
    assert isinstance(rig.send_one().request, FindCoordinator)


def test_unsent_request_is_not_in_doubt(rig: EngineRig) -> None:
    rig.add_coordinators(a=2)
    call = rig.describe("a")
    (attempt,) = rig.engine.find_due_attempts(rig.now)
    rig.engine.handle_failure(attempt, LOST, rig.now)
    assert call.in_doubt_keys == set()


def test_queued_request_is_in_flight_but_not_in_doubt(rig: EngineRig) -> None:
    rig.add_coordinators(a=2)
    call = rig.describe("a")
    (attempt,) = rig.engine.find_due_attempts(rig.now)
    rig.engine.mark_queued(attempt)
    assert rig.engine.find_due_attempts(rig.now) == []
    rig.engine.handle_failure(attempt, LOST, rig.now)
    assert (call.in_doubt_keys, call.in_flight_keys) == (set(), set())


def test_lost_node_does_not_delay_other_keys(rig: EngineRig) -> None:
    rig.add_coordinators(a=1, b=2)
    call = rig.describe("a", "b")
    first, second = rig.send()
    rig.engine.handle_failure(first, LOST, rig.now)
    rig.respond(second)
    assert list(call.responses) == ["b"]


@pytest.mark.parametrize("error", [LOST, UnsupportedVersionError("node 0 looks up one key")])
def test_failed_lookup_does_not_affect_keys_that_it_did_not_include(rig: EngineRig, error: KafkaSinkError) -> None:
    rig.add_coordinators(b=2)
    call = rig.describe("a", "b")
    of_b, lookup = sorted(rig.send(), key=lambda attempt: type(attempt.request).__name__)
    rig.respond(of_b, b=codes.NOT_COORDINATOR)
    rig.engine.handle_failure(lookup, error, rig.now)
    assert call.due_ms_by_key["b"] == PAUSE_MS, "the backoff of one failure"


@pytest.mark.parametrize("is_lost", [True, False])
def test_retries_lookup_with_growing_backoff(rig: EngineRig, is_lost: bool) -> None:
    rig.describe("a")
    for failures in range(3):
        sent_ms, lookup = rig.now, rig.send_one()
        if is_lost:
            rig.engine.handle_failure(lookup, LOST, rig.now)
        else:
            rig.respond(lookup, a=codes.COORDINATOR_NOT_AVAILABLE)
        rig.wait()
        assert rig.now - sent_ms == PAUSE_MS * 2**failures


def test_retries_key_missing_in_response(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a")
    rig.engine.handle_response(rig.send_one(), descriptions_response({}), rig.now)
    rig.wait()
    rig.respond(rig.send_one())
    assert list(call.results()) == ["a"]


def test_retries_unknown_server_error_only_if_call_allows_it(rig: EngineRig) -> None:
    for waits in (True, False):
        call = Call([InitProducerId(None)], should_retry_unknown_errors=waits)
        rig.engine.add(call)
        rejected = InitProducerIdResponse(error_code=codes.UNKNOWN_SERVER_ERROR)
        rig.engine.handle_response(rig.send_one(), rejected, rig.now)
        assert call.is_done != waits
        rig.engine.remove(call)


def test_retries_description_until_transaction_has_ended(rig: EngineRig) -> None:
    rig.add_coordinators(a=1, b=1)
    call = rig.describe("a", "b", wait_while_ending=True)
    attempt = rig.send_one()
    response = descriptions_response({"a": codes.NONE, "b": codes.NONE})
    response.transaction_states[0].transaction_state = "PrepareCommit"
    rig.engine.handle_response(attempt, response, rig.now)
    assert list(call.responses) == ["b"]
    rig.wait()
    rig.respond(rig.send_one())
    assert call.is_done


def test_fails_key_of_topic_that_stays_unknown(rig: EngineRig) -> None:
    call = Call([LeaderRequest("t")])
    rig.engine.add(call)
    rig.make_topic_unknown("t")
    while not call.is_done:
        assert rig.send() == []
        rig.wait()
    assert rig.now == pytest.approx(MAX_UNKNOWN_TOPIC_MS, abs=2 * POLL_INTERVAL_MS)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        call.results()


# --- final results


def test_rejection_is_a_final_response(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a")
    rig.respond(rig.send_one(), a=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    request, responses = DescribeTransactions(["a"]), call.results()
    with pytest.raises(AuthorizationError, match="transactional id a: the attempt to describe the transaction"):
        collect_descriptions(request, responses)


def test_descriptions_omit_unknown_ids(rig: EngineRig) -> None:
    rig.add_coordinators(a=1, b=1)
    call = rig.describe("a", "b")
    rig.respond(rig.send_one(), a=codes.TRANSACTIONAL_ID_NOT_FOUND)
    descriptions_by_id = collect_descriptions(DescribeTransactions(["a", "b"]), call.results())
    assert {name: description.id_and_epoch for name, description in descriptions_by_id.items()} == {
        "b": ProducerIdAndEpoch(70, 3)
    }


def test_rejected_lookup_ends_call_after_other_keys(rig: EngineRig) -> None:
    rig.add_coordinators(b=2)
    call = rig.describe("a", "b")
    of_b, lookup = sorted(rig.send(), key=lambda attempt: type(attempt.request).__name__)
    rig.respond(lookup, a=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert not call.is_done
    rig.respond(of_b)
    with pytest.raises(AuthorizationError, match="look up a coordinator"):
        call.results()


def test_unsupported_request_fails_its_keys(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a")
    (attempt,) = rig.engine.find_due_attempts(rig.now)
    rig.engine.handle_failure(attempt, UnsupportedVersionError("node 1 does not support it"), rig.now)
    with pytest.raises(UnsupportedVersionError):
        call.results()


@pytest.mark.parametrize("is_lost", [True, False])
def test_call_without_retries_fails_at_first_failure(rig: EngineRig, is_lost: bool) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a", should_retry=False)
    attempt = rig.send_one()
    if is_lost:
        rig.engine.handle_failure(attempt, LOST, rig.now)
    else:
        rig.respond(attempt, a=codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(DisconnectedError if is_lost else BrokerError):
        call.results()
    assert call.is_done


def test_ignores_responses_of_removed_call(rig: EngineRig) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a")
    attempt = rig.send_one()
    rig.engine.remove(call)
    rig.respond(attempt)
    rig.engine.handle_failure(attempt, LOST, rig.now)
    assert (call.responses, call.in_doubt_keys, call.last_failure) == ({}, set(), None)
    assert rig.send() == []


@pytest.mark.parametrize("is_lost", [True, False])
def test_ignores_second_result_of_attempt(rig: EngineRig, is_lost: bool) -> None:
    rig.add_coordinators(a=1)
    call = rig.describe("a")
    attempt = rig.send_one()
    if is_lost:
        rig.engine.handle_failure(attempt, LOST, rig.now)
    else:
        rig.respond(attempt, a=codes.COORDINATOR_LOAD_IN_PROGRESS)
    rig.respond(attempt)
    assert call.responses == {}


def test_final_results_count_as_progress(rig: EngineRig) -> None:
    rig.add_coordinators(a=1, b=1)
    call = rig.describe("a", "b")
    rig.respond(rig.send_one(), a=codes.COORDINATOR_LOAD_IN_PROGRESS)
    assert call.done_count == 1
    rig.wait()
    rig.engine.handle_failure(rig.send_one(), UnsupportedVersionError("node 1 does not support it"), rig.now)
    assert (call.done_count, call.is_done) == (2, True)


def test_operation_names_the_subject_of_a_single_key() -> None:
    action = "the attempt to describe the transaction"
    operations = [Call([DescribeTransactions(ids)]).operation for ids in (["a"], ["a", "b"])]
    assert operations == [f"transactional id a: {action}", action]
    assert Call([]).operation == "the attempt"
