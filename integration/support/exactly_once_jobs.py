"""A driver of streams with `deliveryGuarantee`, as a program that tests kill.

python -m integration.support.exactly_once_jobs BOOTSTRAP

The program prints `ready` when Spark has started, and after each job. Each line of stdin requests a job: a JSON object
with the arguments of `run_streams`. If a query fails, the program ends, unless the object has `"may_fail": true`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import find_newest_batch_id
from tests.spark_session import start_spark

ROWS_PER_BATCH = 200
KEYS = 10
BATCH_MILLISECONDS = 100
TASKS = 2
QUIET = {"spark.log.level": "ERROR", "spark.python.worker.reuse": "true"}


def start_stream(
    spark: SparkSession, bootstrap: str, topic: str, folder: str, options: Mapping[str, str]
) -> StreamingQuery:
    """Start a stream of numbered rows with the checkpoint FOLDER/TOPIC. A rerun micro-batch has the same rows."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    numbers = source.option("numPartitions", TASKS).load()
    rows = numbers.selectExpr(f"CAST(value % {KEYS} AS STRING) AS key", "CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer = writer.options(**options).option("checkpointLocation", f"{folder}/{topic}")
    return writer.trigger(processingTime=f"{BATCH_MILLISECONDS} milliseconds").start()


def run_streams(
    spark: SparkSession, bootstrap: str, folder: str, queries: Mapping[str, Mapping[str, str]], batches: int
) -> None:
    """Run several queries until each has committed a number of further micro-batches.

    `queries`: the options by topic. A query that fails raises its error.
    """
    last_batch_ids = {topic: find_newest_batch_id(Path(folder) / topic / "commits") + batches for topic in queries}
    running = {topic: start_stream(spark, bootstrap, topic, folder, options) for topic, options in queries.items()}
    while running:
        for topic, query in list(running.items()):
            query.awaitTermination(1)  # raises the error of a failed query
            if (Path(folder) / topic / "commits" / str(last_batch_ids[topic])).exists():
                query.stop()
                del running[topic]


def main(bootstrap: str) -> None:
    """Run the jobs that stdin requests, several queries in each, so that a kill of the driver ends all of them."""
    spark = start_spark(QUIET)
    while True:
        print("ready", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        job = json.loads(line)
        may_fail = job.pop("may_fail", False)
        try:
            run_streams(spark, bootstrap, **job)
        except Exception:
            if not may_fail:
                raise
            traceback.print_exc()


if __name__ == "__main__":
    main(*sys.argv[1:])
