"""Exactly-once writers without a JVM: the state passed from the planning worker to tasks and committing worker."""

from __future__ import annotations

import dataclasses
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.errors import (
    AuthenticationError,
    DeliveryError,
    ExactlyOnceError,
    IllegalStateError,
    NetworkError,
)
from spark_kafka_sink.exactly_once import operations
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import merge_report_ranges
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.spark import exactly_once, write_task
from spark_kafka_sink.spark.constants import STREAM_START_OPTION
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.pool import PRODUCER_POOL
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.exactly_once.embedded_query import connect_client, read_values
from tests.waiting import wait_until

SCHEMA = StructType([StructField("value", StringType())])


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 2}, transaction_version=request.param) as broker:
        yield broker
    PRODUCER_POOL.close()


class Spark:
    """Calls the data source as Spark does. Pickling simulates a separate process for each step."""

    def __init__(self, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        sink_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"}
        start = {STREAM_START_OPTION: uuid.uuid4().hex}  # as `register` sets it
        self._source = KafkaDataSource({**sink_options, "deliveryGuarantee": "exactly-once", **start, **options})
        self._monkeypatch = monkeypatch

    def job(self) -> Any:
        return pickle.loads(pickle.dumps(self._source.writer(SCHEMA, overwrite=False)))

    def batch(self) -> Any:
        return pickle.loads(pickle.dumps(self._source.streamWriter(SCHEMA, overwrite=False)))

    def committing(self) -> Any:
        """Create the writer of a stream again, as the process that commits does."""
        return pickle.loads(pickle.dumps(self._source)).streamWriter(SCHEMA, overwrite=False)

    def task(self, writer: Any, rows: Iterator[pa.RecordBatch], **identity: Any) -> TaskReport:
        identity = {"partition_id": 0, "attempt_number": 0, "task_attempt_id": 0, "stage_id": 0} | identity
        self._monkeypatch.setattr(write_task, "_build_task_identity", lambda context: TaskIdentity(**identity))
        report: TaskReport = pickle.loads(pickle.dumps(writer.write(rows)))
        return report


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"value": list(values)})])


def micro_batch(spark: Spark, number: int, *values: str, query: str = "q") -> None:
    batch_options = {"query_id": query, "batch_id": str(number)}
    spark.committing().commit([spark.task(spark.batch(), rows(*values), **batch_options)], number)


def open_count(broker: EmbeddedBroker) -> int:
    with connect_client(broker) as client:
        return len(list_transactional_ids(client, ONGOING))


@pytest.fixture
def spark(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(broker, monkeypatch, checkpointLocation="/checkpoint")


def test_commits_job_with_all_of_its_tasks(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    messages = [spark.task(writer, rows(f"{part}"), partition_id=part) for part in range(3)]
    messages.append(spark.task(writer, rows(), partition_id=3))
    assert messages[3].transaction is None, "a partition without rows has no transaction"
    assert read_values(broker) == []
    writer.commit(messages)
    assert read_values(broker) == ["0", "1", "2"]
    assert len(PRODUCER_POOL) == 1, "one producer served one task after the other"


def test_unpickled_data_source_begins_job(spark: Spark, broker: EmbeddedBroker) -> None:
    """Sail pickles the data source before it calls `writer`."""
    spark._source = pickle.loads(pickle.dumps(spark._source))
    writer = spark.job()
    message = spark.task(writer, rows("a"))
    assert read_values(broker) == []
    writer.commit([message])
    assert read_values(broker) == ["a"]


def test_task_without_exactly_once_state_writes_nothing(spark: Spark, broker: EmbeddedBroker) -> None:
    with pytest.raises(IllegalStateError, match="has no transaction"):
        spark.task(spark.committing(), rows("a"))
    assert read_values(broker) == []


def test_task_sends_transaction_requests_over_connections_of_its_producer(spark: Spark, broker: EmbeddedBroker) -> None:
    """A separate client would open new connections for each task attempt."""
    writer = spark.job()
    with patch.object(BlockingClient, "__init__", side_effect=AssertionError("a client of its own")):
        message = spark.task(writer, rows("a"))
    writer.commit([message])
    assert read_values(broker) == ["a"]


def test_jobs_with_different_prefixes_share_producers(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job without a prefix gets a new one, and an idle producer keeps its thread and sockets for minutes."""
    for key in ("monday", "tuesday"):
        for extra_options in ({}, {"idempotencyKey": key}, {"transactionalIdPrefix": f"orders-{key}"}):
            job = Spark(broker, monkeypatch, **extra_options)
            writer = job.job()
            writer.commit([job.task(writer, rows("a"))])
    assert len(PRODUCER_POOL) == 1
    assert read_values(broker) == ["a"] * 6


def test_task_reports_exclude_keys_of_earlier_jobs(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred keys of 200 characters in the reports of ten thousand tasks would take 200 MB on the driver."""
    for number in range(3):
        key = f"{number}-{'k' * 190}"
        job = Spark(broker, monkeypatch, transactionalIdPrefix="orders", idempotencyKey=key)
        writer = job.job()
        message = job.task(writer, rows("a"))
        writer.commit([message])
        assert b"kkk" not in pickle.dumps(message)
    assert read_values(broker) == ["a"] * 3


def test_errors_of_driver_name_options_as_spark_jobs_do(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this, the errors name no prefix if checkConnection=false has skipped the checks before the write."""
    writer = spark.job()
    message = spark.task(writer, rows("a"))

    def reject(*args: object) -> Driver:
        raise AuthenticationError("The login was rejected.", remedy="Check sasl.jaas.config.")

    monkeypatch.setattr(exactly_once, "Driver", reject)
    steps: list[Callable[[], object]] = [
        spark.job,
        spark.batch,
        lambda: writer.commit([message]),
        lambda: exactly_once.UnreportedBatch(writer._exactly_once_write.settings, "start").abort([]),
        lambda: writer._exactly_once_write.abort([message]),
    ]
    for step in steps:
        with pytest.raises(AuthenticationError, match=r"Check kafka\.sasl\.jaas\.config\."):
            step()


def test_does_not_commit_job_with_missing_report(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    messages = [spark.task(writer, rows("a")), None]
    with pytest.raises(DeliveryError, match="1 of 2 tasks have not reported"):
        writer.commit(messages)
    writer.abort(messages)
    assert read_values(broker) == []
    assert open_count(broker) == 0


def test_failed_task_aborts_its_rows_and_retry_is_committed(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"):
        spark.task(writer, failing())
    assert open_count(broker) == 0
    writer.commit([spark.task(writer, rows("a"), attempt_number=1)])
    assert read_values(broker) == ["a"]


def test_failed_task_aborts_before_it_queries_the_cause(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers may respond slowly, and read_committed consumers wait for open transactions."""
    counts: list[int] = []
    monkeypatch.setattr(
        exactly_once, "raise_if_late_attempt_was_fenced", lambda *asked: counts.append(open_count(broker))
    )

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        wait_until(lambda: open_count(broker) == 1)
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"):
        spark.task(spark.job(), failing())
    assert counts == [0]


@pytest.mark.parametrize("partitions", [0, 2])
def test_committed_job_without_key_and_rows_leaves_no_entry_in_decision_log(
    spark: Spark, broker: EmbeddedBroker, partitions: int
) -> None:
    writer = spark.job()
    writer.commit([spark.task(writer, rows(), partition_id=partition) for partition in range(partitions)])
    assert read_values(broker) == []
    assert operations.list_prefixes({"bootstrap.servers": broker.bootstrap_servers}) == []


def test_job_without_rows_succeeds_if_its_entry_cannot_be_deleted(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    with patch.object(Driver, "abort", side_effect=NetworkError("no broker responds")):
        writer.commit([])
    (left,) = operations.list_prefixes({"bootstrap.servers": broker.bootstrap_servers})
    assert (left.decided_ids, left.undecided_transactions) == ((), ())


def test_driver_aborts_transaction_of_killed_task(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()

    def killed() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spark.task(writer, killed(), attempt_number=1)
    writer.commit([spark.task(writer, rows("a"))])
    assert read_values(broker) == ["a"]
    assert open_count(broker) == 0


def test_attempt_that_starts_after_commit_of_job_writes_nothing(spark: Spark, broker: EmbeddedBroker) -> None:
    """Spark has not killed this speculative attempt yet. The driver looked for open transactions before it began."""
    writer = spark.job()
    writer.commit([spark.task(writer, rows("a"))])
    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        spark.task(writer, rows("a"), attempt_number=1)
    assert open_count(broker) == 0
    assert read_values(broker) == ["a"]


def test_attempt_that_starts_after_abort_of_job_writes_nothing(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    writer.abort([spark.task(writer, rows("a"))])
    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        spark.task(writer, rows("a"), attempt_number=1)
    assert (open_count(broker), read_values(broker)) == (0, [])


def test_attempt_of_ended_micro_batch_takes_no_id_of_next_micro_batch(spark: Spark, broker: EmbeddedBroker) -> None:
    batch_options = {"query_id": "q", "batch_id": "0"}
    writer = spark.batch()
    spark.committing().commit([spark.task(writer, rows("a"), **batch_options)], 0)
    following = spark.batch()
    message = spark.task(following, rows("b"), query_id="q", batch_id="1")
    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        spark.task(writer, rows("a"), **batch_options)
    assert open_count(broker) == 1
    spark.committing().commit([message], 1)
    assert read_values(broker) == ["a", "b"]


def test_process_that_knows_only_the_options_commits_stream(spark: Spark, broker: EmbeddedBroker) -> None:
    for number in range(3):
        writer = spark.batch()
        batch_options = {"query_id": "q", "batch_id": str(number)}
        messages = [spark.task(writer, rows(f"{number}"), partition_id=part, **batch_options) for part in range(2)]
        spark.committing().commit(messages, number)
    assert read_values(broker) == ["0", "0", "1", "1", "2", "2"]


def test_skips_all_rows_of_decided_micro_batch(
    spark: Spark, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    batch_options = {"query_id": "q", "batch_id": "0"}
    spark.committing().commit([spark.task(spark.batch(), rows("a"), **batch_options)], 0)
    again = rows("a")
    message = spark.task(spark.batch(), again, **batch_options)
    assert next(again, None) is None
    assert (message.was_already_committed, message.totals.rows, message.transaction) == (True, 0, None)
    caplog.clear()
    with caplog.at_level("INFO"):
        spark.committing().commit([message], 0)
    assert [record.getMessage() for record in caplog.records if record.name == "spark_kafka_sink"] == [
        "Skipped 1 row, because an earlier run has already committed the batch [q/0]"
    ]
    assert read_values(broker, "read_uncommitted") == ["a"]


def test_aborts_failed_micro_batch(spark: Spark, broker: EmbeddedBroker) -> None:
    batch_options = {"query_id": "q", "batch_id": "0"}
    message = spark.task(spark.batch(), rows("a"), **batch_options)
    spark.committing().abort([message, None], 0)
    assert (read_values(broker), open_count(broker)) == ([], 0)


def test_decided_job_without_key_names_the_command_that_finishes_it(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its commit is interrupted after the decision. Its prefix is generated, so no other job finishes the batch."""
    job = Spark(broker, monkeypatch)
    writer = job.job()
    message = job.task(writer, rows("a"))
    with patch.object(Driver, "_commit_transactions", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        writer.commit([message])
    writer.abort([message])
    prefix = writer._exactly_once_write.start.prefix
    (warning,) = [record.getMessage() for record in caplog.records if "The write failed" in record.msg]
    assert warning.startswith("[batch job] The write failed: it is decided or being decided")
    *_, last_remedy = warning.splitlines()
    assert last_remedy.startswith("- ")
    assert last_remedy.endswith("stop them first.")
    command = f"pykafka transactions finish --bootstrap-server HOST:PORT --prefix {prefix}"
    assert f"commit the open transactions with `{command}`" in caplog.text
    operations.finish({"bootstrap.servers": broker.bootstrap_servers}, prefix)
    assert read_values(broker) == ["a"]


def test_abort_of_decided_micro_batch_names_the_next_start(
    spark: Spark, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    message = spark.task(spark.batch(), rows("a"), query_id="q", batch_id="0")
    spark.committing().commit([message], 0)
    spark.committing().abort([message], 0)
    assert "`pykafka transactions` has taken over; the next start completes the batch if it is decided" in caplog.text
    assert read_values(broker) == ["a"]


@pytest.mark.parametrize("is_decided", [False, True])
def test_report_of_aborted_write_counts_no_rows(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_decided: bool
) -> None:
    """Rows of a decided batch stay in Kafka, so the report counts them."""
    spark = Spark(broker, monkeypatch, reportPath=str(tmp_path / "reports.jsonl"))
    writer = spark.job()
    message = spark.task(writer, rows("a", "b"))
    if is_decided:
        writer.commit([message])
    writer.abort([message])
    report = read_reports(str(tmp_path / "reports.jsonl"))[-1]
    assert (report.status, report.rows) == ("failed", 2 if is_decided else 0)
    assert sum(written.rows for written in merge_report_ranges([report]).get("t", {}).values()) == report.rows
    assert [task.rows for task in report.task_list] == [2]
    assert len(read_values(broker)) == report.rows


def test_unreported_micro_batch_leaves_no_open_transaction(spark: Spark, broker: EmbeddedBroker) -> None:
    """When a query is stopped, Spark kills its tasks and passes no messages to the abort."""
    spark.task(spark.batch(), rows("a"), query_id="q", batch_id="0")
    assert open_count(broker) == 1
    spark.committing().abort([None], 0)
    assert (read_values(broker), open_count(broker)) == ([], 0)


def test_abort_of_rerun_does_not_claim_that_first_run_is_invisible(
    spark: Spark, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A query is stopped before a task of the rerun has reported, so it is not known which micro-batch this was."""
    spark.committing().commit([spark.task(spark.batch(), rows("a"), query_id="q", batch_id="0")], 0)
    spark.batch()
    spark.committing().abort([None], 0)
    outcome = spark.batch()._exactly_once_write.abort([])  # as with Spark Connect and output mode `update`
    assert outcome.was_aborted
    for message in (caplog.text, outcome.message):
        assert "If an earlier run has committed the batch, its rows stay visible" in message
        assert "readers see none of its rows" not in message
    assert read_values(broker) == ["a"]


def test_does_not_commit_tasks_of_two_drivers_together(spark: Spark, broker: EmbeddedBroker) -> None:
    batch_options = {"query_id": "q", "batch_id": "0"}
    messages = [spark.task(spark.batch(), rows("a"), partition_id=part, **batch_options) for part in range(2)]
    with pytest.raises(DeliveryError, match="begun by several drivers"):
        spark.committing().commit(messages, 0)
    of_another_batch = dataclasses.replace(messages[1].task, batch_id="1", partition_id=7)
    messages[0] = dataclasses.replace(messages[1], task=of_another_batch)
    with pytest.raises(DeliveryError, match="reported 2 different batches"):
        spark.committing().commit(messages, 0)


def test_does_not_commit_batch_that_only_some_tasks_skipped(spark: Spark, broker: EmbeddedBroker) -> None:
    """The tasks of one start never disagree, but a message may come from elsewhere."""
    batch_options = {"query_id": "q", "batch_id": "0"}
    written = spark.task(spark.batch(), rows("a"), **batch_options)
    task = dataclasses.replace(written.task, partition_id=1)
    passed_over = dataclasses.replace(written, task=task, was_already_committed=True, transaction=None)
    with pytest.raises(DeliveryError, match="Some tasks have written the batch, and others have skipped it"):
        spark.committing().commit([written, passed_over], 0)
    assert read_values(broker) == []


def test_task_without_batch_id_writes_nothing(spark: Spark, broker: EmbeddedBroker) -> None:
    with pytest.raises(DeliveryError, match="query id and batch id"):
        spark.task(spark.batch(), rows("a"))
    assert read_values(broker, "read_uncommitted") == []


def test_tasks_reject_deleted_checkpoint_with_fixed_prefix(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = Spark(broker, monkeypatch, checkpointLocation="/checkpoint", transactionalIdPrefix="mine")
    spark.committing().commit([spark.task(spark.batch(), rows("a"), query_id="q", batch_id="5")], 5)
    with pytest.raises(ExactlyOnceError, match="the checkpoint was deleted"):
        spark.task(spark.batch(), rows("a"), query_id="another", batch_id="0")
    assert read_values(broker, "read_uncommitted") == ["a"]


def test_drivers_on_one_checkpoint_may_take_turns(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two notebooks use one checkpoint in turns. Each start is another driver."""
    for number in range(4):
        micro_batch(Spark(broker, monkeypatch, checkpointLocation="/checkpoint"), number, f"{number}")
    assert read_values(broker) == ["0", "1", "2", "3"]


def test_new_start_in_same_process_ends_open_transactions(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    before.task(before.batch(), rows("a"), query_id="q", batch_id="0")
    assert open_count(broker) == 1
    Spark(broker, monkeypatch, checkpointLocation="/checkpoint").batch()
    assert open_count(broker) == 0


def test_commits_rerun_stage_with_same_attempt_numbers(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    first = [spark.task(writer, rows("a"), partition_id=part, task_attempt_id=part) for part in range(2)]
    again = spark.task(writer, rows("a"), partition_id=1, task_attempt_id=7, stage_id=1)
    assert again.transaction is not None
    writer.commit([first[0], first[1]])
    assert read_values(broker) == ["a", "a"], "the message of the first run was there sooner"
    assert open_count(broker) == 0
