"""Task reports and write reports. Tasks return task reports, from which the driver builds the write report.

Except with acks=0, a report counts only records that brokers have acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.spark.pyspark_versions import WriterCommitMessage

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.batch_start import BatchStart
    from spark_kafka_sink.reports.write_report import TaskSummary, WriteReport
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


BATCH_JOB_LABEL = "batch job"
"""The name of a batch job in reports if no task has reported an application id."""


class MicroBatchId(NamedTuple):
    """The ids of a micro-batch, as Spark provides them. Its string form is the batch's name in reports."""

    query_id: str
    batch_id: str

    def __str__(self) -> str:
        return f"{self.query_id}/{self.batch_id}"


@dataclass(frozen=True)
class TaskIdentity:
    """The ids of a task attempt, from Spark's TaskContext. `query_id` and `batch_id` are set only in a stream."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    stage_id: int
    application_id: str | None = None
    query_id: str | None = None
    batch_id: str | None = None

    @property
    def batch(self) -> str:
        """The name of the task's batch in reports.

        It is `<query id>/<batch id>` for a stream, and `<application id>/stage-<stage id>` for a batch job.
        """
        if self.query_id is not None:
            return str(MicroBatchId(self.query_id, str(self.batch_id)))
        return BATCH_JOB_LABEL if self.application_id is None else f"{self.application_id}/stage-{self.stage_id}"


@dataclass
class TaskReport(WriterCommitMessage):
    """The commit message of one task.

    Except with acks=0, a task returns its report only after all of its records were acknowledged or written to the
    dead-letter topic. WriteReport adds up the reports of all tasks, and documents the fields without a description.
    """

    task: TaskIdentity
    written_ranges: dict[str, dict[int, OffsetRange]] = field(default_factory=dict)
    """The offsets of the rows, by topic and partition."""
    totals: WriteTotals = field(default_factory=WriteTotals)
    error_counts: dict[str, int] = field(default_factory=dict)
    """The number of rejected records that became dead letters, by the name of the error class."""
    started_ms: int = 0
    duration_ms: int = 0
    host: str = ""
    is_acknowledged: bool = True
    was_already_committed: bool = False
    """Whether this task wrote nothing because an earlier run had already committed this batch (exactly-once only)."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """The number of rows skipped because the batch was already committed, by topic (exactly-once only)."""
    skipped_bytes: int = 0
    transaction: TransactionIdentity | None = None
    """The open transaction that contains the rows until the driver commits it (exactly-once only)."""
    batch_start: BatchStart | None = None
    """The batch's start, for the process that commits the batch (exactly-once streams only)."""

    def rows_by_topic(self) -> dict[str, int]:
        """Return the number of rows written, or skipped if the batch was already committed, by topic."""
        if self.was_already_committed:
            return self.skipped_rows
        return {
            topic: sum(offsets.rows for offsets in partition_ranges.values())
            for topic, partition_ranges in self.written_ranges.items()
        }


def build_write_report(
    reports: Sequence[TaskReport], batch: str | None = None, status: str = "committed"
) -> WriteReport:
    """Build the report of a write from the reports of its tasks. Called on the driver.

    The report lists only the slowest MAX_LISTED_TASKS tasks, slowest first.

    `batch`: the batch's name; defaults to the name in the first task's report.
    """
    # Import these names here, because tasks import this module but build no write reports.
    from spark_kafka_sink.reports.write_report import MAX_LISTED_TASKS, WriteReport, merge_offset_ranges, sum_errors

    totals = sum((report.totals for report in reports), WriteTotals())
    started_ms = min((report.started_ms for report in reports), default=0)
    slowest_reports = sorted(reports, key=lambda report: report.duration_ms, reverse=True)
    return WriteReport(
        batch=batch or (reports[0].task.batch if reports else "no tasks"),
        status=status,
        is_acknowledged=all(report.is_acknowledged for report in reports),
        started_ms=started_ms,
        duration_ms=max((report.started_ms + report.duration_ms for report in reports), default=0) - started_ms,
        tasks=len(reports),
        partitions=merge_offset_ranges(report.written_ranges for report in reports),
        errors=sum_errors(report.error_counts for report in reports),
        longest_task_ms=slowest_reports[0].duration_ms if slowest_reports else 0,
        task_list=tuple(_build_task_summary(report) for report in slowest_reports[:MAX_LISTED_TASKS]),
        **vars(totals),
    )


def _build_task_summary(report: TaskReport) -> TaskSummary:
    """Return the part of a task's report that becomes part of the write's report."""
    from spark_kafka_sink.reports.write_report import TaskSummary

    return TaskSummary(
        partition_id=report.task.partition_id,
        attempt=report.task.attempt_number,
        host=report.host,
        rows=report.totals.rows,
        bytes=report.totals.bytes,
        duration_ms=report.duration_ms,
        retries=report.totals.producer.retries,
        blocked_ms=round(report.totals.producer.blocked_ms),
    )
