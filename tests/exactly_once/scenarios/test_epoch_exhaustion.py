"""Hand-over to the next driver id when the epochs of the current one are exhausted, at any step of a batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.broker import transaction_coordinator
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError, ProducerFencedError
from spark_kafka_sink.exactly_once import decision_log, driver_ids, operations, query_transactions
from spark_kafka_sink.exactly_once import driver as driver_module
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH, QueryTransactions
from spark_kafka_sink.exactly_once.transaction_aborts import choose_expected_identity
from spark_kafka_sink.exactly_once.transaction_names import build_driver_id
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.requests.transactions import EndTransaction
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Crash,
    Query,
    client_options,
    connect_client,
    death_before,
    list_open_ids,
    open_query_transactions,
    read_values,
    rows,
    stale_end_offsets,
    use_up_epochs,
    write_entry_as,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import restricted_user as restricted_user
from tests.exactly_once.explorer import explore_seed
from tests.exactly_once.scenarios.test_stale_log_reads import decide_and_die, log_end_offset

EPOCHS_AFTER_HAND_OVER = 32_767 - HAND_OVER_EPOCH
REMAINING_EPOCHS = (16, *range(EPOCHS_AFTER_HAND_OVER - 1, EPOCHS_AFTER_HAND_OVER + 8))
"""Numbers of remaining epochs, so that they run out at each step of a batch and of a start."""
SEEDS_PER_TEST = 20
SEEDS = 2_000 if os.environ.get("SOAK") else 20
REQUESTS_PER_START = 8
"""Minimum number of requests that change the driver's ids in a start that hands over."""


@pytest.fixture(params=REMAINING_EPOCHS)
def query(broker: EmbeddedBroker, restricted_user: None, request: pytest.FixtureRequest) -> Query:
    """Return a query whose driver has written batch 0 and has few epochs left."""
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", request.param)
    return query


def current_driver_number(broker: EmbeddedBroker) -> int:
    """Return the number of the driver id that a new process finds."""
    decision_log._partition_cache.clear()
    driver_ids._remembered_numbers.clear()
    with open_query_transactions(broker) as transactions:
        return transactions.read_current_entry(transactions.describe_driver_id())[1].driver_number


def test_continues_under_next_driver_id_when_epochs_are_exhausted(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(broker)
    query.run(0)
    for number in range(1, 9):
        if number in (2, 5):
            use_up_epochs(broker, build_driver_id(PREFIX, current_driver_number(broker)), EPOCHS_AFTER_HAND_OVER + 2)
        query.run(number)
    assert current_driver_number(broker) == 3
    assert read_values(broker) == rows(*range(9))
    assert query.with_new_driver().begin().is_decided(query.batch(8))
    assert "is ignored" not in caplog.text


def test_driver_id_without_records_does_not_hand_over(broker: EmbeddedBroker) -> None:
    with open_query_transactions(broker) as transactions:
        transactions.decision_log.create_if_missing()
        transactions.fence(transactions.describe_driver_id())
        use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER)
        transactions.fence(transactions.describe_driver_id())
    assert log_end_offset(Query(broker)) == 0


def test_decision_stays_proven_if_epochs_run_out_at_any_step(broker: EmbeddedBroker, query: Query) -> None:
    query.run(1)
    for name in ("driver-1", "driver-1", "driver-2"):  # starts without a decision, such as those of empty batches
        decision_log._partition_cache.clear()
        query.with_new_driver(name=name).begin().check_skipped_batch(
            query.batch(1), BOTH_TASKS, tolerate_mismatch=False
        )


def test_begin_returns_newest_epoch_if_epochs_run_out_at_any_step(broker: EmbeddedBroker, query: Query) -> None:
    """Otherwise its tasks would take themselves for late attempts."""
    for name in ("driver-1", "driver-2", "driver-3"):
        start = query.with_new_driver(name=name).begin()
        with connect_client(broker) as client:
            assert start.is_waiting_for_tasks(describe_transactions(client, [start.driver_id])[start.driver_id])


def test_abort_succeeds_if_epochs_run_out_at_any_step(broker: EmbeddedBroker, query: Query) -> None:
    for name in ("driver-2", "driver-3"):
        newer = query.with_new_driver(name=name)
        start = newer.begin()
        newer.write_tasks(start, 1)
        decision_log._partition_cache.clear()
        assert newer.abort(start, 1)
        assert not list_open_ids(broker)
    query.with_new_driver(name="driver-4").run(1)
    assert read_values(broker) == rows(0, 1)


def test_foreign_id_with_exhausted_epochs_decides_nothing(broker: EmbeddedBroker, query: Query) -> None:
    """Otherwise the open transactions of a dead driver would be committed, and the batch would be written twice."""
    query.run(1)
    prepared = query.write_tasks(query.begin(), 2)  # dies here
    write_entry_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    forged = Entry(PREFIX, generation=9).with_decision(Batch(query.query, 0), BOTH_TASKS, tuple(prepared))
    write_entry_as(broker, "evil", "p", encode_entry(forged))
    decision_log._partition_cache.clear()
    query.with_new_driver().run(2)
    assert read_values(broker) == rows(0, 1, 2)


@pytest.mark.parametrize("remaining", REMAINING_EPOCHS)
def test_foreign_id_with_exhausted_epochs_is_not_mistaken_for_the_driver(
    broker: EmbeddedBroker, restricted_user: None, remaining: int
) -> None:
    query = Query(broker)
    query.run(0)
    with open_query_transactions(broker) as transactions:
        description = transactions.describe_driver_id()
        assert description is not None
        old = transactions.read_entry()
    driver = broker.cluster.coordinator.transactions["p-driver"]
    producer_id = driver.producer_id
    use_up_epochs(broker, "p-driver", remaining)
    query.run(1)
    assert driver.producer_id == producer_id
    has_next_id = "p-driver-2" in broker.cluster.coordinator.transactions
    assert has_next_id or remaining >= EPOCHS_AFTER_HAND_OVER, "not each step of a batch is tried"
    assert not has_next_id or remaining < REMAINING_EPOCHS[-1], "not each step of a batch is tried"
    write_entry_as(broker, "evil", "p", None)
    use_up_epochs(broker, "evil")
    write_entry_as(broker, "evil", "p", encode_entry(old))
    decision_log._partition_cache.clear()
    start = query.begin()
    assert start.is_decided(query.batch(1))
    query.run(2)
    query.run(3)
    assert read_values(broker) == rows(0, 1, 2, 3)


def test_rejected_batch_can_be_aborted_if_epochs_run_out_at_any_step(broker: EmbeddedBroker, query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    with connect_client(broker) as client:
        init_producer_id(client, prepared[0].transactional_id, 60_000)
    with pytest.raises(ExactlyOnceError, match="are no longer open"):
        query.commit(start, 1, prepared)
    assert query.abort(start, 1)
    assert not list_open_ids(broker)


@pytest.mark.parametrize("at", ["commit", "done"])
def test_decision_of_dead_driver_stays_proven_if_epochs_run_out_at_any_step(query: Query, at: str) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    with death_before(at):
        query.commit(start, 1, prepared)
    successor = query.with_new_driver().begin()
    assert successor.is_decided(query.batch(1))
    successor.check_skipped_batch(query.batch(1), BOTH_TASKS, tolerate_mismatch=False)


def test_driver_fenced_without_successor_records_commit(broker: EmbeddedBroker, query: Query) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    original = Driver._commit_transactions

    def commit_all(driver: Driver, *arguments: Any, **named: Any) -> None:
        original(driver, *arguments, **named)
        # Another start gets its epoch, and dies.
        with open_query_transactions(broker) as other, suppress(ProducerFencedError):
            other.fence(other.describe_driver_id())

    with patch.object(Driver, "_commit_transactions", commit_all):
        query.commit(start, 1, prepared)
    successor = query.with_new_driver().begin()
    successor.check_skipped_batch(query.batch(1), BOTH_TASKS, tolerate_mismatch=False)


@pytest.mark.parametrize("lookups", range(1, 5))
@pytest.mark.parametrize("remaining", REMAINING_EPOCHS)
def test_stale_read_overwrites_no_decision_if_epochs_run_out_at_any_step(
    broker: EmbeddedBroker, remaining: int, lookups: int
) -> None:
    query = Query(broker)
    query.run(0)
    stale_end = log_end_offset(query)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", remaining)
    successor = query.with_new_driver()
    with stale_end_offsets(stale_end, lookups):
        start = successor.begin()
    assert start.is_decided(successor.batch(1))
    assert read_values(broker) == rows(0, 1)


@contextmanager
def death_after_requests(requests: int) -> Iterator[None]:
    """Let the driver die after this number of successful InitProducerId or EndTxn requests of its driver ids."""
    original, remaining = BlockingClient.finish, [requests]

    def finish(client: BlockingClient, call: Call[Any], timeout_ms: float | None = None) -> Any:
        responses = original(client, call, timeout_ms)
        request = next(iter(call._requests.values()), None)
        if isinstance(request, InitProducerId | EndTransaction) and f"{PREFIX}-driver" in request.coordinator.key:
            remaining[0] -= 1
            if not remaining[0]:
                raise Crash
        return responses

    with patch.object(BlockingClient, "finish", finish):
        yield


def dies_in_start(query: Query, after: int) -> bool:
    """Return whether the driver died before its start was complete."""
    try:
        with death_after_requests(after):
            query.begin()
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after", range(1, REQUESTS_PER_START + 3))
def test_next_start_continues_after_death_at_each_request_of_hand_over(broker: EmbeddedBroker, after: int) -> None:
    query = Query(broker)
    query.run(0)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    has_died = dies_in_start(query.with_new_driver(), after)
    decision_log._partition_cache.clear()
    driver_ids._remembered_numbers.clear()
    last = query.with_new_driver(name="driver-3")
    start = last.begin()
    assert start.is_decided(query.batch(1))
    start.check_skipped_batch(query.batch(1), BOTH_TASKS, tolerate_mismatch=False)
    last.run(2)
    assert read_values(broker) == rows(0, 1, 2)
    assert not list_open_ids(broker)
    assert current_driver_number(broker) == 2
    assert has_died or after > REQUESTS_PER_START


def test_repeatedly_failing_starts_leave_enough_epochs(broker: EmbeddedBroker) -> None:
    """A commit was lost, and a supervisor restarts the query until an operator gives the batch up."""
    query = Query(broker)
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    with death_before("commit"):
        query.commit(start, 1, prepared)
    with connect_client(broker) as client:
        init_producer_id(client, prepared[0].transactional_id, 60_000)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 5)
    for number in range(10):
        with pytest.raises(CommitLostError):
            query.with_new_driver(name=f"again-{number}").begin()
    assert current_driver_number(broker) == 2
    finished = operations.give_up(client_options(broker), PREFIX, LOG)
    assert finished is not None
    assert list(finished.lost_transaction_errors) == [prepared[0].transactional_id]
    query.with_new_driver(name="last").run(2)


@pytest.mark.parametrize("remaining", range(EPOCHS_AFTER_HAND_OVER - 1, EPOCHS_AFTER_HAND_OVER + 9))
def test_abort_fenced_after_its_claim_continues_with_exhausted_epochs(broker: EmbeddedBroker, remaining: int) -> None:
    query = Query(broker)
    query.run(0)
    start = query.begin()
    query.write_tasks(start, 1)
    use_up_epochs(broker, "p-driver", remaining)
    original, fenced = QueryTransactions.bump_epoch, list[bool]()

    def bump_epoch(transactions: QueryTransactions, driver: ProducerIdAndEpoch, granted_ms: int) -> ProducerIdAndEpoch:
        if not fenced and transactions.read_entry().generation > start.entry.generation:
            fenced.append(True)
            with open_query_transactions(broker) as other:  # another start gets its epochs, and dies
                for _ in range(2):
                    other._request_epoch(choose_expected_identity(other.describe_driver_id()), 5_000)
        return original(transactions, driver, granted_ms)

    with patch.object(QueryTransactions, "bump_epoch", bump_epoch):
        assert query.abort(start, 1)
    assert fenced
    assert not list_open_ids(broker)


def test_next_driver_id_requests_currently_granted_timeout(
    broker: EmbeddedBroker,
) -> None:
    query = Query(broker)
    query.run(0)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    broker.cluster.coordinator.max_timeout_ms = 10_000
    successor = query.with_new_driver()
    successor.run(1)
    assert read_values(broker) == rows(0, 1)
    assert successor.begin().entry.timeout_ms == 10_000


@contextmanager
def limit_epochs(end: int, more: int) -> Iterator[set[str]]:
    """Let drivers hand over from the epoch `end` on, and let brokers grant `more` further epochs. Yield a set to which
    the prefixes that handed over are added.
    """
    original, handed_over_runs = QueryTransactions._hand_over, set[str]()

    def hand_over(transactions: QueryTransactions, driver: ProducerIdAndEpoch) -> None:
        handed_over_runs.add(transactions.prefix)
        original(transactions, driver)

    with ExitStack() as patches:
        for module in (query_transactions, driver_module):
            patches.enter_context(patch.object(module, "HAND_OVER_EPOCH", end))
        patches.enter_context(patch.object(transaction_coordinator, "MAX_EPOCH", end + more))
        patches.enter_context(patch.object(QueryTransactions, "_hand_over", hand_over))
        yield handed_over_runs


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_rows_are_read_exactly_once_while_epochs_are_exhausted_repeatedly(first: int) -> None:
    """Runs of the explorer in which each driver id has few epochs."""
    handed_over_runs = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        with limit_epochs(2 + seed % 8, 500) as prefixes:
            explore_seed(seed)
        handed_over_runs += bool(prefixes)
    assert handed_over_runs, "no run comes to the end of its epochs"
