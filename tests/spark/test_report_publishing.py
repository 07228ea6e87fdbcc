"""Destinations of a report. A write succeeds even if its report cannot be published."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_kafka_sink.errors import ConfigurationError, MetadataTimeoutError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.spark import report_publishing
from spark_kafka_sink.spark.checks import check_options_and_schema, check_servers_and_add_schema_ids
from spark_kafka_sink.spark.pool import PRODUCER_POOL
from spark_kafka_sink.spark.writer import abort_and_report, commit_and_report
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic
from tests.spark.task_reports import sink_options, task

RECEIVED_REPORTS: list[WriteReport] = []
PLAN = ColumnPlan(value=0, fixed_topic="orders")


def receive(report: WriteReport) -> None:
    RECEIVED_REPORTS.append(report)


def fail(report: WriteReport) -> None:
    raise RuntimeError("the user's own")


def exit_process(report: WriteReport) -> None:
    sys.exit(1)


@pytest.fixture(autouse=True)
def clear_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    RECEIVED_REPORTS.clear()
    report_publishing.clear_cache()
    monkeypatch.setitem(sys.modules, "callbacks_of_a_job", sys.modules[__name__])
    yield
    PRODUCER_POOL.close()


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"orders": 1, "reports": 1}) as broker:
        yield broker


def test_callback_gets_report() -> None:
    commit_and_report(sink_options(reportCallback="callbacks_of_a_job:receive"), [task()], "batch 12")
    assert [(report.batch, report.rows, report.status) for report in RECEIVED_REPORTS] == [
        ("query/12", 10, "committed")
    ]


def test_report_of_failed_write_has_successful_tasks() -> None:
    abort_and_report(sink_options(reportCallback="callbacks_of_a_job:receive"), [task(), None], "batch 12")
    assert [(report.tasks, report.rows, report.status) for report in RECEIVED_REPORTS] == [(1, 10, "failed")]


def test_report_topic_gets_report_as_record(broker: EmbeddedBroker) -> None:
    commit_and_report(sink_options(broker, reportTopic="reports"), [task()], "batch 12")
    records = read_topic(broker.bootstrap_servers, "reports")
    assert records.column("key").to_pylist() == [b"query"]
    assert json.loads(records.column("value").to_pylist()[0])["rows"] == 10


def test_publishes_report_to_file_topic_and_callback(broker: EmbeddedBroker, tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    options = sink_options(broker, reportTopic="reports", reportPath=path, reportCallback="callbacks_of_a_job:receive")
    commit_and_report(options, [task()], "batch 12")
    assert len(RECEIVED_REPORTS) == len(read_reports(path)) == len(read_topic(broker.bootstrap_servers, "reports")) == 1


def test_write_succeeds_when_publishing_the_report_fails(
    broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are already in Kafka. If the write failed, Spark would run it again and duplicate them."""
    path = str(tmp_path / "missing" / "reports.jsonl")
    commit_and_report(sink_options(reportPath=path, reportCallback="callbacks_of_a_job:fail"), [task()], "batch 12")
    assert f"The report could not be stored in {path}" in caplog.text
    assert "The report could not be passed to callbacks_of_a_job:fail" in caplog.text
    assert "the user's own" in caplog.text


def test_log_of_failed_report_does_not_show_query(caplog: pytest.LogCaptureFixture) -> None:
    options = sink_options(reportPath="s3://bucket/reports?endpoint_override=hush")
    with patch("pyarrow.fs.FileSystem", Mock(from_uri=Mock(side_effect=OSError("access denied")))):
        commit_and_report(options, [task()], "batch 12")
    assert "The report could not be stored in s3://bucket/reports. The rows" in caplog.text
    assert "s3://bucket/reports cannot be written: access denied. The credentials are those" in caplog.text
    assert "hush" not in caplog.text


def test_log_of_report_that_cannot_be_sent_names_options_as_spark_job_does(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(KafkaProducer, "send", Mock(side_effect=MetadataTimeoutError("unknown for max.block.ms")))
    commit_and_report(sink_options(broker, reportTopic="reports"), [task()], "batch 12")
    assert "The report could not be written to topic reports" in caplog.text
    assert "unknown for kafka.max.block.ms" in caplog.text


def test_callback_that_calls_exit_does_not_fail_the_write(caplog: pytest.LogCaptureFixture) -> None:
    commit_and_report(sink_options(reportCallback="callbacks_of_a_job:exit_process"), [task()], "batch 12")
    assert "The report could not be passed to callbacks_of_a_job:exit_process" in caplog.text


@pytest.mark.parametrize("line", ["raise ValueError('of the module')", "raise SystemExit('of the module')"])
def test_rejects_callback_module_that_fails_to_import(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "broken_callbacks.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        check_servers_and_add_schema_ids(sink_options(broker, reportCallback="broken_callbacks:f"), PLAN)
    assert "broken_callbacks:f cannot be used on the driver: of the module" in str(caught.value)


def test_report_has_publication_time_of_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.spark.report_publishing.time.time", lambda: 1_800_000_000.5)
    path = str(tmp_path / "reports.jsonl")
    commit_and_report(sink_options(reportPath=path), [task()], "batch 12")
    abort_and_report(sink_options(reportPath=path), [task()], "batch 12")
    reports = read_reports(path)
    assert [report.published_ms for report in reports] == [1_800_000_000_500, 1_800_000_000_500]
    assert {report.started_ms for report in reports} == {task().started_ms}, "the time of the executors"


def test_report_without_tasks_has_time_of_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    commit_and_report(sink_options(reportPath=path), [], "batch 4")
    assert read_reports(path)[0].started_ms > 1_700_000_000_000


def test_checks_report_path_and_callback_before_first_row(broker: EmbeddedBroker, tmp_path: Path) -> None:
    options = {"reportPath": f"{tmp_path}/missing/reports.jsonl", "reportCallback": "callbacks_of_a_job:misspelt"}
    with pytest.raises(ConfigurationError) as caught:
        check_servers_and_add_schema_ids(sink_options(broker, **options), PLAN)
    assert len(caught.value.problems) == 2
    assert "Option 'reportPath': " in caught.value.problems[0]
    assert "has no attribute 'misspelt'" in caught.value.problems[1]


@pytest.mark.parametrize("name", ["no-colon", "no_such_module:f", "callbacks_of_a_job:RECEIVED_REPORTS", "json:", ":f"])
def test_rejects_callback_that_is_not_callable(broker: EmbeddedBroker, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'reportCallback': {name} cannot be used on the driver"):
        check_servers_and_add_schema_ids(sink_options(broker, reportCallback=name), PLAN)


def test_reports_faults_of_report_options_with_all_others() -> None:
    schema = StructType([StructField("value", StringType())])
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t", "reportTopic": "t", "reportPath": "ftp://h/x"}
    with pytest.raises(ConfigurationError) as caught:
        check_options_and_schema(options, schema)
    path, topic = caught.value.problems
    assert path.startswith("Option 'reportPath' cannot be used: ftp: paths are not supported for reports.")
    assert topic.startswith("Option 'topic' is 't', and so is 'reportTopic'.")


def test_does_not_repeat_check_that_passed(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A stream must not fail if a file system is briefly unavailable, because its rows can still be written."""
    folder = tmp_path / "reports"
    folder.mkdir()
    options = sink_options(broker, reportPath=f"{folder}/reports.jsonl")
    check_servers_and_add_schema_ids(options, PLAN)
    folder.rmdir()
    check_servers_and_add_schema_ids(options, PLAN)
