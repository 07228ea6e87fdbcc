"""What Spark calls: a writer for batch jobs and one for streams, two thin classes over one task and one commit.

A writer is made on the driver and pickled to the tasks, so it holds configuration only. In a stream the one that
commits is made anew in another process: whatever it needs to know comes with the tasks' reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_kafka_sink.errors import ConfigurationError, DeliveryError
from spark_kafka_sink.spark.columns import ColumnPlan
from spark_kafka_sink.spark.report import TaskReport, add_up
from spark_kafka_sink.spark.sink_options import SinkOptions
from spark_kafka_sink.spark.worker_process import look_at_less
from spark_kafka_sink.spark.write_task import LOGGER, show_log, write_rows

if TYPE_CHECKING:
    from spark_kafka_sink.spark.exactly_once import ExactlyOnce

CONTINUOUS = (
    "trigger(continuous=...) is not available for 'pykafka': continuous processing does not run sinks in Python. "
    'Use micro-batches: .trigger(processingTime="0 seconds").'
)


class KafkaBatchWriter(DataSourceArrowWriter):
    """`once`: what the driver has begun, if it is exactly once."""

    def __init__(self, options: SinkOptions, plan: ColumnPlan, once: ExactlyOnce | None = None) -> None:
        self._options = options
        self._plan = plan
        self._once = once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._plan, iterator, once=self._once)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        look_at_less()  # the process that commits a stream has planned it anew, and has done so there
        commit(self._options, messages, make_visible=self._commit)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options, messages, take_back=None if self._once is None else self._abort)

    def _commit(self, reports: Sequence[TaskReport]) -> None:
        if self._once is not None:
            from spark_kafka_sink.spark import exactly_once

            exactly_once.commit(self._once, reports)

    def _abort(self, reports: Sequence[TaskReport]) -> str:
        from spark_kafka_sink.spark import exactly_once

        assert self._once is not None
        return exactly_once.abort(self._once, reports)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """`once`: what the driver has begun, if it is exactly once; not in the process that commits."""

    def __init__(self, options: SinkOptions, plan: ColumnPlan, once: ExactlyOnce | None = None) -> None:
        self._options = options
        self._plan = plan
        self._once = once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self._options, self._plan, iterator, once=self._once)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit(self._options, messages, batchId, make_visible=self._commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        abort(self._options, messages, batchId, take_back=None if self._options.exactly_once is None else self._abort)

    def _commit(self, reports: Sequence[TaskReport]) -> None:
        if self._options.exactly_once is not None:
            from spark_kafka_sink.spark import exactly_once

            exactly_once.commit_stream(self._options, reports)

    def _abort(self, reports: Sequence[TaskReport]) -> str:
        from spark_kafka_sink.spark import exactly_once

        return exactly_once.abort_stream(self._options, reports)


def commit(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
    make_visible: Callable[[Sequence[TaskReport]], None] | None = None,
) -> None:
    """Every task must have said what it wrote; then say so in one line."""
    from spark_kafka_sink.spark.publish import publish  # not for tasks

    reports = _reports(messages)
    if batch_id is not None and messages and not reports:
        # Continuous processing never calls `write`. Spark only logs what is raised here, and goes on.
        raise ConfigurationError(f"No task has written anything. {CONTINUOUS}")
    if len(reports) != len(messages):
        raise DeliveryError(
            f"{len(messages) - len(reports)} of {len(messages)} tasks have not reported what they wrote, so their rows "
            "may be missing from Kafka. Run the write again."
        )
    twice = len(reports) - len({report.task.partition_id for report in reports})
    if twice:
        raise DeliveryError(f"{twice} partitions were committed by more than one task. Run the write again.")
    if make_visible is not None:
        make_visible(reports)
    report = add_up(reports, None if reports else _batch(batch_id))
    show_log()
    LOGGER.info("%s", report.line())
    if any(each.was_committed for each in reports):
        LOGGER.info("An earlier run has committed this already: its rows were passed over [%s]", report.batch)
    publish(options, report)


def abort(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch_id: int | None = None,
    take_back: Callable[[Sequence[TaskReport]], str] | None = None,
) -> None:
    """Say what is in Kafka. `take_back` aborts transactions, if there are any; else nothing can be taken back."""
    from spark_kafka_sink.spark.publish import publish

    reports = _reports(messages)
    report = add_up(reports, None if reports else _batch(batch_id), "failed")
    show_log()
    if take_back is not None:
        LOGGER.warning("the write failed: %s [%s]", take_back(reports), report.batch)
    else:
        LOGGER.warning(
            "the write failed; %d of %d tasks had ended well, and their rows stay in Kafka: %s. "
            "Running it again writes them again.",
            len(reports),
            len(messages),
            report.line(),
        )
    publish(options, report)


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message for message in messages if isinstance(message, TaskReport)]


def _batch(batch_id: int | None) -> str:
    return "batch job" if batch_id is None else f"batch {batch_id}"
