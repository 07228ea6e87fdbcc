"""A driver of small_writes.py: a Spark session that runs the workloads on stdin and prints their measurements.

It is a program that runs in the folder of any checkout of the project and imports the package from there.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from integration.support.artifacts import connector_jars
from integration.support.processes import command_line, cpu_seconds, descendants
from spark_kafka_sink import register

TASKS = 2
WARM_UP_BATCHES = 5
REAL_ROW = (
    "to_json(struct({0} AS id, {0} % 1000 / 10 AS amount, repeat('so ', int(9 + {0} * 7919 % 22)) AS rest)) AS value"
)
KINDS = {
    "pyspark.worker": "tasks",
    "pyspark.sql.worker.write_into_data_source": "planning",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit",
    "pyspark.sql.worker.commit_data_source_write": "commit",
}
"""The work of a Python worker by the module that it runs."""


class CountingWriter(DataSourceArrowWriter):
    """Writer that counts the rows and discards them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self.rows = sum(batch.num_rows for batch in iterator)
        return WriterCommitMessage()


class CountingStreamWriter(DataSourceStreamArrowWriter):
    """Writer of micro-batches that counts the rows and discards them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self.rows = sum(batch.num_rows for batch in iterator)
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - pyspark's
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - pyspark's
        pass


class CountingSource(DataSource):
    """Data source `counting`, for batches and streams."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - pyspark's
        return CountingStreamWriter()


Cpu = dict[int, tuple[str, float]]
"""Process id -> kind of process, and its CPU time in seconds."""


def measure_total_cpu(root: int) -> Cpu:
    """Measure the process `root` and all of its descendants."""
    return {pid: (_find_process_kind(pid, root), cpu_seconds(pid)) for pid in (root, *descendants(root))}


def compute_cpu_by_kind(before: Cpu, after: Cpu) -> dict[str, float]:
    """Return the CPU seconds between two measurements by kind, without processes that ended in between."""
    seconds: dict[str, float] = defaultdict(float)
    for pid, (kind, used) in after.items():
        seconds[kind] += max(0.0, used - before.get(pid, (kind, 0.0))[1])
    return seconds


def _find_process_kind(pid: int, root: int) -> str:
    arguments = command_line(pid)
    if pid == root:
        return "driver"
    if "pyspark.daemon" in arguments:
        return KINDS.get(arguments[-2], "other Python")
    if not arguments:  # the process has ended
        return "other"
    return "JVM" if "java" in arguments[0] else "other"


def serve(sink: str, conf: dict[str, str], options: dict[str, str], rows: int) -> None:
    """Start a session, and run one workload for each line of stdin."""
    builder = SparkSession.builder.master("local[2]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.jars": ",".join(str(jar) for jar in connector_jars()),
        **conf,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    spark.dataSource.register(CountingSource)
    runs = {"stream": run_stream, "jobs": run_jobs}
    print("ready", flush=True)
    for line in sys.stdin:
        workload, count = json.loads(line)
        print(json.dumps(runs[workload](spark, sink, options, rows, count)), flush=True)
    spark.stop()


def run_stream(spark: SparkSession, sink: str, options: dict[str, str], rows: int, batches: int) -> dict[str, Any]:
    """Run a stream. Return the times of its micro-batches after the warm-up, and the CPU time of one by kind."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", TASKS)
    frame = source.load().selectExpr("CAST(value AS STRING) AS key", REAL_ROW.format("value"))
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
        first = _wait_until_committed(query, folder, WARM_UP_BATCHES)
        before = measure_total_cpu(os.getpid())
        last = _wait_until_committed(query, folder, first + batches)
        after = measure_total_cpu(os.getpid())
        query.stop()
        progress = [progress_row for progress_row in query.recentProgress if first <= progress_row["batchId"] <= last]
    starts = [datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).timestamp() for row in progress]
    return {
        "addBatch": [row["durationMs"]["addBatch"] for row in progress],
        "trigger": [(late - early) * 1000 for early, late in itertools.pairwise(starts)],
        "cpu": {kind: used / (last - first) * 1000 for kind, used in compute_cpu_by_kind(before, after).items()},
    }


def _wait_until_committed(query: StreamingQuery, folder: str, batch: int) -> int:
    """Wait until a micro-batch is committed. Return the id of the last committed one."""
    commits = Path(folder) / "commits"
    while not (commits / str(batch)).exists():
        if not query.isActive:
            raise query.exception() or RuntimeError("the query has ended")
        time.sleep(0.01)
    return max(int(path.name) for path in commits.iterdir() if path.name.isdigit())


def run_jobs(spark: SparkSession, sink: str, options: dict[str, str], rows: int, jobs: int) -> dict[str, Any]:
    """Run jobs. Return the milliseconds of each job, and the CPU time per job by kind of process."""
    frame = spark.range(0, rows, 1, TASKS).selectExpr("CAST(id AS STRING) AS key", REAL_ROW.format("id"))
    milliseconds, before = [], measure_total_cpu(os.getpid())
    for _ in range(jobs):
        started = time.perf_counter()
        frame.write.format(sink).options(**options).mode("append").save()
        milliseconds.append((time.perf_counter() - started) * 1000)
    after = measure_total_cpu(os.getpid())
    cpu = {kind: used / jobs * 1000 for kind, used in compute_cpu_by_kind(before, after).items()}
    return {"job": milliseconds, "cpu": cpu}


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
