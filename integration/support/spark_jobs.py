"""A stream in a process of its own, because a test kills it.

`python -m integration.support.spark_jobs stream BOOTSTRAP TOPIC FOLDER`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark_session import start_spark

ROWS_PER_BATCH = 2_000
BATCH_MILLISECONDS = 300


def stream(bootstrap: str, topic: str, folder: str) -> None:
    """Micro-batches of numbered rows, the same ones however often a micro-batch is run.

    Prints `ready` when Spark is up, and begins when a line on stdin says after which micro-batch to end.
    """
    spark = start_spark({"spark.log.level": "ERROR"})
    print("ready", flush=True)
    last_batch = sys.stdin.readline().strip()
    if not last_batch:
        return
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    numbered = (
        source.option("numPartitions", 2)
        .load()
        .selectExpr("CAST(value % 50 AS STRING) AS key", "CAST(value AS STRING) AS value")
    )
    writer = numbered.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", topic).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime=f"{BATCH_MILLISECONDS} milliseconds").start()
    while not (Path(folder) / "checkpoint" / "commits" / last_batch).exists():
        query.awaitTermination(1)
    query.stop()


if __name__ == "__main__":
    stream(*sys.argv[2:])
