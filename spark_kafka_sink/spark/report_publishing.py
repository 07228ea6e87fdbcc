"""Publication of a write's report to a file or directory, a topic, or a user's function. Runs only on the driver.

The destinations are checked before the first row is read. When the report is published, the rows are already in Kafka.
An error is then only logged. If it failed the write, Spark would run the write again and write the rows twice.
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
from spark_kafka_sink.spark.options.names import kafka_prefix_in_errors
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import PRODUCER_POOL, lease_producer
from spark_kafka_sink.spark.worker_log import LOGGER

_PRODUCER_IDLE_SECONDS = 600.0
"""Time for which the idle producer for reports stays open, so that the next micro-batch can reuse it."""

_MAX_CHECKED_DESTINATIONS = 1_000
_checked_destinations: set[tuple[str | None, str | None]] = set()
"""Report paths and callbacks that have passed the check, so that a stream does not repeat it in each micro-batch."""


def clear_cache() -> None:
    """Forget which destinations were checked (tests only)."""
    _checked_destinations.clear()


def check_report_options(options: SinkOptions) -> None:
    """Raise ConfigurationError if the report's file or function cannot be used.

    The report's topic is checked together with the write's other topics (checks.py).
    """
    destinations = (options.report_path, options.report_callback)
    if destinations in _checked_destinations:
        return
    problems = []
    if options.report_path is not None:
        try:
            store.ensure_writable(options.report_path)
        except ConfigurationError as error:
            problems.append(f"Option 'reportPath': {error}")
    if options.report_callback is not None:
        try:
            import_function(options.report_callback)
        except (Exception, SystemExit) as error:  # any error that the user's module raises
            problems.append(
                f"Option 'reportCallback': {options.report_callback} cannot be used on the driver: {error}. "
                "Its module must be one that Spark's Python workers can import (--py-files)."
            )
    if problems:
        raise ConfigurationError(problems)
    if len(_checked_destinations) >= _MAX_CHECKED_DESTINATIONS:
        # In a long-lived driver with many jobs, the set must not grow without limit. Checking again does no harm.
        _checked_destinations.clear()
    _checked_destinations.add(destinations)


def publish_report(options: SinkOptions, report: WriteReport) -> None:
    """Publish the report to each destination named in the options. Errors are logged."""
    published_ms = round(time.time() * 1000)
    # The start time comes from the tasks, so a write without tasks has no start time yet.
    started_ms = report.started_ms if report.tasks else published_ms
    report = dataclasses.replace(report, started_ms=started_ms, published_ms=published_ms)
    path, topic, callback = options.report_path, options.report_topic, options.report_callback
    if path is not None:
        _try_to_publish(lambda: store.save_report(path, report), f"stored in {store.strip_query(path)}")
    if topic is not None:
        _try_to_publish(lambda: _send_to_topic(options, topic, report), f"written to topic {topic}")
    if callback is not None:
        _try_to_publish(lambda: import_function(callback)(report), f"passed to {callback}")
    if options.lineage_directory is not None:
        _save_for_lineage(options.lineage_directory, report)


def _save_for_lineage(directory: str, report: WriteReport) -> None:
    """Save the report for the program that sends OpenLineage events (lineage.py). The events contain its row counts.

    The program deletes the directory when its run ends, for example because the user interrupted save(). If Spark
    aborts the write later, the directory is missing and the report is not saved.
    """
    try:
        # The slash marks a directory. Without it, a file would be created in place of a missing directory.
        store.save_report(f"{directory}/", report)
    except OSError as error:
        LOGGER.debug("Could not save a report for OpenLineage: %s", error)


def _try_to_publish(publish: Callable[[], object], outcome: str) -> None:
    """Call `publish`, and log any error.

    `outcome`: completes the sentence "The report could not be ...".
    """
    try:
        publish()
    except (Exception, SystemExit):  # any error of a file system, Kafka or the user's function
        LOGGER.exception("The report could not be %s. The rows of the write are not affected.", outcome)


def _send_to_topic(options: SinkOptions, topic: str, report: WriteReport) -> None:
    """Send the report with the write's producer options, and wait for the result. Raise KafkaSinkError if it fails.

    All reports of a query or application have the same key, so they stay in order.
    """
    with (
        kafka_prefix_in_errors(),
        lease_producer(PRODUCER_POOL, options.producer_options, _PRODUCER_IDLE_SECONDS) as producer,
    ):
        query_or_application_id = report.batch.partition("/")[0]
        record = ProducerRecord(topic, key=query_or_application_id.encode(), value=report.to_json().encode())
        future = producer.send(record)
        producer.flush()
        future.result()
