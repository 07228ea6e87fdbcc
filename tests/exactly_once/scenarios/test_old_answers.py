"""A broker that was suspended answers for a moment as if it still led the log: its log ends too soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once import decision_log, operations
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.log_topic import PARTITIONS, partition_of
from tests.exactly_once import rules
from tests.exactly_once.cases import LOG, PREFIX, Query, client_of, dying, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker

TIMES = pytest.mark.parametrize("times", [1, 2, 3, 4])


@pytest.fixture
def query(broker: object) -> Query:
    query = Query(broker)  # type: ignore[arg-type]
    query.run(0)
    return query


def end_of(query: Query) -> int:
    return query.broker.cluster.log(LOG, partition_of(PREFIX, PARTITIONS)).next_offset


@contextmanager
def ends_at(old_end: int, times: int) -> Iterator[None]:
    """So often the log seems to end there, to a process that knows nothing of it yet."""
    whole, left = DecisionLog._end, [times]

    def end(log: DecisionLog, partition: int) -> int:
        left[0] -= 1
        return old_end if left[0] >= 0 else whole(log, partition)

    decision_log._progress.clear()
    with patch.object(DecisionLog, "_end", end):
        yield
    decision_log._progress.clear()


def decide_and_die(query: Query) -> None:
    """One of two transactions is committed, when the driver dies."""
    start = query.begin()
    written = query.write_both(start, 1)
    with dying("commit"):
        query.commit(start, 1, written)
    with client_of(query.broker) as client:
        client.end(written[:1], commit=True)


@TIMES
def test_a_driver_that_reads_too_little_before_it_takes_over_finds_what_was_decided(query: Query, times: int) -> None:
    old_end = end_of(query)
    decide_and_die(query)
    again = query.again()
    with ends_at(old_end, times):
        start = again.begin()
    assert start.is_committed(again.batch(1))
    assert seen(query.broker) == rows(0, 1)
    again.run(2)
    assert seen(query.broker) == rows(0, 1, 2)


def test_a_claim_that_was_made_of_too_little_misleads_no_other_though_its_driver_dies(query: Query) -> None:
    old_end = end_of(query)
    decide_and_die(query)
    with ends_at(old_end, 2), dying("renew"):
        query.again().begin()
    last = query.again(name="driver-3")
    assert last.begin().is_committed(last.batch(1))
    assert seen(query.broker) == rows(0, 1)


@TIMES
def test_a_person_who_aborts_and_reads_too_little_aborts_nothing_that_is_decided(query: Query, times: int) -> None:
    old_end = end_of(query)
    decide_and_die(query)
    with ends_at(old_end, times), pytest.raises(ExactlyOnceError):
        operations.abort(query.delivery.options, PREFIX, LOG)
    assert len(open_ids(query.broker)) == 1
    query.again().begin()
    assert seen(query.broker) == rows(0, 1)


@TIMES
def test_an_older_driver_that_is_fenced_and_reads_too_little_decides_nothing(query: Query, times: int) -> None:
    start = query.begin()
    written = query.write_both(start, 1)
    old_end = end_of(query)
    query.again().run(1)
    blind = patch.object(Driver, "_refusal", lambda *_: None)
    with ends_at(old_end, times), blind, pytest.raises(ExactlyOnceError, match="a newer driver has taken over"):
        query.commit(start, 1, written)
    assert seen(query.broker) == rows(0, 1)
    last = query.again(name="driver-3")
    assert last.begin().is_committed(last.batch(1))


@TIMES
def test_a_driver_that_begins_its_next_batch_and_reads_too_little_passes_over_nothing_of_its_successor(
    query: Query, times: int
) -> None:
    """It stood still between two batches; the other one has written the next one, and died."""
    old_end = end_of(query)
    query.again().run(1)
    with ends_at(old_end, times), pytest.raises(ExactlyOnceError, match="A newer driver has taken over"):
        query.begin()
    assert seen(query.broker) == rows(0, 1)


def test_without_its_rule_a_driver_that_reads_too_little_writes_over_a_decision(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.a_claim_counts_only_after_what_it_has_found(monkeypatch)
    old_end = end_of(query)
    decide_and_die(query)
    again = query.again()
    with ends_at(old_end, 2):
        assert not again.begin().is_committed(again.batch(1))


def test_without_its_rule_a_driver_that_reads_too_little_goes_on_under_the_epoch_of_its_successor(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.a_driver_goes_on_only_under_the_epoch_that_followed_what_it_wrote(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_a_driver_that_begins_its_next_batch_and_reads_too_little_passes_over_nothing_of_its_successor(query, 2)


def test_without_its_rule_a_fenced_driver_that_reads_too_little_decides(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.what_a_fenced_driver_writes_again_is_a_claim(monkeypatch)
    with pytest.raises(AssertionError, match="is decided"):
        test_an_older_driver_that_is_fenced_and_reads_too_little_decides_nothing(query, 2)
