"""A Spark driver on a standalone cluster that runs the jobs which a test requests.

`python -m integration.support.cluster_jobs BOOTSTRAP MASTER`

Each line of stdin requests a job: a JSON array of its number, name and arguments. The driver runs one job at a time and
prints `done NUMBER` or `failed NUMBER`. A job whose options contain a `checkpointLocation` is a stream of BATCHES
micro-batches; any other job is a batch write.

All functions that executors run are in this file. The executors have only the wheel installed, so Spark pickles these
functions by value.
"""

from __future__ import annotations

import json
import os
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
"""Input and output of a function for mapInArrow: record batches with a column `id`."""


def hold_second_half(gate: Path, rows_per_task: int) -> Callable[[Batches], Batches]:
    """Build a function that yields the first half of a task's rows, and the second half once the file `gate` exists.

    The first half must have at least 20,000 rows, because Spark does not pass on an incomplete buffer of 64 kB.
    """

    def yield_halves(batches: Batches) -> Batches:
        rows = 0
        for batch in batches:
            while rows >= rows_per_task // 2 and not gate.exists():
                time.sleep(GATE_SECONDS)
            yield batch
            rows += batch.num_rows

    return yield_halves


def hang_first_attempt(batches: Batches) -> Batches:
    """Make the first attempt of STUCK_TASK hang forever. The job ends because Spark starts a speculative attempt."""
    context = TaskContext.get()
    assert context is not None
    is_stuck = context.partitionId() == STUCK_TASK and context.attemptNumber() == 0
    for number, batch in enumerate(batches):
        while is_stuck and number == STUCK_AFTER_BATCHES:
            time.sleep(SLOW_SECONDS)
        yield batch


def run_attempts_concurrently(folder: Path, rows_per_task: int) -> Callable[[Batches], Batches]:
    """Build a function that lets both attempts of STUCK_TASK yield their last rows at the same time.

    The first attempt waits for the speculative one. The files that the attempts create in the folder remain, so only
    the first job with a folder has concurrent attempts.
    """

    def yield_together(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        deadline = time.monotonic() + STUCK_SECONDS

        def wait_for_file(name: str) -> None:
            while not (folder / name).exists() and time.monotonic() < deadline:
                time.sleep(GATE_SECONDS)

        rows = 0
        for number, batch in enumerate(batches):
            if context.partitionId() == STUCK_TASK:
                if attempt == 0 and number == STUCK_AFTER_BATCHES:
                    wait_for_file("1")
                if rows + batch.num_rows == rows_per_task:
                    (folder / str(attempt)).touch()
                    wait_for_file("0" if attempt else "1")
            yield batch
            rows += batch.num_rows

    return yield_together


def fail_first_attempts(gate: Path) -> Callable[[Batches], Batches]:
    """Build a function that fails the first attempt of task 1 and the first two attempts of task 2.

    Each of these attempts fails after STUCK_AFTER_BATCHES batches, once the file `gate` exists.
    """

    def fail_or_yield(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        fails = context.attemptNumber() < context.partitionId() < STUCK_TASK
        for number, batch in enumerate(batches):
            if fails and number == STUCK_AFTER_BATCHES:
                while not gate.exists():
                    time.sleep(GATE_SECONDS)
                raise RuntimeError("an attempt that is meant to fail")
            yield batch

    return fail_or_yield


def replace_by_rack(variable: str, gate: Path) -> Callable[[Batches], Batches]:
    """Build a function that replaces each row by the rack of its executor. No task ends before the gate opens.

    Without the gate, a speculative attempt in one rack could replace the only attempt in the other rack before the
    latter has sent a row.
    """

    def yield_racks(batches: Batches) -> Batches:
        for batch in batches:
            yield pa.record_batch({"value": [os.environ[variable]] * batch.num_rows})
        while not gate.exists():
            time.sleep(GATE_SECONDS)

    return yield_racks


# --- jobs


def write_half_behind_gate(spark: SparkSession, gate: str, rows: int, **destination: Any) -> None:
    """Write rows. The second half of each task's rows waits for the file `gate`."""
    numbers = _number_rows(spark, rows, destination)
    _write(numbers.mapInArrow(hold_second_half(Path(gate), rows // TASKS), "id LONG"), **destination)


def write_with_hanging_attempt(spark: SparkSession, rows: int, **destination: Any) -> None:
    """Write rows, with one attempt that hangs forever."""
    _write(_number_rows(spark, rows, destination).mapInArrow(hang_first_attempt, "id LONG"), **destination)


def write_with_concurrent_attempts(spark: SparkSession, folder: str, rows: int, **destination: Any) -> None:
    """Write rows, with two attempts of one task that end at the same time."""
    numbers = _number_rows(spark, rows, destination)
    _write(numbers.mapInArrow(run_attempts_concurrently(Path(folder), rows // TASKS), "id LONG"), **destination)


def write_with_failures(spark: SparkSession, gate: str, rows: int, **destination: Any) -> None:
    """Write rows, with attempts that fail once the file `gate` exists."""
    numbers = _number_rows(spark, rows, destination)
    _write(numbers.mapInArrow(fail_first_attempts(Path(gate)), "id LONG"), **destination)


def write_racks(spark: SparkSession, variable: str, gate: str, rows: int, **destination: Any) -> None:
    """Write rows without a key that hold the rack of their executor. The job ends after the file `gate` exists."""
    numbers = _number_rows(spark, rows, destination)
    _save(numbers.mapInArrow(replace_by_rack(variable, Path(gate)), "value STRING"), **destination)


def print_threads(spark: SparkSession) -> None:
    """Print the threads of the executors' Python workers."""

    def yield_thread_names(batches: Batches) -> Batches:
        for _ in batches:
            time.sleep(SLOW_SECONDS)
            names = sorted(thread.name for thread in threading.enumerate())
            yield pa.record_batch({"name": names})

    tasks = spark.range(0, 2 * TASKS, 1, 2 * TASKS)
    threads = tasks.mapInArrow(yield_thread_names, "name STRING").distinct().collect()
    print("threads:", *sorted(row.name for row in threads), flush=True)


def _number_rows(spark: SparkSession, rows: int, destination: Mapping[str, Any]) -> DataFrame:
    """Return a DataFrame with the column `id`: a streaming one if the options contain a checkpoint."""
    if "checkpointLocation" not in destination["options"]:
        return spark.range(0, rows, 1, TASKS)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", TASKS)
    return source.load().selectExpr("value AS id")


def _write(frame: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    _save(frame.selectExpr("CAST(id % 50 AS STRING) AS key", "CAST(id AS STRING) AS value"), topic, options)


def _save(rows: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    options = {"kafka.bootstrap.servers": sys.argv[1], "topic": topic, **options}
    if "checkpointLocation" not in options:
        rows.write.format("pykafka").options(**options).save()
        return
    for _ in range(BATCHES):  # one query for each micro-batch, so that no micro-batch is interrupted
        rows.writeStream.format("pykafka").options(**options).trigger(once=True).start().awaitTermination()


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        write_half_behind_gate,
        write_with_hanging_attempt,
        write_with_concurrent_attempts,
        write_with_failures,
        write_racks,
        print_threads,
    )
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
