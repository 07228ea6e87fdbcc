"""Benchmark of `distribution`: its effect on a broker, and on a write with many tasks and many partitions.

    python -m integration.benchmarks.distribution [--tasks 200] [--partitions 1000] [--rows 4000000] [--rounds 3]

For each write, a Kafka cluster of one node is started and a topic is created. The same rows, with random keys and
values of 100 bytes, are written with each distribution in turns. With at-least-once delivery, each task has its own
producer here, as in a job whose tasks all run at the same time. Otherwise the few cores of this session would result in
as few producers, which tasks would use one after the other.

Requests and batch sizes come from the report of the write. The broker's JVM reports the number of live objects with the
state of a producer, and the size of the heap without garbage before and after the write. Markers are counted as the
offsets without a row. Brokers may write markers after save() has returned, so `seen` is the time from then until
read_committed readers see all rows. CPU is that of all Spark processes and, in a separate column, of the broker.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from integration.benchmarks.page import iterate_turns
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, open_record_counter
from integration.support.processes import CpuMeter, cpu_seconds
from spark_kafka_sink import register
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.spark.pool import IDLE_TIMEOUT_CONF
from tests.spark_session import start_spark
from tests.waiting import wait_until

KEYS = 100_000
DISTRIBUTIONS: Mapping[str, Mapping[str, str]] = {
    "none": {},
    "partition": {"distribution": "partition"},
    "partition, in order": {"distribution": "partition", "orderBy": "id"},
    "key": {"distribution": "key"},
}
GUARANTEES = ("at-least-once", "exactly-once")
HEAP = "-Xmx1g"
"""JVM option of the broker, which overrides that of the tests: ten times the heap that it needs without producers."""
STATE_PATTERN = re.compile(
    r"\s+\d+:\s+(\d+)\s+(\d+)\s+org\.apache\.kafka\.storage\.internals\.log\.ProducerStateEntry\b"
)
HEAP_BYTES_PATTERN = re.compile(r"^Total\s+\d+\s+(\d+)", re.MULTILINE)

Figures = dict[str, float]
COLUMNS = (
    ("seconds", "s", "{:.1f}"),
    ("seen", "seen after, s", "{:.1f}"),
    ("rate", "rows/s", "{:,.0f}"),
    ("spark_cpu", "CPU of Spark, s", "{:.1f}"),
    ("kafka_cpu", "CPU of the broker, s", "{:.1f}"),
    ("tasks", "tasks", "{:,.0f}"),
    ("requests", "requests", "{:,.0f}"),
    ("batch_bytes", "bytes of a batch", "{:,.0f}"),
    ("states", "states of producers", "{:,.0f}"),
    ("heap_mb", "heap of the broker, MB more", "{:.1f}"),
    ("markers", "markers", "{:,.0f}"),
)


def compare(tasks: int, partitions: int, rows: int, rounds: int) -> dict[str, list[Figures]]:
    """Measure all guarantees and distributions in turns. Return the figures of each round by their names."""
    settings = {
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.driver.extraJavaOptions": "",
        IDLE_TIMEOUT_CONF: "0s",
    }
    spark = start_spark(settings)  # without the JVM options of the tests, which limit compilation
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    variants = {
        f"{guarantee}, {name}": {"deliveryGuarantee": guarantee, **distribution_options}
        for guarantee in GUARANTEES
        for name, distribution_options in DISTRIBUTIONS.items()
    }
    results: dict[str, list[Figures]] = {name: [] for name in variants}
    for options in variants.values():  # a warm-up, in which the JVM compiles code and the workers import modules
        measure_write(spark, {**options, "maxTasks": "4"}, tasks=4, partitions=4, rows=10_000)
    for turn, name in iterate_turns(list(variants), rounds):
        results[name].append(measure_write(spark, variants[name], tasks, partitions, rows))
        print(
            f"round {turn + 1}: {name}: {results[name][-1]}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True
        )
    spark.stop()
    return results


def measure_write(spark: SparkSession, options: Mapping[str, str], tasks: int, partitions: int, rows: int) -> Figures:
    """Write the rows to a new topic of a new cluster, and return the figures of the write."""
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka", jvm=(HEAP,)) as cluster:
        bootstrap, (node,) = cluster.bootstrap(), cluster.nodes.values()
        assert node.process is not None
        topic = create_topic(bootstrap, partitions=partitions)
        broker = node.process.pid
        report_path = f"{name}/r.jsonl"
        frame = spark.range(0, rows, 1, tasks).selectExpr(
            f"CAST(pmod(xxhash64(id), {KEYS}) AS STRING) AS key", "repeat('0123456789', 10) AS value", "id"
        )
        arguments = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "reportPath": report_path, **options}
        wait_until(lambda: leads_all_partitions(bootstrap, topic))
        _, heap_before = read_producer_states(broker)
        broker_cpu_before, started = cpu_seconds(broker), time.monotonic()
        with CpuMeter(excluded_pid=broker) as meter:
            frame.write.format("pykafka").options(**arguments).save()
        seconds = time.monotonic() - started
        report = read_reports(report_path)[-1]
        assert report.rows == rows
        offsets, visible_after = wait_until_visible(bootstrap, topic)
        broker_cpu = cpu_seconds(broker) - broker_cpu_before
        states, heap = read_producer_states(broker)
        return {
            "seconds": seconds,
            "seen": visible_after,
            "rate": rows / seconds,
            "spark_cpu": meter.seconds,
            "kafka_cpu": broker_cpu,
            "tasks": report.tasks,
            "requests": report.requests,
            "batch_bytes": report.mean_batch_bytes,
            "states": states,
            "heap_mb": (heap - heap_before) / 1e6,
            "markers": offsets - rows,
        }


def leads_all_partitions(bootstrap: str, topic: str) -> bool:
    """Return whether the broker leads every partition.

    Its metadata may say so a moment too early, when it still rejects batches.
    """
    with open_record_counter(bootstrap, topic) as count:
        try:
            return count() == 0
        except KafkaException:
            return False


def wait_until_visible(bootstrap: str, topic: str) -> tuple[int, float]:
    """Wait until no transaction is open in the topic. Return the number of its offsets, and the duration in seconds."""
    started = time.monotonic()
    with (
        open_record_counter(bootstrap, topic, "read_uncommitted") as stored,
        open_record_counter(bootstrap, topic) as committed,
    ):
        while True:
            seconds, offsets = time.monotonic() - started, stored()
            # Between the requests, one partition may receive a marker while another one still lacks its marker, so the
            # offsets are compared twice.
            if committed() == offsets == stored():
                return offsets, seconds


def read_producer_states(pid: int) -> tuple[int, int]:
    """Return the number of producer states in a broker's JVM, and the size of its heap without garbage in bytes."""
    command = ["jcmd", str(pid), "GC.class_histogram"]
    histogram = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    states, heap_bytes = STATE_PATTERN.search(histogram), HEAP_BYTES_PATTERN.search(histogram)
    assert heap_bytes is not None, histogram[-500:]
    return int(states[1]) if states else 0, int(heap_bytes[1])


def format_medians(results: Mapping[str, list[Figures]]) -> str:
    """Format the medians as a table."""
    lines = ["| | " + " | ".join(title for _, title, _ in COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for name, runs in results.items():
        cells = (template.format(statistics.median(run[key] for run in runs)) for key, _, template in COLUMNS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many tasks and many partitions, with distribution and without.")
    for name, number in (("tasks", 200), ("partitions", 1_000), ("rows", 4_000_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    print(format_medians(compare(arguments.tasks, arguments.partitions, arguments.rows, arguments.rounds)))


if __name__ == "__main__":
    main()
