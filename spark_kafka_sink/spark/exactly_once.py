"""Exactly-once delivery of Spark writes (`deliveryGuarantee=exactly-once`), on top of exactly_once/.

Each task writes its rows in a transaction, and leaves it open. The driver later commits or aborts all of these
transactions. Before it commits them, it writes its decision to a Kafka topic, the decision log, so that another driver
can commit them if this one dies. Spark runs the steps of a write in different processes:

    planning worker     begin_micro_batch, begin_job        once per micro-batch or job
    task                ExactlyOnceWrite.is_decided         before it reads a row
                        ExactlyOnceWrite.transaction        around its rows; leaves the transaction open
    committing worker   restore_from_reports                streams only, because another process planned the batch
                        ExactlyOnceWrite.commit, abort      after the job has succeeded or failed

The planning worker and the committing worker act as the driver (exactly_once/driver.py). Only they write to the
decision log. In a write through mapInArrow, the user's program does the work of both. The begin functions claim the
prefix (the name of the query or job), that is, they write to the log that this driver is now the current one. They need
no new claim if nothing has happened under the prefix since the same driver finished its last batch. `commit` writes the
decision and then records that the batch is done. `abort` claims the prefix again, so that nobody can decide the batch
any more. A job without a name deletes what it has written to the log at the end of `commit` or `abort`.

This module is imported only if a write uses exactly-once delivery.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import platform
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.exactly_once import decision_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary, summarize_tasks
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, WriterKind, build_batch_driver_name
from spark_kafka_sink.exactly_once.job_names import find_driver_process_id, generate_job_prefix
from spark_kafka_sink.exactly_once.late_attempts import (
    check_and_renumber_attempt,
    raise_if_late,
    raise_if_late_attempt_was_fenced,
)
from spark_kafka_sink.exactly_once.settings import ExactlyOnceOptions, ExactlyOnceSettings
from spark_kafka_sink.exactly_once.transaction_names import (
    GENERATED_PREFIX,
    build_task_id,
    derive_prefix,
    normalize_checkpoint,
)
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.spark.constants import IDEMPOTENCY_KEY_IN_STREAM_MESSAGE, MISSING_QUERY_NAME_MESSAGE
from spark_kafka_sink.spark.options.names import kafka_prefix_in_errors
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import MicroBatchId, TaskIdentity, TaskReport

_CLOSE_TIMEOUT_SECONDS = 5.0
_PLACEHOLDER_TRANSACTIONAL_ID = f"{GENERATED_PREFIX}task"
"""The transactional id with which the producers in the pool are created. Each task then sets its own id.

A producer is transactional only if it is created with a transactional id. This one does not contain the job's prefix,
because the pool would otherwise keep separate producers for each job.
"""

_JOB_ABORTED_MESSAGE = "it was aborted, and read_committed readers see none of its rows"
_NOT_ABORTED_REASON = "it is decided or being decided, or a newer driver or `pykafka transactions` has taken over"
"""The beginning of the outcome for a job without an idempotency key. A remedy follows in the message."""
_NOT_ABORTED_MESSAGE = f"{_NOT_ABORTED_REASON}; the next start completes the batch if it is decided"
"""The outcome for any other batch. It needs no remedy, because running such a batch again writes no row twice."""
_ALREADY_COMMITTED_MESSAGE = (
    "the decision log says that an earlier run has committed this batch; this run wrote nothing"
)
_RUN_ABORTED_MESSAGE = (
    "this run of the batch was aborted. If an earlier run has committed the batch, its rows stay visible"
)
"""The outcome for a micro-batch. The log names only the last committed one, so an earlier run is not always known."""


class AbortOutcome(NamedTuple):
    """The result of an attempt to abort a batch."""

    was_aborted: bool
    """Whether the batch was aborted, so that none of its rows become visible."""
    message: str
    """A clause for a log message, which describes the outcome."""


@dataclass(frozen=True)
class ExactlyOnceWrite:
    """The exactly-once state of a writer.

    The planning worker creates it. It is pickled, and sent to the tasks and, in a batch job, to the committing worker.
    The committing worker of a stream restores it from the task reports.
    """

    settings: ExactlyOnceSettings
    """The exactly-once settings of the query or job."""
    start: BatchStart
    """The state of the prefix, and the driver's identity, when the batch began."""
    is_stream: bool
    micro_batch: MicroBatchId | None = None
    """The micro-batch of a stream; None if the planning worker does not know it. The task reports then name it."""

    def build_producer_options(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options for the tasks' producers.

        One producer serves many tasks in turn, even of different jobs. Each task sets its own transactional id.
        """
        return {
            **options,
            "transactional.id": _PLACEHOLDER_TRANSACTIONAL_ID,
            "transaction.timeout.ms": str(self.start.entry.timeout_ms),
        }

    # --- methods for the tasks

    def is_decided(self, task: TaskIdentity) -> bool:
        """Return whether the task's batch is already decided. Raise ExactlyOnceError if it must not be written."""
        return self.start.is_decided(self._build_task_batch(task))

    @contextlib.contextmanager
    def transaction(self, producer: KafkaProducer, report: TaskReport) -> Iterator[None]:
        """Run the block in a transaction, which stays open after the block until the driver commits or aborts it.

        Add the transaction to the report, unless nothing was sent in it. Raise ExactlyOnceError if the driver is no
        longer waiting for the batch. If the block raises, close the producer, which usually aborts the transaction.
        Errors of the transaction name the producer's options as a Spark job does.

        `report`: the report of the task that runs the block.
        """
        try:
            with kafka_prefix_in_errors():
                self._begin_transaction(producer, report.task)
            yield
            with kafka_prefix_in_errors():
                transaction = producer.prepare_transaction()
        except Exception as error:
            # Closing the producer aborts the transaction, so that readers need not wait for its timeout. The driver
            # aborts transactions that stay open (docs/decisions/0023-late-batches.md).
            producer.close(_CLOSE_TIMEOUT_SECONDS)
            config = producer.config
            raise_if_late_attempt_was_fenced(error, config.client_config(), self.start, config.max_block_ms)
            raise
        if transaction is not None:
            report.transaction = transaction

    def _begin_transaction(self, producer: KafkaProducer, task: TaskIdentity) -> None:
        """Begin the transaction of a task attempt under its own transactional id.

        Raise ExactlyOnceError if the driver is no longer waiting for the batch.
        """
        start = self.start
        # The transactional id contains the attempt's number. If the id is in use, for example because Spark has rerun
        # the stage, choose a different number.
        preferred_attempt = start.build_task_attempt(task.partition_id, task.attempt_number)
        task_attempt = check_and_renumber_attempt(
            producer.describe_transactions, start, preferred_attempt, task.task_attempt_id
        )
        # Get a new epoch for each batch: the driver has ended the producer's last transaction, so the epoch of that
        # transaction is no longer valid.
        task_id = build_task_id(start.prefix, task_attempt)
        with precommit_errors.convert_rejected_transaction_timeout(
            task_id,
            start.entry.timeout_ms,
            is_user_timeout=self.settings.options.transaction_timeout_ms is not None,
        ):
            producer.init_transactions(task_id)
        # Check again that the driver is waiting, now that brokers list the transactional id. If the driver has already
        # listed the tasks' transactional ids, the check fails. Otherwise, the driver will find this one.
        raise_if_late(producer.describe_transactions, start)
        producer.begin_transaction()

    def attach_batch_start(self, report: TaskReport) -> None:
        """Add the batch's start to the report if this is a stream, because another process commits its batches."""
        report.batch_start = self.start if self.is_stream else None

    # --- methods for the driver. They may run while task attempts that Spark has not accepted are still running.

    def commit(self, reports: Sequence[TaskReport]) -> None:
        """Commit the tasks' transactions. If the batch was already committed, compare its rows with the reports.

        Raise ExactlyOnceError if the decision is rejected or in doubt, if a commit fails, or if the rows differ. Raise
        DeliveryError if the reports contradict each other. Any other KafkaSinkError means that nothing was decided.
        """
        batch = self._require_single_batch(reports)
        summary = _summarize_reports(reports)
        skipped_task_count = sum(report.was_already_committed for report in reports)
        if 0 < skipped_task_count < len(reports):
            raise DeliveryError(
                "Some tasks have written the batch, and others have skipped it as already committed. Run the write "
                "again."
            )
        # In a write through mapInArrow, Spark runs no task for a DataFrame without partitions, such as
        # `frame.where("false")`. So there is no task that has found out whether the batch is decided.
        if skipped_task_count or (not reports and self.start.is_decided(batch)):
            self.start.check_skipped_batch(
                batch, summary, tolerate_mismatch=self.settings.options.tolerate_replay_mismatch
            )
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions or self.settings.is_single_use:
            with _open_driver(self.settings) as driver:
                driver.commit(self.start, batch, transactions, summary)

    def abort(self, reports: Sequence[TaskReport]) -> AbortOutcome:
        """Abort the batch's transactions, unless the batch is already decided or a newer driver has taken over.

        `reports`: the reports of the tasks that finished.
        """
        batch = self._require_single_batch(reports)
        with _open_driver(self.settings) as driver:
            was_aborted = driver.abort(self.start, batch)
        if was_aborted:
            return AbortOutcome(was_aborted, _RUN_ABORTED_MESSAGE if self.is_stream else _JOB_ABORTED_MESSAGE)
        if self.start.entry.has_decided(batch):
            return AbortOutcome(was_aborted, _ALREADY_COMMITTED_MESSAGE)
        if self.is_stream or batch.is_idempotent:
            return AbortOutcome(was_aborted, _NOT_ABORTED_MESSAGE)
        remedy = decision_errors.build_unknown_outcome_remedy(self.start.entry)
        return AbortOutcome(was_aborted, f"{_NOT_ABORTED_REASON}. {remedy}")

    # --- the batch of a task or a report

    def _build_job_batch(self) -> Batch:
        """Return the batch of a batch job, which has only one."""
        return Batch(key=self.settings.options.idempotency_key, scope=self.settings.scope)

    def _build_planned_batch(self) -> Batch:
        """Return the batch that was planned. Use this only if no task has reported."""
        return self._build_job_batch() if self.micro_batch is None else _to_batch(self.micro_batch)

    def _build_task_batch(self, task: TaskIdentity) -> Batch:
        """Return the batch of a task. Raise DeliveryError if a stream's task does not know its micro-batch."""
        if not self.is_stream:
            return self._build_job_batch()
        if task.query_id is None or task.batch_id is None:
            raise DeliveryError("Nothing was written, because Spark did not provide the task's query id and batch id.")
        return _to_batch(MicroBatchId(task.query_id, task.batch_id))

    def _require_single_batch(self, reports: Sequence[TaskReport]) -> Batch:
        """Return the batch that all reports name, or the planned batch if there are no reports.

        Raise DeliveryError if the reports name different batches.
        """
        if not reports:
            return self._build_planned_batch()
        batches = {self._build_task_batch(report.task) for report in reports}
        if len(batches) > 1:
            raise DeliveryError(
                f"The tasks of one batch reported {len(batches)} different batches. Run the write again."
            )
        (batch,) = batches
        return batch


@dataclass(frozen=True)
class UnreportedBatch:
    """A micro-batch whose tasks have not reported.

    The committing process has no BatchStart for it, because it gets a BatchStart only inside the task reports.
    """

    settings: ExactlyOnceSettings
    start_name: str
    """Identifies the start of the query (see `build_start_name`)."""

    def commit(self, reports: Sequence[TaskReport]) -> None:
        """Do nothing, because no task wrote anything."""

    def abort(self, reports: Sequence[TaskReport]) -> AbortOutcome:
        """Abort the query's open transactions.

        Nothing is aborted if a batch is decided or being decided, or if a newer driver has taken over.
        """
        with _open_driver(self.settings) as driver:
            was_aborted = driver.abort_unreported(self.start_name)
        return AbortOutcome(was_aborted, _RUN_ABORTED_MESSAGE if was_aborted else _NOT_ABORTED_MESSAGE)


@contextlib.contextmanager
def _open_driver(settings: ExactlyOnceSettings) -> Iterator[Driver]:
    """Open the driver for the block. Errors name the producer's options as a Spark job does."""
    with kafka_prefix_in_errors(), Driver(settings) as driver:
        yield driver


def _to_batch(micro_batch: MicroBatchId) -> Batch:
    return Batch(micro_batch.query_id, int(micro_batch.batch_id))


def _summarize_reports(reports: Sequence[TaskReport]) -> BatchSummary:
    """Add up the rows and bytes that the tasks wrote or skipped."""
    return summarize_tasks((report.rows_by_topic(), report.skipped_bytes or report.totals.bytes) for report in reports)


# --- in the planning worker


def begin_micro_batch(
    options: SinkOptions, stream_start_id: str | None, micro_batch: MicroBatchId | None = None
) -> ExactlyOnceWrite:
    """Begin a micro-batch under the stream's prefix, and return the state for its writer.

    `stream_start_id`: identifies this start of the query; None if `register` was not called.
    """
    settings = build_stream_settings(options)
    write = _begin_write(settings, build_driver_name(stream_start_id), is_stream=True)
    return dataclasses.replace(write, micro_batch=micro_batch)


def begin_job(options: SinkOptions, driver_process_id: int | None = None) -> ExactlyOnceWrite:
    """Begin a batch job under its prefix, and return the state for its writer.

    `driver_process_id`: the driver's process id. If it is None, as in a planning worker, it is looked up.
    """
    settings = build_job_settings(options, driver_process_id)
    return _begin_write(settings, build_driver_name(uuid.uuid4().hex), is_stream=False)


def _begin_write(settings: ExactlyOnceSettings, driver_name: str, *, is_stream: bool) -> ExactlyOnceWrite:
    """Begin a batch as the driver with this name. This fences older drivers of the same prefix."""
    with _open_driver(settings) as driver:
        return ExactlyOnceWrite(settings, driver.begin(driver_name), is_stream=is_stream)


def build_driver_name(stream_start_id: str | None) -> str:
    """Build the name of the driver for the micro-batches of one start of the query.

    With `register`, all of these micro-batches have the same driver. Without it, each micro-batch has a driver of its
    own, because two starts of the query cannot be told apart, and might make decisions under the same epoch.
    """
    start_name = build_start_name(stream_start_id)
    return start_name if stream_start_id is not None else build_batch_driver_name(start_name, uuid.uuid4().hex[:12])


def build_start_name(stream_start_id: str | None) -> str:
    """Build a name that identifies one start of the query.

    Without `register`, all starts in a Spark application have the same name, because Spark creates a new data source
    for each micro-batch, and passes it nothing that identifies the start. The name then identifies the application, by
    Spark's local directories or, if SPARK_LOCAL_DIRS is not set, by the driver's process id.
    """
    if stream_start_id is None:
        directories = os.environ.get("SPARK_LOCAL_DIRS") or f"process {find_driver_process_id()}"
        stream_start_id = hashlib.sha256(directories.encode()).hexdigest()[:12]
    return f"{platform.node()}/{stream_start_id}"


def build_stream_settings(options: SinkOptions) -> ExactlyOnceSettings:
    """Build the exactly-once settings of a stream.

    The settings depend only on the options, so every process that plans or commits batches builds the same ones. Raise
    ConfigurationError if the options contain an idempotency key, or neither a prefix nor a checkpoint location, so that
    the stream would have no name that survives a restart.
    """
    exactly_once_options = _require_exactly_once_options(options)
    if exactly_once_options.idempotency_key is not None:
        raise ConfigurationError(IDEMPOTENCY_KEY_IN_STREAM_MESSAGE)
    checkpoint = (
        ""
        if exactly_once_options.checkpoint_location is None
        else normalize_checkpoint(exactly_once_options.checkpoint_location)
    )
    if exactly_once_options.prefix is None and not checkpoint:
        raise ConfigurationError(MISSING_QUERY_NAME_MESSAGE)
    prefix = exactly_once_options.prefix or derive_prefix("stream", checkpoint)
    return _build_settings(options, prefix, WriterKind.STREAM, checkpoint=checkpoint)


def build_job_settings(options: SinkOptions, driver_process_id: int | None = None) -> ExactlyOnceSettings:
    """Build the exactly-once settings of a batch job.

    The prefix is the user's, or derived from the idempotency key. If the user has set neither, generate a unique one.

    `driver_process_id`: as in `begin_job`.
    """
    exactly_once_options = _require_exactly_once_options(options)
    if exactly_once_options.prefix is not None:
        return _build_settings(options, exactly_once_options.prefix, WriterKind.JOB)
    if exactly_once_options.idempotency_key is not None:
        # Many jobs use the date as their key. Deriving the prefix from the topic as well keeps such jobs apart.
        prefix = derive_prefix("key", f"{options.topic or ''}\n{exactly_once_options.idempotency_key}")
        return _build_settings(options, prefix, WriterKind.JOB)
    return _build_settings(options, generate_job_prefix(driver_process_id), WriterKind.JOB, is_single_use=True)


def _build_settings(
    options: SinkOptions, prefix: str, writer_kind: WriterKind, *, checkpoint: str = "", is_single_use: bool = False
) -> ExactlyOnceSettings:
    """Build the exactly-once settings of a query or job.

    `checkpoint`: the checkpoint location of a stream; empty if it is unknown.
    `is_single_use`: whether only this run of the job uses the prefix, because it was generated.
    """
    return ExactlyOnceSettings(
        options.producer_config().client_config(),
        prefix,
        _require_exactly_once_options(options),
        checkpoint=checkpoint,
        scope=options.topic or "",
        is_single_use=is_single_use,
        writer_kind=writer_kind,
    )


def _require_exactly_once_options(options: SinkOptions) -> ExactlyOnceOptions:
    """Return the options of exactly-once delivery, which must be enabled."""
    assert options.exactly_once_options is not None
    return options.exactly_once_options


# --- in the committing worker of a stream


def restore_from_reports(
    options: SinkOptions, reports: Sequence[TaskReport], stream_start_id: str | None
) -> ExactlyOnceWrite | UnreportedBatch:
    """Restore the exactly-once state of a micro-batch from its task reports.

    Return an UnreportedBatch if no report contains a BatchStart. Raise DeliveryError if the reports contain BatchStarts
    of several drivers.
    """
    batch_starts = [report.batch_start for report in reports if report.batch_start is not None]
    if len({(batch_start.prefix, batch_start.driver_identity) for batch_start in batch_starts}) > 1:
        raise DeliveryError("The tasks of one batch were begun by several drivers. Run the write again.")
    settings = build_stream_settings(options)
    if not batch_starts:
        return UnreportedBatch(settings, build_start_name(stream_start_id))
    return ExactlyOnceWrite(settings, batch_starts[0], is_stream=True)
