"""Changes of the cluster's transaction version while a query runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError
from spark_kafka_sink.exactly_once import clients
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.decision_log import DecisionLog
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.late_attempts import raise_if_late
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import COMPLETE_COMMIT, TransactionDescription
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.exactly_once.embedded_query import TOPIC, Query, connect_client, list_open_ids, read_values, rows


def set_version(broker: EmbeddedBroker, version: int) -> None:
    """Set the transaction version, as `kafka-features.sh` does. Only new connections learn of it."""
    cluster = broker.cluster
    cluster.coordinator.version = version
    object.__setattr__(cluster.config, "transaction_version", version)


def reconnect() -> None:
    """Close the connections that the driver has kept."""
    clients.IDLE_DRIVER_CLIENTS.close()


@pytest.mark.parametrize("versions", [(1, 1, 2, 2), (2, 2, 1, 1), (1, 2, 1, 2)])
def test_next_connection_detects_version_change_between_batches(versions: tuple[int, ...]) -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=versions[0]) as broker:
        query = Query(broker)
        for number, version in enumerate(versions):
            set_version(broker, version)
            reconnect()
            query.run(number)
        assert read_values(broker) == rows(*range(len(versions)))
        assert list_open_ids(broker) == []


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 2), (2, 1)])
def test_rejects_late_attempt_of_first_batch_after_version_change(versions: tuple[int, int]) -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=versions[0]) as broker:
        query = Query(broker)
        query.run(0)
        query.run(1)
        set_version(broker, versions[1])
        reconnect()
        start = query.begin()
        query.commit(start, 2, query.write_tasks(start, 2))
        with connect_client(broker) as client, pytest.raises(ExactlyOnceError):
            raise_if_late(partial(describe_transactions, client), start)


def begin_third_batch_in_version_2(broker: EmbeddedBroker) -> tuple[Query, BatchStart]:
    """Commit two batches, and begin the third one without a new epoch."""
    query = Query(broker)
    query.run(0)
    query.run(1)
    start = query.begin()
    assert start.driver_id_state == COMPLETE_COMMIT
    return query, start


@pytest.mark.parametrize("is_written_before", [False, True])
def test_downgrade_during_batch_fails_before_decision_without_loss_or_duplicates(*, is_written_before: bool) -> None:
    """If the batch were decided, a late attempt would take it for an open batch and begin a transaction."""
    with embedded_broker(topics={TOPIC: 2}, transaction_version=2) as broker:
        query, start = begin_third_batch_in_version_2(broker)
        prepared = query.write_tasks(start, 2) if is_written_before else []
        set_version(broker, 1)
        reconnect()
        with pytest.raises(
            ExactlyOnceError, match=r"transaction\.version was lowered while the batch was being written"
        ):
            query.commit(start, 2, prepared or query.write_tasks(start, 2))
        assert query.abort(start, 2)
        with connect_client(broker) as client, pytest.raises(ExactlyOnceError):
            raise_if_late(partial(describe_transactions, client), start)
        assert list_open_ids(broker) == []
        query.run(2)
        query.with_new_driver().run(3)
        assert read_values(broker) == rows(0, 1, 2, 3)


def test_downgrade_seen_by_new_log_connection_fails_before_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader of the log may be a broker to which the driver had no connection."""
    with embedded_broker(topics={TOPIC: 2}, transaction_version=2) as broker:
        query, start = begin_third_batch_in_version_2(broker)
        prepared = query.write_tasks(start, 2)
        partition = DecisionLog.partition_for

        def uses_version_1(log: DecisionLog, prefix: str) -> int:
            monkeypatch.setattr(BlockingClient, "transaction_version", 1)
            return partition(log, prefix)

        monkeypatch.setattr(DecisionLog, "partition_for", uses_version_1)
        with pytest.raises(ExactlyOnceError, match=r"transaction\.version was lowered"):
            query.commit(start, 2, prepared)
        assert read_values(broker) == rows(0, 1)


def test_commit_after_downgrade_fails_during_suspended_abort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commit and abort start under the same epoch. The abort gets the next epoch and sees no decision. Then the commit
    continues, and after it the abort.
    """
    with embedded_broker(topics={TOPIC: 2}, transaction_version=2) as broker:
        query, start = begin_third_batch_in_version_2(broker)
        prepared = query.write_tasks(start, 2)
        set_version(broker, 1)
        reconnect()
        uses_version_1, commit_all = QueryTransactions.uses_version_1, Driver._commit_transactions
        abort_task_transactions = QueryTransactions.abort_task_transactions
        suspended_aborts: list[Sequence[TransactionDescription]] = []

        def after_the_abort(commit_arguments: QueryTransactions) -> bool:
            with monkeypatch.context() as patch:
                patch.setattr(
                    QueryTransactions, "abort_task_transactions", lambda query, listed: suspended_aborts.append(listed)
                )
                assert query.abort(start, 2)
            return uses_version_1(commit_arguments)

        def resume_abort(driver: Driver, *commit_arguments: Any, **named: Any) -> None:
            abort_task_transactions(driver._transactions, suspended_aborts.pop())
            commit_all(driver, *commit_arguments, **named)

        monkeypatch.setattr(QueryTransactions, "uses_version_1", after_the_abort)
        monkeypatch.setattr(Driver, "_commit_transactions", resume_abort)
        with pytest.raises(ExactlyOnceError, match="was not committed"):
            query.commit(start, 2, prepared)
        assert len(suspended_aborts) == 1


def test_driver_with_open_connections_continues_after_upgrade() -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=1) as broker:
        query = Query(broker)
        for number, version in enumerate((1, 2, 2)):
            set_version(broker, version)
            query.run(number)
        assert read_values(broker) == rows(0, 1, 2)
        assert list_open_ids(broker) == []


def test_driver_with_open_connections_fails_once_after_downgrade() -> None:
    with embedded_broker(topics={TOPIC: 2}, transaction_version=2) as broker:
        query = Query(broker)
        query.run(0)
        set_version(broker, 1)
        start = query.begin()
        prepared = query.write_tasks(start, 1)
        with pytest.raises(BrokerError, match="TRANSACTION_ABORTABLE"):
            query.commit(start, 1, prepared)
        assert query.abort(start, 1)
        query.with_new_driver().run(1)
        assert read_values(broker) == rows(0, 1)
        assert list_open_ids(broker) == []
