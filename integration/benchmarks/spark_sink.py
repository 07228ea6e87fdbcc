"""What a row costs in Spark: ours, Spark's own sink, foreachPartition with librdkafka, and a writer that only counts.

    python -m integration.benchmarks.spark_sink [--rows 10000000] [--rounds 5] [--bootstrap host:port] [--skip foreach]

All in one session (`local[2]`), one after the other, in turn, on the same rows, of real length and then even ones, 12
partitions. Without `--bootstrap` a discard broker (it acknowledges, counts and keeps nothing) runs in a process of its
own. CPU is what the driver, its JVM and the Python workers used during the write, the broker not included. The counting
writer is what Spark can hand to a Python sink at most. Medians of the rounds and of their ratios, after one round that
does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from integration.support.artifacts import connector_jars
from integration.support.processes import cpu_seconds, descendants
from spark_kafka_sink import register

PARTITIONS = 12
TASKS = 4
TOPIC = "spark-sink-benchmark"


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


def ours(frame: DataFrame, bootstrap: str) -> None:
    frame.write.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC).save()


def sparks_own(frame: DataFrame, bootstrap: str) -> None:
    frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", TOPIC).save()


def for_each_partition(frame: DataFrame, bootstrap: str) -> None:
    def produce(rows: Iterable[Row]) -> None:
        from confluent_kafka import Producer

        config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        producer = Producer(config | {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000})
        for number, row in enumerate(rows):
            while True:
                try:
                    producer.produce(TOPIC, row.value, row.key)
                    break
                except BufferError:
                    producer.poll(0.01)
            if number % 1_000 == 0:
                producer.poll(0)
        producer.flush()

    frame.foreachPartition(produce)


def counting(frame: DataFrame, bootstrap: str) -> None:
    frame.write.format("counting").mode("append").save()


CONTENDERS: dict[str, Callable[[DataFrame, str], None]] = {
    'pykafka: `format("pykafka")`': ours,
    'Spark\'s own `format("kafka")`': sparks_own,
    "`foreachPartition` + confluent-kafka": for_each_partition,
    "an Arrow writer that only counts": counting,
}


def client_cpu_seconds(broker: int | None) -> float:
    """CPU time of this process, the driver's JVM and the Python workers, ended ones included."""
    return sum(cpu_seconds(pid) for pid in (os.getpid(), *descendants(os.getpid())) if pid != broker)


@contextlib.contextmanager
def discard_broker() -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "spark_kafka_sink.cli", "broker", "--port", "0", "--discard"]
    command += ["--topic", f"{TOPIC}:{PARTITIONS}"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        yield next(line.split()[-1] for line in broker.stdout if line.startswith("listening on ")), broker.pid
    finally:
        broker.terminate()
        with broker:
            broker.wait()


def start_spark() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
        .getOrCreate()
    )
    register(spark)
    spark.dataSource.register(CountingSource)
    return spark


SHAPES = {
    "real": ["CAST(id AS STRING) AS key", "to_json(struct(id, id % 1000 / 10 AS amount, rest)) AS value"],
    "even": [
        "CAST(id + 100000000000 AS STRING) AS key",
        "concat(CAST(id + 100000000000 AS STRING), repeat('so it goes ', 8)) AS value",
    ],
}


def rows_of(spark: SparkSession, rows: int, shape: str) -> DataFrame:
    """Real: keys of 1 to 7 digits and more, JSON values of 60 to 140 bytes. Even: 12-byte keys, 100-byte values."""
    numbers = spark.range(0, rows, 1, TASKS).selectExpr("id", "repeat('so ', int(9 + id * 7919 % 22)) AS rest")
    return numbers.selectExpr(*SHAPES[shape])


def compare(rows: int, rounds: int, bootstrap: str | None, shape: str, contenders: Sequence[str]) -> None:
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    with contextlib.ExitStack() as stack:
        broker: int | None = None
        if bootstrap is None:
            bootstrap, broker = stack.enter_context(discard_broker())
        spark = start_spark()
        stack.callback(spark.stop)
        frame = rows_of(spark, rows, shape)
        for turn in range(rounds + 1):
            for name in contenders:
                write = CONTENDERS[name]
                started, cpu_before = time.perf_counter(), client_cpu_seconds(broker)
                write(frame, bootstrap)
                seconds, cpu = time.perf_counter() - started, client_cpu_seconds(broker) - cpu_before
                print(
                    f"round {turn}: {name}: {rows / seconds:,.0f} rows/s, {cpu / rows * 1e9:,.0f} ns", file=sys.stderr
                )
                if turn:
                    seen[name].append((rows / seconds, cpu / rows * 1e9))
    show(seen)


def show(seen: dict[str, list[tuple[float, float]]]) -> None:
    medians = {
        name: (statistics.median(rate for rate, _ in runs), statistics.median(cpu for _, cpu in runs))
        for name, runs in seen.items()
    }
    ours_seen = next(iter(seen.values()))
    print("| sink | rows/s | client CPU per row | rows/s, ours is | in the rounds | CPU, times ours |")
    print("|---|---:|---:|---:|---|---:|")
    for name, (rate, cpu) in medians.items():
        ratios = [own / other for (own, _), (other, _) in zip(ours_seen, seen[name], strict=True)]
        times = statistics.median(other / own for (_, own), (_, other) in zip(ours_seen, seen[name], strict=True))
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {name} | {rate:,.0f} | {cpu:,.0f} ns | {statistics.median(ratios):.2f}x | {rounds} | {times:.2f}x |")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a row costs in Spark, by sink.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bootstrap", help=f"a Kafka with the topic {TOPIC}, instead of the discard broker")
    parser.add_argument("--shape", action="append", choices=[*SHAPES], help="real rows, even rows; both without it")
    parser.add_argument("--skip", help="leave out the sinks whose names have this in them")
    arguments = parser.parse_args()
    contenders = [name for name in CONTENDERS if not arguments.skip or arguments.skip not in name]
    for shape in arguments.shape or SHAPES:
        print(f"\n{shape} rows:\n")
        compare(arguments.rows, arguments.rounds, arguments.bootstrap, shape, contenders)


if __name__ == "__main__":
    main()
