"""The write task: sends Arrow batches to Kafka and returns the acknowledged offsets.

Each batch is passed to the producer as it arrives. The producer encodes and sends it in the background. When the
producer's buffer memory is full, `send_columns` blocks the task, which in turn blocks Spark (back-pressure).

The task keeps the rows until their results have arrived, because an error shows a sample key and a dead letter needs
the whole record. If these rows take too much memory, the task waits for the oldest results
(`producer/columns_writer.py`).

When a record fails, the task stops reading and waits for the results of all pending rows, each of which takes at most
`delivery.timeout.ms`. A single error then reports all failures. If a task ends in any way other than by returning, the
pool closes the task's producer without waiting for pending records.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.errors import (
    BatchRejectedError,
    DeadLetterError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.columns_writer import ColumnsWriter
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.results import ColumnsResult, OffsetRangeCollector
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.client_rack import build_task_producer_options
from spark_kafka_sink.spark.constants import BATCH_ID_PROPERTY, QUERY_ID_PROPERTY
from spark_kafka_sink.spark.dead_letters import build_dead_letters, truncate_dead_letters
from spark_kafka_sink.spark.failures import Failures, is_record_error
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import PRODUCER_POOL, ProducerPool, find_idle_timeout_seconds, lease_producer
from spark_kafka_sink.spark.rate_limiter import RateLimiter
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from spark_kafka_sink.spark.worker_log import install_stderr_handler
from spark_kafka_sink.spark.worker_process import disable_delayed_ack, update_gc_freeze

if TYPE_CHECKING:
    from spark_kafka_sink.producer.record_digests import DigestCollector
    from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite

NULL_TOPIC_MESSAGE = (
    "null topic present in the data. Fill the column 'topic' or filter these rows out; the option 'topic' would "
    "replace the topic of all rows."
)
"""The error message for a row without a topic. The first sentence is worded as in Spark's own sink."""

NO_TOPIC_LABEL = "no topic"
"""The key under which rows without a topic are counted. It is not a valid topic name."""

_MAX_RANDOM_ID = 999_999_999
"""The highest number that a task id can contain (exactly_once/transaction_names.py)."""


def write_rows(
    options: SinkOptions,
    plan: ColumnPlan,
    batches: Iterator[pa.RecordBatch],
    pool: ProducerPool = PRODUCER_POOL,
    exactly_once_write: ExactlyOnceWrite | None = None,
) -> TaskReport:
    """Write all batches, wait for every acknowledgement and return the task's report. Called once in each task.

    Raise DeliveryError if any record has failed. If an exactly-once batch is already committed, count its rows instead
    of writing them.

    `plan`: determines from which columns of a batch the records are built.
    `exactly_once_write`: the exactly-once state; None for at-least-once delivery.
    """
    # Set up this Python process: log to the executor's stderr, and shorten small writes. Every task does this, because
    # it may be the first one in this process.
    install_stderr_handler()
    update_gc_freeze()
    disable_delayed_ack()
    monotonic_start_s = time.monotonic()
    context = TaskContext.get()
    report = TaskReport(_build_task_identity(context), started_ms=round(time.time() * 1000), host=platform.node())
    if exactly_once_write is not None:
        exactly_once_write.attach_batch_start(report)
        if exactly_once_write.is_decided(report.task):
            _count_skipped_rows(plan, batches, report)
            return report  # its duration remains 0, because nothing was written
    with contextlib.ExitStack() as stack:
        writer: TaskWriter | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                # Lease the producer only at the first row, because a Spark partition without rows needs no broker.
                producer = stack.enter_context(_lease_task_producer(pool, options, context, exactly_once_write))
                if exactly_once_write is not None:
                    stack.enter_context(exactly_once_write.transaction(producer, report))
                writer = TaskWriter(producer, plan, options, report)
            writer.write(batch)
        if writer is not None:
            writer.finish()
    report.duration_ms = round((time.monotonic() - monotonic_start_s) * 1000)
    return report


def _lease_task_producer(
    pool: ProducerPool, options: SinkOptions, context: TaskContext | None, exactly_once_write: ExactlyOnceWrite | None
) -> contextlib.AbstractContextManager[KafkaProducer]:
    """Lease a producer for this task, with its executor's rack and, for exactly-once delivery, with transactions."""
    producer_options = build_task_producer_options(options)
    if exactly_once_write is not None:
        producer_options = exactly_once_write.build_producer_options(producer_options)
    return lease_producer(pool, producer_options, find_idle_timeout_seconds(context))


def _count_skipped_rows(plan: ColumnPlan, batches: Iterator[pa.RecordBatch], report: TaskReport) -> None:
    """Add the rows to the report's counts of skipped rows, because their batch is already committed.

    The driver compares the counts with those in the decision log.
    """
    report.was_already_committed = True
    for batch in batches:
        for rows in plan.split(batch).topic_rows:
            topic = rows.topic or NO_TOPIC_LABEL
            report.skipped_rows[topic] = report.skipped_rows.get(topic, 0) + rows.columns.num_rows
            report.skipped_bytes += rows.columns.payload_nbytes


class _SentRows(NamedTuple):
    """Sent rows whose result is pending.

    A row that fails may be sent again as a dead letter. A dead letter that is too large is truncated and sent again.
    """

    rows: TopicRows
    is_dead_letter: bool = False
    """Whether the rows were sent to the dead-letter topic."""
    is_truncated: bool = False
    """Whether the rows are dead letters that were truncated because they were too large for the dead-letter topic."""


def _create_digest_collector() -> DigestCollector:
    from spark_kafka_sink.producer.record_digests import DigestCollector  # few writes have receipts

    return DigestCollector()


class TaskWriter:
    """Sends the rows of one task and collects their results. Not thread-safe.

    Call `write` for each batch and then `finish`, which completes the report.
    """

    def __init__(self, producer: KafkaProducer, plan: ColumnPlan, options: SinkOptions, report: TaskReport) -> None:
        self._producer = producer
        self._options = options
        self._report = report
        self._columns_writer: ColumnsWriter[_SentRows] = ColumnsWriter(
            producer, plan, keep_row_indices=options.include_digests
        )
        self._rate_limiter = None if options.bytes_per_second is None else RateLimiter(options.bytes_per_second)
        self._offset_collector = OffsetRangeCollector()
        self._digests = _create_digest_collector() if options.include_digests else None
        self._failures = Failures(report.task)
        # WriteTotals is frozen, so the task counts in a mutable copy of its fields. WriteTotals declares all counters.
        self._counts = SimpleNamespace(**vars(WriteTotals()))
        self._initial_producer_totals = producer.totals()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch. Raise DeliveryError if any record has failed by now."""
        for rows in self._columns_writer.split(batch):
            slices = [rows] if self._rate_limiter is None else self._rate_limiter.throttle(rows)
            for rows_slice in slices:
                self._send(_SentRows(rows_slice))
                self._collect_results()

    def finish(self) -> None:
        """Wait for all results and complete the report. Raise DeliveryError if any record has failed."""
        self._collect_all_results()
        if self._rate_limiter is not None:
            self._rate_limiter.finish()
        offset_ranges = self._offset_collector.by_topic()
        if self._digests is not None:
            offset_ranges = self._digests.with_digests(offset_ranges)
        self._report.written_ranges = offset_ranges
        self._report_totals()
        if self._failures:
            raise self._failures.build_error(self._options)

    def _report_totals(self) -> None:
        """Add the counters of this task and its producer to the report.

        A producer serves one task at a time, so any increase of its counters is due to this task.
        """
        producer_totals = self._producer.totals() - self._initial_producer_totals
        blocked_ms = producer_totals.blocked_ms + self._columns_writer.blocked_ms
        self._counts.producer = replace(producer_totals, blocked_ms=blocked_ms)
        waited_seconds = 0.0 if self._rate_limiter is None else self._rate_limiter.waited_seconds
        self._counts.paced_ms = round(waited_seconds * 1000)
        self._report.totals = WriteTotals(**vars(self._counts))
        self._report.is_acknowledged = self._producer.config.acks != 0

    def _send(self, sent_rows: _SentRows) -> None:
        """Pass rows to the producer. Rows that cannot be sent are handled like rows that the broker rejects."""
        rows = sent_rows.rows
        nbytes = rows.columns.nbytes
        try:
            if rows.topic is None:
                raise InvalidRecordError(NULL_TOPIC_MESSAGE)
            self._columns_writer.send(rows, sent_rows, nbytes)
        except KafkaSinkError as error:
            self._columns_writer.fail(rows, error, sent_rows, nbytes)

    def _collect_results(self) -> None:
        """Collect the results that have arrived, and wait for more if the pending rows use too much memory.

        Raise DeliveryError if any record has failed.
        """
        for sent_rows, result in self._columns_writer.collect_results():
            self._add_result(sent_rows, result)
        if self._failures:
            # Wait for the results of the other rows, so that a single error reports all failures.
            self._collect_all_results()
            raise self._failures.build_error(self._options)

    def _collect_all_results(self) -> None:
        """Wait for the results of all rows, including the dead letters that are sent while it waits."""
        while self._columns_writer.pending_call_count:
            if not self._columns_writer.has_result:
                # Flush in each round, because collecting results may send dead letters.
                self._producer.flush()
            for sent_rows, result in self._columns_writer.collect_all_results():
                self._add_result(sent_rows, result)

    def _add_result(self, sent_rows: _SentRows, result: ColumnsResult) -> None:
        """Count the rows that were written, and handle those that failed.

        Dead letters are counted separately, and are not part of the report's rows, bytes, offsets and digests.
        """
        columns = sent_rows.rows.columns
        written_bytes = columns.payload_nbytes
        for failure in result.failures:
            failed_records = columns.take(failure.row_indices)
            written_bytes -= failed_records.payload_nbytes
            self._handle_failure(sent_rows, failed_records, failure)
        written_rows = result.rows_written
        if sent_rows.is_dead_letter:
            self._counts.dead_letters += written_rows
            if sent_rows.is_truncated:
                self._counts.dead_letters_cut += written_rows
            return
        self._offset_collector.add(result)
        if self._digests is not None:
            self._digests.add(result, columns)
        self._counts.rows += written_rows
        self._counts.bytes += written_bytes

    def _handle_failure(self, sent_rows: _SentRows, failed_records: RecordColumns, failure: FailedRows) -> None:
        """Send the failed rows again, send them to the dead-letter topic, or record them as failures of the task.

        `failed_records`: the failed rows among `sent_rows`.
        """
        topic = sent_rows.rows.topic
        dead_letter_topic = self._options.dead_letter_topic
        if sent_rows.is_dead_letter:
            self._handle_rejected_dead_letters(sent_rows, failed_records, failure)
        elif dead_letter_topic is not None and isinstance(failure.error, BatchRejectedError):
            # These rows are valid, so send them again. The broker rejected their batch because of other records, which
            # become dead letters.
            self._send(_SentRows(TopicRows(topic, failed_records, partition=failure.partition)))
        elif dead_letter_topic is not None and is_record_error(failure.error):
            self._count_error(failure.error, failed_records.num_rows)
            self._send_dead_letters(dead_letter_topic, sent_rows.rows, failed_records, failure)
        else:
            self._failures.add(topic, failure.partition, failure.error, failed_records)

    def _count_error(self, error: KafkaSinkError, row_count: int) -> None:
        """Add the rows that failed with this error to the report's counts by error class."""
        error_counts = self._report.error_counts
        error_name = type(error).__name__
        error_counts[error_name] = error_counts.get(error_name, 0) + row_count

    def _send_dead_letters(
        self, dead_letter_topic: str, rows: TopicRows, failed_records: RecordColumns, failure: FailedRows
    ) -> None:
        """Send the failed rows to the dead-letter topic, with headers that describe the error.

        `rows`: all rows of the send call.
        `failed_records`: the records of `rows` that failed for the reason in `failure`.
        """
        dead_letters = build_dead_letters(
            failed_records,
            topic=rows.topic,
            partition=_find_failed_partitions(rows, failure),
            error=failure.error,
            batch=self._report.task.batch,
        )
        self._send(_SentRows(TopicRows(dead_letter_topic, dead_letters, partition=None), is_dead_letter=True))

    def _handle_rejected_dead_letters(
        self, sent_rows: _SentRows, failed_records: RecordColumns, failure: FailedRows
    ) -> None:
        """Truncate dead letters that are too large and send them again, or record them as failures of the task.

        `failed_records`: the dead letters that were rejected.
        """
        error, topic = failure.error, sent_rows.rows.topic
        # A record that is too large for its topic is often too large for the dead-letter topic as well.
        if isinstance(error, RecordTooLargeError) and not sent_rows.is_truncated:
            truncated_rows = TopicRows(topic, truncate_dead_letters(failed_records), partition=None)
            self._send(_SentRows(truncated_rows, is_dead_letter=True, is_truncated=True))
            return
        message = f"The dead-letter topic also rejected the record: {error.reason}"
        dead_letter_error = DeadLetterError(message, destination=error.destination)
        dead_letter_error.__cause__ = error
        self._failures.add(topic, failure.partition, dead_letter_error, failed_records)


def _find_failed_partitions(rows: TopicRows, failure: FailedRows) -> int | pa.Array | None:
    """Return the partition of the failed rows, or an array if it is not the same for all rows.

    If the rows failed before they were assigned to a partition, return their values of the column `partition`. Return
    None if there is no such column.

    `rows`: all rows of the send call. `failure` contains the indices of those that failed.
    """
    if failure.partition is not None:
        return failure.partition
    return (
        rows.partition.take(pa.array(failure.row_indices)) if isinstance(rows.partition, pa.Array) else rows.partition
    )


def _build_task_identity(context: TaskContext | None) -> TaskIdentity:
    """Return the ids of this task attempt, or random ids if there is no TaskContext."""
    if context is None:
        # Sail provides no TaskContext. Random ids distinguish the tasks of a write.
        return TaskIdentity(
            partition_id=secrets.randbelow(_MAX_RANDOM_ID + 1),
            attempt_number=0,
            task_attempt_id=secrets.randbelow(_MAX_RANDOM_ID + 1),
            stage_id=0,
        )
    return TaskIdentity(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
        stage_id=context.stageId(),
        application_id=context.getLocalProperty("spark.app.id"),
        query_id=context.getLocalProperty(QUERY_ID_PROPERTY),
        batch_id=context.getLocalProperty(BATCH_ID_PROPERTY),
    )
