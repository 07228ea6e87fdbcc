"""Log reads from a broker that is no longer the leader: the log appears to end too early."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log, operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.log_topic import PARTITION_COUNT, partition_for
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.requests.transaction_admin import end_transactions
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import (
    LOG,
    PREFIX,
    Query,
    compacted_log,
    connect_client,
    death_after_claim,
    death_before,
    list_open_ids,
    read_values,
    rows,
    stale_end_offsets,
)
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.sampling import mark_always_run

STALE_LOOKUPS = pytest.mark.parametrize("lookups", mark_always_run([1, 2, 3, 4], {2}))


@pytest.fixture
def query(broker: object) -> Query:
    query = Query(broker)  # type: ignore[arg-type]
    query.run(0)
    return query


def log_end_offset(query: Query) -> int:
    return query.broker.cluster.log(LOG, partition_for(PREFIX, PARTITION_COUNT)).log_end_offset


def decide_and_die(query: Query) -> None:
    """Decide a batch, commit one of its two transactions, and die."""
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    with death_before("commit"):
        query.commit(start, 1, prepared)
    with connect_client(query.broker) as client:
        end_transactions(client, prepared[:1], commit=True)


@STALE_LOOKUPS
def test_start_finds_decision_despite_stale_reads(query: Query, lookups: int) -> None:
    stale_end = log_end_offset(query)
    decide_and_die(query)
    successor = query.with_new_driver()
    with stale_end_offsets(stale_end, lookups):
        start = successor.begin()
    assert start.is_decided(successor.batch(1))
    assert read_values(query.broker) == rows(0, 1)
    successor.run(2)
    assert read_values(query.broker) == rows(0, 1, 2)


def test_next_driver_ignores_invalid_claim_of_dead_driver(query: Query) -> None:
    stale_end = log_end_offset(query)
    decide_and_die(query)
    with stale_end_offsets(stale_end, 2), death_before("bump_epoch"):
        query.with_new_driver().begin()
    last = query.with_new_driver(name="driver-3")
    assert last.begin().is_decided(last.batch(1))
    assert read_values(query.broker) == rows(0, 1)


def test_compaction_keeps_decision_before_invalid_claim(query: Query) -> None:
    """The claim is invalid because its writer had read too little of the log, but it is the newest record."""
    stale_end = log_end_offset(query)
    decide_and_die(query)
    with stale_end_offsets(stale_end, 2), death_after_claim():
        query.with_new_driver().begin()
    last = query.with_new_driver(name="driver-3")
    with compacted_log(query.broker):
        assert last.begin().is_decided(last.batch(1))
        last.run(2)
    assert read_values(query.broker) == rows(0, 1, 2)


def test_compaction_keeps_job_key_before_invalid_claim(query: Query) -> None:
    job = Batch(key="today", scope="t")
    stale_end = log_end_offset(query)
    start = query.begin()
    query.write_and_commit(start, job)
    with stale_end_offsets(stale_end, 2), death_after_claim():
        query.with_new_driver().begin()
    with compacted_log(query.broker):
        assert query.with_new_driver(name="driver-3").begin().is_decided(job)


def test_compaction_keeps_valid_claim_and_decision_before_it(query: Query) -> None:
    decide_and_die(query)
    newer = query.with_new_driver()
    start = newer.begin()
    prepared = newer.write_tasks(start, 2)
    with compacted_log(query.broker):
        with pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
            query.begin()
        newer.commit(start, 2, prepared)
        with compacted_log(query.broker):
            assert newer.with_new_driver(name="driver-3").begin().is_decided(newer.batch(2))
    assert read_values(query.broker) == rows(0, 1, 2)


def test_next_claim_is_valid_before_and_after_compaction(query: Query) -> None:
    """A process that has read the removed claim and one that reads the compacted log then have the same entry."""
    stale_end = log_end_offset(query)
    driver = query.with_new_driver()
    driver.begin()
    driver_cache = dict(decision_log._partition_cache)
    with stale_end_offsets(stale_end, 2), death_after_claim():
        query.with_new_driver(name="driver-3").begin()
    with compacted_log(query.broker):
        decision_log._partition_cache.update(driver_cache)
        start = driver.begin()
        assert newest_entry(query) == start.entry
        decision_log._partition_cache.clear()
        assert newest_entry(query) == start.entry


def test_compaction_keeps_first_claim(query: Query) -> None:
    other = query.with_new_driver(prefix="other", name="other")
    other.begin()
    with compacted_log(query.broker):
        assert other.begin().entry.generation == 2


def newest_entry(query: Query) -> Entry:
    with QueryTransactions(query.client, PREFIX, LOG) as transactions:
        transactions.describe_driver_id()
        return transactions.read_entry()


@STALE_LOOKUPS
def test_manual_abort_with_stale_read_keeps_decision(query: Query, lookups: int) -> None:
    stale_end = log_end_offset(query)
    decide_and_die(query)
    with stale_end_offsets(stale_end, lookups), pytest.raises(ExactlyOnceError):
        operations.abort(query.options, PREFIX, LOG)
    assert len(list_open_ids(query.broker)) == 1
    query.with_new_driver().begin()
    assert read_values(query.broker) == rows(0, 1)


@STALE_LOOKUPS
def test_fenced_older_driver_with_stale_read_decides_nothing(query: Query, lookups: int) -> None:
    start = query.begin()
    prepared = query.write_tasks(start, 1)
    stale_end = log_end_offset(query)
    query.with_new_driver().run(1)
    blind = patch.object(Driver, "_find_commit_error", lambda *_: None)
    with (
        stale_end_offsets(stale_end, lookups),
        blind,
        pytest.raises(ExactlyOnceError, match="a newer driver has taken over"),
    ):
        query.commit(start, 1, prepared)
    assert read_values(query.broker) == rows(0, 1)
    last = query.with_new_driver(name="driver-3")
    assert last.begin().is_decided(last.batch(1))


@STALE_LOOKUPS
def test_next_batch_with_stale_read_detects_newer_driver(query: Query, lookups: int) -> None:
    """The driver was suspended between two batches. The newer driver has written the next batch and died."""
    stale_end = log_end_offset(query)
    query.with_new_driver().run(1)
    with stale_end_offsets(stale_end, lookups), pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
        query.begin()
    assert read_values(query.broker) == rows(0, 1)


def test_stale_read_overwrites_decision_if_invalid_claims_are_accepted(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.accept_invalid_claims(monkeypatch)
    stale_end = log_end_offset(query)
    decide_and_die(query)
    successor = query.with_new_driver()
    with stale_end_offsets(stale_end, 2):
        assert not successor.begin().is_decided(successor.batch(1))


def test_stale_read_misses_newer_driver_if_epochs_are_not_compared(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.ignore_last_entry_epoch(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_next_batch_with_stale_read_detects_newer_driver(query, 2)


def test_fenced_driver_with_stale_read_decides_if_it_does_not_reclaim(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.retry_without_reclaim(monkeypatch)
    with pytest.raises(AssertionError, match="is decided"):
        test_fenced_older_driver_with_stale_read_decides_nothing(query, 2)
