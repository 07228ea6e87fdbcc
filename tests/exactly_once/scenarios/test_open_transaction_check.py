"""Before it decides, a driver makes sure that each transaction is open still: after that, one that is not is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.entries import EntryState
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import Query, client_of, seen
from tests.exactly_once.embedded_query import broker as broker

Happens = Callable[[EmbeddedBroker, BatchStart], None]


def is_aborted(broker: EmbeddedBroker, start: BatchStart) -> None:
    broker.cluster.coordinator.abort_timed_out(1e12)


def is_forgotten(broker: EmbeddedBroker, start: BatchStart) -> None:
    del broker.cluster.coordinator.transactions[start.task_id(1, 0)]


def has_another_epoch(broker: EmbeddedBroker, start: BatchStart) -> None:
    with client_of(broker) as client:
        init_producer_id(client, start.task_id(1, 0), 60_000)


WORDS: dict[Happens, str] = {
    is_aborted: "p-1-1-0: CompleteAbort, epoch",
    is_forgotten: "p-1-1-0: the brokers do not know it",
    has_another_epoch: "p-1-1-0: Empty, epoch",
}


def commit_after(broker: EmbeddedBroker, what: Happens) -> tuple[Query, BatchStart]:
    query = Query(broker)
    start = query.begin()
    written = query.write_both(start, 0)
    what(broker, start)
    with pytest.raises(ExactlyOnceError, match=WORDS[what]):
        query.commit(start, 0, written)
    return query, start


@pytest.mark.parametrize("what", WORDS)
def test_does_not_decide_batch_when_a_transaction(broker: EmbeddedBroker, what: Happens) -> None:
    query, start = commit_after(broker, what)
    assert query.abort(start, 0)
    assert query.begin().entry.state is EntryState.OPEN
    assert seen(broker) == []


def test_error_lists_each_cause_of_closed_transactions_with_remedy(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    start = query.begin()
    written = query.write_both(start, 0)
    is_aborted(broker, start)
    with pytest.raises(ExactlyOnceError) as refused:
        query.commit(start, 0, written)
    causes = str(refused.value).split("causes and remedies:\n")[1].splitlines()
    assert [line[:2] for line in causes] == ["- ", "- ", "- "]
    assert "the transaction timeout (900 s) has passed. Make batches smaller" in causes[0]
    assert all("tart again." in line for line in causes)


@pytest.mark.parametrize("what", WORDS)
def test_batch_is_decided_and_lost_if_transactions_are_not_checked(
    broker: EmbeddedBroker, what: Happens, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.skip_open_transaction_check(monkeypatch)
    with pytest.raises((AssertionError, CommitLostError)):
        commit_after(broker, what)
    with pytest.raises(CommitLostError):
        Query(broker).again().begin()
