"""The memory of Spark's processes stays bounded while they write millions of rows and many micro-batches."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.spark_sink import TOPIC, TOPICS, build_rows
from integration.support.processes import python_workers, read_resident_bytes

pytestmark = pytest.mark.needs("java")

SOAK = bool(os.environ.get("SOAK"))
ROWS = 20_000_000 if SOAK else 2_000_000
"""Number of rows. In the short run, the test detects a leak of 80 bytes per row, which is less than a row."""
WARM_UP_ROWS = 100_000
"""Number of rows written before the measurement, because pyspark imports pandas after a worker's first task."""
SAMPLE_SECONDS = 0.05
MIN_SAMPLES_PER_QUARTER = 3
WORKER_BYTES_MAX = 330_000_000
GROWTH_BYTES_MAX = 40_000_000

MICRO_BATCHES = 2_000 if SOAK else 100
"""Number of micro-batches. With SOAK=1, a task worker unfreezes its objects ten times (CALLS_PER_ROUND)."""
ROWS_PER_BATCH = 1_000 if SOAK else 2_500
LATE_GROWTH_BYTES_MAX = 4_000_000
"""Maximum growth of one process in the second half.

In the short run, a process grew by 8.5 MB when each task leaked its 1,250 rows.
"""
JVM_GROWTH_BYTES_MAX = 16_000_000
"""Maximum growth of the JVM's live objects, including Spark's own records of past micro-batches."""


def test_memory_of_python_workers_is_bounded(spark: SparkSession) -> None:
    def write(rows: int, bootstrap: str) -> None:
        writer = build_rows(spark, rows, "real").write.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", TOPIC).save()

    largest: list[int] = []
    with discard_broker(TOPICS) as (bootstrap, _), ThreadPoolExecutor(1) as pool:
        write(WARM_UP_ROWS, bootstrap)
        writing = pool.submit(write, ROWS, bootstrap)
        while not writing.done():
            time.sleep(SAMPLE_SECONDS)
            largest.append(max((read_resident_bytes(pid) for pid in python_workers(os.getpid())), default=0))
        writing.result()

    quarter = len(largest) // 4
    assert quarter >= MIN_SAMPLES_PER_QUARTER
    early, late = statistics.median(largest[quarter : 2 * quarter]), statistics.median(largest[-quarter:])
    print("MB of the largest worker:", *(round(size / 1e6) for size in largest))
    assert max(largest) < WORKER_BYTES_MAX
    assert late < early + GROWTH_BYTES_MAX


def test_micro_batches_leak_no_memory(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    rows = source.option("numPartitions", 2).load().selectExpr("string(value) AS key", "repeat('so ', 40) AS value")
    with discard_broker(TOPICS) as (bootstrap, _):
        writer = rows.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds").start()
        try:
            samples = [memory_after(spark, query, tmp_path, batch) for batch in (MICRO_BATCHES // 2, MICRO_BATCHES)]
        finally:
            query.stop()
    (early, early_jvm), (late, late_jvm) = samples
    growth = {pid: late[pid] - early[pid] for pid in early.keys() & late.keys()}
    print("MB that each Python process grew by:", *(f"{size / 1e6:.1f}" for size in growth.values()))
    print(f"MB alive in the JVM: {early_jvm / 1e6:.1f}, {late_jvm / 1e6:.1f}")
    assert len(growth) >= 4  # the workers of two tasks, of the planning and of the commit, and their daemons
    assert max(growth.values()) < LATE_GROWTH_BYTES_MAX
    assert late_jvm < early_jvm + JVM_GROWTH_BYTES_MAX


def memory_after(
    spark: SparkSession, query: StreamingQuery, checkpoint: Path, batch: int
) -> tuple[dict[int, int], int]:
    """Return the resident memory of each Python process, by process id, and the live memory of the JVM.

    The memory of a process is the median of its values after `batch` and each of the nine micro-batches before it.
    """
    samples: dict[int, list[int]] = defaultdict(list)
    for number in range(batch - 9, batch + 1):
        while not (checkpoint / "commits" / str(number)).exists():
            assert query.isActive, query.exception()
            time.sleep(0.02)
        for pid in python_workers(os.getpid()):
            samples[pid].append(read_resident_bytes(pid))
    assert spark._jvm is not None
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    alive = runtime.totalMemory() - runtime.freeMemory()
    return {pid: int(statistics.median(sizes)) for pid, sizes in samples.items()}, alive
