"""The report of a write: the sum of the tasks' reports. The driver does not commit when one is missing."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals, WriteTotals
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport, build_write_report
from spark_kafka_sink.spark.writer import KafkaStreamWriter, abort, commit, validate_reports

OPTIONS = SinkOptions(producer_options={})


def task(partition: int, *, rows: int = 10, first: int = 0, attempt: int = 0) -> TaskReport:
    return TaskReport(
        TaskIdentity(partition, attempt, 100 + partition, 3, "app", "query", "12"),
        partitions={"orders": {0: OffsetRange(first, first + rows - 1, rows)}},
        totals=WriteTotals(rows=rows, bytes=rows * 100, producer=Totals(retries=1)),
        duration_ms=5 * partition,
    )


def test_merges_offsets_of_all_tasks() -> None:
    report = build_write_report([task(0, first=0), task(1, first=10), TaskReport(TaskIdentity(2, 0, 102, 3))])
    assert report.partitions == {"orders": {0: OffsetRange(0, 19, 20)}}
    assert (report.tasks, report.rows, report.bytes, report.retries) == (3, 20, 2000, 2)


def test_unknown_offset_is_not_the_first_offset() -> None:
    unknown = OffsetRange(-1, -1, 3, rows_without_offset=3)
    assert unknown + OffsetRange(7, 9, 3) == OffsetRange(7, 9, 6, rows_without_offset=3)


def test_logs_written_rows_in_one_line() -> None:
    assert build_write_report([task(0), task(1, first=10)]).line() == (
        "wrote 20 rows (2.0 KB) to orders (1 partition); 2 tasks, the longest 5 ms; 2 records retried; "
        "0 dead letters [query/12]"
    )


def test_log_line_names_few_topics_and_counts_the_others() -> None:
    partitions = {f"t{number:03}": {0: OffsetRange(0, 0, 1)} for number in range(300)}
    line = build_write_report(
        [TaskReport(TaskIdentity(0, 0, 0, 0), partitions=partitions, totals=WriteTotals(rows=300))]
    ).line()
    assert "to t000 (1 partition), t001 (1 partition), t002 (1 partition)" in line
    assert "t004 (1 partition), 295 other topics; 1 task," in line
    assert len(line) < 300


def test_reports_write_without_tasks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        commit(OPTIONS, [], "batch 4")
    assert "wrote 0 rows (0 B); 0 tasks" in caplog.text


@pytest.mark.parametrize(("dead_letters", "level"), [(0, "INFO"), (1, "WARNING")])
def test_logs_commit_with_dead_letters_as_warning(
    caplog: pytest.LogCaptureFixture, dead_letters: int, level: str
) -> None:
    one = task(0)
    one.totals = WriteTotals(dead_letters=dead_letters)
    with caplog.at_level("INFO"):
        commit(OPTIONS, [one])
    (line,) = [record for record in caplog.records if record.getMessage().startswith("wrote")]
    assert line.levelname == level


def test_does_not_commit_when_a_task_report_is_missing() -> None:
    with pytest.raises(DeliveryError, match="1 of 2 tasks"):
        validate_reports([task(0), None])


def test_error_without_any_task_report_names_continuous_processing() -> None:
    """Spark never runs the sink's tasks in a continuous stream. Without register(), only this error explains that."""
    with pytest.raises(ConfigurationError, match=r"trigger\(continuous=\.\.\.\) is not supported"):
        KafkaStreamWriter(OPTIONS, ColumnPlan(value=0), "run").commit([None, None], 0)


def test_does_not_commit_a_partition_twice() -> None:
    with pytest.raises(DeliveryError, match="more than one task"):
        validate_reports([task(0), task(0, attempt=1)])


def test_abort_logs_rows_that_remain_in_kafka(caplog: pytest.LogCaptureFixture) -> None:
    abort(OPTIONS, [task(0), None, None], "batch 7")
    logged = caplog.text
    assert "after 1 of 3 tasks had finished. The rows of finished tasks remain in Kafka" in logged
    assert "wrote 10 rows" in logged


def test_abort_mentions_no_rows_of_finished_tasks_when_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    empty = dataclasses.replace(task(0), totals=WriteTotals(), partitions={})
    for messages in ([None, None], [empty, None]):
        caplog.clear()
        abort(OPTIONS, messages, "batch 7")
        (line,) = caplog.messages
        assert line.startswith("The write failed, and no finished task had written a row (")
        assert f"({len(messages) - messages.count(None)} of 2 tasks had finished)" in line
        assert "Failed tasks may have written rows" in line
        assert "0 rows" not in line
        assert "remain" not in line


def test_abort_mentions_rows_that_became_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    refused = dataclasses.replace(task(0), totals=WriteTotals(dead_letters=3), partitions={})
    abort(OPTIONS, [refused, None], "batch 7")
    assert "The rows of finished tasks remain in Kafka" in caplog.text
    assert "3 dead letters" in caplog.text


def test_logs_rows_with_acks_0_as_sent(caplog: pytest.LogCaptureFixture) -> None:
    unacknowledged = dataclasses.replace(task(0), is_acknowledged=False)
    with caplog.at_level("INFO"):
        commit(OPTIONS, [unacknowledged, task(1)])
        abort(OPTIONS, [unacknowledged, None])
    assert caplog.text.count("sent, not acknowledged (acks=0): ") == 2
    assert "The rows of finished tasks may be in Kafka" in caplog.text
    assert "wrote" not in caplog.text


def test_commit_message_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(task(1))) == task(1)


def test_report_path_collects_one_line_for_each_commit(tmp_path: Path) -> None:
    path = str(tmp_path / "reports.jsonl")
    options = SinkOptions(producer_options={}, report_path=path)
    commit(options, [task(0)], "batch 12")
    commit(options, [task(0, first=10)], "batch 13")
    assert [report.partitions["orders"][0] for report in read_reports(path)] == [
        OffsetRange(0, 9, 10),
        OffsetRange(10, 19, 10),
    ]
