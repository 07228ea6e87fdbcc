"""The broker goes away in the middle of a write and comes back: the write goes on, nothing is lost, nothing doubled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.cluster_jobs import hold_second_half
from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import StoredRecord, create_topic, read_topic
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

PARTITIONS = 3
ROWS = 40_000
TASKS = 2
BATCH_ROWS = 500
MIDDLE = 1_000


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows reach the sink in batches of 500: those in front of a gate are written."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name) or ""
    spark.conf.set(name, BATCH_ROWS)
    yield
    spark.conf.set(name, before)


def rows_behind(gate: Path, frame: DataFrame, rows_per_task: int) -> DataFrame:
    """The column `id`, half of it at once; the partition to write to follows from it."""
    return frame.mapInArrow(hold_second_half(gate, rows_per_task), "id LONG").selectExpr(
        "CAST(id AS STRING) AS value", f"CAST(id % {PARTITIONS} AS INT) AS partition"
    )


def without_broker_in_the_middle(kafka: KafkaCluster, topic: str, gate: Path, write: Callable[[], None]) -> None:
    """Run `write`. Half of its rows wait for the gate, which is opened while the broker is down."""
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            wait_until(lambda: len(read_topic(kafka.bootstrap(), topic)) >= MIDDLE or writing.done())
            kafka.stop_node(1)
        finally:
            gate.touch()
        kafka.start_node(1)
        writing.result()


def assert_each_once_and_in_order(records: list[StoredRecord], tasks: int) -> None:
    """Check that each partition contains the rows of each task once, and in the order of the task."""
    numbers = [int(record.value or b"") for record in records]
    assert sorted(numbers) == list(range(ROWS))
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    for record, number in zip(records, numbers, strict=True):
        stream = (record.partition, number * tasks // ROWS)
        assert last[stream] < number
        last[stream] = number


@pytest.mark.usefixtures("small_batches")
def test_a_batch_outlives_a_restart_of_the_broker(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    gate = tmp_path / "gate"
    frame = rows_behind(gate, spark.range(0, ROWS, 1, TASKS), ROWS // TASKS)
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    without_broker_in_the_middle(kafka, topic, gate, writer.save)
    assert_each_once_and_in_order(read_topic(kafka.bootstrap(), topic), TASKS)


@pytest.mark.usefixtures("small_batches")
def test_a_stream_outlives_a_restart_of_the_broker(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    files = 2
    spark.range(0, ROWS, 1, files).write.parquet(str(tmp_path / "source"))
    source = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    gate = tmp_path / "gate"
    writer = (
        rows_behind(gate, source, ROWS // files)
        .writeStream.format("pykafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap())
    )
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))

    def run() -> None:
        writer.trigger(availableNow=True).start().awaitTermination()

    without_broker_in_the_middle(kafka, topic, gate, run)
    assert_each_once_and_in_order(read_topic(kafka.bootstrap(), topic), files)
