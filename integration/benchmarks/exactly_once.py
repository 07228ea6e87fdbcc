"""What exactly once costs on a real Kafka: rows per second of a large batch, and time added to a micro-batch.

    python -m integration.benchmarks.exactly_once [--rows 3000000] [--rounds 5] [--batches 30] [--jobs 10]

A Kafka of one node is started for the time. `deliveryGuarantee` at-least-once and exactly-once take turns: a job of
four tasks, then small writes, each guarantee in a driver of its own (small_writes.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame

from integration.benchmarks.page import Line, Scale, in_turns, line_of, table
from integration.benchmarks.small_writes import Contender, compare
from integration.benchmarks.spark_sink import PARTITIONS, TOPIC, Seen, rows_of, start_spark
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic

ONCE, AT_LEAST = PAIR = ("exactly once", "at least once")


def _options(guarantee: str) -> dict[str, str]:
    return {"deliveryGuarantee": guarantee.replace(" ", "-")}


def write_batch(frame: DataFrame, bootstrap: str, guarantee: str) -> float:
    """Write the batch into a topic of its own. Returns the seconds."""
    topic = create_topic(bootstrap, partitions=PARTITIONS)
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    started = time.perf_counter()
    writer.options(**_options(guarantee)).save()
    seconds = time.perf_counter() - started
    delete_topic(bootstrap, topic)
    return seconds


def jobs_in_turns(bootstrap: str, rows: int, rounds: int) -> Seen:
    seen: Seen = {name: [] for name in PAIR}
    spark = start_spark()
    frame = rows_of(spark, rows, "real")
    for turn, name in in_turns(PAIR, rounds + 1):
        rate = rows / write_batch(frame, bootstrap, name)
        load = os.getloadavg()[0]
        print(f"round {turn}: {name}: {rate:,.0f} rows/s, load {load:.1f}", file=sys.stderr, flush=True)
        if turn:
            seen[name].append({"rate": rate})
    spark.stop()
    return seen


def measure(rows: int, rounds: int, batches: int, jobs: int) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bootstrap = stack.enter_context(KafkaCluster(folder / "cluster")).bootstrap()
        seen = jobs_in_turns(bootstrap, rows, rounds)
        what = f"**Exactly once**, a real Kafka, a job of {rows / 1e6:.1f} million rows"
        yield line_of(what, "rows/s", seen, "rate", PAIR, "")
        create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
        contenders = {name: Contender("pykafka", options=_options(name)) for name in PAIR}
        streams, small_jobs = compare(contenders, {"stream": batches, "jobs": jobs}, rounds, bootstrap)
    added = [one["trigger"] - other["trigger"] for one, other in zip(streams[ONCE], streams[AT_LEAST], strict=True)]
    what = f"... a micro-batch of 1,000 rows, from trigger to trigger: {', '.join(f'{each:+.0f}' for each in added)} ms"
    yield line_of(what, "ms", streams, "trigger", PAIR, "20 ms more")
    yield line_of("... CPU of all processes", "ms", streams, "CPU", PAIR, "")
    yield line_of("... a job of 1,000 rows in a warm session", "ms", small_jobs, "job", PAIR, "")


def lines(scale: Scale) -> Iterator[Line]:
    yield from measure(scale.of(3_000_000), scale.rounds, scale.of(30), scale.of(10, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description="What exactly once costs.")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=10)
    given = parser.parse_args()
    print(table(measure(given.rows, given.rounds, given.batches, given.jobs)))


if __name__ == "__main__":
    main()
