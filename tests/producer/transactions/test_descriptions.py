"""A producer asks what coordinators know of transactional ids, over the connections that it has."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import AuthorizationError, KafkaSinkError
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.descriptions import Descriptions
from spark_kafka_sink.producer.transactions.requests import DescribeTransactions, FindCoordinator, InitProducerId
from spark_kafka_sink.producer.transactions.transaction_description import EMPTY, TransactionDescription
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponse, TransactionState
from spark_kafka_sink.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tests.producer.transactions.transaction_cases import PAUSE_MS, Request, S, Talk, error_of

DRIVER, TASK = "p-driver", "p-0-1-0"


def found_on(nodes: dict[str, int]) -> FindCoordinatorResponse:
    rows = [Coordinator(key=name, node_id=node, host=f"b{node}", port=9092) for name, node in nodes.items()]
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


def known(talk: Talk, nodes: dict[str, int]) -> Descriptions:
    """Ask about these ids, whose coordinators have been looked up."""
    asked = talk.manager.describe(list(nodes))
    talk.manager.answered(talk.send(FindCoordinator), found_on(nodes), talk.now)
    return asked


def answer(talk: Talk, request: Request, **codes_of: int) -> None:
    assert isinstance(request, DescribeTransactions)
    given = {name: codes_of.get(name.replace("-", "_"), codes.NONE) for name in request.transactional_ids}
    talk.manager.answered(request, rows(given), talk.now)


def test_all_coordinators_are_looked_up_in_one_request_and_asked_at_the_same_time() -> None:
    talk = Talk()
    asked = talk.manager.describe([DRIVER, TASK])
    lookup = talk.send(FindCoordinator)
    assert lookup.ids == [DRIVER, TASK]
    talk.manager.answered(lookup, found_on({DRIVER: 1, TASK: 2}), talk.now)
    one, other = talk.send(DescribeTransactions), talk.send(DescribeTransactions)
    assert [one.ids, other.ids] == [[DRIVER], [TASK]]
    assert talk.next() is None
    answer(talk, other)
    assert not asked.operation.done.is_set()
    answer(talk, one)
    assert error_of(asked.operation) is None
    assert {name: each.id_and_epoch for name, each in asked.found.items()} == {
        name: described(name).id_and_epoch for name in (DRIVER, TASK)
    }


def test_ids_of_one_coordinator_are_described_in_one_answer_and_unknown_ones_are_missing() -> None:
    talk = Talk()
    asked = known(talk, {DRIVER: 1, TASK: 1})
    answer(talk, talk.send(DescribeTransactions), p_0_1_0=codes.TRANSACTIONAL_ID_NOT_FOUND)
    assert error_of(asked.operation) is None
    assert list(asked.found) == [DRIVER]


def test_coordinators_are_looked_up_once_and_again_when_they_have_moved() -> None:
    talk = Talk()
    known(talk, {DRIVER: 1})
    answer(talk, talk.send(DescribeTransactions))
    asked = talk.manager.describe([DRIVER])
    answer(talk, talk.send(DescribeTransactions), p_driver=codes.NOT_COORDINATOR)
    assert talk.next() is None
    talk.wait(PAUSE_MS)
    talk.manager.answered(talk.send(FindCoordinator), found_on({DRIVER: 2}), talk.now)
    answer(talk, talk.send(DescribeTransactions))
    assert DRIVER in asked.found


def test_what_was_lost_or_is_not_known_yet_is_asked_for_again() -> None:
    talk = Talk()
    asked = known(talk, {DRIVER: 1, TASK: 2})
    one, other = talk.send(DescribeTransactions), talk.send(DescribeTransactions)
    answer(talk, one, p_driver=codes.COORDINATOR_LOAD_IN_PROGRESS)
    talk.manager.lost(other, talk.now, "the connection was lost")
    talk.wait(PAUSE_MS)
    assert talk.send(FindCoordinator).ids == [TASK]
    answer(talk, talk.send(DescribeTransactions))
    assert list(asked.found) == [DRIVER]
    assert asked.pending


def test_a_missing_right_fails_the_call_and_not_the_producer() -> None:
    talk = Talk().init()
    asked = known(talk, {DRIVER: 1})
    answer(talk, talk.send(DescribeTransactions), p_driver=codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    error = error_of(asked.operation)
    assert isinstance(error, AuthorizationError)
    assert f"transactional id {DRIVER}: the attempt to describe the transaction was refused" in str(error)
    assert talk.state() is S.READY
    talk.manager.begin(1)


def test_an_answer_to_a_call_whose_time_was_up_does_not_answer_the_next_one() -> None:
    """It may be older than the call: the id may have been given to another since."""
    talk = Talk()
    known(talk, {DRIVER: 1})
    late = talk.send(DescribeTransactions)
    again = talk.manager.describe([DRIVER])
    assert talk.next() is None
    answer(talk, late)
    assert again.found == {}
    answer(talk, talk.send(DescribeTransactions))
    assert DRIVER in again.found


def test_what_is_asked_about_other_ids_leaves_a_request_that_was_sent_before_alone() -> None:
    talk = Talk()
    operation = talk.manager.init()
    talk.answer(FindCoordinator)
    init = talk.send(InitProducerId)
    asked = talk.manager.describe([DRIVER])
    assert talk.next() is None
    talk.reply(init)
    assert error_of(operation) is None
    talk.manager.answered(talk.send(FindCoordinator), found_on({DRIVER: 1}), talk.now)
    answer(talk, talk.send(DescribeTransactions))
    assert DRIVER in asked.found


def test_a_producer_that_cannot_go_on_answers_no_call() -> None:
    talk = Talk()
    asked = talk.manager.describe([DRIVER])
    talk.manager.fail_for_good(KafkaSinkError("it is over"))
    assert "it is over" in str(error_of(asked.operation))
    with pytest.raises(KafkaSinkError, match="it is over"):
        talk.manager.describe([DRIVER])


def test_to_ask_about_no_id_needs_no_request() -> None:
    talk = Talk()
    asked = talk.manager.describe([])
    assert error_of(asked.operation) is None
    assert talk.next() is None
