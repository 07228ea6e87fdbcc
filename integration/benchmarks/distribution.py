"""What `distribution` does to a Kafka and to a write: many tasks, many partitions, with and without.

    python -m integration.benchmarks.distribution [TASKS] [PARTITIONS] [ROWS]

It starts a Kafka and a Spark, and writes the same rows, of 100 bytes with keys at random, with each distribution and
twice. Requests and batches are those of the tasks' reports.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic
from spark_kafka_sink import register
from spark_kafka_sink.reports.store import read_reports
from tests.spark_session import start_spark

KEYS = 100_000
WAYS: tuple[dict[str, str], ...] = (
    {},
    {"distribution": "partition"},
    {"distribution": "partition", "orderBy": "id"},
    {"distribution": "key"},
)


def main(tasks: int, partitions: int, rows: int) -> None:
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka") as cluster:
        spark = start_spark({"spark.sql.shuffle.partitions": str(tasks)})
        spark.sparkContext.setLogLevel("OFF")
        register(spark)
        print(f"{tasks} tasks, {partitions} partitions, {rows} rows of 100 bytes")
        for turn in range(2):
            for way in WAYS:
                topic = create_topic(cluster.bootstrap(), partitions=partitions)
                options = {"kafka.bootstrap.servers": cluster.bootstrap(), "topic": topic, **way}
                figures = measured(spark, options, tasks, rows, f"{name}/{topic}.jsonl")
                print(turn + 1, way or "none", figures, flush=True)
        spark.stop()


def measured(spark: SparkSession, options: dict[str, str], tasks: int, rows: int, report_path: str) -> str:
    frame = spark.range(0, rows, 1, tasks).selectExpr(
        f"CAST(pmod(xxhash64(id), {KEYS}) AS STRING) AS key", "repeat('0123456789', 10) AS value", "id"
    )
    started = time.monotonic()
    frame.write.format("pykafka").options(**options, reportPath=report_path).save()
    seconds = time.monotonic() - started
    report = read_reports(report_path)[-1]
    assert report.rows == rows
    return (
        f"{seconds:.1f} s, {rows / seconds:,.0f} rows/s, {report.tasks} tasks, {report.requests:,} requests, "
        f"{report.batches:,} batches of {report.mean_batch_bytes:,.0f} bytes"
    )


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*[*given, *(200, 1_000, 4_000_000)[len(given) :]])
