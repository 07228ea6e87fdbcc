"""`pykafka transactions` changes nothing before it has announced the change and the user has confirmed it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest

from spark_kafka_sink.cli.main import main
from spark_kafka_sink.errors import CommitLostError, ExactlyOnceError, NetworkError
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch
from spark_kafka_sink.exactly_once.job_names import generate_job_prefix
from spark_kafka_sink.exactly_once.log_writer import LogTransaction
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import (
    BOTH_TASKS,
    LOG,
    PREFIX,
    Query,
    assert_no_new_epoch,
    connect_client,
    death_before,
    decide_and_stop_before_commit,
    list_open_ids,
    read_values,
    rejected_aborts,
    rows,
)
from tests.exactly_once.embedded_query import broker as broker

Output = pytest.CaptureFixture[str]


@pytest.fixture
def query(broker: EmbeddedBroker) -> Query:
    return Query(broker)


def transactions(broker: EmbeddedBroker, *arguments: str) -> int:
    return main(["transactions", "--bootstrap-server", broker.bootstrap_servers, "--log-topic", LOG, *arguments])


def set_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_prints_message_without_transactions(capsys: Output, broker: EmbeddedBroker) -> None:
    assert transactions(broker) == 0
    assert (
        capsys.readouterr().out
        == "There are no decisions in this log, and no open transactions with a prefix that the sink has generated. If "
        "the writes set decisionLogTopic, add --log-topic. To list the open transactions of one prefix, add --prefix.\n"
    )


def test_rejects_unknown_prefix_before_confirmation(capsys: Output, query: Query) -> None:
    assert transactions(query.broker, "abort", "--prefix", PREFIX) != 0
    assert "The decision log decisions does not exist" in capsys.readouterr().err
    query.write_tasks(query.begin(), 0)
    assert transactions(query.broker, "abort", "--prefix", "other") != 0
    assert "The decision log decisions has no entry for the prefix other" in capsys.readouterr().err
    assert transactions(query.broker, "finish", "--prefix", PREFIX) == 0
    nothing, hint = capsys.readouterr().out.splitlines()
    assert nothing == (
        f"There is nothing to finish under the prefix {PREFIX}. Last decision: none. Newest driver: driver-1."
    )
    assert hint.startswith("Open transactions of its tasks that are not decided: 2. ")


def test_lists_decided_and_open_transactions(capsys: Output, query: Query) -> None:
    decided = decide_and_stop_before_commit(query)
    assert transactions(query.broker) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [decided[0] in lines[2], decided[1] in lines[3], len(lines)] == [True, True, 4]
    assert "batch 0 of query query-1: decided" in lines[2]
    assert "t-0" in lines[2]
    assert transactions(query.broker, "--json") == 0
    (prefix_status,) = json.loads(capsys.readouterr().out)
    assert (prefix_status["prefix"], prefix_status["state"], prefix_status["decided"]) == (PREFIX, "decided", decided)
    assert [transaction["transactional_id"] for transaction in prefix_status["open"]] == decided


def test_list_shows_no_decision_of_new_query(capsys: Output, query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    assert transactions(query.broker) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:4] == [PREFIX, query.name, "none", f"{PREFIX}-1-0-0"]
    assert transactions(query.broker, "--json") == 0
    (prefix_status,) = json.loads(capsys.readouterr().out)
    assert (prefix_status["state"], prefix_status["batch"]) == ("open", None)


def test_list_marks_decision_by_unknown_id(capsys: Output, query: Query) -> None:
    """Such a decision is only marked: it causes no batch to be skipped."""
    query.run(0)
    for is_forgotten in (False, True):
        assert transactions(query.broker) == 0
        assert ("by an unknown id" in capsys.readouterr().out) == is_forgotten
        assert transactions(query.broker, "--json") == 0
        (prefix_status,) = json.loads(capsys.readouterr().out)
        assert prefix_status["unproven"] == is_forgotten
        query.broker.cluster.coordinator.transactions.pop(f"{PREFIX}-driver", None)


@pytest.mark.parametrize("reply", ["n\n", "\n", ""])
def test_does_nothing_without_confirmation(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, query: Query, reply: str
) -> None:
    decided = decide_and_stop_before_commit(query)
    set_stdin(monkeypatch, reply)
    assert transactions(query.broker, "finish", "--prefix", PREFIX) == 1
    out = capsys.readouterr().out
    assert "This commits the decided transactions of batch 0 of query query-1" in out
    assert all(f"  {name}\n" in out for name in decided)
    assert out.endswith("Continue? [y/N] Nothing was done.\n")
    assert list_open_ids(query.broker) == decided


@pytest.mark.parametrize("agreed", [["--yes"], []])
def test_finish_commits_decided_transactions(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, query: Query, agreed: list[str]
) -> None:
    decided = decide_and_stop_before_commit(query)
    set_stdin(monkeypatch, "yes\n")
    assert transactions(query.broker, "finish", "--prefix", PREFIX, *agreed) == 0
    assert f"Committed: {', '.join(decided)}." in capsys.readouterr().out
    assert read_values(query.broker) == rows(0)


def test_finish_announces_and_reports_abort_of_superseded_attempt(capsys: Output, query: Query) -> None:
    decide_and_stop_before_commit(query, has_superseded_attempt=True)
    superseded_id = "p-1-1-1"
    assert transactions(query.broker, "finish", "--prefix", PREFIX, "--yes") == 0
    announced, _, reported = capsys.readouterr().out.partition("Committed: ")
    assert f"Then it aborts these open transactions, which are not decided:\n  {superseded_id}\n" in announced
    assert f"Aborted: {superseded_id}." in reported
    assert list_open_ids(query.broker) == []


def test_abort_aborts_undecided_transactions(capsys: Output, query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    assert transactions(query.broker, "abort", "--prefix", PREFIX, "--yes") == 0
    assert "Aborted: p-1-0-0, p-1-1-0." in capsys.readouterr().out
    assert list_open_ids(query.broker) == []
    assert read_values(query.broker) == []
    assert transactions(query.broker) == 0
    assert "driver-1" in capsys.readouterr().out, "the list shows the query's driver, not this command"


def test_abort_allows_rerun_unless_another_run_is_committed(capsys: Output, broker: EmbeddedBroker) -> None:
    """The last decision is about an earlier job, or about an earlier run of this one that a scheduler has retried."""
    jobs = Query(broker, checkpoint="")
    start = jobs.begin()
    with Driver(jobs.settings) as driver:
        driver.commit(start, Batch(), jobs.write_tasks(start, 0), BOTH_TASKS)
    later_job = jobs.with_new_driver()
    later_job.write_tasks(later_job.begin(), 1)
    assert transactions(broker, "abort", "--prefix", PREFIX, "--yes") == 0
    assert capsys.readouterr().out.endswith(
        "Aborted: p-2-0-0, p-2-1-0.\n"
        "Done before: job number 1, which is committed or was given up. Do not run job number 1 again, because it has "
        "no idempotencyKey. Any other job whose transactions were aborted may be run again, unless another run of it "
        "is committed, such as job number 1 if a scheduler has retried it.\n"
    )


@pytest.mark.parametrize("has_superseded_attempt", [False, True])
def test_abort_fails_without_confirmation_if_batch_is_decided(
    capsys: Output, query: Query, *, has_superseded_attempt: bool
) -> None:
    decided = decide_and_stop_before_commit(query, has_superseded_attempt=has_superseded_attempt)
    with assert_no_new_epoch(query.broker):
        assert transactions(query.broker, "abort", "--prefix", PREFIX) == 1
    output = capsys.readouterr()
    assert "batch 0 of query query-1 (prefix p) is decided: its transactions must be committed" in output.err
    assert output.out == ""
    assert set(decided) <= set(list_open_ids(query.broker))


def test_abort_without_open_transactions_shows_last_decision_and_newest_driver(capsys: Output, query: Query) -> None:
    query.run(0)
    query.with_new_driver().begin()
    assert transactions(query.broker, "abort", "--prefix", PREFIX) == 0
    assert capsys.readouterr().out == (
        f"There is nothing to abort under the prefix {PREFIX}. Last decision: batch 0 of query query-1: done. Newest "
        "driver: driver-2.\n"
    )


@pytest.mark.parametrize("is_decided", [True, False])
def test_job_in_doubt_is_found_in_the_list_by_its_number(capsys: Output, query: Query, *, is_decided: bool) -> None:
    """An earlier and a later job with the same prefix have other numbers. The later one finishes the job in doubt."""
    query.write_and_commit(query.begin(), Batch())
    start = query.with_new_driver(name="job-2").begin()
    with (
        patch.object(LogTransaction, "commit", lose_response_to_commit(is_decided=is_decided)),
        pytest.raises(ExactlyOnceError, match="It is not known whether job number 2 is decided") as error,
    ):
        query.write_and_commit(start, Batch())
    assert "- job number 2: the job is decided. Do not run it again." in str(error.value)
    (command,) = re.findall(r"`pykafka ([^`]*list [^`]*)`", str(error.value))
    query.with_new_driver(name="job-3").begin()
    arguments = command.replace("HOST:PORT", query.broker.bootstrap_servers).split()
    assert main([*arguments, "--log-topic", LOG]) == 0
    assert f"job number {2 if is_decided else 1}: done" in capsys.readouterr().out


def lose_response_to_commit(*, is_decided: bool) -> Callable[..., None]:
    """Return a replacement for LogTransaction.commit whose response is lost, or whose request is lost."""
    original = LogTransaction.commit

    def commit(transaction: LogTransaction, timeout_ms: float | None = None) -> None:
        if is_decided:
            original(transaction, timeout_ms)
        raise NetworkError("no response.")

    return commit


def test_abort_deletes_unnamed_job_that_has_no_open_transaction(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker
) -> None:
    """The job kept its entry, because the abort of a superseded attempt was rejected. That attempt has ended since."""
    job = Query(broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)
    start = job.begin()
    written = job.write_tasks(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    with rejected_aborts(), Driver(replace(job.settings, is_single_use=True)) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    with connect_client(broker) as client:
        init_producer_id(client, start.build_task_id(1, 1), 60_000)
    assert transactions(broker, "finish", "--prefix", job.prefix) == 0
    assert capsys.readouterr().out.endswith(
        "If the job is not running, delete its entry from the decision log with abort.\n"
    )
    set_stdin(monkeypatch, "yes\n")
    assert transactions(broker, "abort", "--prefix", job.prefix) == 0
    out = capsys.readouterr().out
    assert out.startswith("No transaction of the job is open. This deletes the job's entry from the decision log.\n")
    assert out.endswith(
        "Aborted: nothing, because no transactions are open.\n"
        "Done before: job number 1, which is committed or was given up. Do not run job number 1 again, because it has "
        "no idempotencyKey.\n"
    )
    assert transactions(broker) == 0
    assert "no decisions in this log" in capsys.readouterr().out
    assert read_values(broker) == rows(0)


def test_abort_of_superseded_attempt_does_not_allow_rerun(capsys: Output, broker: EmbeddedBroker) -> None:
    job = Query(broker, prefix=generate_job_prefix(), checkpoint="", has_user_prefix=False)
    start = job.begin()
    written = job.write_tasks(start, 0)
    job.write(start, 1, "of an attempt that lost", attempt=1)
    with rejected_aborts(), Driver(replace(job.settings, is_single_use=True)) as driver:
        driver.commit(start, Batch(), written, BOTH_TASKS)
    assert transactions(broker, "abort", "--prefix", job.prefix, "--yes") == 0
    out = capsys.readouterr().out
    assert f"Aborted: {start.build_task_id(1, 1)}.\nDone before: job number 1" in out
    assert out.endswith("Do not run job number 1 again, because it has no idempotencyKey.\n")


def test_abort_reports_transaction_whose_abort_was_rejected_as_open(capsys: Output, query: Query) -> None:
    query.write_tasks(query.begin(), 0)
    with rejected_aborts():
        assert transactions(query.broker, "abort", "--prefix", PREFIX, "--yes") == 1
    out = capsys.readouterr().out
    assert "Aborted:" not in out
    assert "Not ended: p-1-1-0: p-1-1-0: TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in out
    assert out.endswith("Fix the cause, and run abort.\n")
    assert len(list_open_ids(query.broker)) == 2


def test_finish_reports_transaction_whose_abort_was_rejected_as_open(capsys: Output, query: Query) -> None:
    decide_and_stop_before_commit(query, has_superseded_attempt=True)
    with rejected_aborts():
        assert transactions(query.broker, "finish", "--prefix", PREFIX, "--yes") == 1
    out = capsys.readouterr().out
    assert "Committed: p-1-0-0, p-1-1-0.\nNot ended: p-1-1-1: " in out
    assert "Aborted:" not in out


def test_lost_transactions_require_give_up(capsys: Output, query: Query) -> None:
    first, second = decide_and_stop_before_commit(query)
    with connect_client(query.broker) as client:
        init_producer_id(client, second, 60_000)
    assert transactions(query.broker, "finish", "--prefix", PREFIX, "--yes") == 1
    out = capsys.readouterr().out
    assert f"Committed: {first}." in out
    assert f"Lost: {second}: PRODUCER_FENCED\n" in out
    assert "because rows are missing from the topic. To do both anyway, run give-up." in out
    assert transactions(query.broker, "give-up", "--prefix", PREFIX, "--yes") == 1
    assert "The rows of the other transactions are LOST" in capsys.readouterr().out
    assert transactions(query.broker, "finish", "--prefix", PREFIX, "--yes") == 0
    assert "nothing to finish" in capsys.readouterr().out


def test_finish_and_give_up_do_not_report_forgotten_transactions_as_lost(capsys: Output, query: Query) -> None:
    """The driver died between the commit and its record that the batch is done, more than a week ago."""
    start = query.begin()
    written = query.write_tasks(start, 0)
    with death_before("done"):
        query.commit(start, 0, written)
    for transaction in written:
        del query.broker.cluster.coordinator.transactions[transaction.transactional_id]
    for action in ("finish", "give-up"):
        assert transactions(query.broker, action, "--prefix", PREFIX, "--yes") == 1
        out = capsys.readouterr().out
        assert "\nLost: " not in out
        assert all(
            f"\nMay be lost: {transaction.transactional_id}: INVALID_PRODUCER_ID_MAPPING\n" in out
            for transaction in written
        )
        assert "it is not known whether the rows of these transactions were committed before the driver died" in out
        assert ("because rows may be missing from the topic" in out) == (action == "finish")
    assert "are LOST, unless they were committed before:" in out
    assert read_values(query.broker) == rows(0)


def test_commit_lost_error_names_give_up_command(query: Query) -> None:
    _, second = decide_and_stop_before_commit(query)
    with connect_client(query.broker) as client:
        init_producer_id(client, second, 60_000)
    with pytest.raises(CommitLostError) as error:
        query.with_new_driver().begin()
    (command,) = re.findall(r"`pykafka ([^`]*give-up [^`]*)`", str(error.value))
    arguments = command.replace("HOST:PORT", query.broker.bootstrap_servers).split()
    assert main([*arguments, "--log-topic", LOG, "--yes"]) == 1
    query.with_new_driver().run(1)
    assert read_values(query.broker) == ["0/0", *rows(1)]


def test_actions_require_prefix(capsys: Output, broker: EmbeddedBroker) -> None:
    assert transactions(broker, "abort") == 1
    assert "abort requires --prefix" in capsys.readouterr().err


def test_warns_before_giving_up_decision_by_unknown_id(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    decide_and_stop_before_commit(query)
    del query.broker.cluster.coordinator.transactions[f"{PREFIX}-driver"]
    set_stdin(monkeypatch, "n\n")
    assert transactions(query.broker, "give-up", "--prefix", PREFIX) == 1
    assert "It is not known who wrote this log entry." in capsys.readouterr().out
