"""The Spark job that `pykafka demo` runs, and its progress output."""

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
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.errors import NetworkError
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import WriteReport, merge_report_ranges
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.topic_admin import create_if_missing
from spark_kafka_sink.spark.patches.drop_in import register

PARTITION_COUNT = 6
TASK_COUNT = 16
STREAM_BATCH_COUNT = 4
ROWS_PER_STREAM_BATCH = 25_000
BAR_WIDTH = 40
PROGRESS_INTERVAL_SECONDS = 0.25
RESPONSE_TIMEOUT_MS = 15_000
SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
VALUE_EXPRESSION = """concat('{"order":', id, ',"note":"', rpad('', 80, 'so it goes '), '"}')"""
"""A SQL expression that yields about 100 bytes of JSON."""


class Demo:
    """One run of the demo. Each run writes to a topic of its own."""

    def __init__(self, bootstrap_servers: str, row_count: int) -> None:
        self.topic = f"pykafka-demo-{int(time.time())}"
        self._row_count = row_count
        self._bootstrap_servers = bootstrap_servers
        self._client_config: ClientConfig = parse_client_config({"bootstrap.servers": bootstrap_servers})

    def run(self) -> bool:
        """Run all steps. Return whether every row is in Kafka exactly once."""
        create_topic(self._client_config, self._bootstrap_servers, self.topic)
        print_note(f"topic {self.topic} with {PARTITION_COUNT} partitions")
        with tempfile.TemporaryDirectory(prefix="pykafka-demo-") as directory_name:
            directory = Path(directory_name)
            options = {"kafka.bootstrap.servers": self._bootstrap_servers, "topic": self.topic}
            options["reportPath"] = str(directory / "reports.jsonl")
            print_note("starting Spark and its Python workers by writing no rows ...")
            with create_spark_session(directory) as spark:
                start_python_workers(spark, options)
                print_step("2/4", f"batch: {self._row_count:,} rows")
                batch_seconds = self._write_batch(spark, options)
                print_step("3/4", f"stream: {STREAM_BATCH_COUNT} micro-batches of {ROWS_PER_STREAM_BATCH:,} rows")
                self._write_stream(spark, directory, options)
            reports = read_reports(options["reportPath"])
        print_step("4/4", "read everything back")
        is_complete = self._verify_each_row_occurs_once(self._row_count + STREAM_BATCH_COUNT * ROWS_PER_STREAM_BATCH)
        print_summary(reports, batch_seconds)
        return is_complete

    def _write_batch(self, spark: SparkSession, options: dict[str, str]) -> float:
        frame = select_key_and_value(spark.range(0, self._row_count, step=1, numPartitions=TASK_COUNT))
        start_time_s = time.perf_counter()
        self._run_with_progress(lambda: frame.write.format("pykafka").options(**options).save())
        return time.perf_counter() - start_time_s

    def _run_with_progress(self, write: Callable[[], None]) -> None:
        """Run `write` in a thread, and show how many rows the brokers have stored. Raise the error of `write`."""
        bar = ProgressBar(self._row_count)
        with ThreadPoolExecutor(max_workers=1) as pool:
            write_future = pool.submit(write)
            with TopicReader(self._client_config) as reader:
                while bar.shown_count < self._row_count and not write_future.done():
                    wait([write_future], timeout=PROGRESS_INTERVAL_SECONDS)
                    bar.update(sum(reader.end_offsets(self.topic).values()))
            if sys.stdout.isatty():
                print(flush=True)  # end the line of the progress bar
            write_future.result()

    def _write_stream(self, spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
        """Run a streaming query that reads one file per micro-batch, and print each completed micro-batch."""
        source_path = str(directory / "source")
        first_id = self._row_count  # the ids continue those of the batch job
        end_id = first_id + STREAM_BATCH_COUNT * ROWS_PER_STREAM_BATCH
        spark.range(first_id, end_id, step=1, numPartitions=STREAM_BATCH_COUNT).write.parquet(source_path)
        stream = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(source_path)
        query = (
            select_key_and_value(stream)
            .writeStream.format("pykafka")
            .options(**options)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        last_batch_id = -1
        is_running = True
        while is_running:
            is_running = not query.awaitTermination(timeout=1)  # raises the query's error if it failed
            for progress in query.recentProgress:
                # Progress is also reported while the query has no input.
                if progress.batchId > last_batch_id and progress.numInputRows:
                    last_batch_id = progress.batchId
                    print_note(f"batch {last_batch_id}: {progress.numInputRows:,} rows in {progress.batchDuration} ms")

    def _verify_each_row_occurs_once(self, expected_count: int) -> bool:
        """Read the topic, print the counts, and return whether each key from 0 to `expected_count` - 1 occurs once."""
        start_time_s = time.perf_counter()
        counts_by_key = np.zeros(expected_count, np.int64)
        row_count = 0
        with TopicReader(self._client_config) as reader:
            for table in reader.batches(self.topic):
                keys = pc.cast(pc.cast(table.column("key"), "string"), "int64").to_numpy()
                # Unlike `counts_by_key[keys] += 1`, this counts a key twice if the table contains it twice.
                np.add.at(counts_by_key, keys, 1)
                row_count += len(keys)
        missing_count = int((counts_by_key == 0).sum())
        duplicate_count = int((counts_by_key > 1).sum())
        print_note(
            f"{row_count:,} rows in {time.perf_counter() - start_time_s:.1f} s: {missing_count} missing, "
            f"{duplicate_count} duplicated"
        )
        if missing_count or duplicate_count:
            print_note("this is a bug; please report it")
        return not missing_count and not duplicate_count


def create_topic(config: ClientConfig, bootstrap_servers: str, topic: str) -> None:
    """Create the demo's topic if it is missing. Raise NetworkError if there is no Kafka at `bootstrap_servers`."""
    try:
        with BlockingClient(config, timeout_ms=RESPONSE_TIMEOUT_MS) as client:
            create_if_missing(client, NewTopic(topic, PARTITION_COUNT))
    except NetworkError as error:
        raise NetworkError(f"could not connect to Kafka at {bootstrap_servers}: {error}") from error


@contextlib.contextmanager
def create_spark_session(directory: Path) -> Iterator[SparkSession]:
    """Start a local Spark session that knows the sink, and stop it at the end of the block."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").appName("pykafka demo")
    for name, value in (SPARK_CONF | {"spark.sql.warehouse.dir": str(directory / "warehouse")}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def start_python_workers(spark: SparkSession, options: dict[str, str]) -> None:
    """Write no rows, so that the time of the batch job does not include the start of its Python workers."""
    # The condition matches no row, but Spark still runs each of the tasks in a worker.
    no_rows = spark.range(0, TASK_COUNT, step=1, numPartitions=TASK_COUNT).where("rand() > 1")
    select_key_and_value(no_rows).write.format("pykafka").options(**options).save()


def select_key_and_value(frame: DataFrame) -> DataFrame:
    """Return a DataFrame with the column `id` as key and a JSON value of about 100 bytes."""
    return frame.selectExpr("CAST(id AS STRING) AS key", f"{VALUE_EXPRESSION} AS value")


class ProgressBar:
    """A progress bar for stored rows: a single line on a terminal, or else a line for every tenth of the rows."""

    def __init__(self, total: int) -> None:
        self.shown_count = -1
        self._total = total
        self._is_terminal = sys.stdout.isatty()

    def update(self, count: int) -> None:
        """Show the number of stored rows, unless it is too close to the number that was shown last."""
        step = 1 if self._is_terminal else self._total // 10
        if count < self._total and count < self.shown_count + step:
            return
        self.shown_count = count
        filled = BAR_WIDTH * count // self._total
        line = f"     [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {count:>9,} rows in Kafka"
        if self._is_terminal:
            print(f"\r{line}", end="", flush=True)  # overwrite the previous line
        else:
            print(line, flush=True)


def print_summary(reports: list[WriteReport], batch_seconds: float) -> None:
    """Print the written offset ranges of each partition, and the throughput of the batch job."""
    print()
    print(f"{'topic':<26} {'partition':>9} {'first offset':>13} {'last offset':>12} {'rows':>10}")
    for topic, partitions in sorted(merge_report_ranges(reports).items()):
        for partition, offsets in sorted(partitions.items()):
            print(
                f"{topic:<26} {partition:>9} {offsets.first_offset:>13,} {offsets.last_offset:>12,} {offsets.rows:>10,}"
            )
    # The first report is from the job that started Spark's workers and wrote no rows. The batch job comes next.
    batch_report = next(report for report in reports if report.rows)
    retry_count = sum(report.retries for report in reports)
    print()
    print(
        f"The batch job: {batch_report.rows / batch_seconds:,.0f} rows per second, "
        f"{batch_report.bytes / batch_seconds / 1e6:.1f} MB per second; {batch_report.tasks} tasks in "
        f"{batch_seconds:.1f} s, with everything on this machine.\n"
        f"Records retried, in batch and stream: {retry_count}.\n"
    )


def print_step(step: str, title: str) -> None:
    print(f"\n{step}  {title}", flush=True)


def print_note(text: str) -> None:
    print(f"     {text}", flush=True)
