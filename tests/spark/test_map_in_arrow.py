"""Writes through mapInArrow, with a DataFrame that runs its tasks in this process."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.errors import ConfigurationError, DeliveryError, ExactlyOnceError
from spark_kafka_sink.exactly_once.job_names import describe_job
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.requests.transaction_admin import list_transactional_ids
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.spark import map_in_arrow, report_publishing, write_task
from spark_kafka_sink.spark.constants import (
    BATCH_ID_OPTION,
    MICRO_BATCH_OPTION,
    QUERY_ID_OPTION,
    STREAM_START_OPTION,
)
from spark_kafka_sink.spark.datasource import KafkaDataSource, plan_batch_write
from spark_kafka_sink.spark.map_in_arrow import should_use_map_in_arrow, write_with_map_in_arrow
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import PRODUCER_POOL
from spark_kafka_sink.spark.task_report import MicroBatchId, TaskIdentity
from spark_kafka_sink.spark.worker_log import LOGGER
from spark_kafka_sink.spark.writer import KafkaBatchWriter
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.exactly_once.embedded_query import connect_client, read_values

SCHEMA = StructType([StructField("value", StringType())])
EXACTLY_ONCE = {"deliveryguarantee": "exactly-once", "idempotencykey": "today"}
MICRO_BATCH = {
    "deliveryguarantee": "exactly-once",
    "checkpointlocation": "/checkpoint",
    MICRO_BATCH_OPTION: "true",
    QUERY_ID_OPTION: "q",
}

RunTask = Callable[[int], dict[str, bytes]]


@dataclasses.dataclass
class FakeFrame:
    """A fake DataFrame. `tasks` are the values of each partition, and `run` runs the tasks as Spark's scheduler would.

    The function of mapInArrow is pickled for each attempt, because each attempt runs in another process.
    """

    tasks: Sequence[Sequence[str]]
    monkeypatch: pytest.MonkeyPatch
    run: Callable[[FakeFrame], list[dict[str, bytes]]]
    schema: StructType = dataclasses.field(default_factory=lambda: SCHEMA)
    micro_batch: MicroBatchId | None = None
    write: bytes = b""
    result_schema: str = ""

    def toDF(self, *names: str) -> FakeFrame:  # noqa: N802
        fields = [StructField(name, field.dataType) for name, field in zip(names, self.schema.fields, strict=True)]
        return dataclasses.replace(self, schema=StructType(fields))

    def mapInArrow(self, function: Any, schema: str) -> FakeFrame:  # noqa: N802
        assert all(name.isidentifier() for name in self.schema.fieldNames()), "Spark resolves the columns by name"
        return dataclasses.replace(self, write=pickle.dumps(function), result_schema=schema)

    def collect(self) -> list[dict[str, bytes]]:
        assert self.result_schema == "report BINARY"
        return self.run(self)

    def run_task(self, partition: int, attempt: int = 0) -> dict[str, bytes]:
        task_attempt = partition * 10 + attempt
        query_id, batch_id = self.micro_batch or (None, None)
        identity = TaskIdentity(partition, attempt, task_attempt, 0, query_id=query_id, batch_id=batch_id)
        self.monkeypatch.setattr(write_task, "_build_task_identity", lambda context: identity)
        values = self.tasks[partition]
        (name,) = self.schema.fieldNames()
        rows = iter([pa.record_batch({name: list(values)})]) if values else iter(())
        (batch,) = pickle.loads(self.write)(rows)
        (row,) = batch.to_pylist()
        return dict(row)


def run_all(frame: FakeFrame) -> list[dict[str, bytes]]:
    return [frame.run_task(partition) for partition in range(len(frame.tasks))]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 2}) as broker:
        yield broker
    PRODUCER_POOL.close()


@pytest.fixture
def sink_options(broker: EmbeddedBroker, tmp_path: Path) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "topic": "t",
        "reportpath": str(tmp_path / "report.jsonl"),
    }


def open_count(broker: EmbeddedBroker) -> int:
    with connect_client(broker) as client:
        return len(list_transactional_ids(client, ONGOING))


def test_writes_rows_and_reports_all_tasks(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_with_map_in_arrow(FakeFrame([["a", "b"], [], ["c"]], monkeypatch, run_all), sink_options)
    assert read_values(broker) == ["a", "b", "c"]
    (report,) = read_reports(sink_options["reportpath"])
    assert (report.status, report.tasks, report.rows) == ("committed", 3, 3)


def test_writes_column_whose_name_spark_cannot_resolve(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = FakeFrame([["x"]], monkeypatch, run_all, StructType([StructField("a.b", StringType())]))
    write_with_map_in_arrow(frame, sink_options | {"valueformat": "json"})
    assert read_values(broker) == ['{"a.b":"x"}']


def test_writes_dataframe_without_partitions(sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (sink_options, sink_options | EXACTLY_ONCE):
        write_with_map_in_arrow(FakeFrame([], monkeypatch, run_all), options)
    assert [(report.status, report.tasks) for report in read_reports(sink_options["reportpath"])] == [
        ("committed", 0)
    ] * 2


def test_rejects_rerun_without_partitions_of_committed_job(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs no task for a DataFrame such as `frame.where("false")`, so no task finds out that the job is done."""
    once = sink_options | EXACTLY_ONCE
    write_with_map_in_arrow(FakeFrame([["a"]], monkeypatch, run_all), once)
    with pytest.raises(ExactlyOnceError, match=r"\(t: 1\) were committed, and this run has 0 rows"):
        write_with_map_in_arrow(FakeFrame([], monkeypatch, run_all), once)
    write_with_map_in_arrow(FakeFrame([], monkeypatch, run_all), once | {"idempotencykey": "tomorrow"})
    write_with_map_in_arrow(FakeFrame([], monkeypatch, run_all), once | {"onreplaymismatch": "warn"})
    assert read_values(broker) == ["a"]


def test_rejects_rerun_without_partitions_of_committed_micro_batch(
    sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(number: int, *tasks: Sequence[str], **more: str) -> None:
        frame = FakeFrame(tasks, monkeypatch, run_all, micro_batch=MicroBatchId("q", str(number)))
        write_with_map_in_arrow(frame, sink_options | MICRO_BATCH | {BATCH_ID_OPTION: str(number)} | more)

    run(7, ["a"])
    with pytest.raises(
        ExactlyOnceError, match=r"batch 7 of query q .* \(t: 1\) were committed, and this run has 0 rows"
    ):
        run(7)
    with pytest.raises(ExactlyOnceError, match="batch 6 of query q must not be written"):
        run(6)
    run(7, onreplaymismatch="warn")
    run(8)
    run(9, ["b"])


def test_commits_reports_of_hundreds_of_tasks(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = FakeFrame([[str(number)] for number in range(300)], monkeypatch, run_all)
    write_with_map_in_arrow(frame, sink_options)
    (report,) = read_reports(sink_options["reportpath"])
    assert (report.tasks, report.rows) == (300, 300)


def test_commits_only_attempts_whose_results_spark_returned(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both attempts of a speculative task finish, and Spark keeps the result of one."""

    def run(frame: FakeFrame) -> list[dict[str, bytes]]:
        frame.run_task(0, attempt=0)
        return [frame.run_task(0, attempt=1), frame.run_task(1)]

    write_with_map_in_arrow(FakeFrame([["a"], ["b"]], monkeypatch, run), sink_options | EXACTLY_ONCE)
    assert read_values(broker) == ["a", "b"]
    assert open_count(broker) == 0


def test_failed_job_aborts_transactions_of_finished_tasks(
    broker: EmbeddedBroker,
    sink_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(frame: FakeFrame) -> list[dict[str, bytes]]:
        frame.run_task(0)
        assert open_count(broker) == 1
        raise RuntimeError("of Spark")

    with pytest.raises(RuntimeError, match="of Spark"):
        write_with_map_in_arrow(FakeFrame([["a"], ["b"]], monkeypatch, fail), sink_options | EXACTLY_ONCE)
    assert (read_values(broker), open_count(broker)) == ([], 0)
    assert "The write failed: it was aborted" in caplog.text
    assert [report.status for report in read_reports(sink_options["reportpath"])] == ["failed"]
    write_with_map_in_arrow(FakeFrame([["a"], ["b"]], monkeypatch, run_all), sink_options | EXACTLY_ONCE)
    assert read_values(broker) == ["a", "b"]


def test_failed_micro_batch_that_is_already_committed_is_not_reported_as_aborted(
    broker: EmbeddedBroker,
    sink_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The query failed after the commit and before the checkpoint, and then the rerun of the batch fails."""

    def fail(frame: FakeFrame) -> list[dict[str, bytes]]:
        frame.run_task(0)
        raise RuntimeError("of Spark")

    stream = sink_options | MICRO_BATCH | {BATCH_ID_OPTION: "7"}
    batch = MicroBatchId("q", "7")
    write_with_map_in_arrow(
        FakeFrame([["a"]], monkeypatch, run_all, micro_batch=batch), stream | {STREAM_START_OPTION: "first"}
    )
    with pytest.raises(RuntimeError, match="of Spark"):
        write_with_map_in_arrow(
            FakeFrame([["a"]], monkeypatch, fail, micro_batch=batch), stream | {STREAM_START_OPTION: "second"}
        )
    assert read_values(broker) == ["a"]
    assert "The write failed: the decision log says that an earlier run has committed this batch" in caplog.text
    assert "was aborted" not in caplog.text
    reports = read_reports(sink_options["reportpath"])
    assert [(report.batch, report.status) for report in reports] == [("q/7", "committed"), ("q/7", "failed")]


def test_interrupted_job_aborts_its_transactions(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(frame: FakeFrame) -> list[dict[str, bytes]]:
        frame.run_task(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_with_map_in_arrow(FakeFrame([["a"]], monkeypatch, interrupt), sink_options | EXACTLY_ONCE)
    assert (read_values(broker), open_count(broker)) == ([], 0)


def test_interrupt_during_commit_is_raised_after_its_end(
    broker: EmbeddedBroker,
    sink_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits = iter([KeyboardInterrupt(), KeyboardInterrupt()])

    def wait_with_interrupts(results: list[Future[None]]) -> None:
        interrupt = next(waits, None)
        if interrupt is not None:
            raise interrupt
        wait(results)

    monkeypatch.setattr(map_in_arrow, "wait", wait_with_interrupts)
    with pytest.raises(KeyboardInterrupt):
        write_with_map_in_arrow(FakeFrame([["a"], ["b"], ["c"]], monkeypatch, run_all), sink_options | EXACTLY_ONCE)
    assert (read_values(broker), open_count(broker)) == (["a", "b", "c"], 0)
    assert "cannot be interrupted now" in caplog.text
    assert "The write failed" not in caplog.text


def test_interrupt_while_report_is_published_does_not_fail_the_write(
    broker: EmbeddedBroker,
    sink_options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publishing, interrupted = threading.Event(), threading.Event()
    publish_report = report_publishing.publish_report

    def publish_late(options: SinkOptions, report: WriteReport) -> None:
        publishing.set()
        interrupted.wait()
        publish_report(options, report)

    def wait_with_interrupt(results: list[Future[None]]) -> None:
        publishing.wait()
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        wait(results)

    monkeypatch.setattr(report_publishing, "publish_report", publish_late)
    monkeypatch.setattr(map_in_arrow, "wait", wait_with_interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_with_map_in_arrow(FakeFrame([["a"]], monkeypatch, run_all), sink_options | EXACTLY_ONCE)
    assert (read_values(broker), open_count(broker)) == (["a"], 0)
    assert [report.status for report in read_reports(sink_options["reportpath"])] == ["committed"]
    assert "The write failed" not in caplog.text


def test_task_that_outlives_its_job_writes_nothing(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark kills the tasks of a failed job without waiting until they have ended."""
    frames: list[FakeFrame] = []

    def fail(frame: FakeFrame) -> list[dict[str, bytes]]:
        frames.append(frame)
        raise RuntimeError("of Spark")

    with pytest.raises(RuntimeError, match="of Spark"):
        write_with_map_in_arrow(FakeFrame([["a"]], monkeypatch, fail), sink_options | EXACTLY_ONCE)
    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        frames[0].run_task(0)
    assert (read_values(broker), open_count(broker)) == ([], 0)


def test_failed_job_warns_that_tasks_may_have_written(
    sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(frame: FakeFrame) -> list[dict[str, bytes]]:
        frame.run_task(0)
        raise RuntimeError("of Spark")

    with pytest.raises(RuntimeError, match="of Spark"):
        write_with_map_in_arrow(FakeFrame([["a"], ["b"]], monkeypatch, fail), sink_options)
    assert "Spark returned no reports of its tasks. They may have written rows" in caplog.text
    (report,) = read_reports(sink_options["reportpath"])
    assert (report.status, report.tasks) == ("failed", 0)


def test_job_without_name_names_this_process_as_driver(sink_options: dict[str, str]) -> None:
    writer = plan_batch_write(sink_options | {"deliveryguarantee": "exactly-once"}, SCHEMA)
    exactly_once = writer._exactly_once_write
    assert exactly_once is not None
    assert f"driver process {os.getpid()} on" in describe_job(exactly_once.start.prefix)


def test_rejects_two_reports_of_one_task(
    broker: EmbeddedBroker, sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = FakeFrame([["a"]], monkeypatch, lambda frame: [frame.run_task(0), frame.run_task(0, attempt=1)])
    with pytest.raises(DeliveryError, match="1 partitions were committed by more than one task"):
        write_with_map_in_arrow(frame, sink_options | EXACTLY_ONCE)
    assert (read_values(broker), open_count(broker)) == ([], 0)


def test_raises_error_of_the_job_if_it_cannot_be_aborted(
    sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(frame: FakeFrame) -> list[dict[str, bytes]]:
        raise RuntimeError("of Spark")

    def cannot_abort(*arguments: object) -> None:
        raise DeliveryError("no broker")

    monkeypatch.setattr(KafkaBatchWriter, "abort_job", cannot_abort)
    with pytest.raises(RuntimeError, match="of Spark"):
        write_with_map_in_arrow(FakeFrame([["a"]], monkeypatch, fail), sink_options)
    assert "Could not abort the failed write: no broker" in caplog.text


def test_leaves_logging_to_the_program(sink_options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The data source configures logging in Spark's processes, but this path runs in the user's program."""
    handlers, level = list(LOGGER.handlers), LOGGER.level
    monkeypatch.setattr(LOGGER, "handlers", [])
    LOGGER.setLevel(logging.NOTSET)
    try:
        write_with_map_in_arrow(FakeFrame([], monkeypatch, run_all), sink_options)
        assert (LOGGER.handlers, LOGGER.level) == ([], logging.NOTSET)
    finally:
        LOGGER.handlers, LOGGER.level = handlers, level


@pytest.mark.parametrize("has_data_sources", [True, False])
@pytest.mark.parametrize(
    ("value", "expected"), [("mapInArrow", True), (" MAPINARROW ", True), ("", None), ("unknown", None)]
)
def test_uses_map_in_arrow_if_set_or_without_data_sources(
    monkeypatch: pytest.MonkeyPatch, has_data_sources: bool, value: str, expected: bool | None
) -> None:
    monkeypatch.setattr(map_in_arrow, "HAS_PYTHON_DATA_SOURCES", has_data_sources)
    uses = should_use_map_in_arrow({"writemethod": value}, is_connect=False)
    assert uses is (not has_data_sources if expected is None else expected)


def test_rejects_data_source_on_spark_without_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"writemethod": "datasource"}
    monkeypatch.setattr(map_in_arrow, "HAS_PYTHON_DATA_SOURCES", True)
    assert not should_use_map_in_arrow(options, is_connect=False)
    monkeypatch.setattr(map_in_arrow, "HAS_PYTHON_DATA_SOURCES", False)
    with pytest.raises(ConfigurationError, match=r"this Spark has no Python data sources. Remove the option, or use"):
        should_use_map_in_arrow(options, is_connect=False)


def test_rejects_map_in_arrow_with_spark_connect() -> None:
    with pytest.raises(ConfigurationError, match="'mapInArrow', which is not supported with Spark Connect"):
        should_use_map_in_arrow({"writemethod": "mapInArrow"}, is_connect=True)


def test_data_source_rejects_map_in_arrow_without_register(sink_options: dict[str, str]) -> None:
    source = KafkaDataSource(sink_options | {"writemethod": "mapInArrow"})
    for create_writer in (source.writer, source.streamWriter):
        with pytest.raises(
            ConfigurationError, match=r"'mapInArrow', which requires spark_kafka_sink.register\(spark\)"
        ):
            create_writer(SCHEMA, False)
