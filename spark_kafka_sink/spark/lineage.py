"""OpenLineage events that are sent during a write (`pip install "spark-kafka-sink[openlineage]"`).

The program that calls `save` or `start` sends all events. It has Spark's settings, and it notices when a write fails or
is interrupted, even before Spark plans the write. The credentials of the lineage server never leave this program.

    save     START, then COMPLETE, FAIL or ABORT
    start    START, RUNNING while micro-batches are committed, then COMPLETE, FAIL or ABORT when the query ends

The events contain the number of written rows, which is in the write report. The report is usually created in another
process (report_publishing.py). To receive it, this program creates a temporary directory and sets its path as an
internal option of the write. The report is saved there.

No write waits for an event (lineage_sender.py). When the program exits, it waits a few seconds for unsent events.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from openlineage.client.uuid import generate_new_uuid
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark_kafka_sink.diagnostics.text import mask_secrets, sanitize
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.options.files import read_bounded_file
from spark_kafka_sink.reports.write_report import COMMITTED, WriteReport, parse_report
from spark_kafka_sink.spark.constants import LINEAGE_DIRECTORY_OPTION
from spark_kafka_sink.spark.lineage_events import LineageRun, SparkWrite, WriteStatistics, build_event, build_run
from spark_kafka_sink.spark.lineage_sender import EventSender, create_sender, find_secrets
from spark_kafka_sink.spark.patches.plain_errors import parse_task_error
from spark_kafka_sink.spark.worker_log import LOGGER

START, RUNNING, COMPLETE, FAIL, ABORT = "START", "RUNNING", "COMPLETE", "FAIL", "ABORT"
"""Types of events. COMPLETE, FAIL and ABORT end a run, and no event follows them."""

_PROGRESS_INTERVAL_SECONDS = 10.0
"""The shortest time between two RUNNING events of a stream."""
_EXIT_WAIT_SECONDS = 5.0
"""Maximum time that the program's exit waits for queries to end and for unsent events."""
_MAX_MESSAGE_CHARACTERS = 2_000
_STACK_TRACE_HEADERS = ("Traceback (most recent call last)", "JVM stacktrace")
"""First lines of the stack traces that Spark's error messages contain."""
_CANCELLED_PATTERN = re.compile(r"SPARK_JOB_CANCELLED|Job \d+ cancelled")
"""Matches the text of the error that Spark raises when a user cancels a job."""
_SECRET_OPTION_PATTERN = re.compile(r"password|passphrase|secret|token|jaas|user\.info|keystore\.key|key\.pem")


class LineageWrite:
    """A batch write or a streaming query for which events are sent. Thread-safe.

    `directory`: the directory in which other processes save the write's reports. It is deleted when the write ends.
    `secrets`: strings to mask in all events.
    """

    def __init__(self, run: LineageRun, sender: EventSender, directory: str, secrets: list[str]) -> None:
        self._run = run
        self._sender = sender
        self._secrets = secrets
        self._directory = directory
        self._lock = threading.Lock()
        self._has_ended = False
        """Whether the last event was sent."""
        self._is_committed = False
        """Whether a report has confirmed a commit."""
        self._rows_by_topic: Counter[str] = Counter()
        self._bytes = 0
        self._report_count = 0

    def options(self) -> dict[str, str]:
        """Return the internal option that passes the reports' directory to the write."""
        return {LINEAGE_DIRECTORY_OPTION: self._directory}

    @contextlib.contextmanager
    def trace_save(self) -> Iterator[None]:
        """Send START before the block, which runs the batch write, and COMPLETE, FAIL or ABORT after it."""
        try:
            self._send(START)
            yield
        except BaseException as error:  # including KeyboardInterrupt
            self.end(error)
            raise
        self.end()

    def start_query(self, start: Callable[[], Any]) -> Any:
        """Start a streaming query, and a thread that sends the query's events until the query ends.

        `start`: starts the query and returns it. If it raises an error, send FAIL or ABORT and raise the error.
        """
        try:
            self._send(START)
            query = start()
        except BaseException as error:  # including KeyboardInterrupt
            self.end(error)
            raise
        watcher = threading.Thread(target=self.watch, args=(query,), name="pykafka-lineage-query", daemon=True)
        # Add the entry before the thread starts, because the thread removes it when the query ends. If the thread
        # cannot start, the entry stays, and `finish_at_exit` ends the run.
        _queries[self] = _WatchedQuery(query, watcher)
        try:
            watcher.start()
        except RuntimeError as error:  # no more threads can be started
            LOGGER.warning(
                "Could not start a thread to watch the query, so its end will not be reported to OpenLineage until the "
                "program exits: %s",
                error,
            )
        return query

    def watch(self, query: Any) -> None:
        """Wait until the query ends. Send RUNNING after micro-batches, and finally COMPLETE, FAIL or ABORT."""
        error: Exception | None = None
        try:
            while not query.awaitTermination(_PROGRESS_INTERVAL_SECONDS):
                self._send_progress()
        except PySparkException as failure:
            error = failure
        except (Py4JError, OSError):
            self._abort("The connection to Spark was lost before the query ended.")
        # If ABORT was sent above, the run has ended, and this sends nothing.
        self.end(error)
        _queries.pop(self, None)

    def end_at_exit(self, watched_query: _WatchedQuery, timeout_s: float) -> None:
        """End a query's run because the program is about to exit, which also stops Spark.

        `timeout_s`: how long to wait for the watcher if the query has ended.
        """
        query, watcher = watched_query.query, watched_query.watcher
        try:
            is_active = query.isActive
        except (Py4JError, OSError):
            is_active = True
        if not is_active:
            was_watcher_started = watcher.ident is not None
            if was_watcher_started:
                watcher.join(timeout_s)  # let the watcher send the last event
            else:
                self.watch(query)
        # If the run has ended in the meantime, this sends nothing.
        self._abort("The program ended before the query.")

    def end(self, error: BaseException | None = None) -> None:
        """Send COMPLETE, FAIL or ABORT and delete the directory, unless the run has already ended.

        A committed batch write is reported as COMPLETE even if an error followed, because its rows have been written.

        `error`: the error that ended the write; None if it succeeded.
        """
        with self._lock:
            self._add_new_reports()
            if error is None or (self._is_committed and not self._run.is_stream):
                self._end_run(COMPLETE)
            else:
                self._end_run(ABORT if is_interruption(error) else FAIL, self._describe_error(error))

    def _abort(self, message: str) -> None:
        """Send ABORT as the last event and delete the directory, unless the run has already ended."""
        with self._lock:
            self._add_new_reports()
            self._end_run(ABORT, message)

    def _end_run(self, event_type: str, message: str | None = None) -> None:
        """Send the run's last event and delete the directory, unless the run has ended. The caller holds the lock."""
        if self._has_ended:
            return
        self._send(event_type, message)
        self._has_ended = True
        shutil.rmtree(self._directory, ignore_errors=True)

    def _send_progress(self) -> None:
        """Send RUNNING if there are new reports, unless the run has ended."""
        with self._lock:
            if self._has_ended:
                return
            # Some systems delete old temporary directories, and the process that commits does not recreate this one.
            with contextlib.suppress(OSError):
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
            if self._add_new_reports():
                self._send(RUNNING)

    def _send(self, event_type: str, message: str | None = None) -> None:
        statistics = WriteStatistics(dict(self._rows_by_topic), self._bytes) if self._report_count else None
        self._sender.submit(build_event(self._run, event_type, datetime.now(timezone.utc), statistics, message))

    def _add_new_reports(self) -> bool:
        """Add the reports in the directory to the statistics and delete them. Return whether there were any."""
        reports = list(_consume_reports(self._directory))
        for report in reports:
            self._report_count += 1
            self._is_committed |= report.status == COMMITTED
            self._bytes += report.bytes
            self._rows_by_topic.update(_count_rows_by_topic(report, self._run.topic))
        return bool(reports)

    def _describe_error(self, error: BaseException) -> str:
        """Return the error's class and message on one line, without stack traces and secrets."""
        # If a task failed, its error is quoted in the message of Spark's error.
        error = parse_task_error(str(error)) or error
        # Drop stack traces. All of their lines are indented, except for the header.
        message_lines = [
            line
            for line in str(error).splitlines()
            if line and not line[0].isspace() and not line.startswith(_STACK_TRACE_HEADERS)
        ]
        distinct_lines = dict.fromkeys(message_lines)
        message = f"{type(error).__name__}: {' '.join(distinct_lines)}"
        return sanitize(mask_secrets(message, self._secrets), _MAX_MESSAGE_CHARACTERS)


class _WatchedQuery(NamedTuple):
    """A streaming query and the thread that runs `LineageWrite.watch` for it. The thread may have failed to start."""

    query: Any
    watcher: threading.Thread


_queries: dict[LineageWrite, _WatchedQuery] = {}
"""The queries whose run has not ended yet."""
_senders: dict[tuple[tuple[str, str], ...], EventSender | None] = {}
"""The sender of each distinct set of transport settings; None if the settings are invalid."""


def prepare_lineage(settings: Mapping[str, str], options: Mapping[str, str], write: SparkWrite) -> LineageWrite | None:
    """Prepare to send OpenLineage events about a write. Return None if they cannot be sent.

    `settings`: the listener's settings, without the prefix `spark.openlineage.`.
    `options`: the write's options, with lowercase names.
    """
    sender = get_or_create_sender(settings)
    if sender is None:
        return None
    secrets = find_secrets(settings)
    secrets += [value for name, value in options.items() if _SECRET_OPTION_PATTERN.search(name)]
    run = build_run(str(generate_new_uuid()), settings, options, write)
    try:
        directory = tempfile.mkdtemp(prefix="pykafka-lineage-")
    except OSError as error:
        LOGGER.warning(
            "No OpenLineage events will be sent about this write: could not create a temporary directory: %s", error
        )
        return None
    return LineageWrite(run, sender, directory, secrets)


def get_or_create_sender(settings: Mapping[str, str]) -> EventSender | None:
    """Return the sender that all writes with these settings share. Create it on first use.

    If the settings are invalid, log the error once and return None.
    """
    transport_settings = tuple(
        sorted((name, value) for name, value in settings.items() if name.startswith("transport."))
    )
    if transport_settings not in _senders:
        # The first sender of the process installs the exit handler.
        if not _senders:
            atexit.register(finish_at_exit)
        try:
            _senders[transport_settings] = create_sender(settings)
        except ConfigurationError as error:
            _senders[transport_settings] = None
            LOGGER.warning("No OpenLineage events will be sent: %s", error)
    return _senders[transport_settings]


def finish_at_exit() -> None:
    """End the runs of all queries that are still running, and wait a few seconds for unsent events."""
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    # Copy the entries, because a watcher removes its entry when its query ends in the meantime.
    for write, watched_query in list(_queries.items()):
        write.end_at_exit(watched_query, max(0.0, deadline - time.monotonic()))
    flush_events(deadline - time.monotonic())


def flush_events(timeout_s: float) -> None:
    """Wait until all events are sent or the timeout has passed. Log the number of events that were not sent."""
    deadline = time.monotonic() + timeout_s
    for sender in _senders.values():
        unsent_count = 0 if sender is None else sender.flush(max(0.0, deadline - time.monotonic()))
        if unsent_count:
            LOGGER.warning("%d OpenLineage events were not sent in time. Check the OpenLineage server.", unsent_count)


def is_interruption(error: BaseException) -> bool:
    """Return whether the error means that a user interrupted or cancelled the write."""
    return not isinstance(error, Exception) or _CANCELLED_PATTERN.search(str(error)) is not None


def _consume_reports(directory: str) -> Iterator[WriteReport]:
    """Read and delete the complete reports in a directory. Reports that are still being written stay in it."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        path = os.path.join(directory, name)
        try:
            text = read_bounded_file(path).decode(errors="replace")
            # A complete report ends with a newline. The file is deleted before the report is parsed, so that an invalid
            # report is not read again.
            if text.endswith("\n"):
                os.unlink(path)
                yield parse_report(text)
        except (OSError, ConfigurationError) as error:
            LOGGER.debug("Could not read a report for OpenLineage: %s", error)


def _count_rows_by_topic(report: WriteReport, topic: str | None) -> dict[str, int]:
    """Return the number of rows in the report by topic.

    `topic`: the topic of all rows; None if each row names its topic.
    """
    if topic is not None:
        return {topic: report.rows}
    return {
        name: sum(offsets.rows for offsets in partitions.values()) for name, partitions in report.partitions.items()
    }
