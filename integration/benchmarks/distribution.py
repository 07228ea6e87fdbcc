"""What `distribution` does to a Kafka and to a write: many tasks, many partitions, with and without.

    python -m integration.benchmarks.distribution [--tasks 200] [--partitions 1000] [--rows 4000000] [--rounds 3]

For each write a Kafka of one node is started, and a topic is made. The same rows, of 100 bytes with keys at random, are
written with each distribution, in turns. At least once each task has a producer of its own here, as where all tasks of
a job run at one time: a session of a few cores would have as few producers, which its tasks use one after the other.

Requests and batches are those of the tasks' reports. The JVM of the broker says, before and after, how many objects are
alive that keep the state of producers, and how large its heap is without garbage. Markers are the offsets that no row
has. `seen` is the time from the end of save() until readers of committed rows see all of them, as brokers write the
markers later. CPU is of all processes of Spark, and of the broker's.
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
from integration.support.librdkafka import counted_records, create_topic
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
"""Of the broker, after the tests' own setting: ten times what it needs without producers."""
STATE = re.compile(r"\s+\d+:\s+(\d+)\s+(\d+)\s+org\.apache\.kafka\.storage\.internals\.log\.ProducerStateEntry\b")
HEAP_BYTES = re.compile(r"^Total\s+\d+\s+(\d+)", re.MULTILINE)

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
    settings = {
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.driver.extraJavaOptions": "",
        IDLE_TIMEOUT_CONF: "0s",
    }
    spark = start_spark(settings)  # whose JVM compiles as it does elsewhere
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    ways = {
        f"{guarantee}, {name}": {"deliveryGuarantee": guarantee, **how}
        for guarantee in GUARANTEES
        for name, how in DISTRIBUTIONS.items()
    }
    results: dict[str, list[Figures]] = {name: [] for name in ways}
    for way in ways.values():  # the JVM compiles, the workers import
        measured(spark, {**way, "maxTasks": "4"}, 4, 4, 10_000)
    for turn, name in iterate_turns(list(ways), rounds):
        results[name].append(measured(spark, ways[name], tasks, partitions, rows))
        print(
            f"round {turn + 1}: {name}: {results[name][-1]}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True
        )
    spark.stop()
    return results


def measured(spark: SparkSession, options: Mapping[str, str], tasks: int, partitions: int, rows: int) -> Figures:
    with tempfile.TemporaryDirectory() as name, KafkaCluster(Path(name) / "kafka", jvm=(HEAP,)) as cluster:
        bootstrap, (node,) = cluster.bootstrap(), cluster.nodes.values()
        assert node.process is not None
        topic, broker, reports = create_topic(bootstrap, partitions=partitions), node.process.pid, f"{name}/r.jsonl"
        frame = spark.range(0, rows, 1, tasks).selectExpr(
            f"CAST(pmod(xxhash64(id), {KEYS}) AS STRING) AS key", "repeat('0123456789', 10) AS value", "id"
        )
        arguments = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "reportPath": reports, **options}
        wait_until(lambda: leads_all(bootstrap, topic))
        _, heap_before = producer_states(broker)
        broker_cpu, started = cpu_seconds(broker), time.monotonic()
        with CpuMeter(excluded_pid=broker) as meter:
            frame.write.format("pykafka").options(**arguments).save()
        seconds = time.monotonic() - started
        report = read_reports(reports)[-1]
        assert report.rows == rows
        offsets, results = until_seen(bootstrap, topic)
        broker_cpu = cpu_seconds(broker) - broker_cpu
        states, heap = producer_states(broker)
        return {
            "seconds": seconds,
            "seen": results,
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


def leads_all(bootstrap: str, topic: str) -> bool:
    """Does the broker lead each partition? It says so a moment before, and refuses batches till then."""
    with counted_records(bootstrap, topic) as count:
        try:
            return count() == 0
        except KafkaException:
            return False


def until_seen(bootstrap: str, topic: str) -> tuple[int, float]:
    """Wait until no transaction is open in the topic. Return its offsets, and the seconds that this took."""
    started = time.monotonic()
    with (
        counted_records(bootstrap, topic, "read_uncommitted") as stored,
        counted_records(bootstrap, topic) as committed,
    ):
        while True:
            seconds, offsets = time.monotonic() - started, stored()
            # Between the two questions a marker may come to one partition while another still waits for its own.
            if committed() == offsets == stored():
                return offsets, seconds


def producer_states(pid: int) -> tuple[int, int]:
    """How many states of producers the JVM of a broker keeps, and the bytes of its whole heap, without garbage."""
    found = subprocess.run(["jcmd", str(pid), "GC.class_histogram"], capture_output=True, text=True, check=True).stdout
    states, total = STATE.search(found), HEAP_BYTES.search(found)
    assert total is not None, found[-500:]
    return int(states[1]) if states else 0, int(total[1])


def table(results: Mapping[str, list[Figures]]) -> str:
    """Format the medians as a table."""
    lines = ["| | " + " | ".join(shown for _, shown, _ in COLUMNS) + " |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for name, runs in results.items():
        cells = (form.format(statistics.median(run[key] for run in runs)) for key, _, form in COLUMNS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many tasks and many partitions, with distribution and without.")
    for name, number in (("tasks", 200), ("partitions", 1_000), ("rows", 4_000_000), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    print(table(compare(arguments.tasks, arguments.partitions, arguments.rows, arguments.rounds)))


if __name__ == "__main__":
    main()
