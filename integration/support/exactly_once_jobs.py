"""Streams and jobs whose driver is killed, with `deliveryGuarantee`, in a process of its own.

python -m integration.support.exactly_once_jobs streams BOOTSTRAP FOLDER {"TOPIC": {"OPTION": "VALUE"}}
python -m integration.support.exactly_once_jobs job BOOTSTRAP TOPIC
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import newest
from tests.spark_session import start_spark

ROWS_PER_BATCH = 200
KEYS = 10
BATCH_MILLISECONDS = 100
TASKS = 2
QUIET = {"spark.log.level": "ERROR", "spark.python.worker.reuse": "true"}


def start_stream(
    spark: SparkSession, bootstrap: str, topic: str, folder: str, options: Mapping[str, str]
) -> StreamingQuery:
    """Numbered rows, the same ones however often a micro-batch is run. Its checkpoint is FOLDER/TOPIC."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    numbered = source.option("numPartitions", TASKS).load()
    rows = numbered.selectExpr(f"CAST(value % {KEYS} AS STRING) AS key", "CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.options(**options).option("checkpointLocation", f"{folder}/{topic}")
    return writer.trigger(processingTime=f"{BATCH_MILLISECONDS} milliseconds").start()


def streams(bootstrap: str, folder: str, queries: str) -> None:
    """Several queries in one driver: when it is killed, all of them must be restarted.

    Prints `ready` when Spark is up. They begin when a line on stdin says after how many more micro-batches each is to
    end.
    """
    spark = start_spark(QUIET)
    print("ready", flush=True)
    batches = sys.stdin.readline().strip()
    if not batches:
        return
    wanted: dict[str, dict[str, str]] = json.loads(queries)
    last = {topic: newest(Path(folder) / topic / "commits") + int(batches) for topic in wanted}
    running = {topic: start_stream(spark, bootstrap, topic, folder, options) for topic, options in wanted.items()}
    while running:
        for topic, query in list(running.items()):
            query.awaitTermination(1)  # raises what has ended it
            if (Path(folder) / topic / "commits" / str(last[topic])).exists():
                query.stop()
                del running[topic]


def write_job(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """Write the numbers below ROWS_PER_BATCH, exactly once, without a key or prefix."""
    writer = spark.range(0, ROWS_PER_BATCH, 1, TASKS).selectExpr("CAST(id AS STRING) AS value").write
    writer = writer.format("pykafka").option("deliveryGuarantee", "exactly-once")
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def job(bootstrap: str, topic: str) -> None:
    """Run write_job in a driver that begins like streams."""
    spark = start_spark(QUIET)
    print("ready", flush=True)
    if sys.stdin.readline().strip():
        write_job(spark, bootstrap, topic)


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    streams(*arguments) if kind == "streams" else job(*arguments)
