"""What exactly once costs on a real Kafka: rows per second of a large batch, and time added to a micro-batch.

    python -m integration.benchmarks.exactly_once [--rows 3000000] [--rounds 5] [--pairs 6] [--jobs 10]

A Kafka of one node is started for the time. Everything is in one Spark session, and `deliveryGuarantee` at-least-once
and exactly-once take turns in it: jobs of four tasks, then two streams (stream_turns.py), then small jobs.
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

from integration.benchmarks.page import Line, Scale, in_turns, line_of, table
from integration.benchmarks.spark_sink import PARTITIONS, TOPIC, Seen, rows_of, start_spark
from integration.benchmarks.stream_turns import WARM_UP_PAIRS, added, by_round, streams_in_turns
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic

ONCE, AT_LEAST = PAIR = ("exactly once", "at least once")
SMALL_ROWS = 1_000


def _options(bootstrap: str, guarantee: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "deliveryGuarantee": guarantee.replace(" ", "-")}


def write_batch(frame: DataFrame, bootstrap: str, guarantee: str) -> float:
    """Write the batch into a topic of its own. Return the seconds."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    started = time.perf_counter()
    frame.write.format("pykafka").option("topic", topic).options(**_options(bootstrap, guarantee)).save()
    seconds = time.perf_counter() - started
    delete_topic(bootstrap, topic)
    return seconds


def jobs_in_turns(spark: SparkSession, bootstrap: str, rows: int, rounds: int) -> Seen:
    seen: Seen = {name: [] for name in PAIR}
    frame = rows_of(spark, rows, "real")
    for turn, name in in_turns(PAIR, rounds + 1):
        rate = rows / write_batch(frame, bootstrap, name)
        load = os.getloadavg()[0]
        print(f"round {turn}: {name}: {rate:,.0f} rows/s, load {load:.1f}", file=sys.stderr, flush=True)
        if turn:
            seen[name].append({"rate": rate})
    return seen


def small_jobs_in_turns(spark: SparkSession, bootstrap: str, rounds: int, jobs: int) -> Seen:
    """Milliseconds of a job of a thousand rows: the median of each round."""
    seen: Seen = {name: [] for name in PAIR}
    frame = rows_of(spark, SMALL_ROWS, "real").coalesce(2)
    for turn, name in in_turns(PAIR, rounds + 1):
        writer = (
            frame.write.format("pykafka").option("topic", TOPIC).options(**_options(bootstrap, name)).mode("append")
        )
        times = []
        for _ in range(jobs):
            started = time.perf_counter()
            writer.save()
            times.append((time.perf_counter() - started) * 1000)
        if turn:
            seen[name].append({"job": statistics.median(times)})
    return seen


def measure(rows: int, rounds: int, pairs: int, jobs: int, warm_up: int = WARM_UP_PAIRS) -> Iterator[Line]:
    """`pairs`: of blocks of micro-batches, `jobs`: small ones, in each round; `warm_up`: pairs before the first one."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = stack.enter_context(KafkaCluster(folder / "cluster")).bootstrap()
        create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
        spark = start_spark()
        stack.callback(spark.stop)
        seen = jobs_in_turns(spark, bootstrap, rows, rounds)
        what = f"**Exactly once**, a real Kafka, a job of {rows / 1e6:.1f} million rows"
        yield line_of(what, "rows/s", seen, "rate", PAIR, "0.9")
        contenders = {name: {"topic": TOPIC, **_options(bootstrap, name)} for name in PAIR}
        blocks = streams_in_turns(spark, bootstrap, contenders, rounds * pairs, warm_up)
        streams = by_round(blocks, rounds)
        for key, words in (("addBatch", "`addBatch`"), ("trigger", "from trigger to trigger")):
            what = f"... a micro-batch of 1,000 rows, {words}: {added(blocks[ONCE], blocks[AT_LEAST], key)}"
            yield line_of(what, "ms", streams, key, PAIR, "20 ms more" if key == "trigger" else "")
        yield line_of("... CPU of all processes", "ms", streams, "CPU", PAIR, "")
        small_jobs = small_jobs_in_turns(spark, bootstrap, rounds, jobs)
        yield line_of("... a job of 1,000 rows in a warm session", "ms", small_jobs, "job", PAIR, "")


def lines(scale: Scale) -> Iterator[Line]:
    yield from measure(scale.of(3_000_000), scale.rounds, scale.of(6, 2), scale.of(10, 4), scale.of(WARM_UP_PAIRS))


def main() -> None:
    parser = argparse.ArgumentParser(description="What exactly once costs.")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=10)
    arguments = parser.parse_args()
    print(table(measure(arguments.rows, arguments.rounds, arguments.pairs, arguments.jobs)))


if __name__ == "__main__":
    main()
