"""What exactly once costs on a real Kafka: rows per second of a large batch, and time added to a micro-batch.

    python -m integration.benchmarks.exactly_once [--rows 5000000] [--rounds 5] [--batches 60] [--bootstrap host:port]

One session (`local[2]`); `deliveryGuarantee` at-least-once and exactly-once take turns, on the same rows, after one
round that does not count. The batch job has four tasks. A stream runs `--batches` micro-batches of 200 rows in two
tasks, one after the other; each one's time is Spark's own `triggerExecution`, and the first five of a run do not count.
Without `--bootstrap` a Kafka of one node is started for the time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks.spark_sink import rows_of, start_spark
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic

PARTITIONS = 12
TASKS = 2
ROWS_PER_BATCH = 200
WARM_UP_BATCHES = 5
GUARANTEES = ("at-least-once", "exactly-once")


def write_batch(frame: DataFrame, bootstrap: str, guarantee: str) -> float:
    """Write the batch into a topic of its own. Returns the seconds."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    started = time.perf_counter()
    writer.option("deliveryGuarantee", guarantee).save()
    seconds = time.perf_counter() - started
    delete_topic(bootstrap, topic)
    return seconds


def run_stream(spark: SparkSession, bootstrap: str, guarantee: str, batches: int) -> list[float]:
    """Milliseconds of each micro-batch but the first ones."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    rows = source.option("numPartitions", TASKS).load().selectExpr("CAST(value AS STRING) AS value")
    writer = rows.writeStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    with tempfile.TemporaryDirectory() as folder:
        writer = writer.option("checkpointLocation", folder).option("deliveryGuarantee", guarantee)
        query = writer.trigger(processingTime="0 seconds").start()
        while not (Path(folder) / "commits" / str(batches + WARM_UP_BATCHES)).exists():
            query.awaitTermination(1)
        query.stop()
        progress = [json for json in query.recentProgress if json["numInputRows"]]
    return [float(one["durationMs"]["triggerExecution"]) for one in progress[WARM_UP_BATCHES:]]


def in_turns(spark: SparkSession, bootstrap: str, given: argparse.Namespace) -> None:
    frame = rows_of(spark, given.rows, "real")
    rates: dict[str, list[float]] = defaultdict(list)
    milliseconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(given.rounds + 1):
        for guarantee in GUARANTEES if turn % 2 else GUARANTEES[::-1]:
            rate = given.rows / write_batch(frame, bootstrap, guarantee)
            times = run_stream(spark, bootstrap, guarantee, given.batches)
            words = f"{rate:,.0f} rows/s, micro-batch {statistics.median(times):.0f} ms"
            print(f"round {turn}: {guarantee}: {words}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            if turn:
                rates[guarantee].append(rate)
                milliseconds[guarantee] += times
    show(rates, milliseconds)


def show(rates: dict[str, list[float]], milliseconds: dict[str, list[float]]) -> None:
    base = statistics.median(rates[GUARANTEES[0]])
    p50, p95 = percentiles(milliseconds[GUARANTEES[0]])
    print("| deliveryGuarantee | rows/s | of at-least-once | micro-batch p50 | p95 | added p50 | added p95 |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for guarantee in GUARANTEES:
        rate, (half, most) = statistics.median(rates[guarantee]), percentiles(milliseconds[guarantee])
        print(
            f"| {guarantee} | {rate:,.0f} | {rate / base:.2f} | {half:.0f} ms | {most:.0f} ms | {half - p50:.0f} ms "
            f"| {most - p95:.0f} ms |"
        )


def percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=20)
    return cuts[9], cuts[18]


def main() -> None:
    parser = argparse.ArgumentParser(description="What exactly once costs.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--bootstrap", help="a Kafka, in place of one that is started for this")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap = given.bootstrap
        if bootstrap is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            bootstrap = stack.enter_context(KafkaCluster(folder / "cluster")).bootstrap()
        spark = start_spark()
        stack.callback(spark.stop)
        in_turns(spark, bootstrap, given)


if __name__ == "__main__":
    main()
