"""Jobs without a name whose driver has died: the next one on the machine ends what they have left."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import (
    NetworkError,
)
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.job_names import new_job_prefix
from spark_kafka_sink.exactly_once.log_writer import OpenWrite
from spark_kafka_sink.exactly_once.query_transactions import QueryTransactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import (
    BOTH_TASKS,
    LOG,
    Crash,
    Query,
    client_of,
    dying,
    open_ids,
    options,
    rows,
    seen,
)
from tests.exactly_once.cases import broker as broker


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def job(query: Query, process: int) -> Query:
    """One whose driver's process is this one."""
    return Query(query.broker, prefix=new_job_prefix(process), checkpoint="", is_given=False)


def dead_job(query: Query) -> Query:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dead = job(query, process.pid)
        process.kill()
    return dead


def test_what_a_job_without_a_name_has_left_is_freed_by_the_next_one_if_its_process_has_ended(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        dead, alive = job(query, process.pid), job(query, os.getpid())
        process.kill()
    written = alive.write_both(alive.begin(), 1)
    dead.write_both(dead.begin(), 0)
    assert open_ids(query.broker, dead.prefix)
    caplog.set_level(logging.INFO)
    operations.free_abandoned_jobs(options(query.broker), LOG)
    assert f"has ended and left transactions open (prefix {dead.prefix}): they are ended now" in caplog.text
    assert open_ids(query.broker, dead.prefix) == []
    assert len(open_ids(query.broker, alive.prefix)) == len(written), "its driver works"
    (left,) = operations.survey(options(query.broker), LOG)
    assert left.prefix == alive.prefix, "nothing needs to be known of the other one any more"


def test_what_such_a_job_had_decided_is_committed(query: Query) -> None:
    dead = dead_job(query)
    start = dead.begin()
    written = dead.write_both(start, 0)
    with dying("commit"):
        dead.commit(start, 0, written)
    operations.free_abandoned_jobs(options(query.broker), LOG)
    assert seen(query.broker) == rows(0)


def test_what_such_a_job_was_deciding_when_its_driver_died_is_aborted(query: Query) -> None:
    dead = dead_job(query)
    start = dead.begin()
    written = dead.write_both(start, 0)
    with patch.object(OpenWrite, "commit", side_effect=Crash), pytest.raises(Crash):
        dead.commit(start, 0, written)
    operations.free_abandoned_jobs(options(query.broker), LOG)
    assert (seen(query.broker), open_ids(query.broker, dead.prefix)) == ([], [])


@pytest.mark.parametrize("at", ["commit", "losers"])
def test_what_attempts_that_lost_have_left_of_such_a_job_is_freed_wherever_its_driver_dies(
    query: Query, at: str
) -> None:
    dead = dead_job(query)
    delivery = dataclasses.replace(dead.delivery, is_forgotten=True)
    start = dead.begin()
    written = dead.write_both(start, 0)
    dead.write(start, 1, "of an attempt that lost", attempt=1)
    with dying(at), Driver(delivery) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    operations.free_abandoned_jobs(options(query.broker), LOG)
    assert seen(query.broker) == rows(0)
    assert open_ids(query.broker, dead.prefix) == []
    assert operations.survey(options(query.broker), LOG) == [], "nothing needs to be known of it any more"


def test_such_a_job_is_not_forgotten_while_it_is_not_known_what_attempts_that_lost_have_left(query: Query) -> None:
    dead = job(query, os.getpid())
    start = dead.begin()
    written = dead.write_both(start, 0)
    dead.write(start, 1, "of an attempt that lost", attempt=1)
    forgotten = dataclasses.replace(dead.delivery, is_forgotten=True)
    silent = patch.object(QueryTransactions, "leftovers", side_effect=NetworkError("no broker answers"))
    with silent, Driver(forgotten) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    (left,) = operations.survey(options(query.broker), LOG)
    assert (left.prefix, left.decided, len(left.undecided)) == (dead.prefix, (), 1)
    assert len(operations.abort(options(query.broker), dead.prefix, LOG)) == 1
    assert open_ids(query.broker, dead.prefix) == []


def test_that_what_such_a_job_has_left_cannot_be_freed_is_a_warning(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    dead = dead_job(query)
    dead.write_both(dead.begin(), 0)
    with patch.object(operations, "abort", side_effect=NetworkError("no broker answers")):
        operations.free_abandoned_jobs(options(query.broker), LOG)
    assert f"(prefix {dead.prefix}) is not ended: no broker answers" in caplog.text


def test_what_cannot_be_committed_any_more_of_what_such_a_job_had_decided_is_a_warning_that_names_it(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is not whole then: to say that it has been ended would hide that."""
    caplog.set_level(logging.INFO)
    dead = dead_job(query)
    start = dead.begin()
    first, second = dead.write_both(start, 0)
    with dying("commit"):
        dead.commit(start, 0, [first, second])
    with client_of(query.broker) as client:
        client.init_producer_id(first.transactional_id, 60_000)
    operations.free_abandoned_jobs(options(query.broker), LOG)
    assert f"(prefix {dead.prefix}) is not ended: " in caplog.text
    assert f"cannot be committed any more:\n- {first.transactional_id} " in caplog.text
    assert f"pykafka transactions give-up --bootstrap-server HOST:PORT --prefix {dead.prefix}`" in caplog.text
    assert "they are ended now" not in caplog.text
    assert seen(query.broker) == ["0/1"]
