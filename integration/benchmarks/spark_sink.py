"""Benchmark of Spark sinks: pykafka, Spark's own, foreachPartition with librdkafka, and a writer that only counts.

    python -m integration.benchmarks.spark_sink [--rows 10000000] [--rounds 5] [--bootstrap host:port] [--skip foreach]

On Spark versions before 4.1, use `--connector FOLDER` for the folder with the jars of that version's own connector. On
Spark 3.5, which has no Python data sources, add `--skip foreach counts`.

All sinks take turns in one session (`local[2]`). They write the same rows, first of real and then of even lengths, to
12 partitions. Without `--bootstrap`, a discard broker, which acknowledges and counts records without storing them, runs
in a separate process. CPU is that of the driver, its JVM and the Python workers during the write, without the broker.
The counting writer shows how many rows Spark can pass to a Python sink at most. The results are medians of the rounds
and of their ratios, after a warm-up round.

Before each measured write, the same rows are written to the noop sink, whose CPU is that of the source. Then a few rows
are written to the sink itself, because Spark stops Python workers that have been idle for a minute, and a sink whose
turn comes late would pay for new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import Line, Scale, build_line, format_table, iterate_turns
from integration.support.artifacts import connector_jars
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, delete_topic, produce_all
from integration.support.processes import CpuMeter
from spark_kafka_sink import register

PARTITIONS = 12
TASKS = 4
TOPIC = "spark-sink-benchmark"
TOPICS = {TOPIC: PARTITIONS}


def register_counting_source(spark: SparkSession) -> None:
    """Register the data source `counting`, whose writer counts rows."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class CountingWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            self.rows = sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

    class CountingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return CountingWriter()

    spark.dataSource.register(CountingSource)


def write_with_pykafka(frame: DataFrame, bootstrap: str, topic: str) -> None:
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def write_with_spark_sink(frame: DataFrame, bootstrap: str, topic: str) -> None:
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()


def write_with_foreach_partition(frame: DataFrame, bootstrap: str, topic: str) -> None:
    def produce(rows: Iterable[Row]) -> None:
        from confluent_kafka import Producer

        config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(config | {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000})
        produce_all(producer, topic, rows)

    frame.foreachPartition(produce)


def write_with_counting_source(frame: DataFrame, bootstrap: str, topic: str) -> None:
    frame.write.format("counting").mode("append").save()


def write_to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


OURS, SPARKS, FOR_EACH = "pykafka", "Spark's own sink", "`foreachPartition` + confluent-kafka"
COUNTING = "an Arrow writer that only counts"
CONTENDERS: dict[str, Callable[[DataFrame, str, str], None]] = {
    OURS: write_with_pykafka,
    SPARKS: write_with_spark_sink,
    FOR_EACH: write_with_foreach_partition,
    COUNTING: write_with_counting_source,
}


class Write(NamedTuple):
    """Duration of a write, and CPU time of this process, the driver's JVM and the Python workers, in seconds."""

    seconds: float
    cpu: float


def measure_write(write: Callable[[], None], broker: int | None) -> Write:
    """Measure a write. `broker`: id of a process whose CPU time is excluded, or None."""
    with CpuMeter(excluded_pid=broker) as meter:
        started = time.perf_counter()
        write()
        seconds = time.perf_counter() - started
    return Write(seconds, meter.seconds)


def start_spark(connector: Sequence[Path] | None = None) -> SparkSession:
    """Start a session with these jars of Spark's own connector, by default those of `make kafka`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(str(jar) for jar in connector or connector_jars()))
        .getOrCreate()
    )
    register(spark)
    if hasattr(spark, "dataSource"):  # Spark 3.5 has no Python data sources
        register_counting_source(spark)
    return spark


SHAPES = {
    "real": ["CAST(id AS STRING) AS key", "to_json(struct(id, id % 1000 / 10 AS amount, rest)) AS value"],
    "even": [
        "CAST(id + 100000000000 AS STRING) AS key",
        "concat(CAST(id + 100000000000 AS STRING), repeat('so it goes ', 8)) AS value",
    ],
    "long": [
        "CAST(id + 100000000000 AS STRING) AS key",
        "concat(CAST(id + 100000000000 AS STRING), repeat('so it goes ', int(40 + id * 7919 % 10))) AS value",
    ],
}


def build_rows(spark: SparkSession, rows: int, shape: str) -> DataFrame:
    """Build rows of the shape "real" (JSON values of 60 to 140 bytes, and their ids as keys), "even" or "long".

    Keys have 12 bytes in the latter two. Values have 100 bytes in "even", and 452 to 551 in "long".
    """
    numbers = spark.range(0, rows, 1, TASKS).selectExpr("id", "repeat('so ', int(9 + id * 7919 % 22)) AS rest")
    return numbers.selectExpr(*SHAPES[shape])


def build_frames(spark: SparkSession, rows: int, shape: str) -> tuple[DataFrame, DataFrame]:
    """Return a DataFrame with a few rows, for warming up, and one with `rows` rows."""
    return build_rows(spark, 1_000 * TASKS, shape), build_rows(spark, rows, shape)


RoundFigures = dict[str, list[dict[str, float]]]
"""Figures of each round, by contender: "rate" (rows per second), "cpu" (CPU per row in nanoseconds) and "own" (CPU per
row without that of the source)."""


def compare(
    frames: tuple[DataFrame, DataFrame], rounds: int, contenders: Sequence[str], bootstrap: str, broker: int | None
) -> RoundFigures:
    """Let the contenders take turns, and return the figures of each round after the warm-up round.

    `frames`: a few rows for warming up, and the rows of the measured write. `broker`: process id of a discard broker,
    or None for a real Kafka, in which each write gets its own topic.
    """
    results: RoundFigures = {name: [] for name in contenders}
    warm_up_frame, frame = frames
    rows = frame.count()
    for turn, name in iterate_turns(contenders, rounds + 1):
        topic = TOPIC if broker else create_topic(bootstrap, partitions=PARTITIONS, for_java_producer=True)
        noop_write = measure_write(partial(write_to_noop, frame), broker)
        CONTENDERS[name](warm_up_frame, bootstrap, topic)
        write = measure_write(partial(CONTENDERS[name], frame, bootstrap, topic), broker)
        if not broker:
            delete_topic(bootstrap, topic)
        cpu, own_cpu = (seconds / rows * 1e9 for seconds in (write.cpu, write.cpu - noop_write.cpu))
        figures = {"rate": rows / write.seconds, "cpu": cpu, "own": own_cpu}
        summary = f"{figures['rate']:,.0f} rows/s, {cpu:,.0f} ns, {own_cpu:,.0f} without the source's"
        print(f"round {turn}: {name}: {summary}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        if turn:
            results[name].append(figures)
    return results


def measure_lines(scale: Scale, *, with_for_each: bool) -> Iterator[Line]:
    """Yield the lines for real rows, first with a discard broker, then with a real Kafka of one node."""
    rows = scale.scale_count(10_000_000)
    label = f"{rows / 1e6:.0f} million rows, four tasks"
    with contextlib.ExitStack() as stack:
        bootstrap, broker = stack.enter_context(discard_broker(TOPICS))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark = start_spark()
        stack.callback(spark.stop)
        frames = build_frames(spark, rows, "real")
        results = compare(frames, scale.rounds, [OURS, SPARKS, COUNTING], bootstrap, broker)
        first = build_line(f"**Spark**, {label}", "rows/s", results, "rate", (OURS, SPARKS), "1.8")
        yield first._replace(chart_label="no disk")
        yield build_line("...", "rows/s", results, "rate", (OURS, COUNTING), "0.8")
        yield build_line("... CPU, JVM and Python", "ns/row", results, "cpu", (OURS, SPARKS), "")
        yield build_line("... CPU without the source's (noop)", "ns/row", results, "own", (OURS, SPARKS), "0.55")
        if with_for_each:  # last, because others would get its Python workers; few rounds, because it is slow
            results = compare(frames, 3, [OURS, FOR_EACH], bootstrap, broker)
            yield build_line("...", "rows/s", results, "rate", (OURS, FOR_EACH), "")
        kafka = stack.enter_context(KafkaCluster(folder / "cluster")).bootstrap()
        rows = scale.scale_count(3_000_000)
        results = compare(build_frames(spark, rows, "real"), scale.rounds, [OURS, SPARKS], kafka, None)
        measurement = f"**A real Kafka** of one node, {rows / 1e6:.1f} million rows"
        yield build_line(measurement, "rows/s", results, "rate", (OURS, SPARKS), "1.6")._replace(
            chart_label="a real Kafka"
        )


FIGURES = (("rate", "rows/s", "rows/s"), ("cpu", "CPU", "ns/row"), ("own", "CPU without the source's", "ns/row"))


def show(results: RoundFigures) -> None:
    """Print a table for each figure, which compares the first contender with each of the others."""
    first, *others = results
    for key, measurement, unit in FIGURES:
        if key in results[first][0]:
            print(format_table(build_line(measurement, unit, results, key, (first, other), "") for other in others))
            print()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a row costs in Spark, by sink.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bootstrap", help="a Kafka instead of the discard broker")
    parser.add_argument("--shape", action="append", choices=[*SHAPES], help="the rows; real and even without it")
    parser.add_argument("--skip", nargs="*", default=[], help="leave out sinks whose names contain one of these")
    parser.add_argument("--connector", type=Path, help="folder with the jars of Spark's own connector for this Spark")
    arguments = parser.parse_args()
    contenders = [name for name in CONTENDERS if not any(text in name for text in arguments.skip)]
    with contextlib.ExitStack() as stack:
        bootstrap, broker = arguments.bootstrap, None
        if bootstrap is None:
            bootstrap, broker = stack.enter_context(discard_broker(TOPICS))
        spark = start_spark(sorted(arguments.connector.glob("*.jar")) if arguments.connector else None)
        stack.callback(spark.stop)
        for shape in arguments.shape or ["real", "even"]:
            print(f"\n{shape} rows:\n")
            frames = build_frames(spark, arguments.rows, shape)
            show(compare(frames, arguments.rounds, contenders, bootstrap, broker))


if __name__ == "__main__":
    main()
