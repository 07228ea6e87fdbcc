"""The sink's numbers beside Spark's own progress of a stream.

Spark has no place for a Python sink's numbers in a StreamingQueryProgress or in its UI. This listener, in the program
that started the stream, puts the two together: when Spark reports a micro-batch, it finds the report of that batch.

    spark.streams.addListener(ReportListener("/data/reports/", handle))
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_kafka_sink.reports.store import find_report
from spark_kafka_sink.reports.write_report import WriteReport

Handle = Callable[[WriteReport, StreamingQueryProgress], object]


class ReportListener(StreamingQueryListener):
    """Calls `handle(report, progress)` for each micro-batch that was written with this `reportPath`.

    The path must be readable from this program. Queries with other paths, and progress without a commit, are left out.
    """

    def __init__(self, report_path: str, handle: Handle) -> None:
        self._path = report_path
        self._handle = handle

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        report = find_report(self._path, f"{progress.id}/{progress.batchId}")
        if report is not None:
            self._handle(report, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass
