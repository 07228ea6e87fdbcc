"""What a task has written: the commit message that it hands to Spark, and the sum of them that the driver makes.

Only what brokers have acknowledged is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import WriteTotals

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.batch_start import BatchStart
    from spark_kafka_sink.reports.write_report import TaskSummary, WriteReport
    from spark_kafka_sink.requests.transaction_identity import TransactionIdentity


@dataclass(frozen=True)
class TaskIdentity:
    """Which attempt of which task. `query_id` and `batch_id` are set in streams only."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    stage_id: int
    application_id: str | None = None
    query_id: str | None = None
    batch_id: str | None = None

    @property
    def batch(self) -> str:
        """What the rows belong to: a micro-batch, or a stage of a batch job."""
        if self.query_id is not None:
            return f"{self.query_id}/{self.batch_id}"
        return f"{self.application_id}/stage-{self.stage_id}"


@dataclass
class TaskReport(WriterCommitMessage):
    """The commit message of one task: all of its records are acknowledged, or in the dead-letter topic, but for acks=0.

    WriteReport, which has the sums of all tasks, describes the fields.
    """

    task: TaskIdentity
    partitions: dict[str, dict[int, OffsetRange]] = field(default_factory=dict)
    totals: WriteTotals = field(default_factory=WriteTotals)
    errors: dict[str, int] = field(default_factory=dict)
    started_ms: int = 0
    duration_ms: int = 0
    host: str = ""
    is_acknowledged: bool = True
    was_already_committed: bool = False
    """Exactly once: an earlier run has committed this batch, so nothing was written now."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    """Exactly once: the rows that were not written for this reason, by topic."""
    skipped_bytes: int = 0
    transaction: TransactionIdentity | None = None
    """Exactly once: where the rows are, until the driver commits it."""
    start: BatchStart | None = None
    """Exactly once: what the driver that commits must know of the one that began."""

    def rows_by_topic(self) -> dict[str, int]:
        """The rows that were written, or passed over."""
        written = {topic: sum(part.rows for part in parts.values()) for topic, parts in self.partitions.items()}
        return self.skipped_rows if self.was_already_committed else written


def build_write_report(
    reports: Sequence[TaskReport], batch: str | None = None, status: str = "committed"
) -> WriteReport:
    """The report of a write: the sum of its tasks' reports. Called on the driver."""
    from spark_kafka_sink.reports.write_report import MAX_LISTED_TASKS, WriteReport, merge_offset_ranges, sum_errors

    totals = sum((report.totals for report in reports), WriteTotals())
    started_ms = min((report.started_ms for report in reports), default=0)
    longest = sorted(reports, key=lambda report: report.duration_ms, reverse=True)
    return WriteReport(
        batch=batch or (reports[0].task.batch if reports else "no tasks"),
        status=status,
        is_acknowledged=all(report.is_acknowledged for report in reports),
        started_ms=started_ms,
        duration_ms=max((report.started_ms + report.duration_ms for report in reports), default=0) - started_ms,
        tasks=len(reports),
        partitions=merge_offset_ranges(report.partitions for report in reports),
        errors=sum_errors(report.errors for report in reports),
        longest_task_ms=longest[0].duration_ms if longest else 0,
        task_list=tuple(_summary(report) for report in longest[:MAX_LISTED_TASKS]),
        **vars(totals),
    )


def _summary(report: TaskReport) -> TaskSummary:
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
