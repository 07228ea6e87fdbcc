"""What Spark calls: a writer for batch jobs and one for streams, two thin classes over one task and one commit.

A writer is made on the driver and pickled to the tasks, so it holds configuration only. In a stream the one that
commits is made anew in another process: whatever it needs to know comes with the tasks' reports.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pyspark_versions import DataSourceStreamArrowWriter
from spark_kafka_sink.spark.task_report import TaskReport, build_write_report
from spark_kafka_sink.spark.worker_log import LOGGER, install_stderr_handler
from spark_kafka_sink.spark.worker_process import freeze_gc
from spark_kafka_sink.spark.write_task import write_rows

if TYPE_CHECKING:
    from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite, UnreportedBatch

BATCH_JOB_LABEL = "batch job"
CONTINUOUS_TRIGGER_MESSAGE = (
    "trigger(continuous=...) is not available for 'pykafka': continuous processing does not run sinks in Python. "
    'Use micro-batches: .trigger(processingTime="0 seconds").'
)


class _TaskWriter:
    """What both writers share. `once`: what the driver has begun; None for at least once."""

    def __init__(self, options: SinkOptions, plan: ColumnPlan, once: ExactlyOnceWrite | None = None) -> None:
        self._options = options
        self._plan = plan
        self._once = once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._plan, iterator, once=self._once)


class KafkaBatchWriter(_TaskWriter, DataSourceArrowWriter):
    """The writer of a batch job. The same object begins the write and commits it."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        freeze_gc()
        commit(self._options, validate_reports(messages), BATCH_JOB_LABEL, self._once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options, messages, BATCH_JOB_LABEL, self._once)


class KafkaStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """The writer of a stream. Its copy in the process that commits has no `once`.

    `run`: which start of the query it is, if `register` has noted that.
    """

    def __init__(
        self, options: SinkOptions, plan: ColumnPlan, run: str | None, once: ExactlyOnceWrite | None = None
    ) -> None:
        super().__init__(options, plan, once)
        self._run = run

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if messages and not select_task_reports(messages):
            # Continuous processing never calls `write`. Spark only logs what is raised here, and goes on.
            raise ConfigurationError(f"No task has written anything. {CONTINUOUS_TRIGGER_MESSAGE}")
        commit(self._options, validate_reports(messages), f"batch {batchId}", self._once_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort(self._options, messages, f"batch {batchId}", self._once_of(messages))

    def _once_of(self, messages: Sequence[WriterCommitMessage | None]) -> ExactlyOnceWrite | UnreportedBatch | None:
        if self._options.exactly_once is None:
            return None
        from spark_kafka_sink.spark.exactly_once import restore_from_reports

        return restore_from_reports(self._options, select_task_reports(messages), self._run)


def select_task_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def validate_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """Every task must have said what it wrote, and no two tasks of one partition."""
    reports = select_task_reports(messages)
    if len(reports) != len(messages):
        raise DeliveryError(
            f"{len(messages) - len(reports)} of {len(messages)} tasks have not reported what they wrote, so their rows "
            "may be missing from Kafka. Run the write again."
        )
    twice = len(reports) - len({report.task.partition_id for report in reports})
    if twice:
        raise DeliveryError(f"{twice} partitions were committed by more than one task. Run the write again.")
    return reports


def commit(
    options: SinkOptions,
    reports: Sequence[TaskReport],
    name: str = BATCH_JOB_LABEL,
    once: ExactlyOnceWrite | UnreportedBatch | None = None,
) -> None:
    """Make what was written visible, if it is not so yet; then say in one line what was written.

    `name`: of the batch, where no task says it.
    """
    from spark_kafka_sink.spark.report_publishing import publish  # not for tasks

    if once is not None:
        once.commit(reports)
    report = build_write_report(reports, None if reports else name)
    install_stderr_handler()
    # Rows that were refused are not where a reader of the topic looks for them.
    LOGGER.log(logging.WARNING if report.dead_letters else logging.INFO, "%s", report.line())
    if any(each.was_already_committed for each in reports):
        LOGGER.info("An earlier run has committed this already: its rows were passed over [%s]", report.batch)
    publish(options, report)


def abort(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    name: str = BATCH_JOB_LABEL,
    once: ExactlyOnceWrite | UnreportedBatch | None = None,
) -> None:
    """Say what is in Kafka. Transactions are aborted, if there are any; else nothing can be taken back."""
    from spark_kafka_sink.spark.report_publishing import publish

    reports = select_task_reports(messages)
    report = build_write_report(reports, None if reports else name, "failed")
    install_stderr_handler()
    if once is not None:
        was_aborted, words = once.abort(reports)
        LOGGER.warning("The write failed: %s [%s]", words, report.batch)
        if was_aborted:
            report = dataclasses.replace(report, rows=0, bytes=0, partitions={})
    elif report.rows or report.dead_letters:
        LOGGER.warning(
            "The write failed after %d of %d tasks had finished. The rows of finished tasks %s in Kafka, and running "
            "the write again writes them again: %s",
            len(reports),
            len(messages),
            "stay" if report.is_acknowledged else "may be",
            report.line(),
        )
    else:
        LOGGER.warning(
            "The write failed, and no finished task had written a row (%d of %d tasks had finished). Failed tasks may "
            "have written rows, which running the write again writes again. [%s]",
            len(reports),
            len(messages),
            report.batch,
        )
    publish(options, report)
