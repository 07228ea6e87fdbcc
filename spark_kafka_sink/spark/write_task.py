"""One task: Arrow batches in, acknowledged offsets out.

Each batch is handed to the producer as it comes. The producer encodes and sends in the background; when its memory is
full, `send_columns` blocks, and with it the task, and with it Spark: that is the back-pressure. What was handed over is
kept here as well until its answer is in, because an error wants to show a key and a dead letter needs the whole record.
That memory is bounded too (`producer/columns_writer.py`), by waiting for the oldest answers.

When a record fails, reading stops at once, the answers to what is under way are awaited (each within
`delivery.timeout.ms`), and one error names all of them. A task that ends in any other way than by its return
leaves nothing behind: the pool closes its producer.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.errors import (
    BatchRefusedError,
    DeadLetterError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.columns_writer import ColumnsWriter
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.results import ColumnsResult, WrittenRanges
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.dead_letters import build_dead_letters, truncate
from spark_kafka_sink.spark.failures import Failures, is_record_error
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import POOL, ProducerPool, idle_timeout_seconds, lease_producer
from spark_kafka_sink.spark.rate_limiter import RateLimiter
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from spark_kafka_sink.spark.worker_log import install_stderr_handler
from spark_kafka_sink.spark.worker_process import disable_delayed_ack, freeze_gc

if TYPE_CHECKING:
    from spark_kafka_sink.spark.exactly_once import ExactlyOnceWrite

NULL_TOPIC_MESSAGE = "null topic present in the data. Use the topic option for setting a default topic."
"""In the words of Spark's own sink."""

NO_TOPIC_LABEL = "no topic"
"""Rows without one are counted under this, which no topic can be called."""


def write_rows(
    options: SinkOptions,
    plan: ColumnPlan,
    batches: Iterator[pa.RecordBatch],
    pool: ProducerPool = POOL,
    once: ExactlyOnceWrite | None = None,
) -> TaskReport:
    """Write all batches and wait for every acknowledgement. Called by Spark in each task."""
    install_stderr_handler()
    freeze_gc()
    disable_delayed_ack()
    started = time.monotonic()
    context = TaskContext.get()
    report = TaskReport(_identity(context), started_ms=round(time.time() * 1000), host=platform.node())
    if once is not None:
        once.attach_start(report)
        if once.is_committed(report.task):
            _pass_over(plan, batches, report)
            return report
    producer_options = options.producer if once is None else once.producer_options(options.producer)
    with contextlib.ExitStack() as stack:
        writing: TaskWriter | None = None
        for batch in batches:
            if not batch.num_rows:
                continue
            if writing is None:
                # Not before there is a row: an empty partition needs no broker.
                producer = stack.enter_context(lease_producer(pool, producer_options, idle_timeout_seconds(context)))
                if once is not None:
                    stack.enter_context(once.transaction(producer, report))
                writing = TaskWriter(producer, plan, options, report)
            writing.write(batch)
        if writing is not None:
            writing.finish()
    report.duration_ms = round((time.monotonic() - started) * 1000)
    return report


def _pass_over(plan: ColumnPlan, batches: Iterator[pa.RecordBatch], report: TaskReport) -> None:
    """Count what an earlier run has committed: the driver compares whether these are the same rows."""
    report.was_already_committed = True
    for batch in batches:
        for rows in plan.split(batch).parts:
            topic = rows.topic or NO_TOPIC_LABEL
            report.skipped_rows[topic] = report.skipped_rows.get(topic, 0) + rows.columns.num_rows
            report.skipped_bytes += rows.columns.payload_nbytes


class _SentRows(NamedTuple):
    """Rows whose result is pending. `was_cut`: these dead letters had to be shortened to fit."""

    rows: TopicRows
    is_dead_letter: bool = False
    was_cut: bool = False


class TaskWriter:
    """The state of one task; its own thread alone uses it."""

    def __init__(self, producer: KafkaProducer, plan: ColumnPlan, options: SinkOptions, report: TaskReport) -> None:
        self._producer = producer
        self._options = options
        self._report = report
        self._writer: ColumnsWriter[_SentRows] = ColumnsWriter(producer, plan)
        self._pace = None if options.bytes_per_second is None else RateLimiter(options.bytes_per_second)
        self._written = WrittenRanges()
        self._failures = Failures(report.task)
        self._counts = SimpleNamespace(**vars(WriteTotals()))  # with the attributes of WriteTotals, and no other
        self._before = producer.totals()

    def write(self, batch: pa.RecordBatch) -> None:
        for rows in self._writer.split(batch):
            for piece in [rows] if self._pace is None else self._pace.pieces(rows):
                self._send(_SentRows(piece))
                self._settle()

    def finish(self) -> None:
        self._settle_all()
        if self._pace is not None:
            self._pace.end()
        self._report.partitions = self._written.by_topic()
        self._report_totals()
        if self._failures:
            raise self._failures.error(self._options)

    def _report_totals(self) -> None:
        """Report what was counted in this task, by its producer too, which works for one task at a time."""
        producer = self._producer.totals() - self._before
        self._counts.producer = replace(producer, blocked_ms=producer.blocked_ms + self._writer.blocked_ms)
        self._counts.paced_ms = 0 if self._pace is None else round(self._pace.waited_seconds * 1000)
        self._report.totals = WriteTotals(**vars(self._counts))
        self._report.is_acknowledged = self._producer.config.acks != 0

    def _send(self, sent: _SentRows) -> None:
        rows = sent.rows
        nbytes = rows.columns.nbytes
        try:
            if rows.topic is None:
                raise InvalidRecordError(NULL_TOPIC_MESSAGE)
            self._writer.send(rows, sent, nbytes)
        except KafkaSinkError as error:
            self._writer.fail(rows, error, sent, nbytes)

    def _settle(self) -> None:
        for sent, result in self._writer.settle():
            self._count(sent, result)
        if self._failures:
            self._settle_all()
            raise self._failures.error(self._options)

    def _settle_all(self) -> None:
        while self._writer.pending_calls:
            if not self._writer.has_result:
                self._producer.flush()  # again for dead letters, which are sent as their records fail
            for sent, result in self._writer.drain():
                self._count(sent, result)

    def _count(self, sent: _SentRows, result: ColumnsResult) -> None:
        columns = sent.rows.columns
        written_bytes = columns.payload_nbytes
        for failure in result.failures:
            failed = columns.take(failure.rows)
            written_bytes -= failed.payload_nbytes
            self._failed(sent, failed, failure)
        count = result.rows_written
        if sent.is_dead_letter:
            self._counts.dead_letters += count
            self._counts.dead_letters_cut += count if sent.was_cut else 0
            return
        self._written.add(result)
        self._counts.rows += count
        self._counts.bytes += written_bytes

    def _failed(self, sent: _SentRows, failed: RecordColumns, failure: FailedRows) -> None:
        error, topic = failure.error, sent.rows.topic
        dead_letter_topic = self._options.dead_letter_topic
        if sent.is_dead_letter:
            if isinstance(error, RecordTooLargeError) and not sent.was_cut:
                smaller = TopicRows(topic, truncate(failed), None)
                self._send(_SentRows(smaller, is_dead_letter=True, was_cut=True))
                return
            refused = DeadLetterError(f"the dead-letter topic did not take it either: {error}")
            refused.__cause__ = error
            error = refused
        elif dead_letter_topic is not None and isinstance(error, BatchRefusedError):
            # These rows are not at fault: the rows that the broker has named are dead letters now.
            self._send(_SentRows(TopicRows(topic, failed, failure.partition)))
            return
        elif dead_letter_topic is not None and is_record_error(error):
            name = type(error).__name__
            self._report.errors[name] = self._report.errors.get(name, 0) + failed.num_rows
            letters = build_dead_letters(
                failed,
                topic=topic,
                partition=_partitions_of(sent.rows, failure),
                error=error,
                batch=self._report.task.batch,
            )
            self._send(_SentRows(TopicRows(dead_letter_topic, letters, None), is_dead_letter=True))
            return
        self._failures.add(topic, failure.partition, error, failed)


def _partitions_of(rows: TopicRows, failure: FailedRows) -> int | pa.Array | None:
    """The partition of the rows, or else the partitions that they name themselves."""
    if failure.partition is not None:
        return failure.partition
    return rows.partition.take(pa.array(failure.rows)) if isinstance(rows.partition, pa.Array) else rows.partition


def _identity(context: TaskContext | None) -> TaskIdentity:
    if context is None:
        return TaskIdentity(0, 0, 0, 0)
    return TaskIdentity(
        partition_id=context.partitionId(),
        attempt_number=context.attemptNumber(),
        task_attempt_id=context.taskAttemptId(),
        stage_id=context.stageId(),
        application_id=context.getLocalProperty("spark.app.id"),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        batch_id=context.getLocalProperty("streaming.sql.batchId"),
    )
