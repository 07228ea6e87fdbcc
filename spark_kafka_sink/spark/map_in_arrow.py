"""DataFrame writes through `mapInArrow` instead of the data source (the option `writeMethod`).

Spark 3.5 has no Python data sources, so all of its writes go through `mapInArrow`. From Spark 4.0 on, the data source
is the default. For a data source, Spark starts four Python daemons: to look it up, to plan the write, to run the tasks
and to commit. `mapInArrow` needs only the daemon for the tasks, so a short job ends sooner.

    user's program    plan_batch_write        creates the writer that a planning worker would create
    task              writer.write_in_map     writes the rows and yields the task's report as its only row
    user's program    writer.commit_job       receives the reports
                      writer.abort_job        receives no reports if the job failed, because Spark returns none

Spark accepts the result of only one attempt per task. The reports of failed or redundant speculative attempts never
reach the user's program, so the transactions of these attempts are not committed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError
from spark_kafka_sink.spark.datasource import plan_batch_write
from spark_kafka_sink.spark.options.write_method import DATA_SOURCE, MAP_IN_ARROW, WRITE_METHOD_OPTION
from spark_kafka_sink.spark.positional_columns import rename_by_position
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES, WriterCommitMessage
from spark_kafka_sink.spark.worker_log import LOGGER
from spark_kafka_sink.spark.writer import REPORT_COLUMN, KafkaBatchWriter

_NO_DATA_SOURCES_MESSAGE = (
    "Option 'writeMethod' is 'dataSource', but this Spark has no Python data sources. Remove the option, or use Spark "
    "4.0 or newer."
)
_CONNECT_NOT_SUPPORTED_MESSAGE = (
    "Option 'writeMethod' is 'mapInArrow', which is not supported with Spark Connect: such a write is committed by the "
    "process that calls save() or start(), which under Spark Connect is not the driver. Remove the option."
)


def should_use_map_in_arrow(options: Mapping[str, str], *, is_connect: bool) -> bool:
    """Return whether a write with these options goes through mapInArrow. Option names must be lowercase.

    Raise ConfigurationError if this Spark version or session does not support the requested method. An invalid value of
    `writeMethod` is ignored here, because the option checks report it.
    """
    requested_method = options.get(WRITE_METHOD_OPTION.name.lower(), "").strip().lower()
    if requested_method == MAP_IN_ARROW.lower():
        if is_connect:
            raise ConfigurationError(_CONNECT_NOT_SUPPORTED_MESSAGE)
        return True
    if requested_method == DATA_SOURCE.lower() and not HAS_PYTHON_DATA_SOURCES:
        raise ConfigurationError(_NO_DATA_SOURCES_MESSAGE)
    return not HAS_PYTHON_DATA_SOURCES


def write_with_map_in_arrow(frame: Any, options: Mapping[str, str]) -> None:
    """Write the DataFrame's rows and commit. If the write or the commit fails, abort it and raise the error.

    `options`: checked options with lowercase names.
    """
    writer = plan_batch_write(options, frame.schema)
    try:
        reports = _run_tasks(frame, writer)
    except BaseException:  # including KeyboardInterrupt, with which a user cancels the job
        _abort(writer, reports=[])
        raise
    try:
        _run_uninterrupted(lambda: writer.commit_job(reports))
    # A KeyboardInterrupt is not caught, because _run_uninterrupted raises it only after a successful commit.
    except Exception:
        _abort(writer, reports)
        raise


def _run_tasks(frame: Any, writer: KafkaBatchWriter) -> list[WriterCommitMessage]:
    """Run one Spark job that writes all rows, and return its tasks' reports."""
    # `mapInArrow` refers to columns by name, so give them unambiguous names. The writer finds columns by position.
    rows = rename_by_position(frame).mapInArrow(writer.write_in_map, f"{REPORT_COLUMN} BINARY").collect()
    return [pickle.loads(row[REPORT_COLUMN]) for row in rows]


def _run_uninterrupted(commit: Callable[[], None]) -> None:
    """Run the commit in a thread and wait until it has ended, even if the user interrupts the wait.

    If a commit stopped after recording its decision, it would leave transactions open. A KeyboardInterrupt is therefore
    raised only after the commit has ended.
    """
    interrupt: KeyboardInterrupt | None = None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pykafka-commit") as executor:
        future = executor.submit(commit)
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt as error:  # noqa: PERF203 - the loop waits and runs once or twice
                interrupt = error
                LOGGER.warning("The write is being committed and cannot be interrupted now. Waiting for its end.")
    future.result()
    if interrupt is not None:
        raise interrupt


def _abort(writer: KafkaBatchWriter, reports: Sequence[WriterCommitMessage]) -> None:
    """Abort the write. If that fails, only log the error, so that the user sees the error that failed the write."""
    try:
        writer.abort_job(reports)
    except KafkaSinkError as error:
        LOGGER.warning("Could not abort the failed write: %s", error)
