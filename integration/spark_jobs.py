"""Spark jobs that run in processes of their own, because a test kills them or their executors.

`python -m integration.spark_jobs stream BOOTSTRAP TOPIC FOLDER LAST_BATCH`
`python -m integration.spark_jobs batch BOOTSTRAP TOPIC MASTER ROWS`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.spark_session import start_spark

ROWS_PER_BATCH = 2_000
BATCH_MILLISECONDS = 300
SLOW_SECONDS = 0.1


def stream(bootstrap: str, topic: str, folder: str, last_batch: str) -> None:
    """Micro-batches of numbered rows, the same ones however often a micro-batch is run; until `last_batch` is done."""
    spark = start_spark({"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.log.level": "ERROR"})
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    numbered = (
        source.option("numPartitions", 2)
        .load()
        .selectExpr("CAST(value % 50 AS STRING) AS key", "CAST(value AS STRING) AS value")
    )
    writer = numbered.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime=f"{BATCH_MILLISECONDS} milliseconds").start()
    print("started", flush=True)
    while not (Path(folder) / "checkpoint" / "commits" / last_batch).exists():
        query.awaitTermination(1)
    query.stop()


def batch(bootstrap: str, topic: str, master: str, rows: str) -> None:
    """Numbered rows from tasks that take their time, so that something can happen while they write."""
    spark = start_spark(
        {
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.log.level": "ERROR",
        },
        master,
    )

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            time.sleep(SLOW_SECONDS)
            yield each

    numbered = spark.range(0, int(rows), 1, 4).mapInArrow(slowly, "id LONG")
    frame = numbered.selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value")
    print("started", flush=True)
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    spark.stop()


if __name__ == "__main__":
    {"stream": stream, "batch": batch}[sys.argv[1]](*sys.argv[2:])
