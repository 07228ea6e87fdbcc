"""`deliveryGuarantee` = `exactly-once`, between Spark and exactly_once/: who calls what, when, in which process.

    planning worker     begin_stream, begin_job      once for each micro-batch, once for each job
    task                ExactlyOnce.is_committed     before it reads a row
                        ExactlyOnce.transaction      around what it writes; its end stays open
    committing worker   commit, abort                in a stream another process than the one that planned

Imported only where exactly once was asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.exactly_once import steps
from spark_kafka_sink.exactly_once.batch_start import BatchStart, Delivery
from spark_kafka_sink.exactly_once.entries import Batch, TaskTransaction
from spark_kafka_sink.exactly_once.late_attempts import refused_if_late
from spark_kafka_sink.exactly_once.names import OWN_PREFIX, checkpoint_name, prefix_of
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.spark.delivery_options import DeliveryOptions
from spark_kafka_sink.spark.report import TaskIdentity, TaskReport
from spark_kafka_sink.spark.sink_options import SinkOptions
from spark_kafka_sink.spark.words import NO_NAME

_CLOSE_SECONDS = 5.0
_REPLACED_BY_EACH_TASK = f"{OWN_PREFIX}task"
"""A producer needs an id to be transactional; with the prefix in it, the pool would keep producers for each job."""

_LEFT_ALONE = "it is decided already, or a newer driver has taken over; the next start finishes what is decided"
_KEY_IN_STREAM = (
    "Option 'idempotencyKey' is for batch jobs. A stream needs none: its query id and the number of each micro-batch "
    "are what a batch is known by."
)


@dataclass(frozen=True)
class ExactlyOnce:
    """What a writer has with it, from the planning worker to the tasks."""

    delivery: Delivery
    start: BatchStart
    is_stream: bool

    def producer_options(self) -> dict[str, str]:
        """Of the tasks. One producer serves one task after the other, of whatever job, each under the task's own id."""
        return {
            **self.delivery.options,
            "transactional.id": _REPLACED_BY_EACH_TASK,
            "transaction.timeout.ms": str(self.start.entry.timeout_ms),
        }

    def batch(self, task: TaskIdentity) -> Batch:
        return _micro_batch(task) if self.is_stream else Batch(key=self.delivery.key)

    def is_committed(self, task: TaskIdentity) -> bool:
        """Are the rows of this task's batch in Kafka already? Raises what speaks against writing them."""
        steps.before(steps.TASK)
        committed = self.start.is_committed(self.batch(task))
        steps.after(steps.TASK)
        return committed

    @contextlib.contextmanager
    def transaction(self, producer: KafkaProducer, report: TaskReport) -> Iterator[None]:
        """What is written within the block is one transaction, which stays open for the driver to end."""
        task = report.task
        steps.before(steps.WRITE)
        try:
            # Anew for each batch: the driver has ended the last one, which has changed the epoch.
            with refused_if_late(self.start, self.delivery.options):
                producer.init_transactions(self.start.task_id(task.partition_id, task.attempt_number))
            producer.begin_transaction()
            yield
            prepared = producer.prepare_transaction()
        except Exception:
            producer.close(_CLOSE_SECONDS)  # aborts, so that no reader has to wait for the transaction's timeout
            raise
        if prepared is not None:
            report.transaction = self.start.transaction(task.partition_id, task.attempt_number, prepared)
            # The process that commits a job has the start itself, with the keys of a hundred jobs before.
            report.start = self.start.for_message() if self.is_stream else None
        steps.after(steps.WRITE)


def _micro_batch(task: TaskIdentity) -> Batch:
    if task.query_id is None or task.batch_id is None:
        raise DeliveryError("Spark has not said which micro-batch this task is of, so nothing was written.")
    return Batch(task.query_id, int(task.batch_id))


# --- in the planning worker


def begin_stream(options: SinkOptions) -> ExactlyOnce:
    return _begun(stream_delivery(options), _process_name(), is_stream=True)


def begin_job(options: SinkOptions) -> ExactlyOnce:
    return _begun(_job_delivery(options), uuid.uuid4().hex, is_stream=False)


def _begun(delivery: Delivery, name: str, *, is_stream: bool) -> ExactlyOnce:
    from spark_kafka_sink.exactly_once.driver import Driver

    with Driver(delivery) as driver:
        return ExactlyOnce(delivery, driver.begin(name), is_stream)


def stream_delivery(options: SinkOptions) -> Delivery:
    """The Delivery of a stream. Each process that plans or commits computes an equal one."""
    asked = _asked(options)
    if asked.key is not None:
        raise ConfigurationError(_KEY_IN_STREAM)
    checkpoint = "" if asked.checkpoint is None else checkpoint_name(asked.checkpoint)
    if asked.prefix is None and not checkpoint:
        raise ConfigurationError(NO_NAME)
    return _delivery(options, asked.prefix or prefix_of("stream", checkpoint), checkpoint=checkpoint)


def _job_delivery(options: SinkOptions) -> Delivery:
    asked = _asked(options)
    if asked.prefix is not None:
        return _delivery(options, asked.prefix)
    if asked.key is not None:
        return _delivery(options, prefix_of("key", asked.key))
    return _delivery(options, f"{OWN_PREFIX}job-{uuid.uuid4().hex}", is_forgotten=True)


def _delivery(options: SinkOptions, prefix: str, *, checkpoint: str = "", is_forgotten: bool = False) -> Delivery:
    asked = _asked(options)
    return Delivery(
        options=options.producer,
        prefix=prefix,
        topic=asked.topic,
        replication=asked.replication,
        timeout_ms=asked.timeout_ms,
        checkpoint=checkpoint,
        key=asked.key,
        is_given=asked.prefix is not None,
        is_forgotten=is_forgotten,
    )


def _asked(options: SinkOptions) -> DeliveryOptions:
    assert options.exactly_once is not None
    return options.exactly_once


def _process_name() -> str:
    """Of the driver whose worker this is: the folders that Spark makes for a driver are its own."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or f"process {os.getppid()}"
    return f"{platform.node()}/{hashlib.sha256(folders.encode()).hexdigest()[:12]}"


# --- in the committing worker


def commit(once: ExactlyOnce, reports: Sequence[TaskReport]) -> None:
    _commit(once.delivery, once.start, once.batch, reports)


def commit_stream(options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """In a process that has nothing but the options and what the tasks bring."""
    start = _start_of(reports)
    if start is not None:  # else no task had a row
        _commit(stream_delivery(options), start, _micro_batch, reports)


def abort(once: ExactlyOnce, reports: Sequence[TaskReport]) -> str:
    """What became of the rows, in words."""
    return _abort(once.delivery, once.start, once.batch, reports)


def abort_stream(options: SinkOptions, reports: Sequence[TaskReport]) -> str:
    start = _start_of(reports)
    if start is None:
        return _abort_unreported(stream_delivery(options))
    return _abort(stream_delivery(options), start, _micro_batch, reports)


def _commit(
    delivery: Delivery, start: BatchStart, batch_of: Callable[[TaskIdentity], Batch], reports: Sequence[TaskReport]
) -> None:
    from spark_kafka_sink.exactly_once.driver import Driver

    transactions = _transactions(reports)
    if transactions:
        with Driver(delivery) as driver:
            driver.commit(start, _one_batch(batch_of, reports), transactions)


def _abort(
    delivery: Delivery, start: BatchStart, batch_of: Callable[[TaskIdentity], Batch], reports: Sequence[TaskReport]
) -> str:
    from spark_kafka_sink.exactly_once.driver import Driver

    with Driver(delivery) as driver:
        if driver.abort(start, _one_batch(batch_of, reports), _transactions(reports)):
            return "its transactions were aborted, and read_committed readers see nothing of it"
    return _LEFT_ALONE


def _abort_unreported(delivery: Delivery) -> str:
    """When a query was stopped, for example: its tasks may have written, and are killed."""
    from spark_kafka_sink.exactly_once.driver import Driver

    with Driver(delivery) as driver:
        if driver.abort_unreported(_process_name()):
            return "no task has reported; transactions that were open are aborted, and readers do not wait for them"
    return _LEFT_ALONE


def _transactions(reports: Sequence[TaskReport]) -> list[TaskTransaction]:
    return [report.transaction for report in reports if report.transaction is not None]


def _start_of(reports: Sequence[TaskReport]) -> BatchStart | None:
    starts = [report.start for report in reports if report.start is not None]
    if len({(start.prefix, start.driver) for start in starts}) > 1:
        raise DeliveryError("The tasks of one batch were begun by several drivers. Run the write again.")
    return starts[0] if starts else None


def _one_batch(batch_of: Callable[[TaskIdentity], Batch], reports: Sequence[TaskReport]) -> Batch:
    batches = {batch_of(report.task) for report in reports}
    if len(batches) > 1:
        raise DeliveryError(f"The tasks of one batch name {len(batches)} of them. Run the write again.")
    return batches.pop() if batches else Batch()
