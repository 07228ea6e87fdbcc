"""What `pykafka demo` does with Spark, step by step, and what it prints meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.client.options import client_config
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import WriteReport, merge_report_ranges
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.topic_admin import create_if_missing
from spark_kafka_sink.spark.patches.drop_in import register

PARTITIONS = 6
TASKS = 16
STREAM_BATCHES = 4
STREAM_ROWS = 25_000
BAR_WIDTH = 40
SHOW_SECONDS = 0.25
ANSWER_MS_MAX = 15_000
SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
VALUE = """concat('{"order":', id, ',"note":"', rpad('', 80, 'so it goes '), '"}')"""
"""About 100 bytes of JSON."""


class Demo:
    """One run, with a topic of its own."""

    def __init__(self, bootstrap: str, rows: int) -> None:
        self.topic = f"pykafka-demo-{int(time.time())}"
        self._rows = rows
        self._bootstrap = bootstrap
        self._client: ClientConfig = client_config({"bootstrap.servers": bootstrap})

    def run(self) -> bool:
        """True if every row is in Kafka, once."""
        create_topic(self._client, self._bootstrap, self.topic)
        note(f"topic {self.topic} with {PARTITIONS} partitions")
        with tempfile.TemporaryDirectory(prefix="pykafka-demo-") as name:
            folder = Path(name)
            options = {"kafka.bootstrap.servers": self._bootstrap, "topic": self.topic}
            options["reportPath"] = str(folder / "reports.jsonl")
            note("starting Spark and its Python workers, by a write of no rows ...")
            with a_spark(folder) as spark:
                # No row passes, so nothing is written; but all processes that a job needs are there after it.
                rows(spark.range(0, TASKS, 1, TASKS).where("rand() > 1")).write.format("pykafka").options(
                    **options
                ).save()
                say("2/4", f"batch: {self._rows:,} rows")
                batch_seconds = self._write_batch(spark, options)
                say("3/4", f"stream: {STREAM_BATCHES} micro-batches of {STREAM_ROWS:,} rows")
                self._write_stream(spark, folder, options)
            reports = read_reports(options["reportPath"])
        say("4/4", "read everything back")
        whole = self._read_back(self._rows + STREAM_BATCHES * STREAM_ROWS)
        show_table(reports, batch_seconds)
        return whole

    def _write_batch(self, spark: SparkSession, options: dict[str, str]) -> float:
        frame = rows(spark.range(0, self._rows, 1, TASKS))
        started = time.perf_counter()
        self._watch(lambda: frame.write.format("pykafka").options(**options).save())
        return time.perf_counter() - started

    def _watch(self, write: Callable[[], None]) -> None:
        """Run `write`, and show meanwhile how many rows the broker has."""
        bar = ProgressBar(self._rows)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            with TopicReader(self._client) as reader:
                while bar.shown < self._rows and not writing.done():
                    wait([writing], SHOW_SECONDS)
                    bar.show(sum(reader.end_offsets(self.topic).values()))
            if sys.stdout.isatty():
                print(flush=True)
            writing.result()

    def _write_stream(self, spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
        """A folder of files is the source, one file for each micro-batch."""
        source = folder / "source"
        stop = self._rows + STREAM_BATCHES * STREAM_ROWS
        spark.range(self._rows, stop, 1, STREAM_BATCHES).write.parquet(str(source))
        files = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(str(source))
        query = (
            rows(files)
            .writeStream.format("pykafka")
            .options(**options)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        shown = -1
        running = True
        while running:
            running = not query.awaitTermination(1)  # raises what ended the query
            for progress in query.recentProgress:
                if progress.batchId > shown and progress.numInputRows:
                    shown = progress.batchId
                    note(f"batch {shown}: {progress.numInputRows:,} rows in {progress.batchDuration} ms")

    def _read_back(self, expected: int) -> bool:
        started = time.perf_counter()
        seen = np.zeros(expected, np.int64)
        count = 0
        with TopicReader(self._client) as reader:
            for table in reader.batches(self.topic):
                ids = pc.cast(pc.cast(table.column("key"), "string"), "int64").to_numpy()
                np.add.at(seen, ids, 1)
                count += len(ids)
        missing, doubled = int((seen == 0).sum()), int((seen > 1).sum())
        note(f"{count:,} rows in {time.perf_counter() - started:.1f} s: {missing} missing, {doubled} doubled")
        if missing or doubled:
            note("this should not have happened; please report it")
        return not missing and not doubled


def create_topic(config: ClientConfig, bootstrap: str, topic: str) -> None:
    try:
        with BlockingClient(config, timeout_ms=ANSWER_MS_MAX) as client:
            create_if_missing(client, NewTopic(topic, PARTITIONS))
    except NetworkError as error:
        raise NetworkError(f"no Kafka at {bootstrap}: {error}") from error


@contextlib.contextmanager
def a_spark(folder: Path) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").appName("pykafka demo")
    for name, value in (SPARK | {"spark.sql.warehouse.dir": str(folder / "warehouse")}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def rows(frame: DataFrame) -> DataFrame:
    """`id` as keys, and JSON as values."""
    return frame.selectExpr("CAST(id AS STRING) AS key", f"{VALUE} AS value")


class ProgressBar:
    """How many rows have come: one line that grows on a terminal, elsewhere a line for each tenth."""

    def __init__(self, of: int) -> None:
        self.shown = -1
        self._of = of
        self._on_terminal = sys.stdout.isatty()

    def show(self, done: int) -> None:
        step = 1 if self._on_terminal else self._of // 10
        if done < self._of and done < self.shown + step:
            return
        self.shown = done
        filled = BAR_WIDTH * done // self._of
        line = f"     [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:>9,} rows in Kafka"
        print(f"\r{line}" if self._on_terminal else line, end="" if self._on_terminal else "\n", flush=True)


def show_table(reports: list[WriteReport], batch_seconds: float) -> None:
    print()
    print(f"{'topic':<26} {'partition':>9} {'first offset':>13} {'last offset':>12} {'rows':>10}")
    for topic, partitions in sorted(merge_report_ranges(reports).items()):
        for partition, written in sorted(partitions.items()):
            print(
                f"{topic:<26} {partition:>9} {written.first_offset:>13,} {written.last_offset:>12,} {written.rows:>10,}"
            )
    batch = next(report for report in reports if report.rows)
    retries = sum(report.retries for report in reports)
    print()
    print(
        f"The batch job: {batch.rows / batch_seconds:,.0f} rows per second, "
        f"{batch.bytes / batch_seconds / 1e6:.1f} MB per second; {batch.tasks} tasks in {batch_seconds:.1f} s, "
        f"with everything on this machine.\nRecords retried, in batch and stream: {retries}.\n"
    )


def say(step: str, title: str) -> None:
    print(f"\n{step}  {title}", flush=True)


def note(text: str) -> None:
    print(f"     {text}", flush=True)
