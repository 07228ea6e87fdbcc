"""ReportListener: combines this sink's write reports with Spark's progress events for a stream.

Neither StreamingQueryProgress nor Spark's UI can show a Python sink's metrics. The listener runs in the program that
started the stream. When Spark reports the progress of a micro-batch, the listener looks up the write reports of this
micro-batch.

    spark.streams.addListener(ReportListener("/data/reports/", handle))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from spark_kafka_sink.reports.store import check_path, find_reports
from spark_kafka_sink.reports.write_report import WriteReport

ReportHandler = Callable[[WriteReport, StreamingQueryProgress], object]
"""A user's function. Its result is ignored."""


class ReportListener(StreamingQueryListener):
    """Calls `handle(report, progress)` for each report of a micro-batch under `report_path`.

    A micro-batch has one report for each write, so several if a function of `foreachBatch` writes several times. It has
    none if nothing was committed, or if the query writes its reports elsewhere.

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
        reports = find_reports(self._report_path, f"{progress.id}/{progress.batchId}")
        for report in _select_current_run(reports, progress):
            self._handle(report, progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def _select_current_run(reports: Sequence[WriteReport], progress: StreamingQueryProgress) -> Sequence[WriteReport]:
    """Return the reports that were published since the micro-batch started, without those of an earlier, failed run.

    Both times come from the driver's clock. The executors' clocks may differ from it.

    `reports`: the reports of the micro-batch.
    """
    trigger_start = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00"))
    trigger_start_ms = round(trigger_start.timestamp() * 1000)
    return [report for report in reports if report.published_ms >= trigger_start_ms]
