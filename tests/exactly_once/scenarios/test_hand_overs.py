"""Concurrent drivers and operators during a hand-over to the next driver id, and log reads after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError, ExactlyOnceError, ProducerFencedError
from spark_kafka_sink.exactly_once import decision_log, driver_ids, operations
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.entry_json import encode_entry
from spark_kafka_sink.exactly_once.query_transactions import HAND_OVER_EPOCH, QueryTransactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Crash,
    Query,
    client_options,
    compacted_log,
    death_after_claim,
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
from tests.exactly_once.scenarios.test_epoch_exhaustion import EPOCHS_AFTER_HAND_OVER, current_driver_number
from tests.exactly_once.scenarios.test_lost_records import delete_log_records
from tests.exactly_once.scenarios.test_stale_log_reads import STALE_LOOKUPS, decide_and_die, log_end_offset
from tests.exactly_once.script import Script
from tests.exactly_once.simulation import Simulation
from tests.exactly_once.two_driver_simulation import (
    BOTH_VERSIONS,
    add_two_drivers,
    have_tasks_ended,
    is_decided,
    restart_and_check,
    simulate_first_batch,
)

# --- two drivers during a hand-over, each suspended at each of its requests


HAND_OVER_POINTS = range(1, 21)
"""The requests of a start that hands over and of the batch after it."""


def simulate_before_hand_over(version: int) -> Simulation:
    """Return a simulation in which driver-1 has written batch 0 and ended, and few epochs are left."""
    simulation = simulate_first_batch(version)
    driver = simulation.cluster.core.coordinator.transactions["p-driver"]
    driver.epoch, driver.previous_epoch = HAND_OVER_EPOCH, HAND_OVER_EPOCH - 1
    return simulation


def has_handed_over(simulation: Simulation) -> bool:
    return any(entry.driver_number == 2 for entry in simulation.read_entries())


@BOTH_VERSIONS
@pytest.mark.parametrize("point", HAND_OVER_POINTS)
def test_driver_suspended_during_hand_over_duplicates_no_rows(version: int, point: int) -> None:
    simulation = simulate_before_hand_over(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-2", point, until=lambda: script.has_ended("driver-3"))
    script.run()
    assert "driver-3" not in simulation.errors
    assert has_handed_over(simulation)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", HAND_OVER_POINTS)
def test_restart_succeeds_after_death_at_each_request_of_hand_over(version: int, point: int) -> None:
    simulation = simulate_before_hand_over(version)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    script.kill("driver-2", since=lambda: True, point=point)
    script.run()
    restart_and_check(simulation)
    assert has_handed_over(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", HAND_OVER_POINTS)
def test_driver_under_previous_id_decides_nothing_after_hand_over(version: int, point: int) -> None:
    """driver-2 is suspended at each request of its commit, while another start hands over."""
    simulation = simulate_first_batch(version)
    driver = simulation.cluster.core.coordinator.transactions["p-driver"]
    driver.epoch, driver.previous_epoch = HAND_OVER_EPOCH - 6, HAND_OVER_EPOCH - 7
    script = Script(simulation)
    simulation.add_driver("driver-2")
    simulation.add_driver("driver-3", suspended=True)
    script.suspend(
        "driver-2",
        point,
        until=lambda: script.has_ended("driver-3"),
        since=lambda: have_tasks_ended(simulation, "driver-2"),
    )
    script.run()
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize("point", HAND_OVER_POINTS)
def test_suspended_manual_hand_over_keeps_decision(version: int, point: int) -> None:
    simulation = simulate_before_hand_over(version)
    script = Script(simulation)
    simulation.add_operator("operator", suspended=False)
    simulation.add_driver("driver-3")
    script.suspend("operator", point, until=lambda: script.has_ended("driver-3"))
    script.kill("driver-3", since=lambda: is_decided(simulation, 1))
    script.run()
    assert is_decided(simulation, 1)
    restart_and_check(simulation)


@BOTH_VERSIONS
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 3), (3, 1), (2, 5), (5, 2)])
def test_one_of_two_drivers_that_start_concurrently_after_hand_over_continues(
    version: int, first: int, second: int
) -> None:
    simulation = simulate_before_hand_over(version)
    script = Script(simulation)
    simulation.add_driver("driver-2")
    script.kill("driver-2", since=lambda: has_handed_over(simulation))
    script.run()
    script = Script(simulation)
    simulation.add_driver("driver-3")
    simulation.add_driver("driver-4")
    script.alternate("driver-3", "driver-4", first_points=first, second_points=second)
    script.run()
    assert len({"driver-3", "driver-4"} & simulation.errors.keys()) == 1
    restart_and_check(simulation)


# --- reads after a hand-over


def run_past_hand_over(broker: EmbeddedBroker) -> Query:
    """Return a query that has written batches 0 and 1, handed over, and written batch 2 under its second driver id."""
    query = Query(broker)
    query.run(0)
    query.run(1)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    query.run(2)
    assert current_driver_number(broker) == 2
    return query


def expire_ids(broker: EmbeddedBroker, *names: str) -> None:
    """Let brokers forget these ids, as they do after a week without use, and clear what this process has cached."""
    for name in names:
        del broker.cluster.coordinator.transactions[name]
    decision_log._partition_cache.clear()
    driver_ids._remembered_numbers.clear()


def test_continues_under_second_driver_id_after_brokers_forgot_the_first(broker: EmbeddedBroker) -> None:
    query = run_past_hand_over(broker)
    expire_ids(broker, "p-driver")
    start = query.with_new_driver().begin()
    start.check_skipped_batch(query.batch(2), BOTH_TASKS, tolerate_mismatch=False)
    assert start.driver_id == "p-driver-2"
    assert "p-driver" not in broker.cluster.coordinator.transactions


def test_begins_under_first_driver_id_after_brokers_forgot_all(broker: EmbeddedBroker) -> None:
    query = run_past_hand_over(broker)
    expire_ids(broker, "p-driver", "p-driver-2")
    start = query.with_new_driver().begin()
    assert start.driver_id == "p-driver"
    assert start.is_decided(query.batch(2))
    with pytest.raises(ExactlyOnceError, match="is not known who wrote this log entry"):
        start.check_skipped_batch(query.batch(2), BOTH_TASKS, tolerate_mismatch=False)


@pytest.mark.parametrize("forgets", [True, False])
def test_next_start_detects_log_deleted_after_hand_over(broker: EmbeddedBroker, *, forgets: bool) -> None:
    query = run_past_hand_over(broker)
    expire_ids(broker, *(["p-driver"] if forgets else []))
    delete_log_records(broker)
    with pytest.raises(ExactlyOnceError, match="the topic was deleted or emptied"):
        query.with_new_driver().begin()


@pytest.mark.parametrize("number", [2, 3, 7])
def test_does_not_trust_driver_number_in_foreign_record(
    broker: EmbeddedBroker, number: int, restricted_user: None
) -> None:
    query = run_past_hand_over(broker)
    forged = Entry(PREFIX, generation=9, driver_number=number).with_decision(query.batch(8), BOTH_TASKS, ()).as_done()
    write_entry_as(broker, "evil", PREFIX, encode_entry(forged))
    decision_log._partition_cache.clear()
    driver_ids._remembered_numbers.clear()
    start = query.with_new_driver().begin()
    assert start.driver_id == "p-driver-2"
    assert start.is_decided(query.batch(2))


def test_unreadable_record_under_next_driver_id_is_an_error(
    broker: EmbeddedBroker,
) -> None:
    query = run_past_hand_over(broker)
    write_entry_as(broker, "p-driver-2", PREFIX, b'{"format":99,"newer":true}')
    expire_ids(broker, "p-driver")
    with pytest.raises(DecodeError, match="its format version is 99"):
        query.with_new_driver().begin()


@STALE_LOOKUPS
def test_stale_read_before_hand_over_changes_nothing(broker: EmbeddedBroker, lookups: int) -> None:
    """This also holds if the log is compacted afterwards: its claim under the previous id is the newest one then."""
    query = Query(broker)
    query.run(0)
    stale_end = log_end_offset(query)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    with death_after_claim_under("p-driver-2"):
        query.with_new_driver().begin()
    with (
        stale_end_offsets(stale_end, lookups),
        suppress(ExactlyOnceError),  # if a later read is not stale, the driver gives up before its claim
        death_before("bump_epoch"),
    ):
        query.with_new_driver(name="driver-3").begin()
    with compacted_log(broker):
        assert current_driver_number(broker) == 2
        query.with_new_driver(name="driver-4").run(1)
    assert read_values(broker) == rows(0, 1)


@contextmanager
def death_after_claim_under(transactional_id: str) -> Iterator[None]:
    original = QueryTransactions.claim

    def claim(transactions: QueryTransactions, *arguments: Any, **named: Any) -> ProducerIdAndEpoch:
        renewed = original(transactions, *arguments, **named)
        if transactions.driver_id == transactional_id:
            raise Crash
        return renewed

    with patch.object(QueryTransactions, "claim", claim), pytest.raises(Crash):
        yield


@pytest.mark.parametrize("act", [operations.abort, operations.finish, operations.give_up])
@pytest.mark.parametrize("is_used_up", [True, False])
def test_manual_operation_uses_the_current_driver_id(broker: EmbeddedBroker, act: Any, *, is_used_up: bool) -> None:
    query = run_past_hand_over(broker)
    start = query.begin()
    prepared = query.write_tasks(start, 3)
    if act is not operations.abort:
        with death_before("commit"):
            query.commit(start, 3, prepared)
    if is_used_up:
        use_up_epochs(broker, "p-driver-2", EPOCHS_AFTER_HAND_OVER + 1)
    expire_ids(broker, "p-driver")
    (found,) = operations.list_prefixes(client_options(broker), LOG)
    assert found.entry is not None
    assert found.entry.driver_number == 2
    assert act(client_options(broker), PREFIX, LOG)
    assert not list_open_ids(broker)
    assert current_driver_number(broker) == (3 if is_used_up else 2)
    last = query.with_new_driver(name="driver-9")
    last.run(3 if act is operations.abort else 4)
    assert read_values(broker) == rows(0, 1, 2, 3, *(() if act is operations.abort else (4,)))


# --- rows are lost or duplicated if a rule is removed


def test_deleted_log_is_undetected_if_driver_ids_are_not_listed(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = run_past_hand_over(broker)
    expire_ids(broker, "p-driver")
    delete_log_records(broker)
    rules.skip_listing_driver_ids(monkeypatch)
    assert not query.with_new_driver().begin().is_decided(query.batch(2)), "it would be written twice"


def test_hand_over_after_stale_read_replaces_decision_without_claim(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker)
    query.run(0)
    stale_end = log_end_offset(query)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    rules.hand_over_without_claim(monkeypatch)
    with stale_end_offsets(stale_end, 3):
        start = query.with_new_driver().begin()
    assert start.driver_id == "p-driver-2"
    assert not start.is_decided(query.batch(1)), "it would be written twice"


def test_compaction_loses_hand_over_written_with_key_of_claims(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.hand_over_by_claim(monkeypatch)
    query = Query(broker)
    query.run(0)
    stale_end = log_end_offset(query)
    decide_and_die(query)
    use_up_epochs(broker, "p-driver", EPOCHS_AFTER_HAND_OVER + 1)
    with death_after_claim_under("p-driver-2"):
        query.with_new_driver().begin()
    driver_ids._remembered_numbers.clear()
    with stale_end_offsets(stale_end, 2), death_after_claim():
        query.with_new_driver(name="driver-3").begin()
    with compacted_log(broker):
        assert current_driver_number(broker) == 1, "a driver under each of the two ids would decide"


@BOTH_VERSIONS
@pytest.mark.parametrize("point", range(2, 10, 2))
@pytest.mark.parametrize("other", range(8, 20, 3))
def test_start_continues_under_next_id_after_dead_driver_handed_over(version: int, point: int, other: int) -> None:
    """driver-2 is suspended during its start until driver-3 has handed over and died.

    `other`: points of driver-3, from before its claim until after its hand-over.
    """
    simulation = simulate_before_hand_over(version)
    script = add_two_drivers(simulation)
    script.suspend("driver-3", other, until=lambda: script.count_points("driver-2") >= point)
    script.suspend("driver-2", 0, until=lambda: script.count_points("driver-3") >= other)
    script.suspend("driver-2", point, until=lambda: script.has_ended("driver-3"))
    script.kill("driver-3", since=lambda: has_handed_over(simulation))
    script.run()
    assert "driver-2" not in simulation.errors
    restart_and_check(simulation)


def test_rejects_fence_of_previous_id_after_hand_over_and_names_next_id(
    broker: EmbeddedBroker,
) -> None:
    query = run_past_hand_over(broker)
    with open_query_transactions(broker) as late:
        late.driver_number, end = 1, log_end_offset(query)
        with pytest.raises(ProducerFencedError, match="p-driver has no epochs left; p-driver-2 is the next one"):
            late.fence(late.describe_driver_id())
    assert log_end_offset(query) == end, "nothing is written under the former id"
    query.with_new_driver().begin().check_skipped_batch(query.batch(2), BOTH_TASKS, tolerate_mismatch=False)
