"""One task: Arrow batches in, acknowledged offsets out.

Each batch is handed to the producer as it comes. The producer encodes and sends in the background; when its memory is
full, `send_columns` blocks, and with it the task, and with it Spark: that is the back-pressure. What was handed over is
kept here as well until its answer is in, because an error wants to show a key and a dead letter needs the whole record.
That memory is bounded too (`_waiting_bytes_max`), by waiting for the oldest answer.

When a record fails, reading stops at once, the answers to what is under way are awaited (each within
`delivery.timeout.ms`), and one error names all of them. A task that ends in any other way than by its return
leaves nothing behind: the pool closes its producer.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from spark_kafka_sink.client.backoff import lock_timeout_seconds
from spark_kafka_sink.errors import (
    BatchRefusedError,
    DeadLetterError,
    InvalidRecordError,
    KafkaSinkError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.calls import FailedRows, Shares
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.results import ColumnsResult, written_ranges
from spark_kafka_sink.producer.totals import WriteTotals
from spark_kafka_sink.records.columns import LIKELY_SECONDS_MESSAGE, RecordColumns, find_likely_seconds
from spark_kafka_sink.records.topic_rows import TopicRows
from spark_kafka_sink.spark.cache_timeout import idle_seconds
from spark_kafka_sink.spark.columns import ColumnPlan, split_by_topic
from spark_kafka_sink.spark.dead_letters import cut, dead_letters
from spark_kafka_sink.spark.failures import Failures, is_about_the_record
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pace import Pace
from spark_kafka_sink.spark.pool import POOL, ProducerPool, lease_producer
from spark_kafka_sink.spark.report import TaskIdentity, TaskReport
from spark_kafka_sink.spark.worker_log import show_log
from spark_kafka_sink.spark.worker_process import acknowledge_at_once, look_at_less

if TYPE_CHECKING:
    from spark_kafka_sink.spark.exactly_once import ExactlyOnce

_log = logging.getLogger(__name__)

NULL_TOPIC = "null topic present in the data. Use the topic option for setting a default topic."
"""In the words of Spark's own sink."""

NO_TOPIC = "no topic"
"""Rows without one are counted under this, which no topic can be called."""

_SHARES_MAX = 1 << 16
"""That many shares are added up at a time. With thousands of partitions a call has about one row in each: to add up the
ranges of each call by itself costs as much as to send its rows."""


def write_rows(
    options: SinkOptions,
    plan: ColumnPlan,
    batches: Iterator[pa.RecordBatch],
    pool: ProducerPool = POOL,
    once: ExactlyOnce | None = None,
) -> TaskReport:
    """Write all batches and wait for every acknowledgement. Called by Spark in each task."""
    show_log()
    look_at_less()
    acknowledge_at_once()
    started = time.monotonic()
    context = TaskContext.get()
    report = TaskReport(_identity(context), started_ms=round(time.time() * 1000), host=platform.node())
    if once is not None:
        once.note_start(report)
        if once.is_committed(report.task):
            _pass_over(plan, batches, report)
            return report
    producer_options = options.producer if once is None else once.producer_options()
    with contextlib.ExitStack() as stack:
        writing: Writing | None = None
        for batch in batches:
            if batch.num_rows and writing is None:
                # Not before there is a row: an empty partition needs no broker.
                producer = stack.enter_context(lease_producer(pool, producer_options, idle_seconds(context)))
                if once is not None:
                    stack.enter_context(once.transaction(producer, report))
                writing = Writing(producer, options, report)
            if writing is not None:
                if plan.timestamp is not None:
                    writing.check_times(batch.column(plan.timestamp))
                for rows in split_by_topic(batch, plan, writing.producer.prefetch_topics):
                    writing.send(rows)
        if writing is not None:
            writing.finish()
    report.duration_ms = round((time.monotonic() - started) * 1000)
    return report


def _pass_over(plan: ColumnPlan, batches: Iterator[pa.RecordBatch], report: TaskReport) -> None:
    """Count what an earlier run has committed: the driver compares whether these are the same rows."""
    report.was_committed = True
    for batch in batches:
        for rows in split_by_topic(batch, plan):
            topic = rows.topic or NO_TOPIC
            report.passed_over[topic] = report.passed_over.get(topic, 0) + rows.columns.num_rows
            report.passed_over_bytes += rows.columns.payload_nbytes


@dataclass
class _Waiting:
    """Rows on their way. `was_cut`: these dead letters had to be shortened to fit."""

    rows: TopicRows
    future: Future[ColumnsResult]
    nbytes: int
    is_dead_letter: bool = False
    was_cut: bool = False


@dataclass
class Writing:
    """The state of one task; its own thread alone uses it."""

    producer: KafkaProducer
    options: SinkOptions
    report: TaskReport
    _waiting: deque[_Waiting] = field(default_factory=deque)
    waiting_bytes: int = 0
    _stored: dict[str, list[Shares]] = field(default_factory=dict)  # by topic, not in the report yet
    _stored_shares: int = 0
    _has_warned_of_seconds: bool = False

    def __post_init__(self) -> None:
        self._counts = SimpleNamespace(**vars(WriteTotals()))  # with the attributes of WriteTotals, and no other
        self._blocked_ms = 0.0
        config = self.producer.config
        self._waiting_bytes_max = config.buffer_memory
        self._answer_seconds_max = lock_timeout_seconds(config.max_block_ms + 2 * config.delivery_timeout_ms)
        self._pace = None if self.options.bytes_per_second is None else Pace(self.options.bytes_per_second)
        self._failures = Failures(self.report.task)
        self._before = self.producer.totals()

    def check_times(self, timestamp: pa.Array) -> None:
        """Warn once in a task of numbers that are likely seconds."""
        if not self._has_warned_of_seconds:
            seconds = find_likely_seconds(timestamp, time.time() * 1_000)
            if seconds is not None:
                self._has_warned_of_seconds = True
                _log.warning(LIKELY_SECONDS_MESSAGE, seconds)

    def send(self, rows: TopicRows) -> None:
        for piece in [rows] if self._pace is None else self._pace.pieces(rows):
            self._hand_over(piece)
            self._settle_what_is_done()

    def _settle_what_is_done(self) -> None:
        while self._waiting and self._waiting[0].future.done():
            self._settle(self._waiting.popleft())
        if self.waiting_bytes > self._waiting_bytes_max:
            self._await_memory()
        if self._failures:
            self._settle_all()
            raise self._failures.error(self.options)

    def finish(self) -> None:
        self._settle_all()
        if self._pace is not None:
            self._pace.end()
        self._report_ranges()
        self._report_totals()
        if self._failures:
            raise self._failures.error(self.options)

    def _await_memory(self) -> None:
        """Wait for the oldest answers, until half of the memory is free: enough for batches that are worth sending."""
        started = time.monotonic()
        with self.producer.without_linger():
            while self._waiting and self.waiting_bytes > self._waiting_bytes_max // 2:
                self._settle(self._waiting.popleft())
        self._blocked_ms += (time.monotonic() - started) * 1000

    def _report_ranges(self) -> None:
        for topic, stored in self._stored.items():
            for partition, written in written_ranges(stored).items():
                self.report.add_range(topic, partition, written)
        self._stored.clear()
        self._stored_shares = 0

    def _report_totals(self) -> None:
        """Report what was counted in this task, by its producer too, which works for one task at a time."""
        producer = self.producer.totals() - self._before
        self._counts.producer = replace(producer, blocked_ms=producer.blocked_ms + self._blocked_ms)
        self._counts.paced_ms = 0 if self._pace is None else round(self._pace.waited * 1000)
        self.report.totals = WriteTotals(**vars(self._counts))
        self.report.is_acknowledged = self.producer.config.acks != 0

    def _hand_over(self, rows: TopicRows, *, is_dead_letter: bool = False, was_cut: bool = False) -> None:
        try:
            if rows.topic is None:
                raise InvalidRecordError(NULL_TOPIC)
            future: Future[ColumnsResult] = self.producer.send_columns(rows.topic, rows.columns, rows.partition)
        except KafkaSinkError as error:
            future = Future()
            future.set_exception(error)
        nbytes = rows.columns.nbytes
        self._waiting.append(_Waiting(rows, future, nbytes, is_dead_letter, was_cut))
        self.waiting_bytes += nbytes

    def _settle_all(self) -> None:
        while self._waiting:
            if not self._waiting[0].future.done():
                self.producer.flush()  # again for dead letters, which join while their records are settled
            self._settle(self._waiting.popleft())

    def _settle(self, waiting: _Waiting) -> None:
        self.waiting_bytes -= waiting.nbytes
        rows = waiting.rows
        try:
            result = waiting.future.result(self._answer_seconds_max)
            stored, count, failures = result.stored, result.rows_written, result.failures
        except KafkaSinkError as error:
            every_row = np.arange(rows.columns.num_rows, dtype=np.int64)
            stored, count, failures = (), 0, (FailedRows(every_row, error, rows.topic),)
        written_bytes = rows.columns.payload_nbytes
        for failure in failures:
            failed = rows.columns.take(failure.rows)
            written_bytes -= failed.payload_nbytes
            self._failed(waiting, failed, failure)
        if waiting.is_dead_letter:
            self._counts.dead_letters += count
            self._counts.dead_letters_cut += count if waiting.was_cut else 0
            return
        if stored:
            assert rows.topic is not None  # nothing is written to no topic
            self._stored.setdefault(rows.topic, []).extend(stored)
            self._stored_shares += sum(map(len, stored))
            if self._stored_shares > _SHARES_MAX:
                self._report_ranges()
        self._counts.rows += count
        self._counts.bytes += written_bytes

    def _failed(self, waiting: _Waiting, failed: RecordColumns, failure: FailedRows) -> None:
        error = failure.error
        dead_letter_topic = self.options.dead_letter_topic
        if waiting.is_dead_letter:
            if isinstance(error, RecordTooLargeError) and not waiting.was_cut:
                smaller = TopicRows(waiting.rows.topic, cut(failed), None)
                self._hand_over(smaller, is_dead_letter=True, was_cut=True)
                return
            refused = DeadLetterError(f"the dead-letter topic did not take it either: {error}")
            refused.__cause__ = error
            error = refused
        elif dead_letter_topic is not None and isinstance(error, BatchRefusedError):
            # These rows are not at fault: the rows that the broker has named are dead letters now.
            partition = pa.repeat(pa.scalar(failure.partition, pa.int32()), failed.num_rows)
            self._hand_over(TopicRows(waiting.rows.topic, failed, partition))
            return
        elif dead_letter_topic is not None and is_about_the_record(error):
            name = type(error).__name__
            self.report.errors[name] = self.report.errors.get(name, 0) + failed.num_rows

            letters = dead_letters(
                failed,
                topic=waiting.rows.topic,
                partition=_partitions_of(waiting.rows, failure),
                error=error,
                batch=self.report.task.batch,
            )
            self._hand_over(TopicRows(dead_letter_topic, letters, None), is_dead_letter=True)
            return
        self._failures.add(waiting.rows.topic, failure.partition, error, failed)


def _partitions_of(rows: TopicRows, failure: FailedRows) -> int | pa.Array | None:
    """The partition of the rows, or else the partitions that they name themselves."""
    if failure.partition is not None or rows.partition is None:
        return failure.partition
    return rows.partition.take(pa.array(failure.rows))


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
