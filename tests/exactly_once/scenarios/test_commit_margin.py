"""A driver decides only with enough of the transactions' timeout left: what it decided later would be lost."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.commit_margin import commit_margin_ms, decision_timeout_ms
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.exactly_once.timeout_marks import claimed_timeout_ms
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import Query, open_ids, rows, seen
from tests.exactly_once.cases import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def test_a_batch_is_not_decided_when_too_little_of_its_timeout_is_left(query: Query) -> None:
    """Decided with a tenth of a second left, a part of it would be lost for good."""
    query.timeout_ms = 60_000
    start = query.begin()
    written = query.write_both(start, 0)
    transaction = query.broker.cluster.coordinator.transactions[start.task_id(1, 0)]
    transaction.start_wall_ms -= 51_000
    with pytest.raises(ExactlyOnceError, match=r"of the 60 s .* (8\.\d|9\.0) s were left for p-1-1-0"):
        query.commit(start, 0, written)
    assert query.abort(start, 0)
    assert (seen(query.broker), open_ids(query.broker)) == ([], [])
    start = query.begin()
    written = query.write_both(start, 0)
    query.broker.cluster.coordinator.transactions[start.task_id(1, 0)].start_wall_ms -= 30_000
    query.commit(start, 0, written)
    assert seen(query.broker) == rows(0)


@pytest.mark.parametrize("offset_ms", [50_000, -50_000], ids=["ahead", "behind"])
def test_driver_whose_clock_is_ahead_does_not_decide_and_one_that_is_behind_decides_too_late(
    query: Query, offset_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the 60 s of the transaction are 60 s left for the first, and 5 s for the second."""
    query.timeout_ms = 60_000
    start = query.begin()
    written = query.write_both(start, 0)
    wall_ms = BlockingClient.wall_ms
    monkeypatch.setattr(BlockingClient, "wall_ms", lambda client: wall_ms(client) + offset_ms)
    if offset_ms > 0:
        with pytest.raises(ExactlyOnceError, match="clocks of this machine and of the brokers"):
            query.commit(start, 0, written)
        assert seen(query.broker) == []
    else:
        query.broker.cluster.coordinator.transactions[start.task_id(1, 0)].start_wall_ms -= 55_000
        query.commit(start, 0, written)
        assert seen(query.broker) == rows(0)


def test_of_a_short_timeout_a_quarter_must_be_left(query: Query) -> None:
    query.timeout_ms = 8_000
    start = query.begin()
    written = query.write_both(start, 0)
    query.broker.cluster.coordinator.transactions[start.task_id(0, 0)].start_wall_ms -= 6_500
    with pytest.raises(ExactlyOnceError, match="Make batches smaller, or let transactions last longer"):
        query.commit(start, 0, written)


@pytest.mark.parametrize("after", ["the record is written", "the look, before the clock is read"])
def test_time_that_passes_between_the_look_and_the_decision_is_noticed(
    query: Query, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stands still, or a log that elects a leader."""
    query.timeout_ms = 60_000
    start = query.begin()
    written = query.write_both(start, 0)
    at = "wait" if after == "the record is written" else "begin_write"
    owner: type = LogTransaction if at == "wait" else QueryTransactions
    whole = getattr(owner, at)

    def then_time_passes(*arguments: Any) -> Any:
        found = whole(*arguments)
        wall_ms = BlockingClient.wall_ms
        monkeypatch.setattr(BlockingClient, "wall_ms", lambda client: wall_ms(client) + 50_000)
        return found

    monkeypatch.setattr(owner, at, then_time_passes)
    with pytest.raises(ExactlyOnceError, match="too little to commit it safely"):
        query.commit(start, 0, written)
    monkeypatch.undo()
    assert query.abort(start, 0)
    assert open_ids(query.broker) == []
    query.run(0)
    assert seen(query.broker) == rows(0)


def timed_out_before_its_commit(
    query: Query, start: BatchStart, monkeypatch: pytest.MonkeyPatch, *, all_of_it: bool
) -> None:
    """Let the driver stand still before its decision's commit, until brokers have ended the decision; or all."""
    coordinator, whole = query.broker.cluster.coordinator, LogTransaction.commit

    def stands_still(writing: LogTransaction, *arguments: Any) -> WriterState:
        monkeypatch.undo()
        with query.broker.cluster.lock:
            now = max(each.start_ms for each in coordinator.transactions.values())
            assert coordinator.abort_timed_out(now + decision_timeout_ms(start.entry.timeout_ms)) == [start.driver_id]
            if all_of_it:
                coordinator.abort_timed_out(1e12)
        return whole(writing, *arguments)

    monkeypatch.setattr(LogTransaction, "commit", stands_still)


def test_a_driver_that_stood_still_between_its_last_look_and_the_decision_has_decided_nothing(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own transaction has timed out before those of its tasks: they are aborted here as late as brokers may be."""
    query.run(0)
    start = query.begin()
    written = query.write_both(start, 1)
    timed_out_before_its_commit(query, start, monkeypatch, all_of_it=True)
    with pytest.raises(ExactlyOnceError, match="are not open any more"):
        query.commit(start, 1, written)
    query.again().run(1)
    assert seen(query.broker) == rows(0, 1)


def test_a_driver_whose_decision_alone_has_timed_out_decides_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other driver has claimed the prefix, and its tasks' transactions have time left."""
    query.run(0)
    start = query.begin()
    written = query.write_both(start, 1)
    timed_out_before_its_commit(query, start, monkeypatch, all_of_it=False)
    query.commit(start, 1, written)
    assert seen(query.broker) == rows(0, 1)
    query.run(2)
    assert seen(query.broker) == rows(0, 1, 2)


def test_what_a_driver_does_not_decide_anew_is_aborted(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has claimed the prefix again meanwhile, so the log does not say any more what it said at the start."""
    query.run(0)
    start = query.begin()
    written = query.write_both(start, 1)
    timed_out_before_its_commit(query, start, monkeypatch, all_of_it=False)
    looks = patch.object(Driver, "_find_commit_error", side_effect=[None, ExactlyOnceError("too late")])
    with looks, pytest.raises(ExactlyOnceError, match="too late"):
        query.commit(start, 1, written)
    assert query.abort(start, 1)
    assert (seen(query.broker), open_ids(query.broker)) == (rows(0), [])
    query.run(1)
    assert seen(query.broker) == rows(0, 1)


def test_a_decision_whose_commit_has_no_answer_is_not_asked_for_longer_than_the_margin_allows(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.timeout_ms = 12_000
    start = query.begin()
    written = query.write_both(start, 0)
    query.broker.control.when(api=ApiKey.END_TXN, times=None).fail(error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    with pytest.raises(ExactlyOnceError, match=r"It is not known whether batch 0 .* timed out after 1000 ms"):
        query.commit(start, 0, written)
    query.broker.control.clear()
    query.again().run(0)
    assert seen(query.broker) == rows(0)


@pytest.mark.parametrize("granted_ms", [1_000, 5_000, 60_000, 900_000, 86_400_000])
def test_the_drivers_own_transaction_ends_within_the_margin_of_the_tasks(granted_ms: int) -> None:
    assert claimed_timeout_ms(granted_ms) <= max(999, commit_margin_ms(granted_ms) / 3)
