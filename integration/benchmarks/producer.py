"""Benchmark of producers: pykafka with columns and with single records, librdkafka, kafka-python, and Kafka's own.

    python -m integration.benchmarks.producer [--rounds 5]

A discard broker, which acknowledges and counts records without storing them, runs in a separate process. Each contender
runs in a new process, in turns with the others. The tables show medians of the rounds. Rows have real or even lengths
(rows.py).

16 kB, 64 kB, 512 kB and 1 MB are values of batch.size: the default of Java, a size in between, the default of the Spark
sink, and that of librdkafka. The other important default is that of send.buffer.bytes: with 16 kB it is Java's 128 kB,
and with the other sizes the system's choice, as in librdkafka. linger.ms is 5, the default of Java and librdkafka, but
100 with "full 512 kB", as in the Spark sink. CPU is the user and system time of the contender's process from the first
record to the last acknowledgement. For Java it is that of the whole JVM with its start, so only its records/s are
compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import Line, Scale, build_line, format_table, iterate_turns
from integration.benchmarks.rows import SHAPES
from integration.support.artifacts import kafka_classpath

ROWS = 10_000
RECORDS = {"columns": 3_000_000, "librdkafka": 2_000_000, "send": 150_000, "kafka-python": 60_000, "java": 6_000_000}
TOPICS = {"one": 1, "t": 12, "thousand": 1_000}


Options = dict[str, object]
JAVA_DEFAULTS: Options = {"batch.size": 16_384}
MEDIUM_BATCHES: Options = {"batch.size": 65_536, "send.buffer.bytes": -1}
SPARK_SINK_DEFAULTS: Options = {"batch.size": 524_288, "send.buffer.bytes": -1}
LIBRDKAFKA_DEFAULTS: Options = {"batch.size": 1_000_000, "send.buffer.bytes": -1}
"""The defaults of Java, the Spark sink and librdkafka. MEDIUM_BATCHES is a usual setting for topics with much traffic.

All producers are compared with each of them.
"""


def send_columns(bootstrap: str, topic: str, records: int, options: Options, shape: str) -> None:
    from spark_kafka_sink import KafkaProducer, RecordColumns

    key, value = SHAPES[shape](ROWS)
    with KafkaProducer({"bootstrap.servers": bootstrap, **options}) as producer:
        producer.send_columns(topic, RecordColumns(value=value, key=key)).result(60).raise_for_failures()
        start_measurement()
        futures = [producer.send_columns(topic, RecordColumns(value=value, key=key)) for _ in range(records // ROWS)]
        producer.flush(600)
        for future in futures:
            future.result(0).raise_for_failures()


def send_singly(bootstrap: str, topic: str, records: int, options: Options, shape: str) -> None:
    from spark_kafka_sink import KafkaProducer, ProducerRecord

    keys, values = (column.to_pylist() for column in SHAPES[shape](ROWS))
    with KafkaProducer({"bootstrap.servers": bootstrap, **options}) as producer:
        producer.send(ProducerRecord(topic, values[0], key=keys[0])).result(60)
        start_measurement()
        for i in range(records):
            producer.send(ProducerRecord(topic, values[i % ROWS], key=keys[i % ROWS]))
        producer.flush(600)


def send_with_librdkafka(bootstrap: str, topic: str, records: int, options: Options, shape: str) -> None:
    from confluent_kafka import Producer

    from integration.support.librdkafka import produce_all

    keys, values = (column.to_pylist() for column in SHAPES[shape](ROWS))
    config: dict[str, object] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    config |= options | {"partitioner": "murmur2_random", "queue.buffering.max.messages": 1_000_000}
    config["socket.send.buffer.bytes"] = max(0, int(str(config.pop("send.buffer.bytes", 131_072))))  # 0: OS default
    producer = Producer(config)
    producer.produce(topic, values[0], keys[0])
    producer.flush(60)
    start_measurement()
    produce_all(producer, topic, itertools.islice(itertools.cycle(zip(keys, values, strict=True)), records))


def send_with_kafka_python(bootstrap: str, topic: str, records: int, options: Options, shape: str) -> None:
    from kafka import KafkaProducer

    keys, values = (column.to_pylist() for column in SHAPES[shape](ROWS))
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, values[0], keys[0]).get(60)
    start_measurement()
    for i in range(records):
        producer.send(topic, values[i % ROWS], keys[i % ROWS])
    producer.flush(600)


CONTENDERS: dict[str, Callable[[str, str, int, Options, str], None]] = {
    "columns": send_columns,
    "send": send_singly,
    "librdkafka": send_with_librdkafka,
    "kafka-python": send_with_kafka_python,
}
"""Functions that send records to a topic. They call `start_measurement` when the first record has been acknowledged."""
SETTINGS = {"16 kB": JAVA_DEFAULTS, "64 kB": MEDIUM_BATCHES, "512 kB": SPARK_SINK_DEFAULTS, "1 MB": LIBRDKAFKA_DEFAULTS}
FULL_BATCHES_LABEL, FULL_BATCH_OPTIONS = "full 512 kB", {**SPARK_SINK_DEFAULTS, "linger.ms": 100}
"""With a linger of 5 ms, most batches are sent before they reach 512 kB; with 1,000 partitions, they have 13 kB."""
CPU_TARGETS = {"16 kB": "at most 0.35", "64 kB": "at most 0.25", "512 kB": "at most 0.25", "1 MB": "at most 0.25"}


class Row(NamedTuple):
    """One row of the table."""

    label: str
    contender: str
    topic: str
    options: Options
    shape: str = "real"


class Ratio(NamedTuple):
    """A figure of a row, compared with that of its baseline. `key`: "rate" or "cpu_ns"."""

    key: str
    label: str
    baseline_label: str
    figure_name: str
    target: str


def build_pair(label: str, options: Options) -> list[Row]:
    return [
        Row(f"`send_columns`, {label}", "columns", "t", options),
        Row(f"confluent-kafka `produce()`, {label}", "librdkafka", "t", options),
    ]


def build_table_rows(size: str, options: Options) -> list[Row]:
    return [
        *build_pair(size, options),
        Row(f"`send_columns`, {size}, even rows", "columns", "t", options, "even"),
        Row(f"confluent-kafka `produce()`, {size}, even rows", "librdkafka", "t", options, "even"),
        Row(f"Java ProducerPerformance, {size}", "java", "t", options),
        Row(f"`send_columns`, {size}, 1 partition", "columns", "one", options),
        Row(f"`send_columns`, {size}, 1,000 partitions", "columns", "thousand", options),
    ]


def build_ratios(size: str) -> list[Ratio]:
    label, librdkafka_label = f"`send_columns`, {size}", f"confluent-kafka `produce()`, {size}"
    return [
        Ratio("cpu_ns", label, librdkafka_label, "CPU", CPU_TARGETS[size]),
        Ratio("cpu_ns", f"{label}, even rows", f"{librdkafka_label}, even rows", "CPU", ""),
        Ratio("rate", label, f"Java ProducerPerformance, {size}", "records/s", "at least 2"),
        Ratio("cpu_ns", f"{label}, 1,000 partitions", label, "CPU", "at most 3"),
    ]


TABLE_ROWS: list[Row] = [
    *(row for size, options in SETTINGS.items() for row in build_table_rows(size, options)),
    *build_pair(FULL_BATCHES_LABEL, FULL_BATCH_OPTIONS),
    Row(f"`send_columns`, {FULL_BATCHES_LABEL}, 1,000 partitions", "columns", "thousand", FULL_BATCH_OPTIONS),
    *(
        row
        for codec in ("lz4", "zstd")
        for row in build_pair(f"1 MB, {codec}", {**LIBRDKAFKA_DEFAULTS, "compression.type": codec})
    ),
    Row("`send`, 16 kB", "send", "t", JAVA_DEFAULTS),
    Row("kafka-python `send`, 16 kB", "kafka-python", "t", JAVA_DEFAULTS),
]
RATIOS: list[Ratio] = [
    *(ratio for size in SETTINGS for ratio in build_ratios(size)),
    Ratio(
        "cpu_ns",
        f"`send_columns`, {FULL_BATCHES_LABEL}",
        f"confluent-kafka `produce()`, {FULL_BATCHES_LABEL}",
        "CPU",
        CPU_TARGETS["512 kB"],
    ),
    Ratio("rate", "`send`, 16 kB", "kafka-python `send`, 16 kB", "records/s", "at least 1"),
]

_start: tuple[float, float] = (0.0, 0.0)


def read_cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def start_measurement() -> None:
    """Start the measurement. The contender calls this when its first record has been acknowledged."""
    global _start
    _start = time.perf_counter(), read_cpu_seconds()


def run_contender(bootstrap: str, row: Row, records: int) -> dict[str, float]:
    """Run a contender in this process, and return its figures."""
    CONTENDERS[row.contender](bootstrap, row.topic, records, row.options, row.shape)
    seconds, cpu = time.perf_counter() - _start[0], read_cpu_seconds() - _start[1]
    return {"rate": records / seconds, "cpu_ns": cpu / records * 1e9}


def measure_java(bootstrap: str, topic: str, records: int, options: Options) -> dict[str, float]:
    """Run Kafka's ProducerPerformance, and return its figures. Raise RuntimeError if it fails."""
    command = ["java", "-Xmx512m", "-cp", kafka_classpath(), "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", topic, "--num-records", str(records), "--record-size", "112", "--throughput", "-1"]
    command += ["--command-property", f"bootstrap.servers={bootstrap}"]
    command += [f"{option}={value}" for option, value in options.items()]
    cpu_before = read_cpu_seconds(resource.RUSAGE_CHILDREN)
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    rates = re.findall(r"([\d.]+) records/sec", completed.stdout)
    if completed.returncode or not rates:
        raise RuntimeError(f"{completed.stdout}\n{completed.stderr}")
    return {
        "rate": float(rates[-1]),
        "cpu_ns": (read_cpu_seconds(resource.RUSAGE_CHILDREN) - cpu_before) / records * 1e9,
    }


def measure(bootstrap: str, row: Row, records: int) -> dict[str, float]:
    """Run the contender of a row in a new process, and return its figures."""
    if row.contender == "java":
        return measure_java(bootstrap, row.topic, records, row.options)
    command = [sys.executable, "-m", "integration.benchmarks.producer", "--contender", json.dumps(row)]
    command += ["--bootstrap", bootstrap, "--records", str(records)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return result


RoundFigures = dict[str, list[dict[str, float]]]


def measure_rounds(rows: list[Row], rounds: int, scale: float) -> RoundFigures:
    """Return the figures of each round, by the label of the row."""
    results: RoundFigures = {row.label: [] for row in rows}
    by_label = {row.label: row for row in rows}
    with discard_broker(TOPICS) as (bootstrap, _):
        for turn, label in iterate_turns(list(by_label), rounds):
            row = by_label[label]
            records = max(ROWS, int(RECORDS[row.contender] * scale) // ROWS * ROWS)
            results[label].append(measure(bootstrap, row, records))
            print(f"round {turn + 1}: {label}: {results[label][-1]}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return results


def compare(rounds: int, scale: float, only: str) -> None:
    results = measure_rounds([row for row in TABLE_ROWS if only in row.label], rounds, scale)
    print("| producer | records/s | CPU per record |\n|---|---:|---:|")
    for label, runs in results.items():
        rate, cpu = (statistics.median(run[key] for run in runs) for key in ("rate", "cpu_ns"))
        print(f"| {label} | {rate:,.0f} | {cpu:,.0f} ns |")
    print()
    print(
        format_table(
            _build_ratio_line(ratio, results) for ratio in RATIOS if {ratio.label, ratio.baseline_label} <= set(results)
        )
    )


def _build_ratio_line(ratio: Ratio, results: RoundFigures) -> Line:
    unit = "records/s" if ratio.key == "rate" else "ns/record"
    pair = (ratio.label, ratio.baseline_label)
    return build_line(f"{ratio.label}: {ratio.figure_name}", unit, results, ratio.key, pair, ratio.target)


PAGE_RATIOS: list[Ratio] = [
    Ratio("rate", "`send_columns`, 16 kB", "Java ProducerPerformance, 16 kB", "records/s", "2"),
    Ratio("cpu_ns", "`send_columns`, 16 kB", "confluent-kafka `produce()`, 16 kB", "CPU", "0.35"),
    Ratio(
        "cpu_ns",
        f"`send_columns`, {FULL_BATCHES_LABEL}",
        f"confluent-kafka `produce()`, {FULL_BATCHES_LABEL}",
        "CPU",
        "0.25",
    ),
    Ratio("cpu_ns", "`send_columns`, 512 kB, 1,000 partitions", "`send_columns`, 512 kB", "CPU", "1.7"),
    Ratio(
        "cpu_ns",
        f"`send_columns`, {FULL_BATCHES_LABEL}, 1,000 partitions",
        f"`send_columns`, {FULL_BATCHES_LABEL}",
        "CPU",
        "1.7",
    ),
    Ratio("rate", "`send`, 16 kB", "kafka-python `send`, 16 kB", "records/s", "3"),
    Ratio("cpu_ns", "`send`, 16 kB", "kafka-python `send`, 16 kB", "CPU", ""),
]


def measure_lines(scale: Scale) -> Iterator[Line]:
    labels = {label for ratio in PAGE_RATIOS for label in (ratio.label, ratio.baseline_label)}
    results = measure_rounds([row for row in TABLE_ROWS if row.label in labels], scale.rounds, max(0.3, scale.share))
    for ratio in PAGE_RATIOS:
        yield _build_ratio_line(ratio, results)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a record costs in each producer.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="fewer or more records than usual")
    parser.add_argument("--only", default="", help="measure the rows whose name has this in it, for instance '16 kB'")
    for hidden in ("--contender", "--bootstrap"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        row = Row(*json.loads(arguments.contender))
        print(json.dumps(run_contender(arguments.bootstrap, row, arguments.records)))
    else:
        compare(arguments.rounds, arguments.scale, arguments.only)


if __name__ == "__main__":
    main()
