"""`deliveryGuarantee` = `exactly-once`, between Spark and exactly_once/: who calls what, when, in which process.

    planning worker     begin_stream, begin_job      once for each micro-batch, once for each job
    task                ExactlyOnce.is_committed     before it reads a row
                        ExactlyOnce.transaction      around what it writes; its end stays open
    committing worker   of_reports                   in a stream another process than the one that planned
                        ExactlyOnce.commit, abort

Imported only where exactly once was asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.batch_content import BatchContent, sum_contents
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.delivery import Delivery, DeliveryOptions
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, WriterKind, build_batch_driver_name
from spark_kafka_sink.exactly_once.job_names import find_driver_process_id, generate_job_prefix
from spark_kafka_sink.exactly_once.late_attempts import choose_task_attempt, raise_if_fenced_late, raise_if_late
from spark_kafka_sink.exactly_once.transaction_names import (
    GENERATED_PREFIX,
    derive_prefix,
    normalize_checkpoint,
    task_id,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.spark.constants import IDEMPOTENCY_KEY_IN_STREAM_MESSAGE, MISSING_QUERY_NAME_MESSAGE
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport

_CLOSE_SECONDS = 5.0
_REPLACED_BY_EACH_TASK = f"{GENERATED_PREFIX}task"
"""A producer needs an id to be transactional; with the prefix in it, the pool would keep producers for each job."""

_ABORTED = "its transactions were aborted, and read_committed readers see nothing of it"
_ABORTED_UNREPORTED = "no task has reported; transactions that were open are aborted, and readers do not wait for them"
_LEFT_ALONE = "it is decided already, or a newer driver has taken over; the next start finishes what is decided"


@dataclass(frozen=True)
class ExactlyOnceWrite:
    """What a writer carries for exactly once, from the planning worker to the tasks and to the commit."""

    delivery: Delivery
    start: BatchStart
    is_stream: bool

    def producer_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Of the tasks. One producer serves one task after the other, of whatever job, each under the task's own id."""
        return {
            **options,
            "transactional.id": _REPLACED_BY_EACH_TASK,
            "transaction.timeout.ms": str(self.start.entry.timeout_ms),
        }

    # --- in a task

    def is_committed(self, task: TaskIdentity) -> bool:
        """Is a batch of this name in Kafka already? Raises what speaks against writing it."""
        return self.start.is_committed(self._batch(task))

    @contextlib.contextmanager
    def transaction(self, producer: KafkaProducer, report: TaskReport) -> Iterator[None]:
        """What is written within the block is one transaction, which stays open for the driver to end."""
        task, start = report.task, self.start
        try:
            wanted = start.task_attempt(task.partition_id, task.attempt_number)
            name = choose_task_attempt(producer.describe_transactions, start, wanted, task.task_attempt_id)
            # Anew for each batch: the driver has ended the last one, which has changed the epoch.
            with precommit_errors.convert_timeout_errors(is_user_timeout=self.delivery.options.timeout_ms is not None):
                producer.init_transactions(task_id(start.prefix, name))
            raise_if_late(producer.describe_transactions, start)
            producer.begin_transaction()
            yield
            prepared = producer.prepare_transaction()
        except Exception as error:
            producer.close(_CLOSE_SECONDS)  # aborts, so that no reader has to wait for the transaction's timeout
            config = producer.config
            raise_if_fenced_late(error, config.client_config(), start, config.max_block_ms)
            raise
        if prepared is not None:
            report.transaction = prepared

    def attach_start(self, report: TaskReport) -> None:
        """Put into the report how a stream's batch began: another process commits it. The process that commits a job
        knows it."""
        report.start = self.start if self.is_stream else None

    # --- on the driver, when all tasks have ended

    def commit(self, reports: Sequence[TaskReport]) -> None:
        if not reports:
            return
        batch, content = self._one_batch(reports), _content(reports)
        skipped_rows = {report.was_already_committed for report in reports}
        if len(skipped_rows) > 1:
            raise DeliveryError(
                "Some tasks of the batch have written and others have passed it over. Run the write again."
            )
        if skipped_rows == {True}:
            self.start.check_skipped_batch(batch, content, tolerate_mismatch=self.delivery.options.tolerate_mismatch)
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            with Driver(self.delivery) as driver:
                driver.commit(self.start, batch, transactions, content)

    def abort(self, reports: Sequence[TaskReport]) -> tuple[bool, str]:
        """Were the rows aborted? And in words, what became of them."""
        batch = self._one_batch(reports) if reports else Batch(key=self.delivery.options.key, scope=self.delivery.scope)
        with Driver(self.delivery) as driver:
            was_aborted = driver.abort(self.start, batch)
        return was_aborted, _ABORTED if was_aborted else _LEFT_ALONE

    # --- parts

    def _batch(self, task: TaskIdentity) -> Batch:
        if not self.is_stream:
            return Batch(key=self.delivery.options.key, scope=self.delivery.scope)
        if task.query_id is None or task.batch_id is None:
            raise DeliveryError("Spark has not said which micro-batch this task is of, so nothing was written.")
        return Batch(task.query_id, int(task.batch_id))

    def _one_batch(self, reports: Sequence[TaskReport]) -> Batch:
        batches = {self._batch(report.task) for report in reports}
        if len(batches) > 1:
            raise DeliveryError(f"The tasks of one batch name {len(batches)} of them. Run the write again.")
        return batches.pop()


@dataclass(frozen=True)
class UnreportedBatch:
    """A stream's batch of which no task has reported: how it began is not known to the process that ends it."""

    delivery: Delivery
    build_start_name: str
    """Of the start of the query."""

    def commit(self, reports: Sequence[TaskReport]) -> None:
        """Nothing was written."""

    def abort(self, reports: Sequence[TaskReport]) -> tuple[bool, str]:
        with Driver(self.delivery) as driver:
            was_aborted = driver.abort_unreported(self.build_start_name)
        return was_aborted, _ABORTED_UNREPORTED if was_aborted else _LEFT_ALONE


def _content(reports: Sequence[TaskReport]) -> BatchContent:
    """Of what was written, or passed over."""
    return sum_contents((report.rows_by_topic(), report.skipped_bytes or report.totals.bytes) for report in reports)


# --- in the planning worker


def begin_micro_batch(options: SinkOptions, run: str | None) -> ExactlyOnceWrite:
    """`run`: which start of the query it is; None without `register`."""
    return _begun(build_stream_delivery(options), build_driver_name(run), is_stream=True)


def begin_job(options: SinkOptions) -> ExactlyOnceWrite:
    return _begun(build_job_delivery(options), build_driver_name(uuid.uuid4().hex), is_stream=False)


def _begun(delivery: Delivery, name: str, *, is_stream: bool) -> ExactlyOnceWrite:
    with Driver(delivery) as driver:
        return ExactlyOnceWrite(delivery, driver.begin(name), is_stream)


def build_driver_name(run: str | None) -> str:
    """Of all micro-batches of a start. Without `register` each micro-batch has a driver of its own: two starts might
    else decide under one epoch."""
    start_name = build_start_name(run)
    return start_name if run is not None else build_batch_driver_name(start_name, uuid.uuid4().hex[:12])


def build_start_name(run: str | None) -> str:
    """Of a start of the query. Without `register` all starts in one Spark count as one: Spark makes a data source anew
    for each micro-batch, and says nothing of which start it is. The folders that Spark makes for a process are its own.
    """
    if run is None:
        folders = os.environ.get("SPARK_LOCAL_DIRS") or f"process {find_driver_process_id()}"
        run = hashlib.sha256(folders.encode()).hexdigest()[:12]
    return f"{platform.node()}/{run}"


def build_stream_delivery(options: SinkOptions) -> Delivery:
    """The Delivery of a stream. Each process that plans or commits computes an equal one."""
    asked = _exactly_once(options)
    if asked.key is not None:
        raise ConfigurationError(IDEMPOTENCY_KEY_IN_STREAM_MESSAGE)
    checkpoint = "" if asked.checkpoint is None else normalize_checkpoint(asked.checkpoint)
    if asked.prefix is None and not checkpoint:
        raise ConfigurationError(MISSING_QUERY_NAME_MESSAGE)
    return _delivery(
        options, asked.prefix or derive_prefix("stream", checkpoint), WriterKind.STREAM, checkpoint=checkpoint
    )


def build_job_delivery(options: SinkOptions) -> Delivery:
    asked = _exactly_once(options)
    if asked.prefix is not None:
        return _delivery(options, asked.prefix, WriterKind.JOB)
    if asked.key is not None:
        # A date is the key that people take, in every job: it is one of the topic's.
        return _delivery(options, derive_prefix("key", f"{options.topic or ''}\n{asked.key}"), WriterKind.JOB)
    return _delivery(options, generate_job_prefix(), WriterKind.JOB, is_single_use=True)


def _delivery(
    options: SinkOptions, prefix: str, writer: WriterKind, *, checkpoint: str = "", is_single_use: bool = False
) -> Delivery:
    return Delivery(
        options.producer_config().client_config(),
        prefix,
        _exactly_once(options),
        checkpoint=checkpoint,
        scope=options.topic or "",
        is_single_use=is_single_use,
        writer_kind=writer,
    )


def _exactly_once(options: SinkOptions) -> DeliveryOptions:
    assert options.exactly_once is not None
    return options.exactly_once


# --- in the committing worker of a stream


def restore_from_reports(
    options: SinkOptions, reports: Sequence[TaskReport], run: str | None
) -> ExactlyOnceWrite | UnreportedBatch:
    """What the planning worker had, as far as the tasks have brought it."""
    starts = [report.start for report in reports if report.start is not None]
    if len({(start.prefix, start.driver_identity) for start in starts}) > 1:
        raise DeliveryError("The tasks of one batch were begun by several drivers. Run the write again.")
    delivery = build_stream_delivery(options)
    return (
        ExactlyOnceWrite(delivery, starts[0], is_stream=True)
        if starts
        else UnreportedBatch(delivery, build_start_name(run))
    )
