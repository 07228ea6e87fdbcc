"""A producer asks what coordinators know of transactional ids, over the connections that it has."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.errors import AuthorizationError, KafkaSinkError, UnsupportedVersionError
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.coordinators import KnownCoordinators
from spark_kafka_sink.producer.transactions.descriptions import DescribeCall, Descriptions
from spark_kafka_sink.producer.transactions.requests import DescribeTransactions, FindCoordinator, InitProducerId
from spark_kafka_sink.producer.transactions.transaction_description import EMPTY, TransactionDescription
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponse, TransactionState
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tests.producer.transactions.transaction_cases import PAUSE_MS, Request, S, Talk, error_of

DRIVER, TASK = "p-driver", "p-0-1-0"


def found_on(nodes: dict[str, int], code: int = codes.NONE) -> FindCoordinatorResponse:
    rows = [
        Coordinator(key=name, node_id=node, host=f"b{node}", port=9092, error_code=code) for name, node in nodes.items()
    ]
    return FindCoordinatorResponse(coordinators=rows)


def rows(answered: dict[str, int]) -> DescribeTransactionsResponse:
    """By id: the error code."""
    states = [
        TransactionState(
            error_code=code, transactional_id=name, transaction_state=EMPTY, producer_id=70, producer_epoch=3
        )
        for name, code in answered.items()
    ]
    return DescribeTransactionsResponse(transaction_states=states)


def described(name: str) -> TransactionDescription:
    return TransactionDescription(name, EMPTY, ProducerIdAndEpoch(70, 3), 0, 0)


RequestT = TypeVar("RequestT", bound=Request)


class Asking:
    """Descriptions and the brokers' answers, without a network."""

    def __init__(self, descriptions: Descriptions | None = None) -> None:
        backoff = ExponentialBackoff(PAUSE_MS, 16 * PAUSE_MS, Random(1))
        self.descriptions = Descriptions(backoff, KnownCoordinators()) if descriptions is None else descriptions
        self.now = 0.0

    def ask(self, *names: str) -> DescribeCall:
        return self.descriptions.ask(names)

    def next(self) -> Request | None:
        return self.descriptions.next_request(self.now)

    def send(self, kind: type[RequestT]) -> RequestT:
        request = self.next()
        assert isinstance(request, kind)
        self.descriptions.sent(request)
        return request

    def look_up(self, **nodes: int) -> None:
        """Answer the request for the coordinators of these ids."""
        by_name = {name.replace("_", "-"): node for name, node in nodes.items()}
        self.descriptions.answered(self.send(FindCoordinator), found_on(by_name), self.now)

    def answer(self, request: DescribeTransactions, **codes_of: int) -> None:
        given = {name: codes_of.get(name.replace("-", "_"), codes.NONE) for name in request.transactional_ids}
        self.descriptions.answered(request, rows(given), self.now)

    def wait(self) -> None:
        self.now += self.descriptions.next_delay_ms(self.now)


@pytest.fixture
def asking() -> Asking:
    return Asking()


def test_all_coordinators_are_looked_up_in_one_request_and_asked_at_the_same_time(asking: Asking) -> None:
    call = asking.ask(DRIVER, TASK)
    lookup = asking.send(FindCoordinator)
    assert lookup.ids == [DRIVER, TASK]
    asking.descriptions.answered(lookup, found_on({DRIVER: 1, TASK: 2}), asking.now)
    one, other = asking.send(DescribeTransactions), asking.send(DescribeTransactions)
    assert [one.ids, other.ids] == [[DRIVER], [TASK]]
    assert asking.next() is None
    asking.answer(other)
    assert not call.operation.done.is_set()
    asking.answer(one)
    assert error_of(call.operation) is None
    assert {name: each.id_and_epoch for name, each in call.found.items()} == {
        name: described(name).id_and_epoch for name in (DRIVER, TASK)
    }


def test_ids_of_one_coordinator_are_described_in_one_answer_and_unknown_ones_are_missing(asking: Asking) -> None:
    call = asking.ask(DRIVER, TASK)
    asking.look_up(p_driver=1, p_0_1_0=1)
    asking.answer(asking.send(DescribeTransactions), p_0_1_0=codes.TRANSACTIONAL_ID_NOT_FOUND)
    assert error_of(call.operation) is None
    assert list(call.found) == [DRIVER]


def test_coordinators_are_looked_up_once_and_again_when_they_have_moved(asking: Asking) -> None:
    asking.ask(DRIVER)
    asking.look_up(p_driver=1)
    asking.answer(asking.send(DescribeTransactions))
    call = asking.ask(DRIVER)
    asking.answer(asking.send(DescribeTransactions), p_driver=codes.NOT_COORDINATOR)
    assert asking.next() is None
    asking.wait()
    asking.look_up(p_driver=2)
    asking.answer(asking.send(DescribeTransactions))
    assert DRIVER in call.found


def test_what_was_lost_or_is_not_known_yet_is_asked_for_again(asking: Asking) -> None:
    call = asking.ask(DRIVER, TASK)
    asking.look_up(p_driver=1, p_0_1_0=2)
    one, other = asking.send(DescribeTransactions), asking.send(DescribeTransactions)
    asking.answer(one, p_driver=codes.COORDINATOR_LOAD_IN_PROGRESS)
    asking.descriptions.lost(other, asking.now, "the connection was lost")
    assert asking.descriptions.trouble == "the connection was lost"
    assert asking.descriptions.next_delay_ms(asking.now) > 0
    asking.wait()
    assert asking.send(FindCoordinator).ids == [TASK]
    asking.answer(asking.send(DescribeTransactions))
    assert list(call.found) == [DRIVER]
    assert not call.operation.done.is_set()


def test_after_a_success_pauses_begin_anew_and_there_is_no_trouble_to_name(asking: Asking) -> None:
    def pause_after_a_loss() -> float:
        asking.descriptions.lost(asking.send(FindCoordinator), asking.now, "the connection was lost")
        pause_ms = asking.descriptions.next_delay_ms(asking.now)
        asking.wait()
        return pause_ms

    asking.ask(DRIVER)
    pauses_ms = [pause_after_a_loss() for _ in range(4)]
    asking.look_up(p_driver=1)
    asking.answer(asking.send(DescribeTransactions))
    assert asking.descriptions.trouble == ""
    asking.ask(TASK)
    assert pause_after_a_loss() < pauses_ms[-1] / 2


def test_what_was_offered_and_not_sent_is_forgotten(asking: Asking) -> None:
    asking.ask(DRIVER)
    for _ in range(3):
        assert asking.next() is not None
    assert len(asking.descriptions._offered) == 1


@pytest.mark.parametrize("kind", [FindCoordinator, DescribeTransactions])
def test_a_missing_right_fails_the_call_and_neither_another_call_nor_the_producer(kind: type[Request]) -> None:
    refused = codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    talk = Talk().init()
    asking = Asking(talk.manager.descriptions)
    call, other = asking.ask(DRIVER), asking.ask("x")  # the coordinator of x is known
    lookup = asking.send(FindCoordinator)
    if kind is FindCoordinator:
        asking.descriptions.answered(lookup, found_on({DRIVER: 1}, refused), asking.now)
    else:
        asking.descriptions.answered(lookup, found_on({DRIVER: 1}), asking.now)
        asking.answer(asking.send(DescribeTransactions), p_driver=refused)
    error = error_of(call.operation)
    assert isinstance(error, AuthorizationError)
    assert f"transactional id {DRIVER}: the attempt to {kind.action} was refused" in str(error)
    asking.answer(asking.send(DescribeTransactions))
    assert error_of(other.operation) is None
    assert talk.state() is S.READY
    talk.manager.begin(1)


def test_calls_of_several_threads_are_answered_each_by_itself(asking: Asking) -> None:
    calls = [asking.ask(DRIVER), asking.ask(DRIVER, TASK)]
    asking.look_up(p_driver=1)
    first = asking.send(DescribeTransactions)
    asking.look_up(p_0_1_0=1)
    second = asking.send(DescribeTransactions)
    asking.answer(second)
    assert [list(call.found) for call in calls] == [[], [DRIVER, TASK]]
    asking.answer(first)
    assert [error_of(call.operation) for call in calls] == [None, None]


def test_a_node_that_cannot_be_asked_just_now_delays_no_question_to_another_one(asking: Asking) -> None:
    asking.ask(DRIVER, TASK)
    asking.look_up(p_driver=1, p_0_1_0=2)
    asking.ask("other")
    first = asking.next()
    assert first is not None
    not_ready = {asking.descriptions.node_for(first)}
    second = asking.descriptions.next_request(asking.now, not_ready)
    assert second is not None
    assert [first.ids, second.ids] == [[DRIVER], [TASK]]
    not_ready.add(asking.descriptions.node_for(second))
    lookup = asking.descriptions.next_request(asking.now, not_ready)
    assert isinstance(lookup, FindCoordinator)
    assert asking.descriptions.next_request(asking.now, {*not_ready, None}) is None


def test_a_look_up_that_is_refused_names_the_id_that_was_refused(asking: Asking) -> None:
    call = asking.ask(DRIVER, TASK)
    refused = found_on({TASK: 1}, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    answer = FindCoordinatorResponse(coordinators=[*found_on({DRIVER: 1}).coordinators, *refused.coordinators])
    asking.descriptions.answered(asking.send(FindCoordinator), answer, asking.now)
    assert f"transactional id {TASK}: the attempt" in str(error_of(call.operation))


def test_an_answer_to_a_call_whose_time_was_up_does_not_answer_the_next_one(asking: Asking) -> None:
    """It may be older than the call: the id may have been given to another since."""
    call = asking.ask(DRIVER)
    asking.look_up(p_driver=1)
    late = asking.send(DescribeTransactions)
    asking.descriptions.forget(call)
    again = asking.ask(DRIVER)
    request = asking.send(DescribeTransactions)
    asking.answer(late)
    assert again.found == {}
    asking.answer(request)
    assert DRIVER in again.found


def test_a_call_whose_time_was_up_asks_no_more(asking: Asking) -> None:
    call = asking.ask(DRIVER)
    asking.look_up(p_driver=1)
    asking.descriptions.forget(call)
    asking.descriptions.forget(call)  # the producer may have failed it meanwhile
    assert asking.next() is None


def test_late_answers_to_a_call_whose_time_was_up_harm_no_producer() -> None:
    talk = Talk().init()
    asking = Asking(talk.manager.descriptions)
    call = asking.ask(DRIVER)
    lookup = asking.send(FindCoordinator)
    asking.descriptions.forget(call)
    refusal = found_on({DRIVER: 1}, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    asking.descriptions.answered(lookup, refusal, asking.now)
    assert talk.state() is S.READY


def test_what_is_asked_about_other_ids_and_the_producers_own_requests_do_not_wait_for_each_other() -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(FindCoordinator)
    init = talk.send(InitProducerId)
    asking = Asking(talk.manager.descriptions)
    call = asking.ask(DRIVER)
    asking.look_up(p_driver=1)
    request = asking.send(DescribeTransactions)
    talk.reply(init)
    assert error_of(operation) is None
    asking.answer(request)
    assert DRIVER in call.found


def test_both_know_whose_coordinator_the_other_has_looked_up() -> None:
    talk = Talk()
    asking = Asking(talk.manager.descriptions)
    asking.ask("x")
    asking.look_up(x=1)
    talk.manager.init()
    assert type(talk.due()) is InitProducerId
    assert asking.descriptions.node_for(asking.send(DescribeTransactions)) == talk.manager.node_for(talk.due())


def test_a_node_that_does_not_know_the_request_fails_the_call_and_not_the_producer() -> None:
    talk = Talk().init()
    asking = Asking(talk.manager.descriptions)
    call = asking.ask("x")
    request = asking.next()
    assert request is not None
    asking.descriptions.cannot_be_sent(request, UnsupportedVersionError("broker 1 is too old"))
    assert "broker 1 is too old" in str(error_of(call.operation))
    assert asking.next() is None
    assert talk.state() is S.READY


def test_a_producer_that_cannot_go_on_answers_no_call() -> None:
    talk = Talk()
    asking = Asking(talk.manager.descriptions)
    call = asking.ask(DRIVER)
    talk.manager.fail_for_good(KafkaSinkError("it is over"))
    assert "it is over" in str(error_of(call.operation))
    assert asking.next() is None
    with pytest.raises(KafkaSinkError, match="it is over"):
        asking.ask(DRIVER)


def test_to_ask_about_no_id_needs_no_request(asking: Asking) -> None:
    call = asking.ask()
    assert error_of(call.operation) is None
    assert asking.next() is None
