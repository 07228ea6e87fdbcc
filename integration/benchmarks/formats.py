"""Benchmark of values that are built from columns: by pykafka, and by to_json or to_avro before a Kafka sink.

    python -m integration.benchmarks.formats [--rows 2000000] [--rounds 5] [--bootstrap host:port]

First, the encoders run alone on one thread, on a batch of 10,000 rows, which is the size of Spark's Arrow batches.
Then whole writes take turns in one session (`local[2]`), to a discard broker in a separate process. CPU is that of the
driver, its JVM and the Python workers. A row has a bigint, two strings (one of them null in two of three rows), a
double, a timestamp and a boolean. The results are medians of the rounds after a warm-up round.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.functions import struct, to_json

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.page import Line, Scale, build_line, iterate_turns
from integration.benchmarks.spark_sink import (
    TASKS,
    TOPIC,
    TOPICS,
    RoundFigures,
    measure_write,
    show,
    start_spark,
)
from spark_kafka_sink.formats.format_builders import SchemaSpec, build_format
from spark_kafka_sink.spark.arrow_types import to_arrow_field

BATCH_ROWS = 10_000
COLUMNS = (
    "id",
    "concat('user ', id) AS name",
    "round(rand(1) * 1000, 2) AS amount",
    "timestamp_micros(1700000000000000 + id * 1234567) AS at",
    "if(id % 3 = 0, 'Pune', NULL) AS city",
    "id % 2 = 0 AS is_paid",
)
FORMATS = ("json", "avro", "protobuf-confluent")


def build_rows(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, TASKS).selectExpr(*COLUMNS)


def write(frame: DataFrame, sink: str, bootstrap: str, **options: str) -> None:
    frame.write.format(sink).options(**options).option("kafka.bootstrap.servers", bootstrap).option(
        "topic", TOPIC
    ).mode("append").save()


CONTENDERS: dict[str, Callable[[DataFrame, str], None]] = {
    "`valueFormat` = `json`": lambda frame, to: write(frame, "pykafka", to, valueFormat="json"),
    '`to_json` + `format("pykafka")`': lambda frame, to: write(
        frame.select(to_json(struct(*frame.columns)).alias("value")), "pykafka", to
    ),
    '`to_json` + `format("kafka")`': lambda frame, to: write(
        frame.select(to_json(struct(*frame.columns)).alias("value")), "kafka", to
    ),
    "`valueFormat` = `avro`": lambda frame, to: write(frame, "pykafka", to, valueFormat="avro"),
    '`to_avro` + `format("pykafka")`': lambda frame, to: write(
        frame.select(to_avro(struct(*frame.columns)).alias("value")), "pykafka", to
    ),
    '`to_avro` + `format("kafka")`': lambda frame, to: write(
        frame.select(to_avro(struct(*frame.columns)).alias("value")), "kafka", to
    ),
}


def print_encoder_table(spark: SparkSession, rounds: int) -> None:
    """Print a table of the encoders' CPU time and size per row."""
    frame = build_rows(spark, BATCH_ROWS)
    fields = [to_arrow_field(field, field.name) for field in frame.schema]
    batch = pa.Table.to_batches(frame.toArrow().combine_chunks())[0]
    print("| encoder alone | CPU per row | bytes per row |")
    print("|---|---:|---:|")
    for name in FORMATS:
        row_format = build_format(name, fields, SchemaSpec()).row_format
        results = []
        for _ in range(10 * rounds + 1):
            before = time.process_time()
            encoded = row_format.encode_rows(batch.schema.names, batch.columns, batch.num_rows, b"")
            results.append((time.process_time() - before) / batch.num_rows * 1e9)
        size = encoded.nbytes / batch.num_rows - 4  # without the offset of each row in the Arrow array
        print(f"| `{name}` | {statistics.median(results[1:]):,.0f} ns | {size:,.0f} |")


def measure_writes(
    spark: SparkSession, rows: int, rounds: int, contenders: Sequence[str], bootstrap: str, broker: int | None
) -> RoundFigures:
    """Let the contenders take turns, and return the figures of each round after the warm-up round."""
    results: RoundFigures = {name: [] for name in contenders}
    frame = build_rows(spark, rows)
    for turn, name in iterate_turns(contenders, rounds + 1):
        seconds, cpu = measure_write(partial(CONTENDERS[name], frame, bootstrap), broker)
        print(f"round {turn}: {name}: {rows / seconds:,.0f} rows/s, {cpu / rows * 1e9:,.0f} ns", file=sys.stderr)
        if turn:
            results[name].append({"rate": rows / seconds, "cpu": cpu / rows * 1e9})
    return results


def measure_lines(scale: Scale) -> Iterator[Line]:
    pair = ("`valueFormat` = `json`", '`to_json` + `format("kafka")`')
    with discard_broker(TOPICS) as (bootstrap, broker), contextlib.ExitStack() as stack:
        spark = start_spark()
        stack.callback(spark.stop)
        results = measure_writes(spark, scale.scale_count(2_000_000), scale.rounds, pair, bootstrap, broker)
    yield build_line("**Values from columns**: JSON", "rows/s", results, "rate", pair, "")
    yield build_line("... CPU, JVM and Python", "ns/row", results, "cpu", pair, "")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a row costs whose value is made out of columns.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bootstrap", help=f"a Kafka with the topic {TOPIC}, instead of the discard broker")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap, broker = arguments.bootstrap, None
        if bootstrap is None:
            bootstrap, broker = stack.enter_context(discard_broker(TOPICS))
        spark = start_spark()
        stack.callback(spark.stop)
        print_encoder_table(spark, arguments.rounds)
        results = measure_writes(spark, arguments.rows, arguments.rounds, list(CONTENDERS), bootstrap, broker)
    for kind in ("json", "avro"):
        print()
        show({name: runs for name, runs in results.items() if kind in name})


if __name__ == "__main__":
    main()
