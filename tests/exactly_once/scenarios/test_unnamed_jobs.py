"""Jobs without a prefix or key: operators end the transactions of a dead job with `pykafka transactions`."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import ConfigurationError, ExactlyOnceError, NetworkError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.job_names import generate_job_prefix
from spark_kafka_sink.exactly_once.log_writer import LogTransaction, WriterState
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    Crash,
    Query,
    client_options,
    death_before,
    list_open_ids,
    read_values,
    rejected_aborts,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def job(broker: EmbeddedBroker) -> Query:
    return Query(broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)


def test_next_job_leaves_transactions_of_dead_job_open(job: Query) -> None:
    prepared = job.write_tasks(job.begin(), 0)
    other = Query(job.broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)
    start = other.begin()
    other.commit(start, 1, other.write_tasks(start, 1))
    assert len(list_open_ids(job.broker, job.prefix)) == len(prepared)
    assert read_values(job.broker) == [], "readers wait for the open transactions, which come first"
    operations.abort(client_options(job.broker), job.prefix, LOG)
    assert read_values(job.broker) == rows(1)


def test_finish_commits_decided_rows_of_dead_job(job: Query) -> None:
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    with death_before("commit"):
        job.commit(start, 0, prepared)
    assert operations.finish(client_options(job.broker), job.prefix, LOG)
    assert read_values(job.broker) == rows(0)


def test_abort_ends_transactions_of_job_that_died_during_decision(job: Query) -> None:
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    with patch.object(LogTransaction, "commit", side_effect=Crash), pytest.raises(Crash):
        job.commit(start, 0, prepared)
    operations.abort(client_options(job.broker), job.prefix, LOG)
    assert (read_values(job.broker), list_open_ids(job.broker, job.prefix)) == ([], [])


@pytest.mark.parametrize("step", ["commit", "superseded"])
def test_dead_job_is_deleted_from_the_log_after_a_manual_operation(job: Query, step: str) -> None:
    settings = dataclasses.replace(job.settings, is_single_use=True)
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    with death_before(step), Driver(settings) as driver:
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    if operations.finish(client_options(job.broker), job.prefix, LOG) is None:
        operations.abort(client_options(job.broker), job.prefix, LOG)
    assert read_values(job.broker) == rows(0)
    assert list_open_ids(job.broker, job.prefix) == []
    assert operations.list_prefixes(client_options(job.broker), LOG) == [], "nothing needs to be known of it any more"


def end_with_operator(job: Query) -> None:
    """Abort the job's only open transaction, which `pykafka transactions` finds through the job's entry."""
    assert len(operations.abort(client_options(job.broker), job.prefix, LOG).aborted_ids) == 1
    assert list_open_ids(job.broker, job.prefix) == []
    assert operations.list_prefixes(client_options(job.broker), LOG) == []


def test_job_stays_in_the_log_if_the_abort_of_superseded_attempt_is_rejected(
    job: Query, caplog: pytest.LogCaptureFixture
) -> None:
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    settings = dataclasses.replace(job.settings, is_single_use=True)
    with rejected_aborts(), Driver(settings) as driver:
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    assert "transactions of superseded task attempts may still be open" in caplog.text
    end_with_operator(job)
    assert read_values(job.broker) == rows(0)


def test_failed_job_stays_in_the_log_if_the_abort_of_its_transaction_is_rejected(
    job: Query, caplog: pytest.LogCaptureFixture
) -> None:
    start = job.begin()
    job.write(start, 0, "of a job that failed")
    settings = dataclasses.replace(job.settings, is_single_use=True)
    with rejected_aborts(), Driver(settings) as driver:
        assert driver.abort(start, Batch())
    assert f"Could not abort 1 transaction of tasks (prefix {job.prefix}), which may stay open until" in caplog.text
    end_with_operator(job)
    assert read_values(job.broker) == []


def test_job_stays_in_the_log_if_the_abort_of_an_operator_is_rejected(job: Query) -> None:
    start = job.begin()
    job.write(start, 0, "of a job that died")
    with rejected_aborts():
        result = operations.abort(client_options(job.broker), job.prefix, LOG)
    assert (result.aborted_ids, [*result.errors_by_id]) == ((), [start.build_task_id(0, 0)])
    end_with_operator(job)


def test_finish_explains_missing_entry_after_lost_response(job: Query) -> None:
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    with death_before("commit"):
        job.commit(start, 0, prepared)
    delete_entry = QueryTransactions.delete_entry

    def delete_without_response(transactions: QueryTransactions, state: WriterState) -> None:
        delete_entry(transactions, state)
        raise NetworkError("no response.")

    with (
        patch.object(QueryTransactions, "delete_entry", delete_without_response),
        pytest.raises(
            ExactlyOnceError,
            match=r"Run `pykafka transactions finish` again\. If there is nothing to finish, run `pykafka transactions "
            r"abort`\. If the log has no entry for the prefix, everything is done\.",
        ),
    ):
        operations.finish(client_options(job.broker), job.prefix, LOG)
    for operate in (operations.finish, operations.abort):
        with pytest.raises(
            ConfigurationError, match=r"has no entry for .* If it uses this log, no transactions are left to end: "
        ):
            operate(client_options(job.broker), job.prefix, LOG)
    assert read_values(job.broker) == rows(0)


def test_job_stays_in_the_log_while_superseded_attempts_are_unknown(job: Query) -> None:
    start = job.begin()
    prepared = job.write_tasks(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    settings = dataclasses.replace(job.settings, is_single_use=True)
    unreachable = patch.object(
        QueryTransactions, "list_task_transactions", side_effect=NetworkError("no broker responds")
    )
    with unreachable, Driver(settings) as driver:
        driver.commit(start, Batch(), prepared, BOTH_TASKS)
    (remaining,) = operations.list_prefixes(client_options(job.broker), LOG)
    assert (remaining.prefix, remaining.decided_ids, len(remaining.undecided_transactions)) == (job.prefix, (), 1)
    assert len(operations.abort(client_options(job.broker), job.prefix, LOG).aborted_ids) == 1
    assert list_open_ids(job.broker, job.prefix) == []
