"""A driver's id gets another producer id when its epochs are used up: in a start, and in no other step."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker import transactions as transactions_of_broker
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log, operations, query_transactions
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.exactly_once.coordinator_questions import CoordinatorQuestions
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.entry_json import encoded
from spark_kafka_sink.exactly_once.query_transactions import EPOCHS_END, QueryTransactions
from spark_kafka_sink.exactly_once.transactions_client import expected_of
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.transactions.requests import EndTransaction, InitProducerId
from spark_kafka_sink.producer.transactions.transaction_request import AnswerT, TransactionRequest
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Crash,
    Query,
    client_of,
    dying,
    open_ids,
    options,
    rows,
    seen,
    transactions,
    use_up_epochs,
    write_as,
)
from tests.exactly_once.cases import broker as broker
from tests.exactly_once.cases import its_own_ids_alone as its_own_ids_alone
from tests.exactly_once.explorer import explore
from tests.exactly_once.scenarios.test_old_answers import TIMES, decide_and_die, end_of, ends_at

AT_THE_END = 32_767 - EPOCHS_END
LEFT = (4, *range(AT_THE_END - 1, AT_THE_END + 8))
"""Epochs that are left: so that the end is reached at each step of a batch and of a start."""
SEEDS_OF_A_TEST = 20
SEEDS = 2_000 if os.environ.get("SOAK") else 60
REQUESTS_OF_A_START = AT_THE_END + 13
"""Of the driver's id, where that gets another producer id."""


@pytest.fixture(params=LEFT)
def query(broker: EmbeddedBroker, its_own_ids_alone: None, request: pytest.FixtureRequest) -> Query:
    """Its driver has written batch 0, and has few epochs left: they are used up at each step of a batch."""
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", request.param)
    return query


def test_a_driver_whose_epochs_are_used_up_goes_on_under_its_next_producer_id(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    query = Query(broker)
    query.run(0)
    driver = broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    driver.epoch = EPOCHS_END - 5
    producer_id = driver.producer_id
    for number in range(1, 9):
        query.run(number)
    assert driver.producer_id != producer_id, "in a start, long before the last epoch"
    assert "another driver begins at the same time" not in caplog.text
    assert seen(broker) == rows(*range(9))
    assert query.again().begin().is_committed(query.batch(8))


def test_of_an_id_that_has_written_nothing_nothing_is_written_under_the_next_one(broker: EmbeddedBroker) -> None:
    with transactions(broker) as held:
        held.log.create_if_missing()
        held.fence(held.look(), (60_000,))
        use_up_epochs(broker, "p-driver", AT_THE_END)
        held.fence(held.look(), (60_000,))
    assert end_of(Query(broker)) == 0


def test_wherever_its_epochs_are_used_up_a_driver_is_known_as_who_has_decided(
    broker: EmbeddedBroker, query: Query
) -> None:
    query.run(1)
    for name in ("driver-1", "driver-1", "driver-2"):  # starts that decide nothing, as of empty batches
        decision_log._progress.clear()
        query.again(name=name).begin().check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


def test_wherever_its_epochs_are_used_up_a_driver_holds_the_newest_one_when_it_has_begun(
    broker: EmbeddedBroker, query: Query
) -> None:
    """Else its tasks would take themselves for late ones."""
    for name in ("driver-1", "driver-2", "driver-3"):
        start = query.again(name=name).begin()
        with client_of(broker) as client:
            assert start.awaits_tasks(client.describe(["p-driver"])["p-driver"])


def test_wherever_its_epochs_are_used_up_a_driver_can_abort(broker: EmbeddedBroker, query: Query) -> None:
    for name in ("driver-2", "driver-3"):
        newer = query.again(name=name)
        start = newer.begin()
        newer.write_both(start, 1)
        decision_log._progress.clear()
        assert newer.abort(start, 1)
        assert not open_ids(broker)
    query.again(name="driver-4").run(1)
    assert seen(broker) == rows(0, 1)


def test_wherever_its_epochs_are_used_up_a_stranger_whose_are_so_too_decides_nothing(
    broker: EmbeddedBroker, query: Query
) -> None:
    """What tasks of a driver that died have open would be committed, and the batch written again."""
    query.run(1)
    written = query.write_both(query.begin(), 2)  # dies here
    write_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    forged = Entry(PREFIX, generation=9).decided(Batch(query.query, 0), BOTH_TASKS, tuple(written))
    write_as(broker, "evil", "p", encoded(forged))
    decision_log._progress.clear()
    query.again().run(2)
    assert seen(broker) == rows(0, 1, 2)


@pytest.mark.parametrize("left", LEFT)
def test_when_its_epochs_are_used_up_a_stranger_whose_are_so_too_is_not_taken_for_the_driver(
    broker: EmbeddedBroker, its_own_ids_alone: None, left: int
) -> None:
    query = Query(broker)
    query.run(0)
    with transactions(broker) as held:
        look = held.look()
        assert look is not None
        old = held.entry()
    driver = broker.cluster.coordinator.transactions["p-driver"]
    producer_id = driver.producer_id
    use_up_epochs(broker, "p-driver", left)
    query.run(1)
    assert (driver.producer_id != producer_id) or left > LEFT[1]
    assert (driver.producer_id == producer_id) or left < LEFT[-1], "not each step of a batch is tried"
    write_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    write_as(broker, "evil", "p", encoded(old))
    decision_log._progress.clear()
    start = query.begin()
    assert start.is_committed(query.batch(1))
    query.run(2)
    query.run(3)
    assert seen(broker) == rows(0, 1, 2, 3)


def test_wherever_its_epochs_are_used_up_a_batch_that_is_refused_can_be_aborted(
    broker: EmbeddedBroker, query: Query
) -> None:
    start = query.begin()
    written = query.write_both(start, 1)
    with client_of(broker) as client:
        client.init_producer_id(written[0].transactional_id, 60_000)
    with pytest.raises(ExactlyOnceError, match="are not open any more"):
        query.commit(start, 1, written)
    assert query.abort(start, 1)
    assert not open_ids(broker)


@pytest.mark.parametrize("at", ["commit", "done"])
def test_wherever_its_epochs_are_used_up_what_a_driver_has_decided_before_it_died_is_known_as_its_own(
    query: Query, at: str
) -> None:
    start = query.begin()
    written = query.write_both(start, 1)
    with dying(at):
        query.commit(start, 1, written)
    again = query.again().begin()
    assert again.is_committed(query.batch(1))
    again.check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


def test_wherever_its_epochs_are_used_up_a_driver_that_another_fenced_and_did_not_follow_notes_its_commit(
    broker: EmbeddedBroker, query: Query
) -> None:
    start = query.begin()
    written = query.write_both(start, 1)
    whole = Driver._commit_all

    def commit_all(driver: Driver, *arguments: object) -> None:
        whole(driver, *arguments)  # type: ignore[arg-type]
        with transactions(broker) as other:  # another start gets its epoch, and dies
            other.fence(other.look(), (60_000,))

    with patch.object(Driver, "_commit_all", commit_all):
        query.commit(start, 1, written)
    again = query.again().begin()
    again.check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)


@TIMES
@pytest.mark.parametrize("left", LEFT)
def test_wherever_its_epochs_are_used_up_who_reads_too_little_overwrites_nothing_that_is_decided(
    broker: EmbeddedBroker, left: int, times: int
) -> None:
    query = Query(broker)
    query.run(0)
    old_end = end_of(query)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", left)
    again = query.again()
    with ends_at(old_end, times):
        start = again.begin()
    assert start.is_committed(again.batch(1))
    assert seen(broker) == rows(0, 1)


@contextmanager
def dying_after(requests: int) -> Iterator[None]:
    """Let the driver die when brokers have carried out that many requests for an epoch of its id, or its end."""
    whole, left = CoordinatorQuestions.answer, [requests]

    def answer(
        self: CoordinatorQuestions, request: TransactionRequest[AnswerT], timeout_ms: float | None = None
    ) -> AnswerT:
        answered = whole(self, request, timeout_ms)
        if isinstance(request, InitProducerId | EndTransaction) and request.coordinator.key == f"{PREFIX}-driver":
            left[0] -= 1
            if not left[0]:
                raise Crash
        return answered

    with patch.object(CoordinatorQuestions, "answer", answer):
        yield


def died_in_a_start(query: Query, after: int) -> bool:
    """False: the start was over before."""
    try:
        with dying_after(after):
            query.begin()
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after", [*range(1, 5), *range(AT_THE_END - 4, REQUESTS_OF_A_START)])
def test_a_driver_may_die_at_each_request_in_which_its_id_gets_another_producer_id(
    broker: EmbeddedBroker, after: int
) -> None:
    """Who has decided the batch is unknown only from the first epoch under the next producer id to the record under
    it."""
    query = Query(broker)
    query.run(0)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", AT_THE_END + 1)
    driver = broker.cluster.coordinator.transactions["p-driver"]
    producer_id = driver.producer_id
    has_died = died_in_a_start(query.again(), after)
    is_unknown = driver.producer_id != producer_id and not of_the_driver(broker)
    decision_log._progress.clear()
    last = query.again(name="driver-3")
    start = last.begin()
    assert start.is_committed(query.batch(1))
    with pytest.raises(ExactlyOnceError, match="cannot be seen who has written") if is_unknown else nullcontext():
        start.check_passed_over(query.batch(1), BOTH_TASKS, tolerant=False)
    last.run(2)
    assert seen(broker) == rows(0, 1, 2)
    assert not open_ids(broker)
    assert has_died or after > REQUESTS_OF_A_START - 3
    assert is_unknown == (after == AT_THE_END + (8 if broker.cluster.coordinator.version == 1 else 7))


def of_the_driver(broker: EmbeddedBroker) -> bool:
    """Has the log an entry by the producer id that the driver has now?"""
    with transactions(broker) as held:
        held.look()
        decision_log._progress.clear()
        return not held.entry().unproven


def test_starts_that_fail_again_and_again_use_up_no_epochs_that_are_needed(broker: EmbeddedBroker) -> None:
    """A commit is lost, and a supervisor starts the query until a person gives it up."""
    query = Query(broker)
    start = query.begin()
    written = query.write_both(start, 1)
    with dying("commit"):
        query.commit(start, 1, written)
    with client_of(broker) as client:
        client.init_producer_id(written[0].transactional_id, 60_000)
    driver = broker.cluster.coordinator.transactions["p-driver"]
    use_up_epochs(broker, "p-driver", AT_THE_END + 5)
    producer_id = driver.producer_id
    for number in range(10):
        with pytest.raises(CommitLostError):
            query.again(name=f"again-{number}").begin()
    assert driver.producer_id != producer_id
    finished = operations.give_up(options(broker), PREFIX, LOG)
    assert finished is not None
    assert list(finished.lost) == [written[0].transactional_id]
    query.again(name="last").run(2)


@pytest.mark.parametrize("left", range(AT_THE_END - 1, AT_THE_END + 9))
def test_an_abort_that_is_fenced_after_its_claim_goes_on_also_where_its_epochs_are_used_up(
    broker: EmbeddedBroker, left: int
) -> None:
    query = Query(broker)
    query.run(0)
    start = query.begin()
    query.write_both(start, 1)
    use_up_epochs(broker, "p-driver", left)
    whole, fenced = QueryTransactions.renew, list[bool]()

    def renew(held: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        if not fenced and held.entry().generation > start.entry.generation:
            fenced.append(True)
            with transactions(broker) as other:  # another start gets its epochs, and dies
                for _ in range(2):
                    other._granted(expected_of(other.look()), (60_000,))
        return whole(held, driver, granted_ms)

    with patch.object(QueryTransactions, "renew", renew):
        assert query.abort(start, 1)
    assert fenced
    assert not open_ids(broker)


def test_where_brokers_grant_less_than_before_the_next_producer_id_is_asked_for_with_what_they_grant(
    broker: EmbeddedBroker,
) -> None:
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", AT_THE_END + 1)
    broker.cluster.coordinator.timeout_ms_max = 10_000
    again = query.again()
    again.run(1)
    assert seen(broker) == rows(0, 1)
    assert again.begin().entry.timeout_ms == 10_000


@contextmanager
def few_epochs(end: int, more: int) -> Iterator[list[str]]:
    """Of a producer id: who gets this one or one of those after it goes on under the next producer id. What is yielded
    has the prefixes of those that did."""
    whole, moved = QueryTransactions._under_next_id, list[str]()

    def under_next_id(held: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        moved.append(held.prefix)
        return whole(held, driver, granted_ms)

    with ExitStack() as patches:
        for module in (query_transactions, driver_module):
            patches.enter_context(patch.object(module, "EPOCHS_END", end))
        patches.enter_context(patch.object(decision_log, "_LATE_EPOCH", end - 1))
        patches.enter_context(patch.object(transactions_of_broker, "EPOCH_MAX", end + more))
        patches.enter_context(patch.object(QueryTransactions, "_under_next_id", under_next_id))
        yield moved


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_OF_A_TEST))
def test_where_epochs_are_used_up_again_and_again_each_row_is_seen_once(first: int) -> None:
    """The runs of the explorer, with two drivers and what may happen to them."""
    moved = 0
    for seed in range(first, first + SEEDS_OF_A_TEST):
        with few_epochs(2 + seed % 8, 10 + seed % 14) as prefixes:
            explore(seed)
        moved += bool(prefixes)
    assert moved, "no run comes to the end of its epochs"
