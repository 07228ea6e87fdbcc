"""The writers that Spark calls: KafkaBatchWriter for batch jobs, and KafkaStreamWriter for streams.

A writer is created on the driver, then pickled and sent to the tasks. So it holds no connections, only configuration
and, for exactly-once delivery, the start of the batch. Each task returns a TaskReport as its commit message, and Spark
passes the messages of all tasks to `commit` or `abort`. The methods run in different processes:

    write                    in each task's Python worker
    write_in_map             in each task's Python worker, for a write through mapInArrow (map_in_arrow.py)
    commit, abort            in a separate Python process, so these methods also set up that process (logging, garbage
                             collection)
    commit_job, abort_job    in the user's program, for a write through mapInArrow; `commit` and `abort` also call them

In a stream, Spark creates a new writer in the process that commits. This writer gets everything it needs from the task
reports.
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import ConfigurationError, DeliveryError, IllegalStateError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pyspark_versions import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from spark_kafka_sink.spark.task_report import BATCH_JOB_LABEL, MicroBatchId, TaskReport, build_write_report
from spark_kafka_sink.spark.worker_log import LOGGER, install_stderr_handler
from spark_kafka_sink.spark.worker_process import update_gc_freeze
from spark_kafka_sink.spark.write_task import write_rows

if TYPE_CHECKING:
    from spark_kafka_sink.reports.write_report import WriteReport
    from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite, UnreportedBatch

REPORT_COLUMN = "report"
"""The name of the only column that `write_in_map` yields."""
CONTINUOUS_TRIGGER_MESSAGE = (
    "trigger(continuous=...) is not supported for 'pykafka': Spark's continuous processing does not run Python sinks. "
    'Use micro-batches: .trigger(processingTime="0 seconds").'
)


class _SinkWriter:
    """The base class of both writers, with the part that runs in the tasks.

    `exactly_once_write`: the exactly-once state; None for at-least-once delivery.
    """

    def __init__(
        self, options: SinkOptions, plan: ColumnPlan, exactly_once_write: ExactlyOnceWrite | None = None
    ) -> None:
        self._options = options
        self._plan = plan
        self._exactly_once_write = exactly_once_write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task and return the task's report. Raise DeliveryError if a record fails."""
        if self._options.exactly_once_options is not None and self._exactly_once_write is None:
            raise IllegalStateError("A task of an exactly-once write has no transaction to write in.")
        return write_rows(self._options, self._plan, iterator, exactly_once_write=self._exactly_once_write)


class KafkaBatchWriter(_SinkWriter, DataSourceArrowWriter):
    """The writer of a batch job, or of a micro-batch that runs as a batch job.

    Spark commits with a pickled copy of the writer that began the write, which still has `exactly_once_write`.

    `micro_batch`: the ids of the micro-batch; None for any other batch job.
    """

    def __init__(
        self,
        options: SinkOptions,
        plan: ColumnPlan,
        exactly_once_write: ExactlyOnceWrite | None = None,
        micro_batch: MicroBatchId | None = None,
    ) -> None:
        super().__init__(options, plan, exactly_once_write)
        self._batch_name = BATCH_JOB_LABEL if micro_batch is None else str(micro_batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Set up the process that commits, and commit the write."""
        update_gc_freeze()
        install_stderr_handler()
        self.commit_job(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Set up the process that aborts, and abort the write."""
        install_stderr_handler()
        self.abort_job(messages)

    def commit_job(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the write and publish its report.

        Raise DeliveryError if a task's report is missing or duplicated, or KafkaSinkError if the commit fails.
        """
        commit_and_report(self._options, validate_reports(messages), self._batch_name, self._exactly_once_write)

    def abort_job(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the write and publish its report.

        `messages`: the reports of the tasks that finished, and None for each task that did not.
        """
        abort_and_report(self._options, messages, self._batch_name, self._exactly_once_write)

    def write_in_map(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a mapInArrow task, and yield the task's pickled report as its only row."""
        report = pickle.dumps(self.write(batches))
        yield pa.record_batch([pa.array([report], pa.binary())], [REPORT_COLUMN])


class KafkaStreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """The writer of a stream.

    Spark creates another writer in the process that commits. There, `exactly_once_write` is None, and the exactly-once
    state is restored from the task reports.

    `stream_start_id`: an id for this run of the query; None if `register` was not called.
    """

    def __init__(
        self,
        options: SinkOptions,
        plan: ColumnPlan,
        stream_start_id: str | None,
        exactly_once_write: ExactlyOnceWrite | None = None,
    ) -> None:
        super().__init__(options, plan, exactly_once_write)
        self._stream_start_id = stream_start_id

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if messages and not select_task_reports(messages):
            # In continuous processing, Spark never calls `write`. It logs the error raised here and continues.
            raise ConfigurationError(f"No task has written anything. {CONTINUOUS_TRIGGER_MESSAGE}")
        install_stderr_handler()
        reports = validate_reports(messages)
        commit_and_report(self._options, reports, f"batch {batchId}", self._restore_exactly_once_write(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        install_stderr_handler()
        abort_and_report(self._options, messages, f"batch {batchId}", self._restore_exactly_once_write(messages))

    def _restore_exactly_once_write(
        self, messages: Sequence[WriterCommitMessage | None]
    ) -> ExactlyOnceWrite | UnreportedBatch | None:
        """Restore the exactly-once state from the task reports. Return None for at-least-once delivery."""
        if self._options.exactly_once_options is None:
            return None
        from spark_kafka_sink.spark.exactly_once import restore_from_reports  # needed only for exactly-once delivery

        return restore_from_reports(self._options, select_task_reports(messages), self._stream_start_id)


def select_task_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return the task reports among the commit messages. A task that did not finish has None as its message."""
    return [message for message in messages if isinstance(message, TaskReport)]


def validate_reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    """Return the reports of all tasks.

    Raise DeliveryError if a report is missing, or if two tasks have reported for the same partition.
    """
    reports = select_task_reports(messages)
    if len(reports) != len(messages):
        raise DeliveryError(
            f"{len(messages) - len(reports)} of {len(messages)} tasks have not reported what they wrote, so their rows "
            "may be missing from Kafka. Run the write again."
        )
    duplicate_count = len(reports) - len({report.task.partition_id for report in reports})
    if duplicate_count:
        raise DeliveryError(f"{duplicate_count} partitions were committed by more than one task. Run the write again.")
    return reports


def commit_and_report(
    options: SinkOptions,
    reports: Sequence[TaskReport],
    default_batch_name: str = BATCH_JOB_LABEL,
    exactly_once_write: ExactlyOnceWrite | UnreportedBatch | None = None,
) -> None:
    """Commit the tasks' transactions, if any, then log and publish the write's report.

    Raise KafkaSinkError if the commit fails. Errors in publishing the report are only logged.

    `default_batch_name`: the batch's name in the report if no task has reported one.
    """
    from spark_kafka_sink.spark.report_publishing import publish_report  # needed only on the driver

    if exactly_once_write is not None:
        exactly_once_write.commit(reports)
    report = build_write_report(reports, None if reports else default_batch_name)
    if any(task_report.was_already_committed for task_report in reports):
        skipped_count = sum(sum(task_report.skipped_rows.values()) for task_report in reports)
        LOGGER.info(
            "Skipped %s, because an earlier run has already committed the batch [%s]",
            format_count(skipped_count, "row"),
            report.batch,
        )
    else:
        # Rows in the dead-letter topic are missing from the topic, so warn about them.
        LOGGER.log(logging.WARNING if report.dead_letters else logging.INFO, "%s", report.line())
    publish_report(options, report)


def abort_and_report(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    default_batch_name: str = BATCH_JOB_LABEL,
    exactly_once_write: ExactlyOnceWrite | UnreportedBatch | None = None,
) -> None:
    """Abort the tasks' transactions, if any, then log which rows are in Kafka and publish the report.

    Without transactions, rows that have been written remain in Kafka.

    `messages`: the reports of the tasks that finished, and None for each task that did not; empty if Spark has returned
    no reports.
    """
    from spark_kafka_sink.spark.report_publishing import publish_report  # needed only on the driver

    reports = select_task_reports(messages)
    report = build_write_report(reports, None if reports else default_batch_name, status="failed")
    if exactly_once_write is not None:
        abort_outcome = exactly_once_write.abort(reports)
        # The batch comes first, because the message may end with a list.
        LOGGER.warning("[%s] The write failed: %s", report.batch, abort_outcome.message)
        if abort_outcome.was_aborted:
            # The tasks have counted their rows as written, but read_committed readers see none of them.
            report = dataclasses.replace(report, rows=0, bytes=0, partitions={})
    else:
        _log_written_rows(report, finished_count=len(reports), task_count=len(messages))
    publish_report(options, report)


def _log_written_rows(report: WriteReport, *, finished_count: int, task_count: int) -> None:
    """Log a warning about the rows that a failed write without transactions has left in Kafka.

    `task_count`: the number of tasks; 0 if Spark has returned no reports.
    """
    if report.rows or report.dead_letters:
        LOGGER.warning(
            "The write failed after %d of %d tasks had finished. The rows of finished tasks %s in Kafka, and running "
            "the write again writes them again. %s",
            finished_count,
            task_count,
            "remain" if report.is_acknowledged else "may be",
            report.line(),
        )
    elif not task_count:
        LOGGER.warning(
            "The write failed, and Spark returned no reports of its tasks. They may have written rows, which running "
            "the write again writes again. [%s]",
            report.batch,
        )
    else:
        LOGGER.warning(
            "The write failed, and no finished task had written a row (%d of %d tasks had finished). Failed tasks may "
            "have written rows, which running the write again writes again. [%s]",
            finished_count,
            task_count,
            report.batch,
        )
