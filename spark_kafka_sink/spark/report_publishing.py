"""Where the report of a write goes: a file or folder, a topic, a function of the user's. On the driver only.

All of it is checked before the first row. After the last one the rows are in Kafka, whatever becomes of the report: an
error in keeping it is logged and does not fail the write, which would only be run again and write them twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.options.functions import import_function
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.reports import store
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import POOL, lease_producer
from spark_kafka_sink.spark.worker_log import LOGGER

_IDLE_SECONDS = 600.0

_PREPARED_MAX = 1_000
_prepared: set[tuple[str | None, str | None]] = set()
"""Options whose places were checked: a stream asks for each micro-batch, and the check is not repeated."""


def forget() -> None:
    """For tests: as in a new process."""
    _prepared.clear()


def check_report_options(options: SinkOptions) -> None:
    """ConfigurationError if the report will not reach its file or function. The topic is looked at with the others."""
    wanted = (options.report_path, options.report_callback)
    if wanted in _prepared:
        return
    faults = []
    if options.report_path is not None:
        try:
            store.ensure_writable(options.report_path)
        except ConfigurationError as error:
            faults.append(f"Option 'reportPath': {error}")
    if options.report_callback is not None:
        try:
            import_function(options.report_callback)
        except (Exception, SystemExit) as error:  # whatever the user's module raises
            faults.append(
                f"Option 'reportCallback': {options.report_callback} cannot be used on the driver: {error}. "
                "Its module must be one that Spark's Python workers can import (--py-files)."
            )
    if faults:
        raise ConfigurationError(faults)
    if len(_prepared) >= _PREPARED_MAX:
        _prepared.clear()
    _prepared.add(wanted)


def publish(options: SinkOptions, report: WriteReport) -> None:
    """Hand the report to each place that the options name."""
    if not report.tasks:
        report = dataclasses.replace(report, started_ms=round(time.time() * 1000))
    path, topic, callback = options.report_path, options.report_topic, options.report_callback
    if path is not None:
        _attempt(lambda: store.save_report(path, report), f"kept in {path}")
    if topic is not None:
        _attempt(lambda: _send(options, topic, report), f"written to topic {topic}")
    if callback is not None:
        _attempt(lambda: import_function(callback)(report), f"given to {callback}")


def _attempt(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except (Exception, SystemExit):  # of file systems, Kafka and users' functions
        LOGGER.exception("The report could not be %s. What it is about is not affected.", what)


def _send(options: SinkOptions, topic: str, report: WriteReport) -> None:
    """With the options of the write. Reports of one query or application have one key, so they keep their order."""
    with lease_producer(POOL, options.producer, _IDLE_SECONDS) as producer:
        key = report.batch.partition("/")[0]
        future = producer.send(ProducerRecord(topic, key=key.encode(), value=report.to_json().encode()))
        producer.flush()
        future.result()
