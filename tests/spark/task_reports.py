"""Reports of tasks for tests of writes."""

from __future__ import annotations

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals, WriteTotals
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport

OPTIONS = SinkOptions(producer_options={})


def create_task_report(partition: int, *, rows: int = 10, first: int = 0, attempt: int = 0) -> TaskReport:
    return TaskReport(
        TaskIdentity(partition, attempt, 100 + partition, 3, "app", "query", "12"),
        partitions={"orders": {0: OffsetRange(first, first + rows - 1, rows)}},
        totals=WriteTotals(rows=rows, bytes=rows * 100, producer=Totals(retries=1)),
        duration_ms=5 * partition,
    )
