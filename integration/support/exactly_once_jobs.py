"""Spark jobs that are killed, with `deliveryGuarantee`, in processes of their own.

`python -m integration.support.exactly_once_jobs streams BOOTSTRAP FOLDER {"TOPIC": {"OPTION": "VALUE"}}`
`python -m integration.support.exactly_once_jobs retries BOOTSTRAP TOPIC ROWS`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import newest
from tests.spark_session import start_spark

ROWS_PER_BATCH = 200
KEYS = 10
BATCH_MILLISECONDS = 100
TASKS = 2
FAILS_AFTER_BATCHES = 12
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


def retries(bootstrap: str, topic: str, rows: str) -> None:
    """The first attempts of two tasks fail half-way, and a second time of one of them."""
    spark = start_spark(QUIET | {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}, "local[2,4]")

    def unlucky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, each in enumerate(batches):
            if context.attemptNumber() < context.partitionId() and number == FAILS_AFTER_BATCHES:
                raise RuntimeError("a task that fails at first")
            yield each

    numbered = spark.range(0, int(rows), 1, 3).mapInArrow(unlucky, "id LONG")
    frame = numbered.selectExpr(f"CAST(id % {KEYS} AS STRING) AS key", "CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.option("deliveryGuarantee", "exactly-once").save()
    spark.stop()


JOBS: dict[str, Callable[..., None]] = {"streams": streams, "retries": retries}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
