"""Spark jobs that run in processes of their own, because a test kills them or their executors.

`python -m integration.support.spark_jobs stream BOOTSTRAP TOPIC FOLDER`
`python -m integration.support.spark_jobs batch BOOTSTRAP TOPIC MASTER ROWS GATE`
`python -m integration.support.spark_jobs speculation BOOTSTRAP TOPIC MASTER ROWS REPORT`

A GATE is a file: the tasks stop in the middle of their rows until it exists, so that a test decides what happens while
they write.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from tests.spark_session import start_spark

ROWS_PER_BATCH = 2_000
BATCH_MILLISECONDS = 300
SLOW_SECONDS = 0.1
GATE_SECONDS = 0.02
TASKS = 4
STUCK_TASK = 3
STUCK_AFTER_BATCHES = 20
SMALL_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.log.level": "ERROR",
}


def half_behind(gate: Path, rows_per_task: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow, column `id`: passes the first half of a task's rows on, and the others once the gate exists.

    They must be 20,000 or more: Spark holds back what is less than its buffers, of 64 kB each.
    """

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for each in batches:
            while rows >= rows_per_task // 2 and not gate.exists():
                time.sleep(GATE_SECONDS)
            yield each
            rows += each.num_rows

    return passed


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


def batch(bootstrap: str, topic: str, master: str, rows: str, gate: str) -> None:
    """Numbered rows; the second half of each task's waits for the gate."""
    spark = start_spark(SMALL_EXECUTORS, master)
    halves = half_behind(Path(gate), int(rows) // TASKS)
    numbered = spark.range(0, int(rows), 1, TASKS).mapInArrow(halves, "id LONG")
    frame = numbered.selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value")
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    spark.stop()


def speculation(bootstrap: str, topic: str, master: str, rows: str, report: str) -> None:
    """The first attempt of one task gets stuck half-way; the job ends only because Spark starts another beside it.

    `written` is printed when it has, and what threads Python workers still have after a line on stdin.
    """
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.kafka.producer.cache.timeout": "1s",
    }
    spark = start_spark(SMALL_EXECUTORS | settings, master)

    def stuck_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        is_stuck = context.partitionId() == STUCK_TASK and context.attemptNumber() == 0
        for number, each in enumerate(batches):
            while is_stuck and number == STUCK_AFTER_BATCHES:
                time.sleep(SLOW_SECONDS)
            yield each

    def threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            time.sleep(SLOW_SECONDS)
            names = sorted(thread.name for thread in threading.enumerate())
            yield pa.record_batch({"name": names})

    numbered = spark.range(0, int(rows), 1, TASKS).mapInArrow(stuck_once, "id LONG")
    frame = numbered.selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.option("reportPath", report).save()
    print("written", flush=True)
    sys.stdin.readline()
    left = spark.range(0, 2 * TASKS, 1, 2 * TASKS).mapInArrow(threads, "name STRING").distinct().collect()
    print("threads:", *sorted(row.name for row in left), flush=True)
    spark.stop()


JOBS: dict[str, Callable[..., None]] = {"stream": stream, "batch": batch, "speculation": speculation}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
