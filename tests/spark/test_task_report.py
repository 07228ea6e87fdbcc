"""The report of a task, and the report of a write: the sum of the tasks' reports."""

from __future__ import annotations

import pickle

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport, build_write_report
from tests.spark.task_reports import create_task_report


def test_merges_offsets_of_all_tasks() -> None:
    report = build_write_report(
        [create_task_report(0, first=0), create_task_report(1, first=10), TaskReport(TaskIdentity(2, 0, 102, 3))]
    )
    assert report.partitions == {"orders": {0: OffsetRange(0, 19, 20)}}
    assert (report.tasks, report.rows, report.bytes, report.retries) == (3, 20, 2000, 2)


def test_unknown_offset_is_not_the_first_offset() -> None:
    unknown = OffsetRange(-1, -1, 3, rows_without_offset=3)
    assert unknown + OffsetRange(7, 9, 3) == OffsetRange(7, 9, 6, rows_without_offset=3)


def test_logs_written_rows_in_one_line() -> None:
    assert build_write_report([create_task_report(0), create_task_report(1, first=10)]).line() == (
        "Wrote 20 rows (2.0 KB) to orders (1 partition); 2 tasks, the longest 5 ms; 2 records retried; "
        "0 dead letters [query/12]"
    )


def test_log_line_names_few_topics_and_counts_the_others() -> None:
    partitions = {f"t{number:03}": {0: OffsetRange(0, 0, 1)} for number in range(300)}
    line = build_write_report(
        [TaskReport(TaskIdentity(0, 0, 0, 0), written_ranges=partitions, totals=WriteTotals(rows=300))]
    ).line()
    assert "to t000 (1 partition), t001 (1 partition), t002 (1 partition)" in line
    assert "t004 (1 partition), 295 other topics; 1 task," in line
    assert len(line) < 300


def test_commit_message_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(create_task_report(1))) == create_task_report(1)
