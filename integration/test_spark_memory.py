"""Millions of rows through local[2]: the memory of the Python workers is bounded, and does not grow."""

from __future__ import annotations

import os
import statistics
import threading
import time

import pytest
from pyspark.sql import SparkSession

from integration.benchmarks.spark_sink import TOPIC, discard_broker, rows_of
from integration.support.processes import python_workers, resident_bytes

pytestmark = pytest.mark.needs("java")

ROWS = 20_000_000 if os.environ.get("SOAK") else 6_000_000
"""In the short run 27 bytes that each row leaves behind are GROWTH_BYTES_MAX."""
WARM_UP_ROWS = 100_000
"""Written first: at the end of a worker's first task pyspark imports pandas where it is installed."""
SAMPLE_SECONDS = 0.2
WORKER_BYTES_MAX = 330_000_000
GROWTH_BYTES_MAX = 40_000_000


def test_the_memory_of_the_python_workers_is_flat_and_bounded(spark: SparkSession) -> None:
    failures: list[BaseException] = []

    def write(rows: int, bootstrap: str) -> None:
        writer = rows_of(spark, rows, "real").write.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", TOPIC).save()

    def run(bootstrap: str) -> None:
        try:
            write(ROWS, bootstrap)
        except BaseException as error:
            failures.append(error)

    largest: list[int] = []
    with discard_broker() as (bootstrap, _):
        write(WARM_UP_ROWS, bootstrap)
        writing = threading.Thread(target=run, args=(bootstrap,))
        writing.start()
        while writing.is_alive():
            time.sleep(SAMPLE_SECONDS)
            largest.append(max((resident_bytes(pid) for pid in python_workers(os.getpid())), default=0))
    if failures:
        raise failures[0]

    quarter = len(largest) // 4
    early, late = statistics.median(largest[quarter : 2 * quarter]), statistics.median(largest[-quarter:])
    print("MB of the largest worker:", *(round(size / 1e6) for size in largest))
    assert max(largest) < WORKER_BYTES_MAX
    assert late < early + GROWTH_BYTES_MAX
