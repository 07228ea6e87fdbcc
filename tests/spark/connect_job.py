"""A program that writes through Spark Connect. test_connect.py starts it.

Usage: `python -m tests.spark.connect_job ADDRESS BOOTSTRAP TOPIC FOLDER`
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.support.processes import command_line, descendants
from spark_kafka_sink.errors import KafkaSinkError
from tests.spark_session import SMALL, connect_session
from tests.waiting import WAIT_TIMEOUT_SECONDS

EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}


def main(address: str, bootstrap: str, topic: str, folder: Path) -> None:
    spark = connect_session(address)
    print(f"session: {type(spark).__module__}")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id * 2 AS STRING) AS value")
    frame.selectExpr("*", "1 AS VALUE", "2 AS other", "3 AS other").write.format("pykafka").options(**options).save()
    placed = options | {"topic": f"{topic}-placed", "distribution": "partition", "orderBy": "id"}
    # Simulates a session in which the user has not set the option.
    spark.conf.unset("spark.sql.shuffle.partitions")
    frame.selectExpr("*", "CAST(key AS INT) AS id").write.format("pykafka").options(**placed).save()
    spark.conf.set("spark.sql.shuffle.partitions", SMALL["spark.sql.shuffle.partitions"])
    keyed = options | EXACTLY_ONCE | {"topic": f"{topic}-key", "idempotencyKey": "today"}
    for _ in range(2):
        frame.write.format("pykafka").options(**keyed).save()
    write_streams(frame, options, folder)
    for mode in ("overwrite", "ignore"):
        writer = frame.write.format("pykafka").options(**options).mode(mode)
        print(f"{mode}: {get_error_message(writer.save)}")
    refuse_behind_a_shuffle(spark, options, folder / "ran")
    spark.stop()


def write_streams(frame: DataFrame, options: dict[str, str], folder: Path) -> None:
    frame.write.parquet(f"{folder}/source")
    files = frame.sparkSession.readStream.schema(frame.schema).parquet(f"{folder}/source")
    largest = files.groupBy("key").agg({"value": "max"}).toDF("key", "value")
    for name, mode, rows, more in (
        ("stream", "append", files, {"distribution": "none"}),
        ("update", "update", largest, {"distribution": "partition"}),
        ("once", "append", files, EXACTLY_ONCE),
    ):
        write_options = options | {"topic": f"{options['topic']}-{name}"} | more
        stream = rows.writeStream.format("pykafka").options(**write_options).outputMode(mode)
        stream = stream.option("checkpointLocation", f"{folder}/checkpoint-{name}")
        started(stream.trigger(availableNow=True)).awaitTermination()
    stream = files.writeStream.format("pykafka").options(**options).trigger(continuous="1 second")
    print(f"continuous: {get_error_message(stream.option('checkpointLocation', f'{folder}/never').start)}")


def started(stream: DataStreamWriter) -> StreamingQuery:
    """Start the stream, and retry if Spark gave up waiting for its foreachBatch worker.

    A new worker has ten seconds to connect. Spark does not end a worker that is too late. On a busy machine, such
    workers would delay the next one, too, so this function kills them.
    """
    others = foreach_batch_workers()
    deadline = time.monotonic() + WAIT_TIMEOUT_SECONDS
    while True:
        try:
            return stream.start()
        except PySparkException as error:
            if time.monotonic() > deadline or "failed to connect back" not in str(error):
                raise
        for pid in foreach_batch_workers() - others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def foreach_batch_workers() -> set[int]:
    """Find the foreachBatch workers of the server, which is a child of the test process that runs this job."""
    module = "pyspark.sql.connect.streaming.worker.foreach_batch_worker"
    return {pid for pid in descendants(os.getppid()) if module in command_line(pid)}


def refuse_behind_a_shuffle(spark: SparkSession, options: dict[str, str], ran: Path) -> None:
    """Check that rejected writes run no upstream task.

    Upstream tasks run in other processes, so each task creates a file by which it is counted.
    """
    ran.mkdir()

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        (ran / uuid.uuid4().hex).touch()
        yield from batches

    numbers = spark.range(0, 8, 1, 4).mapInArrow(counted, "id LONG")
    sums = numbers.groupBy((numbers["id"] % 3).alias("n")).count().selectExpr("CAST(count AS STRING) AS value")
    for name, value in (("tpoic", "t"), ("topic", "not-there"), ("kafka.bootstrap.servers", "no-such-host.invalid:1")):
        print(f"{name}: {get_error_message(sums.write.format('pykafka').options(**options).option(name, value).save)}")
    print(f"no value: {get_error_message(sums.drop('value').write.format('pykafka').options(**options).save)}")
    print(f"upstream tasks: {len(list(ran.iterdir()))}")
    sums.write.format("pykafka").options(**options | {"topic": f"{options['topic']}-sums"}).save()
    print(f"upstream tasks of the write: {len(list(ran.iterdir()))}")


def get_error_message(write: Callable[[], object]) -> str:
    """Return the type and the message of the error on one line."""
    try:
        write()
    except (PySparkException, KafkaSinkError) as error:
        return f"{type(error).__name__} " + " ".join(str(error).split())
    return "it was not refused"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
