"""`make demo`: a real Spark job writes a million rows and then a stream, and everything is read back and counted.

A broker is started in a process of its own. `BOOTSTRAP=host:port make demo` takes that Kafka instead; the demo then
makes a topic of its own there, and says which, since it leaves it. `ROWS=...` writes another number of rows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from spark_kafka_sink.reader.blocking_client import BlockingClient
from spark_kafka_sink.reader.reader import TopicReader
from spark_kafka_sink.spark.report import WriteReport, ranges_of, read_reports

ROWS = int(os.environ.get("ROWS", "1000000"))
PARTITIONS = 6
TASKS = 16
STREAM_BATCHES = 4
STREAM_ROWS = 25_000
BAR_WIDTH = 40
SHOW_SECONDS = 0.25
SPARK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main() -> None:
    require_java()
    with contextlib.ExitStack() as stack:
        bootstrap = os.environ.get("BOOTSTRAP", "")
        say("1/4", "a broker")
        if bootstrap:
            note(f"your Kafka at {bootstrap}")
        else:
            bootstrap = stack.enter_context(embedded_broker())
            note(f"an embedded one, at {bootstrap} (for your own: BOOTSTRAP=host:port make demo)")
        topic = f"pykafka-demo-{int(time.time())}"
        create_topic(bootstrap, topic)
        note(f"topic {topic} with {PARTITIONS} partitions")

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pykafka-demo-")))
        note("starting Spark and its Python workers ...")
        spark = stack.enter_context(a_spark(folder))
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "reportPath": str(folder / "reports.jsonl"),
        }
        # No row passes, so nothing is written; but all processes that a job needs are there after it.
        rows(spark.range(0, TASKS, 1, TASKS).where("rand() > 1")).write.format("pykafka").options(**options).save()
        say("2/4", f"batch: {ROWS:,} rows")
        batch_seconds = write_batch(spark, bootstrap, topic, options)
        say("3/4", f"stream: {STREAM_BATCHES} micro-batches of {STREAM_ROWS:,} rows")
        write_stream(spark, folder, options)
        reports = read_reports(options["reportPath"])
        say("4/4", "read everything back")
        read_back(bootstrap, topic, ROWS + STREAM_BATCHES * STREAM_ROWS)
    show_table(reports, batch_seconds)
    print(where_to_look(os.environ.get("BOOTSTRAP", ""), topic))


def require_java() -> None:
    """Spark would say JAVA_GATEWAY_EXITED, after a page of traceback."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(f"{home}/bin/java" if home else "java") is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is no java on the PATH"
        sys.exit(f"Spark needs Java 17 or newer, but {where}. Install one, or set JAVA_HOME to it.")


@contextlib.contextmanager
def embedded_broker() -> Iterator[str]:
    command = [sys.executable, "-m", "spark_kafka_sink.cli", "broker", "--port", "0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        address = next((line.split()[-1] for line in broker.stdout if line.startswith("listening on ")), None)
        if address is None:
            sys.exit(f"the broker did not start; it ended with {broker.wait()}")
        yield address
    finally:
        broker.terminate()
        with broker:
            broker.wait()


def create_topic(bootstrap: str, topic: str) -> None:
    wanted = CreatableTopic(name=topic, num_partitions=PARTITIONS, replication_factor=-1)
    try:
        with BlockingClient(ClientConfig(bootstrap_servers=tuple(bootstrap.split(","))), timeout_ms=15_000) as client:
            node = client.any_node()
            assert node is not None
            answer = client.ask(node, CreateTopicsResponse, CreateTopicsRequest(topics=[wanted]))
    except KafkaSinkError as error:
        sys.exit(f"     no Kafka at {bootstrap}: {error}")
    for result in answer.topics:
        if result.error_code:
            sys.exit(f"     topic {topic} could not be made: {result.error_message} (error {result.error_code})")


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
    """`id` as keys, and as values about 100 bytes of JSON."""
    value = """concat('{"order":', id, ',"note":"', rpad('', 80, 'so it goes '), '"}')"""
    return frame.selectExpr("CAST(id AS STRING) AS key", f"{value} AS value")


def write_batch(spark: SparkSession, bootstrap: str, topic: str, options: dict[str, str]) -> float:
    frame = rows(spark.range(0, ROWS, 1, TASKS))
    started = time.perf_counter()
    watch(bootstrap, topic, lambda: frame.write.format("pykafka").options(**options).save())
    return time.perf_counter() - started


def watch(bootstrap: str, topic: str, write: Callable[[], None]) -> None:
    """Run `write`, and show meanwhile how many rows the broker has."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:
            failures.append(error)

    writing = threading.Thread(target=run)
    writing.start()
    config = ClientConfig(bootstrap_servers=tuple(bootstrap.split(",")))
    done = -1
    with TopicReader(config) as reader:
        while done < ROWS and writing.is_alive():
            writing.join(SHOW_SECONDS)
            before, done = done, sum(reader.end_offsets(topic).values())
            if done > before:
                bar(done)
    print(flush=True)
    writing.join()
    if failures:
        raise failures[0]


def bar(done: int) -> None:
    filled = BAR_WIDTH * done // ROWS
    line = f"     [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:>9,} rows in Kafka"
    print(f"\r{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n", flush=True)


def write_stream(spark: SparkSession, folder: Path, options: dict[str, str]) -> None:
    """A folder of files is the source, one file for each micro-batch."""
    source = folder / "source"
    stop = ROWS + STREAM_BATCHES * STREAM_ROWS
    spark.range(ROWS, stop, 1, STREAM_BATCHES).write.parquet(str(source))
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


def read_back(bootstrap: str, topic: str, expected: int) -> None:
    started = time.perf_counter()
    seen = np.zeros(expected, np.int64)
    count = 0
    with TopicReader(ClientConfig(bootstrap_servers=tuple(bootstrap.split(",")))) as reader:
        for table in reader.batches(topic):
            ids = pc.cast(pc.cast(table.column("key"), "string"), "int64").to_numpy()
            np.add.at(seen, ids, 1)
            count += len(ids)
    missing, doubled = int((seen == 0).sum()), int((seen > 1).sum())
    note(f"{count:,} rows in {time.perf_counter() - started:.1f} s: {missing} missing, {doubled} doubled")
    if missing or doubled:
        sys.exit("     this should not have happened; please report it")


def show_table(reports: list[WriteReport], batch_seconds: float) -> None:
    print()
    print(f"{'topic':<26} {'partition':>9} {'first offset':>13} {'last offset':>12} {'rows':>10}")
    for topic, partitions in sorted(ranges_of(reports).items()):
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
        f"with everything on this machine.\nRecords sent again, in batch and stream: {retries}."
    )


def where_to_look(bootstrap: str, topic: str) -> str:
    left = f"Topic {topic} is still there: delete it when you have seen enough.\n" if bootstrap else ""
    return (
        f"\n{left}Where to look next: docs/quickstart.md for a job of your own, docs/options.md for every option, "
        "docs/guarantees.md for what is promised when things fail, `make test` for the proof."
    )


def say(step: str, title: str) -> None:
    print(f"\n{step}  {title}", flush=True)


def note(text: str) -> None:
    print(f"     {text}", flush=True)


if __name__ == "__main__":
    main()
