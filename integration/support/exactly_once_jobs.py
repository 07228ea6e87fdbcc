"""A driver of streams with `deliveryGuarantee`, as a program that tests kill.

python -m integration.support.exactly_once_jobs BOOTSTRAP FOLDER {"TOPIC": {"OPTION": "VALUE"}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.driver_process import newest_batch_id
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


def main(bootstrap: str, folder: str, queries: str) -> None:
    """Run several queries in one driver, so that a kill of the driver ends all of them.

    Print `ready` when Spark has started. Then read a number from stdin, and run this many micro-batches of each query.
    """
    spark = start_spark(QUIET)
    print("ready", flush=True)
    batches = sys.stdin.readline().strip()
    if not batches:
        return
    options_by_topic: dict[str, dict[str, str]] = json.loads(queries)
    last_batch_ids = {
        topic: newest_batch_id(Path(folder) / topic / "commits") + int(batches) for topic in options_by_topic
    }
    running = {
        topic: start_stream(spark, bootstrap, topic, folder, options) for topic, options in options_by_topic.items()
    }
    while running:
        for topic, query in list(running.items()):
            query.awaitTermination(1)  # raises the error of a failed query
            if (Path(folder) / topic / "commits" / str(last_batch_ids[topic])).exists():
                query.stop()
                del running[topic]


if __name__ == "__main__":
    main(*sys.argv[1:])
