"""The check before a decision: each transaction of the batch must still be open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.entries import EntryState
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import Query, connect_client, read_values
from tests.exactly_once.embedded_query import broker as broker

Event = Callable[[EmbeddedBroker, BatchStart], None]


def abort_all(broker: EmbeddedBroker, start: BatchStart) -> None:
    broker.cluster.coordinator.abort_timed_out_transactions(1e12)


def expire_id(broker: EmbeddedBroker, start: BatchStart) -> None:
    del broker.cluster.coordinator.transactions[start.build_task_id(1, 0)]


def bump_task_epoch(broker: EmbeddedBroker, start: BatchStart) -> None:
    with connect_client(broker) as client:
        init_producer_id(client, start.build_task_id(1, 0), 60_000)


MESSAGES: dict[Event, str] = {
    abort_all: "p-1-1-0: CompleteAbort, epoch",
    expire_id: "p-1-1-0: unknown to the brokers",
    bump_task_epoch: "p-1-1-0: Empty, epoch",
}


def commit_after(broker: EmbeddedBroker, event: Event) -> tuple[Query, BatchStart]:
    query = Query(broker)
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    event(broker, start)
    with pytest.raises(ExactlyOnceError, match=MESSAGES[event]):
        query.commit(start, 0, prepared)
    return query, start


@pytest.mark.parametrize("event", MESSAGES)
def test_does_not_decide_batch_when_a_transaction(broker: EmbeddedBroker, event: Event) -> None:
    query, start = commit_after(broker, event)
    assert query.abort(start, 0)
    assert query.begin().entry.state is EntryState.OPEN
    assert read_values(broker) == []


def test_error_lists_each_cause_of_closed_transactions_with_remedy(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    start = query.begin()
    prepared = query.write_tasks(start, 0)
    abort_all(broker, start)
    with pytest.raises(ExactlyOnceError) as rejected:
        query.commit(start, 0, prepared)
    causes = str(rejected.value).split("causes and remedies:\n")[1].splitlines()
    assert [line[:2] for line in causes] == ["- ", "- ", "- "]
    assert "the transaction timeout (900 s) passed between a task's first row and the end" in causes[0]
    assert all("tart again." in line for line in causes)


@pytest.mark.parametrize("event", MESSAGES)
def test_batch_is_decided_and_lost_if_transactions_are_not_checked(
    broker: EmbeddedBroker, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.skip_open_transaction_check(monkeypatch)
    with pytest.raises((AssertionError, CommitLostError)):
        commit_after(broker, event)
    with pytest.raises(CommitLostError):
        Query(broker).with_new_driver().begin()
