"""ReportListener: combines this sink's write reports with Spark's progress events for a stream.

Neither StreamingQueryProgress nor Spark's UI can show a Python sink's metrics. The listener runs in the program that
started the stream. When Spark reports the progress of a micro-batch, the listener looks up the write report of this
micro-batch.

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

from spark_kafka_sink.reports.store import check_path, find_report
from spark_kafka_sink.reports.write_report import WriteReport

ReportHandler = Callable[[WriteReport, StreamingQueryProgress], object]
"""A user's function. Its result is ignored."""


class ReportListener(StreamingQueryListener):
    """Calls `handle(report, progress)` for each micro-batch that has a report under `report_path`.

    Ignores micro-batches that have no report there: nothing was committed, or the query writes its reports elsewhere.

    The constructor raises ConfigurationError if the path is not a valid `reportPath`.

    `report_path`: the query's option `reportPath`. The path must be readable by this program.
    """

    def __init__(self, report_path: str, handle: ReportHandler) -> None:
        check_path(report_path)
        self._report_path = report_path
        self._handle = handle

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        report = find_report(self._report_path, f"{progress.id}/{progress.batchId}")
        if report is not None:
            self._handle(report, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass
