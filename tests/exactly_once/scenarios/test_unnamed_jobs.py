"""Jobs without a prefix or a key, whose driver has died: no later job knows them; `pykafka transactions` ends them."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.job_names import generate_job_prefix
from spark_kafka_sink.exactly_once.log_writer import LogTransaction
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import BOTH_TASKS, LOG, Crash, Query, dying, open_ids, options, rows, seen
from tests.exactly_once.embedded_query import broker as broker


@pytest.fixture
def job(broker: EmbeddedBroker) -> Query:
    return Query(broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)


def test_next_job_leaves_transactions_of_dead_job_open(job: Query) -> None:
    written = job.write_both(job.begin(), 0)
    other = Query(job.broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)
    start = other.begin()
    other.commit(start, 1, other.write_both(start, 1))
    assert len(open_ids(job.broker, job.prefix)) == len(written)
    assert seen(job.broker) == [], "readers wait for the open transactions, which come first"
    operations.abort(options(job.broker), job.prefix, LOG)
    assert seen(job.broker) == rows(1)


def test_finish_commits_decided_rows_of_dead_job(job: Query) -> None:
    start = job.begin()
    written = job.write_both(start, 0)
    with dying("commit"):
        job.commit(start, 0, written)
    assert operations.finish(options(job.broker), job.prefix, LOG)
    assert seen(job.broker) == rows(0)


def test_abort_ends_transactions_of_job_that_died_during_decision(job: Query) -> None:
    start = job.begin()
    written = job.write_both(start, 0)
    with patch.object(LogTransaction, "commit", side_effect=Crash), pytest.raises(Crash):
        job.commit(start, 0, written)
    operations.abort(options(job.broker), job.prefix, LOG)
    assert (seen(job.broker), open_ids(job.broker, job.prefix)) == ([], [])


@pytest.mark.parametrize("at", ["commit", "losers"])
def test_dead_job_is_deleted_from_the_log_after_a_manual_operation(job: Query, at: str) -> None:
    delivery = dataclasses.replace(job.delivery, is_single_use=True)
    start = job.begin()
    written = job.write_both(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    with dying(at), Driver(delivery) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    if operations.finish(options(job.broker), job.prefix, LOG) is None:
        operations.abort(options(job.broker), job.prefix, LOG)
    assert seen(job.broker) == rows(0)
    assert open_ids(job.broker, job.prefix) == []
    assert operations.list_prefixes(options(job.broker), LOG) == [], "nothing needs to be known of it any more"


def test_job_stays_in_the_log_while_superseded_attempts_are_unknown(job: Query) -> None:
    start = job.begin()
    written = job.write_both(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    forgotten = dataclasses.replace(job.delivery, is_single_use=True)
    unreachable = patch.object(
        QueryTransactions, "list_task_transactions", side_effect=NetworkError("no broker answers")
    )
    with unreachable, Driver(forgotten) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    (left,) = operations.list_prefixes(options(job.broker), LOG)
    assert (left.prefix, left.decided, len(left.undecided)) == (job.prefix, (), 1)
    assert len(operations.abort(options(job.broker), job.prefix, LOG)) == 1
    assert open_ids(job.broker, job.prefix) == []
