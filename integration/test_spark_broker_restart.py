"""The broker is restarted in the middle of a write: the write goes on, nothing is lost, nothing doubled."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import StoredRecord, create_topic, read_topic

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 3
ROWS = 40_000
TASKS = 2
SLOW_SECONDS = 0.15
MIDDLE = 5_000
PATIENCE_SECONDS = 120.0


def slow_rows(frame: DataFrame) -> DataFrame:
    """The column `id`, a little at a time; the partition to write to follows from it."""

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, 500):
                time.sleep(SLOW_SECONDS)
                yield batch.slice(start, 500)

    return frame.mapInArrow(slowly, "id LONG").selectExpr(
        "CAST(id AS STRING) AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition"
    )


def while_running(kafka: KafkaCluster, topic: str, write: Callable[[], None]) -> None:
    """Run `write`, and restart the broker once some of its rows are there."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except BaseException as error:
            failures.append(error)

    writing = threading.Thread(target=run)
    writing.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(read_topic(kafka.bootstrap(), topic)) < MIDDLE:
        assert writing.is_alive(), failures
        assert time.monotonic() < deadline
    kafka.restart(1)
    assert writing.is_alive(), "the write was over before the broker went down"
    writing.join()
    if failures:
        raise failures[0]


def assert_each_once_and_in_order(records: list[StoredRecord], tasks: int) -> None:
    """Within a partition of Kafka, the rows of each task are in the order of the task."""
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(ROWS))
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    for record, number in zip(records, numbers, strict=True):
        stream = (record.partition, number * tasks // ROWS)
        assert last[stream] < number
        last[stream] = number


def test_a_batch_outlives_a_restart_of_the_broker(spark: SparkSession, kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    frame = slow_rows(spark.range(0, ROWS, 1, TASKS))
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    while_running(kafka, topic, writer.save)
    assert_each_once_and_in_order(read_topic(kafka.bootstrap(), topic), TASKS)


def test_a_stream_outlives_a_restart_of_the_broker(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    files = 8
    spark.range(0, ROWS, 1, files).write.parquet(str(tmp_path / "source"))
    source = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = slow_rows(source).writeStream.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap())
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run() -> None:
        writer.trigger(availableNow=True).start().awaitTermination()

    while_running(kafka, topic, run)
    assert_each_once_and_in_order(read_topic(kafka.bootstrap(), topic), files)
