"""Commits and aborts of a write on the driver: the reports that are required, and the lines that are logged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.writer import KafkaStreamWriter, abort_and_report, commit_and_report, validate_reports
from tests.spark.task_reports import OPTIONS, create_task_report


def test_reports_write_without_tasks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        commit_and_report(OPTIONS, [], "batch 4")
    assert "Wrote 0 rows (0 B); 0 tasks" in caplog.text


@pytest.mark.parametrize(("dead_letters", "level"), [(0, "INFO"), (1, "WARNING")])
def test_logs_commit_with_dead_letters_as_warning(
    caplog: pytest.LogCaptureFixture, dead_letters: int, level: str
) -> None:
    one = create_task_report(0)
    one.totals = WriteTotals(dead_letters=dead_letters)
    with caplog.at_level("INFO"):
        commit_and_report(OPTIONS, [one])
    (line,) = [record for record in caplog.records if record.getMessage().startswith("Wrote")]
    assert line.levelname == level


def test_does_not_commit_when_a_task_report_is_missing() -> None:
    with pytest.raises(DeliveryError, match="1 of 2 tasks"):
        validate_reports([create_task_report(0), None])


def test_error_without_any_task_report_names_continuous_processing() -> None:
    """Spark never runs the sink's tasks in a continuous stream. Without register(), only this error explains that."""
    with pytest.raises(ConfigurationError, match=r"trigger\(continuous=\.\.\.\) is not supported"):
        KafkaStreamWriter(OPTIONS, ColumnPlan(value=0), "run").commit([None, None], 0)


def test_does_not_commit_a_partition_twice() -> None:
    with pytest.raises(DeliveryError, match="more than one task"):
        validate_reports([create_task_report(0), create_task_report(0, attempt=1)])


def test_abort_logs_rows_that_remain_in_kafka(caplog: pytest.LogCaptureFixture) -> None:
    abort_and_report(OPTIONS, [create_task_report(0), None, None], "batch 7")
    logged = caplog.text
    assert "after 1 of 3 tasks had finished. The rows of finished tasks remain in Kafka" in logged
    assert "Wrote 10 rows" in logged


def test_abort_mentions_no_rows_of_finished_tasks_when_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    empty = dataclasses.replace(create_task_report(0), totals=WriteTotals(), written_ranges={})
    for messages in ([None, None], [empty, None]):
        caplog.clear()
        abort_and_report(OPTIONS, messages, "batch 7")
        (line,) = caplog.messages
        assert line.startswith("The write failed, and no finished task had written a row (")
        assert f"({len(messages) - messages.count(None)} of 2 tasks had finished)" in line
        assert "Failed tasks may have written rows" in line
        assert "0 rows" not in line
        assert "remain" not in line


def test_abort_mentions_rows_that_became_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    report = dataclasses.replace(create_task_report(0), totals=WriteTotals(dead_letters=3), written_ranges={})
    abort_and_report(OPTIONS, [report, None], "batch 7")
    assert "The rows of finished tasks remain in Kafka" in caplog.text
    assert "3 dead letters" in caplog.text


def test_logs_rows_with_acks_0_as_sent(caplog: pytest.LogCaptureFixture) -> None:
    unacknowledged = dataclasses.replace(create_task_report(0), is_acknowledged=False)
    with caplog.at_level("INFO"):
        commit_and_report(OPTIONS, [unacknowledged, create_task_report(1)])
        abort_and_report(OPTIONS, [unacknowledged, None])
    assert caplog.text.count("Sent, not acknowledged (acks=0): ") == 2
    assert "The rows of finished tasks may be in Kafka" in caplog.text
    assert "wrote" not in caplog.text


def test_report_path_collects_one_line_for_each_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    options = SinkOptions(producer_options={}, report_path=path)
    commit_and_report(options, [create_task_report(0)], "batch 12")
    commit_and_report(options, [create_task_report(0, first=10)], "batch 13")
    assert [report.partitions["orders"][0] for report in read_reports(path)] == [
        OffsetRange(0, 9, 10),
        OffsetRange(10, 19, 10),
    ]
