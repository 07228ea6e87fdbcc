"""Reports of tasks for tests of writes."""

from __future__ import annotations

from spark_kafka_sink.producer.results import OffsetRange
from spark_kafka_sink.producer.totals import Totals, WriteTotals
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.task_report import TaskIdentity, TaskReport
from spark_kafka_sink.testing import EmbeddedBroker

OPTIONS = SinkOptions(producer_options={})


def create_task_report(partition: int, *, rows: int = 10, first: int = 0, attempt: int = 0) -> TaskReport:
    return TaskReport(
        TaskIdentity(partition, attempt, 100 + partition, 3, "app", "query", "12"),
        written_ranges={"orders": {0: OffsetRange(first, first + rows - 1, rows)}},
        totals=WriteTotals(rows=rows, bytes=rows * 100, producer=Totals(retries=1)),
        duration_ms=5 * partition,
    )


def sink_options(broker: EmbeddedBroker | None = None, **options: str) -> SinkOptions:
    servers = "127.0.0.1:1" if broker is None else broker.bootstrap_servers
    return parse_options({"kafka.bootstrap.servers": servers, "topic": "orders", **options})


def task(partition: int = 0) -> TaskReport:
    written = {"orders": {0: OffsetRange(0, 9, 10)}}
    identity = TaskIdentity(partition, 0, 100, 3, "app", "query", "12")
    return TaskReport(identity, written, WriteTotals(rows=10), started_ms=1_700_000_000_000, duration_ms=20)
