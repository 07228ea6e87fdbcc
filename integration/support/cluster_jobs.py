"""A Spark driver on a standalone cluster, which does one job after the other, as tests ask for them.

`python -m integration.support.cluster_jobs BOOTSTRAP MASTER`

Each line of stdin is a job: its number, its name, and its arguments, as JSON. `done NUMBER` follows on stdout, or
`failed NUMBER`. A write is a stream if its options have a `checkpointLocation`, and then of BATCHES micro-batches.

What executors run stands in this file: they have nothing but the wheel, and get its functions by value.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from tests.spark_session import JVM, start_spark

TASKS = 4
BATCHES = 2
STUCK_TASK = 3
STUCK_AFTER_BATCHES = 20
SLOW_SECONDS = 0.1
GATE_SECONDS = 0.02
STUCK_SECONDS = 120.0
ROWS_PER_ARROW_BATCH = 1_000
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JVM,
    "spark.log.level": "ERROR",
    "spark.task.maxFailures": "40",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.kafka.producer.cache.timeout": "1s",
}

Batches = Iterator[pa.RecordBatch]
"""With a column `id`, as mapInArrow gives and takes them."""


def half_behind(gate: Path, rows_per_task: int) -> Callable[[Batches], Batches]:
    """Passes the first half of a task's rows on, and the others once the gate, a file, exists.

    They must be 20,000 or more: Spark holds back what is less than its buffers, of 64 kB each.
    """

    def passed(batches: Batches) -> Batches:
        rows = 0
        for each in batches:
            while rows >= rows_per_task // 2 and not gate.exists():
                time.sleep(GATE_SECONDS)
            yield each
            rows += each.num_rows

    return passed


def stuck_for_good(batches: Batches) -> Batches:
    """The first attempt of one task never ends: the job does, because Spark starts another beside it."""
    context = TaskContext.get()
    assert context is not None
    is_stuck = context.partitionId() == STUCK_TASK and context.attemptNumber() == 0
    for number, each in enumerate(batches):
        while is_stuck and number == STUCK_AFTER_BATCHES:
            time.sleep(SLOW_SECONDS)
        yield each


def side_by_side(folder: Path, rows_per_task: int) -> Callable[[Batches], Batches]:
    """The first attempt of one task waits for a speculative one, and both write their last rows at one time.

    Once for each folder: what is written later meets nothing of this.
    """

    def passed(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        until = time.monotonic() + STUCK_SECONDS

        def wait_for(name: str) -> None:
            while not (folder / name).exists() and time.monotonic() < until:
                time.sleep(GATE_SECONDS)

        rows = 0
        for number, each in enumerate(batches):
            if context.partitionId() == STUCK_TASK:
                if attempt == 0 and number == STUCK_AFTER_BATCHES:
                    wait_for("1")
                if rows + each.num_rows == rows_per_task:
                    (folder / str(attempt)).touch()
                    wait_for("0" if attempt else "1")
            yield each
            rows += each.num_rows

    return passed


def failing_at_first(gate: Path) -> Callable[[Batches], Batches]:
    """The first attempt of one task fails half-way, and the first two of another: when the gate, a file, exists."""

    def passed(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        fails = context.attemptNumber() < context.partitionId() < STUCK_TASK
        for number, each in enumerate(batches):
            if fails and number == STUCK_AFTER_BATCHES:
                while not gate.exists():
                    time.sleep(GATE_SECONDS)
                raise RuntimeError("a task that fails at first")
            yield each

    return passed


# --- jobs


def write_behind_gate(spark: SparkSession, gate: str, rows: int, **where: Any) -> None:
    """The second half of each task's rows waits for the gate."""
    _write(_numbered(spark, rows, where).mapInArrow(half_behind(Path(gate), rows // TASKS), "id LONG"), **where)


def write_stuck(spark: SparkSession, rows: int, **where: Any) -> None:
    _write(_numbered(spark, rows, where).mapInArrow(stuck_for_good, "id LONG"), **where)


def write_side_by_side(spark: SparkSession, folder: str, rows: int, **where: Any) -> None:
    _write(_numbered(spark, rows, where).mapInArrow(side_by_side(Path(folder), rows // TASKS), "id LONG"), **where)


def write_with_failures(spark: SparkSession, gate: str, rows: int, **where: Any) -> None:
    """Attempts that fail do so behind the gate."""
    _write(_numbered(spark, rows, where).mapInArrow(failing_at_first(Path(gate)), "id LONG"), **where)


def print_threads(spark: SparkSession) -> None:
    """Print the threads of the executors' Python workers."""

    def threads(batches: Batches) -> Batches:
        for _ in batches:
            time.sleep(SLOW_SECONDS)
            names = sorted(thread.name for thread in threading.enumerate())
            yield pa.record_batch({"name": names})

    left = spark.range(0, 2 * TASKS, 1, 2 * TASKS).mapInArrow(threads, "name STRING").distinct().collect()
    print("threads:", *sorted(row.name for row in left), flush=True)


def _numbered(spark: SparkSession, rows: int, where: Mapping[str, Any]) -> DataFrame:
    if "checkpointLocation" not in where["options"]:
        return spark.range(0, rows, 1, TASKS)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", TASKS)
    return source.load().selectExpr("value AS id")


def _write(frame: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    rows = frame.selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value")
    own = {"kafka.bootstrap.servers": sys.argv[1], "topic": topic}
    if "checkpointLocation" not in options:
        rows.write.format("pykafka").options(**own, **options).save()
        return
    for _ in range(BATCHES):  # a micro-batch each, so that none is stopped in the middle
        rows.writeStream.format("pykafka").options(**own, **options).trigger(once=True).start().awaitTermination()


JOBS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (write_behind_gate, write_stuck, write_side_by_side, write_with_failures, print_threads)
}


def main() -> None:
    spark = start_spark(SETTINGS, sys.argv[2])
    for line in sys.stdin:
        number, name, arguments = json.loads(line)
        try:
            JOBS[name](spark, **arguments)
            print(f"done {number}", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"failed {number}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
