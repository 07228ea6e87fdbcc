"""Benchmark of exactly-once delivery on a real Kafka cluster: rows per second of a large job, and time added to a
micro-batch.

    python -m integration.benchmarks.exactly_once [--rows 3000000] [--rounds 5] [--pairs 6] [--jobs 10]

It starts a Kafka node and one Spark session, in which at-least-once and exactly-once writes take turns: first jobs of
four tasks, then two streams (stream_turns.py), then small jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from integration.benchmarks.page import Line, Scale, build_line, format_table, iterate_turns
from integration.benchmarks.spark_sink import PARTITIONS, TOPIC, RoundFigures, build_rows, start_spark
from integration.benchmarks.stream_turns import (
    WARM_UP_PAIRS,
    compute_added_time,
    run_streams_in_turns,
    split_into_rounds,
)
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic

ONCE, AT_LEAST = PAIR = ("exactly once", "at least once")
SMALL_ROWS = 1_000


def _build_options(bootstrap: str, guarantee: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "deliveryGuarantee": guarantee.replace(" ", "-")}


def write_batch(frame: DataFrame, bootstrap: str, guarantee: str) -> float:
    """Write the DataFrame to a new topic, and return the duration in seconds."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    started = time.perf_counter()
    frame.write.format("pykafka").option("topic", topic).options(**_build_options(bootstrap, guarantee)).save()
    seconds = time.perf_counter() - started
    delete_topic(bootstrap, topic)
    return seconds


def measure_jobs(spark: SparkSession, bootstrap: str, rows: int, rounds: int) -> RoundFigures:
    """Return the rows per second of each round after the warm-up round, by guarantee."""
    results: RoundFigures = {name: [] for name in PAIR}
    frame = build_rows(spark, rows, "real")
    for turn, name in iterate_turns(PAIR, rounds + 1):
        rate = rows / write_batch(frame, bootstrap, name)
        load = os.getloadavg()[0]
        print(f"round {turn}: {name}: {rate:,.0f} rows/s, load {load:.1f}", file=sys.stderr, flush=True)
        if turn:
            results[name].append({"rate": rate})
    return results


def measure_small_jobs(spark: SparkSession, bootstrap: str, rounds: int, jobs: int) -> RoundFigures:
    """Return the median duration of a job of 1,000 rows in milliseconds, for each round."""
    results: RoundFigures = {name: [] for name in PAIR}
    frame = build_rows(spark, SMALL_ROWS, "real").coalesce(2)
    for turn, name in iterate_turns(PAIR, rounds + 1):
        writer = (
            frame.write.format("pykafka")
            .option("topic", TOPIC)
            .options(**_build_options(bootstrap, name))
            .mode("append")
        )
        times = []
        for _ in range(jobs):
            started = time.perf_counter()
            writer.save()
            times.append((time.perf_counter() - started) * 1000)
        if turn:
            results[name].append({"job": statistics.median(times)})
    return results


def measure(rows: int, rounds: int, pairs: int, jobs: int, warm_up: int = WARM_UP_PAIRS) -> Iterator[Line]:
    """Yield the lines of all measurements.

    `pairs`: pairs of blocks in each round. `jobs`: small jobs in each round. `warm_up`: pairs before the first round.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = stack.enter_context(KafkaCluster(folder / "cluster")).bootstrap()
        create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
        spark = start_spark()
        stack.callback(spark.stop)
        results = measure_jobs(spark, bootstrap, rows, rounds)
        measurement = f"**Exactly once**, a real Kafka, a job of {rows / 1e6:.1f} million rows"
        yield build_line(measurement, "rows/s", results, "rate", PAIR, "0.9")
        contenders = {name: {"topic": TOPIC, **_build_options(bootstrap, name)} for name in PAIR}
        blocks = run_streams_in_turns(spark, bootstrap, contenders, rounds * pairs, warm_up)
        streams = split_into_rounds(blocks, rounds)
        for key, label in (("addBatch", "`addBatch`"), ("trigger", "from trigger to trigger")):
            measurement = (
                f"... a micro-batch of 1,000 rows, {label}: {compute_added_time(blocks[ONCE], blocks[AT_LEAST], key)}"
            )
            yield build_line(measurement, "ms", streams, key, PAIR, "20 ms more" if key == "trigger" else "")
        yield build_line("... CPU of all processes", "ms", streams, "CPU", PAIR, "")
        small_jobs = measure_small_jobs(spark, bootstrap, rounds, jobs)
        yield build_line("... a job of 1,000 rows in a warm session", "ms", small_jobs, "job", PAIR, "")


def measure_lines(scale: Scale) -> Iterator[Line]:
    yield from measure(
        scale.scale_count(3_000_000),
        scale.rounds,
        scale.scale_count(6, 2),
        scale.scale_count(10, 4),
        scale.scale_count(WARM_UP_PAIRS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of exactly-once delivery.")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=10)
    arguments = parser.parse_args()
    print(format_table(measure(arguments.rows, arguments.rounds, arguments.pairs, arguments.jobs)))


if __name__ == "__main__":
    main()
